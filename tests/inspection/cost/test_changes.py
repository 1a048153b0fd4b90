"""Costs of what a change reaches: what runs again and what is avoided, as the engine would run
it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax

X = np.linspace(0.1, 2.0, 50)
PARAMS = {"mu": 0.3, "s": 1.5}


def nll(params, x):
    shape = jnp.exp(-0.5 * (x - params["mu"]) ** 2)
    return jnp.sum(jnp.log(shape * params["s"] + jnp.sin(x)))


def test_what_runs_again_and_what_is_avoided_make_the_whole():
    report = incrax.cost(nll, PARAMS, X, changing="params['s']")
    for each in report.passes:
        assert each.again + each.avoided == pytest.approx(each.total)
    assert report.forward.again.transcendentals == len(X)  # log
    assert report.forward.avoided.transcendentals == (1 + 2) * len(X)  # exp, sin


CHANGES = {
    "nothing": [],
    "one leaf": ["params['s']"],
    "another leaf": ["params['mu']"],
    "both": ["params"],
    "data": ["x"],
}


CHANGED = {
    "nothing": lambda k: (PARAMS, X),
    "one leaf": lambda k: ({**PARAMS, "s": 1.6 + k}, X),
    "another leaf": lambda k: ({**PARAMS, "mu": 0.4 + k}, X),
    "both": lambda k: ({"mu": 0.4 + k, "s": 1.6 + k}, X),
    "data": lambda k: (PARAMS, X + k),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("fun", [nll, jax.value_and_grad(nll)], ids=["value", "gradient"])
def test_flops_that_run_again_are_those_that_the_engine_runs(fun, name):
    """The minimal planner runs exactly what a change reaches: what `explain` says of a call is the
    oracle.
    """
    f = incrax.incremental(fun, tuning=MINIMAL)
    f(PARAMS, X)
    for k in (1, 2):  # the first change also fills the saved values that the second one finds
        f(*CHANGED[name](0.1 * k))
    explained = f.explain().as_dict()
    report = incrax.cost(f, PARAMS, X, changing=CHANGES[name], passes=["forward"])
    assert report.forward.again.flops == explained["flops_ran"]
    assert report.forward.avoided.flops == explained["flops_avoided"]
    assert report.forward.avoided.transcendentals == explained["transcendentals_avoided"]


def test_elements_of_a_small_array_change_by_themselves():
    def f(theta, x):
        return jnp.sum(jnp.exp(theta[0] * x)) + jnp.sum(jnp.sin(theta[1] * x))

    report = incrax.cost(f, np.array([0.1, 0.2]), X, changing="theta[1]", passes=["forward"])
    assert report.forward.again.transcendentals == 2 * len(X)
    assert report.forward.avoided.transcendentals == len(X)


def test_types_do_for_a_change():
    given = jax.tree.map(np.asarray, (PARAMS, X))
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
    values = incrax.cost(nll, *given, changing=["params['s']"]).forward.again
    assert incrax.cost(nll, *args, changing=["params['s']"]).forward.again == values


def test_cotangents_change_always():
    """No input changes, the cotangent does: another pullback at the same point."""
    report = incrax.cost(lambda x: jnp.sin(x), X, changing=[])
    assert report.forward.again.operations == 0
    assert report.backward.again.flops == len(X)  # cos(x) times the cotangent
    assert report.backward.avoided.transcendentals == 2 * len(X)


def test_methods_and_incremental_functions_are_taken_as_the_engine_runs_them():
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @incrax.incremental
        def value(self, x, y):
            return self.scale * jnp.sum(jnp.exp(x)) * y

    model = Model(2.0)
    report = incrax.cost(model.value, X, 3.0, changing="y")
    assert report.name == "value"
    assert report.forward.avoided.transcendentals == len(X)
    assert report.forward.again.flops == 1
    assert Model.value.stats.calls == Model.value.stats.transparent == 0


def test_loop_invariants_are_in_front_of_the_loop_where_a_change_is_named():
    def f(w, x):
        return jax.lax.scan(lambda c, row: (c + jnp.sum(jnp.exp(w)) * row, None), 0.0, x)[0]

    args = np.ones(10), X
    assert incrax.cost(f, *args).forward.total.transcendentals == 10 * len(X)
    assert incrax.cost(f, *args, changing="x").forward.avoided.transcendentals == 10


def test_an_incremental_gradient_costs_what_the_gradient_does():
    ours = incrax.cost(incrax.grad(nll, wrt="params"), PARAMS, X, passes=["forward"]).forward.total
    plain = incrax.cost(jax.grad(nll), PARAMS, X, passes=["forward"]).forward.total
    assert ours.operations == plain.operations


def test_effects_run_again_always():
    def f(x, y):
        jax.debug.print("{}", y)
        return jnp.exp(x) + jnp.sin(y)

    rows = incrax.cost(f, 1.0, 2.0, changing="x", passes=["forward"]).forward.equations
    again = {row.primitive for row in rows if row.runs_again}
    assert "sin" not in again
    assert {"exp", "add"} < again
    assert len(again) == 3  # what prints, whatever JAX calls it
