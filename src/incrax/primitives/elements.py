"""The walk: what each value depends on, element by element, in a domain that says how sets of
inputs are held.

Two domains are built on it: bit masks, for what a change reaches (`engine.program.dependence`), and
boolean sparse matrices, for what a derivative may be (`derivatives.sparsity.search`). The domain is
all that differs; index rules and equations that hold jaxprs are the same. A value that depends on
nothing is the domain's `NOTHING`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import all_read, read_vars
from incrax.primitives.entry import Read, Reads, View, element_numbers, mapped, shape_of
from incrax.primitives.table import entry_of


class Walked(NamedTuple):
    """What a walk found: all values that are still held, those of the outputs, and what is
    known.
    """

    env: dict[Var, Any]
    outputs: list[Any]
    known: Any


class Domain(ABC):
    """How sets of inputs are held, one for each element of a value, and what is known of values."""

    NOTHING: Any = None

    # --- sets, element by element -----------------------------------------------------------------

    @abstractmethod
    def take(self, value: Any, numbers: np.ndarray) -> Any:
        """Of the shape of `numbers`: the element of that number; of -1 nothing."""

    @abstractmethod
    def beside(self, values: Sequence[Any], atoms: Sequence[Atom]) -> Any:
        """The elements of all values, one value after another."""

    @abstractmethod
    def gathered(self, value: Any, targets: Any, sources: Any, shape: Sequence[int]) -> Any:
        """Of a shape: at `targets[k]` the union of elements `sources[k]`, over all k with that
        target.
        """

    @abstractmethod
    def grouped(self, value: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
        """The union along some axes, which stay with one element."""

    @abstractmethod
    def running(self, value: Any, shape: Sequence[int], axis: int, direction: int) -> Any:
        """At each element the union of those before it (1) or after it (-1), along an axis."""

    @abstractmethod
    def union(self, values: Sequence[Any]) -> Any:
        """Element by element."""

    @abstractmethod
    def everywhere(self, values: Iterable[Any], aval: Any) -> Any:
        """At each element the union of all elements of all values."""

    @abstractmethod
    def is_same(self, value: Any, other: Any) -> bool:
        """Whether a value that was joined with something has grown."""

    # --- loops ------------------------------------------------------------------------------------

    max_repeats = 1 << 30
    """Walks of a body before what it carries is taken to depend on everything."""

    def in_loop(self, value: Any) -> Any:
        """A value as it enters a loop."""
        return value

    def opened(self, jaxpr: Any) -> Any:
        """A jaxpr in an equation, as what is walked."""
        return _jax.open_jaxpr(jaxpr)

    def is_unrolled(self, eqn: Equation, body: Any) -> bool:
        """Whether a scan is walked iteration by iteration, for which a domain has the two methods
        below.
        """
        del eqn, body
        return False

    def row_of(self, found: Any, number: int, aval: Any) -> Any:
        """What is known of a row, from what is known of an array."""
        raise NotImplementedError

    def of_rows(self, found: Sequence[Any]) -> Any:
        """What is known of an array, from what is known of its rows."""
        raise NotImplementedError

    # --- what is known ----------------------------------------------------------------------------

    @abstractmethod
    def known(self, program: Any, constants: Sequence[Any]) -> Any:
        """What is known of a program's values, given what is known of its inputs."""

    @abstractmethod
    def view(self, known: Any) -> View:
        """The same for rules."""

    @abstractmethod
    def constant_of(self, atom: Atom, known: Any) -> Any:
        """What is known of an atom; None: nothing."""

    @abstractmethod
    def enter(self, eqn: Equation, operands: Sequence[Any], known: Any) -> list[Any] | None:
        """Learn what is known of an equation's outputs; what they depend on, where its rule need
        not be asked.
        """

    def retired(self, value: Any) -> Any:
        """What is kept of a value that nothing reads any more."""
        return value

    def finished(self, results: Sequence[Any]) -> None:
        """Called with the outputs of every equation."""
        del results

    # --- the walk ---------------------------------------------------------------------------------

    def walk(
        self, program: Any, operands: Sequence[Any], constants: Sequence[Any] | None = None
    ) -> Walked:
        """What each variable of a program depends on, from what its inputs do."""
        known = self.known(program, [None] * len(operands) if constants is None else constants)
        view = self.view(known)
        env: dict[Var, Any] = dict(zip(program.invars, operands, strict=True))
        env.update(dict.fromkeys(program.constvars, self.NOTHING))
        retiring = _last_reads(program)
        nothing = self.NOTHING
        for number, eqn in enumerate(program.eqns):
            inputs = [nothing if isinstance(x, Literal) else env[x] for x in eqn.invars]
            results = self.enter(eqn, inputs, known)
            if results is None:
                results = self._equation(eqn, inputs, known, view)
            self.finished(results)
            env.update(zip(eqn.outvars, results, strict=True))
            for var in retiring.get(number, ()):
                env[var] = self.retired(env[var])
        outputs = [nothing if isinstance(x, Literal) else env[x] for x in program.outvars]
        return Walked(env, outputs, known)

    def _equation(
        self, eqn: Equation, operands: Sequence[Any], known: Any, view: View
    ) -> list[Any]:
        entry = entry_of(eqn)
        if entry.inside is not None and not eqn.effects:
            return entry.inside(eqn, operands, known, self)
        reads = None if entry.index is None else entry.index(eqn, view)
        if reads is None:
            return self.all_to_all(eqn, operands)
        return [
            self._output(eqn, var, each, operands)
            for var, each in zip(eqn.outvars, reads, strict=True)
        ]

    def all_to_all(self, eqn: Equation, operands: Sequence[Any]) -> list[Any]:
        """Every output element depends on all that any operand element depends on."""
        return [self.everywhere(operands, var.aval) for var in eqn.outvars]

    def _output(self, eqn: Equation, var: Var, reads: Reads, operands: Sequence[Any]) -> Any:
        if reads.moved is not None:
            return self.take(self.beside(operands, eqn.invars), reads.moved())
        shape = shape_of(var)
        found = [
            self._read(value, read, shape_of(atom), shape)
            for value, read, atom in zip(operands, reads.operands, eqn.invars, strict=False)
            if read is not None and value is not self.NOTHING
        ]
        return self.union(found)

    def _read(self, value: Any, read: Read, shape: Sequence[int], out: Sequence[int]) -> Any:
        """What an output depends on by one operand."""
        if read is mapped(len(out)) and shape == out:
            return value
        if read.pairs is not None:
            return self.gathered(value, *read.pairs(), out)
        gone = [
            d for d, axis in enumerate(read.axes) if not axis.kind.is_map and not axis.kind.running
        ]
        for d, axis in enumerate(read.axes):
            if axis.kind.running:
                value = self.running(value, shape, d, axis.kind.running)
        wide = [d for d in gone if shape[d] != 1]
        if wide:
            value = self.grouped(value, shape, wide)
        kept = [(axis.out, d) for d, axis in enumerate(read.axes) if d not in gone]
        lengths = [1] * len(out)
        for a, d in kept:
            lengths[a] = shape[d]
        own = element_numbers([1 if d in gone else n for d, n in enumerate(shape)])
        order = [d for _, d in sorted(kept)]
        return self.take(
            value, np.broadcast_to(np.transpose(own, [*order, *gone]).reshape(lengths), out)
        )


def _last_reads(program: Any) -> dict[int, list[Var]]:
    """The variables that an equation is the last to read and that are no outputs, by its number."""
    outputs = all_read((), program.outvars)
    last = {var: number for number, eqn in enumerate(program.eqns) for var in read_vars(eqn)}
    found: dict[int, list[Var]] = {}
    for var, number in last.items():
        if var not in outputs:
            found.setdefault(number, []).append(var)
    return found
