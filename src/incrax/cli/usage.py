"""Options that cannot work, and files that cannot be written."""

from __future__ import annotations

from pathlib import Path


class UsageError(Exception):
    """A bad option; the message is one line."""


def check_picture(path: Path) -> None:
    """Refuse an `--output` that is no PNG file, or cannot be written.

    Raises:
        UsageError: as it says.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--output {path} is no PNG file; give a name that ends in .png")
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
