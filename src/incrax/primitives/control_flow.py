"""Equations that hold jaxprs: calls, branches, loops, linear solves; written once for every domain
of `elements`.

A rule gets an equation, what its operands depend on, what is known, and the domain, which walks
what is inside. Loops of few iterations may be walked one by one, so that an index that counts them
is known; of others, what holds for every iteration is sought by repeating the body until nothing is
added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.entry import Family, Primitive, each, element_numbers, shape_of

Domain = Any  # `elements.Domain`, which stands on this module


def _constants(eqn: Equation, known: Any, domain: Domain) -> list[Any]:
    return [domain.constant_of(atom, known) for atom in eqn.invars]


def _call(eqn: Equation, operands: Sequence[Any], known: Any, domain: Domain) -> list[Any]:
    body = domain.opened(eqn.params["jaxpr"])
    return domain.walk(body, operands, _constants(eqn, known, domain)).outputs


def _cond(eqn: Equation, operands: Sequence[Any], known: Any, domain: Domain) -> list[Any]:
    """An output depends on what chooses the branch and on what it depends on in any."""
    constants = _constants(eqn, known, domain)[1:]
    found = [
        domain.walk(domain.opened(one), operands[1:], constants).outputs
        for one in eqn.params["branches"]
    ]
    chosen = domain.all_to_all(eqn, operands[:1])
    return [domain.union(parts) for parts in zip(chosen, *found, strict=True)]


def _solve(eqn: Equation, operands: Sequence[Any], known: Any, domain: Domain) -> list[Any]:
    """What its own `solve` makes of the right-hand side and the constants of that."""
    counts = eqn.params["const_lengths"]
    first = counts.matvec + counts.vecmat
    chosen = [*range(first, first + counts.solve), *range(sum(counts), len(operands))]
    constants = _constants(eqn, known, domain)
    body = domain.opened(eqn.params["jaxprs"].solve)
    return domain.walk(body, [operands[k] for k in chosen], [constants[k] for k in chosen]).outputs


# --- scan -----------------------------------------------------------------------------------------


def _scan(eqn: Equation, operands: Sequence[Any], known: Any, domain: Domain) -> list[Any]:
    body = domain.opened(eqn.params["jaxpr"])
    walked = _unrolled if domain.is_unrolled(eqn, body) else _repeated
    return walked(eqn, body, [domain.in_loop(x) for x in operands], known, domain)


def learn_counters(eqn: Equation, known: Any, domain: Domain) -> None:
    """Add what a scan counts that depends on nothing, as the indices that a derivative's loop reads
    again.
    """
    is_scan = eqn.primitive.name == "scan" and not eqn.effects
    if is_scan and any(np.issubdtype(var.aval.dtype, np.integer) for var in eqn.outvars):
        _scan(eqn, [domain.NOTHING] * len(eqn.invars), known, domain)


def _unrolled(
    eqn: Equation, body: Any, operands: Sequence[Any], known: Any, domain: Domain
) -> list[Any]:
    """Iteration by iteration; adds the outputs that are constants."""
    # Not as a program of all turns, which any walk could take: to make its equations takes as long
    # as the walk (600 turns, 600 inputs: 0.33 s of processor time in all, against 0.17 s).
    scan = _jax.scan_of(eqn)
    consts, carry, xs = scan.split(operands)
    known_consts, known_carry, known_xs = scan.split(_constants(eqn, known, domain))
    _, _, whole = scan.split(eqn.invars)
    _, _, parts = scan.split(body.invars)
    num_carry = scan.num_carry
    rows: list[list[Any]] = []
    learnt: list[list[Any]] = []
    step = -1 if eqn.params["reverse"] else 1
    for i in range(eqn.params["length"])[::step]:
        row = [domain.take(x, _row(shape_of(var), i)) for x, var in zip(xs, parts, strict=True)]
        known_row = [
            domain.row_of(x, i, atom.aval) for x, atom in zip(known_xs, whole, strict=True)
        ]
        constants = [*known_consts, *known_carry, *known_row]
        inner = domain.walk(body, [*consts, *carry, *row], constants)
        found = [domain.constant_of(atom, inner.known) for atom in body.outvars]
        carry = inner.outputs[:num_carry]
        known_carry = found[:num_carry]
        rows.append(inner.outputs[num_carry:])
        learnt.append(found[num_carry:])
    learnt_rows = [domain.of_rows(column[::step]) for column in zip(*learnt, strict=True)]
    pairs = zip(eqn.outvars, [*known_carry, *learnt_rows], strict=False)
    known.update({var: found for var, found in pairs if found is not None})
    ys = [
        domain.beside([row[k] for row in rows[::step]], [atom] * len(rows))
        for k, atom in enumerate(body.outvars[num_carry:])
    ]
    return [*carry, *ys]


def _row(shape: Sequence[int], number: int) -> np.ndarray:
    own = element_numbers(shape)
    return own + number * own.size


def _repeated(
    eqn: Equation, body: Any, operands: Sequence[Any], known: Any, domain: Domain
) -> list[Any]:
    """What holds for every iteration, of each carry and of a row of each stacked output."""
    scan = _jax.scan_of(eqn)
    consts, carry, xs = scan.split(operands)
    _, _, whole = scan.split(eqn.invars)
    _, _, parts = scan.split(body.invars)
    rows = [
        domain.take(domain.grouped(x, shape_of(atom), [0]), element_numbers(shape_of(var)))
        for x, atom, var in zip(xs, whole, parts, strict=True)
    ]
    known_consts, *others = scan.split(_constants(eqn, known, domain))
    constants = [*known_consts, *(None for own in others for _ in own)]

    def step(carry: Sequence[Any]) -> list[Any]:
        outputs = domain.walk(body, [*consts, *carry, *rows], constants).outputs
        return [domain.in_loop(x) for x in outputs]

    num_carry = scan.num_carry
    carry = _settled(lambda carry: step(carry)[:num_carry], eqn, operands, carry, domain)
    stacked = [
        domain.take(y, np.broadcast_to(element_numbers(shape_of(atom)), shape_of(var)))
        for y, var, atom in [*zip(step(carry), eqn.outvars, body.outvars, strict=True)][num_carry:]
    ]
    return [*carry, *stacked]


def _settled(
    step: Callable[[Sequence[Any]], list[Any]],
    eqn: Equation,
    operands: Sequence[Any],
    carry: Sequence[Any],
    domain: Domain,
) -> list[Any]:
    """What is carried after any number of steps: the least that a step adds nothing to, or all that
    there is.
    """
    for _ in range(domain.max_repeats):
        grown = [domain.union(pair) for pair in zip(carry, step(carry), strict=True)]
        if all(domain.is_same(new, old) for new, old in zip(grown, carry, strict=True)):
            return list(carry)
        carry = grown
    return [domain.everywhere(operands, var.aval) for var in eqn.outvars[: len(carry)]]


# --- while ----------------------------------------------------------------------------------------


def _while(eqn: Equation, operands: Sequence[Any], known: Any, domain: Domain) -> list[Any]:
    """The condition decides when every carry stops."""
    operands = [domain.in_loop(x) for x in operands]
    num_cond = eqn.params["cond_nconsts"]
    num_body = eqn.params["body_nconsts"]
    body = domain.opened(eqn.params["body_jaxpr"])
    cond = domain.opened(eqn.params["cond_jaxpr"])
    first = num_cond + num_body
    constants = _constants(eqn, known, domain)[num_cond:first] + [None] * (len(operands) - first)

    def step(carry: Sequence[Any]) -> list[Any]:
        stop = domain.walk(cond, [*operands[:num_cond], *carry]).outputs
        outputs = domain.walk(body, [*operands[num_cond:first], *carry], constants).outputs
        stops = domain.all_to_all(eqn, stop)
        return [
            domain.union([domain.in_loop(x), each]) for x, each in zip(outputs, stops, strict=True)
        ]

    return _settled(step, eqn, operands, operands[first:], domain)


# --- entries --------------------------------------------------------------------------------------

FAMILY: Family = {
    **each("jit pjit", Primitive(inside=_call)),
    "cond": Primitive(inside=_cond),
    "scan": Primitive(inside=_scan),
    "while": Primitive(inside=_while),
    "custom_linear_solve": Primitive(inside=_solve),
}
