"""Every bijection, every law: round trips, exact Jacobians, remembered against recomputed, transformations."""

from __future__ import annotations

import gc
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import all_cases, params
from incrax import bijectors
from incrax.bijectors.memory import num_remembered

CLOSE = {"rtol": 1e-7, "atol": 1e-9}


@pytest.fixture(autouse=True, scope="module")
def _programs_run_once():
    """Most of the time goes into compiling."""
    was = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", was)


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
    """The case, its bijection, input and context; the same bijection in all tests, so that it is compiled once."""
    case = all_cases()[name]
    context = None if case.context is None else jnp.array(case.context)
    return case, bijectors.remember(case.make()), jnp.array(case.x), context


@cache
def oracle(name):
    """Without memory, in one program: output, its log-determinant, its Jacobian, and both of the inverse."""
    case, b, x, context = made(name)

    def run(x):
        y, ladj = b.transform_and_log_det(x, context)
        jacobian = jax.jacfwd(lambda x: b.forward(x, context))(x)
        return y, ladj, jacobian, *(b.inverse_and_log_det(y, context) if case.has_inverse else (None, None))

    with bijectors.set_record_flow_graph(False):
        return jax.jit(run)(x)


def close(found, expected, case):
    np.testing.assert_allclose(found, expected, rtol=case.rtol, atol=case.rtol / 10)


def test_round_trips_without_memory(name):
    case, _, x, _ = made(name)
    if not case.has_inverse:
        pytest.skip("has no inverse")
    _, ladj, _, back, back_ladj = oracle(name)
    close(back, x, case)
    close(back_ladj, -ladj, case)


def test_the_log_determinant_is_that_of_the_exact_jacobian(name):
    case, b, x, context = made(name)
    jacobian = oracle(name)[2]
    if case.num_event == 0:
        exact = jnp.log(jnp.abs(jnp.diagonal(jacobian) if x.ndim else jacobian))
    else:
        exact = jnp.linalg.slogdet(jacobian.reshape(-1, x.size)[: x.size])[1]
    close(b.transform_and_log_det(x, context)[1], exact, case)


def test_the_remembered_input_is_the_input_and_close_to_the_recomputed(name):
    case, b, x, context = made(name)
    y = b.forward(x, context)
    found, ladj = b.inverse_and_log_det(y, context)
    assert found is x
    expected_y, expected_ladj, _, back, back_ladj = oracle(name)
    close(y, expected_y, case)
    close(ladj, -expected_ladj, case)
    if case.has_inverse:
        close(found, back, case)
        assert (found.dtype, found.weak_type, ladj.dtype) == (back.dtype, back.weak_type, back_ladj.dtype)


def test_an_inverse_is_computed_anew_for_what_is_no_output(name):
    case, b, x, context = made(name)
    y = jnp.array(b.forward(x, context))
    if not case.has_inverse:
        with pytest.raises(NotImplementedError):
            b.inverse(y, context)
        return
    back = b.inverse(y, context)
    assert back is not x
    assert b.forward(back, context) is y
    close(b.log_abs_det_jacobian(back, y, context), oracle(name)[1], case)


@pytest.mark.parametrize("requires_ladj", [True, False])
def test_the_log_determinant_of_an_output_is_that_of_its_pass(name, requires_ladj):
    _, b, x, context = made(name)
    y = b.forward(x, context, requires_ladj=requires_ladj)
    assert (bijectors.memory_of(y).ladj is None) != requires_ladj
    found = b.log_abs_det_jacobian(x, y, context)
    np.testing.assert_allclose(found, oracle(name)[1], **CLOSE)
    assert b.log_abs_det_jacobian(x, y, context) is found


# --- transformations --------------------------------------------------------------------------------------------------


def score(name):
    """log|det J| and a function of the inverse of the output, as in a log-density of an own sample."""
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
    "scan": (lambda f: lambda x: jax.lax.scan(lambda c, x: (c, f(x)), 0.0, pair(x))[1], lambda plain: plain["values"]),
}
"""Each with how its result follows from those without memory."""


def transformed(name, x):
    return {each: transform(score(name))(x) for each, (transform, _) in TRANSFORMATIONS.items()}


@cache
def results(name, is_eager):
    """The results of all transformations; in one program, or operation by operation."""
    run = lambda x: transformed(name, x)
    return (run if is_eager else jax.jit(run))(made(name)[2])


@cache
def without_memory(name):
    """The derivatives of the same score, whose inverse is the input: forward passes only, nothing remembered."""
    case, b, x, context = made(name)

    def f(x):
        y, ladj = b.transform_and_log_det(x, context)
        is_inverted = case.has_inverse and case.has_derivative
        return jnp.sum(ladj) + jnp.sum(y**2) + (jnp.sum(jnp.sin(x)) if is_inverted else 0)

    with bijectors.set_record_flow_graph(False):
        run = jax.jit(lambda x: (f(x), f(x + 0.01), jax.jacfwd(f)(x), jax.jacfwd(jax.jacfwd(f))(x)))
        *values, gradient, hessian = run(x)
    return {"gradient": gradient, "hessian": hessian, "values": jnp.stack(values)}


def agree(name, transformation, is_eager):
    found, expected = results(name, is_eager)[transformation], TRANSFORMATIONS[transformation][1](without_memory(name))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_transformations_give_what_they_give_without_memory(name, transformation):
    agree(name, transformation, is_eager=False)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("eager_name", [name for name, case in all_cases().items() if case.is_eager])
def test_transformations_of_single_operations_give_what_programs_give(eager_name, transformation):
    agree(eager_name, transformation, is_eager=True)


def test_no_tracer_outlives_its_trace(name):
    _, b, x, context = made(name)
    y = b.forward(x, context)
    with jax.checking_leaks():
        jax.make_jaxpr(jax.grad(score(name)))(x)
    assert bijectors.memory_of(y).source is x
    assert num_remembered() == 1 + max(len(b.parts) - 1, 0)


@pytest.mark.parametrize("eager_name", [name for name, case in all_cases().items() if case.is_eager])
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
def test_no_tracer_outlives_a_transformation(eager_name, transformation):
    with jax.checking_leaks():
        TRANSFORMATIONS[transformation][0](score(eager_name))(made(eager_name)[2])
    assert num_left() == 0
