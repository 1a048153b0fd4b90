"""`incrax cache`: what later processes start from."""

from __future__ import annotations

import argparse

from rich.console import Console

import incrax

TEXT = "what was learned of functions and of this machine, for later processes: list it, clear it"


class _Console(Console):
    """A console that leaves it to the command line what to do where nobody reads on."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax cache`."""
    parser.add_argument("--clear", action="store_true", help="delete all of it")


def run(options: argparse.Namespace) -> int:
    """List the files; before that delete them, if asked for."""
    _Console(soft_wrap=True).print(incrax.cache_folder(clear=options.clear))
    return 0
