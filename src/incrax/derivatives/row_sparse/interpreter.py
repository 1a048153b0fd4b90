"""The interpreter: a traced program is evaluated on values of which some are rows.

In: a program and its inputs. Out: its outputs, structured where every equation on the way has a
rule. Where one has none, the value becomes an array there, and that is written down: a missing rule
costs speed, never a result. Bodies of calls, branches and loops are interpreted; what a loop only
adds rows to is stacked and added after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal
from incrax._program import Program, from_jaxpr, read_vars
from incrax.derivatives.row_sparse.rules import MAKERS, evaluated, folded, is_sum
from incrax.derivatives.row_sparse.values import (
    DENSE,
    KEPT,
    BecomesDense,
    CarryRead,
    Context,
    Patched,
    Summed,
    Swept,
    Value,
    added,
    coalesced,
    has_rows,
    is_sparse,
    is_structured,
    no_rows,
    num_stored,
)
from incrax.engine.program.simplify import RULED
from incrax.primitives.table import entry_of


def run(program: Program, values: Sequence[Value], context: Context) -> list[Value]:
    """The outputs of a program."""
    env: dict[Any, Value] = dict(
        zip(program.constvars, map(_constant, program.consts), strict=True)
    )
    env.update(zip(program.invars, values, strict=True))
    read_as_rows = {
        var for eqn in program.eqns if id(eqn) not in context.sweeps for var in read_vars(eqn)
    }
    for eqn in program.eqns:
        _prepare(eqn, env, context)
        results = _results(eqn, [_read(atom, env) for atom in eqn.invars], context)
        for var, value in zip(eqn.outvars, results, strict=True):
            # Stored by its rows, which are read anyway, and not by addition: XLA then needs no copy
            # of the base.
            has_addend = (
                isinstance(value, Patched) and value.addend is not None and var in read_as_rows
            )
            env[var] = replace(value, addend=None) if has_addend else value
    return [_read(atom, env) for atom in program.outvars]


def _prepare(eqn: Equation, env: dict[Any, Value], context: Context) -> None:
    """Change inputs for this equation and all that follow.

    Each row is stored once, but where rows are only added. Rows of arrays are written into them
    before all rows change.
    """
    atoms = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
    is_added = is_sum(eqn) and all(is_sparse(env[atom]) for atom in atoms)
    for atom in atoms:
        value = env[atom]
        if isinstance(value, Summed) and value.carry is None and not is_added:
            value = env[atom] = coalesced(value)
        if (
            id(eqn) in context.sweeps
            and isinstance(value, Patched)
            and isinstance(value.base, Swept)
        ):
            env[atom] = context.dense(value, eqn, "all rows change")


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
    why = f"there is no rule for `{eqn.primitive.name}`"
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
    if (
        eqn.primitive.name not in SOURCES
        or any(map(has_rows, values))
        or not context.is_large(aval)
    ):
        return
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


# --- branches -------------------------------------------------------------------------------------


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


def _check_opens(eqn: Equation, values: Sequence[Value], what: str) -> None:
    """Raise where interpreting what is inside is of no use, or not allowed."""
    if eqn.effects:
        raise BecomesDense(f"the {what} effects")
    if not any(map(has_rows, values)) and not _makes_rows(eqn):
        raise BecomesDense(f"the {what.replace('have', 'make').replace('has', 'makes')} no rows")


def typed(value: Any, aval: Any) -> Any:
    """The value with the weak type of `aval`."""
    is_weak = getattr(aval, "weak_type", False)
    if _jax.is_key_dtype(aval.dtype):
        return value
    if getattr(jax.typeof(value), "weak_type", False) == is_weak:
        return jnp.asarray(value)
    return _jax.as_weak(value) if is_weak else jax.lax.convert_element_type(value, aval.dtype)


def _arrays(
    values: Sequence[Value], atoms: Sequence[Any], eqn: Equation, why: str, context: Context
) -> list[Any]:
    """Values as arrays of the types of `atoms`."""
    return [typed(context.dense(v, eqn, why), a.aval) for v, a in zip(values, atoms, strict=True)]


def _cond(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Rows where each branch gives rows or zeros: as many as the branch with most."""
    index, *operands = values
    if is_structured(index):
        raise BecomesDense("the branches make no rows")
    _check_opens(eqn, operands, "branches have")
    operands = [coalesced(operand) for operand in operands]
    programs = [from_jaxpr(branch) for branch in eqn.params["branches"]]
    counts: list[list[int | None]] = []

    def count(program: Program) -> None:
        outputs = run(program, operands, context.on_trial())
        counts.append([num_stored(value) if is_sparse(value) else None for value in outputs])

    for program in programs:
        jax.eval_shape(lambda program=program: count(program))
    widths = [None if None in each else max(each) for each in zip(*counts, strict=True)]
    inner = context.within(eqn)
    why = "another branch gives a dense array"

    def branch(program: Program) -> Callable[[], list[Any]]:
        def outputs() -> list[Any]:
            found = zip(run(program, operands, inner), widths, eqn.outvars, strict=True)
            return [
                typed(inner.dense(value, eqn, why), var.aval)
                if width is None
                else _padded(value, width, var.aval)
                for value, width, var in found
            ]

        return outputs

    return jax.lax.switch(index, list(map(branch, programs)))


def _padded(value: Value, width: int, aval: Any) -> Summed:
    """A sparse value with so many rows, of strong type."""
    rows = value if has_rows(value) else no_rows(aval)
    spare = width - num_stored(rows)
    numbers = jnp.concatenate([rows.numbers, jnp.full(spare, aval.shape[0], rows.numbers.dtype)])
    strong = jax.lax.convert_element_type(rows.rows, aval.dtype)
    return Summed(
        numbers,
        jnp.concatenate([strong, jnp.zeros((spare, *aval.shape[1:]), aval.dtype)]),
        aval.shape,
    )


# --- loops ----------------------------------------------------------------------------------------


def _scan(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """A carry of zeros to which only rows are added becomes the rows of all turns; other carries
    are arrays.

    JAX transposes a loop that reads a table outside it to a loop with such a carry: it never exists
    here.
    """
    _check_opens(eqn, values, "loop has")
    body = from_jaxpr(eqn.params["jaxpr"])
    num_consts, num_carry = _jax.scan_counts(eqn)
    first = num_consts + num_carry
    consts = _arrays(values[:num_consts], body.invars[:num_consts], eqn, "a loop reads it", context)
    init = [coalesced(value) for value in values[num_consts:first]]
    xs = _arrays(values[first:], eqn.invars[first:], eqn, "a loop goes over its rows", context)
    summing = {n for n, value in enumerate(init) if is_sparse(value) and len(value.shape) > 0}
    while True:
        inner = context.on_trial().within(eqn)
        try:
            results = _scanned(eqn, body, (consts, init, xs), frozenset(summing), inner)
        except CarryRead as error:
            number, *why = error.args
            summing.remove(number)
            rows = (
                init[number]
                if has_rows(init[number])
                else no_rows(eqn.invars[num_consts + number].aval)
            )
            context.note(DENSE, eqn, rows, *(why or ["the loop reads its carry"]))
            continue
        context.events.extend(inner.events)
        return results


def _scanned(
    eqn: Equation,
    body: Program,
    given: tuple[list[Any], list[Value], list[Any]],
    summing: frozenset[int],
    context: Context,
) -> list[Value]:
    """One attempt: the carries in `summing` are sums of rows.

    Raises `CarryRead` where one of them cannot be.
    """
    consts, init, xs = given
    params = eqn.params
    count = len(init)
    carried = body.invars[len(consts) : len(consts) + count]
    plain = [n for n in range(count) if n not in summing]
    plain_vars = [carried[n] for n in plain]

    def added_rows(number: int, value: Value) -> Summed:
        """The rows that one turn adds."""
        if not isinstance(value, Summed) or value.carry != number:
            raise CarryRead(number)
        aval = carried[number].aval
        try:
            context.check(num_stored(value) * params["length"] + num_stored(init[number]), aval)
        except BecomesDense as error:
            raise CarryRead(number, str(error)) from error
        return Summed(
            value.numbers, jax.lax.convert_element_type(value.rows, aval.dtype), value.shape
        )

    def turn(carry: list[Any], x: Sequence[Any]) -> tuple[list[Any], Any]:
        arrays = iter(carry)
        carries = [
            no_rows(var.aval, n) if n in summing else next(arrays) for n, var in enumerate(carried)
        ]
        outputs = run(body, [*consts, *carries, *x], context)
        rows = {n: added_rows(n, outputs[n]) for n in sorted(summing)}
        new = _arrays([outputs[n] for n in plain], plain_vars, eqn, "a loop carries it", context)
        return new, (
            _arrays(outputs[count:], body.outvars[count:], eqn, "a loop stacks it", context),
            rows,
        )

    start = _arrays([init[n] for n in plain], plain_vars, eqn, "a loop changes it", context)
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, (ys, rows) = jax.lax.scan(turn, start, xs, **options)
    results: dict[int, Value] = dict(zip(plain, carry, strict=True))
    for number, of_turns in rows.items():
        numbers = of_turns.numbers
        stacked = of_turns.rows
        if params["reverse"]:  # rows are added in the order of the turns
            numbers = numbers[::-1]
            stacked = stacked[::-1]
        total = Summed(
            numbers.reshape(-1), stacked.reshape(-1, *of_turns.shape[1:]), of_turns.shape
        )
        results[number] = added([init[number], total])
    return [*(results[n] for n in range(count)), *ys]


def _while(eqn: Equation, values: Sequence[Value], context: Context) -> list[Value]:
    """Carries are arrays; rows made inside one turn stay rows."""
    _check_opens(eqn, values, "loop has")
    test = from_jaxpr(eqn.params["cond_jaxpr"])
    body = from_jaxpr(eqn.params["body_jaxpr"])
    num_cond = eqn.params["cond_nconsts"]
    num_body = eqn.params["body_nconsts"]
    arrays = _arrays(
        values, [*test.invars[:num_cond], *body.invars], eqn, "a loop changes or reads it", context
    )
    consts = arrays[num_cond : num_cond + num_body]
    init = arrays[num_cond + num_body :]
    inner = context.within(eqn)

    def is_running(carry: Any) -> Any:
        return run(test, [*arrays[:num_cond], *carry], inner.on_trial())[0]

    def turn(carry: Any) -> Any:
        return _arrays(
            run(body, [*consts, *carry], inner),
            body.invars[num_body:],
            eqn,
            "a loop carries it",
            inner,
        )

    return list(jax.lax.while_loop(is_running, turn, init))


BODIES = {"cond": _cond, "scan": _scan, "while": _while, "optimization_barrier": _barrier}
"""Equations that hold programs, and those of several outputs."""
