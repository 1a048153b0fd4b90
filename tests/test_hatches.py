"""Ways out and back: verification, the switch, checkpoints, copies, pickles, forked processes."""

from __future__ import annotations

import copy
import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, aligned, check, ran_by, same
from hypothesis import given
from hypothesis import strategies as st

import incrax

X = np.linspace(0.1, 2.0, 50)


def model(a, b, x):
    return a * jnp.sum(jnp.exp(-b * x)), jnp.sin(b) + x


@incrax.incremental(tuning=MINIMAL)
def decorated(a, x):
    return a * jnp.sum(jnp.exp(x))


def made(**options):
    return incrax.incremental(model, tuning=MINIMAL, **options)


# --- verify ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tuning", [MINIMAL, None], ids=["minimal", "cost"])
def test_right_results_pass_and_the_store_is_left_alone(tuning):
    f = incrax.incremental(model, tuning=tuning)
    with incrax.verify():
        for a in (1.0, 2.0, 2.0, np.nan, 0.0):
            same(f(a, 1.5, X), model(a, 1.5, X))
    unchanged = f.stats.unchanged
    f(0.0, 1.5, X)
    assert f.stats.unchanged == unchanged + 1


def spoil(f, factor=1.5):
    """Multiply every saved value."""
    for state in f._traces.latest.engine.store.states:
        state.saved = {var: x * factor for var, x in state.saved.items()}


def test_a_stale_value_is_named():
    f = incrax.incremental(lambda a, b: a * jnp.sum(jnp.exp(jnp.sin(b))), tuning=MINIMAL)
    f(1.0, 1.5)
    f(2.0, 1.5)
    spoil(f)
    with pytest.raises(incrax.StaleResultError) as caught, incrax.verify():
        f(3.0, 1.5)
    text = str(caught.value)
    assert text.startswith(
        "`<lambda>` returned an output that differs from a fresh evaluation by 0.5 of its largest"
    )
    assert "Changed in this call: `a`." in text
    assert (
        "The first saved value that is stale: f64[] of `reduce_sum` at " in text
        or "of `exp` at" in text
    )
    assert "test_hatches.py" in text
    assert "All saved values were dropped" in text
    same(f(3.0, 1.5), jnp.float64(3.0) * jnp.exp(jnp.sin(1.5)))


def test_wrong_results_without_verification_show_that_the_test_above_can_fail():
    f = incrax.incremental(lambda a, b: a * jnp.sum(jnp.exp(jnp.sin(b))), tuning=MINIMAL)
    f(1.0, 1.5)
    spoil(f)
    assert not np.isclose(f(3.0, 1.5), 3.0 * np.exp(np.sin(1.5)))


def test_one_in_so_many_calls_is_verified():
    f = made()
    f(1.0, 1.5, X)
    with incrax.verify(every=3):
        f(2.0, 1.5, X)
        spoil(f)
        f(3.0, 1.5, X)
        with pytest.raises(incrax.StaleResultError):
            f(4.0, 1.5, X)


def test_a_function_that_is_not_deterministic_is_reported_as_such():
    count = [0.0]

    def impure(x):
        count[0] += 1.0
        return np.float64(count[0])

    def fun(a):
        return a + jax.pure_callback(impure, jax.ShapeDtypeStruct((), jnp.float64), a)

    f = incrax.incremental(fun, tuning=MINIMAL)
    with pytest.raises(incrax.StaleResultError, match="is not deterministic"), incrax.verify():
        f(1.0)


def test_memory_changed_behind_jax_is_found():
    owner = aligned(4096)
    x = jax.device_put(owner)
    f = incrax.incremental(lambda a, x: a * jnp.sum(x), tuning=MINIMAL)
    f(1.0, x)
    owner[:] = 1.0
    if float(jnp.sum(x)) == 0.0:
        pytest.skip("this JAX copies aligned memory")
    with pytest.raises(incrax.StaleResultError, match="device_put"), incrax.verify():
        f(2.0, x)


def test_tolerances_and_options():
    f = made()
    f(1.0, 1.5, X)
    f(2.0, 1.5, X)
    spoil(f, 1 + 1e-6)
    with incrax.verify(rtol=1e-3):
        f(3.0, 1.5, X)
    with incrax.verify(atol=1.0):
        f(4.0, 1.5, X)
    with pytest.raises(ValueError, match="verify"):
        incrax.verify(every=0)

    @incrax.verify(every=1)
    def verified():
        return f(5.0, 1.5, X)

    with pytest.raises(incrax.StaleResultError):
        verified()


# --- the switch -----------------------------------------------------------------------------------


def test_switched_off_nothing_is_saved(monkeypatch):
    monkeypatch.setenv("INCRAX_DISABLE", "1")
    f = made()
    for a in (1.0, 1.0, 2.0):
        same(f(a, 1.5, X), jax.jit(model)(a, 1.5, X))
    f.warm_up(1.0, 1.5, X, changing=["a"])
    assert f.stats.unchanged == f.stats.loaded == f.stats.saved_bytes == 0
    state, step = f.pure(1.0, 1.5, X)
    same(step(state, 2.0, 1.5, X, changed=())[1], model(2.0, 1.5, X))
    monkeypatch.setenv("INCRAX_DISABLE", "0")
    assert ran_by(made(), 1.0, 1.5, X) > 0


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_rollback_evaluates_nothing_and_goes_on_from_there():
    f = made()
    expected = f(1.0, 1.5, X)
    f.checkpoint()
    for k in range(5):
        f(1.0 + k, 2.0 + k, X)
        check(f)
    before = f.stats.as_dict()
    same(f.rollback(), expected)
    assert {**f.stats.as_dict(), "unchanged": 0} == {**before, "unchanged": 0}
    assert ran_by(f, 1.0, 1.5, X) == 0
    few = ran_by(f, 2.0, 1.5, X)
    assert 0 < few < ran_by(made(), 2.0, 1.5, X)
    for k in range(4):
        f(5.0, 6.0 + k, X)
    same(f.rollback(), expected)


def test_only_one_version_more_is_kept_and_it_can_be_dropped():
    f = made()
    for k in range(3):
        f(1.0, 1.5 + k, X)
        f.checkpoint()
        f(2.0, 7.0 + k, X)
        f(3.0, 8.0 + k, X)
        check(f)
    assert len(f._traces.latest.engine.store.states) == 3
    f.clear()
    with pytest.raises(incrax.NotCalledError) as caught:
        f.rollback()
    assert str(caught.value) == (
        "`rollback()` needs a version to go back to, and none is kept: `checkpoint()` was not "
        "called, or `clear()` or "
        "an error dropped its values since. The saved values are as they were. Call `checkpoint()` "
        "after a call of the "
        "function."
    )
    with pytest.raises(incrax.NotCalledError, match="checkpoint"):
        made().checkpoint()


def test_a_checkpoint_of_another_signature():
    f = made()
    expected = f(1.0, 1.5, X)
    f.checkpoint()
    f(1.0, 1.5, X[:10])
    same(f.rollback(), expected)
    assert list(f.explain().as_dict()["changed"]) == []
    f(1.0, 1.5, X[:10])
    f.checkpoint()
    f(1.0, 1.5, X)
    same(f.rollback(), model(1.0, 1.5, X[:10]))


def test_a_rollback_to_results_that_were_deleted_computes_them_again():
    f = made()
    outputs = f(1.0, 1.5, X)
    f.checkpoint()
    f(2.0, 2.5, X)
    for x in outputs:
        x.delete()
    same(f.rollback(), model(1.0, 1.5, X))


@given(
    st.lists(
        st.sampled_from(["a", "b", "x", "checkpoint", "rollback", "clear", "evict", "fork"]),
        max_size=14,
    )
)
def test_checkpoints_in_any_sequence(actions):
    f = made(memory=700)
    at = {"a": 1.0, "b": 1.5, "x": X}
    f(**at)
    pinned = None
    for number, action in enumerate(actions):
        if action in at:
            at = {**at, action: at[action] * 1.25}
            same(f(**at), model(**at))
        elif action == "checkpoint" and f._traces.latest.engine.store.states:
            f.checkpoint()
            pinned = at
        elif action == "rollback" and pinned is not None:
            same(f.rollback(), model(**pinned))
            at = pinned
        elif action == "clear":
            f.clear()
            pinned = None
        elif action == "fork":
            f = f.fork()
        elif action == "evict":
            f._traces.latest.engine.store.budget_bytes = 100 * (number % 3)
            f._traces.latest.engine.store.pin(f._traces.latest.engine.store.pinned)
        check(f)


# --- copies, pickles, processes -------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_shares_values_and_is_independent(duplicate):
    f = made()
    f(1.0, 1.5, X)
    g = duplicate(f)
    assert ran_by(g, 1.0, 1.5, X) == 0
    g(2.0, 2.5, X)
    assert ran_by(f, 1.0, 1.5, X) == 0
    assert copy.deepcopy({"f": f})["f"](1.0, 1.5, X)[0] == f(1.0, 1.5, X)[0]


def test_pickles_hold_the_function_and_its_options_but_no_values():
    f = made(memory=12345, versions=3, policy="exact")
    f(1.0, 1.5, X)
    data = pickle.dumps(f)
    assert len(data) < 2000
    g = pickle.loads(data)
    assert g._traces.options == f._traces.options
    assert g.stats.calls == 0
    same(g(2.0, 1.5, X), model(2.0, 1.5, X))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(incrax.incremental(lambda x: x))


def test_decorated_functions_are_pickled_by_name():
    import importlib
    import sys

    module = sys.modules[__name__] if __name__ in sys.modules else importlib.import_module(__name__)
    assert module.decorated is decorated
    assert pickle.loads(pickle.dumps(decorated)) is decorated


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
def test_a_forked_process_starts_without_values():
    f = made()
    f(1.0, 1.5, X)
    f._lock.acquire()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        is_clean = f._traces.latest is None and not f._traces.table and f._lock.acquire(timeout=5)
        os.write(writer, b"1" if is_clean else b"0")
        os._exit(0)
    f._lock.release()
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    assert ran_by(f, 1.0, 1.5, X) == 0
