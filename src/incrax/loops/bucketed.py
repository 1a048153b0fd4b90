"""`bucketed`: a compiled function of rows, one program for all numbers of rows up to a capacity that doubles.

In: a function. Out: the same on arrays of any length. It must not know how loops are run.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.dtypes
import numpy as np

from incrax._errors import wrong_option
from incrax._loop_errors import no_ragged, other_room
from incrax.loops.lengths import capacity_for, is_staged, is_traced, num_rows, padded
from incrax.loops.padded import Padded
from incrax.loops.sizes import Sizes


def bucketed(fun: Callable[..., Any], *, ragged: str | int | Sequence[str | int] = ()) -> Bucketed:
    """The function, compiled once for all numbers of rows up to a capacity that doubles.

    Law: equals `fun` on `Padded(x, len(x))` in the place of each ragged argument, with `Padded` results cut to the rows
    that count.

    Args:
        fun: function of pytrees of arrays that `jax.jit` compiles. A ragged argument reaches it as a `Padded`, whose
            rows past `length` are zero. Within it, `select_rows`, `nonzero` and `unique` need no size.
        ragged: arguments whose number of rows changes, by name or position: pytrees of arrays with equal first axes.

    Returns:
        A function of the same arguments. `Padded` results are arrays of exactly the rows that count; the others, and
        batches of `Padded`, are as they are.

    Raises:
        LoopTypeError: a ragged argument has no rows, or arrays with different numbers of them.
        CapacityError: a size cannot be found out, see below.

    Cost: compiles once per capacity, a power of two from 64 on; a shorter argument takes the least capacity that is
        compiled already. Ragged arguments are padded on the host, so that other devices than CPUs want
        NumPy arrays. Where sizes are found out, a call waits for its result, and runs again when a size was too small.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> @incrax.bucketed
        ... def positive(x):
        ...     return incrax.select_rows(x, x > 0)
        >>> positive(jnp.array([1.0, -2.0, 3.0])).tolist()
        [1.0, 3.0]
    """
    if not callable(fun):
        raise wrong_option("bucketed(fun)", fun, "a function")
    names = (ragged,) if isinstance(ragged, (str, int)) else tuple(ragged)
    return Bucketed(fun, names)


class Bucketed:
    """A function compiled per capacity. Made by `bucketed`.

    `num_traces` counts how often the function was traced, and so compiled.
    """

    def __init__(self, fun: Callable[..., Any], ragged: tuple[str | int, ...]) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._ragged = ragged
        self._names = _argument_names(fun)
        self._capacities: dict[str | int, list[int]] = {name: [] for name in ragged}
        self._sizes = Sizes()
        self._lock = threading.RLock()
        self._program = jax.jit(self._traced, static_argnums=0)
        self.num_traces = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result at these arguments."""
        if is_staged() or any(map(is_traced, jax.tree.leaves((args, kwargs)))):
            args, kwargs, _ = self._replaced(args, kwargs, lambda name, x, num: _ragged(x, num, name))
            return jax.tree.map(_exact_if_known, self._fun(*args, **kwargs), is_leaf=_is_padded)
        args, kwargs, lengths = self._replaced(args, kwargs, self._padded)
        return jax.tree.map(lambda x: _exact(x, lengths), self._run(args, kwargs), is_leaf=_is_padded)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, with `instance` as first argument, which must be a pytree."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; compiled programs stay behind."""
        found: Any = sys.modules.get(self.__module__)
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (Bucketed, (self._fun, self._ragged))

    def _traced(self, rooms: tuple[int, ...], args: Any, kwargs: Any) -> Any:
        del rooms  # part of what a program is compiled for
        self.num_traces += 1
        with self._sizes.tracing():
            return self._fun(*args, **kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        """Run the program, again with more room as long as a place had too little."""
        sizes = self._sizes
        with self._lock:
            while True:
                rooms = sizes.rooms
                out = self._program(rooms, args, kwargs)
                if not sizes.has_places:
                    return out
                jax.block_until_ready(out)
                jax.effects_barrier()
                excesses, sizes.excesses = sizes.excesses, []
                if not excesses:
                    return out
                sizes.rooms = sizes.grown(excesses)
                if sizes.rooms == rooms:
                    raise other_room(excesses[0].num, excesses[0].room)

    def _replaced(self, args: Any, kwargs: Any, replace: Callable[..., Padded]) -> tuple[Any, Any, dict[Any, int]]:
        """The arguments with what is ragged replaced, and the length of each."""
        args, kwargs, lengths = list(args), dict(kwargs), {}
        for name in self._ragged:
            holder, key = self._place(name, args, kwargs)
            num = num_rows("bucketed", holder[key])
            if num is None:
                raise no_ragged(str(name))
            holder[key] = replace(name, holder[key], num)
            lengths[name] = num
        return args, kwargs, lengths

    def _place(self, name: str | int, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Where an argument is."""
        names = self._names
        number = names.index(name) if name in names else name
        if isinstance(number, int) and number < len(args):
            return args, number
        keyword = names[number] if isinstance(number, int) and number < len(names) else name
        if keyword not in kwargs:
            raise no_ragged(str(name))
        return kwargs, keyword

    def _padded(self, name: str | int, tree: Any, num: int) -> Padded:
        known = self._capacities[name]
        with self._lock:
            at = bisect_left(known, num)
            if at == len(known):
                insort(known, capacity_for(num))
        values = jax.tree.map(lambda x: padded(x, known[at]), tree)
        return _ragged(values, np.int32(num), name)


def _argument_names(fun: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return []


def _is_padded(x: Any) -> bool:
    return isinstance(x, Padded)


def _exact_if_known(x: Any) -> Any:
    return x.exact() if _is_padded(x) and not is_traced(x.length) else x


def _ragged(values: Any, num: Any, name: str | int) -> Padded:
    return Padded(values, num, is_checked=True, source=name)


def _exact(x: Any, lengths: dict[Any, int]) -> Any:
    """A result; a `Padded` as the rows that count, those of its argument if it is a derivative by one."""
    if not _is_padded(x) or np.ndim(x.length):
        return x
    if getattr(x.length, "dtype", None) != jax.dtypes.float0:
        return x.exact()
    return Padded(x.values, lengths[x.source]).exact() if x.source in lengths else x
