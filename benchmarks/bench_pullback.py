"""Question: does a backward pass grow with a large constant that the function touches? What does
one cotangent cost?

Both examples of the thread Zygote.jl#323, `p -> c[1] * p` and `p -> (c @ proj) * p`, c of 1e3 to
1e7 elements: the time of the pullback alone, compiled (as `vjp` does it) and eager
(`jax.disable_jit`). Target: the largest size takes at most twice the time of the smallest; the
numbers of operations and of bytes held are the same. Then a chain of 10 operations on arrays of 1e6
elements: one of 10 cotangents against all of them by `jax.vjp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import harness
import jax
import jax.numpy as jnp
from harness import OURS, Line, Options, limit, within

import incrax

SIZES = (10**3, 10**4, 10**5, 10**6, 10**7)
QUICK_SIZES = (10**3, 10**5)
RUN = 20
"""Calls in a row of each form."""
NUM_FACTORS = 10
FLAT = 2.0
"""How much longer than the smallest the largest may take."""


def touching(n: int) -> dict[str, Any]:
    """The examples of the thread."""
    c, proj = jnp.ones(n), jnp.zeros(n).at[0].set(1.0)
    return {"c[1] * p": lambda p: c[1] * p, "(c @ proj) * p": lambda p: (c @ proj) * p}


def chain(*factors: Any) -> Any:
    """As many operations as factors."""
    y = factors[0]
    for factor in factors[1:]:
        y = jnp.sin(y * factor)
    return y


def lines(options: Options) -> Iterator[Line]:
    """Constants, then the chain."""
    for touch in touching(1):
        for mode in ("compiled", "eager"):
            name = f"{touch}, {mode}"
            if options.only in name:
                yield _flat(name, touch, options, is_compiled=mode == "compiled")
    for number in (0, NUM_FACTORS // 2, NUM_FACTORS - 1):
        name = f"chain, factor {number} of {NUM_FACTORS}"
        if options.only in name:
            yield _one(name, number, options)


def _flat(name: str, touch: str, options: Options, *, is_compiled: bool) -> Line:
    """The sizes take turns, as the forms of other benchmarks do."""
    sizes = QUICK_SIZES if options.quick else SIZES
    ct = jnp.ones(())
    with jax.disable_jit(not is_compiled):
        pullbacks = {n: incrax.vjp(touching(n)[touch], jnp.ones(()))[1] for n in sizes}
        forms = {_size(n): lambda ct, pb=pb: pb(ct) for n, pb in pullbacks.items()}
        timings = harness.compare(forms, lambda _: (ct,), options.rounds, run=RUN)
    operations = [pb.num_operations() for pb in pullbacks.values()]
    held = [pb.residual_bytes for pb in pullbacks.values()]
    growth = timings[_size(sizes[-1])].median / timings[_size(sizes[0])].median
    cells = {name: str(timing) for name, timing in timings.items()}
    cells |= {"operations": str(max(operations)), "bytes held": str(max(held))}
    checks = [
        limit("largest / smallest", growth, FLAT),
        limit("operations", max(operations), min(operations)),
    ]
    checks.append(limit("bytes held", max(held), min(held)))
    return Line(name, cells, {"growth": growth}, checks, timings)


def _size(n: int) -> str:
    return f"n = {n:.0e}".replace("e+0", "e")


def _one(name: str, number: int, options: Options) -> Line:
    """One cotangent of ten: ours, all of them by ours, and by `jax.vjp`, eager and compiled."""
    size = 10**3 if options.quick else 10**6
    factors = [jnp.linspace(0.5, 1.5, size) + k / 10 for k in range(NUM_FACTORS)]
    _, pullback = incrax.vjp(chain, *factors)
    _, by_jax = jax.vjp(chain, *factors)
    compiled = jax.jit(lambda pullback, ct: pullback(ct))
    forms = {
        OURS: lambda ct: pullback(ct, wrt=number),
        "incrax, all": lambda ct: pullback(ct)[number],
        "jax.vjp, all": lambda ct: by_jax(ct)[number],
        "jax.jit, all": lambda ct: compiled(by_jax, ct)[number],
    }
    ct = jnp.ones(size)
    timings = harness.compare(forms, lambda _: (ct,), options.rounds, warm=3)
    line = harness.timing_line(name, timings, [within(1.0, "jax.vjp, all")])
    asked, of_all, held = (
        pullback.num_operations(number),
        pullback.num_operations(),
        pullback.residual_bytes,
    )
    line.cells["operations"] = f"{asked} of {of_all}"
    line.cells["bytes freed by keep"] = f"{pullback.keep(number):,} of {held:,}"
    line.numbers |= {"operations asked": asked, "operations of all": of_all}
    needed = 2 * (NUM_FACTORS - max(number, 1))
    line.checks.append(limit("operations", asked, needed))
    return line


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=50, quick_rounds=3)
    harness.report("pullbacks", lines(options), options)
