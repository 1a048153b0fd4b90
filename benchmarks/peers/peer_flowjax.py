"""The log-density of a sample in FlowJAX, which evaluates the inverse: `log_prob(forward(x))` in
one `jax.jit`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flowjax.bijections as fb
import flowjax.distributions as fd
import flowjax.flows as ff
import jax
import jax.numpy as jnp
import numpy as np
from paramax import unwrap
from serving import Case, serve

jax.config.update("jax_enable_x64", True)


def bijection_of(name: str, data: Any) -> Any:
    """The flow, from the key that ours takes, too."""
    given = {
        "base_dist": fd.Normal(jnp.zeros(int(data["dim"]))),
        "flow_layers": int(data["layers"]),
    }
    given |= {"nn_width": int(data["width"]), "invert": False}
    key = jax.random.key(0)
    if name == "inverse autoregressive":
        return ff.masked_autoregressive_flow(key, **given).bijection
    return ff.coupling_flow(
        key, transformer=fb.RationalQuadraticSpline(knots=8, interval=4), **given
    ).bijection


def split(bijection: Any) -> tuple[list[Any], Any]:
    """The arrays of a bijection, and how to put arrays in their places."""
    leaves, treedef = jax.tree.flatten(bijection)
    is_array = [isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]

    def merged(arrays: Any) -> Any:
        rest = iter(arrays)
        return jax.tree.unflatten(
            treedef, [next(rest) if f else x for x, f in zip(leaves, is_array, strict=True)]
        )

    return [x for x, flag in zip(leaves, is_array, strict=True) if flag], merged


def flow(name: str, *, with_gradient: bool) -> Any:
    """Sum of log q(y) of samples y, and its gradient."""

    def make(folder: Path) -> Case:
        data = np.load(folder / "flow.npz")
        arrays, merged = split(bijection_of(name, data))
        batches = jnp.asarray(data["xs"])

        def log_density(arrays: Any, xs: Any) -> Any:
            b = unwrap(merged(arrays))
            ys = jax.vmap(b.transform)(xs)
            us, ladj = jax.vmap(b.inverse_and_log_det)(ys)
            return jnp.sum(-0.5 * jnp.sum(us**2, axis=-1) + ladj) + jnp.sum(ys)

        compiled = jax.jit(jax.value_and_grad(log_density) if with_gradient else log_density)
        return Case(
            lambda number: jax.block_until_ready(compiled(arrays, batches[number % len(batches)])),
            figures,
        )

    return make


def figures(result: Any) -> list[float]:
    """The value, and the sums of squares of the derivatives by each array."""
    value, *gradients = jax.tree.leaves(result)
    return [float(value), *(float(jnp.sum(each**2)) for each in gradients)]


if __name__ == "__main__":
    serve(
        {
            f"{name} flow, {'value and gradient' if with_gradient else 'value'}": flow(
                name, with_gradient=with_gradient
            )
            for name in ("inverse autoregressive", "spline coupling")
            for with_gradient in (False, True)
        },
        ["flowjax", "jax", "numpy"],
    )
