"""`incrax cost`: FLOPs and bytes of a function, forward and backward."""

from __future__ import annotations

import argparse

import incrax
from incrax.cli import loading
from incrax.cli.usage import add_json, show

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
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print what a call costs."""
    function, arguments = loading.function_and_arguments(options)
    found = incrax.cost(
        function,
        *arguments,
        changing=options.changing or None,
        wrt=tuple(options.wrt) or None,
        measure=options.measure,
    )
    show(found, options)
    return 0
