"""Row axis: which values of a program have one entry a row, and which reduce over rows.

In: one function traced for two numbers of rows. Out: how they compare. The two traces tell the row
axis by the shapes that differ, and the numbers that were made from the number of rows by the
literals that differ (`rows.numbers`). It must not know chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import STATEFUL, Program, from_jaxpr
from incrax.engine.inputs.leaves import same_bits
from incrax.engine.program.simplify import inline_with_solves
from incrax.engine.program.structure import value_key
from incrax.errors import MixedRowsError
from incrax.primitives.entry import GONE, Kind
from incrax.primitives.row_axis import UNKNOWN, Reduction, Verdict, row_verdict

Pair = tuple[Any, Any]

CURE = (
    "Nothing was evaluated or stored. A function of `Rows` may map over rows and reduce over them "
    "(sum, mean, max, min, prod, all, any, matrix products), in any number of rounds. Write it so, "
    "or pass plain arrays: `rows.tree()`."
)

NO_PLACE = -1
"""Stands for a row axis that cannot be told: another length than that of the rows, or two such
axes.
"""

IDEMPOTENT = frozenset({"max", "min", "and", "or"})
"""Kinds of reductions to which rows that stand there twice, and a start, change nothing."""

LOOPS = frozenset({"scan", "while", "cond"})
FIRST = Reduction("first", ())
"""A value that a row-wise loop computes beside rows: the same for every chunk."""

IN_A_LOOP = Kind(
    "reduces over rows inside a loop or a branch (for a gradient through a loop, take it row by "
    "row and add up after it: `jax.vmap(jax.grad(loss_of_a_row), (None, 0))`)"
)
EFFECT = Kind("has an effect beside its result, which would happen once a chunk")
OTHER_LENGTH = Kind("makes an array with another number of entries than there are rows")
OVER_ROWS = Kind("loops over the rows")

_SIZED_PARAMS = frozenset(
    "shape reps new_sizes limit_indices slice_sizes sizes sharding out_sharding dimension_sizes".split()
)
"""Parameters of row-wise equations that may differ with the number of rows."""

_BODIES = "jaxpr", "branches", "ft_in", "ft_out"
"""How parameters end that hold equations: those of loops and branches are compared by themselves."""


def refuse(eqn: Equation, kind: Kind) -> None:
    """Raise `MixedRowsError` with the line of an equation that mixes rows."""
    line = _jax.source_line(eqn)
    types = ", ".join(_jax.short_type(atom.aval) for atom in eqn.invars) or "no inputs"
    raise mixed_rows(
        f"`{eqn.primitive.name}`{f' at {line}' if line else ''}, of {types}", kind.mixes
    )


def mixed_rows(where: str, what: str) -> MixedRowsError:
    """An equation or a constant that neither maps over rows nor reduces over them."""
    return MixedRowsError(
        "`incremental(f)` got `Rows`, which are evaluated chunk by chunk, and f mixes rows: "
        f"{where}, {what}. {CURE}"
    )


def branches_on_rows(difference: str) -> MixedRowsError:
    """Traces for two numbers of rows that are not alike."""
    return MixedRowsError(
        "`incremental(f)` got `Rows`, and f is another function for another number of rows: two "
        f"traces differ by {difference}. This is usually a Python branch on the number of rows, or "
        f"a loop over them. {CURE}"
    )


class RowsComparison:
    """Two traces side by side.

    Fields: the row axis of each variable of the first one (None: it has none); reductions by the
    variable that they write; places where numbers differ. `refuse` is called for an equation that
    neither maps rows to the same rows nor reduces over them; if it returns, the walk goes on.
    """

    def __init__(
        self, num_rows: int, num_others: int, refuse: Callable[[Equation, Kind], None] = refuse
    ) -> None:
        self.lengths = num_rows, num_others
        self.refuse = refuse
        self.axes: dict[Var, int | None] = {}
        self.reductions: dict[Var, Reduction] = {}
        self.places: list[int] = []
        self._partner: dict[Var, Var] = {}
        self._is_inner = False

    def match(self, program: Program, other: Program) -> None:
        """Walk both programs; inside a loop or a branch nothing may be reduced and no number may
        differ.

        Raises:
            MixedRowsError: rows are mixed, or the traces differ in more than shapes and numbers.
        """
        self._bind([*program.invars, *program.constvars], [*other.invars, *other.constvars])
        for var, *pair in zip(program.constvars, program.consts, other.consts, strict=True):
            if self.axes[var] is not None:
                raise mixed_rows(
                    f"`constant`, of {_jax.short_type(var.aval)}", "has one entry a row"
                )
            if not _same_number(*pair):
                raise branches_on_rows(f"other values in a constant {_jax.short_type(var.aval)}")
        if len(program.eqns) != len(other.eqns):
            raise branches_on_rows(f"{len(program.eqns)} and {len(other.eqns)} equations")
        place = 0
        for pair in zip(program.eqns, other.eqns, strict=True):
            self._match_equation(pair, place)
            place += len(pair[0].invars)
        self._match_atoms((program.outvars, other.outvars), place, "the result")

    def _bind(self, variables: Sequence[Var], others: Sequence[Var]) -> None:
        if len(variables) != len(others):
            raise branches_on_rows("another number of constants")
        for var, other in zip(variables, others, strict=True):
            self._partner[var] = other
            self.axes[var] = self._axis(var, other)

    def _axis(self, var: Any, other: Any) -> int | None:
        shape = getattr(var.aval, "shape", ())
        others = getattr(other.aval, "shape", ())
        if len(shape) != len(others):
            raise branches_on_rows(
                f"types {_jax.short_type(var.aval)} and {_jax.short_type(other.aval)}"
            )
        pairs = enumerate(zip(shape, others, strict=True))
        differing = {d: pair for d, pair in pairs if pair[0] != pair[1]}
        if not differing:
            return None
        is_told = list(differing.values()) == [self.lengths]
        return next(iter(differing)) if is_told else NO_PLACE

    def axis(self, atom: Any) -> int | None:
        """The row axis of an atom; None where it has none, `NO_PLACE` where it cannot be told."""
        return self.axes[atom] if isinstance(atom, Var) else None

    def _match_atoms(self, pair: Pair, first: int, where: str) -> None:
        """What is read at one place and the following: the same values, or numbers."""
        for place, (a, b) in enumerate(zip(*pair, strict=True), first):
            is_same = self._partner.get(a) is b if isinstance(a, Var) else isinstance(b, Literal)
            if not is_same:
                raise branches_on_rows(f"other inputs of {where}")
            if isinstance(a, Var) or _same_number(a.val, b.val):
                continue
            if self._is_inner:
                numbers = f"the number {a.val} or {b.val} inside a loop or a branch"
                raise branches_on_rows(f"{numbers}, in {where}")
            self.places.append(place)

    def _match_equation(self, pair: tuple[Equation, Equation], place: int) -> None:
        eqn, other = pair
        where = f"`{eqn.primitive.name}` at {_jax.source_line(eqn)}"
        if eqn.primitive is not other.primitive or len(eqn.invars) != len(other.invars):
            raise branches_on_rows(f"{where} in the place of `{other.primitive.name}`")
        self._match_atoms((eqn.invars, other.invars), place, where)
        self._bind(eqn.outvars, other.outvars)
        if eqn.effects or eqn.primitive.name in STATEFUL:
            self.refuse(eqn, EFFECT)
        is_row_wise = any(self.axis(a) is not None for a in (*eqn.invars, *eqn.outvars))
        if eqn.primitive.name in LOOPS:
            verdict = self._nested(pair)
        else:
            verdict = self._verdict(eqn) if is_row_wise else None
        self._note(eqn, verdict, is_row_wise=is_row_wise)
        for name, value in eqn.params.items():
            may_differ = name.endswith(_BODIES) or (is_row_wise and name in _SIZED_PARAMS)
            if not may_differ and value_key(value) != value_key(other.params.get(name)):
                raise branches_on_rows(f"another `{name}` of {where}")

    def _note(self, eqn: Equation, verdict: Verdict, *, is_row_wise: bool) -> None:
        """What an equation does to rows: refused, or a reduction; what a row-wise one computes
        beside rows is the same for every chunk.
        """
        if isinstance(verdict, Kind):
            self.refuse(eqn, verdict)
        elif self._is_inner:
            return
        elif verdict is not None:
            self.reductions[eqn.outvars[0]] = verdict
        elif is_row_wise:
            beside = [v for v in eqn.outvars if self.axes[v] is None]
            self.reductions.update(dict.fromkeys(beside, FIRST))

    def _verdict(self, eqn: Equation) -> Verdict:
        """What an equation that is no loop does to rows, a `Kind` where it is to be refused."""
        ins = [self.axis(a) for a in eqn.invars]
        outs = [self.axes[v] for v in eqn.outvars]
        verdict = UNKNOWN if NO_PLACE in ins else row_verdict(eqn, ins, outs)
        if isinstance(verdict, Reduction):
            once = Reduction(verdict.kind, ()) if verdict.kind in IDEMPOTENT else verdict
            return IN_A_LOOP if self._is_inner else once
        if verdict is None and NO_PLACE in outs:
            return OTHER_LENGTH
        is_lost = None in outs and eqn.primitive.name != _jax.KEEP
        return GONE if verdict is None and is_lost else verdict

    def _nested(self, pair: tuple[Equation, Equation]) -> Verdict:
        """Walk the bodies of a loop or a branch."""
        eqn, other = pair
        if eqn.primitive.name == "scan":
            num_consts, num_carry = _jax.scan_counts(eqn)
            looped = (*eqn.invars[num_consts + num_carry :], *eqn.outvars[num_carry:])
            if any(self.axis(a) == 0 for a in looped):
                return OVER_ROWS
        was_inner = self._is_inner
        self._is_inner = True
        for body, other_body in zip(_jax.sub_bodies(eqn), _jax.sub_bodies(other), strict=True):
            programs = [inline_with_solves(from_jaxpr(each)) for each in (body, other_body)]
            self.match(*programs)
        self._is_inner = was_inner
        return OTHER_LENGTH if any(self.axes[v] == NO_PLACE for v in eqn.outvars) else None


def _same_number(a: Any, b: Any) -> bool:
    return a is b or same_bits(np.asarray(a), np.asarray(b))
