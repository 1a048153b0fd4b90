"""The values of a model's inputs.

In: values by name. Out: leaves, each with a role, within bounds. Invariants: a change that is
refused changes nothing; `masks` has the leaves that are trainable and of which some elements, but
not all, are fixed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from incrax.derivatives.flat import FreeElements, element_names, ends
from incrax.derivatives.selection import type_name
from incrax.engine.inputs.leaves import descriptor, frozen, has_tracer, is_dynamic
from incrax.engine.inputs.paths import is_within
from incrax.engine.inputs.row_updates import at
from incrax.errors import BindError, InputValueError, UnknownInputError
from incrax.models.bounds import Bounds, bounds_of
from incrax.models.modules import Opened, opened, unwrapped
from incrax.models.names import Names, names_of, parts_of, with_part
from incrax.models.roles import (
    DATA,
    FIXED,
    TRAINABLE,
    Roles,
    as_parameter,
    as_was,
    check_role,
    check_value,
    fitted,
    roles_of,
)

Watcher = Callable[[tuple[str, ...]], None]

_ELEMENT = re.compile(r"^(?P<path>.+)\[(?P<index>-?\d+(, *-?\d+)*)\]$")
"""The name of an element of an array: `theta[3]`, `theta[0, 1]`."""


class Inputs:
    """Inputs by name, their leaves in order, and what is known of each leaf by its path."""

    def __init__(self, given: Mapping[str, Any], roles: Roles, bounds: Any) -> None:
        """See `bind`."""
        modules = {name: opened(each) for name, each in given.items()}
        self.opened: dict[str, Opened] = {name: each for name, each in modules.items() if each}
        trees = {**given, **{name: each.tree for name, each in self.opened.items()}}
        self.names: Names = names_of(trees)
        self.leaves: list[Any] = jax.tree.leaves(tuple(trees.values()))
        roles, of_elements = self._split(roles)
        self.roles: tuple[str, ...] = roles_of(self.names, self.leaves, roles, self._own_roles())
        self.masks: dict[str, np.ndarray] = {}
        self.leaves = list(map(as_parameter, self.leaves, self.roles))
        bounds, pairs = self._split(bounds)
        places = [(*self._place(name), pair) for name, pair in pairs.items()]
        self.bounds: dict[str, Bounds] = bounds_of(
            self.names, self.leaves, self.roles, bounds, places
        )
        self.leaves = list(map(_held, self.names.paths, self.leaves, self.roles))
        self.watchers: list[Watcher] = []
        for name, role in of_elements.items():
            self.set_role(name, role)

    @property
    def args(self) -> tuple[Any, ...]:
        """The inputs in order, modules as trees."""
        return jax.tree.unflatten(self.names.treedef, self.leaves)

    @property
    def types(self) -> tuple[Any, Any]:
        """The types of the leaves, or a static leaf itself, and the structure."""
        types = [descriptor(leaf) if is_dynamic(leaf) else leaf for leaf in self.leaves]
        return types, self.names.treedef

    @property
    def trees(self) -> dict[str, Any]:
        """The same by name."""
        return dict(zip(self.names.inputs, self.args, strict=True))

    def numbers(self, role: str) -> list[int]:
        """The leaves with this role."""
        return [number for number, each in enumerate(self.roles) if each == role]

    def leaves_of(self, role: str) -> list[Any]:
        """Their values."""
        return [self.leaves[number] for number in self.numbers(role)]

    def with_leaves(self, role: str, values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """All leaves, with other values for those of a role."""
        return replaced(leaves, self.numbers(role), values)

    def paths(self, role: str) -> tuple[str, ...]:
        """Their paths."""
        return tuple(self.names.paths[number] for number in self.numbers(role))

    def leaf(self, path: str) -> Any:
        """The leaf at a path."""
        return self.leaves[self.names.number(path)]

    def path(self, name: str) -> str:
        """The path that a name stands for, also that of a part without leaves.

        Raises:
            UnknownInputError: there is none, or more than one.
        """
        return name if name in parts_of(self.trees, name) else self.names.path(name)

    def value(self, name: str) -> Any:
        """The value of an input, a part, a leaf or an element; modules with their present
        leaves.
        """
        path, index = self._place(name)
        found = parts_of(self.trees, path)[path]
        if index is not None:
            return unwrapped(found)[index]
        return self.opened[path].build(found) if path in self.opened else unwrapped(found)

    def masks_of(self, paths: Sequence[str]) -> list[np.ndarray]:
        """Which elements of some leaves are trainable: an array of booleans for each, in the order
        of the leaves.
        """
        wanted = set(paths)
        return [
            self.masks.get(path, np.full(np.shape(leaf), role == TRAINABLE))
            for path, leaf, role in zip(self.names.paths, self.leaves, self.roles, strict=True)
            if path in wanted
        ]

    @property
    def can_be_masked(self) -> set[str]:
        """The paths of the leaves by which one may differentiate although they are fixed.

        No vector has complex elements, not even fixed ones.
        """
        rows = zip(self.names.paths, self.leaves, self.roles, strict=True)
        return {
            path
            for path, leaf, role in rows
            if role == TRAINABLE or (role == FIXED and not np.iscomplexobj(leaf))
        }

    @property
    def free(self) -> FreeElements:
        """The trainable elements among all those of trainable leaves."""
        masks = self.masks_of(self.paths(TRAINABLE))
        leaves = [np.ravel(leaf) for leaf in self.leaves_of(TRAINABLE)]
        is_free = np.concatenate([np.ravel(mask) for mask in masks] or [np.zeros(0, bool)])
        return FreeElements(np.flatnonzero(is_free), np.concatenate(leaves or [np.zeros(0)]))

    @property
    def element_names(self) -> tuple[str, ...]:
        """A name for each trainable element."""
        shapes = [np.shape(leaf) for leaf in self.leaves_of(TRAINABLE)]
        names = element_names(self.paths(TRAINABLE), shapes)
        return tuple(names[number] for number in self.free.numbers)

    @property
    def element_roles(self) -> dict[str, str]:
        """The fixed elements of leaves that are trainable otherwise."""
        found = {}
        for path, mask in self.masks.items():
            names = element_names([path], [mask.shape])
            found |= {
                name: FIXED for name, is_free in zip(names, mask.flat, strict=True) if not is_free
            }
        return found

    def tree(self, results: Sequence[Any]) -> dict[str, Any]:
        """Results, one per trainable leaf, as a dictionary of the inputs with some; None for what
        is not trainable.
        """
        return self.shape()(results)

    def shape(self) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """What `tree` does, for the roles that leaves have now."""
        names = self.names
        numbers = self.numbers(TRAINABLE)
        count = len(self.leaves)
        owners = [name for name in names.inputs if not set(names.numbers(name)).isdisjoint(numbers)]

        def shaped(results: Sequence[Any]) -> dict[str, Any]:
            leaves = replaced([None] * count, numbers, results)
            trees = dict(zip(names.inputs, jax.tree.unflatten(names.treedef, leaves), strict=True))
            return {name: trees[name] for name in owners}

        return shaped

    def leaves_in(self, tree: Mapping[str, Any]) -> list[Any]:
        """The leaves of a dictionary in the shape of `tree`, in the order of the trainable leaves.

        Raises:
            InputValueError: it has another shape.
        """
        expected = jax.tree.structure(self.tree(self.leaves_of(TRAINABLE)))
        if jax.tree.structure(dict(tree)) != expected:
            raise _other_structure(
                "the trainable inputs", str(jax.tree.structure(dict(tree))), str(expected)
            )
        return [
            leaf
            for name in self.names.inputs
            if name in tree
            for leaf in jax.tree.leaves(tree[name])
        ]

    def vector_leaves(self, x: Any) -> dict[str, Any]:
        """The trainable leaves at a vector of shape (n,), by path; what is fixed in them stays.

        Raises:
            InputValueError: it has another shape.
        """
        cuts = ends([np.shape(leaf) for leaf in self.leaves_of(TRAINABLE)])
        free = self.free
        x = np.asarray(x)
        if x.shape != free.numbers.shape:
            raise InputValueError(
                f"A vector of shape {list(x.shape)} was given for {free.numbers.size} trainable "
                f"elements. The model is as it was. Pass one of shape [{free.numbers.size}], in "
                "the order of `model.names`."
            )
        return dict(zip(self.paths(TRAINABLE), cuts.split(free.whole(x)), strict=True))

    # --- changes ----------------------------------------------------------------------------------

    def set(self, values: Mapping[str, Any]) -> None:
        """Set inputs, parts, leaves or elements of arrays by name.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            InputValueError: a value does not fit, or two names overlap.
        """
        pairs = self._by_path(values)
        paths = [path for path, _ in pairs]
        _check_disjoint(paths)
        found: dict[str, Any] = {}
        trees = self.trees
        for path, value in pairs:
            given = self._given(path, value)
            if self._is_data(path):
                held = jax.tree.map(lambda leaf, path=path: _held(path, leaf, DATA), given)
                trees = with_part(trees, path, held)
            else:
                found.update(self._checked(path, given))
        self._adopt(trees)
        names = self.names
        self.commit({names.number(path): leaf for path, leaf in found.items()}, paths)

    def _by_path(self, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Values with their paths; those of elements in the arrays that they are of."""
        pairs: list[tuple[str, Any]] = []
        elements: dict[str, dict[tuple[int, ...], Any]] = {}
        for name, value in values.items():
            path, index = self._place(name)
            if index is None:
                pairs.append((path, value))
                continue
            _check_number(name, value)
            elements.setdefault(path, {})[index] = value
        arrays = ((path, _written(self.leaf(path), own)) for path, own in elements.items())
        return [*pairs, *arrays]

    def commit(self, leaves: Mapping[int, Any], paths: Iterable[str] = ()) -> None:
        """Give leaves new values, which fit, and tell who watches."""
        for number, leaf in leaves.items():
            self.leaves[number] = as_was(self.leaves[number], leaf)
        told = tuple(paths) or tuple(self.names.paths[number] for number in leaves)
        for watcher in list(self.watchers) if told else ():
            watcher(told)

    def parts(self, names: Sequence[str]) -> dict[str, Any]:
        """What `put_back` takes: the present values of some parts."""
        paths = [self._place(name)[0] for name in names]
        return {path: parts_of(self.trees, path)[path] for path in paths}

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Give parts their earlier values back, which fitted, and tell who watches."""
        trees = self.trees
        for path, value in parts.items():
            trees = with_part(trees, path, value)
        self._adopt(trees)
        self.commit({}, parts)

    def values(self) -> tuple[Any, ...]:
        """All that `set` and `set_role` change."""
        return self.names, tuple(self.leaves), self.roles, dict(self.masks)

    def restore(self, values: tuple[Any, ...]) -> None:
        """Go back to what `values` returned, and tell who watches."""
        self.go_back(values)
        self.commit({}, self.names.paths)

    def go_back(self, values: tuple[Any, ...]) -> None:
        """Go back to what `values` returned after a change that was refused: nobody saw it."""
        self.names, leaves, self.roles, masks = values
        self.leaves = list(leaves)
        self.masks = dict(masks)

    def set_role(self, name: str, role: str) -> None:
        """Give the leaves at and below a name, or an element of a leaf, another role.

        Raises:
            UnknownInputError: the name stands for nothing, or for several things.
            BindError: a leaf, or an element, cannot have the role.
            InputValueError: a leaf would lie outside of its bounds.
        """
        path, index = self._place(name)
        if index is not None:
            self._set_element_role(path, index, role)
            return
        self._set_leaf_roles(self.names.numbers(path), role)

    def _set_leaf_roles(self, numbers: Sequence[int], role: str) -> None:
        for number in numbers:
            path = self.names.paths[number]
            leaf = as_parameter(self.leaves[number], role)
            check_role(path, leaf, role)
            if role in (TRAINABLE, FIXED) and path in self.bounds:
                check_value(path, self.bounds[path].low, leaf)
                self.bounds[path].hold(path, leaf)
        for number in numbers:
            path = self.names.paths[number]
            self.leaves[number] = _held(path, as_parameter(self.leaves[number], role), role)
            self.masks.pop(path, None)
        self.roles = tuple(
            role if number in numbers else each for number, each in enumerate(self.roles)
        )

    def _set_element_role(self, path: str, index: tuple[int, ...], role: str) -> None:
        number = self.names.number(path)
        if role not in (TRAINABLE, FIXED) or self.roles[number] not in (TRAINABLE, FIXED):
            name = f"{path}{list(index)}"
            raise BindError(
                f"`{name}` was to have the role {role!r}, and `{path}` has the role "
                f'{self.roles[number]!r}. Elements of one array differ only in being "trainable" '
                'or "fixed": the others are roles of whole arrays. The model is as it was. Give '
                "the array itself one of these two roles first, or pass two arrays."
            )
        (mask,) = self.masks_of([path])
        mask = mask.copy()
        mask[index] = role == TRAINABLE
        self._set_leaf_roles([number], TRAINABLE if mask.any() else FIXED)
        if mask.any() and not mask.all():
            self.masks[path] = mask

    # --- inner ------------------------------------------------------------------------------------

    def _split(self, given: Any) -> tuple[Any, dict[str, Any]]:
        """Roles, or bounds, of leaves and parts, and those of elements."""
        if not isinstance(given, Mapping):
            return given, {}
        elements = {name: each for name, each in given.items() if self._place(name)[1] is not None}
        return {name: each for name, each in given.items() if name not in elements}, elements

    def _place(self, name: str) -> tuple[str, tuple[int, ...] | None]:
        """The path that a name stands for; of `theta[3]` that of the array and the index in it.

        Raises:
            UnknownInputError: it stands for nothing, or for several things.
        """
        element = _ELEMENT.match(name)
        try:
            return self.path(name), None
        except UnknownInputError:
            if element is None:
                raise
        path = self.path(element["path"])
        index = tuple(map(int, element["index"].split(",")))
        shape = np.shape(self.leaves[self.names.number(path)]) if path in self.names.paths else ()
        is_inside = [-size <= k < size for k, size in zip(index, shape, strict=False)]
        if len(index) > len(shape) or not all(is_inside):
            if not shape:
                raise UnknownInputError(
                    f"`{name}` names no element: `{path}` is no array. The model is as it was. "
                    f"Write `{path}`."
                )
            raise UnknownInputError(
                f"`{name}` names no element: `{path}` is of shape {list(shape)}. This is usually "
                "an index that counts from 1. The model is as it was. Indices count from 0, one "
                "for each axis."
            )
        return path, index

    def _own_roles(self) -> dict[str, str]:
        """What modules say of their leaves."""
        trees = {name: module.roles for name, module in self.opened.items()}
        return dict(zip(names_of(trees).paths, jax.tree.leaves(tuple(trees.values())), strict=True))

    def _given(self, path: str, value: Any) -> Any:
        """A value as a tree; a module has the definition of the one that it replaces."""
        found = opened(value)
        if found is None:
            return value
        if path in self.opened and found.definition != self.opened[path].definition:
            raise InputValueError(
                f"`{path}` was to be set to a module that is defined in another way: another "
                "class, other layers, or another mode of training and evaluation. The model is as "
                "it was. Bind a new model of it."
            )
        return found.tree

    def _is_data(self, path: str) -> bool:
        return all(self.roles[number] == DATA for number in self.names.numbers(path))

    def _checked(self, path: str, value: Any) -> dict[str, Any]:
        """Leaves at and below a path, in the types of those that they replace."""
        old = jax.tree.structure(parts_of(self.trees, path)[path])
        new = jax.tree.structure(value)
        if old != new:
            raise _other_structure(f"`{path}`", str(new), str(old))
        found = {}
        for number, leaf in zip(self.names.numbers(path), jax.tree.leaves(value), strict=True):
            name = self.names.paths[number]
            found[name] = fitted(name, self.leaves[number], leaf)
            if name in self.bounds and self.roles[number] in (TRAINABLE, FIXED):
                self.bounds[name].hold(name, found[name])
        return found

    def _adopt(self, trees: Mapping[str, Any]) -> None:
        """Take other trees; what is new in them is data, whose structure alone may change."""
        known = dict(zip(self.names.paths, self.roles, strict=True))
        self.leaves, treedef = jax.tree.flatten(tuple(trees.values()))
        if treedef != self.names.treedef:
            self.names = names_of(trees)
            self.roles = tuple(known.get(path, DATA) for path in self.names.paths)


def _check_number(name: str, value: Any) -> None:
    """Refuse what one element cannot be.

    Raises:
        InputValueError: it is traced, or an array.
    """
    if has_tracer([value]) or np.shape(value) != ():
        raise InputValueError(
            f"`{name}` was to be set to {type_name(value)}, and an element of an array takes one "
            "number, outside of transformed functions. The model is as it was."
        )


def _written(leaf: Any, elements: Mapping[tuple[int, ...], Any]) -> Any:
    """An array with other elements, or rows; one of JAX remembers in which rows these are."""
    if not isinstance(leaf, jax.Array):
        new = np.array(leaf)
        for index, value in elements.items():
            new[index] = value
        return new
    for index, value in elements.items():
        number = np.zeros((), leaf.dtype)
        number[()] = value
        leaf = at(leaf)[index[0] if len(index) == 1 else index].set(number)
    return leaf


def replaced(leaves: Sequence[Any], numbers: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """Leaves with other values at some places."""
    found = list(leaves)
    for number, value in zip(numbers, values, strict=True):
        found[number] = value
    return found


def _check_disjoint(paths: Sequence[str]) -> None:
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if is_within(path, other) or is_within(other, path):
                raise InputValueError(
                    f"`{other}` and `{path}` were to be set at once, and one is part of the other. "
                    "The model is as it was. Set one of them."
                )


def _held(path: str, leaf: Any, role: str) -> Any:
    """A leaf that nobody else can change: NumPy arrays are copied, and those of data frozen.

    What no program can take stays, and is refused by the first evaluation.
    """
    check_value(path, None, leaf)
    if (
        not isinstance(leaf, np.ndarray)
        or isinstance(leaf, np.ma.MaskedArray)
        or leaf.dtype.kind not in "biufc"
    ):
        return leaf
    return frozen(leaf) if role == DATA else leaf.copy()


def _other_structure(path: str, seen: str, expected: str) -> InputValueError:
    """A value of another tree structure."""
    return InputValueError(
        f"{path} has the structure {expected} and was to be set to one of {seen}. The model is as "
        'it was. Pass the same structure, or bind a new model; only inputs with the role "data" '
        "may change theirs."
    )
