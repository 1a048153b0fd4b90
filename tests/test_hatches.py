"""Ways out and back: verification, the switch, copies, pickles, forked processes."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, aligned, ran_by, same

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


def test_a_stale_result_says_what_changed():
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
    assert "All saved values were dropped" in text
    same(f(3.0, 1.5), jnp.float64(3.0) * jnp.exp(jnp.sin(1.5)))


def test_wrong_results_without_verification_show_that_the_test_above_can_fail():
    f = incrax.incremental(lambda a, b: a * jnp.sum(jnp.exp(jnp.sin(b))), tuning=MINIMAL)
    f(1.0, 1.5)
    spoil(f)
    assert not np.isclose(f(3.0, 1.5), 3.0 * np.exp(np.sin(1.5)))


def test_one_verification_is_open_in_several_threads():
    both_are_inside = threading.Barrier(2)
    first_is_out = threading.Event()

    @incrax.verify()
    def work(is_first):
        both_are_inside.wait(60)
        is_first or first_is_out.wait(60)
        return is_first

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(work, True), pool.submit(work, False)
        try:
            assert first.result()
        finally:
            first_is_out.set()
        assert not second.result()


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


# --- copies, pickles, processes -------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_has_no_values_and_is_independent(duplicate):
    f = made()
    f(1.0, 1.5, X)
    g = duplicate(f)
    assert g._traces.options == f._traces.options
    assert ran_by(g, 1.0, 1.5, X) > 0
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
