"""Two results: better, worse, the same within the noise, new, gone; the exit code of the
command.
"""

from __future__ import annotations

import json

import pytest

from benchmarks.suite import command, comparing, schema
from benchmarks.suite.schema import Check, Line, Timing


def timing(median: float, spread: float = 0.02) -> Timing:
    return Timing(median, median * (1 - spread), median * (1 + spread))


def line(case: str, ratio: float, *, spread: float = 0.02, target: float | None = None) -> Line:
    """A line in which jax.jit takes `ratio` times as long as incrax."""
    name = "jax.jit / incrax"
    checks = (
        []
        if target is None
        else [Check(f">={target:g}x jax.jit", f"{ratio:.2f}x", ratio >= target, name)]
    )
    timings = {"jax.jit": timing(ratio, spread), "incrax": timing(1.0, spread)}
    return Line(case, {}, timings, {name: ratio}, {}, checks)


def counted(case: str, *, is_met: bool) -> Line:
    """A line whose target is a count."""
    return Line(case, {"Jacobians": "9"}, checks=[Check("Jacobians <=9", "Jacobians 9", is_met)])


def result(*lines: Line, benchmark: str = "mixture", quick: bool = False, **more) -> schema.Result:
    machine = {"cpu": "A"} | more.pop("machine", {})
    tables = [schema.Table("one", list(lines))]
    return schema.Result(
        1, benchmark, "2026-11-22", machine, {}, schema.Options(quick), tables, **more
    )


def statuses(first: schema.Result, second: schema.Result) -> dict[str, str]:
    return {each.case: each.status for each in comparing.compare([first], [second])}


def test_lines_are_better_worse_the_same_new_or_gone():
    first = result(line("a", 2.0), line("b", 2.0), line("c", 2.0), line("d", 2.0))
    second = result(line("a", 3.0), line("b", 1.0), line("c", 2.05), line("e", 2.0))
    assert statuses(first, second) == {
        "a": "better",
        "b": "worse",
        "c": "same",
        "e": "new",
        "d": "gone",
    }


@pytest.mark.parametrize(("spread", "expected"), [(0.02, "worse"), (0.2, "same")])
def test_quartiles_that_lie_far_apart_hide_a_change(spread, expected):
    """Four medians of 20 % noise each: 40 % in quadrature, and the ratio fell by a quarter."""
    first, second = result(line("a", 2.0, spread=spread)), result(line("a", 1.5, spread=spread))
    assert statuses(first, second) == {"a": expected}


def test_the_noise_is_that_of_four_medians_in_quadrature():
    old, new = line("a", 2.0, spread=0.1), line("a", 2.0, spread=0.1)
    (change,) = comparing.line_changes(old, new)
    assert change.noise == pytest.approx(0.2, rel=0.01)


def test_a_machine_that_is_twice_as_fast_is_no_progress():
    slow = line("a", 2.0)
    halves = {
        name: Timing(*(0.5 * x for x in (t.median, t.lower, t.upper)))
        for name, t in slow.timings.items()
    }
    assert statuses(result(slow), result(Line("a", {}, halves, slow.ratios))) == {"a": "same"}


def test_counts_compare_by_whether_their_target_is_met():
    lines = counted("a", is_met=True), counted("a", is_met=False)
    assert statuses(result(lines[0]), result(lines[1])) == {"a": "worse"}
    assert statuses(result(lines[1]), result(lines[0])) == {"a": "better"}
    assert statuses(result(lines[0]), result(lines[0])) == {"a": "same"}


def test_only_a_target_that_got_worse_counts():
    lines = comparing.compare(
        [result(line("a", 2.0), line("b", 2.0, target=1.5))],
        [result(line("a", 1.0), line("b", 1.0, target=1.5))],
    )
    assert {each.case: each.is_worse_target for each in lines} == {"a": False, "b": True}


def test_runs_that_cannot_be_compared_are_refused():
    with pytest.raises(
        comparing.ComparisonError, match="the first has figures of mixture, the second of pure"
    ):
        comparing.compare([result(line("a", 2.0))], [result(line("a", 2.0), benchmark="pure")])
    with pytest.raises(
        comparing.ComparisonError, match="one result of 'mixture' is of a quick run"
    ):
        comparing.compare([result(line("a", 2.0), quick=True)], [result(line("a", 2.0))])


@pytest.fixture
def files(tmp_path):
    """Three results: the first, one that is worse in a target, one that is worse elsewhere."""
    made = {
        "first": result(line("a", 2.0, target=1.5), line("b", 2.0)),
        "worse": result(
            line("a", 1.0, target=1.5), line("b", 2.0), machine={"cpu": "B"}, conditions="busy"
        ),
        "elsewhere": result(line("a", 2.0, target=1.5), line("b", 1.0)),
    }
    for name, each in made.items():
        schema.save(each, tmp_path / f"{name}.json")
    return {name: str(tmp_path / f"{name}.json") for name in made}


def test_the_exit_code_is_1_only_where_a_target_got_worse(files, capsys):
    assert command.main(["--compare", files["first"], files["first"]]) == 0
    assert command.main(["--compare", files["first"], files["elsewhere"]]) == 0
    assert command.main(["--compare", files["worse"], files["first"]]) == 0
    capsys.readouterr()
    assert command.main(["--compare", files["first"], files["worse"]]) == 1
    shown = capsys.readouterr()
    assert (
        shown.out.splitlines()[2].split()
        == "worse mixture a jax.jit / incrax 2 1 0.50 ±5 % yes".split()
    )
    assert "different machines (A; B)" in shown.err
    assert "the second was measured on a busy machine: mixture" in shown.err


def test_the_comparison_as_json(files, capsys):
    assert command.main(["--compare", files["first"], files["worse"], "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(each["case"], each["status"], each["is_worse_target"]) for each in found["lines"]] == [
        ("a", "worse", True),
        ("b", "same", False),
    ]


def test_bad_usage_has_exit_code_2(files, tmp_path, capsys):
    assert command.main(["--compare", files["first"], str(tmp_path / "none.json")]) == 2
    assert command.main(["--run", "nothing"]) == 2
    assert command.main(["--peers", "nothing"]) == 2
    assert command.main(["--run", "pure", "--rounds", "0"]) == 2
    assert command.main(["--run", "pure", "--limit", "-1"]) == 2
    shown = capsys.readouterr().err
    assert "no benchmark is called 'nothing'; known are all, jobs" in shown
    assert "no peer is called 'nothing'; known are all, zfit" in shown
    with pytest.raises(SystemExit) as caught:
        command.main([])
    assert caught.value.code == 2


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_of_some_cases_says_nothing_of_the_others(is_first):
    whole = result(line("a", 2.0), line("b", 2.0))
    part = result(line("a", 2.0))
    part.options.arguments.extend(["--only", "a"])
    pair = (part, whole) if is_first else (whole, part)
    assert statuses(*pair) == {"a": "same"}
    name = "first" if is_first else "second"
    expected = f"the {name} has some cases only (--only), others are not compared: mixture ('a')"
    assert comparing.remarks([pair[0]], [pair[1]]) == [expected]
