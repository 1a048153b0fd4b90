"""Whether an encoder treats each row by itself.

In: an encoder, parameters, rows. Out: nothing, or `MixedRowsError`. Two traces tell for what has a rule; for what has
none, a few rows are encoded with and without others beside them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from incrax._errors import MixedRowsError
from incrax._held_errors import mixing_encoder
from incrax._jax import Var
from incrax.facts.program import trace
from incrax.facts.rows import compare_rows
from incrax.facts.simplify import drop_dead, inline_with_lines, run_passes
from incrax.running.leaves import is_dynamic

NUM_TRACED = (5, 7)
"""Rows of the two traces that are compared."""
NUM_TRIED = 4
"""Rows that are encoded, half of them also without the other half."""


def check_row_by_row(encoder: Any, params: Any, data: tuple[Any, ...]) -> None:
    """Refuse an encoder for which a row's representation depends on other rows; `data` are rows, and keys if any.

    Raises:
        MixedRowsError: it does.

    Cost: two traces; for an encoder with primitives that have no rule, such as convolutions, also its evaluation on
        six rows.
    """
    if not _is_told(encoder, params, data):
        _try(encoder, params, data)


def _is_told(encoder: Any, params: Any, data: tuple[Any, ...]) -> bool:
    """Whether the traces tell that each row is treated by itself."""
    leaves, treedef = jax.tree.flatten(params)
    values = [x for x in leaves if is_dynamic(x)]

    def encode(values: Any, data: Any) -> Any:
        rest = iter(values)
        whole = jax.tree.unflatten(treedef, [next(rest) if is_dynamic(x) else x for x in leaves])
        return encoder(whole, *data)

    def sized(num_rows: int) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype), data)

    low, high = NUM_TRACED
    try:
        programs = [run_passes(trace(encode, values, sized(n)), (inline_with_lines, drop_dead)) for n in NUM_TRACED]
        found = compare_rows(programs[0], programs[1], low, high)
    except MixedRowsError:
        return False
    outputs = programs[0].outvars
    return (
        not found.reductions
        and not found.places
        and all(isinstance(v, Var) and found.axes.get(v) == 0 for v in outputs)
    )


def _try(encoder: Any, params: Any, data: tuple[Any, ...]) -> None:
    num_rows = jax.tree.leaves(data)[0].shape[0]
    if num_rows < 2:
        return
    many = min(num_rows, NUM_TRIED)
    few = (many + 1) // 2
    encode = jax.jit(lambda data: jax.tree.leaves(encoder(params, *data)))
    found = [encode(_first(data, n)) for n in (many, few)]
    for number, (x, y) in enumerate(zip(*found, strict=True)):
        if x.shape[:1] != (many,):
            continue  # no rows at all: the encoding says so
        difference = _difference(np.asarray(x)[:few], np.asarray(y))
        if difference:
            raise mixing_encoder(f"result {number} for {few} rows differs by {difference:.2g} with {many} rows")


def _first(data: Any, num_rows: int) -> Any:
    return jax.tree.map(lambda x: x[:num_rows], data)


def _difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference, relative to the largest element; 0 where it is rounding."""
    if x.shape != y.shape:
        return float("inf")
    wide = np.result_type(x, np.float32)
    x, y = x.astype(wide), y.astype(wide)
    scale = np.abs(y).max(initial=0.0, where=np.isfinite(y)) or 1.0
    different = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y)) / scale
    largest = float(np.nan_to_num(different, nan=np.inf).max(initial=0.0))
    return largest if largest > np.sqrt(np.finfo(wide).eps) else 0.0
