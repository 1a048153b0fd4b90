"""The values of a model's inputs.

In: values by name. Out: leaves, each with a role, within bounds. Invariant: a change that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from incrax._bind_errors import other_structure
from incrax.binding.modules import Opened, opened
from incrax.binding.names import Names, names_of
from incrax.binding.roles import DATA, TRAINABLE, Roles, check_role, fitted, roles_of
from incrax.binding.unbounded import Bounds, Transform, bounds_of, transforms_of
from incrax.derivatives.selection import at_path
from incrax.running.leaves import frozen
from incrax.running.paths import is_within

Watcher = Callable[[tuple[str, ...]], None]


class Inputs:
    """Inputs by name, their leaves in order, and what is known of each leaf by its path."""

    def __init__(self, given: Mapping[str, Any], roles: Roles, bounds: Any, transforms: Any) -> None:
        """See `bind`."""
        self.opened: dict[str, Opened] = {name: found for name, each in given.items() if (found := opened(each))}
        trees = {name: self._as_tree(name, each) for name, each in given.items()}
        self.names: Names = names_of(trees)
        leaves = jax.tree.leaves(tuple(trees.values()))
        self.roles = roles_of(self.names, leaves, roles, self._own_roles())
        self.bounds: dict[str, Bounds] = bounds_of(self.names, leaves, self.roles, bounds)
        self.transforms: dict[str, Transform] = transforms_of(self.names, self.roles, transforms, self.bounds)
        given_of = [self.names.path(name) for name in transforms or {}]
        self.transformed = [path for path in self.names.paths if any(is_within(path, each) for each in given_of)]
        self.leaves = [_held(leaf, role) for leaf, role in zip(leaves, self.roles, strict=True)]
        self.watchers: list[Watcher] = []

    @property
    def args(self) -> tuple[Any, ...]:
        """The inputs in order, modules as trees."""
        return jax.tree.unflatten(self.names.treedef, self.leaves)

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

    def part(self, path: str) -> Any:
        """The tree at a path."""
        return at_path(path, (self.args, {}), self.names.inputs, self.names.paths)

    def value(self, name: str) -> Any:
        """The value of an input, a part or a leaf; a module with its present leaves."""
        path = self.names.path(name)
        found = self.part(path)
        return self.opened[path].build(found) if path in self.opened else found

    def tree(self, results: Sequence[Any]) -> dict[str, Any]:
        """Results, one per trainable leaf, as a dictionary of the inputs with some; None for what is not trainable."""
        return self.shape()(results)

    def shape(self) -> Callable[[Sequence[Any]], dict[str, Any]]:
        """What `tree` does, for the roles that leaves have now."""
        names, numbers, count = self.names, self.numbers(TRAINABLE), len(self.leaves)
        owners = [name for name in names.inputs if not set(names.numbers(name)).isdisjoint(numbers)]

        def shaped(results: Sequence[Any]) -> dict[str, Any]:
            leaves: list[Any] = [None] * count
            for number, result in zip(numbers, results, strict=True):
                leaves[number] = result
            trees = dict(zip(names.inputs, jax.tree.unflatten(names.treedef, leaves), strict=True))
            return {name: trees[name] for name in owners}

        return shaped

    def leaves_in(self, tree: Mapping[str, Any]) -> list[Any]:
        """The leaves of a dictionary in the shape of `tree`, in the order of the trainable leaves."""
        return [leaf for name in self.names.inputs if name in tree for leaf in jax.tree.leaves(tree[name])]

    # --- changes -------------------------------------------------------------------------------------------------

    def set(self, values: Mapping[str, Any]) -> None:
        """Set inputs, parts or leaves by name.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            InputValueError: a value does not fit.
        """
        by_path = {self.names.path(name): value for name, value in values.items()}
        found: dict[str, Any] = {}
        replaced: dict[str, Any] = {}
        for path, value in by_path.items():
            value = self._as_tree(path, value)
            if self._is_data(path):
                replaced[path] = jax.tree.map(lambda leaf: _held(leaf, DATA), value)
            else:
                found.update(self._checked(path, value))
        for path, value in replaced.items():
            self._replace(path, value)
        self.commit({self.names.paths.index(path): leaf for path, leaf in found.items()}, by_path)

    def commit(self, leaves: Mapping[int, Any], paths: Sequence[str] | Mapping[str, Any] = ()) -> None:
        """Give leaves new values, which fit, and tell who watches."""
        for number, leaf in leaves.items():
            self.leaves[number] = leaf
        told = tuple(paths) or tuple(self.names.paths[number] for number in leaves)
        for watcher in list(self.watchers):
            watcher(told)

    def values(self) -> tuple[Any, ...]:
        """All that `set` changes."""
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
        """
        numbers = self.names.numbers(self.names.path(name))
        for number in numbers:
            check_role(self.names.paths[number], self.leaves[number], role)
        for number in numbers if role == DATA else ():
            self.leaves[number] = _held(self.leaves[number], DATA)
        self.roles = tuple(role if number in numbers else each for number, each in enumerate(self.roles))

    # --- inner ---------------------------------------------------------------------------------------------------

    def _own_roles(self) -> dict[str, str]:
        """What modules say of their leaves."""
        trees = {name: module.roles for name, module in self.opened.items()}
        return dict(zip(names_of(trees).paths, jax.tree.leaves(tuple(trees.values())), strict=True))

    def _as_tree(self, name: str, value: Any) -> Any:
        if name not in self.opened:
            return value
        found = opened(value)
        return value if found is None else found.tree

    def _is_data(self, path: str) -> bool:
        return all(self.roles[number] == DATA for number in self.names.numbers(path))

    def _checked(self, path: str, value: Any) -> dict[str, Any]:
        """Leaves at and below a path, in the types of those that they replace."""
        old, new = jax.tree.structure(self.part(path)), jax.tree.structure(value)
        if old != new:
            raise other_structure(path, str(new), str(old))
        found = {}
        for number, leaf in zip(self.names.numbers(path), jax.tree.leaves(value), strict=True):
            name = self.names.paths[number]
            found[name] = fitted(name, self.leaves[number], leaf)
            if name in self.bounds:
                self.bounds[name].hold(name, found[name])
        return found

    def _replace(self, path: str, value: Any) -> None:
        """Put another tree where data are."""
        roles = dict(zip(self.names.paths, self.roles, strict=True))
        places = jax.tree.unflatten(self.names.treedef, map(_Place, self.leaves))
        part = at_path(path, (places, {}), self.names.inputs, self.names.paths)
        args = jax.tree.map(lambda x: value if x is part else x.leaf, places, is_leaf=lambda x: x is part)
        self.names, self.leaves = names_of(dict(zip(self.names.inputs, args, strict=True))), jax.tree.leaves(args)
        self.roles = tuple(roles.get(path, DATA) for path in self.names.paths)


class _Place:
    """A leaf that is told from all others, also from equal ones."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


def _held(leaf: Any, role: str) -> Any:
    """A leaf that nobody else can change: NumPy arrays are copied, and those of data frozen."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    return frozen(leaf) if role == DATA else leaf.copy()
