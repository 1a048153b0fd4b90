"""`incrax doctor`: what incrax runs on, and what is known not to work together."""

from __future__ import annotations

import argparse

import incrax
from incrax.cli.usage import add_json, show

TEXT = (
    "versions, devices, settings, calibration figures and known incompatibilities; exit code 1 if "
    "something is wrong"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax doctor`."""
    parser.add_argument("--no-measure", action="store_true", help="take no figures of this machine")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the environment; the exit code is 1 if something in it is wrong."""
    found = incrax.environment(measure=not options.no_measure)
    show(found, options)
    return 0 if found.is_sound else 1
