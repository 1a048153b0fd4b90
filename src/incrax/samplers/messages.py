"""Errors about samplers, in the manner of `_messages`."""

from __future__ import annotations

from typing import Any

from incrax.errors import StartError

_UNTOUCHED = "Nothing was sampled."


def other_checkpoint(path: str) -> StartError:
    """A file of another chain."""
    return StartError(
        f"`{path}` is the checkpoint of another chain: of other inputs, blocks, widths or data, "
        f"another key, warm-up or number of chains. {_UNTOUCHED} Pass what the file was made "
        "with, or another file."
    )


def bad_start(value: Any) -> StartError:
    """A start of probability zero."""
    return StartError(
        f"The log-density at the start is {value}. This is usually a start outside of the support, "
        f"or data that hold NaN. {_UNTOUCHED} Start where it is finite, for example at a best fit."
    )


def wrong_number(option: str, value: Any, least: str = "one") -> ValueError:
    """A number of steps below the least."""
    return ValueError(f"`{option}` got {value!r}. {_UNTOUCHED} Pass {least} or more.")
