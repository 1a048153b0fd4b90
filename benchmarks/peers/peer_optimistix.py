"""Certified problems of least squares, by optimistix's Levenberg-Marquardt at the tolerance where
it does best.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from serving import Case, serve

jax.config.update("jax_enable_x64", True)
NAMES = {name: getattr(jnp, name) for name in ("exp", "cos", "sin", "arctan", "log", "pi")}


def model_of(expression: str) -> Any:
    """The model as NIST writes it: an expression of b1, b2, ..., x or x1, x2, ..."""
    code = compile(expression, "model", "eval")

    def model(b: Any, x: Any) -> Any:
        inputs = {f"b{number + 1}": b[number] for number in range(len(b))}
        columns = {"x": x[0], **{f"x{number + 1}": column for number, column in enumerate(x)}}
        return eval(code, NAMES | inputs | columns)  # noqa: S307

    return model


def solver_of(path: Path) -> Any:
    """A function without arguments that fits one problem."""
    data = np.load(path)
    model, solver = (
        model_of(str(data["expression"])),
        optimistix.LevenbergMarquardt(rtol=1e-10, atol=1e-10),
    )
    x, y, start = jnp.asarray(data["x"]), jnp.asarray(data["y"]), jnp.asarray(data["start"])

    @jax.jit
    def run(start: Any, data: Any) -> Any:
        residuals = lambda b, data: data[1] - model(b, data[0])
        return optimistix.least_squares(
            residuals, solver, start, args=data, max_steps=5000, throw=False
        ).value

    return lambda: jax.block_until_ready(run(start, (x, y)))


def fits(folder: Path) -> Case:
    """All problems of the folder, one after the other."""
    solvers = [solver_of(path) for path in sorted((folder / "nist").glob("*.npz"))]
    call = lambda _: [solve() for solve in solvers]
    return Case(call, lambda found: np.concatenate([np.asarray(each) for each in found]))


if __name__ == "__main__":
    serve({"certified fits of least squares": fits}, ["optimistix", "jax", "numpy"])
