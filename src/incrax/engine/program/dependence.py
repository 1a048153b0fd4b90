"""Stage 3, depend: which inputs each value depends on, element by element for small arrays.

In: a `Program` and, per input, how many bits stand for it. Out: `Dependence`, one bit mask per variable. A bit is an
input leaf or one element of a small input leaf. It must not know which bits are dirty.

Law: if two inputs agree on all bits of a variable's mask, the variable has the same value for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from incrax import _jax
from incrax._jax import Atom, Equation, Literal, Var
from incrax._program import STATEFUL, Program, read_vars, written_vars
from incrax.engine.program.constants import evaluate_equation, known_constants
from incrax.primitives.masks import Known, Masks, element_rules, join, keep_masks, nested_rules, spread

MAX_TRACKED = 1024
"""Elements above which a value has one mask for the whole array."""

ALWAYS = 1
"""Bit 0: set on everything that must run at every call (effects, mutable references)."""


@dataclass(frozen=True)
class Layout:
    """Where each input leaf's bits are: leaf `i` has `widths[i]` bits from bit `offsets[i]`."""

    offsets: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def full(self) -> int:
        """The mask of all inputs."""
        return (1 << (self.offsets[-1] + self.widths[-1])) - 1 & ~ALWAYS if self.offsets else 0

    def leaf_mask(self, index: int) -> int:
        """The mask of one leaf, all its elements."""
        return ((1 << self.widths[index]) - 1) << self.offsets[index]

    def leaves_of(self, mask: int) -> list[tuple[int, list[int] | None]]:
        """The leaves that a mask touches, each with its element numbers (None: the whole leaf is one bit)."""
        found: list[tuple[int, list[int] | None]] = []
        for index, (offset, width) in enumerate(zip(self.offsets, self.widths, strict=True)):
            bits = mask >> offset & ((1 << width) - 1)
            if bits:
                found.append((index, [k for k in range(width) if bits >> k & 1] if width > 1 else None))
        return found


def make_layout(avals: Sequence[object], max_elements: int) -> Layout:
    """Give each element of a small leaf its own bit, each other leaf one."""
    offsets, widths, offset = [], [], 1
    for aval in avals:
        size = _jax.aval_size(aval)
        is_tracked = 1 < size <= max_elements and not _jax.is_key_dtype(getattr(aval, "dtype", np.float32))
        width = size if is_tracked else 1
        offsets.append(offset)
        widths.append(width)
        offset += width
    return Layout(tuple(offsets), tuple(widths))


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
    offset, width = layout.offsets[index], layout.widths[index]
    if width == 1:
        return spread(1 << offset, var.aval)
    masks = np.array([1 << (offset + k) for k in range(width)], object)
    return masks.reshape(var.aval.shape)


def walk(program: Program, inputs: Sequence[Masks]) -> dict[Var, Masks]:
    """Masks of every variable, given those of the inputs; of what is not an output, joined once nothing reads it."""
    known = known_constants(program)
    env: dict[Var, Masks] = dict(zip(program.invars, inputs, strict=True))
    env.update({var: 0 for var in program.constvars})
    last_read = {var: number for number, eqn in enumerate(program.eqns) for var in read_vars(eqn)}
    last_read.update({atom: len(program.eqns) for atom in program.outvars if isinstance(atom, Var)})
    for number, eqn in enumerate(program.eqns):
        value = evaluate_equation(eqn, known)
        if value is not None:
            known[eqn.outvars[0]] = value
        env.update(zip(eqn.outvars, equation_masks(eqn, env, known), strict=True))
        for var in read_vars(eqn):
            if last_read[var] == number:
                env[var] = join(env[var])
    return env


def equation_masks(eqn: Equation, env: dict[Var, Masks], known: Known) -> list[Masks]:
    """Masks of an equation's outputs; by default every output depends on every input."""
    inputs = [0 if isinstance(atom, Literal) else env[atom] for atom in eqn.invars]
    name = eqn.primitive.name
    if name == _jax.KEEP:
        return keep_masks(eqn, inputs)
    if name in nested_rules and not eqn.effects:
        return nested_rules[name](eqn, inputs, walk)
    if name in element_rules and len(eqn.outvars) >= 1 and _is_tracked(eqn, inputs):
        result = element_rules[name](eqn, inputs, known)
        if result is not None:
            return result if isinstance(result, list) else [result]
    mask = ALWAYS if eqn.effects or name in STATEFUL else 0
    for masks in inputs:
        mask |= join(masks)
    return [mask] * len(eqn.outvars)


def _is_tracked(eqn: Equation, inputs: Sequence[Masks]) -> bool:
    """Element rules are worth running where some input is split and every array is small."""
    if not any(isinstance(masks, np.ndarray) for masks in inputs) and eqn.primitive.name not in _BUILDERS:
        return False
    return all(_jax.aval_size(atom.aval) <= MAX_TRACKED for atom in [*eqn.invars, *eqn.outvars])


_BUILDERS = frozenset({"concatenate", "stack", "pad", "select_n", "dynamic_update_slice", "scatter", "scatter-add"})
"""Primitives that can make a split value from unsplit ones."""
