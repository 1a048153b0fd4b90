"""Two networks against one another: a step of the generator computes no gradient of the
discriminator's weights.

The loss is a function of both. Asked for the generator's cotangents, its pullback runs the
equations behind them only; `keep` frees what the others would need. `cut` on the discriminator says
the same once and for all.

Run: python examples/gan_generator.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import incrax

jax.config.update("jax_enable_x64", True)

NUM_SAMPLES, NUM_NOISE, NUM_HIDDEN = 512, 4, 32
STEPS, RATE = 200, 0.1


def init(key, sizes):
    """Weights and offsets of a multilayer perceptron."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [
        {"w": jax.random.normal(k, (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)} for k, m, n in shapes
    ]


def apply(layers, x):
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def generator_loss(gen, disc, noise):
    """Small where the discriminator takes what is generated for real."""
    return jnp.mean(jax.nn.softplus(-apply(disc, apply(gen, noise))))


def discriminator_loss(disc, gen, noise, real):
    fake = apply(gen, noise)
    return jnp.mean(jax.nn.softplus(-apply(disc, real))) + jnp.mean(
        jax.nn.softplus(apply(disc, fake))
    )


def step(weights, cotangents):
    return jax.tree.map(lambda w, ct: w - RATE * ct, weights, cotangents)


def products(pullback, wrt):
    """Matrix products among the operations."""
    return str(pullback.program(wrt)).count("dot_general")


def main():
    key = jax.random.key(0)
    gen = init(jax.random.key(1), (NUM_NOISE, NUM_HIDDEN, 2))
    disc = init(jax.random.key(2), (2, NUM_HIDDEN, 1))
    noise = jax.random.normal(key, (NUM_SAMPLES, NUM_NOISE))

    _, pullback = incrax.vjp(generator_loss, gen, disc, noise, wrt=("gen", "disc"))
    for wrt in (("gen", "disc"), "gen", "disc"):
        print(
            f"cotangents of {wrt!s:18} {pullback.num_operations(wrt):3} operations, "
            f"{products(pullback, wrt)} products"
        )
    print(f"keep(wrt='gen') frees {pullback.keep(wrt='gen'):,} bytes of residuals")
    _, pullback = incrax.vjp(generator_loss, gen, incrax.cut(disc), noise, wrt=(0, 1))
    print(
        f"with cut(disc): {pullback.num_operations()} operations, cotangent of disc: "
        f"{pullback(1.0)[1][0]['w']}"
    )

    for number in range(STEPS):
        k1, k2 = jax.random.split(jax.random.fold_in(key, number))
        noise = jax.random.normal(k1, (NUM_SAMPLES, NUM_NOISE))
        real = jnp.array([2.0, -1.0]) + 0.5 * jax.random.normal(k2, (NUM_SAMPLES, 2))
        _, back = incrax.vjp(discriminator_loss, disc, gen, noise, real, wrt="disc")
        disc = step(disc, back(1.0))
        _, back = incrax.vjp(generator_loss, gen, disc, noise, wrt="gen")
        gen = step(gen, back(1.0))
    made = apply(gen, jax.random.normal(key, (4096, NUM_NOISE)))
    print(
        f"after {STEPS} steps of each: mean of what is generated {made.mean(0).round(2)}, of the "
        "data [2, -1]"
    )


if __name__ == "__main__":
    main()
