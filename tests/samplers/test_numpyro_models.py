"""Models of NumPyro as they are: log-densities of NumPyro itself, its own kernels, closed forms."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density, potential_energy

import incrax
from incrax import samplers
from incrax.engine.call.sites import Sites

RNG = np.random.default_rng(0)
TRUTH = RNG.integers(0, 3, 60)
X = np.array([-5.0, 0.0, 5.0])[TRUTH] + RNG.normal(size=60)


def mixture(x, num_labels, *, width=None):
    """Labels of a mixture, its means, a scale that is positive."""
    mu = numpyro.sample("mu", dist.Normal(5.0 * (jnp.arange(num_labels) - 1), 2.0).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.2))
    numpyro.deterministic("largest", jnp.max(mu))
    with numpyro.plate("n", len(x)):
        z = numpyro.sample("z", dist.Categorical(probs=jnp.ones(num_labels) / num_labels))
        numpyro.sample("x", dist.Normal(mu[z], scale if width is None else width), obs=x)


def chain_of_spins(field):
    """Neighbours that want to agree: elements interact."""
    with numpyro.plate("n", len(field)):
        s = numpyro.sample("s", dist.Bernoulli(logits=field))
    numpyro.factor("bond", 0.8 * jnp.sum(s[1:] == s[:-1]))


def two_by_two(shape):
    with numpyro.plate("a", shape[0], dim=-2), numpyro.plate("b", shape[1], dim=-1):
        k = numpyro.sample("k", dist.Categorical(logits=jnp.array([0.0, 1.0, -1.0])))
    numpyro.factor("sum", -0.1 * jnp.sum(k * jnp.arange(6.0).reshape(2, 3)))


def test_the_log_density_is_that_of_numpyro():
    model = samplers.from_numpyro(mixture, X, 3, width=None)
    p, data = model.args
    assert set(p) == {"mu", "scale", "z"}
    assert model.discrete == ("z",)
    assert len(data) == 1
    p = p | {"scale": jnp.asarray(0.3)}
    given = p | {"scale": jnp.exp(0.3)}
    expected = log_density(mixture, (X, 3), {}, given)[0] + 0.3  # d scale / d log(scale)
    np.testing.assert_allclose(model.log_density(p, data), expected, rtol=1e-12)
    others = {"mu": p["mu"], "scale": given["scale"]}
    found = model._conditional({"z": p["z"]}, others, data)
    np.testing.assert_allclose(found, expected - 0.3, rtol=1e-12)


def nested_plates(y):
    with numpyro.plate("rows", 3, dim=-2):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("columns", 4, dim=-1):
            effect = numpyro.sample("effect", dist.Normal(level, 1.0))
            numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


def simplices_of_labels(y):
    with numpyro.plate("kinds", 2):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("n", y.size):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Categorical(p[z]), obs=jnp.int32(y.ravel() > 0))


def correlations(y):
    factor = numpyro.sample("factor", dist.LKJCholesky(4, 2.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(jnp.ones(4)).to_event(1))
    normal = dist.MultivariateNormal(jnp.zeros(4), scale_tril=scale[:, None] * factor)
    numpyro.sample("y", normal, obs=y)


def ordered_cuts(y):
    ordered = dist.transforms.OrderedTransform()
    cuts = dist.TransformedDistribution(dist.Normal(0, 1).expand([3]).to_event(1), ordered)
    at = numpyro.sample("cuts", cuts)
    numpyro.sample("y", dist.OrderedLogistic(jnp.zeros(12), at), obs=jnp.int32(y.ravel() > 0))


def masked_and_missing(y):
    """What is masked does not count; what is missing is sampled."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("n", y.size):
        with numpyro.handlers.mask(mask=y.ravel() > 0):
            numpyro.sample("masked", dist.Normal(mean, 1.0), obs=y.ravel())
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y.ravel(), obs_mask=y.ravel() < 1)


def improper(y):
    """A prior without draws, and discrete events of two axes."""
    slope = numpyro.sample("slope", dist.ImproperUniform(dist.constraints.positive, (), ()))
    z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3).expand([3, 4]).to_event(2))
    numpyro.sample("y", dist.Normal(slope * z, 1.0), obs=y)


@pytest.mark.parametrize(
    "model",
    [nested_plates, simplices_of_labels, correlations, ordered_cuts, masked_and_missing, improper],
)
def test_models_of_all_kinds_have_the_density_of_numpyro(model):
    y = np.random.default_rng(5).normal(size=(3, 4))
    found = samplers.from_numpyro(model, y)
    p, data = found.args
    moved = {name: x if name in found.discrete else x + 0.1 for name, x in p.items()}
    labels = {
        name: x[0] for name, x in found.constrained({k: x[None] for k, x in p.items()}).items()
    }
    given = numpyro.handlers.condition(model, {name: labels[name] for name in found.discrete})
    others = {name: x for name, x in moved.items() if name not in found.discrete}
    expected = -potential_energy(given, (y,), {}, others)
    np.testing.assert_allclose(found.log_density(moved, data), expected, rtol=1e-12)
    assert set(found.updates) == {
        f"p['{k}']" + "[*]" * (k not in found.discrete and x.ndim > 0) for k, x in p.items()
    }


def test_a_model_prints_its_sites_and_moves():
    def model(x):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        with numpyro.plate("n", len(x)):
            z = numpyro.sample("z", dist.Categorical(probs=jnp.ones(3) / 3))
            numpyro.sample("x", dist.Normal(mu[z], scale), obs=x)

    found = samplers.from_numpyro(model, np.zeros(7))
    assert repr(found) == "<NumPyroModel: NumPyro model with 3 latent sites of 11 elements>"
    (table,) = found.tables()
    assert sorted(table.rows) == [
        ("mu", 3, "Walk"),
        ("scale", 1, "Walk"),
        ("z", 7, "Categorical"),
    ]


def test_a_model_is_sampled_as_it_is():
    model = samplers.from_numpyro(mixture, X, 3, key=jax.random.key(3))
    chain = samplers.gibbs(
        model.log_density, *model.args, updates=model.updates, key=1, num_sweeps=300, chains=2
    )
    found = model.constrained(chain.tree())
    shapes = {name: x.shape for name, x in found.items()}
    assert shapes == {
        "mu": (2, 300, 3), "scale": (2, 300), "z": (2, 300, 60), "largest": (2, 300)
    }  # fmt: skip
    assert np.mean(found["z"] == TRUTH) > 0.95
    assert found["z"].dtype.kind == "i"
    assert np.all(found["scale"] > 0)
    np.testing.assert_allclose(found["largest"], found["mu"].max(-1))
    np.testing.assert_allclose(found["mu"].mean((0, 1)), [-5, 0, 5], atol=0.6)


@pytest.mark.parametrize("how", ["as it is", "row by row"])
def test_labels_have_the_shares_that_discrete_hmc_gibbs_finds(how, monkeypatch):
    if how == "row by row":
        monkeypatch.setattr(Sites, "colours", lambda *args: None)
    x = np.array([-1.0, 0.2, 1.5, 6.0])

    def model(x):
        with numpyro.plate("n", len(x)):
            z = numpyro.sample("z", dist.Categorical(probs=jnp.array([0.2, 0.3, 0.5])))
            numpyro.sample("x", dist.Normal(jnp.array([-1.0, 0.0, 2.0])[z], 1.0), obs=x)
        numpyro.sample("a", dist.Normal(0.0, 1.0))

    kernel = samplers.discrete_hmc_gibbs(numpyro.infer.NUTS(model))
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=50, num_samples=3000, progress_bar=False)
    mcmc.run(jax.random.key(0), x)
    found = mcmc.get_samples()
    weights = np.array([0.2, 0.3, 0.5]) * np.exp(-0.5 * (x[:, None] - [-1.0, 0.0, 2.0]) ** 2)
    expected = weights / weights.sum(axis=1, keepdims=True)
    shares = np.stack([np.mean(found["z"] == k, axis=0) for k in range(3)], axis=1)
    np.testing.assert_allclose(shares, expected, atol=0.05)
    assert abs(found["a"].mean()) < 0.2
    assert found["z"].shape == (3000, 4)


def test_elements_that_interact_take_turns():
    field = np.array([0.5, -0.2, 0.1])
    states = np.array(np.meshgrid(*[[0, 1]] * 3, indexing="ij")).reshape(3, -1).T
    weights = np.exp(states @ field + 0.8 * np.sum(states[:, 1:] == states[:, :-1], axis=1))
    model = samplers.from_numpyro(chain_of_spins, field)
    chain = samplers.gibbs(
        model.log_density, *model.args, updates=model.updates, key=1, num_sweeps=6000
    )
    drawn = chain.tree()["s"]
    shares = np.array([np.mean(np.all(drawn == s, axis=1)) for s in states])
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.03)


def test_sites_of_two_axes():
    model = samplers.from_numpyro(two_by_two, (2, 3))
    chain = samplers.gibbs(
        model.log_density, *model.args, updates=model.updates, key=1, num_sweeps=4000
    )
    found = model.constrained(chain.tree())["k"]
    assert found.shape == (4000, 2, 3)
    logits = np.array([0.0, 1.0, -1.0]) - 0.1 * np.arange(6)[:, None] * np.arange(3)
    mean = np.sum(np.arange(3) * np.exp(logits), axis=1) / np.sum(np.exp(logits), axis=1)
    np.testing.assert_allclose(found.mean(0).ravel(), mean, atol=0.05)


def test_sites_without_a_list_of_values():
    def counts():
        numpyro.sample("n", dist.Poisson(3.0))

    with pytest.raises(samplers.ProposalError) as caught:
        samplers.from_numpyro(counts)
    assert str(caught.value) == (
        "The discrete site `n` is a Poisson, whose values cannot be listed. Nothing was sampled. "
        "Marginalise it, condition on it, or give it a distribution on finitely many numbers."
    )


LOGITS = np.array([0.0, 1.0, -1.0])
LEVELS = np.array([0.0, 0.5, 2.0])


def label_and_level(y):
    """A label, and a level that is Normal(LEVELS[label], 1) given it."""
    z = numpyro.sample("z", dist.Categorical(logits=jnp.asarray(LOGITS)))
    numpyro.sample("a", dist.Normal(jnp.asarray(LEVELS)[z] + y, 1.0))


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("random_walk", [False, True])
def test_steps_are_those_of_discrete_hmc_gibbs(random_walk, modified):
    """Pairs of labels that follow each other, of both kernels, and their shares."""
    how = {"random_walk": random_walk, "modified": modified}
    pairs = []
    for kernel_of in (samplers.discrete_hmc_gibbs, numpyro.infer.DiscreteHMCGibbs):
        kernel = kernel_of(numpyro.infer.HMC(label_and_level, step_size=1.0), **how)
        mcmc = numpyro.infer.MCMC(kernel, num_warmup=100, num_samples=8000, progress_bar=False)
        mcmc.run(jax.random.key(3), jnp.asarray(1.0))
        z = np.asarray(mcmc.get_samples()["z"])
        assert set(z.tolist()) == {0, 1, 2}
        pairs.append(np.histogram2d(z[:-1], z[1:], bins=3)[0] / (len(z) - 1))
    # Five standard errors of a share of 8,000 dependent steps.
    np.testing.assert_allclose(pairs[0], pairs[1], atol=0.04)
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(pairs[0].sum(axis=0), expected, atol=0.04)


@pytest.mark.parametrize("method", ["sequential", "vectorized map"])
def test_several_chains_and_other_data(method):
    chain_method = jax.vmap if method == "vectorized map" else method
    kernel = samplers.discrete_hmc_gibbs(numpyro.infer.HMC(label_and_level, step_size=1.0))
    mcmc = numpyro.infer.MCMC(
        kernel, num_warmup=50, num_samples=500, num_chains=2, chain_method=chain_method,
        progress_bar=False,
    )  # fmt: skip
    expected = LEVELS @ np.exp(LOGITS) / np.exp(LOGITS).sum()
    for y in (0.0, 30.0):
        mcmc.run(jax.random.key(3), jnp.asarray(y))
        found = mcmc.get_samples(group_by_chain=True)
        assert found["z"].shape == (2, 500)
        assert not np.array_equal(found["z"][0], found["z"][1])
        np.testing.assert_allclose(found["a"].mean(), expected + y, atol=0.3)


def started(kernel, *args, **options):
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=1, num_samples=1, progress_bar=False, **options)
    mcmc.run(jax.random.key(0), *args)


def test_a_kernel_for_discrete_sites_wants_some():
    def normal():
        numpyro.sample("a", dist.Normal(0.0, 1.0))

    with pytest.raises(samplers.ProposalError) as caught:
        started(samplers.discrete_hmc_gibbs(numpyro.infer.NUTS(normal)))
    assert str(caught.value) == (
        "`discrete_hmc_gibbs` got a model without discrete latent sites. Nothing was sampled. Give "
        "`MCMC` the inner kernel itself."
    )


def test_a_kernel_for_discrete_sites_wants_a_model():
    kernel = numpyro.infer.NUTS(potential_fn=lambda z: z**2)
    with pytest.raises(TypeError) as caught:
        samplers.discrete_hmc_gibbs(kernel)
    assert str(caught.value) == (
        "`discrete_hmc_gibbs(inner_kernel)` got a NUTS; it must be the `HMC` or `NUTS` of a model. "
        "Nothing was sampled. Pass `NUTS(model)`, not a `potential_fn`, in which there are no sites."
    )


def test_a_kernel_for_discrete_sites_wants_values():
    kernel = samplers.discrete_hmc_gibbs(numpyro.infer.HMC(label_and_level, step_size=1.0))
    with pytest.raises(samplers.ProposalError) as caught:
        started(kernel, jnp.asarray(1.0), jit_model_args=True)
    assert str(caught.value) == (
        "The kernel of `discrete_hmc_gibbs` needs values of the model's arguments, which "
        "`MCMC(jit_model_args=True)` hides. Nothing was sampled. Leave `jit_model_args` out."
    )


def test_numpyro_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro.infer.util", None)
    with pytest.raises((incrax.errors.MissingExtraError, ModuleNotFoundError)):
        samplers.from_numpyro(mixture, X, 3)
