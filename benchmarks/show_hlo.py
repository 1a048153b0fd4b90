"""Question: what does XLA make of jax.jit's program, and of the program that serves a change?

For each case and program: kernels of the optimised module by kind, reductions, matrix products,
bytes of arguments and of temporary memory. These are the evidence for ratios that fall short; no
target.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import harness
import jax
from harness import Form, Line, Options
from problems import amplitude, mixture

import incrax

NUM_CALLS = 12
MIN_WIDE = 1000
"""Elements from which on a result counts as an array."""


def compiled_of_ours(
    function: Form, arguments: Callable[[int], tuple[Any, ...]]
) -> tuple[Any, str]:
    """The compiled program that serves a change after a few calls, and what it loads."""
    ours = incrax.incremental(function, tuning=incrax.Tuning(timed=False))
    for number in range(NUM_CALLS):
        ours(*arguments(number))
    engine = ours._traces.latest.engine  # type: ignore[union-attr]
    entry = engine.last.entry
    if entry is None or entry.program is None:
        return None, "the whole program serves"
    executable = entry.program.executable
    feeds = [value.feed for value in engine.store.states[-1].values]
    shapes = [*(var.aval for var in executable.loads), *executable.family.donated]
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in shapes]
    compiled = executable.family.call.lower(
        *[feeds[i] for i in executable.leaves], *executable.constants, *structs
    ).compile()
    return compiled, "loads " + ", ".join(
        var.aval.str_short(short_dtypes=True) for var in executable.loads
    )


def line_of(case: str, compiled: Any, note: str) -> Line:
    """What the optimised module consists of."""
    if compiled is None:
        return Line(case, {"note": note}, {})
    text = compiled.as_text()
    entry = text[text.index("ENTRY") :]
    results = re.findall(r"= (\S+) (?:fusion|reduce|dot|custom-call|while|conditional)\(", entry)
    wide = [shape for shape in results if _num_elements(shape) >= MIN_WIDE]
    kinds = Counter(re.findall(r"kind=k(\w+)", entry))
    memory = compiled.memory_analysis()
    cells = {
        "kernels": str(len(results)),
        "with arrays as results": str(len(wide)),
        "fusions": ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items())),
        "reductions": str(len(re.findall(r" reduce\(", text))),
        "matrix products": str(
            len(re.findall(r" dot\(", text)) + text.count("__eigen") + text.count("__onednn")
        ),
        "arguments": f"{memory.argument_size_in_bytes / 1e6:.1f} MB",
        "temporary": f"{memory.temp_size_in_bytes / 1e6:.1f} MB",
        "note": note,
    }
    return Line(case, cells, {})


def _num_elements(shape: str) -> int:
    sizes = [
        int(size)
        for dims in re.findall(r"\[([\d,]+)\]", shape)
        for size in [_product(map(int, dims.split(",")))]
    ]
    return max(sizes, default=1)


def _product(numbers: Any) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def cases(options: Options) -> Iterator[tuple[str, Form, Callable[[int], tuple[Any, ...]]]]:
    """Functions of both problems, with arguments in which something changes from call to call."""
    p = mixture.truth(20_000 if options.quick else mixture.NUM_EVENTS)
    x = mixture.make_data(20_000 if options.quick else mixture.NUM_EVENTS)
    for name in ("n1", "mu1", "s1", "lam"):
        for kind, transform in {"value": lambda f: f, "value+grad(8)": jax.value_and_grad}.items():

            def at(number: int, name: str = name) -> tuple[Any, ...]:
                return {**p, name: p[name] * (1 + 1e-4 * number)}, x

            yield f"mixture, {kind}, {name}", transform(mixture.nll), at
    inputs = amplitude.make_inputs(num_events=2_000 if options.quick else amplitude.NUM_EVENTS)
    for form, nll in {
        "unrolled": amplitude.nll_unrolled,
        "vectorised": amplitude.nll_vectorised,
    }.items():
        for kind, transform in {
            "value": lambda f: f,
            "value+grad(couplings)": jax.value_and_grad,
        }.items():

            def of_couplings(number: int) -> tuple[Any, ...]:
                scale = 1 + 1e-4 * number
                return (jax.tree.map(lambda c: c * scale, inputs.couplings), *inputs[1:])

            yield f"amplitude, {form}, {kind}, couplings", transform(nll), of_couplings


def lines(options: Options) -> Iterator[Line]:
    """Each case: jax.jit's program and ours."""
    for case, function, arguments in cases(options):
        if options.only in case:
            yield line_of(f"{case}: jax.jit", jax.jit(function).lower(*arguments(0)).compile(), "")
            yield line_of(f"{case}: incrax", *compiled_of_ours(function, arguments))


def main() -> None:
    """Run and print everything."""
    options = harness.start(__doc__, rounds=1)
    harness.report("Optimised modules", lines(options), options)


if __name__ == "__main__":
    main()
