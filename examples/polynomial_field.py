"""The gradient of one coefficient of a polynomial over many points, in a dataclass of ten.

The polynomial of ninth order of Zygote.jl#323. `wrt` selects one field, or `cut` marks all but one:
nothing is computed backward for the others. The gradient does not depend on the field itself, so
that a new value of it runs no equation. Value and gradient together run the polynomial again, but
not its powers.

Run: python examples/polynomial_field.py
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import incrax

NUM_POINTS = 1_000_000


@jax.tree_util.register_dataclass
@dataclass
class Poly9:
    """Coefficients."""

    c0: Any
    c1: Any
    c2: Any
    c3: Any
    c4: Any
    c5: Any
    c6: Any
    c7: Any
    c8: Any
    c9: Any

    def __call__(self, x: Any) -> Any:
        return sum(getattr(self, field.name) * x**power for power, field in enumerate(fields(self)))


def total(p: Poly9, x: Any) -> jax.Array:
    """Sum over points."""
    return jnp.sum(p(x))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    x = incrax.frozen(np.random.default_rng(0).uniform(0.0, 1.0, NUM_POINTS))
    p = Poly9(*(1.0 / (power + 1) for power in range(10)))

    gradient = incrax.grad(total, wrt="p.c2")
    print(
        f"d/dc2 of {NUM_POINTS:,} points: {gradient(p, x):.3f}, sum of squares: {jnp.sum(x**2):.3f}"
    )
    ran = gradient.stats.ran
    for c2 in (0.1, 0.2, 0.3):
        gradient(replace(p, c2=c2), x)
    print(f"equations run for three other values of c2: {gradient.stats.ran - ran}")

    marked = incrax.cut(replace(p, c2=incrax.uncut(p.c2)))
    of_active = incrax.grad(total)(marked, x)
    print(f"the same with marks: c2 {of_active.c2:.3f}, c3 {of_active.c3}")

    both = incrax.value_and_grad(total, wrt="p.c2", tuning=incrax.Tuning(planner="minimal"))
    both(p, x)
    first = both.explain().as_dict()["num_ran"]
    for c2 in (0.1, 0.2, 0.3):
        value, _ = both(replace(p, c2=c2), x)
    again = both.explain().as_dict()["num_ran"]
    print(
        f"value and gradient: {first} equations at first, {again} after a change of c2; value "
        f"{value:.3f}"
    )


if __name__ == "__main__":
    main()
