"""What equations compute, whatever their variables are called and wherever they were written.

In: equations, jaxprs. Out: hashable keys, equal where the same is computed. Constants and functions
compare by identity; names that say nothing of results, and source lines, do not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal
from incrax._program import STATEFUL
from incrax.engine.program.functions import Identity, function_key

_NAMED = frozenset({"jit", "pjit", _jax.KEEP})
"""Primitives with a parameter `name` that nothing depends on."""


def literal_key(atom: Literal) -> Hashable:
    """A literal by type and bits."""
    value = np.asarray(atom.val)
    return atom.aval, value.dtype, value.tobytes()


def atom_key(atom: Atom) -> Hashable:
    """A variable by itself, a literal by type and bits."""
    return literal_key(atom) if isinstance(atom, Literal) else atom


def is_repeatable(eqn: Equation) -> bool:
    """Whether an equation gives the same results each time."""
    return not eqn.effects and eqn.primitive.name not in STATEFUL


def equation_key(eqn: Equation) -> Hashable:
    """What repeatable equations have in common that give the same results."""
    return operation_key(eqn), tuple(map(atom_key, eqn.invars))


def operation_key(eqn: Equation) -> Hashable:
    """What an equation does with its operands, whichever these are."""
    params = eqn.params
    if params and eqn.primitive.name in _NAMED:
        params = {name: value for name, value in params.items() if name != "name"}
    return eqn.primitive, value_key(params), Identity(eqn.ctx)


def jaxpr_key(jaxpr: Any) -> Hashable:
    """What a jaxpr computes, with its variables numbered."""
    body = _jax.open_jaxpr(jaxpr)
    numbers: dict[Any, int] = {}

    def numbered(atoms: Iterable[Any]) -> Hashable:
        return tuple(
            literal_key(atom)
            if isinstance(atom, Literal)
            else (numbers.setdefault(atom, len(numbers)), atom.aval)
            for atom in atoms
        )

    inputs = numbered((*body.constvars, *body.invars))
    eqns = tuple((operation_key(eqn), numbered((*eqn.invars, *eqn.outvars))) for eqn in body.eqns)
    outputs = numbered(body.outvars)
    return len(body.constvars), tuple(map(Identity, body.consts)), inputs, eqns, outputs


_PLAIN = frozenset({int, bool, str, type(None)})
"""Types of values that say all with their type."""


def value_key(value: Any) -> Hashable:
    """A parameter of an equation by what it says."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, dict):
        return tuple([(name, value_key(value[name])) for name in sorted(value)])
    if isinstance(value, (tuple, list)):
        kinds = tuple(map(type, value))
        return kind, kinds, tuple(value if _PLAIN.issuperset(kinds) else map(value_key, value))
    if _jax.is_jaxpr(value):
        return jaxpr_key(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, float | complex):
        return repr(value)
    if callable(value) and not isinstance(value, type):
        return function_key(value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return kind, value
