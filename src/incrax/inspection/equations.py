"""The equations of a program as columns of plain data, for a page that draws them.

In: an engine. Out: dictionaries and lists of numbers and text. It must not know how they are drawn.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import read_vars, written_vars
from incrax.engine.call.engine import Engine
from incrax.engine.call.record import CallRecord
from incrax.engine.plan.facts import Facts
from incrax.engine.program.cost import Cost, equation_cost

_PLACE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)?(?: \((?P<function>.*)\))?$")
NUM_CODE = 160
"""Characters of a source line that are kept."""

HOW = ("estimated", "measured as a whole", "measured as a segment")


class Table:
    """Distinct values in the order of their first appearance, by number."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        """The number of a value."""
        return self.numbers.setdefault(value, len(self.numbers))

    def listed(self, form: Callable[[Any], Any] = lambda value: value) -> list[Any]:
        """The values."""
        return [form(value) for value in self.numbers]


class Equations:
    """The equations of one engine with what a page needs of each; derived ones, which plans have, have no number.

    `works` are descriptions of what runs, by the programs that do, with a record that keeps these alive.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.facts: Facts = engine.facts
        self.eqns: Sequence[Equation] = self.facts.program.eqns
        self.numbers = {id(eqn): number for number, eqn in enumerate(self.eqns)}
        self.costs: list[Cost] = [equation_cost(eqn) for eqn in self.eqns]
        self.works: dict[Hashable, tuple[CallRecord, dict[str, Any]]] = {}

    def cost(self, eqn: Equation) -> Cost:
        """The cost of an equation of the program, or of a derived one."""
        number = self.numbers.get(id(eqn))
        return equation_cost(eqn) if number is None else self.costs[number]

    def num_derived(self, eqns: Sequence[Equation]) -> int:
        """How many of some equations the program does not have."""
        return sum(id(eqn) not in self.numbers for eqn in eqns)

    def writers(self, variables: Iterable[Var]) -> list[int]:
        """Numbers of the equations that write some variables; -1 for a derived one, each number once."""
        writer = self.facts.listing.writer
        return list(dict.fromkeys(writer.get(var, -1) for var in variables))

    def columns(self) -> dict[str, Any]:
        """One list per property, one element per equation; names and places by number in tables of their own."""
        primitives, places, types, sets = Table(), Table(), Table(), Table()
        seconds, how = self._seconds()
        states = self._states()
        return {
            "set": [sets.number(mask) for mask in self.facts.equation_masks],
            "primitive": [primitives.number(eqn.primitive.name) for eqn in self.eqns],
            "place": [places.number(_jax.source_line(eqn)) for eqn in self.eqns],
            "type": [types.number(_types(eqn)) for eqn in self.eqns],
            "bytes": [sum(_jax.aval_bytes(var.aval) for var in written_vars(eqn)) for eqn in self.eqns],
            "flops": [cost.flops for cost in self.costs],
            "transcendentals": [cost.transcendentals for cost in self.costs],
            "seconds": [float(f"{s:.4g}") for s in seconds],
            "how": how,
            "state": [states.get(number, 0) for number in range(len(self.eqns))],
            "reads": [self._reads(eqn) for eqn in self.eqns],
            "sets": sets.listed(hex),
            "primitives": primitives.listed(),
            "places": places.listed(place),
            "types": types.listed(),
            "hows": list(HOW),
        }

    def _reads(self, eqn: Equation) -> list[int]:
        return [number for number in self.writers(read_vars(eqn)) if number >= 0]

    def _states(self) -> dict[int, int]:
        """1: the equation writes a value that is worth saving to some plan; 2: it is saved now."""
        found: dict[int, int] = dict.fromkeys(self.writers(self.engine.chooser.savable), 1)
        for state in self.engine.store.states:
            found.update(dict.fromkeys(self.writers(state.saved), 2))
        return found

    def _seconds(self) -> tuple[list[float], list[int]]:
        """Seconds of each equation, estimated, then scaled to the smallest timed program that holds it; and how.

        Of two programs of one size the whole function counts, so that the sum is the time that is shown for it.
        """
        chooser, segments = self.engine.chooser, self.engine.chooser.segments
        seconds, how = [self.facts.seconds(eqn) for eqn in self.eqns], [0] * len(self.eqns)
        whole_s = chooser.whole.seconds
        timed = [] if whole_s is None else [(self.eqns, whole_s, 1)]
        for group in (*segments.groups.values(), *([None] if segments.wanted else [])):
            measured_s = segments.measured_s(group)
            if measured_s is not None:
                plan = segments.top_plan() if group is None else segments.plan(group)
                timed.append((plan.eqns, measured_s, 2))
        for eqns, measured_s, kind in sorted(timed, key=lambda item: (-len(item[0]), -item[2])):
            factor = measured_s / max(sum(map(self.facts.seconds, eqns)), 1e-12)
            for number in [self.numbers[id(eqn)] for eqn in eqns if id(eqn) in self.numbers]:
                seconds[number], how[number] = factor * self.facts.seconds(self.eqns[number]), kind
        return seconds, how


def _types(eqn: Equation) -> str:
    return ", ".join(var.aval.str_short(short_dtypes=True) for var in written_vars(eqn))


def place(source: str) -> dict[str, Any]:
    """A place in the user's source, as JAX prints it, with the text of the line; without the folders above."""
    match = _PLACE.match(source)
    if match is None:
        return {"file": "", "line": 0, "function": source or "unknown", "code": ""}
    line = int(match["line"])
    code = linecache.getline(match["file"], line).strip()[:NUM_CODE]
    name = "/".join(PurePath(match["file"]).parts[-2:])
    return {"file": name, "line": line, "function": match["function"] or "unknown", "code": code}


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers as runs of (first, last), each once, in order."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
