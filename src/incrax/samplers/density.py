"""A log-density of pytrees for samplers: of one vector on the host, or of its leaves inside a
compiled loop.

In: a function and its arguments. Out: names and values of what is sampled, and two ways to
evaluate. It must not know how points are proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from incrax import Incremental, Tuning, _jax, frozen, incremental
from incrax._messages import wrong_option
from incrax._names import name_of
from incrax.derivatives.cuts import unmarked, without_marks
from incrax.derivatives.flat import Ends, ends
from incrax.derivatives.prepared import Flat, prepare
from incrax.derivatives.selection import Selection, as_parameters, select
from incrax.derivatives.transforms import plain
from incrax.engine.call.analysis import note_inputs
from incrax.engine.inputs.paths import completed, element_names, is_within
from incrax.errors import PositionError
from incrax.samplers.messages import other_arguments


class Density:
    """A log-density, of which the selected leaves are sampled and all else stays.

    Fields: the incremental function, through which the host evaluates; what is sampled, by leaf;
    shapes of these. `discrete` names inputs that are sampled although they have no derivative.
    """

    def __init__(
        self,
        name: str,
        log_density: Any,
        args: tuple[Any, ...],
        wrt: Any,
        discrete: Sequence[str] = (),
    ) -> None:
        if not callable(log_density):
            raise wrong_option(f"{name}(log_density)", log_density, "a function")
        is_ours = isinstance(log_density, Incremental)
        self.function: Incremental[..., Any] = log_density if is_ours else incremental(log_density)
        self.plain: Callable[..., Any] = plain(log_density)
        self._wrt = wrt
        if discrete:
            self.selection: Selection = _with_discrete(name, self.plain, wrt, args, discrete)
        else:
            args = as_parameters(name, self.plain, wrt, args)
            self.selection = select(name, self.plain, wrt, args, {})
        self._args = args
        at = lambda *leaves: self.plain(*self.selection.merged(*leaves)[0])
        try:
            out = jax.eval_shape(at, self.selection.values, self.selection.others)
        except Exception as error:
            note_inputs(error, self.plain, args, {})
            if f"{name_of(self.plain)}() " in str(error):
                error.add_note(other_arguments(name, name_of(self.plain)))
            raise
        _check_scalar(out)
        self.ends: Ends = ends([np.shape(value) for value in self.selection.values])
        self.paths: tuple[str, ...] = self.selection.paths
        self.names: tuple[str, ...] = element_names(self.paths, self.shapes)

    @cached_property
    def flat(self) -> Flat:
        """A vector's view, for the host; of what has derivatives alone."""
        return prepare(self.plain, *self._args, wrt=self._wrt).flat

    def places(self, names: Sequence[str]) -> np.ndarray:
        """Where elements stand in the vector."""
        numbers = {name: k for k, name in enumerate(self.names)}
        return np.array([numbers[name] for name in names])

    def start(self) -> tuple[Any, ...]:
        """The example's arguments, without marks."""
        return self.selection.merged(self.selection.values)[0]

    def value(self, x: np.ndarray) -> float:
        """The log-density at a vector, -inf where it is NaN; what the vector did not change comes
        from saved values.
        """
        function: Any = self.function
        value = float(function(*without_marks(self.flat.arguments(x))))
        return value if value == value else -np.inf

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the leaves."""
        return self.ends.shapes

    @cached_property
    def dtypes(self) -> list[np.dtype]:
        """Of the leaves."""
        return [jax.dtypes.result_type(value) for value in self.selection.values]

    def tree(self, x: Any) -> Any:
        """Vectors of shape (*batch, n) in the shape of the selection, each leaf of shape (*batch,
        *shape).
        """
        return self.selection.tree(self.leaves(np.asarray(x)))

    def leaves(self, x: np.ndarray) -> list[np.ndarray]:
        """The same, one after the other; what is discrete has its own dtype."""
        return [
            part if jnp.issubdtype(dtype, jnp.inexact) else part.astype(dtype)
            for part, dtype in zip(self.ends.split(x), self.dtypes, strict=True)
        ]

    def placed(self, tree: Any) -> dict[str, Any]:
        """The leaves of a tree in the shape of the selection, by path.

        Raises:
            PositionError: it has another structure.
        """
        return dict(zip(self.paths, self._placed(tree), strict=True))

    def of_tree(self) -> Callable[[Any], Any]:
        """The log-density as a function of a tree in the shape of the selection, None where nothing
        is sampled: what does not depend on that is evaluated here, and read.

        The function raises `PositionError` where a tree has another structure, or a value where
        nothing is sampled. It is a pytree of what it reads, for compiled functions to take as an
        argument.
        """
        values = list(map(jnp.asarray, self.selection.values, self.dtypes))
        kept = [
            frozen(x) if isinstance(x, (np.ndarray, _jax.ArrayImpl)) else x
            for x in self.selection.others
        ]
        args = self.selection.merged(values, kept)[0]
        # The minimal planner saves all that data alone decide.
        pure: Any = incremental(self.plain, tuning=Tuning(planner="minimal")).pure
        state, step = pure(*args)
        rest = step.remainder(state, *args, moving=self.paths)

        def evaluate(arrays, x):
            leaves = zip(self._placed(x), self.dtypes, strict=True)
            return rest.func(arrays, *[jnp.asarray(leaf).astype(dtype) for leaf, dtype in leaves])

        return jax.tree_util.Partial(evaluate, *rest.args)

    def _placed(self, tree: Any) -> list[Any]:
        """The leaves of a tree in the shape of the selection.

        Raises:
            PositionError: it has another structure, or a value where nothing is sampled.
        """
        is_none = lambda x: x is None
        leaves, treedef = jax.tree.flatten(tree, is_leaf=is_none)
        mirror = self.selection.mirror
        are_none = [*map(is_none, leaves)]
        if treedef != mirror.treedef or are_none != [*map(is_none, mirror.positions)]:
            expected = jax.tree.structure(mirror.tree([0] * len(self.shapes)))
            raise PositionError(
                f"A log-density of positions of the structure {expected} got "
                f"{jax.tree.structure(tree)}. This is usually a value for what is not sampled, "
                "which stays as it was when the log-density was made. Nothing was evaluated. Pass "
                "what `wrt` selects, None elsewhere."
            )
        placed = {k: x for k, x in zip(mirror.positions, leaves, strict=True) if k is not None}
        return [placed[k] for k in sorted(placed)]


def _check_scalar(found: Any) -> None:
    leaves = jax.tree.leaves(found)
    is_real = lambda x: x.shape == () and jnp.issubdtype(x.dtype, jnp.floating)
    if not jax.tree_util.all_leaves([found]) or not is_real(found):
        seen = ", ".join(f"{x.dtype}{list(x.shape)}" for x in leaves) or "nothing"
        raise TypeError(
            f"A log-density must return one real number; this one returns {seen}. Nothing was "
            "sampled. Sum over the events."
        )


def _with_discrete(
    name: str, fun: Callable[..., Any], wrt: Any, args: tuple[Any, ...], discrete: Sequence[str]
) -> Selection:
    """What is selected, and has a derivative or is named as discrete.

    Raises:
        SelectionError: an array of integers is neither.
    """
    found = select(name, fun, wrt, args, {}, allow_int=True)
    named = [path for each in discrete for path in completed(found.paths, each)]
    drawn = {
        number: found.leaves[number]
        for number, path in zip(found.numbers, found.paths, strict=True)
        if any(is_within(path, each) for each in named)
    }
    # While it is selected, what is drawn has a derivative.
    floats = {number: np.asarray(unmarked(leaf), float) for number, leaf in drawn.items()}
    args, _ = jax.tree.unflatten(found.treedef, _replaced(found.leaves, floats))
    chosen = select(name, fun, wrt, as_parameters(name, fun, wrt, args), {})
    return replace(chosen, leaves=_replaced(chosen.leaves, drawn))


def _replaced(leaves: Sequence[Any], others: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple(others.get(number, leaf) for number, leaf in enumerate(leaves))


# --- for samplers whose loops are compiled: NumPyro, BlackJAX -------------------------------------


def logdensity(
    log_density: Callable[..., Any], *args: Any, wrt: Any = None
) -> Callable[[Any], jax.Array]:
    """A log-density of what is sampled alone, for compiled loops: `logdensity_fn` of BlackJAX.

    Promise: `logdensity(f, params, *data)(p)` equals `f(p, *data)`, and so do its derivatives of
    any order.

    Args:
        log_density: function of pytrees that returns one real number; an incremental one is taken
            as it is written.
        *args: its arguments; those that are sampled as examples, the others to stay as they are.
        wrt: what is sampled; see `grad`. None: the first argument.

    Returns:
        A function of the selected leaves, in the shape of the selection. What does not depend on
        them is evaluated once, here, and read by every evaluation in the sampler's loop, where an
        incremental function saves nothing. It is a pytree (`jax.tree_util.Partial`) of what it
        reads: a compiled loop that takes it as an argument has the data as arguments.

    Raises:
        SelectionError, UnknownInputError: `wrt` names nothing that has a derivative.
        TypeError: the function returns something else than one number.

    Cost: one evaluation. In a loop that closes over it, what it reads is a constant of the program,
        over which XLA folds nothing.

    Example:
        >>> import incrax, jax.numpy as jnp
        >>> from incrax import samplers
        >>> f = lambda p, x: -0.5 * jnp.sum((jnp.log(x) - p["mu"]) ** 2)
        >>> g = samplers.logdensity(f, {"mu": 0.0}, jnp.ones(3))
        >>> float(g({"mu": 2.0}))
        -6.0
    """
    return Density("logdensity", log_density, args, wrt).of_tree()


def numpyro_potential(
    log_density: Callable[..., Any], *args: Any, wrt: Any = None
) -> Callable[[Any], jax.Array]:
    """The potential energy of NumPyro, minus the log-density: `NUTS(potential_fn=...)`,
    `HMC(potential_fn=...)`.

    Args:
        log_density: as in `logdensity`. NumPyro samples without bounds: transform the parameters,
            and add the logarithm of the Jacobian.
        *args: its arguments at the start, as in `logdensity`.
        wrt: what is sampled, as in `logdensity`.

    Returns:
        A function of what is sampled. Give `MCMC.run(key, init_params=...)` a tree of the same
        shape.

    Raises:
        SelectionError, UnknownInputError, TypeError: as from `logdensity`.

    Cost: that of `logdensity`.

    Example:
        >>> import jax.numpy as jnp
        >>> from incrax import samplers
        >>> potential = samplers.numpyro_potential(lambda p, x: -jnp.sum((x - p) ** 2), 0.0, jnp.ones(3))
        >>> float(potential(2.0))
        3.0
    """
    density = Density("numpyro_potential", log_density, args, wrt).of_tree()
    return jax.tree_util.Partial(_negative, density)


def _negative(density: Callable[[Any], Any], tree: Any) -> Any:
    return -density(tree)
