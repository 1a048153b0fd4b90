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
        numbers = self.numbers(TRAINABLE)
        leaves: list[Any] = [None] * len(self.leaves)
        for number, result in zip(numbers, results, strict=True):
            leaves[number] = result
        trees = zip(self.names.inputs, jax.tree.unflatten(self.names.treedef, leaves), strict=True)
        return {name: tree for name, tree in trees if not set(self.names.numbers(name)).isdisjoint(numbers)}

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
            if path in self.names.inputs and self._is_data(path):
                replaced[path] = jax.tree.map(lambda leaf: _held(leaf, DATA), value)
            else:
                found.update(self._checked(path, value))
        if replaced:
            self._replace(replaced)
        self.commit({self.names.paths.index(path): leaf for path, leaf in found.items()}, by_path)

    def commit(self, leaves: Mapping[int, Any], paths: Sequence[str] | Mapping[str, Any] = ()) -> None:
        """Give leaves new values, which fit, and tell who watches."""
        for number, leaf in leaves.items():
            self.leaves[number] = leaf
        told = tuple(paths) or tuple(self.names.paths[number] for number in leaves)
        for watcher in list(self.watchers):
            watcher(told)

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

    def _replace(self, values: Mapping[str, Any]) -> None:
        """Give data inputs other trees."""
        roles = self._by_path()
        trees = {**dict(zip(self.names.inputs, self.args, strict=True)), **values}
        self.names, self.leaves = names_of(trees), jax.tree.leaves(tuple(trees.values()))
        self.roles = tuple(roles.get(path, DATA) for path in self.names.paths)

    def _by_path(self) -> dict[str, str]:
        return dict(zip(self.names.paths, self.roles, strict=True))


def _held(leaf: Any, role: str) -> Any:
    """A leaf that nobody else can change: NumPy arrays are copied, and those of data frozen."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    return frozen(leaf) if role == DATA else leaf.copy()
