"""Levenberg-Marquardt one batch at a time, for networks: more parameters than residuals in a batch.

In: a function of residuals, a pytree of parameters, batches. Out: parameters, and a state that
carries the damping. With k = min(m, n) the step is solved in a space of k: for m < n,
    (J J^T + damping) z = -r,  v = J^T z,  which is the minimiser of |r + J v|^2 + damping |v|^2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

from incrax import jacobian
from incrax._messages import wrong_option
from incrax._names import name_of
from incrax.derivatives.cuts import is_mark
from incrax.derivatives.selection import is_python_int
from incrax.derivatives.transforms import plain
from incrax.fit.linear import reduction_by
from incrax.fit.problem import ArgumentLayout, check_positive, laid_out, remembered, residual_vector
from incrax.fit.steps import FIRST_GROWTH, adapted

NAME = "LeastSquaresSteps"
LEAST = 1e-6
LEAST_FOR_FEW = 0.3
"""Least damping, for batches with at least as many residuals as parameters, and with fewer."""


class StepState(NamedTuple):
    """What one step leaves to the next. A pytree of scalars.

    Fields:
        damping: in units of the mean square of the k singular values of J.
        growth: by what a refused step multiplies the damping.
        cost: half the mean square of the residuals of the last batch, at the parameters that the
            step returned.
        is_taken: whether the last step lowered the cost of its batch; if not, the parameters are as
            before.
        num_steps: calls so far.
        num_taken: those that lowered the cost of their batch.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import fit
        >>> steps = fit.LeastSquaresSteps(lambda p, x: p - x)
        >>> p, state = steps.step(0.0, steps.init(0.0), jnp.ones(3))
        >>> bool(state.is_taken), int(state.num_steps), float(p) > 0
        (True, 1, True)
    """

    damping: Any
    growth: Any
    cost: Any
    is_taken: Any
    num_steps: Any
    num_taken: Any


class LeastSquaresSteps:
    """Steps of Levenberg and Marquardt for a loop over batches that the caller writes.

    Each step linearises the residuals of one batch, solves with the damping that the last step
    left, and takes the step if it lowers the cost of this batch; the damping follows how well the
    linear model predicted that. The same batch each time is the method over all data, one step a
    call.

    Args:
        residuals: function (params, *batch) -> a pytree of residuals, m elements in all; complex
            ones count as two.
        damping: the first one, in units of the mean square of the nonzero singular values of the
            Jacobian.
        least_damping: where it ends, in the same units. A batch with fewer residuals than
            parameters can be fitted exactly, and what earlier batches taught is then forgotten.
            None: 0.3 for such batches, else 1e-6.

    Raises:
        ValueError: a damping is not positive.
        SelectionError: at `init` or `step`, no parameter has a derivative.
        ParameterTypeError: at `init` or `step`, a parameter is complex.

    Cost: a step evaluates min(m, n) passes for the Jacobian of shape (m, n), its products in m n
        min(m, n), a solution in min(m, n)^3, and the residuals once more. Compiled once per type of
        batch: make all batches of one size. Memory: m n.

    Source: K. Levenberg (1944); H. Nielsen, Damping parameter in Marquardt's method (1999);
        request: the question about Levenberg-Marquardt for a Keras model, one call per batch on its
        variables.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import fit
        >>> steps = fit.LeastSquaresSteps(lambda p, x, y: p["a"] * x + p["b"] - y)
        >>> params = {"a": 0.0, "b": 0.0}
        >>> state = steps.init(params)
        >>> x = jnp.arange(4.0)
        >>> for _ in range(8):
        ...     params, state = steps.step(params, state, x, 1 + 2 * x)
        >>> round(float(params["a"]), 3), round(float(params["b"]), 3)
        (2.0, 1.0)
    """

    def __init__(
        self,
        residuals: Callable[..., Any],
        *,
        damping: float = 1.0,
        least_damping: float | None = None,
    ) -> None:
        if not callable(residuals):
            raise wrong_option(f"{NAME}(residuals)", residuals, "a function")
        for name, value in (("damping", damping), ("least_damping", least_damping)):
            if value is not None:
                check_positive(f"{NAME}({name}=...)", value)
        self.residuals: Callable[..., Any] = plain(residuals)
        self.damping: float = float(damping)
        self.least_damping: float | None = least_damping

    def init(self, params: Any) -> StepState:
        """The state before the first step, for parameters in any pytree: an Equinox module, a state
        of Flax NNX.
        """
        layout, _ = laid_out(NAME, self.residuals, (_as_floats(params),), None)
        number = lambda value: jnp.asarray(value, layout.dtype)
        count = jnp.zeros((), int)
        return StepState(
            number(self.damping),
            number(FIRST_GROWTH),
            number(jnp.inf),
            jnp.array(False),
            count,
            count,
        )

    def step(self, params: Any, state: StepState, *batch: Any) -> tuple[Any, StepState]:
        """One step on one batch.

        Args:
            params: where to start; integers of Python are floats, other leaves without a derivative
                (functions, arrays of integers, keys) stay as they are.
            state: of the last step, or `init`'s.
            *batch: further arguments of the function.

        Returns:
            The parameters, in the same structure, and the state.
        """
        layout, leaves = laid_out(NAME, self.residuals, (_as_floats(params), *batch), None)
        free = [leaves[number] for number in layout.numbers]
        others = [leaves[number] for number in layout.other_numbers]
        program = _programs(self.residuals, layout, self.least_damping)
        free, state = program(free, others, state)
        return layout.filled(free, others)[0], state

    def __repr__(self) -> str:
        """Of what."""
        return f"{NAME}({name_of(self.residuals)})"


def _as_floats(params: Any) -> Any:
    """Parameters with floats for integers of Python; arrays of integers are counters in the state
    of a network.
    """
    return jax.tree.map(
        lambda leaf: float(leaf) if is_python_int(leaf) else leaf, params, is_leaf=is_mark
    )


@remembered
def _programs(fun: Callable[..., Any], layout: ArgumentLayout, least: float | None) -> Any:
    @jax.jit
    def program(free, others, state: StepState) -> tuple[Any, StepState]:
        dtype = state.damping.dtype
        residuals = lambda x: residual_vector(fun(*layout.arguments(x, others)), dtype)
        vector = jnp.concatenate([jnp.ravel(jnp.asarray(each, dtype)) for each in free])
        x, state = _stepped(residuals, vector, state, least)
        return layout.free_leaves(x), state

    return program


def _stepped(
    fun: Callable[[Any], Any], x: Any, state: StepState, least: float | None
) -> tuple[Any, StepState]:
    """One step from a vector."""
    r = fun(x)
    matrix = jacobian(fun)(x)
    least = (LEAST_FOR_FEW if r.size < x.size else LEAST) if least is None else least
    step, moved = _solved(matrix, r, state.damping)
    trial = fun(x + step)
    old = 0.5 * jnp.mean(r**2)
    new = 0.5 * jnp.mean(trial**2)
    promised = reduction_by(moved, r) / r.size
    is_taken = new < old
    damping, growth = adapted(state.damping, state.growth, (old - new) / promised, is_taken)
    most = 1 / jnp.finfo(x.dtype).eps
    return jnp.where(is_taken, x + step, x), StepState(
        jnp.minimum(jnp.maximum(damping, least), most),
        jnp.minimum(growth, most).astype(x.dtype),
        jnp.where(is_taken, new, old),
        is_taken,
        state.num_steps + 1,
        state.num_taken + is_taken,
    )


def _solved(matrix: Any, residuals: Any, damping: Any) -> tuple[Any, Any]:
    """The minimiser v of |r + J v|^2 + damping s |v|^2 and J v, with s the mean square of k
    singular values.
    """
    m, n = matrix.shape
    gram = matrix @ matrix.T if m < n else matrix.T @ matrix
    k = gram.shape[0]
    size = jnp.trace(gram) / k
    floor = k * jnp.finfo(gram.dtype).eps  # below it a sum of squares is not positive definite
    damped = gram + jnp.maximum(damping, floor) * size * jnp.eye(k, dtype=gram.dtype)
    factor = cho_factor(damped)
    solve = lambda right: cho_solve(factor, right)
    step = -matrix.T @ solve(residuals) if m < n else -solve(matrix.T @ residuals)
    return step, matrix @ step
