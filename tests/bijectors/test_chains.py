"""A chain of FlowJAX is one bijection, a part of it another; what a late log-determinant needs is
kept of all parts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import Counted, num_remembered, pop_counts
from incrax import _jax, bijectors

fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")
ff = pytest.importorskip("flowjax.flows")
fd = pytest.importorskip("flowjax.distributions")

X = jnp.array([0.5, -1.0, 0.25])
KEY = jax.random.key(0)


@pytest.fixture
def chain():
    parts = [
        fb.Affine(jnp.ones(3), 2 * jnp.ones(3)),
        fb.Tanh((3,)),
        fb.Affine(jnp.zeros(3), 3 * jnp.ones(3)),
    ]
    return bijectors.remember(fb.Chain(parts))


def test_a_part_does_not_answer_for_the_output_of_its_chain(chain):
    y = chain.forward(X)
    first, _, last = map(bijectors.remember, chain.bijection)
    assert chain.inverse(y) is X
    assert first.inverse(y) is not X
    np.testing.assert_allclose(first.inverse(y), (y - 1) / 2)
    np.testing.assert_allclose(first.log_abs_det_jacobian(X, y), 3 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(last.log_abs_det_jacobian(X, y), 3 * np.log(3), rtol=1e-6)


def test_parts_that_are_applied_one_by_one_remember_one_by_one(chain):
    parts, h = list(map(bijectors.remember, chain.bijection)), X
    for part in parts:
        h = part.forward(h)
    assert num_remembered() == 3
    for part in reversed(parts):
        h = part.inverse(h)
    assert h is X


def test_events_with_leading_axes_are_recorded_as_one_array(chain):
    x = jnp.stack([X, X + 0.1])
    y, ladj = chain.transform_and_log_det(x)
    assert ladj.shape == (2,)
    assert chain.inverse(y) is x
    np.testing.assert_allclose(ladj[0], chain.transform_and_log_det(X)[1], rtol=1e-6)


# --- conditioners ---------------------------------------------------------------------------------


class Conditioned(Counted):
    """A part of a FlowJAX bijection whose conditioner is counted."""

    shape = (3,)
    cond_shape = None

    def transform_and_log_det(self, x, condition=None):
        return super().transform_and_log_det(x)


jax.tree_util.register_pytree_node(
    Conditioned, lambda c: ((c.w,), None), lambda aux, kids: Conditioned(kids[0])
)


def scanned():
    """Layers one after another by `jax.lax.scan`, as the flows of FlowJAX apply them."""

    class Layers:
        def transform_and_log_det(self, x):
            def step(carry, w):
                y, ladj = Counted(w).transform_and_log_det(carry[0])
                return (y, carry[1] + ladj), None

            return jax.lax.scan(step, (x, 0.0), jnp.array([[0.1, 0.2, 0.3], [0.3, 0.1, 0.2]]))[0]

        def inverse_and_log_det(self, y):
            raise NotImplementedError

    jax.tree_util.register_pytree_node(Layers, lambda _: ((), None), lambda *_: Layers())
    return Layers()


@pytest.mark.parametrize(
    ("make", "now", "late"),
    [
        (
            lambda: fb.Chain([Conditioned(jnp.array([0.1, 0.2, 0.3]))] * 2),
            {"conditioner": 2, "forward": 2},
            {"ladj": 2},
        ),
        (scanned, {"conditioner": 2, "forward": 2, "ladj": 2}, {}),  # a loop is not divided
    ],
    ids=["chain", "scan"],
)
def test_a_late_log_determinant_calls_no_conditioner_of_any_layer(make, now, late):
    b = bijectors.remember(make())
    pop_counts()
    y = b.forward(X, requires_ladj=False)
    assert pop_counts() == now
    ladj = b.log_abs_det_jacobian(X, y)
    assert pop_counts() == late
    np.testing.assert_allclose(ladj, 1.2, rtol=1e-6)


def layers(name):
    base, sizes = fd.Normal(jnp.zeros(3)), {"flow_layers": 2, "nn_width": 4, "nn_depth": 1}
    spline = fb.RationalQuadraticSpline(knots=3, interval=3)
    return {
        "coupling": lambda: ff.coupling_flow(KEY, base_dist=base, invert=False, **sizes),
        "autoregressive": lambda: ff.masked_autoregressive_flow(
            KEY, base_dist=base, invert=False, **sizes
        ),
        "spline": lambda: ff.coupling_flow(
            KEY, base_dist=base, transformer=spline, invert=False, **sizes
        ),
    }[name]().bijection


def num_products(body):
    own = sum(eqn.primitive.name == "dot_general" for eqn in body.eqns)
    return own + sum(num_products(inner) for eqn in body.eqns for inner in _jax.sub_bodies(eqn))


@pytest.mark.parametrize("name", ["coupling", "autoregressive", "spline"])
def test_a_late_log_determinant_of_a_flow_of_flowjax_has_no_matrix_product(name):
    flow = layers(name)

    def late(x):
        b = bijectors.remember(flow)
        y = b.forward(x, requires_ladj=False)
        return b.log_abs_det_jacobian(x, y)

    def output(x):
        return bijectors.remember(flow).forward(x, requires_ladj=False)

    num, expected = (num_products(_jax.open_jaxpr(jax.make_jaxpr(f)(X))) for f in (late, output))
    assert num == expected > 0
    np.testing.assert_allclose(late(X), flow.transform_and_log_det(X)[1], rtol=1e-6)
