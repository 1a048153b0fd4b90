"""The bijections of incrax itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bijectors.cases import KEY, Case, counted
from incrax import bijectors as ib

X = np.array([0.7, -0.4, 1.2])
WIDE = np.array([[0.7, -0.4, 5.0], [-2.9, 2.5, -7.0]])
CONTEXT = np.array([0.3, -0.2])


def moved(bijection: Any, scale: float = 1.0) -> Any:
    """A bijection with other parameters than those it is made with."""
    leaves, treedef = jax.tree.flatten(bijection)
    keys = jax.random.split(KEY, len(leaves))
    return jax.tree.unflatten(
        treedef, [x + scale * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    )


def spline(order: str, num_bins: int = 3) -> Any:
    return ib.Spline(num_bins, 3.0, order)


def coupled(transformer: Any, **options: Any) -> Any:
    return moved(ib.coupling(KEY, dim=3, transformer=transformer, hidden=(4,), **options), 0.5)


def autoregressive(transformer: Any, **options: Any) -> Any:
    return moved(ib.autoregressive(KEY, dim=3, transformer=transformer, hidden=(4,), **options), 0.5)


def residual(**options: Any) -> Any:
    return moved(ib.InvertibleResidual(KEY, dim=3, hidden=(4,), lipschitz=0.8, **options), 2.0)


@jax.custom_jvp
def counted_tanh(x):
    """tanh; says whenever a program computes it, or its slope."""
    return counted("value", jnp.tanh(x))


@counted_tanh.defjvp
def _counted_slope(primals, tangents):
    y = jnp.tanh(primals[0])
    return y, counted("slope", 1 - y**2) * tangents[0]


def composed() -> Any:
    return ib.Compose([coupled(ib.Affine()), ib.LeakyReLU((3,), 0.3), ib.Invert(coupled(ib.Shift()))])


def own_cases() -> dict[str, Case]:
    return {
        "own elu": Case(lambda: ib.ELU((3,), 0.7), X),
        "own leaky relu": Case(lambda: ib.LeakyReLU((3,), 0.3), X, is_eager=True),
        "own fixed affine": Case(lambda: ib.AffineFixed(1.0, -2.0), X, num_event=0),
        "own affine": Case(lambda: moved(ib.Elementwise(ib.Affine(), (3,))), X),
        "own linear spline": Case(lambda: moved(ib.Elementwise(spline("linear"), (2, 3))), WIDE, num_event=2),
        "own quadratic spline": Case(lambda: moved(ib.Elementwise(spline("quadratic"), (2, 3))), WIDE, num_event=2),
        "own fixed": Case(lambda: ib.Fixed(moved(ib.Elementwise(ib.Shift(), ()))), X, num_event=0),
        "own shift coupling": Case(lambda: coupled(ib.Shift()), X),
        "own affine coupling": Case(lambda: coupled(ib.Affine(), mask=[False, True, False]), X),
        "own spline coupling": Case(lambda: coupled(spline("linear")), X),
        "own conditional coupling": Case(lambda: coupled(ib.Affine(), cond_dim=2), X, CONTEXT),
        "own autoregressive": Case(lambda: autoregressive(ib.Affine()), X),
        "own conditional autoregressive": Case(lambda: autoregressive(ib.Affine(), cond_dim=2), X, CONTEXT),
        "own inverse autoregressive": Case(lambda: ib.Invert(autoregressive(ib.Affine())), X),
        "own compose": Case(composed, X),
        "own inverted compose": Case(lambda: ib.Invert(composed()), X),
        "own residual": Case(residual, X),
    }
