"""Values known before any input is.

In: a `Program`, or its equations one by one. Out: the values of variables that depend on no input.
Small ones are evaluated at once with NumPy, without a compiler, for primitives on which NumPy and
XLA agree bit for bit (moves of data, integer, boolean and correctly rounded arithmetic); others, of
any size and primitive, by JAX when somebody who defers asks for one. It must not know what uses
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import STATEFUL, Program, Values
from incrax.primitives.elements import Domain
from incrax.primitives.entry import View
from incrax.primitives.table import entry_of

MAX_SIZE = 4096
"""Elements above which a constant is left to XLA."""

MAX_DEFERRED = 1 << 22
"""Elements above which it is unknown also to those who defer."""

MAX_DEPTH = 64
"""Constants that wait for each other; a longer chain is unknown."""


@dataclass
class Deferred:
    """A constant that is evaluated at the first request; `depth` counts the equations in a row that
    wait.
    """

    make: Callable[[], Any]
    depth: int
    made: Any = None

    @property
    def value(self) -> Any:
        """The value."""
        if self.made is None:
            self.made = self.make()
            self.depth = 0
        return self.made


Known: TypeAlias = dict[Var, Any]
"""Values, some of them `Deferred`."""


def known_values(program: Program) -> Known:
    """The values of the small variables that depend on no input."""
    known = known_constants(program)
    for eqn in program.eqns:
        learn(eqn, known)
    return known


def known_constants(program: Program, *, defers: bool = False) -> Known:
    """The values of the constants, the small ones if nothing is deferred."""
    is_read = (lambda aval: _jax.aval_size(aval) <= MAX_DEFERRED) if defers else _is_small
    pairs = zip(program.constvars, program.consts, strict=True)
    found = {var: const for var, const in pairs if is_read(var.aval) and is_at_hand(const)}
    return found if defers else {var: np.asarray(const) for var, const in found.items()}


def is_at_hand(const: Any) -> bool:
    """Whether a value can be read, and stays; what is hidden in an equation's parameters may be
    traced.
    """
    if isinstance(const, _jax.Tracer) or _jax.is_mutable_array(const):
        return False
    return not isinstance(const, jax.Array) or _jax.is_held_whole(const)


def constant_of(atom: Atom, known: Known) -> Any | None:
    """What is known of an atom."""
    return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, Literal) else known.get(atom)


def value_of(atom: Atom, known: Known) -> np.ndarray | None:
    """The value of an atom; None where it depends on an input, or is no array of numbers."""
    found = constant_of(atom, known)
    if found is None or _jax.is_key_dtype(getattr(atom.aval, "dtype", np.dtype(bool))):
        return None
    return np.asarray(value_at(found))


def value_at(found: Any) -> Any:
    """What is known, evaluated."""
    return found.value if isinstance(found, Deferred) else found


class KnownValues(View):
    """What is known, for index rules."""

    def __init__(self, known: Known) -> None:
        self.known = known

    def value(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom that depends on no input."""
        return value_of(atom, self.known)


class KnowingDomain(Domain):
    """A domain of a walk that knows what depends on no input."""

    defers = False
    """Whether large constants, and those that only JAX evaluates, are known too."""

    def known(self, program: Program, constants: Values) -> Known:
        """The constants, and what is known of the inputs."""
        given = zip(program.invars, constants, strict=True)
        found = known_constants(program, defers=self.defers)
        return found | {var: value for var, value in given if value is not None}

    def constant_of(self, atom: Atom, known: Known) -> Any | None:
        """What is known of an atom."""
        return constant_of(atom, known)


def learn(eqn: Equation, known: Known, *, defers: bool = False) -> None:
    """Add an equation's outputs if all its inputs are known: at once where NumPy can, else if it
    `defers`.
    """
    for atom in eqn.invars:
        if not isinstance(atom, Literal) and atom not in known:
            return
    found = [constant_of(atom, known) for atom in eqn.invars]
    depth = max((each.depth for each in found if isinstance(each, Deferred)), default=0)
    if depth == 0 and len(eqn.outvars) == 1 and _is_small(eqn.outvars[0].aval):
        aval = eqn.outvars[0].aval
        value = numpy_value(eqn, list(map(value_at, found)))
        if value is not None:
            known[eqn.outvars[0]] = value.reshape(aval.shape)
            return
    if defers and depth < MAX_DEPTH and _is_pure(eqn):
        results = Deferred(lambda: _by_jax(eqn, found), depth)
        for number, var in enumerate(eqn.outvars):
            known[var] = Deferred(lambda number=number: results.value[number], depth + 1)


def numpy_value(eqn: Equation, values: Values) -> np.ndarray | None:
    """The output of an equation on these values, of any shape; None where NumPy may give other bits
    than XLA.
    """
    rule = entry_of(eqn).constant
    dtype = eqn.outvars[0].aval.dtype
    if rule is None or not _is_numeric(dtype):
        return None
    with np.errstate(all="ignore"):
        result = rule(*map(np.asarray, values), **eqn.params)
    return None if result is None or _has_subnormal(result) else np.asarray(result, dtype)


def _by_jax(eqn: Equation, inputs: Values) -> Values:
    with jax.ensure_compile_time_eval():
        return _jax.apply(eqn, list(map(value_at, inputs)))


def _is_pure(eqn: Equation) -> bool:
    if eqn.effects or eqn.primitive.name in STATEFUL or _jax.calls_host(eqn):
        return False
    return all(_jax.aval_size(var.aval) <= MAX_DEFERRED for var in eqn.outvars)


def _has_subnormal(x: Any) -> bool:
    """XLA may flush subnormal numbers to zero, NumPy does not."""
    x = np.asarray(x)
    return x.dtype.kind == "f" and bool(np.any((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)))


def _is_numeric(dtype: Any) -> bool:
    """Whether it is one of the types that NumPy and XLA treat alike."""
    return (
        not _jax.is_key_dtype(dtype)
        and np.dtype(dtype).kind in "biuf"
        and np.dtype(dtype).itemsize in (1, 4, 8)
    )


def _is_small(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or _jax.is_ref(aval):
        return False
    return _is_numeric(dtype) and _jax.aval_size(aval) <= MAX_SIZE
