"""Verification: results compared with fresh evaluations, and the saved value that is to blame
named.

In: an engine, leaves, and the outputs that a call returned. Out: nothing, or an error. It must not
change what is saved unless it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any

from incrax import _jax
from incrax._jax import Equation, Var
from incrax._messages import not_deterministic, stale_result
from incrax._program import Values, written_vars
from incrax.engine.call.engine import Engine
from incrax.engine.inputs.leaves import LeafValue
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.plan.plan import plan_fill
from incrax.engine.policy.agreement import difference
from incrax.engine.program.simplify import needed_equations

_active: ContextVar[verify | None] = ContextVar("incrax.verify", default=None)


class verify(ContextDecorator):  # noqa: N801
    """Evaluate every n-th call from scratch as well, and raise where the results differ.

    Args:
        every: one in so many calls of incremental functions, of all of them together, is verified.
        rtol: largest difference allowed, relative to the largest element of an output; None: the
            square root of the spacing of its numbers at one (1.5e-8 in double precision).
        atol: largest difference allowed in any case.

    Raises:
        StaleResultError: inside, by a call whose result differs; it names the inputs that changed
            and the first equation whose saved value is stale, and says so if two fresh evaluations
            differ as well.

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
        if not isinstance(every, int) or every < 1:
            raise ValueError(
                f"`verify(every=...)` got {every!r}; it is a number of calls, at least 1."
            )
        self.every = every
        self.rtol = rtol
        self.atol = atol
        self.count: int = 0
        self._tokens: list[Any] = []

    def __enter__(self) -> verify:
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, *exception: object) -> None:
        _active.reset(self._tokens.pop())

    def is_due(self) -> bool:
        """Count a call; whether it is to be verified."""
        self.count += 1
        return self.count % self.every == 0


verifying = _active.get
"""The verification that the present context asks for, if any."""


def due_verification() -> verify | None:
    """What the present context asks of this call."""
    settings = _active.get()
    return settings if settings is not None and settings.is_due() else None


def check_outputs(
    name: str,
    outputs: Values,
    evaluate: Callable[[], Values],
    blame: Callable[[], tuple[Sequence[str], str]],
    clear: Callable[[], None],
    settings: verify,
) -> None:
    """Compare outputs with fresh ones; `blame` names what changed, and what is stale.

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
        raise stale_result(name, *worst, *blame())
    finally:
        clear()


def stale_in(engine: Engine, leaves: Values, settings: verify) -> tuple[Sequence[str], str]:
    """Which inputs of its last call changed, and the first equation whose saved value is stale."""
    record = engine.last
    changed = [] if record is None else mask_paths(engine.paths, engine.layout, record.dirty)
    return changed, _first_stale(engine, leaves, settings)


def _worst(outputs: Values, fresh: Values, settings: verify) -> tuple[str, float] | None:
    """The first output that differs by too much, as ` [k]`, and by how much."""
    for number, (x, y) in enumerate(zip(outputs, fresh, strict=True)):
        error = difference(x, y, rtol=settings.rtol, atol=settings.atol)
        if error is not None:
            return (f" [{number}]" if len(fresh) > 1 else ""), error
    return None


def _first_stale(engine: Engine, leaves: Values, settings: verify) -> str:
    """Which saved value of the latest version is wrong: the first in program order, by its
    equation.
    """
    state = engine.store.states[-1]
    facts = engine.facts
    order = [(var, eqn) for eqn in facts.eqns for var in written_vars(eqn) if var in state.saved]
    variables: list[Var] = [var for var, _ in order]
    if variables:
        plan = plan_fill(facts, variables, lambda _: False)
        executable = engine.chooser.compiler.compile_plan(plan)
        fresh = engine.calls.anew(lambda: executable([LeafValue(x).feed for x in leaves], []))
        assert executable.plan is not None
        found = dict(zip(executable.plan.saves, fresh, strict=True))
        for var, eqn in order:
            value = found[var]
            if (
                difference(state.saved[var], value, rtol=settings.rtol, atol=settings.atol)
                is not None
            ):
                line = _jax.source_line(eqn)
                shown = (
                    f"{var.aval.str_short(short_dtypes=True)} of "
                    f"`{eqn.primitive.name}`{line and f' at {line}'}"
                )
                return f"The first saved value that is stale: {shown}.{_narrowed(facts.eqns, var)}"
    return "No saved value is stale."


def _narrowed(eqns: Sequence[Equation], var: Var) -> str:
    """Which claims of the user about dependence a value rests on."""
    names = [
        eqn.params["name"] for eqn in needed_equations(eqns, [var]) if eqn.params.get("is_narrowed")
    ]
    shown = (
        " and ".join(f"`{name}`" for name in dict.fromkeys(names) if name)
        or "a value without a name"
    )
    return (
        f" It rests on the `deps` given for {shown}: if these leave out an input, correct them."
        if names
        else ""
    )
