"""Several chains, their diagnostics against those of others, checkpoints."""

from __future__ import annotations

import dataclasses
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.diagnostics import effective_sample_size, gelman_rubin, split_gelman_rubin
from scipy.special import ndtri
from scipy.stats import rankdata

import incrax
from incrax import samplers
from incrax.samplers import chain as chain_module
from incrax.samplers import checkpoints, compiled_sweeps, diagnostics

Y = np.random.default_rng(1).normal(size=(5, 4)) + np.arange(5)[:, None]
START = {"mu": 0.0, "theta": np.zeros(5)}
WALKS = {"p['theta'][*]": samplers.Walk(0.8), "p['mu']": samplers.Walk(0.9)}


def groups(p, y):
    spread = jnp.sum((p["theta"] - p["mu"]) ** 2)
    return -0.5 * jnp.sum((y - p["theta"][:, None]) ** 2) - 0.5 * spread - 0.05 * p["mu"] ** 2


def curved(p, y):
    return groups(p, y) - jnp.sum(jnp.sin(p["theta"]))  # one sum more


def run(num=30, y=Y, updates=WALKS, fun=groups, **kwargs):
    options = {"key": 3, "chains": 2} | kwargs
    return samplers.gibbs(fun, START, y, updates=updates, num_sweeps=num, **options)


def test_chains_are_other_chains_of_the_same_kind():
    found = run(4000)
    assert found.samples.shape == (2, 4000, 6)
    assert found.log_densities.shape == (2, 4000)
    assert found.tree()["theta"].shape == (2, 4000, 5)
    assert not np.array_equal(found.samples[0], found.samples[1])
    assert found.num_evaluations == 2 * 4000 * 6
    one = run(4000, chains=None)
    for chain in found.samples:
        error = chain.std(axis=0) / np.sqrt(150)
        assert np.all(np.abs(chain.mean(axis=0) - one.mean) < 5 * error)
    assert repr(found).startswith("<Chain: 2 chains of 4000 samples of 6 parameters; accepted: ")
    np.testing.assert_allclose(found.covariance, np.cov(found.samples.reshape(-1, 6).T))
    np.testing.assert_array_equal(run(5, chains=1).samples.shape, (1, 5, 6))


@pytest.mark.parametrize("updates", [WALKS, {"p": samplers.Walk(1e-9)}], ids=["compiled", "host"])
def test_each_chain_starts_where_it_is_told(updates):
    at = {"mu": np.array([3.0, -3.0]), "theta": np.stack([np.ones(5), np.full(5, 4.0)])}
    still = {name: samplers.Walk(1e-9) for name in updates}
    found = run(2, updates=still, starts=at).tree()
    np.testing.assert_allclose(found["mu"][:, 0], at["mu"], atol=1e-6)
    np.testing.assert_allclose(found["theta"][:, 0], at["theta"], atol=1e-6)


def test_a_start_of_probability_zero_is_refused_in_any_chain():
    fun = lambda p, y: jnp.log(p["mu"] + 1) - jnp.sum(p["theta"] ** 2)
    at = {"mu": np.array([3.0, -3.0]), "theta": np.zeros((2, 5))}
    with pytest.raises(samplers.StartError):
        run(fun=fun, starts=at)


# --- diagnostics ----------------------------------------------------------------------------------


def autoregressive(rho, shift=0.0, shape=(4, 600, 3), seed=0):
    noise = np.random.default_rng(seed).normal(size=shape)
    x = np.zeros(shape)
    for t in range(shape[1]):
        x[:, t] = rho * x[:, t - 1] + noise[:, t] if t else noise[:, t]
    return x + shift * np.arange(shape[0])[:, None, None]


@pytest.mark.parametrize(
    ("rho", "shift"), [(0.0, 0.0), (0.9, 0.0), (0.5, 2.0), (-0.5, 0.0)],
    ids=["independent", "slow", "chains apart", "antithetic"],
)  # fmt: skip
def test_sizes_and_r_hat_are_those_of_numpyro(rho, shift):
    x = autoregressive(rho, shift)
    halves = np.concatenate([x[:, :300], x[:, 300:]])
    flat = halves.reshape(-1, 3)
    scores = ndtri((rankdata(flat, axis=0) - 3 / 8) / (len(flat) + 1 / 4)).reshape(halves.shape)
    expected = np.minimum(effective_sample_size(scores), 2400 * np.log10(2400))
    np.testing.assert_allclose(diagnostics.ess_bulk(x), expected, rtol=0.02)
    folded = np.abs(halves - np.median(halves, axis=(0, 1))).reshape(-1, 3)
    folded = ndtri((rankdata(folded, axis=0) - 3 / 8) / (len(flat) + 1 / 4)).reshape(halves.shape)
    both = [gelman_rubin(each) for each in (scores, folded)]
    np.testing.assert_allclose(diagnostics.rank_r_hat(x), np.max(both, axis=0), rtol=1e-10)


def test_closed_forms():
    x = autoregressive(0.8, shape=(4, 5000, 2))
    size = 20_000
    np.testing.assert_allclose(diagnostics.ess_bulk(x), size * 0.2 / 1.8, rtol=0.1)
    halves = np.concatenate([x[:, :2500], x[:, 2500:]])
    tails = [
        effective_sample_size((halves <= np.quantile(x, q, axis=(0, 1))) * 1.0)
        for q in (0.05, 0.95)
    ]
    np.testing.assert_allclose(diagnostics.ess_tail(x), np.min(tails, axis=0), rtol=0.02)
    assert np.all(np.abs(diagnostics.rank_r_hat(x) - 1) < 0.01)


def test_chains_of_different_spread_do_not_agree():
    x = np.random.default_rng(0).normal(size=(4, 400, 1)) * np.array([1, 1, 1, 9.0])[:, None, None]
    assert split_gelman_rubin(x)[0] < 1.01 < 1.1 < diagnostics.rank_r_hat(x)[0]


def test_what_does_not_vary_or_is_short():
    x = np.zeros((2, 40, 2))
    x[..., 0] = np.random.default_rng(0).normal(size=(2, 40))
    assert diagnostics.ess_bulk(x)[1] == diagnostics.ess_tail(x)[1] == 80
    assert np.isnan(diagnostics.rank_r_hat(x)[1])
    assert np.all(np.isnan(diagnostics.rank_r_hat(x[:, :3])))


def test_without_arviz_a_chain_prints_means_and_quantiles_alone(monkeypatch):
    monkeypatch.setattr(chain_module, "has_arviz", lambda: False)
    shown = str(run(20))
    assert "95%" in shown
    assert "R-hat" not in shown
    assert "not converged" not in shown


def test_a_chain_has_its_diagnostics():
    found = run(200)
    for name in ("r_hat", "ess_bulk", "ess_tail"):
        assert getattr(found, name).shape == (6,)
    np.testing.assert_array_equal(found.ess_bulk, diagnostics.ess_bulk(found.samples))
    np.testing.assert_array_equal(found.r_hat, diagnostics.rank_r_hat(found.samples))
    np.testing.assert_array_equal(found.ess_tail, diagnostics.ess_tail(found.samples))
    assert run(200, chains=None).ess_bulk.shape == (6,)


def three(num_labels=0):
    """Two chains of labels and three numbers."""
    start = {name: 0.0 for name in "abc"} | {"Labels": np.zeros(num_labels)}
    return samplers.gibbs(
        lambda p: -sum(jnp.sum(x**2) for x in p.values()),
        start,
        updates={"p": samplers.Walk(1.0)},
        key=0,
        num_sweeps=4,
        chains=2,
    )


def with_samples(chain, samples):
    names = [name.replace("p['", "").replace("']", "") for name in chain.names]
    return dataclasses.replace(chain, samples=samples, names=tuple(names), acceptance={})


def test_a_chain_that_has_not_converged_says_so_and_which_parameter_is_worst():
    found = three()
    good = autoregressive(0.0, shape=(4, 2000, 3))
    assert with_samples(found, good).doubt == ""
    assert "not converged" not in str(with_samples(found, good))
    apart = good + np.arange(4)[:, None, None] * [0.0, 2.0, 0.0]
    slow = good.copy()
    slow[..., 2] = autoregressive(0.97, shape=(4, 2000, 3))[..., 2]
    for samples, r_hat_of, size_of in [(apart, "b", "b"), (slow, "c", "c")]:
        chain = with_samples(found, samples)
        worst = int(np.argmax(chain.r_hat))
        least = np.minimum(chain.ess_bulk, chain.ess_tail).min()
        assert chain.doubt == (
            f"not converged: R-hat up to {chain.r_hat[worst]:.3f} (of {r_hat_of}; 1.01 will do), "
            f"effective samples from {least:.0f} on (of {size_of}; 400 will do): take more sweeps, "
            "or a sampler that moves all parameters at once, such as NUTS"
        )
        assert chain.doubt in " ".join(str(chain).split())


def test_what_never_moved_and_chains_of_three_samples_are_not_doubted():
    found = three()
    stuck = autoregressive(0.0, shape=(4, 2000, 3)) * [1.0, 0.0, 1.0]
    assert with_samples(found, stuck).doubt == ""
    assert with_samples(found, stuck[:, :3]).doubt == ""


def test_a_chain_none_of_whose_steps_were_accepted_says_so():
    density = lambda p: -jnp.sum(p["x"] ** 2) + 1e6 * jnp.sum(p["z"])
    at = {"x": np.zeros(2), "z": np.ones(2, int)}
    moves = {"p['x']": samplers.Walk(1e9), "p['z']": samplers.Categorical(2)}
    chain = samplers.gibbs(density, at, updates=moves, key=0, num_sweeps=5)
    assert [*chain.acceptance.values()] == [0.0, 0.0]  # of the labels one value is possible
    assert chain.doubt == (
        "not converged: no step of `p['x']` was accepted: take shorter steps, or leave the width "
        "out, so that the warm-up finds it"
    )
    assert not dataclasses.replace(chain, samples=chain.samples[:3]).doubt


def test_numbers_beside_many_labels_are_all_looked_at_and_printed():
    found = three(400)
    samples = autoregressive(0.0, shape=(2, 500, 403))
    samples[1, :, 0] += 2.0  # the first label
    samples[1, :, 401] += 5.0  # b, behind all labels
    chain = with_samples(found, samples)
    assert chain.doubt.startswith("not converged: R-hat up to ")
    assert "(of b; 1.01 will do), effective" in chain.doubt
    *_, a, b, c = chain.tables()[0].rows[:30]
    assert (a[0], b[0], c[0]) == ("a", "b", "c")
    assert float(b[1]) == pytest.approx(samples[..., 401].mean(), rel=1e-3)


def test_arviz_takes_a_chain():
    pytest.importorskip("arviz")
    posterior = run(5, chains=2).to_arviz()["posterior"]
    assert posterior["p['theta']"].shape == (2, 5, 5)


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("chains", [None, 2])
def test_groups_for_arviz(monkeypatch, is_old, chains):
    fake = types.ModuleType("arviz")
    fake.from_dict = lambda groups=None, **kwargs: kwargs if groups is None else groups
    if is_old:
        fake.InferenceData = object
    monkeypatch.setitem(sys.modules, "arviz", fake)
    chain = run(5, chains=chains)
    groups = chain.to_arviz()
    assert set(groups) == {"posterior", "sample_stats"}
    shapes = {name: x.shape for name, x in groups["posterior"].items()}
    num = chains or 1
    assert shapes == {"p['mu']": (num, 5), "p['theta']": (num, 5, 5)}
    np.testing.assert_array_equal(groups["sample_stats"]["lp"].ravel(), chain.log_densities.ravel())
    np.testing.assert_array_equal(
        groups["posterior"]["p['mu']"].ravel(), chain.tree()["mu"].ravel()
    )


# --- checkpoints ----------------------------------------------------------------------------------


ADAPTED = {"p['theta'][*]": samplers.Walk(), "p['mu']": samplers.Walk(0.9)}


def same(a, b):
    np.testing.assert_array_equal(a.samples, b.samples)
    np.testing.assert_array_equal(a.log_densities, b.log_densities)
    assert a.acceptance == b.acceptance


@pytest.mark.parametrize("chains", [None, 2])
def test_a_chain_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch, chains):
    file = tmp_path / "chain.npz"
    options = {"updates": ADAPTED, "chains": chains, "num_warmup": 7}
    expected = run(20, **options)
    monkeypatch.setattr(checkpoints, "EVERY_S", 0.0)
    monkeypatch.setattr(compiled_sweeps, "CHUNK_S", 0.0)
    calls = []
    stops = []
    sweeps = compiled_sweeps._sweeps

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) in stops:
            raise KeyboardInterrupt
        return sweeps(*args, **kwargs)

    monkeypatch.setattr(compiled_sweeps, "_sweeps", interrupted)
    for stop in (2 * (chains or 1) + 1, 10 * (chains or 1)):  # in the warm-up; among the samples
        calls.clear()
        stops[:] = [stop]
        with pytest.raises(KeyboardInterrupt):
            run(20, checkpoint=file, **options)
    stops.clear()
    calls.clear()
    same(run(20, checkpoint=file, **options), expected)
    assert len(calls) < 27 * (chains or 1)
    calls.clear()
    same(run(20, checkpoint=file, **options), expected)
    assert not calls
    same(run(25, checkpoint=file, **options), run(25, **options))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.npz"]


def test_more_sweeps_of_a_chain_keep_its_warm_up(tmp_path):
    file = tmp_path / "chain.npz"
    run(6, updates=ADAPTED, checkpoint=file)
    found = run(10, updates=ADAPTED, checkpoint=file)
    same(found, run(10, updates=ADAPTED, num_warmup=3))


@pytest.mark.parametrize(
    "other",
    [{"key": 4}, {"chains": 2}, {"chains": None}, {"y": np.nextafter(Y, 9)}, {"num_warmup": 3},
     {"num": 5}, {"fun": curved},
     {"updates": {"p['theta'][*]": samplers.Walk(0.7), "p['mu']": samplers.Walk(0.9)}}],
    ids=["key", "chains", "no axis", "data", "warm-up", "fewer sweeps", "function", "widths"],
)  # fmt: skip
def test_a_checkpoint_of_another_chain_is_refused(tmp_path, other):
    file = tmp_path / "chain.npz"
    run(6, chains=1, checkpoint=file)
    with pytest.raises(samplers.StartError) as caught:
        run(**({"num": 6, "chains": 1, "checkpoint": file} | other))
    assert str(caught.value) == (
        f"`{file}` is no checkpoint of this chain: it is of other inputs, blocks, widths or data, "
        "another key, warm-up or number of chains, of more sweeps, or something else. Nothing was "
        "sampled. Pass what the file was made with, or another file."
    )


def test_compiled_sweeps_of_an_incremental_function_leave_its_counters():
    f = incrax.incremental(groups)
    run(3, fun=f)
    assert f.stats.calls == 0
