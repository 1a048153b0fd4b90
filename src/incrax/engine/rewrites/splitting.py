"""A function of two results in two: what the first needs now, and what only the second needs,
later.

In: a function that returns two values, as a pass through a bijection and its log-determinant. Out:
equations for the first, the values that they hand over, and equations for the second, which run
nothing again: a conditioner runs once. A scan is split into two. The values are those that the
first needs anyway, so that keeping them costs memory only; no prices are weighed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._program import (
    Program,
    all_read,
    evaluated,
    from_jaxpr,
    trace,
    writes_of,
)
from incrax.engine.program.simplify import drop_dead, inline_jits, needed_equations

Values = Sequence[Any]
Equations = Sequence[Equation]
Atoms = Sequence[Atom]


class _Division(NamedTuple):
    now: list[Equation]
    handed: list[Var]
    later: list[Equation]


def _split(eqns: Equations, first: Atoms, second: Atoms, given: Sequence[Var]) -> _Division:
    """What `first` needs, what only `second` needs, and what the former hands over, of `given`
    too.
    """
    now = needed_equations(eqns, first)
    is_now = set(map(id, now))
    later = [eqn for eqn in needed_equations(eqns, second) if id(eqn) not in is_now]
    read = all_read(later, second)
    made = writes_of(now)
    return _Division(now, [var for var in (*given, *made) if var in read], later)


def _evaluated(eqns: Equations, outputs: Atoms, variables: Values, values: Values) -> list[Any]:
    return evaluated(eqns, outputs, dict(zip(variables, values, strict=True)))


def _variables(program: Program) -> tuple[Var, ...]:
    return *program.constvars, *program.invars


class InTwo:
    """A function `operands -> (first, second)`, traced, to be evaluated one after the other."""

    def __init__(self, fun: Callable[..., tuple[Any, Any]], operands: Values) -> None:
        program = drop_dead(inline_jits(trace(fun, *operands)))
        self._program = _with_scans_in_two(program, operands)
        self._values = (*self._program.consts, *operands)
        self._first, self._second = self._program.outvars
        self._split = _split(self._program.eqns, [self._first], [self._second], ())

    def first(self) -> tuple[Any, list[Any]]:
        """The first result, and what the second needs of what it was computed from."""
        outputs = (self._first, *self._split.handed)
        result, *kept = _evaluated(
            self._split.now, outputs, _variables(self._program), self._values
        )
        return result, kept

    def second(self, kept: Values | None) -> Any:
        """The second result, from what the first was computed from if that is there."""
        values = (*self._values, *(self.first()[1] if kept is None else kept))
        variables = (*_variables(self._program), *self._split.handed)
        return _evaluated(self._split.later, [self._second], variables, values)[0]


# --- scans ----------------------------------------------------------------------------------------


def _with_scans_in_two(program: Program, operands: Values) -> Program:
    """The same with two scans for each one that makes the first result and other things."""
    now = needed_equations(program.eqns, program.outvars[:1])
    wanted = all_read(now, program.outvars[:1])
    scans = {id(eqn): _scan_in_two(eqn, wanted) for eqn in now if eqn.primitive.name == "scan"}
    if not any(scans.values()):
        return program

    def run(*operands: Any) -> list[Any]:
        env = dict(zip(_variables(program), (*program.consts, *operands), strict=True))
        for eqn in program.eqns:
            apply = scans.get(id(eqn)) or functools.partial(_jax.apply, eqn)
            results = apply([_jax.read(atom, env) for atom in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [_jax.read(atom, env) for atom in program.outvars]

    return drop_dead(trace(run, *operands))


def _scan_in_two(eqn: Equation, wanted: set[Var]) -> Callable[[Values], list[Any]] | None:
    """A scan as one for the outputs that are wanted, and one for the others, which reads what each
    turn handed over.

    None if all outputs are wanted. A scan inside the body is not split: it is of the first if that
    needs an output.
    """
    scan = _jax.scan_of(eqn)
    body = inline_jits(from_jaxpr(eqn.params["jaxpr"]))
    fixed, carried, rows = scan.split(body.invars)
    is_first = _needed_outputs(body, carried, [var in wanted for var in eqn.outvars])
    if all(is_first):
        return None
    first = [k for k, flag in enumerate(is_first) if flag]
    second = [k for k, flag in enumerate(is_first) if not flag]
    outputs = [body.outvars[k] for k in first]
    others = [body.outvars[k] for k in second]
    split = _split(body.eqns, outputs, others, [carried[k] for k in first if k < len(carried)])

    def turns(
        eqns: Equations, numbers: Sequence[int], returned: Atoms, taken: Atoms, values: Values
    ) -> list[Any]:
        """What the outputs of these numbers, and `returned` beside them, are after all turns of
        some equations; `values` are the operands of the scan and, row by row, those of `taken`.
        """
        consts, start, xs = scan.split(values)
        own = [k for k in numbers if k < len(carried)]
        variables = (*body.constvars, *fixed, *(carried[k] for k in own), *rows, *taken)
        atoms = (*(body.outvars[k] for k in numbers), *returned)

        def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            found = _evaluated(eqns, atoms, variables, (*body.consts, *consts, *carry, *xs))
            return found[: len(own)], found[len(own) :]

        return scan.run(turn, [start[k] for k in own], xs)

    def run(values: Values) -> list[Any]:
        now = turns(split.now, first, split.handed, (), values)
        handed = now[len(first) :]
        later = iter(turns(split.later, second, (), split.handed, (*values, *handed)))
        return [next(later) if k in second else now[first.index(k)] for k in range(len(is_first))]

    return run


def _needed_outputs(body: Program, carried: Sequence[Var], is_wanted: list[bool]) -> list[bool]:
    """The outputs that are wanted, with all carried values that these need in a later turn."""
    outputs = [atom for atom, flag in zip(body.outvars, is_wanted, strict=True) if flag]
    read = all_read(needed_equations(body.eqns, outputs), outputs)
    found = [var in read or flag for var, flag in zip(carried, is_wanted, strict=False)]
    found += is_wanted[len(carried) :]
    return found if found == is_wanted else _needed_outputs(body, carried, found)
