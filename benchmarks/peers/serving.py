"""The side of a peer: a process that prepares cases, is asked for values, and times its own calls
on request.

Requests and replies are JSON, one object a line, on the standard streams, so that two libraries in
two environments can take turns. This file needs nothing but NumPy. What a library prints goes to
the error stream.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np


class Case(NamedTuple):
    """One form: `call(number)` evaluates at the argument of that number and waits; `read(result)`
    gives its figures.
    """

    call: Callable[[int], Any]
    read: Callable[[Any], Sequence[float]]


Maker = Callable[[Path], Case]


def serve(makers: Mapping[str, Maker], packages: Sequence[str], **versions: str) -> None:
    """Answer requests until the stream ends; the problems lie in the folder that is the first
    argument.

    `versions` are those that a library tells of itself, beside those of the packages.
    """
    replies, folder = _own_stream(), Path(sys.argv[1])
    found = {
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
        **versions,
    }
    _reply(replies, {"cases": list(makers), "versions": found})
    case: Case | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                case = makers[request["case"]](folder)
                _reply(replies, {"done": True})
            else:
                assert case is not None
                _reply(replies, _answer(case, request))
        except Exception as error:  # whatever a library raises is for the other side to tell
            traceback.print_exc()
            _reply(replies, {"error": f"{type(error).__name__}: {error}"})


def _version(name: str) -> str:
    """Of an installed package, or of a module that only lies on the path."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(vars(sys.modules[name]).get("__version__", "unknown"))


def _answer(case: Case, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "read":
        return {
            "values": np.asarray(case.read(case.call(request["number"])), float).ravel().tolist()
        }
    seconds = []
    for number in range(request["first"], request["first"] + request["calls"]):
        begin = time.perf_counter()
        case.call(number)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": seconds}


def _own_stream() -> TextIO:
    """The stream of replies; what anything else prints, from C as well, goes to the error
    stream.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def _reply(replies: TextIO, value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


# --- arguments that all sides share ---------------------------------------------------------------

STEP = 1e-4


def moved(value: float, number: int) -> float:
    """The value that changes, a little further at every number."""
    return value * (1.0 + STEP * (number % 1000 + 1))
