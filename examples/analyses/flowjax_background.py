"""A posterior with a learned background: a peak in two dimensions on a background whose density is
a conditional flow of FlowJAX, fitted to simulated events at many values of a calibration constant.

The fit of the flow is FlowJAX's own: all its parameters move in each step, and nothing can be
saved. Then a chain moves the calibration, the share, the mean and the width of the peak, one after
the other. Three of four steps leave the flow as it is, at all events. By `jax.jit`, which is how
FlowJAX evaluates, and by incrax: the same calls of the same function.

Run: python examples/analyses/flowjax_background.py
"""

from __future__ import annotations

import wholejob

wholejob.needs("flowjax")

import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import RationalQuadraticSpline
from flowjax.distributions import Normal
from flowjax.flows import coupling_flow
from flowjax.train import fit_to_data
from jax.scipy.stats import norm

import incrax

jax.config.update("jax_enable_x64", True)

NUM_SIMULATED, NUM_EVENTS, NUM_SWEEPS = 4_000, 10_000, 1_000
WIDTHS = {"calibration": 0.02, "share": 0.01, "mean": 0.03, "width": 0.03}
START = {"calibration": 0.0, "share": 0.2, "mean": 0.8, "width": 0.4}


def background(calibration, rng):
    """Events on a bent band, which moves with the calibration."""
    first = rng.normal(size=calibration.shape)
    second = 0.5 * first**2 - 0.5 + calibration + 0.4 * rng.normal(size=calibration.shape)
    return np.stack([first, second], axis=1)


def fitted_flow():
    """By maximum likelihood, as in FlowJAX's documentation."""
    rng = np.random.default_rng(7)
    calibration = rng.uniform(-1, 1, NUM_SIMULATED)
    flow = coupling_flow(
        jax.random.key(0),
        base_dist=Normal(jnp.zeros(2)),
        transformer=RationalQuadraticSpline(knots=8, interval=4),
        cond_dim=1,
        flow_layers=4,
        nn_width=32,
    )
    data = background(calibration, rng), calibration[:, None]
    data = tuple(map(jnp.asarray, data))
    flow, _ = fit_to_data(jax.random.key(1), flow, data, max_epochs=12, show_progress=False)
    return flow


def observed():
    """A fifth of the events in the peak, the others at a calibration of 0.2."""
    rng = np.random.default_rng(8)
    peak = 0.7 + 0.3 * rng.normal(size=(NUM_EVENTS // 5, 2))
    rest = background(np.full(NUM_EVENTS - len(peak), 0.2), rng)
    return jnp.asarray(np.concatenate([peak, rest]))


X = observed()


def log_density(flow, p, x):
    """Flat priors; the calibration is known to 0.5 from elsewhere."""
    context = jnp.broadcast_to(p["calibration"], (len(x), 1))
    learned = flow.log_prob(x, context)
    peak = jnp.sum(norm.logpdf(x, p["mean"], p["width"]), axis=1)
    both = jnp.logaddexp(jnp.log(p["share"]) + peak, jnp.log1p(-p["share"]) + learned)
    return jnp.sum(both) - 0.5 * (p["calibration"] / 0.5) ** 2


def job(transform):
    """Metropolis, one parameter after the other."""
    flow = fitted_flow()
    f = transform(lambda p, x: log_density(flow, p, x))
    rng = np.random.default_rng(9)
    p, value, taken = START, float(f(START, X)), 0
    total = np.zeros(len(START))
    for _ in range(NUM_SWEEPS):
        for name, width in WIDTHS.items():
            moved = p | {name: p[name] + width * rng.normal()}
            new = float(f(moved, X))
            if np.log(rng.uniform()) < new - value:
                p, value, taken = moved, new, taken + 1
        total += np.array(list(p.values()))
    means = dict(zip(START, total / NUM_SWEEPS, strict=True))
    return {"log-density": value, "taken": taken, **means}


def by_jit():
    return job(jax.jit)


def by_incrax():
    return job(incrax.incremental)


if __name__ == "__main__":
    forms = {"jax.jit": by_jit, "incrax": by_incrax}
    wholejob.compare(__file__, forms, {"log-density": 1e-4, "taken": 0.5, "share": 1e-6})
