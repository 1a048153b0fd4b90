"""A program of rows cut into passes: for each, what is computed for a chunk, how the results of all
chunks are combined, and what follows from them.

In: a program with numbers lifted, and what it does to rows. Out: one `Phase` per pass over the
rows, and its programs as functions of arrays, to be traced or compiled. It must not know chunks or
stores.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax._jax import DropVar, Equation, Var
from incrax._program import Program, Values, all_read, evaluated, read_vars, type_of
from incrax.engine.plan.row_sets import masked
from incrax.engine.program.simplify import renamed
from incrax.engine.rewrites.forms import Factors
from incrax.primitives.row_axis import Reduction
from incrax.rows.axis import IDEMPOTENT, LOOPS, RowsComparison
from incrax.rows.numbers import Lifted, Number, factors_of

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})

PASSING_ON = frozenset({"reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "copy"})
"""What passes a largest value on to a comparison, beside rows."""


def identity(kind: str, dtype: Any) -> Any:
    """What changes nothing in a sum, a product, or xor."""
    return np.asarray(int(kind == "prod"), dtype)


def from_identities(program: Program) -> Program:
    """x.at[ids].add(r) = x + zeros.at[ids].add(r): each chunk adds to zeros, and x is added once."""
    eqns: list[Equation] = []
    for eqn in program.eqns:
        name = eqn.primitive.name
        join = _JOINS.get(name.replace("_", "-"))
        eqns += [eqn] if join is None else _apart(eqn, *join)
    return program.with_eqns(eqns)


_JOINS = {"scatter-add": (lax.add, 0), "scatter-mul": (lax.mul, 1)}
"""How reductions of rows by numbers go on, and what changes nothing."""


def _apart(eqn: Equation, join: Callable[..., Any], nothing: int) -> list[Equation]:
    def run(x: Any, *others: Any) -> Any:
        (found,) = _jax.apply(eqn, [jnp.full_like(x, nothing), *others])
        return join(x, found)

    body = _jax.trace_body(run, *map(type_of, eqn.invars))
    _, eqns = renamed(body, eqn.invars, eqn.outvars)
    return [each.replace(source_info=eqn.source_info) for each in eqns]


@dataclass(frozen=True)
class RowProgram:
    """A program whose inputs start with arrays of rows, analysed.

    Fields: the program, in which numbers made from the number of rows are variables; those `sizes`;
    what chunks may be evaluated with in the place of these; how many inputs are
    arrays of rows; the row axis of each row-wise variable;
    reductions by the variable that they write; for a row-wise variable the pass over the rows in
    which it can be computed (from 1), for any other the pass after which it can (from 0).
    """

    program: Program
    sizes: Mapping[Var, Number]
    assumed: Mapping[Var, Any]
    num_row_inputs: int
    axes: Mapping[Var, int]
    reductions: Mapping[Var, Reduction]
    passes: Mapping[Var, int]

    def reduction_of(self, eqn: Equation) -> Reduction | None:
        """The reduction over rows that an equation is."""
        return next((self.reductions[v] for v in eqn.outvars if v in self.reductions), None)

    @cached_property
    def constants(self) -> dict[Var, Any]:
        """Their values."""
        return dict(zip(self.program.constvars, self.program.consts, strict=True))

    @cached_property
    def extremes(self) -> dict[Var, Var]:
        """The largest and least values over the rows, by themselves and by what passes them on."""
        found = {
            var: var
            for var, reduction in self.reductions.items()
            if reduction.kind in ("max", "min") and jnp.issubdtype(var.aval.dtype, np.inexact)
        }
        for eqn in self.program.eqns:
            atom = eqn.invars[0] if eqn.primitive.name in PASSING_ON else None
            if isinstance(atom, Var) and atom in found and not _is_row_wise(eqn, self.axes):
                found[eqn.outvars[0]] = found[atom]
        return found

    @cached_property
    def row_outputs(self) -> tuple[Var, ...]:
        """The outputs with a row axis."""
        outputs = (a for a in self.program.outvars if isinstance(a, Var) and a in self.axes)
        return tuple(dict.fromkeys(outputs))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """One for each pass over the rows that the outputs need, at least one."""
        last = max((self.passes[v] for v in (*self.reductions, *self.row_outputs)), default=1)
        return tuple(_phase(self, number, last) for number in range(1, last + 1))


def analyse_rows(
    lifted: Lifted, found: RowsComparison, assumed: Mapping[Var, Any], num_row_inputs: int
) -> RowProgram:
    """The program, of which it was found what it does to rows, with the passes counted."""
    program, sizes = lifted
    axes = {var: axis for var, axis in found.axes.items() if axis is not None}
    reductions = {v: r for v, r in found.reductions.items() if not isinstance(v, DropVar)}
    passes: dict[Var, int] = dict.fromkeys((*program.invars, *program.constvars, *sizes), 0)
    passes.update(dict.fromkeys(program.invars[:num_row_inputs], 1))
    for eqn in program.eqns:
        is_row_wise = _is_row_wise(eqn, axes)
        # rows wait for the pass that what else they read comes from
        numbers = [passes[var] + (is_row_wise and var not in axes) for var in read_vars(eqn)]
        passes.update(dict.fromkeys(eqn.outvars, max(numbers, default=int(is_row_wise))))
    return RowProgram(program, sizes, assumed, num_row_inputs, axes, reductions, passes)


def _is_row_wise(eqn: Equation, axes: Collection[Var]) -> bool:
    """Whether something that an equation reads or writes has a row axis."""
    return any(var in axes for var in (*read_vars(eqn), *eqn.outvars))


@dataclass(frozen=True)
class Section:
    """Numbers of some equations in program order, what they read from outside (but arrays of rows),
    and what they are for.
    """

    eqns: tuple[int, ...]
    reads: tuple[Var, ...]
    targets: tuple[Var, ...]


@dataclass(frozen=True)
class Phase:
    """One pass over the rows.

    Fields: its number, from 1; `chunk`, whose targets are reductions, then per-row results; the
    `kinds` of the reductions; the row `axes` of the per-row results; `rest`, which reads the
    combined reductions and earlier values and is for what later passes or the outputs need; the
    numbers that chunks have `assumed` in the place of others, and of these the `factors` of each
    reduction (both empty where they do not follow so); `extremes`, the largest and least values of
    earlier passes with which rows are compared.

    Rows of an earlier pass are computed anew, with other last bits: none of them would be the
    largest, and a gradient would miss it. So a chunk that has the largest reads that of its rows as
    they are now.
    """

    number: int
    chunk: Section
    kinds: tuple[Reduction, ...]
    axes: tuple[int, ...]
    extremes: tuple[Var, ...]
    rest: Section
    assumed: Mapping[Var, Any] = field(default_factory=dict)
    factors: tuple[Factors, ...] = ()

    @cached_property
    def partials(self) -> tuple[Var, ...]:
        """The reductions."""
        return self.chunk.targets[: len(self.kinds)]

    @cached_property
    def per_row(self) -> tuple[Var, ...]:
        """The results with a row axis."""
        return self.chunk.targets[len(self.kinds) :]


def _phase(rows: RowProgram, number: int, last: int) -> Phase:
    partials = [var for var in rows.reductions if rows.passes[var] == number]
    per_row = [var for var in rows.row_outputs if rows.passes[var] == number]
    earlier = {v for v, n in rows.passes.items() if 1 <= n < number and v not in rows.axes}
    chunk, extremes = _chunk_section(rows, [*partials, *per_row], earlier)
    kinds = tuple(rows.reductions[var] for var in partials)
    axes = tuple(rows.axes[var] for var in per_row)
    rest = _section(rows, _lasting(rows, number, last), {*earlier, *partials})
    rest = replace(rest, reads=tuple(v for v in rest.reads if v not in partials))
    return _with_assumed(rows, Phase(number, chunk, kinds, axes, extremes, rest))


def _with_assumed(rows: RowProgram, phase: Phase) -> Phase:
    """The same with numbers assumed, where all that is made with them can be put right."""
    chunk = phase.chunk
    assumed = {v: rows.assumed[v] for v in chunk.reads if v in rows.assumed}
    eqns = [rows.program.eqns[number] for number in chunk.eqns]
    factors = factors_of(eqns, assumed, rows.reductions, chunk.targets) if assumed else None
    if factors is None:
        return phase
    chunk = replace(chunk, reads=tuple(v for v in chunk.reads if v not in assumed))
    return replace(phase, chunk=chunk, assumed=assumed, factors=factors[: len(phase.kinds)])


def _chunk_section(
    rows: RowProgram, targets: Sequence[Var], earlier: Collection[Var]
) -> tuple[Section, tuple[Var, ...]]:
    """What a chunk evaluates, and the extremes of earlier passes with which its rows are compared:
    these it reads, and makes anew.
    """
    extremes: set[Var] = set()
    while True:
        again = {v for v, extreme in rows.extremes.items() if extreme in extremes}
        found = _section(rows, targets, set(earlier) - again)
        compared = _compared(rows, found, earlier)
        if compared <= extremes:
            reads = tuple(v for v in rows.passes if v in found.reads or v in extremes)
            return replace(found, reads=reads), tuple(v for v in reads if v in extremes)
        extremes |= compared


def _compared(rows: RowProgram, section: Section, earlier: Collection[Var]) -> set[Var]:
    """The extremes of earlier passes that reach a comparison, or a loop, which may have one."""
    reached = {v: {extreme} for v, extreme in rows.extremes.items() if v in earlier}
    found: set[Var] = set()
    for eqn in (rows.program.eqns[number] for number in section.eqns):
        read = set().union(*(reached.get(v, ()) for v in read_vars(eqn)))
        if eqn.primitive.name in COMPARISONS | LOOPS:
            found |= read
        for var in eqn.outvars:
            reached.setdefault(var, read)
    return found


def _lasting(rows: RowProgram, number: int, last: int) -> list[Var]:
    """What can be had after a pass and is read later; what depends on no rows is computed where it
    is read.
    """
    wanted = {number, 0} if number == last else {number}
    outputs = {a for a in rows.program.outvars if isinstance(a, Var) and rows.passes[a] in wanted}
    is_later = lambda eqn: rows.passes[eqn.outvars[0]] > number or _is_row_wise(eqn, rows.axes)
    read = all_read(filter(is_later, rows.program.eqns))
    outputs.update(var for var in read if rows.passes[var] == number)
    if number < last:
        outputs.update(var for var in rows.extremes.values() if rows.passes[var] == number)
    return [var for var in rows.passes if var in outputs and var not in rows.axes]


def _section(rows: RowProgram, targets: Iterable[Var], earlier: Collection[Var]) -> Section:
    """The equations that targets need; `earlier` values are read."""
    targets = tuple(targets)
    needed = set(targets)
    written: set[Var] = set()
    kept: list[int] = []
    for number, eqn in reversed(list(enumerate(rows.program.eqns))):
        outputs = [v for v in eqn.outvars if v in needed and v not in earlier]
        if outputs:
            written.update(outputs)
            kept.append(number)
            needed.update(read_vars(eqn))
    inputs = {*rows.program.invars[: rows.num_row_inputs], *rows.program.constvars, *written}
    reads = tuple(v for v in rows.passes if v in needed and v not in inputs)
    return Section(tuple(kept[::-1]), reads, targets)


# --- one chunk ------------------------------------------------------------------------------------


def chunk_function(
    rows: RowProgram,
    phase: Phase,
    eqns: Sequence[Equation],
    *,
    is_padded: bool,
) -> Callable[..., list[Any]]:
    """The function (rows..., [number of rows], whether it has each extreme..., reads...) ->
    reductions, per-row results, of one chunk; `eqns` are those of its capacity.
    """
    num_rows = rows.num_row_inputs
    names = [*rows.program.invars[:num_rows], *phase.chunk.reads]

    def run(*inputs: Any) -> list[Any]:
        count = inputs[num_rows] if is_padded else None
        rest = inputs[num_rows + is_padded :]
        has = dict(zip(phase.extremes, rest, strict=False))
        values = [*inputs[:num_rows], *rest[len(has) :]]
        env = rows.constants | dict(phase.assumed) | dict(zip(names, values, strict=True))
        for eqn in (eqns[number] for number in phase.chunk.eqns):
            operands = _operands_of(rows, eqn, env, count)
            for var, found in zip(eqn.outvars, _jax.apply(eqn, operands), strict=True):
                env[var] = lax.select(has[var], found, env[var]) if var in has else found
        return [env[var] for var in phase.chunk.targets]

    return run


def _operands_of(rows: RowProgram, eqn: Equation, env: dict[Var, Any], count: Any) -> list[Any]:
    """What an equation reads; where it reduces rows of which so many count (None: all), no others."""
    reduction = rows.reduction_of(eqn)
    operands: list[Any] = [_jax.read(atom, env) for atom in eqn.invars]
    if reduction is None or count is None:
        return operands
    for place in reduction.masked:
        atom: Any = eqn.invars[place]
        operands[place] = _first_rows(operands[place], rows.axes[atom], reduction.kind, count)
    return operands


def _first_rows(x: Any, axis: int, kind: str, count: Any) -> Any:
    """So many rows; the others are what changes nothing in a reduction."""
    is_there = lax.iota(np.int32, x.shape[axis]) < count
    return masked(x, axis, is_there, identity(kind, x.dtype))


# --- several chunks -------------------------------------------------------------------------------


def combine_all(kinds: tuple[Reduction, ...], results: Sequence[list[Any]]) -> list[Any]:
    """One partial result per reduction."""
    return _combine_together(kinds, *filled(kinds, results))


def filled(
    kinds: Sequence[Reduction], results: Sequence[list[Any]]
) -> tuple[np.int32, list[list[Any]]]:
    """How many partial results there are, and a column of them per reduction: as many as the next
    power of two, the first one repeated.
    """
    extra = (1 << (len(results) - 1).bit_length()) - len(results)
    whole = [*results, *[results[0]] * extra]
    return np.int32(len(results)), [[each[k] for each in whole] for k in range(len(kinds))]


def _combine_partials(
    kinds: Sequence[Reduction], count: Any, columns: Sequence[Values]
) -> list[Any]:
    """Reduce the first `count` of each column, in their order."""
    pairs = zip(kinds, columns, strict=True)
    return [_combined(reduction.kind, count, parts) for reduction, parts in pairs]


_combine_together = jax.jit(_combine_partials, static_argnums=0)


def _combined(kind: str, count: Any, parts: Values) -> Any:
    if kind == "first" or len(parts) == 1:
        return parts[0]
    stack = jnp.stack(list(parts))
    if kind not in IDEMPOTENT:
        stack = _first_rows(stack, 0, kind, count)
    return getattr(lax, f"reduce_{kind}")(stack, (0,))


def rest_function(
    rows: RowProgram, phase: Phase, eqns: Sequence[Equation]
) -> Callable[..., list[Any]]:
    """The function (count, partial results, scales, reads) -> targets: combine, multiply by the
    scales if there are any, then all that follows from the reductions.

    `eqns` are those of the rest, as they are to be evaluated.
    """

    def run(count: Any, partials: Sequence[Values], scales: Any, reads: Values) -> list[Any]:
        env = rows.constants | dict(zip(phase.rest.reads, reads, strict=True))
        totals = _combine_partials(phase.kinds, count, partials)
        for k, (var, total) in enumerate(zip(phase.partials, totals, strict=True)):
            is_scaled = bool(phase.factors and phase.factors[k])
            x = total * scales[k].astype(total.dtype) if is_scaled else total
            env[var] = _jax.typed_as(x, var.aval)
        return evaluated(eqns, phase.rest.targets, env)

    return run
