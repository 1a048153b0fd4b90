"""What a guarded function recorded: paths, guards, calls and seconds, as tables; and what in a
function depends on values in a way that an unguarded compiler would freeze or refuse.

In: tapes, or a function and leaves. Out: reports. They must not change anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from incrax._table import Printable, Table, many
from incrax.control_flow.tapes.guards import Guard
from incrax.control_flow.tapes.making import RecordedFunction, TapeOptions, observed
from incrax.control_flow.tapes.paths import Tape, TapeStats


@dataclass(frozen=True, repr=False)
class TapeExplanation(Printable):
    """Paths of a guarded function and the guards behind each; prints as tables, `as_dict` gives it
    to programs.

    Fields:
        stats: the counters of `TapeStats`.
        paths: each recorded path: types, hits, misses, seconds of recording and compiling, guards.
        guards: each place where Python asked, and the outcomes that it got there.

    Example:
        >>> import incrax
        >>> f = incrax.guarded(lambda x: x if x > 0 else -x)
        >>> values = f(1.0), f(-1.0)
        >>> len(f.explain().paths)
        2
    """

    stats: dict[str, int]
    paths: tuple[dict[str, Any], ...]
    guards: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """Counters, paths and guards."""
        return {"stats": dict(self.stats), "paths": list(self.paths), "guards": list(self.guards)}

    def summary(self) -> str:
        """Paths, and how often the expected one was right."""
        return (
            f"{many(len(self.paths), 'path')}, {many(len(self.guards), 'guard')}; "
            f"{self.stats['hits']} of {many(self.stats['calls'], 'call')} took the expected path"
        )

    def tables(self) -> list[Table]:
        """Calls, paths, guards."""
        counts = [[name.replace("_", " "), n] for name, n in self.stats.items()]
        columns = ("types", "hits", "misses", "record_s", "compile_s")
        paths = [
            [str(n), *(path[name] for name in columns), "\n".join(path["guards"]) or "none"]
            for n, path in enumerate(self.paths)
        ]
        guards = [
            [each["place"], len(each["outcomes"]), ", ".join(each["outcomes"])]
            for each in self.guards
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


# --- before a function is compiled ------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class TapeReport(Printable):
    """Branches that depend on values, which a compiled program would freeze; true if there are none.

    Fields:
        branches: branches that depend on values, with file, line and expression.
        mutable: captured objects that can change in place.

    Example:
        >>> import incrax
        >>> bool(incrax.check_tape(lambda x: x if x > 0 else -x, 1.0)), bool(incrax.check_tape(abs, 1.0))
        (False, True)
    """

    branches: tuple[Guard, ...]
    mutable: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.branches

    @property
    def is_alarming(self) -> bool:
        """Whether a compiled program would freeze something."""
        return not self

    def summary(self) -> str:
        """Whether it can be compiled as it is."""
        if self:
            return "nothing depends on values in a way that a compiled program would freeze"
        return f"a compiled program would freeze {many(len(self.branches), 'choice')} by values"

    def tables(self) -> list[Table]:
        """Branches, and the rest."""
        branches = [[g.where, g.expression, str(g).rpartition(" is ")[2]] for g in self.branches]
        others = [[name] for name in self.mutable]
        found = [
            Table("branches that depend on values", ["where", "expression", "here"], branches),
            Table("captured, and can change", ["what"], others),
        ]
        return [table for table in found if table.rows]


def branches_of(fun: Callable[..., Any], args: Any, kwargs: Any) -> TapeReport:
    """The report of the path that these values take."""
    subject = RecordedFunction(fun, getattr(fun, "__name__", "f"), TapeOptions(), [fun])
    found = observed(subject, *subject.signed(args, kwargs))
    return TapeReport(found.recording.guards, tuple(found.captured.mutable))
