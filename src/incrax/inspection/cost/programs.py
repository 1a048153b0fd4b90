"""A call of a function as programs: its value, value and gradient together, a Hessian times a vector.

In: a function, arrays or types. Out: programs of the leaves of the arguments. It must not know what anything costs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._locations import NO_VALUE, place_of_error
from incrax._program import Program, trace_with_tree
from incrax.derivatives.cuts import Mark, is_mark, without_marks
from incrax.derivatives.selection import select
from incrax.engine.inputs.leaves import check_dynamic, is_dynamic
from incrax.engine.inputs.signature import argument_names, leaf_path
from incrax.errors import PythonBranchError, UnsupportedLeafError
from incrax.inspection.cost.messages import (
    branch_in_function,
    no_type,
    not_callable,
    parameter_as_option,
    static_number,
    value_for_numpy,
)
from incrax.inspection.cost.plain import Plain, plain_of, value_type


@dataclass(frozen=True)
class Call:
    """A function with arguments; leaves are values, types (`jax.ShapeDtypeStruct`) or static.

    Fields: the function that is counted; its name; the tree of the arguments; leaves; names of the leaves; numbers of
    those that are values or types.
    """

    plain: Plain
    name: str
    treedef: Any
    leaves: tuple[Any, ...]
    paths: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def values(self) -> list[Any]:
        """The leaves that are values or types."""
        return [self.leaves[number] for number in self.numbers]

    @property
    def value_paths(self) -> tuple[str, ...]:
        """Names of these."""
        return tuple(self.paths[number] for number in self.numbers)

    def with_values(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other values for the leaves that are values or types."""
        leaves = list(self.leaves)
        for number, value in zip(self.numbers, values, strict=True):
            leaves[number] = value
        return jax.tree.unflatten(self.treedef, leaves)

    def result(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Leaves of the result, and of what is passed on beside it."""
        args, kwargs = self.with_values(values)
        found = self.plain.fun(*args, **kwargs)
        main, rest = found if self.plain.has_aux else (found, ())
        return jax.tree.leaves(main), jax.tree.leaves(rest)

    def differentiated(self, wrt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Which of the values `wrt` stands for, among the values.

        Raises:
            SelectionError: `wrt` selects nothing that has a derivative.
            UnknownInputError: a path names nothing.
        """
        args, kwargs = jax.tree.map(_stand_in, (args, kwargs), is_leaf=is_mark)
        selection = select("cost", self.plain.fun, wrt, args, kwargs)
        return [self.numbers.index(number) for number in selection.numbers]


def call_of(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Sequence[str], *, has_aux: bool) -> Call:
    """A function with its arguments; `options` are the names of those of `cost`.

    Raises:
        CostError: an argument is missing because an option has its name, or is an array without JAX type.
        TapeError: the function is guarded, and no tape can hold the path.
        TypeError: it is no function.
    """
    if not callable(fun):
        raise not_callable(f"{fun!r} of type {type(fun).__name__}")
    name = getattr(fun, "__name__", type(fun).__name__)
    _check_parameters(fun, name, args, kwargs, options)
    with_paths, treedef = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_mark)
    names = argument_names(fun, len(args))
    paths = tuple(leaf_path(names, path) for path, _ in with_paths)
    leaves = tuple(without_marks(leaf) for _, leaf in with_paths)
    numbers = tuple(number for number, leaf in enumerate(leaves) if _is_value(leaf))
    for number in numbers:
        _check_type(leaves[number], paths[number])
    plain = plain_of(fun, *jax.tree.unflatten(treedef, leaves), has_aux=has_aux)
    return Call(plain, name, treedef, leaves, paths, numbers)


def _check_parameters(
    fun: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: Sequence[str]
) -> None:
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        return
    given = signature.bind_partial(*args, **kwargs).arguments
    needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.name not in given]
    taken = [each for each in needed if each in options]
    if taken:
        raise parameter_as_option(name, taken)


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) or is_dynamic(leaf)


def _check_type(leaf: Any, path: str) -> None:
    try:
        check_dynamic(leaf, path)
    except UnsupportedLeafError:
        is_masked = isinstance(leaf, np.ma.MaskedArray)
        raise no_type(path, "a masked array" if is_masked else f"an array of dtype {leaf.dtype}") from None


def _stand_in(leaf: Any) -> Any:
    """An array without memory for a type, so that it can be selected."""
    if isinstance(leaf, Mark) or not isinstance(leaf, jax.ShapeDtypeStruct) or _jax.is_key_dtype(leaf.dtype):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)


# --- programs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """A program of the values of a call, and of further inputs: cotangents of results, or tangents of arguments."""

    program: Program
    further: tuple[jax.ShapeDtypeStruct, ...] = ()

    def inputs(self, values: Sequence[Any]) -> list[Any]:
        """The values, and ones for the further inputs."""
        return [*values, *(jnp.ones(each.shape, each.dtype) for each in self.further)]


def forward(call: Call) -> tuple[Traced, list[jax.ShapeDtypeStruct]]:
    """The value, and the types of the results that have a derivative.

    Raises:
        CostError: the function branches on a value in Python, hands one to NumPy, or has static numbers.
    """

    def evaluate(*values: Any) -> Any:
        return call.result(values)

    try:
        program, tree = trace_with_tree(evaluate, *call.values)
    except jax.errors.TracerArrayConversionError as error:
        raise value_for_numpy(call.name, place_of_error(error)) from error
    except NO_VALUE as error:
        raise branch_in_function(call.name, place_of_error(error)) from error
    except PythonBranchError as error:
        raise branch_in_function(call.name, place_of_error(error.__cause__ or error)) from error
    except ValueError as error:
        if "static arguments" in str(error) and "Tracer" in str(error):
            raise static_number(call.name) from error
        raise
    main = [atom.aval for atom in program.outvars[: tree.children()[0].num_leaves]]
    smooth = [aval for aval in main if jnp.issubdtype(aval.dtype, jnp.inexact)]
    return Traced(program), [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in smooth]


def is_scalar(results: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Whether there is one real number to differentiate."""
    return len(results) == 1 and results[0].shape == () and jnp.issubdtype(results[0].dtype, jnp.floating)


def gradient(call: Call, numbers: Sequence[int], results: Sequence[jax.ShapeDtypeStruct]) -> Traced:
    """Value and gradient together; for anything but one number, value and pullback of a cotangent."""
    further = () if is_scalar(results) else tuple(results)

    def evaluate(*inputs: Any) -> Any:
        values, cotangents = inputs[: len(call.values)], inputs[len(call.values) :]
        outs, pullback, others = jax.vjp(_of_selected(call, numbers, values), *_picked(values, numbers), has_aux=True)
        if not cotangents:
            cotangents = [jnp.ones_like(x) for x in outs]
        return outs, others, pullback(list(cotangents))

    return Traced(trace_with_tree(evaluate, *call.values, *further)[0], further)


def hessian_product(call: Call, numbers: Sequence[int], *, is_forward: bool = True) -> Traced:
    """The Hessian of one real number times a vector: forward over reverse, or reverse over reverse."""
    typed = jax.eval_shape(lambda *values: _picked(values, numbers), *call.values)
    further = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype, weak_type=each.weak_type) for each in typed)

    def evaluate(*inputs: Any) -> Any:
        values, tangents = inputs[: len(call.values)], inputs[len(call.values) :]
        selected = _of_selected(call, numbers, values)
        every = tuple(range(len(numbers)))
        derivative = jax.grad(lambda *xs: selected(*xs)[0][0], argnums=every)
        if is_forward:
            return jax.jvp(derivative, _picked(values, numbers), tuple(tangents))[1]
        along = lambda *xs: sum(jnp.vdot(x, t).real for x, t in zip(derivative(*xs), tangents, strict=True))
        return jax.grad(along, argnums=every)(*_picked(values, numbers))

    return Traced(trace_with_tree(evaluate, *call.values, *further)[0], further)


def _picked(values: Sequence[Any], numbers: Sequence[int]) -> tuple[Any, ...]:
    return tuple(jnp.asarray(values[number]) for number in numbers)


def _of_selected(call: Call, numbers: Sequence[int], values: Sequence[Any]) -> Callable[..., Any]:
    """The results with a derivative, and all others, as a function of what is differentiated."""

    def evaluate(*selected: Any) -> tuple[list[Any], list[Any]]:
        replaced = list(values)
        for number, value in zip(numbers, selected, strict=True):
            replaced[number] = value
        main, rest = call.result(replaced)
        is_smooth = [jnp.issubdtype(jax.dtypes.result_type(x), jnp.inexact) for x in main]
        smooth = [jnp.asarray(x) for x, yes in zip(main, is_smooth, strict=True) if yes]
        return smooth, [*(x for x, yes in zip(main, is_smooth, strict=True) if not yes), *rest]

    return evaluate


def types_text(call: Call) -> tuple[str, ...]:
    """The arguments as a report shows them: `x: float64[3]`."""
    return tuple(f"{path}: {value_type(leaf)}" for path, leaf in zip(call.value_paths, call.values, strict=True))
