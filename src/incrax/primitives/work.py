"""Stage 4, cost: what one equation computes, counted by the conventions of numerical work.

In: an equation that holds no others. Out: `Work`, or None where nobody said what the primitive computes: such an
equation is named, never taken for nothing. It must not know about time.

Conventions. A FLOP is an addition, multiplication, division, square root, negation, absolute value, rounding, minimum
or maximum of two real floating-point numbers; a multiply-add is two. Complex: addition 2, product 6, quotient 11,
absolute value 4. Comparisons, choices, logic and integer arithmetic are integer operations. Moving, reshaping and
converting data is no work. Transcendental functions count apart, in units of one exponential (`TRANSCENDENTALS`).
Leading terms for factorizations: Golub and Van Loan, Matrix Computations, and LAPACK working note 41; 5 n log2 n for a
Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives import matrices


class Work(NamedTuple):
    """What one evaluation computes: FLOPs, transcendental functions in exponentials, integer operations."""

    flops: float = 0.0
    transcendentals: float = 0.0
    int_ops: float = 0.0


NOTHING = Work()
Rule = Callable[[Equation], Work | None]

TRANSCENDENTALS = {
    **dict.fromkeys("exp exp2 expm1 log log1p log2".split(), 1.0),
    **dict.fromkeys("sin cos tan tanh sinh cosh logistic cbrt".split(), 2.0),
    **dict.fromkeys("pow atan2 asin acos atan asinh acosh atanh erf erfc erf_inv".split(), 4.0),
    **dict.fromkeys("lgamma digamma bessel_i0e bessel_i1e".split(), 10.0),
    **dict.fromkeys("igamma igammac igamma_grad_a regularized_incomplete_beta zeta polygamma".split(), 100.0),
}
"""Weights of transcendental functions of real numbers, in exponentials; a complex one counts four times."""

COMPLEX_FACTOR = 4.0
"""Real products in a complex one: what a complex operation made of products and functions costs more."""

WORD_INT_OPS = 60
"""Integer operations of Threefry-2x32 per 32-bit word: 20 rounds of 5, and 19 for keys, give two words."""

_MOVES = """
    after_all axis_index bitcast_convert_type broadcast broadcast_in_dim broadcast_to complex concatenate
    convert_element_type copy copy_p create_token dce_sink device_put dimension_size dynamic_slice
    dynamic_update_slice empty empty2 empty_ref expand_dims freeze from_edtype gather get imag inspect_sharding iota
    iota_2x32_shape layout_constraint mesh_cast name new_ref optimization_barrier pad pcast platform_index pvary
    random_clone random_unwrap random_wrap real reduce_precision reduced_vary_cast reduced_vary_cast_p relayout reshape
    reshard rev select_and_gather shape_assertion sharding_constraint slice split squeeze stack stop_gradient swap tie
    tile to_edtype transpose unstack vary_unreduced_cast vary_unreduced_cast_p with_memory_space_constraint
""".split()

_MARKS_OF_EQUINOX = "nonbatchable nondifferentiable_backward nontraceable select_if_vmap".split()
"""Identities in the loops of Equinox, that Lineax, Optimistix and Diffrax are made of."""

_ARITHMETIC = {
    **dict.fromkeys("add sub add_any neg".split(), (1, 2)),
    "mul": (1, 6),
    "square": (1, 6),
    "div": (1, 11),
    "abs": (1, 4),
    "sign": (1, 6),
    **dict.fromkeys("sqrt rsqrt".split(), (1, 12)),
    **dict.fromkeys("max min rem floor ceil round conj".split(), (1, 1)),
    "clamp": (2, 2),
    "one_minus_square": (3, 10),  # (1 + x) (1 - x)
}
"""FLOPs per element of the result, real and complex."""

_INTEGER = """
    and or xor not eq ne lt le gt ge eq_to lt_to le_to shift_left shift_right_arithmetic shift_right_logical
    population_count clz is_finite select_n nextafter mulhi
""".split()


def work_of(eqn: Equation) -> Work | None:
    """What an equation computes; None where its primitive is not registered."""
    rule = _work_rules.get(eqn.primitive.name)
    return None if rule is None else rule(eqn)


def is_registered(name: str) -> bool:
    """Whether a primitive that holds no equations has a rule."""
    return name in _work_rules


# --- sizes and kinds ----------------------------------------------------------------------------------------------

_kinds: dict[Any, str] = {}


def kind_of(eqn: Equation) -> str:
    """What an equation computes with: "c" complex numbers, "f" floating-point numbers, "i" anything else."""
    kinds = {_dtype_kind(x.aval) for x in (*eqn.outvars, *eqn.invars)}
    return "c" if "c" in kinds else "f" if "f" in kinds else "i"


def _dtype_kind(aval: Any) -> str:
    dtype = getattr(aval, "dtype", None)
    kind = _kinds.get(dtype)
    if kind is None:
        is_complex = dtype is not None and jnp.issubdtype(dtype, jnp.complexfloating)
        kind = "c" if is_complex else "f" if dtype is not None and jnp.issubdtype(dtype, jnp.floating) else "i"
        _kinds[dtype] = kind
    return kind


def out_size(eqn: Equation) -> int:
    """Elements of all results."""
    return sum(_jax.aval_size(var.aval) for var in eqn.outvars)


def _in_size(eqn: Equation) -> int:
    return _jax.aval_size(eqn.invars[0].aval)


def _counted(eqn: Equation, count: float, complex_factor: float) -> Work:
    """So many operations on real numbers, or on what the equation computes with."""
    kind = kind_of(eqn)
    if kind == "i":
        return Work(int_ops=float(count))
    return Work(flops=float(count) * (complex_factor if kind == "c" else 1.0))


# --- element by element -------------------------------------------------------------------------------------------


def _move(_: Equation) -> Work:
    return NOTHING


def _arithmetic(eqn: Equation) -> Work:
    per_real, per_complex = _ARITHMETIC[eqn.primitive.name]
    kind = _dtype_kind(eqn.invars[0].aval)
    size = out_size(eqn)
    if kind == "i":
        return Work(int_ops=float(per_real * size))
    return Work(flops=float((per_complex if kind == "c" else per_real) * size))


def _integer(eqn: Equation) -> Work:
    is_pair = eqn.primitive.name in ("eq", "ne") and kind_of(eqn) == "c"
    return Work(int_ops=float(out_size(eqn) * (2 if is_pair else 1)))


def _integer_pow(eqn: Equation) -> Work:
    """Squarings and products by the bits of the exponent, and a reciprocal for a negative one."""
    power = abs(eqn.params["y"])
    products = power.bit_length() + power.bit_count() - 2 if power else 0
    inverse = 1 if eqn.params["y"] < 0 else 0
    kind = kind_of(eqn)
    if kind == "i":
        return Work(int_ops=float(out_size(eqn) * products))
    per_element = 6 * products + 11 * inverse if kind == "c" else products + inverse
    return Work(flops=float(out_size(eqn) * per_element))


def _polynomial(eqn: Equation) -> Work:
    """Horner: a multiply-add for each coefficient but one."""
    return _counted(eqn, 2.0 * (len(eqn.invars) - 2) * out_size(eqn), COMPLEX_FACTOR)


def _transcendental(eqn: Equation) -> Work:
    factor = COMPLEX_FACTOR if kind_of(eqn) == "c" else 1.0
    return Work(transcendentals=out_size(eqn) * TRANSCENDENTALS[eqn.primitive.name] * factor)


# --- sums, sorts --------------------------------------------------------------------------------------------------


def _reduction(eqn: Equation) -> Work:
    """One operation for each element but the first of each result."""
    count = max(_in_size(eqn) - _jax.aval_size(eqn.outvars[0].aval), 0)
    return _counted(eqn, count, 6.0 if eqn.primitive.name == "reduce_prod" else 2.0)


def _comparing_reduction(eqn: Equation) -> Work:
    return Work(int_ops=float(max(_in_size(eqn) - _jax.aval_size(eqn.outvars[0].aval), 0)))


def _cumulative(eqn: Equation) -> Work:
    """As many operations as a running sum needs; some backends do log2 n times as many at once."""
    shape = eqn.invars[0].aval.shape
    count = _in_size(eqn) - _in_size(eqn) // max(shape[eqn.params["axis"]], 1)
    if eqn.primitive.name == "cumlogsumexp":  # max(a, b) + log1p(exp(-|a - b|))
        return Work(5.0 * count, 2.0 * count)
    return _counted(eqn, count, 6.0 if eqn.primitive.name == "cumprod" else 2.0)


def _window(eqn: Equation) -> Work:
    """All places of a window count, padding too."""
    count = (math.prod(eqn.params["window_dimensions"]) - 1) * _jax.aval_size(eqn.outvars[0].aval)
    return _counted(eqn, count, 2.0)


def _select_and_scatter_add(eqn: Equation) -> Work:
    source = _in_size(eqn)
    return Work(flops=float(source), int_ops=float(source * (math.prod(eqn.params["window_dimensions"]) - 1)))


def _select_and_gather_add(eqn: Equation) -> Work:
    window = math.prod(eqn.params["window_dimensions"])
    return Work(int_ops=float((window - 1) * _jax.aval_size(eqn.outvars[0].aval)))


def _reduce(eqn: Equation) -> Work | None:
    """A reduction by a function: its body for each element but the first of each result."""
    (body,) = _jax.sub_bodies(eqn)
    size, results = _in_size(eqn), _jax.aval_size(eqn.outvars[0].aval)
    window = eqn.params.get("window_dimensions")
    count = max(size - results, 0) if window is None else (math.prod(window) - 1) * results
    return _times(body, count)


def _times(body: _jax.Body, count: float) -> Work | None:
    """So many evaluations of a body; None if something in it is not registered."""
    works = [work_of(inner) for inner in body.eqns]
    if any(work is None for work in works):
        return None
    known = [work for work in works if work is not None]
    return Work(*(count * float(sum(part)) for part in zip(NOTHING, *known, strict=True)))


def _sum_over_axes(eqn: Equation) -> Work | None:
    """A sum over axes of arrays, which `vmap` makes of one over devices; that one is not registered."""
    if any(not isinstance(axis, int) for axis in eqn.params["axes"]):
        return None
    pairs = zip(eqn.invars, eqn.outvars, strict=True)
    return _counted(eqn, sum(_jax.aval_size(x.aval) - _jax.aval_size(y.aval) for x, y in pairs), 2.0)


def _scatter(eqn: Equation) -> Work:
    """One operation per update."""
    count = _jax.aval_size(eqn.invars[2].aval)
    return _counted(eqn, count, 6.0 if eqn.primitive.name in ("scatter-mul", "scatter_mul") else 2.0)


def _scatter_by(eqn: Equation) -> Work | None:
    """A function of each element that is updated, or nothing but moves."""
    bodies = _jax.sub_bodies(eqn)
    return _times(bodies[0], _jax.aval_size(eqn.invars[2].aval)) if bodies else NOTHING


def _add_update(eqn: Equation) -> Work:
    return _counted(eqn, _jax.aval_size(eqn.invars[1].aval), 2.0)


def _sort(eqn: Equation) -> Work:
    """Comparisons: n log2 n for n numbers in a row."""
    shape = eqn.invars[0].aval.shape
    length = shape[eqn.params["dimension"]] if shape else 1
    return Work(int_ops=_in_size(eqn) * math.log2(max(length, 1)) if length else 0.0)


def _top_k(eqn: Equation) -> Work:
    """Comparisons: n log2 k."""
    return Work(int_ops=_in_size(eqn) * math.log2(max(eqn.params["k"], 2)))


# --- products, transforms, factorizations -------------------------------------------------------------------------


def _product(eqn: Equation) -> Work:
    return _counted(eqn, 2.0 * matrices.multiply_adds(eqn), COMPLEX_FACTOR)


def _fft(eqn: Equation) -> Work:
    """FLOPs: 5 n log2 n per complex transform of n numbers, in all its axes together; half of that for a real one."""
    points = math.prod(eqn.params["fft_lengths"])
    kinds = _dtype_kind(eqn.invars[0].aval) + _dtype_kind(eqn.outvars[0].aval)
    whole = eqn.outvars[0] if kinds == "cf" else eqn.invars[0]
    batch = _jax.aval_size(whole.aval) / max(points, 1)
    return Work(batch * (5.0 if kinds == "cc" else 2.5) * points * math.log2(max(points, 1)))


def _matrix(eqn: Equation) -> Work:
    """By the kind of the matrix: the eigenvalues of a real one may be complex."""
    factor = COMPLEX_FACTOR if _dtype_kind(eqn.invars[0].aval) == "c" else 1.0
    return Work(matrices.FLOPS[eqn.primitive.name](eqn) * factor)


def _random(eqn: Equation) -> Work:
    words = sum(_jax.aval_size(var.aval) * max(_word_bytes(var.aval), 4) / 4 for var in eqn.outvars)
    return Work(int_ops=WORD_INT_OPS * words)


def _word_bytes(aval: Any) -> float:
    """A typed key is two words."""
    return 8 if _jax.is_key_dtype(aval.dtype) else np.dtype(aval.dtype).itemsize


# --- which rule ---------------------------------------------------------------------------------------------------

_work_rules: dict[str, Rule] = {
    **dict.fromkeys([*_MOVES, *_MARKS_OF_EQUINOX], _move),
    _jax.KEEP: _move,
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_INTEGER, _integer),
    **dict.fromkeys(TRANSCENDENTALS, _transcendental),
    **dict.fromkeys("reduce_sum reduce_prod reduce_max reduce_min".split(), _reduction),
    **dict.fromkeys(
        "argmax argmin reduce_and reduce_or reduce_xor unvmap_all unvmap_any unvmap_max".split(), _comparing_reduction
    ),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp".split(), _cumulative),
    **dict.fromkeys("reduce_window_sum reduce_window_max reduce_window_min".split(), _window),
    **dict.fromkeys("reduce reduce_window".split(), _reduce),
    **dict.fromkeys("psum pmax pmin".split(), _sum_over_axes),
    **dict.fromkeys(
        """scatter-add scatter_add scatter-sub scatter_sub scatter-mul scatter_mul scatter-min scatter_min scatter-max
        scatter_max""".split(),
        _scatter,
    ),
    **dict.fromkeys("dot_general conv_general_dilated ragged_dot_general".split(), _product),
    **dict.fromkeys(matrices.FLOPS, _matrix),
    **dict.fromkeys(
        """random_bits random_seed random_split random_fold_in threefry2x32 rng_bit_generator
        rng_uniform""".split(),
        _random,
    ),
    **dict.fromkeys("top_k approx_top_k".split(), _top_k),
    "addupdate": _add_update,
    "scatter": _scatter_by,
    "fft": _fft,
    "integer_pow": _integer_pow,
    "polynomial": _polynomial,
    "select_and_gather_add": _select_and_gather_add,
    "select_and_scatter_add": _select_and_scatter_add,
    "sort": _sort,
}
