"""Each pass alone: what it removes, what it must leave, and that every bit of the results stays."""

from __future__ import annotations

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import examples
from hypothesis import given
from properties.programs import START, programs

from incrax import _jax
from incrax._program import Program, evaluator, trace
from incrax.engine.program import simplify
from incrax.engine.program.simplify import (
    drop_dead,
    fold_constants,
    inline,
    merge_equal,
    run_passes,
)
from incrax.engine.rewrites.loop_invariants import hoist_invariants

lax = jax.lax
T = np.array([0.7, -1.3, 2.1])
PASSES = (inline, hoist_invariants, fold_constants, merge_equal, drop_dead)


def program_of(fun, *args) -> Program:
    return trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)


def simplified(fun, *args, passes=PASSES):
    return run_passes(program_of(fun, *args), passes)


def names(program):
    return [eqn.primitive.name for eqn in program.eqns]


def compiled(program, *args):
    return jax.jit(evaluator(program))(program.consts, *args)


def bits(x):
    """Bytes with one NaN for all: neither payload nor sign of a NaN is promised."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    x = np.asarray(x)
    return (
        np.where(np.isnan(x), np.nan, x).astype(x.dtype).tobytes()
        if x.dtype.kind in "fc"
        else x.tobytes()
    )


def same_bits(actual, expected):
    for x, y in zip(actual, jax.tree.leaves(expected), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
        assert bits(x) == bits(y)


def show(program, simplify):
    """The program before and after one pass, as text."""
    after = simplify(program)
    counts = f"{simplify.__name__}: {len(program.eqns)} -> {len(after.eqns)} equations"
    return f"{counts}\n--- before\n{program}\n--- after\n{after}"


def check(fun, *args, passes=PASSES) -> Program:
    """The simplified program has every bit and type of plain JAX."""
    program = simplified(fun, *args, passes=passes)
    same_bits(compiled(program, *args), jax.jit(fun)(*args))
    return program


# --- all passes -----------------------------------------------------------------------------------


@examples(1 / 3)
@given(programs(max_size=6))
def test_passes_keep_every_bit_of_random_programs(random_program):
    """Equation by equation, so that no difference can be one of fusion."""
    leaves = [jnp.asarray(x) for x in START]
    opened = inline(program_of(random_program, *leaves))
    final = run_passes(opened, PASSES[1:])
    same_bits(evaluator(final)(final.consts, *leaves), evaluator(opened)(opened.consts, *leaves))


def test_the_passes_find_nothing_more_in_their_own_result():
    def fun(t):
        return jax.jit(jnp.sin)(t) + jnp.sin(t) * (jnp.arange(3) + 1), jnp.exp(jnp.float64(2.0)) * t

    once = simplified(fun, T)
    assert str(run_passes(once, PASSES)) == str(once)


def test_the_same_function_gives_the_same_text_twice():
    fun = lambda t: jax.nn.relu(t) + jnp.sum(t[jnp.array([0, 2])])
    assert str(simplified(fun, T)) == str(simplified(fun, T))


def test_the_inputs_stay_even_where_nothing_reads_them():
    program = simplified(lambda a, b, c: b * 2, 1.0, 2.0, 3.0)
    assert len(program.invars) == 3


# --- inline ---------------------------------------------------------------------------------------


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvps(lambda t, ans, x: 5 * t)


@jax.custom_vjp
def lopsided(x, y):
    return x * y


lopsided.defvjp(lambda x, y: (x * y, (x, y)), lambda res, g: (3.0 * g * res[1], g * res[0]))

CALLS = {
    "jit": (jax.jit(jnp.sin), ["sin"]),
    "jit in jit": (jax.jit(lambda x: jax.jit(jnp.cos)(x) + 1), ["cos", "add"]),
    "custom_jvp": (doubled, ["mul"]),
    "custom_vjp": (lambda x: lopsided(x, x), ["mul"]),
    "remat": (jax.checkpoint(lambda x: jnp.sin(x) * x), ["sin", "mul"]),
    "custom_jvp in jit in remat": (jax.checkpoint(jax.jit(jax.nn.relu)), ["max"]),
    "named call": (jax.named_call(jnp.tanh), ["tanh"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_opened(name):
    fun, expected = CALLS[name]
    assert names(check(fun, T, passes=[inline])) == expected


def test_closed_calls_are_opened():
    program = program_of(jax.jit(lambda x: jnp.sin(x) + 1), T)
    (call,) = program.eqns
    closed = call.replace(
        primitive=primitives.closed_call_p, params={"call_jaxpr": call.params["jaxpr"]}
    )
    opened = inline(program.with_eqns([closed]))
    assert names(opened) == ["sin", "add"]
    same_bits(compiled(opened, T), jnp.sin(T) + 1)


def test_the_text_shows_a_call_before_and_its_equations_after():
    text = show(program_of(jax.jit(lambda x: jnp.sin(x) * x), T), inline)
    head, before, after = text.replace("--- after", "--- before").split("--- before")
    assert head == "inline: 1 -> 2 equations\n"
    assert "jit[" in before
    assert after == "\n{ lambda ; a:f64[3]. let b:f64[3] = sin a; c:f64[3] = mul b a in (c,) }"


def test_a_function_called_twice_gets_variables_of_its_own():
    inner = jax.jit(lambda x, y: jnp.tanh(x) * y)
    program = check(
        lambda a, b: (inner(a, b), inner(b, a), inner(inner(a, b), a)), T, T + 1, passes=[inline]
    )
    written = [var for eqn in program.eqns for var in eqn.outvars]
    assert len(written) == len(set(written)) == 8


@pytest.mark.parametrize(
    "fun",
    [
        jax.jit(lambda x: x),
        jax.jit(lambda x: (x, x)),
        jax.jit(lambda x: 3.0),
        jax.jit(lambda x: (jnp.sin(x), 2, x)),
        lambda x: jax.jit(lambda y: (y, y * 2))(x)[0] + jax.jit(lambda y: 1.5)(x),
    ],
)
def test_calls_whose_outputs_are_inputs_or_literals(fun):
    program = check(fun, T, passes=[inline])
    assert "jit" not in names(program)


def test_an_output_that_the_caller_drops_stays_dropped():
    program = check(lambda x: jax.jit(lambda y: (jnp.sin(y), jnp.cos(y)))(x)[1], T, passes=[inline])
    assert "cos" in names(program)


def test_arrays_inside_a_call_become_constants_of_the_program():
    inner = jax.jit(lambda x: x * jnp.asarray(np.array([1.0, 2.0, 3.0])))
    check(lambda x: inner(x) + inner(x + 1), T, passes=[inline])


def test_derivatives_take_the_custom_rule_before_calls_are_opened():
    total = lambda x, y: jnp.sum(lopsided(x, y) + doubled(x))
    program = check(jax.grad(total), T, T + 1)
    np.testing.assert_allclose(compiled(program, T, T + 1)[0], 3.0 * (T + 1) + 5)


def test_a_call_with_a_sharding_of_its_own_stays_closed():
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    program = check(jax.jit(jnp.sin, in_shardings=sharding), T, passes=[inline])
    assert names(program) == ["jit"]


def test_effects_of_opened_calls_keep_their_order(capfd):
    @jax.jit
    def inner(x):
        jax.debug.print("one {}", x, ordered=True)
        jax.debug.print("two {}", x, ordered=True)
        return x

    def fun(x):
        return inner(inner(x) + 1)

    program = simplified(fun, 1.0)
    compiled(program, 1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == [
        "one",
        "1.0",
        "two",
        "1.0",
        "one",
        "2.0",
        "two",
        "2.0",
    ]


# --- fold -----------------------------------------------------------------------------------------

FOLD = (inline, fold_constants)
FOLDED = {
    "integers": lambda x: x[:, None] * (jnp.arange(4) * 2 - 1),
    "sums of floats": lambda x: x * (jnp.float64(0.1) + jnp.float64(0.2)),
    "masks": lambda x: (
        jnp.where(jnp.arange(3) % 1 > -1, x, 0.0) * jnp.where(jnp.arange(3) > 1, 1.0, 2.0)
    ),
    "identity matrix": lambda x: jnp.eye(3) @ x,
    "moves": lambda x: x + jnp.flip(jnp.concatenate([jnp.zeros(1), jnp.ones(2)])).reshape(1, 3)[0],
    "scalars": lambda x: x * jnp.float32(3).astype(jnp.float64),
}


@pytest.mark.parametrize("name", FOLDED)
def test_values_that_read_no_input_become_constants(name):
    fun = FOLDED[name]
    program = check(fun, T, passes=(*FOLD, drop_dead))
    reads_input = set(program.invars)
    for eqn in program.eqns:
        is_fed = any(atom in reads_input for atom in eqn.invars if not hasattr(atom, "val"))
        assert is_fed or eqn.primitive.name in ("rem", "and", "div"), eqn
        reads_input.update(eqn.outvars)


def test_the_text_shows_a_folded_constant():
    program = run_passes(program_of(lambda x: x * (jnp.float64(2.0) + 0.5), T), [inline])
    assert show(program, fold_constants) == (
        "fold_constants: 2 -> 1 equations\n"
        "--- before\n"
        "{ lambda ; a:f64[3]. let\n    b:f64[] = add 2.0:f64[] 0.5:f64[]\n    c:f64[3] = mul a b\n "
        " in (c,) }\n"
        "--- after\n"
        "{ lambda ; a:f64[3]. let b:f64[3] = mul a 2.5:f64[] in (b,) }"
    )


def test_the_sign_of_a_folded_zero_is_kept():
    def fun(x):
        zero = jnp.float64(0.0)
        return x / (zero * -1.0), x / (zero * 1.0), x / (-1.0 * jnp.zeros(3)), x + zero * -1.0

    program = check(fun, T, passes=FOLD)
    assert names(program).count("mul") == 0
    assert np.isneginf(np.asarray(compiled(program, T)[0])).tolist() == [True, False, True]


def test_folded_nan_and_infinity_are_kept():
    def fun(x):
        inf = jnp.float64(np.inf)
        return x * (inf - inf), x + inf * 2.0, jnp.where(jnp.isnan(x), x, jnp.float64(np.nan) + 1.0)

    check(fun, T, passes=FOLD)


@pytest.mark.parametrize(
    "fun", [lambda x: x * (jnp.int32(2) + 1), lambda x: x * (2 * jnp.ones(3, int))]
)
def test_folding_keeps_strong_types(fun):
    check(fun, jnp.float32(3), passes=PASSES)
    check(fun, jnp.bfloat16(3), passes=PASSES)


@pytest.mark.parametrize("value", [2, 2.0, True, 1j])
@pytest.mark.parametrize("x", [jnp.float32(3), jnp.bfloat16(3), jnp.int32(3), 3, 3.0])
def test_folding_keeps_weak_types(value, x):
    def fun(x):
        weak = jnp.asarray(value) if isinstance(value, bool) else lax.stop_gradient(value)
        return x * weak, x * (weak + weak), weak, lax.broadcast(weak, (3,))

    check(fun, x)


def test_outputs_that_are_folded_become_literals_or_constants():
    program = check(lambda x: (jnp.arange(3) + 1, jnp.float64(1.0) + 1.0, x), T, passes=FOLD)
    assert names(program) == []


def test_an_effect_with_constant_operands_is_kept(capfd):
    def fun(x):
        jax.debug.print("{}", jnp.float64(1.0) + 1.5)
        return x

    program = simplified(fun, 1.0)
    assert names(program) == ["debug_print"]
    compiled(program, 1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out.strip() == "2.5"


@pytest.mark.parametrize("depth", [1, 6])
def test_an_equation_is_written_once_however_deep_it_lies(depth, monkeypatch):
    def fun(x):
        for k in range(10):
            x = jnp.sin(x * k)
        return x

    for _ in range(depth):
        fun = jax.jit(lambda x, fun=fun: fun(x) + 1.0)
    program = program_of(fun, 1.0)
    made, new_var = [], _jax.new_var
    monkeypatch.setattr(_jax, "new_var", lambda aval: made.append(aval) or new_var(aval))
    assert len(inline(program).eqns) == len(made) == 20 + depth


# --- merge ----------------------------------------------------------------------------------------

MERGE = (inline, merge_equal)


def test_the_text_shows_equal_equations_merged():
    program = program_of(lambda x: jnp.sin(x) * jnp.sin(x), 1.0)
    assert show(program, merge_equal) == (
        "merge_equal: 3 -> 2 equations\n"
        "--- before\n"
        "{ lambda ; a:f64[]. let\n    b:f64[] = sin a\n    c:f64[] = sin a\n    d:f64[] = mul b "
        "c\n  in (d,) }\n"
        "--- after\n"
        "{ lambda ; a:f64[]. let b:f64[] = sin a; c:f64[] = mul b b in (c,) }"
    )


def test_parameters_are_read_only_of_equations_that_read_the_same(monkeypatch):
    keys = []
    key_of = simplify.equation_key
    monkeypatch.setattr(simplify, "equation_key", lambda eqn: keys.append(eqn) or key_of(eqn))
    fun = lambda x: (jnp.sin(x), jnp.sin(x), jnp.sin(x), jnp.cos(x), jnp.exp(jnp.cos(x + 1.0)))
    program = simplified(fun, 1.0, passes=MERGE)
    assert names(program) == ["sin", "cos", "add", "cos", "exp"]
    assert [eqn.primitive.name for eqn in keys] == ["sin"] * 3


MERGED = {
    "consumers of merged values": (lambda x: (jnp.cos(jnp.sin(x)), jnp.cos(jnp.sin(x))), 2),
    "literals": (lambda x: (x * 2.5, x * 2.5), 1),
    "NaN literals": (lambda x: (x * np.nan, x * np.nan), 1),
    "parameters": (lambda x: (lax.cumsum(x), lax.cumsum(x)), 1),
    "calls": (lambda x: jax.jit(jnp.sin)(x) + jnp.sin(x), 2),
    "sorts": (lambda x: (lax.sort(x), lax.sort(x)), 1),
    "three times": (lambda x: (jnp.exp(x), jnp.exp(x), jnp.exp(x)), 1),
    "products": (lambda x: (x @ x, x @ x), 1),
}


@pytest.mark.parametrize("name", MERGED)
def test_equal_equations_are_evaluated_once(name):
    fun, expected = MERGED[name]
    assert len(check(fun, T, passes=MERGE).eqns) == expected


DISTINCT = {
    "zeros of both signs": lambda x: (x / 0.0, x / -0.0),
    "array zeros of both signs": lambda x: (x * np.zeros(3), x * -np.zeros(3)),
    "a zero and a NaN": lambda x: (x * 0.0, x * np.nan),
    "neighbours": lambda x: (x + 1.0, x + np.nextafter(1.0, 2.0)),
    "operands in another order": lambda x: (jnp.arctan2(x, x + 1), jnp.arctan2(x + 1, x)),
    "flags": lambda x: (lax.cumsum(x), lax.cumsum(x, reverse=True)),
    "powers": lambda x: (lax.integer_pow(x, 3), lax.integer_pow(x, 2)),
    "precisions": lambda x: (lax.reduce_precision(x, 5, 10), lax.reduce_precision(x, 5, 11)),
    "dtypes": lambda x: (x.astype(jnp.float32), x.astype(jnp.int32)),
    "directions": lambda x: (lax.sort(x), -lax.sort(-x)),
    "branches": lambda x: (
        lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        lax.cond(x[0] > 0, jnp.cos, jnp.sin, x),
    ),
    "fill values": lambda x: (
        x.at[jnp.array([0, 9])].get(mode="fill", fill_value=7.0),
        x.at[jnp.array([0, 9])].get(mode="fill", fill_value=np.nan),
    ),
    "random functions": lambda x: (
        jax.random.normal(jax.random.key(0)),
        jax.random.uniform(jax.random.key(0)),
    ),
}


@pytest.mark.parametrize("name", DISTINCT)
def test_equations_that_differ_are_not_merged(name):
    fun = DISTINCT[name]
    first, second = compiled(check(fun, T, passes=MERGE), T)
    assert bits(first) != bits(second)


def test_weak_and_strong_operands_are_not_merged():
    def fun(x):
        return x * 2.0, x * jnp.float64(2.0), x * jnp.float32(2.0)

    for x in (jnp.float32(3), jnp.bfloat16(3), 3.0):
        check(fun, x, passes=MERGE)
    check(lambda x: (lax.mul(x, 2.0), lax.mul(x, np.float64(2.0))), 3.0, passes=MERGE)


def test_literals_of_other_types_are_not_merged():
    check(lambda: (jnp.zeros(3), jnp.zeros(3, int), jnp.zeros(3, np.uint64)), passes=MERGE)


def test_a_matrix_product_in_another_precision_is_not_merged():
    def fun(x):
        with jax.default_matmul_precision("float32"):
            precise = x @ x
        return x @ x, precise

    assert len(check(fun, T, passes=MERGE).eqns) == 2


def test_draws_from_one_key_are_merged_and_draws_from_two_keys_are_not():
    def fun(key):
        one, two = jax.random.split(key)
        return (
            jax.random.bits(one),
            jax.random.bits(one),
            jax.random.bits(two),
            jax.random.bits(key),
        )

    program = check(fun, jax.random.key(3), passes=MERGE)
    assert names(program).count("random_bits") == 3
    draws = [int(x) for x in compiled(program, jax.random.key(3))]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_raw_keys_are_not_merged_either():
    check(
        lambda key: [jax.random.normal(k, (2,)) for k in (key, *jax.random.split(key))],
        jax.random.PRNGKey(1),
    )


def test_draws_from_the_stateful_generator_are_not_merged():
    fun = lambda: (lax.rng_uniform(0.0, 1.0, (4,)), lax.rng_uniform(0.0, 1.0, (4,)))
    first, second = jax.jit(fun)()
    assert bits(first) != bits(second)
    first, second = compiled(simplified(fun))
    assert bits(first) != bits(second)


def test_effects_are_never_merged(capfd):
    def fun(x):
        jax.debug.print("seen {}", x)
        jax.debug.print("seen {}", x)
        return x

    program = simplified(fun, 1.0)
    assert names(program) == ["debug_print", "debug_print"]
    compiled(program, 1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["seen 1.0", "seen 1.0"]


def test_impure_callbacks_are_neither_merged_nor_dropped():
    calls = []

    def host():
        calls.append(None)
        return np.float64(len(calls))

    def fun(x):
        draw = lambda: jax.experimental.io_callback(
            host, jax.ShapeDtypeStruct((), np.float64), ordered=True
        )
        draw()
        return x + draw(), x + draw()

    program = simplified(fun, 1.0)
    assert [float(x) for x in compiled(program, 1.0)] == [3.0, 4.0]


def test_pure_callbacks_of_one_function_and_operand_are_merged():
    calls = []

    def host(x):
        calls.append(None)
        return np.asarray(x) * 2

    def fun(x):
        ask = lambda: jax.pure_callback(host, jax.ShapeDtypeStruct((3,), np.float64), x)
        return ask(), ask()

    program = simplified(fun, T)
    same_bits(compiled(program, T), (jnp.asarray(T * 2), jnp.asarray(T * 2)))
    assert len(calls) == 1


def test_equations_with_dropped_outputs_keep_their_results():
    def fun(x):
        first, _, _ = jnp.split(x, 3)
        _, _, last = jnp.split(x, 3)
        return first, last, jnp.split(x, 3)

    check(fun, T, passes=MERGE)


def test_a_function_of_two_constants_of_equal_bits_is_right():
    check(lambda x: (x + np.array([1.0, 2.0, 3.0]), x + np.array([1.0, 2.0, 3.0])), T)


# --- dead code ------------------------------------------------------------------------------------


def test_the_text_shows_dead_equations_dropped():
    def fun(x):
        jnp.exp(jnp.cos(x))
        return jnp.sin(x)

    assert show(program_of(fun, 1.0), drop_dead) == (
        "drop_dead: 3 -> 1 equations\n"
        "--- before\n"
        "{ lambda ; a:f64[]. let\n    b:f64[] = cos a\n    _:f64[] = exp b\n    c:f64[] = sin a\n  "
        "in (c,) }\n"
        "--- after\n"
        "{ lambda ; a:f64[]. let b:f64[] = sin a in (b,) }"
    )


def test_an_equation_with_one_live_output_stays():
    program = check(lambda x: jnp.split(x, 3)[1], T, passes=(inline, drop_dead))
    assert names(program) == ["split"]


def test_what_an_effect_reads_is_not_dead(capfd):
    def fun(x):
        jax.debug.print("{}", jnp.cos(x) * 0 + 7)
        jnp.exp(x)
        return x

    program = simplified(fun, 1.0)
    assert names(program) == ["cos", "mul", "add", "debug_print"]
    compiled(program, 1.0)
    jax.effects_barrier()
    assert capfd.readouterr().out.strip() == "7.0"


def test_constants_that_nothing_reads_are_dropped():
    data = jnp.asarray(np.arange(5000.0))

    def fun(x):
        jnp.sum(data)
        return x * 2

    program = program_of(fun, 1.0)
    assert len(program.consts) == 1
    assert drop_dead(program).consts == drop_dead(program).constvars == ()


def test_outputs_that_are_constants_inputs_or_repeated_survive():
    data = jnp.asarray(np.arange(5000.0))
    program = check(lambda x, y: (data, x, x, 2.0, jnp.sin(y), jnp.sin(y)), T, 1.0)
    assert len(program.outvars) == 6
    assert names(program) == ["sin"]
