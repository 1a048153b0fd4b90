"""Progress on a terminal, for what takes longer than a moment."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0
"""Seconds before anything is shown."""


class Meter:
    """A progress bar that appears after two seconds, on a terminal only."""

    def __init__(self, title: str, total: int, *, is_shown: bool = True) -> None:
        self.title = title
        self.total = total
        self.done = 0
        # Where nothing would be seen, not even the library is imported: a tenth of a second.
        is_seen = is_shown and sys.stderr is not None and sys.stderr.isatty()
        self._show_s = time.perf_counter() + PATIENCE_S if is_seen else math.inf
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        return self

    def advance(self, count: int = 1) -> None:
        """So many more steps are done."""
        self.done += count
        if self._bar is None and time.perf_counter() > self._show_s:
            from rich.console import Console  # here, as most that import incrax show nothing
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task(self.title, total=self.total)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done)

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
