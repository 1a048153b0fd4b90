"""Products, convolutions, Fourier transforms.

FLOPs: a multiply-add is two; 5 n log2 n for a Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.lax import Precision

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.entry import (
    COMPLEX_FACTOR,
    PRODUCT,
    Axis,
    EquationWork,
    Family,
    Kind,
    Primitive,
    Read,
    Reads,
    View,
    counted,
    dtype_kind,
    element_numbers,
    shape_of,
)
from incrax.primitives.reductions import along

CONTRACTED = Kind(
    "multiplies rows with something else by their place", reduction="sum", is_final=True
)
TRANSFORMED = Kind("transforms along the rows", is_final=True)
CONVOLVED = Kind("adds up neighbouring rows", is_final=True)

# --- products -------------------------------------------------------------------------------------


def _dot_general(eqn: Equation, view: View) -> list[Reads]:
    """out[b, m, n] = sum over k of left[b, m, k] right[b, n, k]: the terms whose other factor may
    be nonzero.
    """
    contracted, batch = eqn.params["dimension_numbers"]
    left, right = (
        _factor(len(shape_of(atom)), c, b)
        for atom, c, b in zip(eqn.invars, contracted, batch, strict=True)
    )
    num_free = len(left) - len(contracted[0]) - len(batch[0])
    right = [
        Axis(out + num_free, kind) if out >= len(batch[0]) else Axis(out, kind)
        for out, kind in right
    ]
    pairs: list[Any] = [None, None]
    for number in (0, 1):
        other = view.factor(eqn.invars[1 - number])
        if other is not None and not other.all():
            pairs[number] = _terms(eqn, number, other)
    return [Reads([Read(tuple(left), pairs[0]), Read(tuple(right), pairs[1])])]


def _factor(rank: int, contracted: Sequence[int], batch: Sequence[int]) -> list[Axis]:
    """Batch axes come first in the output, then the free ones; axes that are contracted share a
    label.
    """
    free = iter(range(len(batch), rank))
    axes = []
    for d in range(rank):
        if d in contracted:
            axes.append(Axis(-1 - list(contracted).index(d), CONTRACTED))
        else:
            axes.append(Axis(list(batch).index(d) if d in batch else next(free)))
    return axes


def _terms(eqn: Equation, number: int, other: np.ndarray) -> Callable[[], tuple[Any, Any]]:
    """Which elements of a factor meet which nonzero elements of the other, and where the product
    goes.
    """

    def pairs() -> tuple[Any, Any]:
        contracted, batch = eqn.params["dimension_numbers"]
        own = _as_matrices(
            element_numbers(shape_of(eqn.invars[number])), contracted[number], batch[number]
        )
        factor = _as_matrices(other, contracted[1 - number], batch[1 - number])
        sizes = (own.shape[0], own.shape[1], factor.shape[1])
        out = (
            element_numbers(sizes)
            if number == 0
            else element_numbers((sizes[0], sizes[2], sizes[1])).swapaxes(1, 2)
        )
        b, n, k = np.nonzero(factor)
        return out[b, :, n], own[b, :, k]

    return pairs


def _as_matrices(x: np.ndarray, contracted: Sequence[int], batch: Sequence[int]) -> np.ndarray:
    """(batch, free, contracted), each flat."""
    free = [axis for axis in range(x.ndim) if axis not in contracted and axis not in batch]
    sizes = [math.prod(x.shape[axis] for axis in axes) for axes in (batch, free, contracted)]
    return np.transpose(x, (*batch, *free, *contracted)).reshape(sizes)


MAX_KERNEL = 1024
"""Elements of a kernel up to which it is seen which of them meets what."""


def _conv(eqn: Equation, view: View) -> list[Reads]:
    """Batch and features that are not summed over stay; element by element where derivatives are
    asked for.
    """
    numbers = eqn.params["dimension_numbers"]
    image = numbers.lhs_spec
    kernel = numbers.rhs_spec
    out = numbers.out_spec
    rank = len(out)
    left, right = ([Axis(-1 - d, CONVOLVED) for d in range(rank)] for _ in range(2))
    if eqn.params["batch_group_count"] == 1:
        left[image[0]] = Axis(out[0])
        right[kernel[0]] = Axis(out[1])
    reads = [Read(tuple(left)), Read(tuple(right))]
    size = _jax.aval_size(eqn.invars[1].aval)
    num_out = _jax.aval_size(eqn.outvars[0].aval)
    if view.zeros and size <= MAX_KERNEL and _cpu() is not None:
        view.check(size * num_out)
        met = _meetings_of(eqn, size, num_out)
        pixels, weights = (view.factor(atom) for atom in eqn.invars)
        reads[0] = reads[0]._replace(pairs=lambda: met(1, weights))
        reads[1] = reads[1]._replace(pairs=lambda: met(0, pixels))
    return [Reads(reads)]


def _meetings_of(eqn: Equation, size: int, num_out: int) -> Callable[[int, Any], tuple[Any, Any]]:
    """Where the kernel's elements meet the image's, by the primitive itself on element numbers."""
    found: list[Any] = []

    def met(number: int, factor: np.ndarray | None) -> tuple[Any, Any]:
        if not found:
            image = shape_of(eqn.invars[0])
            numbers = np.arange(1, math.prod(image) + 1, dtype=np.float32).reshape(image)
            places = np.stack(
                [_meeting(eqn, numbers, np.eye(1, size, k, np.float32)) for k in range(size)]
            )
            element, target = np.nonzero(places)
            found.extend([target, places[element, target].astype(int) - 1, element])
        target, source, element = found
        own, other = (source, element) if number == 1 else (element, source)
        chosen = slice(None) if factor is None else np.ravel(factor)[other] != 0
        return target[chosen], own[chosen]

    return met


def _cpu() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _meeting(eqn: Equation, numbers: np.ndarray, one_hot: np.ndarray) -> np.ndarray:
    """Per output element, 1 + the number of the element that meets the one element of the kernel; 0
    for none.

    On the host: an accelerator may use an algorithm that does not keep whole numbers.
    """
    params = {**eqn.params, "preferred_element_type": None, "precision": Precision.HIGHEST}
    values = [numbers, one_hot.reshape(shape_of(eqn.invars[1]))]
    with jax.ensure_compile_time_eval(), jax.default_device(_cpu()):
        (met,) = _jax.apply(eqn.replace(params=params), values)
    return np.asarray(met).ravel()


def _fft_axes(eqn: Equation, rank: int) -> Sequence[int]:
    return range(rank - len(eqn.params["fft_lengths"]), rank)


# --- work -----------------------------------------------------------------------------------------


def multiply_adds(eqn: Equation) -> int:
    """Products of numbers that are added up, of a product of arrays or a convolution."""
    return _multiply_adds[eqn.primitive.name](eqn)


def _dot_count(eqn: Equation) -> int:
    return _num_summed(eqn) * _jax.aval_size(eqn.outvars[0].aval)


def _num_summed(eqn: Equation) -> int:
    """Products that are added up for one element."""
    (contract, _), _ = eqn.params["dimension_numbers"]
    return math.prod(shape_of(eqn.invars[0])[axis] for axis in contract)


def _ragged_dot_count(eqn: Equation) -> int:
    """Each row belongs to one group; where rows are summed over, each group has its own result."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contract, _), _ = numbers.dot_dimension_numbers
    lhs, _, sizes = (shape_of(atom) for atom in eqn.invars[:3])
    count = math.prod(lhs[axis] for axis in contract) * _jax.aval_size(eqn.outvars[0].aval)
    is_summed = set(numbers.lhs_ragged_dimensions) & set(contract)
    return count // max(sizes[-1], 1) if is_summed else count


def _conv_count(eqn: Equation) -> int:
    """Only where a kernel's element meets one of the input: not in the padding, nor in the holes of
    a dilation.
    """
    params = eqn.params
    numbers = eqn.params["dimension_numbers"]
    image, kernel = (shape_of(atom) for atom in eqn.invars)
    result = shape_of(eqn.outvars[0])
    meetings = 1
    for axis, (low, _) in enumerate(params["padding"]):
        meetings *= _meetings(
            size=image[numbers.lhs_spec[2 + axis]],
            taps=kernel[numbers.rhs_spec[2 + axis]],
            places=result[numbers.out_spec[2 + axis]],
            stride=params["window_strides"][axis],
            low=low,
            holes=params["lhs_dilation"][axis],
            spread=params["rhs_dilation"][axis],
        )
    in_features = kernel[numbers.rhs_spec[1]]  # of one group
    return result[numbers.out_spec[0]] * result[numbers.out_spec[1]] * in_features * meetings


def _meetings(
    *, size: int, taps: int, places: int, stride: int, low: int, holes: int, spread: int
) -> int:
    """Pairs of a place of the result and an element of the kernel, along one axis, that meet an
    input.
    """
    where = np.arange(places)[:, None] * stride - low + np.arange(taps)[None, :] * spread
    return int(np.sum((where >= 0) & (where % holes == 0) & (where < size * holes)))


_multiply_adds: dict[str, Callable[[Equation], int]] = {
    "dot_general": _dot_count,
    "conv_general_dilated": _conv_count,
    "ragged_dot_general": _ragged_dot_count,
}


def _product(eqn: Equation) -> EquationWork:
    is_outer = eqn.primitive.name == "dot_general" and _num_summed(eqn) == 1
    return counted(eqn, (1.0 if is_outer else 2.0) * multiply_adds(eqn), COMPLEX_FACTOR)


def _fft(eqn: Equation) -> EquationWork:
    """FLOPs: 5 n log2 n per complex transform of n numbers, in all its axes together; half of that
    for a real one.
    """
    points = math.prod(eqn.params["fft_lengths"])
    kinds = dtype_kind(eqn.invars[0].aval) + dtype_kind(eqn.outvars[0].aval)
    whole = eqn.outvars[0] if kinds == "cf" else eqn.invars[0]
    batch = _jax.aval_size(whole.aval) / max(points, 1)
    return EquationWork(
        batch * (5.0 if kinds == "cc" else 2.5) * points * math.log2(max(points, 1))
    )


# --- entries --------------------------------------------------------------------------------------

FAMILY: Family = {
    "dot_general": Primitive(
        index=_dot_general, work=_product, algebra=PRODUCT, is_unfused=True, is_product=True
    ),
    "conv_general_dilated": Primitive(index=_conv, work=_product, is_unfused=True, is_product=True),
    "ragged_dot_general": Primitive(work=_product),
    "fft": Primitive(index=along(_fft_axes, TRANSFORMED), work=_fft, is_unfused=True),
}
