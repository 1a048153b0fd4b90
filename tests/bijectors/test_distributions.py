"""Flows: samples that remember, densities that take no inverse, shapes, and the distributions of other libraries."""

from __future__ import annotations

import copy
import gc
import importlib.util
import pickle
import re
import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import Counted, Scale, pop_counts
from incrax import bijectors
from incrax.bijectors.memory import num_remembered

KEY = jax.random.key(0)
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


@pytest.fixture(autouse=True)
def _nothing_outlives_a_test():
    yield
    gc.collect()
    assert num_remembered() == 0


# --- distributions of other libraries ---------------------------------------------------------------------------------


def of_flowjax():
    import flowjax.bijections as fb
    import flowjax.distributions as fd
    import flowjax.flows as ff

    nested = fd.Transformed(fd.Normal(jnp.ones(3), 2 * jnp.ones(3)), fb.Chain([fb.Affine(jnp.ones(3)), fb.Exp((3,))]))
    base = fd.Normal(jnp.zeros(3))
    return {
        "flowjax nested": (nested, None),
        "flowjax log-normal": (fd.LogNormal(jnp.ones(2), 0.5), None),
        "flowjax coupling": (ff.coupling_flow(KEY, base_dist=base, flow_layers=1, nn_width=4), None),
        "flowjax conditional": (
            ff.coupling_flow(KEY, base_dist=base, cond_dim=2, flow_layers=1, nn_width=4),
            jnp.array([0.3, -0.2]),
        ),
    }


def of_numpyro():
    import numpyro.distributions as dist

    steps = [dist.transforms.AffineTransform(1.0, 2.0), dist.transforms.ExpTransform()]
    normal = dist.Normal(jnp.zeros(3), jnp.ones(3))
    simplex = dist.transforms.StickBreakingTransform()
    return {
        "numpyro batch": (dist.TransformedDistribution(normal, steps), None),
        "numpyro event of numbers": (dist.TransformedDistribution(normal.to_event(1), steps), None),
        "numpyro another shape": (dist.TransformedDistribution(normal.to_event(1), simplex), None),
        "numpyro log-normal": (dist.LogNormal(jnp.zeros(2), 1.0), None),
    }


def of_distrax():
    import distrax

    normal = distrax.MultivariateNormalDiag(jnp.zeros(3), jnp.array([1.0, 0.5, 0.2]))
    return {
        "distrax block": (distrax.Transformed(normal, distrax.Block(distrax.Tanh(), 1)), None),
        "distrax batch": (distrax.Transformed(distrax.Normal(jnp.zeros(3), 1.0), distrax.Tanh()), None),
    }


LIBRARIES = {"flowjax": of_flowjax, "numpyro": of_numpyro, "distrax": of_distrax}


@cache
def transformed():
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for library, cases in LIBRARIES.items():
            if importlib.util.find_spec(library):
                found |= cases()
    return found


def params():
    missing = [library for library in LIBRARIES if not importlib.util.find_spec(library)]
    return [
        *transformed(),
        *(pytest.param(name, marks=pytest.mark.skip(reason=f"{name} is not installed")) for name in missing),
    ]


@pytest.fixture(params=params())
def case(request):
    distribution, context = transformed()[request.param]
    return distribution, bijectors.Flow.of(distribution), context


def arguments(context):
    return () if context is None else (context,)


def test_a_flow_of_a_transformed_distribution_has_its_density(case):
    distribution, flow, context = case
    y = flow.sample(KEY, (5,), context)
    expected = distribution.log_prob(y, *arguments(context))
    np.testing.assert_allclose(flow.log_prob(y, context), expected, **CLOSE)
    np.testing.assert_allclose(flow.log_prob(jnp.array(y), context), expected, **CLOSE)
    assert flow.log_prob(y, context).shape == (5, *flow.batch_shape)
    assert y.shape == (5, *flow.batch_shape, *flow.event_shape)


def test_samples_remember_the_sample_of_the_base(case):
    _, flow, context = case
    y = flow.sample(KEY, (5,), context)
    assert bijectors.memory_of(y).bijection is flow.bijection
    assert flow.bijection.inverse(y, context) is bijectors.memory_of(y).source


def test_sample_and_log_prob_are_those_of_both_methods(case):
    _, flow, context = case
    y, log_prob = flow.sample_and_log_prob(KEY, (5,), context)
    np.testing.assert_allclose(y, flow.sample(KEY, (5,), context), **CLOSE)
    np.testing.assert_allclose(log_prob, flow.log_prob(y, context), **CLOSE)


def loss(flow, context):
    """Both directions of a flow, from its own samples and from given ones."""

    def f(scale):
        y = flow.sample(KEY, (2,), context) * 1.0
        z, log_prob = flow.sample_and_log_prob(KEY, (2,), context)
        return jnp.sum(flow.log_prob(y * (1 - 0.01 * scale), context)) + jnp.sum(log_prob * scale) + jnp.sum(z)

    return f


def test_transformations_give_what_they_give_without_memory(case):
    _, flow, context = case
    run = lambda: jax.jit(jax.vmap(jax.value_and_grad(loss(flow, context))))(jnp.array([1.0, 1.1]))
    found = run()
    with bijectors.set_record_flow_graph(False):
        expected = run()
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_a_gradient_by_the_parameters_of_a_flow_is_that_of_the_density():
    flow = bijectors.Flow(bijectors.Normal((3,)), Scale(jnp.array([2.0, 0.5, 1.5])))
    y = flow.sample(KEY)
    found = jax.grad(lambda flow: flow.log_prob(y))(flow).bijection.bijection.scale
    scale = flow.bijection.bijection.scale
    np.testing.assert_allclose(found, y**2 / scale**3 - 1 / scale, **CLOSE)


# --- what is not evaluated --------------------------------------------------------------------------------------------


@pytest.fixture
def counted():
    pop_counts()
    return bijectors.Flow(bijectors.Normal((3,)), Counted(jnp.zeros(3)))


def test_the_density_of_an_own_sample_evaluates_no_bijection(counted):
    y = counted.sample(KEY)
    assert pop_counts() == {"conditioner": 1, "forward": 1, "ladj": 1}
    counted.log_prob(y)
    assert pop_counts() == {}
    counted.log_prob(y + 0)
    assert pop_counts().get("inverse") == 1


def test_sample_and_log_prob_take_one_forward_pass(counted):
    counted.sample_and_log_prob(KEY)
    assert pop_counts() == {"conditioner": 1, "forward": 1, "ladj": 1}


def test_samples_come_without_log_determinants_where_they_are_switched_off(counted):
    with bijectors.set_requires_ladj(False):
        y = counted.sample(KEY)
    assert "ladj" not in pop_counts()
    counted.log_prob(y)
    counts = pop_counts()
    assert (counts["ladj"], "inverse" in counts) == (1, False)


def test_a_density_without_inverse_serves_own_samples():
    class OneWay:
        def transform_and_log_det(self, x):
            return x**3 + x, jnp.sum(jnp.log(3 * x**2 + 1), axis=-1)

        def inverse_and_log_det(self, y):
            raise NotImplementedError

    flow = bijectors.Flow(bijectors.Normal((3,)), OneWay())
    y = flow.sample(KEY, (2,))
    assert flow.log_prob(y).shape == (2,)
    with pytest.raises(NotImplementedError):
        flow.log_prob(y + 1)


def test_a_bijection_without_forward_pass_scores():
    class OneWay:
        def transform_and_log_det(self, x):
            raise NotImplementedError

        def inverse_and_log_det(self, y):
            return y**3 + y, jnp.sum(jnp.log(3 * y**2 + 1), axis=-1)

    flow = bijectors.Flow(bijectors.Normal((3,)), OneWay())
    assert flow.log_prob(jnp.zeros((2, 3))).shape == (2,)


def test_own_samples_are_scored_where_the_inverse_overflows():
    class Tanh:
        def transform_and_log_det(self, x):
            return jnp.tanh(x), 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))

        def inverse_and_log_det(self, y):
            x = jnp.arctanh(y)
            return x, -self.transform_and_log_det(x)[1]

    class Wide:
        def sample(self, key, shape):
            return 30 * jax.random.normal(key, shape)

        def log_prob(self, x):
            return -0.5 * (x / 30) ** 2 - jnp.log(30 * jnp.sqrt(2 * jnp.pi))

    flow = bijectors.Flow(Wide(), Tanh())
    y = flow.sample(KEY, (8,))
    assert jnp.isfinite(flow.log_prob(y)).all()
    assert not jnp.isfinite(flow.log_prob(jnp.array(y))).all()


def test_a_step_of_the_parameters_means_another_density_of_old_samples():
    flow = bijectors.Flow(bijectors.Normal((3,)), Scale(jnp.full(3, 2.0)))
    y = flow.sample(KEY)
    stepped = jax.tree.map(lambda w: w + 1.0, flow)
    np.testing.assert_allclose(stepped.log_prob(y), bijectors.Normal((3,)).log_prob(y / 3) - 3 * np.log(3), **CLOSE)


class Shifted:
    def __init__(self, loc):
        self.loc = loc

    def sample(self, key, shape):
        return self.loc + jax.random.normal(key, (*shape, 3))

    def log_prob(self, x):
        return bijectors.Normal((3,)).log_prob(x - self.loc)


class ShiftedTree(Shifted):
    """The same as a pytree, so that it is compiled."""


jax.tree_util.register_pytree_node(ShiftedTree, lambda s: ((s.loc,), None), lambda aux, kids: ShiftedTree(*kids))


@pytest.mark.parametrize("kind", [Shifted, ShiftedTree])
def test_a_base_that_is_changed_in_place_is_scored_as_it_is(kind):
    base = kind(jnp.array(0.0))
    flow = bijectors.Flow(base, Scale(jnp.ones(3)))
    y = jnp.ones(3)
    before = flow.log_prob(y)
    base.loc = jnp.array(1.0)
    assert flow.log_prob(y) > before
    np.testing.assert_allclose(flow.log_prob(y), bijectors.Normal((3,)).log_prob(jnp.zeros(3)), **CLOSE)


def test_a_compiled_function_drops_a_log_determinant_that_it_does_not_return():
    b = bijectors.remember(Scale(jnp.full(3, 2.0)))
    text = lambda f: jax.jit(f).lower(b, jnp.ones(3)).compile().as_text()
    assert not re.search(r"\blog\(", text(lambda b, x: b.transform_and_log_det(x)[0]))
    assert re.search(r"\blog\(", text(lambda b, x: b.transform_and_log_det(x)))


# --- contexts ---------------------------------------------------------------------------------------------------------


class Shift:
    """y = x + the sum of a context of two numbers."""

    def transform_and_log_det(self, x, context):
        return x + jnp.sum(context, -1, keepdims=True), jnp.zeros(x.shape[:-1])

    def inverse_and_log_det(self, y, context):
        shift = jnp.sum(context, -1, keepdims=True)
        return y - shift, jnp.zeros((y - shift).shape[:-1])


@pytest.fixture
def shift():
    return bijectors.Flow(bijectors.Normal((3,)), Shift(), context_shape=(2,))


def test_samples_have_leading_axes_of_their_contexts(shift):
    contexts = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    y = shift.sample(KEY, (5,), contexts)
    assert y.shape == (5, 2, 3)
    assert shift.log_prob(y, contexts).shape == (5, 2)
    np.testing.assert_allclose(shift.log_prob(y, contexts), shift.log_prob(jnp.array(y), contexts), **CLOSE)


def test_one_value_is_scored_under_many_contexts(shift):
    contexts = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    found = shift.log_prob(jnp.zeros(3), contexts)
    np.testing.assert_allclose(found, bijectors.Normal((3,)).log_prob(-jnp.array([[3.0] * 3, [7.0] * 3])), **CLOSE)


def test_samples_answer_for_their_own_context_only(shift):
    context, other = jnp.array([1.0, 2.0]), jnp.array([0.0, 0.0])
    y = shift.sample(KEY, (), context)
    x = bijectors.memory_of(y).source
    np.testing.assert_allclose(shift.log_prob(y, context), bijectors.Normal((3,)).log_prob(x), **CLOSE)
    np.testing.assert_allclose(shift.log_prob(y, other), bijectors.Normal((3,)).log_prob(x + 3), **CLOSE)


def test_a_conditional_base_is_given_its_context():
    fd = pytest.importorskip("flowjax.distributions", reason="flowjax is not installed")
    fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")
    import flowjax.flows as ff

    base = ff.coupling_flow(KEY, base_dist=fd.Normal(jnp.zeros(3)), cond_dim=2, flow_layers=1, nn_width=4)
    context = jnp.array([[0.3, -0.2], [1.0, 2.0]])
    flow = bijectors.Flow(base, fb.Exp((3,)))
    y, log_prob = flow.sample_and_log_prob(KEY, (4,), context)
    assert y.shape == (4, 2, 3)
    np.testing.assert_allclose(log_prob, fd.Transformed(base, fb.Exp((3,))).log_prob(y, context), **CLOSE)
    np.testing.assert_allclose(log_prob, flow.log_prob(y, context), **CLOSE)


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_independent_numbers_are_one_event_of_a_bijection_that_takes_several():
    class Apart:
        def sample(self, key, shape):
            return jax.random.normal(key, (*shape, 3))

        def log_prob(self, x):
            return -0.5 * x**2

    flow = bijectors.Flow(Apart(), Scale(jnp.full(3, 2.0)))
    assert (flow.batch_shape, flow.event_shape) == ((), (3,))
    np.testing.assert_allclose(flow.log_prob(jnp.ones(3)), -0.5 * 3 / 4 - 3 * np.log(2), **CLOSE)


class Numbers:
    """y = exp(x), number by number."""

    def transform_and_log_det(self, x):
        return jnp.exp(x), x

    def inverse_and_log_det(self, y):
        return jnp.log(y), -jnp.log(y)


def test_a_bijection_of_numbers_is_summed_over_the_events_of_the_base():
    flow = bijectors.Flow(bijectors.Normal((2, 3)), Numbers())
    y, log_prob = flow.sample_and_log_prob(KEY, (5,))
    assert (y.shape, log_prob.shape, flow.event_shape) == ((5, 2, 3), (5,), (2, 3))
    expected = bijectors.Normal((2, 3)).log_prob(jnp.log(y)) - jnp.sum(jnp.log(y), (1, 2))
    np.testing.assert_allclose(log_prob, expected, **CLOSE)
    np.testing.assert_allclose(flow.log_prob(y), expected, **CLOSE)


def test_the_standard_normal_has_the_density_and_the_type_that_it_says():
    normal = bijectors.Normal((2,), jnp.float32)
    x = normal.sample(KEY, (4,))
    assert (x.shape, x.dtype) == ((4, 2), jnp.float32)
    np.testing.assert_allclose(normal.log_prob(x), jax.scipy.stats.norm.logpdf(x).sum(-1), rtol=1e-5)


def test_keys_of_both_kinds_are_taken():
    flow = bijectors.Flow(bijectors.Normal((2,)), Numbers())
    np.testing.assert_array_equal(flow.sample(jax.random.PRNGKey(3)), flow.sample(jax.random.key(3)))


def test_a_flow_is_a_pytree_and_can_be_copied():
    flow = bijectors.Flow(bijectors.Normal((3,)), Scale(jnp.full(3, 2.0)))
    y = flow.sample(KEY)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(flow)[0]]
    assert len(paths) == 1
    assert paths[0].startswith(".bijection.bijection")
    same = jax.tree.map(lambda w: w, flow)
    assert same.bijection.inverse(y) is bijectors.memory_of(y).source
    for other in (copy.copy(flow), copy.deepcopy(flow), pickle.loads(pickle.dumps(flow))):
        np.testing.assert_allclose(other.log_prob(y), flow.log_prob(y), **CLOSE)
    np.testing.assert_allclose(jax.jit(lambda flow: flow.log_prob(y))(flow), flow.log_prob(y), **CLOSE)
    assert repr(flow) == "Flow(Normal, remember(Scale), event_shape=(3,))"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_is_no_distribution_is_refused():
    with pytest.raises(bijectors.NotADistributionError) as found:
        bijectors.Flow(jnp.exp, Numbers())
    assert str(found.value).endswith(
        "as its base, which has no methods `sample` and `log_prob`. This is usually the bijection in place of the "
        "base, or the class in place of an instance. Pass a distribution of FlowJAX, NumPyro, distrax or TFP, "
        "`bijectors.Normal(shape)`, or an object with `sample(key, shape)` and `log_prob(x)`."
    )
    with pytest.raises(bijectors.NotADistributionError, match="`Flow` got the class Normal as its base"):
        bijectors.Flow(bijectors.Normal, Numbers())
    with pytest.raises(bijectors.NotADistributionError) as found:
        bijectors.Flow.of(bijectors.Normal((3,)))
    assert str(found.value) == (
        "`Flow.of` got <class 'incrax.bijectors.bases.Normal'>, which is not made of a base distribution and "
        "bijections. A distribution without a bijection has nothing to remember. Pass a `Transformed` of FlowJAX or "
        "distrax or a `TransformedDistribution` of NumPyro or TFP; or give base and bijection to `Flow`."
    )


def test_a_context_that_does_not_fit_is_refused(shift):
    plain = bijectors.Flow(bijectors.Normal((3,)), Numbers())
    for call, text in [
        (
            lambda: plain.sample(KEY, (), jnp.zeros(2)),
            "A flow without context got one of shape (2,). It would be ignored. Leave it out; or say `Flow(base, "
            "bijection, context_shape=...)` if the bijection takes one and does not say so by `cond_shape`.",
        ),
        (
            lambda: shift.log_prob(jnp.zeros(3)),
            "A conditional flow got no context; it takes arrays with the last axes (2,). Nothing was evaluated. Pass "
            "`context=`.",
        ),
        (
            lambda: shift.sample(KEY, (), jnp.zeros((2, 5))),
            "A conditional flow got a context of shape (2, 5), whose last axes should be (2,). Nothing was evaluated. "
            "Put the axes of samples first.",
        ),
    ]:
        with pytest.raises(bijectors.FlowShapeError) as found:
            call()
        assert str(found.value) == text


def test_a_value_of_another_shape_is_refused():
    flow = bijectors.Flow(bijectors.Normal((3,)), Numbers())
    for shape in [(3, 5), ()]:
        with pytest.raises(bijectors.FlowShapeError) as found:
            flow.log_prob(jnp.ones(shape))
        assert str(found.value) == (
            f"`log_prob` got an array of shape {shape}, whose last axes should be those of one event, (3,). This is "
            "usually a transposed array, or the x in place of the y of a bijection that changes shapes. Nothing was "
            "evaluated. Put the axes of samples first."
        )


def test_a_bijection_of_one_event_is_not_summed_over_several():
    class OneEvent(Scale):
        def transform_and_log_det(self, x):
            return self.scale * x, jnp.sum(jnp.log(self.scale))

    flow = bijectors.Flow(bijectors.Normal((3,)), OneEvent(jnp.full(3, 2.0)))
    with pytest.raises(bijectors.FlowShapeError) as found:
        flow.log_prob(flow.sample(KEY, (5,)))
    assert str(found.value) == (
        "`OneEvent` gave a log-determinant of shape () for an x of shape (5, 3); one number for each of the leading "
        "axes (5,) is needed. This is usually a bijection written for one event, whose log-determinant sums over all "
        "axes. No density was computed. Sum over the axes of one event only, or use `jax.vmap(flow.log_prob)`."
    )
    np.testing.assert_allclose(jax.vmap(flow.log_prob)(jnp.zeros((5, 3))).shape, (5,))


def test_base_and_bijection_of_different_shapes_are_refused():
    class Shaped(Numbers):
        shape = (2,)

    with pytest.raises(bijectors.FlowShapeError) as found:
        bijectors.Flow(bijectors.Normal((3,)), Shaped())
    assert str(found.value) == (
        "`Flow` got a base and a bijection that do not fit: events of shape (3,) and (2,). Nothing was made. Give both "
        "the same shape; a base of NumPyro is given more independent copies by `expand`, and its batch is made an "
        "event by `to_event`."
    )
    with pytest.raises(bijectors.FlowShapeError, match=r"batches of shape \(\) and \(5,\)"):
        bijectors.Flow(bijectors.Normal(), Scale5())


class Scale5:
    def transform_and_log_det(self, x):
        return x * jnp.ones(5), jnp.zeros(5)

    def inverse_and_log_det(self, y):
        return y, jnp.zeros(5)


def test_contexts_of_a_batch_are_refused():
    class Batch:
        def sample(self, key, shape):
            return jax.random.normal(key, (*shape, 4, 3))

        def log_prob(self, x):
            return -0.5 * jnp.sum(x**2, -1)

    flow = bijectors.Flow(Batch(), Shift(), context_shape=(2,))
    with pytest.raises(bijectors.FlowShapeError) as found:
        flow.sample(KEY, (), jnp.zeros((7, 2)))
    assert str(found.value) == (
        "`sample` got a context with leading axes (7,) for a flow with a batch of shape (4,): which belongs to which "
        "is not defined. Nothing was evaluated. Use a base without a batch, or `jax.vmap` over one of both."
    )
