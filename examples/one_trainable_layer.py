"""A network of which one layer is trained: the backward pass ends there, and nothing is computed
for the others.

The network is a dataclass. `wrt` picks one layer from it; gradients are incremental, so that the
layers below the trained one, which never change, run once for all steps. The same with an Equinox
module where Equinox is installed.

Run: python examples/one_trainable_layer.py
"""

from __future__ import annotations

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp

import incrax

jax.config.update("jax_enable_x64", True)

SIZES = (8, 64, 64, 64, 1)
TRAINED = 3
STEPS, RATE = 30, 0.1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    w: jax.Array
    b: jax.Array

    def __call__(self, x):
        return x @ self.w + self.b


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Network:
    layers: list[Layer]

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = jnp.tanh(layer(x))
        return self.layers[-1](x)


def make_network(key):
    keys = jax.random.split(key, len(SIZES) - 1)
    shapes = zip(keys, SIZES[:-1], SIZES[1:], strict=True)
    return Network(
        [Layer(jax.random.normal(k, (m, n)) / jnp.sqrt(m), jnp.zeros(n)) for k, m, n in shapes]
    )


def loss(model, x, y):
    return jnp.mean((model(x)[:, 0] - y) ** 2)


def train(model, x, y):
    """Gradient steps for one layer; the losses and how many matrix products a gradient runs, first
    and last.
    """
    gradient = incrax.value_and_grad(
        loss, wrt=f"model.layers[{TRAINED}]", tuning=incrax.Tuning(planner="minimal")
    )
    losses, products = [], []
    for _ in range(STEPS):
        value, of_layer = gradient(model, x, y)
        ran = [row["primitive"] for row in gradient.explain().as_dict()["ran"]]
        losses.append(float(value))
        products.append(ran.count("dot_general"))
        layers = list(model.layers)
        layers[TRAINED] = jax.tree.map(lambda p, g: p - RATE * g, layers[TRAINED], of_layer)
        model = dataclasses.replace(model, layers=layers)
    return losses, products


def with_equinox(x, y):
    """One layer of an Equinox module by the same `wrt`."""
    import equinox

    model = equinox.nn.MLP(SIZES[0], 1, 64, 3, key=jax.random.key(3))
    arrays, static = equinox.partition(model, equinox.is_array)

    def of_arrays(model, x, y):
        return jnp.mean((jax.vmap(equinox.combine(model, static))(x)[:, 0] - y) ** 2)

    _, all_layers = incrax.vjp(of_arrays, arrays, x, y, wrt="model")
    of_last = f"model.layers[{TRAINED}]"
    print(
        f"Equinox: {all_layers.num_operations()} operations for all, "
        f"{all_layers.num_operations(of_last)} for {of_last}"
    )


def main():
    model = make_network(jax.random.key(0))
    x = incrax.frozen(jax.random.normal(jax.random.key(1), (1_000, SIZES[0])))
    y = incrax.frozen(jnp.sin(x[:, 0]) + 0.5 * x[:, 1])

    _, pullback = incrax.vjp(loss, model, x, y, wrt="model")
    for number in range(len(SIZES) - 1):
        wrt = f"model.layers[{number}]"
        print(
            f"cotangents of {wrt}: {pullback.num_operations(wrt):2} of {pullback.num_operations()} "
            "operations"
        )
    losses, products = train(model, x, y)
    print(
        f"{STEPS} steps: loss {losses[0]:.3f} -> {losses[-1]:.3f}; products run by the first "
        f"gradient {products[0]}, ",
        end="",
    )
    print(f"by the last {products[-1]}: the layers below do not run again")
    if importlib.util.find_spec("equinox"):
        with_equinox(x, y)
    else:
        print("Equinox is not installed, left out")


if __name__ == "__main__":
    main()
