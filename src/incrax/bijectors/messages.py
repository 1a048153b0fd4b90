"""Errors and warnings about bijections, in the manner of `_messages`."""

from __future__ import annotations

from incrax.errors import (
    BijectionArgumentError,
    FlowShapeError,
    NotABijectionError,
    NotADistributionError,
    NothingToTrainError,
    UnsupportedLeafError,
)

SLOW_LADJ = (
    "A log-determinant is computed although `set_requires_ladj(False)` is in force, from the remembered input. This "
    "may slow down your forward and backward passes: where a log-determinant is wanted it is cheaper to compute it "
    "together with the output. Consider removing the context manager `set_requires_ladj(False)`. This is said once."
)


def not_a_bijection(seen: str) -> NotABijectionError:
    """An object of no known form."""
    return NotABijectionError(
        f"`remember` got {seen}, which has none of the forms of a bijection that are known. This is usually a plain "
        "function, a distribution, or the class in place of an instance. Nothing is remembered. Pass a bijection of "
        "FlowJAX, a transform of NumPyro, or an object with the methods `transform_and_log_det` (or "
        "`forward_and_log_det`) and `inverse_and_log_det`."
    )


def no_tree(path: str, kind: str) -> UnsupportedLeafError:
    """A bijection as an argument of a compiled function that is no pytree."""
    return UnsupportedLeafError(
        f"`bijectors.jit(f)` got `{path}` of type {kind}, a bijection that is no pytree: its parameters would be part "
        "of the program, and a change of one would not be seen. Nothing was evaluated. Register the class "
        "(`jax.tree_util.register_dataclass`), or let `f` close over the bijection if it never changes."
    )


def unhashable_argument(path: str, kind: str) -> UnsupportedLeafError:
    """An argument of a compiled function that is no array and no static value."""
    return UnsupportedLeafError(
        f"`bijectors.jit(f)` got `{path}` of type {kind}, which is no array and cannot be hashed, so it can be neither "
        "traced nor used as a static value. This is usually a set, a mutable object or a data frame. Nothing was "
        "evaluated. Pass its arrays, or make the type hashable or a registered pytree."
    )


# --- flows ------------------------------------------------------------------------------------------------------------

Shape = tuple[int, ...]


def not_a_distribution(seen: str) -> NotADistributionError:
    """A base without `sample` and `log_prob`."""
    return NotADistributionError(
        f"`Flow` got {seen} as its base, which has no methods `sample` and `log_prob`. This is usually the bijection "
        "in place of the base, or the class in place of an instance. Pass a distribution of FlowJAX, NumPyro, distrax "
        "or TFP, `bijectors.Normal(shape)`, or an object with `sample(key, shape)` and `log_prob(x)`."
    )


def no_parts(seen: str) -> NotADistributionError:
    """A distribution that is not a base behind bijections."""
    return NotADistributionError(
        f"`Flow.of` got {seen}, which is not made of a base distribution and bijections. A distribution without a "
        "bijection has nothing to remember. Pass a `Transformed` of FlowJAX or distrax or a `TransformedDistribution` "
        "of NumPyro or TFP; or give base and bijection to `Flow`."
    )


def shapes_do_not_fit(what: str, first: Shape, second: Shape) -> FlowShapeError:
    """Base and bijection of different shapes."""
    return FlowShapeError(
        f"`Flow` got a base and a bijection that do not fit: {what} of shape {first} and {second}. Nothing was made. "
        "Give both the same shape; a base of NumPyro is given more independent copies by `expand`, and its batch is "
        "made an event by `to_event`."
    )


def not_of_event_shape(seen: Shape, event: Shape) -> FlowShapeError:
    """Values of another event shape."""
    return FlowShapeError(
        f"`log_prob` got an array of shape {seen}, whose last axes should be those of one event, {event}. This is "
        "usually a transposed array, or the x in place of the y of a bijection that changes shapes. Nothing was "
        "evaluated. Put the axes of samples first."
    )


def no_context_taken(seen: Shape) -> FlowShapeError:
    """A context for an unconditional flow."""
    return FlowShapeError(
        f"A flow without context got one of shape {seen}. It would be ignored. Leave it out; or say "
        "`Flow(base, bijection, context_shape=...)` if the bijection takes one and does not say so by `cond_shape`."
    )


def context_not_given(expected: Shape) -> FlowShapeError:
    """No context for a conditional flow."""
    return FlowShapeError(
        f"A conditional flow got no context; it takes arrays with the last axes {expected}. Nothing was evaluated. "
        "Pass `context=`."
    )


def other_context_shape(seen: Shape, expected: Shape) -> FlowShapeError:
    """A context of another shape."""
    return FlowShapeError(
        f"A conditional flow got a context of shape {seen}, whose last axes should be {expected}. Nothing was "
        "evaluated. Put the axes of samples first."
    )


def batches_twice(batch: Shape, context: Shape) -> FlowShapeError:
    """Leading axes of the context beside a batch of bases."""
    return FlowShapeError(
        f"`sample` got a context with leading axes {context} for a flow with a batch of shape {batch}: which belongs "
        "to which is not defined. Nothing was evaluated. Use a base without a batch, or `jax.vmap` over one of both."
    )


def other_ladj_shape(name: str, ladj: Shape, x: Shape, expected: Shape) -> FlowShapeError:
    """A bijection for one event was given several."""
    return FlowShapeError(
        f"`{name}` gave a log-determinant of shape {ladj} for an x of shape {x}; one number for each of the leading "
        f"axes {expected} is needed. This is usually a bijection written for one event, whose log-determinant sums "
        "over all axes. No density was computed. Sum over the axes of one event only, or use `jax.vmap(flow.log_prob)`."
    )


def not_two_numbers(batch: Shape, event: Shape) -> FlowShapeError:
    """A flow that has no plane to be drawn in."""
    return FlowShapeError(
        f"`bijectors.plot` draws flows of the event shape (2,) without a batch; this one has the event shape {event} "
        f"and the batch shape {batch}. Nothing was drawn. Draw two columns of `flow.sample(key, (n,))` instead."
    )


def other_rows(*seen: Shape) -> FlowShapeError:
    """Data and contexts that are not row by row."""
    return FlowShapeError(
        f"`fit_maximum_likelihood` got data and contexts of shapes {', '.join(map(str, seen))}; both need one axis of "
        "rows, of the same length, before those of one event and one context. Nothing was evaluated. Reshape the data, "
        "and repeat a context for every row that it belongs to."
    )


def too_few_rows(size: int, num_rows: int) -> FlowShapeError:
    """A batch that cannot be had."""
    return FlowShapeError(
        f"`fit_maximum_likelihood` got a batch size of {size} for {num_rows} rows; it must be between 1 and the number "
        "of rows. Nothing was evaluated. Leave it out to take all rows at every step."
    )


def nothing_to_train(what: str) -> NothingToTrainError:
    """No leaf can be stepped."""
    return NothingToTrainError(
        f"`{what}` found no array of floating-point numbers to train in the bijection. This is usually a bijection "
        "without parameters, with Python numbers for parameters, one that is no pytree, or one frozen by "
        "`paramax.non_trainable`. Nothing was evaluated. Make parameters arrays and the bijection a pytree; "
        "`train_base=True` trains the base."
    )


def stopped_early(what: str, first: int | None) -> str:
    """The warning about losses that are not finite."""
    seen = "a gradient" if first is None else f"the loss of step {first + 1}"
    return (
        f"`{what}` met {seen} that is not finite. The usual causes are a step that is too large, data outside of what "
        "the bijection reaches, or an inverse that overflows. The flow is that before this step, and later steps "
        "changed nothing. Use a smaller learning rate, clip gradients (`optax.clip_by_global_norm`), or standardise "
        "the data."
    )


def wrong_event(name: str, seen: tuple[int, ...], expected: tuple[int, ...]) -> BijectionArgumentError:
    """An input whose last axes are no event."""
    return BijectionArgumentError(
        f"`{name}` got an array of shape {seen}, whose last axes must be {expected}, the shape of one event. This is "
        "usually events along the last axes, or a bijection made for other data. Nothing was evaluated. Move the axes "
        "of the events to the front."
    )


def wrong_context(name: str, seen: tuple[int, ...] | None, expected: tuple[int, ...] | None) -> BijectionArgumentError:
    """A context that is missing, or of another shape."""
    got = "no context" if seen is None else f"a context of shape {seen}"
    needs = "it takes none" if expected is None else f"its last axes must be {expected}"
    return BijectionArgumentError(
        f"`{name}` got {got}; {needs}. The bijection was made with another number of context variables. Nothing was "
        "evaluated. Pass the context that `cond_shape` tells, with the leading axes of the events or none."
    )


def wrong_conditioner(name: str, seen: str, expected: tuple[int, ...]) -> BijectionArgumentError:
    """A conditioner whose output does not fit the transformer."""
    return BijectionArgumentError(
        f"The conditioner of `{name}` gives {seen} for one event; the transformer needs {expected}: its "
        "`num_parameters` for each component that it transforms. No bijection was made. Give the conditioner that many "
        "outputs."
    )


def wrong_size(name: str, option: str, seen: object, expected: str) -> BijectionArgumentError:
    """An option out of its range."""
    return BijectionArgumentError(f"`{name}` got {option}={seen!r}; it must be {expected}. No bijection was made.")


def shapes_of_parts_differ(seen: list[tuple[int, ...]]) -> BijectionArgumentError:
    """A chain of bijections of events of several shapes."""
    return BijectionArgumentError(
        f"`Compose` got bijections of events of shapes {', '.join(map(str, seen))}; they must all be of one shape, as "
        "the output of each is the input of the next. No bijection was made. Give those of single numbers the shape of "
        "the others (`shape=`)."
    )
