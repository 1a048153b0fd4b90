"""The interpreter: a traced program is evaluated on values of which some are rows.

In: a program and its inputs. Out: its outputs, structured where every equation on the way has a
rule. Where one has none, as branches and loops, the value becomes an array there, and that is
written down: a missing rule costs speed, never a result. Bodies of calls are interpreted.
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
from incrax._program import Program, Values, from_jaxpr
from incrax.control_flow.loops.bodies import merged, parted
from incrax.derivatives.row_sparse.rules import MAKERS, evaluated, folded, is_sum_of_rows
from incrax.derivatives.row_sparse.values import (
    DENSE,
    KEPT,
    BecomesDense,
    Context,
    Value,
    ValueTable,
    has_rows,
    is_structured,
    zeros,
)
from incrax.engine.program.simplify import RULED, drop_dead, inline_jits
from incrax.primitives.table import entry_of


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
        if name == "optimization_barrier":
            results = _plain_apart(values, partial(_jax.apply, eqn))
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
    """Write down rows that were never made, also inside a loop or a branch."""
    name = eqn.primitive.name
    makes_rows = any(each.primitive.name in SOURCES for each in _jax.with_inner([eqn]))
    if name in SOURCES and name != "pad":
        makes_rows = is_structured(values[0])
    if makes_rows and not any(map(has_rows, values)):
        for var in eqn.outvars:
            if context.is_large(var.aval):
                context.note(DENSE, eqn, zeros(var.aval), why)


def _plain_apart(values: Values, barrier: Callable[[list[Any]], Sequence[Any]]) -> list[Value]:
    """Structured values stay what they are, the others are kept from moving, as JAX lowers a
    recomputation.
    """
    is_held = list(map(is_structured, values))
    held, plain = parted(is_held, values)
    return merged(is_held, held, barrier(plain))


SOURCES = frozenset({"scatter-add", "scatter", "pad", "dynamic_update_slice"})
"""What makes rows of ordinary arrays."""


def typed(value: Any, aval: Any) -> Any:
    """The value, an array, with the weak type of `aval`."""
    if _jax.is_key_dtype(aval.dtype):
        return value
    return _jax.typed_as(jax.lax.convert_element_type(value, aval.dtype), aval)
