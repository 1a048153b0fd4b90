"""Fits of flows: to data by maximum likelihood, to a log-density by variational inference.

In: a flow, data or a density. Out: `FlowFit`. One step is compiled per fit; what is no array of floating-point numbers,
or marked as not trainable, stays as it is.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax._extras import needed
from incrax._messages import wrong_option
from incrax._progress import Meter
from incrax.bijectors.distributions import Flow
from incrax.bijectors.messages import nothing_to_train, other_rows, stopped_early, too_few_rows

LEARNING_RATE = 1e-3
"""Of Adam, where no optimizer is given."""


class FlowFit(NamedTuple):
    """What a fit gives."""

    flow: Flow
    """The fitted flow."""
    losses: np.ndarray
    """The loss before each step; of a variational fit an estimate from that step's samples."""

    def plot(self, axes: Any = None) -> Any:
        """Draw the losses over the steps.

        Args:
            axes: matplotlib axes; None: new ones.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        axes = needed("matplotlib.pyplot", "FlowFit.plot", "flows").figure().subplots() if axes is None else axes
        axes.plot(np.arange(1, len(self.losses) + 1), self.losses, lw=1)
        axes.set(xlabel="step", ylabel="loss")
        return axes


def fit_maximum_likelihood(
    flow: Flow,
    data: Any,
    *,
    context: Any = None,
    optimizer: Any = None,
    steps: int = 1000,
    batch_size: int | None = None,
    train_base: bool = False,
    key: Any = None,
    progress: bool = True,
) -> FlowFit:
    """Fit a flow to data: the mean of -log p(data | context) is made small.

    Args:
        flow: what to start from.
        data: array, rows + the flow's `event_shape`.
        context: array, one for each row of the data, for a conditional flow.
        optimizer: of optax; None: Adam at a rate of 1e-3.
        steps: how many.
        batch_size: rows per step, a new order for every pass over the data, whose last rows are left out if they do not
            fill a batch; None: all rows at every step.
        train_base: whether the parameters of the base are stepped too. Those of NumPyro and distrax are stepped as they
            are, without regard to their constraints.
        key: of the order of the rows; None: `jax.random.key(0)`.
        progress: whether to show it, on a terminal, after two seconds.

    Returns:
        The fitted flow and the losses. If a loss or gradient is not finite, the steps after it change nothing, and a
        warning names the first.

    Raises:
        MissingExtraError: optax is not installed.
        FlowShapeError: data or context have another shape, or other numbers of rows.
        NothingToTrainError: the flow has no array to train.

    Cost: one compilation, then a step each; no memory is involved, since every step has other parameters.
    """
    data = jnp.asarray(data)
    rows = (data,) if context is None else (data, jnp.asarray(context))
    num_rows = _num_rows(flow, rows)
    size = num_rows if batch_size is None else batch_size
    if not 0 < size <= num_rows:
        raise too_few_rows(size, num_rows)

    def loss(flow: Flow, rows: Any, order: Any, start: Any) -> Any:
        chosen = jax.lax.dynamic_slice_in_dim(order, start, size)
        return -jnp.mean(flow.log_prob(*(x[chosen] for x in rows)))

    def operands(number: int) -> tuple[Any, ...]:
        epoch, batch = divmod(number, num_rows // size)
        return rows, order_of(epoch), batch * size

    order_of = _orders(jax.random.key(0) if key is None else key, num_rows, is_shuffled=size < num_rows)
    return _fit("fit_maximum_likelihood", flow, loss, operands, optimizer, steps, train_base, progress)


def fit_variational(
    flow: Flow,
    log_density: Callable[[Any], Any],
    *,
    context: Any = None,
    optimizer: Any = None,
    steps: int = 1000,
    num_samples: int = 32,
    train_base: bool = False,
    key: Any = None,
    progress: bool = True,
) -> FlowFit:
    """Fit a flow q to a density: the mean of log q(y) - log_density(y) over samples y of the flow is made small.

    That is the reverse Kullback-Leibler divergence up to the logarithm of the normalisation, the negative of the
    evidence lower bound. Samples are reparametrised and scored by the pass that makes them; no inverse is taken.

    Args:
        flow: what to start from; its base must be sampled differentiably if it is trained.
        log_density: function of one event; need not be normalised.
        context: one for all samples, for a conditional flow.
        optimizer: of optax; None: Adam at a rate of 1e-3.
        steps: how many.
        num_samples: per step.
        train_base: see `fit_maximum_likelihood`.
        key: of the samples; None: `jax.random.key(0)`.
        progress: whether to show it, on a terminal, after two seconds.

    Returns:
        The fitted flow and the losses; see `fit_maximum_likelihood`.

    Raises:
        MissingExtraError: optax is not installed.
        FlowShapeError: the context has another shape.
        NothingToTrainError: the flow has no array to train.

    Cost: one compilation, then a step each.
    """
    start = jax.random.key(0) if key is None else key

    def loss(flow: Flow, key: Any, number: Any) -> Any:
        y, log_prob = flow.sample_and_log_prob(jax.random.fold_in(key, number), (num_samples,), context)
        events = y.reshape(-1, *flow.event_shape)
        return jnp.mean(log_prob) - jnp.mean(jax.vmap(log_density)(events))

    return _fit("fit_variational", flow, loss, lambda number: (start, number), optimizer, steps, train_base, progress)


def _fit(
    name: str,
    flow: Flow,
    loss: Callable[..., Any],
    operands: Callable[[int], tuple[Any, ...]],
    optimizer: Any,
    steps: int,
    train_base: bool,
    progress: bool,
) -> FlowFit:
    """The steps of a fit."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise wrong_option("steps", steps, "a number of steps")
    optax = needed("optax", name, "flows")
    optimizer = optax.adam(LEARNING_RATE) if optimizer is None else optimizer
    trained, frozen, rebuild = split_trainable(flow, train_base)
    if not trained:
        raise nothing_to_train(name)
    step = _compiled_step(optimizer, optax.apply_updates, rebuild, loss)
    state = (trained, optimizer.init(trained), jnp.array(True))
    losses = []
    with Meter("fitting a flow", steps, is_shown=progress) as meter:
        for number in range(steps):
            state, value = step(state, frozen, *operands(number))
            losses.append(value)
            if progress:
                _advance(meter, value)
    found = np.asarray(jnp.stack(losses)) if losses else np.zeros(0)
    if not state[2]:
        first = int(np.argmin(np.isfinite(found))) if not np.isfinite(found).all() else None
        warnings.warn(stopped_early(name, first), UserWarning, stacklevel=3)
    return FlowFit(rebuild(state[0], frozen), found)


def _advance(meter: Meter, value: Any) -> None:
    """Count a step that is done, not only started: a meter of started ones would be at its end at once."""
    if meter.done % 16 == 0:
        value.block_until_ready()
    meter.advance()


def _compiled_step(optimizer: Any, apply_updates: Any, rebuild: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    @jax.jit
    def step(state: Any, frozen: Any, *operands: Any) -> Any:
        trained, of_optimizer, was_finite = state
        value, gradient = jax.value_and_grad(lambda trained: loss(rebuild(trained, frozen), *operands))(trained)
        updates, stepped = optimizer.update(gradient, of_optimizer, trained)
        are_finite = [jnp.isfinite(leaf).all() for leaf in (value, *gradient)]
        is_finite = jnp.stack([was_finite, *are_finite]).all()
        new = (apply_updates(trained, updates), stepped)
        kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), new, (trained, of_optimizer))
        return (*kept, is_finite), value

    return step


def _orders(key: Any, num_rows: int, *, is_shuffled: bool) -> Callable[[int], Any]:
    """The order of rows in each pass over the data; passes come one after the other."""
    last: dict[int, Any] = {}

    def order_of(epoch: int) -> Any:
        if not is_shuffled:
            epoch = 0
        if epoch not in last:
            last.clear()
            rows = jnp.arange(num_rows)
            last[epoch] = jax.random.permutation(jax.random.fold_in(key, epoch), rows) if is_shuffled else rows
        return last[epoch]

    return order_of


def _num_rows(flow: Flow, rows: tuple[Any, ...]) -> int:
    """How many rows there are, after a look at all shapes."""
    num_axes = [len(flow.event_shape), len(flow.context_shape or ())]
    if any(x.ndim != 1 + n for x, n in zip(rows, num_axes, strict=False)) or len({x.shape[0] for x in rows}) > 1:
        raise other_rows(*(x.shape for x in rows))
    jax.eval_shape(flow.log_prob, *rows)
    return rows[0].shape[0]


# --- what is trained --------------------------------------------------------------------------------------------------


def split_trainable(flow: Flow, train_base: bool) -> tuple[list[Any], list[Any], Callable[[Any, Any], Flow]]:
    """The arrays that train, the other arrays, and the flow made of both.

    Arrays of floating-point or complex numbers train, except below `NonTrainable` of paramax (FlowJAX's way to freeze).
    """
    leaves, treedef = jax.tree.flatten(flow)
    is_trained = _are_trained(flow, train_base)
    is_frozen = [not trained and isinstance(leaf, jax.Array) for leaf, trained in zip(leaves, is_trained, strict=True)]
    fixed = [None if t or f else leaf for leaf, t, f in zip(leaves, is_trained, is_frozen, strict=True)]

    def rebuild(trained: Any, frozen: Any) -> Flow:
        trained, frozen = iter(trained), iter(frozen)
        parts = zip(fixed, is_trained, is_frozen, strict=True)
        return jax.tree.unflatten(treedef, [next(trained) if t else next(frozen) if f else x for x, t, f in parts])

    chosen = [jnp.asarray(leaf) for leaf, trained in zip(leaves, is_trained, strict=True) if trained]
    return chosen, [leaf for leaf, f in zip(leaves, is_frozen, strict=True) if f], rebuild


def _are_trained(flow: Flow, train_base: bool) -> list[bool]:
    """Of every leaf of a flow: whether it trains."""
    found = []
    for part, may_train in ((flow.base, train_base), (flow.bijection, True)):
        for node in jax.tree.leaves(part, is_leaf=_is_not_trainable):
            may_node = may_train and not _is_not_trainable(node)
            found += [may_node and _is_inexact(leaf) for leaf in jax.tree.leaves(node)]
    return found


def _is_not_trainable(x: Any) -> bool:
    paramax = sys.modules.get("paramax")
    return paramax is not None and isinstance(x, paramax.NonTrainable)


def _is_inexact(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray)) and jnp.issubdtype(x.dtype, jnp.inexact)
