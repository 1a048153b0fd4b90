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
from incrax._jax import Equation, Literal, Var
from incrax.primitives.row_axis import Reduction
from incrax.rows.axis import RowProgram
from incrax.rows.phases import Phase

FAN_IN = 64
"""Partial results that one program combines; more are combined in groups first."""

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
    """What changes nothing in a reduction."""
    if kind in ("max", "min"):
        if jnp.issubdtype(dtype, jnp.floating):
            return np.asarray(-np.inf if kind == "max" else np.inf, dtype)
        if np.dtype(dtype) == np.dtype(bool):
            return np.asarray(kind == "min", dtype)
        info = np.iinfo(dtype)
        return np.asarray(info.min if kind == "max" else info.max, dtype)
    if kind == "and":
        return (
            np.asarray(True, dtype)
            if np.dtype(dtype) == np.dtype(bool)
            else np.asarray(-1).astype(dtype)
        )
    return np.asarray(1 if kind == "prod" else 0, dtype)


# --- one chunk ------------------------------------------------------------------------------------


def chunk_function(rows: RowProgram, phase: Phase, *, is_padded: bool) -> Callable[..., list[Any]]:
    """The function (rows..., [number of rows], reads...) -> reductions, per-row results, of one
    chunk.
    """
    program = rows.program
    part = phase.chunk
    num_rows = rows.num_row_inputs
    names = [*program.invars[:num_rows], *part.reads]

    def run(*inputs: Any) -> list[Any]:
        count = inputs[num_rows] if is_padded else None
        values = [*inputs[:num_rows], *inputs[num_rows + is_padded :]]
        env = {
            **dict(zip(program.constvars, program.consts, strict=True)),
            **dict(zip(names, values, strict=True)),
        }
        for eqn in part.eqns:
            found = next((rows.reductions[v] for v in eqn.outvars if v in rows.reductions), None)
            _jax.evaluate([eqn if found is None else _guarded(rows, eqn, found, count, env)], env)
        return [_jax.read(var, env) for var in part.targets]

    return run


def _guarded(
    rows: RowProgram, eqn: Equation, reduction: Reduction, count: Any | None, env: dict[Var, Any]
) -> Equation:
    """The equation with padding masked by the identity, and started from it; new inputs are entered
    in `env`.
    """
    atoms = list(eqn.invars)
    for number in reduction.masked if count is not None else ():
        atoms[number] = _jax.new_var(atoms[number].aval)
        env[atoms[number]] = _masked(
            _jax.read(eqn.invars[number], env), rows.axes[eqn.invars[number]], reduction, count
        )
    if reduction.start is not None:
        aval = atoms[reduction.start].aval
        atoms[reduction.start] = start = _jax.new_var(aval)
        env[start] = jnp.full(aval.shape, identity(reduction.kind, aval.dtype))
    return eqn.replace(invars=atoms)


def _masked(x: Any, axis: int, reduction: Reduction, count: Any) -> Any:
    is_row = jax.lax.broadcasted_iota(np.dtype(np.int32), x.shape, axis) < count
    return jnp.where(is_row, x, identity(reduction.kind, x.dtype))


# --- all chunks -----------------------------------------------------------------------------------


def combine_in_groups(
    kinds: tuple[Reduction, ...], results: Sequence[list[Any]], limit: int = FAN_IN
) -> Sequence[Sequence[Any]]:
    """Partial results, a column per reduction, with neighbours combined until there are no more
    than the limit.
    """
    columns: Sequence[Sequence[Any]] = [[each[k] for each in results] for k in range(len(kinds))]
    while columns and len(columns[0]) > limit:
        starts = range(0, len(columns[0]), FAN_IN)
        groups = [
            _combine_group(kinds, *filled([c[i : i + FAN_IN] for c in columns])) for i in starts
        ]
        columns = [list(column) for column in zip(*groups, strict=True)]
    return columns


def combine_all(kinds: tuple[Reduction, ...], results: Sequence[list[Any]]) -> list[Any]:
    """One partial result per reduction."""
    return [column[0] for column in combine_in_groups(kinds, results, 1)]


def filled(columns: Sequence[Sequence[Any]]) -> tuple[np.int32, list[list[Any]]]:
    """How many partial results there are, and as many as the next power of two, the first one
    repeated.
    """
    count = len(columns[0]) if columns else 0
    capacity = 1 << (count - 1).bit_length()
    return np.int32(count), [[*column, *[column[0]] * (capacity - count)] for column in columns]


def _combine_partials(
    kinds: Sequence[Reduction], count: Any, columns: Sequence[Sequence[Any]]
) -> list[Any]:
    """Reduce the first `count` of each column, in their order."""
    return [
        _combined(found.kind, count, parts) for found, parts in zip(kinds, columns, strict=True)
    ]


_combine_group = jax.jit(_combine_partials, static_argnums=0)


def _combined(kind: str, count: Any, parts: Sequence[Any]) -> Any:
    if kind == "first" or len(parts) == 1:
        return parts[0]
    stack = jnp.stack(list(parts))
    is_there = jax.lax.broadcasted_iota(np.dtype(np.int32), stack.shape, 0) < count
    return _combine[kind](jnp.where(is_there, stack, identity(kind, stack.dtype)), axis=0).astype(
        stack.dtype
    )


def rest_function(
    rows: RowProgram, phase: Phase, eqns: Sequence[Equation]
) -> Callable[..., list[Any]]:
    """The function (count, partial results, reads) -> targets: combine, then all that follows from
    the reductions.

    `eqns` are those of the rest, as they are to be evaluated.
    """
    program = rows.program
    part = phase.rest

    def run(count: Any, partials: Sequence[Sequence[Any]], reads: Sequence[Any]) -> list[Any]:
        env: dict[Var, Any] = dict(zip(program.constvars, program.consts, strict=True))
        env.update(zip(part.reads, reads, strict=True))
        total = dict(
            zip(phase.partials, _combine_partials(phase.kinds, count, partials), strict=True)
        )
        env.update({var: _weak(x, var) for var, x in total.items()})
        for eqn in eqns:
            if eqn.outvars[0] in total:
                _start(eqn, rows.reductions[eqn.outvars[0]], env)
            else:
                _jax.evaluate([eqn], env)
        return [_jax.read(var, env) for var in part.targets]

    return run


def _weak(x: Any, var: Var) -> Any:
    return _jax.as_weak(x) if getattr(var.aval, "weak_type", False) else x


def _start(eqn: Equation, reduction: Reduction, env: dict[Var, Any]) -> None:
    """Add what a reduction starts from to what the chunks gave."""
    assert reduction.start is not None
    atom = eqn.invars[reduction.start]
    var = eqn.outvars[0]
    first = jnp.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else env[atom]
    env[var] = _combined(reduction.kind, 2, [first, env[var]])
