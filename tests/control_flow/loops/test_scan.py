"""`scan` and `map` against `lax.scan`: values, derivatives in every mode, batches of lengths,
memory, compilations.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, examples, primitives_run, ran_by
from hypothesis import given
from hypothesis import strategies as st
from loop_cases import DERIVATIVES, close, counted_compiles

import incrax

RNG = np.random.default_rng(3)
W, H, XS = RNG.normal(size=(3, 3)), RNG.normal(size=3), RNG.normal(size=(7, 3))
ARGS = (0, 1, 2)


def cell(w, h, x):
    h = jnp.tanh(w @ h + x)
    return h, jnp.sum(jnp.sin(h) * x)


def loss(scan, **options):
    def total(w, h, xs, *length):
        h, ys = scan(partial(cell, w), h, xs, *length, **options)
        return jnp.sum(h**2) + jnp.sum(ys**3)

    return total


# --- values ---------------------------------------------------------------------------------------

KEYS = jax.random.split(jax.random.key(0), 4)
CASES = {
    "vectors": (partial(cell, W), H, XS),
    "Python scalars": (lambda c, x: (c + x, c * x), 0.0, np.arange(4.0)),
    "integers that become floats": (lambda c, x: (c + x, None), 0, np.arange(4.0)),
    "pytrees": (
        lambda c, x: ({"a": c["a"] * x[0], "b": (c["b"][0] + 1,)}, {"y": c["a"], "z": x[1]["k"]}),
        {"a": np.ones(2), "b": (np.int32(0),)},
        (np.arange(5.0), {"k": np.arange(10).reshape(5, 2)}),
    ),
    "no results": (lambda c, x: (c + x, None), np.zeros(3), XS),
    "no carry": (lambda c, x: (c, x**2), (), XS),
    "random keys": (lambda c, k: (c + jax.random.normal(k), k), 0.0, KEYS),
    "complex": (lambda c, x: (c * (x + 1j), c), 1.0 + 0j, np.arange(3.0)),
    "booleans": (lambda c, x: (c & (x > 0), c), True, XS[:, 0]),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_jax(name, reverse):
    f, init, xs = CASES[name]
    actual, expected = (
        incrax.scan(f, init, xs, reverse=reverse),
        jax.lax.scan(f, init, xs, reverse=reverse),
    )
    as_data = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    close(jax.tree.map(as_data, actual), jax.tree.map(as_data, expected))
    assert [x.weak_type for x in jax.tree.leaves(actual[0])] == [
        x.weak_type for x in jax.tree.leaves(expected[0])
    ]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_length_without_rows(length):
    f = lambda c, _: (c * 2, c)
    close(incrax.scan(f, 1.0, None, length), jax.lax.scan(f, 1.0, None, length))
    close(jax.jit(lambda: incrax.scan(f, 1.0, None, length))(), jax.lax.scan(f, 1.0, None, length))


def test_no_rows_give_the_first_carry_and_no_results():
    for run in (lambda f: f, jax.jit):
        h, ys = run(lambda h, xs: incrax.scan(partial(cell, W), h, xs))(H, XS[:0])
        close((h, ys), (jnp.asarray(H), jnp.zeros(0)))


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_past_a_traced_length_do_not_count_and_their_results_are_zero(reverse):
    f = jax.jit(lambda n: incrax.scan(partial(cell, W), H, XS, n, reverse=reverse))
    for n in range(8):
        h, ys = f(n)
        expected_h, expected_ys = jax.lax.scan(partial(cell, W), H, XS[:n], reverse=reverse)
        close((h, ys), (expected_h, jnp.zeros(7).at[:n].set(expected_ys)))


def test_a_traced_length_without_rows_takes_a_capacity():
    f = jax.jit(lambda n: incrax.scan(lambda c, _: (c * 2, c), 1.0, None, n, capacity=6))
    close(f(3), (jnp.asarray(8.0), jnp.array([1.0, 2, 4, 0, 0, 0])))


def test_padded_rows_give_padded_results():
    _, ys = incrax.scan(partial(cell, W), H, incrax.Padded(XS, 4))
    close(ys.exact(), jax.lax.scan(partial(cell, W), H, XS[:4])[1])


@given(
    length=st.integers(0, 70),
    reverse=st.booleans(),
    seed=st.integers(0, 9),
    shape=st.sampled_from([(), (2,), (2, 1)]),
)
@examples(3 / 5)
def test_any_length_carry_and_direction(length, reverse, seed, shape):
    rng = np.random.default_rng(seed)
    init, xs = {"a": rng.normal(size=shape), "n": np.int32(seed)}, rng.normal(size=(length, *shape))

    def turn(c, x):
        return {"a": jnp.sin(c["a"]) + x, "n": c["n"] + 1}, (c["a"] * x, c["n"])

    close(
        incrax.scan(turn, init, xs, reverse=reverse), jax.lax.scan(turn, init, xs, reverse=reverse)
    )


def test_weakly_typed_rows_do_not_widen_the_carry():
    rows = jnp.broadcast_to(jnp.asarray(1.0), (5,))
    f = lambda scan, rows: scan(lambda c, x: (c + x, c * x), jnp.float16(1), rows)
    for run in (lambda f: f, jax.jit):
        actual, expected = run(partial(f, incrax.scan))(rows), f(jax.lax.scan, rows)
        close(actual, expected)
        assert actual[0].dtype == jnp.float16


def test_results_have_the_weak_types_of_jax():
    f = lambda scan: scan(lambda c, x: (c + 1, (2.0, c, x)), 0, XS)[1]
    for run in (lambda f: f, jax.jit):
        actual, expected = run(partial(f, incrax.scan))(), run(partial(f, jax.lax.scan))()
        assert (
            [y.weak_type for y in actual] == [y.weak_type for y in expected] == [True, True, False]
        )
        close(actual, expected)


def test_a_longer_length_of_padded_rows_is_an_error():
    rows = incrax.Padded(np.ones(64), 65)
    with pytest.raises(
        incrax.errors.CapacityError, match="asked for 65 rows or turns, and there is room for 64"
    ):
        incrax.scan(lambda c, x: (c + 1, None), 0, rows)


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivatives_at_a_traced_length(kind, reverse):
    derivative = DERIVATIVES[kind]
    f = jax.jit(derivative(loss(incrax.scan, reverse=reverse), ARGS))
    n = 4
    actual = f(W, H, XS, n)
    expected = derivative(lambda w, h, xs: loss(jax.lax.scan, reverse=reverse)(w, h, xs[:n]), ARGS)(
        W, H, XS
    )
    close(actual, expected)


def test_the_gradient_is_that_of_the_unrolled_loop_and_of_finite_differences():
    def unrolled(w):
        h, total = H, 0.0
        for x in XS:
            h, y = cell(w, h, x)
            total += y**3
        return jnp.sum(h**2) + total

    f = lambda w: loss(incrax.scan)(w, H, XS)
    close(jax.grad(f)(W), jax.grad(unrolled)(W))
    step = 1e-6 * np.eye(9)[4].reshape(3, 3)
    slope = (f(W + step) - f(W - step)) / 2e-6
    np.testing.assert_allclose(jax.grad(f)(W)[1, 1], slope, rtol=1e-6)


def test_the_gradient_of_no_turns_is_that_of_the_first_carry():
    gradient = jax.jit(jax.grad(loss(incrax.scan), ARGS))(W, H, XS, 0)
    close(gradient, (jnp.zeros((3, 3)), 2 * jnp.asarray(H), jnp.zeros((7, 3))))


def test_third_derivatives():
    f = lambda a, scan: scan(lambda c, x: (jnp.sin(c * a) + x, None), a, XS[:, 0])[0]
    third = lambda scan: jax.grad(jax.grad(jax.grad(partial(f, scan=scan))))(0.4)
    close(third(incrax.scan), third(jax.lax.scan))


def test_complex_derivatives():
    f = lambda z, scan: jnp.real(scan(lambda c, x: (c * z + x, c), z, XS[:, 0])[0])
    z = jnp.asarray(0.3 + 0.5j)
    close(jax.grad(partial(f, scan=incrax.scan))(z), jax.grad(partial(f, scan=jax.lax.scan))(z))


def test_carries_that_are_integers_or_do_not_move_have_no_tangent():
    def f(a, scan):
        turn = lambda c, x: ((c[0] + 1, c[1] * a, c[2] + x), c[1] * c[0])
        carry, ys = scan(turn, (0, 1.0, 0.0), XS[:, 0])
        return carry[1] + jnp.sum(ys) + carry[2]

    close(
        jax.jit(jax.hessian(partial(f, scan=incrax.scan)))(0.7),
        jax.hessian(partial(f, scan=jax.lax.scan))(0.7),
    )


def test_what_a_turn_does_to_constants_alone_is_not_stored_per_turn():
    big = jnp.asarray(RNG.normal(size=(40, 40)))
    turn = lambda w, c, x: (jnp.sin(jnp.exp(w) @ c + x), None)
    f = lambda w: jnp.sum(incrax.scan(partial(turn, w), jnp.zeros(40), jnp.ones((200, 40)))[0])
    used = jax.jit(jax.grad(f)).lower(big).compile().memory_analysis().temp_size_in_bytes
    assert used < 200 * 40 * 40 * 8


def test_random_rules_of_derivatives_in_a_turn_are_kept():
    @jax.custom_vjp
    def odd(x):
        return x * 1.0

    odd.defvjp(lambda x: (x, None), lambda _, ct: (ct * 3.0,))
    f = lambda x: incrax.scan(lambda c, _: (odd(c), None), x, None, 2)[0]
    assert float(jax.grad(f)(1.0)) == 9.0


# --- inside other functions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, lambda f: lambda *a: jax.lax.cond(True, f, f, *a)]
)
def test_it_differentiates_inside_other_functions_of_jax(wrap):
    expected = jax.grad(loss(jax.lax.scan), ARGS)(W, H, XS)
    close(jax.grad(wrap(loss(incrax.scan)), ARGS)(W, H, XS), expected)
    close(jax.jit(jax.grad(wrap(loss(incrax.scan)), ARGS))(W, H, XS), expected)


def test_it_differentiates_inside_a_loop_of_its_own_and_of_jax():
    def nested(outer, inner):
        return lambda w: outer(lambda c, x: (c + loss(inner)(w, H, XS * x), None), 0.0, XS[:, 0])[0]

    expected = jax.hessian(nested(jax.lax.scan, jax.lax.scan))(W)
    close(jax.jit(jax.hessian(nested(incrax.scan, incrax.scan)))(W), expected)
    close(jax.jit(jax.hessian(nested(jax.lax.scan, incrax.scan)))(W), expected)


def test_an_incremental_function_of_a_loop():
    f = incrax.incremental(jax.value_and_grad(loss(incrax.scan)), tuning=MINIMAL)
    for w in (W, W + 0.1, W):
        close(f(w, H, XS), jax.value_and_grad(loss(jax.lax.scan))(w, H, XS))


def traced_length(a, b, n):
    """Sums to a length that is traced, and work of its own for another input."""
    total, _ = incrax.scan(lambda c, x: (jnp.sin(c + x), None), a, jnp.arange(64.0), n)
    return total, jnp.sum(jnp.exp(b * jnp.arange(1000.0)))


def test_a_loop_of_traced_length_is_saved_where_nothing_changed():
    f = incrax.incremental(traced_length, tuning=MINIMAL)
    f(1.0, -2.0, 10)
    assert ran_by(f, 1.0, -2.0, 10) == 0
    assert f.stats.unchanged == 1
    assert ran_by(f, 1.0, -2.5, 10) > 0
    assert not {"incrax_loop", "cond"}.intersection(primitives_run(f))
    close(f(1.0, -2.5, 12), traced_length(1.0, -2.5, 12))
    assert {"incrax_loop", "cond"} < set(primitives_run(f))


def test_a_length_that_becomes_too_large_is_an_error_in_incremental_functions_each_time():
    f = incrax.incremental(traced_length, tuning=MINIMAL)
    saved = f(1.0, -2.0, 10)
    for _ in range(2):
        with pytest.raises(
            jax.errors.JaxRuntimeError, match="asked for 65 rows or turns, and there is room for 64"
        ):
            jax.block_until_ready(f(1.0, -2.0, 65))
    close(f(1.0, -2.0, 10), saved)


CHECKED = {
    "jit": (lambda f: f, 6),
    "vmap": (jax.vmap, np.array([2, 6])),
    "checkpoint": (jax.checkpoint, 6),
    "grad": (lambda f: lambda n: jax.grad(lambda c: f(n, c))(0.0), 6),
}


@pytest.mark.parametrize("kind", CHECKED)
def test_a_check_of_the_length_is_no_effect_and_is_not_dropped(kind):
    transform, num = CHECKED[kind]
    f = transform(
        lambda n, c=0.0: incrax.scan(lambda c, x: (jnp.sin(c) + x, None), c, jnp.arange(5.0), n)[0]
    )
    assert not jax.make_jaxpr(f)(num).effects
    with pytest.raises(jax.errors.JaxRuntimeError, match="asked for 6 rows"):
        jax.block_until_ready(jax.jit(f)(num))


def test_a_print_in_a_turn_is_made_in_each_turn(capfd):
    def turn(c, x):
        jax.debug.print("turn {}", x)
        return c + x, None

    f = jax.jit(lambda n: incrax.scan(turn, 0.0, jnp.arange(5.0), n)[0])
    f(3).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out.count("turn") == 3


# --- batches --------------------------------------------------------------------------------------

LENGTHS = np.array([0, 7, 3, 1])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("derivative", [jax.grad, jax.hessian])
def test_a_batch_of_lengths(derivative, reverse):
    f = jax.jit(jax.vmap(derivative(loss(incrax.scan, reverse=reverse), 0), (None, None, None, 0)))
    actual = f(W, H, XS, LENGTHS)
    for number, n in enumerate(LENGTHS):
        close(actual[number], derivative(loss(jax.lax.scan, reverse=reverse), 0)(W, H, XS[:n]))


def test_the_gradient_of_a_batch_of_lengths_with_shared_and_own_inputs():
    hs = jnp.stack([H * k for k in range(4)])
    ours = lambda w, hs: jnp.sum(
        jax.vmap(loss(incrax.scan), (None, 0, None, 0))(w, hs, XS, LENGTHS)
    )
    plain = lambda w, hs: sum(
        loss(jax.lax.scan)(w, h, XS[:n]) for h, n in zip(hs, LENGTHS, strict=True)
    )
    close(jax.jit(jax.grad(ours, (0, 1)))(W, hs), jax.grad(plain, (0, 1))(W, hs))


def test_turns_that_an_example_does_not_take_put_no_nan_into_the_gradient():
    """Past its length an example's rows are zero, where the logarithm has no derivative."""
    rows = np.zeros((3, 4))
    rows[0, :2], rows[1] = [2.0, 3.0], [1.5, 2.5, 3.5, 4.5]
    turn = lambda c, x: (c * jnp.log(x), None)
    f = lambda x, n: incrax.scan(turn, 1.0, x, n)[0]
    batch = jax.jit(jax.vmap(jax.grad(f)))(rows, np.array([2, 4, 0]))
    total = jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(f)(x, jnp.array([2, 4, 0])))))(rows)
    for gradient in (batch, total):
        for number, n in enumerate([2, 4, 0]):
            close(gradient[number, :n], jax.grad(lambda x: jnp.prod(jnp.log(x)))(rows[number, :n]))
            assert not np.any(gradient[number, n:])


def test_sums_over_a_batch_inside_a_turn():
    turn = lambda c, x: (c + jax.lax.psum(x * c, "batch"), None)
    f = lambda scan: jax.vmap(lambda c, x: scan(turn, c, x)[0], axis_name="batch")(
        jnp.ones(2), XS[:2]
    )
    close(f(incrax.scan), f(jax.lax.scan))


def test_a_number_that_a_compiled_function_starts_from_is_a_carry_of_examples():
    def total(num, p, xs):
        turn = lambda carry, x: ((jnp.sin(p * carry[0] * x), carry[1] + 1), carry[1])
        return incrax.scan(turn, (1.0, 0), xs, num)[0][0]

    xs = np.array([0.5, 0.7])
    slopes = jax.vmap(jax.jit(jax.grad(total, 1)), (0, 0, None))
    expected = [jax.grad(total, 1)(num, p, xs) for num, p in ((0, 0.3), (2, 0.4))]
    np.testing.assert_allclose(slopes(np.array([0, 2]), np.array([0.3, 0.4]), xs), expected)


def test_which_example_it_is_can_be_asked_in_a_turn():
    def f(scan):
        turn = lambda c, x: (c + x * jax.lax.axis_index("batch"), jax.lax.axis_index("batch"))
        return jax.vmap(lambda y: (scan(turn, 0.0, XS[:, 0]), y), axis_name="batch")(jnp.ones(3))

    close(f(incrax.scan), f(jax.lax.scan))


def test_a_batch_of_lengths_without_rows_and_one_of_no_examples():
    f = lambda xs, n: incrax.scan(lambda c, x: (c + x, c * x), 1.0, xs, n)
    none = jax.vmap(f, (None, 0))(jnp.zeros(0), jnp.zeros(2, int))
    close(none, (jnp.ones(2), jnp.zeros((2, 0))))
    close(jax.vmap(f, (None, 0))(XS[:, 0], jnp.zeros(0, int)), (jnp.zeros(0), jnp.zeros((0, 7))))


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("memory", [600, 270])
@pytest.mark.parametrize("kind", ["gradient", "Hessian"])
def test_segments_that_are_evaluated_again_give_the_same_derivatives(kind, memory, reverse):
    derivative = DERIVATIVES[kind]
    f = loss(incrax.scan, reverse=reverse, memory=memory)
    close(
        jax.jit(derivative(f, ARGS))(W, H, XS),
        derivative(loss(jax.lax.scan, reverse=reverse), ARGS)(W, H, XS),
    )


def test_the_budget_is_per_example_of_a_batch():
    f = lambda scan, **options: (
        lambda w: jnp.sum(jax.vmap(lambda h: loss(scan, **options)(w, h, XS))(jnp.eye(3)))
    )
    close(jax.jit(jax.grad(f(incrax.scan, memory=270)))(W), jax.grad(f(jax.lax.scan))(W))


def test_the_budget_bounds_the_memory_of_a_gradient():
    wide = lambda c, x: (jnp.sin(jnp.cos(jnp.exp(jnp.sin(c)))) + x, None)
    f = lambda xs, memory: jnp.sum(incrax.scan(wide, jnp.zeros(100), xs, memory=memory)[0])
    xs = jax.ShapeDtypeStruct((4096, 100), np.float64)
    used = {}
    for memory in (2**30, 2**21):
        program = jax.jit(jax.grad(lambda xs: f(xs, memory))).lower(xs).compile()  # noqa: B023
        used[memory] = program.memory_analysis().temp_size_in_bytes
    rows_and_cotangents = 3 * 4096 * 100 * 8
    assert used[2**30] > 4 * 4096 * 100 * 8
    assert used[2**21] < rows_and_cotangents + 2**21


# --- compilations ---------------------------------------------------------------------------------


def test_fifty_lengths_take_at_most_eight_compilations():
    lengths = np.random.default_rng(0).integers(1, 1001, 50)
    xs = np.random.default_rng(1).normal(size=(1000, 3))
    for n in lengths:
        incrax.scan(lambda h, x: (h, x), H, xs[:n])  # how rows are put there, all loops share
    with counted_compiles() as count:
        for n in lengths:
            h, ys = incrax.scan(lambda h, x: cell(W, h, x), H, xs[:n])
            assert ys.shape == (n,)
    assert 1 <= count.num <= 8
    expected = jax.lax.scan(partial(cell, W), H, xs[: lengths[-1]])
    close((h, ys), expected)


def test_gradients_of_a_closure_made_anew_are_compiled_once():
    def gradient(w, n):
        return jax.grad(lambda w: jnp.sum(incrax.scan(lambda h, x: cell(w, h, x), H, XS[:n])[0]))(w)

    gradient(W, 5)
    with counted_compiles() as count:
        actual = [gradient(W * k, n) for k, n in ((1.0, 3), (0.5, 7))]
    assert count.num <= 2  # the results' rows are cut to another length outside of the loop
    expected = jax.grad(lambda w: jnp.sum(jax.lax.scan(lambda h, x: cell(w, h, x), H, XS)[0]))(
        W * 0.5
    )
    close(actual[1], expected)


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (1.0, 2.0), (1, True), (np.nan, 1.0)])
def test_turns_that_differ_in_a_constant_are_different_programs(first, second):
    f = lambda k: incrax.scan(
        lambda c, x: (c, jnp.arctan2(x * 0.0, k * 1.0)), 0.0, np.array([1.0, -1.0])
    )[1]
    for k in (first, second):
        np.testing.assert_array_equal(f(k), jnp.arctan2(np.array([0.0, -0.0]), k * 1.0))


def test_a_turn_is_traced_anew_so_that_what_it_closes_over_is_never_stale():
    scale = [1.0]
    turn = lambda c, x: (c + x * scale[0], None)
    first = incrax.scan(turn, 0.0, np.arange(3.0))[0]
    scale[0] = 2.0
    assert float(incrax.scan(turn, 0.0, np.arange(3.0))[0]) == 2 * float(first)


def test_functions_on_the_host_that_say_they_are_equal_are_different_programs():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        def __eq__(self, other):
            return isinstance(other, Scaled)

        def __hash__(self):
            return 0

        def __call__(self, x):
            return np.asarray(x) * self.factor

    def total(factor):
        shape = jax.ShapeDtypeStruct((), np.float64)
        return float(
            incrax.scan(
                lambda c, x: (c + jax.pure_callback(Scaled(factor), shape, x), None),
                0.0,
                np.ones(3),
            )[0]
        )

    assert [total(1.0), total(2.0)] == [3.0, 6.0]
