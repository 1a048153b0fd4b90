"""A search in turns that the host takes, whatever evaluates and solves.

In: how to look at a point and how to try a step. Out: the search at its end, and the point that it looked at last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from incrax._progress import Meter
from incrax.fit import steps
from incrax.fit.problem import Problem
from incrax.fit.steps import Search, Settings

Callback = Callable[[Any, float], bool | None]
Look = Callable[[Search], tuple[Search, Any]]
Attempt = Callable[[Search, Any], tuple[Search, Any]]


def searched(
    look: Look, attempt: Attempt, task: Problem, settings: Settings, callback: Callback | None, *, progress: bool
) -> tuple[Search, Any]:
    """Search to the end; a callback that returns True is one."""
    search, at = look(steps.unpacked(jnp.asarray(steps.start(task.x))))
    with Meter("least squares", settings.max_steps, is_shown=progress) as meter:
        while int(search.status) == steps.RUNNING and int(search.num_steps) < settings.max_steps:
            search = _moved(search, at, attempt)
            if int(search.status) == steps.RUNNING:
                search, at = look(search)
            meter.advance()
            if callback is not None and callback(task.tree(search.x), float(at.cost)):
                break
    return search, at


def _moved(search: Search, at: Any, attempt: Attempt) -> Search:
    """After the first step that is taken."""
    if bool(steps.is_quiet(search)):
        return steps.polished(search, at)
    for _ in range(steps.MAX_TRIALS):
        search, is_taken = attempt(search, at)
        if bool(is_taken):
            return search
    return steps.stalled(search, at, steps.MAX_TRIALS)[0]
