"""Row axis: which values of a program have one entry a row, which reduce over rows, and in which
order they can be had.

In: one function traced for two numbers of rows. Out: how they compare, a `RowProgram`, or
`MixedRowsError`. The two traces tell the row axis by the shapes that differ and the numbers that
were made from the number of rows by the literals that differ (`rows.numbers`). It must not know
chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import STATEFUL, Program, from_jaxpr
from incrax.engine.inputs.messages import branches_on_rows, mixed_rows
from incrax.engine.program.simplify import inline_with_lines
from incrax.primitives.entry import Kind
from incrax.primitives.row_axis import Reduction, Verdict, row_verdict
from incrax.rows.numbers import CONSTANTS, OUTPUTS, Lifted, Number, NumberPlace, bits, lift

Pair = tuple[Any, Any]

NO_PLACE = -1
"""Stands for a row axis that cannot be told: another length than that of the rows, or two such
axes.
"""

LOOPS = frozenset({"scan", "while", "cond"})
FIRST = Reduction("first", ())
"""A value that a row-wise loop computes beside rows: the same for every chunk."""

IN_A_LOOP = (
    "reduces over rows inside a loop or a branch (for a gradient through a loop, take it row by "
    "row and add up after "
    "it: `jax.vmap(jax.grad(loss_of_a_row), (None, 0))`)"
)

_SIZED_PARAMS = frozenset(
    "shape reps new_sizes limit_indices slice_sizes sizes sharding out_sharding "
    "dimension_sizes".split()
)
"""Parameters of row-wise equations that may differ with the number of rows."""

_BODIES = frozenset("jaxpr body_jaxpr cond_jaxpr branches ft_in ft_out".split())
"""Parameters of loops and branches that are compared by themselves."""


@dataclass(frozen=True)
class RowProgram:
    """A program whose inputs start with arrays of rows, analysed.

    Fields: the program, in which numbers made from the number of rows are variables; those `sizes`,
    in the order of the `Number`s; how many inputs are arrays of rows; the row axis of each row-wise
    variable; reductions by the variable that they write; for a row-wise variable the pass over the
    rows in which it can be computed (from 1), for any other the pass after which it can (from 0).
    """

    program: Program
    sizes: tuple[Var, ...]
    num_row_inputs: int
    axes: dict[Var, int]
    reductions: dict[Var, Reduction]
    passes: dict[Var, int]

    def axis(self, atom: Atom) -> int | None:
        """The row axis of an atom; None where it has none."""
        return self.axes.get(atom) if isinstance(atom, Var) else None

    @cached_property
    def names(self) -> dict[Var, int]:
        """Numbers of the variables, the same in the analyses of one function for other numbers of
        rows.
        """
        written = [v for eqn in self.program.eqns for v in eqn.outvars]
        return {v: n for n, v in enumerate([*self.program.invars, *written])}


class RowsComparison(NamedTuple):
    """Two traces side by side: row axes and reductions of the first one, places where numbers
    differ.
    """

    axes: dict[Var, int]
    reductions: dict[Var, Reduction]
    places: tuple[NumberPlace, ...]


def compare_rows(
    program: Program, other: Program, num_rows: int, num_others: int
) -> RowsComparison:
    """Compare one function traced for `num_rows` and, as `other`, for another number of rows.

    Raises:
        MixedRowsError: an equation neither maps rows to the same rows nor reduces over them, or the
            two traces differ in more than shapes and numbers.
    """
    walk = _Walk(num_rows, num_others)
    walk.match(program, other)
    axes = {var: axis for var, axis in walk.axes.items() if axis is not None}
    reductions = {
        var: found for var, found in walk.reductions.items() if not isinstance(var, _jax.DropVar)
    }
    return RowsComparison(axes, reductions, tuple(walk.places))


def analyse_rows(
    program: Program, found: RowsComparison, numbers: Sequence[Number], num_row_inputs: int
) -> RowProgram:
    """The program with these numbers as inputs, analysed."""
    return with_passes(lift(program, numbers), num_row_inputs, found.axes, found.reductions)


class _Walk:
    """Both traces side by side: row axes, reductions, and places where numbers differ."""

    def __init__(self, num_rows: int, num_others: int) -> None:
        self.num_rows = num_rows
        self.num_others = num_others
        self.axes: dict[Var, int | None] = {}
        self.reductions: dict[Var, Reduction] = {}
        self.places: list[NumberPlace] = []
        self.partner: dict[Var, Var] = {}

    def match(self, program: Program, other: Program, *, is_inner: bool = False) -> None:
        """Walk both programs; inside a loop or a branch nothing may be reduced and no number may
        differ.
        """
        self._bind([*program.invars, *program.constvars], [*other.invars, *other.constvars])
        for number, pair in enumerate(zip(program.consts, other.consts, strict=False)):
            self._match_constants(program.constvars[number], pair, number, is_inner=is_inner)
        if len(program.eqns) != len(other.eqns):
            raise branches_on_rows(f"{len(program.eqns)} and {len(other.eqns)} equations")
        for number, pair in enumerate(zip(program.eqns, other.eqns, strict=True)):
            self._match_equation(pair, number, is_inner=is_inner)
        for number, pair in enumerate(zip(program.outvars, other.outvars, strict=True)):
            self._match_atom(pair, NumberPlace(OUTPUTS, number), "the result", is_inner=is_inner)

    def _bind(self, variables: Sequence[Var], others: Sequence[Var]) -> None:
        if len(variables) != len(others):
            raise branches_on_rows("another number of constants")
        for var, other in zip(variables, others, strict=True):
            self.partner[var] = other
            self.axes[var] = self._axis(var, other)

    def _axis(self, var: Any, other: Any) -> int | None:
        shape = getattr(var.aval, "shape", ())
        others = getattr(other.aval, "shape", ())
        if len(shape) != len(others):
            raise branches_on_rows(f"types {_type(var)} and {_type(other)}")
        differing = [d for d, (n, m) in enumerate(zip(shape, others, strict=True)) if n != m]
        if not differing:
            return None
        axis = differing[0]
        is_told = (
            len(differing) == 1 and shape[axis] == self.num_rows and others[axis] == self.num_others
        )
        return axis if is_told else NO_PLACE

    def _match_constants(self, var: Var, pair: Pair, number: int, *, is_inner: bool) -> None:
        a, b = pair
        if self.axes[var] is not None:
            raise mixed_rows("constant", "", "has one entry a row", _type(var))
        if _same_number(a, b):
            return
        if np.shape(a) != () or is_inner:
            raise branches_on_rows(f"other values in a constant {_type(var)}")
        self.places.append(NumberPlace(CONSTANTS, number))

    def _match_atom(self, pair: Pair, place: NumberPlace, where: str, *, is_inner: bool) -> None:
        a, b = pair
        if isinstance(a, Literal) is not isinstance(b, Literal):
            raise branches_on_rows(f"a number in the place of a value in {where}")
        if isinstance(a, Var):
            if self.partner.get(a) is not b:
                raise branches_on_rows(f"other inputs of {where}")
        elif not _same_number(a.val, b.val):
            if is_inner:
                raise branches_on_rows(
                    f"the number {a.val} or {b.val} inside a loop or a branch, in {where}"
                )
            self.places.append(place)

    def _match_equation(
        self, pair: tuple[Equation, Equation], number: int, *, is_inner: bool
    ) -> None:
        eqn, other = pair
        where = f"`{eqn.primitive.name}` at {_jax.source_line(eqn)}"
        if eqn.primitive is not other.primitive or len(eqn.invars) != len(other.invars):
            raise branches_on_rows(f"{where} in the place of `{other.primitive.name}`")
        for place, atoms in enumerate(zip(eqn.invars, other.invars, strict=True)):
            self._match_atom(atoms, NumberPlace(number, place), where, is_inner=is_inner)
        self._bind(eqn.outvars, other.outvars)
        ins = [self.axes[a] if isinstance(a, Var) else None for a in eqn.invars]
        outs = [self.axes[v] for v in eqn.outvars]
        is_global = all(axis is None for axis in (*ins, *outs))
        if eqn.effects or eqn.primitive.name in STATEFUL:
            raise _refusal(eqn, "has an effect beside its result, which would happen once a chunk")
        verdict = self._nested(pair, ins, outs) if eqn.primitive.name in LOOPS else None
        if verdict is None and not is_global and eqn.primitive.name not in LOOPS:
            verdict = row_verdict(eqn, ins, outs)
        self._enter(eqn, verdict, outs, is_global=is_global, is_inner=is_inner)
        self._match_params(eqn, other, where, is_global=is_global)

    def _match_params(self, eqn: Equation, other: Equation, where: str, *, is_global: bool) -> None:
        is_loop = eqn.primitive.name in LOOPS
        for name, value in eqn.params.items():
            is_body = name in _BODIES if is_loop else name.endswith("_jaxpr") and value is not None
            is_sized = not is_global and not is_loop and name in _SIZED_PARAMS
            if not is_body and not is_sized and not _same_param(value, other.params.get(name)):
                raise branches_on_rows(f"another `{name}` of {where}")

    def _nested(
        self, pair: tuple[Equation, Equation], ins: Sequence[Any], outs: Sequence[Any]
    ) -> Verdict:
        eqn, other = pair
        if eqn.primitive.name == "scan":
            num_consts, num_carry = _jax.scan_counts(eqn)
            if 0 in ins[num_consts + num_carry :] or 0 in outs[num_carry:]:
                return Kind("loops over the rows")
        for body, other_body in zip(_jax.sub_bodies(eqn), _jax.sub_bodies(other), strict=True):
            self.match(
                inline_with_lines(from_jaxpr(body)),
                inline_with_lines(from_jaxpr(other_body)),
                is_inner=True,
            )
        return None

    def _enter(
        self,
        eqn: Equation,
        verdict: Verdict,
        outs: Sequence[Any],
        *,
        is_global: bool,
        is_inner: bool,
    ) -> None:
        """Note what an equation does to rows, or refuse it."""
        if isinstance(verdict, Kind):
            raise _refusal(eqn, verdict.mixes)
        if NO_PLACE in outs:
            raise _refusal(eqn, "makes an array with another number of entries than there are rows")
        if verdict is not None:
            if is_inner:
                raise _refusal(eqn, IN_A_LOOP)
            self.reductions[eqn.outvars[0]] = verdict
        elif not is_global and None in outs:
            if eqn.primitive.name not in LOOPS and eqn.primitive.name != _jax.KEEP:
                raise _refusal(eqn, "loses the row axis")
            if not is_inner:
                self.reductions.update(
                    {v: FIRST for v, a in zip(eqn.outvars, outs, strict=True) if a is None}
                )


def _refusal(eqn: Equation, what: str) -> Exception:
    types = ", ".join(_type(atom) for atom in eqn.invars)
    return mixed_rows(eqn.primitive.name, _jax.source_line(eqn), what, types)


def _type(atom: Any) -> str:
    return atom.aval.str_short(short_dtypes=True)


def _same_number(a: Any, b: Any) -> bool:
    return a is b or bits(a) == bits(b)


def _same_param(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _same_number(a, b)
    return a is b or type(a) is type(b) and (a == b or repr(a) == repr(b))


# --- passes ---------------------------------------------------------------------------------------


def with_passes(
    lifted: Lifted, num_row_inputs: int, axes: dict[Var, int], reductions: dict[Var, Reduction]
) -> RowProgram:
    """The analysis, with the passes over the rows counted."""
    program = lifted.program
    passes: dict[Var, int] = dict.fromkeys((*program.invars, *program.constvars, *lifted.sizes), 0)
    passes.update(dict.fromkeys(program.invars[:num_row_inputs], 1))
    for eqn in program.eqns:
        _enter_passes(eqn, axes, reductions, passes)
    return RowProgram(program, lifted.sizes, num_row_inputs, axes, reductions, passes)


def _enter_passes(
    eqn: Equation, axes: dict[Var, int], reductions: dict[Var, Reduction], passes: dict[Var, int]
) -> None:
    """Row-wise: the latest pass of its rows, and one after that of anything else; not row-wise: the
    latest of all.
    """
    inputs = [a for a in eqn.invars if isinstance(a, Var)]
    is_row_wise = any(a in axes for a in (*inputs, *eqn.outvars))
    start = next((r.start for v in eqn.outvars if (r := reductions.get(v)) is not None), None)
    if start is not None:
        inputs = [a for i, a in enumerate(eqn.invars) if isinstance(a, Var) and i != start]
    found = [passes[a] + (is_row_wise and a not in axes) for a in inputs]
    number = max(found, default=0)
    if start is not None and isinstance(eqn.invars[start], Var):
        number = max(number, passes[eqn.invars[start]])
    passes.update(dict.fromkeys(eqn.outvars, max(number, 1) if is_row_wise else number))
