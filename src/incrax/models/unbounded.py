"""Bounded inputs as functions of unbounded ones.

In: bounds and transforms by path. Out: for each leaf, the way from unbounded space and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax.errors import BindError, InputValueError
from incrax.models.names import Names
from incrax.models.roles import DATA, FIXED, TRAINABLE

Function = Callable[[Any], Any]


class Transform(NamedTuple):
    """A one-to-one function from unbounded space, its inverse, and log |det dx/du| at u."""

    forward: Function
    inverse: Function
    log_det: Callable[[Any, Any], Any]
    """Of u, and of a mask of the elements that count; None: all."""


class Bounds(NamedTuple):
    """Lower and upper bound of a leaf, arrays of its shape; infinite where there is none."""

    low: np.ndarray
    high: np.ndarray

    def hold(self, path: str, value: Any) -> None:
        """Refuse a value outside.

        Raises:
            InputValueError: some element is; NaN is not.
        """
        value = np.asarray(value)
        is_outside = (value < self.low) | (value > self.high)
        if not is_outside.any():
            return
        at = tuple(np.argwhere(is_outside)[0].tolist())
        name = f"{path}{list(at)}" if at else path
        raise InputValueError(
            f"`{name}` was to be set to {value[at]:.6g}, outside of its bounds "
            f"({self.low[at]:.6g}, {self.high[at]:.6g}). The model is as it was. Set a value "
            "inside, or bind the model with wider bounds."
        )

    def nearest(self, value: Any) -> Any:
        """The nearest value inside."""
        return jnp.clip(value, self.low, self.high).astype(jnp.result_type(value))


def bounds_of(
    names: Names,
    leaves: Sequence[Any],
    roles: Sequence[str],
    given: Any,
    of_elements: Sequence[tuple[str, tuple[int, ...] | None, Any]],
) -> dict[str, Bounds]:
    """The bounds of each leaf that has some: those given by name, then those of single elements as
    (path, index, pair).

    Raises:
        UnknownInputError: a path names nothing.
        BindError: bounds are no pair, do not fit, or bound what is not fitted.
        InputValueError: a value lies outside.
    """
    found: dict[str, Bounds] = {}
    of_leaves = [(path, None, pair) for path, pair in _by_path(names, given, "bounds")]
    for path, index, pair in (*of_leaves, *of_elements):
        for number in _fitted(names, path, roles, "bounds"):
            name = names.paths[number]
            leaf = leaves[number]
            bounds = found.get(name)
            if index is None or bounds is None:
                whole = pair if index is None else (None, None)
                bounds = _bounds_from(path, whole, leaf, np.shape(leaf))
            if index is not None:
                bounds = Bounds(bounds.low.copy(), bounds.high.copy())
                bounds.low[index], bounds.high[index] = _bounds_from(path, pair, leaf, ())
            bounds.hold(name, leaf)
            found[name] = bounds
    return found


def _bounds_from(path: str, pair: Any, leaf: Any, shape: tuple[int, ...]) -> Bounds:
    """Bounds of a leaf in its own type, so that a bound itself lies inside."""
    dtype = float if isinstance(leaf, float) else jax.dtypes.result_type(leaf)
    try:
        if np.issubdtype(dtype, np.complexfloating):
            raise ValueError("complex numbers have no order")
        return bounds_from(pair, shape, dtype)
    except ValueError as error:
        raise wrong_pair("bounds", path, pair, str(error)) from error


def bounds_from(pair: Any, shape: tuple[int, ...], dtype: Any) -> Bounds:
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
        return Bounds(*(np.broadcast_to(each, shape).astype(dtype) for each in (low, high)))
    except ValueError as error:
        raise ValueError(f"it does not fit the shape {list(shape)}") from error


def transforms_of(names: Names, roles: Sequence[str], given: Any) -> dict[str, Transform]:
    """The transform of each leaf that is given one.

    Raises:
        UnknownInputError: a path names nothing.
        BindError: a transform is no pair of functions, or is of what is not fitted.
    """
    found = {}
    for path, pair in _by_path(names, given, "transforms"):
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not is_pair or not all(map(callable, pair)):
            raise wrong_pair(
                "transforms", path, pair, "it is no pair of functions, into the bounds and back"
            )
        for number in _fitted(names, path, roles, "transforms"):
            forward, inverse = pair
            found[names.paths[number]] = Transform(forward, inverse, _log_det_of(forward))
    return found


def _by_path(names: Names, given: Any, option: str) -> list[tuple[str, Any]]:
    """(path, pair), the innermost last."""
    if given is not None and not isinstance(given, Mapping):
        raise wrong_pair(option, "mu", given, "it is no mapping of paths to pairs")
    pairs = [(names.path(name), pair) for name, pair in (given or {}).items()]
    return sorted(pairs, key=lambda each: len(each[0]))


def _fitted(names: Names, path: str, roles: Sequence[str], option: str) -> list[int]:
    """The leaves at a path that are trainable or fixed."""
    numbers = names.numbers(path)
    found = [number for number in numbers if roles[number] in (TRAINABLE, FIXED)]
    if not found:
        raise BindError(
            f"`bind({option}=...)` names `{path}`, whose role is "
            f'"{roles[numbers[0]] if numbers else DATA}"; only what is trainable or fixed has '
            'them. Nothing was bound. Leave it out, or give it the role "trainable".'
        )
    return found


# --- transforms -----------------------------------------------------------------------------------


def transform_into(bounds: Bounds) -> Transform:
    """Elementwise: x = low + e^u, x = high - e^-u, x = low + (high - low) / (1 + e^-u), or x =
    u.
    """
    has_low = np.isfinite(bounds.low)
    has_high = np.isfinite(bounds.high)
    is_above = has_low & ~has_high
    is_below = ~has_low & has_high
    is_between = has_low & has_high
    low = np.where(has_low, bounds.low, 0.0)
    high = np.where(has_high, bounds.high, 1.0)
    width = np.where(is_between, high - low, 1.0)

    def forward(u: Any) -> Any:
        x = jnp.where(is_above, low + jnp.exp(jnp.where(is_above, u, 0)), u)
        x = jnp.where(is_below, high - jnp.exp(jnp.where(is_below, -u, 0)), x)
        return jnp.where(is_between, low + width * jax.nn.sigmoid(u), x).astype(jnp.result_type(u))

    def inverse(x: Any) -> Any:
        u = jnp.where(is_above, jnp.log(jnp.where(is_above, x - low, 1)), x)
        u = jnp.where(is_below, -jnp.log(jnp.where(is_below, high - x, 1)), u)
        above, below = (jnp.where(is_between, each, 1) for each in (x - low, high - x))
        return jnp.where(is_between, jnp.log(above) - jnp.log(below), u).astype(jnp.result_type(x))

    def log_det(u: Any, is_free: Any = None) -> Any:
        slopes = jnp.where(is_above, u, jnp.where(is_below, -u, 0))
        logistic = jnp.log(width) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)
        return jnp.sum(jnp.where(is_between, logistic, slopes), where=is_free)

    return Transform(forward, inverse, log_det)


def _log_det_of(forward: Function) -> Callable[[Any, Any], Any]:
    """Of any transform of an array, by its Jacobian. Cost: n passes and n^3 for n elements."""

    def log_det(u: Any, is_free: Any = None) -> Any:
        matrix = slopes_of(forward, u)
        if is_free is not None:
            chosen = np.flatnonzero(is_free)
            matrix = matrix[np.ix_(chosen, chosen)]
        return jnp.linalg.slogdet(matrix)[1]

    return log_det


def slopes_of(forward: Function, u: Any) -> Any:
    """dx/du of a transform of an array of n elements, shape (n, n)."""
    u = jnp.asarray(u)
    return jax.jacfwd(lambda flat: jnp.ravel(forward(flat.reshape(u.shape))))(u.reshape(-1))


def wrong_pair(option: str, path: str, seen: Any, reason: str) -> BindError:
    """Bounds or a transform that are no pair, or do not fit."""
    example = "(0, None)" if option == "bounds" else "(jnp.exp, jnp.log)"
    return BindError(
        f"`bind({option}=...)` got {seen!r} for `{path}`: {reason}. Nothing was bound. Pass a "
        f"pair: `{option}={{{path!r}: {example}}}`."
    )
