"""A pass in two: what its output needs now, and what only its log-determinant needs, later.

In: a function that returns an output and a log-determinant. Out: equations for the first, the values that they hand
over, and equations for the second, which run nothing again: a conditioner runs once. A scan is split into two. The
values are those that the output needs anyway, so that keeping them costs memory only; no prices are weighed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax.facts.program import Program, from_jaxpr, read_vars, trace, written_vars
from incrax.facts.simplify import drop_dead, inline_jits, needed_equations


class _Split(NamedTuple):
    now: list[Equation]
    handed: list[Var]
    later: list[Equation]


def _split(eqns: Sequence[Equation], first: Sequence[Atom], second: Sequence[Atom], given: Sequence[Var]) -> _Split:
    """What `first` needs, what only `second` needs, and what the former hands over, of `given` too."""
    now = needed_equations(eqns, first)
    is_now = set(map(id, now))
    later = [eqn for eqn in needed_equations(eqns, second) if id(eqn) not in is_now]
    read = _read(later, second)
    made = [var for eqn in now for var in written_vars(eqn)]
    return _Split(now, [var for var in (*given, *made) if var in read], later)


def _read(eqns: Sequence[Equation], outputs: Sequence[Atom]) -> set[Var]:
    """What equations read, and outputs are."""
    found = {atom for atom in outputs if isinstance(atom, Var)}
    return found.union(*map(read_vars, eqns))


def _evaluated(
    eqns: Sequence[Equation], outputs: Sequence[Atom], variables: Sequence[Var], values: Sequence[Any]
) -> list[Any]:
    env = dict(zip(variables, values, strict=True))
    _jax.evaluate(eqns, env)
    return [_jax.read(atom, env) for atom in outputs]


class Halves:
    """A function `operands -> (output, log-determinant)`, traced, to be evaluated as a whole or in two."""

    def __init__(self, fun: Callable[..., tuple[Any, Any]], operands: Sequence[Any]) -> None:
        self._operands = operands
        self._program = drop_dead(inline_jits(trace(fun, *operands)))

    def whole(self) -> list[Any]:
        """Output and log-determinant."""
        return self._evaluated(self._program, self._program.eqns, self._program.outvars)

    def output(self) -> tuple[Any, list[Any]]:
        """The output, and what the log-determinant needs of what it was computed from."""
        program, split = self._in_two()
        output, *kept = self._evaluated(program, split.now, (*program.outvars[:1], *split.handed))
        return output, kept

    def ladj(self, kept: Sequence[Any] | None) -> Any:
        """The log-determinant, from what the output was computed from if that is there."""
        if kept is None:
            outputs = self._program.outvars[1:]
            return self._evaluated(self._program, needed_equations(self._program.eqns, outputs), outputs)[0]
        program, split = self._in_two()
        return self._evaluated(program, split.later, program.outvars[1:], split.handed, kept)[0]

    def _evaluated(
        self, program: Program, eqns: Sequence[Equation], outputs: Sequence[Atom], known: Any = (), values: Any = ()
    ) -> list[Any]:
        variables = (*program.constvars, *program.invars, *known)
        return _evaluated(eqns, outputs, variables, (*program.consts, *self._operands, *values))

    def _in_two(self) -> tuple[Program, _Split]:
        program = _with_scans_in_two(self._program, self._operands)
        return program, _split(program.eqns, program.outvars[:1], program.outvars[1:], ())


# --- scans ------------------------------------------------------------------------------------------------------------


def _with_scans_in_two(program: Program, operands: Sequence[Any]) -> Program:
    """The same with two scans for each one that makes the output and other things."""
    now = needed_equations(program.eqns, program.outvars[:1])
    wanted = _read(now, program.outvars[:1])
    scans = {id(eqn): _scan_in_two(eqn, wanted) for eqn in now if eqn.primitive.name == "scan"}
    if not any(scans.values()):
        return program

    def run(*operands: Any) -> list[Any]:
        env = dict(zip((*program.constvars, *program.invars), (*program.consts, *operands), strict=True))
        for eqn in program.eqns:
            apply = scans.get(id(eqn)) or functools.partial(_jax.apply, eqn)
            results = apply([_jax.read(atom, env) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [_jax.read(atom, env) for atom in program.outvars]

    return drop_dead(trace(run, *operands))


def _scan_in_two(eqn: Equation, wanted: set[Var]) -> Callable[[Sequence[Any]], list[Any]] | None:
    """A scan as one for the outputs that are wanted, and one for the others, which reads what each turn handed over.

    None if all outputs are wanted. A scan inside the body is not split: it is of the first if that needs an output.
    """
    num_consts, num_carry = _jax.scan_counts(eqn)
    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    body = inline_jits(from_jaxpr(eqn.params["jaxpr"]))
    carried, xs = body.invars[num_consts:][:num_carry], body.invars[num_consts + num_carry :]
    is_first = _needed_outputs(body, carried, [var in wanted for var in eqn.outvars])
    if all(is_first):
        return None
    chosen = {half: [k for k, flag in enumerate(is_first) if flag == half] for half in (True, False)}
    outputs = {half: [body.outvars[k] for k in numbers] for half, numbers in chosen.items()}
    own = {half: [k for k in numbers if k < num_carry] for half, numbers in chosen.items()}
    split = _split(body.eqns, outputs[True], outputs[False], [carried[k] for k in own[True]])

    def scanned(half: bool, values: Sequence[Any], stacks: Sequence[Any]) -> list[Any]:
        eqns, given, handed = (split.now, [], split.handed) if half else (split.later, split.handed, [])
        wanted = (*outputs[half], *handed)
        read = _read(eqns, wanted)
        x_numbers = [k for k, var in enumerate(xs) if var in read]
        moving = (*(carried[k] for k in own[half]), *(xs[k] for k in x_numbers), *given)
        variables = (*body.constvars, *body.invars[:num_consts], *moving)

        def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            found = _evaluated(eqns, wanted, variables, (*body.consts, *values[:num_consts], *carry, *xs))
            return found[: len(carry)], found[len(carry) :]

        start = [values[num_consts + k] for k in own[half]]
        rows = [values[num_consts + num_carry + k] for k in x_numbers]
        end, ys = jax.lax.scan(turn, start, [*rows, *stacks], **options)
        return [*end, *ys]

    def run(values: Sequence[Any]) -> list[Any]:
        first = scanned(True, values, ())
        num = len(outputs[True])
        results = {True: iter(first), False: iter(scanned(False, values, first[num:]))}
        return [next(results[half]) for half in is_first]

    return run


def _needed_outputs(body: Program, carried: Sequence[Var], is_wanted: list[bool]) -> list[bool]:
    """The outputs that are wanted, with all carried values that these need in a later turn."""
    outputs = [atom for atom, flag in zip(body.outvars, is_wanted, strict=True) if flag]
    read = _read(needed_equations(body.eqns, outputs), outputs)
    found = [var in read or flag for var, flag in zip(carried, is_wanted, strict=False)]
    found += is_wanted[len(carried) :]
    return found if found == is_wanted else _needed_outputs(body, carried, found)
