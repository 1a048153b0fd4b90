"""Plots of flows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import needed
from incrax.bijectors.distributions import Flow
from incrax.bijectors.messages import not_two_numbers


def plot(
    flow: Flow,
    *,
    data: Any = None,
    context: Any = None,
    num_samples: int = 500,
    num_grid: int = 80,
    key: Any = None,
    axes: Any = None,
) -> Any:
    """Draw samples of a flow of two numbers over its density.

    Args:
        flow: of the event shape (2,).
        data: array (n, 2) to draw as well, or None.
        context: one context, for a conditional flow.
        num_samples: samples drawn.
        num_grid: points of the density along each side.
        key: of the samples; None: `jax.random.key(0)`.
        axes: matplotlib axes; None: new ones.

    Returns:
        The axes; save them by `axes.figure.savefig(path)`.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FlowShapeError: an event is not two numbers, or the context has another shape.

    Cost: one forward pass, and one inverse for `num_grid**2` events.
    """
    if flow.event_shape != (2,) or flow.batch_shape:
        raise not_two_numbers(flow.batch_shape, flow.event_shape)
    pyplot = needed("matplotlib.pyplot", "bijectors.plot", "flows")
    axes = pyplot.figure().subplots() if axes is None else axes
    samples = np.asarray(flow.sample(jax.random.key(0) if key is None else key, (num_samples,), context))
    shown = samples if data is None else np.concatenate([samples, np.asarray(data)])
    grid = np.meshgrid(*(_side(column, num_grid) for column in shown.T))
    log_prob = flow.log_prob(jnp.stack([jnp.asarray(g) for g in grid], axis=-1), context)
    density = np.nan_to_num(np.exp(np.asarray(log_prob)))
    if density.max() > 0:
        axes.contourf(*grid, density, levels=density.max() * np.linspace(0.03, 1.0, 12), cmap="Blues")
    axes.plot(*samples.T, ".", ms=2, color="black", label="samples")
    if data is not None:
        axes.plot(*np.asarray(data).T, "x", ms=4, color="C3", label="data")
    axes.legend(frameon=False)
    return axes


def _side(x: np.ndarray, num_grid: int) -> np.ndarray:
    """Points over a range of values, outliers aside."""
    low, high = np.quantile(x[np.isfinite(x)], [0.005, 0.995])
    margin = 0.1 * (high - low)
    return np.linspace(low - margin, high + margin, num_grid)
