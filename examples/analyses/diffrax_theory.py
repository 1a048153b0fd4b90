"""A slow theory and fast nuisance parameters: a kinetic model solved by diffrax, measured by eight
detectors with a gain and a background each.

For each point of the theory's rates, all nuisance parameters are fitted. By SciPy's BFGS on
`jax.jit`, and on the same function by incrax, which solves the differential equations once for each
point.

Run: python examples/analyses/diffrax_theory.py
"""

from __future__ import annotations

import wholejob

wholejob.needs("diffrax")

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import incrax

jax.config.update("jax_enable_x64", True)

NUM_DETECTORS, NUM_TIMES = 8, 200
TIMES = np.linspace(0.0, 40.0, NUM_TIMES)
GRID = np.linspace(0.035, 0.045, 41)


def theory(rates):
    """Robertson's reactions of three species, stiff: their amounts at all times."""

    def field(t, y, rates):
        k1, k2, k3 = rates
        first = -k1 * y[0] + k3 * y[1] * y[2]
        third = k2 * y[1] ** 2
        return jnp.stack([first, -first - third, third])

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Kvaerno5(),
        t0=0.0,
        t1=TIMES[-1],
        dt0=1e-4,
        y0=jnp.array([1.0, 0.0, 0.0]),
        args=rates,
        saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-10),
        max_steps=4_096,
    )
    return solution.ys


def expected(amounts, gains, backgrounds):
    """Counts of each detector at each time: of the first and the third species."""
    signal = amounts[:, 0] + 0.5 * amounts[:, 2]
    return 1_000 * jnp.exp(0.1 * gains)[:, None] * signal + 50 * jnp.exp(0.3 * backgrounds)[:, None]


def nll(rates, gains, backgrounds, counts):
    mean = expected(theory(rates), gains, backgrounds)
    gauss = jnp.sum(gains**2) + jnp.sum(backgrounds**2)
    return jnp.sum(mean - counts * jnp.log(mean)) + 0.5 * gauss


def measured():
    rng = np.random.default_rng(5)
    gains, backgrounds = rng.normal(size=(2, NUM_DETECTORS))
    rates = jnp.array([0.04, 3e7, 1e4])
    return rng.poisson(expected(theory(rates), gains, backgrounds)).astype(float)


COUNTS = measured()


def job(both):
    """A profile of the first rate; `both` is value and gradient by gains and backgrounds."""
    at = np.zeros(2 * NUM_DETECTORS)
    values = []
    for rate in GRID:
        rates = np.array([rate, 3e7, 1e4])

        def of_vector(x, rates=rates):
            gains, backgrounds = np.split(x, 2)
            value, (by_gains, by_backgrounds) = both(rates, gains, backgrounds, COUNTS)
            return float(value), np.concatenate([by_gains, by_backgrounds])

        found = scipy.optimize.minimize(of_vector, at, jac=True, method="BFGS")
        at = found.x
        values.append(found.fun)
    return {"least": np.min(values), "best rate": GRID[np.argmin(values)], "last": values[-1]}


def by_jit():
    return job(jax.jit(jax.value_and_grad(nll, argnums=(1, 2))))


def by_incrax():
    return job(incrax.value_and_grad(nll, wrt=("gains", "backgrounds")))


if __name__ == "__main__":
    forms = {"jax.jit": by_jit, "incrax": by_incrax}
    wholejob.compare(__file__, forms, {"least": 1e-3, "best rate": 1e-9, "last": 1e-2})
