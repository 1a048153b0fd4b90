"""The posterior of a regression by variational inference, compared with the exact one.

Data: 442 patients, ten measurements and the progression of diabetes after a year, that scikit-learn ships
(`load_diabetes`). With a normal prior and known noise the posterior of the ten coefficients is normal; some are
strongly correlated. Independent normal distributions and a flow of FlowJAX are fitted to it by samples that are scored
by the pass that makes them, and compared with it by the Kullback-Leibler divergence.

Run: python examples/flow_posterior.py [--plot FILE]
"""

import argparse
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np

from incrax import bijectors

jax.config.update("jax_enable_x64", True)

NEEDED = ("flowjax", "optax", "sklearn")
PRIOR_SD = 1.0
STEPS = 1000


def load():
    """Standardised measurements (n, 10), standardised progression (n,), and the noise left by least squares."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    residuals = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return jnp.asarray(x), jnp.asarray(y), float(residuals.std())


def exact_posterior(x, y, noise):
    """Mean and covariance of the coefficients."""
    precision = x.T @ x / noise**2 + jnp.eye(x.shape[1]) / PRIOR_SD**2
    covariance = jnp.linalg.inv(precision)
    return covariance @ x.T @ y / noise**2, covariance


def make_flows(num_coefficients):
    import flowjax.bijections as fb
    from flowjax.distributions import StandardNormal
    from flowjax.flows import masked_autoregressive_flow

    base = StandardNormal((num_coefficients,))
    small = fb.Affine(jnp.zeros(num_coefficients), jnp.full(num_coefficients, 0.1))
    # Not inverted: samples by one pass. Their log-density by inverse would take one pass per coefficient.
    flow = masked_autoregressive_flow(jax.random.key(1), base_dist=base, flow_layers=2, nn_width=32, invert=False)
    return {
        "independent": bijectors.Flow(base, small),
        "flow": bijectors.Flow(base, fb.Chain([flow.bijection, small])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", help="where to save a plot of samples of two coefficients")
    options = parser.parse_args()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(print(f"left out: {', '.join(missing)} not installed; pip install 'incrax[flows]' scikit-learn"))
    import optax

    x, y, noise = load()
    mean, covariance = exact_posterior(x, y, noise)
    gram, projected = x.T @ x / noise**2, x.T @ y / noise**2  # all that the posterior needs of the data

    def log_density(w):
        return projected @ w - 0.5 * w @ gram @ w - 0.5 * jnp.sum(w**2) / PRIOR_SD**2

    samples = {}
    for name, flow in make_flows(len(mean)).items():
        optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(optax.cosine_decay_schedule(1e-2, STEPS)))
        fit = bijectors.fit_variational(flow, log_density, optimizer=optimizer, steps=STEPS, num_samples=32)
        w, log_prob = fit.flow.sample_and_log_prob(jax.random.key(2), (4000,))
        exact = jax.scipy.stats.multivariate_normal.logpdf(w, mean, covariance)
        errors = (w.mean(0) - mean) / jnp.sqrt(jnp.diag(covariance))
        ratios = w.std(0) / jnp.sqrt(jnp.diag(covariance))
        print(f"{name:11}: KL(q || posterior) {jnp.mean(log_prob - exact):.3f}, means off by at most ", end="")
        print(f"{jnp.abs(errors).max():.2f} sd, sd {ratios.min():.2f} to {ratios.max():.2f} of the exact")
        samples[name] = w
    if options.plot:
        plot(samples, np.random.default_rng(0).multivariate_normal(mean, covariance, 2000), options.plot)


def plot(samples, exact, path):
    from matplotlib.figure import Figure

    panels = Figure(figsize=(10, 4), layout="constrained").subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, w) in zip(panels, samples.items(), strict=True):
        axes.plot(*exact[:, 4:6].T, ".", ms=2, color="grey", label="exact")
        axes.plot(*w[:2000, 4:6].T, ".", ms=2, color="C0", label=name)
        axes.set(xlabel="coefficient of s1", ylabel="coefficient of s2")
        axes.legend(frameon=False)
    panels[0].figure.savefig(path, dpi=120)
    print(f"plot in {path}")


if __name__ == "__main__":
    main()
