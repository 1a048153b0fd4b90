"""Question: how much faster than on jax.jit are fits, profiles and intervals over saved values,
with equal results?

The same driver runs over `prepare(...).flat` and over compiled functions of the same vector; each
is warmed up by one whole run. Problem A: a mixture with 8 parameters, everything free. Problem B:
an amplitude analysis with shapes fixed, 19 complex couplings free. Targets: profile of 8 parameters
x 30 points and MINOS of A >= 2x; fit, profile and MINOS of B >= 10x. `mnprofile` is Minuit's own
profile over the compiled functions. Results are equal where they differ by less than a thousandth
of a standard error, or of the error definition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import JIT, OURS, Check, Line, Options, Timing
from jax.flatten_util import ravel_pytree
from problems import amplitude, mixture

from incrax import fit

MNPROFILE = "mnprofile, jax.jit"
SHIFT = 0.02
"""Of the start of a fit, relative."""
NUM_TRIALS = 10
"""Uniform events for each one drawn."""
QUICK_EVENTS = 2_000
QUICK_AMPLITUDES = 4
EQUAL = 1e-3


class Compiled:
    """A form of a task's function by `jax.jit`, first argument free."""

    def __init__(self, task: fit.Task, fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
        _, self._unravel = ravel_pytree(args[0])
        self._arguments, self._rest = task.prepared.flat.arguments, args[1:]
        self._value, self._both = jax.jit(fun), jax.jit(jax.value_and_grad(fun))
        flat = lambda x, *rest: fun(self._unravel(x), *rest)
        self._hessian = jax.jit(jax.hessian(flat))

    def value(self, x: Any) -> float:
        return float(self._value(self._arguments(x)[0], *self._rest))

    def value_and_gradient(self, x: Any) -> tuple[float, np.ndarray]:
        value, gradient = self._both(self._arguments(x)[0], *self._rest)
        return float(value), np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])

    def hessian(self, x: Any) -> np.ndarray:
        return np.asarray(self._hessian(jnp.asarray(x), *self._rest))

    def hvp(self, x: Any, v: Any) -> np.ndarray:
        return self.hessian(x) @ v


class Problem(NamedTuple):
    """A task per form, all alike but for the evaluation, and the elements that scans take."""

    tasks: Mapping[str, fit.Task]
    scanned: tuple[str, ...]


def tasks(
    fun: Callable[..., Any], *args: Any, others: Mapping[str, Callable[..., Any]]
) -> dict[str, fit.Task]:
    """The task over saved values, over jax.jit, and over jax.jit of other forms of the function."""
    ours = fit.make_task(fun, args)
    found = {OURS: ours}
    for name, form in {JIT: fun, **others}.items():
        found[name] = ours._replace(flat=Compiled(ours, form, args), prepared=None)
    return found


def problem_a(options: Options) -> Problem:
    """All eight parameters of the mixture."""
    num_events = QUICK_EVENTS if options.quick else mixture.NUM_EVENTS
    p, x = mixture.truth(num_events), mixture.make_data(num_events)
    start = {name: value * (1 + SHIFT * (-1) ** k) for k, (name, value) in enumerate(p.items())}
    made = tasks(mixture.nll, start, x, others={})
    return Problem(made, made[OURS].problem.names)


def problem_b(options: Options) -> Problem:
    """All couplings but the first, which sets scale and phase."""
    size = (
        (QUICK_AMPLITUDES, QUICK_EVENTS)
        if options.quick
        else (amplitude.NUM_AMPLITUDES, amplitude.NUM_EVENTS)
    )
    inputs = amplitude.make_inputs(size[0], NUM_TRIALS * size[1])
    inputs = inputs._replace(
        data=drawn(inputs, size[1]), monte_carlo=cut(inputs.monte_carlo, slice(size[1]))
    )
    truth = {part: np.asarray(values) for part, values in inputs.couplings.items()}
    rest = (inputs.shapes, inputs.data, inputs.monte_carlo)

    def of(nll: Callable[..., Any]) -> Callable[..., Any]:
        def nll_of_others(couplings: Any, first: Any, *rest: Any) -> Any:
            return nll(
                {part: jnp.concatenate([first[part], couplings[part]]) for part in couplings}, *rest
            )

        return nll_of_others

    first = {part: values[:1] for part, values in truth.items()}
    start = {part: values[1:] * (1 + SHIFT) for part, values in truth.items()}
    made = tasks(
        of(amplitude.nll_vectorised),
        start,
        first,
        *rest,
        others={"unrolled, jax.jit": of(amplitude.nll_unrolled)},
    )
    return Problem(made, made[OURS].problem.names[:2])


def cut(events: amplitude.Events, chosen: Any) -> amplitude.Events:
    """Some of the events."""
    return amplitude.Events(*(part[chosen] for part in events))


def drawn(inputs: amplitude.Inputs, num_events: int) -> amplitude.Events:
    """As many of the uniform events, drawn with the intensity as weight: a fit of them ends near
    the truth.
    """
    weights = np.asarray(
        jax.jit(amplitude.intensity_unrolled)(inputs.couplings, inputs.shapes, inputs.data)
    )
    rng = np.random.default_rng(2)
    return cut(
        inputs.data, rng.choice(len(weights), num_events, replace=False, p=weights / weights.sum())
    )


# --- what is timed --------------------------------------------------------------------------------

Run = Callable[[fit.FitResult], np.ndarray]
"""From a minimum to numbers in units of errors, which all forms must share."""


def fitted(found: fit.FitResult) -> np.ndarray:
    """The fit again, from the start of its task."""
    return fit.minimize(found.task, progress=False).values / found.errors


def profiled(names: tuple[str, ...]) -> Run:
    """Profiles of 30 points."""
    return lambda found: np.stack([fit.profile(found, name, progress=False).rise for name in names])


def by_minuit(names: tuple[str, ...]) -> Run:
    """The same by Minuit's `mnprofile`."""
    import iminuit

    def run(found: fit.FitResult) -> np.ndarray:
        flat = found.task.flat
        gradient = lambda x: flat.value_and_gradient(x)[1]
        minuit = iminuit.Minuit(flat.value, found.values, grad=gradient, name=found.names)
        minuit.errordef, minuit.strategy, minuit.errors = found.errordef, 0, found.errors
        grids = [fit.profile(found, name, num_points=2, progress=False).grid for name in names]
        made = [
            minuit.mnprofile(name, size=30, bound=tuple(ends))[1]
            for name, ends in zip(names, grids, strict=True)
        ]
        return np.stack(made) - found.value

    return run


def intervals(names: tuple[str, ...]) -> Run:
    """MINOS."""

    def run(found: fit.FitResult) -> np.ndarray:
        made = found.minos(*names)
        return (
            np.array([[made[name].lower, made[name].upper] for name in names]) / found.errors[:2][0]
        )

    return run


def lines(options: Options) -> Iterator[Line]:
    """Every problem and every run, all forms by turns."""
    for label, make, factor in (("A", problem_a, 2.0), ("B", problem_b, 10.0)):
        problem = make(options)
        names = problem.scanned
        runs = {
            "fit": fitted,
            f"{len(names)} profiles": profiled(names),
            f"MINOS of {len(names)}": intervals(names),
        }
        wanted = {name: run for name, run in runs.items() if options.only in f"{label}: {name}"}
        minima = minima_of(problem) if wanted else {}
        for name, run in wanted.items():
            forms = {form: (run, found) for form, found in minima.items()}
            if "profiles" in name and label == "A":
                forms[MNPROFILE] = (by_minuit(names), minima[JIT])
            yield line(
                f"{label}: {name}",
                forms,
                options,
                None if label == "A" and name == "fit" else factor,
            )


def minima_of(problem: Problem) -> dict[str, fit.FitResult]:
    """The minimum of each form; errors and Hessian are those of ours, so that no form times
    them.
    """
    ours = fit.minimize(problem.tasks[OURS], tolerance=1e-4, progress=False)
    shared = {"hessian": ours.hessian, "gradient": ours.gradient}
    found = {
        form: replace(ours, _make_task=lambda task=task: task, intervals={})
        for form, task in problem.tasks.items()
    }
    for each in found.values():
        vars(each).update(shared)
    return found


def line(
    case: str,
    forms: Mapping[str, tuple[Run, fit.FitResult]],
    options: Options,
    factor: float | None,
) -> Line:
    """Times and ratios of whole runs, and how far the results differ."""
    results = {name: run(found) for name, (run, found) in forms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(options.rounds):
        for name, (run, found) in list(forms.items())[:: -1 if turn % 2 else 1]:
            begin = time.perf_counter()
            results[name] = run(found)
            seconds[name].append(time.perf_counter() - begin)
    timings: dict[str, Timing] = {name: harness.summary(times) for name, times in seconds.items()}
    made = harness.timing_line(
        case, timings, [] if factor is None else [harness.Speed(JIT, factor)]
    )
    difference = max(
        float(np.max(np.abs(results[name] - results[OURS]))) for name in forms if name != MNPROFILE
    )
    made.cells["difference"] = f"{difference:.1e}"
    made.numbers["difference"] = difference
    made.checks.append(
        Check(f"difference <= {EQUAL:g}", f"difference {difference:.1e}", difference <= EQUAL)
    )
    return made


if __name__ == "__main__":
    given = harness.start(__doc__, rounds=5, quick_rounds=1)
    harness.report("fits, profiles and intervals", lines(given), given)
