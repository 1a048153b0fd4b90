"""Loop-invariant equations leave scan and while bodies, so that they run once and can be saved.

In: a `Program`. Out: a `Program` in which the bodies of loops keep only what changes from iteration
to iteration. It must not know which inputs are dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import Program, Values, evaluated, from_jaxpr, read_vars, type_of
from incrax.engine.program.cost import is_free
from incrax.engine.program.simplify import drop_dead, inline, merge_equal, renamed, run_passes


def hoist_invariants(program: Program) -> Program:
    """Move what does not change between iterations in front of each loop, inner loops first.

    Not where JAX checks every value for NaN: a body that never runs would then raise.
    """
    if _jax.checks_values():
        return program
    eqns: list[Equation] = []
    for eqn in program.eqns:
        rewrite = _rewrites.get(eqn.primitive.name)
        new = None if rewrite is None or eqn.effects else rewrite(eqn)
        eqns.extend([eqn] if new is None else new)
    return program.with_eqns(eqns)


class _Turn:
    """A loop's body: what depends on its first inputs alone, which stay the same, runs once, the rest
    in each turn; all of it, where nothing worth its while is invariant.

    A body that may never run (`may_run=False`) keeps its calls to the host.
    """

    def __init__(self, jaxpr: Any, num_fixed: int, *, may_run: bool) -> None:
        body = self.body = _simplified(jaxpr)
        self.fixed = body.invars[:num_fixed]
        self.moving = body.invars[num_fixed:]
        fixed = {*self.fixed, *body.constvars}
        invariant = []
        for eqn in body.eqns:
            is_kept = eqn.effects or (not may_run and "callback" in eqn.primitive.name)
            if not is_kept and all(var in fixed for var in read_vars(eqn)):
                invariant.append(eqn)
                fixed.update(eqn.outvars)
        invariant = _without_free_ends(invariant)
        self.once = [] if all(map(is_free, invariant)) else invariant
        chosen = set(map(id, self.once))
        self.each = [eqn for eqn in body.eqns if id(eqn) not in chosen]

    def begun(self, consts: Values) -> Callable[[Values], list[Any]]:
        """A turn as a function of what moves, in front of which the rest was run."""
        outer = dict(zip(self.body.constvars, self.body.consts, strict=True))
        outer.update(zip(self.fixed, consts, strict=True))
        _jax.evaluate(self.once, outer)

        def run(values: Values) -> list[Any]:
            env = {**outer, **dict(zip(self.moving, values, strict=True))}
            return evaluated(self.each, self.body.outvars, env)

        return run


def _simplified(jaxpr: Any) -> Program:
    return run_passes(from_jaxpr(jaxpr), (inline, hoist_invariants, merge_equal, drop_dead))


def _without_free_ends(eqns: Sequence[Equation]) -> list[Equation]:
    """Leave moves of data that only the iterations read inside the loop: handing them over would
    cost more.
    """
    read: set[Var] = set()
    kept = []
    for eqn in reversed(eqns):
        if not is_free(eqn) or any(var in read for var in eqn.outvars):
            kept.append(eqn)
            read.update(read_vars(eqn))
    return kept[::-1]


def _rewrite_scan(eqn: Equation) -> list[Equation] | None:
    scan = _jax.scan_of(eqn)
    turn = _Turn(eqn.params["jaxpr"], scan.num_consts, may_run=eqn.params["length"] > 0)

    def loop(*values: Any) -> list[Any]:
        consts, carry, rows = scan.split(values)
        run = turn.begun(consts)
        step = lambda carry, xs: scan.split_results(run([*carry, *xs]))
        return scan.run(step, carry, rows)

    return _substitute(eqn, loop) if turn.once else None


def _rewrite_while(eqn: Equation) -> list[Equation] | None:
    num_cond = eqn.params["cond_nconsts"]
    first = num_cond + eqn.params["body_nconsts"]
    cond = _simplified(eqn.params["cond_jaxpr"])
    turn = _Turn(eqn.params["body_jaxpr"], eqn.params["body_nconsts"], may_run=False)

    def loop(*values: Any) -> Sequence[Any]:
        proceed = lambda carry: cond(*values[:num_cond], *carry)[0]
        return jax.lax.while_loop(proceed, turn.begun(values[num_cond:first]), list(values[first:]))

    is_scalar = cond.outvars[0].aval.shape == ()
    return _substitute(eqn, loop) if turn.once and is_scalar else None


def _substitute(eqn: Equation, fun: Callable[..., Any]) -> list[Equation] | None:
    """The equations of `fun` on an equation's inputs, writing its outputs; None if a type would
    change.
    """
    inputs = [atom.val if isinstance(atom, Literal) else type_of(atom) for atom in eqn.invars]
    body = _jax.trace_body(fun, *inputs)
    pairs = zip(body.outvars, eqn.outvars, strict=True)
    if body.constvars or any(atom.aval.dtype != var.aval.dtype for atom, var in pairs):
        return None
    return list(renamed(body, eqn.invars, eqn.outvars)[1])


_rewrites: dict[str, Callable[[Equation], list[Equation] | None]] = {
    "scan": _rewrite_scan,
    "while": _rewrite_while,
}
