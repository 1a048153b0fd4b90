"""In which order saved values go when the byte budget is short.

Seconds that a byte saves: the segment that computes a group of values has measured or estimated
seconds, and all of the group must be there to save them. Marked values go last, and before them
those that depend on frozen data alone.

In: a state, segments. Out: its variables, the least worth keeping first. It must not know the
budget.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Mapping

import jax

from incrax import _jax
from incrax._jax import Var
from incrax._messages import kept_too_large, out_of_memory
from incrax._program import Results
from incrax.engine.inputs.leaves import LeafValue, is_frozen
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.segments import Segments
from incrax.engine.store.store import Store

logger = logging.getLogger("incrax")


def check_kept(kept: Mapping[Var, str | None], budget_bytes: int) -> None:
    """Raise MemoryBudgetError if the values that the user marked do not fit the budget together."""
    sizes = [(_shown(var, name), _jax.aval_bytes(var.aval)) for var, name in kept.items()]
    if sum(size for _, size in sizes) > budget_bytes:
        raise kept_too_large(sizes, budget_bytes)


def _shown(var: Var, name: str | None) -> str:
    kind = var.aval.str_short(short_dtypes=True)
    return kind if name is None else f"`{name}` {kind}"


def cheapest_first(
    facts: Facts, segments: Segments, values: Iterable[LeafValue], saved: Iterable[Var]
) -> list[Var]:
    """The saved variables of a state with these leaf values, in the order in which they are to
    go.
    """
    layout = facts.layout
    frozen = sum(layout.leaf_mask(i) for i, value in enumerate(values) if is_frozen(value.anchor))

    def worth(var: Var) -> tuple[bool, bool, float]:
        group = segments.group_of(var)
        num_bytes = sum(_jax.aval_bytes(other.aval) for other in group)
        seconds = segments.group_seconds(group, 1.0)
        return var in facts.kept, not facts.mask(var) & ~frozen, seconds / max(num_bytes, 1)

    return sorted(saved, key=worth)


def results_without_saved(
    store: Store, run: Callable[[], Results] | None, error: Exception
) -> Results:
    """Drop all saved values, those that frames of the failed call hold as well, and run once more,
    if that is allowed.

    Raises:
        MemoryBudgetError: it failed again, or must not be tried.
    """
    sizes = [(var.aval.str_short(short_dtypes=True), size) for var, size in store.sizes().items()]
    num_bytes = sum(size for _, size in sizes)
    logger.warning(
        "the device has no memory left: %d saved values, %.3g MB, were dropped",
        len(sizes),
        num_bytes / 1e6,
    )
    store.clear()
    traceback.clear_frames(error.__traceback__)
    try:
        if run is not None:
            return jax.block_until_ready(run())
    except Exception as again:
        error = again
    raise out_of_memory(sizes, store.budget_bytes) from error
