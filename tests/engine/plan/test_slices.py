"""Plans for a change of rows: the law of the plan, by evaluating it, and what it runs on.

The oracle is the function itself. Every case runs with values per row kept, and with differences:
each of three capacities with one of the two, since neither knows of the other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same
from slice_cases import CASES, EARLY, IDS, LATE, MANY, NUM, THETA, Y

import incrax
from incrax import _jax
from incrax._program import all_read, written_vars
from incrax.engine.plan import environment, looked_up_rows, met_rows, weighted_rows
from incrax.engine.plan.plan import RowKind, lines_of, plan_whole
from incrax.engine.plan.row_share import rough_share
from incrax.engine.plan.slices import priming_saves, slice_plan, value_at

FACTOR = 512.0
"""Ulp of a row's size: differences are added up over some calls."""


@pytest.fixture(autouse=True)
def nothing_is_cheap(monkeypatch):
    """These values are small."""
    monkeypatch.setattr(environment, "ANEW_S", -1.0)
    monkeypatch.setattr(weighted_rows, "MIN_SIZE", 1)


@pytest.fixture(params=["values per row", "differences", "what is dear"])
def kept(request, monkeypatch):
    """What is kept of sums over the rows."""
    if request.param == "differences":
        monkeypatch.setattr(met_rows, "MAX_PARTIAL", 1)
        monkeypatch.setattr(met_rows, "MIN_PRODUCT_S", 0.0)
    else:
        monkeypatch.setattr(looked_up_rows, "MIN_ARRANGED_BYTES", 0)
    if request.param == "what is dear":
        monkeypatch.setattr(environment, "ANEW_S", 5e-7)
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    return request.param


class Sliced:
    """A plan, compiled by `jax.jit`, and the values that it has left behind."""

    def __init__(self, case, capacity, within=0, moving=()):
        self.fun, args = (CASES[case] if isinstance(case, str) else case)[:2]
        ours = incrax.incremental(self.fun)
        ours(*args)
        self.facts = ours._traces.latest.engine.facts
        self.treedef = jax.tree.structure(args)
        self.leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
        value_of = value_at(self.facts, self.leaves)
        bits = sum(map(self.facts.layout.leaf_mask, moving))
        self.plan = slice_plan(self.facts, RowKind((0,), capacity, within), value_of, moving=bits)
        self.capacity = capacity
        kept = priming_saves(self.facts, self.plan)
        self.first = self.compiled(plan_whole(self.facts, dict.fromkeys(kept)))
        self.next = self.compiled(self.plan)
        self.prime()

    def compiled(self, plan):
        program = self.facts.program

        def run(leaves, loads):
            env = dict(zip(program.invars, leaves, strict=True))
            env.update(zip(program.constvars, program.consts, strict=True))
            env.update(zip(plan.loads, loads, strict=True))
            _jax.evaluate(plan.eqns, env)
            outputs = [_jax.read(program.outvars[i], env) for i in plan.outputs]
            guard = jnp.array(True) if plan.guard is None else env[plan.guard]
            return outputs, [env[var] for var in plan.saves], guard

        jitted = jax.jit(run)

        def call(leaves, loads):
            outputs, saves, guard = jitted(leaves, loads)
            return outputs, dict(zip(plan.saves, saves, strict=True)), bool(guard)

        return call

    def prime(self):
        self.outputs, self.saved, _ = self.first(self.leaves, [])
        value_of = value_at(self.facts, self.leaves)
        for var in self.plan.sliced.tables:
            sources, make = self.facts.derived.on_host[var]
            values = [self.saved[x] if x in self.saved else value_of(x) for x in sources]
            self.saved[var] = jnp.asarray(make(*map(np.asarray, values)))

    def load(self, var, numbers):
        sliced = self.plan.sliced
        if var is sliced.numbers:
            return numbers
        old = sliced.olds.get(var, var)
        if old in self.saved:
            return self.saved[old]
        if old in self.facts.invars:
            return self.old_leaves[self.facts.invars.index(old)]
        return self.outputs[self.facts.outvars.index(old)]

    def change(self, rows, values):
        """Give rows of the first leaf other values; whether the results may be used."""
        self.old_leaves = list(self.leaves)
        x = np.array(self.leaves[0])
        x[rows] = values
        self.leaves[0] = jnp.asarray(x)
        spare = np.repeat(rows[:1], max(self.capacity - len(rows), 0))
        numbers = jnp.asarray(np.concatenate([rows, spare])[: self.capacity], jnp.int32)
        loads = [self.load(var, numbers) for var in self.plan.loads]
        outputs, saves, is_usable = self.next(self.leaves, loads)
        self.saved.update(saves)
        for position, value in zip(self.plan.outputs, outputs, strict=True):
            self.outputs[position] = value
        return is_usable

    def check(self, **options):
        expected = jax.jit(self.fun)(*jax.tree.unflatten(self.treedef, self.leaves))
        for ours, value in zip(self.outputs, jax.tree.leaves(expected), strict=True):
            same(ours, value, factor=FACTOR, is_zero_signed=False, **options)


@pytest.mark.parametrize(
    ("capacity", "kept"),
    [(1, "values per row"), (4, "differences"), (4, "what is dear"), (16, "values per row")],
    indirect=["kept"],
)
@pytest.mark.parametrize("name", CASES)
def test_rows_alone_give_what_the_function_gives(name, capacity, kept):
    sliced = Sliced(name, capacity)
    rng = np.random.default_rng(capacity)
    for _ in range(6):
        rows = np.sort(rng.choice(NUM, rng.integers(1, capacity + 1), replace=False))
        shape = sliced.leaves[0][rows].shape
        shift = 3.0 if name.startswith("waves") else 0.0
        low = 0.2 if name.startswith("processes") else -1.5
        if sliced.change(rows, rng.uniform(low, 1.5, shape) + shift):
            sliced.check(terms=30.0)
        else:
            sliced.prime()


@pytest.mark.parametrize(
    "name", ["peaks, gradient", "padded peaks, gradient", "deblurred, gradient", "pooled"]
)
def test_windows_of_rows_side_by_side_and_at_the_ends(name, monkeypatch):
    """Of which some rows are read twice, and others by nothing."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    sliced = Sliced(name, 4)
    for rows in ([3, 4, 5, 20], [0, 1, 22, 23], [11, 12]):
        assert sliced.change(np.array(rows), -1.0 + 0.1 * len(rows))
        sliced.check(terms=30.0)


@pytest.mark.parametrize("name", ["all pairs", "gram", "tied", "kernels"])
def test_rows_and_columns_give_what_the_function_gives(name, monkeypatch):
    """What both have counts once, and so do rows that fill up; rows repeat, and follow each other."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    sliced = Sliced(name, 4)
    assert any(len(each.made) > 1 for each in sliced.plan.sliced.made)
    assert name not in ("all pairs", "kernels") or sliced.plan.sliced.widened == []
    for rows in ([3, 4, 5, 20], [0, 23], [11]):
        assert sliced.change(np.array(rows), -1.0 + 0.1 * len(rows))
        sliced.check(terms=30.0)


PARTS = (
    {(name, within): case for name, case in LATE.items() for within in (9, 6, 1)}
    | {(name, within): case for name, case in EARLY.items() for within in (-9, -6)}
    | {(name, 9 if n % 2 else -9): case for n, (name, case) in enumerate(CASES.items())}
)
"""Cases of which any of the last rows, or of the first, change."""


@pytest.mark.parametrize(("name", "within"), PARTS)
def test_a_part_of_the_axis_gives_what_the_function_gives(name, within, monkeypatch):
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    monkeypatch.setattr(environment, "MAX_INTERVAL_SHARE", 0.8)
    sliced = Sliced(PARTS[name, within], 1, within)
    rng = np.random.default_rng(abs(within))
    for _ in range(4):
        size = rng.integers(1, abs(within) + 1)
        numbers = np.sort(rng.choice(abs(within), size, replace=False))
        rows = numbers + NUM - within if within > 0 else numbers
        low = 0.2 if name.startswith("processes") else -1.5
        shape = sliced.leaves[0][rows].shape
        shift = 3.0 if name.startswith("waves") else 0.0
        if sliced.change(rows, rng.uniform(low, 1.5, shape) + shift):
            sliced.check(terms=30.0)
        else:
            sliced.prime()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].is_by_rows])
def test_nothing_of_the_size_of_the_data_is_made(name, monkeypatch):
    """What has all rows and more than one number each is written in place, or clean; numbers of rows
    are compared in pairs.
    """
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    monkeypatch.setattr(met_rows, "MIN_PRODUCT_S", 0.0)
    plan = Sliced(name, 1).plan
    written = [var for eqn in plan.eqns for var in written_vars(eqn)]
    shapes = [var.aval.shape for var in written]
    data = [shape for shape in shapes if {NUM, MANY} & {*shape} and np.prod(shape) > 3 * NUM]
    assert [shape for shape in data if shape != (MANY,)] == []


@pytest.mark.parametrize("name", ["hazard", "running", "recurrence", "risk sets"])
def test_of_a_part_nothing_else_is_made_or_kept(name):
    """But for outputs, of all rows; what the others make together is a value of the baseline."""
    sliced = Sliced((LATE | EARLY)[name], 1, 2 if name in LATE else -2)
    written = {var for eqn in sliced.plan.eqns for var in written_vars(eqn)}
    made = written.union(sliced.plan.saves).difference(sliced.facts.outvars)
    assert not sliced.plan.sliced.widened
    # It leaves behind what the next one reads.
    assert {*priming_saves(sliced.facts, sliced.plan)} <= {*sliced.plan.saves}
    assert max(np.prod(var.aval.shape) for var in made) <= 24


@pytest.mark.parametrize("name", [*LATE, *EARLY])
def test_the_rough_share_of_a_part_is_that_of_its_rows(name):
    """A gradient goes both ways."""
    fun, (x, scale), _ = (LATE | EARLY)[name]
    ours = incrax.incremental(fun)
    ours(x, scale)
    facts = ours._traces.latest.engine.facts
    sign = 1 if name in LATE else -1
    shares = [rough_share(facts, (0,), sign * within).share for within in (1, 6)]
    if (LATE | EARLY)[name].is_by_rows and "gradient" not in name:
        assert shares[0] > shares[1] > rough_share(facts, (0,)).share + 0.3
        assert shares[0] > 0.75
        assert rough_share(facts, (0,), -6 * sign).share < 0.4


def decaying(x, scale):
    """y_n = a_n y_n-1 + b_n of two columns, by a tree."""
    join = lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1])
    return jax.lax.associative_scan(join, (jnp.tanh(scale * x[:, 0]), x[:, 1]))[1]


def pairs(num):
    return np.random.default_rng(num).normal(size=(num, 2)), 0.9


@pytest.mark.parametrize(("num", "capacity"), [(4096, 1), (5001, 4)])
def test_a_tree_that_is_read_at_its_end_runs_one_row_of_each_level(num, capacity):
    """Of what is kept there are two levels in six, so that it is small."""
    sliced = Sliced((lambda x, scale: decaying(x, scale)[-1], pairs(num)), capacity)
    widened = [eqn.outvars[0].aval.shape for eqn in sliced.plan.sliced.widened]
    assert all(np.prod(shape) <= capacity for shape in widened)  # at the root
    by_rows = [extent for each in sliced.plan.sliced.made for extent in each.made]
    assert {extent.num for extent in by_rows} == {capacity}
    kept = [*sliced.plan.saves, *sliced.plan.base_loads]
    assert sum(np.prod(var.aval.shape) for var in kept) < num / 2
    assert len(sliced.plan.eqns) < 3000
    for rows in ([0], [num - 1], [100], [7, 6, 5, 4][:capacity], [1, 2, 3000, num - 2][:capacity]):
        sliced.change(np.sort(rows), 0.1 * len(rows))
        sliced.check(terms=4.0)


def test_a_tree_of_halves_is_by_rows_on_the_way_up():
    """Down again there are too many of too few."""
    sliced = Sliced((decaying, pairs(4096)), 1)
    assert 0 < len(sliced.plan.sliced.widened) < 80
    for row in (0, 4095, 100):
        sliced.change(np.array([row]), 0.7)
        sliced.check(terms=4.0)


def test_levels_of_a_grid_are_by_rows_for_some_levels():
    """Three sets of every other row meet in each, so that rows are three times as many of half."""

    def coarse(x, _):
        for _ in range(8):
            x = jnp.sin(0.25 * x[:-2:2] + 0.5 * x[1:-1:2] + 0.25 * x[2::2])
        return jnp.sum(x)

    sliced = Sliced((coarse, (np.linspace(0.5, 1.5, 2**14 - 1), 0.5)), 1)
    assert 0 < len(sliced.plan.sliced.widened)
    assert len(sliced.plan.eqns) < 1500
    for row in (0, 16382, 100):
        sliced.change(np.array([row]), 1.05)
        sliced.check()


FAR = np.linspace(0.9, 1.1, 4096)


def window_of_two(x, _):
    return jax.vmap(lambda n: jax.lax.dynamic_slice(x, (n,), (2,)))(np.arange(0, NUM - 1, 2))


REASONS = {
    "softmax": (
        lambda x, _: jax.nn.softmax(x),
        FAR,
        1,
        "sub",
        "it also reads what changed as a whole",
    ),
    "behind it": (lambda x, _: 2 * jnp.sort(x), FAR, 1, "mul", "what it reads changed as a whole"),
    "sort": (
        lambda x, _: jnp.sort(x),
        FAR,
        1,
        "sort",
        "each row of its result depends on all rows",
    ),
    "matrix": (
        lambda x, _: jnp.concatenate([x[:, None] + jnp.zeros(99), x[None] + jnp.zeros((99, 1))]),
        FAR[:99],
        1,
        "concatenate",
        "rows meet along different axes",
    ),
    "lag": (
        lambda x, _: x[1:] @ x[:-1],
        FAR,
        1,
        "dot_general",
        "different rows meet, of which each reaches all others",
    ),
    "neighbours": (
        lambda x, _: x + jnp.roll(x, 1) + jnp.roll(x, 2),
        FAR[:24],
        4,
        "add",
        "8 of 24 rows would run, which is too many to be told apart",
    ),
    "far neighbours": (
        lambda x, _: sum(jnp.roll(x, n) for n in range(9)),
        FAR,
        64,
        "add",
        "different rows meet: 512 of 4096 and 64 of 4096",
    ),
    "halves": (
        lambda x, _: jnp.max(x[::2][::2][::2][::2] + x[1::2][::2][::2][::2]),
        FAR,
        1,
        "add",
        "every other row was taken more than 3 times",
    ),
    "own kernel": (
        lambda x, _: jax.lax.conv(x[None, None], x[:64][None, None], (1,), "SAME"),
        FAR,
        1,
        "conv_general_dilated",
        "64 of 64 rows would run, which is too many to be told apart",
    ),
    "a loop whose rows meet": (
        lambda x, _: jax.lax.fori_loop(0, 3, lambda _, y: jnp.roll(y, 1) * y, x),
        FAR,
        1,
        "scan",
        "rows meet inside, or all of its steps read what changed",
    ),
    "until": (
        lambda x, _: jax.lax.while_loop(lambda y: y[0] < 9.0, lambda y: 2 * y, x),
        FAR,
        1,
        "while",
        "nothing is known of what its rows depend on",
    ),
    "products": (
        lambda x, _: jnp.ones(4096) @ x,
        FAR,
        1,
        "dot_general",
        "all of it takes no longer",
    ),
    "running sum": (
        lambda x, _: jnp.cumsum(x),
        FAR,
        1,
        "cumsum",
        "all rows behind the first changed one follow from it",
    ),
    "own indices": (
        lambda x, _: x[(100 * x).astype(int)],
        FAR,
        1,
        "gather",
        "its indices changed, too",
    ),
    "pieces": (
        window_of_two,
        FAR[:24],
        1,
        "gather",
        "an index stands for more, or for less, than one row",
    ),
    "look-up": (
        lambda x, _: x[np.zeros(99, int)],
        FAR,
        1,
        "gather",
        "99 of 99 rows would run, which is too many to be told apart",
    ),
    "look-up twice": (
        lambda x, ids: x[np.arange(4096) % 512][ids],
        FAR[:512],
        1,
        "gather",
        "it looks up what was looked up, by indices that may change",
    ),
    "added to itself": (
        lambda x, _: x.at[np.arange(9)].add(x[:9]),
        FAR,
        1,
        "scatter-add",
        "different rows meet, of which each reaches all others",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_plan_says_where_and_why_all_rows_run(name, monkeypatch):
    monkeypatch.setattr(
        met_rows, "MIN_PRODUCT_S", 1.0
    )  # whatever this machine was measured to take
    fun, x, capacity, primitive, reason = REASONS[name]
    plan = Sliced((fun, (x, np.arange(4096) % 512), False), capacity).plan
    each = next(x for x in plan.sliced.made if x.eqn.primitive.name == primitive and x.why_all)
    assert each.why_all == reason
    assert "test_slices.py" in lines_of(plan.sliced.widened)


@pytest.mark.parametrize("name", CASES)
def test_a_plan_says_which_rows_change(name, monkeypatch):
    """No more than it says, along that axis; nothing where it says that no row reaches a value."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    sliced = Sliced(name, 1)
    program = sliced.facts.program

    def values():
        env = dict(zip(program.invars, sliced.leaves, strict=True))
        env.update(zip(program.constvars, program.consts, strict=True))
        _jax.evaluate(program.eqns, env)
        return env

    before = values()
    sliced.leaves[0] = sliced.leaves[0].at[5].add(0.25)
    after = values()
    for each in sliced.plan.sliced.made:
        var = each.eqn.outvars[0]
        if each.made:
            differ = np.asarray(before[var] != after[var])
            most = (
                0.4 if len(each.made) > 1 else 0.0
            )  # a row of one slab crosses those of the other
            for num, length, axis in each.made:  # without them nothing else differs
                share = differ.mean(axis=tuple({*range(differ.ndim)} - {axis}))
                rows = np.flatnonzero(share > most)
                assert differ.shape[axis] == length
                assert rows.size <= num
                differ = np.delete(differ, rows, axis)
            assert not differ.any()
        elif each.why_all == "no row reaches it":
            assert np.all(np.asarray(before[var] == after[var]))


def test_spare_slots_count_once(kept):
    one, four = Sliced("groups", 1), Sliced("groups", 4)
    for sliced in (one, four):
        sliced.change(np.array([3]), 0.7)
    same(four.outputs, one.outputs, factor=8.0)


def test_a_difference_that_loses_too_much_must_not_be_used(monkeypatch):
    monkeypatch.setattr(met_rows, "MAX_PARTIAL", 1)
    sliced = Sliced("groups", 1)
    assert sliced.change(np.array([3]), 0.7)
    assert sliced.change(np.array([4]), 1e12)
    assert not sliced.change(np.array([4]), 0.7)
    assert not sliced.change(np.array([5]), np.nan)


def test_a_table_of_too_few_slots_must_not_be_used():
    sliced = Sliced("look-up by an argument", 1)
    assert sliced.change(np.array([3]), 0.7)
    sliced.leaves[1] = jnp.zeros_like(sliced.leaves[1])  # now the first has all members
    sliced.prime()
    sliced.check()
    assert not sliced.change(np.array([0]), 0.7)


def test_what_is_out_of_range_reads_the_first_row_or_the_last():
    """As XLA does where JAX says nothing of it: then no row has all of its look-ups in the table."""
    fun = lambda theta, ids: jnp.sin(theta)[ids]
    ids = np.array([3, NUM + 1, 5, NUM, 2] * 4)
    outside = Sliced((lambda theta, _: fun(theta, ids), (THETA, 0.5)), 1)
    inside = Sliced((fun, (THETA, ids % NUM)), 1)
    assert inside.change(np.array([3]), 0.7)
    inside.check()
    inside.leaves[1] = jnp.asarray(ids)
    inside.prime()
    assert not inside.change(np.array([NUM - 1]), 0.8)
    assert outside.change(np.array([NUM - 1]), 0.8)
    outside.check()


def with_a_prior(theta, y):
    """Of the prior all is cheap; of the likelihood each row has observations of its own."""
    scores = jnp.sum(jnp.log1p((y - theta[:, None]) ** 2), axis=1)
    return jnp.sum(scores) - 0.5 * jnp.sum((theta / 3.0) ** 2), theta * 2.0


def test_what_costs_little_is_computed_anew_and_not_kept(monkeypatch):
    theta = np.linspace(-1.0, 1.0, NUM)
    case = with_a_prior, (theta, np.cos(np.arange(NUM * 2_000.0)).reshape(NUM, -1))
    for seconds, num_saves, num_olds in ((-1.0, 2, 3), (5e-6, 1, 1)):
        monkeypatch.setattr(environment, "ANEW_S", seconds)
        sliced = Sliced(case, 1)
        assert len(sliced.plan.saves) == num_saves
        assert len(sliced.plan.sliced.olds) == num_olds
        for row in (3, 0, NUM - 1):
            assert sliced.change(np.array([row]), 0.7)
            sliced.check()


def bent_pairs(x, scale):
    """All that bends x costs more than to keep what comes out; to spread that costs less."""
    for _ in range(10):
        x = jnp.tanh(x * scale)
    ordered = jnp.sum(jnp.sort(x) * jnp.arange(x.size))
    return ordered + jnp.sum(jnp.exp(-((x[:, None] - x) ** 2)))


def test_old_rows_are_not_computed_from_new_ones(monkeypatch):
    monkeypatch.setattr(environment, "ANEW_S", 0.0)
    sliced = Sliced((bent_pairs, (np.linspace(-1.0, 1.0, 400), 1.2)), 1)
    for row in (3, 0, 399):
        assert sliced.change(np.array([row]), 0.9)
        sliced.check()


def of_observations(theta, y):
    return jnp.sum((y - theta[IDS]) ** 2)


@pytest.mark.parametrize(
    ("moving", "most", "num_tables"),
    [((), 100.0, 2), ((1,), 100.0, 1), ((), 0.9, 1)],
    ids=["steady", "it changes", "much larger"],
)
def test_what_a_look_up_reads_lies_side_by_side(moving, most, num_tables, monkeypatch):
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    monkeypatch.setattr(looked_up_rows, "MIN_ARRANGED_BYTES", 0)
    monkeypatch.setattr(looked_up_rows, "MAX_ARRANGED", most)
    y = np.cos(np.arange(IDS.size))
    sliced = Sliced((of_observations, (np.linspace(-1.0, 1.0, NUM), y)), 1, moving=moving)
    assert len(sliced.plan.sliced.tables) == num_tables
    reads_y = sliced.facts.invars[1] in all_read(sliced.plan.eqns)
    assert reads_y == (num_tables == 1)
    for row in (3, 0, NUM - 1):
        assert sliced.change(np.array([row]), 0.7)
        sliced.check()


@pytest.mark.parametrize("num", [NUM - 3, NUM, NUM + 2])
@pytest.mark.parametrize("modes", [("clip", "clip"), ("fill", "drop"), ("clip", "drop")])
def test_a_sum_back_to_the_ids_of_another_number_of_rows(num, modes, monkeypatch):
    """Then other ids are out of range than in the look-up."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    ids = np.append(np.arange(NUM), [NUM + 1, NUM, 2]).astype(np.uint32)

    def fun(theta, ids):
        read = jnp.sin(theta.at[ids].get(mode=modes[0], fill_value=0.5))
        return jnp.zeros(num).at[ids].add(read, mode=modes[1])

    sliced = Sliced((fun, (THETA, ids)), 4)
    for rows in ([0, NUM - 1], [NUM - 4], [1, 2, 3]):
        assert sliced.change(np.array(rows), 0.3 * len(rows))
        sliced.check(terms=4.0)


@pytest.mark.parametrize("modes", [("fill", "promise_in_bounds"), ("promise_in_bounds", "fill")])
def test_one_look_up_may_promise_what_another_by_the_same_ids_does_not(modes, monkeypatch):
    """XLA reads the last row where the promise is broken."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    inside = np.append(np.arange(NUM), [NUM - 1, 2])
    broken = np.append(np.arange(NUM), [NUM + 1, 2])

    def fun(theta, ids):
        return [jnp.sin(theta.at[ids].get(mode=mode)) for mode in modes]

    for ids, is_usable in ((inside, True), (broken, False)):
        sliced = Sliced((fun, (THETA, ids)), 1)
        for row in (3, NUM - 1):
            assert sliced.change(np.array([row]), 0.7)
            sliced.check()
        sliced.leaves[1] = jnp.asarray(broken)
        sliced.prime()
        assert sliced.change(np.array([4]), 0.1) != is_usable


@pytest.mark.parametrize(("most", "primitive"), [(0, "scatter-add"), (512, "dot_general")])
def test_what_is_added_by_some_ids_is_promised_nothing_of_all_and_loses_no_digits(
    most, primitive, monkeypatch
):
    """Spare slots repeat a row, wherever it is; products of GPUs keep ten bits unless asked."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    monkeypatch.setattr(looked_up_rows, "MAX_COMPARED", most)

    def fun(table, start):
        said = {"indices_are_sorted": True, "unique_indices": True}
        return start.at[jnp.arange(NUM) * 2].add(jnp.sin(table), **said)

    sliced = Sliced((fun, (Y[:, :2], np.zeros((2 * NUM, 2)))), 4)
    made = [eqn for eqn in sliced.plan.eqns if eqn.primitive.name == primitive]
    promises = [eqn.params.get(k) for eqn in made for k in ("indices_are_sorted", "unique_indices")]
    assert made
    assert not any(promises)
    if primitive == "dot_general":
        assert {*made[0].params["precision"]} == {jax.lax.Precision.HIGHEST}
    assert sliced.change(np.array([NUM - 1, 2]), 0.3)
    sliced.check(terms=4.0)


def test_a_sum_back_of_a_part_of_each_row():
    """A window of two columns of three."""
    gather = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    scatter = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def fun(table, ids):
        read = jnp.sin(jax.lax.gather(table, ids, gather, (1, 2), mode="fill"))
        return [
            jax.lax.scatter_add(jnp.zeros((NUM, 3)), ids, part, scatter, mode="drop")
            for part in (read, read[:, :1])
        ]

    sliced = Sliced((fun, (Y[:, :2], np.arange(NUM)[:, None])), 1)
    for row in (0, NUM - 1):
        assert sliced.change(np.array([row]), 0.3)
        sliced.check(terms=4.0)


@pytest.mark.parametrize(("dtype", "has_difference"), [("float16", False), ("float32", True)])
def test_numbers_of_few_digits_have_no_differences(dtype, has_difference, monkeypatch):
    """What may be lost would be all of them."""
    monkeypatch.setattr(met_rows, "MIN_PRODUCT_S", 0.0)
    table = Y.astype(dtype)
    sliced = Sliced((lambda x, y: x.T @ y, (table, np.cos(table))), 1)
    assert (sliced.plan.guard is not None) is has_difference
    assert bool(sliced.plan.sliced.widened) is not has_difference


def test_a_look_up_of_most_rows_is_not_divided():
    facts = Sliced("look-up", 1).facts
    plan = slice_plan(facts, RowKind((0,), 4), value_at(facts, CASES["look-up"].args))
    assert not plan.sliced.tables


TALL = np.random.default_rng(7).normal(size=(200, 7))
MANY_IDS = np.random.default_rng(8).integers(len(TALL), size=(300, 3))
MANY_IDS[0] = 4, 4, 9  # twice in one row of the result
ONE_IDS = MANY_IDS[:, :1]
COLUMNS = MANY_IDS % 7
BESIDE = np.cos(np.arange(300.0))
FORMS = {
    "elements": lambda x: x[ONE_IDS[:, 0], COLUMNS[:, 0]],
    "a column": lambda x: x[ONE_IDS[:, 0], 2],
    "one by one": lambda x: x[ONE_IDS, 0][:, 0],
    "several": lambda x: x[MANY_IDS].sum((1, 2)),
    "several elements": lambda x: x[MANY_IDS, COLUMNS].sum(1),
    "rows and columns": lambda x: x[ONE_IDS, np.array([0, 2])].sum(1),
    "along rows": lambda x: jnp.take_along_axis(x[:, :3], MANY_IDS, 0).sum(1),
    "mapped": lambda x: jax.vmap(lambda i, j: x[i, j])(ONE_IDS[:, 0], COLUMNS[:, 1]),
    "windows": lambda x: jax.vmap(lambda i: jax.lax.dynamic_slice(x, (i, 1), (1, 3)))(
        ONE_IDS[:, 0]
    ).sum((1, 2)),
    "filled": lambda x: x.at[MANY_IDS + 1, COLUMNS].get(mode="fill", fill_value=0.3).sum(1),
    "filled columns": lambda x: x.at[MANY_IDS, COLUMNS + 1].get(mode="fill", fill_value=0.3).sum(1),
    "clipped": lambda x: x.at[MANY_IDS + 1, COLUMNS + 1].get(mode="clip").sum(1),
    "of three axes": lambda x: x[:, None, :][ONE_IDS[:, 0], 0, COLUMNS[:, 0]],
    "transposed": lambda x: x.T[2, ONE_IDS[:, 0]],
}
"""Look-ups of which an index names more, or less, than one row."""


def of_form(form):
    return jax.value_and_grad(lambda x, y: jnp.sum(jnp.tanh(FORMS[form](x) * y)), (0, 1))


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("form", FORMS)
def test_a_look_up_of_any_form_runs_by_rows(form, capacity, monkeypatch):
    """But for the sum: no other equation runs as a whole, also of the gradient."""
    monkeypatch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    sliced = Sliced((of_form(form), (TALL, BESIDE)), capacity)
    assert [each.eqn for each in sliced.plan.sliced.made if each.why_all] == []
    for rows in ([4], [0, 9], [199, 1, 2, 3]):
        assert sliced.change(np.array(rows[:capacity]), 0.4 - 0.1 * len(rows))
        sliced.check(terms=8.0)


def test_a_look_up_of_too_many_rows_is_not_taken_to_steps():
    """Each of which would run on all rows."""
    sliced = Sliced((of_form("several"), (TALL, BESIDE)), 16)
    gather = next(x for x in sliced.plan.sliced.made if x.eqn.primitive.name == "gather")
    assert "too many" in gather.why_all
    assert sum(eqn.primitive.name == "gather" for eqn in sliced.plan.eqns) == 1
