"""FLOPs, transcendentals and bytes of equations with known counts; prices that grow with the
work.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax._program import trace
from incrax.engine.program import cost as cost_module
from incrax.engine.program.cost import (
    CALLBACK_S,
    LOOP_KERNEL_SHARE,
    UNKNOWN_TRIPS,
    ZERO,
    Calibration,
    Cost,
    calibrate,
    equation_cost,
    host_bytes,
    is_free,
    num_host_calls,
    total_cost,
)
from incrax.engine.program.simplify import inline

lax = jax.lax
X, Y = np.ones((4, 5)), np.ones((5, 6))
V = np.ones(64)
S = np.eye(6)


def equations(fun, *args):
    return inline(trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)).eqns


def cost(fun, *args):
    return total_cost(equations(fun, *args))


# --- counts ---------------------------------------------------------------------------------------

FLOPS = {
    "negation": (jnp.negative, (V,), 64),
    "sum": (jnp.sum, (V,), 64 - 1),
    "sum of rows": (lambda x: x.sum(1), (X,), 20 - 4),
    "integer power": (lambda x: x**3, (V,), 2 * 64),
    "square root": (lambda x: lax.sqrt(x), (V,), 64),
    "matrix product": (jnp.matmul, (X, Y), 2 * 4 * 5 * 6),
    "batched product": (
        lambda x, y: jnp.einsum("bij,jk->bik", x, y),
        (np.ones((3, 4, 5)), Y),
        3 * 2 * 4 * 5 * 6,
    ),
    "matrix times vector": (lambda x: x @ x[0], (X,), 2 * 4 * 5),
    "outer product by dot": (
        lambda x: jnp.einsum("i,j->ij", x[0], x[1], optimize=False),
        (X,),
        5 * 5,
    ),
    "complex product": (jnp.matmul, (X.astype(complex), Y.astype(complex)), 4 * 2 * 4 * 5 * 6),
    "convolution": (
        lambda x, k: lax.conv(x, k, (1, 1), "VALID"),
        (np.ones((2, 3, 8, 8)), np.ones((7, 3, 3, 3))),
        2 * (2 * 7 * 6 * 6) * (3 * 3 * 3),
    ),
    "triangular solve": (
        lambda s, b: lax.linalg.triangular_solve(s, b, left_side=True),
        (S, np.ones((6, 2))),
        36 * 2,
    ),
    "reshapes": (lambda x: jnp.broadcast_to(x.T.reshape(2, 10)[None, 1], (3, 10)), (X,), 0),
}
XLA_COUNTS_TOO = ("negation", "matrix product", "batched product", "matrix times vector")


@pytest.mark.parametrize("name", FLOPS)
def test_flops_of_known_equations(name):
    fun, args, expected = FLOPS[name]
    assert cost(fun, *args).flops == pytest.approx(expected, rel=1e-12)


@pytest.mark.cpu
@pytest.mark.parametrize("name", XLA_COUNTS_TOO)
def test_flops_agree_with_those_of_xla(name):
    fun, args, expected = FLOPS[name]
    counted = jax.jit(fun).lower(*args).compile().cost_analysis()
    assert counted["flops"] == expected


@pytest.mark.parametrize(
    "fun", [lambda x: x + x, lambda x: x * (x - 1), lambda x: jnp.where(x > 0, x, x)]
)
def test_elementwise_equations_count_one_flop_per_element(fun):
    num_computing = sum(not is_free(eqn) for eqn in equations(fun, V))
    counted = cost(fun, V)
    assert counted.flops + counted.int_ops == num_computing * V.size


def test_comparisons_are_integer_operations():
    assert cost(lax.sort, V).int_ops == 64 * 6
    assert cost(lambda x: x > 0, V).int_ops == 64
    assert cost(lax.sort, V).flops == cost(lambda x: x > 0, V).flops == 0


@pytest.mark.parametrize("fun", [lambda x, i: x.at[i].add(1.0), lambda x, i: x.at[i].mul(x[i])])
def test_a_scatter_that_computes_costs_something_per_update(fun):
    scatter = next(
        eqn for eqn in equations(fun, V, np.arange(50)) if eqn.primitive.name.startswith("scatter")
    )
    assert equation_cost(scatter).flops >= 50
    assert equation_cost(scatter).bytes >= 2 * V.nbytes


@pytest.mark.parametrize("num_matrices", [1, 5])
def test_a_factorization_is_cubic(num_matrices):
    eqns = equations(jnp.linalg.cholesky, np.stack([S] * num_matrices))
    (flops,) = [equation_cost(eqn).flops for eqn in eqns if eqn.primitive.name == "cholesky"]
    assert flops == pytest.approx(num_matrices * 6**3 / 3)


TRANSCENDENTALS = {
    "exp": (jnp.exp, (V,), 64),
    "log": (jnp.log, (X,), 20),
    "sin": (jnp.sin, (V,), 2 * 64),
    "erf": (jax.scipy.special.erf, (V,), 4 * 64),
    "lgamma": (jax.scipy.special.gammaln, (V,), 10 * 64),
    "complex exp": (jnp.exp, (V.astype(complex),), 4 * 64),
    "none": (lambda x: x @ x, (V,), 0),
}


@pytest.mark.parametrize("name", TRANSCENDENTALS)
def test_transcendentals_of_known_equations(name):
    fun, args, expected = TRANSCENDENTALS[name]
    assert cost(fun, *args).transcendentals == expected


def test_bytes_are_those_read_and_written_and_literals_are_none():
    assert cost(lambda x: x + 1.0, V).bytes == 2 * V.nbytes
    assert cost(lambda x, y: x + y, V, V).bytes == 3 * V.nbytes
    assert cost(jnp.matmul, X, Y).bytes == 8 * (20 + 30 + 24)
    assert cost(lambda x: x + 1, np.ones(64, np.float32)).bytes == 2 * 256
    assert cost(lambda x: jnp.split(x, 2), V).bytes == 2 * V.nbytes


def test_keys_and_empty_arrays_have_a_cost():
    assert cost(lambda key: jax.random.bits(key, (32,)), jax.random.key(0)).int_ops >= 32
    assert cost(lambda x: (jnp.exp(x), jnp.sum(x), x.T @ x), np.zeros((0, 3))).transcendentals == 0


def test_moves_of_data_are_free_and_arithmetic_is_not():
    moves = equations(lambda x: (x.T, x[1:], x[::-1], x.reshape(-1), x.astype(np.float32)), X)
    assert all(map(is_free, moves))
    assert not any(map(is_free, equations(lambda x: (x * 2, jnp.exp(x), jnp.sum(x)), X)))


# --- equations that hold others -------------------------------------------------------------------


def test_a_scan_costs_its_body_times_its_length():
    def scan(x):
        return lax.scan(lambda c, y: (c * jnp.exp(y), None), 1.0, x)[0]

    lengths = [cost(scan, np.ones(n)) for n in (0, 1, 10)]
    assert lengths[0] == ZERO
    assert lengths[2] == lengths[1] * 10
    assert lengths[1].transcendentals == 1


def test_loops_of_unknown_length_cost_a_fixed_number_of_iterations():
    body = cost(lambda c: (c < 9, jnp.exp(c) + 1), 1.0)
    loop = cost(lambda c: lax.while_loop(lambda c: c < 9, lambda c: jnp.exp(c) + 1, c), 1.0)
    assert (loop.flops, loop.transcendentals) == (
        UNKNOWN_TRIPS * body.flops,
        UNKNOWN_TRIPS * body.transcendentals,
    )


def test_nested_loops_multiply():
    def scan(x):
        inner = lambda c, y: (c + jnp.exp(y), None)
        return lax.scan(lambda c, _: (lax.scan(inner, c, x)[0], None), 0.0, None, length=7)[0]

    assert cost(scan, np.ones(5)).transcendentals == 35


def test_a_branch_costs_what_its_dearest_side_does():
    side = lambda x: cost(lambda x: jnp.exp(x) * jnp.sum(x), x)
    both = cost(lambda x: lax.cond(x[0] > 0, lambda: jnp.exp(x) * jnp.sum(x), lambda: x), V)
    assert both.transcendentals == side(V).transcendentals
    assert both.flops >= side(V).flops


def test_a_branch_of_transcendentals_is_dearer_than_one_of_few_flops():
    both = cost(lambda x: lax.cond(x[0] > 0, lambda: jnp.exp(x), lambda: x * 2), V)
    assert both.transcendentals == V.size


def test_closed_calls_cost_their_body():
    program = trace(lambda x: [jax.jit(lambda x: jnp.exp(x) @ x)(x)], V)
    assert total_cost(program.eqns) == total_cost(inline(program).eqns)


# --- arithmetic of costs --------------------------------------------------------------------------


def test_costs_add_up():
    one, two = Cost(1.0, 2.0, 3.0), Cost(10.0, 20.0, 30.0)
    assert one + two == two + one == Cost(11.0, 22.0, 33.0)
    assert one + ZERO == one
    assert one * 3 == one + one + one
    assert total_cost([]) == ZERO
    with pytest.raises(TypeError):
        one + 1  # noqa: B018


def test_the_cost_of_a_program_is_that_of_its_equations():
    eqns = equations(lambda x: jnp.sum(jnp.exp(x) * 2), V)
    assert total_cost(eqns) == sum((equation_cost(eqn) for eqn in eqns), ZERO)


# --- seconds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Calibration, calibrate])
def test_every_price_is_positive_and_grows_with_the_work(make):
    calibration = make()
    assert all(getattr(calibration, field.name) > 0 for field in fields(calibration))
    assert (
        0
        < calibration.load_seconds(0)
        < calibration.load_seconds(10**6)
        < calibration.load_seconds(10**9)
    )
    assert (
        0
        < calibration.save_seconds(0)
        < calibration.save_seconds(10**6)
        < calibration.save_seconds(10**9)
    )
    assert calibration.load_seconds(10**6) <= calibration.save_seconds(10**6)
    for fun in (jnp.exp, jnp.sum, jnp.sort, jnp.cumsum, lambda x: x + 1, lambda x: x @ x, jnp.tan):
        seconds = [
            sum(map(calibration.seconds, equations(fun, np.ones(n)))) for n in (8, 10**3, 10**6)
        ]
        assert all(0 < small < large for small, large in itertools.pairwise(seconds))


def test_moving_data_is_nearly_nothing_inside_a_fused_program():
    (move,) = equations(lambda x: x[::-1], np.ones(10**6))
    (work,) = equations(jnp.exp, np.ones(10))
    assert 0 < Calibration().seconds(move) < Calibration().seconds(work)


def test_a_call_to_the_host_is_dear():
    callback = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    (eqn,) = equations(callback, np.ones(3))
    assert Calibration().seconds(eqn) >= CALLBACK_S


def test_calls_to_the_host_are_counted_inside_other_equations():
    call = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    twice = lambda x: call(x) + call(x + 1)
    counts = {
        lambda x: lax.scan(lambda c, _: (twice(c), None), x, None, length=5)[0]: 10,
        lambda x: lax.cond(x > 0, twice, call, x): 1,
        lambda x: lax.cond(x > 0, twice, jnp.sin, x): 0,
        lambda x: lax.while_loop(lambda c: c < 9, lambda c: call(c) + 1, x): UNKNOWN_TRIPS,
        jax.jit(lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=5)[0]): 0,
        jax.jit(twice): 2,
    }
    for fun, expected in counts.items():
        eqns = equations(fun, 1.0)
        assert sum(map(num_host_calls, eqns)) == expected
        assert sum(map(Calibration().seconds, eqns)) >= expected * CALLBACK_S


def test_bytes_that_the_host_takes_and_returns_are_those_of_the_branch_with_most():
    result = jax.ShapeDtypeStruct((100,), np.float64)
    call = lambda x: jax.pure_callback(lambda x: np.full(100, x), result, x).sum()
    keyed = lambda key: jax.pure_callback(lambda key: np.ones(100), result, key).sum()
    num_bytes = {
        jnp.sin: 0,
        lambda x: lax.cond(x > 0, jnp.sin, call, x): 808,
        lambda x: lax.fori_loop(0, 5, lambda _, c: call(c), x): 5 * 808,
    }
    for fun, expected in num_bytes.items():
        assert sum(map(host_bytes, equations(fun, 1.0))) == expected
    assert sum(map(host_bytes, equations(keyed, jax.random.key(0)))) == math.inf


def test_equations_that_are_not_fused_pay_for_their_bytes():
    calibration = Calibration(flop_s=0.0, transcendental_s=0.0, read_s=1.0, kernel_s=0.0)
    (fused,) = equations(lambda x: -x, V)
    (sort,) = equations(lax.sort, V)
    assert calibration.seconds(fused) == pytest.approx(1e-9)
    assert calibration.seconds(sort) == pytest.approx(2 * V.nbytes)


def prices(**known):
    """Prices that are nothing but for these."""
    return Calibration(**{field.name: 0.0 for field in fields(Calibration)} | known)


def seconds(calibration, fun, *args):
    return sum(map(calibration.seconds, equations(fun, *args)))


def test_what_is_not_fused_starts_a_kernel_of_its_own():
    kernels = prices(kernel_s=1.0)
    assert seconds(kernels, lambda x: jnp.exp(-x) * 2.0, V) == pytest.approx(0, abs=1e-6)
    assert seconds(kernels, lambda x: jnp.sum(x) + jnp.sum(jnp.exp(x)), V) == pytest.approx(2)


def test_kernels_of_a_loop_start_faster():
    kernels = prices(kernel_s=1.0)
    loop = lambda x: lax.scan(lambda c, _: (jnp.sin(S @ c), None), x, None, length=5)[0]
    assert seconds(kernels, loop, np.ones(6)) == pytest.approx(5 * LOOP_KERNEL_SHARE)
    side = lambda x: lax.cond(x[0] > 0, lambda x: S @ (S @ x), lambda x: S @ x, x)
    assert seconds(kernels, side, np.ones(6)) == pytest.approx(2)


def test_products_inside_a_loop_are_products():
    loop = lambda x: lax.scan(lambda c, _: (S @ c, None), x, None, length=5)[0]
    assert seconds(prices(dot_flop_s=1.0), loop, np.ones(6)) == pytest.approx(5 * 2 * 36)


def test_cores_share_what_is_fused_and_large_and_products():
    halves = prices(flop_s=1.0, dot_flop_s=1.0, large_share=0.5)
    by_one = prices(flop_s=1.0, dot_flop_s=1.0, large_share=1.0)
    many = np.ones((2, cost_module.LARGE // 2))
    shared = {
        lambda x: x + 1.0: True,
        lambda x: x[:, :-1] + 1.0: False,  # too few
        lambda x: x.T @ np.ones((2, 1)) @ np.ones((1, 2)): True,
        lambda x: jnp.cumsum(x, axis=1): False,  # runs apart
    }
    for function, is_shared in shared.items():
        share = seconds(halves, function, many) / seconds(by_one, function, many)
        assert (share < 0.9) == is_shared


def test_a_quotient_of_complex_doubles_is_dear():
    by_element = prices(flop_s=1.0)
    double, single = (
        seconds(by_element, lambda x: x / (x + 1.0), np.ones(10, dtype))
        for dtype in (np.complex128, np.complex64)
    )
    assert double > 2.5 * single


def test_what_is_timed_runs_in_turns_that_read_each_other():
    x = np.linspace(0.0, 1.0, 5)
    probes = (jnp.sum, lambda x: jnp.sum(2e9 * x))
    by_one, by_two = cost_module._looped(probes, 3)
    expected = [0.0, 0.0]
    for _ in range(3):
        expected[0] = np.sum(x + 1e-9 * expected[0])
        expected[1] = np.sum(2e9 * (x + 1e-9 * expected[1]))
    np.testing.assert_allclose([by_one(x), by_two(x)], expected, rtol=1e-12)


def test_what_is_looked_up_takes_longer_than_what_lies_in_order():
    by_element = prices(flop_s=1.0)
    rows = np.arange(64) % 7
    taken_s = seconds(by_element, lambda x: x.at[rows].get(mode="promise_in_bounds"), V)
    assert taken_s > 10 * seconds(by_element, lambda x: x + 1.0, V)


def test_a_machine_is_measured_in_the_middle_of_a_trace(monkeypatch):
    """Else the probes would become part of the function that is traced, and take no time."""
    key = cost_module._setting()
    monkeypatch.setitem(cost_module._calibrations, key, None)
    made = []
    monkeypatch.setattr(
        cost_module, "_measure", lambda _: made.append(jnp.ones(3) + 1.0) or Calibration()
    )
    monkeypatch.setattr(cost_module._cache_folder, "save", lambda *_: None)
    jax.make_jaxpr(lambda x: (calibrate(), x)[1])(1.0)
    assert not isinstance(made[0], jax.core.Tracer)


def test_a_machine_is_measured_once():
    assert calibrate() is calibrate()


@pytest.mark.parametrize(("dtype", "times"), [(np.float64, 14), (np.float32, 2)])
def test_double_precision_has_no_vector_code_for_a_sine(dtype, times):
    x = np.ones(1000, dtype)
    sine_s, exponential_s = (
        Calibration().seconds(equations(function, x)[-1]) for function in (jnp.sin, jnp.exp)
    )
    assert sine_s == pytest.approx(times * exponential_s, rel=0.01)


def test_runs_go_on_as_long_as_they_become_faster(monkeypatch):
    """Of a machine that is busy at first."""
    seconds = iter([1e-3 / (1 + number // 10) for number in range(100)] + [1e-5] * 1000)
    monkeypatch.setattr(cost_module, "_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(cost_module, "_MAX_S", 60.0)
    assert cost_module._best_seconds([lambda x: x], (1.0,)) == [1e-5]


def test_runs_end_where_none_is_faster(monkeypatch):
    times = []
    monkeypatch.setattr(cost_module, "_seconds", lambda *_: times.append(1) or 1e-3)
    assert cost_module._best_seconds([lambda x: x], (1.0,)) == [1e-3]
    assert len(times) == cost_module._REPEATS + 1


def test_a_call_takes_no_longer_than_on_any_machine(monkeypatch):
    monkeypatch.setattr(cost_module, "_best_seconds", lambda functions, _: [1e-2] * len(functions))
    assert cost_module._measure(np.dtype(np.float64)).call_s == cost_module._MAX_CALL_S
