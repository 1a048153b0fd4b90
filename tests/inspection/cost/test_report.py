"""The report: rows, tables; rules for primitives of others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax._locations import source_of
from incrax._table import number_text

X = np.ones(20)


def layer(w, x):
    return jnp.exp(x @ w)


def loss(w, x):
    y = layer(w, x)
    return jnp.sum(jnp.sin(y))


ARGS = np.ones((20, 5)), X


def test_rows_sum_to_the_totals():
    report = incrax.cost(loss, *ARGS)
    for each in report.passes:
        rows = [row for name, row in report.per_equation if name == each.name]
        assert sum(row.total.flops for row in rows) == each.total.flops
        assert all(row.total == row.each * row.times for row in rows)


def test_equations_that_are_alike_share_a_row():
    report = incrax.cost(lambda x: [jnp.exp(x * k) for k in range(2, 9)], X)
    (row,) = [row for row in report.forward.equations if row.primitive == "exp"]
    assert (row.times, row.total.transcendentals) == (7, 7 * 20)


def test_the_report_prints_its_totals_ratio_and_lines():
    text = str(incrax.cost(loss, *ARGS))
    assert "cost of loss: 204 FLOPs" in text
    assert "backward / forward" in text
    assert "(layer)" in text


def test_operations_on_integers_are_listed_with_the_dearest():
    report = incrax.cost(
        lambda n, x: (jnp.sort(n), jnp.sum(x)), np.arange(1024), X, passes="forward"
    )
    dearest = report.tables()[1]
    assert dearest.header[3:6] == ("FLOPs", "transcendentals", "int ops")
    assert dearest.rows[0][1].startswith("sort int64[1024]")
    assert dearest.rows[0][3:6] == (0, 0, 10_240)


def test_figures_below_zero_are_explained():
    """The rule computes the value in a cheaper way than the function."""
    f = jax.custom_vjp(lambda x: jnp.sum(jnp.exp(jnp.log(x))))
    f.defvjp(lambda x: (jnp.sum(x), x), lambda x, g: (g * jnp.ones_like(x),))
    report = incrax.cost(f, X)
    assert report.backward.total.transcendentals == -2 * 20
    assert any(note.startswith("Figures of the backward pass below zero") for note in report.notes)
    assert "-0 " not in str(report)
    assert not any("below zero" in note for note in incrax.cost(loss, *ARGS).notes)


def test_numbers_are_shown_with_the_digits_that_matter():
    shown = {
        -0.0: "0",
        12.5: "12.5",
        1234.5678: "1235",
        301666.67: "301,667",
        2.5e9: "2.5e+09",
        None: "-",
    }
    assert {x: number_text(x) for x in shown} == shown


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")  # of JAX 0.12
def test_types_are_those_that_are_traced():
    with jax.enable_x64(False):
        report = incrax.cost(jnp.exp, jax.ShapeDtypeStruct((3,), np.float64))
    assert report.forward.equations[0].inputs == ("float32[3]",)
    assert report.forward.total.bytes == 2 * 3 * 4
    keys = incrax.cost(jax.random.bits, jax.ShapeDtypeStruct((), jax.random.key(0).dtype))
    assert keys.forward.equations[0].inputs == ("key<fry>[]",)


def test_places_are_told_from_parentheses_in_the_names_of_folders():
    place = source_of("C:\\models (old)\\fit.py:12:4 (f.<locals>.<lambda>)")
    assert place == ("C:\\models (old)\\fit.py", "12", "f.<locals>.<lambda>")
    assert place.file_name == "fit.py"
    assert source_of("") == ("", "", "")


# --- primitives without a rule --------------------------------------------------------------------


def call(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_primitives_without_a_rule_are_named_with_their_place():
    report = incrax.cost(lambda x: call(x) + jnp.exp(x), X)
    ((name, row),) = report.not_counted
    assert (name, row.primitive, row.total.flops) == ("forward", "pure_callback", 0)
    assert "(call)" in row.source
    assert row.total.bytes == 2 * X.nbytes
    assert any("not registered" in note for note in report.notes)
    assert "not counted" in str(report)


def test_they_are_named_inside_loops_too():
    f = lambda x: jax.lax.scan(lambda c, _: (call(c), None), x, None, length=7)[0]
    ((_, row),) = incrax.cost(f, X).not_counted
    assert (row.times, row.inside) == (7, "scan x 7")


def test_a_rule_of_the_users_counts_them():
    rules = {"pure_callback": lambda inputs, results, params: 9 * inputs[0].size}
    report = incrax.cost(
        lambda x: jax.lax.scan(lambda c, _: (call(c), None), x, None, length=7)[0], X, rules=rules
    )
    assert report.forward.total.flops == 7 * 9 * 20
    assert not report.not_counted
    assert not any("registered" in note for note in report.notes)


def test_what_holds_equations_in_an_unknown_way_is_opened_once_and_named():
    from jax.experimental import pallas

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    f = lambda x: pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    report = incrax.cost(f, jax.ShapeDtypeStruct((8,), np.float32), passes=["forward"])
    assert [row.primitive for _, row in report.not_counted] == ["pallas_call"]
    ruled = incrax.cost(
        f,
        jax.ShapeDtypeStruct((8,), np.float32),
        passes=["forward"],
        rules={"pallas_call": _twelve},
    )
    assert (ruled.forward.total.flops, ruled.not_counted) == (12, ())


def _twelve(inputs, results, params):
    return 12
