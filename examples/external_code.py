"""A theory code outside JAX in the middle of a likelihood: it runs only when its own parameters
change.

The code is a C function, compiled here and called through `ctypes`; without a C compiler the same
routine in NumPy takes its place. It maps three parameters to a spectrum and takes some 10 ms. Four
nuisance parameters come after it. Its derivative is by central differences, in a callback of its
own: six runs of the code.

Run: python examples/external_code.py
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import incrax

jax.config.update("jax_enable_x64", True)

NUM_BINS = 1000
NUM_NODES = 250
K = np.linspace(0.05, 40.0, NUM_BINS)
TRUTH = np.array([1.1, 0.8, 0.04]), np.array([2.0, 0.3, -0.5, -3.0])
STEPS = np.array([2e-3, 5e-4, 5e-4]), np.array([4e-3, 3e-3, 4e-3, 1e-2])
NUM_SWEEPS = 20
NUM_NUISANCE_MOVES = 9

SOURCE = """
#include <math.h>
void spectrum(const double *p, const double *k, double *out, int num_bins, int num_nodes) {
    for (int i = 0; i < num_bins; i++) {
        double sum = 0.0;
        for (int j = 0; j < num_nodes; j++) {
            double t = (j + 0.5) / num_nodes, wave = cos(k[i] * p[1] * t);
            sum += pow(t, p[0]) * wave * wave * exp(-p[2] * k[i] * t);
        }
        out[i] = sum / num_nodes;
    }
}
"""


# --- the outside program --------------------------------------------------------------------------


def compiled_code(folder):
    """The routine in C as a Python function, or None where nothing compiles it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = Path(folder, "spectrum.c"), Path(folder, "spectrum.so")
    source.write_text(SOURCE)
    command = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    routine = ctypes.CDLL(str(library)).spectrum
    array = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")
    routine.argtypes, routine.restype = [array, array, array, ctypes.c_int, ctypes.c_int], None

    def spectrum(p):
        out = np.empty(NUM_BINS)
        routine(np.ascontiguousarray(p, np.float64), K, out, NUM_BINS, NUM_NODES)
        return out

    return spectrum


def numpy_code(p):
    """The same routine in NumPy."""
    total = np.zeros(NUM_BINS)
    for j in range(NUM_NODES):
        t = (j + 0.5) / NUM_NODES
        total += t ** p[0] * np.cos(K * p[1] * t) ** 2 * np.exp(-p[2] * K * t)
    return total / NUM_NODES


class Counted:
    """The code with the number of its runs."""

    def __init__(self, code):
        self.code = code
        self.num_runs = 0

    def spectrum(self, p):
        """The spectrum, (bins,), at parameters (3,)."""
        self.num_runs += 1
        return self.code(np.asarray(p))

    def jacobian(self, p):
        """Its derivative, (bins, 3), by central differences: two runs per parameter."""
        steps = 1e-5 * np.eye(3)
        columns = [(self.spectrum(p + h) - self.spectrum(p - h)) / 2e-5 for h in steps]
        return np.stack(columns, axis=1)


# --- the model ------------------------------------------------------------------------------------


def make_theory(code):
    """The code as a differentiable JAX function of the theory parameters."""
    value_type = jax.ShapeDtypeStruct((NUM_BINS,), np.float64)
    jacobian_type = jax.ShapeDtypeStruct((NUM_BINS, 3), np.float64)

    @jax.custom_jvp
    def theory(p):
        return jax.pure_callback(code.spectrum, value_type, p, vmap_method="sequential")

    @theory.defjvp
    def derivative(primals, tangents):
        (p,), (dp,) = primals, tangents
        jacobian = jax.pure_callback(code.jacobian, jacobian_type, p, vmap_method="sequential")
        return theory(p), jacobian @ dp

    return theory


def make_nll(theory, y):
    """-log likelihood of (theory parameters, nuisances): calibration, foreground height and slope,
    log noise.
    """

    def nll(p, nuisance):
        height, foreground, slope, log_noise = nuisance
        model = height * theory(p) + foreground * jnp.exp(slope * jnp.log(K))
        return 0.5 * jnp.sum((y - model) ** 2) * jnp.exp(-2 * log_noise) + NUM_BINS * log_noise

    return nll


# --- what is done with it -------------------------------------------------------------------------


def sample(function, seed):
    """A Metropolis chain: of ten moves, one is of the theory parameters."""
    rng = np.random.default_rng(seed)
    point, value, chain = TRUTH, float(function(*TRUTH)), []
    for number in range(NUM_SWEEPS * (1 + NUM_NUISANCE_MOVES)):
        block = int(number % (1 + NUM_NUISANCE_MOVES) > 0)
        moved = point[block] + STEPS[block] * rng.normal(size=len(point[block]))
        proposal = (moved, point[1]) if block == 0 else (point[0], moved)
        new = float(function(*proposal))
        if np.log(rng.uniform()) < value - new:
            point, value = proposal, new
        chain.append(np.concatenate(point))
    return np.array(chain)


def profile(function):
    """Rows (second theory parameter, best value, slope): the nuisances are fitted anew at each of a
    few points.

    At the best nuisances the slope of the profile is the partial derivative of the likelihood,
    through the theory code.
    """
    rows, nuisance = [], TRUTH[1]
    for shift in (-0.008, -0.004, 0.0, 0.004, 0.008):
        p = TRUTH[0] + [0.0, shift, 0.0]
        nuisance = minimize(
            lambda x, p=p: pick(function(p, x), 1), nuisance, jac=True, method="BFGS"
        ).x
        value, gradient = function(p, nuisance)
        rows.append([p[1], float(value), float(gradient[0][1])])
    return np.array(rows)


def pick(result, block):
    """Value and the gradient of one block, for SciPy."""
    value, gradient = result
    return float(value), np.asarray(gradient[block])


def timed(make, task, code, nll):
    """The result of a task with one way to compile, runs of the code and seconds."""
    function = make(nll)
    code.num_runs, start = 0, time.perf_counter()
    result = task(function)
    return result, code.num_runs, time.perf_counter() - start


def main():
    """Sample and profile with `jax.jit` and with incrax; results agree, runs of the code differ."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = compiled_code(folder)
        print(
            "theory code:",
            "NumPy (no C compiler here)" if compiled is None else "C, called through ctypes",
        )
        code = Counted(compiled or numpy_code)
        start = time.perf_counter()
        spectrum = code.spectrum(TRUTH[0])
        print(f"one run: {(time.perf_counter() - start) * 1e3:.0f} ms for {NUM_BINS} bins")
        noise = np.exp(TRUTH[1][3]) * np.random.default_rng(1).normal(size=NUM_BINS)
        y = TRUTH[1][0] * spectrum + TRUTH[1][1] * K ** TRUTH[1][2] + noise
        nll = make_nll(make_theory(code), y)

        tasks = {
            "Metropolis": (lambda f: sample(f, seed=2), lambda f: f),
            "profile": (profile, lambda f: jax.value_and_grad(f, (0, 1))),
        }
        for name, (task, derive) in tasks.items():
            results = {}
            for way, make in (("jax.jit", jax.jit), ("incrax", incrax.incremental)):
                result, runs, seconds = timed(make, task, code, derive(nll))
                results[way] = result
                print(f"{name:10} {way:8} {runs:5d} runs of the code {seconds:7.2f} s")
            np.testing.assert_allclose(results["incrax"], results["jax.jit"], rtol=1e-5)
        p, value, slope = results["incrax"].T
        print("profile:", np.round(value - value.min(), 2), "slopes:", np.round(slope))
        np.testing.assert_allclose(
            np.gradient(value, p)[1:-1], slope[1:-1], atol=0.1 * np.ptp(slope)
        )


if __name__ == "__main__":
    main()
