"""Chains record every part, and a part answers for its own output only."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from incrax import bijectors
from incrax.bijectors.memory import num_remembered

fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")

X = jnp.array([0.5, -1.0, 0.25])


@pytest.fixture
def chain():
    parts = [fb.Affine(jnp.ones(3), 2 * jnp.ones(3)), fb.Tanh((3,)), fb.Affine(jnp.zeros(3), 3 * jnp.ones(3))]
    return bijectors.remember(fb.Chain(parts))


def test_every_part_is_recorded_with_its_source(chain):
    y = chain.forward(X)
    first, tanh, last = chain.parts
    h = last.inverse(y)
    records = [bijectors.memory_of(tanh.inverse(h)), bijectors.memory_of(h)]
    assert [record.bijection for record in records] == [first, tanh]
    assert first.inverse(records[1].source) is records[0].source is X
    assert chain.inverse(y) is X
    ladj = sum(record.ladj for record in records) + last.log_abs_det_jacobian(h, y)
    np.testing.assert_allclose(chain.log_abs_det_jacobian(X, y), ladj)


def test_a_part_answers_for_its_own_output_only(chain):
    y = chain.forward(X)
    first, tanh, last = chain.parts
    assert first.inverse(y) is not X
    np.testing.assert_allclose(first.inverse(y), (y - 1) / 2)
    np.testing.assert_allclose(first.log_abs_det_jacobian(X, y), 3 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(last.log_abs_det_jacobian(X, y), 3 * np.log(3), rtol=1e-6)


def test_a_part_taken_from_the_chain_by_hand_answers_too(chain):
    y = chain.forward(X)
    assert bijectors.remember(chain.bijection[2]).inverse(y) is chain.parts[2].inverse(y)
    assert bijectors.memory_of(chain.parts[2].inverse(y)).direction == "forward"


def test_an_inverse_records_every_part(chain):
    y = jnp.array(chain.forward(X))
    x = chain.inverse(y)
    assert chain.forward(x) is y
    assert bijectors.memory_of(chain.parts[0].forward(x)).bijection is chain.parts[1]


def test_a_late_log_determinant_of_a_chain_uses_what_its_parts_kept(chain):
    y = chain.forward(X, requires_ladj=False)
    np.testing.assert_allclose(chain.log_abs_det_jacobian(X, y), chain.transform_and_log_det(X)[1], rtol=1e-6)


def test_what_a_chain_keeps_dies_with_its_output(chain):
    y = chain.forward(X)
    assert num_remembered() == 3
    del y
    assert num_remembered() == 0


def test_events_with_leading_axes_are_recorded_as_one_array(chain):
    x = jnp.stack([X, X + 0.1])
    y, ladj = chain.transform_and_log_det(x)
    assert ladj.shape == (2,)
    assert chain.inverse(y) is x
    np.testing.assert_allclose(ladj[0], chain.transform_and_log_det(X)[1], rtol=1e-6)
