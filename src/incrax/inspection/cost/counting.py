"""A run that counts how often each region of a program runs.

In: regions and the values of the inputs. Out: a count per region. It must not know what anything costs.

The program is compiled with a vector of counts as a further result, which loops carry and branches pass on. Only what
depends on values is rewritten; the rest is evaluated as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from incrax import _jax
from incrax.control_flow.loops.bodies import Layout, close
from incrax.control_flow.loops.primitive import bind
from incrax.inspection.cost.regions import Node, Region

Counted = tuple[Any, list[Any]]  # counts, results


def has_open_regions(root: Region) -> bool:
    """Whether how often something runs depends on values."""
    return any(node.is_open for node in root.nodes)


def counts_of_run(root: Region, leaves: Sequence[Any]) -> list[int]:
    """Run the program and count."""
    size = 1 + max(region.number for region in root.walk())

    @jax.jit
    def run(consts: Sequence[Any], leaves: Sequence[Any]) -> Any:
        counts, _ = _run(root, jnp.zeros(size, jnp.uint32), consts, leaves)
        return counts

    return [int(n) for n in np.asarray(run(root.program.consts, list(leaves)))]


def _run(region: Region, counts: Any, consts: Sequence[Any], values: Sequence[Any]) -> Counted:
    program = region.program
    env = dict(zip(program.constvars, consts, strict=True)) | dict(zip(program.invars, values, strict=True))
    counts = counts.at[region.number].add(1)
    for node in region.nodes:
        inputs = [_jax.read(atom, env) for atom in node.eqn.invars]
        if node.is_open:
            inputs = [jnp.asarray(x, atom.aval.dtype) for x, atom in zip(inputs, node.eqn.invars, strict=True)]
            counts, results = _rules.get(node.eqn.primitive.name, _call)(node, counts, inputs)
        else:
            results = _jax.apply(node.eqn, inputs)
        env.update(zip(node.eqn.outvars, results, strict=True))
    return counts, [_jax.read(atom, env) for atom in program.outvars]


def _inner(region: Region, counts: Any, values: Sequence[Any]) -> Counted:
    return _run(region, counts, region.program.consts, values)


def _call(node: Node, counts: Any, inputs: Sequence[Any]) -> Counted:
    """A call that evaluates one body on its inputs; any other is not looked into."""
    (region, *others) = node.regions
    if others or len(region.program.invars) != len(inputs) or node.turns != 1:
        return counts, list(_jax.apply(node.eqn, inputs))
    return _inner(region, counts, inputs)


def _cond(node: Node, counts: Any, inputs: Sequence[Any]) -> Counted:
    index, *operands = inputs
    branches = [lambda counts, values, region=region: _inner(region, counts, values) for region in node.regions]
    return lax.switch(index.astype(jnp.int32), branches, counts, operands)


def _while(node: Node, counts: Any, inputs: Sequence[Any]) -> Counted:
    """The condition is asked before the loop and at the end of each turn, so that what it counts is carried."""
    turn, condition = node.regions
    first = node.eqn.params["cond_nconsts"]
    second = first + node.eqn.params["body_nconsts"]
    asked, fixed, carry = inputs[:first], inputs[first:second], inputs[second:]

    def ask(counts: Any, carry: Sequence[Any]) -> Any:
        counts, (goes_on,) = _inner(condition, counts, [*asked, *carry])
        return goes_on, counts, list(carry)

    def step(state: Any) -> Any:
        goes_on, counts, carry = state
        counts, results = _inner(turn, counts, [*fixed, *carry])
        return ask(counts, [_chosen(goes_on, new, old) for new, old in zip(results, carry, strict=True)])

    _, counts, carry = lax.while_loop(lambda state: jnp.any(state[0]), step, ask(counts, carry))
    return counts, carry


def _chosen(goes_on: Any, new: Any, old: Any) -> Any:
    """What `vmap` makes of a loop has a condition for each row: rows that have ended stay as they are."""
    if not goes_on.shape:
        return new
    return jnp.where(goes_on.reshape(goes_on.shape + (1,) * (old.ndim - goes_on.ndim)), new, old)


def _scan(node: Node, counts: Any, inputs: Sequence[Any]) -> Counted:
    num_consts, num_carry = _jax.scan_counts(node.eqn)
    consts, carry, xs = Layout(num_consts, num_carry, len(inputs) - num_consts - num_carry).split(inputs)

    def step(state: Any, x: Any) -> Any:
        counts, carry = state
        counts, results = _inner(node.regions[0], counts, [*consts, *carry, *x])
        return (counts, results[:num_carry]), results[num_carry:]

    params = node.eqn.params
    (counts, carry), ys = lax.scan(step, (counts, carry), xs, params["length"], reverse=params["reverse"])
    return counts, [*carry, *ys]


def _loop(node: Node, counts: Any, inputs: Sequence[Any]) -> Counted:
    """A loop of `incrax.control_flow.loops`, with the counts as the first carry."""
    (region,) = node.regions
    spec = node.eqn.params["spec"]
    num, *values = inputs
    consts, carry, xs = spec.layout.split(values)

    def step(*args: Any) -> list[Any]:
        consts, (counts, *carry), xs = layout.split(args)
        counts, results = _inner(region, counts, [*consts, *carry, *xs])
        return [counts, *results]

    layout = spec.layout._replace(num_carry=spec.layout.num_carry + 1)
    avals = [var.aval for var in region.program.invars]
    place = spec.layout.num_consts
    types = [_shape(aval) for aval in avals]
    body = close(step, [*types[:place], jax.ShapeDtypeStruct(counts.shape, counts.dtype), *types[place:]])
    ended, ys = bind(body, spec.derived(layout=layout), num, [*consts, counts, *carry, *xs])
    return ended[0], [*ended[1:], *ys]


def _shape(aval: Any) -> Any:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


_rules: dict[str, Callable[[Node, Any, Sequence[Any]], Counted]] = {
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    _jax.LOOP: _loop,
}
