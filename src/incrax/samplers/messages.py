"""Errors about samplers, in the manner of `_messages`."""

from __future__ import annotations

from typing import Any

from incrax.errors import StartError

_UNTOUCHED = "Nothing was sampled."


def other_checkpoint(path: str) -> StartError:
    """A file that is not of this chain."""
    return StartError(
        f"`{path}` is no checkpoint of this chain: it is of other inputs, blocks, widths or data, "
        f"another key, warm-up or number of chains, of more sweeps, or something else. "
        f"{_UNTOUCHED} Pass what the file was made with, or another file."
    )


def bad_start(value: Any) -> StartError:
    """A start of probability zero."""
    return StartError(
        f"The log-density at the start is {value}. This is usually a start outside of the support, "
        f"or data that hold NaN. {_UNTOUCHED} Start where it is finite, for example at a best fit."
    )
