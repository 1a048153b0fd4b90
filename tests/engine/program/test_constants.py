"""What NumPy folds has the bits that XLA computes; what NumPy cannot compute exactly is left to
XLA.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax
from incrax._program import trace
from incrax.engine.program.constants import MAX_SIZE, known_values
from incrax.engine.program.simplify import inline
from incrax.primitives.table import TABLE

lax = jax.lax
RNG = np.random.default_rng(5)
INTS = (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64)
FLOATS = (np.float32, np.float64)


def extreme(dtype, size=12):
    """Random values among the largest, the smallest and the special ones of a dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return RNG.random(size) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        pool = [info.min, info.max, info.max - 1, 0, 1, 7, info.max // 3, info.min // 3]
        return np.array([pool[k] for k in RNG.integers(0, len(pool), size)], dtype)
    info = np.finfo(dtype)
    pool = [
        0.0,
        -0.0,
        1 / 3,
        -np.pi,
        np.inf,
        -np.inf,
        np.nan,
        info.max,
        1e30,
        -1e-20,
        2.0**40 + 1,
        0.1,
    ]
    return np.array([pool[k] for k in RNG.permutation(len(pool))], dtype)[:size]


def constant_program(fun, args):
    """The program of a function whose arguments are constants."""
    leaves, tree = jax.tree.flatten(args)
    program = inline(
        trace(lambda *xs: jax.tree.leaves(fun(*jax.tree.unflatten(tree, xs))), *leaves)
    )
    return replace(
        program,
        invars=(),
        constvars=(*program.invars, *program.constvars),
        consts=(*leaves, *program.consts),
    )


def outputs_known(fun, *args):
    """The folded outputs of a function of constants; None where one is left to XLA."""
    program = constant_program(fun, args)
    known = known_values(program)
    return [np.asarray(a.val) if hasattr(a, "val") else known.get(a) for a in program.outvars]


def canonical(x):
    """Bytes with one NaN for all."""
    x = np.asarray(x)
    return (
        np.where(np.isnan(x), np.nan, x).astype(x.dtype) if x.dtype.kind == "f" else x
    ).tobytes()


def check_exact(fun, *args):
    """Every output is folded, to the type and bits that XLA computes from arguments."""
    on_device = jax.tree.map(jnp.asarray, args)
    for value, expected in zip(
        outputs_known(fun, *args), jax.tree.leaves(jax.jit(fun)(*on_device)), strict=True
    ):
        assert value is not None
        assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
        assert canonical(value) == canonical(expected)


NUMBERS = [(extreme(dtype), extreme(dtype)) for dtype in (*INTS, *FLOATS)]
INTEGERS = [(x, y) for x, y in NUMBERS if x.dtype.kind in "iu"]
BOOLS = (extreme(bool), extreme(bool))
M = np.arange(12, dtype=np.int32).reshape(3, 4)
A, B = np.float64([[0.1, -0.0], [np.inf, 3.0]]), np.float64([[1.0, 2.0], [5.0, 6.0]])


def on_pairs(*ops):
    return lambda pairs: [op(x, y) for x, y in pairs for op in ops]


def conversions(arrays):
    return [
        lax.convert_element_type(x, new)
        for x in arrays
        for new in (bool, *INTS, *FLOATS)
        if not (x.dtype.kind == "f" and np.dtype(new).kind in "iu")
    ]


def resharded(x):
    """The scalar on every device of a mesh whose axes are part of types."""
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


EXACT = {
    "reshard": (resharded, 2.0),
    "add sub mul": (on_pairs(lax.add, lax.sub, lax.mul), NUMBERS),
    "neg": (on_pairs(lambda x, _: lax.neg(x)), INTEGERS),
    "eq ne lt le gt ge": (
        on_pairs(lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge),
        [*NUMBERS, BOOLS],
    ),
    "and or not": (
        on_pairs(lax.bitwise_and, lax.bitwise_or, lambda x, _: lax.bitwise_not(x)),
        [*INTEGERS, BOOLS],
    ),
    "max min": (on_pairs(lax.max, lax.min), [*INTEGERS, BOOLS]),
    "clamp": (
        on_pairs(lambda x, y: lax.clamp(y[0], x, y[1]), lambda x, y: lax.clamp(y, x, y)),
        INTEGERS,
    ),
    "convert_element_type": (conversions, [*(x for x, _ in NUMBERS), BOOLS[0]]),
    "iota": (
        lambda: [
            lax.broadcasted_iota(d, (3, 4), axis) for d in (*INTS, *FLOATS) for axis in (0, 1)
        ],
    ),
    "iota that wraps around": (lambda: (lax.iota(jnp.int8, 300), lax.iota(jnp.uint8, 300)),),
    "broadcast_in_dim": (
        lambda a, s: (
            lax.broadcast_in_dim(a, (2, 3, 2), (0, 2)),
            lax.broadcast_in_dim(s, (3,), ()),
            lax.broadcast_in_dim(a[:1], (4, 2), (0, 1)),
        ),
        A,
        np.float32(-0.0),
    ),
    "select_n": (
        lambda w, n, a, b: (
            lax.select_n(w, a, b),
            lax.select_n(w[0, 0], a, b),
            lax.select_n(n, *(a.reshape(4) * k for k in (1, 10, 100))),
            lax.select_n(n[1], *(a * k for k in (1, 10, 100))),
        ),
        A > 1,
        np.int32([0, 2, 1, 2]),
        A,
        B,
    ),
    "slice": (lambda m: (lax.slice(m, (0, 1), (3, 4), (2, 2)), lax.slice(m, (1, 0), (3, 2))), M),
    "reshape": (
        lambda m, s: (m.reshape(2, 6), m[:1, :1].reshape(()), s.reshape(1, 1)),
        M,
        np.float32(1),
    ),
    "squeeze": (lambda m: lax.squeeze(lax.expand_dims(m, (0, 3)), (0, 3)), M),
    "transpose": (lambda m: (lax.transpose(m[None], (2, 0, 1)), m.T + 1), M),
    "rev": (lambda m, a: (lax.rev(m, (0,)), lax.rev(a, (0, 1))), M, A),
    "concatenate": (lambda m: (lax.concatenate([m, m[:, :1]], 1), lax.concatenate([m, m], 0)), M),
    "copies": (lambda a: (jnp.array(a, copy=True), lax.stop_gradient(a) + 1), A),
    "reduce_sum": (
        on_pairs(lambda x, _: lax.reduce_sum(x, (0,)), lambda x, _: x.reshape(3, 4).sum(1)),
        INTEGERS,
    ),
    "reduce_max reduce_min": (
        on_pairs(
            lambda x, _: lax.reduce_max(x.reshape(3, 4), (0,)), lambda x, _: lax.reduce_min(x, (0,))
        ),
        INTEGERS,
    ),
    "empty sums": (
        lambda m, v: (lax.reduce_sum(m, (0,)), lax.reduce_sum(v, (0,))),
        M[:0],
        np.zeros(0, int),
    ),
    "a longer computation": (
        lambda: jnp.where(jnp.tri(4, dtype=bool), (jnp.arange(4) * 3 - 1)[:, None], 7).sum(0),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_folded_value_has_the_bits_of_xla(name):
    check_exact(*EXACT[name])


def test_every_rule_is_compared_with_xla():
    seen = {
        eqn.primitive.name
        for fun, *args in EXACT.values()
        for eqn in constant_program(fun, args).eqns
    }
    rules = {name for name, entry in TABLE.items() if entry.constant is not None}
    assert rules - seen <= {"expand_dims", "copy", "copy_p", "add_any", "stop_gradient"}


LEFT_TO_XLA = {
    "transcendental": (jnp.exp, 2.0),
    "division": (lambda x: 1 / x, 3.0),
    "square root": (lax.sqrt, 2.0),
    "sum of floats": (jnp.sum, np.float64([0.1, 0.2, 0.3])),
    "maximum of floats": (lax.max, -0.0, 0.0),
    "negated float": (lax.neg, 0.0),
    "float to integer": (lambda x: x.astype(np.int32), np.float64(1e300)),
    "half precision": (lax.add, np.float16(1.0), np.float16(2.0)),
    "bfloat16": (lax.add, jnp.bfloat16(1.0), jnp.bfloat16(2.0)),
    "complex": (lax.mul, np.complex128(1j), np.complex128(1j)),
    "subnormal result": (lax.mul, np.float64(1e-160), np.float64(1e-160)),
    "subnormal element": (lax.mul, np.float64([1.0, 1e-160]), np.float64([1.0, 1e-160])),
    "subnormal conversion": (lambda x: x.astype(np.float32), np.float64(1e-40)),
    "large": (lax.add, np.zeros(MAX_SIZE + 1), np.ones(MAX_SIZE + 1)),
    "key": (jax.random.key_data, jax.random.key(0)),
    "several outputs": (lambda x: jnp.split(x, 2), np.arange(4)),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c + i, x), np.int64(0)),
    "what reads such a value": (lambda x: jnp.exp(x) + 1, 2.0),
}


@pytest.mark.parametrize("name", LEFT_TO_XLA)
def test_what_is_not_exact_is_left_to_xla(name):
    assert {type(value) for value in outputs_known(*LEFT_TO_XLA[name])} == {type(None)}


def test_the_largest_constant_is_still_folded():
    check_exact(lax.add, np.ones(MAX_SIZE), np.ones(MAX_SIZE))


def test_what_reads_an_input_is_unknown():
    program = trace(lambda x: [x + 1, x * 0, jnp.arange(3) + 1], 1.0)
    assert [var in known_values(program) for var in program.outvars] == [False, False, True]


@pytest.mark.parametrize(
    "fun", [lambda m: lax.reshape(m, (12,), (1, 0)), lambda m: jnp.ravel(m, order="F")]
)
def test_a_reshape_in_fortran_order_is_folded_right(fun):
    check_exact(fun, M)


@pytest.mark.parametrize("reduce", [jnp.max, jnp.min])
def test_the_maximum_of_an_empty_constant_does_not_raise(reduce):
    fun = lambda x: x + reduce(jnp.zeros((0, 2), int), axis=0, initial=3)
    same(incrax.incremental(fun, tuning=MINIMAL)(1.0), jax.jit(fun)(1.0))


def test_a_selection_among_many_constants_does_not_raise():
    fun = lambda x: x + lax.select_n(np.int32([69, 0]), *[np.float64([k, k]) for k in range(70)])
    same(incrax.incremental(fun, tuning=MINIMAL)(1.0), jax.jit(fun)(1.0))
