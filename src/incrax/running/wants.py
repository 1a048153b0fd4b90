"""Which values are worth saving: what the plans of hot dirty sets load, as far as the budget allows.

In: `Facts`, dirty sets, prices. Out: plans that fit. It must not know which programs are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from incrax import _jax
from incrax._jax import Var
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan, Prices, plan_dirty

NUM_COMPANIONS = 16
"""Other dirty sets, seen before, whose needs are considered when wanted values are first chosen."""

COMPANION_EQNS = 1500
"""Equations above which a program is too large to plan for companions in advance."""

NUM_COPIES = 3
"""Buffers per saved value: two versions, and one to be overwritten."""

LOAD_PRICES = (1.0, 8.0, 64.0)
"""Factors on the price of loading, tried until the saved values fit the budget."""


def affordable_plan(
    facts: Facts, dirty: int, wanted: Iterable[Var], *, run_price: float, budget_bytes: int
) -> Plan | None:
    """A plan for a dirty set whose loads, with the wanted values and in all their copies, fit the budget."""
    known = tuple(wanted)
    for may_factor, load_price in product((True, False), LOAD_PRICES):
        plan = plan_dirty(facts, dirty, wanted=known, prices=Prices(load_price, run_price), may_factor=may_factor)
        if NUM_COPIES * sum(_jax.aval_bytes(var.aval) for var in {*known, *plan.loads}) <= budget_bytes:
            return plan
    return None


def needs_of_companions(
    facts: Facts, dirty_sets: Iterable[int], wanted: Iterable[Var], *, run_price: float, budget_bytes: int
) -> list[Var]:
    """What other dirty sets, planned one after the other, would load; so that all share values from the start."""
    wanted = list(wanted)
    if len(facts.program.eqns) > COMPANION_EQNS:
        return wanted
    full = facts.dependence.layout.full
    for dirty in [d for d in dirty_sets if d & full != full][-NUM_COMPANIONS:]:
        plan = affordable_plan(facts, dirty, wanted, run_price=run_price, budget_bytes=budget_bytes)
        wanted += () if plan is None else [var for var in plan.base_loads if var not in wanted]
    return wanted
