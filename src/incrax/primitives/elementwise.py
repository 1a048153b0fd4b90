"""Elementwise primitives: each output element is a function of the operands' elements in its place.

FLOPs: an addition, multiplication, division, square root, negation, absolute value, rounding,
minimum or maximum of two real floating-point numbers is one; complex: addition 2, product 6,
quotient 11, absolute value 4. Comparisons, choices, logic and integer arithmetic are integer
operations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from incrax._jax import Equation
from incrax.primitives.entry import (
    COMPLEX_FACTOR,
    LINEAR,
    PRODUCT,
    REARRANGED,
    Algebra,
    Axis,
    EquationWork,
    Family,
    Primitive,
    Read,
    Reads,
    View,
    counted,
    each,
    element_numbers,
    kind_of,
    mapped,
    no_work,
    of_all,
    operand_numbers,
    out_size,
    rank_of,
    shape_of,
)

# --- index rules ----------------------------------------------------------------------------------


def in_place(eqn: Equation, _: View) -> list[Reads]:
    """Every output reads every operand element by element; scalars everywhere."""
    return of_all(eqn, [mapped(rank_of(atom)) for atom in eqn.invars])


def pairwise(eqn: Equation, _: View) -> list[Reads]:
    """Each output is the operand of its number."""
    reads = [mapped(rank_of(atom)) for atom in eqn.invars]
    count = len(eqn.outvars)
    return [
        Reads([read if n == number else None for n, read in enumerate(reads)])
        for number in range(count)
    ]


def _product(eqn: Equation, view: View) -> list[Reads]:
    """Where a factor is a constant zero, so is the derivative."""
    factors = [view.factor(atom) for atom in eqn.invars]
    shape = shape_of(eqn.outvars[0])
    is_there = np.ones(shape, bool)
    for factor in factors:
        if factor is not None:
            is_there &= factor != 0
    if is_there.all():
        return in_place(eqn, view)
    targets = np.flatnonzero(is_there)

    def pairs(atom: Any) -> tuple[Any, Any]:
        return targets, np.broadcast_to(element_numbers(shape_of(atom)), shape).ravel()[targets]

    return [Reads([mapped(rank_of(x))._replace(pairs=lambda x=x: pairs(x)) for x in eqn.invars])]


def _selection(eqn: Equation, view: View) -> list[Reads]:
    """The case that is selected, where that is known; any case elsewhere."""
    which = view.value(eqn.invars[0])
    (reads,) = in_place(eqn, view)
    if which is None:
        return [reads]
    return [Reads([None, *reads.operands[1:]], lambda: _select(which, *operand_numbers(eqn)[1:]))]


def as_words(eqn: Equation, _: View) -> list[Reads]:
    """Number by number; a number may be read as several along a last axis, or be made of these."""
    rank = rank_of(eqn.outvars[0])
    axes = [
        Axis(d) if d < rank else Axis(-1 - d, REARRANGED) for d in range(rank_of(eqn.invars[0]))
    ]
    return [Reads([Read(tuple(axes))])]


# --- work -----------------------------------------------------------------------------------------


def _comparison(complex_factor: int) -> Callable[[Equation], EquationWork]:
    """An integer operation per element of the result."""

    def work(eqn: Equation) -> EquationWork:
        factor = complex_factor if kind_of(eqn) == "c" else 1
        return EquationWork(int_ops=float(factor * out_size(eqn)))

    return work


def _transcendental(weight: float) -> Callable[[Equation], EquationWork]:
    """A weight in exponentials; a function of a complex number counts four times."""

    def work(eqn: Equation) -> EquationWork:
        factor = COMPLEX_FACTOR if kind_of(eqn) == "c" else 1.0
        return EquationWork(transcendentals=out_size(eqn) * weight * factor)

    return work


def _integer_pow(eqn: Equation) -> EquationWork:
    """Squarings and products by the bits of the exponent, and a reciprocal for a negative one."""
    power = abs(eqn.params["y"])
    products = power.bit_length() + power.bit_count() - 2 if power else 0
    inverse = 1 if eqn.params["y"] < 0 else 0
    kind = kind_of(eqn)
    if kind == "i":
        return EquationWork(int_ops=float(out_size(eqn) * products))
    per_element = 6 * products + 11 * inverse if kind == "c" else products + inverse
    return EquationWork(flops=float(out_size(eqn) * per_element))


# --- constants ------------------------------------------------------------------------------------


def _convert(x: np.ndarray, *, new_dtype: Any, **_: Any) -> np.ndarray | None:
    target = np.dtype(new_dtype)
    if x.dtype.kind == "f" and target.kind in "iu":
        return None  # out-of-range conversions differ between NumPy and XLA
    return x.astype(target)


def _select(which: np.ndarray, *cases: np.ndarray, **_: Any) -> np.ndarray:
    if not which.ndim:
        return cases[int(which)]
    return np.take_along_axis(np.stack(cases), which.astype(int)[None], axis=0)[0]


def _integer_only(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs, **_: rule(*xs) if all(x.dtype.kind in "iub" for x in xs) else None


def _plain(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs, **_: rule(*xs)


# --- entries --------------------------------------------------------------------------------------

_ANY = Primitive(index=in_place, is_elementwise=True)
_INTEGER = replace(_ANY, work=_comparison(1))
_COMPARISON = replace(_ANY, work=_comparison(2))
_MOVE = replace(_ANY, work=no_work)
_COPY = replace(
    _MOVE,
    constant=_plain(lambda x: x),
    algebra=LINEAR,
    is_free=True,
)
_PLACED = Primitive(index=in_place, work=no_work)


def _flops(per_real: int, per_complex: int, **known: Any) -> Primitive:
    """FLOPs per element of the result, real and complex."""
    work = lambda eqn: counted(eqn, per_real * out_size(eqn), per_complex / per_real)
    return replace(_ANY, work=work, **known)


def _integer(rule: Callable[..., Any]) -> Primitive:
    return replace(_INTEGER, constant=_plain(rule))


def _functions(weight: float) -> Primitive:
    return replace(_ANY, work=_transcendental(weight))


_ADDITION = _flops(1, 2, constant=_plain(operator.add), algebra=Algebra("sum", (1,)))

FAMILY: Family = {
    # arithmetic
    **each("add add_any", _ADDITION),
    "sub": replace(
        _ADDITION,
        constant=_plain(operator.sub),
        algebra=Algebra("sum", (1, -1)),
    ),
    "neg": _flops(
        1,
        2,
        constant=_integer_only(operator.neg),
        algebra=Algebra("linear", (-1,)),
    ),
    "mul": replace(
        _flops(1, 6, constant=_plain(operator.mul), algebra=PRODUCT),
        index=_product,
    ),
    "div": _flops(1, 11, algebra=Algebra("quotient"), additions=4.0),
    "square": _flops(1, 6, algebra=Algebra("power")),
    "integer_pow": replace(_ANY, work=_integer_pow, algebra=Algebra("power")),
    "abs": _flops(1, 4),
    "sign": _flops(1, 6),
    "sqrt": _flops(1, 12, additions=4.0),
    "rsqrt": _flops(1, 12, additions=4.0),
    "max": _flops(1, 1, constant=_integer_only(np.maximum)),
    "min": _flops(1, 1, constant=_integer_only(np.minimum)),
    "rem": _flops(1, 1, additions=4.0),
    **each("floor ceil round", _flops(1, 1)),
    "conj": _flops(1, 1, algebra=LINEAR),
    "clamp": _flops(
        2, 2, constant=_integer_only(lambda low, x, high: np.minimum(np.maximum(x, low), high))
    ),
    "one_minus_square": _flops(3, 10),  # (1 + x) (1 - x)
    # Horner: a multiply-add for each coefficient but one
    "polynomial": Primitive(
        work=lambda eqn: counted(eqn, 2.0 * (len(eqn.invars) - 2) * out_size(eqn), COMPLEX_FACTOR)
    ),
    # comparisons, logic, integers
    "eq": replace(_COMPARISON, constant=_plain(operator.eq)),
    "ne": replace(_COMPARISON, constant=_plain(operator.ne)),
    "lt": _integer(operator.lt),
    "le": _integer(operator.le),
    "gt": _integer(operator.gt),
    "ge": _integer(operator.ge),
    "and": _integer(operator.and_),
    "or": _integer(operator.or_),
    "not": _integer(np.invert),
    **each(
        """xor eq_to lt_to le_to shift_left shift_right_arithmetic shift_right_logical population_count clz is_finite
        nextafter mulhi""",
        _INTEGER,
    ),
    "select_n": replace(
        _INTEGER,
        index=_selection,
        constant=_select,
        algebra=Algebra("joined", (0, 1)),
        puts_together=True,
    ),
    # transcendental functions, in units of one exponential
    **each("exp exp2 expm1 log log1p log2", _functions(1.0)),
    **each("sin cos tan tanh sinh cosh logistic cbrt", _functions(2.0)),
    **each("pow atan2 asin acos atan asinh acosh atanh erf erfc erf_inv", _functions(4.0)),
    **each("lgamma digamma bessel_i0e bessel_i1e", _functions(10.0)),
    **each(
        "igamma igammac igamma_grad_a regularized_incomplete_beta zeta polygamma", _functions(100.0)
    ),
    # conversions and copies
    "convert_element_type": replace(_MOVE, constant=_convert, algebra=LINEAR, is_free=True),
    "bitcast_convert_type": replace(_PLACED, index=as_words, is_free=True),
    "reduce_precision": _MOVE,
    "complex": replace(_MOVE, algebra=Algebra("joined", (1,)), is_free=True),
    **each("real imag", replace(_MOVE, algebra=LINEAR, is_free=True)),
    **each("copy copy_p", _COPY),
    "stop_gradient": replace(_COPY, algebra=None),
    "optimization_barrier_single": _MOVE,
    "optimization_barrier": replace(_PLACED, index=pairwise, puts_together=True, is_free=True),
    # marks of where values are
    **each("pvary mesh_cast sharding_constraint", _PLACED),
    "reshard": replace(_PLACED, constant=lambda x, **_: x if x.ndim == 0 else None),
}
