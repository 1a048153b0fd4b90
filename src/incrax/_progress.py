"""Progress on a terminal, for what takes longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0
"""Seconds before anything is shown."""


class Meter:
    """A progress bar that appears after two seconds, on a terminal only."""

    def __init__(self, title: str, total: int, *, is_shown: bool = True) -> None:
        self.is_shown = is_shown
        self.title = title
        self.total = total
        self.done = 0
        self._start_s = time.perf_counter()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Meter:
        return self

    def advance(self, count: int = 1) -> None:
        """So many more steps are done."""
        self.done += count
        if self.is_shown and self._bar is None and time.perf_counter() - self._start_s > PATIENCE_S:
            from rich.console import Console  # here, as most that import incrax show nothing
            from rich.progress import Progress

            console = Console(stderr=True)
            self._bar = Progress(console=console, transient=True, disable=not console.is_terminal)
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
