"""`incrax report`: the page of a function, after a few calls in which one input after the other
changes.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import incrax
from incrax.cli import loading
from incrax.cli.usage import UsageError, add_json, check_output, show

TEXT = (
    "write a page on what a function computes, what runs again when an input changes, and what "
    "that costs"
)
STEP = 1e-3
"""Relative change of an input from call to call."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `incrax report`."""
    loading.add_arguments(parser)
    parser.add_argument(
        "--output", type=Path, default=Path("incrax-report.html"), help="the page (HTML)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=8,
        help="how often each real input is changed first (default: 8)",
    )
    parser.add_argument(
        "--grad", action="store_true", help="report on value and gradient by the first argument"
    )
    parser.add_argument(
        "--wrt",
        action="append",
        default=[],
        metavar="INPUT",
        help="report on value and gradient by this input",
    )
    add_json(parser, "what the page shows, as ")


def check_arguments(options: argparse.Namespace) -> None:
    """Refuse what cannot work before anything runs.

    Raises:
        UsageError: with one line that says what is wrong.
    """
    if options.rounds < 0:
        raise UsageError(f"--rounds {options.rounds} is negative; give a number of at least 0")
    check_output(options.output, "HTML", ".html", ".htm")


def run(options: argparse.Namespace) -> int:
    """Call the function and write its page."""
    check_arguments(options)
    function, start = loading.function_and_arguments(options)
    evaluate: Callable[..., Any]
    if isinstance(function, incrax.Bound):
        start, evaluate = _inputs_of(function, options)
    else:
        if options.grad or options.wrt:
            function = incrax.value_and_grad(function, wrt=tuple(options.wrt) or None)
        if not isinstance(function, incrax.Incremental):
            function = incrax.incremental(function)
        evaluate = function
    jax.block_until_ready(evaluate(*start))
    for changed in _changed(start, options.rounds):
        with contextlib.suppress(incrax.errors.InputValueError):
            jax.block_until_ready(evaluate(*changed))
    page = incrax.report(function)
    page.save(options.output)
    if options.json:
        show(page, options)
    else:
        print(f"{options.output}: {page.as_dict()['stats']['calls']} calls")
    return 0


def _inputs_of(
    model: incrax.Bound, options: argparse.Namespace
) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    """The inputs of a model, and what evaluates it at others, within their bounds."""
    if options.wrt:
        raise UsageError(
            f"{options.function} is a model, whose roles say what is trainable; give --grad for "
            "--wrt"
        )
    paths = tuple(model.roles)
    start = tuple(model[path] for path in paths)

    def evaluate(*inputs: Any) -> Any:
        triples = zip(paths, start, inputs, strict=True)
        with model.at({path: new for path, old, new in triples if new is not old}):
            return model.value_and_grad() if options.grad else model.value()

    return start, evaluate


def _is_real(x: Any) -> bool:
    is_array = isinstance(x, (jax.Array, np.ndarray, np.generic)) and x.dtype.kind != "O"
    return (is_array or isinstance(x, float)) and bool(
        jnp.issubdtype(jnp.result_type(x), jnp.floating)
    )


def _changed(arguments: tuple[Any, ...], rounds: int) -> Iterator[tuple[Any, ...]]:
    """The arguments with one real leaf after the other another one, some times each: data first,
    parameters last.
    """
    leaves, treedef = jax.tree.flatten(arguments)
    real = [index for index, leaf in enumerate(leaves) if _is_real(leaf)]
    for index in sorted(real, key=lambda index: -np.size(leaves[index])):
        leaf = leaves[index]
        for turn in range(rounds):
            changed = _stepped(leaf, turn + 1)
            yield jax.tree.unflatten(treedef, [*leaves[:index], changed, *leaves[index + 1 :]])


def _stepped(leaf: Any, turn: int) -> Any:
    """Another value of the same type, also of zeros and in low precision: by `turn` relative steps,
    from 0 absolute.
    """
    if isinstance(leaf, float):
        return leaf + STEP * turn * (abs(leaf) or 1.0)
    step = max(STEP, 8.0 * float(jnp.finfo(leaf.dtype).eps)) * turn
    library = jnp if isinstance(leaf, jax.Array) else np
    return (leaf + step * library.where(leaf == 0, 1, abs(leaf))).astype(leaf.dtype)
