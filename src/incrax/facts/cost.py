"""Stage 4, cost: FLOPs and bytes of an equation, and the seconds that a machine needs for them.

In: equations. Out: `Cost` per equation and estimated seconds under a `Calibration`. Estimates only rank plans; the
race between compiled plans has the last word. It must not know what is dirty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Equation, Literal
from incrax.facts.program import written_vars


class Cost(NamedTuple):
    """Arithmetic of one evaluation: FLOPs, transcendental evaluations, and bytes if nothing is fused."""

    flops: float
    transcendentals: float
    bytes: float

    def __add__(self, other: object) -> Cost:
        """The cost of both, one after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(self.flops + other.flops, self.transcendentals + other.transcendentals, self.bytes + other.bytes)

    def times(self, n: float) -> Cost:
        """The cost of `n` evaluations."""
        return Cost(self.flops * n, self.transcendentals * n, self.bytes * n)


ZERO = Cost(0.0, 0.0, 0.0)

UNKNOWN_TRIPS = 100
"""Iterations assumed for a while loop, whose trip count no one knows before it runs."""

TRANSCENDENTAL_FLOPS = 10.0
"""FLOPs that a transcendental is worth, where branches are compared without a machine in mind."""

CALLBACK_S = 1e-3
"""Seconds assumed for a call to the host."""


@dataclass(frozen=True)
class Calibration:
    """Seconds per unit of work on one machine and backend.

    Fields: seconds per cheap arithmetic element, per transcendental element, per byte read, per byte written, per
    extra argument of an executable, and per matrix-product FLOP.
    """

    flop_s: float = 5e-11
    transcendental_s: float = 5e-10
    read_s: float = 2e-11
    write_s: float = 4e-11
    argument_s: float = 5e-7
    dot_flop_s: float = 2e-11

    def seconds(self, eqn: Equation) -> float:
        """Estimated seconds of one equation inside a fused program."""
        cost = equation_cost(eqn)
        name = eqn.primitive.name
        flop_s = self.dot_flop_s if name in ("dot_general", "conv_general_dilated") else self.flop_s
        traffic = cost.bytes * self.read_s if name in _UNFUSED else 0.0
        calls_s = CALLBACK_S * num_host_calls(eqn)
        return 1e-9 + cost.flops * flop_s + cost.transcendentals * self.transcendental_s + traffic + calls_s

    def load_seconds(self, num_bytes: int) -> float:
        """Estimated seconds to hand a saved value to a program and read it there."""
        return self.argument_s + num_bytes * self.read_s

    def save_seconds(self, num_bytes: int) -> float:
        """Estimated seconds to return a value from a program instead of keeping it fused."""
        return self.argument_s + num_bytes * self.write_s


ACCELERATOR = Calibration(1e-13, 2e-12, 5e-13, 5e-13, 2e-6, 5e-14)
"""From data sheets, not measured: 10 TFLOP/s, 2 TB/s, and 2 us to hand over an argument."""


def assumed_prices(num_devices: int) -> Calibration:
    """Built-in figures where nothing may be measured, for work that so many devices share."""
    prices = Calibration() if jax.default_backend() == "cpu" else ACCELERATOR
    work = ("flop_s", "transcendental_s", "read_s", "write_s", "dot_flop_s")
    return replace(prices, **{name: getattr(prices, name) / num_devices for name in work})


# --- work of one equation -----------------------------------------------------------------------------------------


def num_host_calls(eqn: Equation) -> int:
    """How often one evaluation calls the host, inner jaxprs included; the most of any branch."""
    if _jax.calls_host(eqn):
        return 1
    inner = [sum(map(num_host_calls, body.eqns)) for body in _jax.sub_bodies(eqn)]
    if not any(inner):
        return 0
    name = eqn.primitive.name
    if name == "cond":
        return max(inner)
    trips = eqn.params["length"] if name == "scan" else UNKNOWN_TRIPS if name == "while" else 1
    return trips * sum(inner)


_FREE = frozenset(
    """broadcast_in_dim reshape squeeze expand_dims copy copy_p iota stop_gradient convert_element_type real imag
    complex transpose slice rev bitcast_convert_type optimization_barrier""".split()
) | {_jax.KEEP}
_TRANSCENDENTAL = {
    **dict.fromkeys("exp exp2 expm1 log log1p".split(), 1.0),
    **dict.fromkeys("sin cos tan tanh sinh cosh logistic cbrt".split(), 2.0),
    **dict.fromkeys("pow atan2 asin acos atan asinh acosh atanh erf erfc erf_inv".split(), 4.0),
    **dict.fromkeys("lgamma digamma bessel_i0e bessel_i1e".split(), 10.0),
    **dict.fromkeys("igamma igammac igamma_grad_a regularized_incomplete_beta zeta polygamma".split(), 100.0),
}
_DIVISIONS = {**dict.fromkeys("div rem sqrt rsqrt".split(), 4.0)}
_CUBIC = {
    "cholesky": 1 / 3,
    "lu": 2 / 3,
    "triangular_solve": 1.0,
    "qr": 4 / 3,
    "geqrf": 4 / 3,
    "eigh": 9.0,
    "svd": 20.0,
}
_SCATTERS = (
    *("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-sub", "scatter_sub"),
    *("scatter-min", "scatter_min", "scatter-max", "scatter_max"),
)
_UNFUSED = frozenset(
    """reduce_sum reduce_max reduce_min reduce_prod argmax argmin
    gather scatter scatter-add scatter_add dot_general conv_general_dilated sort fft cholesky triangular_solve
    dynamic_update_slice cumsum cumprod cummax cummin cumlogsumexp concatenate random_bits threefry2x32""".split()
)


def is_free(eqn: Equation) -> bool:
    """Whether an equation only moves or relabels data."""
    return eqn.primitive.name in _FREE


def equation_cost(eqn: Equation) -> Cost:
    """FLOPs, transcendentals and bytes of one equation."""
    rule = _cost_rules.get(eqn.primitive.name, _default_cost)
    return rule(eqn)


def total_cost(eqns: Iterable[Equation]) -> Cost:
    """The cost of equations run one after the other."""
    total = ZERO
    for eqn in eqns:
        total += equation_cost(eqn)
    return total


def _bytes(eqn: Equation) -> float:
    atoms = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
    return float(sum(_jax.aval_bytes(atom.aval) for atom in [*atoms, *written_vars(eqn)]))


def _out_size(eqn: Equation) -> float:
    return float(sum(_jax.aval_size(var.aval) for var in eqn.outvars))


def _in_size(eqn: Equation) -> float:
    return float(sum(_jax.aval_size(atom.aval) for atom in eqn.invars))


def _largest_input(eqn: Equation) -> float:
    return float(max((_jax.aval_size(atom.aval) for atom in eqn.invars), default=0))


def _complex_factor(eqn: Equation) -> float:
    return 4.0 if any(np.dtype(getattr(v.aval, "dtype", np.int32)).kind == "c" for v in eqn.outvars) else 1.0


def _default_cost(eqn: Equation) -> Cost:
    """Elementwise where outputs are as large as inputs; one FLOP per input element for reductions."""
    name = eqn.primitive.name
    if name in _FREE:
        return Cost(0.0, 0.0, _bytes(eqn))
    bodies = _jax.sub_bodies(eqn)
    if bodies:
        return total_cost(eqn for body in bodies for eqn in body.eqns)
    size = max(_out_size(eqn), _largest_input(eqn) if name not in ("gather", "dynamic_slice") else 0.0)
    if name in _TRANSCENDENTAL:
        return Cost(0.0, size * _TRANSCENDENTAL[name] * _key_safe_factor(eqn), _bytes(eqn))
    return Cost(size * _DIVISIONS.get(name, 1.0) * _key_safe_factor(eqn), 0.0, _bytes(eqn))


def _key_safe_factor(eqn: Equation) -> float:
    dtypes = [getattr(var.aval, "dtype", None) for var in eqn.outvars]
    return 1.0 if any(dtype is None or _jax.is_key_dtype(dtype) for dtype in dtypes) else _complex_factor(eqn)


def _dot_cost(eqn: Equation) -> Cost:
    (contract, _), _ = eqn.params["dimension_numbers"]
    depth = math.prod(eqn.invars[0].aval.shape[axis] for axis in contract)
    return Cost(2.0 * depth * _out_size(eqn) * _key_safe_factor(eqn), 0.0, _bytes(eqn))


def _conv_cost(eqn: Equation) -> Cost:
    kernel = eqn.invars[1].aval.shape
    out_features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    return Cost(2.0 * _out_size(eqn) * math.prod(kernel) / max(out_features, 1), 0.0, _bytes(eqn))


def _matrix_cost(eqn: Equation) -> Cost:
    shape = eqn.invars[0].aval.shape
    rows, cols = shape[-2:] if len(shape) >= 2 else (1, 1)
    columns = eqn.invars[1].aval.shape[-1] if eqn.primitive.name == "triangular_solve" else cols
    batch = math.prod(shape[:-2])
    return Cost(_CUBIC[eqn.primitive.name] * batch * rows * cols * columns, 0.0, _bytes(eqn))


def _sort_cost(eqn: Equation) -> Cost:
    size = _in_size(eqn)
    return Cost(4.0 * size * math.log2(max(size, 2.0)), 0.0, _bytes(eqn))


def _random_cost(eqn: Equation) -> Cost:
    return Cost(40.0 * _out_size(eqn), 0.0, _bytes(eqn))


def _scan_cost(eqn: Equation) -> Cost:
    return total_cost(_jax.open_jaxpr(eqn.params["jaxpr"]).eqns).times(eqn.params["length"])


def _while_cost(eqn: Equation) -> Cost:
    bodies = _jax.sub_bodies(eqn)
    return total_cost(inner for body in bodies for inner in body.eqns).times(UNKNOWN_TRIPS)


def _cond_cost(eqn: Equation) -> Cost:
    costs = [total_cost(body.eqns) for body in _jax.sub_bodies(eqn)]
    return max(costs, key=lambda cost: cost.flops + TRANSCENDENTAL_FLOPS * cost.transcendentals, default=ZERO)


def _scatter_cost(eqn: Equation) -> Cost:
    return Cost(float(_jax.aval_size(eqn.invars[2].aval)), 0.0, _bytes(eqn))


_cost_rules: dict[str, Callable[[Equation], Cost]] = {
    "dot_general": _dot_cost,
    "conv_general_dilated": _conv_cost,
    "scan": _scan_cost,
    "while": _while_cost,
    "cond": _cond_cost,
    **dict.fromkeys(_SCATTERS, _scatter_cost),
    "sort": _sort_cost,
    "fft": _sort_cost,
    **dict.fromkeys("random_bits threefry2x32 random_gamma random_wrap random_unwrap".split(), _random_cost),
    **dict.fromkeys(_CUBIC, _matrix_cost),
}


# --- calibration --------------------------------------------------------------------------------------------------

_calibrations: dict[tuple[str, str], Calibration] = {}

_SIZE = 250_000
_REPEATS = 15

_MAX_WRITE = 2.5
"""Seconds per byte written, at most, relative to one read: more is another process's doing."""


def calibrate() -> Calibration:
    """Measure this machine's default backend once (a few tenths of a second) and remember the result."""
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    key = (jax.default_backend(), dtype.name)
    if key not in _calibrations:
        _calibrations[key] = _measure(dtype)
    return _calibrations[key]


def _measure(dtype: np.dtype) -> Calibration:
    """Time one-loop programs that differ in one kind of work; each figure is a difference of two of them."""
    x = jnp.linspace(0.5, 1.0, _SIZE, dtype=dtype)
    arrays = (x, x + 0.25, x + 0.5, x + 0.75)
    base_s, reads_s, flops_s, exps_s, writes_s = _best_seconds(_PROBES, arrays)
    read_s = max(reads_s - base_s, 0.1 * base_s) / (3 * x.nbytes)
    flop_s = max(flops_s - base_s, 0.1 * base_s) / (9 * _SIZE)
    return Calibration(
        flop_s=flop_s,
        transcendental_s=max(exps_s - base_s, 0.5 * base_s) / (2 * _SIZE),
        read_s=read_s,
        write_s=min(max(writes_s / (3 * x.nbytes), read_s), _MAX_WRITE * read_s),
        dot_flop_s=flop_s / 4,
    )


_PROBES: tuple[Callable[..., object], ...] = (
    lambda x, *_: jnp.sum(x),
    lambda x, y, z, w: jnp.sum(w + x + y + z),
    lambda x, *_: jnp.sum(((x * 0.3 + 0.1) * x + 0.2) * (x - 0.4) * x + 0.7),
    lambda x, *_: jnp.sum(jnp.exp(0.1 * jnp.log(x))),
    lambda x, *_: (x * 0.5, x + 1.0, x - 2.0),
)


def _best_seconds(functions: Sequence[Callable[..., object]], args: Sequence[object]) -> list[float]:
    """Least seconds of each function over alternating runs."""
    compiled = [jax.jit(fun) for fun in functions]
    jax.block_until_ready([fun(*args) for fun in compiled])
    rounds = [[_seconds(fun, args) for fun in compiled] for _ in range(_REPEATS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _seconds(compiled: Callable[..., object], args: Sequence[object]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    return time.perf_counter() - start
