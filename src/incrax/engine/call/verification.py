"""Verification: results compared with fresh evaluations.

In: the outputs that a call returned, and what evaluates it from scratch. Out: nothing, or an error, before
which what is saved is dropped; else that must stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar

from incrax._messages import checked_count, not_deterministic, stale_result
from incrax._program import Values
from incrax.engine.call.agreement import difference

_active: ContextVar[tuple[verify, ...]] = ContextVar("incrax.verify", default=())
"""The blocks that are open here, the innermost last. As a decorator, one object opens some in several
threads at a time.
"""


class verify(ContextDecorator):  # noqa: N801
    """Evaluate every n-th call from scratch as well, and raise where the results differ.

    Args:
        every: one in so many calls of incremental functions, of all of them together, is verified.
        rtol: largest difference allowed, relative to the largest element of an output; None: the
            square root of the spacing of its numbers at one (1.5e-8 in double precision).
        atol: largest difference allowed in any case.

    Raises:
        StaleResultError: inside, by a call whose result differs; it names the inputs that changed,
            and says so if two fresh evaluations differ as well.

    Cost: a fresh evaluation and the transfer of both results for each verified call. Calls under a
        transformation and steps of the pure form are not verified.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> f = incrax.incremental(lambda scale, x: scale * jnp.sum(x))
        >>> with incrax.verify(every=2):
        ...     results = [float(f(scale, jnp.ones(3))) for scale in (1.0, 2.0)]
        >>> results
        [3.0, 6.0]
    """

    def __init__(self, every: int = 1, *, rtol: float | None = None, atol: float = 0.0) -> None:
        self.every: int = checked_count("verify(every=...)", every)
        self.rtol = rtol
        self.atol = atol
        self._count: int = 0

    def __enter__(self) -> verify:
        _active.set((*_active.get(), self))
        return self

    def __exit__(self, *exception: object) -> None:
        _active.set(_active.get()[:-1])

    def _is_due(self) -> bool:
        """Count a call; whether it is to be verified."""
        self._count += 1
        return self._count % self.every == 0


verifying = _active.get
"""The verifications that the present context asks for."""


def due_verification() -> verify | None:
    """What the innermost of these asks of this call."""
    open_blocks = _active.get()
    return open_blocks[-1] if open_blocks and open_blocks[-1]._is_due() else None


def check_outputs(
    name: str,
    outputs: Values,
    evaluate: Callable[[], Values],
    changed: Sequence[str],
    clear: Callable[[], None],
    settings: verify,
) -> None:
    """Compare outputs of a call in which some inputs changed with fresh ones.

    Raises:
        StaleResultError: they differ; `clear` has dropped the saved values.
    """
    fresh = evaluate()
    worst = _worst(outputs, fresh, settings)
    if worst is None:
        return
    again = _worst(evaluate(), fresh, settings)
    try:
        if again is not None:
            raise not_deterministic(name, *again)
        raise stale_result(name, *worst, changed)
    finally:
        clear()


def _worst(outputs: Values, fresh: Values, settings: verify) -> tuple[str, float] | None:
    """The first output that differs by too much, as ` [k]`, and by how much."""
    for number, (x, y) in enumerate(zip(outputs, fresh, strict=True)):
        error = difference(x, y, rtol=settings.rtol, atol=settings.atol)
        if error is not None:
            return (f" [{number}]" if len(fresh) > 1 else ""), error
    return None
