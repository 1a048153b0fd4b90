"""What a result is: dataclasses, written as JSON and read back with every field checked.

A file holds one `Result`: one run of one benchmark. Times are seconds, ratios are another form's
time divided by ours (above 1: ours is faster), dates are ISO 8601 in local time. `SCHEMA` is raised
when a field changes its meaning.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
CONDITIONS = ("quiet", "busy", "unknown")


class ResultError(ValueError):
    """A file that is no result of this suite; the message names the file, the field and what was
    expected.
    """


@dataclass(frozen=True)
class Timing:
    """Seconds of one form: median and quartiles."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Check:
    """One target of a line: its text, what was reached (empty where the record has only that it was
    met).
    """

    target: str
    reached: str
    is_met: bool
    ratio: str = ""
    """The ratio that the target is about; empty where it is about a count or a bound."""


@dataclass(frozen=True)
class Line:
    """One line of a table: what was run, the cells as shown, and the figures behind them."""

    case: str
    cells: dict[str, str]
    timings: dict[str, Timing] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def missed(self) -> list[Check]:
        """The targets that were not reached."""
        return [check for check in self.checks if not check.is_met]


@dataclass(frozen=True)
class Table:
    """Lines under one title."""

    title: str
    lines: list[Line]


@dataclass(frozen=True)
class Options:
    """How a benchmark was run."""

    quick: bool = False
    rounds: int | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """One run of one benchmark."""

    schema: int
    benchmark: str
    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    options: Options
    tables: list[Table]
    commit: str | None = None
    load: list[float] | None = None
    """Load averages of 1, 5 and 15 minutes before the run."""
    busy: list[float] | None = None
    """Shares of the processors' time that others took right before and right after the run."""
    conditions: str = "unknown"
    seconds: float | None = None
    skipped: str | None = None
    """Why nothing could be measured; the tables are empty then."""

    @property
    def only(self) -> str:
        """What the names of cases had to contain; empty where all were run."""
        words = self.options.arguments
        return words[words.index("--only") + 1] if "--only" in words[:-1] else ""

    @property
    def lines(self) -> list[tuple[str, Line]]:
        """(title, line) of all tables."""
        return [(table.title, line) for table in self.tables for line in table.lines]


# --- writing --------------------------------------------------------------------------------------


def dumps(result: Result) -> str:
    """The text of a file: every field, and every line of a table, on a line of its own."""
    fields = dataclasses.asdict(result)
    fields["tables"] = [_Plain(_table_text(table)) for table in fields["tables"]]
    shown = [f" {json.dumps(name)}: {_text(value)}" for name, value in fields.items()]
    return "{\n" + ",\n".join(shown) + "\n}\n"


class _Plain(str):
    """JSON already."""


def _table_text(table: dict[str, Any]) -> str:
    lines = ",\n".join(f"   {_text(line)}" for line in table["lines"])
    return f'  {{"title": {_text(table["title"])}, "lines": [\n{lines}\n  ]}}'


def _text(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], _Plain):
        return "[\n" + ",\n".join(value) + "\n ]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def save(result: Result, path: Path) -> None:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps(result), encoding="utf-8")


# --- reading --------------------------------------------------------------------------------------


def load(path: Path) -> Result:
    """Read a file and check every field.

    Raises:
        ResultError: the file is missing, is no JSON, or a field is missing, unknown, of another
            type or out of range.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(
            f"{path}: cannot be read ({error.strerror}). Results lie in benchmarks/results; `--run "
            "NAME` makes one."
        ) from None
    except ValueError as error:
        raise ResultError(
            f"{path}: is no JSON ({error}). A run writes it whole: was it edited?"
        ) from None
    return parse(value, str(path))


def load_all(path: Path) -> list[Result]:
    """The results of a file, or of all `.json` files of a folder in the order of their names."""
    if path.is_dir():
        found = [load(each) for each in sorted(path.glob("*.json"))]
        if not found:
            raise ResultError(
                f"{path}: no .json file in this folder; `--run NAME --output {path}` makes one."
            )
        return found
    return [load(path)]


def parse(value: Any, where: str) -> Result:
    """A result from what JSON holds; `where` is named in errors."""
    if not isinstance(value, dict) or "schema" not in value:
        raise ResultError(
            f"{where}: has no field `schema`, so it is no result of this suite. A script's own "
            "`--json FILE` appends "
            "bare tables; `python -m benchmarks --run NAME` writes results."
        )
    if value["schema"] != SCHEMA:
        raise ResultError(
            f"{where}: is of schema {value['schema']!r}; this suite reads {SCHEMA}. It was written "
            "by another version: "
            "run the benchmark again, or read it with that version."
        )
    result = _read(Result, value, where, "")
    _check(result, where)
    return result


def parse_table(value: Any, where: str) -> Table:
    """A table from what a script recorded."""
    return _read(Table, value, where, "")


def _check(result: Result, where: str) -> None:
    if result.conditions not in CONDITIONS:
        raise ResultError(
            f"{where}: `conditions` is {result.conditions!r}; it must be one of "
            f"{', '.join(CONDITIONS)}."
        )
    if result.skipped is None and not result.tables:
        raise ResultError(
            f"{where}: has neither tables nor a reason in `skipped`; nothing can be shown of it."
        )
    for title, line in result.lines:
        for form, timing in line.timings.items():
            if not 0 <= timing.lower <= timing.median <= timing.upper:
                raise ResultError(
                    f"{where}: the times of {form!r} in {title!r}, {line.case!r} are not in order: "
                    "lower quartile "
                    f"{timing.lower:g}, median {timing.median:g}, upper {timing.upper:g} seconds."
                )


def _read(kind: Any, value: Any, where: str, at: str) -> Any:
    """`value` as `kind`, which is a dataclass, a container of them, or plain."""
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, value, where, at)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else _read(inner[0], value, where, at)
    if origin is list:
        _expect(isinstance(value, list), "a list", value, where, at)
        return [
            _read(inner[0], each, where, f"{at}[{number}]") for number, each in enumerate(value)
        ]
    if origin is dict:
        _expect(isinstance(value, dict), "an object", value, where, at)
        return {key: _read(inner[1], each, where, f"{at}.{key}") for key, each in value.items()}
    return _plain(kind, value, where, at)


def _plain(kind: Any, value: Any, where: str, at: str) -> Any:
    if kind is float:
        is_number = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        _expect(is_number, "a finite number", value, where, at)
        return float(value)
    named = {str: "a text", bool: "true or false", int: "a whole number"}[kind]
    _expect(
        isinstance(value, kind) and not (kind is int and isinstance(value, bool)),
        named,
        value,
        where,
        at,
    )
    return value


def _read_fields(kind: Any, value: Any, where: str, at: str) -> Any:
    _expect(isinstance(value, dict), "an object", value, where, at)
    hints, fields = _hints(kind), dataclasses.fields(kind)
    inside = f"{at}." if at else ""
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise ResultError(
            f"{where}: `{inside}{unknown[0]}` is no field of a {kind.__name__.lower()}; known are "
            f"{', '.join(hints)}."
        )
    for each in fields:
        is_needed = (
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        )
        if is_needed and each.name not in value:
            raise ResultError(
                f"{where}: `{inside}{each.name}` is missing; every {kind.__name__.lower()} has one."
            )
    return kind(
        **{name: _read(hints[name], each, where, f"{inside}{name}") for name, each in value.items()}
    )


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(is_right: bool, expected: str, value: Any, where: str, at: str) -> None:  # noqa: FBT001
    if not is_right:
        shown = json.dumps(value) if not isinstance(value, dict | list) else type(value).__name__
        raise ResultError(f"{where}: `{at}` is {shown[:60]}; expected {expected}.")
