"""Assertions of users' own tests: what the last call of a function ran, and what it did not.

In: an incremental function. Out: nothing, or an AssertionError that shows what ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from incrax import _jax
from incrax._errors import UnknownInputError, not_called, not_incremental, unknown_work
from incrax._incremental import Incremental
from incrax._jax import Equation, Var
from incrax.facts.program import read_vars, written_vars
from incrax.planning.facts import Facts
from incrax.reports.explain import equations_run
from incrax.running.engine import Engine
from incrax.running.paths import paths_mask
from incrax.running.record import Record

NUM_SHOWN = 10
"""Equations that a message lists."""

Problem = tuple[str, Sequence[Equation]]

_FUNCTION = re.compile(r"\((?P<name>[^()]*(?:<[^>]*>)?[^()]*)\)$")


def assert_ran(
    f: Incremental[..., Any],
    only: Iterable[str] | None = None,
    *,
    never: Iterable[str] = (),
    at_most: int | None = None,
) -> None:
    """Check in a test that the last call of a function ran what it should, and nothing else.

    A name is that of an input, as `explain()` prints it, and stands for the equations that depend on it
    (`"params['mu']"`, an element `"theta[3]"`, a prefix `"params"`); of a JAX primitive (`"exp"`); of a Python function
    whose lines made equations (`"resolution"`); or of a value marked by `keep(x, name=...)` or `cached`.

    Args:
        f: what `incremental`, `grad` and the like return, after a call.
        only: each equation that ran must belong to one of these; `()` if nothing may have run. None: no such check.
        never: no equation that ran may belong to one of these.
        at_most: how many equations may have run.

    Raises:
        AssertionError: something else ran. The message lists it, with what changed and what served the call.
        UnknownInputError: a name stands for nothing in the function.
        NotCalledError: there was no call, or none that is tracked.

    The engine may run all of a function that is cheap to run, since that is faster than to load what was saved. A test
    of dependence says `incremental(f, tuning=Tuning(planner="minimal"))`, which runs just what a change reaches.

    Cost: reads the record of the last call; nothing is evaluated.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> exact = incrax.Tuning(planner="minimal")
        >>> f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(a)) + jnp.sum(jnp.sin(b)), tuning=exact)
        >>> x = jnp.ones(3)
        >>> y = f(x, x), f(x, 2 * x)
        >>> incrax.assert_ran(f, only=["b"], never=["exp"])
    """
    engine, record = _last(f)
    ran = list(equations_run(engine, record))
    work = _Work(engine, ran)
    wanted = None if only is None else [work.named(name) for name in only]
    unwanted = [(name, work.named(name)) for name in never]
    problems: list[Problem] = []
    if wanted is not None:
        others = [eqn for eqn in ran if not any(belongs(eqn) for belongs in wanted)]
        allowed = ", ".join(f"`{name}`" for name in only or ()) or "nothing"
        text = f"{len(others)} equations ran that belong to none of what may run ({allowed})"
        problems += [(text, others)] if others else []
    for name, belongs in unwanted:
        found = [eqn for eqn in ran if belongs(eqn)]
        problems += [(f"{len(found)} equations of `{name}` ran, and none may", found)] if found else []
    if at_most is not None and len(ran) > at_most:
        problems.append((f"{len(ran)} equations ran, and at most {at_most} may", ran))
    if problems:
        raise AssertionError(_message(f, engine, record, problems))


def _last(f: Any) -> tuple[Engine, Record]:
    """The engine of the last call, of `Rows` that of one of the chunks, and what it did."""
    if not isinstance(f, Incremental):
        raise not_incremental("assert_ran", type(f).__name__)
    traced, rows = f._traces.latest, f._rows.latest
    engine = None if traced is None else traced.engine
    if engine is None and rows is not None and rows.last is not None:
        engine = rows.last.engine
    if engine is None or engine.last is None:
        raise not_called("assert_ran()")
    return engine, engine.last


class _Work(NamedTuple):
    """The work of an engine, and what of it ran last."""

    engine: Engine
    ran: Sequence[Equation]

    def named(self, name: str) -> Callable[[Equation], bool]:
        """Whether an equation belongs to a name.

        Raises:
            UnknownInputError: it stands for nothing.
        """
        facts = self.engine.facts
        eqns = [*facts.program.eqns, *self.ran]
        tests = [test for test in (self._of_input(name), _of_kept(facts, name)) if test is not None]
        if any(eqn.primitive.name == name for eqn in eqns):
            tests.append(lambda eqn: eqn.primitive.name == name)
        if any(_function(eqn) == name for eqn in eqns):
            tests.append(lambda eqn: _function(eqn) == name)
        if not tests:
            written = [eqn for eqn in facts.program.eqns if eqn.primitive.name != _jax.KEEP]
            functions = dict.fromkeys(filter(None, map(_function, written)))
            raise unknown_work(name, self.engine.paths, list(functions))
        return lambda eqn: any(test(eqn) for test in tests)

    def _of_input(self, name: str) -> Callable[[Equation], bool] | None:
        try:
            mask = paths_mask(self.engine.paths, self.engine.layout, [name])
        except UnknownInputError:
            return None
        masks = self._masks()
        return lambda eqn: bool(masks[id(eqn)] & mask)

    def _masks(self) -> dict[int, int]:
        """What each equation that ran depends on; a plan has equations that the program has not."""
        facts = self.engine.facts
        found = {id(eqn): mask for eqn, mask in zip(facts.program.eqns, facts.equation_masks, strict=True)}
        written: dict[Var, int] = {}
        for eqn in self.ran:
            if id(eqn) not in found:
                mask = 0
                for var in read_vars(eqn):
                    mask |= written[var] if var in written else facts.mask(var)
                found[id(eqn)] = mask
            written.update((var, found[id(eqn)]) for var in written_vars(eqn))
        return found


def _of_kept(facts: Facts, name: str) -> Callable[[Equation], bool] | None:
    """The equations of a marked value: the mark, and what is computed for nothing else."""
    marked = [var for var, known in facts.kept.items() if known == name]
    if not marked:
        return None
    others: set[Var] = {atom for atom in facts.program.outvars if isinstance(atom, Var)}
    found: set[int] = set()
    for eqn in reversed(facts.program.eqns):
        written = written_vars(eqn)
        is_own = any(var in marked for var in written) or (written and others.isdisjoint(written))
        if is_own:
            found.add(id(eqn))
        else:
            others.update(read_vars(eqn))
    return lambda eqn: id(eqn) in found


def _function(eqn: Equation) -> str | None:
    """The Python function whose line made an equation."""
    found = _FUNCTION.search(_jax.source_line(eqn))
    return found["name"] if found is not None else None


def _message(f: Incremental[..., Any], engine: Engine, record: Record, problems: Iterable[Problem]) -> str:
    lines: list[str] = []
    for text, eqns in problems:
        lines.append(f"{text}:")
        lines += [
            f"  {eqn.primitive.name} at {_jax.source_line(eqn) or 'no line of yours'}" for eqn in eqns[:NUM_SHOWN]
        ]
        lines += [f"  ... {len(eqns) - NUM_SHOWN} more"] if len(eqns) > NUM_SHOWN else []
    shown = f.explain().as_dict()
    changed = ", ".join(f"`{path}`" for path in shown["changed"]) or "nothing"
    lines.append(f"Changed: {changed}. Served by: {shown['served_by']} ({shown['why']}).")
    if record.candidate == "whole":
        lines.append(
            "The whole function ran, which the engine prefers where it is cheap, and at first calls. To test what a "
            'change reaches, make the function with `tuning=Tuning(planner="minimal")`.'
        )
    return "\n".join(lines)
