"""Errors about samplers, in the manner of `_messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from incrax._messages import listed
from incrax.errors import BlockError, PositionError, ProposalError, StartError

_UNTOUCHED = "Nothing was sampled."


def overlapping_blocks(names: Sequence[str]) -> BlockError:
    """Parameters in two blocks."""
    return BlockError(
        f"{listed(names)} belong to more than one block. {_UNTOUCHED} Name each parameter, or each "
        "element of a small array, in one block."
    )


def missing_in_blocks(names: Sequence[str]) -> BlockError:
    """Parameters in no block."""
    return BlockError(
        f"{listed(names)} belong to no block, so that they would never move. {_UNTOUCHED} Name "
        "them in a block, or leave them out of `wrt`: what is not selected stays fixed."
    )


def wrong_covariance(seen: str, num: int, reason: str) -> ProposalError:
    """A covariance that is none."""
    return ProposalError(
        f"`metropolis(covariance=...)` got {seen} for {num} parameters: {reason}. {_UNTOUCHED} "
        f"Pass variances of shape ({num},), or a symmetric matrix of shape ({num}, {num}) in the "
        "order of `names`: an earlier chain's, or the inverse of the Hessian at the best fit."
    )


def wrong_width(update: str, seen: str, names: Sequence[str]) -> ProposalError:
    """Widths of a proposal that do not fit its block."""
    return ProposalError(
        f"`{update}` got {seen} for the block of {listed(names)}. {_UNTOUCHED} Pass one positive "
        f"number, or one for each of its {len(names)} elements."
    )


def not_an_update(block: str, kind: str) -> TypeError:
    """What is none of the updates."""
    return TypeError(
        f"`gibbs(updates=...)` got {kind} for `{block}`. {_UNTOUCHED} Pass a `Walk`, a "
        "`Hamiltonian`, a `Kernel`, a `Conditional` or a `Categorical` for each block."
    )


def not_compiled(block: str, kind: str) -> TypeError:
    """An update that no compiled sweep can make."""
    return TypeError(
        f"`gibbs(updates=...)` got a {kind} for `{block}`, beside a block named by `[*]`, a "
        "`Categorical` or a `Kernel`: sweeps with such a block are one compiled program, in which "
        f"blocks move by `Walk`, `Hamiltonian`, `Kernel` or `Categorical`. {_UNTOUCHED} Pass one "
        "of these for it, or name the rows of the other block one by one."
    )


def wrong_candidates(seen: str) -> ProposalError:
    """Values of a discrete row that are none."""
    return ProposalError(
        f"`Categorical` got {seen}; a row must have two values or more to draw from. {_UNTOUCHED} "
        "Pass how many labels there are, or all values, such as [-1, 1]."
    )


def other_candidates(block: str, seen: str, expected: str) -> ProposalError:
    """Values that are no rows of their block."""
    return ProposalError(
        f"The `Categorical` of `{block}` has values of {seen}, where {expected}. {_UNTOUCHED} Pass "
        "values of the type and shape of one row."
    )


def not_enumerable(name: str, kind: str) -> ProposalError:
    """A discrete site of NumPyro without a list of values."""
    return ProposalError(
        f"The discrete site `{name}` is a {kind}, whose values cannot be listed. {_UNTOUCHED} "
        "Marginalise it, condition on it, or give it a distribution on finitely many numbers."
    )


def no_discrete_sites() -> ProposalError:
    """A kernel for discrete sites of a model that has none."""
    return ProposalError(
        f"`discrete_hmc_gibbs` got a model without discrete latent sites. {_UNTOUCHED} Give `MCMC` "
        "the inner kernel itself."
    )


def no_inner_model(kind: str) -> TypeError:
    """An inner kernel without a model."""
    return TypeError(
        f"`discrete_hmc_gibbs(inner_kernel)` got a {kind}; it must be the `HMC` or `NUTS` of a model. "
        f"{_UNTOUCHED} Pass `NUTS(model)`, not a `potential_fn`, in which there are no sites."
    )


def traced_arguments() -> ProposalError:
    """A model whose arguments are known to the program alone."""
    return ProposalError(
        "The kernel of `discrete_hmc_gibbs` needs values of the model's arguments, which "
        f"`MCMC(jit_model_args=True)` hides. {_UNTOUCHED} Leave `jit_model_args` out."
    )


def not_one_input(block: str, paths: Sequence[str]) -> BlockError:
    """A discrete block that is a part of an input, or several."""
    return BlockError(
        f"`{block}` stands for elements of {listed(paths)}; a `Categorical` draws the rows of one "
        f"whole input, each by itself. {_UNTOUCHED} Make each input a block of its own."
    )


def other_checkpoint(path: str) -> StartError:
    """A file of another chain."""
    return StartError(
        f"`{path}` is the checkpoint of another chain: of other inputs, blocks, widths or data, "
        f"another key, warm-up or number of chains. {_UNTOUCHED} Pass what the file was made "
        "with, or another file."
    )


def only_compiled(option: str, what: str, reason: str) -> ValueError:
    """A checkpoint, or devices, asked of a chain on the host."""
    return ValueError(
        f"Chains on the host have no {what}, and this one cannot be compiled: {reason}. "
        f"{_UNTOUCHED} Leave `{option}` out."
    )


def wrong_starts(path: str, seen: tuple[int, ...], expected: tuple[int, ...]) -> PositionError:
    """Starts of another number of chains, or of another shape."""
    return PositionError(
        f"`gibbs(starts=...)` got `{path}` of shape {seen}; expected {expected}, the chains along "
        f"the first axis. {_UNTOUCHED} Pass a start for each chain, in the shape of what is "
        "sampled."
    )


def unequal_rows(block: str, lengths: Mapping[str, int | None]) -> BlockError:
    """Inputs whose rows are to move together and do not match."""
    seen = ", ".join(
        f"`{path}` has {'no rows there' if num is None else f'{num} rows'}"
        for path, num in lengths.items()
    )
    return BlockError(
        f"Rows of `{block}` cannot move together: {seen}. {_UNTOUCHED} Name inputs with as many "
        "rows, each with `[*]`, or make them blocks of their own."
    )


def bad_start(value: Any) -> StartError:
    """A start of probability zero."""
    return StartError(
        f"The log-density at the start is {value}. This is usually a start outside of the support, "
        f"or data that hold NaN. {_UNTOUCHED} Start where it is finite, for example at a best fit."
    )


def not_a_scalar(seen: str) -> TypeError:
    """A log-density that is no number."""
    return TypeError(
        f"A log-density must return one real number; this one returns {seen}. {_UNTOUCHED} Sum "
        "over the events."
    )


def wrong_draw(block: Sequence[str], seen: str, expected: str) -> ProposalError:
    """A conditional draw of another shape."""
    return ProposalError(
        f"The `Conditional` of {listed(block)} returned {seen}; its block is {expected}. "
        f"{_UNTOUCHED} Return the "
        "block's new values in one vector, in the order in which the block names them."
    )


def wrong_oversample(value: Any) -> ValueError:
    """A power outside of its range."""
    return ValueError(
        f"`blocks(oversample=...)` got {value!r}; it must be between 0 (every parameter moves "
        "equally often) and 1 (every block takes as long). Nothing was measured."
    )


def wrong_number(option: str, value: Any, least: str = "one") -> ValueError:
    """A number of steps below the least."""
    return ValueError(f"`{option}` got {value!r}. {_UNTOUCHED} Pass {least} or more.")


def wrong_position(seen: str, expected: str) -> PositionError:
    """A position of another structure."""
    return PositionError(
        f"A log-density of positions of the structure {expected} got {seen}. This is usually a "
        "value for what is not sampled, which stays as it was when the log-density was made. "
        "Nothing was evaluated. Pass what `wrt` selects, None elsewhere."
    )
