"""The environments of other libraries: made once under a cache folder, or not at all, with the
reason.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.suite.peers import Peer
from benchmarks.suite.running import Say, run_process

CACHE = "INCRAX_BENCHMARK_CACHE"
MARK = "requirements.sha256"
"""Written when an environment is whole."""


class UnavailableError(RuntimeError):
    """No environment could be made; the message is the reason."""


def cache_folder(given: Path | None = None) -> Path:
    """Where environments are kept: what is given, what the environment variable says, or the user's
    cache.
    """
    if given is not None:
        return given
    named = os.environ.get(CACHE)
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(named) if named else base / "incrax-benchmarks"


def find_python(versions: Iterable[str]) -> Path | None:
    """An interpreter of one of these versions: this one, one on the path, or one of pyenv's."""
    current = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in versions:
        if version == current:
            return Path(sys.executable)
        found = shutil.which(f"python{version}")
        places = sorted(root.glob(f"{version}.*/bin/python"))
        candidates = [*places[-1:], *([Path(found)] if found else [])]
        for candidate in candidates:
            if _runs(candidate, version):
                return candidate
    return None


def _runs(python: Path, version: str) -> bool:
    """Whether an interpreter starts and is of this version; a shim of pyenv may do neither."""
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
            == version
        )
    return False


def environment(peer: Peer, cache: Path, limit_s: float, say: Say) -> Path:
    """The interpreter of the peer's environment, which is made if it is not there or its
    requirements changed.

    Raises:
        UnavailableError: there is no Python for it, or it does not install.
    """
    folder = cache / "peers" / peer.name
    python, mark = folder / "bin" / "python", folder / MARK
    wanted = hashlib.sha256(peer.requirements.read_bytes()).hexdigest()
    if python.is_file() and mark.is_file() and mark.read_text() == wanted:
        return python
    base = find_python(peer.pythons)
    if base is None:
        raise UnavailableError(f"needs Python {' or '.join(peer.pythons)}; none of them was found")
    shutil.rmtree(folder, ignore_errors=True)
    say(f"making {folder} with {base}")
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--progress-bar",
        "off",
        "--no-input",
        "-r",
        str(peer.requirements),
    ]
    for command in ([str(base), "-m", "venv", str(folder)], install):
        ended = run_process(command, limit_s, say, with_output=True)
        if ended.is_late:
            raise UnavailableError(f"does not install in {limit_s:.0f} s")
        if ended.code:
            raise UnavailableError(f"does not install: {_reason(ended.errors)}")
    mark.write_text(wanted)
    return python


def _reason(errors: str) -> str:
    """The last line in which pip names an error."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("ERROR")]
    return (named or lines or ["it said nothing"])[-1][:300]
