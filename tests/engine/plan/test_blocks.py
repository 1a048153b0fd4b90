"""Values in blocks of rows under the exact policy: the bits of any history, and only blocks with a
row that changed.

The oracles are the function itself, and the same program started from nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check, identical, same
from slice_cases import CASES, NUM, divide_into_blocks

import incrax
from incrax import _jax
from incrax._program import evaluator, trace
from incrax.engine.plan import blocks
from incrax.engine.policy import materialize
from incrax.engine.rewrites import row_reductions
from incrax.primitives.on_rows import NotByRowsError

pytestmark = pytest.mark.optimized

FACTOR = 1024.0
SIZES = (1, 5, 8)
"""Rows of a block: single ones, of 24 all but the last block, all alike."""

BLOCKED = [(name, size) for n, name in enumerate(CASES) for size in (5, SIZES[n % 2 * 2])]
"""Every case with a last block that begins before its place, and with one of the others by turns."""

UNDIVIDED = {
    "look-up by an argument",
    "look-up by bins",
    "look-up of neighbours",
    "ring",
    "ring, gradient",
    "lattice",
    "walk",
    "walk, gradient",
    "every other",
    "fluid",
    "fluid, gradient",
    "graph",
    "sparse graph",
    "sparse graph, gradient",
    "from row to row",
    "from row to row, gradient",
    "forgetting",
    "forgetting, gradient",
    "forgetting, Hessian",
    "smoother",
    "smoother, gradient",
    "recurrent",
    "recurrent, gradient",
    "loop over the rows",
    "pixels",
    "pixels, gradient",
}
"""Cases of which nothing is by rows: rows meet neighbours, are looked up, or are carried on."""


class Job:
    """One function under the exact policy, with arguments of which rows change."""

    def __init__(self, name, **options):
        fun, args, _ = CASES[name] if isinstance(name, str) else name
        self.name = str(name)
        self.ours = incrax.incremental(fun, policy="exact", **options)
        self.anew = incrax.incremental(fun, policy="exact", **options)
        self.plain = jax.jit(fun)
        self.args = jax.tree.map(np.asarray, args)
        self.rng = np.random.default_rng(7)

    @property
    def engine(self):
        return self.ours._traces.latest.engine

    def call(self):
        """A call; how many blocks ran of each value that is computed in blocks of these rows."""
        found = self.ours(*self.args)
        identical(found, self.anew.fresh(*self.args))
        same(found, self.plain(*self.args), factor=FACTOR, terms=30.0, is_zero_signed=False)
        check(self.ours)
        blocked = [plan.blocked for plan in self.engine.last.before]
        return [each.num_run for each in blocked if each is not None and each.length == NUM]

    def change(self, *rows):
        x = self.args[0].copy()
        shift = 3.0 if self.name.startswith("waves") else 0.8 if "processes" in self.name else 0.0
        x[list(rows)] = self.rng.uniform(-0.5, 0.5, x[list(rows)].shape) + shift
        self.args = (x, *self.args[1:])
        return self.call()


@pytest.mark.parametrize(("name", "size"), BLOCKED)
def test_the_bits_are_those_of_a_call_from_nothing(name, size, monkeypatch):
    divide_into_blocks(monkeypatch, size)
    job = Job(name)
    num = -(-NUM // size)
    first = job.call()
    assert bool(first) is (name not in UNDIVIDED)
    assert set(first) <= {num}
    for rows in ((0,), (NUM - 1,), (NUM - 1 - size % 5,), (3, 4), (2, 9, 17), range(NUM)):
        expected = len({row // size for row in rows})
        assert set(job.change(*rows)) <= {expected}


def test_a_block_that_is_not_listed_does_not_run(monkeypatch):
    """The program itself, on values that it would not make. Of 24 rows the last block of five makes
    row 19 as well, and does not write it: that is of the block before.
    """
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups")
    job.call()
    segments = job.engine.segments
    for group in segments.groups.values():
        program = segments.program(group)
        blocked = program.plan.blocked
        old = jnp.full(NUM, 7.0)
        numbers = np.array([4, 1, 0, 0, 0], np.int32)
        given = {blocked.numbers: numbers, blocked.count: np.int32(2)}
        loads = [given.get(var, old) for var in program.loads]
        feeds = [jnp.asarray(x) for x in job.args]
        (found,) = program.executable(feeds, loads)
        (state,) = job.engine.store.states
        expected = np.asarray(state.saved[group[0]])
        ran = np.isin(np.arange(NUM) // 5, [1, 4])
        np.testing.assert_array_equal(found, np.where(ran, expected, 7.0))


def test_what_reaches_all_rows_runs_all_blocks(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups")
    assert job.call() == [5, 5]
    theta, mu, sigma = job.args
    job.args = theta, mu, sigma + 0.1  # the prior does not read it
    assert job.call() == [5]
    job.args = theta, mu + 0.1, sigma + 0.1
    assert job.call() == [5]
    job.args = theta + (np.arange(NUM) == 7), mu, sigma + 0.2
    assert sorted(job.call()) == [1, 5]


def test_rows_of_what_reaches_all_rows_are_not_taken_for_these_rows(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("network")
    assert job.call() == [5]
    x, (first, second) = job.args
    job.args = x, [first + (np.arange(3) == 1)[:, None], second]
    assert job.call() == [5]


def test_what_has_no_rows_is_made_of_values_in_blocks(monkeypatch):
    """Totals that depend on the same inputs as the values per row read these."""
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups, gradient")
    job.call()
    segments = job.engine.segments
    plans = [*map(segments.plan, segments.groups.values()), segments.top_plan()]
    others = [plan for plan in plans if plan.blocked is None]
    assert len(others) > 1
    for plan in others:
        shapes = [var.aval.shape for eqn in plan.eqns for var in eqn.outvars]
        assert (NUM, 7) not in shapes


def test_rows_of_several_inputs_change_together(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("processes, gradient")
    job.call()
    job.args = job.args[0], job.args[1] + 0.01 * (np.arange(NUM) == 22)
    assert job.change(2) == [2]


def test_a_proposal_starts_from_the_version_of_which_the_fewest_blocks_differ(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups, gradient")
    job.call()
    accepted = job.args
    for row in (4, 9, 9, 14, 23):
        job.args = accepted
        assert set(job.change(row)) == {1}


def test_of_versions_with_the_same_changed_inputs_the_nearest_counts(monkeypatch):
    """Where elements are not told apart, the version that was used most comes first."""
    monkeypatch.setattr("incrax.engine.call.analysis.MAX_LEAF_ELEMENTS", 8)
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups, gradient")
    job.call()
    assert set(job.change(*range(12))) == {3}
    assert set(job.change(20)) == {1}


def test_rows_that_were_written_by_updates_are_known_without_comparing(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups")
    job.args = jax.tree.map(jnp.asarray, job.args)
    job.call()
    theta, mu, sigma = job.args
    job.args = incrax.at(theta)[jnp.array([7, 8])].set(0.5), mu, sigma
    assert job.call() == [1, 1]


def test_an_array_of_which_only_the_identity_counts_runs_all_blocks(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    monkeypatch.setattr("incrax.engine.store.comparison.changed_rows", lambda new, old: None)
    job = Job("groups")
    job.call()
    assert job.change(7) == [5, 5]


def test_evicted_values_come_back_with_the_same_bits(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups, gradient")
    for number in range(12):
        ran = job.change(number)
        if number in (2, 6):
            store = job.engine.store
            store.budget_bytes = int(0.6 * store.saved_bytes)
            assert set(ran) == {1}
    assert job.ours.stats.evicted


def test_an_equation_that_does_not_run_on_rows_is_run_as_a_whole(monkeypatch):
    def refuses(*_):
        raise NotByRowsError

    divide_into_blocks(monkeypatch, 5)
    monkeypatch.setattr(blocks, "run_on_rows", refuses)
    job = Job("groups, gradient")
    job.call()
    assert job.change(3) == []


def test_a_report_says_how_many_blocks_ran(monkeypatch):
    divide_into_blocks(monkeypatch, 5)
    job = Job("groups")
    job.call()
    whole = job.ours.explain()
    job.change(7)
    report = job.ours.explain()
    assert report.as_dict()["rows"] == "1 of 5 blocks of 5 of 24 rows"
    assert whole.as_dict()["rows"] == "5 of 5 blocks of 5 of 24 rows"
    assert report.cost_ran.flops < 0.5 * whole.cost_ran.flops
    assert report.cost_avoided.transcendentals > whole.cost_avoided.transcendentals
    x = job.args[0] + (np.arange(NUM) == 3)
    planned = job.ours.explain(x, *job.args[1:])
    assert planned.as_dict()["rows"] == "blocks of 5 of 24 rows"


# --- what is divided ------------------------------------------------------------------------------


Y = np.random.default_rng(3).normal(size=(200, 400))


def row_values(num_rows, num_columns, fun=None, **options):
    """What is computed in blocks of a function of so many rows, at the prices that hold."""
    data = np.resize(Y, (num_rows, num_columns))
    fun = fun or (lambda theta, scale: jnp.sum(jnp.log1p(scale * (data - theta[:, None]) ** 2)))
    ours = incrax.incremental(fun, policy="exact", **options)
    ours(np.linspace(0.0, 1.0, num_rows), 0.5)
    segments = ours._traces.latest.engine.segments
    return [segments.plan(group).blocked for group in segments.groups.values()]


def test_rows_with_enough_work_are_divided():
    (found,) = row_values(200, 4000)
    assert found.length == 200
    assert found.num >= blocks.MIN_BLOCKS
    assert found.by_rows.bit_count() == 200  # all elements of the first input, and no others


def test_what_is_little_work_from_saved_values_is_done_as_a_whole():
    data = np.resize(Y, (200, 4000))

    def total(theta, mu, scale):
        prior = jnp.sum((theta - mu) ** 2)
        return jnp.sum(jnp.log1p(scale * (data - theta[:, None]) ** 2)) + prior

    ours = incrax.incremental(jax.grad(total), policy="exact")
    ours(np.linspace(0.0, 1.0, 200), 0.1, 0.5)
    segments = ours._traces.latest.engine.segments
    plans = [segments.plan(group) for group in segments.groups.values()]
    assert [plan.blocked is not None for plan in plans if plan.saves[0].aval.shape] == [True, False]


@pytest.mark.parametrize(
    ("num_rows", "num_columns"), [(200, 4), (row_reductions.MAX_LENGTH, 200), (4, 200_000)]
)
def test_little_work_few_rows_and_data_are_not(num_rows, num_columns):
    assert not any(row_values(num_rows, num_columns))


def test_what_does_not_fit_the_memory_is_not_divided():
    table = np.resize(Y, (400, 4000))
    kept = lambda theta, scale: jnp.cumsum(jnp.sin(theta[:, None] * scale * table), axis=0)[-1]
    assert any(row_values(400, 1, kept))
    assert not any(row_values(400, 1, kept, memory=10_000_000))


def test_a_change_of_one_row_must_be_worth_it(monkeypatch):
    monkeypatch.setattr(materialize, "MIN_GAIN", 1.0)
    assert not any(row_values(200, 4000))


# --- reductions -----------------------------------------------------------------------------------


AXES = [(0,), (1,), (0, 1), (0, 2), (1, 2), (2, 1, 0), (0, 1, 2)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", sorted(row_reductions.REDUCTIONS))
def test_reductions_in_two_give_what_the_one_gives(kind, axes):
    def reduced(x, y):
        x = jnp.transpose(x * y[:, None, None], (1, 0, 2))  # rows along another axis
        x = x > 0.2 if kind in ("reduce_and", "reduce_or") else x
        return getattr(jax.lax, kind)(x, axes)

    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(9, 3, 4)), rng.normal(size=9)
    program = trace(reduced, x, y)
    found = row_reductions.reduce_rows_last(program)
    names = [eqn.primitive.name for eqn in found.eqns]
    assert names.count(kind) == 1 + (1 in axes and len(axes) > 1)
    args = (jnp.asarray(x), jnp.asarray(y))
    same(evaluator(found)(found.consts, *args), evaluator(program)(program.consts, *args))
    last = found.eqns[-1]
    assert last.outvars == program.eqns[-1].outvars
    if names.count(kind) == 2:
        assert isinstance(last.invars[0], _jax.Var)
        assert last.invars[0].aval.shape[last.params["axes"][0]] == 9
