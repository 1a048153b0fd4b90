"""`guarded` and `check_tape`: what users call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, get_args, overload

from incrax._incremental import Incremental
from incrax._jax_options import spelled_here
from incrax._messages import check_function, wrong_option
from incrax.control_flow.loops.padded import Names
from incrax.control_flow.tapes.explanation import TapeReport, branches_of
from incrax.control_flow.tapes.guarded import Guarded
from incrax.control_flow.tapes.making import TapeOptions, static_arguments
from incrax.engine.inputs.signature import Function

P = ParamSpec("P")
R = TypeVar("R")

Fallback = Literal["eager", "error"]
FALLBACKS = get_args(Fallback)


class _Options(TypedDict, total=False):
    guard: Function | None
    static: str | int | Names
    floats: bool
    max_paths: int
    fallback: Fallback
    constant: str | Sequence[str]
    dynamic: str | int | Names


@overload
def guarded(f: Callable[P, R], **options: Unpack[_Options]) -> Guarded[P, R]: ...


@overload
def guarded(
    f: None = None, **options: Unpack[_Options]
) -> Callable[[Callable[P, R]], Guarded[P, R]]: ...


@spelled_here
def guarded(
    f: Callable[P, R] | None = None,
    *,
    guard: Function | None = None,
    static: str | int | Names = (),
    floats: bool = False,
    max_paths: int = 64,
    fallback: Fallback = "eager",
    constant: str | Sequence[str] = (),
    dynamic: str | int | Names = (),
) -> Guarded[P, R] | Callable[[Callable[P, R]], Guarded[P, R]]:
    """Compile a function with Python control flow, path by path, so that it stays right on every
    path.

    Promise: `guarded(f)(*args)` equals `f(*args)` for every sequence of calls, up to a few units in
    the last place, or raises an error that says why it cannot.

    The first call runs `f` once and records a straight-line program, and a guard for each thing
    that Python learned of a traced value: the side of an `if`, the value of an `int(x)`, with file,
    line and expression. Later calls run the path that is expected as one program, which also gives
    the number of the first guard that does not hold. On a miss the right path is looked up by the
    outcomes of guards, or recorded.

    Args:
        f: function of pytrees of arrays, with any Python control flow on their values, and any JAX
            transformation inside: pass `jax.value_and_grad(loss)` for compiled derivatives. May be
            left out to use `guarded(...)` as a decorator with options.
        guard: function of the same arguments; what it returns (booleans, integers) selects the path
            first.
        static: names or positions of arguments that are Python values; each combination has its own
            paths.
        floats: also allow floats as Python values (`float(x)`, `np.asarray(x)`, text). Each new
            value is a new path, and no derivative passes through it.
        max_paths: paths recorded per structure and types of the arguments, at most.
        fallback: beyond `max_paths`, `"eager"`: warn once, with the outcomes of each guard, and
            call `f` as it is; `"error"`: raise.
        constant: names of captured variables that never change; they are not compared.
        dynamic: names or positions of arguments, pytrees of arrays, whose number of rows may change
            without a new recording. They are padded to a power of two of rows, from 64 on, and
            reach `f` as `Padded`, which `scan` and `map` take; one path serves all lengths up to a
            capacity. `Padded` results come back as the rows that count. `len(x)` of such an
            argument is a guard on its length.

    Returns:
        A callable with the signature of `f`, and `stats`, `explain()` and `clear()`. Under
        `jax.grad`, `jvp`, `vjp`, `jacobian` and `hessian` of known values it takes the right path,
        to any order. Inside another guarded function it is part of the outer path. Of an
        incremental function, or given to `incremental`, it saves values per path.

    Raises:
        TapeError: at a call whose path no tape can hold; subclasses say what it is:
            `FloatGuardError`, `GuardOnEffectError`, `CapturedStateError`, `NotReproducibleError`,
            `PythonBranchError` (inside `jit` or `vmap`, where values are not known),
            `TooManyPathsError`.

    Cost: a call on the expected path costs one program and some microseconds; a miss, one more
        program per wrong guess. Recording runs `f` as a trace, and the equations that guards depend
        on one by one. Paths with effects or loops that may not end run their guards as a program of
        their own first. What `f` captures (cells, globals, attributes, defaults) is compared at
        each call.

    Not handled: effects of Python itself (printing, appending) happen when a path is recorded, as
        under `jax.jit`; code of installed packages is taken as constant.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> @incrax.guarded
        ... def f(x):
        ...     return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2
        >>> float(f(jnp.array([0.5, 0.0]))), float(f(jnp.array([1.0, 1.0]))), float(f(jnp.array([0.0, 0.5])))
        (0.25, 8.0, 0.25)
        >>> f.stats.recordings
        2
    """
    _check(f, guard, max_paths, fallback, floats)
    names = (constant,) if isinstance(constant, str) else tuple(constant)
    rows = _argument_names(dynamic)
    options = TapeOptions(guard, floats, max_paths, fallback, names, rows)

    def wrap(fun: Callable[P, R]) -> Guarded[P, R]:
        plain = _plain(fun)
        own = options._replace(static=static_arguments(plain, static) if static != () else None)
        if not isinstance(fun, Incremental):
            return Guarded(fun, own)
        saved = fun._traces.options
        return Guarded(plain, own, lambda path: Incremental(path, saved))

    return wrap if f is None else wrap(f)


def _check(f: Any, guard: Any, max_paths: Any, fallback: Any, floats: Any) -> None:
    """Raise TypeError or ValueError for wrong options."""
    if f is not None:
        check_function("guarded(f)", f)
    if guard is not None and not callable(guard):
        raise wrong_option("guarded(guard=...)", guard, "a function of the same arguments")
    if not isinstance(floats, bool):
        raise wrong_option("guarded(floats=...)", floats, "a bool")
    if not isinstance(max_paths, int) or isinstance(max_paths, bool) or max_paths < 1:
        raise ValueError(
            f"`guarded(max_paths=...)` got {max_paths!r}; it is a number of paths, at least 1."
        )
    if fallback not in FALLBACKS:
        raise ValueError(_unknown_fallback(fallback))


def _unknown_fallback(fallback: Any) -> str:
    text = f'`guarded(fallback=...)` got {fallback!r}; use "eager" or "error".'
    if fallback != "cond":
        return text
    return f'{text} "cond" was removed: write branches that have too many paths as `jax.lax.cond` by hand.'


def _argument_names(dynamic: Any) -> tuple[str | int, ...]:
    """Names and positions as the user wrote them.

    Raises:
        TypeError: they are something else.
    """
    names = (dynamic,) if isinstance(dynamic, (str, int)) else dynamic
    is_right = isinstance(names, (list, tuple)) and all(type(name) in (str, int) for name in names)
    if not is_right:
        raise wrong_option("guarded(dynamic=...)", dynamic, "names or positions of arguments")
    return tuple(names)


def _plain(f: Function) -> Function:
    """The function that the user wrote."""
    return f._fun if isinstance(f, (Guarded, Incremental)) else f


def check_tape(f: Function, *args: Any, **kwargs: Any) -> TapeReport:
    """Which branches of a function depend on values, before it is compiled with something
    unguarded.

    Args:
        f: function of pytrees of arrays.
        *args: arguments; the path that they take is looked at.
        **kwargs: keyword arguments.

    Returns:
        A report, false if there are such branches; it lists `file:line`, the expression, and what
        was learned, and what the function captures that `jax.jit` would take as constant.

    Cost: one trace of `f`, and the equations that its branches depend on. Effects do not run.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> bool(incrax.check_tape(lambda x: jnp.where(x > 0, x, 0.0), 1.0))
        True
        >>> report = incrax.check_tape(lambda x: x if x > 0 else 0.0, 1.0)
        >>> bool(report), len(report.branches)
        (False, 1)
    """
    return branches_of(_plain(f), args, kwargs)
