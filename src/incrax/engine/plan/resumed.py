"""Scans that are resumed: of which only some steps read something else than at the baseline.

In: a scan, its operands now, the steps at which they differ, and what was recorded at the baseline.
Out: its results, and the steps that ran.

Steps are run in blocks. At the start of each block the carry was recorded, so that a scan is
resumed at the first block that reads something else, and left where the carry has the baseline's
bits again, until the next such block. Not where it is close: a chaotic loop must not be left.

A carry that is only added to, as a log-likelihood is, or the gradient by a constant, would never
be the same again. Of it a sum per block is recorded, and all of these are summed anew.

Promise: `resumed` gives what the scan gives, and the records are those of `recorded`, up to
rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Body, Equation, Var
from incrax._program import Values, from_jaxpr
from incrax.engine.plan.row_sets import RowSet
from incrax.engine.program.cost import Calibration

MIN_STEPS = 8
"""Steps of a scan that is worth being divided."""

BLOCK_S = 2e-6
MAX_STRIDE = 64
MAX_ENTERING = 1.5
"""Seconds that a block of steps should take: to enter one takes as long; its steps at most; and what
it costs at most to enter one, relative to its steps.
"""

MAX_SUMS = 2**20
"""Elements of the sums of all blocks up to which they are summed anew."""

MAX_SPANS = 64
"""Intervals that are looked at apart; of more, what lies between the first and the last."""

NAME = "resumed_scan"
"""Of the call that a resumed scan is, in what is traced."""


class Spans(NamedTuple):
    """Intervals of an axis, start <= n < stop: outside of them nothing changed. int32 arrays of one
    length; some may be empty.
    """

    starts: Any
    stops: Any


def spans_of(rows: RowSet) -> Spans:
    """The intervals of some rows."""
    return Spans(rows.numbers, rows.numbers + 1)


def union_of(spans: Iterable[Spans]) -> Spans:
    """All intervals, as one where they are many."""
    own = {id(each): each for each in spans}.values()
    starts = jnp.concatenate([each.starts for each in own])
    stops = jnp.concatenate([each.stops for each in own])
    if starts.size <= MAX_SPANS:
        return Spans(starts, stops)
    is_there = starts < stops
    last = np.int32(np.iinfo(np.int32).max)
    first = jnp.min(jnp.where(is_there, starts, last), keepdims=True)
    return Spans(first, jnp.max(jnp.where(is_there, stops, np.int32(0)), keepdims=True))


class Records(NamedTuple):
    """What is recorded of each block of steps."""

    carries: list[Any]  # the carry at its start, and at the end of the last
    sums: list[Any]  # of what is only added to, what it adds

    def with_block(self, block: Any, carry: Values, sums: Values) -> Records:
        """With what a block leaves behind."""
        after = block + 1
        return Records(
            [_put(buffer, x, after) for buffer, x in zip(self.carries, carry, strict=True)],
            [_put(buffer, x, block) for buffer, x in zip(self.sums, sums, strict=True)],
        )


class Resumable(NamedTuple):
    """A scan that may be resumed."""

    eqn: Equation
    body: Body
    scan: _jax.LoopParts
    is_sum: tuple[bool, ...]  # of each carry, whether it is only added to
    stride: int  # steps of a block
    price: float  # how much longer, roughly, all steps take in blocks

    @property
    def length(self) -> int:
        """Steps."""
        return self.eqn.params["length"]

    @property
    def num_whole(self) -> int:
        """Blocks of as many steps as any; after them there may be a shorter one."""
        return self.length // self.stride

    @property
    def is_reverse(self) -> bool:
        """Whether the first step reads the last row."""
        return self.eqn.params["reverse"]

    def recorded(self, values: Values) -> tuple[list[Any], Records]:
        """Results and records: the scan itself, which writes records as it runs. Not blocks of
        steps, in whose place XLA would run many small loops.
        """
        num_blocks = -(-self.length // self.stride)
        _, init, rows = self.scan.split(values)
        carry, sums = self._parted(init)
        room = lambda x, count: jnp.zeros((count, *x.shape), x.dtype)
        carries = [_put(room(x, num_blocks + 1), x, 0) for x in carry]
        records = Records(carries, [room(x, num_blocks) for x in sums])
        zeros = [jnp.zeros_like(x) for x in sums]

        def turn(state: Any, xs: Values) -> Any:
            step, carry, sums, records = state
            block = lax.div(step, np.int32(self.stride))
            is_first = lax.rem(step, np.int32(self.stride)) == 0
            sums = [jnp.where(is_first, jnp.zeros_like(x), x) for x in sums]
            carry, sums, ys = self._one_step(values, carry, sums, xs)
            # What stays there is what the last step of a block leaves behind.
            return (step + 1, carry, sums, records.with_block(block, carry, sums)), ys

        state = (np.int32(0), carry, zeros, records)
        (_, carry, _, records), ys = self._scan(turn, state, rows, self.length)
        return self._results(values, carry, records, ys), records

    def resumed(
        self, values: Values, ys: Values, old: Records, spans: Spans
    ) -> tuple[list[Any], Records, Spans]:
        """Results, records, and which rows of the results may be others.

        Args:
            values: of the operands.
            ys: of the results that have a row per step, at the baseline.
            old: the baseline's records.
            spans: rows of the operands that changed; where the initial carry did is found out.
        """
        init, sums = self._parted(self.scan.split(values)[1])
        given = _Resumed(self, values, [jnp.zeros_like(x) for x in sums], old)
        steps = self._turned(spans)
        is_other = ~_agree(init, _at(old.carries, 0))
        next_block = self._next_block(steps, is_other)
        first = next_block(np.int32(0))
        carry = [
            jnp.where(first == 0, x, y) for x, y in zip(init, _at(old.carries, first), strict=True)
        ]
        carries = [_put(buffer, x, 0) for buffer, x in zip(old.carries, init, strict=True)]
        none = jnp.zeros(steps.starts.size + 2, np.int32)  # the last may begin after all blocks
        ran = Spans(_put(none, first, 0), none)
        records = Records(carries, list(old.sums))
        state = _State(first, carry, list(ys), records, ran, np.int32(0))
        state = lax.while_loop(
            lambda state: state.block < self.num_whole,
            lambda state: given.run_block(state, next_block),
            state,
        )
        ran = Spans(state.ran.starts * self.stride, state.ran.stops * self.stride)
        state = given.run_rest(state._replace(ran=ran), steps)
        results = self._results(values, state.carry, state.records, state.ys)
        return results, state.records, self._turned(state.ran)

    def _next_block(self, steps: Spans, is_other: Any) -> Callable[[Any], Any]:
        """Which is the first block, from some one on, that reads something else."""
        num = np.int32(self.num_whole)
        firsts = lax.div(steps.starts, np.int32(self.stride))
        stops = lax.div(steps.stops + (self.stride - 1), np.int32(self.stride))
        stops = jnp.where(steps.starts < steps.stops, stops, 0)
        firsts = jnp.append(firsts, np.int32(0))
        stops = jnp.append(stops, is_other.astype(np.int32))

        def found(block: Any) -> Any:
            places = jnp.where(block < stops, jnp.maximum(block, firsts), num)
            return jnp.minimum(jnp.min(places), num)

        return found

    # --- steps ------------------------------------------------------------------------------------

    def run_steps(
        self, values: Values, carry: Any, sums: Any, rows: list[Any], length: int
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Some steps one after the other."""

        def turn(state: Any, xs: Values) -> Any:
            carry, sums = state
            carry, sums, ys = self._one_step(values, carry, sums, xs)
            return (carry, sums), ys

        (carry, sums), ys = self._scan(turn, (carry, sums), rows, length)
        return carry, sums, ys

    def _scan(self, turn: Any, state: Any, rows: list[Any], length: int) -> Any:
        unroll = min(self.eqn.params["unroll"], length)
        return lax.scan(turn, state, rows, length, reverse=self.is_reverse, unroll=unroll)

    def _one_step(
        self, values: Values, carry: Values, sums: Values, xs: Values
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """One step."""
        consts, _, _ = self.scan.split(values)
        made = from_jaxpr(self.body)(*consts, *self._joined(carry, sums), *xs)
        carried, ys = self.scan.split_results(list(map(_strong, made, self.body.outvars)))
        return *self._parted(carried), ys

    def _parted(self, carry: Values) -> tuple[list[Any], list[Any]]:
        """Carries that are read, and those that are only added to."""
        found: tuple[list[Any], list[Any]] = ([], [])
        for x, var, is_sum in zip(carry, self.body.outvars, self.is_sum, strict=False):
            found[is_sum].append(_strong(x, var))
        return found

    def _joined(self, carry: Values, sums: Values) -> list[Any]:
        """The same in the order of the scan."""
        both = iter(carry), iter(sums)
        return [next(both[is_sum]) for is_sum in self.is_sum]

    def _results(self, values: Values, carry: Values, records: Records, ys: Values) -> list[Any]:
        """The scan's results, typed as they are."""
        _, begun = self._parted(self.scan.split(values)[1])
        sums = [x + own.sum(0, dtype=x.dtype) for x, own in zip(begun, records.sums, strict=True)]
        results = [*self._joined(carry, sums), *ys]
        return [
            _jax.typed_as(x, var.aval) for x, var in zip(results, self.eqn.outvars, strict=True)
        ]

    def row_of(self, block: Any) -> Any:
        """The first row of a whole block."""
        if self.is_reverse:
            return self.length - (block + 1) * self.stride
        return block * self.stride

    def _turned(self, spans: Spans) -> Spans:
        """Rows as steps, or steps as rows."""
        if not self.is_reverse:
            return spans
        length = self.length
        return Spans(length - spans.stops, length - spans.starts)

    def remembers(self, dirty: Iterable[int]) -> bool:
        """Whether a change of some operands stays in the carry for ever: what it is added to is
        read by later steps, and nothing takes it away. A random walk, not a filter.
        """
        body = self.body
        reached = {body.invars[n] for n in dirty}
        _, carried, _ = self.scan.split(body.invars)
        carries = list(zip(carried, body.outvars, strict=False))
        num_known = -1
        while num_known != len(reached):
            num_known = len(reached)
            reached = _jax.reached(body, reached)
            reached |= {var for var, out in carries if isinstance(out, Var) and out in reached}
        return any(
            not is_sum
            and var in reached
            and any(isinstance(x, Var) and x in reached for x in _addends(body, var, out) or ())
            for (var, out), is_sum in zip(carries, self.is_sum, strict=True)
        )


class _State(NamedTuple):
    """Where a scan that is resumed has come to."""

    block: Any  # that is next
    carry: list[Any]  # to it
    ys: list[Any]  # results that have a row per step, so far
    records: Records  # so far
    ran: Spans  # blocks that ran, one after the other without a gap in each
    last: Any  # the number of the last of these spans


class _Resumed(NamedTuple):
    """A scan, and what all of its blocks read."""

    loop: Resumable
    values: Values  # of its operands
    zeros: list[Any]  # from which what is only added to begins
    old: Records  # the baseline's

    def run_block(self, state: _State, next_block: Callable[[Any], Any]) -> _State:
        """After one block: at the one that follows, or, where the carry is the baseline's again, at
        the next that reads something else.
        """
        loop = self.loop
        block = state.block
        after = block + 1
        state = self._after(state, loop.row_of(block), loop.stride, block)
        is_left = _agree(state.carry, _at(self.old.carries, after))
        there = jnp.where(is_left, next_block(after), after)
        carry = [
            lax.select(lax.broadcast(is_left, x.shape), then, x)
            for x, then in zip(state.carry, _at(self.old.carries, there), strict=True)
        ]
        following = state.last + 1  # empty, unless blocks are skipped
        ran = state.ran
        ran = Spans(_put(ran.starts, there, following), _put(ran.stops, after, state.last))
        last = jnp.where(there > after, following, state.last)
        return state._replace(block=there, carry=carry, ran=ran, last=last)

    def run_rest(self, state: _State, steps: Spans) -> _State:
        """After the steps behind the last whole block, which always run; what ran is in steps here."""
        loop = self.loop
        num = np.int32(loop.num_whole)
        state = state._replace(carry=_at(state.records.carries, num))
        begin = loop.num_whole * loop.stride
        if begin == loop.length:
            return state
        is_other = ~_agree(state.carry, _at(self.old.carries, num))
        is_read = jnp.any((steps.starts < loop.length) & (steps.stops > begin))
        end = jnp.where(is_other | is_read, np.int32(loop.length), np.int32(begin))
        ran = Spans(jnp.append(state.ran.starts, np.int32(begin)), jnp.append(state.ran.stops, end))
        place = 0 if loop.is_reverse else begin
        return self._after(state, place, loop.length - begin, num)._replace(ran=ran)

    def _after(self, state: _State, place: Any, count: int, block: Any) -> _State:
        """After so many steps from a row on, whose results and records are written."""
        loop = self.loop
        _, _, rows = loop.scan.split(self.values)
        own = [lax.dynamic_slice_in_dim(x, place, count) for x in rows]
        carry, sums, new = loop.run_steps(self.values, state.carry, self.zeros, own, count)
        ys = [
            lax.dynamic_update_slice_in_dim(x, y, place, 0)
            for x, y in zip(state.ys, new, strict=True)
        ]
        records = state.records.with_block(block, carry, sums)
        return state._replace(carry=carry, ys=ys, records=records)


def resumable(eqn: Equation) -> Resumable | None:
    """A scan that may be resumed, None if it may not: it has effects, carries random keys, or is
    short.
    """
    if eqn.primitive.name != "scan" or eqn.effects or eqn.params["length"] < MIN_STEPS:
        return None
    if any(_jax.is_key_dtype(var.aval.dtype) for var in eqn.outvars):
        return None
    body = _jax.open_jaxpr(eqn.params["jaxpr"])
    scan = _jax.scan_of(eqn)
    length = eqn.params["length"]
    step_s = Calibration().seconds(eqn) / length
    stride = min(max(int(BLOCK_S / step_s), 1), MAX_STRIDE, length // MIN_STEPS)
    price = 1.0 + min(BLOCK_S / (stride * step_s), MAX_ENTERING)
    _, carried, _ = scan.split(body.invars)
    is_sum = tuple(
        var.aval.size * length <= MAX_SUMS * stride and _is_sum(body, var, out)
        for var, out in zip(carried, body.outvars, strict=False)
    )
    return Resumable(eqn, body, scan, is_sum, stride, price)


# --- carries that are added to --------------------------------------------------------------------


def _addends(body: Body, var: Var, out: Atom) -> list[Atom] | None:
    """What a step adds to a carry; None if it does something else to it, too."""
    reached = _jax.reached(body, {var})
    writer = {each: eqn for eqn in body.eqns for each in eqn.outvars}
    addends: list[Atom] = []
    while out is not var:
        eqn = writer.get(out) if isinstance(out, Var) else None
        if eqn is None or out.aval.dtype != var.aval.dtype or out.aval.shape != var.aval.shape:
            return None
        name = eqn.primitive.name
        own = [atom for atom in eqn.invars if isinstance(atom, Var) and atom in reached]
        is_added = name in ("add", "add_any", "convert_element_type", "copy") or (
            name == "sub" and own == eqn.invars[:1]
        )
        if not is_added or len(own) != 1:
            return None
        addends += [atom for atom in eqn.invars if atom is not own[0]]
        out = own[0]
    return addends


def _is_sum(body: Body, var: Var, out: Atom) -> bool:
    """Whether a carry is only added to, and nothing reads it."""
    addends = _addends(body, var, out)
    if addends is None or var.aval.dtype == np.bool_:
        return False
    reached = _jax.reached(body, {var})
    return sum(isinstance(atom, Var) and atom in reached for atom in body.outvars) == 1


# --- values ---------------------------------------------------------------------------------------


def _strong(x: Any, atom: Atom) -> Any:
    """A value of an atom's dtype, without weak type."""
    return lax.convert_element_type(jnp.asarray(x, atom.aval.dtype), atom.aval.dtype)


def _put(buffer: Any, x: Any, place: Any) -> Any:
    return lax.dynamic_update_index_in_dim(buffer, x, place, 0)


def _at(buffers: Values, place: Any) -> list[Any]:
    return [lax.dynamic_index_in_dim(x, place, keepdims=False) for x in buffers]


def _agree(one: Values, other: Values) -> Any:
    """Whether all bits are the same."""
    differ = [jnp.any(_jax.different_bits(x, y)) for x, y in zip(one, other, strict=True)]
    return ~functools.reduce(lax.bitwise_or, differ, jnp.asarray(False))


def named(fun: Any) -> Any:
    """A function as a call that can be told from others in what is traced."""

    def resumed_scan(*args: Any) -> Any:
        return fun(*args)

    assert resumed_scan.__name__ == NAME
    return jax.jit(resumed_scan)
