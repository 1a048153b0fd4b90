"""A fixed table of small functions: every kind of equation the engine has a rule for, and the safe
default.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

V = np.linspace(0.2, 1.7, 6)
M = np.arange(12.0).reshape(3, 4) / 7 + 0.3


@jax.custom_jvp
def twice(x):
    return 2 * x


twice.defjvps(lambda t, ans, x: 2 * t + 0 * ans)


@jax.custom_vjp
def lopsided(x, y):
    return x * y


lopsided.defvjp(
    lambda x, y: (x * y, (x, y)), lambda res, g: (3.0 * jnp.sum(g * res[1]), g * res[0])
)


@jax.jit
def inner(x, y):
    return jnp.tanh(x) * y + jnp.sum(y)


def scan_carry(a, xs, b):
    def step(carry, x):
        return carry * jnp.exp(-b) + a * x, carry + jnp.sin(b)

    return jax.lax.scan(step, a, xs)


def scan_two_carries(a, xs, b):
    def step(carry, x):
        one, two = carry
        return (one + x * a, two * 0.5 + b), two

    return jax.lax.scan(step, (a, b), xs, reverse=True)


def nested_scan(a, xs, b):
    def outer(carry, x):
        total, _ = jax.lax.scan(lambda c, y: (c + y * jnp.cos(b) * x, None), carry, xs)
        return total, total

    return jax.lax.scan(outer, a, xs)


CORPUS = {
    "arithmetic": (lambda a, v, m: (a * v + 1, jnp.sum(v) / a, m @ v[:4], -m), (1.5, V, M)),
    "sign sensitive": (
        lambda a, b: (1 / a, jnp.arctan2(a, b), jnp.copysign(b, a), jnp.sqrt(a), jnp.log(b)),
        (0.5, 2.0),
    ),
    "unpacked vector": (
        lambda t, v: (t[0] * v, jnp.sin(t[1]) + t[2], jnp.stack([t[2], t[0]])),
        (V[:3].copy(), V),
    ),
    "rebuilt vector": (
        lambda t: jnp.array([t[1], 2.0, t[0]]) * jnp.concatenate([t, t])[1:4],
        (V[:2].copy(),),
    ),
    "reshaped vector": (
        lambda t: (t.reshape(2, 3).T[1], jnp.split(t, 3)[1], t[::-1][:2], jnp.roll(t, 2)),
        (V.copy(),),
    ),
    "updated vector": (
        lambda t, a: (t.at[1].set(a), t.at[2].add(a), t.at[jnp.array([0, 3])].mul(2.0)),
        (V.copy(), 3.0),
    ),
    "indexed by an input": (
        lambda t, i: (t[i], t[i : i + 1] if False else jax.lax.dynamic_slice(t, (i,), (2,))),
        (V, 2),
    ),
    "gather": (lambda t, a: (t[jnp.array([3, 1, 1])] * a, jnp.take(t, 4)), (V, 2.0)),
    "where": (
        lambda v, a: (jnp.where(v > a, v, a), jnp.clip(v, 0.3, a), jnp.maximum(v, a)),
        (V, 1.0),
    ),
    "reductions": (
        lambda m, a: (m.sum(0) * a, m.max(), m.prod(1), jnp.var(m), jnp.linalg.norm(m), m.argmax()),
        (M, 2.0),
    ),
    "cumulative": (
        lambda v, a: (jnp.cumsum(v) * a, jnp.cumprod(v), jnp.sort(v)[::-1], jnp.argsort(v)),
        (V, 2.0),
    ),
    "linear algebra": (
        lambda m, b: (
            jnp.linalg.cholesky(m @ m.T + jnp.eye(3)),
            jnp.linalg.solve(m @ m.T + jnp.eye(3), b),
        ),
        (M, V[:3].copy()),
    ),
    "complex": (
        lambda z, v: (z * v, jnp.abs(z) ** 2, jnp.exp(1j * v) * z, jnp.conj(z)),
        (1 + 2j, V),
    ),
    "integers": (lambda n, v: (n + 1, v * n, n // 2, n % 3, jnp.int32(n) << 2), (7, V)),
    "booleans": (lambda b, v: (jnp.logical_not(b), jnp.where(b, v, -v)), (np.bool_(True), V)),
    "casts": (
        lambda a, v: (jnp.float32(a) * 2, v.astype(jnp.bfloat16) + 1, jnp.int32(a)),
        (1.25, V),
    ),
    "jit twice": (lambda a, b, v: (inner(a, v), inner(b, v)), (0.5, 0.7, V)),
    "custom_jvp": (lambda a, v: twice(a) * jax.nn.relu(v), (1.5, V)),
    "custom_vjp": (lambda a, v: lopsided(a, v) + lopsided(2 * a, v), (1.5, V)),
    "remat": (lambda a, v: jax.checkpoint(lambda a: jnp.sin(a) * v)(a), (1.5, V)),
    "stop_gradient": (lambda a, v: a * jax.lax.stop_gradient(v) + v, (1.5, V)),
    "cond": (
        lambda a, b, v: jax.lax.cond(a > 1, lambda: (v * b, a), lambda: (v, b)),
        (1.5, 0.5, V),
    ),
    "switch": (
        lambda n, a: jax.lax.switch(n, [lambda a: a, lambda a: a * 2, lambda a: jnp.sin(a)], a),
        (1, 0.5),
    ),
    "scan": (scan_carry, (1.0, V, 0.3)),
    "scan of length 0": (scan_carry, (1.0, V[:0].copy(), 0.3)),
    "scan of length 1": (scan_carry, (1.0, V[:1].copy(), 0.3)),
    "scan in reverse": (scan_two_carries, (1.0, V, 0.3)),
    "nested scan": (nested_scan, (1.0, V[:3].copy(), 0.3)),
    "fori": (
        lambda n, a, v: jax.lax.fori_loop(0, n, lambda i, c: c * jnp.cos(a) + v[0], a),
        (3, 0.5, V),
    ),
    "while": (
        lambda a, b: jax.lax.while_loop(
            lambda c: c[0] < a, lambda c: (c[0] + 1, c[1] * jnp.exp(b)), (0.0, b)
        ),
        (2.5, 0.1),
    ),
    "vmap": (lambda v, a: jax.vmap(lambda x: jnp.sin(x) * a)(v), (V, 2.0)),
    "grad inside": (lambda a, v: jax.grad(lambda a: jnp.sum(jnp.sin(a * v)))(a) * v, (0.5, V)),
    "hessian": (jax.hessian(lambda t, v: jnp.sum(jnp.exp(t[0] * v) * t[1])), (V[:2].copy(), V)),
    "jacfwd": (jax.jacfwd(lambda t, v: jnp.sin(t[0] * v) + t[1]), (V[:2].copy(), V)),
    "random": (
        lambda key, a: (jax.random.normal(key, (3,)) * a, jax.random.split(key, 2)),
        (jax.random.key(3), 2.0),
    ),
    "raw key": (lambda key, a: jax.random.uniform(key, (3,)) + a, (jax.random.PRNGKey(3), 2.0)),
    "callback": (
        lambda a, v: (
            jax.pure_callback(
                np.sin, jax.ShapeDtypeStruct((6,), np.float64), v, vmap_method="sequential"
            )
            * a
        ),
        (2.0, V),
    ),
    "input, literal, repeated": (lambda a, v: (a, v, 1.0, a * 2, a * 2), (2.0, V)),
    "tree": (
        lambda p, q: {"x": p["a"] * q[0], "y": (p["b"], None)},
        ({"a": 1.0, "b": V, "c": None}, [2.0, 3]),
    ),
    "zero size": (lambda v, a: (v * a, jnp.sum(v) + a), (np.zeros((0, 3)), 2.0)),
    "sum of many": (
        lambda a, b, c, v: a * v + b * jnp.sin(v) + c * jnp.cos(v) + v,
        (1.0, 2.0, 3.0, np.linspace(0, 1, 400)),
    ),
    "many sums": (
        lambda t, w: jnp.stack([jnp.sum(jnp.exp(t[0] * w) * jnp.sin(k * w)) for k in range(1, 5)]),
        (V[:2].copy(), np.linspace(0, 1, 2000)),
    ),
    "gradient of a sum": (
        jax.value_and_grad(
            lambda t, w: jnp.sum(
                jnp.log(sum(jnp.exp(t[k]) * jnp.cos(k * w) ** 2 for k in range(4)))
            )
        ),
        (V[:4].copy(), np.linspace(0, 1, 2000)),
    ),
}
