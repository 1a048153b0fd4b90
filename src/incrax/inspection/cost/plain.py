"""The function behind an engine or guards, as one that JAX can trace.

In: what a user hands in, and the arguments of a call. Out: `Plain`. It must not know what is counted.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._incremental import Incremental
from incrax._locations import NO_VALUE, place_of_error
from incrax.control_flow.tapes.alone import path_alone
from incrax.control_flow.tapes.guarded import Guarded
from incrax.derivatives.selection import type_name
from incrax.engine.inputs.signature import argument_names, leaf_path
from incrax.inspection.cost.messages import needs_a_path


class Plain(NamedTuple):
    """A function without what is around it.

    Fields: the function; whether the engine runs it; whether its result is a pair whose second part is passed on; how
    many guards the path rests on that it is, None where it is no path.
    """

    fun: Callable[..., Any]
    is_incremental: bool
    has_aux: bool
    num_guards: int | None = None


def plain_of(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_aux: bool) -> Plain:
    """The function that is evaluated at these arguments; of a guarded one the path that they take, with its guards.

    Raises:
        TapeError: no tape can hold the path.
    """
    if isinstance(fun, types.MethodType) and isinstance(fun.__func__, (Incremental, Guarded)):
        found = plain_of(fun.__func__, (fun.__self__, *args), kwargs, has_aux=has_aux)
        return found._replace(fun=functools.partial(found.fun, fun.__self__))
    if isinstance(fun, Incremental):
        inner = inspect.unwrap(fun, stop=lambda f: not isinstance(f, Incremental))
        return plain_of(inner, args, kwargs, has_aux=has_aux)._replace(is_incremental=True)
    if isinstance(fun, Guarded):
        return _path_of(fun, args, kwargs, has_aux=has_aux)
    return Plain(fun, is_incremental=False, has_aux=has_aux)


def _path_of(f: Guarded[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, has_aux: bool) -> Plain:
    """The path that these values take; without values the function, as long as Python asks for none."""
    is_incremental = f._make is not None
    without = _without_values(f, args, kwargs)
    if without is not None:
        return Plain(_unbranched(f, *without), is_incremental, has_aux)
    path = path_alone(f, args, kwargs)

    @functools.wraps(f._fun)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        found, failing = path.run(*args, **kwargs)
        main, rest = found if has_aux else (found, ())
        return main, (rest, failing)

    return Plain(evaluate, is_incremental, has_aux=True, num_guards=path.num_guards)


def _without_values(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
    """The name and the type of the first argument that is a type only."""
    names = argument_names(f, len(args))
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf_path(names, path), value_type(leaf)
    return None


def _unbranched(f: Guarded[..., Any], path: str, seen: str) -> Callable[..., Any]:
    """The function as it is.

    Raises:
        CostError: at a call, if it branches on a value.
    """

    @functools.wraps(f._fun)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        try:
            return f._plain(args, kwargs)
        except NO_VALUE as error:
            raise needs_a_path(f._subject.name, place_of_error(error), path, seen) from error

    return evaluate


def value_type(leaf: Any) -> str:
    """The type of a leaf that is a value or a type: `float64[3,2]`."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        dtype = leaf.dtype if _jax.is_key_dtype(leaf.dtype) else jax.dtypes.canonicalize_dtype(leaf.dtype)
        return f"{dtype}[{','.join(map(str, leaf.shape))}]"
    return type_name(leaf)
