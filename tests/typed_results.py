"""What a type checker knows of what is made of a typed function: `pyright` checks this file.

Nothing is run. A call that `pyright` ought to refuse has a comment that ignores the error, and a
comment that ignores nothing is an error itself.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

from typing import Any, assert_type

import jax

import incrax
from incrax import fit
from incrax.explanation import DependenceTable, Explanation


def loss(scale: float, x: jax.Array, *, power: int = 2) -> jax.Array:
    return scale * x**power


def takes(x: jax.Array) -> None:
    f = incrax.incremental(loss)
    assert_type(f(1.0, x, power=3), jax.Array)
    assert_type(f.fresh(1.0, x), jax.Array)
    f("one", x)  # pyright: ignore[reportArgumentType]
    f(1.0)  # pyright: ignore[reportCallIssue]
    assert_type(f.explain(), Explanation)  # of the last call
    assert_type(f.deps(), DependenceTable)
    f.lower  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]

    assert_type(incrax.value_and_grad(loss)(1.0, x), tuple[jax.Array, Any])
    for derivative in (incrax.grad(loss), incrax.jacobian(loss), incrax.hessian(loss)):
        derivative(1.0, x, power=3)
        derivative(1.0, x, power="three")  # pyright: ignore[reportArgumentType]
        derivative(x=x)  # pyright: ignore[reportCallIssue]

    assert_type(incrax.guarded(loss)(1.0, x), jax.Array)
    incrax.guarded(loss)(1.0)  # pyright: ignore[reportCallIssue]
    assert_type(incrax.structured(loss)(1.0, x), jax.Array)


@incrax.incremental
def bare(x: jax.Array) -> jax.Array:
    return x


@incrax.incremental(policy="exact")
def with_options(x: jax.Array) -> jax.Array:
    return x


class Model:
    @incrax.incremental
    def loss(self, x: jax.Array) -> jax.Array:
        return x


def words(x: jax.Array) -> None:
    assert_type(bare(x), jax.Array)
    assert_type(with_options(x), jax.Array)
    assert_type(Model().loss(x), jax.Array)
    Model().loss("one")  # pyright: ignore[reportArgumentType]
    incrax.incremental(loss, policy="quick")  # pyright: ignore[reportCallIssue, reportArgumentType]
    incrax.Tuning(planner="best")  # pyright: ignore[reportArgumentType]
    incrax.bind(loss, x=x, roles={"x": "observed"})  # pyright: ignore[reportArgumentType]
    incrax.bind(loss, x=x).set_role("x", "observed")  # pyright: ignore[reportArgumentType]
    incrax.bind(loss, x=x).x = x  # pyright: ignore[reportAttributeAccessIssue]
    fit.minimize(loss, 1.0, x).fun  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
