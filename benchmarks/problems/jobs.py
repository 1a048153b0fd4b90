"""Whole jobs as users run them: a function, and the arguments of each call from first to last.

Some can gain from what was saved, some cannot; none of them may end later than under `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from problems import amplitude, mixture

Calls = Iterator[tuple[Any, ...]]


class Job(NamedTuple):
    """A function as it is given to `jax.jit` or `incremental`, and all its calls.

    `least` is how many times faster than under `jax.jit` the whole job is to be, `least_again` in a
    second process, which finds what the first has learned.
    """

    function: Callable[..., Any]
    calls: Callable[[], Calls]
    least: float
    least_again: float = 0.98


# --- nothing can be gained ------------------------------------------------------------------------


def small(size: int) -> Job:
    """5,000 calls of about 80 us; both parameters are new in each."""
    x = np.linspace(0.1, 2.0, size)

    def calls() -> Calls:
        for k in range(5_000):
            yield 1.0 + 1e-4 * k, 0.5 + 1e-4 * k, x

    return Job(lambda a, b, x: jnp.sum(jnp.exp(-a * x) * jnp.sin(b * x)), calls, 0.98)


def medium(size: int) -> Job:
    """3,000 calls of about 0.4 ms; both parameters, in a dict, are new in each."""
    x = jnp.linspace(0.1, 2.0, size)

    def calls() -> Calls:
        for k in range(3_000):
            yield {"a": 1.0 + 1e-4 * k, "b": 0.5 + 1e-4 * k}, x

    function = lambda p, x: jnp.sum(jnp.exp(-p["a"] * x) * jnp.sin(p["b"] * x))
    return Job(function, calls, 0.98)


def mixture_moving(size: int) -> Job:
    """A minimiser's 300 gradients of the mixture: one vector, all of it new."""
    x = mixture.make_data(size)
    start = np.array(list(mixture.truth(size).values()))

    def calls() -> Calls:
        for k in range(300):
            yield start * (1.0 + 1e-4 * np.sin(k + np.arange(start.size))), x

    return Job(jax.value_and_grad(mixture.nll_flat), calls, 0.98)


def histograms(size: int) -> Job:
    """400 values of a template fit that closes over its tensors; all 30 shifts are new."""
    rng = np.random.default_rng(0)
    nominal = jnp.asarray(rng.uniform(5, 10, (6, size)))
    slopes = jnp.asarray(rng.normal(size=(30, 6, size)))
    counts = jnp.asarray(rng.poisson(np.asarray(nominal.sum(axis=0))))

    def nll(strength: Any, shifts: Any) -> Any:
        shape = nominal * jnp.exp(0.01 * jnp.tensordot(shifts, slopes, 1))
        expected = strength * shape[0] + shape[1:].sum(axis=0)
        return jnp.sum(expected - counts * jnp.log(expected)) + 0.5 * jnp.sum(shifts**2)

    def calls() -> Calls:
        for k in range(400):
            yield 1.0 + 1e-3 * k, 0.1 * np.sin(k + np.arange(30.0))

    return Job(jax.value_and_grad(nll, argnums=(0, 1)), calls, 0.98)


# --- something can --------------------------------------------------------------------------------


def mixture_scans(size: int) -> Job:
    """Gradients at 60 values of a mean, then of a yield, then of the slope."""
    x = mixture.make_data(size)
    truth = mixture.truth(size)

    def calls() -> Calls:
        for name in ("mu1", "n1", "lam"):
            for factor in np.linspace(0.97, 1.03, 60):
                yield {**truth, name: truth[name] * float(factor)}, x

    return Job(jax.value_and_grad(mixture.nll), calls, 0.98, 1.2)


def mixture_in_turns(size: int) -> Job:
    """Gradients, 50 with a new yield, 50 with all new, six times."""
    x = mixture.make_data(size)
    truth = mixture.truth(size)

    def calls() -> Calls:
        for k in range(600):
            factor = 1.0 + 1e-3 * float(np.sin(k + 1.0))
            if k // 50 % 2:
                yield {name: value * factor for name, value in truth.items()}, x
            else:
                yield {**truth, "n1": truth["n1"] * factor}, x

    return Job(jax.value_and_grad(mixture.nll), calls, 1.0, 1.25)


def width_scan(size: int) -> Job:
    """An amplitude analysis, vectorised over its 20 waves: value and derivative at 120 values of one
    width.
    """
    couplings, shapes, data, monte_carlo = amplitude.make_inputs(num_events=size)

    def calls() -> Calls:
        for factor in np.linspace(0.8, 1.2, 120):
            yield shapes["width"][amplitude.WIDTH] * factor, couplings, shapes, data, monte_carlo

    function = jax.value_and_grad(amplitude.of_width(amplitude.nll_vectorised))
    return Job(function, calls, 2.5, 6.0)


def short_width_scan(size: int) -> Job:
    """Values of the same, one wave after the other, of few events: it ends before a program would be
    compiled.
    """
    couplings, shapes, data, monte_carlo = amplitude.make_inputs(num_events=size)

    def calls() -> Calls:
        for factor in np.linspace(0.8, 1.2, 120):
            widths = shapes["width"].copy()
            widths[amplitude.WIDTH] *= factor
            yield couplings, {**shapes, "width": widths}, data, monte_carlo

    return Job(amplitude.nll_unrolled, calls, 0.98)


def slow_theory(size: int) -> Job:
    """40 points of a theory that takes 12 to 18 ms, and at each 20 steps of nuisance parameters."""
    grid = jnp.linspace(0.0, 1.0, size)
    data = jnp.cos(3.0 * jnp.linspace(0.0, 1.0, 50))

    def theory(p: Any) -> Any:
        y = grid
        for _ in range(40):
            y = jnp.sin(p[0] * y) + 0.1 * jnp.cos(p[1] * y)
        return y.reshape(50, -1).mean(axis=1)

    def log_density(p: Any, nuisance: Any) -> Any:
        shifted = theory(p) * (1.0 + nuisance[0]) + nuisance[1]
        return -0.5 * jnp.sum((data - shifted) ** 2) - 0.5 * jnp.sum(nuisance**2)

    def calls() -> Calls:
        for k in range(40):
            p = np.array([1.0 + 0.01 * k, 0.5 - 0.01 * k])
            for n in range(21):
                yield p, 0.01 * np.sin(np.array([k + n, k - n], float))

    return Job(log_density, calls, 5.0, 6.0)


def single_sites(size: int) -> Job:
    """1,700 single-site steps of a hierarchical regression, the 85 counties in turn."""
    rng = np.random.default_rng(1)
    county = jnp.asarray(rng.integers(85, size=size))
    floor = jnp.asarray(rng.integers(2, size=size))
    y = jnp.asarray(rng.normal(size=size))

    def log_density(alpha: Any, beta: Any, sigma: Any) -> Any:
        residuals = y - alpha[county] - beta * floor
        fit = -0.5 * jnp.sum((residuals / sigma) ** 2) - size * jnp.log(sigma)
        return fit - 0.5 * jnp.sum(alpha**2)

    def calls() -> Calls:
        alpha = np.zeros(85)
        for k in range(1_700):
            alpha = alpha.copy()
            alpha[k % 85] = np.sin(k)
            yield alpha, 0.3, 1.1

    return Job(log_density, calls, 0.98)


def single_sites_of_many(size: int) -> Job:
    """The same with ten times the rows."""
    return single_sites(size)._replace(least=5.0, least_again=5.0)


def pruning(size: int, num_calls: int = 1_000) -> Job:
    """Felsenstein's likelihood of a tree of 32 leaves; one of 62 branches is new in each call."""
    num_leaves = 32
    rng = np.random.default_rng(2)
    tips = jnp.asarray(np.eye(4)[rng.integers(4, size=(num_leaves, size))])

    def transition(length: Any) -> Any:
        decay = jnp.exp(-4.0 / 3.0 * length)
        return 0.25 * (1.0 - decay) + decay * jnp.eye(4)

    def log_likelihood(lengths: Any) -> Any:
        parts = list(tips)
        branch = 0
        log_scale = 0.0
        while len(parts) > 1:
            joined = []
            for left, right in zip(parts[::2], parts[1::2], strict=True):
                up = left @ transition(lengths[branch])
                up = up * (right @ transition(lengths[branch + 1]))
                scale = up.sum(axis=1, keepdims=True)
                log_scale = log_scale + jnp.log(scale[:, 0])
                joined.append(up / scale)
                branch += 2
            parts = joined
        return jnp.sum(log_scale + jnp.log(parts[0].mean(axis=1)))

    def calls() -> Calls:
        lengths = [0.1 + 0.001 * k for k in range(2 * num_leaves - 2)]
        for k in range(num_calls):
            lengths = list(lengths)
            lengths[7 * k % len(lengths)] = 0.1 * float(1.5 + np.sin(k))
            yield (lengths,)

    return Job(log_likelihood, calls, 1.0, 1.6)


def pruning_of_many(size: int) -> Job:
    """The same with 16 times the sites, and 3,000 calls."""
    return pruning(size, num_calls=3_000)


def chain_of_steps(size: int, num_calls: int = 4_000) -> Job:
    """A pulse of 60 steps, each an evolution of `size` by `size` numbers that takes the last one's: one
    amplitude is new in each call, and a third of these are kept. No two steps reach alike.
    """
    num_steps = 60
    rng = np.random.default_rng(6)
    still, driven = (rng.normal(size=(size, size)) / np.sqrt(size) for _ in range(2))
    start, target = (np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(2))

    def overlap(amplitudes: Any) -> Any:
        state = start
        for k in range(num_steps):
            move = 0.02 * (still + amplitudes[k] * driven)
            state = jnp.tanh(state @ (jnp.eye(size) + move + move @ move / 2))
        return jnp.sum(state * target)

    def calls() -> Calls:
        rng = np.random.default_rng(7)
        accepted = np.full(num_steps, 0.1)
        yield (accepted,)
        for _ in range(num_calls):
            proposed = accepted.copy()
            proposed[rng.integers(num_steps)] += 0.2 * rng.normal()
            yield (proposed,)
            accepted = proposed if rng.uniform() < 0.3 else accepted

    return Job(overlap, calls, 0.98, 1.25)


# --- ordinary patterns that can gain --------------------------------------------------------------


def walk_of_groups(size: int) -> Job:
    """2,500 steps of a Metropolis walk on the host: 300 groups in turn, then three numbers that all
    groups share; half of the proposals are refused.
    """
    num_groups = 300
    y = np.random.default_rng(4).normal(size=(num_groups, size))

    def log_density(p: Any) -> Any:
        location = p["mu"] + p["tau"] * p["z"]
        fit = jax.scipy.stats.t.logpdf(y, 4.0, location[:, None], jnp.exp(p["log_scale"]))
        return jnp.sum(fit) - 0.5 * jnp.sum(p["z"] ** 2)

    def calls() -> Calls:
        rng = np.random.default_rng(5)
        accepted = {"mu": 0.1, "tau": 0.5, "z": rng.normal(size=num_groups), "log_scale": 0.1}
        yield (accepted,)
        for k in range(2_500):
            number = k % (num_groups + 3)
            if number < num_groups:
                z = accepted["z"].copy()
                z[number] += 0.3 * rng.normal()
                proposed = {**accepted, "z": z}
            else:
                name = ("mu", "tau", "log_scale")[number - num_groups]
                proposed = {**accepted, name: accepted[name] + 0.05 * rng.normal()}
            yield (proposed,)
            accepted = proposed if rng.uniform() < 0.5 else accepted

    return Job(log_density, calls, 1.2, 2.0)


def of_a_process(t: Any, r: Any, amplitude: Any, length: Any, noise: Any) -> Any:
    """The log-density of residuals by a Gaussian process over times."""
    apart = (t[:, None] - t[None]) / jnp.exp(length)
    kernel = jnp.exp(2 * amplitude - 0.5 * apart**2) + jnp.exp(2 * noise) * jnp.eye(len(t))
    factor = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(factor, r, lower=True)
    return -0.5 * white @ white - jnp.sum(jnp.log(jnp.diag(factor)))


def pulsars_in_turns(size: int) -> Job:
    """1,200 steps of 25 Gaussian processes under `vmap`: one of three numbers of one of them."""
    num_pulsars = 25
    rng = np.random.default_rng(6)
    times = np.sort(rng.uniform(0.0, 10.0, (num_pulsars, size)), axis=1)
    residuals = rng.normal(size=(num_pulsars, size))

    def log_density(*theta: Any) -> Any:
        return jnp.sum(jax.vmap(of_a_process)(times, residuals, *theta))

    def calls() -> Calls:
        rng = np.random.default_rng(7)
        accepted = [np.zeros(num_pulsars), np.zeros(num_pulsars), -np.ones(num_pulsars)]
        for k in range(1_200):
            proposed = list(accepted)
            proposed[k % 3] = accepted[k % 3].copy()
            proposed[k % 3][rng.integers(num_pulsars)] += 0.1 * rng.normal()
            yield tuple(proposed)
            accepted = proposed if rng.uniform() < 0.5 else accepted

    return Job(log_density, calls, 1.2, 2.0)


def pulsars_in_a_loop(size: int) -> Job:
    """1,500 gradients of 20 Gaussian processes in a loop of Python: one of three numbers of one of
    them, these in turn.
    """
    num_pulsars = 20
    rng = np.random.default_rng(9)
    times = np.sort(rng.uniform(0.0, 10.0, (num_pulsars, size)), axis=1)
    residuals = rng.normal(size=(num_pulsars, size))
    data = list(zip(times, residuals, strict=True))

    def log_density(theta: Any) -> Any:
        return sum(of_a_process(*each, *p) for each, p in zip(data, theta, strict=True))

    def calls() -> Calls:
        rng = np.random.default_rng(10)
        accepted = [[np.float64(0.0), np.float64(0.0), np.float64(-1.0)]] * num_pulsars
        for k in range(1_500):
            number, which = k % num_pulsars, k // num_pulsars % 3
            changed = list(accepted[number])
            changed[which] = changed[which] + 0.1 * rng.normal()
            proposed = [*accepted[:number], changed, *accepted[number + 1 :]]
            yield (proposed,)
            accepted = proposed if rng.uniform() < 0.5 else accepted

    return Job(jax.value_and_grad(log_density), calls, 1.2, 2.5)


def terms_in_turns(size: int) -> Job:
    """2,000 gradients of a sum of six terms in a loop of Python, by two parameters each: one of the
    twelve in turn is new.
    """
    num_terms = 6
    x = np.linspace(0.1, 2.0, size)

    def log_likelihood(p: Any) -> Any:
        total = 0.0
        for rate, frequency in p:
            total = total + jnp.exp(-rate * x) * jnp.sin(frequency * x)
        return jnp.sum(jnp.log(jnp.abs(total) + 1.0))

    def calls() -> Calls:
        start = [[1.0 + 0.1 * k, 1.0 + 0.1 * k] for k in range(num_terms)]
        p = start
        for k in range(2_000):
            number, which = divmod(k % (2 * num_terms), 2)
            changed = list(p[number])
            changed[which] = start[number][which] + 1e-3 * float(np.sin(k))
            p = [*p[:number], changed, *p[number + 1 :]]
            yield (p,)

    return Job(jax.value_and_grad(log_likelihood), calls, 1.5, 1.8)


def around_one_point(size: int) -> Job:
    """1,000 calls around one point: each element of a vector of 2,000 at a time is another, as in
    profiles and numeric derivatives.
    """
    rng = np.random.default_rng(8)
    x = jnp.asarray(rng.normal(size=(2_000, size)))
    point = jnp.ones(2_000)

    def log_likelihood(theta: Any, mu: Any) -> Any:
        return jnp.sum(jax.scipy.stats.norm.logpdf(x, theta[:, None] + mu, 1.0))

    def calls() -> Calls:
        for k in range(1_000):
            yield point.at[7 * k % 2_000].add(0.01 * (1 + k)), 0.5

    return Job(log_likelihood, calls, 1.5, 3.0)


JOBS: dict[str, tuple[Callable[[int], Job], int]] = {
    "small function": (small, 1_500),
    "medium function": (medium, 20_000),
    "mixture, all new": (mixture_moving, 50_000),
    "template fit": (histograms, 400),
    "mixture, three scans": (mixture_scans, 50_000),
    "mixture, kinds in turns": (mixture_in_turns, 50_000),
    "one width": (width_scan, amplitude.NUM_EVENTS),
    "one width, few events": (short_width_scan, 20_000),
    "slow theory": (slow_theory, 30_000),
    "single sites": (single_sites, 100_000),
    "single sites, many rows": (single_sites_of_many, 1_000_000),
    "pruning": (pruning, 1_000),
    "pruning, many sites": (pruning_of_many, 16_000),
    "chain of steps": (chain_of_steps, 100),
    "walk over groups": (walk_of_groups, 2_000),
    "pulsars in turns": (pulsars_in_turns, 120),
    "pulsars in a loop": (pulsars_in_a_loop, 120),
    "terms in turns": (terms_in_turns, 20_000),
    "around one point": (around_one_point, 2_000),
}
"""By name, with a size."""
