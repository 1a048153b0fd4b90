"""The table of leaves: how much of the work depends on each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL
from inspection.cases import PARAMS, X, model

import incrax


def table(fun=model, args=(PARAMS, X), tuning=MINIMAL):
    return incrax.incremental(fun, tuning=tuning).deps(*args)


def rows(*args, **kwargs):
    return {row["path"]: row for row in table(*args, **kwargs).as_dict()["leaves"]}


def test_the_table_has_a_row_per_leaf_with_these_keys():
    data = table().as_dict()
    assert set(data) == {"num_equations", "leaves"}
    assert [row["path"] for row in data["leaves"]] == [
        "params['a']",
        "params['b']",
        "params['c']",
        "x",
    ]
    keys = {"path", "elements", "equations", "flops", "transcendentals", "seconds", "share"}
    assert all(set(row) == keys for row in data["leaves"])


def test_a_row_counts_what_a_change_of_its_leaf_runs_again():
    found = rows()
    assert found["params['c']"]["equations"] == 2
    assert found["params['c']"]["transcendentals"] == 0
    assert found["params['a']"]["transcendentals"] == X.size
    assert found["params['b']"]["transcendentals"] == 2 * X.size
    assert found["x"]["transcendentals"] == 3 * X.size
    assert found["x"]["equations"] == table().num_equations


def test_the_rows_agree_with_what_runs():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, X)
    found = {row["path"]: row for row in f.deps().as_dict()["leaves"]}
    for name in PARAMS:
        f(PARAMS, X)
        f({**PARAMS, name: np.float64(7.0)}, X)
        assert f.explain().as_dict()["num_ran"] == found[f"params['{name}']"]["equations"]


def test_shares_are_parts_of_the_whole():
    found = rows()
    assert all(0 <= row["share"] <= 1 for row in found.values())
    assert found["params['c']"]["share"] < found["params['a']"]["share"] < found["x"]["share"]
    assert all(row["seconds"] > 0 for row in found.values())


def test_an_input_that_nothing_reads_has_no_share():
    found = rows(lambda a, b: jnp.sin(a), (1.0, 2.0))
    assert found["b"]["equations"] == found["b"]["share"] == 0
    assert found["a"]["share"] == pytest.approx(1.0)


def test_a_function_that_computes_nothing_has_a_table():
    assert rows(lambda a: a, (1.0,))["a"]["share"] == 0


def test_an_input_that_is_an_output_has_no_work():
    assert rows(lambda a: a, (1.0,))["a"]["share"] == 0


def test_elements_of_small_arrays_are_counted(monkeypatch):
    f = lambda t, x: t[0] * jnp.sum(x) + t[1]
    found = rows(f, (np.ones(3), X))
    assert found["t"]["elements"] == 3
    assert found["x"]["elements"] == 1
    monkeypatch.setattr("incrax.engine.call.analysis.MAX_LEAF_ELEMENTS", 2)
    assert rows(f, (np.ones(3), X))["t"]["elements"] == 1


def test_static_leaves_have_no_row():
    found = rows(lambda x, mode: jnp.sin(x) if mode == "s" else x, (1.0, "s"))
    assert list(found) == ["x"]


def test_the_table_needs_no_evaluation():
    f = incrax.incremental(model, tuning=MINIMAL)
    f.deps(PARAMS, X)
    assert f.stats.calls == f.stats.ran == 0
    assert f.stats.saved_bytes == 0


def test_without_arguments_the_table_is_of_the_last_call():
    f = incrax.incremental(lambda x, y: jnp.sum(jnp.exp(x)) + y, tuning=MINIMAL)
    with pytest.raises(incrax.NotCalledError, match=r"`deps\(\)`"):
        f.deps()
    f(X, 1.0)
    assert f.deps() == f.deps(X, 1.0)
    f(X[:10], 1.0)
    assert f.deps().as_dict()["leaves"][0]["transcendentals"] == 10


def test_derivatives_are_counted_too():
    plain, gradient = table(), table(jax.value_and_grad(model))
    assert gradient.num_equations > plain.num_equations
    assert gradient.rows[0].flops > plain.rows[0].flops


def test_the_text_is_a_plain_table():
    text = str(table())
    assert "\x1b" not in text
    lines = text.splitlines()
    assert all(line == line.rstrip() for line in lines)
    for part in ("input", "FLOPs", "share of work", "params['a']", "x", "%"):
        assert part in text
    assert sum("params[" in line for line in lines) == 3
