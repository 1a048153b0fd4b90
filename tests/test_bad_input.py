"""Awkward values, arrays, contexts and events: each behaves as under `jax.jit`, and never spoils a
later call.
"""

from __future__ import annotations

import enum
import math
from decimal import Decimal
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL, aligned, check, primitives_run, ran_by, same
from jax.experimental import io_callback

import incrax

X = jnp.linspace(0.1, 2.0, 300)
NAN = float("nan")
SCALAR = jax.ShapeDtypeStruct((), jnp.float64)

every_tuning = pytest.mark.parametrize(
    "tuning", [MINIMAL, FAST, EAGER], ids=["minimal", "cost", "eager"]
)


def two_terms(a, b, x):
    return jnp.sum(jnp.exp(a * x)) * b + jnp.sum(jnp.sin(b * x))


def three_outputs(a, b, x):
    first, second = jnp.exp(a * x), jnp.sin(b * x)
    return first, second, jnp.sum(first * second)


def scaled(scale, x):
    return scale * jnp.sum(jnp.exp(x))


def copies(x):
    return jnp.array(x, copy=True)


def check_like_jit(fun, calls, tuning=MINIMAL):
    """Same result or same class of error as `jax.jit` at every call."""
    ours, plain = incrax.incremental(fun, tuning=tuning), jax.jit(fun)
    for args in calls:
        try:
            expected = plain(*args)
        except Exception as error:
            with pytest.raises(type(error)):
                ours(*args)
        else:
            same(ours(*args), expected)
        check(ours)
    return ours


# --- values that compare oddly --------------------------------------------------------------------


@every_tuning
def test_nan_and_infinity_leave_later_gradients_right(tuning):
    fun = jax.value_and_grad(two_terms, (0, 1))
    points = [
        (1, 1),
        (NAN, 1),
        (1, 1),
        (1, NAN),
        (float("nan"), NAN),
        (2, 2),
        (math.inf, 1),
        (-math.inf, 1),
        (1, 2),
    ]
    check_like_jit(fun, [(float(a), float(b), X) for a, b in points], tuning)


def test_nan_element_that_stays_is_not_among_the_changed():
    f = incrax.incremental(
        lambda theta: jnp.sin(theta[0]) + jnp.exp(theta[1]) + theta[2], tuning=MINIMAL
    )
    f(np.array([NAN, 1.0, 2.0]))
    f(np.array([NAN, 1.5, 2.0]))
    assert list(f.explain().as_dict()["changed"]) == ["theta[1]"]


def test_zero_of_another_sign_is_a_changed_element():
    f = incrax.incremental(lambda theta: (1 / theta[0], 1 / theta[1]), tuning=MINIMAL)
    f(np.array([0.0, 0.0]))
    assert [float(y) for y in f(np.array([0.0, -0.0]))] == [math.inf, -math.inf]
    assert list(f.explain().as_dict()["changed"]) == ["theta[1]"]


@pytest.mark.parametrize(
    "zero", [complex(0.0, -0.0), complex(-0.0, 0.0), complex(-0.0, -0.0)], ids=str
)
def test_signs_of_complex_zeros_count(zero):
    f = incrax.incremental(lambda z: (1 / z.real, 1 / z.imag), tuning=MINIMAL)
    f(0j)
    same(f(zero), jax.jit(lambda z: (1 / z.real, 1 / z.imag))(zero))
    assert f.stats.unchanged == 0


@pytest.mark.parametrize("value", [2**31, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**70], ids=str)
def test_huge_integers_are_taken_or_refused_as_by_jit(value):
    f = check_like_jit(lambda n: n + 0, [(value,), (1,), (value,), (2,)])
    assert int(f(2)) == 2


def test_huge_integers_without_x64():
    with jax.enable_x64(False):
        check_like_jit(lambda n: n + 0, [(1,), (2**31,), (2**31 - 1,), (2**40,), (3,)])


def test_one_as_integer_float_and_boolean_inside_a_container():
    check_like_jit(
        lambda tree: tree["n"] * 2,
        [({"n": n},) for n in (1, 1.0, True, np.True_, 1, 1 + 0j, np.int8(1))],
    )


@pytest.mark.parametrize("base", [float, int])
def test_subclasses_of_numbers_are_numbers(base):
    kind = type("Minutes", (base,), {})
    check_like_jit(lambda x: x * 2, [(kind(2),), (kind(3),)])


@every_tuning
def test_weak_and_strong_scalars_in_turn(tuning):
    values = [
        2.0,
        jnp.asarray(2.0),
        jnp.float32(2),
        np.float64(2),
        jnp.float64(3),
        3.0,
        np.float32(3),
        jnp.asarray(3.0),
    ]
    check_like_jit(lambda x, y: (x * y, x + 1), [(x, jnp.bfloat16(2)) for x in values], tuning)


@every_tuning
def test_shapes_and_types_in_turn_keep_their_saved_values(tuning):
    leaves = [
        np.ones(3),
        np.ones(4),
        np.ones(3, np.float32),
        np.ones((3, 1)),
        np.ones(3, int),
        np.ones(3, bool),
    ]
    f = check_like_jit(scaled, [(scale, x) for scale in (1.0, 2.0, 3.0) for x in leaves], tuning)
    assert f.stats.traces == len(leaves)
    unchanged = f.stats.unchanged
    for x in leaves:
        f(3.0, x)
    assert f.stats.unchanged == unchanged + len(leaves)


def test_more_signatures_than_are_kept(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 2)
    check_like_jit(
        scaled, [(scale, np.ones(n)) for scale in (1.0, 2.0) for n in (1, 2, 3, 4)], MINIMAL
    )


# --- arrays that their owner changes --------------------------------------------------------------


VIEWS = {
    "itself": lambda owner: owner,
    "read-only": lambda owner: np.frombuffer(memoryview(owner).toreadonly()),
    "reversed": lambda owner: owner[::-1],
    "strided": lambda owner: owner[::2],
    "broadcast": lambda owner: np.broadcast_to(owner, (2, len(owner))),
}


@pytest.mark.parametrize("tuning", [MINIMAL, FAST], ids=["minimal", "cost"])
@pytest.mark.parametrize("size", [6, 3000], ids=["small", "large"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_follow_an_array_changed_in_place(tuning, size, name):
    f, plain = incrax.incremental(scaled, tuning=tuning), jax.jit(scaled)
    owner = np.linspace(0, 1, size)
    view = VIEWS[name](owner)
    for k in range(6):
        owner[2 * k % size] += 0.5
        for scale in (1.0, 2.0):
            same(f(scale, view), plain(scale, np.array(view)))
    assert f.stats.unchanged == 0


def test_array_given_another_shape_or_type_in_place():
    f = incrax.incremental(lambda x: x.sum(axis=0), tuning=MINIMAL)
    x = np.arange(6.0)
    f(x)
    x.resize((2, 3), refcheck=False)
    same(f(x), jnp.array([3.0, 5.0, 7.0]))
    x.resize((3, 2), refcheck=False)
    same(f(x), jnp.array([6.0, 9.0]))


@every_tuning
def test_array_overwritten_before_the_result_is_read(tuning):
    f = incrax.incremental(
        lambda s, x: s * jnp.sum(jnp.sin(jnp.exp(x) @ jnp.exp(x).T)), tuning=tuning
    )
    x = np.full((300, 300), 0.1)
    expected = float(f(1.0, x))
    for k in range(3):
        result = f(2.0 + k, x)
        x[:] = 7.0
        np.testing.assert_allclose(float(result), (2.0 + k) * expected)
        x[:] = 0.1


@every_tuning
def test_one_array_under_two_arguments(tuning):
    def fun(x, y):
        return jnp.sum(jnp.exp(x)) * jnp.sum(jnp.sin(y))

    other = X + 1
    pairs = [(X, X), (X, other), (other, X), (other, other), (X, X), (X, copies(X))]
    check_like_jit(jax.value_and_grad(fun, (0, 1)), pairs, tuning)
    f, mutable = incrax.incremental(fun, tuning=tuning), np.linspace(0, 1, 300)
    for _ in range(4):
        same(f(mutable, mutable), fun(jnp.array(mutable), jnp.array(mutable)))
        mutable[3] += 1


# --- deleted and donated buffers ------------------------------------------------------------------


def test_deleting_a_former_input_does_not_disturb_the_next_call():
    f = incrax.incremental(scaled, tuning=MINIMAL)
    x = copies(X)
    f(2.0, x)
    x.delete()
    same(f(2.0, X), jax.jit(scaled)(2.0, X))


@every_tuning
def test_loop_that_donates_its_input_to_the_next_step(tuning):
    f, plain = incrax.incremental(scaled, tuning=tuning), jax.jit(scaled)
    step = jax.jit(lambda x: x * 1.01, donate_argnums=0)
    x = copies(X)
    for _ in range(40):
        same(f(2.0, x), plain(2.0, x))
        x = step(x)


def test_equal_array_still_serves_after_the_first_one_is_deleted():
    f = incrax.incremental(scaled, tuning=MINIMAL)
    first, second = copies(X), copies(X)
    f(2.0, first)
    f(2.0, second)
    first.delete()
    same(f(2.0, second), jax.jit(scaled)(2.0, second))
    same(f(3.0, second), jax.jit(scaled)(3.0, second))


def test_refusing_a_deleted_input_leaves_the_next_call_right():
    f = incrax.incremental(scaled, tuning=MINIMAL)
    x = copies(X)
    f(2.0, x)
    x.delete()
    with pytest.raises(incrax.errors.DeletedInputError):
        f(3.0, x)
    same(f(3.0, X), jax.jit(scaled)(3.0, X))


@every_tuning
def test_result_deleted_by_the_caller_is_computed_again(tuning):
    f, plain = incrax.incremental(three_outputs, tuning=tuning), jax.jit(three_outputs)
    random = np.random.default_rng(0)
    for k in range(40):
        args = (float(random.integers(1, 4)), float(random.integers(1, 4)), X)
        results = f(*args)
        same(results, plain(*args))
        for result in results if k % 7 == 0 else results[k % 3 : k % 3 + 1]:
            result.delete()
        same(f(*args), plain(*args))


@every_tuning
def test_result_donated_by_the_caller_is_computed_again(tuning):
    f, plain = incrax.incremental(three_outputs, tuning=tuning), jax.jit(three_outputs)
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)
    for b in (1.0, 2.0, 2.0, 3.0, 1.0, 3.0):
        results = f(1.0, b, X)
        same(results, plain(1.0, b, X))
        consume(results[0])
        assert results[0].is_deleted()


def test_hit_whose_result_was_deleted_counts_as_run():
    f = incrax.incremental(scaled, tuning=MINIMAL)
    f(2.0, X).delete()
    assert ran_by(f, 2.0, X) > 0
    assert ran_by(f, 2.0, X) == 0


@every_tuning
@pytest.mark.parametrize("convert", [np.array, jnp.array], ids=["numpy", "jax"])
def test_result_that_is_an_input_may_be_deleted(tuning, convert):
    def fun(scale, x):
        return x, scale * jnp.sum(x * x)

    f = incrax.incremental(fun, tuning=tuning)
    x = convert(np.arange(1000.0))
    for scale in (1.0, 2.0, 2.0, 3.0, 1.0):
        result, total = f(scale, x)
        same((result, total), jax.jit(fun)(scale, x))
        result.delete()


@every_tuning
def test_result_that_is_a_constant_may_be_deleted(tuning):
    table = np.arange(2000.0)

    def fun(scale):
        return jnp.asarray(table), scale * jnp.sum(jnp.asarray(table))

    f = incrax.incremental(fun, tuning=tuning)
    for scale in (1.0, 2.0, 2.0, 3.0):
        result, total = f(scale)
        same((result, total), jax.jit(fun)(scale))
        result.delete()


class Unlike:
    """A tree that is another one whenever JAX takes it apart."""

    def __init__(self, x):
        self.x = x


jax.tree_util.register_pytree_node(
    Unlike, lambda tree: ((tree.x,), object()), lambda _, leaves: Unlike(*leaves)
)


def test_trees_that_do_not_equal_themselves():
    calls = [(Unlike(x), b) for x, b in [(1.0, 2.0), (3.0, 2.0), (3.0, 4.0)]]
    f = check_like_jit(lambda tree, b: jnp.exp(tree.x) * b, calls, tuning=None)
    assert f.stats.traces == 3


# --- leaves that are no arrays --------------------------------------------------------------------


class Shape(enum.Enum):
    FLAT = "flat"
    STEEP = "steep"


class Order(enum.IntEnum):
    FIRST = 1
    SECOND = 2


STATICS = {
    "text": ("flat", "steep"),
    "bytes": (b"flat", b"steep"),
    "enum": (Shape.FLAT, Shape.STEEP),
    "integer enum": (Order.FIRST, Order.SECOND),
    "function": (jnp.sin, jnp.cos),
    "scalar type": (jnp.float32, jnp.int32),
    "dtype": (np.dtype("float32"), np.dtype("int32")),
    "range": (range(2), range(3)),
    "set": (frozenset("a"), frozenset("b")),
    "equal hashes": (Fraction(-1), Fraction(-2)),
    "equal values": (Fraction(1), Decimal(1)),
    "none": (None, "steep"),
    "ellipsis": (..., None),
    "bound method": ("a".join, "b".join),
}


@pytest.mark.parametrize("name", STATICS)
def test_static_leaves_select_traces_of_their_own(name):
    first, second = STATICS[name]
    seen = []

    def fun(x, options):
        seen.append(options["kind"])
        return x * (
            2.0 if type(options["kind"]) is type(first) and options["kind"] == first else 3.0
        )

    f = incrax.incremental(fun, tuning=MINIMAL)
    for _ in range(2):
        assert float(f(1.0, {"kind": first})) == 2.0
        assert float(f(1.0, {"kind": second})) == 3.0
        assert float(f(4.0, {"kind": first})) == 8.0
    assert len(seen) == f.stats.traces == 2


def test_static_values_that_are_equal_share_a_trace():
    f = incrax.incremental(lambda x, kind: x, tuning=MINIMAL)
    for make in (
        lambda: "".join(["fl", "at"]),
        lambda: Fraction(1, 3),
        lambda: frozenset([1000]),
        lambda: range(1000),
    ):
        traces = f.stats.traces
        f(1.0, make())
        f(1.0, make())
        assert f.stats.traces == traces + 1


def test_a_leaf_is_now_a_value_and_now_static():
    def fun(x, y):
        return x * (1.0 if y is None else 2.0 if isinstance(y, str) else y)

    f = incrax.incremental(fun, tuning=MINIMAL)
    for _ in range(2):
        assert [float(f(3.0, y)) for y in ("a", 5.0, None, np.float32(7), "b", 1)] == [
            6.0,
            15.0,
            3.0,
            21.0,
            6.0,
            3.0,
        ]


def test_fresh_functions_as_leaves_are_right_and_their_traces_bounded(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 3)
    f = incrax.incremental(lambda x, fun: fun(x), tuning=MINIMAL)
    with pytest.warns(UserWarning, match="compared by identity"):
        assert [float(f(1.0, lambda x, k=k: x * k)) for k in range(10)] == list(range(10))
    assert len(f._traces.table) == 3


def test_fresh_function_at_every_call_is_warned_about():
    f = incrax.incremental(lambda x, fun: fun(x), tuning=MINIMAL)
    functions = [lambda x, k=k: x * k for k in range(20)]
    with pytest.warns(UserWarning, match="fun"):
        assert [float(f(1.0, function)) for function in functions] == list(range(20))


def test_outputs_that_are_no_arrays_are_refused_as_by_jit():
    for output in ("text", object(), jnp.sin):
        check_like_jit(lambda x, output=output: {"value": x, "kind": output}, [(1.0,), (1.0,)])
    check_like_jit(lambda x: None, [(1.0,), (2.0,)])
    check_like_jit(lambda x: (x, None, np.arange(3), 2.0, []), [(1.0,), (2.0,), (2.0,)])


# --- configuration --------------------------------------------------------------------------------


def test_x64_is_part_of_the_key():
    fun = jax.value_and_grad(scaled, 0)
    f = incrax.incremental(fun, tuning=MINIMAL)
    x = np.linspace(0, 1, 7)
    for enabled in (True, False, True, False):
        with jax.enable_x64(enabled):
            result = f(1.5, x)
            same(result, jax.jit(fun)(1.5, x))
            assert result[0].dtype == (jnp.float64 if enabled else jnp.float32)
    assert (f.stats.traces, f.stats.unchanged) == (2, 2)


@pytest.mark.parametrize("precision", ["bfloat16", "highest"])
def test_matmul_precision_is_part_of_the_key(precision):
    f = incrax.incremental(lambda x: x @ x, tuning=MINIMAL)
    x = jnp.ones((3, 3), jnp.float32)
    f(x)
    with jax.default_matmul_precision(precision):
        assert ran_by(f, x) > 0
        assert ran_by(f, x) == 0
    assert ran_by(f, x) == 0
    assert f.stats.traces == 2


@every_tuning
def test_debug_nans_is_part_of_the_key(tuning):
    f = incrax.incremental(lambda x, y: jnp.log(x) + jnp.exp(y), tuning=tuning)
    for y in (1.0, 2.0, 3.0):
        assert np.isnan(f(-1.0, y))
    with jax.debug_nans(True):
        for y in (1.0, 2.0, 3.0):
            assert float(f(1.0, y)) == pytest.approx(math.exp(y))
            with pytest.raises(FloatingPointError):
                f(-1.0, y)
    assert np.isnan(f(-1.0, 3.0))
    assert f.stats.aborted == 3
    check(f)


def test_results_are_right_without_jit():
    def fun(s, x):
        total, parts = jax.lax.scan(lambda c, y: (c * s + y, c), 0.0, x)
        return jax.lax.cond(total > 1, jnp.sin, jnp.cos, total), parts, jnp.sum(jnp.exp(x))

    f = incrax.incremental(fun, tuning=MINIMAL)
    for _ in range(2):
        for s in (1.0, 2.0, 2.0):
            same(f(s, X[:5]), jax.jit(fun)(s, X[:5]))
            with jax.disable_jit():
                same(f(s, X[:5]), fun(s, X[:5]))
    assert (f.stats.traces, f.stats.transparent) == (1, 6)


def test_without_jit_python_may_branch_on_values():
    f = incrax.incremental(lambda x: x if x > 0 else -x, tuning=MINIMAL)
    with jax.disable_jit():
        assert [float(f(x)) for x in (-2.0, 3.0, -2.0)] == [2.0, 3.0, 2.0]


@pytest.mark.parametrize(
    ("setting", "args"),
    [
        (lambda: jax.numpy_dtype_promotion("strict"), (jnp.int32(1), jnp.float32(2))),
        (lambda: jax.numpy_rank_promotion("raise"), (jnp.ones(2), jnp.ones((3, 2)))),
    ],
    ids=["dtype promotion", "rank promotion"],
)
def test_stricter_rules_refuse_what_was_saved_without_them(setting, args):
    f = incrax.incremental(lambda x, y: x + y, tuning=MINIMAL)
    saved = f(*args)
    with setting(), pytest.raises((TypeError, ValueError)):
        f(*args)
    assert f(*args) is saved


def test_kind_of_random_bits_is_part_of_the_key():
    def fun(key):
        return jax.random.uniform(key, (4,))

    f = incrax.incremental(fun, tuning=MINIMAL)
    for partitionable in (True, False, True):
        with jax.threefry_partitionable(partitionable):
            same(f(jax.random.key(3)), jax.jit(fun)(jax.random.key(3)))
    assert f.stats.traces == 2


def test_implementation_of_new_keys_is_part_of_the_key():
    f = incrax.incremental(lambda seed: jax.random.uniform(jax.random.key(seed)), tuning=MINIMAL)
    f(1)
    with jax.default_prng_impl("rbg"):
        same(f(1), jax.random.uniform(jax.random.key(1)))


def test_keys_of_every_kind_in_turn():
    keys = [
        jax.random.PRNGKey(0),
        jax.random.key(0),
        jax.random.key(0, impl="rbg"),
        np.asarray(jax.random.PRNGKey(0)),
        jax.random.key(1, impl="rbg"),
        jax.random.key(1),
        jax.random.PRNGKey(1),
    ]
    f = check_like_jit(lambda key: jax.random.uniform(key, (2,)), [(key,) for key in keys])
    assert f.stats.traces == 3
    batches = [jax.random.split(jax.random.key(seed), 3) for seed in (0, 1, 0)]
    check_like_jit(jax.vmap(jax.random.uniform), [(batch,) for batch in batches])


# --- tracers --------------------------------------------------------------------------------------

USES = {
    "vjp": lambda f, x: jax.vjp(f, x)[1](1.0),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "hessian": lambda f, x: jax.hessian(f)(x[:4]),
    "vmap": lambda f, x: jax.vmap(f)(jnp.stack([x, x + 1])),
    "grad of jit": lambda f, x: jax.grad(jax.jit(f))(x),
    "jit of grad": lambda f, x: jax.jit(jax.grad(f))(x),
    "checkpoint": lambda f, x: jax.grad(jax.checkpoint(f))(x),
    "scan": lambda f, x: jax.lax.scan(lambda c, s: (c + f(s * x), s), 0.0, jnp.arange(3.0))[0],
    "map": lambda f, x: jax.lax.map(f, jnp.stack([x, x + 1])),
    "while loop": lambda f, x: jax.lax.while_loop(lambda c: c < 3, lambda c: c + f(x) * 0 + 1, 0.0),
    "cond": lambda f, x: jax.lax.cond(x[0] > 0, f, lambda x: 0.0 * x[0], x),
    "closed over in jit": lambda f, x: jax.jit(lambda s: s * f(x))(2.0),
    "closed over in grad": lambda f, x: jax.grad(lambda s: s * f(x))(2.0),
}


@pytest.mark.parametrize("name", USES)
def test_inside_other_transformations_nothing_is_stored(name):
    def fun(x):
        return jnp.sum(jnp.sin(x) ** 2)

    f = incrax.incremental(fun, tuning=MINIMAL)
    saved = f(X)
    before = (f.stats.ran, f.stats.traces, f.stats.saved_bytes)
    with jax.checking_leaks():
        same(USES[name](f, X), USES[name](fun, X))
    assert (f.stats.ran, f.stats.traces, f.stats.saved_bytes) == before
    assert f.stats.transparent > 0
    assert f(X) is saved
    check(f)


def test_shapes_and_jaxprs_can_be_asked_for():
    f = incrax.incremental(lambda x: jnp.sum(jnp.sin(x)), tuning=MINIMAL)
    assert jax.eval_shape(f, X) == SCALAR
    assert [eqn.primitive.name for eqn in jax.make_jaxpr(f)(X).eqns] == ["sin", "reduce_sum"]
    assert f.stats.ran == 0


def test_one_incremental_function_inside_another():
    inner = incrax.incremental(lambda x: jnp.sum(jnp.exp(x)), tuning=MINIMAL)
    outer = incrax.incremental(lambda scale, x: scale * inner(x), tuning=MINIMAL)
    for scale in (1.0, 2.0, 3.0):
        same(outer(scale, X), jax.jit(scaled)(scale, X))
    assert "exp" not in primitives_run(outer)
    assert (inner.stats.calls, inner.stats.ran) == (0, 0)
    same(inner(X), jnp.sum(jnp.exp(X)))


def test_a_tracer_that_escaped_is_refused_and_not_stored():
    f = incrax.incremental(lambda x: x * 2, tuning=MINIMAL)
    escaped = []
    jax.jit(lambda y: escaped.append(y) or y)(1.0)
    for _ in range(2):
        with pytest.raises(jax.errors.UnexpectedTracerError):
            f(escaped[0])
        assert float(f(1.0)) == 2.0
        check(f)


def test_a_trace_that_fails_leaves_the_next_call_right():
    f = incrax.incremental(scaled, tuning=MINIMAL)
    saved = f(2.0, X)
    with pytest.raises(TypeError):
        jax.jit(f)("two", X)
    with pytest.raises(TypeError):
        jax.grad(f)(2, X)
    assert f(2.0, X) is saved


# --- callbacks and effects ------------------------------------------------------------------------


class Host:
    """A function outside JAX that can be told to fail at its n-th use."""

    def __init__(self, fails_at=None):
        self.uses = 0
        self.fails_at = fails_at

    def __call__(self, x):
        self.uses += 1
        if self.uses == self.fails_at:
            raise ArithmeticError("theory code failed")
        return np.sin(x)


def with_theory(host):
    def fun(a, b, x):
        theory = jax.pure_callback(host, SCALAR, a)
        return theory * jnp.sum(jnp.exp(b * x)), theory + jnp.sum(jnp.cos(a * x))

    return fun


@every_tuning
@pytest.mark.parametrize("fails_at", range(1, 7))
def test_a_callback_that_fails_in_mid_update_spoils_nothing(tuning, fails_at):
    host = Host(fails_at)
    f, plain = incrax.incremental(with_theory(host), tuning=tuning), jax.jit(with_theory(Host()))
    messages = []
    for a, b in [
        (1.0, 1.0),
        (1.0, 2.0),
        (2.0, 2.0),
        (3.0, 2.0),
        (3.0, 1.0),
        (4.0, 2.0),
        (5.0, 1.0),
        (6.0, 1.0),
    ]:
        try:
            result = f(a, b, X)
        except Exception as error:
            messages.append(str(error))
            check(f)
            result = f(a, b, X)
        same(result, plain(a, b, X))
        assert all(x is y for x, y in zip(f(a, b, X), f(a, b, X), strict=True))
    (message,) = messages  # six values of `a`: the host is used at least six times
    assert "theory code failed" in message
    assert f.stats.aborted == 1


def test_a_failed_update_leaves_saved_results_of_former_inputs():
    host = Host(fails_at=2)
    f = incrax.incremental(with_theory(host), tuning=MINIMAL)
    saved = f(1.0, 1.0, X)
    before = f.stats.as_dict()
    with pytest.raises(Exception, match="theory code failed"):
        f(2.0, 1.0, X)
    after = f.stats.as_dict()
    assert (after["ran"], after["saved_bytes"]) == (before["ran"], before["saved_bytes"])
    assert f(1.0, 1.0, X)[0] is saved[0]


def test_a_pure_callback_runs_only_where_its_input_changed():
    host = Host()
    f = incrax.incremental(with_theory(host), tuning=MINIMAL)
    for a, b in [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (2.0, 3.0), (2.0, 4.0), (2.0, 4.0)]:
        f(a, b, X)
    assert host.uses == 2


@every_tuning
def test_prints_appear_at_every_call(tuning, capsys):
    def fun(a, b):
        jax.debug.print("a is {}", a)
        return a + jnp.sum(jnp.exp(b * X))

    f = incrax.incremental(fun, tuning=tuning)
    for a, b in [(1.0, 1.0), (1.0, 1.0), (1.0, 2.0), (2.0, 2.0), (2.0, 2.0)]:
        f(a, b)
    jax.effects_barrier()
    assert capsys.readouterr().out.splitlines() == [f"a is {a}" for a in (1.0, 1.0, 1.0, 2.0, 2.0)]


def test_saved_work_beside_an_effect_is_not_run_again():
    def fun(a, b):
        jax.debug.callback(lambda a: None, a)
        return a + jnp.sum(jnp.exp(b * X))

    f = incrax.incremental(fun, tuning=MINIMAL)
    for a in (1.0, 1.0, 2.0):
        f(a, 1.0)
    assert "exp" not in primitives_run(f)


@every_tuning
@pytest.mark.parametrize("ordered", [True, False])
def test_io_callbacks_run_at_every_call_and_their_results_count(tuning, ordered):
    seen = []

    def host(a):
        seen.append(float(a))
        return np.float64(len(seen))

    def fun(a, b):
        return io_callback(host, SCALAR, a, ordered=ordered) * jnp.sum(jnp.exp(b * X)), a + b

    f = incrax.incremental(fun, tuning=tuning)
    for k, (a, b) in enumerate(
        [(1.0, 1.0), (1.0, 1.0), (1.0, 2.0), (2.0, 2.0), (2.0, 2.0), (1.0, 1.0)]
    ):
        same(f(a, b), ((k + 1.0) * jnp.sum(jnp.exp(b * X)), jnp.asarray(a + b)))
    assert seen == [1.0, 1.0, 1.0, 2.0, 2.0, 1.0]
    f.explain(3.0, 1.0), f.explain(), f.deps()
    assert len(seen) == 6
    f.fresh(3.0, 1.0)
    jax.effects_barrier()
    assert seen[6:] == [3.0]


@every_tuning
def test_effects_in_loops_and_branches_keep_their_order_and_number(tuning):
    seen = []

    def note(name, value, ordered=True):
        jax.debug.callback(
            partial(lambda name, v: seen.append((name, float(v))), name), value, ordered=ordered
        )

    def fun(a, x):
        note("before", a)

        def body(carry, y):
            note("scan", carry)
            return carry + y * a, None

        total, _ = jax.lax.scan(body, 0.0, x)
        jax.lax.cond(
            total > 0,
            lambda c: note("positive", c, False),
            lambda c: note("negative", c, False),
            total,
        )
        note("constant", 1.0)
        note("constant", 1.0)
        return jnp.sum(jnp.sin(x)) + a

    f, plain = incrax.incremental(fun, tuning=tuning), jax.jit(fun)
    x = jnp.arange(3.0)
    for args in [(1.0, x), (1.0, x), (2.0, x), (2.0, -x), (2.0, -x), (1.0, x)]:
        events = []
        for function in (f, plain):
            result = function(*args)
            jax.effects_barrier()
            events.append(
                (
                    sorted(seen),
                    [e for e in seen if e[0] not in ("positive", "negative")],
                    float(result),
                )
            )
            seen.clear()
        assert events[0] == events[1]


# --- arrays of every make -------------------------------------------------------------------------


@every_tuning
def test_empty_arrays(tuning):
    shapes = [(0,), (3, 0), (0, 0), (0,)]
    calls = [(scale, np.zeros(shape)) for scale in (1.0, 2.0) for shape in shapes]
    f = check_like_jit(lambda scale, x: (scale * jnp.sum(x), x * scale), calls, tuning)
    assert f.stats.traces == 3
    assert ran_by(f, 2.0, jnp.zeros(0)) == 0


def test_scalars_as_arrays_without_axes():
    f = check_like_jit(
        scaled, [(1.0, x) for x in (np.array(3.0), jnp.float64(3), np.float64(3), np.array(4.0))]
    )
    assert (f.stats.traces, f.stats.unchanged) == (1, 2)


@pytest.mark.parametrize("shape", [(2, 3), (60, 100)], ids=["small", "large"])
def test_memory_layout_is_no_change(shape):
    x = np.arange(float(np.prod(shape))).reshape(shape)
    layouts = [
        x,
        np.asfortranarray(x),
        x[::-1].copy()[::-1],
        np.repeat(x, 2, axis=1)[:, ::2],
        jnp.array(x),
    ]
    f = incrax.incremental(lambda x: x.T + 1, tuning=MINIMAL)
    for layout in layouts:
        same(f(layout), jnp.array(x).T + 1)
    assert (f.stats.traces, f.stats.unchanged) == (1, len(layouts) - 1)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "int4", "uint8", "bool", "complex64"]
)
def test_rare_dtypes_from_numpy_and_from_jax(dtype):
    first, second = (np.array([0, k, 1], jnp.dtype(dtype)) for k in (0, 1))
    f = check_like_jit(
        lambda x: (x, jnp.sum(x.astype(complex))),
        [(first,), (second,), (jnp.array(second),), (first,)],
    )
    assert (f.stats.traces, f.stats.unchanged) == (1, 2)


def test_matrices_are_arrays_of_two_axes():
    arrays = [
        np.array([[1.0, 2.0]]).view(np.matrix),
        np.array([[1.0, 2.0]]),
        np.array([[1.0, 3.0]]).view(np.matrix),
    ]
    check_like_jit(lambda x: x * x, [(array,) for array in arrays])


@pytest.mark.parametrize("native_first", [True, False])
def test_byte_swapped_arrays_are_taken(native_first):
    f = incrax.incremental(lambda x: jnp.sum(x * x), tuning=MINIMAL)
    if native_first:
        f(np.arange(4.0))
    assert float(f(np.arange(4.0).astype(">f8"))) == 14.0
    assert float(f(np.arange(5.0).astype(">f8")[1:])) == 30.0


MASKED = np.ma.masked_array(np.full(4, 5.0), mask=[1, 0, 0, 0])


def test_masked_arrays_are_refused():
    f = incrax.incremental(lambda x: jnp.sum(x), tuning=MINIMAL)
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="masked arrays are not supported"):
        f(MASKED)
    assert float(f(np.ones(4))) == 4.0


def test_masked_arrays_are_refused_after_a_plain_array_too():
    f = incrax.incremental(lambda x: jnp.sum(x), tuning=MINIMAL)
    f(np.ones(4))
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="masked arrays are not supported"):
        f(MASKED)


# --- everything around ----------------------------------------------------------------------------


@every_tuning
def test_clearing_the_caches_of_jax_keeps_values_and_results(tuning):
    f, plain = incrax.incremental(two_terms, tuning=tuning), jax.jit(two_terms)
    for b in (1.0, 2.0, 3.0):
        f(1.0, b, X)
    jax.clear_caches()
    assert ran_by(f, 1.0, 3.0, X) == 0
    for a, b in [(1.0, 4.0), (2.0, 4.0), (1.0, 3.0)]:
        same(f(a, b, X), plain(a, b, X))


@every_tuning
def test_captured_values_are_those_of_the_trace_as_under_jit(tuning):
    setting = {"offset": 2.0}
    small, large = aligned(3, 1.0), aligned(5000, 1.0)

    def fun(a, b):
        return a * setting["offset"] + jnp.sum(small * b) + jnp.sum(jnp.exp(large * b))

    f, plain = incrax.incremental(fun, tuning=tuning), jax.jit(fun)
    same(f(1.0, 1.0), plain(1.0, 1.0))
    setting["offset"] = 3.0
    small[:] = 5.0
    large[:] = 0.0
    for args in [
        (1.0, 1.0),
        (2.0, 1.0),
        (1.0, 2.0),
        (2.0, 2.0),
        (3.0, 2.0),
        (4.0, 2.0),
        (np.float32(1), 1.0),
    ]:
        same(f(*args), plain(*args))


def test_results_are_ordinary_arrays():
    f = incrax.incremental(lambda x: (x * 2, jnp.arange(3) * x), tuning=MINIMAL)
    for _ in range(2):
        single, several = f(2.0)
        assert isinstance(single, jax.Array)
        assert bool(single)
        assert (int(single), float(single), single.item(), f"{single:.1f}") == (4, 4.0, 4.0, "4.0")
        assert not np.asarray(several).flags.writeable
        assert [float(x) for x in several] == [0.0, 2.0, 4.0]
        with pytest.raises(ValueError, match="ambiguous"):
            bool(several)


def test_containers_of_results_belong_to_the_caller():
    f = incrax.incremental(lambda x: {"a": [x, x * 2], "b": x + 1}, tuning=MINIMAL)
    first = f(1.0)
    first["a"].append("mine")
    first["a"][0] = first["b"] = None
    same(f(1.0), jax.jit(lambda x: {"a": [x, x * 2], "b": x + 1})(1.0))


def test_a_frozen_array_does_not_see_later_changes():
    x = np.ones(5000)
    frozen = incrax.frozen({"x": x, "n": 2})
    x[:] = 0.0
    f = incrax.incremental(lambda s, data: s * jnp.sum(data["x"]) * data["n"], tuning=MINIMAL)
    assert [float(f(s, frozen)) for s in (1.0, 2.0, 2.0)] == [10000.0, 20000.0, 20000.0]
