"""Patterns through sums and products: reductions, matrix products, convolutions, transforms along lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.derivatives.sparsity.known import Known, value_of
from incrax.derivatives.sparsity.moves import Operands, Rule, all_to_all, reduced_numbers
from incrax.derivatives.sparsity.patterns import (
    Pattern,
    check_size,
    gathered,
    grouped,
    take,
    union,
)


def reduce(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    """What any element that is reduced depends on."""
    return grouped(operands[0], *reduced_numbers(eqn.invars[0].aval.shape, eqn.params["axes"]))


def cumulative(eqn: Equation, operands: Operands, _: Known) -> Pattern:
    """Each element of a line depends on those before it."""
    aval, axis = eqn.invars[0].aval, eqn.params["axis"]
    num = aval.shape[axis]
    check_size(_jax.aval_size(aval) * num)
    lines = np.moveaxis(np.arange(_jax.aval_size(aval)).reshape(aval.shape), axis, -1).reshape(-1, num)
    lines = lines[:, ::-1] if eqn.params["reverse"] else lines
    later, earlier = np.tril_indices(num)
    return gathered(operands[0], lines[:, later], lines[:, earlier], _jax.aval_size(aval))


def within(axes_of: Callable[[Equation, tuple[int, ...]], Sequence[int]]) -> Rule:
    """Each output element depends on all elements of its line, matrix, ... of each operand, along some axes."""

    def rule(eqn: Equation, operands: Operands, _: Known) -> list[Pattern]:
        lines: Pattern = None
        for atom, pattern in zip(eqn.invars, operands, strict=True):
            shape = atom.aval.shape
            lines = union([lines, grouped(pattern, *reduced_numbers(shape, axes_of(eqn, shape)))])
        shapes = [var.aval.shape for var in eqn.outvars]
        return [take(lines, reduced_numbers(shape, axes_of(eqn, shape))[0]) for shape in shapes]

    return rule


def last_two(_: Equation, shape: tuple[int, ...]) -> Sequence[int]:
    """The axes of a batch of matrices that are not the batch's."""
    return range(len(shape) - 2, len(shape))


def last_of_fft(eqn: Equation, shape: tuple[int, ...]) -> Sequence[int]:
    """The axes that are transformed."""
    return range(len(shape) - len(eqn.params["fft_lengths"]), len(shape))


def dot_general(eqn: Equation, operands: Operands, known: Known) -> Pattern:
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


def conv(eqn: Equation, operands: Operands, known: Known) -> Pattern | list[Pattern]:
    """Element by element of the kernel: where it meets which element of the other operand, by the primitive itself."""
    image, kernel = (atom.aval for atom in eqn.invars)
    size, num_out = _jax.aval_size(kernel), _jax.aval_size(eqn.outvars[0].aval)
    if size > MAX_KERNEL or _cpu() is None:
        return all_to_all(eqn, operands)
    check_size(size * num_out)
    numbers = np.arange(1, _jax.aval_size(image) + 1, dtype=np.float32).reshape(image.shape)
    met = np.stack([_meeting(eqn, numbers, np.eye(1, size, k, np.float32)) for k in range(size)])
    if (met % 1).any():
        return all_to_all(eqn, operands)
    element, out = np.nonzero(met)
    source = met[element, out].astype(int) - 1
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


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _meeting(eqn: Equation, numbers: np.ndarray, one_hot: np.ndarray) -> np.ndarray:
    """Per output element, 1 + the number of the element that meets the one element of the kernel; 0 for none.

    On the host: an accelerator may use an algorithm that does not keep whole numbers.
    """
    params = {**eqn.params, "preferred_element_type": None, "precision": jax.lax.Precision.HIGHEST}
    values = [numbers, one_hot.reshape(eqn.invars[1].aval.shape)]
    with jax.ensure_compile_time_eval(), jax.default_device(_cpu()):
        (met,) = _jax.apply(eqn.replace(params=params), values)
    return np.asarray(met).ravel()
