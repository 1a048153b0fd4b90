"""Every bijection: round trips, exact Jacobians, remembered against recomputed, and one
transformation each.
"""

from __future__ import annotations

import gc
import itertools
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import all_cases, num_remembered, params
from incrax import bijectors

CLOSE = {"rtol": 1e-7, "atol": 1e-9}


@pytest.fixture(params=params())
def name(request):
    yield request.param
    assert num_left() == 0


def num_left():
    """Of what is remembered; rubbish is collected only if there is any, which takes a while."""
    if num_remembered():
        gc.collect()
    return num_remembered()


@cache
def made(name):
    """The case, its bijection, input and context; the same bijection in all tests, so that it is
    compiled once.
    """
    case = all_cases()[name]
    context = None if case.context is None else jnp.array(case.context)
    return case, bijectors.remember(case.make()), jnp.array(case.x), context


@cache
def oracle(name):
    """Without memory, in one program: output, its log-determinant, its Jacobian, and both of the
    inverse.
    """
    case, b, x, context = made(name)

    def run(x):
        y, ladj = b.transform_and_log_det(x, context)
        jacobian = jax.jacfwd(lambda x: b.forward(x, context))(x)
        return (
            y,
            ladj,
            jacobian,
            *(b.inverse_and_log_det(y, context) if case.has_inverse else (None, None)),
        )

    with bijectors.set_record_flow_graph(False):
        return jax.jit(run)(x)


def close(found, expected, case):
    np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=case.rtol / 10)


def test_without_memory_the_laws_of_the_library_hold(name):
    case, _, x, _ = made(name)
    _, ladj, jacobian, back, back_ladj = oracle(name)
    if case.num_event == 0:
        exact = jnp.log(jnp.abs(jnp.diagonal(jacobian) if x.ndim else jacobian))
    else:
        exact = jnp.linalg.slogdet(jacobian.reshape(-1, x.size)[: x.size])[1]
    close(ladj, exact, case)
    if case.has_inverse:
        close(back, x, case)
        close(back_ladj, -ladj, case)


def test_what_is_remembered_is_close_to_what_is_computed(name):
    case, b, x, context = made(name)
    y = b.forward(x, context)
    found, ladj = b.inverse_and_log_det(y, context)
    assert found is x
    expected_y, expected_ladj, _, back, back_ladj = oracle(name)
    close(y, expected_y, case)
    close(ladj, -expected_ladj, case)
    other = jnp.array(y)
    if not case.has_inverse:
        with pytest.raises(NotImplementedError):
            b.inverse(other, context)
        return
    close(found, back, case)
    assert (found.dtype, found.weak_type, ladj.dtype) == (
        back.dtype,
        back.weak_type,
        back_ladj.dtype,
    )
    computed = b.inverse(other, context)
    assert computed is not x
    assert b.forward(computed, context) is other
    close(b.log_abs_det_jacobian(computed, other, context), expected_ladj, case)


def test_a_late_log_determinant_is_that_of_the_pass(name):
    _, b, x, context = made(name)
    y = b.forward(x, context, requires_ladj=False)
    assert bijectors.memory_of(y).ladj is None
    found = b.log_abs_det_jacobian(x, y, context)
    np.testing.assert_allclose(found, oracle(name)[1], **CLOSE)
    assert b.log_abs_det_jacobian(x, y, context) is found


# --- transformations ------------------------------------------------------------------------------


def score(name):
    """log|det J| and a function of the inverse of the output, as in a log-density of an own
    sample.
    """
    case, b, _, context = made(name)

    def f(x):
        if not (case.has_inverse and case.has_derivative):
            y, ladj = b.transform_and_log_det(x, context)
            return jnp.sum(ladj) + jnp.sum(y**2)
        y = b.forward(x, context)
        back, ladj = b.inverse_and_log_det(y, context)
        return jnp.sum(jnp.sin(back)) - jnp.sum(ladj) + jnp.sum(y**2)

    return f


def pair(x):
    return jnp.stack([x, x + 0.01])


TRANSFORMATIONS = {
    "jit": (jax.jit, lambda plain: plain["values"][0]),
    "grad": (jax.grad, lambda plain: plain["gradient"]),
    "hessian": (lambda f: jax.jacfwd(jax.jacfwd(f)), lambda plain: plain["hessian"]),
    "remat": (lambda f: jax.grad(jax.checkpoint(f)), lambda plain: plain["gradient"]),
    "vmap": (lambda f: lambda x: jax.vmap(f)(pair(x)), lambda plain: plain["values"]),
    "scan": (
        lambda f: lambda x: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, pair(x))[1],
        lambda plain: plain["values"],
    ),
}
"""Each with how its result follows from those without memory."""


@cache
def without_memory(name):
    """The derivatives of the same score, whose inverse is the input: forward passes only, nothing
    remembered.
    """
    case, b, x, context = made(name)

    def f(x):
        y, ladj = b.transform_and_log_det(x, context)
        is_inverted = case.has_inverse and case.has_derivative
        return jnp.sum(ladj) + jnp.sum(y**2) + (jnp.sum(jnp.sin(x)) if is_inverted else 0)

    with bijectors.set_record_flow_graph(False):
        run = jax.jit(lambda x: (f(x), f(x + 0.01), jax.jacfwd(f)(x), jax.jacfwd(jax.jacfwd(f))(x)))
        *values, gradient, hessian = run(x)
    return {"gradient": gradient, "hessian": hessian, "values": jnp.stack(values)}


def turns(names):
    """Each bijection with one transformation, by turns."""
    return list(zip(names, itertools.cycle(TRANSFORMATIONS)))  # noqa: B905


@contextmanager
def checking_leaks():
    """As of JAX, while nothing reads the locals of JAX's own frames: `error_if` of Equinox does, for
    the names of callers, and Python before 3.13 keeps what was read, tracers among it.
    """
    nobody = SimpleNamespace(walk_stack=lambda _: [])
    with mock.patch("equinox._errors.traceback", nobody), jax.checking_leaks():
        yield


EAGER = [name for name, case in all_cases().items() if case.is_eager]


@pytest.mark.parametrize(("any_name", "transformation"), turns(all_cases()))
def test_a_transformation_gives_what_it_gives_without_memory_and_leaves_no_tracer(
    any_name, transformation
):
    transform, expected = TRANSFORMATIONS[transformation]
    with checking_leaks():
        found = jax.jit(transform(score(any_name)))(made(any_name)[2])
    np.testing.assert_allclose(found, expected(without_memory(any_name)), rtol=1e-6, atol=1e-8)
    assert num_left() == 0


@pytest.mark.parametrize(("eager_name", "transformation"), turns(EAGER))
def test_a_transformation_of_single_operations_does_so_too(eager_name, transformation):
    transform, expected = TRANSFORMATIONS[transformation]
    with checking_leaks():
        found = transform(score(eager_name))(made(eager_name)[2])
    np.testing.assert_allclose(found, expected(without_memory(eager_name)), rtol=1e-6, atol=1e-8)
    assert num_left() == 0
