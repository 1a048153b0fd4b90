"""Flows: distributions whose samples remember where they came from.

In: a base distribution and a bijection. Out: `Flow`, which samples by the bijection's forward pass and scores by the
memory of it, or by the inverse where there is none.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from incrax.bijectors.bases import Base, base_of
from incrax.bijectors.messages import (
    batches_twice,
    context_not_given,
    no_context_taken,
    no_parts,
    not_of_event_shape,
    other_context_shape,
    other_ladj_shape,
    shapes_do_not_fit,
)
from incrax.bijectors.remembered import Remembered, remember


class _Shapes(NamedTuple):
    """What a flow is about, found once; static."""

    batch: tuple[int, ...]
    event: tuple[int, ...]
    context: tuple[int, ...] | None
    num_event: int
    """Axes of one event of the base, together with the bijection."""
    num_left: tuple[int, int]
    """Axes of an event that the densities of the base, and the log-determinant, are still to be summed over."""


@jax.tree_util.register_pytree_with_keys_class
class Flow:
    """A distribution: that of y = bijection(x), where x is of a base distribution. Samples remember their x.

    The log-density of an own sample takes no inverse, and is finite where one would overflow. A pytree whose leaves
    are those of the base and the bijection; under jit, grad and vmap it is the plain distribution.

    Args:
        base: a distribution of FlowJAX, NumPyro, distrax or TFP, `Normal(shape)`, or an object with
            `sample(key, shape)` and `log_prob(x)`.
        bijection: any that `remember` takes.
        context_shape: the shape of one context; None: FlowJAX's `cond_shape`, or that there is none.

    If the base has independent numbers and the bijection takes several as one event, or the other way round, an event
    is the larger of both.

    Raises:
        NotADistributionError: the base has no `sample` and `log_prob`.
        NotABijectionError: the bijection has no known form.
        FlowShapeError: base and bijection do not fit.

    Cost: shapes are found by evaluating both on types, some milliseconds, once.

    Not handled: bases that are discrete, or have events of several arrays.

    Source: `Flow` of facebookincubator/flowtorch.

    Example:
        >>> from incrax import bijectors
        >>> import numpyro.distributions as dist  # doctest: +SKIP
        >>> flow = bijectors.Flow(bijectors.Normal((2,)), dist.transforms.ExpTransform())  # doctest: +SKIP
        >>> y = flow.sample(jax.random.key(0), (5,))  # doctest: +SKIP
        >>> flow.log_prob(y).shape  # doctest: +SKIP
        (5,)
    """

    __slots__ = ("__weakref__", "_base", "_bijection", "_shapes")

    def __init__(self, base: Any, bijection: Any, context_shape: tuple[int, ...] | None = None) -> None:
        self._base = base_of(base)
        self._bijection = bijection if isinstance(bijection, Remembered) else remember(bijection)
        self._shapes = _shapes(self._base, self._bijection, context_shape)

    @classmethod
    def of(cls, distribution: Any) -> Flow:
        """A flow from a transformed distribution of FlowJAX, NumPyro, distrax or TFP; the same parameters.

        Raises:
            NotADistributionError: it is not made of a base distribution and bijections.
        """
        return cls(*_parts(distribution))

    @property
    def base(self) -> Any:
        """The distribution of x."""
        return self._base.distribution

    @property
    def bijection(self) -> Remembered:
        """The bijection from x to y, which remembers."""
        return self._bijection

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Of one y."""
        return self._shapes.event

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Of independent flows side by side, as by a base of NumPyro with such parameters."""
        return self._shapes.batch

    @property
    def context_shape(self) -> tuple[int, ...] | None:
        """Of one context, or None if the flow takes none."""
        return self._shapes.context

    def sample(self, key: Any, shape: tuple[int, ...] = (), context: Any = None) -> Any:
        """Samples, which remember the x that they were made from.

        Args:
            key: of `jax.random.key` or `PRNGKey`.
            shape: how many samples; with a context, how many for each.
            context: array, any leading axes + `context_shape`; a `jax.Array`, if samples are to remember it.

        Returns:
            A plain array of `shape` + leading axes of the context + `batch_shape` + `event_shape`.

        Raises:
            FlowShapeError: the context has another shape, or there should be one, or none.

        Cost: one forward pass, with its log-determinant unless switched off by `set_requires_ladj`.
        """
        return self._bijection.forward(self._draw(key, shape, context), self._for_bijection(context))

    def log_prob(self, y: Any, context: Any = None) -> Any:
        """Log-densities; of own samples without an inverse.

        Args:
            y: array, any leading axes + `event_shape`.
            context: array, any leading axes that broadcast with those of y + `context_shape`.

        Returns:
            An array of the leading axes. Where y is outside of what the bijection reaches: what its inverse gives
            there, mostly NaN.

        Raises:
            FlowShapeError: y or the context has another shape.

        Cost: of an own sample, with the same parameters and context object, the density of the base at the remembered
            x; otherwise one inverse pass.
        """
        self._check_event(y)
        self._check_context(context)
        x, ladj = self._bijection.inverse_and_log_det(y, self._for_bijection(context))
        return self._score(x, ladj, context)

    def sample_and_log_prob(self, key: Any, shape: tuple[int, ...] = (), context: Any = None) -> tuple[Any, Any]:
        """Samples and their log-densities from one forward pass. Arguments and errors as of `sample`."""
        x = self._draw(key, shape, context)
        y, ladj = self._bijection.transform_and_log_det(x, self._for_bijection(context))
        return y, self._score(x, -ladj, context)

    def _draw(self, key: Any, shape: tuple[int, ...], context: Any) -> Any:
        self._check_context(context)
        shape = tuple(shape)
        if _condition_shape(self.base) is None and context is not None:
            leading = jnp.shape(context)[: jnp.ndim(context) - len(self._shapes.context or ())]
            if leading and self.batch_shape:
                raise batches_twice(self.batch_shape, leading)
            return self._base.sample(key, (*shape, *leading), None)
        return self._base.sample(key, shape, context)

    def _score(self, x: Any, ladj: Any, context: Any) -> Any:
        leading = jnp.shape(x)[: jnp.ndim(x) - self._shapes.num_event]
        num_left = self._shapes.num_left
        if jnp.shape(ladj)[: jnp.ndim(ladj) - num_left[1]] != leading:
            raise other_ladj_shape(type(self._bijection.bijection).__name__, jnp.shape(ladj), jnp.shape(x), leading)
        return self._base.score(x, ladj, None if _condition_shape(self.base) is None else context, num_left)

    def _for_bijection(self, context: Any) -> Any:
        """The context, if the bijection takes one."""
        takes_none = getattr(self._bijection.bijection, "cond_shape", ()) is None
        return None if takes_none else context

    def _check_event(self, y: Any) -> None:
        num_axes = len(self.event_shape)
        if jnp.ndim(y) < num_axes or jnp.shape(y)[jnp.ndim(y) - num_axes :] != self.event_shape:
            raise not_of_event_shape(jnp.shape(y), self.event_shape)

    def _check_context(self, context: Any) -> None:
        expected = self.context_shape
        if context is None:
            if expected is not None:
                raise context_not_given(expected)
        elif expected is None:
            raise no_context_taken(jnp.shape(context))
        elif expected and jnp.shape(context)[-len(expected) :] != expected:
            raise other_context_shape(jnp.shape(context), expected)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], _Shapes]:
        """For JAX."""
        key = jax.tree_util.GetAttrKey
        return ((key("base"), self.base), (key("bijection"), self._bijection)), self._shapes

    @classmethod
    def tree_unflatten(cls, aux_data: _Shapes, children: tuple[Any, Any]) -> Flow:
        """For JAX."""
        flow = object.__new__(cls)
        flow._base, flow._bijection, flow._shapes = Base(children[0]), children[1], aux_data
        return flow

    def __reduce__(self) -> tuple[Any, ...]:
        return Flow, (self.base, self._bijection, self.context_shape)

    def __repr__(self) -> str:
        return f"Flow({type(self.base).__name__}, {self._bijection!r}, event_shape={self.event_shape})"


# --- shapes -----------------------------------------------------------------------------------------------------------


def _shapes(base: Base, bijection: Remembered, context_shape: tuple[int, ...] | None) -> _Shapes:
    """The shapes of a flow, from one sample as a type."""
    given = (context_shape, _condition_shape(bijection.bijection), _condition_shape(base.distribution))
    found = {tuple(shape) for shape in given if shape is not None}
    if len(found) > 1:
        raise shapes_do_not_fit("contexts", *sorted(found)[:2])
    of_context = found.pop() if found else None
    context = None if of_context is None else jax.ShapeDtypeStruct(of_context, jnp.result_type(float))
    of_base = context if _condition_shape(base.distribution) is not None else None
    x, log_prob = jax.eval_shape(lambda key, c: _drawn(base, key, c), jax.random.key(0), of_base)
    expected = getattr(bijection.bijection, "shape", None)
    if isinstance(expected, tuple) and x.shape[x.ndim - len(expected) :] != expected:
        raise shapes_do_not_fit("events", x.shape[log_prob.ndim :], expected)
    y, ladj = _transformed(bijection.bijection, x, context)
    num_event = x.ndim - min(log_prob.ndim, ladj.ndim)
    num_batch = x.ndim - num_event
    if y.shape[:num_batch] != x.shape[:num_batch] or ladj.ndim > x.ndim:
        raise shapes_do_not_fit("batches", x.shape[:num_batch], ladj.shape)
    num_left = (log_prob.ndim - num_batch, ladj.ndim - num_batch)
    return _Shapes(x.shape[:num_batch], y.shape[num_batch:], of_context, num_event, num_left)


def _drawn(base: Base, key: Any, context: Any) -> tuple[Any, Any]:
    x = base.sample(key, (), context)
    return x, base.score(x, jnp.zeros(()), context, (0, 0))


def _transformed(bijection: Any, x: Any, context: Any) -> tuple[Any, Any]:
    """Types of y and the log-determinant; from the inverse, where there is only that."""
    takes_none = getattr(bijection, "cond_shape", ()) is None
    b, context = remember(bijection), None if takes_none else context
    try:
        return jax.eval_shape(b.transform_and_log_det, x, context)
    except NotImplementedError:
        _, ladj = jax.eval_shape(b.inverse_and_log_det, x, context)
        return x, ladj


def _condition_shape(x: Any) -> tuple[int, ...] | None:
    return getattr(x, "cond_shape", None)


# --- transformed distributions of other libraries ---------------------------------------------------------------------


@runtime_checkable
class _OfFlowJax(Protocol):
    def merge_transforms(self) -> Any: ...


@runtime_checkable
class _OfNumPyro(Protocol):
    base_dist: Any
    transforms: Any


@runtime_checkable
class _OfDistrax(Protocol):
    distribution: Any
    bijector: Any


def _parts(distribution: Any) -> tuple[Any, Any]:
    """Base and bijection of a transformed distribution."""
    if isinstance(distribution, _OfFlowJax):
        merged = distribution.merge_transforms()
        return merged.base_dist, merged.bijection
    if isinstance(distribution, _OfNumPyro):
        transforms = list(distribution.transforms)
        module = sys.modules["numpyro.distributions.transforms"]
        return distribution.base_dist, transforms[0] if len(transforms) == 1 else module.ComposeTransform(transforms)
    if isinstance(distribution, _OfDistrax):
        return distribution.distribution, distribution.bijector
    raise no_parts(repr(type(distribution)))
