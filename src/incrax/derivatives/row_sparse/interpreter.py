"""The interpreter: a traced program is evaluated on values of which some are rows.

In: a program and its inputs. Out: its outputs, structured where every equation on the way has a rule. Where one has
none, the value becomes an array there, and that is written down: a missing rule costs speed, never a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal
from incrax._program import Program, from_jaxpr, read_vars
from incrax.derivatives.row_sparse import control, shapes, windows
from incrax.derivatives.row_sparse.context import DENSE, KEPT, BecomesDense, CarryRead, Context
from incrax.derivatives.row_sparse.elementwise import elementwise, folded, is_sum
from incrax.derivatives.row_sparse.shapes import Rule
from incrax.derivatives.row_sparse.values import (
    Patched,
    Summed,
    Swept,
    Value,
    coalesced,
    has_rows,
    is_sparse,
    is_structured,
    without_addend,
)
from incrax.engine.program.simplify import RULED
from incrax.primitives.table import entry_of

structured_rules: dict[str, Rule] = {
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub"), windows.scatter),
    **dict.fromkeys(("scatter-mul", "scatter-min", "scatter-max"), windows.scatter),
    "gather": windows.gather,
    "pad": windows.pad,
    "dynamic_update_slice": windows.dynamic_update_slice,
    "dynamic_slice": windows.dynamic_slice,
    "slice": windows.static_slice,
    "broadcast_in_dim": shapes.broadcast,
    "reshape": shapes.reshape,
    "transpose": shapes.transpose,
    "squeeze": shapes.within_rows,
    "rev": shapes.within_rows,
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"), shapes.reduction),
    "dot_general": shapes.dot_general,
    "optimization_barrier": shapes.barrier,
    "cond": control.cond,
    "scan": control.scan,
    "while": control.while_loop,
}
"""A rule gets structured inputs; elementwise primitives have one for all, and the default makes arrays."""

ALWAYS = frozenset({"pad", "broadcast_in_dim", "cond", "scan", "while"})
"""Rules that may make rows of arrays."""


def run(program: Program, values: Sequence[Value], context: Context) -> list[Value]:
    """The outputs of a program; the interpreter that `Context.run` gives to rules."""
    env: dict[Any, Value] = dict(zip(program.constvars, map(_constant, program.consts), strict=True))
    env.update(zip(program.invars, values, strict=True))
    read_as_rows = {var for eqn in program.eqns if id(eqn) not in context.sweeps for var in read_vars(eqn)}
    for eqn in program.eqns:
        _coalesce(eqn, env)
        if id(eqn) in context.sweeps:
            _settle(eqn, env, context)
        inputs = [_read(atom, env) for atom in eqn.invars]
        results = _evaluated(eqn, inputs, context)
        for var, value in zip(eqn.outvars, results, strict=True):
            env[var] = without_addend(value) if var in read_as_rows else value
    return [_read(atom, env) for atom in program.outvars]


def _coalesce(eqn: Equation, env: dict[Any, Value]) -> None:
    """Store each row of the inputs once, for this equation and all that follow; not where they are only added."""
    atoms = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
    if is_sum(eqn) and all(is_sparse(env[atom]) for atom in atoms):
        return
    for atom in atoms:
        value = env[atom]
        if isinstance(value, Summed) and value.carry is None:
            env[atom] = coalesced(value)


def _settle(eqn: Equation, env: dict[Any, Value], context: Context) -> None:
    """Write the rows of arrays into them before all rows change, for this equation and all that follow."""
    for atom in eqn.invars:
        value = None if isinstance(atom, Literal) else env[atom]
        if isinstance(value, Patched) and isinstance(value.base, Swept):
            env[atom] = context.dense(value, eqn, "all rows change")


def _constant(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, np.ndarray) and value.ndim else value


def _read(atom: Any, env: dict[Any, Value]) -> Value:
    """A value; literals as NumPy scalars, by which rules know constants."""
    if not isinstance(atom, Literal):
        return env[atom]
    return np.asarray(atom.val, atom.aval.dtype) if atom.aval.shape == () else atom.val


def _evaluated(eqn: Equation, values: list[Value], context: Context) -> Sequence[Value]:
    name = eqn.primitive.name
    called = _opened(eqn, values)
    if called is not None:
        return run(from_jaxpr(called), _protected(eqn, values), context.within(eqn))
    _check_carries(eqn, values)
    why = f"there is no rule for `{name}`"
    is_elementwise = entry_of(eqn).is_elementwise
    rule = elementwise if is_elementwise else structured_rules.get(name)
    if rule is not None and (name in ALWAYS or any(map(is_structured, values))):
        try:
            return _noted(eqn, rule(eqn, values, context), context)
        except BecomesDense as error:
            why = str(error)
    if is_elementwise and not eqn.effects and all(isinstance(x, np.ndarray) and not x.ndim for x in values):
        return [folded(eqn, values)]
    _note_lost(eqn, values, why, context)
    return _jax.apply(eqn, [context.dense(value, eqn, why) for value in values])


def _noted(eqn: Equation, results: list[Value], context: Context) -> list[Value]:
    for value in results:
        if has_rows(value):
            context.note(KEPT, eqn, value)
    return results


def _note_lost(eqn: Equation, values: Sequence[Value], why: str, context: Context) -> None:
    """Write down rows that were never made."""
    aval = eqn.outvars[0].aval if eqn.outvars else None
    name = eqn.primitive.name
    if name not in control.SOURCES or any(map(has_rows, values)) or not context.is_large(aval):
        return
    if name == "pad" or is_structured(values[0]):
        rows = Summed(jnp.zeros(0, int), jnp.zeros((0, *aval.shape[1:]), aval.dtype), aval.shape)  # type: ignore[union-attr]
        context.note(DENSE, eqn, rows, why)


def _check_carries(eqn: Equation, values: Sequence[Value]) -> None:
    """The sum that a loop carries may only be added to."""
    for value in values:
        if isinstance(value, Summed) and value.carry is not None and not is_sum(eqn):
            raise CarryRead(value.carry)


# --- calls --------------------------------------------------------------------------------------------------------


def _opened(eqn: Equation, values: Sequence[Value]) -> Any | None:
    """What a call evaluates; calls with a derivative rule of their own stay closed where they see no rows."""
    if eqn.primitive.name in RULED and not any(map(has_rows, values)):
        return None
    return _jax.called_jaxpr(eqn)


def _protected(eqn: Equation, values: list[Value]) -> list[Value]:
    """Inputs of a recomputation, kept apart from the values that it recomputes, as JAX lowers it."""
    if not (eqn.params.get("differentiated") and eqn.params.get("prevent_cse")):
        return values
    arrays = [n for n, value in enumerate(values) if not is_structured(value)]
    results = list(values)
    for n, value in zip(arrays, jax.lax.optimization_barrier([values[n] for n in arrays]), strict=True):
        results[n] = value
    return results
