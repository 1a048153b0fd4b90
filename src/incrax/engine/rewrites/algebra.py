"""Algebra over rows: reductions that are polynomials of a few numbers, from saved statistics
instead of from rows.

A reduction f P(z) (`engine.rewrites.forms`), P of degree two at most, equals its Taylor polynomial
about any point z0:
    P(z) = P(z0) + J d + d H d / 2,   d = z - z0,
with J and H its derivatives there. (z0, P(z0), J, H) are one saved value that depends on clean
inputs alone; its size does not depend on the number of rows.

Promise: where the guard is true, a result differs from the direct one by rounding of terms that are
at most `MAX_GROWTH` times as large as it, or as the sum of the sizes of the direct form's terms at
z.

In: equations, what is dirty. Out: equations, statistics among the derived values. It must not know
what they cost.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Env
from incrax.engine.rewrites.derived import DerivedTable, recomputed
from incrax.engine.rewrites.forms import MAX_DEGREE, Forms
from incrax.engine.rewrites.products import multiply
from incrax.engine.rewrites.statistics import (
    MAX_GROWTH,
    Group,
    are_within,
    make_statistics,
    number_of,
    pack,
    taylor,
    unpack,
)

MAX_NUMBERS = 256
"""Numbers that a polynomial may be of."""

MAX_STATISTICS = 1 << 21
"""Numbers that one saved value of statistics may have."""

MAX_LOSS = 0.3
"""Exponent of the least normal number that bounds a product of factors."""

MAX_CURVATURES = 1 << 13
"""Numbers of degree two that one group may give, times those that they are polynomials of:
gradients to evaluate.
"""


class Statistics(NamedTuple):
    """Equations with reductions from statistics; the guard; the saved statistics; a line for each
    reduction.
    """

    eqns: tuple[Equation, ...]
    guard: Var
    centred: tuple[Var, ...]
    lines: tuple[str, ...]


def polynomial_reductions(
    eqns: Sequence[Equation],
    table: DerivedTable,
    is_dirty: Callable[[Var], bool],
    mask: Callable[[Var], int],
    targets: Collection[Var],
) -> Statistics | None:
    """The equations with every reduction of a known form computed from statistics; None where there
    is none.
    """
    if any(eqn.effects for eqn in eqns):
        return None
    forms = Forms(eqns, is_dirty)
    groups = [group for group in _groups(forms, mask) if _is_handy(group)]
    if not groups:
        return None
    centred = tuple(make_statistics(group, forms, table) for group in groups)

    def compute(values: Env) -> tuple[Env, list[Any]]:
        results: Env = {}
        guards = []
        for group, var in zip(groups, centred, strict=True):
            found, is_right = _results(group, forms, values[var], values)
            results.update(found)
            guards.append(is_right)
        return results, guards

    reductions = [var for group in groups for var in group.outputs]
    read = [var for group in groups for var, _ in group.cone.symbols]
    read += [var for out in reductions for var, _ in forms.of[out].factors]
    found = recomputed(eqns, [*centred, *read], reductions, compute, targets)
    if found is None:
        return None
    lines = tuple(_line(forms, var, group) for group in groups for var in group.outputs)
    return Statistics(*found, centred, lines)


def _line(forms: Forms, var: Var, group: Group) -> str:
    eqn = forms.steps[var].eqn
    degree = forms.of[var].degree
    p, *_ = group.sizes
    return f"{eqn.primitive.name} at {_jax.source_line(eqn)}: degree {degree} in {p} numbers"


def _groups(forms: Forms, mask: Callable[[Var], int]) -> list[Group]:
    """The reductions by what their statistics depend on, and by how many reductions the numbers
    need before.
    """
    found: dict[tuple[int, int], list[Var]] = {}
    for var in forms.reductions:
        if len(forms.steps[var].eqn.outvars) == 1:
            cone = forms.cone([var])
            clean = functools.reduce(operator.or_, map(mask, cone.clean), 0)
            level = max((forms.level.get(symbol, 0) for symbol, _ in cone.symbols), default=0)
            found.setdefault((clean, level), []).append(var)
    groups = [_group(forms, reductions) for reductions in found.values()]
    return [group for group in groups if group is not None]


def _group(forms: Forms, reductions: Sequence[Var]) -> Group | None:
    """Some reductions by degree; None where numbers are of several types."""
    cone = forms.cone(reductions)
    numbers = [*reductions, *(symbol for symbol, _ in cone.symbols)]
    dtype, *others = {np.finfo(var.aval.dtype).dtype for var in numbers}
    if others or dtype.itemsize not in MAX_GROWTH:
        return None
    curved = tuple(var for var in reductions if forms.of[var].degree == MAX_DEGREE)
    straight = tuple(var for var in reductions if var not in curved)
    return Group(curved, straight, cone, dtype)


def _is_handy(group: Group) -> bool:
    """Whether the statistics are few."""
    p, *_ = group.sizes
    is_quick = group.num_curved * p <= MAX_CURVATURES
    return p <= MAX_NUMBERS and is_quick and sum(group.sizes) <= MAX_STATISTICS


# --- results --------------------------------------------------------------------------------------


def _results(group: Group, forms: Forms, known: Any, values: Env) -> tuple[Env, Any]:
    """The reductions, and whether they are right."""
    numbers = [number_of(values[var], inverse) for var, inverse in group.cone.symbols]
    polynomials, is_right = taylor(group, known, pack(numbers, group.dtype))
    results: Env = {}
    for var, value in zip(group.outputs, unpack(polynomials, group.avals), strict=True):
        factors = forms.of[var].factors
        scales = [(values[factor].astype(value.dtype), inverse) for factor, inverse in factors]
        is_right &= _are_moderate(scales)
        results[var] = multiply(value, scales)
    return results, is_right


def _are_moderate(scales: Sequence[tuple[Any, bool]]) -> Any:
    """Whether no product of some of the factors comes near the ends of the range of numbers; zero
    may multiply.

    A term by zero is infinite, or NaN: both are lost in a sum that is divided by zero.
    """
    is_good: Any = jnp.asarray(True)
    for scale, inverse in scales:
        is_good &= are_within(scale, MAX_LOSS / len(scales)) & ~((scale == 0) & inverse)
    return is_good
