"""What profiles, scans and contours found.

In: grids and values. Out: results that plot themselves and go to and from JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from incrax._extras import needed
from incrax.fit import records
from incrax.fit.task import Counts, Work

S = TypeVar("S", bound="Profile | Scan2D | Contour")
LEVELS = (1.0, 4.0, 9.0)
"""Of plots: rises at one, two and three standard errors, in error definitions."""


@dataclass(frozen=True, eq=False)
class Profile:
    """The function along one element, minimised over the others. Made by `profile`."""

    name: str
    """Of the element."""
    names: tuple[str, ...]
    """Of all n free elements, in the order of `free`."""
    grid: np.ndarray
    """Values of the element, shape (k,)."""
    values: np.ndarray
    """Of the function, shape (k,)."""
    free: np.ndarray
    """All elements at each point, shape (k, n)."""
    is_converged: np.ndarray
    """Whether the minimum over the others was found, shape (k,)."""
    minimum: float
    """Of the function, where the profile started."""
    errordef: float
    """How far the function rises at one standard error."""
    counts: Counts
    """Evaluations on the way."""
    work: Work
    """What saved values avoided."""

    @property
    def rise(self) -> np.ndarray:
        """Values less the minimum, shape (k,); below zero where a better minimum was found."""
        return self.values - self.minimum

    def plot(self, axes: Any = None) -> Any:
        """Draw the rise, with lines at one, two and three standard errors; returns the matplotlib axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        axes = _new_axes() if axes is None else axes
        order = np.argsort(self.grid)
        axes.plot(self.grid[order], self.rise[order], ".-")
        for level in LEVELS:
            if level * self.errordef <= 1.2 * np.nanmax(self.rise, initial=self.errordef):
                axes.axhline(level * self.errordef, color="grey", lw=0.5)
        axes.set_xlabel(self.name)
        axes.set_ylabel("rise above the minimum")
        return axes

    def to_json(self) -> str:
        """Everything, as JSON."""
        return _to_json(self)

    @staticmethod
    def from_json(text: str) -> Profile:
        """What `to_json` wrote.

        Raises:
            MinimumError: the text is something else.
        """
        return _from_json(Profile, text)


@dataclass(frozen=True, eq=False)
class Scan2D:
    """The function over two elements, minimised over the others or not. Made by `scan2d`."""

    axes: tuple[str, str]
    """Names of the two."""
    names: tuple[str, ...]
    """Of all n free elements, in the order of `free`."""
    grids: tuple[np.ndarray, np.ndarray]
    """Values of the two, shapes (k,) and (l,)."""
    values: np.ndarray
    """Of the function, shape (k, l)."""
    free: np.ndarray
    """All elements at each point, shape (k, l, n)."""
    is_converged: np.ndarray
    """Whether the minimum over the others was found, shape (k, l)."""
    minimum: float
    """Of the function, where the scan started."""
    errordef: float
    """How far the function rises at one standard error."""
    counts: Counts
    """Evaluations on the way."""
    work: Work
    """What saved values avoided."""

    @property
    def rise(self) -> np.ndarray:
        """Values less the minimum, shape (k, l)."""
        return self.values - self.minimum

    def plot(self, axes: Any = None) -> Any:
        """Draw the rise as filled contours; returns the matplotlib axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        axes = _new_axes() if axes is None else axes
        filled = axes.contourf(*self.grids, self.rise.T, levels=20, cmap="viridis_r")
        levels = [level * self.errordef for level in LEVELS if level * self.errordef < np.nanmax(self.rise)]
        if levels:
            axes.contour(*self.grids, self.rise.T, levels=levels, colors="white", linewidths=0.7)
        axes.figure.colorbar(filled, ax=axes, label="rise above the minimum")
        axes.set_xlabel(self.axes[0])
        axes.set_ylabel(self.axes[1])
        return axes

    def to_json(self) -> str:
        """Everything, as JSON."""
        return _to_json(self)

    @staticmethod
    def from_json(text: str) -> Scan2D:
        """What `to_json` wrote.

        Raises:
            MinimumError: the text is something else.
        """
        return _from_json(Scan2D, text)


@dataclass(frozen=True, eq=False)
class Contour:
    """Where the function has risen to a confidence level of two elements. Made by `contour`."""

    axes: tuple[str, str]
    """Names of the two."""
    cl: float
    """The confidence level."""
    rise: float
    """Above the minimum, on the contour."""
    pieces: tuple[np.ndarray, ...]
    """Points, shape (m, 2) each; usually one closed piece."""
    counts: Counts
    """Evaluations on the way."""
    work: Work
    """What saved values avoided."""

    @property
    def points(self) -> np.ndarray:
        """The longest piece, shape (m, 2)."""
        return max(self.pieces, key=len)

    def plot(self, axes: Any = None) -> Any:
        """Draw the contour; returns the matplotlib axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        axes = _new_axes() if axes is None else axes
        for piece in self.pieces:
            axes.plot(*piece.T, color="C0")
        axes.set_title(f"confidence level {self.cl:g}")
        axes.set_xlabel(self.axes[0])
        axes.set_ylabel(self.axes[1])
        return axes

    def to_json(self) -> str:
        """Everything, as JSON."""
        return _to_json(self)

    @staticmethod
    def from_json(text: str) -> Contour:
        """What `to_json` wrote.

        Raises:
            MinimumError: the text is something else.
        """
        return _from_json(Contour, text)


def _new_axes() -> Any:
    return needed("matplotlib.pyplot", "plot", "fit").figure(layout="constrained").subplots()


# --- JSON -------------------------------------------------------------------------------------------------------------

_ARRAYS = ("grid", "values", "free")
_LISTS = ("grids", "pieces")
_READERS = {
    **dict.fromkeys(_ARRAYS, records.array),
    **dict.fromkeys(_LISTS, lambda x: tuple(records.array(each) for each in x)),
    **dict.fromkeys(("names", "axes"), tuple),
    "is_converged": lambda x: np.array(x, bool),
    "minimum": float,
    "counts": lambda x: Counts(**x),
    "work": lambda x: Work(**x),
}


def _to_json(found: Any) -> str:
    content = {each.name: getattr(found, each.name) for each in fields(found)}
    content |= {"counts": found.counts._asdict(), "work": found.work._asdict()}
    return records.to_json(type(found).__name__, content)


def _from_json(kind: type[S], text: str) -> S:
    content = records.from_json(kind.__name__, text)
    read = {each.name: _READERS.get(each.name, lambda x: x)(content[each.name]) for each in fields(kind)}
    return kind(**read)
