"""Where results of fits draw: on a user's axes, or those of a new figure."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from incrax._extras import needed

NUM_ABREAST = 6
"""Axes in a row of a figure."""


def axes_for(
    what: str, ax: Any, num: int, size: tuple[float, float], **options: Any
) -> tuple[Any, np.ndarray]:
    """The figure that `plot` returns, and its axes, shape (num,), in rows of `NUM_ABREAST`.

    Args:
        what: the method, for errors.
        ax: axes of matplotlib, or a sequence of as many as are drawn on; None: new ones.
        num: how many are drawn on.
        size: width and height of a new figure, inches.
        **options: of `Figure.subplots`.

    Raises:
        ValueError: another number of axes was given.
        MissingExtraError: matplotlib is not installed.
    """
    if ax is not None:
        axes = np.array(ax, object).ravel()
        if len(axes) != num:
            raise ValueError(
                f"`{what}(ax=...)` got {len(axes)} axes, and draws on {num}. Nothing was drawn. "
                f"Pass those of `figure, ax = matplotlib.pyplot.subplots(1, {num})`, or none."
            )
        return axes[0].figure, axes
    pyplot = needed("matplotlib.pyplot", what, "fit")
    figure = pyplot.figure(figsize=size, layout="constrained")
    if "inline" in pyplot.get_backend():
        # A notebook shows the value of a cell's last line, and at the end of the cell all figures
        # that are open: it would show this one twice.
        figure._repr_mimebundle_ = functools.partial(_closed, pyplot.close, figure)
    columns = min(num, NUM_ABREAST)
    axes = np.array(figure.subplots(-(-num // columns), columns, **options), object).ravel()
    for spare in axes[num:]:
        spare.remove()
    return figure, axes[:num]


def _closed(close: Any, figure: Any, **formats: Any) -> dict[str, Any]:
    """Asked by a notebook for what it shows of a figure, beside the picture."""
    close(figure)
    return {}
