"""The table of primitives: an entry for each, from the files of the families.

A primitive that is missing claims nothing: its outputs depend on all its inputs, and its work is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from incrax._jax import Equation
from incrax.primitives import (
    control_flow,
    custom,
    elementwise,
    indexing,
    linear_algebra,
    products,
    random,
    reductions,
    shape,
)
from incrax.primitives.entry import NOTHING, Algebra, EquationWork, Evaluations, Family, Primitive

TABLE: Family = {
    **elementwise.FAMILY,
    **shape.FAMILY,
    **indexing.FAMILY,
    **reductions.FAMILY,
    **products.FAMILY,
    **linear_algebra.FAMILY,
    **control_flow.FAMILY,
    **random.FAMILY,
    **custom.FAMILY,
}

UNKNOWN = Primitive()


def entry_of(eqn: Equation) -> Primitive:
    """What is known of an equation's primitive."""
    return TABLE.get(eqn.primitive.name, UNKNOWN)


def algebra_of(eqn: Equation) -> Algebra | None:
    """What an equation is in its operands."""
    found = entry_of(eqn).algebra
    return found if found is None or isinstance(found, Algebra) else found(eqn)


def is_addition(eqn: Equation) -> bool:
    """Whether an equation adds its operands."""
    algebra = algebra_of(eqn)
    return algebra is not None and algebra.form == "sum" and set(algebra.signs) == {1}


def is_registered(eqn: Equation) -> bool:
    """Whether somebody said what an equation computes that holds no others."""
    return entry_of(eqn).work is not None


def work_of(eqn: Equation) -> EquationWork | None:
    """What an equation computes; None where its primitive, or one in its body, is not
    registered.
    """
    rule: Callable[[Equation], Any] | None = entry_of(eqn).work
    found = None if rule is None else rule(eqn)
    if not isinstance(found, Evaluations):
        return found
    works = [work_of(inner) for inner in found.body.eqns]
    known = [work for work in works if work is not None]
    if len(known) < len(works):
        return None
    return EquationWork(
        *(found.times * float(sum(part)) for part in zip(NOTHING, *known, strict=True))
    )
