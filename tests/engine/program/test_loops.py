"""What does not change from iteration to iteration leaves the loop; results, effects and errors
stay.
"""

from __future__ import annotations

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax
from incrax._program import evaluator, trace
from incrax.engine.program.simplify import inline
from incrax.engine.rewrites.loop_invariants import hoist_invariants

lax = jax.lax
T = np.array([0.3, 1.1, -0.7])


def hoisted(fun, *args):
    return hoist_invariants(inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)))


def names(program):
    return [eqn.primitive.name for eqn in program.eqns]


def inner_names(program):
    """Primitives inside the bodies of a program's loops."""
    found = []
    for eqn in program.eqns:
        for jaxpr in (
            eqn.params[p] for p in ("jaxpr", "body_jaxpr", "cond_jaxpr") if p in eqn.params
        ):
            body = inline(trace(jax.extend.core.jaxpr_as_fun(jaxpr), *jaxpr.in_avals))
            found += [*names(body), *inner_names(body)]
    return found


def check(fun, *args):
    """The program with hoisted equations has every value and type of plain JAX."""
    program = hoisted(fun, *args)
    actual = jax.jit(evaluator(program))(program.consts, *args)
    for x, y in zip(actual, jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
        same(x, y, factor=4)
    return program


def step(c, x, b):
    return c * jnp.exp(-b) + x, c + jnp.sin(b)


def nested(a, b, xs):
    def outer(c, x):
        return lax.scan(lambda d, y: (d + jnp.cos(b) * y * jnp.sin(x), None), c, xs)[0], c

    return lax.scan(outer, a, xs)


LOOPS = {
    "scan": (
        lambda a, b, xs: lax.scan(lambda c, x: step(c, x, b), a, xs),
        (1.0, 2.0, T),
        ["exp", "sin"],
    ),
    "scan of length 0": (
        lambda a, b, xs: lax.scan(lambda c, x: step(c, x, b), a, xs),
        (1.0, 2.0, T[:0]),
        ["exp"],
    ),
    "scan of length 1": (
        lambda a, b, xs: lax.scan(lambda c, x: step(c, x, b), a, xs),
        (1.0, 2.0, T[:1]),
        ["exp"],
    ),
    "reverse": (
        lambda a, b, xs: lax.scan(lambda c, x: step(c, x, b), a, xs, reverse=True),
        (1.0, 2.0, T),
        ["exp"],
    ),
    "unrolled": (
        lambda a, b, xs: lax.scan(lambda c, x: step(c, x, b), a, xs, unroll=2),
        (1.0, 2.0, T),
        ["exp"],
    ),
    "without xs": (
        lambda a, b: lax.scan(lambda c, _: step(c, 1.0, b), a, None, length=4),
        (1.0, 2.0),
        ["exp"],
    ),
    "weakly typed carry": (
        lambda b, xs: lax.scan(lambda c, x: (c * jnp.exp(b), c), 1.0, xs),
        (2.0, T),
        ["exp"],
    ),
    "single precision": (
        lambda b, xs: lax.scan(lambda c, x: (c * jnp.exp(b) + x, c), jnp.float32(0), xs),
        (np.float32(2), T.astype(np.float32)),
        ["exp"],
    ),
    "integer carry": (
        lambda b, xs: lax.scan(lambda c, x: (c + 1, jnp.exp(b) * c), 0, xs),
        (2.0, T),
        ["exp"],
    ),
    "several carries": (
        lambda a, b, xs: lax.scan(
            lambda c, x: ((c[1], c[0] + jnp.exp(b) * x, c[2]), c[2]), (a, b, 3), xs
        ),
        (1.0, 2.0, T),
        ["exp"],
    ),
    "invariant output": (
        lambda a, b, xs: lax.scan(lambda c, x: (c, jnp.exp(b)), a, xs),
        (1.0, 2.0, T),
        ["exp"],
    ),
    "outputs twice": (
        lambda b, xs: lax.scan(lambda c, x: (c + jnp.exp(b), (x, x)), 0.0, xs),
        (2.0, T),
        ["exp"],
    ),
    "unused carry": (
        lambda b, xs: lax.scan(lambda c, x: step(c, x, b), 0.0, xs)[1],
        (2.0, T),
        ["exp", "sin"],
    ),
    "nested": (nested, (1.0, 2.0, T), ["cos"]),
    "constant arithmetic": (
        lambda xs: lax.scan(lambda c, x: (c + jnp.exp(jnp.float64(2.0)) * x, None), 0.0, xs),
        (T,),
        ["exp"],
    ),
    "closed-over array": (
        lambda xs: lax.scan(lambda c, x: (c + jnp.sum(jnp.sin(jnp.asarray(T))) * x, None), 0.0, xs),
        (T,),
        ["sin", "reduce_sum"],
    ),
    "random numbers": (
        lambda key, xs: lax.scan(lambda c, x: (c + jax.random.normal(key) * x, c), 0.0, xs),
        (jax.random.key(4), T),
        ["random_bits", "erf_inv"],
    ),
    "branch inside": (
        lambda b, xs: lax.scan(
            lambda c, x: (c + lax.cond(b > 0, jnp.sin, jnp.cos, b) * x, None), 0.0, xs
        ),
        (2.0, T),
        ["cond"],
    ),
    "custom derivative inside": (
        lambda b, xs: lax.scan(lambda c, x: (c + jax.nn.softplus(b) * x, None), 0.0, xs),
        (2.0, T),
        ["exp"],
    ),
    "gradient": (
        jax.grad(lambda b, xs: lax.scan(lambda c, x: step(c, x, b), 1.0, xs)[0]),
        (2.0, T),
        ["exp"],
    ),
    "while": (
        lambda n, a, b: lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * jnp.exp(b)), (0, a)
        ),
        (3, 1.0, 0.5),
        ["exp"],
    ),
    "while that never runs": (
        lambda n, a, b: lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * jnp.exp(b)), (0, a)
        ),
        (0, 1.0, 0.5),
        ["exp"],
    ),
    "fori": (
        lambda n, a, b: lax.fori_loop(0, n, lambda i, c: c * jnp.exp(b) + i, a),
        (3, 1.0, 0.5),
        ["exp"],
    ),
    "while with a condition of its own inputs": (
        lambda n, a, b: lax.while_loop(
            lambda c: jnp.sum(c) < jnp.sin(n), lambda c: c + jnp.exp(b), jnp.stack([a, a])
        ),
        (1.5, 0.1, -3.0),
        ["exp"],
    ),
    "vmapped scan": (
        jax.vmap(lambda b, xs: lax.scan(lambda c, x: (c * jnp.exp(b) + x, c), 0.0, xs), (0, None)),
        (T, T),
        ["exp"],
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_invariant_equations_leave_the_body_and_results_stay(name):
    fun, args, expected = LOOPS[name]
    program = check(fun, *args)
    assert set(expected) <= set(names(program))
    if name not in ("nested", "gradient", "constant arithmetic"):
        assert not set(expected) & set(inner_names(program))


def test_the_text_shows_the_equation_in_front_of_the_loop():
    program = hoisted(lambda b, n: lax.fori_loop(0, n, lambda i, c: c * jnp.exp(b), 1.0), 2.0, 3)
    assert names(program)[-2:] == ["exp", "while"]
    assert "exp" not in inner_names(program)


def test_inner_loops_hand_their_invariants_through_all_outer_ones():
    program = check(nested, 1.0, 2.0, T)
    assert names(program) == ["cos", "scan"]
    (scan,) = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    body = trace(jax.extend.core.jaxpr_as_fun(scan.params["jaxpr"]), *scan.params["jaxpr"].in_avals)
    assert [n for n in names(body) if n in ("sin", "cos", "scan")] == ["sin", "scan"]


def test_a_loop_that_is_invariant_leaves_as_a_whole():
    def fun(b, xs):
        inner = lambda: lax.scan(lambda d, y: (d * jnp.cos(b) + y, None), b, xs)[0]
        return lax.scan(lambda c, x: (c + inner() * x, None), 0.0, xs)[0]

    program = check(fun, 2.0, T)
    assert names(program) == ["cos", "scan", "scan"]
    assert "scan" not in inner_names(program)


# --- what stays -----------------------------------------------------------------------------------

STAYING = {
    "what changes": lambda a, xs: lax.scan(lambda c, x: (c * jnp.exp(c), jnp.sin(x)), a, xs),
    "moves of data": lambda a, xs: lax.scan(lambda c, x: (c + xs[::-1] * x, None), xs, xs),
    "a conversion": lambda a, xs: lax.scan(
        lambda c, x: (c + a.astype(jnp.float32) * x, None), 0.0, xs
    ),
    "nothing at all": lambda a, xs: lax.scan(lambda c, x: (c, x), a, xs),
    "the condition": lambda a, xs: lax.while_loop(lambda c: c < jnp.exp(a), lambda c: c + 1.0, 0.0),
}


@pytest.mark.parametrize("name", STAYING)
def test_a_loop_with_nothing_to_hoist_is_left_as_it_is(name):
    fun, args = STAYING[name], (jnp.float64(0.5), T)
    before = inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args))
    after = hoist_invariants(before)
    assert [eqn for eqn in after.eqns if eqn.primitive.name in ("scan", "while")] == [
        eqn for eqn in before.eqns if eqn.primitive.name in ("scan", "while")
    ]
    check(fun, *args)


@pytest.mark.parametrize("length", [0, 3])
def test_effects_stay_in_the_loop_and_happen_as_often(length, capfd):
    def fun(b, xs):
        def body(c, x):
            jax.debug.print("b {}", b)
            return c + jnp.exp(b) * x, None

        return lax.scan(body, 0.0, xs)[0]

    program = hoisted(fun, 2.0, T[:length])
    assert names(program) == ["scan"]
    jax.jit(evaluator(program))(program.consts, 2.0, T[:length])
    jax.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["b 2.0"] * length


@pytest.mark.parametrize("trips", [0, 2])
def test_impure_callbacks_stay_in_while_loops(trips):
    calls = []

    def host():
        calls.append(None)
        return np.float64(len(calls))

    def fun(n, b):
        ask = lambda: jax.experimental.io_callback(host, jax.ShapeDtypeStruct((), np.float64))
        return lax.fori_loop(0, n, lambda i, c: c + ask() * jnp.exp(b), 0.0)

    program = hoisted(fun, trips, 0.0)
    (total,) = jax.jit(evaluator(program))(program.consts, trips, 0.0)
    assert float(total) == sum(range(1, trips + 1))
    assert len(calls) == trips


def test_the_nan_of_a_body_that_never_runs_reaches_no_result():
    fun = lambda n, b: lax.fori_loop(0, n, lambda i, c: c + jnp.log(b), 1.0)
    program = check(fun, 0, -1.0)
    assert "log" in names(program)
    assert np.isnan(jax.jit(evaluator(program))(program.consts, 1, -1.0)[0])
    check(lambda b, xs: lax.scan(lambda c, x: (c + jnp.log(b) * x, 1 / b), 1.0, xs), -1.0, T[:0])
    check(lambda b, xs: lax.scan(lambda c, x: (c + jnp.log(b) * x, 1 / b), 1.0, xs), 0.0, T)


def test_the_nan_of_a_body_that_never_runs_is_no_error_when_nans_are_debugged():
    fun = lambda n, a, b: lax.fori_loop(0, n, lambda i, c: c + jnp.log(b), a)
    ours, plain = incrax.incremental(fun, tuning=MINIMAL), jax.jit(fun)
    with jax.debug_nans(True):
        for args in [(0, 1.0, -1.0), (0, 2.0, -1.0), (0, 3.0, -1.0)]:
            same(ours(*args), plain(*args))


def test_a_callback_of_a_scan_of_length_zero_is_not_called():
    calls = []

    def host(b):
        calls.append(float(b))
        return np.asarray(b)

    def fun(a, b, xs):
        ask = lambda: jax.pure_callback(host, jax.ShapeDtypeStruct((), np.float64), b)
        return lax.scan(lambda c, x: (c + ask() * x, None), a, xs)[0]

    ours, plain = incrax.incremental(fun, tuning=MINIMAL), jax.jit(fun)
    for a in (1.0, 2.0, 3.0):
        same(ours(a, 2.0, T[:0]), plain(a, 2.0, T[:0]))
    assert calls == []


def test_vmapped_loops_of_different_lengths():
    def fun(n, b):
        return jax.vmap(lambda n: lax.fori_loop(0, n, lambda i, c: c * jnp.exp(b), 1.0))(n)

    check(fun, np.array([0, 2, 5]), 0.5)


# --- the whole engine -----------------------------------------------------------------------------


def test_a_hoisted_value_is_saved_while_its_input_is_unchanged():
    def fun(a, b, xs):
        return lax.scan(lambda c, x: (c * a + x * jnp.exp(b), None), 0.0, xs)[0]

    f = incrax.incremental(fun, tuning=MINIMAL)
    f(0.5, 1.0, T)
    f(0.6, 1.0, T)
    assert "exp" not in [row["primitive"] for row in f.explain().as_dict()["ran"]]
    f(0.6, 1.1, T)
    assert "exp" in [row["primitive"] for row in f.explain().as_dict()["ran"]]
    same(f(0.6, 1.1, T), jax.jit(fun)(0.6, 1.1, T))
