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
from slice_cases import CASES, EARLY, LATE, MANY, NUM

import incrax
from incrax import _jax
from incrax._program import written_vars
from incrax.engine.plan import slices
from incrax.engine.plan.plan import plan_whole
from incrax.engine.plan.row_share import rough_share
from incrax.engine.plan.slices import priming_saves, slice_plan, value_at

FACTOR = 512.0
"""Ulp of a row's size: differences are added up over some calls."""


@pytest.fixture(params=["values per row", "differences"])
def kept(request, monkeypatch):
    """What is kept of sums over the rows."""
    if request.param == "differences":
        monkeypatch.setattr(slices, "MAX_PARTIAL", 1)
        monkeypatch.setattr(slices, "MIN_PRODUCT_S", 0.0)
    monkeypatch.setattr(slices, "MAX_TABLE_SHARE", 1.0)
    return request.param


class Sliced:
    """A plan, compiled by `jax.jit`, and the values that it has left behind."""

    def __init__(self, case, capacity, within=0):
        self.fun, args, _ = CASES[case] if isinstance(case, str) else case
        ours = incrax.incremental(self.fun)
        ours(*args)
        self.facts = ours._traces.latest.engine.facts
        self.treedef = jax.tree.structure(args)
        self.leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)]
        value_of = value_at(self.facts, self.leaves)
        self.plan = slice_plan(self.facts, (0,), capacity, value_of, within=within)
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
            source, make = self.facts.derived.on_host[var]
            self.saved[var] = jnp.asarray(make(value_of(source)))

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
    [(1, "values per row"), (4, "differences"), (16, "values per row")],
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


@pytest.mark.parametrize("name", ["peaks, gradient", "deblurred, gradient", "pooled"])
def test_windows_of_rows_side_by_side_and_at_the_ends(name, monkeypatch):
    """Of which some rows are read twice, and others by nothing."""
    monkeypatch.setattr(slices, "MAX_TABLE_SHARE", 1.0)
    sliced = Sliced(name, 4)
    for rows in ([3, 4, 5, 20], [0, 1, 22, 23], [11, 12]):
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
    monkeypatch.setattr(slices, "MAX_TABLE_SHARE", 1.0)
    monkeypatch.setattr(slices, "MAX_INTERVAL_SHARE", 0.8)
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
    monkeypatch.setattr(slices, "MAX_TABLE_SHARE", 1.0)
    monkeypatch.setattr(slices, "MIN_PRODUCT_S", 0.0)
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
    shares = [rough_share(facts, (0,), sign * within) for within in (1, 6)]
    if (LATE | EARLY)[name].is_by_rows and "gradient" not in name:
        assert shares[0] > shares[1] > rough_share(facts, (0,)) + 0.3
        assert shares[0] > 0.85
        assert rough_share(facts, (0,), -6 * sign) < 0.4


def test_a_tree_of_halves_is_by_rows_for_some_levels():
    """On the way to its root; then there are too many of too few."""
    total = lambda x, _: jax.lax.associative_scan(jnp.multiply, x)[-1]
    sliced = Sliced((total, (np.linspace(0.999, 1.001, 16384), 0.5), False), 1)
    assert 0 < len(sliced.plan.sliced.widened) < 12
    assert len(sliced.plan.eqns) < 1000
    for row in (0, 16383, 100):
        sliced.change(np.array([row]), 1.05)
        sliced.check()


def test_spare_slots_count_once(kept):
    one, four = Sliced("groups", 1), Sliced("groups", 4)
    for sliced in (one, four):
        sliced.change(np.array([3]), 0.7)
    same(four.outputs, one.outputs, factor=8.0)


def test_a_difference_that_loses_too_much_must_not_be_used(monkeypatch):
    monkeypatch.setattr(slices, "MAX_PARTIAL", 1)
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


def test_a_look_up_of_most_rows_is_not_divided():
    facts = Sliced("look-up", 1).facts
    plan = slice_plan(facts, (0,), 4, value_at(facts, CASES["look-up"].args))
    assert not plan.sliced.tables
