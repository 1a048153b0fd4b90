"""Ctrl-C in the command line: exit code 130 a second or two later, whatever runs.

In: the process. Out: its end. Imported before JAX, of which it must not know.

Python's own way fails where JAX's native code runs. A `KeyboardInterrupt` waits for a result until
it is computed, and crashes the process while JAX is being imported. Leaving the interpreter waits
for a thread of XLA that still compiles, and crashes in it, since the client that it compiles for is
gone. So a thread waits for the signal, leaves the command a moment to clean up, and ends the
process without the interpreter's teardown.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

EXIT_CODE = 130
GRACE_S = 1.0
"""What the command has for cleaning up."""

SHOW_CURSOR = b"\x1b[?25h\r\n"
"""To a terminal on which a progress bar was cut off."""

_ending = threading.Lock()
"""Never released: one thread says that the process ends."""


class _Watch:
    is_on = False
    has_seen_one = False
    """While interrupts were not raised: a short command would else end well before the thread ends
    it.
    """


def is_command() -> bool:
    """Whether the process is `incrax ...` or `python -m incrax ...`, also while its modules are
    being imported.
    """
    # `sys.argv` begins with "-m" until the module is found; the original arguments have its name in
    # that place.
    place = sys.orig_argv[-len(sys.argv) :][:1]
    return bool(place) and Path(place[0].removeprefix("-m")).stem == "incrax"


def watch() -> None:
    """From now on an interrupt ends the process. Called once, on the main thread."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGINT, _remember)
    # The one thing that happens at once even if the main thread is in native code.
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(
        target=_wait, args=(reader, writer), name="incrax-interrupts", daemon=True
    ).start()
    sys.unraisablehook = _report_no_interrupt
    _Watch.is_on = True


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Where the process is watched, an interrupt of this block, or one that came before it, is a
    `KeyboardInterrupt` as well.
    """
    if not _Watch.is_on:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _Watch.has_seen_one:
            raise KeyboardInterrupt
        yield
    finally:
        signal.signal(signal.SIGINT, _remember)


def end() -> None:
    """End the process, if it is watched: what was cleaned up and said is all there is to do."""
    if _Watch.is_on:
        with _ending:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(EXIT_CODE)


def _remember(number: int, frame: object) -> None:
    """Not more: the signal wakes the thread."""
    _Watch.has_seen_one = True


def _report_no_interrupt(unraisable: Any) -> None:
    """Python drops what is raised in a finaliser or a callback of native code, and reports it; the
    thread ends all.
    """
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def _wait(reader: socket.socket, writer: socket.socket) -> NoReturn:
    """The end, a moment after the first interrupt. `writer` is open as long as this runs."""
    while reader.recv(1) != bytes([signal.SIGINT]):
        continue
    time.sleep(GRACE_S)
    with _ending:
        # Not through `sys.stdout`, whose lock the main thread may hold.
        for stream in (1, 2):
            if os.isatty(stream):
                os.write(stream, SHOW_CURSOR)
        os.write(2, b"incrax: interrupted\n")
        os._exit(EXIT_CODE)


if is_command():
    watch()
