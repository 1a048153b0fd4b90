"""The command line: what is wrong is said in one line on the error stream, with exit code 2, before
anything runs.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax.cli import build_parser, demo, loading, main, report
from incrax.cli.usage import UsageError, check_writable

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
        "--json",
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
        (
            ["--no-plot", "--json", "no/x.json"],
            "--json no/x.json cannot be written: No such file or directory",
        ),
        (
            ["--no-plot", "--json", "folder.png"],
            "--json folder.png cannot be written: Is a directory",
        ),
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
@pytest.mark.parametrize("option", ["--output", "--json"])
def test_folder_without_permission_to_write(capsys, never_run, tmp_path, option):
    path = tmp_path / "locked" / "out.png"
    path.parent.mkdir(mode=0o500)
    arguments = ["--output", path] if option == "--output" else ["--no-plot", "--json", path]
    check_refused(
        capsys,
        f"incrax demo: error: {option} {path} cannot be written: Permission denied",
        "demo",
        *arguments,
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
def test_a_refused_command_leaves_no_file_behind(never_run, tmp_path):
    assert (
        exit_code("demo", "--output", tmp_path / "plot.png", "--json", tmp_path / "no" / "x.json")
        == 2
    )
    assert not list(tmp_path.iterdir())


# --- what is accepted -----------------------------------------------------------------------------


@needs_demo
def test_defaults(ran_with, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert exit_code("demo") == 0
    (options,) = ran_with
    assert (options.rows, options.output, options.seed, options.json) == (
        None,
        Path("incrax-demo.png"),
        1,
        None,
    )
    assert (options.no_plot, options.compare) == (False, True)


@needs_demo
def test_all_options(ran_with, tmp_path):
    plot, summary = tmp_path / "plot.PNG", tmp_path / "times.json"
    arguments = [
        "--rows",
        10000,
        "--output",
        plot,
        "--seed",
        0,
        "--sweeps",
        2,
        "--json",
        summary,
        "--no-compare",
    ]
    assert exit_code("demo", *arguments) == 0
    (options,) = ran_with
    assert (options.rows, options.output, options.seed, options.json) == (10000, plot, 0, summary)
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


# --- functions and arguments that are named -------------------------------------------------------


MODEL = """
import numpy as np
import jax.numpy as jnp

X = np.linspace(0.0, 1.0, 64)


class Models:
    @staticmethod
    def nll(params, x):
        return jnp.sum(jnp.exp(params["mu"] * x)) * params["scale"]


nll = Models.nll
example = ({"mu": 0.5, "scale": 2.0}, X)


def make():
    return example


def sine(x):
    return jnp.sum(jnp.sin(x))


single = X
number = 3
"""


@pytest.fixture
def model(monkeypatch, tmp_path):
    (tmp_path / "some_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("some_model", None)


@pytest.mark.parametrize("place", ["some_model:nll", "some_model.py:nll", "some_model:Models.nll"])
def test_a_name_is_looked_up_in_a_module_or_a_file(model, place):
    assert loading.load(place).__name__ == "nll"


@pytest.mark.parametrize(
    ("function", "example", "num"),
    [("nll", "example", 2), ("nll", "make", 2), ("sine", "single", 1)],
)
def test_arguments_are_a_tuple_or_one_or_are_made(model, function, example, num):
    options = Namespace(
        function=f"some_model:{function}", example=f"some_model:{example}", x64=False
    )
    found, arguments = loading.function_and_arguments(options)
    assert len(arguments) == num
    found(*arguments)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nll", "nll does not say where: write it as `module:name`, or `file.py:name`"),
        (":nll", ":nll does not say where: write it as `module:name`, or `file.py:name`"),
        (
            "no_such:nll",
            "there is no module no_such here or among the installed ones; a file is named with .py",
        ),
        ("no_such.py:nll", "there is no file no_such.py"),
        (
            "./some_model:nll",
            "./some_model is no name of a module; a file is named with .py at its end",
        ),
        ("some_model:NLL", "some_model has no `NLL`; it has nll"),
        ("some_model:Models.f", "some_model has no `Models.f`; it has nll"),
        ("some_model:number", "some_model:number is a int, no function"),
    ],
)
def test_names_that_are_not_there(model, place, problem):
    options = Namespace(function=place, example="some_model:example", x64=False)
    with pytest.raises(UsageError) as caught:
        loading.function_and_arguments(options)
    assert str(caught.value) == problem


def test_a_file_is_run_once(model):
    (model / "twice.py").write_text(
        "print('run')\nclass P: pass\ndef f(p): assert isinstance(p, P)\np = P()\n"
    )
    options = Namespace(function="twice.py:f", example="twice.py:p", x64=False)
    found, arguments = loading.function_and_arguments(options)
    found(*arguments)
    sys.modules.pop("twice")


def test_a_file_does_not_take_the_place_of_a_module(model):
    (model / "json.py").write_text("def f(x): return x\n")
    loading.load("json.py:f")
    assert sys.modules["json"] is json
    (model / "bad.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        loading.load("bad.py:f")
    assert "bad" not in sys.modules


def test_named_tuples_and_callable_trees_are_one_argument(model):
    (model / "trees.py").write_text(
        "from collections import namedtuple\n"
        "P = namedtuple('P', 'a b')\np = P(1.0, 2.0)\n"
        "class M:\n    def __call__(self): return ()\nm = M()\n"
        "def f(x): return x\n"
    )
    for name in ("p", "m"):
        options = Namespace(function="trees.py:f", example=f"trees.py:{name}", x64=False)
        _, arguments = loading.function_and_arguments(options)
        assert arguments == (loading.load(f"trees.py:{name}"),)
    sys.modules.pop("trees")


def test_an_error_of_incrax_is_one_line(capsys, model):
    (model / "branch.py").write_text("def f(x):\n    return x if x > 0 else -x\n")
    assert exit_code("report", "branch.py:f", "--example", "some_model:number") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("incrax report: error: ")
    sys.modules.pop("branch")


@pytest.mark.parametrize(
    "leaf", [0.0, np.zeros(2), jnp.ones(3, jnp.bfloat16), np.float32(1.0), np.float16(0.0)]
)
def test_a_changed_input_is_another_one_of_the_same_type(leaf):
    seen = [leaf, *(changed for (changed,) in report._changed((leaf,), 3))]
    assert len({np.asarray(x, float).tobytes() for x in seen}) == 4
    assert len({jnp.result_type(x) for x in seen}) == 1


def test_a_link_to_nothing_stays_a_link(model):
    link = model / "link.html"
    link.symlink_to("target.html")
    check_writable("--output", link)
    assert link.is_symlink()
    assert not (model / "target.html").exists()


def test_an_error_of_the_module_itself_passes_through(model):
    (model / "broken_model.py").write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        loading.load("broken_model:f")


BOUND = """
import incrax
from some_model import X, nll

model = incrax.bind(
    nll, params={"mu": 0.5, "scale": 2.0}, x=X, roles={"x": "data"}, bounds={"scale": (1.0, 2.0)}
)
"""

GUARDED = """
import incrax
import numpy as np


@incrax.guarded
def f(x, a):
    return (x * a).sum() if a > 0 else (x + a).sum()


example = (np.linspace(0.0, 1.0, 64), 2.0)
"""


@pytest.fixture
def bound(model):
    """The place of a model."""
    (model / "bound.py").write_text(BOUND)
    yield "bound.py:model"
    sys.modules.pop("bound", None)


# --- cost and report ------------------------------------------------------------------------------

NAMED = ("some_model:nll", "--example", "some_model:example", "--x64")


def test_cost_prints_tables(capsys, model):
    assert exit_code("cost", *NAMED) == 0
    shown = capsys.readouterr().out
    assert "backward / forward" in shown
    assert "exp" in shown


def test_cost_speaks_json_and_is_that_of_the_function(capsys, model):
    assert (
        exit_code(
            "cost", *NAMED, "--json", "--changing", "params['scale']", "--wrt", "params['mu']"
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    place = loading.load("some_model:nll"), loading.load("some_model:example")
    expected = incrax.cost(place[0], *place[1], changing=["params['scale']"], wrt="params['mu']")
    assert found["passes"] == json.loads(json.dumps(expected.as_dict()["passes"]))


@pytest.mark.parametrize("option", ["--changing", "--wrt"])
def test_an_input_that_is_not_there_is_one_line(capsys, model, option):
    assert exit_code("cost", *NAMED, option, "nu") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("incrax cost: error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("extra", [[], ["--grad"], ["--wrt", "params['mu']"]])
def test_report_calls_the_function_and_writes_its_page(capsys, model, extra):
    assert exit_code("report", *NAMED, "--output", "page.html", "--rounds", "2", *extra) == 0
    assert capsys.readouterr().out == "page.html: 7 calls\n"
    assert "<html" in (model / "page.html").read_text()


def test_a_gradient_by_what_is_not_there_is_one_line(capsys, model):
    assert exit_code("report", *NAMED, "--wrt", "nu") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("incrax report: error: ")


def test_report_speaks_json(capsys, model):
    assert exit_code("report", *NAMED, "--rounds", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)
    assert (model / "incrax-report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rounds=-1"], "--rounds -1 is negative; give a number of at least 0"),
        (
            ["--output", "page.png"],
            "--output page.png is no HTML file; give a name that ends in .html",
        ),
        (
            ["--output", "no/page.html"],
            "--output no/page.html cannot be written: No such file or directory",
        ),
    ],
)
def test_reports_that_cannot_be_written(capsys, model, arguments, problem):
    check_refused(capsys, f"incrax report: error: {problem}", "report", *NAMED, *arguments)
    assert not list(model.glob("*.html"))


@pytest.mark.parametrize("command", ["cost", "report"])
def test_a_function_that_is_not_there_is_one_line(capsys, model, command):
    problem = "some_model has no `NLL`; it has nll"
    check_refused(
        capsys, f"incrax {command}: error: {problem}", command, "some_model:NLL", "--example", "m:x"
    )


@pytest.mark.parametrize("command", ["cost", "report"])
def test_the_example_must_be_given_for_a_function_and_not_for_a_model(
    capsys, model, bound, command
):
    problem = "some_model:nll is a function; name its arguments by --example MODULE:ARGS"
    check_refused(capsys, f"incrax {command}: error: {problem}", command, "some_model:nll")
    problem = "bound.py:model is a model, which holds its inputs; leave --example out"
    check_refused(
        capsys,
        f"incrax {command}: error: {problem}",
        command,
        bound,
        "--example",
        "some_model:example",
    )


def test_cost_of_a_model_is_that_of_its_function(capsys, bound):
    assert exit_code("cost", bound, "--x64", "--json", "--changing", "mu", "--wrt", "mu") == 0
    found = json.loads(capsys.readouterr().out)
    expected = incrax.cost(loading.load(bound), changing="mu", wrt="mu")
    assert found["passes"] == json.loads(json.dumps(expected.as_dict()["passes"]))


@pytest.mark.parametrize("extra", [[], ["--grad"]])
def test_report_of_a_model_changes_its_inputs_within_their_bounds(capsys, bound, extra):
    assert (
        exit_code("report", bound, "--x64", "--output", "page.html", "--rounds", "2", *extra) == 0
    )
    # The first call, and two for each of `x` and `mu`; `scale` is at its upper bound.
    assert capsys.readouterr().out == "page.html: 5 calls\n"
    model = loading.load(bound)
    assert model["mu"] == 0.5
    assert list(model.functions) == ["value_and_grad" if extra else "value"]


def test_a_model_says_itself_what_is_trainable(capsys, bound):
    problem = "bound.py:model is a model, whose roles say what is trainable; give --grad for --wrt"
    check_refused(
        capsys, f"incrax report: error: {problem}", "report", bound, "--x64", "--wrt", "mu"
    )


def test_a_guarded_function_has_costs_and_a_page(capsys, model):
    (model / "guarded_model.py").write_text(GUARDED)
    named = ("guarded_model.py:f", "--example", "guarded_model.py:example", "--x64")
    assert exit_code("cost", *named) == 0
    assert "guard" in capsys.readouterr().out
    assert exit_code("report", *named, "--output", "page.html", "--rounds", "2") == 0
    assert "calls" in capsys.readouterr().out
    sys.modules.pop("guarded_model")


# --- doctor ---------------------------------------------------------------------------------------


def test_the_doctor_prints_tables(capsys):
    assert exit_code("doctor", "--no-measure") == 0
    shown = capsys.readouterr().out
    assert "versions" in shown
    assert "a call of jax.jit" not in shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_has_colours(monkeypatch, is_terminal):
    out = io.StringIO()
    out.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert exit_code("doctor", "--no-measure") == 0
    assert ("\x1b[36mjax" in out.getvalue()) == is_terminal


def test_the_doctor_speaks_json(capsys):
    assert exit_code("doctor", "--json", "--no-measure") == 0
    assert json.loads(capsys.readouterr().out)["versions"]["incrax"] == incrax.__version__


def test_the_doctor_fails_where_something_is_wrong(capsys, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert exit_code("doctor", "--no-measure") == 1
    assert "fast-math" in capsys.readouterr().out


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
    command = [sys.executable, "-m", "incrax", "doctor", "--no-measure"]
    pipe = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert pipe.stdout is not None
    pipe.stdout.close()
    assert pipe.stderr is not None
    with pipe.stderr as stream:
        assert stream.read() == b""
    assert pipe.wait(120) == 141
