"""A program as a tree of regions: which equations run inside which, and how often: as the program
tells, or a run.

In: a program; values for a run. Out: its regions, simplified, without dead code. It must not know
what anything costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Body, Equation, Literal, Var
from incrax._program import Program, evaluator, from_jaxpr, read_vars, written_vars
from incrax.engine.program.constants import known_values
from incrax.engine.program.nested import inner_bodies, num_turns
from incrax.engine.program.simplify import (
    Pass,
    drop_dead,
    fold_constants,
    inline_with_solves,
    inline_with_solves_but_remat,
    merge_equal,
    reading,
    run_passes,
)
from incrax.engine.rewrites.inverses import cancel_inverses
from incrax.engine.rewrites.loop_invariants import hoist_invariants

Known = Mapping[Var, np.ndarray]


@dataclass(eq=False)
class Region:
    """Equations that run one after the other.

    Fields: "whole", "call", "turn", "condition" or "branch"; the program; its equations, each with
    the regions inside; evaluations for each one of the region around (None: values decide);
    evaluations in a run.
    """

    kind: str
    program: Program
    nodes: list[Node]
    times: float | None = 1.0
    runs: int = 0

    @cached_property
    def compiled(self) -> Callable[..., list[Any]]:
        """The program, compiled as a whole."""
        return jax.jit(evaluator(self.program))


class Node(NamedTuple):
    """An equation with the regions inside it."""

    eqn: Equation
    regions: Sequence[Region]

    @property
    def name(self) -> str:
        """Of the primitive."""
        return self.eqn.primitive.name

    @property
    def is_open(self) -> bool:
        """Whether what runs inside depends on values."""
        return any(
            region.times is None or any(n.is_open for n in region.nodes) for region in self.regions
        )


def cut(program: Program, groups: Sequence[Sequence[Equation]]) -> list[Program]:
    """A program in parts, one for each group of its equations; a part's results are what later ones
    read.
    """
    needed = {atom for atom in program.outvars if isinstance(atom, Var)}
    constants = dict(zip(program.constvars, program.consts, strict=True))
    parts: list[Program] = []
    for eqns in reversed(groups):
        written = [var for eqn in eqns for var in written_vars(eqn)]
        read = dict.fromkeys(var for eqn in eqns for var in read_vars(eqn))
        inputs = tuple(var for var in read if var not in constants and var not in set(written))
        own = {var: constants[var] for var in read if var in constants}
        outputs = tuple(var for var in written if var in needed)
        parts.append(Program(inputs, tuple(own), tuple(own.values()), tuple(eqns), outputs))
        needed.update(inputs)
    return parts[::-1]


# --- the tree -------------------------------------------------------------------------------------


class Form(NamedTuple):
    """Passes over the whole program, and over the bodies inside."""

    whole: Sequence[Pass]
    inner: Sequence[Pass]


def regions_of(program: Program, form: Form) -> Region:
    """The tree of a program."""
    return _region("whole", run_passes(program, form.whole), form)


def _region(kind: str, program: Program, form: Form) -> Region:
    known = known_values(program)
    return Region(kind, program, [_node(eqn, known, form) for eqn in program.eqns])


def _node(eqn: Equation, known: Known, form: Form) -> Node:
    regions = [
        _region(each.kind, run_passes(_program(each.body), form.inner), form)
        for each in inner_bodies(eqn)
    ]
    turns = num_turns(eqn)
    if eqn.primitive.name == "while":
        turns = _turns_of_counter(eqn, regions[0], regions[1], known)
    elif eqn.primitive.name == _jax.LOOP and turns is None:
        turns = _integer(eqn.invars[0], known)
    side = _integer(eqn.invars[0], known) if regions and regions[0].kind == "branch" else None
    for number, region in enumerate(regions):
        if region.kind == "branch":
            region.times = (
                None if side is None else float(number == min(max(side, 0), len(regions) - 1))
            )
        else:
            region.times = None if turns is None else turns + (region.kind == "condition")
    return Node(eqn, regions)


def _program(body: Body) -> Program:
    """A body; constants that its equation keeps elsewhere are inputs of it."""
    if len(body.consts) != len(body.constvars):
        body = body._replace(invars=(*body.constvars, *body.invars), constvars=(), consts=())
    return from_jaxpr(body)


def _integer(atom: Atom, known: Known) -> int | None:
    """The value of an integer, or of a truth value, where it is known."""
    if isinstance(atom, Literal):
        value: Any = np.asarray(atom.val)
    else:
        value = known.get(atom)
    return (
        int(value)
        if value is not None and value.shape == () and value.dtype.kind in "biu"
        else None
    )


def _turns_of_counter(eqn: Equation, turn: Region, condition: Region, known: Known) -> int | None:
    """Turns of `while i < n: i += step` with known numbers; None for any other loop.

    The difference of the sides is start + step t after t turns; the first t is looked for at which
    it is not below 0.
    """
    asked = condition.program
    test = asked.eqns[0] if len(asked.eqns) == 1 else None
    if test is None or asked.outvars[0] is not test.outvars[0]:
        return None
    num_asked = eqn.params["cond_nconsts"]
    num_fixed = eqn.params["body_nconsts"]
    sides: list[tuple[int, int]] = []
    for side in test.invars:
        atom: Any = side
        step: int | None = 0
        if side in asked.invars:
            number = asked.invars.index(side)
            if number >= num_asked:
                step = _step(turn.program, num_fixed, number - num_asked)
                number += num_fixed
            atom = eqn.invars[number]
        start = _integer(atom, known)
        if start is None or step is None:
            return None
        sides.append((start, step))
    name = test.primitive.name
    if name not in ("lt", "le", "gt", "ge"):
        return None
    (low, slow), (high, fast) = sides if name in ("lt", "le") else sides[::-1]
    start = low - high - (name in ("le", "ge"))
    if start >= 0:
        return 0
    return math.ceil(-start / (slow - fast)) if slow > fast else None


def _step(body: Program, num_fixed: int, number: int) -> int | None:
    """By how much a turn moves a carry."""
    before = body.invars[num_fixed + number]
    after = body.outvars[number]
    if after is before:
        return 0
    (eqn, *_) = [*(eqn for eqn in body.eqns if after in eqn.outvars), None]
    name = "" if eqn is None else eqn.primitive.name
    if eqn is None or name not in ("add", "sub"):
        return None
    first, second = eqn.invars
    if name == "add" and second is before:
        first, second = second, first
    step = _integer(second, {}) if first is before else None
    return -step if step is not None and name == "sub" else step


# --- its two forms --------------------------------------------------------------------------------


def drop_dead_inside(program: Program) -> Program:
    """Remove what no output needs, in loops, branches and calls too."""
    body = Body(program.invars, program.constvars, program.consts, program.eqns, program.outvars)
    kept, _ = _jax.pruned(body)
    return drop_dead(replace(program, eqns=kept.eqns, outvars=kept.outvars))


def choose_platform(program: Program) -> Program:
    """Replace the question which platform a program runs on by the answer for the default
    backend.
    """
    asked = [eqn for eqn in program.eqns if eqn.primitive.name == "platform_index"]
    names: dict[Atom, Literal | None] = {eqn.outvars[0]: _platform(eqn) for eqn in asked}
    rename = lambda atom: (names.get(atom) or atom) if isinstance(atom, Var) else atom
    return program.with_eqns([reading(eqn, rename) for eqn in program.eqns]) if names else program


def _platform(eqn: Equation) -> Literal | None:
    backend = jax.default_backend()
    groups = [
        group if isinstance(group, (tuple, list)) else (group,) for group in eqn.params["platforms"]
    ]
    fitting = [number for number, group in enumerate(groups) if None in group or backend in group]
    return _jax.literal(fitting[0], eqn.outvars[0].aval) if fitting else None


_SIMPLER = (choose_platform, fold_constants, merge_equal, drop_dead)
AS_WRITTEN = Form(
    (drop_dead_inside, inline_with_solves_but_remat, *_SIMPLER),
    (inline_with_solves_but_remat, *_SIMPLER),
)
"""Calls are opened, equal equations count once; what is rematerialized stays apart, so that it
counts again.
"""
AS_RUN = Form(
    (cancel_inverses, inline_with_solves, hoist_invariants, *_SIMPLER),
    (inline_with_solves, *_SIMPLER),
)
"""As the engine runs it."""


# --- a run that counts ----------------------------------------------------------------------------


def run(region: Region, values: Sequence[Any]) -> Sequence[Any]:
    """Evaluate a region; it and all inside of whose evaluations values decide count how often they
    run.

    Loops and branches in which values decide are Python's; a region without is compiled.
    """
    region.runs += 1
    program = region.program
    if not any(node.is_open for node in region.nodes):
        return region.compiled(program.consts, *values)
    env: dict[Var, Any] = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, values, strict=True))
    for node in region.nodes:
        inputs = [_jax.read(atom, env) for atom in node.eqn.invars]
        rule = _rules.get(node.name, _call) if node.is_open else _apply
        env.update(zip(node.eqn.outvars, rule(node, inputs), strict=True))
    return [_jax.read(atom, env) for atom in program.outvars]


def _apply(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    return _jax.apply(node.eqn, inputs)


def _call(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    """A call that evaluates one body on its inputs; any other is not looked into."""
    region, *others = node.regions
    if others or len(region.program.invars) != len(inputs) or region.times != 1:
        return _apply(node, inputs)
    return run(region, inputs)


def _cond(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    index = min(max(int(inputs[0]), 0), len(node.regions) - 1)
    return run(node.regions[index], inputs[1:])


def _while(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    """What `vmap` makes of a loop has a condition for each row: rows that have ended stay as they
    are.
    """
    turn, condition = node.regions
    first = node.eqn.params["cond_nconsts"]
    second = first + node.eqn.params["body_nconsts"]
    carry = inputs[second:]
    while np.any(goes_on := np.asarray(run(condition, [*inputs[:first], *carry])[0])):
        results = run(turn, [*inputs[first:second], *carry])
        carry = [_where(goes_on, new, old) for new, old in zip(results, carry, strict=True)]
    return carry


def _where(goes_on: np.ndarray, new: Any, old: Any) -> Any:
    num_more = jnp.ndim(new) - goes_on.ndim
    return jnp.where(goes_on.reshape(goes_on.shape + (1,) * num_more), new, old)


def _scan(node: Node, inputs: Sequence[Any]) -> Sequence[Any]:
    """A scan, or a loop of `incrax.control_flow.loops`: its turns one by one to count what is
    inside, its results as they are.
    """
    params = node.eqn.params
    if node.name == _jax.LOOP:
        num_consts, num_carry, _ = params["spec"].layout
        is_reversed = params["spec"].reverse
        length, *operands = inputs
    else:
        num_consts, num_carry = _jax.scan_counts(node.eqn)
        is_reversed = params["reverse"]
        length = params["length"]
        operands = inputs
    num_fixed = num_consts + num_carry
    carry = operands[num_consts:num_fixed]
    for row in range(int(length))[:: -1 if is_reversed else 1]:
        rows = [x[row] for x in operands[num_fixed:]]
        carry = run(node.regions[0], [*operands[:num_consts], *carry, *rows])[:num_carry]
    return _apply(node, inputs)


_rules: dict[str, Callable[[Node, Sequence[Any]], Sequence[Any]]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    _jax.LOOP: _scan,
}
