"""Results that were kept as the printed text of a script, as results of this suite.

A table is taken only if printing it again gives the lines that were read, so that no figure can end
up in another column. What is not part of a table stays as a note.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.suite import schema
from benchmarks.suite.schema import Check, Line, Table, Timing
from benchmarks.suite.text import as_text

NUMBER = r"[-+]?[\d.]+(?:e[-+]?\d+)?"
TIMED = re.compile(rf"({NUMBER}) (us|ms) \[({NUMBER})-({NUMBER})\]")
SECONDS = {"us": 1e-6, "ms": 1e-3}
MACHINE = re.compile(
    r"^(?:date (\S+)  )?cpu (.*?)  device (.*?)  python (\S+)  jax (\S+)  incrax (\S+)$"
)
RULE = re.compile(r"^-+(  -+)*$")
PROGRESS = re.compile(r": .* \(\d+\.\d s\)")
SUMMARY = re.compile(r"^\d+ lines with a target, \d+ short$")
BUSY_NOTE = re.compile(r"kept busy|load average of|\(load ")
COMPARATOR = re.compile(rf"(<=|>=) ?{NUMBER}")


class ImportingError(ValueError):
    """A text whose tables cannot be taken over faithfully; the message says which line."""


@dataclass
class _Found:
    """What a text holds."""

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    title: str = ""


def result_of(path: Path, benchmark: str) -> schema.Result:
    """The result that a text file of this benchmark holds; the file's name has the date, and says
    if it was busy.

    Raises:
        ImportingError: no table, or one that does not print as it was read.
    """
    found = _read(path.read_text(encoding="utf-8").splitlines(), path.name)
    if not found.tables:
        raise ImportingError(
            f"{path.name}: has no table of a script (a line of dashes under the names of the "
            "columns)."
        )
    words = path.stem.split("-")
    return schema.Result(
        schema=schema.SCHEMA,
        benchmark=benchmark,
        date=found.date or "-".join(words[:3]),
        machine=found.machine,
        versions=found.versions,
        options=schema.Options(),
        tables=found.tables,
        conditions=_conditions(words, found.notes),
        source=path.name,
        notes=found.notes,
    )


def benchmark_of(path: Path, known: Sequence[str]) -> str:
    """The benchmark that a file's name speaks of, the longest name that fits.

    Raises:
        ImportingError: there is none.
    """
    words = "_".join(path.stem.split("-")[3:])
    fitting = [name for name in known if words == name or words.startswith(f"{name}_")]
    if not fitting:
        raise ImportingError(
            f"{path.name}: its name must be DATE-BENCHMARK.txt; known are {', '.join(known)}."
        )
    return max(fitting, key=len)


def _conditions(words: Sequence[str], notes: Sequence[str]) -> str:
    """What the file's name says, or else its notes."""
    if any(BUSY_NOTE.search(note) for note in notes):
        return "busy"
    return next((word for word in ("quiet", "busy") if word in words), "unknown")


def _read(lines: Sequence[str], name: str) -> _Found:
    found, number = _Found(), 0
    while number < len(lines):
        machine = MACHINE.match(lines[number])
        if machine:
            _note_machine(found, machine)
        elif number + 1 < len(lines) and RULE.match(lines[number + 1]):
            number = _take_table(found, lines, number, name)
            continue
        elif _is_note(lines[number]):
            found.notes.append(lines[number].strip())
            found.title = lines[number].strip()
        number += 1
    titles = {table.title for table in found.tables}
    found.notes = [note for note in found.notes if note not in titles]
    return found


def _is_note(line: str) -> bool:
    return bool(line.strip()) and not PROGRESS.search(line) and not SUMMARY.match(line)


def _note_machine(found: _Found, machine: re.Match[str]) -> None:
    """The first table's; all tables of a file are of one machine."""
    date, cpu, device, python, jax, incrax = machine.groups()
    found.date = found.date or date or ""
    model, _, cores = cpu.rpartition(" x ")
    found.machine = found.machine or {"cpu": model, "cores": cores, "device": device}
    found.versions = found.versions or {"python": python, "jax": jax, "incrax": incrax}


def _take_table(found: _Found, lines: Sequence[str], number: int, name: str) -> int:
    """Read the table whose header is at `number`; the number of the first line behind it."""
    starts = [match.start() for match in re.finditer(r"-+", lines[number + 1])]
    end = number + 2
    while end < len(lines) and lines[end].strip() and not SUMMARY.match(lines[end]):
        end += 1
    header, *rows = [_cells(line, starts) for line in (lines[number], *lines[number + 2 : end])]
    if as_text([header, *rows]) != [line.rstrip() for line in lines[number:end]]:
        raise ImportingError(f"{name}, line {number + 1}: the table does not print as it was read.")
    made = [_line(dict(zip(header, row, strict=True)), f"{name}, {row[0]!r}") for row in rows]
    found.tables.append(Table(found.title, made))
    return end


def _cells(line: str, starts: Sequence[int]) -> list[str]:
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


# --- lines ----------------------------------------------------------------------------------------


def _line(row: dict[str, str], where: str) -> Line:
    cells = {
        name: cell
        for name, cell in row.items()
        if name not in ("case", "target", "verdict") and cell
    }
    timings = {
        name: _timing(match) for name, cell in cells.items() if (match := TIMED.search(cell))
    }
    ratios, figures = {}, {}
    for name, cell in cells.items():
        sides = name.rpartition(" / ")
        if plain := re.fullmatch(rf"({NUMBER})(?: s)?", cell):
            (ratios if sides[0] in timings and sides[2] in timings else figures)[name] = float(
                plain[1]
            )
    checks = _checks(row.get("target", ""), row.get("verdict", ""), ratios, where)
    return Line(row["case"], cells, timings, ratios, figures, checks)


def _timing(match: re.Match[str]) -> Timing:
    median, unit, lower, upper = match.groups()
    return Timing(*(float(text) * SECONDS[unit] for text in (median, lower, upper)))


def _checks(targets: str, verdict: str, ratios: dict[str, float], where: str) -> list[Check]:
    """The targets; of those that were missed, what was reached."""
    forms = [name.rpartition(" / ")[0] for name in ratios]
    missed = (
        _pieces(verdict.removeprefix("short: "), forms) if verdict.startswith("short: ") else []
    )
    made = []
    for target in _pieces(targets, forms):
        pattern = _reached_pattern(target)
        reached = next((text for text in missed if re.fullmatch(pattern, text)), None)
        if reached is not None:
            missed.remove(reached)
        made.append(Check(target, reached or "", reached is None, _ratio_of(target, ratios)))
    if missed:
        raise ImportingError(
            f"{where}: reached {missed[0]!r}, but no target is like that: {targets!r}."
        )
    return made


def _pieces(text: str, forms: Sequence[str]) -> list[str]:
    """Parts between commas, but for commas in the names of forms."""
    made: list[str] = []
    for part in text.split(", ") if text else []:
        whole = f"{made[-1]}, {part}" if made else part
        is_open = bool(made) and made[-1].count("(") > made[-1].count(")")
        is_name = bool(made) and any(
            re.fullmatch(rf"(>=)?{NUMBER}x {re.escape(form)}", whole) for form in forms
        )
        if is_open or is_name:
            made[-1] = whole
        else:
            made.append(part)
    return made


def _reached_pattern(target: str) -> str:
    """What a figure reached looks like: the target with any number in the place of the bound."""
    before, bound, after = COMPARATOR.sub("\0", target).partition("\0")
    if bound:
        return re.escape(before) + NUMBER + re.escape(after)
    return re.sub(r"\d+", lambda _: NUMBER, re.escape(target)) + "s?"


def _ratio_of(target: str, ratios: dict[str, float]) -> str:
    """The ratio that a target is about: `>=2x jax.jit`, `<=1.05 t(jax.jit)`."""
    found = re.fullmatch(rf">={NUMBER}x (.*)", target) or re.fullmatch(
        rf"<={NUMBER} t\((.*)\)", target
    )
    if not found:
        return ""
    return next((name for name in ratios if name.rpartition(" / ")[0] == found[1]), "")
