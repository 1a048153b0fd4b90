"""What one call did, as reports need it."""

from __future__ import annotations

from typing import NamedTuple

from incrax._jax import Var
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry


class Record(NamedTuple):
    """One call: `segments` are the plans that computed `filled`, before `plan` ran."""

    dirty: int
    candidate: str
    entry: Entry | None
    plan: Plan | None
    loads: tuple[Var, ...]
    filled: tuple[Var, ...]
    segments: tuple[Plan, ...]
    is_first: bool


UNCHANGED = Record(0, "saved outputs", None, None, (), (), (), is_first=False)
RESTING = Record(0, "whole", None, None, (), (), (), is_first=False)
"""A call while nothing is saved; its dirty set is not known yet."""
NO_MEMORY = Record(0, "whole", None, None, (), (), (), is_first=False)
"""A call for which the device had no memory until all saved values were dropped."""
