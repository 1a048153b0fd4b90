"""A model as a function of one vector without bounds.

In: a function, its inputs and their transforms. Out: value and derivatives by unbounded elements,
for minimisers and samplers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax.derivatives.flat import ends
from incrax.derivatives.prepared import Flat, Prepared
from incrax.derivatives.transforms import IncrementalOptions
from incrax.engine.compile.captured import unfolded
from incrax.models.inputs import Inputs
from incrax.models.messages import at_a_bound, wrong_pair
from incrax.models.roles import TRAINABLE


class Unbounded:
    """A model's trainable elements as a vector u in all of R^n. Made by `Bound.unbounded`.

    `flat` has `x0`, `names`, `value(u)`, `gradient(u)`, `value_and_gradient(u)`, `hessian(u)` and
    `hvp(u, v)`; inputs that are not trainable are as they were when this was made.
    """

    flat: Flat

    def __init__(
        self, value: Callable[..., Any], inputs: Inputs, options: IncrementalOptions
    ) -> None:
        """See `Bound.unbounded`."""
        self._inputs = inputs
        self._shape = inputs.shape()
        self._paths = inputs.paths(TRAINABLE)
        self._cuts = ends([np.shape(leaf) for leaf in inputs.leaves_of(TRAINABLE)])
        self._numbers = inputs.numbers(TRAINABLE)
        self._transforms = [inputs.transforms.get(path) for path in inputs.paths(TRAINABLE)]
        rows = zip(
            inputs.paths(TRAINABLE), self._transforms, inputs.leaves_of(TRAINABLE), strict=True
        )
        leaves = inputs.with_leaves(TRAINABLE, [_inverse(*row) for row in rows], inputs.leaves)
        args = jax.tree.unflatten(inputs.names.treedef, leaves)
        self._fun = self._composed(value)
        self._args = args
        self.flat = Prepared(self._fun, args, inputs.paths(TRAINABLE), options).flat

    def bounded(self, u: Any) -> dict[str, Any]:
        """The trainable inputs at a vector of shape (n,), in the shape of `grad()`."""
        leaves = jax.tree.leaves(self.flat.arguments(u))
        return self._shape(
            [self._forward(k, leaves[number]) for k, number in enumerate(self._numbers)]
        )

    def value(self, u: Any) -> Any:
        """The function's value at a vector; traceable, and plain: `flat.value` is the incremental
        one.
        """
        leaves, treedef = jax.tree.flatten(self._args)
        leaves = list(map(unfolded, leaves))
        for number, part in zip(self._numbers, self._parts(u), strict=True):
            leaves[number] = part
        return self._fun(*jax.tree.unflatten(treedef, leaves))

    def log_det(self, u: Any) -> Any:
        """Log |det dx/du| at a vector: what a density of x gains as one of u. A scalar;
        traceable.
        """
        total = jnp.zeros(())
        for k, part in enumerate(self._parts(u)):
            transform = self._transforms[k]
            if transform is not None:
                total = total + transform.log_det(part)
        return total

    def set(self, u: Any) -> None:
        """Set the model's trainable inputs to those at a vector."""
        leaves = jax.tree.leaves(self.flat.arguments(u))
        values = [self._forward(k, leaves[number]) for k, number in enumerate(self._numbers)]
        self._inputs.set(dict(zip(self._paths, values, strict=True)))

    # --- inner ------------------------------------------------------------------------------------

    def _composed(self, value: Callable[..., Any]) -> Callable[..., Any]:
        """The function of inputs whose trainable leaves are unbounded."""

        def fun(*args: Any) -> Any:
            leaves, treedef = jax.tree.flatten(args)
            for k, number in enumerate(self._numbers):
                leaves[number] = self._forward(k, leaves[number])
            return value(*jax.tree.unflatten(treedef, leaves))

        fun.__signature__ = value.__signature__  # pyright: ignore[reportFunctionMemberAccess]
        return fun

    def _forward(self, k: int, u: Any) -> Any:
        transform = self._transforms[k]
        return u if transform is None else transform.forward(u)

    def _parts(self, u: Any) -> list[Any]:
        return self._cuts.split(jnp.asarray(u))


def _inverse(path: str, transform: Any, value: Any) -> Any:
    """A value's unbounded counterpart, in its own type."""
    if transform is None:
        return value
    found = np.asarray(transform.inverse(jnp.asarray(value)))
    if found.shape != np.shape(value):
        raise wrong_pair(
            "transforms", path, transform[:2], f"it changes the shape {list(np.shape(value))}"
        )
    if not np.all(np.isfinite(found) | ~np.isfinite(np.asarray(value))):
        raise at_a_bound(path)
    return float(found) if isinstance(value, float) else found
