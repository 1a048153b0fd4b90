"""Chains on disk: what a run of compiled sweeps needs to go on as if it had not been interrupted.

In: places, records and random numbers of chains. Out: a file, and the same of it. It must not know
what is sampled.

Promise: a run that is taken up from a file gives the samples that it would have given, to the bit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from incrax.samplers.chain import Job, generator
from incrax.samplers.messages import other_checkpoint

EVERY_S = 10.0
"""Seconds between two writings; what a crash may cost."""


def saved_warmup(path: Any) -> int | None:
    """Sweeps of the warm-up of the run in a file; None: there is no file."""
    if path is None or not Path(os.fspath(path)).exists():
        return None
    with np.load(os.fspath(path), allow_pickle=False) as file:
        return int(json.loads(str(file["about"]))[1])


class Checkpoint:
    """A file that a run is written to now and then, and taken up from; None: there is none.

    `plan` is what the run is made of, as JSON has it.
    """

    def __init__(self, path: Any, plan: Any) -> None:
        self.path = None if path is None else Path(os.fspath(path))
        self.plan = plan
        self._last_s = time.perf_counter()

    def save(self, done: int, run: Any, rngs: Sequence[np.random.Generator], job: Job) -> None:
        """Write it, if it is time, or the end."""
        now_s = time.perf_counter()
        if self.path is None or (done < job.num_all and now_s - self._last_s < EVERY_S):
            return
        self._last_s = now_s
        whole, by_sample = _parts(run)
        num_samples = max(done - job.num_warmup, 0)
        leaves = [*whole, *(x[:num_samples] for x in by_sample)]
        arrays: dict[str, Any] = {f"array {k}": np.asarray(x) for k, x in enumerate(leaves)}
        states = [rng.bit_generator.state for rng in rngs]
        about = [*self._about(job), done, states]
        # Whole or not at all: a crash while it is written leaves the last one.
        part = self.path.with_name(self.path.name + ".part")
        with part.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)
        part.replace(self.path)

    def restore(self, run: Any, rngs: Sequence[np.random.Generator], job: Job) -> tuple[int, Any]:
        """How many sweeps are done, and the run after them; the generators go on as well.

        Raises:
            StartError: the file is of another run.
        """
        if self.path is None or not self.path.exists():
            return 0, run
        with np.load(self.path, allow_pickle=False) as file:
            *about, done, states = json.loads(str(file["about"]))
            saved = [file[f"array {k}"] for k in range(len(file.files) - 1)]
        if about != json.loads(json.dumps(self._about(job))) or done > job.num_all:
            raise other_checkpoint(str(self.path))
        for rng, state in zip(rngs, states, strict=True):
            rng.bit_generator.state = state
        whole, by_sample = _parts(run)
        count = len(whole)
        filled = [x.at[: len(y)].set(y) for x, y in zip(by_sample, saved[count:], strict=True)]
        return done, _joined(run, saved[:count], filled)

    def _about(self, job: Job) -> list[Any]:
        return [self.plan, job.num_warmup, generator(job.key).bit_generator.state]


def _parts(run: Any) -> tuple[list[Any], list[Any]]:
    """Arrays of a run: those that are written as a whole, and those that have a row a sample."""
    places, records, accepted = run
    return jax.tree.leaves((places, accepted)), jax.tree.leaves(
        [(each.samples, each.values) for each in records]
    )


def _joined(run: Any, whole: Sequence[Any], by_sample: Sequence[Any]) -> Any:
    """A run with other arrays."""
    places, records, accepted = run
    places, accepted = jax.tree.unflatten(jax.tree.structure((places, accepted)), whole)
    kept = [(each.samples, each.values) for each in records]
    kept = jax.tree.unflatten(jax.tree.structure(kept), by_sample)
    records = [
        each._replace(samples=samples, values=values)
        for each, (samples, values) in zip(records, kept, strict=True)
    ]
    return places, records, accepted
