"""Which elements can be nonzero: never too few, for every primitive that has a rule; no more than
that, where known.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from derivatives.sparsity.numeric import POINTS, N, band, blocks, flat, found, found_hessian, seen
from hypothesis import given
from properties.programs import START, programs

import incrax
from incrax._program import trace
from incrax.derivatives.sparsity import search
from incrax.derivatives.sparsity.search import hessian_pattern, pattern_of
from incrax.primitives import elements
from incrax.primitives.table import entry_of

lax = jax.lax
X = POINTS[0]
CHAIN = np.diag(np.full(N, 2.0)) - np.diag(np.ones(N - 1), 1)
STEPS = np.array([3, 1, 1])


def matrix(x):
    return x.reshape(3, 4)


def per_row(fun):
    return lambda x: jax.vmap(fun)(matrix(x))


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


straight_through.defjvp(lambda primals, tangents: (straight_through(*primals), tangents[0]))


EXACT = {
    "elementwise": lambda x: jnp.sin(x) * x / (2 + x**2),
    "a sum with a scalar": lambda x: x + x[0],
    "an axis of length 1 in a product": lambda x: lax.mul(matrix(x), matrix(x)[:1]),
    "a constant mask": lambda x: x * (np.arange(N) % 3 == 0),
    "a selection by constants": lambda x: jnp.where(np.arange(N) < 4, x**2, x[::-1]),
    "floor, stop_gradient, integers": lambda x: jnp.floor(x) + lax.stop_gradient(x) + x.astype(int),
    "a comparison": lambda x: (x > 0).astype(float) * 2,
    "slice": lambda x: x[2:9:3] ** 2,
    "difference": jnp.diff,
    "pad": lambda x: lax.pad(x, x[3], [(1, -2, 1)]),
    "pad of a matrix": lambda x: lax.pad(matrix(x), 0.0, [(-1, 1, 0), (2, -3, 2)]),
    "reverse and transpose": lambda x: matrix(x)[::-1].T * 2,
    "concatenate": lambda x: jnp.concatenate([x[:2], jnp.ones(2), x[5:] ** 2]),
    "stack": lambda x: jnp.stack([x[:3], np.ones(3), x[3:6]], axis=1),
    "split": lambda x: jnp.split(x, 3)[1],
    "broadcast": lambda x: jnp.broadcast_to(x[:3, None], (3, 2)),
    "roll": lambda x: jnp.roll(x, 2) * x,
    "gather": lambda x: x[STEPS] * x[:3],
    "gather outside": lambda x: x.at[np.array([3, 40])].get(mode="fill", fill_value=0.0),
    "rows": lambda x: matrix(x)[np.array([2, 0])],
    "scatter": lambda x: x.at[np.array([3, 1, 7])].set(x[:3] ** 2),
    "scatter to other places": lambda x: x.at[np.array([3, 1, 7])].set(
        x[:3] ** 2, unique_indices=True
    ),
    "scatter-add": lambda x: x.at[np.array([3, 1, 1, 40])].add(x[:4] ** 2),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (3,), (4,)),
    "dynamic update": lambda x: lax.dynamic_update_slice(x, x[:2] ** 2, (20,)),
    "segments": lambda x: jax.ops.segment_sum(x**2, np.arange(N) // 4, 3),
    "sum": lambda x: matrix(x).sum(0),
    "product": lambda x: matrix(x).prod(1),
    "logsumexp": lambda x: jax.nn.logsumexp(matrix(x), axis=1),
    "cumulative sum": lambda x: jnp.cumsum(x),
    "cumulative sum from the end": lambda x: lax.cumsum(matrix(x), 1, reverse=True),
    "cumulative product": lambda x: jnp.cumprod(x),
    "a banded matrix": lambda x: jnp.sin(CHAIN @ x),
    "a banded matrix from the right": lambda x: x @ CHAIN,
    "a product of what moves": lambda x: matrix(x) @ matrix(x).T,
    "a batched product": lambda x: jnp.einsum("bi,bj->bij", matrix(x), matrix(x)),
    "a convolution": lambda x: jnp.convolve(x, np.array([1.0, -2.0, 1.0]), mode="same"),
    "a convolution with holes": lambda x: jnp.convolve(x, np.array([1.0, 0.0, 1.0]), mode="valid"),
    "a kernel that moves": lambda x: jnp.convolve(np.array([1.0, 0.0, 1.0, 2.0]), x[:3]),
    "Fourier transform": per_row(lambda r: jnp.abs(jnp.fft.rfft(r))),
    "linear solve": per_row(lambda r: jnp.linalg.solve(jnp.outer(r, r) + 9 * jnp.eye(4), r)),
    "jit, remat": jax.jit(jax.checkpoint(lambda x: jnp.sin(x) * x)),
    "custom_jvp": straight_through,
    "scan": lambda x: lax.scan(lambda c, y: (0.5 * c * y, c + y), x[0], x)[1],
    "scan from the end": lambda x: lax.scan(lambda c, y: (c + y, c * y), 0.0, x, reverse=True)[1],
    "scan of no length": lambda x: lax.scan(lambda c, y: (c + y, c * y), x[:2], jnp.zeros((0, 2))),
    "a loop that counts": lambda x: lax.fori_loop(
        0, N - 1, lambda i, c: c.at[i].set(c[i + 1] * x[i]), x
    ),
    "while": lambda x: lax.while_loop(lambda c: c.sum() > 1, lambda c: c * 0.5, x),
    "a factor of zero": lambda x: (0.0 * x[1:3], x),
    "vmap of products": per_row(lambda r: jnp.sin(jnp.outer(r, r) @ r)),
    "no elements": lambda x: x[:0],
    "nothing moves": lambda x: jnp.ones(3),
}
"""The nonzeros at some point are all that the analysis finds."""

LOOSE = {
    "a selection": lambda x: jnp.where(x > 0, x, x[::-1]),
    "sort": lambda x: jnp.sort(x),
    "sorted rows": per_row(jnp.sort),
    "max": lambda x: matrix(x).max(0),
    "an index that moves": lambda x: x[jnp.argmax(x)] * x,
    "an index that moves in each row": per_row(lambda r: r[jnp.argsort(r)]),
    "a part that moves": lambda x: lax.dynamic_slice_in_dim(matrix(x), jnp.argmax(x), 2, 1),
    "an update that moves": lambda x: lax.dynamic_update_slice_in_dim(
        matrix(x), matrix(x)[::-1, :2], jnp.argmax(x), 1
    ),
    "a scatter that moves": per_row(lambda r: r.at[jnp.argmax(r)].set(r[0])),
    "a sum that moves": per_row(lambda r: r.at[jnp.argmax(r)].add(r[0])),
    "interpolation": lambda x: jnp.interp(x, np.linspace(0, 3, 7), np.linspace(0, 1, 7) ** 2),
    "windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (3,), (1,), "VALID"),
    "Cholesky": per_row(lambda r: jnp.linalg.cholesky(jnp.outer(r, r) + 9 * jnp.eye(4))),
    "eigenvalues": per_row(lambda r: jnp.linalg.eigh(jnp.outer(r, r))[0]),
    "shift in a loop": lambda x: lax.scan(lambda c, y: (jnp.roll(c, 1) * y, c[0]), x, x)[1],
    "relu": jax.nn.relu,
    "cond": lambda x: lax.cond(x.sum() > 0, lambda: x, lambda: x[::-1]),
    "triangular solve": per_row(
        lambda r: lax.linalg.triangular_solve(
            jnp.outer(r, r) + 9 * jnp.eye(4), r[:, None], left_side=True
        )
    ),
}
"""What depends on the values: the analysis must find the nonzeros at every point, and more."""


# --- never too few --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_the_pattern_is_that_of_the_nonzeros(name):
    expected = seen(jax.jacfwd(flat(EXACT[name])))
    np.testing.assert_array_equal(found(EXACT[name]), expected)


@pytest.mark.parametrize("name", LOOSE)
def test_the_pattern_holds_the_nonzeros_at_every_point(name):
    assert not np.any(seen(jax.jacfwd(flat(LOOSE[name]))) & ~found(LOOSE[name]))


@pytest.mark.parametrize("name", [*EXACT, *LOOSE])
def test_a_primitive_without_a_rule_costs_only_tightness(name, monkeypatch):
    """Every rule but those of nested jaxprs taken away: all-to-all."""
    with_rules = found({**EXACT, **LOOSE}[name])
    monkeypatch.setattr(elements, "entry_of", lambda eqn: replace(entry_of(eqn), index=None))
    assert not np.any(with_rules & ~found({**EXACT, **LOOSE}[name]))


@given(programs())
def test_random_programs_have_no_nonzeros_outside_the_pattern(program):
    sizes = np.cumsum([1, 1, 5])

    def fun(x):
        a, b, v, w = jnp.split(x, sizes)
        return program(a[0], b[0], v, w)[4:]

    x = np.concatenate([np.ravel(part) for part in START])
    points = [x, np.roll(x, 3) + 0.1, -x]
    assert not np.any(seen(jax.jacfwd(flat(fun)), points) & ~found(fun, x))


# --- no more than that ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sorted rows", blocks(3, 4)),
        ("an index that moves in each row", blocks(3, 4)),
        (
            "a sum that moves",
            np.eye(N, dtype=bool) | (np.arange(N) == np.arange(N)[:, None] // 4 * 4),
        ),
        ("triangular solve", blocks(3, 4)),
        ("cond", np.eye(N, dtype=bool) | np.eye(N, dtype=bool)[::-1]),
        ("eigenvalues", blocks(3, 4)),
        ("interpolation", np.eye(N, dtype=bool)),
        ("relu", np.eye(N, dtype=bool)),
        ("a selection", np.eye(N, dtype=bool) | np.eye(N, dtype=bool)[::-1]),
    ],
)
def test_an_unknown_index_reaches_only_along_what_it_indexes(name, expected):
    np.testing.assert_array_equal(found(LOOSE[name]), expected)


def rosenbrock(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


ARROW = np.eye(N, dtype=bool)
ARROW[0] = ARROW[:, 0] = True

HESSIANS = {
    "separable": (lambda x: jnp.sum(jnp.sin(x) * x), np.eye(N)),
    "separable, a density": (lambda x: jax.scipy.stats.t.logpdf(x, 3.0).sum(), np.eye(N)),
    "chained Rosenbrock": (rosenbrock, band(N, 1, 1)),
    "chained in a scan": (
        lambda x: lax.scan(lambda c, y: (y, (y - c) ** 3), x[0], x[1:])[1].sum(),
        band(N, 1, 1),
    ),
    "chained in a loop": (
        lambda x: lax.fori_loop(0, N - 1, lambda i, c: c + (x[i] * x[i + 1]) ** 2, 0.0),
        band(N, 1, 1),
    ),
    "Laplacian": (
        lambda x: jnp.sum(jnp.convolve(x, np.array([1.0, -2, 1]), mode="valid") ** 4),
        band(N, 2, 2),
    ),
    "a banded matrix": (lambda x: jnp.sum((CHAIN @ x) ** 4), band(N, 1, 1)),
    "blocks": (lambda x: jnp.sum(jax.vmap(jnp.prod)(matrix(x)) ** 2), blocks(3, 4)),
    "segments": (
        lambda x: jnp.sum(jax.ops.segment_sum(x**2, np.arange(N) // 4, 3) ** 2),
        blocks(3, 4),
    ),
    "arrow": (lambda x: jnp.sum((x[1:] - x[0]) ** 3), ARROW),
    "linear": (lambda x: jnp.sum(CHAIN @ x), np.zeros((N, N))),
    "a square": (lambda x: jnp.sum(x) ** 2, np.ones((N, N))),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_the_pattern_of_a_hessian_is_known(name):
    fun, expected = HESSIANS[name]
    np.testing.assert_array_equal(found_hessian(fun), np.asarray(expected, bool))
    assert not np.any(seen(jax.hessian(fun)) & ~found_hessian(fun))


def test_a_hessian_that_the_rules_make_unsymmetric_gets_a_symmetric_pattern():
    @jax.custom_jvp
    def half(x):
        return x[0] * x[1]

    half.defjvp(lambda primals, tangents: (half(*primals), primals[0][1] * tangents[0][0]))
    whole = jax.hessian(half)(X[:2])
    assert whole[0, 1] != whole[1, 0]
    np.testing.assert_array_equal(found_hessian(half, X[:2]), [[False, True], [True, False]])


def test_a_thousand_parameters_that_are_chained_have_three_nonzeros_a_row():
    pattern = hessian_pattern(trace(rosenbrock, np.zeros(1000)))
    assert pattern.nnz == 2998


# --- inputs and outputs ---------------------------------------------------------------------------


def test_columns_are_the_elements_of_the_first_input_in_order():
    program = trace(lambda x, b: (x[2] * b[0], x[1:]), np.ones(3), np.ones(2))
    expected = np.eye(3, dtype=bool)[[2, 1, 2]]
    np.testing.assert_array_equal(pattern_of(program).toarray(), expected)


def test_an_input_that_is_not_differentiated_hides_no_nonzero():
    """Its values are not constants of the program: any of them may be nonzero at another call."""
    program = trace(lambda x, mask: x * mask, np.ones(3), np.zeros(3))
    np.testing.assert_array_equal(pattern_of(program).toarray(), np.eye(3, dtype=bool))


def test_other_inputs_may_be_integers_and_keys():
    program = trace(
        lambda x, n, key: x[n] * jax.random.normal(key), np.ones(3), 1, jax.random.key(0)
    )
    np.testing.assert_array_equal(pattern_of(program).toarray(), np.ones((1, 3), bool))


@pytest.mark.parametrize(
    ("shape_in", "shape_out"), [((), ()), ((0,), (0,)), ((1,), ()), ((), (3,)), ((0,), (3,))]
)
def test_scalars_and_empty_arrays_have_patterns(shape_in, shape_out):
    program = trace(lambda x: jnp.zeros(shape_out) + jnp.sum(x) ** 2, np.ones(shape_in))
    pattern = pattern_of(program)
    assert pattern.shape == (int(np.prod(shape_out)), int(np.prod(shape_in)))
    assert pattern.toarray().all()


def test_indices_are_sorted_and_unique():
    pattern = pattern_of(trace(lambda x: x[::-1] + jnp.roll(x, 3) + x @ CHAIN, X))
    assert pattern.dtype == bool
    assert pattern.has_canonical_format
    assert pattern.data.all()


def test_a_tracer_that_the_function_closes_over_is_no_constant():
    def outer(mask):
        pattern = pattern_of(trace(lambda x: x * mask, np.ones(3)))
        np.testing.assert_array_equal(pattern.toarray(), np.eye(3, dtype=bool))
        return mask

    jax.jit(outer)(np.zeros(3))


def test_patterns_are_found_while_jit_traces():
    def outer(x):
        expected = np.eye(N, dtype=bool)[np.array([3, 1])]
        np.testing.assert_array_equal(
            found(lambda x: x.at[:2].get() * 0.0 + x[np.array([3, 1])], x), expected
        )
        return x

    jax.jit(outer)(X)


# --- limits ---------------------------------------------------------------------------------------


def test_a_pattern_that_takes_too_much_work_is_none():
    program = trace(lambda x: jnp.cumsum(x) * x[0], X)
    assert pattern_of(program) is not None
    assert pattern_of(program, max_work=50) is None


def test_a_pattern_of_too_many_nonzeros_is_none_before_it_is_made(monkeypatch):
    program = trace(lambda x: jnp.outer(jnp.sin(x), jnp.ones(N)) * jnp.sum(x), X)
    assert pattern_of(program) is not None
    monkeypatch.setattr(search, "MAX_NONZEROS", N * N)
    assert pattern_of(program) is None
    assert hessian_pattern(trace(lambda x: jnp.sum(jnp.outer(x, x)) ** 2, X)) is None


def test_a_reference_that_is_written_to_has_no_pattern():
    def fun(x):
        ref = jax.new_ref(x)
        ref[0] = x[1]
        return ref[...]

    assert pattern_of(trace(jax.jit(fun), X)) is None


@pytest.mark.parametrize(
    "name", ["scan", "scan from the end", "scan of no length", "a loop that counts"]
)
def test_a_long_loop_has_one_pattern_for_all_iterations(name, monkeypatch):
    exact = found(EXACT[name])
    monkeypatch.setattr(search, "MAX_UNROLLED", 0)
    assert not np.any(exact & ~found(EXACT[name]))


def test_a_long_loop_over_blocks_stays_in_blocks(monkeypatch):
    fun = per_row(lambda r: lax.scan(lambda c, y: (jnp.sin(c) * y, c), 0.0, r)[0])
    monkeypatch.setattr(search, "MAX_UNROLLED", 0)
    np.testing.assert_array_equal(found(fun), np.kron(np.eye(3), np.ones(4)).astype(bool))


def test_what_does_not_settle_is_all_to_all(monkeypatch):
    fun = lambda x: lax.while_loop(lambda c: c.sum() > 1, lambda c: c.at[1:].set(c[:-1]), x[:6])
    np.testing.assert_array_equal(found(fun)[:, :6], np.tril(np.ones((6, 6), bool)))
    monkeypatch.setattr(search, "MAX_REPEATS", 2)
    assert found(fun)[:, :6].all()


def test_marked_values_keep_their_patterns():
    np.testing.assert_array_equal(
        found(lambda x: incrax.keep(x**2) + x[0]), np.eye(N, dtype=bool) | (np.arange(N) == 0)
    )


def test_the_cases_reach_the_rules_of_all_that_is_linear():
    """A rule that no case reaches would go untested."""
    reached = set()

    def watched(eqn):
        reached.add(eqn.primitive.name)
        return entry_of(eqn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "entry_of", watched)
        for fun in [*EXACT.values(), *LOOSE.values()]:
            found(fun)
        for fun, _ in HESSIANS.values():
            found_hessian(fun)
    moves = "slice squeeze reshape transpose rev broadcast_in_dim concatenate pad split gather dynamic_slice".split()
    sums = "reduce_sum cumsum dot_general conv_general_dilated fft triangular_solve mul select_n".split()
    updates = ["dynamic_update_slice", "scatter", "scatter-add"]
    assert {*moves, *sums, *updates} <= reached
