"""Seed 002, facebookincubator/flowtorch pull request 89 (https://github.com/facebookincubator/flowtorch/pull/89).

Memory of a bijector's outputs is issue 6. Today's engine already serves what the thread asks of the conditioner: in one
function it is evaluated once for the output and the log-determinant, and it is kept across calls.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from helpers import MINIMAL, check_calls, primitives_run

import incrax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
NET = {"w": RNG.normal(size=(2, 4)), "b": RNG.normal(size=4)}


def params(net, x):
    """The conditioner: shift and log-scale of the second half from the first; `tanh` stands here only."""
    return jnp.split(jnp.tanh(x[:, :2] @ net["w"] + net["b"]), 2, axis=1)


def forward(net, x):
    shift, log_scale = params(net, x)
    return jnp.concatenate([x[:, :2], x[:, 2:] * jnp.exp(log_scale) + shift], axis=1)


def log_abs_det_jacobian(net, x):
    _, log_scale = params(net, x)
    return jnp.sum(log_scale, axis=1)


def test_output_and_log_determinant_share_one_evaluation_of_the_conditioner():
    f = incrax.incremental(lambda net, x: (forward(net, x), log_abs_det_jacobian(net, x)), tuning=MINIMAL)
    f(NET, X)
    assert primitives_run(f).count("tanh") == 1


def test_a_log_determinant_that_nobody_asks_for_is_not_computed():
    def flow(net, x, requires_ladj):
        y, ladj = forward(net, x), log_abs_det_jacobian(net, x)
        return (y, ladj) if requires_ladj == "yes" else y

    f = incrax.incremental(flow, tuning=MINIMAL)
    f(NET, X, "yes")
    assert "reduce_sum" in primitives_run(f)
    f(NET, X, "no")
    assert "reduce_sum" not in primitives_run(f)


def test_a_frozen_flow_is_left_alone_while_its_base_distribution_changes():
    def log_density(base, net, x):
        z = forward(net, x)
        return jnp.sum(-0.5 * ((z - base["mean"]) / base["scale"]) ** 2 - jnp.log(base["scale"])) + jnp.sum(
            log_abs_det_jacobian(net, x)
        )

    gradient = jax.value_and_grad(log_density)
    calls = [({"mean": m, "scale": s}, NET, X) for m, s in [(0.0, 1.0), (0.5, 1.0), (0.5, 2.0), (0.1, 3.0)]]
    f = check_calls(gradient, calls, tuning=MINIMAL)
    assert not {"tanh", "exp", "dot_general"} & set(primitives_run(f))


def test_a_kept_log_determinant_is_stale_after_a_step_of_the_parameters():
    nets = [jax.tree.map(lambda w, k=k: w * (1 + 0.1 * k), NET) for k in range(3)]
    f = check_calls(log_abs_det_jacobian, [(net, x) for net in nets for x in (X, X + 1)], tuning=MINIMAL)
    assert f.stats.unchanged == 0
