"""Which values are worth saving before any call tells, and what saving takes.

In: `Facts`, a budget. Out: variables. It must not know which programs are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from incrax import _jax
from incrax._jax import Var
from incrax._program import writes_of
from incrax.engine.plan.blocks import RowValues, find_row_values
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import plan_dirty
from incrax.engine.plan.slices import can_slice
from incrax.engine.policy.candidates import MIN_GAIN, UPKEEP_S
from incrax.engine.program.dependence import Layout

NUM_TYPICAL = 48
"""Typical changes that are planned for in advance at most."""

TYPICAL_EQNS = 100_000
"""Equations to be planned in all of them together."""

LARGE_SIZE = 4096
"""Elements of an input from which on it is taken for data, that stay while all others change."""

NUM_COPIES = 3
"""Buffers per saved value: two versions, and one to be overwritten."""


def copied_bytes(variables: Iterable[Var]) -> int:
    """Bytes of saved values in all their copies."""
    return NUM_COPIES * sum(_jax.aval_bytes(var.aval) for var in variables)


def first_wanted(facts: Facts, called_back: Iterable[Var]) -> list[Var]:
    """What is wanted before anything was planned: marked values and results of the host, or all for
    minimal plans.
    """
    marked = [*facts.kept, *(var for var in called_back if var in facts.saveable)]
    return list(dict.fromkeys([*marked, *facts.cut_set])) if facts.is_minimal else marked


def lasting_row_values(facts: Facts, budget_bytes: int) -> list[RowValues]:
    """What is computed in blocks of rows, whatever changes: where a change of one row is worth
    it.
    """
    found: list[RowValues] = []
    wanted: list[Var] = []
    for values in find_row_values(facts) if can_slice(facts) else ():
        sizes = [_jax.aval_bytes(var.aval) for var in values.ends]
        copied_s = sum(map(facts.calibration.save_seconds, sizes))
        gain_s = values.saved_s - copied_s
        is_worth = gain_s >= MIN_GAIN * facts.total_seconds + UPKEEP_S
        if is_worth and copied_bytes([*wanted, *values.ends]) <= budget_bytes:
            found.append(values)
            wanted += values.ends
    return found


def lasting_needs(
    facts: Facts, budget_bytes: int, row_values: Sequence[RowValues] = ()
) -> list[Var]:
    """What is worth saving whatever changes: a function of the program alone, the same in every
    engine.

    Planned for each input by itself, and for all others of each large one (data that stay), one
    after the other so that they share values.
    """
    by_rows = [var for values in row_values for var in values.ends]
    first = first_wanted(facts, writes_of(facts.calling))
    wanted = dict.fromkeys([*first, *_partial_outputs(facts), *by_rows])
    if facts.is_minimal:
        return list(wanted)
    for dirty in typical_changes(facts.layout, facts.invars, len(facts.eqns)):
        plan = plan_dirty(facts, dirty, wanted=wanted, may_derive=False)
        is_worth = facts.total_seconds - plan.seconds >= MIN_GAIN * facts.total_seconds + UPKEEP_S
        new = [var for var in plan.base_loads if var not in wanted] if is_worth else []
        if copied_bytes([*wanted, *new]) <= budget_bytes:
            wanted.update(dict.fromkeys(new))
    return list(wanted)


def _partial_outputs(facts: Facts) -> list[Var]:
    """Outputs that some changes do not reach: each is computed by itself, as the top computes all
    that are left.
    """
    outputs = [atom for atom in facts.outvars if isinstance(atom, Var) and atom in facts.saveable]
    reached = 0
    for var in outputs:
        reached |= facts.mask(var)
    return [var for var in outputs if facts.mask(var) != reached]


def typical_changes(layout: Layout, inputs: Sequence[Var], num_eqns: int) -> list[int]:
    """Dirty sets to plan for: all but one large input, for each; each input or element alone;
    evenly chosen if many.
    """
    large = [i for i, var in enumerate(inputs) if _jax.aval_size(var.aval) >= LARGE_SIZE]
    others = [layout.full & ~layout.leaf_mask(i) for i in large]
    singles = [1 << bit for bit in range(layout.full.bit_length()) if layout.full >> bit & 1]
    room = max(min(NUM_TYPICAL, TYPICAL_EQNS // max(num_eqns, 1)), 1)
    others = _evenly(others, room)
    return [dirty for dirty in (*others, *_evenly(singles, max(room - len(others), 1))) if dirty]


def _evenly(changes: list[int], at_most: int) -> list[int]:
    """Some of a list, the first one included."""
    return changes[:: -(-len(changes) // at_most) or 1]
