"""`incrax cost`: FLOPs and bytes of a function, forward and backward."""

from __future__ import annotations

import argparse

import incrax
from incrax.cli import loading
from incrax.cli.usage import UsageError, print_json

TEXT = "FLOPs and bytes of a function: forward, backward, Hessian-vector product"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax cost`."""
    loading.add_arguments(parser)
    parser.add_argument(
        "--changing",
        action="append",
        default=[],
        metavar="INPUT",
        help="count what runs again when this changes too",
    )
    parser.add_argument(
        "--wrt",
        action="append",
        default=[],
        metavar="INPUT",
        help="derivatives by this input (default: the first)",
    )
    parser.add_argument("--measure", action="store_true", help="run it, and add seconds and memory")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print what a call costs."""
    function, arguments = loading.function_and_arguments(options)
    changing = options.changing or None
    wrt = tuple(options.wrt) or None
    try:
        found = incrax.cost(
            function, *arguments, changing=changing, wrt=wrt, measure=options.measure
        )
    except (
        incrax.errors.UnknownInputError,
        incrax.errors.CostError,
        incrax.errors.SelectionError,
    ) as error:
        raise UsageError(" ".join(str(error).split())) from None
    if options.json:
        print_json(found.as_dict())
    else:
        print(found)
    return 0
