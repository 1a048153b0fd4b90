"""incrax from nothing: an incremental evaluator in a hundred lines.

The text is in from_nothing.md beside it.

Run: python docs/tutorial/from_nothing.py
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal


def trace(f, *args):
    """The function as a jaxpr, the constants that it closes over, and the tree of its result."""
    program, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
    return program.jaxpr, program.consts, jax.tree.structure(shapes)


def run(equations, env):
    """Evaluate equations one after the other; `env` has the values of variables."""
    for eqn in equations:
        operands = [x.val if isinstance(x, Literal) else env[x] for x in eqn.invars]
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        results = results if eqn.primitive.multiple_results else [results]
        env.update(zip(eqn.outvars, results, strict=True))


def variables(atoms):
    """What is no literal number."""
    return [x for x in atoms if not isinstance(x, Literal)]


def dependence(jaxpr):
    """For each variable, the numbers of the inputs that it depends on."""
    depends = {var: frozenset() for var in jaxpr.constvars}
    depends |= {var: frozenset([i]) for i, var in enumerate(jaxpr.invars)}
    for eqn in jaxpr.eqns:
        reached = frozenset().union(*(depends[x] for x in variables(eqn.invars)))
        depends |= {var: reached for var in eqn.outvars}
    return depends


def worth_saving(jaxpr, depends):
    """The outputs, and what is read by an equation that depends on more."""
    found = variables(jaxpr.outvars)
    for eqn in jaxpr.eqns:
        reached = frozenset().union(*(depends[x] for x in variables(eqn.invars)))
        found += [x for x in variables(eqn.invars) if depends[x] < reached]
    return [x for x in dict.fromkeys(found) if x not in {*jaxpr.invars, *jaxpr.constvars}]


def plan(jaxpr, missing, at_hand):
    """The equations that make the missing values from those at hand, and what they read."""
    needed, equations = set(missing), []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            equations.insert(0, eqn)
            needed.update(x for x in variables(eqn.invars) if x not in at_hand)
    reads = [x for eqn in equations for x in variables(eqn.invars) if x in at_hand]
    return equations, list(dict.fromkeys(reads))


def content(x):
    """What two inputs share if they are equal: type and bits."""
    x = np.asarray(x)
    return x.shape, x.dtype, x.tobytes()


class Incremental:
    """`f`, evaluated again only where its arguments changed; two saved values of each."""

    def __init__(self, f, versions=2):
        self.f, self.versions, self.jaxpr, self.programs = f, versions, None, {}

    def __call__(self, *args):
        if self.jaxpr is None:
            self.jaxpr, self.consts, self.out_tree = trace(self.f, *args)
            self.depends = dependence(self.jaxpr)
            self.store = {var: {} for var in worth_saving(self.jaxpr, self.depends)}
        leaves = jax.tree.leaves(args)
        contents = [content(x) for x in leaves]
        env = dict(zip(self.jaxpr.invars + self.jaxpr.constvars, leaves + self.consts, strict=True))
        keys = {var: tuple(contents[i] for i in sorted(self.depends[var])) for var in self.store}
        missing = tuple(var for var in self.store if keys[var] not in self.store[var])
        env |= {var: self.store[var][keys[var]] for var in self.store if var not in missing}
        equations, reads, program = self.program(missing, env)
        env |= dict(zip(missing, program(*(env[x] for x in reads)), strict=True))
        for var, saved in self.store.items():
            saved.pop(keys[var], None)
            saved[keys[var]] = env[var]  # the latest last
            if len(saved) > self.versions:
                del saved[next(iter(saved))]
        self.ran = len(equations)
        results = [x.val if isinstance(x, Literal) else env[x] for x in self.jaxpr.outvars]
        return jax.tree.unflatten(self.out_tree, results)

    def program(self, missing, at_hand):
        """One compiled program for each set of missing values."""
        if missing not in self.programs:
            equations, reads = plan(self.jaxpr, missing, at_hand)

            def body(*values):
                env = dict(zip(reads, values, strict=True))
                run(equations, env)
                return [env[var] for var in missing]

            self.programs[missing] = equations, reads, jax.jit(body)
        return self.programs[missing]


def nll(mu, sigma, rate, share, x):
    """The problem: a peak on a falling background."""
    signal = jnp.exp(-0.5 * ((x - mu) / sigma) ** 2) / sigma
    background = rate * jnp.exp(-rate * x)
    return -jnp.sum(jnp.log(share * signal + (1 - share) * background))


def check(f, args, num_calls):
    """Change one argument at a time, or go back; the results are those of `jax.jit`."""
    rng, ours, plain, before = np.random.default_rng(0), Incremental(f), jax.jit(f), args
    for _ in range(num_calls):
        i = rng.integers(len(args))
        changed = [*args[:i], args[i] * 1.01, *args[i + 1 :]]
        args, before = (changed, args) if rng.random() < 0.7 else (before, args)
        for got, expected in zip(
            jax.tree.leaves(ours(*args)), jax.tree.leaves(plain(*args)), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-9)
    return ours


def ran_after_each_change(f, args):
    """How many equations run after a change of each argument alone."""
    ours, counts = Incremental(f), []
    for i in range(len(args)):
        ours(*args)
        ours(*args[:i], args[i] * 1.01, *args[i + 1 :])
        counts.append(ours.ran)
    return len(ours.jaxpr.eqns), counts


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    start = [1.0, 0.3, 0.5, 0.1, np.random.default_rng(1).exponential(2.0, 10_000)]
    gradient = jax.value_and_grad(nll, argnums=(0, 1, 2, 3))
    check(gradient, start, num_calls=12)
    print(ran_after_each_change(nll, start), ran_after_each_change(gradient, start))
