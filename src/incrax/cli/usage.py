"""Options that cannot work, and files that cannot be written."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


class UsageError(Exception):
    """A bad option; the message is one line."""


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
    """Refuse a path that cannot be written; what is in the file stays.

    Raises:
        UsageError: it is a folder, or in none, or nobody may write there.
    """
    given = path
    path = given.resolve()
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{option} {given} is a folder; give the name of a file")
    if not folder.is_dir():
        raise UsageError(f"{option} {given} cannot be written: there is no folder {given.parent}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {given} cannot be written: permission denied")
    was_there = path.exists()
    try:
        with path.open("ab"):
            pass
        if not was_there:
            path.unlink()
    except OSError as error:
        raise UsageError(f"{option} {given} cannot be written: {error.strerror}") from None


def print_json(found: dict[str, Any]) -> None:
    """One JSON object on the standard output."""
    json.dump(found, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")
