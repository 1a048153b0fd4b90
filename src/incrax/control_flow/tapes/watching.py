"""What a function does while it is recorded beyond computing: code that it reaches, clocks, random
numbers.

In: a run. Out: what it saw. It must not know about tracers.
"""

from __future__ import annotations

import datetime
import decimal
import gc
import os
import random
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger
from random import Random
from typing import Any

import numpy as np

from incrax import _jax
from incrax._locations import is_logged, is_of_user, user_frame
from incrax.control_flow.tapes.captured import DECIMAL, Captured, Code, ProcessState, contents

_IMPURE = {
    id(getattr(time, name)): f"the clock `time.{name}`"
    for name in (
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),
        *(
            "process_time",
            "process_time_ns",
            "localtime",
            "gmtime",
            "thread_time",
            "ctime",
            "strftime",
        ),
    )
}
_IMPURE |= {
    id(getattr(os, name)): f"the file system, by `os.{name}`"
    for name in ("stat", "lstat", "listdir", "scandir", "access", "readlink", "getcwd", "open")
}
_IMPURE |= {id(open): "a file, by `open`", id(input): "the terminal, by `input`"}
_SEED = Random.seed.__code__
_STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep

_STATE_BY_BUILT_IN: dict[int, ProcessState] = {
    id(decimal.getcontext): DECIMAL,
    id(sys.getrecursionlimit): ProcessState("the limit of recursion", sys.getrecursionlimit),
    id(threading.get_ident): ProcessState("the thread", threading.get_ident),
    id(os.getpid): ProcessState("the process", os.getpid),
}
"""By built-in functions that read it."""

_STATE_BY_CODE: dict[types.CodeType, ProcessState] = {
    np.geterr.__code__: ProcessState("the modes of `np.seterr`", np.geterr),
    os.getenv.__code__: ProcessState("os.environ", lambda: dict(os.environ)),
}
"""By the code of functions that read it."""

_ASKS_LOGGER = {Logger.isEnabledFor.__code__, Logger.getEffectiveLevel.__code__}


def _read_by_frame(frame: types.FrameType) -> Any:
    """What a function that begins to run reads of the process, or the logger that it asks; None for
    most.
    """
    if frame.f_code in _ASKS_LOGGER:
        return frame.f_locals.get("self")
    return _STATE_BY_CODE.get(frame.f_code)


class RunLog:
    """What a run did."""

    def __init__(self) -> None:
        self.codes: dict[types.CodeType, dict[str, Any]] = {}
        self.states: list[Any] = []
        """State of the process, and loggers, that were asked and that the walk had not found."""
        self.asked: list[Any] = []
        self.impure: list[tuple[str, str]] = []
        """Clocks, randomness, files: what, and where."""

    def note_call(self, frame: Any) -> None:
        """Note a function that begins to run."""
        code = frame.f_code
        if code not in self.codes and is_of_user(frame) and not _is_told_of_events(frame):
            self.codes[code] = frame.f_globals
        elif code is _SEED and frame.f_locals.get("a") is None and _is_for_user(frame):
            self.impure.append(("the randomness of the system", _line(frame)))
        elif (state := _read_by_frame(frame)) is not None and _is_asked_by_user(frame.f_back):
            self.asked.append(state)

    def note_built_in(self, frame: Any, function: Any) -> None:
        """Note a built-in function that a frame calls."""
        source = _source_of(function)
        state = _STATE_BY_BUILT_IN.get(id(function))
        if source is not None and _is_for_user(frame):
            self.impure.append((source, _line(frame)))
        elif state is not None and _is_asked_by_user(frame):
            self.asked.append(state)

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
            if isinstance(f, types.FunctionType) and f.__code__ in codes
        ]
        functions = [f for f in functions if not _is_of_this_run(f)]
        found = {f.__code__ for f in functions}
        return [*functions, *(Code(code, self.codes[code]) for code in codes if code not in found)]


def _is_of_this_run(function: types.FunctionType) -> bool:
    """Whether a function was made by the run that has just ended: it holds traced values."""
    return any(isinstance(contents(cell), _jax.Tracer) for cell in function.__closure__ or ())


@contextmanager
def watched(captured: Captured, log: RunLog) -> Iterator[None]:
    """Note what the user's code does inside the block, in this thread."""
    before = _random_states(captured)
    previous = _paused_profiler()
    forward = previous if callable(previous) else None

    def note(frame: Any, event: str, arg: Any) -> None:
        if forward is not None:
            forward(frame, event, arg)
        if event == "call":
            log.note_call(frame)
        elif event == "c_call":
            log.note_built_in(frame, arg)
        while log.asked:  # compared as it is now: the function may change it afterwards
            state = log.asked.pop()
            if not captured.knows(state):
                log.states.append(state)
                captured.add(state)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(forward)
        if forward is None and previous is not None:
            previous.enable()  # pyright: ignore[reportFunctionMemberAccess]
    after = _random_states(captured)
    drawn = [name for name in before if before[name] != after[name]]
    log.impure += [(f"random numbers drawn from {name}", "while it ran") for name in drawn]


def _paused_profiler() -> Any:
    """The profiler of this thread.

    One in C, as `cProfile` before Python 3.12, cannot be called: it is paused.
    """
    previous: Any = sys.getprofile()
    if previous is None or callable(previous):
        return previous
    if not hasattr(previous, "enable"):
        return None
    previous.disable()
    return previous


def _source_of(function: Any) -> str | None:
    """What a built-in function reads that is no argument; None for most."""
    if id(function) in _IMPURE:
        return _IMPURE[id(function)]
    name = getattr(function, "__name__", "")
    if name in ("now", "utcnow", "today"):
        owner = getattr(function, "__self__", None)
        return (
            f"the clock `{owner.__name__}.{name}`"
            if isinstance(owner, type) and issubclass(owner, datetime.date)
            else None
        )
    return "the randomness of the system" if function is os.urandom else None


def _is_told_of_events(frame: Any) -> bool:
    """Whether a listener of `jax.monitoring` runs: it is no part of the function."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "jax._src.monitoring":
            return True
        frame = frame.f_back
    return False


def _is_for_user(frame: Any) -> bool:
    """Whether the user's code asked, itself or through Python's library other than logging."""
    return not is_logged(frame, user_frame(frame)) and _is_asked_by_user(frame)


def _is_asked_by_user(frame: Any) -> bool:
    """Whether the user's code asked, itself or through Python's library."""
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


def _random_states(captured: Captured) -> dict[str, Any]:
    """The states of the generators of random numbers that code can reach."""
    states: dict[str, Any] = {
        "`random`": random.getstate(),
        "`numpy.random`": _legacy_state(np.random),
    }
    for name, generator in captured.generators:
        states[f"`{name}`"] = _state(generator)
    return states


def _state(generator: Any) -> Any:
    if isinstance(generator, Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _legacy_state(generator)
    return repr(generator.bit_generator.state)


def _legacy_state(generator: Any) -> Any:
    kind, keys, *rest = generator.get_state()
    return kind, keys.tobytes(), *rest
