"""Break the engine on purpose, one way at a time, and see whether the tests notice.

Each mutant replaces one piece of source. The tests run against a copy of the package; a mutant that they let live is a
hole in the suite, and the exit code is 1. `tests/test_mutants.py` holds that every piece still occurs in the source.

Usage: python scripts/mutants.py [--only TEXT] [--jobs 2]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900
TESTS = (
    "tests/tapes/test_guarded.py tests/tapes/test_captured.py "
    "tests/test_marks.py tests/test_memory.py tests/test_algebra.py tests/test_catalogue.py tests/test_bad_input.py "
    "tests/rows tests/properties tests/test_incremental.py tests/facts tests/planning tests/running"
)


class Mutant(NamedTuple):
    """A name, a file of the package, a piece of it, and what replaces the piece."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "totals of another version of the parameters are used",
        "running/totals.py",
        "key = version, tuple(",
        "key = 0, tuple(",
    ),
    Mutant(
        "totals of forgotten chunks are kept",
        "running/totals.py",
        "self.known = {key: x for key, x in self.known.items() if key[0] in versions and chunks.issuperset(key[1])}",
        "pass",
    ),
    Mutant(
        "the number of rows is no part of a version",
        "running/versions.py",
        "        if size != self.size:\n            return False\n",
        "",
    ),
    Mutant(
        "padding is not masked",
        "running/combining.py",
        "return jnp.where(is_row, x, identity(reduction.kind, x.dtype))",
        "return x",
    ),
    Mutant(
        "dependency edge dropped",
        "facts/dependence.py",
        "    for masks in inputs:\n        mask |= join(masks)",
        "    for masks in inputs[:1]:\n        mask |= join(masks)",
    ),
    Mutant(
        "floats compared by ==",
        "running/leaves.py",
        "return True if a else None",
        "return True",
    ),
    Mutant(
        "small arrays compared by ==",
        "running/leaves.py",
        "return a.tobytes() == b.tobytes()",
        "return bool(np.array_equal(a, b))",
    ),
    Mutant(
        "tolerance",
        "running/leaves.py",
        "return a.tobytes() == b.tobytes()",
        "return bool(np.allclose(a, b, rtol=2e-3)) if a.dtype.kind == 'f' else a.tobytes() == b.tobytes()",
    ),
    Mutant(
        "hash as the only key",
        "running/leaves.py",
        "return a.tobytes() == b.tobytes()",
        "return hash(a.tobytes()) % 16 == hash(b.tobytes()) % 16",
    ),
    Mutant(
        "large arrays compared by a sample",
        "running/leaves.py",
        "np.array_equal(x[::step], y[::step]) and np.array_equal(x, y)",
        "np.array_equal(x[::step], y[::step])",
    ),
    Mutant(
        "snapshot by reference",
        "running/leaves.py",
        "        return x.copy()",
        "        return x",
    ),
    Mutant(
        "changed element taken for the first one",
        "running/leaves.py",
        "[1 << k for k, (x, y) in enumerate(zip(new.words, old.words, strict=True)) if x != y]",
        "{1 for k, (x, y) in enumerate(zip(new.words, old.words, strict=True)) if x != y}",
    ),
    Mutant(
        "commit before the end",
        "running/engine.py",
        "        return self._evaluate(values, pairs, base, dirty, start_s)",
        "        if base is not None:\n"
        "            self.store.commit(State(values, list(base.outputs), dict(base.saved), None), base)\n"
        "        return self._evaluate(values, pairs, base, dirty, start_s)",
    ),
    Mutant(
        "a repeated call whatever changed",
        "running/repeat.py",
        "            if found & dirty != dirty:\n                return None\n            if found == dirty:",
        "            if True:",
    ),
    Mutant(
        "a repeated call forgets the version that proposals start from",
        "running/repeat.py",
        "best is None or state.uses >= best.uses",
        "True",
    ),
    Mutant(
        "a repeated call that ignores its guard",
        "running/repeat.py",
        "self.plan.guard is not None and not results.pop()",
        "self.plan.guard is not None and results.pop() is None",
    ),
    Mutant("a repeated call hands on deleted outputs", "running/repeat.py", " or is_any_deleted(base.outputs)", ""),
    Mutant("configuration missing in the key", "_jax.py", "        _config.trace_context(),\n", "        0,\n"),
    Mutant("type of static leaves missing in the key", "running/signature.py", "(type(x), x) for x in", "x for x in"),
    Mutant(
        "weak type missing in the key",
        "running/leaves.py",
        "return x.shape, x.dtype, x.weak_type, plain_sharding",
        "return x.shape, x.dtype, False, plain_sharding",
    ),
    Mutant(
        "structure missing in the fast look-up",
        "running/traces.py",
        "return treedef == self.signature.treedef and",
        "return",
    ),
    Mutant(
        "residual reused across a parameter",
        "running/succession.py",
        "{var: x for var, x in base.saved.items() if not mask(var) & dirty}",
        "dict(base.saved)",
    ),
    Mutant(
        "stale value taken for current",
        "running/store.py",
        "        if not mask & dirty:\n            value",
        "        if True:\n            value",
    ),
    Mutant(
        "deleted result handed out again",
        "running/store.py",
        "return any([isinstance(x, jax.Array) and x.is_deleted() for x in outputs])",
        "return False",
    ),
    Mutant(
        "effects run once",
        "running/engine.py",
        "self.always = ALWAYS if facts.has_effects else 0",
        "self.always = 0",
    ),
    Mutant(
        "0.0 and -0.0 merged",
        "facts/simplify.py",
        'getattr(atom.aval, "weak_type", False), value.dtype, value.tobytes()',
        'getattr(atom.aval, "weak_type", False), value.dtype, str(abs(value))',
    ),
    Mutant(
        "a carry taken for loop-invariant",
        "facts/loops.py",
        "split = _split(body, body.invars[:num_consts], may_run",
        "split = _split(body, body.invars[: num_consts + 1], may_run",
    ),
    Mutant(
        "buffers recycled while a version holds them",
        "running/store.py",
        "if id(x) not in kept and var not in self.outputs]",
        "if var not in self.outputs]",
    ),
    Mutant(
        "buffers of results recycled",
        "running/store.py",
        "if id(x) not in kept and var not in self.outputs]",
        "if id(x) not in kept]",
    ),
    Mutant(
        "buffers recycled that a fork holds",
        "running/store.py",
        "[x for x in free if id(x) not in self.shared]",
        "free",
    ),
    Mutant(
        "sums of products merged without a guard",
        "planning/products.py",
        "jnp.all(is_bounded & ((jnp.abs(results) >= loss)",
        "jnp.all(is_bounded | True | ((jnp.abs(results) >= loss)",
    ),
    Mutant(
        "matrix used whatever its entries",
        "running/saved.py",
        "            if not filled.pop(flags[var]):",
        "            if filled.pop(flags[var]) is None:",
    ),
    Mutant(
        "terms of a sum taken for each other",
        "planning/products.py",
        "return tuple(sorted((factor_key(e.scalars), factor_key(e.arrays), e.number) for e in self.row))",
        "return tuple(sorted({(factor_key(e.scalars), factor_key(e.arrays), e.number) for e in self.row}))",
    ),
    Mutant(
        "sign of a difference forgotten",
        "planning/linear.py",
        'tuple(term.negated() for term in right) if name == "sub" else right',
        "right",
    ),
    Mutant(
        "a rest that compares one leaf only",
        "running/comparison.py",
        "            is_same = is_same and _same_entry(old, new)",
        "            is_same = _same_entry(old, new)",
    ),
    Mutant(
        "packed leaves without their weak type",
        "running/packing.py",
        "_jax.as_weak(part) if aval.weak_type else part",
        "part",
    ),
    Mutant(
        "saved values of a baseline kept whole",
        "running/succession.py",
        "    if base.harmless != dirty and not any([mask(var) & dirty for var in base.saved]):",
        "    if base.harmless != dirty:",
    ),
    Mutant(
        "results used although their guard is false",
        "running/doubts.py",
        "    if not guard:\n",
        "    if False:\n",
    ),
    Mutant(
        "underflow of a product of clean arrays not noticed",
        "planning/products.py",
        "return matrix, jnp.all(_bounds(terms, flat, dtype) <= _tiny(dtype) ** -_MATRIX_RANGE)",
        "return matrix, jnp.all(jnp.isfinite(matrix))",
    ),
    Mutant(
        "another array taken for an equal one that was deleted",
        "running/comparison.py",
        "return not value.is_deleted() and same_value(value, as_value(new))",
        "return same_value(value, as_value(new))",
    ),
    Mutant(
        "exact policy chooses programs by what was called",
        "running/chooser.py",
        'entry.settle("whole" if self.only_whole else "segments",',
        'entry.settle("whole" if self.only_whole or entry.count % 2 else "segments",',
    ),
    Mutant(
        "pure form keeps a segment whose input changed",
        "running/flags.py",
        "return True\n            else:",
        "return False\n            else:",
    ),
    Mutant(
        "pure form differentiates past its saved values",
        "running/pure.py",
        "flags = leaves_set(self.facts.dependence.layout, active)",
        "flags = leaves_set(self.facts.dependence.layout, ())",
    ),
    Mutant(
        "marks do not narrow",
        "facts/rules.py",
        '    if not eqn.params["is_narrowed"]:',
        "    if True:",
    ),
    Mutant(
        "unnarrowed marks narrow",
        "facts/rules.py",
        '    if not eqn.params["is_narrowed"]:',
        "    if False:",
    ),
    Mutant(
        "a mark takes other arguments for dependences",
        "_marks.py",
        "        if not _is_traced(leaf) or None in keys:",
        "        if True:",
    ),
    Mutant(
        "marked values evicted like others",
        "running/eviction.py",
        "return var in facts.kept, ",
        "return False, ",
    ),
    Mutant(
        "frames keep saved values when memory is short",
        "running/eviction.py",
        "    traceback.clear_frames(error.__traceback__)",
        "    error.__traceback__",
    ),
    Mutant(
        "algebra never compared with the direct form",
        "running/doubts.py",
        "    if plan.statistics is None or entry.is_compared:",
        "    if True:",
    ),
    Mutant(
        "statistics used however far from their centre",
        "planning/statistics.py",
        "jnp.all(_are_within(d, MAX_STEP)) & jnp.all(_are_within(terms, MAX_TERM) & (terms <= growth * size))",
        "jnp.asarray(True)",
    ),
    Mutant(
        "statistics kept when they were too far",
        "running/engine.py",
        "        self.store.forget(centred)\n",
        "",
    ),
    Mutant(
        "statistics depend on the point where they were made",
        "planning/statistics.py",
        "at = {var: _jax.as_constant(x, None) for var, x",
        "at = {var: x for var, x",
    ),
    Mutant(
        "factors that a sum does not share are lost",
        "planning/statistics.py",
        "            value = value * self.numbers[factor].astype(value.dtype)\n",
        "            pass\n",
    ),
    Mutant(
        "results of the host remembered by shape",
        "running/host_calls.py",
        "np.asarray(x).tobytes()",
        'b""',
    ),
    Mutant(
        "results of the host remembered by reference",
        "running/host_calls.py",
        "kept = [np.array(x) for x in results]",
        "kept = [np.asarray(x) for x in results]",
    ),
    Mutant(
        "results of functions with effects remembered",
        "running/host_calls.py",
        'eqn.primitive.name == "pure_callback"',
        "True",
    ),
    Mutant(
        "late failures not looked for",
        "running/store.py",
        "is_broken = is_broken or not _is_sound(x)",
        "pass",
    ),
    Mutant(
        "leaves compared with a version that was dropped",
        "running/engine.py",
        "changed = resting = None",
        "pass",
    ),
    Mutant(
        "scalar factors forgotten",
        "planning/products.py",
        "for k in order]) * _scales(numbers, *tables)",
        "for k in order]) * numbers",
    ),
    Mutant(
        "partial sum loses a term",
        "planning/derived.py",
        "partial = table.make_sum(clean, last)",
        "partial = table.make_sum(clean[1:], last)",
    ),
    Mutant(
        "an output that changed is kept",
        "planning/facts.py",
        "if self.dependence.of(atom) & dirty)",
        "if i and self.dependence.of(atom) & dirty)",
    ),
    Mutant(
        "compilations reckoned by the clock where it must not decide",
        "running/timing.py",
        "elapsed if self.clock.is_running else EQUATION_S * self.executable.num_eqns",
        "elapsed",
    ),
    Mutant(
        "rests by the clock where it must not decide",
        "running/chooser.py",
        "and self.is_timed and self.clock.is_running",
        "and self.is_timed",
    ),
    Mutant(
        "races where the clock must not decide",
        "running/chooser.py",
        "is_raced = tuning.race and tuning.timed and self.is_timed",
        "is_raced = tuning.race and self.is_timed",
    ),
    Mutant(
        "budgets of several processes by free memory",
        "running/limits.py",
        "if jax.process_count() > 1:",
        "if jax.process_count() > 9:",
    ),
    Mutant(
        "a path is taken whatever its guards say",
        "tapes/guarded.py",
        "if not path.num_guards or (number := failing.item()) == path.num_guards:",
        "if (number := failing.item()) >= 0:",
    ),
    Mutant(
        "captured values are not compared",
        "tapes/guarded.py",
        "or not tape.captured.is_current() or",
        "or",
    ),
    Mutant(
        "a path that must not run on a guess runs",
        "tapes/paths.py",
        "self.needs_check = bool(self.guards) and _is_dangerous(self.program.eqns)",
        "self.needs_check = False",
    ),
    Mutant(
        "loops start before the guards in front of them hold",
        "tapes/paths.py",
        "if shared is not None and not needed <= shared:",
        "if shared is None:",
    ),
    Mutant(
        "programs on a guess under debug_nans",
        "tapes/guarded.py",
        "tape.captured.is_current() or _jax.checks_values():",
        "tape.captured.is_current():",
    ),
    Mutant(
        "derivatives beyond max_paths of constants",
        "tapes/guarded.py",
        "            return self._plain(args, kwargs)\n        if path.floats",
        "            return self._plain(*known)\n        if path.floats",
    ),
    Mutant(
        "a derivative through a Python float",
        "tapes/guarded.py",
        "if path.floats and has_tracer(leaves):",
        "if False:",
    ),
    Mutant(
        "x[i] specialises on i",
        "tapes/conversions.py",
        "    if frame is None or kind is None:\n        return None\n",
        "    kind = kind or 'value'\n",
    ),
    Mutant(
        "signed zeros are equal in captured values",
        "tapes/images.py",
        "np.asarray(a).tobytes() == np.asarray(b).tobytes()\n    if isinstance(a, (bool",
        "a == b\n    if isinstance(a, (bool",
    ),
    Mutant(
        "tapes with fewer roots are kept",
        "tapes/guarded.py",
        "if len(self._subject.roots) != num_roots:",
        "if False:",
    ),
    Mutant(
        "an effect's result decides if the function catches the error",
        "tapes/recording.py",
        "    if recorder.refused is not None:\n        raise recorder.refused\n",
        "",
    ),
    Mutant(
        "settings of JAX are no part of a path",
        "tapes/paths.py",
        "(of_config and _jax.config_key() != self._config)",
        "False",
    ),
]


def survives(mutant: Mutant) -> tuple[bool, float]:
    """Whether the tests pass with a mutant, and the seconds that it took to know."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src" / "incrax", Path(folder) / "incrax")
        path = Path(folder) / "incrax" / mutant.file
        path.write_text(path.read_text().replace(mutant.old, mutant.new))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS.split()]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return False, time.perf_counter() - start
    if run.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{run.stdout.decode()[-2000:]}")
    return run.returncode == 0, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    alive = []
    with ThreadPoolExecutor(options.jobs) as executor:
        for mutant, (lives, seconds) in zip(chosen, executor.map(survives, chosen), strict=True):
            print(f"{'ALIVE ' if lives else 'killed'} {seconds:5.0f} s  {mutant.name}", flush=True)
            alive += [mutant.name] if lives else []
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
