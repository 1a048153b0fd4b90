"""Problems that the search was not built on: those of Moré, Garbow and Hillstrom (1981), from
starts times 1 and 10.

Oracles: the minima that their paper gives. A start far off may end in another local minimum, which
is named.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from incrax import fit


def rosenbrock(x):
    return jnp.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def freudenstein_roth(x):
    a = -13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1]
    return jnp.stack([a, -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]])


def beale(x):
    return jnp.stack([y - x[0] * (1 - x[1] ** k) for k, y in ((1, 1.5), (2, 2.25), (3, 2.625))])


def helical(x):
    angle = jnp.arctan2(x[1], x[0]) / (2 * jnp.pi)
    angle = jnp.where(angle < -0.25, angle + 1, angle)
    return jnp.stack([10 * (x[2] - 10 * angle), 10 * (jnp.hypot(x[0], x[1]) - 1), x[2]])


BARD = np.array(
    [0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39]
)


def bard(x):
    u = jnp.arange(1.0, 16)
    v = 16 - u
    return BARD - (x[0] + u / (x[1] * v + x[2] * jnp.minimum(u, v)))


KOWALIK_Y = np.array(
    [0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246]
)
KOWALIK_U = np.array([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def kowalik_osborne(x):
    u = KOWALIK_U
    return KOWALIK_Y - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def brown_dennis(x):
    t = jnp.arange(1.0, 21) / 5
    return (x[0] + t * x[1] - jnp.exp(t)) ** 2 + (x[2] + x[3] * jnp.sin(t) - jnp.cos(t)) ** 2


def wood(x):
    return jnp.stack(
        [
            10 * (x[1] - x[0] ** 2),
            1 - x[0],
            jnp.sqrt(90.0) * (x[3] - x[2] ** 2),
            1 - x[2],
            jnp.sqrt(10.0) * (x[1] + x[3] - 2),
            (x[1] - x[3]) / jnp.sqrt(10.0),
        ]
    )


def powell_singular(x):
    return jnp.stack(
        [
            x[0] + 10 * x[1],
            5**0.5 * (x[2] - x[3]),
            (x[1] - 2 * x[2]) ** 2,
            10**0.5 * (x[0] - x[3]) ** 2,
        ]
    )


def trigonometric(x):
    n = x.size
    return n - jnp.sum(jnp.cos(x)) + jnp.arange(1.0, n + 1) * (1 - jnp.cos(x)) - jnp.sin(x)


def broyden_tridiagonal(x):
    left, right = jnp.concatenate([jnp.zeros(1), x[:-1]]), jnp.concatenate([x[1:], jnp.zeros(1)])
    return (3 - 2 * x) * x - left - 2 * right + 1


# name, residuals, start, the sums of squares at minima
CASES = [
    (rosenbrock, [-1.2, 1], [0.0]),
    (freudenstein_roth, [0.5, -2], [0.0, 48.9842536]),
    (beale, [1, 1], [0.0]),
    (helical, [-1, 0, 0], [0.0]),
    (bard, [1, 1, 1], [8.21487730e-3, 17.4286933]),
    (kowalik_osborne, [0.25, 0.39, 0.415, 0.39], [3.07505604e-4, 1.02734e-3]),
    (wood, [-3, -1, -3, -1], [0.0]),
    (powell_singular, [3, -1, 0, 1], [0.0]),
    (trigonometric, [0.1] * 10, [0.0, 2.79506e-5]),
    (broyden_tridiagonal, [-1.0] * 10, [0.0]),
]


@pytest.mark.parametrize("factor", [1, 10])
@pytest.mark.parametrize(
    ("fun", "start", "minima"), CASES, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_search_ends_in_a_minimum_or_says_that_it_did_not(fun, start, minima, factor):
    found = fit.levenberg_marquardt(fun, factor * np.array(start, float))
    at = [abs(2 * found.cost - each) <= 1e-12 + 3e-6 * each for each in minima]
    assert any(at) or not found.is_converged, (found.status, 2 * found.cost)
    assert found.num_jacobians < 500
    if factor == 1:
        assert any(at)


def test_residuals_far_too_large_for_the_linear_model_are_not_said_to_have_converged():
    """Gauss and Newton's matrix is far from the Hessian there: the search creeps, and says where it
    stopped.
    """
    found = fit.levenberg_marquardt(brown_dennis, np.array([25.0, 5, -5, -1]), max_steps=50)
    assert found.status is fit.Status.MAX_STEPS
    assert 2 * found.cost < 7926693.3


def test_a_double_root_is_an_end():
    """Each step halves what is left, for ever: residuals below epsilon times the first ones are
    rounding errors.
    """
    found = fit.levenberg_marquardt(powell_singular, np.array([3.0, -1, 0, 1]))
    assert found.status is fit.Status.AT_PRECISION
    assert np.abs(found.values).max() < 1e-6
