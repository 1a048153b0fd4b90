"""Guards: what Python learned of a value, and the test of it inside a compiled program.

In: symbols of a program and what was learned. Out: conditions, and the index of the first that does
not hold. It must not know how a program was recorded.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax


class Guard(NamedTuple):
    """What was learned of one value, and where."""

    kind: str
    """`"bool"`, `"int"` (its value without fraction; text where it is not finite), or `"value"`
    (all of it; floats are refused when the run is over).
    """
    key: Hashable
    """What was learned; equal keys, equal paths."""
    where: str
    expression: str
    is_value_of_floats: bool
    """Whether a float became a constant: a new path for each value, and no derivative."""

    @property
    def place(self) -> str:
        """File, line and expression as text."""
        return f"{self.where}: {self.expression}" if self.expression else self.where

    @property
    def site(self) -> tuple[str, str, str]:
        """Kind and place: equal for paths that meet here."""
        return self.kind, self.where, self.expression

    def __str__(self) -> str:
        shown = f"{self.key}" if self.kind in ("bool", "int") else "its value"
        return f"{self.place} is {shown}"


def key_of(kind: str, value: Any) -> Hashable:
    """What a value tells in a conversion of this kind."""
    if kind == "bool":
        return bool(np.asarray(value).reshape(()))
    if kind == "int":
        number = np.asarray(value).reshape(())
        return int(number) if np.isfinite(number) else str(float(number))
    array = np.ascontiguousarray(_jax.bits_on_host(value))
    return array.tobytes(), array.shape, str(array.dtype)


def holds(guard: Guard, symbol: Any) -> Any:
    """Whether the value is what was learned: a boolean scalar, traced."""
    if guard.kind == "bool":
        flag = symbol.reshape(()) if symbol.dtype == bool else symbol.reshape(()) != 0
        return flag if guard.key else ~flag
    if guard.kind == "int":
        return _equals_int(symbol.reshape(()), guard.key)
    content, shape, dtype = guard.key  # type: ignore[misc]
    expected = np.frombuffer(content, jnp.dtype(dtype)).reshape(shape)
    if _jax.is_key_dtype(symbol.dtype):
        symbol = jax.random.key_data(symbol)
    return jnp.all(symbol == expected)


def _equals_int(symbol: Any, expected: Any) -> Any:
    if isinstance(expected, str):
        return jnp.isnan(symbol) if expected == "nan" else symbol == float(expected)
    whole = (
        symbol
        if jnp.issubdtype(symbol.dtype, jnp.integer) or symbol.dtype == bool
        else jnp.trunc(symbol)
    )
    return whole == np.asarray(expected).astype(whole.dtype)


def first_failing(guards: Sequence[Guard], symbols: Sequence[Any]) -> Any:
    """The number of the first guard that does not hold, their number if all do; one scalar for all
    of them.
    """
    index: Any = jnp.int32(len(guards))
    for number in reversed(range(len(guards))):
        index = jnp.where(holds(guards[number], symbols[number]), index, jnp.int32(number))
    return index
