"""Sequences of calls: changes of some leaves, changes back, and twins that are equal but not the
same.
"""

from __future__ import annotations

import random

import jax
import numpy as np

NO_CHANGES = ("same", "copy")
ACTIONS = ("one", "one", "one", "some", "all", "back", *NO_CHANGES, "twin", "element", "element")
ROW_ACTIONS = (*("rows",) * 8, *("refused",) * 4, "back", *NO_CHANGES, "one", "all", "twin")
"""Mostly changes of a few rows: those of the last call, or, where that was refused, of the one
before.
"""

LEAST_ROWS = 8


def arguments(start, seed, length, actions=None):
    """A list of argument tuples, each a change of an earlier one; only an action of `NO_CHANGES`
    changes no bit.
    """
    rng = random.Random(seed)
    history = [start]
    for _ in range(length):
        history.append(_apply(rng.choice(actions or ACTIONS), history, rng))
    return history


def same_bits(left, right):
    """Whether all leaves have the same bits."""
    return [bits(x) for x in jax.tree.leaves(left)] == [bits(x) for x in jax.tree.leaves(right)]


def bits(x):
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x).tobytes()


def _apply(action, history, rng):
    args = history[-1]
    leaves, tree = jax.tree.flatten(args)
    if action == "same":
        return args
    if action == "copy":
        return jax.tree.unflatten(tree, [copy(x) for x in leaves])
    if action in ("rows", "refused"):
        return change_rows(history[-2 if action == "refused" and len(history) > 1 else -1], rng)
    former = [each for each in history if not same_bits(each, args)]
    if action == "back" and former:
        return rng.choice(former)
    places = [
        index for index, x in enumerate(leaves) if bits(x)
    ]  # what has no elements cannot change
    chosen = {"some": max(1, len(places) // 2), "all": len(places)}.get(action, 1)
    for index in rng.sample(places, chosen):
        change = {"twin": twin, "element": change_element}.get(action, change_all)
        leaves[index] = _changed(change, leaves[index], rng)
    return jax.tree.unflatten(tree, leaves)


def _changed(change, x, rng):
    """A draw with other bits. Where `change` has none (half of zero is zero), `fresh` does."""
    for _ in range(8):
        y = change(x, rng)
        if bits(y) != bits(x):
            return y
    return fresh(x, rng)


def copy(x):
    """The same bits in another object."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.random.key_data(x))
    return (
        np.array(x)
        if isinstance(x, np.ndarray)
        else jax.numpy.array(x)
        if isinstance(x, jax.Array)
        else type(x)(x)
    )


def fresh(x, rng):
    """Values that have nothing to do with the old ones: what is zero or NaN is a number again."""
    return (
        np.full(x.shape, rng.uniform(0.5, 2.0), x.dtype)
        if isinstance(x, np.ndarray)
        else type(x)(rng.uniform(1, 2))
    )


def change_all(x, rng):
    """New values of the same type."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key(rng.randrange(100))
    if isinstance(x, jax.Array):
        return jax.random.PRNGKey(rng.randrange(100))
    if isinstance(x, np.bool_):
        return ~x
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


def change_rows(args, rng):
    """Other values in one to five rows of an array that has rows, or in the same rows of all."""
    leaves, tree = jax.tree.flatten(args)
    with_rows = [n for n, x in enumerate(leaves) if np.ndim(x) and len(x) >= LEAST_ROWS]
    chosen = with_rows if rng.random() < 0.2 else [rng.choice(with_rows)]
    rows = rng.sample(range(len(leaves[chosen[0]])), rng.choice((1, 1, 1, 1, 2, 3, 5)))
    for number in chosen:
        x = np.array(leaves[number])
        x[rows] = np.reshape([rng.uniform(-1, 1) for _ in range(x[rows].size)], x[rows].shape)
        leaves[number] = x
    return jax.tree.unflatten(tree, leaves)


def twin(x, rng):
    """A value that `==` or a tolerance takes for the same, or NaN."""
    if isinstance(x, float):
        return rng.choice([0.0, -0.0, np.nextafter(x, 9.0).item(), float("nan")])
    if isinstance(x, np.ndarray) and x.size and x.dtype.kind == "f":
        y = x.copy()
        place = rng.randrange(y.size)
        y.flat[place] = rng.choice([0.0, -0.0, np.nextafter(y.flat[place], 9.0), np.nan])
        return y
    return change_all(x, rng)
