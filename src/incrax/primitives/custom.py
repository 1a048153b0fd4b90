"""Marks of incrax, of JAX and of libraries: identities, places on devices, references."""

from __future__ import annotations

from incrax import _jax
from incrax._jax import Equation
from incrax.primitives.elementwise import pairwise
from incrax.primitives.entry import (
    Axis,
    Family,
    Kind,
    Primitive,
    Read,
    Reads,
    View,
    each,
    no_work,
    rank_of,
)

NAMED = Kind("depends on something else by name")


def _marked(eqn: Equation, view: View) -> list[Reads]:
    """The marked values as they are, or for each all of the dependencies that the user named."""
    if not (view.trusts and eqn.params["is_narrowed"]):
        return pairwise(eqn, view)
    reads: list[Read | None] = [None] * len(eqn.outvars)
    for atom in eqn.invars[len(eqn.outvars) :]:
        reads.append(Read(tuple(Axis(-1 - d, NAMED) for d in range(rank_of(atom)))))
    return [Reads(reads)] * len(eqn.outvars)


_MARKS_OF_EQUINOX = "nonbatchable nondifferentiable_backward nontraceable select_if_vmap"
"""Identities in the loops of Equinox, that Lineax, Optimistix and Diffrax are made of."""

FAMILY: Family = {
    _jax.KEEP: Primitive(index=_marked, work=no_work, puts_together=True, is_free=True),
    **each("device_put name", Primitive(index=pairwise, work=no_work)),
    **each(_MARKS_OF_EQUINOX, Primitive(work=no_work)),
    **each(
        """after_all axis_index create_token dce_sink dimension_size empty empty2 empty_ref freeze
        from_edtype inspect_sharding layout_constraint new_ref pcast platform_index reduced_vary_cast
        reduced_vary_cast_p relayout shape_assertion tie to_edtype vary_unreduced_cast vary_unreduced_cast_p
        with_memory_space_constraint""",
        Primitive(work=no_work),
    ),
}
