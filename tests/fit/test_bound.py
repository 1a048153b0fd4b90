"""Fits of bound models, and studies of many data sets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL

import incrax
from incrax import fit, samplers
from incrax.models.bound import prepared_of

iminuit = pytest.importorskip("iminuit", reason="iminuit is not installed")
RNG = np.random.default_rng(3)
X = RNG.normal(1.0, 2.0, 500)


def nll(params, x, shift=0.0):
    z = (x - params["mu"] - shift) / params["sigma"]
    return 0.5 * jnp.sum(z**2) + x.size * jnp.log(params["sigma"])


def model(x=X, **options):
    start = {"mu": 0.5, "sigma": 1.5}
    return incrax.bind(
        nll,
        params=start,
        x=x,
        **{"roles": {"x": "data"}, "bounds": {"sigma": (0.1, None)}, **options},
    )


@pytest.mark.parametrize("method", ["migrad", "L-BFGS-B", "SLSQP"])
def test_a_fit_leaves_the_model_at_the_minimum(method):
    m = model()
    found = fit.minimize(m, method=method)
    assert found.is_converged
    assert found.names == m.names
    np.testing.assert_allclose([m["mu"], m["sigma"]], [X.mean(), X.std()], rtol=1e-4)
    np.testing.assert_allclose(found.value, m.value(), rtol=1e-12)
    assert found.params == {"params": pytest.approx({"mu": m["mu"], "sigma": m["sigma"]})}
    np.testing.assert_allclose(found.errors, X.std() / np.sqrt([X.size, 2 * X.size]), rtol=1e-3)


def test_what_is_fixed_stays_and_has_no_error():
    m = model()
    m.set(sigma=2.0)
    m.set_role("sigma", "fixed")
    found = fit.minimize(m)
    assert found.names == ("params['mu']",)
    assert m["sigma"] == 2.0
    assert found.params["params"]["sigma"] is None
    np.testing.assert_allclose(found.errors, 2.0 / np.sqrt(X.size), rtol=1e-6)


def test_bounds_of_the_model_hold():
    m = model(bounds={"sigma": (0.1, 1.75)})
    fit.minimize(m)
    np.testing.assert_allclose(m["sigma"], 1.75, rtol=1e-3)
    assert m["sigma"] <= 1.75


def test_the_next_fit_of_a_model_traces_nothing():
    m = model()
    fit.minimize(m)
    traces = {name: f.stats.traces for name, f in prepared_of(m).methods.items()}
    m.set(mu=0.0, x=X[::-1].copy())
    fit.minimize(m)
    assert {name: f.stats.traces for name, f in prepared_of(m).methods.items()} == traces
    assert set(traces.values()) == {1}


def test_profiles_and_intervals_of_a_bound_model():
    m = model()
    found = fit.minimize(m)
    interval = found.minos("params['mu']")["params['mu']"]
    np.testing.assert_allclose([-interval.lower, interval.upper], found.errors[0], rtol=0.05)
    profile = fit.profile(found, "params['mu']", num_points=5)
    mu = profile.grid
    expected = 0.5 * X.size * np.log(np.mean((X[:, None] - mu) ** 2, axis=0) / X.var())
    np.testing.assert_allclose(profile.rise, expected, atol=1e-4)


def test_a_simultaneous_fit_is_the_fit_of_the_sum():
    y = RNG.normal(1.0, 0.5, 200)
    m = fit.simultaneous({"one": model(), "two": model(y)}, shared=["mu"])
    found = fit.minimize(m)

    def total(at):
        mu, one, two = at
        return float(nll({"mu": mu, "sigma": one}, X) + nll({"mu": mu, "sigma": two}, y))

    total.errordef = 0.5
    expected = iminuit.Minuit(total, [0.5, 1.5, 1.5])
    expected.tol = 0.01
    expected.migrad()
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-3)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=2e-2)


def test_a_constraint_pulls_the_fit():
    m = fit.constrained(model(), fit.gaussian_constraint("mu", 3.0, 1e-4))
    fit.minimize(m)
    np.testing.assert_allclose(m["mu"], 3.0, atol=1e-3)


# --- many data sets -------------------------------------------------------------------------------


def samples(count, size=300):
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(0.5, 1.5, size)} for _ in range(count)]


def test_fits_of_many_data_sets_are_unbiased():
    m = model()
    found = fit.toys(m, samples(60), progress=False)
    assert found.values.shape == found.errors.shape == (60, 2)
    assert found.is_converged.all()
    np.testing.assert_allclose(
        found.values[:, 0], [each["x"].mean() for each in samples(60)], atol=1e-3
    )
    pulls = found.pulls()
    assert np.all(np.abs(pulls.mean(axis=0)) < 4 / np.sqrt(60))
    np.testing.assert_allclose(pulls.std(axis=0), 1.0, atol=0.35)


def test_programs_are_traced_once_for_all_data_sets():
    traced = []

    def counted(params, x):
        traced.append(1)
        return nll(params, x)

    m = incrax.bind(counted, params={"mu": 0.5, "sigma": 1.5}, x=X[:300], roles={"x": "data"})
    fit.toys(m, samples(2), progress=False)
    first = len(traced)
    fit.toys(m, samples(10), progress=False)
    assert len(traced) == first


def test_the_model_is_afterwards_as_it_was():
    m = model()
    before = jax.tree.map(np.asarray, m.inputs)
    fit.toys(m, samples(2), progress=False)
    jax.tree.map(np.testing.assert_array_equal, m.inputs, before)
    with pytest.raises(incrax.errors.UnknownInputError):
        fit.toys(m, [*samples(1), {"y": X}], progress=False)
    jax.tree.map(np.testing.assert_array_equal, m.inputs, before)


def test_toys_at_a_saddle_have_not_converged_and_the_line_says_what_helps():
    saddle_of = lambda a, b, x: (x - a) ** 2 - x * b**2 + b**4  # x above zero: falls along b
    m = incrax.bind(saddle_of, a=0.0, b=0.0, x=1.0, roles={"x": "data"})
    found = fit.toys(m, [{"x": 1.0}, {"x": -1.0}], method="BFGS")
    assert found.is_converged.tolist() == [False, True]
    assert "1 of 2 fits converged; strategy=1 finds the way down" in found.summary()
    again = fit.toys(m, [{"x": -1.0}], method="BFGS")
    assert again.summary() == "1 of 1 fits converged"


def test_the_table_of_toys_leaves_out_errors_that_a_bound_took():
    m = incrax.bind(
        lambda a, x: (x - a) ** 2, a=0.5, x=1.0, roles={"x": "data"}, bounds={"a": (0, None)}
    )
    found = fit.toys(m, [{"x": 1.0}, {"x": -1.0}])
    assert found.is_converged.all()
    assert np.isnan(found.errors).ravel().tolist() == [False, True]
    assert float(found.tables()[0].rows[0][3]) == pytest.approx(found.errors[0, 0], rel=1e-3)


def test_toys_list_parameters_of_one_number_before_elements_of_arrays():
    names = (*(f"params['theta'][{k}]" for k in range(40)), "params['mu']")
    given = np.ones((2, 41))
    found = fit.Toys(names, given, given, np.ones(2), np.ones(2, bool), np.ones(41))
    assert [row[0] for row in found.tables()[0].rows[:2]] == ["params['mu']", "params['theta'][0]"]


def test_tables_and_plots_of_toys(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    found = fit.toys(model(), samples(4), progress=False)
    assert "4 of 4 fits converged" in str(found)
    assert "params['sigma']" in str(found)
    assert len(found.plot().axes) == 2
    wide = incrax.bind(
        lambda a, x: ((x - a) ** 2).sum(), a=np.zeros(8), x=np.zeros(8), roles={"x": "data"}
    )
    figure = fit.toys(wide, [{"x": np.ones(8)}]).plot()
    assert len(figure.axes) == 8
    assert figure.get_size_inches().tolist() == [6 * 2.6, 2 * 2.4]


def test_a_study_without_data_sets():
    with pytest.raises(incrax.errors.BindError) as caught:
        fit.toys(model(), iter(()), progress=False)
    assert str(caught.value) == (
        "`toys(model, data_sets)` got no data set. This is usually a generator that was used up "
        "before. Nothing was "
        "fitted. "
        'Pass a list, or a new generator: `({"x": sample(k)} for k in range(100))`.'
    )


def test_options_of_the_function_reach_the_fit():
    m = incrax.bind(
        incrax.incremental(nll, tuning=MINIMAL),
        params={"mu": 0.5, "sigma": 1.5},
        x=X,
        roles={"x": "data"},
    )
    fit.minimize(m)
    assert all(f._traces.options.tuning == MINIMAL for f in prepared_of(m).methods.values())


@pytest.mark.parametrize("given", [{"bounds": {"mu": (0, 1)}}, {"wrt": "mu"}])
@pytest.mark.parametrize("call", [fit.minimize, fit.levenberg_marquardt])
def test_what_a_model_says_itself_is_not_said_beside_it(call, given):
    with pytest.raises(incrax.errors.BindError) as caught:
        call(model(), **given)
    assert str(caught.value) == (
        f"`{call.__name__}` got a bound model and `{next(iter(given))}` beside it. A model has "
        "values, roles and "
        "bounds of its "
        "own. Nothing was evaluated. Use `model.set`, `model.set_role` and `bind(bounds=...)`, or "
        "pass the function "
        "itself."
    )


def test_a_model_of_several_numbers_is_refused_whatever_was_called_before():
    m = incrax.bind(lambda a: jnp.stack([a, a]), a=1.0)
    m.flat().value([1.0])
    with pytest.raises(fit.MethodError):
        fit.minimize(m)


def test_toys_start_from_the_present_values_each_time():
    fun = lambda mu, x, y: jnp.sum((x - mu) ** 2) + jnp.sum((y - mu) ** 2)
    m = incrax.bind(fun, mu=0.0, x=X[:4], y=X[:4], roles={"x": "data", "y": "data"})
    sets = [{"x": X[:4], "y": X[:4] + 100}, {"x": X[:4]}]
    found = fit.toys(m, sets, progress=False)
    np.testing.assert_allclose(found.values[:, 0], [X[:4].mean() + 50, X[:4].mean()], rtol=1e-5)


def test_data_sets_of_two_lengths_are_traced_twice():
    traced = []

    def counted(params, x):
        traced.append(1)
        return nll(params, x)

    m = incrax.bind(counted, params={"mu": 0.5, "sigma": 1.5}, x=X[:300], roles={"x": "data"})
    sets = [*samples(1, 200), *samples(1, 300)]
    fit.toys(m, sets, progress=False)
    first = len(traced)
    fit.toys(m, sets * 3, progress=False)
    assert len(traced) == first


def test_rows_are_data_of_a_fit():
    fun = lambda mu, x: jnp.sum((x - mu) ** 2)
    m = incrax.bind(fun, mu=0.0, x=incrax.Rows(X, chunk_rows=128), roles={"x": "data"})
    fit.minimize(m, method="BFGS")
    np.testing.assert_allclose(m["mu"], X.mean(), rtol=1e-5)


@pytest.mark.parametrize("job", [fit.minimize, samplers.gibbs, samplers.logdensity])
def test_rows_are_refused_beside_a_function_with_what_to_do(job):
    options = {"key": 0, "num_sweeps": 2} if job is samplers.gibbs else {}
    fun = lambda mu, x: -jnp.sum((x - mu) ** 2)
    with pytest.raises(incrax.errors.RowsError, match=rf"^`{job.__name__}` got `Rows`.*bind\("):
        job(fun, 0.0, incrax.Rows(X), **options)


def test_a_fit_ends_on_a_bound_that_float32_rounds():
    m = incrax.bind(lambda w: (w - 1) ** 2, w=np.float32(0.05), bounds={"w": (0.0, 0.1)})
    fit.minimize(m, method="L-BFGS-B")
    assert m["w"] == np.float32(0.1)


# --- least squares --------------------------------------------------------------------------------


def curve(params, x, y):
    return params["a"] * jnp.exp(-params["b"] * x) - y


@pytest.mark.parametrize("wrap", [lambda f: f, incrax.incremental], ids=["plain", "incremental"])
def test_least_squares_of_a_bound_model(wrap):
    x = np.linspace(0.0, 3.0, 40)
    y = 2.0 * np.exp(-1.3 * x) + 0.01 * np.random.default_rng(0).normal(size=40)
    start = {"a": 1.0, "b": 1.0}
    m = incrax.bind(
        wrap(curve),
        params=start,
        x=x,
        y=y,
        roles={"x": "data", "y": "data"},
        bounds={"b": (0.0, 1.25)},
    )
    found = fit.levenberg_marquardt(m)
    assert m["b"] == 1.25
    m = incrax.bind(wrap(curve), params=start, x=x, y=y, roles={"x": "data", "y": "data"})
    found = fit.levenberg_marquardt(m)
    expected = fit.levenberg_marquardt(curve, start, x, y)
    np.testing.assert_allclose([m["a"], m["b"]], expected.values, rtol=1e-9)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-6)
    assert found.params == {"params": {"a": found.values[0], "b": found.values[1]}}
    m.set_role("b", "fixed")
    assert fit.levenberg_marquardt(m).names == ("params['a']",)
