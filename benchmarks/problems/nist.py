"""NIST's certified problems of non-linear regression (StRD), read as they are published: data,
model, values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

FOLDER = Path(os.environ.get("NIST_STRD", Path(__file__).parents[3] / "shared" / "nist"))
"""Where the files of itl.nist.gov/div898/strd/nls lie."""
NAMES = {name: getattr(jnp, name) for name in ("exp", "cos", "sin", "arctan", "log", "pi")}


class Problem(NamedTuple):
    """One data set with its model y = f(b, x), two starts, and what NIST certifies."""

    name: str
    model: Callable[[Any, Any], Any]
    x: np.ndarray
    y: np.ndarray
    starts: tuple[np.ndarray, np.ndarray]
    params: np.ndarray
    standard_errors: np.ndarray
    sum_of_squares: float
    expression: str
    """The model as it is published."""

    def residuals(self, b: Any) -> Any:
        """y minus the model, shape (rows,)."""
        return self.y - self.model(b, self.x)


def names() -> list[str]:
    """The problems that are here; none where the data are missing."""
    return sorted(path.stem for path in FOLDER.glob("*.dat"))


@cache
def problem(name: str) -> Problem:
    """One problem by its name."""
    text = (FOLDER / f"{name}.dat").read_text()
    table = np.array([line.split() for line in text.split("\n") if re.match(r"\s*b\d+ =", line)])
    values = table[:, 2:].astype(float)
    rows = text[text.rindex("\nData:") :].split("\n")[2:]
    data = np.array([line.split() for line in rows if line.strip()], dtype=float)
    is_log, formula = _formula(text)
    y = np.log(data[:, 0]) if is_log else data[:, 0]
    sum_of_squares = float(re.findall(r"Residual Sum of Squares:\s+(\S+)", text)[0])
    starts = values[:, 0], values[:, 1]
    model = _model(formula)
    return Problem(
        name, model, data[:, 1:].T, y, starts, values[:, 2], values[:, 3], sum_of_squares, formula
    )


def _formula(text: str) -> tuple[bool, str]:
    """Whether the model is of log y, and its right side as an expression of Python."""
    found = re.search(
        r"Parameters \(.*?\)\s*\n(.*?)Starting", text[text.index("\nModel:") :], re.S | re.I
    )
    assert found is not None
    left, right = found[1][found[1].index(" y" if " y" in found[1] else "log[y]") :].split("=", 1)
    expression = " ".join(right.split()).removesuffix("+ e").replace("[", "(").replace("]", ")")
    return "log" in left, expression


def _model(expression: str) -> Callable[[Any, Any], Any]:
    code = compile(expression, "model", "eval")

    def model(b: Any, x: Any) -> Any:
        inputs = {f"b{number + 1}": b[number] for number in range(len(b))}
        columns = {"x": x[0], **{f"x{number + 1}": column for number, column in enumerate(x)}}
        return eval(code, NAMES | inputs | columns)  # noqa: S307

    return model


def digits(found: Any, certified: Any) -> float:
    """The log relative error: how many digits agree, at worst; 11 are certified."""
    error = np.abs(np.asarray(found) - certified) / np.abs(certified)
    return float(
        np.clip(
            np.nan_to_num(-np.log10(np.maximum(np.nan_to_num(error, nan=1e9), 1e-11)), nan=0).min(),
            0,
            11,
        )
    )
