"""A program as a tree of regions: which equations run inside which, and how often: as the program
tells, or a run.

In: a program; values for a run. Out: its regions, simplified, without dead code. It must not know
what anything costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Body, Equation, LoopParts, Var
from incrax._program import (
    Program,
    Values,
    evaluator,
    from_jaxpr,
)
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

    @cached_property
    def compiled(self) -> Callable[..., list[Any]]:
        """The program, compiled as a whole."""
        return jax.jit(evaluator(self.program))


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
        for region in regions:
            region.times = None if index is None else float(region is _taken(regions, index))
    else:
        turns = num_turns(eqn)
        if turns is None and eqn.primitive.name != "while":
            turns = _integer(eqn.invars[0], known)
        for region in regions:
            region.times = turns
    return Node(eqn, regions)


def _taken(branches: Sequence[Region], index: int) -> Region:
    """The branch of an index, which is clipped."""
    return branches[min(max(index, 0), len(branches) - 1)]


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


def run(region: Region, values: Values) -> Values:
    """Evaluate a region; it and all inside of whose evaluations values decide count how often they
    run.

    Loops and branches in which values decide are Python's; a region without is compiled.
    """
    region.runs += 1
    program = region.program
    if not any(node.is_open for node in region.nodes):
        return region.compiled(program.consts, *values)
    env: dict[Var, Any] = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, values, strict=True))
    for node in region.nodes:
        inputs = [_jax.read(atom, env) for atom in node.eqn.invars]
        rule = _rules.get(node.name, _call) if node.is_open else _apply
        env.update(zip(node.eqn.outvars, rule(node, inputs), strict=True))
    return [_jax.read(atom, env) for atom in program.outvars]


def _apply(node: Node, inputs: Values) -> Values:
    return _jax.apply(node.eqn, inputs)


def _call(node: Node, inputs: Values) -> Values:
    """A call that evaluates one body on its inputs; any other is not looked into."""
    region, *others = node.regions
    if others or len(region.program.invars) != len(inputs) or region.times != 1:
        return _apply(node, inputs)
    return run(region, inputs)


def _cond(node: Node, inputs: Values) -> Values:
    return run(_taken(node.regions, int(inputs[0])), inputs[1:])


def _while(node: Node, inputs: Values) -> Values:
    """What `vmap` makes of a loop has a condition for each row: rows that have ended stay as they
    are.
    """
    turn, condition = node.regions
    first = node.eqn.params["cond_nconsts"]
    second = first + node.eqn.params["body_nconsts"]
    carry = inputs[second:]
    while np.any(goes_on := np.asarray(run(condition, [*inputs[:first], *carry])[0])):
        results = run(turn, [*inputs[first:second], *carry])
        carry = [_where(goes_on, new, old) for new, old in zip(results, carry, strict=True)]
    return carry


def _where(goes_on: np.ndarray, new: Any, old: Any) -> Any:
    num_more = jnp.ndim(new) - goes_on.ndim
    return jnp.where(goes_on.reshape(goes_on.shape + (1,) * num_more), new, old)


def _scan(node: Node, inputs: Values) -> Values:
    """A scan, or a loop of `incrax.control_flow.loops`: its turns one by one to count what is
    inside, its results as they are.
    """
    parts, rows, operands = _turns(node, inputs)
    consts, carry, columns = parts.split(operands)
    for row in rows:
        results = run(node.regions[0], [*consts, *carry, *(x[row] for x in columns)])
        carry, _ = parts.split_results(results)
    return _apply(node, inputs)


def _turns(node: Node, inputs: Values) -> tuple[LoopParts, range, Values]:
    """What is what among the operands, the rows in the order of the turns, the operands."""
    params = node.eqn.params
    if node.name == _jax.LOOP:
        length, *operands = inputs
        spec = params["spec"]
        return spec.layout, range(int(length))[:: -1 if spec.reverse else 1], operands
    rows = range(params["length"])[:: -1 if params["reverse"] else 1]
    return _jax.scan_of(node.eqn), rows, inputs


_rules: dict[str, Callable[[Node, Values], Values]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    _jax.LOOP: _scan,
}
