"""`f.sites`: proposals of rows inside compiled loops. Oracle: the plain function at the inputs that
the state has.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import incrax
from incrax.engine.call import sites as module
from incrax.engine.rewrites.partial_sums import live
from incrax.errors import NotCalledError, StepTypeError, UnknownInputError

LENGTH = 40
RNG = np.random.default_rng(5)
DATA = jnp.asarray(RNG.normal(size=(LENGTH, 6)))
IDS = jnp.asarray(RNG.permutation(np.repeat(np.arange(LENGTH), 5)), jnp.int32)
OTHERS = jnp.asarray(RNG.integers(0, 12, 200), jnp.int32)
FLAT = jnp.asarray(RNG.normal(size=200))


def groups(p):
    residuals = DATA - p["theta"][:, None] * p["scale"]
    return -jnp.sum(jnp.log1p(residuals**2)) - jnp.sum(p["theta"] ** 2) - p["scale"] ** 2


def crossed(p):
    mean = p["theta"][IDS] + p["other"][OTHERS]
    return -jnp.sum(jnp.log1p((FLAT - mean) ** 2)) - jnp.sum(p["theta"] ** 2) * p["scale"]


def largest(p):
    return jnp.max(jnp.sum((DATA - p["theta"][:, None] * p["scale"]) ** 2, 1)) * p["scale"]


def products(p):
    return jnp.sum((DATA.T @ jnp.tanh(p["theta"])) ** 2) + p["scale"]


def centred(p):
    return jnp.sum(DATA * jax.nn.softmax(p["theta"])[:, None]) * p["scale"]


def by_group(p):
    return {"rows": jnp.exp(p["theta"]) * p["scale"], "sum": groups(p), "n": 3.0}


def gradient(p):
    return jax.value_and_grad(groups)(p)


def crossed_gradient(p):
    return jax.value_and_grad(crossed)(p)


FUNCTIONS = [groups, crossed, largest, products, centred, by_group, gradient, crossed_gradient]


def start():
    rng = np.random.default_rng(1)
    return {
        "theta": jnp.asarray(rng.normal(size=LENGTH)),
        "other": jnp.asarray(rng.normal(size=12)),
        "scale": jnp.asarray(1.3),
    }


MOVES = ["p['theta'][*]", "p['scale']", "p['other'][*]"]


def as_tree(sites, state):
    return {path[3:-2]: x for path, x in sites.inputs(state).items()}


def near(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected
    )


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda fun: fun.__name__)
def test_a_look_is_the_function_and_a_settled_state_belongs_to_its_inputs(fun):
    state, sites = incrax.incremental(fun).sites(start(), moves=MOVES)
    look = jax.jit(lambda sites, state, changes: sites.look(state, changes))
    settle = jax.jit(lambda sites, state, delta, accept: sites.settle(state, delta, accept))
    rng = np.random.default_rng(3)
    at = start()
    for turn in range(18):
        i = int(rng.integers(12))
        numbers = jnp.asarray(rng.choice(12, 3, replace=False))
        name, change = [
            ("theta", (i, rng.normal())),
            ("scale", rng.uniform(1, 2)),
            ("other", (i, rng.normal())),
            ("theta", (numbers, jnp.asarray(rng.normal(size=3)))),
        ][turn % 4]
        is_rows = isinstance(change, tuple)
        new = at | {name: at[name].at[change[0]].set(change[1]) if is_rows else jnp.asarray(change)}
        delta, out = look(sites, state, {f"p['{name}']": change})
        near(out, fun(new))
        accept = bool(rng.uniform() < 0.6)
        at = new if accept else at
        state = settle(sites, state, delta, accept)
        near(as_tree(sites, state), at)
    near(sites.look(state, {"p['scale']": at["scale"]})[1], fun(at))


def test_several_inputs_change_together():
    state, sites = incrax.incremental(crossed).sites(start(), moves=[tuple(MOVES)])
    changes = {"p['theta']": (3, 0.5), "p['other']": (2, -1.0), "p['scale']": 2.0}
    at = start()
    at = {"theta": at["theta"].at[3].set(0.5), "other": at["other"].at[2].set(-1.0), "scale": 2.0}
    delta, out = sites.look(state, changes)
    near(out, crossed(at))
    near(as_tree(sites, sites.settle(state, delta)), at)


def chain(fun, num, accept):
    """A loop in which each step proposes one row; the state, and the last result."""
    state, sites = incrax.incremental(fun).sites(start(), moves=MOVES)

    @jax.jit
    def run(sites, state, rows):
        def step(state, x):
            i, row, accept = x
            delta, out = sites.look(state, {"p['theta']": (i, row)})
            return sites.settle(state, delta, accept), out

        return lax.scan(step, state, rows)

    rng = np.random.default_rng(0)
    rows = (rng.integers(0, LENGTH, num), rng.normal(size=num), rng.uniform(size=num) < accept)
    state, outs = run(sites, state, rows)
    return sites, state, rows, outs


@pytest.mark.parametrize("fun", [groups, crossed])
def test_thousands_of_steps_stay_as_near_as_a_sum_made_anew(fun):
    sites, state, (numbers, rows, accepted), outs = chain(fun, 1500, 0.7)
    at = np.array(start()["theta"])
    for k in range(len(numbers)):
        before, at[numbers[k]] = at[numbers[k]], rows[k]
        if k % 100 == 99:
            near(outs[k], fun(start() | {"theta": jnp.asarray(at)}))
        if not accepted[k]:
            at[numbers[k]] = before
    near(as_tree(sites, state)["theta"], at)
    assert 0 < int(state.num_differences.max()) <= module.MIN_DIFFERENCES


def test_a_difference_that_would_lose_digits_is_not_taken():
    def fun(p):
        return jnp.sum(p["theta"] ** 2)

    at = start()
    at["theta"] = at["theta"].at[4].set(1e9)
    state, sites = incrax.incremental(fun).sites(at, moves=["p['theta'][*]"])
    delta, out = sites.look(state, {"p['theta']": (4, 0.0)})
    np.testing.assert_allclose(out, fun(at | {"theta": at["theta"].at[4].set(0.0)}), rtol=1e-14)
    assert int(sites.settle(state, delta).num_differences.max()) == 0


def test_each_sum_is_summed_anew_whatever_the_others_do(monkeypatch):
    """Two sums move in turns, so that every count is reached by the same one of them."""

    def fun(p):
        return jnp.sum(jnp.sin(p["theta"])) * jnp.sum(jnp.cos(p["other"]))

    limit = LENGTH + 1
    monkeypatch.setattr(module, "MIN_DIFFERENCES", limit)
    at = start()
    state, sites = incrax.incremental(fun).sites(at, moves=MOVES[::2])
    num_inputs = len(sites.inputs(state))
    wrong = [x + 1.0 for x in state.values[num_inputs:]]
    state = state._replace(values=(*state.values[:num_inputs], *wrong))
    for turn in range(4 * limit):
        path = MOVES[0][:-3] if turn % 2 else MOVES[2][:-3]
        row = sites.inputs(state)[path][turn % 12]
        delta, out = sites.look(state, {path: (turn % 12, row)})
        state = sites.settle(state, delta)
    near(out, fun(at))


def test_tables_of_look_ups_are_data_of_the_sites():
    """An argument of the compiled loop like other data, and no constant in it."""
    state, sites = incrax.incremental(crossed).sites(start(), moves=["p['theta'][*]"])
    look = lambda sites, state: sites.look(state, {"p['theta']": (1, 0.5)})[1]
    consts = jax.make_jaxpr(look)(sites, state).consts
    assert not any(np.size(x) > 1 and np.asarray(x).dtype == np.int32 for x in consts)


def test_what_is_not_finite_is_left_again():
    at = start()
    at["theta"] = at["theta"].at[4].set(jnp.inf)
    state, sites = incrax.incremental(groups).sites(at, moves=["p['theta'][*]"])
    _, out = sites.look(state, {"p['theta']": (4, 0.1)})
    near(out, groups(at | {"theta": at["theta"].at[4].set(0.1)}))


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["alone", "candidates", "chains of candidates"])
def test_a_step_makes_nothing_as_long_as_the_axis(depth):
    """Of one row, no value of all rows is made; that is left to the branch that sums anew."""
    state, sites = incrax.incremental(groups).sites(start(), moves=["p['theta'][*]"])
    look = lambda state, i, x: sites.look(state, {"p['theta']": (i, x)})[1]
    for _ in range(depth):
        look = jax.vmap(look, (None, None, 0))
    traced = jax.make_jaxpr(look)(state, 3, jnp.full((4,) * depth, 0.5)).jaxpr
    outside = live(traced.eqns, set(traced.outvars))
    shapes = [var.aval.shape for eqn in outside for var in eqn.outvars]
    assert not any(LENGTH in shape for shape in shapes)
    assert any(eqn.primitive.name == "cond" for eqn in outside)


def test_chains_under_vmap():
    state, sites = incrax.incremental(crossed).sites(start(), moves=["p['theta'][*]"])
    values = jnp.array([0.3, -2.0, 1.1])
    look = lambda v: sites.look(state, {"p['theta']": (7, v)})[1]
    expected = [crossed(start() | {"theta": start()["theta"].at[7].set(v)}) for v in values]
    near(jax.vmap(look)(values), jnp.array(expected))
    near(jax.jit(jax.vmap(jax.vmap(look)))(values[None]), jnp.array([expected]))
    slope = jax.grad(lambda v: crossed(start() | {"theta": start()["theta"].at[7].set(v)}))
    near(jax.vmap(jax.grad(look))(values), jax.vmap(slope)(values))


def test_under_vmap_all_are_summed_anew_where_one_needs_it():
    state, sites = incrax.incremental(groups).sites(start(), moves=["p['theta'][*]"])
    values = jnp.array([0.3, 1e9, 1.1])  # the second takes more digits than its difference has
    deltas, found = jax.vmap(lambda v: sites.look(state, {"p['theta']": (7, v)}))(values)
    expected = [groups(start() | {"theta": start()["theta"].at[7].set(v)}) for v in values]
    near(found, jnp.array(expected))
    far = sites.settle(state, jax.tree.map(lambda x: x[1], deltas))
    deltas, found = jax.vmap(lambda v: sites.look(far, {"p['theta']": (7, v)}))(values)
    near(found, jnp.array(expected))
    assert int(deltas.num_differences.sum()) == 0


def test_a_state_at_other_values():
    state, sites = incrax.incremental(crossed).sites(start(), moves=["p['theta'][*]"])
    other = jnp.linspace(0.0, 1.0, LENGTH)
    state = sites.start({"p['theta']": other}, state)
    near(sites.look(state, {"p['theta']": (0, 0.0)})[1], crossed(start() | {"theta": other}))


def test_bad_input():
    f = incrax.incremental(groups)
    with pytest.raises(UnknownInputError):
        f.sites(start(), moves=["theta"])
    with pytest.raises(StepTypeError, match=r"`moves` names rows of `p\['scale'\]`, an input of"):
        f.sites(start(), moves=["p['scale'][*]"])
    state, sites = f.sites(start(), moves=["p['theta'][*]"])
    with pytest.raises(UnknownInputError):
        sites.look(state, {"p['scale']": 1.0})
    with pytest.raises(StepTypeError, match=r"`look` got `p\['theta'\]` as rows of shape \(2,\)"):
        sites.look(state, {"p['theta']": (1, jnp.zeros(2))})
    with pytest.raises(StepTypeError, match=r"values of dtype int64; expected float64"):
        sites.look(state, {"p['theta']": (1, jnp.zeros((), int))})
    with pytest.raises(StepTypeError, match=r"numbers of dtype float64 and shape \(\)"):
        sites.look(state, {"p['theta']": (1.0, 0.0)})
    with pytest.raises(StepTypeError, match=r"a value of shape \(2,\); expected \(40,\)"):
        sites.look(state, {"p['theta']": jnp.zeros(2)})


def test_a_function_with_effects_has_none():
    def fun(x):
        jax.debug.print("{}", x[0])
        return jnp.sum(x)

    with pytest.raises(NotCalledError, match=r"`sites\(\)` cannot serve this function"):
        incrax.incremental(fun).sites(jnp.zeros(9), moves=["x[*]"])
