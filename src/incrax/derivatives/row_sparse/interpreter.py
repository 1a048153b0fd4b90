"""The interpreter: a traced program is evaluated on values of which some are rows.

In: a program and its inputs. Out: its outputs, structured where every equation on the way has a
rule. Where one has none, as branches and loops, the value becomes an array there, and that is
written down: a missing rule costs speed, never a result. Bodies of calls are interpreted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Env, Program, Values, from_jaxpr
from incrax.derivatives.row_sparse.rules import RULES, evaluated, folded
from incrax.derivatives.row_sparse.values import (
    DENSE,
    KEPT,
    Context,
    Value,
    dense,
    has_rows,
    is_by_rows,
    is_known,
    is_structured,
)
from incrax.engine.program.constants import constant_of
from incrax.engine.program.simplify import RULED, drop_dead, inline_jits
from incrax.primitives.on_rows import NotByRowsError
from incrax.primitives.table import entry_of


def run(program: Program, values: Values, context: Context) -> list[Value]:
    """The outputs of a program."""
    program = drop_dead(inline_jits(program))
    env: Env = dict(zip(program.constvars, map(jnp.asarray, program.consts), strict=True))
    env.update(zip(program.invars, values, strict=True))
    for eqn in program.eqns:
        inputs = [constant_of(atom, env) for atom in eqn.invars]
        env.update(zip(eqn.outvars, _results(eqn, inputs, context), strict=True))
    return [constant_of(atom, env) for atom in program.outvars]


def _results(eqn: Equation, values: Values, context: Context) -> Values:
    """The outputs of an equation, or of the body that it calls."""
    # Calls with a derivative rule of their own stay closed where they see no rows.
    is_closed = eqn.primitive.name in RULED and not any(map(has_rows, values))
    called = None if is_closed else _jax.called_jaxpr(eqn)
    if called is None:
        return _by_rule(eqn, values, context)
    is_apart = eqn.params.get("differentiated") and eqn.params.get("prevent_cse")
    given = _plain_apart(values, jax.lax.optimization_barrier) if is_apart else values
    return run(from_jaxpr(called), given, context)


def _by_rule(eqn: Equation, values: Values, context: Context) -> Values:
    """The outputs by what is known of the primitive; as arrays, with a line that says why, where
    that is too little.
    """
    name = eqn.primitive.name
    why = f"there is no rule for `{name}`"
    results: list[Value] = []
    try:
        if name == "optimization_barrier":
            results = _plain_apart(values, partial(_jax.apply, eqn))
        elif name in RULES or any(map(is_by_rows, values)):
            results = [evaluated(eqn, values, context)]
    except NotByRowsError as error:
        why = str(error)
    for value in filter(has_rows, results):
        context.note(KEPT, eqn, value)
    if results:
        return results
    if entry_of(eqn).is_elementwise and all(map(is_known, values)):
        return [folded(eqn, values)]
    _note_lost(eqn, values, why, context)
    return _jax.apply(eqn, [context.dense(value, eqn, why) for value in values])


def _note_lost(eqn: Equation, values: Values, why: str, context: Context) -> None:
    """Write down rows that were never made, also inside a loop or a branch."""
    name = eqn.primitive.name
    makes_rows = any(each.primitive.name in SOURCES for each in _jax.with_inner([eqn]))
    if name in SOURCES and name != "pad":
        makes_rows = is_structured(values[0])
    if makes_rows and not any(map(has_rows, values)):
        for var in eqn.outvars:
            if context.is_large(var.aval):
                context.note(DENSE, eqn, var.aval, why)


def _plain_apart(values: Values, barrier: Callable[[list[Any]], Iterable[Any]]) -> list[Value]:
    """Structured values stay what they are, the others are kept from moving, as JAX lowers a
    recomputation.
    """
    plain = iter(barrier([dense(value) for value in values if not is_structured(value)]))
    return [value if is_structured(value) else next(plain) for value in values]


SOURCES = frozenset({"scatter-add", "scatter", "pad", "dynamic_update_slice"})
"""What makes rows of ordinary arrays."""
