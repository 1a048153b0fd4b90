"""Records that cross the boundary of a compiled function.

In: the results of a function while it is traced; later the arrays of a call and what the program returned. Out: the
further values that the program must return, and after the call the records, attached again. Invariants:

- a `Form`, a record without its values, holds no tracer: it lives as long as the program;
- a record is carried if its parameters and context are arguments or closed over; what was computed inside is no object
  that a later call could be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from incrax import _jax
from incrax._jax import is_known_with
from incrax.bijectors.memory import Record, attach, is_kept, is_readable, records_of
from incrax.bijectors.remembered import Remembered
from incrax.bijectors.state import Kind, reference


class Place(NamedTuple):
    """Where a value is found after a call: among the arguments, the results, or closed over."""

    kind: str  # "argument", "result" or "constant"
    number: int
    constant: Callable[[], Any] | None = None


class Form(NamedTuple):
    """A record without its values."""

    kind: Kind
    arrays: tuple[Place, ...]
    direction: str
    source: Place
    context: Place | None
    ladj: Place | None
    intermediates: tuple[Any, tuple[Place, ...]] | None
    parts: tuple[Form, ...]
    owner: tuple[int, tuple[int, ...]] | None  # which of the bijections among the arguments, which part of it
    bijection: Callable[[], Any]  # where it is none of these
    has_right_type: tuple[bool, bool] | None


class Outgoing(NamedTuple):
    """What a program returns beyond its results: who remembers what, by the number of the result."""

    places: tuple[Place, ...]  # of the results of the function itself
    forms: tuple[tuple[int, tuple[Form, ...]], ...]

    def attached(self, arguments: Sequence[Any], results: Sequence[Any], bijections: Sequence[Remembered]) -> list[Any]:
        """The results of the function, with their records; an argument that comes back as the object that it was."""
        for number, forms in self.forms:
            output = results[number]
            if not is_kept(output) or records_of(output) or any(output is x for x in arguments):
                continue
            found = (_record(form, output, _Values(arguments, results, bijections)) for form in forms)
            records = tuple(record for record in found if record is not None)
            if records:
                attach(output, records)
        ends = [arguments[p.number] if p.kind == "argument" else results[p.number] for p in self.places]
        return [end if is_kept(end) else result for end, result in zip(ends, results, strict=False)]


class _Values(NamedTuple):
    arguments: Sequence[Any]
    results: Sequence[Any]
    bijections: Sequence[Remembered]

    def at(self, place: Place) -> Any:
        if place.constant is not None:
            return place.constant()
        return (self.arguments if place.kind == "argument" else self.results)[place.number]

    def owner(self, form: Form) -> Callable[[], Any]:
        if form.owner is None:
            return form.bijection
        number, path = form.owner
        found = self.bijections[number]
        for part in path:
            found = found.parts[part]
        return reference(found)


def _record(form: Form, output: Any, values: _Values) -> Record | None:
    """A record of an output; None if what it needs is not at hand, or not wherever the output is."""
    arrays = [values.at(place) for place in form.arrays]
    source, context = values.at(form.source), None if form.context is None else values.at(form.context)
    needed = [*arrays, source, *([] if form.context is None else [context])]
    if not all(is_kept(x) and is_known_with(x, output) for x in needed):
        return None
    weak_context = None if form.context is None else reference(context)
    record = Record(values.owner(form), form.kind.with_arrays(arrays), form.direction, source, weak_context)
    record.has_right_type = form.has_right_type
    if form.ladj is not None and is_known_with(values.at(form.ladj), output):
        record.ladj = values.at(form.ladj)
    if form.intermediates is not None:
        treedef, places = form.intermediates
        leaves = list(map(values.at, places))
        if all(is_known_with(x, output) for x in leaves):
            record.intermediates = jax.tree.unflatten(treedef, leaves)
    parts = [_record(part, output, values) for part in form.parts]
    record.parts = tuple(part for part in parts if part is not None) if None not in parts else ()
    return record


class Collector:
    """What a trace leaves: its results, and all that their records need, as far as it can be had after the call."""

    def __init__(self, arguments: Sequence[Any], bijections: Iterable[Remembered], results: Sequence[Any]) -> None:
        self.results = list(results)
        self._arguments = arguments
        self._places = {id(x): Place("result", k) for k, x in enumerate(results)}
        self._places.update({id(x): Place("argument", k) for k, x in enumerate(arguments)})
        self._owners: dict[int, tuple[int, tuple[int, ...]]] = {}
        for number, bijection in enumerate(bijections):
            self._add_owner(bijection, number, ())

    def _add_owner(self, bijection: Remembered, number: int, path: tuple[int, ...]) -> None:
        self._owners[id(bijection)] = number, path
        for k, part in enumerate(bijection.known_parts):
            self._add_owner(part, number, (*path, k))

    def outgoing(self) -> Outgoing:
        """What to attach after a call; adds to the results."""
        places = tuple(self._places[id(x)] for x in self.results)
        forms, number = [], 0
        while number < len(self.results):
            result = self.results[number]
            if self._places[id(result)] == Place("result", number):
                found = [self._form(record) for record in records_of(result)]
                kept = tuple(form for form in found if form is not None)
                forms.extend([(number, kept)] if kept else [])
            number += 1
        return Outgoing(places, tuple(forms))

    def _form(self, record: Record) -> Form | None:
        arrays = [self._given(array()) for array in record.state.arrays]
        has_context = record.has_context_ref
        context = self._given(record.context) if has_context else None
        if None in arrays or (has_context and context is None):
            return None
        source = self._computed(record.source)
        intermediates = None
        if record.intermediates is not None:
            leaves, treedef = jax.tree.flatten(record.intermediates)
            intermediates = treedef, tuple(map(self._computed, leaves))
        parts = [self._form(part) for part in record.parts]
        return Form(
            Kind(record.state),
            tuple(array for array in arrays if array is not None),
            record.direction,
            source,
            context,
            None if record.ladj is None else self._computed(record.ladj),
            intermediates,
            tuple(part for part in parts if part is not None) if None not in parts else (),
            self._owners.get(id(record.bijection)),
            record.bijection_ref,
            record.has_right_type,
        )

    def _given(self, x: Any) -> Place | None:
        """The place of a value that is an argument, a result so far, or closed over."""
        found = self._places.get(id(x))
        if found is not None or x is None:
            return found
        is_closed_over = isinstance(x, _jax.ArrayImpl) or not _jax.is_innermost(x)
        return Place("constant", 0, reference(x)) if is_closed_over else None

    def _computed(self, x: Any) -> Place:
        """The place of a value, which becomes a result if it is none."""
        found = self._places.get(id(x))
        if found is not None:
            return found
        if isinstance(x, _jax.ArrayImpl):
            return Place("constant", 0, lambda: x)
        self._places[id(x)] = Place("result", len(self.results))
        self.results.append(x)
        return self._places[id(x)]


# --- into a call ------------------------------------------------------------------------------------------------------


class Incoming(NamedTuple):
    """A record of an argument, by numbers of arguments: it is the same for every call with records of the same form."""

    kind: Kind
    output: int
    arrays: tuple[int, ...]
    direction: str
    source: int
    context: int | None
    ladj: int | None

    def attach(self, arguments: Sequence[Any]) -> None:
        """Remember the same of tracers of the arguments."""
        state = self.kind.with_arrays([arguments[k] for k in self.arrays])
        context = None if self.context is None else reference(arguments[self.context])
        record = Record(_no_bijection, state, self.direction, arguments[self.source], context)
        record.ladj = None if self.ladj is None else arguments[self.ladj]
        attach(arguments[self.output], (*records_of(arguments[self.output]), record))


def _no_bijection() -> None:
    return None


def incoming(arguments: Sequence[Any]) -> tuple[tuple[Incoming, ...], list[Any]]:
    """The records of arguments by parameters that are arguments too; and the arguments with what these need beside."""
    remembering = [(k, records) for k, x in enumerate(arguments) if (records := records_of(x))]
    given = list(arguments)
    if not remembering:
        return (), given
    numbers = {id(x): k for k, x in enumerate(arguments)}

    def number(x: Any) -> int:
        if id(x) not in numbers:
            numbers[id(x)] = len(given)
            given.append(x)
        return numbers[id(x)]

    found = []
    for output, records in remembering:
        for record in records:
            form = _incoming(record, arguments[output], output, dict(numbers), number)
            found.extend([] if form is None else [form])
    return tuple(found), given


def _incoming(
    record: Record, output: Any, number: int, given: dict[int, int], added: Callable[[Any], int]
) -> Incoming | None:
    arrays = [array() for array in record.state.arrays]
    context = record.context
    needed = [*arrays, *([context] if record.has_context_ref else [])]
    if not all(id(x) in given for x in needed) or not is_readable(record.source):
        return None
    ladj = added(record.ladj) if is_readable(record.ladj) and is_known_with(record.ladj, output) else None
    places = tuple(given[id(array)] for array in arrays)
    at_context = given[id(context)] if record.has_context_ref else None
    return Incoming(Kind(record.state), number, places, record.direction, added(record.source), at_context, ladj)
