"""Numbers made from the number of rows: where they stand in a program, how they follow, the program
with variables in their places, and how sums over rows grow with them.

In: places where the traces of a function for several numbers of rows differ. Out: `Number`s, a
program of which they are inputs, and which of them multiply sums. It must not know chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Program, read_vars
from incrax.engine.inputs.leaves import same_bits
from incrax.engine.rewrites.forms import Factors, Forms
from incrax.primitives.row_axis import Reduction

SizeForm: TypeAlias = Callable[[int], float]
"""How a number follows from the number of rows."""

FORMS: tuple[SizeForm, ...] = (
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
    made = np.asarray(form(trace.num_rows)).astype(dtype)
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
    """The program with a variable in each of these places, the same for numbers of one form."""
    atoms = list(trace.atoms)
    known: dict[Any, Var] = {}
    sizes: dict[Var, Number] = {}
    for place in sorted(forms):
        aval = atoms[place].aval
        var = known.setdefault((forms[place] or place, aval), _jax.new_var(aval))
        atoms[place] = var
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

# The pullback of a mean multiplies every row by z = 1/N. What is appended changes N, and with it the
# partial results of all chunks. But sum_n z r[n] = (z / p) sum_n p r[n]: chunks are evaluated as if
# z was p, and the sum is multiplied once. New rows then leave the other chunks alone. p is a power of
# two near z, so that it rounds nothing, and values have about the range that they had: in single
# precision sum_n r[n] may overflow where the mean does not. p is chosen again when N is far from
# where it was. Factors made of parameters stay where they are (see `engine.rewrites.factors` for
# what moving them takes).

MIN_EXPONENT = 127
"""Powers of two that a dtype must hold for a factor to be moved: not half precision."""


def assumed_numbers(sizes: Mapping[Var, Number], num_rows: int) -> dict[Var, Any]:
    """What chunks are evaluated with in the place of the numbers that have a form, so that this
    holds for about so many rows.
    """
    known = {var: form(num_rows) for var, (_, form) in sizes.items() if form is not None}
    power = lambda value: math.copysign(2.0 ** round(math.log2(abs(value))), value)
    return {var: typed_as(var, power(value)) for var, value in known.items()}


def factors_of(
    eqns: Sequence[Equation],
    sizes: Collection[Var],
    reductions: Mapping[Var, Reduction],
    targets: Sequence[Var],
) -> tuple[Factors, ...] | None:
    """By which of some numbers each target is multiplied or divided; None where one of them depends
    on these in another way, or is multiplied and no sum.
    """
    dirty = set(sizes)
    for eqn in eqns:
        if not dirty.isdisjoint(read_vars(eqn)):
            dirty.update(eqn.outvars)
    forms = Forms(eqns, dirty.__contains__, follows_scalars=True)
    reached = dirty.intersection(targets)
    sums = {var for var, reduction in reductions.items() if reduction.kind == "sum"}
    found = {var: forms.of[var] for var in reached & sums & forms.of.keys()}
    if len(found) < len(reached) or not all(map(_has_range, dirty)):
        return None
    read = {var for form in found.values() for var, _ in form.factors}
    if any(form.degree for form in found.values()) or not read <= set(sizes):
        return None
    return tuple(found[var].factors if var in found else () for var in targets)


def scales_at(
    factors: Sequence[Factors], assumed: Mapping[Var, Any], values: Mapping[Var, Any]
) -> np.ndarray:
    """What to multiply sums by that were made with the assumed numbers."""
    ratios = {var: float(values[var]) / float(assumed[var]) for own in factors for var, _ in own}
    powers = [[1 / ratios[var] if inverse else ratios[var] for var, inverse in x] for x in factors]
    return np.array(list(map(math.prod, powers)))


def _has_range(var: Any) -> bool:
    dtype = var.aval.dtype
    is_real = isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.floating)
    return is_real and int(jnp.finfo(dtype).maxexp) >= MIN_EXPONENT
