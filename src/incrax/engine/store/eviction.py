"""In which order saved values go when the byte budget is short.

Seconds that a byte saves: the segment that computes a group of values has measured or estimated
seconds, and all of the group must be there to save them. Marked values go last.

In: saved variables, segments. Out: these, the least worth keeping first. It must not know the
budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from incrax import _jax
from incrax._jax import Var
from incrax.engine.plan.facts import Facts
from incrax.engine.policy.segments import Segments


def cheapest_first(facts: Facts, segments: Segments, saved: Iterable[Var]) -> list[Var]:
    """Saved variables in the order in which they are to go."""

    def worth(var: Var) -> tuple[bool, float]:
        group = segments.group_of(var)
        num_bytes = sum(_jax.aval_bytes(other.aval) for other in group)
        seconds = segments.group_seconds(group, 1.0)
        return var in facts.kept, seconds / max(num_bytes, 1)

    return sorted(saved, key=worth)
