"""Training steps: results of the dense program, with rows that stay rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same
from row_sparse_cases import (
    PATTERNS,
    adagrad,
    check,
    check_rows,
    indices,
    loss,
    momentum,
    sgd,
    structured,
    table,
)

import incrax


def by_rate(t, ids, rate):
    value, g = jax.value_and_grad(loss)(t, ids)
    return value, t - rate * g


def clipped(t, ids):
    g = jax.grad(loss)(t, ids)
    norm = jnp.sqrt(jnp.sum(g * g))
    return t - 0.1 * jnp.where(norm > 1.0, g / norm, g)


@pytest.mark.parametrize("name", sorted(PATTERNS))
@pytest.mark.parametrize("step", [sgd, clipped], ids=lambda f: f.__name__)
def test_indices_of_all_kinds(step, name):
    (check if name == "empty" else check_rows)(step, table(), indices(name))


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_accumulators_are_read_and_written_in_place(name):
    explanation = check(adagrad, table(), table(seed=1) ** 2, indices(name))
    assert not explanation.became_dense
    assert len(explanation.in_place) == (0 if name == "empty" else 2)


def test_a_rate_that_is_an_argument():
    check_rows(by_rate, table(), indices("repeated"), 0.3)


def test_momentum_changes_all_rows_without_a_dense_gradient():
    explanation = check_rows(momentum, table(), table(seed=1), indices("repeated"))
    assert [event.primitive for event in explanation.stayed_sparse] == ["scatter-add"]
    assert [event.primitive for event in explanation.in_place] == ["add"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16, np.complex128])
def test_dtypes(dtype):
    t = table().astype(dtype)
    step = lambda t, i: (
        t - (0.1 * jax.grad(lambda t: jnp.sum(jnp.abs(t[i]) ** 2).real)(t)).astype(t.dtype)
    )
    check_rows(step, t, jnp.array([1, 1, -4]))


@pytest.mark.parametrize(
    "name", ["sgd", "momentum", "clipped", "adagrad", "adam", "adamw", "rmsprop"]
)
def test_optimisers_of_optax(name):
    optax = pytest.importorskip("optax")
    made = {
        "sgd": lambda: optax.sgd(0.1),
        "momentum": lambda: optax.sgd(0.1, momentum=0.9),
        "clipped": lambda: optax.chain(
            optax.clip_by_global_norm(0.5), optax.clip(0.3), optax.sgd(0.1)
        ),
        "adagrad": lambda: optax.adagrad(0.1),
        "adam": lambda: optax.adam(0.1),
        "adamw": lambda: optax.adamw(0.1),
        "rmsprop": lambda: optax.rmsprop(0.1),
    }
    optimiser = made[name]()

    def step(params, state, ids):
        g = jax.grad(lambda p: loss(p["table"], ids) * jnp.sum(p["head"]))(params)
        updates, state = optimiser.update(g, state, params)
        return optax.apply_updates(params, updates), state

    params = {"table": table(), "head": jnp.ones(3)}
    state = optimiser.init(params)
    for pattern in ("repeated", "out of range", "many"):
        check_rows(step, params, state, indices(pattern), factor=4096.0)
        params, state = structured(step)(params, state, indices(pattern))


# --- around and inside transformations ------------------------------------------------------------

FORMS = {
    "jit": lambda f: jax.jit(f),
    "nested jit": lambda f: jax.jit(lambda t, i: jax.jit(f)(t, i)),
    "recomputed": lambda f: jax.checkpoint(f),
    "recomputed, saving products": lambda f: jax.checkpoint(
        f, policy=jax.checkpoint_policies.dots_saveable
    ),
    "chosen": lambda f: lambda t, i: jax.lax.cond(i[0] > 2, f, lambda t, i: jnp.sum(t[i[0]]), t, i),
    "one of three": lambda f: (
        lambda t, i: jax.lax.switch(
            i[0] % 3, [f, lambda t, i: 2.0, lambda t, i: jnp.sum(t[:4] * t[5])], t, i
        )
    ),
    "in a loop": lambda f: (
        lambda t, i: jax.lax.scan(lambda c, j: (c + f(t, j), None), 0.0, jnp.stack([i, i + 1]))[0]
    ),
    "in two loops": lambda f: (
        lambda t, i: jax.lax.scan(
            lambda c, j: (
                c + jax.lax.scan(lambda d, k: (d + f(t, k[None]), None), 0.0, j)[0],
                None,
            ),
            0.0,
            jnp.stack([i, i + 1, i]),
        )[0]
    ),
    "chosen in a loop": lambda f: (
        lambda t, i: jax.lax.scan(
            lambda c, j: (c + jax.lax.cond(j[0] > 2, f, lambda t, j: 0.0, t, j), None),
            0.0,
            jnp.stack([i, i + 1]),
        )[0]
    ),
    "mapped": lambda f: lambda t, i: jnp.mean(jax.vmap(lambda j: f(t, j[None]))(i)),
    "mapped in turn": lambda f: lambda t, i: jnp.sum(jax.lax.map(lambda j: f(t, j[None]), i)),
    "with a rule": lambda f: lambda t, i: jax.nn.relu(f(t, i)),
}
CLOSED = {
    "chosen",
    "one of three",
    "in a loop",
    "in two loops",
    "chosen in a loop",
    "mapped in turn",
}
"""Loops and branches are not opened: their gradients are dense."""


@pytest.mark.parametrize("pattern", ["negative", "out of range"])
@pytest.mark.parametrize("name", sorted(FORMS))
def test_losses_with_calls_branches_and_loops(name, pattern):
    form = FORMS[name](loss)
    (check if name in CLOSED else check_rows)(
        lambda t, i: t - 0.1 * jax.grad(form)(t, i), table(), indices(pattern)
    )


def test_many_steps_in_one_loop():
    def steps(t, ids):
        return jax.lax.scan(lambda t, i: (sgd(t, i), loss(t, i)), t, ids)

    check(steps, table(), jnp.array([[1, 2], [2, 2], [-1, 4]]))


def test_steps_in_a_while_loop_are_those_of_jax():
    def steps(t, ids):
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, sgd(c[1], ids + c[0])), (0, t)
        )

    check(steps, table(), jnp.array([1, 2]))


def test_a_batch_of_steps():
    tables, ids = jnp.stack([table(), table(seed=1)]), jnp.array([[1, 1, 3], [2, -1, 1000]])
    step = structured(sgd)
    same(jax.vmap(step)(tables, ids), jax.vmap(sgd)(tables, ids), factor=512)


def test_a_step_inside_jit_and_scan():
    step = structured(sgd)
    ids = jnp.array([[1, 2], [2, 2]])
    run = lambda step, t: jax.lax.scan(lambda t, i: (step(t, i), None), t, ids)[0]
    same(
        jax.jit(functools.partial(run, step))(table()),
        jax.jit(functools.partial(run, sgd))(table()),
        factor=512,
    )


def test_derivatives_are_those_of_the_step_with_its_own_rules():
    @jax.custom_vjp
    def doubled(x):
        return 2.0 * x

    doubled.defvjp(lambda x: (2.0 * x, None), lambda _, c: (7.0 * c,))
    ids = jnp.array([1, 1, 4])
    step = lambda t: doubled(sgd(t, ids))
    ours = structured(step)
    same(
        jax.grad(lambda t: jnp.sum(ours(t) ** 2))(table()),
        jax.grad(lambda t: jnp.sum(step(t) ** 2))(table()),
    )


def test_tangents_are_those_of_the_step():
    step = lambda t: sgd(t, indices("repeated"))
    ours = structured(step)
    expected = jax.jvp(step, (table(),), (table(seed=2),))
    same(jax.jvp(ours, (table(),), (table(seed=2),)), expected, factor=512)


def test_arguments_by_name_static_structure_and_keys():
    def step(params, *, ids, key, rate=0.5):
        noise = jax.random.normal(key, (ids.shape[0], 3))
        g = jax.grad(lambda t: jnp.sum(t[ids] * noise))(params["t"])
        return {"t": params["t"] - rate * g, "key": key, "n": 3}

    ours, plain = structured(step), jax.jit(step)
    args, kwargs = ({"t": table()},), {"ids": indices("one"), "key": jax.random.key(0)}
    same(ours(*args, **kwargs), plain(*args, **kwargs))


def test_donated_tables_are_taken():
    t = table()
    incrax.structured(sgd, donate_argnums=0)(t, indices("one"))
    assert t.is_deleted()


def test_a_second_call_traces_nothing():
    traces = []

    def step(t, ids):
        traces.append(1)
        return sgd(t, ids)

    function = incrax.structured(step)
    function(table(), indices("one"))
    count = len(traces)
    function(table(seed=3), indices("one"))
    assert len(traces) == count
