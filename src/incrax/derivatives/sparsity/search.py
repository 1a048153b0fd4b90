"""Sparsity: which elements of a Jacobian or a Hessian can be nonzero, for all values of the inputs.

In: a `Program`. Out: a boolean CSR matrix, or None where finding it would cost too much. Not the
function is walked but the equations of its pushforward: an output's tangent depends on an input's
tangent exactly where the derivative that JAX computes may be nonzero, with the derivative rules
that users wrote, and zero through `floor` or `stop_gradient`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation
from incrax._program import Program, Values, from_jaxpr, trace, type_of
from incrax.engine.program.constants import (
    Deferred,
    KnowingDomain,
    Known,
    KnownValues,
    learn,
    value_at,
)
from incrax.engine.program.simplify import RULED, drop_dead, inline
from incrax.primitives.control_flow import learn_counters
from incrax.primitives.entry import View, element_numbers

Matrix: TypeAlias = Any
"""A boolean `csr_array` with sorted indices."""

Pattern: TypeAlias = Any
"""What a value depends on: a matrix with a row per element of it and a column per input element, or
None: nothing.
"""


def csr(*given: Any, **options: Any) -> Matrix:
    """A `csr_array` of these. SciPy is imported here, since that takes a quarter of a second, and most
    jobs differentiate without a pattern.
    """
    from scipy.sparse import csr_array

    return csr_array(*given, **options)


MAX_NONZEROS = 1 << 23
"""Nonzeros of one pattern beyond which the search is given up; numbers of elements stay exact in
float32, too.
"""

MAX_WORK = 1 << 26
"""Nonzeros made in all beyond which the search is given up."""

MAX_UNROLLED = 10_000
"""Equations of a loop's body times its iterations above which they are no longer walked one by
one.
"""

MAX_REPEATS = 8
"""Walks of a body before what it carries is taken to depend on everything."""


def pattern_of(program: Program, *, max_work: int = MAX_WORK) -> Matrix | None:
    """Which elements of a program's outputs depend on which elements of its first input.

    Args:
        program: what to differentiate by its first input, of floating type; calls with a derivative
            rule of their own must not have been opened.
        max_work: nonzeros made in all beyond which the search is given up.

    Returns:
        A boolean matrix with sorted indices: a row for each element of the outputs, in order, a
        column for each of the input. Where it is False, `jax.jacfwd` is zero wherever all
        values are finite. None: finding it takes too much work, the program writes to references,
        or some call has a rule for reverse mode alone. Cost: tracing the pushforward, and a walk in
        the time of the nonzeros made; nothing of the program is compiled but small equations that
        move constants.
    """
    if has_custom_vjp(program) or any(_jax.is_ref(var.aval) for var in program.invars):
        return None
    linear = _pushforward(program)
    sizes = [_jax.aval_size(atom.aval) for atom in linear.outvars]
    num = _jax.aval_size(linear.invars[-1].aval)
    try:
        _check_size(num)
        own = np.arange(num)
        identity = csr((np.ones(num, bool), (own, own)), shape=(num, num)) if num else None
        operands = [*[None] * len(program.invars), identity]
        found = _stacked(_Patterns(max_work).walk(linear, operands).outputs, sizes)
    except _TooMuch:
        return None
    return _tidy(_empty(sum(sizes), num) if found is None else found)


def hessian_pattern(program: Program, *, max_work: int = MAX_WORK) -> Matrix | None:
    """Which elements of the Hessian of a program with one scalar output by its first input can be
    nonzero; symmetric.
    """
    gradient = jax.grad(lambda *leaves: jnp.reshape(program(*leaves)[0], ()))
    pattern = pattern_of(trace(gradient, *map(type_of, program.invars)), max_work=max_work)
    return None if pattern is None else _tidy(pattern + pattern.T)


def _tidy(pattern: Any) -> Matrix:
    result = csr(pattern, dtype=bool)
    result.sum_duplicates()
    return result


# --- the linear program ---------------------------------------------------------------------------


def _pushforward(program: Program) -> Program:
    """(inputs, tangent of the first) -> tangents of the outputs."""

    def push(leaves: Values, tangent):
        first, *others = leaves
        _, results = jax.jvp(lambda x: program(x, *others), [first], [tangent])
        return [jnp.zeros(t.shape) if t.dtype == jax.dtypes.float0 else t for t in results]

    types = list(map(type_of, program.invars))
    return drop_dead(inline(trace(push, types, types[0])))


def has_custom_vjp(program: Program) -> bool:
    """Whether some call, at any depth, has a rule for reverse mode alone."""
    names = {eqn.primitive.name for eqn in _jax.with_inner(program.eqns)}
    return any("vjp" in name for name in names & RULED)


# --- the walk -------------------------------------------------------------------------------------


class _TooMuch(Exception):
    """The pattern takes more memory or time than it can save."""


def _check_size(number: int) -> None:
    """Raise beyond the largest number of elements or nonzeros."""
    if number > MAX_NONZEROS:
        raise _TooMuch


def _empty(num_rows: int, num_columns: int) -> Matrix:
    return csr((num_rows, num_columns), dtype=bool)


def _stacked(parts: Sequence[Pattern], sizes: Sequence[int]) -> Pattern:
    """Patterns of so many rows on top of each other."""
    found = [pattern for pattern in parts if pattern is not None]
    if not found:
        return None
    _check_size(sum(pattern.nnz for pattern in found) + sum(sizes))
    num_columns = found[0].shape[1]
    blocks = [
        _empty(n, num_columns) if pattern is None else pattern
        for pattern, n in zip(parts, sizes, strict=True)
    ]
    from scipy.sparse import vstack  # here for the reason that `csr` gives

    return csr(vstack(blocks, format="csr"))


class _ZerosCount(KnownValues):
    zeros = True

    def check(self, count: int) -> None:
        _check_size(count)


class _Patterns(KnowingDomain):
    """A walk through the equations of a tangent; `work` counts the nonzeros made, in bodies of
    loops, too.

    All operations are moves and unions of rows. `_TooMuch` is raised before a matrix beyond
    `MAX_NONZEROS` is made.
    """

    defers = True

    def __init__(self, max_work: int) -> None:
        self.work = 0
        self.max_work = max_work
        self.max_repeats = MAX_REPEATS

    # --- sets -------------------------------------------------------------------------------------

    def take(self, value: Pattern, numbers: np.ndarray) -> Pattern:
        sources = np.ravel(numbers)
        if value is not None and np.array_equal(sources, np.arange(value.shape[0])):
            return value
        targets = np.flatnonzero(sources >= 0)
        return self.gathered(value, targets, sources[targets], np.shape(numbers))

    def beside(self, values: Sequence[Pattern], atoms: Sequence[Atom]) -> Pattern:
        return (
            values[0]
            if len(values) == 1
            else _stacked(values, [_jax.aval_size(atom.aval) for atom in atoms])
        )

    def gathered(self, value: Pattern, targets: Any, sources: Any, shape: Sequence[int]) -> Pattern:
        if value is None:
            return None
        num_rows = int(np.prod(shape))
        rows = np.ravel(targets)
        columns = np.ravel(sources)
        _check_size(int(np.diff(value.indptr)[columns].sum()) + num_rows)
        ones = np.ones(rows.size, bool)
        result = csr((ones, (rows, columns)), shape=(num_rows, value.shape[0])) @ value
        result.sort_indices()
        return result if result.nnz else None

    def grouped(self, value: Pattern, shape: Sequence[int], axes: Sequence[int]) -> Pattern:
        kept = [1 if axis in axes else n for axis, n in enumerate(shape)]
        targets = np.broadcast_to(element_numbers(kept), shape)
        return self.gathered(value, targets, np.arange(targets.size), kept)

    def running(self, value: Pattern, shape: Sequence[int], axis: int, direction: int) -> Pattern:
        numbers = element_numbers(shape)
        num = shape[axis]
        _check_size(numbers.size * num)
        lines = np.moveaxis(numbers, axis, -1).reshape(-1, num)[:, ::direction]
        later, earlier = np.tril_indices(num)
        return self.gathered(value, lines[:, later], lines[:, earlier], shape)

    def union(self, values: Iterable[Pattern]) -> Pattern:
        result: Pattern = None
        for pattern in values:
            if result is None or pattern is None or pattern is result:
                result = pattern if result is None else result
            else:
                _check_size(result.nnz + pattern.nnz)
                result = result + pattern
        return result

    def everywhere(self, values: Iterable[Pattern], aval: Any) -> Pattern:
        rows = [self.grouped(x, x.shape[:1], (0,)) for x in values if x is not None]
        return self.take(self.union(rows), np.zeros(_jax.aval_size(aval), int))

    def is_same(self, value: Pattern, other: Pattern) -> bool:
        return (0 if value is None else value.nnz) == (0 if other is None else other.nnz)

    # --- what is known ----------------------------------------------------------------------------

    def view(self, known: Known) -> View:
        return _ZerosCount(known)

    def enter(
        self, eqn: Equation, operands: Sequence[Pattern], known: Known
    ) -> list[Pattern] | None:
        """Nothing for what no tangent enters: that may be a constant."""
        if any(pattern is not None for pattern in operands):
            if any(_jax.is_ref(atom.aval) for atom in eqn.invars):
                raise _TooMuch  # what is written to a reference is not followed
            return None
        learn(eqn, known, defers=True)
        if not all(var in known for var in eqn.outvars):
            learn_counters(eqn, known, self)
        return [None] * len(eqn.outvars)

    def retired(self, value: Pattern) -> None:
        """Memory is freed as the walk goes on."""

    def finished(self, results: Sequence[Pattern]) -> None:
        self.work += sum(pattern.nnz for pattern in results if pattern is not None)
        if self.work > self.max_work:
            raise _TooMuch

    # --- loops ------------------------------------------------------------------------------------

    def opened(self, jaxpr: Any) -> Program:
        return inline(from_jaxpr(jaxpr))

    def is_unrolled(self, eqn: Equation, body: Program) -> bool:
        return eqn.params["length"] * len(body.eqns) <= MAX_UNROLLED

    def row_of(self, found: Any | None, number: int, aval: Any) -> np.ndarray | None:
        if found is None or _jax.is_key_dtype(getattr(aval, "dtype", np.dtype(bool))):
            return None
        return np.asarray(value_at(found))[number]

    def of_rows(self, found: Sequence[Any]) -> Any | None:
        if any(row is None for row in found):
            return None
        depth = max(row.depth if isinstance(row, Deferred) else 0 for row in found)
        return Deferred(lambda: np.stack([np.asarray(value_at(row)) for row in found]), depth + 1)
