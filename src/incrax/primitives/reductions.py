"""Reductions, cumulative operations, searches and sorts: what runs along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Atom, Equation
from incrax.primitives.entry import (
    LINEAR,
    EquationWork,
    Evaluations,
    Family,
    Kind,
    Primitive,
    Read,
    Reads,
    View,
    Window,
    along,
    counted,
    each,
    in_size,
    of_all,
    rank_of,
    shape_of,
    with_item,
    with_parameters,
    without,
)

REDUCED = {
    kind: Kind("reduces over the rows", reduction=kind, is_final=True)
    for kind in "sum prod max min and or xor".split()
}
COMPLEX = Kind("compares complex numbers, of which none is the least or the largest", is_final=True)
REDUCED_BY = Kind("reduces over the rows by a function", is_final=True)
SEARCHED = Kind("looks for a row by its place", is_final=True)
SORTED = Kind("sorts the rows", is_final=True)
ONWARDS = Kind("accumulates along the rows", running=1, is_final=True)
BACKWARDS = ONWARDS._replace(running=-1)
POOLED = Kind("reduces over neighbouring rows", is_final=True)


def of_numbers(kind: Kind, atom: Atom) -> Kind:
    """A kind of reduction of such numbers."""
    is_complex = jnp.issubdtype(atom.aval.dtype, jnp.complexfloating)
    return COMPLEX if is_complex and kind.reduction in ("max", "min") else kind


# --- index rules ----------------------------------------------------------------------------------


def _reduced(kind: Kind) -> Callable[[Equation, View], list[Reads]]:
    """To nothing along some axes."""

    def index(eqn: Equation, _: View) -> list[Reads]:
        operand = eqn.invars[0]
        read = without(rank_of(operand), eqn.params["axes"], of_numbers(kind, operand))
        return [Reads([read])]

    return index


def _reduced_together(eqn: Equation, _: View) -> list[Reads]:
    """Several operands by one function, each result of all of them, and of what each begins with."""
    operands = eqn.invars[: len(eqn.outvars)]
    axes = eqn.params["dimensions"]
    read = [without(rank_of(atom), axes, REDUCED_BY) for atom in operands]
    return of_all(eqn, [*read, *(Read(()) for _ in operands)])


def mixing(
    axes_of: Callable[[Equation, int], Sequence[int]], kind: Kind
) -> Callable[[Equation, View], list[Reads]]:
    """Each output element depends on all of its line, of each operand, along the axes of that
    rank.
    """

    def index(eqn: Equation, _: View) -> list[Reads]:
        ranks = map(rank_of, eqn.invars)
        return of_all(eqn, [along(rank, axes_of(eqn, rank), kind) for rank in ranks])

    return index


def _cumulative(eqn: Equation, _: View) -> list[Reads]:
    kind = BACKWARDS if eqn.params["reverse"] else ONWARDS
    return [Reads([along(rank_of(eqn.invars[0]), [eqn.params["axis"]], kind)])]


def _sizes_of_windows(eqn: Equation) -> list[tuple[int, int, int, int, int]]:
    """Of each axis: elements of a window, from one to the next, padding in front, distances of its
    elements, and of those of the operand.
    """
    params = eqn.params
    ones = (1,) * len(params["window_dimensions"])
    sizes = [
        params["window_dimensions"],
        params["window_strides"],
        [low for low, _ in params["padding"]],
        params.get("window_dilation", ones),
        params.get("base_dilation", ones),
    ]
    return [*zip(*(map(int, own) for own in sizes), strict=True)]


def _pooled(eqn: Equation, _: View) -> list[Reads]:
    """Axes of as many windows as elements, of one each, stay as they are."""
    rank = rank_of(eqn.outvars[0])
    shapes = [shape_of(atom) for atom in (*eqn.invars, *eqn.outvars)]
    axes = [
        d
        for d, (taps, stride, low, _, spread) in enumerate(_sizes_of_windows(eqn))
        if (taps, stride, low, spread) != (1, 1, 0, 1) or len({shape[d] for shape in shapes}) > 1
    ]
    return [Reads([along(rank, axes, POOLED)] * len(eqn.invars))]


def _windows(fill_of: Callable[[Any], Any]) -> Callable[[Equation], list[Window]]:
    """Of a reduction over windows, which is this where there is nothing."""

    def windows(eqn: Equation) -> list[Window]:
        found = []
        fill = fill_of(eqn.invars[0].aval.dtype)
        for d, (taps, stride, low, dilation, spread) in enumerate(_sizes_of_windows(eqn)):
            alone = {"padding": with_item(eqn.params["padding"], d, (0, 0))}
            if "base_dilation" in eqn.params:
                alone["base_dilation"] = with_item(eqn.params["base_dilation"], d, 1)
            run = with_parameters(eqn, alone)
            found.append(Window(d, d, run, taps, stride, low, dilation, spread, fill))
        return found

    return windows


def unpooled(eqn: Equation, axis: int) -> Window:
    """The window of a `select_and_scatter_add`: of each row of the first operand, in the second. What
    is beyond the ends is never the largest, or the least.
    """
    is_largest = eqn.params["select_prim"].name == "ge"
    return _windows(_least if is_largest else _most)(eqn)[axis]


def _least(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return -math.inf
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).min


def _most(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return math.inf
    return not jnp.issubdtype(dtype, jnp.integer) or jnp.iinfo(dtype).max


def _top_k_axis(eqn: Equation, rank: int) -> Sequence[int]:
    axis = eqn.params.get("axis", eqn.params.get("reduction_dimension", -1))
    return [axis % rank]


# --- work -----------------------------------------------------------------------------------------


def _num_reduced(eqn: Equation) -> int:
    """Elements but the first of each result."""
    return max(in_size(eqn) - _jax.aval_size(eqn.outvars[0].aval), 0)


def _comparisons(eqn: Equation) -> EquationWork:
    return EquationWork(int_ops=float(_num_reduced(eqn)))


def _running(complex_factor: float) -> Callable[[Equation], EquationWork]:
    """As many operations as a running sum needs; some backends do log2 n times as many at once."""
    return lambda eqn: counted(eqn, _running_count(eqn), complex_factor)


def _running_count(eqn: Equation) -> int:
    return in_size(eqn) - in_size(eqn) // max(shape_of(eqn.invars[0])[eqn.params["axis"]], 1)


def _num_in_windows(eqn: Equation) -> int:
    """Elements but the first of each place of a window; padding counts too."""
    size = math.prod(eqn.params["window_dimensions"])
    return (size - 1) * _jax.aval_size(eqn.outvars[0].aval)


def _select_and_scatter_add(eqn: Equation) -> EquationWork:
    source = in_size(eqn)
    size = math.prod(eqn.params["window_dimensions"])
    return EquationWork(flops=float(source), int_ops=float(source * (size - 1)))


def _by_a_function(eqn: Equation) -> Evaluations:
    """A reduction by a function: its body for each element but the first of each result."""
    (body,) = _jax.sub_bodies(eqn)
    has_windows = "window_dimensions" in eqn.params
    return Evaluations(body, _num_in_windows(eqn) if has_windows else _num_reduced(eqn))


def _sum_over_axes(eqn: Equation) -> EquationWork | None:
    """A sum over axes of arrays, which `vmap` makes of one over devices; that one is not
    registered.
    """
    if any(not isinstance(axis, int) for axis in eqn.params["axes"]):
        return None
    pairs = zip(eqn.invars, eqn.outvars, strict=True)
    return counted(eqn, sum(_jax.aval_size(x.aval) - _jax.aval_size(y.aval) for x, y in pairs), 2.0)


def _sort(eqn: Equation) -> EquationWork:
    """Comparisons: n log2 n for n numbers in a row."""
    shape = shape_of(eqn.invars[0])
    length = shape[eqn.params["dimension"]] if shape else 1
    return EquationWork(int_ops=in_size(eqn) * math.log2(max(length, 1)) if length else 0.0)


# --- constants ------------------------------------------------------------------------------------


def _sum(x: Any, *, axes: Any, **_: Any) -> Any:
    return x.sum(tuple(axes)) if x.dtype.kind in "iub" else None


def _extreme(method: str) -> Callable[..., Any]:
    def constant(x: Any, *, axes: Any, **_: Any) -> Any:
        return getattr(x, method)(tuple(axes)) if x.dtype.kind in "iu" and x.size else None

    return constant


# --- entries --------------------------------------------------------------------------------------


def _reduction(kind: str, complex_factor: float, **known: Any) -> Primitive:
    return Primitive(
        index=_reduced(REDUCED[kind]),
        work=lambda eqn: counted(eqn, _num_reduced(eqn), complex_factor),
        is_unfused=True,
        additions=3.0,
        **known,
    )


def _logical(kind: str) -> Primitive:
    return Primitive(index=_reduced(REDUCED[kind]), work=_comparisons)


def _pooling(fill_of: Callable[[Any], Any]) -> Primitive:
    return Primitive(
        index=_pooled,
        windows=_windows(fill_of),
        work=lambda eqn: counted(eqn, _num_in_windows(eqn), 2.0),
        is_unfused=True,
        additions=5.0,
    )


_RUNNING = Primitive(index=_cumulative, work=_running(2.0), is_unfused=True, additions=50.0)
_SEARCH = Primitive(index=_reduced(SEARCHED), work=_comparisons, is_unfused=True, additions=40.0)
_COMPARING = Primitive(work=_comparisons)

FAMILY: Family = {
    "reduce_sum": _reduction("sum", 2.0, constant=_sum, algebra=LINEAR),
    "reduce_prod": _reduction("prod", 6.0),
    "reduce_max": _reduction("max", 2.0, constant=_extreme("max")),
    "reduce_min": _reduction("min", 2.0, constant=_extreme("min")),
    "reduce_and": _logical("and"),
    "reduce_or": _logical("or"),
    "reduce_xor": _logical("xor"),
    **each("argmax argmin", _SEARCH),
    **each("unvmap_all unvmap_any unvmap_max", _COMPARING),
    "cumsum": replace(_RUNNING, algebra=LINEAR),
    "cumprod": replace(_RUNNING, work=_running(6.0)),
    **each("cummax cummin", _RUNNING),
    # max(a, b) + log1p(exp(-|a - b|))
    "cumlogsumexp": replace(
        _RUNNING,
        work=lambda eqn: EquationWork(5.0 * _running_count(eqn), 2.0 * _running_count(eqn)),
    ),
    "sort": Primitive(
        index=mixing(lambda eqn, _: [eqn.params["dimension"]], SORTED),
        work=_sort,
        is_unfused=True,
        additions=250.0,
    ),
    # comparisons: n log2 k
    **each(
        "top_k approx_top_k",
        Primitive(
            index=mixing(_top_k_axis, SORTED),
            work=lambda eqn: EquationWork(
                int_ops=in_size(eqn) * math.log2(max(eqn.params["k"], 2))
            ),
        ),
    ),
    "reduce_window_sum": _pooling(lambda _: 0),
    "reduce_window_max": _pooling(_least),
    "reduce_window_min": _pooling(_most),
    "reduce": Primitive(index=_reduced_together, work=_by_a_function),
    "reduce_window": Primitive(work=_by_a_function),
    **each("psum pmax pmin", Primitive(work=_sum_over_axes)),
    "select_and_gather_add": Primitive(
        work=lambda eqn: EquationWork(int_ops=float(_num_in_windows(eqn)))
    ),
    "select_and_scatter_add": Primitive(
        index=_pooled, work=_select_and_scatter_add, is_unfused=True, additions=30.0
    ),
}
