"""A problem of pytrees as one of a vector.

In: a function of pytrees, its arguments, what is free, bounds. Out: a `Problem`: the function of
real leaves, as integers of Python are floats from here on, and complex leaves their real and
imaginary parts; vectors, and the way back.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import Bound, Incremental, incremental
from incrax._messages import (
    ambiguous_input,
    as_real,
    check_function,
    did_you_mean,
    listed,
    unknown_input,
    wrong_option,
)
from incrax._table import many
from incrax._tables import LruTable
from incrax.derivatives.cuts import is_mark, unmarked
from incrax.derivatives.flat import Ends, FreeElements, ends
from incrax.derivatives.selection import Mirror, as_parameters, select, type_name
from incrax.derivatives.transforms import options_of, plain
from incrax.engine.inputs.frames import Frame, Hole, framed
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.paths import completed, element_names
from incrax.engine.inputs.signature import argument_names, leaf_path
from incrax.errors import BindError, BoundsError, ParameterTypeError
from incrax.models.bound import check_trainable, differentiated
from incrax.models.bounds import Box, bounds_from
from incrax.models.names import elements_named, without_index

Limits = Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]]
"""Bounds as users give them: by name, or one pair for each element of an array."""

NUM_SHAPES = 256
"""Shapes of problems that are kept: of a small fit, finding one takes a tenth of the time."""
NUM_PROGRAMS = 64
"""Of each kind, the functions whose programs are kept."""


def remembered(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps what it returned lately, where its arguments can be hashed."""
    table: LruTable[Any, Any] = LruTable(NUM_PROGRAMS)
    return lambda *key: table.made(key, lambda: make(*key))


def check_model(caller: str, model: Any) -> None:
    """Raise where a bound model is needed, and a function was given."""
    if not isinstance(model, Bound):
        raise wrong_option(caller, model, "a bound model, `incrax.bind(f, ...)`")


def check_positive(option: str, value: Any, *, or_zero: bool = False) -> None:
    """Raise where a number must be above zero, and is not, or is NaN."""
    number = as_real(option, value)
    if not (number > 0 or (or_zero and number == 0)):
        expected = "a number of at least zero" if or_zero else "a number above zero"
        raise ValueError(f"`{option}` got {value!r}. Nothing was evaluated. Pass {expected}.")


def check_search(caller: str, tolerance: Any, callback: Any) -> None:
    """Raise where a search could not end, or not say where it is."""
    if tolerance is not None:
        check_positive(f"{caller}(tolerance=...)", tolerance, or_zero=True)
    if callback is not None:
        check_function(f"{caller}(callback=...)", callback)


# --- what is free ---------------------------------------------------------------------------------


def real_leaves(
    caller: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function of real leaves, and its arguments: integers of Python that `wrt` selects are
    floats, and complex leaves their parts.

    Raises:
        SelectionError: `wrt` cannot be understood, or selects an array of integers or nothing that
            has a derivative.
        UnknownInputError: a path names nothing.
    """
    args = as_parameters(caller, plain(fun), wrt, args)
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_mark)
    is_complex = [not is_mark(leaf) and jnp.iscomplexobj(leaf) for leaf in leaves]
    if not any(is_complex):
        return fun, args
    chosen = select(caller, plain(fun), wrt, args, {}).numbers
    free = [number for number in chosen if is_complex[number]]
    for number in free:
        leaf: Any = leaves[number]
        value: Any = leaf if isinstance(leaf, complex) else np.asarray(leaf)
        leaves[number] = Parts(value.real, value.imag)
    return _by_parts(fun) if free else fun, jax.tree.unflatten(treedef, leaves)


# --- complex leaves -------------------------------------------------------------------------------


class Parts(NamedTuple):
    """A complex leaf that is free, as two real ones: `c.re`, `c.im`."""

    re: Any
    im: Any


def joined(tree: Any) -> Any:
    """The tree with complex leaves again."""
    is_parts = lambda x: isinstance(x, Parts)
    return jax.tree.map(lambda x: _complex(*x) if is_parts(x) else x, tree, is_leaf=is_parts)


def _complex(re: Any, im: Any) -> Any:
    if not isinstance(re, np.ndarray):
        return jax.lax.complex(re, im)
    found = np.empty(re.shape, np.result_type(re, np.complex64))
    found.real, found.imag = re, im
    return found


@remembered
def _by_parts(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function of parts, the same one again for the same function, so that its programs are
    found again; an incremental one keeps its options.
    """
    whole = plain(fun)

    @functools.wraps(whole)
    def found(*args):
        return whole(*joined(args))

    return incremental(found, **options_of(fun)) if isinstance(fun, Incremental) else found


# --- elements -------------------------------------------------------------------------------------


def _of_leaves(
    fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any
) -> tuple[Any, tuple[str, ...] | None]:
    """`wrt` of whole leaves, and the elements that it named, if it did."""
    names = (wrt,) if isinstance(wrt, str) else wrt
    if isinstance(names, (tuple, list)) and names and all(isinstance(x, str) for x in names):
        paths = _paths(fun, args)
        leaves = [_leaf(name, paths) for name in names]
        is_whole = leaves == list(names)
        return (wrt, None) if is_whole else (tuple(dict.fromkeys(leaves)), tuple(names))
    return wrt, None


def _leaf(name: str, paths: Sequence[str]) -> str:
    """The leaf in which a name lies; the name itself if it is one, or none."""
    array, _ = without_index(name)
    whole = array.removesuffix(".re").removesuffix(".im")
    return next((each for each in (name, array, whole) if completed(paths, each)), name)


def _paths(fun: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    names = argument_names(fun, len(args))
    with_paths, _ = jax.tree.flatten_with_path((args, {}), is_leaf=is_mark)
    return [leaf_path(names, path) for path, _ in with_paths]


def _are_named(asked: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Which elements some names stand for, of those with these names.

    Raises:
        UnknownInputError: a name stands for none, or for several things.
    """
    known = {name: [number] for number, name in enumerate(names)}
    are_named = np.zeros(len(names), bool)
    for name in asked:
        found = {name: known[name]} if name in known else elements_named(name, names)
        if not found:
            raise unknown_input(name, names)
        if len(found) > 1:
            raise ambiguous_input(name, [*found])
        are_named[next(iter(found.values()))] = True
    return are_named


# --- a vector -------------------------------------------------------------------------------------


class ArgumentLayout(NamedTuple):
    """How the arguments of a function are made of a vector and of what is fixed.

    It is what the types of the arguments decide, and hashable.
    """

    frame: Frame
    """The arguments without what is a value for JAX."""
    numbers: tuple[int, ...]
    """Of the free leaves among the values."""
    ends: Ends
    dtypes: tuple[Any, ...]
    mirror: Mirror
    paths: tuple[str, ...]
    """Of the free leaves."""
    names: tuple[str, ...]
    """Of the free elements."""

    @property
    def other_numbers(self) -> list[int]:
        """Of the values that are fixed."""
        leaves = self.frame.leaves
        return [k for k in range(leaves.count(Hole)) if k not in self.numbers]

    @property
    def dtype(self) -> np.dtype:
        """Of the vector."""
        return np.result_type(np.float32, *self.dtypes)

    def arguments(self, x: Any, others: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments at a vector of shape (n,)."""
        return self.filled(self.free_leaves(x), others)

    def filled(self, free: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with these free leaves, and these others."""
        values = dict(zip(self.numbers, free, strict=True))
        values |= zip(self.other_numbers, others, strict=True)
        return self.frame.filled(values[k] for k in range(len(values)))[0]

    def by_path(self, x: Any) -> dict[str, Any]:
        """The parts of a vector, in the shapes of the free leaves."""
        return dict(zip(self.paths, self.ends.split(x), strict=True))

    def free_leaves(self, x: Any) -> list[Any]:
        """A vector as the free leaves."""
        parts = self.ends.split(x)
        return [part.astype(dtype) for part, dtype in zip(parts, self.dtypes, strict=True)]


class Problem(NamedTuple):
    """What is minimised, where the search starts, in which bounds."""

    fun: Callable[..., Any]
    """Of real leaves; an incremental one keeps its options."""
    args: tuple[Any, ...]
    wrt: Any
    """As in `grad`: whole leaves."""
    layout: ArgumentLayout
    x: np.ndarray
    others: tuple[Any, ...]
    box: Box
    tree_of: Callable[[list[Any]], Any] | None = None
    """Of bound models: the trainable inputs from the leaves of the layout."""
    free: FreeElements | None = None
    """Of bound models of which something is fixed that the layout has: what is free of it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the free elements."""
        names = self.layout.names
        return names if self.free is None else tuple(names[k] for k in self.free.numbers)

    def arguments(self, x: Any) -> tuple[Any, ...]:
        """Those of the function at a vector."""
        return self.with_others(x, self.others)

    def with_others(self, x: Any, others: Sequence[Any]) -> tuple[Any, ...]:
        """The same with other values of what is fixed."""
        return self.layout.arguments(self.whole(x), others)

    def whole(self, x: Any) -> Any:
        """All elements of the layout at a vector of the free ones."""
        return x if self.free is None else self.free.whole(x)

    def only(self, is_free: np.ndarray) -> Problem:
        """The same problem of some elements; the others stay."""
        if is_free.all():
            return self
        free = FreeElements(np.flatnonzero(is_free), self.x)
        box = Box(*(each[free.numbers] for each in self.box))
        return self._replace(x=self.x[free.numbers], box=box, free=free)

    def masks(self) -> dict[str, np.ndarray | None] | None:
        """Of each leaf of the layout which elements are free, as `flat_at` takes it; None: all."""
        if self.free is None:
            return None
        is_free = np.zeros(len(self.layout.names), bool)
        is_free[self.free.numbers] = True
        return self.layout.by_path(is_free)

    def pinned(self) -> Problem:
        """The same problem of all elements of the layout, what is fixed between two bounds at its
        value: a program for one mask is one for each.
        """
        if self.free is None:
            return self
        x = self.free.whole(self.x).astype(self.x.dtype)
        box = Box(*(self.free._replace(values=x).whole(each) for each in self.box))
        return self._replace(x=x, box=box, free=None)

    def tree(self, x: np.ndarray) -> Any:
        """A vector in the shape of the first argument if all that is free is part of it, as arrays
        of JAX; what is fixed as it was.
        """
        if self.tree_of is not None:
            return self.selected(x)
        fixed = {id(leaf) for leaf in self.others}
        put = lambda leaf: leaf if id(leaf) in fixed else _on_device(leaf)
        return jax.tree.map(put, joined(self.arguments(x)[0]))

    def selected(self, x: np.ndarray) -> Any:
        """A vector in the shape of the selection, None where nothing is free."""
        layout = self.layout
        tree_of = self.tree_of or layout.mirror.tree
        return jax.tree.map(_on_device, joined(tree_of(layout.free_leaves(self.whole(x)))))


def _on_device(leaf: Any) -> Any:
    """An array of NumPy as one of JAX.

    Vectors are cut by NumPy and put on the device afterwards: by JAX, each of some ten operations
    would be compiled.
    """
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def problem(
    caller: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any, bounds: Any
) -> Problem:
    """A function of real leaves at its arguments; `caller` is what users called, for messages.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        BoundsError: bounds name nothing free, are no pairs, or exclude the start.
        ParameterTypeError: a free leaf is complex, or none has an element.
    """
    layout, leaves = laid_out(caller, fun, args, wrt)
    values = [np.ravel(np.asarray(leaves[number])) for number in layout.numbers]
    x = np.concatenate(values, dtype=layout.dtype)
    others = tuple(leaves[number] for number in layout.other_numbers)
    return Problem(fun, args, wrt, layout, x, others, _box(caller, layout, bounds, x))


def laid_out(
    name: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any
) -> tuple[ArgumentLayout, list[Any]]:
    """The layout, found once for arguments of the same types, and their values without marks.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        ParameterTypeError: a free leaf is complex.
    """
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_mark)
    names = tuple(argument_names(plain(fun), len(args)))
    kinds = tuple(map(type, jax.tree.leaves(wrt)))  # 1 is no True here, although they are equal
    real = jax.dtypes.canonicalize_dtype(float)
    key = (name, names, wrt, kinds, treedef, real, *map(_kind, leaves))
    # A mask, a mark, or a static value may have no hash.
    layout = _layouts.made(key, lambda: _layout(name, fun, args, wrt))
    return layout, [
        unmarked(x) for x, at in zip(leaves, layout.frame.leaves, strict=True) if at is Hole
    ]


_layouts: LruTable[Any, ArgumentLayout] = LruTable(NUM_SHAPES)


def _kind(leaf: Any) -> Any:
    """What of a leaf decides the layout: a type, or a static value itself."""
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return leaf.shape, leaf.dtype
    return (type(leaf), leaf) if not is_dynamic(leaf) else ((), jax.dtypes.result_type(leaf))


def _layout(name: str, fun: Callable[..., Any], args: tuple[Any, ...], wrt: Any) -> ArgumentLayout:
    selection = select(name, fun, wrt, args, {})
    values = selection.values
    for path, value in zip(selection.paths, values, strict=True):
        if jnp.iscomplexobj(value):
            raise ParameterTypeError(
                f"`{name}` was asked to fit `{path}` of type {type_name(value)}, and only "
                "`minimize` and `levenberg_marquardt` of a function itself fit complex parameters, "
                "by their parts. Nothing was evaluated. Pass real and imaginary part as two "
                "parameters, or leave it out of `wrt`."
            )
    is_value = [is_dynamic(unmarked(leaf)) for leaf in selection.leaves]
    frame, _ = framed(selection.treedef, selection.leaves, is_value)
    shapes = ends([np.shape(value) for value in values])
    if not shapes.size:
        raise ParameterTypeError(
            f"`{name}` has no parameter to fit: {listed(selection.paths)} without any element. This is usually an "
            "array that was cut or filtered to nothing. Nothing was evaluated. Pass at least one "
            "number, or name what is free by `wrt`."
        )
    return ArgumentLayout(
        frame,
        tuple(sum(is_value[:number]) for number in selection.numbers),
        ends=shapes,
        dtypes=tuple(np.dtype(jax.dtypes.result_type(value)) for value in values),
        mirror=selection.mirror,
        paths=selection.paths,
        names=element_names(selection.paths, shapes.shapes),
    )


def posed(
    caller: str, fun: Any, args: tuple[Any, ...], wrt: Any, bounds: Any, *, parameter: str = "fun"
) -> Problem:
    """What users hand to a fit: a function with its arguments, or a bound model at its present
    values, within its bounds. `caller` is what they called, with this `parameter`, for messages.

    Raises:
        TypeError: it is neither.
        BindError: arguments, `wrt` or bounds are given beside a model, or nothing in it is
            trainable.
        And what `real_leaves` and `problem` raise.
    """
    if isinstance(fun, Bound):
        _check_beside(caller, {"arguments": args or None, "`wrt`": wrt, "`bounds`": bounds})
        return _posed_model(caller, fun)
    if not callable(fun):
        raise wrong_option(f"{caller}({parameter})", fun, "a function or a bound model")
    wrt, elements = _of_leaves(plain(fun), args, wrt)
    found = problem(caller, *real_leaves(caller, fun, args, wrt), wrt, bounds)
    return found if elements is None else found.only(_are_named(elements, found.names))


def _posed_model(caller: str, model: Bound) -> Problem:
    check_trainable(model, caller)
    paths, is_free, tree_of = differentiated(model)
    bounds = model.bounds.items()
    own = {path: pair for path, pair in bounds if path in paths and np.size(pair[0])}
    found = problem(caller, model.function, model.args, paths, own)
    return found._replace(tree_of=tree_of).only(is_free)


def _check_beside(caller: str, given: Mapping[str, Any]) -> None:
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise BindError(
            f"`{caller}` got a bound model and {', '.join(named)} beside it. A model has values, "
            "roles and bounds of its own. Nothing was evaluated. Use `model.set`, `model.set_role` "
            "and `bind(bounds=...)`, or pass the function itself."
        )


# --- bounds ---------------------------------------------------------------------------------------


def _box(caller: str, layout: ArgumentLayout, bounds: Any, x: np.ndarray) -> Box:
    """What users say of bounds."""
    box = Box(np.full(x.shape, -np.inf, x.dtype), np.full(x.shape, np.inf, x.dtype))
    if bounds is not None and not isinstance(bounds, Mapping):
        bounds = _by_name(caller, layout, bounds)
    parts = layout.ends.parts()
    leaf_of = lambda number: bisect.bisect(layout.ends.bounds, number) - 1
    for path, pair in (bounds or {}).items():
        numbers = _bounded(caller, layout, path)
        try:
            for leaf, own in itertools.groupby(numbers, leaf_of):
                first, last, shape = parts[leaf]
                chosen = [*own]
                is_whole = len(chosen) == last - first
                limits = bounds_from(pair, shape if is_whole else (), x.dtype)
                box.lower[chosen], box.upper[chosen] = map(np.ravel, limits)
        except ValueError as error:
            raise _wrong_bounds(caller, f"{pair!r} for `{path}`", str(error)) from error
    _check_start(caller, layout, box, x)
    return box


def _check_start(caller: str, layout: ArgumentLayout, box: Box, x: np.ndarray) -> None:
    for name, low, value, high in zip(layout.names, box.lower, x, box.upper, strict=True):
        if value < low or value > high:  # NaN is not
            raise BoundsError(
                f"`{caller}` starts with `{name}` = {value:.6g}, outside of its bounds ({low:.6g}, "
                f"{high:.6g}). Nothing was evaluated. Start inside, or widen the bounds."
            )


def _by_name(caller: str, layout: ArgumentLayout, pairs: Any) -> dict[str, Any]:
    """Pairs in the order of the elements, as SciPy takes them.

    Only of one array: the order of several leaves is JAX's, which sorts keys.
    """
    if not isinstance(pairs, (tuple, list)) or len(layout.paths) != 1:
        raise _wrong_bounds(caller, repr(pairs), "it is no mapping of paths to pairs")
    num = len(layout.names)
    if len(pairs) != num:
        reason = f"`{layout.paths[0]}` has {many(num, 'element')}"
        raise _wrong_bounds(caller, many(len(pairs), "pair"), reason)
    return dict(zip(layout.names, pairs, strict=True))


def _bounded(caller: str, layout: ArgumentLayout, name: str) -> list[int]:
    """The places of the elements that a name stands for.

    Raises:
        BoundsError: it stands for nothing free, or for several things.
    """
    found = elements_named(name, layout.names)
    if not found:
        raise BoundsError(
            f"`{caller}(bounds=...)` names `{name}`, and no free parameter has this path. This "
            "is usually a typing error, or a parameter that `wrt` leaves out. Nothing was "
            f"evaluated. Free are {listed(layout.paths)}.{did_you_mean(str(name), layout.paths)}"
        )
    if len(found) > 1:
        raise BoundsError(
            f"`{caller}(bounds=...)` names `{name}`, which may be {listed(found)}. Nothing was evaluated. "
            "Write the whole path of the one you mean."
        )
    return next(iter(found.values()))


# --- residuals ------------------------------------------------------------------------------------


def residual_vector(tree: Any, dtype: Any) -> Any:
    """All residuals as a vector of real numbers; of a complex one, real and imaginary part.

    Raises:
        ParameterTypeError: there are none.
    """
    leaves = jax.tree.leaves(tree)
    if not any(np.size(leaf) for leaf in leaves):
        raise ParameterTypeError(
            f"`levenberg_marquardt` needs a function that returns residuals, and got {repr(tree)} "
            "from it. Nothing was evaluated. Return an array, or a pytree of arrays, whose squares "
            "are to be summed; for a scalar cost pass `prepare(cost, ...).flat` to a minimiser."
        )
    parts = []
    for flat in map(jnp.ravel, leaves):
        parts += [flat.real, flat.imag] if jnp.iscomplexobj(flat) else [flat]
    return jnp.concatenate(parts).astype(dtype)


def _wrong_bounds(caller: str, seen: str, reason: str) -> BoundsError:
    """Bounds that cannot be understood."""
    return BoundsError(
        f"`{caller}(bounds=...)` got {seen}: {reason}. Nothing was evaluated. Pass a mapping of "
        "paths to pairs, with None for no bound: `bounds={\"params['sigma']\": (0, None)}`; of one "
        "array also a pair for each element."
    )
