"""Problem A: an extended likelihood of two normals and an exponential on a range, 8 parameters.

As a user writes it, on a dict of parameters or on one flat vector, and as an expert hoists it by
hand for one change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

Parameters = Mapping[str, Any]
Function = Callable[..., Any]

LOW, HIGH = 0.0, 10.0
NUM_EVENTS = 200_000
TRUTH = {
    "n1": 5e4,
    "mu1": 3.0,
    "s1": 0.3,
    "n2": 3e4,
    "mu2": 6.0,
    "s2": 0.5,
    "nb": 1.2e5,
    "lam": -0.25,
}
NAMES = tuple(TRUTH)
YIELDS = ("n1", "n2", "nb")


# --- as a user writes it --------------------------------------------------------------------------


def normal(x: jax.Array, mean: Any, width: Any) -> jax.Array:
    """Density of a normal on the range."""
    scale = width * jnp.sqrt(2.0)
    inside = 0.5 * (erf((HIGH - mean) / scale) - erf((LOW - mean) / scale))
    return jnp.exp(-0.5 * ((x - mean) / width) ** 2) / (width * jnp.sqrt(2.0 * jnp.pi)) / inside


def exponential(x: jax.Array, slope: Any) -> jax.Array:
    """Density of an exponential on the range."""
    return jnp.exp(slope * x) * slope / (jnp.exp(slope * HIGH) - jnp.exp(slope * LOW))


def nll(p: Parameters, x: jax.Array) -> jax.Array:
    """Negative extended log-likelihood of a dict of parameters."""
    density = p["n1"] * normal(x, p["mu1"], p["s1"])
    density = density + p["n2"] * normal(x, p["mu2"], p["s2"])
    density = density + p["nb"] * exponential(x, p["lam"])
    return p["n1"] + p["n2"] + p["nb"] - jnp.sum(jnp.log(density))


def nll_flat(theta: jax.Array, x: jax.Array) -> jax.Array:
    """The same of one vector, as minimisers pass it."""
    n1, mu1, s1, n2, mu2, s2, nb, lam = theta
    density = n1 * normal(x, mu1, s1) + n2 * normal(x, mu2, s2) + nb * exponential(x, lam)
    return n1 + n2 + nb - jnp.sum(jnp.log(density))


def truth(num_events: int = NUM_EVENTS) -> dict[str, float]:
    """Parameters that describe `make_data(num_events)`."""
    share = num_events / NUM_EVENTS
    return {name: value * share if name in YIELDS else value for name, value in TRUTH.items()}


def make_data(num_events: int = NUM_EVENTS, seed: int = 0) -> jax.Array:
    """Events drawn from the mixture."""
    rng = np.random.default_rng(seed)
    p = truth(num_events)
    num1, num2 = round(p["n1"]), round(p["n2"])
    uniform = rng.uniform(size=num_events - num1 - num2)
    background = np.log1p(uniform * np.expm1(p["lam"] * (HIGH - LOW))) / p["lam"] + LOW
    peaks = rng.normal(p["mu1"], p["s1"], num1), rng.normal(p["mu2"], p["s2"], num2)
    return jnp.asarray(np.clip(np.concatenate([*peaks, background]), LOW, HIGH))


# --- hoisted by hand: each is called with (p, x), only the named parameters may differ from `p`
# given here ------------


def hoisted_value_yield(p: Parameters, x: jax.Array) -> Function:
    """Value when only `n1` changes: the densities are computed once."""
    signal, rest, others = jax.jit(_signal_and_rest)(p, x)

    @jax.jit
    def value(n1: Any, signal: jax.Array, rest: jax.Array) -> jax.Array:
        return n1 + others - jnp.sum(jnp.log(n1 * signal + rest))

    return lambda q, _: value(q["n1"], signal, rest)


def hoisted_value_mean(p: Parameters, x: jax.Array) -> Function:
    """Value when only `mu1` changes: the other components are computed once."""
    _, rest, others = jax.jit(_signal_and_rest)(p, x)
    n1, s1 = p["n1"], p["s1"]

    @jax.jit
    def value(mu1: Any, x: jax.Array, rest: jax.Array) -> jax.Array:
        return n1 + others - jnp.sum(jnp.log(n1 * normal(x, mu1, s1) + rest))

    return lambda q, x: value(q["mu1"], x, rest)


def hoisted_gradient_yield(p: Parameters, x: jax.Array) -> Function:
    """Value and 8 derivatives when only `n1` changes: every derivative is a clean column against 1
    / density.
    """
    _, rest, others = jax.jit(_signal_and_rest)(p, x)
    columns = jax.jit(_signal_columns)(p["mu1"], p["s1"], x) | jax.jit(_rest_columns)(p, x)

    @jax.jit
    def value_and_gradient(
        n1: Any, rest: jax.Array, columns: Mapping[str, jax.Array]
    ) -> tuple[Any, Any]:
        density = n1 * columns["n1"] + rest
        sums = _dots(columns, 1.0 / density)
        return n1 + others - jnp.sum(jnp.log(density)), _gradient(sums, {"mu1": n1, "s1": n1})

    return lambda q, _: value_and_gradient(q["n1"], rest, columns)


def hoisted_gradient_mean(p: Parameters, x: jax.Array) -> Function:
    """Value and 8 derivatives when only `mu1` changes: 5 of the derivatives are clean columns."""
    _, rest, others = jax.jit(_signal_and_rest)(p, x)
    columns = jax.jit(_rest_columns)(p, x)
    n1, s1 = p["n1"], p["s1"]

    @jax.jit
    def value_and_gradient(
        mu1: Any, x: jax.Array, rest: jax.Array, columns: Mapping[str, jax.Array]
    ) -> tuple[Any, Any]:
        fresh = _signal_columns(mu1, s1, x)
        density = n1 * fresh["n1"] + rest
        inverse = 1.0 / density
        sums = {name: jnp.sum(column * inverse) for name, column in fresh.items()} | _dots(
            columns, inverse
        )
        return n1 + others - jnp.sum(jnp.log(density)), _gradient(sums, {"mu1": n1, "s1": n1})

    return lambda q, x: value_and_gradient(q["mu1"], x, rest, columns)


def closed_gradient_mean(p: Parameters, x: jax.Array) -> Function:
    """The same with the derivatives worked out on paper: three moments of the first component, one
    exponential.

    1 / density is held back from fusion, so that each of the eight sums reads it instead of
    computing it again.
    """
    _, rest, others = jax.jit(_signal_and_rest)(p, x)
    columns = jax.jit(_rest_columns)(p, x)
    n1, s1 = p["n1"], p["s1"]

    @jax.jit
    def value_and_gradient(
        mu1: Any, x: jax.Array, rest: jax.Array, columns: Mapping[str, jax.Array]
    ) -> tuple[Any, Any]:
        scale, (by_mean, by_width) = jax.value_and_grad(_log_scale, (0, 1))(mu1, s1)
        z = (x - mu1) / s1
        signal = jnp.exp(scale - 0.5 * z * z)
        signal, inverse = jax.lax.optimization_barrier((signal, 1.0 / (n1 * signal + rest)))
        weight = signal * inverse
        moments = [jnp.sum(weight), jnp.sum(weight * z), jnp.sum(weight * z * z)]
        sums = _dots(columns, inverse) | {"n1": moments[0]}
        # d log(signal) / d mean = z / s + d scale / d mean, d log(signal) / d width = z^2 / s + d
        # scale / d width
        sums["mu1"] = moments[1] / s1 + by_mean * moments[0]
        sums["s1"] = moments[2] / s1 + by_width * moments[0]
        return n1 + others + jnp.sum(jnp.log(inverse)), _gradient(sums, {"mu1": n1, "s1": n1})

    return lambda q, x: value_and_gradient(q["mu1"], x, rest, columns)


def _log_scale(mean: Any, width: Any) -> jax.Array:
    """log of a normal's density on the range at its mean."""
    return jnp.log(normal(mean, mean, width))


def _signal_and_rest(p: Parameters, x: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    rest = p["n2"] * normal(x, p["mu2"], p["s2"]) + p["nb"] * exponential(x, p["lam"])
    return normal(x, p["mu1"], p["s1"]), rest, p["n2"] + p["nb"]


def _signal_columns(mean: Any, width: Any, x: jax.Array) -> dict[str, jax.Array]:
    """The first component's density and its derivatives."""
    density, by_mean = jax.jvp(lambda m: normal(x, m, width), (mean,), (1.0,))
    _, by_width = jax.jvp(lambda s: normal(x, mean, s), (width,), (1.0,))
    return {"n1": density, "mu1": by_mean, "s1": by_width}


def _rest_columns(p: Parameters, x: jax.Array) -> dict[str, jax.Array]:
    """Derivatives of the density by the parameters of the other components."""
    rest = {name: p[name] for name in ("n2", "mu2", "s2", "nb", "lam")}

    def density(q: Parameters) -> jax.Array:
        return q["n2"] * normal(x, q["mu2"], q["s2"]) + q["nb"] * exponential(x, q["lam"])

    return {
        name: jax.jvp(lambda v, n=name: density({**rest, n: v}), (rest[name],), (1.0,))[1]
        for name in rest
    }


def _dots(columns: Mapping[str, jax.Array], weights: jax.Array) -> dict[str, jax.Array]:
    return {name: column @ weights for name, column in columns.items()}


def _gradient(sums: Mapping[str, Any], factors: Mapping[str, Any]) -> dict[str, Any]:
    """Derivatives of the likelihood: of the yields' sum, minus those of sum log density."""
    return {
        name: (1.0 if name in YIELDS else 0.0) - factors.get(name, 1.0) * sums[name]
        for name in NAMES
    }
