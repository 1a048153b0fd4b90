"""While the engine rests, the whole program serves every call: right results, nothing run where
nothing changed.
"""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Failed, file_moves, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.call.resting import MAX_COPIED_BYTES
from incrax.engine.inputs.leaves import SMALL_BYTES
from incrax.engine.policy.bypass import LOOK_EVERY, MAX_REST

LONG = 10**6
X = np.linspace(0.1, 2.0, 50)


def model(a, b, v, x):
    return a * jnp.sum(jnp.exp(-b * x)) + jnp.sum(v), jnp.arctan2(a, b) + v


def resting(fun=model, *args, calls=3):
    """An incremental function that was called and rests from now on."""
    ours = incrax.incremental(fun)
    for _ in range(calls):
        ours(*args)
    watch(ours).rest = LONG
    return ours


def watch(ours):
    return ours._traces.latest.engine.chooser.watch


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.5, float("nan"), np.nextafter(1.0, 2.0), 1e300])
VECTORS = st.lists(NUMBERS, min_size=2, max_size=2).map(np.array)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, VECTORS), min_size=1, max_size=40), st.booleans())
def test_every_call_equals_jit(points, as_arrays):
    plain = jax.jit(model)
    make = jnp.float64 if as_arrays else float
    ours = resting(model, make(1.0), 1.0, np.ones(2), X)
    for a, b, v in points:
        a, b, v = make(a), float(b), (jnp.asarray(v) if as_arrays else v)
        for mine, known in zip(ours(a, b, v, X), plain(a, b, v, X), strict=True):
            same(mine, known)
            np.testing.assert_array_equal(np.signbit(mine), np.signbit(known))
    assert watch(ours).rest


def test_a_call_with_equal_bits_runs_nothing():
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    ours(3.0, 2.0, np.ones(2), X)
    before = ours.stats.as_dict()
    ours(3.0, 2.0, np.ones(2), X)
    ours(float("3.0"), np.float64(2.0).item(), np.ones(2).copy(), X.copy())
    after = ours.stats.as_dict()
    assert after["ran"] == before["ran"]
    assert after["unchanged"] == before["unchanged"] + 2
    assert ours.explain().served_by == "saved outputs"


def test_an_equal_number_that_is_another_object_runs_nothing():
    b = 2.0
    ours = resting(lambda a, b: a * jnp.exp(b), 1.0, b)
    for a in (3.0, 4.0):
        ours(a, b)
    assert num_short(ours) == 1
    before = ours.stats.ran
    assert float(ours(float("4.0"), b)) == pytest.approx(4.0 * np.exp(2.0), rel=1e-6)
    assert ours.stats.ran == before


@pytest.mark.parametrize("nbytes", [MAX_COPIED_BYTES, MAX_COPIED_BYTES + 8])
def test_arrays_of_numpy_are_copied_up_to_a_size(nbytes):
    fun = lambda a, v: a * jnp.sum(v)
    v = np.ones(nbytes // 8)
    ours, plain = resting(fun, 1.0, v), jax.jit(fun)
    ours(2.0, v)
    ours(3.0, v)
    assert num_short(ours) == (nbytes <= MAX_COPIED_BYTES)
    v[0] = 7.0
    for a in (3.0, 4.0):
        same(ours(a, v), plain(a, v))


def test_an_array_changed_in_place_is_noticed():
    v = np.ones(2)
    ours = resting(model, 1.0, 2.0, v, X)
    for number in range(5):
        v[number % 2] += 1.0
        for mine, known in zip(ours(1.0, 2.0, v, X), jax.jit(model)(1.0, 2.0, v, X), strict=True):
            same(mine, known)


def test_the_report_names_just_what_changed():
    v = np.ones(2)
    ours = resting(model, 1.0, 2.0, v, X)
    ours(1.0, 3.0, v.copy(), X.copy())
    ours(1.0, 3.0, np.array([1.0, 5.0]), X.copy())
    report = ours.explain().as_dict()
    assert list(report["changed"]) == ["v[1]"]
    assert report["served_by"] == "whole"
    assert report["num_ran"] == report["num_equations"]
    assert ours.explain(1.0, 3.0, np.array([2.0, 5.0]), X).as_dict()["served_by"] == "whole"


def test_a_deleted_input_raises_and_loses_nothing():
    a = jnp.asarray(2.0)
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    known = ours(jnp.asarray(4.0), 2.0, np.ones(2), X)
    a.delete()
    with pytest.raises(incrax.errors.DeletedInputError, match="`a`"):
        ours(a, 2.0, np.ones(2), X)
    for mine, other in zip(ours(jnp.asarray(4.0), 2.0, np.ones(2), X), known, strict=True):
        same(mine, other)
    assert ours.stats.unchanged == 3


def test_an_input_deleted_after_its_call_raises_where_it_is_passed_again():
    a = jnp.asarray(2.0)
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    ours(a, 2.0, np.ones(2), X)
    a.delete()
    with pytest.raises(incrax.errors.DeletedInputError, match="`a`"):
        ours(a, 2.0, np.ones(2), X)


def test_deleted_outputs_are_computed_again():
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    value, _ = ours(3.0, 2.0, np.ones(2), X)
    known = float(value)
    value.delete()
    assert float(ours(3.0, 2.0, np.ones(2), X)[0]) == known


def test_outputs_that_failed_after_their_call_are_computed_again():
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    known = float(ours(3.0, 2.0, np.ones(2), X)[0])
    engine = ours._traces.latest.engine
    engine.store.states[-1].outputs[0] = failed = Failed()
    engine.chooser.clock.unproven = [failed]
    assert float(ours(3.0, 2.0, np.ones(2), X)[0]) == known


def test_of_results_that_were_not_waited_for_few_are_held():
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    for number in range(20):
        ours(float(number), 2.0, np.ones(2), X)
    assert len(ours._traces.latest.engine.chooser.clock.unproven) <= 2


def test_effects_happen_at_every_call():
    seen = []

    def noisy(a, x):
        jax.debug.callback(lambda value: seen.append(float(value)), a)
        return a * jnp.sum(x)

    ours = resting(noisy, 1.0, X)
    seen.clear()
    for _ in range(3):
        ours(5.0, X)
    jax.effects_barrier()
    assert seen == [5.0] * 3


def test_a_rest_ends_and_values_are_saved_again():
    plain = jax.jit(model)
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    watch(ours).rest = 5
    for number in range(12):
        args = (1.0 + number, 2.0, np.ones(2), X)
        same(ours(*args)[0], plain(*args)[0])
    assert not watch(ours).rest


def test_fewer_changes_end_a_rest():
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    watch(ours).usual = 5.0
    rests = []
    for number in range(3 * LOOK_EVERY):
        ours(1.0 + number, 2.0, np.ones(2), X)
        rests.append(watch(ours).rest)
    assert 0 in rests  # another may have begun since


def test_forks_clearing_and_warm_up_work_during_a_rest():
    plain = jax.jit(model)
    ours = resting(model, 1.0, 2.0, np.ones(2), X)
    ours(3.0, 2.0, np.ones(2), X)
    other = ours.fork()
    assert not watch(other).rest
    for f in (other, ours):
        f.clear()
        for a in (3.0, 4.0, 4.0):
            same(f(a, 2.0, np.ones(2), X)[0], plain(a, 2.0, np.ones(2), X)[0])
    ours.warm_up(4.0, 2.0, np.ones(2), X, changing=["a"])
    same(ours(5.0, 2.0, np.ones(2), X)[0], plain(5.0, 2.0, np.ones(2), X)[0])


def test_a_failing_call_leaves_the_state_as_it_was():
    def callback(a):
        if a > 10:
            raise ValueError("too large")
        return a

    def fragile(a, x):
        jax.debug.callback(lambda value: callback(float(value)), a)
        return a * jnp.sum(x)

    ours = resting(fragile, 1.0, X)
    known = float(ours(2.0, X))

    def fail():
        jax.block_until_ready(ours(20.0, X))
        jax.effects_barrier()

    with pytest.raises(Exception, match="too large"):
        fail()
    assert float(ours(2.0, X)) == known


def test_an_equal_array_may_take_the_place_of_a_deleted_one():
    x, other, again = (jnp.array(X) for _ in range(3))
    f = incrax.incremental(model)
    f(1.0, 2.0, np.ones(2), x)
    f(3.0, 2.0, np.ones(2), other)
    watch(f).rest = LONG
    x.delete()
    for a in (3.0, 3.0, 4.0):
        same(f(a, 2.0, np.ones(2), again), jax.jit(model)(a, 2.0, np.ones(2), again))


def test_a_rest_holds_no_more_than_its_versions_and_clear_drops_them():
    f = resting(lambda x: x + 1, np.zeros(3))
    watch(f).rest = LONG
    outs = [weakref.ref(f(np.full(3, float(k)))) for k in range(6)]
    assert sum(ref() is not None for ref in outs) <= 2 + 2  # of the store, and of the short way
    f.clear()
    gc.collect()
    assert not any(ref() is not None for ref in outs)
    assert list(f.explain().as_dict()["changed"]) == ["x[0]", "x[1]", "x[2]"]


def test_reports_during_a_rest_speak_of_the_latest_version():
    f = resting(lambda x, y: jnp.sin(x) * y, 5.0, 2.0)
    f(5.0, 2.0)
    f(6.0, 2.0)
    dry = f.explain(5.0, 2.0).as_dict()
    ran = f.stats.ran
    f(5.0, 2.0)
    report = f.explain().as_dict()
    assert f.stats.ran - ran == report["num_ran"] == dry["num_ran"] > 0
    assert dry["served_by"] == report["served_by"] == "whole"
    assert list(report["changed"]) == ["x"]


# --- the short way --------------------------------------------------------------------------------


def short(*args, fun=model, calls=3, **kwargs):
    """An incremental function whose calls with another first argument go the short way now."""
    ours = incrax.incremental(fun)
    for number in range(calls):
        ours(args[0] + number, *args[1:], **kwargs)
    watch(ours).rest = LONG - 1  # the next look is 15 calls away
    ours(args[0] + calls, *args[1:], **kwargs)
    assert num_short(ours) == 0
    ours(args[0] + calls + 1, *args[1:], **kwargs)
    assert num_short(ours) == 1
    return ours


def num_short(ours):
    """Calls that went the short way since the engine last caught up."""
    return ours._traces.latest.resting.num_calls


V = np.ones(2)


@pytest.mark.parametrize("x", [X, jnp.asarray(X)], ids=["NumPy", "JAX"])
def test_like_calls_are_counted_and_remembered_as_others_are(x):
    ours = short(1.0, 2.0, V, x)
    before = ours.stats.as_dict()
    num_before = ours._traces.latest.engine.history.num_calls
    for number in range(5):
        args = (10.0 + number, 2.0, V.copy(), x)
        for mine, known in zip(ours(*args), jax.jit(model)(*args), strict=True):
            same(mine, known)
    assert num_short(ours) == 6
    after = ours.stats.as_dict()
    assert after["calls"] - before["calls"] == 5
    assert after["ran"] - before["ran"] == 5 * ours.explain().as_dict()["num_equations"]
    assert ours._traces.latest.engine.history.num_calls - num_before == 5
    assert list(ours.explain().as_dict()["changed"]) == ["a"]
    assert num_short(ours) == 0  # a report catches up


def test_the_call_after_short_ones_starts_from_the_last_of_them():
    ours = short(1.0, 2.0, V, X)
    a = 20.0
    known = ours(a, 2.0, V, X)
    ran = ours.stats.ran
    for mine, other in zip(ours(a, 2.0, V, X), known, strict=True):
        assert mine is other
    assert ours.stats.ran == ran


def test_an_array_changed_after_a_short_call_is_as_it_was_for_it():
    ours = short(1.0, 2.0, V, X)
    v = np.array([3.0, 4.0])
    ours(20.0, 2.0, v, X)
    ours(21.0, 2.0, v, X)
    assert num_short(ours) == 3
    v[0] = 9.0
    ran = ours.stats.ran
    for mine, known in zip(
        ours(21.0, 2.0, np.array([3.0, 4.0]), X),
        jax.jit(model)(21.0, 2.0, np.array([3.0, 4.0]), X),
        strict=True,
    ):
        same(mine, known)
    assert ours.stats.ran == ran
    for mine, known in zip(ours(21.0, 2.0, v, X), jax.jit(model)(21.0, 2.0, v, X), strict=True):
        same(mine, known)


LARGE = np.ones(1000)
OTHERS = {
    "another type": (np.float32(3.0), 2.0, V, X),
    "an integer": (3, 2.0, V, X),
    "another shape": (30.0, 2.0, np.ones((2, 1)), X),
    "another tree": ((30.0,), 2.0, V, X),
    "another kind of change": (30.0, 7.0, V, X),
    "an array too large to copy": (30.0, 2.0, V, LARGE),
    "equal bits": (5.0, 2.0, V, X),
    "an array on a device": (30.0, 2.0, jnp.ones(2), X),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_alike_goes_the_long_way(name):
    fun = lambda a, b, v, x: model(jnp.sum(jnp.asarray(a)), b, v, x[:50])
    ours = short(1.0, 2.0, V, X, fun=fun)
    engine = ours._traces.latest.engine
    args = OTHERS[name]
    for mine, known in zip(ours(*args), jax.jit(fun)(*args), strict=True):
        same(mine, known)
    assert engine.resting.num_calls <= 1  # it caught up, or another trace served


@pytest.mark.parametrize("setting", [jax.enable_x64, jax.debug_nans])
def test_another_configuration_goes_the_long_way(setting):
    ours = short(1.0, 2.0, V, X)
    with setting(not jax.config.jax_enable_x64 if setting is jax.enable_x64 else True):
        mine = ours(30.0, 2.0, V, X)[0]
        known = jax.jit(model)(30.0, 2.0, V, X)[0]
    assert mine.dtype == known.dtype
    np.testing.assert_allclose(mine, known, rtol=1e-5)
    assert ours.stats.traces == 2


def test_under_a_transformation_and_without_compiling_the_function_is_called_as_it_is():
    ours = short(1.0, 2.0, V, X)
    num_before = ours.stats.transparent
    slope = jax.grad(lambda a: ours(a, 2.0, V, X)[0])(3.0)
    np.testing.assert_allclose(slope, np.sum(np.exp(-2.0 * X)), rtol=1e-12)
    with jax.disable_jit():
        ours(30.0, 2.0, V, X)
    jax.jit(lambda a: a + ours(30.0, 2.0, V, X)[0])(1.0)
    assert ours.stats.transparent == num_before + 3
    assert num_short(ours) == 1


def test_a_short_call_is_verified_where_that_is_asked_for():
    ours = short(1.0, 2.0, V, X)
    with incrax.verify(every=1):
        ours(30.0, 2.0, V, X)
    assert num_short(ours) == 0


def test_a_checkpoint_is_that_of_a_short_call():
    ours = short(1.0, 2.0, V, X)
    known = ours(30.0, 2.0, V, X)
    ours.checkpoint()
    for number in range(4):
        ours(40.0 + number, 2.0, V, X)
    for mine, other in zip(ours.rollback(), known, strict=True):
        assert mine is other


def test_a_fork_starts_from_a_short_call():
    ours = short(1.0, 2.0, V, X)
    known = ours(30.0, 2.0, V, X)
    other = ours.fork()
    for mine, expected in zip(other(30.0, 2.0, V, X), known, strict=True):
        assert mine is expected
    assert other.stats.ran == 0


def test_an_array_that_stayed_is_not_copied_to_the_device_again():
    x = np.linspace(0.1, 2.0, 2 * SMALL_BYTES // 8)
    ours = short(1.0, 2.0, V, x)
    for number in range(3):
        ours(20.0 + number, 2.0, V, x)
    ours.explain()
    entries = [state.entries[3] for state in ours._traces.latest.store.states]
    assert len(entries) == 2
    assert entries[0] is entries[1]


def test_large_results_are_not_held_twice():
    ours = resting(lambda x: jnp.broadcast_to(x, (2**18,)), 1.0)
    for number in range(5):
        ours(2.0 + number)
    assert num_short(ours) == 0


@pytest.mark.parametrize(("size", "num_unchanged"), [(2, 1), (1000, 0)])
def test_new_arrays_of_equal_bits_run_nothing_unless_they_are_large(size, num_unchanged):
    ours = short(jnp.zeros(size), fun=lambda x: jnp.sum(jnp.sin(x)))
    before = ours.stats.as_dict()
    args = jax.block_until_ready(jnp.zeros(size) + 4)  # as in the call before
    same(ours(args), jnp.sum(jnp.sin(args)))
    after = ours.stats.as_dict()
    assert after["unchanged"] - before["unchanged"] == num_unchanged
    assert (after["ran"] == before["ran"]) is bool(num_unchanged)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_kind_of_change_that_the_whole_program_served_by_choice_ends_no_rest(is_known):
    """Each of three kinds in turns changes less than they do on the average."""
    ours = resting(lambda a, b, v: a * jnp.exp(b) + jnp.sum(v), 1.0, 2.0, np.ones(8))
    watch(ours).usual = 10 / 3
    chooser = ours._traces.latest.engine.chooser
    args = [1.0, 2.0, np.ones(8)]
    for dirty in (1, 2, 255 << 2) if is_known else ():
        chooser.entry(dirty).is_final = True
    for number in range(6 * LOOK_EVERY):
        args[number % 3] = args[number % 3] + 1.0
        ours(*args)
    assert (watch(ours).rest > MAX_REST) is is_known


@pytest.mark.parametrize(("usual", "is_long"), [(1.0, True), (2.0, False)])
@pytest.mark.parametrize("x", [X, jnp.asarray(X)], ids=["NumPy", "JAX"])
def test_a_look_is_a_call_of_the_long_way_only_where_less_changes_than_used_to(usual, is_long, x):
    ours = short(1.0, 2.0, V, x)
    watch(ours).usual = usual
    rests = []
    for number in range(4 * LOOK_EVERY):
        ours(30.0 + number, 2.0, V, x if isinstance(x, jax.Array) else x.copy())
        rests.append(num_short(ours))
    assert (max(rests) > 3 * LOOK_EVERY) is is_long
    assert max(rests[: LOOK_EVERY + 1]) >= LOOK_EVERY - 3


@pytest.mark.parametrize("num_moving", [1, 4, 8])
def test_elements_of_a_vector_count_by_themselves(num_moving):
    v = np.ones(8)
    ours = short(1.0, 2.0, v, X)
    watch(ours).usual = 8.0
    for _ in range(3 * LOOK_EVERY):
        v[:num_moving] += 1.0
        ours(1.0, 2.0, v, X)
    assert (watch(ours).rest == 0 or watch(ours).rest < MAX_REST) is (num_moving <= 4)


def test_a_look_at_what_cannot_be_read_is_left_to_the_long_way():
    ours = short(jnp.float64(1.0), fun=lambda a: jnp.sin(a))
    watch(ours).usual = 1.0
    for number in range(3 * LOOK_EVERY):
        a = jnp.float64(30.0 + number)
        same(ours(a), jnp.sin(a))
        if number % LOOK_EVERY > LOOK_EVERY - 6:
            a.delete()


def test_a_deleted_input_is_refused_also_at_a_look():
    ours = short(jnp.float64(1.0), fun=lambda a: jnp.sin(a))
    watch(ours).usual = 1.0
    number = 30.0
    while ours._traces.latest.resting.num_left > 1:
        number += 1.0
        ours(jnp.float64(number))
    gone = jnp.float64(90.0)
    gone.delete()
    with pytest.raises(incrax.errors.DeletedInputError):
        ours(gone)


def test_the_rest_of_a_fork_is_its_own():
    ours = short(1.0, 2.0, V, X)
    other = ours.fork()
    watch(other).rest = 0
    assert ours._traces.latest.resting._watch is watch(ours)
    assert other._traces.latest.resting._watch is watch(other)


def test_a_short_call_takes_few_moves_between_files():
    ours = short(1.0, 2.0, V, X)
    assert file_moves(lambda: ours(30.0, 2.0, V, X)) <= 12
