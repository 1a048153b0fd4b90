"""A program as a tree of regions: which equations run inside which, and how often: as the program
tells, or a run.

In: a program; values for a run. Out: its regions, simplified, without dead code. It must not know
what anything costs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._jax import Atom, Body, Equation
from incrax._program import Env, Program, Values, from_jaxpr
from incrax.engine.program.constants import Known, known_values, value_of
from incrax.engine.program.nested import inner_bodies, num_turns
from incrax.engine.program.simplify import (
    branch_of,
    drop_dead,
    fold_constants,
    inline_with_solves_but_remat,
    merge_equal,
    reading,
    run_passes,
)
from incrax.engine.rewrites.loop_invariants import hoist_invariants


@dataclass(eq=False)
class Region:
    """Equations that run one after the other."""

    kind: str  # "whole", "call", "turn", "condition" or "branch"
    program: Program
    nodes: list[Node]  # its equations, each with the regions inside
    times: float | None = 1.0  # evaluations for one of the region around; None: values decide
    runs: int = 0  # evaluations in a run


class Node(NamedTuple):
    """An equation with the regions inside it."""

    eqn: Equation
    regions: Sequence[Region]

    @property
    def name(self) -> str:
        """Of the primitive."""
        eqn = self.eqn
        return eqn.primitive.name

    @property
    def is_open(self) -> bool:
        """Whether what runs inside depends on values."""
        return any(
            region.times is None or any(n.is_open for n in region.nodes) for region in self.regions
        )


# --- the tree -------------------------------------------------------------------------------------


def regions_of(program: Program, *, is_hoisted: bool = False) -> Region:
    """The tree of a program: calls are opened, equal equations count once; what is rematerialized
    stays apart, so that it counts again. What is invariant stands in its loop, or in front of it,
    as where the engine runs it.
    """
    hoist = (hoist_invariants,) if is_hoisted else ()
    whole = (drop_dead_inside, inline_with_solves_but_remat, *hoist, *_SIMPLER)
    return _region("whole", run_passes(program, whole))


def _region(kind: str, program: Program) -> Region:
    known = known_values(program)
    return Region(kind, program, [_node(eqn, known) for eqn in program.eqns])


def _node(eqn: Equation, known: Known) -> Node:
    regions = [
        _region(
            each.kind, run_passes(_program(each.body), (inline_with_solves_but_remat, *_SIMPLER))
        )
        for each in inner_bodies(eqn)
    ]
    if regions and regions[0].kind == "branch":
        index = _integer(eqn.invars[0], known)
        taken = None if index is None else min(max(index, 0), len(regions) - 1)  # it is clipped
        for number, region in enumerate(regions):
            region.times = None if taken is None else float(number == taken)
    else:
        turns = num_turns(eqn)
        if turns is None and eqn.primitive.name != "while":
            turns = _integer(eqn.invars[0], known)
        for region in regions:
            region.times = turns
    return Node(eqn, regions)


def _program(body: Body) -> Program:
    """A body; constants that its equation keeps elsewhere are inputs of it."""
    if len(body.consts) != len(body.constvars):
        body = body._replace(invars=(*body.constvars, *body.invars), constvars=(), consts=())
    return from_jaxpr(body)


def _integer(atom: Atom, known: Known) -> int | None:
    """The value of an integer, or of a truth value, where it is known."""
    value = value_of(atom, known)
    if value is None or value.shape != () or value.dtype.kind not in "biu":
        return None
    return int(value)


def drop_dead_inside(program: Program) -> Program:
    """Remove what no output needs, in loops, branches and calls too."""
    body = Body(program.invars, program.constvars, program.consts, program.eqns, program.outvars)
    kept, _ = _jax.pruned(body)
    return drop_dead(replace(program, eqns=kept.eqns, outvars=kept.outvars))


def choose_platform(program: Program) -> Program:
    """Replace the question which platform a program runs on by the answer for the default
    backend.
    """
    backend = jax.default_backend()
    asked = (eqn for eqn in program.eqns if eqn.primitive.name == "platform_index")
    names = {eqn.outvars[0]: found for eqn in asked if (found := branch_of(eqn, backend))}
    return program.with_eqns([reading(eqn, names) for eqn in program.eqns])


_SIMPLER = (choose_platform, fold_constants, merge_equal, drop_dead)


# --- a run that counts ----------------------------------------------------------------------------


def run(root: Region, values: Values) -> Values:
    """Evaluate a program; it and all inside of whose evaluations values decide count how often they
    run.
    """
    results = jax.jit(functools.partial(_counted, root))(*values)
    jax.effects_barrier()
    return results


def _counted(region: Region, *values: Any) -> Values:
    """What a region gives, traced; it tells the host when it runs."""

    def runs() -> None:
        region.runs += 1

    jax.debug.callback(runs)
    program = region.program
    env: Env = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, values, strict=True))
    for node in region.nodes:
        inputs = [_jax.read(atom, env) for atom in node.eqn.invars]
        env.update(zip(node.eqn.outvars, _results(node, inputs), strict=True))
    return [_jax.as_value(atom, env) for atom in program.outvars]


def _results(node: Node, inputs: Values) -> Values:
    """What an equation gives. A call that is not of one body on just its inputs is not looked
    into.
    """
    eqn = node.eqn
    if node.is_open:
        first, *others = node.regions
        if first.kind != "call":
            eqn = eqn.replace(params={**eqn.params, **_counted_bodies(node)})
        elif not others and len(first.program.invars) == len(inputs) and first.times == 1:
            return _counted(first, *inputs)
    return _jax.apply(eqn, inputs)


def _counted_bodies(node: Node) -> dict[str, Any]:
    """The parameters of a loop, or of a branch, that hold its bodies."""
    bodies = []
    for region in node.regions:
        avals = [var.aval for var in region.program.invars]
        counted = _jax.trace_body(functools.partial(_counted, region), *avals)
        bodies.append(_jax.closed_jaxpr(counted))
    if node.name == "cond":
        return {"branches": tuple(bodies)}
    names = ("body_jaxpr", "cond_jaxpr") if node.name == "while" else ("jaxpr",)
    return dict(zip(names, bodies, strict=True))
