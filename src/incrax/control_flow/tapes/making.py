"""Making a path: run the function under watch, record it, refuse what a tape cannot hold; and static
arguments, which are part of the structure of a call.

In: a function, a signature and leaves. Out: a path and what it captured. It must not know which
paths there are.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._locations import NO_VALUE, Place, place_of_error
from incrax._messages import unhashable_static
from incrax._names import names_in
from incrax._program import Values
from incrax.control_flow.loops.padded import NamedArguments, Names
from incrax.control_flow.tapes.captured import Captured, captured_by
from incrax.control_flow.tapes.paths import Path, TapeStats
from incrax.control_flow.tapes.recording import Recording, learned, record
from incrax.engine.inputs.signature import Function, Signature, make_signature
from incrax.errors import (
    CapturedStateError,
    FloatGuardError,
    PythonBranchError,
    TapeError,
)

_UNTOUCHED = "Nothing was recorded; paths recorded before are as they were."


class TapeOptions(NamedTuple):
    """What `guarded` was asked for."""

    guard: Function | None = None
    max_paths: int = 64
    fallback: str = "eager"
    constant: tuple[str, ...] = ()
    static: NamedArguments | None = None


class RecordedFunction(NamedTuple):
    """A function that is recorded."""

    fun: Function
    name: str
    options: TapeOptions
    roots: Sequence[Any]
    """Where the walk over captured values starts."""

    def signed(self, args: Any, kwargs: Any) -> tuple[Signature, Sequence[Any]]:
        """The signature of a call, and the leaves that are values."""
        signature = make_signature(self.fun, args, kwargs, is_watched=True)
        return signature, signature.dynamic_leaves(jax.tree_util.tree_leaves((args, kwargs)))

    def captured(self, statics: Sequence[Any] = ()) -> Captured:
        """What the function captures now, and what can be read from static arguments."""
        return captured_by(self.name, [*self.roots, *statics], self.options.constant)


class Observed(NamedTuple):
    """A run: what it recorded and captured."""

    recording: Recording
    captured: Captured
    out_tree: Any


def observed(subject: RecordedFunction, signature: Signature, leaves: Values) -> Observed:
    """Run and record once, after a look at what is captured: a counter that the run turns must not
    look current.
    """
    with jax.ensure_compile_time_eval():
        values = list(map(jnp.asarray, leaves))
    trees = []
    args, kwargs = signature.rebuild(leaves)
    statics = [*signature.statics, *static_values(args, kwargs)]
    captured = subject.captured([*statics, *classes_in((args, kwargs))])
    if captured.tracers:
        raise CapturedStateError(
            f"`guarded({subject.name})` captures `{captured.tracers[0]}`, which holds a traced "
            "value that an earlier call put there. Functions are recorded with traced values "
            "in place of arrays; outside of that call they have no value. "
            f"{_UNTOUCHED} Remove it there, and return what is to be kept as a result instead."
        )
    try:
        recording = record(_flat(subject, signature, trees), values)
    except NO_VALUE as error:
        raise PythonBranchError(
            f"`guarded({subject.name})` found Python control flow in a part that JAX traces "
            "without values (a function under `jax.jit` or `vmap`, a body of `scan`, a "
            "function with a derivative rule of its own): "
            f"{place_of_error(error)}. {_UNTOUCHED} Use `jax.lax.cond` or `jnp.where` there, "
            "or move the branch out of that part."
        ) from error
    return Observed(recording, captured, trees[-1])


def make_path(
    subject: RecordedFunction, signature: Signature, leaves: Values, stats: TapeStats
) -> tuple[Path, Captured]:
    """Record the path of a call.

    Raises:
        TapeError: no tape can hold it; the message says why.
    """
    begin = time.perf_counter()
    run = observed(subject, signature, leaves)
    path = Path(run.recording, run.out_tree, stats)
    floats = [guard.place for guard in path.guards if guard.is_value_of_floats]
    if floats:
        raise FloatGuardError(
            f"`guarded({subject.name})` saw floats turned into Python or NumPy values, or text: "
            f"{'; '.join(dict.fromkeys(floats))}. A compiled path holds for one value of what "
            "Python read, so that each new float would be recorded and compiled again, and no "
            f"derivative would pass through it. {_UNTOUCHED} Compare the array itself "
            "(`if x > 0:` records only the side), compute with `jax.numpy`, print with "
            "`jax.debug.print`; or pass the float as `static=` if it takes few values."
        )
    if path.needs_check:
        path.stages  # noqa: B018 - a guard that needs an effect is refused now
    path.record_s = time.perf_counter() - begin
    return path, run.captured


def _flat(
    subject: RecordedFunction, signature: Signature, trees: list[Any]
) -> Callable[..., list[Any]]:
    """The function of flat leaves; the user's guard is evaluated ahead of it."""

    def flat(*leaves):
        args, kwargs = signature.rebuild(leaves)
        guard = subject.options.guard
        if guard is not None:
            _learn(guard, of_static(guard)(*args, **kwargs))
        results, tree = jax.tree_util.tree_flatten(subject.fun(*args, **kwargs))
        trees.append(tree)
        return [_array(subject.name, x) for x in results]

    return flat


def _learn(guard: Function, key: Any) -> None:
    """What the user's guard returned, which selects the path."""
    place = Place("guard=", getattr(guard, "__name__", "guard"))
    for leaf in jax.tree_util.tree_leaves(key):
        if isinstance(leaf, _jax.Tracer):
            learned(leaf, "bool" if leaf.dtype == bool and leaf.size == 1 else "value", place)


def _array(name: str, result: Any) -> Any:
    """A result as an array.

    Raises:
        TapeError: it is none.
    """
    if isinstance(result, jax.Array):
        return result
    try:
        return jnp.asarray(result)
    except TypeError as error:
        if isinstance(error, TapeError):
            raise
        raise TapeError(
            f"`guarded({name})` returned {result!r:.60}, of type {type(result).__name__}. What a "
            f"compiled path returns are arrays and numbers, in any pytree. {_UNTOUCHED} Return a "
            "number that stands for it, or compute it outside."
        ) from error


def classes_in(tree: Any) -> Iterable[type]:
    """The classes of all nodes and leaves, whose methods a function may call."""
    found: dict[type, None] = {}
    jax.tree.flatten(tree, is_leaf=lambda node: found.setdefault(type(node)) is not None)
    return found


# --- static arguments -----------------------------------------------------------------------------


@jax.tree_util.register_static
@dataclass(frozen=True)
class StaticValue:
    """A static argument: a pytree without leaves, whose structure is its value."""

    key: Hashable
    value: Any = field(compare=False)


def static_arguments(fun: Function, static: str | int | Names) -> NamedArguments:
    """What the user wrote, resolved.

    Raises:
        ValueError: a name or position that the function does not have.
    """
    found = NamedArguments(fun, names_in("guarded(static=...)", static, (str, int)))
    known = found.parameters
    for name, (_, keyword) in zip(found.names, found.places, strict=True):
        if known and keyword not in known:
            raise ValueError(
                f"`guarded(static=...)` got {name!r}, which is no argument of the function; it has "
                f"{known}."
            )
    return found


def as_static(name: str | int, x: Any) -> StaticValue:
    """A static argument.

    Raises:
        UnsupportedLeafError: it has no hash.
    """
    try:
        hash(x)
    except TypeError:
        raise unhashable_static(str(name), x) from None
    return StaticValue(_typed(x), x)


def _typed(x: Any) -> Hashable:
    """A value whose twins differ: 1, 1.0 and True, 0.0 and -0.0, also inside tuples."""
    if isinstance(x, tuple):
        return type(x), tuple(map(_typed, x))
    return type(x), x.hex() if isinstance(x, float) else x


def of_static(fun: Function) -> Function:
    """The function of arguments among which there may be static ones."""

    @functools.wraps(fun)
    def call(*args, **kwargs):
        values = {name: _value(x) for name, x in kwargs.items()}
        return fun(*map(_value, args), **values)

    return call


def _value(x: Any) -> Any:
    return x.value if isinstance(x, StaticValue) else x


def static_values(args: Any, kwargs: Any) -> list[Any]:
    """The static ones among arguments."""
    return [x.value for x in (*args, *kwargs.values()) if isinstance(x, StaticValue)]
