"""The profile likelihood of a peak's position: at each point of a grid, SciPy minimises over
everything else.

While the position stands still, what depends on it and on the data alone is not evaluated again;
the same driver on `jax.jit` evaluates all of it at every step of every minimisation.

Run: python examples/profile_scan.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from scipy.optimize import minimize

import incrax

jax.config.update("jax_enable_x64", True)

LOW, HIGH = 0.0, 10.0
SIGMA, TAIL = 0.25, 0.4
NUM_SIGNAL, NUM_BACKGROUND = 8_000, 192_000
GRID = np.linspace(3.96, 4.04, 21)
NUM_FIRST = 5
"""Grid points that are timed apart: programs are compiled and tried there."""


def peak(x, position):
    """The signal, of known resolution and tail, normalised on the range."""

    def density(x):
        z = (x - position) / SIGMA
        return jnp.exp(0.5 * (SIGMA / TAIL) ** 2 - z * SIGMA / TAIL) * ndtr(z - SIGMA / TAIL) / TAIL

    return density(x) / (cumulative(HIGH, position) - cumulative(LOW, position))


def cumulative(x, position):
    """The integral of the signal up to x."""
    z = (x - position) / SIGMA
    return ndtr(z) - jnp.exp(0.5 * (SIGMA / TAIL) ** 2 - z * SIGMA / TAIL) * ndtr(z - SIGMA / TAIL)


def background(x, slopes):
    """A positive polynomial with closed integral: 1 + a u + b u^2, u = x / 10."""
    u = x / HIGH
    return (1 + slopes[0] * u + slopes[1] * u * u) / (HIGH * (1 + slopes[0] / 2 + slopes[1] / 3))


def negative_log_likelihood(nuisance, position, x):
    """Extended; `nuisance` is two yields in thousands and two slopes, as one vector for the
    minimiser.
    """
    signal, other, slopes = 1e3 * nuisance[0], 1e3 * nuisance[1], nuisance[2:]
    rate = signal * peak(x, position) + other * background(x, slopes)
    return signal + other - jnp.sum(jnp.log(rate))


def simulate(seed):
    """Peak and falling background on the range."""
    rng = np.random.default_rng(seed)
    signal = rng.normal(4.0, SIGMA, NUM_SIGNAL) + rng.exponential(TAIL, NUM_SIGNAL)
    x = rng.uniform(LOW, HIGH, 4 * NUM_BACKGROUND)
    falling = x[rng.uniform(0, 1, len(x)) < 1 - 0.06 * x][:NUM_BACKGROUND]
    x = np.concatenate([signal, falling])
    return x[(x > LOW) & (x < HIGH)]


def scan(function, x):
    """Minima over the nuisance parameters on the grid, evaluations, seconds of the first points and
    of the rest.
    """
    ticks = [time.perf_counter()]
    best = np.array([NUM_SIGNAL / 1e3, NUM_BACKGROUND / 1e3, -0.5, 0.0])
    minima, calls = [], 0
    for position in GRID:

        def objective(nuisance, position=float(position)):
            value, gradient = function(nuisance, position, x)
            return float(value), np.asarray(gradient)

        result = minimize(
            objective,
            best,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None), (0, None), (-0.99, 3), (0, 3)],
        )
        best = result.x
        calls += result.nfev
        minima.append(result.fun)
        ticks.append(time.perf_counter())
    return np.array(minima), calls, (ticks[NUM_FIRST] - ticks[0], ticks[-1] - ticks[NUM_FIRST])


def main():
    """Scan both ways and compare."""
    x = incrax.frozen(simulate(seed=2))
    ours = incrax.incremental(jax.value_and_grad(negative_log_likelihood))
    plain = jax.jit(jax.value_and_grad(negative_log_likelihood))
    minima, calls, ours_s = scan(ours, x)
    plain_minima, plain_calls, plain_s = scan(plain, x)

    print("position   2 (NLL - minimum)")
    for position, value in zip(GRID, 2 * (minima - minima.min()), strict=True):
        print(f"{position:8.4f}   {value:8.3f}")
    difference = float(np.abs(minima - plain_minima).max())
    print(f"\n{len(x):,} events; largest difference between the two profiles {difference:.1e}")
    print(f"{'':8} evaluations   first {NUM_FIRST} points   the other {len(GRID) - NUM_FIRST}")
    for name, number, (first_s, rest_s) in (
        ("jax.jit", plain_calls, plain_s),
        ("incrax", calls, ours_s),
    ):
        print(f"{name:8} {number:11d} {first_s:13.2f} s {rest_s:12.2f} s")
    report = ours.explain().as_dict()
    print(f"last call: {report['served_by']}, {report['why']}")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
