"""Invertible residual networks: y = x + g(x), with a network g whose Lipschitz constant is below 1.

In: weights. Out: a bijection. Invariant: whatever the weights, each layer is scaled by an upper bound of its spectral
norm, so that g is a contraction: the inverse exists, and is the limit of x <- y - g(x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from incrax.bijectors.bijection import Bijection, check_event, node, set_fields
from incrax.bijectors.messages import wrong_size
from incrax.bijectors.networks import evaluate, initial
from incrax.bijectors.protocol import Pass

NUM_SQUARINGS = 5
TINY = 1e-30
SERIES_KEY = 0
"""Of the random vectors of a series, where no key is given."""


def lipswish(x: Any) -> Any:
    """The function x sigmoid(x) / 1.1: smooth, and its slope is nowhere above 1. Chen et al. 2019, arXiv:1906.02735."""
    return x * jax.nn.sigmoid(x) / 1.1


def norm_bound(weight: Any) -> Any:
    """An upper bound of the spectral norm of a matrix with a smaller side n, too large by n^(1/128) at most.

    With A = W^T W and m = 2^NUM_SQUARINGS, ||W|| = ||A^m||^(1/2m) <= ||A^m||_F^(1/2m) <= n^(1/4m) ||W||.
    A is divided by its norm before each squaring, so that nothing overflows; the logarithms are added up. Matrix
    products only: no state, any number of derivatives.

    Source: Delattre, Barthelemy, Araujo and Allauzen 2023, arXiv:2305.16173.
    """
    power = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
    log_scale = 0.0
    for _ in range(NUM_SQUARINGS):
        norm = _frobenius(power)
        power = (power / norm) @ (power / norm)
        log_scale = 2 * (log_scale + jnp.log(norm))
    return jnp.exp((log_scale + jnp.log(_frobenius(power))) / 2 ** (NUM_SQUARINGS + 1))


def _frobenius(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(x**2) + TINY)


@node("weights", "biases")
class InvertibleResidual(Bijection):
    """y = x + g(x) with a dense network g that contracts: |g(x) - g(x')| <= lipschitz |x - x'|, whatever the weights.

    Args:
        key: of the weights.
        dim: of a vector.
        hidden: sizes of the hidden layers of g.
        lipschitz: bound of g's Lipschitz constant, between 0 and 1; each of n layers gets its n-th root.
        num_terms: None: exact log-determinants, from the Jacobian. A number: the power series of log det(1 + J), cut
            off after that many terms, with Hutchinson's estimator of the traces; `series_error` bounds what is cut off.
        num_probes: random vectors per event of the series.
        max_num_steps: of the iteration that inverts. An event that has not converged by then is NaN.
        activation: elementwise, with slopes between -1 and 1.

    Shapes: events (..., dim), log-determinants (...). The context of a series is a raw key, uint32 (as of
    `jax.random.key_data`), of which the random vectors are made; without one they are the same in every call. With
    exact log-determinants there is no context, and one that is given is ignored.

    Cost, of an event, where that of g is 1: output 1; exact log-determinant about dim + dim^3 operations, a series one
    per term and probe; inverse one per step, of which there are log(tolerance)/log(lipschitz) at most. Every pass
    bounds the norms of the weights once, five products of matrices of the smaller side of each. Derivatives of the
    inverse follow from the implicit function theorem: a linear system of size dim, or for a series Neumann's series.

    Numerics: the inverse iterates until lipschitz/(1 - lipschitz) times the last step, which bounds the error, is below
    32 eps times 1 + |x| + |y| + the norms of the biases, or the step is down at the rounding of numbers of that size.

    Source: Behrmann et al. 2019, arXiv:1811.00995; Chen et al. 2019, arXiv:1906.02735.

    Raises:
        BijectionArgumentError: an option is out of its range.
    """

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    lipschitz: float
    num_terms: int | None
    num_probes: int
    max_num_steps: int
    activation: Callable[[Any], Any]

    def __init__(
        self,
        key: Any,
        *,
        dim: int,
        hidden: Sequence[int] = (32, 32),
        lipschitz: float = 0.9,
        num_terms: int | None = None,
        num_probes: int = 1,
        max_num_steps: int = 1000,
        activation: Callable[[Any], Any] = lipswish,
    ) -> None:
        _check_options(lipschitz, {"num_terms": num_terms, "num_probes": num_probes, "max_num_steps": max_num_steps})
        weights, biases = initial("InvertibleResidual", key, (dim, *hidden, dim), 1.0)
        set_fields(self, shape=(dim,), cond_shape=None, weights=weights, biases=biases, lipschitz=float(lipschitz))
        set_fields(self, num_terms=num_terms, num_probes=num_probes, max_num_steps=max_num_steps, activation=activation)

    def forward(self, x: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`."""
        x = check_event(self, x)
        weights = self.scaled_weights()
        y = x + self._g(weights, x)
        return Pass(y, self._ladj(weights, x, context) if requires_ladj else None, None)

    def inverse(self, y: Any, context: Any = None, *, requires_ladj: bool = True) -> Pass:
        """See `Bijection`; NaN where the iteration has not converged."""
        y = check_event(self, y)
        weights = self.scaled_weights()
        x = jnp.vectorize(lambda y: self._solve(weights, y), signature="(d)->(d)")(y)
        return Pass(x, -self._ladj(weights, x, context) if requires_ladj else None, None)

    def ladj(self, x: Any, y: Any, context: Any = None, intermediates: Any = None) -> Any:
        """See `Bijection`."""
        return self._ladj(self.scaled_weights(), check_event(self, x), context)

    @property
    def series_error(self) -> float:
        """What the terms that are cut off sum up to at most, in any event; 0 if the log-determinant is exact.

        |sum of (-1)^(k+1) tr(J^k)/k over k > n| <= dim c^(n+1) / ((n+1) (1-c)), with c the Lipschitz constant.
        """
        if self.num_terms is None:
            return 0.0
        c, k = self.lipschitz, self.num_terms + 1
        return self.shape[0] * c**k / (k * (1 - c))

    def scaled_weights(self) -> tuple[Any, ...]:
        """The weights as g uses them: divided by the bound of their norm where that is above lipschitz^(1/n)."""
        share = self.lipschitz ** (1 / len(self.weights))
        return tuple(weight * jnp.minimum(1, share / norm_bound(weight)) for weight in self.weights)

    def _g(self, weights: Sequence[Any], x: Any) -> Any:
        return evaluate(weights, self.biases, self.activation, x)

    def _ladj(self, weights: Sequence[Any], x: Any, context: Any) -> Any:
        if self.num_terms is not None:
            return self._series(weights, x, context)
        jacobian = jnp.vectorize(jax.jacfwd(lambda x: self._g(weights, x)), signature="(d)->(d,d)")(x)
        return jnp.linalg.slogdet(jnp.eye(self.shape[0], dtype=x.dtype) + jacobian)[1]

    def _series(self, weights: Sequence[Any], x: Any, key: Any) -> Any:
        """The sum of (-1)^(k+1) tr(J^k)/k, with tr(J^k) the mean of v^T J^k v over vectors v of random signs."""
        key = jax.random.wrap_key_data(jnp.asarray(key)) if _is_raw(key) else key
        key = jax.random.key(SERIES_KEY) if key is None else key
        probes = jax.random.rademacher(key, (self.num_probes, *x.shape), x.dtype)
        apply_jacobian = jax.linearize(lambda x: self._g(weights, x), x)[1]

        def term(power: Any, k: Any) -> tuple[Any, Any]:
            power = jax.vmap(apply_jacobian)(power)
            trace = jnp.mean(jnp.sum(power * probes, axis=-1), axis=0)
            return power, trace * jnp.where(k % 2, 1, -1).astype(x.dtype) / k

        orders = jnp.arange(1, (self.num_terms or 0) + 1)
        return jnp.sum(jax.lax.scan(term, probes, orders)[1], axis=0)

    def _solve(self, weights: Sequence[Any], y: Any) -> Any:
        """The x with x + g(x) = y, of one event, with derivatives from (1 + J) dx = dy."""
        step = lambda x: y - self._g(weights, x)
        size = sum(jnp.linalg.norm(jax.lax.stop_gradient(each)) for each in (y, *self.biases))
        iterate = lambda _, x: self._iterate(step, x, size)
        return jax.lax.custom_root(lambda x: x - step(x), y, iterate, self._solve_linear)

    def _iterate(self, step: Callable[[Any], Any], x: Any, size: Any) -> Any:
        """|x - last| c/(1-c) bounds the error; steps do not shrink below the rounding of numbers of that size."""
        eps = jnp.finfo(x.dtype).eps
        enough = eps * max(32 * (1 - self.lipschitz) / self.lipschitz, 4.0)

        def is_close(x: Any, last: Any) -> Any:
            return jnp.linalg.norm(x - last) <= enough * (1 + size + jnp.linalg.norm(x))

        def is_far(state: tuple[Any, Any, Any]) -> Any:
            number, x, last = state
            return (number < self.max_num_steps) & ~is_close(x, last) & ~jnp.isnan(x).any()

        _, x, last = jax.lax.while_loop(is_far, lambda s: (s[0] + 1, step(s[1]), s[1]), (1, step(x), x))
        return jnp.where(is_close(x, last), x, jnp.nan)

    def _solve_linear(self, f: Callable[[Any], Any], b: Any) -> Any:
        """The t with t + J t = b, where f(t) = t + J t: exactly, or as b - J b + J^2 b - ... to the precision of b."""
        if self.num_terms is None:
            return jnp.linalg.solve(jax.jacfwd(f)(b), b)
        num_steps = math.ceil(math.log(float(jnp.finfo(b.dtype).eps)) / math.log(self.lipschitz))
        return jax.lax.scan(lambda t, _: (b + t - f(t), None), b, length=num_steps)[0]


def _is_raw(key: Any) -> bool:
    return key is not None and not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def _check_options(lipschitz: float, numbers: dict[str, int | None]) -> None:
    if not 0 < lipschitz < 1:
        raise wrong_size("InvertibleResidual", "lipschitz", lipschitz, "between 0 and 1")
    for option, number in numbers.items():
        if number is not None and not (isinstance(number, int) and number > 0):
            raise wrong_size("InvertibleResidual", option, number, "a positive number")
