"""The pictures of docs/gallery.md, made by the code of the examples.

    python scripts/gallery.py                 all; those of analyses where their libraries are installed
    python scripts/gallery.py ising radon     these

Each picture is a function of its example's module and of axes; some take a minute. They are PNG files of
some 20 kB in docs/assets/gallery.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import incrax
from incrax import fit, samplers

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "assets" / "gallery"
FIRST, SECOND, GREY = "#00796b", "#e65100", "#9e9e9e"

Picture = Callable[[ModuleType, Any], None]


def mixture_fit(example: ModuleType, axes: Any) -> None:
    data = example.sample(np.random.default_rng(0))
    start = {**example.TRUTH, "mu1": 2.8, "mu2": 6.2}
    roles = {"x": "data"}
    model = incrax.bind(example.nll, **start, x=data, roles=roles, bounds=example.BOUNDS)
    p = fit.minimize(model).params
    x = np.linspace(example.LOW, example.HIGH, 300)
    width = 0.1
    peaks = [(p[f"n{k}"], example.normal(x, p[f"mu{k}"], p[f"s{k}"])) for k in (1, 2)]
    background = p["nb"] * example.exponential(x, p["lam"])
    total = sum(number * density for number, density in peaks) + background
    axes.hist(data, np.arange(example.LOW, example.HIGH, width), color=GREY, alpha=0.5)
    axes.plot(x, width * total, color=FIRST)
    axes.plot(x, width * background, "--", color=SECOND)
    axes.set(xlabel="x", ylabel="events")


def delay_mixture(example: ModuleType, axes: Any) -> None:
    delays = example.read_flights(50_000).delay
    delays = delays[(delays > example.LOW) & (delays < example.HIGH)]
    bounds = list(zip(example.LOWER, example.UPPER, strict=True))
    start = example.start(len(delays))
    best = fit.minimize(example.negative_log_likelihood, start, delays, bounds=bounds).values
    bins = np.arange(-70.5, 200.5, 3.0)
    axes.hist(delays, bins, color=GREY, alpha=0.5)
    x = np.linspace(-70, 200, 400)
    parts = [3.0 * n * d for n, d in zip(best, example.densities(best, x), strict=False)]
    axes.plot(x, sum(parts), color=FIRST)
    for part in parts:
        axes.plot(x, part, "--", color=SECOND, linewidth=0.8)
    axes.set(xlabel="delay, minutes", ylabel="flights", yscale="log", ylim=(5, 1e4))


def profile_scan(example: ModuleType, axes: Any) -> None:
    x = incrax.frozen(example.simulate(seed=2))
    both = incrax.incremental(jax.value_and_grad(example.negative_log_likelihood))
    minima, _, _ = example.scan(both, x)
    axes.plot(example.GRID, 2 * (minima - minima.min()), ".-", color=FIRST)
    axes.axhline(1.0, color=SECOND, linestyle="--")
    axes.set(xlabel="position of the peak", ylabel="2 (NLL - minimum)", ylim=(0, 8))


def amplitude_fit(example: ModuleType, axes: Any) -> None:
    rng = np.random.default_rng(1)
    couplings = np.exp(1j * rng.uniform(0.0, 6.0, example.NUM_WAVES))
    truth = {"re": couplings.real, "im": couplings.imag}
    widths = np.linspace(0.1, 0.25, example.NUM_WAVES)
    data = example.accepted(rng, truth, widths)
    flat = example.uniform(rng, 200_000)
    weights = np.asarray(example.intensity(truth, example.MASSES, widths, flat))
    bins = np.linspace(0.75, 2.5, 60)
    axes.hist(data["mass"], bins, color=GREY, alpha=0.5)
    scale = len(data["mass"]) / weights.sum()
    drawn = {"bins": bins, "histtype": "step"}
    axes.hist(flat["mass"], weights=scale * weights, color=FIRST, **drawn)
    for k in range(example.NUM_WAVES):
        only = {name: part * (np.arange(len(part)) == k) for name, part in truth.items()}
        one = np.asarray(example.intensity(only, example.MASSES, widths, flat))
        axes.hist(flat["mass"], weights=scale * one, color=SECOND, linewidth=0.7, **drawn)
    axes.set(xlabel="mass", ylabel="events")


def weather_cycles(example: ModuleType, axes: Any) -> None:
    rows = example.weather[example.weather.origin == "JFK"].dropna(subset=["temp"])
    measured = (rows.temp.to_numpy(float) - 32.0) / 1.8
    hours = example.hours_of_the_year(rows)
    linear = {"mean": 10.0, "year": np.zeros(4), "day": np.array([1.0, 0.0]), "summer": np.zeros(2)}
    start = {**linear, "days": 360.0, "hours": 24.0}
    found = fit.levenberg_marquardt(example.residuals, start, hours, measured, loss="soft_l1")
    axes.plot(hours / 24, measured, ",", color=GREY)
    axes.plot(hours / 24, example.temperature(found.params, hours), color=FIRST, linewidth=0.3)
    axes.set(xlabel="day of the year", ylabel="temperature, C")


def radon(example: ModuleType, axes: Any) -> None:
    data, level, start = example.survey()
    sizes = np.bincount(data[0], minlength=example.NUM_COUNTIES)
    updates = {"p['county'][*]": samplers.Walk(2.4 * 0.75 / np.sqrt(sizes + 10))}
    updates |= {f"p['{name}']": samplers.Walk(width) for name, width in example.WIDTHS.items()}
    sweeps = {"key": 1, "num_sweeps": 600, "updates": updates}
    chain = samplers.gibbs(example.log_density, start, *data, **sweeps)
    found = chain.tree()["county"][100:]
    order = np.argsort(level)
    places = np.arange(len(level))
    axes.errorbar(places, found.mean(0)[order], found.std(0)[order], fmt=".", color=FIRST, ms=3)
    axes.plot(places, level[order], "-", color=SECOND, linewidth=1)
    axes.set(xlabel="county, by its true level", ylabel="level of radon")


def ising(example: ModuleType, axes: Any) -> None:
    example.TEMPERATURE = 2.3
    num = example.NUM
    spins = 1 - 2 * jax.random.bernoulli(jax.random.key(0), 0.5, (num,)).astype(jnp.int32)
    state, sites = incrax.incremental(example.energy).sites(spins, moves=["spins[*]"])
    sweep = jax.jit(lambda *at: example.sites_steps(*at[:2], example.turns_of(at[2], num)))
    carry = state, example.energy(spins)
    for key in jax.random.split(jax.random.key(2), 60):
        carry = sweep(sites, carry, key)
    square = np.asarray(sites.inputs(carry[0])["spins"]).reshape(example.SIZE, -1)
    colours = ListedColormap([FIRST, "white"])
    axes.imshow(square[:120, :180], cmap=colours, interpolation="nearest")
    axes.set_axis_off()


def lennard_jones(example: ModuleType, axes: Any) -> None:
    side = example.SIDE
    places = np.stack(np.meshgrid(*[np.arange(side)] * 2), -1).reshape(-1, 2) + 0.5
    x = jnp.asarray(places * example.BOX / side)
    pairs = example.FIRST, example.SECOND
    state, sites = incrax.incremental(example.energy).sites(x, *pairs, moves=["x[*]"])
    carry = state, example.energy(x, *pairs)
    for key in jax.random.split(jax.random.key(2), 200):
        carry, _ = example.sites_steps(sites, carry, example.turns_of(key, example.NUM))
    x = np.asarray(sites.inputs(carry[0])["x"]) % example.BOX
    axes.plot(*x.T, "o", color=FIRST, ms=5, alpha=0.7)
    moved = x[np.argmin(np.linalg.norm(x - example.BOX / 2, axis=1))]
    for other in x[np.linalg.norm(x - moved, axis=1) < 6]:
        axes.plot(*np.transpose([moved, other]), color=SECOND, linewidth=0.7)
    axes.set(aspect="equal", xticks=[], yticks=[])


def lda(example: ModuleType, axes: Any) -> None:
    documents, words, _ = example.texts()
    topics = jax.random.randint(jax.random.key(0), words.shape, 0, example.NUM_TOPICS, jnp.int32)
    counts = example.counted(documents, words, topics)
    moves = [("by_document[*]", "by_word[*]", "by_topic")]
    state, sites = incrax.incremental(example.log_density).sites(*counts, moves=moves)
    carry = state, topics
    for key in jax.random.split(jax.random.key(2), 15):
        carry = example.sweep(sites, carry, documents, words, key)
    found = np.asarray(example.counted(documents, words, carry[1])[0])[:60]
    order = np.lexsort((-found.max(axis=1), found.argmax(axis=1)))
    below = np.zeros(len(order))
    colours = colormaps["Set2"](range(8))
    for k in range(example.NUM_TOPICS):
        axes.bar(np.arange(60), found[order, k], 1.0, below, color=colours[k])
        below = below + found[order, k]
    axes.set(xlabel="document", ylabel="words of each topic", ylim=(0, example.LENGTH))


def _draw_tree(axes: Any, tree: Any, length_of: Callable[..., float], is_marked: Any) -> None:
    """A tree from left to right: branches by their lengths, marked ones in another colour."""
    heights = iter(range(10**6))

    def draw(node: Any, x: float) -> float:
        inner = isinstance(node, tuple)
        places = [draw(c, x + length_of(c)) for c in node] if inner else [next(heights)]
        y = float(np.mean(places))
        for child, place in zip(node if inner else (), places, strict=False):
            style = {"color": SECOND if is_marked(child) else FIRST, "linewidth": 1.0}
            axes.plot([x, x, x + length_of(child)], [y, place, place], **style)
        return y

    draw(tree, 0.0)
    axes.set(yticks=[], xlabel="substitutions per site")


def _branches(tree: Any) -> dict[int, int]:
    """The number of the branch above each node, by the node's identity."""
    found, nodes = [], [tree]
    while nodes:
        below = [child for node in nodes if isinstance(node, tuple) for child in node]
        nodes = sorted(below, key=lambda node: not isinstance(node, tuple))
        found += nodes
    return {id(node): k for k, node in enumerate(found)}


def phylogeny(example: ModuleType, axes: Any) -> None:
    rng = np.random.default_rng(0)
    tree = example.random_tree(40, rng)
    lengths = rng.exponential(0.1, 78) + 0.005
    number = _branches(tree)

    lowest = example.levels_of(tree)[-1][1][0]
    has = lambda node: any(map(has, node)) if isinstance(node, tuple) else node == lowest
    _draw_tree(axes, tree, lambda node: lengths[number[id(node)]], has)


def flowjax_background(example: ModuleType, axes: Any) -> None:
    x = np.asarray(example.X)
    grid = np.stack(np.meshgrid(np.linspace(-3, 3, 80), np.linspace(-2, 4, 80)), -1)
    points = jnp.asarray(grid.reshape(-1, 2))
    density = example.fitted_flow().log_prob(points, jnp.full((len(points), 1), 0.2))
    axes.plot(*x.T, ",", color=GREY)
    levels = np.exp(np.asarray(density)).reshape(80, 80)
    axes.contour(*np.moveaxis(grid, -1, 0), levels, 6, colors=FIRST, linewidths=0.8)
    around = np.linspace(0, 2 * np.pi, 60)
    axes.plot(0.7 + 0.6 * np.cos(around), 0.7 + 0.6 * np.sin(around), color=SECOND)
    axes.set(xlabel="first", ylabel="second", xlim=(-3, 3), ylim=(-2, 4))


def phylogeny_brca1(example: ModuleType, axes: Any) -> None:
    log_density = example.log_density_of(example.LEVELS)
    lost = lambda p, *data: -log_density(p, *data)
    lengths = np.exp(fit.minimize(lost, example.START, *example.DATA).params["length"])
    tree = example.nested(example.TREE)
    number = _branches(tree)
    has = lambda node: any(map(has, node)) if isinstance(node, tuple) else node == "Human"
    _draw_tree(axes, tree, lambda node: lengths[number[id(node)]], has)


PICTURES: dict[str, Picture] = {
    draw.__name__: draw
    for draw in (
        mixture_fit,
        delay_mixture,
        profile_scan,
        amplitude_fit,
        weather_cycles,
        radon,
        ising,
        lennard_jones,
        lda,
        phylogeny,
        flowjax_background,
        phylogeny_brca1,
    )
}


def load(name: str) -> ModuleType:
    """The module of an example or an analysis."""
    folders = [ROOT / "examples", ROOT / "examples" / "analyses"]
    (path,) = (folder / f"{name}.py" for folder in folders if (folder / f"{name}.py").exists())
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(name: str) -> None:
    """Draw one picture."""
    figure = Figure(figsize=(4.0, 2.6), dpi=100, layout="constrained")
    PICTURES[name](load(name), figure.add_subplot())
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    figure.savefig(path, metadata={"Software": None})
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """All pictures that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="which ones; all if none")
    jax.config.update("jax_enable_x64", True)
    for name in parser.parse_args().names or PICTURES:
        try:
            save(name)
        except SystemExit:  # its libraries are not installed
            continue


if __name__ == "__main__":
    main()
