"""`bucketed`: a compiled function of rows, one program for all numbers of rows up to a capacity
that doubles.

In: a function. Out: the same on arrays of any length. It must not know how loops are run.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import jax

from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax._names import reduced
from incrax.control_flow.loops.padded import Names, RaggedArguments, exact, is_staged, is_traced
from incrax.engine.inputs.signature import Function


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

    def __init__(self, fun: Function, ragged: tuple[str | int, ...]) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._ragged = RaggedArguments(fun, ragged, "bucketed", "bucketed(ragged=...)")
        self._program = jax.jit(self._traced)
        self.num_traces: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result at these arguments."""
        is_inside = is_staged() or any(map(is_traced, jax.tree.leaves((args, kwargs))))
        args, kwargs, lengths = self._ragged.given(args, kwargs, is_padded=not is_inside)
        found = self._fun(*args, **kwargs) if is_inside else self._program(args, kwargs)
        return exact(found, lengths)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method, with `instance` as first argument, which must be a pytree."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        """By name where the function was decorated, else as a new function; compiled programs stay
        behind.
        """
        return reduced(self, (Bucketed, (self._fun, self._ragged.names)))

    def _traced(self, args: Any, kwargs: Any) -> Any:
        self.num_traces += 1
        return self._fun(*args, **kwargs)
