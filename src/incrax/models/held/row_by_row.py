"""Whether an encoder treats each row by itself.

In: an encoder, parameters, rows. Out: nothing, or `MixedRowsError`. Two traces tell for what has a
rule: that rows are mixed, or that they are not. For what has none, a few rows are encoded in two
orders and each alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax._jax import Equation, Var, is_key_dtype, source_line
from incrax._program import Program, trace
from incrax.engine.call.agreement import difference
from incrax.engine.inputs.frames import framed
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.program.simplify import drop_dead, inline_with_solves, run_passes
from incrax.errors import MixedRowsError
from incrax.models.held.encoding import taken
from incrax.primitives.entry import Kind
from incrax.primitives.random import DRAWN
from incrax.rows.axis import FIRST, RowsComparison

NUM_TRACED = (5, 7)
"""Rows of the two traces that are compared."""
NUM_TRIED = 6
"""Rows that are encoded, in two orders and each alone."""

ROUNDING = 1e-7
"""What may differ from zero."""
ADVICE = " (take `keys`, one a row, as third argument)"


def check_row_by_row(
    encoder: Any, params: Any, data: tuple[Any, ...], *, has_values: bool = True
) -> None:
    """Refuse an encoder for which a row's representation depends on other rows; `data` are rows,
    and keys if any.

    Without values only the traces tell.

    Raises:
        MixedRowsError: it does.

    Cost: two traces; for an encoder with primitives that have no rule, such as callbacks, also
        its evaluation on eighteen rows.
    """
    first, second = _traces(encoder, params, data)
    if any(v.aval.shape[:1] != NUM_TRACED[:1] for v in first.outvars):
        return  # no rows at all: the encoding says so
    if not _is_told(first, second) and has_values:
        _try(encoder, params, data)


def _traces(encoder: Any, params: Any, data: tuple[Any, ...]) -> list[Program]:
    leaves, treedef = jax.tree.flatten(params)
    frame, values = framed(treedef, leaves, list(map(is_dynamic, leaves)))
    encode = lambda values, data: encoder(frame.filled(values), *data)

    def sized(num_rows: int):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype), data)

    with jax.disable_jit(False):
        try:
            return [
                run_passes(trace(encode, values, sized(n)), (inline_with_solves, drop_dead))
                for n in NUM_TRACED
            ]
        except Exception as error:
            jax.eval_shape(encode, values, data)  # raises what is wrong for any number of rows
            raise _mixing_encoder(
                f"it cannot be traced for another number of rows: {type(error).__name__}"
            ) from error


def _is_told(first: Program, second: Program) -> bool:
    """Whether the traces tell that each row is treated by itself; `MixedRowsError` where they tell
    that it is not.
    """
    mixtures: list[str] = []
    is_doubted = False

    def note(eqn: Equation, kind: Kind) -> None:
        nonlocal is_doubted
        if kind.is_final:
            mixtures.append(_said(eqn, kind.mixes + (ADVICE if kind is DRAWN else "")))
        is_doubted = True  # what has no rule, or may be taken apart again

    found = RowsComparison(*NUM_TRACED, note)
    try:
        found.match(first, second)
    except (MixedRowsError, jax.errors.TracerArrayConversionError):
        is_doubted = True  # other traces, or a constant without a value
    reduced = {v for v, reduction in found.reductions.items() if reduction is not FIRST}
    reducing = [eqn for eqn in first.eqns if not reduced.isdisjoint(eqn.outvars)]
    mixtures += [_said(eqn, "reduces over the rows") for eqn in reducing]
    if mixtures:
        raise _mixing_encoder(mixtures[0])
    are_rows = all(isinstance(v, Var) and found.axis(v) == 0 for v in first.outvars)
    return are_rows and not is_doubted and not found.places


def _said(eqn: Equation, what: str) -> str:
    return f"`{eqn.primitive.name}` at {source_line(eqn)} {what}"


# --- what a trial tells ---------------------------------------------------------------------------


def _try(encoder: Any, params: Any, data: tuple[Any, ...]) -> None:
    """Encode some rows in two orders, and each alone: their representations must be the same."""
    num_rows = jax.tree.leaves(data)[0].shape[0]
    random = np.random.default_rng(num_rows)
    # From anywhere, the last one among them, in no order.
    chosen = random.permutation([num_rows - 1, *random.permutation(num_rows - 1)[: NUM_TRIED - 1]])
    count = len(chosen)
    if count < 2:
        return
    encode = jax.jit(lambda data: [_number(x) for x in jax.tree.leaves(encoder(params, *data))])
    found = encode(taken(data, chosen))
    if any(x.shape[:1] != (count,) for x in found):
        return  # no rows at all: the encoding says so
    turned = encode(taken(data, np.roll(chosen, 1)))
    alone = [encode(taken(data, chosen[k : k + 1])) for k in range(count)]
    for number, x in enumerate(found):
        back = np.roll(turned[number], -1, axis=0)
        _compare(f"result {number} for {count} rows", "in another order", x, back)
        for k, single in enumerate(alone):
            what = f"result {number} for row {chosen[k]}"
            _compare(what, f"beside {count - 1} others", x[k : k + 1], single[number])


def _number(x: Any) -> Any:
    return jax.random.key_data(x) if is_key_dtype(jnp.asarray(x).dtype) else x


def _compare(what: str, where: str, x: Any, y: Any) -> None:
    """The largest difference, relative to the largest element, is to be rounding."""
    error = np.inf
    if x.shape == y.shape:
        # Beside zeros alone, rounding errors have no scale.
        error = difference(x, y, atol=0.0 if y.any() else ROUNDING)
    if error is not None:
        raise _mixing_encoder(f"{what} differs by {error:.2g} {where}")


def _mixing_encoder(reason: str) -> MixedRowsError:
    """An encoder for which a row's representation depends on other rows."""
    return MixedRowsError(
        "`hold(encoder)` evaluates the encoder on chunks and on some rows only, and the "
        f"representation of a row depends on other rows: {reason}. This is usually a normalisation "
        f"over the batch, or a closed-over array with one entry a row. Nothing was evaluated or stored. Compute what "
        "rows have in common before, and pass it with the parameters; pass what is of one row "
        "among the rows; or normalise within a row."
    )
