"""What figures were measured on: processor, memory, versions, state of the source, and how busy the
machine was.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "incrax")
QUIET_SHARE = 0.15
"""Share of the processor's time that others may take on a quiet machine."""
SAMPLE_S = 1.0


def cpu_model() -> str:
    """The name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    names = [
        line.partition(":")[2].strip()
        for line in text.splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def describe() -> dict[str, str]:
    """Processor, cores, memory in GB and system."""
    found = {
        "cpu": cpu_model(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
    }
    with contextlib.suppress(ValueError, OSError, AttributeError):
        found["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB"
    return found


def versions(more: Iterable[str] = ()) -> dict[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit(folder: Path) -> str | None:
    """The commit that is checked out, with `+` where files differ from it; None outside of a
    checkout.
    """
    try:
        name = _git(folder, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=20
    ).stdout.strip()


def load() -> list[float] | None:
    """Load averages of 1, 5 and 15 minutes; None where the system has none."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (OSError, AttributeError):
        return None


def busy_share() -> float | None:
    """Share of the processors' time that others take just now, from two readings; None where it
    cannot be read.

    Unlike a load average it does not remember what this program itself did a minute ago.
    """
    first = _ticks()
    if first is None:
        return None
    time.sleep(SAMPLE_S)
    second = _ticks()
    assert second is not None
    passed = sum(second) - sum(first)
    idle = sum(second[3:5]) - sum(first[3:5])
    return round(1.0 - idle / passed, 3) if passed else None


def _ticks() -> list[int] | None:
    """user, nice, system, idle, iowait, irq, softirq, steal of all processors together."""
    try:
        return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None


def conditions(shares: Iterable[float | None]) -> str:
    """`quiet` where others took next to nothing each time it was asked, `busy`, or `unknown`."""
    known = [share for share in shares if share is not None]
    if not known:
        return "unknown"
    return "quiet" if max(known) <= QUIET_SHARE else "busy"
