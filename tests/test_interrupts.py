"""Ctrl-C ends every command with exit code 130, without a traceback or a crash, whatever runs at
that moment.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

import incrax
from incrax import _interrupts
from incrax.cli import demo

pytest.importorskip("pty")

MISSING = [name for name in demo.NEEDED if importlib.util.find_spec(name) is None]
needs_demo = pytest.mark.skipif(bool(MISSING), reason=f"the demo needs {', '.join(MISSING)}")

LIMIT_S = 120
"""Generous: a busy machine compiles for long, and what hangs must end as well."""

TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])) % 256)"
"""Runs a command under a terminal of its own; what comes in on standard input is typed there."""

DEMO = ("demo", "--no-plot", "--no-compare", "--rows", "10000", "--sweeps", "5000")


class Ended(NamedTuple):
    code: int
    shown: str


def interrupted(
    *arguments: str, when: str, after_s: float = 0.0, options: tuple[str, ...] = (), where: Path
) -> Ended:
    """Press Ctrl-C some seconds after a text was shown."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(incrax.__file__).parents[1]),
        "TERM": "xterm",
    }
    command = [sys.executable, "-c", TERMINAL, sys.executable, *options, "-m", "incrax", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=where,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        shown = b""
        try:
            while when.encode() not in shown:
                some = os.read(process.stdout.fileno(), 65536)
                assert some, f"it ended before it showed {when!r}: {shown.decode()}"
                shown += some
            time.sleep(after_s)
            process.stdin.write(b"\x03")
            process.stdin.flush()
            rest, _ = process.communicate(timeout=LIMIT_S)
        except BaseException:
            process.kill()  # the terminal hangs up, which ends the command
            raise
    return Ended(process.returncode, (shown + rest).decode(errors="replace"))


def check(ended: Ended) -> None:
    assert ended.code == 130
    assert "interrupted" in ended.shown
    for word in ("Traceback", "KeyboardInterrupt", "Fatal", "Exception"):
        assert word not in ended.shown


@pytest.mark.parametrize(
    "module", ["jaxlib.cpu_feature_guard", "jax._src.config", "jax._src.lax.lax", "jax.numpy"]
)
def test_while_modules_are_imported(tmp_path, module):
    check(interrupted("cache", when=f" {module}\r\n", options=("-X", "importtime"), where=tmp_path))


@needs_demo
@pytest.mark.parametrize(
    ("when", "after_s"),
    [
        pytest.param("arrival delays", 0.0, id="as the first program is traced"),
        pytest.param("0%", 1.0, id="as the gradient is compiled"),
        pytest.param("mode found", 0.0, id="after the fit"),
        pytest.param("sampling", 1.0, id="as the sweep is compiled"),
        pytest.param("chain", 0.5, id="in the chain"),
    ],
)
def test_in_the_demo(tmp_path, when, after_s):
    check(interrupted(*DEMO, when=when, after_s=after_s, where=tmp_path))


@pytest.mark.parametrize(
    ("original", "arguments", "expected"),
    [
        (["python", "-m", "incrax", "demo"], ["-m", "demo"], True),
        (["python", "-X", "dev", "-mincrax"], ["-m"], True),
        (["python", "/usr/bin/incrax", "demo"], ["/usr/bin/incrax", "demo"], True),
        (["python", "bin/incrax.exe", "demo"], ["bin/incrax.exe", "demo"], True),
        (["python", "-m", "fitting", "incrax"], ["-m", "incrax"], False),
        (["python", "-c", "import incrax", "incrax"], ["-c", "incrax"], False),
        (["python", "script.py"], ["script.py"], False),
        (["python"], [""], False),
        (["python"], ["a", "b", "c"], False),
        ([], [], False),
    ],
)
def test_only_the_command_line_is_watched(monkeypatch, original, arguments, expected):
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", arguments)
    assert _interrupts.is_command() is expected


def test_whoever_imports_the_library_keeps_the_own_handler():
    found = (
        "import signal, incrax; print(signal.getsignal(signal.SIGINT) is "
        "signal.default_int_handler)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(incrax.__file__).parents[1])}
    command = [sys.executable, "-c", found]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=True
    )
    assert done.stdout == "True\n"
