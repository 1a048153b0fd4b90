"""Signatures: what must be the same for two calls to share a trace.

In: the arguments of a call. Out: a hashable key, the dynamic leaves, and names for them. It must
not know values.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import jax

from incrax import _jax
from incrax._context import context_key
from incrax._messages import first_few, mutable_static, unhashable_static
from incrax._program import Args, Function, Kwargs, Values
from incrax.engine.inputs.leaves import check_dynamic, descriptor, has_type, is_dynamic
from incrax.engine.inputs.mutable import mutable_part
from incrax.engine.inputs.placement import Placed

NUM_CHARACTERS = 40
"""Of a static value, in a line that says how signatures differ."""


@dataclass(frozen=True)
class Signature:
    """The structure of a call: its tree, which leaves are values, the static ones, types, names,
    configuration.
    """

    treedef: Any
    descriptors: tuple[Any, ...]
    """Of the leaves that are values; None for static ones."""
    statics: tuple[Any, ...]
    hashes: tuple[int, ...]
    """Of the static leaves, as they were first."""
    paths: tuple[str, ...]
    config: Hashable

    @property
    def key(self) -> Hashable:
        """Equal keys share a trace: of static values those that are equal and of one class, as under
        `jax.jit`. Equal members of two `IntEnum` differ.
        """
        statics = tuple((type(x), x) for x in self.statics)
        return self.treedef, self.descriptors, statics, self.config

    @property
    def strong_key(self) -> Hashable:
        """The same, whether types are weak or not: of a Python number and one of NumPy."""
        strong = tuple(known and (*known[:2], *known[3:]) for known in self.descriptors)
        return replace(self, descriptors=strong).key

    @cached_property
    def is_dynamic(self) -> tuple[bool, ...]:
        """Which leaves are values."""
        return tuple(known is not None for known in self.descriptors)

    @cached_property
    def is_static(self) -> tuple[bool, ...]:
        """Which leaves are static."""
        return tuple(known is None for known in self.descriptors)

    def dynamic_leaves(self, leaves: Values) -> Values:
        """The leaves that are values."""
        return list(compress(leaves, self.is_dynamic)) if self.statics else leaves

    def leaves_of(self, args: Args, kwargs: Kwargs) -> Values | None:
        """All leaves of a call; None where its tree is another. What is no leaf may stand in the
        place of one: `same_types` and `same_statics` refuse it.

        JAX sorts the keys of a dict by comparing them as objects of Python: 200 in 20 us. Where every
        argument is a leaf or a dict of leaves, these are looked up by the keys as sorted once.
        """
        keys_by_argument = self._keys_by_argument
        if keys_by_argument is None:
            leaves, treedef = _jax.flatten((args, kwargs))
            return leaves if treedef == self.treedef else None
        given = *args, kwargs
        if len(given) != len(keys_by_argument):
            return None
        leaves: list[Any] = []
        for x, keys in zip(given, keys_by_argument, strict=True):
            if keys is None:
                leaves.append(x)
            elif type(x) is dict and len(x) == len(keys):
                try:
                    leaves.extend(map(x.__getitem__, keys))
                except KeyError:
                    return None
            else:
                return None
        return leaves

    @cached_property
    def _keys_by_argument(self) -> tuple[tuple[Any, ...] | None, ...] | None:
        """The keys of each argument, the dict of keyword arguments last, in the order of its leaves; of
        one that is a leaf itself None. None for all where one is neither.
        """
        args, kwargs = self.treedef.children()
        nodes = [(node, node.node_data()) for node in (*args.children(), kwargs)]
        for node, data in nodes:
            is_flat = node.num_nodes == 1 + node.num_leaves
            if data is not None and not (data[0] is dict and is_flat):
                return None
        return tuple([None if data is None else tuple(data[1]) for _, data in nodes])

    def is_of(self, treedef: Any) -> bool:
        """Whether a call of this tree, in the present configuration, may have this signature."""
        return treedef == self.treedef and context_key() == self.config

    def accepts(self, leaves: Values, treedef: Any) -> bool:
        """Whether a call with these leaves has this signature."""
        if not self.is_of(treedef) or not self.same_statics(leaves):
            return False
        dynamic = self.dynamic_leaves(leaves)
        return self.same_types(dynamic, range(len(dynamic)), ())

    def same_statics(self, leaves: Values) -> bool:
        """Whether leaves of the same tree have the same static values in the same places."""
        if any(is_dynamic(x) is not flag for x, flag in zip(leaves, self.is_dynamic, strict=True)):
            return False
        statics = list(compress(leaves, self.is_static))
        # the hash tells of an object that changed in place, which equals itself
        return (
            all(map(same_static, statics, self.statics))
            and tuple(map(hash, statics)) == self.hashes
        )

    def same_types(self, dynamic: Values, numbers: Iterable[int], anchors: Values) -> bool:
        """Whether some of the dynamic leaves are values of the known types; anchors are values that
        are.
        """
        python_types = self.python_types
        types = self.dynamic_types
        for index in numbers:
            x = dynamic[index]
            if type(x) is not python_types[index]:
                anchor = anchors[index] if anchors else None
                if not has_type(x, types[index], anchor):
                    return False
        return True

    @property
    def takes_leaves(self) -> bool:
        """Whether every argument is a leaf, and is given by position."""
        return self.treedef == _flat_tree(len(self.descriptors))

    @property
    def dynamic_tree(self) -> Any:
        """The tree of a function of the leaves that are values; of the arguments, where all are."""
        return _flat_tree(len(self.dynamic_types)) if self.statics else self.treedef

    @cached_property
    def dynamic_paths(self) -> tuple[str, ...]:
        """Names of the leaves that are values."""
        return tuple(compress(self.paths, self.is_dynamic))

    @property
    def named_statics(self) -> dict[str, Any]:
        """The static leaves by name."""
        return dict(zip(compress(self.paths, self.is_static), self.statics, strict=True))

    @cached_property
    def dynamic_types(self) -> tuple[Hashable, ...]:
        """Descriptors of the dynamic leaves."""
        return tuple(compress(self.descriptors, self.is_dynamic))

    @cached_property
    def placed(self) -> dict[int, Placed]:
        """The leaves that are bound to a device or a sharding, by their numbers among those that
        are values.
        """
        types: Any = self.dynamic_types
        placed = ((i, d) for i, d in enumerate(types) if len(d) == 4 and d[3] is not None)
        return {i: Placed(shape, sharding) for i, (shape, _, _, sharding) in placed}

    @property
    def num_parts(self) -> int:
        """How many devices share the work on a leaf, at most."""
        return max([1, *(placed.num_parts for placed in self.placed.values())])

    @cached_property
    def python_types(self) -> tuple[type | None, ...]:
        """Python types that decide a leaf's descriptor alone (float, int, ...), None for others."""
        known: dict[Any, type] = {descriptor(kind()): kind for kind in (bool, int, float, complex)}
        return tuple(known.get(d) for d in self.dynamic_types)

    def rebuild(self, dynamic: Values) -> tuple[Args, Kwargs]:
        """Arguments from the dynamic leaves."""
        values = iter(dynamic)
        statics = iter(self.statics)
        leaves = [next(values) if is_value else next(statics) for is_value in self.is_dynamic]
        return jax.tree.unflatten(self.treedef, leaves)


def _flat_tree(num_leaves: int) -> Any:
    return jax.tree.structure(((0,) * num_leaves, {}))


def same_static(x: Any, y: Any) -> bool:
    """Whether two static leaves are one value: equal, and of one class."""
    return type(x) is type(y) and (x is y or x == y)


def same_type(x: Any, known: Any) -> bool:
    """Whether a leaf is a value of the shape and dtype of a descriptor, weak or not, wherever it
    is.
    """
    return is_dynamic(x) and descriptor(x)[:2] == known[:2]


def type_text(known: Any) -> str:
    """The shape and dtype of a descriptor as messages show them: `float64[3, 2]`."""
    shape, dtype = known[:2]
    return f"{dtype}{list(shape)}" if isinstance(shape, tuple) else f"an array that is {shape}"


def make_signature(
    fun: Function,
    args: Args,
    kwargs: Kwargs,
    *,
    is_watched: bool = False,
) -> Signature:
    """The signature of a call; `is_watched`: static values are compared at each call by all that
    they hold.

    Raises:
        UnsupportedLeafError: a leaf is an array of a dtype without JAX type, or a static value
            without a hash, or one that can change without being another value.
    """
    with_paths, treedef = jax.tree.flatten_with_path((args, kwargs))
    names = argument_names(fun, len(args))
    paths = tuple(leaf_path(names, path) for path, _ in with_paths)
    descriptors: list[Hashable] = []
    statics = []
    for path, (_, leaf) in zip(paths, with_paths, strict=True):
        if is_dynamic(leaf):
            check_dynamic(leaf, path)
            descriptors.append(descriptor(leaf))
        else:
            descriptors.append(None)
            statics.append(_checked_static(leaf, path, is_watched=is_watched))
    hashes = tuple(map(hash, statics))
    config = context_key()
    return Signature(treedef, tuple(descriptors), tuple(statics), hashes, paths, config)


def _checked_static(leaf: Any, path: str, *, is_watched: bool) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise unhashable_static(path, leaf) from None
    part = None if is_watched else mutable_part(leaf)
    if part is not None:
        raise mutable_static(path, leaf, part)
    return leaf


_NAMES = "__incrax_argument_names__"


def with_names(fun: Function, names: Sequence[str]) -> Function:
    """The function, its positional arguments called so: names that no parameter can have, such as
    `params['mu']`.
    """
    setattr(fun, _NAMES, tuple(names))
    return fun


def argument_names(fun: Function, num_args: int) -> list[str]:
    """Names of positional arguments, `values[i]` for those of `*values`, `args[i]` where the
    function does not tell.
    """
    if (given := getattr(fun, _NAMES, None)) is not None:
        return list(given)
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in positional][:num_args]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
    first = len(names) if rest is not None else 0
    return names + [f"{rest or 'args'}[{i - first}]" for i in range(len(names), num_args)]


def leaf_path(names: Sequence[str], path: tuple[Any, ...]) -> str:
    """A leaf's name as users write it: `params['mu']`, `data`."""
    where, first, *rest = path
    name = names[first.idx] if where.idx == 0 else first.key
    return f"{name}{jax.tree_util.keystr(tuple(rest))}"


# --- differences ----------------------------------------------------------------------------------


def what_differs(signature: Signature, known: Iterable[Signature]) -> str:
    """What differs from the most similar other signature, in words; empty if there is no other."""
    others = [other for other in known if other is not signature]
    found = (differences(signature, other) for other in reversed(others))
    alike: dict[str, list[str]] = {}
    for leaf, how in min(found, key=len, default={}).items():
        alike.setdefault(how, []).append(leaf)
    return first_few(
        [
            f"{first_few(leaves)}{': each' if len(leaves) > 1 else ''} {how}"
            for how, leaves in alike.items()
        ]
    )


def differences(signature: Signature, other: Signature) -> dict[str, str]:
    """How two signatures differ, by leaf; never empty."""
    if signature.treedef != other.treedef or signature.paths != other.paths:
        new = set(signature.paths)
        old = set(other.paths)
        added = {f"`{path}`": "is new" for path in signature.paths if path not in old}
        gone = {f"`{path}`": "is gone" for path in other.paths if path not in new}
        return added | gone or {"the arguments": "are nested, or passed by name, otherwise"}
    statics = signature.named_statics
    other_statics = other.named_statics
    found = {}
    for path, new, old in zip(
        signature.paths, signature.descriptors, other.descriptors, strict=True
    ):
        shown = _shown(new, statics.get(path)), _shown(old, other_statics.get(path))
        if new != old or (
            path in statics and not same_static(statics[path], other_statics.get(path))
        ):
            how = _how(new, old) if shown[0] == shown[1] else ""
            found[f"`{path}`"] = f"is {shown[0]}, was {shown[1]}{how}"
    return found or {"JAX's configuration or a switch of incrax": "is another"}


def _shown(descriptor: Any, static: Any) -> str:
    """A leaf in a few words; what a user's class says of itself may be anything, even an error."""
    if descriptor is not None:
        return type_text(descriptor)
    try:
        text = repr(static)
    except Exception:
        text = f"a {type(static).__name__}"
    return " ".join(text.split())[:NUM_CHARACTERS]


def _how(new: Any, old: Any) -> str:
    """How descriptors differ that have one text: in their third element, whether the type is weak,
    or in the fourth.
    """
    if not isinstance(new, tuple) or not isinstance(old, tuple):
        return " (another object)"
    is_weak, was_weak = (len(known) > 2 and bool(known[2]) for known in (new, old))
    if is_weak == was_weak:
        return " on another device, or sharded otherwise"
    if was_weak:
        return " as a Python number (of weak type), and an array or number of NumPy now"
    return " as an array or number of NumPy (of strong type), and a Python number now"
