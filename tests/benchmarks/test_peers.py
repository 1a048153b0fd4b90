"""Other libraries: environments that are made once or not at all, sides that take turns, figures
that must agree.

Nothing is fetched: the sides are scripts of this folder's Python, and pip is not called.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import machine
from benchmarks.suite import command, environments, peers, running, schema, turns
from benchmarks.suite.peers import HOME, Peer
from benchmarks.suite.running import Ended, Wish
from benchmarks.suite.turns import PeerError, Side

SIDE = """\
import os, sys, time
sys.path.insert(0, {home!r})
from serving import Case, moved, serve
FACTOR, SLEEP_S = {factor}, {sleep}
def good(folder):
    def call(number):
        time.sleep(SLEEP_S)
        return [FACTOR * moved(2.0, number), 1.0]
    return Case(call, lambda result: result)
def raising(folder):
    raise ValueError("no such model")
def ending(folder):
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)
def hanging(folder):
    time.sleep(60)
print("a library greets")
serve({{"good": good, "raising": raising, "ending": ending, "hanging": hanging}}, ["numpy"])
"""


@pytest.fixture(autouse=True)
def _short_samples(monkeypatch):
    monkeypatch.setattr(machine, "SAMPLE_S", 0.01)


@pytest.fixture
def sides(tmp_path):
    """A function that starts a side; all are ended."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(
            name: str, factor: float = 1.0, sleep: float = 0.0, limit_s: float = 30.0
        ) -> Side:
            script = tmp_path / f"{name}.py"
            script.write_text(SIDE.format(home=str(HOME), factor=factor, sleep=sleep))
            deadline = time.perf_counter() + limit_s
            made = turns.started(
                [sys.executable, str(script), str(tmp_path)], name, tmp_path, deadline
            )
            return stack.enter_context(made)

        yield start


# --- sides ----------------------------------------------------------------------------------------


def test_two_sides_that_agree_are_timed_by_turns(sides):
    ours, theirs = sides("incrax", sleep=0.001), sides("zfit", sleep=0.01)
    assert theirs.greeting["cases"] == ["good", "raising", "ending", "hanging"]
    assert set(theirs.greeting["versions"]) == {"python", "numpy"}
    line = turns.measured_line(
        Peer("zfit", "?", targets=(("good", 2.0),)), "good", (ours, theirs), Wish(rounds=3)
    )
    assert set(line.timings) == {"incrax", "zfit"}
    assert line.timings["zfit"].median >= 0.01
    assert line.timings["incrax"].median >= 0.001
    assert line.ratios == {
        "zfit / incrax": line.timings["zfit"].median / line.timings["incrax"].median
    }
    assert [(check.target, check.ratio) for check in line.checks] == [
        (">=2x zfit", "zfit / incrax")
    ]


def test_sides_that_do_not_compute_the_same_are_not_timed(sides):
    both = sides("incrax"), sides("zfit", factor=1.0 + 1e-6)
    with pytest.raises(
        PeerError,
        match="good: zfit and incrax differ by 1e-06 .allowed 1e-08., so that they do not",
    ):
        turns.measured_line(Peer("zfit", "?"), "good", both, Wish(rounds=1))
    assert (
        turns.measured_line(Peer("zfit", "?", rtol=1e-5), "good", both, Wish(quick=True)).checks
        == []
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0], [1.0], 0.0),
        ([2.0, 1e-3], [2.0, 2e-3], 1.0),
        ([1.0], [1.0, 2.0], np.inf),
        ([1.0], [np.nan], np.nan),
    ],
)
def test_every_figure_counts_by_its_own_size(ours, theirs, expected):
    assert turns.difference(ours, theirs) == pytest.approx(expected, nan_ok=True)


def test_what_a_library_raises_is_told(sides):
    with pytest.raises(PeerError, match="zfit: ValueError: no such model"):
        sides("zfit").ask(do="prepare", case="raising")


def test_a_side_that_ends_is_told_with_what_it_said_last(tmp_path):
    script = tmp_path / "side.py"
    script.write_text(SIDE.format(home=str(HOME), factor=1.0, sleep=0.0))
    command = [sys.executable, str(script), str(tmp_path)]
    with pytest.raises(PeerError, match="zfit: its process ended\n(.*\n)*out of memory"):
        with turns.started(command, "zfit", tmp_path, time.perf_counter() + 30) as side:
            side.ask(do="prepare", case="ending")


def test_a_side_that_does_not_answer_is_given_up(sides):
    with pytest.raises(PeerError, match="zfit: no answer before the time limit"):
        sides("zfit", limit_s=1.5).ask(do="prepare", case="hanging")


# --- environments ---------------------------------------------------------------------------------


@pytest.fixture
def pip(monkeypatch):
    """What would be run; `answers` says how each command ends."""
    calls, answers = [], []

    def run_process(command, limit_s, say, *, with_output):
        calls.append([Path(command[0]).name, *command[1:]])
        if command[1:3] == ["-m", "venv"]:
            (Path(command[3]) / "bin").mkdir(parents=True)
            (Path(command[3]) / "bin" / "python").touch()
        return answers.pop(0) if answers else Ended(0, is_late=False, output="", errors="")

    monkeypatch.setattr(environments, "run_process", run_process)
    run_process.calls, run_process.answers = calls, answers
    return run_process


def torch() -> Peer:
    return next(peer for peer in peers.PEERS if peer.name == "torch")


def test_an_environment_is_made_once_and_again_when_its_requirements_change(
    pip, tmp_path, monkeypatch
):
    monkeypatch.setattr(environments, "find_python", lambda versions: Path(sys.executable))
    said = []
    python = environments.environment(torch(), tmp_path, 9.0, said.append)
    assert python == tmp_path / "peers" / "torch" / "bin" / "python"
    assert [call[1:3] for call in pip.calls] == [["-m", "venv"], ["-m", "pip"]]
    assert pip.calls[1][-2:] == ["-r", str(HOME / "torch.txt")]
    assert said
    environments.environment(torch(), tmp_path, 9.0, said.append)
    assert len(pip.calls) == 2
    (tmp_path / "peers" / "torch" / environments.MARK).write_text("of another list")
    environments.environment(torch(), tmp_path, 9.0, said.append)
    assert len(pip.calls) == 4
    python.unlink()  # the Python that it was made with is gone
    environments.environment(torch(), tmp_path, 9.0, said.append)
    assert len(pip.calls) == 6


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Ended(1, is_late=False, output="", errors="WARNING: a\nERROR: No matching distribution\nnotice"),
         "does not install: ERROR: No matching distribution$"),
        (Ended(1, is_late=False, output="", errors=""), "does not install: it said nothing"),
        (Ended(-15, is_late=True, output="", errors=""), "does not install in 9 s"),
    ],
)  # fmt: skip
def test_what_does_not_install_is_skipped_and_that_is_the_result(
    pip, tmp_path, monkeypatch, answer, reason
):
    monkeypatch.setattr(environments, "find_python", lambda versions: Path(sys.executable))
    pip.answers += [Ended(0, is_late=False, output="", errors=""), answer]
    outcome = turns.run(torch(), Wish(limit_s=9.0), lambda text: None, tmp_path)
    assert outcome.status == "skipped"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(outcome.reason)
    assert outcome.result is not None
    assert schema.parse(vars_of(outcome.result), "x").skipped == outcome.reason
    assert not (tmp_path / "peers" / "torch" / environments.MARK).exists()


def vars_of(result: schema.Result) -> object:
    import json

    return json.loads(schema.dumps(result))


@pytest.mark.parametrize(
    ("error", "status"), [(turns.LateError, "timed out"), (PeerError, "failed")]
)
def test_a_side_that_is_late_is_told_from_one_that_fails(monkeypatch, tmp_path, error, status):
    def raising(*args):
        raise error("why")

    monkeypatch.setattr(turns, "environment", lambda *args: Path(sys.executable))
    monkeypatch.setattr(turns, "_measured", raising)
    outcome = turns.run(torch(), Wish(), lambda text: None, tmp_path)
    assert (outcome.status, outcome.reason) == (status, "why")


def test_a_run_of_some_cases_says_so_in_its_result(monkeypatch, tmp_path):
    line = schema.Line("table", {"incrax": "1 us"})
    monkeypatch.setattr(turns, "environment", lambda *args: Path(sys.executable))
    monkeypatch.setattr(turns, "_measured", lambda *args: ([line], {}))
    outcome = turns.run(torch(), Wish(only="tab"), lambda text: None, tmp_path)
    assert outcome.result is not None
    assert outcome.result.only == "tab"
    assert outcome.result.options.rounds == turns.ROUNDS


def test_a_peer_without_a_python_is_skipped(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(environments, "find_python", lambda versions: None)
    words = ["--peers", "root", "--cache", str(tmp_path), "--output", str(tmp_path / "results")]
    assert command.main(words) == 0
    assert (
        "root: skipped, needs Python 3.12 or 3.11 or 3.10 or 3.13; none of them was found"
        in capsys.readouterr().err
    )
    (path,) = (tmp_path / "results").glob("*-peers-root.json")
    assert "none of them was found" in str(schema.load(path).skipped)


def test_pythons_are_found_here_or_not_at_all():
    assert environments.find_python(
        ["9.9", f"{sys.version_info.major}.{sys.version_info.minor}"]
    ) == Path(sys.executable)
    assert environments.find_python(["9.9"]) is None


def test_where_environments_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(environments.CACHE, raising=False)
    assert environments.cache_folder() == tmp_path / "cache" / "incrax-benchmarks"
    monkeypatch.setenv(environments.CACHE, str(tmp_path / "named"))
    assert environments.cache_folder() == tmp_path / "named"
    assert environments.cache_folder(tmp_path) == tmp_path


# --- the peers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_every_peer_has_its_requirements_its_script_and_our_side(peer):
    assert peer.pythons
    assert all(version.startswith("3.") for version in peer.pythons)
    pinned = [
        line
        for line in peer.requirements.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert any("==" in line for line in pinned)
    compile(peer.script.read_text(), str(peer.script), "exec")
    assert f'    "{peer.name}": ([' in (HOME / "ours.py").read_text()


def test_our_side_writes_the_problem_and_gives_the_figures_of_plain_jax(tmp_path):
    command = [sys.executable, str(HOME / "ours.py"), str(tmp_path), "zfit", "--quick"]
    with turns.started(command, "incrax", tmp_path, time.perf_counter() + 60) as ours:
        ours.ask(do="prepare", case="mixture, value and gradient, one yield")
        found = ours.ask(do="read", number=7)["values"]
        assert len(ours.ask(do="time", first=1, calls=3)["seconds"]) == 3
    data = np.load(tmp_path / "mixture.npz")
    sys.path.insert(0, str(running.FOLDER))
    from problems import mixture

    p = {name: float(data[name]) for name in data["names"]}
    p["n1"] *= 1.0 + 8e-4
    value, gradient = jax.value_and_grad(mixture.nll)(p, data["x"])
    np.testing.assert_allclose(
        found, [value, *(gradient[name] for name in mixture.NAMES)], rtol=1e-10
    )
