"""`bijectors.jit`: records leave a compiled function, and no trace is left."""

from __future__ import annotations

import gc
import importlib.util
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.traced import Sinh, X, markers, sinh
from incrax import bijectors

pytestmark = pytest.mark.usefixtures("nothing_outlives_a_test")

NEEDS_FLOWJAX = pytest.mark.skipif(
    importlib.util.find_spec("flowjax") is None, reason="flowjax is not installed"
)


@pytest.fixture
def num_traces():
    """How often functions made by `counted` were traced."""
    return []


def forward():
    return bijectors.jit(lambda b, x, *context: b.forward(x, *context))


def inverse():
    return bijectors.jit(lambda b, y, *context: b.inverse_and_log_det(y, *context))


def test_a_result_comes_back_with_its_record():
    b = sinh()
    with jax.checking_leaks():
        y = forward()(b, X)
    record = bijectors.memory_of(y)
    assert (record.source is X, record.direction) == (True, "forward")
    np.testing.assert_allclose(record.ladj, b.bijection.transform_and_log_det(X)[1], rtol=1e-12)
    assert b.inverse(y) is X
    assert bijectors.memory_of(b.inverse(X)).direction == "inverse"


def test_a_record_of_a_result_is_of_the_arguments_that_were_passed():
    b, c = sinh(), sinh()
    f = forward()
    y, z = f(b, X), f(c, X + 0)
    assert b.inverse(y) is X
    for other in (c, jax.tree.map(lambda a: a + 0, b)):
        assert other.inverse(y) is not X
        np.testing.assert_allclose(other.inverse(y), X, rtol=1e-12)
    assert c.inverse(z) is not X


def test_a_source_made_inside_is_a_result_of_the_program():
    b = sinh()
    y = bijectors.jit(lambda b, x: b.forward(x + 1))(b, X)
    np.testing.assert_allclose(b.inverse(y), X + 1)
    assert bijectors.memory_of(y).source is b.inverse(y)


def test_a_result_remembers_through_all_bijections_that_made_it():
    b, c = sinh(), sinh(0.3)
    y = bijectors.jit(lambda b, c, x: c.forward(b.forward(x)))(b, c, X)
    assert b.inverse(c.inverse(y)) is X


def test_a_context_goes_with_the_record():
    b, context = sinh(), jnp.array(0.5)
    y = forward()(b, X, context)
    assert b.inverse(y, context) is X
    assert b.inverse(y, jnp.array(0.5)) is not X
    z = bijectors.jit(lambda b, x, c: b.forward(x, c + 1))(b, X, context)
    assert bijectors.memory_of(z) is None


def test_what_is_closed_over_is_remembered_as_the_object_that_it_is():
    b = sinh()
    y = bijectors.jit(lambda c: b.forward(X) * 1 + c)(0.0)
    assert bijectors.memory_of(y) is None
    y = bijectors.jit(lambda x: b.forward(x))(X)
    assert b.inverse(y) is X
    assert bijectors.memory_of(y).bijection is b


def test_parameters_computed_inside_leave_no_record():
    f = bijectors.jit(lambda b, x: jax.tree.map(lambda a: a * 2, b).forward(x))
    assert bijectors.memory_of(f(sinh(), X)) is None


def test_parameters_that_are_stepped_and_returned_leave_no_wrong_record():
    @bijectors.jit
    def step(b, x):
        y = b.forward(x)
        return jax.tree.map(lambda a: a + 0.1, b), y

    b = sinh()
    stepped, y = step(b, X)
    assert b.inverse(y) is X
    assert stepped.inverse(y) is not X
    np.testing.assert_allclose(stepped.inverse(y), jnp.arcsinh(y) / stepped.bijection.a, rtol=1e-12)


def test_an_argument_that_comes_back_keeps_its_own_memory():
    b = sinh()
    y = b.forward(X)
    same, other = bijectors.jit(lambda b, y: (y, y + 0))(b, y)
    assert same is y
    assert bijectors.memory_of(other) is None
    assert b.inverse(same) is X


def test_records_by_other_parameters_are_not_carried_in():
    b, c = sinh(), sinh(0.3)
    y = b.forward(X)
    np.testing.assert_allclose(inverse()(c, y)[0], jnp.arcsinh(y) / c.bijection.a, rtol=1e-12)


def test_the_inverse_of_a_result_of_an_inner_function_is_left_out():
    inner = forward()
    f = lambda b, x: b.inverse_and_log_det(inner(b, x))
    assert set(markers(f, sinh(), X)) <= {"forward"}
    np.testing.assert_array_equal(bijectors.jit(f)(sinh(), X)[0], X)
    assert bijectors.jit(f)(sinh(), X)[0] is X


def test_an_argument_does_not_remember_inside():
    b = sinh()
    np.testing.assert_allclose(inverse()(b, b.forward(X))[0], X, rtol=1e-12)


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd, lambda f, n: jax.jit(jax.grad(f, n))])
def test_derivatives_are_those_of_plain_evaluation(transform):
    def nll(b, x, *, jit):
        y = jit(lambda b, x: b.forward(x * x))(b, x)
        x, ladj = jit(lambda b, y: b.inverse_and_log_det(y))(b, y)
        return jnp.sum(x**2) - ladj + jnp.sum(b.inverse(y))

    got = transform(lambda b, x: nll(b, x, jit=bijectors.jit), (0, 1))(sinh(), X)
    plain = bijectors.set_record_flow_graph(False)(lambda b, x: nll(b, x, jit=lambda f: f))
    expected = transform(plain, (0, 1))(sinh(), X)
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-12), got, expected
    )


def test_a_derivative_by_parameters_of_an_inverse_of_data_is_computed():
    b = sinh()
    y = b.forward(X)
    f = bijectors.jit(lambda b, y: jax.grad(lambda b: jnp.sum(b.inverse(y) ** 2))(b))
    expected = -2 * X**2 / b.bijection.a
    np.testing.assert_allclose(f(b, y).bijection.a, expected, rtol=1e-9)
    g = jax.grad(lambda b: jnp.sum(inverse()(b, y)[0] ** 2))
    np.testing.assert_allclose(g(b).bijection.a, expected, rtol=1e-9)


def test_a_mapped_function_is_that_of_each_row():
    b, xs = sinh(), jnp.stack([X, 2 * X])
    ys = jax.vmap(forward(), (None, 0))(b, xs)
    rows, ladjs = jax.vmap(inverse(), (None, 0))(b, ys + 0)
    assert ladjs.shape == (2,)  # the log-determinant is a sum over one row
    for x, y, row, ladj in zip(xs, ys, rows, ladjs, strict=True):
        expected, forward_ladj = b.bijection.transform_and_log_det(x)
        np.testing.assert_allclose(y, expected, rtol=1e-12)
        np.testing.assert_allclose(row, x, rtol=1e-9)
        np.testing.assert_allclose(ladj, -forward_ladj, rtol=1e-9)

    def f(x):
        y = forward()(b, x)
        return b.inverse(y), inverse()(b, y)[0]

    with jax.checking_leaks():
        one, two = jax.jit(jax.vmap(f))(xs)
    np.testing.assert_array_equal(one, xs)
    np.testing.assert_allclose(two, xs, rtol=1e-12)


def test_switches_are_part_of_what_is_compiled():
    f, b = forward(), sinh()
    with bijectors.set_record_flow_graph(False):
        assert bijectors.memory_of(f(b, X)) is None
    with bijectors.set_requires_ladj(False):
        assert bijectors.memory_of(f(b, X)).ladj is None
    assert bijectors.memory_of(f(b, X)).ladj is not None


def test_numpy_arguments_are_copied_so_that_a_record_stays_right():
    b, x = sinh(), np.array([0.5, -1.0, 2.0])
    y = forward()(b, x)
    x[:] = 0
    np.testing.assert_array_equal(b.inverse(y), X)


def test_what_a_function_closes_over_dies_with_it():
    b = sinh()
    parameter = weakref.ref(b.bijection.a)
    f = bijectors.jit(b.forward)
    f(X)
    del b, f
    gc.collect()
    jax.clear_caches()
    gc.collect()
    assert parameter() is None


def test_failures_leave_nothing_behind():
    alive = []

    @bijectors.jit
    def f(b, x):
        y = b.forward(x)
        alive.append(weakref.ref(y))
        raise ValueError(str((y + 1).shape))

    with pytest.raises(ValueError, match="3"):
        f(sinh(), X)
    gc.collect()
    assert alive[0]() is None


def test_without_compilation_results_are_the_same():
    with jax.disable_jit():
        y = forward()(sinh(), X)
    np.testing.assert_allclose(y, sinh().forward(X), rtol=1e-12)


@NEEDS_FLOWJAX
def test_bijections_and_distributions_of_flowjax_are_closed_over():
    import flowjax.bijections as fb
    import flowjax.distributions as fd

    b = bijectors.remember(
        fb.Chain([fb.Affine(X / 4, jnp.exp(X / 4)), fb.Tanh((3,)), fb.Affine(X, jnp.exp(X))])
    )
    base = fd.Normal(jnp.zeros(3))

    def f(x):
        y = b.forward(x)
        x, ladj = b.inverse_and_log_det(y)
        return y, base.log_prob(x) + ladj

    xs = jnp.stack([X, X / 2])
    y, log_prob = bijectors.jit(f)(xs)
    assert b.inverse(y) is xs
    assert bijectors.memory_of(y).bijection is b
    expected = bijectors.set_record_flow_graph(False)(f)(xs)
    np.testing.assert_allclose(y, expected[0], rtol=1e-9)
    np.testing.assert_allclose(log_prob, expected[1], rtol=1e-9)


def test_copies_of_settings_and_signatures_stay():
    f = bijectors.jit(lambda b, x: b.forward(x))
    assert f.__wrapped__(sinh(), X).shape == (3,)
    assert isinstance(f(bijectors.remember(Sinh(jnp.ones(3))), X), jax.Array)
