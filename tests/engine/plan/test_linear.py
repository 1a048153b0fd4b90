"""Which scalars are linear in given sums, checked against the Jacobian with respect to the sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax import _jax
from incrax.engine.rewrites.sums_of_products import MAX_TERMS, linear_sums, whole

COEFFICIENTS = (2.0, -3.0, 0.5)


def program_of(fun):
    """Equations of fun(R1, R2, c0, c1, c2), where copies of R1 and R2 stand for the sums."""
    body = _jax.trace_body(
        lambda r, q, *c: fun(jnp.sin(r), jnp.sin(q), *c),
        *[jax.ShapeDtypeStruct((), np.float64)] * 5,
    )
    sources = [eqn.outvars[0] for eqn in body.eqns if eqn.primitive.name == "sin"]
    return body, {source: whole(source) for source in sources}


def value_of(products, names):
    total = 0.0
    for product in products:
        value = product.number
        for atom, inverse in product.factors:
            value = value / names[atom] if inverse else value * names[atom]
        total += value
    return float(total)


CASES = {
    "one": lambda r, q, a, b, c: r * a,
    "difference": lambda r, q, a, b, c: a * r - q / b,
    "nested": lambda r, q, a, b, c: -((a * r + q) * b - (r - c) / c),
    "constant": lambda r, q, a, b, c: c * b - r,
    "both sides": lambda r, q, a, b, c: (r + q) + (r - q) * a,
    "after something else": lambda r, q, a, b, c: jnp.exp(a) * r + q * (b + c),
}


@pytest.mark.parametrize("name", CASES)
def test_terms_add_up_to_the_value(name):
    body, sources = program_of(CASES[name])
    sinks = linear_sums(body.eqns, sources, body.outvars)
    assert list(sinks) == list(body.outvars)
    names = dict(zip(body.invars, (0.3, 0.8, *COEFFICIENTS), strict=True))
    _jax.evaluate(body.eqns, names)
    for sink, terms in sinks.items():
        assert value_of(terms, names) == pytest.approx(float(names[sink]), rel=1e-14)


def test_what_a_nonlinear_equation_reads_ends_a_sum():
    body, sources = program_of(lambda r, q, a, b, c: jnp.exp(a * r + q) * b + c * r)
    sinks = linear_sums(body.eqns, sources, body.outvars)
    readers = {
        eqn.primitive.name: eqn.invars[0] for eqn in body.eqns if eqn.primitive.name == "exp"
    }
    assert set(sinks) == {readers["exp"], body.outvars[0]}
    linear = [{var for var, _ in product.factors} for product in sinks[body.outvars[0]]]
    assert sorted(len(read & set(sources)) for read in linear) == [0, 1]


@pytest.mark.parametrize(
    "fun", [lambda r, q, *c: r * q, lambda r, q, *c: c[0] / r, lambda r, q, *c: jnp.sin(r) + q * q]
)
def test_products_and_quotients_of_sums_are_not_linear(fun):
    body, sources = program_of(fun)
    names = dict(zip(body.invars, (0.3, 0.8, *COEFFICIENTS), strict=True))
    _jax.evaluate(body.eqns, names)
    for sink, terms in linear_sums(body.eqns, sources, body.outvars).items():
        assert value_of(terms, names) == pytest.approx(float(names[sink]), rel=1e-14)
        for product in terms:
            read = [inverse for var, inverse in product.factors if var in sources]
            assert read in ([], [False])


def test_long_sums_are_cut():
    def long(r, q, a, b, c):
        total = r
        for _ in range(2 * MAX_TERMS):
            total = total * a + q
        return total

    body, sources = program_of(long)
    sinks = linear_sums(body.eqns, sources, body.outvars)
    assert max(map(len, sinks.values())) <= MAX_TERMS


def test_another_type_ends_a_sum():
    body, sources = program_of(lambda r, q, a, b, c: (r * a).astype(np.float32) * jnp.float32(2))
    assert all(
        sink.aval.dtype == np.float64 for sink in linear_sums(body.eqns, sources, body.outvars)
    )
