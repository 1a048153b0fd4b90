"""Python's collector of garbage, paused while graphs of many objects are built.

It walks through all new objects, again and again, to find that none is garbage: a third of the time
to plan 1e5 equations, a fifth of that to import incrax. It must not know what is built.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A context, or a decorator of functions, in which nothing is collected; for what makes no
    reference cycles to speak of.

    Of threads that pause at a time the first to end resumes it, which costs time alone: whoever
    found it running sees to it that it runs.
    """
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()
