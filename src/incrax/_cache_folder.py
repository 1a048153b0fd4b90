"""Small files in the user's cache folder: what a later process of the same kind may start from.

Plain JSON, a file for each key, replaced in one step: nobody reads half a file, and of processes
that write at once the last one wins. What can't be read or written is as if it were not there, with
a line in the log. It says what is fast, never what is right.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib
from jax.experimental.compilation_cache import compilation_cache

from incrax._version import __version__

logger = logging.getLogger("incrax")

MAX_FILES = 1000
"""Files kept; those written least recently make room."""

MAX_BYTES = 2**20
"""Of a file that is read."""

MAX_AGE_S = 30 * 86400.0
"""Older files are ignored: the machine may have become another."""

PROGRAMS = "programs"
"""The folder beside the files where JAX keeps compiled programs, where a user wants that."""

LEAST_COMPILE_S = 0.02
"""Seconds that a program took to compile from which on JAX keeps it."""

UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a file leads to whose data mean nothing."""

_SUFFIX = ".json"

_OURS = re.compile(r"\.?(function|machine)-[0-9a-f]{32}.*\.json")
"""Names of our files, unfinished ones included: a user's folder may have others, which stay."""


def folder() -> Path | None:
    """Where the files are: `INCRAX_CACHE_DIR`, or the platform's folder for caches; None where
    `INCRAX_REMEMBER=0` says that nothing is to be read or written, or the user has no home.
    """
    if os.environ.get("INCRAX_REMEMBER") == "0":
        return None
    try:
        return _folder()
    except RuntimeError:
        return None


def _folder() -> Path:
    given = os.environ.get("INCRAX_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path("~/AppData/Local").expanduser())
        return Path(base) / "incrax" / "Cache"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/incrax").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "incrax"


def keep_programs(path: str | os.PathLike[str] | None = None) -> str | None:
    """Let JAX keep compiled programs on disk, so that the next process compiles none of them.

    This is JAX's persistent compilation cache, for all programs of this process, with a folder of
    its own for incrax' users. Where JAX has a cache already, it stays as it is. The environment
    variable `INCRAX_REMEMBER=programs` does the same when incrax is imported.

    Args:
        path: the folder; `programs` in `incrax.cache_folder().path` by default.

    Returns:
        The folder that JAX uses; None where nothing is to be kept (`INCRAX_REMEMBER=0`), or the
        user has no home.

    Cost: some 10 to 100 kB of disk a program; `incrax cache` lists them, `incrax cache --clear`
        deletes them.

    Example:
        >>> import incrax
        >>> folder = incrax.keep_programs()
    """
    config: Any = jax.config
    before: str | None = config.jax_compilation_cache_dir
    ours = folder()
    if before or ours is None:
        return before
    chosen = str(Path(path).expanduser() if path else ours / PROGRAMS)
    config.update("jax_compilation_cache_dir", chosen)
    config.update("jax_persistent_cache_min_compile_time_secs", LEAST_COMPILE_S)
    config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    compilation_cache.reset_cache()  # JAX looks for a folder once, at its first program
    return chosen


def path_text() -> str | None:
    """The same for reports."""
    found = folder()
    return None if found is None else str(found)


def key_of(kind: str, parts: Iterable[object]) -> str:
    """A name for what depends on these parts, on versions and on the machine."""
    text = "\n".join(map(str, (*_machine(), kind, *parts)))
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


@functools.cache
def _machine() -> tuple[object, ...]:
    versions = __version__, jax.__version__, getattr(jaxlib, "__version__", "")
    return (
        *versions,
        *(platform.system(), platform.machine(), _processor(), os.cpu_count()),
        *(jax.default_backend(), jax.devices()[0].device_kind, jax.device_count()),
        os.environ.get("XLA_FLAGS", ""),
    )


def _processor() -> str:
    """Its model, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor()  # which may start a process


def load(key: str) -> dict[str, Any] | None:
    """What was saved under a key; None where that can't be had."""
    path = _path(key)
    if path is None:
        return None
    try:
        found = path.stat()
        if found.st_size > MAX_BYTES or time.time() - found.st_mtime > MAX_AGE_S:
            return None
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        ignore(key, error)
        return None
    return data if isinstance(data, dict) else None


def ignore(key: str, error: Exception) -> None:
    """Say that a file is of no use."""
    logger.debug("%s in the cache folder is ignored: %s", key, error)


def save(key: str, data: dict[str, Any]) -> None:
    """Write a file, as a whole or not at all."""
    path = _path(key)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{key}-", suffix=_SUFFIX, delete=False
        )
        try:
            with file:
                json.dump(data, file)
            os.replace(file.name, path)
        finally:  # an interrupt or a full disk leaves nothing
            Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        logger.debug("nothing is written to the cache folder: %s", error)


def prune() -> None:
    """Delete the oldest files where there are too many."""
    try:
        for old, _ in _latest_first()[MAX_FILES:]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("nothing is deleted from the cache folder: %s", error)


def _path(key: str) -> Path | None:
    found = folder()
    return None if found is None else found / f"{key}{_SUFFIX}"


class File(NamedTuple):
    """A file: its name, what it is about in words, its bytes, days since it was written."""

    name: str
    about: str
    num_bytes: int
    days: float


def files() -> list[File]:
    """The files, latest first."""
    found = []
    for path, status in _latest_first():
        data = load(path.name.removesuffix(_SUFFIX)) or {}
        about = str(data.get("about", "not readable, or too old"))
        days = (time.time() - status.st_mtime) / 86400.0
        found.append(File(path.name, about, status.st_size, days))
    return found


def programs() -> list[Path]:
    """The files of the programs that JAX keeps there."""
    found = folder()
    return [] if found is None else [p for p in (found / PROGRAMS).glob("*") if p.is_file()]


def clear() -> int:
    """Delete them, and programs; how many there were."""
    found = [*(path for path, _ in _latest_first()), *programs()]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def _latest_first() -> list[tuple[Path, os.stat_result]]:
    """The files that are there, with size and time, latest first."""
    found = folder()
    if found is None or not found.is_dir():
        return []
    ours = []
    for path in found.iterdir():
        if _OURS.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another process has replaced it
                ours.append((path, path.stat()))
    return sorted(ours, key=lambda item: -item[1].st_mtime)
