"""Incrax's own bijections: what is not evaluated, batches, types, misuse, and their place in chains of FlowJAX."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bijectors.cases import KEY, pop_counts
from bijectors.own_cases import autoregressive, composed, counted_tanh, coupled, moved, own_cases, residual, spline
from incrax import bijectors as ib

X = jnp.array([0.7, -0.4, 1.2])
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def compiled(f, *args):
    return jax.jit(f).lower(*args).compile(FAST)(*args)


@pytest.fixture(params=own_cases())
def case(request):
    return own_cases()[request.param]


# --- conditioners -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "num_of_inverse"),
    [
        (lambda **options: coupled(ib.Affine(), **options), 1),
        (lambda **options: coupled(spline("linear"), **options), 1),
        (lambda **options: autoregressive(ib.Affine(), **options), 3),
    ],
    ids=["affine coupling", "spline coupling", "autoregressive"],
)
def test_the_conditioner_is_called_once_for_an_output_and_all_that_is_asked_of_it(make, num_of_inverse):
    b = ib.remember(make(activation=counted_tanh))
    pop_counts()
    y = b.forward(X, requires_ladj=False)
    assert pop_counts() == {"value": 1}
    assert b.inverse(y) is X
    b.log_abs_det_jacobian(X, y)
    b.inverse_and_log_det(y)
    assert pop_counts() == {}
    b.inverse(jnp.array(y))
    assert pop_counts() == {"value": num_of_inverse}


def test_the_parts_of_a_chain_keep_their_parameters():
    b = ib.remember(ib.Compose([coupled(ib.Affine(), activation=counted_tanh), ib.ELU((3,))]))
    y = b.forward(X, requires_ladj=False)
    pop_counts()
    b.log_abs_det_jacobian(X, y)
    first, last = b.parts
    assert first.inverse(last.inverse(y)) is X
    assert pop_counts() == {}


def test_an_inverted_coupling_keeps_its_parameters():
    b = ib.remember(ib.Invert(coupled(ib.Affine(), activation=counted_tanh)))
    y = b.forward(X, requires_ladj=False)
    pop_counts()
    found = b.log_abs_det_jacobian(X, y)
    assert pop_counts() == {}
    np.testing.assert_allclose(found, b.transform_and_log_det(X)[1], rtol=1e-10)


def test_a_log_determinant_of_an_inverse_is_computed_without_its_output():
    b = ib.Invert(coupled(ib.Affine()))
    found = b.forward(X, requires_ladj=True)
    np.testing.assert_allclose(b.ladj(X, None), found.ladj, rtol=1e-10)
    np.testing.assert_allclose(b.ladj(X, found.output), found.ladj, rtol=1e-10)


def test_a_chain_with_an_inverse_of_a_chain_records_every_part():
    b = ib.remember(ib.Invert(composed()))
    y = b.forward(X)
    assert len(b.parts) == 3
    assert b.parts[2].inverse(y) is ib.memory_of(y).parts[2].source
    assert ib.memory_of(y).parts[0].source is X


# --- what the networks may depend on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(4,), (5, 7)])
@pytest.mark.parametrize("cond_dim", [0, 2])
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_outputs_of_a_masked_network_depend_on_the_components_before(dim, cond_dim, hidden):
    f = moved(ib.MaskedMLP(KEY, dim=dim, num_outputs=2, hidden=hidden, cond_dim=cond_dim))
    jacobian = jax.jacfwd(f)(jnp.linspace(-0.5, 0.5, dim + cond_dim))
    depends = jnp.any(jacobian != 0, axis=1)
    np.testing.assert_array_equal(depends[:, :dim], np.tril(np.ones((dim, dim)), -1))
    assert depends[:, dim:].all()


def test_a_shift_preserves_volume():
    assert coupled(ib.Shift()).transform_and_log_det(X)[1] == 0


@pytest.mark.parametrize("make", [ib.Elementwise, lambda t, shape: ib.coupling(KEY, dim=3, transformer=t, scale=0.0)])
@pytest.mark.parametrize("transformer", [ib.Shift(), ib.Affine(), spline("linear"), spline("quadratic")])
def test_parameters_of_zero_give_the_identity(transformer, make):
    y, ladj = make(transformer, (3,)).transform_and_log_det(X)
    np.testing.assert_allclose(y, X, rtol=1e-12)
    np.testing.assert_allclose(ladj, 0, atol=1e-12)


@pytest.mark.parametrize("order", ["linear", "quadratic"])
def test_splines_increase_and_are_continuous_at_every_knot_and_outside(order):
    b = moved(ib.Elementwise(ib.Spline(5, 2.0, order), ()), 0.5)
    x = jnp.linspace(-2.5, 2.5, 20_001)
    y, ladj = compiled(b.transform_and_log_det, x)
    slopes = np.diff(y) / np.diff(x)
    assert slopes.min() > 0
    np.testing.assert_allclose(np.exp(ladj)[1:-1], (slopes[1:] + slopes[:-1]) / 2, rtol=0.05)
    np.testing.assert_array_equal(y[jnp.abs(x) >= 2], x[jnp.abs(x) >= 2])
    np.testing.assert_allclose(compiled(lambda y: b.inverse(y).output, y), x, atol=1e-9)


def test_one_bin_is_a_spline_too():
    b = moved(ib.Elementwise(ib.Spline(1, 2.0, "linear"), ()))
    np.testing.assert_allclose(b.inverse(b.forward(X).output).output, X, rtol=1e-10)


# --- shapes, types, pytrees -------------------------------------------------------------------------------------------


def test_leading_axes_are_events_beside_one_another(case):
    b, context = case.make(), None if case.context is None else jnp.array(case.context)
    x = jnp.stack([jnp.array(case.x)] * 2) + jnp.array([0.0, 0.01]).reshape(2, *[1] * case.x.ndim)
    y, ladj = compiled(lambda b, x: b.transform_and_log_det(x, context), b, x)
    one, one_ladj = compiled(lambda b, x: b.transform_and_log_det(x, context), b, x[1])
    np.testing.assert_allclose(y[1], one, rtol=1e-10)
    np.testing.assert_allclose(ladj[1], one_ladj, rtol=1e-10)
    np.testing.assert_allclose(compiled(lambda b, y: b.inverse(y, context).output, b, y), x, rtol=1e-8)


def test_single_precision_stays_so(case):
    single = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
    b, x, context = single((case.make(), jnp.array(case.x), case.context))
    found = compiled(lambda b, x: (y := b.forward(x, context), b.inverse(y.output, context)), b, x)
    assert {each.dtype.name for each in jax.tree.leaves(found)} == {"float32"}
    np.testing.assert_allclose(found[1].output, x, rtol=3e-5)


def test_one_context_serves_many_events_and_one_event_many_contexts():
    b = coupled(ib.Affine(), cond_dim=2)
    contexts = jnp.array([[0.3, -0.2], [1.0, 2.0]])
    y, ladj = b.transform_and_log_det(X, contexts)
    assert (y.shape, ladj.shape) == ((2, 3), (2,))
    np.testing.assert_allclose(y[1], b.transform(X, contexts[1]), rtol=1e-10)
    np.testing.assert_allclose(b.transform(jnp.stack([X, X]), contexts[1])[0], y[1], rtol=1e-10)


def test_bijections_are_frozen_pytrees_that_survive_transformations(case):
    b = case.make()
    with pytest.raises(FrozenInstanceError):
        b.shape = (7,)
    again = jax.tree.map(lambda x: x, b)
    assert jax.tree.structure(again) == jax.tree.structure(b)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(b))


def test_a_step_of_the_parameters_means_another_inverse(case):
    context = None if case.context is None else jnp.array(case.context)
    b, x = ib.remember(case.make()), jnp.array(case.x)
    y = b.forward(x, context)
    assert b.inverse(y, context) is x
    if not jax.tree.leaves(b):
        return
    stepped = jax.tree.map(lambda w: w + 0.01, b)
    assert stepped.inverse(y, context) is not x
    copied = jax.tree.map(jnp.array, b)
    assert copied.inverse(y, context) is not x


def test_fixed_parameters_have_no_gradient():
    b = ib.Fixed(moved(ib.Elementwise(ib.Affine(), (3,))))
    gradient = jax.grad(lambda b: jnp.sum(b.forward(X).output) + b.ladj(X, None) + b.inverse(X).ladj)(b)
    np.testing.assert_array_equal(jax.tree.leaves(gradient)[0], 0)


# --- FlowJAX ----------------------------------------------------------------------------------------------------------


def test_a_chain_of_flowjax_takes_own_bijections():
    fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")
    b = ib.remember(fb.Chain([coupled(ib.Affine()), fb.Tanh((3,)), fb.Invert(ib.LeakyReLU((3,), 0.5))]))
    y = b.forward(X, requires_ladj=False)
    assert b.inverse(y) is X
    assert len(b.parts) == 3
    assert ib.memory_of(y).parts[0].intermediates is not None
    np.testing.assert_allclose(b.inverse(jnp.array(y)), X, rtol=1e-8)
    np.testing.assert_allclose(b.log_abs_det_jacobian(X, y), b.bijection.transform_and_log_det(X)[1], rtol=1e-8)


def test_a_linear_spline_is_a_transformer_of_flowjax():
    fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")
    transformer = ib.Elementwise(spline("linear"), ())
    b = fb.MaskedAutoregressive(KEY, transformer=transformer, dim=3, nn_width=4, nn_depth=1)
    y, ladj = b.transform_and_log_det(X)
    np.testing.assert_allclose(ladj, jnp.linalg.slogdet(jax.jacfwd(b.transform)(X))[1], rtol=1e-6)
    np.testing.assert_allclose(b.inverse(y), X, rtol=1e-6)


def test_compose_takes_bijections_of_other_libraries():
    fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")
    b = ib.remember(ib.Compose([fb.Affine(jnp.ones(3), 2 * jnp.ones(3)), coupled(ib.Affine())]))
    y, ladj = b.transform_and_log_det(X)
    np.testing.assert_allclose(ladj, jnp.linalg.slogdet(jax.jacfwd(b.bijection.transform)(X))[1], rtol=1e-8)
    assert b.parts[1].inverse(y) is ib.memory_of(y).parts[1].source


# --- misuse -----------------------------------------------------------------------------------------------------------

MISUSE = {
    "`Coupling` got an array of shape (2,), whose last axes must be (3,), the shape of one event. This is usually "
    "events along the last axes, or a bijection made for other data. Nothing was evaluated. Move the axes of the "
    "events to the front.": lambda: coupled(ib.Affine()).forward(X[:2]),
    "`Coupling` got no context; its last axes must be (2,). The bijection was made with another number of context "
    "variables. Nothing was evaluated. Pass the context that `cond_shape` tells, with the leading axes of the events "
    "or none.": lambda: coupled(ib.Affine(), cond_dim=2).forward(X),
    "The conditioner of `Coupling` gives an output of shape (4,) for one event; the transformer needs (2,): its "
    "`num_parameters` for each component that it transforms. No bijection was made. Give the conditioner that many "
    "outputs.": lambda: ib.Coupling(ib.MLP(KEY, (2, 4)), ib.Affine(), [True, True, False]),
    "The conditioner of `Autoregressive` gives no output for an input of shape (3,) for one event; the transformer "
    "needs (3, 2): its `num_parameters` for each component that it transforms. No bijection was made. Give the "
    "conditioner that many outputs.": lambda: ib.Autoregressive(ib.MLP(KEY, (2, 4)), ib.Affine(), 3),
    "`Coupling` got mask=(True, True); it must be True for some components and False for others. No bijection was "
    "made.": lambda: ib.coupling(KEY, dim=2, transformer=ib.Affine(), mask=[1, 1]),
    "`coupling` got mask=(True, False); it must be of 3 entries, as dim=3. No bijection was made.": lambda: ib.coupling(
        KEY, dim=3, transformer=ib.Affine(), mask=[1, 0]
    ),
    "`Compose` got bijections of events of shapes (3,), (2,); they must all be of one shape, as the output of each is "
    "the input of the next. No bijection was made. Give those of single numbers the shape of the others "
    "(`shape=`).": lambda: ib.Compose([ib.ELU((3,)), ib.ELU((2,))]),
    "`Compose` got parts=[]; it must be one or more bijections. No bijection was made.": lambda: ib.Compose([]),
    "`ELU` got alpha=0; it must be a positive number. No bijection was made.": lambda: ib.ELU(alpha=0),
    "`ELU` got shape=(1.5,); it must be a tuple of sizes. No bijection was made.": lambda: ib.ELU((1.5,)),
    "`LeakyReLU` got slope=-1; it must be a positive number. No bijection was made.": lambda: ib.LeakyReLU(slope=-1),
    "`AffineFixed` got scale=0; it must be a finite number that is not 0. No bijection was made.": lambda: (
        ib.AffineFixed(scale=0)
    ),
    "`Affine` got limit=0; it must be a positive number. No bijection was made.": lambda: ib.Affine(0),
    "`Spline` got num_bins=0; it must be from 1 to 999. No bijection was made.": lambda: ib.Spline(0),
    "`Spline` got bound=-1; it must be a positive number. No bijection was made.": lambda: ib.Spline(bound=-1),
    '`Spline` got order=\'cubic\'; it must be "linear" or "quadratic". No bijection was made.': lambda: ib.Spline(
        order="cubic"
    ),
    "`Elementwise` got parameters.shape=(2,); it must be (3, 2). No bijection was made.": lambda: ib.Elementwise(
        ib.Affine(), (3,), jnp.zeros(2)
    ),
    "`MLP` got sizes=(2, 0); it must be two or more positive numbers. No bijection was made.": lambda: ib.MLP(
        KEY, (2, 0)
    ),
    "`MaskedMLP` got hidden=(); it must be at least one size. No bijection was made.": lambda: ib.MaskedMLP(
        KEY, dim=2, num_outputs=1, hidden=()
    ),
    "`InvertibleResidual` got lipschitz=1.0; it must be between 0 and 1. No bijection was made.": lambda: (
        ib.InvertibleResidual(KEY, dim=2, lipschitz=1.0)
    ),
    "`InvertibleResidual` got num_terms=0; it must be a positive number. No bijection was made.": lambda: residual(
        num_terms=0
    ),
}


@pytest.mark.parametrize("message", MISUSE)
def test_misuse_is_told(message):
    with pytest.raises(ib.BijectionArgumentError) as found:
        MISUSE[message]()
    assert str(found.value) == message
