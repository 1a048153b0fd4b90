"""The walk over a program: layouts, effects, branches and loops, and the default of depending on
everything.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.program.masks import Traced, check_sound, is_exact
from helpers import MINIMAL, examples, primitives_run
from hypothesis import given
from properties.programs import START, programs

import incrax
from incrax._program import trace
from incrax.engine.program.dependence import ALWAYS, MAX_TRACKED, Layout, depend, make_layout

lax = jax.lax
T = np.array([0.7, 1.3, -0.4])


def avals(*shapes, dtype=np.float64):
    return [jax.core.ShapedArray(shape, np.dtype(dtype)) for shape in shapes]


def dependence(fun, *args, max_tracked=64):
    program = trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)
    return program, depend(program, make_layout([var.aval for var in program.invars], max_tracked))


def output_leaves(fun, *args):
    """Per output, the numbers of the input leaves that it depends on."""
    program, found = dependence(fun, *args)
    return [[i for i, _ in found.layout.leaves_of(found.of(atom))] for atom in program.outvars]


# --- layout ---------------------------------------------------------------------------------------


def test_each_element_of_a_small_leaf_has_a_bit_and_each_other_leaf_one():
    shapes = ((), (3,), (2, 2), (65,), (1,), (0, 3))
    layout = make_layout(avals(*shapes), 64)
    assert layout == Layout((1, 2, 5, 9, 10, 11), (1, 3, 4, 1, 1, 1), shapes)
    assert layout.full == (1 << 12) - 2
    assert not layout.full & ALWAYS


def test_leaf_masks_do_not_overlap_and_make_up_the_full_mask():
    layout = make_layout(avals((), (3,), (100,), (5,)), 64)
    masks = [layout.leaf_mask(i) for i in range(4)]
    assert sum(masks) == layout.full
    assert [mask.bit_count() for mask in masks] == [1, 3, 1, 5]


def test_a_layout_names_leaves_and_elements_of_a_mask():
    layout = make_layout(avals((), (3,), (100,)), 64)
    assert layout.leaves_of(layout.full) == [(0, None), (1, [0, 1, 2]), (2, None)]
    assert layout.leaves_of(1 << 2 | 1 << 4) == [(1, [0, 2])]
    assert layout.leaves_of(ALWAYS) == []


@pytest.mark.parametrize(("max_tracked", "width"), [(0, 1), (2, 1), (3, 3)])
def test_a_leaf_up_to_the_limit_is_tracked_by_element(max_tracked, width):
    assert make_layout(avals((3,)), max_tracked).widths == (width,)


def test_keys_are_tracked_as_a_whole():
    key = jax.random.split(jax.random.key(0), 4)
    assert make_layout([jax.typeof(key)], 64).widths == (1,)
    assert output_leaves(lambda keys, a: [keys[1], a], key, 1.0) == [[0], [1]]


def test_a_function_without_inputs_has_an_empty_mask():
    program, found = dependence(lambda: jnp.arange(3) * 2)
    assert found.layout.full == 0
    assert found.of(program.outvars[0]) == 0


# --- masks of a program ---------------------------------------------------------------------------


def test_outputs_name_their_leaves():
    def fun(a, b, t):
        return a * b, jnp.sin(t), a, 3.0, jnp.arange(2), t[1] + b

    assert output_leaves(fun, 1.0, 2.0, T) == [[0, 1], [2], [0], [], [], [1, 2]]


def test_an_equation_depends_on_what_its_outputs_do():
    program, found = dependence(lambda a, t: [t[0] * a, t[1] * 2], 1.0, T)
    masks = [found.of_equation(eqn) for eqn in program.eqns]
    assert masks == [found.of(eqn.outvars[0]) for eqn in program.eqns]
    assert {1 << 2, 1 << 3, 1 << 1 | 1 << 2} <= set(masks)


def test_every_variable_has_a_mask():
    program, found = dependence(
        lambda a, t: [jnp.cumsum(t) * a, jnp.linalg.norm(t), jnp.sort(t)], 1.0, T
    )
    variables = [
        *program.invars,
        *program.constvars,
        *(v for eqn in program.eqns for v in eqn.outvars),
    ]
    assert set(variables) <= set(found.masks)
    assert all(mask <= found.layout.full for mask in found.masks.values())


def test_a_value_above_the_limit_has_one_mask():
    traced = Traced(lambda t: jnp.concatenate([jnp.tile(t, MAX_TRACKED // 3), t]), T)
    (masks,) = traced.output_masks()
    assert len(masks) > MAX_TRACKED
    assert set(masks) == {traced.layout.full}


def test_an_unknown_primitive_depends_on_everything_it_reads():
    callback = lambda t, a: jax.pure_callback(
        lambda t, a: t * a, jax.ShapeDtypeStruct((3,), np.float64), t, a
    )
    traced = Traced(lambda t, a, b: (callback(t, a), b), T, 2.0, 3.0)
    first, second = traced.output_masks()
    assert set(first) == {traced.layout.leaf_mask(0) | traced.layout.leaf_mask(1)}
    assert second == [traced.layout.leaf_mask(2)]


# --- effects --------------------------------------------------------------------------------------


def test_what_has_an_effect_runs_always_and_so_does_what_reads_it():
    def host(x):
        return np.asarray(x)

    def fun(a, b):
        read = jax.experimental.io_callback(host, jax.ShapeDtypeStruct((), np.float64), a)
        return read * 2, b * 2

    program, found = dependence(fun, 1.0, 2.0)
    first, second = (found.of(atom) for atom in program.outvars)
    assert first & ALWAYS
    assert not second & ALWAYS


@pytest.mark.parametrize(
    "wrap",
    [
        lambda body: lambda a, t: jax.jit(body)(a, t),
        lambda body: lambda a, t: lax.cond(a > 0, body, lambda a, t: a, a, t),
        lambda body: lambda a, t: lax.scan(lambda c, x: (body(c, t) + x, None), a, t)[0],
        lambda body: lambda a, t: lax.fori_loop(0, 3, lambda i, c: body(c, t), a),
        lambda body: lambda a, t: lax.while_loop(lambda c: c < 3, lambda c: body(c, t) + 1, a),
    ],
    ids=["jit", "cond", "scan", "fori", "while"],
)
def test_effects_inside_calls_branches_and_loops_are_seen(wrap):
    def body(a, t):
        jax.debug.print("{}", a)
        return a + t[0]

    program, found = dependence(wrap(body), 1.0, T)
    with_effects = [eqn for eqn in program.eqns if eqn.effects]
    assert with_effects
    assert all(found.of_equation(eqn) & ALWAYS for eqn in with_effects)
    assert all(found.of(var) & ALWAYS for eqn in with_effects for var in eqn.outvars)


# --- branches and loops ---------------------------------------------------------------------------

NESTED = {
    "cond on one leaf": (
        lambda p, t, a: lax.cond(p > 0, lambda: (t, t[0]), lambda: (t * 2, a)),
        (1.0, T, 2.0),
    ),
    "cond on a boolean": (lambda p, t: lax.cond(p, lambda: t[:2] * 2, lambda: t[1:]), (True, T)),
    "switch": (lambda n, t: lax.switch(n, [lambda: t[0], lambda: t[1], lambda: t[0] * 2]), (1, T)),
    "nested cond": (
        lambda p, q, t: lax.cond(
            p > 0, lambda: lax.cond(q > 0, lambda: t[0], lambda: t[1]), lambda: t[2]
        ),
        (1.0, 1.0, T),
    ),
    "cond inside scan": (
        lambda p, a, t: lax.scan(lambda c, x: (lax.cond(x > p, lambda: c + x, lambda: c), c), a, t),
        (0.0, 1.0, T),
    ),
    "scan": (
        lambda a, b, t: lax.scan(lambda c, x: (c * jnp.sin(a) + x, (c, b)), 0.5, t),
        (1.0, 2.0, T),
    ),
    "rotating carries": (
        lambda a, b, c, t: lax.scan(lambda s, x: ((s[1], s[2], s[0]), x), (a, b, c), t),
        (1.0, 2.0, 3.0, T),
    ),
    "carry reached late": (
        lambda a, b, t: lax.scan(lambda s, x: ((s[1], s[2], s[3], b), None), (a, a, a, a), t),
        (1.0, 2.0, np.ones(6)),
    ),
    "scan in reverse": (
        lambda a, t: lax.scan(lambda c, x: (c + x, c), a, t, reverse=True),
        (1.0, T),
    ),
    "scan of length 0": (lambda a, t: lax.scan(lambda s, x: (s + x, s), a, t), (1.0, T[:0])),
    "nested scan": (
        lambda a, b, t: lax.scan(
            lambda c, x: (lax.scan(lambda d, y: (d * y + b, d), c, t)[0], c), a, t
        ),
        (1.0, 2.0, T),
    ),
    "while": (
        lambda n, a, b: lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * b, c[2]), (0.0, a, b)
        ),
        (3.0, 1.0, 2.0),
    ),
    "while stopped by a carry": (
        lambda a, b: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1 + a * a, c[1] + 1), (0.0, b)
        ),
        (1.0, 2.0),
    ),
    "fori": (lambda n, a, t: lax.fori_loop(0, n, lambda i, c: c + t[0], a), (3, 1.0, T)),
    "fori over elements": (lambda t: lax.fori_loop(0, 3, lambda i, c: c + t[i], 0.0), (T,)),
    "fori that updates": (
        lambda t: lax.fori_loop(0, 2, lambda i, c: c.at[i + 1].add(c[i]), t),
        (T,),
    ),
    "custom_jvp": (lambda t: (jax.nn.relu(t), jax.nn.gelu(t)), (T,)),
    "gradient of a loop": (
        jax.grad(lambda a, t: lax.scan(lambda c, x: (c * a + x, None), a, t)[0]),
        (0.5, T),
    ),
    "vmapped cond": (
        lambda t, a: jax.vmap(lambda x: lax.cond(x > 0, lambda: x * a, lambda: x))(t),
        (T, 2.0),
    ),
    "jit": (lambda a, t: jax.jit(lambda a, t: (t[0] * a, t[1:]))(a, t), (2.0, T)),
}


@pytest.mark.parametrize("name", NESTED)
def test_masks_of_branches_and_loops_are_sound(name):
    traced = Traced(NESTED[name][0], *NESTED[name][1])
    check_sound(traced, traced.reached())


@pytest.mark.parametrize("name", ["jit", "custom_jvp", "cond on a boolean", "nested cond", "scan"])
def test_masks_are_sound_before_calls_are_opened(name):
    traced = Traced(NESTED[name][0], *NESTED[name][1], simplify=False)
    check_sound(traced, traced.reached())


def test_an_inner_jit_keeps_elements_apart():
    traced = Traced(NESTED["jit"][0], *NESTED["jit"][1], simplify=False)
    assert is_exact(traced, traced.reached())


def test_each_output_of_a_branch_has_leaves_of_its_own():
    fun = lambda p, a, b, c: lax.cond(p > 0, lambda: (a, b), lambda: (a * 2, c))
    assert output_leaves(fun, 1.0, 2.0, 3.0, 4.0) == [[0, 1], [0, 2, 3]]


def test_a_branch_that_gives_a_literal_depends_on_the_predicate():
    assert output_leaves(lambda p, a: lax.cond(p > 0, lambda: 1.0, lambda: 2.0), 1.0, 2.0) == [[0]]


def test_each_output_of_a_scan_has_leaves_of_its_own():
    def fun(a, b, c, xs):
        return lax.scan(lambda s, x: ((s[0] * b, s[1] + c), (x, s[1])), (a, 0.0), xs)

    assert output_leaves(fun, 1.0, 2.0, 3.0, np.ones(100)) == [[0, 1], [2], [3], [2]]


def test_every_output_of_a_while_loop_depends_on_what_stops_it():
    def fun(n, a, b):
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2, c[2] + 1), (0.0, a, b)
        )

    assert output_leaves(fun, 3.0, 1.0, 2.0) == [[0], [0, 1], [0, 2]]


# --- the law --------------------------------------------------------------------------------------


@examples(1 / 4)
@given(programs(max_size=6))
def test_masks_of_random_programs_are_sound(random_program):
    traced = Traced(random_program, *START)
    check_sound(traced, traced.reached(tries=1))


def test_elements_that_a_program_uses_apart_are_rerun_apart():
    def fun(theta, x):
        first, rest = theta[0], theta[1:].reshape(2, 2)
        rows = jnp.stack([jnp.exp(rest[0]), jnp.sin(rest[1])])
        return jnp.sum(jnp.cos(first * x)), rows[0] * 2, rows[1].sum()

    f = incrax.incremental(fun, tuning=MINIMAL)
    theta = np.arange(5.0)
    f(theta, np.ones(300))
    for index, expected in [(0, "cos"), (1, "exp"), (4, "sin")]:
        theta = theta.copy()
        theta[index] += 1
        f(theta, np.ones(300))
        assert {"cos", "exp", "sin"} & set(primitives_run(f)) <= {
            expected,
            "exp" if index else expected,
            "sin" if index else expected,
        }
