"""Values known before any input is: small constants evaluated with NumPy, without a compiler.

In: a `Program`. Out: the values of variables that depend on no input, for primitives on which NumPy and XLA agree
bit for bit (moves of data, integer, boolean and correctly rounded arithmetic). It must not know what uses them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import Program

MAX_SIZE = 4096
"""Elements above which a constant is left to XLA."""

Rule = Callable[..., Any]


def known_values(program: Program) -> dict[Var, np.ndarray]:
    """The values of the small variables that depend on no input."""
    known = known_constants(program)
    for eqn in program.eqns:
        value = evaluate_equation(eqn, known)
        if value is not None:
            known[eqn.outvars[0]] = value
    return known


def known_constants(program: Program) -> dict[Var, np.ndarray]:
    """The values of the small constants."""
    pairs = zip(program.constvars, program.consts, strict=True)
    return {var: np.asarray(const) for var, const in pairs if _is_small(var.aval) and _is_at_hand(const)}


def _is_at_hand(const: Any) -> bool:
    """Whether a value can be read; what is hidden in an equation's parameters may be traced."""
    if isinstance(const, _jax.Tracer):
        return False
    return not isinstance(const, jax.Array) or _jax.is_held_whole(const)


def evaluate_equation(eqn: Equation, known: dict[Var, np.ndarray]) -> np.ndarray | None:
    """The value of an equation's one output, or None where it is not known exactly."""
    rule = constant_rules.get(eqn.primitive.name)
    if rule is None or not all(isinstance(atom, Literal) or atom in known for atom in eqn.invars):
        return None
    if len(eqn.outvars) != 1 or not _is_small(eqn.outvars[0].aval):
        return None
    values = [_known_atom(atom, known) for atom in eqn.invars]
    aval = eqn.outvars[0].aval
    with np.errstate(all="ignore"):
        result = rule(*values, **eqn.params)
    return None if result is None or _has_subnormal(result) else np.asarray(result, aval.dtype).reshape(aval.shape)


def _has_subnormal(x: Any) -> bool:
    """XLA may flush subnormal numbers to zero, NumPy does not."""
    x = np.asarray(x)
    return x.dtype.kind == "f" and bool(np.any((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)))


def _known_atom(atom: Any, known: dict[Var, np.ndarray]) -> np.ndarray:
    return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else known[atom]


def _is_small(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or _jax.is_key_dtype(dtype) or np.dtype(dtype).kind not in "biuf":
        return False
    return np.dtype(dtype).itemsize in (1, 4, 8) and _jax.aval_size(aval) <= MAX_SIZE


def _convert(x: np.ndarray, *, new_dtype: Any, **_: Any) -> np.ndarray | None:
    target = np.dtype(new_dtype)
    if x.dtype.kind == "f" and target.kind in "iu":
        return None  # out-of-range conversions differ between NumPy and XLA
    return x.astype(target)


def _broadcast_in_dim(x: np.ndarray, *, shape: tuple[int, ...], broadcast_dimensions: Any, **_: Any) -> np.ndarray:
    spread = np.ones(len(shape), int)
    spread[list(broadcast_dimensions)] = x.shape
    return np.broadcast_to(x.reshape(tuple(spread)), shape)


def _iota(*, dtype: Any, shape: tuple[int, ...], dimension: int, **_: Any) -> np.ndarray:
    line = np.arange(shape[dimension]).astype(dtype)
    spread = [1] * len(shape)
    spread[dimension] = shape[dimension]
    return np.broadcast_to(line.reshape(spread), shape)


def _select(which: np.ndarray, *cases: np.ndarray, **_: Any) -> np.ndarray:
    if not which.ndim:
        return cases[int(which)]
    return np.take_along_axis(np.stack(cases), which.astype(int)[None], axis=0)[0]


def _slice(x: np.ndarray, *, start_indices: Any, limit_indices: Any, strides: Any, **_: Any) -> np.ndarray:
    steps = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _integer_only(rule: Callable[..., Any]) -> Rule:
    return lambda *xs, **_: rule(*xs) if all(x.dtype.kind in "iub" for x in xs) else None


def _plain(rule: Callable[..., Any]) -> Rule:
    return lambda *xs, **_: rule(*xs)


constant_rules: dict[str, Rule] = {
    "convert_element_type": _convert,
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
    "select_n": _select,
    "slice": _slice,
    "reshape": lambda x, *, new_sizes, dimensions=None, **_: (
        np.transpose(x, dimensions).reshape(new_sizes) if dimensions is not None else x.reshape(new_sizes)
    ),
    "squeeze": lambda x, *, dimensions, **_: np.squeeze(x, tuple(dimensions)),
    "expand_dims": lambda x, *, dimensions, **_: np.expand_dims(x, tuple(dimensions)),
    "transpose": lambda x, *, permutation, **_: np.transpose(x, permutation),
    "rev": lambda x, *, dimensions, **_: np.flip(x, tuple(dimensions)),
    "concatenate": lambda *xs, dimension, **_: np.concatenate(xs, dimension),
    "copy": _plain(lambda x: x),
    "copy_p": _plain(lambda x: x),
    "stop_gradient": _plain(lambda x: x),
    "reshard": lambda x, **_: x if x.ndim == 0 else None,
    "add": _plain(operator.add),
    "add_any": _plain(operator.add),
    "sub": _plain(operator.sub),
    "mul": _plain(operator.mul),
    "neg": _integer_only(operator.neg),
    "eq": _plain(operator.eq),
    "ne": _plain(operator.ne),
    "lt": _plain(operator.lt),
    "le": _plain(operator.le),
    "gt": _plain(operator.gt),
    "ge": _plain(operator.ge),
    "and": _plain(operator.and_),
    "or": _plain(operator.or_),
    "not": _plain(np.invert),
    "max": _integer_only(np.maximum),
    "min": _integer_only(np.minimum),
    "clamp": _integer_only(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "reduce_sum": lambda x, *, axes, **_: x.sum(tuple(axes)) if x.dtype.kind in "iub" else None,
    "reduce_max": lambda x, *, axes, **_: x.max(tuple(axes)) if x.dtype.kind in "iu" and x.size else None,
    "reduce_min": lambda x, *, axes, **_: x.min(tuple(axes)) if x.dtype.kind in "iu" and x.size else None,
}
