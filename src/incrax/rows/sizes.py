"""Numbers made from the number of rows, moved out of reductions over rows.

The pullback of a mean multiplies every row by 1/N. What is appended changes N, and with it the
partial results of all chunks. By linearity sum_n s r[n] = s sum_n r[n], where s is made of numbers
of rows only; then new rows leave the other chunks alone. In single precision sum_n r[n] may
overflow where the mean does not. There a power of two p near s stays where s was, (s / p) sum_n p
r[n], so that all values have the range that they had; p is chosen for a number of rows and chosen
again when that is far from the present one. Other factors stay where they are (see
`engine.rewrites.factors` for what moving them takes).

In: a `RowProgram`, values of the numbers. Out: the same function as another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import Program
from incrax.engine.program.simplify import drop_dead
from incrax.engine.rewrites.derived import traced_equations
from incrax.primitives.row_axis import Reduction
from incrax.primitives.table import algebra_of, entry_of
from incrax.rows.axis import RowProgram, with_passes
from incrax.rows.numbers import Lifted

MIN_EXPONENT = 127
"""Powers of two that a dtype must hold for a factor to be moved: not half precision."""

WIDE_EXPONENT = 1023
"""Powers of two of a dtype in which no number of rows matters."""


class _Scaled(NamedTuple):
    """A value as factor times base."""

    factor: Var
    base: Atom

    @property
    def dtype(self) -> Any:
        """Of the factor."""
        return self.factor.aval.dtype


def move_sizes_out(rows: RowProgram, values: Sequence[Any]) -> tuple[RowProgram, bool]:
    """The program with factors made of numbers of rows behind the sums over rows; whether `values`
    entered it.

    `values` are those of the numbers for about as many rows as there are.
    """
    if not rows.sizes:
        return rows, False
    move = _Move(rows, values)
    with np.errstate(all="ignore"):
        for eqn in rows.program.eqns:
            move.visit(eqn)
    if not move.has_moved:
        return rows, False
    program = rows.program
    moved = drop_dead(
        Program(
            program.invars, program.constvars, program.consts, tuple(move.eqns), program.outvars
        )
    )
    written = {v for eqn in moved.eqns for v in eqn.outvars}
    reductions = {v: r for v, r in move.reductions.items() if v in written}
    return with_passes(
        Lifted(moved, rows.sizes), rows.num_row_inputs, move.axes, reductions
    ), move.has_powers


class _Move:
    """One walk: scalars made of numbers of rows, scaled values, and the new equations."""

    def __init__(self, rows: RowProgram, values: Sequence[Any]) -> None:
        self.axes = dict(rows.axes)
        self.reductions = dict(rows.reductions)
        self.scalars: dict[Var, Var] = {v: v for v in rows.sizes if v.aval.shape == ()}
        self.values: dict[Var, Any] = {
            v: np.asarray(x, np.float64)
            for v, x in zip(rows.sizes, values, strict=True)
            if v in self.scalars and jnp.issubdtype(v.aval.dtype, np.number)
        }
        self.constants: dict[Var, Var] = {}
        self.scaled: dict[Var, _Scaled] = {}
        self.zeros: set[Var] = set()
        self.eqns: list[Equation] = []
        self.has_moved = self.has_powers = False
        self._made: dict[Hashable, Var] = {}

    def visit(self, eqn: Equation) -> None:
        """Append the equation, and what it becomes without factors."""
        out = eqn.outvars[0]
        if out in self.reductions:
            if not self._move_out(eqn, self.reductions[out]):
                self.eqns.append(eqn)
            return
        self.eqns.append(eqn)
        if _is_linear(eqn) and self._is_zero(eqn.invars[0]):
            self.zeros.add(out)
        if self._is_scalar(eqn):
            is_sized = any(isinstance(a, Var) and a in self.scalars for a in eqn.invars)
            table = self.scalars if is_sized else self.constants
            table[out] = self._made.setdefault(self._key(eqn), out)
            self._evaluate(eqn)
        elif len(eqn.outvars) == 1 and _has_range(out):
            found = self._scale(eqn)
            if found is not None and found.dtype == out.aval.dtype:
                self.scaled[out] = found

    def _is_zero(self, atom: Atom) -> bool:
        return not np.any(atom.val) if isinstance(atom, Literal) else atom in self.zeros

    def _is_scalar(self, eqn: Equation) -> bool:
        inputs = [a for a in eqn.invars if isinstance(a, Var)]
        is_known = all(a in self.scalars or a in self.constants for a in inputs)
        return is_known and entry_of(eqn).value is not None and eqn.outvars[0].aval.shape == ()

    def _key(self, eqn: Equation) -> Hashable:
        known = {**self.constants, **self.scalars}
        atoms = [known[a] if isinstance(a, Var) else (str(a.aval), repr(a.val)) for a in eqn.invars]
        return (
            eqn.primitive,
            tuple(atoms),
            repr(sorted(eqn.params.items(), key=lambda item: item[0])),
        )

    def _evaluate(self, eqn: Equation) -> None:
        """Enter the value of a scalar; none where it is no real number."""
        inputs = [
            self.values.get(a) if isinstance(a, Var) else np.asarray(a.val) for a in eqn.invars
        ]
        is_real = all(x is not None and np.isrealobj(x) for x in inputs)
        params = {"y": eqn.params["y"]} if eqn.primitive.name == "integer_pow" else {}
        value = entry_of(eqn).value
        if is_real and value is not None:
            floats = [np.asarray(x, np.float64) for x in inputs]
            self.values[eqn.outvars[0]] = value(*floats, **params)

    def _power(self, factor: Var) -> float:
        """The power of two that stays in the place of a factor."""
        value = abs(float(self.values.get(factor, 1.0)))
        is_narrow = int(jnp.finfo(factor.aval.dtype).maxexp) < WIDE_EXPONENT
        return float(np.exp2(np.round(np.log2(value)))) if is_narrow and 0 < value < np.inf else 1.0

    def _rest_of(self, factor: Var) -> Var:
        """The factor over its power of two."""
        power = self._power(factor)
        if power == 1:
            return factor
        self.has_powers = True
        return self._made_once(
            ("rest", factor), factor, lambda x: x * np.asarray(1 / power, x.dtype), 1 / power
        )

    # --- one equation -----------------------------------------------------------------------------

    def _scale(self, eqn: Equation) -> _Scaled | None:
        """The output as factor times base, if an input is."""
        atoms = eqn.invars
        algebra = algebra_of(eqn)
        form = "" if algebra is None else algebra.form
        if form == "sum":
            return self._scale_sum(eqn)
        if eqn.primitive.name == "select_n":
            return self._scale_cases(eqn)
        if eqn.primitive.name == "broadcast_in_dim" and self._scalar(atoms[0]) is not None:
            return self._scale_broadcast(eqn, self._scalar(atoms[0]))
        if form in ("product", "quotient") or _is_linear(eqn):
            for number in (0, 1) if form == "product" else (0,):
                found = self._found(atoms[number])
                if found is not None:
                    return _Scaled(found.factor, self._with(eqn, {number: found.base}))
        if form in ("product", "quotient") and entry_of(eqn).is_elementwise:
            return self._scale_by_number(atoms, is_quotient=form == "quotient")
        return None

    def _scale_broadcast(self, eqn: Equation, factor: Var | None) -> _Scaled | None:
        """A number in every row."""
        if factor is None or not _has_range(factor):
            return None
        power = _jax.literal(self._power(factor), eqn.invars[0].aval)
        return (
            None if power is None else _Scaled(self._rest_of(factor), self._with(eqn, {0: power}))
        )

    def _scale_by_number(self, atoms: list[Atom], *, is_quotient: bool) -> _Scaled | None:
        """A value times or over a number."""
        for number, other in ((1, 0),) if is_quotient else ((1, 0), (0, 1)):
            factor = self._scalar(atoms[number])
            base = atoms[other]
            if factor is not None and isinstance(base, Var) and _has_range(factor):
                factor = self._reciprocal(factor) if is_quotient else factor
                return _Scaled(self._rest_of(factor), self._times(base, self._power(factor)))
        return None

    def _times(self, base: Var, power: float) -> Var:
        """A value times a power of two."""
        if power == 1:
            return base
        (var,), eqns = traced_equations(lambda x: x * np.asarray(power, x.dtype), [base])
        self.eqns.extend(eqns)
        if base in self.axes:
            self.axes[var] = self.axes[base]
        return var

    def _scale_sum(self, eqn: Equation) -> _Scaled | None:
        pair = [self._found(a) for a in eqn.invars]
        if None in pair or pair[0].factor is not pair[1].factor:  # type: ignore[union-attr]
            return None
        return _Scaled(pair[0].factor, self._with(eqn, {n: p.base for n, p in enumerate(pair)}))  # type: ignore[union-attr]

    def _scale_cases(self, eqn: Equation) -> _Scaled | None:
        """Cases that are scaled by one factor, or zero."""
        cases = {n: self._found(a) for n, a in enumerate(eqn.invars) if n and not self._is_zero(a)}
        factors = {None if found is None else found.factor for found in cases.values()}
        if len(factors) != 1 or None in factors:
            return None
        bases = {n: found.base for n, found in cases.items() if found is not None}
        return _Scaled(factors.pop(), self._with(eqn, bases))  # type: ignore[arg-type]

    def _found(self, atom: Atom) -> _Scaled | None:
        return self.scaled.get(atom) if isinstance(atom, Var) else None

    def _scalar(self, atom: Atom) -> Var | None:
        return self.scalars.get(atom) if isinstance(atom, Var) else None

    def _with(self, eqn: Equation, bases: dict[int, Atom]) -> Var:
        """Append the equation with other inputs; what it writes."""
        atoms = [bases.get(n, a) for n, a in enumerate(eqn.invars)]
        var = _jax.new_var(eqn.outvars[0].aval)
        self.eqns.append(eqn.replace(invars=atoms, outvars=[var]))
        if eqn.outvars[0] in self.axes:
            self.axes[var] = self.axes[eqn.outvars[0]]
        return var

    def _reciprocal(self, factor: Var) -> Var:
        return self._made_once(("reciprocal", factor), factor, lambda x: 1 / x, None)

    def _made_once(
        self, key: Hashable, factor: Var, fun: Callable[[Any], Any], scale: float | None
    ) -> Var:
        """A scalar made from another one: that times `scale`, or one over it."""
        if key not in self._made:
            (self._made[key],), eqns = traced_equations(fun, [factor])
            self.eqns.extend(eqns)
            value = self.values.get(factor, np.asarray(1.0))
            self.values[self._made[key]] = 1 / value if scale is None else value * scale
        return self._made[key]

    # --- reductions -------------------------------------------------------------------------------

    def _move_out(self, eqn: Equation, reduction: Reduction) -> bool:
        """Reduce the base and multiply afterwards, where that is a sum of something scaled."""
        out = eqn.outvars[0]
        is_from_zero = reduction.start is None or self._is_zero(eqn.invars[reduction.start])
        if reduction.kind != "sum" or not is_from_zero or not _has_range(out):
            return False
        for number in reduction.masked:
            found = self._found(eqn.invars[number])
            if found is not None and found.dtype == out.aval.dtype:
                total = self._with(eqn, {number: found.base})
                self.reductions[total] = self.reductions.pop(out)
                self.eqns.extend(
                    traced_equations(lambda s, r: s * r, [found.factor, total], [out])[1]
                )
                self.has_moved = True
                return True
        return False


def _is_linear(eqn: Equation) -> bool:
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "linear" and len(eqn.invars) == 1


def _has_range(var: Var) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    is_float = isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jnp.floating)
    return is_float and int(jnp.finfo(dtype).maxexp) >= MIN_EXPONENT
