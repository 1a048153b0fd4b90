"""Models of NumPyro as log-densities: what is sampled, where it starts, how it moves; and a kernel
for NumPyro's own chains that draws discrete sites.

In: a model and its arguments. Out: a `NumPyroModel`, or a kernel. It must not know how sweeps run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from incrax import incremental
from incrax._extras import needed
from incrax._table import Printable, Table, many
from incrax.engine.inputs.frames import framed
from incrax.errors import ProposalError
from incrax.samplers.sweep_blocks import ROWS, SweepBlock, coloured
from incrax.samplers.sweep_draws import drawn_rows
from incrax.samplers.updates import Categorical, Walk


def from_numpyro(
    model: Callable[..., Any], *args: Any, key: jax.Array | int = 0, **kwargs: Any
) -> NumPyroModel:
    """A NumPyro model as it is, for `gibbs` and the other samplers here.

    Args:
        model: the model; discrete sites may be latent.
        *args: its arguments.
        key: a key of `jax.random`, or an integer, for values at the start: discrete ones are drawn,
            the others are medians.
        **kwargs: its keyword arguments.

    Returns:
        The log-density of its latent sites, their start and updates; see `NumPyroModel`.

    Raises:
        MissingExtraError: NumPyro is not installed.
        ProposalError: a discrete site has no list of values.

    Cost: a few evaluations of the model.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> from incrax import samplers
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 3))
        ...     with numpyro.plate("groups", len(y)):
        ...         numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(mu, 1)), 1), obs=y)
        >>> m = samplers.from_numpyro(model, np.zeros(5))
        >>> chain = samplers.gibbs(m.log_density, *m.args, updates=m.updates, key=1, num_sweeps=10)
        >>> sorted((name, x.shape) for name, x in m.constrained(chain.tree()).items())
        [('mu', (10,)), ('x', (10, 5))]
    """
    return NumPyroModel(model, args, kwargs, key)


class NumPyroModel(Printable):
    """The latent sites of a NumPyro model. Made by `from_numpyro`.

    `samplers.gibbs(m.log_density, *m.args, updates=m.updates, ...)` samples it.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> from incrax import samplers
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        ...     numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        >>> m = samplers.from_numpyro(model, 0.5)
        >>> sorted(m.args[0]), m.discrete
        (['mu'], ())
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: Any,
    ) -> None:
        self._handlers = _numpyro("handlers")
        self._util = _numpyro("infer.util")
        self._model = model
        leaves, treedef = jax.tree.flatten((args, dict(kwargs)))
        # Sizes of plates and flags must be known while JAX traces; arrays are data.
        is_data = [isinstance(x, (np.ndarray, jax.Array)) for x in leaves]
        self._frame, self._data = framed(treedef, leaves, is_data)
        draws, medians = jax.random.split(jax.random.key(key) if isinstance(key, int) else key)
        median_of = _numpyro("infer").init_to_median
        # Medians of what is not discrete, since improper distributions have no draws.
        medians_of = lambda site: None if _is_discrete(site) else median_of(site)
        started = self._handlers.substitute(
            self._handlers.seed(model, draws), substitute_fn=medians_of
        )
        trace = self._handlers.trace(started).get_trace(*args, **kwargs)
        latent = {
            name: site
            for name, site in trace.items()
            if _is_discrete(site) and not site["is_observed"]
        }
        self._values = {name: _support(name, site["fn"]) for name, site in latent.items()}
        self._shapes = {name: np.shape(site["value"]) for name, site in latent.items()}
        start = {name: jnp.reshape(site["value"], -1) for name, site in latent.items()}
        info = self._util.initialize_model(
            medians,
            self._handlers.condition(model, self._shaped(start)),
            init_strategy=median_of,
            model_args=args,
            model_kwargs=kwargs,
        )
        self._start = {**start, **jax.tree.map(jnp.asarray, dict(info.param_info.z))}

    @property
    def args(self) -> tuple[Any, ...]:
        """Arguments of `log_density`: values of the latent sites at the start, by name, and the
        arrays among the model's arguments. Sites with constraints are without them; discrete ones
        are vectors.
        """
        return dict(self._start), list(self._data)

    @property
    def discrete(self) -> tuple[str, ...]:
        """Names of the discrete latent sites."""
        return tuple(self._values)

    @property
    def updates(self) -> dict[str, Walk | Categorical]:
        """How sites move by default: discrete ones by draws from their values, rows of the others
        by walks, with widths from the warm-up.
        """
        moves: dict[str, Walk | Categorical] = {}
        for name, value in self._start.items():
            path = f"p[{name!r}]"
            if name in self._values:
                moves[path] = Categorical(self._values[name])
            else:
                moves[path + ROWS if value.ndim else path] = Walk()
        return moves

    def log_density(self, p: Mapping[str, Any], data: Sequence[Any]) -> jax.Array:
        """Log-density of latent sites, of those with constraints in the space without them.

        Args:
            p: values by name, as in `args`.
            data: arrays among the model's arguments.
        """
        args, kwargs = self._frame.filled(data)
        fixed, _, others = self._conditioned(p)
        return -self._util.potential_energy(fixed, args, kwargs, others)

    def _conditional(
        self, z: Mapping[str, Any], others: Mapping[str, Any], data: Sequence[Any]
    ) -> jax.Array:
        """Log-density of discrete sites given the others, these as the model has them."""
        args, kwargs = self._frame.filled(data)
        given = {**self._shaped(z), **others}
        return self._util.log_density(self._model, args, kwargs, given)[0]

    def constrained(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Samples as the model has them, `deterministic` sites included.

        Args:
            tree: from `Chain.tree()`: arrays by name, with axes (sweeps, ...) or (chains, sweeps,
                ...).
        """
        name, x = next(iter(tree.items()))
        num_axes = np.ndim(x) - self._start[name].ndim
        batch = x.shape[:num_axes]
        flat = jax.tree.map(lambda x: jnp.reshape(x, (-1, *x.shape[num_axes:])), dict(tree))
        found = jax.jit(lambda p: jax.lax.map(self._constrained, p))(flat)
        return jax.tree.map(lambda x: np.asarray(x).reshape(*batch, *x.shape[1:]), found)

    def _constrained(self, p: Mapping[str, Any]) -> dict[str, Any]:
        args, kwargs = self._frame.filled(self._data)
        fixed, discrete, others = self._conditioned(p)
        found = self._util.constrain_fn(fixed, args, kwargs, others, return_deterministic=True)
        return {**found, **discrete}

    def _conditioned(self, p: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The model at the values of its discrete sites, these values, and the others."""
        discrete = self._shaped({name: p[name] for name in self._values})
        others = {name: x for name, x in p.items() if name not in self._values}
        return self._handlers.condition(self._model, discrete), discrete, others

    def summary(self) -> str:
        """How many latent sites, and how many numbers they are."""
        num_elements = sum(np.size(x) for x in self._start.values())
        sites = many(len(self._start), "latent site")
        return f"NumPyro model with {sites} of {many(num_elements, 'element')}"

    def tables(self) -> list[Table]:
        """The latent sites, and how they move."""
        moves = [type(update).__name__ for update in self.updates.values()]
        rows = [
            (name, np.size(x), move)
            for (name, x), move in zip(self._start.items(), moves, strict=True)
        ]
        return [Table("", ("site", "elements", "moves by"), rows)]

    def _shaped(self, z: Mapping[str, Any]) -> dict[str, Any]:
        return {name: jnp.reshape(x, self._shapes[name]) for name, x in z.items()}


def _numpyro(part: str, what: str = "from_numpyro") -> Any:
    return needed(f"numpyro.{part}", what, "samplers")


def _is_discrete(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and site["fn"].support.is_discrete


def _support(name: str, distribution: Any) -> np.ndarray:
    """All values of an element of a discrete site.

    Raises:
        ProposalError: there is no list of them.
    """
    while type(distribution).__name__ == "Independent":  # by `to_event`: each element as before
        distribution = distribution.base_dist
    if distribution.event_shape or not distribution.has_enumerate_support:
        raise ProposalError(
            f"The discrete site `{name}` is a {type(distribution).__name__}, whose values cannot be "
            "listed. Nothing was sampled. Marginalise it, condition on it, or give it a "
            "distribution on finitely many numbers."
        )
    return np.asarray(distribution.enumerate_support(expand=False)).reshape(-1)


# --- NumPyro's own chains -------------------------------------------------------------------------


def discrete_hmc_gibbs(
    inner_kernel: Any, *, random_walk: bool = False, modified: bool = False
) -> Any:
    """A kernel for `numpyro.infer.MCMC` in place of `DiscreteHMCGibbs`: each element of each
    discrete site moves by what it reaches, and `inner_kernel` moves all else.

    Args:
        inner_kernel: `HMC` or `NUTS` of a model.
        random_walk: as in NumPyro: whether values are proposed among all alike, instead of drawn from
            their conditional distribution.
        modified: as in NumPyro: whether another value than the present one is proposed.

    Returns:
        A kernel, whose states are those of `numpyro.infer.HMCGibbs`. Each step moves every element
        of every discrete site once, in the order of the model; elements that do not interact all at
        once. Sites marked for enumeration move like the others.

    Raises:
        MissingExtraError: NumPyro is not installed.
        TypeError: the inner kernel has no model.
        ProposalError: when `MCMC` starts: a discrete site has no list of values, or there is none;
            or with `MCMC(jit_model_args=True)`.

    Cost: a step takes an evaluation of the model for each value where elements do not interact, else
        some microseconds for each element; `DiscreteHMCGibbs` evaluates the model for each element
        and value.

    Example:
        >>> import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> from incrax import samplers
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(jnp.array([-1.0, 1.0]), 1).to_event(1))
        ...     with numpyro.plate("n", len(x)):
        ...         z = numpyro.sample("z", dist.Categorical(jnp.ones(2) / 2))
        ...         numpyro.sample("x", dist.Normal(mu[z], 1), obs=x)
        >>> kernel = samplers.discrete_hmc_gibbs(numpyro.infer.NUTS(model), modified=True)
        >>> mcmc = numpyro.infer.MCMC(kernel, num_warmup=5, num_samples=5, progress_bar=False)
        >>> mcmc.run(jax.random.key(0), jnp.array([-2.0, 2.0]))
        >>> mcmc.get_samples()["z"].shape
        (5, 2)
    """
    infer = _numpyro("infer", "discrete_hmc_gibbs")
    if getattr(inner_kernel, "model", None) is None or not isinstance(inner_kernel, infer.HMC):
        raise TypeError(
            f"`discrete_hmc_gibbs(inner_kernel)` got a {type(inner_kernel).__name__}; it must be the "
            "`HMC` or `NUTS` of a model. Nothing was sampled. Pass `NUTS(model)`, not a "
            "`potential_fn`, in which there are no sites."
        )
    return _kernel_class()(inner_kernel, random_walk=random_walk, modified=modified)


@functools.cache
def _kernel_class() -> Any:
    """The kernel's class, made where NumPyro is there."""
    infer = _numpyro("infer")
    base: Any = _numpyro("infer.mcmc").MCMCKernel

    class DiscreteSites(base):
        """`HMCGibbs` with draws that are made when the model's arguments are known."""

        sample_field = "z"

        def __init__(self, inner_kernel: Any, **how: bool) -> None:
            self.inner_kernel = inner_kernel
            self._how = how
            self._kernel: Any = None

        @property
        def model(self) -> Any:
            return self.inner_kernel.model

        def init(
            self, rng_key: Any, num_warmup: Any, init_params: Any, model_args: Any,
            model_kwargs: Any,
        ) -> Any:  # fmt: skip
            # The model is analysed by values, also where `MCMC` traces this for several chains.
            with jax.ensure_compile_time_eval():
                model = from_numpyro(self.model, *model_args, **(model_kwargs or {}))
                if not model.discrete:
                    raise ProposalError(
                        "`discrete_hmc_gibbs` got a model without discrete latent sites. Nothing "
                        "was sampled. Give `MCMC` the inner kernel itself."
                    )
                draw = _DiscreteDraw(model, self._how)
            self._kernel = infer.HMCGibbs(self.inner_kernel, draw, list(model.discrete))
            return self._kernel.init(rng_key, num_warmup, init_params, model_args, model_kwargs)

        def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
            leaves = jax.tree.leaves((model_args, model_kwargs))
            if any(isinstance(x, Tracer) for x in leaves):
                raise ProposalError(
                    "The kernel of `discrete_hmc_gibbs` needs values of the model's arguments, "
                    "which `MCMC(jit_model_args=True)` hides. Nothing was sampled. Leave "
                    "`jit_model_args` out."
                )
            return self._kernel.sample(state, model_args, model_kwargs)

        def postprocess_fn(self, args: Any, kwargs: Any) -> Any:
            return self._kernel.postprocess_fn(args, kwargs)

        def get_diagnostics_str(self, state: Any) -> str:
            return self._kernel.get_diagnostics_str(state)

    return DiscreteSites


class _DiscreteDraw:
    """A draw of all discrete sites, as `HMCGibbs` calls it."""

    def __init__(self, model: NumPyroModel, how: Mapping[str, Any]) -> None:
        p, data = model.args
        at = model.constrained({name: x[None] for name, x in p.items()})
        self._discrete = {name: f"z[{name!r}]" for name in model.discrete}
        self._rest = {name: f"others[{name!r}]" for name in p if name not in self._discrete}
        others = {name: jnp.asarray(at[name][0]) for name in self._rest}
        moves = [*(path + ROWS for path in self._discrete.values()), *self._rest.values()]
        f: Any = incremental(model._conditional)
        z = {name: p[name] for name in self._discrete}
        self._state, self._sites = f.sites(z, others, data, moves=moves)
        self._values = model._values
        self._blocks = [
            coloured(
                SweepBlock(path, (path,), len(z[name]), num_values=len(self._values[name]), **how),
                self._sites,
                self._state,
            )
            for name, path in self._discrete.items()
        ]

    def __call__(
        self, rng_key: Any, gibbs_sites: Mapping[str, Any], hmc_sites: Mapping[str, Any]
    ) -> dict[str, Any]:
        sites = self._sites
        given = {path: jnp.reshape(gibbs_sites[name], -1) for name, path in self._discrete.items()}
        given |= {path: hmc_sites[name] for name, path in self._rest.items()}
        types = sites.inputs(self._state)
        typed = {path: x.astype(types[path].dtype) for path, x in given.items()}
        place = sites.start(typed, self._state)
        position = place, sites.look(place, {})[1]
        keys = jax.random.split(rng_key, len(self._blocks))
        for key, block, values in zip(keys, self._blocks, self._values.values(), strict=True):
            uniform = jax.random.uniform(key, (block.num_steps,), position[1].dtype)
            candidates = jnp.asarray(values, types[block.name].dtype)
            position, _ = drawn_rows(sites, position, block, uniform, candidates)
        found = sites.inputs(position[0])
        return {
            name: found[path].reshape(gibbs_sites[name].shape).astype(gibbs_sites[name].dtype)
            for name, path in self._discrete.items()
        }
