"""Compiled forms of a function of pytrees, static leaves among them, by what its arguments are.

In: a function. Out: the same, compiled once per signature. It must not know what the function does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import jax

from incrax import _jax
from incrax._tables import LruTable
from incrax._tuning import is_disabled
from incrax.engine.inputs.leaves import LeafValue, has_tracer
from incrax.engine.inputs.signature import make_signature

MAX_PROGRAMS = 32
"""Signatures whose programs are kept."""


class Programs:
    """A function, compiled for each signature of its arguments; plain where JAX traces or compiles
    nothing.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun
        self._table: LruTable[Hashable, Any] = LruTable(MAX_PROGRAMS)

    def __call__(self, *args: Any) -> Any:
        """The function at these arguments."""
        leaves = jax.tree.leaves(args)
        if is_plain(leaves):
            return self.fun(*args)
        signature = make_signature(self.fun, args, {})
        fun = self.fun  # not `self`, which holds the programs
        compiled = lambda: jax.jit(lambda *values: fun(*signature.rebuild(values)[0]))
        program = self._table.made(signature.key, compiled)
        return program(*[LeafValue(x).feed for x in signature.dynamic_leaves(leaves)])


def is_plain(leaves: Any) -> bool:
    """Whether a call with these leaves is evaluated as it is: under a transformation, or where
    nothing is compiled.
    """
    return not _jax.is_top_level() or has_tracer(leaves) or _jax.is_jit_disabled() or is_disabled()
