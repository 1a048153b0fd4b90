"""Functions of which one row of an input changes at each call, with the update that an expert writes
by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

import incrax


class Problem(NamedTuple):
    """A function of the rows and of what stays.

    Fields: the function; its first argument, of which row `number % n` changes at call `number`; the
    others; how a row is drawn; by hand, a function of (new rows, the number of the row); how many
    times faster than `jax.jit` a call should be; whether rows are written by `incrax.at`.
    """

    function: Callable[..., Any]
    rows: np.ndarray
    others: tuple[Any, ...]
    draw: Callable[[np.random.Generator], Any]
    hand: Callable[[Any, int], Any] | None = None
    least: float = 0.0
    is_told: bool = False

    def arguments(self) -> Callable[[int], tuple[Any, ...]]:
        """The arguments of call after call: all rows changed so far."""
        rng = np.random.default_rng(3)
        made: list[Any] = [jnp.asarray(self.rows) if self.is_told else self.rows]

        def at(number: int) -> tuple[Any, ...]:
            while len(made) <= number:
                made.append(self._after(made[-1], self.row(len(made)), self.draw(rng)))
            return (jnp.asarray(made[number]), *self.others)

        return at

    def _after(self, rows: Any, row: int, values: Any) -> Any:
        if self.is_told:
            return incrax.at(rows)[row].set(values)
        rows = rows.copy()
        rows[row] = values
        return rows

    def row(self, number: int) -> int:
        """Which row changes."""
        return 7919 * number % len(self.rows)


def _normal(rng: np.random.Generator) -> float:
    return float(rng.normal())


def groups(num_groups: int, size: int, *, is_gradient: bool) -> Problem:
    """A robust likelihood of observations in groups of one length."""
    rng = np.random.default_rng(0)
    y = jnp.asarray(rng.normal(size=(num_groups, size)))
    others = 0.1, 1.2, 0.9

    def of_rows(theta: Any, y: Any, sigma: Any) -> Any:
        residual = (y - theta[:, None]) / sigma
        return -2.5 * jnp.sum(jnp.log1p(residual**2 / 4), axis=1)

    def log_density(theta: Any, mu: Any, tau: Any, sigma: Any) -> Any:
        prior = -0.5 * jnp.sum(((theta - mu) / tau) ** 2) - num_groups * jnp.log(tau)
        return jnp.sum(of_rows(theta, y, sigma)) - y.size * jnp.log(sigma) + prior

    if is_gradient:
        function = jax.value_and_grad(log_density, (0, 1, 2, 3))
        return Problem(function, rng.normal(size=num_groups), others, _normal, None, 5.0)
    kept: list[Any] = []

    @jax.jit
    def update(terms: Any, theta: Any, row: Any) -> Any:
        part = jax.lax.dynamic_slice_in_dim(theta, row, 1)
        new = of_rows(part, jax.lax.dynamic_slice_in_dim(y, row, 1), others[2])
        terms = jax.lax.dynamic_update_slice_in_dim(terms, new, row, 0)
        prior = -0.5 * jnp.sum(((theta - others[0]) / others[1]) ** 2)
        fixed = num_groups * jnp.log(others[1]) + y.size * jnp.log(others[2])
        return terms, jnp.sum(terms) + prior - fixed

    def hand(theta: Any, row: int) -> Any:
        if not kept:
            kept.append(jax.jit(of_rows)(theta, y, others[2]))
        kept[0], value = update(kept[0], theta, row)
        return value

    return Problem(log_density, rng.normal(size=num_groups), others, _normal, hand, 2.5)


def looked_up(num_groups: int, size: int, *, is_gradient: bool, least: float = 5.0) -> Problem:
    """A Gaussian likelihood of observations in random order, each of a group."""
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.permutation(np.arange(num_groups * size) % num_groups))
    y = jnp.asarray(rng.normal(size=ids.size))

    def log_density(theta: Any, sigma: Any) -> Any:
        residual = (y - theta[ids]) / sigma
        return -0.5 * jnp.sum(residual**2) - ids.size * jnp.log(sigma) - 0.5 * jnp.sum(theta**2)

    function = jax.value_and_grad(log_density, (0, 1)) if is_gradient else log_density
    return Problem(function, rng.normal(size=num_groups), (0.9,), _normal, None, least)


def processes(num: int, size: int, *, is_gradient: bool) -> Problem:
    """Gaussian processes under `vmap`, each with its length scale."""
    rng = np.random.default_rng(1)
    times = jnp.asarray(np.sort(rng.uniform(size=(num, size))))
    y = jnp.asarray(rng.normal(size=(num, size)))

    def one(length: Any, times: Any, y: Any) -> Any:
        distance = (times[:, None] - times[None]) / length
        factor = jnp.linalg.cholesky(jnp.exp(-0.5 * distance**2) + 0.1 * jnp.eye(size))
        white = solve_triangular(factor, y, lower=True)
        return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor)))

    def log_density(length: Any) -> Any:
        return jax.vmap(one)(length, times, y).sum()

    function = jax.value_and_grad(log_density) if is_gradient else log_density
    draw = lambda rng: rng.uniform(0.1, 0.5)
    return Problem(function, np.full(num, 0.3), (), draw, None, 20.0 if is_gradient else 10.0)


def factors(num_rows: int, num_columns: int, num_ratings: int, *, is_gradient: bool) -> Problem:
    """Matrix factorisation: squared errors of ratings, one user's row changes."""
    rng = np.random.default_rng(2)
    users = jnp.asarray(rng.integers(num_rows, size=num_ratings))
    items = jnp.asarray(rng.integers(num_columns, size=num_ratings))
    ratings = jnp.asarray(rng.normal(size=num_ratings))
    columns = jnp.asarray(rng.normal(size=(num_columns, 20)))

    def cost(rows: Any, columns: Any) -> Any:
        predicted = jnp.sum(rows[users] * columns[items], axis=1)
        return jnp.sum((ratings - predicted) ** 2) + 0.1 * jnp.sum(rows**2)

    function = jax.value_and_grad(cost) if is_gradient else cost
    rows = rng.normal(size=(num_rows, 20))
    return Problem(function, rows, (columns,), lambda rng: rng.normal(size=20), None, 10.0)


def network(num_rows: int, *, is_told: bool = False) -> Problem:
    """A network over rows of data, one of which changes."""
    rng = np.random.default_rng(3)
    shapes = (20, 64), (64, 64), (64, 1)
    weights = [jnp.asarray(rng.normal(size=shape) / shape[0]) for shape in shapes]
    target = jnp.asarray(rng.normal(size=num_rows))

    def cost(x: Any) -> Any:
        for weight in weights[:-1]:
            x = jnp.tanh(x @ weight)
        return jnp.mean(((x @ weights[-1])[:, 0] - target) ** 2)

    rows = rng.normal(size=(num_rows, 20))
    least = 12.0 if is_told else 2.0
    return Problem(cost, rows, (), lambda rng: rng.normal(size=20), None, least, is_told)


def waves(num_events: int, *, is_gradient: bool) -> Problem:
    """An amplitude analysis, vectorised over 20 waves; one width changes."""
    rng = np.random.default_rng(4)
    masses = jnp.asarray(rng.uniform(0.3, 3.0, num_events))
    places = jnp.linspace(0.5, 2.8, 20)[:, None]
    couplings = jnp.asarray(rng.normal(size=20) + 1j * rng.normal(size=20))[:, None]

    def cost(widths: Any) -> Any:
        shapes = couplings / (places**2 - masses[None] ** 2 - 1j * places * widths[:, None])
        intensity = jnp.abs(jnp.sum(shapes, axis=0)) ** 2
        return num_events * jnp.log(jnp.sum(intensity)) - jnp.sum(jnp.log(intensity))

    function = jax.value_and_grad(cost) if is_gradient else cost
    draw = lambda rng: rng.uniform(0.05, 0.2)
    return Problem(function, np.full(20, 0.1), (), draw, None, 10.0)


def filtered(num_steps: int) -> Problem:
    """A Kalman filter of four dimensions along two numbers per step; an observation is corrected."""
    rng = np.random.default_rng(6)
    move = jnp.asarray(0.9 * np.linalg.qr(rng.normal(size=(4, 4)))[0])
    seen = jnp.asarray(rng.normal(size=(2, 4)))

    def log_density(series: Any, noise: Any, error: Any) -> Any:
        def step(state: Any, y: Any) -> Any:
            mean, spread = state
            mean = move @ mean
            spread = move @ spread @ move.T + noise * jnp.eye(4)
            cover = seen @ spread @ seen.T + error * jnp.eye(2)
            gain = jnp.linalg.solve(cover, seen @ spread).T
            off = y - seen @ mean
            score = off @ jnp.linalg.solve(cover, off) + jnp.log(jnp.linalg.det(cover))
            return (mean + gain @ off, spread - gain @ seen @ spread), -0.5 * score

        return jnp.sum(jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), series)[1])

    draw = lambda rng: rng.normal(size=2)
    return Problem(log_density, rng.normal(size=(num_steps, 2)), (0.1, 0.2), draw, None, 3.0)


def hidden_states(num_steps: int, *, is_gradient: bool) -> Problem:
    """The forward algorithm of a hidden Markov model of eight states; an observation is corrected."""
    rng = np.random.default_rng(7)
    moves = jnp.log(jnp.asarray(rng.dirichlet(np.ones(8), size=8)))
    places = jnp.asarray(rng.normal(size=8))

    def log_density(series: Any, error: Any) -> Any:
        def step(alpha: Any, y: Any) -> Any:
            ahead = jax.nn.logsumexp(alpha[:, None] + moves, axis=0)
            alpha = ahead - 0.5 * ((y - places) / error) ** 2
            total = jax.nn.logsumexp(alpha)
            return alpha - total, total

        return jnp.sum(jax.lax.scan(step, jnp.zeros(8), series)[1])

    function = jax.value_and_grad(log_density, (0, 1)) if is_gradient else log_density
    return Problem(function, rng.normal(size=num_steps), (0.5,), _normal, None, 3.0)


def walk(num_steps: int) -> Problem:
    """A loop that never forgets: a control."""

    def total(series: Any, scale: Any) -> Any:
        step = lambda place, x: (place + x, jnp.sin(place * scale))
        return jnp.sum(jax.lax.scan(step, 0.0, series)[1])

    return Problem(
        total, np.random.default_rng(8).normal(size=num_steps), (0.3,), _normal, None, 0.97
    )


def control(kind: str, size: int) -> Problem:
    """Where rows alone do not help: the whole must take no longer."""
    rng = np.random.default_rng(5)
    weights = jnp.asarray(rng.normal(size=(size, 8)))

    def value(theta: Any) -> Any:
        if kind == "soft-max":
            theta = jax.nn.softmax(theta)
        elif kind == "sorted":
            theta = jnp.sort(theta)
        elif kind == "centred":
            theta = (theta - jnp.mean(theta)) / jnp.std(theta)
        return jnp.sum(jnp.tanh(theta[:, None] * weights))

    return Problem(value, rng.normal(size=size), (), _normal, None, 0.97)
