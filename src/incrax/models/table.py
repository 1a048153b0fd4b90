"""Inputs as a table for a terminal."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from incrax._console import as_text
from incrax.derivatives.selection import type_name
from incrax.models.inputs import Inputs
from incrax.models.roles import is_floating


def shown(inputs: Inputs) -> str:
    """Each leaf with its role, its value or type, and its bounds."""
    table = Table(*("input", "role", "value", "bounds"))
    for path, role, leaf in zip(inputs.names.paths, inputs.roles, inputs.leaves, strict=True):
        bounds = inputs.bounds.get(path)
        value = f"{leaf:.6g}" if is_floating(leaf) and np.shape(leaf) == () else type_name(leaf)
        mask = inputs.masks.get(path)
        table.add_row(
            path,
            role if mask is None else f"{role} ({mask.sum()} of {mask.size})",
            value,
            "" if bounds is None else f"{_range(bounds.low)} to {_range(bounds.high)}",
        )
    return as_text(table)


def _range(bound: np.ndarray) -> str:
    if not bound.size:
        return "-"
    low = bound.min()
    high = bound.max()
    return f"{low:.6g}" if low == high else f"({low:.6g} ... {high:.6g})"
