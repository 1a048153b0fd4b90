"""The mixture in zfit: two truncated normals and an exponential, extended, one parameter changed at
every call.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import zfit
from serving import Case, moved, serve


def loss_of(folder: Path) -> tuple[Any, dict[str, Any], dict[str, float], float]:
    """The loss, its parameters by name, their values, and log N!, which only zfit's Poisson term
    has.
    """
    data = np.load(folder / "mixture.npz")
    start = {name: float(data[name]) for name in data["names"]}
    space = zfit.Space("x", 0.0, 10.0)
    p = {name: zfit.Parameter(f"{name}_{len(_MADE)}", value) for name, value in start.items()}
    _MADE.append(p)
    shapes = [
        zfit.pdf.Gauss(p["mu1"], p["s1"], obs=space, extended=p["n1"]),
        zfit.pdf.Gauss(p["mu2"], p["s2"], obs=space, extended=p["n2"]),
        zfit.pdf.Exponential(p["lam"], obs=space, extended=p["nb"]),
    ]
    rows = zfit.Data.from_numpy(obs=space, array=data["x"])
    loss = zfit.loss.ExtendedUnbinnedNLL(
        zfit.pdf.SumPDF(shapes), rows, options={"subtr_const": False}
    )
    return loss, p, start, math.lgamma(len(data["x"]) + 1)


_MADE: list[Any] = []
"""Parameters that exist; names are used once."""


def value(changed: str) -> Any:
    """The value while one parameter changes."""

    def make(folder: Path) -> Case:
        loss, p, start, constant = loss_of(folder)

        def call(number: int) -> float:
            p[changed].set_value(moved(start[changed], number))
            return float(loss.value())

        return Case(call, lambda result: [result - constant])

    return make


def value_and_gradient(changed: str) -> Any:
    """The value and all eight derivatives while one parameter changes."""

    def make(folder: Path) -> Case:
        loss, p, start, constant = loss_of(folder)
        params = list(p.values())

        def call(number: int) -> list[float]:
            p[changed].set_value(moved(start[changed], number))
            found, gradient = loss.value_gradient(params)
            return [float(found), *np.asarray(gradient).ravel()]

        return Case(call, lambda result: [result[0] - constant, *result[1:]])

    return make


if __name__ == "__main__":
    serve(
        {
            "mixture, value, one yield": value("n1"),
            "mixture, value, one mean": value("mu1"),
            "mixture, value and gradient, one yield": value_and_gradient("n1"),
            "mixture, value and gradient, one mean": value_and_gradient("mu1"),
        },
        ["zfit", "tensorflow", "numpy"],
    )
