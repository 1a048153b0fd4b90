"""Loop-invariant equations leave scan and while bodies, so that they run once and can be saved.

In: a `Program`. Out: a `Program` in which the bodies of loops keep only what changes from iteration
to iteration. It must not know which inputs are dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._jax import Equation, Literal, Var
from incrax._program import Program, from_jaxpr, read_vars, type_of, written_vars
from incrax.engine.program.cost import is_free
from incrax.engine.program.simplify import drop_dead, inline, merge_equal, run_passes
from incrax.engine.rewrites.derived import renamed


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


class _Split(NamedTuple):
    """A body in two: equations that run once, variables that they hand over, equations of each
    iteration.
    """

    hoisted: list[Equation]
    handed: list[Var]
    kept: list[Equation]


def _simplified(jaxpr: Any) -> Program:
    return run_passes(from_jaxpr(jaxpr), (inline, hoist_invariants, merge_equal, drop_dead))


def _split(body: Program, invariants: Iterable[Var], *, may_run: bool = True) -> _Split | None:
    """Split a body by what depends on invariant inputs alone; None where nothing worth its while
    does.

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
        return None
    chosen = set(map(id, hoisted))
    kept = [eqn for eqn in body.eqns if id(eqn) not in chosen]
    read = {var for eqn in kept for var in read_vars(eqn)} | {
        a for a in body.outvars if isinstance(a, Var)
    }
    handed = [var for eqn in hoisted for var in written_vars(eqn) if var in read]
    return _Split(hoisted, handed, kept)


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
    num_consts, num_carry = _jax.scan_counts(eqn)
    body = _simplified(eqn.params["jaxpr"])
    split = _split(body, body.invars[:num_consts], may_run=eqn.params["length"] > 0)
    if split is None:
        return None
    params = {
        name: eqn.params[name] for name in ("length", "reverse", "unroll") if name in eqn.params
    }

    def loop(*values: Any) -> list[Any]:
        consts = values[:num_consts]
        carry = values[num_consts : num_consts + num_carry]
        xs = values[num_consts + num_carry :]
        outer = _bind(body, body.invars[:num_consts], consts)
        _jax.evaluate(split.hoisted, outer)

        def step(
            carry: tuple[Any, ...], xs: tuple[Any, ...]
        ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            env = {**outer, **dict(zip(body.invars[num_consts:], [*carry, *xs], strict=True))}
            _jax.evaluate(split.kept, env)
            outputs = [_jax.read(atom, env) for atom in body.outvars]
            return tuple(outputs[:num_carry]), tuple(outputs[num_carry:])

        carry, ys = jax.lax.scan(step, tuple(carry), tuple(xs), **params)
        return [*carry, *ys]

    return _substitute(eqn, loop)


def _rewrite_while(eqn: Equation) -> list[Equation] | None:
    num_cond = eqn.params["cond_nconsts"]
    num_body = eqn.params["body_nconsts"]
    cond = _simplified(eqn.params["cond_jaxpr"])
    body = _simplified(eqn.params["body_jaxpr"])
    split = _split(body, body.invars[:num_body], may_run=False)
    if split is None or cond.outvars[0].aval.shape != ():
        return None

    def loop(*values: Any) -> Sequence[Any]:
        cond_consts = values[:num_cond]
        body_consts = values[num_cond : num_cond + num_body]
        outer = _bind(body, body.invars[:num_body], body_consts)
        _jax.evaluate(split.hoisted, outer)

        def proceed(carry: Sequence[Any]) -> Any:
            env = _bind(cond, cond.invars, [*cond_consts, *carry])
            _jax.evaluate(cond.eqns, env)
            return _jax.read(cond.outvars[0], env)

        def step(carry: Sequence[Any]) -> tuple[Any, ...]:
            env = {**outer, **dict(zip(body.invars[num_body:], carry, strict=True))}
            _jax.evaluate(split.kept, env)
            return tuple(_jax.read(atom, env) for atom in body.outvars)

        return jax.lax.while_loop(proceed, step, tuple(values[num_cond + num_body :]))

    return _substitute(eqn, loop)


def _bind(program: Program, variables: Sequence[Var], values: Sequence[Any]) -> dict[Var, Any]:
    return {
        **dict(zip(program.constvars, program.consts, strict=True)),
        **dict(zip(variables, values, strict=True)),
    }


def _substitute(eqn: Equation, fun: Callable[..., Any]) -> list[Equation] | None:
    """The equations of `fun` on an equation's inputs, writing its outputs; None if a type would
    change.
    """
    body = _jax.trace_body(
        fun, *[atom.val if isinstance(atom, Literal) else type_of(atom) for atom in eqn.invars]
    )
    if body.constvars or any(
        a.aval.dtype != v.aval.dtype for a, v in zip(body.outvars, eqn.outvars, strict=True)
    ):
        return None
    outputs = [atom for atom in body.outvars if isinstance(atom, Var)]
    if len(set(outputs)) < len(eqn.outvars) or any(var in body.invars for var in outputs):
        return None
    return list(renamed(body, eqn.invars, eqn.outvars)[1])


_rewrites: dict[str, Callable[[Equation], list[Equation] | None]] = {
    "scan": _rewrite_scan,
    "while": _rewrite_while,
}
