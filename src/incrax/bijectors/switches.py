"""Switches: whether outputs are remembered, and whether log-determinants are computed with them.

In: nothing. Out: two switches that are context managers and decorators, each thread and
asynchronous task its own.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeAlias

from incrax._context import add_switch
from incrax._messages import wrong_option

SLOW_LADJ = (
    "A log-determinant is computed although `set_requires_ladj(False)` is in force, from the "
    "remembered input. This may slow down your forward and backward passes: where a "
    "log-determinant is wanted it is cheaper to compute it together with the output. Consider "
    "removing the context manager `set_requires_ladj(False)`. This is said once."
)

_RECORDS: ContextVar[bool] = ContextVar("incrax_record_flow_graph", default=True)
_REQUIRES_LADJ: ContextVar[bool] = ContextVar("incrax_requires_ladj", default=True)
add_switch(_RECORDS)
add_switch(_REQUIRES_LADJ)

Switch: TypeAlias = "contextlib._GeneratorContextManager[None]"
"""A context manager of one `with` block, or a decorator."""


def set_record_flow_graph(
    is_on: bool,
) -> Switch:
    """Whether outputs of bijections are remembered, and answers taken from memory. On by default.

    A context manager and a decorator of plain functions; in force in this thread, or asynchronous
    task, only. With it off, bijections that remember are the plain bijections: nothing is recorded,
    nothing is looked up.

    Source: `set_record_flow_graph` of facebookincubator/flowtorch#89.

    Raises:
        TypeError: the argument is no bool.

    Example:
        >>> from incrax import bijectors
        >>> with bijectors.set_record_flow_graph(False):
        ...     bijectors.is_recording()
        False
    """
    return _switched(_RECORDS, _checked("set_record_flow_graph", is_on))


def set_requires_ladj(
    is_on: bool,
) -> Switch:
    """Whether a pass also computes log|det J|. On by default; `requires_ladj=` of a call has
    precedence.

    A context manager and a decorator of plain functions; in force in this thread, or asynchronous
    task, only. With it off, the log-determinant is not computed with the output;
    `log_abs_det_jacobian` still gives it, computed from the remembered input, and warns once per
    process. Independent of differentiation.

    Source: `set_requires_ladj` of facebookincubator/flowtorch#89.

    Raises:
        TypeError: the argument is no bool.

    Example:
        >>> from incrax import bijectors
        >>> with bijectors.set_requires_ladj(False):
        ...     bijectors.requires_ladj()
        False
    """
    return _switched(_REQUIRES_LADJ, _checked("set_requires_ladj", is_on))


@contextlib.contextmanager
def _switched(variable: ContextVar[bool], is_on: bool) -> Iterator[None]:
    before = variable.set(is_on)
    try:
        yield
    finally:
        variable.reset(before)


def _checked(name: str, is_on: bool) -> bool:
    if not isinstance(is_on, bool):
        raise wrong_option(name, is_on, "True or False")
    return is_on


def is_recording() -> bool:
    """Whether outputs are remembered here; see `set_record_flow_graph`.

    Example:
        >>> from incrax import bijectors
        >>> with bijectors.set_record_flow_graph(False):
        ...     bijectors.is_recording()
        False
    """
    return _RECORDS.get()


def requires_ladj(given: bool | None = None) -> bool:
    """Whether a pass computes the log-determinant here: as given, or else as switched; see
    `set_requires_ladj`.

    Example:
        >>> from incrax import bijectors
        >>> with bijectors.set_requires_ladj(False):
        ...     bijectors.requires_ladj(), bijectors.requires_ladj(True)
        (False, True)
    """
    return _REQUIRES_LADJ.get() if given is None else given


def warn_of_slow_ladj() -> None:
    """Say once per process that a log-determinant is computed where it was switched off."""
    if not requires_ladj():
        _warn_once()


@functools.cache
def _warn_once() -> None:
    warnings.warn(SLOW_LADJ, UserWarning, stacklevel=4)
