"""Impacts: a Gaussian closed form and fits by scipy are the oracles; counters say what did not run."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import incrax
from incrax import fit

traced = []
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
)

# --- a linear model: impact = covariance / error of the nuisance parameter ------------------------

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(6, 5))
MATRIX = ROOT.T @ ROOT
CENTER = np.array([1.0, -0.5, 0.25, 0.0, 2.0])
COVARIANCE = np.linalg.inv(MATRIX)
ERRORS = np.sqrt(np.diagonal(COVARIANCE))


def gaussian(mu, theta):
    d = jnp.concatenate([mu[None], theta]) - CENTER
    return 0.5 * d @ MATRIX @ d + 3.0


@pytest.fixture(scope="module")
def linear():
    m = incrax.bind(gaussian, mu=np.array(0.0), theta=np.zeros(4))
    return fit.minimize(m)


def test_impacts_of_a_linear_model_are_covariances(linear):
    found = fit.impacts(linear, "mu")
    expected = COVARIANCE[0, 1:] / ERRORS[1:]
    order = np.argsort(-np.abs(expected))
    assert found.names == tuple(f"theta[{k}]" for k in order)
    np.testing.assert_allclose(found.shifts[:, 1], expected[order], rtol=1e-6)
    np.testing.assert_allclose(found.shifts[:, 0], -expected[order], rtol=1e-6)
    np.testing.assert_allclose(found.sizes, np.abs(expected)[order], rtol=1e-6)
    np.testing.assert_allclose(found.errors, np.stack([ERRORS[1:][order]] * 2, axis=1), rtol=1e-6)
    np.testing.assert_allclose([found.value, found.error], [CENTER[0], ERRORS[0]], rtol=1e-6)
    assert (found.poi, found.is_converged.all()) == ("mu", True)


def test_a_point_of_a_linear_model_is_one_evaluation(linear):
    assert linear.errors.shape == (5,)  # the exact Hessian is known now
    found = fit.impacts(linear, "mu")
    assert found.counts.gradients <= 8 + 2
    assert found.counts.hessians == 0


# --- a template fit: scipy is the oracle ----------------------------------------------------------

NUM_BINS, NUM_NUISANCES = 15, 6
SHAPES = RNG.normal(size=(NUM_NUISANCES, NUM_BINS))
SIGNAL = 20.0 * np.exp(-0.5 * ((np.arange(NUM_BINS) - 7.0) / 2.0) ** 2)
COUNTS = RNG.poisson(50.0 + SIGNAL)


def nll(mu, theta, counts):
    traced.append(1)
    expected = mu * SIGNAL + 50.0 * jnp.exp(0.1 * theta @ SHAPES)
    return jnp.sum(expected - counts * jnp.log(expected)) + 0.5 * jnp.sum(theta**2)


def template(**options):
    fun = incrax.incremental(nll, tuning=incrax.Tuning(timed=False))
    roles = {"counts": "data"}
    return incrax.bind(
        fun, mu=0.5, theta=np.zeros(NUM_NUISANCES), counts=COUNTS, roles=roles, **options
    )


@pytest.fixture(scope="module")
def fitted():
    return fit.minimize(template())


def brute_force(number, value):
    """The parameter of interest at the minimum with one nuisance parameter held."""
    others = np.delete(np.arange(1 + NUM_NUISANCES), 1 + number)

    def of_others(v):
        x = jnp.zeros(1 + NUM_NUISANCES).at[others].set(v).at[1 + number].set(value)
        return nll(x[0], x[1:], COUNTS)

    both = jax.jit(jax.value_and_grad(of_others))
    hessian = jax.jit(jax.hessian(of_others))
    start = np.zeros(NUM_NUISANCES)
    start[0] = 0.5
    found = scipy.optimize.minimize(
        both, start, jac=True, hess=hessian, method="trust-exact", tol=1e-9
    )
    return found.x[0]


def test_impacts_are_those_of_fits_from_scratch(fitted):
    found = fit.impacts(fitted, "mu")
    number = int(found.names[0].removeprefix("theta[").removesuffix("]"))
    free = lambda v: nll(v[0], v[1:], COUNTS)
    start = np.asarray(fitted.values)
    best = scipy.optimize.minimize(
        jax.jit(jax.value_and_grad(free)), start, jac=True, hess=jax.jit(jax.hessian(free)),
        method="trust-exact", tol=1e-9,
    ).x[0]  # fmt: skip
    for name, held, shifts in zip(found.names[:3], found.held, found.shifts, strict=False):
        number = int(name.removeprefix("theta[").removesuffix("]"))
        expected = [brute_force(number, value) - best for value in held]
        np.testing.assert_allclose(shifts, expected, atol=1e-3 * found.error)
    assert np.all(np.diff(found.sizes) <= 0)
    differences = 1 + 6 * (1 + NUM_NUISANCES)
    assert found.counts.gradients <= differences + 1 + 2 * 2 * NUM_NUISANCES
    assert found.counts.hessians == 0


def test_nothing_is_traced_or_compiled_after_the_fit():
    m = template()
    found = fit.minimize(m)
    traced.clear()
    compiled.clear()
    fit.impacts(found, "mu")
    assert "hessian" not in vars(found)
    m.fix("theta[2]")
    again = fit.impacts(m, "mu")
    assert "theta[2]" not in again.names
    assert not traced
    assert not compiled


def test_differences_of_gradients_do_for_the_exact_hessian():
    found = fit.minimize(template())
    by_differences = fit.impacts(found, "mu")
    assert found.errors[0] == pytest.approx(by_differences.error, rel=1e-5)
    exact = fit.impacts(found, "mu")
    assert exact.names == by_differences.names
    np.testing.assert_allclose(by_differences.errors, exact.errors, rtol=1e-5)
    np.testing.assert_allclose(by_differences.shifts, exact.shifts, atol=1e-3 * exact.error)


@pytest.mark.parametrize(
    ("loss", "bounds"),
    [
        (lambda p: p["mu"] ** 2 + (p["mu"] + p["theta"]) ** 2 + 1e-9 * p["theta"] ** 2, None),
        (lambda p: p["mu"] ** 2 + (p["theta"] - 2.0) ** 2, {"p['theta']": (None, 1.0)}),
        (lambda p: p["mu"] ** 2 + 1e-7 * (p["mu"] + p["theta"]) ** 2 + 0.0 * p["theta"], None),
    ],
    ids=["well determined", "at a bound", "hardly determined"],
)
def test_errors_are_those_of_the_exact_hessian_where_differences_do_not_do(loss, bounds):
    found = fit.minimize(loss, {"mu": 0.5, "theta": 0.5}, bounds=bounds, method="L-BFGS-B")
    exact = fit.minimize(loss, {"mu": 0.5, "theta": 0.5}, bounds=bounds, method="L-BFGS-B")
    exact.errors  # noqa: B018
    np.testing.assert_allclose(
        fit.impacts(found, "mu").errors, fit.impacts(exact, "mu").errors, rtol=1e-4
    )


def test_how_near_the_fit_came_to_its_minimum_is_no_part_of_the_impacts(fitted):
    """A method is content a hundredth of an error away, or more."""
    rough = dataclasses.replace(fitted, values=fitted.values + 0.05 * fitted.errors)
    expected = fit.impacts(fitted, "mu")
    found = fit.impacts(rough, "mu")
    assert found.names == expected.names
    np.testing.assert_allclose(found.shifts, expected.shifts, atol=0.01 * found.error)
    np.testing.assert_allclose(found.value, expected.value, atol=1e-3 * found.error)


def test_pulls_are_in_units_of_the_constraints(fitted):
    found = fit.impacts(fitted, "mu", constraints={"theta": (0.0, 1.0)})
    values = dict(zip(fitted.names, fitted.values, strict=True))
    errors = dict(zip(fitted.names, fitted.errors, strict=True))
    np.testing.assert_allclose(found.pulls, [values[name] for name in found.names], atol=0.01)
    np.testing.assert_allclose(found.pull_errors[:, 1], [errors[name] for name in found.names])
    assert np.all(found.pull_errors <= 1.0 + 1e-6)
    arrays = (np.arange(6.0), np.arange(1.0, 7.0))
    found = fit.impacts(fitted, "mu", constraints={"theta": arrays, "theta[2]": (5.0, 0.5)})
    place = found.names.index("theta[3]")
    assert (found.centres[place], found.widths[place]) == (3.0, 4.0)
    place = found.names.index("theta[2]")
    assert found.pulls[place] == pytest.approx((values["theta[2]"] - 5.0) / 0.5, rel=1e-2)


def test_parameters_without_a_constraint_have_no_pull(fitted):
    found = fit.impacts(fitted, "mu", constraints={"theta[1]": (0, 1)})
    assert np.sum(np.isfinite(found.pulls)) == 1
    assert np.all(np.isfinite(found.shifts))


def test_intervals_of_minos_are_where_it_is_held():
    found = fit.minimize(template())
    interval = found.minos("theta[0]")["theta[0]"]
    ranked = fit.impacts(found, "mu")
    at = ranked.names.index("theta[0]")
    assert ranked.errors[at].tolist() == [-interval.lower, interval.upper]
    np.testing.assert_allclose(ranked.held[at, 0], ranked.values[at] + interval.lower)


def test_bounds_hold():
    m = template(bounds={"theta": (-0.25, 0.25)})
    found = fit.impacts(m, "mu")
    assert np.nanmax(found.held) <= 0.25
    is_held = np.isnan(found.errors[:, 0])
    assert is_held.any()  # at a bound, which holds it
    assert not is_held.all()
    assert np.all(np.isnan(found.shifts[is_held]))
    assert not found.is_converged[is_held].any()
    assert is_held[-1]
    assert found.is_converged[~is_held].all()
    assert not found.is_alarming  # what a bound holds has no minima to be found


@pytest.mark.parametrize("given", ["model", "tuple"])
def test_what_was_not_minimised_is(given, fitted):
    expected = fit.impacts(fitted, "mu")
    if given == "model":
        found = fit.impacts(template(), "mu")
    else:
        found = fit.impacts((nll_of, (0.5, np.zeros(6)), COUNTS), "p[0]")
    np.testing.assert_allclose(found.sizes, expected.sizes, atol=1e-3 * expected.error)
    line = fit.profile(template(), "mu", num_points=3)
    np.testing.assert_allclose(line.rise[[0, 2]], 2.0, rtol=0.1)


def nll_of(p, counts):
    return nll(p[0], p[1], counts)


def test_names_are_ends_of_paths():
    start = {"mu": 0.5, "shape": {"theta": np.zeros(6)}}
    found = fit.minimize(lambda p, counts: nll(p["mu"], p["shape"]["theta"], counts), start, COUNTS)
    ranked = fit.impacts(found, "mu")
    assert ranked.poi == "p['mu']"
    assert set(ranked.names) == {f"p['shape']['theta'][{k}]" for k in range(6)}
    assert "p['shape']['theta'][1]" not in fit.impacts(found, "theta[1]").names


def test_one_parameter_alone_has_no_impacts():
    found = fit.impacts((lambda p: (p["mu"] - 1.0) ** 2, {"mu": 0.0}), "mu")
    assert found.names == ()
    assert found.shifts.shape == (0, 2)
    assert str(found).startswith("p['mu'] = 1")


def test_single_precision_ends():
    m = incrax.bind(lambda mu, theta: jnp.float32(0.5) * ((mu + theta - 1) ** 2 + theta**2 + mu**2),
                    mu=np.float32(0.5), theta=np.float32(0.5))  # fmt: skip
    found = fit.impacts(m, "mu")
    np.testing.assert_allclose(found.shifts[0], [0.408, -0.408], atol=0.01)
    assert found.is_converged.all()


# --- reports --------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each(fitted):
    lines = str(fit.impacts(fitted, "mu", constraints={"theta": (0, 1)})).splitlines()
    assert lines[0].startswith("mu = ")
    assert "moved by 6 parameters; most by theta[" in lines[0]
    assert "pull" in lines[2]
    assert len(lines) == 4 + 6
    assert all(line.startswith("theta[") for line in lines[4:])
    assert all(line.count("+") + line.count("-") >= 3 for line in lines[4:])


def test_plots_have_pulls_and_impacts(fitted):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    found = fit.impacts(fitted, "mu", constraints={"theta[0]": (0, 1), "theta[1]": (0, 1)})
    left, right = found.plot(num_rows=4).axes
    assert len(right.patches) == 8
    widths = sorted(abs(bar.get_width()) for bar in right.patches)
    np.testing.assert_allclose(widths, np.sort(np.abs(found.shifts[:4]).ravel()))
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels[0].startswith(found.names[0])
    assert sum("±" in label for label in labels) >= 2
    figure = matplotlib.pyplot.figure()
    axes = figure.subplots(1, 2)
    assert found.plot(axes) is figure
    figure.canvas.draw()


# --- errors ---------------------------------------------------------------------------------------


def text_of(*args, **options):
    with pytest.raises(fit.MinimumError) as caught:
        fit.impacts(*args, **options)
    return str(caught.value)


def test_names_that_are_none_or_several(fitted):
    assert text_of(fitted, "nu") == (
        "'nu' names no free element of this fit. This is usually a typing error, an array without "
        "`[i]`, or a parameter that `wrt` leaves out. Nothing was evaluated. Free are "
        + ", ".join(f"`{name}`" for name in fitted.names[:8])
        + "."
    )
    assert text_of(fitted, "theta") == (
        "'theta' may be `theta[0]`, `theta[1]`, `theta[2]`, `theta[3]`, `theta[4]`, `theta[5]`. This "
        "is usually an array without `[i]`, or a name that two models have. Nothing was evaluated. "
        "Write the whole name of the one you mean."
    )
    two = fit.simultaneous({"one": template(), "two": template()}, shared=["mu"])
    found = fit.minimize(two)
    given = {"theta": (0.0, 1.0)}
    assert "may be `one['theta'][0]`" in text_of(found, "mu", constraints=given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"theta": 1.0}, "1.0 for `theta`: it is no pair"),
        ({"theta": ("a", 1.0)}, "('a', 1.0) for `theta`: it is no numbers"),
        (
            {"theta[1]": (0.0, 0.0)},
            "the standard error 0 for `theta[1]`: it is no number above zero",
        ),
        (
            {"theta": (np.zeros(2), 1.0)},
            "an array of shape [2] for `theta`: it does not fit the element `theta[2]`",
        ),
    ],
)
def test_constraints_that_do_not_fit(fitted, given, reason):
    assert text_of(fitted, "mu", constraints=given) == (
        f"`impacts(constraints=...)` got {reason}. Nothing was evaluated. Pass the centre and the "
        "standard error of the constraint, numbers or arrays of the parameter's shape: "
        '`constraints={"theta": (0.0, 1.0)}`.'
    )


def test_constraints_that_are_no_mapping(fitted):
    with pytest.raises(TypeError, match=r"`impacts\(constraints=...\)` got .* of type list"):
        fit.impacts(fitted, "mu", constraints=[("theta", (0.0, 1.0))])


def test_points_that_are_no_minimum(fitted):
    stopped = fit.minimize(template(), max_calls=1)
    assert text_of(stopped, "mu").startswith(
        "`impacts` goes out from a minimum, and this search ended as: step limit reached, "
    )


def test_an_amplitude_at_its_bound_leaves_its_rate_free_without_a_warning():
    times = np.linspace(0.0, 3.0, 20)
    curve = lambda p: jnp.exp(-jnp.outer(times, p["rate"])) @ p["a"]
    start = {"a": np.array([0.8, 0.4]), "rate": np.array([1.5, 0.5])}
    counts = np.asarray(curve(start))
    loss = lambda p: 0.5 * jnp.sum((curve(p) - counts) ** 2)
    bounds = {"a": (0.0, None), "rate": (0.1, 3.0)}
    result = fit.minimize(loss, start, bounds=bounds, method="L-BFGS-B")
    found = fit.impacts(result, "rate[1]")
    assert found.held[found.names.index("p['a'][0]"), 0] == 0.0


def test_rows_say_whose_minimum_was_not_found(fitted):
    for found in (fit.impacts(fitted, "mu"), fit.profile(fitted, "mu", num_points=3)):
        assert "minimum not found" not in str(found)
        failed = found.is_converged.copy()
        failed[1] = False
        _, second, *_ = dataclasses.replace(found, is_converged=failed).tables()[0].rows[:3]
        assert second[-1] == "minimum not found"
