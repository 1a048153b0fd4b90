"""Bounds of the elements of a vector, and what they hold.

Arrays of NumPy or JAX: the same on the host and in a program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Box(NamedTuple):
    """Lower and upper bound of each element, shape (n,) each; infinite where there is none."""

    lower: Any
    upper: Any

    @property
    def is_bounded(self) -> bool:
        """Whether any element has a bound."""
        return bool(np.any(np.isfinite(self.lower) | np.isfinite(self.upper)))

    def inside(self, x: Any) -> Any:
        """The nearest point within the bounds."""
        return x.clip(self.lower, self.upper)

    def is_pressed(self, x: Any, gradient: Any) -> Any:
        """Which elements lie at a bound that the function falls towards: they do not move; nor do
        those whose bounds leave no room.
        """
        at_lower = (x <= self.lower) & (gradient > 0)
        at_upper = (x >= self.upper) & (gradient < 0)
        return at_lower | at_upper | (self.lower == self.upper)

    def room(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """How far each element is from the bound that the function falls towards."""
        return np.where(gradient > 0, x - self.lower, self.upper - x)
