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

from incrax._table import Printable, Table, many
from incrax.derivatives.flat import ends
from incrax.derivatives.prepared import Flat, Prepared
from incrax.derivatives.transforms import IncrementalOptions
from incrax.engine.compile.captured import unfolded
from incrax.errors import BindError, InputValueError
from incrax.models.inputs import Inputs, replaced
from incrax.models.roles import TRAINABLE
from incrax.models.unbounded import slopes_of, wrong_pair


class Unbounded(Printable):
    """A model's n trainable elements as a vector u in all of R^n. Made by `Bound.unbounded`.

    `flat` has `x0`, `names`, `value(u)`, `gradient(u)`, `value_and_gradient(u)`, `hessian(u)` and
    `hvp(u, v)`; inputs that are not trainable are as they were when this was made.

    Example:
        >>> import incrax
        >>> m = incrax.bind(lambda width: (width - 2.0) ** 2, width=1.0, bounds={"width": (0, None)})
        >>> u = m.unbounded()
        >>> float(u.flat.value(u.flat.x0)), u.flat.names
        (1.0, ('width',))
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
        self._transforms = [inputs.transform(path) for path in self._paths]
        self._masks = [inputs.masks.get(path) for path in self._paths]
        values = inputs.leaves_of(TRAINABLE)
        rows = zip(self._paths, self._transforms, values, self._masks, strict=True)
        found = [_inverse(*row) for row in rows]
        self._free = inputs.free._replace(values=np.concatenate([np.ravel(each) for each in found]))
        leaves = inputs.with_leaves(TRAINABLE, found, inputs.leaves)
        args = jax.tree.unflatten(inputs.names.treedef, leaves)
        self._fun = self._composed(value)
        self._args = args
        prepared = Prepared(self._fun, args, self._paths, options)
        free = dict(zip(self._paths, self._masks, strict=True))
        self.flat = prepared.flat_at(*args, free=free)

    def bounded(self, u: Any) -> dict[str, Any]:
        """The trainable inputs at a vector of shape (n,), in the shape of `grad()`."""
        return self._shape(self._bounded(u))

    def value(self, u: Any) -> Any:
        """The function's value at a vector; traceable, and plain: `flat.value` is the incremental
        one.
        """
        leaves, treedef = jax.tree.flatten(self._args)
        leaves = replaced(list(map(unfolded, leaves)), self._numbers, self._parts(u))
        return self._fun(*jax.tree.unflatten(treedef, leaves))

    def log_det(self, u: Any) -> Any:
        """Log |det dx/du| at a vector: what a density of x gains as one of u. A scalar;
        traceable.
        """
        total = jnp.zeros(())
        for k, part in enumerate(self._parts(u)):
            transform = self._transforms[k]
            if transform is not None:
                total = total + transform.log_det(part, self._masks[k])
        return total

    def set(self, u: Any) -> None:
        """Set the model's trainable inputs to those at a vector."""
        self._inputs.set(dict(zip(self._paths, self._bounded(u), strict=True)))

    def summary(self) -> str:
        """How many elements there are."""
        return f"{many(len(self.flat.names), 'element')} without bounds"

    def tables(self) -> list[Table]:
        """The first elements, and where they were when this was made."""
        rows = [(name, f"{u:.6g}") for name, u in zip(self.flat.names, self.flat.x0, strict=True)]
        return [Table("", ("element", "unbounded value"), rows)]

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

    def _bounded(self, u: Any) -> list[Any]:
        leaves = jax.tree.leaves(self.flat.arguments(u))
        return [self._forward(k, leaves[number]) for k, number in enumerate(self._numbers)]

    def _forward(self, k: int, u: Any) -> Any:
        transform = self._transforms[k]
        mask = self._masks[k]
        if transform is None:
            return u
        if mask is None:
            return transform.forward(u)
        # A fixed element is itself in u. The transform sees 0 there, where it is finite.
        return jnp.where(mask, transform.forward(jnp.where(mask, u, 0)), u)

    def _parts(self, u: Any) -> list[Any]:
        return self._cuts.split(self._free.whole(jnp.asarray(u)))


def _inverse(path: str, transform: Any, value: Any, mask: np.ndarray | None) -> Any:
    """A value's unbounded counterpart, in its own type; of a fixed element the value itself."""
    if transform is None:
        return value
    found = np.asarray(transform.inverse(jnp.asarray(value)))
    if found.shape != np.shape(value):
        raise wrong_pair(
            "transforms", path, transform[:2], f"it changes the shape {list(np.shape(value))}"
        )
    is_free = True if mask is None else mask
    if not np.all(np.isfinite(found) | ~np.isfinite(np.asarray(value)) | ~np.asarray(is_free)):
        raise InputValueError(
            f"`{path}` lies on its bound, which is infinitely far away in unbounded space. The "
            "model is as it was. Set it to a value inside of its bounds first."
        )
    if mask is None:
        return float(found) if isinstance(value, float) else found
    slopes = np.asarray(slopes_of(transform.forward, np.where(mask, found, 0)))
    if np.any(slopes[np.ix_(~mask.ravel(), mask.ravel())]):
        raise BindError(
            f"Some elements of `{path}` are fixed, and its transform makes them of the others, "
            "too: in unbounded space none of them can be held alone. The model is as it was. Fix "
            f"all of `{path}`, or bind it without this transform."
        )
    return np.where(mask, found, value)
