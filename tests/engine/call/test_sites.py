"""`f.sites`: proposals of rows inside compiled loops. Oracle: the plain function at the inputs that
the state has.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.plan.test_row_sets import NUM, programs
from helpers import check_text, examples, same
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import incrax
from incrax.engine.call import site_program
from incrax.engine.call import sites as module
from incrax.engine.plan.row_sets import RowSet, taken
from incrax.engine.program.simplify import needed_equations
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


def neighbours(p):
    """A ring, and games between two of many."""
    theta = p["theta"]
    ahead = theta[IDS] - theta[IDS[::-1]]
    steps = jnp.sum(jnp.diff(theta) ** 2) + jnp.sum(theta * jnp.roll(theta, 7)) * p["scale"]
    return jnp.sum(jax.nn.log_sigmoid(ahead)) - steps - jnp.max(theta - jnp.roll(theta, 1))


def elements(p):
    """Look-ups of which an index names more, or less, than one row."""
    table = jnp.tanh(p["theta"][:, None] * jnp.array([1.0, p["scale"], -0.5]))
    pairs = p["theta"][IDS.reshape(100, 2)]
    mean = table[IDS, OTHERS % 3] + p["other"][OTHERS[:, None]][:, 0]
    return -jnp.sum(jnp.log1p((FLAT - mean) ** 2)) - jnp.sum(jnp.cos(jnp.prod(pairs, axis=1)))


def elements_gradient(p):
    return jax.value_and_grad(elements)(p)


def levels_of(num_leaves, rng):
    """A random binary tree: of each level, from the root down, the two children of those of its
    nodes that have any, which are the first.
    """
    leaves, children = [(0, 0)], {}
    while len(leaves) < num_leaves:
        depth, node = leaves.pop(rng.integers(len(leaves)))
        children[node] = [2 * len(children) + 1, 2 * len(children) + 2]
        leaves += [(depth + 1, child) for child in children[node]]
    levels, nodes = [], [0]
    while nodes:
        parents = [node for node in nodes if node in children]
        below = [child for node in parents for child in children[node]]
        below.sort(key=lambda node: node not in children)
        pairs = [[below.index(child) for child in children[node]] for node in parents]
        levels.append(np.array(pairs, np.int32).reshape(-1, 2))
        nodes = below
    return levels


LEVELS = levels_of(LENGTH // 2 + 1, RNG)
WIDTHS = [1] + [2 * len(level) for level in LEVELS[:-1]]
LEAVES = [
    jnp.asarray(RNG.uniform(0.5, 1.5, (w - len(x), 7))) for w, x in zip(WIDTHS, LEVELS, strict=True)
]


def tree(p):
    """From the leaves up: each node multiplies what its two children send along their branches."""
    branches = jnp.exp(-(p["theta"] ** 2)) * p["scale"]
    ends = np.cumsum(WIDTHS) - 1
    total, sent = 0.0, None
    for depth in reversed(range(len(LEVELS))):
        here = LEAVES[depth]
        if sent is not None:
            both = sent[LEVELS[depth][:, 0]] * sent[LEVELS[depth][:, 1]]
            largest = both.max(axis=1, keepdims=True)
            total += jnp.sum(jnp.log(largest))
            here = jnp.concatenate([both / largest, here])
        if depth:
            along = branches[ends[depth - 1] : ends[depth], None, None]
            mixed = 0.3 + along * jnp.eye(7)
            sent = jnp.einsum("nij,nj->ni", mixed, here)
    return total + jnp.log(here.sum())


FUNCTIONS = [
    groups,
    crossed,
    largest,
    products,
    centred,
    by_group,
    gradient,
    crossed_gradient,
    neighbours,
    elements,
    elements_gradient,
    tree,
]


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


@pytest.mark.parametrize(
    "fun", [groups, crossed_gradient, neighbours, tree], ids=lambda fun: fun.__name__
)
def test_rows_that_differ_are_found(fun):
    """None, one, two, too many; of two inputs; a number that stays, and one that does not."""
    state, sites = incrax.incremental(fun).sites(start(), moves=[*MOVES, tuple(MOVES)])

    @jax.jit
    def step(sites, state, changes, accept):
        delta, out = sites.look(state, changes, max_rows=2)
        return delta.is_few, out, sites.settle(state, delta, accept)

    rng = np.random.default_rng(3)
    at = start()
    cases = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (2, 1, 0), (1, 3, 0), (1, 1, 1), (0, 0, 1)]
    for num, num_others, has_scale in 2 * cases:
        numbers = rng.choice(12, num, replace=False)
        others = rng.choice(12, num_others, replace=False)
        new = {
            "theta": at["theta"].at[numbers].set(rng.normal(size=num)),
            "other": at["other"].at[others].set(rng.normal(size=num_others)),
            "scale": jnp.asarray(at["scale"] + 0.1 * has_scale),
        }
        accept = bool(rng.uniform() < 0.6)
        changes = {f"p['{name}']": x for name, x in new.items()}
        is_few, out, state = step(sites, state, changes, accept)
        assert is_few == (num <= 2 and num_others <= 2 and not has_scale)
        near(out, fun(new))
        at = new if accept else at
        near(as_tree(sites, state), at)
    near(sites.look(state, {"p['scale']": at["scale"]})[1], fun(at))


def test_rows_differ_by_bits():
    """Zeros of both signs differ; under `vmap` all must have few."""
    f = lambda x, y: jnp.sum(jnp.arctan2(y, x[:, None]))
    x, y = jnp.zeros(LENGTH), jnp.full((LENGTH, 500), -0.0)
    state, sites = incrax.incremental(f).sites(x, y, moves=["x[*]"])
    look = lambda sites, state, x: sites.look(state, {"x": x}, max_rows=1)
    new = x.at[3].set(-0.0)
    delta, out = jax.jit(look)(sites, state, new)
    assert delta.is_few
    np.testing.assert_allclose(out, f(new, y), rtol=1e-12)
    both = jax.vmap(look, (None, None, 0))(sites, state, jnp.stack([new, new + 1]))[1]
    np.testing.assert_allclose(both, [f(new, y), f(new + 1, y)], rtol=1e-12)


def test_nothing_differs_where_nothing_is_given():
    state, sites = incrax.incremental(groups).sites(start(), moves=["p['theta'][*]"])
    near(sites.look(state, {}, max_rows=2)[1], groups(start()))


def test_rows_by_number_are_not_found():
    state, sites = incrax.incremental(groups).sites(start(), moves=MOVES)
    with pytest.raises(StepTypeError, match="rows by number; expected its whole value"):
        sites.look(state, {"p['theta']": (1, 2.0)}, max_rows=1)


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


def test_frozen_data_of_sites_are_an_argument():
    y = incrax.frozen(np.ones((LENGTH, 500)))
    fun = lambda p, y: -jnp.sum(jnp.log1p((y - p[:, None]) ** 2))
    state, sites = incrax.incremental(fun).sites(jnp.zeros(LENGTH), y, moves=["p[*]"])
    look = jax.jit(lambda sites, state: sites.look(state, {"p": (1, 0.5)})[1])
    near(look(sites, state), fun(jnp.zeros(LENGTH).at[1].set(0.5), y))
    assert len(look.lower(sites, state).as_text()) < y.nbytes


def test_what_is_not_finite_is_left_again():
    at = start()
    at["theta"] = at["theta"].at[4].set(jnp.inf)
    state, sites = incrax.incremental(groups).sites(at, moves=["p['theta'][*]"])
    _, out = sites.look(state, {"p['theta']": (4, 0.1)})
    near(out, groups(at | {"theta": at["theta"].at[4].set(0.1)}))


def ring(p):
    theta = p["theta"]
    return jnp.sum(jnp.tanh(theta * (jnp.roll(theta, 1) + jnp.roll(theta, -7)))) * p["scale"]


@pytest.mark.parametrize("depth", [0, 1, 2], ids=["alone", "candidates", "chains of candidates"])
@pytest.mark.parametrize("fun", [groups, ring], ids=lambda fun: fun.__name__)
def test_a_step_makes_nothing_as_long_as_the_axis(fun, depth):
    """Of one row, no value of all rows is made; that is left to the branch that sums anew."""
    state, sites = incrax.incremental(fun).sites(start(), moves=["p['theta'][*]"])
    look = lambda state, i, x: sites.look(state, {"p['theta']": (i, x)})[1]
    for _ in range(depth):
        look = jax.vmap(look, (None, None, 0))
    traced = jax.make_jaxpr(look)(state, 3, jnp.full((4,) * depth, 0.5)).jaxpr
    outside = needed_equations(traced.eqns, traced.outvars)
    shapes = [var.aval.shape for eqn in outside for var in eqn.outvars]
    assert not any(LENGTH in shape for shape in shapes)
    assert any(eqn.primitive.name == "cond" for eqn in outside)


@pytest.mark.parametrize("name", ["the result", "what is written"])
def test_a_step_in_a_tree_makes_one_row_of_each_level(name):
    """Those from the branch to the root, whichever branch it is."""
    state, sites = incrax.incremental(tree).sites(start(), moves=["p['theta'][*]"])

    def step(state, i, x):
        delta, out = sites.look(state, {"p['theta']": (i, x)})
        return out if name == "the result" else delta.found

    traced = jax.make_jaxpr(step)(state, 3, 0.5).jaxpr
    outside = needed_equations(traced.eqns, traced.outvars)
    shapes = [var.aval.shape for eqn in outside for var in eqn.outvars]
    nodes = [shape for shape in shapes if len(shape) == 2 and shape[1] == 7]
    assert len(nodes) > len(LEVELS)
    assert {shape[0] for shape in nodes} == {1}
    assert max(map(len, LEVELS)) >= 3
    # One for each level; of the lowest two children, now and as they were: nothing is kept there.
    num_products = sum(eqn.primitive.name == "dot_general" for eqn in outside)
    assert num_products <= len(LEVELS) - 2 + 4


@examples(0.3)
@given(programs(), st.integers(0, 10**6))
def test_random_programs_of_moves_and_look_ups(program, seed):
    fun, _ = program
    rng = np.random.default_rng(seed)
    at = jnp.asarray(rng.normal(size=NUM))
    state, sites = incrax.incremental(fun).sites(at, 0.9, moves=["theta[*]"])
    look = jax.jit(lambda state, i, x: sites.look(state, {"theta": (i, x)}))
    for turn in range(5):
        i, x = int(rng.integers(NUM)), rng.normal()
        delta, out = look(state, i, x)
        near(out, fun(at.at[i].set(x), 0.9))
        if turn % 2 == 0:
            state, at = sites.settle(state, delta), at.at[i].set(x)


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
    with pytest.raises(StepTypeError, match=r"shape \(0, 3\), which has no rows"):
        incrax.incremental(jnp.sum).sites(np.zeros((0, 3)), moves=["a[*]"])
    state, sites = f.sites(start(), moves=["p['theta'][*]"])
    with pytest.raises(UnknownInputError, match=r"an input that `moves` did not name"):
        sites.look(state, {"p['scale']": 1.0})
    with pytest.raises(UnknownInputError, match=r"names no input .* are: `p\['theta'\]`"):
        sites.look(state, {"p['thet']": 1.0})
    with pytest.raises(UnknownInputError, match=r"Did you mean `p\['theta'\]`\?"):
        sites.look(state, {"theta": 1.0})
    with pytest.raises(UnknownInputError):
        sites.start({"p['scale']": 1.0}, state)
    with pytest.raises(UnknownInputError):
        sites.parts(state, {"p['scale']": 1.0})
    with pytest.raises(UnknownInputError):
        sites.colours(state, ["p['scale']"])
    with pytest.raises(
        TypeError, match=r"`sites\(moves=...\)` got 3 of type int; it must be a name"
    ):
        f.sites(start(), moves=3)


OTHER_STATE = (
    "`{}` got a `{}` that is no state of this function, or no change of one: it was made by another "
    "function, with other data that stay, or has other types. This is usually the state of another "
    "function, or a carry that holds more than the state. Values saved for the one are wrong for "
    "the other. Nothing was evaluated. Pass what `pure` or `sites` of this function returned, or a "
    "step of theirs."
)
THETAS = jnp.zeros(10)
ONES = jnp.ones(10)


def powers(power):
    return incrax.incremental(lambda a, b: -jnp.sum(jnp.abs(a - b) ** power))


OTHER_SITES = {
    "other number": lambda: powers(4.0).sites(THETAS, ONES, moves=["a[*]"]),
    "other data": lambda: powers(3.0).sites(THETAS, 2 * ONES, moves=["a[*]"]),
    "other moves": lambda: powers(3.0).sites(ONES, THETAS, moves=["b[*]"]),
}


@pytest.mark.parametrize("name", OTHER_SITES)
@pytest.mark.every_case
def test_states_and_changes_of_other_sites_are_refused(name):
    state, sites = powers(3.0).sites(THETAS, ONES, moves=["a[*]"])
    change = {"a": (2, 0.5)}
    delta, _ = sites.look(state, change)
    wrong, others = OTHER_SITES[name]()
    assert [x.shape for x in jax.tree.leaves(wrong)] == [x.shape for x in jax.tree.leaves(state)]
    other_delta, _ = others.look(wrong, {"b" if name == "other moves" else "a": (2, 0.5)})
    for method, call in {
        "look": lambda: sites.look(wrong, change),
        "settle": lambda: sites.settle(wrong, delta),
        "start": lambda: sites.start({"a": ONES}, wrong),
        "parts": lambda: sites.parts(wrong, {"a": ONES}),
        "inputs": lambda: sites.inputs(wrong),
    }.items():
        check_text(StepTypeError, OTHER_STATE.format(method, "SitesState"), call)
    text = OTHER_STATE.format("settle", "Delta")
    check_text(StepTypeError, text, lambda: sites.settle(state, other_delta))


def test_what_is_no_state_or_no_change_is_refused():
    state, sites = powers(3.0).sites(THETAS, ONES, moves=["a[*]"])
    several = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    for wrong in (several, (state, 0.0), tuple(state), None):
        text = OTHER_STATE.format("look", type(wrong).__name__)
        check_text(StepTypeError, text, lambda wrong=wrong: sites.look(wrong, {"a": (1, 0.5)}))
    text = OTHER_STATE.format("settle", "NoneType")
    check_text(StepTypeError, text, lambda: sites.settle(state, None))


def test_sites_that_are_made_anew_take_the_state():
    state, sites = powers(3.0).sites(THETAS, ONES, moves=["a[*]"])
    _, again = powers(3.0).sites(ONES, ONES, moves=["a[*]"])
    delta, out = sites.look(state, {"a": (2, 0.5)})
    assert again.look(state, {"a": (2, 0.5)})[1] == out
    same(sites.settle(state, delta).values, again.settle(state, delta).values)


@pytest.mark.parametrize("accept", [None, "yes", 0.5, 1, np.ones(3, bool)], ids=str)
@pytest.mark.every_case
def test_a_change_is_accepted_by_one_boolean(accept):
    state, sites = powers(3.0).sites(THETAS, ONES, moves=["a[*]"])
    delta, _ = sites.look(state, {"a": (2, 0.5)})
    seen = f"{accept!r} of type {type(accept).__name__}"
    text = f"`settle(accept=...)` got {seen}; it must be a boolean."
    check_text(TypeError, text, lambda: sites.settle(state, delta, accept))
    same(sites.settle(state, delta, np.bool_(True)), sites.settle(state, delta))


WRONG_TYPE = (
    "`{}` got `p['theta']` as {}; expected {}. This is usually a value that was computed in "
    "another dtype, or without its first axis. A compiled loop cannot change types, and nothing "
    "was evaluated. Convert it to the input's own type: `look` takes the whole value, `(number, "
    "row)` for one row or `(numbers, rows)` for several, all else the whole value."
)
VALUES = {
    "a value of type int64[40]": jnp.zeros(LENGTH, int),
    "a value of type float64[2]": np.zeros(2),
    "a value of type float64[]": 0.5,
    "a value of type str": "theta",
    "a value of type object": object(),
}
NEEDED = "integers, and rows of an array"
ROWS = {
    "rows of type float64[2]": ((1, jnp.zeros(2)), "float64[]"),
    "rows of type float64[]": ((np.array([1, 2]), 0.5), "float64[2]"),
    "rows of type int64[]": ((1, jnp.zeros((), int)), "float64[]"),
    "rows of type str": ((1, "theta"), "float64[]"),
    "a tuple of float64[] and float64[]": ((1.0, 0.0), NEEDED),
    "a tuple of int64[1, 1] and float64[]": ((np.ones((1, 1), int), 0.0), NEEDED),
    "a tuple of int64[0] and float64[0]": ((np.zeros(0, int), np.zeros(0)), NEEDED),
    "a tuple of str and float64[]": (("theta", 0.0), NEEDED),
    "a tuple of int64[] and float64[] and float64[]": ((1, 2.0, 3.0), NEEDED),
}


@pytest.mark.every_case
@pytest.mark.parametrize("method", ["look", "start", "parts"])
def test_a_value_of_another_type_is_refused(method):
    state, sites = incrax.incremental(groups).sites(start(), moves=["p['theta'][*]"])
    run = {
        "look": lambda x: sites.look(state, {"p['theta']": x}),
        "start": lambda x: sites.start({"p['theta']": x}, state),
        "parts": lambda x: sites.parts(state, {"p['theta']": x}),
    }[method]
    for seen, value in VALUES.items():
        check_text(StepTypeError, WRONG_TYPE.format(method, seen, "float64[40]"), run, value)
    for seen, (rows, expected) in ROWS.items():
        if method != "look":
            seen, expected = "rows by number", "its whole value"
        check_text(StepTypeError, WRONG_TYPE.format(method, seen, expected), run, rows)


def test_a_function_with_effects_has_none():
    def fun(x):
        jax.debug.print("{}", x[0])
        return jnp.sum(x)

    with pytest.raises(NotCalledError, match=r"`sites\(\)`, .* cannot serve this function"):
        incrax.incremental(fun).sites(jnp.zeros(9), moves=["x[*]"])


# --- look-ups of which some ids have many rows ----------------------------------------------------

SKEWED = np.repeat(np.arange(LENGTH), [1] * 20 + [3] * 10 + [9] * 7 + [60, 70, 80])
SKEWED_IDS = jnp.asarray(RNG.permutation(SKEWED), jnp.int32)
SKEWED_OTHERS = jnp.asarray(RNG.integers(0, 12, SKEWED.size), jnp.int32)
SKEWED_Y = jnp.asarray(RNG.normal(size=SKEWED.size))


def skewed(p):
    mean = p["theta"][SKEWED_IDS] + p["other"][SKEWED_OTHERS]
    return -jnp.sum(jnp.log1p((SKEWED_Y - mean) ** 2)) - jnp.sum(p["theta"] ** 2) * p["scale"]


def skewed_rows(p):
    """Its residuals are written."""
    residuals = SKEWED_Y - p["theta"][SKEWED_IDS] * p["scale"]
    return residuals, jnp.sum(residuals**2) + jnp.sum(p["other"])


@pytest.fixture
def narrow_tables(monkeypatch):
    monkeypatch.setattr(site_program, "MIN_SLOTS", 0)


@pytest.mark.parametrize("fun", [skewed, skewed_rows], ids=lambda fun: fun.__name__)
def test_whatever_numbers_of_rows_the_ids_have(narrow_tables, fun):
    state, sites = incrax.incremental(fun).sites(start(), moves=MOVES)
    turn = jax.jit(lambda sites, state, change: turned(sites, state, {"p['theta']": change}))
    at = start()
    for i in (0, 25, 33, 37, 39, 19, 38):
        at["theta"] = at["theta"].at[i].set(0.1 * i)
        state, out = turn(sites, state, (i, 0.1 * i))
        near(out, fun(at))
    for numbers in ([0, 1, 2], [3, 20, 21], [39, 0, 31]):
        at["theta"] = at["theta"].at[np.array(numbers)].set(0.7)
        state, out = turn(sites, state, (np.array(numbers), np.full(3, 0.7)))
        near(out, fun(at))
    near(as_tree(sites, state), at)


def turned(sites, state, changes):
    delta, out = sites.look(state, changes)
    return sites.settle(state, delta), out


def test_two_look_ups_have_room_together(narrow_tables):
    ids = SKEWED_IDS[::-1]

    def twice(theta):
        return jnp.sum(jnp.tanh(theta[SKEWED_IDS] - SKEWED_Y)) + jnp.sum(theta[ids[:100]] ** 3)

    theta = start()["theta"]
    state, sites = incrax.incremental(twice).sites(theta, moves=["theta[*]"])
    look = jax.jit(lambda sites, state, i: sites.look(state, {"theta": (i, 2.0)})[1])
    for i in range(0, LENGTH, 3):
        near(look(sites, state, i), twice(theta.at[i].set(2.0)))


def test_an_id_of_few_rows_reads_no_table_as_wide_as_the_widest(narrow_tables):
    state, sites = incrax.incremental(skewed).sites(start(), moves=MOVES)
    fun = lambda sites, state: sites.look(state, {"p['theta']": (0, 0.5)})
    jaxpr = jax.make_jaxpr(fun)(sites, state)
    branches = [eqn.params["branches"] for eqn in jaxpr.eqns if eqn.primitive.name == "cond"]
    (by_width,) = (found for found in branches if len(found) > 2)
    assert [longest_float(body.jaxpr) for body in by_width] == [3, 9, 60, 80]


def longest_float(jaxpr):
    eqns = needed_equations(jaxpr.eqns, set(jaxpr.outvars))
    written = [v.aval for eqn in eqns for v in eqn.outvars]
    return max(max((0, *aval.shape)) for aval in written if aval.dtype == np.float64)


def test_where_all_ids_have_about_as_many_rows_there_is_one_width():
    assert site_program.levels_of([np.array([80, 90, 100])]) == [(100,)]
    assert site_program.levels_of([np.array([1] * 90 + [1000] * 10), np.full(5, 7)]) == [
        (1, 7),
        (1000, 7),
    ]
    assert site_program.levels_of([]) == []


def test_what_only_a_change_of_all_reads_is_not_written_row_by_row():
    """Residuals that a step of the noise reads are made for it; the state would have them in as
    many rows as an id has.
    """

    def noisy(theta, noise, scale):
        residuals = FLAT - theta[IDS]
        return jnp.sum(jnp.log1p((residuals * jnp.exp(-noise)) ** 2)) + jnp.sum(theta**2) * scale

    at = [start()["theta"], jnp.asarray(0.3), jnp.asarray(1.1)]
    moves = ["theta[*]", "noise", "scale"]
    state, sites = incrax.incremental(noisy).sites(*at, moves=moves)
    assert max(x.size for x in state.values) == LENGTH
    turn = jax.jit(turned)
    for theta, noise, scale in ((0.2, -0.1, 2.0), (2.0, 0.5, 1.0)):
        at[0] = at[0].at[3].set(theta)
        state, out = turn(sites, state, {"theta": (3, theta)})
        near(out, noisy(*at))
        at[1] = jnp.asarray(noise)
        state, out = turn(sites, state, {"noise": noise})
        near(out, noisy(*at))
        at[2] = jnp.asarray(scale)
        state, out = turn(sites, state, {"scale": scale})
        near(out, noisy(*at))


def test_what_changes_of_rows_read_stays_in_the_state():
    """Cumulated sums of one input, of which a step of another reads some."""

    def cumulated(theta, other):
        return jnp.sum(jnp.cumsum(other)[OTHERS] * theta[IDS])

    at = start()
    given = at["theta"], at["other"]
    state, sites = incrax.incremental(cumulated).sites(*given, moves=["theta[*]", "other"])
    state, out = turned(sites, state, {"theta": (3, 0.2)})
    near(out, cumulated(at["theta"].at[3].set(0.2), at["other"]))
    state, out = turned(sites, state, {"other": 2 * at["other"]})
    near(out, cumulated(at["theta"].at[3].set(0.2), 2 * at["other"]))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a matter of XLA on CPUs")
def test_a_gather_of_few_rows_of_many_is_not_divided_among_threads():
    x = jnp.arange(400_000.0)
    numbers = jnp.asarray([7, 399_999, 20, 5], jnp.int32)

    def difference(x, numbers, new, old):
        rows = taken(x, 0, RowSet(numbers, x.size, numbers >= 0))
        return jnp.sum(jnp.log1p((rows - new) ** 2)) - jnp.sum(jnp.log1p((rows - old) ** 2))

    compiled = jax.jit(difference).lower(x, numbers, 1.0, 2.0).compile()
    rows = np.asarray(numbers, np.float64)
    expected = np.sum(np.log1p((rows - 1.0) ** 2)) - np.sum(np.log1p((rows - 2.0) ** 2))
    near(compiled(x, numbers, 1.0, 2.0), expected)
    assert "outer_dimension_partitions" not in compiled.as_text()
