"""`guarded(dynamic=...)`: one path for all lengths up to a capacity; guarded functions as bodies of
loops.
"""

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


# --- recordings -----------------------------------------------------------------------------------


def test_fifty_lengths_take_a_path_per_capacity_and_side():
    f = incrax.guarded(loss, dynamic="xs")
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 1001, 50)]
    for n in lengths:
        same(f(W, XS[:n]), of_lax(W, XS[:n]), factor=256.0)
    capacities, known = [], []
    for n in lengths:
        if n > max(known, default=0):
            known.append(1 << max(6, (n - 1).bit_length()))
        capacities.append(min(c for c in known if c >= n))
    assert f.stats.recordings == len(
        {(c, side(n)) for c, n in zip(capacities, lengths, strict=True)}
    )
    assert f.stats.recordings <= 2 * len(known)
    assert f.stats.compiles <= 2 * f.stats.recordings
    recordings = f.stats.recordings
    for n in range(100, 160):
        f(W, XS[:n])
    assert f.stats.recordings == recordings


def test_a_shorter_argument_takes_the_least_capacity_that_is_recorded():
    f = incrax.guarded(lambda xs: jnp.sum(xs.values) + xs.capacity, dynamic=0)
    assert [round(float(f(np.zeros(n)))) for n in (200, 70, 256, 257, 3, 0)] == [
        256,
        256,
        256,
        512,
        256,
        256,
    ]
    assert f.stats.recordings == 2


def test_arguments_are_named_or_counted():
    for dynamic, call in [
        (1, lambda f, xs: f(W, xs)),
        ("xs", lambda f, xs: f(w=W, xs=xs)),
        (["xs"], None),
    ]:
        f = incrax.guarded(loss, dynamic=dynamic)
        for n in (3, 40):
            xs = XS[:n]
            same((call or (lambda f, xs: f(W, xs)))(f, xs), of_lax(W, xs), factor=256.0)


def test_static_arguments_beside_rows_have_paths_of_their_own():
    f = incrax.guarded(lambda n, xs: n * jnp.sum(xs.filled()), static=0, dynamic="xs")
    for n in (2, 3):
        for length in (5, 6):
            same(f(n, xs=XS[:length]), n * jnp.sum(XS[:length]), factor=64.0)
    assert f.stats.recordings == 2
    assert len(f.explain().as_dict()["paths"]) == 2
    f.clear()
    assert f.explain().as_dict()["paths"] == []


# --- results --------------------------------------------------------------------------------------


def test_padded_results_are_the_rows_that_count():
    f = incrax.guarded(lambda w, xs: incrax.scan(partial(cell, w), jnp.zeros(3), xs), dynamic="xs")
    for n in (0, 5, 64):
        same(f(W, XS[:n]), jax.lax.scan(partial(cell, W), jnp.zeros(3), XS[:n]), factor=256.0)


def test_rows_chosen_by_value_take_a_path_per_capacity_of_theirs():
    def positive(xs):
        return incrax.select_rows(xs.values, (xs.values > 0) & xs.mask)

    f = incrax.guarded(positive, dynamic="xs")
    for n in (10, 20, 500, 400, 70, 90, 30):
        x = XS[:n, 0]
        np.testing.assert_array_equal(f(x), x[x > 0])
    assert f.stats.recordings == 3


def test_the_length_of_an_argument_is_a_guard():
    f = incrax.guarded(lambda xs: jnp.sum(xs.filled()) / len(xs), dynamic="xs")
    for n in (4, 5, 4):
        same(f(XS[:n]), jnp.sum(XS[:n]) / n)
    assert f.stats.recordings == 2
    assert "is 5" in str(f.explain().as_dict()["paths"][1]["guards"])


def test_rows_are_true_also_where_there_are_none():
    f = incrax.guarded(lambda xs: xs.length * 2 if xs else 7, dynamic="xs")
    assert int(f(np.zeros(0))) == 0


# --- derivatives ----------------------------------------------------------------------------------


def test_gradients_inside_and_outside_are_those_of_lax_scan():
    inside = incrax.guarded(jax.value_and_grad(loss), dynamic="xs")
    guarded = incrax.guarded(loss, dynamic="xs")
    for n in (3, 50, 64):
        same(inside(W, XS[:n]), jax.value_and_grad(of_lax)(W, XS[:n]), factor=4096.0)
        for argnum in (0, 1):
            same(
                jax.grad(guarded, argnum)(W, XS[:n]),
                jax.grad(of_lax, argnum)(W, XS[:n]),
                factor=4096.0,
            )
    assert (
        guarded.stats.recordings == len({side(n) for n in (3, 50, 64)}) == inside.stats.recordings
    )


def test_padded_results_under_a_derivative_are_exact():
    f = incrax.guarded(lambda xs: incrax.scan(lambda c, x: (c + x, c * x), 0.0, xs)[1], dynamic=0)
    x = XS[:5, 0]
    expected = jax.jacobian(lambda xs: jax.lax.scan(lambda c, x: (c + x, c * x), 0.0, xs)[1])(
        jnp.asarray(x)
    )
    same(jax.jacrev(f)(jnp.asarray(x)), expected, factor=256.0)
    same(jax.jacfwd(f)(jnp.asarray(x)), expected, factor=256.0)


def test_inside_jit_the_rows_are_those_that_there_are():
    f = incrax.guarded(lambda xs: jnp.sum(xs.filled()), dynamic="xs")
    same(jax.jit(f)(XS[:5]), jnp.sum(XS[:5]), factor=64.0)


# --- errors ---------------------------------------------------------------------------------------


def test_an_argument_that_is_not_there():
    with pytest.raises(incrax.errors.LoopTypeError) as caught:
        incrax.guarded(lambda x: x, dynamic="y")(W)
    assert str(caught.value).startswith(
        "`guarded(dynamic=...)` names `y`, and this call has no such argument"
    )


def test_arrays_with_different_numbers_of_rows():
    with pytest.raises(
        incrax.errors.LoopTypeError, match="`guarded` goes through its arrays row by row"
    ):
        incrax.guarded(lambda x: x, dynamic=0)({"a": XS[:2], "b": XS[:3]})


@pytest.mark.parametrize("dynamic", [1.5, [None], True])
def test_options_of_wrong_types(dynamic):
    with pytest.raises(TypeError, match=r"guarded\(dynamic=...\)"):
        incrax.guarded(lambda x: x, dynamic=dynamic)


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
