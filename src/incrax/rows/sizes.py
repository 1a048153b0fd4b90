"""How sums over rows grow with the number of rows, where it enters them as a factor.

The pullback of a mean multiplies every row by 1/N. What is appended changes N, and with it the
partial results of all chunks. But sum_n N**d r[n] = (N / M)**d sum_n M**d r[n]: chunks are
evaluated as if there were M rows, and the sum is multiplied once. New rows then leave the other
chunks alone. M is a power of four near N, so that it and its root round nothing, and values have
about the range that they had: in single precision sum_n r[n] may overflow where the mean does not.
M is chosen again when N is far from it. Factors made of parameters stay where they are (see
`engine.rewrites.factors` for what moving them takes).

In: equations that read numbers of rows. Out: the exponents d of what they compute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax._jax import Atom, Equation, Literal, Var
from incrax.primitives.row_axis import Reduction
from incrax.primitives.table import algebra_of
from incrax.rows.numbers import SizeForm

Degree: TypeAlias = tuple[float, float]
"""The exponents of N and of N - 1 in a value."""

NONE: Degree = (0.0, 0.0)
ZERO: Degree = (math.inf, math.inf)
"""Of the value zero, which grows as anything."""

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
    if not sizes or None in sizes.values():
        return None
    found: dict[Var, Degree] = {}
    for var, form in sizes.items():
        exponent = 0.0 if form is None else form.exponent
        found[var] = (0.0, exponent) if form and form.offset else (exponent, 0.0)
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


def scales_at(degrees: Iterable[Degree], num_rows: int, fixed: int) -> np.ndarray:
    """What to multiply sums by that were made as if there were a fixed number of rows."""
    ratios = [(num_rows - offset) / fixed for offset in (0, 1)]
    return np.array(
        [1.0 if d == ZERO else _power(ratios[0], d[0]) * _power(ratios[1], d[1]) for d in degrees]
    )


def _power(ratio: float, exponent: float) -> float:
    """As a quotient where the exponent is negative: it has the same digits for all fixed numbers."""
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
    if form == "linear":
        return first if is_fixed else None
    if algebra is not None and form in ("sum", "joined"):
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
