"""Compile in a thread of its own while the whole program serves.

In: jitted functions and the types of their arguments. Out: jobs that end; JAX then has the program,
and finds it when the function is called. It must not know plans.

The thread writes to nothing but JAX's own tables, so that the engine has one writer: its caller.
Where a job fails, or JAX is set differently in the thread, the first call compiles as ever, and
raises what is to be raised.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from incrax._context import context_key

logger = logging.getLogger("incrax")

CALLER_SHARE = 0.35
"""Of the seconds that a job takes, what it takes from the caller on two cores: the interpreter's
lock while it traces and lowers, and memory and cores while XLA compiles.
"""

MAX_WAITING = 16
"""Jobs of the process that wait; a further one is offered again at a later call."""


def is_wanted(background: bool | None) -> bool:
    """Whether to compile in a thread: as the user said, here or by `INCRAX_BACKGROUND=1`.

    Not unasked: on two cores whole jobs ended no earlier, and nobody has measured them on more.
    """
    return os.environ.get("INCRAX_BACKGROUND") == "1" if background is None else background


SETTERS = (jax.enable_x64, jax.default_matmul_precision, jax.default_device)


def read_settings() -> tuple[Any, ...]:
    """What they have set here, in their order."""
    config: Any = jax.config
    return config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_default_device


@contextlib.contextmanager
def set_as(settings: tuple[Any, ...]) -> Iterator[None]:
    """JAX as it was set where these were read; what is set for all threads holds without this."""
    with contextlib.ExitStack() as stack:
        for setter, value, own in zip(SETTERS, settings, read_settings(), strict=True):
            if value != own:
                stack.enter_context(setter(value))
        yield


@dataclass(slots=True, eq=False, weakref_slot=True)
class Compilation:
    """One program to compile: for these types, in the configuration of JAX where it was made.

    `seconds` is what it took, 0 where it failed.
    """

    call: Any
    types: Sequence[Any]
    context: Hashable = field(default_factory=context_key)
    settings: tuple[Any, ...] = field(default_factory=read_settings)
    process: int = field(default_factory=os.getpid)
    seconds: float = 0.0
    is_done: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether it ended; one of a process that was forked since never will."""
        return self.is_done or self.process != os.getpid()

    def run(self) -> None:
        """Compile. Called in the thread: nothing may be raised."""
        try:
            with set_as(self.settings):
                self._compile()
        except BaseException as error:  # noqa: BLE001
            logger.debug("compiling in the background failed, and is left to a call: %s", error)
        self.is_done = True

    def _compile(self) -> None:
        if context_key() != self.context:
            return
        start = time.perf_counter()
        lowered = self.call.lower(*self.types)
        if not worker.is_closed:
            lowered.compile()
        self.seconds = time.perf_counter() - start


class Worker:
    """The thread of a process, one job after the other; it ends when none is left.

    Jobs that nobody holds any more, because their engine is gone, are left out.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A forked process has no thread, and a lock that nobody may ever release."""
        self.lock = threading.Lock()
        self.waiting: deque[weakref.ref[Compilation]] = deque()
        self.thread: threading.Thread | None = None
        self.is_closed = False

    def take(self, job: Compilation) -> bool:
        """Whether a job will be run, or is left to a call; if not, offer it again."""
        with self.lock:
            if len(self.waiting) >= MAX_WAITING:
                return False
            if self.is_closed:
                job.is_done = True
                return True
            self.waiting.append(weakref.ref(job))
            if self.thread is None:
                self.thread = threading.Thread(
                    target=self._work, name="incrax-compile", daemon=True
                )
                self.thread.start()
        return True

    def _work(self) -> None:
        while True:
            job = self._next()
            if job is None:
                return
            job.run()

    def _next(self) -> Compilation | None:
        with self.lock:
            while self.waiting:
                job = self.waiting.popleft()()
                if job is not None:
                    return job
            self.thread = None
            return None

    def close(self) -> None:
        """Take no more jobs, and wait for the one that is running: XLA crashes where the interpreter
        ends while it compiles.
        """
        with self.lock:
            self.is_closed = True
            self.waiting.clear()
            thread = self.thread
        if thread is not None:
            thread.join()


worker = Worker()
"""That of the process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=worker.renew)


@dataclass(eq=False)
class Background:
    """What one engine has compiled behind its calls."""

    is_on: bool = False  # whether it has anything compiled
    seconds: float = 0.0  # of jobs whose programs were run
    _jobs: list[Compilation] = field(default_factory=list)  # that have not ended

    def compile(self, call: Callable[..., Any], types: Sequence[Any]) -> Compilation | None:
        """A job of the thread; None where too many wait."""
        if not self._jobs:
            # Not before: JAX registers what ends its clients when it makes them, and the last that is
            # registered is the first that runs.
            atexit.unregister(worker.close)
            atexit.register(worker.close)
        job = Compilation(call, types)
        if not worker.take(job):
            return None
        self._jobs.append(job)
        return job

    @property
    def num_waiting(self) -> int:
        """Jobs that have not ended."""
        if self._jobs:
            self._jobs = [job for job in self._jobs if not job.has_ended]
        return len(self._jobs)
