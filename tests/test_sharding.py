"""Inputs sharded over several devices: `sharding_cases.py`, in processes that have four."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "sharding_cases.py"
FOUR_DEVICES = (
    "--xla_force_host_platform_device_count=4 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=300"
)
"""The second flag is for busy machines: devices that wait for each other too long end the
process.
"""

LIMIT_S = 900


def run_cases(choice):
    """Run some of the cases; the exit code and what was printed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "XLA_"))
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        str(CASES),
        "-k",
        choice,
    ]
    done = subprocess.run(
        command,
        cwd=CASES.parent.parent,
        env={**environment, "XLA_FLAGS": FOUR_DEVICES, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def check_cases(choice):
    code, printed = run_cases(choice)
    assert code == 0, printed
    assert " passed" in printed
    assert " failed" not in printed


def test_a_case_passes_on_four_devices():
    check_cases("compared_by_identity and auto")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "choice", ["explicit", "not explicit"], ids=["meshes in types", "all others"]
)
def test_every_case_passes_on_four_devices(choice):
    check_cases(choice)
