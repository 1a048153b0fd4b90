"""A program as a tree of regions: which equations run inside which, and how often that is known to be.

In: a program. Out: its regions, simplified, without dead code. It must not know what anything costs.

Two views. As written: calls are opened, equal equations count once, what is rematerialized stays apart, so that it
counts again where it is computed again. As the engine runs it: the passes of the pipeline.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Body, Equation, Literal, Var
from incrax._program import Program, from_jaxpr
from incrax.engine.program.constants import known_values
from incrax.engine.program.nested import inner_bodies, num_turns
from incrax.engine.program.simplify import (
    Pass,
    drop_dead,
    fold_constants,
    inline_with_lines,
    inline_with_lines_but_remat,
    merge_equal,
    reading,
    run_passes,
)
from incrax.engine.rewrites.inverses import cancel_inverses
from incrax.engine.rewrites.loop_invariants import hoist_invariants

Known = Mapping[Var, np.ndarray]


@dataclass(frozen=True, eq=False)
class Node:
    """An equation, with the regions inside it; times that these run per evaluation, and the branch taken, if known."""

    eqn: Equation
    regions: tuple[Region, ...]
    turns: float | None
    branch: int | None

    @property
    def is_open(self) -> bool:
        """Whether what runs inside depends on values."""
        kinds = {region.kind for region in self.regions}
        is_unknown = ("turn" in kinds and self.turns is None) or ("branch" in kinds and self.branch is None)
        return is_unknown or any(node.is_open for region in self.regions for node in region.nodes)


@dataclass(frozen=True, eq=False)
class Region:
    """Equations that run one after the other; `kind` is "whole", "call", "turn", "condition" or "branch"."""

    number: int
    kind: str
    program: Program
    nodes: tuple[Node, ...]

    def walk(self) -> Iterator[Region]:
        """The region and all inside."""
        yield self
        for node in self.nodes:
            for region in node.regions:
                yield from region.walk()


@dataclass(frozen=True)
class View:
    """Passes over the whole program, and over the bodies inside."""

    whole: tuple[Pass, ...]
    inner: tuple[Pass, ...]


def regions_of(program: Program, view: View) -> Region:
    """The tree of a program."""
    return _region("whole", run_passes(program, view.whole), view, itertools.count())


def _region(kind: str, program: Program, view: View, numbers: Iterator[int]) -> Region:
    number = next(numbers)
    known = known_values(program)
    return Region(number, kind, program, tuple(_node(eqn, known, view, numbers) for eqn in program.eqns))


def _node(eqn: Equation, known: Known, view: View, numbers: Iterator[int]) -> Node:
    inner = [(each.kind, run_passes(_program(each.body), view.inner)) for each in inner_bodies(eqn)]
    regions = tuple(_region(kind, program, view, numbers) for kind, program in inner)
    turns = num_turns(eqn)
    if eqn.primitive.name == "while":
        turns = _counted_turns(eqn, regions, known)
    elif eqn.primitive.name == _jax.LOOP and turns is None:
        turns = _value(eqn.invars[0], known)
    branch = None
    if regions and regions[0].kind == "branch":
        index = _value(eqn.invars[0], known)
        branch = None if index is None else min(max(int(index), 0), len(regions) - 1)
    return Node(eqn, regions, turns, branch)


def _program(body: Body) -> Program:
    """A body; constants that its equation keeps elsewhere are inputs of it."""
    if len(body.consts) != len(body.constvars):
        body = body._replace(invars=(*body.constvars, *body.invars), constvars=(), consts=())
    return from_jaxpr(body)


def _value(atom: Atom, known: Known) -> int | None:
    if isinstance(atom, Literal):
        return int(np.asarray(atom.val))
    return int(known[atom]) if atom in known and known[atom].shape == () else None


# --- passes -------------------------------------------------------------------------------------------------------


def drop_dead_inside(program: Program) -> Program:
    """Remove what no output needs, in loops, branches and calls too."""
    body = _jax.Body(program.invars, program.constvars, program.consts, program.eqns, program.outvars)
    kept, _ = _jax.pruned(body)
    return drop_dead(replace(program, eqns=kept.eqns, outvars=kept.outvars))


def choose_platform(program: Program) -> Program:
    """Replace the question which platform a program runs on by the answer for the default backend."""
    names: dict[Atom, Literal | None] = {}
    for eqn in program.eqns:
        if eqn.primitive.name == "platform_index":
            names[eqn.outvars[0]] = _platform(eqn)
    if not names:
        return program
    rename = lambda atom: (names.get(atom) or atom) if isinstance(atom, Var) else atom
    return program.with_eqns([reading(eqn, rename) for eqn in program.eqns])


def _platform(eqn: Equation) -> Literal | None:
    backend = jax.default_backend()
    groups = [group if isinstance(group, (tuple, list)) else (group,) for group in eqn.params["platforms"]]
    names = [number for number, group in enumerate(groups) if group == (None,) or None in group or backend in group]
    return _jax.literal(names[0], eqn.outvars[0].aval) if names else None


_SIMPLER = (choose_platform, fold_constants, merge_equal, drop_dead)
AS_WRITTEN = View(
    (drop_dead_inside, inline_with_lines_but_remat, *_SIMPLER),
    (inline_with_lines_but_remat, *_SIMPLER),
)
AS_RUN = View((cancel_inverses, inline_with_lines, hoist_invariants, *_SIMPLER), (inline_with_lines, *_SIMPLER))


# --- loops that count ---------------------------------------------------------------------------------------------


def _counted_turns(eqn: Equation, regions: Sequence[Region], known: Known) -> int | None:
    """Turns of `while i < n: i += step` with known numbers; None for any other loop."""
    turn, condition = regions[0].program, regions[1].program
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name not in _comparisons:
        return None
    (test,) = condition.eqns
    if condition.outvars[0] is not test.outvars[0]:
        return None
    loop = _Loop(eqn, turn, condition, known)
    name, sides = test.primitive.name, list(test.invars)
    for counter, limit, op in ((sides[0], sides[1], name), (sides[1], sides[0], _mirrored[name])):
        start, step, end = loop.start(counter), loop.step(counter), loop.fixed(limit)
        if start is not None and step is not None and end is not None:
            return _comparisons[op](start, step, end)
    return None


@dataclass(frozen=True)
class _Loop:
    """A while loop whose condition reads the carry."""

    eqn: Equation
    turn: Program
    condition: Program
    known: Known

    @property
    def num_condition_consts(self) -> int:
        return self.eqn.params["cond_nconsts"]

    @property
    def num_turn_consts(self) -> int:
        return self.eqn.params["body_nconsts"]

    def carry(self, atom: Atom) -> int | None:
        """Which carry a variable of the condition is."""
        inputs = list(self.condition.invars)
        number = inputs.index(atom) - self.num_condition_consts if atom in inputs else -1
        return number if number >= 0 else None

    def start(self, atom: Atom) -> int | None:
        """The first value of a carry."""
        number = self.carry(atom)
        first = self.num_condition_consts + self.num_turn_consts
        return None if number is None else _integer(self.eqn.invars[first + number], self.known)

    def step(self, atom: Atom) -> int | None:
        """By how much a turn moves a carry."""
        number = self.carry(atom)
        if number is None:
            return None
        before, after = self.turn.invars[self.num_turn_consts + number], self.turn.outvars[number]
        for eqn in self.turn.eqns:
            if eqn.outvars[0] is after and eqn.primitive.name in ("add", "sub"):
                left, right = eqn.invars
                sign = 1 if eqn.primitive.name == "add" else -1
                if left is before and isinstance(right, Literal):
                    return sign * int(np.asarray(right.val))
                if sign == 1 and right is before and isinstance(left, Literal):
                    return int(np.asarray(left.val))
        return None

    def fixed(self, atom: Atom) -> int | None:
        """A literal, a constant of the condition, or a carry that no turn changes."""
        if isinstance(atom, Literal):
            return _integer(atom, self.known)
        inputs = list(self.condition.invars)
        if atom in inputs and inputs.index(atom) < self.num_condition_consts:
            return _integer(self.eqn.invars[inputs.index(atom)], self.known)
        number = self.carry(atom)
        is_kept = number is not None and self.turn.outvars[number] is self.turn.invars[self.num_turn_consts + number]
        return self.start(atom) if is_kept else None


def _integer(atom: Atom, known: Known) -> int | None:
    kind = np.dtype(atom.aval.dtype).kind if not _jax.is_key_dtype(atom.aval.dtype) else "k"
    return _value(atom, known) if kind in "iu" and atom.aval.shape == () else None


def _up(start: int, step: int, end: int) -> int | None:
    return max(0, math.ceil((end - start) / step)) if step > 0 else 0 if start >= end else None


def _down(start: int, step: int, end: int) -> int | None:
    return _up(-start, -step, -end)


_comparisons: dict[str, Callable[[int, int, int], int | None]] = {
    "lt": _up,
    "le": lambda start, step, end: _up(start, step, end + 1),
    "gt": _down,
    "ge": lambda start, step, end: _down(start, step, end - 1),
}
_mirrored: dict[Any, str] = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
