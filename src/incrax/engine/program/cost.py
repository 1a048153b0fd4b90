"""Stage 4, cost: FLOPs and bytes of an equation, and the seconds that a machine needs for them.

In: equations. Out: `Cost` per equation and estimated seconds under a `Calibration`. Estimates only
rank plans; the race between compiled plans has the last word. It must not know what is dirty.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _cache_folder, _jax
from incrax._jax import Equation
from incrax._program import read_vars, written_vars
from incrax.engine.program.nested import inner_bodies, num_turns
from incrax.primitives.entry import NOTHING, out_size
from incrax.primitives.table import entry_of, work_of


class Cost(NamedTuple):
    """What is computed and moved: FLOPs, transcendentals in exponentials, bytes, those written,
    integer operations.

    By the conventions of `primitives`; bytes are those of each equation on its own, as if nothing
    were fused.
    """

    flops: float
    transcendentals: float
    bytes: float
    bytes_written: float = 0.0
    int_ops: float = 0.0

    def __add__(self, other: object) -> Cost:
        """The cost of both, one after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(*map(float.__add__, map(float, self), map(float, other)))

    def __mul__(self, n: float) -> Cost:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The cost of `n` evaluations."""
        return Cost(*(float(part * n) for part in self))

    @property
    def operations(self) -> float:
        """FLOPs, with `TRANSCENDENTAL_FLOPS` for an exponential."""
        return self.flops + TRANSCENDENTAL_FLOPS * self.transcendentals

    @property
    def weight(self) -> tuple[float, float]:
        """What branches and rows are compared by: operations, those on integers too, then bytes."""
        return self.operations + self.int_ops, self.bytes


ZERO = Cost(0.0, 0.0, 0.0)

UNKNOWN_TRIPS = 100
"""Iterations assumed for a while loop, whose trip count no one knows before it runs."""

TRANSCENDENTAL_FLOPS = 10.0
"""FLOPs that a transcendental is worth, where branches are compared without a machine in mind."""

CALLBACK_S = 1e-4
"""Seconds to call the host from a program, whatever the function takes that it calls there."""

MIN_EQUATION_S = 1e-9
"""Seconds of an equation at least, so that of two plans that cost the same the shorter one wins."""

LOOP_KERNEL_SHARE = 0.04
"""Of the seconds that a kernel needs to start, those in each turn of a loop, whose kernels follow
each other without a return to the caller.
"""

LARGE = 2**17
"""Elements from which on XLA divides a fused equation, or a product, among the cores of a CPU."""


@dataclass(frozen=True)
class Calibration:
    """Seconds per unit of work on one machine and backend."""

    flop_s: float = 5e-11  # per cheap arithmetic element
    transcendental_s: float = 5e-10  # per transcendental element
    read_s: float = 2e-11  # per byte read
    write_s: float = 4e-11  # per byte written
    argument_s: float = 5e-7  # per extra argument of an executable
    dot_flop_s: float = 2e-11  # per matrix-product FLOP
    call_s: float = 1e-5  # per call of an executable, whatever it does
    kernel_s: float = 1e-6  # per kernel that it starts
    large_share: float = 0.5  # of the work on `LARGE` arrays, as the cores share it

    def seconds(self, eqn: Equation) -> float:
        """Estimated seconds of one equation inside a fused program."""
        inner = inner_bodies(eqn)
        if not inner:
            return self._own_seconds(eqn, self.kernel_s) + CALLBACK_S * _jax.calls_host(eqn)
        kernel_s = self.kernel_s * (LOOP_KERNEL_SHARE if inner[0].kind == "turn" else 1.0)
        inner_s = _folded(eqn, lambda each: self._own_seconds(each, kernel_s), 0.0, float)
        return MIN_EQUATION_S + inner_s + CALLBACK_S * num_host_calls(eqn)

    def _own_seconds(self, eqn: Equation, kernel_s: float) -> float:
        """The same of one that holds no others; each that is not fused is a kernel."""
        price = _price(eqn)
        entry = entry_of(eqn)
        flop_s = self.dot_flop_s if entry.is_product else self.flop_s
        apart_s = leaf_cost(eqn).bytes * self.read_s + kernel_s if entry.is_unfused else 0.0
        work_s = price.flops * flop_s + price.transcendentals * self.transcendental_s
        is_divided = entry.is_product or not entry.is_unfused
        if is_divided and out_size(eqn) >= LARGE:
            work_s *= self.large_share
        return MIN_EQUATION_S + work_s + apart_s

    def load_seconds(self, num_bytes: int) -> float:
        """Estimated seconds to hand a saved value to a program and read it there."""
        return self.argument_s + num_bytes * self.read_s

    def save_seconds(self, num_bytes: int) -> float:
        """Estimated seconds to return a value from a program instead of keeping it fused."""
        return self.argument_s + num_bytes * self.write_s


ACCELERATOR = Calibration(1e-13, 2e-12, 5e-13, 5e-13, 2e-6, 5e-14, kernel_s=5e-6, large_share=1.0)
"""From data sheets, not measured: 10 TFLOP/s, 2 TB/s, and 2 us to hand over an argument."""


def assumed_prices(num_devices: int) -> Calibration:
    """Built-in figures where nothing may be measured, for work that so many devices share."""
    prices = Calibration() if jax.default_backend() == "cpu" else ACCELERATOR
    work = ("flop_s", "transcendental_s", "read_s", "write_s", "dot_flop_s")
    return replace(prices, **{name: getattr(prices, name) / num_devices for name in work})


# --- calls to the host ----------------------------------------------------------------------------


def num_host_calls(eqn: Equation) -> int:
    """How often one evaluation calls the host at least, inner jaxprs included: a branch beside one
    that does not is most often a check, which nobody expects to fail.
    """
    return int(_folded(eqn, _jax.calls_host, 0, operator.neg))


def host_bytes(eqn: Equation) -> float:
    """Bytes that functions on the host take and return in one evaluation, of the branch with most;
    infinite for keys, which nothing remembers.
    """
    return _folded(eqn, _bytes_of_host, 0.0, float)


def _bytes_of_host(eqn: Equation) -> float:
    if not _jax.calls_host(eqn):
        return 0.0
    avals = [x.aval for x in (*eqn.invars, *eqn.outvars)]
    has_keys = any(_jax.is_key_dtype(aval.dtype) for aval in avals)
    return math.inf if has_keys else float(sum(map(_jax.aval_bytes, avals)))


# --- cost of one equation -------------------------------------------------------------------------


def equation_cost(eqn: Equation) -> Cost:
    """FLOPs, transcendentals, integer operations and bytes of one equation, those inside included.

    The dearest branch counts, and `UNKNOWN_TRIPS` turns where nobody knows better.
    """
    return _folded(eqn, leaf_cost, ZERO, operator.attrgetter("weight"))


def _folded(
    eqn: Equation, leaf: Callable[[Equation], Any], zero: Any, weight: Callable[[Any], Any]
) -> Any:
    """A cost, or another sum, of the equations inside, as often as they run, of branches the one of the
    largest weight; of an equation that holds no others by a rule.
    """
    inner = inner_bodies(eqn)
    if not inner:
        return leaf(eqn)
    costs = [
        sum((_folded(each, leaf, zero, weight) for each in part.body.eqns), zero) for part in inner
    ]
    if inner[0].kind == "branch":
        return max(costs, key=weight)
    return sum(costs, zero) * _assumed_turns(eqn)


def leaf_cost(eqn: Equation) -> Cost:
    """The same of an equation that holds no others; no work, but bytes, where its primitive is not
    registered.
    """
    work = work_of(eqn) or NOTHING
    written = float(sum(_jax.aval_bytes(var.aval) for var in written_vars(eqn)))
    return Cost(work.flops, work.transcendentals, _bytes_read(eqn) + written, written, work.int_ops)


def total_cost(eqns: Iterable[Equation]) -> Cost:
    """The cost of equations run one after the other."""
    return sum(map(equation_cost, eqns), ZERO)


def _assumed_turns(eqn: Equation) -> float:
    turns = num_turns(eqn)
    if turns is not None:
        return turns
    return eqn.params["spec"].capacity if eqn.primitive.name == _jax.LOOP else UNKNOWN_TRIPS


_SLICES = frozenset({"slice", "dynamic_slice", "gather"})


def _bytes_read(eqn: Equation) -> float:
    """Each input once, but literals; of an operand that is sliced or indexed, what is taken."""
    atoms = list(dict.fromkeys(read_vars(eqn)))
    sizes = [_jax.aval_bytes(atom.aval) for atom in atoms]
    if eqn.primitive.name in _SLICES and sizes and atoms[0] is eqn.invars[0]:
        sizes[0] = min(sizes[0], _jax.aval_bytes(eqn.outvars[0].aval))
    return float(sum(sizes))


# --- price of one equation ------------------------------------------------------------------------


def is_free(eqn: Equation) -> bool:
    """Whether an equation only moves or relabels data."""
    return entry_of(eqn).is_free


SCALAR_FACTORS = {
    **dict.fromkeys(("sin", "cos"), 7.0),
    **dict.fromkeys(("sinh", "cosh"), 4.0),
    "tanh": 1.5,
    **dict.fromkeys(("tan", "cbrt"), 5.0),
    **dict.fromkeys(("pow", "asin", "acos", "asinh", "acosh", "atanh", "lgamma"), 3.0),
    **dict.fromkeys(("atan", "atan2"), 10.0),
    **dict.fromkeys(("erf", "erfc"), 0.5),
}
"""Times what their weight in exponentials says, in double precision on a CPU, as measured. XLA
has vector code for an exponential, a logarithm and what is made of them; the others are called for
one element after the other.
"""

COMPLEX_QUOTIENT = 3.0
"""Times what its arithmetic says that a quotient of complex doubles takes, which XLA scales, with
branches, against overflow.
"""

_DOUBLE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})


def _price(eqn: Equation) -> Cost:
    """FLOPs weighed by their time, a step per result of a move, and transcendentals, of an equation
    that holds no others.
    """
    entry = entry_of(eqn)
    if entry.is_free:
        return ZERO
    work = work_of(eqn) or NOTHING
    steps = (work.flops + work.int_ops) * entry.additions
    transcendentals = work.transcendentals
    if not steps and not transcendentals:
        return Cost(out_size(eqn) * entry.additions, 0.0, 0.0)
    if eqn.outvars[0].aval.dtype in _DOUBLE:
        transcendentals *= SCALAR_FACTORS.get(eqn.primitive.name, 1.0)
    if eqn.primitive.name == "div" and eqn.outvars[0].aval.dtype == np.complex128:
        steps *= COMPLEX_QUOTIENT
    return Cost(steps, transcendentals, 0.0)


# --- calibration ----------------------------------------------------------------------------------

_calibrations: dict[tuple[str, bool], Calibration | None] = {}
"""By backend and precision; None where no earlier process has left one."""

_SIZE = 250_000
_TURNS = 8
_SHORT = 16_000
_SHORT_TURNS = 60
_TINY = 64
_KERNELS = 8
_REPEATS = 15
_MAX_S = 0.25
"""Runs in a row of which none was faster, after which the least seconds are believed, and seconds
after which they are anyway. On a busy machine the first 15 runs of a tiny program took 1 ms in place
of 10 us, after which nothing seemed worth a plan, here and in all later processes.
"""

_MAX_CALL_S = 5e-5
"""Seconds of a call of an executable, at most: more is another process's doing."""

_NOISE = 0.98
"""Of the least seconds so far: what is faster than this may not be the last."""

KERNEL = 4.0
"""Times what the smallest kernel takes to start: of gradients of 34 and 51, with more to read."""

_MAX_CORES = 4
"""Cores of a CPU that share the work on an array of `LARGE`, at most."""

WRITE_BY_READ = 2.5
"""Seconds per byte written, to memory that is new, relative to one read."""


def calibrate() -> Calibration:
    """Measure this machine's default backend once (a few tenths of a second) and remember the
    result, also for later processes.
    """
    key = _setting()
    found = _known(key)
    if found is None:
        with _jax.outside_traces():  # else JAX would write the probes down, not run them
            found = _calibrations[key] = _measure(np.dtype(np.float64 if key[1] else np.float32))
        data = {"about": "this machine", "prices": asdict(found)}
        _cache_folder.save(_cache_folder.key_of("machine", key), data)
    return found


def is_calibrated() -> bool:
    """Whether that was done, in this process or an earlier one."""
    return _known(_setting()) is not None


def _known(key: tuple[str, bool]) -> Calibration | None:
    if key not in _calibrations:
        _calibrations[key] = _read(_cache_folder.key_of("machine", key))
    return _calibrations[key]


def _read(key: str) -> Calibration | None:
    """What an earlier process measured."""
    data = _cache_folder.load(key)
    if data is None:
        return None
    try:
        found = Calibration(*(float(data["prices"][each.name]) for each in fields(Calibration)))
    except _cache_folder.UNUSABLE as error:
        _cache_folder.ignore(key, error)
        return None
    return found if all(0 < seconds < 1 for seconds in astuple(found)) else None


def _setting() -> tuple[str, bool]:
    return jax.default_backend(), jax.dtypes.canonicalize_dtype(float) == np.float64


def _measure(dtype: np.dtype) -> Calibration:
    """Time programs that differ in one kind of work; each figure is a difference of two of them.
    Arithmetic is timed where XLA does not divide it among cores, as is most of it in programs of many
    parts; memory where caches are too small; both in loops: a core that sleeps takes 50 us to wake,
    longer than what was to be timed.
    """
    x = np.linspace(0.5, 1.0, _SIZE, dtype=dtype)  # by JAX, each of these would be compiled
    arrays = (x, x + 0.25, x + 0.5, x + 0.75)
    call_s, kernels_s = _best_seconds([*map(jax.jit, _CALL)], (x[:_TINY],))
    base_s, reads_s = _best_seconds(_looped(_MEMORY, _TURNS), arrays)
    short_s, flops_s, exps_s = _best_seconds(_looped(_ARITHMETIC, _SHORT_TURNS), (x[:_SHORT],))
    num_cores = min(os.cpu_count() or 1, _MAX_CORES) if jax.default_backend() == "cpu" else 1
    read_s = max(reads_s - base_s, 0.1 * base_s) / (3 * x.nbytes * _TURNS)
    flop_s = max(flops_s - short_s, 0.1 * short_s) / (9 * _SHORT * _SHORT_TURNS)
    return Calibration(
        flop_s=flop_s,
        transcendental_s=max(exps_s - short_s, 0.5 * short_s) / (2 * _SHORT * _SHORT_TURNS),
        read_s=read_s,
        write_s=WRITE_BY_READ * read_s,
        dot_flop_s=flop_s / 4,
        call_s=min(call_s, _MAX_CALL_S),
        kernel_s=KERNEL * max(kernels_s - call_s, 0.1 * call_s) / (_KERNELS - 1),
        large_share=1 / num_cores,
    )


def _looped(probes: Sequence[Callable[..., Any]], num_turns: int) -> list[Callable[..., Any]]:
    """Sums, so many times each, of which each reads the one before. One program has all of them: a
    loop takes three times as long to compile as what is in it.
    """

    @jax.jit
    def run(number: int, x: Any, *others: Any) -> Any:
        turn = lambda _, before: jax.lax.switch(number, probes, x + 1e-9 * before, *others)
        return jax.lax.fori_loop(0, num_turns, turn, jnp.zeros((), x.dtype))

    return [functools.partial(run, number) for number in range(len(probes))]


_Probes = tuple[Callable[..., object], ...]
_CALL: _Probes = (
    jnp.sum,
    lambda x: functools.reduce(
        lambda before, _: jnp.sum(x * before), range(_KERNELS), jnp.ones(())
    ),
)
"""The second: sums of which each reads the one before, so that none is fused with another."""
_MEMORY: _Probes = (
    lambda x, *_: jnp.sum(x),
    lambda x, y, z, w: jnp.sum(w + x + y + z),
)
_ARITHMETIC: _Probes = (
    jnp.sum,
    lambda x: jnp.sum(((x * 0.3 + 0.1) * x + 0.2) * (x - 0.4) * x + 0.7),
    lambda x: jnp.sum(jnp.exp(0.1 * jnp.log(x))),
)


def _best_seconds(
    functions: Sequence[Callable[..., object]], arrays: Sequence[np.ndarray]
) -> list[float]:
    """Least seconds of each compiled function over alternating runs, as long as these become faster."""
    args = jax.device_put(arrays)
    jax.block_until_ready([fun(*args) for fun in functions])
    best = [math.inf] * len(functions)
    end_s = time.perf_counter() + _MAX_S
    num_slower = 0
    while num_slower < _REPEATS and time.perf_counter() < end_s:
        times = [_seconds(fun, args) for fun in functions]
        is_faster = any(new < _NOISE * old for new, old in zip(times, best, strict=True))
        num_slower = 0 if is_faster else num_slower + 1
        best = [*map(min, times, best)]
    return best


def _seconds(compiled: Callable[..., object], args: Sequence[object]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    return time.perf_counter() - start
