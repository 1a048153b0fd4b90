"""Bound models, as functions with arguments.

In: a model, or a method of one that evaluates. Out: its function, its inputs as arguments, what is trainable. It must
not know what is counted.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from incrax.errors import UnknownInputError
from incrax.inspection.cost.messages import inputs_by_position, not_evaluating
from incrax.models.bound import Bound
from incrax.models.modules import opened
from incrax.models.names import with_part

METHODS = ("value", "grad", "value_and_grad", "hessian", "jacobian")
"""Methods that evaluate, from the inputs alone."""


class Unbound(NamedTuple):
    """A model's function and its inputs as arguments."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    model: Bound

    def path(self, name: str) -> str:
        """The path of a name, also of an element of an array: `m` and `w[3]` for `params['m']` and `params['w'][3]`.

        Raises:
            UnknownInputError: it stands for nothing, or for several things.
        """
        base, bracket, element = name.rpartition("[")
        for known, rest in ((name, ""), (base, bracket + element)):
            with contextlib.suppress(UnknownInputError):
                return self.model.path(known) + rest
        return self.model.path(name)

    def selected(self, wrt: Any) -> Any:
        """What is differentiated: what names stand for; without any what is trainable."""
        if wrt is None:
            return self.model.trainable_paths
        if isinstance(wrt, str):
            return self.path(wrt)
        is_named = isinstance(wrt, (tuple, list)) and all(isinstance(name, str) for name in wrt)
        return type(wrt)(map(self.path, wrt)) if is_named else wrt


def unbound(fun: Any, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> Unbound | None:
    """A model, or a method that evaluates, with other values or types for some inputs; None for anything else.

    Raises:
        CostError: arguments are given by position, or it is another method.
        UnknownInputError: a name stands for nothing, or for several things.
    """
    is_method = isinstance(fun, types.MethodType) and isinstance(fun.__self__, Bound)
    model = fun.__self__ if is_method else fun
    if not isinstance(model, Bound):
        return None
    method = fun.__name__ if is_method else "value"
    if method not in METHODS:
        raise not_evaluating(method, METHODS)
    if args:
        raise inputs_by_position(len(args))
    function = model.made(method)
    trees = dict(zip(inspect.signature(function).parameters, model.args, strict=True))
    for name, value in inputs.items():
        module = opened(value)
        trees = with_part(trees, model.path(name), value if module is None else module.tree)
    return Unbound(function, tuple(trees.values()), model)
