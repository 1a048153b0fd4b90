"""Rows that are moved, and sets of rows that meet. Oracles: NumPy on the numbers of the rows, and
the function itself for random programs of moves.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from engine.plan.test_slices import Sliced
from helpers import examples
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from slice_cases import Case

from incrax import _jax
from incrax._program import trace
from incrax.engine.plan import environment, met_rows, row_sets
from incrax.engine.plan.moved_rows import Windowed
from incrax.engine.plan.row_sets import (
    DirtyRows,
    RowSet,
    RowSets,
    as_argument,
    blocks,
    grouped,
    ids_read,
    listed_members,
    overlaid,
    row_set,
    with_rows,
)
from incrax.engine.program.simplify import inline
from incrax.primitives.entry import Run, shape_of
from incrax.primitives.table import entry_of

LENGTH = 12
X = np.arange(1.0, 1.0 + 2 * LENGTH).reshape(LENGTH, 2)

MOVES = {
    "slice": lambda x: x[3:9],
    "strided slice": lambda x: x[1:11:3],
    "reversed": lambda x: x[::-1],
    "joined": lambda x: jnp.concatenate([x[:2], x, x[5:]]),
    "rolled": lambda x: jnp.roll(x, 5, axis=0),
    "padded": lambda x: lax.pad(x, -1.0, ((2, 3, 0), (0, 0, 0))),
    "cut": lambda x: lax.pad(x, -1.0, ((-2, -3, 0), (0, 0, 0))),
    "gaps": lambda x: lax.pad(x, -1.0, ((1, 0, 2), (0, 0, 0))),
    "gaps, cut": lambda x: lax.pad(x, -1.0, ((-4, -5, 2), (0, 0, 0))),
    "split": lambda x: lax.split(x, (5, 7)),
}


@pytest.mark.parametrize("name", MOVES)
def test_runs_say_where_rows_go(name):
    eqns = inline(trace(MOVES[name], X)).eqns
    count = 0
    for eqn in eqns:
        runs_of = entry_of(eqn).runs
        if runs_of is None:
            continue
        operands = [X * (1 + 10 * n) for n, _ in enumerate(eqn.invars)]
        operands = [
            x[: shape_of(a)[0]] if shape_of(a) else -1.0
            for x, a in zip(operands, eqn.invars, strict=False)
        ]
        results = eqn.primitive.bind(*operands, **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
        for value, runs in zip(results, runs_of(eqn, 0), strict=True):
            expected = np.full(value.shape, -1.0)
            for operand, out, first, number, out_step, step in runs:
                for i in range(number):
                    expected[out + i * out_step] = operands[operand][first + i * step]
                    count += 1
            np.testing.assert_array_equal(value, expected)
    assert count


_NUMPY = dict(zip(["spread", "dilation", "count"], np.array([3, 2, 21]), strict=True))
WINDOW_CASES = {
    "convolution": (lambda x: _convolved(x, 2, 3, 4, count=14), 30),
    "with gaps in the kernel": (lambda x: _convolved(x, 1, 1, 3, dilation=4, count=22), 30),
    "with gaps in the rows": (lambda x: _convolved(x, 1, 2, 4, spread=3, count=40), 15),
    "with both, and steps": (lambda x: _convolved(x, 2, 0, 3, spread=3, dilation=2, count=21), 15),
    "cut": (lambda x: _convolved(x, 1, -2, 3, count=24), 30),
    "with widths of NumPy": (lambda x: _convolved(x, *np.array([2, 2, 3]), **_NUMPY), 15),
    "pooling, padding of NumPy": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (4,), (3,), (tuple(np.array([1, 2])),)),
        30,
    ),
    "pooling": (lambda x: lax.reduce_window(x, 0.0, lax.add, (4,), (3,), ((1, 2),)), 30),
    "pooling that leaves rows out": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (5,), "VALID"),
        28,
    ),
    "divided": (lambda x: x.reshape(1, 6, 5), 30),
    "merged": (lambda x: x.reshape(-1), (15, 2, 3)),
    "regrouped": (lambda x: x.reshape(10, 1, 3), (6, 5)),
    "regrouped, longer": (lambda x: x.reshape(3, 2, 12), (6, 12)),
}


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", WINDOW_CASES)
def test_windows_say_which_rows_read_which(name, size):
    """Every row that changes is named, and is made of the rows that it is said to read; so it is of
    blocks of these, wherever they are, and of intervals.
    """
    fun, shape = WINDOW_CASES[name]
    x = np.random.default_rng(3).normal(size=shape)
    eqn, operands = _last_with_a_window(fun, x)
    whole = np.asarray(_jax.apply(eqn, operands)[0])
    window = entry_of(eqn).windows(eqn)[0]
    num_rows, length = operands[0].shape[window.source], whole.shape[window.out]
    for first in range(num_rows - size + 1):
        other = np.array(operands[0])
        index = [slice(None)] * other.ndim
        index[window.source] = slice(first, first + size)
        other[tuple(index)] += 1.0
        found = np.asarray(_jax.apply(eqn, [other, *operands[1:]])[0])
        others = tuple(d for d in range(whole.ndim) if d != window.out)
        changed = {*np.flatnonzero((found != whole).any(others)).tolist()}
        sets = RowSets()
        numbers = np.arange(first, first + size)
        for of in (
            row_set(jnp.asarray(numbers, jnp.int32), num_rows),
            blocks(jnp.asarray(numbers[:1], jnp.int32), size, num_rows),
            sets.interval(first, first + size, num_rows),
        ):
            read_by = sets.reading(of, window, length)
            assert changed <= {*numbers_of(read_by)}
            if not read_by.size:
                continue
            source = sets.read(read_by, window, num_rows)
            value = jnp.take(other, source.numbers, window.source)
            made = Windowed(window, read_by, source).made(value, operands[1:])
            expected = np.take(found, numbers_of(read_by), window.out)
            np.testing.assert_allclose(np.asarray(made), expected, rtol=1e-12)


def _last_with_a_window(fun, x):
    """Of a function's equations, and the values of its operands."""
    program = inline(trace(fun, x))
    env = dict(zip(program.invars, [jnp.asarray(x)], strict=True))
    env.update(zip(program.constvars, program.consts, strict=True))
    _jax.evaluate(program.eqns, env)
    eqn = [eqn for eqn in program.eqns if entry_of(eqn).windows][-1]
    return eqn, [np.asarray(_jax.read(atom, env)) for atom in eqn.invars]


def test_blocks_count_each_row_once_and_stay_on_the_axis():
    of = blocks(jnp.asarray([-3, 1, 9], jnp.int32), 4, 10)
    assert numbers_of(of) == [0, 1, 2, 3, 1, 2, 3, 4, 6, 7, 8, 9]
    assert np.asarray(of.numbers)[np.asarray(of.counts)].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_rows_that_are_merged_and_divided_again_are_those_rows():
    sets = RowSets()
    x = np.zeros((LENGTH, 5))
    merge, divide = (
        entry_of(eqn).windows(eqn)[0]
        for eqn in inline(trace(lambda x: x.reshape(-1).reshape(LENGTH, 5), x)).eqns
    )
    of = of_rows(3, 7)
    merged = sets.reading(of, merge, 5 * LENGTH)
    assert numbers_of(merged) == [*range(15, 20), *range(35, 40)]
    assert sets.reading(merged, divide, LENGTH) is of
    assert sets.read(merged, merge, LENGTH) is of


def test_intervals_of_other_lengths_are_none_together():
    sets = RowSets()
    assert sets.union([sets.interval(3, 5, 9), sets.interval(7, 8, 9)]) is sets.interval(3, 8, 9)
    assert sets.union([sets.interval(3, 5, 9), sets.interval(3, 5, 10)]) is None
    assert sets.union([sets.interval(3, 5, LENGTH), of_rows(3)]) is None


def numbers_of(of: RowSet) -> list[int]:
    return np.asarray(of.numbers).tolist()


def of_rows(*numbers: int) -> RowSet:
    return row_set(jnp.asarray(numbers, jnp.int32), LENGTH)


def test_no_rows_are_taken_of_a_set_without_any():
    nothing = RowSet(jnp.zeros(0, np.int32), 3, None)
    assert row_sets.taken(jnp.zeros((3, 2)), 0, nothing).shape == (0, 2)


def test_a_row_that_is_cut_off_is_none():
    moved = RowSets().moved(of_rows(1, 3, 9), Run(0, 0, 3, 6), 6)
    assert numbers_of(moved) == [6, 0, 6]
    assert np.asarray(moved.counts).tolist() == [False, True, False]
    assert moved.has_spare


def test_numbers_stay_of_32_bits_whatever_says_where_they_go():
    """`jnp.pad` gives the widths of NumPy."""
    moved = RowSets().moved(of_rows(1, 3), Run(0, np.int64(2), 0, LENGTH), 14)
    assert moved.numbers.dtype == np.int32
    assert numbers_of(moved) == [3, 5]


def test_the_same_move_is_the_same_set():
    sets = RowSets()
    of = of_rows(1, 3)
    assert sets.moved(of, Run(0, 0, 3, 6), 6) is sets.moved(of, Run(1, 0, 3, 6), 6)
    assert sets.moved(of, Run(0, 0, 3, 6), 6) is not sets.moved(of, Run(0, 0, 2, 6), 6)
    assert sets.union([of, of]) is of


def test_a_roll_has_as_many_slots_as_what_is_rolled():
    sets = RowSets()
    of = of_rows(1, 11, 5)
    images = [
        sets.moved(sets.moved(of, Run(0, 0, first, count), count), Run(0, out, 0, count), LENGTH)
        for out, first, count in ((0, 9, 3), (3, 0, 9))
    ]
    rolled = sets.side_by_side(images)
    assert rolled.size == 3
    assert numbers_of(rolled) == [4, 2, 8]
    assert not rolled.has_spare


def test_a_row_that_goes_to_two_places_has_two_slots():
    sets = RowSets()
    of = of_rows(1, 5)
    images = [sets.moved(of, Run(n, start, 0, 6), LENGTH) for n, start in enumerate((0, 6))]
    doubled = sets.side_by_side(images)
    assert doubled.size == 4
    assert numbers_of(doubled) == [1, 5, 7, 11]


def test_sets_of_different_rows_are_put_side_by_side():
    sets = RowSets()
    doubled = sets.side_by_side([of_rows(1, 5), of_rows(7, 3)])
    assert numbers_of(doubled) == [1, 5, 7, 3]


def test_a_union_counts_each_row_once_and_knows_its_parts():
    sets = RowSets()
    left, right = of_rows(4, 2), of_rows(2, 7)
    union = sets.union([left, right])
    assert union is not None
    assert sorted(np.asarray(union.numbers)[np.asarray(union.counts)].tolist()) == [2, 4, 7]
    assert sets.union([union, left]) is union
    assert sets.union([right, left, union]) is union


def test_sets_that_are_known_to_be_apart_are_not_compared():
    many = [of_rows(*range(LENGTH)) for _ in range(50)]
    union = RowSets().union(many, lambda a, b: True)
    assert union is not None
    assert union.size == 50 * LENGTH
    assert np.asarray(union.counts).all()


@pytest.mark.parametrize("own", [0, 5])
def test_a_pair_of_one_row_and_itself_counts_once(own, monkeypatch):
    first, second = np.triu_indices(NUM, 1)
    pairs = np.append(first, np.arange(own)), np.append(second, np.arange(own))
    monkeypatch.setattr(met_rows, "MAX_PARTIAL", 1)
    fun = lambda theta, scale: jnp.sum(jnp.exp(scale * (theta[pairs[0]] + theta[pairs[1]])))
    check(fun, np.random.default_rng(1), 1)


def test_spare_slots_of_a_union_count_not_at_all():
    sets = RowSets()
    union = sets.union([of_rows(3, 3), of_rows(5, 3)])
    assert union is not None
    assert np.asarray(union.counts).tolist() == [True, False, True, False]


def test_halves_that_meet_are_one_set_of_as_many_slots():
    sets = RowSets()
    of = of_rows(4, 7, 5)
    halves = [sets.moved(of, Run(0, 0, first, 6, step=2), 6) for first in (0, 1)]
    merged = sets.union(halves)
    assert merged is not None
    assert numbers_of(merged) == [2, 3, 2]
    assert np.asarray(merged.counts).tolist() == [True, True, False]
    assert not merged.has_spare
    assert sets.union([merged, halves[0]]) is merged
    second = sets.moved(of, Run(0, 0, 2, 5, step=2), 6)
    both = sets.union([halves[0], second])
    assert both is not None
    assert numbers_of(both) == [2, 6, 6, 1, 6, 6]


def test_rows_that_several_slots_name_count_once():
    of, same = grouped(jnp.asarray([3, 12, 3, 0], jnp.int32), LENGTH)
    assert np.asarray(of.counts).tolist() == [True, False, False, True]
    assert np.asarray(same)[0].tolist() == [True, False, True, False]


def test_too_many_rows_are_no_set():
    sets = RowSets()
    many = [of_rows(*range(LENGTH)) for _ in range(50)]
    assert sets.union(many) is None


# --- what sets are for each argument --------------------------------------------------------------


def listed(sets, argument):
    """Sets that are made of one row, by moves, look-ups and where they meet."""
    ids = np.array([3, 11, 3, 0, 5, 3, 7, 11])
    moved = sets.moved(argument, Run(0, 8, 10, 5, step=-2), 13)
    members = sets.from_list(listed_members(argument, ids), len(ids))
    again = sets.from_list(listed_members(members, np.array([2, 2, 8, 5, 1])), 5)
    rolled = [
        sets.moved(sets.moved(argument, Run(0, 0, first, num), num), Run(0, out, 0, num), LENGTH)
        for out, first, num in ((0, 9, 3), (3, 0, 9))
    ]
    back = sets.moved(members, Run(0, 0, 7, 8, step=-1), 8)
    return {
        "moved": moved,
        "members": members,
        "members of members": again,
        "moved members": back,
        "slot by slot": sets.side_by_side(rolled),
        "side by side": sets.side_by_side([members, back]),
        "met": sets.union([members, back]),
    }


def test_a_list_says_what_the_set_is_for_each_argument():
    for number in range(LENGTH):
        argument = as_argument(of_rows(number))
        for name, of in listed(RowSets(), argument).items():
            assert of.listed.argument.numbers is argument.numbers
            assert of.listed.numbers[number].tolist() == numbers_of(of), name
            rows = np.asarray(of.numbers)[np.asarray(of.counts)]
            assert np.all(rows < of.length)
            assert rows.size == len(set(rows.tolist())) or name == "side by side"


def test_rows_that_read_rows_that_read_a_row():
    members = listed(RowSets(), as_argument(of_rows(3)))
    assert numbers_of(members["members"]) == [0, 2, 5]
    assert numbers_of(members["members of members"]) == [0, 1, 3]
    assert numbers_of(members["met"]) == [0, 2, 5, 7]


def test_where_listed_sets_meet_each_row_has_one_slot_whatever_the_argument():
    """The two children of a node are two look-ups; one of them alone is above the argument."""
    sets = RowSets()
    argument = as_argument(of_rows(3))
    left, right = (
        sets.from_list(listed_members(argument, np.arange(start, LENGTH, 2)), LENGTH // 2)
        for start in (0, 1)
    )
    parents = sets.union([left, right])
    assert parents.size == 1
    assert numbers_of(parents) == [1]
    assert sets.union([parents, left]) is parents
    assert sets.union([right, left]) is parents


def test_of_several_rows_nothing_is_listed():
    assert as_argument(of_rows(3, 4)).listed is None
    assert listed_members(of_rows(3, 4), np.array([1, 2])) is None


def test_lists_that_are_too_long_are_not_made(monkeypatch):
    monkeypatch.setattr(row_sets, "MAX_LISTED", 2 * LENGTH)
    argument = as_argument(of_rows(3))
    assert listed_members(argument, np.array([1, 1, 2])) is not None
    assert listed_members(argument, np.array([1, 1, 1])) is None


# --- rows of values -------------------------------------------------------------------------------


def test_nothing_is_written_where_there_is_no_row():
    moved = RowSets().moved(of_rows(1, 3), Run(0, 0, 3, 6), 6)
    written = with_rows(jnp.zeros(6), DirtyRows(jnp.array([7.0, 8.0]), None, 0, moved))
    assert written.tolist() == [8.0, 0, 0, 0, 0, 0]


def test_dirty_rows_lie_over_those_of_the_baseline():
    rows = DirtyRows(jnp.array([70.0, 80.0]), None, 0, of_rows(4, 2))
    found = overlaid(jnp.array([1.0, 2.0, 3.0]), 0, of_rows(2, 9, 4), rows)
    assert found.tolist() == [80.0, 2.0, 70.0]


# --- random programs ------------------------------------------------------------------------------

NUM = 30
IDS = [np.random.default_rng(k).integers(NUM, size=NUM) for k in range(10)]
STEPS = {
    "roll": lambda x, k: jnp.roll(x, k),
    "rev": lambda x, _: x[::-1],
    "slice": lambda x, k: jnp.pad(x[k % 7 : NUM - 3], (k % 7, 3), constant_values=0.5),
    "strided": lambda x, k: jnp.repeat(x[k % 3 :: 3], 3)[: NUM // 2].sum() * 0 + jnp.tanh(x),
    "gaps": lambda x, k: lax.pad(x[: NUM // 2], 0.1, ((k % 2, 1 - k % 2, 1),))[:NUM],
    "swap": lambda x, k: jnp.concatenate([x[9 + k % 4 :], x[: 9 + k % 4]]),
    "look-up": lambda x, k: x[IDS[k]],
    "halves": lambda x, k: jnp.sin(jnp.repeat(x[::2] * (k + x[1::2]), 2)),
    "thirds": lambda x, k: jnp.repeat(x[2::3] + jnp.cos(k * x[::3]) * x[1::3], 3),
}
WINDOWS = {
    "smear": lambda x, k: jnp.convolve(x, 0.2 + jnp.arange(1.0 + k % 4), mode="same") / (1 + k),
    "spread": lambda x, k: _convolved(x[::2], 1, k % 4, 2 + k % 3, spread=2),
    "skip": lambda x, k: jnp.repeat(_convolved(x, 2, k % 3, 3, dilation=1 + k % 2), 2),
    "peaks": lambda x, k: _pooled(x, 1 + k % 4, 1 + k % 3),
    "lines": lambda x, k: jnp.sin(x.reshape(-1, _SIDES[k % 4])).reshape(NUM),
    "columns": lambda x, k: x.reshape(-1, _SIDES[k % 4])[:, ::-1].reshape(NUM),
    "regrouped": lambda x, k: (
        (x.reshape(_SIDES[k % 4], -1) ** 2)[: 1 + k % 2].reshape(-1).sum() * 0.01
        + jnp.tanh(x.reshape(_SIDES[k % 4], -1) + jnp.zeros((5, 1, 1))).reshape(-1, 6)[5:10].ravel()
    ),
    "twice": lambda x, k: jnp.repeat(x, 2)[k : k + NUM],
}
_SIDES = (2, 3, 5, 6)


def _convolved(x, stride, low, taps, *, spread=1, dilation=1, count=None):
    """With as much padding at the end that there are so many rows, or as many as before; half of them
    by a stride of 2.
    """
    count = count or NUM // stride
    reach = (count - 1) * stride + (taps - 1) * dilation + 1
    high = reach - low - (len(x) - 1) * spread - 1
    kernel = jnp.linspace(0.1, 0.6, taps)
    options = {"lhs_dilation": (spread,), "rhs_dilation": (dilation,)}
    return lax.conv_general_dilated(
        x[None, None], kernel[None, None], (stride,), [(low, high)], **options
    )[0, 0]


def _pooled(x, taps, dilation):
    reach = (taps - 1) * dilation
    options = {"window_dilation": (dilation,), "padding": ((reach, 0),)}
    return lax.reduce_window(x, -jnp.inf, lax.max, (taps,), (1,), **options)


STEPS |= WINDOWS
JOINS = {
    "add": jnp.add,
    "product": lambda a, b: jnp.sin(a * b),
    "apart": lambda a, b: jnp.concatenate([a[: NUM // 2], b[: NUM - NUM // 2]]),
}
ENDS = {"sum": jnp.sum, "largest": jnp.max, "all": lambda x: x}


@st.composite
def programs(draw, others=()):
    unary = STEPS | dict(others)
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from([*unary, *JOINS]), st.integers(0, 9), st.integers(0, 9)),
            min_size=1,
            max_size=6,
        )
    )
    end = draw(st.sampled_from(list(ENDS)))

    def fun(theta, scale):
        values = [theta * scale]
        for name, k, other in steps:
            x = values[-1]
            if name in unary:
                values.append(unary[name](x, k))
            else:
                values.append(JOINS[name](x, values[other % len(values)]))
        return ENDS[end](values[-1])

    return fun, (steps, end)


@examples(1.0)
@given(programs(), st.integers(0, 10**6), st.sampled_from([1, 4]), st.booleans())
def test_random_moves_give_what_the_function_gives(program, seed, capacity, has_differences):
    fun, _ = program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
        patch.setattr(met_rows, "MAX_PARTIAL", 1 if has_differences else 2**17)
        check(fun, np.random.default_rng(seed), capacity)


RUNNING = {
    "sum": lambda x, k: jnp.cumsum(x[::-1] if k % 3 else x) * 0.2,
    "product": lambda x, k: lax.cumprod(1.0 + 0.1 * jnp.tanh(x), reverse=bool(k % 2)),
    "extremes": lambda x, k: (lax.cummax if k % 2 else lax.cummin)(x),
    "exponentials": lambda x, _: lax.cumlogsumexp(x) - 2.0,
    "recurrence": lambda x, k: lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (jnp.full(NUM, 0.1 * k), x), reverse=k > 7
    )[1],
}


@examples(1.0)
@given(programs(RUNNING), st.integers(0, 10**6), st.sampled_from([1, 5, 9, -1, -9]))
def test_random_programs_on_a_part_of_the_axis(program, seed, within):
    fun, _ = program
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
        check(fun, np.random.default_rng(seed), 1, within)


def check(fun, rng, capacity, within=0):
    sliced = Sliced(Case(fun, (rng.normal(size=NUM), 0.9)), capacity, within)
    for _ in range(4):
        many = abs(within) or NUM
        rows = np.sort(rng.choice(many, rng.integers(1, min(capacity, many) + 1), replace=False))
        rows += NUM - within if within > 0 else 0
        if sliced.change(rows, rng.normal(size=len(rows))):
            sliced.check(terms=30.0)
        else:
            sliced.prime()


@pytest.mark.parametrize("ends", [(5, -2000), (-2000, 5)])
def test_a_pad_that_cuts_all_rows_off_puts_none_anywhere(ends):
    """Beside rows of the same set, and where it meets others."""

    def fun(x, scale):
        none = lax.pad(x * scale, 1.0, [(*ends, 0)])
        beside = [none, x[1:]] if ends[0] > 0 else [x[:-1], none]
        return jnp.concatenate(beside), jnp.roll(none, 1) * x[:5]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
        patch.setattr(environment, "ANEW_S", -1.0)
        sliced = Sliced(Case(fun, (np.linspace(0.1, 1.0, 2000), 0.9)), 4)
        for row in (0, 1999, 7):
            assert sliced.change(np.array([row]), 3.0)
            sliced.check()


def test_the_same_indices_read_other_rows_where_they_are_clipped():
    ids = jnp.asarray([[0], [NUM - 1], [NUM + 3], [4]])

    def fun(theta, scale):
        dimensions = lax.GatherDimensionNumbers((), (0,), (0,))
        read = lambda mode: lax.gather(theta, ids, dimensions, (1,), mode=mode)
        return jnp.nansum(jnp.exp(scale * read("fill"))), jnp.sum(jnp.sin(scale * read("clip")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
        sliced = Sliced(Case(fun, (np.linspace(0.1, 1.0, NUM), 0.9)), 1, 0)
        for value in (3.0, -2.0, 0.7):
            if sliced.change(np.array([NUM - 1]), np.array([value])):
                sliced.check(terms=30.0)
            else:
                sliced.prime()


WIDE = {
    np.int8: [-1, 127],
    np.uint8: [200],
    np.int64: [2**32 + 3, -(2**32)],
    np.uint32: [2**32 - 1],
}


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_indices_of_every_type_read_the_row_that_they_name(xp, dtype):
    """Not the one that is left when they are cut to 32 bits."""
    ids = [0, 3, *WIDE[dtype]]
    named = lambda ids: [n if 0 <= n < 150 else 150 for n in ids]
    read = lambda **options: ids_read(xp, xp.asarray(ids, dtype), 150, **options).tolist()
    assert read(clips=False) == named(ids)
    assert read(clips=True) == np.clip(ids, 0, 149).tolist()
    assert read(clips=False, wraps=True) == named([n + 150 if n < 0 else n for n in ids])
