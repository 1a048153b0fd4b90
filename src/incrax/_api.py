"""The public face: `incremental(f)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
    runtime_checkable,
)

from incrax._incremental import Incremental
from incrax._jax_options import spelled_here
from incrax._messages import checked_count, wrong_option
from incrax._tuning import Policy, Tuning
from incrax.engine.call.signature_table import Options

P = ParamSpec("P")
R = TypeVar("R")


@runtime_checkable
class HasPaths(Protocol):
    """A function that is recorded path by path: its paths are made incremental, not itself; see
    `guarded`.
    """

    def _with_incremental_paths(
        self, make: Callable[[Callable[..., Any]], Incremental[..., Any]]
    ) -> Any:
        """The same function, each path evaluated by what `make` returns for it."""


def _check(f: Any, policy: Any, tuning: Any, *, algebra: Any) -> None:
    """Raise TypeError or ValueError for options of a wrong type or value."""
    if policy not in ("fast", "exact"):
        raise ValueError(f'`incremental(policy=...)` got {policy!r}; use "fast" or "exact".')
    has_tuning = tuning is None or isinstance(tuning, Tuning)
    for option, value, is_right, expected in (
        ("f", f, f is None or callable(f), "a function"),
        ("algebra=...", algebra, isinstance(algebra, bool), "True or False"),
        ("tuning=...", tuning, has_tuning, "an incrax.Tuning, or None"),
    ):
        if not is_right:
            raise wrong_option(f"incremental({option})", value, expected)
    if algebra and policy == "exact":
        raise ValueError(
            '`incremental(algebra=True)` got policy="exact": statistics are made about the point '
            "of their first use, "
            'on which the last bits depend. Use policy="fast", or leave algebra out.'
        )


class IncrementalOptions(TypedDict, total=False):
    """Options of `incremental`."""

    policy: Policy
    memory: int | None
    versions: int
    algebra: bool
    calls: int | None
    changing: Iterable[str | Iterable[str]]
    tuning: Tuning | None


@overload
def incremental(f: Callable[P, R], **options: Unpack[IncrementalOptions]) -> Incremental[P, R]: ...


@overload
def incremental(
    f: None = None, **options: Unpack[IncrementalOptions]
) -> Callable[[Callable[P, R]], Incremental[P, R]]: ...


@spelled_here
def incremental(
    f: Callable[P, R] | None = None,
    *,
    policy: Policy = "fast",
    memory: int | None = None,
    versions: int = 2,
    algebra: bool = False,
    calls: int | None = None,
    changing: Iterable[str | Iterable[str]] = (),
    tuning: Tuning | None = None,
) -> Incremental[P, R] | Callable[[Callable[P, R]], Incremental[P, R]]:
    """Make a function pay only for what changed since values were last saved.

    Promise: `incremental(f)(*args)` equals `jax.jit(f)(*args)` for every sequence of calls, up to a
    few units in the last place (different programs fuse differently). With `policy="exact"` it also
    equals, bit for bit, what a new function made with the same options returns. A call with nothing
    changed runs no equation.

    Args:
        f: pure function of pytrees of arrays and static Python values (str, None, functions), with
            any JAX transformation inside: pass `jax.value_and_grad(loss)` to save partial
            derivatives too. May be left out to use `incremental(...)` as a decorator with options.
        policy: `"fast"`, programs are fused, timed and chosen for each set of changed inputs;
            `"exact"`, the same programs compute the same values whatever was called before, so that
            equal inputs give equal bits.
        memory: bytes of saved values to keep at most, on all devices together; None: a quarter of
            the free memory, at most 2 GB, for each device that shares the inputs (just 2 GB each in
            a run of several processes). Results of functions on the host (`pure_callback`) take a
            quarter more at most, and 64 MB.
        versions: how many input points keep their saved values; 2 serve gradients by differences,
            line searches and rejected steps.
        algebra: also replace sums over rows that are polynomials of at most second degree in what
            changes (linear models, sums of squares, intensities of amplitudes) by saved statistics,
            so that the cost of a call does not depend on the number of rows. Rounding differs, in
            double precision by some 1e-12 of the result, or of the sum of its terms' sizes, at
            most; compared once with the direct form, and given up, with a line in the log, where
            the two do not agree.
        calls: how many calls will be made, if known: a plan that pays over them is compiled at the
            first call that it serves.
        changing: names of inputs, as `explain()` prints them, of which each will change alone
            ("theta[*]": each element), or tuples of names that will change together.
        tuning: how plans are chosen; see `Tuning`, where `calls` and `changing` are described.

    Returns:
        A callable with the signature of `f`, and methods that explain and prepare calls: see
        `Incremental`. Under another JAX transformation it is `f` itself.

    Raises:
        UnsupportedLeafError: at a call with an array that JAX has no type for, or a static value
            without a hash.
        DeletedInputError: at a call with a donated or deleted array.

    Cost: the first call traces and compiles once. A set of changed inputs that comes back gets a
        program of its own, which is timed against the whole function; small arrays are tracked
        element by element. The call overhead is some tens of microseconds.

    Not handled: values that are not arguments (closures are constants, as under `jax.jit`).

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(jnp.exp(x)))
        >>> x = jnp.zeros(3)
        >>> float(f(2.0, x)), float(f(3.0, x)), float(f(3.0, x))
        (6.0, 9.0, 9.0)
        >>> f.stats.unchanged
        1
    """
    _check(f, policy, tuning, algebra=algebra)
    versions = checked_count("incremental(versions=...)", versions)
    if memory is not None:
        memory = checked_count("incremental(memory=bytes)", memory, 0)
    settings = Tuning() if tuning is None else tuning
    if calls is not None or changing:
        calls = settings.calls if calls is None else calls
        settings = replace(settings, calls=calls, changing=changing or settings.changing)
    options = Options(policy, versions, memory, settings, algebra)

    def wrap(fun: Callable[P, R]) -> Any:
        if isinstance(fun, HasPaths):
            return fun._with_incremental_paths(partial(Incremental, options=options))
        return Incremental(fun, options)

    return wrap if f is None else wrap(f)
