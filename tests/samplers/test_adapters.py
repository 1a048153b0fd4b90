"""NumPyro, BlackJAX and emcee: moments of posteriors known in closed form, and log-densities of
plain JAX.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import samplers

RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 2.0, 40)
Y = 1.5 - 0.7 * np.log(X) + 0.3 * RNG.normal(size=40)
SIGMA = 0.3
DESIGN = np.stack([np.ones(40), np.log(X)], axis=1)
COVARIANCE = np.linalg.inv(DESIGN.T @ DESIGN / SIGMA**2 + np.eye(2))
MEAN = COVARIANCE @ DESIGN.T @ Y / SIGMA**2
START = {"a": 0.0, "b": 0.0}


def line(p, x, y, sigma=SIGMA):
    """A line in log(x) with normal priors; its posterior is normal."""
    residuals = (y - p["a"] - p["b"] * jnp.log(x)) / sigma
    return -0.5 * jnp.sum(residuals**2) - 0.5 * (p["a"] ** 2 + p["b"] ** 2)


def mixture(p, x):
    """Several leaves of several shapes."""
    z = (x[:, None] - p["means"]) / p["width"]
    return jnp.sum(jax.nn.logsumexp(-0.5 * z**2 - jnp.log(p["width"]) + p["weights"][0], axis=1))


MIXTURE = {
    "means": np.array([0.0, 1.0]),
    "width": 0.5,
    "weights": [np.array([[0.1, -0.2]])],
    "name": "two",
}


def check_moments(samples, num_effective):
    width = np.sqrt(np.diag(COVARIANCE))
    assert np.all(np.abs(samples.mean(axis=0) - MEAN) < 5 * width / np.sqrt(num_effective))
    scale = np.sqrt(np.outer(width**2, width**2) + COVARIANCE**2)
    assert np.all(
        np.abs(np.cov(samples, rowvar=False) - COVARIANCE) < 5 * scale / np.sqrt(num_effective)
    )


# --- densities ------------------------------------------------------------------------------------


def test_a_log_density_and_its_derivatives_are_those_of_plain_jax():
    mask = {name: name != "name" for name in MIXTURE}
    ours = samplers.logdensity(mixture, MIXTURE, X, wrt=mask)
    plain = lambda p: mixture({**p, "name": "two"}, X)
    p = jax.tree.map(lambda x: 1.3 * jnp.asarray(x), {**MIXTURE, "name": None})
    for transform in (
        lambda f: f,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.jit(jax.hessian(f)),
    ):
        found, wanted = transform(ours)(p), transform(plain)(p)
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_a_potential_is_minus_the_log_density():
    potential = samplers.numpyro_potential(line, START, X, Y)
    for p in (START, {"a": 1.0, "b": -2.0}):
        np.testing.assert_allclose(potential(p), -line(p, X, Y), rtol=1e-12)


def primitives(jaxpr):
    found = set()
    for eqn in jaxpr.eqns:
        found.add(eqn.primitive.name)
        for value in eqn.params.values():
            body = getattr(value, "jaxpr", value)
            found |= primitives(body) if isinstance(getattr(body, "eqns", None), list) else set()
    return found


def test_what_depends_on_data_alone_is_no_part_of_the_samplers_program():
    ours = samplers.logdensity(line, START, X, Y)
    assert "log" in primitives(jax.make_jaxpr(lambda p: line(p, X, Y))(START).jaxpr)
    assert "log" not in primitives(jax.make_jaxpr(ours)(START).jaxpr)
    assert "log" not in primitives(jax.make_jaxpr(jax.grad(ours))(START).jaxpr)


def test_part_of_the_arguments():
    ours = samplers.logdensity(line, START, X, Y, 0.5, wrt=("p['b']", "sigma"))
    np.testing.assert_allclose(ours((2.0, 0.7)), line({"a": 0.0, "b": 2.0}, X, Y, 0.7), rtol=1e-12)


def test_data_that_change_in_place_afterwards_do_not_count():
    x = X.copy()
    ours = samplers.logdensity(line, START, x, Y)
    x[:] = 1.0
    np.testing.assert_allclose(ours(START), line(START, X, Y), rtol=1e-12)


# --- samplers -------------------------------------------------------------------------------------


def test_numpyro_samples_the_posterior():
    numpyro = pytest.importorskip("numpyro")
    kernel = numpyro.infer.NUTS(potential_fn=samplers.numpyro_potential(line, START, X, Y))
    chain = numpyro.infer.MCMC(kernel, num_warmup=200, num_samples=600, progress_bar=False)
    chain.run(jax.random.key(1), init_params=jax.tree.map(jnp.asarray, START))
    samples = chain.get_samples()
    check_moments(np.stack([samples["a"], samples["b"]], axis=1), 200)


def test_blackjax_samples_the_posterior():
    blackjax = pytest.importorskip("blackjax")
    logdensity = samplers.logdensity(line, START, X, Y)
    kernel = blackjax.hmc(logdensity, 0.5, jnp.asarray(np.diag(COVARIANCE)), 5)
    start = kernel.init(jax.tree.map(jnp.asarray, START))
    step = lambda state, key: (lambda moved: (moved, moved.position))(kernel.step(key, state)[0])
    run = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[1])
    samples = run(start, jax.random.split(jax.random.key(2), 1200))
    check_moments(np.stack([samples["a"], samples["b"]], axis=1)[200:], 200)


def test_a_pure_step_inside_a_blackjax_loop_gives_the_same_chain():
    """Random-walk Metropolis; the state of the pure form is a constant, and only what moves is
    computed.
    """
    blackjax = pytest.importorskip("blackjax")
    x, y = incrax.frozen((X, Y))
    state, step = incrax.incremental(line).pure(jax.tree.map(jnp.asarray, START), x, y)
    chains = []
    for f in (lambda p: step(state, p, x, y)[1], lambda p: line(p, X, Y)):
        kernel = blackjax.additive_step_random_walk(
            f, blackjax.mcmc.random_walk.normal(jnp.full(2, 0.05))
        )
        turn = lambda s, key, kernel=kernel: (lambda m: (m, m.position))(kernel.step(key, s)[0])
        begin = kernel.init(jax.tree.map(jnp.asarray, START))
        chains.append(jax.lax.scan(turn, begin, jax.random.split(jax.random.key(3), 50))[1])
    np.testing.assert_allclose(chains[0]["a"], chains[1]["a"], rtol=1e-10)
