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

Constants: TypeAlias = dict[Var, Any]

EMBED_BYTES = 4096
"""Bytes up to which a constant is written into the program; larger ones are arguments (compile time)."""


@dataclass(frozen=True)
class Executable:
    """A compiled plan and where its arguments come from.

    Fields: the jitted function of (leaves, constants, loads), leaf numbers, constants, loads, number of equations.
    """

    call: Callable[..., list[Any]]
    leaves: tuple[int, ...]
    constants: tuple[Any, ...]
    loads: tuple[Var, ...]
    num_eqns: int

    def __call__(self, feeds: Sequence[Any], loaded: Sequence[Any]) -> list[Any]:
        """Run on the leaves' feeds (all of them, by number) and the loaded values, in order."""
        return self.call(*[feeds[i] for i in self.leaves], *self.constants, *loaded)


def device_constants(program: Program) -> dict[Var, Any]:
    """Closed-over constants on the device, converted once."""
    return {v: _on_device(const) for v, const in zip(program.constvars, program.consts, strict=True)}


def _on_device(const: Any) -> Any:
    return const if isinstance(const, jax.Array) or _jax.is_mutable_array(const) else jnp.asarray(const)


def compile_plan(facts: Facts, plan: Plan, constants: Constants) -> Executable:
    """An executable that returns the plan's outputs, then its saves."""
    program = facts.program
    eqns = plan.eqns
    targets = [*(program.outvars[i] for i in plan.outputs), *plan.saves]
    used = {var for eqn in eqns for var in read_vars(eqn)} | {a for a in targets if isinstance(a, Var)}
    leaves = tuple(i for i, var in enumerate(program.invars) if var in used)
    passed = [v for v in program.constvars if v in used and _is_passed(constants[v])]
    embedded = {v: constants[v] for v in program.constvars if v in used and not _is_passed(constants[v])}
    names = [*(program.invars[i] for i in leaves), *passed, *plan.loads]

    def run_plan(*values: Any) -> list[Any]:
        env = {**embedded, **dict(zip(names, values, strict=True))}
        _jax.evaluate(eqns, env)
        return [_jax.read(atom, env) for atom in targets]

    return Executable(jax.jit(run_plan), leaves, tuple(constants[v] for v in passed), plan.loads, len(eqns))


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
