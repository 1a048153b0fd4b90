"""What a call was: its record, which reports read.

In: what served a call. Out: a record. It must keep no values alive, and cost a call next to
nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from incrax._jax import Var
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry


class CallRecord(NamedTuple):
    """What one call did; calls that are alike share it."""

    dirty: int  # the inputs that had changed
    candidate: str  # what served it
    entry: Entry | None = None  # if it was compared in full
    plan: Plan | None = None  # that ran last; None: the whole function, or nothing
    filled: tuple[Var, ...] = ()  # values that were computed before
    before: tuple[Plan, ...] = ()  # plans that ran before: to compute these, or in vain
    is_first: bool = False  # of this signature

    @property
    def loads(self) -> tuple[Var, ...]:
        """The saved values that its programs loaded, each once: not those that one of them computed
        for another.
        """
        own = () if self.plan is None else self.plan.saved_loads
        if not self.before:
            return own
        loads = dict.fromkeys([var for plan in self.before for var in plan.saved_loads])
        filled = set(self.filled)
        return tuple([var for var in {**loads, **dict.fromkeys(own)} if var not in filled])


UNCHANGED = CallRecord(0, "saved outputs")
BYPASSED = CallRecord(0, "whole")
"""A call of `jax.jit`, of which nothing was compared."""


class Chunks(NamedTuple):
    """What a call with `Rows` did: chunks run, reused and joined."""

    num_run: int
    num_reused: int
    num_joined: int
