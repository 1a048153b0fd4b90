"""Colours of rows that meet neighbours: `Sites.colours`, and parts of rows of one colour. Oracle: the
plain function where rows of one colour changed, and its second differences.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check_text

import incrax
from incrax.engine.call.row_parts import colours_of
from incrax.primitives.on_rows import NotByRowsError

SIDE = 4
NUM = SIDE * SIDE
SQUARE = np.arange(NUM).reshape(SIDE, SIDE)
RIGHT = jnp.asarray(np.roll(SQUARE, -1, 1).ravel())
BELOW = jnp.asarray(np.roll(SQUARE, -1, 0).ravel())
FIELD = jnp.asarray(np.random.default_rng(0).normal(size=NUM))
IDS = jnp.asarray(np.random.default_rng(1).integers(0, NUM, 20))

# The function of x, and how many colours it takes.
CASES = {
    "chessboard": (lambda x, w: w * jnp.sum(x * (x[RIGHT] + x[BELOW])) + FIELD @ (x * 1.0), None),
    "square": (lambda x, w: w * jnp.sum(x * (x[RIGHT] + x[BELOW])), 2),
    "line": (lambda x, w: -jnp.sum((x[1:] - x[:-1]) ** 2) * w - jnp.sum(jnp.cosh(x)), 2),
    "ring": (lambda x, w: jnp.sum(x * jnp.roll(x, 1)) * w, 2),
    "far": (lambda x, w: jnp.sum(jnp.log1p((x[3:] - x[:-3] + x[1:-2]) ** 2)) * w, 4),
    "nothing": (lambda x, w: w * 2.0, 1),
    "alone": (lambda x, w: jnp.sum(jnp.sin(x)) * w, 1),
    "padded": (lambda x, w: jnp.sum(jnp.tanh(x * jnp.pad(x, (1, 0), constant_values=2.0)[:-1])) - w, 2),
    "reversed": (lambda x, w: jnp.sum(x * x[::-1]) * w, 2),
    "look-ups": (lambda x, w: jnp.sum(jnp.log1p((x[IDS] - x[IDS[::-1]]) ** 2)) + w, None),
    "look-up of a sum, out of range": (
        lambda x, w: jnp.sum((x + x[RIGHT]).at[IDS + 3].get(mode="fill", fill_value=7.0) * x[IDS]) * w, None),
    "the same row twice": (lambda x, w: jnp.sum(x[IDS] * x[IDS] * w), 1),
    "difference, squared and scaled": (
        lambda x, w: jnp.sum(((x[1:] - 2 * x[:-1] + 3) / w) ** 2 * FIELD[1:]), 2),
}  # fmt: skip

UNKNOWN = {
    "square of a sum": lambda x, w: jnp.sum(x) ** 2 * w,
    "largest": lambda x, w: jnp.max(x) * w,
    "centred": lambda x, w: jnp.sum((x - jnp.mean(x)) ** 2) * w,
    "of another row, as data says": lambda x, w: jnp.sum(x[(FIELD * w).astype(int)] * x),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_of_one_colour_have_parts(case):
    fun, num_colours = CASES[case]
    rng = np.random.default_rng(2)
    x, w = jnp.asarray(rng.normal(size=NUM)), jnp.asarray(0.7)
    state, sites = incrax.incremental(fun).sites(x, w, moves=["x[*]", "w"])
    colours = sites.colours(state, ["x"])
    if num_colours is not None:
        assert set(colours.tolist()) == set(range(num_colours))
    parts = jax.jit(lambda state, x: sites.parts(state, {"x": x}))
    old = parts(state, x)
    for colour in range(colours.max() + 1):
        own = colours == colour
        new = jnp.where(own, rng.normal(size=NUM), x)
        gains = np.asarray(parts(state, new) - old)
        expected = [fun(x.at[k].set(new[k]), w) - fun(x, w) for k in np.flatnonzero(own)]
        np.testing.assert_allclose(gains[own], expected, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(gains[own].sum(), fun(new, w) - fun(x, w), atol=1e-9)
    hessian = np.asarray(jax.hessian(fun)(x, w))
    met = np.abs(hessian - np.diag(np.diag(hessian))) > 1e-12
    assert not np.any(met & (colours[:, None] == colours))


@pytest.mark.parametrize("case", UNKNOWN)
def test_where_nothing_is_known_there_are_none(case):
    x, w = jnp.ones(NUM), jnp.asarray(0.7)
    state, sites = incrax.incremental(UNKNOWN[case]).sites(x, w, moves=["x[*]", "w"])
    assert sites.colours(state, ["x"]) is None
    text = (
        "`parts` cannot say what each row of `x` adds to the function: its rows meet in something else "
        "than sums of terms that each read few of them, such as a product, a sort or a maximum. Nothing "
        "was evaluated. Ask `look` for what a change of some rows makes."
    )
    check_text(NotByRowsError, text, sites.parts, state, {"x": x})


def test_what_has_no_rows_has_no_colours():
    fun = lambda x, w: jnp.sum(x * w)
    state, sites = incrax.incremental(fun).sites(jnp.ones(NUM), jnp.ones(()), moves=["x[*]", "w"])
    assert sites.colours(state, ["w"]) is None
    assert sites.colours(state, []) is None


def test_integers_of_several_axes_and_inputs():
    """Spins with three components, beside weights of rows: of each row both change."""
    bonds = lambda s, v: jnp.sum(s * s[RIGHT]) + 0.5 * jnp.sum(jnp.exp(v) * v[RIGHT] * s[:, 0])
    rng = np.random.default_rng(4)
    s, v = jnp.asarray(rng.integers(-1, 2, (NUM, 3))), jnp.asarray(rng.normal(size=NUM))
    state, sites = incrax.incremental(bonds).sites(s, v, moves=[("s[*]", "v[*]")])
    colours = sites.colours(state, ["s", "v"])
    assert colours.max() == 1
    own = colours == 1
    new_s, new_v = jnp.where(own[:, None], -s, s), jnp.where(own, v + 1, v)
    parts = lambda s, v: sites.parts(state, {"s": s, "v": v})
    gains = (parts(new_s, new_v) - parts(s, v))[own]
    expected = [
        bonds(s.at[k].set(new_s[k]), v.at[k].set(new_v[k])) - bonds(s, v)
        for k in np.flatnonzero(own)
    ]
    np.testing.assert_allclose(gains, expected, rtol=1e-9, atol=1e-10)


ROUNDED = {
    "quotient": lambda s: jnp.sum(jax.lax.div(s + s[RIGHT], 2)),
    "truth of a sum": lambda s: jnp.sum(s).astype(bool).astype(int),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_rows_that_are_rounded_together_have_not_one_colour(case):
    """Of integers: (a + b) // 2 is not a // 2 + b // 2, though a quotient is linear."""
    s = jnp.asarray(np.random.default_rng(4).integers(-1, 2, NUM))
    state, sites = incrax.incremental(ROUNDED[case]).sites(s, moves=["s[*]"])
    colours = sites.colours(state, ["s"])
    assert colours is None or np.all(colours != colours[RIGHT])


def test_too_many_colours():
    state, sites = incrax.incremental(lambda x: jnp.sum(x * x[IDS[:NUM] * 0])).sites(
        jnp.ones(NUM), moves=["x[*]"]
    )
    assert sites.colours(state, ["x"]).max() == 1  # one row that all others meet
    all_pairs = np.array([(a, b) for a in range(20) for b in range(a)], np.int32)
    assert colours_of([all_pairs], 20) is None
    np.testing.assert_array_equal(colours_of([all_pairs[:0]], 3), [0, 0, 0])
