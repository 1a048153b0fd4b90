"""Rows that a plan writes where a value is, in place of a copy of all of it.

Of large values that a plan for rows loads and saves again with other rows, some are overwritten by
the plan's own program, where this reads nothing else of them. Into others a program of its own
writes the rows: XLA, to which reads and writes of one buffer have no order, copies it first where
one program does both.

In: a plan for rows. Out: which of its loads are overwritten, and by what. It must not know buffers.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._program import Results, Values, evaluated, read_vars
from incrax.engine.plan.plan import Plan

WRITES = ("dynamic_update_slice", "scatter")

MIN_OVERWRITTEN_BYTES = 2**17
MIN_WRITTEN_BYTES = 2**18
"""Bytes of a value from which on its rows are written where it is: less is copied in no time, and
stays what a refused proposal goes back to; and from which on a program of its own does so: it costs
15 us, which is what copying as much takes.
"""


class Writing(NamedTuple):
    """A program that writes rows into values that the plan's own program only reads."""

    run: Callable[..., Results]  # of these values, and of what is given to it
    olds: tuple[Var, ...]  # the loads, which it overwrites
    saves: tuple[Var, ...]  # what is saved of them
    given: tuple[Var, ...]  # what the plan's own program returns for it, last


@dataclass(frozen=True)
class InPlace:
    """Which loads of a plan are overwritten."""

    overwritten: tuple[Var, ...] = ()  # by its own program
    replaced: tuple[Var, ...] = ()  # what is saved of these, which that returns first
    writing: Writing = Writing(lambda: [], (), (), ())  # into others

    @functools.cached_property
    def saves(self) -> tuple[Var, ...]:
        """What is saved of all of them."""
        return (*self.replaced, *self.writing.saves)

    @functools.cached_property
    def loads(self) -> tuple[Var, ...]:
        """All of them."""
        return (*self.overwritten, *self.writing.olds)


NOTHING = InPlace()


def in_place(plan: Plan, outputs: Sequence[Atom], name: str) -> InPlace:
    """What a plan for rows that has these outputs may write where it is."""
    assert plan.sliced is not None
    writers = {var: eqn for eqn in plan.eqns for var in eqn.outvars}
    num_reads = Counter([*outputs, *(x for eqn in plan.eqns for x in read_vars(eqn))])
    overwritten: dict[Var, Var] = {}
    chains: dict[tuple[Var, Var], list[Equation]] = {}
    for old, saved in plan.sliced.in_place:
        num_bytes = _jax.aval_bytes(saved.aval)
        chain = _writes_into(old, saved, writers, num_reads)
        if not chain:
            continue
        if num_reads[old] == 1 and num_bytes >= MIN_OVERWRITTEN_BYTES:
            overwritten[old] = saved
        elif not num_reads[saved] and num_bytes >= MIN_WRITTEN_BYTES:
            chains[old, saved] = chain
    writing = _writing(chains, name) if chains else NOTHING.writing
    return InPlace(tuple(overwritten), tuple(overwritten.values()), writing)


def _writing(chains: Mapping[tuple[Var, Var], list[Equation]], name: str) -> Writing:
    """The program of some writes, by what is overwritten and by what is saved."""
    olds, saves = zip(*chains, strict=True)
    eqns = tuple(eqn for chain in chains.values() for eqn in chain)
    made = {*olds, *(eqn.outvars[0] for eqn in eqns)}
    given = tuple(dict.fromkeys(x for eqn in eqns for x in read_vars(eqn) if x not in made))

    def run_writes(*values: Values) -> Results:
        return evaluated(eqns, saves, dict(zip([*olds, *given], values, strict=True)))

    run_writes.__name__ = f"{name}_writes"
    run = jax.jit(run_writes, donate_argnums=tuple(range(len(olds))))
    return Writing(run, olds, saves, given)


def _writes_into(
    old: Var, saved: Var, writers: Mapping[Var, Equation], num_reads: Mapping[Var, int]
) -> list[Equation]:
    """The equations that write rows into one value, one after the other, of which another is made;
    none if there is something else in between, or something else reads what is.
    """
    var = saved
    chain: list[Equation] = []
    while var is not old:
        eqn = writers.get(var)
        if eqn is None or eqn.primitive.name not in WRITES or (chain and num_reads[var] > 1):
            return []
        chain.insert(0, eqn)
        into = eqn.invars[0]
        if not isinstance(into, Var):
            return []
        var = into
    return chain
