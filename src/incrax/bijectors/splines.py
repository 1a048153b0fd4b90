"""Monotone rational splines on an interval, continued by the identity outside.

In: numbers, and for each one unconstrained parameters. Out: numbers and log-derivatives. Parameters of 0 give the
identity. Formulas are of one bin [x0, x1] -> [y0, y1] with slopes d0, d1 at its ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

MIN_SHARE = 1e-3
"""Of the interval, the least width and height of a bin."""
MIN_SLOPE = 1e-3
ONE = 0.5397424172369522
"""softplus(ONE) + MIN_SLOPE = 1, so that a parameter of 0 gives a slope of 1."""


class Bin(NamedTuple):
    """The bin of each number."""

    x0: Any
    y0: Any
    width: Any
    height: Any
    d0: Any
    d1: Any
    share: Any
    """Where the two pieces of a linear rational bin meet, as a share of its width."""


def knots(parameters: Any, bound: float) -> tuple[Any, Any]:
    """Positions of the ends of the bins in [-bound, bound], and their widths, from one parameter per bin."""
    num_bins = parameters.shape[-1]
    shares = MIN_SHARE + (1 - MIN_SHARE * num_bins) * jax.nn.softmax(parameters, axis=-1)
    widths = 2 * bound * shares
    starts = -bound + jnp.cumsum(widths, axis=-1) - widths
    return starts, widths


def find_bin(value: Any, parameters: Any, num_bins: int, bound: float, by: str) -> Bin:
    """The bin that a number lies in, by its x or its y; parameters are (widths, heights, slopes, shares)."""
    k = num_bins
    x, widths = knots(parameters[..., :k], bound)
    y, heights = knots(parameters[..., k : 2 * k], bound)
    inner = MIN_SLOPE + jax.nn.softplus(parameters[..., 2 * k : 3 * k - 1] + ONE)
    one = jnp.ones_like(inner[..., :1]) if k > 1 else jnp.ones((*parameters.shape[:-1], 1), parameters.dtype)
    slopes = jnp.concatenate([one, inner, one], axis=-1)
    shares = 0.025 + 0.95 * jax.nn.sigmoid(parameters[..., 3 * k - 1 :]) if parameters.shape[-1] > 3 * k - 1 else widths
    starts = x if by == "x" else y
    number = jnp.sum(value[..., None] >= starts[..., 1:], axis=-1, keepdims=True)
    here = lambda table: jnp.take_along_axis(table, number, axis=-1)[..., 0]
    return Bin(*map(here, (x, y, widths, heights, slopes[..., :-1], slopes[..., 1:], shares)))


# --- quadratic: Gregory and Delbourgo 1982 ----------------------------------------------------------------------------


def quadratic(x: Any, bin: Bin) -> tuple[Any, Any]:
    """With t = (x - x0)/width, s = height/width and D = s + (d0 + d1 - 2s) t(1-t).

    y = y0 + height (s t^2 + d0 t(1-t)) / D
    dy/dx = s^2 (d1 t^2 + 2 s t(1-t) + d0 (1-t)^2) / D^2.
    """
    s = bin.height / bin.width
    t = (x - bin.x0) / bin.width
    r = t * (1 - t)
    below = s + (bin.d0 + bin.d1 - 2 * s) * r
    y = bin.y0 + bin.height * (s * t**2 + bin.d0 * r) / below
    return y, s**2 * (bin.d1 * t**2 + 2 * s * r + bin.d0 * (1 - t) ** 2) / below**2


def inverse_quadratic(y: Any, bin: Bin) -> Any:
    """The root t in [0, 1] of a t^2 + b t + c = 0, in the form that does not cancel."""
    s = bin.height / bin.width
    up = y - bin.y0
    bent = up * (bin.d0 + bin.d1 - 2 * s)
    a, b, c = bin.height * (s - bin.d0) + bent, bin.height * bin.d0 - bent, -s * up
    return bin.x0 + bin.width * 2 * c / (-b - jnp.sqrt(jnp.maximum(b**2 - 4 * a * c, 0)))


# --- linear: Fuhr and Kallay 1992 -------------------------------------------------------------------------------------


class _Pieces(NamedTuple):
    w1: Any
    wm: Any
    ym: Any


def _pieces(bin: Bin) -> _Pieces:
    """The weights at the right end (that at the left is 1) and in the middle, and y in the middle.

    w1 = sqrt(d0/d1), ym = y0 + height q w1 / ((1-q) + q w1), wm = (q d0 + (1-q) w1 d1) width/height for a share q;
    then each piece has its slopes at the ends of the bin, and both have one slope where they meet.
    """
    q = bin.share
    w1 = jnp.sqrt(bin.d0 / bin.d1)
    wm = (q * bin.d0 + (1 - q) * w1 * bin.d1) * bin.width / bin.height
    return _Pieces(w1, wm, bin.y0 + bin.height * q * w1 / ((1 - q) + q * w1))


def linear(x: Any, bin: Bin) -> tuple[Any, Any]:
    """With t = (x - x0)/width and a share q, a weighted mean of the values at the ends of a piece.

    t <= q: y = ((q-t) y0 + wm t ym) / D, D = (q-t) + wm t; dy/dt = q wm (ym - y0) / D^2
    t >= q: y = (wm (1-t) ym + w1 (t-q) y1) / D, D = wm (1-t) + w1 (t-q); dy/dt = (1-q) wm w1 (y1 - ym) / D^2.
    """
    q, t = bin.share, (x - bin.x0) / bin.width
    w1, wm, ym = _pieces(bin)
    y1 = bin.y0 + bin.height
    is_left = t <= q
    left, right = jnp.where(is_left, q - t, wm * (1 - t)), jnp.where(is_left, wm * t, w1 * (t - q))
    below = left + right
    y = jnp.where(is_left, bin.y0 + (ym - bin.y0) * right / below, ym + (y1 - ym) * right / below)
    rise = jnp.where(is_left, q * wm * (ym - bin.y0), (1 - q) * wm * w1 * (y1 - ym))
    return y, rise / (below**2 * bin.width)


def inverse_linear(y: Any, bin: Bin) -> Any:
    """The t of each piece, which is a fraction of two functions linear in y.

    y <= ym: t = q (y - y0) / ((y - y0) + wm (ym - y))
    y >= ym: t = (wm (y - ym) + q w1 (y1 - y)) / (wm (y - ym) + w1 (y1 - y)).
    """
    q, y1 = bin.share, bin.y0 + bin.height
    w1, wm, ym = _pieces(bin)
    is_left = y <= ym
    above = jnp.where(is_left, q * (y - bin.y0), wm * (y - ym) + q * w1 * (y1 - y))
    below = jnp.where(is_left, (y - bin.y0) + wm * (ym - y), wm * (y - ym) + w1 * (y1 - y))
    return bin.x0 + bin.width * above / below
