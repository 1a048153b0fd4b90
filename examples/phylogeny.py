"""A phylogeny: lengths of the branches of a tree, sampled one at a time.

The likelihood of aligned sequences by Felsenstein's pruning (J. Mol. Evol. 17, 368, 1981), written level by
level: from the leaves up, each node multiplies what its children send along their branches,

    here_v(x) = prod over children c of sum_y P(y | x, t_c) here_c(y),

for all sites at once. A step moves one branch and needs the nodes from there to the root: by incrax
one row of each level, which is read off the program; by `jax.jit` all of them.

Run: python examples/phylogeny.py
"""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from incrax import samplers

jax.config.update("jax_enable_x64", True)

NUM_LEAVES, NUM_SITES = 128, 1_000
NUM_SWEEPS, NUM_WARM_UP = 200, 50
NUM_WHOLE = 10
"""Sweeps with the whole likelihood in each step: they take longer."""

FREQUENCIES = np.array([0.3, 0.2, 0.3, 0.2])
"""Of the nucleotides T, C, A, G."""

TRANSITIONS = np.kron(np.eye(2), 1 - np.eye(2))
"""T to C, A to G, and back."""


def levels_of(tree):
    """A tree of nested tuples, level by level from the root down.

    Of each level: where in the next one the children of its inner nodes are, shape (inner nodes,
    most children), with the length of the next one where there is no child; and its leaves. Inner
    nodes come first.
    """
    levels, nodes = [], [tree]
    while nodes:
        inner = [node for node in nodes if isinstance(node, tuple)]
        below = [child for node in inner for child in node]
        is_leaf = np.array([not isinstance(child, tuple) for child in below], bool)
        order = np.argsort(is_leaf, kind="stable")
        places = iter(np.argsort(order))
        children = np.full((len(inner), max(map(len, inner), default=0)), len(below))
        for row, node in zip(children, inner, strict=True):
            row[: len(node)] = [next(places) for _ in node]
        levels.append((children, nodes[len(inner) :]))
        nodes = [below[k] for k in order]
    return levels


def transition_matrices(lengths, kappa, frequencies):
    """P(t) = exp(Qt) of each branch, shape (branches, 4, 4), by the eigenvalues of Q.

    Q of Hasegawa, Kishino and Yano (J. Mol. Evol. 22, 160, 1985); lengths in expected substitutions
    per site.
    """
    rates = (1 + (kappa - 1) * TRANSITIONS) * frequencies
    rates = rates * (1 - np.eye(4))
    rates = rates - jnp.diag(rates.sum(axis=1))
    root = jnp.sqrt(frequencies)
    symmetric = rates * root[:, None] / root
    values, vectors = jnp.linalg.eigh(symmetric / -(frequencies @ jnp.diag(rates)))
    decays = jnp.exp(lengths[:, None] * values)
    return jnp.einsum("ik,nk,jk->nij", vectors / root[:, None], decays, vectors * root[:, None])


def log_density_of(levels):
    """The log-density of the logarithms of all lengths and of kappa, for the leaves of each level,
    shape (leaves, 4, patterns), and how often each pattern of the alignment occurs.

    Without rescaling: float64 holds the likelihood of a site for some hundreds of leaves.
    """

    def log_density(p, leaves, counts, frequencies):
        lengths = jnp.exp(p["length"])
        matrices = transition_matrices(lengths, jnp.exp(p["kappa"]), frequencies)
        below, end = leaves[-1][:0], len(lengths)
        for (children, _), here in zip(reversed(levels), reversed(leaves), strict=True):
            if children.size:
                sent = jnp.einsum("nij,njs->nis", matrices[end - len(below) : end], below)
                sent = jnp.concatenate([sent, jnp.ones((1, *sent.shape[1:]))])
                end -= len(below)
                products = functools.reduce(jnp.multiply, [sent[c] for c in children.T])
                here = jnp.concatenate([products, here])
            below = here
        prior = jnp.sum(p["length"] - 10 * lengths) - 0.5 * (p["kappa"] - 1) ** 2
        return jnp.sum(counts * jnp.log(frequencies @ below[0])) + prior

    return log_density


def random_tree(num_leaves, rng):
    """Of those in which any leaf divides next."""
    nodes = [[] for _ in range(2 * num_leaves - 1)]
    leaves = [0]
    for k in range(1, 2 * num_leaves - 1, 2):
        nodes[leaves.pop(rng.integers(len(leaves)))] += [k, k + 1]
        leaves += [k, k + 1]
    nested = lambda n: tuple(map(nested, nodes[n])) if nodes[n] else n
    return nested(0)


def evolved(levels, log_lengths, kappa, rng):
    """The leaves of each level, at sites that have evolved along the branches."""
    matrices = np.asarray(transition_matrices(np.exp(log_lengths), kappa, FREQUENCIES))
    states = rng.choice(4, (1, NUM_SITES), p=FREQUENCIES)
    found, end = [], 0
    for (children, _), next_level in zip(levels, [*levels[1:], ((), ())], strict=True):
        found.append(np.eye(4)[states[len(children) :]].transpose(0, 2, 1))
        below = np.zeros((sum(map(len, next_level)), NUM_SITES), int)
        for parent, row in enumerate(children):
            for child in row:
                steps = matrices[end + child].cumsum(axis=1)[states[parent]]
                below[child] = np.sum(rng.uniform(size=(NUM_SITES, 1)) > steps, axis=1)
        states, end = below, end + len(below)
    return found


def whole_sweeps(log_density, start, data, width, key):
    """The same kind of chain with the whole likelihood in each step."""
    at, unravel = ravel_pytree(start)
    fun = lambda x: log_density(unravel(x), *data)

    def step(carry, turn):
        x, value = carry
        k, key = turn
        move, accept = jax.random.split(key)
        moved = x.at[k].add(width * jax.random.normal(move))
        new = fun(moved)
        taken = jnp.log(jax.random.uniform(accept)) < new - value
        return (jnp.where(taken, moved, x), jnp.where(taken, new, value)), None

    def sweep(carry, key):
        turns = jnp.arange(at.size), jax.random.split(key, at.size)
        carry, _ = jax.lax.scan(step, carry, turns)
        return carry, carry[1]

    return jax.lax.scan(sweep, (at, fun(at)), jax.random.split(key, NUM_WHOLE))[1]


def main():
    """Both ways."""
    rng = np.random.default_rng(0)
    levels = levels_of(random_tree(NUM_LEAVES, rng))
    truth = np.log(rng.exponential(0.1, 2 * NUM_LEAVES - 2) + 0.005)
    leaves = evolved(levels, truth, 4.0, rng)
    log_density = log_density_of(levels)
    data = leaves, np.ones(NUM_SITES), FREQUENCIES
    start = {"length": np.full(len(truth), np.log(0.1)), "kappa": np.log(2.0)}
    widths = {"p['length'][*]": samplers.Walk(0.4), "p['kappa']": samplers.Walk(0.1)}

    begin_s = time.perf_counter()
    sweeps = {"key": 1, "num_sweeps": NUM_SWEEPS, "updates": widths}
    chain = samplers.gibbs(log_density, start, *data, **sweeps)
    ours_s = (time.perf_counter() - begin_s) / NUM_SWEEPS
    print(chain)

    end = jax.tree.map(lambda x: jnp.asarray(x[-1]), chain.tree())
    run = jax.jit(functools.partial(whole_sweeps, log_density))
    at = end, data, 0.4, jax.random.key(2)
    run = run.lower(*at).compile()
    begin_s = time.perf_counter()
    whole = np.asarray(run(*at))
    whole_s = (time.perf_counter() - begin_s) / NUM_WHOLE
    print(
        f"a sweep over {len(truth)} branches: incrax {1e3 * ours_s:.0f} ms with its compilation, the "
        f"whole likelihood by jax.jit {1e3 * whole_s:.0f} ms without, {whole_s / ours_s:.1f} times"
    )
    lengths = chain.tree()["length"][NUM_WARM_UP:]
    pulls = (truth - lengths.mean(axis=0)) / lengths.std(axis=0)
    print(f"true lengths: {np.mean(np.abs(pulls) < 2):.0%} within two errors")
    ours = chain.log_densities[NUM_SWEEPS // 2 :]
    for name, values in (("incrax", ours), ("jax.jit", whole)):
        print(f"log-density by {name}: {values.mean():.1f} on average, spread {values.std():.1f}")
    value = float(jax.jit(log_density)(end, *data))
    print(f"log-density at the end: {abs(chain.log_densities[-1] / value - 1):.1e} relative")
    assert np.isclose(chain.log_densities[-1], value, rtol=1e-10)
    assert np.mean(np.abs(pulls) < 3) > 0.9


if __name__ == "__main__":
    main()
