"""What to differentiate: `wrt` and the arguments of a call become numbered leaves, and results in
their shape.

In: `wrt`, arguments. Out: a `Selection`. It must not know what is done with the leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from incrax._messages import ambiguous_input, listed, unknown_input
from incrax._program import Values
from incrax.derivatives.cuts import Cut, is_mark, unmarked, without_marks
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.paths import completed, is_within
from incrax.engine.inputs.rows import has_rows
from incrax.engine.inputs.signature import Args, Function, Kwargs, argument_names, leaf_path
from incrax.errors import RowsError, SelectionError

_WRT = (
    "`wrt` takes the path of an argument or of a part of it as `explain()` prints it (or a tuple "
    "of paths), the number of an argument, or a pytree of booleans for the first argument."
)


@dataclass(frozen=True)
class Mirror:
    """A shape of results: a tree whose leaves are positions among the selected ones, or nothing."""

    treedef: Any
    positions: tuple[int | None, ...]

    def tree(self, results: Values) -> Any:
        """Results, one per selected leaf, in this shape; None where nothing was selected."""
        placed = [None if k is None else results[k] for k in self.positions]
        return jax.tree.unflatten(self.treedef, placed)


@dataclass(frozen=True)
class Selection:
    """The leaves of one call that are differentiated."""

    treedef: Any  # of the arguments; a mark is a leaf
    leaves: tuple[Any, ...]  # all of them
    numbers: tuple[int, ...]  # of the selected ones, each once
    mirror: Mirror  # the shape of results
    paths: tuple[str, ...]  # names of the selected ones

    @property
    def argnums(self) -> tuple[int, ...]:
        """All arguments of `of_selected`, for the transformations of JAX."""
        return tuple(range(len(self.numbers)))

    @property
    def has_repeats(self) -> bool:
        """Whether a leaf was selected twice."""
        positions = self.mirror.positions
        return len(positions) - positions.count(None) > len(self.numbers)

    @property
    def values(self) -> list[Any]:
        """The selected leaves, without marks."""
        return [unmarked(self.leaves[number]) for number in self.numbers]

    @property
    def dtypes(self) -> list[Any]:
        """Those of the selected leaves."""
        return [jax.dtypes.result_type(value) for value in self.values]

    @property
    def others(self) -> list[Any]:
        """The leaves that are values for JAX and not selected, without marks."""
        return [unmarked(self.leaves[number]) for number in self._other_numbers]

    @property
    def _other_numbers(self) -> list[int]:
        chosen = set(self.numbers)
        return [
            k
            for k, leaf in enumerate(self.leaves)
            if k not in chosen and is_dynamic(unmarked(leaf))
        ]

    def tree(self, results: Values) -> Any:
        """Results, one for each selected leaf, in the shape of results."""
        return self.mirror.tree(results)

    def merged(self, values: Values, others: Values | None = None) -> tuple[Args, Kwargs]:
        """The arguments with other values for the selected leaves, and for the others, if given.

        Marks are taken off; what is cut has no tangents.
        """
        new = dict(zip(self.numbers, values, strict=True))
        if others is not None:
            new.update(zip(self._other_numbers, others, strict=True))
            cut = [k for k in self._other_numbers if isinstance(self.leaves[k], Cut)]
            new.update((k, Cut(new[k])) for k in cut)
        leaves = [new.get(k, leaf) for k, leaf in enumerate(self.leaves)]
        return without_marks(jax.tree.unflatten(self.treedef, leaves))

    def called(self, fun: Function, values: Values) -> Any:
        """What a function gives at the arguments with other values for the selected leaves."""
        args, kwargs = self.merged(values)
        return fun(*args, **kwargs)

    def of_selected(self, fun: Function) -> Function:
        """The function of the selected leaves alone."""
        return lambda *values: self.called(fun, values)


def select(
    name: str,
    fun: Function,
    wrt: Any,
    args: Args,
    kwargs: Kwargs,
    *,
    allow_int: bool = False,
) -> Selection:
    """The leaves that `wrt` stands for; `name` is the caller's, for messages.

    Raises:
        SelectionError: `wrt` cannot be understood, or selects what has no derivative, or nothing.
        UnknownInputError: a path names nothing.
    """
    with_paths, treedef = jax.tree.flatten_with_path((args, kwargs), is_leaf=is_mark)
    names = argument_names(fun, len(args))
    paths = [leaf_path(names, path) for path, _ in with_paths]
    leaves = tuple(leaf for _, leaf in with_paths)
    numbered = jax.tree.unflatten(treedef, range(len(leaves)))
    asked = _asked(name, wrt, numbered, names, paths)
    found, shape = jax.tree.flatten(asked, is_leaf=lambda x: x is None)
    is_usable = lambda k: k is not None and _is_usable(leaves[k], allow_int=allow_int)
    usable = [k if is_usable(k) else None for k in found]
    numbers = tuple(dict.fromkeys(k for k in usable if k is not None))
    if not numbers:
        seen = [(paths[k], leaves[k]) for k in found if k is not None]
        if wrt is not None and seen and shape == jax.tree.structure(0):
            raise _refusal(name, *seen[0])
        raise _nothing_selected(name, [path for path, _ in seen])
    positions = tuple(None if k is None else numbers.index(k) for k in usable)
    mirror = Mirror(shape, positions)
    return Selection(treedef, leaves, numbers, mirror, tuple(paths[k] for k in numbers))


def as_parameters(name: str, fun: Function, wrt: Any, args: Args) -> Args:
    """Arguments in which what `wrt` offers as parameters can move: integers of Python are floats,
    `{"mu": 2}`.

    Raises:
        RowsError: `Rows` are among them.
        SelectionError: an array of integers is among them, or `wrt` cannot be understood.
        UnknownInputError: a path names nothing.
    """
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_mark)
    if has_rows(leaves):
        raise RowsError(
            f"`{name}` got `Rows`, and fits and samplers of functions take arrays. Nothing was "
            "evaluated or stored. Pass `rows.tree()`; or fit a model whose data they are: "
            "`incrax.bind(fun, ..., x=rows, roles={'x': 'data'})`."
        )
    if not any(_is_integer(unmarked(leaf)) for leaf in leaves):
        return args  # nearly always, and faster than to find the selection
    selection = select(name, fun, wrt, args, {}, allow_int=True)
    for number, path in zip(selection.numbers, selection.paths, strict=True):
        value = unmarked(leaves[number])
        if is_python_int(value):
            leaves[number] = float(value)
        elif _is_integer(value):
            raise integer_parameter(name, path, type_name(value))
    return jax.tree.unflatten(treedef, leaves)


def integer_parameter(name: str, path: str, type_name: str) -> SelectionError:
    """An array of integers was offered as a parameter."""
    return SelectionError(
        f"`{name}` was asked to move `{path}` of type {type_name}, and integers have no "
        "derivative: it would stay where it is. This is usually a number without a decimal point. "
        "Nothing was evaluated or stored. Write 1.0 instead of 1, `np.array([1.0, 2.0])`; if it is "
        f"no parameter, pass it as another argument or leave it out of `wrt`.{_drawn(name)}"
    )


def _drawn(name: str) -> str:
    return " Labels and spins are drawn by `samplers.Categorical`." * (name == "gibbs")


def is_python_int(x: Any) -> bool:
    """Whether a leaf is an integer of Python; a flag is none."""
    return isinstance(x, int) and not isinstance(x, (bool, Enum))


def _is_integer(x: Any) -> bool:
    return is_python_int(x) or (
        is_dynamic(x) and jnp.issubdtype(getattr(x, "dtype", bool), jnp.integer)
    )


def _is_usable(leaf: Any, *, allow_int: bool) -> bool:
    """Whether a leaf can be differentiated."""
    if isinstance(leaf, Cut) or not is_dynamic(unmarked(leaf)):
        return False
    return allow_int or jnp.issubdtype(jax.dtypes.result_type(unmarked(leaf)), jnp.inexact)


def _nothing_selected(name: str, paths: Sequence[str]) -> SelectionError:
    return SelectionError(
        f"`{name}` has nothing to differentiate: of {listed(paths, 'no leaves')}, none is a "
        "floating-point or complex array without a mark. This is usually a function whose "
        "first argument holds integers only, or where all is marked by `cut`. Nothing was "
        f"evaluated or stored. Write 1.0 instead of 1, or name others by `wrt`. {_WRT}{_drawn(name)}"
    )


def _refusal(name: str, path: str, leaf: Any) -> SelectionError:
    if isinstance(leaf, Cut):
        return SelectionError(
            f"`{name}(wrt=...)` selects `{path}`, which is marked as constant by `cut`. Nothing "
            "was evaluated or stored. Take it out of `wrt`, or take the mark off with `uncut`."
        )
    return SelectionError(
        f"`{name}(wrt=...)` selects `{path}` of type {type_name(unmarked(leaf))}, and only "
        "floating-point and complex arrays have derivatives. This is usually an index, a count or "
        "a flag. Nothing was evaluated or stored. Convert it to a floating-point type, or leave it "
        "out."
    )


def type_name(value: Any) -> str:
    """The type of a leaf as messages show it: `float64[3,2]`."""
    if not is_dynamic(value):
        return type(value).__name__
    return f"{jax.dtypes.result_type(value)}[{','.join(map(str, np.shape(value)))}]"


def element_of(leaf: str, path: str, index: str) -> SelectionError:
    """An element of an array was to be differentiated by."""
    return SelectionError(
        f"`wrt={path!r}` names an element of `{leaf}`, and derivatives are by whole arrays. Nothing "
        f"was evaluated or stored. Write `wrt={leaf!r}`, and take `[{index}` of the result. `wrt` "
        "of a fit, `bounds=` and `fix` do take elements."
    )


# --- the forms of `wrt` ---------------------------------------------------------------------------


def wrong_wrt(name: str, wrt: Any, reason: str) -> SelectionError:
    """A selection that cannot be understood."""
    text = repr(wrt)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return SelectionError(
        f"`{name}(wrt=...)` got {shown}: {reason}. Nothing was evaluated or stored. {_WRT}"
    )


def _asked(name: str, wrt: Any, numbered: Any, names: Sequence[str], paths: Sequence[str]) -> Any:
    """A tree of leaf numbers, None where nothing is asked for."""
    args, _ = numbered
    wrt = 0 if wrt is None else wrt

    def one(x: str | int):
        if isinstance(x, str):
            return at_path(x, numbered, names, paths)
        if not -len(args) <= x < len(args):
            num = len(args) or "no"
            hint = "" if args else ": pass the first, or name one that is passed by keyword"
            raise wrong_wrt(name, x, f"the call has {num} positional arguments{hint}")
        return args[x]

    if _is_one(wrt):
        return one(wrt)
    if isinstance(wrt, (tuple, list)) and wrt and all(map(_is_one, wrt)):
        return type(wrt)(map(one, wrt))
    return _masked(name, wrt, args)


def _is_one(x: Any) -> bool:
    """Whether this is a path, or the number of an argument."""
    return isinstance(x, (str, int, np.integer)) and not isinstance(x, bool)


def at_path(path: str, numbered: Any, names: Sequence[str], paths: Sequence[str]) -> Any:
    """The part of the arguments with this name, or with the only one that ends so."""
    args, kwargs = numbered
    roots = [*zip(names, args, strict=True), *kwargs.items()]
    # The values behind `*values` are named `values[0]`, `values[1]`, ...
    behind_star = [node for name, node in roots if name.startswith(f"{path}[")]
    if behind_star and path not in dict(roots):
        return tuple(behind_star)
    parts = parts_of(dict(roots), path)
    if path in parts:
        return parts[path]
    ends = completed(paths, path)
    if len(ends) > 1:
        raise ambiguous_input(path, ends)
    if not ends or path in ends:
        raise _not_there(path, paths)
    return at_path(ends[0], numbered, names, paths)


def _not_there(path: str, paths: Sequence[str]) -> Exception:
    """An element of an array, or what is nowhere among the arguments."""
    whole, _, index = path.rpartition("[")
    leaves = [leaf for leaf in completed(paths, whole) if leaf in paths]
    return element_of(leaves[0], path, index) if leaves else unknown_input(path, paths)


def parts_of(trees: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The inputs and parts of them on the way to a path, and the part there if there is one, by
    their paths.
    """
    found: dict[str, Any] = {}
    for name, tree in trees.items():
        while is_within(path, name):
            found[name] = tree
            inner = [(key, part) for key, part in children(name, tree) if is_within(path, key)]
            if name == path or not inner:
                break
            name, tree = inner[0]
    return found


def children(name: str, tree: Any) -> list[tuple[str, Any]]:
    """The parts of a tree one level below, with their paths; none of a leaf."""
    pairs = tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    return [(f"{name}{keystr(keys)}", part) for keys, part in pairs if keys]


def _masked(name: str, mask: Any, args: Args) -> Any:
    """The leaves of the first argument under True."""
    flags = jax.tree.leaves(mask)
    if not flags or not all(isinstance(flag, (bool, np.bool_)) for flag in flags):
        raise wrong_wrt(name, mask, "it is none of what is understood")
    if not args:
        raise wrong_wrt(name, mask, "the call has no positional arguments")
    try:
        return jax.tree.map(
            lambda flag, part: part if flag else jax.tree.map(lambda _: None, part), mask, args[0]
        )
    except ValueError as error:
        raise wrong_wrt(
            name, mask, f"its structure is not that of the first argument: {error}"
        ) from error
