"""Studies with many data sets: the same model fitted to each.

In: a bound model, data sets. Out: `Toys`: what each fit found. Programs are compiled once for data
of equal types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from incrax import Bound
from incrax._messages import wrong_option
from incrax._progress import Meter
from incrax._table import Printable, Table
from incrax.errors import BindError
from incrax.fit.axes import NUM_ABREAST, axes_for
from incrax.fit.minimizing import minimize
from incrax.fit.problem import check_model
from incrax.models.bound import check_trainable
from incrax.models.names import without_index

HEADER = ("parameter", "mean", "spread", "mean error", "pull mean", "pull width")


@dataclass(frozen=True, eq=False, repr=False)
class Toys(Printable):
    """Fits of k data sets with n free elements. Made by `toys`.

    Fields:
        names: names of the n free elements.
        values: the free elements at the minima, shape (k, n).
        errors: standard errors, shape (k, n).
        minima: the function at the minima, shape (k,).
        is_converged: whether a minimum was found, and no saddle, shape (k,).
        start: where each search started: usually the truth, shape (n,).

    Example:
        >>> import incrax, numpy as np
        >>> from incrax import fit
        >>> m = incrax.bind(lambda mu, x: 0.5 * ((x - mu) ** 2).sum(), mu=0.0, x=np.ones(4), roles={"x": "data"})
        >>> toys = fit.toys(m, [{"x": np.full(4, 1.5)}, {"x": np.full(4, 0.5)}])
        >>> [round(each, 1) for each in toys.values[:, 0].tolist()]
        [1.5, 0.5]
    """

    names: tuple[str, ...]
    values: np.ndarray
    errors: np.ndarray
    minima: np.ndarray
    is_converged: np.ndarray
    start: np.ndarray

    def pulls(self) -> np.ndarray:
        """(value - start) / error of the fits that converged, a row each."""
        return ((self.values - self.start) / self.errors)[self.is_converged]

    def plot(self, ax: Any = None) -> Any:
        """Draw a histogram of the pulls of each element beside a standard normal density.

        Args:
            ax: n matplotlib axes; None: those of a new figure.

        Returns:
            The figure.

        Raises:
            ValueError: it is another number of axes.
            MissingExtraError: matplotlib is not installed.
        """
        count = len(self.names)
        size = (2.6 * min(count, NUM_ABREAST), 2.4 * -(-count // NUM_ABREAST))
        figure, axes = axes_for("Toys.plot", ax, count, size)
        at = np.linspace(-4, 4, 201)
        for axis, name, pulls in zip(axes, self.names, self.pulls().T, strict=True):
            axis.hist(
                pulls[np.isfinite(pulls)],
                bins=24,
                range=(-4, 4),
                density=True,
                color="C0",
                alpha=0.6,
            )
            axis.plot(at, np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi), color="C1")
            axis.set_xlabel(f"pull of {name}")
        return figure

    @property
    def is_alarming(self) -> bool:
        """Whether a fit did not converge."""
        return not self.is_converged.all()

    def summary(self) -> str:
        """How many fits converged, and what helps those that found a saddle."""
        has_no_error = np.isfinite(self.minima) & np.isnan(self.errors).any(axis=1)
        is_lost = np.any(has_no_error & ~self.is_converged)
        advice = "; strategy=1 finds the way down from saddles" if is_lost else ""
        return f"{self.is_converged.sum()} of {self.is_converged.size} fits converged{advice}"

    def tables(self) -> list[Table]:
        """Values, errors and pulls of the fits that converged: of parameters that are one number,
        then of the first elements of arrays.
        """
        done = self.is_converged
        if not done.any():
            return []
        values = self.values[done]
        # Without those that a bound holds in some of the fits.
        errors, pulls = map(np.ma.masked_invalid, (self.errors[done], self.pulls()))
        columns = (values.mean(0), values.std(0), errors.mean(0), pulls.mean(0), pulls.std(0))
        rows = [
            (name, *(f"{x:.4g}" for x in row))
            for name, *row in zip(self.names, *map(np.ma.filled, columns), strict=True)
        ]
        rows.sort(key=lambda row: without_index(row[0])[1] is not None)
        return [Table("", HEADER, rows)]


def toys(
    model: Bound,
    data_sets: Iterable[Mapping[str, Any]],
    *,
    progress: bool = True,
    **options: Any,
) -> Toys:
    """Fit a model to many data sets, each from the model's present values.

    Args:
        model: bound; as it was when this ends, also after an error.
        data_sets: what to set before each fit: mappings of inputs to values, `({"x": sample(k)} for
            k in range(100))`. May be a generator: one set is in memory at a time.
        progress: whether more than two seconds show their progress on a terminal.
        **options: of `minimize`.

    Returns:
        Values and errors of shape (data sets, free elements), pulls, a table and a plot; see `Toys`.

    Raises:
        TypeError: a data set is no mapping.
        UnknownInputError: one names nothing.
        InputValueError: a value does not fit its input.
        BindError: nothing is trainable, or there is no data set.

    Cost: one fit per data set. Data of equal shapes are served by the programs of the first;
        another shape is traced again (`Rows` and `Padded` keep one program for many lengths).

    Example:
        >>> import incrax, numpy as np
        >>> from incrax import fit
        >>> m = incrax.bind(lambda mu, x: 0.5 * ((x - mu) ** 2).sum(), mu=1.0, x=np.zeros(50), roles={"x": "data"})
        >>> rng = np.random.default_rng(0)
        >>> found = fit.toys(m, ({"x": rng.normal(1.0, 1.0, 50)} for _ in range(20)))
        >>> found.values.shape, bool(abs(found.pulls().mean()) < 1)
        ((20, 1), True)
    """
    check_model("toys(model)", model)
    if not isinstance(data_sets, Iterable) or isinstance(data_sets, (Mapping, str)):
        raise wrong_option(
            "toys(model, data_sets)", data_sets, "a list of mappings, or an iterator"
        )
    check_trainable(model, "toys")
    names = model.names
    start = model.flat().x0
    fits: list[tuple[Any, ...]] = []
    total = len(data_sets) if isinstance(data_sets, Sized) else 0
    with Meter("fitting data sets", total, is_shown=progress) as meter:
        for data in data_sets:
            if not isinstance(data, Mapping):
                raise wrong_option("toys(data_sets)", data, 'a mapping, `{"x": x}`, for each fit')
            with model.restored():
                model.set(data)
                found = minimize(model, progress=False, **options)
                is_minimum = found.is_converged and not found.is_saddle
                fits.append((found.values, found.errors, found.value, is_minimum))
            meter.advance()
    if not fits:
        raise BindError(
            "`toys(model, data_sets)` got no data set. This is usually a generator that was used "
            'up before. Nothing was fitted. Pass a list, or a new generator: `({"x": sample(k)} '
            "for k in range(100))`."
        )
    values, errors, minima, converged = map(np.array, zip(*fits, strict=True))
    return Toys(names, values, errors, minima, converged, start)
