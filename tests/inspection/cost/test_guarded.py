"""Costs of guarded functions: of the path that values take, with its guards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

N = 20
X = np.ones(N)
TYPE = jax.ShapeDtypeStruct((N,), float)


def power(x):
    return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2


def test_the_path_that_values_take_is_counted_with_its_guards():
    """A sum of N, two products or one; a comparison, and a choice that tells whether it came out as
    recorded.
    """
    f = incrax.guarded(power)
    above, below = (incrax.cost(f, x) for x in (X, 0 * X))
    assert (above.forward.total.flops, above.forward.total.int_ops) == (N - 1 + 2, 2)
    assert (below.forward.total.flops, below.forward.total.int_ops) == (
        N - 1 + 1,
        3,
    )  # and a negation
    assert (
        above.notes[0]
        == "Counted is the path that these values take, with its guard; others may take another one."
    )
    assert above.backward.total.int_ops == above.hvp.total.int_ops == 0
    plain = incrax.cost(lambda x: jnp.sum(x) ** 3, X)
    assert above.backward.total == plain.backward.total
    assert above.hvp.total == plain.hvp.total
    sums = [row for row in above.forward.equations if row.primitive == "reduce_sum"]
    assert all(row.source.startswith(__file__) and "(power)" in row.source for row in sums)


def test_a_loop_of_python_costs_what_the_compiled_one_does():
    def root(a):
        x = a
        while abs(x * x - a) > 1e-9 * a:
            x = 0.5 * (x + a / x)
        return x

    def compiled(a):
        return jax.lax.while_loop(
            lambda x: abs(x * x - a) > 1e-9 * a, lambda x: 0.5 * (x + a / x), a
        )

    guarded = incrax.cost(incrax.guarded(root), 2.0)
    measured = incrax.cost(compiled, 2.0, trips="measured", passes="forward")
    (loop,) = measured.forward.loops
    assert guarded.notes[0].count(f"its {int(loop.turns) + 1} guards") == 1
    same = int(loop.turns)  # 1e-9 * a is computed once, and in the loop with each question
    assert measured.forward.total.flops - same == guarded.forward.total.flops
    assert guarded.backward.total.flops > 0


def test_the_function_knows_and_counts_nothing_of_it():
    f = incrax.guarded(power)
    f(X)
    before = f.stats.as_dict()
    incrax.cost(f, 0 * X, measure=True)
    assert f.stats.as_dict() == before
    np.testing.assert_allclose(f(0 * X + 0.01), (0.01 * N) ** 2)
    assert f.stats.recordings == 2


def test_a_guarded_gradient_costs_both_passes_of_the_path():
    both = incrax.cost(incrax.guarded(jax.value_and_grad(power)), X, passes="forward").forward.total
    report = incrax.cost(incrax.guarded(power), X)
    assert both.flops == report.forward.total.flops + report.backward.total.flops


def test_without_values_a_function_without_branches_is_counted():
    assert incrax.cost(incrax.guarded(jnp.exp), TYPE).forward.total.transcendentals == N
    assert (
        incrax.cost(incrax.guarded(jnp.exp), X).notes[0].startswith("No Hessian")
    )  # nothing about a path


def test_static_values_and_methods_choose_the_path():
    f = incrax.guarded(lambda x, n: sum(jnp.exp(x * k) for k in range(n)), static="n")
    assert incrax.cost(f, X, 4).forward.total.transcendentals == 4 * N
    assert (
        incrax.cost(f, X, n=3).backward.total.flops == incrax.cost(f, X, 3).backward.total.flops > 0
    )

    class Model:
        @incrax.guarded
        def value(self, x, y):
            return jnp.sum(jnp.exp(x)) * y if y > 0 else y

    report = incrax.cost(Model().value, X, 2.0, wrt="y", changing="y")
    assert report.arguments == (f"x: float64[{N}]", "y: float64[]")
    assert (report.forward.total.transcendentals, report.backward.total.flops) == (N, 1)
    assert report.forward.avoided.transcendentals == N


def test_a_result_beside_the_loss_has_no_derivative():
    f = incrax.guarded(lambda x: (jnp.sum(x), jnp.sin(x)) if x[0] > 0 else (x[0], x))
    assert incrax.cost(f, X, has_aux=True).backward.total.transcendentals == 0
    assert incrax.cost(f, X).backward.total.transcendentals == 2 * N


@pytest.mark.parametrize(
    "wrapped", [lambda f: incrax.incremental(incrax.guarded(f)), None], ids=["outside", "inside"]
)
def test_saved_values_of_a_path(wrapped):
    def f(a, x):
        return a * jnp.sum(jnp.exp(x)) if a > 1 else a

    g = wrapped(f) if wrapped else incrax.guarded(incrax.incremental(f))
    report = incrax.cost(g, 2.0, X, changing="a")
    assert (report.forward.again.flops, report.forward.avoided.transcendentals) == (1, N)
    assert any("Equations are those that the engine runs" in note for note in report.notes)
    assert incrax.cost(g, 0.5, X, changing="a").forward.total.transcendentals == 0


def test_a_conditional_of_a_path_is_one_of_the_program():
    @incrax.guarded
    def total(xs):
        s = jnp.zeros(())
        for x in xs:
            s = jax.lax.cond(x > 0, lambda s, x: s + jnp.exp(x), lambda s, x: s - x, s, x)
        return s

    xs = np.array([1.0, -1.0, 2.0])
    assert incrax.cost(total, xs).forward.total.transcendentals == 3
    assert incrax.cost(total, xs, branches="taken").forward.total.transcendentals == 2
