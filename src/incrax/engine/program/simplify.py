"""Stage 2, simplify: passes `Program -> Program` that keep its meaning.

`inline` opens calls, and branches that are known to be taken (`inline_but_rules` leaves calls with
a derivative rule), `fold_constants` evaluates small equations that read no input, `merge_equal`
keeps one of equal equations, `drop_dead` removes what no output needs. Loop hoisting and merged
reductions have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Body, Equation, Literal, Var
from incrax._program import Program, all_read, read_vars, written_vars
from incrax.engine.program.constants import known_values
from incrax.engine.program.structure import equation_key

Pass = Callable[[Program], Program]


def run_passes(program: Program, passes: Iterable[Pass]) -> Program:
    """Apply passes in order."""
    for simplify in passes:
        program = simplify(program)
    return program


# --- inline ---------------------------------------------------------------------------------------


RULED = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
"""Calls with a derivative rule of their own."""


def inline(program: Program) -> Program:
    """Open jit, custom_jvp, custom_vjp, remat and closed calls; an equation of a function of JAX gets
    the line where the user called that function.
    """
    return _inline(program, frozenset())


def inline_but_rules(program: Program) -> Program:
    """Open jit, remat and closed calls; calls with derivative rules stay, for a program that is
    differentiated.
    """
    return _inline(program, RULED)


_REMATERIALIZED = frozenset({"checkpoint", "remat", "remat2"})
_DIFFERENTIATED = RULED | _REMATERIALIZED


def inline_jits(program: Program) -> Program:
    """Open jit and closed calls only: what stays says how to differentiate."""
    return _inline(program, _DIFFERENTIATED)


def inline_with_solves(program: Program) -> Program:
    """As `inline`; what is a primitive for its derivative rule only (linear solves) is opened as
    well.
    """
    return _inline(program, frozenset(), opens_solves=True)


def inline_with_solves_but_remat(program: Program) -> Program:
    """The same, but what is computed again for a derivative stays apart from where it was computed
    first.
    """
    return _inline(program, _REMATERIALIZED, opens_solves=True)


def _inline(program: Program, closed: frozenset[str], *, opens_solves: bool = False) -> Program:
    inlining = _Inlining(closed, opens_solves)
    for eqn in program.eqns:
        inlining.visit(eqn)
    return Program(
        program.invars,
        (*program.constvars, *inlining.consts),
        (*program.consts, *inlining.consts.values()),
        tuple(inlining.eqns),
        tuple(map(inlining.resolve, program.outvars)),
    )


class _Inlining:
    """One walk through equations: those that stay, and the constants of what was opened."""

    def __init__(self, closed: frozenset[str], opens_solves: bool) -> None:
        self.eqns: list[Equation] = []
        self.consts: dict[Var, Any] = {}
        self._closed = closed
        self._opens_solves = opens_solves
        self._names: dict[Var, Atom] = {}
        self.resolve = renaming(self._names)

    def visit(self, eqn: Equation) -> None:
        """Add an equation, or those inside."""
        eqn = reading(eqn, self.resolve)
        called, inputs = self._called(eqn)
        if called is None:
            self.eqns.append(eqn)
            return
        body = _jax.open_jaxpr(called)
        constvars = [_jax.new_var(var.aval) for var in body.constvars]
        self.consts.update(zip(constvars, body.consts, strict=True))
        results, opened = renamed(body, [*constvars, *inputs])
        for inner in opened:
            has_line = bool(_jax.source_line(inner))
            self.visit(inner if has_line else inner.replace(source_info=eqn.source_info))
        self._names.update(zip(eqn.outvars, results, strict=True))

    def _called(self, eqn: Equation) -> tuple[Any, Sequence[Atom]]:
        """The jaxpr that stands for an equation (None: it stays), and its inputs."""
        name = eqn.primitive.name
        if name == "platform_index" and not self._closed:
            found = branch_of(eqn, _jax.only_platform())
            self._names.update({} if found is None else {eqn.outvars[0]: found})
        called = None if name in self._closed else _jax.called_jaxpr(eqn)
        if name == "cond" and isinstance(eqn.invars[0], Literal):
            index, *inputs = eqn.invars
            branches = eqn.params["branches"]
            return branches[min(max(int(index.val), 0), len(branches) - 1)], inputs
        found = _jax.opaque_call(eqn) if called is None and self._opens_solves else None
        return (called, eqn.invars) if found is None else found


def renamed(
    body: Body, inputs: Sequence[Atom], outputs: Sequence[Var | None] | None = None
) -> tuple[list[Any], tuple[Equation, ...]]:
    """What a body writes, and its equations, on other constants and inputs; they may write to given
    variables (None: to a new one), each by itself. What is inside has new names: one body may be
    taken twice.
    """
    names: dict[Any, Any] = dict(zip((*body.constvars, *body.invars), inputs, strict=True))
    copied: list[tuple[Atom, Var]] = []
    pairs = zip(body.outvars, () if outputs is None else outputs, strict=outputs is not None)
    for atom, new in pairs:
        if new is None or isinstance(new, _jax.DropVar):
            continue
        if isinstance(atom, Literal) or atom in names:
            copied.append((atom, new))
        else:
            names[atom] = new
    resolve = lambda atom: atom if isinstance(atom, Literal) else names[atom]
    eqns = []
    for eqn in body.eqns:
        for var in written_vars(eqn):
            names.setdefault(var, _jax.new_var(var.aval))
        outvars = [names.get(var, var) for var in eqn.outvars]
        eqns.append(eqn.replace(invars=list(map(resolve, eqn.invars)), outvars=outvars))
    for atom, new in copied:
        like = jax.ShapeDtypeStruct(new.aval.shape, new.aval.dtype)
        (copy,) = _jax.trace_body(lambda x: jnp.array(x, copy=True), like).eqns
        eqns.append(copy.replace(invars=[resolve(atom)], outvars=[new]))
    return list(map(resolve, body.outvars)), tuple(eqns)


def renaming(names: Mapping[Var, Atom]) -> Callable[[Atom], Atom]:
    """What stands for an atom, by names that may have others."""

    def resolve(atom: Atom) -> Atom:
        while isinstance(atom, Var) and atom in names:
            atom = names[atom]
        return atom

    return resolve


def reading(eqn: Equation, rename: Callable[[Atom], Atom]) -> Equation:
    """The equation with other inputs; itself where they stay the same."""
    invars = list(map(rename, eqn.invars))
    return eqn if all(map(is_, invars, eqn.invars)) else eqn.replace(invars=invars)


def branch_of(eqn: Equation, platform: str | None) -> Literal | None:
    """What a question for the platform gives on this one; None where it is not known, or no branch
    is for it.
    """
    if platform is None:
        return None
    groups = [x if isinstance(x, (tuple, list)) else (x,) for x in eqn.params["platforms"]]
    fitting = [n for n, group in enumerate(groups) if None in group or platform in group]
    return _jax.literal(fitting[0], eqn.outvars[0].aval) if fitting else None


# --- fold -----------------------------------------------------------------------------------------


def fold_constants(program: Program) -> Program:
    """Replace small values that depend on no input, and whose arithmetic NumPy does exactly, by
    constants.
    """
    known = {var: value for var, value in known_values(program).items() if _is_foldable(var, value)}
    kept = [
        eqn
        for eqn in program.eqns
        if eqn.effects or not all(var in known for var in written_vars(eqn))
    ]
    used = all_read(kept, program.outvars)
    literals = {
        v: _jax.literal(known[v], v.aval) for v in used if v in known and v.aval.shape == ()
    }
    constants = frozenset(program.constvars)
    arrays = [v for v in known if v in used and v not in literals and v not in constants]
    resolve = renaming(literals)
    kept = [reading(eqn, resolve) for eqn in kept]
    outvars = tuple(map(resolve, program.outvars))
    constvars = (*program.constvars, *arrays)
    consts = (*program.consts, *(np.asarray(known[v], v.aval.dtype) for v in arrays))
    return Program(program.invars, constvars, consts, tuple(kept), outvars)


def _is_foldable(var: Var, value: np.ndarray) -> bool:
    """A weakly typed value is a Python scalar or stays computed."""
    if not getattr(var.aval, "weak_type", False):
        return True
    return var.aval.shape == () and _jax.literal(value, var.aval) is not None


# --- merge ----------------------------------------------------------------------------------------


def merge_equal(program: Program) -> Program:
    """Common subexpressions: equations of one primitive, parameters and inputs are evaluated
    once.
    """
    names: dict[Var, Var] = {}
    resolve = renaming(names)
    seen: dict[Hashable, list[Var]] = {}
    eqns = []
    for eqn in program.eqns:
        eqn = reading(eqn, resolve)
        key = equation_key(eqn)
        if key is not None and key in seen:
            names.update(zip(eqn.outvars, seen[key], strict=True))
            continue
        if key is not None and not any(isinstance(var, _jax.DropVar) for var in eqn.outvars):
            seen[key] = list(eqn.outvars)
        eqns.append(eqn)
    return program.with_eqns(eqns, tuple(map(resolve, program.outvars)))


# --- dead code ------------------------------------------------------------------------------------


def drop_dead(program: Program) -> Program:
    """Remove equations that no output and no effect needs, and constants that no equation reads."""
    kept = needed_equations(program.eqns, program.outvars)
    used = all_read(kept, program.outvars)
    pairs = zip(program.constvars, program.consts, strict=True)
    consts = {var: const for var, const in pairs if var in used}
    return replace(
        program, constvars=tuple(consts), consts=tuple(consts.values()), eqns=tuple(kept)
    )


def needed_equations(
    eqns: Iterable[Equation], outvars: Iterable[Atom], *, has_effects: bool = True
) -> list[Equation]:
    """The equations that the outputs, or an effect if it is to happen, need, in program order."""
    needed = {atom for atom in outvars if isinstance(atom, Var)}
    kept: list[Equation] = []
    for eqn in reversed(list(eqns)):
        if (has_effects and eqn.effects) or any(var in needed for var in written_vars(eqn)):
            needed.update(read_vars(eqn))
            kept.append(eqn)
    return kept[::-1]
