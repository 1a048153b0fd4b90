"""A function of two results in two: what the first needs now, and what only the second needs,
later.

In: a function that returns two values, as a pass through a bijection and its log-determinant. Out:
equations for the first, the values that they hand over, and equations for the second, which run
nothing again: a conditioner runs once. The values are those that the first needs anyway, so that
keeping them costs memory only; no prices are weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from incrax._jax import Atom, Equation, Var
from incrax._program import Values, all_read, evaluated, trace, writes_of
from incrax.engine.program.simplify import drop_dead, inline_jits, needed_equations


class InTwo:
    """A function `operands -> (first, second)`, traced, to be evaluated one after the other."""

    def __init__(self, fun: Callable[..., tuple[Any, Any]], operands: Values) -> None:
        program = drop_dead(inline_jits(trace(fun, *operands)))
        self._variables: tuple[Var, ...] = (*program.constvars, *program.invars)
        self._values = (*program.consts, *operands)
        self._first, self._second = program.outvars
        self._now = needed_equations(program.eqns, [self._first])
        is_now = set(map(id, self._now))
        needed = needed_equations(program.eqns, [self._second])
        self._later = [eqn for eqn in needed if id(eqn) not in is_now]
        read = all_read(self._later, [self._second])
        self._handed = [var for var in writes_of(self._now) if var in read]

    def first(self) -> tuple[Any, list[Any]]:
        """The first result, and what the second needs of what it was computed from."""
        result, *kept = self._evaluated(self._now, [self._first, *self._handed])
        return result, kept

    def second(self, kept: Values | None) -> Any:
        """The second result, from what the first was computed from if that is there."""
        given = self.first()[1] if kept is None else kept
        (result,) = self._evaluated(self._later, [self._second], self._handed, given)
        return result

    def _evaluated(
        self,
        eqns: Sequence[Equation],
        outputs: Sequence[Atom],
        variables: Sequence[Var] = (),
        values: Values = (),
    ) -> list[Any]:
        """Outputs of equations that read the operands and these variables."""
        names = (*self._variables, *variables)
        return evaluated(eqns, outputs, dict(zip(names, (*self._values, *values), strict=True)))
