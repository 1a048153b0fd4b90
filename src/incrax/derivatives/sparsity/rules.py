"""Rules: the patterns of an equation's outputs from those of its operands, by primitive.

A rule may say too much, never too little: an output element that depends on an operand element holds all of that
element's row. The table has the primitives that are linear in some operand, as a tangent passes no others; for one that
is missing, every output element depends on all that any operand element depends on.
"""

from __future__ import annotations

from incrax.derivatives.sparsity import moves, products
from incrax.derivatives.sparsity.moves import Rule
from incrax.primitives.masks import ELEMENTWISE

rules: dict[str, Rule] = {
    **dict.fromkeys([*ELEMENTWISE, "pvary", "reshard", "mesh_cast", "sharding_constraint"], moves.elementwise),
    "mul": moves.mul,
    "select_n": moves.select_n,
    "optimization_barrier": moves.pairwise,
    **dict.fromkeys("slice squeeze expand_dims reshape transpose rev broadcast_in_dim concatenate".split(), moves.move),
    "pad": moves.pad,
    **dict.fromkeys("split unstack stack".split(), moves.move_by_jax(None)),
    "dynamic_slice": moves.dynamic_slice,
    "dynamic_update_slice": moves.dynamic_update_slice,
    "gather": moves.gather,
    **dict.fromkeys("scatter scatter-add scatter-sub scatter_add scatter_sub".split(), moves.scatter),
    **dict.fromkeys("reduce_sum reduce_max reduce_min reduce_prod".split(), products.reduce),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp".split(), products.cumulative),
    "dot_general": products.dot_general,
    "conv_general_dilated": products.conv,
    "fft": products.within(products.last_of_fft),
    "sort": products.within(lambda eqn, _: [eqn.params["dimension"]]),
    **dict.fromkeys("triangular_solve cholesky".split(), products.within(products.last_two)),
}
