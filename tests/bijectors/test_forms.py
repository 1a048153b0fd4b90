"""What must miss, what dies and what is counted, for every form of bijection: FlowJAX, NumPyro,
distrax, plain.
"""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import all_cases, num_remembered
from incrax import bijectors

NAMES = [
    "affine", "chain", "conditional coupling flow", "numpyro cholesky affine", "distrax chain", "plain",
]  # fmt: skip
MISSES = {
    "arithmetic": lambda y: y + 0,
    "slice": lambda y: y[:],
    "another shape": lambda y: jnp.reshape(y, (1, *y.shape))[0],
    "another type": lambda y: y.astype(jnp.float32).astype(y.dtype),
    "NumPy": lambda y: jnp.array(np.asarray(y)),
    "jit": jax.jit(lambda y: y),
    "vmap": lambda y: jax.vmap(lambda y: y)(y),
    "grad": lambda y: jax.value_and_grad(lambda y: (jnp.sum(y), y), has_aux=True)(y)[0][1],
    "a copy": lambda y: jnp.array(y),
    "deepcopy": copy.deepcopy,
    "pickle": lambda y: pickle.loads(pickle.dumps(y)),
}


@pytest.fixture(params=[name for name in NAMES if name in all_cases()])
def form(request):
    case = all_cases()[request.param]
    context = None if case.context is None else jnp.array(case.context)
    yield bijectors.remember(case.make()), jnp.array(case.x), context
    gc.collect()
    assert num_remembered() == 0


def test_every_form_that_is_installed_is_here():
    assert "plain" in all_cases()


def test_what_must_miss_is_computed_and_right(form):
    b, x, context = form
    y = b.forward(x, context)
    assert b.inverse(y, context) is x
    for name, change in MISSES.items():
        other = change(y)
        if other is y:
            continue
        assert bijectors.memory_of(other) is None, name
        back = b.inverse(other, context)
        assert back is not x, name
        np.testing.assert_allclose(back, x, rtol=1e-3 if name == "another type" else 1e-6)


def test_another_context_or_none_misses(form):
    b, x, context = form
    if context is None:
        pytest.skip("takes no context")
    y = b.forward(x, context)
    same = jnp.array(context)
    assert b.inverse(y, same) is not x
    np.testing.assert_allclose(b.inverse(y, same), x, rtol=1e-6)
    assert not np.allclose(b.inverse(y, context + 1), x)


def test_other_parameters_miss(form):
    b, x, context = form
    y = b.forward(x, context)
    is_float = lambda w: isinstance(w, jax.Array) and jnp.issubdtype(w.dtype, jnp.floating)
    for step in (lambda w: w * 1.1, lambda w: jnp.array(w)):
        other = jax.tree.map(lambda w, step=step: step(w) if is_float(w) else w, b)
        back = other.inverse(y, context)
        assert back is not x
        with bijectors.set_record_flow_graph(False):
            np.testing.assert_array_equal(back, other.inverse(y, context))


def test_a_gradient_with_a_constant_output_goes_through_the_inverse(form):
    b, x, context = form
    y = b.forward(x, context)
    with bijectors.set_record_flow_graph(False):
        expected = jax.jit(jax.grad(lambda y: jnp.sum(jnp.sin(b.inverse(y, context)))))(y)
    found = jax.jit(jax.grad(lambda y: jnp.sum(jnp.sin(b.inverse(y, context)))))(y)
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert jnp.any(found != 0)


def test_a_deleted_input_is_not_given_out(form):
    b, x, context = form
    source = jnp.array(x)
    y = b.forward(source, context)
    source.delete()
    np.testing.assert_allclose(b.inverse(y, context), x, rtol=1e-6, atol=1e-8)


def test_one_thousand_dead_outputs_leave_an_empty_table(form):
    b, x, context = form
    xs = list(jnp.array(x) + jnp.arange(1000.0).reshape(1000, *[1] * x.ndim) / 1e4)
    outputs = [b.forward(x, context) for x in xs]
    assert num_remembered() == 1000
    sources = [weakref.ref(x) for x in xs]
    del outputs, xs, x
    assert num_remembered() == 0
    assert sum(source() is not None for source in sources) <= 1  # the loop's last


def test_a_list_of_numbers_is_an_array():
    transforms = pytest.importorskip("numpyro.distributions.transforms")
    double = bijectors.remember(transforms.AffineTransform(0.0, 2.0))
    assert double.forward([1.0, 2.0]).tolist() == [2.0, 4.0]
