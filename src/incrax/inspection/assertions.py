"""Assertions of users' own tests: what the last call of a function ran, and what it did not.

In: an incremental function. Out: nothing, or an AssertionError that shows what ran.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from incrax import _jax
from incrax._incremental import Incremental
from incrax._jax import Equation, Var
from incrax._messages import listed, not_called
from incrax._names import names_in
from incrax._program import read_vars, written_vars
from incrax.engine.call.engine import Engine
from incrax.engine.inputs.paths import paths_mask
from incrax.errors import UnknownInputError
from incrax.explanation import served_by
from incrax.rows.engine import RowEngine

NUM_SHOWN = 10
"""Equations that a message lists."""


def assert_ran(
    f: Incremental[..., Any], only: Iterable[str] | None = None, *, never: Iterable[str] = ()
) -> None:
    """Check in a test that the last call of a function ran what it should, and nothing else.

    A name is that of an input, as `explain()` prints it, and stands for the equations that depend
    on it (`"params['mu']"`, an element `"theta[3]"`, a prefix `"params"`); or of a JAX primitive
    (`"exp"`), also inside loops and branches. Of `Rows`, what ran on one of the chunks is looked
    at, not what follows their reductions.

    Args:
        f: what `incremental`, `grad` and the like return, after a call.
        only: each equation that ran must belong to one of these; `()` if nothing may have run.
            None: no such check.
        never: no equation that ran may belong to one of these.

    Raises:
        AssertionError: something else ran. The message lists it, with what changed and what served
            the call.
        UnknownInputError: a name stands for nothing in the function.
        NotCalledError: there was no call, or none that is tracked.

    The engine may run all of a function that is cheap to run, since that is faster than to load
    what was saved. A test of dependence says `incremental(f, tuning=Tuning(planner="minimal"))`,
    which runs just what a change reaches.

    Cost: reads the record of the last call; nothing is evaluated.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> exact = incrax.Tuning(planner="minimal")
        >>> f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(a)) + jnp.sum(jnp.sin(b)), tuning=exact)
        >>> x = jnp.ones(3)
        >>> y = f(x, x), f(x, 2 * x)
        >>> incrax.assert_ran(f, only=["b"], never=["exp"])
    """
    f = getattr(f, "__func__", f)
    call = _last(f)
    problems: list[str] = []
    if only is not None:
        allowed = {name: call.named(name) for name in names_in("assert_ran(only=...)", only)}
        masks = call.masks()
        known = set().union(*allowed.values())
        others = [eqn for eqn in call.ran if masks[id(eqn)] and id(eqn) not in known]
        shown = listed(allowed, "nothing")
        problems += _listed(
            f"{len(others)} equations ran that belong to none of what may run ({shown})", others
        )
    for name in names_in("assert_ran(never=...)", never):
        ids = call.named(name)
        found = [eqn for eqn in call.ran if id(eqn) in ids]
        problems += _listed(f"{len(found)} equations of `{name}` ran, and none may", found)
    if problems:
        raise AssertionError("\n".join([*problems, *_circumstances(f, call)]))


class _LastCall(NamedTuple):
    """An engine, what served its last call, which of its equations ran, and the names of all
    inputs.
    """

    engine: Engine
    served_by: str
    ran: Sequence[Equation]
    paths: Sequence[str]

    def named(self, name: str) -> set[int]:
        """The equations that belong to a name, by identity.

        Raises:
            UnknownInputError: it stands for nothing.
        """
        facts = self.engine.facts
        eqns = (*facts.eqns, *self.ran)
        is_named = lambda eqn: any(name == each.primitive.name for each in _jax.with_inner([eqn]))
        found = {id(eqn) for eqn in eqns if is_named(eqn)}
        try:
            mask = paths_mask(self.engine.paths, self.engine.layout, [name])
        except UnknownInputError:
            if found or name in self.paths:
                return found
            raise UnknownInputError(
                f"`assert_ran(f)` got `{name}`, which is no input of the function and no primitive "
                "in it, so that the test could never fail. Its inputs: "
                f"{listed(self.paths)}. Use one of these, or the name of a primitive as "
                "`explain()` prints it."
            ) from None
        return found | {number for number, each in self.masks().items() if each & mask}

    def masks(self) -> dict[int, int]:
        """What each equation that ran depends on; a plan has equations that the program has not."""
        facts = self.engine.facts
        found = dict(zip(map(id, facts.eqns), facts.equation_masks, strict=True))
        written: dict[Var, int] = {}
        for eqn in self.ran:
            if id(eqn) not in found:
                reads = (written[v] if v in written else facts.mask(v) for v in read_vars(eqn))
                found[id(eqn)] = functools.reduce(operator.or_, reads, 0)
            written.update(dict.fromkeys(written_vars(eqn), found[id(eqn)]))
        return found


def _last(f: Any) -> _LastCall:
    """The last call; of `Rows` what it did with one of the chunks."""
    if not isinstance(f, Incremental):
        raise TypeError(
            f"`assert_ran(f)` got a value of type {type(f).__name__}, which keeps no record of "
            "what it ran. Pass what `incremental(f)`, `grad(f)` and the like return, not the "
            "function that was given to them."
        )
    traced = f._asked("assert_ran()", (), {}).traced
    engine = traced.engine
    if engine.last is None:
        raise not_called("assert_ran()")
    served = served_by(engine, engine.last)
    if not isinstance(traced, RowEngine):
        return _LastCall(engine, served.by, served.ran, engine.paths)
    has_run = traced.last is not None and traced.last.num_run > 0
    paths = [*engine.paths, *traced.paths]
    return _LastCall(engine, served.by, served.ran if has_run else (), paths)


def _listed(title: str, eqns: Sequence[Equation]) -> list[str]:
    """A problem, if there are equations that make it one."""
    lines = [
        f"  {eqn.primitive.name} at {_jax.source_line(eqn) or 'no line of yours'}"
        for eqn in eqns[:NUM_SHOWN]
    ]
    more = [f"  ... {len(eqns) - NUM_SHOWN} more"] if len(eqns) > NUM_SHOWN else []
    return [f"{title}:", *lines, *more] if eqns else []


def _circumstances(f: Incremental[..., Any], call: _LastCall) -> Iterator[str]:
    """What changed, and what served the call."""
    explained = f.explain()
    changed = listed((path for path, _ in explained.changed), "nothing")
    yield f"Changed: {changed}. Served by: {explained.served_by} ({explained.why})."
    if call.served_by == "whole":
        yield (
            "The whole function ran, which the engine prefers where it is cheap, and at first "
            "calls. To test what a "
            'change reaches, make the function with `tuning=Tuning(planner="minimal")`.'
        )
