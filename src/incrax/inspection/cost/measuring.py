"""Seconds and memory of the parts of a program, by runs.

In: a program, values, prices. Out: `Measured`. The program is cut where the user's function changes; each part is
compiled by itself, and so is the whole, which XLA fuses across the cuts: the parts' sum may be more, or less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Program, evaluator, read_vars, written_vars
from incrax._progress import Meter
from incrax.engine.program.cost import Calibration, Cost
from incrax.inspection.cost.places import Place, place_of

MAX_PARTS = 12
"""Parts of a program, at most; the cheapest neighbours are joined."""

MIN_REPEATS, MAX_REPEATS = 5, 50
SPENT_S = 0.5
"""Seconds of timed runs in all after which the fewest repeats do."""


@dataclass(frozen=True)
class Memory:
    """Bytes of arguments, results, and of what is in between, as XLA plans them; None where it does not tell."""

    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None


@dataclass(frozen=True)
class Part:
    """A part of a program, or the whole: name, number of equations, cost, median seconds of a run, memory."""

    name: str
    num_equations: int
    cost: Cost
    seconds: float
    memory: Memory


@dataclass(frozen=True)
class Measured:
    """A measured program: its name, its parts in order, the whole as one, and how many runs of each were timed."""

    name: str
    parts: tuple[Part, ...]
    whole: Part
    repeats: int

    @property
    def sum_s(self) -> float:
        """Seconds of all parts, one after the other."""
        return sum(part.seconds for part in self.parts)


class _Runnable(NamedTuple):
    """A compiled part."""

    name: str
    program: Program
    run: Any
    inputs: list[Any]


def measure(
    name: str, program: Program, leaves: Sequence[Any], cost_of: Callable[[Sequence[Equation]], Cost]
) -> Measured:
    """Compile and time a program and its parts; `cost_of` prices equations.

    Cost: compiles the program twice, as a whole and in parts; at least five runs of each.
    """
    cuts = parts_of(program)
    values: dict[Var, Any] = dict(zip(program.constvars, program.consts, strict=True))
    values.update(zip(program.invars, leaves, strict=True))
    with Meter(f"measuring {name}", len(cuts) + 1 + MIN_REPEATS) as meter:
        whole = _compiled(name, program, values)
        meter.advance()
        runnables = []
        for title, part in cuts:
            runnables.append(_compiled(title, part, values))
            results = jax.block_until_ready(runnables[-1].run(*runnables[-1].inputs))
            values.update(zip(part.outvars, results, strict=True))
            meter.advance()
        seconds = _medians([whole, *runnables], meter)
    pairs = zip([whole, *runnables], seconds.medians, strict=True)
    parts = [_part(each, median, cost_of(each.program.eqns)) for each, median in pairs]
    return Measured(name, tuple(parts[1:]), parts[0], seconds.repeats)


def _compiled(name: str, program: Program, values: dict[Var, Any]) -> _Runnable:
    run = evaluator(Program((*program.constvars, *program.invars), (), (), program.eqns, program.outvars))
    known = dict(zip(program.constvars, program.consts, strict=True))
    inputs = [known[var] if var in known else values[var] for var in (*program.constvars, *program.invars)]
    inputs = [jax.numpy.asarray(x, var.aval.dtype) if not _is_key(var) else x for x, var in _pairs(inputs, program)]
    return _Runnable(name, program, jax.jit(lambda *xs: run((), *xs)).lower(*inputs).compile(), inputs)


def _pairs(inputs: Sequence[Any], program: Program) -> list[tuple[Any, Var]]:
    return list(zip(inputs, (*program.constvars, *program.invars), strict=True))


def _is_key(var: Var) -> bool:
    return _jax.is_key_dtype(var.aval.dtype)


class _Times(NamedTuple):
    medians: list[float]
    repeats: int


def _medians(runnables: Sequence[_Runnable], meter: Meter) -> _Times:
    """Median seconds of each, over rounds in which each runs once."""
    for each in runnables:
        jax.block_until_ready(each.run(*each.inputs))
    rounds: list[list[float]] = []
    start_s = time.perf_counter()
    while len(rounds) < MIN_REPEATS or (len(rounds) < MAX_REPEATS and time.perf_counter() - start_s < SPENT_S):
        rounds.append([_seconds(each) for each in runnables])
        if len(rounds) <= MIN_REPEATS:
            meter.advance()
    return _Times([statistics.median(times) for times in zip(*rounds, strict=True)], len(rounds))


def _seconds(each: _Runnable) -> float:
    start_s = time.perf_counter()
    jax.block_until_ready(each.run(*each.inputs))
    return time.perf_counter() - start_s


def _part(each: _Runnable, seconds: float, cost: Cost) -> Part:
    return Part(each.name, len(each.program.eqns), cost, seconds, _memory(each.run))


def _memory(compiled: Any) -> Memory:
    """What XLA says; not every backend does."""
    try:
        found = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError):
        found = None
    names = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return Memory(*(getattr(found, name, None) for name in names))


# --- cuts ---------------------------------------------------------------------------------------------------------


def parts_of(program: Program) -> list[tuple[str, Program]]:
    """The program in parts, in order, each with a name; a part's results are what later ones read."""
    groups = _joined(_runs(program.eqns))
    needed = {atom for atom in program.outvars if isinstance(atom, Var)}
    constants = dict(zip(program.constvars, program.consts, strict=True))
    parts: list[tuple[str, Program]] = []
    for name, eqns in reversed(groups):
        written = [var for eqn in eqns for var in written_vars(eqn)]
        own = set(written)
        read = dict.fromkeys(var for eqn in eqns for var in read_vars(eqn) if var not in own)
        consts = [var for var in read if var in constants]
        inputs = tuple(var for var in read if var not in constants)
        outputs = tuple(var for var in written if var in needed)
        part = Program(inputs, tuple(consts), tuple(constants[var] for var in consts), tuple(eqns), outputs)
        parts.append((name, part))
        needed.update(inputs)
    return parts[::-1]


def _runs(eqns: Sequence[Equation]) -> list[tuple[str, list[Equation]]]:
    """Equations that follow each other and are of one function; of one line where there is one function only."""
    places = [place_of(_jax.source_line(eqn)) for eqn in eqns]
    has_many = len({(place.function, place.file) for place in places if place.function}) > 1
    runs: list[tuple[str, list[Equation]]] = []
    for place, eqn in zip(places, eqns, strict=True):
        name = _title(place, has_line=not has_many)
        if runs and name in (runs[-1][0], ""):
            runs[-1][1].append(eqn)
        else:
            runs.append((name, [eqn]))
    return runs


def _title(place: Place, *, has_line: bool) -> str:
    """A function with its file, or one line of it; empty where nobody knows."""
    if not place.file:
        return ""
    line = f"{place.file_name}:{place.line} ({place.function})"
    return line if has_line else f"{place.function} ({place.file_name})"


def _joined(runs: list[tuple[str, list[Equation]]]) -> list[tuple[str, list[Equation]]]:
    """Neighbours joined, the cheapest first, until there are few enough; the dearer one gives the name."""
    price = Calibration()
    prices = [sum(map(price.seconds, eqns)) for _, eqns in runs]
    runs = [(name or "(unknown)", eqns) for name, eqns in runs]
    while len(runs) > MAX_PARTS:
        k = min(range(len(runs) - 1), key=lambda k: prices[k] + prices[k + 1])
        dearer = k if prices[k] >= prices[k + 1] else k + 1
        runs[k : k + 2] = [(runs[dearer][0], [*runs[k][1], *runs[k + 1][1]])]
        prices[k : k + 2] = [prices[k] + prices[k + 1]]
    return runs
