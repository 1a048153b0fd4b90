"""Programs without the passes that undo each other.

In: a jaxpr, or a function. Out: one of the same type that evaluates less, or a compiled function through whose boundary
records are carried.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._messages import wrong_option
from incrax._program import Program, evaluator, from_jaxpr, trace
from incrax.bijectors.arguments import Frame, bijections_in, check_hashable, taken_apart
from incrax.bijectors.carried import Collector, Incoming, Outgoing, incoming
from incrax.bijectors.switches import is_recording, requires_ladj
from incrax.engine.rewrites.inverses import cancel_all

P = ParamSpec("P")
R = TypeVar("R")


def cancel(jaxpr: Any) -> Any:
    """Leave out of a jaxpr the passes through bijections that undo each other.

    `inverse(params, forward(params, x))` becomes x, its log-determinant minus that of the forward pass, whichever was
    first; a constant permutation after its inverse becomes the operand. It counts as the same what equal equations make
    of the same inputs, through calls of `jax.jit`; bodies of loops, branches, remat and custom rules are looked at each
    by itself. Nothing is left out across arithmetic, `stop_gradient`, other parameters or another context.

    Law: `cancel(jaxpr)` has the types of `jaxpr`, and gives the values and derivatives that exact arithmetic gives.

    Args:
        jaxpr: closed, as `jax.make_jaxpr(f)(*args)` gives it, of a function with bijections that `remember` made.
            Derivatives and vmaps are to be taken of the result: what went through them before is not recognised.

    Returns:
        A closed jaxpr.

    Cost: one walk through the equations.
    """
    return _cancelled(from_jaxpr(jaxpr)).as_jaxpr()


def _cancelled(program: Program) -> Program:
    program = cancel_all(program)
    kept, _ = _jax.pruned(_jax.Body(program.invars, program.constvars, program.consts, program.eqns, program.outvars))
    return Program(program.invars, kept.constvars, kept.consts, kept.eqns, kept.outvars)


class _Key(NamedTuple):
    """What a program is compiled for, beside the types of its arrays."""

    frame: Frame
    records: tuple[Incoming, ...]
    is_recording: bool
    requires_ladj: bool


class _Returned(NamedTuple):
    """What comes after a call: the tree of the results without arrays, and the records."""

    frame: Frame
    outgoing: Outgoing


@jax.tree_util.register_pytree_node_class
class _Found:
    """What a program returns; `returned` holds no arrays, and is known once the program is traced."""

    def __init__(self, values: list[Any], returned: Any) -> None:
        self.values, self.returned = values, returned

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        return (self.values,), self.returned

    @classmethod
    def tree_unflatten(cls, returned: Any, children: tuple[Any]) -> _Found:
        return cls(children[0], returned)


class _Once:
    """An object that equals itself only."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def jit(f: Callable[P, R]) -> Callable[P, R]:
    """Compile a function, without the passes through bijections that undo each other; its results keep their memory.

    As `jax.jit`, with three differences. The program goes through `cancel` first, so that an inverse is left out also
    where the output was made on the other side of an inner `jax.jit`. A result that a bijection made inside comes back
    with its record: source, log-determinant and intermediates are further results of the program, and `inverse`,
    `log_abs_det_jacobian` and `memory_of` look them up. Arguments that remember are remembered inside.

    Law: `jit(f)(*args)` equals `jax.jit(f)(*args)` to within rounding, and so do derivatives.

    Args:
        f: a pure function of trees. Leaves that are no arrays (functions, text, and numbers inside a bijection or a
            module of Equinox) are static: another value means another program. So bijections and distributions of
            FlowJAX may be arguments and results.

    Returns:
        The compiled function. It can be differentiated, mapped, and called in other compiled functions. An argument
        that is returned is returned as the object that it is.

    Raises:
        TypeError: f is no function.
        UnsupportedLeafError: (on calling) a leaf of the arguments is no array and has no hash.

    Cost: a call takes some tens of microseconds beyond `jax.jit`, more with many leaves. Memory: what the records hold
    is computed and kept, also if nobody asks for it; `set_requires_ladj(False)`, or `set_record_flow_graph(False)`
    around the call, does without.

    Not handled: a record is carried out if its parameters and context are arguments or closed over, not if they are
    computed inside; and in, if they are arguments. Results made inside a mapped, looped or differentiated part have no
    record outside of it. Arguments are not donated.
    """

    if not callable(f):
        raise wrong_option("bijectors.jit(f)", f, "a function")
    fun: Callable[..., Any] = f

    def run(key: _Key, arrays: list[Any]) -> _Found:
        returned: list[_Returned] = []

        def flat(*tracers: Any) -> list[Any]:
            args, kwargs = key.frame.filled(tracers)
            for record in key.records:
                record.attach(tracers)
            frame, results = taken_apart(fun(*args, **kwargs))
            collector = Collector(tracers, bijections_in((args, kwargs)), results)
            returned.append(_Returned(frame, collector.outgoing()))
            return collector.results

        program = _cancelled(trace(flat, *arrays))
        return _Found(evaluator(program)(program.consts, *arrays), _Once(returned[-1]))

    run.__name__ = run.__qualname__ = getattr(f, "__name__", "f")
    compiled = jax.jit(run, static_argnums=0)

    @functools.wraps(f)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        frame, arrays = taken_apart((args, kwargs))
        arrays = [jnp.array(x) if isinstance(x, (np.ndarray, np.generic)) else x for x in arrays]
        records, given = incoming(arrays) if is_recording() else ((), arrays)
        key = _Key(frame, records, is_recording(), requires_ladj())
        try:
            hash(key)
        except TypeError:
            check_hashable(frame, (args, kwargs))
            raise
        found = compiled(key, given)
        returned: _Returned = found.returned.value
        bijections = bijections_in((args, kwargs)) if returned.outgoing.forms else []
        return returned.frame.filled(returned.outgoing.attached(given, found.values, bijections))

    return called
