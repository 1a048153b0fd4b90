"""Functions and example arguments that the command line names.

In: `module:name` or `file.py:name`. Out: the object. It must not know what it is for.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

import incrax
from incrax.cli.usage import UsageError

_MISSING = object()

WHERE = "`module:name`, or `file.py:name`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a function and its arguments."""
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help=f"the function, or a model made by bind, as {WHERE}",
    )
    parser.add_argument(
        "--example",
        metavar="MODULE:ARGS",
        help="its arguments: a tuple of them, a single one that is no tuple, or a function that returns these; "
        "a model has its own",
    )
    parser.add_argument("--x64", action="store_true", help="switch JAX to double precision first")


def function_and_arguments(
    options: argparse.Namespace,
) -> tuple[Callable[..., Any] | incrax.Bound, tuple[Any, ...]]:
    """What the options name; a model has no arguments.

    Raises:
        UsageError: it is not there, or no function; or arguments are missing, or there is no use
            for them.
    """
    if options.x64:
        jax.config.update("jax_enable_x64", True)
    function = load(options.function)
    if isinstance(function, incrax.Bound):
        if options.example is not None:
            raise UsageError(
                f"{options.function} is a model, which holds its inputs; leave --example out"
            )
        return function, ()
    if not callable(function):
        raise UsageError(f"{options.function} is a {type(function).__name__}, no function")
    if options.example is None:
        raise UsageError(
            f"{options.function} is a function; name its arguments by --example MODULE:ARGS"
        )
    example = load(options.example)
    if inspect.isroutine(example) or isinstance(example, functools.partial):
        example = example()
    return function, example if type(example) is tuple else (example,)


def load(place: str) -> Any:
    """The object at `module:name`, or `file.py:name`; a name may have dots.

    Raises:
        UsageError: there is no such module, file or name.
    """
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{place} does not say where: write it as {WHERE}")
    path = Path(where)
    if path.suffix == ".py" and not path.is_file():
        raise UsageError(f"there is no file {path}")
    found: Any = _file(path.resolve()) if path.suffix == ".py" else _module(where)
    for part in name.split("."):
        owner = found
        found = getattr(owner, part, _MISSING)
        if found is _MISSING:
            raise UsageError(f"{where} has no `{name}`{_similar(owner, part)}")
    return found


def _module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name} is no name of a module; a file is named with .py at its end")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"there is no module {name} here or among the installed ones; a file is named with .py"
        ) from None


@functools.cache  # a file that has function and arguments must not be run twice, or its classes are two
def _file(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _similar(found: Any, name: str) -> str:
    """A hint at names that are there."""
    public = [known for known in dir(found) if not known.startswith("_")]
    near = [known for known in public if known.lower() == name.lower()] or public[:8]
    return f"; it has {', '.join(near)}" if near else ""
