"""A bijection with every kind of input, and the passes in jaxprs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from incrax import _jax, bijectors

X = jnp.array([0.5, -1.0, 2.0])


class Sinh:
    """y = sinh(a x) + context: nonlinear, with a parameter and a context."""

    def __init__(self, a):
        self.a = a

    def transform_and_log_det(self, x, condition=0.0):
        z = self.a * x
        return jnp.sinh(z) + condition, jnp.sum(jnp.log(self.a * jnp.cosh(z)))

    def inverse_and_log_det(self, y, condition=0.0):
        z = jnp.arcsinh(y - condition)
        return z / self.a, -jnp.sum(jnp.log(self.a * jnp.cosh(z)))


jax.tree_util.register_pytree_node(Sinh, lambda s: ((s.a,), None), lambda aux, kids: Sinh(kids[0]))


def sinh(a=0.7):
    return bijectors.remember(Sinh(jnp.full(3, a)))


def markers(f, *args):
    """The names of the passes that a function would run: of what it was traced to, or of a
    jaxpr.
    """
    return list(passes(_jax.open_jaxpr(jax.make_jaxpr(f)(*args))))


def passes(body):
    """The names of the passes in a jaxpr."""
    for eqn in body.eqns:
        name = eqn.params.get("name", "")
        if name.startswith("bijection_"):
            yield name.removeprefix("bijection_")
        for inner in _jax.sub_bodies(eqn):
            yield from passes(inner)
