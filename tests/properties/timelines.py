"""Sequences of calls: changes of some leaves, changes back, and twins that are equal but not the same."""

from __future__ import annotations

import random

import jax
import numpy as np

ACTIONS = ("one", "one", "one", "some", "all", "back", "same", "copy", "twin", "element", "element")


def arguments(start, seed, length):
    """A list of argument tuples, each a change of an earlier one."""
    rng = random.Random(seed)
    history = [start]
    for _ in range(length):
        action = rng.choice(ACTIONS)
        base = history[-1] if action != "back" else rng.choice(history)
        history.append(_apply(action, base, rng))
    return history


def _apply(action, args, rng):
    leaves, tree = jax.tree.flatten(args)
    if action in ("back", "same") or not leaves:
        return args
    if action == "copy":
        return jax.tree.unflatten(tree, [copy(x) for x in leaves])
    chosen = {"one": 1, "element": 1, "twin": 1, "some": max(1, len(leaves) // 2), "all": len(leaves)}[action]
    for index in rng.sample(range(len(leaves)), chosen):
        change = {"twin": twin, "element": change_element}.get(action, change_all)
        leaves[index] = change(leaves[index], rng)
    return jax.tree.unflatten(tree, leaves)


def copy(x):
    """The same bits in another object."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.random.key_data(x))
    return np.array(x) if isinstance(x, np.ndarray) else jax.numpy.array(x) if isinstance(x, jax.Array) else type(x)(x)


def change_all(x, rng):
    """New values of the same type."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key(rng.randrange(100))
    if isinstance(x, jax.Array):
        return jax.random.PRNGKey(rng.randrange(100))
    if isinstance(x, np.bool_):
        return np.bool_(rng.random() < 0.5)
    if isinstance(x, int):
        return rng.randrange(3)
    factor = rng.choice([0.5, 1.25, 1.5, 2.0])
    return x * factor if isinstance(x, np.ndarray) else type(x)(x * factor)


def change_element(x, rng):
    """Another value in one element."""
    if not isinstance(x, np.ndarray) or x.size == 0:
        return change_all(x, rng)
    y = x.copy()
    y.flat[rng.randrange(y.size)] *= rng.choice([0.5, 1.5, -1.0])
    return y


def twin(x, rng):
    """A value that `==` or a tolerance takes for the same, or NaN."""
    if isinstance(x, float):
        return rng.choice([0.0, -0.0, np.nextafter(x, 9.0).item(), float("nan")])
    if isinstance(x, np.ndarray) and x.size and x.dtype.kind == "f":
        y = x.copy()
        y.flat[rng.randrange(y.size)] = rng.choice([0.0, -0.0, np.nextafter(y.flat[0], 9.0), np.nan])
        return y
    return x
