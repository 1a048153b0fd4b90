"""Numbers made from the number of rows: where they stand in a program, how they follow, the program
with variables in their places, and how sums over rows grow with them.

In: places where the traces of a function for several numbers of rows differ. Out: `Number`s, a
program of which they are inputs, and the exponents of what equations compute. It must not know
chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import Program
from incrax.engine.inputs.leaves import same_bits
from incrax.primitives.row_axis import Reduction
from incrax.primitives.table import algebra_of

Degree: TypeAlias = tuple[float, float]
"""The exponents of N and of N - 1 in a value."""

NONE: Degree = (0.0, 0.0)
ZERO: Degree = (math.inf, math.inf)
"""Of the value zero, which grows as anything."""


class SizeForm(NamedTuple):
    """How a number follows from N rows, and how it grows: N**a (N - 1)**b, but for its sign."""

    value: Callable[[int], float]
    degree: Degree

    def assumed(self, num_rows: int) -> float:
        """The number as if what it grows with, N or N - 1, were so many."""
        return self.value(num_rows + bool(self.degree[1]))


FORMS = (
    SizeForm(lambda n: n, (1.0, 0.0)),
    SizeForm(lambda n: 1 / n, (-1.0, 0.0)),
    SizeForm(lambda n: n - 1, (0.0, 1.0)),
    SizeForm(lambda n: 1 / max(n - 1, 1), (0.0, -1.0)),
    SizeForm(lambda n: -n, (1.0, 0.0)),
    SizeForm(lambda n: -1 / n, (-1.0, 0.0)),
    SizeForm(lambda n: math.sqrt(n), (0.5, 0.0)),
)
"""What numbers made from the number of rows usually are; others cost a trace for each number of
rows.
"""


class Sized:
    """A function traced for a number of rows; `atoms` are all that is read, the results last, by
    places that are those of every other trace.
    """

    def __init__(self, num_rows: int, program: Program) -> None:
        self.num_rows = num_rows
        self.program = program
        self.atoms = [atom for eqn in program.eqns for atom in eqn.invars]
        self.atoms += program.outvars


def fits(form: SizeForm, place: int, trace: Sized) -> bool:
    """Whether the number at a place of a trace has a form, to the bit."""
    atom = trace.atoms[place]
    dtype = atom.aval.dtype
    made = np.asarray(form.value(trace.num_rows)).astype(dtype)
    return same_bits(made, np.asarray(atom.val, dtype))


class Number(NamedTuple):
    """A number made from the number of rows: where it stands, and its form (None: none of
    `FORMS`).
    """

    place: int
    form: SizeForm | None


class Lifted(NamedTuple):
    """A program in which numbers made from the number of rows are variables."""

    program: Program
    sizes: dict[Var, Number]


def lift(trace: Sized, forms: Mapping[int, SizeForm | None]) -> Lifted:
    """The program with a variable in each of these places."""
    atoms = list(trace.atoms)
    sizes: dict[Var, Number] = {}
    for place in sorted(forms):
        var = atoms[place] = _jax.new_var(atoms[place].aval)
        sizes[var] = Number(place, forms[place])
    rest = iter(atoms)
    program = trace.program
    eqns = [eqn.replace(invars=[next(rest) for _ in eqn.invars]) for eqn in program.eqns]
    return Lifted(program.with_eqns(eqns, tuple(rest)), sizes)


def typed_as(var: Var, value: Any) -> Any:
    """A number as programs take it: a Python number where the variable has a weak type."""
    array = np.asarray(value, var.aval.dtype)
    is_weak = getattr(var.aval, "weak_type", False)
    is_same = jax.dtypes.canonicalize_dtype(type(array.item())) == array.dtype
    return array.item() if is_weak and is_same else array[()]


# --- sums over rows -------------------------------------------------------------------------------

# The pullback of a mean multiplies every row by 1/N. What is appended changes N, and with it the
# partial results of all chunks. But sum_n N**d r[n] = (N / M)**d sum_n M**d r[n]: chunks are
# evaluated as if there were M rows, and the sum is multiplied once. New rows then leave the other
# chunks alone. M is a power of four near N, so that it and its root round nothing, and values have
# about the range that they had: in single precision sum_n r[n] may overflow where the mean does
# not. M is chosen again when N is far from it. Factors made of parameters stay where they are (see
# `engine.rewrites.factors` for what moving them takes).

MIN_EXPONENT = 127
"""Powers of two that a dtype must hold for a factor to be moved: not half precision."""


def degrees_of(
    eqns: Sequence[Equation],
    sizes: Mapping[Var, SizeForm | None],
    reductions: Mapping[Var, Reduction],
    targets: Sequence[Var],
) -> tuple[Degree, ...] | None:
    """How the targets grow with the number of rows; None where no number of rows is read, or one of
    them does not follow so, or is not the same in all targets but sums.
    """
    found = {var: form.degree for var, form in sizes.items() if form is not None}
    if not found or len(found) < len(sizes):
        return None
    for eqn in eqns:
        starts = {reductions[v].start for v in eqn.outvars if v in reductions}
        ins = [ZERO if n in starts else _degree(found, a) for n, a in enumerate(eqn.invars)]
        degree = _grown(eqn, ins)
        has_room = degree in (NONE, ZERO) or all(map(_has_range, eqn.outvars))
        if degree is None or not has_room:
            return None
        found.update(dict.fromkeys(eqn.outvars, degree))
    degrees = tuple(_degree(found, v) for v in targets)
    sums = [v in reductions and reductions[v].kind == "sum" for v in targets]
    is_same = all(flag or d in (NONE, ZERO) for d, flag in zip(degrees, sums, strict=True))
    return degrees if is_same else None


def scales_at(degrees: Iterable[Degree], num_rows: int, assumed: int) -> np.ndarray:
    """What to multiply sums by that were made as if there were so many rows."""
    ratios = [(num_rows - offset) / assumed for offset in (0, 1)]
    return np.array(
        [1.0 if d == ZERO else _power(ratios[0], d[0]) * _power(ratios[1], d[1]) for d in degrees]
    )


def _power(ratio: float, exponent: float) -> float:
    """As a quotient where the exponent is negative: it has the same digits for all assumed
    numbers.
    """
    return 1 / ratio**-exponent if exponent < 0 else ratio**exponent


def _degree(found: Mapping[Var, Degree], atom: Atom) -> Degree:
    if isinstance(atom, Literal):
        return NONE if np.any(atom.val) else ZERO
    return found.get(atom, NONE)


def _has_range(var: Any) -> bool:
    dtype = var.aval.dtype
    is_real = isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.floating)
    return is_real and int(jnp.finfo(dtype).maxexp) >= MIN_EXPONENT


def _grown(eqn: Equation, ins: Sequence[Degree]) -> Degree | None:
    """The degree of what an equation computes; None where it is not homogeneous."""
    algebra = algebra_of(eqn)
    form = "" if algebra is None else algebra.form
    first, *others = ins or [NONE]
    is_fixed = all(d in (NONE, ZERO) for d in others)
    if algebra is not None and form in ("linear", "sum", "joined"):
        added = {d for n, d in enumerate(ins) if algebra.sign(n)} - {ZERO}
        is_chosen = all(d in (NONE, ZERO) for n, d in enumerate(ins) if not algebra.sign(n))
        return (added or {ZERO}).pop() if len(added) <= 1 and is_chosen else None
    if form == "product":
        return ZERO if ZERO in ins else (first[0] + others[0][0], first[1] + others[0][1])
    if is_fixed and first in (NONE, ZERO):
        return NONE
    if form == "quotient" and ZERO not in ins:
        return first[0] - others[0][0], first[1] - others[0][1]
    if form == "power":
        power = eqn.params.get("y", 2)
        return first[0] * power, first[1] * power
    return None
