"""Inputs as a table."""

from __future__ import annotations

import numpy as np

from incrax._table import Table
from incrax.derivatives.selection import type_name
from incrax.models.inputs import Inputs
from incrax.models.roles import is_floating


def table_of(inputs: Inputs) -> Table:
    """Each leaf with its role, its value or type, and its bounds."""
    rows = []
    for path, role, leaf in zip(inputs.names.paths, inputs.roles, inputs.leaves, strict=True):
        bounds = inputs.bounds.get(path)
        value = f"{leaf:.6g}" if is_floating(leaf) and np.shape(leaf) == () else type_name(leaf)
        mask = inputs.masks.get(path)
        masked = role if mask is None else f"{role} ({mask.sum()} of {mask.size})"
        limits = "" if bounds is None else f"{_range(bounds.low)} to {_range(bounds.high)}"
        rows.append((path, masked, value, limits))
    return Table("", ("input", "role", "value", "bounds"), rows)


def _range(bound: np.ndarray) -> str:
    if not bound.size:
        return "-"
    low = bound.min()
    high = bound.max()
    return f"{low:.6g}" if low == high else f"({low:.6g} ... {high:.6g})"
