"""One function of rows, traced for one signature: its programs per capacity, and numbers that depend on the rows.

In: a function, a signature in which a `RowType` stands for the rows, types of the other leaves. Out: `RowProgram`s with
their phases, and engines for chunks. It must not know which rows there are.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from incrax._errors import IncraxError
from incrax._jax import Var
from incrax._row_errors import branches_on_rows, untraceable_rows
from incrax.facts.program import Program, trace
from incrax.facts.rows import Place, RowProgram, analyse_rows
from incrax.facts.simplify import drop_dead, inline_with_lines, run_passes
from incrax.planning.phases import Phase, cut_phases
from incrax.planning.sizes import move_sizes_out
from incrax.running.chunks import RowType
from incrax.running.signature import Signature

_FORMS: tuple[Callable[[int], float], ...] = (
    lambda n: n,
    lambda n: 1 / n,
    lambda n: n - 1,
    lambda n: 1 / max(n - 1, 1),
    lambda n: -n,
    lambda n: -1 / n,
    lambda n: math.sqrt(n),
)
"""What numbers made from the number of rows usually are; others cost a trace for each number of rows."""

MAX_TRACES = 4
"""Traces for numbers of rows that are kept."""


@dataclass(frozen=True)
class Cut:
    """A function analysed for one capacity, in phases."""

    rows: RowProgram
    phases: tuple[Phase, ...]


class RowTrace:
    """The traces of one signature; `feeds` are the leaves that are no rows, by value or type."""

    def __init__(self, fun: Callable[..., Any], signature: Signature, row_type: RowType, feeds: Sequence[Any]) -> None:
        self.fun = fun
        self.signature = signature
        self.row_type = row_type
        self.feeds = [_typed(x) for x in feeds]
        self.out_tree: Any = None
        self.cuts: dict[int, Cut] = {}
        self._programs: OrderedDict[int, Program] = OrderedDict()
        self._forms: dict[int, list[int | None]] = {}
        self._checked: dict[int, set[int]] = {}

    def cut(self, capacity: int, num_rows: int) -> Cut:
        """The analysis for chunks of a capacity; the first time against the trace for `num_rows`."""
        found = self.cuts.get(capacity)
        if found is None:
            self._traced(num_rows)  # what fails for these rows is the function's own error
            other = num_rows if num_rows != capacity else num_rows + 1
            rows = analyse_rows(self._traced(capacity), self._traced(other), capacity, other, len(self.row_type.shapes))
            rows = move_sizes_out(rows)
            found = self.cuts[capacity] = Cut(rows, cut_phases(rows))
            self._forms[capacity] = [self._form(rows, place, capacity, other) for place in rows.places]
            self._checked[capacity] = {other.bit_length()}
        return found

    def sizes(self, capacity: int, num_rows: int) -> dict[Var, Any]:
        """The numbers made from the number of rows, for so many rows.

        Raises:
            MixedRowsError: the function is another one for this number of rows. That is looked for once in each
                doubling of the number.
        """
        cut, forms, checked = self.cuts[capacity], self._forms[capacity], self._checked[capacity]
        if num_rows.bit_length() not in checked and num_rows != capacity:
            found = analyse_rows(
                self._traced(capacity), self._traced(num_rows), capacity, num_rows, cut.rows.num_row_inputs
            )
            if found.places != cut.rows.places:
                raise branches_on_rows("a number that depends on the number of rows for some numbers only")
            for number, place in enumerate(cut.rows.places):
                if forms[number] is not None and self._form(cut.rows, place, capacity, num_rows) != forms[number]:
                    forms[number] = None
            checked.add(num_rows.bit_length())
        triples = zip(cut.rows.sizes, cut.rows.places, forms, strict=True)
        return {var: self._size(var, place, form, num_rows) for var, place, form in triples}

    def _size(self, var: Var, place: Place, form: int | None, num_rows: int) -> Any:
        value = place.value_in(self._traced(num_rows)) if form is None else _FORMS[form](num_rows)
        array = np.asarray(value, var.aval.dtype)
        is_weak = getattr(var.aval, "weak_type", False)
        return array.item() if is_weak and _python_dtype(array) == array.dtype else array[()]

    def _form(self, rows: RowProgram, place: Place, num_rows: int, other: int) -> int | None:
        """The first form that gives the numbers in the traces for both numbers of rows."""
        dtype = rows.sizes[rows.places.index(place)].aval.dtype
        pairs = [(n, np.asarray(place.value_in(self._traced(n)), dtype)) for n in (num_rows, other)]
        for number, form in enumerate(_FORMS):
            values = [np.asarray(form(n)).astype(dtype) for n, _ in pairs]
            if all(x.tobytes() == y.tobytes() for x, (_, y) in zip(values, pairs, strict=True)):
                return number
        return None

    def _traced(self, num_rows: int) -> Program:
        """The function traced for a number of rows, calls opened."""
        found = self._programs.get(num_rows)
        if found is None:
            if len(self._programs) >= MAX_TRACES:
                self._programs.popitem(last=False)
            found = self._programs[num_rows] = self._trace(num_rows)
        self._programs.move_to_end(num_rows)
        return found

    def _trace(self, num_rows: int) -> Program:
        avals = self.row_type.avals(num_rows)

        def evaluate(*leaves: Any) -> Any:
            data = jax.tree.unflatten(self.row_type.treedef, leaves[: len(avals)])
            args, kwargs = self.signature.rebuild(leaves[len(avals) :])
            args, kwargs = jax.tree.map(lambda x: data if type(x) is RowType else x, (args, kwargs))
            outputs = self.fun(*args, **kwargs)
            self.out_tree = jax.tree.structure(outputs)
            return outputs

        try:
            program = trace(evaluate, *avals, *self.feeds)
        except IncraxError:
            raise
        except (TypeError, ValueError) as error:
            if self._programs:
                raise untraceable_rows(num_rows, error) from error
            raise
        return run_passes(program, (inline_with_lines, drop_dead))


def _typed(x: Any) -> Any:
    """The type of a leaf for tracing; Python scalars stay, for their weak type."""
    if isinstance(x, (jax.Array, np.ndarray)) and isinstance(x.dtype, np.dtype):
        is_weak = bool(getattr(x, "weak_type", False))
        return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype), weak_type=is_weak)
    return x


def _python_dtype(array: np.ndarray) -> Any:
    """The dtype that JAX gives to the value as a Python number."""
    return jax.dtypes.canonicalize_dtype(type(array.item()))


def type_of(var: Var) -> Any:
    """The type of a variable, for tracing the program that reads it."""
    aval = var.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
