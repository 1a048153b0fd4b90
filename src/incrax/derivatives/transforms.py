"""The public derivatives: incremental functions made of the plain ones.

In: functions. Out: `Incremental` functions with the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from incrax._api import incremental
from incrax._incremental import Incremental
from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax._tuning import Nonfinite, Policy, Tuning
from incrax.derivatives.differentiated import (
    Derivative,
    Gradient,
    Hessian,
    HessianProduct,
    Jacobian,
    Pushforward,
)
from incrax.derivatives.row_sparse.structured import row_options
from incrax.engine.inputs.signature import Function


class IncrementalOptions(TypedDict, total=False):
    """Options of `incremental`."""

    policy: Policy
    memory: int | None
    versions: int
    algebra: bool
    calls: int | None
    changing: Iterable[str | Iterable[str]]
    tuning: Tuning | None


P = ParamSpec("P")
R = TypeVar("R")


@spelled_here
def grad(
    fun: Callable[P, Any],
    *,
    wrt: Any = None,
    sparse: Literal["rows"] | None = None,
    nonfinite: Nonfinite = "ignore",
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
            pytree of booleans for the first argument, or for subtrees of it; a function that picks
            parts of the first arguments: `lambda p: (p.mu, p.layers[0].w)`. None: the first
            argument.
        sparse: `"rows"`: gradients of arrays that are read in a few rows (`table[indices]`, slices,
            elements) are `RowSparse`, where they can stay so; the others are arrays.
            `explain(wrt=...)` says which, and why. None: all are arrays.
        nonfinite: with `sparse`, what becomes of rows that nothing reads: `"ignore"` or `"dense"`;
            see `structured`.
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
        >>> g = incrax.grad(f, wrt=lambda p, x: (p["a"], x))
        >>> [float(part) for part in g({"a": 3.0, "b": 1.0}, 2.0)]
        [4.0, 12.0]
    """
    return _gradient("grad", fun, wrt, has_aux, sparse, nonfinite, options)


@spelled_here
def value_and_grad(
    fun: Callable[P, R],
    *,
    wrt: Any = None,
    sparse: Literal["rows"] | None = None,
    nonfinite: Nonfinite = "ignore",
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
    return _gradient("value_and_grad", fun, wrt, has_aux, sparse, nonfinite, options)


def _gradient(
    name: str,
    fun: Function,
    wrt: Any,
    has_aux: bool,
    sparse: Any,
    nonfinite: Any,
    options: IncrementalOptions,
) -> Incremental[..., Any]:
    if sparse not in (None, "rows"):
        raise ValueError(f'`{name}(sparse=...)` got {sparse!r}; use "rows", or None.')
    rows = row_options(name, nonfinite=nonfinite)
    with_value = name == "value_and_grad"
    rows = rows if sparse else None
    return _made(
        Gradient, name, fun, wrt, options, has_aux=has_aux, rows=rows, with_value=with_value
    )


@spelled_here
def jacobian(
    fun: Callable[P, Any],
    *,
    wrt: Any = None,
    mode: Literal["forward", "reverse"] | None = None,
    sparse: bool = False,
    has_aux: bool = False,
    **options: Unpack[IncrementalOptions],
) -> Incremental[P, Any]:
    """All derivatives of all outputs with respect to part of the arguments, evaluated
    incrementally.

    Promise: equals `jax.jit(jax.jacrev(fun))` at the selected leaves.

    Args:
        fun: function of pytrees with a pytree of arrays as result.
        wrt: what to differentiate by; see `grad`.
        mode: `"forward"`, one pass per element of the selection; `"reverse"`, one per element of
            the outputs; None: whichever takes fewer, and the other one where JAX has no rule for
            it; fewer still where the program says which elements of the outputs cannot depend on
            which elements of the inputs.
        sparse: whether results are `jax.experimental.sparse.BCOO` arrays, with the elements that
            may be nonzero.
        has_aux: whether `fun` returns a pair whose second part is passed on.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments. Its result has the outputs' structure, and for each array
        there a tree in the shape of the selection with arrays of shape (*output.shape,
        *input.shape).

    Raises:
        SelectionError: at a call; see `grad`.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> line = lambda p, x: p["slope"] * x + p["offset"]
        >>> j = incrax.jacobian(line)({"slope": 2.0, "offset": 1.0}, jnp.array([0.0, 3.0]))
        >>> {name: column.tolist() for name, column in j.items()}
        {'offset': [1.0, 1.0], 'slope': [0.0, 3.0]}
    """
    if mode not in (None, "forward", "reverse"):
        raise ValueError(f'`jacobian(mode=...)` got {mode!r}; use "forward", "reverse", or None.')
    _check_sparse("jacobian", sparse=sparse, has_aux=has_aux)
    return _made(Jacobian, "jacobian", fun, wrt, options, mode=mode, sparse=sparse, has_aux=has_aux)


@spelled_here
def hessian(
    fun: Callable[P, Any],
    *,
    wrt: Any = None,
    sparse: bool = False,
    has_aux: bool = False,
    **options: Unpack[IncrementalOptions],
) -> Incremental[P, Any]:
    """All second derivatives with respect to part of the arguments, evaluated incrementally.

    Promise: equals `jax.jit(jax.hessian(fun))` at the selected leaves.

    Args:
        fun: function of pytrees, usually with a scalar as result.
        wrt: what to differentiate by; see `grad`.
        sparse: whether results are `jax.experimental.sparse.BCOO` arrays, with the elements that
            may be nonzero; for a scalar result and real arrays of one dtype.
        has_aux: whether `fun` returns a pair whose second part is passed on.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments. Its result has the shape of the selection twice, the
        second inside the first, with arrays of shape (*output.shape, *first.shape, *second.shape);
        with `has_aux` a pair.

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
    _check_sparse("hessian", sparse=sparse, has_aux=has_aux)
    return _made(Hessian, "hessian", fun, wrt, options, sparse=sparse, has_aux=has_aux)


def _check_sparse(name: str, *, sparse: bool, has_aux: bool) -> None:
    if sparse and has_aux:
        raise ValueError(
            f"`{name}(sparse=True)` does not go with `has_aux=True`; leave one of them out."
        )


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
    fun: Function, *, wrt: Any = None, has_aux: bool = False, **options: Unpack[IncrementalOptions]
) -> Incremental[..., Any]:
    """The derivative of all outputs along a tangent, evaluated incrementally.

    Args:
        fun: function of pytrees.
        wrt: what to differentiate by; see `grad`.
        has_aux: whether `fun` returns a pair whose second part is passed on.
        **options: those of `incremental`.

    Returns:
        A function of the same arguments and of `tangent=`, a pytree in the shape of the selection.
        It returns value and tangent of the outputs, with `has_aux` and what is passed on. While
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
    return _made(Pushforward, "jvp", fun, wrt, options, has_aux=has_aux)


def _made(
    kind: type[Derivative],
    name: str,
    fun: Any,
    wrt: Any,
    options: IncrementalOptions,
    **settings: Any,
) -> Incremental[..., Any]:
    check_function(f"{name}(fun)", fun)
    return incremental(kind(plain(fun), wrt, name, settings), **options)


def plain(fun: Function) -> Function:
    """The function behind an incremental one, which a derivative of it traces."""
    return fun._fun if isinstance(fun, Incremental) else fun


def options_of(fun: Function) -> IncrementalOptions:
    """The options that an incremental function was made with, none of another function."""
    if not isinstance(fun, Incremental):
        return {}
    made = fun._traces.options
    policy: Policy = "exact" if made.is_exact else "fast"
    return IncrementalOptions(
        policy=policy,
        memory=made.memory,
        versions=made.versions,
        algebra=made.algebra,
        tuning=made.tuning,
    )
