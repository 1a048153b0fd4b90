"""The pure form: results and derivatives of the function in compiled loops; what a change does not
reach is skipped.
"""

from __future__ import annotations

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check_text, examples, same
from hypothesis import given
from hypothesis import strategies as st
from properties.corpus import CORPUS
from properties.programs import START, programs
from properties.timelines import arguments

import incrax
from incrax.engine.call.pure_flags import compared, declared

X = np.linspace(0.1, 3.0, 20_000)
THETA = np.array([0.5, 1.0, 0.7, 0.2])


def likelihood(theta, x):
    a, b, c, d = theta
    return -jnp.sum(
        jnp.log(
            a * jnp.exp(-((x - b) ** 2))
            + jnp.exp(-c * x) * jnp.arctan2(x, c)
            + jax.nn.softplus(d * x)
        )
    )


def minimal(fun):
    return incrax.incremental(fun, tuning=MINIMAL)


def counting(fun):
    """Without memory for what the host returned, so that every evaluation is one of its calls."""
    return incrax.incremental(fun, tuning=MINIMAL, memory=0)


def check_steps(fun, calls, wrap=jax.jit):
    """Every step equals `jax.jit`."""
    state, step = minimal(fun).pure(*calls[0])
    step, plain = wrap(step), jax.jit(fun)
    for args in calls:
        state, out = step(state, *args)
        same(out, plain(*args))


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_equals_jit(name):
    fun, start = CORPUS[name]
    check_steps(fun, arguments(start, 3, 6))


@examples(1 / 4)
@given(programs(), st.integers(0, 10_000))
def test_random_programs_equal_jit(program, seed):
    check_steps(program, arguments(START, seed, 5), lambda step: step)


# --- loops ----------------------------------------------------------------------------------------


def chain(step, state, theta, x, num):
    def body(carry, k):
        theta, state = carry
        theta = theta.at[k % 4].multiply(1.01)
        state, out = step(state, theta, x)
        return (theta, state), out

    return jax.lax.scan(body, (theta, state), jnp.arange(num))


def plain_chain(theta, x, num):
    def body(theta, k):
        theta = theta.at[k % 4].multiply(1.01)
        return theta, likelihood(theta, x)

    return jax.lax.scan(body, theta, jnp.arange(num))


@pytest.mark.parametrize(
    "data", [incrax.frozen(X), X, jnp.array(X)], ids=["frozen", "numpy", "jax"]
)
def test_a_scan_carries_the_state(data):
    state, step = incrax.incremental(likelihood).pure(THETA, data)
    (theta, state), outs = chain(step, state, jnp.array(THETA), data, 9)
    expected_theta, expected = plain_chain(jnp.array(THETA), data, 9)
    same((theta, outs), (expected_theta, expected))
    same(step(state, theta, data)[1], likelihood(theta, data))


def test_the_form_is_made_and_used_inside_compiled_code():
    @jax.jit
    def run(theta, x):
        state, step = incrax.incremental(likelihood).pure(theta, x)
        return chain(step, state, theta, x, 5)[1]

    same(run(THETA, X), plain_chain(jnp.array(THETA), X, 5)[1])


def test_one_step_serves_all_states_of_a_signature():
    f = minimal(likelihood)
    assert f.pure(THETA, X)[1] is f.pure(THETA * 2, X)[1]
    assert f.pure(THETA, X)[1] is not f.pure(THETA, X[:10])[1]
    first, second = incrax.frozen(X), incrax.frozen(X)
    assert f.pure(THETA, first)[1] is f.pure(THETA, first)[1]
    assert f.pure(THETA, first)[1] is not f.pure(THETA, second)[1]


def test_while_loop_and_vmap():
    state, step = minimal(likelihood).pure(THETA, X)
    thetas = np.stack([THETA, 1.1 * THETA])
    outs = jax.vmap(lambda theta: step(state, theta, X)[1])(thetas)
    same(outs, jnp.stack([likelihood(theta, X) for theta in thetas]))

    def body(carry):
        k, theta, state, _ = carry
        theta = theta.at[0].add(0.1)
        return k + 1, theta, *step(state, theta, X)

    start = (0, jnp.array(THETA), state, jnp.float64(0))
    end = jax.lax.while_loop(lambda c: c[0] < 3, body, start)
    same(end[-1], likelihood(end[1], X))


def test_a_rejected_proposal_needs_no_old_state():
    state, step = minimal(likelihood).pure(THETA, X)
    theta = jnp.array(THETA)
    for k in range(6):
        state, out = step(state, theta.at[k % 4].add(0.1), X)
        same(out, likelihood(theta.at[k % 4].add(0.1), X))
    same(step(state, theta, X)[1], likelihood(theta, X))


# --- what runs ------------------------------------------------------------------------------------


class Counted:
    """Slow functions of one number each, which count their evaluations on the host."""

    def __init__(self):
        self.counts = {"a": 0, "b": 0, "c": 0}

    def slow(self, name, value):
        def evaluate(x):
            self.counts[name] += 1
            return np.sin(x)

        return jax.pure_callback(
            evaluate, jax.ShapeDtypeStruct((), jnp.float64), value, vmap_method="sequential"
        )

    def fun(self, p):
        return self.slow("a", p[0]) + 2 * self.slow("b", p[1]) + self.slow("c", p[2])

    def since(self, before):
        return {name: self.counts[name] - before[name] for name in self.counts}


@pytest.mark.parametrize("compile_step", [jax.jit, lambda step: step], ids=["jit", "eager"])
def test_only_what_a_change_reaches_is_evaluated(compile_step):
    counted = Counted()
    state, step = counting(counted.fun).pure(np.zeros(3))
    step = compile_step(step)
    for p, expected in [
        ([1.0, 0.0, 0.0], {"a": 1, "b": 0, "c": 0}),
        ([1.0, 0.0, 0.0], {"a": 0, "b": 0, "c": 0}),
        ([1.0, 2.0, 3.0], {"a": 0, "b": 1, "c": 1}),
        ([1.0, 2.0, -0.0], {"a": 0, "b": 0, "c": 1}),
        ([1.0, 2.0, 0.0], {"a": 0, "b": 0, "c": 1}),
        ([1.0, np.nan, 0.0], {"a": 0, "b": 1, "c": 0}),
        ([1.0, np.nan, 0.0], {"a": 0, "b": 0, "c": 0}),
    ]:
        before = dict(counted.counts)
        state, out = step(state, np.array(p))
        np.testing.assert_allclose(out, np.sin(p[0]) + 2 * np.sin(p[1]) + np.sin(p[2]), rtol=1e-14)
        assert counted.since(before) == expected


def test_a_scan_evaluates_each_block_when_it_changes():
    counted = Counted()
    state, step = counting(counted.fun).pure(np.zeros(3))
    before = dict(counted.counts)

    def body(carry, k):
        p, state = carry
        p = p.at[k].add(1.0)
        state, out = step(state, p)
        return (p, state), out

    _, outs = jax.lax.scan(body, (jnp.zeros(3), state), jnp.array([0, 0, 1, 2, 0]))
    np.testing.assert_allclose(outs[-1], np.sin(3) + 3 * np.sin(1), rtol=1e-14)
    assert counted.since(before) == {"a": 3, "b": 1, "c": 1}


@pytest.mark.parametrize("changed", [None, ("p[1]",)], ids=["compared", "declared"])
def test_frozen_data_may_be_an_argument_of_the_compiled_loop(changed):
    counted = Counted()
    fun = lambda p, x: counted.slow("a", jnp.max(x)) + 2 * counted.slow("b", p[1])
    data, other = incrax.frozen((X, X[::-1]))
    state, step = counting(fun).pure(np.zeros(3), data)

    @jax.jit
    def run(state, x):
        def turn(carry, _):
            p, state = carry
            p = p.at[1].add(1.0)
            state, out = step(state, p, x, changed=changed)
            return (p, state), out

        return jax.lax.scan(turn, (jnp.zeros(3), state), None, 3)

    expected = np.sin(X[-1]) + 2 * np.sin(np.arange(1, 4))
    before = dict(counted.counts)
    (_, after), outs = run(state, data)
    np.testing.assert_allclose(outs, expected, rtol=1e-12)
    assert counted.since(before) == {"a": 0, "b": 3, "c": 0}
    # The same bits in another place are other data: nothing saved is used, or lost.
    before = dict(counted.counts)
    (_, kept), outs = run(state, other)
    np.testing.assert_allclose(outs, expected, rtol=1e-12)
    assert counted.since(before) == {"a": 3, "b": 3, "c": 0}
    same(kept, state)
    before = dict(counted.counts)
    same(step(after, np.array([0.0, 3.0, 0.0]), data)[1], outs[-1])
    assert counted.since(before) == {"a": 0, "b": 0, "c": 0}


def test_frozen_data_that_are_an_argument_are_no_constant_of_the_program():
    data = incrax.frozen(X)
    state, step = minimal(likelihood).pure(THETA, data)
    run = jax.jit(lambda state, theta, x: chain(step, state, theta, x, 2)[1])
    lowered = run.lower(state, jnp.array(THETA), data)
    assert len(lowered.as_text()) < X.nbytes  # its constants in hexadecimal are twice as long
    same(run(state, jnp.array(THETA), data), plain_chain(jnp.array(THETA), X, 2)[1])


@pytest.mark.parametrize("moved", [False, True], ids=["the data", "other data"])
def test_frozen_data_that_are_an_argument_under_transformations(moved):
    x = X[:50] + 0.1 * moved
    state, step = minimal(likelihood).pure(THETA, incrax.frozen(X[:50]))
    ours = value_of(step, state)
    thetas = np.stack(POINTS)
    for derive in (lambda f: jax.grad(f, (0, 1)), jax.hessian):
        same(jax.jit(derive(ours))(THETA, x), jax.jit(derive(likelihood))(THETA, x), factor=4096)
    over = jax.jit(jax.vmap(ours, (0, None)))(thetas, x)
    same(over, jnp.stack([likelihood(theta, x) for theta in thetas]))
    rows = np.stack([X[:50], x])
    over = jax.jit(jax.vmap(ours, (None, 0)))(THETA, rows)
    same(over, jnp.stack([likelihood(THETA, row) for row in rows]))


def test_declared_changes_are_believed():
    counted = Counted()
    state, step = counting(counted.fun).pure(np.zeros(3))
    run = jax.jit(step, static_argnames="changed")
    before = dict(counted.counts)
    state, out = run(state, np.array([1.0, 2.0, 0.0]), changed=("p[0]", "p[1]"))
    np.testing.assert_allclose(out, np.sin(1) + 2 * np.sin(2), rtol=1e-14)
    assert counted.since(before) == {"a": 1, "b": 1, "c": 0}
    state, kept = run(state, np.array([5.0, 2.0, 0.0]), changed=())
    assert kept == out
    assert counted.since(before) == {"a": 1, "b": 1, "c": 0}
    assert run(state, np.array([1.0, 2.0, 0.0]), changed="p")[1] == out
    assert counted.since(before) == {"a": 2, "b": 2, "c": 1}


def test_declared_flags_may_be_traced():
    counted = Counted()
    state, step = counting(counted.fun).pure(np.zeros(3))

    def body(carry, k):
        p, state = carry
        p = p.at[k].add(1.0)
        state, out = step(state, p, changed={"p": jnp.arange(3) == k})
        return (p, state), out

    before = dict(counted.counts)
    _, outs = jax.lax.scan(body, (jnp.zeros(3), state), jnp.array([0, 1, 1]))
    np.testing.assert_allclose(outs[-1], np.sin(1) + 2 * np.sin(2), rtol=1e-14)
    assert counted.since(before) == {"a": 1, "b": 2, "c": 0}
    _, out = step(
        state, np.array([2.0, 0.0, 0.0]), changed={"p[0]": jnp.bool_(True), "p[1]": False}
    )
    np.testing.assert_allclose(out, np.sin(2), rtol=1e-14)


def test_effects_happen_in_every_step():
    seen = []

    def fun(a, b):
        jax.debug.callback(lambda value: seen.append(float(value)), a)
        return jnp.sin(a) + b

    state, step = minimal(fun).pure(1.0, 2.0)
    run = jax.jit(step)
    for _ in range(3):
        state, _ = run(state, 1.0, 2.0)
    jax.effects_barrier()
    assert seen == [1.0] * 4


# --- derivatives ----------------------------------------------------------------------------------


@jax.custom_vjp
def clipped(x):
    return x**3


clipped.defvjp(lambda x: (x**3, x), lambda x, ct: (jnp.clip(7.0 * ct * x, -5, 5),))


@jax.custom_jvp
def marked(x):
    return jnp.sin(x)


@marked.defjvp
def _(primals, tangents):
    return marked(primals[0]), 3.0 * jnp.cos(primals[0]) * tangents[0]


def smooth(theta, x, n):
    return (
        jnp.sum(jnp.exp(-theta[0] * x) * marked(theta[1] * x) + jnp.log1p((theta[2] * x) ** n))
        * theta[3]
    )


def value_of(step, state):
    return lambda *args: step(state, *args)[1]


POINTS = [THETA, THETA * np.array([1.0, 1.2, 1.0, 1.0]), THETA * 1.5]


@pytest.mark.parametrize("tuning", [MINIMAL, None], ids=["minimal", "cost"])
@pytest.mark.parametrize("theta", POINTS, ids=["same point", "one changed", "all changed"])
def test_derivatives_to_third_order(theta, tuning):
    x = X[:50]
    state, step = incrax.incremental(smooth, tuning=tuning).pure(THETA, x, 2)
    ours, plain = value_of(step, state), smooth
    for derive in (
        jax.grad,
        jax.hessian,
        lambda f: jax.jacfwd(jax.hessian(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
    ):
        same(jax.jit(derive(ours))(theta, x, 2), jax.jit(derive(plain))(theta, x, 2), factor=4096)
    same(jax.grad(ours, 1)(theta, x, 2), jax.grad(plain, 1)(theta, x, 2), factor=1024)
    moved = (theta, x), (np.ones(4), np.ones(50))
    ours_jvp, plain_jvp = (jax.jvp(lambda t, x, f=f: f(t, x, 2), *moved) for f in (ours, plain))
    same(ours_jvp, plain_jvp, factor=1024)


def test_derivative_rules_of_the_user_hold():
    def fun(x, y):
        return clipped(x) * marked(y)

    state, step = minimal(fun).pure(2.0, 3.0)
    for args in [(2.0, 3.0), (0.5, 3.0), (0.1, 0.2)]:
        same(jax.grad(value_of(step, state), (0, 1))(*args), jax.grad(fun, (0, 1))(*args))


def test_derivatives_agree_with_differences():
    state, step = incrax.incremental(likelihood).pure(THETA, X)
    ours = value_of(step, state)
    h = 1e-5
    for k in range(4):
        e = h * np.eye(4)[k]
        slope = (ours(THETA + e, X) - ours(THETA - e, X)) / (2 * h)
        np.testing.assert_allclose(jax.grad(ours)(THETA, X)[k], slope, rtol=1e-6)


def test_derivative_through_a_chain_of_steps():
    state, step = incrax.incremental(likelihood).pure(THETA, X)
    ours = jax.grad(lambda theta: jnp.sum(chain(step, state, theta, X, 4)[1]))
    same(
        ours(jnp.array(THETA)),
        jax.grad(lambda t: jnp.sum(plain_chain(t, X, 4)[1]))(jnp.array(THETA)),
        factor=1024,
    )


def test_the_state_has_no_derivative():
    state, step = minimal(likelihood).pure(THETA, X)

    def through_state(theta):
        new, _ = step(state, theta, X)
        return sum(jnp.sum(x) for x in jax.tree.leaves(new))

    np.testing.assert_array_equal(jax.grad(through_state)(THETA), np.zeros(4))


def test_gradients_are_saved_values_too():
    counted = Counted()

    def value_and_grad(p, x):
        return jax.value_and_grad(lambda p: jnp.sum(jnp.exp(p[0] * x)) * p[1])(p), counted.slow(
            "a", p[2]
        )

    state, step = minimal(value_and_grad).pure(np.ones(3), X)
    before = dict(counted.counts)
    _, (both, _) = step(state, np.array([1.0, 2.0, 1.0]), X)
    same(
        both,
        jax.value_and_grad(lambda p: jnp.sum(jnp.exp(p[0] * X)) * p[1])(np.array([1.0, 2.0, 1.0])),
    )
    assert counted.since(before)["a"] == 0


# --- types and errors -----------------------------------------------------------------------------


def test_results_have_the_types_of_the_function():
    def fun(a, n, key, z):
        return a * 2, n + 1, jax.random.split(key), z * 1j, 3.0, a, jnp.bfloat16(2) * a

    args = (1.5, 2, jax.random.key(0), np.complex64(1 + 2j))
    state, step = minimal(fun).pure(*args)
    for other in [args, (2.5, 3, jax.random.key(1), np.complex64(2j))]:
        state, out = jax.jit(step)(state, *other)
        same(out, jax.jit(fun)(*other))


def test_arguments_of_other_types_are_refused():
    f = minimal(lambda a, x, mode="fast": a * jnp.sum(x["x"]))
    state, step = f.pure(1.0, {"x": X})
    check_text(
        incrax.errors.StepTypeError,
        "`step` got `x['x']` as float32[20000]; the pure form was made for float64[20000]. A "
        "compiled loop cannot "
        "change types. Convert it, or make another form for this type.",
        *(step, state, 1.0, {"x": X.astype("f4")}),
    )
    check_text(
        incrax.errors.StepTypeError,
        "`step` got arguments of the structure PyTreeDef(((*, {'y': *}), {})); the pure form was "
        "made for "
        "PyTreeDef(((*, {'x': *}), {})). A compiled loop cannot change types. Pass arguments like "
        "those given to "
        "`pure`, or make another form for these.",
        *(step, state, 1.0, {"y": X}),
    )
    state, step = f.pure(1.0, {"x": X}, mode="slow")
    check_text(
        incrax.errors.StepTypeError,
        "`step` got other static values in `mode` than the pure form was made with. They are part "
        "of the compiled "
        "function. Make another form for these.",
        *(step, state, 1.0, {"x": X}),
        mode="fast",
    )


def test_frozen_data_must_be_the_same_object():
    data = incrax.frozen(X)
    state, step = minimal(likelihood).pure(THETA, data)
    text = (
        "`step` got `x` as another object than the frozen one that the pure form was made with. "
        "This is usually the array that was frozen, or a copy. Frozen data are no part of the "
        "state, so that a change could not be noticed. Pass the frozen object itself, or take it "
        "as an argument of the function that is compiled, or make the form from an array that is "
        "not frozen."
    )
    check_text(incrax.errors.StepTypeError, text, step, state, THETA, X)
    check_text(incrax.errors.StepTypeError, text, jax.jit(lambda s: step(s, THETA, X)), state)
    rest = jax.jit(lambda x: step.remainder(state, THETA, x, moving=["theta"])(THETA))
    check_text(incrax.errors.StepTypeError, text, rest, data)
    assert not any(leaf.size == X.size for leaf in state.inputs)


def test_a_step_knows_which_arguments_are_frozen():
    f = minimal(lambda a, b: jnp.sum(a - 2 * b))
    data = incrax.frozen(X)
    for args in ((data, X), (X, data), (data, data)):
        state, step = f.pure(*args)
        same(step(state, *args)[1], jax.jit(f.__wrapped__)(*args))


def test_what_is_left_for_inputs_that_move_reads_what_the_others_decide():
    f = lambda a, b, x: (a * b * jnp.sum(jnp.exp(b * x)), jnp.sum(jnp.sin(x)))
    state, step = minimal(f).pure(2.0, 0.5, X)
    rest = step.remainder(state, 2.0, 0.5, X, moving=["a"])
    for a in (2.0, 3.0):
        same(rest(a), f(a, 0.5, X))
    text = str(jax.make_jaxpr(rest)(3.0))
    assert "exp" not in text
    assert "sin" not in text
    assert "mul" in text
    with pytest.raises(incrax.errors.UnknownInputError, match="`c` names no input"):
        step.remainder(state, 2.0, 0.5, X, moving=["a", "c"])


def test_what_is_left_has_the_types_of_jit():
    """Where a number or an array moves, and the other one was the example."""
    product = lambda a, b: a * b
    state, step = minimal(product).pure(2.0, 0.5)
    rest = step.remainder(state, 2.0, 0.5, moving=["a"])
    for a in (3.0, jnp.asarray(4.0), 5.0):
        same(rest(a), jax.jit(product)(a, 0.5))
    b = jnp.float16(0.5)
    state, step = minimal(product).pure(2.0, b)
    rest = step.remainder(state, 2.0, b, moving=["a"])
    same(rest(3.0), jax.jit(product)(3.0, b))
    with pytest.raises(incrax.errors.StepTypeError, match="`a` as a Python number where"):
        rest(jnp.float64(3.0))


def test_declared_names_and_flags_are_checked():
    state, step = minimal(likelihood).pure(THETA, X)
    with pytest.raises(incrax.errors.UnknownInputError, match="`nu` names no input"):
        step(state, THETA, X, changed=["nu"])
    check_text(
        ValueError,
        "`changed['theta']` has 3 booleans for 4 tracked elements; give one boolean, or an array "
        "of the input's shape "
        "(inputs of more than 256 elements count as one).",
        functools.partial(step, changed={"theta": jnp.ones(3, bool)}),
        *(state, THETA, X),
    )


WRONG_CHANGED = {
    "number": (0.5, "step(changed=...)", "a name, or several"),
    "nested": ([["theta"]], "step(changed=...)", "a name, or several"),
    "boolean": (True, "step(changed=...)", "a name, or several"),
    "keys": ({3: True}, "step(changed=...)", "a name, or several"),
    "row numbers": (
        {"theta": [0, 1, 2, 3]},
        "step(changed={'theta': ...})",
        "a boolean, or an array of them",
    ),
    "share": ({"theta": 0.5}, "step(changed={'theta': ...})", "a boolean, or an array of them"),
    "text": ({"theta": "yes"}, "step(changed={'theta': ...})", "a boolean, or an array of them"),
}


@pytest.mark.parametrize(
    ("changed", "option", "expected"), WRONG_CHANGED.values(), ids=WRONG_CHANGED
)
@pytest.mark.every_case
def test_what_changed_is_paths_and_booleans(changed, option, expected):
    state, step = minimal(likelihood).pure(THETA, X)
    seen = changed["theta"] if "theta" in option else changed
    text = f"`{option}` got {seen!r} of type {type(seen).__name__}; it must be {expected}."
    check_text(TypeError, text, step, state, THETA, X, changed=changed)


def weighted(weight, data=THETA):
    return incrax.incremental(lambda a, x: weight * jnp.sum(jnp.exp(a * x) * data))


OTHER_STATE = (
    "`step` got a `{}` that is no state of this function, or no change of one: it was made by "
    "another function, with other data that stay, or has other types. This is usually the state of "
    "another function, or a carry that holds more than the state. Values saved for the one are "
    "wrong for the other. Nothing was evaluated. Pass what `pure` or `sites` of this function "
    "returned, or a step of theirs."
)
OTHERS = {
    "other number": lambda own: weighted(3.0).pure(1.0, FROZEN)[0],
    "other captured data": lambda own: weighted(2.0, 2 * THETA).pure(1.0, FROZEN)[0],
    "other frozen data": lambda own: weighted(2.0).pure(1.0, incrax.frozen(2 * THETA))[0],
    "several": lambda own: jax.tree.map(lambda x: jnp.stack([x, x]), own),
    "tuple": tuple,
    "none": lambda own: None,
}
FROZEN = incrax.frozen(THETA)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.every_case
def test_the_state_of_another_function_is_refused(other):
    own, step = weighted(2.0).pure(1.0, FROZEN)
    wrong = other(own)
    text = OTHER_STATE.format(type(wrong).__name__)
    check_text(incrax.errors.StepTypeError, text, step, wrong, 1.0, FROZEN)


def test_a_form_that_is_made_anew_takes_the_state_also_from_a_file():
    state, _ = weighted(2.0).pure(1.0, FROZEN)
    found = pickle.loads(pickle.dumps(jax.device_get(state)))

    @jax.jit
    def run(state, a):
        _, step = weighted(2.0).pure(a, FROZEN)
        return step(state, a, FROZEN)

    for each in (state, found):
        same(run(each, 1.5)[1], weighted(2.0).fresh(1.5, FROZEN))


def test_mutable_arrays_have_no_pure_form():
    with pytest.raises(incrax.NotCalledError, match="mutable array"):
        minimal(lambda ref: ref[...] * 2).pure(jax.new_ref(jnp.ones(3)))


@pytest.mark.parametrize(
    "twins",
    [
        (0.0, -0.0),
        (np.nan, 1.0),
        (1.0, np.nextafter(1.0, 2.0)),
        (1j, complex(-0.0, 1)),
        (True, False),
        (1, 2),
    ],
    ids=str,
)
def test_flags_compare_bits(twins):
    f = minimal(lambda v: v)
    f(np.array(twins[:1] * 3))
    layout = f._traces.latest.engine.facts.dependence.layout
    old, new = jnp.array(twins[:1] * 3), jnp.array([twins[0], twins[1], twins[0]])
    assert compared(layout, [old], [new]).values[0].tolist() == [False, True, False]
    assert compared(layout, [old], [old]).reach(layout.full) is False
    assert declared(layout, ["v"], ["v[2]"]).values[0].tolist() == [False, False, True]


# --- weak types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example", [1.0, jnp.array(1.0), np.float64(1.0)], ids=["number", "weak array", "strong"]
)
def test_results_of_a_step_have_the_weak_types_of_the_function_at_its_arguments(example):
    f = lambda a, b: (1 / a, a + b, jnp.sin(b), a * 2)
    state, step = incrax.incremental(f).pure(example, 1.0)
    compiled = jax.jit(step)
    strong = jnp.array([0.5, 2.0])[0]
    weak = jnp.asarray(0.25)
    assert weak.weak_type
    assert not strong.weak_type
    for args in [(strong, strong), (weak, strong), (strong, weak), (0.5, 2.0)]:
        same(compiled(state, *args)[1], jax.jit(f)(*args))


def test_a_step_is_carried_by_a_scan_from_a_python_number():
    f = lambda a, x: jnp.sum(x) * a
    state, step = incrax.incremental(f).pure(1.0, X[:7])

    def body(carry, _):
        state, a = carry
        state, out = step(state, a, X[:7])
        return (state, 0.5 * a), out

    start = jnp.asarray([1.0, 2.0])[0]
    _, found = jax.lax.scan(body, (state, start), length=3)
    same(found, f(jnp.asarray([1.0, 0.5, 0.25]), X[:7]))


def test_text_where_a_weak_type_changes_the_arithmetic():
    """A number leaves bfloat16 as it is; an array of single precision does not."""
    x = jnp.ones(3, jnp.bfloat16)
    with jax.enable_x64(False):
        _, step = incrax.incremental(lambda a, x: jnp.sum(a * x)).pure(1.0, x)
        state, _ = incrax.incremental(lambda a, x: jnp.sum(a * x)).pure(1.0, x)
        with pytest.raises(incrax.errors.StepTypeError) as caught:
            step(state, jnp.ones(2)[0], x)
    assert str(caught.value) == (
        "`step` got `a` as a Python number where the pure form was made with an array, or the "
        "other way round. JAX "
        "gives numbers and arrays different types here: the function computes with other dtypes "
        "than those that the "
        "state has. Make the form with the same kind, such as `jnp.float32(1.0)` for an array."
    )
