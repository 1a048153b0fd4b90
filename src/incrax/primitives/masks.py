"""Dependence rules: one small function per kind of primitive, in tables beside the walk that uses them.

A value's masks are one int for the whole array, or an object array of ints with the value's shape. A missing rule
costs speed, never correctness: the walk's default is that every output depends on every input.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import Program, from_jaxpr

Masks: TypeAlias = Any  # int | np.ndarray of int objects
Known: TypeAlias = dict[Var, np.ndarray]
ElementRule: TypeAlias = Callable[[Equation, Sequence[Masks], Known], Any]
Walk: TypeAlias = Callable[[Program, Sequence[Masks]], dict[Var, Masks]]


def join(masks: Masks) -> int:
    """One mask for a whole value."""
    if isinstance(masks, int):
        return masks
    return np.bitwise_or.reduce(masks, axis=None, initial=0)


def spread(mask: int, aval: Any) -> Masks:
    """The same mask for every element; a scalar stays one int."""
    del aval
    return mask


def as_array(masks: Masks, aval: Any) -> np.ndarray:
    """Masks as an object array of the value's shape."""
    if isinstance(masks, np.ndarray):
        return masks
    array = np.empty(aval.shape, object)
    array[...] = masks
    return array


def _as_masks(mask: np.ndarray) -> Masks:
    """An array of masks; a scalar's as an int."""
    return mask.item() if isinstance(mask, np.ndarray) and mask.ndim == 0 else mask


# --- elementwise --------------------------------------------------------------------------------------------------


def _elementwise(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    shape = eqn.outvars[0].aval.shape
    if shape == () or all(isinstance(masks, int) for masks in inputs):
        return functools.reduce(operator.or_, map(join, inputs), 0)
    result = np.zeros(shape, object)
    for masks in inputs:
        result = np.bitwise_or(result, np.asarray(masks, object))
    return result


ELEMENTWISE = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or
polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt select_n
shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor zeta
optimization_barrier_single
""".split()

# --- moves of data: the NumPy move applied to the masks ---------------------------------------------------------------


def _move(move: Callable[..., np.ndarray]) -> ElementRule:
    def rule(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
        return _as_masks(np.asarray(move(as_array(inputs[0], eqn.invars[0].aval), **eqn.params), object))

    return rule


def _slice(x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> np.ndarray:
    steps = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _broadcast(x: np.ndarray, *, shape: tuple[int, ...], broadcast_dimensions: Any, **_: Any) -> np.ndarray:
    spread_shape = np.ones(len(shape), int)
    spread_shape[list(broadcast_dimensions)] = x.shape
    return np.broadcast_to(x.reshape(tuple(spread_shape)), shape)


def _reshape(
    x: np.ndarray, *, new_sizes: tuple[int, ...], dimensions: tuple[int, ...] | None = None, **_: Any
) -> np.ndarray:
    return (x if dimensions is None else np.transpose(x, dimensions)).reshape(new_sizes)


def _concatenate(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    parts = [as_array(masks, atom.aval) for masks, atom in zip(inputs, eqn.invars, strict=True)]
    return np.concatenate(parts, eqn.params["dimension"])


def _split(eqn: Equation, inputs: Sequence[Masks], _: Known) -> list[Masks]:
    axis = eqn.params["axis"]
    ends = np.cumsum([var.aval.shape[axis] for var in eqn.outvars])[:-1]
    return list(np.split(as_array(inputs[0], eqn.invars[0].aval), ends, axis))


def _unstack(eqn: Equation, inputs: Sequence[Masks], _: Known) -> list[Masks]:
    x = as_array(inputs[0], eqn.invars[0].aval)
    return [_as_masks(np.asarray(part, object)) for part in np.moveaxis(x, eqn.params["axis"], 0)]


def _stack(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    parts = [as_array(masks, atom.aval) for masks, atom in zip(inputs, eqn.invars, strict=True)]
    return np.stack(parts, eqn.params["axis"])


def _pad(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    x = as_array(inputs[0], eqn.invars[0].aval)
    result = as_array(join(inputs[1]), eqn.outvars[0].aval)
    for index in np.ndindex(*x.shape):
        place = tuple(
            low + i * (inner + 1) for i, (low, _, inner) in zip(index, eqn.params["padding_config"], strict=True)
        )
        if all(0 <= p < n for p, n in zip(place, result.shape, strict=True)):
            result[place] = x[index]
    return result


def _select_n(eqn: Equation, inputs: Sequence[Masks], known: Known) -> Masks:
    which = _value(eqn.invars[0], known)
    if which is None:
        return _elementwise(eqn, inputs, known)
    cases = [as_array(m, a.aval) for m, a in zip(inputs[1:], eqn.invars[1:], strict=True)]
    which = np.broadcast_to(which.astype(int), eqn.outvars[0].aval.shape)
    result = np.empty(which.shape, object)
    for index in np.ndindex(*which.shape):
        result[index] = cases[which[index]][index]
    return _as_masks(result)


def _value(atom: Any, known: Known) -> np.ndarray | None:
    return np.asarray(atom.val) if isinstance(atom, Literal) else known.get(atom)


def _starts(eqn: Equation, first: int, sizes: Sequence[int], shape: Sequence[int], known: Known) -> list[int] | None:
    """Known start indices, clamped as XLA does; None where one is unknown."""
    starts = [_value(atom, known) for atom in eqn.invars[first:]]
    if any(start is None for start in starts):
        return None
    return [min(max(int(s), 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]  # type: ignore[arg-type]


def _dynamic_slice(eqn: Equation, inputs: Sequence[Masks], known: Known) -> Masks | None:
    x = as_array(inputs[0], eqn.invars[0].aval)
    sizes = eqn.params["slice_sizes"]
    starts = _starts(eqn, 1, sizes, x.shape, known)
    if starts is None:
        return None
    return x[tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))]


def _dynamic_update_slice(eqn: Equation, inputs: Sequence[Masks], known: Known) -> Masks | None:
    x = as_array(inputs[0], eqn.invars[0].aval).copy()
    update = as_array(inputs[1], eqn.invars[1].aval)
    starts = _starts(eqn, 2, update.shape, x.shape, known)
    if starts is None:
        return None
    x[tuple(slice(s, s + k) for s, k in zip(starts, update.shape, strict=True))] = update
    return x


def _gather(eqn: Equation, inputs: Sequence[Masks], known: Known) -> Masks | None:
    """Follow element numbers through the gather itself; -1 marks a fill value."""
    indices = _value(eqn.invars[1], known)
    if indices is None:
        return None
    x = as_array(inputs[0], eqn.invars[0].aval)
    numbers = _jax.gather_numbers(eqn, x.shape, indices)
    flat = [*x.flat, 0]
    result = np.empty(numbers.shape, object)
    for index in np.ndindex(*numbers.shape):
        result[index] = flat[numbers[index]]
    return _as_masks(result)


# --- reductions and products --------------------------------------------------------------------------------------


def _reduce(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    x = as_array(inputs[0], eqn.invars[0].aval)
    axes = tuple(eqn.params["axes"])
    if x.size == 0 or not axes:
        return _as_masks(x) if not axes else 0
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = np.transpose(x, (*kept, *axes)).reshape(*(x.shape[a] for a in kept), -1)
    return _as_masks(np.asarray(np.bitwise_or.reduce(rows, axis=-1), object))


def _cumulative(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    x, axis = as_array(inputs[0], eqn.invars[0].aval), eqn.params["axis"]
    flipped = np.flip(x, axis) if eqn.params["reverse"] else x
    result = np.bitwise_or.accumulate(flipped, axis=axis)
    return np.flip(result, axis) if eqn.params["reverse"] else result


def _dot_general(eqn: Equation, inputs: Sequence[Masks], _: Known) -> Masks:
    """out[b, m, n] depends on lhs[b, m, :] and rhs[b, :, n]."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = eqn.params["dimension_numbers"]
    lhs = _rows(as_array(inputs[0], eqn.invars[0].aval), lhs_contract, lhs_batch)
    rhs = _rows(as_array(inputs[1], eqn.invars[1].aval), rhs_contract, rhs_batch)
    num_batch = len(lhs_batch)
    num_left, num_right = lhs.ndim - num_batch, rhs.ndim - num_batch
    left = lhs.reshape(lhs.shape + (1,) * num_right)
    right = rhs.reshape(rhs.shape[:num_batch] + (1,) * num_left + rhs.shape[num_batch:])
    return _as_masks(np.asarray(np.bitwise_or(left, right), object))


def _rows(x: np.ndarray, contract: Sequence[int], batch: Sequence[int]) -> np.ndarray:
    free = [axis for axis in range(x.ndim) if axis not in contract and axis not in batch]
    order = (*batch, *free, *contract)
    rows = np.transpose(x, order).reshape(*(x.shape[a] for a in (*batch, *free)), -1)
    if rows.shape[-1] == 0:
        return as_array(0, np.empty(rows.shape[:-1]))
    return np.asarray(np.bitwise_or.reduce(rows, axis=-1), object)


element_rules: dict[str, ElementRule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "slice": _move(_slice),
    "squeeze": _move(lambda x, *, dimensions, **_: np.squeeze(x, tuple(dimensions))),
    "expand_dims": _move(lambda x, *, dimensions, **_: np.expand_dims(x, tuple(dimensions))),
    "reshape": _move(_reshape),
    "transpose": _move(lambda x, *, permutation, **_: np.transpose(x, permutation)),
    "rev": _move(lambda x, *, dimensions, **_: np.flip(x, tuple(dimensions))),
    "broadcast_in_dim": _move(_broadcast),
    "concatenate": _concatenate,
    "split": _split,
    "unstack": _unstack,
    "stack": _stack,
    "pad": _pad,
    "select_n": _select_n,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "dot_general": _dot_general,
    **dict.fromkeys("reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor".split(), _reduce),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp".split(), _cumulative),
}


# --- marks ----------------------------------------------------------------------------------------------------------


def keep_masks(eqn: Equation, inputs: Sequence[Masks]) -> list[Masks]:
    """The marked values' own masks, or for each that of the dependencies that the user named."""
    values, dependencies = inputs[: len(eqn.outvars)], inputs[len(eqn.outvars) :]
    if not eqn.params["is_narrowed"]:
        return list(values)
    mask = 0
    for masks in dependencies:
        mask |= join(masks)
    return [mask] * len(values)


# --- equations that hold jaxprs -----------------------------------------------------------------------------------


def _cond(eqn: Equation, inputs: Sequence[Masks], walk: Walk) -> list[Masks]:
    """An output depends on the predicate and on what it depends on in any branch."""
    results = [join(inputs[0])] * len(eqn.outvars)
    for branch in eqn.params["branches"]:
        outputs = _outputs(from_jaxpr(branch), inputs[1:], walk)
        results = [mask | join(masks) for mask, masks in zip(results, outputs, strict=True)]
    return list(results)


def _outputs(program: Program, inputs: Sequence[Masks], walk: Walk) -> list[Masks]:
    env = walk(program, inputs)
    return [0 if isinstance(atom, Literal) else env[atom] for atom in program.outvars]


def _scan(eqn: Equation, inputs: Sequence[Masks], walk: Walk) -> list[Masks]:
    """Least fixed point over the carries; a stacked output has one mask for all iterations."""
    num_consts, num_carry = _jax.scan_counts(eqn)
    body = from_jaxpr(eqn.params["jaxpr"])
    masks = [join(m) for m in inputs]
    consts, carry, xs = masks[:num_consts], masks[num_consts : num_consts + num_carry], masks[num_consts + num_carry :]
    while True:
        outputs = [join(m) for m in _outputs(body, [*consts, *carry, *xs], walk)]
        grown = [old | new for old, new in zip(carry, outputs[:num_carry], strict=True)]
        if grown == carry:
            return [*carry, *outputs[num_carry:]]
        carry = grown


def _while(eqn: Equation, inputs: Sequence[Masks], walk: Walk) -> list[Masks]:
    """Least fixed point over the carries; the condition decides when every carry stops."""
    num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond, body = from_jaxpr(eqn.params["cond_jaxpr"]), from_jaxpr(eqn.params["body_jaxpr"])
    masks = [join(m) for m in inputs]
    cond_consts, body_consts = masks[:num_cond], masks[num_cond : num_cond + num_body]
    carry = masks[num_cond + num_body :]
    while True:
        stop = join(_outputs(cond, [*cond_consts, *carry], walk)[0])
        outputs = _outputs(body, [*body_consts, *carry], walk)
        grown = [old | join(new) | stop for old, new in zip(carry, outputs, strict=True)]
        if grown == carry:
            return list(carry)
        carry = grown


def _call(param: str) -> Callable[[Equation, Sequence[Masks], Walk], list[Masks]]:
    def rule(eqn: Equation, inputs: Sequence[Masks], walk: Walk) -> list[Masks]:
        return _outputs(from_jaxpr(eqn.params[param]), inputs, walk)

    return rule


nested_rules: dict[str, Callable[[Equation, Sequence[Masks], Walk], list[Masks]]] = {
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
}
