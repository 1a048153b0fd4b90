"""Arrays that remember which rows were written: the rows are those that may differ, never fewer."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, examples, num_functions, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.inputs import leaves, row_updates
from incrax.engine.inputs.row_updates import MAX_STEPS, rows_between

NUM = 12
X = jnp.arange(NUM * 3.0).reshape(NUM, 3)
TINY = jnp.asarray(np.full((NUM, 3), 1e-42, np.float32))

INDICES = st.one_of(
    st.integers(-NUM - 2, NUM + 1),
    st.lists(st.integers(-NUM, NUM - 1), min_size=1, max_size=4).map(np.array),
    st.slices(NUM),
    st.tuples(st.integers(0, NUM - 1), st.integers(0, 2)),
    st.lists(st.booleans(), min_size=NUM, max_size=NUM).map(np.array),
    st.just(Ellipsis),
    st.just((None, 0)),
)
METHODS = st.sampled_from(["set", "add", "multiply"])


@given(
    st.lists(st.tuples(st.integers(0, 40), INDICES, METHODS), min_size=1, max_size=14),
    st.sampled_from([X, TINY]),
)
@examples(2)
def test_rows_that_are_not_named_have_the_same_bits(updates, start):
    family = [start]
    for number, index, method in updates:
        x = family[number % len(family)]
        new = getattr(incrax.at(x)[index], method)(2.5)
        same(new, getattr(x.at[index], method)(2.5))
        family.append(new)
    for a in family:
        for b in family:
            numbers = rows_between(a, b)
            if numbers is not None and a is not b:
                others = np.setdiff1d(np.arange(NUM), numbers)
                assert np.asarray(a)[others].tobytes() == np.asarray(b)[others].tobytes()


def test_the_rows_of_a_family_are_known():
    first = incrax.at(X)[3].set(1.0)
    second = incrax.at(first)[-2, 1].add(1.0)
    other = incrax.at(X)[jnp.array([0, 5, 0])].multiply(2.0)
    assert rows_between(first, X).tolist() == rows_between(X, first).tolist() == [3]
    assert rows_between(second, X).tolist() == [3, 10]
    assert rows_between(second, other).tolist() == [0, 3, 5, 10]
    assert rows_between(incrax.at(X)[2:4].became(X.at[2:4].min(1.0)), X).tolist() == [2, 3]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32])
def test_numbers_of_every_type_name_rows_of_long_arrays(dtype):
    x = jnp.zeros(1000)
    numbers = np.array([3, 100], dtype)
    assert rows_between(incrax.at(x)[numbers].set(1.0), x).tolist() == [3, 100]
    assert rows_between(incrax.at(x)[numbers[0], ...].set(1.0), x).tolist() == [3]
    assert rows_between(incrax.at(x)[np.int8(3)].set(1.0), x).tolist() == [3]


def test_numbers_that_jax_cuts_to_32_bits_name_the_rows_that_are_written():
    with jax.enable_x64(False):
        x = jnp.zeros(9)
        new = incrax.at(x)[np.array([1, 2**32 + 3])].set(1.0)
    assert {*np.flatnonzero(np.asarray(new)).tolist()} <= {*rows_between(new, x).tolist()}


def test_nothing_is_known_of_arrays_of_other_families():
    first = incrax.at(X)[3].set(1.0)
    assert rows_between(first, X + 0) is None
    assert rows_between(X, np.asarray(X)) is None
    assert rows_between(incrax.at(np.ones(3))[0].set(2.0), None) is None
    assert rows_between(incrax.at(X)[X[:, 0] > 5].set(0.0), X) is None
    assert rows_between(incrax.at(X)[NUM + 3].set(0.0), X) is None


def test_a_family_is_forgotten_with_its_arrays():
    before = len(row_updates.known)
    x = jnp.ones(4)
    for k in range(5 * MAX_STEPS):
        old, x = x, incrax.at(x)[k % 4].set(float(k))
    assert rows_between(x, old).tolist() == [3]
    assert len(list(row_updates.known[id(x)].trail())) <= MAX_STEPS + 1
    made = [x]
    for k in range(5 * MAX_STEPS):
        made.append(incrax.at(made[-1])[k % 4].add(1.0))
    assert all(rows_between(a, b).size == 1 for a, b in zip(made, made[1:], strict=False))
    del x, old, made
    gc.collect()
    assert len(row_updates.known) <= before


def test_one_update_takes_few_functions():
    """37 before NumPy was asked for the one number of a row: it compares, sorts and makes unique."""
    x = incrax.at(X)[3].set(1.0)
    assert num_functions(lambda: incrax.at(x)[5].set(2.0)) <= 18


def test_under_a_transformation_it_is_an_update():
    moved = jax.jit(lambda x, i: incrax.at(x)[i].set(7.0))(X, 2)
    same(moved, X.at[2].set(7.0))
    assert jax.grad(lambda v: incrax.at(X)[1].set(v).sum())(2.0) == 3.0


def test_errors_say_what_was_seen():
    with pytest.raises(TypeError, match=r"`incrax.at` got 3.0, of type float. It takes an array"):
        incrax.at(3.0)
    with pytest.raises(ValueError, match=r"got y of type float64\[3\] for x of type .*\[12, 3\]"):
        incrax.at(X)[1].became(np.ones(3))


def groups(theta, mu):
    return jnp.sum((Y - theta[:, None] - mu) ** 2)


Y = jnp.asarray(np.random.default_rng(0).normal(size=(400, 300)))


def settled(monkeypatch):
    monkeypatch.setattr("incrax.engine.policy.slices.MIN_GAIN", -np.inf)
    ours = incrax.incremental(groups, tuning=EAGER)
    theta = jnp.zeros(400)
    for k in range(6):
        theta = incrax.at(theta)[k].set(0.1 * k)
        ours(theta, 0.5)
    return ours, theta


def test_a_call_reads_no_row(monkeypatch):
    ours, theta = settled(monkeypatch)
    read = []
    monkeypatch.setattr(leaves, "_read_bits", lambda x: read.append(np.shape(x)) or np.asarray(x))
    for k in range(40):
        theta = incrax.at(theta)[7 * k % 400].add(1.0)
        same(ours(theta, 0.5), jax.jit(groups)(theta, 0.5), factor=1024, terms=400)
    assert (400,) not in read
    assert ours.stats.unchanged == 0
    assert ours._traces.latest.engine.last.candidate == "slices"


def test_a_wrong_claim_is_found_by_verification(monkeypatch):
    ours, theta = settled(monkeypatch)
    right = incrax.at(theta)[5].became(np.asarray(theta.at[5].set(2.0)))
    with incrax.verify():
        ours(right, 0.5)
    wrong = incrax.at(right)[5].became(np.asarray(right.at[6].set(9.0)))
    with incrax.verify(), pytest.raises(incrax.StaleResultError):
        ours(wrong, 0.5)
    same(ours(wrong, 0.5), jax.jit(groups)(wrong, 0.5), factor=1024, terms=400)


def test_the_values_of_a_driver_are_made_from_those_before():
    """Of a proposal that was refused nothing is left: the next one differs from the place in its own
    rows alone.
    """
    rng = np.random.default_rng(0)
    followed = row_updates.Followed()
    place = rng.normal(size=(400, 2))
    at_place = followed.array(place)
    for k in range(30):
        rows = np.unique(rng.integers(400, size=1 + k % 5))
        proposal = place.copy()
        proposal[rows] = rng.normal(size=(rows.size, 2))
        new = followed.array(proposal)
        same(new, jnp.asarray(proposal))
        assert rows_between(new, at_place).tolist() == rows.tolist()
        if k % 3 == 0:
            place, at_place = proposal, new
        else:
            assert followed.array(place.copy()) is at_place


def test_a_value_of_a_driver_that_is_new_everywhere_has_no_origin():
    followed = row_updates.Followed()
    first = followed.array(np.zeros(400))
    assert rows_between(followed.array(np.ones(400)), first) is None
    last = followed.array(np.ones(400))
    last.delete()
    same(followed.array(np.ones(400)), jnp.ones(400))


def test_signs_of_zeros_are_changes_of_a_driver():
    followed = row_updates.Followed()
    first = followed.array(np.zeros(400))
    other = np.zeros(400)
    other[7] = -0.0
    assert rows_between(followed.array(other), first).tolist() == [7]
