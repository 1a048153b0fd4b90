"""Stage 2, simplify: passes `Program -> Program` that keep its meaning.

`inline` opens calls, and branches that are known to be taken (`inline_but_rules` leaves calls with
a derivative rule), `fold_constants` evaluates small equations that read no input, `merge_equal`
keeps one of equal equations, `drop_dead` removes what no output needs. Loop hoisting and merged
reductions have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import STATEFUL, Program, all_read, read_vars, written_vars
from incrax.engine.program.constants import known_values
from incrax.engine.program.functions import function_key

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
_DIFFERENTIATED = RULED | _REMATERIALIZED | {_jax.PASS}


def inline_jits(program: Program) -> Program:
    """Open jit and closed calls only: what stays says how to differentiate, or is the marker of a
    pass.
    """
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
    eqns: list[Equation] = []
    constvars = list(program.constvars)
    consts = list(program.consts)
    names: dict[Var, Atom] = {}
    resolve = renaming(names)

    def visit(eqn: Equation) -> None:
        eqn = reading(eqn, resolve)
        called = None if eqn.primitive.name in closed else _jax.called_jaxpr(eqn)
        inputs = eqn.invars
        if eqn.primitive.name == "platform_index" and not closed:
            names.update({var: found for var in eqn.outvars if (found := _platform(eqn))})
        elif eqn.primitive.name == "cond" and isinstance(inputs[0], Literal):
            branches = eqn.params["branches"]
            called = branches[min(max(int(inputs[0].val), 0), len(branches) - 1)]
            inputs = inputs[1:]
        if called is None and opens_solves:
            called, inputs = _jax.opaque_call(eqn) or (None, inputs)
        if called is None:
            eqns.append(eqn)
            return
        body = _jax.open_jaxpr(called)
        fresh = [_jax.new_var(inner.aval) for inner in body.constvars]
        constvars.extend(fresh)
        consts.extend(body.consts)
        names.update(zip(body.constvars, fresh, strict=True))
        names.update(zip(body.invars, inputs, strict=True))
        for inner in body.eqns:
            outputs = [_fresh(var) for var in inner.outvars]
            names.update(zip(inner.outvars, outputs, strict=True))
            source = inner.source_info if _jax.source_line(inner) else eqn.source_info
            visit(inner.replace(outvars=outputs, source_info=source))
        names.update(zip(eqn.outvars, [resolve(atom) for atom in body.outvars], strict=True))

    for eqn in program.eqns:
        visit(eqn)
    outvars = tuple(resolve(atom) for atom in program.outvars)
    return Program(program.invars, tuple(constvars), tuple(consts), tuple(eqns), outvars)


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


def _platform(eqn: Equation) -> Literal | None:
    """Which branch is that of the platform; None where this process has several."""
    platform = _jax.only_platform()
    if platform is None:
        return None
    groups = [x if isinstance(x, (tuple, list)) else (x,) for x in eqn.params["platforms"]]
    fitting = [n for n, group in enumerate(groups) if None in group or platform in group]
    return _jax.literal(fitting[0], eqn.outvars[0].aval) if fitting else None


def _fresh(var: Var) -> Var:
    """A new name for an inner variable: one jaxpr may be called twice."""
    return var if isinstance(var, _jax.DropVar) else _jax.new_var(var.aval)


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


def equation_key(
    eqn: Equation, number: Callable[[Atom], Hashable] | None = None
) -> Hashable | None:
    """What equations have in common that give the same results; None for one that may give another
    each time.

    `number` is what stands for an input; the atom itself by default.
    """
    if eqn.effects or eqn.primitive.name in STATEFUL:
        return None
    params = tuple((name, _param_key(value)) for name, value in sorted(eqn.params.items()))
    key = (eqn.primitive, params, tuple(map(number or atom_key, eqn.invars)), id(eqn.ctx))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _param_key(value: Any) -> Hashable:
    """Parameters that compare by value; anything holding a jaxpr, and functions, compare by
    identity.
    """
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, bool | int | float | complex | str | type(None)):
        return type(value), repr(value)
    return function_key(value) if callable(value) and not isinstance(value, type) else value


def atom_key(atom: Atom) -> Hashable:
    """A variable by itself, a literal by type and bits."""
    if isinstance(atom, Literal):
        value = np.asarray(atom.val)
        return atom.aval, value.dtype, value.tobytes()
    return atom


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
