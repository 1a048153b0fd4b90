"""What a chain of samples is, for users, and where its random numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax.samplers.density import Density


@dataclass(frozen=True)
class Chain:
    """Samples, one a sweep.

    Fields:
        samples: shape (sweeps, n).
        names: names of the n elements.
        log_densities: shape (sweeps,).
        acceptance: the share of accepted steps of each block, by its first name.
        num_evaluations: how many log-densities or gradients were evaluated.
    """

    samples: np.ndarray
    names: tuple[str, ...]
    log_densities: np.ndarray
    acceptance: Mapping[str, float]
    num_evaluations: int
    _density: Density = field(repr=False, compare=False)

    def tree(self) -> Any:
        """The samples in the shape of what is sampled, each leaf of shape (sweeps, *shape)."""
        return self._density.tree(self.samples)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the samples, shape (n,)."""
        return self.samples.mean(axis=0)

    @property
    def covariance(self) -> np.ndarray:
        """The covariance of the samples, shape (n, n)."""
        return np.atleast_2d(np.cov(self.samples, rowvar=False))

    def __repr__(self) -> str:
        """How many samples of what, and the acceptance."""
        shown = ", ".join(f"{name} {share:.0%}" for name, share in self.acceptance.items())
        return (
            f"chain of {len(self.samples)} samples of {len(self.names)} parameters; accepted: "
            f"{shown}"
        )


# --- random numbers -------------------------------------------------------------------------------


def generator(key: Any) -> np.random.Generator:
    """A generator that equal keys start equally: a key of `jax.random`, old or new, or an
    integer.
    """
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return np.random.default_rng(np.asarray(key).ravel().tolist())
