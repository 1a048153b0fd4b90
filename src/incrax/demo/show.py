"""Tables and a plot of what the driver found."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from incrax.demo import model
from incrax.demo.data import HIGH, LOW
from incrax.demo.driver import Result

FIT_RTOL = 1e-9
"""Largest relative difference of the minima that counts as the same fit."""


def print_parameters(console: Console, result: Result) -> None:
    """The fitted parameters with their errors."""
    table = Table(
        title="fitted parameters (yields in flights, others in minutes)", title_justify="left"
    )
    for name in ("parameter", "value", "error", "chain mean", "chain std"):
        table.add_column(name, justify="left" if name == "parameter" else "right")
    for k, name in enumerate(model.NAMES):
        column = result.chain[len(result.chain) // 5 :, k]
        cells = (result.theta[k], result.errors[k], column.mean(), column.std())
        table.add_row(
            name, *[f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:.0f}" for cell in cells]
        )
    console.print(table)


def print_times(console: Console, ours: Result, plain: Result | None) -> None:
    """Calls and seconds of each stage, side by side."""
    table = Table(title="time, compilation included", title_justify="left")
    for name in ("stage", "values", "gradients", "Hessians", "incrax s", "jax.jit s", "ratio"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for k, stage in enumerate(ours.stages):
        other = None if plain is None else plain.stages[k].seconds
        calls = (str(stage.values), str(stage.gradients), str(stage.hessians))
        table.add_row(stage.name, *calls, f"{stage.seconds:.1f}", *_ratio(stage.seconds, other))
    total = sum(stage.seconds for stage in ours.stages)
    other = None if plain is None else sum(stage.seconds for stage in plain.stages)
    table.add_row("all", "", "", "", f"{total:.1f}", *_ratio(total, other), style="bold")
    console.print(table)


def _ratio(ours: float, plain: float | None) -> tuple[str, str]:
    return ("-", "-") if plain is None else (f"{plain:.1f}", f"{plain / ours:.2f}x")


def differences(ours: Result, plain: Result) -> dict[str, float]:
    """How far two results are apart.

    Minima relative; fitted values in units of their errors; profiles as differences of the
    likelihood; the number of sweeps until the chains differ by more than 1e-6 errors (all sweeps if
    they never do).
    """
    apart = np.abs(ours.chain - plain.chain) > 1e-6 * plain.errors
    sweeps = np.flatnonzero(apart.any(axis=1))
    profiles = [
        np.abs(ours.profiles[name][1] - plain.profiles[name][1]).max() for name in plain.profiles
    ]
    return {
        "minimum": abs(ours.minimum - plain.minimum) / abs(plain.minimum),
        "parameters": float(np.max(np.abs(ours.theta - plain.theta) / plain.errors)),
        "profiles": float(max(profiles)),
        "equal sweeps": float(sweeps[0] if len(sweeps) else len(ours.chain)),
    }


def print_differences(console: Console, ours: Result, plain: Result) -> bool:
    """Say whether both ways agree; True if they do."""
    found = differences(ours, plain)
    agrees = found["minimum"] < FIT_RTOL and found["parameters"] < 0.01 and found["profiles"] < 0.01
    console.print(
        f"same results as jax.jit: {'yes' if agrees else 'NO'} (minimum {found['minimum']:.1e} "
        "relative, parameters "
        f"{found['parameters']:.1e} errors, profiles {found['profiles']:.1e}; chains equal for "
        f"{found['equal sweeps']:.0f} of {len(ours.chain)} sweeps)"
    )
    if found["equal sweeps"] < len(ours.chain):
        console.print(
            "  (an accept decision fell on another side by the last bits; both chains are right)"
        )
    return agrees


def fit_quality(result: Result, x: np.ndarray) -> tuple[float, int]:
    """Pearson's chi-square over one-minute bins with more than 5 expected flights, and the degrees
    of freedom.
    """
    _, counts, expected = _histogram(result, x)
    used = expected > 5
    chi_square = float((((counts - expected) ** 2) / expected)[used].sum())
    return chi_square, int(used.sum()) - len(model.NAMES)


def _histogram(result: Result, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    minutes = np.arange(LOW + 0.5, HIGH)
    counts, _ = np.histogram(x, np.arange(LOW, HIGH + 1))
    parts = model.densities(jnp.asarray(result.theta), jnp.asarray(minutes))
    return (
        minutes,
        counts,
        np.sum([result.theta[k] * np.asarray(part) for k, part in enumerate(parts)], axis=0),
    )


def plot(result: Result, x: np.ndarray, path: Path) -> None:
    """Data, fit and components on linear and logarithmic scales, the pulls, and the two profiles,
    as a PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    minutes, counts, expected = _histogram(result, x)
    parts = [
        np.asarray(p) for p in model.densities(jnp.asarray(result.theta), jnp.asarray(minutes))
    ]
    figure, axes = plt.subplots(2, 2, figsize=(13, 8.5), constrained_layout=True)
    for axis, is_log in ((axes[0, 0], False), (axes[0, 1], True)):
        axis.plot(minutes, counts, ".", ms=3, color="black", label="flights")
        axis.plot(minutes, expected, color="C3", lw=1.8, label="fit")
        for k, part in enumerate(parts):
            axis.plot(minutes, result.theta[k] * part, "--", lw=1.2, label=model.COMPONENTS[k])
        axis.set(xlabel="arrival delay [minutes]", ylabel="flights per minute")
        axis.set_xlim(*((LOW, HIGH) if is_log else (LOW, 150)))
        if is_log:
            axis.set_yscale("log")
            axis.set_ylim(0.3, counts.max() * 2)
        axis.legend(frameon=False)
    pulls = (counts - expected) / np.sqrt(np.maximum(expected, 1e-9))
    axes[1, 0].plot(minutes[expected > 5], pulls[expected > 5], ".", ms=3, color="black")
    axes[1, 0].axhline(0, color="C3", lw=1)
    axes[1, 0].set(
        xlabel="arrival delay [minutes]", ylabel="(flights - fit) / sqrt(fit)", ylim=(-5, 5)
    )
    for name, (grid, minima) in result.profiles.items():
        index = model.NAMES.index(name)
        pull = (grid - result.theta[index]) / result.errors[index]
        axes[1, 1].plot(pull, minima - result.minimum, "o-", ms=4, label=f"{name}, profiled")
    line = np.linspace(-2, 2, 81)
    axes[1, 1].plot(line, 0.5 * line**2, color="grey", lw=1, label="parabola of the errors")
    axes[1, 1].set(
        xlabel="distance from the fit [errors]", ylabel="negative log-likelihood - minimum"
    )
    axes[1, 1].legend(frameon=False)
    figure.suptitle(f"Arrival delays of {len(x):,} flights from New York, 2013")
    figure.savefig(path, dpi=130)
    plt.close(figure)
