"""The amplitude analysis in tensorwaves: an intensity of which it precomputes what no free
parameter reaches.

`create_cached_function` and `UnbinnedNLL` of its JAX backend, the couplings free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import sympy as sp
from serving import Case, moved, serve
from tensorwaves.estimator import UnbinnedNLL, create_cached_function

MASS_A, MASS_B, RADIUS = 0.13957, 0.49368, 5.0
SPINS = (0, 1, 2, 1)
EVENT = ("mass", "cosine", "phi")


def momentum_squared(mass: Any) -> Any:
    """Squared break-up momentum of the two daughters."""
    return (mass**2 - (MASS_A + MASS_B) ** 2) * (mass**2 - (MASS_A - MASS_B) ** 2) / (4 * mass**2)


def barrier(spin: int, z: Any) -> Any:
    """Blatt-Weisskopf factor of a spin."""
    if spin == 0:
        return sp.Integer(1)
    return z / (1 + z) if spin == 1 else z**2 / ((z - 3) ** 2 + 9 * z)


def intensity(data: Any) -> tuple[Any, dict[Any, float]]:
    """The expression, and the values of its parameters: couplings free, masses and widths as
    numbers.
    """
    mass, cosine, phi = sp.symbols(EVENT, real=True)
    sine = sp.sqrt(1 - cosine**2)
    angular = (sp.Integer(1), cosine, -sine / sp.sqrt(2) * sp.exp(sp.I * phi))
    angular = (*angular, -sp.sqrt(sp.Rational(3, 2)) * sine * cosine * sp.exp(sp.I * phi))
    total, values = sp.Integer(0), {}
    for k, (pole, width) in enumerate(zip(data["mass"], data["width"], strict=True)):
        re, im = sp.symbols(f"re{k} im{k}", real=True)
        values |= {re: float(data["re"][k]), im: float(data["im"][k])}
        q, q_pole = momentum_squared(mass), momentum_squared(float(pole))
        spin = SPINS[k % 4]
        ratio = barrier(spin, q * RADIUS**2) / barrier(spin, q_pole * RADIUS**2)
        running = float(width) * (float(pole) / mass) * sp.sqrt(q / q_pole) * ratio
        shape = (
            float(pole * width)
            * sp.sqrt(ratio)
            / (float(pole) ** 2 - mass**2 - sp.I * float(pole) * running)
        )
        total += (re + sp.I * im) * shape * angular[k % 4]
    return sp.Abs(total) ** 2, values


def couplings(*, with_gradient: bool) -> Any:
    """The likelihood while all couplings move."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "amplitude.npz")
        expression, values = intensity(data)
        cached, transform = create_cached_function(
            expression, parameters=values, free_parameters=set(values), backend="jax"
        )
        rows = [
            transform({name: data[f"{kind}_{name}"] for name in EVENT})
            for kind in ("data", "monte_carlo")
        ]
        loss = UnbinnedNLL(cached, *rows, backend="jax")
        start = {str(symbol): value for symbol, value in values.items()}

        def call(number: int) -> list[float]:
            p = {name: moved(value, number) for name, value in start.items()}
            found = [float(loss(p))]
            if with_gradient:
                gradient = loss.gradient(p)
                found += [
                    float(gradient[f"{part}{k}"])
                    for part in ("re", "im")
                    for k in range(len(data["re"]))
                ]
            return found

        return Case(call, lambda result: result)

    return make


if __name__ == "__main__":
    serve(
        {
            "amplitude, value, couplings": couplings(with_gradient=False),
            "amplitude, value and gradient, couplings": couplings(with_gradient=True),
        },
        ["tensorwaves", "jax", "numpy"],
    )
