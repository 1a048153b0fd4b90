"""The command line: `incrax demo`, `incrax cache`.

Exit codes: 0 done; 1 something is wrong with what was looked at, or it failed; 2 the options cannot
work; 130 interrupted; 141 nobody reads on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import incrax
from incrax import _interrupts
from incrax.cli import cache, demo
from incrax.cli.usage import UsageError


class _Parser(argparse.ArgumentParser):
    """Errors are one line on the error stream and exit code 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        raise SystemExit(2)


COMMANDS = {"demo": demo, "cache": cache}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="incrax", description="Re-evaluate JAX functions and pay only for what changed."
    )
    parser.add_argument("--version", action="version", version=f"incrax {incrax.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(
            commands.add_parser(name, help=command.TEXT, description=command.TEXT)
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = build_parser().parse_args(arguments)
    name = f"incrax {options.command}"
    try:
        with _interrupts.raised():
            return COMMANDS[options.command].run(options)
    except (UsageError, incrax.IncraxError) as error:
        sys.stderr.write(f"{name}: error: {' '.join(str(error).split())}\n")
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:
        # What is flushed at exit has a reader.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        _interrupts.end()
        return _interrupts.EXIT_CODE
