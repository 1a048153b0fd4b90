"""Several models as one: sums of likelihoods with shared parameters, and terms that constrain
parameters.

In: bound models. Out: a bound model whose value is the sum of theirs. Each term depends on its own
inputs only, so that a change of one data set's parameter leaves the others alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from incrax import Bound, incremental
from incrax._messages import check_function, listed, wrong_option
from incrax._names import names_in
from incrax.derivatives.selection import parts_of, type_name
from incrax.engine.inputs.paths import is_within
from incrax.errors import AmbiguousInputError, BindError, UnknownInputError
from incrax.fit.problem import check_model
from incrax.models.names import with_part
from incrax.models.roles import STATE


class Constraint(NamedTuple):
    """A term of the negative log-likelihood in some inputs: `term` of their values, by name.

    Fields:
        names: names of inputs.
        term: what it adds, a function of their values in this order.

    Example:
        >>> import incrax
        >>> from incrax import fit
        >>> m = incrax.bind(lambda a, b: (a + b - 3) ** 2, a=0.0, b=0.0)
        >>> ratio = fit.Constraint(("a", "b"), lambda a, b: (a - 2 * b) ** 2)
        >>> result = fit.minimize(fit.constrained(m, ratio))
        >>> [round(value, 3) for value in result.values.tolist()]
        [2.0, 1.0]
    """

    names: tuple[str, ...]
    term: Callable[..., Any]


def gaussian_constraint(
    name: str | Sequence[str], value: ArrayLike, sigma: ArrayLike
) -> Constraint:
    """What an outside measurement says of parameters: half the squared distance in units of its
    errors.

    Args:
        name: an input, a leaf, or several; arrays are taken element by element.
        value: the measured value, of the parameter's shape; for several names, their elements in
            order.
        sigma: its standard error, broadcast to the shape; of values that are correlated write the
            `Constraint` yourself.

    Returns:
        A term for `constrained` or `simultaneous`.

    Raises:
        BindError: errors are not positive, or do not fit.

    Example:
        >>> import incrax
        >>> from incrax import fit
        >>> m = incrax.bind(lambda mu: 0.0 * mu, mu=1.5)
        >>> float(fit.constrained(m, fit.gaussian_constraint("mu", 1.0, 0.25)).value())
        2.0
    """
    names = names_in("gaussian_constraint(name)", name)
    given = _numbers(names, value)
    centre = given.reshape(-1)
    if not np.all(np.isfinite(centre)):
        raise _wrong_constraint(names, "has values that are not finite")
    errors = _errors(names, sigma, given.shape)

    def term(*values):
        found = jnp.concatenate([jnp.ravel(each) for each in values])
        if found.size != centre.size:
            raise _wrong_constraint(names, f"has {centre.size} values for {found.size} elements")
        return 0.5 * jnp.sum(((found - centre) / errors) ** 2)

    return Constraint(names, term)


def _numbers(names: tuple[str, ...], given: Any) -> np.ndarray:
    try:
        return np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise _wrong_constraint(names, f"got {given!r}, which is no numbers") from error


def _errors(names: tuple[str, ...], sigma: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A standard error for each element."""
    try:
        errors = np.broadcast_to(_numbers(names, sigma), shape).reshape(-1)
    except ValueError as error:
        raise _wrong_constraint(
            names, f"has errors that do not fit values of shape {list(shape)}"
        ) from error
    if not np.all(errors > 0):
        raise _wrong_constraint(names, "has errors that are not above zero")
    return errors


def constrained(model: Bound, *constraints: Constraint) -> Bound:
    """A model whose value has the terms of constraints added; inputs, names, roles and bounds are
    the model's.

    Args:
        model: whose value is a scalar. It stays as it is.
        *constraints: of `gaussian_constraint`, or `Constraint(names, term)` with any function of
            the named inputs.

    Returns:
        A model with values of its own.

    Raises:
        UnknownInputError: a constraint names nothing.
        BindError: the model has state.

    Cost: the terms are evaluated where their inputs change, and the model where its inputs do.

    Example:
        >>> import incrax
        >>> from incrax import fit
        >>> m = incrax.bind(lambda a, b: (a + b - 3) ** 2, a=0.0, b=0.0)
        >>> result = fit.minimize(fit.constrained(m, fit.gaussian_constraint("b", 1.0, 0.1)))
        >>> [round(value, 3) for value in result.values.tolist()]
        [2.0, 1.0]
    """
    check_model("constrained(model)", model)
    for each in constraints:
        if not isinstance(each, Constraint):
            raise wrong_option("constrained(model, *constraints)", each, "a `Constraint`")
        check_function("Constraint(names, term)", each.term)
    names = tuple(model.inputs)
    terms = [
        ([model.path(name) for name in names_in("Constraint(names)", each.names)], each)
        for each in constraints
    ]
    for paths, each in terms:
        jax.eval_shape(each.term, *(model[path] for path in paths))

    def change(value, args: tuple[Any, ...]):
        trees = dict(zip(names, args, strict=True))
        for paths, each in terms:
            value = value + each.term(*(parts_of(trees, path)[path] for path in paths))
        return value

    return _composed(model, change)


def simultaneous(
    models: Mapping[str, Bound],
    *,
    shared: Iterable[str] = (),
    constraints: Iterable[Constraint] = (),
) -> Bound:
    """The sum of several models as one model, in which some inputs are shared.

    Args:
        models: bound models with scalar values, by the names of their parts in the sum: the input
            `sigma` of the model `a` is `a['sigma']`. They stay as they are.
        shared: names of inputs or leaves (`"mu"`); what has such a name in any of the models
            becomes one input of this name, with value, role and bounds of the first model that has
            it.
        constraints: terms in inputs of the sum, added once; see `constrained`.

    Returns:
        A bound model with the inputs `shared` and, for each model, a dictionary of its other
        inputs.

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
    if not models or not isinstance(models, Mapping):
        raise BindError(
            "`simultaneous(models)` got no models by name. No model was made. Pass a mapping of "
            "names to bound models."
        )
    for model in models.values():
        check_model("simultaneous(models)", model)
    if isinstance(constraints, Constraint) or not isinstance(constraints, Iterable):
        raise wrong_option("simultaneous(constraints=...)", constraints, "a list of `Constraint`s")
    words = {name: _word(name) for name in names_in("simultaneous(shared=...)", shared)}
    parts = [_part(name, model, words) for name, model in models.items()]
    owners = _owners(parts)
    _check_shared(words, owners, models)
    inputs = {word: owners[word].shared[word] for word in words.values()}
    inputs |= {part.name: part.own_inputs() for part in parts}
    settings: dict[str, dict[str, Any]] = {"roles": {}, "bounds": {}}
    for part in parts:
        for option, found in settings.items():
            found |= part.renamed(getattr(part.model, option), owners)

    def total(**given):
        values = [part.value(given) for part in parts]
        return sum(values[1:], values[0])

    options = parts[0].model.options
    joint = Bound(incremental(total, **options), inputs, **settings)
    return constrained(joint, *constraints) if constraints else joint


# --- parts of a sum -------------------------------------------------------------------------------


def _word(name: str) -> str:
    """What a shared path is called in the sum: its last key."""
    found = re.search(r"""(\w+)['"]?\]?$""", name)
    return found[1] if found else name


class _Part(NamedTuple):
    """A model in a sum."""

    name: str
    model: Bound
    places: dict[str, str]
    """The shared inputs of the sum by the paths that they have in the model."""

    @property
    def shared(self) -> dict[str, Any]:
        """The shared inputs that it has."""
        return {word: self.model[path] for path, word in self.places.items()}

    def own_inputs(self) -> dict[str, Any]:
        """The model's inputs, None where one is shared."""
        own = dict(zip(self.model.inputs, self.model.args, strict=True))
        for path in self.places:
            own = with_part(own, path, None)
        return own

    def value(self, given: Mapping[str, Any]) -> Any:
        """The model's value, from the inputs of the sum."""
        trees = given[self.name]
        for path, word in self.places.items():
            trees = with_part(trees, path, given[word])
        return self.model.function(*(trees[each] for each in self.model.inputs))

    def renamed(self, values: Mapping[str, Any], owners: Mapping[str, _Part]) -> dict[str, Any]:
        """Values of the model's leaves by their paths in the sum; of shared inputs those owned."""
        found = {}
        for path, value in values.items():
            outer = next((each for each in self.places if is_within(path, each)), None)
            if outer is None:
                owner = max((each for each in self.model.inputs if is_within(path, each)), key=len)
                found[f"{self.name}[{owner!r}]{path.removeprefix(owner)}"] = value
            elif owners[self.places[outer]] is self:
                found[self.places[outer] + path.removeprefix(outer)] = value
        return found


def _part(name: str, model: Bound, words: Mapping[str, str]) -> _Part:
    _check_part(name, model, words.values())
    found: dict[str, str] = {}
    for each, word in words.items():
        try:
            path = model.path(each)
        except AmbiguousInputError:
            raise
        except UnknownInputError:
            continue
        for other in found:
            if is_within(path, other) or is_within(other, path):
                raise BindError(
                    f"`simultaneous(shared=...)` names `{found[other]}` and `{word}`, and in "
                    f"`{name}` one is part of the other. No model was made. Share one of them."
                )
        found[path] = word
    return _Part(name, model, found)


def _owners(parts: Sequence[_Part]) -> dict[str, _Part]:
    """Of each shared input the first model that has it.

    Raises:
        BindError: it is of another type in another one.
    """
    owners: dict[str, _Part] = {}
    for part in parts:
        for word, value in part.shared.items():
            owner = owners.setdefault(word, part)
            _check_type(word, (part.name, value), (owner.name, owner.shared[word]))
    return owners


def _check_part(name: Any, model: Bound, shared: Collection[str]) -> None:
    if not (isinstance(name, str) and name.isidentifier()):
        raise BindError(
            f"`simultaneous` got {name!r} as the name of a part. No model was made. Names of parts "
            "are names of inputs: letters, digits and underscores."
        )
    _check_stateless(name, model)
    if name in shared:
        raise BindError(
            f"`simultaneous` got `{name}` both as a model and as shared. No model was made. Rename "
            "the model."
        )


def _check_shared(
    words: Mapping[str, str], owners: Collection[str], models: Collection[str]
) -> None:
    for name, word in words.items():
        if word not in owners:
            raise BindError(
                f"`simultaneous(shared=...)` names `{name}`, and none of the models {listed(models)} has "
                "one input of this name. No model was made. Use an input's name, a path as "
                "`print(model)` shows it, or its end where that is unique."
            )


def _check_type(word: str, part: tuple[str, Any], first: tuple[str, Any]) -> None:
    leaves, structures = zip(*(jax.tree.flatten(value) for _, value in (part, first)), strict=True)
    seen, expected = ([type_name(leaf) for leaf in each] for each in leaves)
    if seen != expected or structures[0] != structures[1]:
        raise BindError(
            f"`{word}` is to be shared, and is of type {seen} in `{part[0]}` but {expected} in "
            f"`{first[0]}`. No model was made. Give it the same structure, shape and dtype in all "
            "models."
        )


def _check_stateless(name: str, model: Bound) -> None:
    if STATE in model.roles.values():
        raise BindError(
            f'The model `{name}` has inputs with the role "state", and a sum of models has no '
            'updates. No model was made. Give them the role "fixed" first: '
            '`model.set_role("moments", "fixed")`.'
        )


def negative(model: Bound) -> Bound:
    """A model with the negative value: the log-likelihood of a negative log-likelihood, for
    samplers.

    Args:
        model: whose value is a scalar. It stays as it is.

    Returns:
        A model with the same inputs, and values of its own.

    Raises:
        BindError: the model has state.

    Example:
        >>> import incrax
        >>> from incrax import fit
        >>> float(fit.negative(incrax.bind(lambda mu: 0.5 * mu**2, mu=2.0)).value())
        -2.0
    """
    check_model("negative(model)", model)
    return _composed(model, lambda value, args: -value)


def _composed(model: Bound, change: Callable[[Any, tuple[Any, ...]], Any]) -> Bound:
    """A model of the same inputs with another value, from the model's and all inputs."""
    _check_stateless("model", model)
    names = tuple(model.inputs)

    def total(**given):
        args = tuple(given[name] for name in names)
        return change(model.function(*args), args)

    inputs = dict(zip(names, model.args, strict=True))
    settings = {"roles": model.roles, "bounds": model.bounds}
    return Bound(incremental(total, **model.options), inputs, **settings)


def _wrong_constraint(names: Sequence[str], reason: str) -> BindError:
    """A constraint that cannot be evaluated."""
    return BindError(
        f"The constraint of {listed(names)} {reason}. No model was made. Pass `gaussian_constraint(name, "
        "value, sigma)`, with one error or one for each element."
    )
