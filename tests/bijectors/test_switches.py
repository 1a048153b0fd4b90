"""Switches: what is switched off is not computed, in this thread only, and said once."""

from __future__ import annotations

import threading
import warnings

import jax.numpy as jnp
import pytest

import incrax
from bijectors.cases import Counted, Scale, pop_counts
from incrax import bijectors
from incrax.bijectors import switches

X = jnp.array([0.5, -1.0, 2.0])
WARNING = (
    "A log-determinant is computed although `set_requires_ladj(False)` is in force, from the "
    "remembered input. This "
    "may slow down your forward and backward passes: where a log-determinant is wanted it is "
    "cheaper to compute it "
    "together with the output. Consider removing the context manager `set_requires_ladj(False)`. "
    "This is said once."
)


@pytest.fixture
def b():
    switches._warn_once.cache_clear()
    pop_counts()
    return bijectors.remember(Counted(jnp.zeros(3)))


def test_a_log_determinant_that_is_switched_off_is_not_computed(b):
    with bijectors.set_requires_ladj(False):
        y = b.forward(X)
    assert pop_counts() == {"conditioner": 1, "forward": 1}
    assert bijectors.memory_of(y).ladj is None
    b.inverse(jnp.array(y), requires_ladj=False)
    assert "ladj" not in pop_counts()


def test_a_call_has_precedence_over_the_switch(b):
    with bijectors.set_requires_ladj(False):
        b.forward(X, requires_ladj=True)
        assert pop_counts()["ladj"] == 1
    b.forward(X, requires_ladj=False)
    assert "ladj" not in pop_counts()


def test_without_the_switch_a_late_log_determinant_is_computed_once_from_the_remembered_input(b):
    y = b.forward(X, requires_ladj=False)
    pop_counts()
    first = b.log_abs_det_jacobian(X, y)
    counts = pop_counts()
    assert counts["ladj"] == 1
    assert "inverse" not in counts
    assert b.log_abs_det_jacobian(X, y) is first
    assert pop_counts() == {}


def test_a_log_determinant_that_was_switched_off_is_warned_of_once_per_process(b):
    with bijectors.set_requires_ladj(False):
        y, z = b.forward(X), b.forward(X + 1)
        with pytest.warns(UserWarning, match="set_requires_ladj") as found:
            b.log_abs_det_jacobian(X, y)
        assert [str(warning.message) for warning in found] == [WARNING]
        assert found[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            b.log_abs_det_jacobian(X + 1, z)


def test_a_log_determinant_that_is_remembered_is_not_warned_of(b):
    y = b.forward(X)
    with bijectors.set_requires_ladj(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        b.log_abs_det_jacobian(X, y)


def test_outputs_are_neither_recorded_nor_looked_up_where_recording_is_off(b):
    y = b.forward(X)
    with bijectors.set_record_flow_graph(False):
        assert b.inverse(y) is not X
        assert bijectors.memory_of(b.forward(X)) is None
    assert b.inverse(y) is X


def test_switches_are_decorators_and_nest(b):
    @bijectors.set_requires_ladj(False)
    def inner():
        return bijectors.requires_ladj()

    on = bijectors.set_requires_ladj
    with bijectors.set_requires_ladj(False), on(True), on(True):
        assert bijectors.requires_ladj()
        assert not inner()
        assert bijectors.requires_ladj()
    assert inner.__name__ == "inner"


def test_a_switch_is_reset_by_an_error():
    with pytest.raises(KeyError), bijectors.set_record_flow_graph(False):
        raise KeyError
    assert bijectors.is_recording()


def test_a_switch_is_of_its_own_thread():
    found = []
    with bijectors.set_requires_ladj(False):
        thread = threading.Thread(target=lambda: found.append(bijectors.requires_ladj()))
        thread.start()
        thread.join()
    assert found == [True]


@pytest.mark.parametrize("switch", [bijectors.set_record_flow_graph, bijectors.set_requires_ladj])
def test_a_switch_takes_a_bool(switch):
    with pytest.raises(
        TypeError, match=rf"`{switch.__name__}` got 0 of type int; it must be True or False\."
    ):
        switch(0)


def test_what_is_no_bijection_is_refused():
    with pytest.raises(bijectors.NotABijectionError) as found:
        bijectors.remember(jnp.exp)
    assert str(found.value).endswith(
        "`transform_and_log_det` (or `forward_and_log_det`) and `inverse_and_log_det`."
    )
    with pytest.raises(bijectors.NotABijectionError, match="got the class Counted, which"):
        bijectors.remember(Counted)


@pytest.mark.parametrize(
    "compiled", [incrax.incremental, bijectors.jit], ids=["incremental", "jit"]
)
def test_a_compiled_function_has_a_program_for_each_position_of_the_switches(compiled):
    seen = []

    def f(b, x):
        seen.append((bijectors.is_recording(), bijectors.requires_ladj()))
        return b.inverse(b.forward(x))

    b, x = bijectors.remember(Scale(jnp.array([2.0, 3.0]))), jnp.ones(2)
    g = compiled(f)
    g(b, x)
    with bijectors.set_record_flow_graph(False):
        g(b, x)
    with bijectors.set_requires_ladj(False):
        g(b, x)
    g(b, x)
    assert list(dict.fromkeys(seen)) == [(True, True), (False, True), (True, False)]
