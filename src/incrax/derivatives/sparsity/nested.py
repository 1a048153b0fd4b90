"""Rules for equations that hold jaxprs: calls, branches, loops, and linear solves.

Loops of few iterations are walked one by one, so that an index that counts them is known; of others, a pattern that
holds for every iteration is sought by repeating the body until nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax._program import Program, from_jaxpr
from incrax.derivatives.sparsity.known import Constant, Known, constant, constant_of, value_of
from incrax.derivatives.sparsity.moves import Operands, all_to_all
from incrax.derivatives.sparsity.patterns import Pattern, everywhere, grouped, stacked, take, union
from incrax.engine.program.simplify import inline

Constants: TypeAlias = Sequence[Constant | None]
Walk: TypeAlias = Callable[[Program, Operands, Constants], tuple[list[Pattern], list[Constant | None]]]

MAX_UNROLLED = 10_000
"""Equations of a loop's body times its iterations above which they are no longer walked one by one."""

MAX_REPEATS = 8
"""Walks of a body before what it carries is taken to depend on everything."""


def _constants(eqn: Equation, known: Known) -> list[Constant | None]:
    return [constant_of(atom, known) for atom in eqn.invars]


def _open(jaxpr: Any) -> Program:
    return inline(from_jaxpr(jaxpr))


def _call(eqn: Equation, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    return walk(_open(eqn.params["jaxpr"]), operands, _constants(eqn, known))[0]


def _cond(eqn: Equation, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    if operands[0] is not None:
        return all_to_all(eqn, operands)
    constants = _constants(eqn, known)[1:]
    found = [walk(_open(branch), operands[1:], constants)[0] for branch in eqn.params["branches"]]
    return [union(patterns) for patterns in zip(*found, strict=True)]


def _solve(eqn: Equation, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    """What its own `solve` makes of the right-hand side and the constants of that."""
    counts = eqn.params["const_lengths"]
    first = counts.matvec + counts.vecmat
    chosen = [*range(first, first + counts.solve), *range(sum(counts), len(operands))]
    constants = _constants(eqn, known)
    return walk(_open(eqn.params["jaxprs"].solve), [operands[k] for k in chosen], [constants[k] for k in chosen])[0]


# --- scan -------------------------------------------------------------------------------------------------------------


def _scan(eqn: Equation, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    body = _open(eqn.params["jaxpr"])
    is_short = eqn.params["length"] * len(body.eqns) <= MAX_UNROLLED
    return (_unrolled if is_short else _repeated)(eqn, body, operands, known, walk)


def learn_counters(eqn: Equation, known: Known, walk: Walk) -> None:
    """Add what a scan that no tangent enters counts, as the indices that a pushforward or a pullback reads again."""
    is_scan = eqn.primitive.name == "scan" and not eqn.effects
    if is_scan and any(np.issubdtype(var.aval.dtype, np.integer) for var in eqn.outvars):
        _scan(eqn, [None] * len(eqn.invars), known, walk)


def _unrolled(eqn: Equation, body: Program, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    """Iteration by iteration; adds the outputs that are constants."""
    num_consts, num_carry = _jax.scan_counts(eqn)
    first = num_consts + num_carry
    patterns, constants = list(operands[:first]), _constants(eqn, known)[:first]
    xs, known_xs = operands[first:], [value_of(atom, known) for atom in eqn.invars[first:]]
    sizes = [_jax.aval_size(var.aval) for var in body.invars[first:]]
    rows: list[list[Pattern]] = []
    values: list[list[Constant | None]] = []
    for i in _iterations(eqn):
        slices = [_rows(x, i, size) for x, size in zip(xs, sizes, strict=True)]
        known_slices = [None if x is None else constant(x[i]) for x in known_xs]
        outputs, learnt = walk(body, [*patterns, *slices], [*constants, *known_slices])
        patterns[num_consts:], constants[num_consts:] = outputs[:num_carry], learnt[:num_carry]
        rows.append(outputs[num_carry:])
        values.append(learnt[num_carry:])
    step = -1 if eqn.params["reverse"] else 1
    found = [*constants[num_consts:], *(_stacked_constants(each[::step]) for each in zip(*values, strict=True))]
    known.update({var: each for var, each in zip(eqn.outvars, found, strict=False) if each is not None})
    out_sizes = [_jax.aval_size(atom.aval) for atom in body.outvars[num_carry:]]
    ys = [stacked((row[k], size) for row in rows[::step]) for k, size in enumerate(out_sizes)]
    return [*patterns[num_consts:], *ys]


def _iterations(eqn: Equation) -> range:
    numbers = range(eqn.params["length"])
    return numbers[::-1] if eqn.params["reverse"] else numbers


def _stacked_constants(each: Sequence[Constant | None]) -> Constant | None:
    found = [one for one in each if one is not None]
    if len(found) < len(each):
        return None
    return Constant(lambda: np.stack([np.asarray(one.value) for one in found]), max(one.depth for one in found) + 1)


def _rows(pattern: Pattern, number: int, size: int) -> Pattern:
    return take(pattern, np.arange(number * size, (number + 1) * size)) if pattern is not None else None


def _repeated(eqn: Equation, body: Program, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    """One pattern of each carry and of a row of each stacked output, for all iterations."""
    num_consts, num_carry = _jax.scan_counts(eqn)
    length, first = eqn.params["length"], num_consts + num_carry
    sizes = [_jax.aval_size(var.aval) for var in body.invars[first:]]
    rows = [
        None if x is None else grouped(x, np.tile(np.arange(size), length), size)
        for x, size in zip(operands[first:], sizes, strict=True)
    ]
    constants = _constants(eqn, known)[:num_consts] + [None] * (len(operands) - num_consts)

    def step(carry: Operands) -> list[Pattern]:
        return walk(body, [*operands[:num_consts], *carry, *rows], constants)[0]

    carry = _settled(lambda carry: step(carry)[:num_carry], operands, operands[num_consts:first], eqn.outvars)
    ys = zip(step(carry)[num_carry:], body.outvars[num_carry:], strict=True)
    return [*carry, *(take(y, np.tile(np.arange(_jax.aval_size(atom.aval)), length)) for y, atom in ys)]


def _settled(
    step: Callable[[Operands], Operands], operands: Operands, carry: Operands, variables: Sequence[Any]
) -> Operands:
    """What is carried, after any number of steps: the least patterns that a step adds nothing to, or all of them."""
    for _ in range(MAX_REPEATS):
        grown = [union(pair) for pair in zip(carry, step(carry), strict=True)]
        if all(_count(new) == _count(old) for new, old in zip(grown, carry, strict=True)):
            return carry
        carry = grown
    return [everywhere(operands, _jax.aval_size(var.aval)) for var in variables[: len(carry)]]


def _count(pattern: Pattern) -> int:
    return 0 if pattern is None else pattern.nnz


def _while(eqn: Equation, operands: Operands, known: Known, walk: Walk) -> list[Pattern]:
    num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    body, cond = _open(eqn.params["body_jaxpr"]), _open(eqn.params["cond_jaxpr"])
    first = num_cond + num_body
    constants = _constants(eqn, known)[num_cond:first] + [None] * (len(operands) - first)
    unknown = [None] * len(cond.invars)

    def step(carry: Operands) -> Operands:
        stop = walk(cond, [*operands[:num_cond], *carry], unknown)[0]
        outputs = walk(body, [*operands[num_cond:first], *carry], constants)[0]
        return [union([p, everywhere(stop, _jax.aval_size(v.aval))]) for p, v in zip(outputs, eqn.outvars, strict=True)]

    return list(_settled(step, operands, operands[first:], eqn.outvars))


NestedRule: TypeAlias = Callable[[Equation, Operands, Known, Walk], list[Pattern]]

nested_rules: dict[str, NestedRule] = {
    "jit": _call,
    "pjit": _call,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_linear_solve": _solve,
}
