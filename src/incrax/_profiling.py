"""Annotations of stages in profiles that `jax.profiler` takes; nothing is made while none is taken.

In: functions of the pipeline. Out: the same, named in the profile. It must not know what they do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from jax.profiler import TraceAnnotation

P = ParamSpec("P")
R = TypeVar("R")

is_profiled: Callable[[], bool] = TraceAnnotation.is_enabled
"""Whether a profile is being taken, by this process or through a profiler server."""


def annotated(stage: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make each call of a function a span `incrax/<stage>` of the profile."""
    name = f"incrax/{stage}"

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            if not is_profiled():
                return function(*args, **kwargs)
            with TraceAnnotation(name):
                return function(*args, **kwargs)

        return run

    return wrap


def profiled(title: str, function: Callable[..., R], *args: Any) -> R:
    """The result of a function, in a span `incrax/<title>` if a profile is taken."""
    if not is_profiled():
        return function(*args)
    with TraceAnnotation(f"incrax/{title}"):
        return function(*args)
