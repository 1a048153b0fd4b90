"""Every function of the corpus under sequences of changes, against plain JAX: minimal plans; others
by turns.
"""

from __future__ import annotations

import itertools

import jax
import pytest
from helpers import EAGER, FAST, MINIMAL, check_calls

from properties.corpus import CORPUS
from properties.timelines import arguments

pytestmark = pytest.mark.optimized

TUNINGS = {"minimal": MINIMAL, "eager": EAGER, "cost": FAST}


def by_turns(names, planners):
    return list(zip(names, itertools.cycle(planners)))  # noqa: B905


@pytest.mark.parametrize(
    ("name", "planner"), [*by_turns(CORPUS, ["minimal"]), *by_turns(CORPUS, ["eager", "cost"])]
)
def test_results_equal_jit(name, planner):
    fun, start = CORPUS[name]
    check_calls(fun, arguments(start, list(TUNINGS).index(planner), 14), tuning=TUNINGS[planner])


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


@pytest.mark.parametrize(("name", "planner"), by_turns(DIFFERENTIABLE, ["minimal", "eager"]))
def test_gradients_equal_jit_at_points_other_than_the_traced_one(name, planner):
    fun, start = CORPUS[name]

    def total(*args):
        return sum(jax.numpy.sum(jax.numpy.real(x)) for x in jax.tree.leaves(fun(*args)))

    wanted = tuple(i for i, x in enumerate(start) if not isinstance(x, int))
    # Of many sums, numbers of ten cancel to some 1e-3, and a plan adds them in another order.
    factor = 1024.0 if name == "many sums" else 64.0
    check_calls(
        jax.value_and_grad(total, wanted),
        arguments(start, 5, 10),
        tuning=TUNINGS[planner],
        factor=factor,
    )
