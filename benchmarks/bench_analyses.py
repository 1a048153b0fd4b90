"""Question: how long do real analyses take, by the tool of their field, by jax.jit, by incrax?

The scripts of `examples/analyses`: each form in fresh processes, by turns, from the first call to
the last result, with compiling and all that is learned; forms that do not agree are an error. Of
the model of NumPyro: the seconds for a thousand effective draws of the worst parameter. A script
whose library is not installed is left out. No target: reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from harness import JIT, OURS, Line, Options

EXAMPLES = Path(__file__).parents[1] / "examples"
OWN = "its own tool"
QUICK = "pulsar_noise"
"""Needs JAX alone."""

ANALYSES = {
    "pyhf_workspace": "33 parameters: fit, scan of 21 points, 64 impacts",
    "tinygp_data": "700 points: 2,000 data sets at one kernel, then 120 noises",
    "diffrax_theory": "a stiff theory at 41 points, 16 nuisance parameters fitted at each",
    "pulsar_noise": "30 pulsars under vmap, 1,000 times each: 1,200 steps of a chain",
    "ampform_couplings": "25,000 events: four complex couplings, then 60 values of a width",
    "numpyro_radon": "85 counties, 20,000 homes: a thousand effective draws (own tool: NUTS)",
    "zfit_tutorial": "20,000 events: Minuit, Hesse, MINOS of four parameters, a contour",
    "flowjax_background": "10,000 events, a flow as background: its fit, then 4,000 steps",
    "phylogeny_brca1": "55 mammals, 2,762 patterns: 32,400 steps over the branches",
}
"""By script: what it does."""
OTHER_FORMS = ("NUTS on our potential",)
"""Forms that say nothing of the home tool or of incrax alone."""


def output(command: Sequence[str]) -> str:
    """What a script prints; it finds nothing that earlier processes learned or compiled."""
    env = {**os.environ, "INCRAX_REMEMBER": "0"}
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=env
    )
    if ended.returncode:
        raise RuntimeError(f"{command[0]}: {ended.stderr[-2000:]}")
    return ended.stdout


def of_an_analysis(name: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of each form, the home tool under one name; empty where its library is missing."""
    script = EXAMPLES / "analyses" / f"{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "runs.json"
        printed = output([str(script), "--rounds", str(rounds), "--json", str(record)])
        if not record.exists():
            print(f"{name}: {printed.strip()}", file=sys.stderr)
            return {}
        runs: Mapping[str, list[dict[str, Any]]] = json.loads(record.read_text(encoding="utf-8"))
    named = lambda form: form if form in (JIT, OURS) else OWN
    return {
        named(form): [_seconds(run) for run in each]
        for form, each in runs.items()
        if form not in OTHER_FORMS
    }


def _seconds(run: Mapping[str, float]) -> float:
    """Of the job, or for a thousand effective draws where a run says how many it made."""
    return run["job_s"] * 1_000 / run.get("effective draws", 1_000)


def lines(options: Options) -> Iterator[Line]:
    """A line for each script; in a quick run one alone."""
    for name, words in ANALYSES.items():
        case = f"{name}: {words}"
        if options.only not in case or (options.quick and name != QUICK):
            continue
        found = of_an_analysis(name, options.rounds)
        if found:
            timings = {form: harness.summary(seconds) for form, seconds in found.items()}
            yield harness.timing_line(case, timings)


def main() -> None:
    """All analyses whose libraries are installed."""
    options = harness.start(__doc__, rounds=3, quick_rounds=1)
    harness.report("Analyses as whole jobs", lines(options), options)


if __name__ == "__main__":
    main()
