"""`bucketed`: a compiled function of rows, one program for all numbers of rows up to a capacity
that doubles.

In: a function. Out: the same on arrays of any length. It must not know how loops are run, nor what
finds rows.

Sizes that such a function finds out start small: it says when one was too small, and is compiled
again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from incrax._context import traced_for
from incrax._jax_options import spelled_here
from incrax._messages import wrong_option
from incrax._names import reduced
from incrax.control_flow.loops.messages import other_room
from incrax.control_flow.loops.padded import (
    SMALLEST,
    RaggedArguments,
    capacity_for,
    exact,
    is_staged,
    is_traced,
)


@spelled_here
def bucketed(fun: Callable[..., Any], *, ragged: str | int | Sequence[str | int] = ()) -> Bucketed:
    """The function, compiled once for all numbers of rows up to a capacity that doubles.

    Promise: equals `fun` on `Padded(x, len(x))` in the place of each ragged argument, with `Padded`
    results cut to the rows that count.

    Args:
        fun: function of pytrees of arrays that `jax.jit` compiles. A ragged argument reaches it as
            a `Padded`, whose rows past `length` are zero. Within it, `select_rows`, `nonzero` and
            `unique` need no size.
        ragged: arguments whose number of rows changes, by name or position: pytrees of arrays with
            equal first axes.

    Returns:
        A function of the same arguments. `Padded` results are arrays of exactly the rows that
        count; the others, and batches of `Padded`, are as they are.

    Raises:
        LoopTypeError: a ragged argument has no rows, or arrays with different numbers of them.
        CapacityError: a size cannot be found out, see below.

    Cost: compiles once per capacity, a power of two from 64 on; a shorter argument takes the least
        capacity that is compiled already. Ragged arguments are padded on the host, so that other
        devices than CPUs want NumPy arrays. Where sizes are found out, a call waits for its result,
        and runs again when a size was too small.

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

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> mean = incrax.bucketed(lambda x: x.filled(0.0).sum() / x.length, ragged="x")
        >>> [float(mean(jnp.ones(n))) for n in (3, 40, 50)], mean.num_traces
        ([1.0, 1.0, 1.0], 1)
    """

    def __init__(self, fun: Callable[..., Any], ragged: tuple[str | int, ...]) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._ragged = RaggedArguments(fun, ragged, "bucketed", "bucketed(ragged=...)")
        self._sizes = Sizes()
        self._lock = threading.RLock()
        self._program = jax.jit(self._traced, static_argnums=0)
        self.num_traces: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result at these arguments."""
        if is_staged() or any(map(is_traced, jax.tree.leaves((args, kwargs)))):
            args, kwargs, lengths = self._ragged.wrapped(args, kwargs)
            return exact(self._fun(*args, **kwargs), lengths)
        args, kwargs, lengths = self._ragged.padded(args, kwargs)
        return exact(self._run(args, kwargs), lengths)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, with `instance` as first argument, which must be a pytree."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; compiled programs stay
        behind.
        """
        return reduced(self, (Bucketed, (self._fun, self._ragged.names)))

    def _traced(self, rooms: tuple[tuple[int, int], ...], args: Any, kwargs: Any) -> Any:
        del rooms  # part of what a program is compiled for
        self.num_traces += 1
        with self._sizes.tracing():
            return self._fun(*args, **kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        """Run the program, again with more room as long as a place had too little."""
        sizes = self._sizes
        with self._lock:
            while True:
                rooms = dict(sizes.rooms)
                out = self._program(sizes.key, args, kwargs)
                if not sizes.has_places:
                    return out
                jax.block_until_ready(out)
                jax.effects_barrier()
                excesses = sizes.excesses
                sizes.excesses = []
                if not excesses:
                    return out
                for place, num, _ in excesses:
                    sizes.rooms[place] = max(sizes.room_at(place), capacity_for(num))
                if sizes.rooms == rooms:
                    raise other_room(excesses[0].num, excesses[0].room)


# --- sizes that are found out ---------------------------------------------------------------------


class Excess(NamedTuple):
    """More rows than there was room for: where, how many, and for how many there was room."""

    place: int
    num: int
    room: int


class Sizes:
    """Room at the places of one function where a number of rows is found, in the order in which
    they are traced.
    """

    def __init__(self) -> None:
        self.rooms: dict[int, int] = {}
        """Of places where the least is too little."""
        self.excesses: list[Excess] = []
        self.has_places = False
        self._num_places = 0
        self._number = next(_numbers)

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """What a program is compiled for."""
        return tuple(sorted(self.rooms.items()))

    def room_at(self, place: int) -> int:
        """Room at a place."""
        return self.rooms.get(place, SMALLEST)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """While the function is traced; functions inside it are traced again for other rooms."""
        outer = getattr(_current, "sizes", None)
        self._num_places = 0
        _current.sizes = self
        try:
            with traced_for((self._number, self.key)):
                yield
        finally:
            _current.sizes = outer

    def room(self, num: Any) -> int:
        """Room at the next place; `num` is how many rows it finds, which are reported if they are
        more.
        """
        place = self._num_places
        self._num_places = self._num_places + 1
        self.has_places = True
        room = self.room_at(place)

        def report(num: Any) -> None:
            if int(num) > room:
                self.excesses.append(Excess(place, int(num), room))

        lax.cond(num > room, lambda: jax.debug.callback(report, num), lambda: None)
        return room


_current = threading.local()
_numbers = itertools.count()


def current_sizes() -> Sizes | None:
    """Those of the function that is being traced."""
    return getattr(_current, "sizes", None)
