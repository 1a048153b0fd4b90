"""Plans that differ only in what they read have one form, and share one program and its seconds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, examples, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax._program import trace
from incrax.engine.compile.executables import Kin
from incrax.engine.plan.families import MAX_PIECE, canonical_form, with_names
from incrax.engine.plan.plan import plan_dirty
from incrax.engine.policy.planner import FREE_PROGRAMS
from incrax.engine.rewrites.partial_sums import MAX_TERMS

pytestmark = pytest.mark.usefixtures("known_prices")

EAGER = incrax.Tuning(timed=False, compile_s=float("inf"), hot_after=1)
X = np.linspace(0.1, 2.0, 300)
LONG = np.linspace(0.1, 2.0, 30_000)


def form(function, *args):
    """The form of a whole function, of which all inputs are arguments of the same standing."""
    program = trace(function, *args)
    kind_of = lambda var: var.aval
    outputs = [atom for atom in program.outvars]
    return canonical_form(program.eqns, outputs, (), kind_of)


def key(function, *args):
    return form(function, *args).key


# --- what has the same form -----------------------------------------------------------------------

OTHERWISE_WRITTEN = {
    "inputs in another order": (lambda a, b: jnp.sin(a) - b, lambda a, b: jnp.sin(b) - a),
    "equations in another order": (
        lambda a, b: (lambda s, c: s - c)(jnp.sin(a), jnp.cos(b)),
        lambda a, b: (lambda c, s: s - c)(jnp.cos(b), jnp.sin(a)),
    ),
    "terms in another order": (
        lambda a, b: jnp.sin(a) + jnp.cos(b),
        lambda a, b: jnp.cos(a) + jnp.sin(b),
    ),
    "another name": (
        lambda a, b: incrax.keep(jnp.sin(a), name="one") - b,
        lambda a, b: incrax.keep(jnp.sin(a), name="two") - b,
    ),
}


@pytest.mark.parametrize("name", OTHERWISE_WRITTEN)
def test_the_same_written_otherwise_has_one_form(name):
    one, other = OTHERWISE_WRITTEN[name]
    assert key(one, X, X) == key(other, X, X)


def test_places_of_a_few_elements_are_arguments():
    theta = np.arange(12.0)
    keys = {key(lambda t, k=k: jnp.sin(t[k]) * t[(5 * k + 1) % 12], theta) for k in range(12)}
    assert len(keys) == 1


def test_places_of_a_row_of_data_are_arguments():
    """Of the tips of a tree, 1,000 sites of four states each."""
    tips = np.ones((8, 1_000, 4))
    keys = {key(lambda x, k=k: jnp.sin(x[k]).sum(), tips) for k in range(8)}
    assert len(keys) == 1


def test_places_of_many_are_not():
    rows = np.ones(3 * MAX_PIECE)
    at = lambda start: lambda x: jnp.sin(x[start : start + MAX_PIECE + 1])
    assert key(at(0), rows) != key(at(7), rows)


def test_outputs_have_no_order():
    """That which comes first in the one comes last in the other."""
    one = form(lambda a, b: (jnp.sin(a), jnp.cos(b)), X, X)
    other = form(lambda a, b: (jnp.cos(b), jnp.sin(a)), X, X)
    assert one.key == other.key
    assert one.outputs == other.outputs[::-1]


# --- what only looks so ---------------------------------------------------------------------------

A = np.ones((4, 4))
OTHERS = {
    "a literal": (lambda a: a * 2.0, lambda a: a * 3.0),
    "the sign of a zero": (lambda a: a + 0.0, lambda a: a + -0.0),
    "an axis": (lambda a: a.sum(0), lambda a: a.sum(1)),
    "a dtype": (lambda a: a.astype(np.float32), lambda a: a.astype(np.int32)),
    "operands of a difference": (lambda a: jnp.sin(a) - a, lambda a: a - jnp.sin(a)),
    "what is read twice": (lambda a: a * jnp.sin(a), lambda a: jnp.cos(a) * jnp.sin(a)),
    "a stride": (lambda a: a[::2].sum(), lambda a: a[:2].sum()),
    "a size": (lambda a: a[0, :2].sum(), lambda a: a[0, :3].sum()),
    "inside a loop": (
        lambda a: jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), a),
        lambda a: jax.lax.fori_loop(0, 3, lambda _, x: jnp.cos(x), a),
    ),
    "the function that is called": (
        lambda a: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(a.shape, a.dtype), a),
        lambda a: jax.pure_callback(np.cos, jax.ShapeDtypeStruct(a.shape, a.dtype), a),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_has_another_form(name):
    one, other = OTHERS[name]
    assert key(one, A) != key(other, A)
    assert key(one, A) == key(one, A)


def test_one_input_twice_is_not_two_inputs():
    assert key(lambda a, b: a * b, X, X) != key(lambda a, b: a * a, X, X)


def test_types_of_inputs_count():
    assert key(jnp.sin, X) != key(jnp.sin, X.astype(np.float32))
    assert key(jnp.sin, X) != key(jnp.sin, X[:2])
    assert key(jnp.sin, 1.0) != key(jnp.sin, np.float64(1.0))  # weak types


def test_kinds_of_arguments_count():
    program = trace(jnp.sin, X)
    forms = [
        canonical_form(program.eqns, program.outvars, (), lambda _, kind=kind: kind)
        for kind in ("leaf", "load")
    ]
    assert forms[0].key != forms[1].key


# --- what is shared -------------------------------------------------------------------------------


def members(num):
    """Terms that are alike but for what they read, in a sum that starts and ends with others."""

    def function(theta, x):
        total = jnp.sum(x)
        parts = [jnp.sin(theta[k] * x) * jnp.exp(-x) for k in range(num)]
        for part in parts:
            total = total + jnp.sum(jnp.tanh(part))
        return total

    return function


def served(function, num, tuning=EAGER, rounds=3):
    """Calls in which one element after the other moves; the function, compared with plain JAX."""
    ours = incrax.incremental(function, tuning=tuning)
    plain = jax.jit(function)
    theta = np.linspace(0.5, 1.5, num)
    ours(theta, LONG)
    for turn in range(rounds):
        for k in range(num):
            theta = theta.copy()
            theta[k] += 0.1 * (turn + 1)
            np.testing.assert_allclose(ours(theta, LONG), plain(theta, LONG), rtol=1e-12)
    return ours


def programs(ours):
    engine = ours._traces.latest.engine
    entries = engine.chooser.entries.values()
    return [entry.program for entry in entries if entry.program is not None]


def test_ten_members_have_one_program():
    ours = served(members(10), 10)
    found = programs(ours)
    assert len(found) == 10
    assert sum(not program.executable.is_shared for program in found) <= 2
    assert len({program.executable.family for program in found[1:]}) == 1


def test_a_later_member_compiles_nothing():
    few = served(members(5), 5, rounds=2).stats.compiles
    many = served(members(20), 20, rounds=2).stats.compiles
    assert many == few


def test_a_member_that_differs_has_its_own():
    def function(theta, x):
        parts = [jnp.sin(theta[k] * x) if k != 3 else jnp.cos(theta[k] * x) for k in range(6)]
        return sum(jnp.sum(jnp.tanh(part)) for part in parts)

    found = programs(served(function, 6))
    others = {program.executable.family for n, program in enumerate(found) if n not in (0, 3)}
    assert len(found) == 6
    assert len(others) == 1
    assert found[3].executable.family not in others


def test_constants_are_arguments():
    rows = [np.linspace(k, k + 1.0, 30_000) for k in range(4)]

    def function(theta, x):
        return sum(jnp.sum(jnp.sin(theta[k] * row)) for k, row in enumerate(rows)) + x.sum()

    found = programs(served(function, 4))
    assert len(found) == 4
    assert len({program.executable.family for program in found[1:]}) == 1
    assert len({program.executable.constants[0].tobytes() for program in found[1:]}) == 3


def test_seconds_of_a_family_are_those_of_its_first_member():
    ours = incrax.incremental(members(6), tuning=incrax.Tuning(compile_s=float("inf"), hot_after=1))
    theta = np.linspace(0.5, 1.5, 6)
    ours(theta, LONG)
    for step in range(30):
        theta = theta.copy()
        theta[0] += 0.01 * (step + 1)
        ours(theta, LONG)
    engine = ours._traces.latest.engine
    (first,) = programs(ours)
    assert first.is_measured
    other = engine.chooser.compiler.compile(first.plan)
    assert other.executable.is_shared
    assert other.is_measured
    assert other.seconds == first.seconds


def test_values_to_save_are_returned_in_the_order_of_the_form():
    def function(a, b, x):
        left = jnp.sin(a * x) * jnp.exp(x)
        right = jnp.sin(b * x) * jnp.exp(x)
        return jnp.sum(left * right), jnp.sum(left), jnp.sum(jnp.cos(right))

    ours = incrax.incremental(function, tuning=incrax.Tuning(planner="minimal"))
    plain = jax.jit(function)
    a, b = 0.5, 0.7
    for k in range(9):
        a, b = (a + 0.1, b) if k % 2 else (a, b + 0.1)
        for x, y in zip(ours(a, b, X), plain(a, b, X), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)


# --- a total over a loop of Python ----------------------------------------------------------------

NUM_PARTS = 20
PARTS = [np.linspace(0.1, 2.0, 30_000) * (1 + k / 7) for k in range(NUM_PARTS)]
WEIGHTS = [np.linspace(0.5, 1.5, 30) * (1 + k / 5) for k in range(NUM_PARTS)]


def total(*theta):
    """Each part has data of its own, few of some and many of others."""
    parts = zip(theta, PARTS, WEIGHTS, strict=True)
    return sum(jnp.sum(jnp.exp(-a * x)) * jnp.sum(jnp.sin(a * w)) for a, x, w in parts)


def plans_of_parts(numbers):
    ours = incrax.incremental(total, tuning=EAGER)
    theta = [np.float64(1.0)] * NUM_PARTS
    ours(*theta)
    ours(*theta[1:], np.float64(2.0))
    engine = ours._traces.latest.engine
    masks = map(engine.facts.layout.leaf_mask, numbers)
    return engine.chooser.compiler.compiler, [plan_dirty(engine.facts, mask) for mask in masks]


def test_each_part_of_a_total_makes_as_much_run_and_load():
    _, plans = plans_of_parts(range(1, NUM_PARTS))  # the first is added to zero
    assert {(len(plan.eqns), len(plan.loads)) for plan in plans} == {(8 + 19, 19)}


def test_the_parts_of_a_total_share_a_program_whatever_their_data():
    compiler, plans = plans_of_parts([1, 7, NUM_PARTS - 1])
    made = [compiler.compile_plan(plan) for plan in plans]  # held: families are known as long
    assert [executable.is_shared for executable in made[1:]] == [True, True]


def test_a_long_total_is_taken_from_the_sum_so_far():
    def of_many(theta):
        return sum(jnp.sin(theta[k] * X).sum() for k in range(MAX_TERMS + 2))

    ours = incrax.incremental(of_many, tuning=incrax.Tuning(timed=False))
    theta = np.linspace(0.5, 1.5, MAX_TERMS + 2)
    ours(theta)
    facts = ours._traces.latest.engine.facts
    assert len(plan_dirty(facts, facts.layout.leaf_mask(0)).loads) == 0
    element = 2 << (MAX_TERMS + 1)
    assert len(plan_dirty(facts, element).loads) == 1


def test_every_part_gets_its_plan_though_there_are_more_than_programs_on_trust():
    """One program serves all but the first; each part's change runs that alone."""
    assert NUM_PARTS > FREE_PROGRAMS + 2
    ours = incrax.incremental(jax.value_and_grad(total, range(NUM_PARTS)), tuning=EAGER)
    theta = [np.float64(1.0)] * NUM_PARTS
    ours(*theta)
    for turn in range(4):
        for k in range(NUM_PARTS):
            theta[k] = np.float64(1.0 + 0.1 * turn + 0.01 * k)
            value, _ = ours(*theta)
            np.testing.assert_allclose(value, total(*theta), rtol=1e-12)
            if turn == 3:
                assert ours.explain().served_by == "plan"
    assert ours._traces.latest.engine.planner.num_programs <= 3


# --- what is known before plans are made ----------------------------------------------------------


def digests(function, num):
    """What each parameter makes run."""
    ours = incrax.incremental(function, tuning=incrax.Tuning(timed=False))
    ours(np.linspace(0.5, 1.5, num), LONG)
    facts = ours._traces.latest.engine.facts
    return [facts.reached(2 << k).digest for k in range(num)]


def test_members_make_the_same_run_at_any_place_of_a_sum():
    def function(theta, x):
        return jnp.sum(sum(jnp.sin(theta[k] * x) for k in range(8)) ** 2)

    assert len(set(digests(function, 8)[1:])) == 1  # the first one is added to zero


def test_members_make_the_same_run_at_any_place_of_a_sum_of_numbers():
    """The commonest of all: a total over a loop of Python."""

    def function(theta, x):
        return sum(jnp.sum(jnp.sin(theta[k] * x)) for k in range(8))

    assert len(set(digests(function, 8)[1:])) == 1


def test_others_make_others_run():
    def function(theta, x):
        given = [jnp.sin(theta[0] * x), jnp.cos(theta[1] * x), jnp.sin(theta[2] * x) ** 2]
        given += [jnp.sin(theta[3] * x) ** 3, jnp.sin(theta[4] * x[:9]).sum() * x]
        return jnp.sum(sum(given, jnp.zeros_like(x)) ** 2)

    assert len(set(digests(function, 5))) == 5


def test_numbers_that_are_data_make_no_others_run():
    """Those of a county, as a program has them: exponents and places are what is computed."""

    def function(theta, x):
        return jnp.sum(sum(jnp.sin(theta[k] * x) * (0.5 + k) for k in range(8)) ** 2)

    assert len(set(digests(function, 8)[1:])) == 1


def test_the_number_of_equations_is_that_of_those_a_change_reaches():
    ours = incrax.incremental(lambda a, b: (jnp.sin(a), jnp.sin(jnp.cos(a * b))))
    ours(1.0, 2.0)
    reached = ours._traces.latest.engine.facts.reached
    assert [reached(mask).num_eqns for mask in (2, 4, 6)] == [4, 3, 4]


# --- programs at random ---------------------------------------------------------------------------

UNARY = (jnp.sin, jnp.cos, jnp.tanh, lambda x: x * 2.0, lambda x: x * 3.0)
BINARY = (jnp.add, jnp.multiply, jnp.subtract, jnp.maximum)
STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12
)


def built(steps, inputs, order):
    """A program of steps, which reads its inputs in some order, and swaps operands that commute."""
    values = [inputs[k] for k in order]
    for number, first, second in steps:
        x = values[first % len(values)]
        y = values[second % len(values)]
        if number < len(UNARY):
            values.append(UNARY[number](x))
        else:
            combine = BINARY[number - len(UNARY)]
            swaps = order[0] and combine in (jnp.add, jnp.multiply)
            values.append(combine(y, x) if swaps else combine(x, y))
    return values[-1]


@examples(4)
@given(STEPS, st.permutations(range(3)))
def test_the_program_of_another_member_gives_its_results(steps, order):
    inputs = [X[:3], X[5:8], X[20:23]]
    functions = [lambda *xs, o=o: built(steps, xs, o) for o in ((0, 1, 2), tuple(order))]
    one, other = (form(f, *inputs) for f in functions)
    if one.key != other.key:
        return  # of a symmetric program, another order may be found; it costs a program
    invars = list(trace(functions[1], *inputs).invars)
    program = trace(functions[1], *inputs)
    again = canonical_form(program.eqns, program.outvars, (), lambda var: var.aval)
    places = [list(program.invars).index(var) for var in again.arguments]
    first = trace(functions[0], *inputs)
    run = canonical_form(first.eqns, first.outvars, (), lambda var: var.aval)
    given_to_first = dict(zip(run.arguments, [inputs[k] for k in places], strict=True))
    found = incrax._program.evaluated(run.eqns, first.outvars, given_to_first)
    np.testing.assert_allclose(found[0], functions[1](*inputs), rtol=1e-12)
    assert len(invars) == 3


# --- types ----------------------------------------------------------------------------------------


@jax.custom_vjp
def halved(x):
    """Its gradient by a number of Python is an array, without the weak type of that."""
    return 0.5 * x


halved.defvjp(lambda x: (0.5 * x, None), lambda _, g: (jnp.asarray(0.5 * g, float),))


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b: jnp.sin(halved(a) * b) + a * a,
        lambda a, b: a * a + jnp.sin(halved(a) * b),
    ],
)
def test_a_gradient_keeps_its_weak_type_in_whatever_order_it_is_added(fun):
    """`add_any` has the weak type of its first operand."""
    ours = incrax.incremental(jax.grad(fun), tuning=MINIMAL)
    plain = jax.jit(jax.grad(fun))
    for b in (1.0, 2.0, 2.5):
        same(ours(1.0, b), plain(1.0, b))


# --- numbers in equations -------------------------------------------------------------------------

COUNTS = np.array([3.0, 0.5, 7.0, -0.0, 1.0, 2.5, -1.5, 4.0])


def by_counts(theta, counts=COUNTS, x=X, of=lambda term: term):
    """A value for each number that is data, each of its own parameter."""
    term = lambda t, count: jnp.sum(jnp.log1p(jnp.exp(t * x)) * count - t)
    return [of(term)(t, count) for t, count in zip(theta, counts, strict=True)]


def programs_of(ours):
    entries = ours._traces.latest.engine.chooser.entries.values()
    return {id(entry.program.executable.family) for entry in entries if entry.program is not None}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("differentiated", [True, False])
def test_plans_that_differ_in_numbers_share_a_program(dtype, differentiated):
    """The first one has its own, the second one that of all others."""
    counts, x = COUNTS.astype(dtype), X.astype(dtype)
    of = jax.value_and_grad if differentiated else lambda term: term
    model = lambda theta: by_counts(theta, counts, x, of)
    ours, plain = incrax.incremental(model, tuning=MINIMAL), jax.jit(model)
    theta = [dtype(1.0 + 0.1 * k) for k in range(len(counts))]
    ours(theta)
    for k in [*range(len(counts))] * 2:
        theta = [*theta[:k], dtype(theta[k] + 0.01), *theta[k + 1 :]]
        same(ours(theta), plain(theta), factor=2**8, terms=30.0)
    assert ours.explain().served_by == "plan"
    assert len(programs_of(ours)) == 3  # with that of the first call


def test_numbers_that_never_differ_are_written_into_the_program():
    ours = incrax.incremental(by_counts, tuning=MINIMAL)
    theta = [1.0 + 0.1 * k for k in range(len(COUNTS))]
    for k in (None, 1, 2, 4):
        if k is not None:
            theta = [*theta[:k], theta[k] + 0.01, *theta[k + 1 :]]
        ours(theta)
    entries = ours._traces.latest.engine.chooser.entries.values()
    passed = [e.program.executable.constants for e in entries if e.program is not None]
    numbers = [[float(x) for x in each if x.dtype == np.float64 and not x.shape] for each in passed]
    assert numbers == [[], [], [7.0], [1.0]]  # the first call, and the first that is written in


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x[3] * x, X),
        (lambda x: jnp.roll(x, 2), X),
        (lambda x: x**3, X),
        (lambda x: jnp.sin(x) * 2.0, 1.0),
    ],
    ids=["places", "shifts", "exponents", "no type of their own"],
)
def test_other_numbers_belong_to_the_operation(function, x):
    numbers: dict = {}
    for eqn in trace(function, x).eqns:
        assert with_names(eqn, numbers) is eqn
    assert not numbers


class Program:
    """Stands for a family."""


def test_kin_find_the_program_that_has_their_numbers_or_takes_them():
    kin = Kin((b"a", b"b", b"c"))
    programs = []

    def served(*numbers):
        places, program = kin.find(numbers)
        if program is None:
            program = Program()
            kin.enter(numbers, places, program)
            programs.append(program)
        return places, programs.index(program)

    assert served(b"a", b"b", b"c") == ((), 0)
    assert served(b"a", b"b", b"c") == ((), 0)
    assert served(b"a", b"x", b"c") == ((1,), 1)
    assert served(b"a", b"y", b"c") == ((1,), 1)
    assert served(b"a", b"b", b"c") == ((), 0)
    assert served(b"z", b"y", b"c") == ((0, 1), 2)
    assert served(b"a", b"y", b"c") == ((0, 1), 2)  # that which takes more serves it as well
    assert served(b"a", b"b", b"w") == ((0, 1, 2), 3)
    assert served(b"z", b"y", b"w") == ((0, 1, 2), 3)
    del programs[1:]
    assert served(b"z", b"y", b"w") == ((0, 1, 2), 1)
