"""Stage 10, store: the latest few versions of inputs, outputs and saved values, under a byte budget;
which inputs differ from each version (`Comparison`), and which one to start from (`Baselines`).

A `State` is one version: input values, outputs, and saved values that are current for exactly these
inputs. The store keeps a few states, most recently used last.

Invariants, checked by the tests after each call (`check_invariants` of `tests/helpers.py`):
- every saved value of a state is current for the state's input values;
- no saved value depends on what must run at every call;
- the bytes of distinct saved buffers, spare ones included, never exceed the budget between calls;
- there are at most `versions` states.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import compress
from operator import is_, is_not, itemgetter, methodcaller
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax._jax import ArrayImpl, Tracer, Var, aval_bytes
from incrax._program import Env, Results, Values
from incrax.engine.compile.recycling import MIN_BYTES, Pool
from incrax.engine.inputs.leaves import (
    LeafValue,
    LeafValues,
    changed_elements,
    changed_rows,
    has_bits_of,
    is_compared_by_identity,
    is_farther,
    resolved,
    same_value,
)
from incrax.engine.policy.chooser import Chooser
from incrax.engine.program.dependence import Layout


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
    order: Callable[[State], list[Var]]  # in which saved values of a version go
    pool: Pool  # spare buffers
    outputs: frozenset[Var]  # variables that are returned, whose buffers users may hold
    states: list[State] = field(default_factory=list)  # the versions, the latest last
    bound_bytes: int = 0  # of all that may be saved
    large: frozenset[Var] = frozenset()  # which of it is recycled
    expected: Iterable[Var] = ()  # what may be saved
    evicted: list[Var] = field(default_factory=list)  # what nobody has asked for yet
    var_bytes: VarBytes = field(default_factory=VarBytes)

    def expect(self, saved: Iterable[Var]) -> None:
        """Announce which variables may be saved, and drop others: while all fit, nobody counts the bytes
        of what is stored.
        """
        if saved is self.expected:
            return
        allowed = frozenset(saved)
        self._keep(lambda var, _: var in allowed)
        self.expected = saved
        num_copies = self.versions + self.pool.is_active
        self.bound_bytes = num_copies * sum(self.var_bytes[var] for var in saved)
        self.large = frozenset(var for var in saved if self.var_bytes[var] >= MIN_BYTES)

    def _keep(self, is_kept: Callable[[Var, Any], bool]) -> None:
        """Drop the saved values of which this does not hold, from every version."""
        for state in self.states:
            kept = {var: x for var, x in state.saved.items() if is_kept(var, x)}
            if len(kept) < len(state.saved):
                state.saved = kept

    def commit(self, state: State, used: State | None) -> None:
        """Add a version; keep the one that it was made from, then the most recently used others."""
        states = self.states.copy()
        if used is not None:
            used.uses += 1
            if used in states:
                states.remove(used)
            states.append(used)
        states.append(state)
        self.states = states[-self.versions :]
        dropped = states[: -self.versions]
        if dropped:
            self._recycle(dropped)
        if self.bound_bytes > self.budget_bytes:
            self._fit()

    def touch(self, state: State) -> None:
        """Mark a version as the most recently used."""
        if self.states[-1] is not state:
            self.states = [*(s for s in self.states if s is not state), state]

    def add(self, state: State, filled: Env) -> None:
        """Add values computed for an existing version."""
        state.saved = {**state.saved, **filled}
        state.harmless = -1
        if self.bound_bytes > self.budget_bytes:
            self._fit()

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
        self._keep(lambda var, _: var not in dropped)

    def drop_broken(self) -> None:
        """Drop values whose computation failed after they were saved (errors of asynchronous
        programs come late).
        """
        self._keep(lambda _, x: _is_sound(x))
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
        kept: set[int] = set()
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
                kept.update(map(id, table.values()))
            free = [saved[v] for v in large if id(saved[v]) not in kept and v not in self.outputs]
            self.pool.give(free, saved.values())
            kept.update(map(id, free))

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
        """Evict until the budget holds: spare buffers, then oldest versions first, those least
        worth keeping first.

        A buffer that a newer version shares goes last, and then from all of them.
        """
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
        self._keep(lambda _, x: x is not value)
        self.evicted.append(var)

    def take_evicted(self) -> list[Var]:
        """What was evicted since this was asked for."""
        found = self.evicted
        self.evicted = []
        return found


@dataclass(eq=False)
class Comparison:
    """Compares leaves with the states of one store; of a mask, the layout says which bits are whose."""

    store: Store
    layout: Layout

    def changed_leaves(self, leaves: Values) -> list[int] | None:
        """Numbers of the leaves that are not the very objects of the latest state; None without a
        state.
        """
        states = self.store.states
        if not states:
            return None
        return [
            i
            for i, (x, anchor) in enumerate(zip(leaves, states[-1].anchors, strict=True))
            if x is not anchor
        ]

    def wait(
        self, leaves: Values, changed: Sequence[int] | None, now: Callable[[], float]
    ) -> float:
        """Wait for inputs that are still computed; its seconds, which are no overhead."""
        waited_s = 0.0
        for i in changed or ():
            if not _is_at_hand(leaves[i]):
                start_s = now()
                _wait(leaves[i])
                waited_s += now() - start_s
        return waited_s

    def resolve(self, leaves: Values, changed: Sequence[int] | None) -> LeafValues:
        """Each leaf as the stored value that it equals, or as a new one."""
        states = self.store.states
        if changed is None or not states:
            return tuple([LeafValue(x) for x in leaves])
        latest = states[-1].values
        if not changed:
            return latest
        values = list(latest)
        for index in changed:
            values[index] = self.resolve_leaf(index, leaves[index])
        return latest if all(map(is_, values, latest)) else tuple(values)

    def resolve_leaf(self, index: int, x: Any) -> LeafValue:
        """The stored value with these bits, or a new one."""
        is_numpy = type(x) is np.ndarray
        for state in reversed(self.store.states):
            old = state.values[index]
            if old.anchor is x or (is_numpy and has_bits_of(x, old)):
                return old
        return resolved(x, [state.values[index] for state in reversed(self.store.states)])

    def rows(self, values: LeafValues, state: State, leaves: Sequence[int]) -> np.ndarray | None:
        """Numbers of the rows, along the first axis, in which some leaves differ from a state's;
        None where that is not known.
        """
        if len(leaves) == 1:
            (leaf,) = leaves
            return changed_rows(values[leaf], state.values[leaf])
        found = [changed_rows(values[leaf], state.values[leaf]) for leaf in leaves]
        known = [numbers for numbers in found if numbers is not None]
        if len(known) < len(found):
            return None
        return np.unique(np.concatenate(known))

    def anew(
        self, leaves: Values, changed: Sequence[int], fresh: Sequence[int]
    ) -> LeafValues | None:
        """The leaves, some of them compared with nothing, all others the latest version's.

        None where others differ from it, or an array was deleted.
        """
        values = list(self.store.states[-1].values)
        for index in changed:
            x = leaves[index]
            if index in fresh:
                values[index] = LeafValue(x)
            elif self.resolve_leaf(index, x) is not values[index]:
                return None
        return None if any([value.is_deleted() for value in values]) else tuple(values)

    def differ_beside(self, values: LeafValues, leaves: Sequence[int]) -> bool:
        """Whether some version differs in others than these leaves."""
        for state in self.store.states:
            pairs = enumerate(zip(values, state.values, strict=True))
            if any([new is not old and i not in leaves for i, (new, old) in pairs]):
                return True
        return False

    def nearest(
        self,
        values: LeafValues,
        leaves: Sequence[int],
        read: Set[Var],
    ) -> tuple[State, np.ndarray] | None:
        """The version of which the fewest rows of some leaves differ, and their numbers, of those whose
        values were not written over; of several one that does not lack saved values that are read,
        and of these the one that was most often a baseline, as the last accepted proposal is.

        None where one differs in none, or it is not known in which rows. Other leaves are equal.
        """
        found: list[tuple[int, bool, int, State, np.ndarray]] = []
        (leaf, *others) = leaves
        for state in reversed(self.store.states):
            if found and not others:
                near, numbers = found[0][3:]
                if is_farther(state.values[leaf], near.values[leaf], numbers):
                    continue
            numbers = self.rows(values, state, leaves)
            if numbers is None or not numbers.size:
                return None
            if not state.is_written_over:
                lacks = not read <= state.saved.keys()
                found.append((numbers.size, lacks, -state.uses, state, numbers))
        return min(found, key=itemgetter(0, 1, 2))[3:] if found else None

    def pairs(self, values: LeafValues) -> Pairs:
        """Each state with its dirty set; the latest alone where that has these very values."""
        states = self.store.states
        if states and values is states[-1].values:
            return [(states[-1], 0)]
        return [(state, self.dirty(values, state)) for state in states]

    def elements(self, index: int, new: LeafValue, old: LeafValue) -> int:
        """Mask of the elements of a leaf in which two values differ; 1 where it is tracked as a
        whole.
        """
        width = self.layout.widths[index]
        if width == 1:
            return 0 if same_value(old, new) else 1
        return changed_elements(new, old, width)

    def dirty(self, values: LeafValues, state: State) -> int:
        """Mask of the inputs whose bits differ from those of a state."""
        dirty = 0
        offsets = self.layout.offsets
        widths = self.layout.widths
        known = state.values
        for index in compress(range(len(known)), map(is_not, values, known)):
            width = widths[index]
            elements = 1 if width == 1 else changed_elements(values[index], known[index], width)
            dirty |= elements << offsets[index]
        return dirty


@dataclass(eq=False)
class Baselines:
    """Ranks versions with their dirty sets; `always` are the bits of what runs at every call."""

    chooser: Chooser
    always: int

    def ranked(self, pairs: Pairs) -> Pairs:
        """The best baseline last."""
        if len(pairs) == 2 and pairs[0][1] == pairs[1][1]:
            if self._is_better(pairs[0], pairs[1]):
                pairs.reverse()
        elif len(pairs) > 1:
            pairs.sort(key=self._rank, reverse=True)
            self._prefer_fewer_changes(pairs)
        return pairs

    def _is_better(self, pair: tuple[State, int], other: tuple[State, int]) -> bool:
        """Whether the first of two baselines with one dirty set has more of its values, or was used
        more often.
        """
        has, other_has = (
            (True, True)
            if pair[0].saved is other[0].saved
            else (self._has_values(*pair), self._has_values(*other))
        )
        return (has, pair[0].uses) > (other_has, other[0].uses)

    def _prefer_fewer_changes(self, pairs: Pairs) -> None:
        """Move a baseline to the end whose dirty set is part of the best one's, unless values are
        missing there.

        Estimates of the two need not agree on which is cheaper; a new dirty set must be tried to be
        known.
        """
        for number, (state, dirty) in enumerate(pairs[:-1]):
            best = pairs[-1][1]
            if dirty == best or dirty & ~best:
                continue
            entry = self.chooser.seen(dirty | self.always)
            if entry is None or not entry.is_decided or self._has_values(state, dirty):
                pairs.append(pairs.pop(number))
                return

    def _rank(self, pair: tuple[State, int]) -> tuple[float, int, int]:
        """Expected seconds, then the number of changed inputs, then how seldom the state was a
        baseline before.
        """
        state, dirty = pair
        if not dirty:
            return (-1.0, 0, 0)
        expected_s = self.chooser.expected_s(dirty | self.always)
        if not self._has_values(state, dirty):
            expected_s = self.chooser.whole_s
        return (expected_s, dirty.bit_count(), -state.uses)

    def _has_values(self, state: State, dirty: int) -> bool:
        """Whether a state holds what serves a change of it."""
        return all([var in state.saved for var in self.chooser.loads(dirty | self.always)])


def _is_at_hand(x: Any) -> bool:
    """Whether a leaf need not be waited for: it is no array of JAX, or is computed."""
    array: Any = x
    if type(x) is ArrayImpl:
        return array.is_deleted() or array.is_ready()
    return type(x) is float or not isinstance(x, jax.Array) or x.is_deleted()


def _wait(x: jax.Array) -> None:
    """Wait for an array whose bits are to be compared; if what computes it failed, it equals
    nothing.
    """
    if not is_compared_by_identity(x):
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            x.block_until_ready()


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
