"""The mixture, the polynomial by one field and the rows of a table in PyTorch, eager, as a user
writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from serving import Case, moved, serve

LOW, HIGH = 0.0, 10.0


def normal(x: Any, mean: Any, width: Any) -> Any:
    """Density of a normal on the range."""
    scale = width * 2.0**0.5
    inside = 0.5 * (torch.erf((HIGH - mean) / scale) - torch.erf((LOW - mean) / scale))
    return torch.exp(-0.5 * ((x - mean) / width) ** 2) / (width * (2.0 * torch.pi) ** 0.5) / inside


def nll(p: dict[str, Any], x: Any) -> Any:
    """Negative extended log-likelihood."""
    background = (
        torch.exp(p["lam"] * x)
        * p["lam"]
        / (torch.exp(p["lam"] * HIGH) - torch.exp(p["lam"] * LOW))
    )
    density = (
        p["n1"] * normal(x, p["mu1"], p["s1"])
        + p["n2"] * normal(x, p["mu2"], p["s2"])
        + p["nb"] * background
    )
    return p["n1"] + p["n2"] + p["nb"] - torch.sum(torch.log(density))


def mixture(changed: str, *, with_gradient: bool) -> Any:
    """The mixture while one parameter changes."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "mixture.npz")
        start = {name: float(data[name]) for name in data["names"]}
        x = torch.tensor(data["x"])

        def call(number: int) -> list[float]:
            moved_to = {**start, changed: moved(start[changed], number)}
            p = {
                n: torch.tensor(v, dtype=torch.float64, requires_grad=with_gradient)
                for n, v in moved_to.items()
            }
            found = nll(p, x)
            gradient = torch.autograd.grad(found, list(p.values())) if with_gradient else []
            return [found.item(), *(each.item() for each in gradient)]

        return Case(call, lambda result: result)

    return make


def polynomial(folder: Path) -> Case:
    """Value and derivative by one field of ten."""
    data = np.load(folder / "polynomial.npz")
    start, x = torch.tensor(data["c"]), torch.tensor(data["x"])

    def call(number: int) -> list[float]:
        one = torch.tensor(moved(float(start[2]), number), dtype=torch.float64, requires_grad=True)
        c = [one if k == 2 else start[k] for k in range(10)]
        found = torch.sum(sum(c[k] * x**k for k in range(10)))
        return [found.item(), torch.autograd.grad(found, one)[0].item()]

    return Case(call, lambda result: result)


def table(*, is_sparse: bool) -> Any:
    """The gradient of a loss of some rows of a table."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "table.npz")
        size = int(data["rows"]) * int(data["columns"])
        weights = np.sin(np.arange(size, dtype=np.float32)).reshape(int(data["rows"]), -1)
        rows = torch.nn.Embedding.from_pretrained(
            torch.tensor(weights), freeze=False, sparse=is_sparse
        )
        ids = torch.tensor(data["ids"])

        def call(number: int) -> Any:
            rows.weight.grad = None
            torch.sum(torch.tanh(rows(ids[number % len(ids)])) ** 2).backward()
            return rows.weight.grad

        def read(gradient: Any) -> list[float]:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            return [values.double().abs().sum().item(), (values.double() ** 2).sum().item()]

        return Case(call, read)

    return make


if __name__ == "__main__":
    serve(
        {
            "mixture, value, one yield": mixture("n1", with_gradient=False),
            "mixture, value, one mean": mixture("mu1", with_gradient=False),
            "mixture, value and gradient, one yield": mixture("n1", with_gradient=True),
            "mixture, value and gradient, one mean": mixture("mu1", with_gradient=True),
            "polynomial, value and derivative by one field": polynomial,
            "table, gradient, few rows read (sparse=True)": table(is_sparse=True),
            "table, gradient, few rows read (sparse=False)": table(is_sparse=False),
        },
        ["torch", "numpy"],
    )
