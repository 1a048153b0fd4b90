"""Tables and a picture of what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

QUANTILES = {"from": 0.05, "median": 0.5, "to": 0.95}


def rank(kind: str, sampled: Sampled, flights: Flights, airlines: dict[str, str]) -> Any:
    """All of a kind, the most punctual first: a frame of pandas with a row for each name, its
    flights, and what comes with it, minutes: middle and ends of the 90 % interval.
    """
    import pandas  # here, as the command line imports this module before it knows the command

    interval = np.quantile(sampled.effects(kind), [*QUANTILES.values()], axis=0)
    columns = {"flights": flights.counts(kind), **dict(zip(QUANTILES, interval, strict=True))}
    names = [airlines.get(str(code), str(code)) for code in flights.names[kind]]
    return pandas.DataFrame(columns, names).sort_values("median", kind="stable")


def ends(ranked: Any, num: int) -> Any:
    """The most punctual and the latest: twice `num`, or all if there are fewer."""
    place = np.arange(len(ranked))
    return ranked[(place < num) | (place >= len(ranked) - num)]


def print_effects(console: Console, ranked: dict[str, Any]) -> None:
    """The most punctual and the latest of each kind."""
    rows: list[tuple[str, ...]] = []
    for kind, found in ranked.items():
        rows.append((f"{kind}s: {len(found):,}", "", "", "", ""))
        for name, count, *limits in ends(found, NUM_LISTED).itertuples():
            rows.append((f"  {name}", f"{count:,}", *[f"{x:+.1f}" for x in limits]))
    title = "minutes that come with it, in relation to the mean of its kind, 90 % intervals"
    console.print(Table(title, ("", "flights", *QUANTILES), rows))


def print_chain(console: Console, mode: Mode, sampled: Sampled) -> None:
    """The fit, the scales, and how many steps were accepted."""
    chain = sampled.chain
    tree = chain.tree()
    logs = {"noise": tree["noise"], **{f"spread of {k}s": tree["spread"][k] for k in KINDS}}
    used = {name: np.exp(log[sampled.used]) for name, log in logs.items()}
    accepted = np.mean([chain.acceptance[f"p['{kind}'][*]"] for kind in KINDS])
    console.print(
        f"mode: log-density {mode.log_density:.1f}, {mode.num_evaluations} gradients; chain: "
        f"{len(chain.samples)} sweeps of {sampled.num_steps:,} steps, {accepted:.0%} accepted"
    )
    scales = [f"{name} {x.mean():.2f} +- {x.std():.2f}" for name, x in used.items()]
    console.print(f"minutes: {', '.join(scales)}")


def print_times(console: Console, mode: Mode, sampled: Sampled, whole: WholeSteps | None) -> None:
    """Seconds of both ways; what was not run to its end says so."""
    console.print(f"fit by jax.jit, all parameters at once: {mode.seconds:.1f} s")
    console.print(
        f"chain by incrax: {sampled.seconds:.1f} s with its compilation; so a sweep "
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
    ranked: dict[str, Any], sampled: Sampled, whole: WholeSteps | None, title: str, path: Path
) -> None:
    """The latest and the most punctual with their intervals, traces, and seconds a sweep, as a
    PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 9), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(2, 1))
    for column, (kind, found) in enumerate(ranked.items()):
        _draw_ends(figure.add_subplot(grid[0, column]), kind, found)
    _draw_traces(figure.add_subplot(grid[1, :2]), sampled)
    _draw_times(figure.add_subplot(grid[1, 2]), sampled, whole)
    figure.suptitle(title)
    figure.savefig(path, format="png", dpi=110)


def _draw_ends(axis: Any, kind: str, found: Any) -> None:
    drawn = ends(found, NUM_DRAWN)
    places = np.arange(len(drawn))
    colors = np.where(drawn["median"] > 0, "C3", "C0")
    axis.hlines(places, drawn["from"], drawn["to"], colors=colors)
    axis.scatter(drawn["median"], places, s=16, c=colors)
    labels = [f"{name} ({count:,})" for name, count in drawn["flights"].items()]
    axis.set_yticks(places, labels, fontsize=8)
    axis.axvline(0, color="grey", lw=1)
    axis.set(
        title=f"{len(found):,} {kind}s (flights)",
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
    seconds = {"incrax, with its\ncompilation": sampled.sweep_s}
    if whole is not None:
        seconds[f"jax.jit, from\n{whole.num_steps:,} steps"] = whole.step_s * sampled.num_steps
    drawn = axis.barh([*seconds], [*seconds.values()], color=["C0", "C3"][: len(seconds)])
    axis.bar_label(drawn, [f" {x:.2g} s" for x in seconds.values()])
    axis.set(xscale="log", xlim=(min(seconds.values()) / 3, max(seconds.values()) * 10))
    axis.set(xlabel=f"seconds for a sweep of {sampled.num_steps:,} steps")
