"""One prepared function, three minimisers: SciPy, Minuit and Optimistix fit the same peak.

`incrax.prepare` gives every minimiser what it asks for (value, gradient, Hessian, Hessian times
vector) from one function of a dict of parameters; those that want one vector get `flat`. iminuit
and optimistix are used where they are installed.

Run: python examples/prepared_minimizers.py
"""

from __future__ import annotations

import importlib.util
import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import incrax

jax.config.update("jax_enable_x64", True)

TRUTH = {"fraction": 0.3, "mean": 4.0, "width": 0.5}
START = {"fraction": 0.4, "mean": 3.6, "width": 0.7}


def nll(params, x):
    """A Gaussian peak on an exponential of mean 3, per event."""
    z = (x - params["mean"]) / params["width"]
    peak = jnp.exp(-0.5 * z**2) / (params["width"] * jnp.sqrt(2 * jnp.pi))
    return -jnp.mean(
        jnp.log(params["fraction"] * peak + (1 - params["fraction"]) * jnp.exp(-x / 3) / 3)
    )


def make_data(num=50_000):
    rng = np.random.default_rng(0)
    num_peak = int(TRUTH["fraction"] * num)
    peak = rng.normal(TRUTH["mean"], TRUTH["width"], num_peak)
    return np.concatenate([peak, rng.exponential(3.0, num - num_peak)])


def by_scipy(p, method, **given):
    """SciPy on the flat view."""
    flat = p.flat
    return flat.unflatten(
        scipy.optimize.minimize(flat.value, flat.x0, jac=flat.gradient, method=method, **given).x
    )


def by_minuit(p):
    """Minuit on the flat view; it knows the parameters by their paths."""
    import iminuit

    minuit = iminuit.Minuit(p.flat.value, p.flat.x0, grad=p.flat.gradient, name=p.flat.names)
    minuit.errordef = 0.5
    minuit.migrad()
    return p.flat.unflatten(np.array(minuit.values))


def by_optimistix(p, x):
    """Optimistix compiles the loop around `value`, which inside it is the plain function."""
    import optimistix

    solver = optimistix.BFGS(rtol=1e-8, atol=1e-8)
    return optimistix.minimise(lambda params, x: p.value(params, x), solver, START, args=x).value


def fits(p, x):
    """(name, function) of each fit; None where the package is not installed."""
    yield "scipy BFGS", lambda: by_scipy(p, "BFGS")
    yield "scipy trust-exact", lambda: by_scipy(p, "trust-exact", hess=p.flat.hessian)
    yield "scipy Newton-CG", lambda: by_scipy(p, "Newton-CG", hessp=p.flat.hvp)
    yield "iminuit", (lambda: by_minuit(p)) if importlib.util.find_spec("iminuit") else None
    yield (
        "optimistix",
        (lambda: by_optimistix(p, x)) if importlib.util.find_spec("optimistix") else None,
    )


def main():
    x = incrax.frozen(make_data())
    p = incrax.prepare(nll, START, x)
    print(p)
    for name, fit in fits(p, x):
        if fit is None:
            print(f"{name:18} not installed, left out")
            continue
        begin = time.perf_counter()
        found = fit()
        shown = "  ".join(f"{key} {float(value):.4f}" for key, value in found.items())
        print(f"{name:18} {shown}  ({time.perf_counter() - begin:.2f} s)")
    try:
        p.gradient({**START, "mean": 4}, x)
    except incrax.errors.PreparedTypeError as error:
        print(f"strict: {error}")


if __name__ == "__main__":
    main()
