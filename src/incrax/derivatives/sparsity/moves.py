"""Patterns through elementwise primitives and moves of data; the vocabulary of the rules.

A rule gets an equation, the patterns of its operands and what is known, and returns those of its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.sparsity.known import Known, value_of
from incrax.derivatives.sparsity.patterns import (
    Pattern,
    check_size,
    everywhere,
    gathered,
    grouped,
    stacked,
    take,
    union,
)
from incrax.engine.program.constants import constant_rules

Operands: TypeAlias = Sequence[Pattern]
Rule: TypeAlias = Callable[[Equation, Operands, Known], "Pattern | list[Pattern]"]


def all_to_all(eqn: Equation, operands: Operands, _: Known | None = None) -> list[Pattern]:
    """Every output element depends on all that any operand element depends on."""
    return [everywhere(operands, _jax.aval_size(var.aval)) for var in eqn.outvars]


def reduced_numbers(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[np.ndarray, int]:
    """For each element, the number of the element that it is reduced to; how many of those there are."""
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    size = math.prod(kept)
    return np.broadcast_to(np.arange(size).reshape(kept), shape).ravel(), size


# --- elementwise ------------------------------------------------------------------------------------------------------


def elementwise(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    """Element by element what any operand depends on."""
    shape = eqn.outvars[0].aval.shape
    return union(_spread(pattern, atom.aval.shape, shape) for atom, pattern in zip(eqn.invars, operands, strict=True))


def _spread(pattern: Pattern, shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Pattern:
    """An operand's pattern after broadcasting: scalars, and axes of length 1."""
    if pattern is None or shape == out_shape:
        return pattern
    return take(pattern, np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), out_shape))


def pairwise(_: Equation, operands: Operands, __: Known) -> list[Pattern]:
    """Each output is the operand of its number."""
    return list(operands)


def mul(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    """Where a factor is a constant zero, so is the derivative."""
    shape = eqn.outvars[0].aval.shape
    keep = np.ones(shape, bool)
    for atom, pattern in zip(eqn.invars, operands, strict=True):
        factor = None if pattern is not None else value_of(atom, known)
        if factor is not None:
            keep &= factor != 0
    result = elementwise(eqn, operands, known)
    return result if keep.all() else take(result, np.where(keep.ravel(), np.arange(keep.size), -1))


def select_n(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    """The case that is selected, where that is known; any case elsewhere."""
    if value_of(eqn.invars[0], known) is None or operands[0] is not None:
        return elementwise(eqn, operands, known)
    return _moved(eqn, operands, known, num_first=1)


# --- moves of data: the move applied to element numbers ---------------------------------------------------------------


def _numbers(avals: Sequence[Any], operands: Operands) -> tuple[list[np.ndarray], Pattern]:
    """Numbers of the elements of each operand in all of them stacked; -1 for one that depends on nothing."""
    first, numbers = 0, []
    for aval, pattern in zip(avals, operands, strict=True):
        size = _jax.aval_size(aval) if pattern is not None else 0
        own = np.arange(first, first + size) if pattern is not None else np.full(_jax.aval_size(aval), -1)
        numbers.append(own.astype(np.int32).reshape(aval.shape))
        first += size
    return numbers, stacked((p, p.shape[0]) for p in operands if p is not None)


def move(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    """Every operand moves, by NumPy."""
    return _moved(eqn, operands, known, num_first=0)


def _moved(eqn: Equation, operands: Operands, known: Known, num_first: int) -> Pattern:
    """By NumPy; the first `num_first` operands are constants that say where to."""
    numbers, rows = _numbers([atom.aval for atom in eqn.invars[num_first:]], operands[num_first:])
    steering = [value_of(atom, known) for atom in eqn.invars[:num_first]]
    moved = constant_rules[eqn.primitive.name](*steering, *numbers, **eqn.params)
    return take(rows, np.broadcast_to(moved, eqn.outvars[0].aval.shape))


def pad(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    """Axis by axis: elements spread apart, some cut off or added at the ends."""
    numbers, rows = _numbers([atom.aval for atom in eqn.invars], operands)
    x, value = numbers
    for axis, (low, high, inner) in enumerate(eqn.params["padding_config"]):
        lines = np.moveaxis(x, axis, 0)
        spread = np.full((max(0, len(lines) * (inner + 1) - inner), *lines.shape[1:]), value)
        spread[:: inner + 1] = lines
        around = [np.full((max(0, num), *lines.shape[1:]), value) for num in (low, high)]
        cut = spread[max(0, -low) : max(0, len(spread) + min(0, high))]
        x = np.moveaxis(np.concatenate([around[0], cut, around[1]]), 0, axis)
    return take(rows, x)


def move_by_jax(num_moved: int | None) -> Rule:
    """By the primitive itself; the operands after the first `num_moved` (None: no operand) say where to."""

    def rule(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
        indices = [value_of(atom, known) for atom in eqn.invars[num_moved or len(eqn.invars) :]]
        if any(index is None for index in indices):
            return all_to_all(eqn, operands)
        count = len(eqn.invars) - len(indices)
        numbers, rows = _numbers([atom.aval for atom in eqn.invars[:count]], operands[:count])
        with jax.ensure_compile_time_eval():
            return [take(rows, moved) for moved in _jax.apply(eqn, [*numbers, *indices])]

    return rule


def gather(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Unknown where: any element along the axes that are indexed."""
    if operands[1] is not None:
        return all_to_all(eqn, operands)
    shape, indices = eqn.invars[0].aval.shape, value_of(eqn.invars[1], known)
    if indices is not None:
        return take(operands[0], _jax.gather_numbers(eqn, shape, indices))
    axes = [a for a in eqn.params["dimension_numbers"].start_index_map if eqn.params["slice_sizes"][a] < shape[a]]
    lines, num_lines = reduced_numbers(shape, axes)
    return take(grouped(operands[0], lines, num_lines), lines[_jax.gather_numbers(eqn, shape, _zeros(eqn.invars[1]))])


def _zeros(atom: Any) -> np.ndarray:
    return np.zeros(atom.aval.shape, atom.aval.dtype)


def dynamic_slice(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Unknown where: any element along the axes that are cut."""
    if all(value_of(atom, known) is not None for atom in eqn.invars[1:]):
        return move_by_jax(1)(eqn, operands, known)
    if any(pattern is not None for pattern in operands[1:]):
        return all_to_all(eqn, operands)
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    lines, num_lines = reduced_numbers(shape, [a for a, n in enumerate(shape) if sizes[a] < n])
    cut = lines.reshape(shape)[tuple(map(slice, sizes))]
    return take(grouped(operands[0], lines, num_lines), cut)


def dynamic_update_slice(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Unknown where: each element is the old one or any new one along the axes that are cut."""
    if all(value_of(atom, known) is not None for atom in eqn.invars[2:]):
        return move_by_jax(2)(eqn, operands, known)
    if any(pattern is not None for pattern in operands[2:]):
        return all_to_all(eqn, operands)
    shape, sizes = (atom.aval.shape for atom in eqn.invars[:2])
    axes = [a for a, n in enumerate(shape) if sizes[a] < n]
    lines = grouped(operands[1], *reduced_numbers(sizes, axes))
    return union([operands[0], take(lines, reduced_numbers(shape, axes)[0])])


def scatter(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Each element of the result: the old one, and the updates that go there."""
    if operands[1] is not None:
        return all_to_all(eqn, operands)
    shape, indices = eqn.invars[0].aval.shape, value_of(eqn.invars[1], known)
    size = math.prod(shape)
    if indices is None:
        lines, num_lines = reduced_numbers(shape, eqn.params["dimension_numbers"].scatter_dims_to_operand_dims)
        updates = grouped(operands[2], lines[_scatter_targets(eqn, _zeros(eqn.invars[1]))], num_lines)
        return union([operands[0], take(updates, lines)])
    targets = _scatter_targets(eqn, indices)
    kept, old = targets >= 0, operands[0]
    if eqn.primitive.name == "scatter":
        old = take(old, np.where(np.isin(np.arange(size), targets), -1, np.arange(size)))
    return union([old, gathered(operands[2], targets[kept], np.flatnonzero(kept), size)])


def _scatter_targets(eqn: Equation, indices: np.ndarray) -> np.ndarray:
    """Which element of the result each update goes to (-1: none), by the gather that reads from there."""
    operand, updates = eqn.invars[0].aval, eqn.invars[2].aval
    check_size(_jax.aval_size(operand))
    numbers = eqn.params["dimension_numbers"]
    collapsed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = iter([updates.shape[axis] for axis in numbers.update_window_dims])
    sizes = tuple(1 if axis in collapsed else next(windows) for axis in range(operand.ndim))
    dimension_numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    elements = np.arange(_jax.aval_size(operand), dtype=np.int32).reshape(operand.shape)
    mode = eqn.params["mode"]
    with jax.ensure_compile_time_eval():
        read = jax.lax.gather(elements, indices, dimension_numbers, sizes, mode=mode, fill_value=-1)
    return np.asarray(read).ravel()
