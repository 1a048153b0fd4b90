"""Small parts of a program as one kernel of XLA's.

In: a function of arrays, while JAX traces. Out: its results. It must not know what it computes.

On CPUs XLA compiles each fused loop into a kernel of its own. Starting one takes 20 to 50 ns,
however little it does: a step that reads five rows of three numbers starts thirty. XLA compiles a
call that is marked so into one kernel, by an emitter that knows neither scatters, sorts nor the
calls of libraries (matrix products, long sums of float32), and uses one thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.table import entry_of

MAX_ELEMENTS = 64
"""Of each value that is made: this emitter's loops take a third longer than fused ones, so that a
step of 80 numbers gains nothing.
"""

MAX_EQUATIONS = 512
"""LLVM's time for one function grows faster than what is in it."""

MOVES = frozenset(
    "argmax argmin broadcast_in_dim concatenate copy dynamic_slice dynamic_update_slice expand_dims "
    "gather iota pad reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reshape rev "
    "slice split squeeze transpose".split()
)
CALLS = frozenset({"closed_call", "custom_jvp_call", "jit", "pjit", "scan", _jax.ONE_KERNEL})


def in_one_kernel(fun: Callable[..., Any], *args: Any) -> Any:
    """`fun(*args)`; on a CPU by one kernel, where all that is made is small and XLA can.

    Under `vmap` and derivatives it is as if it were not here.
    """
    # In a `shard_map`, what is traced knows along which axes it varies.
    if jax.sharding.get_abstract_mesh().manual_axes:
        return fun(*args)
    traced, types = jax.make_jaxpr(fun, return_shape=True)(*args)
    body = _jax.open_jaxpr(traced)
    values = [*body.consts, *jax.tree.leaves(args)]  # what `fun` closes over may be traced, too
    invars = (*body.constvars, *body.invars)
    body, is_read = _jax.pruned(body._replace(invars=invars, constvars=(), consts=()))
    is_small = 0 < len(body.eqns) <= MAX_EQUATIONS and all(map(_is_small, body.eqns))
    call = _jax.one_kernel if is_small else _jax.evaluated
    results = call(_jax.closed_jaxpr(body), list(itertools.compress(values, is_read)))
    return jax.tree.unflatten(jax.tree.structure(types), results)


def _is_small(eqn: Equation) -> bool:
    """Whether an equation makes few numbers, of a kind that one kernel can; or writes few into
    many, in place.
    """
    name = eqn.primitive.name
    if eqn.effects:
        return False
    if name in CALLS:
        return all(_is_small(inner) for body in _jax.sub_bodies(eqn) for inner in body.eqns)
    made = eqn.invars[1:2] if name == "dynamic_update_slice" else eqn.outvars
    is_known = name in MOVES or entry_of(eqn).is_elementwise
    return is_known and all(_jax.aval_size(atom.aval) <= MAX_ELEMENTS for atom in made)
