"""What a function computes and moves: FLOPs, transcendentals and bytes by the rules of
`primitives`, as one report.

In: a function, with arrays or types. Out: a `CostReport`. A program of each pass is traced and
made a tree of regions; each equation is priced once and counts as often as the regions around it
run.
"""

from __future__ import annotations

import functools
import math
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from incrax import _jax
from incrax._incremental import Incremental
from incrax._jax import Equation
from incrax._locations import NO_VALUE, place_of_error
from incrax._messages import wrong_option
from incrax._names import names_in
from incrax._program import Program, Values, trace, trace_with_tree
from incrax._table import Cell, Printable, Table, number_text
from incrax.derivatives.cuts import Mark, is_mark, without_marks
from incrax.derivatives.selection import select
from incrax.engine.inputs.frames import Frame, Hole, framed
from incrax.engine.inputs.leaves import check_dynamic, is_dynamic
from incrax.engine.inputs.paths import paths_mask
from incrax.engine.inputs.rows import as_plain
from incrax.engine.inputs.signature import argument_names, leaf_path
from incrax.engine.program.cost import ZERO, Cost, leaf_cost
from incrax.engine.program.dependence import ALWAYS, MAX_LEAF_ELEMENTS, depend, make_layout
from incrax.engine.program.nested import is_counted
from incrax.errors import CostError, PythonBranchError, SelectionError, UnknownInputError
from incrax.inspection.regions import Node, Region, regions_of, run
from incrax.models.bound import Bound

PASSES = ("forward", "backward")
NUM_LISTED = 15

_REMOVED = {
    "hvp": "count the product itself, "
    "`cost(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1], x, v)`",
    "both": "count each side by itself, or those that run by 'taken'",
}
"""Words of version 0.1 that went, and what to do instead."""

UserRule = Callable[
    [Sequence[jax.ShapeDtypeStruct], Sequence[jax.ShapeDtypeStruct], Mapping[str, Any]], float
]
"""FLOPs of an equation from the types of its inputs and results and its parameters."""


def cost(
    fun: Callable[..., Any],
    *args: Any,
    changing: str | Iterable[str] | None = None,
    wrt: Any = None,
    has_aux: bool = False,
    passes: str | Iterable[str] = PASSES,
    trips: Literal["measured"] | None = None,
    branches: Literal["max", "taken"] = "max",
    rules: Mapping[str, UserRule] | None = None,
    **kwargs: Any,
) -> CostReport:
    """What a function costs: FLOPs, transcendentals and bytes, forward and backward.

    The function is traced and its equations are counted; nothing is evaluated unless
    `trips="measured"` or `branches="taken"` asks for a run. Dead code is left out, equal equations
    count once, loops count each turn. Primitives that nobody registered are named, never taken for
    nothing.

    Args:
        fun: function of pytrees: plain, jitted, or incremental.
        *args: arguments, arrays of any shapes or `jax.ShapeDtypeStruct`.
        changing: names of inputs that change, as `explain()` and `deps()` print them (`"mu"`,
            `"params['s']"`, `"theta[3]"`), or one name: the report then says what runs again from
            what the engine avoids, which has what is invariant in front of its loop. Cotangents
            change always.
        wrt: what the backward pass differentiates, as in `incrax.grad`; by default the first
            argument.
        has_aux: whether `fun` returns a pair whose second part has no derivative.
        passes: `"forward"`, `"backward"`, or both; the first always counts.
        trips: turns of loops whose number depends on values: `"measured"` by a run, or None: one
            turn is counted, and the report says so.
        branches: `"max"`, the most expensive one, or `"taken"`, those that a run takes.
        rules: FLOPs of primitives that are not registered: functions of the types of the inputs and
            of the results, and of the parameters of one equation.
        **kwargs: further arguments.

    Returns:
        A `CostReport`. The backward pass is value and gradient (or value and pullback, where the
        result is not one real number) without the forward pass. A multiply-add is two FLOPs; the
        page on costs has all conventions.

    Raises:
        CostError: an option has a value that it does not take; a run is asked for and an argument
            has no values, or the function has effects; the function needs a traced value in Python.
        SelectionError, UnknownInputError: `wrt` or `changing` names what is not there.
        UnsupportedLeafError: an argument is an array that JAX has no type for.
        TypeError: it is no function.

    Cost: two traces. A run that counts takes some tens of microseconds for each turn of a loop
        whose number of turns depends on values.

    Not handled: what XLA makes of the program (fusion, its own simplifications), seconds and
        memory, which `report` estimates; work on the host; static arguments of `jax.jit` that are
        numbers (use a `lambda`).

    Source: conventions as in Golub and Van Loan; loops, dead code and unregistered primitives are
        the caveats of TensorFlow's profiler.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> a = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> report = incrax.cost(lambda a, b: a @ b, a, a, wrt=(0, 1))
        >>> report.forward.total.flops == 2 * 64**3, report.ratio
        (True, 2.0)
    """
    passes = names_in("cost(passes=...)", passes)
    for each in passes:
        _check_word("passes", each, PASSES)
    _check_word("trips", trips, ("measured", None))
    _check_word("branches", branches, ("max", "taken"))
    rules = {} if rules is None else rules
    if not isinstance(rules, Mapping) or not all(map(callable, rules.values())):
        raise wrong_option("cost(rules=...)", rules, "a mapping of primitives to functions")
    args, kwargs = as_plain((args, kwargs))
    call = call_of(fun, args, kwargs, has_aux=has_aux)
    value, results = forward(call)
    if trips == "measured":
        _check_run("trips='measured'", call, value)
    if branches == "taken":
        _check_run("branches='taken'", call, value)
    changed = None if changing is None else names_in("cost(changing=...)", changing)
    counting = _Counting(call, changed, trips, branches, rules)
    rows = {"forward": counting.rows(value)}
    notes = []
    if "backward" in passes:
        try:
            numbers = call.differentiated(wrt, args, kwargs)
            rows["backward"] = counting.rows(gradient(call, numbers, results))
        except (TypeError, ValueError, NotImplementedError, UnknownInputError) as error:
            if wrt is not None and isinstance(error, (SelectionError, UnknownInputError)):
                raise
            reason = next(iter(str(error).splitlines()), "")
            notes.append(f"No backward pass: {type(error).__name__}: {reason}")
    found = tuple(_passes(**rows))
    return CostReport(call.name, found, changed, (*_notes(found), *notes))


def _check_word(option: str, seen: object, words: Sequence[object]) -> None:
    if seen in words:
        return
    went = _REMOVED.get(str(seen), "")
    if option == "trips" and isinstance(seen, int):
        went = "`report.forward.loops` has what one turn costs, to be multiplied"
    hint = f" That went with version 0.2: {went}." if went else ""
    raise CostError(
        f"`cost({option}=...)` got {seen!r}; use {' or '.join(map(repr, words))}. Nothing was "
        f"evaluated.{hint}"
    )


# --- a call and its programs ----------------------------------------------------------------------


class Call(NamedTuple):
    """A function with arguments."""

    fun: Callable[..., Any]  # for JAX to trace
    name: str
    frame: Frame  # the arguments, but for
    values: Values  # arrays and types (`jax.ShapeDtypeStruct`),
    paths: tuple[str, ...]  # which have these names
    has_aux: bool  # whether its result is a pair whose second part is passed on

    def result(self, values: Values) -> tuple[list[Any], list[Any]]:
        """Leaves of the result that have a derivative, at other values, and all others."""
        args, kwargs = self.frame.filled(values)
        found = self.fun(*args, **kwargs)
        main, rest = found if self.has_aux else (found, ())
        leaves = jax.tree.leaves(main)
        is_smooth = [jnp.issubdtype(jax.dtypes.result_type(x), jnp.inexact) for x in leaves]
        others = compress(leaves, [not flag for flag in is_smooth])
        return [*map(jnp.asarray, compress(leaves, is_smooth))], [*others, *jax.tree.leaves(rest)]

    def differentiated(self, wrt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Which of the values `wrt` stands for.

        Raises:
            SelectionError: `wrt` selects nothing that has a derivative.
            UnknownInputError: a path names nothing.
        """
        args, kwargs = jax.tree.map(_stand_in, (args, kwargs), is_leaf=is_mark)
        selection = select("cost", self.fun, wrt, args, kwargs)
        places = [number for number, leaf in enumerate(self.frame.leaves) if leaf is Hole]
        return [places.index(number) for number in selection.numbers]


def call_of(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_aux: bool) -> Call:
    """A function with its arguments.

    Raises:
        UnsupportedLeafError: an argument is an array without JAX type.
        TypeError: it is no function.
    """
    if isinstance(getattr(fun, "__self__", fun), Bound):
        raise TypeError(
            "`cost(f)` got a bound model; it must be a function with its arguments. Nothing was "
            'evaluated. Pass what was bound: `cost(f, model["params"], model["x"])`.'
        )
    if not callable(fun):
        raise TypeError(
            f"`cost(f)` got {fun!r} of type {type(fun).__name__}; it must be a function."
        )
    name = getattr(fun, "__name__", type(fun).__name__)
    with_paths, treedef = jax.tree.flatten_with_path((args, kwargs), is_leaf=is_mark)
    names = argument_names(fun, len(args))
    leaves = [without_marks(leaf) for _, leaf in with_paths]
    is_value = [isinstance(leaf, jax.ShapeDtypeStruct) or is_dynamic(leaf) for leaf in leaves]
    frame, values = framed(treedef, leaves, is_value)
    paths = tuple(leaf_path(names, path) for path, _ in compress(with_paths, is_value))
    for path, value in zip(paths, values, strict=True):
        check_dynamic(value, path)
    return Call(_plain_function(fun), name, frame, values, paths, has_aux)


def _plain_function(fun: Any) -> Any:
    """The function that an engine evaluates."""
    if isinstance(fun, types.MethodType) and isinstance(fun.__func__, Incremental):
        return functools.partial(_plain_function(fun.__func__), fun.__self__)
    return _plain_function(fun.__wrapped__) if isinstance(fun, Incremental) else fun


def _stand_in(leaf: Any) -> Any:
    """An array without memory for a type, so that it can be selected."""
    is_type = isinstance(leaf, jax.ShapeDtypeStruct) and not isinstance(leaf, Mark)
    if not is_type or _jax.is_key_dtype(leaf.dtype):
        return leaf
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)


def forward(call: Call) -> tuple[Program, Sequence[Any]]:
    """The program of the value, and types of the results that have a derivative.

    Raises:
        CostError: Python or NumPy needs a traced value.
    """
    try:
        program, tree = trace_with_tree(lambda *values: call.result(values), *call.values)
    except (*NO_VALUE, PythonBranchError) as error:
        cause = error.__cause__ if isinstance(error, PythonBranchError) else None
        raise CostError(
            f"`cost({call.name})` found that Python needs a traced value: "
            f"{place_of_error(cause or error)}. This is usually an `if` on it, or a function of "
            "`numpy` where that of `jax.numpy` is meant. What runs depends on values, and there is "
            "no one program to count. Nothing was evaluated. Write `jax.lax.cond`, or fix the "
            f"argument: `cost(lambda x: {call.name}(x, flag=True), x)`."
        ) from error
    return program, [atom.aval for atom in program.outvars[: tree.children()[0].num_leaves]]


def gradient(call: Call, numbers: Sequence[int], results: Sequence[Any]) -> Program:
    """Value and gradient together; for anything but one real number, value and pullback of a
    cotangent.

    Raises:
        ValueError: no result has a derivative.
    """
    if not results:
        raise ValueError("no result is a floating-point number.")
    (first, *others) = results
    is_scalar = not others and not first.shape and jnp.issubdtype(first.dtype, jnp.floating)
    cotangents = () if is_scalar else [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results]
    num = len(call.values)

    def evaluate(*inputs):
        def of_selected(*selected):
            replaced = dict(enumerate(inputs[:num])) | dict(zip(numbers, selected, strict=True))
            return call.result(list(replaced.values()))

        at = [jnp.asarray(inputs[number]) for number in numbers]
        outs, pullback, others = jax.vjp(of_selected, *at, has_aux=True)
        return outs, others, pullback(list(inputs[num:]) or [jnp.ones_like(x) for x in outs])

    return trace(evaluate, *call.values, *cotangents)


def _check_run(option: str, call: Call, program: Program) -> None:
    """Check that a function can be run.

    Raises:
        CostError: an argument has no values, or the function has effects.
    """
    for path, value in zip(call.paths, call.values, strict=True):
        if isinstance(value, jax.ShapeDtypeStruct):
            raise CostError(
                f"`cost({option})` runs the function, and `{path}` is a type without values. "
                f"Nothing was evaluated. Pass an array, or leave {option} out."
            )
    effects = sorted({str(effect) for eqn in program.eqns for effect in eqn.effects})
    if effects:
        raise CostError(
            f"`cost({option})` runs the function, and it has effects: {', '.join(effects)}. This "
            "is usually a print or a callback, which would be repeated with each run. Nothing was "
            f"evaluated. Take it out, or leave {option} out."
        )


# --- rows of the report ---------------------------------------------------------------------------


class EquationCost(NamedTuple):
    """Equations that are alike."""

    primitive: str
    source: str  # `file:line (function)` of the user's code, "" if unknown
    inputs: tuple[str, ...]  # their types
    results: tuple[str, ...]
    inside: str  # loops, branches and calls around
    each: Cost  # of one evaluation
    times: float  # evaluations, equations and turns multiplied
    is_known: bool  # whether the turns of all loops around are
    is_counted: bool  # whether the primitive is registered, so that its work is known
    runs_again: bool | None  # whether a change reaches it; None: no change was named

    @property
    def total(self) -> Cost:
        """The cost of all evaluations."""
        return self.each * self.times


class LoopCost(NamedTuple):
    """A loop."""

    primitive: str
    source: str
    inside: str  # loops, branches and calls around
    turns: float  # of one evaluation
    known_from: str  # "static", "measured", or "unknown": then one turn is counted
    turn: Cost  # of one, the condition included


@dataclass(frozen=True)
class PassCost:
    """The cost of one pass.

    Fields: `"forward"` or `"backward"`; its equations, those that are alike in one row (of a
    backward pass what value and gradient have together and the forward pass has not, so that a row
    may be negative where a derivative rule replaces the forward pass); its loops (of a backward
    pass those of value and gradient that are not the forward pass's).
    """

    name: str
    equations: tuple[EquationCost, ...]
    loops: tuple[LoopCost, ...]

    @property
    def total(self) -> Cost:
        """The cost of the whole pass."""
        return _summed(self.equations)

    @property
    def again(self) -> Cost:
        """The cost of what the named change reaches."""
        return _summed(row for row in self.equations if row.runs_again)

    @property
    def avoided(self) -> Cost:
        """The cost of what it leaves alone."""
        return _summed(row for row in self.equations if not row.runs_again)


def _summed(rows: Iterable[EquationCost]) -> Cost:
    return sum((row.total for row in rows), ZERO)


def _merged(
    rows: Iterable[EquationCost], others: Iterable[EquationCost] = ()
) -> tuple[EquationCost, ...]:
    """One row for all that are alike, without those of another program; what only that one has is
    negative.
    """
    times: Counter[EquationCost] = Counter()
    for sign, each in ((1, rows), (-1, others)):
        for row in each:
            times[row._replace(times=0.0)] += sign * row.times  # type: ignore[assignment]
    return tuple(row._replace(times=number) for row, number in times.items() if number)


# --- counting -------------------------------------------------------------------------------------


class PassRows(NamedTuple):
    """Of a program."""

    equations: list[EquationCost]
    loops: list[LoopCost]


@dataclass
class _Counting:
    """A call, and what was asked of it (see `cost`)."""

    call: Call
    changing: tuple[str, ...] | None
    trips: str | None
    branches: str
    rules: Mapping[str, UserRule]
    _costs: dict[Region, Cost] = field(default_factory=dict)

    def rows(self, traced: Program) -> PassRows:
        """Count a program; runs it only where how often something runs is to be measured."""
        root = regions_of(traced, is_hoisted=self.changing is not None)
        is_run = self.trips == "measured" or self.branches == "taken"
        if is_run and any(node.is_open for node in root.nodes):
            run(root, self._inputs(root.program))
        rows = [*self._all_rows(root)]
        return PassRows(
            [row for row in rows if isinstance(row, EquationCost)],
            [row for row in rows if isinstance(row, LoopCost)],
        )

    def _all_rows(self, root: Region) -> Iterator[EquationCost | LoopCost]:
        for node, again in zip(root.nodes, self._reached(root), strict=True):
            yield from self._rows(node, root, _TOP._replace(runs_again=again))

    def _inputs(self, program: Program) -> list[Any]:
        """Values for the inputs of a program: those of the call, and ones for cotangents."""
        values = self.call.values
        further = [var.aval for var in program.invars[len(values) :]]
        return [*values, *(jnp.ones(aval.shape, aval.dtype) for aval in further)]

    def _reached(self, root: Region) -> list[bool | None]:
        """Whether the change reaches each equation; what is no argument changes always."""
        if self.changing is None:
            return [None] * len(root.nodes)
        layout = make_layout([var.aval for var in root.program.invars], MAX_LEAF_ELEMENTS)
        mask = ALWAYS | paths_mask(self.call.paths, layout, self.changing)
        for number in range(len(self.call.values), len(root.program.invars)):
            mask |= layout.leaf_mask(number)
        dependence = depend(root.program, layout)
        return [bool(dependence.of_equation(node.eqn) & mask) for node in root.nodes]

    # --- an equation and what is inside ---

    def _cost(self, region: Region) -> Cost:
        """The cost of a region, evaluated once."""
        if region not in self._costs:
            rows = (row for node in region.nodes for row in self._rows(node, region, _TOP))
            self._costs[region] = _summed(row for row in rows if isinstance(row, EquationCost))
        return self._costs[region]

    def _rows(
        self, node: Node, region: Region, around: EquationCost
    ) -> Iterator[EquationCost | LoopCost]:
        """The rows of an equation of a region, and of all inside, which counts unless a rule of the
        user's does. `around` says where it stands; the line there serves where it has none of its
        own.
        """
        eqn = node.eqn
        name = node.name
        source = _jax.source_line(eqn) or around.source
        is_registered = is_counted(eqn)
        is_opened = bool(node.regions) and (is_registered or name not in self.rules)
        if not is_opened or not is_registered:
            each, is_known = self._leaf(eqn)
            yield around._replace(
                primitive=name,
                source=source,
                inputs=tuple(atom.aval.str_short() for atom in eqn.invars),
                results=tuple(var.aval.str_short() for var in eqn.outvars),
                each=each,
                is_counted=is_known,
            )
        if not is_opened:
            return
        if node.regions[0].kind == "turn":
            turn = sum(map(self._cost, node.regions), ZERO)
            times = self._times(node, node.regions[0], region)
            yield LoopCost(name, source, around.inside, *times, turn)
        for inner in node.regions:
            times, known_from = self._times(node, inner, region)
            title = _title(node, inner, times, known_from)
            inside = around._replace(
                inside=f"{around.inside} > {title}" if around.inside else title,
                times=around.times * times,
                is_known=around.is_known and known_from != "unknown",
                source=source,
            )
            for each in inner.nodes if times else ():
                yield from self._rows(each, inner, inside)

    def _leaf(self, eqn: Equation) -> tuple[Cost, bool]:
        """The cost of an equation without what is inside, and whether its work is counted.

        Raises:
            CostError: a rule of the user's gives no number.
        """
        known = leaf_cost(eqn)
        rule = self.rules.get(eqn.primitive.name)
        if is_counted(eqn) or rule is None:
            return known, is_counted(eqn)
        typed = lambda atoms: [
            jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms
        ]
        found = rule(typed(eqn.invars), typed(eqn.outvars), eqn.params)
        if not isinstance(found, (int, float, np.number)) or not 0 <= found < math.inf:
            raise CostError(
                f"The rule for `{eqn.primitive.name}` in `cost(rules=...)` gave {found!r}; it must "
                "give a number of FLOPs, not negative, from the types of the inputs, those of the "
                "results and the parameters of one equation. Nothing was counted."
            )
        return known._replace(flops=float(found)), True

    def _times(self, node: Node, region: Region, around: Region) -> tuple[float, str]:
        """How often a region runs for each time that the one around it does, and where that number
        is from.
        """
        if region.times is not None:
            return region.times, "static"
        is_branch = region.kind == "branch"
        if around.runs and (not is_branch or self.branches == "taken"):
            return region.runs / around.runs, "measured"
        if is_branch:
            dearest = max(node.regions, key=lambda each: self._cost(each).weight)
            return float(region is dearest), "static"
        return 1.0, "unknown"


_TOP = EquationCost("", "", (), (), "", ZERO, 1.0, is_known=True, is_counted=True, runs_again=None)
"""What is known of all equations of a program before it is read: they stand in nothing."""


def _title(node: Node, region: Region, turns: float, known_from: str) -> str:
    """A region as rows inside it show it."""
    if region.kind == "branch":
        return f"branch {node.regions.index(region)} of {len(node.regions)}"
    if region.kind == "call":
        return node.name
    shown = "?" if known_from == "unknown" else f"{turns:g}"
    return f"{node.name}{' condition' * (region.kind == 'condition')} x {shown}"


def _passes(forward: PassRows, backward: PassRows | None = None) -> Iterator[PassCost]:
    """The rows of the value; of the backward pass what value and gradient have, and the value alone
    has not.
    """
    yield PassCost("forward", _merged(forward.equations), tuple(forward.loops))
    if backward is not None:
        loops = Counter(backward.loops) - Counter(forward.loops)
        rows = _merged(backward.equations, forward.equations)
        yield PassCost("backward", rows, tuple(loops.elements()))


def _notes(passes: Sequence[PassCost]) -> Iterator[str]:
    if any(not row.is_counted for each in passes for row in each.equations):
        yield "Some primitives are not registered: the totals lack their work. Pass `rules=`."
    if any(loop.known_from == "unknown" for each in passes for loop in each.loops):
        yield 'Some loops have unknown trips: one turn of each is counted. Pass `trips="measured"`.'
    if min(passes[-1].total) < 0:
        yield (
            "Figures of the backward pass below zero: value and gradient together do less of "
            "something than the value alone, as where a rule replaces the function."
        )


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class CostReport(Printable):
    """The cost of a function; made by `incrax.cost`.

    Fields:
        name: the function's name.
        passes: those that were counted, the value first.
        changing: the inputs that change; None: nothing was said about that.
        notes: what one should know about these numbers.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((100,), jnp.float32)
        >>> report = incrax.cost(lambda x: jnp.sum(jnp.exp(x)), x)
        >>> report.forward.total.transcendentals, [each.name for each in report.passes]
        (100.0, ['forward', 'backward'])
    """

    name: str
    passes: tuple[PassCost, ...]
    changing: tuple[str, ...] | None
    notes: tuple[str, ...]

    @property
    def forward(self) -> PassCost:
        """The value."""
        return self.passes[0]

    @property
    def backward(self) -> PassCost | None:
        """The backward pass; None: not asked for, or there is none, see `notes`."""
        return next(iter(self.passes[1:]), None)

    @property
    def per_equation(self) -> tuple[tuple[str, EquationCost], ...]:
        """All rows with the names of their passes."""
        return tuple((each.name, row) for each in self.passes for row in each.equations)

    @property
    def not_counted(self) -> tuple[tuple[str, EquationCost], ...]:
        """Rows whose primitive is not registered: their bytes count, their work does not."""
        return tuple((name, row) for name, row in self.per_equation if not row.is_counted)

    @property
    def unknown_loops(self) -> tuple[tuple[str, LoopCost], ...]:
        """Loops of which one turn is counted, since nobody knows how many there will be."""
        loops = ((each.name, loop) for each in self.passes for loop in each.loops)
        return tuple((name, loop) for name, loop in loops if loop.known_from == "unknown")

    @property
    def ratio(self) -> float | None:
        """FLOPs of the backward pass for one of the forward pass; None without either."""
        if self.backward is None:
            return None
        return _quotient(*(each.total.flops for each in reversed(self.passes)))

    def summary(self) -> str:
        """What it is the cost of, and its FLOPs."""
        total = self.forward.total
        found = f"cost of {self.name}: {number_text(total.flops)} FLOPs"
        if self.changing is None:
            return found
        return f"{found}; changing: {', '.join(self.changing) or 'nothing'}"

    def tables(self) -> list[Table]:
        """The report for people: totals; the most expensive equations; notes."""
        header = ("pass", "what", "times", *FIGURES, "inside", "source")
        notes = [(note,) for note in self.notes]
        return [
            Table("", ("", *FIGURES, "FLOPs / byte"), list(self._totals())),
            Table("most expensive equations", header, [*self._dearest()], NUM_LISTED),
            *([Table("notes", ("what to know of these numbers",), notes)] if notes else []),
        ]

    def _totals(self) -> Iterator[Sequence[Cell]]:
        for each in self.passes:
            parts = {"": each.total}
            if self.changing is not None:
                parts |= {", run again": each.again, ", avoided": each.avoided}
            for name, part in parts.items():
                yield (each.name + name, *_figures(part), _quotient(part.flops, part.bytes))
        if self.backward is not None:
            pairs = zip(_figures(self.backward.total), _figures(self.forward.total), strict=True)
            yield ("backward / forward", *(_quotient(*pair) for pair in pairs), "")

    def _dearest(self) -> Iterator[Sequence[Cell]]:
        """Equations, first those that nobody registered."""
        order = lambda item: (item[1].is_counted, *(-abs(part) for part in item[1].total.weight))
        for name, row in sorted(self.per_equation, key=order):
            what = f"{row.primitive} {' '.join(row.inputs)} -> {' '.join(row.results)}"
            times = row.times if row.is_known else f"{number_text(row.times)} (one turn)"
            *work, moved = _figures(row.total)
            shown = work if row.is_counted else ("not counted", "-", "-")
            yield (name, what, times, *shown, moved, row.inside, row.source)


FIGURES = ("FLOPs", "transcendentals", "int ops", "bytes")


def _figures(cost: Cost) -> tuple[float, ...]:
    return cost.flops, cost.transcendentals, cost.int_ops, cost.bytes


def _quotient(part: float, whole: float) -> float | None:
    """One number by another, never -0.0; None by zero."""
    return part / whole + 0.0 if whole else None
