"""Question: does the example of the README end as much earlier with incrax as it says there?

Its code, in fresh processes that each run one of the two forms, in turns: seconds as it prints
them, from the first call to the last result, with compiling and all that is learned. Forms that do
not print the same value are an error. No target: reported.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
from bench_analyses import EXAMPLES, output
from harness import JIT, OURS, Line, Options

CASE = "one of 2,000 groups moves, 5,000 gradients"
FORMS = {JIT: '("jax.jit", jax.jit)', OURS: '("incrax", incrax.incremental)'}
"""What the loop of the example says for each."""
QUICK = ("range(5_000)", "range(50)")
PRINTED = re.compile(r"^(.+): (.+), ([\d.]+) s, compiling included$")


def program(form: str, *, quick: bool) -> str:
    """The example, whose loop over both forms has this one alone."""
    text = (EXAMPLES / "groups.py").read_text(encoding="utf-8")
    replaced = {f"({FORMS[JIT]}, {FORMS[OURS]})": f"({FORMS[form]},)"}
    replaced |= dict([QUICK]) if quick else {}
    for old, new in replaced.items():
        if text.count(old) != 1:
            raise RuntimeError(f"the example of the README has no {old!r}")
        text = text.replace(old, new)
    return text


def lines(options: Options) -> Iterator[Line]:
    """One line."""
    if options.only not in CASE:
        return
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    values = set()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "groups.py"
        for number in range(options.rounds):
            for form in FORMS if number % 2 == 0 else reversed(FORMS):
                script.write_text(program(form, quick=options.quick), encoding="utf-8")
                printed = PRINTED.fullmatch(output([str(script)]).strip())
                if printed is None or printed[1] != form:
                    raise RuntimeError(f"{form}: the example does not print what it takes")
                values.add(printed[2])
                seconds[form].append(float(printed[3]))
    if len(values) > 1:
        raise AssertionError(f"the forms print {sorted(values)}")
    yield harness.timing_line(CASE, {form: harness.summary(each) for form, each in seconds.items()})


def main() -> None:
    """One line, of both forms."""
    options = harness.start(__doc__, rounds=5, quick_rounds=1)
    harness.report("The example of the README as a whole job", lines(options), options)


if __name__ == "__main__":
    main()
