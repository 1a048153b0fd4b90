"""What a function closes over, in programs that others compile: as arguments, or at least not folded.

In: a function and examples of its arguments, or values. Out: the function as a pytree of the arrays
that it closes over; values that XLA takes as they are. It must not know who compiles.

XLA evaluates what depends on constants alone while it compiles, by a slow interpreter: 18 s for a
running sum of a million numbers. Constants are held twice, and other data compile anew.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from incrax import _jax
from incrax._program import Function, evaluator, trace_with_tree
from incrax.engine.compile.executables import EMBED_BYTES, device_constants
from incrax.engine.program.simplify import inline_but_rules, run_passes


def with_captured(fun: Function, *examples: Any) -> jax.tree_util.Partial:
    """A function of pytrees of these types, traced once; its leaves are the arrays that it, or a
    `jax.jit` that it calls, closes over.

    Given to a compiled function as an argument, they are arguments of the program.
    """
    traced, tree = trace_with_tree(fun, *examples)
    program = run_passes(traced, (inline_but_rules,))
    run = evaluator(program)
    consts = tuple(device_constants(program).values())

    def evaluate(consts: tuple[Any, ...], *args: Any) -> Any:
        return jax.tree.unflatten(tree, run(consts, *jax.tree.leaves(args)))

    return jax.tree_util.Partial(evaluate, consts)


def unfolded(x: Any) -> Any:
    """A value, behind a barrier that XLA does not fold through where it is a large constant of a
    program that somebody else compiles.

    Not a mutable reference of JAX (`jax.new_ref`), which would keep it out of the program: under
    `vmap` of loops and branches, by which samplers run chains, and in threads those fail.
    """
    is_large = getattr(x, "nbytes", 0) > EMBED_BYTES
    is_constant = not (isinstance(x, _jax.Tracer) or _jax.is_top_level())
    if not (is_large and is_constant) or _jax.is_key_dtype(x.dtype):
        return x
    return lax.optimization_barrier(x)
