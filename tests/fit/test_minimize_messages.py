"""The exact text of the errors of minimisers and scans."""

from __future__ import annotations

import ctypes

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from incrax import fit

START = {"a": 1.0, "b": np.zeros(2)}
NAMES = "`p['a']`, `p['b'][0]`, `p['b'][1]`"


def loss(p):
    return (p["a"] - 1.0) ** 2 + jnp.sum((p["b"] - 2.0) ** 2)


def text_of(kind, call, *args, **options):
    with pytest.raises(kind) as caught:
        call(*args, **options)
    return str(caught.value)


@pytest.fixture(scope="module")
def found():
    return fit.minimize(loss, START, method="BFGS")


# --- what cannot be minimised ---------------------------------------------------------------------


SEARCHES = {
    "minimize": lambda **options: fit.minimize(loss, START, **options),
    "levenberg_marquardt": lambda **options: fit.levenberg_marquardt(
        lambda p: p - 1.0, 0.0, **options
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_tolerance_is_a_number_and_a_callback_a_function(name):
    search = SEARCHES[name]
    for wrong in (-1.0, float("nan")):
        assert text_of(ValueError, search, tolerance=wrong) == (
            f"`{name}(tolerance=...)` got {wrong}. Nothing was evaluated. Pass a number of at least "
            "zero."
        )
    assert text_of(TypeError, search, tolerance="1e-3") == (
        f"`{name}(tolerance=...)` got '1e-3' of type str; it must be a real number."
    )
    assert text_of(TypeError, search, callback=3) == (
        f"`{name}(callback=...)` got 3 of type int; it must be a function."
    )


def test_a_method_that_does_not_exist():
    assert text_of(fit.MethodError, fit.minimize, loss, START, method="migrat") == (
        "`minimize(method=...)` got 'migrat'. Nothing was evaluated. Use one of 'migrad', "
        "'Nelder-Mead', 'Powell', "
        "'COBYLA', 'COBYQA', 'CG', 'BFGS', 'L-BFGS-B', 'TNC', 'SLSQP', 'Newton-CG', 'trust-ncg', "
        "'trust-krylov', "
        "'trust-exact', 'dogleg', 'trust-constr', or an optimiser of optax as an object: "
        "`method=optax.adam(0.01)`."
    )
    assert "got 3." in text_of(fit.MethodError, fit.minimize, loss, START, method=3)


@pytest.mark.parametrize("method", ["BFGS", "trust-exact", "Newton-CG"])
def test_bounds_for_a_method_that_has_none(method):
    assert text_of(
        fit.MethodError, fit.minimize, loss, START, method=method, bounds={"p['a']": (0, 2)}
    ) == (
        f"`minimize(bounds=...)` was given bounds, and the method {method!r} has none: it would walk "
        "out of them. "
        "Nothing was evaluated. Use one of 'migrad', 'Nelder-Mead', 'Powell', 'COBYLA', 'COBYQA', "
        "'L-BFGS-B', 'TNC', "
        "'SLSQP', 'trust-constr', or optax, or write the parameter as a function of an unbounded "
        "one."
    )


BY_POSITION = (
    "Arguments of the function go by position; `wrt` says which of them are free, `bounds` how far."
)


def test_options_that_a_method_does_not_have():
    assert text_of(fit.MethodError, fit.minimize, loss, START, strategie=1) == (
        "`minimize(method='migrad')` got the options `strategie`. Nothing was evaluated. Those of "
        "'migrad' are "
        f"`strategy`, `with_gradient`. {BY_POSITION}"
    )
    assert "Those of 'optax' are `max_steps`." in text_of(
        fit.MethodError, fit.minimize, loss, START, method=optax.sgd(0.1), steps=3
    )


@pytest.mark.parametrize("method", ["BFGS", "Nelder-Mead"])
def test_options_that_a_method_of_scipy_does_not_have(method):
    assert text_of(fit.MethodError, fit.minimize, loss, START, method=method, gtoll=1, maxit=2) == (
        f"`minimize(method={method!r})` got the options `gtoll`, `maxit`. Nothing was evaluated. "
        f"`scipy.optimize.show_options` lists those of {method!r}. {BY_POSITION}"
    )


@pytest.mark.parametrize(
    ("fun", "seen"),
    [
        (lambda p: p["b"], "float64[2]"),
        (lambda p: None, "None"),
        (lambda p: p["a"] * 1j, "complex128[]"),
    ],
)
@pytest.mark.parametrize("method", ["migrad", "Nelder-Mead", "BFGS", optax.sgd(0.1)])
def test_a_function_that_returns_no_number(fun, seen, method):
    assert text_of(fit.MethodError, fit.minimize, fun, START, method=method) == (
        f"A minimum needs a function that returns one real number, and got {seen} from it. "
        "Nothing was minimised. Sum "
        "it up, or pass residuals to `levenberg_marquardt`."
    )


def test_an_error_of_the_function_stays_what_it_is():
    def broken(p):
        return p["c"]

    with pytest.raises(KeyError, match="c") as found:
        fit.minimize(broken, START)
    assert not isinstance(found.value.__context__, fit.MethodError)


def test_what_is_shared_with_least_squares_names_its_caller():
    assert text_of(fit.BoundsError, fit.minimize, loss, START, bounds={"p['c']": (0, 1)}) == (
        "`minimize(bounds=...)` names `p['c']`, and no free parameter has this path. This is "
        "usually a typing error, "
        "or a parameter that `wrt` leaves out. Nothing was evaluated. Free are `p['a']`, `p['b']`. "
        "Did you mean `p['b']`?"
    )
    assert "`minimize` starts with `p['a']` = 1, outside" in text_of(
        fit.BoundsError, fit.minimize, loss, START, bounds={"p['a']": (2, 3)}
    )
    assert "`minimize(bounds=...)` got 3 for `p['a']`" in text_of(
        fit.BoundsError, fit.minimize, loss, START, bounds={"p['a']": 3}
    )
    assert "`minimize(fun)`" in text_of(TypeError, fit.minimize, 3)


# --- scans ----------------------------------------------------------------------------------------


def test_intervals_are_found_by_the_ends_of_names():
    found = fit.minimize(
        lambda p: jnp.sum((p["a"] - 1.0) ** 2) + p["b"] ** 2, {"a": np.ones(2), "b": 1.0}
    )
    assert found.minos()["b"] == found.intervals["p['b']"] == found.minos("b")["b"]
    assert found.minos("a[1]")["a[1]"] == found.intervals["a[1]"]
    for name, known in (("c", found.intervals), ("a", found.intervals), ("a[0]", found.minos("b"))):
        with pytest.raises(fit.MinimumError) as caught:
            known[name]
        assert str(caught.value) == (
            f"MINOS has no interval by the name {name!r}. This is usually a typing error, an element "
            "that was not asked for, or an end that several names have. Nothing was evaluated. There "
            f"are those of {', '.join(f'`{each}`' for each in known)}; or ask `result.minos` for it."
        )


@pytest.mark.parametrize("call", [fit.profile, lambda found, name: found.minos(name)])
def test_a_name_that_is_not_free(found, call):
    assert text_of(fit.MinimumError, call, found, "p['c']") == (
        "\"p['c']\" names no free element of this fit. This is usually a typing error, an array "
        "without `[i]`, or a "
        f"parameter that `wrt` leaves out. Nothing was evaluated. Free are {NAMES}. Did you "
        "mean `p['a']`?"
    )
    assert text_of(fit.MinimumError, call, found, "b").startswith("'b' may be `p['b'][0]`, ")


def test_a_scan_of_an_element_against_itself(found):
    assert text_of(fit.MinimumError, fit.scan2d, found, "p['a']", "p['a']") == (
        "A scan of two elements got `p['a']` twice. Nothing was evaluated. Name two different ones."
    )


def test_grids_that_cannot_be_scanned(found):
    assert text_of(fit.MinimumError, fit.profile, found, "p['a']", grid=[[1.0]]) == (
        "A scan of `p['a']` got the grid [[1.0]]: it is no vector of finite numbers. Nothing was "
        "evaluated. Pass a "
        "vector of values within the bounds."
    )
    bounded = fit.minimize(loss, START, bounds={"p['a']": (0, 2)})
    assert "got the grid [3.0]: it leaves the bounds (0, 2)." in text_of(
        fit.MinimumError, fit.profile, bounded, "p['a']", grid=[3.0]
    )
    held = fit.minimize(loss, START, bounds={"p['b']": (None, 1.0)})
    assert "got the grid None: its standard error is nan, so that there is no width." in text_of(
        fit.MinimumError, fit.profile, held, "p['b'][0]"
    )
    profile = lambda **given: text_of(fit.MinimumError, fit.profile, found, "p['a']", **given)
    assert "got the grid ['x']: it is no vector of finite numbers." in profile(grid=["x"])
    assert "got the grid of -1 points: it has none." in profile(num_points=-1)
    for given in ({"grids": ([0.0, 1.0],)}, {"grids": 3}, {"num_points": (2, 2, 2)}):
        assert "it must be a pair, one for each element." in text_of(
            TypeError, fit.scan2d, found, "p['a']", "p['b'][0]", **given
        )


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("profile", lambda found: fit.profile(found, "p['a']")),
        ("contour", lambda found: fit.contour(found, "p['a']", "p['b'][0]")),
        ("minos", lambda found: found.minos()),
    ],
)
def test_a_point_that_is_no_minimum(what, call):
    flat = fit.minimize(lambda p: p["a"] ** 2 + 0 * jnp.sum(p["b"]), START, method="BFGS")
    assert text_of(fit.MinimumError, call, flat) == (
        f"`{what}` goes out from a minimum, and this search ended as: converged. Its Hessian is "
        "needed, positive "
        "definite, for a first guess. This is usually a search that was stopped, a function with "
        "kinks, or a parameter that the data do not determine (here `p['b'][0]`, `p['b'][1]`). "
        "Minimise again from here with `strategy=1`, which finds the way down from a saddle, smooth "
        "the function, or fix that parameter by `wrt`."
    )


def test_minuit_that_gives_up(capfd):
    abyss = lambda p: jnp.sum(p**2) - 10 * jnp.sum(p**4)
    found = fit.minimize(abyss, np.zeros(2), method="BFGS")
    text = text_of(fit.MinimumError, fit.contour, found, "p[0]", "p[1]", cl=0.999)
    assert text.startswith("`contour` was given up by Minuit: ")
    assert text.endswith(
        ". This is usually a minimum that is not sharp enough, or bounds in the way. Minimise "
        "again with a smaller "
        "`tolerance`, or use `profile` or `scan2d`."
    )
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")  # where Minuit would write it once more
