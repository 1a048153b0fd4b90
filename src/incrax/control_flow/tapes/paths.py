"""A path: one recorded way through a function, its compiled programs, and what must run before
them.

In: a recording. Out: results with the number of the first guard that fails. It must not know other
paths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from incrax import _jax
from incrax._context import context_key
from incrax._program import STATEFUL, Program, evaluator
from incrax.control_flow.tapes.counts import TapeStats
from incrax.control_flow.tapes.guards import Guard, first_failing, key_of
from incrax.control_flow.tapes.recording import Recording, effectless
from incrax.engine.inputs.signature import with_names
from incrax.engine.program.simplify import drop_dead, inline

MAX_EMBEDDED_BYTES = 1 << 14
"""Larger constants are handed to programs as arguments: embedded ones cost compile time."""


class OtherTypes(Exception):
    """A path got arguments of other types than it was recorded for; never leaves the package."""


class Path:
    """A straight-line program, the guards that it rests on, and how often it was right.

    Law: where all guards hold, `run(leaves)` gives the results that the function gives at `leaves`.
    """

    def __init__(
        self, recording: Recording, avals: Sequence[Any], out_tree: Any, stats: TapeStats
    ) -> None:
        self.program = drop_dead(recording.program)
        self.guards: tuple[Guard, ...] = recording.guards
        self.num_guards = len(self.guards)
        self.out_tree = out_tree
        self.hits = self.misses = 0
        self.record_s = self.compile_s = 0.0
        self.successor = self
        self.doubted_at = -1
        self.nodes: list[Any] = []
        self.avals = tuple(avals)
        self._stats = stats
        self._num_results = recording.num_results
        consts = self.program.consts
        self._lifted = [
            n for n, const in enumerate(consts) if _jax.array_bytes(const) > MAX_EMBEDDED_BYTES
        ]
        self.consts = tuple(consts[n] for n in self._lifted)
        self.needs_check = bool(self.guards) and _is_dangerous(self.program.eqns)
        self.is_simple = not self.needs_check
        self.incremental: Any = None
        self._config = context_key()
        self.run = jax.jit(self._checked(self._run, of_config=True))
        """`(consts, *leaves) -> (results, number of the first guard that fails)`."""
        self.results = jax.jit(self._checked(self._results))
        """`(consts, *leaves) -> results`, where the guards are known to hold."""
        self._stages: list[tuple[int, Any]] | None = None
        self._values: dict[int, Any] = {}

    # --- programs ---------------------------------------------------------------------------------

    def _checked(self, run: Callable[..., Any], *, of_config: bool = False) -> Callable[..., Any]:
        """A function to compile, which refuses other types than those recorded; so does each call
        that compiles.
        """

        def traced(consts: Any, *leaves: Any) -> Any:
            is_same = len(leaves) == len(self.avals) and all(
                map(has_type, map(jax.typeof, leaves), self.avals)
            )
            if not is_same or (of_config and context_key() != self._config):
                raise OtherTypes
            self._stats.compiles += 1
            return run(consts, *leaves)

        return traced

    def _all_consts(self, program: Program, lifted: Sequence[Any]) -> tuple[Any, ...]:
        """The constants of a program that was made of this path's, with those that were handed
        in.
        """
        consts = list(program.consts)
        for number, const in zip(self._lifted, lifted, strict=True):
            consts[number] = const
        return tuple(consts)

    def _run(self, consts: Any, *leaves: Any) -> tuple[list[Any], Any]:
        values = evaluator(self.program)(self._all_consts(self.program, consts), *leaves)
        return values[: self._num_results], first_failing(self.guards, values[self._num_results :])

    def _results(self, consts: Any, *leaves: Any) -> list[Any]:
        return evaluator(self.program)(self._all_consts(self.program, consts), *leaves)[
            : self._num_results
        ]

    def be_incremental(
        self, make: Callable[..., Any], name: str, leaf_names: Sequence[str]
    ) -> None:
        """Evaluate results by `make(function of flat leaves)` from now on."""

        def path(*leaves: Any) -> list[Any]:
            return self._results(self.consts, *leaves)

        path.__name__ = name
        self.incremental = make(with_names(path, leaf_names))
        self.is_simple = False

    # --- guards alone -----------------------------------------------------------------------------

    def first_failing(self, leaves: Sequence[Any]) -> int:
        """The number of the first guard that fails, found without effects; `num_guards` if all
        hold.

        Guards are evaluated in stages: a loop that may not end starts when the guards before it are
        known to hold.
        """
        for start, program in self.prepare_check():
            self._stats.checks += 1
            failing = start + int_of(program(self.consts, *leaves))
            if failing < start + self._stage_length(start):
                return failing
        return self.num_guards

    def prepare_check(self) -> list[tuple[int, Any]]:
        """The programs of guards alone, each with the number of its first guard.

        Raises:
            GuardOnEffectError: a guard needs an effect.
        """
        if self._stages is None:
            self._stages = self._make_stages()
        return self._stages

    def _stage_length(self, start: int) -> int:
        starts = [first for first, _ in self._stages or ()] + [self.num_guards]
        return starts[starts.index(start) + 1] - start

    def _make_stages(self) -> list[tuple[int, Any]]:
        if not self.guards:
            return []
        opened = inline(self.program)
        symbols = opened.outvars[self._num_results :]
        starts = _stage_starts(opened, symbols)
        ends = [*starts[1:], self.num_guards]
        return [
            (a, self._slice(opened, symbols[a:b], self.guards[a:b]))
            for a, b in zip(starts, ends, strict=True)
        ]

    def _slice(self, opened: Program, symbols: Sequence[Any], guards: Sequence[Guard]) -> Any:
        program = opened.with_eqns(effectless(opened.eqns, symbols), tuple(symbols))

        def run(consts: Any, *leaves: Any) -> Any:
            return first_failing(
                guards, evaluator(program)(self._all_consts(program, consts), *leaves)
            )

        return jax.jit(self._checked(run))

    def key_at(self, number: int, leaves: Sequence[Any]) -> Any:
        """What guard `number` would learn at these leaves, where all before it hold."""
        if number not in self._values:
            opened = inline(self.program)
            symbols = (opened.outvars[self._num_results + number],)
            program = opened.with_eqns(effectless(opened.eqns, symbols), symbols)
            run = lambda consts, *xs: evaluator(program)(self._all_consts(program, consts), *xs)
            self._values[number] = jax.jit(self._checked(run))
        (value,) = self._values[number](self.consts, *leaves)
        return key_of(self.guards[number].kind, value)

    @property
    def floats(self) -> list[str]:
        """The places where a float became a constant."""
        return [g.place for g in self.guards if g.is_value_of_floats]


def int_of(x: jax.Array) -> int:
    """The number, not negative, in an integer scalar that a program has just made."""
    try:  # the bytes where they lie: `x.item()` makes an array of NumPy first, some microseconds
        return int.from_bytes(cast(Any, x), sys.byteorder)
    except (BufferError, TypeError, RuntimeError):  # not on a processor; or what its program raised
        return int(x)


def has_type(aval: Any, expected: Any) -> bool:
    """Whether two types are the same, weak types told apart."""
    return (
        aval.shape == expected.shape
        and aval.dtype == expected.dtype
        and getattr(aval, "weak_type", False) == getattr(expected, "weak_type", False)
    )


def _is_dangerous(eqns: Sequence[Any]) -> bool:
    """Whether running these on a wrong path could be noticed: effects, loops that may not end, code
    on the host.
    """
    return any(_is_dangerous_equation(eqn) for eqn in eqns)


def _is_dangerous_equation(eqn: Any) -> bool:
    if eqn.effects or eqn.primitive.name in STATEFUL or eqn.primitive.name in ("while", "ffi_call"):
        return True
    if _jax.calls_host(eqn):
        return True
    return any(_is_dangerous(body.eqns) for body in _jax.sub_bodies(eqn))


def _stage_starts(program: Program, symbols: Sequence[Any]) -> list[int]:
    """Where guards begin that need a loop which a guard before them, not checked yet, does not
    need.
    """
    loops = _loops_behind(program)
    starts = [0]
    shared = None
    for number, symbol in enumerate(symbols):
        needed = loops.get(symbol, frozenset()) if isinstance(symbol, _jax.Var) else frozenset()
        if shared is not None and not needed <= shared:
            starts.append(number)
            shared = None
        shared = needed if shared is None else shared & needed
    return starts


def _loops_behind(program: Program) -> dict[Any, frozenset[int]]:
    """The loops that may not end which each variable depends on."""
    behind: dict[Any, frozenset[int]] = {}
    for number, eqn in enumerate(program.eqns):
        own = frozenset([number]) if _is_dangerous_equation(eqn) else frozenset()
        found = own.union(
            *(behind.get(a, frozenset()) for a in eqn.invars if isinstance(a, _jax.Var))
        )
        behind.update((var, found) for var in eqn.outvars)
    return behind
