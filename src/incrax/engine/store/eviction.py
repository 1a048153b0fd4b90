"""In which order saved values go when the byte budget is short.

Seconds that a byte saves: the segment that computes a group of values has measured or estimated
seconds, and all of the group must be there to save them. Marked values go last, and before them
those that depend on frozen data alone.

In: a state, segments. Out: its variables, the least worth keeping first. It must not know the
budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from incrax import _jax
from incrax._jax import Var
from incrax.engine.inputs.leaves import LeafValue, is_frozen
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.segments import Segments


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
