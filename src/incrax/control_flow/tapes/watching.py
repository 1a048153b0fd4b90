"""What a function does while it is recorded beyond computing: code that it reaches, clocks, files,
random numbers.

In: a run. Out: what it saw. It must not know about tracers.
"""

from __future__ import annotations

import datetime
import gc
import os
import pickle
import random
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from incrax import _jax
from incrax._locations import is_logged, is_of_user, user_frame
from incrax.control_flow.tapes.captured import Captured, Code, contents

_FILES = ("stat", "lstat", "listdir", "scandir", "access", "readlink", "getcwd", "open")
_IMPURE = {
    **{id(getattr(os, name)): f"the file system, by `os.{name}`" for name in _FILES},
    id(open): "a file, by `open`",
    id(input): "the terminal, by `input`",
    id(os.urandom): "the randomness of the system",
}
_SEED = random.seed.__code__
_STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_SHARED: tuple[tuple[str, Any], ...] = (
    ("random", getattr(random.getstate, "__self__", None)),
    ("numpy.random", getattr(np.random.get_state, "__self__", None)),
)
"""The generators behind functions of modules."""


class RunLog:
    """What a run did."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.impure: list[tuple[str, str]] = []
        """Clocks, randomness, files: what, and where."""

    def note(self, frame: Any, event: str, arg: Any) -> None:
        """Note a function that begins to run, or a built-in one that a frame calls."""
        code = frame.f_code
        source = None
        if event == "c_call":
            source = _source_of(arg)
        elif event == "call" and code is _SEED and frame.f_locals.get("a") is None:
            source = "the randomness of the system"
        elif event == "call" and code not in self.codes:
            if is_of_user(frame) and not _is_told_of_events(frame):
                self.codes[code] = frame.f_globals
        if source is not None and _is_for_user(frame):
            self.impure.append((source, _line(frame)))

    def new_roots(self, captured: Captured) -> list[Any]:
        """Functions, or bare code, of the user that ran and that the walk over captured values had
        not found.
        """
        codes = [
            code for code in self.codes if code not in captured.codes and code.co_name != "<module>"
        ]
        if not codes:
            return []
        functions = [
            f
            for f in gc.get_referrers(*codes)
            if isinstance(f, types.FunctionType) and f.__code__ in codes and not _is_of_this_run(f)
        ]
        found = {f.__code__ for f in functions}
        return [*functions, *(Code(code, self.codes[code]) for code in codes if code not in found)]


def _is_of_this_run(function: types.FunctionType) -> bool:
    """Whether a function was made by the run that has just ended: it holds traced values."""
    return any(isinstance(contents(cell), _jax.Tracer) for cell in function.__closure__ or ())


@contextmanager
def watched(captured: Captured, log: RunLog) -> Iterator[None]:
    """Note what the user's code does inside the block, in this thread."""
    generators = [*_SHARED, *captured.generators]
    before = [pickle.dumps(generator) for _, generator in generators]
    previous: Any = sys.getprofile()
    forward: Any = previous if callable(previous) else None

    def note(frame: Any, event: str, arg: Any) -> None:
        if forward is not None:
            forward(frame, event, arg)
        log.note(frame, event, arg)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(forward)
        if previous is not forward and hasattr(previous, "enable"):
            # `cProfile` before Python 3.12 cannot be called
            previous.enable()  # pyright: ignore[reportFunctionMemberAccess]
    for (name, generator), state in zip(generators, before, strict=True):
        if pickle.dumps(generator) != state:
            log.impure.append((f"random numbers drawn from `{name}`", "while it ran"))


def _source_of(function: Any) -> str | None:
    """What a built-in function reads that is no argument; None for most."""
    name = getattr(function, "__name__", "")
    if getattr(function, "__module__", "") == "time" and name not in ("sleep", "mktime"):
        return f"the clock `time.{name}`"
    owner = getattr(function, "__self__", None)
    if name in ("now", "utcnow", "today") and isinstance(owner, type):
        if issubclass(owner, datetime.date):
            return f"the clock `{owner.__name__}.{name}`"
    return _IMPURE.get(id(function))


def _is_told_of_events(frame: Any) -> bool:
    """Whether a listener of `jax.monitoring` runs: it is no part of the function."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "jax._src.monitoring":
            return True
        frame = frame.f_back
    return False


def _is_for_user(frame: Any) -> bool:
    """Whether the user's code asked, itself or through Python's library other than logging."""
    if is_logged(frame, user_frame(frame)):
        return False
    while frame is not None and _is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and is_of_user(frame)


def _is_standard(filename: str) -> bool:
    """Whether a file is of Python's library, without what imports modules."""
    if filename.startswith("<frozen "):
        return "import" not in filename
    return os.path.realpath(filename).startswith(_STANDARD) and "site-packages" not in filename


def _line(frame: Any) -> str:
    frame = user_frame(frame)
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
