"""One benchmark in a process of its own: its result, its end at the limit, what is skipped, what
failed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.suite import catalogue, command, running, schema
from benchmarks.suite.catalogue import Benchmark
from benchmarks.suite.running import Wish

SCRIPTS = catalogue.FOLDER


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch):
    """How busy the machine is does not matter here."""
    monkeypatch.setattr(machine, "SAMPLE_S", 0.01)


@pytest.fixture
def said():
    return []


def made(tmp_path: Path, text: str, **more) -> Benchmark:
    """A benchmark whose script is this text."""
    path = tmp_path / "script.py"
    path.write_text(text)
    return Benchmark("mixture", 1, script=str(path), **more)


# --- the catalogue --------------------------------------------------------------------------------


def test_every_script_is_in_the_catalogue():
    listed = {each.path.name for each in catalogue.BENCHMARKS}
    assert listed == {path.name for path in SCRIPTS.glob("bench_*.py")}


@pytest.mark.parametrize("name", [each.name for each in catalogue.BENCHMARKS])
def test_every_benchmark_has_a_question_and_says_what_is_to_be_reached(name):
    benchmark = catalogue.by_name()[name]
    assert benchmark.question.endswith("?")
    assert benchmark.question[0].isupper()
    assert benchmark.targets
    assert benchmark.limit_s >= 60 * benchmark.minutes


def test_the_list_names_everything(capsys):
    assert command.main(["--list"]) == 0
    shown = capsys.readouterr().out
    for each in catalogue.BENCHMARKS:
        assert f"{each.name} ({each.minutes:g} min)\n    {each.question}" in shown
    assert command.main(["--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["benchmarks"]] == list(catalogue.by_name())
    assert {each["name"] for each in found["peers"]} >= {"zfit", "root", "torch"}


# --- running --------------------------------------------------------------------------------------


def test_a_quick_run_of_a_real_script(tmp_path, capsys):
    words = [
        "--run",
        "pullback",
        "--quick",
        "--only",
        "c[1]",
        "--output",
        str(tmp_path),
        "--label",
        "here",
        "--json",
    ]
    assert command.main(words) == 0
    shown = capsys.readouterr()
    (found,) = json.loads(shown.out)
    assert found["status"] == "ok"
    (path,) = tmp_path.glob("*.json")
    assert path.name.endswith("-pullback-here.json")
    result = schema.load(path)
    assert result == schema.parse(found["result"], "output")
    assert result.options == schema.Options(
        quick=True, rounds=3, arguments=["--quick", "--only", "c[1]"]
    )
    assert [line.case for _, line in result.lines] == ["c[1] * p, compiled", "c[1] * p, eager"]
    assert all(set(line.timings) == {"n = 1e3", "n = 1e5"} for _, line in result.lines)
    assert {"python", "jax", "numpy", "incrax"} <= set(result.versions)
    assert result.machine["cpu"]
    assert re.search(r"^  pullback \d+:\d\d  pullbacks: c\[1\]", shown.err, re.MULTILINE)
    assert re.search(r"\[1/1\] pullback: 2 lines, \d+ s, quick: figures mean nothing, ", shown.err)


def test_a_script_that_takes_too_long_is_ended_with_its_children(tmp_path, said):
    note = tmp_path / "child"
    script = made(
        tmp_path,
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "print('begun', file=sys.stderr, flush=True)\n"
        "time.sleep(60)\n",
    )
    outcome = running.run(script, Wish(limit_s=1.5), said.append)
    assert (outcome.status, outcome.reason) == (
        "timed out",
        "stopped after 2 s; --limit SECONDS gives more",
    )
    assert said == ["begun"]
    assert is_gone(int(note.read_text()))


def test_a_command_that_is_asked_to_end_ends_its_benchmark(tmp_path):
    """What runs has a group of its own, which the request does not reach."""
    note = tmp_path / "pid"
    made(
        tmp_path,
        "import os, pathlib, "
        f"time\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n",
    )
    text = (
        "from benchmarks.suite import catalogue, command\n"
        "catalogue.BENCHMARKS = (catalogue.Benchmark('mixture', 1, "
        f"script={str(tmp_path / 'script.py')!r}),)\n"
        "raise SystemExit(command.main(['--run', 'mixture']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text], cwd=SCRIPTS.parent, stderr=subprocess.PIPE, text=True
    )
    with process:
        for _ in range(400):
            if note.exists() and note.read_text():
                break
            time.sleep(0.05)
        process.terminate()
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == 1
    assert "interrupted; the running benchmark was ended" in errors
    assert is_gone(int(note.read_text()))


def is_gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(100):
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits to be collected does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_script_that_fails_says_what_it_said_last(tmp_path, said):
    script = made(tmp_path, "import sys\nprint('a')\nraise SystemExit('no data here')\n")
    outcome = running.run(script, Wish(), said.append)
    assert (outcome.status, outcome.reason, outcome.result) == (
        "failed",
        "exit code 1: no data here",
        None,
    )


def test_a_script_whose_needs_are_not_installed_is_skipped_with_a_reason(tmp_path, said):
    script = made(tmp_path, "raise SystemExit(1)", needs=("no_such_library",))
    outcome = running.run(script, Wish(), said.append)
    assert outcome.status == "skipped"
    assert outcome.reason == "needs no_such_library, not installed: pip install no_such_library"


def test_a_script_without_its_data_is_skipped_with_its_own_reason(tmp_path, said):
    script = made(tmp_path, "print('skipped: the problems are not here')\n")
    outcome = running.run(script, Wish(), said.append)
    assert (outcome.status, outcome.reason) == ("skipped", "the problems are not here")


def test_a_quick_run_is_recorded_only_where_a_folder_is_named(tmp_path, monkeypatch):
    result = schema.Result(
        1, "pure", "2026-11-22", {}, {}, schema.Options(quick=True), [], skipped="why"
    )
    outcome = running.Outcome("pure", "ok", 1.0, result=result)
    parse = command.parser().parse_args
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    assert command._record(outcome, parse(["--run", "pure", "--quick"])) is None
    named = command._record(
        outcome, parse(["--run", "pure", "--quick", "--output", str(tmp_path / "here")])
    )
    assert named == tmp_path / "here" / "2026-11-22-pure.json"
    assert (
        command._record(outcome, parse(["--run", "pure"]))
        == tmp_path / "results" / "2026-11-22-pure.json"
    )


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([0.0, 0.1], "quiet"), ([0.0, 0.9], "busy"), ([None], "unknown"), ([None, 0.1], "quiet")],
)
def test_a_machine_is_quiet_where_others_take_next_to_nothing(shares, expected):
    assert machine.conditions(shares) == expected


# --- what is asked for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--list", "--quick"], "--quick says nothing with --list; it goes with --run, --peers"),
        (["--run", "pure", "--check"], "--check says nothing with --run; it goes with --page"),
        (
            ["--page", "--json"],
            "--json says nothing with --page; it goes with --list, --run, --compare, --peers",
        ),
        (
            ["--run", "pure", "--cache", "here"],
            "--cache says nothing with --run; it goes with --peers",
        ),
        (
            ["--run", "pure", "--label", "a/b"],
            "--label becomes a part of the name of a file; 'a/b' has a separator of folders",
        ),
    ],
)
def test_options_that_would_be_ignored_are_bad_usage(words, message, capsys):
    assert command.main(words) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    "words", [["--run", "pure"], ["--run", "pure", "--quick"], ["--peers", "torch"]]
)
def test_a_folder_that_cannot_be_written_to_is_found_out_before_anything_runs(
    words, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(running, "run", None)
    assert command.main([*words, "--output", str(tmp_path / "file")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {tmp_path / 'file'}: results cannot be written there (")
    assert shown.endswith("); --output names another folder\n")


def test_a_folder_without_permission_is_found_out_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert command.main(["--run", "pure", "--output", str(tmp_path)]) == 2
    assert "results cannot be written there (no permission)" in capsys.readouterr().err


def test_a_case_that_no_benchmark_has_is_bad_usage(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "BENCHMARKS", (made(tmp_path, "print('no table')"),))
    assert command.main(["--run", "mixture", "--quick", "--only", "no such case"]) == 2
    assert (
        "error: no case's name contains 'no such case'; the same with --quick"
        in capsys.readouterr().err
    )
    assert command.main(["--run", "mixture", "--quick"]) == 0


def test_a_library_that_is_skipped_leaves_the_figures_of_the_day(tmp_path):
    measured = schema.Result(
        1, "peers-torch", "2026-11-22", {}, {}, schema.Options(), [schema.Table("one", [])]
    )
    skipped = schema.Result(
        1, "peers-torch", "2026-11-22", {}, {}, schema.Options(), [], skipped="why"
    )
    given = command.parser().parse_args(["--peers", "torch", "--output", str(tmp_path)])
    path = command._record(running.Outcome("peers-torch", "ok", 1.0, result=measured), given)
    assert (
        command._record(running.Outcome("peers-torch", "skipped", 1.0, "why", skipped), given)
        is None
    )
    assert path is not None
    assert schema.load(path) == measured
    path.unlink()
    assert (
        command._record(running.Outcome("peers-torch", "skipped", 1.0, "why", skipped), given)
        == path
    )
