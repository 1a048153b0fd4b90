"""Stage 9, compile: a plan becomes an XLA executable that takes leaves, constants and saved values.

In: `Facts` and a `Plan`. Out: `Executable`. It must not know where saved values are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Var
from incrax.facts.program import Program, evaluator, read_vars
from incrax.planning.facts import Facts
from incrax.planning.plan import Plan
from incrax.running.recycling import is_recyclable

Constants: TypeAlias = dict[Var, Any]

EMBED_BYTES = 4096
"""Bytes up to which a constant is written into the program; larger ones are arguments (compile time)."""


@dataclass(frozen=True)
class Executable:
    """A compiled plan and where its arguments come from.

    Fields: the jitted function of (leaves, constants, loads, donated buffers), leaf numbers, constants, loads, number
    of equations, types of the buffers to donate.
    """

    call: Callable[..., list[Any]]
    leaves: tuple[int, ...]
    constants: tuple[Any, ...]
    loads: tuple[Var, ...]
    num_eqns: int
    donated: tuple[Any, ...] = ()

    def __call__(self, feeds: Sequence[Any], loaded: Sequence[Any], donated: Sequence[Any] = ()) -> list[Any]:
        """Run on the leaves' feeds (all of them, by number), the loaded values in order, and buffers to overwrite."""
        return self.call(*[feeds[i] for i in self.leaves], *self.constants, *loaded, *donated)


def device_constants(program: Program) -> dict[Var, Any]:
    """Closed-over constants on the device, converted once."""
    return {v: _on_device(const) for v, const in zip(program.constvars, program.consts, strict=True)}


def _on_device(const: Any) -> Any:
    return const if isinstance(const, jax.Array) or _jax.is_mutable_array(const) else jnp.asarray(const)


def compile_plan(facts: Facts, plan: Plan, constants: Constants, *, recycles: bool = False) -> Executable:
    """An executable that returns the plan's outputs, then its saves; these in donated buffers if it recycles."""
    program = facts.program
    eqns = plan.eqns
    targets = [*(program.outvars[i] for i in plan.outputs), *plan.saves]
    used = {var for eqn in eqns for var in read_vars(eqn)} | {a for a in targets if isinstance(a, Var)}
    leaves = tuple(i for i, var in enumerate(program.invars) if var in used)
    passed = [v for v in program.constvars if v in used and _is_passed(constants[v])]
    embedded = {v: constants[v] for v in program.constvars if v in used and not _is_passed(constants[v])}
    names = [*(program.invars[i] for i in leaves), *passed, *plan.loads]

    returned = {atom for atom in program.outvars if isinstance(atom, Var)}
    saves = [var for var in plan.saves if recycles and var not in returned]
    donated = tuple(var.aval for var in saves if is_recyclable(var.aval))

    def run_plan(*values: Any) -> list[Any]:
        inputs = values[: len(names)]
        env = {**embedded, **dict(zip(names, inputs, strict=True))}
        _jax.evaluate(eqns, env)
        results = [_jax.read(atom, env) for atom in targets]
        outputs, saves = results[: len(plan.outputs)], results[len(plan.outputs) :]
        return outputs + [_as_own(x, [*inputs, *outputs]) for x in saves]

    numbers = tuple(range(len(names), len(names) + len(donated)))
    call = jax.jit(run_plan, donate_argnums=numbers, keep_unused=True) if donated else jax.jit(run_plan)
    return Executable(call, leaves, tuple(constants[v] for v in passed), plan.loads, len(eqns), donated)


def _as_own(x: Any, others: Sequence[Any]) -> Any:
    """A value to save; a copy where it would share the buffer of an argument or an output."""
    return jnp.array(x, copy=True) if any(x is other for other in others) and not _jax.is_key_dtype(x.dtype) else x


def compile_whole(program: Program, num_eqns: int) -> Executable:
    """The function as it was traced, without saved values: what `jax.jit` would run."""
    constants = device_constants(program)
    run = evaluator(program)
    num_consts = len(program.constvars)

    def run_whole(*values: Any) -> list[Any]:
        num_leaves = len(values) - num_consts
        return run(tuple(values[num_leaves:]), *values[:num_leaves])

    consts = tuple(constants[v] for v in program.constvars)
    return Executable(jax.jit(run_whole), tuple(range(len(program.invars))), consts, (), num_eqns)


def _is_passed(const: Any) -> bool:
    return getattr(const, "nbytes", EMBED_BYTES + 1) > EMBED_BYTES
