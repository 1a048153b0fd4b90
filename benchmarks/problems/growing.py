"""Functions of parameters and rows with as many equations as one asks for: what models of many terms look like.

Each takes a list of parameters, scalars, and a vector of rows; `FUNCTIONS` makes them for a number of equations and of
parameters, which take turns. Small figures keep the values finite at any length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def with_gradient(make: Callable[[int, int], Function], share: float) -> Callable[[int, int], Function]:
    """The value and the gradient for all parameters, of which the value has a share of the equations."""
    return lambda num_equations, num_parameters: jax.value_and_grad(make(int(share * num_equations), num_parameters))


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
