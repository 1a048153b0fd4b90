"""Primitives that move whole axes: broadcasts, reshapes, transposes, slices, concatenations.

No work, but bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from incrax._jax import Equation
from incrax.primitives.entry import (
    GONE,
    LINEAR,
    WINDOW,
    Algebra,
    Axis,
    Family,
    Kind,
    Primitive,
    Read,
    Reads,
    Run,
    View,
    Window,
    along,
    each,
    element_numbers,
    no_work,
    operand_numbers,
    rank_of,
    shape_of,
    with_item,
    without,
)

MERGED = Kind("merges the row axis with another one, or splits it")
TILED = Kind("repeats the rows, or something else along them")
PADDED = Kind("adds rows, or drops some")
JOINED = Kind("joins arrays along the rows")
REVERSED = Kind("reverses the rows", is_final=True)
NUMBERED = Kind(
    "numbers the rows (`jnp.arange`, or `x[jnp.arange(n), i]`: use `jnp.take_along_axis`)",
    is_final=True,
)

# --- what NumPy makes of it -----------------------------------------------------------------------


def _slice(
    x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any
) -> np.ndarray:
    steps = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _broadcast(
    x: np.ndarray, *, shape: tuple[int, ...], broadcast_dimensions: Any, **_: Any
) -> np.ndarray:
    new = [d for d in range(len(shape)) if d not in broadcast_dimensions]
    return np.broadcast_to(np.expand_dims(x, new), shape)


def _reshape(x: np.ndarray, *, new_sizes: Any, dimensions: Any = None, **_: Any) -> np.ndarray:
    return (x if dimensions is None else np.transpose(x, dimensions)).reshape(new_sizes)


def _iota(*, dtype: Any, shape: tuple[int, ...], dimension: int, **_: Any) -> np.ndarray:
    line = np.indices(shape, dtype, sparse=True)[dimension]
    return np.broadcast_to(line, shape)


def _pad(x: np.ndarray, value: np.ndarray, *, padding_config: Any, **_: Any) -> np.ndarray:
    """Axis by axis: elements spread apart, some cut off or added at the ends."""
    for axis, (low, high, inner) in enumerate(padding_config):
        lines = np.moveaxis(x, axis, 0)
        spread = np.full((max(0, len(lines) * (inner + 1) - inner), *lines.shape[1:]), value)
        spread[:: inner + 1] = lines
        around = [np.full((max(0, count), *lines.shape[1:]), value) for count in (low, high)]
        cut = spread[max(0, -low) : max(0, len(spread) + min(0, high))]
        x = np.moveaxis(np.concatenate([around[0], cut, around[1]]), 0, axis)
    return x


# --- index rules ----------------------------------------------------------------------------------


def _moved(move: Callable[..., np.ndarray], read_of: Callable[[Equation], Read]) -> Primitive:
    """Operands, all read alike, moved as NumPy moves the numbers of their elements."""

    def index(eqn: Equation, _: View) -> list[Reads]:
        operands = [read_of(eqn)] * len(eqn.invars)
        return [Reads(operands, lambda: move(*operand_numbers(eqn), **eqn.params))]

    return Primitive(index=index, work=no_work, constant=move)


def _mapped(read_of: Callable[[Equation], Read]) -> Callable[[Equation, View], list[Reads]]:
    """One operand, whose axes say all."""
    return lambda eqn, _: [Reads([read_of(eqn)])]


def _to(places: Iterable[int]) -> Read:
    """Each axis goes to that place."""
    return Read(tuple(map(Axis, places)))


def _of_slice(eqn: Equation) -> Read:
    lengths = shape_of(eqn.invars[0])
    strides = eqn.params["strides"] or (1,) * len(lengths)
    cuts = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strides, strict=True)
    cut = [d for d, each in enumerate(cuts) if each != (0, lengths[d], 1)]
    return along(len(lengths), cut, WINDOW)


def _of_tile(eqn: Equation) -> Read:
    lengths = shape_of(eqn.invars[0])
    tiled = [d for d, count in enumerate(eqn.params["reps"]) if 1 not in (count, lengths[d])]
    return along(len(lengths), tiled, TILED)


def _of_reshape(eqn: Equation) -> Read:
    """An axis stays one where what comes before it, and its length, stay the same."""
    before = shape_of(eqn.invars[0])
    after = shape_of(eqn.outvars[0])
    places: dict[tuple[int, int], list[int]] = {}
    for d, length in enumerate(after if eqn.params.get("dimensions") is None else ()):
        places.setdefault((math.prod(after[:d]), length), []).append(d)
    axes = []
    for d, length in enumerate(before):
        found = places.get((math.prod(before[:d]), length))
        axes.append(Axis(found.pop(0)) if found else Axis(-1 - d, MERGED))
    return Read(tuple(axes))


def _padded(eqn: Equation, _: View) -> list[Reads]:
    config = eqn.params["padding_config"]
    padded = [d for d, one in enumerate(config) if tuple(one) != (0, 0, 0)]
    operands = [along(len(config), padded, PADDED), Read(())]
    return [Reads(operands, lambda: _pad(*operand_numbers(eqn), **eqn.params))]


def _parts(eqn: Equation, read: Read, cut: Callable[[np.ndarray], Any]) -> list[Reads]:
    """Each output is a part of the operand."""
    return [
        Reads([read], lambda n=n: cut(element_numbers(shape_of(eqn.invars[0])))[n])
        for n in range(len(eqn.outvars))
    ]


def _split(eqn: Equation, _: View) -> list[Reads]:
    axis = eqn.params["axis"]
    starts = [start for start, _ in _side_by_side(eqn.outvars, axis)]
    read = along(rank_of(eqn.invars[0]), [axis], WINDOW)
    return _parts(eqn, read, lambda numbers: np.split(numbers, starts[1:], axis))


def _unstacked(eqn: Equation, _: View) -> list[Reads]:
    axis = eqn.params["axis"]
    read = without(rank_of(eqn.invars[0]), [axis], WINDOW)
    return _parts(eqn, read, lambda numbers: np.moveaxis(numbers, axis, 0))


def _numbered(eqn: Equation, _: View) -> list[Reads]:
    """Made, not read: a number for each element of an axis, from nothing."""
    return [Reads([*(None for _ in eqn.invars), Read((Axis(eqn.params["dimension"], NUMBERED),))])]


# --- runs of rows ---------------------------------------------------------------------------------

Runs = list[list[Run]]


def _runs_of_slice(eqn: Equation, axis: int) -> Runs:
    strides = eqn.params["strides"] or (1,) * len(shape_of(eqn.invars[0]))
    count = shape_of(eqn.outvars[0])[axis]
    return [[Run(0, 0, eqn.params["start_indices"][axis], count, step=strides[axis])]]


def _runs_of_rev(eqn: Equation, axis: int) -> Runs:
    count = shape_of(eqn.outvars[0])[axis]
    return [[Run(0, 0, count - 1, count, step=-1)]]


def _side_by_side(atoms: Sequence[Any], axis: int) -> list[tuple[int, int]]:
    """Where each of some arrays begins along an axis, and its length."""
    counts = [shape_of(atom)[axis] for atom in atoms]
    return [*zip(itertools.accumulate(counts, initial=0), counts, strict=False)]


def _runs_of_concatenate(eqn: Equation, axis: int) -> Runs:
    pieces = enumerate(_side_by_side(eqn.invars, axis))
    return [[Run(n, start, 0, count) for n, (start, count) in pieces]]


def _runs_of_split(eqn: Equation, axis: int) -> Runs:
    return [[Run(0, 0, start, count)] for start, count in _side_by_side(eqn.outvars, axis)]


def _runs_of_pad(eqn: Equation, axis: int) -> Runs:
    """Elements that a negative padding cuts off are in no run."""
    low, _, inner = eqn.params["padding_config"][axis]
    step = inner + 1
    first = max(0, -(low // step)) if low < 0 else 0
    ends = shape_of(eqn.invars[0])[axis], -((low - shape_of(eqn.outvars[0])[axis]) // step)
    return [[Run(0, low + first * step, first, max(0, min(ends) - first), out_step=step)]]


# --- axes that are merged, or divided -------------------------------------------------------------


def _groups(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[range, range]]:
    """The axes of a reshape that are merged and divided together, before and after."""
    i = j = 0
    while i < len(before) and j < len(after):
        first = i, j
        i, j = i + 1, j + 1
        while (size := math.prod(before[first[0] : i])) != (
            other := math.prod(after[first[1] : j])
        ):
            i, j = i + (size < other), j + (other < size)
        yield range(first[0], i), range(first[1], j)


def _windows_of_reshape(eqn: Equation) -> list[Window]:
    """Of axes that are merged or divided, the first ones: a row is all of the others."""
    before, after = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    if eqn.params.get("dimensions") is not None or 0 in before:
        return []
    found = []
    for own, other in _groups(before, after):
        source = next((d for d in own if before[d] > 1), None)
        out = next((d for d in other if after[d] > 1), None)
        if source is not None and out is not None:
            found.append(_merged(before, after, source, own.stop, out, other.stop))
    return found


def _merged(
    before: tuple[int, ...], after: tuple[int, ...], source: int, stop: int, out: int, out_stop: int
) -> Window:
    """Rows along `source`, of which each holds the axes behind it up to `stop`, as rows along
    `out`.
    """
    places = math.prod(before[source + 1 : stop])
    taps = math.prod(after[out + 1 : out_stop])

    def laid(x: Any) -> Any:
        num_rows = x.shape[source]
        return lax.reshape(x, (*before[:source], num_rows * places, *before[stop:]))

    def run(x: Any) -> Any:
        return lax.reshape(x, with_item(after, out, x.shape[source] // taps))

    return Window(source, out, run, taps, stride=taps, spread=places, laid=laid)


# --- entries --------------------------------------------------------------------------------------

_FREE = Primitive(work=no_work, is_free=True, algebra=LINEAR)
_JOINED = Algebra("joined", (1,))

FAMILY: Family = {
    "broadcast_in_dim": replace(
        _FREE,
        index=_mapped(lambda eqn: _to(eqn.params["broadcast_dimensions"])),
        constant=_broadcast,
    ),
    "transpose": replace(
        _FREE,
        index=_mapped(lambda eqn: _to(np.argsort(eqn.params["permutation"]).tolist())),
        constant=lambda x, *, permutation, **_: np.transpose(x, permutation),
    ),
    "squeeze": replace(
        _FREE,
        index=_mapped(lambda eqn: without(rank_of(eqn.invars[0]), eqn.params["dimensions"], GONE)),
        constant=lambda x, *, dimensions, **_: np.squeeze(x, tuple(dimensions)),
    ),
    "expand_dims": replace(
        _FREE,
        index=_mapped(
            lambda eqn: _to(
                d for d in range(rank_of(eqn.outvars[0])) if d not in eqn.params["dimensions"]
            )
        ),
        constant=lambda x, *, dimensions, **_: np.expand_dims(x, tuple(dimensions)),
    ),
    "reshape": replace(
        _moved(_reshape, _of_reshape), windows=_windows_of_reshape, is_free=True, algebra=LINEAR
    ),
    "slice": replace(_moved(_slice, _of_slice), runs=_runs_of_slice, is_free=True, algebra=LINEAR),
    "rev": replace(
        _moved(
            lambda x, *, dimensions, **_: np.flip(x, tuple(dimensions)),
            lambda eqn: along(rank_of(eqn.invars[0]), eqn.params["dimensions"], REVERSED),
        ),
        runs=_runs_of_rev,
        is_free=True,
        algebra=LINEAR,
    ),
    "tile": replace(_moved(lambda x, *, reps, **_: np.tile(x, reps), _of_tile), constant=None),
    "iota": Primitive(index=_numbered, work=no_work, constant=_iota, is_free=True),
    "pad": Primitive(
        index=_padded, runs=_runs_of_pad, work=no_work, algebra=_JOINED, puts_together=True
    ),
    "concatenate": replace(
        _moved(
            lambda *xs, dimension, **_: np.concatenate(xs, dimension),
            lambda eqn: along(rank_of(eqn.invars[0]), [eqn.params["dimension"]], JOINED),
        ),
        runs=_runs_of_concatenate,
        algebra=_JOINED,
        puts_together=True,
        is_unfused=True,
    ),
    "stack": replace(
        _moved(
            lambda *xs, axis, **_: np.stack(xs, axis),
            lambda eqn: _to(d + (d >= eqn.params["axis"]) for d in range(rank_of(eqn.invars[0]))),
        ),
        constant=None,
        algebra=_JOINED,
        puts_together=True,
    ),
    "split": Primitive(index=_split, runs=_runs_of_split, work=no_work, algebra=LINEAR),
    "unstack": Primitive(index=_unstacked, work=no_work, algebra=LINEAR),
    **each("broadcast broadcast_to", Primitive(work=no_work)),
}
