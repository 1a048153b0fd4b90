"""One function of rows, traced for one signature: its phases, its equations per capacity, and
numbers that depend on the rows.

In: a function, a signature in which a `RowType` stands for the rows, types of the other leaves.
Out: a `RowProgram` with its phases. It must not know which rows there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import jax

from incrax._jax import Equation, Var
from incrax._program import Program, trace_with_tree, type_of
from incrax._tables import LruTable
from incrax.engine.inputs.chunks import RowType
from incrax.engine.inputs.signature import Function, Signature
from incrax.engine.program.simplify import drop_dead, inline_with_solves, run_passes
from incrax.errors import IncraxError, MixedRowsError
from incrax.rows.axis import CURE, RowsComparison
from incrax.rows.numbers import FORMS, Sized, SizeForm, assumed_numbers, fits, lift, typed_as
from incrax.rows.passes import RowProgram, analyse_rows, from_identities

MAX_TRACES = 8
"""Traces for numbers of rows that are kept."""

MAX_VALUES = 64
"""Numbers of rows for which the numbers made from them are kept."""

MAX_DOUBLINGS = 4
"""Doublings of the number of rows after which programs in which it is fixed are made anew."""

MAX_FAR = 2**30
"""Most rows that a function is traced for in advance: more would not fit into 32 bits."""


class RowTrace:
    """The traces of one signature; `feeds` are the leaves that are no rows, by value or type.

    Every trace is compared with the first one. `forms` are those of the places that differed in any
    of them: their numbers are inputs of the programs of all capacities. Where a trace changes them,
    all programs are other ones: another `rows`.
    """

    def __init__(
        self, fun: Function, signature: Signature, row_type: RowType, feeds: Sequence[Any]
    ) -> None:
        self.fun = fun
        self.signature = signature
        self.row_type = row_type
        self.feeds = [type_of(x) for x in feeds]
        self.out_tree: Any = None
        self.forms: dict[int, SizeForm | None] = {}
        self._first: Any = None
        self._found: Any = None
        self._rows: RowProgram | None = None
        self._seen: set[int] = set()
        self._doubling = 0
        self._values: LruTable[int, dict[Var, Any]] = LruTable(MAX_VALUES)
        self._traces: LruTable[int, Sized] = LruTable(MAX_TRACES)

    def prepare(self, capacities: Iterable[int], num_rows: int) -> None:
        """Compare the traces that a call with such chunks and so many rows relies on.

        Raises:
            MixedRowsError: the function is another one for another number of rows. That is looked
                for at both ends of each doubling of the number, and wherever a number without a
                form is needed.

        Cost: nothing for numbers of rows between those that were seen, unless some number has no
        form: then a trace.
        """
        doubling = max(num_rows.bit_length(), 2)
        # what Python makes of the number of rows is stepwise or bounded, if anything: it shows at
        # the ends of a doubling
        wanted = [*capacities, 1 << (doubling - 1), (1 << doubling) - 1]
        if self._first is None:
            self._doubling = doubling
            # JAX broadcasts one row in other equations than many, so that there is no trace for one.
            self._first = self._traced(max(num_rows, 2))
            far = min(8 * wanted[-1] + 7, MAX_FAR)
            with contextlib.suppress(MixedRowsError):  # there may be no trace for so many rows
                wanted = [self._traced(far).num_rows, *wanted]
        for number in wanted:
            if number not in self._seen:
                self._compare(self._traced(number))
                self._seen.add(number)
        is_far = abs(doubling - self._doubling) > MAX_DOUBLINGS
        if is_far and any(phase.assumed for phase in self.rows.phases):
            self._doubling = doubling
            self._renew(self.forms)
        if num_rows > 1 and None in self.forms.values():
            self.sizes(num_rows)

    def _compare(self, trace: Sized) -> None:
        """Refuse a trace unlike the first one; enter the numbers that differ in it.

        A number that is another one in this trace but was the same in all earlier ones has no form;
        all forms differ at all numbers of rows.
        """
        first = self._first
        if trace.num_rows == first.num_rows:
            return
        possible = FORMS if self._found is None else ()
        self._found = RowsComparison(first.num_rows, trace.num_rows)
        self._found.match(first.program, trace.program)
        forms = dict.fromkeys(self._found.places, possible)
        forms.update((place, (form,) if form else ()) for place, form in self.forms.items())
        fitting = {
            place: next((f for f in own if fits(f, place, first) and fits(f, place, trace)), None)
            for place, own in forms.items()
        }
        if fitting != self.forms:
            self._renew(fitting)

    def _renew(self, forms: dict[int, SizeForm | None]) -> None:
        self.forms = forms
        self._rows = None
        self._values.clear()

    @property
    def rows(self) -> RowProgram:
        """The analysis of what is prepared."""
        if self._rows is None:
            lifted = lift(self._first, self.forms)
            assumed = assumed_numbers(lifted.sizes, 4 ** (self._doubling // 2))
            self._rows = analyse_rows(lifted, self._found, assumed, len(self.row_type.shapes))
        return self._rows

    def equations(self, capacity: int) -> list[Equation]:
        """Those of the analysed program, for chunks of a capacity that is prepared: other traces
        differ in parameters alone.
        """
        ours = self.rows.program
        theirs = self._traced(capacity).program
        pairs = zip(ours.eqns, theirs.eqns, strict=True)
        return [eqn.replace(params=other.params) for eqn, other in pairs]

    # --- numbers made from the number of rows -----------------------------------------------------

    def sizes(self, num_rows: int) -> dict[Var, Any]:
        """The numbers made from the number of rows, for so many rows: by their forms, or from the
        trace, which is compared.
        """
        found = self._values.get(num_rows)
        if found is None:
            if None in self.forms.values():
                self._compare(self._traced(num_rows))
            found = {}
            for var, (place, form) in self.rows.sizes.items():
                if form is None:
                    value = self._traced(num_rows).atoms[place].val
                else:
                    value = form(num_rows)
                found[var] = typed_as(var, value)
            self._values.add(num_rows, found)
        return found

    # --- traces -----------------------------------------------------------------------------------

    def _traced(self, num_rows: int) -> Sized:
        """The function traced for a number of rows, calls opened."""
        return self._traces.made(num_rows, lambda: Sized(num_rows, self._trace(num_rows)))

    def _trace(self, num_rows: int) -> Program:
        avals = self.row_type.avals(num_rows)
        try:
            program, self.out_tree = trace_with_tree(self._of_leaves, *avals, *self.feeds)
        except IncraxError:
            raise
        except Exception as error:
            if self._traces:
                raise MixedRowsError(
                    f"`incremental(f)` got `Rows`, and f cannot be traced for {num_rows} rows: "
                    f"{type(error).__name__}: {error} This is usually an array with one entry a "
                    "row that f takes from elsewhere: a closed-over constant or another argument. "
                    f"Put it into the same `Rows`. {CURE}"
                ) from error
            raise
        return run_passes(program, (inline_with_solves, drop_dead, from_identities))

    def _of_leaves(self, *leaves: Any) -> Any:
        """The function, as one of its leaves, those of all rows first."""
        num = len(self.row_type.shapes)
        data = jax.tree.unflatten(self.row_type.treedef, leaves[:num])
        args, kwargs = self.signature.rebuild(leaves[num:])
        args, kwargs = jax.tree.map(lambda x: data if type(x) is RowType else x, (args, kwargs))
        return self.fun(*args, **kwargs)

    @cached_property
    def plain(self) -> Function:
        """The same, compiled by `jax.jit`."""
        return jax.jit(self._of_leaves)
