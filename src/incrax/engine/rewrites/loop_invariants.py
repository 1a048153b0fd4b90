"""Loop-invariant equations leave scan and while bodies, so that they run once and can be saved.

In: a `Program`. Out: a `Program` in which the bodies of loops keep only what changes from iteration
to iteration. It must not know which inputs are dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


def _simplified(jaxpr: Any) -> Program:
    return run_passes(from_jaxpr(jaxpr), (inline, hoist_invariants, merge_equal, drop_dead))


def _split(
    body: Program, invariants: Iterable[Var], *, may_run: bool
) -> tuple[list[Equation], list[Equation]]:
    """Split a body by what depends on invariant inputs alone: equations that run once, and those of
    each iteration; all of these where nothing worth its while is invariant.

    A body that may never run (`may_run=False`) keeps its calls to the host.
    """
    fixed = {*invariants, *body.constvars}
    hoisted = []
    for eqn in body.eqns:
        is_kept = eqn.effects or (not may_run and "callback" in eqn.primitive.name)
        if not is_kept and all(var in fixed for var in read_vars(eqn)):
            hoisted.append(eqn)
            fixed.update(eqn.outvars)
    hoisted = _without_free_ends(hoisted)
    if all(is_free(eqn) for eqn in hoisted):
        return [], list(body.eqns)
    chosen = set(map(id, hoisted))
    return hoisted, [eqn for eqn in body.eqns if id(eqn) not in chosen]


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
    body = _simplified(eqn.params["jaxpr"])
    fixed = body.invars[: scan.num_consts]
    hoisted, kept = _split(body, fixed, may_run=eqn.params["length"] > 0)

    def loop(*values: Any) -> list[Any]:
        consts, carry, rows = scan.split(values)
        outer = _bind(body, fixed, consts)
        _jax.evaluate(hoisted, outer)

        def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            moving = zip(body.invars[len(fixed) :], [*carry, *xs], strict=True)
            return scan.split_results(evaluated(kept, body.outvars, {**outer, **dict(moving)}))

        return scan.run(step, carry, rows)

    return _substitute(eqn, loop) if hoisted else None


def _rewrite_while(eqn: Equation) -> list[Equation] | None:
    num_cond = eqn.params["cond_nconsts"]
    cond = _simplified(eqn.params["cond_jaxpr"])
    body = _simplified(eqn.params["body_jaxpr"])
    fixed = body.invars[: eqn.params["body_nconsts"]]
    hoisted, kept = _split(body, fixed, may_run=False)

    def loop(*values: Any) -> Sequence[Any]:
        first = num_cond + len(fixed)
        outer = _bind(body, fixed, values[num_cond:first])
        _jax.evaluate(hoisted, outer)

        def proceed(carry: Sequence[Any]) -> Any:
            env = _bind(cond, cond.invars, [*values[:num_cond], *carry])
            return evaluated(cond.eqns, cond.outvars, env)[0]

        def step(carry: Sequence[Any]) -> list[Any]:
            moving = zip(body.invars[len(fixed) :], carry, strict=True)
            return evaluated(kept, body.outvars, {**outer, **dict(moving)})

        return jax.lax.while_loop(proceed, step, list(values[first:]))

    is_scalar = cond.outvars[0].aval.shape == ()
    return _substitute(eqn, loop) if hoisted and is_scalar else None


def _bind(program: Program, variables: Sequence[Var], values: Values) -> dict[Var, Any]:
    return {
        **dict(zip(program.constvars, program.consts, strict=True)),
        **dict(zip(variables, values, strict=True)),
    }


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
