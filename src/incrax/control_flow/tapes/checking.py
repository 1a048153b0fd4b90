"""What in a function depends on values in a way that an unguarded compiler would freeze or refuse.

In: a function and leaves. Out: a report. It must not keep anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from incrax._table import Printable, Table
from incrax.control_flow.tapes.guards import Guard
from incrax.control_flow.tapes.making import RecordedFunction, TapeOptions, observed


@dataclass(frozen=True)
class TapeReport(Printable):
    """Branches that depend on values, and what else a compiled program would freeze; true if there
    is nothing.
    """

    branches: tuple[Guard, ...]
    """Branches that depend on values, with file, line and expression."""
    impure: tuple[str, ...]
    """Clocks and random numbers outside JAX."""
    mutable: tuple[str, ...]
    """Captured objects that can change in place."""

    def __bool__(self) -> bool:
        return not self.branches and not self.impure

    def tables(self) -> list[Table]:
        """Branches, and the rest."""
        branches = [[g.where, g.expression, str(g).rpartition(" is ")[2]] for g in self.branches]
        others = [["not reproducible", text] for text in self.impure]
        others += [["captured, can change", name] for name in self.mutable]
        return [
            Table("branches that depend on values", ["where", "expression", "here"], branches),
            Table("what a compiled program would freeze", ["kind", "what"], others),
        ]


def branches_of(fun: Callable[..., Any], args: Any, kwargs: Any) -> TapeReport:
    """The report of the path that these values take."""
    subject = RecordedFunction(fun, getattr(fun, "__name__", "f"), TapeOptions(floats=True), [fun])
    found = observed(subject, *subject.signed(args, kwargs))
    impure = tuple(dict.fromkeys(f"{what} ({where})" for what, where in found.log.impure))
    return TapeReport(found.recording.guards, impure, tuple(found.captured.mutable))
