"""The table of bijections, and counters of what really runs."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax.bijectors import memory

KEY = jax.random.key(0)


class Case(NamedTuple):
    """How to make a bijection, an input, and a context or None; `num_event` axes make one event.

    `is_eager`: transformations run it operation by operation as well. `has_derivative`: of the
    inverse. Tests take Jacobians in forward mode: on CPU, XLA 0.10 dies of the reverse one of a
    FlowJAX spline.
    """

    make: Callable[[], Any]
    x: np.ndarray
    context: np.ndarray | None = None
    num_event: int = 1
    is_eager: bool = False
    has_inverse: bool = True
    has_derivative: bool = True
    rtol: float = 1e-5


def flowjax_cases() -> dict[str, Case]:
    from bijectors.flowjax_cases import flowjax_cases

    return flowjax_cases()


def numpyro_cases() -> dict[str, Case]:
    import numpyro.distributions.transforms as nt

    x = np.random.default_rng(2).normal(size=3)
    lower = np.array([[1.0, 0, 0], [0.5, 2, 0], [1, 1, 3]])
    parts = lambda: [nt.AffineTransform(0.5, jnp.array([2.0, 1.0, 0.5])), nt.ExpTransform()]
    return {
        "numpyro affine": Case(lambda: nt.AffineTransform(1.0, jnp.array(2.0)), x, num_event=0),
        "numpyro compose": Case(
            lambda: nt.ComposeTransform(parts()), x, num_event=0, is_eager=True
        ),
        "numpyro inverse": Case(lambda: nt.ExpTransform().inv, np.abs(x), num_event=0),
        "numpyro identity": Case(nt.IdentityTransform, x, num_event=0),
        "numpyro permute": Case(lambda: nt.PermuteTransform(jnp.array([2, 0, 1])), x),
        "numpyro power": Case(lambda: nt.PowerTransform(jnp.array(1.5)), np.abs(x), num_event=0),
        "numpyro sigmoid": Case(nt.SigmoidTransform, x, num_event=0),
        "numpyro softplus": Case(nt.SoftplusTransform, x, num_event=0),
        "numpyro stick breaking": Case(nt.StickBreakingTransform, x),
        "numpyro cholesky affine": Case(
            lambda: nt.LowerCholeskyAffine(jnp.ones(3), jnp.array(lower)), x
        ),
    }


def distrax_cases() -> dict[str, Case]:
    import distrax

    x = np.random.default_rng(3).normal(size=3)
    matrix = np.array([[1.0, 0.2, 0], [0.5, 2, 0.1], [1, 1, 3]])
    scale = lambda: distrax.ScalarAffine(jnp.ones(3), 2 * jnp.ones(3))
    return {
        "distrax chain": Case(
            lambda: distrax.Chain([distrax.Tanh(), scale()]), x, num_event=0, is_eager=True
        ),
        "distrax block": Case(lambda: distrax.Block(distrax.Tanh(), 1), x),
        "distrax inverse": Case(
            lambda: distrax.Inverse(distrax.Sigmoid()), np.array([0.2, 0.7, 0.4]), num_event=0
        ),
        "distrax matrix": Case(
            lambda: distrax.UnconstrainedAffine(jnp.array(matrix), jnp.ones(3)), x
        ),
        "distrax spline": Case(
            lambda: distrax.RationalQuadraticSpline(jnp.array(MOVED[:10]), -3.0, 3.0),
            x,
            num_event=0,
        ),
    }


MOVED = np.random.default_rng(4).normal(size=64)


def plain_cases() -> dict[str, Case]:
    x = np.array([0.5, -1.0, 2.0])
    return {"plain": Case(lambda: Scale(jnp.array([2.0, -0.5, 3.0])), x, is_eager=True)}


SOURCES: dict[str, Callable[[], dict[str, Case]]] = {
    "flowjax": flowjax_cases,
    "numpyro": numpyro_cases,
    "distrax": distrax_cases,
    "": plain_cases,
}


@cache
def all_cases() -> dict[str, Case]:
    """The cases of the libraries that are installed."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the libraries' own use of JAX
        for library, cases in SOURCES.items():
            if not library or importlib.util.find_spec(library):
                found |= cases()
    return found


def params() -> list[Any]:
    """For `pytest.mark.parametrize`: every case, and a skip for every library that is not there."""
    missing = [library for library in SOURCES if library and not importlib.util.find_spec(library)]
    skips = [
        pytest.param(name, marks=pytest.mark.skip(reason=f"{name} is not installed"))
        for name in missing
    ]
    return [*all_cases(), *skips]


def num_remembered() -> int:
    """How many living arrays are remembered; tracers do not count."""
    return len(memory._table)


COUNTS: dict[str, int] = {}
"""Global, so that no bijection holds what changes while it runs."""


def counted(name: str, x: Any) -> Any:
    """x; says whenever a program runs this."""

    def count(value):
        COUNTS[name] = COUNTS.get(name, 0) + 1
        return value

    return jax.pure_callback(
        count,
        jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
        x,
        vmap_method="broadcast_all",
    )


def pop_counts() -> dict[str, int]:
    """What ran since the last call of this."""
    jax.effects_barrier()
    found = dict(COUNTS)
    COUNTS.clear()
    return found


class Counted:
    """y = exp(w) x: exp(w) stands for the conditioner; what runs is counted."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def transform_and_log_det(self, x):
        log_scale = counted("conditioner", self.w)
        return jnp.exp(log_scale) * counted("forward", x), jnp.sum(counted("ladj", log_scale))

    def inverse_and_log_det(self, y):
        log_scale = counted("conditioner", self.w)
        return counted("inverse", y) / jnp.exp(log_scale), -jnp.sum(counted("ladj", log_scale))


jax.tree_util.register_pytree_node(
    Counted, lambda c: ((c.w,), None), lambda aux, kids: Counted(kids[0])
)


class Scale:
    """y = scale * x, a pytree."""

    def __init__(self, scale: Any) -> None:
        self.scale = scale

    def transform_and_log_det(self, x):
        return self.scale * x, jnp.sum(jnp.log(jnp.abs(self.scale)))

    def inverse_and_log_det(self, y):
        return y / self.scale, -jnp.sum(jnp.log(jnp.abs(self.scale)))


jax.tree_util.register_pytree_node(
    Scale, lambda s: ((s.scale,), None), lambda aux, kids: Scale(kids[0])
)
