"""What is kept for later processes: written as a whole, read with suspicion, never needed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import incrax
from incrax import _cache_folder
from incrax.cli import main
from incrax.engine.program import cost
from incrax.engine.program.cost import Calibration, calibrate, is_calibrated

KEYS = [f"function-{number:032x}" for number in range(5)]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.delenv("INCRAX_REMEMBER")
    monkeypatch.setenv("INCRAX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_saved_is_loaded(folder):
    _cache_folder.save(KEYS[1], {"whole_s": 0.5})
    assert _cache_folder.load(KEYS[1]) == {"whole_s": 0.5}
    assert [path.name for path in folder.iterdir()] == [f"{KEYS[1]}.json"]


def test_nothing_is_read_or_written_where_it_is_off(folder, monkeypatch):
    _cache_folder.save(KEYS[1], {"whole_s": 0.5})
    monkeypatch.setenv("INCRAX_REMEMBER", "0")
    _cache_folder.save(KEYS[2], {"whole_s": 0.5})
    assert _cache_folder.load(KEYS[1]) is None
    assert _cache_folder.files() == []
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("system", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/incrax"),
        ("linux", {"HOME": "/home/a"}, "/home/a/.cache/incrax"),
        ("darwin", {"HOME": "/home/a"}, "/home/a/Library/Caches/incrax"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/incrax/Cache"),
    ],
)
def test_the_folder_is_that_of_the_platform(system, variables, expected, folder, monkeypatch):
    monkeypatch.delenv("INCRAX_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(_cache_folder.sys, "platform", system)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _cache_folder.folder() == Path(expected)


def test_nothing_is_kept_for_a_user_without_a_home(folder, monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert _cache_folder.folder() is None
    _cache_folder.save(KEYS[1], {})
    assert _cache_folder.load(KEYS[1]) is None


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"text"', "\x00\xff", "[" * 100_000])
def test_a_broken_file_is_as_if_it_were_not_there(text, folder):
    folder.mkdir()
    (folder / f"{KEYS[1]}.json").write_text(text)
    assert _cache_folder.load(KEYS[1]) is None


def test_a_broken_file_is_told_in_the_log(folder, caplog):
    folder.mkdir()
    (folder / f"{KEYS[1]}.json").write_text("{")
    with caplog.at_level(logging.DEBUG, "incrax"):
        _cache_folder.load(KEYS[1])
    assert f"{KEYS[1]} in the cache folder is ignored: Expecting property name" in caplog.text


def test_what_could_not_be_written_leaves_no_part(folder, monkeypatch):
    def fill(data, file):
        raise OSError("No space left on device")

    _cache_folder.save(KEYS[1], {"x": 1})
    monkeypatch.setattr(_cache_folder.json, "dump", fill)
    _cache_folder.save(KEYS[1], {"x": 2})
    assert _cache_folder.load(KEYS[1]) == {"x": 1}
    assert len(list(folder.iterdir())) == 1


def test_an_old_file_and_a_large_one_are_ignored(folder):
    _cache_folder.save(KEYS[1], {})
    _cache_folder.save(KEYS[2], {"x": "y" * _cache_folder.MAX_BYTES})
    assert _cache_folder.load(KEYS[1]) == {}
    old = folder / f"{KEYS[1]}.json"
    os.utime(old, (0, old.stat().st_mtime - _cache_folder.MAX_AGE_S - 60))
    assert _cache_folder.load(KEYS[1]) is None
    assert _cache_folder.load(KEYS[2]) is None


def test_a_folder_that_cannot_be_written_is_no_error(folder, caplog):
    folder.parent.joinpath("cache").write_text("a file where the folder should be")
    with caplog.at_level(logging.DEBUG, "incrax"):
        _cache_folder.save(KEYS[1], {})
    assert _cache_folder.load(KEYS[1]) is None
    assert "nothing is written to the cache folder" in caplog.text


def test_the_oldest_files_make_room(folder, monkeypatch):
    monkeypatch.setattr(_cache_folder, "MAX_FILES", 3)
    for number in range(5):
        _cache_folder.save(KEYS[number], {"number": number})
        os.utime(folder / f"{KEYS[number]}.json", (number, 1e9 + number))
    _cache_folder.prune()
    names = [file.name for file in _cache_folder.files()]
    assert names == [f"{KEYS[4]}.json", f"{KEYS[3]}.json", f"{KEYS[2]}.json"]
    assert _cache_folder.clear() == 3
    assert _cache_folder.files() == []


def test_files_that_are_not_ours_stay(folder, monkeypatch):
    monkeypatch.setattr(_cache_folder, "MAX_FILES", 0)
    folder.mkdir()
    names = ["notes.json", "function-app.json", "machine-1.json", f"{KEYS[0]}.txt", ".hidden.json"]
    for name in names:
        (folder / name).write_text("{}")
    _cache_folder.save(KEYS[1], {})
    unfinished = folder / f".{KEYS[2]}-x1y2.json"
    unfinished.write_text("{")
    assert len(_cache_folder.files()) == 2
    _cache_folder.prune()
    _cache_folder.save(KEYS[3], {})
    assert _cache_folder.clear() == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


def test_nobody_reads_half_a_file(folder):
    data = {"kinds": {str(k): [k, 0.5] for k in range(2000)}}
    _cache_folder.save(KEYS[1], data)
    found = []

    def write():
        for _ in range(50):
            _cache_folder.save(KEYS[1], data)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found.append(_cache_folder.load(KEYS[1]))
        _cache_folder.files()  # files that are gone since are none
    assert all(x == data for x in found)


def test_keys_depend_on_versions_and_on_all_parts(monkeypatch):
    keys = {_cache_folder.key_of("function", parts) for parts in (["a"], ["b"], ["a", "b"])}
    keys.add(_cache_folder.key_of("machine", ["a"]))
    monkeypatch.setattr(_cache_folder, "_machine", lambda: ("another version",))
    keys.add(_cache_folder.key_of("function", ["a"]))
    assert len(keys) == 5


# --- the figures of the machine -------------------------------------------------------------------


@pytest.fixture
def unmeasured(folder, monkeypatch):
    """A process that has not measured the machine; how often it did."""
    measured = []
    monkeypatch.setattr(cost, "_calibrations", {})
    monkeypatch.setattr(cost, "_measure", lambda _: measured.append(1) or Calibration(flop_s=3e-9))
    return measured


def another_process():
    cost._calibrations.clear()


def test_the_machine_is_measured_once_for_all_processes(unmeasured):
    assert not is_calibrated()
    first = calibrate()
    another_process()
    assert is_calibrated()
    assert calibrate() == first == Calibration(flop_s=3e-9)
    assert len(unmeasured) == 1


PRICES = asdict(Calibration())


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"prices": {**PRICES, "flop_s": -1.0}},
        {"prices": {**PRICES, "flop_s": "text"}},
        {"prices": {name: PRICES[name] for name in PRICES if name != "kernel_s"}},
        {"prices": [1, 2]},
        {"prices": {**PRICES, "flop_s": float("inf")}},
    ],
)
def test_figures_that_mean_nothing_are_measured_anew(data, unmeasured, folder):
    calibrate()
    (file,) = folder.iterdir()
    file.write_text(json.dumps(data))
    another_process()
    calibrate()
    assert len(unmeasured) == 2


# --- the report and the command -------------------------------------------------------------------


def test_the_report_lists_what_is_there_and_clears_it(folder):
    _cache_folder.save(KEYS[1], {"about": "nll, changes: 3"})
    found = incrax.cache_folder()
    assert found.path == str(folder)
    assert [(file.about, file.name) for file in found.files] == [
        ("nll, changes: 3", f"{KEYS[1]}.json")
    ]
    assert found.num_bytes == (folder / f"{KEYS[1]}.json").stat().st_size
    assert "nll, changes: 3" in str(found)
    cleared = incrax.cache_folder(clear=True)
    assert (cleared.num_deleted, cleared.files) == (1, ())
    assert list(folder.iterdir()) == []


def test_the_command_lists_sizes_and_clears(folder, capsys):
    _cache_folder.save(KEYS[1], {"about": "nll, changes: 3"})
    assert main(["cache"]) == 0
    assert "nll, changes: 3" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert f"{folder}: 0 files, 0 B, 1 deleted" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


def test_the_report_says_where_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("INCRAX_REMEMBER", "0")
    assert incrax.cache_folder().path is None
    assert "nowhere, as INCRAX_REMEMBER=0" in str(incrax.cache_folder())
    assert incrax.environment().cache_folder is None


# --- compiled programs ----------------------------------------------------------------------------

JOB = """
import jax, jax.numpy as jnp, jax.monitoring, incrax
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append("cache_hits" in name))
f = incrax.incremental(lambda a, x: jnp.sum(jnp.sin(a * x) + jnp.exp(jnp.cos(x))))
print(float(f(1.5, jnp.ones(100))), sum(hits))
"""


def ended(folder, remember, **variables):
    """A process in which one program takes long enough to be kept."""
    env = {**os.environ, "INCRAX_CACHE_DIR": str(folder), "INCRAX_REMEMBER": remember}
    for name in [name for name in env if "CACHE" in name and name.startswith("JAX_")]:
        del env[name]
    command = [sys.executable, "-c", f"import incrax; {SHORT}\n{JOB}"]
    return subprocess.run(
        command, capture_output=True, text=True, env={**env, **variables}, check=True
    ).stdout.split()


SHORT = 'import jax; jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)'


def test_the_next_process_finds_programs_where_they_are_kept(folder):
    first, again = [ended(folder, "programs") for _ in range(2)]
    assert first[0] == again[0]
    assert first[1] == "0"
    assert int(again[1]) >= 1
    report = incrax.cache_folder()
    assert report.num_programs >= 1
    assert report.program_bytes > 0
    assert "compiled programs of JAX" in str(report)
    assert incrax.cache_folder(clear=True).num_deleted >= report.num_programs
    assert ended(folder, "programs")[1] == "0"


def test_nobody_keeps_programs_unasked(folder):
    assert [ended(folder, "1")[1] for _ in range(2)] == ["0", "0"]
    assert incrax.cache_folder().num_programs == 0


def test_the_folder_that_jax_has_stays_the_one(folder, tmp_path):
    own = str(tmp_path / "own")
    for _ in range(2):
        ended(folder, "programs", JAX_COMPILATION_CACHE_DIR=own)
    assert incrax.cache_folder().num_programs == 0
    assert list((tmp_path / "own").iterdir())


def test_no_programs_are_kept_where_nothing_is(monkeypatch):
    without = SimpleNamespace(config=SimpleNamespace(jax_compilation_cache_dir=None))
    monkeypatch.setattr(_cache_folder, "jax", without)
    monkeypatch.setenv("INCRAX_REMEMBER", "0")
    assert incrax.keep_programs() is None
