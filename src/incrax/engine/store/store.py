"""Stage 10, store: the latest few versions of inputs, outputs and saved values, under a byte budget.

A `State` is one version: input values, outputs, and saved values that are current for exactly these
inputs. The store keeps a few states, most recently used last.

Invariants, checked by the tests after each call (`check_invariants` of `tests/helpers.py`):
- every saved value of a state is current for the state's input values;
- no saved value depends on what must run at every call;
- the bytes of distinct saved buffers, spare ones included, never exceed the budget between calls;
- there are at most `versions` states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import is_, methodcaller
from typing import Any, Self, TypeAlias

import jax
import jax.numpy as jnp

from incrax._jax import Tracer, Var, aval_bytes
from incrax._program import Env, Results
from incrax.engine.compile.recycling import MIN_BYTES, Pool
from incrax.engine.inputs.leaves import LeafValues
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan


@dataclass(slots=True, eq=False)
class State:
    """One version of everything that depends on the inputs."""

    values: LeafValues  # of the leaves
    outputs: Results
    saved: Env
    harmless: int = -1  # a dirty set that reaches none of these; -1: not known
    # The change, here or in a version before, that left saved values stale by choice.
    culprit: int | None = None
    uses: int = 0  # how often it was a baseline
    is_written_over: bool = False  # some saved values were overwritten by those of a later version
    has_lacked: bool = False  # a change of its rows was not served for want of saved values
    _anchors: tuple[Any, ...] | None = None

    @property
    def anchors(self) -> tuple[Any, ...]:
        """The anchors of the leaf values, made when they are first asked for: most versions of a
        streak go without.
        """
        if self._anchors is None:
            self._anchors = tuple([value.anchor for value in self.values])
        return self._anchors


class VarBytes(dict[Var, int]):
    """Bytes of a value of each variable, found once."""

    def __missing__(self, var: Var) -> int:
        self[var] = num_bytes = aval_bytes(var.aval)
        return num_bytes


Pairs: TypeAlias = list[tuple[State, int]]


@dataclass(slots=True, eq=False)
class Store:
    """The only mutable holder of saved values of one traced signature."""

    versions: int  # how many are kept
    budget_bytes: int  # of saved values
    order: Callable[[Env], list[Var]]  # in which the saved values of a version go
    pool: Pool  # spare buffers
    facts: Facts  # of the program
    # Outputs may be saved values, too. Not where equal inputs must give equal bits: another program
    # may have made them.
    saves_outputs: bool
    states: list[State] = field(default_factory=list)  # the versions, the latest last
    expected: Iterable[Var] = ()  # what may be saved
    expected_outputs: list[tuple[int, Var]] = field(
        default_factory=list
    )  # those of it, with places
    large: frozenset[Var] = frozenset()  # what of it is recycled
    bound_bytes: int = 0  # of all of it, in all versions
    evicted: list[Var] = field(default_factory=list)  # what nobody has asked for yet
    var_bytes: VarBytes = field(default_factory=VarBytes)

    def expect(self, saved: Iterable[Var]) -> None:
        """Announce which variables may be saved, and drop others."""
        if saved is self.expected:
            return
        allowed = frozenset(saved)
        self._retain(lambda var, _: var in allowed)
        self.expected = saved
        num_copies = self.versions + self.pool.is_active
        self.bound_bytes = num_copies * sum(self.var_bytes[var] for var in saved)
        self.large = frozenset(var for var in saved if self.var_bytes[var] >= MIN_BYTES)
        may_be = allowed & self.facts.saveable if self.saves_outputs else ()
        outputs = [(i, x) for i, x in enumerate(self.facts.outvars) if isinstance(x, Var)]
        self.expected_outputs = [(i, var) for i, var in outputs if var in may_be]

    def _retain(self, is_good: Callable[[Var, Any], bool]) -> None:
        """Drop the saved values of which this does not hold, from every version."""
        for state in self.states:
            good = {var: x for var, x in state.saved.items() if is_good(var, x)}
            if len(good) < len(state.saved):
                state.saved = good

    def emptied(self, budget_bytes: int) -> Self:
        """A store without versions, for other data of the same types."""
        return replace(
            self, budget_bytes=budget_bytes, states=[], expected=(), evicted=[], bound_bytes=0
        )

    def successor(
        self,
        base: State | None,
        dirty: int,
        values: LeafValues,
        plan: Plan | None,
        results: Results,
        known: Env,
    ) -> State:
        """The version that follows a baseline, from which these inputs differ: what a plan returned
        (None: the whole program, all of whose results are outputs), and what else was found for it.
        """
        outputs = results
        added = known.copy()
        if plan is not None:
            others = [None] * len(self.facts.outvars) if base is None else base.outputs
            outputs = plan.outputs_with(others, results)
            added.update(zip(plan.saves, results[len(plan.outputs) :], strict=True))
        for i, var in self.expected_outputs:
            added[var] = outputs[i]
        if base is None:
            return State(values, outputs, added)
        saved = self._carried_over(base, dirty, added)
        harmless = dirty if saved is base.saved else -1
        return State(values, outputs, saved, harmless, base.culprit)

    def _carried_over(self, base: State, dirty: int, added: Env) -> Env:
        """The saved values of a new version; the very table of its baseline where nothing changes
        in it.
        """
        if base.harmless != dirty:
            masks = self.facts.masks
            clean = {var: x for var, x in base.saved.items() if not masks[var] & dirty}
            if len(clean) < len(base.saved):
                return {**clean, **added}
            base.harmless = dirty
        if all(map(is_, map(base.saved.get, added), added.values())):
            return base.saved
        return {**base.saved, **added}

    def commit(self, state: State, used: State | None) -> None:
        """Add a version; keep the one that it was made from, then the most recently used others."""
        before = self.states
        states = before.copy()
        if used is not None:
            used.uses += 1
            if used in states:
                states.remove(used)
            states.append(used)
        states.append(state)
        self.states = states[-self.versions :]
        try:
            dropped = states[: -self.versions]
            if dropped:
                self._recycle(dropped)
            self._fit()
        except BaseException:  # an interrupt: what does not fit must not stay
            self.states = before
            raise

    def touch(self, state: State) -> None:
        """Mark a version as the most recently used."""
        if self.states[-1] is not state:
            self.states = [*(s for s in self.states if s is not state), state]

    def add(self, state: State, filled: Env) -> None:
        """Add values computed for an existing version."""
        before = state.saved
        state.saved = {**before, **filled}
        state.harmless = -1
        try:
            self._fit()
        except BaseException:  # as in `commit`
            state.saved = before
            raise

    def take(self, state: State, variables: Sequence[Var]) -> Results:
        """Saved values of a version to be overwritten, which it has no more; copies of those that
        other versions hold.
        """
        others = [other for other in self.states if other is not state]
        held = {id(x) for other in others for x in other.saved.values()}
        taken = [state.saved[var] for var in variables]
        state.saved = {var: x for var, x in state.saved.items() if var not in variables}
        state.harmless = -1
        state.is_written_over = True
        return [jnp.array(x, copy=True) if id(x) in held else x for x in taken]

    def forget(self, variables: Iterable[Var]) -> None:
        """Drop some values from every version."""
        dropped = frozenset(variables)
        self._retain(lambda var, _: var not in dropped)

    def drop_broken(self) -> None:
        """Drop values whose computation failed after they were saved (errors of asynchronous
        programs come late).
        """
        self._retain(lambda _, x: _is_sound(x))
        self.states = [state for state in self.states if all(map(_is_sound, state.outputs))]

    def prove(self, results: Results) -> bool:
        """Whether one of these tells of a failure, in which case what is broken was dropped.

        Results of programs that were not waited for, one of each; those that are ready leave the
        list.
        """
        there = [x for x in results if not x.is_deleted()]
        results[:] = [x for x in there if not x.is_ready()]
        is_broken = not all([_is_sound(x) for x in there if x.is_ready()])
        if is_broken:
            self.drop_broken()
        return is_broken

    def clear(self) -> None:
        """Drop every version."""
        self.states = []
        self.pool.clear()

    def _recycle(self, dropped: list[State]) -> None:
        """Give away large buffers of dropped versions that no version and no user holds."""
        in_use: set[int] = set()
        tables = [state.saved for state in self.states]
        are_held = set(map(id, tables))
        for state in dropped:
            saved = state.saved
            if id(saved) in are_held:
                continue
            state.saved = {}
            large = self.large.intersection(saved)
            if not large:
                continue
            for table in tables:
                in_use.update(map(id, table.values()))
            free = [
                saved[v]
                for v in large
                if id(saved[v]) not in in_use and v not in self.facts.returned
            ]
            self.pool.give(free, saved.values())
            in_use.update(map(id, free))

    @property
    def saved_bytes(self) -> int:
        """Bytes of the distinct saved buffers."""
        sizes = self.var_bytes
        buffers = {id(x): sizes[v] for state in self.states for v, x in state.saved.items()}
        return sum(buffers.values())

    def sizes(self) -> dict[Var, int]:
        """The saved variables with the bytes of all their versions."""
        buffers = {(var, id(x)) for state in self.states for var, x in state.saved.items()}
        numbers = Counter(var for var, _ in buffers)
        return {var: number * self.var_bytes[var] for var, number in numbers.items()}

    def _fit(self) -> None:
        """Evict until the budget holds, spare buffers first. While all that may be saved fits, nobody
        counts the bytes of what is.
        """
        if self.bound_bytes <= self.budget_bytes:
            return
        if self.saved_bytes + self.pool.num_bytes > self.budget_bytes:
            self.pool.clear()
        going = self._in_order_of_eviction()
        while self.saved_bytes > self.budget_bytes:
            self._evict(*next(going))

    def _in_order_of_eviction(self) -> Iterator[tuple[Var, Any]]:
        """The saved buffers: of the oldest versions first, of each those least worth keeping first. What
        a newer version shares goes last, and then from all of them.
        """
        for only_own in (True, False):
            for number, state in enumerate(self.states):
                newer = {id(x) for other in self.states[number + 1 :] for x in other.saved.values()}
                for var in self.order(state.saved):
                    value = state.saved.get(var)
                    if value is not None and not (only_own and id(value) in newer):
                        yield var, value

    def _evict(self, var: Var, value: Any) -> None:
        """Drop one buffer from every version."""
        self._retain(lambda _, x: x is not value)
        self.evicted.append(var)

    def take_evicted(self) -> list[Var]:
        """What was evicted since this was asked for."""
        found = self.evicted
        self.evicted = []
        return found


def _is_sound(x: Any) -> bool:
    if isinstance(x, Tracer):
        return False
    if not isinstance(x, jax.Array) or x.is_deleted():
        return True
    try:
        x.block_until_ready()
    except Exception:
        return False
    return True


is_array_deleted = methodcaller("is_deleted")
"""Whether an array's buffer was donated or deleted by its owner; for `map`: no frame for each."""


def is_any_deleted(values: Iterable[Any]) -> bool:
    """Whether that of one of these was, of which not all need be arrays."""
    return any([isinstance(x, jax.Array) and x.is_deleted() for x in values])


def are_at_hand(values: Iterable[Any]) -> bool:
    """Whether none of them is None, or was deleted."""
    for x in values:
        if x is None or (isinstance(x, jax.Array) and x.is_deleted()):
            return False
    return True


def available_in(pairs: Pairs, var: Var, mask: int) -> Any | None:
    """A saved value that is current under one of the (state, dirty set) pairs and still has its
    buffer.
    """
    for state, dirty in pairs:
        value = None if mask & dirty else state.saved.get(var)
        if are_at_hand((value,)):
            return value
    return None
