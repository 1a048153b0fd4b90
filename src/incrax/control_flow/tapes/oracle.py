"""Recording, the other way: run the function again for each answer that Python needs. No inner interface of JAX.

In: a function of flat arrays, and arrays. Out: a `Recording`. `jax.make_jaxpr` traces the function while the methods
of tracers that would refuse (`Tracer.__bool__` and others) ask an oracle, in this thread. It knows the answers so far;
at the first that it does not know, the trace is ended there, the value asked for becomes its output and is evaluated,
and the function is traced again with one more answer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._program import STATEFUL, Program, from_jaxpr
from incrax.control_flow.tapes import conversions
from incrax.control_flow.tapes.guards import Guard
from incrax.control_flow.tapes.recording import Recording, evaluated_without_effects
from incrax.engine.program.simplify import inline

_active = threading.local()
MAX_CHAIN = 64
"""Transformations inside one another, at most."""


class AnswerNeeded(BaseException):
    """Ends a trace at a question; no `except Exception` of the user catches it."""


class Oracle:
    """Answers so far, and the questions of the present trace."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.symbols: list[Any] = []
        self.guards: list[Guard] = []
        self.trace: Any = None
        self.known: dict[int, Any] = {}

    def begin(self, inputs: Sequence[Any]) -> None:
        """Start a trace."""
        self.symbols, self.guards, self.known = [], [], {}
        self.trace = getattr(inputs[0], "_trace", None) if inputs else None

    @property
    def is_pending(self) -> bool:
        """Whether a question was asked that has no answer: what the function does after it does not count."""
        return len(self.symbols) > len(self.answers)

    def owns(self, tracer: Any) -> bool:
        """Whether a tracer belongs to the trace of the function itself, not to one inside it."""
        return getattr(tracer, "_trace", None) is self.trace

    def value_of(self, tracer: Any) -> Any:
        """The answer for this tracer.

        Raises:
            AnswerNeeded: it is not known yet.
        """
        if id(tracer) not in self.known:
            number = len(self.symbols)
            if self.is_pending:
                raise AnswerNeeded
            self.symbols.append(tracer)
            if number == len(self.answers):
                raise AnswerNeeded
            self.known[id(tracer)] = self.answers[number]
        return self.known[id(tracer)]

    def learn(self, tracer: Any, guard: Guard) -> None:
        """Note a guard about a tracer that was asked for."""
        number = next(n for n, symbol in enumerate(self.symbols) if symbol is tracer)
        if (number, guard.kind) not in [(n, g.kind) for n, g in self.noted]:
            self.noted.append((number, guard))

    @property
    def noted(self) -> list[tuple[int, Guard]]:
        """Guards with the number of the symbol that they are about."""
        return self.guards  # type: ignore[return-value]


def record(fun: Any, leaves: Sequence[Any], avals: Sequence[Any]) -> Recording:
    """As `recording.record`, by tracing once per question.

    Raises:
        GuardOnEffectError: Python asked for a value that an effect made.
    """
    _patch()
    if not leaves:
        return _without_input(record(lambda _: fun(), [jnp.float32(0)], [jax.typeof(jnp.float32(0))]))
    oracle, values = Oracle(), [_on_device(leaf) for leaf in leaves]
    while True:
        program, num_results = _traced(fun, oracle, avals)
        if num_results is not None:
            return _finished(program, num_results, oracle)
        with jax.ensure_compile_time_eval():
            oracle.answers.append(evaluated_without_effects(inline(program), values)[0])


def _without_input(recording: Recording) -> Recording:
    """A recording without its inputs: tracers tell their trace only where one of them is known from the start."""
    return recording._replace(program=replace(recording.program, invars=()))


def _traced(fun: Any, oracle: Oracle, avals: Sequence[Any]) -> tuple[Program, int | None]:
    """One trace: of the question that ended it, or of results and all symbols asked for."""
    counts: list[int] = []

    def run(*inputs: Any) -> list[Any]:
        oracle.begin(inputs)
        before, _active.oracle = getattr(_active, "oracle", None), oracle
        try:
            results = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in fun(*inputs)]
        except BaseException as error:
            if not oracle.is_pending or isinstance(error, KeyboardInterrupt):
                raise
            results = []
        finally:
            _active.oracle = before
        if oracle.is_pending:  # an `except:` or `finally:` of the user may have ended the question
            return [oracle.symbols[-1]]
        counts.append(len(results))
        return [*results, *oracle.symbols]

    examples = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
    body = _jax.trace_body(run, *examples)
    return from_jaxpr(body), counts[0] if counts else None


def _finished(program: Program, num_results: int, oracle: Oracle) -> Recording:
    """The recording: one symbol per guard, without those that depend on no input."""
    symbols = program.outvars[num_results:]
    varying = _varying(program)
    kept = [(n, g) for n, g in oracle.noted if isinstance(symbols[n], _jax.Var) and symbols[n] in varying]
    outvars = (*program.outvars[:num_results], *(symbols[n] for n, _ in kept))
    return Recording(program.with_eqns(program.eqns, outvars), num_results, tuple(g for _, g in kept))


def _varying(program: Program) -> set[Any]:
    """The variables that depend on an input."""
    found = set(program.invars)
    for eqn in program.eqns:
        if eqn.primitive.name in STATEFUL or any(isinstance(a, _jax.Var) and a in found for a in eqn.invars):
            found.update(eqn.outvars)
    return found


def _on_device(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)


# --- the methods of tracers -------------------------------------------------------------------------------------------


def _primal(tracer: Any) -> Any:
    """What a tracer of a derivative is the value of."""
    for _ in range(MAX_CHAIN):
        inner = getattr(tracer, "primal", None)
        if not isinstance(inner, _jax.Tracer):
            return tracer
        tracer = inner
    return tracer


def _asking(name: str, answer: Callable[..., Any], original: Any, *, of_primals: bool) -> Any:
    """A method that asks the oracle where there is one that knows the tracer."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        oracle = getattr(_active, "oracle", None)
        if oracle is not None:
            tracer = _primal(self) if of_primals else self
            if isinstance(tracer, _jax.Tracer) and oracle.owns(tracer):
                return answer(oracle, tracer, *args, **kwargs)
        return original(self, *args, **kwargs)

    return functools.update_wrapper(method, original)


def _text(form: Callable[[Any], str]) -> Callable[..., str]:
    return lambda oracle, tracer: conversions.as_text(oracle, tracer, form)


METHODS: dict[str, tuple[Callable[..., Any], bool]] = {
    "__bool__": (conversions.to_bool, True),
    "__int__": (lambda o, x: conversions.to_scalar(o, x, int), True),
    "__index__": (conversions.to_index, True),
    "__float__": (lambda o, x: conversions.to_scalar(o, x, float), False),
    "__complex__": (lambda o, x: conversions.to_scalar(o, x, complex), False),
    "__array__": (lambda o, x, dtype=None, copy=None: conversions.to_numpy(o, x, dtype), False),
    "__str__": (_text(str), False),
    "__repr__": (_text(repr), False),
    "tolist": (lambda o, x: conversions.to_numpy(o, x).tolist(), False),
    "__format__": (lambda o, x, spec: conversions.as_text(o, x, lambda v: conversions.formatted(v, spec)), False),
    "to_concrete_value": (conversions.read_by_jax, False),
}
"""What each method answers, and whether tracers of derivatives answer for what they are the value of."""


@functools.cache
def _patch() -> None:
    """Let the methods of tracers ask; they do as before where no oracle is active."""
    for name, (answer, of_primals) in METHODS.items():
        original = getattr(_jax.Tracer, name, None)
        if original is not None:
            setattr(_jax.Tracer, name, _asking(name, answer, original, of_primals=of_primals))
