"""What is never made: arrays as large as the table, in the program and in the memory of its
compiled form.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_sparse_cases import adagrad, check, loss, momentum, sgd, structured

import incrax
from incrax import _jax
from incrax._program import trace
from incrax.derivatives.row_sparse.structured import sparse_outputs
from incrax.engine.program.simplify import drop_dead, inline

SHAPE = (20_000, 16)
IDS = jax.ShapeDtypeStruct((32,), np.int32)
TABLE = jax.ShapeDtypeStruct(SHAPE, np.float64)
TABLE_BYTES = 8 * SHAPE[0] * SHAPE[1]


def clipped(t, ids):
    g = jax.grad(loss)(t, ids)
    return t - g / jnp.maximum(1.0, jnp.linalg.norm(g))


def adam(t, m, v, ids):
    g = jax.grad(loss)(t, ids)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return t - 0.1 * m / (jnp.sqrt(v) + 1e-8), m, v


STEPS = {sgd: 1, adagrad: 2, clipped: 1}
SWEEPS = {momentum: 2, adam: 3}


def large_outputs(eqns):
    """Primitives that give an array as large as the table, in loops and branches too."""
    for eqn in eqns:
        for body in _jax.sub_bodies(eqn):
            if eqn.primitive.name not in ("scatter", "scatter-add"):
                yield from large_outputs(body.eqns)
        if any(getattr(var.aval, "shape", ())[:1] == SHAPE[:1] for var in eqn.outvars):
            yield eqn.primitive.name


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_only_writing_into_the_table_gives_an_array_of_its_size(step):
    tables = [TABLE] * STEPS[step]
    program = drop_dead(inline(trace(incrax.structured(step), *tables, IDS)))
    names = list(large_outputs(program.eqns))
    assert set(names) <= {"scatter", "scatter-add"}
    assert len(names) == STEPS[step]
    plain = drop_dead(inline(trace(step, *tables, IDS)))
    assert {"sub", "mul"} & set(large_outputs(plain.eqns))


@pytest.mark.parametrize("step", [*STEPS, *SWEEPS], ids=lambda f: f.__name__)
def test_donated_tables_are_updated_in_place(step):
    count = {**STEPS, **SWEEPS}[step]
    numbers = tuple(range(count))
    tables = [TABLE] * count
    memory = (
        incrax.structured(step, donate_argnums=numbers)
        .lower(*tables, IDS)
        .compile()
        .memory_analysis()
    )
    assert memory.temp_size_in_bytes < TABLE_BYTES / 10
    assert memory.alias_size_in_bytes == count * TABLE_BYTES


def chained(t, s, ids, *, length=30):
    """The scale of a step follows from its sum of squares by two equations for each of `length`."""
    g = jax.grad(loss)(t, ids)
    s = s + g * g
    scale = s
    for _ in range(length):
        scale = scale * (1.5 - scale)
    return t - g * scale, s


def test_rows_of_what_follows_from_rows_written_are_made_once_and_all_of_it_never():
    program = drop_dead(inline(trace(incrax.structured(chained), TABLE, TABLE, IDS)))
    assert set(large_outputs(program.eqns)) == {"scatter-add"}
    assert len(program.eqns) < 200


def scaled_alike(t, s, ids, others):
    """Rows of two gradients, each by its own, with a scale that follows from both."""
    one, other = jax.grad(loss)(t, ids), jax.grad(loss)(t, others)
    s = s + one * one + other * other
    scale = jax.lax.rsqrt(s + 1e-7)
    return t - jnp.clip(one, -1.0, 1.0) * scale - jnp.clip(other, -1.0, 1.0) * scale, s


def test_rows_of_several_gradients_are_made_of_what_follows_from_all_of_them():
    small = [jnp.full((60, 2), 0.5) for _ in range(2)]
    check(scaled_alike, *small, jnp.array([3, 3, 7]), jnp.array([7, 1]))
    program = drop_dead(inline(trace(incrax.structured(scaled_alike), TABLE, TABLE, IDS, IDS)))
    assert list(large_outputs(program.eqns)) == ["scatter-add"] * 4


def test_rows_are_made_however_many_equations_follow():
    small = [jnp.full((60, 2), 0.5) for _ in range(2)]
    long = functools.partial(chained, length=800)
    check(long, *small, jnp.array([3, 3, 7]))
    program = drop_dead(inline(trace(structured(long), *small, jnp.array([3, 3, 7]))))
    of_table = [eqn for eqn in program.eqns if eqn.outvars[0].aval.shape == (60, 2)]
    assert not {"mul", "sub"} & {eqn.primitive.name for eqn in of_table}


def test_the_dense_program_needs_memory_for_its_gradient():
    memory = (
        jax.jit(adam, donate_argnums=(0, 1, 2)).lower(*[TABLE] * 3, IDS).compile().memory_analysis()
    )
    assert memory.temp_size_in_bytes >= TABLE_BYTES


def test_gradients_take_memory_for_their_rows_only():
    gradient = jax.jit(lambda t, ids: sparse_outputs(jax.grad(lambda t: loss(t, ids)), t))
    memory = gradient.lower(TABLE, IDS).compile().memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < TABLE_BYTES / 10
