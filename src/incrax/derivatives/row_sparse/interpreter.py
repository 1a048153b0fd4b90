"""The interpreter: a traced program is evaluated on values of which some are rows.

In: a program and its inputs. Out: its outputs, structured where every equation on the way has a
rule. Where one has none, the value becomes an array there, and that is written down: a missing rule
costs speed, never a result. Bodies of calls, branches and loops are interpreted; rows that a loop
only adds to what it carries are stacked and added after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Program, Values, from_jaxpr, type_of
from incrax.control_flow.loops.bodies import merged, parted
from incrax.derivatives.row_sparse.rows import RowSparse
from incrax.derivatives.row_sparse.rules import MAKERS, evaluated, folded, is_sum_of_rows
from incrax.derivatives.row_sparse.values import (
    DENSE,
    KEPT,
    BecomesDense,
    Context,
    Value,
    ValueTable,
    added,
    as_sum,
    has_rows,
    is_sparse,
    is_structured,
    num_stored,
    zeros,
)
from incrax.engine.program.simplify import RULED, drop_dead, inline_jits
from incrax.primitives.table import entry_of, is_addition


def run(program: Program, values: Values, context: Context) -> list[Value]:
    """The outputs of a program."""
    program = drop_dead(inline_jits(program))
    env = ValueTable(context)
    env.values.update(zip(program.constvars, map(_constant, program.consts), strict=True))
    env.values.update(zip(program.invars, values, strict=True))
    for eqn in program.eqns:
        if not is_sum_of_rows(eqn, env.inputs(eqn)):
            env.coalesce(eqn)
        env.write(eqn, _results(eqn, env))
    return list(map(env.read, program.outvars))


def _constant(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _results(eqn: Equation, env: ValueTable) -> Values:
    values = env.inputs(eqn)
    name = eqn.primitive.name
    # Calls with a derivative rule of their own stay closed where they see no rows.
    is_closed = name in RULED and not any(map(has_rows, values))
    called = None if is_closed else _jax.called_jaxpr(eqn)
    if called is not None:
        is_kept_apart = eqn.params.get("differentiated") and eqn.params.get("prevent_cse")
        given = _plain_apart(values, jax.lax.optimization_barrier) if is_kept_apart else values
        return run(from_jaxpr(called), given, env.context)
    why = f"there is no rule for `{name}`"
    results: list[Value] = []
    try:
        if name in BODIES:
            results = BODIES[name](eqn, values, env.context)
        elif any(map(is_structured, values)) or name in MAKERS:
            results = [evaluated(eqn, env)]
    except BecomesDense as error:
        why = str(error)
    for value in filter(has_rows, results):
        env.context.note(KEPT, eqn, value)
    if results:
        return results
    is_known = all(isinstance(x, np.ndarray) and not x.ndim for x in values)
    if entry_of(eqn).is_elementwise and not eqn.effects and is_known:
        return [folded(eqn, values)]
    _note_lost(eqn, values, why, env.context)
    return _jax.apply(eqn, env.arrays(eqn, why))


def _note_lost(eqn: Equation, values: Values, why: str, context: Context) -> None:
    """Write down rows that were never made."""
    aval = eqn.outvars[0].aval if eqn.outvars else None
    could_be = eqn.primitive.name in SOURCES and context.is_large(aval)
    if could_be and not any(map(has_rows, values)):
        if eqn.primitive.name == "pad" or is_structured(values[0]):
            context.note(DENSE, eqn, zeros(aval), why)


def _plain_apart(values: Values, barrier: Callable[[list[Any]], Sequence[Any]]) -> list[Value]:
    """Structured values stay what they are, the others are kept from moving, as JAX lowers a
    recomputation.
    """
    is_held = list(map(is_structured, values))
    held, plain = parted(is_held, values)
    return merged(is_held, held, barrier(plain))


def _barrier(eqn: Equation, values: Values, _: Context) -> list[Value]:
    return _plain_apart(values, lambda plain: _jax.apply(eqn, plain))


# --- bodies ---------------------------------------------------------------------------------------


SOURCES = frozenset({"scatter-add", "scatter", "pad", "dynamic_update_slice"})
"""What makes rows of ordinary arrays."""


def _check_opens(eqn: Equation, values: Values) -> None:
    """Raise where interpreting what is inside is of no use, or not allowed."""
    if eqn.effects:
        raise BecomesDense("what it holds has effects")
    makes_rows = any(each.primitive.name in SOURCES for each in _jax.with_inner([eqn]))
    if not makes_rows and not any(map(has_rows, values)):
        raise BecomesDense("what it holds makes no rows")


def typed(value: Any, aval: Any) -> Any:
    """The value, an array, with the weak type of `aval`."""
    if _jax.is_key_dtype(aval.dtype):
        return value
    return _jax.typed_as(jax.lax.convert_element_type(value, aval.dtype), aval)


def _num_rows(outputs_of: Callable[..., list[Value]], *types: Any) -> list[int | None]:
    """How many rows each output of a body stores; None of an array."""
    sums = lambda *xs: [as_sum(x) if is_sparse(x) else None for x in outputs_of(*xs)]
    return [found and found.num_rows for found in jax.eval_shape(sums, *types)]


def _padded(rows: RowSparse, width: int, aval: Any) -> RowSparse:
    """So many rows, of strong type."""
    spare = width - rows.num_rows
    strong = jax.lax.convert_element_type(rows.values, aval.dtype)
    values = jnp.pad(strong, [(0, spare), *[(0, 0)] * (strong.ndim - 1)])
    numbers = jnp.pad(rows.indices, (0, spare), constant_values=aval.shape[0])
    return RowSparse(numbers, values, aval.shape)


def _cond(eqn: Equation, values: Values, context: Context) -> list[Value]:
    """Rows where each branch gives rows or zeros: as many as the branch with most."""
    index, *operands = values
    _check_opens(eqn, operands)
    branches = [partial(run, from_jaxpr(branch), operands) for branch in eqn.params["branches"]]
    counts = [_num_rows(partial(branch, context.fresh())) for branch in branches]
    widths = [None if None in each else max(each) for each in zip(*counts, strict=True)]
    dense = lambda value: context.dense(value, eqn, "another branch gives a dense array")

    def leaving(branch: Callable[[Context], list[Value]]) -> list[Any]:
        return [
            typed(dense(x), var.aval) if width is None else _padded(as_sum(x), width, var.aval)
            for x, width, var in zip(branch(context), widths, eqn.outvars, strict=True)
        ]

    chosen = context.dense(index, eqn, "it chooses a branch")
    return jax.lax.switch(chosen, [partial(leaving, branch) for branch in branches])


def _scan(eqn: Equation, values: Values, context: Context) -> list[Value]:
    """A carry of zeros to which only rows are added becomes the rows of all turns; other carries
    are arrays.

    JAX transposes a loop that reads a table outside it to a loop with such a carry: it never exists
    here, and stands as None among the others.
    """
    _check_opens(eqn, values)
    body = from_jaxpr(eqn.params["jaxpr"])
    scan = _jax.scan_of(eqn)
    first = scan.num_consts + scan.num_carry
    sums = _sums_of_rows(eqn, body, values, context)
    entering = zip(values, (*body.invars[:first], *eqn.invars[first:]), strict=True)
    consts, start, xs = scan.split(
        [
            None if n in sums else typed(context.dense(x, eqn, "the loop reads it"), atom.aval)
            for n, (x, atom) in enumerate(entering)
        ]
    )
    dense = lambda value: context.dense(value, eqn, "the loop carries or stacks it")

    def turn(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        results = _turn(body, context, [*consts, *carry, *x])
        leaving = list(enumerate(zip(results, body.outvars, strict=True), scan.num_consts))
        arrays = [None if n in sums else typed(dense(x), var.aval) for n, (x, var) in leaving]
        carry, ys = scan.split_results(arrays)
        return carry, (ys, {n: as_sum(x) for n, (x, _) in leaving if n in sums})

    *carry, ys, of_turns = scan.run(turn, start, xs)
    order = slice(None, None, -1 if eqn.params["reverse"] else 1)  # that of the turns
    for n, rows in of_turns.items():
        in_order = jax.tree.map(lambda x: jax.lax.collapse(x[order], 0, 2), rows)
        carry[n - scan.num_consts] = added([values[n], in_order])
    return [*carry, *ys]


def _turn(body: Program, context: Context, values: Values) -> list[Value]:
    """The outputs of a turn; None stands for zeros to which rows are added."""
    pairs = zip(values, body.invars, strict=True)
    return run(body, [zeros(var.aval) if x is None else x for x, var in pairs], context)


def _sums_of_rows(eqn: Equation, body: Program, values: Values, context: Context) -> list[int]:
    """The inputs that are carries of zeros to which each turn adds rows and does nothing else."""
    num_consts, num_carry = _jax.scan_counts(eqn)
    results = dict(enumerate(body.outvars[:num_carry], num_consts))
    sparse = [n for n in results if is_sparse(values[n])]
    found = [n for n in sparse if _is_only_added_to(body, body.invars[n], results[n])]
    types = [None if n in found else type_of(var) for n, var in enumerate(body.invars)]
    widths = _num_rows(lambda *given: _turn(body, context.fresh(), given), *types)
    for n in sparse:
        width = widths[n - num_consts] if n in found else None
        try:
            if width is None:
                raise BecomesDense("the loop reads its carry")
            num_rows = width * eqn.params["length"] + num_stored(values[n])
            context.check(num_rows, body.invars[n].aval)
        except BecomesDense as error:
            context.note(DENSE, eqn, values[n], str(error))
            found = [other for other in found if other != n]
    return found


def _is_only_added_to(body: Program, var: Any, result: Any) -> bool:
    """Whether all that a loop does with a carry is to add something to it and carry that on."""
    reads = [*(atom for eqn in body.eqns for atom in eqn.invars), *body.outvars]
    sums = [eqn for eqn in body.eqns if var in eqn.invars and result in eqn.outvars]
    return all(map(is_addition, sums)) and reads.count(var) == reads.count(result) == len(sums)


BODIES = {"cond": _cond, "scan": _scan, "optimization_barrier": _barrier}
"""Equations that hold programs, and those of several outputs."""
