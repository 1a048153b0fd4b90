"""What incrax runs on: versions, devices, settings, measured prices, what is known not to work
together; and what later processes start from.

In: the process, the cache folder. Out: tables, and findings that say what to do. It must not change
any setting.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from incrax import _cache_folder, _tables
from incrax._api import incremental
from incrax._table import Cell, Printable, Table, bytes_text, many, seconds_text
from incrax._tables import remembered_bytes
from incrax._tuning import is_disabled
from incrax._version import __version__
from incrax.engine.program.cost import calibrate
from incrax.engine.store.budget import default_budget_bytes

Severity = Literal["error", "warning", "note"]

OLDEST = (0, 10)
NEWEST = (0, 12)
"""Versions of JAX that the test suite runs on, from and to."""

PACKAGES = (
    "jax jaxlib numpy scipy jaxtyping iminuit optax optimistix equinox flax "
    "flowjax numpyro blackjax emcee pyarrow matplotlib"
).split()
SETTINGS = (
    "enable_x64 default_matmul_precision debug_nans debug_infs disable_jit "
    "compilation_cache_dir default_device"
).split()
PREFIXES = ("JAX_", "XLA_", "INCRAX_", "CUDA_VISIBLE_DEVICES")

NUM_CALLS = 300

_FAST_MATH = re.compile(r"enable_fast_math(=(true|1))?(?![\w=])", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """Something that is known to matter: how much, what was seen, and what to do."""

    severity: Severity
    seen: str
    advice: str


@dataclass(frozen=True, repr=False)
class Environment(Printable):
    """What incrax runs on.

    Fields:
        versions: of Python and of packages; None: not installed.
        machine: processor and system.
        devices: those of JAX.
        settings: of JAX.
        variables: of the process, where they matter.
        budget_bytes: bytes that saved values may take by default.
        program_bytes: estimated bytes of the programs that are remembered now.
        max_program_bytes: their bound, over all functions of this process.
        cache_folder: where later processes find what was learned; None: nowhere.
        figures: measured figures by name, in seconds or seconds per unit of work; empty if none
            were taken.
        findings: what is known not to work together.

    Example:
        >>> import incrax
        >>> found = incrax.environment(measure=False)
        >>> "jax" in found.versions, found.figures
        (True, {})
    """

    versions: Mapping[str, str | None]
    machine: Mapping[str, str]
    devices: tuple[str, ...]
    settings: Mapping[str, str]
    variables: Mapping[str, str]
    budget_bytes: int
    program_bytes: int
    max_program_bytes: int
    cache_folder: str | None
    figures: Mapping[str, float]
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is known that makes results wrong or calls fail."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def is_alarming(self) -> bool:
        """Whether something is known that matters."""
        return any(finding.severity != "note" for finding in self.findings)

    def summary(self) -> str:
        """Versions, and whether something is known not to work."""
        names = ("incrax", "jax", "python")
        versions = ", ".join(f"{name} {self.versions[name]}" for name in names)
        return f"{versions}: {many(len(self.findings), 'finding')}"

    def as_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return {**asdict(self), "is_sound": self.is_sound}

    def tables(self) -> list[Table]:
        """All of it for people."""
        installed = [(name, found) for name, found in self.versions.items() if found is not None]
        devices = [(f"device {n}", name) for n, name in enumerate(self.devices)]
        programs = f"about {bytes_text(self.program_bytes)}"
        settings = [
            *self.settings.items(),
            *self.variables.items(),
            ("default budget of saved values", bytes_text(self.budget_bytes)),
            ("remembered programs", f"{programs} of at most {bytes_text(self.max_program_bytes)}"),
            ("cache folder", self.cache_folder or "none, as INCRAX_REMEMBER=0"),
        ]
        figures = [(name, seconds_text(value)) for name, value in self.figures.items()]
        findings = [(f.severity, f.seen, f.advice) for f in self.findings]
        nothing = [("ok", "nothing is known that would not work together", "")]
        found = [
            Table("findings", ("", "seen", "what to do"), findings or nothing),
            Table("versions", ("package", "version"), installed),
            Table("machine", ("", ""), [*self.machine.items(), *devices]),
            Table("settings", ("", ""), settings),
            Table("measured", ("", ""), figures),
        ]
        return [table for table in found if table.rows]


def environment(*, measure: bool = True) -> Environment:
    """Versions, devices, settings and known incompatibilities; the first thing to look at, and to
    put in a report.

    Args:
        measure: also give the figures of the cost model, measured now or in an earlier process,
            and measure what calls cost.

    Returns:
        An `Environment`, which prints; `as_dict()` gives it to programs.

    Cost: starts JAX's runtime; with `measure`, about a second.

    Example:
        >>> import incrax
        >>> incrax.environment(measure=False).versions["incrax"] == incrax.__version__
        True
    """
    problem = _no_device()
    has_devices = problem is None
    names = {"python": platform.python_version(), "incrax": __version__}
    versions = {**names, **{name: _version(name) for name in PACKAGES}}
    return Environment(
        versions=versions,
        machine=_machine(has_devices=has_devices),
        devices=tuple(f"{d.platform}: {d.device_kind}" for d in jax.devices())
        if has_devices
        else (),
        settings={name: str(_setting(name)) for name in SETTINGS},
        variables={n: os.environ[n] for n in sorted(os.environ) if n.startswith(PREFIXES)},
        budget_bytes=default_budget_bytes() if has_devices else 0,
        program_bytes=remembered_bytes(),
        max_program_bytes=_tables.MAX_PROGRAM_BYTES,
        cache_folder=_cache_folder.path_text(),
        figures=_figures() if measure and has_devices else {},
        findings=tuple(
            _findings(versions) if problem is None else [problem, *_of_versions(versions)]
        ),
    )


def _setting(name: str) -> Any:
    return getattr(jax.config, f"jax_{name}", None)


def _no_device() -> Finding | None:
    """What is wrong where JAX finds nothing to run on."""
    try:
        jax.devices()
    except Exception as error:
        advice = "unset JAX_PLATFORMS, or install JAX for this device"
        return Finding(
            "error",
            f"JAX finds no device: {' '.join(str(error).split()) or type(error).__name__}",
            advice,
        )
    return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine(*, has_devices: bool) -> dict[str, str]:
    load = f"{os.getloadavg()[0]:.2g}" if hasattr(os, "getloadavg") else "not known"
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    processes = f"{jax.process_index()} of {jax.process_count()}" if has_devices else "not known"
    return {
        "system": system,
        "cores": str(os.cpu_count()),
        "load, 1 minute": load,
        "process": processes,
    }


# --- figures --------------------------------------------------------------------------------------


def _figures() -> dict[str, float]:
    prices = asdict(calibrate())
    names = {
        "flop_s": "cheap arithmetic, per element",
        "transcendental_s": "exp and the like, per element",
        "read_s": "reading, per byte",
        "write_s": "writing, per byte",
        "argument_s": "one more argument",
        "call_s": "a call",
        "kernel_s": "a kernel that is not fused",
        "dot_flop_s": "matrix products, per FLOP",
    }
    found = {names[name]: float(value) for name, value in prices.items()}
    x = jnp.arange(8.0)
    compiled = jax.jit(lambda a, x: a * x)
    ours = incremental(lambda a, x: a * x)
    found["a call of jax.jit"] = _each(lambda n: compiled(float(n), x))
    found["a call of incremental, one input changed"] = _each(lambda n: ours(float(n), x))
    found["a call of incremental, nothing changed"] = _each(lambda _: ours(1.0, x))
    return found


def _each(call: Callable[[int], Any]) -> float:
    """Median seconds of a call."""
    times = []
    for number in range(NUM_CALLS):
        start = time.perf_counter()
        jax.block_until_ready(call(number))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# --- findings -------------------------------------------------------------------------------------


def _findings(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    yield from _of_versions(versions)
    yield from _of_settings()
    yield from _of_flags(versions)


def _of_versions(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    found = _numbers(versions["jax"])
    lib = _numbers(versions["jaxlib"])
    if found[:2] < OLDEST:
        yield Finding(
            "error", f"JAX {versions['jax']} is older than 0.10", "pip install --upgrade jax"
        )
    if found[:2] > NEWEST:
        advice = "if something fails, try an older JAX, and report it with this page"
        yield Finding(
            "warning", f"JAX {versions['jax']} is newer than what was tested, 0.10 to 0.12", advice
        )
    if found[:3] != lib[:3]:
        seen = f"jax {versions['jax']} with jaxlib {versions['jaxlib']}"
        yield Finding(
            "warning", seen, "install the two in the same version: pip install --upgrade jax jaxlib"
        )


def _of_settings() -> Iterator[Finding]:
    if is_disabled():
        seen = "INCRAX_DISABLE=1: every call is evaluated from scratch"
        yield Finding("warning", seen, "unset the variable")
    if _setting("disable_jit"):
        seen = "jit is disabled: nothing is compiled or saved"
        yield Finding("warning", seen, "unset JAX_DISABLE_JIT")
    for name in ("debug_nans", "debug_infs"):
        if _setting(name):
            seen = (
                f"{name} is on: only the whole function is run, since JAX would check saved values"
            )
            yield Finding("warning", seen, "turn it off when the error is found")
    if not _setting("enable_x64"):
        advice = 'jax.config.update("jax_enable_x64", True) before anything else, if a fit needs more than 6 digits'
        yield Finding("note", "arrays are float32", advice)


def _of_flags(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    flags = os.environ.get("XLA_FLAGS", "")
    if _FAST_MATH.search(flags):
        advice = (
            "remove it: NaN tests and the order of sums are not kept, so that equal inputs may "
            "give other bits"
        )
        yield Finding("error", f"XLA_FLAGS has a fast-math flag: {flags}", advice)
    num_devices = jax.local_device_count() if jax.default_backend() == "cpu" else 1
    if num_devices >= 4 and _numbers(versions["jax"])[:2] == (0, 10):
        seen = (
            f"{num_devices} CPU devices on JAX {versions['jax']}, where many programs with "
            "collectives may hang"
        )
        yield Finding("warning", seen, "use 2 devices, or JAX 0.12")


def _numbers(version: str | None) -> tuple[int, ...]:
    """The leading numbers of a version."""
    parts = itertools.takewhile(str.isdigit, (version or "").split("."))
    return tuple(map(int, parts))


# --- what later processes start from --------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class CacheFolder(Printable):
    """The files of the cache folder.

    Fields:
        path: of the folder; None where nothing is kept, as `INCRAX_REMEMBER=0`.
        files: name, what it is about, bytes, and days since it was written, of each, latest first.
        num_deleted: files that were deleted for this report.
        num_programs, program_bytes: of compiled programs that JAX keeps there; see
            `incrax.keep_programs`.
    """

    path: str | None
    files: tuple[_cache_folder.File, ...]
    num_deleted: int = 0
    num_programs: int = 0
    program_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.num_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        files = [file._asdict() for file in self.files]
        return {**asdict(self), "files": files, "num_bytes": self.num_bytes}

    def summary(self) -> str:
        """Where it is, and how much is there."""
        deleted = f", {self.num_deleted} deleted" if self.num_deleted else ""
        where = self.path or "nowhere, as INCRAX_REMEMBER=0"
        return f"{where}: {many(len(self.files), 'file')}, {bytes_text(self.num_bytes)}{deleted}"

    def tables(self) -> list[Table]:
        """All of it for people."""
        rows: list[tuple[Cell, ...]] = [
            (file.about, bytes_text(file.num_bytes), file.days, file.name) for file in self.files
        ]
        if self.num_programs:
            about = f"{self.num_programs} compiled programs of JAX"
            rows.append((about, bytes_text(self.program_bytes), None, _cache_folder.PROGRAMS))
        return [Table("", ("about", "size", "days old", "file"), rows)]


def cache_folder(*, clear: bool = False) -> CacheFolder:
    """What was learned of functions and of this machine, kept for later processes, and programs
    that JAX keeps for `keep_programs`.

    Args:
        clear: delete all of it first.

    Returns:
        A `CacheFolder`, which prints; `as_dict()` gives it to programs.

    Cost: reads each file, some hundred bytes.

    Example:
        >>> import incrax
        >>> incrax.cache_folder().num_deleted
        0
    """
    num_deleted = _cache_folder.clear() if clear else 0
    programs = _cache_folder.programs()
    return CacheFolder(
        _cache_folder.path_text(),
        tuple(_cache_folder.files()),
        num_deleted,
        len(programs),
        sum(path.stat().st_size for path in programs),
    )
