"""Python's collector of garbage, paused while graphs of many objects are built.

It walks through all new objects, again and again, to find that none is garbage: a third of the time
to plan 1e5 equations, a fifth of that to import incrax. It must not know what is built.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Pause:
    """Pauses of all threads: the collector runs again after the last one, if it ran before the
    first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._num:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._num += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num -= 1
            if not self._num and self._was_enabled:
                gc.enable()

    def forget(self) -> None:
        """In a forked process: the threads that paused are not there."""
        if self._num and self._was_enabled:
            gc.enable()
        self.__init__()


paused = _Pause()
"""A context in which nothing is collected."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=paused.forget)


def uncollected(function: Callable[P, R]) -> Callable[P, R]:
    """The function with the collector paused.

    For functions that make no reference cycles to speak of.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with paused:
            return function(*args, **kwargs)

    return run
