"""How paths are recorded: the direct way where it fits the installed JAX, else by running again and again.

In: a function of flat arrays. Out: a recording. It must not know what recordings are for.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from incrax.control_flow.tapes import oracle, recording
from incrax.control_flow.tapes.messages import not_fitting
from incrax.control_flow.tapes.recording import Recording

Record = Callable[..., Recording]


class _Chosen:
    """The way that is used, found out at the first recording."""

    record: Record | None = None


def record(fun: Any, leaves: Sequence[Any], avals: Sequence[Any]) -> Recording:
    """Record one run of `fun(*leaves)`."""
    if _Chosen.record is None:
        _Chosen.record = _fitting()
    return _Chosen.record(fun, leaves, avals)


def _fitting() -> Record:
    """The direct way if it records a small function as it should; else the other, with a warning."""
    try:
        reason = trial(recording.record)
    except Exception as error:  # noqa: BLE001 - whatever the inner interface raises
        reason = f"{type(error).__name__}: {error}"
    if reason is None:
        return recording.record
    warnings.warn(not_fitting(jax.__version__, reason), UserWarning, stacklevel=6)
    return oracle.record


def trial(way: Record) -> str | None:
    """What is wrong with a way of recording; None if it records a small function as it should."""

    def fun(x: Any) -> list[Any]:
        y = jax.jit(lambda x: 2 * x)(x)
        return [y + 1 if y > 1 else y - 1]

    leaf = jnp.float32(1.0)
    found = way(fun, [leaf], [jax.typeof(leaf)])
    if [guard.key for guard in found.guards] != [True]:
        return f"a branch gave the guards {found.guards}"
    names = [eqn.primitive.name for eqn in found.program.eqns]
    return None if "add" in names and "sub" not in names else f"a branch gave the program {found.program}"


@contextlib.contextmanager
def recorded_by(way: Record) -> Iterator[None]:
    """Record in one way inside the block, for tests of both."""
    before, _Chosen.record = _Chosen.record, way
    try:
        yield
    finally:
        _Chosen.record = before
