"""Slices: the plan for a change of a few rows of some inputs, whichever rows these are.

In: `Facts`, the inputs of which rows change, how many rows at most. Out: a `Plan` that takes the
numbers of the rows as an argument, so that one program serves all of them. Of values it knows those
of indices alone.

A variable that the change reaches is dirty in some *rows* of one axis, or *whole*. `Slicer` runs the
equations on rows while JAX traces them, twice or more: each run finds out what it reads of the
baseline, which the next one gets as arguments. What is traced becomes the plan's equations.

Promise: with the numbers of all rows that differ from the baseline's among those given, running the
plan gives the outputs of the whole program up to rounding. The rules are those of `primitives`; no
rule, no claim: the variable is taken whole.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._program import reads_of, writes_of
from incrax.engine.plan.environment import AgainError, Requested, ValueOf
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.frontier import choose_frontier
from incrax.engine.plan.plan import NEW_VALUE_S, Plan, RowKind, Sliced, plan_fill, reached_equations
from incrax.engine.plan.resumed import NAME
from incrax.engine.plan.row_sets import RowSet, ends_of, interval, row_set, taken
from incrax.engine.plan.slicer import Slicer
from incrax.engine.program.constants import numpy_value
from incrax.engine.rewrites.derived import written_by
from incrax.primitives.entry import shape_of

UPDATES = {"dynamic_update_slice": 1, "scatter": 2}
"""Of equations that write into a value: the operand that is written."""


def value_at(facts: Facts, feeds: Sequence[Any]) -> ValueOf:
    """The values of variables where the inputs are these; with NumPy, where that is known, as it
    compiles nothing.
    """

    def value_of(var: Var) -> np.ndarray:
        program = facts.program
        env: dict[Var, Any] = dict(zip(program.invars, feeds, strict=True))
        env.update(zip(program.constvars, program.consts, strict=True))
        for eqn in plan_fill(facts.unmeasured, [var], lambda _: False).eqns:
            found = numpy_value(eqn, [_jax.read(atom, env) for atom in eqn.invars])
            if found is None:
                _jax.evaluate([eqn], env)
            else:
                env[eqn.outvars[0]] = found
        return np.asarray(env[var])

    return value_of


def can_slice(facts: Facts) -> bool:
    """Whether changes of rows may have plans: not where equations have effects or call the host."""
    return not (facts.has_effects or facts.calls_host or facts.is_minimal or facts.is_explicit)


def slice_plan(
    facts: Facts, kind: RowKind, value_of: ValueOf = lambda _: None, *, moving: int = 0
) -> Plan:
    """The plan for a change of at most as many rows of some leaves, along their first axes, as a kind
    has; or of any among those at an end.

    `value_of` is asked for indices of look-ups; `moving` are the bits of all inputs that change from
    time to time.

    Cost: traces the equations that the change reaches, two or three times.
    """
    dirty = sum(map(facts.layout.leaf_mask, kind.leaves))
    outputs = facts.reached_outputs(dirty)
    slicer = Slicer(facts, value_of, moving=moving | dirty)
    traced, sliced, guard = _traced(slicer, kind, dirty, outputs)
    read = dict.fromkeys(reads_of(traced))
    own = [var for var in read if var is sliced.numbers or var in sliced.olds]
    clean, loads = _clean_part(facts, set(read).difference(writes_of(traced), own, sliced.tables))
    ran = clean + traced
    moved_s = sum(map(facts.load_seconds, [*loads, *own]))
    moved_s += sum(map(facts.save_seconds, slicer.saves))
    # Of a table a row is read.
    moved_s += len(sliced.tables) * facts.calibration.load_seconds(0)
    apart = [eqn for eqn in ran if eqn.params.get("name") != NAME]
    base_loads = (*loads, *sliced.tables)
    return Plan(
        dirty,
        (*base_loads, *own),
        ran,
        tuple(var for var in slicer.saves if var not in facts.returned),
        outputs,
        moved_s + sum(_in_place_seconds(facts, eqn) for eqn in apart),
        base_loads,
        guard,
        sliced=replace(sliced, eqns=clean + sliced.eqns, moved_s=moved_s),
    )


def _clean_part(
    facts: Facts, wanted: Iterable[Var]
) -> tuple[tuple[Equation, ...], tuple[Var, ...]]:
    """The equations that make clean values, and the values that are loaded, whichever costs less."""
    frontier = choose_frontier(
        facts.listing,
        wanted,
        (),
        lambda var: facts.load_seconds(var) + NEW_VALUE_S if facts.is_saveable(var) else None,
        lambda number: facts.seconds(facts.eqns[number]),
    )
    return tuple(facts.eqns[number] for number in frontier.run), frontier.load


def _in_place_seconds(facts: Facts, eqn: Equation) -> float:
    """Estimated seconds of an equation of a plan for rows: what writes some of them writes no others.
    That the value is copied before, once, is counted with what is saved.
    """
    update = UPDATES.get(eqn.primitive.name)
    if update is None:
        return facts.seconds(eqn)
    return 2.0 * facts.calibration.read_s * _jax.aval_bytes(eqn.invars[update].aval)


def priming_saves(facts: Facts, plan: Plan) -> list[Var]:
    """What a plan for rows reads besides inputs, outputs and tables."""
    sliced = plan.sliced
    assert sliced is not None
    given = {atom for atom in (*facts.outvars, *facts.invars) if isinstance(atom, Var)}
    read = [*sliced.olds.values(), *plan.base_loads]
    return [var for var in read if var not in given and var not in sliced.tables]


_Traced = tuple[tuple[Equation, ...], Sliced, Var | None]
"""Equations on rows, what they take, and what must hold."""


def _traced(slicer: Slicer, kind: RowKind, dirty: int, outputs: Sequence[int]) -> _Traced:
    """Trace until a run reads no other values than it was given."""
    facts = slicer.facts
    atoms = dict.fromkeys(facts.outvars[i] for i in outputs)
    targets = [atom for atom in atoms if isinstance(atom, Var) and atom not in facts.invars]
    reached = reached_equations(facts, dirty, targets)
    while True:
        asked = slicer.asked
        slicer.asked = Requested(old_rows=asked.old_rows)
        with contextlib.suppress(AgainError):
            found = _run(slicer, kind, reached, targets, asked)
            if slicer.asked == asked:
                return found


def _run(
    slicer: Slicer,
    kind: RowKind,
    reached: Sequence[Equation],
    targets: Sequence[Var],
    asked: Requested,
) -> _Traced:
    """One trace, with the values that an earlier one asked for."""
    facts = slicer.facts
    dirty = sum(map(facts.layout.leaf_mask, kind.leaves))
    changed = [facts.invars[leaf] for leaf in kind.leaves]
    known = [*changed, *_clean(facts, dirty), *asked.tables]
    numbers = _jax.new_var(_jax.array_aval((kind.capacity,), np.int32))
    names = {var: _jax.new_var(var.aval) for var in asked.olds}
    guard = _jax.new_var(_jax.bool_aval())
    results: dict[Var, Any] = {}

    def fun(*values: Any) -> list[Any]:
        at_hand = dict(zip(known, values, strict=False))
        olds = dict(zip(asked.olds, values[len(known) : -1], strict=True))
        rows = _rows_of(kind, values[-1], shape_of(changed[0])[0])
        changes = {var: (taken(at_hand[var], 0, rows), rows) for var in changed}
        slicer.run(reached, at_hand, olds, changes)
        results.update({var: slicer.result(var) for var in targets})
        results.update(slicer.saves)
        if slicer.guards:
            results[guard] = functools.reduce(lax.bitwise_and, slicer.guards)
        return [_jax.typed_as(value, var.aval) for var, value in results.items()]

    inputs = [*known, *names.values(), numbers]
    body = _jax.trace_body(fun, *(jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in inputs))
    eqns = written_by(body, inputs, list(results))
    return eqns, _sliced(slicer, kind, reached, numbers, names), guard if slicer.guards else None


def _rows_of(kind: RowKind, numbers: Any, length: int) -> RowSet:
    """The rows of a change of a kind, of an axis of this length."""
    if kind.within:
        return interval(*ends_of(kind.within, length), length)
    return row_set(numbers, length)


def _sliced(
    slicer: Slicer,
    kind: RowKind,
    reached: Sequence[Equation],
    numbers: Var,
    names: Mapping[Var, Var],
) -> Sliced:
    """What a plan takes, and does, besides: as the last run has it. `names` are those of values of the
    baseline.
    """
    facts = slicer.facts
    given = {*facts.returned, *facts.invars}
    written = (var for var in slicer.row_saves if var in names and var not in given)
    return Sliced(
        shape_of(facts.invars[kind.leaves[0]])[0],
        numbers,
        {name: var for var, name in names.items()},
        tuple(reached),
        kind,
        made=tuple(slicer.made),
        tables=tuple(slicer.asked.tables),
        resumed=tuple(loop.eqn for loop, _ in slicer.resumed),
        agreeing_s=_loop_seconds(slicer, is_endless=False),
        endless_s=_loop_seconds(slicer, is_endless=True),
        in_place=tuple((names[var], var) for var in written),
    )


def _loop_seconds(slicer: Slicer, *, is_endless: bool) -> float:
    """Estimated, of all steps of the scans that are resumed, and end or do not."""
    loops = [loop for loop, own in slicer.resumed if own == is_endless]
    return sum(slicer.facts.seconds(x.eqn) * (x.price if is_endless else 1.0) for x in loops)


def _clean(facts: Facts, dirty: int) -> list[Var]:
    """What a change does not reach."""
    program = facts.program
    written = writes_of(program.eqns)
    known = (*program.invars, *program.constvars, *written)
    return [var for var in known if not facts.mask(var) & dirty]
