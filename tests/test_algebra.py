"""`algebra=True`: sums over rows that are polynomials of few numbers come from saved statistics."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, check, examples, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.call import engine as doubts
from incrax.engine.policy.chooser import Chooser
from incrax.engine.rewrites import statistics

N = 200_000
RNG = np.random.default_rng(0)
X = incrax.frozen(RNG.normal(size=N))
Y = incrax.frozen(1.0 + RNG.normal(size=N))
M = incrax.frozen(RNG.normal(size=(N, 4)))
A = incrax.frozen(RNG.normal(size=(3, N)) + 1j * RNG.normal(size=(3, N)))


def polynomial(c, x, y):
    """The loss of the Zygote thread's user: a polynomial fitted to points."""
    return jnp.sum((c[0] + c[1] * x + c[2] * x**2 - y) ** 2) / x.size


def gaussian(p, x):
    return 0.5 * jnp.sum(((x - p[0]) / p[1]) ** 2) + x.size * jnp.log(p[1])


def squares(c, m, y):
    residual = m @ c - y
    return residual @ residual


def integral(c, a):
    """Logarithm of a mean intensity, the normalisation of an amplitude model."""
    amplitude = (c[:3] + 1j * c[3:]) @ a
    return jnp.log(jnp.mean(jnp.real(amplitude) ** 2 + jnp.imag(amplitude) ** 2))


def everything(f):
    return lambda *args: (f(*args), jax.grad(f)(*args), jax.hessian(f)(*args))


MODELS = {
    "polynomial": (polynomial, np.array([0.1, 0.2, 0.3]), (X, Y)),
    "gaussian": (gaussian, np.array([0.2, 1.5]), (X,)),
    "least squares": (squares, np.array([1.0, 2.0, 3.0, 4.0]), (M, Y)),
    "integral": (integral, np.array([1.0, 0.5, 0.2, 0.1, 0.3, 0.4]), (A,)),
}
DERIVATIVES = {"value": lambda f: f, "gradient": jax.value_and_grad, "hessian": everything}


def made(f, **options):
    return incrax.incremental(f, algebra=True, tuning=EAGER, **options)


@pytest.fixture(autouse=True)
def _statistics_are_made_at_once(monkeypatch):
    """Not only when as much time was lost for want of them as they cost."""
    monkeypatch.setattr(Chooser, "decide_fill", lambda *_: True)


def warmed(f, c, data):
    """An incremental function whose plan for changes of `c` is in use."""
    ours = made(f)
    for k in range(3):
        ours((c * (1.0 + 0.1 * k)).astype(c.dtype), *data)
    assert ours.explain().served_by == "plan", ours.explain().why
    return ours


def largest_run(f):
    """Elements of the largest array that the last call's plan made."""
    plan = f._traces.latest.engine.last.plan
    return max(var.aval.size for eqn in plan.eqns for var in eqn.outvars)


@pytest.mark.parametrize("derivative", sorted(DERIVATIVES))
@pytest.mark.parametrize("name", sorted(MODELS))
def test_results_are_those_of_the_rows_and_no_row_is_touched(name, derivative):
    fun, c, data = MODELS[name]
    f = DERIVATIVES[derivative](fun)
    ours, plain = warmed(f, c, data), jax.jit(f)
    for k in range(5):
        at = c * (1.0 + 0.3 * np.sin(k))
        same(ours(at, *data), plain(at, *data), factor=4096.0)
        check(ours)
    assert ours.explain().served_by == "plan"
    # By the width twice: terms of one sum, of which each has other factors in front.
    is_left = (name, derivative) == ("gaussian", "hessian")
    assert (largest_run(ours) < N) != is_left
    assert ours.explain().statistics


def test_without_the_option_rows_are_summed():
    fun, c, data = MODELS["least squares"]
    ours = incrax.incremental(fun, tuning=EAGER)
    for k in range(4):
        ours(c + k, *data)
    assert ours.explain().statistics == ()


def test_new_data_make_new_statistics():
    ours = warmed(squares, np.ones(4), (M, Y))
    for scale in (1.0, 2.0, 3.0):
        y = incrax.frozen(scale * np.asarray(Y))
        for k in range(3):
            same(ours(np.ones(4) + k, M, y), squares(np.ones(4) + k, M, y), factor=4096.0)
        assert ours.explain().served_by == "plan"


def test_one_coefficient_of_many_has_statistics_of_its_own():
    ours = made(jax.value_and_grad(polynomial))
    for k in range(5):
        c = np.array([0.0, 0.0, 0.3 + 0.1 * k])
        same(ours(c, X, Y), jax.jit(jax.value_and_grad(polynomial))(c, X, Y), factor=4096.0)
    assert any("degree 2 in 1 numbers" in line for line in ours.explain().statistics)
    assert largest_run(ours) < N


def test_single_precision_stays_single():
    with jax.enable_x64(False):
        x, y = jnp.asarray(np.asarray(X), jnp.float32), jnp.asarray(np.asarray(Y), jnp.float32)
        f = jax.value_and_grad(polynomial)
        ours, plain = warmed(f, np.array([0.1, 0.2, 0.3], np.float32), (x, y)), jax.jit(f)
        for k in range(5):
            c = np.array([0.1, 0.2, 0.3], np.float32) * np.float32(1.0 + 0.1 * k)
            same(ours(c, x, y), plain(c, x, y), factor=4096.0)
        assert ours.explain().statistics


def test_what_is_no_polynomial_stays_beside_what_is():
    def nll(c, data, simulation):
        pdf = jnp.exp(-((data - c[0]) ** 2))
        return -jnp.sum(jnp.log(pdf + c[1] ** 2)) + data.size * jnp.log(
            jnp.mean((c[0] + c[1] * simulation) ** 2)
        )

    f = jax.value_and_grad(nll)
    ours, plain = warmed(f, np.array([0.2, 1.0]), (X, Y)), jax.jit(f)
    for k in range(6):
        c = np.array([0.1, 1.0]) * (1.0 + 0.1 * k)
        same(ours(c, X, Y), plain(c, X, Y), factor=4096.0)
    assert len(ours.explain().statistics) >= 1


# --- cancellation ---------------------------------------------------------------------------------


def test_a_point_far_from_the_centre_is_evaluated_directly_and_becomes_the_centre():
    """The sum of squares is 1e18 where the statistics are made and 2e5 where they are used: ten
    digits would go.
    """
    c, data = np.array([1e6, -1e6, 1e6, 1e6]), (M, Y)
    ours = warmed(squares, c, data)
    at = np.linalg.lstsq(np.asarray(M), np.asarray(Y), rcond=None)[0]
    same(ours(at, *data), jax.jit(squares)(at, *data), factor=8.0)
    assert ours.explain().served_by == "whole"
    for k in range(5):
        near = at * (1.0 + 0.01 * k)
        same(ours(near, *data), jax.jit(squares)(near, *data), factor=4096.0)
    assert ours.explain().served_by == "plan"


def test_the_test_above_can_fail(monkeypatch):
    monkeypatch.setattr(statistics, "MAX_GROWTH", {8: 1e300, 4: 1e30})
    c, data = np.array([1e6, -1e6, 1e6, 1e6]), (M, Y)
    ours = warmed(squares, c, data)
    at = np.linalg.lstsq(np.asarray(M), np.asarray(Y), rcond=None)[0]
    error = abs(float(ours(at, *data)) / float(jax.jit(squares)(at, *data)) - 1.0)
    assert error > 1e-10


def test_a_gradient_that_vanishes_is_right_to_the_size_of_its_terms():
    f = jax.value_and_grad(squares)
    at = np.linalg.lstsq(np.asarray(M), np.asarray(Y), rcond=None)[0]
    ours = warmed(f, at + 0.1, (M, Y))
    value, gradient = ours(at, M, Y)
    assert ours.explain().served_by == "plan"
    assert np.abs(gradient).max() < 1e-10 * N
    same(value, jax.jit(squares)(at, M, Y), factor=4096.0)


def weighted(mu, w, x):
    """Weights of both signs: the sum is far smaller than its terms."""
    return jnp.sum(w * (x - mu))


@pytest.mark.parametrize("far", [1e8, 1e12, 1e16, 1e150])
def test_statistics_of_a_far_point_are_made_once_more_and_serve_from_then_on(far):
    """They depend on the data alone: nothing else would replace them."""
    ours, plain = made(weighted), jax.jit(weighted)
    for k in range(12):
        same(ours(far * (1.0 + 0.01 * k), Y, X), plain(far * (1.0 + 0.01 * k), Y, X), factor=4096.0)
    assert ours.explain().served_by == "plan"
    filled, compiles, used = ours.stats.filled, ours.stats.compiles, []
    for k in range(12):
        same(ours(0.5 + 0.1 * k, Y, X), plain(0.5 + 0.1 * k, Y, X), factor=4096.0)
        used.append(ours.explain().served_by)
    assert used == ["whole", *["plan"] * 11]
    assert 0 < ours.stats.filled - filled <= filled
    assert ours.stats.compiles == compiles


def test_a_near_point_serves_far_ones_so_that_turns_need_no_others():
    ours, plain, used = made(weighted), jax.jit(weighted), []
    for k in range(24):
        mu = 0.5 + 0.1 * k if k % 2 else 1e14 * (1.0 + k)
        same(ours(mu, Y, X), plain(mu, Y, X), factor=4096.0)
        used.append(ours.explain().served_by)
    assert used[-12:] == ["plan"] * 12


def test_points_of_which_none_serves_the_others_make_statistics_a_few_times_and_then_none():
    both = lambda m, w, x: (weighted(m[0], w, x), weighted(m[1], w, x))
    ours, plain, filled = made(both), jax.jit(both), []
    for k in range(32):
        mu = np.roll([0.5 + 0.1 * k, 1e14 * (1.0 + k)], k)
        same(ours(mu, Y, X), plain(mu, Y, X), factor=4096.0)
        filled.append(ours.stats.filled)
    made_at = [k for k in range(1, 32) if filled[k] > filled[k - 1]]
    assert 1 <= len(made_at) <= 6
    assert max(made_at) < 16
    assert ours.explain().served_by == "whole"


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_data_out_of_range_are_left_to_the_rows(bad):
    x = np.asarray(X).copy()
    x[7] = bad
    x = incrax.frozen(x)
    ours, plain = made(jax.value_and_grad(polynomial)), jax.jit(jax.value_and_grad(polynomial))
    for k in range(12):
        c = np.array([0.1, 0.2, 0.3 + 0.01 * k])
        same(ours(c, x, Y), plain(c, x, Y))
    assert ours.explain().served_by == "whole"


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, 1e-200, 1e200])
def test_a_parameter_out_of_range_passes_and_the_next_call_is_right(bad):
    f = jax.value_and_grad(gaussian)
    ours, plain = warmed(f, np.array([0.2, 1.5]), (X,)), jax.jit(f)
    for p in (
        np.array([0.2, bad]),
        np.array([0.3, 1.6]),
        np.array([bad, 1.0]),
        np.array([0.4, 1.7]),
    ):
        same(ours(p, X), plain(p, X), factor=4096.0)


@pytest.mark.parametrize("power", [1, 2])
def test_a_sum_that_is_divided_by_zero_is_that_of_the_rows(power):
    """Rows of both signs, and one that is zero: the sum of their quotients is not a number."""
    at_zero = float(np.asarray(X)[0])
    f = lambda s, x: jnp.sum(((x - at_zero) / s) ** power)
    ours, plain = made(f), jax.jit(f)
    for s in (1.0, 1.1, 1.2, 1.3):
        same(ours(s, X), plain(s, X), factor=4096.0)
    assert ours.explain().served_by == "plan"
    assert np.isnan(plain(0.0, X))
    same(ours(0.0, X), plain(0.0, X))
    assert ours.explain().served_by == "whole"


# --- compared once, given up ----------------------------------------------------------------------


def test_the_first_use_is_compared_with_the_direct_form(monkeypatch):
    calls = []
    monkeypatch.setattr(doubts, "difference", lambda *args: calls.append(args))
    ours = warmed(squares, np.ones(4), (M, Y))
    for k in range(8):
        ours(np.ones(4) + k, M, Y)
    assert len(calls) == 1
    assert ours.explain().served_by == "plan"


def test_algebra_that_disagrees_is_given_up_with_a_reason(monkeypatch, caplog):
    right = statistics.taylor

    def wrong(*args):
        total, is_right = right(*args)
        return total * 1.001, is_right

    monkeypatch.setattr("incrax.engine.rewrites.algebra.taylor", wrong)
    ours = made(squares)
    with caplog.at_level(logging.WARNING, logger="incrax"):
        for k in range(6):
            same(ours(np.ones(4) + k, M, Y), squares(np.ones(4) + k, M, Y))
    reason = (
        "algebra over rows was given up: it differs from the direct form by 0.001 of the largest "
        "element"
    )
    assert caplog.text.count(reason) == 1
    assert "dot_general at" in caplog.text
    assert ours.explain().statistics == (reason,)
    assert reason in str(ours.explain()).replace("\n", " ") or "given up" in str(ours.explain())


# --- options --------------------------------------------------------------------------------------


def test_options_that_do_not_go_together_are_refused():
    with pytest.raises(
        ValueError,
        match='got policy="exact": statistics are made about the point of their first use',
    ):
        incrax.incremental(squares, policy="exact", algebra=True)
    with pytest.raises(
        TypeError, match=r"`incremental\(algebra=...\)` got 1 of type int; it must be True or False"
    ):
        incrax.incremental(squares, algebra=1)


def test_effects_and_transformations_are_as_without(capsys):
    def f(c, m, y):
        jax.debug.print("called")
        return squares(c, m, y)

    ours = made(f)
    for k in range(4):
        same(ours(np.ones(4) + k, M, Y), squares(np.ones(4) + k, M, Y))
    jax.effects_barrier()
    assert capsys.readouterr().out.count("called") == 4
    same(
        jax.jit(jax.grad(made(squares)))(np.ones(4), M, Y),
        jax.jit(jax.grad(squares))(np.ones(4), M, Y),
    )


# --- random models --------------------------------------------------------------------------------

small = st.floats(-2.0, 2.0, allow_subnormal=False).map(lambda x: round(x, 2))
ROWS = [
    lambda x: x,
    lambda x: x**2,
    lambda x: jnp.sin(x),
    lambda x: jnp.ones_like(x),
    lambda x: jnp.where(x > 0, x, 0.0),
]


@st.composite
def models(draw):
    """A sum of squares or of products of random affine forms, scaled, under a function of the
    sum.
    """
    terms = draw(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ROWS)), min_size=1, max_size=4)
    )
    scale = draw(
        st.sampled_from([lambda c: 1.0, lambda c: c[3], lambda c: 1.0 / (1.0 + c[3] ** 2)])
    )
    outer = draw(
        st.sampled_from([lambda s: s, lambda s: jnp.sin(s), lambda s: jnp.log(1.0 + s * s)])
    )
    is_square = draw(st.booleans())

    def f(c, x, y):
        affine = sum(c[k] * row(x) for k, row in terms) - y
        other = affine if is_square else y * scale(c)
        return outer(jnp.sum(scale(c) * affine * other) / x.size) + c[0]

    return f


@examples(1 / 3)
@given(models(), st.lists(st.lists(small, min_size=4, max_size=4), min_size=4, max_size=7))
@pytest.mark.exhaustive
def test_random_models_agree_with_jax(f, points):
    f = jax.value_and_grad(f)
    ours, plain = made(f), jax.jit(f)
    for point in points:
        c = np.array(point)
        same(ours(c, X, Y), plain(c, X, Y), factor=1e5)
        check(ours)
