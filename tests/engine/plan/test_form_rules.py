"""Each rule of forms: a reduction from statistics equals the program elsewhere; what is no
polynomial is refused.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.plan.polynomials import algebra, analysed
from helpers import same
from jax import lax

from incrax.primitives.table import TABLE

N = 1200
RNG = np.random.default_rng(3)
X = RNG.normal(size=N)
Z = X + 1j * RNG.normal(size=N)
WHERE = X > 0.0
INDEX = RNG.integers(0, 40, N)
FAR = np.arange(N) + 5
FIRST_ROWS = lax.GatherDimensionNumbers(
    offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,)
)
POINTS = [(1.0, 2.0), (1.5, -0.7), (-3.0, 0.4), (0.3, 0.0), (0.0, 8.0)]


def primitives(case):
    return {step.eqn.primitive.name for step in case.forms.cone(case.forms.reductions).steps}


def gathered(x, index, **options):
    options = {"dimension_numbers": FIRST_ROWS, "slice_sizes": (1,), **options}
    return lax.gather(x, jnp.asarray(index)[:, None], **options)


def used_twice(x, y):
    return jnp.sum(x * (x - y))


def updated(a, b, x):
    return lax.dynamic_update_slice(a * x, (b * x)[:100], (jnp.argmax(x),))


ACCEPTED = {
    "neg": (lambda a, b, x: jnp.sum(-(a * x - b)), X),
    "convert_element_type": (lambda a, b, x: jnp.sum((a * x + b).astype(complex) * Z), X),
    "reshape": (lambda a, b, x: jnp.sum((a * x + b).reshape(3, -1), axis=1), X),
    "squeeze": (lambda a, b, x: jnp.sum(lax.squeeze(a * x + b, (0,)) ** 2), X[None]),
    "transpose": (lambda a, b, x: jnp.sum((a * x + b).T * x.T), X.reshape(3, -1)),
    "broadcast_in_dim": (
        lambda a, b, x: jnp.sum(lax.broadcast_in_dim(a * x + b, (2, N), (1,)) ** 2),
        X,
    ),
    "slice": (lambda a, b, x: jnp.sum((a * x + b)[7:-9:3] ** 2), X),
    "rev": (lambda a, b, x: jnp.sum((a * x + b)[::-1] * x), X),
    "reduce_sum": (lambda a, b, x: jnp.sum(a * x + b * x**2), X),
    "cumsum": (lambda a, b, x: jnp.sum(jnp.cumsum(a * x + b) * x), X),
    "copy": (lambda a, b, x: jnp.sum(lax.copy_p.bind(a * x + b) ** 2), X),
    "real": (lambda a, b, x: jnp.sum(jnp.real((a + 1j * b) * x) ** 2), Z),
    "imag": (lambda a, b, x: jnp.sum(jnp.imag((a + 1j * b) * x) ** 2), Z),
    "conj": (lambda a, b, x: jnp.sum((a * x + b) * jnp.conj(x * (a + 1j * b))), Z),
    "dynamic_slice": (
        lambda a, b, x: jnp.sum(lax.dynamic_slice(a * x + b, (jnp.argmax(x),), (900,)) ** 2),
        X,
    ),
    "gather": (
        lambda a, b, x: jnp.sum(gathered(a * x + b, FAR, mode="fill", fill_value=0.0) ** 2),
        X,
    ),
    "split": (lambda a, b, x: jnp.sum(lax.split(a * x + b, (300, 900))[1] ** 2), X),
    "unstack": (lambda a, b, x: jnp.sum(jnp.unstack((a * x + b).reshape(2, -1))[1] ** 2), X),
    "add": (lambda a, b, x: jnp.sum((a * x + b) * (a + b * x)), X),
    "sub": (lambda a, b, x: jnp.sum((2.0 - a * x) * (x - b)), X),
    "add_any": (lambda a, b, x: jax.grad(lambda t: used_twice(t * x, b * x))(a), X),
    "concatenate": (lambda a, b, x: jnp.sum(jnp.concatenate([a * x, b + x, x]) ** 2), X),
    "complex": (lambda a, b, x: jnp.sum(lax.complex(a * x, x - b) ** 2), X),
    "stack": (lambda a, b, x: jnp.sum(jnp.stack([a * x, b + x]) ** 2, axis=1), X),
    "pad": (lambda a, b, x: jnp.sum(lax.pad(a * x[2:] - b, 2.5, [(4, -3, 1)])), X),
    "select_n": (
        lambda a, b, x: jnp.sum(jnp.where(WHERE, a * x, jnp.where(x < -1.0, 3.0, b)) ** 2),
        X,
    ),
    "scatter-add": (lambda a, b, x: jnp.zeros(40).at[INDEX].add(a * x - b), X),
    "dynamic_update_slice": (lambda a, b, x: jnp.sum(updated(a, b, x) * x), X),
    "mul": (lambda a, b, x: jnp.sum((a * x) * (b - x)), X),
    "dot_general": (lambda a, b, x: (a * x - b) @ (x - b), X),
    "div": (lambda a, b, x: jnp.sum((a - x) / (2.0 + jnp.cos(x)) / (1.0 + b**2)), X),
    "integer_pow": (lambda a, b, x: jnp.sum((a * x) ** 3) + jnp.sum((x - b) ** 2), X),
}
FILLS = {
    "padding by a parameter": (lambda a, b, x: jnp.sum(lax.pad(a * x, b, [(4, 5, 0)]) ** 2), X),
    "padding by a constant": (lambda a, b, x: jnp.sum(lax.pad(a * b * x, 7.0, [(4, 5, 0)])), X),
    "no fill": (lambda a, b, x: jnp.sum((a * x + b)[INDEX]), X),
    "no fill, by clipping": (lambda a, b, x: jnp.sum(jnp.take(a * x + b, FAR, mode="clip")), X),
    "rows that are dropped": (
        lambda a, b, x: jnp.zeros(20).at[INDEX].add(a * x - b, mode="drop"),
        X,
    ),
    "a sum onto a constant": (lambda a, b, x: jnp.full(40, 3.0).at[INDEX].add(a * b * x), X),
    "an update of constants": (
        lambda a, b, x: jnp.sum(
            lax.dynamic_update_slice(jnp.full(N, 2.0), a * b * x[:900], (jnp.argmax(x),))
        ),
        X,
    ),
    "power zero": (lambda a, b, x: jnp.sum(lax.integer_pow(a * x, 0) * b), X),
}


def agrees(fun, x, **options):
    """The case, if its results are those of plain JAX wherever the guard is true."""
    case, plain = analysed(fun, x), jax.jit(fun)
    assert case.statistics is not None
    saved_at, results = algebra(case, x)
    saved, num_used = saved_at(POINTS[0]), 0
    for point in POINTS:
        actual, guard = results(point, saved)
        num_used += bool(guard)
        if guard:
            same(actual, [plain(*point, x)], factor=4096.0, **options)
    assert num_used > len(POINTS) // 2
    return case


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_a_primitive_of_polynomials_is_one(name):
    # At a = 0 the form is a b S1 - a S2, a sum of zeros whose signs are not those that plain JAX
    # adds up.
    case = agrees(*ACCEPTED[name], is_zero_signed=name != "mul")
    assert name in primitives(case)


@pytest.mark.parametrize("name", sorted(FILLS))
def test_what_is_filled_in_is_no_multiple_of_a_parameter(name):
    agrees(*FILLS[name])


def test_a_reduction_that_scales_the_rows_of_another_stands_in_front():
    def scaled(a, b, x):
        first = jnp.sum(a * x)
        return jnp.sum(first * x**2 * b)

    agrees(scaled, X)


def test_every_rule_is_in_the_table():
    former_names = {"copy_p", "expand_dims", "scatter_add"}
    as_products = {"square"}
    formed = {name for name, entry in TABLE.items() if entry.algebra is not None}
    assert formed - former_names - as_products == set(ACCEPTED)


REFUSED = {
    "gather that fills": (
        lambda a, b, x: jnp.sum(gathered(a * x + b, FAR, mode="fill", fill_value=5.0)),
        X,
    ),
    "gather by a parameter": (
        lambda a, b, x: jnp.sum(gathered(a * x, jnp.full(N, b).astype(int), mode="clip")),
        X,
    ),
    "slice at a parameter": (
        lambda a, b, x: jnp.sum(lax.dynamic_slice(a * x, (b.astype(int),), (900,))),
        X,
    ),
    "update at a parameter": (
        lambda a, b, x: jnp.sum(lax.dynamic_update_slice(a * x, x[:9], (b.astype(int),))),
        X,
    ),
    "scatter": (lambda a, b, x: jnp.sum(jnp.full(N, b).at[INDEX].set(a * x)), X),
    "products by scatter": (lambda a, b, x: jnp.ones(40).at[INDEX].multiply(a * x + b), X),
    "maxima by scatter": (lambda a, b, x: jnp.zeros(40).at[INDEX].max(a * x + b), X),
    "scatter at a parameter": (
        lambda a, b, x: jnp.zeros(40).at[(INDEX + b).astype(int)].add(a * x),
        X,
    ),
    "choice by a parameter": (lambda a, b, x: jnp.sum(jnp.where(b > 1.0, a * x, x)), X),
    "integers": (lambda a, b, x: jnp.sum((a * x + b).astype(int)), X),
    "integers and back": (lambda a, b, x: jnp.sum((a * x + b).astype(int).astype(float)), X),
    "fewer digits": (lambda a, b, x: jnp.sum((a * x + b).astype(np.float32)), X),
    "fewer digits and back": (
        lambda a, b, x: jnp.sum((a * x + b).astype(np.float32).astype(float) * x),
        X,
    ),
    "fewer digits of complex numbers": (
        lambda a, b, x: jnp.sum((a * x + b).astype(np.complex64).real),
        Z,
    ),
    "fewer digits in a product": (
        lambda a, b, x: jnp.dot(a * x + b, x, preferred_element_type=np.float32),
        X,
    ),
    "rounded": (lambda a, b, x: jnp.sum(lax.reduce_precision(a * x, 8, 10) + b), X),
    "half precision": (lambda a, b, x: (a * x).astype(np.float16) @ x.astype(np.float16) + b, X),
    "absolute value of a complex number": (lambda a, b, x: jnp.sum(jnp.abs((a + 1j * b) * x)), Z),
    "product of all": (lambda a, b, x: jnp.prod(a * x + b), X),
    "products so far": (lambda a, b, x: jnp.sum(jnp.cumprod(a * x + b)), X),
    "maxima so far": (lambda a, b, x: jnp.sum(lax.cummax(a * x + b)), X),
    "reduction by another function": (lambda a, b, x: lax.reduce(a * x, b, jnp.maximum, (0,)), X),
    "third degree of a sum": (lambda a, b, x: jnp.sum((x - b) ** 2 * (a + x)), X),
    "division by a polynomial": (lambda a, b, x: jnp.sum(a * x / (x - b)), X),
    "division by two terms": (lambda a, b, x: jnp.sum(x / (a * x + b * a * x**2)), X),
    "negative power of a polynomial": (lambda a, b, x: jnp.sum(lax.integer_pow(x - b, -1) * a), X),
    "higher power of a sum": (lambda a, b, x: jnp.sum((a * x + b) ** 4), X),
    "quotient of integers": (lambda a, b, x: jnp.sum((a * x).astype(int) // 3) + b, X),
    "sort": (lambda a, b, x: jnp.sum(jnp.sort(a * x + b)[:700]), X),
    "clamp": (lambda a, b, x: jnp.sum(jnp.clip(a * x, -1.0, b)), X),
    "sign": (lambda a, b, x: jnp.sum(jnp.sign(a * x + b)), X),
    "function": (lambda a, b, x: jnp.sum(jnp.sin(a * x + b)), X),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_polynomial_is_left_to_the_rows(name):
    case = analysed(*REFUSED[name])
    assert case.statistics is None


def test_half_precision_is_left_to_the_rows():
    """As its terms may hardly be larger than the sum."""
    half = lambda a, b, x: lax.dot_general(a * x, x, (((0,), (0,)), ((), ()))) + b
    assert (
        analysed(half, X.astype(np.float16), (np.float16(1.0), np.float16(2.0))).statistics is None
    )


def test_small_integers_that_change_are_no_numbers_of_a_polynomial():
    product = (((0,), (0,)), ((), ()))
    mixed = lambda a, b, x: lax.dot_general(a, x, product, preferred_element_type=float).sum() * b
    assert analysed(mixed, np.tile(X, 4).reshape(4, -1), (np.arange(4), 2.0)).statistics is None
