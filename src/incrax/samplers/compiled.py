"""Log-densities for samplers whose loops are compiled: NumPyro, BlackJAX.

In: a log-density of pytrees and data. Out: a function of the parameters alone. It must not know the sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from incrax.samplers.density import Density


def logdensity(log_density: Callable[..., Any], *args: Any, wrt: Any = None) -> Callable[[Any], Any]:
    """A log-density of what is sampled alone, for compiled loops: `logdensity_fn` of BlackJAX.

    Law: `logdensity(f, params, *data)(p)` equals `f(p, *data)`, and so do its derivatives of any order.

    Args:
        log_density: function of pytrees that returns one real number; an incremental one is taken as it is written.
        *args: its arguments; those that are sampled as examples, the others to stay as they are.
        wrt: what is sampled; see `grad`. None: the first argument.

    Returns:
        A function of the selected leaves, in the shape of the selection. What does not depend on them is evaluated
        once, here, and read by every evaluation in the sampler's loop, where an incremental function saves nothing.

    Raises:
        SelectionError, UnknownInputError: `wrt` names nothing that has a derivative.
        TypeError: the function returns something else than one number.

    Cost: one evaluation. The saved values become constants of the sampler's program.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> from incrax import samplers
        >>> f = lambda p, x: -0.5 * jnp.sum((jnp.log(x) - p["mu"]) ** 2)
        >>> g = samplers.logdensity(f, {"mu": 0.0}, jnp.ones(3))
        >>> float(g({"mu": 2.0}))
        -6.0
    """
    return Density("logdensity", log_density, args, wrt).hoisted().of_tree


def numpyro_potential(log_density: Callable[..., Any], *args: Any, wrt: Any = None) -> Callable[[Any], Any]:
    """The potential energy of NumPyro, minus the log-density: `NUTS(potential_fn=...)`, `HMC(potential_fn=...)`.

    Args:
        log_density: as in `logdensity`. NumPyro samples without bounds: transform the parameters, and add the logarithm
            of the Jacobian.
        *args: as there.
        wrt: as there.

    Returns:
        A function of what is sampled. Give `MCMC.run(key, init_params=...)` a tree of the same shape.

    Raises:
        SelectionError, UnknownInputError, TypeError: as from `logdensity`.

    Cost: as there.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> potential = samplers.numpyro_potential(lambda p, x: -jnp.sum((x - p) ** 2), 0.0, jnp.ones(3))
        >>> float(potential(2.0))
        3.0
    """
    density = Density("numpyro_potential", log_density, args, wrt).hoisted()
    return lambda tree: -density.of_tree(tree)
