"""Fit, profile and sample one likelihood; the same driver runs on `jax.jit` and on
`incrax.incremental`.
"""

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
NUM_GRID = 5
NUM_SWEEPS = 200
MAX_STEPS = 60
MAX_AGE = 10
MAX_HALVINGS = 30
MIN_CURVATURE = 1e-6
GAIN = 1e-7
"""A descent ends when another step is expected to lower the negative log-likelihood by less."""

STEP = 0.6
"""Proposal width of the chain, in conditional standard deviations of each parameter."""


@dataclass
class Stage:
    """One stage of the work: calls of the value, the gradient and the Hessian, and seconds,
    compilation included.
    """

    name: str
    values: int = 0
    gradients: int = 0
    hessians: int = 0
    seconds: float = 0.0


@dataclass
class Result:
    """What a driver finds, and what it took.

    Fields: stages; fitted parameters, their errors and covariance; the minimum; profiles as (grid,
    minimum at each grid point) by name; the chain of shape (sweeps, parameters), its likelihoods
    and acceptance rate; the functions.
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
        self.hessian = make(jax.hessian(model.negative_log_likelihood))
        self.x = x
        self.seed = seed
        self.advance = advance
        self.result = Result(functions=(self.value, self.gradient))
        self.offset = 0.0

    def run(self, num_sweeps: int, reference: Result | None = None) -> Result:
        """All stages; the chain starts at the reference's minimum and uses its covariance, if one
        is given.
        """
        with self._stage("fit"):
            self._fit()
        with self._stage("profiles"):
            for number, name in enumerate(PROFILED):
                self.result.profiles[name] = self._profile(name, number)
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

    def _second_derivative(self, theta: np.ndarray) -> np.ndarray:
        self.result.stages[-1].hessians += 1
        return np.asarray(self.hessian(np.asarray(theta), self.x))

    def _fit(self) -> None:
        """MIGRAD with our gradient, then Newton steps to the bottom; the covariance is the inverse
        Hessian there.
        """
        from iminuit import Minuit

        start = model.start(len(self.x))
        self.advance("fit", 0, 2)
        self.offset = self._evaluate(start)
        evaluate: Any = self._evaluate
        minuit = Minuit(evaluate, start, grad=cast("Any", self._differentiate), name=model.NAMES)
        minuit.errordef = Minuit.LIKELIHOOD
        minuit.strategy = 0
        minuit.limits = list(zip(model.LOWER, model.UPPER, strict=True))
        minuit.migrad()
        self.advance("fit", 1, 2)
        theta = np.array(minuit.values)
        free = np.ones(len(theta), bool)
        theta, minimum, has_converged = self._descend(theta, self._second_derivative(theta), free)
        precision = self._second_derivative(theta)
        self.result.covariance = np.linalg.pinv(precision)
        self.result.errors = np.sqrt(np.abs(np.diag(self.result.covariance)))
        self.result.theta = theta
        self.result.minimum = minimum + self.offset
        is_minimum = bool(np.linalg.eigvalsh(scaled_to_unit_diagonal(precision)).min() > 0)
        self.result.is_valid = has_converged and is_minimum
        self.advance("fit", 2, 2)

    def _descend(
        self, theta: np.ndarray, precision: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, float, bool]:
        """Minimum over the free parameters by quasi-Newton steps from a Hessian, halved until the
        likelihood falls.

        The Hessian is computed anew after `MAX_AGE` updates, where no step falls, and once more at
        the end.

        Returns the parameters, the minimum, and whether the expected gain of another step is below
        `GAIN`.
        """
        value = self._evaluate(theta)
        gradient = self._differentiate(theta)
        age = 0
        for _ in range(MAX_STEPS):
            if age == MAX_AGE:
                precision = self._second_derivative(theta)
                age = 0
            step = np.zeros(len(theta))
            step[free] = newton_step(precision[np.ix_(free, free)], gradient[free])
            is_done = 0 <= gradient @ step < 2 * GAIN
            proposal, new, has_fallen = (
                (theta, value, False) if is_done else self._step(theta, step, value)
            )
            if not has_fallen and age:
                age = MAX_AGE
                continue
            if not has_fallen:
                return theta, value, bool(is_done)
            steeper = self._differentiate(proposal)
            precision = bfgs_update(
                precision, proposal - theta, np.where(free, steeper - gradient, 0.0)
            )
            theta = proposal
            value = new
            gradient = steeper
            age = age + 1
        return theta, value, False

    def _step(
        self, theta: np.ndarray, step: np.ndarray, value: float
    ) -> tuple[np.ndarray, float, bool]:
        for _ in range(MAX_HALVINGS):
            proposal = theta - step
            new = self._evaluate(proposal) if self._is_inside(proposal) else np.inf
            if new < value + GAIN:
                return proposal, new, True
            step = step / 2
        return theta, value, False

    def _profile(self, name: str, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Minima over the other parameters on a grid of +-2 errors, from the middle outwards."""
        index = model.NAMES.index(name)
        grid = self.result.theta[index] + self.result.errors[index] * np.linspace(-2, 2, NUM_GRID)
        minima = np.empty(NUM_GRID)
        free = np.arange(len(model.NAMES)) != index
        middle = NUM_GRID // 2
        done = 0
        for side in (range(middle, NUM_GRID), range(middle - 1, -1, -1)):
            theta = self.result.theta
            for k in side:
                theta = theta + self._tangent(index) * (grid[k] - theta[index])
                theta, minimum, _ = self._descend(theta, self._second_derivative(theta), free)
                minima[k] = minimum + self.offset
                done += 1
                self.advance("profiles", number * NUM_GRID + done, len(PROFILED) * NUM_GRID)
        return grid, minima

    def _tangent(self, index: int) -> np.ndarray:
        """How the best values of the others move with one parameter, d theta / d theta_index = C[:,
        i] / C[i, i].
        """
        return self.result.covariance[:, index] / self.result.covariance[index, index]

    def _sample(self, num_sweeps: int, reference: Result) -> None:
        """Metropolis within Gibbs: each sweep proposes one parameter after the other."""
        rng = np.random.default_rng(self.seed)
        theta = reference.theta.copy()
        widths = STEP * conditional_errors(reference.covariance)
        value = self._evaluate(theta)
        chain = np.empty((num_sweeps, len(theta)))
        values = np.empty(num_sweeps)
        accepted = 0
        for sweep in range(num_sweeps):
            for index in range(len(theta)):
                proposal = theta.copy()
                proposal[index] += widths[index] * rng.normal() * 2.4
                threshold = -np.log(rng.uniform())
                new = self._evaluate(proposal) if self._is_inside(proposal) else np.inf
                if new - value < threshold:
                    theta = proposal
                    value = new
                    accepted += 1
            chain[sweep], values[sweep] = theta, value + self.offset
            self.advance("chain", sweep + 1, num_sweeps)
        self.result.chain = chain
        self.result.chain_values = values
        self.result.acceptance = accepted / (num_sweeps * len(theta))

    @staticmethod
    def _is_inside(theta: np.ndarray) -> bool:
        return bool(np.all((theta > model.LOWER) & (theta < model.UPPER)))


def conditional_errors(covariance: np.ndarray) -> np.ndarray:
    """Standard deviation of each parameter with the others held fixed: 1 / sqrt of the precision's
    diagonal.
    """
    return 1.0 / np.sqrt(np.abs(np.diag(np.linalg.pinv(covariance))))


def newton_step(precision: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """H^-1 g with the eigenvalues of H, in units in which its diagonal is one, taken as at least
    `MIN_CURVATURE`.
    """
    scale = np.sqrt(np.abs(np.diag(precision)))
    values, vectors = np.linalg.eigh(scaled_to_unit_diagonal(precision))
    return (
        vectors
        @ (vectors.T @ (gradient / scale) / np.maximum(np.abs(values), MIN_CURVATURE))
        / scale
    )


def bfgs_update(precision: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """B + y y^T / y^T s - B s s^T B / s^T B s, for a step s that changed the gradient by y; B if
    y^T s is not positive.

    Source: Nocedal and Wright, Numerical Optimization, equation 6.19.
    """
    curvature = change @ step
    image = precision @ step
    if curvature <= 0:
        return precision
    return (
        precision + np.outer(change, change) / curvature - np.outer(image, image) / (step @ image)
    )


def scaled_to_unit_diagonal(matrix: np.ndarray) -> np.ndarray:
    """A symmetric matrix in units in which its diagonal is one."""
    scale = np.sqrt(np.abs(np.diag(matrix)))
    return matrix / np.outer(scale, scale)
