"""The values of a model's inputs.

In: values by name. Out: leaves, each with a role, within bounds. Invariant: a change that is
refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from incrax.derivatives.flat import ends
from incrax.engine.inputs.leaves import descriptor, frozen, is_dynamic
from incrax.engine.inputs.paths import is_within
from incrax.models.messages import other_definition, other_structure, overlapping_names, wrong_size
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
from incrax.models.unbounded import Bounds, Transform, bounds_of, transforms_of

Watcher = Callable[[tuple[str, ...]], None]


class Inputs:
    """Inputs by name, their leaves in order, and what is known of each leaf by its path."""

    def __init__(
        self, given: Mapping[str, Any], roles: Roles, bounds: Any, transforms: Any
    ) -> None:
        """See `bind`."""
        self.opened: dict[str, Opened] = {
            name: found for name, each in given.items() if (found := opened(each))
        }
        trees = {name: _as_tree(each) for name, each in given.items()}
        self.names: Names = names_of(trees)
        leaves = jax.tree.leaves(tuple(trees.values()))
        self.roles: tuple[str, ...] = roles_of(self.names, leaves, roles, self._own_roles())
        leaves = list(map(as_parameter, leaves, self.roles))
        self.bounds: dict[str, Bounds] = bounds_of(self.names, leaves, self.roles, bounds)
        self.transforms: dict[str, Transform] = transforms_of(
            self.names, self.roles, transforms, self.bounds
        )
        asked = [self.names.path(name) for name in transforms or {}]
        self.transformed: list[str] = [
            path for path in self.transforms if any(is_within(path, x) for x in asked)
        ]
        rows = zip(self.names.paths, leaves, self.roles, strict=True)
        self.leaves: list[Any] = [_held(path, leaf, role) for path, leaf, role in rows]
        self.watchers: list[Watcher] = []

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
        found = list(leaves)
        for number, value in zip(self.numbers(role), values, strict=True):
            found[number] = value
        return found

    def paths(self, role: str) -> tuple[str, ...]:
        """Their paths."""
        return tuple(self.names.paths[number] for number in self.numbers(role))

    def path(self, name: str) -> str:
        """The path that a name stands for, also that of a part without leaves.

        Raises:
            UnknownInputError: there is none, or more than one.
        """
        return name if name in parts_of(self.trees, name) else self.names.path(name)

    def value(self, name: str) -> Any:
        """The value of an input, a part or a leaf; modules with their present leaves."""
        path = self.path(name)
        found = parts_of(self.trees, path)[path]
        return self.opened[path].build(found) if path in self.opened else unwrapped(found)

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
            leaves: list[Any] = [None] * count
            for number, result in zip(numbers, results, strict=True):
                leaves[number] = result
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
            raise other_structure(
                "the trainable inputs", str(jax.tree.structure(dict(tree))), str(expected)
            )
        return [
            leaf
            for name in self.names.inputs
            if name in tree
            for leaf in jax.tree.leaves(tree[name])
        ]

    def vector_leaves(self, x: Any) -> dict[str, Any]:
        """The trainable leaves at a vector of shape (n,), by path.

        Raises:
            InputValueError: it has another shape.
        """
        cuts = ends([np.shape(leaf) for leaf in self.leaves_of(TRAINABLE)])
        x = np.asarray(x)
        if x.shape != (cuts.size,):
            raise wrong_size(list(x.shape), cuts.size)
        return dict(zip(self.paths(TRAINABLE), cuts.split(x), strict=True))

    # --- changes ----------------------------------------------------------------------------------

    def set(self, values: Mapping[str, Any]) -> None:
        """Set inputs, parts or leaves by name.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            InputValueError: a value does not fit, or two names overlap.
        """
        by_path = {
            self.path(name): self._given(self.path(name), value) for name, value in values.items()
        }
        _check_disjoint([*map(self.path, values)])
        found: dict[str, Any] = {}
        trees = self.trees
        for path, value in by_path.items():
            if self._is_data(path):
                trees = with_part(trees, path, _all_held(path, value))
            else:
                found.update(self._checked(path, value))
        self._adopt(trees)
        names = self.names
        self.commit({names.number(path): leaf for path, leaf in found.items()}, by_path)

    def commit(
        self, leaves: Mapping[int, Any], paths: Sequence[str] | Mapping[str, Any] = ()
    ) -> None:
        """Give leaves new values, which fit, and tell who watches."""
        for number, leaf in leaves.items():
            self.leaves[number] = as_was(self.leaves[number], leaf)
        told = tuple(paths) or tuple(self.names.paths[number] for number in leaves)
        for watcher in list(self.watchers) if told else ():
            watcher(told)

    def parts(self, names: Sequence[str]) -> dict[str, Any]:
        """What `put_back` takes: the present values and roles of some parts."""
        return {
            path: (parts_of(self.trees, path)[path], self._roles_within(path))
            for path in map(self.path, names)
        }

    def put_back(self, parts: Mapping[str, Any]) -> None:
        """Give parts their earlier values back, which fitted, and tell who watches."""
        trees = self.trees
        roles = {}
        for path, (value, known) in parts.items():
            trees = with_part(trees, path, value)
            roles |= known
        self._adopt(trees, roles)
        self.commit({}, parts)

    def values(self) -> tuple[Any, ...]:
        """All that `set` and `set_role` change."""
        return self.names, tuple(self.leaves), self.roles

    def restore(self, values: tuple[Any, ...]) -> None:
        """Go back to what `values` returned, and tell who watches."""
        self.names, leaves, self.roles = values
        self.leaves = list(leaves)
        self.commit({}, self.names.paths)

    def set_role(self, name: str, role: str) -> None:
        """Give the leaves at and below a name another role.

        Raises:
            UnknownInputError: the name stands for nothing, or for several things.
            BindError: a leaf cannot have the role.
            InputValueError: a leaf would lie outside of its bounds.
        """
        numbers = self.names.numbers(self.path(name))
        for number in numbers:
            path = self.names.paths[number]
            leaf = as_parameter(self.leaves[number], role)
            check_role(path, leaf, role)
            if role in (TRAINABLE, FIXED) and path in self.bounds:
                check_value(path, self.bounds[path].low, leaf)
                self.bounds[path].hold(path, leaf)
        for number in numbers:
            self.leaves[number] = _held(
                self.names.paths[number], as_parameter(self.leaves[number], role), role
            )
        self.roles = tuple(
            role if number in numbers else each for number, each in enumerate(self.roles)
        )

    # --- inner ------------------------------------------------------------------------------------

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
            raise other_definition(path)
        return found.tree

    def _is_data(self, path: str) -> bool:
        return all(self.roles[number] == DATA for number in self.names.numbers(path))

    def _roles_within(self, path: str) -> dict[str, str]:
        return {self.names.paths[number]: self.roles[number] for number in self.names.numbers(path)}

    def _checked(self, path: str, value: Any) -> dict[str, Any]:
        """Leaves at and below a path, in the types of those that they replace."""
        old = jax.tree.structure(parts_of(self.trees, path)[path])
        new = jax.tree.structure(value)
        if old != new:
            raise other_structure(f"`{path}`", str(new), str(old))
        found = {}
        for number, leaf in zip(self.names.numbers(path), jax.tree.leaves(value), strict=True):
            name = self.names.paths[number]
            found[name] = fitted(name, self.leaves[number], leaf)
            if name in self.bounds and self.roles[number] in (TRAINABLE, FIXED):
                self.bounds[name].hold(name, found[name])
        return found

    def _adopt(self, trees: Mapping[str, Any], roles: Mapping[str, str] | None = None) -> None:
        """Take other trees; what is new in them is data."""
        known = {**(roles or {}), **dict(zip(self.names.paths, self.roles, strict=True))}
        self.leaves = jax.tree.leaves(tuple(trees.values()))
        if jax.tree.structure(tuple(trees.values())) != self.names.treedef:
            self.names = names_of(trees)
            self.roles = tuple(known.get(path, DATA) for path in self.names.paths)


def _as_tree(value: Any) -> Any:
    found = opened(value)
    return value if found is None else found.tree


def _check_disjoint(paths: Sequence[str]) -> None:
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if is_within(path, other) or is_within(other, path):
                raise overlapping_names(other, path)


def _all_held(path: str, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: _held(path, leaf, DATA), tree)


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
