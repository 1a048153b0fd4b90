"""Proposals inside compiled loops: what the function is after a few rows changed, and the change
written, or not.

In: an analysed function and its leaves. Out: `Sites`, whose `look` writes nothing and whose
`settle` writes the rows that differ. It must not know the store, nor who accepts.

A step of a sampler reads the rows of one site, and writes as many. Of a sum over rows it needs the
difference, S + sum_dirty new - sum_dirty old: the state has S, of the rows nothing but the inputs.
After as many of them as the axis has rows, `MIN_DIFFERENCES` at least, or where one would lose
digits, the sums are summed anew, by `lax.cond`: so that they lose about what the sum itself loses,
and a step costs no more with more rows.

Promise: `look(state, changes)[1]` is f at the state's inputs with the changes written in, up to the
rounding of that many differences; `settle` gives the state at these inputs, or, refused, the
state.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from incrax import _jax
from incrax._jax import Var
from incrax._messages import no_sites, not_by_rows, unknown_input, wrong_site
from incrax._program import Env, Results, Values, read_vars, type_of
from incrax.engine.call.pure import strong
from incrax.engine.compile.executables import device_constants
from incrax.engine.compile.one_kernel import in_one_kernel
from incrax.engine.inputs.leaves import different_bits
from incrax.engine.inputs.paths import is_within
from incrax.engine.plan.environment import AgainError, ValueOf
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.parts import RowParts
from incrax.engine.plan.plan import plan_fill, reached_equations
from incrax.engine.plan.row_sets import DirtyRows, LookedUp, RowSet, row_set, taken, with_rows
from incrax.engine.plan.slicer import Slicer
from incrax.engine.plan.slices import value_at
from incrax.primitives.on_rows import NotByRowsError

MIN_DIFFERENCES = 512
"""Differences that may be added to a sum before it is summed anew, however few rows there are."""

WIDTH_SHARES = (0.5, 0.75, 0.9375, 1.0)
"""Of the ids of a look-up, those that each width of its table has room for."""

MIN_WIDENING = 1.25
MIN_SLOTS = 32
"""A table that is not wider than so many times the last, and these slots more, takes its place."""

Change = Any
"""(numbers, rows) of an input of which rows change, or its value as a whole."""
Changes = Mapping[int, Change]
"""Of some inputs, by number."""


class SitesState(NamedTuple):
    """What a loop carries: inputs that move, sums and other saved values at them, and how many
    differences each of these has taken, an array of int32.
    """

    values: tuple[Any, ...]
    num_differences: Any


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["numbers", "new"],
    meta_fields=["axis", "length", "has_spare"],
)
@dataclass(frozen=True)
class NewRows:
    """New rows of a value: their numbers, what they are, along which axis of which length, whether
    some slots stand for no row.
    """

    numbers: Any
    new: Any
    axis: int
    length: int
    has_spare: bool = False

    def taken(self, value: Any) -> Any:
        """These rows of a value as it is."""
        return taken(value, self.axis, self._set)

    def written(self, value: Any) -> Any:
        """The value with these rows."""
        return with_rows(value, DirtyRows(self.new, None, self.axis, self._set))

    @property
    def _set(self) -> RowSet:
        return RowSet(self.numbers, self.length, None, self.has_spare)


Found = dict[int, Any]
"""What changed, by its place in the state: `NewRows`, or a value as a whole."""


class Delta(NamedTuple):
    """A change that `look` saw and `settle` may write, and how many differences each value has taken
    then.
    """

    found: Found
    num_differences: Any


class FoundDelta(NamedTuple):
    """A change of which the rows were found in the graph: as rows, and as whole inputs, which count
    where there were too many.
    """

    few: Delta
    values: dict[str, Any]
    is_few: Any


@dataclass(eq=False)
class _Form:
    """What is known while JAX traces, of a function and the inputs of it that move."""

    facts: Facts  # the analysis
    paths: tuple[str, ...]  # of the inputs
    moving: tuple[int, ...]  # numbers of those that move
    out_tree: Any  # of the result
    value_of: Any  # of a clean variable, for look-ups
    tables: Env = field(default_factory=dict)  # what all states share
    slots: list[Var] = field(default_factory=list)  # what a state has
    fixed: list[Var] = field(default_factory=list)
    needed: set[Var] = field(default_factory=set)  # what others need as it was
    looked_up: set[Var] = field(default_factory=set)  # what is written in rows that were looked up
    colours: dict[tuple[str, ...], np.ndarray | None] = field(default_factory=dict)

    @functools.cached_property
    def mask(self) -> int:
        """The inputs that move."""
        return self.mask_of(self.moving)

    def mask_of(self, leaves: Iterable[int]) -> int:
        """The bits of some inputs."""
        layout = self.facts.layout
        return sum(map(layout.leaf_mask, leaves))

    def save(self, var: Var) -> None:
        """Keep a value: in the state if it moves, else beside it."""
        moves = var not in self.tables and self.facts.mask(var) & self.mask
        kept = self.slots if moves else self.fixed
        if var not in kept:
            kept.append(var)

    def drop(self) -> None:
        """Leave out of the state what only changes of whole inputs read, and others would write in
        all rows of their ids: such a change makes it anew.
        """
        kept = {*self.needed, *self.facts.invars, *_outputs(self.facts)}
        self.slots = [var for var in self.slots if var in kept or var not in self.looked_up]

    def index(self, path: str) -> int:
        """The number of an input that moves.

        Raises:
            UnknownInputError: it is none.
        """
        names = [self.paths[leaf] for leaf in self.moving]
        if path not in names:
            raise unknown_input(path, names)
        return self.moving[names.index(path)]


class _Known(dict[Var, Any]):
    """Values of clean variables; what is missing is computed, and noted."""

    def __init__(self, facts: Facts, values: Mapping[Var, Any], env: Env) -> None:
        super().__init__(values)
        self.facts = facts
        self.env = env
        self.missing: dict[Var, None] = {}

    def __missing__(self, var: Var) -> Any:
        self.missing[var] = None
        self[var] = _computed(self.facts, [var], self.env)[0]
        return self[var]


class _Read(NamedTuple):
    """What a change reads: values of what it does not reach; values as they were; tables of
    look-ups, and the rows found in each; which places of the state stand on differences then.
    """

    values: list[Var]
    olds: list[Var]
    looked_up: dict[Var, RowSet]
    drifting: list[int]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["_fixed"], meta_fields=["_form"])
@dataclass(frozen=True, eq=False)
class Sites:
    """`look` and `settle` of one function: proposals that change a few rows of its inputs, for
    compiled loops. Made by `Incremental.sites`; a pytree of the data that do not move, so that it
    may be an argument of compiled functions.
    """

    _form: _Form
    _fixed: tuple[Any, ...]

    def look(
        self, state: SitesState, changes: Mapping[str, Change], max_rows: int | None = None
    ) -> tuple[Delta | FoundDelta, Any]:
        """The function after some changes, which are not written.

        Args:
            state: the newest one.
            changes: for each input that changes, by its path as `explain()` prints it, its new
                value; or, of an input of which rows change, a pair (numbers, rows): one number
                along the first axis and its new row, or an array of k distinct numbers and rows of
                shape (k, ...). They may be traced; a number out of range counts as the nearest.
            max_rows: find out here which rows of new values differ from those of the state. As long
                as there are so many in each input at most, they alone run, else all of them.

        Returns:
            What `settle` takes, and the function's result.

        Raises:
            UnknownInputError: a path names no input that moves.
            StepTypeError: a value has another shape or dtype than the input, or its rows; rows by
                number, with `max_rows`.

        Cost: the equations that the rows reach, on these rows alone, now and as they were; all rows
            where the function needs them all (`max`, `sort`, `cumsum` along the axis). Under
            `vmap` sums are summed anew for all candidates, or chains, where one of them needs it.
            With `max_rows` the inputs are compared, and all must have few.
        """
        state, changes = _jax.varying_alike((state, dict(changes)))
        if max_rows is not None:
            return self._look_found(state, changes, max_rows)
        form = self._form
        given = {form.index(path): self._given(path, change) for path, change in changes.items()}
        env = self._env(state)
        found, guards, drifting = self._seen(state, given)
        counts = state.num_differences
        if guards:
            # Each saved value has a count of its own: what is summed anew here are those that this
            # change reaches, and others must not be taken for new. By a mask, since a gather and a
            # scatter of them would be kernels of their own in each step.
            is_summed = np.isin(np.arange(len(form.slots)), drifting)
            most = jnp.max(jnp.where(is_summed, counts, 0))
            is_few = lax.lt(most, np.int32(self._limit(given)))
            is_sound = _everywhere(_all([is_few, *guards]))
            summed = {slot: found[slot] for slot in drifting}
            found |= lax.cond(is_sound, lambda: summed, lambda: self._anew(env, given, summed))
            counts = jnp.where(is_summed, jnp.where(is_sound, counts + 1, 0), counts)
        return Delta(found, counts), self._out(env, found)

    def _limit(self, given: Changes) -> int:
        """Differences that sums may take: as many as there are rows of what changes."""
        inputs = self._inputs
        lengths = [inputs[i].aval.shape[0] for i, x in given.items() if isinstance(x, tuple)]
        return max([MIN_DIFFERENCES, *lengths])

    def _look_found(
        self, state: SitesState, changes: Mapping[str, Change], max_rows: int
    ) -> tuple[FoundDelta, Any]:
        """The same of whole values, of which few rows may be new."""
        inputs = self.inputs(state)
        values: dict[str, Any] = {}
        rows: dict[str, Change] = {}
        are_few: list[Any] = []
        for path, change in changes.items():
            value = self._given(path, change)
            if isinstance(value, tuple):
                raise wrong_site(path, "rows by number", "its whole value, with `max_rows`")
            values[path] = value
            is_few, numbers = _few_rows(value, inputs[path], max_rows)
            are_few.append(is_few)
            if numbers is not None:
                rows[path] = numbers, value[numbers]
        is_few = _everywhere(_all(are_few))
        few, out = self.look(state, rows)
        assert isinstance(few, Delta)
        out = lax.cond(is_few, lambda: out, lambda: self.look(state, values)[1])
        return FoundDelta(few, values, is_few), out

    def settle(
        self, state: SitesState, delta: Delta | FoundDelta, accept: Any = True
    ) -> SitesState:
        """The state with a change, or as it was.

        Args:
            state: the one that was looked at.
            delta: what `look` returned.
            accept: whether the change is written; one boolean, which may be traced.

        Returns:
            The next state.

        Cost: reads and writes the rows, and the sums; of rows that were too many, one evaluation.
        """
        state, delta, accept = _jax.varying_alike((state, delta, accept))
        if isinstance(delta, FoundDelta):
            anew = lambda: lax.cond(accept, lambda: self.start(delta.values, state), lambda: state)
            by_rows = lambda: self.settle(state, delta.few, accept)
            return lax.cond(delta.is_few, by_rows, anew)
        values = list(state.values)
        for slot, change in delta.found.items():
            old = values[slot]
            if isinstance(change, NewRows):
                if accept is not True:
                    rows = jnp.where(accept, change.new, change.taken(old))
                    change = replace(change, new=rows)
                values[slot] = change.written(old)
            else:
                values[slot] = change if accept is True else jnp.where(accept, change, old)
        count = delta.num_differences
        if accept is not True:
            count = jnp.where(accept, count, state.num_differences)
        return SitesState(tuple(values), count)

    def scan(
        self, step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, turns: Any
    ) -> tuple[Any, Any]:
        """`lax.scan(step, carry, turns)`, for steps by `look` and `settle`.

        Args:
            step: function of the carry and a turn; returns the next carry and what is collected.
            carry: at the start, such as a state and the function's result.
            turns: a tree of arrays, a turn for each entry along their first axes.

        Returns:
            The last carry, and what was collected.

        Cost: on a CPU, steps that make up to 64 numbers of each kind and sum nothing anew, as where
            all that is summed are integers, are one kernel together: some 50 ns a step instead of
            500. Others take what they take in `lax.scan`.

        Example:
            >>> import incrax, jax, jax.numpy as jnp
            >>> f = incrax.incremental(lambda s: -jnp.sum(s * jnp.roll(s, -1)))
            >>> state, sites = f.sites(jnp.ones(8, int), moves=["s[*]"])
            >>> def flip(state, i):
            ...     row = -sites.inputs(state)["s"][i]
            ...     delta, energy = sites.look(state, {"s": (i, row)})
            ...     return sites.settle(state, delta), energy
            >>> sites.scan(flip, state, jnp.array([3, 4, 3]))[1].tolist()
            [-4, -4, -4]
        """
        return in_one_kernel(lambda carry, turns: lax.scan(step, carry, turns), carry, turns)

    def start(self, changes: Mapping[str, Any], state: SitesState) -> SitesState:
        """The state at other values of inputs that move; what they reach is computed anew.

        Args:
            changes: inputs by path, as a whole.
            state: any one, whose other inputs stay.

        Cost: one evaluation of what the changes reach.
        """
        form = self._form
        given = {form.index(path): strong(value) for path, value in changes.items()}
        made = _state_of(form, self._moved(self._env(state), given))
        dirty = self._mask(given)
        is_reached = np.array([self._reaches(var, dirty) for var in form.slots], bool)
        counts = jnp.where(is_reached, made.num_differences, state.num_differences)
        return SitesState(made.values, counts)

    def parts(self, state: SitesState, rows: Mapping[str, Any]) -> jax.Array:
        """What each row of some inputs adds to the function, up to a constant.

        Promise: where some rows of x, of one of the `colours`, change to those of y, f(y) - f(x) is
        the sum of `parts(state, {"x": y}) - parts(state, {"x": x})` over these rows.

        Args:
            state: the newest one, of whose other inputs the parts depend.
            rows: inputs by path, as a whole; of several, rows of the same number belong together.

        Returns:
            An array of shape (number of rows,).

        Raises:
            NotByRowsError: no such parts are known, and no colours.

        Cost: one evaluation of what the inputs reach.
        """
        return self._by_rows(state, rows).parts

    def colours(self, state: SitesState, paths: Sequence[str]) -> np.ndarray | None:
        """A colour for each row of some inputs, such that rows of one colour do not interact, as on
        a chessboard, shape (number of rows,): all may move at once, each by its own part. None where
        nothing is known, or it takes over 16; all are 0 where no row interacts with another.

        Cost: a trace, and some microseconds for each row; once.
        """
        colours = self._form.colours
        key = tuple(paths)
        if key not in colours:
            colours[key] = None
            with contextlib.suppress(NotByRowsError):
                colours[key] = self._terms(state, paths).colours()
        return colours[key]

    def _by_rows(self, state: SitesState, rows: Mapping[str, Any]) -> RowParts:
        """The function by its terms, some inputs given."""
        form = self._form
        given = {form.index(path): strong(value) for path, value in rows.items()}
        env = self._env(state)
        known = _Known(form.facts, {**form.tables, **self._clean(env, given)}, env)
        by_var = {form.facts.invars[leaf]: value for leaf, value in given.items()}
        return RowParts(form.facts, by_var, known, form.value_of)

    def _terms(self, state: SitesState, paths: Sequence[str]) -> RowParts:
        """The same where nothing is computed, for what is known of the terms."""
        found: list[RowParts] = []

        def look(state: SitesState, rows: Mapping[str, Any]) -> Any:
            found.append(self._by_rows(state, rows))
            return found[0].parts

        inputs = self.inputs(state)
        jax.eval_shape(look, state, {path: inputs[path] for path in paths})
        return found[0]

    def inputs(self, state: SitesState) -> dict[str, jax.Array]:
        """The inputs that move, by path, at a state."""
        paths = [self._form.paths[leaf] for leaf in self._form.moving]
        return dict(zip(paths, state.values[: len(paths)], strict=True))

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _inputs(self) -> tuple[Var, ...]:
        facts = self._form.facts
        return facts.invars

    def _env(self, state: SitesState) -> Env:
        """Values of the state, and of what does not move."""
        form = self._form
        env = dict(zip(form.fixed, self._fixed, strict=True))
        env.update(zip(form.slots, state.values, strict=True))
        return env

    def _given(self, path: str, change: Change) -> Change:
        """A change with the input's dtype, rows along the first axis.

        Raises:
            StepTypeError: its shape does not fit.
        """
        var = self._inputs[self._form.index(path)]
        aval = var.aval
        if not isinstance(change, tuple):
            value = _cast(path, change, aval.dtype)
            if value.shape != aval.shape:
                raise wrong_site(path, f"a value of shape {value.shape}", f"{aval.shape}")
            return value
        numbers, rows = change
        numbers, rows = jnp.asarray(numbers), _cast(path, rows, aval.dtype)
        if not aval.shape or not jnp.issubdtype(numbers.dtype, jnp.integer) or numbers.ndim > 1:
            seen = f"numbers of dtype {numbers.dtype} and shape {numbers.shape}"
            raise wrong_site(path, seen, "one integer, or a vector of them, for an array's rows")
        expected = (*numbers.shape, *aval.shape[1:])
        if rows.shape != expected:
            raise wrong_site(path, f"rows of shape {rows.shape}", f"{expected}")
        length = aval.shape[0]
        numbers = lax.clamp(np.int32(0), numbers.reshape(-1).astype(np.int32), np.int32(length - 1))
        return numbers, rows.reshape(-1, *aval.shape[1:])

    def _seen(self, state: SitesState, given: Changes) -> tuple[Found, list[Any], list[int]]:
        """What `_within` finds, by one kernel where it is small."""
        drifting: list[int] = []

        def run(fixed: tuple[Any, ...], state: SitesState, given: Changes) -> Any:
            sites = Sites(self._form, fixed)
            found, guards, drifting[:] = sites._within(sites._env(state), given)
            return found, guards

        found, guards = in_one_kernel(run, self._fixed, state, given)
        return found, guards, drifting

    def _within(self, env: Env, given: Changes) -> tuple[Found, list[Any], list[int]]:
        """What `_changed` finds, and what of it stands on differences, by the narrowest tables of
        look-ups that have room.

        Where few ids have many rows, most slots of a table that has room for all are spare. So
        there is a branch for each of some widths, and the first runs in which no id has more rows.
        """
        found, guards, read = self._changed(env, given)
        tables = read.looked_up
        if any(isinstance(x, NewRows) and x.has_spare for x in found.values()):
            return found, guards, read.drifting  # as many rows are written as the table has slots
        levels = _levels([np.sum(self._form.tables[x] < of.length, 1) for x, of in tables.items()])
        if len(levels) > 1:
            widths = [dict(zip(tables, level, strict=True)) for level in levels]
            run = lambda each: self._changed(env, given, each)[:2]
            too_narrow = [_is_too_narrow(env, tables, each) for each in widths[:-1]]
            number = functools.reduce(lax.add, (each.astype(np.int32) for each in too_narrow))
            found, guards = lax.switch(number, [functools.partial(run, each) for each in widths])
        return found, guards, read.drifting

    def _changed(
        self,
        env: Env,
        given: Changes,
        widths: Mapping[Var, int] | None = None,
    ) -> tuple[Found, list[Any], _Read]:
        """New rows, or values, of all that the state has and the change reaches; what must be true
        of them; and what was read. `widths`: of tables, as in `Slicer`.
        """
        form = self._form
        facts = form.facts
        dirty = self._mask(given)
        wanted = {slot: var for slot, var in enumerate(form.slots) if facts.mask(var) & dirty}
        slicer = Slicer(facts, form.value_of, adds_changes=True, widths=widths)
        values = self._run(slicer, env, given, list(wanted.values()))
        is_drifting = lambda var: not slicer.drifting.isdisjoint(_sources(facts, var))
        drifting = [slot for slot, var in wanted.items() if is_drifting(var)]
        read = _Read(values, list(slicer.asked.olds), slicer.looked_up, drifting)
        found = {slot: _found(slicer, var) for slot, var in wanted.items()}
        return found, slicer.guards, read

    def _run(self, slicer: Slicer, env: Env, given: Changes, wanted: Sequence[Var]) -> list[Var]:
        """Have a slicer run what a change reaches of some values, again until it has all that it
        asks for: values as they were, and tables of look-ups. Returns what it read of the rest.
        """
        form = self._form
        facts = form.facts
        dirty = self._mask(given)
        targets = dict.fromkeys(x for var in wanted for x in _sources(facts, var))
        written = [var for var in targets if var not in facts.invars and facts.mask(var) & dirty]
        reached = reached_equations(facts, dirty, written)
        clean, changes = self._before(env, given)
        olds: Env = {}
        while True:
            known = _Known(facts, {**form.tables, **clean}, env)
            try:
                slicer.run(reached, known, olds, changes)
            except AgainError:
                continue
            asked = slicer.asked
            missing = [var for var in asked.olds if var not in olds]
            tables = [var for var in asked.tables if var not in form.tables]
            if not missing and not tables:
                return [*known.missing, *asked.tables]
            olds.update(zip(missing, _computed(facts, missing, env), strict=True))
            for table in tables:
                recipe = facts.derived.on_host[table]
                form.tables[table] = recipe.make(*map(form.value_of, recipe.sources))

    def _before(self, env: Env, given: Changes) -> tuple[Env, Env]:
        """The values that a change does not reach, with the inputs that change as a whole, and what
        changes: rows of inputs, or None.
        """
        clean = self._clean(env, given)
        changes: Env = {}
        for leaf, change in given.items():
            var = self._inputs[leaf]
            changes[var] = None
            if isinstance(change, tuple):
                numbers, rows = change
                changes[var] = rows, row_set(numbers, var.aval.shape[0])
            else:
                clean[var] = change
        return clean, changes

    def _mask(self, given: Changes) -> int:
        return self._form.mask_of(given)

    def _reaches(self, var: Var, dirty: int) -> bool:
        form = self._form
        return var not in form.tables and bool(form.facts.mask(var) & dirty)

    def _clean(self, env: Mapping[Var, Any], given: Changes) -> Env:
        """The values that a change does not reach."""
        dirty = self._mask(given)
        return {var: x for var, x in env.items() if not self._reaches(var, dirty)}

    def _moved(self, env: Mapping[Var, Any], given: Changes) -> Env:
        """The same, and the inputs that change."""
        moved = self._clean(env, given)
        inputs = self._inputs
        for leaf, change in given.items():
            var = inputs[leaf]
            if isinstance(change, tuple):
                numbers, rows = change
                change = NewRows(numbers, rows, 0, var.aval.shape[0])
                change = change.written(env[var])
            moved[var] = change
        return moved

    def _anew(self, env: Mapping[Var, Any], given: Changes, found: Mapping[int, Any]) -> Found:
        """The same as was found, from the inputs alone."""
        form = self._form
        variables = [form.slots[slot] for slot in found]
        values = _computed(form.facts, variables, self._moved(env, given))
        return {
            slot: replace(x, new=x.taken(value)) if isinstance(x, NewRows) else strong(value)
            for (slot, x), value in zip(found.items(), values, strict=True)
        }

    def _out(self, env: Mapping[Var, Any], found: Mapping[int, Any]) -> Any:
        at = dict(env)
        returned = _outputs(self._form.facts)
        for slot, change in found.items():
            var = self._form.slots[slot]
            if var in returned:
                at[var] = change.written(env[var]) if isinstance(change, NewRows) else change
        facts = self._form.facts
        out = [_jax.typed_as(strong(_jax.read(atom, at)), type_of(atom)) for atom in facts.outvars]
        return jax.tree.unflatten(self._form.out_tree, out)


def _found(slicer: Slicer, var: Var) -> Any:
    """What a change made of a value."""
    rows = slicer.dirty.get(var) or slicer.row_saves.get(var)
    if rows is not None:
        of = rows.of
        return NewRows(of.numbers, rows.new, rows.axis, of.length, of.has_spare)
    if var in slicer.dirty:
        return strong(slicer.whole[var])
    if var in slicer.saves:
        return strong(slicer.saves[var])
    env = {source: slicer.result(source) for source in _sources(slicer.facts, var)}
    derived = slicer.facts.derived
    _jax.evaluate(derived.recipes[var], env)
    return strong(env[var])


def _few_rows(new: jax.Array, old: jax.Array, max_rows: int) -> tuple[Any, jax.Array | None]:
    """Whether at most so many rows differ, and their numbers; of a value with no more rows than that,
    whether nothing does, and None.
    """
    differ = different_bits(new, old)
    by_row = jnp.any(differ.reshape(len(new) if new.ndim else 1, -1), axis=1)
    if not len(by_row) > max_rows > 0:
        return ~jnp.any(by_row), None
    (numbers,) = jnp.nonzero(by_row, size=max_rows, fill_value=-1)
    # A slot that is left repeats the first one; without any, row 0 is as it was.
    return jnp.sum(by_row) <= max_rows, jnp.where(numbers < 0, jnp.maximum(numbers[0], 0), numbers)


def _all(flags: Sequence[Any]) -> Any:
    """Whether all of some booleans of the graph are true."""
    return functools.reduce(lax.bitwise_and, map(jnp.asarray, flags))


@custom_vmap
def _everywhere(flag: Any) -> Any:
    """A flag; under `vmap` whether it is set for the whole batch.

    What is summed anew is right for everyone. A predicate with a batch axis would make of the
    branch a choice between both, all rows in each step.
    """
    return flag


@_everywhere.def_vmap
def _(axis_size: int, in_batched: Sequence[bool], flag: Any) -> tuple[Any, bool]:
    del axis_size, in_batched
    return _everywhere(jnp.all(flag)), False


Move = list[tuple[int, bool]]
"""What changes together: numbers of inputs, and whether rows of them."""


def named_move(
    paths: Sequence[str], shapes: Sequence[tuple[int, ...]], names: str | Sequence[str]
) -> Move:
    """The inputs that paths name; "theta[*]": rows of it.

    Raises:
        UnknownInputError: a path names no input.
        StepTypeError: an input has no rows.
    """
    found: Move = []
    for name in [names] if isinstance(names, str) else names:
        path = name.removesuffix("[*]")
        leaves = [leaf for leaf, known in enumerate(paths) if is_within(known, path)]
        if not leaves:
            raise unknown_input(name, paths)
        for leaf in leaves:
            if path != name and not shapes[leaf]:
                raise not_by_rows(paths[leaf], shapes[leaf])
            found.append((leaf, path != name))
    return found


def make_sites(
    facts: Facts,
    paths: Sequence[str],
    leaves: Values,
    out_tree: Any,
    moves: Sequence[Move],
) -> tuple[SitesState, Sites]:
    """The state at some leaves, and the sites.

    Args:
        facts: the analysed function.
        paths: of its inputs.
        leaves: their values.
        out_tree: of its result.
        moves: what will change.

    Raises:
        NotCalledError: the function has effects or calls the host.
    """
    if facts.has_effects or facts.calls_host:
        raise no_sites()
    pairs = zip(facts.invars, leaves, strict=True)
    inputs = {var: _jax.typed_as(strong(x), var.aval) for var, x in pairs}
    form = _Form(facts, tuple(paths), _moving(moves), out_tree, None)
    form.value_of = _values_beside(form, list(inputs.values()))
    env = {**device_constants(facts.program), **inputs}
    for var in [*(facts.invars[leaf] for leaf in form.moving), *env, *_outputs(facts)]:
        form.save(var)
    values = list(env.values())
    with_env = lambda fun: lambda values: fun(form, dict(zip(env, values, strict=True)))
    num_saved = -1
    while num_saved != len(form.slots) + len(form.fixed):  # what is kept may be read, and so on
        num_saved = len(form.slots) + len(form.fixed)
        for move in moves:
            jax.eval_shape(with_env(functools.partial(_first_look, move)), values)
    form.drop()
    made = with_env(lambda form, env: (_state_of(form, env), _fixed_of(form, env)))
    state, fixed = jax.jit(made)(values)
    return state, Sites(form, fixed)


def _moving(moves: Sequence[Move]) -> tuple[int, ...]:
    """The inputs that move, in order."""
    return tuple(sorted({leaf for move in moves for leaf, _ in move}))


def _values_beside(form: _Form, inputs: Values) -> ValueOf:
    """What gives, on the host, the value of a variable that does not move; None for others."""
    feeds = [x if _jax.is_key_dtype(x.dtype) else np.asarray(x) for x in inputs]
    ask = functools.cache(value_at(form.facts, feeds))
    return lambda var: None if form.facts.mask(var) & form.mask else ask(var)


def _outputs(facts: Facts) -> list[Var]:
    return [atom for atom in facts.outvars if isinstance(atom, Var)]


def _sources(facts: Facts, var: Var) -> list[Var]:
    """The variables of the program that one is, or is derived from."""
    derived = facts.derived
    recipe = derived.recipes.get(var)
    if recipe is None:
        return [var]
    made = {u for eqn in recipe for u in eqn.outvars}
    return [u for eqn in recipe for u in read_vars(eqn) if u not in made]


def _first_look(move: Move, form: _Form, env: Env) -> None:
    """Find out what a change reads."""
    numbers = jnp.zeros(1, np.int32)
    given: dict[int, Change] = {}
    for leaf, is_rows in move:
        x = env[form.facts.invars[leaf]]
        given[leaf] = (numbers, x[:1]) if is_rows else x
    found, _, read = Sites(form, ())._changed(env, given)
    for var in (*read.values, *read.olds):
        form.save(var)
    is_by_rows = any(is_rows for _, is_rows in move)
    form.needed.update(read.olds, read.values if is_by_rows else ())
    spare = (slot for slot, x in found.items() if isinstance(x, NewRows) and x.has_spare)
    form.looked_up.update(form.slots[slot] for slot in spare)


def _computed(facts: Facts, wanted: Sequence[Var], env: Mapping[Var, Any]) -> Results:
    """Values of variables, of those that are there."""
    missing = [var for var in wanted if var not in env]
    if not missing:
        return [env[var] for var in wanted]
    plan = plan_fill(facts.unmeasured, missing, lambda var: var in env)
    at = {var: _jax.typed_as(x, var.aval) for var, x in env.items()}
    _jax.evaluate(plan.eqns, at)
    return [at[var] for var in wanted]


def _state_of(form: _Form, env: Mapping[Var, Any]) -> SitesState:
    values = map(strong, _computed(form.facts, form.slots, env))
    return SitesState(tuple(values), jnp.zeros(len(form.slots), np.int32))


def _fixed_of(form: _Form, env: Mapping[Var, Any]) -> tuple[Any, ...]:
    return tuple(map(strong, _computed(form.facts, form.fixed, {**form.tables, **env})))


def _levels(counts: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
    """Widths of tables, of whose ids these are the numbers of rows: for most ids, for more, for
    all.
    """
    levels: list[tuple[int, ...]] = []
    for share in WIDTH_SHARES if counts else ():
        level = tuple(max(int(np.quantile(x, share, method="higher")), 1) for x in counts)
        if levels and sum(level) < MIN_WIDENING * sum(levels[-1]) + MIN_SLOTS:
            levels.pop()
        levels.append(level)
    return levels


def _is_too_narrow(
    env: Mapping[Var, Any], tables: Mapping[Var, RowSet], widths: Mapping[Var, int]
) -> Any:
    """Whether one of the ids has more rows than these slots."""
    is_there = []
    for table, of in tables.items():
        width = widths[table]
        if width < table.aval.shape[1]:
            assert isinstance(of.origin, LookedUp)
            next_slots = lax.slice_in_dim(env[table], width, width + 1, axis=1)
            next_slots = taken(next_slots, 0, of.origin.of)
            is_there.append(jnp.any(lax.lt(next_slots, np.int32(of.length))))
    return functools.reduce(lax.bitwise_or, is_there)


def _cast(path: str, value: Any, dtype: Any) -> jax.Array:
    """A value as an array of the input's dtype.

    Raises:
        StepTypeError: it has another one, and is no Python number.
    """
    array = jnp.asarray(value)
    is_weak = bool(getattr(array, "weak_type", False)) and np.can_cast(
        array.dtype, dtype, "same_kind"
    )
    if array.dtype != dtype and not is_weak:
        raise wrong_site(path, f"values of dtype {array.dtype}", f"{dtype}")
    return array.astype(dtype) if array.dtype != dtype else strong(array)
