"""Pullbacks at a point, which compute only the cotangents asked for.

In: a function and arguments. Out: its value and a `Pullback`. It must not know how programs are
split.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from incrax import _jax
from incrax._jax_options import spelled_here
from incrax._messages import check_function, listed
from incrax._names import name_of
from incrax._program import Values
from incrax._tables import LruTable
from incrax.derivatives.cuts import Mark
from incrax.derivatives.linear_maps import (
    MAX_PARTS,
    AtPoint,
    OutputTypes,
    PrunedProgram,
    at_point,
)
from incrax.derivatives.selection import Selection, select
from incrax.derivatives.transforms import fitting, leaves_as, plain
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.signature import Function
from incrax.errors import FreedResidualError, SelectionError

_FREED = object()


@spelled_here
def vjp(fun: Function, *args: Any, wrt: Any = None, **kwargs: Any) -> tuple[Any, Pullback]:
    """Value of a function and its pullback, which computes only the cotangents that it is asked
    for.

    Promise: `pb(ct, wrt=w)` equals the part `w` of what `jax.vjp(fun, *args)[1](ct)` returns,
    whatever was asked before.

    Args:
        fun: function of pytrees of arrays, with a pytree of arrays as result; need not be compiled.
        *args: arguments; pytrees.
        wrt: what to differentiate by; see `grad`. None: all positional arguments, as far as they
            are floating-point or complex arrays without the mark of `cut`. What is left out costs
            nothing, no residual either.
        **kwargs: keyword arguments; their parts are named in `wrt` by path.

    Returns:
        (value, pullback). `pullback(ct)` takes a pytree like the value (None for outputs that are
        integers) and returns cotangents in the shape of the
        selection, by default a tuple with one tree per positional argument; see `Pullback`.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        UnknownInputError: a path names nothing.

    Cost: one evaluation, as by `jax.vjp` under `jax.jit`. Compiled once per function, selection and
        types of the arguments, and each set of cotangents asked for once; the same function at
        other values compiles nothing. A lambda that is written again is another function, as for
        `jax.jit`, callables that say that they are equal are one, and what a function closes over
        is read when it is first traced. Residuals that are arguments are not copied.

    Not handled: inside `jit`, `grad` or `vmap`, with `jax.disable_jit()`, and where `fun` branches
        in Python on a value, or has no hash, it is
        evaluated operation by operation, as by `jax.vjp`; still only what is needed. A
        pullback is no pytree: it cannot be returned from a compiled function.

    Source: thunks and struct of pullbacks in the thread Zygote.jl#323.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> value, pullback = incrax.vjp(lambda a, x: a @ x**2, jnp.array([1.0, 3.0]), jnp.array([1.0, 2.0]))
        >>> [part.tolist() for part in pullback(1.0)]
        [[1.0, 4.0], [2.0, 12.0]]
        >>> pullback(1.0, wrt="a").tolist(), pullback.num_operations(wrt="a"), pullback.num_operations()
        ([1.0, 4.0], 1, 3)
    """
    check_function("vjp(fun)", fun)
    fun = plain(fun)
    wrt = tuple(range(len(args))) if wrt is None and args else wrt
    selection = select("vjp", fun, wrt, args, kwargs)
    point = at_point(fun, selection, args, kwargs)
    return point.value, Pullback(fun, selection, point)


class Pullback:
    """The linear map from cotangents of a function's outputs to those of its arguments, at a point.
    Made by `vjp`.

    Each set of arguments asked for has its own program, pruned to what it needs and compiled when
    first used. Nothing is added up between calls: the same cotangent gives the same numbers.

    Example:
        >>> import incrax
        >>> value, pullback = incrax.vjp(lambda a, b: a * b, 2.0, 5.0)
        >>> [float(part) for part in pullback(1.0)], float(pullback(1.0, wrt="b"))
        ([5.0, 2.0], 2.0)
    """

    def __init__(self, fun: Function, selection: Selection, point: AtPoint) -> None:
        self._fun = fun
        # Without the arguments' arrays, which live on only as far as they are residuals.
        self._selection = dataclasses.replace(
            selection, leaves=tuple(map(_outline, selection.leaves))
        )
        self._linear = point.linear
        self._residuals: list[Any] = list(point.residuals)
        self._kept: frozenset[int] = frozenset(selection.numbers)
        self._parts: LruTable[Any, Selection] = LruTable(MAX_PARTS)

    @property
    def residual_bytes(self) -> int:
        """Bytes of all arrays that it holds, each once; arguments and constants among them
        count.
        """
        held = {id(x): x for x in self._residuals if x is not _FREED}
        return sum(_jax.aval_bytes(jax.typeof(x)) for x in held.values())

    def __call__(self, cotangent: Any, *, wrt: Any = None) -> Any:
        """Cotangents of the arguments.

        Args:
            cotangent: pytree like the value of the function; None for outputs that are integers.
            wrt: which ones: paths, numbers or a mask, as for `vjp` and
                of the same arguments. None: all that `vjp` selected.

        Returns:
            A pytree in the shape of what was asked for, None for leaves that have no cotangent.

        Raises:
            TangentError: the cotangent is of another structure, shape or dtype than the value.
            SelectionError: `vjp` did not differentiate by what is asked for.
            FreedResidualError: `keep` has freed what is needed.
        """
        asked = self._asked(wrt)
        return asked.tree(self._computed(self._cotangents(cotangent), asked.numbers))

    def lazy(self, cotangent: Any) -> Cotangents:
        """A mapping from paths, or anything that `wrt` can be, to cotangents, each computed when it
        is first read.

        Cost: items share no work; read several at once by a tuple of paths if they have much in
        common.
        """
        return Cotangents(self, self._cotangents(cotangent))

    def keep(self, wrt: Any) -> int:
        """Free the residuals that only other cotangents than these need.

        Args:
            wrt: what will still be asked for; see `vjp`.

        Returns:
            Bytes that the pullback holds no longer. Arrays that are arguments count, though their
            memory is free only when nobody else holds them.
        """
        asked = self._asked(wrt)
        before = self.residual_bytes
        reads = self._part(asked.numbers).reads
        types = self._linear.types
        numbered = enumerate(self._residuals, sum(types.is_active))
        self._residuals = [x if number in reads else _FREED for number, x in numbered]
        self._kept = frozenset(asked.numbers)
        return before - self.residual_bytes

    def num_operations(self, wrt: Any = None) -> int:
        """Equations of the program that computes these cotangents; one with a body, such as a loop,
        counts once.
        """
        return len(self._part(self._asked(wrt).numbers).program.eqns)

    def program(self, wrt: Any = None) -> Any:
        """The jaxpr that computes these cotangents, to look at: of the cotangents and residuals
        that it reads.
        """
        return self._part(self._asked(wrt).numbers).program.as_jaxpr()

    @property
    def paths(self) -> tuple[str, ...]:
        """Names of the leaves whose cotangents can be asked for."""
        pairs = zip(self._selection.numbers, self._selection.paths, strict=True)
        return tuple(path for number, path in pairs if number in self._kept)

    def __repr__(self) -> str:
        """What it is a pullback of, and what it holds."""
        name = name_of(self._fun)
        return (
            f"pullback of {name}: {len(self.paths)} cotangents, {self.residual_bytes:,} bytes of "
            "residuals"
        )

    # --- inner ------------------------------------------------------------------------------------

    def _asked(self, wrt: Any) -> Selection:
        """The part of the selection that is asked for."""
        asked = self._selection
        if wrt is not None:
            # With its types, as True is a mask, and 1 the number of an argument, in a tuple, too.
            parts = wrt if isinstance(wrt, tuple) else (wrt,)
            key = type(wrt), tuple((type(part), part) for part in parts)
            asked = self._parts.made(key, functools.partial(self._selected, wrt))
        if not self._kept.issuperset(asked.numbers):
            raise self._refusal(asked)
        return asked

    def _selected(self, wrt: Any) -> Selection:
        known = self._selection
        args, kwargs = jax.tree.unflatten(known.treedef, known.leaves)
        return select("pullback", self._fun, wrt, args, kwargs)

    def _refusal(self, asked: Selection) -> Exception:
        """Cotangents that were never there, or are no more."""
        known = self._selection
        paths = dict(zip(asked.numbers, asked.paths, strict=True))
        if unknown := [path for number, path in paths.items() if number not in known.numbers]:
            return SelectionError(
                f"The pullback was asked for the cotangent of `{unknown[0]}`, and it has those of "
                f"{listed(known.paths)}. This is usually an argument that the `wrt` of `vjp` leaves "
                "out. Nothing was evaluated. Name it there."
            )
        given_up = [path for number, path in paths.items() if number not in self._kept]
        return FreedResidualError(
            f"The pullback was asked for the cotangent of {listed(given_up)} after "
            f"`keep(wrt=...)`, which kept what {listed(self.paths)} needs and freed the rest. "
            "Nothing was evaluated. Keep these as well, or call `vjp` again."
        )

    def _part(self, numbers: Sequence[int]) -> PrunedProgram:
        known = self._selection.numbers
        return self._linear.part(tuple(map(known.index, sorted(numbers))))

    def _computed(self, cotangents: Values, numbers: Sequence[int]) -> list[jax.Array]:
        ordered = sorted(numbers)  # one program, however they are asked for
        found = dict(zip(ordered, self._part(ordered)(cotangents, self._residuals), strict=True))
        return [found[number] for number in numbers]

    def _cotangents(self, cotangent: Any) -> list[Any]:
        """The leaves of a cotangent that count, as arrays of the outputs' types."""
        types = self._linear.types
        expected = lambda: str(jax.tree.unflatten(types.treedef, ["*"] * len(types.avals)))
        leaves = leaves_as("pullback", "cotangent", cotangent, types.treedef, expected)
        active = [number for number, flag in enumerate(types.is_active) if flag]
        return [_fitting(types, number, leaves[number]) for number in active]


class Cotangents(Mapping[Any, Any]):
    """Cotangents by path, each computed when it is first read. Made by `Pullback.lazy`."""

    def __init__(self, pullback: Pullback, cotangents: Values) -> None:
        self._pullback = pullback
        self._cotangents = cotangents
        self._known: dict[int, jax.Array] = {}

    def __getitem__(self, wrt: Any) -> Any:
        """What `pullback(ct, wrt=wrt)` returns; what was read before is not computed again."""
        asked = self._pullback._asked(wrt)
        missing = [number for number in asked.numbers if number not in self._known]
        if missing:
            self._known.update(
                zip(missing, self._pullback._computed(self._cotangents, missing), strict=True)
            )
        return asked.tree([self._known[number] for number in asked.numbers])

    def __contains__(self, wrt: object) -> bool:
        """Whether it is the path of a leaf; nothing is computed."""
        return wrt in self._pullback.paths

    def __iter__(self) -> Iterator[str]:
        """The paths of the leaves."""
        return iter(self._pullback.paths)

    def __len__(self) -> int:
        """The number of leaves."""
        return len(self._pullback.paths)

    def __repr__(self) -> str:
        """Which ones there are; nothing is computed."""
        return f"cotangents of {', '.join(self)}; {len(self._known)} computed"


# --- leaves ---------------------------------------------------------------------------------------


def _fitting(types: OutputTypes, number: int, leaf: Any) -> jax.Array:
    """A cotangent of an output as an array of its type."""
    aval = types.avals[number]
    if (
        type(leaf) is _jax.ArrayImpl
        and leaf.dtype == aval.dtype
        and leaf.shape == aval.shape
        and not leaf.weak_type
    ):
        return leaf
    expected = f"the output{types.names[number]}, {aval.dtype}{list(aval.shape)}"
    return fitting("pullback", "cotangent", leaf, aval.shape, aval.dtype, expected)


def _outline(leaf: Any) -> Any:
    """A leaf that `wrt` can select as the original, without its memory."""
    if isinstance(leaf, Mark):
        return type(leaf)(_outline(leaf.value))
    if not is_dynamic(leaf):
        return leaf
    if _jax.is_mutable_array(leaf):
        return "without a derivative"
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.result_type(leaf)
    if not isinstance(dtype, np.dtype):
        return "without a derivative"
    return _without_memory(np.shape(leaf), dtype)


@functools.lru_cache(maxsize=1024)
def _without_memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.broadcast_to(np.zeros((), dtype), shape)
