"""Base distributions of flows, of any library.

In: a distribution. Out: `Base`, which samples and scores it, compiled where that is safe. The forms differ in how a
key, a shape and a context are passed, and in nothing else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax.bijectors.messages import not_a_distribution
from incrax.bijectors.programs import _ChangedError, _split
from incrax.bijectors.state import watch


@runtime_checkable
class Distribution(Protocol):
    """What a flow asks of its base distribution: FlowJAX's, NumPyro's and distrax' have it, and so may your own."""

    def sample(self, key: Any, shape: tuple[int, ...]) -> Any:
        """Samples: `shape` + batch + event, reparametrised if the flow is to be fitted by them."""
        ...

    def log_prob(self, x: Any) -> Any:
        """Log-densities, of the leading axes of x."""
        ...


@jax.tree_util.register_static
class Normal(NamedTuple):
    """Independent standard normal numbers as one event: the base of a flow, without parameters.

    Example:
        >>> from incrax import bijectors
        >>> float(bijectors.Normal((2,)).log_prob(jnp.zeros(2)).round(4))
        -1.8379
    """

    shape: tuple[int, ...] = ()
    """Of one event."""
    dtype: Any = None
    """None: JAX's default."""

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Any:
        """An array of `shape` + the shape of an event."""
        return jax.random.normal(key, (*shape, *self.shape), jnp.result_type(self.dtype or float))

    def log_prob(self, x: Any) -> Any:
        """Log-densities: an array of the leading axes of x."""
        terms = -0.5 * (x**2 + jnp.log(2 * jnp.pi))
        return jnp.sum(terms, axis=tuple(range(terms.ndim - len(self.shape), terms.ndim)))


@jax.tree_util.register_static
class Shape(tuple[int, ...]):
    """A shape as part of a program."""

    __slots__ = ()


class Base:
    """A distribution, sampled and scored by programs; looked at again if it was changed in place."""

    __slots__ = ("_arrays", "_code", "_watch", "distribution")

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution
        self._watch: Any = None
        self._code: Any = None
        self._arrays: Any = ()

    def sample(self, key: Any, shape: tuple[int, ...], context: Any) -> Any:
        """Samples of `shape` + batch + event."""
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        return self._run(_sampled, Shape(shape), key, context)

    def score(self, x: Any, ladj: Any, context: Any, num_left: tuple[int, int]) -> Any:
        """The sum log p(x) + ladj; `num_left` says how many last axes each is summed over."""
        return self._run(_scored, Shape(num_left), x, ladj, context)

    def _run(self, evaluate: Callable[..., Any], *operands: Any) -> Any:
        if self._watch is None or not self._watch.is_current():
            self._watch = watch(self.distribution)
            self._code, self._arrays = _split(self.distribution, _NO_ADAPTER, self._watch)
        is_traced = any(isinstance(x, _jax.Tracer) for x in jax.tree.leaves((self._arrays, operands)))
        if self._code is not None and not is_traced and not _jax.is_jit_disabled():
            try:
                return _run_compiled(self._code, evaluate, self._arrays, operands)
            except _ChangedError:
                self._code = None
        return evaluate(self.distribution, *operands)


_NO_ADAPTER: Any = None


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run_compiled(code: Any, evaluate: Callable[..., Any], arrays: Any, operands: Any) -> Any:
    return evaluate(code.bijection(arrays), *operands)


def _sampled(base: Any, shape: Shape, key: Any, context: Any) -> Any:
    if "seed" in inspect.signature(type(base).sample).parameters:  # distrax, TFP
        return base.sample(seed=key, sample_shape=tuple(shape))
    return base.sample(key, tuple(shape), *(() if context is None else (context,)))


def _scored(base: Any, num_left: Shape, x: Any, ladj: Any, context: Any) -> Any:
    log_prob = base.log_prob(x) if context is None else base.log_prob(x, context)
    return _sum_last(log_prob, num_left[0]) + _sum_last(ladj, num_left[1])


def _sum_last(x: Any, num_axes: int) -> Any:
    return jnp.sum(x, axis=tuple(range(jnp.ndim(x) - num_axes, jnp.ndim(x)))) if num_axes else x


def base_of(distribution: Any) -> Base:
    """What evaluates a distribution.

    Raises:
        NotADistributionError: it has no `sample` and `log_prob`.
    """
    if isinstance(distribution, type):
        raise not_a_distribution(f"the class {distribution.__name__}")
    if not isinstance(distribution, Distribution):
        raise not_a_distribution(repr(type(distribution)))
    return Base(distribution)
