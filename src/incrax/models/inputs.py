"""The values of a model's inputs.

In: values by name. Out: leaves, each with a role, within bounds. Invariants: a change that is
refused changes nothing; leaves are in the order of JAX.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax._messages import wrong_option
from incrax.derivatives.flat import FreeElements, ends
from incrax.derivatives.selection import Mirror, parts_of, type_name
from incrax.engine.inputs.leaves import descriptor, frozen, has_tracer, is_dynamic
from incrax.engine.inputs.paths import element_names, is_within
from incrax.engine.inputs.row_updates import at
from incrax.errors import BindError, InputValueError, UnknownInputError
from incrax.models.bounds import Box, check_fitted, checked_pairs, narrowed
from incrax.models.names import Names, names_of, with_part, without_index
from incrax.models.roles import (
    DATA,
    FIXED,
    TRAINABLE,
    Roles,
    as_parameter,
    as_was,
    check_role,
    check_value,
    checked_roles,
    default_role,
    fitted,
)

Watcher = Callable[[tuple[str, ...]], None]

Place = tuple[str, Any, Any]
"""A path, the index of an element there if there is one, and what is said of it."""


class Leaf(NamedTuple):
    """One leaf of the inputs."""

    path: str
    value: Any
    role: str = DATA
    bounds: Box | None = None
    mask: np.ndarray | None = None
    """Of a trainable leaf of which some elements are fixed: which are not."""

    @property
    def is_parameter(self) -> bool:
        """Whether it is fitted, now or at other times."""
        return self.role in (TRAINABLE, FIXED)

    @property
    def is_free(self) -> np.ndarray:
        """Which elements are trainable."""
        is_trainable = self.role == TRAINABLE
        return np.full(np.shape(self.value), is_trainable) if self.mask is None else self.mask


_value_of = operator.attrgetter("value")


def are_free(leaves: Sequence[Leaf]) -> np.ndarray:
    """Which elements of some leaves are trainable, end to end."""
    return np.concatenate([np.zeros(0, bool), *(leaf.is_free.ravel() for leaf in leaves)])


def _names_in(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    """Those of all their elements."""
    return element_names([leaf.path for leaf in leaves], [np.shape(leaf.value) for leaf in leaves])


class Inputs:
    """Inputs by name, their leaves in order."""

    def __init__(self, given: Mapping[str, Any], roles: Roles, bounds: Any) -> None:
        """See `bind`."""
        self.names: Names = names_of(given)
        values = jax.tree.leaves(tuple(given.values()))
        self.leaves: list[Leaf] = list(map(Leaf, self.names.paths, values))
        self.watchers: list[Watcher] = []
        of_parts, of_elements = self._places(checked_roles(roles))
        found: dict[int, Any] = dict(enumerate(map(default_role, values)))
        for path, _, role in of_parts:
            found |= dict.fromkeys(self.names.numbers(path), role)
        self._set_leaf_roles(found)
        for places in self._places(checked_pairs(bounds)):
            for path, index, pair in places:
                self._bound(path, index, pair)
        for path, index, role in of_elements:
            self._set_element_role(path, index, role)

    def _places(self, given: Mapping[str, Any]) -> tuple[list[Place], list[Place]]:
        """What is said of parts, the innermost last, and what of elements."""
        places = [(*self._place(name), each) for name, each in given.items()]
        of_parts = [place for place in places if place[1] is None]
        of_elements = [place for place in places if place[1] is not None]
        return sorted(of_parts, key=lambda place: len(place[0])), of_elements

    def _bound(self, path: str, index: Any, pair: Any) -> None:
        numbers = self.names.numbers(path)
        check_fitted(path, [self.leaves[number].role for number in numbers])
        for number in numbers:
            leaf = self.leaves[number]
            if leaf.is_parameter:
                bounds = narrowed(leaf.bounds, path, index, leaf.value, pair)
                bounds.hold(leaf.path, leaf.value)
                self.leaves[number] = leaf._replace(bounds=bounds)

    @property
    def values(self) -> list[Any]:
        """Those of the leaves."""
        return list(map(_value_of, self.leaves))

    @property
    def args(self) -> tuple[Any, ...]:
        """The inputs in order."""
        return jax.tree.unflatten(self.names.treedef, map(_value_of, self.leaves))

    @property
    def types(self) -> tuple[Any, Any]:
        """The types of the leaves, or a static leaf itself, and the structure."""
        types = [descriptor(value) if is_dynamic(value) else value for value in self.values]
        return tuple(types), self.names.treedef

    @property
    def trees(self) -> dict[str, Any]:
        """The same by name."""
        return dict(zip(self.names.inputs, self.args, strict=True))

    def numbers(self, role: str) -> list[int]:
        """The leaves with this role, by their places."""
        return [number for number, leaf in enumerate(self.leaves) if leaf.role == role]

    def of(self, role: str) -> list[Leaf]:
        """The leaves with this role."""
        return [leaf for leaf in self.leaves if leaf.role == role]

    def paths(self, role: str) -> tuple[str, ...]:
        """Their paths."""
        return tuple([leaf.path for leaf in self.leaves if leaf.role == role])

    def with_values(self, role: str, new: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Values of all leaves, with others for those of a role."""
        found = list(values)
        for number, value in zip(self.numbers(role), new, strict=True):
            found[number] = value
        return found

    def path(self, name: str) -> str:
        """The path that a name stands for, also that of a part without leaves.

        Raises:
            UnknownInputError: there is none, or more than one.
        """
        _check_name(name)
        return name if name in parts_of(self.trees, name) else self.names.path(name)

    def value(self, name: str) -> Any:
        """The value of an input, a part, a leaf or an element."""
        path, index = self._place(name)
        found = parts_of(self.trees, path)[path]
        return found if index is None else found[index]

    @property
    def free(self) -> FreeElements:
        """The trainable elements among all those of trainable leaves."""
        leaves = self.of(TRAINABLE)
        values = [np.ravel(leaf.value) for leaf in leaves]
        numbers = np.flatnonzero(are_free(leaves))
        return FreeElements(numbers, np.concatenate(values or [np.zeros(0)]))

    @property
    def element_names(self) -> tuple[str, ...]:
        """A name for each trainable element."""
        leaves = self.of(TRAINABLE)
        return tuple(itertools.compress(_names_in(leaves), are_free(leaves)))

    @property
    def element_roles(self) -> dict[str, str]:
        """The fixed elements of leaves that are trainable otherwise."""
        masked = [leaf for leaf in self.leaves if leaf.mask is not None]
        return dict.fromkeys(itertools.compress(_names_in(masked), ~are_free(masked)), FIXED)

    def tree(self, results: Sequence[Any]) -> dict[str, Any]:
        """Results, one per trainable leaf, as a dictionary of the inputs with some; None for what
        is not trainable.
        """
        return self.shape(self.paths(TRAINABLE))(results)

    def shape(self, paths: Sequence[str]) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """What `tree` does with results of leaves with these paths, for the roles that they have
        now.
        """
        names = self.names
        trainable = set(self.paths(TRAINABLE))
        places = {path: k for k, path in enumerate(paths) if path in trainable}
        mirror = Mirror(names.treedef, tuple(map(places.get, names.paths)))
        owners = {name for name in names.inputs for path in places if is_within(path, name)}
        trees = lambda results: zip(names.inputs, mirror.tree(results), strict=True)
        return lambda results: {name: tree for name, tree in trees(results) if name in owners}

    def vector_leaves(self, x: Any) -> dict[str, Any]:
        """The trainable leaves at a vector of shape (n,), by path; what is fixed in them stays.

        Raises:
            InputValueError: it has another shape.
        """
        free = self.free
        x = np.asarray(x)
        if x.shape != free.numbers.shape:
            raise InputValueError(
                f"A vector of shape {list(x.shape)} was given for {free.numbers.size} trainable "
                f"elements. The model is as it was. Pass one of shape [{free.numbers.size}], in "
                "the order of `model.names`."
            )
        cuts = ends([np.shape(leaf.value) for leaf in self.of(TRAINABLE)])
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
        found: dict[int, Any] = {}
        data: dict[str, Any] = {}
        for path, given in pairs:
            if all(self.leaves[number].role == DATA for number in self.names.numbers(path)):
                data[path] = jax.tree.map(functools.partial(_held, path, role=DATA), given)
            else:
                found |= self._checked(path, given)
        self._write(found)
        self._put(data)
        self.tell(paths)

    def _by_path(self, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Values with their paths; those of elements in the arrays that they are of."""
        pairs: list[tuple[str, Any]] = []
        elements: dict[str, dict[tuple[int, ...], Any]] = {}
        for name, value in values.items():
            path, index = self._place(name)
            if index is None:
                pairs.append((path, value))
                continue
            if has_tracer([value]) or np.shape(value) != ():
                raise InputValueError(
                    f"`{name}` was to be set to {type_name(value)}, and an element of an array takes one "
                    "number, outside of transformed functions. The model is as it was."
                )
            elements.setdefault(path, {})[index] = value
        arrays = (
            (path, _written(self.leaves[self.names.number(path)].value, own))
            for path, own in elements.items()
        )
        return [*pairs, *arrays]

    def commit(self, values: Mapping[int, Any]) -> None:
        """Give leaves new values, which fit, and tell who watches."""
        self._write(values)
        self.tell([self.names.paths[number] for number in values])

    def _write(self, values: Mapping[int, Any]) -> None:
        for number, value in values.items():
            leaf = self.leaves[number]
            self.leaves[number] = leaf._replace(value=as_was(leaf.value, value))

    def tell(self, paths: Sequence[str]) -> None:
        """Tell who watches that these were set."""
        for watcher in list(self.watchers) if paths else ():
            watcher(tuple(paths))

    def parts(self, names: Sequence[str]) -> dict[str, Any]:
        """What `put_back` takes: the present values of some parts."""
        paths = [self._place(name)[0] for name in names]
        return {path: parts_of(self.trees, path)[path] for path in paths}

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Give parts the values that they had, and tell who watches."""
        self._put(parts)
        self.tell([*parts])

    def _put(self, parts: Mapping[str, Any]) -> None:
        """Give parts values that fit. What is new in them is data, whose structure alone may
        change.
        """
        if not parts:
            return
        trees = self.trees
        for path, value in parts.items():
            trees = with_part(trees, path, value)
        leaves = self.leaves
        values, treedef = jax.tree.flatten(tuple(trees.values()))
        if treedef != self.names.treedef:
            self.names = names_of(trees)
            known = {leaf.path: leaf for leaf in leaves}
            leaves = [known.get(path, Leaf(path, None)) for path in self.names.paths]
        self.leaves = [
            leaf if leaf.value is value else leaf._replace(value=value)
            for leaf, value in zip(leaves, values, strict=True)
        ]

    def snapshot(self) -> tuple[Names, tuple[Leaf, ...]]:
        """All that `set` and `set_role` change."""
        return self.names, tuple(self.leaves)

    def restore(self, snapshot: tuple[Names, tuple[Leaf, ...]]) -> None:
        """Go back to what `snapshot` returned."""
        self.names, leaves = snapshot
        self.leaves = list(leaves)

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
        self._set_leaf_roles(dict.fromkeys(self.names.numbers(path), role))

    def _set_leaf_roles(self, roles: Mapping[int, str], mask: Any = None) -> None:
        found = {}
        for number, role in roles.items():
            path, value, _, bounds, _ = self.leaves[number]
            value = as_parameter(value, role)
            check_role(path, value, role)
            found[number] = Leaf(path, value, role, bounds, mask)
            if found[number].is_parameter and bounds is not None:
                check_value(path, bounds.lower, value)
                bounds.hold(path, value)
        for number, leaf in found.items():
            self.leaves[number] = leaf._replace(value=_held(leaf.path, leaf.value, leaf.role))

    def _set_element_role(self, path: str, index: tuple[int, ...], role: str) -> None:
        number = self.names.number(path)
        leaf = self.leaves[number]
        if role not in (TRAINABLE, FIXED) or not leaf.is_parameter:
            name = f"{path}{list(index)}"
            raise BindError(
                f"`{name}` was to have the role {role!r}, and `{path}` has the role "
                f'{leaf.role!r}. Elements of one array differ only in being "trainable" '
                'or "fixed": the others are roles of whole arrays. The model is as it was. Give '
                "the array itself one of these two roles first, or pass two arrays."
            )
        mask = leaf.is_free.copy()
        mask[index] = role == TRAINABLE
        is_mixed = mask.any() and not mask.all()
        of_leaf = TRAINABLE if mask.any() else FIXED
        self._set_leaf_roles({number: of_leaf}, mask if is_mixed else None)

    # --- inner ------------------------------------------------------------------------------------

    def _place(self, name: str) -> tuple[str, tuple[int, ...] | None]:
        """The path that a name stands for; of `theta[3]` that of the array and the index in it.

        Raises:
            UnknownInputError: it stands for nothing, or for several things.
        """
        _check_name(name)
        array, index = without_index(name)
        try:
            return self.path(name), None
        except UnknownInputError:
            if index is None:
                raise
        path = self.path(array)
        is_leaf = path in self.names.paths
        shape = np.shape(self.leaves[self.names.number(path)].value) if is_leaf else ()
        is_inside = [-size <= k < size for k, size in zip(index, shape, strict=False)]
        if len(index) > len(shape) or not all(is_inside):
            raise _no_element(name, path, shape)
        return path, index

    def _checked(self, path: str, value: Any) -> dict[int, Any]:
        """Leaves at and below a path, in the types of those that they replace, by their places."""
        old = jax.tree.structure(parts_of(self.trees, path)[path])
        new = jax.tree.structure(value)
        if old != new:
            raise InputValueError(
                f"`{path}` has the structure {old} and was to be set to one of {new}. The model is as "
                'it was. Pass the same structure, or bind a new model; only inputs with the role "data" '
                "may change theirs."
            )
        found = {}
        for number, given in zip(self.names.numbers(path), jax.tree.leaves(value), strict=True):
            leaf = self.leaves[number]
            found[number] = fitted(leaf.path, leaf.value, given)
            if leaf.bounds is not None and leaf.is_parameter:
                leaf.bounds.hold(leaf.path, found[number])
        return found


def as_given(values: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, as a mapping or as keywords.

    Raises:
        TypeError: it is no mapping.
    """
    if values is not None and not isinstance(values, Mapping):
        raise wrong_option("set(values)", values, "a mapping of names to values")
    return {**(values or {}), **named}


def _no_element(name: str, path: str, shape: tuple[int, ...]) -> UnknownInputError:
    if not shape:
        return UnknownInputError(
            f"`{name}` names no element: `{path}` is no array. The model is as it was. "
            f"Write `{path}`."
        )
    return UnknownInputError(
        f"`{name}` names no element: `{path}` is of shape {list(shape)}. This is usually "
        "an index that counts from 1. The model is as it was. Indices count from 0, one "
        "for each axis."
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


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise wrong_option("name", name, "a name of one input, part, leaf or element")
