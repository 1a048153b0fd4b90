"""What the scripts of `examples/analyses` stand on: forms run in processes of their own, and agree."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "analyses"

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import wholejob
forms = {{"first": lambda: {{"value": 1.0}}, "incrax": lambda: {{"value": {value}}}}}
wholejob.compare({file!r}, forms, {{"value": 1e-3}})
"""


@pytest.fixture(scope="module")
def wholejob():
    spec = importlib.util.spec_from_file_location("wholejob", FOLDER / "wholejob.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ran(tmp_path, value, *options):
    file = tmp_path / "analysis.py"
    file.write_text(SCRIPT.format(folder=str(FOLDER), value=value, file=str(file)))
    command = [sys.executable, str(file), "--rounds", "2", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_form_runs_in_processes_of_its_own_and_their_seconds_are_printed(tmp_path):
    ended = ran(tmp_path, 1.0005)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("value = 1\nfirst")
    assert "of incrax" in ended.stdout


def test_the_numbers_of_all_processes_are_written_where_one_asks(tmp_path):
    ended = ran(tmp_path, 1.0, "--json", str(tmp_path / "runs.json"))
    assert ended.returncode == 0, ended.stderr
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert list(runs) == ["first", "incrax"]
    assert [[run["value"] for run in each] for each in runs.values()] == [[1.0, 1.0]] * 2
    assert all(run["job_s"] >= 0.0 for each in runs.values() for run in each)


def test_forms_that_do_not_agree_are_an_error(tmp_path):
    ended = ran(tmp_path, 1.01)
    assert ended.returncode != 0
    assert "value by incrax: 1.01, expected 1.0" in ended.stderr


def test_a_script_says_what_is_missing_and_ends_without_an_error(wholejob, capsys):
    wholejob.needs("json")
    for asked, extra in ({}, "analyses"), ({"extra": "zfit"}, "zfit"):
        with pytest.raises(SystemExit) as ended:
            wholejob.needs("no_such_library", **asked)
        assert ended.value.code == 0
        expected = f"skipped: no_such_library not installed; pip install -e '.[{extra}]'\n"
        assert capsys.readouterr().out == expected
