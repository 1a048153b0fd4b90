"""Options that cannot work, and files that cannot be written."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console


class UsageError(Exception):
    """A bad option; the message is one line."""


class Shown(Protocol):
    """What prints, for people and for programs."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        ...


def check_output(path: Path, kind: str, *suffixes: str) -> None:
    """Refuse an `--output` that is no such file, or cannot be written.

    Raises:
        UsageError: with the first of the suffixes that its name may have.
    """
    if path.suffix.lower() not in suffixes:
        raise UsageError(
            f"--output {path} is no {kind} file; give a name that ends in {suffixes[0]}"
        )
    check_writable("--output", path)


def check_writable(option: str, path: Path) -> None:
    """Refuse a path that cannot be written, in the system's words; what is in the file stays.

    Raises:
        UsageError: it is a folder, or in none, or nobody may write there.
    """
    target = path.resolve()
    was_there = target.exists()
    try:
        with target.open("ab"):
            pass
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from None
    if not was_there:
        target.unlink()


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option that `show` looks at."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def show(found: Shown, options: argparse.Namespace) -> None:
    """Print a report, with colours on a terminal; or one JSON object."""
    if options.json:
        json.dump(found.as_dict(), sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")
    elif sys.stdout.isatty():
        Console().print(found)
    else:
        print(found)
