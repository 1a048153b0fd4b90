"""A tutorial fit of zfit: a Gaussian on an exponential background, 20,000 events in a window; Minuit, Hesse, MINOS
for all parameters, and the contour of mean and width.

By zfit (TensorFlow) with its Minuit, by iminuit on `jax.jit` of the same density, and by incrax:
a bound model, `fit.minimize`, `result.minos`, `fit.contour`.

Run: python examples/analyses/zfit_tutorial.py
"""

from __future__ import annotations

import os

os.environ.setdefault("ZFIT_DISABLE_TF_WARNINGS", "1")

import wholejob

wholejob.needs("zfit", "iminuit", extra="zfit")

import jax
import jax.numpy as jnp
import numpy as np
from iminuit import Minuit
from jax.scipy.stats import norm

import incrax
from incrax import fit

jax.config.update("jax_enable_x64", True)

LOW, HIGH = -10.0, 10.0
START = {"mu": 2.4, "sigma": 1.3, "slope": -0.06, "share": 0.3}
BOUNDS = {"mu": (-1.0, 5.0), "sigma": (0.1, 5.0), "slope": (-1.0, -0.01), "share": (0.0, 1.0)}


def events():
    rng = np.random.default_rng(4)
    peak = rng.normal(1.0, 1.2, 8_000)
    tail = LOW - np.log1p(-rng.uniform(size=12_000) * -np.expm1(-0.1 * (HIGH - LOW))) / 0.1
    return np.concatenate([peak[(peak > LOW) & (peak < HIGH)], tail])


X = events()


def nll(mu, sigma, slope, share, x):
    inside = norm.cdf(HIGH, mu, sigma) - norm.cdf(LOW, mu, sigma)
    signal = norm.pdf(x, mu, sigma) / inside
    background = slope * jnp.exp(slope * x) / (jnp.exp(slope * HIGH) - jnp.exp(slope * LOW))
    return -jnp.sum(jnp.log(share * signal + (1 - share) * background))


def numbers(values, errors, intervals, contour):
    """What the forms are compared by."""
    return {
        **values,
        "error of mu": errors["mu"],
        "error of share": errors["share"],
        "mu up": intervals["mu"][1],
        "sigma down": intervals["sigma"][0],
        "share up": intervals["share"][1],
        "greatest mu": contour[:, 0].max(),
        "least sigma": contour[:, 1].min(),
    }


def by_zfit():
    import zfit

    space = zfit.Space("x", LOW, HIGH)
    p = {name: zfit.Parameter(name, START[name], *BOUNDS[name]) for name in START}
    signal = zfit.pdf.Gauss(mu=p["mu"], sigma=p["sigma"], obs=space)
    background = zfit.pdf.Exponential(p["slope"], obs=space)
    model = zfit.pdf.SumPDF([signal, background], fracs=p["share"])
    loss = zfit.loss.UnbinnedNLL(model, zfit.Data.from_numpy(obs=space, array=X))
    result = zfit.minimize.Minuit().minimize(loss)
    errors = result.hesse()
    intervals, _ = result.errors(method="minuit_minos")
    return numbers(
        {name: result.params[each]["value"] for name, each in p.items()},
        {name: errors[each]["error"] for name, each in p.items()},
        {name: (intervals[each]["lower"], intervals[each]["upper"]) for name, each in p.items()},
        np.array(result.info["minuit"].mncontour("mu", "sigma", size=40)),
    )


def by_jit():
    # One vector, so that a call has one argument: what a user of iminuit writes.
    flat = lambda p, x: nll(*p, x)
    value = jax.jit(flat)
    gradient = jax.jit(jax.grad(flat))
    minuit = Minuit(
        lambda p: float(value(p, X)),
        np.array(list(START.values())),
        grad=lambda p: np.asarray(gradient(p, X)),
        name=list(START),
    )
    minuit.errordef = Minuit.LIKELIHOOD
    minuit.limits = list(BOUNDS.values())
    minuit.migrad().hesse()
    values, errors = minuit.values.to_dict(), minuit.errors.to_dict()
    minuit.minos()
    intervals = {name: (each.lower, each.upper) for name, each in minuit.merrors.items()}
    return numbers(values, errors, intervals, np.array(minuit.mncontour("mu", "sigma", size=40)))


def by_incrax():
    model = incrax.bind(nll, **START, x=X, roles={"x": "data"}, bounds=BOUNDS)
    result = fit.minimize(model)
    intervals = result.minos()
    contour = fit.contour(result, "mu", "sigma")
    return numbers(
        dict(zip(result.names, result.values, strict=True)),
        dict(zip(result.names, result.errors, strict=True)),
        {name: (each.lower, each.upper) for name, each in intervals.items()},
        contour.points,
    )


if __name__ == "__main__":
    wholejob.compare(
        __file__,
        {"zfit": by_zfit, "jax.jit": by_jit, "incrax": by_incrax},
        {
            "mu": 1e-3,
            "sigma": 1e-3,
            "slope": 1e-4,
            "share": 3e-4,
            "error of mu": 1e-3,
            "error of share": 1e-4,
            "mu up": 1e-3,
            "sigma down": 1e-3,
            "share up": 3e-4,
            "greatest mu": 2e-3,
            "least sigma": 2e-3,
        },
    )
