"""While nothing pays, calls between two looks are those of `jax.jit`: right results, whatever comes."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import Failed, file_moves, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.call.bypass import MAX_HELD_BYTES, awaited
from incrax.errors import ReentrantCallError

LONG = 10**6
X = np.linspace(0.1, 2.0, 50)
V = np.ones(2)


def model(a, b, v, x):
    return a * jnp.sum(jnp.exp(-b * x)) + jnp.sum(v), jnp.arctan2(a, b) + v


def ledger(ours):
    return ours._traces.latest.engine.ledger


def num_bypassed(ours):
    """Calls that bypassed since the last look."""
    return ledger(ours).skipped


def bypassing(fun=model, *args, calls=3, num=LONG, **kwargs):
    """An incremental function whose next calls bypass."""
    ours = incrax.incremental(fun)
    for _ in range(calls):
        ours(*args, **kwargs)
    ledger(ours).grant(num)
    ours._bypass = ours._traces.latest.bypass
    return ours


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.5, float("nan"), np.nextafter(1.0, 2.0), 1e300])
VECTORS = st.lists(NUMBERS, min_size=2, max_size=2).map(np.array)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, VECTORS), min_size=1, max_size=40),
    st.booleans(),
    st.integers(1, 9),
)
def test_every_call_equals_jit_while_looks_come_and_go(points, as_arrays, num):
    plain = jax.jit(model)
    make = jnp.float64 if as_arrays else float
    ours = bypassing(model, make(1.0), 1.0, np.ones(2), X)
    for number, (a, b, v) in enumerate(points):
        if number % num == 0:
            ledger(ours).grant(0 if number % 2 else num)
            ours._bypass = ours._traces.latest.bypass
        a, b, v = make(a), float(b), (jnp.asarray(v) if as_arrays else v)
        for mine, known in zip(ours(a, b, v, X), plain(a, b, v, X), strict=True):
            same(mine, known)
            np.testing.assert_array_equal(np.signbit(mine), np.signbit(known))


def test_the_same_objects_run_nothing():
    x = jnp.asarray(X)
    ours = bypassing(lambda a, x: a * jnp.sum(x), 1.0, x)
    a = 3.0
    known = ours(a, x)
    before = ours.stats.as_dict()
    assert ours(a, x) is known
    after = ours.stats.as_dict()
    assert after["ran"] == before["ran"]
    assert after["unchanged"] == before["unchanged"] + 1
    assert after["calls"] == before["calls"] + 1


def test_an_argument_by_keyword_that_is_gone_is_no_repetition():
    ours = bypassing(lambda a, b=5.0: a * b, 1.0, b=2.0)
    a = 3.0
    assert float(ours(a, b=2.0)) == 6.0
    assert num_bypassed(ours) == 1
    assert float(ours(a)) == 15.0


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: np.ones(2), lambda v: v.__setitem__(0, 7.0)),
        (lambda: [1.0, 2.0], lambda v: v.__setitem__(0, 7.0)),
        (lambda: {"a": 1.0}, lambda v: v.update(a=7.0)),
    ],
    ids=["array of NumPy", "list", "dict"],
)
def test_what_may_change_in_place_is_never_taken_for_unchanged(make, change):
    fun = lambda v: sum(map(jnp.sum, jax.tree.leaves(v)))
    value = make()
    ours = bypassing(fun, value)
    ours(value)
    change(value)
    same(ours(value), jax.jit(fun)(value))
    assert num_bypassed(ours) == 2


class Running:
    """A result of a program that still runs."""

    waited = 0

    def block_until_ready(self):
        self.waited += 1
        return self


def test_a_look_waits_for_the_last_call_which_would_be_timed_with_it():
    ours = bypassing(model, 1.0, 1.0, V, X)
    ours(2.0, 1.0, V, X)
    args, kwargs, *_ = ours._bypass.last
    running = Running()
    ours._bypass.last = args, kwargs, running, None
    ours(3.0, 1.0, V, X)
    assert running.waited == 0
    ours._bypass.last = args, kwargs, running, None
    ledger(ours).turns = itertools.repeat(None, 0)
    ours(4.0, 1.0, V, X)
    assert running.waited == 1


def test_a_result_that_was_looked_at_is_held_as_well(monkeypatch):
    """Until the next call, and for arguments that nobody can change."""
    ours = incrax.incremental(lambda a, b: (a * b, b))
    ours(1.0, 1.0)
    result = ours(2.0, 1.0)
    before = ours.stats.as_dict()
    with monkeypatch.context() as patch:
        patch.setattr(type(ours), "_looked_at", None)
        again = ours(2.0, 1.0)
    assert again[0] is result[0]
    after = ours.stats.as_dict()
    assert (after["calls"], after["unchanged"]) == (before["calls"] + 1, before["unchanged"] + 1)
    v = np.ones(2)
    held = weakref.ref(v)
    ours(v, 1.0)
    del v
    gc.collect()
    assert held() is None


def test_large_results_are_not_held():
    size = MAX_HELD_BYTES // 8 + 1
    ours = bypassing(lambda x: jnp.broadcast_to(x, (size,)), 1.0)
    x = 2.0
    result = weakref.ref(ours(x))
    gc.collect()
    assert result() is None
    ours(x)
    assert num_bypassed(ours) == 2


def test_arguments_are_held_with_a_result_alone():
    size = MAX_HELD_BYTES // 8 + 1
    ours = bypassing(lambda x: jnp.broadcast_to(x[0], (size,)), jnp.ones(3))
    x = jnp.ones(3)
    held = weakref.ref(x)
    ours(x)
    del x
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("clears", [True, False])
def test_what_was_answered_once_is_held_no_longer_than_another_call(clears):
    ours = bypassing(lambda a, x: a * jnp.sum(x), 2.0, jnp.ones(3))
    a, x = 3.0, jnp.arange(3.0)
    held = weakref.ref(x)
    last = ours(a, x)
    assert ours(a, x) is last
    assert ours._traces.latest.bypass.was_held
    if clears:
        ours.clear()
    else:
        ours(4.0, jnp.zeros(3))
    del x, last
    gc.collect()
    assert held() is None
    assert not ours._traces.latest.bypass.was_held


class Interrupted:
    """A function during which the user gives up."""

    def __call__(self, *_, **__):
        raise KeyboardInterrupt


def test_what_was_deleted_since_it_was_answered_is_no_answer(monkeypatch):
    """Nor does a report say that it was, where the call that followed ended early."""
    ours = bypassing(lambda a, x: a * x, 2.0, jnp.ones(3))
    a, x = 3.0, jnp.arange(3.0)
    assert ours(a, x) is ours(a, x)
    ours(a, x).delete()
    with monkeypatch.context() as patch:
        patch.setattr(ours._bypass, "jitted", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            ours(a, x)
    assert not ours._bypass.was_held
    same(ours(a, x), 3.0 * x)


def test_an_interrupt_in_a_call_that_nobody_looks_at_is_counted(monkeypatch):
    ours = bypassing(lambda a: jnp.sin(a), 1.0)
    ours(2.0)
    calls = ours.stats.calls
    with monkeypatch.context() as patch:
        patch.setattr(ours._bypass, "jitted", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            ours(3.0)
    same(ours(4.0), jnp.sin(4.0))
    assert (ours.stats.calls, ours.stats.aborted) == (calls + 2, 1)


def test_calls_are_counted():
    ours = bypassing(model, 1.0, 2.0, V, X)
    before = ours.stats.as_dict()
    for number in range(5):
        ours(10.0 + number, 2.0, V, X)
    assert num_bypassed(ours) == 5
    after = ours.stats.as_dict()
    assert after["calls"] - before["calls"] == 5
    assert after["ran"] - before["ran"] == 5 * ours.explain().num_equations


def test_the_report_says_that_nobody_looked():
    ours = bypassing(model, 1.0, 2.0, V, X)
    ours(1.0, 3.0, V, X)
    report = ours.explain().as_dict()
    assert list(report["changed"]) == ["not compared"]
    assert report["served_by"] == "whole"
    assert report["num_ran"] == report["num_equations"]
    assert ours.explain(1.0, 3.0, V, X).as_dict()["served_by"] == "whole"


def test_looks_come_back():
    ours = bypassing(model, 1.0, 2.0, V, X, num=5)
    for number in range(7):
        same(ours(5.0 + number, 2.0, V, X)[0], jax.jit(model)(5.0 + number, 2.0, V, X)[0])
    assert ledger(ours).bypassed == 5
    assert list(ours.explain().as_dict()["changed"]) == ["a"]


OTHERS = {
    "another type": (np.float32(3.0), 2.0, V, X),
    "an integer": (3, 2.0, V, X),
    "another shape": (30.0, 2.0, np.ones((2, 1)), X),
    "another tree": ((30.0,), 2.0, V, X),
    "a word": (30.0, 2.0, "word", X),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_types_are_looked_at(name):
    def fun(a, b, v, x):
        v = 1.0 if isinstance(v, str) else v
        return model(jnp.sum(jnp.asarray(a)), b, v, x)

    ours = bypassing(fun, 1.0, 2.0, V, X)
    args = OTHERS[name]
    plain = jax.jit(fun, static_argnums=2) if name == "a word" else jax.jit(fun)
    for mine, known in zip(ours(*args), plain(*args), strict=True):
        same(mine, known)
    assert ours.stats.traces == 2
    assert ours.stats.calls == 4
    assert num_bypassed(ours) == 0
    same(ours(31.0, 2.0, V, X)[0], jax.jit(fun)(31.0, 2.0, V, X)[0])


def test_arguments_by_keyword_are_those_of_jit():
    ours = bypassing(model, 1.0, 2.0, v=V, x=X)
    same(ours(4.0, 2.0, v=V, x=X)[0], jax.jit(model)(4.0, 2.0, V, X)[0])
    assert num_bypassed(ours) == 1
    same(ours(5.0, b=2.0, v=V, x=X)[0], jax.jit(model)(5.0, 2.0, V, X)[0])
    assert ours.stats.traces == 2


def test_static_leaves_are_compared():
    fun = lambda module, x: (2.0 if module["name"] == "twice" else 1.0) * x
    ours = bypassing(fun, {"name": "twice", "w": 1.0}, 3.0)
    assert float(ours({"name": "twice", "w": 1.0}, 4.0)) == 8.0
    assert num_bypassed(ours) == 1
    assert float(ours({"name": "once", "w": 1.0}, 4.0)) == 4.0
    assert ours.stats.traces == 2


def test_modules_with_functions_among_their_leaves_bypass():
    module = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
    fun = lambda module, x: module(x)
    ours = bypassing(fun, module, jnp.ones(2))
    same(ours(module, jnp.zeros(2)), fun(module, jnp.zeros(2)))
    assert num_bypassed(ours) == 1


@pytest.mark.parametrize("setting", [jax.enable_x64, jax.debug_nans])
def test_another_configuration_is_looked_at(setting):
    ours = bypassing(model, 1.0, 2.0, V, X)
    with setting(not jax.config.jax_enable_x64 if setting is jax.enable_x64 else True):
        mine = ours(30.0, 2.0, V, X)[0]
        known = jax.jit(model)(30.0, 2.0, V, X)[0]
    assert mine.dtype == known.dtype
    np.testing.assert_allclose(mine, known, rtol=1e-5)


def test_the_precision_of_products_is_that_of_the_call():
    ours = bypassing(lambda x: x @ x, jnp.eye(3, dtype=jnp.float32))
    with jax.default_matmul_precision("highest"):
        ours(2.0 * jnp.eye(3, dtype=jnp.float32))
    assert ours.stats.traces == 2
    assert num_bypassed(ours) == 0


def test_nans_are_refused_where_that_is_asked_for():
    ours = bypassing(lambda x: jnp.log(x), 1.0)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        ours(-1.0)


def test_under_a_transformation_and_without_compiling_the_function_is_called_as_it_is():
    ours = bypassing(model, 1.0, 2.0, V, X)
    num_before = ours.stats.transparent
    slope = jax.grad(lambda a: ours(a, 2.0, V, X)[0])(3.0)
    np.testing.assert_allclose(slope, np.sum(np.exp(-2.0 * X)), rtol=1e-12)
    with jax.disable_jit():
        ours(30.0, 2.0, V, X)
    jax.jit(lambda a: a + ours(30.0, 2.0, V, X)[0])(1.0)
    assert ours.stats.transparent == num_before + 3
    assert num_bypassed(ours) == 0


def test_after_the_caches_of_jax_were_cleared_it_is_the_program_that_was_traced():
    scale = [2.0]
    ours = bypassing(lambda x: scale[0] * x, 1.0)
    scale[0] = 3.0
    jax.clear_caches()
    assert float(ours(5.0)) == 10.0
    assert num_bypassed(ours) == 1


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_call_is_verified_where_that_is_asked_for(num_before):
    """Also one that would be the last to bypass."""
    ours = bypassing(model, 1.0, 2.0, V, X, num=2)
    for number in range(num_before):
        ours(20.0 + number, 2.0, V, X)
    assert num_bypassed(ours) == num_before
    with incrax.verify(every=1):
        ours(30.0, 2.0, V, X)
    assert num_bypassed(ours) == 0
    assert ledger(ours).bypassed == num_before


def test_the_last_call_of_a_bypass_is_timed():
    ours = bypassing(model, 1.0, 2.0, V, X, num=3)
    assert not ledger(ours).turn_s
    for number in range(3):
        assert ledger(ours).is_timing_due
        same(ours(5.0 + number, 2.0, V, X)[0], jax.jit(model)(5.0 + number, 2.0, V, X)[0])
    assert ledger(ours).turn_s
    assert not ledger(ours).is_timing_due
    assert num_bypassed(ours) == 3


def test_calls_to_come_that_a_driver_announces_as_it_goes_on_end_no_bypass():
    ours = bypassing(model, 1.0, 2.0, V, X)
    for number in range(3):
        ours(5.0 + number, 2.0, V, X)
        ours.expect(1000)
    assert num_bypassed(ours) == 3


def test_a_switch_that_is_off_is_looked_at():
    from incrax import bijectors

    ours = bypassing(model, 1.0, 2.0, V, X)
    with bijectors.set_record_flow_graph(False):
        same(ours(30.0, 2.0, V, X)[0], jax.jit(model)(30.0, 2.0, V, X)[0])
    assert ours.stats.traces == 2


def test_what_was_traced_with_a_switch_off_serves_no_call_where_it_is_on():
    from incrax import bijectors

    ours = incrax.incremental(lambda x: x if bijectors.is_recording() else -x)
    with bijectors.set_record_flow_graph(False):
        for number in range(3):
            assert float(ours(1.0 + number)) == -1.0 - number
        ledger(ours).grant(LONG)
    for number in range(3):
        assert float(ours(5.0 + number)) == 5.0 + number


def test_a_deleted_input_raises_with_its_name():
    a = jnp.asarray(2.0)
    ours = bypassing(model, 1.0, 2.0, V, X)
    ours(a, 2.0, V, X)
    a.delete()
    for _ in range(2):
        with pytest.raises(incrax.errors.DeletedInputError, match="`a`"):
            ours(a, 2.0, V, X)
    same(ours(3.0, 2.0, V, X)[0], jax.jit(model)(3.0, 2.0, V, X)[0])


def test_deleted_results_are_computed_again():
    x = jnp.asarray(X)
    ours = bypassing(lambda a, x: a * jnp.sum(x), 1.0, x)
    a = 3.0
    value = ours(a, x)
    known = float(value)
    value.delete()
    assert float(ours(a, x)) == known


@pytest.fixture(params=["in a branch", "always"])
def checked(request):
    """A function with a check of Equinox that runs code outside of JAX."""
    runs = []

    def outside(a):
        runs.append(float(a))
        return np.asarray(a)

    call = lambda a: jax.pure_callback(outside, jax.ShapeDtypeStruct((), np.float64), a)

    def fun(a, b, x):
        b = eqx.error_if(b, b < 0, "b is negative")
        in_branch = request.param == "in a branch"
        factor = jax.lax.cond(a > 2.0, call, lambda a: a, a) if in_branch else call(a)
        return jnp.sum(jnp.exp(-b * x)) * factor

    return fun, runs


def test_code_outside_of_jax_bypasses_and_runs_once_for_an_operand(checked):
    fun, runs = checked
    ours = incrax.incremental(fun)
    for k in range(8):
        ours(jnp.float64(1.0 + 0.1 * k), 1.0 + k, X)
    assert ledger(ours).num_calls > 1  # it is weighed whether to look
    ledger(ours).grant(LONG)
    runs.clear()
    for b in (1.0, 2.0, 3.0):
        a = jnp.float64(3.0)
        same(ours(a, b, X), 3.0 * np.exp(-b * X).sum(), factor=64)
    assert num_bypassed(ours) == 3
    assert runs == [3.0]


def test_a_check_that_fails_in_a_bypass_ends_its_call(checked):
    ours = bypassing(checked[0], jnp.float64(1.0), 1.0, X)
    with pytest.raises(Exception, match="b is negative"):
        ours(jnp.float64(1.0), -1.0, X)
    assert num_bypassed(ours) == 1
    same(ours(jnp.float64(1.0), 1.0, X), np.exp(-X).sum(), factor=64)


def test_a_function_that_its_own_check_calls_in_a_bypass_is_an_error():
    result = jax.ShapeDtypeStruct((), np.float64)
    told = []

    def outside(a):
        try:
            ours(1.0, X)
        except ReentrantCallError as error:
            told.append(error)
        return np.asarray(a)

    call = lambda a: jax.pure_callback(outside, result, a)
    with jax.default_device(jax.devices("cpu")[0]):  # as JAX sets it for code outside of it
        ours = bypassing(lambda a, x: jax.lax.cond(a > 2, call, lambda a: a, a) + x.sum(), 1.0, X)
        ours(3.0, X)
    assert num_bypassed(ours) == 1
    assert len(told) == 1


def calling(outside, call=jax.experimental.io_callback):
    """A function that calls code outside of JAX, by default for what it does."""
    result = jax.ShapeDtypeStruct((), np.float64)
    return lambda a, x: call(outside, result, a) * jnp.sum(x)


def test_effects_happen_at_each_call_that_bypasses():
    seen = []
    x = jnp.asarray(X)
    ours = bypassing(calling(lambda a: seen.append(float(a)) or np.asarray(a)), 1.0, x)
    seen.clear()
    for _ in range(3):
        same(ours(5.0, x), 5.0 * X.sum(), factor=64)
    assert num_bypassed(ours) == 3
    assert seen == [5.0] * 3


@pytest.mark.every_case
@pytest.mark.parametrize("call", [jax.experimental.io_callback, jax.pure_callback])
@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize(("a", "words"), [(-1.0, "KeyError"), (-2.0, "shape")])
def test_code_outside_of_jax_that_fails_in_a_bypass_runs_once(call, is_timed, a, words):
    seen = []
    known = {1.0: np.float64(1.0), -2.0: np.zeros(2)}
    ours = bypassing(calling(lambda a: seen.append(float(a)) or known[float(a)], call), 1.0, X)
    ledger(ours).grant(1 if is_timed else LONG)
    ledger(ours).is_timing_due = True
    seen.clear()
    with pytest.raises(Exception, match=words):
        ours(a, X)
    assert seen == [a]
    assert ours.stats.aborted == 1
    same(ours(1.0, X), X.sum(), factor=64)


def test_a_program_with_code_outside_of_jax_that_finds_no_memory_is_tried_again():
    def full(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    ours = bypassing(calling(np.asarray, jax.pure_callback), 1.0, X)
    ours._bypass.jitted = awaited(full, ours._traces.latest.engine.calls)
    same(ours(2.0, X), 2.0 * X.sum(), factor=64)


def test_results_that_failed_after_their_call_are_no_version():
    ours = incrax.incremental(model)
    known = float(ours(3.0, 2.0, V, X)[0])
    engine = ours._traces.latest.engine
    engine.store.states[-1].outputs[0] = failed = Failed()
    engine.chooser.clock.unproven = [failed]
    assert float(ours(3.0, 2.0, V, X)[0]) == known


def test_threads_bypass_together():
    ours = bypassing(model, 1.0, 2.0, V, X)
    plain = jax.jit(model)
    wrong = []

    def work(first):
        for number in range(50):
            a = first + number
            wrong.extend([a] * (float(ours(a, 2.0, V, X)[0]) != float(plain(a, 2.0, V, X)[0])))

    threads = [threading.Thread(target=work, args=(1000.0 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_clear_drops_what_is_held():
    ours = bypassing(lambda x: x + 1, np.zeros(3))
    result = weakref.ref(ours(np.ones(3)))
    ours.clear()
    gc.collect()
    assert result() is None


def test_a_call_takes_few_moves_between_files():
    ours = bypassing(model, 1.0, 2.0, V, X)
    assert file_moves(lambda: ours(30.0, 2.0, V, X)) <= 6
