"""Seed 000, zfit/zfit-development issue 47 (https://github.com/zfit/zfit-development/issues/47).

Its wishes: values kept with their dependence tracked, a defined rule for when they become stale,
derivatives through them, parameters and data as equal inputs, constant parts cut off at their
highest point, a hook before the fit. Wish by wish, they are in README.md beside this file.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check_calls, primitives_run, ran_by, same

import incrax

pytestmark = pytest.mark.optimized

LOW, HIGH = 0.0, 10.0
GRID = np.linspace(LOW, HIGH, 501)
DATA = np.random.default_rng(0).uniform(LOW, HIGH, 400)
PARAMS = {"mu": 5.0, "sigma": 1.0, "slope": 0.3, "n_signal": 150.0, "n_background": 250.0}


def integral(shape):
    """A numerical normalisation, the expensive calculation of the thread."""
    values = shape(GRID)
    return jnp.sum(0.5 * (values[1:] + values[:-1])) * (HIGH - LOW) / 500


def gauss(mu, sigma, x):
    return jnp.exp(-0.5 * ((x - mu) / sigma) ** 2)


def wave(slope, x):
    return 1.0 + slope * jnp.sin(x)


def model(params, x):
    """A sum of two pdfs with yields; `cosh` stands in the one integral and `sin` in the other."""
    signal_area = integral(lambda g: gauss(params["mu"], params["sigma"], g)) * jnp.cosh(
        params["mu"] - params["mu"]
    )
    background_area = integral(lambda g: wave(params["slope"], g))
    signal = gauss(params["mu"], params["sigma"], x) / signal_area
    background = wave(params["slope"], x) / background_area
    rate = params["n_signal"] * signal + params["n_background"] * background
    return params["n_signal"] + params["n_background"] - jnp.sum(jnp.log(rate))


def changed(**values):
    return {**PARAMS, **values}


# --- kept values and when they become stale -------------------------------------------------------


def test_a_kept_value_is_stale_exactly_when_an_input_that_it_depends_on_changes():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, DATA)
    for name, integral_runs in [
        ("slope", False),
        ("n_signal", False),
        ("mu", True),
        ("sigma", True),
    ]:
        f(PARAMS, DATA)
        f(changed(**{name: PARAMS[name] * 1.1}), DATA)
        assert ("exp" in primitives_run(f)) is integral_runs, name


def test_setting_an_input_to_the_value_that_it_has_makes_nothing_stale():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, DATA)
    assert ran_by(f, {name: float(value) for name, value in PARAMS.items()}, DATA.copy()) == 0


def test_nothing_becomes_stale_outside_a_call():
    """Values belong to the function; the user's containers may change between calls."""
    f, plain = incrax.incremental(model, tuning=MINIMAL), jax.jit(model)
    params, data = dict(PARAMS), DATA.copy()
    first = f(params, data)
    params["mu"] = 4.0
    same(first, plain(PARAMS, DATA))
    same(f(params, data), plain(changed(mu=4.0), DATA))
    assert "exp" in primitives_run(f)
    params["mu"] = PARAMS["mu"]
    assert ran_by(f, params, data) == 0
    assert f(params, data) is first
    data[0] = 0.5 * data[0]
    same(first, plain(PARAMS, DATA))
    same(f(params, data), plain(PARAMS, data))
    assert "log" in primitives_run(f)


def test_a_failed_evaluation_leaves_the_kept_values_as_they_were():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, DATA)
    with pytest.raises(TypeError):
        f(changed(mu=object()), DATA)
    assert ran_by(f, PARAMS, DATA) == 0


# --- dependence -----------------------------------------------------------------------------------


def test_dependence_is_exact_where_an_object_wide_list_overestimates():
    """The thread's example: the pdf does not depend on a yield."""
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, DATA)
    f(changed(n_signal=160.0), DATA)
    assert not {"exp", "sin"} & set(primitives_run(f))
    rows = {row["path"]: row for row in f.deps().as_dict()["leaves"]}
    assert rows["params['n_signal']"]["transcendentals"] == len(
        DATA
    )  # the logarithm of the rate, nothing else
    assert rows["params['n_signal']"]["equations"] < rows["params['slope']"]["equations"]


def test_dependence_is_watched_per_parameter_of_one_flat_vector():
    names = list(PARAMS)
    f = incrax.incremental(
        lambda theta, x: model(dict(zip(names, theta, strict=True)), x), tuning=MINIMAL
    )
    theta = np.array(list(PARAMS.values()))
    f(theta, DATA)
    for index, name in enumerate(names):
        probe = theta.copy()
        probe[index] *= 1.1
        f(probe, DATA)
        assert list(f.explain().as_dict()["changed"]) == [f"theta[{index}]"]
        assert ("exp" in primitives_run(f)) is (name in ("mu", "sigma"))


# --- derivatives through kept values --------------------------------------------------------------

ORDERS = {
    "first": jax.grad,
    "second": lambda f: jax.grad(jax.grad(f)),
    "third": lambda f: jax.grad(jax.grad(jax.grad(f))),
}


def excess(mu, sigma, n, x):
    """A signal on a flat background: small enough for third derivatives."""
    return -jnp.sum(
        jnp.log(1.0 + n * gauss(mu, sigma, x) / integral(lambda g: gauss(mu, sigma, g)))
    )


@pytest.mark.parametrize("order", ORDERS)
def test_derivatives_of_any_order_pass_through_kept_values(order):
    """At points other than that of the first call, where derivatives kept for too long would be
    wrong.
    """
    calls = [(mu, 1.0, n, DATA) for mu in (5.0, 5.5) for n in (10.0, 12.0)]
    f = check_calls(ORDERS[order](excess), calls, tuning=MINIMAL)
    assert "exp" not in primitives_run(f)


def test_hessians_keep_what_a_change_leaves_alone():
    hessian = jax.hessian(excess, argnums=(0, 1))
    f = check_calls(hessian, [(5.0, 1.0, n, DATA) for n in (10.0, 12.0)], tuning=MINIMAL)
    assert "exp" not in primitives_run(f)


def test_a_gradient_keeps_the_partial_derivatives_that_a_change_leaves_alone():
    f = incrax.incremental(jax.value_and_grad(model), tuning=MINIMAL)
    f(PARAMS, DATA)
    f(changed(slope=0.2), DATA)
    assert "exp" not in primitives_run(f)
    assert f.explain().as_dict()["num_ran"] < f.explain().as_dict()["num_equations"]


# --- both kinds of input --------------------------------------------------------------------------


def test_fitting_leaves_what_depends_on_data_alone():
    def f(power, x):
        return jnp.sum(jnp.tanh(jnp.log(x) * 0.5) * power)

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(1.0, DATA)
    ours(2.0, DATA)
    assert not {"log", "tanh"} & set(primitives_run(ours))


def test_simulation_leaves_what_depends_on_parameters_alone():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, DATA)
    whole = f.explain().as_dict()["num_equations"]
    assert ran_by(f, PARAMS, np.random.default_rng(1).uniform(LOW, HIGH, 400)) < whole
    assert "cosh" not in primitives_run(f)
    assert primitives_run(f).count("exp") == 1  # the data's; the grid's is kept


def test_the_constant_part_is_kept_at_its_highest_point():
    """One number stands for the whole part that reads the data, not the arrays on the way to it."""

    def f(scale, x):
        return scale * jnp.sum(jnp.sqrt(jnp.log1p(x) + x**2))

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(1.0, DATA)
    ours(2.0, DATA)
    loaded = ours.explain().as_dict()["loaded"]
    assert [step["bytes"] for step in loaded] == [8]
    assert set(primitives_run(ours)) <= {"mul", "convert_element_type"}


# --- pipelines, decorator, hook -------------------------------------------------------------------


def test_the_number_of_pipelines_is_bounded_however_parameters_are_grouped():
    """Three parameters change together in any of seven ways; each way is compiled once and comes
    back for nothing.
    """
    f = incrax.incremental(model, tuning=MINIMAL)
    plain = jax.jit(model)
    names = ("mu", "slope", "n_signal")
    compiles = []
    for factor in (1.1, 1.2, 1.3):
        for group in range(8):
            values = {name: PARAMS[name] * factor for k, name in enumerate(names) if group >> k & 1}
            same(f(changed(**values), DATA), plain(changed(**values), DATA))
        compiles.append(f.stats.compiles)
    assert (
        compiles[1] == compiles[2] <= 7 + 2
    )  # and the whole function, and what the first change found missing


def test_it_is_a_decorator_and_works_on_parts_of_a_model():
    @incrax.incremental(tuning=MINIMAL)
    def signal_area(mu, sigma):
        return integral(lambda g: gauss(mu, sigma, g))

    def outer(mu, sigma, n):
        return n * signal_area(mu, sigma)

    first = outer(5.0, 1.0, 2.0)
    ran = signal_area.stats.ran
    same(outer(5.0, 1.0, 4.0), first * 2)
    assert signal_area.stats.ran == ran


def test_inside_a_compiled_function_it_is_the_plain_function():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, DATA)
    same(
        jax.jit(lambda p: f(p, DATA) * 2)(changed(mu=4.0)),
        2 * jax.jit(model)(changed(mu=4.0), DATA),
    )
    # Under jit as well: plain JAX's own gradients with and without it differ by more than 64 ulp.
    same(jax.jit(jax.grad(lambda p: f(p, DATA)))(PARAMS), jax.jit(jax.grad(model))(PARAMS, DATA))


class CachedTensor:
    """The class of the thread, on the pure form: a cache, a flag of its validity, `cond(flag,
    cache, cache_func)`.
    """

    def __init__(self, cache_func, *inputs):
        # No memory for what the host returned, so that every evaluation is one of its calls.
        self.state, self.step = incrax.incremental(cache_func, tuning=MINIMAL, memory=0).pure(
            *inputs
        )

    def __call__(self, state, *inputs, is_valid):
        return self.step(state, *inputs, changed={"theta": ~is_valid})


@jax.custom_jvp
def counted(theta):
    """An expensive function that the host evaluates; its derivative is known."""
    return jax.pure_callback(_cubed, jax.ShapeDtypeStruct((), jnp.float64), theta)


@counted.defjvp
def _(primals, tangents):
    return counted(*primals), 3 * primals[0] ** 2 * tangents[0]


EVALUATIONS = []


def _cubed(theta):
    EVALUATIONS.append(float(theta))
    return np.float64(theta) ** 3


def test_values_are_kept_inside_a_compiled_loop():
    cache = CachedTensor(counted, 2.0)
    thetas = jnp.array([2.0, 2.0, 3.0, 3.0, 3.0, 2.0])

    def body(carry, theta):
        old, state = carry
        state, value = cache(state, theta, is_valid=theta == old)
        return (theta, state), value

    EVALUATIONS.clear()
    _, values = jax.lax.scan(body, (thetas[0], cache.state), thetas)
    same(values, thetas**3)
    assert EVALUATIONS == [3.0, 2.0]


def test_gradients_of_a_kept_value_inside_a_compiled_function_up_to_second_order():
    cache = CachedTensor(counted, 2.0)
    value = jax.jit(lambda theta: cache(cache.state, theta, is_valid=jnp.bool_(True))[1])
    assert float(jax.grad(value)(2.0)) == pytest.approx(12.0, rel=1e-14)
    assert float(jax.grad(jax.grad(value))(2.0)) == pytest.approx(12.0, rel=1e-14)


def test_a_hook_before_the_fit_prepares_the_changes_that_will_come():
    f = incrax.incremental(model, tuning=MINIMAL)
    f.warm_up(PARAMS, DATA, changing=["params['mu']", "params['n_signal']"])
    compiles = f.stats.compiles
    f(changed(mu=4.0), DATA)
    f(changed(n_signal=100.0), DATA)
    assert f.stats.compiles == compiles


def test_equal_parts_of_a_sum_are_evaluated_once():
    """Similar sub-pdfs of one sum: the shape that two of them share is one equation."""

    def f(mu, a, b, x):
        return jnp.sum(a * gauss(mu, 1.0, x)) + jnp.sum(b * gauss(mu, 1.0, x) ** 2)

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(5.0, 1.0, 2.0, DATA)
    assert primitives_run(ours).count("exp") == 1


# --- `result = self.cache_value(result, deps=...)`, also as a decorator of a method ---------------


class Pdf:
    """A pdf of the thread: its shape does not depend on its yield, and the trace says otherwise."""

    def __init__(self, mu, sigma, number):
        self.mu, self.sigma, self.number = mu, sigma, number

    def traced_area(self):
        return (
            jnp.exp(-self.sigma) * integral(lambda g: gauss(self.mu, self.sigma, g))
            + 0.0 * self.number
        )

    def area_by_hand(self):
        return incrax.keep(self.traced_area(), "area", deps=(self.mu, self.sigma))

    @incrax.cached(deps=["self.mu", "self.sigma"])
    def area(self):
        return self.traced_area()


@pytest.mark.parametrize("method", [Pdf.area_by_hand, Pdf.area, Pdf.traced_area])
def test_a_value_kept_with_dependences_given_by_hand_stays_while_others_change(method):
    """The logarithm is of the kept value: as traced, a new yield makes it stale."""
    f = incrax.incremental(
        lambda *values: values[2] * jnp.log(method(Pdf(*values))), tuning=MINIMAL
    )
    for number in (150.0, 151.0, 152.0):
        same(f(5.0, 1.0, number), number * jnp.log(method(Pdf(5.0, 1.0, number))))
    assert ("log" in primitives_run(f)) is (method is Pdf.traced_area)
    f(5.0, 1.1, 152.0)
    assert {"exp", "log"} <= set(primitives_run(f))


@pytest.mark.parametrize("method", [Pdf.area, Pdf.traced_area])
def test_the_same_as_a_decorator_of_a_method(method):
    """Gradients go through, also with respect to the yield."""
    loss = jax.value_and_grad(
        lambda params: (
            params["n"] * jnp.log(method(Pdf(params["mu"], params["sigma"], params["n"])))
        )
    )
    f = incrax.incremental(loss, tuning=MINIMAL)
    for n in (150.0, 151.0, 152.0):
        same(f({"mu": 5.0, "sigma": 1.0, "n": n}), jax.jit(loss)({"mu": 5.0, "sigma": 1.0, "n": n}))
    assert ("log" in primitives_run(f)) is (method is Pdf.traced_area)


def test_in_a_simulation_only_new_rows_are_evaluated():
    """Parameters stay, data come in: value and gradient of all rows, from new ones and what was
    kept of the others.
    """

    def nll(params, x):
        return -jnp.mean(jnp.log(gauss(params["mu"], params["sigma"], x)))

    f = incrax.incremental(jax.value_and_grad(nll), tuning=MINIMAL)
    rng, params = np.random.default_rng(1), {"mu": 5.0, "sigma": 1.0}
    rows = incrax.Rows(rng.normal(5.0, 1.0, 4096), chunk_rows=1024)
    f(params, rows)
    for batch in range(1, 4):
        rows = rows.append(rng.normal(5.0, 1.0, 100))
        same(f(params, rows), jax.jit(jax.value_and_grad(nll))(params, rows.tree()))
        assert f.stats.chunks_run == 4 + batch
    f({**params, "mu": 5.1}, rows)
    assert f.stats.chunks_run == 2 * (4 + 3)


# --- values that are set --------------------------------------------------------------------------


def test_setting_a_value_triggers_what_must_follow():
    """Data and parameters are both "regarded as inputs and can change values to trigger
    recalculations".
    """
    fun = incrax.incremental(
        lambda mu, number, x: -number * jnp.sum(jnp.log(gauss(mu, 1.0, x))), tuning=MINIMAL
    )
    data = np.linspace(3.0, 7.0, 50)
    m, told = incrax.bind(fun, mu=5.0, number=2.0, x=data, roles={"x": "data"}), []
    m.on_change(told.append)
    m.value()
    m.set(number=3.0)
    same(m.value(), -3.0 * jnp.sum(jnp.log(gauss(5.0, 1.0, data))))
    assert "exp" not in ran(m)
    m.set(x=data + 0.5)
    same(m.value(), -3.0 * jnp.sum(jnp.log(gauss(5.0, 1.0, data + 0.5))))
    assert "exp" in ran(m)
    m.value()
    assert m.stats["value"].unchanged == 1
    assert told == [("number",), ("x",)]


def test_no_value_is_global():
    """Without a "bidirectional graph": two models of one function know nothing of each other."""
    one, two = (
        incrax.bind(lambda mu, x: jnp.sum(x) * mu, mu=mu, x=np.ones(3)) for mu in (1.0, 2.0)
    )
    one.set(mu=5.0)
    assert (one.value(), two.value()) == (15.0, 6.0)


def ran(m):
    return [step["primitive"] for step in m.explain().as_dict()["ran"]]
