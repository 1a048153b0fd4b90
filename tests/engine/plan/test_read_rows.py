"""Of what is read in part, the part is made: the same results, by fewer elements."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples, same
from hypothesis import given
from hypothesis import strategies as st

from incrax import _jax
from incrax._program import trace
from incrax.engine.program.simplify import drop_dead, inline
from incrax.engine.rewrites import read_rows
from incrax.engine.rewrites.read_rows import make_read_rows

X = np.random.default_rng(0).normal(size=(9, 6))

STEPS = {
    "sine": lambda y, d: jnp.sin(y),
    "other axis": lambda y, d: jnp.cumsum(y, axis=1 - d),
    "along": lambda y, d: jnp.cumsum(y, axis=d),
    "joined": lambda y, d: jnp.concatenate([y, 2.0 * y[:, ::-1], y], axis=d),
    "apart": lambda y, d: jax.lax.pad(y, 0.5, [(1, -1, 1), (0, 2, 0)][:: 1 - 2 * d]),
    "cut": lambda y, d: jax.lax.pad(y, 0.25, [(-1, -2, 0), (0, 0, 0)][:: 1 - 2 * d]),
    "turned": lambda y, d: jnp.flip(y, (d,)),
    "both turned": lambda y, d: jnp.flip(y, (0, 1)),
    "every other": lambda y, d: y[::2] if d == 0 else y[:, 1::2],
    "both cut": lambda y, d: y[1:, 1:],
    "transposed": lambda y, d: y.T,
    "product": lambda y, d: y @ jnp.cos(jnp.arange(y.shape[1] * 6.0)).reshape(-1, 6),
    "spread": lambda y, d: y + jnp.ones((1, y.shape[1])),
}

ENDS = {
    "last row": lambda y: y[-1],
    "last column": lambda y: y[:, -1:],
    "corner": lambda y: y[-1:, 1:2],
    "some": lambda y: (y[1:3], y[2:4].sum()),
    "both": lambda y: (y[:1], y[:, :1]),
    "far apart": lambda y: y[0] - y[-1],
    "all": lambda y: (y, y[0]),
}


def value(program, *args):
    env = dict(zip(program.invars, args, strict=True))
    env.update(zip(program.constvars, program.consts, strict=True))
    _jax.evaluate(program.eqns, env)
    return [jnp.asarray(_jax.read(atom, env)) for atom in program.outvars]


def num_made(program):
    return sum(math.prod(var.aval.shape) for eqn in program.eqns for var in eqn.outvars)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 1)), max_size=6),
    st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=2, unique=True),
)
@examples(3)
def test_results_are_the_same(steps, ends):
    def fun(y):
        for name, axis in steps:
            if min(y.shape) > 3:
                y = STEPS[name](y, axis)
        return [ENDS[end](y) for end in ends]

    check_narrowed(fun)


def check_narrowed(fun):
    program = drop_dead(inline(trace(fun, X)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_rows, "MIN_SIZE", 0)
        narrowed = drop_dead(make_read_rows(program))
    same(value(narrowed, X), value(program, X))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_along_either_axis_is_read_in_part_along_each(name, axis):
    """Arrays that are joined along columns are read along rows, too."""
    check_narrowed(lambda y: [ENDS[end](STEPS[name](y, axis)) for end in ("last row", "some")])
    check_narrowed(lambda y: ENDS["last column"](STEPS[name](y, axis)))


@pytest.mark.parametrize("num", [4096, 5001])
def test_the_way_down_a_tree_that_is_read_at_its_end_is_left_out(num):
    def last(x, y):
        join = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        return jax.lax.associative_scan(join, (x, y))[1][-1]

    x, y = np.linspace(0.9, 1.1, num), np.linspace(-1.0, 1.0, num)
    program = drop_dead(inline(trace(last, x, y)))
    narrowed = drop_dead(make_read_rows(program))
    same(value(narrowed, x, y), value(program, x, y))
    of = lambda name: [eqn for eqn in narrowed.eqns if eqn.primitive.name == name]
    assert sum(math.prod(eqn.outvars[0].aval.shape) for eqn in of("mul")) < 2.1 * num
    assert num_made(narrowed) < 0.6 * num_made(program)


def test_small_programs_stay_as_they_are():
    program = inline(trace(lambda x: jnp.sin(x)[0], np.ones(100)))
    assert make_read_rows(program) is program
