"""Scans that are resumed. Oracles: the scan itself, and a counter of its steps on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.plan.test_slices import Sliced
from helpers import examples, same
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from slice_cases import CASES, NUM, Case

from incrax import _jax
from incrax._program import trace
from incrax.engine.plan import resumed
from incrax.engine.plan.plan import plan_whole
from incrax.engine.plan.resumed import Spans, resumable, union_of
from incrax.engine.plan.slices import priming_saves
from incrax.engine.program.simplify import inline

RNG = np.random.default_rng(3)


class Loop:
    """A scan over numbers, with what was recorded of it at some."""

    def __init__(self, step, init, xs, *, is_reverse=False):
        fun = lambda init, xs: lax.scan(step, init, xs, reverse=is_reverse)
        self.init = jax.tree.map(jnp.asarray, init)
        self.xs = xs
        program = inline(trace(fun, self.init, xs))
        (self.eqn,) = (eqn for eqn in program.eqns if eqn.primitive.name == "scan")
        self.loop = resumable(self.eqn)
        assert self.loop is not None
        self.program = program
        results, self.records = self.loop.recorded(self.values())
        self.ys = results[self.loop.scan.num_carry :]
        self.check(results)

    def values(self):
        """Of the scan's operands."""
        leaves = [*jax.tree.leaves(self.init), jnp.asarray(self.xs)]
        env = dict(zip(self.program.invars, leaves, strict=True))
        _jax.evaluate(self.program.eqns[: self.program.eqns.index(self.eqn)], env)
        return [_jax.read(atom, env) for atom in self.eqn.invars]

    def check(self, results):
        expected = jax.jit(lambda *values: _jax.apply(self.eqn, values))(*self.values())
        for ours, plain in zip(results, expected, strict=True):
            same(ours, plain, factor=64.0, terms=len(self.xs), is_zero_signed=False)

    def change(self, rows, values):
        """The rows of the results that may be others."""
        xs = self.xs.copy()
        xs[rows] = values
        self.xs = xs
        before = self.ys
        numbers = jnp.asarray(rows, jnp.int32)
        spans = Spans(numbers, numbers + 1)
        results, self.records, ran = self.loop.resumed(self.values(), self.ys, self.records, spans)
        self.ys = results[self.loop.scan.num_carry :]
        self.check(results)
        _, records = self.loop.recorded(self.values())
        jax.tree.map(
            lambda ours, new: same(ours, new, factor=64.0, terms=len(xs)), self.records, records
        )
        inside = {
            n
            for start, stop in zip(*map(np.asarray, ran), strict=True)
            for n in range(max(start, 0), stop)
        }
        for old, new in zip(before, self.ys, strict=True):
            others = [n for n in range(len(xs)) if n not in inside]
            assert np.asarray(old)[others].tobytes() == np.asarray(new)[others].tobytes()
        return inside


@pytest.fixture
def counted(monkeypatch):
    """Makes steps that count themselves; blocks of four."""
    monkeypatch.setattr(resumed, "MAX_STRIDE", 4)
    monkeypatch.setattr(resumed, "BLOCK_S", 1e3)
    seen = []

    def counting(step):
        def counted_step(carry, x):
            x = jax.pure_callback(lambda x: seen.append(1) or x, jax.typeof(x), x)
            return step(carry, x)

        return counted_step

    return counting, seen


FORGETTING = lambda c, x: (x, c)
HALVING = lambda c, x: (0.0625 * c + x, c)


@pytest.mark.parametrize(
    ("rows", "num_steps"),
    [([5], 8), ([0], 4), ([99], 4), ([40, 41, 42], 4), ([8, 60], 8), ([43, 20, 90], 16)],
)
def test_steps_that_read_the_same_do_not_run(counted, rows, num_steps):
    counting, seen = counted
    loop = Loop(counting(FORGETTING), 0.5, RNG.normal(size=100))
    results, records = loop.loop.recorded(loop.values())
    xs = loop.xs.copy()
    xs[rows] += 1.0
    loop.xs = xs
    numbers = jnp.asarray(rows, jnp.int32)
    seen.clear()
    found = loop.loop.resumed(loop.values(), results[1:], records, Spans(numbers, numbers + 1))
    jax.block_until_ready(found)
    num_run = len(seen)
    loop.check(found[0])
    # A block whose last step is dirty changes the carry of the next.
    extra = 4 * len({n // 4 for n in rows if n % 4 == 3 and n < 99})
    assert num_run == 4 * len({n // 4 for n in rows}) + extra
    assert num_run <= num_steps


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("length", [96, 101])
def test_a_loop_is_left_where_its_carry_is_the_same_again(length, is_reverse, monkeypatch):
    monkeypatch.setattr(resumed, "MAX_STRIDE", 4)
    loop = Loop(HALVING, 0.5, RNG.normal(size=length), is_reverse=is_reverse)
    for row in (50, 0, length - 1, 3, length - 2):
        assert len(loop.change([row], 0.7)) <= 28


def test_a_loop_that_does_not_forget_runs_to_its_end(monkeypatch):
    monkeypatch.setattr(resumed, "MAX_STRIDE", 4)
    loop = Loop(lambda c, x: (jnp.mod(5 * c + x, 1024), c), 3, RNG.integers(9, size=96))
    assert loop.change([40], [11]) == set(range(40, 96))


def test_zeros_of_different_sign_are_not_the_same(monkeypatch):
    monkeypatch.setattr(resumed, "MAX_STRIDE", 4)
    held = lambda c, x: (jnp.where(x < 5.0, x, c), 1.0 / c)
    xs = np.full(96, 9.0)
    xs[10] = 0.0
    loop = Loop(held, 1.0, xs)
    loop.change([10], -0.0)
    assert np.asarray(loop.ys[0])[-1] == -np.inf


def test_what_is_not_a_number_is_itself(monkeypatch):
    monkeypatch.setattr(resumed, "MAX_STRIDE", 4)
    xs = RNG.normal(size=96)
    xs[7] = np.nan
    loop = Loop(HALVING, 0.5, xs)
    assert len(loop.change([40], 0.3)) <= 4
    loop.change([7], 0.3)
    assert np.isfinite(np.asarray(loop.ys[0])).all()


STEPS = {
    "forgets": FORGETTING,
    "halves": HALVING,
    "adds": lambda c, x: ((0.1 * c[0] + x, c[1] + c[0] * x - 0.5), c[0]),
    "subtracts": lambda c, x: ((jnp.sin(x), c[1] - c[0], c[2]), x),
    "reads what it adds to": lambda c, x: ((c[0] + x, 0.1 * c[1] + x), c[0] * c[1]),
    "adds twice": lambda c, x: ((c + x) + (c - x), c),
    "adds to another": lambda c, x: ((0.1 * c[1], c[0] + x), None),
    "counts": lambda c, x: ((c[0] + 1, 0.1 * c[1] + x * c[0]), x),
    "returns what it adds to": lambda c, x: (lambda n: (n, n))(c + x),
    "turns": lambda c, x: ((x - c[0], 0.1 * c[1] + x), c[1]),
    "complex": lambda c, x: (0.1j * c + x, jnp.abs(c)),
    "integers": lambda c, x: ((c[0] + jnp.int32(x > 0), jnp.int8(x)), c[1]),
}
STARTS = {
    **dict.fromkeys(STEPS, (0.5, 0.25)),
    "forgets": 0.5,
    "halves": 0.5,
    "subtracts": (0.5, 0.25, 0.125),
    "adds twice": 2.0**-100,
    "returns what it adds to": 0.5,
    "counts": (0, 0.5),
    "complex": 0.5 + 0.0j,
    "integers": (0, np.int8(1)),
}


def test_another_start_is_noticed(monkeypatch):
    monkeypatch.setattr(resumed, "MAX_STRIDE", 4)
    loop = Loop(HALVING, 0.5, RNG.normal(size=96))
    loop.init = jnp.asarray(7.0)
    assert len(loop.change([60], 0.3)) <= 60
    loop.change([2], 0.3)


def test_carries_that_are_only_added_to_are_found():
    is_sum = lambda name: Loop(STEPS[name], STARTS[name], np.ones(16)).loop.is_sum
    assert is_sum("adds") == (False, True)
    assert is_sum("subtracts") == (False, True)
    assert is_sum("reads what it adds to") == (False, False)
    assert is_sum("adds twice") == (False,)
    assert is_sum("adds to another") == (False, False)
    assert is_sum("counts") == (False, False)
    assert is_sum("returns what it adds to") == (False,)
    assert is_sum("turns") == (False, False)
    assert is_sum("integers") == (True, False)


@pytest.mark.parametrize(
    ("name", "remembers"),
    [
        ("halves", False),
        ("adds", False),
        ("reads what it adds to", True),
        ("counts", False),
    ],
)
def test_what_is_remembered_for_ever_is_known(name, remembers):
    loop = Loop(STEPS[name], STARTS[name], np.ones(16)).loop
    assert loop.remembers([len(loop.eqn.invars) - 1]) == remembers


def test_too_large_sums_are_not_kept_per_block(monkeypatch):
    monkeypatch.setattr(resumed, "MAX_SUMS", 4)
    assert Loop(STEPS["adds"], STARTS["adds"], np.ones(64)).loop.is_sum == (False, False)


def test_many_spans_are_one():
    starts = jnp.arange(100, dtype=jnp.int32)[::-1] * 5 + 7
    few = Spans(starts[:3], starts[:3] + 1)
    assert union_of([few, few]).starts.size == 3
    many = union_of([Spans(starts, starts + 2), Spans(starts, starts - 2)])
    assert (many.starts.tolist(), many.stops.tolist()) == ([7], [504])


# --- whole functions ------------------------------------------------------------------------------

RESUMED = {
    "from row to row": 1,
    "forgetting": 1,
    "forgetting, gradient": 2,
    "smoother": 3,
    "smoother, gradient": 6,
    "recurrent": 1,
    "recurrent, gradient": 2,
    "hidden states": 1,
    "read inside": 0,
    "loop over the rows": 0,
}


@pytest.mark.parametrize("name", RESUMED)
def test_loops_from_row_to_row_are_resumed(name):
    assert len(Sliced(name, 1).plan.sliced.resumed) == RESUMED[name]


@pytest.mark.parametrize("name", ["forgetting", "forgetting, gradient", "smoother, gradient"])
def test_records_are_made_by_the_loop_itself(name):
    sliced = Sliced(name, 1)
    num_scans = lambda eqns: sum(eqn.primitive.name == "scan" for eqn in eqns)
    priming = plan_whole(sliced.facts, dict.fromkeys(priming_saves(sliced.facts, sliced.plan)))
    assert num_scans(priming.eqns) == num_scans(sliced.facts.eqns)


@pytest.mark.parametrize("stride", [1, 3, 5])
@pytest.mark.parametrize("name", [name for name, number in RESUMED.items() if number])
def test_blocks_of_any_length(name, stride, monkeypatch):
    monkeypatch.setattr(resumed, "MAX_STRIDE", stride)
    monkeypatch.setattr(resumed, "MIN_STEPS", 4)
    sliced = Sliced(name, 4)
    rng = np.random.default_rng(stride)
    for rows in ([NUM - 1], [0], [3, 4, 11], [0, 12, 22, 23], [20, 22], [7]):
        assert sliced.change(
            np.array(rows), rng.normal(size=(len(rows), *sliced.leaves[0].shape[1:]))
        )
        sliced.check(terms=30.0)


def test_the_scan_back_of_a_gradient_reads_what_the_scan_there_changed():
    """Many steps, of which few run: the others are those of the baseline."""
    fun = CASES["forgetting, gradient"].fun
    sliced = Sliced(Case(fun, (RNG.normal(size=2_000), 0.5)), 4)
    for rows in ([1_000], [5, 1_990], [0, 700, 701, 1_999]):
        assert sliced.change(np.array(rows), RNG.normal(size=len(rows)))
        sliced.check(terms=2_000.0)


@examples(1.0)
@given(
    st.sampled_from(sorted(STEPS)),
    st.integers(16, 40),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_any_changes_of_any_loop(name, length, stride, is_reverse, changes, seed):
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumed, "MAX_STRIDE", stride)
        start = STARTS[name]
        loop = Loop(STEPS[name], start, rng.normal(size=length), is_reverse=is_reverse)
        for rows in changes:
            rows = sorted({row % length for row in rows})
            loop.change(rows, rng.normal(size=len(rows)))
            if rng.random() < 0.3 and name != "integers":
                loop.init = jax.tree.map(lambda x: x * 2, loop.init)
                loop.change(rows[:1], 0.25)
