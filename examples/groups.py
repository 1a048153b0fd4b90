"""The example of the README: one group after the other changes, by `jax.jit` and by incrax.

Run: python examples/groups.py
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import incrax

y = np.random.default_rng(1).normal(size=(2_000, 500))  # 500 observations of each of 2,000 groups


def log_density(theta, scale):  # a robust likelihood and a prior
    return -jnp.sum(jnp.log1p(((y - theta[:, None]) / scale) ** 2)) - jnp.sum(theta**2)


for name, transform in (("jax.jit", jax.jit), ("incrax", incrax.incremental)):
    f = transform(jax.value_and_grad(log_density))  # the only line that differs
    theta = np.zeros(2_000)
    start = time.perf_counter()
    for step in range(5_000):  # as samplers, scans and profiles do
        theta = theta.copy()
        theta[step % 2_000] = np.sin(step)
        value, gradient = f(theta, 1.3)
    print(f"{name}: {float(value):.0f}, {time.perf_counter() - start:.1f} s, compiling included")
