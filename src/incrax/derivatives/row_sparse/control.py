"""Branches and loops: their bodies are interpreted; what a loop only adds rows to is stacked and added after it.

In: an equation with bodies and its inputs. Out: its outputs. JAX transposes a loop that reads a table outside it
to a loop with a carry of zeros to which each turn adds rows: that carry never exists here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Program, from_jaxpr
from incrax.derivatives.row_sparse.context import DENSE, BecomesDense, CarryRead, Context
from incrax.derivatives.row_sparse.indices import number_dtype
from incrax.derivatives.row_sparse.values import (
    Summed,
    Value,
    added,
    coalesced,
    has_rows,
    is_sparse,
    is_structured,
    num_stored,
)

SOURCES = frozenset({"scatter-add", "scatter", "pad", "dynamic_update_slice"})
"""What makes rows of ordinary arrays."""


def makes_rows(eqn: Equation) -> bool:
    """Whether something inside an equation may make rows."""
    bodies = _jax.sub_bodies(eqn)
    return any(inner.primitive.name in SOURCES or makes_rows(inner) for body in bodies for inner in body.eqns)


def typed(value: Any, aval: Any) -> Any:
    """The value with the weak type of `aval`."""
    is_weak = getattr(aval, "weak_type", False)
    if _jax.is_key_dtype(aval.dtype):
        return value
    if getattr(jax.typeof(value), "weak_type", False) == is_weak:
        return jnp.asarray(value)
    return _jax.as_weak(value) if is_weak else jax.lax.convert_element_type(value, aval.dtype)


def _arrays(values: Sequence[Value], atoms: Sequence[Any], eqn: Equation, why: str, context: Context) -> list[Any]:
    """Values as arrays of the types of `atoms`."""
    return [typed(context.dense(v, eqn, why), a.aval) for v, a in zip(values, atoms, strict=True)]


# --- cond ---------------------------------------------------------------------------------------------------------


def cond(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows where each branch gives rows or zeros: as many as the branch with most."""
    index, *operands = values
    if eqn.effects or is_structured(index) or not (any(map(has_rows, operands)) or makes_rows(eqn)):
        raise BecomesDense("the branches have effects" if eqn.effects else "the branches make no rows")
    operands = [coalesced(operand) for operand in operands]
    programs = [from_jaxpr(branch) for branch in eqn.params["branches"]]
    forms = [_forms(program, operands, context.on_trial()) for program in programs]
    widths = [_width(given) for given in zip(*forms, strict=True)]
    inner = context.within(eqn)
    branches = [_branch(eqn, program, operands, widths, inner) for program in programs]
    results = jax.lax.switch(index, branches)
    return [_unpacked(x, width, var.aval) for x, width, var in zip(results, widths, eqn.outvars, strict=True)]


def _forms(program: Program, operands: Sequence[Value], context: Context) -> list[int | None]:
    """For each output the number of its rows, None where it is no sparse value."""
    found: list[int | None] = []

    def run() -> None:
        outputs = context.run(program, operands, context)
        found.extend(num_stored(value) if is_sparse(value) else None for value in outputs)

    jax.eval_shape(run)
    return found


def _width(given: Sequence[int | None]) -> int | None:
    known = [count for count in given if count is not None]
    return max(known) if len(known) == len(given) else None


def _branch(
    eqn: Equation, program: Program, operands: Sequence[Value], widths: Sequence[int | None], context: Context
) -> Callable[[], list[Any]]:
    def run() -> list[Any]:
        outputs = context.run(program, operands, context)
        parts = zip(outputs, widths, eqn.outvars, strict=True)
        return [_packed(value, width, var.aval, eqn, context) for value, width, var in parts]

    return run


def _packed(value: Value, width: int | None, aval: Any, eqn: Equation, context: Context) -> Any:
    """An output of a branch as arrays that are alike in all branches."""
    if width is None:
        return typed(context.dense(value, eqn, "another branch gives a dense array"), aval)
    if not width:
        return ()
    numbers, rows = _parts(value, aval)
    spare = width - numbers.shape[0]
    numbers = jnp.concatenate([numbers, jnp.full(spare, aval.shape[0], numbers.dtype)])
    return numbers, jnp.concatenate([rows, jnp.zeros((spare, *aval.shape[1:]), aval.dtype)])


def _parts(value: Value, aval: Any) -> tuple[Any, Any]:
    """Numbers and rows, of strong type; none of zeros."""
    if not has_rows(value):
        return jnp.zeros(0, number_dtype(aval.shape[0])), jnp.zeros((0, *aval.shape[1:]), aval.dtype)
    return value.numbers, jax.lax.convert_element_type(value.rows, aval.dtype)


def _unpacked(result: Any, width: int | None, aval: Any) -> Value:
    if width is None:
        return result
    numbers, rows = result if width else _parts(None, aval)
    return Summed(numbers, rows, aval.shape)


# --- scan ---------------------------------------------------------------------------------------------------------


def scan(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """A carry of zeros to which only rows are added becomes the rows of all turns; other carries are arrays."""
    num_consts, num_carry = _jax.scan_counts(eqn)
    if eqn.effects or not (any(map(has_rows, values)) or makes_rows(eqn)):
        raise BecomesDense("the loop has effects" if eqn.effects else "the loop makes no rows")
    body = from_jaxpr(eqn.params["jaxpr"])
    consts = _arrays(values[:num_consts], body.invars[:num_consts], eqn, "a loop reads it", context)
    init = [coalesced(value) for value in values[num_consts : num_consts + num_carry]]
    after = eqn.invars[num_consts + num_carry :]
    xs = _arrays(values[num_consts + num_carry :], after, eqn, "a loop goes over its rows", context)
    summing = {n for n, value in enumerate(init) if is_sparse(value) and len(value.shape) > 0}
    while True:
        inner = context.on_trial().within(eqn)
        loop = _Loop(eqn, body, consts, init, xs, frozenset(summing), inner)
        try:
            results = loop.run()
        except CarryRead as error:
            number, *why = error.args
            summing.remove(number)
            context.note(DENSE, eqn, _zeros(init[number]), *(why or ["the loop reads its carry"]))
            continue
        context.events.extend(inner.events)
        return results


def _zeros(value: Value) -> Summed:
    """Sparse values of any form as one for `explain`."""
    rows = value.rows if has_rows(value) else jnp.zeros((0, *value.shape[1:]), value.value.dtype)
    return Summed(jnp.zeros(rows.shape[0], int), rows, value.shape)


class _Loop:
    """One attempt at a scan: the carries in `summing` are sums of rows."""

    def __init__(
        self,
        eqn: Equation,
        body: Program,
        consts: Sequence[Any],
        init: Sequence[Value],
        xs: Sequence[Any],
        summing: frozenset[int],
        context: Context,
    ) -> None:
        self.eqn, self.body, self.consts, self.init, self.xs = eqn, body, consts, init, xs
        self.summing, self.context = summing, context
        self.carry_vars = body.invars[len(consts) : len(consts) + len(init)]

    def run(self) -> list[Value]:
        """The outputs of the scan."""
        plain = [n for n in range(len(self.init)) if n not in self.summing]
        why = "a loop changes it"
        init = [typed(self.context.dense(self.init[n], self.eqn, why), self.carry_vars[n].aval) for n in plain]
        params = self.eqn.params
        carry, (ys, rows) = jax.lax.scan(
            self._turn, init, self.xs, params["length"], reverse=params["reverse"], unroll=params["unroll"]
        )
        results: dict[int, Value] = dict(zip(plain, carry, strict=True))
        for number, (numbers, stacked) in rows.items():
            results[number] = self._after(number, numbers, stacked)
        return [*[results[n] for n in range(len(self.init))], *ys]

    def _turn(self, carry: list[Any], x: Sequence[Any]) -> tuple[list[Any], Any]:
        plain = iter(carry)
        carries = [self._started(n) if n in self.summing else next(plain) for n in range(len(self.init))]
        outputs = self.context.run(self.body, [*self.consts, *carries, *x], self.context)
        count = len(self.init)
        rows = {n: self._rows(n, outputs[n]) for n in sorted(self.summing)}
        kept = [n for n in range(count) if n not in self.summing]
        atoms = [self.carry_vars[n] for n in kept]
        new = _arrays([outputs[n] for n in kept], atoms, self.eqn, "a loop carries it", self.context)
        ys = _arrays(outputs[count:], self.body.outvars[count:], self.eqn, "a loop stacks it", self.context)
        return new, (ys, rows)

    def _started(self, number: int) -> Summed:
        aval = self.carry_vars[number].aval
        rows = jnp.zeros((0, *aval.shape[1:]), aval.dtype)
        return Summed(jnp.zeros(0, number_dtype(aval.shape[0])), rows, aval.shape, number)

    def _rows(self, number: int, value: Value) -> tuple[Any, Any]:
        """The rows that one turn adds."""
        if not isinstance(value, Summed) or value.carry != number:
            raise CarryRead(number)
        aval = self.carry_vars[number].aval
        total = num_stored(value) * self.eqn.params["length"] + num_stored(self.init[number])
        try:
            self.context.check(total, aval)
        except BecomesDense as error:
            raise CarryRead(number, str(error)) from error
        return value.numbers, jax.lax.convert_element_type(value.rows, aval.dtype)

    def _after(self, number: int, numbers: Any, rows: Any) -> Summed:
        """The rows of all turns, in the order of the turns."""
        if self.eqn.params["reverse"]:
            numbers, rows = numbers[::-1], rows[::-1]
        shape = self.carry_vars[number].aval.shape
        total = Summed(numbers.reshape(-1), rows.reshape(-1, *shape[1:]), shape)
        return added([self.init[number], total]) if has_rows(self.init[number]) else total


# --- while --------------------------------------------------------------------------------------------------------


def while_loop(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Carries are arrays; rows made inside one turn stay rows."""
    if eqn.effects or not (any(map(has_rows, values)) or makes_rows(eqn)):
        raise BecomesDense("the loop has effects" if eqn.effects else "the loop makes no rows")
    num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test, body = from_jaxpr(eqn.params["cond_jaxpr"]), from_jaxpr(eqn.params["body_jaxpr"])
    atoms = [*test.invars[:num_cond], *body.invars]
    arrays = _arrays(values, atoms, eqn, "a loop changes or reads it", context)
    test_consts, consts, init = arrays[:num_cond], arrays[num_cond : num_cond + num_body], arrays[num_cond + num_body :]
    inner = context.within(eqn)

    def is_running(carry: Any) -> Any:
        return context.run(test, [*test_consts, *carry], inner.on_trial())[0]

    def turn(carry: Any) -> Any:
        outputs = context.run(body, [*consts, *carry], inner)
        return _arrays(outputs, body.invars[num_body:], eqn, "a loop carries it", inner)

    return list(jax.lax.while_loop(is_running, turn, init))
