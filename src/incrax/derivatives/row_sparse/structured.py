"""`structured(step)`, and programs whose outputs may be row-sparse: trace, interpret, compile,
explain.

In: a function of pytrees. Out: a compiled function with the same results, or outputs of which some
are `RowSparse`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from incrax import _jax
from incrax._jax import Literal, Tracer
from incrax._jax_options import spelled_here
from incrax._messages import check_function
from incrax._program import trace_with_tree
from incrax._table import Printable, Table, many
from incrax.derivatives.row_sparse.interpreter import run
from incrax.derivatives.row_sparse.values import (
    DENSE,
    IN_PLACE,
    KEPT,
    Context,
    Event,
    has_rows,
    is_sparse,
    row_sparse,
)
from incrax.engine.inputs.signature import Function, Kwargs

P = ParamSpec("P")
R = TypeVar("R")


def _evaluated(
    fun: Function,
    context: Context,
    args: Any,
    kwargs: Kwargs,
    *,
    keeps_rows: bool = False,
) -> Any:
    """The outputs as arrays; with `keeps_rows`, those that are zero but for stored rows as
    `RowSparse`.
    """
    traced, out_tree = trace_with_tree(lambda args, kwargs: fun(*args, **kwargs), args, kwargs)
    made_by = {var: eqn for eqn in traced.eqns for var in eqn.outvars}
    leaves = jax.tree.leaves((args, kwargs))
    given = [leaf if isinstance(leaf, Tracer) else jnp.asarray(leaf) for leaf in leaves]
    results = []
    for value, atom in zip(run(traced, given, context), traced.outvars, strict=True):
        made = None if isinstance(atom, Literal) else made_by.get(atom)
        if keeps_rows and has_rows(value) and is_sparse(value):
            results.append(row_sparse(value))
        else:
            array = context.dense(value, made, "it is returned", "output")
            results.append(_typed(array, atom.aval))
    return jax.tree.unflatten(out_tree, results)


def _typed(value: Any, aval: Any) -> Any:
    """An array of this type."""
    if _jax.is_key_dtype(aval.dtype):
        return value
    return _jax.typed_as(jax.lax.convert_element_type(value, aval.dtype), aval)


# --- structured -----------------------------------------------------------------------------------


class Structured(Generic[P, R]):
    """A compiled training step whose row-sparse values stay rows; made by `structured`.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> loss = lambda table, ids: jnp.sum(table[ids] ** 2)
        >>> step = incrax.structured(lambda table, ids: table - 0.5 * jax.grad(loss)(table, ids))
        >>> step(jnp.ones((4, 2)), jnp.array([2])).tolist()
        [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(
        self, step: Callable[P, R], donate_argnums: Any = (), limits: Context | None = None
    ) -> None:
        self._step = step
        self._limits = limits or Context()
        functools.update_wrapper(self, step, updated=())
        self._compiled = jax.jit(self._evaluate, donate_argnums=donate_argnums)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The results of the step."""
        return self._compiled(*args, **kwargs)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The lowered program, as `jax.jit(step).lower`."""
        return self._compiled.lower(*args, **kwargs)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> RowsExplanation:
        """What stays row-sparse, what becomes dense, and why, in a call with such arguments;
        nothing is evaluated.
        """
        context = self._limits.fresh()
        jax.eval_shape(functools.partial(_evaluated, self._step, context), args, kwargs)
        return RowsExplanation(tuple(context.events))

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """The step with the derivative of the plain step: rules of functions opened here are not
        lost.
        """
        step: Function = self._step
        plain = lambda args, kwargs: jax.tree.map(jnp.asarray, step(*args, **kwargs))
        rows = jax.custom_jvp(functools.partial(_evaluated, step, self._limits.fresh()))
        rows.defjvp(functools.partial(jax.jvp, plain))
        return rows(args, kwargs)


@spelled_here
def structured(
    step: Callable[P, R],
    *,
    donate_argnums: int | Sequence[int] = (),
) -> Structured[P, R]:
    """Compile a training step so that the dense gradient of a table that is read in a few rows
    never exists.

    Promise: `structured(step)(*args)` equals `jax.jit(step)(*args)`, types included, up to
    rounding; the sign of a zero may differ. One thing is assumed: factors and divisors of rows that
    nothing reads are finite, and divisors not 0, where the dense program gives NaN.

    The backward program scatters rows into zeros. Those rows stay rows through whatever is
    elementwise: scale, clip, `optax.sgd`, `adagrad`, `adam`; `table - rate * gradient` is written
    into the table, in place if it is donated. Only the rows read cost anything, where the update
    leaves the others alone. Results are ordinary arrays.

    Args:
        step: pure function of pytrees of arrays, usually with `jax.grad` inside; may contain jit,
            vmap and remat; in loops and branches the gradient is dense. An equation without a rule
            makes a value dense: see `explain`.
        donate_argnums: as for `jax.jit`. Without it, a table is copied at each call.

    Returns:
        A callable with the signature of `step`, and the methods `explain` and `lower`. Usable under
        jit, vmap, scan; its derivatives are those of `step`, dense.

    Raises:
        TypeError: the step is no function.

    Cost: traced and compiled once per structure, shapes and dtypes of the arguments, as `jax.jit`.
        Each stored row is sorted once by its number.

    Not handled: rows along other axes than the first, and parts of rows; steps inside a loop, which
        is as JAX evaluates it (call the structured step there); static arguments (use
        `functools.partial`). Arrays below 1 MB, and with more than a quarter of their rows stored,
        are dense.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> loss = lambda table, ids: jnp.sum(table[ids] ** 2)
        >>> step = incrax.structured(lambda table, ids: table - 0.1 * jax.grad(loss)(table, ids))
        >>> table = step(jnp.ones((100_000, 4)), jnp.array([3, 3, -1]))
        >>> [round(float(x), 3) for x in table[jnp.array([0, 3, -1]), 0]]
        [1.0, 0.6, 0.8]
        >>> step.explain(table, jnp.array([3])).became_dense
        ()
    """
    check_function("structured(step)", step)
    return Structured(step, donate_argnums)


# --- row-sparse outputs ---------------------------------------------------------------------------


def sparse_outputs(fun: Function, *args: Any, context: Context | None = None) -> Any:
    """The outputs of `fun(*args)`, those that are zero but for stored rows as `RowSparse`; for use
    inside `jax.jit`.

    Rows may be stored more than once (see `RowSparse.coalesce`). `context` has the limits, and gets
    the lines of `RowsExplanation`. Which outputs are `RowSparse` depends on the types of the
    arguments only.
    """
    context = context or Context(min_bytes=0)
    return _evaluated(fun, context, args, {}, keeps_rows=True)


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class RowsExplanation(Printable):
    """Report of one program; `events` in the order of its equations."""

    events: tuple[Event, ...]

    @property
    def stayed_sparse(self) -> tuple[Event, ...]:
        """Values held as rows, by the equation that made them."""
        return self._of(KEPT)

    @property
    def became_dense(self) -> tuple[Event, ...]:
        """Values that were rows, or could have been, by the equation that made them dense."""
        return self._of(DENSE)

    @property
    def in_place(self) -> tuple[Event, ...]:
        """Rows written into an array that is there anyway."""
        return self._of(IN_PLACE)

    def _of(self, what: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.what == what)

    def as_dict(self) -> dict[str, Any]:
        """The report for programs."""
        names = ("stayed_sparse", "became_dense", "in_place")
        return {name: [event._asdict() for event in getattr(self, name)] for name in names}

    @property
    def is_alarming(self) -> bool:
        """Whether something became dense."""
        return bool(self.became_dense)

    def summary(self) -> str:
        """How many values stayed rows, and how many did not."""
        dense = many(len(self.became_dense), "value")
        return (
            f"{dense} became dense, {len(self.in_place)} written in place, "
            f"{len(self.stayed_sparse)} stayed row-sparse"
        )

    def tables(self) -> list[Table]:
        """The report for people."""
        found = {
            "became dense": self.became_dense,
            "written in place": self.in_place,
            "stayed row-sparse": self.stayed_sparse,
        }
        header = ("primitive", "type", "rows stored", "why", "source")
        row = lambda e: (e.primitive, e.type, e.num_rows, e.why, e.line)
        return [
            Table(title, header, list(map(row, events)))
            for title, events in found.items()
            if events
        ]
