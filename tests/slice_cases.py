"""Functions of which a few rows of an input change, with arguments of small sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from incrax.engine.call import analysis
from incrax.engine.inputs import leaves
from incrax.engine.plan import blocks, environment, looked_up_rows, weighted_rows
from incrax.engine.policy import materialize
from incrax.engine.policy import slices as policy
from incrax.engine.program.cost import Calibration


def serve_by_rows(patch: pytest.MonkeyPatch) -> None:
    """Programs for rows are made whatever they promise: these functions are small."""
    patch.setattr(policy, "MIN_GAIN", -np.inf)
    patch.setattr(policy, "LEAST_SHARE", -1.0)
    patch.setattr(policy, "ROWS_S", 0.0)
    patch.setattr(policy, "START_S", 0.0)
    patch.setattr(policy, "ACCELERATED_START_S", 0.0)
    patch.setattr(environment, "MAX_TABLE_SHARE", 1.0)
    patch.setattr(environment, "ANEW_S", -1.0)
    patch.setattr(weighted_rows, "MIN_SIZE", 1)
    patch.setattr(looked_up_rows, "MIN_ARRANGED_BYTES", 0)


def shapes_compared(patch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Of the arrays whose bits are read, or copied to be compared with later ones, from now on."""
    shapes: list[tuple[int, ...]] = []
    for name in ("_read_bits", "_snapshot"):
        read = getattr(leaves, name)
        patch.setattr(leaves, name, lambda x, read=read: shapes.append(np.shape(x)) or read(x))
    return shapes


def divide_into_blocks(patch: pytest.MonkeyPatch, size: int) -> None:
    """The exact policy computes in blocks of so many rows whatever it promises, and reads saved values
    wherever there are some.
    """
    patch.setattr(blocks, "MIN_VALUE_S", 0.0)
    patch.setattr(blocks, "MIN_BLOCKS", 2)
    patch.setattr(blocks, "rows_of_a_block", lambda row_s: size)
    patch.setattr(materialize, "MIN_GAIN", -np.inf)
    free = Calibration(argument_s=0.0, read_s=0.0, write_s=0.0, call_s=0.0)
    patch.setattr(analysis, "Calibration", lambda: free)


RNG = np.random.default_rng(5)
RNG_2 = np.random.default_rng(6)
NUM = 24
"""Rows of what changes."""
MANY = 150
Y = RNG.normal(size=(NUM, 7))
IDS = RNG.integers(NUM - 1, size=MANY)  # the last row has no members
FROM, TO = np.arange(NUM), (3 * np.arange(NUM) + 1) % NUM  # three edges to one node
OTHERS = RNG.integers(9, size=MANY)
OBSERVED = RNG.normal(size=MANY)
TIMES = np.sort(RNG.uniform(size=(NUM, 5)))
TARGET = RNG.normal(size=NUM)
THETA = RNG.normal(size=NUM)
WEIGHTS = [RNG.normal(size=shape) for shape in ((3, 5), (5, 1))]


def indifferent(theta, scale):
    """Its derivative by the second argument is a constant, zero."""
    return jnp.sum(jnp.sin(theta[:, None] * jnp.arange(5.0))) + 0.0 * jnp.floor(scale)


def groups(theta, mu, sigma):
    residual = (Y - theta[:, None]) / sigma
    prior = jnp.sum(((theta - mu) / 1.3) ** 2)
    return -2.5 * jnp.sum(jnp.log1p(residual**2 / 4)) - Y.size * jnp.log(sigma) - 0.5 * prior


def looked_up(theta, mu, sigma):
    residual = (OBSERVED - theta[IDS]) / sigma
    return -0.5 * jnp.sum(residual**2) - 0.5 * jnp.sum((theta - mu) ** 2)


def by_ids(theta, ids):
    return jnp.sum(jnp.tanh(theta[ids] - OBSERVED))


def by_bins(theta, places):
    """Ids that NumPy may round in another way than XLA."""
    return jnp.sum(jnp.tanh(theta[jnp.floor(places).astype(int)] - OBSERVED))


def factors(rows, columns):
    predicted = jnp.sum(rows[IDS] * columns[OTHERS], axis=1)
    return jnp.sum((OBSERVED - predicted) ** 2) + 0.1 * jnp.sum(rows**2)


def processes(length, noise):
    def one(length, noise, times, y):
        distance = (times[:, None] - times[None]) / length
        kernel = jnp.exp(-0.5 * distance**2) + (noise**2 + 1e-3) * jnp.eye(times.size)
        factor = jnp.linalg.cholesky(kernel)
        white = solve_triangular(factor, y, lower=True)
        return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor)))

    return jax.vmap(one)(length, noise, TIMES, Y[:, :5]).sum()


def diffusion(rate, start):
    """An implicit step of each row, whose tridiagonal system is its own."""

    def one(rate, start):
        side = jnp.full(start.shape, -rate)
        main = jnp.full(start.shape, 1 + 2 * rate)
        low, high = side.at[0].set(0.0), side.at[-1].set(0.0)
        return jax.lax.linalg.tridiagonal_solve(low, main, high, start[:, None])[:, 0]

    return jnp.sum(jax.vmap(one)(jnp.exp(rate), start) ** 2)


def network(x, weights):
    hidden = jnp.tanh(x @ weights[0])
    return jnp.mean(((hidden @ weights[1])[:, 0] - TARGET) ** 2)


def waves(couplings, widths):
    line = jnp.linspace(0.0, 3.0, 40)
    place = jnp.linspace(0.2, 2.8, NUM)[:, None]
    shapes = couplings[:, None] / (place**2 - line[None] ** 2 - 1j * place * widths[:, None])
    total = jnp.abs(shapes.sum(axis=0)) ** 2
    return jnp.sum(jnp.log(total)) - 40 * jnp.log(total.sum())


def resonances(widths, couplings):
    """Breit-Wigner shapes with running widths, which meet the couplings in a product of matrices."""
    line = jnp.linspace(0.9, 3.0, 40)
    place = jnp.linspace(1.0, 2.8, NUM)[:, None]
    running = widths[:, None] * jnp.sqrt(line / place)
    shapes = place * widths[:, None] / (place**2 - line**2 - 1j * place * running)
    total = (couplings + 0.5j) @ shapes
    intensity = jnp.real(total) ** 2 + jnp.imag(total) ** 2
    return -jnp.sum(jnp.log(intensity)) + 40 * jnp.log(jnp.mean(intensity))


def coherent(x, table, scale):
    """A sum over rows of complex numbers, in which places have weights as well."""
    line = jnp.linspace(0.0, 2.0, 11)
    width = scale * (1.1 + table[:, :1])
    shapes = (table[:, 1:2] + 2.0j) / (x[:, None] ** 2 - line**2 - 1j * width * line)
    total = jnp.sum(shapes * (0.3 + line), axis=0)
    return jnp.sum(jnp.log(1.0 + jnp.real(total * jnp.conj(total))))


def mixture(means, scale):
    """Densities of which a sum is observed."""
    line = jnp.linspace(-3.0, 3.0, 40)
    density = jnp.exp(-0.5 * ((line - means[:, None]) / scale) ** 2) / scale
    return -jnp.sum(jnp.log(jnp.sum(density, axis=0)))


def mixture_and_parts(means, scale):
    """Of each density also what it is by itself."""
    density = jnp.exp(-0.5 * (jnp.linspace(-3.0, 3.0, 40) - means[:, None]) ** 2)
    return mixture(means, scale) - jnp.sum(density**2) / scale, density


def largest(theta, scale):
    return logsumexp(theta[:, None] * jnp.arange(4.0) + scale, axis=1).sum() + jnp.max(theta)


def products(theta, scale):
    return jnp.prod(1.0 + 0.1 * jnp.tanh(theta)) * scale, jnp.all(theta < 9.0), jnp.argmax(theta)


def norms(table, scale):
    """A reduction by a function that no primitive has: a hypotenuse, and where it is the longest."""
    longer = lambda a, b: jax.tree.map(lambda x, y: jnp.where(a[0] >= b[0], x, y), a, b)
    numbers = jnp.broadcast_to(jnp.arange(7.0), table.shape)
    most, place = jax.lax.reduce((jnp.abs(table), numbers), (-1.0, -1.0), longer, (1,))
    return jnp.sum(most * scale), jnp.sum(jnp.sin(place * most))


def columns(table, scale):
    """The rows are columns on the way."""
    turned = jnp.exp(table.T * scale)
    return jnp.sort(turned, axis=0)[0] @ TARGET + jnp.sum(jnp.cumsum(turned, axis=0))


def softmax(theta, scale):
    return jnp.sum(jax.nn.softmax(theta * scale) * TARGET)


def smoothed(theta, scale):
    """A loop over the rows, and rows that are sorted: all of them."""
    return jax.lax.scan(lambda c, x: (0.9 * c + x, c), scale, jnp.sort(theta))[0]


def ring(theta, coupling):
    """Neighbours on a ring, by `roll`."""
    return jnp.sum(jnp.tanh(theta * (jnp.roll(theta, 1) + coupling * jnp.roll(theta, -1))))


def lattice(spins, coupling):
    """A lattice of rows and columns in one line; the products of neighbours to the right and below."""
    right, below = jnp.roll(spins, -1), jnp.roll(spins, -6)
    return coupling * jnp.sum(spins * right + spins * below) + jnp.max(right - below)


def walk(theta, scale):
    """Steps of a random walk, and second differences."""
    steps = jnp.diff(theta)
    bends = theta[2:] - 2 * theta[1:-1] + theta[:-2]
    return jnp.sum(jax.scipy.stats.norm.logpdf(steps, 0.0, scale)) - jnp.sum(jnp.abs(bends)), steps


def spread(theta, scale):
    """Three steps of a stencil with open ends; rows of two."""
    x = jnp.stack([theta, theta**2], axis=1)
    for _ in range(3):
        ends = jnp.pad(x, ((1, 1), (0, 0)), constant_values=0.5)
        x = x + 0.1 * scale * jnp.sin(ends[2:] - 2 * x + ends[:-2])
    return jnp.sum(x**2), jnp.max(x, axis=0)


def every_other(theta, scale):
    """Strides, reversal, joined parts and gaps; a check of parts against other parts."""
    black, white = theta[::2], theta[1::2]
    both = jnp.concatenate([black[::-1] * scale, jnp.tanh(white)])
    apart = jax.lax.pad(white, 1.0, ((2, -3, 1),))
    first, last = jnp.split(theta, 2)
    return jnp.sum(both**2), jnp.prod(1 + 0.1 * apart), jnp.sum(first * last), jnp.sum(both * theta)


def counted_neighbours(theta, scale):
    """A look-up of what neighbours make."""
    return jnp.sum((OBSERVED - scale * (theta + jnp.roll(theta, 1))[IDS]) ** 2)


def pairs(strength, scale):
    """Games between two of many: two look-ups of one array meet."""
    ahead = scale * (strength[IDS] - strength[IDS[::-1]])
    return jnp.sum(jax.nn.log_sigmoid(ahead)) - 0.5 * jnp.sum(strength**2)


def fluid(x, scale):
    """All pairs of different particles, which no two look-ups share."""
    first, second = np.triu_indices(NUM, 1)
    return jnp.sum(jnp.exp(-scale * jnp.sum((x[first] - x[second]) ** 2, axis=1)))


def all_pairs(x, scale):
    """The energy of all pairs, as a matrix, and of each particle in the field of all others."""
    apart = x[:, None] - x[None]
    near = jnp.exp(-scale * jnp.sum(apart**2, axis=2))
    return jnp.sum(near) + jnp.sum(jnp.log(jnp.sum(near, axis=1)) * jnp.sin(jnp.sum(near, axis=0)))


def gram(x, scale):
    """Products of all pairs, weighted, and the largest of each column."""
    products = jnp.tanh(scale * x @ x.T) * jnp.arange(NUM)[:, None]
    return jnp.sum(products), jnp.max(products, axis=0)


def tied(theta, scale):
    """Differences between groups that were looked up, and all groups."""
    apart = jnp.tanh(scale * (theta[IDS][:, None] - theta))
    return jnp.sum(apart, axis=0), jnp.sum(apart[:, 3:9], axis=1), jnp.sum(apart * theta)


def graph(features, weight):
    """Messages along edges, two hops."""
    hidden = jnp.tanh(features)
    for _ in range(2):
        message = jnp.tanh(weight * hidden[IDS] + hidden[IDS[::-1]])
        hidden = 0.1 * jax.ops.segment_sum(message, IDS, NUM) + features
    return jnp.sum(hidden**2)


def sparse_graph(features, weight):
    """One hop: each node has one or two edges."""
    message = jnp.tanh(weight * features[FROM] + features[TO])
    return jnp.sum(jnp.tanh(features + jax.ops.segment_sum(message, TO, NUM)) ** 2)


def filters(rates, noise, is_counted=True):
    """A loop over the times of each series, by `vmap`, with a counter."""

    def one(rate, series):
        def step(carry, y):
            mean, variance, number = carry
            spread = variance * rate**2 + noise
            gain = spread / (spread + 1.0)
            score = -0.5 * (y - rate * mean) ** 2 / (spread + 1.0) - 0.5 * jnp.log(spread + 1.0)
            mean = rate * mean + gain * (y - rate * mean)
            return (mean, spread * (1 - gain), number + 1), score * (
                (number + 1) if is_counted else 1
            )

        return jax.lax.scan(step, (0.0, 1.0, 0), series)[1].sum()

    return jax.vmap(one)(jnp.tanh(rates), Y).sum()


def mapped(theta, scale):
    """A loop over the rows that carries nothing."""
    return jax.lax.map(lambda x: jnp.sum(jnp.sin(x * jnp.arange(5.0)) * scale), theta).sum()


def lagged(rates, scale):
    """What a turn makes of its row is read by the next one alone."""
    one = lambda rate, series: jax.lax.scan(
        lambda before, y: (rate * y, jnp.sin(before)), 0.3, series * scale
    )[1]
    return jax.vmap(one)(rates, Y).sum()


def along(theta, scale):
    """A loop from row to row."""
    last, all_rows = jax.lax.scan(lambda c, x: (0.9 * c + x, c * x), scale, theta)
    return last + jnp.sum(all_rows**2)


def forgetting(series, noise):
    """A Kalman filter whose log-likelihood is carried; a late observation changes the last steps."""

    def step(carry, y):
        mean, variance, score = carry
        spread = 0.09 * variance + noise
        gain = spread / (spread + 1.0)
        score = score - 0.5 * (y - 0.3 * mean) ** 2 / (spread + 1.0) - 0.5 * jnp.log(spread + 1.0)
        return (0.3 * mean + gain * (y - 0.3 * mean), spread * (1 - gain), score), mean

    (_, _, score), means = jax.lax.scan(step, (0.0, 1.0, 0.0), series)
    return score, means


def smoother(series, noise):
    """There and back: the second loop reads what the first made of each row; the last row is apart."""
    _, ahead = jax.lax.scan(lambda c, y: (0.2 * jnp.tanh(c) + y,) * 2, noise, series[:-1])
    start = jnp.sin(series[-1])
    _, back = jax.lax.scan(
        lambda c, x: (0.1 * c + jnp.sin(x), c * x), start, jnp.exp(ahead), reverse=True
    )
    return jnp.sum(jax.lax.map(jnp.cos, back)), back[0]


def recurrent(inputs, weights):
    """A network with a state, which is read at its end."""
    step = lambda h, x: (jnp.tanh(x @ weights[0] + 0.1 * h), jnp.sum(h))
    end, sums = jax.lax.scan(step, jnp.zeros(5), inputs)
    return jnp.sum(end @ weights[1]) + jnp.sum(sums**2)


def hidden_states(series, scale):
    """The forward algorithm: first row apart, several numbers of different types carried."""
    likelihood = -0.5 * (series[:, None] - jnp.arange(3.0)) ** 2 * scale
    move = jnp.log(jnp.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]]))

    def step(carry, row):
        alpha, phase, largest, count = carry
        alpha = logsumexp(alpha[:, None] + move, axis=0) + row
        total = logsumexp(alpha)
        phase = 0.1j * phase + total
        return (alpha - total, phase, (row[0] > row[1]), count + (row[0] > row[1])), total

    start = likelihood[0], 1.0 + 0j, False, 0
    (_, phase, largest, count), totals = jax.lax.scan(step, start, likelihood[1:])
    return totals.sum() + jnp.abs(phase), largest, count


def read_inside(theta, scale):
    """A loop that reads rows of a constant, and one over another axis than that of the rows."""
    numbers = jnp.arange(NUM) * 3 % NUM
    first, _ = jax.lax.scan(lambda c, n: (0.5 * c + theta[n], None), scale, numbers)
    over = theta[None] * jnp.arange(9.0)[:, None]
    second, _ = jax.lax.scan(
        lambda c, row: (jax.nn.softmax(row) @ TARGET + 0.1 * c, None), 0.0, over
    )
    return first + second


KERNEL = np.array([0.1, 0.4, 0.3, 0.2])


def smeared(signal, scale):
    """A signal seen through an instrument, of which the kernel is not symmetric."""
    seen = jnp.convolve(signal * scale, KERNEL, mode="same")
    return jnp.sum((seen - TARGET) ** 2) + jnp.max(seen)


def blurred(image, scale):
    """An image with two channels; every other row and column of what is seen, with gaps in the
    kernel, and back.
    """
    channels = jnp.stack([image, image**2])[None] * scale
    kernel = jnp.stack([WEIGHTS[0], jnp.sin(WEIGHTS[0])])[None]
    options = {"rhs_dilation": (2, 1), "padding": [(3, 2), (1, -1)]}
    seen = jax.lax.conv_general_dilated(channels, kernel, (2, 1), **options)
    back = jax.lax.conv_general_dilated(
        jnp.tanh(seen), kernel[:, :1], (1, 1), [(4, 3), (2, 2)], lhs_dilation=(3, 1)
    )
    return jnp.sum(seen**2) + jnp.sum(jnp.sin(back))


def pooled(x, scale):
    """Largest and least of neighbours, and their sums, with ends of different kinds."""
    window = lambda init, op, sizes, strides, padding: jax.lax.reduce_window(
        jnp.tanh(x * scale), init, op, sizes, strides, padding
    )
    largest = window(-jnp.inf, jax.lax.max, (3, 1), (2, 1), ((2, 1), (0, 0)))
    least = window(jnp.inf, jax.lax.min, (4, 2), (1, 1), "SAME")
    total = window(0.0, jax.lax.add, (3, 2), (3, 2), "VALID")
    return jnp.sum(largest) + jnp.prod(least[:, 0]), jnp.sum(total**2)


def averages(x, scale):
    """Running means of some lengths, one after the other."""
    for length in (2, 5):
        x = jax.lax.reduce_window(x * scale, 0.0, jax.lax.add, (length,), (1,), "SAME") / length
    return jnp.sum(jnp.log1p(x**2))


def deblurred(signal, kernel):
    """A kernel that is to be found, along the rows of what it is seen in."""
    seen = jax.lax.conv_general_dilated(
        signal.T[None], kernel, (2,), [(3, 1)], lhs_dilation=(1,), rhs_dilation=(2,)
    )
    return jnp.sum(jnp.sin(seen)) + jnp.sum(
        jax.lax.conv(jnp.ones((1, 7, 30)), kernel, (1,), "SAME")
    )


def peaks(x, scale):
    """Largest of windows that overlap, of such that leave rows out, and least of pairs."""
    window = lambda init, op, size, stride: jax.lax.reduce_window(
        x * scale, init, op, (size, 1), (stride, 1), "VALID"
    )
    return (
        jnp.sum(window(-jnp.inf, jax.lax.max, 4, 2) ** 2)
        + jnp.sum(jnp.sin(window(-jnp.inf, jax.lax.max, 2, 5)))
        + jnp.sum(window(jnp.inf, jax.lax.min, 2, 1))
    )


def padded_peaks(x, scale):
    """The same with windows that reach beyond the ends."""
    window = lambda init, op, sizes, strides, padding: jax.lax.reduce_window(
        x * scale, init, op, sizes, strides, padding
    )
    return (
        jnp.sum(window(-jnp.inf, jax.lax.max, (3, 3), (1, 1), "SAME") ** 2)
        + jnp.sum(jnp.sin(window(-jnp.inf, jax.lax.max, (4, 2), (3, 1), ((2, 3), (0, 1)))))
        + jnp.sum(window(jnp.inf, jax.lax.min, (3, 1), (2, 1), ((1, 0), (0, 0))))
    )


def binned(counts, scale):
    """Rows that are divided into two axes, merged with another one, and cut anew."""
    bins = counts.reshape(6, 4).sum(axis=1)
    parts = (jnp.exp(counts[:, None] * scale) * Y).reshape(-1)
    weeks = jnp.tanh(parts).reshape(4, 3, -1)  # 42 of the 168 in each of four
    again = (parts.reshape(NUM, 7) - Y) ** 2
    return jnp.sum(bins**2) + jnp.sum(weeks.max(axis=2)) + jnp.sum(again), jnp.cos(bins)


def pixels(image, scale):
    """A flat image, seen through an instrument, line by line."""
    lines = jnp.pad(image, (0, 72)).reshape(12, 8)
    seen = jax.scipy.signal.convolve(lines, WEIGHTS[0], mode="same")
    return jnp.sum((seen.ravel() * scale - OBSERVED[:96]) ** 2)


def hazard(rates, scale):
    """A cumulative hazard: events are seen where it has come to something; running extremes."""
    cumulative = jnp.cumsum(jnp.exp(rates * scale))
    likelihood = jnp.sum(jnp.log1p(cumulative) - TARGET * cumulative)
    return likelihood + jnp.sum(jax.lax.cummax(rates) * jnp.diff(cumulative, append=9.0))


def running(table, scale):
    """Running products and sums of exponentials, of several columns, and what follows from these."""
    products = jax.lax.cumprod(1.0 + 0.1 * jnp.tanh(table * scale))
    soft = jax.lax.cumlogsumexp(table, axis=0)
    ahead = jnp.concatenate([soft[1:], products[-1:]]) - jax.lax.cummin(soft)
    return jnp.sum(products**2), jnp.max(ahead, axis=1)


def risk_sets(scores, scale):
    """Cox's partial likelihood, subjects in the order of their times: those who are at risk come
    later.
    """
    at_risk = jax.lax.cumlogsumexp(scores * scale, reverse=True)
    return jnp.sum((scores * scale - at_risk) * (TARGET > 0))


def joined(theta, scale):
    """What is looked up, in front of a running sum; a square by a product with itself."""
    picked = jnp.concatenate([theta[jnp.array([23, 2, 22, 5])] * scale, jnp.cumsum(theta)])
    return jnp.sum(picked**2) + jnp.cumsum(theta) @ jnp.cumsum(theta)


def recurrence(inputs, decay):
    """A linear recurrence by `associative_scan`: all its states."""
    step = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
    rates = jnp.full(inputs.shape, decay) + 0.01 * inputs
    return jnp.sum(jnp.tanh(jax.lax.associative_scan(step, (rates, inputs))[1]) ** 2)


def kernels(x, scale):
    """Products with a matrix of all pairs, from both sides, and over both axes."""
    apart = jnp.sum((x[:, None] - x[None]) ** 2, axis=2)
    matrix = jnp.exp(-scale * apart)
    left, right = matrix @ WAVY, WAVY.T @ matrix
    both = jnp.tensordot(matrix, jnp.cos(jnp.arange(NUM * NUM * 1.0)).reshape(NUM, NUM), 2)
    return jnp.sum(jnp.tanh(left)) + jnp.sum(right**3) + both


WAVY = np.sin(np.arange(NUM * 3.0)).reshape(NUM, 3)


def cut_twice(x, scale):
    """Moved along the rows, and along the columns as well."""
    y = jnp.sin(x * scale)
    around = jax.lax.pad(y[:-1], 0.3 * scale, [(1, 2, 0), (1, -1, 1)])
    return jnp.sum(y[2:, 1:] ** 3) + jnp.sum(around**3) + jnp.sum(jnp.flip(y, (0, 1)) * y)


def halves(x, scale):
    """Columns that are split and joined, of which rows meet those of their neighbours."""
    first, second = jnp.split(jnp.sin(x * scale), 2, axis=1)
    beside = jnp.roll(jnp.sum(first * scale, axis=1), 1)
    both = jnp.concatenate([second, first**2], axis=1)
    return jnp.sum(jnp.sum(second, axis=1) * beside) + jnp.sum(both[: NUM // 3] ** 3)


def signs(x, scale):
    """A result of weak type: it is made of Python's numbers alone."""
    return jnp.where(x * scale > 0, 1.0, -1.0), jnp.sum(jnp.tanh(x * scale))


def drawn(theta, scale):
    """Numbers that each row draws by a key of its own, whose distribution changes."""
    keys = jax.random.split(jax.random.key(3), NUM)
    draw = lambda key, x: jax.random.gamma(key, jnp.exp(x) + jnp.arange(1.0, 8.0))
    return jnp.sum(jnp.tanh(checkpoint_name(jax.vmap(draw)(keys, theta), "drawn") * scale))


class Case(NamedTuple):
    """A function, its arguments, and whether a change of a row of the first runs that row alone."""

    fun: Any
    args: tuple[Any, ...]
    is_by_rows: bool = True


def with_gradient(fun, *argnums):
    return jax.value_and_grad(fun, argnums)


_PAIR = THETA, 0.3, 0.9
_FACTORS = RNG.normal(size=(NUM, 3)), RNG.normal(size=(9, 3))
_PROCESSES = np.full(NUM, 0.3), np.full(NUM, 0.5)
_NETWORK = RNG.normal(size=(NUM, 3)), WEIGHTS
_WAVES = THETA + 3.0, np.full(NUM, 0.1)

CASES = {
    "groups": Case(groups, _PAIR),
    "drawn, gradient": Case(with_gradient(drawn, 0, 1), (THETA, 0.5)),
    "signs": Case(signs, (THETA, 0.7)),
    "halves": Case(halves, (Y[:, :2], 0.7)),
    "halves, gradient": Case(with_gradient(halves, 0, 1), (Y[:, :2], 0.7)),
    "cut twice": Case(cut_twice, (WAVY, 0.7)),
    "cut twice, gradient": Case(with_gradient(cut_twice, 0, 1), (WAVY, 0.7)),
    "groups, gradient": Case(with_gradient(groups, 0, 1, 2), _PAIR),
    "groups, Hessian": Case(jax.hessian(groups, (1, 2)), _PAIR),
    "look-up": Case(looked_up, _PAIR),
    "look-up, gradient": Case(with_gradient(looked_up, 0, 1, 2), _PAIR),
    "look-up by an argument": Case(with_gradient(by_ids, 0), (THETA, IDS)),
    "factors": Case(factors, _FACTORS),
    "factors, gradient": Case(with_gradient(factors, 0, 1), _FACTORS),
    "processes": Case(processes, _PROCESSES),
    "processes, gradient": Case(with_gradient(processes, 0, 1), _PROCESSES),
    "diffusion": Case(diffusion, (0.3 * Y[:, 5], Y[:, :5])),
    "diffusion, gradient": Case(with_gradient(diffusion, 0), (0.3 * Y[:, 5], Y[:, :5])),
    "network": Case(network, _NETWORK),
    "network, gradient": Case(with_gradient(network, 0, 1), _NETWORK),
    "waves": Case(waves, _WAVES, is_by_rows=False),
    "waves, gradient": Case(with_gradient(waves, 0, 1), _WAVES, is_by_rows=False),
    "resonances, gradient": Case(
        with_gradient(resonances, 0, 1),
        (0.2 + 0.01 * THETA**2, RNG_2.normal(size=NUM)),
        is_by_rows=False,
    ),
    "coherent, gradient": Case(
        with_gradient(coherent, 0, 1, 2),
        (THETA, RNG_2.uniform(size=(NUM, 3)), 0.7),
        is_by_rows=False,
    ),
    "mixture": Case(mixture, (THETA, 0.5), is_by_rows=False),
    "mixture, gradient": Case(with_gradient(mixture, 0, 1), (THETA, 0.5), is_by_rows=False),
    "mixture and parts, gradient": Case(
        jax.grad(lambda *args: mixture_and_parts(*args)[0], (0, 1)), (THETA, 0.5), is_by_rows=False
    ),
    "mixture and parts": Case(mixture_and_parts, (THETA, 0.5), is_by_rows=False),
    "constant gradient": Case(with_gradient(indifferent, 0, 1), (THETA, 0.5)),
    "largest": Case(with_gradient(largest, 0), (THETA, 0.5)),
    "products": Case(products, (THETA, 0.5)),
    "norms": Case(norms, (Y, 0.3)),
    "columns": Case(with_gradient(columns, 1), (RNG.normal(size=(NUM, 4)), 0.3)),
    "ring": Case(ring, (THETA, 0.5)),
    "ring, gradient": Case(with_gradient(ring, 0, 1), (THETA, 0.5)),
    "lattice": Case(lattice, (np.sign(THETA), 0.5)),
    "walk": Case(walk, (THETA, 0.5)),
    "walk, gradient": Case(jax.grad(lambda *args: walk(*args)[0], (0, 1)), (THETA, 0.5)),
    "spread": Case(spread, (THETA, 0.5)),
    "spread, gradient": Case(jax.grad(lambda *args: spread(*args)[0], (0, 1)), (THETA, 0.5)),
    "every other": Case(every_other, (THETA, 0.5)),
    "every other, gradient": Case(
        jax.grad(lambda *args: sum(every_other(*args)), (0, 1)), (THETA, 0.5)
    ),
    "smeared": Case(smeared, (THETA, 0.5)),
    "smeared, gradient": Case(with_gradient(smeared, 0, 1), (THETA, 0.5)),
    "blurred": Case(blurred, (Y, 0.5)),
    "blurred, gradient": Case(with_gradient(blurred, 0, 1), (Y, 0.5), is_by_rows=False),
    "pooled": Case(pooled, (Y, 0.5)),
    "peaks, gradient": Case(with_gradient(peaks, 0, 1), (Y[:, :3], 0.5)),
    "padded peaks, gradient": Case(with_gradient(padded_peaks, 0, 1), (Y[:, :3], 0.5)),
    "deblurred, gradient": Case(
        with_gradient(deblurred, 0, 1), (Y, RNG.normal(size=(2, 7, 3))), is_by_rows=False
    ),
    "averages": Case(averages, (THETA, 0.5)),
    "averages, gradient": Case(with_gradient(averages, 0, 1), (THETA, 0.5)),
    "binned": Case(binned, (THETA, 0.5)),
    "binned, gradient": Case(
        jax.grad(lambda *args: binned(*args)[0], (0, 1)), (THETA, 0.5), is_by_rows=False
    ),
    "pixels": Case(pixels, (THETA, 0.5)),
    "pixels, gradient": Case(with_gradient(pixels, 0, 1), (THETA, 0.5)),
    "look-up of neighbours": Case(counted_neighbours, (THETA, 0.5)),
    "pairs": Case(pairs, (THETA, 0.5)),
    "pairs, gradient": Case(with_gradient(pairs, 0, 1), (THETA, 0.5)),
    "fluid": Case(fluid, (RNG.normal(size=(NUM, 2)), 0.5)),
    "fluid, gradient": Case(with_gradient(fluid, 0), (RNG.normal(size=(NUM, 2)), 0.5)),
    "all pairs": Case(all_pairs, (RNG.normal(size=(NUM, 2)), 0.5)),
    "all pairs, gradient": Case(
        with_gradient(all_pairs, 0, 1), (RNG.normal(size=(NUM, 2)), 0.5), is_by_rows=False
    ),
    "kernels": Case(kernels, (RNG_2.normal(size=(NUM, 2)), 0.5), is_by_rows=False),
    "gram": Case(gram, (RNG.normal(size=(NUM, 2)), 0.5), is_by_rows=False),
    "gram, gradient": Case(
        with_gradient(lambda *args: gram(*args)[0], 0, 1), (RNG.normal(size=(NUM, 2)), 0.5), False
    ),
    "tied": Case(tied, (THETA, 0.5), is_by_rows=False),
    "graph": Case(graph, (RNG.normal(size=(NUM, 2)), 0.5), is_by_rows=False),
    "sparse graph": Case(sparse_graph, (THETA, 0.5)),
    "sparse graph, gradient": Case(with_gradient(sparse_graph, 0, 1), (THETA, 0.5)),
    "filters": Case(filters, (THETA, 0.5)),
    "filters, gradient": Case(
        with_gradient(lambda rates, noise: filters(rates, noise, is_counted=False), 0),
        (THETA, 0.5),
    ),
    "filters, counted, Hessian": Case(
        jax.jacfwd(jax.grad(filters, 1), 1), (THETA, 0.5), is_by_rows=False
    ),
    "lagged": Case(lagged, (THETA, 0.5)),
    "from row to row": Case(along, (THETA, 0.5), is_by_rows=False),
    "from row to row, gradient": Case(with_gradient(along, 0, 1), (THETA, 0.5), is_by_rows=False),
    "forgetting": Case(forgetting, (THETA, 0.5), is_by_rows=False),
    "forgetting, gradient": Case(
        with_gradient(lambda *args: forgetting(*args)[0], 0, 1), (THETA, 0.5), is_by_rows=False
    ),
    "forgetting, Hessian": Case(
        jax.hessian(lambda *args: forgetting(*args)[0], 1), (THETA, 0.5), is_by_rows=False
    ),
    "smoother": Case(smoother, (THETA, 0.5), is_by_rows=False),
    "smoother, gradient": Case(
        jax.grad(lambda *args: sum(smoother(*args)), (0, 1)), (THETA, 0.5), is_by_rows=False
    ),
    "recurrent": Case(recurrent, _NETWORK, is_by_rows=False),
    "recurrent, gradient": Case(with_gradient(recurrent, 0, 1), _NETWORK, is_by_rows=False),
    "hidden states": Case(hidden_states, (THETA, 0.5), is_by_rows=False),
    "read inside": Case(read_inside, (THETA, 0.5), is_by_rows=False),
    "mapped": Case(mapped, (THETA, 0.5)),
    "mapped, gradient": Case(with_gradient(mapped, 0), (THETA, 0.5)),
    "soft-max": Case(with_gradient(softmax, 0), (THETA, 0.5), is_by_rows=False),
    "loop over the rows": Case(smoothed, (THETA, 0.5), is_by_rows=False),
    "look-up by bins": Case(with_gradient(by_bins, 0), (THETA, IDS + 0.5)),
}

LATE = {
    "hazard": Case(hazard, (THETA, 0.5)),
    "hazard, gradient": Case(with_gradient(hazard, 0, 1), (THETA, 0.5), is_by_rows=False),
    "hazard, gradient by one number": Case(with_gradient(hazard, 1), (THETA, 0.5)),
    "running": Case(running, (RNG.normal(size=(NUM, 3)), 0.5)),
    "running, gradient": Case(
        jax.grad(lambda *args: running(*args)[0], (0, 1)), (RNG.normal(size=(NUM, 3)), 0.5)
    ),
    "joined": Case(joined, (THETA, 0.5), is_by_rows=False),
    "recurrence": Case(recurrence, (THETA, 0.5)),
    "recurrence, gradient": Case(with_gradient(recurrence, 0, 1), (THETA, 0.5)),
}
EARLY = {
    "risk sets": Case(risk_sets, (THETA, 0.5)),
    "risk sets, gradient": Case(with_gradient(risk_sets, 0, 1), (THETA, 0.5)),
}
"""Of which all rows after a changed one follow from it, or all before it."""
