"""Errors about samplers, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from incrax._messages import listed
from incrax.errors import ProposalError, StartError

_UNTOUCHED = "Nothing was sampled."


def wrong_covariance(seen: str, num: int, reason: str) -> ProposalError:
    """A covariance that is none."""
    return ProposalError(
        f"`metropolis(covariance=...)` got {seen} for {num} parameters: {reason}. {_UNTOUCHED} "
        f"Pass variances of shape ({num},), or a symmetric matrix of shape ({num}, {num}) in the "
        "order of `names`: an earlier chain's, or the inverse of the Hessian at the best fit."
    )


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


def wrong_draw(block: Sequence[str], seen: str, expected: str) -> ProposalError:
    """A conditional draw of another shape."""
    return ProposalError(
        f"The `Conditional` of {listed(block)} returned {seen}; its block is {expected}. "
        f"{_UNTOUCHED} Return the "
        "block's new values in one vector, in the order in which the block names them."
    )


def wrong_number(option: str, value: Any, least: str = "one") -> ValueError:
    """A number of steps below the least."""
    return ValueError(f"`{option}` got {value!r}. {_UNTOUCHED} Pass {least} or more.")
