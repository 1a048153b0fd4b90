"""Options that cannot work, and files that cannot be written."""

from __future__ import annotations

from pathlib import Path


class UsageError(Exception):
    """A bad option; the message is one line."""


def check_picture(path: Path) -> None:
    """Refuse an `--output` that is no PNG file, or cannot be written, in the system's words; what is
    in the file stays.

    Raises:
        UsageError: the name ends otherwise, is a folder's or in none, or nobody may write there.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"--output {path} is no PNG file; give a name that ends in .png")
    target = path.resolve()
    was_there = target.exists()
    try:
        with target.open("ab"):
            pass
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {error.strerror}") from None
    if not was_there:
        target.unlink()
