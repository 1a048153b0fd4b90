"""Stage 8, change: is this leaf the value that was seen before?

In: leaves as users pass them. Out: `LeafValue`, a private snapshot, and masks of changed elements.
The order of the test is identity of an immutable object, then type, then bits; never float `==`, a
tolerance or a hash alone. It must not know plans or saved values.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import different_bits
from incrax._messages import masked_array, unsupported_dtype
from incrax.engine.inputs import row_updates
from incrax.engine.inputs.mutable import declare, mutable_part
from incrax.engine.inputs.placement import plain_sharding
from incrax.engine.inputs.row_updates import FEW, together

T = TypeVar("T")

SMALL_BYTES = 2048
"""Bytes up to which a NumPy leaf is handed to XLA from host memory at each call."""

COPIED_BYTES = 2**14
"""Bytes up to which two copies are compared faster than elements: that ends at the first difference.
"""

MIN_RELATED_BYTES = 2**20
MAX_RELATED = 4
"""It is remembered in which rows a value differs from others, from so many at most; where these are
many, of so many bytes. Such values are not compared as a whole with one that was compared with the
same third one; smaller ones are compared faster than numbers are put together.
"""

NUM_SAMPLED = 64
"""Words that are compared first: arrays that differ everywhere, as most that change do, cost no
more.
"""

_PYTHON_SCALARS = (bool, int, float, complex)
_ARRAY = _jax.ArrayImpl
IMMUTABLE = frozenset({*_PYTHON_SCALARS, _ARRAY, np.float64, np.float32, np.int64, np.int32})
"""Types whose objects never change and are handed to programs as they are."""

_WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}

NO_ANCHOR = object()
"""Stands for an object whose identity proves nothing, because its owner may change it in place."""

_frozen: dict[int, weakref.ref[jax.Array]] = {}


def frozen(tree: T) -> T:
    """Promise that data will not change: a private, immutable copy that is compared by pointer
    only.

    Args:
        tree: pytree of arrays (NumPy or JAX), any shapes and dtypes. Other leaves stay as they are;
            objects that could change in place, which incremental functions refuse, they take from
            then on as static values.

    Returns:
        The same pytree of `jax.Array`s, each copied once. Pass these objects to incremental
        functions: an unchanged one costs a pointer comparison, another object counts as changed
        without its bits being read.

    Cost: one copy of the data.

    Example:
        >>> import incrax, numpy as np
        >>> data = incrax.frozen(np.arange(3.0))
        >>> bool(data.sum() == 3.0)
        True
    """

    def freeze(leaf: Any) -> Any:
        if not is_dynamic(leaf):
            while (part := mutable_part(leaf)) is not None:
                declare(part)
            return leaf
        is_on_host = isinstance(leaf, np.ndarray)
        array = jax.device_put(np.array(leaf)) if is_on_host else jnp.array(leaf, copy=True)
        _frozen[id(array)] = weakref.ref(array, lambda _, key=id(array): _frozen.pop(key, None))
        return array

    return jax.tree.map(freeze, tree)


def is_frozen(x: Any) -> bool:
    """Whether `frozen` made this object."""
    ref = _frozen.get(id(x))
    return ref is not None and ref() is x


def is_compared_by_identity(x: Any) -> bool:
    """Whether the bits of a leaf are never read: a frozen one, or one that no device of this
    process holds whole.
    """
    return is_frozen(x) or (type(x) is _ARRAY and not _jax.is_held_whole(x))


# --- what a leaf is -------------------------------------------------------------------------------


def is_dynamic(x: Any) -> bool:
    """Whether a leaf is a value for JAX (array, scalar, key) and not a static Python object."""
    if isinstance(x, Enum):
        return False
    return isinstance(
        x, (jax.Array, np.ndarray, np.generic, *_PYTHON_SCALARS)
    ) or _jax.is_mutable_array(x)


def has_tracer(leaves: Iterable[Any]) -> bool:
    """Whether some leaf has no value yet."""
    return any(isinstance(leaf, _jax.Tracer) for leaf in leaves)


def as_array(x: Any) -> jax.Array | None:
    """An array of what JAX can make one of, else None."""
    with contextlib.suppress(TypeError, ValueError):
        return jnp.asarray(x)
    return None


def descriptor(x: Any) -> tuple[Any, ...]:
    """The type of a dynamic leaf: everything but its bits that a compiled program depends on."""
    kind = type(x)
    if kind in _PYTHON_SCALARS:
        return (), jax.dtypes.canonicalize_dtype(kind), True, None
    if isinstance(x, (np.ndarray, np.generic)):
        if isinstance(x, np.ma.MaskedArray):
            return "masked", x.shape, x.dtype
        return x.shape, jax.dtypes.canonicalize_dtype(x.dtype), False, None
    if _jax.is_mutable_array(x):
        return "ref", str(x.aval)
    if isinstance(x, _PYTHON_SCALARS):
        return descriptor(_plain_scalar(x))
    if isinstance(x, _jax.Tracer):
        return x.shape, x.dtype, False, None
    sharding = plain_sharding(x.sharding) if getattr(x, "committed", False) else None
    return x.shape, x.dtype, getattr(x, "weak_type", False), sharding


def has_type(x: Any, known: Any, anchor: Any = None) -> bool:
    """Whether a leaf is a value of the type of a descriptor; `anchor` is a value that is, if there
    is one.

    It is enough, and faster than to make a descriptor, that an array shares its very type object
    with the anchor, or that a NumPy value has the shape and dtype.
    """
    kind = type(x)
    if kind is _ARRAY and type(anchor) is _ARRAY and x.aval is anchor.aval:
        if not _jax.is_committed(x) and not _jax.is_committed(anchor):
            return True
    elif (kind is np.ndarray or kind is np.float64) and x.dtype is known[1]:
        if (x.shape, False, None) == (known[0], *known[2:]):
            return True
    return not isinstance(x, _jax.Tracer) and is_dynamic(x) and descriptor(x) == known


def check_dynamic(x: Any, path: str) -> None:
    """Refuse arrays that JAX has no type for."""
    if isinstance(x, np.ma.MaskedArray):
        raise masked_array(path)
    if isinstance(x, (np.ndarray, np.generic)) and not _has_jax_type(x.dtype):
        raise unsupported_dtype(path, x.dtype)


def _has_jax_type(dtype: np.dtype) -> bool:
    is_wide = dtype.kind in "fc" and dtype.itemsize > (8 if dtype.kind == "f" else 16)
    return not (dtype.kind in "OSUMm" or dtype.names is not None or is_wide or dtype == np.void)


def _plain_scalar(x: Any) -> Any:
    """A value of a subclass of bool, int, float or complex as one of these."""
    kind: Any = next(kind for kind in _PYTHON_SCALARS if isinstance(x, kind))
    return kind(x)


# --- values ---------------------------------------------------------------------------------------


class LeafValue:
    """One value of one leaf.

    Fields: `anchor`, an immutable object whose identity proves the value (`NO_ANCHOR` for NumPy
    arrays); `feed`, what to hand to a compiled program; `array`, the feed if it is a `jax.Array` of a
    user, whose buffer its owner may delete; `bits`, the value on the host (None where only identity
    counts, or it was deleted unread, or failed), and `words`, these bits as unsigned integers in a
    row, both found when they are first asked for; `related`, the latest values with which it was compared row by
    row, and the numbers of the rows that differ.
    """

    __slots__ = ("__weakref__", "anchor", "array", "bits", "feed", "related", "words")

    bits: np.ndarray | None
    words: np.ndarray

    def __init__(self, x: Any) -> None:
        self.anchor = self.feed = x
        self.related: tuple[tuple[weakref.ref[LeafValue], np.ndarray], ...] = ()
        kind = type(x)
        if kind in IMMUTABLE:
            self.array = x if kind is _ARRAY else None
            return
        self.array = None
        if isinstance(x, np.ndarray):
            self.anchor = NO_ANCHOR
            self.bits = snapshot = _snapshot(x)
            # `jnp.asarray` would compile a program for each shape.
            self.feed = snapshot if snapshot.nbytes <= SMALL_BYTES else _jax.to_device(snapshot)
        elif isinstance(x, jax.Array):
            self.array = x
        elif isinstance(x, _PYTHON_SCALARS) and not isinstance(x, np.generic):
            self.feed = _plain_scalar(x)

    def __getattr__(self, name: str) -> Any:
        """What was not found yet. Not a property: Python would call a function whenever it is read."""
        if name == "bits":
            self.bits = _read_bits(self.anchor)
        elif name == "words" and self.bits is not None:
            self.words = _words(self.bits)
        else:
            raise AttributeError(name)
        return getattr(self, name)

    def is_deleted(self) -> bool:
        """Whether the buffer was donated or deleted by its owner."""
        return self.array is not None and self.array.is_deleted()


LeafValues: TypeAlias = tuple[LeafValue, ...]
"""Of all leaves of a call, by number."""


def _snapshot(x: np.ndarray) -> np.ndarray:
    """A private copy in C order and the machine's byte order."""
    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C")


def _read_bits(x: Any) -> np.ndarray | None:
    if isinstance(x, jax.Array):
        if x.is_deleted() or (_frozen and is_frozen(x)) or not _jax.is_held_whole(x):
            return None
        try:
            return np.asarray(x if isinstance(x.aval.dtype, np.dtype) else jax.random.key_data(x))
        except jax.errors.JaxRuntimeError:  # what computes it failed: it equals nothing
            return None
    return _python_int(x) if type(x) is int else np.asarray(x)


def _python_int(x: int) -> np.ndarray:
    if -(2**63) <= x < 2**63:
        return np.asarray(x, np.int64)
    return np.frombuffer(str(x).encode(), np.uint8)


def same_value(old: LeafValue, new: LeafValue) -> bool:
    """Whether two values of one descriptor have the same bits."""
    if old.anchor is new.anchor and old.anchor is not NO_ANCHOR:
        return True
    is_update = id(new.array) in row_updates.known
    if is_update and row_updates.rows_between(new.array, old.array) is not None:
        return False  # equal rows that were written count as changed: nothing is read
    known = same_floats(old.anchor, new.anchor)
    if known is not None:
        return known
    if new.array is not None and _is_large_on_device(new.array):
        return _same_on_device(old, new.array)
    a = old.bits
    b = new.bits
    if a is None or b is None:
        return False
    if a.nbytes <= COPIED_BYTES or a.dtype != b.dtype or a.shape != b.shape:
        return same_bits(a, b)
    return _same_words(old.words, new.words)


def resolved(x: Any, olds: Iterable[LeafValue]) -> LeafValue:
    """The first of some values that has the bits of a leaf, or a new one."""
    new = LeafValue(x)
    tried = None
    for old in () if new.is_deleted() else olds:
        if old is not tried and not old.is_deleted() and same_value(old, new):
            return old
        tried = old
    return new


def has_bits_of(x: Any, old: LeafValue) -> bool:
    """Whether a NumPy array has the bits of a value: found out before a copy of it is made."""
    bits = None if old.is_deleted() else old.bits
    return bits is not None and same_bits(bits, x)


def same_floats(a: Any, b: Any) -> bool | None:
    """Whether two floats have the same bits; None for zeros, NaNs and other types: the bits
    tell.
    """
    if type(a) is not float or type(b) is not float:
        return None
    if a == b:
        return True if a else None
    return None if a != a and b != b else False


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Bitwise equality of two arrays of one shape; NaN equals itself, 0.0 differs from -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.nbytes <= COPIED_BYTES:
        return a.tobytes() == b.tobytes()
    return _same_words(_words(a), _words(b))


def _same_words(a: np.ndarray, b: np.ndarray) -> bool:
    step = max(a.size // NUM_SAMPLED, 1)
    return not (a[::step] != b[::step]).any() and not (a != b).any()


def _words(a: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(a).reshape(-1)
    size = flat.itemsize
    return flat.view(_WORDS[min(size & -size, 8)])  # the largest power of two that divides it


def changed_elements(new: LeafValue, old: LeafValue, width: int) -> int:
    """Bit mask of the elements whose bits differ; `width` is 1 where the leaf is tracked as a
    whole.
    """
    if new is old:
        return 0
    if width == 1:
        return 1
    numbers = _different(new, old, width)
    return (1 << width) - 1 if numbers is None else sum([1 << k for k in numbers.tolist()])


def changed_rows(new: LeafValue, old: LeafValue) -> np.ndarray | None:
    """Numbers of the rows, along the first axis, whose bits differ, or in which updates were
    written; None where only identity counts.
    """
    numbers = None
    if id(new.array) in row_updates.known:
        numbers = row_updates.rows_between(new.array, old.array)
    if numbers is None:
        bits = new.bits
        numbers = None if bits is None or not bits.ndim else _different(new, old, len(bits))
    if numbers is not None and (numbers.size <= FEW or new.feed.nbytes >= MIN_RELATED_BYTES):
        new.related = ((weakref.ref(old), numbers), *new.related[: MAX_RELATED - 1])
        old.related = ((weakref.ref(new), numbers), *old.related[: MAX_RELATED - 1])
    return numbers


def is_farther(old: LeafValue, near: LeafValue, numbers: np.ndarray) -> bool:
    """Whether a value is known to differ from an old one in more rows than from a near one, which are
    these: the near one differs from the old one in others, in which the value has the near one's bits.
    """
    for other, rows in near.related:
        if other() is old:
            return rows.size > 0 and set(numbers.tolist()).isdisjoint(rows.tolist())
    return False


def _different(new: LeafValue, old: LeafValue, num: int) -> np.ndarray | None:
    """In which of as many equal parts the bits of two values differ; None where only identity
    counts.
    """
    a = new.bits
    b = old.bits
    if a is None or b is None or a.dtype != b.dtype:
        return None
    is_large = a.nbytes >= MIN_RELATED_BYTES and num == len(a)
    near = _rows_by_a_third(new, old) if is_large else None
    if near is None:
        return _parts_with(new.words != old.words, num)
    return near[_parts_with(_words(a[near]) != _words(b[near]), near.size)]


def _rows_by_a_third(a: LeafValue, b: LeafValue) -> np.ndarray | None:
    """Rows outside of which two values have the bits of a third one, and so of each other; None where
    there is none with which both were compared.
    """
    for third, ours in a.related:
        for other, theirs in b.related:
            if other is third:  # of a value there is one weak reference, also after it is gone
                return together((ours, theirs))
    return None


def _parts_with(is_there: np.ndarray, num: int) -> np.ndarray:
    """Numbers of as many equal parts in which some element is true."""
    if is_there.size <= num:
        return is_there.nonzero()[0]
    if np.count_nonzero(is_there) > num:  # of few, their places are found ten times faster
        return np.flatnonzero(is_there.reshape(num, -1).any(axis=1))
    return together((is_there.nonzero()[0] // (is_there.size // max(num, 1)),))


def _is_large_on_device(x: jax.Array) -> bool:
    if not x.ndim or x.size * x.dtype.itemsize <= SMALL_BYTES or not x.is_fully_addressable:
        return False
    return next(iter(x.sharding.device_set)).platform != "cpu"


def _same_on_device(value: LeafValue, x: jax.Array) -> bool:
    """Compare where the data are; only one boolean comes to the host. What was deleted equals
    nothing.
    """
    old = value.feed
    are_frozen = is_frozen(x) or is_frozen(old)
    if are_frozen or not isinstance(old, jax.Array) or not _jax.is_held_whole(x):
        return False
    if value.is_deleted():
        return False
    try:
        return bool(_equal_on_device(old, x))
    except jax.errors.JaxRuntimeError:
        return False


@jax.jit
def _equal_on_device(a: jax.Array, b: jax.Array) -> jax.Array:
    return ~jnp.any(different_bits(a, b))


NUM_SUMS = 4
"""Sums of 32 bits in a fingerprint: two arrays that differ have the same one in 1 of 2^128 cases."""


def fingerprint(x: jax.Array) -> jax.Array:
    """A few numbers, in a graph, that are others for other bits, or other places of them, of an
    array of this type; shape (`NUM_SUMS`,), uint32.

    h_k = sum_i m(w_i ^ m(i + k c)) modulo 2^32 over the words w_i of 32 bits, m a bijection: where
    one word differs all sums differ for certain, else as random numbers do.
    """
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag])
    bits = _jax.integers_of(x)
    if bits.dtype.itemsize == 8:
        bits = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    words = bits.reshape(-1).astype(jnp.uint32)
    places = jax.lax.iota(jnp.uint32, words.size)
    salts = np.arange(NUM_SUMS, dtype=np.uint32) * np.uint32(0x9E3779B9)
    sums = [jnp.sum(_mixed(words ^ _mixed(places + salt)), dtype=jnp.uint32) for salt in salts]
    return jnp.stack(sums)


def _mixed(words: jax.Array) -> jax.Array:
    """A bijection of 32 bits that makes of each bit a half of all.

    Source: the finalizer of MurmurHash3 (A. Appleby, public domain).
    """
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
