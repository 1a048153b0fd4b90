"""Figures that pages quote are those of the newest results; where one differs, the page wants
mending.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.suite import schema, selection
from benchmarks.suite.schema import Line

ROOT = Path(__file__).parents[2]
RESULTS = selection.best(schema.load_all(ROOT / "benchmarks" / "results"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")
JIT = "jax.jit / incrax"
TOLERANCE = 0.15
"""Of a ratio: what a result differs by from one quiet run to the next."""

OTHERS: dict[str, Callable[[Line], float]] = {
    "fast": lambda line: (
        line.ratios['jax.jit / policy="exact"'] / line.ratios['policy="fast" / policy="exact"']
    ),
    "slower": lambda line: 1 / line.ratios[JIT],
    "us": lambda line: 1e6 * line.timings["incrax"].median,
    "us over its program": lambda line: line.figures["beyond, us"],
    "us itself": lambda line: line.figures["us"],
    "times optimistix": lambda line: line.figures["ms a fit"] / _solver_ms("optimistix LM, 1e-10"),
    "first call": lambda line: line.figures["incrax / jax.jit"],
    "s by jax.jit": lambda line: line.timings["jax.jit"].median,
    "s by incrax": lambda line: line.timings["incrax"].median,
}
"""Figures that are no ratio of a result."""

SOLVED = (">= 6 digits", ">= 8 digits", ">= 10 digits", "Jacobians", "wrong")
SOLVERS = {
    "incrax, default settings": "incrax",
    "scipy lm, 1e-15": "scipy lm, 1e-15",
    "scipy trf, 1e-15 (lsqfit takes it)": "scipy trf, 1e-15",
    "optimistix LM, 1e-10": "optimistix LM, 1e-10",
}
"""As the page calls them, and as the benchmark of least squares does."""
README_EXAMPLE = "one of 2,000 groups moves, 5,000 gradients"

QUOTED = {
    ("README.md", "jax.jit: -499006,"): [("readme", README_EXAMPLE, "s by jax.jit")],
    ("README.md", "incrax: -499006,"): [("readme", README_EXAMPLE, "s by incrax")],
    ("docs/index.md", "Profiles of a mixture's 8"): [("fits", "A: 8 profiles", JIT)],
    ("docs/when_not.md", "The first call takes"): [
        ("compile", "A, value", "first call"),
        ("compile", "B vectorised, 80 couplings, value", "first call"),
    ],
    ("docs/when_not.md", "everything changes at every call"): [
        ("mixture", "value, all changed", JIT)
    ],
    ("docs/when_not.md", "the same, value and gradient"): [
        ("mixture", "value+grad(8), all changed", JIT)
    ],
    ("docs/when_not.md", "a random subset of 8"): [
        ("mixture", "value+grad(8), random subsets (8 calls)", JIT)
    ],
    ("docs/when_not.md", "two means of 8"): [("mixture", "value+grad(8), two means", JIT)],
    ("docs/when_not.md", "a whole Minuit fit"): [
        ("mixture", "numeric gradient, the 217 calls of a Minuit fit", JIT)
    ],
    ("docs/when_not.md", "profiles of 8 parameters"): [("fits", "A: 8 profiles", JIT)],
    ("docs/when_not.md", "MINOS of 8"): [("fits", "A: MINOS of 8", JIT)],
    ("docs/when_not.md", "one yield of a mixture of 1e3"): [
        ("curves", "mixture, 1,000 rows", JIT),
        ("curves", "mixture, 3,000 rows", JIT),
    ],
    ("docs/when_not.md", "one mean at each call, value"): [
        ("exact", "value, one mean", 'jax.jit / policy="exact"')
    ],
    ("docs/when_not.md", "parameters that change, data in `Rows`"): [
        ("rows", "move, 1,000,000 rows, value", JIT)
    ],
    ("docs/when_not.md", "a flow's forward pass"): [
        ("bijectors", "affine coupling, forward alone", "FlowJAX / incrax"),
        ("bijectors", "inverse autoregressive, forward alone", "FlowJAX / incrax"),
    ],
    ("docs/when_not.md", "A call takes"): [
        ("overhead", "10 Python floats, none changed", "us"),
    ],
    ("docs/when_not.md", "what a changed input reaches takes"): [
        ("calls", "planned, one of 10 leaves, in a row", "us over its program"),
        ("calls", "planned, one of 200 leaves, in a row", "us over its program"),
    ],
    ("docs/bijectors.md", "| inverse autoregressive |"): [
        ("bijectors", "inverse autoregressive, value", "FlowJAX / incrax"),
        ("bijectors", "inverse autoregressive, value and gradient", "FlowJAX / incrax"),
    ],
    ("docs/bijectors.md", "| spline coupling |"): [
        ("bijectors", "spline coupling, value", "FlowJAX / incrax"),
        ("bijectors", "spline coupling, value and gradient", "FlowJAX / incrax"),
    ],
    ("docs/bijectors.md", "| affine coupling |"): [
        ("bijectors", "affine coupling, value", "FlowJAX / incrax"),
        ("bijectors", "affine coupling, value and gradient", "FlowJAX / incrax"),
    ],
    ("docs/promises.md", "a call with nothing changed, 10 inputs"): [
        ("overhead", "10 Python floats, none changed", "us"),
        ("overhead", "10 NumPy arrays of 4, none changed", "us"),
    ],
    ("docs/promises.md", "a call that runs what one changed input reaches"): [
        ("calls", "planned, one of 10 leaves, in a row", "us over its program"),
        ("calls", "planned, one of 10 leaves, cold", "us over its program"),
        ("calls", "planned, one of 200 leaves, in a row", "us over its program"),
    ],
    ("docs/promises.md", "first call, against"): [
        ("compile", "A, value", "first call"),
        ("compile", "B vectorised, 80 couplings, value", "first call"),
    ],
    ("docs/promises.md", "everything changes at every call"): [
        ("mixture", "value+grad(8), all changed", "slower"),
        ("mixture", "value, all changed", "slower"),
    ],
    ("docs/promises.md", "a job of 5,000 calls"): [("jobs", "small function", "slower")],
    ("docs/rows.md", "of 1e6 rows ran"): [
        ("rows", "append, 1,000,000 rows, value and gradient", JIT)
    ],
    ("docs/rows.md", "a value alone took"): [("rows", "move, 1,000,000 rows, value", "slower")],
    ("docs/hold.md", "a larger encoder:"): [
        ("hold", "larger encoder, all rows", "all rows per batch / incrax"),
        ("hold", "larger encoder, all rows", "the batch's rows / incrax"),
    ],
    ("docs/sparse.md", "a step ran at"): [
        ("row_sparse", f"{optimizer} (optax), 1,000,000 x 64, 64 rows read", JIT)
        for optimizer in ("Adagrad", "Adam", "SGD with momentum")
    ],
    ("docs/sampling.md", "sweeps of 100 to 1,000 groups ran"): [
        ("sweeps", "sweep over 100 groups of 1,000", JIT),
        ("sweeps", "sweep over 1,000 groups of 80", JIT),
    ],
    ("docs/sampling.md", "(40,000 homes), too: sweeps gave"): [
        ("posterior", "incrax", "effective samples a second"),
        ("posterior", "NumPyro, NUTS", "effective samples a second"),
        ("posterior", "incrax", "all in"),
        ("posterior", "NumPyro, NUTS", "all in"),
    ],
    ("docs/compiled_chains.md", "the sweep ran"): [
        ("sweeps", "sweep over 500 groups of 1,000", JIT)
    ],
    ("docs/compiled_chains.md", "A chain of 10 blocks ran"): [
        ("pure", "chain of 400 steps, 200,000 channels", JIT),
        ("pure", "chain of 400 steps, 50,000 channels", JIT),
    ],
    ("docs/concepts/policy.md", "mixture of the benchmarks, one yield"): [
        ("exact", "value, one yield", "fast"),
        ("exact", "value+grad(8), one yield", "fast"),
        ("exact", "value, one yield", 'jax.jit / policy="exact"'),
        ("exact", "value+grad(8), one yield", 'jax.jit / policy="exact"'),
    ],
    ("docs/concepts/policy.md", "the same, one mean"): [
        ("exact", "value, one mean", "fast"),
        ("exact", "value+grad(8), one mean", "fast"),
        ("exact", "value, one mean", 'jax.jit / policy="exact"'),
        ("exact", "value+grad(8), one mean", 'jax.jit / policy="exact"'),
    ],
    ("docs/bijectors.md", "a lookup of an inverse takes"): [
        ("bijectors", "lookup of an inverse", "us itself"),
        ("bijectors", "record", "us itself"),
    ],
    **{
        ("docs/fitting.md", f"| {words} |"): [("least_squares", case, what) for what in SOLVED]
        for words, case in SOLVERS.items()
    },
    ("docs/fitting.md", "The median fit takes"): [
        ("least_squares", "incrax", "times optimistix"),
    ],
    ("docs/coming_from/tensorwaves.md", "their time over ours is"): [
        ("peers-tensorwaves", "amplitude, value, couplings", "tensorwaves / incrax"),
        ("peers-tensorwaves", "amplitude, value and gradient, couplings", "tensorwaves / incrax"),
    ],
}
"""By page and a text of one line: the results that the figures after this text are."""


def _solver_ms(case: str) -> float:
    (line,) = [line for _, line in RESULTS["least_squares"].lines if line.case == case]
    return line.figures["ms a fit"]


def measured(benchmark: str, case: str, what: str) -> float:
    """The ratio, or what `OTHERS` computes, in the newest result that the page on performance
    shows.
    """
    (line,) = [line for _, line in RESULTS[benchmark].lines if line.case == case]
    return OTHERS[what](line) if what in OTHERS else {**line.figures, **line.ratios}[what]


def quoted(page: str, text: str, num: int) -> list[float]:
    """The first figures after the text; in a table, after the cell that holds it."""
    (line,) = [
        line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if text in line
    ]
    after = line[line.index(text) + len(text) :]
    after = after[after.index("|") :] if line.startswith("|") and not text.endswith("|") else after
    return [float(number) for number in NUMBER.findall(after)][:num]


@pytest.mark.parametrize(("page", "text"), QUOTED)
def test_a_quoted_figure_is_that_of_the_newest_result(page, text):
    unmeasured = {benchmark for benchmark, _, _ in QUOTED[page, text]} - set(RESULTS)
    if unmeasured:
        pytest.skip(f"no result yet: python -m benchmarks --run {' '.join(unmeasured)}")
    expected = [measured(*each) for each in QUOTED[page, text]]
    assert quoted(page, text, len(expected)) == pytest.approx(expected, rel=TOLERANCE)


def test_pages_that_quote_one_result_quote_one_figure():
    shown: dict[tuple[str, str, str], dict[str, float]] = {}
    for (page, text), results in QUOTED.items():
        for result, figure in zip(results, quoted(page, text, len(results)), strict=True):
            shown.setdefault(result, {})[f"{page}: {text}"] = figure
    assert {key: each for key, each in shown.items() if len(set(each.values())) > 1} == {}


def test_what_we_add_to_a_call_of_jax_jit_is_within_what_the_page_says():
    """The difference of two times of some 20 to 400 us: a bound, since it is within their noise."""
    if "overhead" not in RESULTS:
        pytest.skip("no result yet: python -m benchmarks --run overhead")
    lines = [line for _, line in RESULTS["overhead"].lines if "beyond jit, us" in line.figures]
    most_us = max(
        line.figures["beyond jit, us"] for line in lines if "none changed" not in line.case
    )
    (at_most_us,) = quoted("docs/promises.md", "beyond that of `jax.jit` with the same", 1)
    assert most_us <= at_most_us


def test_every_line_of_a_table_of_figures_is_checked():
    """A line without an entry above could become stale unseen."""
    page = "docs/when_not.md"
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("|") and re.search(r"\| [\d.]+[^|]*\| ", f"{line} ")
    ]
    known = [marker for name, marker in QUOTED if name == page]
    assert lines
    assert [line for line in lines if not any(marker in line for marker in known)] == []
