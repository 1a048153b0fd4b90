"""Arguments whose number of rows changes from call to call: padded to a capacity that doubles,
results cut again.

In: the arguments of a call. Out: the same with `Padded` in the place of some. It must not know what
is done with them.
"""

from __future__ import annotations

import inspect
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.dtypes
import numpy as np

from incrax.control_flow.loops.messages import no_ragged
from incrax.control_flow.loops.padded import Padded, capacity_for, is_traced, num_rows, padded

Lengths = dict[str | int, int]
"""Numbers of rows by argument."""


class RaggedArguments:
    """Which arguments of a function have a changing number of rows, by name or position, and
    capacities used so far.

    `caller` and `option` name the function of incrax and its option in messages.
    """

    def __init__(
        self, fun: Callable[..., Any], names: Sequence[str | int], caller: str, option: str
    ) -> None:
        self.names = tuple(names)
        self._caller = caller
        self._option = option
        self._arguments = _argument_names(fun)
        self._capacities: dict[str | int, list[int]] = {name: [] for name in names}
        self._lock = threading.Lock()

    def padded(self, args: Any, kwargs: Any) -> tuple[Any, Any, Lengths]:
        """The arguments with rows up to the least capacity known that they fit in, and the length
        of each.
        """
        return self._replaced(args, kwargs, self._with_room)

    def wrapped(self, args: Any, kwargs: Any) -> tuple[Any, Any, Lengths]:
        """The same without more rows."""
        return self._replaced(args, kwargs, _ragged)

    def _replaced(
        self, args: Any, kwargs: Any, replace: Callable[..., Padded]
    ) -> tuple[Any, Any, Lengths]:
        args = list(args)
        kwargs = dict(kwargs)
        lengths = {}
        for name in self.names:
            holder, key = self._place(name, args, kwargs)
            num = num_rows(self._caller, holder[key])
            if num is None:
                raise no_ragged(self._option, str(name))
            holder[key] = replace(name, holder[key], num)
            lengths[name] = num
        return tuple(args), kwargs, lengths

    def _place(self, name: str | int, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Where an argument is."""
        names = self._arguments
        number = names.index(name) if name in names else name
        if isinstance(number, int) and number < len(args):
            return args, number
        keyword = names[number] if isinstance(number, int) and number < len(names) else name
        if keyword not in kwargs:
            raise no_ragged(self._option, str(name))
        return kwargs, keyword

    def _with_room(self, name: str | int, tree: Any, num: int) -> Padded:
        known = self._capacities[name]
        with self._lock:
            at = bisect_left(known, num)
            if at == len(known):
                insort(known, capacity_for(num))
            capacity = known[at]
        values = jax.tree.map(lambda x: padded(x, capacity), tree)
        return _ragged(name, values, np.int32(num))


def _ragged(name: str | int, values: Any, num: Any) -> Padded:
    return Padded(values, num, is_checked=True, source=name)


def _argument_names(fun: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return []


def exact(results: Any, lengths: Lengths) -> Any:
    """Results, with each `Padded` of known length as the rows that count; a derivative has those of
    its argument.
    """
    return jax.tree.map(lambda x: _exact(x, lengths), results, is_leaf=_is_padded)


def _is_padded(x: Any) -> bool:
    return isinstance(x, Padded)


def _exact(x: Any, lengths: Lengths) -> Any:
    if not _is_padded(x) or is_traced(x.length) or np.ndim(x.length):
        return x
    if getattr(x.length, "dtype", None) != jax.dtypes.float0:
        return x.exact()
    return Padded(x.values, lengths[x.source]).exact() if x.source in lengths else x
