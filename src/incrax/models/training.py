"""Steps of an optimiser over a model with state.

In: a model's inputs and functions, an optimiser. Out: `Training`: one compiled program per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from incrax._messages import wrong_option
from incrax.engine.inputs.frames import Frame, framed
from incrax.engine.inputs.leaves import is_dynamic
from incrax.engine.inputs.rows import as_plain
from incrax.errors import BindError
from incrax.models.functions import Functions
from incrax.models.inputs import Inputs, Leaf, as_given
from incrax.models.roles import STATE, TRAINABLE


class Training:
    """Steps of an optimiser. Made by `Bound.training`.

    A call sets inputs, takes one step of the trainable leaves against the gradient, and updates the
    state. `"after"` gives it what the function returned where the gradient was taken; `"before"`
    evaluates the function first, once more, and takes the gradient with the new state. State has no
    derivative. Where a leaf has bounds, the step ends in them.

    Example:
        >>> import incrax, optax
        >>> m = incrax.bind(lambda w, x: (w * x - 6.0) ** 2, w=1.0, x=2.0, roles={"x": "data"})
        >>> step = m.training(optax.sgd(0.05))
        >>> losses = [float(step(x=x)) for x in (2.0, 2.0, 2.0, 2.0)]
        >>> losses[0], losses[-1] < 1.0
        (16.0, True)
    """

    def __init__(self, inputs: Inputs, functions: Functions, optimizer: Any, updates: str) -> None:
        """See `Bound.training`."""
        if updates not in ("before", "after", "never"):
            raise BindError(
                f"`training(updates=...)` got {updates!r}. The model is as it was. Use one of "
                '"before", "after", "never".'
            )
        if not hasattr(optimizer, "init"):
            raise wrong_option("training(optimizer)", optimizer, "an optimizer of optax")
        self._inputs = inputs
        self._fitted = _fitted(inputs)
        self._optimizer_state = optimizer.init(inputs.tree(self._trained()))
        updates = updates if inputs.of(STATE) else "never"
        self._step = jax.jit(_step_of(functions, inputs, optimizer, updates), static_argnums=0)
        self.num_steps: int = 0
        """Steps taken so far."""

    def __call__(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Set inputs and take a step; the loss where the gradient was taken.

        Raises:
            BindError: roles changed since `training` was called.
            And what `Bound.set` raises.
        """
        inputs = self._inputs
        if new := as_given(values, named):
            inputs.set(new)
        if _fitted(self._inputs) != self._fitted:
            raise BindError(
                "Roles of the model changed since `training` was called, and its steps are those "
                "of the earlier roles. The model is as it was. Call `model.training(optimizer)` "
                "again."
            )
        given = inputs.values
        frame, leaves = framed(inputs.names.treedef, given, list(map(is_dynamic, given)))
        loss, stepped, state, self._optimizer_state = self._step(
            frame, self._trained(), as_plain(leaves), self._optimizer_state
        )
        numbers = [*inputs.numbers(TRAINABLE), *(inputs.numbers(STATE) if state else ())]
        inputs.commit(dict(zip(numbers, [*stepped, *state], strict=True)))
        self.num_steps += 1
        return loss

    def _trained(self) -> list[Any]:
        """What is trained, as arrays; optimisers see it in the shape of `grad()`."""
        return [jnp.asarray(leaf.value) for leaf in self._inputs.of(TRAINABLE)]


def _fitted(inputs: Inputs) -> tuple[tuple[str, ...], ...]:
    return inputs.paths(TRAINABLE), inputs.paths(STATE), tuple(inputs.element_roles)


def _step_of(
    functions: Functions, inputs: Inputs, optimizer: Any, updates: str
) -> Callable[..., Any]:
    """(frame of the inputs, trained, their values, the optimiser's state) -> loss and
    what is new.
    """

    masks = [leaf.is_free for leaf in inputs.of(TRAINABLE)]

    def moving(moves):
        """Gradients or steps, 0 where elements are fixed."""
        return [jnp.where(mask, move, 0) for mask, move in zip(masks, moves, strict=True)]

    def step(frame: Frame, trained, values, optimizer_state):
        fixed = frame.with_values(values)

        def args(trained, state=None):
            leaves = inputs.with_values(TRAINABLE, trained, fixed)
            leaves = leaves if state is None else inputs.with_values(STATE, state, leaves)
            return jax.tree.unflatten(frame.treedef, leaves)

        before = functions.updates(*args(trained)) if updates == "before" else None
        both = jax.value_and_grad(
            lambda trained: functions.both(*args(trained, before)), has_aux=True
        )
        (loss, after), gradient = both(trained)
        gradient = inputs.tree(moving(gradient))
        moves, optimizer_state = optimizer.update(gradient, optimizer_state, inputs.tree(trained))
        # In the order of the inputs, where JAX sorts keys; an optimiser may move what has no
        # gradient, as decays of weights do.
        moves = moving(jax.tree.leaves([moves[name] for name in gradient]))
        stepped = [_moved(*row) for row in zip(inputs.of(TRAINABLE), trained, moves, strict=True)]
        state = {"before": before, "after": after, "never": ()}[updates]
        return loss, stepped, state, optimizer_state

    return step


def _moved(leaf: Leaf, x: Any, move: Any) -> Any:
    moved = (x + move).astype(x.dtype)
    return moved if leaf.bounds is None else leaf.bounds.inside(moved)
