"""A least-squares problem of pytrees as one of a vector.

In: a function of pytrees, its arguments, what is free, bounds. Out: a `Problem`: vectors, and the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import Bound
from incrax.derivatives.cuts import Mark, is_mark
from incrax.derivatives.flat import Ends, element_names, ends
from incrax.derivatives.selection import Mirror, select, type_name
from incrax.derivatives.transforms import plain
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.paths import is_within
from incrax.engine.inputs.signature import argument_names
from incrax.fit.messages import (
    SQUARES,
    beside_a_model,
    complex_parameter,
    no_parameters,
    no_residuals,
    outside_bounds,
    unknown_bound,
    wrong_bounds,
    wrong_weights,
)

NUM_SHAPES = 256
"""Shapes of problems that are kept: of a small fit, finding one takes a tenth of the time."""


def kept_or_made(cached: Any, *key: Any) -> Any:
    """What a function under `lru_cache` returns, made anew where a static value of the key cannot be hashed."""
    try:
        return cached(*key)
    except TypeError:
        return cached.__wrapped__(*key)


class ArgumentLayout(NamedTuple):
    """How the arguments of a function are made of a vector and of what is fixed. Hashable."""

    treedef: Any
    numbers: tuple[int, ...]
    """Of the free leaves."""
    is_value: tuple[bool, ...]
    """Of all leaves: whether it is a value for JAX."""
    static: tuple[Any, ...]
    """The leaves that are not, None elsewhere."""
    ends: Ends
    dtypes: tuple[Any, ...]

    def arguments(self, x: Any, others: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments at a vector of shape (n,)."""
        return self.filled(self.free_leaves(x), others)

    def filled(self, free: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with these free leaves, and these others."""
        leaves = list(self.static)
        rest = iter(others)
        for number, is_value in enumerate(self.is_value):
            if is_value and number not in self.numbers:
                leaves[number] = next(rest)
        for number, value in zip(self.numbers, free, strict=True):
            leaves[number] = value
        return jax.tree.unflatten(self.treedef, leaves)[0]

    def free_leaves(self, x: Any) -> list[Any]:
        """A vector as the free leaves."""
        return [each.astype(dtype) for each, dtype in zip(self.ends.split(x), self.dtypes, strict=True)]


class Problem(NamedTuple):
    """Where a search starts, in which bounds, and how it is evaluated."""

    layout: ArgumentLayout
    mirror: Mirror
    x: np.ndarray
    others: tuple[Any, ...]
    lower: np.ndarray
    upper: np.ndarray
    names: tuple[str, ...]
    tree_of: Callable[[list[Any]], Any] | None = None
    """Of bound models: the trainable inputs from their leaves."""

    def tree(self, x: Any) -> Any:
        """A vector in the shape of the first argument if all that is free is part of it; what is fixed as it was."""
        if self.tree_of is not None:
            return self.tree_of(self.layout.free_leaves(x))
        return self.layout.arguments(x, self.others)[0]

    def selected(self, x: Any) -> Any:
        """A vector in the shape of the selection, None where nothing is free."""
        if self.tree_of is not None:
            return self.tree_of(self.layout.free_leaves(x))
        return self.mirror.tree(self.layout.free_leaves(x))


class Shape(NamedTuple):
    """What of a problem the types of the arguments decide."""

    layout: ArgumentLayout
    mirror: Mirror
    paths: tuple[str, ...]
    names: tuple[str, ...]
    other_numbers: tuple[int, ...]
    dtype: Any


def problem(fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any, bounds: Any, *, caller: str = SQUARES) -> Problem:
    """A function of pytrees at example arguments; `caller` is what users called, for messages.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        BoundsError: bounds name nothing free, are no pairs, or exclude the start.
        ParameterTypeError: a free leaf is complex, or none has an element.
    """
    shape, leaves = shaped(caller, fun, args, wrt)
    values = [leaves[number] for number in shape.layout.numbers]
    x = np.concatenate([np.ravel(np.asarray(value)) for value in values], dtype=shape.dtype)
    lower, upper = _Bounds(caller, shape).of(bounds, x)
    others = tuple(leaves[number] for number in shape.other_numbers)
    return Problem(shape.layout, shape.mirror, x, others, lower, upper, shape.names)


def shaped(name: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any) -> tuple[Shape, list[Any]]:
    """The shape of a problem, found once for arguments of the same types, and their leaves without marks.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        ParameterTypeError: a free leaf is complex.
    """
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_mark)
    names = tuple(argument_names(plain(fun), len(args)))
    kinds = tuple(map(type, jax.tree.leaves(wrt)))  # 1 is no True here, although they are equal
    key = (name, names, wrt, kinds, treedef, jax.dtypes.canonicalize_dtype(float), *map(_kind, leaves))
    try:
        shape = _shapes.get(key)
    except TypeError:  # a mask, a mark, or a static value without a hash
        return _shape(name, fun, args, wrt), list(map(_unmarked, leaves))
    if shape is None:
        shape = _shapes[key] = _shape(name, fun, args, wrt)
        while len(_shapes) > NUM_SHAPES:
            _shapes.pop(next(iter(_shapes)), None)
    return shape, list(map(_unmarked, leaves))


_shapes: dict[Any, Shape] = {}


def _kind(leaf: Any) -> Any:
    """What of a leaf decides the shape of a problem: a type, or a static value itself."""
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf.shape, leaf.dtype
    return (type(leaf), leaf) if not is_dynamic(leaf) else ((), jax.dtypes.result_type(leaf))


def _shape(name: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any) -> Shape:
    selection = select(name, fun, wrt, args, {})
    values = selection.values
    for path, value in zip(selection.paths, values, strict=True):
        if jnp.iscomplexobj(value):
            raise complex_parameter(name, path, type_name(value))
    leaves = selection.leaves
    is_value = tuple(is_dynamic(_unmarked(leaf)) for leaf in leaves)
    static = tuple(None if is_one else leaf for is_one, leaf in zip(is_value, leaves, strict=True))
    shapes = ends([np.shape(value) for value in values])
    if not shapes.size:
        raise no_parameters(name, selection.paths)
    dtypes = tuple(np.dtype(jax.dtypes.result_type(value)) for value in values)
    layout = ArgumentLayout(selection.treedef, selection.numbers, is_value, static, shapes, dtypes)
    names = element_names(selection.paths, shapes.shapes)
    chosen = set(selection.numbers)
    others = tuple(number for number, is_one in enumerate(is_value) if is_one and number not in chosen)
    return Shape(layout, selection.mirror, selection.paths, names, others, np.result_type(np.float32, *dtypes))


def problem_of(model: Bound, *, caller: str = SQUARES) -> Problem:
    """A bound model at its present values, within its bounds.

    Raises:
        BindError: nothing is trainable.
        ParameterTypeError: a trainable leaf is complex.
    """
    wrt = model.trained(caller)
    bounds = {path: pair for path, pair in model.bounds.items() if path in wrt}
    found = problem(model.function, model.args, wrt, bounds, caller=caller)
    return found._replace(tree_of=model.shape())


def check_alone(model: Bound, caller: str, args: tuple[Any, ...], wrt: Any, bounds: Any) -> None:
    """Refuse what a bound model says itself.

    Raises:
        BindError: arguments, `wrt` or bounds are given beside the model.
    """
    given = {"arguments": args, "`wrt`": wrt, "`bounds`": bounds}
    named = [name for name, value in given.items() if value not in ((), None)]
    if named:
        raise beside_a_model(caller, named)


def _unmarked(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Mark) else leaf


class _Bounds(NamedTuple):
    """Reads bounds of the free leaves of a caller."""

    caller: str
    shape: Shape

    def of(self, bounds: Any, x: np.ndarray) -> Any:
        """Lower and upper bound of each element."""
        lower = np.full(x.shape, -np.inf, x.dtype)
        upper = np.full(x.shape, np.inf, x.dtype)
        if bounds is None:
            return lower, upper
        if not isinstance(bounds, Mapping):
            raise wrong_bounds(self.caller, repr(bounds), "it is no mapping of paths to pairs")
        for path, pair in bounds.items():
            parts = [k for k, each in enumerate(self.shape.paths) if is_within(each, path)]
            if not parts:
                raise unknown_bound(self.caller, path, self.shape.paths)
            low, high = self._pair(path, pair)
            for part in parts:
                a, b, shape = self.shape.layout.ends.parts()[part]
                lower[a:b] = self._spread(path, low, shape)
                upper[a:b] = self._spread(path, high, shape)
        for name, low, value, high in zip(self.shape.names, lower, x, upper, strict=True):
            if not low <= value <= high and not np.isnan(value):
                raise outside_bounds(self.caller, name, value, low, high)
        return lower, upper

    def _pair(self, path: str, pair: Any) -> tuple[Any, Any]:
        """Lower and upper bound, infinite where None."""
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise wrong_bounds(self.caller, f"{pair!r} for `{path}`", "it is no pair (lower, upper)")
        low = -np.inf if pair[0] is None else pair[0]
        high = np.inf if pair[1] is None else pair[1]
        try:
            is_ordered = np.all(np.asarray(low) < np.asarray(high))
        except (TypeError, ValueError) as error:
            raise wrong_bounds(self.caller, f"{pair!r} for `{path}`", "its parts cannot be compared") from error
        if not is_ordered:
            raise wrong_bounds(self.caller, f"{pair!r} for `{path}`", "the lower bound is not below the upper one")
        return low, high

    def _spread(self, path: str, bound: Any, shape: tuple[int, ...]) -> np.ndarray:
        try:
            return np.broadcast_to(bound, shape).reshape(-1)
        except ValueError as error:
            reason = f"it does not fit the shape {list(shape)}"
            raise wrong_bounds(self.caller, f"{bound!r} for `{path}`", reason) from error


# --- residuals --------------------------------------------------------------------------------------------------------


def weighed_vector(tree: Any, roots: Any, dtype: Any) -> Any:
    """All residuals, times the roots of their weights if there are any, as a vector of real numbers.

    Of a complex residual, real and imaginary part.

    Raises:
        ParameterTypeError: there are none.
    """
    leaves = jax.tree.leaves(tree)
    if not any(np.size(leaf) for leaf in leaves):
        raise no_residuals(repr(tree))
    parts = []
    for root, leaf in zip(roots or [None] * len(leaves), leaves, strict=True):
        flat = jnp.ravel(leaf if root is None else root * leaf)
        parts += [flat.real, flat.imag] if jnp.iscomplexobj(flat) else [flat]
    return jnp.concatenate([part.astype(jnp.promote_types(dtype, _real(part))) for part in parts])


def _real(part: Any) -> Any:
    return part.dtype if jnp.issubdtype(part.dtype, jnp.floating) else jnp.float32


def roots_of_weights(weights: Any, residuals: Any) -> tuple[Any, ...]:
    """The square root of each weight, spread over the residuals, one array per leaf.

    Raises:
        WeightsError: they do not fit the residuals, or one is negative.
    """
    leaves, treedef = jax.tree.flatten(residuals)
    given = jax.tree.leaves(weights)
    if jax.tree.structure(weights) != treedef and len(given) != 1:
        raise wrong_weights(f"the structure {jax.tree.structure(weights)}", f"that of the residuals, {treedef}")
    given = given if len(given) == len(leaves) else given * len(leaves)
    for weight, leaf in zip(given, leaves, strict=True):
        if np.any(~(np.asarray(weight) >= 0)):
            raise wrong_weights("a negative weight or NaN", "none below zero")
        shape = np.shape(weight)
        if len(shape) > len(leaf.shape) or any(map(_is_wider, shape[::-1], leaf.shape[::-1])):
            raise wrong_weights(f"the shape {list(shape)}", f"{list(leaf.shape)}, that of the residuals")
    return tuple(np.broadcast_to(np.sqrt(np.asarray(w)), leaf.shape) for w, leaf in zip(given, leaves, strict=True))


def _is_wider(seen: int, expected: int) -> bool:
    """Whether an axis does not broadcast to one of this length."""
    return seen not in (1, expected)
