"""Programs of two parameters and rows whose reductions come from statistics, one equation after the
other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Var
from incrax._program import trace
from incrax.engine.program.dependence import depend, make_layout
from incrax.engine.program.simplify import drop_dead, inline, merge_equal, run_passes
from incrax.engine.rewrites.algebra import Statistics, polynomial_reductions
from incrax.engine.rewrites.derived import DerivedTable
from incrax.engine.rewrites.forms import Forms


class Case(NamedTuple):
    """A program of two parameters and the rows, analysed for a change of both parameters."""

    program: object
    forms: Forms
    table: DerivedTable
    statistics: Statistics | None


def analysed(fun, x, point=(1.0, 2.0)):
    program = run_passes(trace(fun, *point, x), (inline, merge_equal, drop_dead))
    layout = make_layout([var.aval for var in program.invars], 64)
    masks = depend(program, layout)
    rows = layout.leaf_mask(len(program.invars) - 1)
    is_dirty = lambda var: bool(masks.of(var) & ~rows)
    assert not any(is_dirty(var) for var in program.constvars)
    table = DerivedTable()
    eqns = [eqn for eqn in program.eqns if any(map(is_dirty, eqn.outvars))]
    targets = [atom for atom in program.outvars if isinstance(atom, Var)]
    found = polynomial_reductions(eqns, table, is_dirty, masks.of, targets)
    return Case(program, Forms(eqns, is_dirty), table, found)


def evaluated(eqns, env):
    for eqn in eqns:
        env.update(
            zip(
                eqn.outvars,
                _jax.apply(eqn, [_jax.read(atom, env) for atom in eqn.invars]),
                strict=True,
            )
        )


def env_of(case, point, x):
    program = case.program
    env = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, map(jnp.asarray, (*point, x)), strict=True))
    return env


def algebra(case, x):
    """Functions of a point: the statistics that are made there, and outputs and guard from
    statistics.
    """
    centred, guard = case.statistics.centred, case.statistics.guard

    @jax.jit
    def saved_at(point):
        env = env_of(case, point, x)
        evaluated(case.program.eqns, env)
        evaluated(case.table.recipe(centred), env)
        return [env[var] for var in centred]

    @jax.jit
    def results(point, saved):
        env = env_of(case, point, x)
        evaluated(case.program.eqns, env)
        evaluated(case.statistics.eqns, env := {**env, **dict(zip(centred, saved, strict=True))})
        return [env[atom] for atom in case.program.outvars], env[guard]

    return saved_at, results
