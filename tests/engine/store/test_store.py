"""Versions, the byte budget and what is evicted for it, broken values, and the invariants."""

from __future__ import annotations

import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, Failed, Running, check, check_invariants, same

import incrax
from incrax import _jax
from incrax.engine.compile.recycling import Pool
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.program.dependence import ALWAYS
from incrax.engine.store.baselines import Baselines
from incrax.engine.store.store import State, Store, available_in

KB = 128
"""Elements of float64 that make a kilobyte."""


def variable(num_kb=1):
    return _jax.new_var(jax.core.ShapedArray((num_kb * KB,), np.dtype(np.float64)))


def value(var, fill=0.0):
    return jnp.full(var.aval.shape, fill, var.aval.dtype)


def state(*saved, inputs=(0.0,), outputs=()):
    return State(
        tuple(LeafValue(x) for x in inputs), list(outputs), {var: value(var) for var in saved}
    )


def store_of(versions=2, budget_kb=1000, seconds=None, expected=()):
    """An empty store."""

    def cheapest_first(saved):
        return sorted(saved, key=lambda var: (seconds or {}).get(var, 0.0) / var.aval.size)

    facts = SimpleNamespace(returned=(), outvars=(), saveable=frozenset())
    pool = Pool(is_active=True)
    store = Store(versions, budget_kb * 1024, cheapest_first, pool, facts, saves_outputs=True)
    store.expect(expected)
    return store


def kb(store):
    return store.saved_bytes / 1024


# --- versions -------------------------------------------------------------------------------------


def test_a_store_keeps_as_many_versions_as_it_may():
    store = store_of(versions=3)
    states = [state() for _ in range(5)]
    for new in states:
        store.commit(new, None)
    assert store.states == states[2:]


def test_the_version_that_a_call_started_from_outlives_a_newer_one():
    store = store_of(versions=2)
    base, rejected, next_try = state(), state(), state()
    store.commit(base, None)
    store.commit(rejected, base)
    store.commit(next_try, base)
    assert store.states == [base, next_try]
    assert base.uses == 2


def test_one_version_is_the_latest():
    store = store_of(versions=1)
    first, second = state(), state()
    store.commit(first, None)
    store.commit(second, first)
    assert store.states == [second]


def test_a_touched_version_is_dropped_last():
    store = store_of(versions=2)
    first, second, third = state(), state(), state()
    store.commit(first, None)
    store.commit(second, None)
    store.touch(first)
    assert store.states == [second, first]
    store.touch(first)
    store.commit(third, None)
    assert store.states == [first, third]


def test_clearing_drops_every_version():
    store = store_of()
    store.commit(state(variable()), None)
    store.clear()
    assert store.states == []
    assert store.saved_bytes == 0


def test_values_are_added_to_a_version_without_changing_its_copies():
    a, b = variable(), variable()
    store, first = store_of(), state(a)
    store.commit(first, None)
    before = first.saved
    store.add(first, {b: value(b)})
    assert set(first.saved) == {a, b}
    assert set(before) == {a}


# --- budget ---------------------------------------------------------------------------------------


def test_bytes_are_those_of_distinct_buffers():
    a, b = variable(2), variable(3)
    store, first, second = store_of(expected=[a, b]), state(a, b), state()
    second.saved = {a: first.saved[a], b: value(b)}
    store.commit(first, None)
    assert kb(store) == 5
    store.commit(second, first)
    assert kb(store) == 8


def test_a_budget_of_zero_keeps_versions_and_outputs_only():
    a = variable()
    store = store_of(budget_kb=0, expected=[a])
    store.commit(state(a, outputs=[1.0]), None)
    assert store.saved_bytes == 0
    assert store.states[0].outputs == [1.0]
    assert len(store.evicted) == 1


def test_what_fits_is_kept():
    a, b = variable(2), variable(3)
    store = store_of(budget_kb=5, versions=1, expected=[a, b])
    store.commit(state(a, b), None)
    assert kb(store) == 5
    assert len(store.evicted) == 0


def test_while_all_fit_nobody_counts_bytes(monkeypatch):
    a, b = variable(), variable()
    store = store_of(expected=(a, b))
    monkeypatch.setattr(Store, "saved_bytes", None)
    store.commit(state(a), None)
    store.add(store.states[-1], {b: value(b)})
    assert store.states[-1].saved.keys() == {a, b}


def test_the_least_seconds_per_byte_are_evicted_first():
    cheap, dear, large = variable(2), variable(2), variable(4)
    seconds = {cheap: 3.0, dear: 9.0, large: 4.0}
    for budget_kb, expected in [
        (8, {cheap, dear, large}),
        (7, {cheap, dear}),
        (3, {dear}),
        (1, set()),
    ]:
        store = store_of(
            budget_kb=budget_kb, versions=1, seconds=seconds, expected=[cheap, dear, large]
        )
        store.commit(state(cheap, dear, large), None)
        assert set(store.states[-1].saved) == expected


def test_the_oldest_version_loses_its_values_first():
    a, b = variable(2), variable(2)
    seconds = {a: 9.0, b: 1.0}
    store = store_of(budget_kb=5, seconds=seconds, expected=[a, b])
    first, second = state(a, b), state(a, b)
    store.commit(first, None)
    store.commit(second, None)
    assert not first.saved
    assert set(second.saved) == {a, b}
    assert len(store.evicted) == 2


def test_two_variables_of_a_version_may_share_a_buffer():
    a, b, c = variable(2), variable(2), variable(3)
    store, first = store_of(budget_kb=0, versions=1, expected=[a, b, c]), state(a, c)
    first.saved = {a: first.saved[a], b: first.saved[a], c: first.saved[c]}
    store.commit(first, None)
    assert first.saved == {}


def test_values_added_later_are_held_to_the_budget_too():
    a, b = variable(2), variable(2)
    store = store_of(budget_kb=3, seconds={a: 1.0, b: 2.0}, expected=[a, b])
    first = state(a)
    store.commit(first, None)
    store.add(first, {b: value(b)})
    assert set(first.saved) == {b}


def test_a_value_without_a_price_goes_first():
    a, b = variable(1), variable(1)
    store = store_of(budget_kb=1, versions=1, seconds={a: 0.1}, expected=[a, b])
    store.commit(state(a, b), None)
    assert set(store.states[-1].saved) == {a}


def test_a_shared_buffer_is_not_evicted_in_vain():
    shared, own = variable(2), variable(2)
    store = store_of(budget_kb=4, seconds={shared: 1.0, own: 9.0}, expected=[shared, own])
    first, second = state(shared, own), state(own)
    store.commit(first, None)
    second.saved = {shared: first.saved[shared], own: value(own)}
    store.commit(second, first)
    assert store.saved_bytes <= store.budget_bytes
    assert shared in first.saved
    assert len(store.evicted) == 1


def test_what_an_interrupt_keeps_from_fitting_does_not_stay():
    def interrupted(saved):
        raise KeyboardInterrupt

    a, b = variable(2), variable(2)
    store = store_of(budget_kb=3, expected=[a, b])
    first, second = state(a), state(b)
    store.commit(first, None)
    order = store.order
    store.order = interrupted
    with pytest.raises(KeyboardInterrupt):
        store.commit(second, first)
    with pytest.raises(KeyboardInterrupt):
        store.add(first, {b: value(b)})
    assert store.states == [first]
    assert set(first.saved) == {a}
    store.order = order
    store.commit(second, first)
    assert store.states == [first, second]
    assert kb(store) == 2


@pytest.mark.parametrize("seed", range(10))
def test_the_invariants_hold_after_every_step_of_a_random_history(seed):
    rng = random.Random(seed)
    variables = [variable(rng.randint(1, 4)) for _ in range(6)]
    seconds = {var: rng.random() for var in variables}
    store = store_of(rng.randint(1, 4), rng.choice([0, 3, 10, 100]), seconds, variables)
    for _ in range(30):
        action = rng.choice(["commit", "commit", "touch", "add", "broken", "clear"])
        if action == "commit":
            used = rng.choice([None, *store.states])
            new = state(*rng.sample(variables, rng.randint(0, 6)))
            if used is not None:
                new.saved.update(
                    rng.sample(sorted(used.saved.items(), key=id), rng.randint(0, len(used.saved)))
                )
            store.commit(new, used)
            assert store.states[-1] is new
            assert used is None or store.versions == 1 or used in store.states
        elif action == "touch" and store.states:
            chosen = rng.choice(store.states)
            store.touch(chosen)
            assert store.states[-1] is chosen
        elif action == "add" and store.states:
            var = rng.choice(variables)
            store.add(rng.choice(store.states), {var: value(var)})
        elif action == "broken":
            store.drop_broken()
        elif action == "clear" and rng.random() < 0.1:
            store.clear()
        check_invariants(store, lambda var: 2)
        assert len(set(map(id, store.states))) == len(store.states)


def test_the_invariants_are_checked():
    a = variable()
    store = store_of(versions=1)
    store.states = [state(a), state(a)]
    with pytest.raises(AssertionError):
        check_invariants(store, lambda var: 2)
    store.states = [state(a)]
    check_invariants(store, lambda var: 2)
    with pytest.raises(AssertionError):
        check_invariants(store, lambda var: 2 | ALWAYS)
    store.budget_bytes = 1
    with pytest.raises(AssertionError):
        check_invariants(store, lambda var: 2)


def test_a_tracer_in_a_store_breaks_an_invariant():
    store = store_of()

    @jax.jit
    def fun(x):
        store.states = [state(outputs=[x])]
        with pytest.raises(AssertionError):
            check_invariants(store, lambda var: 2)
        return x

    fun(1.0)


# --- recycled buffers -----------------------------------------------------------------------------


def recycled(store, var):
    """Which buffers of a variable's type the store gives away."""
    return {id(array) for array in store.pool.take([var.aval] * 4)}


def test_a_buffer_is_recycled_once_no_version_holds_it():
    shared, own = variable(100), variable(100)
    store, first, second = store_of(versions=1, expected=[shared, own]), state(shared, own), state()
    second.saved = {shared: first.saved[shared]}
    buffers = {var: id(x) for var, x in first.saved.items()}
    store.commit(first, None)
    store.commit(second, first)
    assert first.saved == {}
    given = recycled(store, own)
    assert buffers[own] in given
    assert buffers[shared] not in given


def test_a_buffer_that_a_user_holds_is_not_recycled():
    f = incrax.incremental(lambda x: (jnp.exp(x), jnp.sum(jnp.sin(x))), versions=1, tuning=MINIMAL)
    x = jnp.linspace(0.0, 1.0, 20_000)
    outputs = [f(x + k)[0] for k in range(4)]
    (traced,) = f._traces.table.values()
    given = {id(array) for array in traced.engine.store.pool.take([x.aval] * 8)}
    assert not given & set(map(id, [x, *outputs]))


# --- what is available ----------------------------------------------------------------------------


def test_a_value_is_available_where_nothing_it_depends_on_is_dirty():
    a, b = variable(), variable()
    older, newer = state(a, b), state(a)
    pairs = [(older, 0b100), (newer, 0b010)]
    assert available_in(pairs, a, 0b010) is older.saved[a]
    assert available_in(pairs, a, 0b100) is newer.saved[a]
    assert available_in(pairs, a, 0b110) is None
    assert available_in(pairs, b, 0b010) is older.saved[b]
    assert available_in(pairs, b, 0b100) is None
    assert available_in([], a, 0) is None


def test_a_deleted_buffer_is_not_available():
    a = variable()
    first = state(a)
    first.saved[a].delete()
    assert available_in([(first, 0)], a, 0b10) is None
    second = state(a)
    assert available_in([(first, 0), (second, 0)], a, 0b10) is second.saved[a]


def test_values_whose_computation_failed_are_dropped_and_others_stay():
    a, b = variable(), variable()
    store = store_of(versions=3)
    sound, broken, half = (
        state(a),
        state(a, outputs=[Failed()]),
        state(a, outputs=[jnp.ones(2), 3.0]),
    )
    half.saved[b] = Failed()
    for new in (sound, broken, half):
        store.commit(new, None)
    store.drop_broken()
    assert store.states == [sound, half]
    assert set(half.saved) == {a}


@pytest.mark.cpu
def test_a_result_that_tells_of_a_failure_drops_what_is_broken():
    a, b = variable(), variable()
    store, half = store_of(), state(a)
    half.saved[b] = Failed()
    store.commit(half, None)
    running, deleted = Running(), jnp.ones(2)
    deleted.delete()
    results = [jnp.ones(2), running, deleted]
    assert not store.prove(results)
    assert results == [running]
    assert set(half.saved) == {a, b}
    results += [Failed(), jnp.ones(2)]
    assert store.prove(results)
    assert results == [running]
    assert set(half.saved) == {a}


def test_deleted_values_are_no_broken_ones():
    a = variable()
    store, first = store_of(), state(a)
    first.saved[a].delete()
    store.commit(first, None)
    store.drop_broken()
    assert store.states == [first]


# --- through the public function ------------------------------------------------------------------


def costly(a, b, c, x):
    return jnp.sum(jnp.exp(a * x)) + jnp.sum(jnp.sin(b * x)) * c, jnp.cos(b * x) * c


@pytest.mark.parametrize("memory", [0, 5000, 10**9])
def test_results_do_not_depend_on_the_budget_and_the_budget_holds(memory):
    x = np.linspace(0, 1, 500)
    f = incrax.incremental(costly, memory=memory, versions=3, tuning=MINIMAL)
    plain = jax.jit(costly)
    for args in [
        (1.0, 2.0, 3.0),
        (1.0, 2.0, 4.0),
        (1.5, 2.0, 4.0),
        (1.0, 2.0, 3.0),
        (1.0, 2.5, 3.0),
        (1.0, 2.0, 3.0),
    ]:
        same(f(*args, x), plain(*args, x))
        check(f)
        assert f.stats.saved_bytes <= memory


def test_a_saved_nan_that_no_result_shows_is_no_error_when_nans_are_debugged():
    fun = lambda a, b: jnp.where(a > 0, jnp.log(b), 0.0)
    f, plain = incrax.incremental(fun, tuning=MINIMAL), jax.jit(fun)
    with jax.debug_nans(True):
        for args in [(-1.0, 1.0), (-1.0, -1.0), (-2.0, -1.0), (-3.0, -2.0)]:
            same(f(*args), plain(*args))


@pytest.mark.parametrize("tuning", [MINIMAL, EAGER], ids=["minimal", "eager"])
def test_no_buffer_that_a_user_holds_is_taken_for_another_value(tuning):
    """Buffers of dropped versions serve new values: never those of inputs, outputs or of a fork."""

    def fun(a, b, c, x):
        y, z = jnp.exp(a * x), jnp.sin(b * x)
        return y, jnp.cumsum(jnp.tanh(y * z)) * c, z, x, y

    plain = jax.jit(fun)
    x = jnp.linspace(0.0, 1.0, 20_000)
    f = incrax.incremental(fun, tuning=tuning)
    held = []
    for k in range(8):
        for args in [
            (1.0 + k, 2.0, 3.0, x),
            (1.0 + k, 2.0, 4.0 + k, x),
            (1.0 + k, 2.5 + k, 4.0 + k, x),
        ]:
            held.append((args, f(*args)))
    for k in range(4):
        args = (9.0, 2.0, 3.0 + k, x)
        held.append((args, f(*args)))
    for args, outputs in held:
        assert not any(array.is_deleted() for array in outputs)
        same(outputs, plain(*args))


def test_a_version_from_which_fewer_inputs_changed_is_tried_whatever_is_expected():
    """Else a plan that was measured keeps the estimate of a smaller one from ever being tried."""
    near, far = (State((), [], {}) for _ in range(2))
    chooser = SimpleNamespace(
        expected_s={1: 2.0, 3: 1.0}.get, whole_s=9.0, loads=lambda _: (), seen=lambda _: None
    )
    baselines = Baselines(chooser, 0)
    assert baselines.ranked([(near, 1), (far, 3)])[-1] == (near, 1)
    chooser.seen = lambda _: SimpleNamespace(is_decided=True)  # tried, and it lacks nothing
    assert baselines.ranked([(far, 3), (near, 1)])[-1] == (near, 1)
    chooser.loads = lambda dirty: ("v",) if dirty == 1 else ()
    assert baselines.ranked([(near, 1), (far, 3)])[-1] == (far, 3)
