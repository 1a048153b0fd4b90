"""An oracle for dependence that knows no rule: change one input element, see which elements of
which values change.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from incrax._program import Program, evaluator, trace
from incrax.engine.program.dependence import Layout, make_layout, walk
from incrax.engine.program.simplify import (
    drop_dead,
    fold_constants,
    inline,
    merge_equal,
    run_passes,
)
from incrax.engine.rewrites.loop_invariants import hoist_invariants

PASSES = (inline, hoist_invariants, fold_constants, merge_equal, drop_dead)


class Traced:
    """A function's program, its element masks, and a function that returns its outputs (and every
    value in between).
    """

    def __init__(self, fun, *args, simplify=True, watch_all=True, max_tracked=64):
        self.program: Program = trace(lambda *leaves: jax.tree.leaves(fun(*leaves)), *args)
        if simplify:
            self.program = run_passes(self.program, PASSES)
        self.args = [jnp.asarray(x) for x in args]
        self.layout: Layout = make_layout([var.aval for var in self.program.invars], max_tracked)
        inputs = [input_masks(self.layout, i, x.shape) for i, x in enumerate(self.args)]
        written = [var for eqn in self.program.eqns for var in eqn.outvars]
        self.watched = (*self.program.outvars, *(written if watch_all else ()))
        self.masks = walk(self.program.with_eqns(self.program.eqns, self.watched), inputs)
        self.evaluate = jax.jit(evaluator(self.program.with_eqns(self.program.eqns, self.watched)))

    def values(self, args):
        return [as_bits(x) for x in self.evaluate(self.program.consts, *args)]

    def element_masks(self):
        """The mask of each element of each watched value."""
        return [
            as_array(0 if hasattr(a, "val") else self.masks[a], a.aval).ravel().tolist()
            for a in self.watched
        ]

    def output_masks(self):
        """The mask of each element of each output."""
        return self.element_masks()[: len(self.program.outvars)]

    def reached(self, seed=0, tries=2):
        """Per element of each watched value, the bits whose change was seen to change it."""
        rng = np.random.default_rng(seed)
        base = self.values(self.args)
        found = [[0] * len(bits) for bits in base]
        for index, (offset, width) in enumerate(
            zip(self.layout.offsets, self.layout.widths, strict=True)
        ):
            for element in range(width):
                for value in perturbations(
                    self.args[index], element if width > 1 else None, rng, tries
                ):
                    args = [*self.args[:index], value, *self.args[index + 1 :]]
                    note_changes(found, base, self.values(args), 1 << (offset + element))
        return found


def note_changes(found, base, new, bit):
    for masks, old_bits, new_bits in zip(found, base, new, strict=True):
        for k in np.flatnonzero((old_bits != new_bits).any(axis=1)) if old_bits.size else ():
            masks[k] |= bit


def check_sound(traced, reached):
    """No element changes with an input that its mask leaves out: the law of dependence."""
    for number, (masks, seen) in enumerate(zip(traced.element_masks(), reached, strict=True)):
        pairs = enumerate(zip(masks, seen, strict=True))
        missing = {k: found & ~mask for k, (mask, found) in pairs if found & ~mask}
        assert not missing, "\n".join(unseen(traced, number, missing))


def unseen(traced, number, missing):
    """What is wrong, in lines: the equation whose rule to look at is the first that is named, since
    all that reads a wrong mask is wrong as well.
    """
    watched = traced.watched[number]
    writer = next((eqn for eqn in traced.program.eqns if watched in eqn.outvars), None)
    name = "no equation" if writer is None else f"`{writer.primitive.name}`"
    yield f"value {number}, of {name}, changes with elements of inputs that its mask leaves out:"
    for k, bits in missing.items():
        inputs = [
            (leaf, element)
            for leaf, (offset, width) in enumerate(
                zip(traced.layout.offsets, traced.layout.widths, strict=True)
            )
            for element in range(width)
            if bits >> (offset + element) & 1
        ]
        yield f"  element {k} with (input, element) " + ", ".join(map(str, inputs))


def is_exact(traced, reached):
    """Whether every mask of an output names just the inputs that were seen to change it."""
    return traced.output_masks() == reached[: len(traced.program.outvars)]


def input_masks(layout, index, shape):
    offset, width = layout.offsets[index], layout.widths[index]
    if width == 1:
        return 1 << offset
    masks = np.empty(width, object)
    masks[:] = [1 << (offset + k) for k in range(width)]
    return masks.reshape(shape)


def as_bits(x):
    """One row of bytes per element."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x).reshape(*x.shape, -1)
        return np.frombuffer(np.asarray(x).tobytes(), np.uint8).reshape(
            max(int(np.prod(x.shape[:-1])), 1), -1
        )
    x = np.asarray(x)
    return np.frombuffer(x.tobytes(), np.uint8).reshape(x.size, x.dtype.itemsize)


def perturbations(x, element, rng, tries):
    """Other values of one element (None: of all): random ones, and twins that are easily taken for
    equal.
    """
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return [jax.random.key(17 + k) for k in range(tries)]
    x = np.asarray(x)
    index = slice(None) if element is None else element
    results = []
    for value in twins(x.ravel()[index], rng, tries):
        y = x.copy().reshape(-1)
        y[index] = value
        results.append(jnp.asarray(y.reshape(x.shape)))
    return results


def twins(old, rng, tries):
    kind = old.dtype.kind
    if kind == "b":
        return [~old]
    if kind in "iu":
        return [
            old + 1,
            *(
                np.asarray(rng.integers(0, 5, np.shape(old))).astype(old.dtype)
                for _ in range(tries)
            ),
        ]
    randoms = [
        (old * rng.uniform(0.5, 1.5, np.shape(old)) + rng.normal(size=np.shape(old)))
        for _ in range(tries)
    ]
    if kind == "c":
        return [*randoms, np.conj(old), old * np.nan]
    return [*randoms, -old, old * 0.0, old * np.nan]


def as_array(masks, aval):
    """Masks as an object array of the value's shape."""
    if isinstance(masks, np.ndarray):
        return masks
    array = np.empty(aval.shape, object)
    array[...] = masks
    return array
