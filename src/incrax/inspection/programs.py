"""What is handed to `cost`, as programs: its value, value and gradient together, a Hessian times a
vector.

In: a function or a bound model, with arrays or types. Out: programs of the
leaves of its arguments. It must not know what anything costs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._incremental import Incremental
from incrax._locations import NO_VALUE, place_of_error
from incrax._program import Program, Values, trace, trace_with_tree
from incrax.derivatives.cuts import Mark, is_mark, without_marks
from incrax.derivatives.selection import select
from incrax.engine.inputs.frames import Frame, Hole, framed
from incrax.engine.inputs.leaves import check_dynamic, is_dynamic
from incrax.engine.inputs.signature import argument_names, leaf_path
from incrax.errors import CostError, PythonBranchError, UnknownInputError
from incrax.models.bound import Bound
from incrax.models.names import with_part

METHODS = ("value", "grad", "value_and_grad", "hessian")
"""Methods of a bound model that evaluate, from its inputs alone."""

# --- bound models ---------------------------------------------------------------------------------


def model_of(fun: Any) -> Bound | None:
    """The bound model that this is, or is a method of."""
    owner = fun.__self__ if isinstance(fun, types.MethodType) else fun
    return owner if isinstance(owner, Bound) else None


def function_of_model(
    fun: Any, model: Bound, args: Values, inputs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function behind a model or its method and the inputs it holds, some of them with other
    values or types.

    Raises:
        CostError: inputs are given by position, or the method does not evaluate.
        UnknownInputError: a name stands for nothing, or for several things.
    """
    method = "value" if fun is model else fun.__name__
    if method not in METHODS:
        shown = ", ".join(f"`{each}`" for each in METHODS)
        raise CostError(
            f"`cost(model.{method})` got a method of a bound model that does not evaluate its "
            f"inputs as they are; {shown} do. Nothing was evaluated. Pass the model itself: "
            "`cost(model)` counts its value, its gradient and its Hessian times a vector."
        )
    if args:
        raise CostError(
            f"`cost(model)` got {len(args)} argument{'s' * (len(args) > 1)} by position; a bound "
            "model holds values for its inputs. Nothing was evaluated. Name those that are to be "
            "other: `cost(model, x=...)`, arrays or types."
        )
    function = model.made(method)
    trees = dict(zip(inspect.signature(function).parameters, model.args, strict=True))
    for name, value in inputs.items():
        trees = with_part(trees, model.path(name), value)
    return function, tuple(trees.values())


def path_in_model(model: Bound, name: str) -> str:
    """The path of a name, also of an element of an array: `w[3]` for `params['w'][3]`."""
    base, bracket, element = name.rpartition("[")
    try:
        return model.path(name)
    except UnknownInputError:
        with contextlib.suppress(UnknownInputError):
            return model.path(base) + bracket + element
        raise


# --- a call ---------------------------------------------------------------------------------------


class Call(NamedTuple):
    """A function with arguments.

    Fields: the function that is counted, for JAX to trace; its name; the arguments but for values
    and types (`jax.ShapeDtypeStruct`); these, and their names; whether its result is a pair whose
    second part is passed on; whether the engine runs it.
    """

    fun: Callable[..., Any]
    name: str
    frame: Frame
    values: Values
    paths: tuple[str, ...]
    has_aux: bool
    is_incremental: bool = False

    def inputs(self, program: Program) -> list[Any]:
        """Values for the inputs of a program: those of the call, and ones for what further inputs
        it has, cotangents of results or tangents of arguments.
        """
        further = [var.aval for var in program.invars[len(self.values) :]]
        return [*self.values, *(jnp.ones(aval.shape, aval.dtype) for aval in further)]

    def result(self, values: Values) -> tuple[list[Any], list[Any]]:
        """Leaves of the result at other values, and of what is passed on beside it."""
        args, kwargs = self.frame.filled(values)
        found = self.fun(*args, **kwargs)
        main, rest = found if self.has_aux else (found, ())
        return jax.tree.leaves(main), jax.tree.leaves(rest)

    def differentiated(self, wrt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Which of the values `wrt` stands for, among the values.

        Raises:
            SelectionError: `wrt` selects nothing that has a derivative.
            UnknownInputError: a path names nothing.
        """
        args, kwargs = jax.tree.map(_stand_in, (args, kwargs), is_leaf=is_mark)
        selection = select("cost", self.fun, wrt, args, kwargs)
        places = [number for number, leaf in enumerate(self.frame.leaves) if leaf is Hole]
        return [places.index(number) for number in selection.numbers]


def call_of(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_aux: bool) -> Call:
    """A function with its arguments.

    Raises:
        UnsupportedLeafError: an argument is an array without JAX type.
        TypeError: it is no function.
    """
    if not callable(fun):
        raise TypeError(
            f"`cost(f)` got {fun!r} of type {type(fun).__name__}; it must be a function."
        )
    name = getattr(fun, "__name__", type(fun).__name__)
    with_paths, treedef = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_mark)
    names = argument_names(fun, len(args))
    leaves = [without_marks(leaf) for _, leaf in with_paths]
    is_value = [isinstance(leaf, jax.ShapeDtypeStruct) or is_dynamic(leaf) for leaf in leaves]
    frame, values = framed(treedef, leaves, is_value)
    paths = tuple(leaf_path(names, path) for path, _ in compress(with_paths, is_value))
    for path, value in zip(paths, values, strict=True):
        check_dynamic(value, path)
    fun, is_incremental = _opened(fun)
    return Call(fun, name, frame, values, paths, has_aux, is_incremental)


def _stand_in(leaf: Any) -> Any:
    """An array without memory for a type, so that it can be selected."""
    if (
        isinstance(leaf, Mark)
        or not isinstance(leaf, jax.ShapeDtypeStruct)
        or _jax.is_key_dtype(leaf.dtype)
    ):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)


def _opened(fun: Any) -> tuple[Any, bool]:
    """The function that an engine evaluates, and whether one does."""
    if isinstance(fun, types.MethodType):
        inner, is_incremental = _opened(fun.__func__)
        return (functools.partial(inner, fun.__self__) if is_incremental else fun), is_incremental
    if isinstance(fun, Incremental):
        return _opened(fun.__wrapped__)[0], True
    return fun, False


def type_text(leaf: Any) -> str:
    """The type of a value, or of what is a type, as it is traced: `float64[3,2]`."""
    return trace(lambda x: x, leaf).invars[0].aval.str_short()


# --- its programs ---------------------------------------------------------------------------------


def forward(call: Call) -> tuple[Program, list[jax.ShapeDtypeStruct]]:
    """The value, and the types of the results that have a derivative.

    Raises:
        CostError: the function branches on a value in Python, hands one to NumPy, or has static
            numbers.
    """
    try:
        program, tree = trace_with_tree(lambda *values: call.result(values), *call.values)
    except jax.errors.TracerArrayConversionError as error:
        raise CostError(
            f"`cost({call.name})` found a traced value turned into a NumPy array: "
            f"{place_of_error(error)}. This is usually a function of `numpy` where that of "
            "`jax.numpy` is meant, or one for minimisers on the host, such as "
            "`model.flat().value`. Nothing was evaluated. Use `jax.numpy`, `jax.pure_callback` "
            "around what must run on the host, or pass the model."
        ) from error
    except (*NO_VALUE, PythonBranchError) as error:
        cause = error.__cause__ if isinstance(error, PythonBranchError) else None
        raise CostError(
            f"`cost({call.name})` found Python control flow on a traced value: "
            f"{place_of_error(cause or error)}. What runs depends on values, and there is no one "
            "program to count. Nothing was evaluated. Write `jax.lax.cond`, or fix the argument: "
            f"`cost(lambda x: {call.name}(x, flag=True), x)`."
        ) from error
    main = [atom.aval for atom in program.outvars[: tree.children()[0].num_leaves]]
    smooth = [
        jax.ShapeDtypeStruct(a.shape, a.dtype) for a in main if jnp.issubdtype(a.dtype, jnp.inexact)
    ]
    return program, smooth


def is_scalar(results: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Whether there is one real number to differentiate."""
    return (
        len(results) == 1
        and results[0].shape == ()
        and jnp.issubdtype(results[0].dtype, jnp.floating)
    )


def gradient(
    call: Call, numbers: Sequence[int], results: Sequence[jax.ShapeDtypeStruct]
) -> Program:
    """Value and gradient together; for anything but one number, value and pullback of a
    cotangent.
    """
    further = () if is_scalar(results) else results

    def evaluate(values: Values, cotangents: Values) -> Any:
        fun, at = _of_selected(call, numbers, values)
        outs, pullback, others = jax.vjp(fun, *at, has_aux=True)
        return outs, others, pullback(list(cotangents) or [jnp.ones_like(x) for x in outs])

    return _traced(evaluate, call, further)


def hessian_product(call: Call, numbers: Sequence[int], *, is_forward: bool = True) -> Program:
    """The Hessian of one real number times a vector: forward over reverse, or reverse over
    reverse.
    """
    every = tuple(range(len(numbers)))

    def evaluate(values: Values, tangents: Values) -> Any:
        fun, at = _of_selected(call, numbers, values)
        derivative = jax.grad(lambda *xs: fun(*xs)[0][0], argnums=every)
        if is_forward:
            return jax.jvp(derivative, at, tuple(tangents))[1]
        along = lambda *xs: sum(
            jnp.vdot(x, t).real for x, t in zip(derivative(*xs), tangents, strict=True)
        )
        return jax.grad(along, argnums=every)(*at)

    at = jax.eval_shape(lambda *values: _of_selected(call, numbers, values)[1], *call.values)
    return _traced(
        evaluate, call, [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in at]
    )


def _of_selected(
    call: Call, numbers: Sequence[int], values: Values
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The results with a derivative, and all others, as a function of what is differentiated; and
    where that is.
    """

    def evaluate(*selected: Any) -> tuple[list[Any], list[Any]]:
        replaced = dict(enumerate(values)) | dict(zip(numbers, selected, strict=True))
        main, rest = call.result(list(replaced.values()))
        is_smooth = lambda x: jnp.issubdtype(jax.dtypes.result_type(x), jnp.inexact)
        smooth = [jnp.asarray(x) for x in main if is_smooth(x)]
        return smooth, [*(x for x in main if not is_smooth(x)), *rest]

    return evaluate, tuple(jnp.asarray(values[number]) for number in numbers)


def _traced(
    evaluate: Callable[..., Any], call: Call, further: Sequence[jax.ShapeDtypeStruct]
) -> Program:
    num = len(call.values)
    split = lambda *inputs: evaluate(inputs[:num], inputs[num:])
    return trace(split, *call.values, *further)
