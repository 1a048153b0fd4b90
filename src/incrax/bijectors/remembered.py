"""Bijections whose outputs remember where they came from.

In: a bijection of any known form. Out: `Remembered`, the same bijection with memory. A remembered
answer is given only where it is certain, see `_answer`: under a transformation (jit, grad, vmap,
scan) the same holds of its tracers.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from incrax import _jax
from incrax._jax import is_known_with
from incrax.bijectors.adapters import adapter_of
from incrax.bijectors.evaluation import Evaluated, Evaluator
from incrax.bijectors.memory import Origin, attach, can_be_remembered, is_readable, records_of
from incrax.bijectors.snapshots import BijectionWatch, watch
from incrax.bijectors.switches import is_recording, warn_of_slow_ladj
from incrax.bijectors.switches import requires_ladj as is_ladj_required


class _Seen:
    """A bijection as it is now."""

    __slots__ = ("evaluator", "watch")

    def __init__(self, bijection: Any) -> None:
        self.watch = watch(bijection)
        self.evaluator = Evaluator(bijection, adapter_of(bijection))


@jax.tree_util.register_pytree_with_keys_class
class Remembered:
    """A bijection whose outputs remember their input, context, parameters and log-determinant; made
    by `remember`.

    Outputs are plain arrays. A pytree whose leaves are the bijection's, so that it can be
    differentiated, stepped by an optimizer and passed through `jax.jit`; what comes out is another
    bijection, for which older outputs hold no memory.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> double = bijectors.remember(transforms.AffineTransform(0.0, 2.0))
        >>> x = jnp.array(3.0)
        >>> y = double.forward(x)
        >>> float(y), double.inverse(y) is x
        (6.0, True)
    """

    __slots__ = ("__weakref__", "_bijection", "_last_seen")

    def __init__(self, bijection: Any) -> None:
        self._bijection = bijection
        self._last_seen: _Seen | None = None

    @property
    def bijection(self) -> Any:
        """The bijection itself."""
        return self._bijection

    def forward(
        self, x: ArrayLike, context: Any = None, *, requires_ladj: bool | None = None
    ) -> jax.Array:
        """The output y of an input x; the remembered one, if x is an output of `inverse`.

        Args:
            x: array of the shape of an event, with any leading axes.
            context: array that a conditional bijection takes, or None.
            requires_ladj: whether to compute the log-determinant with it; None: as switched by
                `set_requires_ladj`.

        Returns:
            A plain array, which remembers x.
        """
        return self._pass("forward", x, context, requires_ladj).output

    def inverse(
        self, y: ArrayLike, context: Any = None, *, requires_ladj: bool | None = None
    ) -> jax.Array:
        """The input x of an output y; the remembered one, if y is an output of `forward`.

        Arguments as of `forward`.
        """
        return self._pass("inverse", y, context, requires_ladj).output

    def transform(self, x: ArrayLike, condition: Any = None) -> jax.Array:
        """As `forward`; FlowJAX's name."""
        return self.forward(x, condition)

    def transform_and_log_det(
        self, x: ArrayLike, condition: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        """Output y and log|det dy/dx|, remembered where they are. FlowJAX's name."""
        found = self._pass("forward", x, condition, True, is_wanted=True)
        return found.output, found.ladj

    def inverse_and_log_det(
        self, y: ArrayLike, condition: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        """Input x and log|det dx/dy|, remembered where they are. FlowJAX's name."""
        found = self._pass("inverse", y, condition, True, is_wanted=True)
        return found.output, found.ladj

    def log_abs_det_jacobian(self, x: ArrayLike, y: ArrayLike, context: Any = None) -> jax.Array:
        """log|det dy/dx| at x, where y is the output of x.

        The remembered one if y was made from this very x, or x from this very y, by this bijection
        with these parameters and this context; computed from x otherwise. Warns once per process if
        it has to be computed under `set_requires_ladj(False)`.

        Returns:
            An array of the shape of the leading axes of x.
        """
        seen = self._seen()
        for direction, output, source in (("inverse", y, x), ("forward", x, y)):
            record = _answer(seen, direction, output, context)
            if record is not None and record.source is source:
                if not is_readable(record.ladj):
                    warn_of_slow_ladj()
                ladj = _ladj(seen, record, output, context)
                return ladj if direction == "inverse" else -ladj
        warn_of_slow_ladj()
        return seen.evaluator.ladj("forward", _as_array(x), context, None)

    def _pass(
        self,
        direction: str,
        value: Any,
        context: Any,
        requires_ladj: bool | None,
        *,
        is_wanted: bool = False,
    ) -> Evaluated:
        """One pass; from memory, its log-determinant only if it is wanted at once."""
        seen = self._seen()
        record = _answer(seen, direction, value, context)
        if record is not None:
            return Evaluated(
                record.source, -_ladj(seen, record, value, context) if is_wanted else None, None
            )
        value = _as_array(value)
        found = seen.evaluator.run(direction, value, context, is_ladj_required(requires_ladj))
        if is_recording() and _can_record(seen.watch, value, context, found.output):
            origin = Origin(
                weakref.ref(self),
                seen.watch.snapshot,
                direction,
                value,
                None if context is None else weakref.ref(context),
                _is_wide(),
            )
            # What is traced elsewhere than the output is no answer wherever the output is.
            if isinstance(found.output, _jax.ArrayImpl) or all(
                is_known_with(x, found.output) for x in jax.tree.leaves(found[1:])
            ):
                origin.ladj = found.ladj
                origin.kept = found.kept
            attach(found.output, (origin,))
        return found

    def _seen(self) -> _Seen:
        """The bijection as it is now; looked at again if it was changed in place."""
        seen = self._last_seen
        if seen is None or not seen.watch.is_current():
            seen = self._last_seen = _Seen(self._bijection)
        return seen

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any]], None]:
        """For JAX."""
        return ((jax.tree_util.GetAttrKey("bijection"), self._bijection),), None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: tuple[Any]) -> Remembered:
        """For JAX."""
        return cls(children[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return Remembered, (self._bijection,)

    def __repr__(self) -> str:
        return f"remember({type(self._bijection).__name__})"


def remember(bijection: Any) -> Remembered:
    """Give a bijection a memory: its outputs know where they came from, so that their inverse is
    free.

    The inverse, the log-determinant and the log-density of an output are then looked up. An answer
    is remembered only for the very array that was made, by this bijection with these very
    parameters and this very context, and lives no longer than the array; everything else is
    computed. The same holds inside jit, grad, vmap or scan; what crosses into or out of them is
    another array.

    Args:
        bijection: of FlowJAX (any, with leading axes of events allowed), a transform of NumPyro, or
            an object with the methods `transform_and_log_det` (or `forward_and_log_det`, as in
            distrax) and `inverse_and_log_det`.

    Returns:
        A bijection with `forward`, `inverse`, `log_abs_det_jacobian`, `transform_and_log_det` and
        `inverse_and_log_det`; a pytree.

    Raises:
        NotABijectionError: the object has none of these forms.

    Cost: a pass records in about a microsecond; a lookup takes a few, more with many parameters.

    Source: `BijectiveTensor` of facebookincubator/flowtorch#89.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions.transforms as transforms
        >>> from incrax import bijectors
        >>> exp = bijectors.remember(transforms.ExpTransform())
        >>> x = jnp.array(0.0)
        >>> y = exp.forward(x)
        >>> float(y), exp.inverse(y) is x, float(exp.log_abs_det_jacobian(x, y))
        (1.0, True, 0.0)
    """
    if isinstance(bijection, Remembered):
        return bijection
    adapter_of(bijection)
    return Remembered(bijection)


# --- from memory ----------------------------------------------------------------------------------


def _answer(seen: _Seen, direction: str, value: Any, context: Any) -> Origin | None:
    """The record that a pass can be answered from, or None.

    It is of this very array, by a pass in the other direction of a bijection in the same state,
    with the same context, under the same default types; its source can be read.
    """
    if not isinstance(value, (_jax.ArrayImpl, _jax.Tracer)) or not is_recording():
        return None
    watch = seen.watch
    for record in records_of(value):
        if (
            record.direction != direction
            and record._is_wide == _is_wide()
            and record._has_context(context)
            and watch.snapshot.is_same(record._snapshot)
        ):
            return record if watch.is_readable() and is_readable(record.source) else None
    return None


def _ladj(seen: _Seen, record: Origin, output: Any, context: Any) -> Any:
    """The log-determinant of the pass that made an output, computed where it was not."""
    if not is_readable(record.ladj):
        kept = record.kept if all(map(is_readable, record.kept or ())) else None
        ladj = seen.evaluator.ladj(record.direction, record.source, context, kept)
        if not can_be_remembered(output, ladj):
            return ladj
        record.ladj = ladj
    return record.ladj


# --- to memory ------------------------------------------------------------------------------------


def _can_record(watch: BijectionWatch, value: Any, context: Any, output: Any) -> bool:
    """Whether all that made an output can be used wherever it can, cannot change, and did not
    change meanwhile; and whether the input has the type that the pass back would give.

    Transformations hand on inputs and constants as outputs: such an output has a history of its
    own.
    """
    if watch.snapshot.is_opaque:
        return False
    is_concrete = (
        not watch.snapshot.is_traced
        and isinstance(output, _jax.ArrayImpl)
        and isinstance(value, _jax.ArrayImpl)
        and (context is None or isinstance(context, _jax.ArrayImpl))
    )
    if not is_concrete:  # else every output is an array of its own (`Evaluator`)
        needed = (value, *([] if context is None else [context]), *watch.arrays)
        has_own_history = records_of(output) or any(output is x for x in needed)
        if has_own_history or not can_be_remembered(output, *needed):
            return False
    return _is_of_one_type(value, output) and watch.is_current()


def _is_of_one_type(value: Any, output: Any) -> bool:
    """Whether a pass back from an output gives the type of the value, its shape aside."""
    if value.aval == output.aval:
        return True
    kind = lambda aval: (aval.dtype, aval.weak_type, getattr(aval, "vma", None))
    return value.shape != output.shape and kind(value.aval) == kind(output.aval)


def _is_wide() -> bool:
    return jax.config.read("jax_enable_x64")


def _as_array(x: Any) -> Any:
    """An array that nobody else can change."""
    return x if isinstance(x, jax.Array) else jnp.array(x)
