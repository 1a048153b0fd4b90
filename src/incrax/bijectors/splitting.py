"""A pass in two: what its output needs now, and what only its log-determinant needs, later.

In: a function that returns an output and a log-determinant. Out: equations for the first, the values that they hand
over, and equations for the second, which run nothing again: a conditioner runs once. A scan is split into two. The
values are those that the output needs anyway, so that keeping them costs memory only; no prices are weighed.
"""

from __future__ import annotations

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


def _environment(program: Program, operands: Sequence[Any]) -> dict[Var, Any]:
    variables, values = (*program.constvars, *program.invars), (*program.consts, *operands)
    return dict(zip(variables, values, strict=True))


class Halves:
    """A function `operands -> (output, log-determinant)`, traced, to be evaluated as a whole or in two."""

    def __init__(self, fun: Callable[..., tuple[Any, Any]], operands: Sequence[Any]) -> None:
        self._operands = operands
        self._program = drop_dead(inline_jits(trace(fun, *operands)))

    def whole(self) -> list[Any]:
        """Output and log-determinant."""
        return self._evaluated(self._program, self._program.eqns, {})

    def output(self) -> tuple[Any, list[Any]]:
        """The output, and what the log-determinant needs of what it was computed from."""
        program, split = self._in_two()
        env = _environment(program, self._operands)
        _jax.evaluate(split.now, env)
        return _jax.read(program.outvars[0], env), [env[var] for var in split.handed]

    def ladj(self, kept: Sequence[Any] | None) -> Any:
        """The log-determinant, from what the output was computed from if that is there."""
        if kept is None:
            only = self._program.with_eqns(self._program.eqns, self._program.outvars[1:])
            return self._evaluated(only, needed_equations(only.eqns, only.outvars), {})[0]
        program, split = self._in_two()
        only = program.with_eqns(split.later, program.outvars[1:])
        return self._evaluated(only, split.later, dict(zip(split.handed, kept, strict=True)))[0]

    def _evaluated(self, program: Program, eqns: Sequence[Equation], known: dict[Var, Any]) -> list[Any]:
        env = {**_environment(program, self._operands), **known}
        _jax.evaluate(eqns, env)
        return [_jax.read(atom, env) for atom in program.outvars]

    def _in_two(self) -> tuple[Program, _Split]:
        program = _with_scans_in_two(self._program, self._operands)
        return program, _split(program.eqns, program.outvars[:1], program.outvars[1:], ())


# --- scans ------------------------------------------------------------------------------------------------------------


def _with_scans_in_two(program: Program, operands: Sequence[Any]) -> Program:
    """The same with two scans for each one that makes the output and other things."""
    now = needed_equations(program.eqns, program.outvars[:1])
    wanted = _read(now, program.outvars[:1])
    scans = {id(eqn): _ScanInTwo(eqn, wanted) for eqn in now if eqn.primitive.name == "scan"}
    if not any(scan.is_split for scan in scans.values()):
        return program

    def run(*operands: Any) -> list[Any]:
        env = _environment(program, operands)
        for eqn in program.eqns:
            values = [_jax.read(atom, env) for atom in eqn.invars]
            scan = scans.get(id(eqn))
            is_split = scan is not None and scan.is_split
            env.update(zip(eqn.outvars, scan(*values) if is_split else _jax.apply(eqn, values), strict=True))
        return [_jax.read(atom, env) for atom in program.outvars]

    return drop_dead(trace(run, *operands))


class _ScanInTwo:
    """A scan as one for the outputs that are wanted, and one for the others, which reads what each turn handed over.

    A scan inside the body is not split: it is of the first if that needs one of its outputs.
    """

    def __init__(self, eqn: Equation, wanted: set[Var]) -> None:
        self._num_consts, self._num_carry = _jax.scan_counts(eqn)
        self._options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
        self._body = inline_jits(from_jaxpr(eqn.params["jaxpr"]))
        self._carry = self._body.invars[self._num_consts :][: self._num_carry]
        self._is_first = self._closed([var in wanted for var in eqn.outvars])
        carry = [var for var, is_first in zip(self._carry, self._is_first, strict=False) if is_first]
        self._split = _split(self._body.eqns, self._outputs(True), self._outputs(False), carry)
        self.is_split = not all(self._is_first)

    def _outputs(self, is_first: bool) -> list[Atom]:
        return [atom for atom, flag in zip(self._body.outvars, self._is_first, strict=True) if flag == is_first]

    def _closed(self, is_first: list[bool]) -> list[bool]:
        """The outputs that are wanted, with all carried values that these need in a later turn."""
        outputs = [atom for atom, flag in zip(self._body.outvars, is_first, strict=True) if flag]
        read = _read(needed_equations(self._body.eqns, outputs), outputs)
        carried = [var in read for var in self._carry]
        carried += [False] * (len(is_first) - len(carried))
        found = [flag or is_read for flag, is_read in zip(is_first, carried, strict=True)]
        return found if found == is_first else self._closed(found)

    def __call__(self, *values: Any) -> list[Any]:
        """All outputs of the scan."""
        consts, carry, xs = (
            values[: self._num_consts],
            values[self._num_consts :][: self._num_carry],
            values[self._num_consts + self._num_carry :],
        )
        split = self._split
        first, handed = self._half(True, split.now, consts, carry, xs, [], split.handed)
        second, _ = self._half(False, split.later, consts, carry, (*xs, *handed), split.handed, [])
        results = {True: iter(first), False: iter(second)}
        return [next(results[flag]) for flag in self._is_first]

    def _half(
        self, is_first: bool, eqns: list[Equation], consts: Any, carry: Any, xs: Any, given: list[Var], handed: list[Var]
    ) -> tuple[list[Any], list[Any]]:
        """The outputs of one half, and what each turn hands over."""
        body, mine = self._body, [flag == is_first for flag in self._is_first[: self._num_carry]]
        carry_vars = [var for var, flag in zip(self._carry, mine, strict=True) if flag]
        x_vars = (*body.invars[self._num_consts + self._num_carry :], *given)
        outer = dict(zip((*body.constvars, *body.invars[: self._num_consts]), (*body.consts, *consts), strict=True))

        def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            env = {**outer, **dict(zip((*carry_vars, *x_vars), (*carry, *xs), strict=True))}
            _jax.evaluate(eqns, env)
            outputs = [_jax.read(atom, env) for atom in self._outputs(is_first)]
            return outputs[: len(carry)], [*outputs[len(carry) :], *(env[var] for var in handed)]

        start = [value for value, flag in zip(carry, mine, strict=True) if flag]
        end, ys = jax.lax.scan(turn, start, list(xs), **self._options)
        num = len(ys) - len(handed)
        return [*end, *ys[:num]], ys[num:]
