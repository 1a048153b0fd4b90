"""What an entry of the table says of a primitive, and the words in which index rules are written.

An index rule says how each output of an equation reads each operand, axis by axis, and exactly,
element by element, where the elements are known. It may say too much, never too little. No rule, no
claim: every output then depends on every operand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal

# --- index rules ----------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What happens along an axis of an operand.

    Fields:
        mixes: why rows along the axis are not treated each by itself; empty if they are.
        is_map: element i is read by element i of the output's axis, and by no other; else by all of
            them.
        running: element i is read by i and those after it (1) or before it (-1).
        reduction: the kind of the reduction along the axis, if it is one.
        is_rigid: an axis of one element is not stretched.
        is_final: rows that are mixed so stay mixed; after others, such as a reshape that merges
            rows with something else, they may be apart again.
    """

    mixes: str = ""
    is_map: bool = False
    running: int = 0
    reduction: str | None = None
    is_rigid: bool = False
    is_final: bool = False


MAP = Kind(is_map=True)
PUT = Kind(is_map=True, is_rigid=True)
REARRANGED = Kind("puts rows in another order or place")
WINDOW = Kind("reads some of the rows by their place")
WRITTEN = Kind("writes to some of the rows by their place", is_map=True)
OVERWRITES = Kind("writes to some of the rows by their place")
GONE = Kind("loses the row axis")


class Axis(NamedTuple):
    """Where an axis of an operand goes: an axis of the output, or (below 0) a label of axes that
    are read together.
    """

    out: int
    kind: Kind = MAP


class Read(NamedTuple):
    """How an output reads an operand: where its axes go.

    `pairs()`, called by those only who ask for elements, says more: (targets, sources), numbers of
    elements of the output and the operand; a target that stands there twice reads both sources.
    """

    axes: tuple[Axis, ...]
    pairs: Callable[[], tuple[Any, Any]] | None = None


class Reads(NamedTuple):
    """How an output reads the operands (None: not at all); one more is of no operand, but of what
    is made there.

    `moved()`, called by those only who ask for elements, says all of them where an output is made
    of copies: of its shape, which element is copied there; all operands' elements are numbered one
    after another, -1 is none of them.
    """

    operands: Sequence[Read | None]
    moved: Callable[[], np.ndarray] | None = None


class Run(NamedTuple):
    """Rows of an output that are rows of an operand: `out + i * out_step` is `first + i * step`,
    for 0 <= i < num.
    """

    operand: int
    out: int
    first: int
    num: int
    out_step: int = 1
    step: int = 1

    def reversed(self) -> Run:
        """From the rows of the output to those of the operand."""
        return Run(self.operand, self.first, self.out, self.num, self.step, self.out_step)

    def within(self, low: int, high: int) -> range:
        """The i whose row of the output is low <= out + i * out_step < high."""
        out, step = self.out, self.out_step
        if step < 0:
            out, step, low, high = -out, -step, 1 - high, 1 - low
        return range(max(-((out - low) // step), 0), min(-((out - high) // step), self.num))

    def places(self, ends: tuple[int, int]) -> tuple[int, int] | None:
        """The ends of the interval to which rows in an interval of the operand go, if any do."""
        moved = self.reversed().within(*ends)
        if not moved:
            return None
        places = [self.out + i * self.out_step for i in (moved[0], moved[-1])]
        return min(places), max(places) + 1


class Window(NamedTuple):
    """Which rows of an operand each row of an output reads: output row j what is at the places
    j * stride + t * dilation - low, for 0 <= t < taps. Row i of the operand is at i * spread, and
    anything else is `fill`; or, where it is `laid`, each row takes `spread` places.

    Fields:
        source, out: the axes of the rows.
        run: what the equation makes of operands of which the first has all places along the axis,
            no padding, as many as there are.
        laid: rows as places along the axis; None: the holes between them are filled.
    """

    source: int
    out: int
    run: Callable[..., Any]
    taps: int
    stride: int = 1
    low: int = 0
    dilation: int = 1
    spread: int = 1
    fill: Any = 0
    laid: Callable[[Any], Any] | None = None

    @property
    def reach(self) -> int:
        """From the first place that a row of the output reads to the last."""
        return (self.taps - 1) * self.dilation

    @property
    def size(self) -> int:
        """Places of a row of the operand."""
        return 1 if self.laid is None else self.spread

    @property
    def numbers(self) -> tuple[int, ...]:
        """What tells which rows it reads."""
        return self.taps, self.stride, self.low, self.dilation, self.spread, self.size


class View:
    """What a rule may know of an equation besides its parameters. This one: nothing but literals.

    `zeros`: whether a product with a constant zero reads nothing, as where derivatives are asked
    for (0 * inf is NaN). `trusts`: whether the dependencies that a user named stand for those that
    the trace sees.
    """

    zeros = False
    trusts = False

    def value(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom; None where it depends on an input."""
        return np.asarray(atom.val) if isinstance(atom, Literal) else None

    def check(self, count: int) -> None:
        """Raise where so many elements are too many to be told apart."""

    def factor(self, atom: Atom) -> np.ndarray | None:
        """The value of a factor whose zeros count."""
        return self.value(atom) if self.zeros else None


NOTHING_KNOWN = View()

IndexRule: TypeAlias = Callable[[Equation, View], "Sequence[Reads] | None"]
"""The reads of each output; None: no claim."""


@functools.cache
def mapped(rank: int) -> Read:
    """Element by element."""
    return Read(tuple(map(Axis, range(rank))))


def along(rank: int, axes: Container[int], kind: Kind) -> Read:
    """Axes stay where they are; along some of them something happens."""
    return Read(tuple(Axis(d, kind if d in axes else MAP) for d in range(rank)))


def without(rank: int, axes: Collection[int], kind: Kind) -> Read:
    """Some axes go, and what is left closes up."""
    place = lambda d: Axis(-1 - d, kind) if d in axes else Axis(d - sum(a < d for a in axes))
    return Read(tuple(map(place, range(rank))))


def of_all(eqn: Equation, operands: Sequence[Read | None]) -> list[Reads]:
    """All outputs read alike."""
    return [Reads(operands)] * len(eqn.outvars)


def rank_of(atom: Any) -> int:
    """The number of axes of an atom."""
    return len(shape_of(atom))


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of an atom."""
    return getattr(atom.aval, "shape", ())


def with_parameters(eqn: Equation, changed: dict[str, Any]) -> Callable[..., Any]:
    """The first result of an equation, of operands, with some other parameters."""
    other = eqn.replace(params={**eqn.params, **changed})
    return lambda *values: _jax.apply(other, values)[0]


def with_item(items: Sequence[Any], number: int, value: Any) -> tuple[Any, ...]:
    """The same with another value in one place."""
    return (*items[:number], value, *items[number + 1 :])


def element_numbers(shape: Sequence[int], first: int = 0) -> np.ndarray:
    """Each element's number, in C order."""
    return np.arange(first, first + math.prod(shape)).reshape(shape)


def operand_numbers(eqn: Equation) -> list[np.ndarray]:
    """The numbers of each operand's elements, one operand after another."""
    numbers = []
    first = 0
    for atom in eqn.invars:
        numbers.append(element_numbers(shape_of(atom), first))
        first += numbers[-1].size
    return numbers


# --- algebraic form -------------------------------------------------------------------------------


class Algebra(NamedTuple):
    """What an equation is in its operands.

    Forms: "linear" in the first, the others choose; "sum" of the operands with these signs;
    "joined", linear in those that have a sign together, each in its place (0: others choose);
    "product", linear in each of two; "quotient"; "power". Where there are fewer signs than
    operands, the last one goes on.
    """

    form: str
    signs: tuple[int, ...] = ()

    def sign(self, number: int) -> int:
        """The sign of an operand; 0 of one that chooses."""
        return self.signs[min(number, len(self.signs) - 1)] if self.signs else 1

    def is_negative(self, number: int) -> bool:
        """Whether an operand enters with a minus."""
        return self.sign(number) < 0


LINEAR = Algebra("linear", (1, 0))
PRODUCT = Algebra("product")

# --- entries --------------------------------------------------------------------------------------


class EquationWork(NamedTuple):
    """What one evaluation computes: FLOPs, transcendental functions in exponentials, integer
    operations.
    """

    flops: float = 0.0
    transcendentals: float = 0.0
    int_ops: float = 0.0


NOTHING = EquationWork()


class Evaluations(NamedTuple):
    """Work given as so many evaluations of a body of scalars."""

    body: _jax.Body
    times: float


@dataclass(frozen=True)
class Primitive:
    """All that is known of a primitive; each field may be missing.

    Fields:
        index: how outputs read operands.
        runs: where rows along an axis go that an equation moves by fixed distances: for each output,
            the runs of rows of its operands; a last operand fills what no run covers. To be asked
            by `on_rows.runs_along`: it means nothing along an axis that is not moved.
        windows: the axes along which each row of the only output reads some rows of the first
            operand, one after the other.
        inside: what outputs depend on, for equations that hold jaxprs: `(eqn, operands, known,
            walk) -> outputs`.
        work: what one evaluation computes; None for an equation of which nobody said.
        constant: its value on NumPy arrays, with the bits of XLA; None where these are not sure.
        algebra: its algebraic form, or a function that finds it.
        is_elementwise: each output element is a function of the operands' elements of that place.
        puts_together: the result may be of several operands, side by side.
        is_free: XLA fuses it into its readers; it costs no time of its own.
        is_unfused: XLA runs it apart from others, and reads its operands from memory.
        is_product: its operations are those of matrix products, of which more fit in a second.
        additions: time of one of its operations, or of an element that it moves, in additions: in
            double precision on a CPU, measured alone.
    """

    index: IndexRule | None = None
    runs: Callable[[Equation, int], Sequence[Sequence[Run]]] | None = None
    windows: Callable[[Equation], list[Window]] | None = None
    inside: Callable[..., list[Any]] | None = None
    work: Callable[[Equation], EquationWork | Evaluations | None] | None = None
    constant: Callable[..., Any] | None = None
    algebra: Algebra | Callable[[Equation], Algebra | None] | None = None
    is_elementwise: bool = False
    puts_together: bool = False
    is_free: bool = False
    is_unfused: bool = False
    is_product: bool = False
    additions: float = 1.0


Family: TypeAlias = dict[str, Primitive]


def each(names: str, entry: Primitive) -> Family:
    """The same entry for several primitives."""
    return dict.fromkeys(names.split(), entry)


# --- what equations compute with ------------------------------------------------------------------

COMPLEX_FACTOR = 4.0
"""Real products in a complex one: what a complex operation made of products and functions costs
more.
"""


def kind_of(eqn: Equation) -> str:
    """What an equation computes with: "c" complex numbers, "f" floating-point numbers, "i" anything
    else.
    """
    kinds = {dtype_kind(x.aval) for x in (*eqn.outvars, *eqn.invars)}
    return "c" if "c" in kinds else "f" if "f" in kinds else "i"


def dtype_kind(aval: Any) -> str:
    """The same of a type."""
    return _kind_of(getattr(aval, "dtype", None))


@functools.cache
def _kind_of(dtype: Any) -> str:
    kinds = {"c": jnp.complexfloating, "f": jnp.floating}
    found = [kind for kind, of in kinds.items() if dtype is not None and jnp.issubdtype(dtype, of)]
    return found[0] if found else "i"


def in_size(eqn: Equation) -> int:
    """Elements of the first operand."""
    return _jax.aval_size(eqn.invars[0].aval)


def out_size(eqn: Equation) -> int:
    """Elements of all results."""
    return sum(_jax.aval_size(var.aval) for var in eqn.outvars)


def counted(eqn: Equation, count: float, complex_factor: float) -> EquationWork:
    """So many operations on real numbers, or on what the equation computes with."""
    kind = kind_of(eqn)
    if kind == "i":
        return EquationWork(int_ops=float(count))
    return EquationWork(flops=float(count) * (complex_factor if kind == "c" else 1.0))


def no_work(_: Equation) -> EquationWork:
    """Moving, reshaping and converting data is no work."""
    return NOTHING
