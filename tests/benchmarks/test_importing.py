"""Results that were kept as text: taken over as they print, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suite import catalogue, command, importing, schema

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TEXTS = sorted(RESULTS.glob("*.txt"))
TABLE = """\
Mixture
date 2026-11-21T12:00:00  cpu AMD EPYC x 2  device cpu  python 3.11.7  jax 0.10.2  incrax 0.1.0
case  jax.jit         incrax            jax.jit / incrax  by     target                 verdict
----  --------------  ----------------  ----------------  -----  ---------------------  ---------------------------
a, b  2 ms [1.9-2.2]  800 us [790-810]  2.50              plan   >=2x jax.jit, us <=15  ok
c     1 ms [0.9-1.1]  2 ms [1.9-2.2]    0.50              whole  >=2x jax.jit, us <=15  short: 0.50x jax.jit, us 99
2 lines with a target, 1 short

On two cores that other programs kept busy.
"""


def read(tmp_path: Path, text: str) -> schema.Result:
    path = tmp_path / "2026-11-21-mixture.txt"
    path.write_text(text)
    return importing.result_of(path, "mixture")


def test_cells_become_figures(tmp_path):
    result = read(tmp_path, TABLE)
    (first, second) = (line for _, line in result.lines)
    assert first.timings["jax.jit"].median == pytest.approx(2e-3)
    assert first.timings["incrax"].upper == pytest.approx(810e-6)
    assert first.ratios == {"jax.jit / incrax": 2.5}
    assert [check.ratio for check in first.checks] == ["jax.jit / incrax", ""]
    assert [check.is_met for check in second.checks] == [False, False]
    assert [check.reached for check in second.checks] == ["0.50x jax.jit", "us 99"]
    assert second.cells["by"] == "whole"
    assert (result.date, result.conditions) == ("2026-11-21T12:00:00", "busy")
    assert result.machine == {"cpu": "AMD EPYC", "cores": "2", "device": "cpu"}
    assert result.notes == ["On two cores that other programs kept busy."]


def test_a_table_whose_columns_moved_is_refused(tmp_path):
    with pytest.raises(
        importing.ImportingError, match="line 3: the table does not print as it was read"
    ):
        read(tmp_path, TABLE.replace("c     1 ms", "c   1 ms"))


def test_a_figure_without_a_target_is_refused(tmp_path):
    with pytest.raises(
        importing.ImportingError, match="reached 'ms 99', but no target is like that"
    ):
        read(tmp_path, TABLE.replace("us 99", "ms 99"))


def test_a_text_without_a_table_and_a_name_without_a_benchmark_are_refused(tmp_path):
    with pytest.raises(importing.ImportingError, match="has no table of a script"):
        read(tmp_path, "nothing\n")
    with pytest.raises(
        importing.ImportingError, match="its name must be DATE-BENCHMARK.txt; known are mixture"
    ):
        importing.benchmark_of(Path("2026-11-21-what.txt"), ["mixture"])


def test_the_longest_name_that_fits_is_the_benchmark():
    assert (
        importing.benchmark_of(Path("2026-11-21-row-sparse-busy.txt"), ["row", "row_sparse"])
        == "row_sparse"
    )


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_every_text_that_is_kept_has_its_result_beside_it(path):
    benchmark = importing.benchmark_of(path, list(catalogue.by_name()))
    assert schema.load(path.with_suffix(".json")) == importing.result_of(path, benchmark)


def test_the_command_writes_what_it_read(tmp_path, capsys):
    assert command.main(["--import", str(TEXTS[0]), "--output", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert command.main(["--import", str(tmp_path / "none.txt")]) == 2
    assert "no such file" in capsys.readouterr().err
