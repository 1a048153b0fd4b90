"""`map`: a function of each of some rows, their number being a value.

In: a function and rows. Out: its results, stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from incrax._messages import wrong_option
from incrax.control_flow.loops.scan import MEMORY, scan


def map(f: Callable[[Any], Any], xs: Any, length: Any = None, *, memory: int = MEMORY) -> Any:  # noqa: A001
    """A function of each row, one after the other; one compiled program for all lengths up to a capacity that doubles.

    Law: equals `jax.lax.map(f, xs)`, and so do its derivatives.

    Args:
        f: row of xs -> y.
        xs: pytree of arrays with equal first axes, or a `Padded` of such.
        length: see `scan`.
        memory: see `scan`.

    Returns:
        Stacked y; see `scan`.

    Raises:
        LoopTypeError: see `scan`.
        CapacityError: see `scan`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> incrax.map(lambda x: x**2, jnp.arange(3.0)).tolist()
        [0.0, 1.0, 4.0]
    """
    if not callable(f):
        raise wrong_option("map(f)", f, "a function")
    return scan(lambda carry, x: (carry, f(x)), (), xs, length, memory=memory)[1]
