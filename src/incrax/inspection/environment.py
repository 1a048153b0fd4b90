"""What incrax runs on: versions, devices, settings, measured prices, and what is known not to work
together.

In: the process. Out: a table, and findings that say what to do. It must not change any setting.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from incrax._api import incremental
from incrax._cache_folder import path_text
from incrax._table import Printable, Table
from incrax._tables import max_program_bytes, remembered_bytes
from incrax._tuning import is_disabled
from incrax._version import __version__
from incrax.engine.program.cost import calibrate
from incrax.engine.store.budget import default_budget_bytes

Severity = Literal["error", "warning", "note"]

OLDEST = (0, 10)
NEWEST = (0, 12)
"""Versions of JAX that the test suite runs on, from and to."""

PACKAGES = (
    *(
        "jax",
        "jaxlib",
        "numpy",
        "scipy",
        "jaxtyping",
        "iminuit",
        "optax",
        "optimistix",
        "equinox",
        "flax",
    ),
    *("flowjax", "numpyro", "blackjax", "emcee", "pyarrow", "matplotlib"),
)
SETTINGS = (
    *(
        "jax_enable_x64",
        "jax_default_matmul_precision",
        "jax_debug_nans",
        "jax_debug_infs",
        "jax_disable_jit",
    ),
    *("jax_compilation_cache_dir", "jax_default_device"),
)
PREFIXES = ("JAX_", "XLA_", "INCRAX_", "CUDA_VISIBLE_DEVICES")

NUM_CALLS = 300

_FAST_MATH = re.compile(r"enable_fast_math(=(true|1))?(?![\w=])", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """Something that is known to matter: how much, what was seen, and what to do."""

    severity: Severity
    seen: str
    advice: str


@dataclass(frozen=True)
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

    def as_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return {**asdict(self), "is_sound": self.is_sound}

    def tables(self) -> list[Table]:
        """All of it for people."""
        versions = [
            (name, version) for name, version in self.versions.items() if version is not None
        ]
        places = [
            *self.machine.items(),
            *((f"device {n}", name) for n, name in enumerate(self.devices)),
        ]
        settings = [*self.settings.items(), *self.variables.items()]
        settings.append(("default budget of saved values", f"{self.budget_bytes / 1e6:.4g} MB"))
        used_mb = self.program_bytes / 1e6
        most_mb = self.max_program_bytes / 1e6
        settings.append(
            ("remembered programs", f"about {used_mb:.3g} MB of at most {most_mb:.4g} MB")
        )
        settings.append(("cache folder", self.cache_folder or "none, as INCRAX_REMEMBER=0"))
        figures = [(name, _seconds(value)) for name, value in self.figures.items()]
        findings = [(f.severity, f.seen, f.advice) for f in self.findings]
        nothing = [("ok", "nothing is known that would not work together", "")]
        return [
            Table("versions", ("package", "version"), versions),
            Table("machine", ("", ""), places),
            Table("settings", ("", ""), settings),
            *([Table("measured", ("", ""), figures)] if figures else []),
            Table("findings", ("", "seen", "what to do"), findings or nothing),
        ]


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
    versions = {
        "python": platform.python_version(),
        "incrax": __version__,
        **{name: _version(name) for name in PACKAGES},
    }
    return Environment(
        versions=versions,
        machine=_machine(has_devices=problem is None),
        devices=tuple(f"{d.platform}: {d.device_kind}" for d in jax.devices())
        if problem is None
        else (),
        settings={
            name.removeprefix("jax_"): str(getattr(jax.config, name, None)) for name in SETTINGS
        },
        variables={
            name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)
        },
        budget_bytes=default_budget_bytes() if problem is None else 0,
        program_bytes=remembered_bytes(),
        max_program_bytes=max_program_bytes(),
        cache_folder=path_text(),
        figures=_figures() if measure and problem is None else {},
        findings=tuple(
            _findings(versions) if problem is None else [problem, *_of_versions(versions)]
        ),
    )


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
    }
    names |= {
        "read_s": "reading, per byte",
        "write_s": "writing, per byte",
        "argument_s": "one more argument",
    }
    names |= {"dot_flop_s": "matrix products, per FLOP"}
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
    return sorted(times)[NUM_CALLS // 2]


def _seconds(value: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")):
        if value * factor >= 1.0:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e12:.3g} ps"


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
    if versions["flowjax"] is not None and found[:2] >= (0, 11):
        seen = f"FlowJAX {versions['flowjax']} on JAX {versions['jax']} was not tested"
        yield Finding("note", seen, "bijections of `incrax.bijectors` do the same and are tested")


def _of_settings() -> Iterator[Finding]:
    if is_disabled():
        yield Finding(
            "warning",
            "INCRAX_DISABLE=1: every call is evaluated from scratch",
            "unset the variable",
        )
    if getattr(jax.config, "jax_disable_jit", False):
        yield Finding(
            "warning", "jit is disabled: nothing is compiled or saved", "unset JAX_DISABLE_JIT"
        )
    for name in ("jax_debug_nans", "jax_debug_infs"):
        if getattr(jax.config, name, False):
            seen = (
                f"{name.removeprefix('jax_')} is on: only the whole function is run, since JAX "
                "would check saved values"
            )
            yield Finding("warning", seen, "turn it off when the error is found")
    if not getattr(jax.config, "jax_enable_x64", False):
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
    found = []
    for part in (version or "").split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)
