"""Several models as one: sums of likelihoods with shared parameters, and terms that constrain parameters.

In: bound models. Out: a bound model whose value is the sum of theirs. Each term depends on its own inputs only, so that
a change of one data set's parameter leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax._api import incremental
from incrax._bind_errors import AmbiguousInputError
from incrax._errors import UnknownInputError
from incrax._fit_errors import (
    not_shared,
    other_shared_type,
    state_in_sum,
    taken_model_name,
    wrong_constraint,
)
from incrax.binding.api import bind
from incrax.binding.bound import Bound
from incrax.binding.roles import STATE
from incrax.derivatives.selection import at_path, type_name
from incrax.running.paths import is_within


class Constraint(NamedTuple):
    """A term of the negative log-likelihood in some inputs: `term` of their values, by name."""

    names: tuple[str, ...]
    term: Callable[..., Any]


def gaussian_constraint(
    name: str | Sequence[str], value: Any, sigma: Any = None, *, covariance: Any = None
) -> Constraint:
    """What an outside measurement says of parameters: half the squared distance in units of its errors.

    Args:
        name: an input, a leaf, or several; arrays are taken element by element.
        value: the measured value, of the parameter's shape; for several names, their elements in order.
        sigma: its standard error, broadcast to the shape. Or
        covariance: of the elements in order, shape (k, k).

    Raises:
        BindError: neither or both errors are given, they are not positive, or do not fit.

    Example:
        >>> import incrax
        >>> from incrax import fit
        >>> m = incrax.bind(lambda mu: 0.0 * mu, mu=1.5)
        >>> float(fit.constrained(m, fit.gaussian_constraint("mu", 1.0, 0.25)).value())
        2.0
    """
    names = (name,) if isinstance(name, str) else tuple(name)
    centre = np.asarray(value, float).reshape(-1)
    root = _whitening(names, centre.size, sigma, covariance)

    def term(*values: Any) -> Any:
        found = jnp.concatenate([jnp.ravel(each) for each in values])
        if found.size != centre.size:
            raise wrong_constraint(names, f"has {centre.size} values for {found.size} elements")
        return 0.5 * jnp.sum((root @ (found - centre)) ** 2)

    return Constraint(names, term)


def _whitening(names: tuple[str, ...], size: int, sigma: Any, covariance: Any) -> np.ndarray:
    """W with W^T W = C^-1, shape (k, k)."""
    if (sigma is None) == (covariance is None):
        raise wrong_constraint(names, "needs either `sigma` or `covariance`")
    try:
        matrix = np.diag(np.broadcast_to(sigma, size) ** 2) if covariance is None else np.asarray(covariance, float)
        if matrix.shape != (size, size) or not np.all(np.linalg.eigvalsh(matrix) > 0):
            raise wrong_constraint(
                names, f"has errors of shape {list(matrix.shape)} that are no covariance of {size} values"
            )
        return np.linalg.inv(np.linalg.cholesky(matrix))
    except (ValueError, np.linalg.LinAlgError) as error:
        raise wrong_constraint(names, f"has errors that do not fit {size} values") from error


def constrained(model: Bound, *constraints: Constraint) -> Bound:
    """A model whose value has the terms of constraints added; inputs, names, roles and bounds are the model's.

    Args:
        model: whose value is a scalar. It stays as it is.
        *constraints: of `gaussian_constraint`, or `Constraint(names, term)` with any function of the named inputs.

    Raises:
        UnknownInputError: a constraint names nothing.
        BindError: the model has state.
    """
    _check_stateless("model", model)
    names = tuple(model.inputs)
    known = tuple(model.roles)
    terms = [([model.path(name) for name in each.names], each.term) for each in constraints]

    def total(**given: Any) -> Any:
        args = tuple(given[name] for name in names)
        value = model.function(*args)
        for paths, term in terms:
            value = value + term(*(at_path(path, (args, {}), names, known) for path in paths))
        return value

    inputs = dict(zip(names, model.args, strict=True))
    return bind(
        incremental(total, **model.options),
        roles=model.roles,
        bounds=model.bounds,
        transforms=model.transforms,
        **inputs,
    )


def simultaneous(
    models: Mapping[str, Bound], *, shared: Iterable[str] = (), constraints: Iterable[Constraint] = ()
) -> Bound:
    """The sum of several models as one model, in which some inputs are shared.

    Args:
        models: bound models with scalar values, by the names of their parts in the sum: the input `sigma` of the model
            `a` is `a['sigma']`. They stay as they are.
        shared: names of inputs or leaves (`"mu"`); what has such a name in any of the models becomes one input of this
            name, with value, role and bounds of the first model that has it.
        constraints: terms in inputs of the sum, added once; see `constrained`.

    Returns:
        A bound model with the inputs `shared` and, for each model, a dictionary of its other inputs.

    Raises:
        UnknownInputError: a constraint names nothing.
        BindError: a shared name is in no model, or of different types; a model has state.

    Cost: a change of what one model alone reads evaluates that model.

    Example:
        >>> import incrax
        >>> from incrax import fit
        >>> square = lambda mu, x: (mu - x) ** 2
        >>> one, two = (incrax.bind(square, mu=0.0, x=x, roles={"x": "data"}) for x in (1.0, 3.0))
        >>> m = fit.simultaneous({"one": one, "two": two}, shared=["mu"])
        >>> m.set(mu=2.0)
        >>> float(m.value())
        2.0
    """
    shared = tuple(shared)
    for name, model in models.items():
        _check_stateless(name, model)
        if name in shared:
            raise taken_model_name(name)
    parts = {name: _part(model, shared) for name, model in models.items()}
    inputs, settings = _shared_inputs(models, parts, shared)
    for name, part in parts.items():
        inputs[name] = dict(zip(part.names, jax.tree.unflatten(part.treedef, part.own(part.model.args)), strict=True))
        _take(settings, part, lambda path, name=name, part=part: part.joint_path(name, path))

    def total(**given: Any) -> Any:
        values = [part.model.function(*part.args(given[name], given)) for name, part in parts.items()]
        return sum(values[1:], values[0])

    options = next(iter(models.values())).options
    joint = bind(incremental(total, **options), **settings, **inputs)
    return constrained(joint, *constraints) if constraints else joint


# --- parts of a sum ---------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A model in a sum."""

    model: Bound
    names: tuple[str, ...]
    """Of its inputs."""
    paths: tuple[str, ...]
    """Of its leaves."""
    treedef: Any
    """Of its arguments."""
    sources: tuple[tuple[str, int] | None, ...]
    """Of each leaf: the shared input that it is a leaf of, and which; None for its own."""

    def own(self, args: Any) -> list[Any]:
        """Leaves, None for those that are shared."""
        return [leaf if source is None else None for leaf, source in self._pairs(args)]

    def args(self, own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Any, ...]:
        """The model's arguments from its own inputs and the shared ones."""
        rest = iter(leaf for name in self.names for leaf in jax.tree.leaves(own[name]))
        shared = {name: jax.tree.leaves(given[name]) for name, _ in filter(None, self.sources)}
        leaves = [next(rest) if source is None else shared[source[0]][source[1]] for source in self.sources]
        return jax.tree.unflatten(self.treedef, leaves)

    def joint_path(self, name: str, path: str) -> str | None:
        """The path in the sum of one of the model's own leaves."""
        if self.sources[self.paths.index(path)] is not None:
            return None
        owner = max((each for each in self.names if is_within(path, each)), key=len)
        return f"{name}[{owner!r}]{path.removeprefix(owner)}"

    def _pairs(self, args: Any) -> list[tuple[Any, Any]]:
        return list(zip(jax.tree.leaves(args), self.sources, strict=True))


def _part(model: Bound, shared: Sequence[str]) -> _Part:
    paths = tuple(model.roles)
    sources: list[tuple[str, int] | None] = [None] * len(paths)
    for name in shared:
        place = _place(model, name)
        numbers = [k for k, path in enumerate(paths) if place is not None and is_within(path, place)]
        for index, number in enumerate(numbers):
            sources[number] = (name, index)
    return _Part(model, tuple(model.inputs), paths, jax.tree.structure(model.args), tuple(sources))


def _place(model: Bound, name: str) -> str | None:
    """The path of what has a name in a model, None if nothing has it."""
    try:
        return model.path(name)
    except AmbiguousInputError:
        raise
    except UnknownInputError:
        return None


def _shared_inputs(
    models: Mapping[str, Bound], parts: Mapping[str, _Part], shared: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Values of the shared inputs, and their roles, bounds and transforms by path."""
    inputs: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {"roles": {}, "bounds": {}, "transforms": {}}
    for name in shared:
        places = {key: place for key, model in models.items() if (place := _place(model, name)) is not None}
        if not places:
            raise not_shared(name, list(models))
        found = {key: models[key][place] for key, place in places.items()}
        first = next(iter(found))
        for key, value in found.items():
            if _types(value) != _types(found[first]):
                raise other_shared_type(name, key, str(_types(value)[0]), first, str(_types(found[first])[0]))
        inputs[name] = found[first]
        place = places[first]
        inside = lambda path, name=name, place=place: (
            name + path.removeprefix(place) if is_within(path, place) else None
        )
        _take(settings, parts[first], inside)
    return inputs, settings


def _take(settings: dict[str, dict[str, Any]], part: _Part, renamed: Callable[[str], str | None]) -> None:
    """Roles, bounds and transforms of a part's leaves under their names in the sum."""
    for option, found in settings.items():
        for path, value in getattr(part.model, option).items():
            name = renamed(path)
            if name is not None:
                found[name] = value


def _types(value: Any) -> tuple[list[str], Any]:
    leaves, structure = jax.tree.flatten(value)
    return [type_name(leaf) for leaf in leaves], structure


def _check_stateless(name: str, model: Bound) -> None:
    if STATE in model.roles.values():
        raise state_in_sum(name)
