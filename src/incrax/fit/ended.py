"""What a method is given and what it hands back.

In: what users asked for. Out: `Settings` for a method, `Ended` of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Settings(NamedTuple):
    """What users asked of a method."""

    errordef: float
    tolerance: float | None
    """None: the method's default."""
    max_calls: int
    options: Mapping[str, Any]
    """Of the method alone."""


class Ended(NamedTuple):
    """The end of a search by its method's own account."""

    x: np.ndarray
    is_done: bool
    message: str
    metric: np.ndarray | None = None
    """An estimate of the Hessian at the end, shape (n, n), where a method has one that can be relied on."""
    is_limited: bool = False
    """Whether a limit of steps of the method ended it."""
    num_steps: int | None = None
