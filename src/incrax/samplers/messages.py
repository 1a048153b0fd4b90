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


def other_arguments(caller: str, name: str) -> str:
    """A note: a function that cannot be called so."""
    return (
        f"`{caller}` calls `{name}` with all arguments that follow it, of which the first is sampled "
        "unless `wrt` says otherwise. A model of NumPyro takes its data alone: `found = "
        "samplers.from_numpyro(model, *data)` has a log-density and parameters. Nothing was sampled."
    )


def of_two_arguments() -> str:
    """A note: a kernel that wants more than it gets."""
    return (
        "`Kernel(make)` calls `make(log_density, step_size)`. Give a kernel of BlackJAX what else it "
        "needs: `lambda log_density, step_size: blackjax.nuts(log_density, step_size, jnp.ones(n))`, "
        f"with n the elements of the block or row. {_UNTOUCHED}"
    )
