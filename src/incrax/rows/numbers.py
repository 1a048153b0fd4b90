"""Numbers made from the number of rows: where they stand in a program, how they follow, and the
program with variables in their places.

In: places where the traces of a function for several numbers of rows differ. Out: `Number`s, and a
program of which they are inputs. It must not know rows or chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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

    def atom_in(self, program: Program) -> Any:
        """The constant, or what is read there."""
        if self.eqn == CONSTANTS:
            return program.constvars[self.number]
        atoms = program.outvars if self.eqn == OUTPUTS else program.eqns[self.eqn].invars
        return atoms[self.number]

    def value_in(self, program: Program) -> Any:
        """The number in the trace for one number of rows."""
        is_constant = self.eqn == CONSTANTS
        return program.consts[self.number] if is_constant else self.atom_in(program).val


class SizeForm(NamedTuple):
    """How a number follows from n rows: `value(n)`, which is c (n - offset)**exponent."""

    value: Callable[[int], float]
    offset: int
    exponent: float


FORMS = (
    SizeForm(lambda n: n, 0, 1.0),
    SizeForm(lambda n: 1 / n, 0, -1.0),
    SizeForm(lambda n: n - 1, 1, 1.0),
    SizeForm(lambda n: 1 / max(n - 1, 1), 1, -1.0),
    SizeForm(lambda n: -n, 0, 1.0),
    SizeForm(lambda n: -1 / n, 0, -1.0),
    SizeForm(lambda n: math.sqrt(n), 0, 0.5),
)
"""What numbers made from the number of rows usually are; others cost a trace for each number of
rows.
"""


class Sized(NamedTuple):
    """A function traced for a number of rows."""

    num_rows: int
    program: Program


def bits(value: Any) -> tuple[Any, ...]:
    """What two values have in common that are the same number or array."""
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def fits(form: SizeForm, place: NumberPlace, trace: Sized) -> bool:
    """Whether the number at a place of a trace has a form, to the bit."""
    dtype = place.atom_in(trace.program).aval.dtype
    value = np.asarray(place.value_in(trace.program), dtype)
    return bits(np.asarray(form.value(trace.num_rows)).astype(dtype)) == bits(value)


class Number(NamedTuple):
    """A number made from the number of rows: all places where it stands, and its form (None: none
    of `FORMS`).
    """

    places: tuple[NumberPlace, ...]
    form: SizeForm | None


def numbers_at(
    forms: Mapping[NumberPlace, SizeForm | None], program: Program
) -> tuple[Number, ...]:
    """The numbers at these places: one of each form and type; a constant, and what has no form, by
    itself.
    """
    groups: dict[Any, list[NumberPlace]] = {}
    for place, form in sorted(forms.items(), key=lambda item: item[0]):
        aval = place.atom_in(program).aval
        is_own = form is None or place.eqn == CONSTANTS
        key = place if is_own else (form, str(aval), getattr(aval, "weak_type", False))
        groups.setdefault(key, []).append(place)
    return tuple(Number(tuple(places), forms[places[0]]) for places in groups.values())


class Lifted(NamedTuple):
    """A program in which numbers made from the number of rows are variables."""

    program: Program
    sizes: dict[Var, Number]


def lift(program: Program, numbers: Sequence[Number]) -> Lifted:
    """The program with variables in the places of these numbers."""
    eqns = list(program.eqns)
    outvars = list(program.outvars)
    sizes: dict[Var, Number] = {}
    for number in numbers:
        atom = number.places[0].atom_in(program)
        is_constant = number.places[0].eqn == CONSTANTS
        var = atom if is_constant else _jax.new_var(atom.aval)
        sizes[var] = number
        for place in () if is_constant else number.places:
            atoms = outvars if place.eqn == OUTPUTS else list(eqns[place.eqn].invars)
            atoms[place.number] = var
            if place.eqn >= 0:
                eqns[place.eqn] = eqns[place.eqn].replace(invars=atoms)
    constants = zip(program.constvars, program.consts, strict=True)
    kept = {var: value for var, value in constants if var not in sizes}
    lifted = Program(program.invars, tuple(kept), tuple(kept.values()), tuple(eqns), tuple(outvars))
    return Lifted(lifted, sizes)
