"""A pyhf workspace with 33 parameters: fit, scan of the signal strength, impacts of all nuisance
parameters.

By pyhf itself (JAX backend, Minuit), by Minuit on `jax.jit` of its density, and by incrax. The
density is pyhf's in all of them.

Run: python examples/analyses/pyhf_workspace.py
"""

from __future__ import annotations

import wholejob

wholejob.needs("pyhf", "iminuit")

import jax
import jax.numpy as jnp
import numpy as np
import pyhf
from iminuit import Minuit

from incrax import fit

pyhf.set_backend("jax", pyhf.optimize.minuit_optimizer(), precision="64b")

NUM_BINS = 10
GRID = np.linspace(0.5, 2.5, 21)


def sample(rng, name, counts, modifiers):
    """Six uncertainties of its normalisation, five of its shape, the luminosity."""
    shifts = rng.uniform(0.02, 0.08, 6)
    shapes = 0.05 * rng.normal(size=(5, NUM_BINS))
    norms = [
        {"name": f"norm_{k}", "type": "normsys", "data": {"hi": 1 + x, "lo": 1 - x}}
        for k, x in enumerate(shifts)
    ]
    moved = lambda x: (counts * (1 + x)).tolist()
    shapes = [
        {
            "name": f"shape_{k}",
            "type": "histosys",
            "data": {"hi_data": moved(x), "lo_data": moved(-x)},
        }
        for k, x in enumerate(shapes)
    ]
    lumi = {"name": "lumi", "type": "lumi", "data": None}
    return {"name": name, "data": counts.tolist(), "modifiers": [*norms, *shapes, lumi, *modifiers]}


def workspace():
    """A signal and two backgrounds in a signal and a control region."""
    rng = np.random.default_rng(3)
    bins = np.arange(NUM_BINS)
    signal = 12 * np.exp(-0.5 * ((bins - 6) / 1.5) ** 2)
    backgrounds = {"ttbar": 120 * np.exp(-0.25 * bins), "other": np.full(NUM_BINS, 30.0)}
    channels, observations = [], []
    for region, signal_share, scale in (("SR", 1.0, 1.0), ("CR", 0.1, 4.0)):
        poi = {"name": "mu", "type": "normfactor", "data": None}
        samples = [sample(rng, "signal", signal_share * signal, [poi])]
        for name, counts in backgrounds.items():
            errors = (0.03 * scale * counts).tolist()
            stat = {"name": f"stat_{region}", "type": "staterror", "data": errors}
            samples.append(sample(rng, name, scale * counts, [stat]))
        expected = sum(np.array(each["data"]) for each in samples)
        channels.append({"name": region, "samples": samples})
        observations.append({"name": region, "data": rng.poisson(expected).astype(float).tolist()})
    lumi = {
        "name": "lumi",
        "auxdata": [1.0],
        "sigmas": [0.02],
        "bounds": [[0.5, 1.5]],
        "inits": [1.0],
    }
    config = {"poi": "mu", "parameters": [lumi]}
    return pyhf.Workspace(
        {
            "channels": channels,
            "observations": observations,
            "measurements": [{"name": "all", "config": config}],
            "version": "1.0.0",
        }
    )


WORKSPACE = workspace()
MODEL = WORKSPACE.model()
DATA = np.array(WORKSPACE.data(MODEL))
CONFIG = MODEL.config
POI = CONFIG.poi_index


def numbers(values, errors, rises, impacts):
    """What the forms are compared by."""
    return {
        "mu": values[POI],
        "error of mu": errors[POI],
        "rise at 0.5": rises[0],
        "greatest impact": np.max(np.abs(impacts)),
        "all impacts": np.sqrt(np.sum(np.square(impacts)) / 2),
    }


def by_pyhf():
    """As in pyhf's documentation; impacts as cabinetry does them."""
    found = pyhf.infer.mle.fit(
        DATA, MODEL, return_uncertainties=True, return_fitted_val=True, do_grad=True
    )
    (values, errors), twice = np.asarray(found[0]).T, float(found[1])
    scan = [
        pyhf.infer.mle.fixed_poi_fit(mu, DATA, MODEL, return_fitted_val=True, do_grad=True)[1]
        for mu in GRID
    ]
    impacts = []
    for number in range(CONFIG.npars):
        for sign in (-1, 1) if number != POI else ():
            start = values.copy()
            start[number] += sign * errors[number]
            fixed = [k == number for k in range(CONFIG.npars)]
            at = pyhf.infer.mle.fit(
                DATA, MODEL, init_pars=start.tolist(), fixed_params=fixed, do_grad=True
            )
            impacts.append(float(at[POI]) - values[POI])
    return numbers(values, errors, (np.array(scan) - twice) / 2, impacts)


def by_jit():
    """Minuit on the density and its gradient by `jax.jit`."""
    nll = lambda pars, data: -MODEL.logpdf(pars, data)[0]
    both = jax.jit(jax.value_and_grad(nll))
    value = jax.jit(nll)
    minuit = Minuit(
        lambda x: float(value(x, DATA)),
        np.array(CONFIG.suggested_init()),
        grad=lambda x: np.asarray(both(x, DATA)[1]),
    )
    minuit.errordef = 0.5
    minuit.strategy = 0
    minuit.limits = CONFIG.suggested_bounds()
    minuit.migrad().hesse()
    values, errors = np.array(minuit.values), np.array(minuit.errors)
    best = minuit.fval

    def at(number, held):
        minuit.values = values
        minuit.values[number] = held
        minuit.fixed[number] = True
        minuit.migrad()
        minuit.fixed[number] = False
        return minuit.fval, minuit.values[POI]

    rises = [at(POI, mu)[0] - best for mu in GRID]
    others = [number for number in range(CONFIG.npars) if number != POI]
    ends = [(k, values[k] + sign * errors[k]) for k in others for sign in (-1, 1)]
    return numbers(values, errors, rises, [at(*end)[1] - values[POI] for end in ends])


def by_incrax():
    """Parameters by their names in the workspace."""

    def nll(p, data):
        pars = jnp.concatenate([jnp.ravel(p[name]) for name in CONFIG.par_order])
        return -MODEL.logpdf(pars, data)[0]

    start, bounds = {}, {}
    init, limits = CONFIG.suggested_init(), CONFIG.suggested_bounds()
    for name in CONFIG.par_order:
        where = CONFIG.par_slice(name)
        start[name] = (
            np.array(init[where]) if CONFIG.param_set(name).n_parameters > 1 else init[where][0]
        )
        bounds[name] = tuple(limits[where][0])
    result = fit.minimize(nll, start, DATA, bounds=bounds)
    scan = fit.profile(result, "mu", grid=GRID)
    impacts = fit.impacts(result, "mu")
    poi = result.number("mu")
    return {
        "mu": result.values[poi],
        "error of mu": result.errors[poi],
        "rise at 0.5": scan.rise[0],
        "greatest impact": impacts.sizes[0],
        "all impacts": np.sqrt(np.sum(impacts.shifts**2) / 2),
    }


if __name__ == "__main__":
    wholejob.compare(
        __file__,
        {"pyhf": by_pyhf, "jax.jit": by_jit, "incrax": by_incrax},
        {"mu": 0.02, "error of mu": 0.02, "rise at 0.5": 0.02, "all impacts": 0.02},
    )
