"""What single primitives compute, by the conventions that the page on costs writes down."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax._program import trace
from incrax.engine.program.cost import leaf_cost
from incrax.engine.program.nested import is_counted
from incrax.engine.program.simplify import inline
from incrax.primitives.entry import EquationWork
from incrax.primitives.products import multiply_adds
from incrax.primitives.table import TABLE, work_of

lax = jax.lax
N = 24
V, I = np.ones(64), np.arange(64)
C = np.ones(64, complex)
S = np.eye(N)
TALL = np.ones((30, N))


def equations(fun, *args):
    return inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)).eqns


def work(fun, *args):
    """The work of all equations of a function; each must be registered."""
    works = [work_of(eqn) for eqn in equations(fun, *args)]
    return EquationWork(*(sum(part) for part in zip(EquationWork(), *works, strict=True)))


# FLOPs and integer operations.
COUNTED = {
    "sum of two": (lambda x: x + x, (V,), 64, 0),
    "complex sum": (lambda x: x + x, (C,), 2 * 64, 0),
    "complex product": (lambda x: x * x[::-1], (C,), 6 * 64, 0),
    "complex quotient": (lambda x: x / x[::-1], (C,), 11 * 64, 0),
    "complex absolute value": (jnp.abs, (C,), 4 * 64, 0),
    "product of integers": (lambda x: x * x, (I,), 0, 64),
    "clamp": (lambda x: lax.clamp(0.0, x, 1.0), (V,), 2 * 64, 0),
    "comparison": (lambda x: x < 2, (V,), 0, 64),
    "choice": (lambda x: lax.select(x < 2, x, x), (V,), 0, 2 * 64),
    "square": (lambda x: x**2, (V,), 64, 0),
    "fifth power": (lambda x: x**5, (V,), 3 * 64, 0),  # x^2, x^4, x^4 x
    "seventh power": (lambda x: x**7, (V,), 4 * 64, 0),  # x^2, x^3, x^4, x^7
    "inverse cube": (lambda x: x**-3, (V,), 3 * 64, 0),
    "complex cube": (lambda x: x**3, (C,), 2 * 6 * 64, 0),
    "cube of integers": (lambda x: x**3, (I,), 0, 2 * 64),
    "product of all": (jnp.prod, (V,), 63, 0),
    "complex sum of all": (jnp.sum, (C,), 2 * 63, 0),
    "largest": (lambda x: lax.reduce_max(x, [0]), (V,), 63, 0),
    "place of the largest": (lambda x: lax.argmax(x, 0, np.int32), (V,), 0, 63),
    "any": (lambda x: lax.reduce_or(x, [0]), (V > 0,), 0, 63),
    "running sum": (lambda x: lax.cumsum(x.reshape(4, 16), 1), (V,), 60, 0),
    "reduction by a function": (
        lambda x: lax.reduce(x, 0.0, lambda a, b: 2 * a + b, (0,)),
        (V,),
        2 * 63,
        0,
    ),
    "sum of windows": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (4,), (2,), "VALID"),
        (V,),
        3 * 31,
        0,
    ),
    "sort of rows": (lambda x: lax.sort(x.reshape(4, 16), dimension=1), (V,), 0, 64 * 4),
    "best four": (lambda x: lax.top_k(x, 4), (V,), 0, 64 * 2),
    "scatter that adds": (
        lambda x, u: lax.scatter_add(x, np.zeros((7, 1), int), u, _scalars()),
        (V, V[:7]),
        7,
        0,
    ),
    "running log of a sum": (lambda x: lax.cumlogsumexp(x), (V,), 5 * 63, 0),
    "scatter that multiplies": (
        lambda x, u: lax.scatter_mul(x, np.zeros((7, 1), int), u, _scalars()),
        (C, C[:7]),
        6 * 7,
        0,
    ),
    "scatter that sets": (
        lambda x, u: lax.scatter(x, np.zeros((7, 1), int), u, _scalars()),
        (V, V[:7]),
        0,
        0,
    ),
    "slices": (
        lambda x: (x[3:9], lax.dynamic_slice(x, (3,), (5,)), jnp.concatenate([x, x])),
        (V,),
        0,
        0,
    ),
    "a product of integers": (lambda x: lax.dot(x, x), (I,), 0, 2 * 64),
    "complex dot product": (lambda x: lax.dot(x, x), (C,), 8 * 64, 0),
    "Fourier transform": (jnp.fft.fft, (C,), 5 * 64 * 6, 0),
    "batch of transforms": (lambda x: jnp.fft.fft(x.reshape(4, 16)), (C,), 5 * 64 * 4, 0),
    "transform in two axes": (
        lambda x: lax.fft(x.reshape(8, 8), "fft", (8, 8)),
        (C,),
        5 * 64 * 6,
        0,
    ),
    "real transform": (lambda x: lax.fft(x, "rfft", (64,)), (V,), 5 / 2 * 64 * 6, 0),
    "real transform back": (lambda x: lax.fft(x, "irfft", (64,)), (C[:33],), 5 / 2 * 64 * 6, 0),
}


def _scalars():
    return lax.ScatterDimensionNumbers((), (0,), (0,))


if "polynomial" in dir(lax):  # JAX 0.12
    COUNTED["polynomial"] = (lambda x: lax.polynomial(x, [1.0, 2.0, 3.0, 4.0]), (V,), 6 * 64, 0)
    COUNTED["1 - x^2"] = (lambda x: lax.one_minus_square(x), (V,), 3 * 64, 0)


@pytest.mark.parametrize("name", COUNTED)
def test_work_of_known_equations(name):
    fun, args, flops, int_ops = COUNTED[name]
    found = work(fun, *args)
    assert found.flops == pytest.approx(flops, rel=1e-12)
    assert found.int_ops == pytest.approx(int_ops, rel=1e-12)


FACTORIZATIONS = {
    "cholesky": (lambda a: lax.linalg.cholesky(a, symmetrize_input=False), (S,), N**3 / 3),
    "complex cholesky": (
        lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
        (S.astype(complex),),
        4 * N**3 / 3,
    ),
    "lu": (lax.linalg.lu, (S,), 2 / 3 * N**3),
    "lu of a tall matrix": (lax.linalg.lu, (TALL,), 30 * N**2 - N**3 / 3),
    "batch of lu": (lax.linalg.lu, (np.stack([S] * 5),), 5 * 2 / 3 * N**3),
    # R, and as many columns of Q from n reflections: 2 m n^2 - 2/3 n^3 each
    "Q and R": (
        lambda a: lax.linalg.qr(a, full_matrices=False),
        (TALL,),
        2 * (2 * 30 * N**2 - 2 / 3 * N**3),
    ),
    "eigenvectors": (lambda a: lax.linalg.eigh(a, symmetrize_input=False), (S,), 9 * N**3),
    "singular values": (
        lambda a: lax.linalg.svd(a, compute_uv=False),
        (TALL,),
        4 * 30 * N**2 - 4 / 3 * N**3,
    ),
    "singular vectors": (
        lambda a: lax.linalg.svd(a, full_matrices=False),
        (TALL,),
        14 * 30 * N**2 + 8 * N**3,
    ),
    "of a wide matrix": (
        lambda a: lax.linalg.svd(a, full_matrices=False),
        (TALL.T,),
        14 * 30 * N**2 + 8 * N**3,
    ),
    "triangle from the left": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True),
        (S, TALL.T),
        N**2 * 30,
    ),
    "triangle from the right": (
        lambda a, b: lax.linalg.triangular_solve(a, b),
        (S, TALL),
        N**2 * 30,
    ),
    "with ones on its diagonal": (
        lambda a, b: lax.linalg.triangular_solve(a, b, unit_diagonal=True),
        (S, TALL),
        N * (N - 1) * 30,
    ),
    "eigenvectors of any matrix": (lax.linalg.eig, (S,), 25 * N**3),
    "eigenvalues of any matrix": (
        lambda a: lax.linalg.eig(
            a, compute_left_eigenvectors=False, compute_right_eigenvectors=False
        ),
        (S,),
        10 * N**3,
    ),
    "Schur": (lax.linalg.schur, (S,), 25 * N**3),
    "Hessenberg": (lax.linalg.hessenberg, (S,), 10 / 3 * N**3),
    "tridiagonal form": (lambda a: lax.linalg.tridiagonal(a, lower=True), (S,), 4 / 3 * N**3),
    # n columns of 30 rows from n reflections: 2 m n^2 - 2/3 n^3
    "Q of reflections": (
        lax.linalg.householder_product,
        (TALL, np.ones(N)),
        2 * 30 * N**2 - 2 / 3 * N**3,
    ),
    "all singular vectors": (
        lambda a: lax.linalg.svd(a, full_matrices=True),
        (TALL,),
        4 * 30**2 * N + 8 * 30 * N**2 + 9 * N**3,
    ),
    "symmetric product": (
        lambda a, c: lax.linalg.symmetric_product(a, c),
        (TALL.T, S),
        N * (N + 1) * 30,
    ),
    "tridiagonal system": (
        lambda d, b: lax.linalg.tridiagonal_solve(d, d, d, b),
        (V, np.ones((64, 3))),
        8 * 64 * 3,
    ),
}


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_factorizations_and_solutions_count_their_leading_terms(name):
    fun, args, expected = FACTORIZATIONS[name]
    assert work(fun, *args).flops == pytest.approx(expected, rel=1e-12)


# --- convolutions: counted place by place ---------------------------------------------------------

CONVOLUTIONS = {
    "valid": {"padding": "VALID"},
    "same": {"padding": "SAME"},
    "strides": {"padding": "SAME", "window_strides": (2, 3)},
    "padding": {"padding": ((3, 0), (1, 4))},
    "negative padding": {"padding": ((-1, 2), (0, -2))},
    "spread kernel": {"padding": "SAME", "rhs_dilation": (2, 1)},
    "holes in the image": {"padding": ((2, 1), (1, 1)), "lhs_dilation": (2, 3)},
    "groups of features": {"padding": "SAME", "feature_group_count": 2},
    "groups of images": {"padding": "SAME", "batch_group_count": 2},
    "all at once": {
        "padding": ((2, 1), (0, 3)),
        "window_strides": (2, 1),
        "rhs_dilation": (1, 2),
        "lhs_dilation": (2, 2),
    },
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_where_a_kernel_meets_an_input(name):
    """The number of multiply-adds is the result for ones in the places of all numbers, summed over
    the result.
    """
    options = {"window_strides": (1, 1), **CONVOLUTIONS[name]}
    groups = options.get("feature_group_count", 1)
    image, kernel = np.ones((4, 6, 9, 8)), np.ones((4, 6 // groups, 3, 2))
    fun = lambda x, k: lax.conv_general_dilated(x, k, **options)
    (eqn,) = equations(fun, image, kernel)
    assert multiply_adds(eqn) == np.asarray(fun(image, kernel)).sum()
    assert work_of(eqn) == EquationWork(2.0 * multiply_adds(eqn))


def test_a_product_of_ragged_groups_multiplies_each_row_once():
    (eqn,) = equations(
        lambda x, w, n: lax.ragged_dot(x, w, n), TALL, np.ones((5, N, 7)), np.array([6] * 5)
    )
    assert work_of(eqn).flops == 2 * 30 * N * 7


# --- transcendental functions ---------------------------------------------------------------------

WEIGHTS = {
    (jnp.exp, jnp.log, jnp.log1p, jnp.expm1): 1,
    (jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jax.lax.logistic, jnp.cbrt): 2,
    (
        lax.erf,
        lax.erf_inv,
        lax.atan,
        lax.asin,
        lax.acos,
        lambda x: lax.pow(x, x),
        lambda x: lax.atan2(x, x),
    ): 4,
    (lax.lgamma, lax.digamma, lax.bessel_i0e): 10,
    (lambda x: lax.igamma(x, x), lambda x: lax.betainc(x, x, x)): 100,
}


@pytest.mark.parametrize("weight", sorted(set(WEIGHTS.values())))
def test_transcendental_functions_count_in_exponentials(weight):
    for functions in [functions for functions, each in WEIGHTS.items() if each == weight]:
        for fun in functions:
            assert work(fun, V / 100).transcendentals == weight * 64


def test_complex_transcendental_functions_count_four_times():
    assert work(jnp.exp, C).transcendentals == 4 * 64


# --- bytes ----------------------------------------------------------------------------------------


def test_bytes_are_read_where_data_are_taken():
    (take,) = [
        eqn
        for eqn in equations(lambda x, i: x.at[i].get(mode="clip"), np.ones(10**6), np.arange(8))
        if eqn.primitive.name == "gather"
    ]
    assert _bytes_read(leaf_cost(take)) == 8 * 8 + 8 * _index_bytes(take)
    (cut,) = equations(lambda x: x[3:9], V)
    assert (_bytes_read(leaf_cost(cut)), leaf_cost(cut).bytes_written) == (48, 48)


def _index_bytes(eqn):
    return np.dtype(eqn.invars[1].aval.dtype).itemsize


def _bytes_read(found):
    return found.bytes - found.bytes_written


def test_bytes_written_are_those_of_the_result():
    for eqn in equations(lambda a: jnp.exp(a @ a) + 1.0, S):
        assert leaf_cost(eqn).bytes_written == S.nbytes


# --- what is not registered -----------------------------------------------------------------------


def test_derivatives_of_windows_compare_in_each_and_add_once():
    pool = lambda x: jnp.sum(lax.reduce_window(x, -np.inf, lax.max, (4,), (4,), "VALID"))
    names = {eqn.primitive.name: work_of(eqn) for eqn in equations(jax.grad(pool), V)}
    assert names["select_and_scatter_add"] == EquationWork(flops=16.0, int_ops=16.0 * 3)
    pushed = lambda x: jax.jvp(pool, (x,), (x,))[1]
    (gathered,) = [
        work_of(eqn)
        for eqn in equations(pushed, V)
        if eqn.primitive.name == "select_and_gather_add"
    ]
    assert gathered == EquationWork(int_ops=16.0 * 3)


def test_random_words_are_those_that_are_drawn():
    (bits,) = [
        eqn
        for eqn in equations(lambda key: jax.random.bits(key, (32,), np.uint64), jax.random.key(0))
    ]
    assert work_of(bits) == EquationWork(int_ops=60.0 * 2 * 32)
    (split,) = equations(lambda key: jax.random.split(key, 5), jax.random.key(0))
    assert work_of(split) == EquationWork(int_ops=60.0 * 2 * 5)


def test_a_primitive_without_a_rule_is_not_registered():
    assert not {"pure_callback", "my_own"} & set(TABLE)
    (eqn,) = equations(
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), V
    )
    assert work_of(eqn) is None
    assert not is_counted(eqn)


def test_a_reduction_by_a_function_that_nobody_registered_is_not_registered():
    shape = jax.ShapeDtypeStruct((), np.float64)
    strange = lambda a, b: jax.pure_callback(np.add, shape, a, b)
    (eqn,) = equations(lambda x: lax.reduce(x, 0.0, strange, (0,)), V)
    assert work_of(eqn) is None


def test_a_sum_over_devices_is_not_registered_and_over_a_mapped_axis_it_is():
    mapped = jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i")
    (total,) = [eqn for eqn in equations(mapped, V) if eqn.primitive.name.startswith("psum")]
    assert work_of(total) == EquationWork(63.0)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec
    split = jax.shard_map(
        lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=spec("i"), out_specs=spec()
    )
    (outer,) = equations(split, V)
    assert any(work_of(eqn) is None for eqn in outer.params["jaxpr"].eqns)


def test_every_rule_gives_numbers():
    for fun, args, *_ in [*COUNTED.values(), *FACTORIZATIONS.values()]:
        assert all(math.isfinite(part) and part >= 0 for part in work(fun, *args))


@pytest.mark.parametrize("size", [0, 1])
def test_empty_and_single_numbers_have_a_cost(size):
    x = np.ones(size)
    for fun in (
        jnp.sort,
        jnp.cumsum,
        jnp.exp,
        lambda x: lax.reduce_sum(x, [0]),
        lambda x: lax.dot(x, x),
    ):
        assert all(part >= 0 for part in work(fun, x))
    assert work(lambda x: lax.sort(x), x).int_ops == 0
