"""Fit, profile and sample one likelihood; the same driver runs on `jax.jit` and on `incrax.incremental`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import numpy as np

from incrax.demo import model

Function = Callable[..., Any]
Maker = Callable[[Function], Function]
Advance = Callable[[str, int, int], None]

PROFILED = ("tau_late", "tau_very_late")
NUM_GRID = 7
NUM_SWEEPS = 150
STEP = 0.6
"""Proposal width of the chain, in conditional standard deviations of each parameter."""


@dataclass
class Stage:
    """One stage of the work: calls of the value and of the gradient, and seconds, compilation included."""

    name: str
    values: int = 0
    gradients: int = 0
    seconds: float = 0.0


@dataclass
class Result:
    """What a driver finds, and what it took.

    Fields: stages; fitted parameters, their errors and covariance; the minimum; profiles as (grid, minimum at each
    grid point) by name; the chain of shape (sweeps, parameters), its likelihoods and acceptance rate; the functions.
    """

    stages: list[Stage] = field(default_factory=list)
    theta: np.ndarray = field(default_factory=lambda: np.empty(0))
    errors: np.ndarray = field(default_factory=lambda: np.empty(0))
    covariance: np.ndarray = field(default_factory=lambda: np.empty(0))
    minimum: float = float("nan")
    is_valid: bool = False
    profiles: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    chain: np.ndarray = field(default_factory=lambda: np.empty(0))
    chain_values: np.ndarray = field(default_factory=lambda: np.empty(0))
    acceptance: float = float("nan")
    functions: tuple[Function, ...] = ()


class Driver:
    """Runs all stages with one way to evaluate: `make` turns the likelihood into what is called."""

    def __init__(self, make: Maker, x: jax.Array, seed: int, advance: Advance) -> None:
        self.value = make(model.negative_log_likelihood)
        self.gradient = make(jax.grad(model.negative_log_likelihood))
        self.x = x
        self.seed = seed
        self.advance = advance
        self.result = Result(functions=(self.value, self.gradient))
        self.offset = 0.0

    def run(self, num_sweeps: int, reference: Result | None = None) -> Result:
        """All stages; the chain starts at the reference's minimum and uses its covariance, if one is given."""
        with self._stage("fit"):
            minuit = self._fit()
        with self._stage("profiles"):
            for number, name in enumerate(PROFILED):
                self.result.profiles[name] = self._profile(minuit, name, number)
        with self._stage("chain"):
            self._sample(num_sweeps, self.result if reference is None else reference)
        return self.result

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        stage = Stage(name)
        self.result.stages.append(stage)
        start = time.perf_counter()
        yield
        stage.seconds = time.perf_counter() - start

    def _evaluate(self, theta: np.ndarray) -> float:
        self.result.stages[-1].values += 1
        return float(self.value(np.asarray(theta), self.x)) - self.offset

    def _differentiate(self, theta: np.ndarray) -> np.ndarray:
        self.result.stages[-1].gradients += 1
        return np.asarray(self.gradient(np.asarray(theta), self.x))

    def _fit(self) -> Any:
        """MIGRAD with our gradient, then HESSE, which changes one or two parameters at a time."""
        from iminuit import Minuit

        start = model.start(len(self.x))
        self.advance("fit", 0, 1)
        self.offset = self._evaluate(start)
        evaluate: Any = self._evaluate
        minuit = Minuit(evaluate, start, grad=cast("Any", self._differentiate), name=model.NAMES)
        minuit.errordef = Minuit.LIKELIHOOD
        minuit.limits = list(zip(model.LOWER, model.UPPER, strict=True))
        minuit.migrad()
        minuit.hesse()
        self.advance("fit", 1, 1)
        self.result.theta = np.array(minuit.values)
        self.result.errors = np.array(minuit.errors)
        self.result.covariance = np.array(minuit.covariance)
        self.result.minimum = float(cast("float", minuit.fval)) + self.offset
        self.result.is_valid = bool(minuit.valid)
        return minuit

    def _profile(self, minuit: Any, name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Minima over the other parameters on a grid of +-2 errors, from the middle outwards."""
        index = model.NAMES.index(name)
        center, error = self.result.theta[index], self.result.errors[index]
        grid = center + error * np.linspace(-2, 2, NUM_GRID)
        minima = np.empty(NUM_GRID)
        middle = NUM_GRID // 2
        done = 0
        for side in (range(middle, NUM_GRID), range(middle - 1, -1, -1)):
            minuit.values = self.result.theta
            minuit.fixed[name] = True
            for k in side:
                minuit.values[name] = grid[k]
                minuit.migrad()
                minima[k] = float(cast("float", minuit.fval)) + self.offset
                done += 1
                self.advance("profiles", number * NUM_GRID + done, len(PROFILED) * NUM_GRID)
            minuit.fixed[name] = False
        return grid, minima

    def _sample(self, num_sweeps: int, reference: Result) -> None:
        """Metropolis within Gibbs: each sweep proposes one parameter after the other."""
        rng = np.random.default_rng(self.seed)
        theta = reference.theta.copy()
        widths = STEP * conditional_errors(reference.covariance)
        value = self._evaluate(theta)
        chain, values = np.empty((num_sweeps, len(theta))), np.empty(num_sweeps)
        accepted = 0
        for sweep in range(num_sweeps):
            for index in range(len(theta)):
                proposal = theta.copy()
                proposal[index] += widths[index] * rng.normal() * 2.4
                threshold = -np.log(rng.uniform())
                new = self._evaluate(proposal) if self._is_inside(proposal) else np.inf
                if new - value < threshold:
                    theta, value = proposal, new
                    accepted += 1
            chain[sweep], values[sweep] = theta, value + self.offset
            self.advance("chain", sweep + 1, num_sweeps)
        self.result.chain, self.result.chain_values = chain, values
        self.result.acceptance = accepted / (num_sweeps * len(theta))

    @staticmethod
    def _is_inside(theta: np.ndarray) -> bool:
        return bool(np.all((theta > model.LOWER) & (theta < model.UPPER)))


def conditional_errors(covariance: np.ndarray) -> np.ndarray:
    """Standard deviation of each parameter with the others held fixed: 1 / sqrt of the precision's diagonal."""
    return 1.0 / np.sqrt(np.abs(np.diag(np.linalg.pinv(covariance))))
