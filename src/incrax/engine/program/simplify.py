"""Stage 2, simplify: passes `Program -> Program` that keep its meaning.

`inline` opens calls, and branches that are known to be taken (`inline_but_rules` leaves calls with
a derivative rule), `fold_constants` evaluates small equations that read no input, `merge_equal`
keeps one of equal equations, `drop_dead` removes what no output needs. Loop hoisting and merged
reductions have modules of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Body, Equation, Literal, Var
from incrax._program import Program, all_read, read_vars, written_vars
from incrax.engine.program.constants import known_values
from incrax.engine.program.structure import equation_key, is_repeatable

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
    names: dict[Var, Atom] = {}
    for eqn in program.eqns:
        inlining.visit(reading(eqn, names), names)
    return Program(
        program.invars,
        (*program.constvars, *inlining.consts),
        (*program.consts, *inlining.consts.values()),
        tuple(inlining.eqns),
        resolved(program.outvars, names),
    )


class _Inlining:
    """One walk through equations: those that stay, and the constants of what was opened.

    Each body has names of its own, which say what its variables are in the program: an equation
    gets them once, however deep it lies, and one body may be opened twice.
    """

    def __init__(self, closed: frozenset[str], opens_solves: bool) -> None:
        self.eqns: list[Equation] = []
        self.consts: dict[Var, Any] = {}
        self._closed = closed
        self._opens_solves = opens_solves
        self._line = functools.cache(_jax.user_frame)

    def visit(self, eqn: Equation, names: dict[Var, Atom], *, is_inner: bool = False) -> None:
        """Add an equation, or those inside; `names` get what stands for its results: a new variable
        for each of an inner one.
        """
        answer = self._platform(eqn)
        if answer is not None:
            names[eqn.outvars[0]] = answer
            return
        called, inputs = self._called(eqn)
        if called is not None:
            results = self._opened(_jax.open_jaxpr(called), inputs, eqn.source_info)
            names.update(zip(eqn.outvars, results, strict=True))
            return
        if is_inner:
            names.update((var, _jax.new_var(var.aval)) for var in written_vars(eqn))
            eqn = eqn.replace(outvars=[names.get(var, var) for var in eqn.outvars])
        self.eqns.append(eqn)

    def _opened(self, body: Body, inputs: Sequence[Atom], caller: Any) -> tuple[Atom, ...]:
        """Add the equations of a body that is called at some place of the source: its results."""
        constvars = [_jax.new_var(var.aval) for var in body.constvars]
        self.consts.update(zip(constvars, body.consts, strict=True))
        variables = (*body.constvars, *body.invars)
        names: dict[Var, Atom] = dict(zip(variables, (*constvars, *inputs), strict=True))
        for eqn in body.eqns:
            source_info = eqn.source_info
            is_of_user = self._line(source_info.traceback) is not None
            new = eqn.replace(
                invars=list(resolved(eqn.invars, names)),
                source_info=source_info if is_of_user else caller,
            )
            self.visit(new, names, is_inner=True)
        return resolved(body.outvars, names)

    def _platform(self, eqn: Equation) -> Literal | None:
        """The answer to a question for the platform, where it is known."""
        if eqn.primitive.name != "platform_index" or self._closed:
            return None
        return branch_of(eqn, _jax.only_platform())

    def _called(self, eqn: Equation) -> tuple[Any, Sequence[Atom]]:
        """The jaxpr that stands for an equation (None: it stays), and its inputs."""
        name = eqn.primitive.name
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
    pairs = zip(body.outvars, () if outputs is None else outputs, strict=outputs is not None)
    given = [(atom, new) for atom, new in pairs if new and not isinstance(new, _jax.DropVar)]
    for atom, new in given:
        if isinstance(atom, Var):
            names.setdefault(atom, new)
    eqns = []
    for eqn in body.eqns:
        for var in written_vars(eqn):
            names.setdefault(var, _jax.new_var(var.aval))
        outvars = [names.get(var, var) for var in eqn.outvars]
        eqns.append(eqn.replace(invars=list(resolved(eqn.invars, names)), outvars=outvars))
    for atom, new in given:
        (found,) = resolved([atom], names)
        if found is not new:  # a literal, an input, or what another variable is given already
            eqns.append(_copy(found, new))
    return list(resolved(body.outvars, names)), tuple(eqns)


def _copy(atom: Atom, var: Var) -> Equation:
    """The equation that writes an atom to a variable."""
    like = jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)
    (copy,) = _jax.trace_body(lambda x: jnp.array(x, copy=True), like).eqns
    return copy.replace(invars=[atom], outvars=[var])


def resolved(atoms: Iterable[Atom], names: Mapping[Var, Atom]) -> tuple[Atom, ...]:
    """What stands for atoms, by names that some variables have."""
    return tuple([a if isinstance(a, Literal) else names.get(a, a) for a in atoms])


def reading(eqn: Equation, names: Mapping[Var, Atom]) -> Equation:
    """The equation with what stands for its inputs; itself where each stands for itself."""
    if not names or names.keys().isdisjoint(read_vars(eqn)):
        return eqn
    return eqn.replace(invars=list(resolved(eqn.invars, names)))


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
    constants; `drop_dead` removes those that nothing reads.
    """
    known = {var: value for var, value in known_values(program).items() if _is_foldable(var, value)}
    if not known:
        return program
    literals = {
        var: _jax.literal(value, var.aval) for var, value in known.items() if not var.aval.shape
    }
    kept = [
        reading(eqn, literals)
        for eqn in program.eqns
        if eqn.effects or known.keys().isdisjoint(eqn.outvars)
    ]
    given = set(program.constvars)
    folded = [var for var in known if var.aval.shape and var not in given]
    constvars = (*program.constvars, *folded)
    consts = (*program.consts, *(np.asarray(known[var], var.aval.dtype) for var in folded))
    outvars = resolved(program.outvars, literals)
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
    names: dict[Var, Atom] = {}
    seen = _Equations()
    eqns = []
    for eqn in program.eqns:
        eqn = reading(eqn, names)
        same = seen.earlier(eqn)
        if same is None:
            eqns.append(eqn)
        else:
            names.update(zip(eqn.outvars, same.outvars, strict=True))
    return program.with_eqns(eqns, resolved(program.outvars, names))


class _Equations:
    """Equations by what they compute.

    Few read what an earlier one of their primitive reads, and those alone get a key: to make it
    takes longer than all else here.
    """

    def __init__(self) -> None:
        self._alone: dict[Hashable, Equation | None] = {}  # None: it has a key, with others
        self._by_key: dict[Hashable, Equation] = {}

    def earlier(self, eqn: Equation) -> Equation | None:
        """One that came before and gives the same results; it is remembered where there is none, and
        all of its results have names.
        """
        if not is_repeatable(eqn):
            return None
        rough_key = eqn.primitive, *read_vars(eqn)
        is_named = _jax.DropVar not in map(type, eqn.outvars)
        if rough_key not in self._alone:
            if is_named:
                self._alone[rough_key] = eqn
            return None
        alone = self._alone[rough_key]
        if alone is not None:
            self._by_key[equation_key(alone)] = alone
            self._alone[rough_key] = None
        key = equation_key(eqn)
        found = self._by_key.get(key)
        if found is None and is_named:
            self._by_key[key] = eqn
        return found


# --- dead code ------------------------------------------------------------------------------------


def drop_dead(program: Program) -> Program:
    """Remove equations that no output and no effect needs, and constants that no equation reads."""
    kept, read = _needed(program.eqns, program.outvars, has_effects=True)
    pairs = zip(program.constvars, program.consts, strict=True)
    consts = {var: const for var, const in pairs if var in read}
    return replace(
        program, constvars=tuple(consts), consts=tuple(consts.values()), eqns=tuple(kept)
    )


def needed_equations(
    eqns: Iterable[Equation], outvars: Iterable[Atom], *, has_effects: bool = True
) -> list[Equation]:
    """The equations that the outputs, or an effect if it is to happen, need, in program order."""
    return _needed(eqns, outvars, has_effects=has_effects)[0]


def _needed(
    eqns: Iterable[Equation], outvars: Iterable[Atom], *, has_effects: bool
) -> tuple[list[Equation], set[Var]]:
    """The same, and the variables that they read or that are outputs."""
    read = all_read((), outvars)
    kept: list[Equation] = []
    for eqn in reversed(list(eqns)):
        if (has_effects and eqn.effects) or not read.isdisjoint(eqn.outvars):
            read.update(read_vars(eqn))
            kept.append(eqn)
    return kept[::-1], read
