r"""An amplitude analysis as ampform writes it, J/psi -> gamma pi0 pi0: a fit of the complex couplings,
then a scan of the width of the f2(1270).

By tensorwaves (JAX backend, Minuit with its gradient), by Minuit on `jax.jit` with real and
imaginary parts taken apart by hand, and by incrax. The intensity is the one that tensorwaves makes
of ampform's expression, in all of them.

Run: python examples/analyses/ampform_couplings.py
"""

from __future__ import annotations

import wholejob

wholejob.needs("ampform", "tensorwaves", "qrules", "iminuit")

import logging
import time

import ampform
import jax
import jax.numpy as jnp
import numpy as np
import qrules
from ampform.dynamics.builder import create_relativistic_breit_wigner
from iminuit import Minuit
from tensorwaves.estimator import UnbinnedNLL
from tensorwaves.function.sympy import create_function, create_parametrized_function
from tensorwaves.optimizer import Minuit2

import incrax
from incrax import fit

jax.config.update("jax_enable_x64", True)
logging.disable(logging.WARNING)  # progress of qrules and tensorwaves

NUM_EVENTS, NUM_SIMULATED = 5_000, 20_000
WIDTH = r"\Gamma_{f_{2}(1270)}"
WIDTHS = np.linspace(0.14, 0.24, 60)


def formulated():
    """Ampform's model with Breit-Wigner shapes."""
    reaction = qrules.generate_transitions(
        initial_state=("J/psi(1S)", [-1, +1]),
        final_state=["gamma", "pi0", "pi0"],
        allowed_intermediate_particles=["f(0)(980)", "f(0)(1500)", "f(2)(1270)"],
        allowed_interaction_types=["strong", "EM"],
        formalism="helicity",
    )
    builder = ampform.get_builder(reaction)
    for name in reaction.get_intermediate_particles().names:
        builder.dynamics.assign(name, create_relativistic_breit_wigner)
    return builder.formulate()


MODEL = formulated()
EXPRESSION = MODEL.expression.doit()
INTENSITY = create_function(EXPRESSION, backend="jax")
DEFAULTS = {str(name): value for name, value in MODEL.parameter_defaults.items()}
COUPLINGS = [name for name, value in DEFAULTS.items() if isinstance(value, complex)]
SHAPES = {name: value for name, value in DEFAULTS.items() if name not in COUPLINGS}
TRUTH = np.array([1.0, 0.6 + 0.5j, -0.3 + 0.4j, 0.5 - 0.2j, 0.4 + 0.6j])


def parameters(couplings, shapes):
    return {**shapes, **{name: couplings[k] for k, name in enumerate(COUPLINGS)}}


def phase_space(rng, num):
    """Kinematic variables of events without dynamics."""
    names = [name for name in INTENSITY.argument_order if name not in DEFAULTS]
    mother, pion = 3.0969, 0.13498
    mass = rng.uniform(2 * pion, mother, 4 * num)
    photon = (mother**2 - mass**2) / (2 * mother)
    weight = photon * np.sqrt(mass**2 / 4 - pion**2)
    mass = mass[rng.uniform(size=mass.size) < weight / weight.max()][:num]
    fixed = {"m_0": 0.0, "m_1": pion, "m_2": pion, "m_012": mother}
    found = {}
    for name in names:
        if name == "m_12":
            found[name] = mass
        elif name in fixed:
            found[name] = np.full(mass.size, fixed[name])
        elif name.startswith("theta"):
            found[name] = np.arccos(rng.uniform(-1, 1, mass.size))
        else:
            found[name] = rng.uniform(-np.pi, np.pi, mass.size)
    return found


def samples():
    rng = np.random.default_rng(4)
    events = phase_space(rng, 20 * NUM_EVENTS)
    weights = np.asarray(INTENSITY({**parameters(TRUTH, SHAPES), **events}))
    keep = np.flatnonzero(rng.uniform(size=weights.size) < weights / weights.max())[:NUM_EVENTS]
    return {name: x[keep] for name, x in events.items()}, phase_space(rng, NUM_SIMULATED)


DATA, SIMULATED = samples()
START = TRUTH + np.array([0, 0.2, 0.2j, -0.2, 0.1 + 0.1j])


def nll(couplings, shapes, data, simulated):
    """- sum log I(data) + N log mean I(simulated)."""
    p = parameters(couplings, shapes)
    seen = INTENSITY({**p, **data})
    norm = jnp.mean(INTENSITY({**p, **simulated}))
    return -jnp.sum(jnp.log(seen)) + seen.size * jnp.log(norm)


def numbers(value, couplings, scan, begin_s, middle_s):
    return {
        "value": value,
        "coupling 1": abs(couplings[1]),
        "coupling 4": abs(couplings[4]),
        "best width": WIDTHS[np.argmin(scan)],
        "last": scan[-1] - np.min(scan),
        "fit_s": middle_s - begin_s,
        "scan_s": time.perf_counter() - middle_s,
    }


def by_tensorwaves():
    begin_s = time.perf_counter()
    values = {
        name: parameters(START, SHAPES)[str(name)] for name in map(str, MODEL.parameter_defaults)
    }
    function = create_parametrized_function(
        EXPRESSION, {s: values[str(s)] for s in MODEL.parameter_defaults}, backend="jax"
    )
    estimator = UnbinnedNLL(function, DATA, SIMULATED, backend="jax")
    free = {name: complex(START[k]) for k, name in enumerate(COUPLINGS) if k}
    found = Minuit2(use_analytic_gradient=False).optimize(estimator, free)
    middle_s = time.perf_counter()
    best = {**values, **found.parameter_values}
    couplings = np.array([best[name] for name in COUPLINGS])
    scan = [float(estimator({**best, WIDTH: width})) for width in WIDTHS]
    return numbers(found.estimator_value, couplings, scan, begin_s, middle_s)


def by_jit():
    begin_s = time.perf_counter()

    def of_parts(x, shapes, data, simulated):
        couplings = jnp.append(START[0], x[:4] + 1j * x[4:])
        return nll(couplings, shapes, data, simulated)

    given = (SHAPES, jax.tree.map(jnp.asarray, DATA), jax.tree.map(jnp.asarray, SIMULATED))
    both = jax.jit(jax.value_and_grad(of_parts))
    value = jax.jit(of_parts)
    start = np.concatenate([START[1:].real, START[1:].imag])
    minuit = Minuit(
        lambda x: float(value(x, *given)), start, grad=lambda x: np.asarray(both(x, *given)[1])
    )
    minuit.errordef = 0.5
    minuit.strategy = 0
    minuit.migrad()
    middle_s = time.perf_counter()
    x = np.array(minuit.values)
    scan = [float(value(x, {**SHAPES, WIDTH: width}, *given[1:])) for width in WIDTHS]
    couplings = np.append(START[0], x[:4] + 1j * x[4:])
    return numbers(minuit.fval, couplings, scan, begin_s, middle_s)


def by_incrax():
    begin_s = time.perf_counter()
    f = incrax.incremental(nll)
    data, simulated = incrax.frozen((DATA, SIMULATED))
    free = tuple(f"couplings[{k}]" for k in range(1, len(COUPLINGS)))
    found = fit.minimize(f, START, SHAPES, data, simulated, wrt=free)
    middle_s = time.perf_counter()
    shapes = [{**SHAPES, WIDTH: width} for width in WIDTHS]
    scan = [float(f(found.params, each, data, simulated)) for each in shapes]
    return numbers(found.value, found.params, scan, begin_s, middle_s)


if __name__ == "__main__":
    forms = {"tensorwaves": by_tensorwaves, "jax.jit": by_jit, "incrax": by_incrax}
    tolerance = {"coupling 1": 0.01, "coupling 4": 0.01, "best width": 0.002, "last": 0.2}
    wholejob.compare(__file__, forms, tolerance)
