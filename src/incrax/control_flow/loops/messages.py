"""Errors about loops and padded rows, in the manner of `_messages`."""

from __future__ import annotations

from typing import Any

from incrax.errors import CapacityError, LoopTypeError, MemoryBudgetError

_UNTOUCHED = "Nothing was evaluated."


def other_carry(name: str, seen: Any, expected: Any) -> LoopTypeError:
    """A carry of another structure."""
    return LoopTypeError(
        f"The function of `{name}` got a carry of the structure {expected} and returned one of "
        f"{seen}. A loop's carry "
        f"has one type for all turns. {_UNTOUCHED} Return a carry like `init`."
    )


def other_carry_type(name: str, path: str, seen: str, expected: str) -> LoopTypeError:
    """A leaf of the carry of another type."""
    return LoopTypeError(
        f"The function of `{name}` got `{path}` as {expected} and returned it as {seen}. This is "
        "usually an `init` of integers that becomes floating-point, of float32 beside float64, or "
        "of one shape that is broadcast to another. A loop's carry has one type for all turns. "
        f"{_UNTOUCHED} Give `init` the type that a turn returns."
    )


def no_pair(name: str, seen: Any) -> LoopTypeError:
    """A function that returns no pair."""
    return LoopTypeError(
        f"The function of `{name}` must return a pair, the carry and a row of results, and "
        f"returned {seen}. "
        f"{_UNTOUCHED} Return `(carry, y)`, with None for y where there is nothing to stack."
    )


def no_condition(seen: str) -> LoopTypeError:
    """A condition that is no boolean scalar."""
    return LoopTypeError(
        f"The condition of `while_loop` must return one boolean, and returned {seen}. {_UNTOUCHED} "
        "Reduce it, for example by `jnp.any`, or compare it with a number."
    )


def no_length(name: str) -> LoopTypeError:
    """Neither xs nor a length."""
    return LoopTypeError(
        f"`{name}` got neither arrays in `xs` nor a `length`, so that the number of turns is "
        f"unknown. {_UNTOUCHED} Pass one of them."
    )


def no_capacity(name: str) -> LoopTypeError:
    """A traced length without xs."""
    return LoopTypeError(
        f"`{name}` got a traced `length` and no arrays in `xs`. What it stacks, and what its "
        f"derivatives store, needs a size that is known while tracing. {_UNTOUCHED} Pass "
        "`capacity=`, the largest length that may come."
    )


def other_lengths(name: str, lengths: list[tuple[str, Any]]) -> LoopTypeError:
    """Arrays with different numbers of rows."""
    shown = ", ".join(f"`{path}` {length}" for path, length in lengths[:8])
    return LoopTypeError(
        f"`{name}` goes through its arrays row by row, and they have different numbers of rows: "
        f"{shown}. {_UNTOUCHED} Pass arrays with equal first axes."
    )


def no_integer(name: str, what: str, seen: str) -> LoopTypeError:
    """A length that is no integer."""
    return LoopTypeError(
        f"`{name}({what}=...)` got {seen}; it must be one integer, at least 0. {_UNTOUCHED}"
    )


def too_long(name: str, seen: Any, capacity: int) -> CapacityError:
    """More turns than rows."""
    return CapacityError(
        f"`{name}` was asked for {seen} rows or turns, and there is room for {capacity}. Rows are "
        "never dropped silently. Pass arrays with more rows, or a larger `capacity=` or `size=`."
    )


def no_size(name: str) -> CapacityError:
    """A traced number of rows without room for them."""
    return CapacityError(
        f"`{name}` was called inside a traced function (jit, grad, vmap), where the number of rows "
        f"that it finds is unknown. {_UNTOUCHED} Pass `size=`, the largest number that may come, or "
        "call it in a function of `incrax.guarded`, where a capacity is a path."
    )


def small_memory(memory: int, needed: int, capacity: int) -> MemoryBudgetError:
    """A budget too small for any number of checkpoints."""
    return MemoryBudgetError(
        f"A loop of up to {capacity:,} turns was given {memory:,} bytes for the residuals of its "
        f"derivative, and needs {needed:,} even with as few checkpoints as can be. {_UNTOUCHED} "
        f"Pass more: `memory={needed}`."
    )


def unknown_length(capacity: int) -> LoopTypeError:
    """The length of padded rows, as a Python integer, under an abstract transformation."""
    return LoopTypeError(
        f"`len()` of a `Padded` with room for {capacity} rows was asked for inside a traced "
        f"function (jit, grad, vmap), where the number of rows is unknown. {_UNTOUCHED} Use "
        "`length`, which is traced, or `capacity`, which is not; in a function of "
        "`incrax.guarded`, outside of transformations, `len` is a guard."
    )


def no_ragged(option: str, name: str) -> LoopTypeError:
    """A ragged argument that is not there."""
    return LoopTypeError(
        f"`{option}` names `{name}`, and this call has no such argument, or one without arrays in "
        f"it. {_UNTOUCHED} Name arguments as in the function's signature, or by position."
    )


def other_mask(path: str, mask: str, seen: str) -> LoopTypeError:
    """A mask that does not fit its rows."""
    return LoopTypeError(
        f"`select_rows` got a mask of type {mask} for `{path}` of type {seen}; it takes one "
        f"boolean per row. {_UNTOUCHED} Reduce a mask of elements to one of rows, for example by "
        "`jnp.all(mask, axis=1)`."
    )
