"""The fit, the chain one site at a time, and the same steps with the whole density in each.

A fit moves all parameters in each step: there incrax saves nothing, and `jax.jit` evaluates it. A
step of the chain moves one of thousands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from incrax import samplers
from incrax.demo import model
from incrax.demo.data import KINDS, Flights

Track = Callable[[Iterable[int], str], Iterable[int]]
"""Shows how far a stage is: its parts, one by one, and its name."""

NUM_SWEEPS = 150
NUM_ROUNDS = 15
"""In which the fit finds effects and spreads in turns."""

MAX_ITERATIONS = 20
"""Of L-BFGS in a round; the last has twenty times as many."""

STEP = 2.4
"""Width of a step, in standard deviations of what it moves while all else stays: the best for a
normal.
"""

BURN_IN = 0.2
"""Of the chain, what is not looked at."""

JIT_S = 8.0
"""Seconds of steps with the whole density, compilation apart."""

NUM_PARTS = 40
"""In which these seconds are shown to pass."""

NUM_COMPARED = 5
"""Samples at which log-densities are compared."""

JIT_CHUNK = 8
"""Steps between looks at the clock."""


@dataclass
class Mode:
    """Where the density is largest, at spreads that are found by expectation maximisation.

    Fields: the parameters; the log-density there; evaluations of value and gradient; seconds,
    compilation included.
    """

    parameters: dict[str, Any]
    log_density: float
    num_evaluations: int
    seconds: float


@dataclass
class Sampled:
    """The chain; steps of a sweep; seconds, compilation included."""

    chain: samplers.Chain
    num_steps: int
    seconds: float

    @property
    def sweep_s(self) -> float:
        """Seconds a sweep, compilation included."""
        return self.seconds / len(self.chain.samples)

    @property
    def used(self) -> slice:
        """The sweeps that are looked at."""
        return slice(int(BURN_IN * len(self.chain.samples)), None)

    def effects(self, kind: str) -> np.ndarray:
        """Samples of the effects of a kind, minutes, in relation to the mean of all of the kind,
        which is told less well by the data than differences are.
        """
        found = self.chain.tree()[kind][self.used]
        return found - found.mean(axis=1, keepdims=True)


@dataclass
class WholeSteps:
    """Steps with the whole density in each: how many, and their seconds without compilation; the
    largest relative difference of log-densities at samples of the chain.
    """

    num_steps: int
    seconds: float
    difference: float

    @property
    def step_s(self) -> float:
        """Seconds a step."""
        return self.seconds / self.num_steps


# --- the fit --------------------------------------------------------------------------------------


def find_mode(flights: Flights, track: Track) -> Mode:
    """The mode of all parameters but the spreads, by L-BFGS; the spreads by what the effects and
    their errors are at it.

    With all of them free the density has no largest value: it grows without bound as a spread and
    its effects go to zero together.
    """
    from scipy.optimize import minimize

    begin_s = time.perf_counter()
    data = jax.tree.map(jnp.asarray, (flights.ids, flights.delay))
    p = model.start(flights)
    spread = p.pop("spread")
    x, unravel = ravel_pytree(p)
    num_evaluations = 0
    value = np.nan

    @jax.jit
    @jax.value_and_grad
    def evaluate(u, scale, spread, ids, delay):
        return -model.log_density({**unravel(u * scale), "spread": spread}, ids, delay)

    for number in track(range(NUM_ROUNDS), "fit"):
        if number:
            spread = _spreads({**p, "spread": spread}, flights)
        widths = model.widths({**p, "spread": spread}, flights)
        scale, _ = ravel_pytree({name: widths[name] for name in p})
        is_last = number == NUM_ROUNDS - 1
        most = MAX_ITERATIONS * (20 if is_last else 1)
        found = minimize(
            lambda u, *rest: tuple(np.asarray(x, np.float64) for x in evaluate(u, *rest)),
            x / scale,
            (scale, spread, *data),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": most, "ftol": 0.0, "gtol": 1e-3 if is_last else 0.1, "maxcor": 20},
        )
        num_evaluations += found.nfev
        value = float(found.fun)
        x = found.x * scale
        p = jax.tree.map(np.asarray, unravel(x))
    seconds = time.perf_counter() - begin_s
    return Mode({**p, "spread": spread}, -value, num_evaluations, seconds)


def _spreads(p: model.Parameters, flights: Flights) -> dict[str, Any]:
    """spread^2 = mean of (effect - center)^2 + error^2."""
    precisions = model.precisions(p, flights)
    center = {"plane": 0.0, "airport": 0.0, "airline": p["level"]}
    return {
        kind: 0.5 * np.log(np.mean((p[kind] - center[kind]) ** 2 + 1 / precisions[kind]))
        for kind in KINDS
    }


# --- one site at a time ---------------------------------------------------------------------------


def sample(mode: Mode, flights: Flights, num_sweeps: int, seed: int) -> Sampled:
    """A chain from the mode on: each sweep moves every plane, airport and airline by itself, then
    noise, level and spreads.
    """
    start = mode.parameters
    begin_s = time.perf_counter()
    chain = samplers.gibbs(
        model.log_density,
        start,
        flights.ids,
        flights.delay,
        updates=_walks(start, flights),
        key=seed,
        num_sweeps=num_sweeps,
    )
    seconds = time.perf_counter() - begin_s
    return Sampled(chain, chain.num_evaluations // num_sweeps, seconds)


def _walks(p: model.Parameters, flights: Flights) -> dict[str, samplers.Walk]:
    width = jax.tree.map(lambda x: samplers.Walk(STEP * x), model.widths(p, flights))
    found = {f"p['{kind}'][*]": width[kind] for kind in KINDS}
    found |= {f"p['{name}']": width[name] for name in ("level", "noise")}
    return found | {f"p['spread']['{kind}']": width["spread"][kind] for kind in KINDS}


# --- the whole density in each step ---------------------------------------------------------------


def measure_whole(
    mode: Mode, sampled: Sampled, flights: Flights, seed: int, track: Track
) -> WholeSteps:
    """The same steps by `lax.scan` over the whole density, as many as there is time for; and its
    values at some samples of the chain.
    """
    data = jax.tree.map(jnp.asarray, (flights.ids, flights.delay))
    p = jax.tree.map(jnp.asarray, mode.parameters)
    plain = jax.jit(model.log_density)
    rng = np.random.default_rng(seed)
    width = STEP * model.widths(mode.parameters, flights)["plane"]
    steps = lambda place: jax.block_until_ready(_whole_steps(place, _turns(rng, width), data))[0]
    place = steps((p, plain(p, *data)))
    begin_s = time.perf_counter()
    num_steps = 0
    for part in track(range(1, NUM_PARTS + 1), "jax.jit"):
        while time.perf_counter() - begin_s < JIT_S * part / NUM_PARTS:
            place = steps(place)
            num_steps += JIT_CHUNK
    seconds = time.perf_counter() - begin_s
    return WholeSteps(num_steps, seconds, _difference(sampled.chain, lambda p: plain(p, *data)))


def _difference(chain: samplers.Chain, log_density: Callable[[Any], Any]) -> float:
    """The largest relative one at some samples of the chain."""
    numbers = np.linspace(0, len(chain.samples) - 1, NUM_COMPARED).astype(int)
    samples = chain.tree()
    at = [jax.tree.map(lambda x, k=k: x[k], samples) for k in numbers]
    values = np.array([float(log_density(p)) for p in at])
    return float(np.max(np.abs(chain.log_densities[numbers] / values - 1)))


def _turns(rng: np.random.Generator, width: np.ndarray) -> Any:
    """Which plane moves, by how much, and what the gain is compared with."""
    numbers = rng.integers(0, width.size, JIT_CHUNK)
    return numbers, width[numbers] * rng.normal(size=JIT_CHUNK), np.log(1 - rng.random(JIT_CHUNK))


@jax.jit
def _whole_steps(place: Any, turns: Any, data: Any) -> Any:
    """Metropolis steps of one plane each, as `samplers.gibbs` makes them."""

    def step(place, turn):
        p, value = place
        number, move, bound = turn
        moved = {**p, "plane": p["plane"].at[number].add(move)}
        proposed = model.log_density(moved, *data)
        accept = bound < proposed - value
        p = {**p, "plane": jnp.where(accept, moved["plane"], p["plane"])}
        return (p, jnp.where(accept, proposed, value)), accept

    return jax.lax.scan(step, place, turns)
