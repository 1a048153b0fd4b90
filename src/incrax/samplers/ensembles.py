"""Ensembles of walkers, for emcee.

In: a log-density of pytrees and data. Out: functions of vectors, starting points, a sampler of
emcee.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import needed
from incrax.samplers.chain import generator
from incrax.samplers.density import Density
from incrax.samplers.messages import wrong_walkers


def ensemble(log_density: Callable[..., Any], *args: Any, wrt: Any = None) -> Ensemble:
    """A log-density for ensemble samplers, as a function of vectors: all walkers by one program.

    Args:
        log_density: function of pytrees that returns one real number.
        *args: its arguments; those that are sampled as examples, the others to stay as they are.
        wrt: what is sampled; see `grad`. None: the first argument.

    Returns:
        An `Ensemble`.

    Raises:
        SelectionError, UnknownInputError: `wrt` names nothing that has a derivative.
        TypeError: the function returns something else than one number.

    Cost: what does not depend on the parameters is evaluated once.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from incrax import samplers
        >>> walkers = samplers.ensemble(lambda p, x: -jnp.sum((x - p["mu"]) ** 2), {"mu": 0.0}, jnp.ones(2))
        >>> walkers.names, walkers.log_probs(np.array([[0.0], [2.0]])).tolist()
        (("p['mu']",), [-2.0, -2.0])
    """
    return Ensemble(Density("ensemble", log_density, args, wrt))


class Ensemble:
    """A log-density of vectors of shape (n,), NaN taken for -inf. Made by `ensemble`.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> e = samplers.ensemble(lambda p: -jnp.sum(p["mu"] ** 2), {"mu": jnp.zeros(2)})
        >>> e.names, float(e.log_prob([1.0, 2.0]))
        (("p['mu'][0]", "p['mu'][1]"), -5.0)
    """

    def __init__(self, density: Density) -> None:
        self._density = density

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each element of a vector."""
        return self._density.names

    def log_prob(self, x: Any) -> float:
        """The log-density of one walker, evaluated through saved values: only what differs from a
        recent one.
        """
        return self._density.value(np.asarray(x))

    def log_probs(self, xs: Any) -> np.ndarray:
        """The log-densities of walkers, shape (walkers, n) -> (walkers,), by one program."""
        return np.asarray(self._batched(jnp.asarray(xs)))

    def walkers(self, num: int, key: Any, spread: Any = 1e-3) -> np.ndarray:
        """Starting points of shape (num, n): a normal ball of this width, or widths, around the
        example.
        """
        x0 = self._density.x0
        return x0 + np.asarray(spread) * generator(key).normal(size=(self._checked(num), x0.size))

    def sampler(self, num: int, **options: Any) -> Any:
        """An `emcee.EnsembleSampler` of so many walkers; options are its own.

        Raises:
            ValueError: there are too few walkers, or an odd number.
            MissingExtraError: emcee is not installed.
        """
        emcee = needed("emcee", "Ensemble.sampler", "samplers")
        return emcee.EnsembleSampler(
            self._checked(num), len(self.names), self.log_probs, vectorize=True, **options
        )

    def tree(self, xs: Any) -> Any:
        """Vectors of shape (*batch, n) as parameters, each of shape (*batch, *shape)."""
        return self._density.tree(xs)

    def _checked(self, num: int) -> int:
        if num % 2 or num < 2 * len(self.names):
            raise wrong_walkers(num, len(self.names))
        return num

    @cached_property
    def _batched(self) -> Callable[[Any], Any]:
        def evaluate(log_density: Callable[[Any], Any], xs: Any) -> Any:
            values = jax.vmap(log_density)(xs)
            return jnp.where(jnp.isnan(values), -jnp.inf, values)

        # The data are arguments of the program, not constants.
        return partial(jax.jit(evaluate), self._density.of_vector())
