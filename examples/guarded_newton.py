"""A function with a loop that stops when it has converged, and a branch: compiled, and
differentiated along each path.

Kepler's equation, mean anomaly = E - e sin E, is solved for E by Newton's method. How many steps
that takes depends on the values; a start for large eccentricities is a branch. `guarded` records
one straight-line program per number of steps.

Run: python examples/guarded_newton.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import incrax

jax.config.update("jax_enable_x64", True)

TOLERANCE = 1e-12


def anomaly(mean, eccentricity):
    """E for one mean anomaly in (0, pi)."""
    e = jnp.pi * jnp.ones_like(mean) if eccentricity > 0.8 else mean
    for _ in range(50):
        step = (e - eccentricity * jnp.sin(e) - mean) / (1.0 - eccentricity * jnp.cos(e))
        e = e - step
        if abs(step) < TOLERANCE:
            return e
    raise ValueError(f"no convergence for {mean} and {eccentricity}")


def main():
    solve = incrax.guarded(jax.value_and_grad(anomaly, argnums=(0, 1)))
    rng = np.random.default_rng(1)
    worst = 0.0
    for mean, eccentricity in zip(
        rng.uniform(0.1, 3.0, 500), rng.uniform(0.0, 0.95, 500), strict=True
    ):
        value, (by_mean, _) = solve(mean, eccentricity)
        exact = 1.0 / (1.0 - eccentricity * np.cos(value))  # dE / dM, from the equation itself
        worst = max(worst, abs(float(by_mean) - exact))
    stats = solve.stats
    print(
        f"{stats.calls} calls: {stats.hits} on the expected path, {stats.recordings} paths recorded"
    )
    print(f"largest error of a derivative: {worst:.1e}")
    for guard in solve.explain().guards:
        print(f"{guard['place']}: {', '.join(guard['outcomes'])}")


if __name__ == "__main__":
    main()
