"""What is changed in place is seen, wherever a bijection keeps what its answers depend on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from incrax import bijectors

X = jnp.array([1.0, 3.0])


class Scaled:
    """y = scale() x, by whatever tells the scale."""

    def __init__(self, scale):
        self.scale = scale

    def transform_and_log_det(self, x):
        scale = jnp.asarray(self.scale())
        return scale * x, jnp.sum(jnp.log(jnp.abs(scale * jnp.ones_like(x))))

    def inverse_and_log_det(self, y):
        x, ladj = self.transform_and_log_det(y)
        return y * y / x, -ladj


class Told:
    """A scale kept as an attribute of something."""

    def __init__(self, owner):
        self.owner = owner

    def __call__(self):
        return self.owner.scale


def subclass_of(kind, *args):
    owner = type("P", (kind,), {})(*args)
    owner.scale = 2.0
    return owner


def function_with_attribute():
    def f():
        return f.scale

    f.scale = 2.0
    return f


def changed_attribute(make, *args):
    def made():
        owner = make(*args)
        return owner, lambda: setattr(owner, "scale", 3.0)

    return made


@pytest.mark.parametrize(
    "make",
    [
        changed_attribute(subclass_of, dict),
        changed_attribute(subclass_of, list),
        changed_attribute(subclass_of, tuple),
        changed_attribute(subclass_of, str, "name"),
        changed_attribute(subclass_of, float, 1.0),
        changed_attribute(function_with_attribute),
    ],
    ids=["dict", "list", "tuple", "str", "float", "function"],
)
def test_an_attribute_is_seen_to_change(make):
    owner, change = make()
    b = bijectors.remember(Scaled(Told(owner)))
    y = b.forward(X)
    change()
    np.testing.assert_allclose(b.inverse(y), y / 3, rtol=1e-6)
    np.testing.assert_allclose(b.forward(jnp.array(X)), 3 * X, rtol=1e-6)


def test_the_code_of_a_function_is_seen_to_change():
    def two():
        return 2.0

    def three():
        return 3.0

    b = bijectors.remember(Scaled(two))
    y = b.forward(X)
    assert b.inverse(y) is X
    two.__code__ = three.__code__
    np.testing.assert_allclose(b.inverse(y), y / 3, rtol=1e-6)


def test_nothing_is_remembered_where_a_function_closes_over_a_numpy_array():
    scale = np.array([2.0, 4.0])
    b = bijectors.remember(Scaled(lambda: scale[0]))
    y = b.forward(X)
    assert bijectors.memory_of(y) is None
    scale[0] = 3.0
    np.testing.assert_allclose(b.inverse(y), y / 3, rtol=1e-6)


def test_a_bijection_with_memory_inside_another_is_seen_through():
    b = bijectors.remember(Scaled(lambda: 2.0))
    assert bijectors.remember(b) is b

    class Held:
        def __init__(self, inner):
            self.inner = inner

        def transform_and_log_det(self, x):
            return self.inner.transform_and_log_det(x)

        def inverse_and_log_det(self, y):
            return self.inner.inverse_and_log_det(y)

    outer = bijectors.remember(Held(b))
    assert outer.inverse(outer.forward(X)) is X


def test_a_record_made_without_64_bits_does_not_answer_with_them():
    b = bijectors.remember(Scaled(lambda: 2.0))
    with jax.enable_x64(False):
        x = jnp.array([1.0, 3.0], jnp.float32)
        y = b.forward(x)
        b.inverse(y)
    found = b.inverse_and_log_det(y)
    with bijectors.set_record_flow_graph(False):
        expected = b.inverse_and_log_det(y)
    assert [each.dtype for each in found] == [each.dtype for each in expected]
