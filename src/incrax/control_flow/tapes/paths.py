"""Paths: one recorded way through a function each, its compiled programs, and what must run before
them; and tapes, which know of the paths of one signature which to expect, and which to try where
one is wrong.

In: a recording; leaves. Out: results, with the number of the first guard that fails. They must not
know about signatures or trees of arguments.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax

from incrax import _jax
from incrax._context import context_key
from incrax._program import STATEFUL, OtherTypesError, Program, Values, evaluator, has_type
from incrax._table import Counters
from incrax.control_flow.tapes.guards import Guard, first_failing, key_of
from incrax.control_flow.tapes.recording import Recording, effectless
from incrax.engine.inputs.signature import Function, with_names
from incrax.engine.program.simplify import drop_dead, inline
from incrax.errors import NotReproducibleError

MAX_EMBEDDED_BYTES = 1 << 14
"""Larger constants are handed to programs as arguments: embedded ones cost compile time."""


@dataclass(repr=False)
class TapeStats(Counters):
    """Counts since the function was made.

    Fields:
        calls: how often it was called.
        hits: calls that the expected path answered.
        misses: calls that another recorded path answered, or none.
        recordings: paths recorded.
        compiles: programs compiled.
        checks: programs of guards alone that ran.
        transparent: calls under another transformation.
        eager: calls evaluated operation by operation because there were too many paths.
        aborted: calls that raised.

    Example:
        >>> import incrax
        >>> f = incrax.guarded(lambda x: x if x > 0 else -x)
        >>> values = f(1.0), f(-1.0), f(-2.0)
        >>> f.stats.calls, f.stats.recordings
        (3, 2)
    """

    calls: int = 0
    hits: int = 0
    misses: int = 0
    recordings: int = 0
    compiles: int = 0
    checks: int = 0
    transparent: int = 0
    eager: int = 0
    aborted: int = 0


class Path:
    """A straight-line program, the guards that it rests on, and how often it was right.

    Promise: where all guards hold, `run(leaves)` gives the results that the function gives at
    `leaves`.
    """

    hits: int = 0
    misses: int = 0
    record_s: float = 0.0
    compile_s: float = 0.0
    is_doubted: bool = False
    """Whether another path than expected followed last."""
    preferred_at: int = 0
    incremental: Any = None

    def __init__(self, recording: Recording, out_tree: Any, stats: TapeStats) -> None:
        self.program: Program = drop_dead(recording.program)
        self.guards: tuple[Guard, ...] = recording.guards
        self.num_guards: int = len(self.guards)
        self.out_tree = out_tree
        self.successor = self
        self.avals: tuple[Any, ...] = tuple(var.aval for var in self.program.invars)
        self._stats = stats
        self._num_results = recording.num_results
        sizes = [_jax.aval_bytes(var.aval) for var in self.program.constvars]
        self._lifted = [n for n, size in enumerate(sizes) if size > MAX_EMBEDDED_BYTES]
        self.consts: tuple[Any, ...] = tuple(self.program.consts[n] for n in self._lifted)
        self.needs_check: bool = bool(self.guards) and any(map(_is_dangerous, self.program.eqns))
        self.is_simple: bool = not self.needs_check
        self._config = context_key()
        self.run: Function = jax.jit(self._checked(self._run, of_config=True))
        """`(consts, *leaves) -> (results, number of the first guard that fails)`."""
        self.results: Function = jax.jit(self._checked(self._results))
        """`(consts, *leaves) -> results`, where the guards are known to hold."""
        self._values: dict[int, Any] = {}

    # --- programs ---------------------------------------------------------------------------------

    def _checked(self, run: Function, *, of_config: bool = False) -> Function:
        """A function to compile, which refuses other types than those recorded; so does each call
        that compiles.
        """

        def traced(consts, *leaves):
            is_same = len(leaves) == len(self.avals) and all(
                map(has_type, map(jax.typeof, leaves), self.avals)
            )
            if not is_same or (of_config and context_key() != self._config):
                raise OtherTypesError
            self._stats.compiles += 1
            return run(consts, *leaves)

        return traced

    def _evaluated(self, program: Program, lifted: Values, leaves: Any) -> list[Any]:
        """What a program made of this path's gives, with the constants that were handed in."""
        consts = dict(enumerate(program.consts)) | dict(zip(self._lifted, lifted, strict=True))
        return evaluator(program)(tuple(consts.values()), *leaves)

    def _run(self, consts: Any, *leaves: Any) -> tuple[list[Any], Any]:
        values = self._evaluated(self.program, consts, leaves)
        return values[: self._num_results], first_failing(self.guards, values[self._num_results :])

    def _results(self, consts: Any, *leaves: Any) -> list[Any]:
        return self._evaluated(self.program, consts, leaves)[: self._num_results]

    def be_incremental(self, make: Function, name: str, leaf_names: Sequence[str]) -> None:
        """Evaluate results by `make(function of flat leaves)` from now on."""

        def path(*leaves):
            return self._results(self.consts, *leaves)

        path.__name__ = name
        self.incremental = make(with_names(path, leaf_names))
        self.is_simple = False

    # --- a call -----------------------------------------------------------------------------------

    def attempt(self, leaves: Values) -> tuple[int, Any]:
        """The number of the first guard that fails, and the results if none does; guards alone
        first where running the wrong path could be noticed.
        """
        if self.is_simple and not _jax.checks_values():
            results, failing = self.run(self.consts, *leaves)
            return (int_of(failing) if self.num_guards else 0), results
        failing = self.first_failing(leaves)
        return failing, self._known_results(leaves) if failing == self.num_guards else None

    def first_results(self, leaves: Values) -> Any:
        """The results of a path that was just recorded; its compilation is timed."""
        begin = time.perf_counter()
        if self.is_simple:
            results, _ = self.run(self.consts, *leaves)
        else:
            results = self._known_results(leaves)
        self.compile_s = self.compile_s or time.perf_counter() - begin
        return results

    def _known_results(self, leaves: Values) -> Any:
        """The results where the guards are known to hold."""
        if self.incremental is not None:
            return self.incremental(*leaves)
        return self.results(self.consts, *leaves)

    # --- guards alone -----------------------------------------------------------------------------

    def first_failing(self, leaves: Values) -> int:
        """The number of the first guard that fails, found without effects; `num_guards` if all
        hold.

        Guards are evaluated in stages: a loop that may not end starts when the guards before it are
        known to hold.
        """
        for start, stop, program in self.stages:
            self._stats.checks += 1
            failing = start + int_of(program(self.consts, *leaves))
            if failing < stop:
                return failing
        return self.num_guards

    @functools.cached_property
    def stages(self) -> list[tuple[int, int, Any]]:
        """The programs of guards alone, each with the numbers of its first guard and the next's.

        Raises:
            GuardOnEffectError: a guard needs an effect.
        """
        slices = [self._slice(n, n + 1) for n in range(self.num_guards)] if self.needs_check else []
        loops = [{id(eqn) for eqn in x.eqns if _is_dangerous(eqn)} for x in slices]
        later = [n for n in range(1, len(loops)) if not loops[n] <= loops[n - 1]]
        ends = [0, *later, self.num_guards] if self.guards else []
        return [(a, b, self._check_of(a, b)) for a, b in itertools.pairwise(ends)]

    def _check_of(self, start: int, stop: int) -> Any:
        # On the device: to compare values on the host takes 7 us for each guard.
        program = self._slice(start, stop)
        guards = self.guards[start:stop]
        check = lambda consts, *xs: first_failing(guards, self._evaluated(program, consts, xs))
        return jax.jit(self._checked(check))

    def _slice(self, start: int, stop: int) -> Program:
        """The program of what some guards are about, without effects."""
        opened = self._opened
        symbols = opened.outvars[self._num_results :][start:stop]
        return opened.with_eqns(effectless(opened.eqns, symbols), tuple(symbols))

    @functools.cached_property
    def _opened(self) -> Program:
        return inline(self.program)

    def key_at(self, number: int, leaves: Values) -> Any:
        """What guard `number` would learn at these leaves, where all before it hold."""
        if number not in self._values:
            program = self._slice(number, number + 1)
            run = lambda consts, *xs: self._evaluated(program, consts, xs)
            self._values[number] = jax.jit(self._checked(run))
        (value,) = self._values[number](self.consts, *leaves)
        return key_of(self.guards[number].kind, value)


def int_of(x: jax.Array) -> int:
    """The number, not negative, in an integer scalar that a program has just made."""
    try:  # the bytes where they lie: `x.item()` makes an array of NumPy first, some microseconds
        return int.from_bytes(cast(Any, x), sys.byteorder)
    except (BufferError, TypeError, RuntimeError):  # not on a processor; or what its program raised
        return int(x)


def _is_dangerous(eqn: Any) -> bool:
    """Whether running this on a wrong path could be noticed: effects, loops that may not end, code
    on the host.
    """
    return any(
        each.effects
        or each.primitive.name in ("while", "ffi_call", *STATEFUL)
        or _jax.calls_host(each)
        for each in _jax.with_inner([eqn])
    )


# --- the paths of one signature -------------------------------------------------------------------

Attempt = Callable[[Path], tuple[int, Any]]
"""Try a path: the number of its first guard that fails, and its results if none does."""


class Tape:
    """Paths of one signature under one state of what the function captures.

    Invariant: two paths meet the same guards up to the first whose outcomes differ, and there is
    one.
    """

    def __init__(self, signature: Any, captured: Any, stats: TapeStats) -> None:
        self.signature = signature
        self.captured = captured
        self.treedef = signature.treedef
        self.all_dynamic = all(signature.is_dynamic)
        self.paths: list[Path] = []
        self.stats = stats
        self.likely: Path | None = None
        """The path to try first."""
        self.latest: Path | None = None
        """The path of the latest call."""
        self._turn = 0

    def add(self, path: Path) -> Path:
        """Add a path; returns the one that is there already if one has its outcomes.

        Raises:
            NotReproducibleError: the function is not a function of what it was seen to read.
        """
        for other in self.paths:
            number = _first_difference(path, other)
            if number == path.num_guards == other.num_guards:
                return other
            ours = path.guards[number:]
            theirs = other.guards[number:]
            if not ours or not theirs or ours[0].site != theirs[0].site:
                place = ours[0].place if ours else f"{theirs[0].place}, which was not reached"
                raise NotReproducibleError(
                    f"`guarded({self.captured.name})` went another way than before although all it "
                    f"had read was the same: at {place}. It depends on something that is no "
                    "argument and was not seen to be captured: a file, an iterator, an object "
                    "inside an installed package. Nothing was recorded; paths recorded before are "
                    "as they were. Pass it as an argument, or as `static=`."
                )
        self.paths.append(path)
        self._prefer(path)
        return path

    def recent(self) -> Path | None:
        """The path that was right last where another was expected."""
        return _latest(self.paths)

    def search(
        self, path: Path | None, attempt: Attempt, leaves: Values
    ) -> tuple[Path, Any] | None:
        """The recorded path that is right at these leaves, and its results; `path` is tried first.

        None is also the answer where paths send the call to one another, their programs rounding a
        guard differently.
        """
        tried: list[Path] = []
        while path is not None and path not in tried:
            tried.append(path)
            failing, results = attempt(path)
            if failing == path.num_guards:
                return path, results
            path = self.after(path, failing, leaves)
        return None

    def after(self, path: Path, failing: int, leaves: Values) -> Path | None:
        """The path to try after one whose guard `failing` is the first that does not hold."""
        path.misses += 1
        guard = path.guards[failing]
        key = not guard.key if guard.kind == "bool" else path.key_at(failing, leaves)
        outcomes = [*(g.key for g in path.guards[:failing]), key]
        return _latest(
            [x for x in self.paths if [g.key for g in x.guards[: failing + 1]] == outcomes]
        )

    def count(self, path: Path, *, is_hit: bool) -> None:
        """Note which path was right, and expect the one that followed it before."""
        self.stats.hits += is_hit
        self.stats.misses += not is_hit
        before = self.latest
        if before is not None:
            if before.is_doubted and not is_hit:  # the second time in a row
                before.successor = path
            before.is_doubted = not is_hit
        if not is_hit:
            self._prefer(path)
        path.hits += 1
        self.latest = path
        self.likely = path.successor

    def _prefer(self, path: Path) -> None:
        self._turn += 1
        path.preferred_at = self._turn


def _first_difference(a: Path, b: Path) -> int:
    """The number of the first guard that two paths do not share with its outcome."""
    number = 0
    for ours, theirs in zip(a.guards, b.guards, strict=False):
        if (ours.site, ours.key) != (theirs.site, theirs.key):
            break
        number += 1
    return number


def _latest(paths: Sequence[Path]) -> Path | None:
    return max(paths, key=lambda path: path.preferred_at, default=None)
