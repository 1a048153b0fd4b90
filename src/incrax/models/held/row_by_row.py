"""Whether an encoder treats each row by itself.

In: an encoder, parameters, rows. Out: nothing, or `MixedRowsError`. Two traces tell for what has a
rule: that rows are mixed, or that they are not. For what has none, a few rows are encoded in two
orders and each alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._jax import Equation, Var, is_key_dtype, source_line
from incrax._program import Program, trace
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.program.simplify import drop_dead, inline_with_lines, run_passes
from incrax.errors import MixedRowsError
from incrax.models.held.messages import mixing_encoder
from incrax.primitives.entry import Kind
from incrax.primitives.row_axis import Reduction, row_verdict
from incrax.primitives.table import entry_of
from incrax.rows.axis import FIRST, compare_rows

NUM_TRACED = (5, 7)
"""Rows of the two traces that are compared."""
NUM_TRIED = 6
"""Rows that are encoded, in two orders and each alone."""
NUM_SEEN = 64
"""Rows among which those with other values are looked for."""


def check_row_by_row(
    encoder: Any, params: Any, data: tuple[Any, ...], *, has_values: bool = True
) -> None:
    """Refuse an encoder for which a row's representation depends on other rows; `data` are rows,
    and keys if any.

    Without values only the traces tell.

    Raises:
        MixedRowsError: it does.

    Cost: two traces; for an encoder with primitives that have no rule, such as convolutions, also
        its evaluation on eighteen rows.
    """
    if not _is_told(encoder, params, data) and has_values:
        _try(encoder, params, data)


def _is_told(encoder: Any, params: Any, data: tuple[Any, ...]) -> bool:
    """Whether the traces tell that each row is treated by itself; `MixedRowsError` where they tell
    that it is not.
    """
    low, high = NUM_TRACED
    first, second = _traces(encoder, params, data)
    if any(v.aval.shape[:1] != (low,) for v in first.outvars):
        return False  # no rows at all: the encoding says so
    reason = _mixture(first, second)
    if reason:
        raise mixing_encoder(reason)
    try:
        found = compare_rows(first, second, low, high)
    except (
        MixedRowsError,
        jax.errors.TracerArrayConversionError,
    ):  # no rule, or a constant without a value
        return False
    is_kept = all(reduction is FIRST for reduction in found.reductions.values())
    return (
        is_kept
        and not found.places
        and all(isinstance(v, Var) and found.axes.get(v) == 0 for v in first.outvars)
    )


def _traces(encoder: Any, params: Any, data: tuple[Any, ...]) -> list[Program]:
    leaves, treedef = jax.tree.flatten(params)
    values = [x for x in leaves if is_dynamic(x)]

    def encode(values: Any, data: Any) -> Any:
        rest = iter(values)
        whole = jax.tree.unflatten(treedef, [next(rest) if is_dynamic(x) else x for x in leaves])
        return encoder(whole, *data)

    def sized(num_rows: int) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype), data)

    with jax.disable_jit(False):
        try:
            return [
                run_passes(trace(encode, values, sized(n)), (inline_with_lines, drop_dead))
                for n in NUM_TRACED
            ]
        except Exception as error:
            jax.eval_shape(encode, values, data)  # raises what is wrong for any number of rows
            raise mixing_encoder(
                f"it cannot be traced for another number of rows: {type(error).__name__}"
            ) from error


# --- what the rules tell --------------------------------------------------------------------------


def _mixture(program: Program, other: Program) -> str:
    """What mixes rows, by the rules; nothing where they do not tell."""
    for eqn, other_eqn in zip(program.eqns, other.eqns, strict=False):
        if eqn.primitive is not other_eqn.primitive:
            break
        reason = _reason(eqn, other_eqn)
        if reason:
            return f"`{eqn.primitive.name}` at {source_line(eqn)} {reason}"
    return ""


def _reason(eqn: Equation, other: Equation) -> str:
    ins = [_row_axes(a, b) for a, b in zip(eqn.invars, other.invars, strict=False)]
    outs = [_row_axes(a, b) for a, b in zip(eqn.outvars, other.outvars, strict=False)]
    entry = entry_of(eqn)
    if entry.draws and not ins[0] and any(outs):  # the key comes first
        return (
            "draws the random numbers of all rows from one key (take `keys`, one a row, as third "
            "argument)"
        )
    if not any((*ins, *outs)) or any(len(axes) > 1 or -1 in axes for axes in ins):
        return ""
    first_ins, first_outs = ([axes[0] if axes else None for axes in group] for group in (ins, outs))
    verdict = row_verdict(eqn, first_ins, first_outs)
    if isinstance(verdict, Reduction):
        return "reduces over the rows"
    return verdict.mixes if isinstance(verdict, Kind) and verdict.is_final else ""


def _row_axes(atom: Any, other: Any) -> list[int]:
    """Axes that have one entry a row; -1 for one of another length that depends on the number of
    rows.
    """
    pairs = list(zip(np.shape(atom.aval), np.shape(other.aval), strict=False))
    return [d if pair == NUM_TRACED else -1 for d, pair in enumerate(pairs) if pair[0] != pair[1]]


# --- what a trial tells ---------------------------------------------------------------------------


def _try(encoder: Any, params: Any, data: tuple[Any, ...]) -> None:
    """Encode some rows in two orders, and each alone: their representations must be the same."""
    chosen = _chosen(data)
    count = len(chosen)
    if count < 2:
        return
    encode = jax.jit(lambda data: [_number(x) for x in jax.tree.leaves(encoder(params, *data))])
    found = encode(_rows(data, chosen))
    if any(x.shape[:1] != (count,) for x in found):
        return  # no rows at all: the encoding says so
    turned = encode(_rows(data, np.roll(chosen, 1)))
    alone = [encode(_rows(data, chosen[k : k + 1])) for k in range(count)]
    for number, x in enumerate(found):
        _compare(
            f"result {number} for {count} rows",
            "in another order",
            x,
            np.roll(turned[number], -1, axis=0),
        )
        for k, single in enumerate(alone):
            _compare(
                f"result {number} for row {chosen[k]}",
                f"beside {count - 1} others",
                x[k : k + 1],
                single[number],
            )


def _number(x: Any) -> Any:
    return jax.random.key_data(x) if is_key_dtype(jnp.asarray(x).dtype) else x


def _compare(what: str, where: str, x: Any, y: Any) -> None:
    difference = _difference(x, y)
    if difference:
        raise mixing_encoder(f"{what} differs by {difference:.2g} {where}")


def _chosen(data: tuple[Any, ...]) -> np.ndarray:
    """Numbers of rows from anywhere, the last one among them, in no order, if possible of rows with
    other values.
    """
    num_rows = jax.tree.leaves(data)[0].shape[0]
    random = np.random.default_rng(num_rows)
    seen = random.choice(num_rows, min(num_rows, NUM_SEEN), replace=False)
    seen = np.concatenate([[num_rows - 1], seen[seen != num_rows - 1]])
    values = [
        np.asarray(x) for x in jax.tree.leaves(_rows(data[0], seen)) if not is_key_dtype(x.dtype)
    ]
    contents = [b"".join(x[k].tobytes() for x in values) for k in range(len(seen))]
    firsts = [k for k, content in enumerate(contents) if contents.index(content) == k]
    rest = [k for k in range(len(seen)) if k not in firsts]
    return random.permutation(seen[[*firsts, *rest][:NUM_TRIED]])


def _rows(data: Any, numbers: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[numbers], data)


def _difference(x: Any, y: Any) -> float:
    """The largest difference, relative to the largest element; 0 where it is rounding."""
    if x.shape != y.shape:
        return float("inf")
    dtype = x.dtype
    x = np.asarray(x)
    y = np.asarray(y)
    wide = np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else np.float64
    x = x.astype(wide)
    y = y.astype(wide)
    scale = np.abs(y).max(initial=0.0, where=np.isfinite(y)) or 1.0
    different = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y)) / scale
    largest = float(np.nan_to_num(different, nan=np.inf).max(initial=0.0))
    return (
        largest
        if largest > np.sqrt(jnp.finfo(dtype).eps if jnp.issubdtype(dtype, jnp.inexact) else 0.0)
        else 0.0
    )
