"""Values that depend on no input of a program: constants, evaluated when a rule asks for one.

In: equations, one by one. Out: `Constant`s, of any size and primitive. What NumPy does exactly is evaluated at once (a
loop's counter), the rest by JAX, once, if ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import STATEFUL, Program
from incrax.engine.program.constants import evaluate_equation, is_at_hand

MAX_ELEMENTS = 1 << 22
"""Elements above which a constant is taken as unknown."""

MAX_DEPTH = 64
"""Constants that wait for each other; a longer chain is unknown."""


@dataclass
class Constant:
    """A constant, or how to evaluate it; `depth` counts the equations in a row that were put off."""

    make: Callable[[], Any]
    depth: int = 0
    made: Any = None

    @property
    def value(self) -> Any:
        """The value, evaluated at the first request."""
        if self.made is None:
            self.made = self.make()
            self.depth = 0
        return self.made


Known: TypeAlias = dict[Var, Constant]


def constant(value: Any) -> Constant:
    """A constant at hand."""
    return Constant(lambda: value, made=value)


def known_of(program: Program, arguments: Sequence[Constant | None]) -> Known:
    """The program's constants, and the inputs that are."""
    known = {
        var: constant(value)
        for var, value in zip(program.constvars, program.consts, strict=True)
        if _jax.aval_size(var.aval) <= MAX_ELEMENTS and is_at_hand(value)
    }
    known.update({var: given for var, given in zip(program.invars, arguments, strict=True) if given is not None})
    return known


def constant_of(atom: Atom, known: Known) -> Constant | None:
    """The constant that an atom is, if it is one."""
    return constant(np.asarray(atom.val)) if isinstance(atom, Literal) else known.get(atom)


def value_of(atom: Atom, known: Known) -> np.ndarray | None:
    """Its value; None where it depends on an input, or is no array of numbers."""
    found = constant_of(atom, known)
    if found is None or _jax.is_key_dtype(getattr(atom.aval, "dtype", np.dtype(bool))):
        return None
    return np.asarray(found.value)


def learn(eqn: Equation, known: Known) -> None:
    """Add an equation's outputs, if all its inputs are constants."""
    inputs = [constant_of(atom, known) for atom in eqn.invars]
    found = [each for each in inputs if each is not None]
    if len(found) < len(inputs) or not _is_pure(eqn):
        return
    depth = max((each.depth for each in found), default=0)
    at_once = _by_numpy(eqn, known) if depth == 0 else None
    if at_once is not None:
        known[eqn.outvars[0]] = constant(at_once)
    elif depth < MAX_DEPTH:
        results = Constant(lambda: _evaluate(eqn, found))
        for number, var in enumerate(eqn.outvars):
            known[var] = Constant(lambda number=number: results.value[number], depth + 1)


def _by_numpy(eqn: Equation, known: Known) -> np.ndarray | None:
    variables = {atom: np.asarray(known[atom].value) for atom in eqn.invars if _is_numeric(atom)}
    return evaluate_equation(eqn, variables)


def _is_numeric(atom: Atom) -> bool:
    return isinstance(atom, Var) and not _jax.is_key_dtype(getattr(atom.aval, "dtype", np.dtype(bool)))


def _is_pure(eqn: Equation) -> bool:
    if eqn.effects or eqn.primitive.name in STATEFUL or _jax.calls_host(eqn):
        return False
    return all(_jax.aval_size(var.aval) <= MAX_ELEMENTS for var in eqn.outvars)


def _evaluate(eqn: Equation, inputs: Sequence[Constant]) -> Sequence[Any]:
    with jax.ensure_compile_time_eval():
        return _jax.apply(eqn, [each.value for each in inputs])
