"""Lower and upper bounds, and what they hold.

In: bounds by path, as users give them. Out: those of each leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax.errors import BindError, InputValueError
from incrax.models.roles import DATA, FIXED, TRAINABLE


class Box(NamedTuple):
    """Lower and upper bound of each element, of one shape; infinite where there is none.

    Arrays of NumPy or JAX: the same on the host and in a program.
    """

    lower: Any
    upper: Any

    @property
    def is_bounded(self) -> bool:
        """Whether any element has a bound."""
        return bool((np.isfinite(self.lower) | np.isfinite(self.upper)).any())

    def inside(self, x: Any) -> Any:
        """The nearest point within the bounds."""
        return x.clip(self.lower, self.upper)

    def is_pressed(self, x: Any, gradient: Any, noise: Any = 0) -> Any:
        """Which elements lie at a bound that the function falls towards, or is flat but for noise:
        they do not move; nor do those whose bounds leave no room.
        """
        at_lower = (x <= self.lower) & (gradient > -noise)
        at_upper = (x >= self.upper) & (gradient < noise)
        return at_lower | at_upper | (self.lower == self.upper)

    def room(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """How far each element is from the bound that the function falls towards."""
        return np.where(gradient > 0, x - self.lower, self.upper - x)

    def hold(self, path: str, value: Any) -> None:
        """Refuse a value outside.

        Raises:
            InputValueError: some element is; NaN is not.
        """
        value = np.asarray(value)
        is_outside = (value < self.lower) | (value > self.upper)
        if not is_outside.any():
            return
        at = tuple(np.argwhere(is_outside)[0].tolist())
        name = f"{path}{list(at)}" if at else path
        raise InputValueError(
            f"`{name}` was to be set to {value[at]:.6g}, outside of its bounds "
            f"({self.lower[at]:.6g}, {self.upper[at]:.6g}). The model is as it was. Set a value "
            "inside, or bind the model with wider bounds."
        )


def checked_pairs(given: Any) -> Mapping[str, Any]:
    """What users say of the bounds of a model.

    Raises:
        BindError: it is no mapping.
    """
    if given is not None and not isinstance(given, Mapping):
        raise _wrong_pair("mu", given, "it is no mapping of paths to pairs")
    return given or {}


def narrowed(known: Box | None, path: str, index: Any, leaf: Any, pair: Any) -> Box:
    """The bounds of a leaf, with others for all of its elements, or, with an index, for one.

    Raises:
        BindError: they are no pair, or do not fit.
    """
    shape = np.shape(leaf)
    new = _bounds_from(path, pair, leaf, shape if index is None else ())
    if known is None:
        known = Box(*(np.full(shape, end, x.dtype) for end, x in zip(_NOWHERE, new, strict=True)))
    place = ... if index is None else index
    known.lower[place], known.upper[place] = new
    return known


_NOWHERE = (-np.inf, np.inf)


def _bounds_from(path: str, pair: Any, leaf: Any, shape: tuple[int, ...]) -> Box:
    """Bounds of a leaf in its own type, so that a bound itself lies inside."""
    dtype = float if isinstance(leaf, float) else jax.dtypes.result_type(leaf)
    try:
        if np.issubdtype(dtype, np.complexfloating):
            raise ValueError("complex numbers have no order")
        return bounds_from(pair, shape, dtype)
    except ValueError as error:
        raise _wrong_pair(path, pair, str(error)) from error


def bounds_from(pair: Any, shape: tuple[int, ...], dtype: Any) -> Box:
    """The bounds of a leaf by those of users, None for no bound.

    Raises:
        ValueError: with the reason, where they are none.
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError("it is no pair (lower, upper)")
    low = -np.inf if pair[0] is None else pair[0]
    high = np.inf if pair[1] is None else pair[1]
    try:
        is_ordered = np.all(np.asarray(low) < np.asarray(high))
    except (TypeError, ValueError) as error:
        raise ValueError("its parts cannot be compared") from error
    if not is_ordered:
        raise ValueError("the lower bound is not below the upper one")
    try:
        return Box(*(np.broadcast_to(each, shape).astype(dtype) for each in (low, high)))
    except ValueError as error:
        raise ValueError(f"it does not fit the shape {list(shape)}") from error


def check_fitted(path: str, roles: Sequence[str]) -> None:
    """Refuse bounds where nothing has a role that has any.

    Raises:
        BindError: as it says.
    """
    if not {TRAINABLE, FIXED}.intersection(roles):
        raise BindError(
            f"`bind(bounds=...)` names `{path}`, whose role is "
            f'"{roles[0] if roles else DATA}"; only what is trainable or fixed has '
            'them. Nothing was bound. Leave it out, or give it the role "trainable".'
        )


def _wrong_pair(path: str, seen: Any, reason: str) -> BindError:
    """Bounds that are no pair, or do not fit."""
    return BindError(
        f"`bind(bounds=...)` got {seen!r} for `{path}`: {reason}. Nothing was bound. Pass a "
        f"pair: `bounds={{{path!r}: (0, None)}}`."
    )
