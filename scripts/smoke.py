"""Whether an installed incrax works, without its sources, its tests or any extra.

Run: python scripts/smoke.py, in the environment to be tested.
"""

import importlib.metadata

import jax
import numpy as np

import incrax


def density(theta, y):
    """A sum over groups, each of which one element of `theta` decides."""
    return -jax.numpy.sum(jax.numpy.log1p((y - theta[:, None]) ** 2))


def main() -> None:
    """Calls, derivatives, a report, and each module that is loaded when it is asked for."""
    assert incrax.__version__ == importlib.metadata.version("incrax")
    for name in ("fit", "samplers", "bijectors"):
        assert getattr(incrax, name).__all__
    y = np.linspace(-1.0, 1.0, 600).reshape(30, 20)
    f = incrax.value_and_grad(density)
    plain = jax.jit(jax.value_and_grad(density))
    for step in range(30):
        theta = np.zeros(30)
        theta[step] = 0.5
        value, gradient = f(theta, y)
        expected, slope = plain(theta, y)
        np.testing.assert_allclose(value, expected, rtol=1e-4)
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)
    assert str(f.explain())
    assert "<html" in incrax.report(f).html
    found = incrax.fit.levenberg_marquardt(lambda p: p - 3.0, 1.0)
    np.testing.assert_allclose(found.params, 3.0, rtol=1e-5)
    print(f"incrax {incrax.__version__} with jax {jax.__version__}: works")


if __name__ == "__main__":
    main()
