"""What the log says of a function: traces and why, plans, choices, evictions, bypasses.

Logger `incrax`: INFO for what costs time or memory now and then, DEBUG for each choice.

In: what was done. Out: lines of the log. It must not change what is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from incrax._jax import Var, aval_bytes, short_type
from incrax._messages import first_few
from incrax._table import seconds_text
from incrax.engine.inputs.paths import mask_paths
from incrax.engine.inputs.signature import Signature, what_differs
from incrax.engine.plan.plan import Plan
from incrax.engine.policy.candidates import Entry
from incrax.engine.program.dependence import Layout

logger = logging.getLogger("incrax")


class Journal(NamedTuple):
    """Lines about one engine: the function's name, the names of its inputs, and where their bits
    are.
    """

    name: str
    paths: Sequence[str]
    layout: Layout

    def planned(self, entry: Entry, plan: Plan, num_equations: int, whole_s: float | None) -> None:
        """A program was made for a dirty set; the whole program needs so long, if it was timed."""
        promise = f"; estimated {seconds_text(plan.seconds)}, the whole function takes "
        logger.info(
            "%s: new plan for changes of %s, which came up %s: runs %d equations of a function of "
            "%d, loads %d saved "
            "values%s",
            self.name,
            self._inputs(entry.dirty),
            "once" if entry.count == 1 else f"{entry.count} times",
            len(plan.eqns),
            num_equations,
            len(plan.loads),
            "" if whole_s is None else promise + seconds_text(whole_s),
        )

    def chosen(self, entry: Entry) -> None:
        """What serves a dirty set is known."""
        logger.debug(
            "%s: changes of %s are served by %s (%s)",
            self.name,
            self._inputs(entry.dirty),
            entry.candidate,
            entry.reason,
        )

    def dropped_program(self, entry: Entry, max_plans: int) -> None:
        """A dirty set's program made room for another."""
        logger.info(
            "%s: the plan for changes of %s made room for another, used more often: %d are kept",
            self.name,
            self._inputs(entry.dirty),
            max_plans,
        )

    def evicted(self, variables: Sequence[Var], budget_bytes: int) -> int:
        """Saved values, if any, were dropped because of the budget; how many."""
        if not variables:
            return 0
        total = sum(aval_bytes(var.aval) for var in variables)
        logger.info(
            "%s: dropped %d saved values, %.3g MB (%s): more than the budget of %.3g MB had to be "
            "kept",
            self.name,
            len(variables),
            total / 1e6,
            first_few([short_type(var.aval) for var in variables]),
            budget_bytes / 1e6,
        )
        return len(variables)

    def bypassed(self, num_calls: int, verdict: str) -> None:
        """Saving did not pay of late."""
        logger.info(
            "%s: the next %d calls are those of jax.jit, as saving did not pay of late; is it worth "
            "it so far: %s",
            self.name,
            num_calls,
            verdict,
        )

    def _inputs(self, dirty: int) -> str:
        return (
            first_few([f"`{path}`" for path in mask_paths(self.paths, self.layout, dirty)])
            or "nothing"
        )


def note_trace(
    name: str, signature: Signature, known: Iterable[Signature], max_signatures: int
) -> None:
    """A function was traced for a new signature; why, if it was traced before."""
    others = [other for other in known if other is not signature]
    if not others:
        logger.info(
            "%s: traced for the first time, with %d inputs", name, len(signature.dynamic_paths)
        )
        return
    if logger.isEnabledFor(logging.INFO):
        logger.info(
            "%s: traced again, traces kept: %d; %s, compared with the most similar one",
            name,
            min(len(others) + 1, max_signatures),
            what_differs(signature, others),
        )


def note_forgotten(name: str, max_signatures: int) -> None:
    """A signature made room for another."""
    logger.info(
        "%s: the trace used least recently, with its saved values and plans, made room for "
        "another: %d are kept",
        name,
        max_signatures,
    )
