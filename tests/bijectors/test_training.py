"""Fits of flows, what they train and what they leave alone, plots, and NumPyro."""

from __future__ import annotations

import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import bijectors
from incrax.bijectors.training import split_trainable

optax = pytest.importorskip("optax", reason="optax is not installed")

KEY = jax.random.key(0)
ROWS = np.random.default_rng(0).normal([1.0, -2.0], [0.5, 2.0], size=(400, 2))


@jax.tree_util.register_pytree_node_class
class Affine:
    """y = loc + exp(log_scale) * x + the context, a pytree; the mode is no array."""

    def __init__(self, loc, log_scale, mode="plain"):
        self.loc, self.log_scale, self.mode = loc, log_scale, mode

    def transform_and_log_det(self, x, context=0.0):
        y = self.loc + context + jnp.exp(self.log_scale) * x
        return y, jnp.sum(jnp.broadcast_to(self.log_scale, y.shape), -1)

    def inverse_and_log_det(self, y, context=0.0):
        x = (y - self.loc - context) * jnp.exp(-self.log_scale)
        return x, -jnp.sum(jnp.broadcast_to(self.log_scale, x.shape), -1)

    def tree_flatten(self):
        return (self.loc, self.log_scale, self.mode), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


def affine(**options):
    return bijectors.Flow(bijectors.Normal((2,)), Affine(jnp.zeros(2), jnp.zeros(2)), **options)


def fitted(found):
    return found.flow.bijection.bijection


QUICK = {"optimizer": optax.adam(optax.cosine_decay_schedule(0.1, 300)), "steps": 300, "progress": False}


# --- maximum likelihood -----------------------------------------------------------------------------------------------


def test_a_fit_finds_the_maximum_of_the_likelihood():
    found = bijectors.fit_maximum_likelihood(affine(), ROWS, **QUICK)
    np.testing.assert_allclose(fitted(found).loc, ROWS.mean(0), atol=0.01)
    np.testing.assert_allclose(jnp.exp(fitted(found).log_scale), ROWS.std(0), rtol=0.02)
    assert found.losses.shape == (300,)
    np.testing.assert_allclose(found.losses[0], -jnp.mean(affine().log_prob(ROWS)))
    assert found.losses[-1] < found.losses[0]


def test_a_fit_in_batches_comes_close_and_depends_on_the_key_only():
    fit = lambda key: bijectors.fit_maximum_likelihood(affine(), ROWS, batch_size=150, key=key, **QUICK)
    first, again, other = fit(KEY), fit(KEY), fit(jax.random.key(1))
    np.testing.assert_allclose(fitted(first).loc, ROWS.mean(0), atol=0.3)
    np.testing.assert_array_equal(first.losses, again.losses)
    assert not np.array_equal(first.losses, other.losses)


def test_every_pass_over_the_data_takes_every_row_once():
    data = np.arange(12.0).reshape(6, 2)
    found = bijectors.fit_maximum_likelihood(
        affine(), data, optimizer=optax.sgd(0.0), steps=6, batch_size=2, progress=False
    )
    whole = -float(jnp.mean(affine().log_prob(data)))
    np.testing.assert_allclose(found.losses[:3].mean(), whole)
    np.testing.assert_allclose(found.losses[3:].mean(), whole)
    assert not np.allclose(found.losses[:3], found.losses[3:])


def test_a_conditional_flow_is_fitted_row_by_row_with_its_context():
    context = np.random.default_rng(1).normal(size=(400, 2))
    found = bijectors.fit_maximum_likelihood(affine(context_shape=(2,)), ROWS + context, context=context, **QUICK)
    np.testing.assert_allclose(fitted(found).loc, ROWS.mean(0), atol=0.01)
    np.testing.assert_allclose(jnp.exp(fitted(found).log_scale), ROWS.std(0), rtol=0.02)


def test_one_step_is_compiled_for_all():
    traces = []

    def log_density(y):
        traces.append(y)
        return -0.5 * jnp.sum(y**2)

    bijectors.fit_variational(affine(), log_density, **{**QUICK, "steps": 20})
    assert len(traces) == 1


def test_no_steps_leave_the_flow_as_it_was():
    found = bijectors.fit_maximum_likelihood(affine(), ROWS, steps=0)
    assert found.losses.shape == (0,)
    np.testing.assert_array_equal(fitted(found).loc, 0.0)


# --- variational inference --------------------------------------------------------------------------------------------


def test_variational_inference_finds_a_normal_posterior():
    log_density = lambda y: jnp.sum(jax.scipy.stats.norm.logpdf(y, jnp.array([1.0, -2.0]), jnp.array([0.5, 2.0])))
    found = bijectors.fit_variational(affine(), log_density, num_samples=64, **QUICK)
    np.testing.assert_allclose(fitted(found).loc, [1.0, -2.0], atol=0.05)
    np.testing.assert_allclose(jnp.exp(fitted(found).log_scale), [0.5, 2.0], rtol=0.05)
    np.testing.assert_allclose(found.losses[-1], 0.0, atol=0.01)


def test_variational_inference_takes_no_inverse():
    class OneWay(Affine):
        def inverse_and_log_det(self, y, context=0.0):
            raise NotImplementedError

    jax.tree_util.register_pytree_node(
        OneWay, lambda b: ((b.loc, b.log_scale, b.mode), None), lambda aux, children: OneWay(*children)
    )
    flow = bijectors.Flow(bijectors.Normal((2,)), OneWay(jnp.zeros(2), jnp.zeros(2)))
    found = bijectors.fit_variational(flow, lambda y: -0.5 * jnp.sum((y - 1) ** 2), **{**QUICK, "steps": 20})
    assert found.losses[-1] < found.losses[0]


def test_a_conditional_flow_is_fitted_under_its_contexts():
    contexts = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    found = bijectors.fit_variational(
        affine(context_shape=(2,)), lambda y: -0.5 * jnp.sum((y - 3.0) ** 2), context=contexts, **QUICK
    )
    np.testing.assert_allclose(fitted(found).loc, 2.5, atol=0.1)


# --- what is trained --------------------------------------------------------------------------------------------------


@jax.tree_util.register_pytree_node_class
class Shifted:
    """A base with a parameter."""

    def __init__(self, loc):
        self.loc = loc

    def sample(self, key, shape):
        return self.loc + jax.random.normal(key, (*shape, 2))

    def log_prob(self, x):
        return jnp.sum(jax.scipy.stats.norm.logpdf(x - self.loc), -1)

    def tree_flatten(self):
        return (self.loc,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


def test_the_base_is_trained_on_request_only():
    flow = bijectors.Flow(Shifted(jnp.array([7.0, 7.0])), Affine(jnp.zeros(2), jnp.zeros(2)))
    options = {**QUICK, "steps": 3}
    kept = bijectors.fit_maximum_likelihood(flow, ROWS, **options)
    np.testing.assert_array_equal(kept.flow.base.loc, 7.0)
    assert not np.array_equal(fitted(kept).loc, np.zeros(2))
    stepped = bijectors.fit_maximum_likelihood(flow, ROWS, train_base=True, **options)
    assert not np.array_equal(stepped.flow.base.loc, [7.0, 7.0])


def test_integers_and_static_values_are_left_alone():
    plain = Affine(jnp.zeros(2), jnp.zeros(2, int), mode="static")
    found = bijectors.fit_maximum_likelihood(bijectors.Flow(bijectors.Normal((2,)), plain), ROWS, **QUICK)
    assert fitted(found).mode == "static"
    assert (fitted(found).log_scale.dtype, fitted(found).log_scale.tolist()) == (plain.log_scale.dtype, [0, 0])
    np.testing.assert_allclose(fitted(found).loc, ROWS.mean(0), atol=0.01)


def test_what_paramax_marks_as_not_trainable_is_left_alone():
    paramax = pytest.importorskip("paramax", reason="paramax is not installed")
    fb = pytest.importorskip("flowjax.bijections", reason="flowjax is not installed")
    scale = fb.Affine(jnp.zeros(2), jnp.ones(2))
    chain = fb.Chain([paramax.non_trainable(fb.Affine(jnp.full(2, 3.0), jnp.ones(2))), scale])
    decaying = {**QUICK, "optimizer": optax.adamw(0.05, weight_decay=0.1), "steps": 5}
    found = bijectors.fit_maximum_likelihood(bijectors.Flow(bijectors.Normal((2,)), chain), ROWS, **decaying)
    frozen, free = (paramax.unwrap(part) for part in fitted(found).bijections)
    np.testing.assert_array_equal(frozen.loc, 3.0)
    assert not np.array_equal(free.loc, np.zeros(2))
    assert not np.array_equal(free.scale, np.ones(2))


def test_the_arrays_that_train_and_the_others_make_up_the_flow():
    flow = bijectors.Flow(Shifted(jnp.ones(2)), Affine(np.zeros(2), jnp.zeros(2), mode="static"))
    trained, frozen, rebuild = split_trainable(flow, False)
    assert (len(trained), len(frozen)) == (2, 1)
    again = rebuild(trained, frozen)
    assert jax.tree.structure(again) == jax.tree.structure(flow)
    np.testing.assert_allclose(again.log_prob(ROWS), flow.log_prob(ROWS))


# --- errors and warnings ----------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_fit_with_a_warning():
    log_density = lambda y: jnp.where(y[0] < 5.0, -jnp.sum((y - 10.0) ** 2), jnp.nan)
    flow = bijectors.Flow(bijectors.Normal((2,)), Affine(jnp.zeros(2), jnp.full(2, -3.0)))
    with pytest.warns(UserWarning, match="not finite") as seen:
        found = bijectors.fit_variational(flow, log_density, **QUICK)
    first = int(np.argmin(np.isfinite(found.losses))) + 1
    assert 1 < first < 300
    assert [str(warning.message) for warning in seen] == [
        f"`fit_variational` met the loss of step {first} that is not finite. The usual causes are a step that is too "
        "large, data outside of what the bijection reaches, or an inverse that overflows. The flow is that before this "
        "step, and later steps changed nothing. Use a smaller learning rate, clip gradients "
        "(`optax.clip_by_global_norm`), or standardise the data."
    ]
    assert seen[0].filename == __file__
    assert jnp.isfinite(fitted(found).loc).all()
    assert 1.0 < float(fitted(found).loc[0]) < 5.1


def test_a_gradient_that_is_not_finite_ends_the_fit_with_a_warning():
    log_density = lambda y: -jnp.sum(jnp.sqrt(jnp.abs(y * 0.0)))
    with pytest.warns(UserWarning, match="met a gradient that is not finite"):
        found = bijectors.fit_variational(affine(), log_density, **{**QUICK, "steps": 3})
    np.testing.assert_array_equal(fitted(found).loc, 0.0)


@pytest.mark.parametrize(
    ("data", "options", "text"),
    [
        (ROWS[0], {}, "got data and contexts of shapes (2,); both need"),
        (ROWS, {"context": np.zeros((7, 2))}, "got data and contexts of shapes (400, 2), (7, 2); both need"),
        (ROWS[:, :1], {}, "`log_prob` got an array of shape (400, 1)"),
        (
            ROWS,
            {"batch_size": 401},
            "got a batch size of 401 for 400 rows; it must be between 1 and the number of rows.",
        ),
        (ROWS[:0], {}, "got a batch size of 0 for 0 rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(data, options, text):
    flow = affine(context_shape=(2,)) if "context" in options else affine()
    with pytest.raises(bijectors.FlowShapeError) as found:
        bijectors.fit_maximum_likelihood(flow, data, **options)
    assert text in str(found.value)


def test_a_flow_without_parameters_is_refused():
    class Nothing:
        def transform_and_log_det(self, x):
            return x, jnp.zeros(x.shape[:-1])

        inverse_and_log_det = transform_and_log_det

    with pytest.raises(bijectors.NothingToTrainError) as found:
        bijectors.fit_maximum_likelihood(bijectors.Flow(bijectors.Normal((2,)), Nothing()), ROWS)
    assert str(found.value) == (
        "`fit_maximum_likelihood` found no array of floating-point numbers to train in the bijection. This is usually "
        "a bijection without parameters, with Python numbers for parameters, one that is no pytree, or one frozen by "
        "`paramax.non_trainable`. Nothing was evaluated. Make parameters arrays and the bijection a pytree; "
        "`train_base=True` trains the base."
    )


def test_steps_are_a_number():
    with pytest.raises(TypeError, match="`steps` got 1.5 of type float; it must be a number of steps."):
        bijectors.fit_maximum_likelihood(affine(), ROWS, steps=1.5)


def without(monkeypatch, library):
    """As if a library were not installed."""
    real = importlib.import_module

    def import_module(name, *args):
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.parametrize(
    ("library", "name", "call"),
    [
        ("optax", "fit_maximum_likelihood", lambda: bijectors.fit_maximum_likelihood(affine(), ROWS)),
        ("optax", "fit_variational", lambda: bijectors.fit_variational(affine(), jnp.sum)),
        ("matplotlib", "bijectors.plot", lambda: bijectors.plot(affine())),
        ("matplotlib", "FlowFit.plot", lambda: bijectors.FlowFit(affine(), np.zeros(2)).plot()),
        ("numpyro", "as_numpyro", lambda: bijectors.as_numpyro(affine())),
        ("numpyro", "numpyro_guide", lambda: bijectors.numpyro_guide(None, affine())),
    ],
)
def test_a_library_that_is_missing_is_named(monkeypatch, library, name, call):
    without(monkeypatch, library)
    with pytest.raises(incrax.errors.MissingExtraError) as found:
        call()
    assert str(found.value) == (
        f"`{name}` needs {library}, which is not installed. Nothing was done. Install `incrax[flows]`, or {library} "
        "alone."
    )
    assert isinstance(found.value, ImportError)


def test_a_library_that_lacks_a_part_of_its_own_says_so_itself(monkeypatch):
    real = importlib.import_module

    def broken(name, *args):
        if name == "optax":
            raise ModuleNotFoundError("No module named 'chex'", name="chex")
        return real(name, *args)

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="chex"):
        bijectors.fit_maximum_likelihood(affine(), ROWS)


def test_nothing_is_shown_where_there_is_no_terminal(capfd, monkeypatch):
    from incrax import _progress as progress

    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    bijectors.fit_maximum_likelihood(affine(), ROWS, steps=3)
    bijectors.fit_maximum_likelihood(affine(), ROWS, steps=3, progress=False)
    assert capfd.readouterr() == ("", "")


# --- plots ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def test_losses_are_drawn_over_the_steps(pyplot):
    axes = bijectors.FlowFit(affine(), np.array([3.0, 2.0, 1.5])).plot()
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[1, 3.0], [2, 2.0], [3, 1.5]])
    assert bijectors.FlowFit(affine(), np.zeros(2)).plot(axes) is axes


def test_a_plot_shows_samples_over_the_density(pyplot, tmp_path):
    flow = affine()
    axes = bijectors.plot(flow, data=ROWS, num_samples=50, num_grid=10)
    samples, data = axes.lines
    np.testing.assert_allclose(samples.get_xydata(), flow.sample(KEY, (50,)))
    np.testing.assert_allclose(data.get_xydata(), ROWS)
    axes.figure.savefig(tmp_path / "flow.png")
    assert (tmp_path / "flow.png").stat().st_size > 1000


def test_a_plot_is_of_two_numbers(pyplot):
    flow = bijectors.Flow(bijectors.Normal((3,)), Affine(jnp.zeros(3), jnp.zeros(3)))
    with pytest.raises(bijectors.FlowShapeError) as found:
        bijectors.plot(flow)
    assert str(found.value) == (
        "`bijectors.plot` draws flows of the event shape (2,) without a batch; this one has the event shape (3,) and "
        "the batch shape (). Nothing was drawn. Draw two columns of `flow.sample(key, (n,))` instead."
    )


# --- NumPyro ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def numpyro():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("numpyro", reason="numpyro is not installed")


def test_a_flow_is_a_distribution_of_numpyro(numpyro):
    flow = affine(context_shape=(2,))
    contexts = jnp.array([[0.0, 0.0], [1.0, 2.0], [3.0, 3.0]])
    found = bijectors.as_numpyro(flow, contexts)
    assert (found.batch_shape, found.event_shape) == ((3,), (2,))
    y, intermediates = found.sample_with_intermediates(KEY, (5,))
    assert y.shape == (5, 3, 2)
    np.testing.assert_allclose(found.log_prob(y, intermediates), flow.log_prob(y, contexts))
    np.testing.assert_allclose(found.log_prob(jnp.array(y)), flow.log_prob(y, contexts))
    np.testing.assert_allclose(jax.jit(found.log_prob)(y), flow.log_prob(y, contexts))


def model(numpyro):
    """Two parameters with a normal posterior of known moments, and one observation each."""

    def f(y):
        mu = numpyro.sample("mu", numpyro.distributions.Normal(jnp.zeros(2), 2.0).to_event(1))
        numpyro.sample("y", numpyro.distributions.Normal(mu, 1.0).to_event(1), obs=y)

    return f


Y = jnp.array([1.0, -2.0])


def decaying(numpyro):
    return numpyro.optim.optax_to_numpyro(optax.adam(optax.cosine_decay_schedule(0.1, 400)))


@pytest.mark.parametrize(
    "made",
    [
        lambda n: Affine(jnp.zeros(n), jnp.zeros(n)),
        lambda n: bijectors.Flow(bijectors.Normal((n,)), Affine(jnp.zeros(n), jnp.zeros(n))),
        Affine(jnp.zeros(2), jnp.zeros(2)),
    ],
    ids=["by number", "flow by number", "bijection"],
)
def test_a_guide_in_one_line_finds_a_posterior_of_known_moments(numpyro, made):
    from numpyro.infer import SVI, Trace_ELBO

    guide = bijectors.numpyro_guide(model(numpyro), made)
    svi = SVI(model(numpyro), guide, decaying(numpyro), Trace_ELBO(num_particles=16))
    found = svi.run(jax.random.key(1), 400, Y, progress_bar=False)
    flow = guide.flow(found.params)
    np.testing.assert_allclose(flow.bijection.bijection.loc, Y * 0.8, atol=0.05)
    np.testing.assert_allclose(jnp.exp(flow.bijection.bijection.log_scale), np.sqrt(0.8), rtol=0.08)
    samples = guide.sample_posterior(jax.random.key(2), found.params, sample_shape=(4000,))["mu"]
    np.testing.assert_allclose(samples.mean(0), Y * 0.8, atol=0.08)
    evidence = -jax.scipy.stats.norm.logpdf(Y, 0.0, np.sqrt(5.0)).sum()
    np.testing.assert_allclose(found.losses[-50:].mean(), evidence, atol=0.02)


def test_a_guide_takes_no_inverse(numpyro):
    from numpyro.infer import SVI, Trace_ELBO

    class OneWay(Affine):
        def inverse_and_log_det(self, y, context=0.0):
            raise NotImplementedError

    jax.tree_util.register_pytree_node(
        OneWay, lambda b: ((b.loc, b.log_scale, b.mode), None), lambda aux, children: OneWay(*children)
    )
    guide = bijectors.numpyro_guide(model(numpyro), lambda n: OneWay(jnp.zeros(n), jnp.zeros(n)))
    svi = SVI(model(numpyro), guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    found = svi.run(jax.random.key(1), 5, Y, progress_bar=False)
    assert np.isfinite(found.losses).all()


def test_a_guide_of_what_is_no_bijection_is_refused(numpyro):
    guide = bijectors.numpyro_guide(model(numpyro), "spline")
    with numpyro.handlers.seed(rng_seed=0), pytest.raises(bijectors.NotABijectionError):
        guide(Y)
