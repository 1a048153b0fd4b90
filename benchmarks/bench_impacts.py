"""Question: are a fit and the impacts of its 23 nuisance parameters found earlier than by Minuit
over jax.jit, compiling included?

Each form runs each job in fresh processes, by turns: from the first call to the last result, after
imports and data. The peer is what a careful user writes: MIGRAD with the gradient of a compiled
function, HESSE, and for each nuisance parameter and side MIGRAD again from the minimum, with
strategy 0 and the errors known. `fix, fit, free` is the same loop by a bound model: 46 fits with one
parameter fixed. Target: impacts are not slower than Minuit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Check, Line, Options, Speed

import incrax
from incrax import fit

LIMIT_S = 300
NUM_NUISANCES = 23
MINUIT, IMPACTS, LOOP = "Minuit, jax.jit", "impacts", "fix, fit, free"
EQUAL = 0.02
"""Of the error of the parameter of interest: how far shifts may differ. MIGRAD ends so near."""


class Job(NamedTuple):
    """A negative log-likelihood of a signal strength, nuisance parameters and data."""

    nll: Callable[..., Any]
    data: Any


def histogram(size: int) -> Job:
    """Counts in bins: six samples, each shifted by all nuisance parameters."""
    rng = np.random.default_rng(0)
    nominal = jnp.asarray(rng.uniform(5, 10, (6, size)))
    slopes = jnp.asarray(rng.normal(size=(NUM_NUISANCES, 6, size)))
    counts = rng.poisson(np.asarray(nominal.sum(axis=0))).astype(float)

    def nll(mu: Any, theta: Any, data: Any) -> Any:
        shape = nominal * jnp.exp(0.02 * jnp.tensordot(theta, slopes, 1))
        expected = mu * shape[0] + shape[1:].sum(axis=0)
        return jnp.sum(expected - data * jnp.log(expected)) + 0.5 * jnp.sum(theta**2)

    return Job(nll, counts)


def events(size: int) -> Job:
    """Unbinned: a line over a background, distorted by all nuisance parameters."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(0.0, 0.1, size // 20), rng.uniform(-1, 1, size - size // 20)])
    waves = np.pi * np.arange(1, NUM_NUISANCES)

    def nll(mu: Any, theta: Any, data: Any) -> Any:
        shift = 0.01 * theta[0]
        line = jnp.exp(-0.5 * ((data - shift) / 0.1) ** 2) / 0.25066
        rest = 0.5 * (1.0 + 0.01 * jnp.cos(data[:, None] * waves) @ theta[1:])
        share = 0.05 * mu
        density = share * line + (1.0 - share) * rest
        return -jnp.sum(jnp.log(density)) + 0.5 * jnp.sum(theta**2)

    return Job(nll, x)


JOBS: dict[str, tuple[Callable[[int], Job], int, int]] = {
    "histogram, 400 bins": (histogram, 400, 40),
    "50,000 events": (events, 50_000, 2_000),
}
"""By name, with a size and a small one."""


# --- forms: shifts of the signal strength, shape (23, 2), and its error ---------------------------

Shifts = tuple[np.ndarray, float]


def by_minuit(job: Job) -> Shifts:
    """A loop of MIGRAD."""
    import iminuit

    both = jax.jit(jax.value_and_grad(lambda v, data: job.nll(v[0], v[1:], data)))
    latest: dict[bytes, tuple[float, np.ndarray]] = {}

    def evaluated(v: np.ndarray) -> tuple[float, np.ndarray]:
        key = v.tobytes()
        if key not in latest:
            latest.clear()
            value, gradient = both(v, job.data)
            latest[key] = float(value), np.asarray(gradient)
        return latest[key]

    start = np.zeros(1 + NUM_NUISANCES)
    start[0] = 0.5
    minuit = iminuit.Minuit(lambda v: evaluated(v)[0], start, grad=lambda v: evaluated(v)[1])
    minuit.errordef = 0.5
    minuit.strategy = 0
    minuit.migrad()
    minuit.hesse()
    best, errors = np.array(minuit.values), np.array(minuit.errors)
    shifts = np.zeros((NUM_NUISANCES, 2))
    for k in range(NUM_NUISANCES):
        minuit.fixed[1 + k] = True
        for side, sign in enumerate((-1.0, 1.0)):
            minuit.values = best
            minuit.errors = errors
            minuit.values[1 + k] = best[1 + k] + sign * errors[1 + k]
            minuit.migrad()
            shifts[k, side] = minuit.values[0] - best[0]
        minuit.fixed[1 + k] = False
    return shifts, float(errors[0])


def bound(job: Job) -> incrax.Bound:
    """The model of a job."""
    theta = np.zeros(NUM_NUISANCES)
    return incrax.bind(job.nll, mu=0.5, theta=theta, data=job.data, roles={"data": "data"})


def by_impacts(job: Job) -> Shifts:
    """One call."""
    found = fit.impacts(bound(job), "mu", progress=False)
    places = [found.names.index(f"theta[{k}]") for k in range(NUM_NUISANCES)]
    return found.shifts[places], found.error


def by_loop(job: Job) -> Shifts:
    """A fit for each, with one parameter fixed."""
    model = bound(job)
    best = fit.minimize(model, progress=False)
    shifts = np.zeros((NUM_NUISANCES, 2))
    for k in range(NUM_NUISANCES):
        model.fix(f"theta[{k}]")
        for side, sign in enumerate((-1.0, 1.0)):
            at = best.values.copy()
            at[1 + k] += sign * best.errors[1 + k]
            model.set(mu=at[0], theta=at[1:])
            shifts[k, side] = fit.minimize(model, progress=False).values[0] - best.values[0]
        model.free(f"theta[{k}]")
    return shifts, float(best.errors[0])


FORMS = {MINUIT: by_minuit, IMPACTS: by_impacts, LOOP: by_loop}


# --- in fresh processes ---------------------------------------------------------------------------


def run(name: str, form: str, *, quick: bool) -> dict[str, Any]:
    """One job in this process."""
    make, size, small = JOBS[name]
    job = make(small if quick else size)
    jax.block_until_ready(jnp.zeros(3) + 1)  # the runtime is up
    start_s = time.perf_counter()
    shifts, error = FORMS[form](job)
    return {"whole": time.perf_counter() - start_s, "shifts": (shifts / error).tolist()}


def in_process(name: str, form: str, *, quick: bool) -> dict[str, Any]:
    """The same in a fresh process, which knows nothing of others."""
    command = [sys.executable, __file__, "--job", name, "--form", form]
    command += ["--quick"] if quick else []
    env = {**os.environ, "INCRAX_REMEMBER": "0"}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env
    )
    if ended.returncode:
        raise RuntimeError(f"{name}, {form}: {ended.stderr[-2000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def lines(options: Options) -> Iterator[Line]:
    """A line for each job."""
    for name in JOBS:
        if options.only in name:
            yield _line(name, options)


def _line(name: str, options: Options) -> Line:
    found: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
    for number in range(options.rounds):
        for form in list(FORMS)[:: -1 if number % 2 else 1]:
            found[form].append(in_process(name, form, quick=options.quick))
    timings = {
        form: harness.summary([each["whole"] for each in runs]) for form, runs in found.items()
    }
    line = harness.timing_line(name, timings, [Speed(MINUIT, 1.0)], ours=IMPACTS)
    shifts = {form: np.array(runs[0]["shifts"]) for form, runs in found.items()}
    difference = max(float(np.abs(each - shifts[IMPACTS]).max()) for each in shifts.values())
    line.cells["difference"] = f"{difference:.1e}"
    line.numbers["difference"] = difference
    target = f"difference <= {EQUAL:g}"
    line.checks.append(Check(target, f"difference {difference:.1e}", difference <= EQUAL))
    return line


def _extend(parser: Any) -> None:
    parser.add_argument("--job", choices=JOBS, help="run one job here, once, and print its seconds")
    parser.add_argument("--form", choices=FORMS, default=IMPACTS)


def main() -> None:
    """All jobs, or one of them in this process."""
    options = harness.start(__doc__, rounds=5, quick_rounds=1, extend=_extend)
    if options.extra.job is not None:
        made = run(options.extra.job, options.extra.form, quick=options.quick)
        print(json.dumps(made))
        return
    title = f"Impacts of {NUM_NUISANCES} nuisance parameters in fresh processes"
    harness.report(f"{title} ({Path(sys.executable).name})", lines(options), options)


if __name__ == "__main__":
    main()
