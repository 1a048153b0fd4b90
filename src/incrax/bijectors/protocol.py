"""What incrax asks of a bijection.

In: nothing. Out: the protocol that an adapter fulfils, and the result of a pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Pass(NamedTuple):
    """What one pass through a bijection gives, forward or inverse."""

    output: Any
    """y of a forward pass, x of an inverse one."""
    ladj: Any
    """log|det J| of this pass at its input, or None where it was not required."""
    intermediates: Any
    """What the log-determinant can be computed from without the pass, or None; for a chain, the passes of its parts,
    the last without its output, which is that of the chain."""


class Adapter(Protocol):
    """A form of bijection: how to evaluate it. Stateless; `params` is the bijection itself, a pytree of its arrays.

    Laws, for all x, y = forward(params, x, context, requires_ladj=True):
        inverse(params, y.output, context, ...).output == x
        ladj(params, x, y.output, context, y.intermediates) == y.ladj == log|det dy/dx|
        inverse(params, y.output, context, requires_ladj=True).ladj == -y.ladj
    """

    def forward(self, params: Any, x: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """y, and log|det dy/dx| if it is required."""
        ...

    def inverse(self, params: Any, y: Any, context: Any, *, requires_ladj: bool) -> Pass:
        """x, and log|det dx/dy| if it is required."""
        ...

    def ladj(self, params: Any, x: Any, y: Any, context: Any, intermediates: Any) -> Any:
        """log|det dy/dx| at x, from what the forward pass kept."""
        ...

    def parts(self, params: Any) -> tuple[Any, ...]:
        """The bijections that a chain applies, the first first; none if it is no chain."""
        ...
