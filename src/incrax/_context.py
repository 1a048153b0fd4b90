"""What changes how a function is traced and compiled, beside its arguments.

In: JAX's configuration, switches of incrax. Out: a key that is equal where both are.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any

from incrax import _jax

_switches: list[ContextVar[Any]] = []


def add_switch(variable: ContextVar[Any]) -> None:
    """From now on the value of a variable, which must be hashable, is part of the key."""
    _switches.append(variable)


def context_key() -> Hashable:
    """JAX's configuration and all switches, as they are here."""
    return _jax.config_key(), tuple(variable.get() for variable in _switches)
