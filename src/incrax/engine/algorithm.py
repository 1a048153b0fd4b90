"""The whole idea in one file: trace, depend, cut, run. Read this first.

A function becomes a list of equations. Each value depends on some of the inputs. When inputs
change, the equations that they reach run again, and what these read beside each other is loaded: it
was saved by an earlier call, and cannot have changed. Nothing here is compiled, timed, bounded or
shared between threads; the rest of the engine adds that, and must not change a result, so that the
tests hold it against this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import Program, read_vars, trace_with_tree, written_vars

ONCE = -2
ALWAYS = -1
"""Numbers of two inputs that no function has: `ONCE` changes at the first call alone, and every
equation depends on it; `ALWAYS` changes at every call, and equations with an effect depend on it.
"""

Depends = Mapping[Var, Set[int]]


def depend(program: Program) -> Depends:
    """The numbers of the inputs that each variable depends on.

    Promise: inputs that agree in these give the same value.
    """
    depends: dict[Var, frozenset[int]] = dict.fromkeys(program.constvars, frozenset())
    depends.update({var: frozenset([number]) for number, var in enumerate(program.invars)})
    for eqn in program.eqns:
        depends.update(dict.fromkeys(written_vars(eqn), _of_equation(eqn, depends)))
    return depends


def _of_equation(eqn: Equation, depends: Depends) -> frozenset[int]:
    """By default every result depends on all that is read; `primitives` knows better for most
    equations.
    """
    own = [ONCE, ALWAYS] if eqn.effects else [ONCE]
    return frozenset(own).union(*(depends[var] for var in read_vars(eqn)))


def worth_saving(program: Program, depends: Depends) -> set[Var]:
    """The outputs, and what is read by an equation that depends on more: there some change cuts the
    program.
    """
    found = {atom for atom in program.outvars if isinstance(atom, Var)}
    for eqn in program.eqns:
        reached = _of_equation(eqn, depends)
        found.update(var for var in read_vars(eqn) if depends[var] < reached)
    return found - {*program.invars, *program.constvars}


class SimplePlan(NamedTuple):
    """What to do when some inputs changed: values to load, equations to run, values to save."""

    loads: Sequence[Var]
    eqns: Sequence[Equation]
    saves: Sequence[Var]


def cut(program: Program, depends: Depends, changed: Set[int]) -> SimplePlan:
    """The plan for a change; `changed` are numbers of inputs, `ONCE` and `ALWAYS` among them where
    they apply.

    Promise: every variable that an equation of the plan reads is an input, a constant, loaded, or
    written before.
    """
    is_dirty = lambda var: not depends[var].isdisjoint(changed)
    saves = [var for var in worth_saving(program, depends) if is_dirty(var)]
    needed = set(saves)
    eqns: list[Equation] = []
    for eqn in reversed(program.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            eqns.insert(0, eqn)
            needed.update(var for var in read_vars(eqn) if is_dirty(var))
    at_hand = {*program.invars, *program.constvars}
    loads = {var for eqn in eqns for var in read_vars(eqn) if not is_dirty(var)} - at_hand
    return SimplePlan(list(loads), eqns, saves)


def differing(old: Iterable[Any], new: Iterable[Any]) -> set[int]:
    """Numbers of the leaves whose types or bits differ: -0.0 is not 0.0, and a NaN is itself."""
    pairs = zip(map(_bits, old), map(_bits, new), strict=True)
    return {number for number, (before, now) in enumerate(pairs) if before != now}


def _bits(x: Any) -> tuple[Any, ...]:
    is_key = isinstance(x, jax.Array) and _jax.is_key_dtype(x.dtype)
    array = _jax.bits_on_host(x)
    return type(x) if is_key else None, array.dtype, array.shape, array.tobytes()


class Incrementally:
    """A function of pytrees of arrays that runs what changed since the last call, equation by
    equation.

    Promise: the result is, bit for bit, that of a new object of this class at the same arguments.

    `ran` are the equations that the last call ran.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun
        self.program: Program | None = None
        self.leaves: Sequence[Any] = ()
        self.saved: Mapping[Var, Any] = {}
        self.ran: Sequence[Equation] = ()

    def __call__(self, *args: Any) -> Any:
        """The function's result; arguments have the types of the first call's."""
        leaves = jax.tree.leaves(args)
        if self.program is None:
            self.program, self.out_tree = trace_with_tree(self.fun, *args)
            self.depends = depend(self.program)
            changed = {ONCE, *range(len(leaves))}
        else:
            changed = differing(self.leaves, leaves)
        plan = cut(self.program, self.depends, {ALWAYS, *changed})
        env = dict(zip(self.program.constvars, self.program.consts, strict=True))
        env.update(zip(self.program.invars, leaves, strict=True))
        env.update({var: self.saved[var] for var in plan.loads})
        _jax.evaluate(plan.eqns, env)
        # Last, so that a call that fails leaves everything as it was.
        self.leaves = [np.copy(x) if isinstance(x, np.ndarray) else x for x in leaves]
        self.saved = {**self.saved, **{var: env[var] for var in plan.saves}}
        self.ran = plan.eqns
        known = {**env, **self.saved}
        return jax.tree.unflatten(
            self.out_tree, [_jax.read(atom, known) for atom in self.program.outvars]
        )
