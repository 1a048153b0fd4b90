"""One interface for all derivatives of a function, strict about types, and a flat view of it for
minimisers.

In: a function and example arguments. Out: a `Prepared`. It must not know how derivatives are made.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from incrax._api import IncrementalOptions, incremental
from incrax._incremental import Incremental
from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax._names import name_of
from incrax._stats import Stats
from incrax._tuning import Tuning
from incrax.derivatives.cuts import Mark, without_marks
from incrax.derivatives.flat import FreeElements, ends
from incrax.derivatives.pullback import Pullback, vjp
from incrax.derivatives.selection import Selection, select
from incrax.derivatives.transforms import (
    Derivative,
    grad,
    hessian,
    hvp,
    jacobian,
    jvp,
    plain,
    value_and_grad,
)
from incrax.engine.inputs.leaves import descriptor, frozen, is_dynamic
from incrax.engine.inputs.paths import element_names
from incrax.engine.inputs.row_updates import MIN_FOLLOWED, Followed
from incrax.engine.inputs.signature import (
    Args,
    Function,
    argument_names,
    make_signature,
    same_static,
    same_type,
    type_text,
)
from incrax.errors import PreparedTypeError, SelectionError, TangentError


@spelled_here
def prepare(
    fun: Function, *args: Any, wrt: Any = None, **options: Unpack[IncrementalOptions]
) -> Prepared:
    """All derivatives of a function by one object, for code that works with any engine.

    Args:
        fun: function of pytrees; all arguments positional.
        *args: example arguments. Calls take arguments of the same structures, shapes, dtypes and
            static values.
        wrt: what to differentiate by; see `grad`. None: the first argument.
        **options: those of `incremental`, for each of the functions made.

    Returns:
        An object whose methods `value`, `gradient`, `value_and_gradient`, `jacobian`, `hessian` and
        `hvp` are incremental functions of the arguments, `pullback` and `pushforward` those of
        `vjp` and `jvp`, and whose `flat` shows them as functions of one vector; see
        `Prepared`.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        UnknownInputError: a path names nothing.

    Cost: nothing is traced before the first call of a method. Each method has its own saved values.

    Source: AbstractDifferentiation.jl, in the thread ReverseDiff.jl#234.

    Example:
        >>> import incrax, numpy as np
        >>> p = incrax.prepare(lambda x, a: a * (x @ x), np.array([1.0, 2.0]), 3.0)
        >>> p.gradient(np.array([1.0, 0.0]), 3.0).tolist()
        [6.0, 0.0]
        >>> p.flat.gradient(p.flat.x0).tolist()
        [6.0, 12.0]
    """
    check_function("prepare(fun)", fun)
    return Prepared(plain(fun), args, wrt, options)


class Prepared:
    """A function and its derivatives. Made by `prepare`.

    All methods take the arguments of the function; results have the shapes that `grad`, `jacobian`,
    ... document.

    Raises:
        PreparedTypeError: at a call of a method with an argument of another structure, shape, dtype
            or static value than the example.

    Example:
        >>> import incrax, numpy as np
        >>> p = incrax.prepare(lambda x: (x**2).sum(), np.array([1.0, 2.0]))
        >>> float(p.value(np.array([3.0, 1.0]))), p.hessian(np.array([3.0, 1.0])).tolist()
        (10.0, [[2.0, 0.0], [0.0, 2.0]])
    """

    def __init__(
        self,
        fun: Function,
        args: Args,
        wrt: Any,
        options: IncrementalOptions,
        shared: Callable[[str], Incremental[..., Any] | None] = lambda _: None,
    ) -> None:
        """`shared` gives the incremental function of a method that others call, too, or None."""
        self._fun = fun
        self._args = args
        self._wrt = wrt
        self._options = options
        self._signature = make_signature(fun, args, {})
        self._selection = select("prepare", fun, wrt, args, {})
        self._shared = shared
        self._made: dict[str, Incremental[..., Any]] = {}

    def _captured(self) -> tuple[Any, ...]:
        """What counts where a guarded function captures this: what it compiled does not."""
        return self._fun, self._args, self._wrt, self._options

    def value(self, *args: Any) -> Any:
        """What the function returns."""
        return self._called("value", args)

    def gradient(self, *args: Any) -> Any:
        """The gradient of a scalar function, in the shape of the selection."""
        return self._called("gradient", args)

    def value_and_gradient(self, *args: Any) -> tuple[Any, Any]:
        """Both, by one program."""
        return self._called("value_and_gradient", args)

    def jacobian(self, *args: Any) -> Any:
        """All derivatives of all outputs; see `incrax.jacobian`."""
        return self._called("jacobian", args)

    def hessian(self, *args: Any) -> Any:
        """All second derivatives, in the shape of the selection twice."""
        return self._called("hessian", args)

    def hvp(self, *args: Any, tangent: Any) -> Any:
        """The Hessian of a scalar function times a tangent in the shape of the selection."""
        return self._called("hvp", args, tangent=tangent)

    def pullback(self, *args: Any) -> tuple[Any, Pullback]:
        """Value and pullback; see `vjp`."""
        self._check("pullback", args)
        return vjp(self._fun, *args, wrt=0 if self._wrt is None else self._wrt)

    def pushforward(self, *args: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Value, and the derivative along a tangent in the shape of the selection; see `jvp`."""
        self._check("pushforward", args)
        at = _held(args)
        return self.value(*args), lambda tangent: self._called("jvp", at, tangent=tangent)[1]

    @cached_property
    def flat(self) -> Flat:
        """The same as functions of one vector, all else as in the example; see `Flat`.

        Raises:
            SelectionError: a selected leaf is complex.
        """
        return self.flat_at(*self._args)

    def flat_at(self, *args: Any, free: Mapping[str, Any] | None = None) -> Flat:
        """The same as `flat`, with what is not selected as in these arguments; programs and saved
        values are shared.

        Args:
            *args: the function's arguments.
            free: which elements vectors have: by the path of a selected leaf an array of booleans
                of its shape, or None for all of its elements. All else of the selection stays as
                in the arguments. None: everything.

        Raises:
            SelectionError: a selected leaf is complex.
            UnknownInputError: a path names nothing.
            PreparedTypeError: an argument is of another type than the example.

        Cost: derivatives are evaluated by the whole selection, whatever is free, so that another
            `free` traces and compiles nothing.

        Example:
            >>> import incrax, numpy as np
            >>> p = incrax.prepare(lambda x, data: ((x - data) ** 2).sum(), np.zeros(2), np.ones(2))
            >>> other = p.flat_at(np.zeros(2), np.array([3.0, 4.0]), free={"x": [True, False]})
            >>> other.names, other.gradient(np.array([1.0])).tolist()
            (('x[0]',), [-4.0])
        """
        self._check("flat_at", args)
        selection = select("prepare", self._fun, self._wrt, args, {})
        shown = selection
        masks = dict.fromkeys(selection.numbers)
        if free is not None:
            shown = select("prepare", self._fun, tuple(free), args, {})
            masks = dict(zip(shown.numbers, free.values(), strict=True))
        if selection.has_repeats:
            each_once = Prepared(self._fun, self._args, self.paths, self._options)
            return Flat(each_once, each_once._selection, shown, masks)
        return Flat(self, selection, shown, masks)

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of the selected leaves."""
        return self._selection.paths

    @property
    def stats(self) -> dict[str, Stats]:
        """Counters of the methods called so far; pullbacks have none."""
        return {name: function.stats for name, function in self._made.items()}

    @property
    def methods(self) -> dict[str, Incremental[..., Any]]:
        """The incremental functions of the methods called so far, by name.

        Example:
            >>> import incrax
            >>> p = incrax.prepare(lambda x: x**2, 3.0)
            >>> value = p.value(3.0)
            >>> p.methods["value"].explain().num_equations
            1
        """
        return dict(self._made)

    def __repr__(self) -> str:
        """What it is of, and by what it differentiates."""
        return f"prepared {name_of(self._fun)}, derivatives by {', '.join(self.paths)}"

    # --- inner ------------------------------------------------------------------------------------

    def _called(self, method: str, args: Args, **kwargs: Any) -> Any:
        self._check(method, args)
        if method not in self._made:
            make = functools.partial(_MAKERS[method], self._fun, wrt=self._wrt, **self._options)
            self._made[method] = self._shared(method) or make()
        return self._made[method](*args, **kwargs)

    def _check(self, method: str, args: Args) -> None:
        """Refuse arguments that are not of the example's types."""
        known = self._signature
        leaves, treedef = jax.tree.flatten((args, {}))
        if treedef != known.treedef:
            self._check_structures(method, args)
        rows = zip(known.paths, leaves, jax.tree.leaves(self._args), known.descriptors, strict=True)
        for path, leaf, example, expected in rows:
            if not (same_static(leaf, example) if expected is None else same_type(leaf, expected)):
                raise _other_type(method, path, _type_name(leaf), _type_name(example))

    def _check_structures(self, method: str, args: Args) -> None:
        """The first argument of another structure, named."""
        if len(args) != len(self._args):
            raise PreparedTypeError(
                f"`prepare(f).{method}` got {len(args)} arguments; it was prepared for "
                f"{len(self._args)}. Nothing was evaluated or stored. Pass arguments like those "
                "given to `prepare`, all by position."
            )
        names = argument_names(self._fun, len(args))
        for name, arg, example in zip(names, args, self._args, strict=True):
            seen = jax.tree.structure(arg)
            expected = jax.tree.structure(example)
            if seen != expected:
                raise _other_type(method, name, str(seen), str(expected))


def tuning_of(prepared: Prepared) -> Tuning:
    """The settings of its functions."""
    return prepared._options.get("tuning") or Tuning()


def _other_type(method: str, path: str, seen: str, expected: str) -> PreparedTypeError:
    """An argument of another type or static value."""
    return PreparedTypeError(
        f"`prepare(f).{method}` got `{path}` as {seen}; it was prepared for {expected}. Nothing "
        "was evaluated or stored. Convert it, or prepare the function for this type."
    )


class _Plain(Derivative):
    """The function itself, marks taken off."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value at these arguments."""
        args, kwargs = without_marks((args, kwargs))
        return self.fun(*args, **kwargs)


_MAKERS: dict[str, Callable[..., Incremental[..., Any]]] = {
    "value": lambda fun, wrt, **options: incremental(_Plain(fun, wrt, "value"), **options),
    "gradient": grad,
    "value_and_gradient": value_and_grad,
    "jacobian": jacobian,
    "hessian": hessian,
    "hvp": hvp,
    "jvp": jvp,
}


def _type_name(leaf: Any) -> str:
    if not is_dynamic(leaf):
        return f"{leaf!r} of type {type(leaf).__name__}"
    return type_text(descriptor(leaf))


# --- one vector -----------------------------------------------------------------------------------


class Flat:
    """A prepared function of one vector: all elements of the selection in order, float64. Made by
    `Prepared.flat`.

    What is not selected is as in the example; NumPy arrays there are copied once and frozen.
    Vectors are NumPy arrays of shape (n,); so are gradients. Each leaf of the selection stays an
    input of its own, so that a vector in which a few elements changed costs what they reach.
    """

    value_dtype: np.dtype = np.dtype(np.float64)
    """Of the latest value of a scalar function: data may make it float32."""

    def __init__(
        self, prepared: Prepared, selection: Selection, shown: Selection, masks: dict[int, Any]
    ) -> None:
        """`selection` is what programs differentiate by, each leaf once; `shown` the part of it
        that vectors are made of, with a mask or None for each of its leaves.
        """
        self._prepared = prepared
        self._selection = selection
        self._shown = shown
        self._values = selection.values
        for path, value in zip(selection.paths, self._values, strict=True):
            if jnp.iscomplexobj(value):
                raise SelectionError(
                    f"`prepare(f).flat` is a vector of real numbers, and `{path}` is "
                    f"{_type_name(value)}. Nothing was evaluated or stored. Pass its real and "
                    "imaginary parts as two arguments, or leave it out of `wrt`."
                )
        self._ends = ends([np.shape(value) for value in self._values])
        self._leaves = [_held(leaf) for leaf in selection.leaves]
        is_free = []
        for number, shape in zip(selection.numbers, self._ends.shapes, strict=True):
            mask = masks.get(number, False)
            is_free.append(np.broadcast_to(True if mask is None else mask, shape))
        self._free = FreeElements(np.flatnonzero(_vector(is_free)), _vector(self._values))
        self._followed = {
            number: Followed()
            for number, value in zip(selection.numbers, self._values, strict=True)
            if np.ndim(value) and np.size(value) >= MIN_FOLLOWED
        }

    @property
    def x0(self) -> np.ndarray:
        """The example's values; a new array each time."""
        return self._free.values[self._free.numbers]

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each element: `params['mu']`, `x[0, 1]`."""
        names = element_names(self._selection.paths, self._ends.shapes)
        return tuple(names[number] for number in self._free.numbers)

    def value(self, x: Any) -> Any:
        """The value: a float where the function returns a scalar, else all its elements in one
        vector.
        """
        leaves = jax.tree.leaves(self._prepared.value(*self.arguments(x)))
        if len(leaves) == 1 and np.shape(leaves[0]) == ():
            return self._number(leaves[0])
        return _vector(leaves)

    def gradient(self, x: Any) -> np.ndarray:
        """The gradient of a scalar function, shape (n,)."""
        return self._rows(self._prepared.gradient(*self.arguments(x)))[0]

    def value_and_gradient(self, x: Any) -> tuple[float, np.ndarray]:
        """Both, by one program: for `minimize(..., jac=True)`."""
        value, gradient = self._prepared.value_and_gradient(*self.arguments(x))
        return self._number(value), self._rows(gradient)[0]

    def jacobian(self, x: Any) -> np.ndarray:
        """All derivatives, shape (m, n) for m elements of `value`."""
        return self._rows(self._prepared.jacobian(*self.arguments(x)))

    def hessian(self, x: Any) -> np.ndarray:
        """The second derivatives of a scalar function, shape (n, n)."""
        return self._rows(self._prepared.hessian(*self.arguments(x)))[self._free.numbers]

    def hvp(self, x: Any, v: Any) -> np.ndarray:
        """The Hessian times a vector, shape (n,): `hessp` of SciPy."""
        still = self._free._replace(values=np.zeros(self._ends.size))
        tangent = self._selection.tree([*self._parts(v, still).values()])
        return self._rows(self._prepared.hvp(*self.arguments(x), tangent=tangent))[0]

    def unflatten(self, x: Any) -> Any:
        """A vector in the shape of the selection, or of what is free of it."""
        parts = self._parts(x, self._free)
        return self._shown.tree([parts[number] for number in self._shown.numbers])

    def arguments(self, x: Any) -> tuple[Any, ...]:
        """The arguments of the function at a vector."""
        leaves = list(self._leaves)
        parts = self._parts(x, self._free)
        # What has no free element stays the object that it is, so that no call compares its bits.
        for number in self._shown.numbers:
            mark, part = leaves[number], parts[number]
            if number in self._followed:
                part = self._followed[number].array(part)
            leaves[number] = type(mark)(part) if isinstance(mark, Mark) else part
        return jax.tree.unflatten(self._selection.treedef, leaves)[0]

    # --- inner ------------------------------------------------------------------------------------

    def _number(self, value: Any) -> float:
        """A scalar, whose type is lost on the way."""
        number = np.asarray(value)
        self.value_dtype = number.dtype
        return float(number)

    def _checked(self, x: Any) -> np.ndarray:
        x = np.asarray(x)
        size = len(self._free.numbers)
        if x.shape != (size,) or x.dtype.kind not in "fiu":
            raise TangentError(
                f"`prepare(f).flat` got a vector of type {x.dtype}{list(x.shape)}, and the "
                f"selection has {size} elements. Nothing was evaluated or stored. Pass a vector "
                "like `flat.x0`."
            )
        return x

    def _parts(self, x: Any, free: FreeElements) -> dict[int, Any]:
        """A vector, and what is not free, cut into leaves of the example's types, by number."""
        pieces = self._ends.split(free.whole(self._checked(x)))
        parts = map(_like, self._values, pieces)
        return dict(zip(self._selection.numbers, parts, strict=True))

    def _rows(self, tree: Any) -> np.ndarray:
        """Derivatives of outputs, or second ones, as the rows of a matrix."""
        shapes = self._ends.shapes
        leaves = jax.tree.leaves(tree)
        blocks = []
        for leaf, shape in zip(leaves, itertools.cycle(shapes), strict=False):
            of_output = leaf.shape[: leaf.ndim - len(shape)]
            # Not -1 for either: nothing is divided into rows of nothing.
            size = math.prod(of_output), math.prod(shape)
            blocks.append(np.asarray(leaf, np.float64).reshape(size))
        rows = [blocks[k : k + len(shapes)] for k in range(0, len(blocks), len(shapes))]
        return np.block(rows)[:, self._free.numbers]


def _vector(values: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(value, np.float64).reshape(-1) for value in values])


def _held(tree: Any) -> Any:
    """Arguments, or one of them, that nobody changes."""
    return jax.tree.map(lambda x: frozen(x) if isinstance(x, np.ndarray) else x, tree)


def _like(value: Any, piece: np.ndarray) -> Any:
    """A piece of a vector as a value of a leaf's type; a Python number where the type is weak."""
    _, dtype, is_weak, _ = descriptor(value)
    if is_weak and np.shape(value) == ():
        return float(piece)
    return piece.astype(dtype)
