"""What later processes start from, as a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from incrax import _cache_folder
from incrax._table import Cell, Printable, Table, bytes_text, many


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
