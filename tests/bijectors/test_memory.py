"""When an output remembers, when it must not, and what was not evaluated."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import Counted, Scale, num_remembered, pop_counts
from incrax import bijectors

pytestmark = pytest.mark.usefixtures("nothing_outlives_a_test")

X = jnp.array([0.5, -1.0, 2.0])


class Shift:
    """y = x + loc + context, no pytree: its attributes may be set."""

    def __init__(self, loc):
        self.loc = loc

    def transform_and_log_det(self, x, condition=0.0):
        return x + self.loc + condition, jnp.zeros(())

    def inverse_and_log_det(self, y, condition=0.0):
        return y - self.loc - condition, jnp.zeros(())


def scale(factor=2.0):
    return bijectors.remember(Scale(jnp.full(3, factor)))


def test_an_output_is_a_plain_array_that_remembers_how_it_was_made():
    b = scale()
    y = b.forward(X)
    record = bijectors.memory_of(y)
    assert type(y) is type(X)
    assert (record.source is X, record.bijection is b, record.context, record.direction) == (
        True,
        True,
        None,
        "forward",
    )
    np.testing.assert_allclose(record.ladj, 3 * np.log(2))


def test_what_is_forgotten_is_computed_again():
    b = scale()
    y = b.forward(X)
    bijectors.forget(y)
    assert bijectors.memory_of(y) is None
    assert b.inverse(y) is not X
    bijectors.forget(y)


def test_the_inverse_and_the_log_determinant_of_an_output_evaluate_nothing():
    b = bijectors.remember(Counted(jnp.zeros(3)))
    pop_counts()
    y = b.forward(X)
    assert pop_counts() == {"conditioner": 1, "forward": 1, "ladj": 1}
    b.inverse_and_log_det(y)
    b.inverse(y)
    b.log_abs_det_jacobian(X, y)
    assert pop_counts() == {}
    b.inverse(y + 0)
    assert pop_counts().get("inverse") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y + 0,
        lambda y: y[:],
        lambda y: y * 1.0,
        lambda y: jnp.reshape(y, (1, 3))[0],
        lambda y: y.astype(jnp.float32),
        lambda y: jnp.array(np.asarray(y)),
        jax.jit(lambda y: y),
        lambda y: jax.vmap(lambda y: y)(y),
        lambda y: jnp.array(y),
        copy.copy,
        copy.deepcopy,
        lambda y: pickle.loads(pickle.dumps(y)),
    ],
    ids="sum slice product reshape dtype numpy jit vmap array copy deepcopy pickle".split(),
)
def test_an_array_made_from_an_output_is_another_array(change):
    b = scale()
    y = b.forward(X)
    other = change(y)
    if other is not y:
        assert bijectors.memory_of(other) is None
        assert b.inverse(other) is not X


@pytest.mark.parametrize(
    "keep", [lambda y: jax.device_put(y), jax.lax.stop_gradient], ids=["device_put", "stop"]
)
def test_the_same_object_is_the_same_output(keep):
    b = scale()
    y = b.forward(X)
    assert keep(y) is y
    assert b.inverse(keep(y)) is X


def test_another_parameter_means_another_inverse():
    b = scale()
    y = b.forward(X)
    for other in (
        scale(3.0),
        jax.tree.map(lambda w: w - 0.1, b),
        jax.tree.map(lambda w: w + 0.0, b),
    ):
        np.testing.assert_allclose(other.inverse(y), y / other.bijection.scale)
        assert other.inverse(y) is not X
        np.testing.assert_allclose(
            other.log_abs_det_jacobian(X, y), jnp.sum(jnp.log(other.bijection.scale))
        )


def test_the_same_parameters_in_another_object_are_the_same_bijection():
    b = scale()
    y = b.forward(X)
    assert jax.tree.map(lambda w: w, b).inverse(y) is X
    assert copy.copy(b).inverse(y) is X
    assert copy.deepcopy(b).inverse(y) is not X


def test_another_bijection_with_the_same_parameters_does_not_answer():
    class Reciprocal(Scale):
        def transform_and_log_det(self, x):
            return x / self.scale, -jnp.sum(jnp.log(self.scale))

    b = scale()
    y = b.forward(X)
    np.testing.assert_allclose(
        bijectors.remember(Reciprocal(b.bijection.scale)).log_abs_det_jacobian(X, y), -3 * np.log(2)
    )


def test_a_bijection_that_is_set_another_parameter_answers_anew():
    plain = Shift(jnp.array(1.0))
    b = bijectors.remember(plain)
    y = b.forward(X)
    assert b.inverse(y) is X
    plain.loc = jnp.array(5.0)
    np.testing.assert_allclose(b.inverse(y), y - 5.0)


def test_parameters_in_containers_are_watched():
    for store, change in [
        ({"loc": jnp.array(1.0)}, lambda s: s.update(loc=jnp.array(5.0))),
        ([jnp.array(1.0)], lambda s: s.__setitem__(0, jnp.array(5.0))),
    ]:
        plain = Shift(0.0)
        plain.store = store
        plain.transform_and_log_det = lambda x, store=store: (
            x + jax.tree.leaves(store)[0],
            jnp.zeros(()),
        )
        plain.inverse_and_log_det = lambda y, store=store: (
            y - jax.tree.leaves(store)[0],
            jnp.zeros(()),
        )
        b = bijectors.remember(plain)
        y = b.forward(X)
        assert b.inverse(y) is X
        change(store)
        np.testing.assert_allclose(b.inverse(y), y - 5.0)


def test_what_a_function_closes_over_is_watched():
    def made():
        loc = jnp.array(1.0)

        def set_loc(new):
            nonlocal loc
            loc = new

        plain = Shift(0.0)
        plain.transform_and_log_det = lambda x: (x + loc, jnp.zeros(()))
        plain.inverse_and_log_det = lambda y: (y - loc, jnp.zeros(()))
        return plain, set_loc

    plain, set_loc = made()
    b = bijectors.remember(plain)
    y = b.forward(X)
    assert b.inverse(y) is X
    set_loc(jnp.array(5.0))
    np.testing.assert_allclose(b.inverse(y), y - 5.0)


def test_parameters_in_numpy_arrays_are_never_remembered():
    loc = np.ones(3)
    b = bijectors.remember(Shift(loc))
    y = b.forward(X)
    assert bijectors.memory_of(y) is None
    loc[:] = 5.0
    np.testing.assert_allclose(b.inverse(y), y - 5.0)


def test_an_input_in_a_numpy_array_is_remembered_as_it_was():
    x = np.array([0.5, -1.0, 2.0])
    b = scale()
    y = b.forward(x)
    x[:] = 0.0
    np.testing.assert_array_equal(b.inverse(y), X)


def test_another_context_means_another_inverse():
    b = bijectors.remember(Shift(jnp.array(1.0)))
    context, other = jnp.array(0.5), jnp.array(0.7)
    y = b.forward(X, context)
    assert b.inverse(y, context) is X
    np.testing.assert_allclose(b.inverse(y, other), X + 0.5 - 0.7)
    np.testing.assert_allclose(b.inverse(y), X + 0.5)
    assert bijectors.memory_of(b.forward(X, np.array(0.5))) is None
    zero = jnp.array(0.0)
    assert b.inverse(b.forward(X, zero), jnp.array(0.0)) is not X


def test_a_direction_is_not_taken_for_the_other():
    b = scale()
    y = b.forward(X)
    np.testing.assert_allclose(b.forward(y), 4 * X)
    x = b.inverse(X)
    np.testing.assert_allclose(b.inverse(x), X / 4)


def test_ancestry_is_not_taken_for_identity():
    first, second = scale(2.0), scale(3.0)
    y = second.forward(first.forward(X))
    np.testing.assert_allclose(first.inverse(y), 3 * X)
    np.testing.assert_allclose(first.log_abs_det_jacobian(X, y), 3 * np.log(2))
    np.testing.assert_allclose(second.log_abs_det_jacobian(X, y), 3 * np.log(3))


def test_the_log_determinant_is_that_of_the_input_that_is_passed():
    class Exp:
        def transform_and_log_det(self, x):
            return jnp.exp(x), jnp.sum(x)

        def inverse_and_log_det(self, y):
            return jnp.log(y), -jnp.sum(jnp.log(y))

    b = bijectors.remember(Exp())
    y = b.forward(X)
    np.testing.assert_allclose(b.log_abs_det_jacobian(X + 1, y), np.sum(X + 1))
    np.testing.assert_allclose(b.log_abs_det_jacobian(X, y), np.sum(X))


def test_deleted_buffers_are_not_given_out():
    b = scale()
    x = jnp.array(X)
    y = b.forward(x)
    bijectors.memory_of(y).ladj.delete()
    np.testing.assert_allclose(b.log_abs_det_jacobian(x, y), 3 * np.log(2))
    x.delete()
    np.testing.assert_allclose(b.inverse(y), X)
    z = b.forward(X)
    b.bijection.scale.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        b.inverse(z)
    y.delete()
    assert bijectors.memory_of(y) is None


def test_gradients_with_respect_to_parameters_and_outputs_are_those_without_memory():
    b = scale()
    y = b.forward(X)
    by_parameter = jax.grad(lambda b: jnp.sum(b.inverse(y) ** 2))(b)
    np.testing.assert_allclose(by_parameter.bijection.scale, -2 * y**2 / b.bijection.scale**3)
    by_output = jax.grad(lambda y: jnp.sum(b.inverse(y) ** 2))(y)
    np.testing.assert_allclose(by_output, 2 * y / b.bijection.scale**2)
    stopped = jax.grad(lambda y: jnp.sum(b.inverse(jax.lax.stop_gradient(y)) ** 2))(y)
    np.testing.assert_array_equal(stopped, 0 * y)


def test_a_trace_leaves_nothing_behind_and_takes_constants_from_memory():
    b = scale()
    y = b.forward(X)
    with jax.checking_leaks():
        found = jax.jit(lambda c: c * b.inverse(y) + b.forward(c * X))(2.0)
    np.testing.assert_allclose(found, 6 * X)
    assert num_remembered() == 1


def test_inputs_of_another_type_than_the_inverse_gives_are_not_given_out():
    b = scale()
    x = jnp.arange(3)
    y = b.forward(x)
    assert b.inverse(y).dtype == y.dtype


def test_one_thousand_dead_outputs_leave_an_empty_table():
    b = scale()
    outputs = [b.forward(X + k) for k in range(1000)]
    assert num_remembered() == 1000
    sources = [weakref.ref(bijectors.memory_of(y).source) for y in outputs]
    del outputs
    assert num_remembered() == 0
    assert not any(source() for source in sources)


def test_memory_keeps_no_parameters_alive():
    b = scale()
    y = b.forward(X)
    parameter = weakref.ref(b.bijection.scale)
    del b
    gc.collect()
    assert parameter() is None
    assert bijectors.memory_of(y).bijection is None


def test_an_identity_gives_an_array_of_its_own():
    class Identity:
        def transform_and_log_det(self, x):
            return x, jnp.zeros(())

        def inverse_and_log_det(self, y):
            return y, jnp.zeros(())

    b = bijectors.remember(Identity())
    y = b.forward(X)
    assert y is not X
    assert b.inverse(y) is X


def test_an_inverse_that_cannot_be_computed_is_remembered():
    class OneWay:
        def transform_and_log_det(self, x):
            return x**3 + x, jnp.sum(jnp.log(3 * x**2 + 1))

        def inverse_and_log_det(self, y):
            raise NotImplementedError

    b = bijectors.remember(OneWay())
    y = b.forward(X)
    assert b.inverse(y) is X
    with pytest.raises(NotImplementedError):
        b.inverse(y + 1)


def test_threads_share_bijections_and_never_answers():
    b, failures = scale(), []

    def work(seed):
        for k in range(50):
            x = jnp.full(3, seed + k / 64)
            y = b.forward(x)
            if b.inverse(y) is not x or bijectors.memory_of(y).source is not x:
                failures.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_without_compilation_memory_is_the_same():
    b = scale()
    with jax.disable_jit():
        y = b.forward(X)
        assert b.inverse(y) is X
    np.testing.assert_allclose(y, 2 * X)


def test_a_pytree_that_is_changed_in_place_is_evaluated_as_it_is():
    class Hidden(Scale):
        pass

    jax.tree_util.register_pytree_node(
        Hidden, lambda h: ((), h.__dict__), lambda aux, kids: Hidden(**aux)
    )
    plain = Hidden(jnp.array(2.0))
    b = bijectors.remember(plain)
    y = b.forward(X)
    assert b.inverse(y) is X
    plain.scale = jnp.array(4.0)
    np.testing.assert_allclose(b.forward(X), 4 * X)
    np.testing.assert_allclose(b.inverse(y), X / 2)
    np.testing.assert_allclose(b.forward(jnp.stack([X, X])), 4 * jnp.stack([X, X]))
