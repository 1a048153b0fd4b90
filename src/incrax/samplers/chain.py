"""What a chain of samples is, or several chains, for users; where random numbers come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import needed
from incrax._messages import ambiguous_input, listed, unknown_input, wrong_option
from incrax._table import Printable, Table, many
from incrax.models.names import elements_named, is_within
from incrax.samplers.density import Density
from incrax.samplers.diagnostics import (
    MIN_SWEEPS,
    ess_bulk,
    ess_tail,
    has_arviz,
    inference_data,
    rank_r_hat,
)

T = TypeVar("T")

NUM_SHOWN = 30
MAX_R_HAT = 1.01
MIN_ESS = 100
"""Effective samples of each chain."""
HEADER = ("parameter", "mean", "sd", "5%", "95%")
DIAGNOSTICS = {"R-hat": rank_r_hat, "ESS bulk": ess_bulk, "ESS tail": ess_tail}
NUM_DOUBTED = 256
"""Parameters, or a few more, that a chain's line on convergence looks at: ArviZ takes a millisecond
of each.
"""


class Job(NamedTuple):
    """What is asked of a run of chains."""

    key: Any
    """For random numbers."""
    num_sweeps: int
    """Samples of each chain."""
    num_warmup: int
    """Sweeps before the first sample."""
    chains: int | None
    """How many; None: one, whose results have no axis for it."""
    starts: Mapping[str, Any] | None
    """By path, with the chains along the first axis; None: all start at the example."""
    checkpoint: Any
    """A file, or None."""
    devices: Sequence[Any] | None
    """Take chains by turns; None: those of the data."""
    progress: bool
    """Whether it is shown."""

    @property
    def num_chains(self) -> int:
        """At least one."""
        return 1 if self.chains is None else self.chains

    @property
    def num_all(self) -> int:
        """Sweeps of a chain, with the warm-up."""
        return self.num_warmup + self.num_sweeps

    def shown(self, x: np.ndarray) -> np.ndarray:
        """What chains along the first axis have, for the user."""
        return x if self.chains is not None else x[0]

    def placed(self, trees: Sequence[T]) -> list[T]:
        """Trees of arrays, one for each chain, on its device."""
        if self.devices is None:
            return list(trees)
        return [jax.device_put(*pair) for pair in zip(trees, cycle(self.devices), strict=False)]


@dataclass(frozen=True, repr=False)
class Chain(Printable):
    """Samples, one a sweep; of several chains, if there are.

    Fields:
        samples: n elements after each sweep, shape (sweeps, n); of several chains (chains, sweeps, n).
        names: names of the n elements.
        log_densities: the log-density of each sample, shape (sweeps,), or (chains, sweeps).
        acceptance: the share of accepted steps of each block, by its first name; of a `Categorical`
            the share of draws that changed something. Sweeps of the warm-up do not count.
        num_evaluations: evaluations of the log-density or its gradient, all chains and the warm-up included.
        why_on_host: why sweeps ran one call after another in Python; None: they were compiled.

    Example:
        >>> from incrax import samplers
        >>> log_density = lambda p: -0.5 * p["mu"] ** 2
        >>> chain = samplers.gibbs(log_density, {"mu": 0.0}, updates={"p": samplers.Walk(2.0)}, key=0, num_sweeps=50)
        >>> chain.samples.shape, chain.names, chain["mu"].shape
        ((50, 1), ("p['mu']",), (50,))
    """

    samples: np.ndarray
    names: tuple[str, ...]
    log_densities: np.ndarray
    acceptance: Mapping[str, float]
    num_evaluations: int
    _density: Density = field(repr=False, compare=False)
    why_on_host: str | None = None

    def tree(self) -> Any:
        """The samples in the shape of what is sampled, each leaf of shape (sweeps, *shape), or
        (chains, sweeps, *shape).
        """
        return self._density.tree(self.samples)

    def __getitem__(self, name: str) -> np.ndarray:
        """The samples of an element, by its name or the end of it, shape (sweeps,), or of those of a
        part, shape (sweeps, k); of several chains with an axis for these before.

        Raises:
            UnknownInputError: nothing that is sampled has this name, or several things have.
        """
        found = elements_named(name, self.names)
        if not found:
            raise unknown_input(str(name), self.names)
        if len(found) > 1:
            raise ambiguous_input(name, list(found))
        [(part, numbers)] = found.items()
        return self.samples[..., numbers[0] if part in self.names else numbers]

    @property
    def mean(self) -> np.ndarray:
        """The mean of the samples, of all chains, shape (n,)."""
        return self._pooled.mean(axis=0)

    @property
    def covariance(self) -> np.ndarray:
        """The covariance of the samples, of all chains, shape (n, n)."""
        return np.atleast_2d(np.cov(self._pooled, rowvar=False))

    @property
    def r_hat(self) -> np.ndarray:
        """R-hat of ranks by ArviZ, shape (n,): above 1.01 chains, or halves of a chain, do not
        agree.

        Raises:
            MissingExtraError: ArviZ is not installed.
        """
        return rank_r_hat(self._by_chain)

    @property
    def ess_bulk(self) -> np.ndarray:
        """Effective number of samples for means and medians by ArviZ, shape (n,)."""
        return ess_bulk(self._by_chain)

    @property
    def ess_tail(self) -> np.ndarray:
        """Effective number of samples for the 5 % and 95 % quantiles by ArviZ, shape (n,)."""
        return ess_tail(self._by_chain)

    def to_arviz(self) -> Any:
        """The samples as ArviZ has them: groups `posterior`, a variable for each leaf of what is
        sampled with dimensions (chain, draw, ...), and `sample_stats` with `lp`.

        Returns:
            An `arviz.InferenceData`; from ArviZ 1 on an `xarray.DataTree`.

        Raises:
            MissingExtraError: ArviZ is not installed.
        """
        arviz = needed("arviz", "Chain.to_arviz", "samplers")
        leaves = self._density.leaves(self._by_chain)
        lp = self.log_densities.reshape(self._by_chain.shape[:2])
        groups = {
            "posterior": dict(zip(self._density.paths, leaves, strict=True)),
            "sample_stats": {"lp": lp},
        }
        return inference_data(arviz, groups)

    @property
    def _by_chain(self) -> np.ndarray:
        return self.samples if self.samples.ndim == 3 else self.samples[None]

    @property
    def _pooled(self) -> np.ndarray:
        return self.samples.reshape(-1, self.samples.shape[-1])

    @property
    def is_alarming(self) -> bool:
        """Whether sweeps ran one call after another in Python."""
        return self.why_on_host is not None

    def summary(self) -> str:
        """How many samples of what, the acceptance, and why it is slow if it is."""
        shown = ", ".join(f"{name} {share:.0%}" for name, share in self.acceptance.items())
        chains = f"{len(self.samples)} chains" if self.samples.ndim == 3 else "chain"
        why = f"; on the host: {self.why_on_host}" if self.why_on_host else ""
        parameters = many(len(self.names), "parameter")
        return (
            f"{chains} of {self.samples.shape[-2]} samples of {parameters}; accepted: {shown}{why}"
        )

    def tables(self) -> list[Table]:
        """Of some parameters, those of the smallest inputs before all: mean, standard deviation,
        quantiles, and, where ArviZ is installed, whether chains agree.
        """
        known = DIAGNOSTICS if has_arviz() else {}
        first = self._by_chain[..., self._listed]
        columns = (
            first.mean(axis=(0, 1)),
            first.std(axis=(0, 1)),
            *np.quantile(first, (0.05, 0.95), axis=(0, 1)),
            *(of(first) for of in known.values()),
        )
        figures = [[f"{x:.4g}" for x in row] for row in np.transpose(columns)]
        rows = [(self.names[k], *row) for k, row in zip(self._listed, figures, strict=True)]
        unlisted: list[tuple[str, ...]] = [()] * (len(self.names) - len(rows))
        return [Table(self.doubt, (*HEADER, *known), [*rows, *unlisted], NUM_SHOWN)]

    @cached_property
    def _listed(self) -> np.ndarray:
        """Elements that are printed: of a mean and a thousand levels, the mean as well."""
        parts = self._density.ends.parts()
        sizes = [last - first for first, last, _ in parts]
        order = np.argsort(np.repeat(sizes, sizes), kind="stable")
        return np.sort(order[:NUM_SHOWN])

    @cached_property
    def doubt(self) -> str:
        """Why means and quantiles are not to be trusted yet, by R-hat and the effective sizes of
        the parameters, of many by those that are listed and some 256 of all inputs; empty if they
        are, or where ArviZ is not installed. A chain of less than 4 samples, and a parameter that
        never moved, have none; where no step of numbers that are no labels was accepted, it says so.

        Source: Vehtari et al., arXiv:1903.08008, section 4.

        Example:
            >>> from incrax import samplers
            >>> log_density = lambda p: -0.5 * p["mu"] ** 2
            >>> chain = samplers.gibbs(log_density, {"mu": 0.0}, updates={"p": samplers.Walk(2.0)}, key=0, num_sweeps=3)
            >>> "too few to tell" if not chain.doubt else chain.doubt
            'too few to tell'
        """
        stuck = self._unmoved()
        if stuck and self._by_chain.shape[1] >= MIN_SWEEPS:
            return (
                f"not converged: no step of {listed(stuck)} was accepted: take shorter steps, or leave "
                "the width out, so that the warm-up finds it"
            )
        if not has_arviz():
            return ""
        parts = self._density.ends.parts()
        each = -(-NUM_DOUBTED // len(parts))  # of a mean and a thousand labels, the mean as well
        spread = [
            np.linspace(first, last - 1, min(each, last - first), dtype=int)
            for first, last, _ in parts
        ]
        chosen = np.unique(np.concatenate([self._listed, *spread]))
        names = [self.names[k] for k in chosen]
        samples = self._by_chain[..., chosen]
        r_hat = rank_r_hat(samples)
        size = np.fmin(ess_bulk(samples), ess_tail(samples))
        is_known = np.isfinite(r_hat) & np.isfinite(size)
        if not is_known.any():
            return ""
        worst = int(np.argmax(np.where(is_known, r_hat, -np.inf)))
        least = int(np.argmin(np.where(is_known, size, np.inf)))
        enough = MIN_ESS * len(self._by_chain)
        if r_hat[worst] <= MAX_R_HAT and size[least] >= enough:
            return ""
        return (
            f"not converged: R-hat up to {r_hat[worst]:.3f} (of {names[worst]}; {MAX_R_HAT} will do), "
            f"effective samples from {size[least]:.0f} on (of {names[least]}; {enough} will do): take "
            "more sweeps, or a sampler that moves all parameters at once, such as NUTS"
        )

    def _unmoved(self) -> list[str]:
        """Blocks of which no step was accepted; labels that nothing changes may be certain."""
        typed = zip(self._density.paths, self._density.dtypes, strict=True)
        numbers = [path for path, dtype in typed if dtype.kind == "f"]
        still = [name for name, share in self.acceptance.items() if not share]
        return [name for name in still if any(is_within(name, path) for path in numbers)]


# --- random numbers -------------------------------------------------------------------------------


def generator(key: Any) -> np.random.Generator:
    """A generator that equal keys start equally: a key of `jax.random`, old or new, or an
    integer.
    """
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    words = np.asarray(key)
    if words.dtype.kind not in "iu" or np.any(words < 0):
        raise wrong_option("key", key, "a key of `jax.random`, or an integer of zero or more")
    return np.random.default_rng(words.ravel().tolist())


def generators(key: Any, chains: int | None) -> list[np.random.Generator]:
    """One for each chain; of one chain alone, without an axis, that of the key itself."""
    rng = generator(key)
    return [rng] if chains is None else rng.spawn(chains)
