"""Products, convolutions, Fourier transforms.

FLOPs: a multiply-add is two; 5 n log2 n for a Fourier transform.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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
    Window,
    counted,
    dtype_kind,
    element_numbers,
    rank_of,
    shape_of,
    with_item,
    with_parameters,
)
from incrax.primitives.reductions import mixing

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
    ranks = list(map(rank_of, eqn.invars))
    free = [len(batch[0]), ranks[0] - len(contracted[0])]
    left, right = map(_factor, ranks, contracted, batch, free)
    pairs: list[Any] = [None, None]
    for number in (0, 1):
        other = view.factor(eqn.invars[1 - number])
        if other is not None and not other.all():
            pairs[number] = _terms(eqn, number, other)
    return [Reads([Read(tuple(left), pairs[0]), Read(tuple(right), pairs[1])])]


def _factor(rank: int, contracted: Sequence[int], batch: Sequence[int], free: int) -> list[Axis]:
    """Batch axes come first in the output, the free ones from some axis on: those of the second
    factor last; axes that are contracted share a label.
    """
    places = itertools.count(free)
    axes = []
    for d in range(rank):
        if d in contracted:
            axes.append(Axis(-1 - list(contracted).index(d), CONTRACTED))
        else:
            axes.append(Axis(list(batch).index(d) if d in batch else next(places)))
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
    image, kernel, out = eqn.params["dimension_numbers"]
    rank = len(out)
    left, right = ([Axis(-1 - d, CONVOLVED) for d in range(rank)] for _ in range(2))
    if eqn.params["batch_group_count"] == 1:
        left[image[0]] = Axis(out[0])
        right[kernel[0]] = Axis(out[1])
    size = _jax.aval_size(eqn.invars[1].aval)
    if not view.zeros or size > MAX_KERNEL:
        return [Reads([Read(tuple(left)), Read(tuple(right))])]
    view.check(size * _jax.aval_size(eqn.outvars[0].aval))
    pairs = _conv_pairs(eqn, view)
    return [Reads([Read(tuple(left), lambda: pairs(0)), Read(tuple(right), lambda: pairs(1))])]


def _conv_pairs(eqn: Equation, view: View) -> Callable[[int], tuple[Any, Any]]:
    """Which elements of a factor, by its number, meet nonzero elements of the other."""
    met = functools.cache(lambda: _met_elements(eqn))
    factors = [view.factor(atom) for atom in eqn.invars]

    def pairs(number: int) -> tuple[Any, Any]:
        target, *sources = met()
        other = factors[1 - number]
        is_met = slice(None) if other is None else np.ravel(other)[sources[1 - number]] != 0
        return target[is_met], sources[number][is_met]

    return pairs


def _conv_windows(eqn: Equation) -> list[Window]:
    _, kernel, _ = eqn.params["dimension_numbers"]
    strides = eqn.params["window_strides"]
    dilations = eqn.params["rhs_dilation"]
    lengths = shape_of(eqn.invars[1])
    return [
        _conv_window(eqn, n, lengths[axis], strides[n], dilations[n])
        for n, axis in enumerate(kernel[2:])
    ]


def _conv_window(eqn: Equation, n: int, taps: int, stride: int, dilation: int) -> Window:
    """Windows along one spatial axis of the image."""
    image, _, out = eqn.params["dimension_numbers"]
    padding = eqn.params["padding"]
    holes = eqn.params["lhs_dilation"]
    alone = {"padding": with_item(padding, n, (0, 0)), "lhs_dilation": with_item(holes, n, 1)}
    return Window(
        image[2 + n],
        out[2 + n],
        with_parameters(eqn, alone),
        taps,
        int(stride),
        low=int(padding[n][0]),
        dilation=int(dilation),
        spread=int(holes[n]),
    )


def across(
    eqn: Equation, image_axis: int | None, kernel_axis: int | None
) -> tuple[Window, int] | None:
    """The windows of a convolution with image and kernel in each other's places: each element along
    an axis of the kernel meets as many of the image as the result has there. And this axis. None
    where these axes are not read together.
    """
    image, kernel, out = eqn.params["dimension_numbers"]
    lengths = shape_of(eqn.outvars[0])
    for n, (source, axis) in enumerate(zip(image[2:], kernel[2:], strict=True)):
        if image_axis in (None, source) and kernel_axis in (None, axis):
            stride = eqn.params["rhs_dilation"][n]
            dilation = eqn.params["window_strides"][n]
            return _conv_window(eqn, n, lengths[out[2 + n]], stride, dilation), axis
    return None


def _met_elements(eqn: Equation) -> list[np.ndarray]:
    """The numbers of an element of the result, of the image, and of the kernel, for each product of
    two that is added up.
    """
    image, kernel, out = eqn.params["dimension_numbers"]
    shapes = [shape_of(atom) for atom in (eqn.outvars[0], *eqn.invars)]
    num_rows, num_features = (shapes[0][d] for d in out[:2])
    num_channels = shapes[2][kernel[1]]
    meetings = [_meetings(eqn, axis) for axis in range(len(out) - 2)]
    lengths = [num_rows, num_features, num_channels, *(len(each[0]) for each in meetings)]
    row, feature, channel, *along = np.indices(lengths).reshape(len(lengths), -1)
    # Features of the result are in groups, each of which reads rows, or channels, of its own.
    image_row = feature * eqn.params["batch_group_count"] // num_features * num_rows + row
    group = feature * eqn.params["feature_group_count"] // num_features
    first = [(row, feature), (image_row, group * num_channels + channel), (feature, channel)]
    found = []
    for number, spec in enumerate((out, image, kernel)):
        spatial = [each[number][k] for each, k in zip(meetings, along, strict=True)]
        where = dict(zip(spec, (*first[number], *spatial), strict=True))
        place = tuple(where[d] for d in range(len(spec)))
        found.append(np.ravel_multi_index(place, shapes[number]))
    return found


def _meetings(eqn: Equation, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The places of the result, of the image and of the kernel that meet along one axis: not in the
    padding, nor in the holes of a dilation.
    """
    params = eqn.params
    numbers = params["dimension_numbers"]
    size = shape_of(eqn.invars[0])[numbers.lhs_spec[2 + axis]]
    num_taps = shape_of(eqn.invars[1])[numbers.rhs_spec[2 + axis]]
    num_places = shape_of(eqn.outvars[0])[numbers.out_spec[2 + axis]]
    starts = np.arange(num_places) * params["window_strides"][axis] - params["padding"][axis][0]
    where = starts[:, None] + np.arange(num_taps) * params["rhs_dilation"][axis]
    holes = params["lhs_dilation"][axis]
    places, taps = np.nonzero((where >= 0) & (where % holes == 0) & (where < size * holes))
    return places, where[places, taps] // holes, taps


# --- work -----------------------------------------------------------------------------------------


def multiply_adds(eqn: Equation) -> int:
    """Products of numbers that are added up, of a product of arrays or a convolution."""
    return _multiply_adds[eqn.primitive.name](eqn)


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
    """Only where a kernel's element meets one of the input."""
    _, kernel, out = eqn.params["dimension_numbers"]
    result = shape_of(eqn.outvars[0])
    in_features = shape_of(eqn.invars[1])[kernel[1]]  # of one group
    meetings = math.prod(len(_meetings(eqn, axis)[0]) for axis in range(len(out) - 2))
    return result[out[0]] * result[out[1]] * in_features * meetings


_multiply_adds: dict[str, Callable[[Equation], int]] = {
    "dot_general": lambda eqn: _num_summed(eqn) * _jax.aval_size(eqn.outvars[0].aval),
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
    "conv_general_dilated": Primitive(
        index=_conv, windows=_conv_windows, work=_product, is_unfused=True
    ),
    "ragged_dot_general": Primitive(work=_product),
    "fft": Primitive(
        index=mixing(
            lambda eqn, rank: range(rank - len(eqn.params["fft_lengths"]), rank), TRANSFORMED
        ),
        work=_fft,
        is_unfused=True,
    ),
}
