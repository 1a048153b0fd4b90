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

from incrax._program import trace
from incrax.engine.plan import row_sets, slices
from incrax.engine.plan.row_sets import (
    DirtyRows,
    RowSet,
    RowSets,
    as_argument,
    grouped,
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


def numbers_of(of: RowSet) -> list[int]:
    return np.asarray(of.numbers).tolist()


def of_rows(*numbers: int) -> RowSet:
    return row_set(jnp.asarray(numbers, jnp.int32), len(numbers), LENGTH)


def test_a_row_that_is_cut_off_is_none():
    moved = RowSets().moved(of_rows(1, 3, 9), Run(0, 0, 3, 6), 6)
    assert numbers_of(moved) == [6, 0, 6]
    assert np.asarray(moved.counts).tolist() == [False, True, False]
    assert moved.has_spare


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
    monkeypatch.setattr(slices, "MAX_PARTIAL", 1)
    fun = lambda theta, scale: jnp.sum(jnp.exp(scale * (theta[pairs[0]] + theta[pairs[1]])))
    check(fun, np.random.default_rng(1), 1)


def test_spare_slots_of_a_union_count_not_at_all():
    sets = RowSets()
    union = sets.union([of_rows(3, 3), of_rows(5, 3)])
    assert union is not None
    assert np.asarray(union.counts).tolist() == [True, False, True, False]


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
}
JOINS = {
    "add": jnp.add,
    "product": lambda a, b: jnp.sin(a * b),
    "apart": lambda a, b: jnp.concatenate([a[: NUM // 2], b[: NUM - NUM // 2]]),
}
ENDS = {"sum": jnp.sum, "largest": jnp.max, "all": lambda x: x}


@st.composite
def programs(draw):
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from([*STEPS, *JOINS]), st.integers(0, 9), st.integers(0, 9)),
            min_size=1,
            max_size=6,
        )
    )
    end = draw(st.sampled_from(list(ENDS)))

    def fun(theta, scale):
        values = [theta * scale]
        for name, k, other in steps:
            x = values[-1]
            if name in STEPS:
                values.append(STEPS[name](x, k))
            else:
                values.append(JOINS[name](x, values[other % len(values)]))
        return ENDS[end](values[-1])

    return fun, (steps, end)


@examples(1.0)
@given(programs(), st.integers(0, 10**6), st.sampled_from([1, 4]), st.booleans())
def test_random_moves_give_what_the_function_gives(program, seed, capacity, has_differences):
    fun, _ = program
    limits = {"MAX_TABLE_SHARE": 1.0, "MAX_PARTIAL": 1 if has_differences else 2**17}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(slices, name, value)
        check(fun, np.random.default_rng(seed), capacity)


def check(fun, rng, capacity):
    sliced = Sliced(Case(fun, (rng.normal(size=NUM), 0.9)), capacity)
    for _ in range(4):
        rows = np.sort(rng.choice(NUM, rng.integers(1, capacity + 1), replace=False))
        if sliced.change(rows, rng.normal(size=len(rows))):
            sliced.check(terms=30.0)
        else:
            sliced.prime()
