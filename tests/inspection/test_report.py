"""The data behind a page: they are those of `explain` and `deps`, and hold no values."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL
from inspection.cases import PARAMS, X, model
from slice_cases import serve_by_rows

import incrax
from incrax.engine.call import rehearsal
from incrax.explanation import served_by
from incrax.inspection import page_data

EXACT = {"policy": "exact", "tuning": incrax.Tuning(timed=False)}
KINDS = {"minimal": {"tuning": MINIMAL}, "cost": {"tuning": FAST}, "exact": EXACT}
D3_SHA256 = "f2094bbf6141b359722c4fe454eb6c4b0f0e42cc10cc7af921fc158fceb86539"


def changed(*names):
    return {**PARAMS, **{name: PARAMS[name] + 7.5 for name in names}}


def made(kind="minimal", changes=("c", "c", "a", "c")):
    f = incrax.incremental(model, **KINDS[kind])
    f(PARAMS, X)
    params = PARAMS
    for name in changes:
        params = {**params, name: params[name] + 1.0}
        f(params, X)
    f(PARAMS, X)
    return f


def outlook(data, *paths):
    bits = 0
    for leaf in data["leaves"]:
        if leaf["path"] in paths:
            bits |= ((1 << leaf["width"]) - 1) << leaf["offset"]
    (found,) = [o for o in data["outlooks"] if int(o["mask"], 16) == bits]
    return found


def data_of(engine):
    return page_data._Data(page_data.Subject("f", engine, {}, 1))


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_an_outlook_has_the_numbers_of_explain(kind, name):
    f = made(kind)
    found = outlook(incrax.report(f).as_dict(), f"params['{name}']")
    expected = f.explain(changed(name), X).as_dict()
    keys = (
        "served_by",
        "why",
        "num_ran",
        "loaded_bytes",
        "flops_ran",
        "flops_avoided",
        "transcendentals_avoided",
    )
    assert {key: found[key] for key in keys} == {key: expected[key] for key in keys}
    assert found["num_loaded"] == len(expected["loaded"])
    assert found["num_filled"] == len(expected["filled"])


def test_an_equation_that_runs_twice_counts_twice():
    """Once to fill a value, once in the plan: as in `explain`."""
    engine = made()._traces.latest.engine
    record = rehearsal.outlook(engine, engine.layout.leaf_mask(2))
    assert record.plan.eqns
    data = data_of(engine)
    filled = record._replace(before=(record.plan,))
    once, twice = (data.described(served_by(engine, each)) for each in (record, filled))
    assert (twice["num_ran"], twice["flops_ran"]) == (2 * once["num_ran"], 2 * once["flops_ran"])
    assert twice["ran"] == once["ran"]
    assert once["flops_avoided"] - twice["flops_avoided"] == once["flops_ran"]


def test_an_outlook_is_what_the_call_then_does():
    f = made()
    for name in PARAMS:
        found = outlook(incrax.report(f).as_dict(), f"params['{name}']")
        f(changed(name), X)
        done = f.explain().as_dict()
        assert (found["num_ran"], found["flops_ran"]) == (done["num_ran"], done["flops_ran"])
        f(PARAMS, X)


@pytest.mark.parametrize("memory", [None, 0])
def test_a_dry_run_of_a_new_change_says_what_the_minimal_planner_will_run(memory):
    f = incrax.incremental(model, tuning=MINIMAL, memory=memory)
    f(PARAMS, X)
    before = f.explain(changed("a", "c"), X).as_dict()
    f(changed("a", "c"), X)
    after = f.explain().as_dict()
    same = ("served_by", "why", "ran", "loaded", "filled", "flops_ran")
    assert {key: before[key] for key in same} == {key: after[key] for key in same}
    assert bool(before["filled"]) == (memory == 0)


def test_a_dry_run_of_a_new_change_says_what_the_exact_policy_will_run():
    f = made("exact")
    before = f.explain(changed("a", "b"), X).as_dict()
    f(changed("a", "b"), X)
    after = f.explain().as_dict()
    assert before["served_by"] == after["served_by"] == "segments"
    assert before["num_ran"] == after["num_ran"]


def test_equations_depend_on_inputs_as_deps_says():
    f = made()
    data, table = incrax.report(f).as_dict(), f.deps()
    equations = data["equations"]
    masks = [int(mask, 16) for mask in equations["sets"]]
    for leaf, row in zip(data["leaves"], table.rows, strict=True):
        bits = ((1 << leaf["width"]) - 1) << leaf["offset"]
        reached = [n for n, number in enumerate(equations["set"]) if masks[number] & bits]
        assert leaf["path"] == row.path
        assert len(reached) == row.equations
        assert sum(equations["flops"][n] for n in reached) == row.flops
        assert sum(equations["transcendentals"][n] for n in reached) == row.transcendentals


def test_equations_have_their_source_line_and_its_text():
    equations = incrax.report(made()).as_dict()["equations"]
    exp = equations["primitives"].index("exp")
    (number,) = [n for n, primitive in enumerate(equations["primitive"]) if primitive == exp]
    place = equations["places"][equations["place"][number]]
    assert place["file"] == "inspection/cases.py"
    assert place["function"] == "model"
    assert "jnp.exp(params" in place["code"]
    assert equations["types"][equations["type"][number]] == "f64[300]"
    assert equations["bytes"][number] == 2400


def test_measured_programs_scale_the_seconds_of_their_equations():
    f = incrax.incremental(model)
    for k in range(12):
        f(changed("a") if k % 2 else PARAMS, X)
    data = incrax.report(f).as_dict()
    equations, engine = data["equations"], f._traces.latest.engine
    assert engine.chooser.whole.seconds is not None
    assert equations["how"] == "measured as a whole"
    assert sum(equations["seconds"]) == pytest.approx(engine.chooser.whole.seconds, rel=1e-2)
    untimed = incrax.report(made("minimal")).as_dict()["equations"]
    assert untimed["how"] == "estimated"


def test_an_outlook_says_from_which_values_it_starts():
    f = incrax.incremental(model, tuning=MINIMAL)
    f(PARAMS, X)
    f(changed("a"), X)
    found = outlook(incrax.report(f).as_dict(), "params['b']")
    record = rehearsal.outlook(f._traces.latest.engine, int(found["mask"], 16))
    assert found["differs"] == hex(record.dirty)


def test_sets_that_calls_had_are_looked_out_for_before_inputs_that_they_did_not_change(monkeypatch):
    f = incrax.incremental(lambda p: sum(map(jnp.exp, p)), tuning=MINIMAL)
    p = np.arange(20.0)
    f(list(p))
    for _ in range(2):
        p[17:19] += 1.0
        f(list(p))
    monkeypatch.setattr(page_data, "MAX_OUTLOOKS", 5)
    data = incrax.report(f).as_dict()
    assert len(data["outlooks"]) == 5
    assert outlook(data, "p[17]", "p[18]")["count"] == 2


def test_a_report_evaluates_and_stores_nothing():
    f = made()
    before = f.stats.as_dict()
    states = [dict(state.saved) for state in f._traces.latest.engine.store.states]
    incrax.report(f)
    incrax.report(f, changed("a"), X)
    incrax.report(f, PARAMS, X[:10])
    assert f.stats.as_dict() == before
    assert [dict(state.saved) for state in f._traces.latest.engine.store.states] == states


def test_the_data_are_json_without_values_of_inputs():
    f = incrax.incremental(model, tuning=MINIMAL)
    f({**PARAMS, "a": np.float64(1234.567891)}, X)
    text = json.dumps(incrax.report(f).as_dict(), allow_nan=False)
    assert "1234.56" not in text


def test_effects_run_in_every_outlook():
    def fun(a, b):
        jax.debug.print("{}", a, ordered=False)
        return jnp.exp(a) + jnp.sin(b)

    f = incrax.incremental(fun, tuning=MINIMAL)
    f(1.0, 2.0)
    data = incrax.report(f).as_dict()
    for found in data["outlooks"]:
        assert found["num_ran"] >= 1
    assert outlook(data, "b")["num_ran"] == f.explain(1.0, 5.0).as_dict()["num_ran"]


# --- what can be reported on ----------------------------------------------------------------------


def test_before_the_first_call_arguments_are_needed():
    f = incrax.incremental(model, tuning=MINIMAL)
    with pytest.raises(incrax.NotCalledError) as caught:
        incrax.report(f)
    assert str(caught.value) == (
        "`report()` needs a call to report on, and this function has not been called yet. Call it "
        "once, or give "
        "`report()` example arguments."
    )
    data = incrax.report(f, PARAMS, X).as_dict()
    assert data["function"]["num_equations"] == f.deps(PARAMS, X).num_equations
    assert data["outlooks"] == []
    assert f.stats.calls == 0


def test_arguments_choose_the_signature():
    f = made()
    data = incrax.report(f, PARAMS, X[:10]).as_dict()
    assert data["leaves"][-1]["type"] == "f64[10]"
    assert incrax.report(f).as_dict()["leaves"][-1]["type"] == "f64[300]"


def test_gradients_are_reported_like_any_function():
    g = incrax.value_and_grad(model, wrt="params", tuning=MINIMAL)
    g(PARAMS, X)
    assert incrax.report(g).as_dict()["function"]["num_outputs"] == 4


def test_a_bound_model_is_reported_by_its_most_frequent_method():
    bound = incrax.bind(model, params=dict(PARAMS), x=X)
    bound.value()
    for k in range(3):
        bound.set({"params['a']": float(k)})
        bound.grad()
    data = incrax.report(bound).as_dict()
    assert data["stats"]["calls"] == 3
    assert data["function"]["num_outputs"] == 5  # `grad` runs the program of both


def test_a_method_is_reported_as_the_function_that_it_is_of():
    class Line(NamedTuple):
        slope: float

        @incrax.incremental
        def at(self, x):
            return self.slope * x

    line = Line(2.0)
    line.at(3.0)
    assert incrax.report(line.at).as_dict()["stats"]["calls"] == 1


def test_what_is_no_incremental_function_is_refused():
    with pytest.raises(incrax.errors.ReportError) as caught:
        incrax.report(model)
    assert str(caught.value) == (
        "`report(f)` got a function. A page shows what an incremental function saves and runs, and "
        "this is none. "
        "Usually the plain function was passed instead of what `incremental` or `grad` returned: "
        "calls of it are not "
        "tracked. Nothing was evaluated. Pass `incrax.incremental(f)`, call it a few times, and "
        "report on that; of a guarded function `print(f.explain())`."
    )
    assert issubclass(incrax.errors.ReportError, TypeError)


# --- files and notebooks --------------------------------------------------------------------------


def test_a_page_is_written_where_it_is_asked_for(tmp_path):
    f = made()
    report = incrax.report(f)
    assert report.save(tmp_path / "one.html") == tmp_path / "one.html"
    assert (tmp_path / "one.html").read_text(encoding="utf-8") == report.html
    report.save(str(tmp_path / "two.html"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.html", "two.html"]
    assert (
        str(report)
        == f"report of model: {report.as_dict()['function']['num_equations']} equations, 6 calls"
    )
    assert repr(report) == f"<{report}>"


def test_one_equation_is_one_equation():
    f = incrax.incremental(jnp.exp, tuning=MINIMAL)
    f(1.0)
    assert str(incrax.report(f)) == "report of exp: 1 equation, 1 call"


def test_a_page_in_a_frame_is_escaped():
    text = incrax.report(made())._repr_html_()
    assert text.startswith("<iframe")
    assert text.count("<") == 2  # the frame and its end: the page is an attribute
    assert 'sandbox="allow-scripts"' in text


def test_data_cannot_end_their_element():
    def fun(a):
        return jnp.exp(a)

    fun.__name__ = "</script><script>alert(1)</script>\u2028<!--"
    f = incrax.incremental(fun, tuning=MINIMAL)
    f(1.0)
    html = incrax.report(f).html
    assert (
        "alert(1)</script>"
        not in html.replace("&lt;", "<").split('id="data">')[1].split("</script>")[0]
    )
    assert html.count("<script") == 3
    start = html.index('id="data">') + len('id="data">')
    data = json.loads(html[start : html.index("</script>", start)])
    assert data["function"]["name"] == fun.__name__


def test_the_library_that_draws_is_the_released_one_with_its_licence():
    assets = resources.files("incrax.inspection") / "assets"
    assert hashlib.sha256((assets / "d3.min.js").read_bytes()).hexdigest() == D3_SHA256
    assert "Permission to use, copy, modify" in (assets / "d3-LICENSE.txt").read_text()
    assert "Mike Bostock" in incrax.report(made()).html


@pytest.mark.parametrize("method", ["explain", "deps"])
def test_printed_tables_are_tables_in_a_notebook(method):
    f = incrax.incremental(lambda p: jnp.exp(p["<a>"]), tuning=MINIMAL)
    f({"<a>": 1.0})
    text = getattr(f, method)()._repr_html_()
    assert "p[&#x27;&lt;a&gt;&#x27;]" in text
    assert "<a>" not in text
    assert text.count("<table>") == text.count("</table>") == len(getattr(f, method)().tables())


def test_the_paths_of_a_guarded_function_are_tables_in_a_notebook():
    f = incrax.guarded(lambda x: x if x > 0 else -x)
    f(1.0)
    assert "<table>" in f.explain()._repr_html_()


# --- the verdict and rows -------------------------------------------------------------------------


def test_the_verdict_is_that_of_explain_with_its_seconds():
    f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(a)) * b)
    for k in range(8):
        f(np.ones(50_000), float(k))
    found = incrax.report(f).as_dict()["verdict"]
    verdict = f._traces.latest.engine.chooser.verdict
    assert found["sentence"] == f.explain().as_dict()["worth"] == verdict.sentence
    assert sum(found["ours"].values()) == verdict.ours_s
    assert sum(found["jit"].values()) == verdict.jit_s
    assert found["ours"]["compiling"] == found["jit"]["compiling"] > 0.0


def test_where_nobody_takes_times_there_is_no_verdict():
    nothing = {"sentence": "", "ours": {}, "jit": {}}
    assert incrax.report(made("minimal")).as_dict()["verdict"] == nothing
    before = incrax.report(incrax.incremental(model), PARAMS, X).as_dict()["verdict"]
    assert before == {
        **nothing,
        "sentence": "not known yet: the first calls tell how long the function takes",
    }


def test_a_change_of_rows_has_the_numbers_of_explain(monkeypatch):
    serve_by_rows(monkeypatch)
    observed = np.linspace(-1.0, 1.0, 24 * 7).reshape(24, 7)
    f = incrax.incremental(
        lambda theta, scale: scale * jnp.sort(jnp.sum((observed - theta[:, None]) ** 2, axis=1)),
        tuning=EAGER,
    )
    for row in range(6):
        f(0.1 * np.eye(24)[row], 1.5)
    expected = f.explain().as_dict()
    data = incrax.report(f).as_dict()
    assert expected["served_by"] == "slices"
    assert data["last"]["slice"] == 0
    (found,) = data["slices"]
    keys = ("rows", "num_ran", "flops_ran", "flops_avoided", "transcendentals_avoided")
    assert {key: found[key] for key in keys} == {key: expected[key] for key in keys}
    primitives = data["equations"]["primitives"]
    of = lambda spans: [
        primitives[data["equations"]["primitive"][number]]
        for first, last in spans
        for number in range(first, last + 1)
    ]
    assert "integer_pow" in of(found["by_rows"])
    assert "sort" not in of(found["by_rows"])  # it needs all rows
    assert "sort" in of(found["ran"])
