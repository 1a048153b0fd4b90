"""The page on performance and the log of targets: what they say of made-up results, and that those
that are kept are up to date.
"""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.suite import command, schema
from benchmarks.suite.schema import Check, Line, Table, Timing

pytest.importorskip("matplotlib")

from benchmarks.suite import page, plots, selection  # noqa: E402

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def line(case: str, ratio: float, aim: float | None = 2.0, size: float = 1.0) -> Line:
    """jax.jit takes `ratio` ms, incrax 1 ms, by hand half a ms."""
    seconds = {"jax.jit": ratio * 1e-3, "incrax": 1e-3, "hand": 5e-4}
    timings = {name: Timing(x, 0.9 * x, 1.1 * x) for name, x in seconds.items()}
    name = "jax.jit / incrax"
    checks = (
        [Check(f">={aim:g}x jax.jit", f"{ratio:.2f}x jax.jit", ratio >= aim, name)] if aim else []
    )
    cells = {"jax.jit": f"{ratio} ms", "incrax": "1 ms", name: f"{ratio:.2f}"}
    return Line(case, cells, timings, {name: ratio}, {"size": size}, checks)


def result(benchmark: str, *tables: Table, date: str = "2026-11-22", **more) -> schema.Result:
    machine, versions = (
        {"cpu": "Abacus", "cores": "2"},
        {"python": "3.11", "jax": "0.10", "incrax": "0.1"},
    )
    options = more.pop("options", schema.Options(rounds=9))
    return schema.Result(1, benchmark, date, machine, versions, options, list(tables), **more)


def curves() -> schema.Result:
    lines = [
        line(f"mixture, {n} rows", gain, None, n)
        for n, gain in ((1_000, 0.5), (10_000, 2.0), (100_000, 8.0))
    ]
    inputs = [line(f"normals, {3 * n} inputs", 1.0, None, n) for n in (1, 2)]
    return result(
        "curves", Table("Call time against rows", lines), Table("Call time against inputs", inputs)
    )


def jobs() -> schema.Result:
    """A job that gains, also where the calls are given and in the next process, and one that loses."""
    made = [line("slow theory", 3.0, None), line("small function", 0.5, None)]
    made[0].ratios.update({"incrax again / incrax": 0.5, "calls given / incrax": 0.75})
    return result("jobs", Table("whole jobs", made), conditions="quiet")


def growth() -> schema.Result:
    made = [
        Line(
            f"chain, {n} equations",
            {},
            figures={"equations": n, "analysis": n * 1e-4, "plan, fast": n * 2e-4},
        )
        for n in (100, 1_000)
    ]
    return result("growth", Table("Growth with equations", made))


@pytest.fixture(scope="module")
def results():
    mixture = result(
        "mixture",
        Table("one", [line("value, one yield", 3.0), line("value, one | mean", 1.5)]),
        conditions="busy",
        busy=[0.1, 0.62],
        load=[3.0, 2.0, 1.0],
        commit="abc123",
    )
    zfit = Line(
        "mixture, value",
        {"incrax": "1 ms", "zfit": "9 ms", "zfit / incrax": "9.00"},
        {"incrax": Timing(1e-3, 1e-3, 1e-3), "zfit": Timing(9e-3, 9e-3, 9e-3)},
        {"zfit / incrax": 9.0},
    )
    return [
        mixture,
        curves(),
        growth(),
        jobs(),
        result("amplitude", Table("one", [line(page.CALLS[1][1], 9.0, None)])),
        result("peers-zfit", Table("incrax and zfit", [zfit]), conditions="quiet"),
        result("peers-root", skipped="needs Python 9.9; none of them was found"),
    ]


@pytest.fixture(scope="module")
def files(results):
    return page.make(results)


@pytest.fixture(scope="module")
def text(files):
    return files[page.LOG]


@pytest.fixture(scope="module")
def summary(files):
    return files[page.PAGE]


def test_the_summary_has_whole_jobs_first_then_calls(summary):
    rows = [row for row in summary.splitlines() if row.startswith(("| job:", "| call:"))]
    assert [row.partition(":")[0] for row in rows] == ["| job", "| job", "| call"]
    assert rows[0].endswith("| 3 ms | 1 ms | **3x** | **4x** | **6x** |")
    assert rows[1].endswith("| 500 µs | 1 ms | 0.5x |  |  |")
    assert summary.index("## Whole jobs") < summary.index("## Single calls")
    assert "2 of 3 end as early as with jax.jit or earlier" in summary


def test_the_summary_has_ten_rows_and_four_plots_and_no_target(files, summary):
    assert len(page.ROWS) == 10
    assert len(re.findall(r"^!\[", summary, re.MULTILINE)) == 4
    assert "short" not in summary
    assert "mixture: Measured 2026-11-22 on Abacus" in summary


def test_every_row_and_call_of_the_summary_is_a_line_of_a_result_that_is_kept():
    kept = selection.best(schema.load_all(RESULTS))
    lines = (*page.ROWS, *page.CALLS)
    named = [(name, case) for name, case, _ in lines if name in kept]  # else not measured yet
    assert [each for each in named if page._line(kept, *each) is None] == []


def test_the_summary_says_what_each_job_does(summary):
    assert "| slow theory | 40 points of a theory that takes 12 to 18 ms, and at each" in summary
    assert "| small function | 5,000 calls" in summary
    assert "| pruning |" not in summary


def test_every_line_has_its_figures_its_target_and_its_verdict(text):
    assert "| value, one yield | 3.0 ms | 1 ms | 3.00 | `>=2x jax.jit` | ok |" in text
    assert (
        "| value, one \\| mean | 1.5 ms | 1 ms | 1.50 | `>=2x jax.jit` | **short**: 1.50x jax.jit |"
        in text
    )


def test_what_is_short_is_listed_once_more(text):
    assert "2 lines have a target, 1 of them are short of one." in text
    short = text.partition("## Targets that are short")[2].partition("\n## ")[0]
    assert (
        "| mixture | value, one \\| mean | `>=2x jax.jit` | 1.50x jax.jit | 2026-11-22 (busy) |"
        in short
    )
    assert "one yield" not in short


def test_every_figure_has_its_machine_versions_date_state_and_command(text):
    assert (
        "`python -m benchmarks --run mixture`. Measured 2026-11-22 on Abacus x 2; python 3.11, jax "
        "0.10, incrax 0.1, "
        "commit abc123; **while other programs kept the machine busy** (others took 62 % of the "
        "processors, "
        "load average 3)."
    ) in text
    assert "How much faster than jax.jit is a mixture likelihood" in text


def test_peers_are_shown_or_skipped_with_their_reason(text):
    assert "| mixture, value | 1 ms | 9 ms | 9.00 |" in text
    assert "**Skipped** on 2026-11-22: needs Python 9.9; none of them was found" in text
    assert re.search(
        r"### torch\n\n.*`python -m benchmarks --peers torch`\n\nNot measured yet\.", text
    )


def test_benchmarks_without_a_result_are_named(text):
    (line,) = [line for line in text.splitlines() if line.startswith("Not measured yet: ")]
    assert "`bijectors`" in line
    assert "`mixture`" not in line


def test_plots_say_what_they_show_to_those_who_do_not_see_them(text, summary, files):
    pages = summary + text
    shown = {path: told for told, path in re.findall(r"!\[(.*?)\]\((assets.*?)\)", pages)}
    assert set(shown) == set(files) - {page.PAGE, page.LOG}
    assert (
        "1,000 to 100,000 rows: from 0.5 times to 8 times as fast as jax.jit, at most 8 times"
        in shown["assets/performance/growth-calls.svg"]
    )
    assert "3 to 6 inputs" in shown["assets/performance/growth-calls.svg"]
    assert "1,000 equations 0.3 s" in shown["assets/performance/growth-analysis.svg"]
    assert "The largest is 3x (mixture: value, one yield)" in shown["assets/performance/gains.svg"]
    assert "None is faster than incrax" in shown["assets/performance/peers.svg"]


def test_plots_are_files_that_can_be_read_without_a_date_and_turn_dark(files):
    for name, drawn in files.items():
        if name.endswith(".svg"):
            root = ElementTree.fromstring(drawn)
            assert root.tag.endswith("svg")
            assert root.find("{http://www.w3.org/2000/svg}title") is not None
            assert "dc:date" not in drawn
            assert "prefers-color-scheme: dark" in drawn
            colours = {
                each.lower() for each in re.findall(r"(?:fill|stroke): (#[0-9a-fA-F]{6})", drawn)
            }
            assert colours <= {
                *plots.DARK,
                *plots.DARK.values(),
                *plots.FORMS.values(),
                *plots.OTHER,
                plots.OPEN,
            }


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", sorted({*plots.FORMS.values(), *plots.OTHER, plots.OPEN}))
def test_every_colour_stands_out_from_both_backgrounds(colour):
    assert contrast(colour, plots.BACKGROUND) >= 3.0
    assert contrast(colour, plots.DARK[plots.BACKGROUND]) >= 3.0


def test_text_stands_out_from_its_background():
    assert contrast(plots.TEXT, plots.BACKGROUND) >= 7.0
    assert contrast(plots.DARK[plots.TEXT], plots.DARK[plots.BACKGROUND]) >= 7.0


def test_the_same_results_give_the_same_bytes(results, files):
    assert page.make(results[::-1]) == files


def test_files_that_differ_are_found_and_plots_that_are_gone_removed(files, tmp_path):
    assert page.differing(files, tmp_path) == list(files)
    page.write(files, tmp_path)
    assert page.differing(files, tmp_path) == []
    (tmp_path / page.ASSETS / "old.svg").write_text("<svg/>")
    (tmp_path / page.PAGE).write_text("edited by hand")
    drawn = tmp_path / page.ASSETS / "gains.svg"
    drawn.write_text(drawn.read_text().replace("</svg>", "<!-- other bytes --></svg>"))
    assert page.differing(files, tmp_path) == [f"{page.ASSETS}/gains.svg", page.PAGE]
    drawn.write_text(drawn.read_text().replace(plots.CREATOR, "matplotlib 0.1.2"))
    assert page.differing(files, tmp_path) == [page.PAGE]  # another version may draw other bytes
    page.write(files, tmp_path)
    assert not (tmp_path / page.ASSETS / "old.svg").exists()


def test_a_quiet_run_is_shown_rather_than_a_newer_busy_one():
    made = [
        result("pure", Table("one", []), date="2026-11-20", conditions="quiet"),
        result("pure", Table("one", []), date="2026-11-21", conditions="busy"),
        result("exact", skipped="why", date="2026-11-23"),
        result("exact", Table("one", []), date="2026-11-20"),
        result("rows", Table("one", []), date="2026-11-20", conditions="busy"),
        result("rows", Table("one", []), date="2026-11-21"),
    ]
    found = selection.best(made)
    assert {name: each.date for name, each in found.items()} == {
        "pure": "2026-11-20",
        "exact": "2026-11-20",
        "rows": "2026-11-21",
    }
    shown = page.make(made)[page.LOG]
    assert "## Other runs" in shown
    assert "| pure | 2026-11-21 | Abacus | busy |" in shown


def test_what_an_older_version_took_is_not_shown():
    newer = {"python": "3.11", "jax": "0.10", "incrax": "0.10.1"}
    made = [
        result("pure", Table("one", []), conditions="quiet"),
        dataclasses.replace(result("pure", Table("one", []), conditions="busy"), versions=newer),
        result("exact", Table("one", []), conditions="quiet"),
    ]
    assert selection.best(made) == {"pure": made[1]}


def test_another_version_of_jax_has_a_column_and_replaces_nothing():
    newer = {"python": "3.13", "jax": "0.12.1", "incrax": "0.1"}
    made = [jobs(), growth(), dataclasses.replace(jobs(), versions=newer, date="2026-12-01")]
    made[2].lines[0][1].ratios["jax.jit / incrax"] = 7.0
    shown = page.make(made)[page.PAGE]
    assert "times faster | with `calls=` | next process | JAX 0.12 |" in shown
    assert "| 3 ms | 1 ms | **3x** | **4x** | **6x** | **7x** |" in shown
    assert "Measured 2026-11-22 on Abacus x 2; python 3.11, jax 0.10" in shown
    assert "Measured 2026-12-01 on Abacus x 2; python 3.13, jax 0.12.1" in shown


def test_versions_are_named_in_one_order():
    made = result("peers-torch", skipped="why")
    one, other = (
        {name: "1" for name in names}
        for names in (["incrax", "jax", "python"], ["python", "jax", "incrax"])
    )
    told = [
        selection.measured(dataclasses.replace(made, versions=versions))
        for versions in (one, other)
    ]
    assert told[0] == told[1]
    assert "python 1, jax 1, incrax 1" in told[0]


def test_lines_of_one_name_are_told_apart_in_the_plot():
    twice = [
        Table("one", [line("value", 3.0)]),
        Table("once more", [line("value", 4.0), line("other", 5.0)]),
    ]
    drawn = page.make([result("pure", *twice)])[f"{page.ASSETS}/gains.svg"]
    for label in ("pure: value, table 1", "pure: value, table 2", "pure: other<"):
        assert label in drawn


def test_a_run_of_some_cases_is_shown_only_where_there_is_no_whole_one():
    part = {
        "options": schema.Options(arguments=["--rounds", "3", "--only", "value, one"], rounds=3)
    }
    made = [
        result("pure", Table("one", []), date="2026-11-20", conditions="busy"),
        result("pure", Table("one", []), date="2026-11-22", conditions="quiet", **part),
        result("exact", Table("one", []), date="2026-11-22", **part),
    ]
    assert {name: each.date for name, each in selection.best(made).items()} == {
        "pure": "2026-11-20",
        "exact": "2026-11-22",
    }
    shown = page.make(made)[page.LOG]
    assert '`python -m benchmarks --run exact --only "value, one" --rounds 3`' in shown
    assert "`python -m benchmarks --run pure`" in shown


def test_the_page_of_analyses_has_the_figures_of_the_result_between_its_marks():
    timings = {"its own tool": Timing(9.0, 8.0, 10.0), "incrax": Timing(2.0, 1.9, 2.2)}
    ratios = {"its own tool / incrax": 4.5}
    lines = [
        Line("numpyro_radon: 85 counties", {}, timings, ratios),
        line("pulsar_noise: 30 pulsars", 0.5),
    ]
    made = page.make([result("analyses", Table("whole jobs", lines))])[page.ANALYSES]
    kept = (page.DOCS / page.ANALYSES).read_text(encoding="utf-8")
    link = "| [{0}](../examples/analyses/{0}.py): {1} | "
    assert link.format("numpyro_radon", "85 counties") + "9 |  | 2 | **4.5x** |  |" in made
    assert link.format("pulsar_noise", "30 pulsars") + " | 0.0005 | 0.001 |  | 0.5x |" in made
    assert "Measured 2026-11-22 on Abacus" in made
    assert made[: made.index("<!-- figures -->")] == kept[: kept.index("<!-- figures -->")]
    end = "<!-- end of figures -->"
    assert made.partition(end)[2] == kept.partition(end)[2]


# --- the page that is kept ------------------------------------------------------------------------


def test_the_page_that_is_kept_is_that_of_the_results():
    """`python -m benchmarks --page` makes it so."""
    assert page.differing(page.make(schema.load_all(RESULTS))) == []


def test_the_command_checks_and_writes(monkeypatch, tmp_path, results, capsys):
    for number, each in enumerate(results[:1]):
        schema.save(each, tmp_path / "results" / f"{number}.json")
    monkeypatch.setattr(page, "DOCS", tmp_path / "docs")
    words = ["--page", "--output", str(tmp_path / "results")]
    assert command.main([*words, "--check"]) == 1
    assert (
        "assets/performance/gains.svg, performance.md, targets.md; run --page"
        in capsys.readouterr().err
    )
    assert command.main(words) == 0
    assert command.main([*words, "--check"]) == 0
    assert "the page is up to date" in capsys.readouterr().err
