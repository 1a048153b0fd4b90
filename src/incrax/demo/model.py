"""Crossed effects: a delay is what comes with the plane, the airport and the airline, and noise with
heavy tails.

    delay_i = plane[p_i] + airport[a_i] + airline[c_i] + noise x t_i,      t_i ~ Student-t(2)
    plane_j ~ Normal(0, spread_plane), airport_k ~ Normal(0, spread_airport)
    airline_c ~ Normal(level, spread_airline), level ~ Normal(0, 30 min)

Noise and spreads are sampled as logarithms; those of the spreads have Normal(1, 1) as prior. The
level belongs to the airlines alone, so that a step of it reads 16 numbers, and no flights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax.demo.data import KINDS, Flights

TAIL = 2.0
"""Degrees of freedom of the noise: one flight in forty is off by more than six times its width."""

LEVEL_WIDTH = 30.0
NOISE = 15.0
SPREAD = 5.0

Parameters = Mapping[str, Any]


def log_density(p: Parameters, ids: Mapping[str, Any], delay: Any) -> jax.Array:
    """Logarithm of the posterior density, up to a constant.

    Args:
        p: "plane", "airport" and "airline", minutes, one number for each; "level", minutes;
            "noise", the logarithm of minutes; "spread", the same for each kind.
        ids: the plane, airport and airline of each flight, shape (n,).
        delay: minutes, shape (n,).
    """
    expected = (
        p["plane"][ids["plane"]] + p["airport"][ids["airport"]] + p["airline"][ids["airline"]]
    )
    z = (delay - expected) * jnp.exp(-p["noise"])
    density = -0.5 * (TAIL + 1) * jnp.sum(jnp.log1p(z * z / TAIL)) - delay.size * p["noise"]
    for kind in KINDS:
        center = p["level"] if kind == "airline" else 0.0
        spread = p["spread"][kind]
        z = (p[kind] - center) * jnp.exp(-spread)
        density = density - 0.5 * jnp.sum(z * z) - p[kind].size * spread
        density = density - 0.5 * (spread - 1.0) ** 2
    return density - 0.5 * (p["level"] / LEVEL_WIDTH) ** 2


def start(flights: Flights) -> dict[str, Any]:
    """Where a fit begins: no effects."""
    level = float(np.median(flights.delay))
    center = {"plane": 0.0, "airport": 0.0, "airline": level}
    effects = {kind: np.full(len(flights.names[kind]), center[kind]) for kind in KINDS}
    spread = dict.fromkeys(KINDS, np.log(SPREAD))
    return {**effects, "level": level, "noise": np.log(NOISE), "spread": spread}


def precisions(p: Parameters, flights: Flights) -> dict[str, np.ndarray]:
    """Expected information on each effect while all others stay, 1 / minutes^2.

    A flight tells (nu + 1) / (nu + 3) / noise^2 of each of its effects, the prior 1 / spread^2.
    """
    of_flight = (TAIL + 1) / (TAIL + 3) * np.exp(-2 * p["noise"])
    return {
        kind: flights.counts(kind) * of_flight + np.exp(-2 * p["spread"][kind]) for kind in KINDS
    }


def widths(p: Parameters, flights: Flights) -> dict[str, Any]:
    """Standard deviation, about, of each parameter while all others stay."""
    found: dict[str, Any] = {kind: x**-0.5 for kind, x in precisions(p, flights).items()}
    num_airlines = len(flights.names["airline"])
    # A log-scale of n normal numbers has information 2 n, of n Student-t numbers 2 n nu / (nu + 3).
    noise = (2 * flights.delay.size * TAIL / (TAIL + 3)) ** -0.5
    spread = {kind: (2 * len(flights.names[kind])) ** -0.5 for kind in KINDS}
    level = np.exp(p["spread"]["airline"]) * num_airlines**-0.5
    return {**found, "level": level, "noise": noise, "spread": spread}
