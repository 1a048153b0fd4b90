"""State of the process that functions tell of, which no captured object holds: modes, contexts, levels of loggers.

In: functions, objects and frames. Out: what to compare. It must not know about captured values.
"""

from __future__ import annotations

import decimal
import logging
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class ProcessState(NamedTuple):
    """Something that functions of Python or of packages read, by name."""

    name: str
    read: Callable[[], Any]
    """Gives a value that is compared by `==`."""


def settings_of(context: decimal.Context) -> Any:
    """A context of decimal numbers, without its flags, which computing sets."""
    traps = tuple(signal for signal, is_set in context.traps.items() if is_set)
    return context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps


DECIMAL = ProcessState("the context of `decimal`", lambda: settings_of(decimal.getcontext()))
_ENVIRONMENT = ProcessState("os.environ", lambda: dict(os.environ))

_BUILT_IN: dict[int, ProcessState] = {
    id(decimal.getcontext): DECIMAL,
    id(sys.getrecursionlimit): ProcessState("the limit of recursion", sys.getrecursionlimit),
    id(threading.get_ident): ProcessState("the thread", threading.get_ident),
    id(os.getpid): ProcessState("the process", os.getpid),
}
"""By built-in functions that read it."""

_BY_CODE: dict[types.CodeType, ProcessState] = {
    np.geterr.__code__: ProcessState("the modes of `np.seterr`", np.geterr),
    os.getenv.__code__: _ENVIRONMENT,
}
"""By the code of functions that read it."""

_ASKS_LOGGER = {logging.Logger.isEnabledFor.__code__, logging.Logger.getEffectiveLevel.__code__}


def read_by_built_in(function: Any) -> ProcessState | None:
    """What a built-in function reads of the process."""
    return _BUILT_IN.get(id(function))


def read_by_frame(frame: types.FrameType) -> Any:
    """What a function that begins to run reads of the process, or the logger that it asks; None for most."""
    if frame.f_code in _ASKS_LOGGER:
        return frame.f_locals.get("self")
    return _BY_CODE.get(frame.f_code)


def is_decimal(value: Any) -> bool:
    """Whether arithmetic with a value depends on the context of decimal numbers."""
    return value is decimal or value is decimal.Decimal or isinstance(value, decimal.Decimal)


def level_of(logger: logging.Logger) -> Any:
    """What code can ask a logger; not its attributes, as it saves answers there."""
    return logger.getEffectiveLevel(), logger.level, logger.disabled, logger.propagate, logger.manager.disable
