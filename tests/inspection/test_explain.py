"""What `explain` says of the last call and of one that was not made, as data and as text."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, check, ran_by
from inspection.cases import PARAMS, X, model
from slice_cases import IDS, NUM, serve_by_rows

import incrax

KEYS = {
    "is_dry_run",
    "changed",
    "served_by",
    "why",
    "ran",
    "by_rows",
    "rows",
    "num_ran",
    "num_derived",
    "num_equations",
    "loaded",
    "loaded_bytes",
    "filled",
    "kept",
    "statistics",
    "chunks",
    "flops_ran",
    "flops_avoided",
    "transcendentals_avoided",
    "seconds",
    "constants",
    "worth",
    "num_signatures",
    "unlike",
}


def called(*calls, fun=model, tuning=MINIMAL):
    f = incrax.incremental(fun, tuning=tuning)
    for args in calls:
        f(*args)
    return f


def snapshot(f):
    """Counters, and the identity of all that is stored."""
    stored = [
        (
            id(state),
            state.uses,
            [id(x) for x in state.outputs],
            {var: id(x) for var, x in state.saved.items()},
        )
        for traced in f._traces.table.values()
        for state in traced.engine.store.states
    ]
    return f.stats.as_dict(), stored


# --- the last call --------------------------------------------------------------------------------


def test_the_report_has_these_keys():
    report = called((PARAMS, X)).explain().as_dict()
    assert set(report) == KEYS
    assert set(report["ran"][0]) == {"primitive", "source"}


def test_arrays_that_were_closed_over_are_listed_with_their_size():
    small, large = jnp.ones(10), np.ones((100, 200))
    report = called(
        (1.0,), fun=lambda a: jnp.sum(large * a) + jax.jit(lambda b: jnp.sum(small * b))(a)
    ).explain()
    assert report.as_dict()["constants"] == [
        {"type": "f64[100,200]", "bytes": 160_000},
        {"type": "f64[10]", "bytes": 80},
    ]
    expected = "2 (160 kB): f64[100,200], f64[10]; closed over, or made of constants alone"
    assert expected in str(report)


def test_a_report_says_that_it_is_about_one_of_several_signatures():
    f = incrax.incremental(lambda a: a**2)
    f(np.ones(3))
    assert "signatures" not in f.explain().summary()
    f(np.ones(4))
    assert f.explain().summary().endswith(" (one of 2 signatures)")
    assert f.explain(np.ones(3)).as_dict()["num_signatures"] == 2


def test_a_report_names_the_input_that_makes_another_signature():
    f = incrax.incremental(lambda p: p["a"] * jnp.exp(p["b"]))
    f({"a": 1.0, "b": 2.0})
    assert f.explain().as_dict()["unlike"] == ""
    for a in np.linspace(0.0, 1.0, 3):  # as scans do: numbers of NumPy, beside others of Python
        f({"a": a, "b": 2.0})
    seen = f.explain().as_dict()["unlike"]
    assert seen.startswith("`p['a']` is float64[], was float64[] as a Python number (of weak type)")
    assert "p['b']" not in seen
    assert "another signature" in str(f.explain())
    assert "pass the same types" in " ".join(str(f.explain()).split())


def test_inputs_that_are_of_another_type_alike_are_told_in_one():
    f = incrax.incremental(lambda p: p["a"] * jnp.exp(p["b"]))
    f({"a": 1.0, "b": 2.0})
    f({"a": np.float64(1.0), "b": np.float64(2.0)})  # a minimiser's vector in a dictionary
    seen = f.explain().as_dict()["unlike"]
    assert seen.startswith("`p['a']`, `p['b']`: each is float64[], was float64[] as a Python")
    assert seen.count("float64[]") == 2


def test_arguments_are_not_closed_over():
    assert called((PARAMS, X)).explain().as_dict()["constants"] == []


def test_the_first_call_runs_everything():
    report = called((PARAMS, X)).explain().as_dict()
    assert not report["is_dry_run"]
    assert report["why"] == "first call with this signature"
    assert set(report["changed"]) == {"params['a']", "params['b']", "params['c']", "x"}
    assert report["num_ran"] == report["num_equations"] == len(report["ran"])
    assert report["loaded"] == []
    assert report["flops_avoided"] == report["transcendentals_avoided"] == 0


def test_many_elements_of_one_array_are_printed_in_one_row():
    f = incrax.incremental(lambda theta, a: jnp.sum(jnp.exp(theta)) * a)
    for step in range(2):
        f(np.arange(9.0) + step, 1.0 + step)
    explanation = f.explain()
    assert len(explanation.changed) == 10
    rows = explanation.tables()[-1].rows
    assert [name for name, _ in rows] == ["theta[0], ..., theta[8]", "a"]
    assert rows[0][1].startswith("9 in all; its bits differ")
    assert "theta[4]" in str(explanation.verbose)


def test_a_later_call_names_what_changed_and_what_ran():
    f = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X))
    report = f.explain().as_dict()
    assert report["changed"] == {"params['c']": "its bits differ from those at the baseline"}
    assert [step["primitive"] for step in report["ran"]] == ["mul", "add"]
    assert report["num_ran"] == 2
    assert report["num_equations"] > 2
    assert report["loaded_bytes"] == sum(value["bytes"] for value in report["loaded"]) == 16
    assert report["transcendentals_avoided"] >= 2 * X.size


def test_ran_and_avoided_work_add_up_to_the_whole():
    f = called((PARAMS, X))
    whole = f.explain().as_dict()
    for name in PARAMS:
        f({**PARAMS, name: np.float64(9.0)}, X)
        report = f.explain().as_dict()
        assert report["flops_ran"] + report["flops_avoided"] == pytest.approx(whole["flops_ran"])
        assert report["num_ran"] == len(report["ran"]) < whole["num_ran"]


def test_a_call_with_nothing_changed_ran_nothing():
    report = called((PARAMS, X), (PARAMS, X)).explain().as_dict()
    assert report["served_by"] == "saved outputs"
    assert report["why"] == "no input changed"
    assert report["changed"] == {}
    assert report["ran"] == []
    assert report["flops_ran"] == 0


def test_the_source_of_an_equation_is_a_line_of_the_user():
    report = called((PARAMS, X), ({**PARAMS, "a": np.float64(4.0)}, X)).explain().as_dict()
    (exp,) = [step for step in report["ran"] if step["primitive"] == "exp"]
    assert "cases.py" in exp["source"]
    assert "model" in exp["source"]


def test_elements_of_a_small_vector_are_named():
    f = called(
        (np.ones(3), X),
        (np.array([1.0, 2.0, 1.0]), X),
        fun=lambda t, x: t[0] * t[1] + t[2] * jnp.sum(x),
    )
    assert set(f.explain().as_dict()["changed"]) == {"t[1]"}


def test_elements_of_a_small_matrix_have_the_names_that_fits_give_them():
    square = lambda m: jnp.sum((m - 1.0) ** 2)
    f = called((np.ones((2, 3)),), (np.ones((2, 3)) + np.eye(2, 3)[1],), fun=lambda m: square(m))
    changed = list(f.explain().as_dict()["changed"])
    assert changed == ["m[0, 1]", "m[1, 1]"]
    assert set(changed) < set(incrax.bind(square, m=np.ones((2, 3))).names)
    f.warm_up(np.ones((2, 3)), changing=["m[0,1]"])


def test_values_that_were_missing_are_listed_as_filled():
    f = incrax.incremental(model, memory=0, tuning=MINIMAL)
    f(PARAMS, X)
    assert f.explain().as_dict()["filled"] == []
    f({**PARAMS, "c": np.float64(4.0)}, X)
    report = f.explain().as_dict()
    assert report["loaded"] == []
    assert {value["type"] for value in report["filled"]} == {"f64[]"}
    assert f.stats.filled > 0


# --- a call that was not made ---------------------------------------------------------------------


def test_a_dry_run_says_what_a_call_would_do():
    f = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X))
    report = f.explain({**PARAMS, "c": np.float64(5.0)}, X).as_dict()
    assert report["is_dry_run"]
    assert set(report["changed"]) == {"params['c']"}
    assert [step["primitive"] for step in report["ran"]] == ["mul", "add"]
    f({**PARAMS, "c": np.float64(5.0)}, X)
    made = f.explain().as_dict()
    assert {k: made[k] for k in ("changed", "ran", "rows", "loaded")} == {
        k: report[k] for k in ("changed", "ran", "rows", "loaded")
    }


@pytest.mark.parametrize(
    "args",
    [
        (PARAMS, X),
        ({**PARAMS, "c": np.float64(5.0)}, X),
        ({**PARAMS, "a": np.float64(5.0), "b": np.float64(1.0)}, X),
        (PARAMS, X + 1),
    ],
)
@pytest.mark.parametrize("tuning", [MINIMAL, incrax.Tuning(timed=False, hot_after=1)])
def test_a_dry_run_leaves_the_store_as_it_was(args, tuning):
    f = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X), tuning=tuning)
    before = snapshot(f)
    f.explain(*args)
    assert snapshot(f) == before
    check(f)
    assert ran_by(f, {**PARAMS, "c": np.float64(4.0)}, X) == 0


def test_a_dry_run_of_what_is_stored_would_run_nothing():
    f = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X))
    report = f.explain(PARAMS, X).as_dict()
    assert report["served_by"] == "saved outputs"
    assert report["ran"] == []


def test_a_dry_run_before_the_first_call_evaluates_nothing():
    calls = []

    def fun(x):
        return jax.pure_callback(
            lambda x: (calls.append(None), x)[1], jax.ShapeDtypeStruct((), np.float64), x
        )

    f = incrax.incremental(fun, tuning=MINIMAL)
    report = f.explain(1.0).as_dict()
    assert report["why"] == "first call with this signature"
    assert report["num_ran"] == report["num_equations"]
    assert f.stats.calls == 0
    assert calls == []


def test_a_dry_run_does_not_hide_the_last_call():
    f = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X))
    last = f.explain().as_dict()
    f.explain({**PARAMS, "a": np.float64(4.0)}, X)
    assert f.explain().as_dict() == last


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_a_report_on_another_signature_does_not_hide_the_last_call(method):
    f = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X))
    last = f.explain().as_dict()
    getattr(f, method)(PARAMS, X[:10])
    assert f.explain().as_dict() == last


def test_a_report_on_another_signature_drops_no_values(monkeypatch):
    monkeypatch.setattr("incrax.engine.call.signature_table.MAX_SIGNATURES", 1)
    f = called((PARAMS, X), tuning=MINIMAL)
    f.explain(PARAMS, X[:10])
    assert ran_by(f, PARAMS, X) == 0


def test_without_a_call_there_is_nothing_to_explain():
    with pytest.raises(incrax.NotCalledError, match=r"`explain\(\)`"):
        incrax.incremental(model).explain()


# --- text -----------------------------------------------------------------------------------------


def test_the_text_has_no_colours_and_no_trailing_blanks():
    text = str(called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X)).explain())
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert all(len(line) <= 140 for line in text.splitlines())


def test_the_text_says_what_changed_what_ran_and_what_was_loaded():
    report = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X)).explain()
    text = str(report.verbose)
    assert "cases.py" not in str(report)
    assert report.verbose.as_dict() == report.as_dict()
    for part in (
        "last call",
        "params['c']",
        "its bits differ from those at the baseline",
        "equations ran",
        "2 of",
        "16 B",
        "mul",
        "cases.py",
        "FLOPs avoided",
    ):
        assert part in text
    assert "params['a']" not in text


def equations_shown(report):
    return dict(report.tables()[0].rows)["equations ran"]


def test_equations_are_of_the_functions_only_where_each_is_one():
    """Else some of them ran twice, or are another form of others: "102 of 78"."""
    report = called((PARAMS, X), ({**PARAMS, "c": np.float64(4.0)}, X)).explain()
    num = report.num_equations
    assert equations_shown(report) == f"2 of {num}"
    derived = replace(report, num_ran=102, num_derived=30)
    assert equations_shown(derived) == f"102, 30 of them derived; the function has {num}"
    filled = replace(derived, filled=report.loaded, num_derived=0)
    assert equations_shown(filled) == f"102, fills included; the function has {num}"


def test_no_line_of_the_package_stands_for_one_of_the_users(monkeypatch):
    serve_by_rows(monkeypatch)
    f = incrax.incremental(lambda theta: jnp.sum(jnp.tanh(theta[IDS])), tuning=EAGER)
    for row in range(6):
        f(np.eye(NUM)[row])
    report = f.explain().as_dict()
    assert report["served_by"] == "slices"
    sources = {each["source"].partition(":")[0] for each in report["ran"]}
    assert sources <= {"", __file__}
    # What is made of an equation has its line; rows of arguments are taken before any.
    of_table = [each["source"] for each in report["ran"] if each["primitive"] == "reshape"]
    assert of_table
    assert all("lambda" in source for source in of_table)


def test_the_text_of_a_dry_run_says_would():
    f = called((PARAMS, X))
    text = str(f.explain({**PARAMS, "c": np.float64(4.0)}, X))
    assert "dry run" in text
    assert "would run" in text
    assert "last call" not in text.splitlines()[0]


def test_the_text_of_a_call_with_nothing_changed():
    text = str(called((PARAMS, X), (PARAMS, X)).explain())
    assert "nothing" in text
    assert "no input changed" in text
    assert "0 of" in text


def test_long_lists_are_cut():
    def fun(t, x):
        total = 0.0
        for k in range(35):
            total = total + jnp.sum(jnp.sin(t[k] * x))
        return total

    f = called((np.ones(35), X), fun=fun)
    report = f.explain()
    assert len(report.as_dict()["ran"]) > 100
    text = str(report.verbose)
    assert "more" in text
    assert text.count(" sin ") <= 30


def test_brackets_in_names_are_no_markup():
    f = called(
        ({"[bold]": 1.0}, X), ({"[bold]": 2.0}, X), fun=lambda p, x: p["[bold]"] * jnp.sum(x)
    )
    assert "p['[bold]']" in str(f.explain())


def test_the_representation_of_the_function_counts_calls():
    f = called((PARAMS, X), (PARAMS, X))
    assert repr(f) == "incremental(model, tuning=Tuning(planner='minimal')): 2 calls, 1 unchanged"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ""),
        ({"policy": "fast", "versions": 2, "memory": None, "tuning": incrax.Tuning()}, ""),
        ({"policy": "exact", "versions": 3}, ", policy='exact', versions=3"),
        ({"memory": 0, "algebra": True}, ", memory=0, algebra=True"),
        ({"calls": 9, "changing": ["a"]}, ", tuning=Tuning(calls=9, changing=(('a',),))"),
    ],
)
def test_the_representation_of_the_function_has_the_options_that_are_no_defaults(options, expected):
    assert repr(incrax.incremental(model, **options)).startswith(f"incremental(model{expected}): ")


@pytest.mark.parametrize(
    "text",
    [
        "Tuning()",
        "Tuning(planner='minimal')",
        "Tuning(hot_after=1, compile_s=5.0, timed=False, remember=False, background=False)",
        "Tuning(calls=3, changing=(('a',), ('b', 'c')))",
    ],
)
def test_tuning_is_written_as_what_differs_from_the_defaults(text):
    tuning = eval(text, {"Tuning": incrax.Tuning})
    assert repr(tuning) == text
    assert eval(repr(tuning), {"Tuning": incrax.Tuning}) == tuning
