"""Switches: whether outputs are remembered, and whether log-determinants are computed with them.

In: nothing. Out: two switches that are context managers and decorators, each thread and
asynchronous task its own.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from incrax._context import add_switch
from incrax._messages import wrong_option

SLOW_LADJ = (
    "A log-determinant is computed although `set_requires_ladj(False)` is in force, from the "
    "remembered input. This "
    "may slow down your forward and backward passes: where a log-determinant is wanted it is "
    "cheaper to compute it "
    "together with the output. Consider removing the context manager `set_requires_ladj(False)`. "
    "This is said once."
)

F = TypeVar("F", bound=Callable[..., Any])

_RECORDS: ContextVar[bool] = ContextVar("incrax_record_flow_graph", default=True)
_REQUIRES_LADJ: ContextVar[bool] = ContextVar("incrax_requires_ladj", default=True)
_ENTERED: ContextVar[tuple[bool, ...]] = ContextVar("incrax_switches_entered", default=())
"""What the switches that are in force here replaced, the innermost last."""
add_switch(_RECORDS)
add_switch(_REQUIRES_LADJ)


class _Switch(contextlib.ContextDecorator):
    """Sets a variable inside a `with` block or a decorated function; may be nested and used
    again.
    """

    _variable: ContextVar[bool]

    def __init__(self, is_on: bool) -> None:
        if not isinstance(is_on, bool):
            raise wrong_option(type(self).__name__, is_on, "True or False")
        self._is_on = is_on

    def __enter__(self) -> None:
        _ENTERED.set((*_ENTERED.get(), self._variable.get()))
        self._variable.set(self._is_on)

    def __exit__(self, *error: Any) -> None:
        *others, before = _ENTERED.get()
        _ENTERED.set(tuple(others))
        self._variable.set(before)

    def __call__(self, f: F) -> F:
        if inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f):
            raise wrong_option(
                type(self).__name__, f, "a function that is no generator; use the switch inside"
            )
        if not inspect.iscoroutinefunction(f):
            return super().__call__(f)

        @functools.wraps(f)
        async def switched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await f(*args, **kwargs)

        return cast(Any, switched)


class set_record_flow_graph(_Switch):  # noqa: N801
    """Whether outputs of bijections are remembered, and answers taken from memory. On by default.

    A context manager and a decorator; in force in this thread, or asynchronous task, only. With it
    off, bijections that remember are the plain bijections: nothing is recorded, nothing is looked
    up.

    Source: `set_record_flow_graph` of facebookincubator/flowtorch#89.

    Raises:
        TypeError: the argument is no bool.

    Example:
        >>> from incrax import bijectors
        >>> with bijectors.set_record_flow_graph(False):
        ...     bijectors.is_recording()
        False
    """

    _variable = _RECORDS


class set_requires_ladj(_Switch):  # noqa: N801
    """Whether a pass also computes log|det J|. On by default; `requires_ladj=` of a call has
    precedence.

    A context manager and a decorator; in force in this thread, or asynchronous task, only. With it
    off, the log-determinant is not computed with the output; `log_abs_det_jacobian` still gives it,
    computed from the remembered input, and warns once per process. Independent of differentiation.

    Source: `set_requires_ladj` of facebookincubator/flowtorch#89.

    Raises:
        TypeError: the argument is no bool.

    Example:
        >>> from incrax import bijectors
        >>> with bijectors.set_requires_ladj(False):
        ...     bijectors.requires_ladj()
        False
    """

    _variable = _REQUIRES_LADJ


def is_recording() -> bool:
    """Whether outputs are remembered here; see `set_record_flow_graph`."""
    return _RECORDS.get()


def requires_ladj(given: bool | None = None) -> bool:
    """Whether a pass computes the log-determinant here: as given, or else as switched; see
    `set_requires_ladj`.
    """
    return _REQUIRES_LADJ.get() if given is None else given


def warn_of_slow_ladj() -> None:
    """Say once per process that a log-determinant is computed where it was switched off."""
    if not requires_ladj():
        _warn_once()


@functools.cache
def _warn_once() -> None:
    warnings.warn(SLOW_LADJ, UserWarning, stacklevel=4)
