"""What a notebook shows: a result as the last expression of a cell once, printed once as text, made
not at all.
"""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import re
from html import unescape
from importlib import import_module
from pathlib import Path

import pytest

import incrax
from incrax._table import Counters, Printable

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.exhaustive  # they start a kernel, and run all that can be shown in it

LIMIT_S = 600

SETUP = """
import json
import warnings

warnings.filterwarnings("ignore", message="IProgress")  # of tqdm, which has no widgets here

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import incrax
from incrax import _progress, fit, samplers

_progress.PATIENCE_S = -1.0  # whatever can show progress wants to from the start


def loss(p, x):
    return jnp.sum((x - p["a"]) ** 2 / jnp.exp(p["b"]) + p["b"])


def log_density(p, x):
    return -loss(p, x)


def residuals(p, x, y):
    return p["a"] + p["b"] * x - y


def sites(x):
    numpyro.sample("x", dist.Normal(numpyro.sample("mu", dist.Normal(0.0, 1.0)), 1.0), obs=x)


def branching(x):
    return jnp.sum(x) ** 3 if jnp.sum(x) > 1 else jnp.sum(x) ** 2


def step(table, ids):
    return table - 0.1 * jax.grad(lambda t: jnp.sum(t[ids] ** 2))(table)


p, x = {"a": 0.5, "b": 0.1}, np.linspace(-1.0, 2.0, 50)
f = incrax.incremental(loss)
f(p, x)
f({"a": 0.6, "b": 0.1}, x)
g = incrax.guarded(branching)
g(jnp.ones(2))
s = incrax.structured(step)
f({"a": 0.7, "b": 0.1}, x)
model = incrax.bind(loss, p=p, x=x, roles={"x": "data"})
minimum = fit.minimize(model)
least = fit.levenberg_marquardt(residuals, {"a": 0.0, "b": 0.0}, np.arange(4.0), np.array([1.0, 3.0, 5.0, 7.5]))
held = incrax.hold(lambda w, x: x @ w)
kept = held(jnp.ones(2), jnp.ones((3, 2)))
made = {}
"""

RESULTS = {
    "incremental": "f",
    "explain": "f.explain()",
    "stats": "f.stats",
    "deps": "f.deps()",
    "warm_up": "f.warm_up(p, x, changing=['x', \"p['a']\"]) or 'compiled'",
    "report": "incrax.report(f)",
    "cost": "incrax.cost(loss, p, x)",
    "environment": "incrax.environment()",
    "cache folder": "incrax.cache_folder()",
    "tuning": "incrax.Tuning()",
    "guarded": "g",
    "explain guarded": "g.explain()",
    "stats guarded": "g.stats",
    "check_tape": "incrax.check_tape(branching, jnp.ones(2))",
    "explain rows": "s.explain(jnp.ones((1000, 4)), jnp.array([3]))",
    "row-sparse": "incrax.RowSparse(jnp.array([2, 0]), jnp.ones((2, 2)), (4, 2))",
    "prepared": "incrax.prepare(loss, p, x)",
    "pullback": "incrax.vjp(loss, p, x)[1]",
    "held": "held",
    "held stats": "held.stats",
    "kept": "kept",
    "rows": "incrax.Rows(np.ones(5000), chunk_rows=2048)",
    "streamed rows": "float(f(p, incrax.Rows.from_memmap(np.ones(5000), chunk_rows=2048)))",
    "padded": "incrax.Padded(jnp.ones(4), 3)",
    "model": "model",
    "model's stats": "model.stats",
    "model's roles": "model.roles",
    "model's explain": "(model.value(), model.explain())[1]",
    "model's report": "incrax.report(model)",
    "minimum": "minimum",
    "table of minimum": "minimum.tables()[0]",
    "minos": "minimum.minos(\"p['a']\")",
    "least squares": "least",
    "impacts": "fit.impacts((loss, p, x), \"p['a']\")",
    "profile": "fit.profile((loss, p, x), \"p['a']\", grid=[0.4, 0.5, 0.6])",
    "contour": "fit.contour(minimum, \"p['a']\", \"p['b']\", num_points=8)",
    "scan2d": "fit.scan2d(minimum, \"p['a']\", \"p['b']\", num_points=3)",
    "toys": "fit.toys(model, [{'x': x + 0.1}, {'x': x - 0.1}])",
    "chain": "samplers.gibbs(log_density, p, x, key=0, num_sweeps=9)",
    "gibbs": "samplers.gibbs(log_density, p, x, updates={'p': samplers.Walk(0.5)}, key=1, num_sweeps=5)",
    "from_numpyro": "samplers.from_numpyro(sites, x)",
}
"""What makes each kind of result."""

PLOTS = {
    "minimum": "made['minimum'].plot()",
    "profile": "made['profile'].plot()",
    "contour": "made['contour'].plot()",
    "scan2d": "made['scan2d'].plot()",
    "impacts": "made['impacts'].plot()",
    "toys": "made['toys'].plot()",
    "in a loop": "for name in ('profile', 'contour'):\n    figure = made[name].plot()\n",
}
"""What draws: as the last expression of a cell, or somewhere in it."""

WIDTHS = (80, 160)
AT_WIDTH = """
import os

os.environ["COLUMNS"] = "{width}"
print(json.dumps({{name: str(x) for name, x in made.items()}}))
"""


def public_modules():
    names = [
        info.name
        for info in pkgutil.walk_packages(incrax.__path__, "incrax.")
        if "__main__" not in info.name
    ]
    return [import_module(name) for name in names if "assets" not in name]


def with_tables():
    """Every class of incrax that has its own way to be shown."""
    found = {
        kind
        for module in public_modules()
        for _, kind in inspect.getmembers(module, inspect.isclass)
    }
    ours = {
        kind
        for kind in found
        if kind.__module__.startswith("incrax") and hasattr(kind, "_repr_html_")
    }
    return {
        kind.__name__ for kind in ours - {Printable, Counters} if not kind.__name__.startswith("_")
    }


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Three cells for each result: made, last expression, printed; one for each plot, and for each
    width; and one with the types of all.
    """
    cells = [SETUP]
    for name, code in RESULTS.items():
        cells += [f"made[{name!r}] = {code}", f"made[{name!r}]", f"print(made[{name!r}])"]
    cells += PLOTS.values()
    cells += [AT_WIDTH.format(width=width) for width in WIDTHS]
    cells.append("print(json.dumps({name: type(x).__name__ for name, x in made.items()}))")
    written = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    run(written, tmp_path_factory.mktemp("notebook"), allow_errors=True)
    return [cell.outputs for cell in written.cells]


def run(written, folder, *, allow_errors=False):
    """Run all cells by a kernel of its own."""
    client = nbclient.NotebookClient(
        written,
        timeout=LIMIT_S,
        allow_errors=allow_errors,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
    )
    source = Path(incrax.__file__).parents[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("IPYTHONDIR", str(folder))  # no profile of the user's
        client.execute()


def test_the_notebook_of_the_first_page_runs(tmp_path):
    """It raises nothing, and prints what the page shows of its last block."""
    path = Path(__file__).parents[1] / "docs" / "get_started.ipynb"
    written = nbformat.read(path, as_version=4)
    nbformat.validate(written)
    run(written, tmp_path)
    code = [cell for cell in written.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert printed(code[-1].outputs) == "504\n"


@pytest.fixture(params=list(RESULTS))
def shown(notebook, request):
    at = 1 + 3 * list(RESULTS).index(request.param)
    return notebook[at : at + 3]


def test_nothing_is_shown_before_it_is_asked_for(notebook):
    assert notebook[0] == []


def test_what_is_made_is_not_shown(shown):
    assert shown[0] == []


def test_the_last_expression_of_a_cell_is_shown_once(shown):
    (output,) = shown[1]
    assert output.output_type == "execute_result"
    assert output.data["text/plain"]


def printed(outputs):
    """The text of a cell that only prints; a kernel's buffer empties by time, so one print may come
    in two pieces.
    """
    assert {(output.output_type, output.name) for output in outputs} == {("stream", "stdout")}
    return "".join(output.text for output in outputs)


def test_what_is_printed_is_shown_once_as_text(shown):
    lines = printed(shown[2]).strip("\n").splitlines()
    middle = len(lines) // 2
    assert lines
    assert lines[:middle] != lines[middle:] or not middle


def test_a_notebook_has_tables_where_text_has_and_no_colours(shown):
    data = shown[1][0].data
    assert "\x1b" not in data["text/plain"]
    if "<table>" not in data.get("text/html", ""):
        return
    assert data["text/plain"] == printed(shown[2]).strip("\n")
    words = re.sub("<[^>]*>", " ", data["text/html"])
    assert sorted(unescape(words).split()) == sorted(re.sub("─+", "", data["text/plain"]).split())


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_shown_once(notebook, name):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    outputs = notebook[1 + 3 * len(RESULTS) + list(PLOTS).index(name)]
    num = 2 if name == "in a loop" else 1
    assert [output.output_type for output in outputs if "data" in output] == (
        ["display_data"] * 2 if name == "in a loop" else ["execute_result"]
    )
    assert sum("image/png" in output.get("data", {}) for output in outputs) == num


@pytest.mark.parametrize("width", WIDTHS)
def test_all_results_keep_to_the_width(notebook, width):
    texts = json.loads(printed(notebook[WIDTHS.index(width) - len(WIDTHS) - 1]))
    ours = {name: texts[name] for name, kind in types_of(notebook).items() if kind in with_tables()}
    assert len(ours) > 20
    for name, text in ours.items():
        assert max(map(len, text.splitlines())) <= width, name


def types_of(notebook):
    return json.loads(printed(notebook[-1]))


def test_all_that_has_tables_is_among_these(notebook):
    assert with_tables() <= {*types_of(notebook).values(), "Table"}
