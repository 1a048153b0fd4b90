"""The problems of the benchmarks: every form hoisted by hand equals `jax.jit` of what the user
writes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

harness = pytest.importorskip(
    "harness", reason="the benchmarks are not part of the source distribution"
)

from problems import amplitude, mixture  # noqa: E402

RTOL = 1e-10
NUM_EVENTS = 500
NUM_AMPLITUDES = 5


def agree(actual, expected) -> None:
    """Same tree, every output to within `RTOL` of its largest element."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert harness.relative_error(x, y) <= RTOL


# --- mixture --------------------------------------------------------------------------------------

HOISTED = {
    "value, n1": (mixture.hoisted_value_yield, mixture.nll, "n1"),
    "value, mu1": (mixture.hoisted_value_mean, mixture.nll, "mu1"),
    "gradient, n1": (mixture.hoisted_gradient_yield, jax.value_and_grad(mixture.nll), "n1"),
    "gradient, mu1": (mixture.hoisted_gradient_mean, jax.value_and_grad(mixture.nll), "mu1"),
    "closed gradient, mu1": (mixture.closed_gradient_mean, jax.value_and_grad(mixture.nll), "mu1"),
}


@pytest.mark.parametrize("name", HOISTED)
def test_the_mixture_hoisted_by_hand_is_the_users_mixture(name):
    hoist, function, changed = HOISTED[name]
    p, x = mixture.truth(NUM_EVENTS), mixture.make_data(NUM_EVENTS)
    hoisted = hoist(p, x)
    for factor in (1.0, 1.03):
        q = {**p, changed: p[changed] * factor}
        agree(hoisted(q, x), jax.jit(function)(q, x))


def test_the_flat_mixture_is_that_of_the_dict():
    p, x = mixture.truth(NUM_EVENTS), mixture.make_data(NUM_EVENTS)
    value, gradient = jax.jit(jax.value_and_grad(mixture.nll_flat))(np.array(list(p.values())), x)
    expected, by_name = jax.jit(jax.value_and_grad(mixture.nll))(p, x)
    agree(value, expected)
    agree(list(gradient), [by_name[name] for name in mixture.NAMES])


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_mixture_describes_its_data(factor):
    p, x = mixture.truth(50_000), mixture.make_data(50_000)
    value = jax.jit(mixture.nll)
    for name in mixture.NAMES:
        assert value({**p, name: factor * p[name]}, x) > value(p, x)


# --- amplitudes -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inputs():
    return amplitude.make_inputs(NUM_AMPLITUDES, NUM_EVENTS)


@pytest.fixture(scope="module")
def couplings(inputs):
    return {
        name: values * np.linspace(0.9, 1.2, len(values))
        for name, values in inputs.couplings.items()
    }


@pytest.fixture(scope="module")
def expected(inputs, couplings):
    return jax.jit(jax.value_and_grad(amplitude.nll_vectorised))(couplings, *inputs[1:])


def test_the_unrolled_amplitudes_are_the_vectorised_ones(inputs, couplings, expected):
    agree(jax.jit(amplitude.nll_unrolled)(couplings, *inputs[1:]), expected[0])
    agree(amplitude.in_two_programs()(couplings, *inputs[1:]), expected[0])


@pytest.mark.parametrize("hoist", [amplitude.hoisted_couplings, amplitude.hoisted_couplings_real])
def test_the_couplings_hoisted_by_hand(inputs, couplings, expected, hoist):
    agree(hoist(inputs)(couplings, *inputs[1:]), expected[0])
    agree(hoist(inputs, jax.value_and_grad)(couplings, *inputs[1:]), expected)


@pytest.mark.parametrize("hoist", [amplitude.hoisted_width, amplitude.hoisted_width_real])
def test_one_width_hoisted_by_hand(inputs, hoist):
    width = inputs.shapes["width"][amplitude.WIDTH] * 1.1
    widths = inputs.shapes["width"].copy()
    widths[amplitude.WIDTH] = width
    moved = (inputs.couplings, {**inputs.shapes, "width": widths}, *inputs[2:])
    agree(hoist(inputs, with_gradient=False)(*moved), jax.jit(amplitude.nll_vectorised)(*moved))
    by_width = jax.jit(jax.value_and_grad(amplitude.of_width(amplitude.nll_vectorised)))
    agree(hoist(inputs, with_gradient=True)(width, *inputs), by_width(width, *inputs))


# --- harness --------------------------------------------------------------------------------------


def test_forms_that_disagree_stop_a_comparison():
    forms = {"one": lambda x: np.float64(x), "two": lambda x: np.float64(x + 1e-3)}
    with pytest.raises(AssertionError, match="'two' and 'one' differ by 0.001"):
        harness.compare(forms, lambda _: (1.0,), rounds=1, warm=0)


def test_a_line_says_what_was_reached():
    timings = {
        "jax.jit": harness.Timing(3e-3, 2e-3, 4e-3),
        "incrax": harness.Timing(2e-3, 1e-3, 3e-3),
    }
    line = harness.timing_line(
        "case", timings, [harness.never_slower(), harness.Speed("jax.jit", 2.0)]
    )
    assert [check.target for check in line.checks] == ["<=1.05 t(jax.jit)", ">=2x jax.jit"]
    assert line.verdict == "short: 1.50x jax.jit"
    assert line.cells["jax.jit / incrax"] == "1.50"


# --- sparse Hessians ------------------------------------------------------------------------------


def test_the_benchmark_of_sparse_hessians_runs_and_agrees():
    """Each case compares its results with those of `jax.hessian`."""
    import bench_sparse_hessian

    options = harness.Options(quick=True, rounds=1, only="", json=None, extra=None)
    lines = list(bench_sparse_hessian.lines(options))
    assert {line.case.partition(",")[0] for line in lines} == {
        "separable",
        "chained",
        "hierarchical",
    }


# --- rows -----------------------------------------------------------------------------------------


def test_the_benchmark_of_rows_runs_and_agrees():
    """Each case compares its results with those of `jax.jit`."""
    import bench_rows

    options = harness.Options(
        quick=True, rounds=1, only="value and gradient", json=None, extra=None
    )
    lines = list(bench_rows.lines(options))
    assert [line.case.partition(",")[0] for line in lines] == [
        "append",
        "replace",
        "move",
        "stream",
    ]


# --- pullbacks ------------------------------------------------------------------------------------


def test_the_benchmark_of_pullbacks_runs_and_agrees():
    """Operations and bytes do not depend on the size of a constant; times are not looked at."""
    import bench_pullback

    options = harness.Options(quick=True, rounds=1, only="", json=None, extra=None)
    lines = list(bench_pullback.lines(options))
    assert len(lines) == 7
    counted = [
        check
        for line in lines
        for check in line.checks
        if check.target.startswith(("operations", "bytes"))
    ]
    assert len(counted) == 4 * 2 + 3
    assert all(check.is_met for check in counted)


# --- broadcast adjoints ---------------------------------------------------------------------------


def test_the_benchmark_of_broadcast_adjoints_runs_and_agrees():
    """Forward, reverse, by hand and ours give the same derivatives by one field and by three."""
    import bench_broadcast

    options = harness.Options(quick=True, rounds=1, only="e field, 1e+03", json=None, extra=None)
    assert len(list(bench_broadcast.lines(options))) == 2


# --- loops ----------------------------------------------------------------------------------------


def test_the_benchmark_of_loops_runs_agrees_and_counts_its_programs():
    """Each case compares its results with those of `lax.scan`; times are not looked at."""
    import bench_loops

    options = harness.Options(quick=True, rounds=1, only="", json=None, extra=None)
    lines = list(bench_loops.lines(options))
    assert [line.case.partition(",")[0] for line in lines] == ["lengths", "lengths", "turns"]
    counted = [
        check
        for line in lines
        for check in line.checks
        if check.target.startswith(("compiled", "memory"))
    ]
    assert len(counted) == 2
    assert all(check.is_met for check in counted)


# --- least squares --------------------------------------------------------------------------------


@pytest.mark.shared
def test_the_benchmark_of_least_squares_reaches_its_digits():
    """Digits, claims and Jacobians of three problems from two starts; times are not looked at."""
    import bench_least_squares

    if not bench_least_squares.nist.names():
        pytest.skip("the shared data of NIST are not here")
    options = harness.Options(
        quick=True, rounds=1, only="", json=None, extra=argparse.Namespace(peers=False)
    )
    first = next(iter(bench_least_squares.lines(options)))
    assert all(check.is_met for check in first.checks if not check.target.startswith("t /"))


# --- representations that are kept ----------------------------------------------------------------


def test_the_benchmark_of_kept_representations_runs_agrees_and_counts_rows():
    """Each case compares its gradients with those of plain JAX; times are not looked at."""
    import bench_hold

    options = harness.Options(quick=True, rounds=1, only="small", json=None, extra=None)
    lines = list(bench_hold.lines(options))
    assert len(lines) == 2
    assert all(
        check.is_met
        for line in lines
        for check in line.checks
        if check.target.startswith("rows encoded")
    )


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_the_benchmark_of_fits_runs_and_agrees():
    """Over saved values and on `jax.jit` alike, by the task that each form's minimum has."""
    pytest.importorskip("iminuit")
    import bench_fits

    options = harness.Options(quick=True, rounds=1, only="A: MINOS", json=None, extra=None)
    (line,) = bench_fits.lines(options)
    assert set(line.timings) == {"incrax", "jax.jit"}
    assert [check.is_met for check in line.checks if "difference" in check.target] == [True]


# --- overhead -------------------------------------------------------------------------------------


def test_the_benchmark_of_overhead_makes_its_arguments_before_it_times_calls():
    """What is made anew is read first, and freed last, by a form that then pays for both."""
    import bench_overhead

    made = []

    def make(value):
        made.append(value)
        return np.full(2, value)

    bench_overhead.overhead_line("case", make, 10, 10, rounds=70)
    assert len(made) == 10 + 10 * bench_overhead.NUM_GIVEN  # not by the rounds


# --- bijectors ------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.optimized
@pytest.mark.parametrize("transform", [lambda f: f, jax.value_and_grad], ids=["value", "gradient"])
@pytest.mark.parametrize("name", ["inverse autoregressive", "spline coupling", "affine coupling"])
def test_a_sample_scored_from_memory_is_the_program_by_hand(name, transform):
    """`sample_and_log_prob`, but for a change of sign of each event's log-determinant."""
    pytest.importorskip("flowjax")
    import bench_bijectors

    sizes = bench_bijectors.Sizes(4, 2, 8, 8)
    arrays, forms = bench_bijectors.forms(bench_bijectors.flows(sizes)[name][0])
    xs = np.random.default_rng(1).normal(size=(sizes.batch, sizes.dim))
    ours, by_hand = (
        jax.jit(transform(forms[form])).lower(arrays, xs).compile().cost_analysis()
        for form in (bench_bijectors.OURS, bench_bijectors.BY_HAND)
    )
    assert ours["transcendentals"] == by_hand["transcendentals"]
    assert ours["flops"] <= by_hand["flops"] + sizes.batch


# --- all others -----------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["bijectors", "exact", "guarded", "hold", "loops", "row_sparse", "slices"],
)
def test_the_first_line_of_a_benchmark_is_made(name):
    """A script that nobody has run for weeks breaks by a name that went."""
    from benchmarks.suite import catalogue

    if catalogue.by_name()[name].missing:
        pytest.skip(f"needs {catalogue.by_name()[name].missing}")
    script = importlib.import_module(f"bench_{name}")
    options = harness.Options(quick=True, rounds=1, only="", json=None, extra=None)
    assert next(iter(script.lines(options))).cells
