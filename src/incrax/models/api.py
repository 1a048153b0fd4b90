"""The public way to bind a function.

In: a function, inputs by name, roles, bounds. Out: a `Bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from incrax.models.bound import Bound
from incrax.models.roles import Roles


def bind(
    f: Callable[..., Any],
    /,
    *,
    roles: Roles = None,
    bounds: Mapping[str, Any] | None = None,
    transforms: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> Bound:
    """Give a function values for its inputs, to be set one by one and fitted.

    Each input is a pytree. Each of its leaves has a role:

    - `"trainable"`: what derivatives are taken by, and what fits change;
    - `"fixed"`: a parameter that stays as it is set; no derivative by it is computed while it has
      this role from the start (`Bound.fix` holds parameters for a while);
    - `"state"`: updated by what the function returns, outside of all derivatives (moving averages);
    - `"data"`: may change its shape and structure when it is set; NumPy arrays are copied once and
      frozen.

    Args:
        f: function of the inputs by name; an incremental one keeps its options. With state, it
            returns a pair: its value, and a mapping of state inputs to their new values. An Equinox
            or Flax NNX module is bound whole: its leaves are the input `model`, and the inputs are
            those of its call.
        roles: a mapping of names to roles, the innermost name counts; or a function (path, leaf) ->
            role, None for the default. Names of elements of arrays may be `"trainable"` or
            `"fixed"`: `{"theta[3]": "fixed"}`. By default floating leaves are trainable, and
            integers of Python as floats; all others are data, also arrays of integers. What is
            trainable or fixed is a float: an index or a count is `"data"`. Parameters of NNX
            modules are trainable and their other variables state; Python numbers in Equinox modules
            are settings.
        bounds: a mapping of names to pairs (lower, upper) that broadcast to the leaf, None for no
            bound.
        transforms: a mapping of names to pairs of functions, from unbounded space to the input and
            back. By default those of the bounds: exp for one, logistic for two.
        **inputs: values. Those that `f` has defaults for may be left out and are then no inputs.

    Names are inputs, paths of parts of them (`"params['mu']"`), or the ends of paths where only one
    fits (`"mu"`); roles, bounds and `set` also take elements of arrays (`"theta[3]"`).

    Returns:
        A model: `set`, `at`, `value`, `grad`, ...; see `Bound`.

    Raises:
        BindError: the inputs are not those of the function, or roles, bounds or transforms do not
            fit them.
        UnknownInputError: a name stands for nothing, or for several things.
        InputValueError: an input lies outside of its bounds.

    Cost: nothing is traced before the first evaluation; data are copied once.

    Example:
        >>> import incrax
        >>> m = incrax.bind(lambda mu, sigma, x: ((x - mu) / sigma) ** 2, mu=1.0, sigma=2.0, x=5.0, roles={"x": "data"})
        >>> float(m.value()), float(m.grad()["mu"])
        (4.0, -2.0)
        >>> m.set(mu=3.0)
        >>> float(m.value())
        1.0
    """
    return Bound(f, inputs, roles=roles, bounds=bounds, transforms=transforms)
