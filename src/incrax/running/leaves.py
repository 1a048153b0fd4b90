"""Stage 8, change: is this leaf the value that was seen before?

In: leaves as users pass them. Out: `LeafValue`, a private snapshot, and masks of changed elements. The order of the
test is identity of an immutable object, then type, then bits; never float `==`, a tolerance or a hash alone.
It must not know plans or saved values.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Hashable
from enum import Enum
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._errors import unsupported_dtype

T = TypeVar("T")

SMALL_BYTES = 2048
"""Bytes up to which a NumPy leaf is handed to XLA from host memory at each call."""

_PYTHON_SCALARS = (bool, int, float, complex)
_frozen: dict[int, weakref.ref[jax.Array]] = {}


def frozen(tree: T) -> T:
    """Promise that data will not change: a private, immutable copy that is compared by pointer only.

    Args:
        tree: pytree of arrays (NumPy or JAX), any shapes and dtypes.

    Returns:
        The same pytree of `jax.Array`s, each copied once. Pass these objects to incremental functions: an unchanged
        one costs a pointer comparison, another object counts as changed without its bits being read.

    Cost: one copy of the data.

    Example:
        >>> import incrax, numpy as np
        >>> data = incrax.frozen(np.arange(3.0))
        >>> bool(data.sum() == 3.0)
        True
    """

    def freeze(leaf: Any) -> jax.Array:
        array = jnp.array(leaf, copy=True)
        _frozen[id(array)] = weakref.ref(array, lambda _, key=id(array): _frozen.pop(key, None))
        return array

    return jax.tree.map(freeze, tree)


def is_frozen(x: Any) -> bool:
    """Whether `frozen` made this object."""
    ref = _frozen.get(id(x))
    return ref is not None and ref() is x


# --- what a leaf is -----------------------------------------------------------------------------------------------


def is_dynamic(x: Any) -> bool:
    """Whether a leaf is a value for JAX (array, scalar, key) and not a static Python object."""
    if isinstance(x, Enum):
        return False
    return isinstance(x, (jax.Array, np.ndarray, np.generic, *_PYTHON_SCALARS)) or _jax.is_mutable_array(x)


def descriptor(x: Any) -> Hashable:
    """The type of a dynamic leaf: everything but its bits that a compiled program depends on."""
    kind = type(x)
    if kind in _PYTHON_SCALARS:
        return (), jax.dtypes.canonicalize_dtype(kind), True, None
    if isinstance(x, (np.ndarray, np.generic)):
        return x.shape, jax.dtypes.canonicalize_dtype(x.dtype), False, None
    if _jax.is_mutable_array(x):
        return "ref", str(x.aval)
    return x.shape, x.dtype, x.weak_type, x.sharding if x.committed else None


def check_dynamic(x: Any, path: str) -> None:
    """Refuse arrays that JAX has no type for."""
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "OSUMm" or isinstance(x, np.void):
        raise unsupported_dtype(path, x.dtype)


# --- values -------------------------------------------------------------------------------------------------------


class LeafValue:
    """One value of one leaf.

    Fields: `anchor`, an immutable object whose identity proves the value (None for NumPy arrays); `bits`, a private
    copy of its bits on the host (None where only identity counts, False where not read yet); `feed`, what to hand to
    a compiled program.
    """

    __slots__ = ("_bits", "anchor", "feed")

    def __init__(self, x: Any) -> None:
        if isinstance(x, np.ndarray):
            snapshot = np.array(x, dtype=x.dtype.newbyteorder("="), order="C", copy=True, subok=False)
            self.anchor = None
            self._bits: Any = snapshot
            self.feed = snapshot if snapshot.nbytes <= SMALL_BYTES else jnp.asarray(snapshot)
        else:
            self.anchor = x
            self._bits = False
            self.feed = x

    @property
    def bits(self) -> np.ndarray | None:
        """The value on the host, read once; None where it is compared by identity only."""
        if self._bits is False:
            self._bits = _read_bits(self.anchor)
        return self._bits

    @property
    def nbytes(self) -> int:
        """Bytes of the private snapshot."""
        return self._bits.nbytes if isinstance(self._bits, np.ndarray) and self.anchor is None else 0

    def is_deleted(self) -> bool:
        """Whether the buffer was donated or deleted by its owner."""
        return isinstance(self.feed, jax.Array) and self.feed.is_deleted()


def _read_bits(x: Any) -> np.ndarray | None:
    if isinstance(x, jax.Array):
        if is_frozen(x) or not x.is_fully_addressable or len(x.sharding.device_set) > 1:
            return None
        return np.asarray(jax.random.key_data(x) if _jax.is_key_dtype(x.dtype) else x)
    return np.asarray(x) if not isinstance(x, int) or isinstance(x, bool) else _python_int(x)


def _python_int(x: int) -> np.ndarray:
    return np.frombuffer(struct.pack("<q", x), np.int64) if -(2**63) <= x < 2**63 else np.frombuffer(str(x).encode(), "B")


def same_value(value: LeafValue, x: Any) -> bool:
    """Whether `x`, of the same descriptor, has the bits of a value."""
    if value.anchor is x and x is not None:
        return True
    if isinstance(x, jax.Array) and _is_large_on_device(x):
        return _same_on_device(value, x)
    old = value.bits
    new = _read_bits(x) if not isinstance(x, np.ndarray) else x
    return old is not None and new is not None and same_bits(old, new)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Bitwise equality of two arrays of one shape; NaN equals itself, 0.0 differs from -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.nbytes <= SMALL_BYTES:
        return a.tobytes() == b.tobytes()
    return bool(np.array_equal(_words(a), _words(b)))


def _words(a: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(a).reshape(-1)
    size = next(n for n in (8, 4, 2, 1) if flat.nbytes % n == 0 and flat.dtype.itemsize % n == 0)
    return flat.view(f"u{size}")


def changed_elements(new: LeafValue, old: LeafValue, width: int) -> int:
    """Bit mask of the elements whose bits differ; `width` is 1 where the leaf is tracked as a whole."""
    if new is old:
        return 0
    if width == 1:
        return 1
    a, b = new.bits, old.bits
    if a is None or b is None or a.dtype != b.dtype:
        return (1 << width) - 1
    differs = (_elements(a, width) != _elements(b, width)).any(axis=1)
    return int.from_bytes(np.packbits(differs, bitorder="little").tobytes(), "little")


def _elements(a: np.ndarray, width: int) -> np.ndarray:
    return np.frombuffer(a.tobytes(), np.uint8).reshape(width, -1)


def _is_large_on_device(x: jax.Array) -> bool:
    return x.nbytes > SMALL_BYTES and x.is_fully_addressable and next(iter(x.sharding.device_set)).platform != "cpu"


def _same_on_device(value: LeafValue, x: jax.Array) -> bool:
    """Compare where the data are; only one boolean comes to the host."""
    old = value.feed
    if not isinstance(old, jax.Array) or is_frozen(x) or is_frozen(old) or len(x.sharding.device_set) > 1:
        return False
    return bool(_equal_on_device(old, x))


@jax.jit
def _equal_on_device(a: jax.Array, b: jax.Array) -> jax.Array:
    if _jax.is_key_dtype(a.dtype):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        a, b = jnp.stack([a.real, a.imag]), jnp.stack([b.real, b.imag])
    if a.dtype == jnp.bool_:
        return jnp.array_equal(a, b)
    unsigned = jnp.dtype(f"uint{a.dtype.itemsize * 8}")
    return jnp.array_equal(jax.lax.bitcast_convert_type(a, unsigned), jax.lax.bitcast_convert_type(b, unsigned))
