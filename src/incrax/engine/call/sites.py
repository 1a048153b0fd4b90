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

What is made of a change is in `site_program`, what a change is in `site_changes`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from incrax import _jax
from incrax._messages import checked_count, no_parts, no_sites, wrong_site
from incrax._names import names_in
from incrax._program import Env, Values, type_of
from incrax.engine.call.origin import StateOrigin
from incrax.engine.call.pure_flags import boolean
from incrax.engine.call.site_changes import (
    Change,
    Changes,
    Move,
    NewRows,
    checked_change,
    found_rows,
)
from incrax.engine.call.site_program import SiteProgram, hold_what_is_read, make_program
from incrax.engine.compile.executables import device_constants
from incrax.engine.compile.one_kernel import in_one_kernel
from incrax.engine.plan.facts import Facts
from incrax.primitives.on_rows import NotByRowsError

MIN_DIFFERENCES = 512
"""Differences that may be added to a sum before it is summed anew, however few rows there are."""


class SitesState(NamedTuple):
    """What a loop carries."""

    values: tuple[Any, ...]  # the inputs that move, sums and other saved values at them
    num_differences: Any  # that each of these has taken, an array of int32
    origin: StateOrigin  # whose they are


class Delta(NamedTuple):
    """A change that `look` saw and `settle` may write."""

    found: dict[int, Change]  # of what the state has, by place
    num_differences: Any  # that each value has taken then
    origin: StateOrigin  # whose change it is


class FoundDelta(NamedTuple):
    """A change of which the rows were found in the graph."""

    few: Delta  # as rows
    values: dict[str, Any]  # as whole inputs, which count where there were too many
    is_few: Any

    @property
    def origin(self) -> StateOrigin:
        """Whose change it is."""
        return self.few.origin


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
    inputs = {var: _jax.typed_as(_jax.as_strong(x), var.aval) for var, x in pairs}
    program = make_program(facts, paths, list(inputs.values()), out_tree, moves)
    env = {**device_constants(facts.program), **inputs}
    hold_what_is_read(program, env, moves)

    @jax.jit
    def start(values: Values) -> tuple[SitesState, tuple[Any, ...]]:
        at = dict(zip(env, values, strict=True))
        counts = jnp.zeros(len(program.slots), np.int32)
        values = program.computed(program.slots, at)
        return SitesState(values, counts, program.origin), program.computed(program.fixed, at)

    state, fixed = start(list(env.values()))
    return state, Sites(program, fixed)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["_fixed"], meta_fields=["_program"]
)
@dataclass(frozen=True, eq=False)
class Sites:
    """`look` and `settle` of one function: proposals that change a few rows of its inputs, for
    compiled loops. Made by `Incremental.sites`; a pytree of the data that do not move, so that it
    may be an argument of compiled functions.
    """

    _program: SiteProgram
    _fixed: tuple[Any, ...]

    # --- a step -----------------------------------------------------------------------------------

    def look(
        self, state: SitesState, changes: Mapping[str, Any], max_rows: int | None = None
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
                number, with `max_rows`; a state of another function.
            TypeError, ValueError: `max_rows` counts no rows.

        Cost: the equations that the rows reach, on these rows alone, now and as they were; all rows
            where the function needs them all (`max`, `sort`, `cumsum` along the axis). Under
            `vmap` sums are summed anew for all candidates, or chains, where one of them needs it.
            With `max_rows` the inputs are compared, and all must have few.
        """
        self._check_state("look", state)
        state, changes = _jax.varying_alike((state, dict(changes)))
        if max_rows is not None and changes:
            return self._look_found(
                state, changes, checked_count("look(max_rows=...)", max_rows, 0)
            )
        given = self._given("look", changes)
        program = self._program
        env = program.env(self._fixed, state.values)

        def run(fixed: Values, state: SitesState, given: Changes) -> Any:
            return program.found(program.env(fixed, state.values), given)

        found = in_one_kernel(run, self._fixed, state, given)
        new = found.changes
        counts = state.num_differences
        if found.guards:
            # Each saved value has a count of its own: what is summed anew here are those that this
            # change reaches, and others must not be taken for new. By a mask, since a gather and a
            # scatter of them would be kernels of their own in each step.
            is_summed = np.isin(np.arange(len(program.slots)), found.drifting)
            most = jnp.max(jnp.where(is_summed, counts, 0))
            is_few = lax.lt(most, np.int32(self._limit(given)))
            is_sound = _everywhere(_all([is_few, *found.guards]))
            summed = {slot: new[slot] for slot in found.drifting}
            anew = lambda: program.found_anew(env, given, summed)
            new = new | lax.cond(is_sound, lambda: summed, anew)
            counts = jnp.where(is_summed, jnp.where(is_sound, counts + 1, 0), counts)
        return Delta(new, counts, program.origin), program.out(env, new)

    def _limit(self, given: Changes) -> int:
        """Differences that sums may take: as many as there are rows of what changes."""
        lengths = [x.length for x in given.values() if isinstance(x, NewRows)]
        return max([MIN_DIFFERENCES, *lengths])

    def _look_found(
        self, state: SitesState, changes: Mapping[str, Any], max_rows: int
    ) -> tuple[FoundDelta, Any]:
        """The same of whole values, of which few rows may be new."""
        inputs = self.inputs(state)
        given = self._given_whole("look", changes)
        values = dict(zip(changes, given.values(), strict=True))
        rows: dict[str, Any] = {}
        are_few: list[Any] = []
        for path, value in values.items():
            is_few, numbers = found_rows(value, inputs[path], max_rows)
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

        Raises:
            StepTypeError: a state, or a change, of another function.
            TypeError: `accept` is no boolean.

        Cost: reads and writes the rows, and the sums; of rows that were too many, one evaluation.
        """
        self._check_state("settle", state)
        self._program.origin.check("settle", delta, (Delta, FoundDelta))
        if accept is not True:
            accept = boolean("settle(accept=...)", accept)
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
        return state._replace(values=tuple(values), num_differences=count)

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

    def inputs(self, state: SitesState) -> dict[str, jax.Array]:
        """The inputs that move, by path, at a state; of a batch of states, batches."""
        program = self._program
        program.origin.check("inputs", state, SitesState)
        paths = [program.paths[leaf] for leaf in program.moving]
        return dict(zip(paths, state.values[: len(paths)], strict=True))

    # --- all rows together ------------------------------------------------------------------------

    def start(self, changes: Mapping[str, Any], state: SitesState) -> SitesState:
        """The state at other values of inputs that move; what they reach is computed anew.

        Args:
            changes: inputs by path, as a whole.
            state: any one, whose other inputs stay.

        Raises:
            UnknownInputError: a path names no input that moves.
            StepTypeError: a value has another shape or dtype than the input.

        Cost: one evaluation of what the changes reach.
        """
        program = self._program
        given = self._given_whole("start", changes)
        env = self._env("start", state)
        values = program.computed(program.slots, program.moved(env, given))
        is_reached = np.array([program.is_reached(var, given) for var in program.slots], bool)
        count = jnp.where(is_reached, np.int32(0), state.num_differences)
        return state._replace(values=values, num_differences=count)

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
            UnknownInputError: a path names no input that moves.
            StepTypeError: a value has another shape or dtype than the input.
            NotByRowsError: no such parts are known, and no colours.

        Cost: one evaluation of what the inputs reach.
        """
        given = self._given_whole("parts", rows)
        env = self._env("parts", state)
        try:
            return self._program.row_parts(env, given).parts
        except NotByRowsError as error:
            raise NotByRowsError(no_parts(list(rows))) from error

    def colours(self, state: SitesState, paths: str | Sequence[str]) -> np.ndarray | None:
        """A colour for each row of some inputs, such that rows of one colour do not interact, as on
        a chessboard, shape (number of rows,): all may move at once, each by its own part. None where
        nothing is known, or it takes over 16; all are 0 where no row interacts with another.

        Raises:
            UnknownInputError: a path names no input that moves.
            TypeError: a path is no text.

        Cost: a trace, and some microseconds for each row; once.
        """
        program = self._program
        known = program.colours
        key = tuple(map(program.number, names_in("colours(paths)", paths)))
        if key in known:
            return known[key]
        known[key] = None

        def find(sites: Sites, state: SitesState) -> None:
            env = sites._env("colours", state)
            given = {leaf: env[program.facts.invars[leaf]] for leaf in key}
            known[key] = program.row_parts(env, given).colours()

        with contextlib.suppress(NotByRowsError):
            jax.eval_shape(find, self, state)  # nothing is computed for what is known of the terms
        return known[key]

    # --- inside -----------------------------------------------------------------------------------

    def _env(self, method: str, state: SitesState) -> Env:
        """Values of the state, and of what does not move.

        Raises:
            StepTypeError: it is no state of this function.
        """
        self._check_state(method, state)
        return self._program.env(self._fixed, state.values)

    def _check_state(self, method: str, state: Any) -> None:
        program = self._program
        counts = jax.ShapeDtypeStruct((len(program.slots),), np.int32)
        self._program.origin.check(
            method, state, SitesState, [*map(type_of, program.slots), counts]
        )

    def _given(self, method: str, changes: Mapping[str, Any]) -> dict[int, Change]:
        """What a method was given for some inputs.

        Raises:
            UnknownInputError: a path names no input that moves.
            StepTypeError: it has another type than the input.
        """
        program = self._program
        invars = program.facts.invars
        leaves = {path: program.number(path) for path in changes}
        return {
            leaf: checked_change(method, path, changes[path], invars[leaf].aval)
            for path, leaf in leaves.items()
        }

    def _given_whole(self, method: str, values: Mapping[str, Any]) -> dict[int, jax.Array]:
        """The same, of whole inputs."""
        for path, value in values.items():
            if isinstance(value, tuple):
                raise wrong_site(method, path, "rows by number", "its whole value")
        return self._given(method, values)


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
