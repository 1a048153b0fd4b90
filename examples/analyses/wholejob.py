"""An analysis as a whole job: each form of it in fresh processes, in turns, compiling and learning
included.

The forms return the numbers that the analysis is done for, and these have to agree.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Form = Callable[[], Mapping[str, float]]


def needs(*modules: str, extra: str = "analyses") -> None:
    """End this script, without an error, where a library of an extra is not installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed; pip install -e '.[{extra}]'")
        sys.exit(0)


def compare(file: str, forms: Mapping[str, Form], tolerance: Mapping[str, float]) -> None:
    """Run all forms, and print the seconds of each.

    Args:
        file: the script.
        forms: by name, the home tool first; a name is the option `--form` of the script.
        tolerance: of each number that they return, the absolute difference from the first form.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", choices=forms, help="one form here, once")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each form, in turns")
    parser.add_argument("--json", type=Path, help="write the numbers of all processes to this file")
    options = parser.parse_args()
    if options.form is not None:
        print(json.dumps(_run(forms[options.form])))
        return
    found: dict[str, list[dict[str, float]]] = {form: [] for form in forms}
    for number in range(options.rounds):
        for form in [*forms] if number % 2 == 0 else [*reversed(forms)]:
            found[form].append(_in_process(file, form))
    _check(found, tolerance)
    _print(found)
    if options.json is not None:
        options.json.write_text(json.dumps(found), encoding="utf-8")


def _run(form: Form) -> dict[str, float]:
    """The numbers of a form, and its seconds from the first call to the last result: by the clock,
    and of all processors, which say more where other work runs.
    """
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    numbers = {name: float(value) for name, value in form().items()}
    cpu_s = time.process_time() - start_cpu_s
    return {**numbers, "job_s": time.perf_counter() - start_s, "cpu_s": cpu_s}


def _in_process(file: str, form: str) -> dict[str, float]:
    # Every process learns anew, whatever earlier ones have left.
    env = {**os.environ, "INCRAX_REMEMBER": "0"}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    start_s = time.perf_counter()
    command = [sys.executable, file, "--form", form]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if ended.returncode:
        raise RuntimeError(f"{form}: {ended.stderr[-3000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    return {**found, "process_s": time.perf_counter() - start_s}


def _check(found: Mapping[str, list[dict[str, float]]], tolerance: Mapping[str, float]) -> None:
    runs = [(form, run) for form, each in found.items() for run in each]
    first = runs[0][1]
    for form, run in runs:
        for name, most in tolerance.items():
            if not abs(run[name] - first[name]) <= most:
                raise AssertionError(f"{name} by {form}: {run[name]}, expected {first[name]}")


def _print(found: Mapping[str, list[dict[str, float]]]) -> None:
    middle = lambda form, name: statistics.median(run[name] for run in found[form])
    first = next(iter(found.values()))[0]
    numbers = {name: value for name, value in first.items() if not name.endswith("_s")}
    print(", ".join(f"{name} = {value:.5g}" for name, value in numbers.items()))
    ours_s = middle("incrax", "job_s")
    for form, runs in found.items():
        others = [name for name in runs[0] if name not in ("job_s", "process_s")]
        own = [f"{name} {middle(form, name):.4g}" for name in others if _is_cost(name)]
        print(
            f"{form:24} {middle(form, 'job_s'):7.2f} s from first call to last result, "
            f"{middle(form, 'process_s'):7.2f} s with imports; "
            f"{middle(form, 'job_s') / ours_s:.2f} of incrax {', '.join(own)}"
        )


def _is_cost(name: str) -> bool:
    """Whether a number says how much a form did, not what it found."""
    return name.endswith("_s") or name == "effective draws"
