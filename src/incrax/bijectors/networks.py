"""Small networks that compute the parameters of transformers.

In: sizes and a key. Out: pytrees that map vectors along the last axis, with any leading axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax.bijectors.bijection import node, set_fields
from incrax.bijectors.messages import wrong_size


@node("weights", "biases")
class MLP:
    """Dense layers with an activation between them.

    Args:
        key: of the weights, normal with variance 1/fan-in.
        sizes: of the input, of every hidden layer, of the output.
        activation: elementwise function.
        scale: factor of the weights of the last layer; small: a flow that starts near the identity.

    Source: `DenseAutoregressive` of FlowTorch without its masks.
    """

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    activation: Callable[[Any], Any]

    def __init__(
        self, key: Any, sizes: Sequence[int], activation: Callable[[Any], Any] = jnp.tanh, scale: float = 1.0
    ) -> None:
        weights, biases = initial("MLP", key, sizes, scale)
        set_fields(self, weights=weights, biases=biases, activation=activation)

    def __call__(self, x: Any) -> Any:
        """The output of the last layer."""
        return evaluate(self.weights, self.biases, self.activation, x)


@node("weights", "biases")
class MaskedMLP:
    """Dense layers whose output i depends on the inputs before i, and on all context variables, only.

    Args:
        key: of the weights, normal with variance 1/fan-in.
        dim: of the vector, followed in the input by the context.
        num_outputs: for each component; they are along the last of two axes of the output, (dim, num_outputs).
        hidden: sizes of the hidden layers.
        cond_dim: number of context variables.
        activation: elementwise function.
        scale: factor of the weights of the last layer.

    Source: Germain, Gregor, Murray and Larochelle 2015, arXiv:1502.03509; `DenseAutoregressive` of FlowTorch.
    """

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    activation: Callable[[Any], Any]
    sizes: tuple[int, ...]
    cond_dim: int

    def __init__(
        self,
        key: Any,
        *,
        dim: int,
        num_outputs: int,
        hidden: Sequence[int] = (32,),
        cond_dim: int = 0,
        activation: Callable[[Any], Any] = jnp.tanh,
        scale: float = 1.0,
    ) -> None:
        if not hidden:
            raise wrong_size("MaskedMLP", "hidden", hidden, "at least one size")
        weights, biases = initial("MaskedMLP", key, (dim + cond_dim, *hidden, dim * num_outputs), scale)
        sizes = (dim, num_outputs)
        set_fields(self, weights=weights, biases=biases, activation=activation, sizes=sizes, cond_dim=cond_dim)

    def __call__(self, x: Any) -> Any:
        """The outputs of every component, of shape (..., dim, num_outputs)."""
        weights = [weight * mask for weight, mask in zip(self.weights, self._masks(), strict=True)]
        out = evaluate(weights, self.biases, self.activation, x)
        return out.reshape((*out.shape[:-1], *self.sizes))

    def _masks(self) -> list[np.ndarray]:
        """A hidden unit of degree m sees inputs 1..m and the context (degree 0); output i sees degrees below i."""
        dim, num_outputs = self.sizes
        first = 0 if self.cond_dim or dim == 1 else 1
        degrees = [np.concatenate([np.arange(1, dim + 1), np.zeros(self.cond_dim, int)])]
        degrees += [first + np.arange(len(bias)) % max(dim - first, 1) for bias in self.biases[:-1]]
        masks = [below[:, None] <= above for below, above in zip(degrees[:-1], degrees[1:], strict=True)]
        return [*masks, degrees[-1][:, None] < np.repeat(np.arange(1, dim + 1), num_outputs)]


def initial(name: str, key: Any, sizes: Sequence[int], scale: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Weights and biases of dense layers.

    Raises:
        BijectionArgumentError: a size is no positive number, or there are fewer than two.
    """
    if len(sizes) < 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise wrong_size(name, "sizes", tuple(sizes), "two or more positive numbers")
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
    factors = [1.0] * (len(pairs) - 1) + [scale]
    weights = tuple(
        factor * jax.random.normal(k, pair) / math.sqrt(pair[0])
        for k, pair, factor in zip(keys, pairs, factors, strict=True)
    )
    return weights, tuple(jnp.zeros(size) for size in sizes[1:])


def evaluate(weights: Sequence[Any], biases: Sequence[Any], activation: Callable[[Any], Any], x: Any) -> Any:
    """The affine map x W + b of every layer, with the activation between them."""
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = (activation(x) if number else x) @ weight + bias
    return x
