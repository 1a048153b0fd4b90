"""`keep` and `cached`: what the user knows to be worth saving, and what it depends on."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check, check_calls, primitives_run, same

import incrax

X = np.linspace(0.1, 2.0, 50)
SEGMENTS = incrax.Tuning(timed=False)


def spectrum(b, x):
    return jnp.exp(-b * jnp.sin(x))


def marked(a, b, x):
    return jnp.sum(a * incrax.keep(spectrum(b, x), "spectrum"))


def unmarked(a, b, x):
    return jnp.sum(a * spectrum(b, x))


@incrax.cached
def cached_spectrum(b, x):
    """Result of a function, marked."""
    return spectrum(b, x)


class Model:
    """A model with settings that are no inputs."""

    def __init__(self, width):
        self.width = width

    @incrax.cached(deps=["self.width", "b"])
    def shape(self, b, x):
        return self.width * spectrum(b, x)


# --- marks change nothing -------------------------------------------------------------------------


def test_outside_an_incremental_function_marks_are_the_identity():
    tree = {"a": X, "b": (1.0, None, "text")}
    assert incrax.keep(tree)["a"] is X
    assert incrax.keep(tree, "name", deps=X)["b"] == (1.0, None, "text")
    same(cached_spectrum(2.0, X), spectrum(2.0, X))


@pytest.mark.parametrize(
    "transform", [jax.jit, jax.grad, jax.hessian, jax.value_and_grad, jax.jacrev, jax.remat]
)
def test_transformations_pass_through(transform):
    same(transform(marked)(1.5, 2.0, X), transform(unmarked)(1.5, 2.0, X))


def test_derivatives_forward_and_vmapped_pass_through():
    same(jax.jacfwd(marked, 1)(1.5, 2.0, X), jax.jacfwd(unmarked, 1)(1.5, 2.0, X))
    same(
        jax.vmap(marked, (None, 0, None))(1.5, X, X), jax.vmap(unmarked, (None, 0, None))(1.5, X, X)
    )
    same(
        jax.vmap(marked, (None, None, 0))(1.5, 2.0, X),
        jax.vmap(unmarked, (None, None, 0))(1.5, 2.0, X),
    )


def test_a_program_with_marks_compiles_to_the_same_computation():
    def operations(f):
        lines = jax.jit(f).lower(1.5, 2.0, X).as_text().splitlines()
        return sorted(
            line.split("stablehlo.")[1].split()[0] for line in lines if "stablehlo." in line
        )

    assert operations(marked) == operations(unmarked)


def test_marks_inside_loops_and_branches_are_right():
    def f(a, b, x):
        def body(carry, y):
            return carry + incrax.keep(jnp.exp(b * y)), None

        total, _ = jax.lax.scan(body, 0.0, x)
        return jax.lax.cond(a > 1.0, lambda: incrax.keep(total) * a, lambda: total)

    check_calls(f, [(1.5, 2.0, X), (0.5, 2.0, X), (0.5, 1.0, X), (2.0, 1.0, X)], tuning=MINIMAL)


# --- what marks are for ---------------------------------------------------------------------------


def test_a_kept_value_is_saved_from_the_first_change_that_leaves_it_alone():
    """Without a mark, a dirty set must come back before anything is planned for it."""
    counts = {}
    large = np.linspace(0.1, 2.0, 100_000)
    for f in (marked, unmarked):
        ours = incrax.incremental(f, tuning=SEGMENTS)
        for a in (1.0, 2.0):
            same(ours(a, 2.0, large), unmarked(a, 2.0, large))
        counts[f] = ours.stats.filled + ours.stats.loaded
    assert counts[marked] > 0
    assert counts[unmarked] == 0


def test_reports_show_the_names_of_kept_values():
    f = incrax.incremental(marked, tuning=MINIMAL)
    f(1.0, 2.0, X)
    f(2.0, 2.0, X)
    f(3.0, 2.0, X)
    assert f.explain().as_dict()["kept"] == {"spectrum": "loaded"}
    assert "kept value spectrum" in str(f.explain())
    assert "exp" not in primitives_run(f)


def test_cached_functions_bear_their_names():
    f = incrax.incremental(lambda a, b, x: jnp.sum(a * cached_spectrum(b, x)), tuning=MINIMAL)
    for a in (1.0, 2.0, 3.0):
        f(a, 2.0, X)
    assert f.explain().as_dict()["kept"] == {"cached_spectrum": "loaded"}
    assert cached_spectrum.__doc__ == "Result of a function, marked."


def test_kept_values_serve_the_exact_policy_and_the_pure_form():
    f = incrax.incremental(marked, policy="exact")
    for a, b in [(1.0, 2.0), (2.0, 2.0), (2.0, 1.0), (1.0, 2.0)]:
        assert float(f(a, b, X)) == float(incrax.incremental(marked, policy="exact")(a, b, X))
    assert f.explain().as_dict()["kept"]
    state, step = incrax.incremental(marked).pure(1.0, 2.0, X)
    for a, b in [(2.0, 2.0), (2.0, 1.0)]:
        state, out = step(state, a, b, X)
        same(jnp.asarray(out), jnp.asarray(unmarked(a, b, X)))
    assert any(x.shape == X.shape for x in jax.tree.leaves(state.saved))


# --- dependence given by hand ---------------------------------------------------------------------


SUMS = 1e4
"""The two sums cancel in an exponent: their rounding, up to 200 ulp of one, is a relative error of
the result.
"""


def overestimated(a, b, x):
    """The trace cannot know that `x` cancels."""
    return jnp.exp(b + jnp.sum(x) - jnp.sum(x[::-1]))


def test_a_value_whose_dependence_is_given_stays_while_other_inputs_change():
    def f(a, b, x):
        return a * jnp.sum(x) * incrax.keep(overestimated(a, b, x), "slow", deps=b)

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(1.0, 0.5, X)
    for k, shift in enumerate((0.0, 1.0, 2.0, 3.0)):
        same(ours(1.0, 0.5, X + shift), f(1.0, 0.5, X + shift), terms=SUMS)
        assert k < 2 or "exp" not in primitives_run(ours)
    ours(1.0, 0.6, X)
    assert "exp" in primitives_run(ours)


def test_derivatives_inside_a_cached_function_depend_on_what_was_given_too():
    @incrax.cached(deps=["b"])
    def slow(b, x):
        return jnp.exp(b * b + jnp.sum(x) - jnp.sum(x[::-1]))

    def f(a, b, x):
        return a * jnp.sum(x) * slow(b, x)

    ours, plain = (
        make(jax.value_and_grad(f, (0, 1)))
        for make in (lambda g: incrax.incremental(g, tuning=MINIMAL), jax.jit)
    )
    for shift in (0.0, 1.0, 2.0, 3.0):
        same(ours(1.0, 0.5, X + shift), plain(1.0, 0.5, X + shift), terms=SUMS)
    assert "exp" not in primitives_run(ours)
    same(ours(1.0, 0.7, X), plain(1.0, 0.7, X), terms=SUMS)
    assert "exp" in primitives_run(ours)


def test_methods_name_attributes_of_their_instance():
    def f(a, width, b, x):
        return a * jnp.sum(Model(width).shape(b, x))

    ours = check_calls(
        f,
        [(1.0, 2.0, 0.5, X), (2.0, 2.0, 0.5, X), (2.0, 3.0, 0.5, X), (2.0, 3.0, 0.7, X)],
        tuning=MINIMAL,
    )
    assert "exp" in primitives_run(ours)
    table = {row["path"]: row["equations"] for row in ours.deps().as_dict()["leaves"]}
    assert table["x"] == 0 < table["width"]


def test_methods_of_pytrees_name_their_fields():
    @jax.tree_util.register_dataclass
    @dataclass
    class Shape:
        width: float
        other: float

        @incrax.cached(deps=["self.width", "x"])
        def at(self, x):
            return jnp.exp(self.width * x) + 0.0 * self.other

    ours = incrax.incremental(lambda shape, x: jnp.sum(shape.at(x)) + shape.other, tuning=MINIMAL)
    for other in (1.0, 2.0, 3.0):
        same(ours(Shape(2.0, other), X), jnp.sum(jnp.exp(2.0 * X)) + other)
    assert "exp" not in primitives_run(ours)


def test_a_constant_claim_keeps_a_value_for_ever():
    f = incrax.incremental(
        lambda a, x: a * incrax.keep(jnp.sum(jnp.exp(x)), deps=()), tuning=MINIMAL
    )
    first = f(1.0, X)
    assert float(f(2.0, X)) == float(f(2.0, X + 1.0)) == 2 * float(first)


@pytest.mark.parametrize(
    "options", [{"tuning": MINIMAL}, {"policy": "exact"}], ids=["minimal", "exact"]
)
def test_a_false_claim_is_found_by_verification(options):
    @incrax.cached(deps=["b"])
    def wrong(a, b):
        return jnp.exp(a * b)

    f = incrax.incremental(lambda a, b, c: c * wrong(a, b) + a, **options)
    f(1.0, 2.0, 3.0)
    f(1.0, 2.0, 4.0)
    with pytest.raises(incrax.StaleResultError) as caught, incrax.verify():
        f(2.0, 2.0, 3.0)
    text = str(caught.value)
    assert "a claim of yours that leaves an input or a row out (`deps=` of `cached`" in text
    assert "Changed in this call: `a`." in text
    assert np.isclose(f(9.0, 2.0, 3.0), 3.0 * np.exp(18.0) + 9.0)
    check(f)


def test_a_true_claim_passes_verification():
    f = incrax.incremental(
        lambda b, x: jnp.sum(x) * incrax.keep(overestimated(0.0, b, x), deps=b), tuning=MINIMAL
    )
    with incrax.verify():
        for shift in range(4):
            f(0.5, X + shift)
    assert f.stats.loaded > 0


# --- bad input ------------------------------------------------------------------------------------


def bad(deps):
    @incrax.cached(deps=deps)
    def slow(params, x):
        return jnp.sum(x) * params["mu"]

    return incrax.incremental(slow, tuning=MINIMAL)


@pytest.mark.parametrize(
    "path", ["nothing", "params['mu']", "params.mu", "x.nothing.at", "", "x[0]"]
)
def test_a_dependency_that_is_no_argument_is_refused(path):
    f = bad([path])
    with pytest.raises(incrax.errors.UnknownInputError) as caught:
        f({"mu": 1.0}, X)
    assert str(caught.value) == (
        f"`cached(deps=...)` names `{path}`, which is no argument of `slow` and no attribute of "
        "one; its arguments are: params, x. Without it the engine cannot know when the result is "
        "stale. Write `mu` or `self.mu`; make an item, such as `params['mu']`, an argument of its "
        "own."
    )
    check(f)


def test_a_name_must_be_text():
    with pytest.raises(
        TypeError, match=r"`keep\(name=...\)` got 3 of type int; it must be a string, or None"
    ):
        incrax.keep(X, 3)
