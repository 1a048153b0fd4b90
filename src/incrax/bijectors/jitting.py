"""Compiled functions whose results remember how they were made.

In: a function. Out: the same, compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from incrax._messages import wrong_option
from incrax.bijectors.boundary import Outgoing, outgoing
from incrax.bijectors.switches import is_recording, requires_ladj

P = ParamSpec("P")
R = TypeVar("R")


def jit(f: Callable[P, R]) -> Callable[P, R]:
    """Compile a function whose results keep their memory.

    As `jax.jit`, but a result that a bijection made inside comes back with its record: source and
    log-determinant are further results of the program, and `inverse`, `log_abs_det_jacobian` and
    `memory_of` look them up.

    Promise: `jit(f)(*args)` equals `jax.jit(f)(*args)` to within rounding, and so do derivatives.

    Args:
        f: a pure function of trees of arrays. It may close over bijections; those among its
            arguments hold arrays and nothing else, as `jax.jit` asks.

    Returns:
        The compiled function. It can be differentiated, mapped, and called in other compiled
        functions. An argument that is returned is returned as the object that it is.

    Raises:
        TypeError: f is no function; (on calling) a leaf of the arguments is no array.

    Cost: a call takes some tens of microseconds beyond `jax.jit`, more with many leaves. Memory:
    what the records hold is computed and kept, also if nobody asks for it;
    `set_requires_ladj(False)`, or `set_record_flow_graph(False)` around the call, does without.

    Not handled: arguments do not remember inside. A record is carried out if its parameters and
    context are arguments or closed over, not if they are computed inside; and not of results made
    inside a mapped, looped or differentiated part. Arguments are not donated.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> exp = bijectors.remember(transforms.ExpTransform())
        >>> y = bijectors.jit(exp.forward)(jnp.zeros(2))
        >>> exp.inverse(y).tolist(), bijectors.memory_of(y).direction
        ([0.0, 0.0], 'forward')
    """
    if not callable(f):
        raise wrong_option("bijectors.jit(f)", f, "a function")

    inner: Callable[..., R] = f

    def run(switches: tuple[bool, bool], args, kwargs) -> tuple[list[Any], _AfterCall]:
        results, treedef = jax.tree.flatten(inner(*args, **kwargs))
        records, returned = outgoing(jax.tree.leaves((args, kwargs)), results)
        return returned, _AfterCall(treedef, records)

    run.__name__ = run.__qualname__ = getattr(f, "__name__", "f")
    compiled = jax.jit(run, static_argnums=0)

    @functools.wraps(f)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        given = jax.tree.map(_private, (args, kwargs))
        values, after = compiled((is_recording(), requires_ladj()), *given)
        found = after.records.attached(jax.tree.leaves(given), values)
        return jax.tree.unflatten(after.treedef, found)

    return called


@jax.tree_util.register_static
class _AfterCall:
    """What a program returns beside arrays, known once it is traced; equals itself only."""

    def __init__(self, treedef: Any, records: Outgoing) -> None:
        self.treedef = treedef
        self.records = records


def _private(x: Any) -> Any:
    """An array that nobody else can change, which a record may hold."""
    return jnp.array(x) if isinstance(x, (np.ndarray, np.generic)) else x
