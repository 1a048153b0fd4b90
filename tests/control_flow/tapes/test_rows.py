"""Guarded functions of rows with room for more, and as bodies of loops."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same
from loop_cases import cell

import incrax

RNG = np.random.default_rng(7)
W, XS = RNG.normal(size=(3, 3)), RNG.normal(size=(1000, 3))


def loss(w, xs, scan=incrax.scan):
    h, _ = scan(partial(cell, w), jnp.zeros(3), xs)
    return jnp.sum(h**2) if h[0] > 0 else jnp.sum(h)


def of_lax(w, xs):
    return loss(w, xs, jax.lax.scan)


def side(n):
    return bool(jax.lax.scan(partial(cell, W), jnp.zeros(3), XS[:n])[0][0] > 0)


def padded(n, capacity=64):
    rows = np.zeros((capacity, 3))
    rows[:n] = XS[:n]
    return incrax.Padded(rows, np.int32(n))


# --- rows with room for more ----------------------------------------------------------------------


def test_lengths_take_a_path_per_capacity_and_side():
    f = incrax.guarded(loss)
    for n in (5, 50, 3, 64, 20):
        same(f(W, padded(n)), of_lax(W, XS[:n]), factor=256.0)
    assert f.stats.recordings == len({side(n) for n in (5, 50, 3, 64, 20)})
    f(W, padded(100, 128))
    assert f.stats.recordings > len({side(n) for n in (5, 50, 3, 64, 20)})


def test_gradients_inside_and_outside_are_those_of_lax_scan():
    inside = incrax.guarded(jax.value_and_grad(loss))
    guarded = incrax.guarded(loss)
    for n in (3, 50, 64):
        same(inside(W, padded(n)), jax.value_and_grad(of_lax)(W, XS[:n]), factor=4096.0)
        same(jax.grad(guarded)(W, padded(n)), jax.grad(of_lax)(W, XS[:n]), factor=4096.0)
    assert (
        guarded.stats.recordings == len({side(n) for n in (3, 50, 64)}) == inside.stats.recordings
    )


def test_the_length_of_an_argument_is_a_guard():
    f = incrax.guarded(lambda xs: jnp.sum(xs.filled()) / len(xs))
    for n in (4, 5, 4):
        same(f(padded(n)), jnp.sum(XS[:n]) / n)
    assert f.stats.recordings == 2
    assert "is 5" in str(f.explain().as_dict()["paths"][1]["guards"])


def test_rows_are_true_also_where_there_are_none():
    f = incrax.guarded(lambda xs: xs.length * 2 if xs else 7)
    assert int(f(padded(0))) == 0


# --- guarded functions as bodies of loops ---------------------------------------------------------


def test_a_guarded_body_is_traced_with_its_loop_and_nothing_is_recorded():
    traces = []

    @incrax.guarded
    def body(carry, x):
        traces.append(1)
        return carry * x + 1.0, carry

    f = jax.jit(lambda init, xs: incrax.scan(body, init, xs))
    init = jnp.ones(())
    expected = jax.lax.scan(lambda c, x: (c * x + 1.0, c), init, XS[:9, 0])
    same(f(init, XS[:9, 0]), expected, factor=256.0)
    num = len(traces)
    same(f(init, XS[:9, 0]), expected, factor=256.0)
    assert len(traces) == num
    assert body.stats.recordings == body.stats.compiles == 0


def test_a_guarded_condition_and_body_of_a_while_loop():
    body = incrax.guarded(lambda x: x / 2)
    cond = incrax.guarded(lambda x: x > 1.0)
    same(
        incrax.while_loop(cond, body, 100.0),
        jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, 100.0),
    )
    assert body.stats.recordings == cond.stats.recordings == 0


@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_a_branch_of_a_guarded_body_on_a_carry_is_an_error_that_names_cond(loop):
    body = incrax.guarded(lambda c, *_: c / 2 if c > 3 else c - 1)
    loops = {
        "scan": lambda: incrax.scan(lambda c, x: (body(c), x), 10.0, XS[:4, 0]),
        "while_loop": lambda: incrax.while_loop(lambda c: c > 1, body, 10.0),
    }
    with pytest.raises(incrax.errors.PythonBranchError, match=r"c > 3.*jax.lax.cond"):
        loops[loop]()
