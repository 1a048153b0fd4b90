"""Two processes, each with its share of the rows: the results of one, and the same decisions in
both.

What runs in each is `process_worker.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import process_worker as worker
import pytest

import incrax

pytestmark = pytest.mark.exhaustive

WORKER = Path(worker.__file__)
EXAMPLE = WORKER.parent.parent / "examples" / "cluster_fit.py"
LIMIT_S = 400
"""Processes that took different decisions wait for each other for ever."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_pair(command, folder):
    """Start two processes and wait; what they printed, or what went wrong, as (is all well,
    texts).
    """
    with contextlib.ExitStack() as stack:
        started = []
        for number in range(2):
            environment = {**os.environ, "XLA_FLAGS": "", "PYTHONHASHSEED": str(number + 1)}
            log = stack.enter_context((folder / f"log{number}").open("w+"))
            arguments = [sys.executable, *command(number)]
            process = subprocess.Popen(
                arguments, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        deadline = time.monotonic() + LIMIT_S
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 1.0))
        is_well = all(process.returncode == 0 for process in started)
        return is_well, [(folder / f"log{number}").read_text() for number in range(2)]


@functools.cache
def outcome():
    """What each of two processes found, or what went wrong."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"found{number}.json" for number in range(2)]
        is_well, printed = run_pair(
            lambda number: [WORKER, str(number), "2", port, files[number]], Path(name)
        )
        return (
            [json.loads(file.read_text()) for file in files]
            if is_well
            else "\n--- the other\n".join(printed)
        )


def run_processes():
    """What each of two processes found."""
    found = outcome()
    assert not isinstance(found, str), found
    return found


def close(actual, expected):
    a, b = np.array(actual), np.array(expected)
    assert np.abs(a - b).max() <= 64 * np.finfo(float).eps * np.abs(b).max()


def test_the_rows_are_divided():
    assert all(found["processes"] == 2 and not found["addressable"] for found in run_processes())


@pytest.mark.parametrize("name", worker.FUNCTIONS)
def test_results_are_those_of_one_process(name):
    plain = jax.jit(worker.FUNCTIONS[name][0])
    expected = [worker.flat(plain(params, worker.ROWS)) for params in worker.scan_points(2)]
    for found in run_processes():
        for actual, value in zip(found["functions"][name]["results"], expected, strict=True):
            close(actual, value)


@pytest.mark.parametrize("name", worker.FUNCTIONS)
def test_all_processes_have_the_same_results_counters_and_programs(name):
    """And the same programs, although their clocks, their free memory and the order of their sets
    differ.
    """
    first, second = (found["functions"][name] for found in run_processes())
    assert first == second
    assert first["plans"]


@pytest.mark.parametrize("name", ["minimal", "exact"])
def test_counters_are_those_of_one_process(name):
    fun, options = worker.FUNCTIONS[name]
    f = incrax.incremental(fun, **options)
    for params, counters in zip(
        worker.scan_points(2), run_processes()[0]["functions"][name]["counters"], strict=True
    ):
        f(params, jnp.asarray(worker.ROWS))
        assert f.stats.as_dict() == counters


@pytest.mark.parametrize("name", worker.POLICIES)
def test_only_what_changed_runs(name):
    counters = run_processes()[0]["functions"][name]["counters"]
    num_eqns, num_run = (
        counters[0]["ran"] + counters[0]["filled"],
        counters[-1]["ran"] + counters[-1]["filled"],
    )
    num_calls = counters[-1]["calls"] - counters[-1]["unchanged"]
    assert num_run < 0.8 * num_calls * num_eqns
    assert counters[-1]["unchanged"] > 10
    assert counters[-1]["loaded"] > 0
    assert counters[-1]["evicted"] == 0


@pytest.mark.parametrize("name", worker.FUNCTIONS)
def test_saved_values_stay_over_the_processes(name):
    for found in run_processes():
        specs = found["functions"][name]["specs"]
        assert specs
        assert all("rows" in spec for spec in specs)


def test_inputs_over_several_processes_are_compared_by_identity():
    for found in run_processes():
        identity = found["identity"]
        assert identity["unchanged"] == [0, 1, 1, 2, 2, 3]
        assert identity["traces"] == 2
        close(identity["values"], [identity["values"][0]] * 6)


def test_the_pure_form_equals_one_process():
    plain = jax.jit(worker.likelihood)
    expected = [
        plain({**worker.PARAMS, "share": share}, worker.ROWS) for share in np.linspace(0.2, 0.4, 5)
    ]
    for found in run_processes():
        close(found["pure"], expected)


def test_verification_finds_a_stale_value_in_all_processes():
    for found in run_processes():
        assert found["verified"] == "`<lambda>` returned an output that"


def test_the_example_runs_unchanged_in_two_processes(tmp_path, monkeypatch):
    """Its minima are those of `jax.jit` in one process, and only the first process prints."""
    monkeypatch.syspath_prepend(EXAMPLE.parent)  # it imports the example beside it
    spec = importlib.util.spec_from_file_location("cluster_fit", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    minima, *_ = example.profile(
        jax.jit(jax.value_and_grad(example.mean_loss)), example.sharded_rows(8192)
    )
    where = f"127.0.0.1:{free_port()}"
    options = ["--rows", "8192", "--coordinator", where, "--processes", "2", "--process"]
    is_well, printed = run_pair(lambda number: [EXAMPLE, *options, str(number)], tmp_path)
    assert is_well, "\n--- the other\n".join(printed)
    assert "8,192 rows; 2 cpu devices, 2 processes" in printed[0]
    assert "rows" not in printed[1]
    shown = [
        float(line.split()[1])
        for line in printed[0].splitlines()
        if re.fullmatch(r" +\d+\.\d+ +\d+\.\d+", line)
    ]
    np.testing.assert_allclose(shown, 2 * 8192 * (minima - minima.min()), atol=2e-3)
