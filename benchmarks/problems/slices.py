"""Functions of which one row of an input changes at each call, with the update that an expert writes
by hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

import incrax

Hand = Callable[[Any, int], Any]
"""The update by hand: of all rows, and the number of the one that changed since the call before."""


class Problem(NamedTuple):
    """A function of the rows and of what stays.

    Fields: the function; its first argument, of which one row after the other changes; the others;
    how a row is drawn; the update by hand; how many times faster than `jax.jit` a call should be;
    whether rows are written by `incrax.at`; the first row that changes.
    """

    function: Callable[..., Any]
    rows: np.ndarray
    others: tuple[Any, ...]
    draw: Callable[[np.random.Generator], Any]
    hand: Hand | None = None
    least: float = 0.0
    is_told: bool = False
    first: int = 0

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
        return self.first + 7919 * number % (len(self.rows) - self.first)


def _normal(rng: np.random.Generator) -> float:
    return float(rng.normal())


# --- by hand --------------------------------------------------------------------------------------


def by_hand(start: Callable[..., Any], update: Callable[..., Any]) -> Hand:
    """`start(rows)` is what is kept; `update(kept, rows, row)` gives the next, and the result."""
    start = jax.jit(start)
    update = jax.jit(update, donate_argnums=0)
    kept: list[Any] = []

    def hand(rows: Any, row: int) -> Any:
        if not kept:
            kept.append(start(rows))
        kept[0], result = update(kept[0], rows, row)
        return result

    return hand


def _take(tree: Any, row: Any) -> Any:
    """A row of each leaf."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, row, keepdims=False), tree)


def _put(tree: Any, new: Any, row: Any) -> Any:
    put = lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, row, 0)
    return jax.tree.map(put, tree, new)


def apart(
    term: Callable[..., Any],
    rest: Callable[..., Any],
    data: Any,
    others: tuple[Any, ...],
    *,
    num_derivatives: int = 0,
) -> Hand:
    """By hand, of sum_i term(row i, data of row i, *others) + rest(rows, *others): each row's term is
    kept, and its derivatives by so many of (row i, *others).
    """
    numbers = range(num_derivatives)
    with_data = lambda row, others, data: term(row, data, *others)
    one = with_data
    if num_derivatives:
        inner = lambda row, data, *others: with_data(row, others, data)
        places = tuple(n + (n > 0) for n in numbers)
        derived = jax.value_and_grad(inner, places)
        one = lambda row, others, data: derived(row, data, *others)

    def start(rows: Any) -> Any:
        return jax.lax.map(lambda each: one(each[0], others, each[1]), (rows, data))

    def update(kept: Any, rows: Any, row: Any) -> Any:
        kept = _put(kept, one(_take(rows, row), others, _take(data, row)), row)
        if not num_derivatives:
            return kept, jnp.sum(kept) + rest(rows, *others)
        values, slopes = kept
        value, beside = jax.value_and_grad(rest, tuple(numbers))(rows, *others)
        by_others = (jnp.sum(slope, axis=0) for slope in slopes[1:])
        gradient = (x + y for x, y in zip((slopes[0], *by_others), beside, strict=True))
        return kept, (jnp.sum(values) + value, tuple(gradient))

    return by_hand(start, update)


def by_difference(local: Callable[[Any, Any], Any], function: Callable[..., Any]) -> Hand:
    """By hand: the function's last value, and the difference of what a row takes part in,
    `local(rows, row)`.
    """
    start = jax.jit(function)
    update = jax.jit(lambda value, x, y, row: value + local(y, row) - local(x, row))
    kept: list[Any] = []

    def hand(rows: Any, row: int) -> Any:
        kept[:] = rows, update(kept[1], kept[0], rows, row) if kept else start(rows)
        return kept[1]

    return hand


def near(cost: Callable[[Any, Any], Any], reach: int) -> Callable[[Any, Any], Any]:
    """Of a cost of rows that follow each other, from one on, each of whose terms reads up to `reach`
    rows more: the terms near a row.
    """
    width = 2 * reach + 1

    def local(rows: Any, row: Any) -> Any:
        first = jnp.clip(row - reach, 0, rows.shape[0] - width)
        return cost(jax.lax.dynamic_slice_in_dim(rows, first, width), first)

    return local


def resumed(step: Callable[[Any, Any], Any], first: Any) -> Hand:
    """By hand, of the sum of what a loop returns per step: from the step of the row on, until the
    state has the bits that it had.
    """

    def recorded(state: Any, row: Any) -> Any:
        after, score = step(state, row)
        return after, (state, score)

    def start(rows: Any) -> Any:
        last, (states, scores) = jax.lax.scan(recorded, first, rows)
        put_last = lambda all_states, end: jnp.concatenate([all_states, end[None]])
        return jax.tree.map(put_last, states, last), scores

    def update(kept: Any, rows: Any, row: Any) -> Any:
        def is_other(turn: Any) -> Any:
            return turn[1] & (turn[0] < rows.shape[0])

        def run(turn: Any) -> Any:
            number, _, states, scores = turn
            after, score = step(_take(states, number), rows[number])
            before = _take(states, number + 1)
            same = [
                jnp.all(x == y) for x, y in zip(*map(jax.tree.leaves, (after, before)), strict=True)
            ]
            states = _put(states, after, number + 1)
            return number + 1, ~jnp.all(jnp.stack(same)), states, _put(scores, score, number)

        _, _, *kept = jax.lax.while_loop(is_other, run, (row, True, *kept))
        return tuple(kept), jnp.sum(kept[1])

    return by_hand(start, update)


# --- problems -------------------------------------------------------------------------------------


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

    def prior(theta: Any, mu: Any, tau: Any, sigma: Any) -> Any:
        scales = num_groups * jnp.log(tau) + y.size * jnp.log(sigma)
        return -0.5 * jnp.sum(((theta - mu) / tau) ** 2) - scales

    one = lambda theta, y, mu, tau, sigma: of_rows(theta[None], y[None], sigma)[0]
    hand = apart(one, prior, y, others, num_derivatives=4 if is_gradient else 0)
    function = jax.value_and_grad(log_density, (0, 1, 2, 3)) if is_gradient else log_density
    least = 5.0 if is_gradient else 2.5
    return Problem(function, rng.normal(size=num_groups), others, _normal, hand, least)


def looked_up(num_groups: int, size: int, *, is_gradient: bool, least: float = 5.0) -> Problem:
    """A Gaussian likelihood of observations in random order, each of a group."""
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.permutation(np.arange(num_groups * size) % num_groups))
    y = jnp.asarray(rng.normal(size=ids.size))

    def log_density(theta: Any, sigma: Any) -> Any:
        residual = (y - theta[ids]) / sigma
        return -0.5 * jnp.sum(residual**2) - ids.size * jnp.log(sigma) - 0.5 * jnp.sum(theta**2)

    def prior(theta: Any, sigma: Any) -> Any:
        return -ids.size * jnp.log(sigma) - 0.5 * jnp.sum(theta**2)

    by_group = y[jnp.argsort(ids).reshape(num_groups, size)]
    one = lambda theta, y, sigma: -0.5 * jnp.sum(((y - theta) / sigma) ** 2)
    hand = apart(one, prior, by_group, (0.9,), num_derivatives=2 if is_gradient else 0)
    function = jax.value_and_grad(log_density, (0, 1)) if is_gradient else log_density
    return Problem(function, rng.normal(size=num_groups), (0.9,), _normal, hand, least)


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
    term = lambda length, data: one(length, *data)
    nothing = lambda length: jnp.zeros(())
    hand = apart(term, nothing, (times, y), (), num_derivatives=int(is_gradient))
    return Problem(function, np.full(num, 0.3), (), draw, hand, 20.0 if is_gradient else 10.0)


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

    counts = np.bincount(users, minlength=num_rows)
    slots = np.cumsum(counts)[:, None] - counts[:, None] + np.arange(counts.max())
    order = np.argsort(users, kind="stable")[np.minimum(slots, num_ratings - 1)]
    is_rated = np.arange(counts.max()) < counts[:, None]
    data = items[order], ratings[order], jnp.asarray(is_rated)

    def of_user(row: Any, data: Any) -> Any:
        items, ratings, is_rated = data
        return jnp.sum(jnp.where(is_rated, (ratings - columns[items] @ row) ** 2, 0.0))

    ridge = lambda rows: 0.1 * jnp.sum(rows**2)
    hand = apart(of_user, ridge, data, (), num_derivatives=int(is_gradient))
    function = jax.value_and_grad(cost) if is_gradient else cost
    rows = rng.normal(size=(num_rows, 20))
    return Problem(function, rows, (columns,), lambda rng: rng.normal(size=20), hand, 10.0)


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

    def of_row(x: Any, target: Any) -> Any:
        for weight in weights[:-1]:
            x = jnp.tanh(x @ weight)
        return ((x @ weights[-1])[0] - target) ** 2 / num_rows

    rows = rng.normal(size=(num_rows, 20))
    least = 12.0 if is_told else 2.0
    hand = apart(of_row, lambda rows: jnp.zeros(()), target, ())
    return Problem(cost, rows, (), lambda rng: rng.normal(size=20), hand, least, is_told)


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

    def of_wave(coupling: Any, place: Any, width: Any) -> Any:
        return coupling / (place**2 - masses**2 - 1j * place * width)

    def of_total(total: Any) -> Any:
        intensity = jnp.abs(total) ** 2
        return num_events * jnp.log(jnp.sum(intensity)) - jnp.sum(jnp.log(intensity))

    def start(widths: Any) -> Any:
        shapes = jax.vmap(of_wave)(couplings[:, 0], places[:, 0], widths)
        return jnp.sum(shapes, axis=0), shapes

    def update(kept: Any, widths: Any, row: Any) -> Any:
        total, shapes = kept
        wave = of_wave(couplings[row, 0], places[row, 0], widths[row])
        total = total + wave - shapes[row]
        shapes = _put(shapes, wave, row)
        if not is_gradient:
            return (total, shapes), of_total(total)
        value, slope = jax.value_and_grad(of_total)(total)
        # d shape / d width = i place shape^2 / coupling
        slopes = 1j * places[:, 0] / couplings[:, 0] * jnp.einsum("wn,n->w", shapes**2, slope)
        return (total, shapes), (value, jnp.real(slopes))

    function = jax.value_and_grad(cost) if is_gradient else cost
    draw = lambda rng: rng.uniform(0.05, 0.2)
    hand = by_hand(start, update)
    return Problem(function, np.full(20, 0.1), (), draw, hand, 10.0)


def filtered(num_steps: int) -> Problem:
    """A Kalman filter of four dimensions along two numbers per step; an observation is corrected."""
    rng = np.random.default_rng(6)
    move = jnp.asarray(0.9 * np.linalg.qr(rng.normal(size=(4, 4)))[0])
    seen = jnp.asarray(rng.normal(size=(2, 4)))

    def step(noise: Any, error: Any, state: Any, y: Any) -> Any:
        mean, spread = state
        mean = move @ mean
        spread = move @ spread @ move.T + noise * jnp.eye(4)
        cover = seen @ spread @ seen.T + error * jnp.eye(2)
        gain = jnp.linalg.solve(cover, seen @ spread).T
        off = y - seen @ mean
        score = off @ jnp.linalg.solve(cover, off) + jnp.log(jnp.linalg.det(cover))
        return (mean + gain @ off, spread - gain @ seen @ spread), -0.5 * score

    first = jnp.zeros(4), jnp.eye(4)

    def log_density(series: Any, noise: Any, error: Any) -> Any:
        return jnp.sum(jax.lax.scan(functools.partial(step, noise, error), first, series)[1])

    others = 0.1, 0.2
    draw = lambda rng: rng.normal(size=2)
    hand = resumed(functools.partial(step, *others), first)
    return Problem(log_density, rng.normal(size=(num_steps, 2)), others, draw, hand, 3.0)


def hidden_states(num_steps: int, *, is_gradient: bool) -> Problem:
    """The forward algorithm of a hidden Markov model of eight states; an observation is corrected."""
    rng = np.random.default_rng(7)
    moves = jnp.log(jnp.asarray(rng.dirichlet(np.ones(8), size=8)))
    places = jnp.asarray(rng.normal(size=8))

    def step(error: Any, alpha: Any, y: Any) -> Any:
        ahead = jax.nn.logsumexp(alpha[:, None] + moves, axis=0)
        alpha = ahead - 0.5 * ((y - places) / error) ** 2
        total = jax.nn.logsumexp(alpha)
        return alpha - total, total

    def log_density(series: Any, error: Any) -> Any:
        return jnp.sum(jax.lax.scan(functools.partial(step, error), jnp.zeros(8), series)[1])

    function = jax.value_and_grad(log_density, (0, 1)) if is_gradient else log_density
    hand = None if is_gradient else resumed(functools.partial(step, 0.5), jnp.zeros(8))
    return Problem(function, rng.normal(size=num_steps), (0.5,), _normal, hand, 3.0)


def blurred(num_lines: int, *, is_gradient: bool = False) -> Problem:
    """An image of 512 columns seen through an instrument; a line of it changes."""
    rng = np.random.default_rng(9)
    kernel = jnp.asarray(rng.uniform(size=(7, 7)) / 49)
    seen = jnp.asarray(rng.normal(size=(num_lines - 6, 506)))

    def cost(image: Any, first: Any = 0) -> Any:
        blurred = jax.scipy.signal.convolve(image, kernel, mode="valid")
        own = jax.lax.dynamic_slice_in_dim(seen, first, blurred.shape[0])
        return jnp.sum((blurred - own) ** 2)

    draw = lambda rng: rng.normal(size=512)
    image = rng.normal(size=(num_lines, 512))
    if is_gradient:
        return Problem(jax.value_and_grad(cost), image, (), draw, None, 5.0, is_told=True)
    hand = by_difference(near(cost, 6), cost)
    return Problem(cost, image, (), draw, hand, 5.0, is_told=True)


def pooled(num_lines: int, *, is_gradient: bool = False) -> Problem:
    """The largest of each 3 x 3 pixels of an image of 512 columns; a line of it changes."""
    rng = np.random.default_rng(10)

    def cost(image: Any) -> Any:
        bright = jnp.tanh(image)
        padding = ((1, 1), (1, 1))
        peaks = jax.lax.reduce_window(bright, -jnp.inf, jax.lax.max, (3, 3), (1, 1), padding)
        return jnp.sum(peaks**2)

    def local(image: Any, row: Any) -> Any:
        """Five lines, of which the three in the middle are all that reads this one."""
        lines = jnp.arange(-2, 3) + row
        is_line = (lines >= 0) & (lines < num_lines)
        bright = jnp.where(
            is_line[:, None], jnp.tanh(image[lines.clip(0, num_lines - 1)]), -jnp.inf
        )
        padding = ((0, 0), (1, 1))
        peaks = jax.lax.reduce_window(bright, -jnp.inf, jax.lax.max, (3, 3), (1, 1), padding)
        return jnp.sum(jnp.where(is_line[1:-1, None], peaks**2, 0.0))

    draw = lambda rng: rng.normal(size=512)
    image = rng.normal(size=(num_lines, 512))
    if is_gradient:
        return Problem(jax.value_and_grad(cost), image, (), draw, None, 5.0, is_told=True)
    return Problem(cost, image, (), draw, by_difference(local, cost), 5.0, is_told=True)


def smoothed(length: int) -> Problem:
    """A long signal, smoothed by a kernel of nine."""
    rng = np.random.default_rng(11)
    kernel = jnp.asarray(rng.uniform(size=9) / 9)
    seen = jnp.asarray(rng.normal(size=length - 8))

    def cost(signal: Any, first: Any = 0) -> Any:
        smooth = jnp.convolve(signal, kernel, mode="valid")
        return jnp.sum((smooth - jax.lax.dynamic_slice_in_dim(seen, first, smooth.size)) ** 2)

    hand = by_difference(near(cost, 8), cost)
    return Problem(cost, rng.normal(size=length), (), _normal, hand, 5.0, is_told=True)


def late_hazard(num_rows: int) -> Problem:
    """A cumulative hazard; rates among the last hundredth change."""
    rng = np.random.default_rng(12)
    is_event = jnp.asarray(rng.uniform(size=num_rows) < 0.3)
    first = num_rows - num_rows // 100

    def of_hazard(hazard: Any, is_event: Any) -> Any:
        return jnp.sum(jnp.where(is_event, jnp.log(hazard), -0.1 * hazard))

    def log_density(rates: Any, scale: Any) -> Any:
        return of_hazard(jnp.cumsum(jnp.exp(rates * scale)), is_event)

    def start(rates: Any) -> Any:
        hazard = jnp.cumsum(jnp.exp(rates[:first] * 0.5))
        return hazard[-1], of_hazard(hazard, is_event[:first])

    def update(kept: Any, rates: Any, row: Any) -> Any:
        hazard = kept[0] + jnp.cumsum(jnp.exp(rates[first:] * 0.5))
        return kept, kept[1] + of_hazard(hazard, is_event[first:])

    hand = by_hand(start, update)
    rates = rng.normal(size=num_rows)
    return Problem(log_density, rates, (0.5,), _normal, hand, 5.0, is_told=True, first=first)


def recurrence(num_levels: int) -> Problem:
    """y_n = a_n y_n-1 + b_n as a tree of so many levels, of which the end is read; a step changes."""
    rng = np.random.default_rng(12)

    def join(before: Any, after: Any) -> Any:
        return before[0] * after[0], before[1] * after[0] + after[1]

    leaf = lambda row: (jnp.tanh(row[..., 0]), row[..., 1])
    last = lambda rows: jax.lax.associative_scan(join, leaf(rows))[1][-1]

    def start(rows: Any) -> Any:
        levels = [leaf(rows)]
        for _ in range(num_levels):
            halves = (jax.tree.map(lambda x, n=n: x[n::2], levels[-1]) for n in range(2))
            levels.append(join(*halves))
        return levels

    def update(levels: Any, rows: Any, row: Any) -> Any:
        levels = [_put(levels[0], leaf(rows[row]), row), *levels[1:]]
        for n in range(num_levels):
            row = row // 2
            new = join(_take(levels[n], 2 * row), _take(levels[n], 2 * row + 1))
            levels[n + 1] = _put(levels[n + 1], new, row)
        return levels, levels[-1][1][0]

    draw = lambda rng: rng.normal(size=2)
    rows = rng.normal(size=(2**num_levels, 2))
    return Problem(last, rows, (), draw, by_hand(start, update), 5.0, is_told=True)


def lattice(side: int) -> Problem:
    """The energy of spins on a square lattice without ends; one spin changes."""
    rng = np.random.default_rng(13)

    def energy(spins: Any) -> Any:
        return jnp.sum(spins * (jnp.roll(spins, -1) + jnp.roll(spins, -side)))

    def local(spins: Any, row: Any) -> Any:
        beside = (row + jnp.array([-1, 1, -side, side])) % spins.size
        return spins[row] * jnp.sum(spins[beside])

    spins = rng.choice([-1.0, 1.0], side * side)
    draw = lambda rng: rng.choice([-1.0, 1.0])
    return Problem(energy, spins, (), draw, by_difference(local, energy), 10.0, is_told=True)


def graph(num_nodes: int, *, is_gradient: bool = False) -> Problem:
    """Two rounds of messages on a graph, with three edges to each node and from it; the features of
    one node change.
    """
    rng = np.random.default_rng(14)
    targets = jnp.asarray(np.stack([rng.permutation(num_nodes) for _ in range(3)], axis=1))
    sources = jnp.argsort(targets, axis=0)
    start_of, end_of = jnp.repeat(jnp.arange(num_nodes), 3), targets.ravel()
    weight = jnp.asarray(rng.normal(size=(16, 16)) / 4)

    def hop(features: Any, sums: Any) -> Any:
        return jnp.tanh(features @ weight + sums)

    def cost(features: Any) -> Any:
        for _ in range(2):
            sums = jax.ops.segment_sum(features[start_of], end_of, num_nodes)
            features = hop(features, sums)
        return jnp.sum(features**2)

    def after(features: Any, nodes: Any) -> Any:
        """A hop, of some nodes."""
        return hop(features[nodes], jnp.sum(features[sources[nodes]], axis=1))

    def start(features: Any) -> Any:
        once = after(features, jnp.arange(num_nodes))
        return once, jnp.sum(after(once, jnp.arange(num_nodes)) ** 2, axis=1)

    def update(kept: Any, features: Any, row: Any) -> Any:
        once, terms = kept
        first = jnp.append(targets[row], row)
        once = once.at[first].set(after(features, first))
        second = jnp.append(targets[first].ravel(), first)
        terms = terms.at[second].set(jnp.sum(after(once, second) ** 2, axis=1))
        return (once, terms), jnp.sum(terms)

    draw = lambda rng: rng.normal(size=16)
    features = rng.normal(size=(num_nodes, 16))
    if is_gradient:
        return Problem(jax.value_and_grad(cost), features, (), draw, None, 5.0, is_told=True)
    return Problem(cost, features, (), draw, by_hand(start, update), 5.0, is_told=True)


def games(num_players: int, num_games: int) -> Problem:
    """Games between two of many; the strength of one changes."""
    rng = np.random.default_rng(15)
    rounds = 2 * num_games // num_players
    each = np.stack([rng.permutation(num_players) for _ in range(rounds)]).reshape(-1, 2)
    winners, losers = jnp.asarray(each[:, 0]), jnp.asarray(each[:, 1])
    own = jnp.asarray(np.argsort(each.ravel(), kind="stable").reshape(num_players, rounds) // 2)

    def log_density(strength: Any) -> Any:
        ahead = strength[winners] - strength[losers]
        return jnp.sum(jax.nn.log_sigmoid(ahead)) - 0.5 * jnp.sum(strength**2)

    def local(strength: Any, row: Any) -> Any:
        played = own[row]
        ahead = strength[winners[played]] - strength[losers[played]]
        return jnp.sum(jax.nn.log_sigmoid(ahead)) - 0.5 * strength[row] ** 2

    hand = by_difference(local, log_density)
    return Problem(log_density, rng.normal(size=num_players), (), _normal, hand, 5.0)


def all_pairs(num_points: int) -> Problem:
    """The energy of all pairs of points, as a matrix; one point moves."""
    rng = np.random.default_rng(16)

    def energy(x: Any) -> Any:
        apart = x[:, None] - x[None]
        return jnp.sum(jnp.exp(-0.5 * jnp.sum(apart**2, axis=2)))

    def local(x: Any, row: Any) -> Any:
        return 2.0 * jnp.sum(jnp.exp(-0.5 * jnp.sum((x - x[row]) ** 2, axis=1)))

    draw = lambda rng: rng.normal(size=3)
    points = rng.normal(size=(num_points, 3))
    return Problem(energy, points, (), draw, by_difference(local, energy), 5.0)


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
