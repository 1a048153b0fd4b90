"""Every function of the corpus under the same change sequences, with every planner, against plain JAX."""

from __future__ import annotations

import jax
import pytest
from helpers import EAGER, FAST, MINIMAL, check_calls

from properties.corpus import CORPUS
from properties.timelines import arguments


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize(("planner", "seed"), [("minimal", 0), ("minimal", 1), ("eager", 2), ("cost", 3)])
def test_results_equal_jit(name, planner, seed):
    fun, start = CORPUS[name]
    tuning = {"minimal": MINIMAL, "eager": EAGER, "cost": FAST}[planner]
    check_calls(fun, arguments(start, seed, 14), tuning=tuning)


DIFFERENTIABLE = [
    "arithmetic",
    "unpacked vector",
    "updated vector",
    "gather",
    "where",
    "jit twice",
    "custom_jvp",
    "custom_vjp",
    "remat",
    "stop_gradient",
    "cond",
    "scan",
    "nested scan",
    "vmap",
    "sum of many",
    "many sums",
]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("planner", ["minimal", "eager"])
def test_gradients_equal_jit_at_points_other_than_the_traced_one(name, planner):
    fun, start = CORPUS[name]

    def total(*args):
        return sum(jax.numpy.sum(jax.numpy.real(x)) for x in jax.tree.leaves(fun(*args)))

    wanted = tuple(i for i, x in enumerate(start) if not isinstance(x, int))
    tuning = {"minimal": MINIMAL, "eager": EAGER}[planner]
    check_calls(jax.value_and_grad(total, wanted), arguments(start, 5, 10), tuning=tuning)
