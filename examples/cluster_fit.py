"""A profile likelihood with rows sharded over all devices: of one process, or of many on a cluster.

The likelihood of `delay_mixture.py`, four components with twelve parameters. At each point of a grid SciPy
minimises over the four yields; every process runs the same minimiser on the same numbers. The
densities of the rows depend on data and shapes alone and stay where the rows are, while the yields
move; the same driver on `jax.jit` evaluates them every time.

Run: python examples/cluster_fit.py --rows 1000000
On several machines, once on each (see docs/cluster.md):
    python examples/cluster_fit.py --rows 100000000 --coordinator HOST:PORT --processes 4 --process
    0
"""

from __future__ import annotations

import argparse
import time

import delay_mixture as model  # the example beside this one
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from scipy.optimize import minimize
from scipy.special import ndtri

import incrax

PROFILED = "tau_late"
GRID = np.linspace(0.9, 1.1, 11)
NUM_FIRST = 3
"""Grid points that are timed apart: programs are compiled and tried there."""


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="rows of all processes together")
    parser.add_argument(
        "--coordinator", help="HOST:PORT of the first process, with --processes and --process"
    )
    parser.add_argument("--processes", type=int, help="how many processes there are")
    parser.add_argument("--process", type=int, help="which of them this is, from 0")
    parser.add_argument(
        "--detect", action="store_true", help="let JAX find the other processes (SLURM, Open MPI)"
    )
    return parser.parse_args()


def start(options):
    """JAX in double precision, connected with the other processes before anything else is asked of
    it.
    """
    jax.config.update("jax_enable_x64", True)
    if options.coordinator or options.detect:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.coordinator, options.processes, options.process)


def simulated(numbers):
    """Delays by row number, the same however the rows are divided: quasi-random quantiles of the
    four components.
    """
    first, second, third = ((numbers * step) % 1.0 for step in (np.sqrt(2), np.sqrt(3), np.sqrt(5)))
    component = np.searchsorted(np.cumsum(model.FRACTIONS), first, side="right").clip(max=3)
    mu_e, sigma_e, mu_p, sigma_p, mu_l, sigma_l, tau_l, tau_v = model.SHAPES
    mu, sigma = np.array([mu_e, mu_p, mu_l, mu_l]), np.array([sigma_e, sigma_p, sigma_l, sigma_l])
    tau = np.array([0.0, 0.0, tau_l, tau_v])
    x = mu[component] + sigma[component] * ndtri(second) - tau[component] * np.log1p(-third)
    return np.clip(x, model.LOW + 1, model.HIGH - 1)


def sharded_rows(num_rows):
    """As many rows as the devices can share evenly; each process makes its own."""
    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("rows",), axis_types=(AxisType.Auto,))
    num_rows = max(num_rows // len(devices), 1) * len(devices)

    def part(where):
        start, stop, _ = where[0].indices(num_rows)
        return simulated(np.arange(start + 1, stop + 1, dtype=np.float64))

    return jax.make_array_from_callback(
        (num_rows,), NamedSharding(mesh, PartitionSpec("rows")), part
    )


def mean_loss(shares, shapes, x):
    """The extended negative log-likelihood per row; yields as shares of the rows."""
    theta = jnp.concatenate([shares * x.shape[0], shapes])
    return model.negative_log_likelihood(theta, x) / x.shape[0]


def profile(function, x):
    """Minima over the yields on the grid, evaluations, seconds of the first points and of the
    others.
    """
    index = model.NAMES.index(PROFILED) - len(model.FRACTIONS)
    best, minima, calls = model.FRACTIONS, [], [0, 0]
    ticks = [time.perf_counter()]
    for number, factor in enumerate(GRID):
        shapes = model.SHAPES.copy()
        shapes[index] *= factor

        def objective(shares, shapes=shapes):
            value, gradient = function(shares, shapes, x)
            return float(value), np.asarray(gradient)

        result = minimize(
            objective, best, jac=True, method="L-BFGS-B", bounds=[(1e-3, None)] * 4, tol=1e-12
        )
        best = result.x
        calls[number >= NUM_FIRST] += result.nfev
        minima.append(result.fun)
        ticks.append(time.perf_counter())
    return np.array(minima), calls, (ticks[NUM_FIRST] - ticks[0], ticks[-1] - ticks[NUM_FIRST])


def report(x, results):
    """What was found and what it took."""
    minima = results["incrax"][0]
    where = f"{jax.device_count()} {jax.default_backend()} devices, {jax.process_count()} processes"
    print(f"{x.shape[0]:,} rows; {where}")
    print(f"{PROFILED:>9}   2 (NLL - minimum)")
    for factor, value in zip(GRID, 2 * x.shape[0] * (minima - minima.min()), strict=True):
        print(f"{factor * model.SHAPES[6]:9.2f}   {value:10.3f}")
    print(
        f"{'':8} first {NUM_FIRST} points: evaluations, time   the other {len(GRID) - NUM_FIRST}: "
        "evaluations, time"
    )
    for name, (_, calls, seconds) in results.items():
        print(f"{name:8} {calls[0]:27d} {seconds[0]:6.2f} s {calls[1]:23d} {seconds[1]:6.2f} s")
    rates = [seconds[1] / calls[1] for _, calls, seconds in (results["jax.jit"], results["incrax"])]
    print(
        f"an evaluation took {rates[0] * 1e3:.2f} ms with jax.jit, {rates[1] * 1e3:.2f} ms with "
        "incrax"
    )


def main():
    """Both ways, and the comparison; the first process prints."""
    options = parse_options()
    start(options)
    x = sharded_rows(options.rows)
    loss = jax.value_and_grad(mean_loss)
    ours = incrax.incremental(loss, tuning=incrax.Tuning(compile_s=10.0))
    results = {"jax.jit": profile(jax.jit(loss), x), "incrax": profile(ours, x)}
    if jax.process_index() == 0:
        report(x, results)
    difference = np.abs(results["incrax"][0] - results["jax.jit"][0]).max()
    assert difference < 1e-9, difference


if __name__ == "__main__":
    main()
