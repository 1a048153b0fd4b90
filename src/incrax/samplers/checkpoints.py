"""Chains on disk: what a run of compiled sweeps needs to go on as if it had not been interrupted.

In: places, records and random numbers of chains. Out: a file, and the same of it. It must not know
what is sampled.

Promise: a run that is taken up from a file gives the samples that it would have given, to the bit.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np

from incrax import _jax
from incrax.samplers.chain import Job, generator
from incrax.samplers.messages import other_checkpoint

EVERY_S = 10.0
"""Seconds between two writings; what a crash may cost."""


def saved_warmup(path: Any) -> int | None:
    """Sweeps of the warm-up of the run in a file; None: there is no file."""
    if path is None or not Path(path).exists():
        return None
    return int(_about(Path(path))[1])


def _about(path: Path) -> list[Any]:
    """What a file says of its run.

    Raises:
        StartError: it is no checkpoint.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return json.loads(str(file["about"]))
    except (IsADirectoryError, TypeError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise other_checkpoint(str(path)) from error


def digest(arrays: Iterable[Any]) -> str:
    """Of types and bits, which stand for data that a file does not hold."""
    found = hashlib.sha256()
    for x in arrays:
        array = _jax.bits_on_host(x)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


class Checkpoint:
    """A file that a run is written to now and then, and taken up from; None: there is none.

    `plan` is what the run is made of, as JSON has it. Of a run, `whole` are arrays that are written
    as they are, `records` those with a row a sample.
    """

    def __init__(self, job: Job, plan: Any) -> None:
        self.path = None if job.checkpoint is None else Path(job.checkpoint)
        if self.path is not None:
            self._part = self.path.with_name(self.path.name + ".part")
            self._part.touch()  # a folder that is not there is an error now, not after hours
            self._part.unlink()
        self._job = job
        self._about = [plan, job.num_warmup, generator(job.key).bit_generator.state]
        self._last_s = time.perf_counter()

    def save(
        self, done: int, whole: Any, records: Any, rngs: Sequence[np.random.Generator]
    ) -> None:
        """Write it, if it is time, or the end."""
        now_s = time.perf_counter()
        is_time = done >= self._job.num_all or now_s - self._last_s >= EVERY_S
        if self.path is None or not is_time:
            return
        self._last_s = now_s
        num_samples = max(done - self._job.num_warmup, 0)
        rows = [x[:num_samples] for x in jax.tree.leaves(records)]
        arrays = {f"array {k}": x for k, x in enumerate([*jax.tree.leaves(whole), *rows])}
        states = [rng.bit_generator.state for rng in rngs]
        about: Any = np.array(json.dumps([*self._about, done, states]))
        # Whole or not at all: a crash while it is written leaves the last one.
        with self._part.open("wb") as file:
            np.savez(file, about=about, **arrays)
        self._part.replace(self.path)

    def restore(
        self, whole: Any, records: Any, rngs: Sequence[np.random.Generator]
    ) -> tuple[int, Any, Any]:
        """How many sweeps are done, and the run after them; the generators go on as well.

        Raises:
            StartError: the file is of another run.
        """
        if self.path is None or not self.path.exists():
            return 0, whole, records
        *about, done, states = _about(self.path)
        if about != json.loads(json.dumps(self._about)) or done > self._job.num_all:
            raise other_checkpoint(str(self.path))
        with np.load(self.path, allow_pickle=False) as file:
            saved = iter([file[f"array {k}"] for k in range(len(file.files) - 1)])
        for rng, state in zip(rngs, states, strict=True):
            rng.bit_generator.state = state
        filled = lambda x, rows: x.at[: len(rows)].set(rows)
        whole = jax.tree.map(lambda _: next(saved), whole)
        return done, whole, jax.tree.map(lambda x: filled(x, next(saved)), records)
