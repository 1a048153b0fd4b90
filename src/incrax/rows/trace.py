"""One function of rows, traced for one signature: its programs per capacity, and numbers that
depend on the rows.

In: a function, a signature in which a `RowType` stands for the rows, types of the other leaves.
Out: `RowProgram`s with their phases, and engines for chunks. It must not know which rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from incrax._jax import Var
from incrax._program import Program, trace_with_tree, type_of
from incrax._tables import LruTable
from incrax.engine.inputs.chunks import RowType
from incrax.engine.inputs.messages import branches_on_rows, untraceable_rows
from incrax.engine.inputs.signature import Signature
from incrax.engine.program.simplify import drop_dead, inline_with_lines, run_passes
from incrax.errors import IncraxError, MixedRowsError
from incrax.rows.axis import RowProgram, analyse_rows, compare_rows
from incrax.rows.numbers import FORMS, Number, Sized, refined, with_form
from incrax.rows.phases import Phase, cut_phases
from incrax.rows.sizes import move_sizes_out

MAX_TRACES = 4
"""Traces for numbers of rows that are kept."""

MAX_VALUES = 64
"""Numbers of rows for which numbers without a form are kept."""

MAX_DOUBLINGS = 4
"""Doublings of the number of rows after which programs that were scaled for it are made anew."""

MAX_FAR = 2**30
"""Most rows that a function is traced for in advance: more would not fit into 32 bits."""


@dataclass(frozen=True)
class RowCut:
    """A function analysed for one capacity, in phases; whether that is for about a certain number
    of rows.
    """

    rows: RowProgram
    phases: tuple[Phase, ...]
    is_scaled: bool

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """What programs for all capacities must have in common: results of one are combined with
        those of others.
        """
        program = self.rows.program
        primitives = tuple(eqn.primitive.name for eqn in program.eqns)
        return primitives, tuple(self._shape_of(phase) for phase in self.phases)

    def _shape_of(self, phase: Phase) -> tuple[Any, ...]:
        names = self.rows.names
        parts = [
            [names.get(v) for v in (*part.targets, *part.reads)]
            for part in (phase.chunk, phase.rest)
        ]
        return phase.kinds, parts


class RowTrace:
    """The traces of one signature; `feeds` are the leaves that are no rows, by value or type.

    Every trace is compared with the first one. `numbers` are those that differed in any of them:
    they are the inputs of the programs of all capacities. Where a trace adds to them, all programs
    are other ones: a new `generation`.
    """

    def __init__(
        self, fun: Callable[..., Any], signature: Signature, row_type: RowType, feeds: Sequence[Any]
    ) -> None:
        self.fun = fun
        self.signature = signature
        self.row_type = row_type
        self.feeds = [type_of(x) for x in feeds]
        self.out_tree: Any = None
        self.numbers: tuple[Number, ...] = ()
        self.generation = 0
        self.cuts: dict[int, RowCut] = {}
        self._first: Sized | None = None
        self._second: Sized | None = None
        self._capacities: set[int] = set()
        self._doublings: set[int] = set()
        self._doubling = 0
        self._values: LruTable[int, list[Any]] = LruTable(MAX_VALUES)
        self._programs: LruTable[int, Program] = LruTable(MAX_TRACES)

    def fork(self) -> RowTrace:
        """An independent object with the same traces so far."""
        other = RowTrace(self.fun, self.signature, self.row_type, self.feeds)
        other.__dict__.update(self.__dict__)
        other.cuts = dict(self.cuts)
        other._values = self._values.copy()
        other._programs = self._programs.copy()
        other._capacities = set(self._capacities)
        other._doublings = set(self._doublings)
        return other

    def prepare(self, capacities: Iterable[int], num_rows: int) -> int:
        """Compare the traces that a call with such chunks and so many rows relies on; the
        generation.

        Raises:
            MixedRowsError: the function is another one for another number of rows. That is looked
                for at both ends of each doubling of the number, and wherever a number without a
                form is needed.

        Cost: nothing for numbers of rows between those that were seen, unless some number has no
        form: then a trace.
        """
        missing = [capacity for capacity in capacities if capacity not in self._capacities]
        if self._first is None:
            self._start(missing[0], num_rows)
        for capacity in missing:
            self._compare(capacity)
            self._capacities.add(capacity)
        doubling = max(num_rows.bit_length(), 2)
        if doubling not in self._doublings:
            for end in _ends(doubling):
                self._compare(end)
            self._doublings.add(doubling)
        if abs(doubling - self._doubling) > MAX_DOUBLINGS and any(
            cut.is_scaled for cut in self.cuts.values()
        ):
            self._doubling = doubling
            self._renew()
        if num_rows > 1 and any(number.form is None for number in self.numbers):
            self.values(num_rows)
        return self.generation

    def _start(self, capacity: int, num_rows: int) -> None:
        """The first traces: for these rows (what fails is the function's own error), the capacity,
        and far from both.

        JAX broadcasts one row in other equations than many, so that there is no trace for one.
        """
        low, high = _ends(max(num_rows.bit_length(), 2))
        traces = [Sized(n, self._traced(n)) for n in (max(num_rows, 2), capacity, low, high)]
        far = min(8 * high + 7, MAX_FAR)
        traces += [Sized(far, program) for program in self._tried(far)]
        self._first = traces[1]
        self._second = next(trace for trace in traces[1:] if trace.num_rows != capacity)
        for each in traces:
            self._compare_traced(each)
        self.numbers = tuple(with_form(number.places, traces) for number in self.numbers)
        self._capacities.add(capacity)
        self._doubling = high.bit_length()
        self._doublings.add(self._doubling)

    def _tried(self, num_rows: int) -> list[Program]:
        """The trace, unless the function has none for so many rows."""
        try:
            return [self._traced(num_rows)]
        except MixedRowsError:
            return []

    def _compare(self, num_rows: int) -> None:
        self._compare_traced(Sized(num_rows, self._traced(num_rows)))

    def _compare_traced(self, trace: Sized) -> None:
        """Refuse a trace unlike the first one; enter the numbers that differ in it."""
        first = self._first
        assert first is not None
        if trace.num_rows == first.num_rows:
            return
        found = compare_rows(first.program, trace.program, first.num_rows, trace.num_rows)
        numbers = refined(self.numbers, found.places, first, trace)
        if [number.places for number in numbers] != [number.places for number in self.numbers]:
            self._renew()
        self.numbers = numbers

    def _renew(self) -> None:
        self.generation += 1
        self.cuts.clear()
        self._values.clear()

    def cut(self, capacity: int) -> RowCut:
        """The analysis for chunks of a capacity that is prepared."""
        found = self.cuts.get(capacity)
        if found is None:
            first = self._first
            second = self._second
            program = self._traced(capacity)
            assert first is not None
            assert second is not None
            other = first if capacity != first.num_rows else second
            pair = compare_rows(program, other.program, capacity, other.num_rows)
            rows = analyse_rows(program, pair, self.numbers, len(self.row_type.shapes))
            rows, is_scaled = move_sizes_out(rows, self.values(1 << (self._doubling - 1)))
            found = RowCut(rows, cut_phases(rows), is_scaled)
            if any(other.shape != found.shape for other in self.cuts.values()):
                raise branches_on_rows("the order of their passes over the rows")
            self.cuts[capacity] = found
        return found

    # --- numbers made from the number of rows -----------------------------------------------------

    def sizes(self, cut: RowCut, num_rows: int) -> dict[Var, Any]:
        """The numbers made from the number of rows, for so many rows."""
        return {
            v: _typed_as(v, x) for v, x in zip(cut.rows.sizes, self.values(num_rows), strict=True)
        }

    def values(self, num_rows: int) -> list[Any]:
        """The numbers by their forms, or from the trace, which is compared."""
        if all(number.form is not None for number in self.numbers):
            return [FORMS[number.form or 0](num_rows) for number in self.numbers]
        found = self._values.get(num_rows)
        if found is None:
            self._compare(num_rows)
            program = self._traced(num_rows)
            found = [number.places[0].value_in(program) for number in self.numbers]
            self._values.add(num_rows, found)
        return found

    # --- traces -----------------------------------------------------------------------------------

    def _traced(self, num_rows: int) -> Program:
        """The function traced for a number of rows, calls opened."""
        found = self._programs.get(num_rows)
        if found is None:
            found = self._trace(num_rows)
            self._programs.add(num_rows, found)
        return found

    def _trace(self, num_rows: int) -> Program:
        avals = self.row_type.avals(num_rows)

        def evaluate(*leaves: Any) -> Any:
            data = jax.tree.unflatten(self.row_type.treedef, leaves[: len(avals)])
            args, kwargs = self.signature.rebuild(leaves[len(avals) :])
            args, kwargs = jax.tree.map(lambda x: data if type(x) is RowType else x, (args, kwargs))
            return self.fun(*args, **kwargs)

        try:
            program, self.out_tree = trace_with_tree(evaluate, *avals, *self.feeds)
        except IncraxError:
            raise
        except Exception as error:
            if self._programs:
                raise untraceable_rows(num_rows, error) from error
            raise
        return run_passes(program, (inline_with_lines, drop_dead))


def _ends(doubling: int) -> tuple[int, int]:
    """The least and the largest number with so many binary digits.

    What Python makes of the number of rows is stepwise or bounded, if anything: it shows at the
    ends.
    """
    return 1 << (doubling - 1), (1 << doubling) - 1


def _typed_as(var: Var, value: Any) -> Any:
    """A number as programs take it: a Python number where the variable has a weak type."""
    array = np.asarray(value, var.aval.dtype)
    is_weak = getattr(var.aval, "weak_type", False)
    return array.item() if is_weak and _python_dtype(array) == array.dtype else array[()]


def _python_dtype(array: np.ndarray) -> Any:
    """The dtype that JAX gives to the value as a Python number."""
    return jax.dtypes.canonicalize_dtype(type(array.item()))
