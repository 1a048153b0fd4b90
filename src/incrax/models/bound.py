"""A function with values for all of its inputs, some of them fitted.

In: a function, inputs by name, roles, bounds. Out: a `Bound`: set inputs, read values and
derivatives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from incrax._api import IncrementalOptions, incremental
from incrax._incremental import Incremental
from incrax._jax_options import missing
from incrax._messages import check_function, not_called
from incrax._names import name_of
from incrax._stats import Stats
from incrax._table import Printable, Table, many
from incrax._tables import LruTable
from incrax.derivatives.prepared import Flat, Prepared
from incrax.derivatives.selection import type_name
from incrax.derivatives.transforms import hessian, options_of, plain, value_and_grad
from incrax.errors import BindError
from incrax.explanation import Explanation
from incrax.models.functions import (
    Functions,
    HeldState,
    by_position,
    checked_inputs,
    functions_of,
)
from incrax.models.inputs import Inputs, Watcher, are_free, as_given
from incrax.models.roles import FIXED, STATE, TRAINABLE, Role, Roles, is_floating
from incrax.models.training import Training

NUM_PREPARED = 8
"""Types of inputs whose derivatives are kept."""
Method = Literal["value", "updates", "grad", "value_and_grad", "hessian"]
VALUES = ("value", "updates")
"""Methods without a derivative."""
PROGRAMS: dict[Method, Method] = {"grad": "value_and_grad"}
"""Methods that run the program of another."""
SHARED: dict[str, Method] = {
    "value": "value",
    "value_and_gradient": "value_and_grad",
    "hessian": "hessian",
}
"""Methods of `Prepared` that run a program of ours: what fits evaluate and users read is compiled
once for both.
"""
MAKERS: dict[Method, Callable[..., Any]] = {
    "value_and_grad": value_and_grad,
    "hessian": hessian,
}


def bind(
    f: Callable[..., Any],
    /,
    *unnamed: Any,
    roles: Roles = None,
    bounds: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> Bound:
    """Give a function values for its inputs, to be set one by one and fitted.

    Each input is a pytree. Each of its leaves has a role:

    - `"trainable"`: what derivatives are taken by, and what fits change;
    - `"fixed"`: a parameter that stays as it is set; no derivative by it is computed while it has
      this role from the start (`Bound.fix` holds parameters for a while);
    - `"state"`: updated by what the function returns, outside of all derivatives (moving averages);
    - `"data"`: may change its shape and structure when it is set; NumPy arrays are copied once and
      frozen.

    Args:
        f: function of the inputs by name; an incremental one keeps its options. With state, it
            returns a pair: its value, and a mapping of state inputs to their new values.
        roles: a mapping of names to roles, the innermost name counts. Names of elements of arrays
            may be `"trainable"` or `"fixed"`: `{"theta[3]": "fixed"}`. By default floating leaves are
            trainable, and integers of Python as floats; all others are data, also arrays of integers. What is
            trainable or fixed is a float: an index or a count is `"data"`.
        bounds: a mapping of names to pairs (lower, upper) that broadcast to the leaf, None for no
            bound.
        *unnamed: none; inputs go by name.
        **inputs: values. Those that `f` has defaults for may be left out and are then no inputs.

    Names are inputs, paths of parts of them (`"params['mu']"`), or the ends of paths where only one
    fits (`"mu"`); roles, bounds and `set` also take elements of arrays (`"theta[3]"`).

    Returns:
        A model: `set`, `at`, `value`, `grad`, ...; see `Bound`.

    Raises:
        BindError: the inputs are not those of the function, or roles or bounds do not fit
            them.
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
    if unnamed:
        raise by_position(f, len(unnamed))
    return Bound(f, inputs, roles=roles, bounds=bounds)


class Bound(Printable):
    """A function with values for its inputs. Made by `bind`.

    Methods that evaluate are incremental: they pay for what was set since they were last called.
    What they return by trainable inputs is a dictionary of those inputs, with None in the place of
    leaves that are not trainable, and 0 in that of single elements that are fixed. Not for several
    threads at a time.

    Which parameters are fixed is a mask in front of the derivatives: `fix` and `free` trace and
    compile nothing. A derivative is evaluated by all parameters that were free when one was
    evaluated before; those that are fixed until then are no part of it.

    Example:
        >>> import incrax
        >>> decay = lambda rate, start, t: start * 2.0 ** (-rate * t)
        >>> m = incrax.bind(decay, rate=1.0, start=8.0, t=2.0, roles={"t": "data"})
        >>> float(m.value()), m.names
        (2.0, ('rate', 'start'))
        >>> m.set(start=16.0)
        >>> m.fix("rate")
        >>> {name: float(slope) for name, slope in m.grad().items()}
        {'start': 0.25}
    """

    def __init__(self, fun: Any, given: Mapping[str, Any], *, roles: Roles, bounds: Any) -> None:
        """See `bind`."""
        self._options = options_of(fun)
        self._fun = plain(fun)
        self._name = name_of(self._fun)
        self._inputs = Inputs(checked_inputs(self._fun, given), roles, bounds)
        self._ever_state = self._inputs.paths(STATE)
        self._forget()

    def _forget(self) -> None:
        """Make functions anew, as roles decide what they are."""
        held = self._inputs
        state = HeldState(held.paths(STATE), self._ever_state)
        self._functions: Functions = functions_of(self._fun, held.names.inputs, state)
        self._made: dict[str, Incremental[..., Any]] = {}
        self._prepared: LruTable[Any, Prepared] = LruTable(NUM_PREPARED)
        self._differentiated: tuple[str, ...] = ()
        self._is_kept: bool = False

    def _follow(self, before: tuple[str, ...]) -> None:
        """Give up what other roles need no more; `before` are the paths of state before."""
        if self._inputs.paths(STATE) != before:
            self._forget()
        # Before a derivative was evaluated, nothing is lost by leaving out what is fixed: it may be
        # fixed because it has none.
        is_used = self._is_kept or any(f.stats.calls > f.stats.aborted for f in self._derivatives())
        # No vector has complex elements, not even fixed ones.
        can_stay = {
            leaf.path
            for leaf in self._inputs.leaves
            if leaf.role == TRAINABLE or (leaf.role == FIXED and not np.iscomplexobj(leaf.value))
        }
        kept = tuple(path for path in self._differentiated if path in can_stay)
        self._differentiate(kept if is_used else ())

    def _derivatives(self) -> list[Incremental[..., Any]]:
        """The functions of derivatives that were made."""
        made = [self._made, *(prepared.methods for prepared in self._prepared.values())]
        return [f for each in made for name, f in each.items() if name not in VALUES]

    def _differentiate(self, paths: tuple[str, ...]) -> None:
        """Give up derivatives by other leaves than these."""
        if paths == self._differentiated:
            return
        self._differentiated = paths
        self._made = {name: each for name, each in self._made.items() if name in VALUES}
        self._prepared.clear()

    def _captured(self) -> tuple[Any, ...]:
        """What counts where a guarded function captures this: what it compiled, and who watches,
        does not.
        """
        return self._fun, self._options, self._inputs.names, self._inputs.leaves

    # --- evaluation -------------------------------------------------------------------------------

    def value(self) -> Any:
        """What the function returns; with state, without its updates, which this does not apply."""
        return self._called("value")

    def grad(self) -> dict[str, Any]:
        """The gradient of a scalar function by what is trainable.

        Its program is that of `value_and_grad`: who asks for both in turns compiles one, not two.
        """
        return self._shown(self._called("grad")[1])

    def value_and_grad(self) -> tuple[Any, dict[str, Any]]:
        """Both, by one program."""
        value, gradient = self._called("value_and_grad")
        return value, self._shown(gradient)

    def hessian(self) -> dict[str, Any]:
        """All second derivatives: in the shape of `grad()`, each leaf a dictionary in the shape of
        `grad()`.
        """
        found = self._called("hessian")
        rows = zip(self._differentiated, found, strict=True)
        trainable = set(self.trainable_paths)
        return self._inputs.tree(
            [self._shown(row, path) for path, row in rows if path in trainable]
        )

    def _shown(self, results: Sequence[Any], outer: str = "") -> dict[str, Any]:
        """Results by what is differentiated in the shape of `grad()`; of a Hessian those by another
        leaf before.
        """
        leaves = {leaf.path: leaf for leaf in self._inputs.leaves}
        before = leaves[outer].mask if outer else None
        found = []
        for path, result in zip(self._differentiated, results, strict=True):
            leaf = leaves[path]
            masked = _masked(result, leaf.mask)
            found.append(_masked(masked, before, np.ndim(leaf.value)))
        return self._inputs.shape(self._differentiated)(found)

    def update(self) -> None:
        """Give state inputs the values that the function returns for them.

        Raises:
            BindError: there is no state, or the updates do not fit it.
        """
        numbers = self._inputs.numbers(STATE)
        if not numbers:
            raise BindError(
                '`update` needs inputs with the role "state", and this model has none. The model '
                'is as it was. Give an input that role: `bind(..., roles={"moments": "state"})`.'
            )
        self._inputs.commit(dict(zip(numbers, self._called("updates"), strict=True)))

    def _ready(self, method: str) -> None:
        """Have derivatives by all that is trainable.

        Raises:
            BindError: nothing is.
        """
        check_trainable(self, method)
        self._differentiate(self._wanted_paths)

    def _called(self, method: Method) -> Any:
        if method not in VALUES:
            self._ready(method)
        return self._function(method)(*self._inputs.args)

    def _function(self, method: Method) -> Incremental[..., Any]:
        """The incremental function of `args` behind a method."""
        program = PROGRAMS.get(method, method)
        if program not in self._made:
            self._made[program] = self._new(program)
        return self._made[program]

    def _new(self, program: Method) -> Incremental[..., Any]:
        if program in VALUES:
            function = self._functions.value if program == "value" else self._functions.updates
            return incremental(function, **self._options)
        make = MAKERS[program]
        return make(self._functions.value, wrt=self._differentiated, **self._options)

    # --- inputs -----------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # else a checker would take any name

        def __getattr__(self, name: str) -> Any:
            """Never found: the error says how inputs are read."""
            raise missing(self, name, {} if name.startswith("_") else {name: f"`model['{name}']`"})

        def __setattr__(self, name: str, value: Any) -> None:
            """Inputs are no attributes: nobody would read what is written there."""
            if not name.startswith("_"):
                raise missing(self, name, {name: f"`model.set({name}=...)`"})
            super().__setattr__(name, value)

    def set(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Set inputs, parts of them, or leaves, by name; all of them or, where one does not fit,
        none.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            InputValueError: a value has another structure, shape or kind, is traced, or lies
                outside of its bounds.
        """
        self._inputs.set(as_given(values, named))

    @contextlib.contextmanager
    def at(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> Iterator[Bound]:
        """Inputs with other values inside a `with` block; afterwards those named are as they
        were.
        """
        given = as_given(values, named)
        before = self._inputs.parts(list(given))
        try:
            self.set(given)
            yield self
        finally:
            self._inputs.put_back(before)

    def __getitem__(self, name: str) -> Any:
        """The value of an input, a part, a leaf or an element, by name."""
        return self._inputs.value(name)

    @property
    def inputs(self) -> dict[str, Any]:
        """All inputs."""
        return self._inputs.trees

    @contextlib.contextmanager
    def restored(self) -> Iterator[Bound]:
        """All inputs are afterwards as they were before a `with` block; who watches is notified."""
        before = self._inputs.snapshot()
        try:
            yield self
        finally:
            state = self._inputs.paths(STATE)
            self._inputs.restore(before)
            self._inputs.tell(self._inputs.names.paths)
            self._follow(state)

    @property
    def trainable(self) -> dict[str, Any]:
        """The trainable leaves, in the shape of `grad()`."""
        return self._inputs.tree([leaf.value for leaf in self._inputs.of(TRAINABLE)])

    def on_change(self, callback: Watcher) -> Callable[[], None]:
        """Call a function with the paths that were set, after each change.

        Returns:
            A function that ends this.
        """
        check_function("on_change(callback)", callback)
        watchers = self._inputs.watchers
        watchers.append(callback)
        return lambda: watchers.remove(callback) if callback in watchers else None

    # --- roles ------------------------------------------------------------------------------------

    @property
    def roles(self) -> dict[str, str]:
        """The role of each leaf by its path, and of those elements that are fixed in a leaf which
        is trainable otherwise.
        """
        return {leaf.path: leaf.role for leaf in self._inputs.leaves} | self._inputs.element_roles

    def fix(self, *names: str) -> None:
        """Hold parameters at their values: inputs, parts, leaves, or elements of arrays
        (`"theta[3]"`).

        As giving each the role `"fixed"`, for a while: derivatives stay as they are compiled.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            BindError: single elements of what is no parameter are named.

        Cost: nothing is traced or compiled. If a derivative was evaluated while they were free,
            later ones go on to be evaluated by them, too, and leave the result out. What never
            moves again is left out by `set_role(name, "fixed")`.

        Example:
            >>> import incrax, numpy as np
            >>> m = incrax.bind(lambda theta: (theta**2).sum(), theta=np.array([1.0, 2.0, 3.0]))
            >>> m.fix("theta[1]")
            >>> m.names, m.grad()["theta"].tolist()
            (('theta[0]', 'theta[2]'), [2.0, 0.0, 6.0])
        """
        self._set_roles(names, FIXED)

    def free(self, *names: str) -> None:
        """Let parameters move again; see `fix`.

        Raises:
            UnknownInputError: a name stands for nothing, or for several things.
            BindError: a leaf has no derivative.
            InputValueError: a leaf would lie outside of its bounds.

        Cost: nothing is traced or compiled for what was free when a derivative was evaluated
            before. By what was not, derivatives are traced once more.
        """
        self._set_roles(names, TRAINABLE)

    def set_role(self, name: str, role: Role) -> None:
        """Give an input, a part or a leaf another role; an element of an array may be
        `"trainable"` or `"fixed"`.

        Raises:
            UnknownInputError: the name stands for nothing, or for several things.
            BindError: the role does not exist, or a leaf cannot have it.
            InputValueError: a leaf would lie outside of its bounds.

        Cost: derivatives by other leaves than before are traced again: what is `"fixed"` is left out
            of them, which saves its part of every later one. `fix` and `free` trace nothing.
        """
        self._set_roles([name], role)
        if role == FIXED:
            self._differentiate(tuple(p for p in self._differentiated if p in self.trainable_paths))

    def _set_roles(self, names: Sequence[str], role: str) -> None:
        state = self._inputs.paths(STATE)
        before = self._inputs.snapshot()
        try:
            for name in names:
                self._inputs.set_role(name, role)
        except BaseException:
            self._inputs.restore(before)
            raise
        self._follow(state)

    @property
    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """Lower and upper bounds of the leaves that have some, by path."""
        return {
            leaf.path: (leaf.bounds.lower, leaf.bounds.upper)
            for leaf in self._inputs.leaves
            if leaf.is_parameter and leaf.bounds is not None
        }

    def path(self, name: str) -> str:
        """The path that a name stands for.

        Raises:
            UnknownInputError: it stands for nothing, or for several things.
        """
        return self._inputs.path(name)

    @property
    def trainable_paths(self) -> tuple[str, ...]:
        """The paths of the trainable leaves, in order."""
        return self._inputs.paths(TRAINABLE)

    @property
    def _wanted_paths(self) -> tuple[str, ...]:
        """The paths of the leaves by which derivatives are evaluated, in order: the trainable ones,
        and those that are fixed now and were trainable when one was evaluated before.
        """
        names = self._inputs.names
        wanted = {*self._differentiated, *self.trainable_paths}
        return tuple(path for path in names.paths if path in wanted)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each trainable element: `mu`, `params['w'][0, 1]`."""
        return self._inputs.element_names

    # --- for minimisers ---------------------------------------------------------------------------

    @property
    def args(self) -> tuple[Any, ...]:
        """All inputs in the order of the function's parameters, as `function` takes them."""
        return self._inputs.args

    @property
    def options(self) -> IncrementalOptions:
        """Those of `incremental` for every method."""
        return self._options

    @property
    def function(self) -> Incremental[..., Any]:
        """The value as an incremental function of all inputs by position: what `value` calls."""
        return self._function("value")

    def flat(self) -> Flat:
        """Value and derivatives as functions of one vector of the trainable elements; all else as
        it is now.
        """
        free = {leaf.path: leaf.mask for leaf in self._inputs.of(TRAINABLE)}
        return prepared_of(self).flat_at(*self.args, free=free)

    def set_vector(self, x: Any) -> None:
        """Set the trainable inputs to the elements of a vector of shape (n,), in the order of
        `names`.

        Raises:
            InputValueError: an element lies outside of its bounds.
        """
        self._inputs.set(self._inputs.vector_leaves(x))

    def training(
        self, optimizer: Any, *, updates: Literal["before", "after", "never"] = "after"
    ) -> Training:
        """Steps of an optimiser of optax, with state updated before or after each; see
        `Training`.
        """
        check_trainable(self, "training")
        return Training(self._inputs, self._functions, optimizer, updates)

    # --- reports ----------------------------------------------------------------------------------

    def explain(self, method: Method = "value") -> Explanation:
        """What the last call of a method did and why; see `Incremental.explain`.

        Raises:
            NotCalledError: the method was not called since roles changed.
        """
        function = self._made.get(PROGRAMS.get(method, method))
        if function is None:
            raise not_called(f"explain({method!r})")
        return function.explain()

    @property
    def stats(self) -> dict[str, Stats]:
        """Counters of each method that was called; calls of `grad` are those of `value_and_grad`,
        whose program it runs.
        """
        return {method: function.stats for method, function in self._made.items()}

    def summary(self) -> str:
        """How many inputs there are, and how many elements of them are trainable."""
        inputs = many(len(self._inputs.leaves), "input")
        elements = many(len(self.names), "trainable element")
        return f"{self._name} of {inputs}, {elements}"

    def tables(self) -> list[Table]:
        """The inputs with their roles, values or types, and bounds."""
        return [table_of(self._inputs)]


def _masked(result: Any, mask: np.ndarray | None, num_behind: int = 0) -> Any:
    """A result with 0 for what is fixed; so many of its axes follow those of the mask."""
    if mask is None:
        return result
    return jnp.where(mask.reshape(mask.shape + (1,) * num_behind), result, 0)


# --- for fits and reports -------------------------------------------------------------------------


class Differentiated(NamedTuple):
    """The leaves by which a model's derivatives are evaluated, in order."""

    paths: tuple[str, ...]
    is_free: np.ndarray
    """Which elements are trainable, end to end."""
    tree_of: Callable[[Sequence[Any]], dict[str, Any]]
    """Gives such leaves the shape that `grad()` has now."""


def differentiated(model: Bound) -> Differentiated:
    """The trainable leaves, and those that are fixed now and were trainable when a derivative was
    evaluated before.
    """
    inputs = model._inputs
    paths = model._wanted_paths
    is_free = are_free([leaf for leaf in inputs.leaves if leaf.path in paths])
    return Differentiated(paths, is_free, inputs.shape(paths))


def keep_differentiated(model: Bound) -> None:
    """Let these leaves stay when they are fixed from now on: for callers who have compiled
    derivatives of their own by them.
    """
    model._differentiate(model._wanted_paths)
    model._is_kept = True


def prepared_of(model: Bound) -> Prepared:
    """All derivatives by these leaves; kept for as long as they stay, for some types of the
    inputs.
    """
    model._ready("flat")
    shared = lambda method: model._function(SHARED[method]) if method in SHARED else None
    given = model._functions.value, model.args, model._differentiated, model._options
    return model._prepared.made(model._inputs.types, lambda: Prepared(*given, shared))


def most_called(model: Bound) -> Incremental[..., Any]:
    """The function behind the method that was called most; none was: the value."""
    made = model._made.values()
    return max(made, key=lambda each: each.stats.calls) if made else model.function


def check_trainable(model: Bound, method: str) -> None:
    """Refuse a model without a trainable input to a method that needs one.

    Raises:
        BindError: as it says.
    """
    if not model.trainable_paths:
        raise BindError(
            f"`{method}` needs something trainable, and no input of this model is. The model "
            'is as it was. Give a floating input the role "trainable": `model.set_role("mu", '
            '"trainable")`.'
        )


# --- what a model prints --------------------------------------------------------------------------


def table_of(inputs: Inputs) -> Table:
    """Each leaf with its role, its value or type, and its bounds."""
    rows = []
    for path, value, role, bounds, mask in inputs.leaves:
        is_number = is_floating(value) and np.shape(value) == ()
        shown = f"{value:.6g}" if is_number else type_name(value)
        masked = role if mask is None else f"{role} ({mask.sum()} of {mask.size})"
        limits = "" if bounds is None else f"{_range(bounds.lower)} to {_range(bounds.upper)}"
        rows.append((path, masked, shown, limits))
    return Table("", ("input", "role", "value", "bounds"), rows)


def _range(bound: np.ndarray) -> str:
    if not bound.size:
        return "-"
    low = bound.min()
    high = bound.max()
    return f"{low:.6g}" if low == high else f"({low:.6g} ... {high:.6g})"
