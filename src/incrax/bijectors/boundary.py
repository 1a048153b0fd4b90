"""Records that leave a compiled function.

In: the arguments and results of a function while it is traced; later those of a call. Out: the
further values that the program must return, and the records, attached again. Invariants:

- a `Template`, a record without its values, holds no tracer: it lives as long as the program;
- a record is carried if its parameters and context are arguments or closed over; what was computed
  inside is no object that a later call could be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from incrax import _jax
from incrax._jax import is_known_with
from incrax.bijectors.memory import (
    Origin,
    attach,
    can_be_remembered,
    is_kept,
    is_readable,
    records_of,
)
from incrax.bijectors.snapshots import BijectionCode, Snapshot, reference

Where = int | Callable[[], Any]
"""Where a value is found at a call: its number among arguments and results, or what is closed
over.
"""


class Template(NamedTuple):
    """A record without its values."""

    output: int
    code: BijectionCode
    direction: str
    is_wide: bool
    arrays: tuple[Where | None, ...]
    source: Where
    context: Where | None
    ladj: Where | None
    bijection: Callable[[], Any]

    def attach_to(self, values: Sequence[Any]) -> None:
        """Remember the same of an output at a call, as far as what is needed can be used wherever
        the output can.
        """
        output = values[self.output]
        at = lambda where: where() if callable(where) else values[where]
        arrays = [at(where) for where in self.arrays]
        source = at(self.source)
        contexts = [] if self.context is None else [at(self.context)]
        if not can_be_remembered(output, *arrays, source, *contexts):
            return
        context = reference(contexts[0]) if contexts else None
        snapshot = Snapshot(self.code, arrays)
        record = Origin(self.bijection, snapshot, self.direction, source, context, self.is_wide)
        if self.ladj is not None and is_known_with(at(self.ladj), output):
            record.ladj = at(self.ladj)
        attach(output, (*records_of(output), record))


class Outgoing(NamedTuple):
    """What a program returns: the numbers of the function's own results, and who remembers what."""

    numbers: tuple[int, ...]
    templates: tuple[Template, ...]

    def attached(self, arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """The results of the function, with their records; an argument that comes back as the
        object that it was.
        """
        values = (*arguments, *results)
        has_memory = [bool(records_of(x)) or any(x is given for given in arguments) for x in values]
        for template in self.templates:
            if not has_memory[template.output]:
                template.attach_to(values)
        ends = [values[number] for number in self.numbers]
        return [end if is_kept(end) else result for end, result in zip(ends, results, strict=False)]


def outgoing(arguments: Sequence[Any], results: Sequence[Any]) -> tuple[Outgoing, list[Any]]:
    """What to attach after a call; and all that a program must return for it, the results first."""
    values = _Numbered((*arguments, *results))
    own = tuple(values.numbers[id(x)] for x in results)
    found = [
        _template(record, number, values)
        for number, output in values.further(len(arguments))
        for record in records_of(output)
    ]
    templates = tuple(template for template in found if template is not None)
    return Outgoing(own, templates), values.all[len(arguments) :]


class _Numbered:
    """Values by number; the first number counts where an object stands twice."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.all = list(values)
        self.numbers = {id(x): number for number, x in reversed([*enumerate(values)])}

    def further(self, start: int) -> Iterator[tuple[int, Any]]:
        """Values from a number on, those that are added meanwhile too, each once."""
        for number, x in enumerate(self.all):  # which grows meanwhile
            if number >= start and self.numbers[id(x)] == number:
                yield number, x

    def add(self, x: Any) -> int:
        """The number of a value, which is added if it has none."""
        if id(x) not in self.numbers:
            self.numbers[id(x)] = len(self.all)
            self.all.append(x)
        return self.numbers[id(x)]

    def given(self, x: Any) -> Where | None:
        """Where a value is found that has a number, or is closed over; None if it was computed
        inside.
        """
        if id(x) in self.numbers or x is None:
            return self.numbers.get(id(x))
        is_closed_over = isinstance(x, _jax.ArrayImpl) or not _jax.is_innermost(x)
        return reference(x) if is_closed_over else None

    def computed(self, x: Any) -> Where:
        """Where a value is found, which becomes a result if it is none."""
        is_constant = isinstance(x, _jax.ArrayImpl) and id(x) not in self.numbers
        return (lambda: x) if is_constant else self.add(x)


def _template(record: Origin, output: int, values: _Numbered) -> Template | None:
    """A record without its values; None if its parameters or context were computed inside."""
    arrays = tuple(values.given(array()) for array in record._snapshot.arrays)
    context = None if record._context_ref is None else values.given(record.context)
    is_lost = None in arrays or (record._context_ref is not None and context is None)
    if is_lost or not is_readable(record.source):
        return None
    source = values.computed(record.source)
    ladj = values.computed(record.ladj) if is_readable(record.ladj) else None
    made_by = record._snapshot.code, record.direction, record._is_wide
    return Template(output, *made_by, arrays, source, context, ladj, record._bijection_ref)
