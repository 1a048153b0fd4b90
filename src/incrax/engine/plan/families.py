"""Stage 9, families: plans that are the same but for what they read have the same form, and share
one program.

In: a plan's equations. Out: the same in canonical order, with a key that is equal for plans of one
family: branch 5 and branch 6 of a tree, width 2 and width 9. It must not know what is compiled.

The equations are numbered in the order in which a walk from the results to what is read leaves
them, so that their order in the program, names and source lines do not count. Operands of a sum or
a product, terms of a long sum where these may be reordered, outputs, and values to save, have no
order of their own: they are sorted by a colour, a digest of all that they are computed from, in which
an argument counts by its type and by what reads it. A gradient's elements are such outputs: the one
that changed may be any of them.
Colours that are equal by chance or by symmetry cost a program, never a result: plans share one only
where their whole keys are equal.

Promise: the program of a plan, run on what another plan of its family reads, gives that one's
results.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import read_vars
from incrax.engine.program.chains import find_chains
from incrax.engine.program.structure import literal_key, operation_key
from incrax.engine.rewrites.partial_sums import additions

MAX_PIECE = 8192
"""Elements of a piece of an argument up to which its place is an argument, too: of parameters, and
of rows of data; larger pieces are read faster where the place is known.
"""

MAX_LENGTH = 2**31 - 1
"""Of an axis on which a place is an argument: places are integers of 32 bits."""

COMMUTATIVE = frozenset({"add", "mul", "add_any", "and", "or", "xor"})
"""Of two operands; not `max` and `min`, which may tell one zero from the other by their order."""


class Elements(NamedTuple):
    """A few elements of an argument, `written` as one variable: from where on, how many, and the
    axes of one element that are taken away.
    """

    written: Var
    argument: Var
    start: tuple[int, ...]
    sizes: tuple[int, ...]
    squeezed: tuple[int, ...] = ()

    @property
    def invars(self) -> list[Atom]:
        """What it reads, as an equation does."""
        return [self.argument]

    @property
    def outvars(self) -> list[Var]:
        """What it writes."""
        return [self.written]

    def taken(self, array: jax.Array, start: Sequence[Any]) -> jax.Array:
        """Its value at a place that is known when the program runs."""
        return jax.lax.squeeze(jax.lax.dynamic_slice(array, start, self.sizes), self.squeezed)


class CanonicalPlan(NamedTuple):
    """A plan's equations in canonical order."""

    key: Hashable
    pieces: tuple[Elements, ...]  # of arguments
    eqns: tuple[Equation, ...]  # that follow these
    arguments: tuple[Var, ...]
    outputs: tuple[int, ...]  # which are returned, in order
    saves: tuple[Var, ...]


class Sum(NamedTuple):
    """The sum of several terms, by additions like one that writes it."""

    terms: tuple[Var, ...]
    like: Equation

    @property
    def invars(self) -> list[Atom]:
        """What it reads, as an equation does."""
        return list(self.terms)

    @property
    def outvars(self) -> list[Var]:
        """What it writes."""
        return self.like.outvars


Step = Equation | Elements | Sum


def canonical_form(
    eqns: Iterable[Equation],
    outputs: Sequence[Atom],
    saves: Sequence[Var],
    kind_of: Callable[[Var], Hashable],
    *,
    guard: Var | None = None,
    may_reorder: bool = False,
) -> CanonicalPlan:
    """The form of equations without effects.

    Args:
        eqns: in an order in which they can run.
        outputs: what is returned, in any order.
        saves: what is returned besides, in any order.
        kind_of: what tells arguments apart: it is equal where one may stand in the other's place.
        guard: what is returned last.
        may_reorder: whether the terms of a long sum may be added in another order, as partial sums
            do: a term that moves may stand at any place of it.

    Cost: some 10 us an equation, where compiling it takes a millisecond.
    """
    eqns = list(eqns)
    guards = [] if guard is None else [guard]
    steps = _with_sums(eqns, [*outputs, *saves, *guards]) if may_reorder else eqns
    walk = _Walk(steps, kind_of)
    places = sorted(range(len(outputs)), key=lambda place: walk.colour_of(outputs[place]))
    returned = tuple(walk.visit(outputs[place]) for place in places)
    for var in (*sorted(saves, key=walk.colour_of), *guards):
        walk.visit(var)
    ordered = tuple(sorted(saves, key=walk.numbers.__getitem__))
    last = tuple(walk.numbers[var] for var in (*ordered, *guards))
    return CanonicalPlan(
        (tuple(walk.lines), returned, last, len(guards)),
        tuple(walk.pieces),
        tuple(walk.eqns),
        tuple(walk.arguments),
        tuple(places),
        ordered,
    )


def operation_digest(eqn: Equation) -> int:
    """A digest of what an equation does, of literals that are no data (`with_names`) and the types of all
    that it reads, equal where plans of one family may have it; not the same in every process.
    """
    read = tuple(literal_key(x) if _is_fixed(x) else x.aval for x in eqn.invars)
    pieces = pieces_of(eqn)
    if pieces:
        return hash((read, *((piece.sizes, piece.squeezed) for piece in pieces)))
    return hash((operation_key(eqn), read))


def with_names(eqn: Equation, numbers: dict[Var, Any]) -> Equation:
    """An equation in which each number that may be data, and another one for the next plan of its family,
    has a name; `numbers` gets their values.
    """
    read = list(eqn.invars)
    for place, atom in enumerate(read):
        if isinstance(atom, Literal) and not _is_fixed(atom):
            var = read[place] = _jax.new_var(atom.aval)
            numbers[var] = np.asarray(atom.val, atom.aval.dtype)
    return eqn.replace(invars=read) if read != eqn.invars else eqn


def _is_fixed(atom: Atom) -> bool:
    """Whether it is a literal that belongs to the operation: integers are places and counts, and what has
    no type of its own has that of others.
    """
    if not isinstance(atom, Literal):
        return False
    return atom.aval.weak_type or not jnp.issubdtype(atom.aval.dtype, jnp.floating)


class _Walk:
    """Numbers variables, from results back to arguments."""

    def __init__(self, given: Iterable[Step], kind_of: Callable[[Var], Hashable]) -> None:
        self.kind_of = kind_of
        self.numbers: dict[Var, int] = {}
        self.lines: list[Hashable] = []
        self.pieces: list[Elements] = []
        self.eqns: list[Equation] = []
        self.arguments: list[Var] = []
        self._writer: dict[Var, Step] = {}
        self._colours: dict[Var, int] = {}
        steps = list(self._steps(given))
        self._readers = _readers(steps)
        for step in steps:
            self._colour(step)

    def _steps(self, given: Iterable[Step]) -> Iterator[Step]:
        for step in given:
            pieces = () if isinstance(step, (Elements, Sum)) else self._pieces_of(step)
            steps: Sequence[Step] = pieces or (step,)
            for each in steps:
                self._writer.update(dict.fromkeys(each.outvars, each))
            yield from steps

    def _pieces_of(self, eqn: Equation) -> tuple[Elements, ...]:
        is_of_argument = not any(var in self._writer for var in read_vars(eqn))
        return pieces_of(eqn) if is_of_argument else ()

    def _colour(self, step: Step) -> None:
        read = [self.colour_of(atom) for atom in step.invars]
        word = f"{_word(step)} {sorted(read) if _commutes(step) else read}"
        for place, var in enumerate(step.outvars):
            self._colours[var] = _digest(f"{word} {place}")

    def colour_of(self, atom: Atom) -> int:
        """A digest of all that a value is computed from."""
        if isinstance(atom, Literal):
            return _digest(f"{_type_word(atom.aval)} {atom.val}")
        known = self._colours.get(atom)
        if known is None:
            known = _digest(f"{self.kind_of(atom)} {self._readers.get(atom)}")
            self._colours[atom] = known
        return known

    def visit(self, atom: Atom) -> Hashable:
        """What stands for a value in the key, when all that it is computed from has a number."""
        if isinstance(atom, Literal):
            return literal_key(atom)
        pending = [atom]
        while pending:
            var = pending[-1]
            if var in self.numbers:
                pending.pop()
                continue
            step = self._writer.get(var)
            read = [] if step is None else self._operands(step)
            missing = [x for x in read if not isinstance(x, Literal) and x not in self.numbers]
            pending += reversed(missing)
            if not missing:
                self._leave(var, step, read)
        return self.numbers[atom]

    def _operands(self, step: Step) -> list[Atom]:
        return sorted(step.invars, key=self.colour_of) if _commutes(step) else list(step.invars)

    def _leave(self, var: Var, step: Step | None, read: list[Atom]) -> None:
        names = tuple(literal_key(x) if isinstance(x, Literal) else self.numbers[x] for x in read)
        written = [var] if step is None else step.outvars
        for each in written:
            self.numbers[each] = len(self.numbers)
        types = tuple(each.aval for each in written)
        if step is None:
            self.arguments.append(var)
            self.lines.append(self.kind_of(var))
        elif isinstance(step, Elements):
            self.pieces.append(step)
            self.lines.append((Elements, step.sizes, step.squeezed, names, types))
        elif isinstance(step, Sum):
            self.eqns += additions([x for x in read if isinstance(x, Var)], step.like, var)
            self.lines.append((Sum, operation_key(step.like), names, types))
        else:
            self.eqns.append(step.replace(invars=read) if read != step.invars else step)
            self.lines.append((operation_key(step), names, types))


def _readers(steps: Iterable[Step]) -> dict[Var, int]:
    """A digest of the steps that read a variable, in any order."""
    found: dict[Var, int] = {}
    for step in steps:
        word = _word(step)
        is_ordered = not _commutes(step)
        for place, atom in enumerate(step.invars):
            if not isinstance(atom, Literal):
                digest = _digest(f"{word} {place * is_ordered}")
                found[atom] = (found.get(atom, 0) + digest) % 2**32
    return found


def _word(step: Step) -> str:
    name = step.primitive.name if isinstance(step, Equation) else type(step).__name__
    return f"{name} {_type_word(step.outvars[0].aval) if step.outvars else ''}"


_type_word = functools.lru_cache(4096)(str)
"""A program has few types, which take long to print."""


def _digest(text: str) -> int:
    """The same in every process, as `hash` of a text is not."""
    return zlib.crc32(text.encode())


def _commutes(step: Step) -> bool:
    """Whether the operands may change places; a scalar that is written into an equation stays where
    it is.
    """
    if not isinstance(step, Equation):
        return isinstance(step, Sum)
    if step.primitive.name not in COMMUTATIVE:
        return False
    return not any(isinstance(atom, Literal) for atom in step.invars)


def _with_sums(eqns: Sequence[Equation], results: Sequence[Atom]) -> list[Step]:
    """The equations with one step for each sum of three or more terms."""
    steps: dict[int, Step] = dict(enumerate(eqns))
    for chain in find_chains(eqns, results):
        for number in chain.eqns:
            del steps[number]
        steps[chain.last] = Sum(chain.terms, eqns[chain.last])
    return [steps[number] for number in sorted(steps)]


def pieces_of(eqn: Equation) -> tuple[Elements, ...]:
    """The pieces that an equation takes of its only operand; none where it does something else, or
    takes much.
    """
    name = eqn.primitive.name
    if name not in ("slice", "unstack") or not isinstance(eqn.invars[0], Var):
        return ()
    argument = eqn.invars[0]
    shape = argument.aval.shape
    is_small = all(_jax.aval_size(var.aval) <= MAX_PIECE for var in eqn.outvars)
    if not is_small or max(shape) > MAX_LENGTH:
        return ()
    if name == "slice":
        written = eqn.outvars[0]
        is_dense = set(eqn.params["strides"] or ()) <= {1}
        whole = Elements(written, argument, eqn.params["start_indices"], written.aval.shape)
        return (whole,) if is_dense else ()
    axis = eqn.params["axis"]
    sizes = (*shape[:axis], 1, *shape[axis + 1 :])
    before = (0,) * axis
    after = (0,) * (len(shape) - axis - 1)
    return tuple(
        Elements(var, argument, (*before, number, *after), sizes, (axis,))
        for number, var in enumerate(eqn.outvars)
    )
