"""A function as compiled loops of sites have it: what their states hold, and what a change makes of
it.

In: an analysed function, which inputs move; values while JAX traces. Out: which values a state has;
after a change, new rows, or all, of each that the change reaches. It must not know whether the
change is written.

What holds of a sum over rows while rows are dirty, S' = S + sum_dirty new - sum_dirty old, is made
by the rules of programs for rows (`Slicer`). They find out as they run what they read: clean values,
values as they were, tables of look-ups. So each move is tried once, and what it read is held: in
the state what moves, beside it what does not. A value that is held has to be brought up to date by
every change that reaches it, which may read more.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Var, as_strong
from incrax._messages import unknown_input, unmoved_input
from incrax._program import Env, Results, Values, read_vars, type_of
from incrax.engine.call.origin import StateOrigin, origin_of
from incrax.engine.call.row_parts import RowParts
from incrax.engine.call.site_changes import Change, Changes, Move, NewRows, changed
from incrax.engine.plan.environment import AgainError, ValueOf
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import plan_fill, reached_equations
from incrax.engine.plan.row_sets import LookedUp, RowSet, row_set, taken
from incrax.engine.plan.slicer import Slicer
from incrax.engine.plan.slices import value_at

WIDTH_SHARES = (0.5, 0.75, 0.9375, 1.0)
"""Of the ids of a look-up, those that each width of its table has room for."""

MIN_WIDENING = 1.25
MIN_SLOTS = 32
"""A table that is not wider than so many times the last, and these slots more, takes its place."""


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["changes", "guards"],
    meta_fields=["drifting"],
)
@dataclass(frozen=True)
class Outcome:
    """What a change of inputs makes of what a state has."""

    changes: dict[int, Change]  # by place in the state
    guards: list[Any]  # what must be true, else digits are lost
    drifting: tuple[int, ...]  # places that stand on differences then

    @property
    def spare(self) -> list[int]:
        """Places that are written in as many rows as an id may have, whatever it has."""
        return [i for i, x in self.changes.items() if isinstance(x, NewRows) and x.has_spare]


class WhatIsRead(NamedTuple):
    """What a change reads."""

    values: list[Var]  # of what it does not reach
    olds: list[Var]  # as they were
    tables: dict[Var, RowSet]  # of look-ups, and the rows found in each


@dataclass(eq=False)
class SiteProgram:
    """What is known, while JAX traces, of a function of which some inputs move."""

    facts: Facts  # the analysis
    paths: tuple[str, ...]  # of all inputs
    moving: tuple[int, ...]  # numbers of the inputs that move
    out_tree: Any  # of the result
    value_of: ValueOf  # on the host, of a variable that does not move, for look-ups
    origin: StateOrigin  # of its states
    slots: list[Var] = field(default_factory=list)  # what a state has, the moving inputs first
    fixed: list[Var] = field(default_factory=list)  # what all states share
    tables: Env = field(default_factory=dict)  # of look-ups: for each id, which rows have it
    colours: dict[tuple[int, ...], np.ndarray | None] = field(default_factory=dict)  # so far

    def number(self, path: str) -> int:
        """The number of an input that moves.

        Raises:
            UnknownInputError: it is none.
        """
        names = [self.paths[leaf] for leaf in self.moving]
        if path not in names:
            raise unmoved_input(path) if path in self.paths else unknown_input(path, names)
        return self.moving[names.index(path)]

    def keep(self, variables: Iterable[Var]) -> None:
        """Hold values: in the state if they move, else beside it."""
        for var in variables:
            kept = self.slots if self.is_reached(var, self.moving) else self.fixed
            if var not in kept:
                kept.append(var)

    def is_reached(self, var: Var, leaves: Iterable[int]) -> bool:
        """Whether a value depends on some of these inputs."""
        return var not in self.tables and bool(self.facts.mask(var) & mask_of(self.facts, leaves))

    # --- values -----------------------------------------------------------------------------------

    def env(self, fixed: Values, values: Values) -> Env:
        """Values of a state, and of what does not move, by variable."""
        env = dict(zip(self.fixed, fixed, strict=True))
        env.update(zip(self.slots, values, strict=True))
        return env

    def clean(self, env: Env, given: Changes) -> Env:
        """The values that a change does not reach."""
        return {var: x for var, x in env.items() if not self.is_reached(var, given)}

    def moved(self, env: Env, given: Changes) -> Env:
        """The same, and the inputs that change."""
        invars = self.facts.invars
        new = {invars[leaf]: changed(env[invars[leaf]], x) for leaf, x in given.items()}
        return {**self.clean(env, given), **new}

    def computed(self, variables: Sequence[Var], env: Env) -> tuple[Any, ...]:
        """Values of variables, of those that are there and tables, without weak types."""
        return tuple(map(as_strong, computed(self.facts, variables, {**self.tables, **env})))

    def out(self, env: Env, changes: Changes) -> Any:
        """The function's result after changes of what a state has."""
        facts = self.facts
        new = {self.slots[slot]: change for slot, change in changes.items()}
        at = env | {var: changed(env[var], new[var]) for var in facts.returned if var in new}
        out = [
            _jax.typed_as(as_strong(_jax.read(atom, at)), type_of(atom)) for atom in facts.outvars
        ]
        return jax.tree.unflatten(self.out_tree, out)

    # --- what a change makes ----------------------------------------------------------------------

    def found(self, env: Env, given: Changes) -> Outcome:
        """What a change makes of all that the state has, by the narrowest tables of look-ups that
        have room.

        Where few ids have many rows, most slots of a table that has room for all are spare. So
        there is a branch for each of some widths, and the first runs in which no id has more rows.
        """
        found, read = self.found_within(env, given)
        if found.spare:
            return found
        tables = read.tables
        levels = levels_of([np.sum(self.tables[x] < of.length, 1) for x, of in tables.items()])
        if len(levels) < 2:
            return found
        widths = [dict(zip(tables, level, strict=True)) for level in levels]
        run = lambda width: self.found_within(env, given, width)[0]
        too_narrow = [_is_too_narrow(env, tables, width) for width in widths[:-1]]
        number = functools.reduce(lax.add, (each.astype(np.int32) for each in too_narrow))
        return lax.switch(number, [functools.partial(run, width) for width in widths])

    def found_within(
        self, env: Env, given: Changes, widths: Mapping[Var, int] | None = None
    ) -> tuple[Outcome, WhatIsRead]:
        """The same by tables of these widths, as in `Slicer`; and what was read."""
        facts = self.facts
        wanted = {i: var for i, var in enumerate(self.slots) if self.is_reached(var, given)}
        slicer = Slicer(facts, self.value_of, adds_changes=True, widths=widths or {})
        values = self._run(slicer, env, given, list(wanted.values()))
        is_drifting = lambda var: not slicer.drifting.isdisjoint(_sources(facts, var))
        drifting = tuple(i for i, var in wanted.items() if is_drifting(var))
        changes = {i: _change_of(slicer, var) for i, var in wanted.items()}
        read = WhatIsRead(values, list(slicer.asked.olds), slicer.looked_up)
        return Outcome(changes, slicer.guards, drifting), read

    def _run(self, slicer: Slicer, env: Env, given: Changes, wanted: Sequence[Var]) -> list[Var]:
        """Have a slicer run what a change reaches of some values, again until it has all that it
        asks for: values as they were, and tables of look-ups. Returns what it read of the rest.
        """
        facts = self.facts
        targets = dict.fromkeys(x for var in wanted for x in _sources(facts, var))
        written = [v for v in targets if v not in facts.invars and self.is_reached(v, given)]
        reached = reached_equations(facts, mask_of(facts, given), written)
        clean = self.clean(env, given)
        changes: Env = {}
        for leaf, change in given.items():
            var = facts.invars[leaf]
            if isinstance(change, NewRows):
                changes[var] = change.new, row_set(change.numbers, change.length)
            else:
                changes[var] = None
                clean[var] = change
        olds: Env = {}
        while True:
            known = CleanValues(facts, {**self.tables, **clean}, env)
            try:
                slicer.run(reached, known, olds, changes)
            except AgainError:
                continue
            asked = slicer.asked
            missing = [var for var in asked.olds if var not in olds]
            tables = [var for var in asked.tables if var not in self.tables]
            if not missing and not tables:
                return [*known.missing, *asked.tables]
            olds.update(zip(missing, computed(facts, missing, env), strict=True))
            for table in tables:
                recipe = facts.derived.on_host[table]
                self.tables[table] = recipe.make(*map(self.value_of, recipe.sources))

    def found_anew(self, env: Env, given: Changes, found: Changes) -> dict[int, Change]:
        """The same as was found, from the inputs alone."""
        values = self.computed([self.slots[slot] for slot in found], self.moved(env, given))
        return {
            slot: replace(x, new=x.taken(value)) if isinstance(x, NewRows) else value
            for (slot, x), value in zip(found.items(), values, strict=True)
        }

    def row_parts(self, env: Env, given: Changes) -> RowParts:
        """The function by its terms, each of some rows of inputs that are given.

        Raises:
            NotByRowsError: no such terms are known.
        """
        facts = self.facts
        known = CleanValues(facts, {**self.tables, **self.clean(env, given)}, env)
        rows = {facts.invars[leaf]: value for leaf, value in given.items()}
        return RowParts(facts, rows, known, self.value_of)


class CleanValues(dict[Var, Any]):
    """Values of clean variables; what is missing is computed, and noted."""

    def __init__(self, facts: Facts, values: Env, env: Env) -> None:
        super().__init__(values)
        self.facts = facts
        self.env = env
        self.missing: dict[Var, None] = {}

    def __missing__(self, var: Var) -> Any:
        self.missing[var] = None
        (self[var],) = computed(self.facts, [var], self.env)
        return self[var]


def computed(facts: Facts, wanted: Sequence[Var], env: Env) -> Results:
    """Values of variables, of those that are there."""
    missing = [var for var in wanted if var not in env]
    if not missing:
        return [env[var] for var in wanted]
    plan = plan_fill(facts.unmeasured, missing, lambda var: var in env)
    at = {var: _jax.typed_as(x, var.aval) for var, x in env.items()}
    _jax.evaluate(plan.eqns, at)
    return [at[var] for var in wanted]


def mask_of(facts: Facts, leaves: Iterable[int]) -> int:
    """The bits of some inputs."""
    return sum(map(facts.layout.leaf_mask, leaves))


def _change_of(slicer: Slicer, var: Var) -> Change:
    """What a change made of a value."""
    rows = slicer.rows(var) or slicer.row_saves.get(var)
    if rows is not None:
        of = rows.of
        return NewRows(of.numbers, rows.new, rows.axis, of.length, of.has_spare)
    if var in slicer.dirty:
        return as_strong(slicer.whole[var])
    if var in slicer.saves:
        return as_strong(slicer.saves[var])
    env = {source: slicer.result(source) for source in _sources(slicer.facts, var)}
    derived = slicer.facts.derived
    _jax.evaluate(derived.recipes[var], env)
    return as_strong(env[var])


def _sources(facts: Facts, var: Var) -> list[Var]:
    """The variables of the program that one is, or is derived from."""
    derived = facts.derived
    recipe = derived.recipes.get(var)
    if recipe is None:
        return [var]
    made = {u for eqn in recipe for u in eqn.outvars}
    return [u for eqn in recipe for u in read_vars(eqn) if u not in made]


# --- widths of tables -----------------------------------------------------------------------------


def levels_of(counts: Sequence[np.ndarray]) -> list[tuple[int, ...]]:
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


def _is_too_narrow(env: Env, tables: Mapping[Var, RowSet], widths: Mapping[Var, int]) -> Any:
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


# --- what a state has -----------------------------------------------------------------------------


def make_program(
    facts: Facts, paths: Sequence[str], inputs: Values, out_tree: Any, moves: Sequence[Move]
) -> SiteProgram:
    """The program of a function for some moves, with nothing to hold yet."""
    moving = tuple(sorted({leaf for move in moves for leaf, _ in move}))
    feeds = [x if _jax.is_key_dtype(x.dtype) else np.asarray(x) for x in inputs]
    ask = functools.cache(value_at(facts, feeds))
    dirty = mask_of(facts, moving)
    value_of = lambda var: None if facts.mask(var) & dirty else ask(var)
    fixed = [x for leaf, x in enumerate(feeds) if leaf not in moving]
    origin = origin_of(facts.program, fixed, moves)
    return SiteProgram(facts, tuple(paths), moving, out_tree, value_of, origin)


def hold_what_is_read(program: SiteProgram, env: Env, moves: Sequence[Move]) -> None:
    """Have a program hold what its moves read; `env` are its inputs and constants."""
    facts = program.facts
    program.keep([*(facts.invars[leaf] for leaf in program.moving), *env, *facts.returned])
    needed: set[Var] = {*facts.invars, *facts.returned}
    by_ids: set[Var] = set()  # written in all rows that an id may have

    def try_moves(values: Values) -> None:
        at = dict(zip(env, values, strict=True))
        for move in moves:
            found, read = program.found_within(at, _first_change(facts, at, move))
            program.keep([*read.values, *read.olds])
            is_by_rows = any(is_rows for _, is_rows in move)
            needed.update(read.olds, read.values if is_by_rows else ())
            by_ids.update(program.slots[slot] for slot in found.spare)

    num_held = -1
    while num_held != len(program.slots) + len(program.fixed):
        num_held = len(program.slots) + len(program.fixed)
        jax.eval_shape(lambda values: try_moves(values), list(env.values()))
    # What only changes of whole inputs read is left out of the state, where others would write it in
    # all rows of their ids: such a change makes it anew.
    program.slots = [var for var in program.slots if var in needed or var not in by_ids]


def _first_change(facts: Facts, env: Env, move: Move) -> dict[int, Change]:
    """A change like those of a move: the first row as it is."""
    given: dict[int, Change] = {}
    for leaf, is_rows in move:
        x = env[facts.invars[leaf]]
        given[leaf] = NewRows(jnp.zeros(1, np.int32), x[:1], 0, len(x)) if is_rows else x
    return given
