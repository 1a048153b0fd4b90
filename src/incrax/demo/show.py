"""Tables and a picture of what was found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from incrax._table import Table
from incrax.demo.data import KINDS, Flights
from incrax.demo.driver import Mode, Sampled, WholeSteps

VALUE_RTOL = 1e-9
"""Largest relative difference of log-densities that counts as the same."""

NUM_LISTED = 3
NUM_DRAWN = 8
"""The latest, and as many of the most punctual, in the table and in the picture."""

QUANTILES = (0.05, 0.5, 0.95)


class Ranked(NamedTuple):
    """Planes, airports or airlines, the most punctual first: names, numbers of flights, and what
    comes with each, minutes: lower end, middle and upper end of the 90 % interval, shape (3, n).
    """

    names: list[str]
    counts: np.ndarray
    interval: np.ndarray

    def rows(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Each name with its flights and interval."""
        return zip(self.names, self.counts, self.interval.T, strict=True)

    def ends(self, num: int) -> Ranked:
        """The most punctual and the latest: twice `num`, or all if there are fewer."""
        size = len(self.names)
        chosen = [k for k in range(size) if k < num or k >= size - num]
        names = [self.names[k] for k in chosen]
        return Ranked(names, self.counts[chosen], self.interval[:, chosen])


def rank(kind: str, sampled: Sampled, flights: Flights, airlines: dict[str, str]) -> Ranked:
    """All of a kind, by the median of what comes with them."""
    interval = np.quantile(sampled.effects(kind), QUANTILES, axis=0)
    order = np.argsort(interval[1], kind="stable")
    codes = [str(flights.names[kind][k]) for k in order]
    names = [airlines.get(code, code) if kind == "airline" else code for code in codes]
    return Ranked(names, flights.counts(kind)[order], interval[:, order])


def print_effects(console: Console, ranked: dict[str, Ranked]) -> None:
    """The most punctual and the latest of each kind."""
    rows: list[tuple[str, ...]] = []
    for kind, found in ranked.items():
        rows.append((f"{kind}s: {len(found.names):,}", "", "", "", ""))
        for name, count, limits in found.ends(NUM_LISTED).rows():
            rows.append((f"  {name}", f"{count:,}", *[f"{x:+.1f}" for x in limits]))
    title = "minutes that come with it, in relation to the mean of its kind, 90 % intervals"
    console.print(Table(title, ("", "flights", "from", "median", "to"), rows))


def print_chain(console: Console, mode: Mode, sampled: Sampled) -> None:
    """The fit, the scales, and how many steps were accepted."""
    chain = sampled.chain
    tree = chain.tree()
    logs = {"noise": tree["noise"], **{f"spread of {k}s": tree["spread"][k] for k in KINDS}}
    scales = []
    for name, log in logs.items():
        used = np.exp(log[sampled.used])
        scales.append(f"{name} {used.mean():.2f} +- {used.std():.2f}")
    console.print(
        f"mode: log-density {mode.log_density:.1f}, {mode.num_evaluations} gradients; chain: "
        f"{len(chain.samples)} sweeps of {sampled.num_steps:,} steps, "
        f"{_share(chain.acceptance):.0%} accepted"
    )
    console.print(f"minutes: {', '.join(scales)}")


def _share(acceptance: Any) -> float:
    return float(np.mean([acceptance[f"p['{kind}'][*]"] for kind in KINDS]))


def print_times(console: Console, mode: Mode, sampled: Sampled, whole: WholeSteps | None) -> None:
    """Seconds of both ways; what was not run to its end says so."""
    console.print(f"fit by jax.jit, all parameters at once: {mode.seconds:.1f} s")
    console.print(
        f"chain by incrax: {sampled.seconds:.1f} s with its compilation, a sweep "
        f"{sampled.sweep_s:.3f} s, a step {1e6 * sampled.sweep_s / sampled.num_steps:.0f} us"
    )
    if whole is None:
        return
    sweep_s = whole.step_s * sampled.num_steps
    total_s = sweep_s * len(sampled.chain.samples)
    console.print(
        f"the same by jax.jit, the whole density in each step: {whole.num_steps:,} steps measured "
        f"in {whole.seconds:.1f} s, a step {1e3 * whole.step_s:.1f} ms; extrapolated: a sweep "
        f"{sweep_s:.0f} s, the chain {total_s / 60:.0f} minutes, {sweep_s / sampled.sweep_s:.0f} "
        "times incrax"
    )


def print_difference(console: Console, whole: WholeSteps) -> bool:
    """Say whether both ways give the same log-density; True if they do."""
    agrees = whole.difference < VALUE_RTOL
    console.print(
        f"same log-density as jax.jit at samples of the chain: {'yes' if agrees else 'NO'} "
        f"({whole.difference:.1e} relative)"
    )
    return agrees


# --- the picture ----------------------------------------------------------------------------------


def plot(
    ranked: dict[str, Ranked], sampled: Sampled, whole: WholeSteps | None, title: str, path: Path
) -> None:
    """The latest and the most punctual with their intervals, traces, and seconds a sweep, as a
    PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(14, 9), constrained_layout=True)
    grid = figure.add_gridspec(2, 3, height_ratios=(2, 1))
    for column, (kind, found) in enumerate(ranked.items()):
        _draw_ends(figure.add_subplot(grid[0, column]), kind, found)
    _draw_traces(figure.add_subplot(grid[1, :2]), sampled)
    _draw_times(figure.add_subplot(grid[1, 2]), sampled, whole)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_ends(axis: Any, kind: str, found: Ranked) -> None:
    ends = found.ends(NUM_DRAWN)
    places = np.arange(len(ends.names))
    low, middle, high = ends.interval
    colors = np.where(middle > 0, "C3", "C0")
    axis.hlines(places, low, high, colors=colors)
    axis.scatter(middle, places, s=16, c=colors)
    labels = [f"{name} ({count:,})" for name, count, _ in ends.rows()]
    axis.set_yticks(places, labels, fontsize=8)
    axis.axvline(0, color="grey", lw=1)
    axis.set(
        title=f"{len(found.names):,} {kind}s (flights)",
        xlabel="minutes that come with it, relative to the mean",
    )


def _draw_traces(axis: Any, sampled: Sampled) -> None:
    """Of the spreads, which all effects of a kind move."""
    spreads = sampled.chain.tree()["spread"]
    for kind in KINDS:
        axis.plot(np.exp(spreads[kind]), lw=1.2, label=f"{kind}s")
    axis.axvspan(0, sampled.used.start, color="grey", alpha=0.15, lw=0)
    axis.set(xlabel="sweep (grey: left out)", ylabel="spread of effects [minutes]", ylim=(0, None))
    axis.legend(frameon=False, ncols=3)


def _draw_times(axis: Any, sampled: Sampled, whole: WholeSteps | None) -> None:
    bars = [("incrax, measured", sampled.sweep_s, "C0")]
    if whole is not None:
        sweep_s = whole.step_s * sampled.num_steps
        bars.append((f"jax.jit, from\n{whole.num_steps:,} steps", sweep_s, "C3"))
    names, seconds, colors = zip(*bars, strict=True)
    drawn = axis.barh(names, seconds, color=colors)
    axis.bar_label(drawn, [f" {x:.2g} s" for x in seconds])
    axis.set_xscale("log")
    axis.set_xlim(min(seconds) / 3, max(seconds) * 10)
    axis.set(xlabel=f"seconds for a sweep of {sampled.num_steps:,} steps")
