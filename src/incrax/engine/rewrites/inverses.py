"""Passes through bijections that undo each other: the inverse of an output is its input.

In: a `Program` with markers (`engine.program.passes`). Out: the same without the passes that are
not needed. Values count as the same by value number only: equal equations of equal inputs have one
number, so that parameters which are computed twice from the same inputs are the same, and
everything else (arithmetic, stop_gradient, other parameters, another context) stands between. It is
for programs before differentiation and vmap: both take the markers out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Body, Equation, Literal, Var
from incrax._program import Program, from_jaxpr, trace, type_of
from incrax.engine.program.constants import known_values, value_of
from incrax.engine.program.passes import LADJ, OUTPUT, Claim, claim_of, has_claim
from incrax.engine.program.simplify import drop_dead, inline_jits, reading, renaming
from incrax.engine.program.structure import equation_key, literal_key
from incrax.primitives.indexing import gathered_numbers

MAX_PERMUTED = 1 << 16
"""Elements of an array above which permutations are not compared."""

_OTHER = {"forward": "inverse", "inverse": "forward"}
_WITH_BODIES = frozenset(
    {"scan", "while", "cond", "checkpoint", "remat", "remat2", "jit", "pjit"}
    | {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)


def cancel_inverses(program: Program) -> Program:
    """Leave out inverses of outputs and log-determinants that are known; the very program where
    nothing is marked.
    """
    return cancel_all(program) if has_claim(program.eqns) else program


def cancel_all(program: Program) -> Program:
    """The same, and permutations after their inverses, marked or not; bodies of loops and branches
    by themselves.
    """
    opened = inline_jits(program)
    rewriting = _Rewriting(opened)
    for eqn in opened.eqns:
        rewriting.visit(eqn)
    return drop_dead(rewriting.program(opened))


class _Made(NamedTuple):
    """What a pass made: where its output is from, and its log-determinant where it has one."""

    claim: Claim
    output: Atom
    ladj: Atom | None


class _Order(NamedTuple):
    """Where the elements of a permuted array are from."""

    source: Atom
    numbers: np.ndarray


class _Rewriting:
    """One walk through equations, those without calls."""

    def __init__(self, program: Program) -> None:
        self.eqns: list[Equation] = []
        self.constants: dict[Var, Any] = {}
        self._known = known_values(program)
        self._names: dict[Var, Atom] = {}
        self._resolve = renaming(self._names)
        self._numbers: dict[Var, Hashable] = {}
        self._seen: dict[Hashable, int] = {}
        self._made: dict[Hashable, _Made] = {}
        self._ladjs: dict[Hashable, _Made] = {}
        self._orders: dict[Hashable, _Order] = {}

    def program(self, opened: Program) -> Program:
        """What was visited, with the inputs and outputs of the program that it was."""
        return replace(
            opened,
            constvars=(*opened.constvars, *self.constants),
            consts=(*opened.consts, *self.constants.values()),
            eqns=tuple(self.eqns),
            outvars=tuple(map(self._resolve, opened.outvars)),
        )

    def visit(self, eqn: Equation) -> None:
        """Add an equation, or what stands for its results."""
        eqn = reading(eqn, self._resolve)
        claim = claim_of(eqn)
        if claim is not None:
            self._visit_pass(eqn, claim)
        elif not (eqn.primitive.name == "gather" and self._visit_permutation(eqn)):
            eqn = (
                _jax.with_bodies(eqn, _body_without_inverses)
                if eqn.primitive.name in _WITH_BODIES
                else eqn
            )
            self._add(eqn)

    def _number(self, atom: Atom) -> Hashable:
        return literal_key(atom) if isinstance(atom, Literal) else self._numbers.get(atom, atom)

    def _all(self, atoms: Sequence[Atom]) -> Hashable:
        return tuple(map(self._number, atoms))

    def _add(self, eqn: Equation, key: Hashable | None = None) -> None:
        self.eqns.append(eqn)
        key = key or equation_key(eqn, self._number)
        if key is not None:
            number = self._seen.setdefault(key, len(self._seen))
            self._numbers.update({var: ("result", number, k) for k, var in enumerate(eqn.outvars)})

    # --- passes -----------------------------------------------------------------------------------

    def _visit_pass(self, eqn: Equation, claim: Claim) -> None:
        base = claim.key.number, self._all(claim.arrays), self._all(claim.context)
        value = self._number(claim.value)
        self._add(eqn, ("pass", base, claim.direction, value, eqn.params["kinds"]))
        if claim.direction == LADJ:
            made = self._ladjs.get((base, value, self._number(claim.output[0])))
            if made is not None and made.ladj is not None:
                is_forward = made.claim.direction == "forward"
                self._replace(
                    claim.results[LADJ], made.ladj if is_forward else self._negated(made.ladj)
                )
            return
        made = self._made.get((base, _OTHER[claim.direction], value))
        if made is not None:
            self._undo(claim, made)
        if OUTPUT in claim.results:
            self._note(base, claim)

    def _note(self, base: Hashable, claim: Claim) -> None:
        output = self._resolve(claim.results[OUTPUT])
        made = _Made(
            claim, output, self._resolve(claim.results[LADJ]) if LADJ in claim.results else None
        )
        ends = self._number(claim.value), self._number(output)
        self._made.setdefault((base, claim.direction, ends[1]), made)
        if made.ladj is not None:
            x, y = ends if claim.direction == "forward" else ends[::-1]
            self._ladjs.setdefault((base, x, y), made)

    def _undo(self, claim: Claim, made: _Made) -> None:
        """Results of a pass of an output of the other direction."""
        if OUTPUT in claim.results and not self._replace(claim.results[OUTPUT], made.claim.value):
            return
        if LADJ in claim.results:
            ladj = self._computed(made) if made.ladj is None else self._negated(made.ladj)
            if ladj is not None:
                self._replace(claim.results[LADJ], ladj)

    def _replace(self, var: Var, atom: Atom) -> bool:
        """Take an atom for a variable, if it has the very same type."""
        if var.aval != atom.aval:
            return False
        self._names[var] = atom
        return True

    def _negated(self, atom: Atom) -> Atom:
        return self._added(jax.lax.neg, [atom])

    def _computed(self, made: _Made) -> Atom | None:
        """The log-determinant of the pass that undoes one, from both ends of it."""
        claim = made.claim
        is_forward = made.claim.direction == "forward"
        x, y = (claim.value, made.output) if is_forward else (made.output, claim.value)
        num = len(claim.arrays)

        def ladj(*atoms: Any) -> Any:
            found = claim.key.ladj(
                tuple(atoms[:num]), *atoms[num : num + 2], *(atoms[num + 2 :] or (None,))
            )
            return -found if is_forward else found

        try:
            return self._added(ladj, [*claim.arrays, x, y, *claim.context])
        except Exception:  # of a library that has no such function
            return None

    def _added(self, fun: Callable[..., Any], atoms: Sequence[Atom]) -> Atom:
        """The one result of a function of some values, its equations added here."""
        body = inline_jits(trace(fun, *map(type_of, atoms)))
        self._names.update(zip(body.invars, map(self._resolve, atoms), strict=True))
        self.constants.update(zip(body.constvars, body.consts, strict=True))
        for eqn in body.eqns:
            self.visit(eqn)
        return self._resolve(body.outvars[0])

    # --- permutations -----------------------------------------------------------------------------

    def _visit_permutation(self, eqn: Equation) -> bool:
        """Add a gather that permutes, unless it undoes another one: its result is then the operand of
        that one. False for any other.
        """
        operand = eqn.invars[0]
        out = eqn.outvars[0]
        numbers = self._permutation(eqn)
        if numbers is None:
            return False
        before = self._orders.get(self._number(operand))
        if before is not None:
            composed = before.numbers.reshape(-1)[numbers].reshape(-1)
            is_back = np.array_equal(composed, np.arange(composed.size))
            if is_back and self._replace(out, before.source):
                return True
        self._add(eqn)
        self._orders[self._number(out)] = _Order(operand, numbers)
        return True

    def _permutation(self, eqn: Equation) -> np.ndarray | None:
        """Which element each output of a gather reads, if every one is read once."""
        operand, index = eqn.invars
        indices = value_of(index, self._known)
        size = _jax.aval_size(operand.aval)
        if indices is None or size > MAX_PERMUTED or size != _jax.aval_size(eqn.outvars[0].aval):
            return None
        numbers = gathered_numbers(eqn, indices)
        is_permutation = np.array_equal(np.sort(numbers, axis=None), np.arange(size))
        return numbers if is_permutation else None


def _body_without_inverses(body: Body) -> Body:
    """The body of a loop, a branch or a rule, by itself; the very body where nothing is there to be
    left out.
    """
    has_gather = any(eqn.primitive.name == "gather" for eqn in _jax.with_inner(body.eqns))
    if not (has_gather or has_claim(body.eqns)):
        return body
    program = cancel_all(from_jaxpr(body))
    if not set(program.constvars) <= set(body.constvars):
        return body  # it cannot hold more constants than it did
    return body._replace(eqns=program.eqns, outvars=program.outvars)
