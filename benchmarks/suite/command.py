"""The command line: `python -m benchmarks`, from the root of the repository.

Exit codes: 0 all is well (a target that was missed is a finding, not a failure), 1 a benchmark
failed or ran out of time, a target got worse, or the page is out of date, 2 bad usage.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.suite import catalogue, comparing, peers, running, schema, turns
from benchmarks.suite.catalogue import Benchmark
from benchmarks.suite.running import Outcome, Wish
from benchmarks.suite.text import as_text

RESULTS = catalogue.FOLDER / "results"
BAD_USAGE = 2
USAGE_ERRORS = (
    schema.ResultError,
    comparing.ComparisonError,
    catalogue.UnknownBenchmarkError,
)

COMMANDS = {
    "list": "list",
    "run": "run",
    "compare": "compare",
    "peers": "peers",
    "page": "page",
}
OPTIONS = {
    "quick": ("run", "peers"),
    "rounds": ("run", "peers"),
    "only": ("run", "peers"),
    "limit": ("run", "peers"),
    "label": ("run", "peers"),
    "output": ("run", "peers", "page"),
    "cache": ("peers",),
    "check": ("page",),
    "json": ("list", "run", "compare", "peers"),
}
"""The commands that each option goes with."""

EPILOG = """\
examples:
  python -m benchmarks --list
  python -m benchmarks --run mixture --quick             a smoke test in seconds; no valid figures, nothing recorded
  python -m benchmarks --run mixture pullback            records benchmarks/results/DATE-NAME.json
  python -m benchmarks --compare A.json B.json           exit code 1 if a target got worse beyond noise
  python -m benchmarks --peers torch zfit                other libraries, each in an environment of its own
  python -m benchmarks --page                            docs/performance.md, docs/targets.md and plots
"""


def parser() -> argparse.ArgumentParser:
    """All options."""
    made = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, epilog=EPILOG, formatter_class=_Raw
    )
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--list", action="store_true", help="what there is: questions, targets, needs, minutes"
    )
    what.add_argument(
        "--run", nargs="+", metavar="NAME", help="run these, or `all`, each in a process of its own"
    )
    what.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="two results, or folders of results",
    )
    what.add_argument("--peers", nargs="+", metavar="NAME", help="run other libraries, or `all`")
    what.add_argument("--page", action="store_true", help="write docs/performance.md and its plots")
    made.add_argument(
        "--quick", action="store_true", help="small sizes: a smoke test, no valid figures"
    )
    made.add_argument("--rounds", type=int, help="timed calls of each form")
    made.add_argument(
        "--only", default="", metavar="TEXT", help="only the cases whose name contains TEXT"
    )
    made.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="time limit of each (default: by its usual time)",
    )
    made.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where results go (default benchmarks/results)",
    )
    made.add_argument("--label", default="", metavar="TEXT", help="added to the names of results")
    made.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="where environments of peers are made"
    )
    made.add_argument(
        "--check",
        action="store_true",
        help="with --page: write nothing, exit code 1 if out of date",
    )
    made.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return made


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the examples as they are."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = parser().parse_args(words)
    if given.rounds is not None and given.rounds < 1:
        return _bad("--rounds must be at least 1")
    if given.limit is not None and given.limit <= 0:
        return _bad("--limit must be above 0 seconds")
    wrong = _without_meaning(given) or _wrong_place(given)
    if wrong:
        return _bad(wrong)
    try:
        with _ended_on_request():
            return _chosen(given)(given)
    except USAGE_ERRORS as error:
        return _bad(str(error))
    except BrokenPipeError:  # the reader has enough; what is still buffered must not raise at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _say("interrupted; the running benchmark was ended, finished ones are recorded")
        return 1


def _without_meaning(given: argparse.Namespace) -> str:
    """What is said of an option that the command does not have; empty where all is well."""
    command = next(name for name in COMMANDS if getattr(given, name))
    for option, allowed in OPTIONS.items():
        if getattr(given, option) not in (None, False, "") and command not in allowed:
            with_these = ", ".join(f"--{COMMANDS[name]}" for name in allowed)
            return f"--{option} says nothing with --{COMMANDS[command]}; it goes with {with_these}"
    return ""


def _wrong_place(given: argparse.Namespace) -> str:
    """Why results cannot be written, found out before anything runs; empty where they can."""
    if "/" in given.label or os.sep in given.label:
        return (
            f"--label becomes a part of the name of a file; {given.label!r} has a separator of "
            "folders"
        )
    is_written = (given.run or given.peers) and (given.output or not given.quick)
    if not is_written:
        return ""
    folder = given.output or RESULTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return (
            f"{folder}: results cannot be written there ({error.strerror}); --output names another "
            "folder"
        )
    if not os.access(folder, os.W_OK):
        return (
            f"{folder}: results cannot be written there (no permission); --output names another "
            "folder"
        )
    return ""


@contextlib.contextmanager
def _ended_on_request() -> Iterator[None]:
    """A request to end is an interruption, so that what runs is ended as well."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _chosen(given: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    if given.list:
        return _list
    if given.run:
        return _run
    if given.compare:
        return _compare
    if given.peers:
        return _peers
    return _page


def _bad(message: str) -> int:
    _say(f"error: {message}")
    return BAD_USAGE


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- list -----------------------------------------------------------------------------------------


def _list(given: argparse.Namespace) -> int:
    if given.json:
        found = {
            "benchmarks": [catalogue.as_dict(each) for each in catalogue.BENCHMARKS],
            "peers": [each.as_dict() for each in peers.PEERS],
        }
        print(json.dumps(found, indent=1))
        return 0
    for each in catalogue.BENCHMARKS:
        print("\n".join(_described(each)))
    print("other libraries, each in an environment of its own (--peers NAME):")
    for peer in peers.PEERS:
        print(f"  {peer.name}: {peer.question}")
    return 0


def _described(benchmark: Benchmark) -> list[str]:
    made = [f"{benchmark.name} ({benchmark.minutes:g} min)", f"    {benchmark.question}"]
    if benchmark.targets:
        made.append(f"    {benchmark.targets}")
    uses = [name for name in benchmark.uses if importlib.util.find_spec(name) is None]
    if uses:
        made.append(f"    more lines with: {', '.join(uses)}")
    if benchmark.data:
        made.append(f"    {catalogue.data_note(benchmark)}")
    if benchmark.skip_reason:
        made.append(f"    skipped here: {benchmark.skip_reason}")
    return [*made, ""]


# --- run ------------------------------------------------------------------------------------------


def _run(given: argparse.Namespace) -> int:
    return _run_each(catalogue.chosen(given.run), running.run, given)


def _run_each(
    chosen: Sequence[Any],
    run: Callable[[Any, Wish, running.Say], Outcome],
    given: argparse.Namespace,
) -> int:
    """One after the other; every result is written when it is there."""
    wish, outcomes = Wish(given.quick, given.rounds, given.only, given.limit), []
    for number, each in enumerate(chosen, 1):
        head = f"[{number}/{len(chosen)}] {each.name}: "
        _say(head + each.question)
        outcome = run(each, wish, _progress(each.name))
        outcomes.append(outcome)
        path = _record(outcome, given)
        if not given.json and outcome.text:
            print(outcome.text.rstrip())
        _say(f"{head}{_told(outcome)}{f', {path}' if path else ''}")
    return _finish(outcomes, given)


def _progress(name: str) -> running.Say:
    begin = time.perf_counter()

    def say(line: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - begin), 60)
        _say(f"  {name} {minutes}:{seconds:02d}  {line}")

    return say


def _record(outcome: Outcome, given: argparse.Namespace) -> Path | None:
    """Write the result. Quick runs have no valid figures and are written only where a folder is
    named.

    That a library could not be had does not replace figures of the same day.
    """
    if outcome.result is None or (given.quick and given.output is None):
        return None
    parts = [
        outcome.result.date[:10],
        outcome.name.replace("_", "-"),
        *([given.label] if given.label else []),
    ]
    path = (given.output or RESULTS) / f"{'-'.join(parts)}.json"
    if outcome.result.skipped is not None and path.exists():
        return None
    schema.save(outcome.result, path)
    return path


def _told(outcome: Outcome) -> str:
    if outcome.result is None or outcome.status != "ok":
        return f"{outcome.status}, {outcome.reason}"
    lines = outcome.result.lines
    if outcome.result.options.quick:
        return f"{len(lines)} lines, {outcome.seconds:.0f} s, quick: figures mean nothing"
    num = sum(bool(line.checks) for _, line in lines)
    found = f"{len(lines)} lines, {num} with a target, {outcome.num_short} short"
    return f"{found}, {outcome.seconds:.0f} s, {outcome.result.conditions} machine"


def _finish(outcomes: Sequence[Outcome], given: argparse.Namespace) -> int:
    if given.json:
        print(json.dumps([_as_dict(each) for each in outcomes], indent=1))
    elif len(outcomes) > 1:
        rows = [
            [each.name, each.status, f"{each.seconds:.0f}", _told(each).partition("\n")[0]]
            for each in outcomes
        ]
        print("\n".join(as_text([["name", "status", "seconds", ""], *rows])))
    if given.only and all(outcome.reason == running.no_case(given.only) for outcome in outcomes):
        return _bad(
            f"{running.no_case(given.only)}; the same with --quick and without --only shows the "
            "names"
        )
    return int(any(outcome.status in ("failed", "timed out") for outcome in outcomes))


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    found = {"name": outcome.name, "status": outcome.status, "seconds": round(outcome.seconds, 1)}
    found |= {
        "reason": outcome.reason,
        "result": asdict(outcome.result) if outcome.result else None,
    }
    return found


# --- other commands -------------------------------------------------------------------------------


def _compare(given: argparse.Namespace) -> int:
    first, second = (schema.load_all(path) for path in given.compare)
    lines = comparing.compare(first, second)
    if given.json:
        print(
            json.dumps(
                {"remarks": comparing.remarks(first, second), "lines": comparing.as_dicts(lines)},
                indent=1,
            )
        )
    else:
        print("\n".join(as_text(comparing.as_rows(lines))))
        for remark in comparing.remarks(first, second):
            _say(f"note: {remark}")
    worse = sum(line.is_worse_target for line in lines)
    _say(f"{len(lines)} lines, {worse} whose target got worse beyond noise")
    return int(worse > 0)


def _peers(given: argparse.Namespace) -> int:
    return _run_each(
        peers.chosen(given.peers), functools.partial(turns.run, cache=given.cache), given
    )


def _page(given: argparse.Namespace) -> int:
    if importlib.util.find_spec("matplotlib") is None:
        return _bad("the page's plots need matplotlib: pip install matplotlib")
    from benchmarks.suite import page

    files = page.make(schema.load_all(given.output or RESULTS))
    stale = page.differing(files)
    if given.check:
        _say(
            f"out of date: {', '.join(map(str, stale))}; run --page"
            if stale
            else "the page is up to date"
        )
        return int(bool(stale))
    page.write(files)
    _say(f"wrote {len(files)} files, {len(stale)} changed")
    return 0
