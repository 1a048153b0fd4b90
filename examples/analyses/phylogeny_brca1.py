"""Branches of the tree of 55 mammals, by their BRCA1 genes (data of cogent3): a chain that moves one branch
after the other, and the ratio of transitions to transversions once a sweep.

By cogent3, whose calculator computes again what depends on a changed length, and no more; by
`jax.jit` of the whole likelihood in each step of one compiled loop; and by incrax, the same loop
with `look` and `settle`. The likelihood is that of examples/phylogeny.py, unchanged. All take the
same random numbers, and end at the same lengths.

Run: python examples/analyses/phylogeny_brca1.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import wholejob

wholejob.needs("cogent3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import cogent3
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from phylogeny import levels_of, log_density_of

import incrax

jax.config.update("jax_enable_x64", True)

NUM_SWEEPS = 300
ALIGNMENT = cogent3.get_dataset("brca1")
TREE = cogent3.get_dataset("mammal-tree")
ORDER = "TCAG"
CODES = {"R": "AG", "Y": "TC", "M": "AC", "N": ORDER, "-": ORDER, **{x: x for x in ORDER}}
"""Which bases a letter may stand for; of a gap nothing is known."""


def nested(node):
    """cogent3's tree as tuples of names."""
    return tuple(map(nested, node.children)) if node.children else node.name


LEVELS = levels_of(nested(TREE))


def branches():
    """The names of the nodes below them, in the order of the lengths."""
    names, nodes = [], [TREE]
    while nodes:
        below = [child for node in nodes for child in node.children]
        nodes = sorted(below, key=lambda node: not node.children)
        names += [node.name for node in nodes]
    return names


def observed():
    """The leaves of each level, how often each pattern occurs, and the frequencies of bases."""
    columns = np.array([list(str(ALIGNMENT.get_gapped_seq(name))) for name in ALIGNMENT.names])
    patterns, counts = np.unique(columns.T, axis=0, return_counts=True)
    row = dict(zip(ALIGNMENT.names, patterns.T, strict=True))
    may_be = {code: [base in bases for base in ORDER] for code, bases in CODES.items()}
    leaf = lambda name: np.array([may_be[code] for code in row[name]], float).T
    leaves = [np.array([leaf(name) for name in names]) for _, names in LEVELS]
    leaves = [x.reshape(-1, 4, len(counts)) for x in leaves]
    found = ALIGNMENT.get_motif_probs()
    return leaves, counts.astype(float), np.array([found[base] for base in ORDER])


DATA = observed()
NAMES = branches()
START = {"kappa": jnp.log(4.0), "length": jnp.full(len(NAMES), jnp.log(0.05))}
RNG = np.random.default_rng(3)
MOVES = np.where(np.arange(len(NAMES) + 1) > 0, 0.4, 0.05) * RNG.normal(
    size=(NUM_SWEEPS, len(NAMES) + 1)
)
"""Of kappa, then of each length, in each sweep; of their logarithms."""

LIMITS = np.log(RNG.uniform(size=MOVES.shape))
"""What the log-density may fall by."""


def numbers(p, value, taken):
    """What the forms are compared by."""
    lengths = np.exp(np.asarray(p["length"]))
    return {
        "log-density": value,
        "kappa": np.exp(float(p["kappa"])),
        "all lengths": lengths.sum(),
        "branch of humans": lengths[NAMES.index("Human")],
        "taken": taken,
    }


def log_prior(name, x):
    """Of a logarithm: what the log-density has besides the likelihood."""
    return -0.5 * (x - 1) ** 2 if name == "kappa" else x - 10 * np.exp(x)


def by_cogent3():
    """Its likelihood function for the set-up, its calculator for the steps."""
    p = {"kappa": float(START["kappa"]), **dict(zip(NAMES, START["length"].tolist(), strict=True))}
    function = cogent3.get_model("HKY85").make_likelihood_function(TREE)
    function.set_alignment(ALIGNMENT)
    function.set_param_rule("kappa", init=np.exp(p["kappa"]))
    for name in NAMES:
        function.set_param_rule("length", edge=name, init=np.exp(p[name]))
    calculator = function.make_calculator()
    owner = lambda par: par.name if par.name == "kappa" else par.scope[0][0]
    number = {owner(par): k for k, par in enumerate(calculator.opt_pars)}

    def likelihood(name, x):
        par = calculator.opt_pars[number[name]]
        return calculator.change([(number[name], par.transform_to_optimiser(np.exp(x)))])

    value, taken = likelihood("kappa", p["kappa"]), 0
    for moves, limits in zip(MOVES, LIMITS, strict=True):
        for name, move, limit in zip(p, moves, limits, strict=True):
            before, after = p[name], p[name] + move
            new = likelihood(name, after)
            if limit < new - value + log_prior(name, after) - log_prior(name, before):
                p[name], value, taken = after, new, taken + 1
            else:
                likelihood(name, before)  # which it remembers
    lengths = [p[name] for name in NAMES]
    value += sum(log_prior(*item) for item in p.items())
    return numbers({"kappa": p["kappa"], "length": lengths}, value, taken)


def sweeps(look, settle, at, value):
    """The chain, compiled: `look` says what the log-density is after a move of kappa, or of the
    k-th length, and `settle` takes it or not.
    """

    def step(name, carry, turn):
        at, value, taken = carry
        k, move, limit = turn
        moved, new = look(at, name, k, move)
        accept = limit < new - value
        carry = settle(at, moved, accept), jnp.where(accept, new, value), taken + accept
        return carry, None

    def sweep(carry, turn):
        moves, limits = turn
        carry, _ = step("kappa", carry, (0, moves[0], limits[0]))
        turns = jnp.arange(len(NAMES)), moves[1:], limits[1:]
        return lax.scan(lambda carry, turn: step("length", carry, turn), carry, turns)

    turns = jnp.asarray(MOVES), jnp.asarray(LIMITS)
    return lax.scan(sweep, (at, value, 0), turns)[0]


def by_jit():
    log_density = log_density_of(LEVELS)

    def run(p, data):
        def look(p, name, k, move):
            x = p[name]
            moved = p | {name: x + move if name == "kappa" else x.at[k].add(move)}
            return moved, log_density(moved, *data)

        def settle(p, moved, accept):
            return jax.tree.map(lambda new, old: jnp.where(accept, new, old), moved, p)

        return sweeps(look, settle, p, log_density(p, *data))

    return numbers(*jax.jit(run)(START, DATA))


def by_incrax():
    f = incrax.incremental(log_density_of(LEVELS))
    state, sites = f.sites(START, *DATA, moves=["p['kappa']", "p['length'][*]"])

    def run(sites, state):
        def look(state, name, k, move):
            path = f"p['{name}']"
            x = sites.inputs(state)[path]
            change = x + move if name == "kappa" else (k, x[k] + move)
            return sites.look(state, {path: change})

        return sweeps(look, sites.settle, state, sites.look(state, {})[1])

    state, value, taken = jax.jit(run)(sites, state)
    inputs = sites.inputs(state)
    p = {name: inputs[f"p['{name}']"] for name in START}
    return numbers(p, value, taken)


if __name__ == "__main__":
    wholejob.compare(
        __file__,
        {"cogent3": by_cogent3, "jax.jit": by_jit, "incrax": by_incrax},
        {"log-density": 1e-4, "kappa": 1e-6, "all lengths": 1e-6, "taken": 0.5},
    )
