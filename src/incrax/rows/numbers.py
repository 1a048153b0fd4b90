"""Numbers made from the number of rows: where they stand in a program, which of them are one, and
how they follow.

In: places where the traces of a function for several numbers of rows differ. Out: `Number`s, and a
program of which they are inputs. It must not know rows or chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from incrax import _jax
from incrax._jax import Var
from incrax._program import Program

CONSTANTS = -1
OUTPUTS = -2
"""Stand for the equation of a place that is in none."""


class NumberPlace(NamedTuple):
    """Where a number made from the number of rows stands: equation (or `CONSTANTS`, `OUTPUTS`) and
    input.
    """

    eqn: int
    number: int

    def value_in(self, program: Program) -> Any:
        """The number in the trace for one number of rows."""
        return program.consts[self.number] if self.eqn == CONSTANTS else self._atom_in(program).val

    def _atom_in(self, program: Program) -> Any:
        """The constant, or what is read there."""
        if self.eqn == CONSTANTS:
            return program.constvars[self.number]
        atoms = program.outvars if self.eqn == OUTPUTS else program.eqns[self.eqn].invars
        return atoms[self.number]

    def aval_in(self, program: Program) -> Any:
        """The type of the number."""
        return self._atom_in(program).aval


class Number(NamedTuple):
    """A number made from the number of rows: all places where it stands, and its form (None: none
    of `FORMS`).
    """

    places: tuple[NumberPlace, ...]
    form: int | None


FORMS: tuple[Callable[[int], float], ...] = (
    lambda n: n,
    lambda n: 1 / n,
    lambda n: n - 1,
    lambda n: 1 / max(n - 1, 1),
    lambda n: -n,
    lambda n: -1 / n,
    lambda n: math.sqrt(n),
)
"""What numbers made from the number of rows usually are; others cost a trace for each number of
rows.
"""


def bits(value: Any) -> tuple[Any, ...]:
    """What two values have in common that are the same number or array."""
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


class Sized(NamedTuple):
    """A function traced for a number of rows."""

    num_rows: int
    program: Program


def with_form(places: tuple[NumberPlace, ...], traces: Iterable[Sized]) -> Number:
    """The number at these places, with the first form that fits in all traces."""
    traces = list(traces)
    fitting = (f for f in range(len(FORMS)) if all(_fits(f, places[0], trace) for trace in traces))
    return Number(places, next(fitting, None))


def refined(
    numbers: Sequence[Number], places: Iterable[NumberPlace], first: Sized, other: Sized
) -> tuple[Number, ...]:
    """The numbers after one more trace: with new places, no form that fails in it, and apart where
    they differ in it.

    What differs from the first trace in no earlier one but in this one has no form: all forms
    differ at all numbers.
    """
    known = {place for number in numbers for place in number.places}
    found = []
    for number in numbers:
        for part in _by_value(number.places, other.program):
            is_fitting = number.form is not None and _fits(number.form, part[0], other)
            found.append(Number(part, number.form if is_fitting else None))
    new = sorted(set(places) - known)
    for group in _by_value(new, first.program):
        found.extend(Number(part, None) for part in _by_value(group, other.program))
    return tuple(found)


def _by_value(places: Iterable[NumberPlace], program: Program) -> list[tuple[NumberPlace, ...]]:
    """Places with the same number of the same type; a constant is a number of its own."""
    groups: dict[Any, list[NumberPlace]] = {}
    for place in places:
        aval = place.aval_in(program)
        own = place if place.eqn == CONSTANTS else None
        key = own, str(aval), getattr(aval, "weak_type", False), bits(place.value_in(program))
        groups.setdefault(key, []).append(place)
    return [tuple(group) for group in groups.values()]


def _fits(form: int, place: NumberPlace, trace: Sized) -> bool:
    aval = place.aval_in(trace.program)
    value = np.asarray(place.value_in(trace.program), aval.dtype)
    return (
        value.shape == ()
        and np.asarray(FORMS[form](trace.num_rows)).astype(aval.dtype).tobytes() == value.tobytes()
    )


class Lifted(NamedTuple):
    """A program in which numbers made from the number of rows are variables, in order."""

    program: Program
    sizes: tuple[Var, ...]


def lift(program: Program, numbers: Sequence[Number]) -> Lifted:
    """The program with variables in the places of these numbers."""
    eqns = list(program.eqns)
    outvars = list(program.outvars)
    sizes: list[Var] = []
    for number in numbers:
        first = number.places[0]
        is_constant = first.eqn == CONSTANTS
        var = (
            program.constvars[first.number] if is_constant else _jax.new_var(first.aval_in(program))
        )
        sizes.append(var)
        for place in () if is_constant else number.places:
            atoms = outvars if place.eqn == OUTPUTS else list(eqns[place.eqn].invars)
            atoms[place.number] = var
            if place.eqn >= 0:
                eqns[place.eqn] = eqns[place.eqn].replace(invars=atoms)
    gone = set(sizes)
    kept = [(v, c) for v, c in zip(program.constvars, program.consts, strict=True) if v not in gone]
    constvars = tuple(v for v, _ in kept)
    consts = tuple(c for _, c in kept)
    return Lifted(
        Program(program.invars, constvars, consts, tuple(eqns), tuple(outvars)), tuple(sizes)
    )
