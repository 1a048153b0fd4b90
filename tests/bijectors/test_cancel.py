"""Passes that undo each other across calls, by value number; and whatever stands between."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples
from hypothesis import example, given
from hypothesis import strategies as st

import incrax
from bijectors.traced import Sinh, X, markers, passes, sinh
from incrax import _jax, bijectors

INVERSE = jax.jit(lambda b, y, *context: b.inverse_and_log_det(y, *context))
FORWARD = jax.jit(lambda b, x, *context: b.transform_and_log_det(x, *context))


def cancelled(f, *args):
    """A function without the passes that undo each other, and the markers that are left."""
    jaxpr = bijectors.cancel(jax.make_jaxpr(f)(*args))
    tree = jax.tree.structure(jax.eval_shape(f, *args))
    run = lambda *args: jax.tree.unflatten(
        tree, jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *jax.tree.leaves(args))
    )
    return run, sorted(set(passes(_jax.open_jaxpr(jaxpr))))


def agree(got, expected):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-9), got, expected)


def check(f, *args, left):
    run, found = cancelled(f, *args)
    assert found == sorted(left)
    plain = bijectors.set_record_flow_graph(False)(f)
    agree(run(*args), plain(*args))
    agree(jax.jacobian(run, (0, 1))(*args), jax.jacobian(plain, (0, 1))(*args))


def test_the_inverse_of_an_output_is_its_source_through_calls():
    f = lambda b, x: INVERSE(b, FORWARD(b, x)[0])
    assert markers(f, sinh(), X) == ["forward", "inverse"]
    check(f, sinh(), X, left=["forward"])
    run, _ = cancelled(lambda b, x: f(b, x)[0], sinh(), X)
    assert not _jax.trace_body(run, sinh(), X).eqns


def test_the_forward_pass_of_an_inverse_is_its_source_through_calls():
    check(lambda b, y: FORWARD(b, INVERSE(b, y)[0]), sinh(), X, left=["inverse"])


def test_a_log_determinant_that_was_not_required_is_computed_from_the_source():
    forward = jax.jit(lambda b, x: b.forward(x, requires_ladj=False))
    inverse = jax.jit(lambda b, y: b.inverse(y, requires_ladj=False))
    check(lambda b, x: INVERSE(b, forward(b, x)), sinh(), X, left=["forward", "ladj"])
    check(lambda b, y: FORWARD(b, inverse(b, y)), sinh(), X, left=["inverse", "ladj"])


def test_a_log_determinant_alone_is_that_of_the_pass():
    ladj = jax.jit(lambda b, x, y: b.log_abs_det_jacobian(x, y))

    def f(b, x):
        y, _ = FORWARD(b, x)
        return y, ladj(b, x, y)

    def g(b, y):
        x, _ = INVERSE(b, y)
        return x, ladj(b, x, y)

    check(f, sinh(), X, left=["forward"])
    check(g, sinh(), X, left=["inverse"])
    check(lambda b, x: ladj(b, 2 * x, FORWARD(b, x)[0]), sinh(), X, left=["forward", "ladj"])


def test_parameters_computed_twice_from_the_same_inputs_are_the_same():
    forward = jax.jit(lambda w, x: bijectors.remember(Sinh(jax.nn.softplus(w))).forward(x))
    inverse = jax.jit(
        lambda w, y: bijectors.remember(Sinh(jax.nn.softplus(w))).inverse_and_log_det(y)
    )
    check(lambda w, x: inverse(w, forward(w, x)), X, X, left=["forward"])
    check(lambda w, x: inverse(w * 1.5, forward(w, x)), X, X, left=["forward", "inverse"])


def test_a_context_is_part_of_a_pass():
    same = lambda b, x: INVERSE(b, FORWARD(b, x, 2 * x)[0], x * 2)
    other = lambda b, x: INVERSE(b, FORWARD(b, x, 2 * x)[0], x + x)
    check(lambda b, x: INVERSE(b, FORWARD(b, x, 2 * x)[0], 2 * x), sinh(), X, left=["forward"])
    check(other, sinh(), X, left=["forward", "inverse"])
    check(lambda b, x: INVERSE(b, FORWARD(b, x, 2 * x)[0]), sinh(), X, left=["forward", "inverse"])
    agree(cancelled(same, sinh(), X)[0](sinh(), X), same(sinh(), X))


@pytest.mark.parametrize(
    "between",
    [
        jax.lax.stop_gradient,
        lambda y: y + 0.5,
        lambda y: y * 1.0,
        lambda y: y[::-1],
        lambda y: jnp.sinh(jnp.arcsinh(y)),
    ],
    ids="stop_gradient sum product reversal inverses".split(),
)
def test_nothing_is_left_out_across_another_operation(between):
    check(
        lambda b, x: INVERSE(b, between(FORWARD(b, x)[0])), sinh(), X, left=["forward", "inverse"]
    )


def test_another_bijection_is_another_bijection():
    class Cosh(Sinh):
        """The same parameters, other code."""

    jax.tree_util.register_pytree_node(
        Cosh, lambda s: ((s.a,), None), lambda aux, kids: Cosh(kids[0])
    )
    f = lambda b, x: INVERSE(bijectors.remember(Cosh(b.bijection.a)), FORWARD(b, x)[0])
    check(f, sinh(), X, left=["forward", "inverse"])


def test_another_type_than_that_of_the_inverse_is_not_given_out():
    f = lambda b, x: INVERSE(b, FORWARD(b, x)[0])[0]
    x = jnp.arange(3)
    run, left = cancelled(f, sinh(), x)
    assert left == ["forward", "inverse"]
    assert run(sinh(), x).dtype == f(sinh(), x).dtype


def test_a_mapped_pass_is_not_taken_for_a_plain_one():
    b = bijectors.remember(Sinh(jnp.arange(1.0, 4.0)))
    x = jnp.arange(9.0).reshape(3, 3) / 9
    over = lambda axis, out: jax.vmap(lambda b, x: b.forward(x), (None, axis), out)
    f = lambda b, x: jax.vmap(lambda b, y: b.inverse(y), (None, 0))(b, over(1, 0)(b, x))
    run, left = cancelled(f, b, x)
    assert left == []
    agree(run(b, x), x.T)
    agree(run(b, x), f(b, x))


def test_a_transposed_or_differentiated_pass_is_not_taken_for_a_plain_one():
    def f(b, x):
        y, pull = jax.vjp(lambda x: b.forward(x), x)
        return INVERSE(b, pull(b.forward(x))[0]), jax.jvp(b.forward, (x,), (x,))

    run, _ = cancelled(f, sinh(), X)
    agree(run(sinh(), X), bijectors.set_record_flow_graph(False)(f)(sinh(), X))


def with_a_rule(f):
    ruled = jax.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[1]))
    return ruled


BODIES = {
    "scan": lambda f: lambda b, x: jax.lax.scan(lambda c, _: (f(b, c), None), x, None, length=2)[0],
    "fori": lambda f: lambda b, x: jax.lax.fori_loop(0, 2, lambda _, c: f(b, c), x),
    "cond": lambda f: lambda b, x: jax.lax.cond(x[0] > 0, f, lambda b, x: x, b, x),
    "remat": jax.checkpoint,
    "custom_jvp": lambda f: with_a_rule(f),
}


@pytest.mark.parametrize("wrap", BODIES.values(), ids=BODIES)
def test_bodies_are_looked_at_each_by_itself(wrap):
    f = wrap(lambda b, x: INVERSE(b, FORWARD(b, x)[0])[0])
    assert markers(f, sinh(), X) == ["forward", "inverse"]
    run, left = cancelled(f, sinh(), X)
    assert left == []
    agree(run(sinh(), X), X)


def test_remat_and_custom_rules_stay():
    @jax.custom_jvp
    def rule(x):
        return x * 2

    rule.defjvp(lambda primals, tangents: (rule(*primals), 5 * tangents[0]))
    f = lambda b, x: jax.checkpoint(lambda x: rule(INVERSE(b, FORWARD(b, x)[0])[0]))(x)
    run, _ = cancelled(f, sinh(), X)
    agree(jax.jacobian(run, 1)(sinh(), X), 5 * np.eye(3))
    names = [eqn.primitive.name for eqn in _jax.trace_body(run, sinh(), X).eqns]
    assert any("checkpoint" in name or "remat" in name for name in names)


def test_a_constant_permutation_after_its_inverse_is_the_operand():
    order, back = jnp.array([2, 0, 1]), jnp.array([1, 2, 0])
    left = lambda f, *args: [
        e.primitive.name for e in bijectors.cancel(jax.make_jaxpr(f)(*args)).jaxpr.eqns
    ]
    assert "gather" not in left(lambda x: x[order][back], X)
    assert "gather" not in left(lambda x: x[:, order][:, back], jnp.ones((2, 3)))
    assert left(lambda x: x[order][order], X).count("gather") == 2
    assert left(lambda x: x[jnp.array([0, 0, 1])][back], X).count("gather") == 2
    assert left(lambda x: (x[order] * 2)[back], X).count("gather") == 2
    assert left(lambda x, back: x[order][back], X, back).count("gather") == 2


def test_draws_with_other_keys_are_other_values():
    def f(key, x):
        one, two = jax.random.split(key)
        b, c = (bijectors.remember(Sinh(jax.random.uniform(k, (3,)) + 1)) for k in (one, two))
        again = bijectors.remember(Sinh(jax.random.uniform(one, (3,)) + 1))
        return INVERSE(c, FORWARD(b, x)[0]), INVERSE(again, FORWARD(b, x)[0])

    key = jax.random.key(0)
    run, left = cancelled(f, key, X)
    agree(run(key, X), f(key, X))
    assert left == ["forward", "inverse"]


def test_effects_stay():
    seen = []

    def f(b, x):
        y = FORWARD(b, x)[0]
        jax.debug.callback(lambda y: seen.append(y), y)
        return INVERSE(b, y)[0]

    run, _ = cancelled(f, sinh(), X)
    jax.block_until_ready(run(sinh(), X))
    jax.effects_barrier()
    assert len(seen) == 1


def test_a_jaxpr_without_bijections_stays_what_it_is():
    f = lambda x: (jnp.sum(jnp.sin(x) ** 2), x, 1.0)
    before, after = jax.make_jaxpr(f)(X), bijectors.cancel(jax.make_jaxpr(f)(X))
    assert before.in_avals == after.in_avals
    assert before.out_avals == after.out_avals
    assert [e.primitive for e in after.jaxpr.eqns] == [e.primitive for e in before.jaxpr.eqns]


# --- random programs ------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["forward", "inverse", "stop", "scale", "shift", "again", "permute", "back"]
        ),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def program_of(steps, *, jitted):
    """A function of parameters and x that goes through bijections; each with its log-determinants
    summed.
    """
    wrap = jax.jit if jitted else lambda f: f

    def f(w, x):
        total, before = jnp.zeros(()), x
        for name, number, has_context in steps:
            context = [w[0]] if has_context else []
            b = lambda w, number=number: bijectors.remember(Sinh(jnp.exp(0.1 * w[number])))
            if name in ("forward", "inverse"):
                method = "transform_and_log_det" if name == "forward" else "inverse_and_log_det"
                run = wrap(lambda w, x, *c, b=b, method=method: getattr(b(w), method)(x, *c))
                before, (x, ladj) = x, run(w, x, *context)
                total = total + ladj
            elif name == "again":
                x = before
            elif name in ("permute", "back"):
                x = x[np.array([2, 0, 1] if name == "permute" else [1, 2, 0])]
            elif name == "shift":
                x = x + w[number]
            else:
                x = jax.lax.stop_gradient(x) if name == "stop" else 0.5 * x
        return x, total

    return f


@examples(1 / 2)
@given(STEPS)
@example([("forward", 0, True), ("inverse", 0, True), ("inverse", 1, False), ("forward", 1, False)])
@example([("forward", 0, False), ("stop", 0, False), ("inverse", 0, False)])
@example([("forward", 0, False), ("permute", 0, False), ("back", 0, False), ("inverse", 0, False)])
@example(
    [("forward", 0, False), ("forward", 1, False), ("inverse", 0, False), ("inverse", 1, False)]
)
@pytest.mark.exhaustive
def test_random_programs_have_the_values_and_derivatives_of_plain_evaluation(steps):
    w = jnp.arange(9.0).reshape(3, 3) / 9
    plain = bijectors.set_record_flow_graph(False)(program_of(steps, jitted=False))
    expected = jax.jacfwd(lambda w, x: plain(w, x), (0, 1))(w, X), plain(w, X)
    for jitted in (False, True):
        run, _ = cancelled(program_of(steps, jitted=jitted), w, X)
        agree((jax.jit(jax.jacfwd(run, (0, 1)))(w, X), run(w, X)), expected)
    agree(jax.jit(jax.jacrev(run, (0, 1)))(w, X), expected[0])


# --- incremental functions ------------------------------------------------------------------------


def minimal(f):
    return incrax.incremental(f, tuning=incrax.Tuning(planner="minimal"))


def test_an_incremental_function_leaves_out_what_is_undone():
    f = minimal(lambda b, x: INVERSE(b, FORWARD(b, x)[0])[0] * 2)
    np.testing.assert_array_equal(f(sinh(), X), 2 * X)
    assert f.stats.ran == 1


def test_new_base_parameters_leave_the_passes_of_a_frozen_flow_alone():
    def nll(b, base, y):
        x, ladj = b.inverse_and_log_det(y)
        return jnp.sum((x - base) ** 2) - ladj

    f, b, y = minimal(nll), sinh(), sinh().forward(X)
    f(b, 0.0, y)
    before = f.stats.ran
    np.testing.assert_allclose(f(b, 1.0, y), nll(b, 1.0, y), rtol=1e-12)
    again = f.stats.ran - before
    assert again == 5
    assert before > again + 5
