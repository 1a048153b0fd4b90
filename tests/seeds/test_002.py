"""Seed 002, facebookincubator/flowtorch pull request 89
(https://github.com/facebookincubator/flowtorch/pull/89).

Outputs remember what made them (`incrax.bijectors`). In one function, the engine evaluates the
conditioner once for the output and the log-determinant, and keeps it across calls. A comment quotes
the statement that a test is about.
"""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bijectors.cases import Scale, counted, pop_counts
from helpers import MINIMAL, check_calls, primitives_run

import incrax
from incrax import bijectors
from incrax.bijectors import switches

pytestmark = pytest.mark.optimized

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
NET = {"w": RNG.normal(size=(2, 4)), "b": RNG.normal(size=4)}


def params(net, x):
    """The conditioner: shift and log-scale of the second half from the first; `tanh` stands here
    only.
    """
    return jnp.split(jnp.tanh(x[:, :2] @ net["w"] + net["b"]), 2, axis=1)


def forward(net, x):
    shift, log_scale = params(net, x)
    return jnp.concatenate([x[:, :2], x[:, 2:] * jnp.exp(log_scale) + shift], axis=1)


def log_abs_det_jacobian(net, x):
    _, log_scale = params(net, x)
    return jnp.sum(log_scale, axis=1)


def test_output_and_log_determinant_share_one_evaluation_of_the_conditioner():
    f = incrax.incremental(
        lambda net, x: (forward(net, x), log_abs_det_jacobian(net, x)), tuning=MINIMAL
    )
    f(NET, X)
    assert primitives_run(f).count("tanh") == 1


def test_a_log_determinant_that_nobody_asks_for_is_not_computed():
    def flow(net, x, requires_ladj):
        y, ladj = forward(net, x), log_abs_det_jacobian(net, x)
        return (y, ladj) if requires_ladj == "yes" else y

    f = incrax.incremental(flow, tuning=MINIMAL)
    f(NET, X, "yes")
    assert "reduce_sum" in primitives_run(f)
    f(NET, X, "no")
    assert "reduce_sum" not in primitives_run(f)


def test_a_frozen_flow_is_left_alone_while_its_base_distribution_changes():
    def log_density(base, net, x):
        z = forward(net, x)
        return jnp.sum(
            -0.5 * ((z - base["mean"]) / base["scale"]) ** 2 - jnp.log(base["scale"])
        ) + jnp.sum(log_abs_det_jacobian(net, x))

    gradient = jax.value_and_grad(log_density)
    calls = [
        ({"mean": m, "scale": s}, NET, X)
        for m, s in [(0.0, 1.0), (0.5, 1.0), (0.5, 2.0), (0.1, 3.0)]
    ]
    f = check_calls(gradient, calls, tuning=MINIMAL)
    assert not {"tanh", "exp", "dot_general"} & set(primitives_run(f))


def test_a_kept_log_determinant_is_stale_after_a_step_of_the_parameters():
    nets = [jax.tree.map(lambda w, k=k: w * (1 + 0.1 * k), NET) for k in range(3)]
    f = check_calls(
        log_abs_det_jacobian, [(net, x) for net in nets for x in (X, X + 1)], tuning=MINIMAL
    )
    assert f.stats.unchanged == 0


class Exp:
    def transform_and_log_det(self, x):
        return jnp.exp(x), jnp.sum(x)

    def inverse_and_log_det(self, y):
        return jnp.log(y), -jnp.sum(jnp.log(y))


class Conditioned:
    """y = x for the first half, exp(log-scale) x for the rest; what runs of the conditioner and the
    rest is counted.
    """

    def __init__(self, w):
        self.w = w

    def params(self, x, context):
        log_scale = counted("params", jnp.tanh(self.w * x[:1]))
        return log_scale if context is None else log_scale + context

    def transform_and_log_det(self, x, context=None):
        log_scale = self.params(x, context)
        y = jnp.concatenate([x[:1], counted("forward", x[1:]) * jnp.exp(log_scale)])
        return y, jnp.sum(counted("ladj", log_scale))

    def inverse_and_log_det(self, y, context=None):
        log_scale = self.params(y, context)
        x = jnp.concatenate([y[:1], counted("inverse", y[1:]) / jnp.exp(log_scale)])
        return x, -jnp.sum(counted("ladj", log_scale))


jax.tree_util.register_pytree_node(
    Conditioned, lambda c: ((c.w,), None), lambda aux, children: Conditioned(*children)
)

POINT = jnp.array([0.5, -1.0])
WARNING = (
    "A log-determinant is computed although `set_requires_ladj(False)` is in force, from the "
    "remembered input. This "
    "may slow down your forward and backward passes: where a log-determinant is wanted it is "
    "cheaper to compute it "
    "together with the output. Consider removing the context manager `set_requires_ladj(False)`. "
    "This is said once."
)


@pytest.fixture
def flow():
    return bijectors.remember(Exp())


@pytest.fixture
def conditioned():
    switches._warn_once.cache_clear()
    pop_counts()
    return bijectors.remember(Conditioned(jnp.array(0.7)))


# "a way of caching intermediate values computed in the flow" "keeps track of the layer that has
# created it, the original tensor and whether it comes from a call to 'forward' or 'inverse'"
def test_an_output_knows_its_bijection_its_input_and_its_direction(flow):
    record = bijectors.memory_of(flow.forward(POINT))
    assert record.bijection is flow
    assert (record.source is POINT, record.direction) == (True, "forward")
    assert bijectors.memory_of(flow.inverse(jnp.exp(POINT))).direction == "inverse"


# "It inherits from torch.Tensor."
def test_an_output_is_an_array_wherever_an_array_is_taken(flow):
    y = flow.forward(POINT)
    assert type(y) is type(POINT)
    np.testing.assert_allclose(jax.grad(jnp.sum)(y), 1.0)
    np.testing.assert_allclose(jax.jit(jnp.log)(y), POINT)
    np.testing.assert_allclose(np.asarray(y), jnp.exp(POINT))


# "By default, an operation on a BijectiveTensor returns a torch.Tensor ..."
def test_an_operation_on_an_output_returns_an_array_without_memory(flow):
    y = flow.forward(POINT)
    assert bijectors.memory_of(y + 1) is None
    assert bijectors.memory_of(y) is not None


# "... (except if this operation is a Bijector)"
def test_a_bijection_of_an_output_returns_an_array_that_remembers_the_output(flow):
    outer = bijectors.remember(Scale(jnp.array([2.0, 3.0])))
    y = flow.forward(POINT)
    z = outer.forward(y)
    assert bijectors.memory_of(z).source is y
    assert flow.inverse(outer.inverse(z)) is POINT


# "One can control if BijectiveTensors should be used (which is the case by default) with the
# context manager set_record_flow_graph."
def test_recording_is_on_by_default_and_a_context_manager_switches_it_off(flow):
    with bijectors.set_record_flow_graph(False):
        assert bijectors.memory_of(flow.forward(POINT)) is None
    assert bijectors.memory_of(flow.forward(POINT)) is not None


# "_log_abs_det_jacobian can call params(x), even though param(x) may have been computed already"
def test_the_conditioner_is_called_once_for_an_output_its_inverse_and_its_log_determinant(
    conditioned,
):
    y = conditioned.forward(POINT)
    ladj = conditioned.log_abs_det_jacobian(POINT, y)
    assert conditioned.inverse(y) is POINT
    np.testing.assert_allclose(ladj, np.tanh(0.35))
    assert pop_counts() == {"params": 1, "forward": 1, "ladj": 1}


# "we should cache the value returned by param(x) too"; "pass the result of param (if any) after
# calling _forward"
def test_what_the_conditioner_gave_is_kept_for_a_log_determinant_that_comes_later(conditioned):
    y = conditioned.forward(POINT, requires_ladj=False)
    assert pop_counts() == {"params": 1, "forward": 1}
    (kept,) = bijectors.memory_of(y).kept
    np.testing.assert_allclose(kept, np.tanh([0.35]))
    np.testing.assert_allclose(conditioned.log_abs_det_jacobian(POINT, y), np.tanh(0.35))
    assert pop_counts() == {"ladj": 1}


# "... or _inverse"; "and similarly for _inverse"
def test_the_conditioner_is_called_once_for_an_inverse_and_its_log_determinant(conditioned):
    x = conditioned.inverse(POINT)
    conditioned.log_abs_det_jacobian(x, POINT)
    assert conditioned.forward(x) is POINT
    assert pop_counts() == {"params": 1, "inverse": 1, "ladj": 1}


# "if is_record_flow_graph_enabled(): y = to_bijective_tensor(x, y, self, mode="forward",
# params=params)"
def test_nothing_of_the_conditioner_is_kept_where_recording_is_off(conditioned):
    with bijectors.set_record_flow_graph(False):
        y = conditioned.forward(POINT)
        pop_counts()
        conditioned.log_abs_det_jacobian(POINT, y)
    assert pop_counts() == {"params": 1, "ladj": 1}


# "why do we need to store params(x, context)? Why can't we just store log_det_J in the forward or
# inverse pass?" "._forward and ._inverse input a precalculated params, and also return the
# log(abs(det(J)))"
def test_the_log_determinant_is_stored_with_the_output_and_not_computed_again(flow):
    y = flow.forward(POINT)
    assert flow.log_abs_det_jacobian(POINT, y) is bijectors.memory_of(y).ladj


# "BijectiveTensor stores (x, y, context, bijector, log_detJ)"; "context: Optional[torch.Tensor] =
# None"
def test_an_output_knows_its_context_and_answers_for_that_only(conditioned):
    context, other = jnp.array([0.1]), jnp.array([0.2])
    y = conditioned.forward(POINT, context)
    record = bijectors.memory_of(y)
    assert (record.source is POINT, record.context is context, record.bijection is conditioned) == (
        True,
        True,
        True,
    )
    np.testing.assert_allclose(record.ladj, np.tanh(0.35) + 0.1)
    assert conditioned.inverse(y, context) is POINT
    np.testing.assert_allclose(conditioned.inverse(y, other), [0.5, -np.exp(-0.1)])
    np.testing.assert_allclose(
        conditioned.log_abs_det_jacobian(POINT, y, other), np.tanh(0.35) + 0.2
    )


# ".forward uses the stored value for y if x is a BijectiveTensor"; ".inverse uses the stored value
# for x if y is a BijectiveTensor"
def test_the_stored_value_answers_in_both_directions(flow):
    y = flow.forward(POINT)
    assert flow.inverse(y) is POINT
    z = flow.inverse(jnp.array(y))
    assert flow.forward(z) is bijectors.memory_of(z).source


# ".log_abs_det_jacobian uses the stored value for log_detJ if either x or y is a BijectiveTensor"
def test_the_stored_log_determinant_answers_whichever_of_both_was_made(conditioned):
    y = conditioned.forward(POINT)
    x = conditioned.inverse(POINT)
    pop_counts()
    np.testing.assert_allclose(conditioned.log_abs_det_jacobian(POINT, y), np.tanh(0.35))
    np.testing.assert_allclose(conditioned.log_abs_det_jacobian(x, POINT), np.tanh(0.35))
    assert pop_counts() == {}


# "if either x or y is a BijectiveTensor": but not where it is that of another x
def test_the_stored_log_determinant_is_not_given_for_another_input(conditioned):
    y = conditioned.forward(POINT)
    np.testing.assert_allclose(conditioned.log_abs_det_jacobian(POINT + 0.5, y), np.tanh(0.7))


# "for some flows, the computation of the LADJ is straightforward but for others it comes at a high
# cost (e.g. invertible resnet). I would like to think of an option where we can disable this
# computation of the LADJ if we don't need to (e.g. using invertible resnet for image classification
# does not require the LADJ)." "with set_requires_ladj(False): # default is True. This cm disables
# the computation of the LADJ to save time"
def test_a_switched_off_log_determinant_is_computed_in_neither_direction(conditioned):
    assert bijectors.requires_ladj()
    with bijectors.set_requires_ladj(False):
        y = conditioned.forward(POINT)
        conditioned.inverse(jnp.array(y))
    assert pop_counts() == {"params": 2, "forward": 1, "inverse": 1}


# "works but LADJ will be computed using cached x and y, not a cached ladj"
def test_with_log_determinants_switched_off_they_are_computed_late(conditioned):
    with bijectors.set_requires_ladj(False):
        y = conditioned.forward(POINT)
        assert bijectors.memory_of(y).ladj is None
        pop_counts()
        with pytest.warns(UserWarning, match="Consider removing"):
            np.testing.assert_allclose(conditioned.log_abs_det_jacobian(POINT, y), np.tanh(0.35))
    assert pop_counts() == {"ladj": 1}


# "We could also have a one-time display warning when calling `log_abs_dej_jacobian` inside the
# `set_requires_ladj(False)` like this: Warning: computing the LADJ when set_requires_ladj is set to
# False may slow down your forward and backward passes. Consider removing the
# `set_requires_ladj(False)` context manager."
def test_a_late_log_determinant_is_warned_of_once_in_these_words(conditioned):
    with bijectors.set_requires_ladj(False), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        conditioned.log_abs_det_jacobian(POINT, conditioned.forward(POINT))
        conditioned.log_abs_det_jacobian(POINT, conditioned.forward(POINT + 1))
    assert [str(warning.message) for warning in seen] == [WARNING]


# "we could flag the forward (or inverse) pass with some decorator / context manager / flag"
def test_a_decorator_switches_log_determinants_off_as_well(conditioned):
    @bijectors.set_requires_ladj(False)
    def classify(x):
        return conditioned.forward(x)

    assert bijectors.memory_of(classify(POINT)).ladj is None
    assert bijectors.memory_of(conditioned.forward(POINT)).ladj is not None


# "there are cases where we want to have an output that requires grad but don't want a LADJ, and the
# opposite is also true. So we can't just use torch.is_grad_enabled in place of this context
# manager."
def test_log_determinants_are_independent_of_differentiation(flow):
    with bijectors.set_requires_ladj(False):
        gradient = jax.grad(lambda x: jnp.sum(flow.forward(x)))(POINT)
    np.testing.assert_allclose(gradient, jnp.exp(POINT))
    assert bijectors.memory_of(flow.forward(POINT)).ladj is not None


# "y = flow(x, requires_ladj=False); ladj = flow.log_abs_det_jacobian(x, y) # works but slower as
# only uses cached x and y, and perhaps recompute the params(x) functions"
def test_one_call_does_without_the_log_determinant_and_is_not_warned_of(conditioned, recwarn):
    y = conditioned.forward(POINT, requires_ladj=False)
    assert bijectors.memory_of(y).ladj is None
    np.testing.assert_allclose(conditioned.log_abs_det_jacobian(POINT, y), np.tanh(0.35))
    assert not recwarn.list
    with bijectors.set_requires_ladj(False):
        assert bijectors.memory_of(conditioned.forward(POINT, requires_ladj=True)).ladj is not None


# The thread's tests are of distributions too (test/test_distribution.py): samples are scored by
# what they remember.
def test_the_log_density_of_an_own_sample_calls_the_conditioner_no_more():
    flow = bijectors.remember(Conditioned(jnp.array(0.7)))

    def log_prob(y):
        x, ladj = flow.inverse_and_log_det(y)
        return jnp.sum(jax.scipy.stats.norm.logpdf(x)) + ladj

    pop_counts()
    y = flow.forward(jax.random.normal(jax.random.key(0), (2,)))
    assert pop_counts() == {"params": 1, "forward": 1, "ladj": 1}
    found = log_prob(y)
    assert pop_counts() == {}
    np.testing.assert_allclose(found, log_prob(jnp.array(y)))
    assert pop_counts() == {"params": 1, "inverse": 1, "ladj": 1}


def test_the_same_inside_compiled_code(conditioned):
    """`jit` of the whole: the inverse of an output is its source, and the conditioner runs once."""

    @bijectors.jit
    def both(x):
        y = conditioned.forward(x)
        return y, conditioned.inverse(y), conditioned.log_abs_det_jacobian(x, y)

    y, x, ladj = both(POINT)
    np.testing.assert_array_equal(x, POINT)
    np.testing.assert_allclose(ladj, np.tanh(0.35), rtol=1e-6)
    assert pop_counts() == {"params": 1, "forward": 1, "ladj": 1}
    np.testing.assert_allclose(conditioned.inverse(y), POINT)
    assert pop_counts() == {}
