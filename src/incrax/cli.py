"""The command line: `incrax demo`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import incrax
from incrax.demo import main as demo


class _Parser(argparse.ArgumentParser):
    """Errors are one line on the error stream and exit code 2."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        raise SystemExit(2)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(prog="incrax", description="Re-evaluate JAX functions and pay only for what changed.")
    parser.add_argument("--version", action="version", version=f"incrax {incrax.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    text = "fit, profile and sample a mixture on real flight delays, side by side with jax.jit"
    demo.add_arguments(commands.add_parser("demo", help=text, description=text))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        demo.check_arguments(options)
        return demo.run(options)
    except demo.UsageError as error:
        sys.stderr.write(f"incrax demo: error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("incrax demo: interrupted\n")
        return 130
