"""Recording: JAX stages the program, and its tracers tell their values when Python asks, each answer
a guard.

In: a function of flat arrays, and arrays. Out: a `Recording`. A value is computed when it is asked
for, from what was staged so far, so that an equation no branch depends on does not run here at all.

    RecordedTracer   what Python may ask of a value
    Recorder         the trace, which knows values and keeps what was learned
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._locations import Place, caller, is_asked_by_jax, place_of
from incrax._program import STATEFUL, Program, Values, from_jaxpr
from incrax.control_flow.tapes.guards import Guard, key_of
from incrax.engine.program.simplify import inline, needed_equations
from incrax.errors import GuardOnEffectError

# --- what Python asks -----------------------------------------------------------------------------

READS = {
    "__bool__": "bool",
    "__int__": "int",
    "__index__": "int",
    "__hex__": "int",
    "__oct__": "int",
    "concrete_or_error": "value",
    "_is_slice_element_none_or_constant_or_symbolic": "int",
    "expand_bool_indices": "value",
}
"""Functions of JAX that get the value of a tracer because Python needs it; any other gets None and
stays traced.
"""


class RecordedTracer(_jax.JaxprTracer):
    """A staged value that tells what it is, at the price of a guard."""

    __slots__ = ()
    _trace: Any
    """A `Recorder`."""

    def __bool__(self) -> bool:
        if self.size != 1:
            return bool(np.zeros(self.shape))
        return bool(np.asarray(learned(self, "bool")).reshape(()))

    def __int__(self) -> int:
        return self._scalar(int)

    def __float__(self) -> float:
        return self._scalar(float)

    def __complex__(self) -> complex:
        return self._scalar(complex)

    def _scalar(self, kind: type) -> Any:
        if self.ndim > 0:
            raise TypeError(
                f"Only scalar arrays can be converted to Python scalars; got tracer.ndim={self.ndim}"
            )
        is_int = kind is int or (kind is float and _is_integer(self))
        return kind(np.asarray(learned(self, "int" if is_int else "value"))[()])

    def __index__(self) -> int:
        if self.shape != () or not jnp.issubdtype(self.dtype, jnp.integer):
            raise TypeError("Only integer scalar arrays can be converted to a scalar index.")
        return operator.index(np.asarray(learned(self, "int"))[()])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if _jax.is_key_dtype(self.dtype):
            raise TypeError("JAX array with PRNGKey dtype cannot be converted to a NumPy array.")
        array = _jax.bits_on_host(learned(self, "value"))
        return array if dtype is None else array.astype(dtype)

    def tolist(self) -> Any:
        """Nested lists of the value."""
        return self.__array__().tolist()

    def __format__(self, spec: str) -> str:
        def formatted(value) -> str:
            return format(np.asarray(value)[()] if np.ndim(value) == 0 else value, spec)

        return self._text(formatted, super().__str__)

    def __str__(self) -> str:
        return self._text(str, super().__str__)

    def __repr__(self) -> str:
        return self._text(repr, super().__repr__)

    def _text(self, form: Callable[[Any], str], plain: Callable[[], str]) -> str:
        """Text of the value, which becomes a guard; no value where JAX names something by it, and
        when the run is over just that of a traced value.
        """
        frame = caller()
        if self._trace.is_over:
            return plain()
        if is_asked_by_jax(frame):
            return f"a traced {self.dtype.name}{list(self.shape)}"
        return form(learned(self, "value", place_of(frame)))

    def block_until_ready(self) -> Any:
        """The value itself: nothing is computed yet."""
        return self

    def to_concrete_value(self) -> Any:
        """The value where a function of JAX needs it for Python; else None, so that what can stay
        traced does.
        """
        frame = caller()
        while frame is not None and _passes_on(frame):
            frame = frame.f_back
        kind = None if frame is None else _kind_read(frame)
        if frame is None or kind is None:
            return None
        if kind == "int" and not _is_integer(self) and frame.f_code.co_name != "__int__":
            kind = "value"
        return jnp.asarray(learned(self, kind))


def learned(tracer: Any, kind: str, place: Place | None = None) -> Any:
    """The value of a tracer; what the conversion tells of it becomes a guard."""
    value = tracer._trace.value_of(tracer)
    place = place or place_of(caller())
    is_float = kind == "value" and jnp.issubdtype(tracer.dtype, jnp.inexact)
    guard = Guard(kind, key_of(kind, value), place.where, place.expression, bool(is_float))
    tracer._trace.learn(tracer, guard)
    return value


def _passes_on(frame: FrameType) -> bool:
    """Whether a function just hands on the question for a value."""
    is_ours = frame.f_globals.get("__name__", "").startswith("incrax.control_flow.tapes.")
    return is_ours or frame.f_code.co_name in ("to_concrete_value", "is_concrete")


def _kind_read(frame: FrameType) -> str | None:
    is_of_jax = frame.f_globals.get("__name__", "").startswith("jax.")
    return READS.get(frame.f_code.co_name) if is_of_jax else None


def _is_integer(tracer: Any) -> bool:
    return tracer.size == 1 and (jnp.issubdtype(tracer.dtype, jnp.integer) or tracer.dtype == bool)


# --- the program ----------------------------------------------------------------------------------

Flat = Callable[..., Sequence[Any]]


class Recording(NamedTuple):
    """A straight-line program whose outputs are results, then the values that guards are about."""

    program: Program
    num_results: int
    guards: tuple[Guard, ...]


class Recorder(_jax.JaxprTrace):
    """Stages equations, tells values, and keeps what Python learned."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.known: dict[Any, tuple[Any, bool]] = {}
        self.symbols: list[Any] = []
        self.guards: list[Guard] = []
        self.seen: set[tuple[Any, str]] = set()
        self.is_over = False
        self.refused: GuardOnEffectError | None = None
        """Why this run cannot be a path, should the user's code catch the error."""

    def new_arg(self, *args: Any, **kwargs: Any) -> Any:
        """An input."""
        return _told(super().new_arg(*args, **kwargs))

    def var_to_tracer(self, *args: Any, **kwargs: Any) -> Any:
        """What an equation writes."""
        return _told(super().var_to_tracer(*args, **kwargs))

    def _new_const(self, *args: Any, **kwargs: Any) -> Any:
        return _told(super()._new_const(*args, **kwargs))

    # --- guards -----------------------------------------------------------------------------------

    def value_of(self, tracer: Any) -> Any:
        """The value of a staged value.

        Raises:
            UnexpectedTracerError: the run is over.
        """
        if self.is_over:
            raise jax.errors.UnexpectedTracerError(
                "A traced value of a guarded function was read after the call that made it. "
                "Functions are recorded with traced values in place of arrays, and later calls do "
                "not run them, so that it would be out of date. Return it as a result instead of "
                "storing it."
            )
        try:
            return self._known(tracer)[0]
        except GuardOnEffectError as error:
            self.refused = self.refused or error
            raise

    def learn(self, tracer: Any, guard: Guard) -> None:
        """Note a guard, unless the value depends on no input, or just that is known of it."""
        has_inputs = self._known(tracer)[1]
        if has_inputs and (tracer.val, guard.kind) not in self.seen:
            self.seen.add((tracer.val, guard.kind))
            self.symbols.append(tracer)
            self.guards.append(guard)

    # --- values -----------------------------------------------------------------------------------

    def _known(self, tracer: Any) -> tuple[Any, bool]:
        """A value, and whether it depends on an input; equations are evaluated at most once."""
        waiting = [tracer]
        while waiting:
            current = waiting[-1]
            if self._lookup(current) is not None:
                waiting.pop()
                continue
            missing = [t for t in current.parent.in_tracers if self._lookup(t) is None]
            waiting += missing
            if not missing:
                self._evaluate(current.parent)
        found = self._lookup(tracer)
        assert found is not None
        return found

    def _lookup(self, tracer: Any) -> tuple[Any, bool] | None:
        atom = tracer.val
        if isinstance(atom, _jax.Literal):
            return atom.val, False
        found = self.known.get(atom)
        if found is None and atom in self.frame.constvar_to_val:
            return self.frame.constvar_to_val[atom], False
        return found

    def _evaluate(self, eqn: Any) -> None:
        inputs = [self._lookup(tracer) for tracer in eqn.in_tracers]
        values = [x[0] for x in inputs if x is not None]
        depends = any(x[1] for x in inputs if x is not None)
        with jax.ensure_compile_time_eval():
            results = _values_of(eqn, values)
        self.known.update((var, (x, depends)) for var, x in zip(eqn.outvars, results, strict=True))


def _told(tracer: Any) -> Any:
    """A tracer of JAX as one of ours: the same object with more methods."""
    tracer.__class__ = RecordedTracer
    return tracer


def _values_of(eqn: Any, values: Values) -> Sequence[Any]:
    """What an equation gives; effects inside it wait for the program itself."""
    if not eqn.effects and eqn.primitive.name not in STATEFUL:
        return _jax.apply(eqn, values)
    called = _jax.called_jaxpr(eqn)
    if called is None:
        raise _guard_on_effect(eqn)
    program = inline(from_jaxpr(called))
    return program.with_eqns(effectless(program.eqns, program.outvars))(*values)


def effectless(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """Equations without those that are there for an effect only.

    Raises:
        GuardOnEffectError: what is needed has an effect.
    """
    kept = needed_equations(eqns, outvars, has_effects=False)
    for eqn in kept:
        if eqn.effects or eqn.primitive.name in STATEFUL:
            raise _guard_on_effect(eqn)
    return kept


def _guard_on_effect(eqn: Any) -> GuardOnEffectError:
    return GuardOnEffectError(
        f"Python asked for a value that `{eqn.primitive.name}` made ({_jax.source_line(eqn)}). "
        "That is an effect: to find out which path is right, it would have to run before it is "
        "known that it should. Nothing was recorded; paths recorded before are as they were. "
        "Branch on values that need no effect, use `jax.pure_callback` if the function on the host "
        "is pure, or `jax.lax.cond` for this branch."
    )


def record(fun: Flat, values: Values) -> Recording:
    """Run `fun(*values)` once, staging what it does and keeping what Python learned of its values.

    Raises:
        GuardOnEffectError: Python asked for a value that an effect made.
    """
    recorder = _jax.new_trace(Recorder)

    def run(*inputs):
        recorder.known.update(
            (x.val, (value, True)) for x, value in zip(inputs, values, strict=True)
        )
        return [*fun(*inputs), *recorder.symbols]

    try:
        body = _jax.staged(recorder, run, list(map(jax.typeof, values)))
    finally:
        recorder.is_over = True
    if recorder.refused is not None:
        raise recorder.refused
    num_results = len(body.outvars) - len(recorder.symbols)
    return Recording(from_jaxpr(body), num_results, tuple(recorder.guards))
