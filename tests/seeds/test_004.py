"""Seed 004, FluxML/Zygote.jl issue 323 (https://github.com/FluxML/Zygote.jl/issues/323).

A gradient runs nothing for large constants that the function merely touches, and nothing again for
what an input's change leaves alone; a pullback computes the cotangents that it is asked for; rows
read in a few places get gradients of a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check_calls, primitives_run, ran_by, same

import incrax

pytestmark = pytest.mark.optimized

TOUCHES = {
    "one element": lambda p, c, proj: c[0] * p,
    "a product": lambda p, c, proj: (c @ proj) * p,
}


def large(n):
    return jnp.ones(n), jnp.zeros(n).at[0].set(1.0)


@pytest.mark.parametrize("touch", TOUCHES)
def test_a_new_parameter_runs_nothing_over_a_large_constant(touch):
    for n in (10**3, 10**5):
        f = incrax.incremental(jax.value_and_grad(TOUCHES[touch]), tuning=MINIMAL)
        f(1.0, *large(n))
        f(2.0, *large(n))
        report = f.explain().as_dict()
        assert report["flops_ran"] == 1  # the new parameter times what is kept
        assert report["loaded_bytes"] == 8


@pytest.mark.parametrize("touch", TOUCHES)
def test_the_gradient_forms_no_cotangent_of_the_constant(touch):
    """Equations that write as many numbers as the constant has: none."""

    def largest(argnums):
        f = incrax.incremental(jax.grad(TOUCHES[touch], argnums), tuning=MINIMAL)
        f(1.0, *large(1000))
        (traced,) = f._traces.table.values()
        return max(
            np.prod(var.aval.shape)
            for eqn in traced.engine.facts.program.eqns
            for var in eqn.outvars
        )

    assert largest(0) == 1
    assert largest((0, 1)) == 1000


def test_a_gradient_that_does_not_depend_on_the_parameter_runs_no_equation():
    f = incrax.incremental(jax.grad(TOUCHES["a product"]), tuning=MINIMAL)
    f(1.0, *large(1000))
    assert ran_by(f, 2.0, *large(1000)) == 0


def test_of_two_pullbacks_of_a_product_only_the_needed_one_runs():
    """y = A (x * x) for constant A: one transposed product, and none for the cotangent of A."""
    a, x = jnp.ones((10, 10)), jnp.arange(10.0)
    f = incrax.incremental(jax.grad(lambda x, a: jnp.sum(a @ (x * x))), tuning=MINIMAL)
    f(x, a)
    assert primitives_run(f).count("dot_general") == 1


# --- pullbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("touch", TOUCHES)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_pullback_does_not_grow_with_a_constant_that_the_function_touches(touch, is_compiled):
    """The thread's `bench(n)`: `_, back = forward(p -> c[1] * p, 1)`, then `back(1)`."""
    costs = set()
    for n in (10**3, 10**5):
        c, proj = large(n)
        with jax.disable_jit(not is_compiled):
            _, back = incrax.vjp(lambda p: TOUCHES[touch](p, c, proj), jnp.ones(()))  # noqa: B023
            assert float(back(1.0)[0]) == 1.0
        costs.add((back.num_operations(), back.residual_bytes))
    assert costs == {(1, 8)}


def test_a_pullback_of_many_arguments_pays_for_those_asked_for():
    def chain(*xs):
        y = jnp.ones(())
        for x in xs:
            y = jnp.sin(y * x)
        return y

    _, back = incrax.vjp(chain, *jnp.linspace(0.5, 1.5, 10))
    assert back.num_operations(wrt="xs[9]") == 2
    assert back.num_operations(wrt="xs[0]") == 20
    assert back.num_operations() == 29


def test_of_a_products_two_cotangents_each_is_computed_when_it_is_asked_for():
    """The thread's `(A * B, (ct -> ct * B', ct -> A' * ct))`."""
    a, b, ct = jnp.ones((4, 3)), jnp.ones((3, 5)), jnp.ones((4, 5))
    _, back = incrax.vjp(lambda a, b: a @ b, a, b)
    items = back.lazy(ct)
    np.testing.assert_array_equal(items["b"], a.T @ ct)
    products = [eqn.primitive.name for eqn in back._part(back._asked("b").numbers).program.eqns]
    assert products.count("dot_general") == 1
    assert repr(items) == "cotangents of a, b; 1 computed"
    assert back.keep(wrt="b") == b.nbytes


# --- the polynomial -------------------------------------------------------------------------------

POLYNOMIAL = {f"c{k}": float(k + 1) for k in range(10)}
XS = np.random.default_rng(0).uniform(size=1000)


def polynomial(c2, others, x):
    p = {**others, "c2": c2}
    return jnp.sum(sum(p[f"c{k}"] * x**k for k in range(10)))


OTHERS = {name: value for name, value in POLYNOMIAL.items() if name != "c2"}


def test_one_coefficient_of_a_polynomial_needs_no_powers_again():
    calls = [(c2, OTHERS, XS) for c2 in (1.0, 2.0, 3.0)]
    f = check_calls(jax.value_and_grad(polynomial), calls, tuning=MINIMAL)
    assert not {"integer_pow", "pow", "square"} & set(primitives_run(f))
    assert primitives_run(f).count("reduce_sum") == 1  # the value's; the gradient's is kept


def test_the_gradient_for_one_coefficient_does_not_depend_on_any():
    f = incrax.incremental(jax.grad(polynomial), tuning=MINIMAL)
    f(1.0, OTHERS, XS)
    assert ran_by(f, 5.0, {name: value + 1 for name, value in OTHERS.items()}, XS) == 0


def test_a_gradient_for_one_field_runs_less_than_for_all():
    def num_sums(wrt):
        f = incrax.incremental(wrt, tuning=MINIMAL)
        f(POLYNOMIAL, XS)
        return primitives_run(f).count("reduce_sum")

    whole = lambda p, x: polynomial(p["c2"], p, x)
    one = lambda p, x: jax.grad(lambda c2: polynomial(c2, p, x))(p["c2"])
    assert num_sums(jax.grad(whole)) >= 10
    assert num_sums(one) <= 1


# --- two networks ---------------------------------------------------------------------------------


def generator(w, z):
    return jnp.tanh(z @ w)


def discriminator(w, x):
    return jnp.mean(jax.nn.softplus(-(x @ w)))


def test_training_the_generator_forms_no_cotangent_of_the_discriminator():
    gen, disc, z = jnp.ones((3, 4)), jnp.ones(4), jnp.ones((5, 3))
    loss = lambda gen, disc, z: discriminator(disc, generator(gen, z))
    both = incrax.incremental(jax.grad(loss, argnums=(0, 1)), tuning=MINIMAL)
    both(gen, disc, z)
    f = incrax.incremental(jax.grad(loss), tuning=MINIMAL)
    f(gen, disc, z)
    assert primitives_run(f).count("dot_general") == primitives_run(both).count("dot_general") - 1
    f(gen, disc * 2, z)
    assert "tanh" not in primitives_run(f)


def test_one_pullback_serves_generator_and_discriminator():
    gen, disc, z = jnp.ones((3, 4)), jnp.ones(4), jnp.ones((5, 3))
    loss = lambda gen, disc: discriminator(disc, generator(gen, z))
    _, back = incrax.vjp(loss, gen, disc)
    of_gen, of_disc = jax.grad(loss, argnums=(0, 1))(gen, disc)
    np.testing.assert_allclose(back(1.0, wrt="gen"), of_gen, rtol=1e-14)
    np.testing.assert_allclose(back(1.0, wrt="disc"), of_disc, rtol=1e-14)
    assert back.num_operations(wrt="gen") < back.num_operations()
    held = back.residual_bytes
    assert back.keep(wrt="disc") > 0
    assert back.residual_bytes < held


# --- marks and rows -------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass
class Poly9:
    """The struct of the thread."""

    c: list

    def __call__(self, x):
        return sum(c * x**k for k, c in enumerate(self.c))


def f_man(p, x):
    return lambda c: jnp.sum(sum((c if k == 2 else p.c[k]) * x**k for k in range(10)))


def f_cut(p, x):
    def function(c):
        q = incrax.cut(Poly9([*p.c[:2], incrax.uncut(c), *p.c[3:]]))
        return jnp.sum(q(incrax.cut(x)))

    return function


def test_cut_and_uncut_in_the_form_of_the_thread():
    p = Poly9([float(k + 1) for k in range(10)])
    for derivative in (jax.grad, incrax.grad, lambda f: jax.jit(jax.grad(f))):
        assert float(derivative(f_cut(p, XS))(1.0)) == pytest.approx(
            float(derivative(f_man(p, XS))(1.0)), rel=1e-14
        )
    ours, plain = incrax.grad(f_cut(p, XS)), incrax.grad(f_man(p, XS))
    ours(1.0)
    plain(1.0)
    num_eqns = lambda f: len(f._traces.latest.engine.facts.program.eqns)
    assert num_eqns(ours) <= num_eqns(plain)


def test_the_gradient_of_one_element_read_is_one_element():
    found = incrax.grad(lambda c, p: c[1] * p, sparse="rows")(jnp.ones(10**6), 2.0)
    assert found.values.size == 1
    assert float(found.todense()[1]) == 2.0


def test_a_step_that_reads_a_few_rows_writes_a_few_rows():
    loss = lambda table, ids: jnp.sum(table[ids] ** 2)
    step = lambda table, ids: table - 0.1 * jax.grad(loss)(table, ids)
    table, ids = jnp.ones((50_000, 8)), jnp.array([3, 3, -1])
    ours = incrax.structured(step)
    same(ours(table, ids), jax.jit(step)(table, ids))
    assert ours.explain(table, ids).became_dense == ()
