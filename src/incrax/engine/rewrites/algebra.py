"""Algebra over rows: reductions that are polynomials of a few numbers, from saved statistics
instead of from rows.

A reduction f P(z) (`engine.rewrites.forms`), P of degree two at most, equals its Taylor polynomial
about any point z0:
    P(z) = P(z0) + J d + d H d / 2,   d = z - z0,
with J and H its derivatives there. (z0, P(z0), J, H) are one saved value that depends on clean
inputs alone; its size does not depend on the number of rows.

Law: where the guard is true, a result differs from the direct one by rounding of terms that are at
most `MAX_GROWTH` times as large as it, or as the sum of the sizes of the direct form's terms at z.

In: equations, what is dirty. Out: equations, statistics among the derived values. It must not know
what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Var
from incrax.engine.rewrites.forms import Forms
from incrax.engine.rewrites.partial_sums import DerivedTable, in_order, live, traced_equations
from incrax.engine.rewrites.products import multiply
from incrax.engine.rewrites.statistics import (
    MAX_GROWTH,
    Group,
    Output,
    make_statistics,
    num_real,
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
    new: list[Equation] = []
    guards = []
    centred = []
    for group in groups:
        statistics = make_statistics(group, forms, table)
        guard = _jax.new_var(_jax.bool_aval())
        new += _results(group, forms, statistics, guard)
        guards.append(guard)
        centred.append(statistics)
    replaced = {var for group in groups for var in group.reductions}
    (guard,), conjunction = traced_equations(lambda *values: [jnp.all(jnp.stack(values))], guards)
    others = [eqn for eqn in eqns if not any(var in replaced for var in eqn.outvars)]
    ordered = in_order([*others, *new, *conjunction])
    if ordered is None:
        return None
    lines = tuple(_line(forms, var, group) for group in groups for var in group.reductions)
    return Statistics(tuple(live(ordered, {*targets, guard})), guard, tuple(centred), lines)


def _line(forms: Forms, var: Var, group: Group) -> str:
    eqn = forms.steps[var].eqn
    degree = max(term.degree for term in forms.of[var])
    return (
        f"{eqn.primitive.name} at {_jax.source_line(eqn)}: degree {degree} in {group.num_numbers} "
        "numbers"
    )


def _groups(forms: Forms, mask: Callable[[Var], int]) -> Iterable[Group]:
    """The reductions by what their statistics depend on, and by how many reductions the numbers
    need before.
    """
    found: dict[tuple[int, int], list[Var]] = {}
    for var in forms.reductions:
        if len(forms.steps[var].eqn.outvars) == 1:
            cone = forms.cone([var])
            clean = 0
            for read in cone.clean:
                clean |= mask(read)
            level = max((forms.level.get(symbol, 0) for symbol, _ in cone.symbols), default=0)
            found.setdefault((clean, level), []).append(var)
    for reductions in found.values():
        cone = forms.cone(reductions)
        dtypes = {
            np.finfo(var.aval.dtype).dtype
            for var in (*reductions, *(symbol for symbol, _ in cone.symbols))
        }
        if len(dtypes) == 1 and min(dtypes).itemsize in MAX_GROWTH:
            terms = [
                (Output(var, k), t.degree)
                for var in reductions
                for k, t in enumerate(forms.of[var])
            ]
            straight = tuple(output for output, degree in terms if degree < 2)
            curved = tuple(output for output, degree in terms if degree == 2)
            numbers = sum(num_real(symbol.aval) for symbol, _ in cone.symbols)
            yield Group(straight, curved, cone, dtypes.pop(), numbers)


def _is_handy(group: Group) -> bool:
    """Whether the statistics are few."""
    straight, curved = (
        sum(num_real(output.aval) for output in part) for part in (group.straight, group.curved)
    )
    p = group.num_numbers
    size = 2 * ((straight + curved) * (p + 1) + curved * p * p)
    return p <= MAX_NUMBERS and curved * p <= MAX_CURVATURES and size <= MAX_STATISTICS


# --- results --------------------------------------------------------------------------------------


def _results(group: Group, forms: Forms, statistics: Var, guard: Var) -> tuple[Equation, ...]:
    """Equations that write the reductions and the guard."""
    symbols = group.cone.symbols
    factors = [forms.of[var][term].factors for var, term in group.outputs]
    inputs = list(
        dict.fromkeys(var for var, _ in (*symbols, *(f for product in factors for f in product)))
    )

    def compute(known: Any, *values: Any) -> list[Any]:
        names = dict(zip(inputs, values, strict=True))
        z = pack([number_of(names[var], inverse) for var, inverse in symbols], group.dtype)
        numbers, is_right = taylor(group, known, z)
        totals: dict[Var, Any] = {}
        for (var, _), value, product in zip(
            group.outputs, unpack(numbers, group.avals), factors, strict=True
        ):
            scales = [(names[factor].astype(value.dtype), inverse) for factor, inverse in product]
            is_right &= _are_moderate(scales)
            result = multiply(value, scales)
            totals[var] = totals[var] + result if var in totals else result
        results = [_jax.as_weak(x) if var.aval.weak_type else x for var, x in totals.items()]
        return [*results, is_right]

    return traced_equations(compute, [statistics, *inputs], [*group.reductions, guard])[1]


def _are_moderate(scales: Sequence[tuple[Any, bool]]) -> Any:
    """Whether no product of some of the factors comes near the ends of the range of numbers; zero
    may multiply.

    A term by zero is infinite, or NaN: both are lost in a sum that is divided by zero.
    """
    is_good: Any = jnp.asarray(True)
    for scale, inverse in scales:
        size = jnp.abs(scale)
        limit = float(jnp.finfo(scale.dtype).tiny) ** -(MAX_LOSS / len(scales))
        is_good &= ((size == 0) & (not inverse)) | ((size <= limit) & (size >= 1 / limit))
    return is_good
