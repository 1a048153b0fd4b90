"""Parts of a function by row: `Sites.parts`. Oracle: the plain function where one row changed, and
second differences, which vanish where rows do not interact.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

RNG = np.random.default_rng(3)
NUM = 12
DATA = jnp.asarray(RNG.normal(size=(NUM, 4)))
IDS = jnp.asarray(RNG.permutation(np.repeat(np.arange(NUM), 3)), jnp.int32)
OTHERS = jnp.asarray(RNG.integers(0, 5, 3 * NUM), jnp.int32)
FLAT = jnp.asarray(RNG.normal(size=3 * NUM))
MATRIX = jnp.asarray(RNG.normal(size=(4, 4)))


def start():
    return {
        "x": jnp.asarray(np.random.default_rng(1).normal(size=NUM)),
        "v": jnp.asarray(np.random.default_rng(2).normal(size=(NUM, 4))),
        "b": jnp.asarray(np.random.default_rng(4).normal(size=5)),
        "s": jnp.asarray(0.7),
    }


INDEPENDENT = {
    "rows": (lambda p: -jnp.sum((DATA - p["x"][:, None]) ** 2) / (2 * p["s"] ** 2) + p["s"], "x"),
    "sums of sums": (lambda p: p["s"] * (jnp.sum(jnp.sin(p["x"])) - 3) - jnp.sum(DATA @ MATRIX), "x"),
    "look-up": (lambda p: -jnp.sum(jnp.log1p((FLAT - p["x"][IDS] - p["b"][OTHERS]) ** 2)), "x"),
    "look-up and prior": (
        lambda p: jnp.mean((FLAT - p["x"][IDS]) ** 2) + jnp.sum(p["x"] ** 2) / 2 - p["b"] @ p["b"], "x"),
    "look-up out of range": (
        lambda p: jnp.sum(p["x"].at[IDS + 9].get(mode="fill", fill_value=0.0) ** 2 * FLAT), "x"),
    "look-up clipped": (lambda p: jnp.sum(p["x"].at[IDS * 2 - 3].get(mode="clip") ** 2 * FLAT), "x"),
    "product": (lambda p: FLAT[:NUM] @ jnp.tanh(p["x"]) + p["x"] @ p["x"], "x"),
    "rows of vectors": (lambda p: -jnp.sum((p["v"] @ MATRIX) * p["v"]) + jnp.sum(p["v"].T @ DATA), "v"),
    "moved": (
        lambda p: jnp.sum(jnp.sin(p["x"])[1:] * FLAT[1:NUM] + p["x"][:-1]) + p["x"][::-1] @ DATA[:, 0], "x"),
    "terms of one row": (lambda p: jnp.sum(jnp.tanh(p["x"][jnp.arange(900) // 450])), "x"),
    "vmap": (lambda p: jnp.sum(jax.vmap(lambda v, y: jnp.max(jnp.exp(v * p["s"] - y)))(p["v"], DATA)), "v"),
    "soft-max within rows": (lambda p: jnp.sum(jax.nn.log_softmax(p["v"], axis=1) * DATA), "v"),
    "several sums": (lambda p: (jnp.sum(jnp.exp(p["x"]) * DATA.T, axis=1) * p["b"][:4]).sum(), "x"),
    "nothing": (lambda p: jnp.sum(p["b"]), "x"),
}  # fmt: skip

INTERACTING = {
    "differences": lambda p: jnp.sum((p["x"][1:] - p["x"][:-1]) ** 2),
    "logarithm of a sum": lambda p: jnp.log(jnp.sum(p["x"] ** 2)),
    "soft-max": lambda p: jnp.sum(jax.nn.softmax(p["x"]) * FLAT[:NUM]),
    "centred": lambda p: jnp.sum((p["x"] - jnp.mean(p["x"])) ** 2),
    "two look-ups": lambda p: jnp.sum(p["x"][IDS] * p["x"][IDS[::-1]]),
    "look-up and rows": lambda p: jnp.sum(p["x"][IDS].reshape(NUM, 3) * p["x"][:, None]),
    "pairs": lambda p: p["x"] @ (jnp.ones((NUM, NUM)) @ p["x"]),
    "largest": lambda p: jnp.max(p["x"]),
    "square of a sum": lambda p: jnp.sum(p["x"]) * jnp.sum(p["x"]),
    "product of sums": lambda p: jnp.sum(jnp.sum(p["x"]) * p["x"]),
    "rounded": lambda p: jnp.floor(jnp.sum(p["x"])),
    "cast": lambda p: jnp.sum(p["x"]).astype(int) * 1.0,
    "sorted": lambda p: jnp.sum(jnp.sort(p["x"]) * FLAT[:NUM]),
    "ordered": lambda p: jnp.where(jnp.all(p["x"][1:] > p["x"][:-1]), 0.0, -jnp.inf),
}


@pytest.mark.parametrize("case", INDEPENDENT)
def test_a_part_is_what_its_row_adds(case):
    fun, name = INDEPENDENT[case]
    at = start()
    path = f"p['{name}']"
    state, sites = incrax.incremental(fun).sites(at, moves=[f"{path}[*]", "p['s']", "p['b'][*]"])
    assert not sites.colours(state, path).any()
    new = at[name] + 0.3
    gains = jax.jit(lambda state, x: sites.parts(state, {path: x}))(state, new) - sites.parts(
        state, {path: at[name]}
    )
    assert gains.shape == (NUM,)
    expected = [fun(at | {name: at[name].at[k].set(new[k])}) - fun(at) for k in range(NUM)]
    np.testing.assert_allclose(gains, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(
        jnp.sum(gains), fun(at | {name: new}) - fun(at), rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize("case", INTERACTING)
def test_rows_that_interact_have_not_one_colour(case):
    fun = INTERACTING[case]
    at = start()
    state, sites = incrax.incremental(fun).sites(at, moves=["p['x'][*]"])
    colours = sites.colours(state, ["p['x']"])
    assert colours is None or colours.any()


def test_rows_of_several_inputs_belong_together():
    fun = lambda p: jnp.sum(p["x"] * jnp.sum(p["v"], 1)) - jnp.sum(p["x"] ** 2)
    at = start()
    paths = ["p['x']", "p['v']"]
    state, sites = incrax.incremental(fun).sites(at, moves=[[f"{path}[*]" for path in paths]])
    parts = sites.parts(state, {"p['x']": at["x"], "p['v']": at["v"]})
    np.testing.assert_allclose(parts, at["x"] * at["v"].sum(1) - at["x"] ** 2, rtol=1e-12)


def test_labels_that_look_up():
    """Indices have rows as well: of `mu[z]`, given mu."""
    mu = jnp.array([-1.0, 0.5, 2.0])
    z = jnp.asarray(RNG.integers(0, 3, NUM))
    fun = lambda z, mu: -jnp.sum((FLAT[:NUM] - mu[z]) ** 2)
    state, sites = incrax.incremental(fun).sites(z, mu, moves=["z[*]", "mu[*]"])
    np.testing.assert_allclose(
        sites.parts(state, {"z": z}), -((FLAT[:NUM] - mu[z]) ** 2), rtol=1e-12
    )
    assert not sites.colours(state, ["mu"]).any()


def test_counts_of_labels_are_sums():
    fun = lambda z, w: (2 * jnp.sum(z == 1) - jnp.sum(z > 1) + 4) * w + jnp.sum(z) * 1.0
    z = jnp.asarray(RNG.integers(0, 3, NUM))
    state, sites = incrax.incremental(fun).sites(z, 2.5, moves=["z[*]"])
    halved = lambda z, w: jnp.sum(z) // 2 * w
    other, rounding = incrax.incremental(halved).sites(z, 2.5, moves=["z[*]"])
    assert rounding.colours(other, ["z"]) is None
    np.testing.assert_allclose(
        sites.parts(state, {"z": z}), (2 * (z == 1) - (z > 1.0)) * 2.5 + z, rtol=1e-12
    )


def test_a_start_keeps_what_it_does_not_reach():
    many = jnp.linspace(0.0, 1.0, 40_000)  # of a few it would rather compute than read
    fun = lambda p: jnp.sum(jnp.sin(p["x"])) + jnp.sum(jnp.exp(p["b"][:, None] * many))
    at = start()
    state, sites = incrax.incremental(fun).sites(at, moves=["p['x'][*]", "p['b'][*]"])
    delta, _ = sites.look(state, {"p['b']": (1, 0.3)})
    state = sites.settle(state, delta)
    traced = jax.make_jaxpr(lambda s, x: sites.start({"p['x']": x}, s))(state, at["x"] + 1)
    names = [eqn.primitive.name for eqn in traced.jaxpr.eqns]
    assert "sin" in names
    assert "exp" not in names
    moved = sites.start({"p['x']": at["x"] + 1}, state)
    expected = fun(at | {"x": at["x"] + 1, "b": at["b"].at[1].set(0.3)})
    np.testing.assert_allclose(sites.look(moved, {})[1], expected, rtol=1e-12)
    # Of what stays, differences still count; of the result, which is made anew, none.
    assert 0 < int(moved.num_differences.sum()) < int(state.num_differences.sum())
    again = sites.start({"p['b']": at["b"]}, state)
    assert int(again.num_differences.sum()) == 0


def test_terms_of_integers_that_wrap_are_not_widened_one_by_one():
    """5 - 2 is 5 + 254 modulo 256, and no longer as a number of 64 bits."""
    fun = lambda x: jnp.sum(x - jnp.roll(x, 1)) * 1.0
    x = jnp.asarray(np.random.default_rng(1).integers(0, 100, NUM), jnp.uint8)
    state, sites = incrax.incremental(fun).sites(x, moves=["x[*]"])
    is_first = sites.colours(state, ["x"]) == 0
    new = jnp.where(is_first, x + 71, x)
    gains = sites.parts(state, {"x": new}) - sites.parts(state, {"x": x})
    assert np.sum(gains[is_first]) == fun(new) - fun(x) != 0
    wrapping = lambda x: jnp.sum(x, dtype=x.dtype) * 1.0
    state, sites = incrax.incremental(wrapping).sites(x, moves=["x[*]"])
    assert sites.colours(state, ["x"]) is None
