"""One script in a process of its own: with a time limit, its progress shown, and nothing left
behind.

The script appends its tables to a temporary file (`harness.report`); here they become a `Result`
with the machine, the versions, the commit and how busy the machine was before and after.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.suite import schema
from benchmarks.suite.catalogue import FOLDER, Benchmark

PATIENCE_S = 5.0
"""Between the request to end and the end."""
TAIL = 15
"""Lines of what a failed script said last."""
ROOT = FOLDER.parent

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """How to run."""

    quick: bool = False
    rounds: int | None = None
    only: str = ""
    limit_s: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one benchmark: `ok`, `skipped`, `failed` or `timed out`, why, and the result
    if there is one.
    """

    name: str
    status: str
    seconds: float
    reason: str = ""
    result: schema.Result | None = None
    text: str = ""
    """What the script printed."""

    @property
    def num_short(self) -> int:
        """Lines with a target that was missed."""
        return sum(bool(line.missed) for _, line in self.result.lines) if self.result else 0


def run(benchmark: Benchmark, wish: Wish, say: Say) -> Outcome:
    """Run one script to its end or its limit."""
    reason = benchmark.skip_reason
    if reason is not None:
        return Outcome(benchmark.name, "skipped", 0.0, reason)
    arguments = script_arguments(benchmark, wish)
    limit_s = wish.limit_s or benchmark.limit_s
    with tempfile.TemporaryDirectory(prefix="incrax-benchmark-") as folder:
        record = Path(folder) / "tables.jsonl"
        before, load = machine.busy_share(), machine.load()
        begin = time.perf_counter()
        command = [sys.executable, str(benchmark.path), *arguments, "--json", str(record)]
        ended = run_process(command, limit_s, say)
        seconds = time.perf_counter() - begin
        if ended.is_late:
            return Outcome(
                benchmark.name,
                "timed out",
                seconds,
                f"stopped after {limit_s:.0f} s; --limit SECONDS gives more",
            )
        if ended.code:
            return Outcome(
                benchmark.name,
                "failed",
                seconds,
                f"exit code {ended.code}: {ended.tail}",
                text=ended.output,
            )
        tables = read_tables(record)
    if not tables:
        return Outcome(
            benchmark.name,
            "skipped",
            seconds,
            _only_line(ended.output) or no_case(wish.only),
            text=ended.output,
        )
    shares = [share for share in (before, machine.busy_share()) if share is not None]
    result = schema.Result(
        schema=schema.SCHEMA,
        benchmark=benchmark.name,
        date=tables[0]["date"],
        machine=machine.describe() | {"device": tables[0]["device"]},
        versions=machine.versions((*benchmark.needs, *benchmark.uses))
        | {"incrax": tables[0]["incrax"]},
        options=schema.Options(wish.quick, int(tables[0]["rounds"]), list(arguments)),
        tables=[
            schema.parse_table({key: each[key] for key in ("title", "lines")}, benchmark.name)
            for each in tables
        ],
        commit=machine.commit(ROOT),
        load=load,
        busy=shares,
        conditions=machine.conditions(shares),
        seconds=round(seconds, 1),
    )
    return Outcome(benchmark.name, "ok", seconds, result=result, text=ended.output)


def script_arguments(benchmark: Benchmark, wish: Wish) -> list[str]:
    """The script's own options."""
    if wish.quick:
        found = ["--quick"]
    else:
        found = list(benchmark.arguments)
    if wish.rounds is not None:
        found += ["--rounds", str(wish.rounds)]
    return found + (["--only", wish.only] if wish.only else [])


def read_tables(path: Path) -> list[dict[str, Any]]:
    """What the script appended; nothing where it made no table."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _only_line(text: str) -> str:
    return next(
        (
            line.removeprefix("skipped: ")
            for line in text.splitlines()
            if line.startswith("skipped: ")
        ),
        "",
    )


def no_case(only: str) -> str:
    """Why nothing was run, where nothing failed."""
    return f"no case's name contains {only!r}" if only else "no case was run"


def today() -> str:
    """The date of now, as results have it."""
    return datetime.datetime.now().isoformat(timespec="seconds")


# --- processes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    is_late: bool
    output: str
    errors: str

    @property
    def tail(self) -> str:
        """What it said last."""
        lines = (self.errors.strip() or self.output.strip() or "it said nothing").splitlines()
        return "\n".join(lines[-TAIL:])


def run_process(
    command: Sequence[str], limit_s: float, say: Say, *, with_output: bool = False
) -> Ended:
    """Run a command in a group of its own; every line of its error stream is passed on as it comes.

    With `with_output`, those of its output are, too. The whole group is ended at the limit, and
    when this process is interrupted.
    """
    with grouped(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        errors, output = (
            _Relay(process.stderr, say),
            _Relay(process.stdout, say if with_output else None),
        )
        try:
            code, is_late = process.wait(limit_s), False
        except subprocess.TimeoutExpired:
            end(process)
            code, is_late = process.returncode, True
        return Ended(code, is_late, output.text(), errors.text())


@contextlib.contextmanager
def grouped(command: Sequence[str], **streams: Any) -> Iterator[Any]:
    """A process that leads a group of its own, which is ended on the way out."""
    process = subprocess.Popen(command, text=True, cwd=ROOT, start_new_session=True, **streams)
    try:
        yield process
    finally:
        end(process)
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


def end(process: Any) -> None:
    """Ask the group of a process to end, insist after a while, and wait until it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
            return


class _Relay(threading.Thread):
    """Reads a stream to its end, and passes its lines on."""

    def __init__(self, stream: Any, say: Say | None) -> None:
        """Start to read."""
        threading.Thread.__init__(self, daemon=True)
        self._stream, self._say, self._lines = stream, say, []
        self.start()

    def run(self) -> None:
        """Read."""
        with self._stream:
            for line in self._stream:
                self._lines.append(line)
                if self._say is not None:
                    self._say(line.rstrip())

    def text(self) -> str:
        """All that was read; whatever still holds the stream open is not waited for."""
        self.join(PATIENCE_S)
        return "".join(self._lines)
