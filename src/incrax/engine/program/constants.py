"""Values known before any input is: small constants evaluated with NumPy, without a compiler.

In: a `Program`. Out: the values of variables that depend on no input, for primitives on which NumPy and XLA agree
bit for bit (moves of data, integer, boolean and correctly rounded arithmetic). It must not know what uses them.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import Program
from incrax.primitives.table import entry_of

MAX_SIZE = 4096
"""Elements above which a constant is left to XLA."""


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
    return {var: np.asarray(const) for var, const in pairs if _is_small(var.aval) and is_at_hand(const)}


def is_at_hand(const: Any) -> bool:
    """Whether a value can be read, and stays; what is hidden in an equation's parameters may be traced."""
    if isinstance(const, _jax.Tracer) or _jax.is_mutable_array(const):
        return False
    return not isinstance(const, jax.Array) or _jax.is_held_whole(const)


def evaluate_equation(eqn: Equation, known: dict[Var, np.ndarray]) -> np.ndarray | None:
    """The value of an equation's one output, or None where it is not known exactly."""
    rule = entry_of(eqn).constant
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
    if dtype is None or _jax.is_ref(aval) or _jax.is_key_dtype(dtype) or np.dtype(dtype).kind not in "biuf":
        return False
    return np.dtype(dtype).itemsize in (1, 4, 8) and _jax.aval_size(aval) <= MAX_SIZE
