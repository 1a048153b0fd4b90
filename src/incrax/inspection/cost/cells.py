"""Costs, rows, loops and measurements as dictionaries for programs and as cells for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from incrax._table import Table
from incrax.engine.program.cost import Cost
from incrax.inspection.cost.measuring import Measured, Memory, Part
from incrax.inspection.cost.rows import EquationCost, LoopCost

NUM_LISTED = 15
HEADER = ("FLOPs", "transcendentals", "integer ops", "bytes read", "bytes written", "FLOPs / byte")


def quotient(part: float, whole: float) -> float | None:
    """One number by another, never -0.0; None by zero."""
    return part / whole + 0.0 if whole else None


def cost_dict(cost: Cost) -> dict[str, float | None]:
    """A cost for programs."""
    return {
        "flops": cost.flops,
        "transcendentals": cost.transcendentals,
        "int_ops": cost.int_ops,
        "bytes_read": cost.bytes_read,
        "bytes_written": cost.bytes_written,
        "flops_per_byte": quotient(cost.flops, cost.bytes),
    }


def row_dict(row: EquationCost) -> dict[str, Any]:
    """A row for programs."""
    return {
        "primitive": row.primitive,
        "source": row.source,
        "inputs": list(row.inputs),
        "results": list(row.results),
        "inside": row.inside,
        "times": row.times,
        "each": cost_dict(row.each),
        "total": cost_dict(row.total),
        "is_known": row.is_known,
        "is_counted": row.is_counted,
        "runs_again": row.runs_again,
    }


def loop_dict(loop: LoopCost) -> dict[str, Any]:
    """A loop for programs."""
    turns = None if loop.known_from == "unknown" else loop.turns
    known = {"turns": turns, "known_from": loop.known_from, "turn": cost_dict(loop.turn)}
    return {"primitive": loop.primitive, "source": loop.source, "inside": loop.inside, **known}


def _part_dict(part: Part) -> dict[str, Any]:
    memory = part.memory
    return {
        "name": part.name,
        "num_equations": part.num_equations,
        "cost": cost_dict(part.cost),
        "seconds": part.seconds,
        "argument_bytes": memory.argument_bytes,
        "output_bytes": memory.output_bytes,
        "temp_bytes": memory.temp_bytes,
    }


def measured_dict(each: Measured) -> dict[str, Any]:
    """A measured program for programs."""
    parts = [_part_dict(part) for part in each.parts]
    return {
        "name": each.name,
        "whole": _part_dict(each.whole),
        "sum_s": each.sum_s,
        "parts": parts,
        "runs": each.repeats,
    }


# --- cells --------------------------------------------------------------------------------------------------------


def number(x: float | None) -> str:
    """Up to nine digits as they are, of small ones the first four; never -0."""
    if x is None:
        return "-"
    is_shown_whole = x == round(x) or abs(x) >= 1e4
    return f"{x + 0.0:,.0f}" if is_shown_whole and abs(x) < 1e9 else f"{x:.4g}"


def total_cells(name: str, cost: Cost) -> tuple[str, ...]:
    """A cost."""
    parts = (cost.flops, cost.transcendentals, cost.int_ops, cost.bytes_read, cost.bytes_written)
    intensity = quotient(cost.flops, cost.bytes)
    return (name, *map(number, parts), "-" if intensity is None else f"{intensity:.3g}")


def ratios(part: Cost, whole: Cost) -> list[str]:
    """Part by whole, figure by figure."""
    pairs = [
        (part.flops, whole.flops),
        (part.transcendentals, whole.transcendentals),
        (part.int_ops, whole.int_ops),
        (part.bytes_read, whole.bytes_read),
        (part.bytes_written, whole.bytes_written),
    ]
    found = [quotient(*pair) for pair in pairs]
    return ["-" if x is None else f"{x:.3g}" for x in found]


def row_cells(name: str, row: EquationCost) -> tuple[str, ...]:
    """A row."""
    equation = f"{row.primitive} {' '.join(row.inputs)} -> {' '.join(row.results)}"
    total = row.total
    work = (total.flops, total.transcendentals, total.int_ops) if row.is_counted else (None, None, None)
    times = number(row.times) + ("" if row.is_known else " (one turn)")
    return (name, equation, times, *map(number, work), number(total.bytes), row.inside, row.source)


def loop_cells(name: str, loop: LoopCost) -> tuple[str, ...]:
    """A loop."""
    turns = "unknown turns" if loop.known_from == "unknown" else number(loop.turns)
    work = (number(loop.turn.flops), number(loop.turn.transcendentals))
    return (name, loop.primitive, turns, loop.known_from, *work, loop.inside, loop.source)


def shortened(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The first rows, and how many more there are."""
    rest = len(rows) - NUM_LISTED
    return list(rows) if rest <= 0 else [*rows[:NUM_LISTED], (f"... {rest} more", *("" for _ in rows[0][1:]))]


def measured_table(each: Measured) -> Table:
    """A measured program for people."""
    header = ("part", "equations", "FLOPs", "ms", "share of sum", "GFLOP/s", "temporary", "arguments", "results")
    rows = [_part_cells(part, each.sum_s) for part in each.parts]
    rows.append(("sum of the parts", "", "", f"{each.sum_s * 1e3:.3g}", "", "", "", "", ""))
    rows.append(_part_cells(each.whole, None))
    return Table(f"measured: {each.name}, medians of {each.repeats} runs", header, rows)


def _part_cells(part: Part, sum_s: float | None) -> tuple[str, ...]:
    share = "" if sum_s is None else f"{part.seconds / sum_s:.0%}"
    speed = f"{part.cost.flops / part.seconds * 1e-9:.3g}"
    name = part.name if sum_s is not None else "the whole, compiled as one"
    figures = (str(part.num_equations), number(part.cost.flops), f"{part.seconds * 1e3:.3g}", share, speed)
    return (name, *figures, *map(_bytes, _sizes(part.memory)))


def _sizes(memory: Memory) -> Iterable[int | None]:
    return memory.temp_bytes, memory.argument_bytes, memory.output_bytes


def _bytes(size: int | None) -> str:
    if size is None:
        return "-"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
