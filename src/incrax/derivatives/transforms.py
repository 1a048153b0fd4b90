"""The public derivatives: plain functions that compute them, and incremental functions made of
these.

In: functions, what to differentiate them by. Out: `Incremental` functions with the same arguments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, ParamSpec, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._api import IncrementalOptions, incremental
from incrax._incremental import Incremental
from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax._names import name_of, parameters_of
from incrax._program import Values
from incrax.derivatives.blocks import (
    NO_RULE,
    Blocks,
    first_that_works,
    hessian_blocks,
    jacobian_blocks,
)
from incrax.derivatives.row_sparse.rows import RowSparse
from incrax.derivatives.row_sparse.structured import sparse_outputs
from incrax.derivatives.selection import Selection, select, type_name
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.signature import (
    Args,
    Function,
    Kwargs,
    argument_names,
)
from incrax.errors import TangentError


@dataclass(eq=False)
class Derivative:
    """A function (*args) -> a derivative of `fun`; `name` is what users call it."""

    fun: Function
    wrt: Any
    name: str

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.fun, updated=())
        self.__name__ = f"{self.name} of {name_of(self.fun)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The derivative at these arguments."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    def select(self, args: Args, kwargs: Kwargs) -> Selection:
        """The leaves to differentiate."""
        return select(self.name, self.fun, self.wrt, args, kwargs)


# --- gradients ------------------------------------------------------------------------------------


@dataclass(eq=False)
class Gradient(Derivative):
    """Gradient of a scalar function; row-sparse, with the value, or beside what else the function
    returns, on request.
    """

    is_by_rows: bool
    has_aux: bool
    with_value: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The derivative at these arguments."""
        selection = self.select(args, kwargs)
        function = selection.of_selected(self.fun)
        derivative = jax.value_and_grad(function, selection.argnums, has_aux=self.has_aux)
        if self.is_by_rows:
            found, gradients = sparse_outputs(derivative, *selection.values)
            dense = lambda x: x.todense() if _is_rows(x) else x
            value = jax.tree.map(dense, found, is_leaf=_is_rows)
        else:
            value, gradients = derivative(*selection.values)
        gradient = selection.tree(gradients)
        if self.with_value:
            return value, gradient
        return (gradient, value[1]) if self.has_aux else gradient


def _is_rows(x: Any) -> bool:
    return isinstance(x, RowSparse)


# --- Jacobians ------------------------------------------------------------------------------------


@dataclass(eq=False)
class OfAllOutputs(Derivative):
    """Derivatives of each array among the outputs; `BCOO` on request."""

    is_sparse: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The derivative at these arguments."""
        selection = self.select(args, kwargs)
        flat = FlatOutputs(self.fun)
        blocks = self.blocks(flat, selection)
        return jax.tree.unflatten(flat.treedef, map(selection.tree, blocks))

    def blocks(self, flat: FlatOutputs, selection: Selection) -> Any:
        """For each output array its derivatives by each selected leaf."""
        raise NotImplementedError


class Jacobian(OfAllOutputs):
    """All derivatives of all outputs: forward, reverse, or compressed by the known sparsity."""

    def blocks(self, flat: FlatOutputs, selection: Selection) -> Any:
        """Arrays."""
        rows = jacobian_blocks(flat, selection, is_sparse=self.is_sparse)
        if rows is None:
            fun = selection.of_selected(flat)
            modes = _fewest_passes_first(flat, fun, selection.values)
            derivatives = [each(fun, selection.argnums) for each in modes]
            rows = first_that_works(derivatives, selection.values)
        return [list(map(_typed_as, row, selection.values)) for row in rows]


def _fewest_passes_first(flat: FlatOutputs, fun: Function, values: Values) -> list[Function]:
    """The modes to try."""
    if flat.size is None:
        jax.eval_shape(fun, *values)
    num_inputs = sum(math.prod(np.shape(x)) for x in values)
    is_forward = flat.size is not None and num_inputs <= flat.size
    return [jax.jacfwd, jax.jacrev] if is_forward else [jax.jacrev, jax.jacfwd]


def _typed_as(block: Any, value: Any) -> Any:
    """A derivative in its leaf's type, as reverse mode gives it; a complex one stays complex, and a
    sparse one, whose type is not weak, as it is.
    """
    aval = jax.typeof(value)
    kinds = (jnp.floating, jnp.complexfloating)
    is_same_kind = isinstance(block, jax.Array) and any(
        jnp.issubdtype(block.dtype, kind) and jnp.issubdtype(aval.dtype, kind) for kind in kinds
    )
    return _jax.typed_as(block.astype(aval.dtype), aval) if is_same_kind else block


class FlatOutputs:
    """A function of the same arguments -> the arrays of its outputs, in a list."""

    def __init__(self, fun: Function) -> None:
        self.fun = fun
        self.treedef: Any = None  # of the outputs of the last call,
        self.size: int | None = None  # and how many elements these have; None before it

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the function."""
        leaves, self.treedef = jax.tree.flatten(self.fun(*args, **kwargs))
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        self.size = sum(leaf.size for leaf in leaves)
        return leaves


# --- second order ---------------------------------------------------------------------------------


class Hessian(OfAllOutputs):
    """All second derivatives of all outputs, compressed by the known sparsity of a scalar one's."""

    def blocks(self, flat: FlatOutputs, selection: Selection) -> Any:
        """Each in the shape of the selection, for the second leaf."""
        block = self._compressed(flat, selection)
        blocks: Any = [block]
        if block is None:
            inner = jax.jacrev(selection.of_selected(flat), selection.argnums)
            outer = [each(inner, selection.argnums) for each in (jax.jacfwd, jax.jacrev)]
            blocks = first_that_works(outer, selection.values)
        return [
            [
                selection.tree([_typed_as(x, value) for x in row])
                for row, value in zip(block, selection.values, strict=True)
            ]
            for block in blocks
        ]

    def _compressed(self, flat: FlatOutputs, selection: Selection) -> Blocks | None:
        """The blocks of the only output; None where that does not pay, or `fun` asks for values."""
        try:
            return hessian_blocks(flat, selection, is_sparse=self.is_sparse)
        except NO_RULE:
            if self.is_sparse:
                raise
            return None


class Along(Derivative):
    """A derivative along a tangent."""

    def __call__(self, *args: Any, tangent: Any = None, **kwargs: Any) -> Any:
        """The derivative at these arguments."""
        _check_names(self.name, self.fun, len(args))
        if tangent is None:
            raise TangentError(
                f"`{self.name}` got no `tangent`, the direction in which it differentiates. "
                "Arguments by position are those of the function alone. Nothing was evaluated or "
                f"stored. Write `incrax.{self.name}(f)(*args, tangent=v)`."
            )
        selection = self.select(args, kwargs)
        return self.along(selection, tuple(tangents_of(self.name, selection, tangent)))

    def along(self, selection: Selection, tangents: tuple[Any, ...]) -> Any:
        """The derivative at the selected leaves."""
        raise NotImplementedError


class HessianProduct(Along):
    """The Hessian of a scalar function times a tangent."""

    def along(self, selection: Selection, tangents: tuple[Any, ...]) -> Any:
        """In the shape of the selection."""
        gradient = jax.grad(selection.of_selected(self.fun), selection.argnums)

        def forward(*values):
            return jax.jvp(gradient, values, tangents)[1]

        def reverse(*values):
            return jax.grad(lambda *v: _dot(gradient(*v), tangents), selection.argnums)(*values)

        return selection.tree(first_that_works([forward, reverse], selection.values))


def _dot(xs: Values, ys: Values) -> Any:
    return sum((jnp.sum(x * y) for x, y in zip(xs, ys, strict=True)), start=jnp.zeros(()))


# --- tangents -------------------------------------------------------------------------------------


class Pushforward(Along):
    """Value, and the derivative of all outputs along a tangent."""

    def along(self, selection: Selection, tangents: tuple[Any, ...]) -> Any:
        """Both."""
        return jax.jvp(selection.of_selected(self.fun), tuple(selection.values), tangents)


def _check_names(name: str, fun: Function, num_args: int) -> None:
    """Refuse a call that leaves out a parameter called `tangent`, which nothing but its position
    could give.
    """
    parameter = (parameters_of(fun) or {}).get("tangent")
    if (
        parameter is None
        or parameter.kind is parameter.VAR_KEYWORD
        or parameter.default is not parameter.empty
    ):
        return
    if "tangent" not in argument_names(fun, num_args):
        raise TangentError(
            f"`{name}` takes `tangent=` for itself, and `{name_of(fun)}` has a parameter of that "
            "name, which the call leaves out. Nothing was evaluated or stored. Pass that one by "
            "position; if it is keyword-only, give it another name: "
            "`lambda x, t: f(x, tangent=t)`."
        )


def tangents_of(name: str, selection: Selection, tangent: Any) -> list[Any]:
    """A tangent for each selected leaf, from a tree in the shape of the selection.

    Raises:
        TangentError: the structure, a shape or a dtype is another one.
    """
    values = selection.values
    mirror = selection.mirror
    tree = lambda: f"`wrt`, {selection.tree(['*'] * len(values))}"
    leaves = leaves_as(name, "tangent", tangent, mirror.treedef, tree)
    found: list[Any] = [None] * len(values)
    for position, leaf in zip(mirror.positions, leaves, strict=True):
        if position is not None:
            value = values[position]
            expected = f"`{selection.paths[position]}`, {type_name(value)}"
            kind = np.shape(value), jax.dtypes.result_type(value)
            leaf = fitting(name, "tangent", leaf, *kind, expected)
            found[position] = leaf if found[position] is None else found[position] + leaf
    return found


def leaves_as(
    name: str, what: str, tree: Any, treedef: Any, expected: Callable[[], str]
) -> list[Any]:
    """The leaves of a tangent or cotangent, of the structure of what it belongs to, which is
    `expected` for messages.
    """
    try:
        return treedef.flatten_up_to(tree)
    except ValueError as error:
        seen = f"of another structure ({error})"
        raise _wrong_tangent(name, what, seen, expected()) from error


def _wrong_tangent(name: str, what: str, seen: str, expected: str) -> TangentError:
    """A tangent of another structure or type."""
    return TangentError(
        f"`{name}` got a {what} that is {seen}, and it belongs to {expected}. Nothing was "
        "evaluated or stored. Pass a pytree like what it belongs to, with arrays of the same "
        "shapes and dtypes; None for leaves that are not selected."
    )


def fitting(
    name: str, what: str, leaf: Any, shape: tuple[int, ...], dtype: Any, expected: str
) -> Any:
    """A tangent or cotangent as an array of the type of what it belongs to, which is `expected` for
    messages.
    """
    if leaf is None or not is_dynamic(leaf):
        raise _wrong_tangent(name, what, "None" if leaf is None else type(leaf).__name__, expected)
    array = jnp.asarray(leaf)
    if array.shape != shape or not jnp.can_cast(array.dtype, dtype, "same_kind"):
        raise _wrong_tangent(name, what, str(jax.typeof(array)), expected)
    return array.astype(dtype)


# --- what users call ------------------------------------------------------------------------------


P = ParamSpec("P")
R = TypeVar("R")


@spelled_here
def grad(
    fun: Callable[P, Any],
    *,
    wrt: Any = None,
    sparse: Literal["rows"] | None = None,
    has_aux: bool = False,
    **options: Unpack[IncrementalOptions],
) -> Incremental[P, Any]:
    """The gradient of a scalar function with respect to part of its arguments, evaluated
    incrementally.

    Promise: equals `jax.jit(jax.grad(fun))` at the selected leaves. What depends on none of them
    costs nothing backward.

    Args:
        fun: function of pytrees with a scalar as result, or a scalar and something else with
            `has_aux`.
        wrt: what to differentiate by. A path as `explain()` prints it (`"params['mu']"`,
            `"model.layers[0]"`), or a tuple of paths; the number of an argument, or a tuple; a
            pytree of booleans for the first argument, or for subtrees of it. None: the first
            argument.
        sparse: `"rows"`: gradients of arrays that are read in a few rows (`table[indices]`, slices,
            elements) are `RowSparse`, where they can stay so; the others are arrays.
            `structured(jax.grad(fun)).explain(*args)` says which, and why. None: all are arrays.
        has_aux: whether `fun` returns a pair whose second part is passed on.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments. Its result has the shape of the selection, None in the
        place of leaves that have no derivative (integers, static values) or are marked by `cut`;
        with `has_aux` a pair.

    Raises:
        SelectionError: at a call where `wrt` cannot be understood or selects nothing that has a
            derivative.
        UnknownInputError: at a call where a path names nothing.

    Cost: that of `incremental(jax.grad(fun))`.

    Example:
        >>> import incrax
        >>> f = lambda p, x: p["a"] * x**2 + p["b"]
        >>> g = incrax.grad(f, wrt=("p['a']", "x"))
        >>> [float(part) for part in g({"a": 3.0, "b": 1.0}, 2.0)]
        [4.0, 12.0]
    """
    return _gradient("grad", fun, wrt, has_aux, sparse, options)


@spelled_here
def value_and_grad(
    fun: Callable[P, R],
    *,
    wrt: Any = None,
    sparse: Literal["rows"] | None = None,
    has_aux: bool = False,
    **options: Unpack[IncrementalOptions],
) -> Incremental[P, tuple[R, Any]]:
    """Value and gradient; arguments and promise of `grad`.

    Returns:
        A function that returns a pair: what `fun` returns, and its gradient in the shape of the
        selection.

    Example:
        >>> import incrax
        >>> g = incrax.value_and_grad(lambda p, x: p["a"] * x**2, wrt="p['a']")
        >>> [float(part) for part in g({"a": 3.0}, 2.0)]
        [12.0, 4.0]
    """
    return _gradient("value_and_grad", fun, wrt, has_aux, sparse, options)


def _gradient(
    name: str,
    fun: Function,
    wrt: Any,
    has_aux: bool,
    sparse: Any,
    options: IncrementalOptions,
) -> Incremental[..., Any]:
    if sparse not in (None, "rows"):
        raise ValueError(f'`{name}(sparse=...)` got {sparse!r}; use "rows", or None.')
    asked = {"is_by_rows": bool(sparse), "has_aux": has_aux, "with_value": name == "value_and_grad"}
    return _made(Gradient, name, fun, wrt, options, **asked)


@spelled_here
def jacobian(
    fun: Callable[P, Any],
    *,
    wrt: Any = None,
    sparse: bool = False,
    **options: Unpack[IncrementalOptions],
) -> Incremental[P, Any]:
    """All derivatives of all outputs with respect to part of the arguments, evaluated
    incrementally.

    Promise: equals `jax.jit(jax.jacrev(fun))` at the selected leaves.

    Args:
        fun: function of pytrees with a pytree of arrays as result.
        wrt: what to differentiate by; see `grad`.
        sparse: whether results are `jax.experimental.sparse.BCOO` arrays, with the elements that
            may be nonzero.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments. Its result has the outputs' structure, and for each array
        there a tree in the shape of the selection with arrays of shape (*output.shape,
        *input.shape).

    Raises:
        SelectionError: at a call; see `grad`.

    Cost: one pass per element of the selection, or of the outputs, whichever are fewer, or the other
        way where JAX has no rule for it; fewer where the program says which elements of the outputs
        cannot depend on which elements of the inputs.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> line = lambda p, x: p["slope"] * x + p["offset"]
        >>> j = incrax.jacobian(line)({"slope": 2.0, "offset": 1.0}, jnp.array([0.0, 3.0]))
        >>> {name: column.tolist() for name, column in j.items()}
        {'offset': [1.0, 1.0], 'slope': [0.0, 3.0]}
    """
    return _made(Jacobian, "jacobian", fun, wrt, options, is_sparse=sparse)


@spelled_here
def hessian(
    fun: Callable[P, Any],
    *,
    wrt: Any = None,
    sparse: bool = False,
    **options: Unpack[IncrementalOptions],
) -> Incremental[P, Any]:
    """All second derivatives with respect to part of the arguments, evaluated incrementally.

    Promise: equals `jax.jit(jax.hessian(fun))` at the selected leaves.

    Args:
        fun: function of pytrees, usually with a scalar as result.
        wrt: what to differentiate by; see `grad`.
        sparse: whether results are `jax.experimental.sparse.BCOO` arrays, with the elements that
            may be nonzero; for a scalar result and real arrays of one dtype.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments. Its result has the shape of the selection twice, the
        second inside the first, with arrays of shape (*output.shape, *first.shape, *second.shape).

    Raises:
        SelectionError: at a call; see `grad`.

    Cost: one pass forward over the gradient per element of the selection; where the program says
        which elements cannot mix, one per colour of its pattern (1 if the function is a sum of
        functions of one element each). From 32 elements on the pattern is looked for, once per
        signature.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> h = incrax.hessian(lambda x, a: a * x[0] ** 2 * x[1])
        >>> h(jnp.array([1.0, 3.0]), 2.0).tolist()
        [[12.0, 4.0], [4.0, 0.0]]
    """
    return _made(Hessian, "hessian", fun, wrt, options, is_sparse=sparse)


@spelled_here
def hvp(
    fun: Function, *, wrt: Any = None, **options: Unpack[IncrementalOptions]
) -> Incremental[..., Any]:
    """The Hessian of a scalar function times a tangent, without the Hessian, evaluated
    incrementally.

    Args:
        fun: function of pytrees with a scalar as result.
        wrt: what to differentiate by; see `grad`.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments and of `tangent=`, a pytree in the shape of the selection;
        so is its result. While only the tangent changes, what depends on the other arguments alone
        is loaded.

    Raises:
        SelectionError: at a call; see `grad`.
        TangentError: at a call with a tangent of another structure, shape or dtype.

    Cost: about that of two gradients.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> product = incrax.hvp(lambda x: jnp.sum(x**3))
        >>> product(jnp.array([1.0, 2.0]), tangent=jnp.array([1.0, 1.0])).tolist()
        [6.0, 12.0]
    """
    return _made(HessianProduct, "hvp", fun, wrt, options)


@spelled_here
def jvp(
    fun: Function, *, wrt: Any = None, **options: Unpack[IncrementalOptions]
) -> Incremental[..., Any]:
    """The derivative of all outputs along a tangent, evaluated incrementally.

    Args:
        fun: function of pytrees.
        wrt: what to differentiate by; see `grad`.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments and of `tangent=`, a pytree in the shape of the selection.
        It returns value and tangent of the outputs. While
        only the tangent changes, what depends on the other arguments alone is loaded.

    Raises:
        SelectionError: at a call; see `grad`.
        TangentError: at a call with a tangent of another structure, shape or dtype.

    Example:
        >>> import incrax
        >>> push = incrax.jvp(lambda x, a: a * x**2)
        >>> [float(part) for part in push(3.0, 2.0, tangent=1.0)]
        [18.0, 12.0]
    """
    return _made(Pushforward, "jvp", fun, wrt, options)


def _made(
    kind: type[Derivative],
    name: str,
    fun: Any,
    wrt: Any,
    options: IncrementalOptions,
    **asked: Any,
) -> Incremental[..., Any]:
    check_function(f"{name}(fun)", fun)
    return incremental(kind(plain(fun), wrt, name, **asked), **options)


def plain(fun: Function) -> Function:
    """The function behind an incremental one, which a derivative of it traces."""
    return fun._fun if isinstance(fun, Incremental) else fun


def options_of(fun: Function) -> IncrementalOptions:
    """The options that an incremental function was made with, none of another function."""
    made = fun._traces.options._asdict() if isinstance(fun, Incremental) else {}
    return IncrementalOptions(**made)
