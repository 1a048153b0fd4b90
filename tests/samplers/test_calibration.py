"""Closed-form posteriors, and simulation-based calibration: whole samplers, not single kernels.

Source: S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman, Validating Bayesian inference
algorithms with simulation-based calibration, arXiv:1804.06788.
"""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2, norm

from incrax import samplers


def near(found, expected, spread, size):
    """Means of so many independent samples, within five standard errors."""
    assert np.all(np.abs(found - expected) < 5 * spread / np.sqrt(size))


def test_beta_binomial():
    """Shares of groups: given counts of successes, Beta(a + k, b + n - k)."""
    rng = np.random.default_rng(0)
    a, b = 2.0, 3.0
    n = rng.integers(5, 60, 30)
    k = rng.binomial(n, rng.beta(a, b, 30))

    def log_posterior(logits, n, k):
        log_p, log_q = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
        # dp/dlogit = p q turns the Beta density into one of logits.
        return jnp.sum((a + k) * log_p + (b + n - k) * log_q)

    chain = samplers.gibbs(log_posterior, np.zeros(30), n, k, key=1, num_sweeps=2000, chains=2)
    shares = 1 / (1 + np.exp(-chain.samples))
    mean = (a + k) / (a + b + n)
    variance = mean * (1 - mean) / (a + b + n + 1)
    near(shares.mean(axis=(0, 1)), mean, np.sqrt(variance), chain.ess_bulk)
    np.testing.assert_allclose(shares.var(axis=(0, 1)), variance, rtol=0.3)
    assert np.all(chain.r_hat < 1.03)
    assert np.all(chain.ess_tail > 300)


NUM_REPLICATES, NUM_DRAWS, NUM_BINS = 1000, 63, 8
CENTRES = np.array([-1.5, 0.0, 2.0])
PRIOR = np.array([0.5, 0.2, 0.3])


def uniform(ranks, num_ranks):
    """Whether ranks are: by bins, by their mean, and by their variance, which alone sees a
    posterior that is a fifth too wide; each at a level that one run in ten thousand misses.
    """
    counts = np.bincount(ranks * NUM_BINS // num_ranks, minlength=NUM_BINS)
    expected = len(ranks) / NUM_BINS
    chi_squared = np.sum((counts - expected) ** 2) / expected
    at = (ranks + 0.5) / num_ranks - 0.5
    # Of a uniform number u on (-1/2, 1/2): var u = 1/12, var u^2 = 1/180.
    by_mean = np.mean(at) * np.sqrt(12 * len(ranks))
    by_variance = (np.mean(at**2) - (1 - num_ranks**-2) / 12) * np.sqrt(180 * len(ranks))
    is_near = max(abs(by_mean), abs(by_variance)) < norm.isf(0.5e-4)
    return is_near and chi_squared < chi2.isf(1e-4, NUM_BINS - 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("move", "label_move"),
    [
        (samplers.Walk(times=2), samplers.Categorical(3)),
        (samplers.Hamiltonian(num_steps=3), samplers.Categorical(3, modified=True)),
        (samplers.Kernel(blackjax.mala, target=0.57), samplers.Categorical(3, random_walk=True)),
    ],
    ids=["walks", "trajectories", "kernels"],
)
def test_ranks_of_what_was_drawn_from_the_prior_are_uniform(move, label_move):
    """Each row is a replicate of its own: a level, and a label that shifts its observations."""
    rng = np.random.default_rng(7)
    level = rng.normal(size=NUM_REPLICATES)
    label = rng.choice(3, size=NUM_REPLICATES, p=PRIOR)
    y = (level + CENTRES[label])[:, None] + rng.normal(size=(NUM_REPLICATES, 2))

    def log_joint(p, y):
        mean = p["level"] + jnp.asarray(CENTRES)[p["label"]]
        prior = -0.5 * jnp.sum(p["level"] ** 2) + jnp.sum(jnp.log(PRIOR)[p["label"]])
        return prior - 0.5 * jnp.sum((y - mean[:, None]) ** 2)

    start = {"level": np.zeros(NUM_REPLICATES), "label": np.zeros(NUM_REPLICATES, int)}
    updates = {"p['level'][*]": move, "p['label']": label_move}
    thin = 40
    chain = samplers.gibbs(
        log_joint, start, y, updates=updates, key=5, num_sweeps=thin * NUM_DRAWS, num_warmup=400
    )
    drawn = {name: x[::thin] for name, x in chain.tree().items()}
    ranks = np.sum(drawn["level"] < level, axis=0)
    assert uniform(ranks, NUM_DRAWS + 1)
    # Ties of labels are broken at random.
    below = np.sum(drawn["label"] < label, axis=0)
    equal = np.sum(drawn["label"] == label, axis=0)
    assert uniform(below + rng.integers(0, equal + 1), NUM_DRAWS + 1)
    # Ranks that are not uniform are seen: those of a posterior that is a fifth too narrow.
    centre = drawn["level"].mean(axis=0)
    narrow = centre + 0.8 * (drawn["level"] - centre)
    assert not uniform(np.sum(narrow < level, axis=0), NUM_DRAWS + 1)
