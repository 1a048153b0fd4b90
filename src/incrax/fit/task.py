"""What is minimised: a function of pytrees as counted functions of one vector.

In: a function, its arguments, what is free, bounds. Out: a `Task`, and `CountedTask` for one search
of it. Every way to name a function to `minimize` ends here, in `make_task`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from incrax import Bound, Incremental, Prepared, Tuning, prepare
from incrax._table import many
from incrax.derivatives.prepared import tuning_of
from incrax.derivatives.transforms import options_of, plain
from incrax.errors import MethodError
from incrax.fit.problem import Problem, posed
from incrax.models.bound import prepared_of
from incrax.models.bounds import Box

Callback = Callable[[Any, float], "bool | None"]


class Task(NamedTuple):
    """A scalar function of pytrees, where its search starts, in which bounds, and its
    evaluation.

    Fields:
        problem: the function, start, bounds, and the way between pytrees and vectors.
        flat: of a float64 vector of shape (n,): methods `value(x)`, `value_and_gradient(x)`,
            `hessian(x)`, `hvp(x, v)`, as of `Prepared.flat`.
        prepared: whose counters tell of the work avoided; None for other evaluations.

    Example:
        >>> from incrax import fit
        >>> task = fit.make_task(lambda p: (p["a"] - 1.0) ** 2, ({"a": 3.0},))
        >>> task.names, task.x.tolist(), float(task.flat.value(task.x))
        (("p['a']",), [3.0], 4.0)
    """

    problem: Problem
    flat: Any
    prepared: Prepared | None = None

    @property
    def fun(self) -> Callable[..., Any]:
        """The function of the arguments, plain."""
        return plain(self.problem.fun)

    @property
    def x(self) -> np.ndarray:
        """The start, float64 of shape (n,)."""
        return np.array(self.problem.x, np.float64)

    @property
    def bounds(self) -> Box:
        """Lower and upper bound of each element, shape (n,) each."""
        return Box(*(each.astype(np.float64) for each in self.problem.box))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the elements of the vector."""
        return self.problem.names

    def tree(self, x: Any) -> Any:
        """A vector in the shape that callbacks and results have."""
        return self.problem.tree(np.asarray(x))


def make_task(fun: Any, args: tuple[Any, ...], wrt: Any = None, bounds: Any = None) -> Task:
    """What `minimize(fun, *args, wrt=, bounds=)` minimises; a `Task` is itself.

    Args:
        fun: function or bound model, as for `minimize`.
        args: the function's arguments at the start of the search.
        wrt: what is free, as for `minimize`.
        bounds: as for `minimize`.

    Returns:
        The function of one vector of float64, its start, bounds and names.

    Raises:
        SelectionError: `wrt` cannot be understood or selects nothing that has a derivative.
        BoundsError: bounds name nothing free, are no pairs, or exclude the start.
        ParameterTypeError: a free leaf of a bound model is complex.

    Example:
        >>> from incrax import fit
        >>> task = fit.make_task(lambda p, x: (p - x) ** 2, (3.0, 1.0), bounds={"p": (0, 10)})
        >>> task.names, task.x.tolist()
        (('p',), [3.0])
    """
    if isinstance(fun, Task):
        return fun
    found = posed("minimize", fun, args, wrt, bounds)
    if isinstance(fun, Bound):
        return Task(found, fun.flat(), prepared_of(fun))
    return task_of(found)


# --- for fits -------------------------------------------------------------------------------------


def slope(task: Task, x: np.ndarray) -> np.ndarray:
    """The gradient at a vector, shape (n,)."""
    return np.asarray(task.flat.value_and_gradient(x)[1])


def methods_of(task: Task) -> Collection[Incremental[..., Any]]:
    """The functions that evaluate it, as far as they were made."""
    made = {} if task.prepared is None else task.prepared.methods
    return made.values()


def work_of(task: Task) -> Work:
    """All work of these functions so far."""
    ran = whole = 0
    for method in methods_of(task):
        stats = method.stats
        ran += stats.ran + stats.filled
        if num_calls := stats.calls - stats.aborted:  # before a call it has no equations
            whole += num_calls * method.num_equations
    return Work(ran, whole)


def task_of(found: Problem) -> Task:
    """Of a scalar function."""
    prepared = prepare(found.fun, *found.args, wrt=found.wrt, **options_of(found.fun))
    return Task(found, prepared.flat_at(*found.args, free=found.masks()), prepared)


@contextmanager
def returns_one_number(task: Task) -> Iterator[None]:
    """Evaluations of a function that may return something else.

    That is asked after an error only: before, it would be one more trace of the whole function.

    Raises:
        MethodError: the function returns no real number.
    """
    try:
        yield
    except Exception as error:
        wrong = _wrong_result(task)
        if wrong is None:
            raise
        raise wrong from error


def _wrong_result(task: Task) -> MethodError | None:
    """What is wrong with the result of a function; None if nothing is, or it cannot be traced."""
    value = lambda x: task.fun(*task.problem.arguments(x))
    try:
        found = jax.eval_shape(value, task.problem.x)
    except Exception:  # noqa: BLE001  the error that is under way says why
        return None
    leaves = jax.tree.leaves(found)
    are_real = [each.shape == () and jnp.issubdtype(each.dtype, jnp.floating) for each in leaves]
    if are_real == [True]:
        return None
    seen = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or repr(found)
    return MethodError(
        f"A minimum needs a function that returns one real number, and got {seen} from it. "
        "Nothing was minimised. Sum it up, or pass residuals to `levenberg_marquardt`."
    )


# --- one search -----------------------------------------------------------------------------------


class Counts(NamedTuple):
    """Evaluations, one for each point where something had to be evaluated.

    Fields:
        values: of the value alone.
        gradients: of value and gradient by one program.
        hessians: of the Hessian.
        products: of the Hessian times a vector.

    Example:
        >>> from incrax import fit
        >>> result = fit.minimize(lambda p: (p["a"] - 1.0) ** 2, {"a": 0.0}, method="BFGS")
        >>> result.counts.gradients > 0, result.counts.hessians
        (True, 0)
    """

    values: int = 0
    gradients: int = 0
    hessians: int = 0
    products: int = 0

    def text(self, work: Work) -> str:
        """What was evaluated, and what share of it saved values avoided."""
        done = [many(count, name[:-1]) for name, count in self._asdict().items() if count]
        done = done or ["no evaluations"]
        avoided = [f"{work.avoided:.0%} of the work avoided"] if work.ran else []
        return ", ".join([*done, *avoided])


class Work(NamedTuple):
    """What saved values avoided, in equations of the programs called.

    Fields:
        ran: equations run.
        whole: those that evaluations from scratch would have run.

    Example:
        >>> from incrax import fit
        >>> result = fit.minimize(lambda p, x: x * (p["a"] - 1.0) ** 2, {"a": 0.0}, 2.0)
        >>> 0 < result.work.ran <= result.work.whole
        True
    """

    ran: int
    whole: int

    @property
    def avoided(self) -> float:
        """The share that was not run, 0 to 1."""
        # Searches of few calls may run more: partial sums are made first, and read later.
        return max(1.0 - self.ran / self.whole, 0.0) if self.whole else 0.0

    def since(self, before: Work) -> Work:
        """The work after an earlier moment."""
        return Work(self.ran - before.ran, self.whole - before.whole)


class Stopped(Exception):
    """A search is over before its method says so, for the reason that is its text."""


NUM_KNOWN = 3
"""Points whose values a search remembers."""
LEAST_COMPILE_S = 0.25
"""No program that takes XLA less is worth a thought."""
NUM_TIMED = 3
"""Evaluations from which on the fastest tells what one takes."""
GRADIENT_SHARE = 0.6
"""Of an evaluation of value and gradient, what the gradient takes."""
NUM_LATEST = 8
"""Values of steps that tell how many gradients a search asks for."""


class ValueAt(NamedTuple):
    """What was evaluated at a point."""

    value: float
    gradient: np.ndarray | None = None
    """Shape (n,); None where the value alone was evaluated."""
    ahead_s: float = 0.0
    """Seconds of an evaluation of both, while nobody has asked for the gradient."""


@dataclass
class Ahead:
    """Gradients evaluated with values, as methods ask for both in turns: one program, not two.

    The gradients that nobody asks for are the price, some 0.6 of their evaluations; a program of
    the value alone compiles in some 0.4 of what that of both takes. It is made where the first will
    be more than the second, by a guess of how many there will be, or was so far: by that alone, a
    search that ends soon after would pay for both.

    Searches share programs, not habits: whether a value is evaluated alone once that program is
    worth it, each of them decides; see `CountedTask.expect_values`.
    """

    is_timed: bool
    """Whether seconds may decide; see `Tuning`."""
    first_s: float = 0.0
    """Of the first evaluation, which compiles."""
    num_timed: int = 0
    """Evaluations after it."""
    least_s: float = math.inf
    """Of those."""
    unasked_s: float = 0.0
    """Of evaluations whose gradients nobody asked for."""
    has_value_program: bool = False
    """Whether values were evaluated alone: the next one need not pay for that program."""

    def is_dear(self, num_values: int) -> bool:
        """Whether gradients for nobody are, where so many values are expected without one."""
        if self.has_value_program:
            return True
        # The first of them pay for planning, some ten times what they take later.
        expected_s = num_values * self.least_s if self.num_timed >= NUM_TIMED else 0.0
        gradients_s = GRADIENT_SHARE * max(self.unasked_s, expected_s)
        return self.is_timed and gradients_s > max(0.4 * self.first_s, LEAST_COMPILE_S)

    def note(self, seconds: float) -> float:
        """Count an evaluation; returns what of it may turn out to be for nothing."""
        if not self.first_s:
            self.first_s = seconds
            return 0.0
        self.num_timed += 1
        self.least_s = min(self.least_s, seconds)
        self.unasked_s += seconds
        return seconds


_aheads: WeakKeyDictionary[Any, Ahead] = WeakKeyDictionary()
"""By what evaluates: searches of a bound model share programs, and this."""


def _ahead_of(task: Task) -> Ahead:
    tuning = Tuning() if task.prepared is None else tuning_of(task.prepared)
    is_timed = tuning.timed and jax.process_count() == 1
    return _aheads.setdefault(task.prepared or task.flat, Ahead(is_timed))


@dataclass(eq=False)
class CountedTask:
    """The functions of a task during one search: counted, limited, watched; one evaluation per
    point.

    A gradient is evaluated with its value by one program, and both are remembered for the latest
    points, so that a method which asks for them one after the other pays once.
    """

    task: Task
    max_calls: float = np.inf
    watch: Callable[[], None] = lambda: None
    """Called before each evaluation."""
    callback: Callback | None = None

    def __post_init__(self) -> None:
        self._flat = self.task.flat
        self.bounds: Box = self.task.bounds
        self.counts: Counts = Counts()
        self.best: tuple[float, np.ndarray] = (np.inf, self.task.x)
        self._before: Work = work_of(self.task)
        self._second: Any = 0.0
        self._known: dict[bytes, ValueAt] = {}
        self._ahead = _ahead_of(self.task)
        self._num_values: int = 0
        self._share_asked: float = 1.0
        """Of the latest values of steps, those whose gradients were asked for."""

    def expect_values(self, num: int) -> None:
        """Of so many points, at a guess, the method will want the value alone, as long as what it
        asks for does not say otherwise.
        """
        self._num_values = num
        self._share_asked = 0.0

    @property
    def work(self) -> Work:
        """What saved values avoided so far."""
        return work_of(self.task).since(self._before)

    def value(self, x: Any) -> float:
        """The value at a vector."""
        x = np.array(x, np.float64)
        known = self._known.get(x.tobytes())
        if known is not None:
            return known.value
        self._count("values")
        return self._seen(x, ValueAt(float(self._evaluated(self._flat.value, x))))

    def value_of_step(self, x: Any) -> float:
        """The value at a vector, where the gradient may be asked for next; see `Ahead`."""
        x = np.array(x, np.float64)
        if x.tobytes() in self._known:
            return self.value(x)
        self._share_asked *= 1 - 1 / NUM_LATEST
        # With a share s of gradients asked for, alone takes 1 - g + s, and both 1.
        if self._share_asked < GRADIENT_SHARE and self._ahead.is_dear(self._num_values):
            self._ahead.has_value_program = True
            return self.value(x)
        self._count("gradients")
        start_s = time.perf_counter()
        value, gradient = self._evaluated(self._flat.value_and_gradient, x)
        ahead_s = self._ahead.note(time.perf_counter() - start_s)
        return self._seen(x, ValueAt(value, gradient, ahead_s))

    def value_and_gradient(self, x: Any) -> tuple[float, np.ndarray]:
        """Value and gradient, shape (n,)."""
        x = np.array(x, np.float64)
        key = x.tobytes()
        known = self._known.get(key)
        value, gradient, ahead_s = known or ValueAt(0.0)
        if known is not None and (gradient is None or ahead_s):
            self._share_asked += 1 / NUM_LATEST
        if gradient is None:
            self._count("gradients")
            value, gradient = self._evaluated(self._flat.value_and_gradient, x)
            self._seen(x, ValueAt(value, gradient))
        elif ahead_s:
            self._ahead.unasked_s -= ahead_s
            self._known[key] = ValueAt(value, gradient)
        return value, gradient.copy()

    def gradient(self, x: Any) -> np.ndarray:
        """The gradient, shape (n,)."""
        return self.value_and_gradient(x)[1]

    def hessian(self, x: Any) -> np.ndarray:
        """The second derivatives, shape (n, n)."""
        self._count("hessians")
        self._second = self._flat.hessian(np.array(x, np.float64))
        return self._second

    def hvp(self, x: Any, v: Any) -> np.ndarray:
        """The Hessian times a vector, shape (n,)."""
        self._count("products")
        self._second = self._flat.hvp(np.array(x, np.float64), np.asarray(v, np.float64))
        return self._second

    @property
    def is_finite(self) -> bool:
        """Whether what was evaluated lately is."""
        known = [each for pair in self._known.values() for each in pair if each is not None]
        return all(np.all(np.isfinite(each)) for each in (self._second, *known))

    # --- inner ------------------------------------------------------------------------------------

    def _evaluated(self, evaluate: Callable[[np.ndarray], Any], x: np.ndarray) -> Any:
        """A value, or value and gradient."""
        with returns_one_number(self.task):
            found = evaluate(x)
            if isinstance(found, np.ndarray):
                raise TypeError("a value of several numbers")
        return found

    def _count(self, name: str) -> None:
        if sum(self.counts) >= self.max_calls:
            raise Stopped("limit of calls reached")
        self.counts = self.counts._replace(**{name: getattr(self.counts, name) + 1})
        self.watch()

    def _seen(self, x: np.ndarray, found: ValueAt) -> float:
        while len(self._known) > NUM_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[x.tobytes()] = found
        if found.value < self.best[0]:
            self.best = found.value, x
            if self.callback is not None and self.callback(self.task.tree(x), found.value):
                raise Stopped("stopped by the callback")
        return found.value


# --- what a method is given, and what it hands back -----------------------------------------------


class MethodSettings(NamedTuple):
    """What users asked of a method."""

    errordef: float
    tolerance: float | None
    """None: the method's default."""
    max_calls: int
    options: Mapping[str, Any]
    """Of the method alone."""


class Ended(NamedTuple):
    """The end of a search by its method's own account."""

    x: np.ndarray
    is_done: bool
    message: str
    metric: np.ndarray | None = None
    """An estimate of the Hessian at the end, shape (n, n), where a method has one that can be
    relied on.
    """
    is_limited: bool = False
    """Whether a limit of steps of the method ended it."""
    num_steps: int | None = None
