"""Stage 10, store: saved values, keyed by the input values that they depend on, under a byte budget.

A `State` is one version: input values, outputs, and saved values that are current for exactly these inputs. The store
keeps a few states, most recently used last.

Invariants, checked by `check_invariants`:
- every saved value of a state is current for the state's input values;
- no saved value depends on what must run at every call;
- the bytes of distinct saved buffers, spare ones included, never exceed the budget between calls;
- there are at most `versions` states, and one more that is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from incrax._jax import Tracer, Var, aval_bytes
from incrax._profiling import annotated
from incrax.engine.compile.recycling import Pool
from incrax.engine.inputs.leaves import LeafValue, as_value
from incrax.engine.program.dependence import ALWAYS


class State:
    """One version of everything that depends on the inputs.

    Fields: entries (leaf values, or leaves whose objects never change) and their anchors; outputs; saved values; the
    dirty set whose whole evaluation left saved values stale, if any; how often it was a baseline since; a dirty set
    that reaches none of the saved values (-1: not known).
    """

    __slots__ = ("_values", "anchors", "culprit", "entries", "harmless", "outputs", "saved", "uses")

    def __init__(
        self,
        entries: tuple[Any, ...],
        outputs: list[Any],
        saved: dict[Var, Any],
        culprit: int | None,
        *,
        are_values: bool = False,
    ) -> None:
        self.entries = entries
        self.anchors = tuple([e.anchor if type(e) is LeafValue else e for e in entries])
        self.outputs = outputs
        self.saved = saved
        self.culprit = culprit
        self.uses = 0
        self.harmless = -1
        self._values: tuple[LeafValue, ...] | None = entries if are_values else None

    @property
    def values(self) -> tuple[LeafValue, ...]:
        """The leaf values; made when something is compared with them."""
        if self._values is None:
            self._values = tuple([as_value(entry) for entry in self.entries])
        return self._values

    def copy(self) -> State:
        """The same version for another store: arrays are shared, the table is not."""
        return State(self.entries, self.outputs, dict(self.saved), self.culprit)


class Store:
    """The only mutable holder of saved values of one traced signature."""

    __slots__ = (
        "bound_bytes",
        "budget_bytes",
        "evicted",
        "expected",
        "order",
        "outputs",
        "pinned",
        "pool",
        "shared",
        "states",
        "versions",
    )

    def __init__(
        self,
        versions: int,
        budget_bytes: int,
        order: Callable[[State], list[Var]],
        pool: Pool,
        outputs: frozenset[Var],
    ) -> None:
        self.states: list[State] = []
        self.pinned: State | None = None
        self.versions = versions
        self.budget_bytes = budget_bytes
        self.order = order
        self.pool = pool
        self.outputs = outputs
        self.shared: frozenset[int] = frozenset()
        self.bound_bytes = 0
        self.expected: Iterable[Var] = ()
        self.evicted: list[Var] = []

    def fork(self, order: Callable[[State], list[Var]]) -> Store:
        """A store with the same values; buffers that both hold are never recycled."""
        other = Store(self.versions, self.budget_bytes, order, Pool(is_active=self.pool.is_active), self.outputs)
        other.states = [state.copy() for state in self.states]
        if self.pinned is not None:
            other.pinned = other.states[self.states.index(self.pinned)]
        other.bound_bytes, other.expected = self.bound_bytes, self.expected
        ids = frozenset(id(x) for state in self.states for x in state.saved.values())
        self.shared |= ids
        other.shared = self.shared
        return other

    def expect(self, saved: Iterable[Var]) -> None:
        """Announce which variables may be saved, and drop others: while all fit, no account is kept per call."""
        if saved is self.expected:
            return
        allowed = frozenset(saved)
        for state in self.states:
            if not allowed.issuperset(state.saved):
                state.saved = {var: x for var, x in state.saved.items() if var in allowed}
        self.expected = saved
        num_copies = self.versions + (self.pinned is not None) + self.pool.is_active
        self.bound_bytes = num_copies * sum(aval_bytes(var.aval) for var in saved)

    def pin(self, state: State | None) -> None:
        """Keep a version until another one is pinned, or none."""
        self.pinned, self.expected = state, ()
        self.bound_bytes = self.budget_bytes + 1
        self._set(self.states)

    @annotated("commit")
    def commit(self, state: State, used: State | None) -> None:
        """Add a version; keep the one that it was made from, then the most recently used others."""
        if used is not None:
            used.uses += 1
        others = [s for s in self.states if s is not used]
        kept = others if used is None else [*others, used]
        self._set([*kept, state])

    def replace(self, state: State) -> None:
        """Add a version without saved values; where none has any, there is nothing to weigh or to give away."""
        if self.pinned is not None or any([s.saved for s in self.states]):
            self.commit(state, None)
        else:
            self.states = [self.states[-1], state] if self.versions > 1 and self.states else [state]

    def touch(self, state: State) -> None:
        """Mark a version as the most recently used."""
        if self.states[-1] is not state:
            self.states = [*(s for s in self.states if s is not state), state]

    def add(self, state: State, filled: dict[Var, Any]) -> None:
        """Add values computed for an existing version."""
        state.saved, state.harmless = {**state.saved, **filled}, -1
        self._fit()

    def forget(self, variables: Iterable[Var]) -> None:
        """Drop some values from every version."""
        dropped = frozenset(variables)
        for state in self.states:
            state.saved = {var: x for var, x in state.saved.items() if var not in dropped}

    def drop_broken(self) -> None:
        """Drop values whose computation failed after they were saved (errors of asynchronous programs come late)."""
        for state in self.states:
            state.saved = {var: x for var, x in state.saved.items() if _is_sound(x)}
        self.states = [state for state in self.states if all(map(_is_sound, state.outputs))]
        self.pinned = self.pinned if self.pinned in self.states else None

    def prove(self, results: list[Any]) -> bool:
        """Whether one of these tells of a failure, in which case what is broken was dropped.

        Results of programs that were not waited for, one of each; those that are ready leave the list.
        """
        running, is_broken = [], False
        for x in results:
            if x.is_deleted():
                continue
            if x.is_ready():
                is_broken = is_broken or not _is_sound(x)
            else:
                running.append(x)
        results[:] = running
        if is_broken:
            self.drop_broken()
        return is_broken

    def clear(self) -> None:
        """Drop every version."""
        self.states, self.pinned = [], None
        self.pool.clear()

    def _set(self, states: list[State]) -> None:
        kept = states[-self.versions :]
        if self.pinned is not None and self.pinned not in kept:
            kept = [self.pinned, *kept]
        dropped = [state for state in states if state not in kept] if len(kept) < len(states) else []
        self.states = kept
        if dropped:
            self._recycle(dropped)
        self._fit()

    def _recycle(self, dropped: list[State]) -> None:
        """Give away buffers of dropped versions that no version, no other store and no user holds."""
        tables = [state.saved for state in self.states]
        dropped = [state for state in dropped if not any([state.saved is table for table in tables])]
        if not dropped:
            return
        kept = {id(x) for state in self.states for x in state.saved.values()}
        for state in dropped:
            free = [x for var, x in state.saved.items() if id(x) not in kept and var not in self.outputs]
            self.pool.give([x for x in free if id(x) not in self.shared], state.saved.values())
            kept.update(map(id, free))
            state.saved = {}

    @property
    def saved_bytes(self) -> int:
        """Bytes of the distinct saved buffers."""
        return sum({id(x): aval_bytes(v.aval) for state in self.states for v, x in state.saved.items()}.values())

    def sizes(self) -> dict[Var, int]:
        """The saved variables with the bytes of all their versions."""
        found: dict[Var, dict[int, int]] = {}
        for state in self.states:
            for var, x in state.saved.items():
                found.setdefault(var, {})[id(x)] = aval_bytes(var.aval)
        return {var: sum(sizes.values()) for var, sizes in found.items()}

    def _fit(self) -> None:
        """Evict until the budget holds: spare buffers, then oldest versions first, those least worth keeping first.

        A buffer that a newer version shares goes last, and then from all of them.
        """
        if self.bound_bytes <= self.budget_bytes:
            return
        if self.saved_bytes + self.pool.num_bytes > self.budget_bytes:
            self.pool.clear()
        if self.saved_bytes <= self.budget_bytes:
            return
        for only_own in (True, False):
            for number, state in enumerate(self.states):
                newer = {id(x) for other in self.states[number + 1 :] for x in other.saved.values()}
                for var in self.order(state):
                    value = state.saved.get(var)
                    if value is not None and not (only_own and id(value) in newer):
                        self._evict(var, value)
                    if self.saved_bytes <= self.budget_bytes:
                        return

    def _evict(self, var: Var, value: Any) -> None:
        """Drop one buffer from every version."""
        for state in self.states:
            state.saved = {var: x for var, x in state.saved.items() if x is not value}
        self.evicted.append(var)

    def take_evicted(self) -> list[Var]:
        """What was evicted since this was asked for."""
        if not self.evicted:
            return []
        found, self.evicted = self.evicted, []
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


def is_any_deleted(outputs: Iterable[Any]) -> bool:
    """Whether a result's buffer was donated or deleted by its owner."""
    return any([isinstance(x, jax.Array) and x.is_deleted() for x in outputs])


def available_in(states: Iterable[tuple[State, int]], var: Var, mask: int) -> Any | None:
    """A saved value that is current under one of the (state, dirty set) pairs and still has its buffer."""
    for state, dirty in states:
        if not mask & dirty:
            value = state.saved.get(var)
            if value is not None and not (isinstance(value, jax.Array) and value.is_deleted()):
                return value
    return None


def check_invariants(store: Store, mask: Callable[[Var], int]) -> None:
    """Raise AssertionError where an invariant of the store does not hold."""
    assert len(store.states) <= store.versions + (store.pinned is not None)
    assert store.pinned is None or store.pinned in store.states
    assert store.saved_bytes + store.pool.num_bytes <= max(store.budget_bytes, store.bound_bytes)
    assert store.saved_bytes <= store.budget_bytes
    for state in store.states:
        assert not any(mask(var) & ALWAYS for var in state.saved)
        assert not any(isinstance(x, Tracer) for x in [*state.outputs, *state.saved.values()])
