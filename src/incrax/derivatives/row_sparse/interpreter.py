"""The interpreter: a traced program is evaluated on values of which some are rows.

In: a program and its inputs. Out: its outputs, structured where every equation on the way has a
rule. Where one has none, the value becomes an array there, and that is written down: a missing rule
costs speed, never a result. Bodies of calls, branches and loops are interpreted; rows that a loop
only adds to what it carries are stacked and added after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal
from incrax._program import Program, from_jaxpr, type_of
from incrax.derivatives.row_sparse.rules import (
    MAKERS,
    evaluated,
    folded,
    is_sum_of_rows,
)
from incrax.derivatives.row_sparse.values import (
    DENSE,
    KEPT,
    BecomesDense,
    Context,
    Uniform,
    Value,
    added,
    coalesced,
    has_rows,
    is_sparse,
    is_structured,
    no_rows,
    num_stored,
    summed_rows,
    zeros,
)
from incrax.engine.program.simplify import RULED
from incrax.primitives.table import entry_of, is_addition


def run(program: Program, values: Sequence[Value], context: Context) -> list[Value]:
    """The outputs of a program."""
    env: dict[Any, Value] = dict(
        zip(program.constvars, map(_constant, program.consts), strict=True)
    )
    env.update(zip(program.invars, values, strict=True))
    for eqn in program.eqns:
        inputs = [_read(atom, env) for atom in eqn.invars]
        if not is_sum_of_rows(eqn, inputs):
            # Each row is stored once, for this equation and all that follow.
            inputs = list(map(coalesced, inputs))
            env.update(
                (atom, value)
                for atom, value in zip(eqn.invars, inputs, strict=True)
                if has_rows(value)
            )
        env.update(zip(eqn.outvars, _results(eqn, inputs, context), strict=True))
    return [_read(atom, env) for atom in program.outvars]


def _constant(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _read(atom: Any, env: dict[Any, Value]) -> Value:
    """A value; literals as NumPy scalars, by which rules know constants."""
    if not isinstance(atom, Literal):
        return env[atom]
    return np.asarray(atom.val, atom.aval.dtype) if atom.aval.shape == () else atom.val


def _results(eqn: Equation, values: list[Value], context: Context) -> Sequence[Value]:
    called = _opened(eqn, values)
    if called is not None:
        is_kept_apart = eqn.params.get("differentiated") and eqn.params.get("prevent_cse")
        given = _plain_apart(values, jax.lax.optimization_barrier) if is_kept_apart else values
        return run(from_jaxpr(called), given, context.within(eqn))
    name = eqn.primitive.name
    why = f"there is no rule for `{name}`"
    try:
        if name in BODIES:
            return _noted(eqn, BODIES[name](eqn, values, context), context)
        if any(map(is_structured, values)) or name in MAKERS:
            return _noted(eqn, [evaluated(eqn, values, context)], context)
    except BecomesDense as error:
        why = str(error)
    is_known = all(isinstance(x, np.ndarray) and not x.ndim for x in values)
    if entry_of(eqn).is_elementwise and not eqn.effects and is_known:
        return [folded(eqn, values)]
    _note_lost(eqn, values, why, context)
    return _jax.apply(eqn, [context.dense(value, eqn, why) for value in values])


def _noted(eqn: Equation, results: list[Value], context: Context) -> list[Value]:
    for value in filter(has_rows, results):
        context.note(KEPT, eqn, value)
    return results


def _note_lost(eqn: Equation, values: Sequence[Value], why: str, context: Context) -> None:
    """Write down rows that were never made."""
    aval = eqn.outvars[0].aval if eqn.outvars else None
    could_be = eqn.primitive.name in SOURCES and context.is_large(aval)
    if could_be and not any(map(has_rows, values)):
        if eqn.primitive.name == "pad" or is_structured(values[0]):
            context.note(DENSE, eqn, no_rows(aval), why)


# --- calls ----------------------------------------------------------------------------------------


def _opened(eqn: Equation, values: Sequence[Value]) -> Any | None:
    """What a call evaluates; calls with a derivative rule of their own stay closed where they see
    no rows.
    """
    if eqn.primitive.name in RULED and not any(map(has_rows, values)):
        return None
    return _jax.called_jaxpr(eqn)


def _plain_apart(
    values: Sequence[Value], barrier: Callable[[list[Any]], Sequence[Any]]
) -> list[Value]:
    """Structured values stay what they are, the others are kept from moving, as JAX lowers a
    recomputation.
    """
    plain = iter(barrier([value for value in values if not is_structured(value)]))
    return [value if is_structured(value) else next(plain) for value in values]


def _barrier(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    del context
    return _plain_apart(values, lambda plain: _jax.apply(eqn, plain))


# --- bodies ---------------------------------------------------------------------------------------


SOURCES = frozenset({"scatter-add", "scatter", "pad", "dynamic_update_slice"})
"""What makes rows of ordinary arrays."""


def _makes_rows(eqn: Equation) -> bool:
    """Whether something inside an equation may make rows."""
    bodies = _jax.sub_bodies(eqn)
    return any(
        inner.primitive.name in SOURCES or _makes_rows(inner)
        for body in bodies
        for inner in body.eqns
    )


def _check_opens(eqn: Equation, values: Sequence[Value]) -> None:
    """Raise where interpreting what is inside is of no use, or not allowed."""
    if eqn.effects:
        raise BecomesDense("what it holds has effects")
    if not any(map(has_rows, values)) and not _makes_rows(eqn):
        raise BecomesDense("what it holds makes no rows")


def typed(value: Any, aval: Any) -> Any:
    """The value with the weak type of `aval`."""
    is_weak = getattr(aval, "weak_type", False)
    if _jax.is_key_dtype(aval.dtype):
        return value
    if getattr(jax.typeof(value), "weak_type", False) == is_weak:
        return jnp.asarray(value)
    return _jax.as_weak(value) if is_weak else jax.lax.convert_element_type(value, aval.dtype)


def _num_rows(outputs_of: Callable[..., list[Value]], *types: Any) -> list[int | None]:
    """How many rows each output of a body stores; None of an array."""
    counts: list[int | None] = []

    def count(*arrays: Any) -> None:
        outputs = outputs_of(*arrays)
        counts.extend(num_stored(value) if is_sparse(value) else None for value in outputs)

    jax.eval_shape(count, *types)
    return counts


def _padded(value: Value, width: int, aval: Any) -> tuple[Any, Any]:
    """Numbers and rows of a sparse value, so many, of strong type."""
    rows = value if has_rows(value) else no_rows(aval)
    spare = width - num_stored(rows)
    strong = jax.lax.convert_element_type(rows.rows, aval.dtype)
    return (
        jnp.concatenate([rows.numbers, jnp.full(spare, aval.shape[0], rows.numbers.dtype)]),
        jnp.concatenate([strong, jnp.zeros((spare, *aval.shape[1:]), aval.dtype)]),
    )


def _cond(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows where each branch gives rows or zeros: as many as the branch with most."""
    index, *operands = values
    _check_opens(eqn, operands)
    operands = [_entering(operand, eqn, context) for operand in operands]
    programs = [from_jaxpr(branch) for branch in eqn.params["branches"]]
    counts = [
        _num_rows(functools.partial(run, program, operands, context.fresh()))
        for program in programs
    ]
    widths = [None if None in each else max(each) for each in zip(*counts, strict=True)]
    inner = context.within(eqn)
    why = "another branch gives a dense array"

    def branch(program: Program) -> Callable[[], list[Any]]:
        return lambda: [
            typed(inner.dense(value, eqn, why), var.aval)
            if width is None
            else _padded(value, width, var.aval)
            for value, width, var in zip(
                run(program, operands, inner), widths, eqn.outvars, strict=True
            )
        ]

    results = jax.lax.switch(
        context.dense(index, eqn, "it chooses a branch"), list(map(branch, programs))
    )
    return [
        result if width is None else summed_rows(result[0], result[1], var.aval.shape)
        for result, width, var in zip(results, widths, eqn.outvars, strict=True)
    ]


def _entering(value: Value, eqn: Equation, context: Context) -> Value:
    """A value as a body sees it; arrays are made outside."""
    is_array = has_rows(value) and not isinstance(value.base, Uniform)
    return context.dense(value, eqn, "a branch reads it") if is_array else value


def _scan(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """A carry of zeros to which only rows are added becomes the rows of all turns; other carries
    are arrays.

    JAX transposes a loop that reads a table outside it to a loop with such a carry: it never exists
    here.
    """
    _check_opens(eqn, values)
    params = eqn.params
    body = from_jaxpr(params["jaxpr"])
    num_consts, num_carry = _jax.scan_counts(eqn)
    first = num_consts + num_carry
    inner = context.within(eqn)
    summed = _summed_carries(eqn, body, values[num_consts:first], inner)
    starts = {num_consts + n for n in summed}
    types = [*body.invars[:first], *eqn.invars[first:]]
    arrays = [
        typed(context.dense(value, eqn, "the loop reads it"), var.aval)
        for k, (value, var) in enumerate(zip(values, types, strict=True))
        if k not in starts
    ]
    num_plain = num_carry - len(summed)
    consts = arrays[:num_consts]
    start = arrays[num_consts : num_consts + num_plain]

    def turn(carry: list[Any], x: Sequence[Any]) -> tuple[list[Any], Any]:
        outputs = run(body, _with_zeros(body, starts, [*consts, *carry, *x]), inner)
        plain = [
            typed(inner.dense(value, eqn, "the loop carries or stacks it"), var.aval)
            for n, (value, var) in enumerate(zip(outputs, body.outvars, strict=True))
            if n not in summed
        ]
        rows = [_padded(outputs[n], num_stored(outputs[n]), body.outvars[n].aval) for n in summed]
        return plain[:num_plain], (plain[num_plain:], rows)

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (ys, of_turns) = jax.lax.scan(turn, start, arrays[num_consts + num_plain :], **options)
    results = [*carry, *ys]
    for n, (numbers, rows) in zip(summed, of_turns, strict=True):
        shape = eqn.outvars[n].aval.shape
        order = slice(None, None, -1 if params["reverse"] else 1)  # that of the turns
        total = summed_rows(numbers[order].reshape(-1), rows[order].reshape(-1, *shape[1:]), shape)
        results.insert(n, added([values[num_consts + n], total]))
    return results


def _summed_carries(
    eqn: Equation, body: Program, init: Sequence[Value], context: Context
) -> list[int]:
    """Numbers of the carries that are zeros to which the loop does nothing but add rows."""
    first = _jax.scan_counts(eqn)[0]
    carried = body.invars[first : first + len(init)]
    sparse = [n for n, value in enumerate(init) if is_sparse(value)]
    starts = {first + n for n in sparse if _is_only_added_to(body, carried[n], body.outvars[n])}
    types = [type_of(var) for k, var in enumerate(body.invars) if k not in starts]
    counts = _num_rows(
        lambda *arrays: run(body, _with_zeros(body, starts, arrays), context.fresh()), *types
    )
    summed = []
    for n in sparse:
        aval = carried[n].aval
        num_added = counts[n] if first + n in starts else None
        try:
            if num_added is None:
                raise BecomesDense("the loop reads its carry")
            context.check(num_added * eqn.params["length"] + num_stored(init[n]), aval)
            summed.append(n)
        except BecomesDense as error:
            rows = init[n] if has_rows(init[n]) else no_rows(aval)
            context.note(DENSE, eqn, rows, str(error))
    return summed


def _with_zeros(body: Program, starts: set[int], arrays: Sequence[Any]) -> list[Value]:
    """The inputs of a body: zeros in these places, arrays in the others."""
    rest = iter(arrays)
    return [
        zeros(var.aval.shape, var.aval.dtype) if k in starts else next(rest)
        for k, var in enumerate(body.invars)
    ]


def _is_only_added_to(body: Program, var: Any, result: Any) -> bool:
    """Whether all that a loop does with a carry is to add something to it and carry that on."""
    reads = [*(atom for eqn in body.eqns for atom in eqn.invars), *body.outvars]
    sums = [eqn for eqn in body.eqns if var in eqn.invars and result in eqn.outvars]
    return all(map(is_addition, sums)) and reads.count(var) == reads.count(result) == len(sums)


BODIES = {"cond": _cond, "scan": _scan, "optimization_barrier": _barrier}
"""Equations that hold programs, and those of several outputs."""
