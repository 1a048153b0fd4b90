"""Random programs and random change sequences: equal to plain JAX, and no more equations than the
change reaches.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, check, check_calls, examples, same
from hypothesis import example, given
from hypothesis import strategies as st

import incrax
from properties.programs import START, Program, programs
from properties.timelines import arguments

seeds = st.integers(0, 10_000)


@examples(3 / 5)
@given(programs(), seeds)
@example(Program((("inverse", 0, 0), ("atan2", 0, 1), ("sign", 0, 0))), 7)
def test_values_equal_jit_and_only_reached_equations_run(program, seed):
    calls = arguments(START, seed, 10)
    ours, plain = incrax.incremental(program, tuning=MINIMAL), jax.jit(program)
    known = None
    for args in calls:
        before = ours.stats.as_dict()
        same(ours(*args), plain(*args))
        check(ours)
        ran = ours.stats.ran + ours.stats.filled - before["ran"] - before["filled"]
        if known:
            assert ran <= (0 if _same_bits(args, known) else _reached(program, args, known))
        known = args


@examples(1 / 2)
@given(programs(), seeds)
def test_cost_plans_equal_jit(program, seed):
    check_calls(program, arguments(START, seed, 10), tuning=EAGER)


SMOOTH = [
    "sin",
    "square",
    "tanh",
    "sum",
    "first",
    "jit",
    "remat",
    "scan",
    "add",
    "mul",
    "sub",
    "dot",
    "vmap",
    "set",
]


@examples(2 / 5)
@given(
    st.lists(
        st.tuples(st.sampled_from(SMOOTH), st.integers(0, 9), st.integers(0, 9)),
        min_size=2,
        max_size=6,
    ),
    seeds,
)
@pytest.mark.exhaustive
def test_gradients_and_hessian_products_equal_jit(operations, seed):
    program = Program(tuple(operations))

    def total(a, b, v, w):
        return sum(jnp.sum(jnp.tanh(x)) for x in program(a, b, v, w))

    def derivatives(a, b, v, w):
        grad = jax.grad(total, (0, 2))
        return grad(a, b, v, w), jax.jvp(lambda a: grad(a, b, v, w), (jnp.float64(a),), (1.0,))[1]

    calls = [args for args in arguments(START, seed, 8) if all(np.isfinite(x).all() for x in args)]
    ours, plain = incrax.incremental(derivatives, tuning=MINIMAL), jax.jit(derivatives)
    for args in calls:
        same(ours(*args), plain(*args), factor=1024)


def _same_bits(left, right):
    return all(
        np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(left, right, strict=True)
    )


def _reached(program, args, old):
    """Equations that the changed leaves reach, by an independent walk over the jaxpr with calls
    opened.
    """
    jaxpr = jax.make_jaxpr(program)(*args)
    dirty = {
        v for v, x, y in zip(jaxpr.jaxpr.invars, args, old, strict=True) if not _same_bits([x], [y])
    }
    return _walk(jaxpr.jaxpr, dirty)[0]


def _walk(jaxpr, dirty):
    count, dirty = 0, set(dirty)
    for eqn in jaxpr.eqns:
        touched = [v for v in eqn.invars if not hasattr(v, "val") and v in dirty]
        if not touched:
            continue
        inner = (
            eqn.params.get("jaxpr")
            if eqn.primitive.name in ("jit", "pjit", "checkpoint", "remat2")
            else None
        )
        if inner is None:
            count += 1
            dirty.update(eqn.outvars)
        else:
            inner = getattr(inner, "jaxpr", inner)
            pairs = zip(eqn.invars, inner.invars, strict=True)
            inside, reached = _walk(
                inner, {w for v, w in pairs if not hasattr(v, "val") and v in dirty}
            )
            count += inside
            outputs = zip(eqn.outvars, inner.outvars, strict=True)
            dirty.update(v for v, w in outputs if not hasattr(w, "val") and w in reached)
    return count, dirty
