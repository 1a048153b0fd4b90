"""Rows with room for more: capacities that double, padding and cutting on the host, the check that
nothing is cut off; `Padded`, arrays of which only the first rows count; and `bucketed`, functions
of such, compiled once per capacity.

In: arrays and numbers. Out: arrays with room for more rows. It must not know what loops do.

Padding by `jax.numpy`, and `jnp.asarray` of a NumPy array, would compile a program for each length;
`jax.device_put`, which may alias its argument, gets copies only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.dtypes
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax_options import spelled_here
from incrax._messages import as_int, check_function, wrong_option
from incrax._names import WrapsFunction, names_in, parameters_of, reduced
from incrax.engine.inputs.signature import Args, Function, Kwargs
from incrax.errors import CapacityError, LoopTypeError

SMALLEST = 64
"""The least capacity: shorter arrays are padded to it."""


def capacity_for(num: int) -> int:
    """The least power of two, and at least `SMALLEST`, that `num` rows fit in."""
    return max(SMALLEST, 1 << (num - 1).bit_length() if num else 0)


def is_traced(x: Any) -> bool:
    """Whether a value is known only to a transformation."""
    return isinstance(x, _jax.Tracer)


def is_staged() -> bool:
    """Whether operations are being recorded, in `jit` for example, and not carried out."""
    return not _jax.is_top_level() and is_traced(lax.add(np.int32(0), np.int32(0)))


def num_rows(name: str, tree: Any) -> int | None:
    """The number of rows that all arrays of a tree have; None without arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    lengths = [
        (f"xs{jax.tree_util.keystr(path)}", np.shape(x)[0] if np.ndim(x) else "none")
        for path, x in leaves
    ]
    if len({length for _, length in lengths}) > 1 or any(length == "none" for _, length in lengths):
        shown = ", ".join(f"`{path}` {length}" for path, length in lengths[:8])
        raise LoopTypeError(
            f"`{name}` goes through its arrays row by row, and they have different numbers of "
            f"rows: {shown}. Nothing was evaluated. Pass arrays with equal first axes."
        )
    return int(lengths[0][1]) if lengths else None


def as_length(name: str, what: str, length: Any) -> Any:
    """A length as an int, or as the tracer that it is."""
    has_dtype = np.issubdtype(getattr(length, "dtype", bool), np.integer)
    is_integer = has_dtype or (isinstance(length, int) and not isinstance(length, bool))
    is_right = is_integer and not np.ndim(length)
    if is_right and is_traced(length):
        return length
    if not is_right or int(length) < 0:
        seen = int(length) if is_right else _seen(length)
        raise LoopTypeError(
            f"`{name}({what}=...)` got {seen}; it must be one integer, at least 0. Nothing was "
            "evaluated."
        )
    return int(length)


def as_size(name: str, what: str, size: Any) -> int:
    """A size as an int."""
    if is_traced(size):
        raise wrong_option(f"{name}({what})", size, "an integer that is known while tracing")
    return as_length(name, what, size)


def _seen(x: Any) -> str:
    return (
        str(jax.typeof(x))
        if isinstance(x, (np.ndarray, jax.Array))
        else f"{x!r} of type {type(x).__name__}"
    )


def is_on_host(x: Any) -> bool:
    """Whether an array can be read by NumPy: it is not traced, no typed key, and not spread over
    devices.
    """
    if not isinstance(x, jax.Array):
        return True
    return not is_traced(x) and not _jax.is_key_dtype(x.dtype) and _jax.is_held_whole(x)


def padded(x: Any, capacity: int) -> Any:
    """An array with rows of zeros up to `capacity`."""
    missing = capacity - np.shape(x)[0]
    if not missing:
        return x
    if isinstance(x, jax.Array) and not is_on_host(x):
        return lax.concatenate([x, lax.full((missing, *x.shape[1:]), 0, x.dtype)], 0)
    rows = np.asarray(x)
    room = np.zeros((capacity, *rows.shape[1:]), rows.dtype)
    room[: len(rows)] = rows
    return put_like(room, x) if _is_put(x) else room


def put_like(rows: Any, x: Any) -> Any:
    """The rows on the devices that an array was put on, if it was; they may be aliased."""
    return jax.device_put(rows, x.sharding if _is_put(x) else None)


def _is_put(x: Any) -> bool:
    return isinstance(x, jax.Array) and not is_traced(x) and x.committed


def cut(x: Any, length: int) -> Any:
    """The first rows of an array."""
    if x.shape[0] == length:
        return x
    if not is_on_host(x):
        return x[:length]
    rows = put_like(np.asarray(x)[:length].copy(), x)
    return _jax.as_weak_array(rows) if getattr(x, "weak_type", False) else rows


def checked(name: str, num: Any, capacity: int) -> Any:
    """The number; raises if it is more than there is room for: at once, or when a program runs that
    needs the result.

    A pure function on the host, not an effect: where the number is as before, its result may be a
    saved one.
    """
    if not is_traced(num):
        check_room(name, num, capacity)
        return num
    kind = jax.ShapeDtypeStruct(num.shape, num.dtype)
    report = functools.partial(_checked_on_host, name, capacity)
    asked = lambda: jax.pure_callback(report, kind, num, vmap_method="sequential")
    return lax.cond(num > capacity, asked, lambda: lax.convert_element_type(num, num.dtype))


def check_room(name: str, num: Any, capacity: int) -> None:
    """Raise if `num`, which is known, is more than there is room for."""
    if int(num) > capacity:
        raise CapacityError(
            f"`{name}` was asked for {int(num)} rows or turns, and there is room for {capacity}. "
            "Rows are never dropped silently. Pass arrays with more rows, or a larger `capacity=`; "
            "of `while_loop`, a larger `max_steps=`."
        )


def _checked_on_host(name: str, capacity: int, num: Any) -> Any:
    check_room(name, num, capacity)
    return np.asarray(num)


# --- arrays and the number that counts -----------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Padded:
    """Rows with room for more: a pytree of arrays whose first `length` rows count.

    Args:
        values: pytree of arrays of shape (capacity, ...); what stands past `length` is zero if
            incrax made it.
        length: number of rows that count, an integer or a traced one.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> p = incrax.Padded(jnp.array([5.0, 7.0, 0.0, 0.0]), 2)
        >>> p.capacity, p.mask.tolist(), p.exact().tolist()
        (4, [True, True, False, False], [5.0, 7.0])
    """

    values: Any
    length: Any
    _is_checked: bool = field(default=False, metadata={"static": True}, repr=False)
    """Whether `length` is known to be no more than `capacity`, so that programs do not check it."""
    _source: Any = field(default=None, metadata={"static": True}, repr=False)
    """The argument of a `bucketed` function that this is, or is a derivative by."""

    @property
    def capacity(self) -> int:
        """Number of rows that there is room for."""
        return num_rows("Padded", self.values) or 0

    @property
    def mask(self) -> jax.Array:
        """Which rows count, of shape (capacity,)."""
        return jnp.arange(self.capacity) < self._num_rows

    @property
    def _num_rows(self) -> Any:
        """`length`, looked at where it is used: JAX puts anything in the place of leaves."""
        dtype = getattr(self.length, "dtype", None)
        if as_int(self.length) is None if dtype is None else dtype.kind not in "iu":
            raise wrong_option("Padded(values, length)", self.length, "an integer")
        return self.length

    def filled(self, value: Any = 0) -> Any:
        """The values, with `value` in rows that do not count; derivatives there are zero."""
        return jax.tree.map(lambda x: _filled(x, self.mask, value), self.values)

    def __len__(self) -> int:
        """Number of rows that count; in a function of `guarded`, a guard on it.

        Raises:
            LoopTypeError: inside another traced function, where it is unknown.
        """
        try:
            return operator.index(self._num_rows)
        except jax.errors.TracerIntegerConversionError:
            raise LoopTypeError(
                f"`len()` of a `Padded` with room for {self.capacity} rows was asked for inside a "
                "traced function (jit, grad, vmap), where the number of rows is unknown. Nothing "
                "was evaluated. Use `length`, which is traced, or `capacity`, which is not; in a "
                "function of `incrax.guarded`, outside of transformations, `len` is a guard."
            ) from None

    def __bool__(self) -> bool:
        """True, also without rows."""
        return True

    def exact(self) -> Any:
        """The rows that count and no others, in the shape of `values`; not inside a traced
        function.

        Raises:
            CapacityError: `length` is more than `capacity`.
        """
        if is_traced(self.length):
            raise TypeError(
                "`Padded.exact()` was called inside a traced function (jit, grad, vmap), where the "
                "number of rows is unknown and a shape must be known. Use `values` with `mask`, "
                "`filled(...)` or `incrax.scan`."
            )
        check_room("Padded.exact", self._num_rows, self.capacity)
        return jax.tree.map(lambda x: cut(x, int(self.length)), self.values)


def _filled(x: Any, mask: Any, value: Any) -> Any:
    x = jnp.asarray(x)
    rows = lax.broadcast_in_dim(mask, x.shape, (0,))
    return lax.select(rows, x, jnp.full(x.shape, value, x.dtype))


# --- arguments whose number of rows changes from call to call --------------------------------------

Names: TypeAlias = Sequence[str | int]
"""Arguments as users name them: by name or position."""

Lengths = dict[str | int, int]
"""Numbers of rows by argument."""


class NamedArguments:
    """Some arguments of a function, by name or position, as users write them."""

    def __init__(self, fun: Function, names: Names) -> None:
        parameters = parameters_of(fun) or {}
        positional = [
            name
            for name, p in parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        self.names: Names = names
        self.parameters: list[str] = list(parameters)
        """Names of all; none where the function does not tell."""
        self.places: list[tuple[int | None, str | None]] = [
            _place(name, positional) for name in self.names
        ]
        """Of each name its position, where that is known, and its keyword."""

    def replaced(
        self, args: Any, kwargs: Any, replace: Callable[[str | int, Any], Any]
    ) -> tuple[Args, Kwargs]:
        """The arguments with `replace(name, value)` in the place of those that are given."""
        positional: dict[Any, Any] = dict(enumerate(args))
        named: dict[Any, Any] = dict(kwargs)
        for name, (number, keyword) in zip(self.names, self.places, strict=True):
            given, key = (positional, number) if number in positional else (named, keyword)
            if key in given:
                given[key] = replace(name, given[key])
        return tuple(positional.values()), named


def _place(name: str | int, positional: Sequence[str]) -> tuple[int | None, str | None]:
    if isinstance(name, str):
        return positional.index(name) if name in positional else None, name
    is_known = -len(positional) <= name < len(positional)
    return (name % len(positional), positional[name]) if is_known else (name, None)


def exact(results: Any, lengths: Lengths) -> Any:
    """Results, with each `Padded` of known length as the rows that count; a derivative has those of
    its argument.
    """
    is_padded = lambda x: isinstance(x, Padded)
    return jax.tree.map(lambda x: _exact(x, lengths), results, is_leaf=is_padded)


def _exact(x: Any, lengths: Lengths) -> Any:
    if not isinstance(x, Padded) or is_traced(x.length) or np.ndim(x.length):
        return x
    # In place of the derivative by an integer, JAX has float0 and incrax None.
    if x.length is not None and getattr(x.length, "dtype", None) != jax.dtypes.float0:
        return x.exact()
    return Padded(x.values, lengths[x._source]).exact() if x._source in lengths else x


# --- functions of rows ----------------------------------------------------------------------------


@spelled_here
def bucketed(fun: Function, *, ragged: str | int | Names = ()) -> Bucketed:
    """The function, compiled once for all numbers of rows up to a capacity that doubles.

    Promise: equals `fun` on `Padded(x, len(x))` in the place of each ragged argument, with `Padded`
    results cut to the rows that count.

    Args:
        fun: function of pytrees of arrays that `jax.jit` compiles. A ragged argument reaches it as
            a `Padded`, whose rows past `length` are zero.
        ragged: arguments whose number of rows changes, by name or position: pytrees of arrays with
            equal first axes.

    Returns:
        A function of the same arguments. `Padded` results are arrays of exactly the rows that
        count; the others, and batches of `Padded`, are as they are.

    Raises:
        LoopTypeError: a ragged argument has no rows, or arrays with different numbers of them.

    Cost: compiles once per capacity, a power of two from 64 on; a shorter argument takes the least
        capacity that is compiled already. Ragged arguments are padded on the host, so that other
        devices than CPUs want NumPy arrays.

    Example:
        >>> import incrax, numpy as np
        >>> total = incrax.bucketed(lambda xs: xs.filled(0.0).sum() / xs.length, ragged="xs")
        >>> [float(total(np.arange(n))) for n in (3, 5)], total.num_traces
        ([1.0, 2.0], 1)
    """
    check_function("bucketed(fun)", fun)
    return Bucketed(fun, ragged)


class Bucketed(WrapsFunction):
    """A function compiled per capacity. Made by `bucketed`.

    `num_traces` counts how often the function was traced, and so compiled.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> mean = incrax.bucketed(lambda x: x.filled(0.0).sum() / x.length, ragged="x")
        >>> [float(mean(jnp.ones(n))) for n in (3, 40, 50)], mean.num_traces
        ([1.0, 1.0, 1.0], 1)
    """

    def __init__(self, fun: Function, ragged: str | int | Names) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._ragged = NamedArguments(fun, names_in("bucketed(ragged=...)", ragged, (str, int)))
        self._capacities: dict[str | int, set[int]] = {name: set() for name in self._ragged.names}
        self._program = jax.jit(self._traced)
        self.num_traces: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result at these arguments."""
        is_inside = is_staged() or any(map(is_traced, jax.tree.leaves((args, kwargs))))
        args, kwargs, lengths = self._given(args, kwargs, is_inside=is_inside)
        found = self._fun(*args, **kwargs) if is_inside else self._program(args, kwargs)
        return exact(found, lengths)

    def _given(
        self, args: Args, kwargs: Kwargs, *, is_inside: bool
    ) -> tuple[Args, Kwargs, Lengths]:
        """The arguments with each ragged one as `Padded`, with room for more unless it is inside a
        traced function; and the length of each.
        """
        lengths: Lengths = {}

        def as_padded(name: str | int, tree: Any) -> Any:
            num = num_rows("bucketed", tree)
            if num is None:
                return tree
            lengths[name] = num
            if is_inside:
                return Padded(tree, num, _is_checked=True, _source=name)
            capacity = self._capacity(name, num)
            rows = jax.tree.map(lambda x: padded(x, capacity), tree)
            return Padded(rows, np.int32(num), _is_checked=True, _source=name)

        args, kwargs = self._ragged.replaced(args, kwargs, as_padded)
        for name in self._ragged.names:
            if name not in lengths:
                raise LoopTypeError(
                    f"`bucketed(ragged=...)` names `{name}`, and this call has no such argument, or one "
                    "without arrays in it. Nothing was evaluated. Name arguments as in the "
                    "function's signature, or by position."
                )
        return args, kwargs, lengths

    def _capacity(self, name: str | int, num: int) -> int:
        """The least that is compiled already and has room, or a new one."""
        known = self._capacities[name]
        capacity = min((each for each in [*known] if each >= num), default=capacity_for(num))
        known.add(capacity)
        return capacity

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; compiled programs stay
        behind.
        """
        return reduced(self, (Bucketed, (self._fun, self._ragged.names)))

    def _traced(self, args: Any, kwargs: Any) -> Any:
        self.num_traces += 1
        return self._fun(*args, **kwargs)
