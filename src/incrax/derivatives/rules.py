"""Rules: the patterns of an equation's outputs from those of its operands, by primitive.

A rule may say too much, never too little: an output element that depends on an operand element holds all of that
element's row. The table has the primitives that are linear in some operand, as a tangent passes no others; for one that
is missing, every output element depends on all that any operand element depends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.known import Known, value_of
from incrax.derivatives.patterns import (
    Pattern,
    check_size,
    everywhere,
    gathered,
    grouped,
    stacked,
    take,
    union,
)
from incrax.facts.constants import constant_rules
from incrax.facts.rules import ELEMENTWISE

Operands: TypeAlias = Sequence[Pattern]
Rule: TypeAlias = Callable[[Equation, Operands, Known], "Pattern | list[Pattern]"]


def all_to_all(eqn: Equation, operands: Operands, _: Known | None = None) -> list[Pattern]:
    """Every output element depends on all that any operand element depends on."""
    return [everywhere(operands, _jax.aval_size(var.aval)) for var in eqn.outvars]


# --- elementwise ------------------------------------------------------------------------------------------------------


def _elementwise(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    shape = eqn.outvars[0].aval.shape
    return union(_spread(pattern, atom.aval.shape, shape) for atom, pattern in zip(eqn.invars, operands, strict=True))


def _spread(pattern: Pattern, shape: tuple[int, ...], out_shape: tuple[int, ...]) -> Pattern:
    """An operand's pattern after broadcasting: scalars, and axes of length 1."""
    if pattern is None or shape == out_shape:
        return pattern
    return take(pattern, np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), out_shape))


def _pairwise(_: Equation, operands: Operands, __: Known) -> list[Pattern]:
    return list(operands)


def _mul(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    """Where a factor is a constant zero, so is the derivative."""
    shape = eqn.outvars[0].aval.shape
    keep = np.ones(shape, bool)
    for atom, pattern in zip(eqn.invars, operands, strict=True):
        factor = None if pattern is not None else value_of(atom, known)
        if factor is not None:
            keep &= factor != 0
    result = _elementwise(eqn, operands, known)
    return result if keep.all() else take(result, np.where(keep.ravel(), np.arange(keep.size), -1))


def _select_n(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    """The case that is selected, where that is known; any case elsewhere."""
    if value_of(eqn.invars[0], known) is None or operands[0] is not None:
        return _elementwise(eqn, operands, known)
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


def _move(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    return _moved(eqn, operands, known, num_first=0)


def _moved(eqn: Equation, operands: Operands, known: Known, num_first: int) -> Pattern:
    """By NumPy; the first `num_first` operands are constants that say where to."""
    numbers, rows = _numbers([atom.aval for atom in eqn.invars[num_first:]], operands[num_first:])
    steering = [value_of(atom, known) for atom in eqn.invars[:num_first]]
    moved = constant_rules[eqn.primitive.name](*steering, *numbers, **eqn.params)
    return take(rows, np.broadcast_to(moved, eqn.outvars[0].aval.shape))


def _move_by_jax(num_moved: int | None) -> Rule:
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


def _gather(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Unknown where: any element along the axes that are indexed."""
    if operands[1] is not None:
        return all_to_all(eqn, operands)
    shape, indices = eqn.invars[0].aval.shape, value_of(eqn.invars[1], known)
    if indices is not None:
        return take(operands[0], _jax.gather_numbers(eqn, shape, indices))
    axes = [a for a in eqn.params["dimension_numbers"].start_index_map if eqn.params["slice_sizes"][a] < shape[a]]
    lines, num_lines = _reduced_numbers(shape, axes)
    return take(grouped(operands[0], lines, num_lines), lines[_jax.gather_numbers(eqn, shape, _zeros(eqn.invars[1]))])


def _zeros(atom: Any) -> np.ndarray:
    return np.zeros(atom.aval.shape, atom.aval.dtype)


def _dynamic_slice(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Unknown where: any element along the axes that are cut."""
    if all(value_of(atom, known) is not None for atom in eqn.invars[1:]):
        return _move_by_jax(1)(eqn, operands, known)
    if any(pattern is not None for pattern in operands[1:]):
        return all_to_all(eqn, operands)
    shape, sizes = eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    lines, num_lines = _reduced_numbers(shape, [a for a, n in enumerate(shape) if sizes[a] < n])
    cut = lines.reshape(shape)[tuple(map(slice, sizes))]
    return take(grouped(operands[0], lines, num_lines), cut)


def _dynamic_update_slice(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Unknown where: each element is the old one or any new one along the axes that are cut."""
    if all(value_of(atom, known) is not None for atom in eqn.invars[2:]):
        return _move_by_jax(2)(eqn, operands, known)
    if any(pattern is not None for pattern in operands[2:]):
        return all_to_all(eqn, operands)
    shape, sizes = (atom.aval.shape for atom in eqn.invars[:2])
    axes = [a for a, n in enumerate(shape) if sizes[a] < n]
    lines = grouped(operands[1], *_reduced_numbers(sizes, axes))
    return union([operands[0], take(lines, _reduced_numbers(shape, axes)[0])])


def _scatter(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Each element of the result: the old one, and the updates that go there."""
    if operands[1] is not None:
        return all_to_all(eqn, operands)
    shape, indices = eqn.invars[0].aval.shape, value_of(eqn.invars[1], known)
    size = math.prod(shape)
    if indices is None:
        lines, num_lines = _reduced_numbers(shape, eqn.params["dimension_numbers"].scatter_dims_to_operand_dims)
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


# --- sums and products ------------------------------------------------------------------------------------------------


def _reduced_numbers(shape: tuple[int, ...], axes: Sequence[int]) -> tuple[np.ndarray, int]:
    """For each element, the number of the element that it is reduced to; how many of those there are."""
    kept = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    size = math.prod(kept)
    return np.broadcast_to(np.arange(size).reshape(kept), shape).ravel(), size


def _reduce(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    return grouped(operands[0], *_reduced_numbers(eqn.invars[0].aval.shape, eqn.params["axes"]))


def _cumulative(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    aval, axis = eqn.invars[0].aval, eqn.params["axis"]
    num = aval.shape[axis]
    check_size(_jax.aval_size(aval) * num)
    lines = np.moveaxis(np.arange(_jax.aval_size(aval)).reshape(aval.shape), axis, -1).reshape(-1, num)
    lines = lines[:, ::-1] if eqn.params["reverse"] else lines
    later, earlier = np.tril_indices(num)
    return gathered(operands[0], lines[:, later], lines[:, earlier], _jax.aval_size(aval))


def _within(axes_of: Callable[[Equation, tuple[int, ...]], Sequence[int]]) -> Rule:
    """Each output element depends on all elements of its line, matrix, ... of each operand, along some axes."""

    def rule(eqn: Equation, operands: Operands, _: Known) -> list[Pattern]:
        lines: Pattern = None
        for atom, pattern in zip(eqn.invars, operands, strict=True):
            shape = atom.aval.shape
            lines = union([lines, grouped(pattern, *_reduced_numbers(shape, axes_of(eqn, shape)))])
        shapes = [var.aval.shape for var in eqn.outvars]
        return [take(lines, _reduced_numbers(shape, axes_of(eqn, shape))[0]) for shape in shapes]

    return rule


def _last_two(_: Equation, shape: tuple[int, ...]) -> Sequence[int]:
    return range(len(shape) - 2, len(shape))


def _last_of_fft(eqn: Equation, shape: tuple[int, ...]) -> Sequence[int]:
    return range(len(shape) - len(eqn.params["fft_lengths"]), len(shape))


def _dot_general(eqn: Equation, operands: Operands, known: Known) -> Pattern:
    """out[b, m, n] = sum over k of left[b, m, k] right[b, n, k]: the terms whose other factor may be nonzero."""
    contracted, batch = eqn.params["dimension_numbers"]
    left, right = (
        _as_matrices(np.arange(_jax.aval_size(atom.aval)).reshape(atom.aval.shape), c, b)
        for atom, c, b in zip(eqn.invars, contracted, batch, strict=True)
    )
    out = np.arange(_jax.aval_size(eqn.outvars[0].aval)).reshape(*left.shape[:2], right.shape[1])
    values = [value_of(atom, known) if p is None else None for atom, p in zip(eqn.invars, operands, strict=True)]
    factors = [None if v is None else _as_matrices(v, c, b) for v, c, b in zip(values, contracted, batch, strict=True)]
    return union(
        [
            _terms(operands[0], left, factors[1], out),
            _terms(operands[1], right, factors[0], out.swapaxes(1, 2)),
        ]
    )


def _as_matrices(x: np.ndarray, contracted: Sequence[int], batch: Sequence[int]) -> np.ndarray:
    """(batch, free, contracted), each flat."""
    free = [axis for axis in range(x.ndim) if axis not in contracted and axis not in batch]
    sizes = [math.prod(x.shape[axis] for axis in axes) for axes in (batch, free, contracted)]
    return np.transpose(x, (*batch, *free, *contracted)).reshape(sizes)


def _terms(pattern: Pattern, own: np.ndarray, other: np.ndarray | None, out: np.ndarray) -> Pattern:
    """The part of a product's pattern, `out[b, m, n]`, that comes from `own[b, m, k]` times `other[b, n, k]`."""
    if pattern is None:
        return None
    if other is None or (other != 0).all():
        lines = np.arange(math.prod(own.shape[:2])).reshape(*own.shape[:2], 1)
        sums = gathered(pattern, np.broadcast_to(lines, own.shape), own, lines.size)
        rows = np.empty(out.size, int)
        rows[out] = lines
        return take(sums, rows)
    b, n, k = np.nonzero(other)
    check_size(b.size * own.shape[1])
    return gathered(pattern, out[b, :, n], own[b, :, k], out.size)


def _conv(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Element by element of the kernel: where it meets which element of the other operand, by the primitive itself."""
    image, kernel = (atom.aval for atom in eqn.invars)
    size, num_out = _jax.aval_size(kernel), _jax.aval_size(eqn.outvars[0].aval)
    if size > MAX_KERNEL:
        return all_to_all(eqn, operands)
    check_size(size * num_out)
    numbers = np.arange(1, _jax.aval_size(image) + 1, dtype=np.float32).reshape(image.shape)
    met = np.stack([_meeting(eqn, numbers, np.eye(1, size, k, np.float32)) for k in range(size)])
    element, out = np.nonzero(met)
    source = met[element, out] - 1
    pixels, weights = (None if p is not None else value_of(a, known) for a, p in zip(eqn.invars, operands, strict=True))
    of_image = slice(None) if weights is None else np.ravel(weights)[element] != 0
    of_kernel = slice(None) if pixels is None else np.ravel(pixels)[source] != 0
    return union(
        [
            gathered(operands[0], out[of_image], source[of_image], num_out),
            gathered(operands[1], out[of_kernel], element[of_kernel], num_out),
        ]
    )


MAX_KERNEL = 1024
"""Elements of a kernel above which a convolution is taken as all-to-all."""


def _meeting(eqn: Equation, numbers: np.ndarray, one_hot: np.ndarray) -> np.ndarray:
    """Per output element, 1 + the number of the element that meets the one element of the kernel; 0 for none."""
    params = {**eqn.params, "preferred_element_type": None, "precision": jax.lax.Precision.HIGHEST}
    values = [numbers, one_hot.reshape(eqn.invars[1].aval.shape)]
    with jax.ensure_compile_time_eval():
        (met,) = _jax.apply(eqn.replace(params=params), values)
    return np.asarray(met).ravel().astype(int)


rules: dict[str, Rule] = {
    **dict.fromkeys([*ELEMENTWISE, "pvary", "reshard", "mesh_cast", "sharding_constraint"], _elementwise),
    "mul": _mul,
    "select_n": _select_n,
    "optimization_barrier": _pairwise,
    **dict.fromkeys("slice squeeze expand_dims reshape transpose rev broadcast_in_dim concatenate".split(), _move),
    **dict.fromkeys("pad split unstack stack".split(), _move_by_jax(None)),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **dict.fromkeys("scatter scatter-add scatter-sub scatter_add scatter_sub".split(), _scatter),
    **dict.fromkeys("reduce_sum reduce_max reduce_min reduce_prod".split(), _reduce),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp".split(), _cumulative),
    "dot_general": _dot_general,
    "conv_general_dilated": _conv,
    "fft": _within(_last_of_fft),
    "sort": _within(lambda eqn, _: [eqn.params["dimension"]]),
    **dict.fromkeys("triangular_solve cholesky".split(), _within(_last_two)),
}
