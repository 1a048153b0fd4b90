"""What a guarded function recorded: paths, guards, calls and seconds, as tables.

In: tapes. Out: a report. It must not change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from incrax._table import Printable, Table
from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.tape import Tape


@dataclass(frozen=True)
class TapeExplanation(Printable):
    """Paths of a guarded function and the guards behind each; prints as tables, `as_dict` gives it
    to programs.
    """

    stats: dict[str, int]
    """The counters of `TapeStats`."""
    paths: tuple[dict[str, Any], ...]
    """Each recorded path: types, hits, misses, seconds of recording and compiling, guards."""
    guards: tuple[dict[str, Any], ...]
    """Each place where Python asked, and the outcomes that it got there."""

    def as_dict(self) -> dict[str, Any]:
        """Counters, paths and guards."""
        return {"stats": dict(self.stats), "paths": list(self.paths), "guards": list(self.guards)}

    def tables(self) -> list[Table]:
        """Calls, paths, guards."""
        counts = [[name.replace("_", " "), str(n)] for name, n in self.stats.items()]
        paths = [
            [
                str(n),
                p["types"],
                str(p["hits"]),
                str(p["misses"]),
                f"{p['record_s']:.3f}",
                f"{p['compile_s']:.3f}",
            ]
            + ["\n".join(p["guards"]) or "none"]
            for n, p in enumerate(self.paths)
        ]
        guards = [
            [g["place"], str(len(g["outcomes"])), ", ".join(g["outcomes"])] for g in self.guards
        ]
        header = ["path", "arguments", "right", "wrong", "record s", "compile s", "guards"]
        return [
            Table("calls", ["", ""], counts),
            Table("paths", header, paths),
            Table("guards", ["guard", "outcomes", "seen"], guards),
        ]


def explain(stats: TapeStats, tapes: Iterable[Tape]) -> TapeExplanation:
    """The report of some tapes."""
    tapes = list(tapes)
    paths = tuple(_described(tape, path) for tape in tapes for path in tape.paths)
    guards = tuple(
        {"place": place, "outcomes": sorted(keys)} for place, keys in _seen(tapes).items()
    )
    return TapeExplanation(stats.as_dict(), paths, guards)


def outcomes_of(tapes: Sequence[Tape]) -> list[str]:
    """Places by the number of their outcomes."""
    seen = _seen(tapes)
    for tape in tapes[:-1]:
        for name in tape.captured.changed():
            seen.setdefault(f"captured `{name}`", set()).add(str(id(tape)))
    ordered = sorted(seen.items(), key=lambda item: -len(item[1]))
    return [f"{place}: {len(keys)}" for place, keys in ordered[:8]]


def _seen(tapes: Iterable[Tape]) -> dict[str, set[str]]:
    seen: dict[str, set[str]] = {}
    for tape in tapes:
        for guard in [guard for path in tape.paths for guard in path.guards]:
            seen.setdefault(guard.place, set()).add(shown(guard.key))
    return seen


def shown(key: Any) -> str:
    """An outcome as text."""
    return str(key) if not isinstance(key, tuple) else f"{key[2]}{list(key[1])}"


def _described(tape: Tape, path: Any) -> dict[str, Any]:
    types = ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in path.avals)
    return {
        "types": types,
        "hits": path.hits,
        "misses": path.misses,
        "record_s": path.record_s,
        "compile_s": path.compile_s,
        "guards": [str(guard) for guard in path.guards],
        "is_expected": path is tape.likely,
    }
