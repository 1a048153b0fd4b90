"""Stage 3, depend: which inputs each value depends on, element by element for small arrays.

In: a `Program` and, per input, how many bits stand for it. Out: `Dependence`, one bit mask per
variable. A bit is an input leaf or one element of a small input leaf. It must not know which bits
are dirty.

Promise: if two inputs agree on all bits of a variable's mask, the variable has the same value for
both.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import Program, written_vars
from incrax.engine.program.constants import KnowingDomain, Known, KnownValues, learn
from incrax.engine.program.structure import is_repeatable
from incrax.primitives.entry import View
from incrax.primitives.table import entry_of

Masks: TypeAlias = Any
"""One int for a whole value, or an object array of ints with its shape."""

MAX_TRACKED = 1024
"""Elements above which a value has one mask for the whole array."""

ALWAYS = 1
"""Bit 0: set on everything that must run at every call (effects, mutable references)."""


@dataclass(frozen=True)
class Layout:
    """Where each input leaf's bits are: leaf `i`, of shape `shapes[i]`, has `widths[i]` bits from bit
    `offsets[i]`.
    """

    offsets: tuple[int, ...]
    widths: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def full(self) -> int:
        """The mask of all inputs."""
        return (1 << (self.offsets[-1] + self.widths[-1])) - 1 & ~ALWAYS if self.offsets else 0

    def leaf_mask(self, index: int) -> int:
        """The mask of one leaf, all its elements."""
        return ((1 << self.widths[index]) - 1) << self.offsets[index]

    def elements(self, mask: int) -> list[int]:
        """Of each leaf, the elements in a mask, as a mask of its own."""
        pairs = zip(self.offsets, self.widths, strict=True)
        return [mask >> offset & ((1 << width) - 1) for offset, width in pairs]

    def leaves_of(self, mask: int) -> list[tuple[int, list[int] | None]]:
        """The leaves that a mask touches, each with its element numbers (None: the whole leaf is
        one bit).
        """
        found: list[tuple[int, list[int] | None]] = []
        for index, (bits, width) in enumerate(zip(self.elements(mask), self.widths, strict=True)):
            if bits:
                found.append(
                    (index, [k for k in range(width) if bits >> k & 1] if width > 1 else None)
                )
        return found


MAX_LEAF_ELEMENTS = 256
"""Elements up to which an input array is tracked element by element."""


def make_layout(avals: Sequence[object], max_elements: int) -> Layout:
    """Give each element of a small leaf its own bit, each other leaf one."""

    def width(aval: object) -> int:
        size = _jax.aval_size(aval)
        is_key = _jax.is_key_dtype(getattr(aval, "dtype", np.float32))
        return size if size <= max_elements and not is_key else 1

    widths = tuple(max(width(aval), 1) for aval in avals)
    offsets = tuple(accumulate(widths[:-1], initial=1)) if widths else ()
    return Layout(offsets, widths, tuple(getattr(aval, "shape", ()) for aval in avals))


@dataclass(frozen=True)
class Dependence:
    """One mask per variable of a program."""

    masks: dict[Var, int]
    layout: Layout

    def of(self, atom: Atom) -> int:
        """The inputs that an atom depends on; none for a literal."""
        return 0 if isinstance(atom, Literal) else self.masks[atom]

    def of_equation(self, eqn: Equation) -> int:
        """The inputs that any output of an equation depends on."""
        mask = ALWAYS if eqn.effects else 0
        for var in written_vars(eqn):
            mask |= self.masks[var]
        return mask


def depend(program: Program, layout: Layout) -> Dependence:
    """The dependence of every variable."""
    inputs = [_input_masks(var, i, layout) for i, var in enumerate(program.invars)]
    elements = walk(program, inputs)
    return Dependence({var: join(masks) for var, masks in elements.items()}, layout)


def _input_masks(var: Var, index: int, layout: Layout) -> Masks:
    if _jax.is_ref(var.aval):
        return ALWAYS | layout.leaf_mask(index)
    offset = layout.offsets[index]
    width = layout.widths[index]
    if width == 1:
        return 1 << offset
    masks = np.array([1 << (offset + k) for k in range(width)], object)
    return masks.reshape(var.aval.shape)


def walk(program: Program, inputs: Sequence[Masks]) -> dict[Var, Masks]:
    """Masks of every variable, given those of the inputs; of what is not an output, joined once
    nothing reads it.
    """
    return _DOMAIN.walk(program, inputs).env


def join(masks: Masks) -> int:
    """One mask for a whole value."""
    if isinstance(masks, int):
        return masks
    return np.bitwise_or.reduce(masks, axis=None, initial=0)


# --- the domain -----------------------------------------------------------------------------------


class _TrustingView(KnownValues):
    trusts = True


class _Bits(KnowingDomain):
    """Sets as the bits of integers of any length; a value of many elements, and what is in a loop,
    has one for all.
    """

    NOTHING = 0

    def take(self, value: Masks, numbers: np.ndarray) -> Masks:
        if isinstance(value, int):
            if numbers.size > MAX_TRACKED or (numbers >= 0).all():
                return value
            value = np.array([value], object)
            numbers = np.minimum(numbers, 0)
        padded = np.zeros(value.size + 1, object)
        padded[:-1] = value.ravel()
        return _as_masks(padded[numbers])

    def beside(self, values: Sequence[Masks], atoms: Sequence[Atom]) -> Masks:
        if all(isinstance(value, int) and value == values[0] for value in values):
            return values[0]
        if len(values) == 1:
            return values[0]
        parts = zip(values, atoms, strict=True)
        return np.concatenate([_flat(value, _jax.aval_size(atom.aval)) for value, atom in parts])

    def gathered(self, value: Masks, targets: Any, sources: Any, shape: Sequence[int]) -> Masks:
        result = np.zeros(shape, object)
        found = value if isinstance(value, int) else value.ravel()[np.ravel(sources)]
        np.bitwise_or.at(result.reshape(-1), np.ravel(targets), found)
        return _as_masks(result)

    def grouped(self, value: Masks, shape: Sequence[int], axes: Sequence[int]) -> Masks:
        del shape
        # One by one: NumPy takes a union of objects for an operation that minds the order.
        for axis in axes if isinstance(value, np.ndarray) else ():
            value = np.bitwise_or.reduce(value, axis=axis, keepdims=True, initial=0)
        return value

    def running(self, value: Masks, shape: Sequence[int], axis: int, direction: int) -> Masks:
        del shape
        if isinstance(value, int):
            return value
        turned = (lambda x: np.flip(x, axis)) if direction < 0 else np.asarray
        return turned(np.bitwise_or.accumulate(turned(value), axis=axis))

    def union(self, values: Sequence[Masks]) -> Masks:
        return functools.reduce(operator.or_, values) if values else 0

    def everywhere(self, values: Iterable[Masks], aval: Any) -> int:
        del aval
        return functools.reduce(operator.or_, map(join, values), 0)

    def is_same(self, value: Masks, other: Masks) -> bool:
        return value == other

    def in_loop(self, value: Masks) -> int:
        return join(value)

    def retired(self, value: Masks) -> int:
        return join(value)

    def view(self, known: Known) -> View:
        return _TrustingView(known)

    def enter(self, eqn: Equation, operands: Sequence[Masks], known: Known) -> list[Masks] | None:
        learn(eqn, known)
        if _is_split(eqn, operands):
            return None
        always = 0 if is_repeatable(eqn) else ALWAYS
        mask = functools.reduce(operator.or_, map(join, operands), always)
        return [mask] * len(eqn.outvars)


_DOMAIN = _Bits()


def _flat(masks: Masks, size: int) -> np.ndarray:
    if isinstance(masks, np.ndarray):
        return masks.ravel()
    return np.array([masks], object).repeat(size)


def _as_masks(mask: Any) -> Masks:
    """An array of masks; a scalar's as an int."""
    return mask if isinstance(mask, np.ndarray) and mask.ndim else int(mask)


def _is_split(eqn: Equation, operands: Sequence[Masks]) -> bool:
    """Whether a rule can tell elements apart: some operand is split, or may be put beside another;
    arrays are small.
    """
    entry = entry_of(eqn)
    if eqn.effects or (entry.index is None and entry.inside is None):
        return False
    if entry.inside is not None:
        return True
    if not entry.puts_together and np.ndarray not in map(type, operands):
        return False
    if entry.puts_together and len(eqn.outvars) > 1:
        return True
    return all(_jax.aval_size(atom.aval) <= MAX_TRACKED for atom in [*eqn.invars, *eqn.outvars])
