"""Seed 003, JuliaDiff/ReverseDiff.jl issue 234
(https://github.com/JuliaDiff/ReverseDiff.jl/issues/234).

`guarded` is what the thread asks for: tapes under guards, recorded and looked up without help,
differentiable to any order, nested. The engine without it holds the main demand too, that a
compiled program with a branch never returns the wrong answer in silence; and a loop of any length
is one program, its body compiled once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check_calls, primitives_run, ran_by, same

import incrax

pytestmark = pytest.mark.optimized

LOW, HIGH = np.array([0.1, 0.2, 0.3]), np.array([1.1, 1.2, 1.3])


def python_branch(x):
    return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2


def traced_branch(x):
    return jax.lax.cond(jnp.sum(x) > 1, lambda s: s**3, lambda s: s**2, jnp.sum(x))


# --- branches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [LOW, HIGH], ids=["low", "high"])
def test_a_python_branch_is_refused_and_never_wrong(first):
    f = incrax.incremental(jax.grad(python_branch), tuning=MINIMAL)
    for _ in range(2):
        with pytest.raises(incrax.errors.PythonBranchError, match="guarded"):
            f(first)
    assert f.stats.aborted == 2
    assert f.stats.traces == 0


@pytest.mark.parametrize("first", [LOW, HIGH], ids=["low", "high"])
def test_gradients_are_right_on_both_sides_of_a_branch_wherever_it_was_traced(first):
    f = check_calls(
        jax.grad(traced_branch), [(x,) for x in (first, LOW, HIGH, LOW, HIGH)], tuning=MINIMAL
    )
    same(f(LOW), 2 * np.sum(LOW) * jnp.ones(3))
    same(f(HIGH), 3 * np.sum(HIGH) ** 2 * jnp.ones(3))
    assert f.stats.traces == 1


def test_second_derivatives_pass_through_a_branch():
    check_calls(jax.hessian(traced_branch), [(x,) for x in (LOW, HIGH, LOW)], tuning=MINIMAL)


def test_a_branch_is_left_alone_while_its_inputs_stay():
    def f(x, scale):
        return scale * jax.lax.cond(
            jnp.sum(x) > 1, lambda s: jnp.exp(s), lambda s: jnp.sin(s), jnp.sum(x)
        )

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(LOW, 1.0)
    ours(LOW, 2.0)
    assert "cond" not in primitives_run(ours)


# --- a table of traces by static value ------------------------------------------------------------


def guarded_by_hand(x, side):
    return x[0] ** 3 if side == "high" else x[0] ** 2


def test_a_static_argument_selects_its_own_trace():
    """The thread's sketch, with the guard evaluated by the caller."""
    f = incrax.incremental(jax.grad(guarded_by_hand), tuning=MINIMAL)
    traces = []
    for value in (0.1, 1.1, 0.5, 1.2):
        expected = 3 * value**2 if value > 1 else 2 * value
        same(f(np.array([value]), "high" if value > 1 else "low"), np.array([expected]))
        traces.append(f.stats.traces)
    assert traces == [1, 2, 2, 2]


def test_each_trace_keeps_its_own_values():
    f = incrax.incremental(guarded_by_hand, tuning=MINIMAL)
    x = np.array([1.5])
    f(x, "high"), f(x, "low")
    assert ran_by(f, x, "high") == ran_by(f, x, "low") == 0


# --- guards evaluated by the tape -----------------------------------------------------------------


def test_the_sketch_of_the_thread_records_twice_for_three_calls():
    """`gradient!(gt, [0.1])` no recompilation, `[1.1]` recompilation, `[0.5]` no recompilation;
    guard given by hand.
    """
    f = lambda x: x[0] ** 3 if x[0] > 1 else x[0] ** 2
    gradient = incrax.guarded(jax.grad(f), guard=lambda x: x[0] > 1)
    gradient(np.array([0.0]))
    recordings = []
    for value, expected in ((0.1, 0.2), (1.1, 3 * 1.1**2), (0.5, 1.0)):
        same(gradient(np.array([value])), jnp.array([expected]))
        recordings.append(gradient.stats.recordings)
    assert recordings == [1, 2, 2]


def test_the_guard_of_the_sketch_is_found_without_help():
    f = lambda x: x[0] ** 3 if x[0] > 1 else x[0] ** 2
    gradient = incrax.guarded(jax.grad(f))
    for value in (0.0, 0.1, 1.1, 0.5):
        gradient(np.array([value]))
    assert gradient.stats.recordings == 2
    assert [g["place"].endswith("x[0] > 1") for g in gradient.explain().guards] == [True]


@pytest.mark.parametrize(
    "first", [np.array([0.0, 1.1, 1.0]), LOW, HIGH], ids=["mixed", "low", "high"]
)
def test_the_compiled_tape_of_a_branching_function_is_right_wherever_it_was_recorded(first):
    """The thread's table of four comparisons, of which one was false and one true "for the wrong
    reason".
    """
    tape = incrax.guarded(jax.grad(python_branch))
    tape(first)
    for x in (LOW, HIGH, LOW):
        same(tape(x), jax.grad(python_branch)(x))


def test_a_hessian_of_a_branching_function():
    """`yv = cb.func(xv)` "will break higher order AD"."""
    inside, outside = (
        incrax.guarded(jax.hessian(python_branch)),
        jax.hessian(incrax.guarded(python_branch)),
    )
    for x in (LOW, HIGH):
        same(inside(x), jax.hessian(python_branch)(x))
        same(outside(x), jax.hessian(python_branch)(x))


def test_the_warning_before_a_branch_is_compiled():
    """`Warning: woah buddy, you've got a branch in that function of yours`."""
    report = incrax.check_tape(lambda x: 2 * python_branch(x), LOW)
    assert not report
    assert report.branches[0].expression == "jnp.sum(x) > 1"


def inner_function(x, y):
    return 2 * y if x > 0 else 3 * y**2


def test_the_outer_function_with_an_inner_branch_needs_no_annotation():
    outer = lambda z: jnp.sum(z) * inner_function(z[0], z[1])
    f = incrax.guarded(jax.grad(outer))
    for z in (np.array([1.0, 2.0]), np.array([-1.0, 2.0]), np.array([2.0, 3.0])):
        same(f(z), jax.grad(outer)(z))
    assert f.stats.recordings == 2


def test_static_arguments_of_an_inner_function():
    f = incrax.guarded(jax.grad(inner_function, 1), static="x")
    for x, y in ((1.0, 2.0), (-1.0, 2.0), (1.0, 3.0)):
        same(f(x, y), jax.grad(inner_function, 1)(x, y))
    assert f.stats.recordings == 2


def test_nothing_of_a_rule_of_the_user_is_frozen():
    """The thread's question: what is constant when a tape with a custom gradient that branches is
    compiled? Nothing.
    """

    @jax.custom_vjp
    def branching(x):
        return jax.lax.cond(jnp.sum(x) > 1, lambda s: s**3, lambda s: s**2, jnp.sum(x))

    def backward(total, ct):
        return (jnp.where(total > 1, 3 * total**2, 2 * total) * ct * jnp.ones(3),)

    branching.defvjp(lambda x: (branching(x), jnp.sum(x)), backward)
    tape = incrax.guarded(jax.grad(lambda x: branching(x) if x[0] > -1 else jnp.sum(x)))
    for x in (LOW, HIGH, LOW):
        same(tape(x), jax.grad(python_branch)(x))


def test_a_tape_is_one_value_and_gradient_program_per_path():
    f = incrax.guarded(jax.value_and_grad(python_branch))
    for x in (LOW, HIGH, LOW, HIGH):
        same(f(x), jax.value_and_grad(python_branch)(x))
    assert f.stats.compiles == 2


# --- tapes inside tapes ---------------------------------------------------------------------------


def test_a_compiled_tape_inside_an_uncompiled_function():
    part = incrax.guarded(python_branch)
    outer = lambda x: 2 * part(x) + jnp.sum(x)
    for x in (LOW, HIGH):
        same(jax.grad(outer)(x), 2 * jax.grad(python_branch)(x) + 1)
    assert part.stats.recordings == 2


def test_a_compiled_tape_inside_a_compiled_tape():
    """The thread's "double-compile"."""
    part = incrax.guarded(lambda x: jnp.sum(jnp.abs(x) ** 2))
    outer = incrax.guarded(jax.grad(lambda x: 2 * part(x) if part(x) > 1 else part(x)))
    for x in (LOW, HIGH, LOW):
        same(outer(x), (4 if np.sum(x**2) > 1 else 2) * jnp.asarray(x))
    assert outer.stats.recordings == 2


# --- the thread's loop ----------------------------------------------------------------------------


def thread_loop(xs):
    s = jnp.zeros((), xs.dtype)
    for i, x in enumerate(xs, 1):
        s += i * x
    return s


def test_a_python_loop_over_another_length_is_another_path_and_no_wrong_answer():
    """`gradient!(tape, ones(3))` gave five numbers, `ones(10)` a `BoundsError`."""
    tape = incrax.guarded(jax.grad(thread_loop))
    for length in (5, 3, 10, 5):
        same(tape(np.ones(length)), jnp.arange(1.0, length + 1))
    assert tape.stats.recordings == 3


# --- programs inside programs ---------------------------------------------------------------------


def test_a_compiled_part_in_a_larger_function_changes_nothing():
    inner = jax.jit(lambda x: jnp.sum(x**2))
    check_calls(
        jax.value_and_grad(lambda x: 2 * inner(x)), [(LOW,), (HIGH,), (LOW,)], tuning=MINIMAL
    )
    check_calls(jax.hessian(lambda x: 2 * inner(x)), [(LOW,), (HIGH,)], tuning=MINIMAL)


def test_an_incremental_part_differentiates_to_any_order_in_a_larger_function():
    part = incrax.incremental(lambda x: jnp.sum(x**3), tuning=MINIMAL)
    same(jax.grad(lambda x: 2 * part(x))(LOW), 6 * LOW**2)
    same(jax.hessian(lambda x: 2 * part(x))(LOW), np.diag(12 * LOW))
    assert part.stats.ran == 0


def test_a_custom_gradient_is_respected():
    @jax.custom_vjp
    def f(x):
        return jnp.sum(x)

    f.defvjp(lambda x: (jnp.sum(x), x), lambda x, ct: (ct * 100 * x,))
    ours = check_calls(jax.value_and_grad(f), [(LOW,), (HIGH,)], tuning=MINIMAL)
    same(ours(HIGH)[1], 100 * HIGH)


# --- loops ----------------------------------------------------------------------------------------


def weighted_sum(xs):
    body = lambda s, ix: (s + ix[0] * ix[1], None)
    return jax.lax.scan(body, 0.0, (jnp.arange(1.0, len(xs) + 1), xs))[0]


def test_inputs_of_another_length_get_the_gradient_of_their_length():
    """The thread's loop; its tape answered five numbers for three."""
    f = incrax.incremental(jax.grad(weighted_sum), tuning=MINIMAL)
    for length in (5, 3, 10, 5):
        same(f(np.ones(length)), jnp.arange(1.0, length + 1))
    assert f.stats.traces == 3


def test_what_does_not_change_in_a_loop_leaves_it_and_is_kept():
    def f(h, w, scale):
        core = lambda h, _: (jnp.tanh(h * jnp.sum(jnp.exp(w))) * scale, h)
        return jax.lax.scan(core, h, None, length=6)

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(0.1, LOW, 1.0)
    assert {"exp", "scan"} <= set(primitives_run(ours))
    ours(0.3, LOW, 2.0)
    assert "scan" in primitives_run(ours)
    assert "exp" not in primitives_run(ours)
    calls = [(0.1, LOW, 1.0), (0.1, LOW, 2.0), (0.3, HIGH, 2.0)]
    check_calls(jax.grad(lambda *args: f(*args)[0]), calls, tuning=MINIMAL)


# --- one interface --------------------------------------------------------------------------------


def test_one_interface_for_value_gradient_and_pullback():
    """The thread's `AD.value_and_pullback_function(b, y)`, and the rest of that interface."""
    p = incrax.prepare(traced_branch, LOW, tuning=MINIMAL)
    for x in (LOW, HIGH):
        same(p.value(x), jax.jit(traced_branch)(x))
        same(p.gradient(x), jax.grad(traced_branch)(x))
        same(p.hessian(x), jax.hessian(traced_branch)(x))
        value, pullback = p.pullback(x)
        same(value, p.value(x))
        same(pullback(2.0), 2 * p.gradient(x))
        _, push = p.pushforward(x)
        same(push(np.ones(3)), jnp.sum(p.gradient(x)))
    assert p.stats["gradient"].traces == 1


def of_any_length(xs):
    """The thread's example: `s += i * x` over enumerated rows."""
    turn = lambda carry, x: ((carry[0] + 1, carry[1] + carry[0] * x), None)
    return incrax.scan(turn, (1, 0.0), xs)[0][1]


def test_one_program_serves_loops_of_any_length():
    f = incrax.bucketed(of_any_length, ragged="xs")
    assert [float(f(np.ones(length))) for length in (5, 3, 10)] == [15.0, 6.0, 55.0]
    assert f.num_traces == 1


def test_the_gradient_of_a_loop_of_any_length_is_compiled_once():
    gradient = incrax.bucketed(jax.grad(of_any_length, allow_int=True), ragged=0)
    for length in (5, 3, 10):
        assert gradient(np.ones(length)).tolist() == list(range(1, length + 1))
    assert gradient.num_traces == 1


def test_an_input_of_another_length_is_an_error_and_no_wrong_answer():
    """The thread's tape answered five numbers for three."""
    p = incrax.prepare(of_any_length, np.ones(5), tuning=MINIMAL)
    same(p.gradient(np.ones(5)), jnp.arange(1.0, 6.0))
    with pytest.raises(
        incrax.errors.PreparedTypeError,
        match=r"`xs` as float64\[3\]; it was prepared for float64\[5\]",
    ):
        p.gradient(np.ones(3))
