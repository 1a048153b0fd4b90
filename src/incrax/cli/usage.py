"""Options that cannot work, and files that cannot be written."""

from __future__ import annotations

from pathlib import Path


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
