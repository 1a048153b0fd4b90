"""A function with values for all of its inputs, some of them fitted.

In: a function, inputs by name, roles, bounds. Out: a `Bound`: set inputs, read values and derivatives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from incrax._api import incremental
from incrax._bind_errors import no_state, nothing_to_train
from incrax._errors import not_called
from incrax._incremental import Incremental
from incrax.binding.functions import Functions, checked_inputs, functions_of
from incrax.binding.inputs import Inputs, Watcher
from incrax.binding.modules import is_module
from incrax.binding.roles import STATE, TRAINABLE, Roles, is_floating
from incrax.binding.training import Training
from incrax.binding.vector import Unbounded
from incrax.derivatives.flat import element_names
from incrax.derivatives.prepared import Flat, Prepared
from incrax.derivatives.selection import type_name
from incrax.derivatives.transforms import grad, hessian, hvp, jacobian, options_of, plain, value_and_grad
from incrax.report.explain import Explanation
from incrax.running.stats import Stats

MODULE = "model"
"""What a module is called that is bound itself."""


def bind(
    f: Callable[..., Any],
    /,
    *,
    roles: Roles = None,
    bounds: Mapping[str, Any] | None = None,
    transforms: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> Bound:
    """Give a function values for its inputs, to be set one by one and fitted.

    Each input is a pytree. Each of its leaves has a role:

    - `"trainable"`: what derivatives are taken by, and what fits change;
    - `"fixed"`: a parameter that stays as it is set; no derivative by it is ever computed;
    - `"state"`: updated by what the function returns, outside of all derivatives (moving averages);
    - `"data"`: may change its shape and structure when it is set; arrays are copied once and frozen.

    Args:
        f: function of the inputs by name; an incremental one keeps its options. With state, it returns a pair: its
            value, and a mapping of state inputs to their new values. An Equinox or Flax NNX module is bound whole: its
            leaves are the input `model`, and the inputs are those of its call.
        roles: a mapping of names to roles, the innermost name counts; or a function (path, leaf) -> role, None for the
            default. By default floating leaves are trainable and all others data; parameters of NNX modules are
            trainable and their other variables state.
        bounds: a mapping of names to pairs (lower, upper) that broadcast to the leaf, None for no bound.
        transforms: a mapping of names to pairs of functions, from unbounded space to the input and back. By default
            those of the bounds: exp for one, logistic for two.
        **inputs: values. Those that `f` has defaults for may be left out and are then no inputs.

    Names are inputs, paths of parts of them (`"params['mu']"`), or the ends of paths where only one fits (`"mu"`).

    Returns:
        A model: `set`, `at`, `value`, `grad`, ...; see `Bound`.

    Raises:
        BindError: the inputs are not those of the function, or roles, bounds or transforms do not fit them.
        UnknownInputError: a name stands for nothing, or for several things.
        InputValueError: an input lies outside of its bounds.

    Cost: nothing is traced before the first evaluation; data are copied once.

    Example:
        >>> import incrax
        >>> m = incrax.bind(lambda mu, sigma, x: ((x - mu) / sigma) ** 2, mu=1.0, sigma=2.0, x=5.0, roles={"x": "data"})
        >>> float(m.value()), float(m.grad()["mu"])
        (4.0, -2.0)
        >>> m.set(mu=3.0)
        >>> float(m.value())
        1.0
    """
    return Bound(f, inputs, roles, bounds, transforms)


class Bound:
    """A function with values for its inputs. Made by `bind`.

    Methods that evaluate are incremental: they pay for what was set since they were last called. What they return by
    trainable inputs is a dictionary of those inputs, with None in the place of leaves that are not trainable.
    Not for several threads at a time.
    """

    def __init__(self, fun: Any, given: Mapping[str, Any], roles: Roles, bounds: Any, transforms: Any) -> None:
        """See `bind`."""
        self._options = options_of(fun)
        self._fun = plain(fun)
        if is_module(self._fun):
            given = {MODULE: self._fun, **given}
            self._fun = _call
        else:
            given = checked_inputs(self._fun, given)
        self._inputs = Inputs(given, roles, bounds, transforms)
        self._forget()

    def _forget(self) -> None:
        """Make functions anew, as roles decide what they are."""
        held = self._inputs
        self._functions: Functions = functions_of(self._fun, held.names.inputs, held.opened, held.paths(STATE))
        self._made: dict[str, Incremental[..., Any]] = {}

    # --- evaluation ----------------------------------------------------------------------------------------------

    def value(self) -> Any:
        """What the function returns; with state, without its updates, which this does not apply."""
        return self._called("value")

    def grad(self) -> dict[str, Any]:
        """The gradient of a scalar function by what is trainable."""
        return self._inputs.tree(self._called("grad"))

    def value_and_grad(self) -> tuple[Any, dict[str, Any]]:
        """Both, by one program."""
        value, gradient = self._called("value_and_grad")
        return value, self._inputs.tree(gradient)

    def hessian(self) -> dict[str, Any]:
        """All second derivatives: in the shape of `grad()`, each leaf a dictionary in the shape of `grad()`."""
        return self._inputs.tree([self._inputs.tree(row) for row in self._called("hessian")])

    def jacobian(self) -> Any:
        """All derivatives of all outputs: in the structure of the value, each leaf in the shape of `grad()`."""
        structure = jax.tree.structure(self.value())
        rows = structure.flatten_up_to(self._called("jacobian"))
        return jax.tree.unflatten(structure, [self._inputs.tree(row) for row in rows])

    def hvp(self, tangent: Mapping[str, Any]) -> dict[str, Any]:
        """The Hessian times a tangent in the shape of `grad()`."""
        return self._inputs.tree(self._called("hvp", tangent=tuple(self._inputs.leaves_in(tangent))))

    def update(self) -> None:
        """Give state inputs the values that the function returns for them.

        Raises:
            BindError: there is no state, or the updates do not fit it.
        """
        numbers = self._inputs.numbers(STATE)
        if not numbers:
            raise no_state("update")
        self._inputs.commit(dict(zip(numbers, self._called("updates"), strict=True)))

    def _called(self, method: str, **kwargs: Any) -> Any:
        function = self._made.get(method)
        if function is None:
            function = self._made[method] = self._function(method)
        return function(*self._inputs.args, **kwargs)

    def _function(self, method: str) -> Incremental[..., Any]:
        if method in ("value", "updates"):
            function = self._functions.value if method == "value" else self._functions.updates
            return incremental(function, **self._options)
        makers: Any = {"grad": grad, "value_and_grad": value_and_grad, "hessian": hessian, "jacobian": jacobian}
        make = hvp if method == "hvp" else makers[method]
        return make(self._functions.value, wrt=self._trained(method), **self._options)

    def _trained(self, method: str) -> tuple[str, ...]:
        if not self.trainable_paths:
            raise nothing_to_train(method)
        return self.trainable_paths

    # --- inputs --------------------------------------------------------------------------------------------------

    def set(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Set inputs, parts of them, or leaves, by name; all of them or, where one does not fit, none.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            InputValueError: a value has another structure, shape or kind, is traced, or lies outside of its bounds.
        """
        self._inputs.set({**(values or {}), **named})

    @contextlib.contextmanager
    def at(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> Iterator[Bound]:
        """Inputs with other values inside a `with` block; afterwards those named are as they were."""
        given = {**(values or {}), **named}
        before = {path: self._inputs.part(path) for path in map(self._inputs.names.path, given)}
        self.set(given)
        try:
            yield self
        finally:
            self.set(before)

    def __getitem__(self, name: str) -> Any:
        """The value of an input, a part or a leaf, by name."""
        return self._inputs.value(name)

    @property
    def inputs(self) -> dict[str, Any]:
        """All inputs; modules with their present leaves."""
        return {name: self[name] for name in self._inputs.names.inputs}

    @property
    def trainable(self) -> dict[str, Any]:
        """The trainable leaves, in the shape of `grad()`."""
        return self._inputs.tree(self._inputs.leaves_of(TRAINABLE))

    def on_change(self, callback: Watcher) -> Callable[[], None]:
        """Call a function with the paths that were set, after each change.

        Returns:
            A function that ends this.
        """
        watchers = self._inputs.watchers
        watchers.append(callback)
        return lambda: watchers.remove(callback) if callback in watchers else None

    # --- roles ---------------------------------------------------------------------------------------------------

    @property
    def roles(self) -> dict[str, str]:
        """The role of each leaf by its path."""
        return dict(zip(self._inputs.names.paths, self._inputs.roles, strict=True))

    def set_role(self, name: str, role: str) -> None:
        """Give an input, a part or a leaf another role.

        Raises:
            UnknownInputError: the name stands for nothing, or for several things.
            BindError: the role does not exist, or a leaf cannot have it.

        Cost: functions are traced anew.
        """
        self._inputs.set_role(name, role)
        self._forget()

    @property
    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Lower and upper bounds of the leaves that have some, by path."""
        return {path: (each.low, each.high) for path, each in self._inputs.bounds.items()}

    @property
    def trainable_paths(self) -> tuple[str, ...]:
        """The paths of the trainable leaves, in order."""
        return self._inputs.paths(TRAINABLE)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each trainable element: `mu`, `params['w'][0, 1]`."""
        shapes = [np.shape(leaf) for leaf in self._inputs.leaves_of(TRAINABLE)]
        return element_names(self.trainable_paths, shapes)

    # --- for minimisers ------------------------------------------------------------------------------------------

    @property
    def args(self) -> tuple[Any, ...]:
        """All inputs in the order of the function's parameters, as `function` takes them."""
        return self._inputs.args

    @property
    def function(self) -> Incremental[..., Any]:
        """The value as an incremental function of all inputs by position: what `value` calls."""
        if "value" not in self._made:
            self._made["value"] = self._function("value")
        return self._made["value"]

    def flat(self) -> Flat:
        """Value and derivatives as functions of one vector of the trainable elements; all else as it is now."""
        wrt = self._trained("flat")
        return Prepared(self._functions.value, self.args, wrt, self._options).flat

    def unbounded(self) -> Unbounded:
        """The same by a vector without bounds, for minimisers and samplers that know none; see `Unbounded`.

        Raises:
            InputValueError: a value lies on its bound.
        """
        self._trained("unbounded")
        return Unbounded(self._functions.value, self._inputs, self._options)

    def training(self, optimizer: Any, *, updates: str = "after") -> Training:
        """Steps of an optimiser of optax, with state updated before or after each; see `Training`."""
        self._trained("training")
        return Training(self._inputs, self._functions, optimizer, updates)

    # --- reports -------------------------------------------------------------------------------------------------

    def explain(self, method: str = "value") -> Explanation:
        """What the last call of a method did and why; see `Incremental.explain`.

        Raises:
            NotCalledError: the method was not called since roles changed.
        """
        if method not in self._made:
            raise not_called(f"explain({method!r})")
        return self._made[method].explain()

    @property
    def stats(self) -> dict[str, Stats]:
        """Counters of each method that was called."""
        return {method: function.stats for method, function in self._made.items()}

    def __str__(self) -> str:
        table = Table(*("input", "role", "value", "bounds"))
        held = self._inputs
        for path, role, leaf in zip(held.names.paths, held.roles, held.leaves, strict=True):
            bounds = held.bounds.get(path)
            value = f"{leaf:.6g}" if is_floating(leaf) and np.shape(leaf) == () else type_name(leaf)
            table.add_row(path, role, value, "" if bounds is None else f"{_range(bounds.low)} to {_range(bounds.high)}")
        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            console.print(table)
        return captured.get()


def _range(bound: np.ndarray) -> str:
    low, high = bound.min(), bound.max()
    return f"{low:.6g}" if low == high else f"({low:.6g} ... {high:.6g})"


def _call(model: Any, **inputs: Any) -> Any:
    """A module's own call."""
    return model(**inputs)
