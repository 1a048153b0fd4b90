"""Of values of which only some rows are read, only these rows are made.

`jax.lax.associative_scan(f, x)[-1]` reads one row of a value that is filled in on the way down a
tree: what is left of it is the way up, n - 1 applications of f in log2(n) levels, of which one per
level has a row of x that changed. Equations are read from the end: where z[3:5] is all that is read
of z = sin(y), sin is applied to y[3:5].

In: a `Program`. Out: the same outputs; of a value of which slices, pads and the like read less than
half, along one axis, the smallest interval that has all of it, where the equation that makes it
treats each row by itself or moves rows. It must not know which inputs change.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import Atom, Equation, Var
from incrax._program import Program, all_read, read_vars, reads_of
from incrax.engine.rewrites.derived import traced_equations
from incrax.primitives.entry import shape_of, with_item
from incrax.primitives.on_rows import (
    NotByRowsError,
    aligned_back,
    fill_of,
    interval_of_runs,
    run_on_rows,
    runs_along,
    sources_of_runs,
)

PIECES = frozenset({"split", "unstack"})
"""Equations that take a value to pieces along an axis."""

MIN_SIZE = 4096
"""Elements of the largest value of which some rows are made, for a program that is worth changing."""


class Part(NamedTuple):
    """Some rows of a value, low <= n < high along an axis."""

    axis: int
    low: int
    high: int

    @property
    def ends(self) -> tuple[int, int]:
        """Of the interval."""
        return self.low, self.high

    @property
    def num(self) -> int:
        """How many."""
        return self.high - self.low


def make_read_rows(program: Program) -> Program:
    """The program without the rows that nothing reads; as it is where an equation that looks as if
    it could be run on some of its rows cannot.
    """
    if not any(eqn.primitive.name in ("slice", *PIECES) for eqn in program.eqns):
        return program  # nothing else says at first that it reads a part
    eqns, parts = _read(_without_splits(program))
    if max((math.prod(shape_of(var)) for var in parts), default=0) < MIN_SIZE:
        return program
    with contextlib.suppress(NotByRowsError):
        return program.with_eqns(_Narrowing(parts).run(eqns))
    return program


def _without_splits(program: Program) -> Program:
    """The program with slices in the place of each `split` or `unstack` of which not all pieces are
    read: the gradient by one of several numbers that an array is made of reads one.
    """
    read = all_read(program.eqns, program.outvars)
    eqns = [each for eqn in program.eqns for each in _pieces(eqn, read)]
    return program.with_eqns(eqns)


def _pieces(eqn: Equation, read: set[Var]) -> Sequence[Equation]:
    """An equation; of one that takes a value to pieces those that are read, unless all are."""
    name = eqn.primitive.name
    if name not in PIECES or read >= {*eqn.outvars}:
        return [eqn]
    axis = eqn.params["axis"]
    sizes = eqn.params["sizes"] if name == "split" else [1] * len(eqn.outvars)
    ends = np.cumsum(sizes).tolist()

    def piece(value: Any, number: int) -> Any:
        cut = lax.slice_in_dim(value, ends[number] - sizes[number], ends[number], axis=axis)
        return cut if name == "split" else lax.squeeze(cut, [axis])

    return [
        each
        for number, var in enumerate(eqn.outvars)
        if var in read
        for each in traced_equations(functools.partial(piece, number=number), eqn.invars, [var])[1]
    ]


def _read(program: Program) -> tuple[list[Equation], dict[Var, Part]]:
    """The equations of which something is read; of the values that are made in part, the rows that
    are.
    """
    read: dict[Var, Part | None] = {atom: None for atom in program.outvars if isinstance(atom, Var)}
    parts: dict[Var, Part] = {}
    needed = []
    for eqn in reversed(program.eqns):
        if not eqn.effects and read.keys().isdisjoint(eqn.outvars):
            continue
        needed.append(eqn)
        part = read.get(eqn.outvars[0]) if len(eqn.outvars) == 1 else None
        sources = None
        if part is not None and 2 * part.num <= shape_of(eqn.outvars[0])[part.axis]:
            sources = _sources(eqn, part)
        if part is not None and sources is not None:
            parts[eqn.outvars[0]] = part
        for atom, source in _all_sources(eqn) if sources is None else sources:
            if isinstance(atom, Var):
                read[atom] = _hull(read[atom], source) if atom in read else source
    return needed[::-1], parts


def _hull(one: Part | None, other: Part | None) -> Part | None:
    """The smallest interval that has two; None, all, where they are along different axes."""
    if one is None or other is None or one.axis != other.axis:
        return None
    return Part(one.axis, min(one.low, other.low), max(one.high, other.high))


def _sources(eqn: Equation, part: Part) -> list[tuple[Atom, Part | None]] | None:
    """What is read of which operands for a part of the result; None if all of them."""
    runs = runs_along(eqn, part.axis)
    if runs is not None:
        found = sources_of_runs(eqn, runs[0], part.ends)
        moved: list[tuple[Atom, Part | None]]
        moved = [(atom, Part(part.axis, *ends)) for atom, ends in found]
        fill = fill_of(eqn)
        return moved if fill is None else [*moved, (fill, None)]
    aligned = aligned_back(eqn, part.axis)
    if aligned is None:
        return None
    return [
        (atom, None if axis is None else part._replace(axis=axis))
        for atom, axis in zip(eqn.invars, aligned.operands, strict=True)
    ]


def _all_sources(eqn: Equation) -> list[tuple[Atom, Part | None]]:
    """The same for all of the results: a slice reads a part of its operand."""
    if eqn.primitive.name == "slice":
        sizes, before = shape_of(eqn.outvars[0]), shape_of(eqn.invars[0])
        axis = min(range(len(sizes)), key=lambda d: sizes[d] / max(before[d], 1), default=None)
        whole = None if axis is None else _sources(eqn, Part(axis, 0, sizes[axis]))
        if whole:
            return whole
    return [(atom, None) for atom in eqn.invars]


def _variable_of(part: Part, var: Var) -> Var:
    """One that has a part of what another has."""
    return _jax.new_var(var.aval.update(shape=with_item(shape_of(var), part.axis, part.num)))


class _Narrowing:
    """One walk through equations. Those that make a part, or read one, wait until something else
    reads what they make: one trace makes the rows of all of them.
    """

    def __init__(self, parts: Mapping[Var, Part]) -> None:
        self.parts = parts
        self.made = {var: _variable_of(part, var) for var, part in parts.items()}
        self.waiting: dict[Var, Equation] = {}
        self.eqns: list[Equation] = []

    def run(self, eqns: Sequence[Equation]) -> list[Equation]:
        """The equations in their new form."""
        for eqn in eqns:
            if any(var in self.parts for var in (*eqn.outvars, *read_vars(eqn))):
                self.waiting[eqn.outvars[0]] = eqn
                continue
            if not self.waiting.keys().isdisjoint(read_vars(eqn)):
                self._write()
            self.eqns.append(eqn)
        self._write()
        return self.eqns

    def _write(self) -> None:
        """Make what waits."""
        waiting = self.waiting
        inputs = [var for var in dict.fromkeys(reads_of(waiting.values())) if var not in waiting]
        kept = [var for var in waiting if not isinstance(var, _jax.DropVar)]

        def make(*values: Any) -> list[Any]:
            env = dict(zip(inputs, values, strict=True))
            for var, eqn in waiting.items():
                env[var] = self._value(eqn, env)
            return [env[var] for var in kept]

        read, results = ([self.made.get(var, var) for var in own] for own in (inputs, kept))
        self.eqns += traced_equations(make, read, results)[1]
        self.waiting = {}

    def _value(self, eqn: Equation, env: Mapping[Var, Any]) -> Any:
        """What an equation makes: the rows that are read, or all of them, of a part."""
        (var,) = eqn.outvars
        part = self.parts.get(var)
        if part is None:
            axis = next(self.parts[x].axis for x in read_vars(eqn) if x in self.parts)
            part = Part(axis, 0, shape_of(var)[axis])
        whole = lambda atom: _jax.read(atom, env)
        runs = runs_along(eqn, part.axis)
        if runs is not None:
            rows_of = lambda atom, ends: self._rows(atom, Part(part.axis, *ends), env)
            fill = fill_of(eqn)
            value = None if fill is None else whole(fill)
            return interval_of_runs(eqn, part.axis, runs[0], part.ends, rows_of, value)
        aligned = aligned_back(eqn, part.axis)
        assert aligned is not None
        values = [
            whole(atom) if axis is None else self._rows(atom, part._replace(axis=axis), env)
            for atom, axis in zip(eqn.invars, aligned.operands, strict=True)
        ]
        return run_on_rows(eqn, aligned, part.num, values)[0]

    def _rows(self, atom: Atom, part: Part, env: Mapping[Var, Any]) -> Any:
        """Some rows of an operand, of which there may be no others."""
        assert isinstance(atom, Var)
        first = self.parts[atom].low if atom in self.parts else 0
        value = env[atom]
        if part.num == value.shape[part.axis]:
            return value
        return lax.slice_in_dim(value, part.low - first, part.high - first, axis=part.axis)
