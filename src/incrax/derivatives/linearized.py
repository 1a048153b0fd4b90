"""Pushforwards at fixed arguments.

In: a function and arguments. Out: its value and a `Pushforward`. It must not know how programs are split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from incrax import _jax
from incrax._messages import wrong_option
from incrax.derivatives.differentiated import tangents_of
from incrax.derivatives.linear_maps import PUSH, Part, Point, at_point
from incrax.derivatives.pullback import outline
from incrax.derivatives.selection import Selection, select
from incrax.derivatives.transforms import plain


def linearize(fun: Callable[..., Any], *args: Any, wrt: Any = None, **kwargs: Any) -> tuple[Any, Push]:
    """Value of a function and its pushforward at these arguments, for many tangents.

    Law: `push(t)` equals `jax.linearize(fun, *args)[1](t)` at the selected leaves.

    Args:
        fun: function of pytrees of arrays, with a pytree of arrays as result; need not be compiled.
        *args: arguments; pytrees.
        wrt: what moves; see `grad`. None: all positional arguments, as in `vjp`: a tangent is then a tuple.
        **kwargs: keyword arguments; their parts are named in `wrt` by path.

    Returns:
        (value, push). `push(tangent)` takes a pytree in the shape of the selection, None for leaves without derivative,
        and returns the tangent of the value; outputs that are integers have tangents of type float0.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        UnknownInputError: a path names nothing.

    Cost: what depends on the arguments alone is computed once; a push then runs the linear program only. Compiled once
        per function, selection and types of the arguments; see `vjp`, also for what is not compiled.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> value, push = incrax.linearize(lambda x: jnp.sum(jnp.exp(x)), jnp.array([0.0, 0.0]), wrt="x")
        >>> float(push(jnp.array([1.0, 2.0])))
        3.0
    """
    if not callable(fun):
        raise wrong_option("linearize(fun)", fun, "a function")
    fun = plain(fun)
    wrt = tuple(range(len(args))) if wrt is None and args else wrt
    selection = select("linearize", fun, wrt, args, kwargs)
    point = at_point(PUSH, fun, selection, args, kwargs, has_aux=False)
    return point.value, Push(fun, selection, point)


class Push:
    """The linear map from tangents of arguments to those of outputs, at a point. Made by `linearize`."""

    def __init__(self, fun: Callable[..., Any], selection: Selection, point: Point) -> None:
        self._name = getattr(fun, "__name__", repr(fun))
        self._selection = dataclasses.replace(selection, leaves=tuple(map(outline, selection.leaves)))
        self._types = point.types
        self._part: Part = point.linear.part(tuple(range(len(point.types.active))))
        self._residuals = [x if i in self._part.residuals else None for i, x in enumerate(point.residuals)]

    def __call__(self, tangent: Any) -> Any:
        """The tangent of the outputs.

        Args:
            tangent: pytree in the shape of the selection.

        Raises:
            TangentError: its structure, a shape or a dtype is another one.
        """
        tangents = tangents_of("push", self._selection, tangent)
        active = self._part(tangents, self._residuals)
        return jax.tree.unflatten(self._types.treedef, self._types.filled(active))

    @property
    def num_operations(self) -> int:
        """Equations that a push runs; one with a body, such as a loop, counts once."""
        return len(self._part.program.eqns)

    @property
    def residual_bytes(self) -> int:
        """Bytes of all arrays that it holds, each once; those that are arguments count."""
        held = {id(x): x for x in self._residuals if x is not None}
        return sum(_jax.aval_bytes(jax.typeof(x)) for x in held.values())

    def __repr__(self) -> str:
        """What it is a pushforward of."""
        return f"pushforward of {self._name}: {self.num_operations} operations"
