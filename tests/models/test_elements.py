"""Elements of arrays by name, wherever a bound model takes names."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, same
from slice_cases import serve_by_rows

import incrax
from incrax import fit
from incrax.engine.inputs import leaves
from incrax.engine.inputs.row_updates import rows_between

TARGET = np.array([1.0, 2.0, 3.0])


def loss(p, x):
    return jnp.sum((p["theta"] - x) ** 2) + p["mu"] ** 2


def model(**options):
    start = {"theta": np.zeros(3), "mu": 1.0}
    return incrax.bind(loss, p=start, x=TARGET, roles={"x": "data"}, **options)


def test_bounds_of_elements_hold_in_a_fit():
    m = model(bounds={"theta": (-5.0, 5.0), "theta[1]": (None, 1.5), "p['theta'][2]": (0.0, 2.0)})
    low, high = m.bounds["p['theta']"]
    np.testing.assert_array_equal(low, [-5.0, -np.inf, 0.0])
    np.testing.assert_array_equal(high, [5.0, 1.5, 2.0])
    fit.minimize(m)
    np.testing.assert_allclose(m["theta"], [1.0, 1.5, 2.0], atol=0.01)
    assert float(m["theta[1]"]) == m["theta"][1]


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ({"theta[0]": 1.0}, "it is no pair"),
        ({"theta[0]": (1.0, 0.0)}, "the lower bound is not below the upper one"),
        ({"x[0]": (0.0, 1.0)}, 'whose role is "data"'),
    ],
)
def test_bounds_of_elements_that_are_none(bounds, reason):
    with pytest.raises(incrax.errors.BindError, match=reason):
        model(bounds=bounds)
    with pytest.raises(incrax.errors.InputValueError, match=r"`p\['theta'\]\[0\]`"):
        model(bounds={"theta[0]": (1.0, 2.0)})


def test_elements_are_set_and_put_back():
    m = model()
    m.set({"theta[0]": 4.0, "theta[2]": np.float64(5.0), "mu": 2.0, "x[1]": 0.5})
    np.testing.assert_array_equal(m["theta"], [4.0, 0.0, 5.0])
    np.testing.assert_array_equal(m["x"], [1.0, 0.5, 3.0])
    with m.at({"theta[1]": 7.0}):
        value = float(m.value())
        assert value == float(loss(m.inputs["p"], m["x"]))
    np.testing.assert_array_equal(m["theta"], [4.0, 0.0, 5.0])


def test_elements_that_cannot_be_set():
    m = model(bounds={"theta[0]": (-1.0, 1.0)})
    for values in ({"theta[0]": 2.0}, {"theta[0]": np.ones(2)}, {"theta": TARGET, "theta[1]": 1.0}):
        with pytest.raises(incrax.errors.InputValueError):
            m.set(values)
    with pytest.raises(incrax.errors.InputValueError, match="takes one number"):
        jax.jit(lambda y: m.set({"theta[1]": y}))(1.0)
    with pytest.raises(incrax.errors.UnknownInputError, match="counts from 1"):
        m.set({"theta[3]": 1.0})
    np.testing.assert_array_equal(m["theta"], np.zeros(3))


def test_a_fit_evaluates_what_users_read():
    """One function each, so that it is compiled once."""
    m = model()
    m.value_and_grad()
    found = fit.minimize(m)
    fit.minimize(m, method="Nelder-Mead")
    found.hessian  # noqa: B018
    slope = fit.make_task(m, ()).flat.hvp(found.values, np.ones(len(found.values)))
    np.testing.assert_allclose(slope, found.hessian.sum(axis=0), atol=1e-12)
    m.value()
    m.grad()
    m.hessian()
    assert {name: stats.traces for name, stats in m.stats.items()} == {
        "value": 1,
        "value_and_grad": 1,
        "hessian": 1,
    }


def test_an_element_of_an_array_of_jax_is_known_to_have_changed_alone(monkeypatch):
    """Nothing of the size of the array is read, and its row alone runs."""
    serve_by_rows(monkeypatch)
    y = jnp.asarray(np.random.default_rng(0).normal(size=(400, 300)))
    cost = lambda theta, mu: jnp.sum((y - theta[:, None] - mu) ** 2)
    m = incrax.bind(incrax.incremental(cost, tuning=EAGER), theta=jnp.zeros(400), mu=0.5)
    for k in range(8):
        m.set({f"theta[{k}]": 0.1 * k})
        m.value()
    read = []
    monkeypatch.setattr(leaves, "_read_bits", lambda x: read.append(np.shape(x)) or np.asarray(x))
    for k in range(40):
        before = m["theta"]
        m.set({f"theta[{7 * k % 400}]": 1.0 + k, f"theta[{-1 - k}]": 2})
        assert rows_between(m["theta"], before).tolist() == sorted({7 * k % 400, 399 - k})
        m.set({f"theta[{3 * k}]": 0.0})
        same(m.value(), cost(m["theta"], 0.5), factor=1024, terms=400)
    assert (400,) not in read
    assert m.explain().served_by == "slices"
    m.set({"theta[0]": 0})
    with m.at({"theta[2]": 9.0}):
        m.value()
    assert (400,) not in read
