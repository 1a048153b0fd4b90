"""Programs of a phase as functions: of one chunk, and of the partial results of all chunks.

In: a `RowProgram` and a `Phase`. Out: functions of arrays, to be traced or compiled. It must not
know chunks or stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Values
from incrax.primitives.row_axis import Reduction
from incrax.rows.axis import IDEMPOTENT
from incrax.rows.phases import Phase, RowProgram

_combine: dict[str, Callable[..., Any]] = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
    "and": jnp.bitwise_and.reduce,
    "or": jnp.bitwise_or.reduce,
    "xor": jnp.bitwise_xor.reduce,
}


def identity(kind: str, dtype: Any) -> Any:
    """What changes nothing in a sum, a product, or xor."""
    return np.asarray(int(kind == "prod"), dtype)


# --- one chunk ------------------------------------------------------------------------------------


def chunk_function(
    rows: RowProgram,
    phase: Phase,
    eqns: Sequence[Equation],
    *,
    is_padded: bool,
) -> Callable[..., list[Any]]:
    """The function (rows..., [number of rows], reads...) -> reductions, per-row results, of one
    chunk; `eqns` are those of its capacity.
    """
    num_rows = rows.num_row_inputs
    names = [*rows.program.invars[:num_rows], *phase.chunk.reads]

    def run(*inputs: Any) -> list[Any]:
        count = inputs[num_rows] if is_padded else None
        values = [*inputs[:num_rows], *inputs[num_rows + is_padded :]]
        env = _constants(rows) | dict(phase.assumed) | dict(zip(names, values, strict=True))
        for eqn in (eqns[number] for number in phase.chunk.eqns):
            reduction = rows.reduction_of(eqn)
            if reduction is None:
                _jax.evaluate([eqn], env)
            else:
                operands = _guarded(rows, eqn, reduction, count, env)
                env.update(zip(eqn.outvars, _jax.apply(eqn, operands), strict=True))
        return [env[var] for var in phase.chunk.targets]

    return run


def _constants(rows: RowProgram) -> dict[Var, Any]:
    return dict(zip(rows.program.constvars, rows.program.consts, strict=True))


def _guarded(
    rows: RowProgram, eqn: Equation, reduction: Reduction, count: Any | None, env: dict[Var, Any]
) -> list[Any]:
    """The operands with padding masked by the identity, and the reduction started from it."""
    operands = []
    for number, atom in enumerate(eqn.invars):
        aval: Any = atom.aval
        if number == reduction.start:
            x = jnp.full(aval.shape, identity(reduction.kind, aval.dtype))
        else:
            x = _jax.read(atom, env)
            if number in reduction.masked and count is not None and isinstance(atom, Var):
                x = _masked(x, rows.axes[atom], reduction, count)
        operands.append(x)
    return operands


def _masked(x: Any, axis: int, reduction: Reduction, count: Any) -> Any:
    is_row = jax.lax.broadcasted_iota(np.dtype(np.int32), x.shape, axis) < count
    return jnp.where(is_row, x, identity(reduction.kind, x.dtype))


# --- several chunks -------------------------------------------------------------------------------


def combine_all(kinds: tuple[Reduction, ...], results: Sequence[list[Any]]) -> list[Any]:
    """One partial result per reduction."""
    return _combine_together(kinds, *filled(kinds, results))


def filled(
    kinds: Sequence[Reduction], results: Sequence[list[Any]]
) -> tuple[np.int32, list[list[Any]]]:
    """How many partial results there are, and a column of them per reduction: as many as the next
    power of two, the first one repeated.
    """
    extra = (1 << (len(results) - 1).bit_length()) - len(results)
    whole = [*results, *[results[0]] * extra]
    return np.int32(len(results)), [[each[k] for each in whole] for k in range(len(kinds))]


def _combine_partials(
    kinds: Sequence[Reduction], count: Any, columns: Sequence[Values]
) -> list[Any]:
    """Reduce the first `count` of each column, in their order."""
    pairs = zip(kinds, columns, strict=True)
    return [_combined(reduction.kind, count, parts) for reduction, parts in pairs]


_combine_together = jax.jit(_combine_partials, static_argnums=0)


def _combined(kind: str, count: Any, parts: Values) -> Any:
    if kind == "first" or len(parts) == 1:
        return parts[0]
    stack = jnp.stack(list(parts))
    if kind not in IDEMPOTENT:
        is_there = jax.lax.broadcasted_iota(np.dtype(np.int32), stack.shape, 0) < count
        stack = jnp.where(is_there, stack, identity(kind, stack.dtype))
    return _combine[kind](stack, axis=0).astype(stack.dtype)


def rest_function(
    rows: RowProgram, phase: Phase, eqns: Sequence[Equation]
) -> Callable[..., list[Any]]:
    """The function (count, partial results, scales, reads) -> targets: combine, multiply by the
    scales if there are any, then all that follows from the reductions.

    `eqns` are those of the rest, as they are to be evaluated.
    """

    def run(count: Any, partials: Sequence[Values], scales: Any, reads: Values) -> list[Any]:
        env = _constants(rows) | dict(zip(phase.rest.reads, reads, strict=True))
        totals = _combine_partials(phase.kinds, count, partials)
        for k, (var, total) in enumerate(zip(phase.partials, totals, strict=True)):
            x = total * scales[k].astype(total.dtype) if phase.is_scaled(k) else total
            env[var] = _jax.typed_as(x, var.aval)
        for eqn in eqns:
            var = eqn.outvars[0]
            if var in phase.partials:
                env[var] = _started(eqn, rows.reductions[var], env)
            else:
                _jax.evaluate([eqn], env)
        return [env[var] for var in phase.rest.targets]

    return run


def _started(eqn: Equation, reduction: Reduction, env: dict[Var, Any]) -> Any:
    """What a reduction starts from, and what the chunks gave."""
    assert reduction.start is not None
    atom: Any = eqn.invars[reduction.start]
    first = jnp.asarray(_jax.read(atom, env), atom.aval.dtype)
    return _combined(reduction.kind, 2, [first, env[eqn.outvars[0]]])
