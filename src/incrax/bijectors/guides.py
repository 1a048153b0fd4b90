"""NumPyro: flows as its distributions, and as guides of its models.

In: a flow, or a model and a bijection. Out: objects of NumPyro's own classes, which are made when they are asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from incrax._extras import needed
from incrax.bijectors.adapters import adapter_of
from incrax.bijectors.bases import Normal
from incrax.bijectors.distributions import Flow
from incrax.bijectors.remembered import Remembered
from incrax.bijectors.training import split_trainable
from incrax.errors import NotABijectionError


def as_numpyro(flow: Flow, context: Any = None) -> Any:
    """A flow as a distribution of NumPyro, for `numpyro.sample`.

    A sample hands its log-density on to NumPyro as an intermediate, so that inference scores it without an inverse,
    inside compiled functions too.

    Args:
        flow: of real numbers, as NumPyro is told.
        context: of a conditional flow; its leading axes belong to the batch shape.

    Returns:
        A `numpyro.distributions.Distribution`; a pytree.

    Raises:
        MissingExtraError: NumPyro is not installed.
        FlowShapeError: the context has another shape.
    """
    needed("numpyro", "as_numpyro", "flows")
    return _distribution_class()(flow, context)


@functools.cache
def _distribution_class() -> Any:
    dist = needed("numpyro.distributions", "as_numpyro", "flows")

    class FlowDistribution(dist.Distribution):
        pytree_data_fields = ("flow", "context")

        def __init__(self, flow: Flow, context: Any = None) -> None:
            self.flow, self.context = flow, context
            shape = jax.eval_shape(lambda key: flow.sample(key, (), context), jax.random.key(0)).shape
            num_batch = len(shape) - len(flow.event_shape)
            dist.Distribution.__init__(self, shape[:num_batch], shape[num_batch:], validate_args=False)

        @property
        def support(self) -> Any:
            return dist.constraints.independent(dist.constraints.real, len(self.event_shape))

        @property
        def has_rsample(self) -> bool:
            return True

        def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
            return self.flow.sample(key, sample_shape, self.context)

        rsample = sample

        def sample_with_intermediates(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
            y, log_prob = self.flow.sample_and_log_prob(key, sample_shape, self.context)
            return y, [log_prob]

        def log_prob(self, value: Any, intermediates: Any = None) -> Any:
            return intermediates[0] if intermediates else self.flow.log_prob(value, self.context)

    return FlowDistribution


def numpyro_guide(model: Callable[..., Any], bijection: Any, **options: Any) -> Any:
    """A guide of a NumPyro model by a flow, for `numpyro.infer.SVI`.

    All latent variables, moved to the real numbers and laid end to end, are one event of the flow, whose base is the
    standard normal distribution, or of the given flow.

    Args:
        model: of NumPyro; its latent variables are continuous, and their number does not change.
        bijection: from real numbers to as many real numbers; or a `Flow`; or a function that makes one of both from the
            number of latent variables.
        options: of `numpyro.infer.autoguide.AutoContinuous`, as `prefix` and `init_loc_fn`.

    Returns:
        An `AutoContinuous` guide, with `sample_posterior`. `guide.flow(params)` is the fitted `Flow`.

    Raises:
        MissingExtraError: NumPyro is not installed.
        FlowShapeError: the bijection is of another number of variables; raised at the first call of the guide.

    Cost: a sample and its log-density are one forward pass.

    Example:
        >>> guide = numpyro_guide(model, lambda n: fb.Affine(jnp.zeros(n), jnp.ones(n)))  # doctest: +SKIP
        >>> svi = SVI(model, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())  # doctest: +SKIP
    """
    needed("numpyro", "numpyro_guide", "flows")
    return _guide_class()(model, bijection, **options)


@functools.cache
def _guide_class() -> Any:
    numpyro = needed("numpyro", "numpyro_guide", "flows")
    autoguide = needed("numpyro.infer.autoguide", "numpyro_guide", "flows")

    class AutoFlow(autoguide.AutoContinuous):
        def __init__(self, model: Callable[..., Any], bijection: Any, **options: Any) -> None:
            self._made = bijection
            autoguide.AutoContinuous.__init__(self, model, **options)

        def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
            autoguide.AutoContinuous._setup_prototype(self, *args, **kwargs)
            self._trained, self._frozen, self._rebuild = split_trainable(_flow(self._made, self.latent_dim), False)

        def _get_posterior(self) -> Any:
            trained = numpyro.param(f"{self.prefix}_flow", self._trained)
            return as_numpyro(self._rebuild(trained, self._frozen))

        def get_posterior(self, params: Any) -> Any:
            return as_numpyro(self.flow(params))

        def flow(self, params: Any) -> Flow:
            """The flow with the parameters of an inference."""
            return self._rebuild(params[f"{self.prefix}_flow"], self._frozen)

    return AutoFlow


def _flow(made: Any, num_latent: int) -> Flow:
    """A flow of a number of latent variables, from what was given."""
    if isinstance(made, Flow):
        return made
    if isinstance(made, Remembered) or _is_bijection(made):
        return Flow(Normal((num_latent,)), made)
    return _flow(made(num_latent), num_latent)


def _is_bijection(x: Any) -> bool:
    try:
        adapter_of(x)
    except NotABijectionError:
        if callable(x):
            return False
        raise
    return True
