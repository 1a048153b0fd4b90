"""Bijections one after another, and the other way round, of any form.

In: bijections of any form that has an adapter. Out: `Compose`, every part of which is recorded, and `Invert`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax.bijectors.adapters import adapter_of, ladj_through, through
from incrax.bijectors.bijection import Bijection, node, set_fields
from incrax.bijectors.messages import shapes_of_parts_differ, wrong_size
from incrax.bijectors.protocol import Pass


@node("parts")
class Compose(Bijection):
    """y = f_n(... f_2(f_1(x))). As FlowJAX's `Chain`, but of parts that also keep their intermediates.

    Args:
        parts: bijections of any form, the first first; those that tell a `shape` must tell the same. The context goes
            to every part that takes one.

    Cost of the log-determinant: of those of the parts; the outputs between them are kept.

    Source: `Compose` of FlowTorch.

    Raises:
        BijectionArgumentError: there is no part, or the shapes differ.
    """

    parts: tuple[Any, ...]

    def __init__(self, parts: Sequence[Any]) -> None:
        if not parts:
            raise wrong_size("Compose", "parts", parts, "one or more bijections")
        for part in parts:
            adapter_of(part)
        shapes = [part.shape for part in parts if getattr(part, "shape", None) is not None]
        if len(set(shapes)) > 1:
            raise shapes_of_parts_differ(shapes)
        contexts = [part.cond_shape for part in parts if getattr(part, "cond_shape", None) is not None]
        set_fields(self, shape=shapes[0] if shapes else (), cond_shape=contexts[0] if contexts else None)
        set_fields(self, parts=tuple(parts))

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; the intermediates are the passes of the parts."""
        return through(self.parts, "forward", x, context, requires_ladj)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; the intermediates are the passes of the parts, the last first."""
        return through(self.parts[::-1], "inverse", y, context, requires_ladj)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`; of the intermediates of the forward pass only."""
        return ladj_through(self.parts, x, y, context, intermediates)


@node("bijection")
class Invert(Bijection):
    """The inverse of a bijection as a bijection. As FlowJAX's, but computes no log-determinant unasked.

    Source: `Invert` of FlowTorch.
    """

    bijection: Any

    def __init__(self, bijection: Any) -> None:
        adapter_of(bijection)
        shape, cond_shape = getattr(bijection, "shape", ()), getattr(bijection, "cond_shape", None)
        set_fields(self, shape=shape, cond_shape=cond_shape, bijection=bijection)

    @property
    def parts(self) -> tuple[Invert, ...]:
        """The inverses of the parts, the last first; none if the bijection is no chain."""
        return tuple(map(Invert, adapter_of(self.bijection).parts(self.bijection)[::-1]))

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; what an own bijection keeps of its inverse serves here as well."""
        if parts := self.parts:
            return through(parts, "forward", x, context, requires_ladj)
        return self._pass("inverse", x, context, requires_ladj)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        if parts := self.parts:
            return through(parts[::-1], "inverse", y, context, requires_ladj)
        return self._pass("forward", y, context, requires_ladj)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`; computed at the output, as log|det dy/dx| of an inverse is -log|det| of the bijection."""
        if y is None:
            y = self.forward(x, context, requires_ladj=False).output
        if parts := self.parts:
            return ladj_through(parts, x, y, context, intermediates)
        return -adapter_of(self.bijection).ladj(self.bijection, y, x, context, intermediates)

    def _pass(self, direction: str, value: Any, context: Any, requires_ladj: bool) -> Pass:
        run = getattr(adapter_of(self.bijection), direction)
        found = run(self.bijection, value, context, requires_ladj=requires_ladj)
        keeps = isinstance(self.bijection, Bijection)
        return found if keeps else found._replace(intermediates=None)
