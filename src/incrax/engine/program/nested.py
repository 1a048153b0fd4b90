"""Stage 4, cost: which equations an equation holds, and how often they run.

In: an equation. Out: its bodies, each with its part in it. It must not know what anything costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from incrax import _jax
from incrax._jax import Body, Equation, Literal
from incrax.primitives.table import is_registered, work_of


class Inner(NamedTuple):
    """Equations inside an equation: "call", "turn" and "condition" of a loop, or "branch"."""

    kind: str
    body: Body


_KINDS = {"scan": "turn", _jax.LOOP: "turn", "cond": "branch"}
"""What is no call."""

_OPENED = _KINDS.keys() | set(
    """while call closed_call composite core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr
    custom_vmap_call eval_jaxpr jit pjit checkpoint remat remat2 remat_opt run_state shard_map xla_pmap
    custom_linear_solve call_hi_primitive linear_call""".split()
)


def inner_bodies(eqn: Equation) -> list[Inner]:
    """What an equation evaluates inside, as often as `num_turns` says; nothing for one with a
    rule.
    """
    name = eqn.primitive.name
    if is_registered(eqn):
        return []
    if (opened := _jax.opaque_call(eqn)) is not None:
        return [Inner("call", _jax.open_jaxpr(opened[0]))]
    if name == "while":
        turn, condition = (
            _jax.open_jaxpr(eqn.params[f"{part}_jaxpr"]) for part in ("body", "cond")
        )
        return [Inner("turn", turn), Inner("condition", condition)]
    bodies = _jax.sub_bodies(eqn)
    kind = _KINDS.get(name, "call")
    return [Inner(kind, body) for body in (bodies[:1] if name == "linear_call" else bodies)]


def num_in_all(eqns: Iterable[Equation]) -> int:
    """How many equations there are, those inside of others counted as well: what XLA compiles."""
    inner = lambda eqn: sum(num_in_all(body.eqns) for _, body in inner_bodies(eqn))
    return sum(1 + inner(eqn) for eqn in eqns)


def num_turns(eqn: Equation) -> float | None:
    """How often the inner equations run that are neither a condition nor a branch; None where
    nobody knows.
    """
    name = eqn.primitive.name
    if name == "scan":
        return eqn.params["length"]
    if name == _jax.LOOP:
        num = eqn.invars[0]
        return int(np.asarray(num.val)) if isinstance(num, Literal) else None
    if name == "shard_map":
        return _num_shards(eqn)
    return None if name == "while" else 1


def _num_shards(eqn: Equation) -> int:
    """Devices along the axes that the body is written for; along others one evaluation is that of
    all devices.
    """
    sizes = eqn.params["mesh"].shape
    manual = eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes", sizes))
    return math.prod(sizes[axis] for axis in manual)


def is_counted(eqn: Equation) -> bool:
    """Whether somebody said what the primitive of an equation computes."""
    if is_registered(eqn):
        return work_of(eqn) is not None
    return eqn.primitive.name in _OPENED
