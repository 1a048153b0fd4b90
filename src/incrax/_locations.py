"""Where in the user's code something happened: file and line, and the expression.

In: frames, or what JAX says of an equation. Out: strings. It must not know about tracers.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import site
import sys
import sysconfig
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

import jax
import numpy as np

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path(n) for n in ("stdlib", "platstdlib")}
)
_INSTALLED = tuple(
    {os.path.dirname(os.path.dirname(module.__file__ or "")) + os.sep for module in (jax, np)}
    | {path + os.sep for path in site.getsitepackages()}
    | {sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")}
)
_OURS = (_HERE + os.sep,)
NO_VALUE = (
    *(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError),
    *(jax.errors.TracerIntegerConversionError, jax.errors.NonConcreteBooleanIndexError),
)
"""Errors of JAX where Python needs a value and there is none."""

MAX_SHOWN = 60
"""Characters of an expression in a report."""


class Place(NamedTuple):
    """A place in the user's code: `file:line`, and the expression there."""

    where: str
    expression: str


@functools.lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    """Whether a file is of Python, of an installed package, or of incrax, and not of the user."""
    path = os.path.realpath(filename)
    return path.startswith(_STANDARD + _INSTALLED + _OURS) or filename.startswith("<frozen")


def defining_file(cls: type) -> str | None:
    """The file that defines a class; None for built-in ones."""
    for member in vars(cls).values():
        if isinstance(member, FunctionType) and member.__module__ == cls.__module__:
            return member.__code__.co_filename
    import_name = cls.__module__
    module = sys.modules.get(import_name)
    return getattr(module, "__file__", None) or ("<main>" if import_name == "__main__" else None)


def is_own_module(module: ModuleType) -> bool:
    """Whether a module is of the user: by its file, or made by a program, or what a notebook
    runs.
    """
    file = getattr(module, "__file__", None)
    return not is_installed(file) if file else getattr(module, "__spec__", None) is None


def is_of_user(frame: FrameType) -> bool:
    """Whether a frame runs the user's code; generated code belongs to the module that it runs
    in.
    """
    filename = frame.f_code.co_filename
    if filename.startswith("<"):
        module = frame.f_globals.get("__name__", "")
        filename = frame.f_globals.get("__file__") or filename
        if module.startswith("namedtuple_"):
            return False
    return not is_installed(filename)


def place_of(frame: FrameType | None) -> Place:
    """The place of the user's code that the calls from `frame` outwards come from."""
    while frame is not None and not is_of_user(frame):
        frame = frame.f_back
    return (
        Place("unknown place", "")
        if frame is None
        else _place(frame, frame.f_lasti, frame.f_lineno)
    )


def _place(frame: FrameType, last: int, line: int) -> Place:
    """The place of the instruction of a frame that runs."""
    span = _span(frame.f_code, last, line)
    return Place(f"{os.path.basename(frame.f_code.co_filename)}:{span[0]}", _source(frame, span))


def is_asked_by_jax(frame: FrameType | None) -> bool:
    """Whether a function of JAX asked for a text, itself or through `__repr__` of what holds the
    value.
    """
    while frame is not None and _passes_text_on(frame):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("jax.")


def _passes_text_on(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    is_passing = module in ("dataclasses", "reprlib", "functools") or module.startswith(
        ("incrax.control_flow.tapes.", "incrax._locations")
    )
    return is_passing or frame.f_code.co_name in ("__repr__", "__str__", "__format__")


Span = tuple[int, int, int, int]


def _span(code: CodeType, last: int, line: int) -> Span:
    """First line, last line, first column, end column of the instruction that runs."""
    first, end, column, end_column = list(code.co_positions())[last // 2]
    first = line if first is None else first
    return first, first if end is None else end, column or 0, end_column or 0


def _source(frame: FrameType, span: Span) -> str:
    """The text of an expression on one line, shortened."""
    first, end, column, end_column = span
    lines = [
        linecache.getline(frame.f_code.co_filename, n, frame.f_globals)
        for n in range(first, end + 1)
    ]
    if not any(lines):
        return ""
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][:end_column] if end_column else encoded[-1]
    encoded[0] = encoded[0][column:]
    return shortened(b" ".join(encoded).decode(errors="replace"))


def shortened(text: str) -> str:
    """A text on one line of a report."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def place_of_error(error: BaseException) -> str:
    """The innermost place of the user's code in an error's traceback."""
    found = None
    step = error.__traceback__
    while step is not None:
        if is_of_user(step.tb_frame):
            found = step
        step = step.tb_next
    if found is None:
        return "an unknown place"
    return ": ".join(filter(None, _place(found.tb_frame, found.tb_lasti, found.tb_lineno)))


def caller() -> FrameType | None:
    """The frame that called the function which asks."""
    return sys._getframe(2)


# --- lines that JAX tells -------------------------------------------------------------------------

_SOURCE = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(?::\d+)? \((?P<function>.*)\)$")


class SourceLine(NamedTuple):
    """File, line and function; empty where nobody knows."""

    file: str
    line: str
    function: str

    @property
    def file_name(self) -> str:
        """The file without its folders."""
        return re.split(r"[/\\]", self.file)[-1]


def source_of(text: str) -> SourceLine:
    """The parts of a source line."""
    found = _SOURCE.match(text)
    return SourceLine("", "", "") if found is None else SourceLine(**found.groupdict())
