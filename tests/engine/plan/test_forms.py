"""Forms: which arrays are polynomials of few numbers, with which factors and degrees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax._program import trace
from incrax.engine.program.dependence import depend, make_layout
from incrax.engine.program.simplify import drop_dead, inline, merge_equal, run_passes
from incrax.engine.rewrites.forms import Forms

N = 1000
X = jnp.linspace(0.1, 2.0, N)
A = jnp.ones((3, N), complex)
M = jnp.ones((N, 3))
C = jnp.array([1.0, 2.0, 3.0])
INDEX = np.arange(N) % 7


def forms_of(fun, *args):
    """The forms while the last argument, the data, stays."""
    program = run_passes(trace(fun, *args), (inline, merge_equal, drop_dead))
    layout = make_layout([var.aval for var in program.invars], 64)
    masks = depend(program, layout)
    data = sum(layout.leaf_mask(i) for i, var in enumerate(program.invars) if var.aval.size >= N)
    return program, Forms(program.eqns, lambda var: bool(masks.of(var) & ~data))


def degrees(fun, *args):
    """For each reduction the degree; None where an output over rows has no form."""
    program, forms = forms_of(fun, *args)
    del program
    return [forms.of[var].degree for var in forms.reductions]


POLYNOMIALS = {
    "sum of scaled rows": (lambda a, b, x: jnp.sum(a * x + b * x**2), (1.0, 2.0, X), [1]),
    "one scale": (lambda a, x: jnp.sum(a * jnp.exp(x)), (1.0, X), [0]),
    "square of a distance": (lambda m, x: jnp.sum((x - m) ** 2), (1.0, X), [2]),
    "pull": (lambda m, s, x: jnp.sum(((x - m) / s) ** 2), (1.0, 2.0, X), [2]),
    "product of factors": (lambda a, b, c, x: jnp.sum(a * b / c * x), (1.0, 2.0, 3.0, X), [0]),
    "matrix and vector": (lambda c, x: jnp.sum((x @ c) ** 2), (C, M), [2]),
    "inner product": (lambda c, x: (x @ c) @ (x @ c - 1.0), (C, M), [2]),
    "intensity": (
        lambda c, a: jnp.sum(jnp.real(c @ a) ** 2 + jnp.imag(c @ a) ** 2),
        (C + 1j, A),
        [2],
    ),
    "conjugate": (lambda c, a: jnp.sum((c @ a) * jnp.conj(c @ a)), (C + 1j, A), [2]),
    "reshape and stack": (
        lambda c, x: jnp.sum(jnp.stack([c[0] * x, c[1] * x**2]).reshape(2, 10, -1), axis=(1, 2)),
        (C, X),
        [1],
    ),
    "choice by data": (
        lambda a, b, x: jnp.sum(jnp.where(x > 1.0, a * x, b)),
        (1.0, 2.0, X),
        [1],
    ),
    "histogram": (lambda a, x: jnp.zeros(7).at[INDEX].add((a + x) * x), (1.0, X), [1]),
    "gather by data": (lambda c, x: jnp.sum(c[INDEX % 3] * x), (C, X), [1]),
    "slices and pads": (lambda a, x: jnp.sum(jnp.pad(a * x[10:], (3, 4))), (1.0, X), [1]),
    "negative power of a scale": (
        lambda s, x: jnp.sum(x * (s * jnp.ones(N)) ** -2),
        (2.0, X),
        [0],
    ),
}


def test_zeros_that_fill_an_array_are_no_terms():
    chosen = lambda a, x: jnp.sum(jnp.where(x > 1.0, a * x, jnp.zeros(N)))
    assert degrees(chosen, 1.0, X) == [0]


@pytest.mark.parametrize("name", sorted(POLYNOMIALS))
def test_polynomials_have_a_low_degree(name):
    fun, args, expected = POLYNOMIALS[name]
    assert degrees(fun, *args) == expected


OTHERS = {
    "terms that share nothing": (
        lambda a, b, m, x: jnp.sum((a * (x - m) + b * x) * (x - m)),
        (1.0,) * 3 + (X,),
    ),
    "function of a parameter and rows": (lambda a, x: jnp.sum(jnp.exp(a * x)), (1.0, X)),
    "third degree": (lambda m, x: jnp.sum((x - m) ** 3), (1.0, X)),
    "division by a polynomial": (lambda m, x: jnp.sum(x / (x - m)), (1.0, X)),
    "maximum": (lambda m, x: jnp.max(x - m), (1.0, X)),
    "choice by parameters": (lambda m, x: jnp.sum(jnp.where(x > m, x, 0.0)), (1.0, X)),
    "absolute value": (lambda m, x: jnp.sum(jnp.abs(x - m)), (1.0, X)),
    "rounding": (lambda m, x: jnp.sum((x - m).astype(int)), (1.0, X)),
    "index by parameters": (lambda k, x: jnp.sum(jnp.roll(x, k)[:500]), (3, X)),
    "loop": (lambda m, x: jax.lax.fori_loop(0, 3, lambda _, t: t + jnp.sum(x - m), 0.0), (1.0, X)),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_what_is_no_polynomial_has_no_form(name):
    fun, args = OTHERS[name]
    assert degrees(fun, *args) == []


def test_a_small_clean_array_times_a_scalar_is_a_factor():
    assert degrees(
        lambda a, m, x: jnp.sum((a * jnp.arange(3.0))[:, None] * (x - m) ** 2, 1), 1.0, 2.0, X
    ) == [2]


def test_reductions_that_need_others_first_are_of_a_higher_level():
    def f(m, x):
        width = jnp.sum((x - m) ** 2)
        return jnp.sum((x - width) ** 2)

    program, forms = forms_of(f, 1.0, X)
    assert [forms.level[var] for var in forms.reductions] == [1, 2]
    del program
