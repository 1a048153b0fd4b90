"""What FlowTorch has and FlowJAX lacks, as subclasses of FlowJAX: ELU, LeakyReLU and linear
rational splines.

A chain of them, with a memory: the samples of a flow are scored without an inverse. Quadratic
rational splines are FlowJAX's `RationalQuadraticSpline`, conditioners its `Coupling` and
`MaskedAutoregressive`, for which these are transformers like any other.

Run: python examples/flowtorch_bijections.py
"""

from __future__ import annotations

from typing import Any

import flowjax.bijections as fb
import jax
import jax.numpy as jnp
import numpy as np

from incrax import bijectors


class LeakyReLU(fb.AbstractBijection):
    """y = x for x > 0, slope * x otherwise, in each element."""

    slope: float
    shape: tuple[int, ...] = ()
    cond_shape: tuple[int, ...] | None = None

    def transform_and_log_det(self, x: Any, condition: Any = None) -> tuple[Any, Any]:
        slope = jnp.where(x > 0, 1.0, self.slope)
        return slope * x, jnp.log(slope).sum()

    def inverse_and_log_det(self, y: Any, condition: Any = None) -> tuple[Any, Any]:
        slope = jnp.where(y > 0, 1.0, self.slope)
        return y / slope, -jnp.log(slope).sum()


class ELU(fb.AbstractBijection):
    """y = x for x > 0, exp(x) - 1 otherwise, in each element."""

    shape: tuple[int, ...] = ()
    cond_shape: tuple[int, ...] | None = None

    def transform_and_log_det(self, x: Any, condition: Any = None) -> tuple[Any, Any]:
        below = jnp.minimum(x, 0)
        return jnp.where(x > 0, x, jnp.expm1(below)), below.sum()

    def inverse_and_log_det(self, y: Any, condition: Any = None) -> tuple[Any, Any]:
        below = jnp.log1p(jnp.minimum(y, 0))
        return jnp.where(y > 0, y, below), -below.sum()


class RationalLinearSpline(fb.RationalQuadraticSpline):
    """Two fractions of linear functions per bin (Fuhr and Kallay 1992), which meet in the middle of
    the bin.

    With t = (x - x0)/width: y = ((1-2t) y0 + 2t wm ym) / ((1-2t) + 2t wm) for t <= 1/2, and
    likewise beyond it with the weights wm and w1, chosen so that the slopes at the ends of the bin
    are d0 and d1 and there is one in the middle.
    """

    def transform_and_log_det(self, x: Any, condition: Any = None) -> tuple[Any, Any]:
        x0, y0, width, height, w1, wm, ym = self._bin(x, self.x_pos)
        t, y1 = (x - x0) / width, y0 + height
        is_left = t <= 0.5
        near, far = (
            jnp.where(is_left, 0.5 - t, wm * (1 - t)),
            jnp.where(is_left, wm * t, w1 * (t - 0.5)),
        )
        start, end = jnp.where(is_left, y0, ym), jnp.where(is_left, ym, y1)
        slope = 0.5 * wm * jnp.where(is_left, 1, w1) * (end - start) / ((near + far) ** 2 * width)
        is_inside = self._is_inside(x)
        y = start + (end - start) * far / (near + far)
        return jnp.where(is_inside, y, x), jnp.log(jnp.where(is_inside, slope, 1.0))

    def inverse_and_log_det(self, y: Any, condition: Any = None) -> tuple[Any, Any]:
        x0, y0, width, height, w1, wm, ym = self._bin(y, self.y_pos)
        y1, is_left = y0 + height, y <= ym
        above = jnp.where(is_left, 0.5 * (y - y0), wm * (y - ym) + 0.5 * w1 * (y1 - y))
        below = jnp.where(is_left, (y - y0) + wm * (ym - y), wm * (y - ym) + w1 * (y1 - y))
        x = jnp.where(self._is_inside(y), x0 + width * above / below, y)
        return x, -self.transform_and_log_det(x)[1]

    def _is_inside(self, value: Any) -> Any:
        return (value >= self.interval[0]) & (value <= self.interval[1])

    def _bin(self, value: Any, knots: Any) -> tuple[Any, ...]:
        k = jnp.clip(jnp.searchsorted(knots, value) - 1, 0, len(knots) - 2)
        width, height = self.x_pos[k + 1] - self.x_pos[k], self.y_pos[k + 1] - self.y_pos[k]
        d0, d1 = self.derivatives[k], self.derivatives[k + 1]
        w1 = jnp.sqrt(d0 / d1)
        wm = 0.5 * (d0 + w1 * d1) * width / height
        return (
            self.x_pos[k],
            self.y_pos[k],
            width,
            height,
            w1,
            wm,
            self.y_pos[k] + height * w1 / (1 + w1),
        )


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    spline = RationalLinearSpline(knots=5, interval=4)
    coupling = fb.Coupling(
        jax.random.key(0), transformer=spline, untransformed_dim=1, dim=3, nn_width=16, nn_depth=1
    )
    chain = fb.Chain([coupling, fb.Flip((3,)), LeakyReLU(0.3, (3,)), ELU((3,))])
    flow = bijectors.remember(chain)
    x = jax.random.normal(jax.random.key(1), (1000, 3))
    y = flow.forward(x)

    def log_prob(y: Any) -> Any:
        x, ladj = flow.inverse_and_log_det(y)
        return jax.scipy.stats.norm.logpdf(x).sum(axis=1) + ladj

    remembered, recomputed = log_prob(y), log_prob(jnp.array(y))
    np.testing.assert_allclose(remembered, recomputed, rtol=1e-8)
    jacobian = jax.vmap(jax.jacfwd(chain.transform))(x[:10])
    exact = jnp.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(flow.log_abs_det_jacobian(x, y)[:10], exact, rtol=1e-8)
    print(
        f"log-densities of {len(y)} own samples, without an inverse: mean {remembered.mean():.3f}"
    )


if __name__ == "__main__":
    main()
