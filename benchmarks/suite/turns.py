"""Two sides that take turns: our process and one of another library, on the same arrays.

Both write their figures of two arguments first; only if those agree, anything is timed. A turn is a
number of calls of one side; the order of the sides is reversed in every second round.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks import machine
from benchmarks.suite import schema
from benchmarks.suite.catalogue import FOLDER
from benchmarks.suite.environments import UnavailableError, cache_folder, environment
from benchmarks.suite.peers import HOME, Peer
from benchmarks.suite.running import Outcome, Say, Wish, grouped, no_case, today
from benchmarks.suite.schema import Check, Line, Timing
from benchmarks.suite.text import as_text

OURS = "incrax"
INSTALL_LIMIT_S = 1800.0
LIMIT_S = 1200.0
WARM = 20
ROUNDS, QUICK_ROUNDS = 15, 2
TURN_S = 0.2
"""A turn has as many calls as fit into this time, at least one and at most `MOST_CALLS`."""
MOST_CALLS = 40


class PeerError(RuntimeError):
    """A side that could not go on; the message is its own."""


class LateError(PeerError):
    """A side that did not answer before the time limit."""


class Side:
    """One process that answers requests; every answer is waited for until the deadline."""

    def __init__(self, process: Any, name: str, deadline: float) -> None:
        """Wait until it tells its cases."""
        self.name, self._process, self._deadline = name, process, deadline
        self._replies: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.greeting = self._reply()

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request and its answer.

        Raises:
            PeerError: the side failed, ended, or did not answer in time.
        """
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise PeerError(f"{self.name}: its process ended") from None
        return self._reply()

    def _read(self) -> None:
        with self._process.stdout as replies:
            for line in replies:
                if line.startswith(
                    "{"
                ):  # a library may have printed something while it was imported
                    self._replies.put(line)
        self._replies.put(None)

    def _reply(self) -> dict[str, Any]:
        try:
            line = self._replies.get(timeout=max(self._deadline - time.perf_counter(), 0.01))
        except queue.Empty:
            raise LateError(
                f"{self.name}: no answer before the time limit; --limit SECONDS gives more"
            ) from None
        if line is None:
            raise PeerError(
                f"{self.name}: its process ended; what it said last is in {self._process.log}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer


@contextlib.contextmanager
def started(command: list[str], name: str, folder: Path, deadline: float) -> Iterator[Side]:
    """A side, ended on the way out; what it prints goes to a file."""
    log = folder / f"{name}.log"
    with (
        log.open("w") as errors,
        grouped(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as made,
    ):
        made.log = log
        try:
            yield Side(made, name, deadline)
        except PeerError as error:
            said = log.read_text(errors="replace").strip().splitlines()[-4:]
            told = str(error).removesuffix(f"; what it said last is in {log}")
            raise type(error)("\n".join([told, *said])) from None


def run(peer: Peer, wish: Wish, say: Say, cache: Path | None = None) -> Outcome:
    """Make the environment, compare the figures, and time both sides by turns."""
    name, begin = f"peers-{peer.name}", time.perf_counter()
    try:
        python = environment(peer, cache_folder(cache), wish.limit_s or INSTALL_LIMIT_S, say)
    except UnavailableError as error:
        reason = str(error)
        return Outcome(
            name, "skipped", time.perf_counter() - begin, reason, _skipped(name, reason, wish)
        )
    before, load = machine.busy_share(), machine.load()
    try:
        with tempfile.TemporaryDirectory(prefix="incrax-peers-") as folder:
            lines, versions = _measured(peer, python, Path(folder), wish, say)
    except PeerError as error:
        status = "timed out" if isinstance(error, LateError) else "failed"
        return Outcome(name, status, time.perf_counter() - begin, str(error))
    if not lines:
        return Outcome(name, "skipped", time.perf_counter() - begin, no_case(wish.only))
    shares = [share for share in (before, machine.busy_share()) if share is not None]
    title = f"incrax and {peer.name}"
    result = schema.Result(
        schema=schema.SCHEMA,
        benchmark=name,
        date=today(),
        machine=machine.describe() | {"device": "cpu"},
        versions=versions,
        options=schema.Options(
            wish.quick, _rounds(wish), ["--only", wish.only] if wish.only else []
        ),
        tables=[schema.Table(title, lines)],
        commit=machine.commit(FOLDER.parent),
        load=load,
        busy=shares,
        conditions=machine.conditions(shares),
        seconds=round(time.perf_counter() - begin, 1),
    )
    return Outcome(name, "ok", time.perf_counter() - begin, result=result, text=printed(lines))


def _skipped(name: str, reason: str, wish: Wish) -> schema.Result:
    """A result without figures: that it could not be had here is one, too."""
    return schema.Result(
        schema=schema.SCHEMA,
        benchmark=name,
        date=today(),
        machine=machine.describe(),
        versions=machine.versions(),
        options=schema.Options(wish.quick),
        tables=[],
        commit=machine.commit(FOLDER.parent),
        skipped=reason,
    )


def _measured(
    peer: Peer, python: Path, folder: Path, wish: Wish, say: Say
) -> tuple[list[Line], dict[str, str]]:
    deadline = time.perf_counter() + (wish.limit_s or LIMIT_S)
    mine = [
        sys.executable,
        str(HOME / "ours.py"),
        str(folder),
        peer.name,
        *(["--quick"] if wish.quick else []),
    ]
    with started(mine, OURS, folder, deadline) as ours:
        with started(
            [str(python), str(peer.script), str(folder)], peer.name, folder, deadline
        ) as theirs:
            cases = [case for case in theirs.greeting["cases"] if wish.only in case]
            lines = []
            for case in cases:
                lines.append(measured_line(peer, case, (ours, theirs), wish))
                say(f"{case}: {lines[-1].cells[f'{peer.name} / {OURS}']} times our time")
            versions = {OURS: ours.greeting["versions"], peer.name: theirs.greeting["versions"]}
    flat = {
        **versions[OURS],
        **{f"{peer.name}: {key}": value for key, value in versions[peer.name].items()},
    }
    return lines, flat


def measured_line(peer: Peer, case: str, sides: tuple[Side, Side], wish: Wish) -> Line:
    """One case: figures of both sides, then times by turns."""
    ours, theirs = sides
    for side in sides:
        side.ask(do="prepare", case=case)
    _check_agreement(peer, case, sides)
    calls = {}
    for side in sides:
        seconds = side.ask(do="time", first=1, calls=3 if wish.quick else WARM)["seconds"]
        calls[side] = min(
            max(int(TURN_S / max(seconds[-1], 1e-9)), 1), 2 if wish.quick else MOST_CALLS
        )
    found: dict[Side, list[float]] = {side: [] for side in sides}
    number = WARM + 1
    for turn in range(_rounds(wish)):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            found[side] += side.ask(do="time", first=number, calls=calls[side])["seconds"]
        number += max(calls.values())
    timings = {OURS: _timing(found[ours]), peer.name: _timing(found[theirs])}
    ratio, name = timings[peer.name].median / timings[OURS].median, f"{peer.name} / {OURS}"
    factor = peer.target(case)
    checks = []
    if factor is not None and not wish.quick:
        checks = [
            Check(
                f">={factor:.3g}x {peer.name}", f"{ratio:.2f}x {peer.name}", ratio >= factor, name
            )
        ]
    cells = {form: shown(timing) for form, timing in timings.items()} | {name: f"{ratio:.2f}"}
    return Line(case, cells, timings, {name: ratio}, {}, checks)


def _rounds(wish: Wish) -> int:
    return wish.rounds or (QUICK_ROUNDS if wish.quick else ROUNDS)


def _check_agreement(peer: Peer, case: str, sides: tuple[Side, Side]) -> None:
    """Both sides have the same figures at two arguments, relative to the largest one of ours."""
    for number in (0, 7):
        ours, theirs = (side.ask(do="read", number=number)["values"] for side in sides)
        error = difference(ours, theirs)
        if not error <= peer.rtol:
            raise PeerError(
                f"{case}: {peer.name} and incrax differ by {error:.2g} (allowed {peer.rtol:g}), so "
                "that they do not "
                f"compute the same: ours {ours[:3]}, theirs {theirs[:3]}"
            )


def difference(ours: list[float], theirs: list[float]) -> float:
    """The largest difference relative to the size of each figure, and of the largest one where
    figures vanish.
    """
    if len(ours) != len(theirs) or not ours:
        return float("inf")
    largest = max(abs(value) for value in ours)
    return max(
        abs(a - b) / max(abs(a), 1e-6 * largest, 1e-300) for a, b in zip(ours, theirs, strict=True)
    )


def _timing(seconds: list[float]) -> Timing:
    if len(seconds) < 2:
        return Timing(seconds[0], seconds[0], seconds[0])
    lower, median, upper = quantiles(seconds, n=4, method="inclusive")
    return Timing(median, lower, upper)


def shown(timing: Timing) -> str:
    """Median and quartiles with one unit, as the scripts show them."""
    factor, unit = (1e6, "us") if timing.median < 1e-3 else (1e3, "ms")
    return (
        f"{factor * timing.median:.3g} {unit} "
        f"[{factor * timing.lower:.3g}-{factor * timing.upper:.3g}]"
    )


def printed(lines: list[Line]) -> str:
    """The lines as a table."""
    return "\n".join(
        as_text([["case", *lines[0].cells], *([line.case, *line.cells.values()] for line in lines)])
    )
