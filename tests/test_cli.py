"""The command line: what is wrong is said in one line on the error stream, with exit code 2, before
anything runs.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import incrax
from incrax.cli import build_parser, demo, main
from incrax.cli.usage import check_picture

NEEDED = [importlib.util.find_spec(name) for name in demo.NEEDED]
needs_demo = pytest.mark.skipif(None in NEEDED, reason=f"the demo needs {', '.join(demo.NEEDED)}")


@pytest.fixture
def never_run(monkeypatch):
    def read_flights(rows, seed):
        raise AssertionError("the demo was started")

    monkeypatch.setattr(demo.data, "read_flights", read_flights)


@pytest.fixture
def ran_with(monkeypatch):
    seen = []
    monkeypatch.setattr(demo, "run", lambda options: seen.append(options) or 0)
    return seen


def exit_code(*arguments):
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code


def check_refused(capsys, line, *arguments):
    assert exit_code(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == line + "\n"
    assert captured.out == ""


# --- help -----------------------------------------------------------------------------------------


def test_help_lists_the_commands(capsys):
    assert exit_code("--help") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: incrax ")
    assert "demo" in captured.out
    assert captured.err == ""


def test_help_of_the_demo_lists_its_options(capsys):
    assert exit_code("demo", "--help") == 0
    shown = capsys.readouterr().out
    for option in (
        "--rows",
        "--output",
        "--seed",
        "--sweeps",
        "--no-plot",
        "--no-compare",
    ):
        assert option in shown


def test_version(capsys):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"incrax {incrax.__version__}\n"


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "incrax: error: the following arguments are required: command"),
        (["demo", "--fast"], "incrax: error: unrecognized arguments: --fast"),
        (["demo", "extra"], "incrax: error: unrecognized arguments: extra"),
        (
            ["demo", "--rows", "bad"],
            "incrax demo: error: argument --rows: invalid int value: 'bad'",
        ),
        (
            ["demo", "--rows", "1e4"],
            "incrax demo: error: argument --rows: invalid int value: '1e4'",
        ),
        (["demo", "--rows"], "incrax demo: error: argument --rows: expected one argument"),
        (["demo", "--seed", "x"], "incrax demo: error: argument --seed: invalid int value: 'x'"),
        (
            ["demo", "--no-plot=yes"],
            "incrax demo: error: argument --no-plot: ignored explicit argument 'yes'",
        ),
    ],
)
def test_unusable_arguments(capsys, never_run, arguments, line):
    check_refused(capsys, line, *arguments)


def test_unknown_command(capsys, never_run):
    assert exit_code("fit") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("incrax: error: argument command: invalid choice: 'fit' (choose from ")
    assert "demo" in line


@needs_demo
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--rows", "9999"],
            "--rows 9999 is too few for thousands of effects; give at least 10000",
        ),
        (
            ["--rows", "0"],
            "--rows 0 is too few for thousands of effects; give at least 10000",
        ),
        (
            ["--rows=-5"],
            "--rows -5 is too few for thousands of effects; give at least 10000",
        ),
        (["--seed=-1"], "--seed -1 is negative; give a number of at least 0"),
        (["--sweeps", "1"], "--sweeps 1 is too few for a chain; give at least 2"),
        (
            ["--sweeps", "10001"],
            "--sweeps 10001 is more than memory may hold; give at most 10000",
        ),
        (
            ["--output", "plot.pdf"],
            "--output plot.pdf is no PNG file; give a name that ends in .png",
        ),
        (["--output", "plot"], "--output plot is no PNG file; give a name that ends in .png"),
        (
            ["--output", "no/plot.png"],
            "--output no/plot.png cannot be written: No such file or directory",
        ),
        (
            ["--output", "file/plot.png"],
            "--output file/plot.png cannot be written: Not a directory",
        ),
        (["--output", "folder.png"], "--output folder.png cannot be written: Is a directory"),
    ],
)
def test_unusable_values(capsys, never_run, monkeypatch, tmp_path, arguments, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    check_refused(capsys, f"incrax demo: error: {problem}", "demo", *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


@needs_demo
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root"
)
def test_folder_without_permission_to_write(capsys, never_run, tmp_path):
    path = tmp_path / "locked" / "out.png"
    path.parent.mkdir(mode=0o500)
    check_refused(
        capsys,
        f"incrax demo: error: --output {path} cannot be written: Permission denied",
        *("demo", "--output", path),
    )


@needs_demo
def test_path_that_cannot_be_opened(capsys, never_run, monkeypatch, tmp_path):
    def refuse(self, mode):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    path = tmp_path / "plot.png"
    check_refused(
        capsys,
        f"incrax demo: error: --output {path} cannot be written: Read-only file system",
        *("demo", "--output", path),
    )


@pytest.mark.parametrize("missing", [demo.NEEDED[:1], demo.NEEDED[1:], demo.NEEDED])
def test_packages_that_are_missing(capsys, never_run, monkeypatch, missing):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else object()
    )
    line = (
        f"incrax demo: error: the demo needs {', '.join(missing)}; install it with: "
        'pip install "incrax[demo]", in a clone pip install ".[demo]"'
    )
    check_refused(capsys, line, "demo")


def test_without_a_plot_matplotlib_is_not_needed(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else object()
    )
    demo.check_arguments(build_parser().parse_args(["demo", "--no-plot"]))


@needs_demo
def test_checking_a_path_leaves_no_file_behind(ran_with, tmp_path):
    assert exit_code("demo", "--output", tmp_path / "plot.png") == 0
    assert not list(tmp_path.iterdir())


# --- what is accepted -----------------------------------------------------------------------------


@needs_demo
def test_defaults(ran_with, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert exit_code("demo") == 0
    (options,) = ran_with
    assert (options.rows, options.output, options.seed) == (None, Path("incrax-demo.png"), 1)
    assert (options.no_plot, options.compare) == (False, True)


@needs_demo
def test_all_options(ran_with, tmp_path):
    plot = tmp_path / "plot.PNG"
    arguments = ["--rows", 10000, "--output", plot, "--seed", 0, "--sweeps", 2]
    assert exit_code("demo", *arguments, "--no-compare") == 0
    (options,) = ran_with
    assert (options.rows, options.output, options.seed) == (10000, plot, 0)
    assert (options.sweeps, options.compare) == (2, False)


@needs_demo
def test_checking_a_path_keeps_what_is_in_the_file(ran_with, tmp_path):
    path = tmp_path / "plot.png"
    path.write_bytes(b"old")
    assert exit_code("demo", "--output", path) == 0
    assert path.read_bytes() == b"old"


@needs_demo
def test_without_a_plot_its_path_does_not_matter(ran_with):
    assert exit_code("demo", "--no-plot", "--output", "no/such/folder/plot.pdf") == 0


@needs_demo
@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_that_of_the_demo(monkeypatch, code):
    monkeypatch.setattr(demo, "run", lambda options: code)
    assert exit_code("demo", "--no-plot") == code


@needs_demo
def test_an_interrupt_is_one_line(capsys, monkeypatch):
    def interrupt(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert exit_code("demo", "--no-plot") == 130
    assert capsys.readouterr().err == "incrax demo: interrupted\n"


def test_a_link_to_nothing_stays_a_link(tmp_path):
    link = tmp_path / "link.png"
    link.symlink_to(tmp_path / "target.png")
    check_picture(link)
    assert link.is_symlink()
    assert not (tmp_path / "target.png").exists()


# --- what is printed ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_has_colours(monkeypatch, is_terminal):
    out = io.StringIO()
    out.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert exit_code("cache") == 0
    assert ("\x1b[1m" in out.getvalue()) == is_terminal


# --- as a program ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["--version"], 0, f"incrax {incrax.__version__}\n", ""),
        (
            ["demo", "--rows", "bad"],
            2,
            "",
            "incrax demo: error: argument --rows: invalid int value: 'bad'\n",
        ),
    ],
)
def test_as_a_module(arguments, code, out, err):
    environment = {**os.environ, "PYTHONPATH": str(Path(incrax.__file__).parents[1])}
    command = [sys.executable, "-m", "incrax", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_a_reader_that_stops_reading_is_no_error():
    environment = {**os.environ, "PYTHONPATH": str(Path(incrax.__file__).parents[1])}
    command = [sys.executable, "-m", "incrax", "cache"]
    pipe = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert pipe.stdout is not None
    pipe.stdout.close()
    assert pipe.stderr is not None
    with pipe.stderr as stream:
        assert stream.read() == b""
    assert pipe.wait(120) == 141
