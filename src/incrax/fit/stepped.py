"""Optimisers of optax, step by step over the saved values, and minimisers of optimistix, in one program.

In: counted functions of a vector, an object of one of these libraries. Out: the end of a search.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import needed
from incrax.fit.ended import Ended, Settings
from incrax.fit.messages import no_bounds
from incrax.fit.scipy_methods import BOUNDED
from incrax.fit.task import Counted, Counts

MAX_STEPS = 10_000
TOLERANCE = 1e-6
"""Of optax: the greatest element of the gradient, relative to the value or 1."""


def _is_of(library: str, kind: str, x: Any) -> bool:
    """Whether an object is of a class of a library; if it is, the library is imported already."""
    module = sys.modules.get(library)
    return module is not None and isinstance(x, getattr(module, kind))


def is_optax(x: Any) -> bool:
    """Whether it is an optimiser of optax."""
    return _is_of("optax", "GradientTransformation", x)


def is_optimistix(x: Any) -> bool:
    """Whether it is a minimiser of optimistix."""
    return _is_of("optimistix", "AbstractMinimiser", x)


def by_optax(counted: Counted, optimiser: Any, settings: Settings) -> Ended:
    """Steps of an optimiser, each followed by a projection into the bounds."""
    optax = needed("optax", "minimize(method=an optax optimiser)", "fit")
    tolerance = TOLERANCE if settings.tolerance is None else settings.tolerance
    lower, upper = counted.task.bounds
    transform = optax.with_extra_args_support(optimiser)

    @jax.jit
    def advanced(x: Any, state: Any, value: Any, gradient: Any) -> tuple[Any, Any]:
        given = {"value": value, "grad": gradient, "value_fn": counted.task.plain_value}
        updates, state = transform.update(gradient, state, x, **given)
        return jnp.clip(optax.apply_updates(x, updates), lower, upper), state

    x = jnp.asarray(counted.task.x)
    state = transform.init(x)
    max_steps = settings.options.get("max_steps", MAX_STEPS)
    for number in range(max_steps + 1):
        value, gradient = counted.value_and_gradient(x)
        inside = np.asarray(x) - np.clip(np.asarray(x) - gradient, lower, upper)
        if np.abs(inside).max() <= tolerance * max(1.0, abs(value)):
            return Ended(np.asarray(x), True, "gradient below the tolerance", num_steps=number)
        if not np.isfinite(value):
            return Ended(np.asarray(x), False, "not finite", num_steps=number)
        if number < max_steps:
            x, state = advanced(x, state, value, gradient)
    return Ended(np.asarray(x), False, "step limit reached", is_limited=True, num_steps=max_steps)


def by_optimistix(counted: Counted, minimiser: Any, settings: Settings) -> Ended:
    """A whole search in one program: nothing is saved, the function is traced as it is.

    Raises:
        MethodError: there are bounds.
    """
    optimistix = needed("optimistix", "minimize(method=an optimistix minimiser)", "fit")
    task = counted.task
    if task.is_bounded:
        raise no_bounds(type(minimiser).__name__, ["migrad", *BOUNDED])
    given = {"max_steps": MAX_STEPS, **settings.options, "throw": False}

    @jax.jit
    def run(x: Any, others: Any) -> tuple[Any, Any, Any]:
        value = lambda x, others: task.fun(*task.problem.layout.arguments(x, others))
        found = optimistix.minimise(value, minimiser, x, args=others, **given)
        return found.value, found.result == optimistix.RESULTS.successful, found.stats["num_steps"]

    x, is_done, num_steps = jax.device_get(run(jnp.asarray(task.x), task.problem.others))
    counted.counts = Counts(gradients=int(num_steps))
    is_limited = not is_done and int(num_steps) >= given["max_steps"]
    message = "converged" if is_done else "step limit reached" if is_limited else "the minimiser gave up"
    return Ended(np.asarray(x), bool(is_done), message, is_limited=is_limited, num_steps=int(num_steps))
