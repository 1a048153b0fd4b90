"""Errors of incrax, each message built by one function: what was seen, the usual cause, the consequence, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class IncraxError(Exception):
    """Base of all errors of incrax."""


class UnsupportedLeafError(IncraxError, TypeError):
    """A leaf is neither a value for JAX nor a usable static value."""


class UnknownInputError(IncraxError, KeyError):
    """A path names no input."""

    def __str__(self) -> str:
        """The message as it is; `KeyError` would quote it."""
        return str(self.args[0])


class NotCalledError(IncraxError, RuntimeError):
    """A report was asked for before the first call."""


class DeletedInputError(IncraxError, RuntimeError):
    """An input's buffer was donated or deleted."""


def unsupported_dtype(path: str, dtype: Any) -> UnsupportedLeafError:
    """An array of a dtype that JAX has no type for."""
    return UnsupportedLeafError(
        f"`incremental(f)` got `{path}` as an array of dtype {dtype}, which JAX has no type for. This is usually a "
        "ragged list, strings or dates in an array. Nothing was evaluated or stored. Convert it to a numeric array, "
        "or pass it as a static Python value (str, tuple) instead."
    )


def unhashable_static(path: str, value: Any) -> UnsupportedLeafError:
    """A static leaf that cannot be part of a key."""
    return UnsupportedLeafError(
        f"`incremental(f)` got `{path}` of type {type(value).__name__}, which is no array and cannot be hashed, so it "
        "can be neither traced nor used as a static value. This is usually a set, a mutable object or a data frame. "
        "Nothing was evaluated or stored. Pass its arrays, or make the type hashable or a registered pytree."
    )


def unknown_input(name: str, known: Sequence[str]) -> UnknownInputError:
    """A path that names no input leaf."""
    shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
    return UnknownInputError(
        f"`{name}` names no input of this function; its inputs are: {shown}. Use a path as `explain()` prints it, "
        "a prefix of one (all leaves below it), or `path[i]` for an element of a small array."
    )


def not_called(method: str) -> NotCalledError:
    """A report without a call."""
    return NotCalledError(
        f"`{method}` needs a call to report on, and this function has not been called yet. Call it "
        f"once, or give `{method}` example arguments."
    )


def deleted_input(path: str) -> DeletedInputError:
    """An input that was donated or deleted."""
    return DeletedInputError(
        f"Array has been deleted: `incremental(f)` got `{path}` whose buffer was donated to another computation or "
        "deleted. The saved values are untouched and the next call works. Pass a copy, or do not donate this array."
    )
