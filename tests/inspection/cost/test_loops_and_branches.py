"""Turns of loops and sides of branches: known from the program, measured by a run, or said
to be unknown.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax._program import trace
from incrax.inspection import regions

lax = jax.lax
N = 8
X = np.ones(N)


def forward(fun, *args, **options):
    return incrax.cost(fun, *args, passes=["forward"], **options)


def turns(report):
    return [(loop.turns, loop.known_from) for loop in report.forward.loops]


# --- known from the program -----------------------------------------------------------------------

COUNTED = {
    "fori": (lambda x: lax.fori_loop(2, 12, lambda i, c: c * 2.0, x), 10),
    "loop of incrax": (lambda x: incrax.scan(lambda c, _: (c * 2.0, None), x, None, 10)[0], 10),
}


@pytest.mark.parametrize("name", COUNTED)
def test_turns_that_the_program_tells_are_counted(name):
    fun, expected = COUNTED[name]
    report = forward(fun, X)
    assert report.forward.total.flops == expected * N
    assert [loop for loop in turns(report) if loop != (float(expected), "static")] == []
    assert not report.unknown_loops


UNTOLD = {
    "counts between numbers": lambda x: lax.while_loop(
        lambda s: s[0] <= 9, lambda s: (s[0] + 2, s[1] * 2.0), (0, x)
    )[1],
    "limit is an input": lambda x: lax.while_loop(
        lambda s: s[0] < x[0], lambda s: (s[0] + 1, s[1] * 2.0), (0.0, x)
    )[1],
    "two conditions": lambda x: lax.while_loop(
        lambda s: (s[0] < 9) & (s[1][0] > 0), lambda s: (s[0] + 1, s[1] * 2.0), (0, x)
    )[1],
}


@pytest.mark.parametrize("name", UNTOLD)
def test_other_loops_are_of_unknown_turns_and_one_is_counted(name):
    report = forward(UNTOLD[name], X)
    assert turns(report) == [(1.0, "unknown")]
    assert len(report.unknown_loops) == 1
    assert any("unknown trips" in note for note in report.notes)
    assert "(one turn)" in str(report)
    assert all(not row.is_known for row in report.forward.equations if "while" in row.inside)


# --- measured  ---------------------------------------------------------------------------


def doubling(x):
    return lax.while_loop(lambda c: c < 100.0, lambda c: c * 2.0, x)


def test_a_run_counts_the_turns():
    report = forward(doubling, 1.0, trips="measured")
    assert turns(report) == [(7.0, "measured")]
    assert (report.forward.total.flops, report.forward.total.int_ops) == (7, 8)
    assert forward(doubling, 60.0, trips="measured").forward.total.flops == 1


def test_turns_of_a_loop_inside_loops_are_counted_as_they_come():
    """The inner loop has another number of turns each time: 0 + 1 + 2 + 3 + 4."""

    def f(x):
        inner = lambda i: lax.fori_loop(0, i, lambda _, c: c * 2.0, x)
        return lax.scan(
            lambda total, i: (total + inner(i), None), jnp.zeros_like(x), jnp.arange(5)
        )[0]

    report = forward(f, X, trips="measured")
    assert (
        sum(row.total.flops for row in report.forward.equations if row.primitive == "mul") == 10 * N
    )
    assert (2.0, "measured") in turns(report)


def test_a_loop_in_a_condition_is_counted():
    def goes_on(c):
        return lax.while_loop(lambda d: d < 4.0, lambda d: d + 1.0, c * 0.0) + c < 10.0

    report = forward(lambda x: lax.while_loop(goes_on, lambda c: c * 2.0, x), 1.0, trips="measured")
    adds = [
        row
        for row in report.forward.equations
        if row.primitive == "add" and "condition" in row.inside
    ]
    assert (
        sum(row.times for row in adds) == 4 * 4 + 4
    )  # 1, 2, 4, 8: three turns, four questions; and a sum in each


def test_loops_of_incrax_are_counted_by_a_run():
    f = lambda x, n: incrax.scan(lambda c, row: (c + row, c * 2.0), 0.0, x, n)[0]
    assert turns(forward(f, X, 5)) == [(1.0, "unknown")]
    assert turns(forward(f, X, 5, trips="measured")) == [(5.0, "measured")]


def test_loops_inside_loops_of_incrax_are_counted_by_a_run():
    def f(x, n):
        return incrax.scan(lambda c, row: (c + doubling(row), None), 0.0, x, n)[0]

    report = forward(f, np.array([1.0, 60.0, 1.0, 1.0]), 2, trips="measured")
    assert sum(row.times for row in report.forward.equations if row.primitive == "mul") == 7 + 1


def test_the_backward_pass_of_a_measured_loop_is_measured_too():
    f = lambda x, n: jnp.sum(
        incrax.scan(lambda c, _: (jnp.sin(c), None), x, None, n, capacity=50)[0]
    )
    report = incrax.cost(f, X, 20, trips="measured")
    assert report.forward.total.transcendentals == 20 * 2 * N
    assert report.backward.total.transcendentals == 20 * 2 * N


def test_a_loop_for_each_row_turns_until_the_last_row_has_ended():
    """A row that has ended stays as it is: what it computes besides is counted, since it runs."""
    last = lambda x: lax.while_loop(
        lambda c: c[0] < 10.0, lambda c: (c[0] * 2.0, c[1] + 1.0), (x, 0.0)
    )
    report = forward(jax.vmap(last), np.array([1.0, 60.0, 5.0]), trips="measured")
    assert turns(report) == [(4.0, "measured")]
    assert report.forward.total.flops == 4 * 2 * 3
    inner = lambda x: lax.while_loop(lambda d: d < x, lambda d: d + 1.0, 0.0 * x)
    f = lambda x: lax.while_loop(
        lambda c: c[0] < 10.0, lambda c: (c[0] * 2.0, c[1] + inner(c[0])), (x, 0.0 * x)
    )
    loops = forward(jax.vmap(f), np.array([1.0, 3.0, 30.0]), trips="measured").forward.loops
    # 1, 2, 4, 8 and 3, 6, 12, 12 and 30 each turn: the inner loop runs to the largest
    assert [loop.turns for loop in loops] == [4.0, 30.0]


def taken(y):
    return lax.cond(y > 2.0, jnp.exp, lambda y: y * 3.0, y)


EVALUATED = {
    "branch": lambda x: lax.switch(x[0].astype(int), [jnp.sin, jnp.cos, jnp.exp], x),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 9.0, lambda c: c + taken(x[3]), x),
    "while for each row": lambda x: jax.vmap(
        lambda y: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2 + y, y)
    )(x),
    "scan": lambda x: lax.scan(lambda c, y: (c + y, c * taken(y)), 1.0, x),
    "scan backwards": lambda x: lax.scan(lambda c, y: (c + y, c * taken(y)), 1.0, x, reverse=True),
    "scan of nothing": lambda x: lax.scan(lambda c, y: (c + y, c * taken(y)), 1.0, x[:0]),
    "loop of incrax": lambda x: incrax.scan(
        lambda c, y: (c + y, c * taken(y)), 1.0, x, x[2].astype(int)
    ),
    "its gradient": jax.grad(
        lambda x: jnp.sum(incrax.scan(lambda c, y: (c * y, c), 1.0, x, x[2].astype(int))[1])
    ),
    "call": jax.checkpoint(
        lambda x: jnp.sin(lax.while_loop(lambda c: c[0] < 9.0, lambda c: c + taken(x[3]), x))
    ),
    "loop after loop": lambda x: doubling(doubling(x[0]) - 90.0) * x,
}


@pytest.mark.parametrize("name", EVALUATED)
def test_a_run_that_counts_gives_the_results_of_the_function(name):
    x = np.linspace(1.0, 5.0, 9)
    program = trace(EVALUATED[name], x)
    for is_hoisted in (False, True):
        root = regions.regions_of(program, is_hoisted=is_hoisted)
        assert any(node.is_open for node in root.nodes)
        found, expected = regions.run(root, [x]), jax.tree.leaves(jax.jit(EVALUATED[name])(x))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


# --- branches -------------------------------------------------------------------------------------


def branching(x):
    return lax.cond(x[0] > 2.0, lambda: jnp.exp(x), lambda: x * 3.0)


def test_of_a_branch_the_dearest_side_counts():
    total = forward(branching, X).forward.total
    assert (total.flops, total.transcendentals) == (0, N)


def test_operations_on_integers_make_a_branch_dear_too():
    f = lambda n, x: lax.cond(x[0] > 2.0, lambda: (jnp.sort(n), x), lambda: (n, x * 3.0))
    total = forward(f, jax.ShapeDtypeStruct((1024,), int), X).forward.total
    assert (total.flops, total.int_ops) == (0, 1 + 1024 * 10)


def test_the_side_that_is_taken_counts_if_asked_for():
    one, other = (forward(branching, x, branches="taken").forward.total for x in (X, 3 * X))
    assert (one.flops, one.transcendentals) == (N, 0)
    assert (other.flops, other.transcendentals) == (0, N)


def test_the_side_that_is_taken_is_taken_backwards_too():
    f = lambda x: jnp.sum(jnp.sin(branching(x)))
    for x, exponentials in ((X, 0), (3 * X, N)):
        report = incrax.cost(f, x, branches="taken")
        assert report.forward.total.transcendentals == 2 * N + exponentials
        assert report.backward.total.transcendentals == 2 * N


def test_sides_inside_a_loop_are_taken_turn_by_turn():
    side = lambda y: lax.cond(y > 2.0, jnp.exp, lambda y: y * 3.0, y)
    f = lambda x: lax.scan(lambda c, y: (c + side(y), None), 0.0, x)[0]
    total = forward(f, np.array([1.0, 3.0, 3.0, 1.0, 1.0]), branches="taken").forward.total
    assert (total.flops, total.transcendentals) == (3 + 5, 2)


def test_a_side_that_is_known_is_taken_without_a_run():
    f = lambda x: lax.cond(np.bool_(True), lambda: x * 3.0, lambda: jnp.exp(x))
    assert forward(f, jax.ShapeDtypeStruct((N,), float)).forward.total.transcendentals == 0


def test_a_branch_of_platforms_is_that_of_the_default_backend():
    f = lambda x: lax.platform_dependent(x, cpu=lambda x: x * 3.0, default=jnp.exp)
    assert forward(f, X).forward.total.transcendentals == (
        0 if jax.default_backend() == "cpu" else N
    )


def test_a_branch_under_vmap_is_both_sides():
    f = jax.vmap(lambda y: lax.cond(y > 2.0, jnp.exp, lambda y: y * 3.0, y))
    total = forward(f, X).forward.total
    assert (total.flops, total.transcendentals) == (N, N)


def test_switches_have_as_many_sides_as_there_are():
    f = lambda x, i: lax.switch(i, [lambda x: x, lambda x: x * 2.0, jnp.sin], x)
    found = [forward(f, X, i, branches="taken").forward.total for i in (0, 1, 2, 9)]
    assert [(each.flops, each.transcendentals) for each in found] == [
        (0, 0),
        (N, 0),
        (0, 2 * N),
        (0, 2 * N),
    ]


# --- calls ----------------------------------------------------------------------------------------


def test_calls_are_opened():
    f = jax.jit(lambda x: jax.checkpoint(jax.jit(lambda x: jnp.exp(x) + 1.0))(x))
    total = forward(f, X).forward.total
    assert (total.flops, total.transcendentals) == (N, N)


def test_a_linear_solve_counts_its_solution_alone():
    """Conjugate gradients carry the products for the transposed system as well."""
    a = np.eye(N) + 0.1
    solve = lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v, b, maxiter=50)[0]
    report = forward(solve, a, X, trips="measured")
    (loop,) = report.forward.loops
    products = sum(
        row.times
        for row in report.forward.equations
        if row.inputs == (f"float64[{N},{N}]", f"float64[{N}]")
    )
    assert products == loop.turns + 1


def test_loops_in_rematerialized_parts_are_measured():
    f = jax.checkpoint(lambda x: doubling(x) + 1.0)
    assert forward(f, 1.0, trips="measured").forward.total.flops == 8
