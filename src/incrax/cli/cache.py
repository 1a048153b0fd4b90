"""`incrax cache`: what later processes start from."""

from __future__ import annotations

import argparse

import incrax
from incrax.cli.usage import add_json, show

TEXT = "what was learned of functions and of this machine, for later processes: list it, clear it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax cache`."""
    parser.add_argument("--clear", action="store_true", help="delete all of it")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """List the files; before that delete them, if asked for."""
    show(incrax.cache_folder(clear=options.clear), options)
    return 0
