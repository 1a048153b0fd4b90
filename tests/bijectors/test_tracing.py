"""Memory under transformations: what is remembered of tracers, what must not be, and that nothing
is left behind.
"""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from bijectors.cases import Counted, Scale, num_remembered, pop_counts
from bijectors.traced import Sinh, X, markers, sinh
from incrax import bijectors

pytestmark = pytest.mark.usefixtures("nothing_outlives_a_test")


def there_and_back(b, x):
    return b.inverse(b.forward(x))


def log_prob(b, y):
    x, ladj = b.inverse_and_log_det(y)
    return -0.5 * jnp.sum(x**2) + ladj


def plainly(f):
    return bijectors.set_record_flow_graph(False)(f)


WRAPS = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "scan": lambda f: lambda b, x: jax.lax.scan(lambda c, _: (f(b, c), None), x, None, length=2)[0],
    "cond": lambda f: lambda b, x: jax.lax.cond(x[0] > 0, f, lambda b, x: x, b, x),
    "while": lambda f: lambda b, x: jax.lax.fori_loop(0, 2, lambda _, c: f(b, c), x),
    "vmap": lambda f: lambda b, x: jax.vmap(f, (None, 0))(b, jnp.stack([x, x]))[0],
}
WRAPPED = pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
REVERSIBLE = {name: wrap for name, wrap in WRAPS.items() if name not in ("while", "cond")}


@WRAPPED
def test_what_is_made_in_a_trace_is_remembered_in_it(wrap):
    assert "inverse" not in markers(wrap(there_and_back), sinh(), X)
    with jax.checking_leaks():
        np.testing.assert_array_equal(jax.jit(wrap(there_and_back))(sinh(), X), X)


@WRAPPED
def test_derivatives_through_memory_are_those_of_the_identity(wrap):
    transform = jax.jacfwd if wrap is WRAPS["while"] else jax.jacrev
    by_b, by_x = transform(wrap(there_and_back), argnums=(0, 1))(sinh(), X)
    np.testing.assert_array_equal(by_x, np.eye(3))
    np.testing.assert_array_equal(by_b.bijection.a, np.zeros((3, 3)))


@pytest.mark.parametrize("wrap", REVERSIBLE.values(), ids=REVERSIBLE)
@pytest.mark.parametrize(
    "order", [jax.grad, lambda f, argnums: jax.jacfwd(jax.grad(f, argnums), argnums)]
)
def test_derivatives_of_log_densities_of_samples_are_those_without_memory(wrap, order):
    def loss(b, x):
        return log_prob(b, wrap(lambda b, x: b.forward(x))(b, x))

    got = jax.jit(order(loss, argnums=(0, 1)))(sinh(), X)
    expected = order(plainly(loss), argnums=(0, 1))(sinh(), X)
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-9), got, expected)


def test_an_eager_derivative_remembers_its_tracers():
    b = bijectors.remember(Counted(jnp.zeros(3)))

    def f(x):
        return b.inverse(b.forward(x))

    with jax.checking_leaks():
        jax.eval_shape(lambda x: jnp.sum(f(x)), X)
    x, tangent = jax.jvp(lambda x: there_and_back(sinh(), x), (X,), (X,))
    np.testing.assert_array_equal(tangent, X)
    np.testing.assert_array_equal(x, X)
    pop_counts()


def test_copies_with_the_same_tracers_share_their_memory():
    def f(b, x):
        return bijectors.remember(b.bijection).inverse(jax.tree.map(lambda a: a, b).forward(x))

    assert markers(f, sinh(), X) == ["forward"]


def test_another_context_or_parameter_in_a_trace_is_computed():
    def other_context(b, x, c):
        return b.inverse(b.forward(x, c), c + 1.0)

    def other_parameter(b, x, c):
        return jax.tree.map(lambda a: a + c, b).inverse(b.forward(x))

    def same(b, x, c):
        return b.inverse(b.forward(x, c), c)

    assert markers(same, sinh(), X, 2.0) == ["forward"]
    for f in (other_context, other_parameter):
        assert markers(f, sinh(), X, 2.0) == ["forward", "inverse"]
        np.testing.assert_allclose(
            jax.jit(f)(sinh(), X, 2.0), plainly(f)(sinh(), X, 2.0), rtol=1e-12
        )


def test_what_stands_between_output_and_inverse_is_not_skipped():
    for between in (
        lambda y: y + 0,
        lambda y: y * 1.0,
        jax.lax.stop_gradient,
        lambda y: y[:3].reshape(3)[::1][:],
    ):
        f = lambda b, x, between=between: b.inverse(between(b.forward(x)))
        is_same = between(X) is X and between is not jax.lax.stop_gradient
        assert is_same or markers(f, sinh(), X) == ["forward", "inverse"]
        got = jax.jacobian(f, (0, 1))(sinh(), X)
        expected = jax.jacobian(plainly(f), (0, 1))(sinh(), X)
        jax.tree.map(
            lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-12), got, expected
        )


def test_derivatives_by_parameters_of_an_inverse_of_data_are_computed():
    b = sinh()
    y = b.forward(X)

    def in_a_trace(b, x):
        y = b.forward(x)
        return jax.grad(lambda c: jnp.sum(c.inverse(y) ** 2))(b)

    expected = jax.grad(lambda c: jnp.sum(c.inverse(y + 0) ** 2))(b).bijection.a
    assert float(jnp.abs(expected).min()) > 0.1
    for got in (
        jax.grad(lambda c: jnp.sum(c.inverse(y) ** 2))(b),
        jax.jit(in_a_trace)(b, X),
        jax.grad(jax.jit(lambda c: jnp.sum(c.inverse(y) ** 2)))(b),
    ):
        np.testing.assert_allclose(got.bijection.a, expected, rtol=1e-12)


def test_an_outer_output_is_inverted_from_memory_in_an_inner_trace():
    def f(b, x):
        y = b.forward(x)
        return jax.vmap(lambda c: b.inverse(y) * c)(jnp.arange(2.0)), jax.grad(
            lambda c: jnp.sum(b.inverse(y) * c)
        )(2.0)

    assert markers(f, sinh(), X) == ["forward"]
    with jax.checking_leaks():
        stacked, slope = jax.jit(f)(sinh(), X)
    np.testing.assert_array_equal(stacked, jnp.stack([0 * X, X]))
    np.testing.assert_array_equal(slope, jnp.sum(X))


def test_a_log_determinant_computed_in_an_inner_trace_is_not_kept_in_the_outer_record():
    def f(b, x):
        y = b.forward(x, requires_ladj=False)
        inner = jax.jit(lambda c: c * b.inverse_and_log_det(y)[1])(2.0)
        return inner, b.inverse_and_log_det(y)[1]

    with jax.checking_leaks():
        inner, outer = jax.jit(f)(sinh(), X)
    np.testing.assert_allclose(outer, -sinh().bijection.transform_and_log_det(X)[1], rtol=1e-12)
    np.testing.assert_allclose(inner, 2 * outer)


def test_an_output_with_no_tangent_remembers_only_what_is_as_far_out():
    class Stopped(Sinh):
        def transform_and_log_det(self, x):
            return jax.lax.stop_gradient(jnp.sinh(x)), jnp.sum(self.a * x)

        def inverse_and_log_det(self, y):
            return jnp.arcsinh(y), jnp.sum(self.a * y)

    jax.tree_util.register_pytree_node(
        Stopped, lambda s: ((s.a,), None), lambda aux, kids: Stopped(kids[0])
    )
    b = bijectors.remember(Stopped(jnp.ones(3)))

    def f(x):
        y = b.forward(x)
        assert bijectors.memory_of(y) is None
        return jnp.sum(b.inverse(y) ** 2)

    np.testing.assert_array_equal(jax.grad(f)(X), np.zeros(3))
    seen = []
    jax.grad(lambda c: jnp.sum(seen.append(b.forward(X)) or c * b.inverse(seen[-1])))(1.0)
    assert bijectors.memory_of(seen[-1]).source is X


class Identity:
    """No pytree: in a trace its output is the very input."""

    def transform_and_log_det(self, x):
        return x, jnp.zeros(())

    inverse_and_log_det = transform_and_log_det


def test_an_output_that_is_an_input_has_no_record_of_this_pass():
    identity = bijectors.remember(Identity())

    def f(b, x):
        y = b.forward(x)
        z = identity.forward(y)
        assert bijectors.memory_of(z).bijection is b
        return b.inverse(identity.inverse(z))

    assert markers(f, sinh(), X) == ["forward"]
    primal, tangent = jax.jvp(lambda x: f(sinh(), x), (X,), (X,))
    np.testing.assert_array_equal(primal, X)
    np.testing.assert_array_equal(tangent, X)


def test_an_outer_output_that_comes_back_from_an_inner_trace_keeps_its_memory():
    class Identity(Sinh):
        def transform_and_log_det(self, x):
            return x, jnp.sum(self.a)

    jax.tree_util.register_pytree_node(
        Identity, lambda s: ((s.a,), None), lambda aux, kids: Identity(kids[0])
    )
    b = sinh()
    y = b.forward(X)
    jax.grad(lambda a: jnp.sum(bijectors.remember(Identity(a)).forward(y) * a))(jnp.ones(3))
    assert bijectors.memory_of(y).source is X


def test_tracers_and_what_they_remember_die_with_their_trace():
    alive = []

    def f(b, x):
        y = b.forward(x)
        z = b.inverse(y) + b.forward(y)
        alive.extend(map(weakref.ref, (y, z, bijectors.memory_of(y).ladj)))
        return z

    b = sinh()
    slope = jax.grad(lambda b, x: jnp.sum(f(b, x)), 1)
    linear = lambda *args: jax.linearize(f, *args)
    for transformed in (jax.jit(f), jax.vmap(f, (None, 0)), linear, jax.jit(slope), slope):
        transformed(b, X[None])
        gc.collect()
        assert [ref() for ref in alive] == [None] * len(alive)
        assert num_remembered() == 0


def test_a_trace_that_fails_leaves_nothing_behind():
    alive = []

    def f(b, x):
        y = b.forward(x)
        alive.extend(map(weakref.ref, (y, bijectors.memory_of(y).ladj)))
        raise ValueError(str((y + 1).shape))

    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(f, 1)):
        with pytest.raises(ValueError, match="3"):
            transform(f)(
                *(
                    (jax.tree.map(lambda a: a[None], sinh()), X[None])
                    if transform is jax.vmap
                    else (sinh(), X)
                )
            )
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


def test_a_tracer_that_leaked_is_not_answered_for():
    leaked = []
    b = sinh()
    jax.jit(lambda x: leaked.append(b.forward(x)) or x)(X)
    assert bijectors.memory_of(leaked[0]) is None
    with pytest.raises(jax.errors.UnexpectedTracerError):
        b.inverse(leaked[0])
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jax.jit(lambda c: b.inverse(leaked[0]) * c)(2.0)


def test_at_compile_time_evaluation_only_concrete_outputs_are_remembered():
    b = sinh()

    def f(x):
        with jax.ensure_compile_time_eval():
            y = b.forward(X)
            assert isinstance(b.inverse(y), type(X))
            assert b.inverse(y) is X
        return b.inverse(b.forward(x)) + b.inverse(y)

    np.testing.assert_array_equal(jax.jit(f)(X), 2 * X)


def test_rules_of_custom_derivatives_have_memories_of_their_own():
    b = sinh()

    @jax.custom_jvp
    def f(x):
        return there_and_back(b, x)

    @f.defjvp
    def _(primals, tangents):
        return there_and_back(b, *primals), 3 * there_and_back(b, *tangents)

    @jax.custom_vjp
    def g(x):
        return there_and_back(b, x)

    g.defvjp(lambda x: (there_and_back(b, x), b.forward(x)), lambda y, ct: (ct * b.inverse(y),))
    with jax.checking_leaks():
        np.testing.assert_array_equal(
            jax.jit(jax.grad(lambda x: jnp.sum(f(x))))(X), 3 * jnp.ones(3)
        )
        np.testing.assert_allclose(jax.jit(jax.grad(lambda x: jnp.sum(g(x))))(X), X, rtol=1e-12)
        np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(g(x)))(X), X, rtol=1e-12)


def test_values_in_a_mapped_mesh_keep_their_types():
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = PartitionSpec("i")
    b = sinh()

    def f(a, x):
        b = bijectors.remember(Sinh(a))
        return b.inverse(b.forward(x))

    for x_spec in (spec, PartitionSpec()):
        mapped = jax.shard_map(f, mesh=mesh, in_specs=(spec, x_spec), out_specs=spec)
        np.testing.assert_allclose(mapped(b.bijection.a, X), X, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(mapped)(b.bijection.a, X), X, rtol=1e-12)


def test_a_chain_and_bijections_by_hand_answer_in_a_trace():
    fb = pytest.importorskip("flowjax.bijections")
    b = bijectors.remember(
        fb.Chain([fb.Affine(X / 4, jnp.exp(X / 4)), fb.Tanh((3,)), fb.Affine(X, jnp.exp(X))])
    )

    def f(x):
        y = b.forward(x)
        parts = [bijectors.remember(part) for part in b.bijection]
        h = x
        for part in parts:
            h = part.forward(h)
        for part in reversed(parts):
            h = part.inverse(h)
        return h, b.inverse(y)

    assert "inverse" not in markers(f, X)
    np.testing.assert_array_equal(jax.jit(f)(X), (X, X))


def test_tracers_that_a_bijection_closes_over_are_not_compiled_in():
    class Shifted(Sinh):
        def __init__(self, a, shift):
            self.a, self.shift = a, shift

        def transform_and_log_det(self, x):
            return self.shift(x), jnp.sum(self.a)

    jax.tree_util.register_pytree_node(
        Shifted, lambda s: ((s.a,), s.shift), lambda aux, kids: Shifted(kids[0], aux)
    )

    def f(a, t, x):
        shift = lambda x: x + a + t
        b = bijectors.remember(Shifted(a, shift))
        y = b.forward(x)
        assert b.inverse(y) is x
        return y

    with jax.checking_leaks():
        for t in (1.0, 2.0):
            np.testing.assert_allclose(jax.jit(lambda a, t: f(a, t, X))(X, t), 2 * X + t)
            np.testing.assert_allclose(jax.jit(lambda a: f(a, t, X))(X), 2 * X + t)  # noqa: B023


def test_switched_off_nothing_is_remembered_of_tracers():
    assert markers(plainly(there_and_back), sinh(), X) == ["forward", "inverse"]


def test_exported_functions_hold_no_marker():
    exported = jax.export.export(jax.jit(lambda x: sinh().inverse(sinh().forward(x) + 1)))(X)
    np.testing.assert_allclose(exported.call(X), sinh().inverse(sinh().forward(X) + 1), rtol=1e-12)


def test_a_linear_pass_is_transposed():
    b = bijectors.remember(Scale(jnp.array([2.0, 3.0, 4.0])))
    np.testing.assert_allclose(jax.linear_transpose(b.forward, X)(X)[0], b.bijection.scale * X)
