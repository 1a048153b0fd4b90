"""`incrax.cost`: what users call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from incrax._progress import Meter
from incrax.engine.inputs.rows import as_plain
from incrax.inspection.cost import measuring
from incrax.inspection.cost.counted import Counted, Options, check_run, count
from incrax.inspection.cost.measuring import Measured
from incrax.inspection.cost.messages import wrong_option
from incrax.inspection.cost.models import unbound
from incrax.inspection.cost.programs import (
    Call,
    Traced,
    call_of,
    forward,
    gradient,
    hessian_product,
    is_scalar,
    types_text,
)
from incrax.inspection.cost.report import PASSES, CostReport, PassCost
from incrax.inspection.cost.rows import UserRule, difference
from incrax.models.bound import Bound

BRANCHES = ("max", "both", "taken")
_NEGATIVE = (
    "Figures of the backward pass below zero: value and gradient together do less of something than the value alone, "
    "as JAX moves what is invariant out of loops that it differentiates, or a rule replaces the function."
)
_OPTIONS = ("changing", "wrt", "has_aux", "passes", "trips", "branches", "measure", "rules")


def cost(
    fun: Callable[..., Any] | Bound,
    *args: Any,
    changing: Iterable[str] | None = None,
    wrt: Any = None,
    has_aux: bool = False,
    passes: str | Iterable[str] = PASSES,
    trips: int | str | None = None,
    branches: str = "max",
    measure: bool = False,
    rules: Mapping[str, UserRule] | None = None,
    **kwargs: Any,
) -> CostReport:
    """What a function costs: FLOPs, transcendentals and bytes, forward, backward and of a Hessian times a vector.

    The function is traced and its equations are counted; nothing is evaluated unless `measure`, `trips="measured"` or
    `branches="taken"` asks for a run. Dead code is left out, equal equations count once, loops count each turn.
    Primitives that nobody registered are named, never taken for nothing.

    Args:
        fun: function of pytrees: plain, jitted, or incremental (then its equations are those that the engine runs);
            guarded (then the path that these values take is counted, with its guards); or a model made by `bind`, or
            its `value`, `grad`, `value_and_grad`, `hessian` or `jacobian`, at the inputs that it holds.
        *args: arguments, arrays of any shapes or `jax.ShapeDtypeStruct`; none for a model.
        changing: names of inputs that change, as `explain()` and `deps()` print them (`"mu"`, `"params['s']"`,
            `"theta[3]"`), or one name: the report then tells what runs again from what the engine avoids. Cotangents
            and tangents change always. Inputs of a model also by the short names that it knows.
        wrt: what the backward pass differentiates, as in `incrax.grad`; by default the first argument, or what is
            trainable in a model.
        has_aux: whether `fun` returns a pair whose second part has no derivative.
        passes: some of `"forward"`, `"backward"`, `"hvp"`, or one; the first always counts.
        trips: turns of loops whose number depends on values: a number to assume, `"measured"` for a run that counts, or
            None: one turn is counted, and the report says so.
        branches: `"max"`, the dearest one; `"both"`, all; `"taken"`, those that a run with these arguments takes.
        measure: whether to compile and time the passes and their parts, with memory.
        rules: FLOPs of primitives that are not registered: functions of the types of the inputs and of the results, and
            of the parameters of one equation.
        **kwargs: further arguments; of a model, other values or types for inputs, by name.

    Returns:
        A `CostReport`. The backward pass is value and gradient (or value and pullback, where the result is not one real
        number) without the forward pass. A multiply-add is two FLOPs; the page on costs has all conventions.

    Raises:
        CostError: an option has a value that it does not take; a run is asked for and an argument has no values, or the
            function has effects; the function branches in Python on a traced value; the function is guarded, and there
            are no values to choose a path.
        TapeError: the function is guarded, and no tape can hold the path.
        SelectionError, UnknownInputError: `wrt` or `changing` names what is not there.
        TypeError: `fun` is no function.

    Cost: three traces; of a guarded function also one that records the path, and the equations that its guards depend
        on, which it neither keeps nor counts; with `measure` two compilations of each program and at least five runs.

    Not handled: what XLA makes of the program (fusion, its own simplifications); work on the host; static arguments of
        `jax.jit` that are numbers (use a `lambda`).

    Source: conventions as in Golub and Van Loan; loops, dead code and unregistered primitives are the caveats of
        TensorFlow's profiler.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> a = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> report = incrax.cost(lambda a, b: a @ b, a, a, wrt=(0, 1))
        >>> report.forward.total.flops == 2 * 64**3, report.ratio
        (True, 2.0)
    """
    passes = (passes,) if isinstance(passes, str) else tuple(passes)
    _check_options(passes, trips, branches)
    names = None if changing is None else (changing,) if isinstance(changing, str) else tuple(changing)
    is_named, bound = wrt is not None, unbound(fun, args, kwargs)
    if bound is not None:
        fun, args, kwargs = bound.fun, bound.args, {}
        wrt, names = bound.selected(wrt), None if names is None else tuple(map(bound.path, names))
    args, kwargs = as_plain((args, kwargs))
    call = call_of(fun, args, kwargs, _OPTIONS, has_aux=has_aux)
    asked = _Asked(call, Options(names, trips, branches, measure, rules or {}), passes)
    nothing = "nothing in the first argument has one" if bound is None else "no input of the model is trainable"
    return asked.report(lambda: call.differentiated(wrt, args, kwargs), "" if is_named else nothing)


def _check_options(passes: Sequence[str], trips: int | str | None, branches: str) -> None:
    if any(each not in PASSES for each in passes):
        raise wrong_option("passes", next(each for each in passes if each not in PASSES), PASSES)
    is_number = isinstance(trips, int) and not isinstance(trips, bool) and trips >= 0
    if trips is not None and trips != "measured" and not is_number:
        raise wrong_option("trips", trips, ("measured",), ", a number of turns from 0 on, or None")
    if branches not in BRANCHES:
        raise wrong_option("branches", branches, BRANCHES)


@dataclass
class _Asked:
    """A call, what was asked of it, and what one should know of the answer."""

    call: Call
    options: Options
    passes: Sequence[str]
    notes: list[str] = field(default_factory=list)

    def report(self, select: Callable[[], list[int]], nothing: str) -> CostReport:
        """Count all that was asked for; `select` gives the values that are differentiated.

        `nothing` says why there may be none; where there must be some, it is empty.
        """
        both = product = None
        with Meter(f"counting {self.call.name}", len(PASSES)) as meter:
            traced, results = forward(self.call)
            check_run(self.call, traced, self.options)
            value = count(self.call, traced, self.options)
            numbers = self._selected(select, nothing) if set(self.passes) - {"forward"} else []
            meter.advance()
            if "backward" in self.passes and numbers and self._is_smooth(results):
                both = self._derivative("backward pass", lambda: gradient(self.call, numbers, results))
            meter.advance()
            if "hvp" in self.passes and numbers and self._is_scalar(results):
                product = self._product(numbers)
        found = [each for each in (value, both, product) if each is not None]
        backward = None if both is None else _backward(both, value)
        if backward is not None and min(backward.total) < 0:
            self.notes.append(_NEGATIVE)
        return CostReport(
            name=self.call.name,
            arguments=types_text(self.call),
            forward=value.as_pass("forward"),
            backward=backward,
            hvp=None if product is None else product.as_pass("hvp"),
            changing=self.options.changing,
            branches=self.options.branches,
            measured=self._measured(value, both, product),
            notes=(*self._general_notes(found), *self.notes),
        )

    def _selected(self, select: Callable[[], list[int]], nothing: str) -> list[int]:
        """The values that are differentiated; where nothing was named and nothing can be, none and a note."""
        try:
            return select()
        except (TypeError, ValueError):
            if not nothing:
                raise
            self.notes.append(f"No derivatives: {nothing}. Name others by `wrt=`.")
            return []

    def _is_smooth(self, results: Sequence[Any]) -> bool:
        if not results:
            self.notes.append("No backward pass: no result is a floating-point number.")
        return bool(results)

    def _is_scalar(self, results: Sequence[Any]) -> bool:
        if not is_scalar(results):
            self.notes.append("No Hessian-vector product: the result is not one real number.")
        return is_scalar(results)

    def _product(self, numbers: list[int]) -> Counted | None:
        """Forward over reverse; reverse over reverse where a rule for cotangents has no tangents."""
        title = "Hessian-vector product"
        product = self._derivative(title, lambda: hessian_product(self.call, numbers))
        if product is None or not product.is_derivative_missing:
            return product
        self.notes.append("The Hessian-vector product is reverse over reverse: a `custom_vjp` rule has no tangents.")
        return self._derivative(title, lambda: hessian_product(self.call, numbers, is_forward=False))

    def _derivative(self, title: str, make: Callable[[], Traced]) -> Counted | None:
        """A program of a derivative; None, and a note, where JAX has none."""
        try:
            traced = make()
        except (TypeError, ValueError, NotImplementedError) as error:
            self.notes.append(f"No {title}: {type(error).__name__}: {_first_line(error)}")
            return None
        return count(self.call, traced, self.options)

    def _measured(self, value: Counted, both: Counted | None, product: Counted | None) -> tuple[Measured, ...]:
        if not self.options.measure:
            return ()
        named = (("forward", value), ("value and gradient", both), ("Hessian-vector product", product))
        return tuple(
            measuring.measure(name, each.root.program, each.traced.inputs(self.call.values), each.cost_of)
            for name, each in named
            if each is not None
        )

    def _general_notes(self, found: Sequence[Counted]) -> list[str]:
        notes = []
        if self.call.plain.num_guards:
            notes.append(_path_note(self.call.plain.num_guards))
        if any(not row.is_counted for each in found for row in each.rows.equations):
            notes.append("Some primitives are not registered: the totals lack their work. Pass `rules=`.")
        if any(loop.known_from == "unknown" for each in found for loop in each.rows.loops):
            notes.append(
                "Some loops have unknown trips: one turn of each is counted. Pass `trips=`, 'measured' or a number."
            )
        if self.options.is_as_run(self.call):
            notes.append("Equations are those that the engine runs: hoisted out of loops, nothing rematerialized.")
        return notes


def _backward(both: Counted, value: Counted) -> PassCost:
    """What value and gradient have, and the value alone has not."""
    known = list(value.rows.loops)
    loops = []
    for loop in both.rows.loops:
        if loop in known:
            known.remove(loop)
        else:
            loops.append(loop)
    return PassCost("backward", difference(both.rows.equations, value.rows.equations), tuple(loops))


def _path_note(num_guards: int) -> str:
    guards = f"its {num_guards} guards" if num_guards > 1 else "its guard"
    return f"Counted is the path that these values take, with {guards}; others may take another one."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
