"""Functions of parameters and rows with as many equations as one asks for: what models of many
terms look like.

Each takes a list of parameters, scalars, and a vector of rows; `FUNCTIONS` makes them for a number
of equations and of parameters, which take turns. Small figures keep the values finite at any
length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Function = Callable[[Sequence[Any], Any], Any]


def chain(num_equations: int, num_parameters: int) -> Function:
    """Each step reads the one before: y <- tanh(y p) + x."""

    def value(params: Sequence[Any], x: Any) -> Any:
        y = x
        for k in range(num_equations // 3):
            y = jnp.tanh(y * params[k % num_parameters]) + x
        return jnp.sum(y)

    return value


def terms(num_equations: int, num_parameters: int) -> Function:
    """The logarithm of a sum of many terms, p_k exp(-a x) with a constant a of its own in each."""

    def value(params: Sequence[Any], x: Any) -> Any:
        total = jnp.zeros_like(x)
        for k in range(num_equations // 4):
            total = total + params[k % num_parameters] * jnp.exp((1.0 + 1e-4 * k) * x)
        return jnp.sum(jnp.log(total))

    return value


def blocks(num_equations: int, num_parameters: int) -> Function:
    """A sum of independent chains, one for each parameter."""
    length = max(num_equations // num_parameters // 2, 1)

    def value(params: Sequence[Any], x: Any) -> Any:
        total = 0.0
        for p in params:
            y = x
            for _ in range(length):
                y = jnp.sin(y * p)
            total = total + jnp.sum(y)
        return total

    return value


def penalty(params: Sequence[Any], x: Any) -> Any:
    """A sum over rows that no parameter reaches, and one cheap term for all parameters."""
    return jnp.sum(jnp.exp(jnp.sin(x))) + 0.5 * jnp.sum(jnp.stack(params) ** 2)


def with_gradient(
    make: Callable[[int, int], Function], share: float
) -> Callable[[int, int], Function]:
    """The value and the gradient for all parameters, of which the value has a share of the
    equations.
    """
    return lambda num_equations, num_parameters: jax.value_and_grad(
        make(int(share * num_equations), num_parameters)
    )


FUNCTIONS: dict[str, Callable[[int, int], Function]] = {
    "chain": chain,
    "chain, gradient": with_gradient(chain, 1 / 4),
    "terms": terms,
    "terms, gradient": with_gradient(terms, 1 / 2),
    "blocks": blocks,
    "blocks, gradient": with_gradient(blocks, 1 / 4),
}


def make_parameters(num: int) -> list[float]:
    """Parameters near one."""
    return [1.0 + 0.1 * k / num for k in range(num)]


# --- many inputs, of which one changes ------------------------------------------------------------


def make_components(num: int) -> dict[str, list[float]]:
    """Yields, means and widths of normals side by side."""
    return {
        "size": [1.0 + 0.1 * k / num for k in range(num)],
        "mean": [10.0 * (k + 0.5) / num for k in range(num)],
        "width": [0.5 + 0.1 * k / num for k in range(num)],
    }


def components(p: Mapping[str, Sequence[Any]], x: Any) -> Any:
    """Minus the logarithm of a sum of normals and a constant, summed over rows."""
    density = jnp.full_like(x, 0.1)
    for size, mean, width in zip(p["size"], p["mean"], p["width"], strict=True):
        density = density + size * _normal(x, mean, width)
    return -jnp.sum(jnp.log(density))


def _normal(x: Any, mean: Any, width: Any) -> Any:
    z = (x - mean) / width
    return jnp.exp(-0.5 * z * z) / width


def hoisted_components(p: Mapping[str, Sequence[Any]], x: Any) -> Callable[..., Any]:
    """Value and gradient when only the first mean changes: all other normals, and their
    derivatives, are kept.

    d(-sum log f) / dq = -sum (df/dq) / f for every input q; of the first normal, df/dq is computed
    again.
    """
    others = list(zip(p["size"][1:], p["mean"][1:], p["width"][1:], strict=True))
    size, width = p["size"][0], p["width"][0]

    @jax.jit
    def prepare(x: Any) -> tuple[Any, Any]:
        rest = jnp.full_like(x, 0.1)
        columns = []
        for s, m, w in others:
            z, shape = (x - m) / w, _normal(x, m, w)
            rest = rest + s * shape
            columns += [shape, s * shape * z / w, s * shape * (z * z - 1.0) / w]
        return rest, jnp.stack(columns) if columns else jnp.zeros((0, *x.shape))

    @jax.jit
    def value_and_gradient(mean: Any, x: Any, rest: Any, columns: Any) -> Any:
        z, shape = (x - mean) / width, _normal(x, mean, width)
        density = rest + size * shape
        weights = 1.0 / density
        own = [shape, size * shape * z / width, size * shape * (z * z - 1.0) / width]
        moved = [-jnp.sum(column * weights) for column in own]
        kept = -(columns @ weights)
        gradient = {
            name: [moved[k], *(kept[k::3])] for k, name in enumerate(("size", "mean", "width"))
        }
        return -jnp.sum(jnp.log(density)), gradient

    rest, columns = prepare(x)
    return lambda q, x: value_and_gradient(q["mean"][0], x, rest, columns)


def long_chain(params: Sequence[Any], x: Any) -> Any:
    """Two operations for each parameter, one after the other: y <- sin(y p)."""
    y = x
    for p in params:
        y = jnp.sin(y * p)
    return jnp.sum(y)


def hoisted_chain(params: Sequence[Any], x: Any) -> Callable[..., Any]:
    """The value when only the last parameter changes: all steps but the last are kept."""
    kept = jax.jit(lambda x: functools.reduce(lambda y, p: jnp.sin(y * p), params[:-1], x))(x)
    last = jax.jit(lambda p, y: jnp.sum(jnp.sin(y * p)))
    return lambda q, x: last(q[-1], kept)
