"""What incrax runs on: versions, devices, settings; and what later processes start from.

In: the process, the cache folder. Out: tables. It must not change any setting.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from typing import Any

import jax

from incrax import _cache_folder, _tables
from incrax._table import Cell, Printable, Table, bytes_text, many
from incrax._tables import remembered_bytes
from incrax._version import __version__
from incrax.engine.store.budget import default_budget_bytes

PACKAGES = frozenset(
    "jax jaxlib numpy scipy iminuit optax optimistix equinox flax flowjax numpyro blackjax".split()
)
SETTINGS = ("enable_x64", "debug_nans", "disable_jit", "compilation_cache_dir", "default_device")
PREFIXES = ("JAX_", "XLA_", "INCRAX_", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True, repr=False)
class Environment(Printable):
    """What incrax runs on.

    Fields:
        versions: of Python and of packages that are installed.
        devices: those of JAX.
        settings: of JAX.
        variables: of the process, where they matter.
        budget_bytes: bytes that saved values may take by default.
        program_bytes: estimated bytes of the programs that are remembered now.
        max_program_bytes: their bound, over all functions of this process.
        cache_folder: where later processes find what was learned; None: nowhere.

    Example:
        >>> import incrax
        >>> found = incrax.environment()
        >>> "jax" in found.versions, found.program_bytes <= found.max_program_bytes
        (True, True)
    """

    versions: Mapping[str, str]
    devices: tuple[str, ...]
    settings: Mapping[str, str]
    variables: Mapping[str, str]
    budget_bytes: int
    program_bytes: int
    max_program_bytes: int
    cache_folder: str | None

    def summary(self) -> str:
        """Versions, and the first device."""
        names = ("incrax", "jax", "python")
        versions = ", ".join(f"{name} {self.versions[name]}" for name in names)
        return f"{versions}; {self.devices[0]}"

    def as_dict(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self)

    def tables(self) -> list[Table]:
        """All of it for people."""
        programs = f"about {bytes_text(self.program_bytes)}"
        settings = [
            *((f"device {n}", name) for n, name in enumerate(self.devices)),
            *self.settings.items(),
            *self.variables.items(),
            ("default budget of saved values", bytes_text(self.budget_bytes)),
            ("remembered programs", f"{programs} of at most {bytes_text(self.max_program_bytes)}"),
            ("cache folder", self.cache_folder or "none, as INCRAX_REMEMBER=0"),
        ]
        return [
            Table("versions", ("package", "version"), [*self.versions.items()]),
            Table("settings", ("", ""), settings),
        ]


def environment() -> Environment:
    """Versions, devices, settings, and bounds of memory: the first thing to look at, and to put in
    a report.

    Returns:
        An `Environment`, which prints; `as_dict()` gives it to programs.

    Cost: starts JAX's runtime, and reads what is installed.

    Example:
        >>> import incrax
        >>> incrax.environment().versions["incrax"] == incrax.__version__
        True
    """
    installed = {each.name: each.version for each in distributions() if each.name in PACKAGES}
    settings = {name: str(getattr(jax.config, f"jax_{name}", None)) for name in SETTINGS}
    cores = f"{os.cpu_count()} cores, {platform.platform()}"
    return Environment(
        {"python": platform.python_version(), "incrax": __version__, **installed},
        tuple(f"{each.platform}: {each.device_kind}, {cores}" for each in jax.devices()),
        settings,
        {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)},
        default_budget_bytes(),
        remembered_bytes(),
        _tables.MAX_PROGRAM_BYTES,
        _cache_folder.path_text(),
    )


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
            (file.about, bytes_text(file.num_bytes), round(file.days, 1), file.name)
            for file in self.files
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
