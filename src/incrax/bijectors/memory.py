"""What outputs of bijections remember, beside the outputs: a table keyed weakly by the output
object.

In: an output and records of how it was made. Out: the records of an output, as long as it lives.
Invariants:

- an entry holds its output weakly and dies with it; no record holds its own output;
- records are keyed by the object: another array with equal values has none;
- tracers are never in the table: the records of a tracer are held by the tracer, and nothing else;
- whatever a record gives out can be used wherever its output can (`_jax.is_known_with`);
- the table is changed by single operations of a dict, each atomic, so that threads and dying arrays
  may interleave.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from incrax import _jax
from incrax.bijectors.snapshots import Snapshot


@dataclass(slots=True, eq=False, repr=False)
class Origin:
    """How one array was made by one bijection. Of `memory_of`; to be read, not changed.

    Fields:
        direction: `"forward"` or `"inverse"`.
        source: the input that the array was made from.
        ladj: log|det J| of the pass at its input; None until it is computed.
        kept: what the log-determinant can be computed from (what a conditioner gave), or None.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> double = bijectors.remember(transforms.AffineTransform(0.0, 2.0))
        >>> x = jnp.array(3.0)
        >>> origin = bijectors.memory_of(double.forward(x))
        >>> origin.source is x, origin.direction
        (True, 'forward')
    """

    _bijection_ref: Callable[[], Any]  # held weakly, as the context
    _snapshot: Snapshot  # what the pass depended on
    direction: str
    source: Any
    _context_ref: Callable[[], Any] | None
    _is_wide: bool  # whether numbers had 64 bits by default
    ladj: Any = None
    kept: Any = None

    @property
    def bijection(self) -> Any:
        """The bijection that made the array, or None if it is gone; records hold no parameters."""
        return self._bijection_ref()

    @property
    def context(self) -> Any:
        """The context of the pass, or None if there was none or it is gone."""
        return None if self._context_ref is None else self._context_ref()

    def _has_context(self, context: Any) -> bool:
        """Whether a context is the recorded object."""
        if self._context_ref is None:
            return context is None
        return context is not None and self._context_ref() is context and is_readable(context)

    def __repr__(self) -> str:
        shape = f"{self.source.dtype}{list(self.source.shape)}"
        return f"Origin({self.direction} of {self.bijection!r}, source={shape}, ladj={self.ladj!r})"


class _Entry(weakref.ref):
    """A weak reference to an output, with its records."""

    __slots__ = ("key", "records")

    key: int
    records: tuple[Origin, ...]


_table: dict[int, _Entry] = {}


def _drop(entry: Any) -> None:
    """Called when an output dies; its number may belong to another by then."""
    if _table.get(entry.key) is entry:
        _table.pop(entry.key, None)


def is_kept(x: Any) -> bool:
    """Whether a value can be remembered: an array or a tracer of one, immutable, and readable."""
    if isinstance(x, _jax.ArrayImpl):
        return not x.is_deleted()
    return isinstance(x, _jax.Tracer) and not _jax.is_ref(x.aval)


def is_readable(x: Any) -> bool:
    """Whether a value is there, and was not deleted or donated."""
    return x is not None and (isinstance(x, _jax.Tracer) or not x.is_deleted())


def can_be_remembered(output: Any, *needed: Any) -> bool:
    """Whether an output, and what made it, can be used wherever the output can."""
    return all(is_kept(x) and _jax.is_known_with(x, output) for x in (output, *needed))


def attach(output: Any, records: tuple[Origin, ...]) -> None:
    """Remember how an array was made."""
    if isinstance(output, _jax.ArrayImpl):
        entry = _Entry(output, _drop)
        entry.key = id(output)
        entry.records = records
        _table[entry.key] = entry
    else:
        _jax.note(output, records)


def records_of(output: Any) -> tuple[Origin, ...]:
    """The records of an array, the outermost bijection first; none of a deleted one, nor outside a
    tracer's trace.
    """
    entry = _table.get(id(output))
    if entry is None and isinstance(output, _jax.Tracer):
        return (_jax.is_current(output) and _jax.noted(output)) or ()
    if entry is None or entry() is not output or output.is_deleted():
        return ()
    return entry.records


def memory_of(y: Any) -> Origin | None:
    """How an array was made by a bijection that remembers.

    Args:
        y: an array; inside a transformation, a tracer of one.

    Returns:
        The record, with `source`, `bijection`, `context`, `direction`, `ladj` (None until it is
        computed) and `kept`, what it can be computed from; None if nothing is remembered: made
        otherwise, changed since by any operation, forgotten, deleted, or brought into or out of a
        transformation.

    Cost: a lookup in a dict.

    Source: `BijectiveTensor` of facebookincubator/flowtorch#89.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> y = bijectors.remember(transforms.ExpTransform()).forward(jnp.zeros(2))
        >>> bijectors.memory_of(y).source.tolist(), bijectors.memory_of(y + 1.0)
        ([0.0, 0.0], None)
    """
    records = records_of(y)
    return records[0] if records else None


def forget(y: Any) -> None:
    """Drop what is remembered of an array, and with it the hold on its source.

    Nothing happens if there is nothing.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> y = bijectors.remember(transforms.ExpTransform()).forward(jnp.zeros(2))
        >>> bijectors.forget(y)
        >>> bijectors.memory_of(y) is None
        True
    """
    if memory_of(y) is None:
        return
    if isinstance(y, _jax.Tracer):
        _jax.note(y, ())
    else:
        _table.pop(id(y), None)
