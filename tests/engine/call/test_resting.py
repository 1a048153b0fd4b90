"""While the engine rests, the whole program serves every call: right results, nothing run where nothing changed."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Failed, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.policy.bypass import LOOK_EVERY

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
    for number in range(3 * LOOK_EVERY):
        ours(1.0 + number, 2.0, np.ones(2), X)
    assert not watch(ours).rest


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
    assert sum(ref() is not None for ref in outs) == 2
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
