"""What changes how a function is traced and compiled, beside its arguments.

In: JAX's configuration, switches of incrax. Out: a key that is equal where both are.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar

from incrax import _jax

switches: list[ContextVar[bool]] = []
"""All that there are: of models, none where no model is used."""

_NONE: frozenset[str] = frozenset()


def add_switch(variable: ContextVar[bool]) -> None:
    """From now on a switch, which is on where nobody turned it off, is part of the key."""
    switches.append(variable)


def are_switches_on() -> bool:
    """Whether nobody turned a switch off here."""
    return all([variable.get() for variable in switches])


def context_key() -> Hashable:
    """JAX's configuration and the switches that are off here; a switch that is added, and on,
    changes nothing.
    """
    nans, infs, prng = _jax.TRACED_FLAGS
    off = _NONE
    if switches:
        off = frozenset([variable.name for variable in switches if not variable.get()])
    return _jax.trace_context(), nans.value, infs.value, prng.value, off
