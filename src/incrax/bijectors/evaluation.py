"""Passes through a bijection, compiled where that is safe.

In: a bijection as it is now. Out: `Evaluator`, which evaluates passes and log-determinants.
Invariant: what a program is compiled for (the `Skeleton`) is compared by value and handed over with
every call, so that a program is always traced from a bijection as it is now.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax.bijectors.adapters import Adapter
from incrax.bijectors.snapshots import BijectionWatch, Snapshot, watch
from incrax.engine.inputs.frames import Frame, framed
from incrax.engine.rewrites.splitting import InTwo


class Evaluated(NamedTuple):
    """What one pass through a bijection gives, forward or inverse."""

    output: Any
    """y of a forward pass, x of an inverse one."""
    ladj: Any
    """log|det J| of this pass at its input, or None where it was not required."""
    kept: tuple[Any, ...] | None
    """What the log-determinant can be computed from without the pass, or None."""


class Skeleton:
    """A bijection without its leaves that are arrays. Hashable."""

    __slots__ = ("adapter", "constants", "frame", "snapshot")

    def __init__(self, adapter: Adapter, seen: BijectionWatch, frame: Frame) -> None:
        self.adapter: Adapter = adapter
        self.frame: Frame = frame
        self.snapshot: Snapshot = seen.snapshot
        self.constants: Sequence[Any] = seen.arrays
        """Held, as the snapshot refers to them weakly."""

    def __hash__(self) -> int:
        return hash(self.snapshot.code)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Skeleton) and self.snapshot.is_same(other.snapshot)
        )

    def apply(self, direction: str, num_arrays: int, *operands: Any) -> tuple[Any, Any]:
        """Output and log-determinant of a pass, of the arrays, the value and the context if there
        is one.
        """
        bijection = self.frame.filled(operands[:num_arrays])
        value, *contexts = operands[num_arrays:]
        return self.adapter(bijection, direction, value, *(contexts or [None]))


def _as_list(context: Any) -> list[Any]:
    return [] if context is None else [context]


def _skeleton(bijection: Any, adapter: Adapter) -> tuple[Skeleton | None, tuple[Any, ...]]:
    """What the programs are compiled for, and their arrays; None where compiling is not safe."""
    leaves, treedef = jax.tree.flatten(bijection)
    if len(leaves) == 1 and leaves[0] is bijection:
        return None, ()
    frame, arrays = framed(treedef, leaves, [isinstance(leaf, jax.Array) for leaf in leaves])
    try:
        seen = watch(jax.tree.unflatten(treedef, frame.leaves))
    except Exception:  # of a class that takes arrays only
        return None, ()
    if seen.snapshot.is_opaque or seen.snapshot.is_traced:  # a tracer would be compiled in
        return None, ()
    return Skeleton(adapter, seen, frame), tuple(arrays)


def _compiled(direction: str) -> Any:
    """The passes of all bijections in one direction, each compiled for its skeleton."""

    def bijection_pass(
        skeleton: Skeleton, requires_ladj: bool, arrays: Sequence[Any], value, context
    ) -> Evaluated:
        apply = functools.partial(skeleton.apply, direction, len(arrays))
        inputs = [*arrays, value, *_as_list(context)]
        if requires_ladj:
            return Evaluated(*apply(*inputs), None)
        output, kept = InTwo(apply, inputs).first()
        return Evaluated(output, None, tuple(kept))

    bijection_pass.__name__ = f"bijection_{direction}"
    return jax.jit(bijection_pass, static_argnums=(0, 1))


_PASSES = {direction: _compiled(direction) for direction in ("forward", "inverse")}


@functools.partial(jax.jit, static_argnums=(0, 1))
def bijection_ladj(
    skeleton: Skeleton,
    direction: str,
    arrays: Sequence[Any],
    value: Any,
    context: Any,
    kept: Any,
) -> Any:
    """The log-determinant of a pass."""
    apply = functools.partial(skeleton.apply, direction, len(arrays))
    return InTwo(apply, [*arrays, value, *_as_list(context)]).second(kept)


class Evaluator:
    """The passes through one bijection as it is now, compiled where that is safe.

    Under a transformation a compiled pass is a `jit` equation. A concrete result is an array object
    of its own, unless a derivative was taken of an identity.
    """

    def __init__(self, bijection: Any, adapter: Adapter) -> None:
        self._skeleton, self._arrays = _skeleton(bijection, adapter)
        self._apply = functools.partial(adapter, bijection)

    def run(self, direction: str, value: Any, context: Any, requires_ladj: bool) -> Evaluated:
        """One pass."""
        skeleton = self._compiled()
        if skeleton is not None:
            found = _PASSES[direction](skeleton, requires_ladj, self._arrays, value, context)
            # JAX hands on an input that comes back, as that of an identity does.
            given = (value, context, *self._arrays)
            is_given = any(found.output is x for x in given)
            return found._replace(output=_own(found.output)) if is_given else found
        output, ladj = self._apply(direction, value, context)
        return Evaluated(_own(output), _own(ladj) if requires_ladj else None, None)

    def ladj(self, direction: str, value: Any, context: Any, kept: Any) -> Any:
        """The log-determinant of a pass."""
        skeleton = self._compiled()
        if skeleton is not None:
            return bijection_ladj(skeleton, direction, self._arrays, value, context, kept)
        return _own(self._apply(direction, value, context)[1])

    def _compiled(self) -> Skeleton | None:
        return None if _jax.is_jit_disabled() else self._skeleton


def _own(x: Any) -> Any:
    """An array that is no other object: what runs without compilation may hand on its input, or a
    parameter.
    """
    return jnp.array(x) if isinstance(x, (_jax.ArrayImpl, np.ndarray)) else x
