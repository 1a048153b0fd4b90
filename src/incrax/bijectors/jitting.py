"""Compiled functions through whose boundary records are carried.

In: a function. Out: the same, compiled. Arguments are taken apart into arrays and what the function
is compiled for: numbers are arrays, as under `jax.jit`, except those inside a bijection or
a module of Equinox, where they are settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import is_of
from incrax._messages import wrong_option
from incrax.bijectors.boundary import Outgoing, Template, incoming, outgoing
from incrax.bijectors.remembered import Remembered
from incrax.bijectors.switches import is_recording, requires_ladj
from incrax.engine.inputs.frames import Frame, framed
from incrax.errors import UnsupportedLeafError

P = ParamSpec("P")
R = TypeVar("R")


def jit(f: Callable[P, R]) -> Callable[P, R]:
    """Compile a function whose arguments and results keep their memory.

    As `jax.jit`, with two differences. A result that a bijection made inside comes back with its
    record: source and log-determinant are further results of the program, and `inverse`,
    `log_abs_det_jacobian` and `memory_of` look them up. Arguments that remember are remembered
    inside.

    Promise: `jit(f)(*args)` equals `jax.jit(f)(*args)` to within rounding, and so do derivatives.

    Args:
        f: a pure function of trees. Leaves that are no arrays (functions, text, and numbers inside
            a bijection or a module of Equinox) are static: another value means another program. So
            bijections and distributions of FlowJAX may be arguments and results.

    Returns:
        The compiled function. It can be differentiated, mapped, and called in other compiled
        functions. An argument that is returned is returned as the object that it is.

    Raises:
        TypeError: f is no function.
        UnsupportedLeafError: (on calling) a leaf of the arguments is no array and has no hash.

    Cost: a call takes some tens of microseconds beyond `jax.jit`, more with many leaves. Memory:
    what the records hold is computed and kept, also if nobody asks for it;
    `set_requires_ladj(False)`, or `set_record_flow_graph(False)` around the call, does without.

    Not handled: a record is carried out if its parameters and context are arguments or closed over,
    not if they are computed inside; and in, if they are arguments. Results made inside a mapped,
    looped or differentiated part have no record outside of it. Arguments are not donated.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> exp = bijectors.remember(transforms.ExpTransform())
        >>> y = bijectors.jit(exp.forward)(jnp.zeros(2))
        >>> exp.inverse(y).tolist(), bijectors.memory_of(y).direction
        ([0.0, 0.0], 'forward')
    """

    if not callable(f):
        raise wrong_option("bijectors.jit(f)", f, "a function")
    fun: Callable[..., Any] = f

    def run(key: _CompiledFor, arrays: list[Any]) -> tuple[list[Any], _AfterCall]:
        after: list[_AfterCall] = []

        def flat(*tracers: Any) -> list[Any]:
            args, kwargs = key.frame.filled(tracers)
            for template in key.records:
                template.attach_to(tracers, ())
            frame, results = _taken_apart(fun(*args, **kwargs))
            records, returned = outgoing(tracers, _remembered_in((args, kwargs)), results)
            after.append(_AfterCall(frame, records))
            return returned

        return flat(*arrays), after[-1]

    run.__name__ = run.__qualname__ = getattr(f, "__name__", "f")
    compiled = jax.jit(run, static_argnums=0)

    @functools.wraps(f)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        frame, arrays = _taken_apart((args, kwargs))
        arrays = [jnp.array(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in arrays]
        records, given = incoming(arrays) if is_recording() else ((), arrays)
        key = _CompiledFor(frame, records, is_recording(), requires_ladj())
        try:
            hash(key)
        except TypeError:
            _check_hashable(frame, (args, kwargs))
            raise
        values, after = compiled(key, given)
        bijections = _remembered_in((args, kwargs)) if after.records.templates else []
        return after.frame.filled(after.records.attached(given, values, bijections))

    return called


class _CompiledFor(NamedTuple):
    """What a program is compiled for, beside the types of its arrays."""

    frame: _Frame
    records: tuple[Template, ...]
    is_recording: bool
    requires_ladj: bool


@jax.tree_util.register_static
class _AfterCall:
    """What a program returns beside arrays, known once it is traced; equals itself only."""

    def __init__(self, frame: _Frame, records: Outgoing) -> None:
        self.frame = frame
        self.records = records


# --- arguments ------------------------------------------------------------------------------------

_NUMBERS = (bool, int, float, complex)


class _Frame(Frame):
    """A tree without its arrays. Compared by value."""

    @property
    def _key(self) -> Hashable:
        return self.treedef, tuple(map(_static_key, self.leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frame) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _taken_apart(tree: Any) -> tuple[_Frame, list[Any]]:
    """A tree without its arrays, and these."""
    leaves, treedef = jax.tree.flatten(tree)
    is_array = list(map(_is_array, leaves))
    if any(isinstance(x, _NUMBERS) for x in leaves):
        pairs = zip(is_array, _are_settings(tree), strict=True)
        is_array = [flag and not is_setting for flag, is_setting in pairs]
    frame, arrays = framed(treedef, leaves, is_array)
    return _Frame(*frame), arrays


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray, np.generic, *_NUMBERS)) or hasattr(
        x, "__jax_array__"
    )


def _are_settings(tree: Any) -> list[bool]:
    """Which leaves are numbers inside a bijection or module."""
    flags: list[bool] = []
    for node in jax.tree.leaves(tree, is_leaf=_holds_settings):
        holds_settings = _holds_settings(node)
        flags.extend(holds_settings and isinstance(x, _NUMBERS) for x in jax.tree.leaves(node))
    return flags


def _holds_settings(x: Any) -> bool:
    is_module = is_of("equinox", "Module", x)
    return is_module or isinstance(x, Remembered) or _is_bijection(x)


def _is_bijection(x: Any) -> bool:
    kind = type(x)
    return hasattr(kind, "inverse_and_log_det") or hasattr(kind, "call_with_intermediates")


def _static_key(x: Any) -> Hashable:
    """What tells static values apart; 1, 1.0 and True differ, and so do 0.0 and -0.0; not hashable
    if nothing does.
    """
    if _is_bijection(x):
        return [x]  # type: ignore[return-value]
    return (type(x), np.asarray(x).tobytes()) if isinstance(x, (float, complex)) else (type(x), x)


def _check_hashable(frame: _Frame, tree: tuple[Any, Any]) -> None:
    """Look at all arguments, positional and by name, that are no arrays.

    Raises:
        UnsupportedLeafError: one has no hash, or is a bijection whose parameters cannot be seen.
    """
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    for (path, _), x in zip(paths, frame.leaves, strict=True):
        name = ("args", "kwargs")[path[0].idx] + jax.tree_util.keystr(path[1:])
        kind = type(x).__name__
        if _is_bijection(x):
            raise UnsupportedLeafError(
                f"`bijectors.jit(f)` got `{name}` of type {kind}, a bijection that is no pytree: "
                "its parameters would be part of the program, and a change of one would not be "
                "seen. Nothing was evaluated. Register the class "
                "(`jax.tree_util.register_dataclass`), or let `f` close over the bijection if it "
                "never changes."
            )
        try:
            hash(_static_key(x))
        except TypeError:
            raise UnsupportedLeafError(
                f"`bijectors.jit(f)` got `{name}` of type {kind}, which is no array and cannot be "
                "hashed, so it can be neither traced nor used as a static value. This is usually a "
                "set, a mutable object or a data frame. Nothing was evaluated. Pass its arrays, or "
                "make the type hashable or a registered pytree."
            ) from None


def _remembered_in(tree: Any) -> list[Remembered]:
    """The bijections with memory in a tree, in order."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Remembered))
    return [x for x in found if isinstance(x, Remembered)]
