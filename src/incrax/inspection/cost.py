"""What a function computes and moves: FLOPs, transcendentals and bytes by the rules of
`primitives`, as one report.

In: a function, or a model, with arrays or types. Out: a `CostReport`. A program of each pass is
traced and made a tree of regions; each equation is priced once and counts as often as the regions
around it run.
"""

from __future__ import annotations

import difflib
import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from incrax import _jax
from incrax._jax import Equation
from incrax._locations import source_of
from incrax._program import Program, evaluator
from incrax._table import Cell, Printable, Table, bytes_text, number_text
from incrax.engine.inputs.paths import paths_mask
from incrax.engine.inputs.rows import as_plain
from incrax.engine.program.cost import ZERO, Cost, leaf_cost
from incrax.engine.program.dependence import ALWAYS, MAX_TRACKED, depend, make_layout
from incrax.engine.program.nested import is_counted
from incrax.errors import CostError
from incrax.inspection.programs import (
    Call,
    call_of,
    forward,
    function_of_model,
    gradient,
    hessian_product,
    is_scalar,
    model_of,
    path_in_model,
    type_text,
)
from incrax.inspection.regions import AS_RUN, AS_WRITTEN, Node, Region, cut, regions_of, run
from incrax.models.bound import Bound

PASSES = ("forward", "backward", "hvp")
TITLES = {"forward": "forward", "backward": "backward", "hvp": "Hessian-vector product"}
BRANCHES = ("max", "both", "taken")
GROUPS = ("line", "function", "file")

NUM_ARGUMENTS = 6
NUM_LISTED = 15
MAX_PARTS = 12
"""Parts of a measured program, at most; the cheapest are joined to what is before them."""
NUM_REPEATS = 9
"""Timed runs of a measured program, and of each of its parts."""

UserRule = Callable[
    [Sequence[jax.ShapeDtypeStruct], Sequence[jax.ShapeDtypeStruct], Mapping[str, Any]], float
]
"""FLOPs of an equation from the types of its inputs and results and its parameters."""


def cost(
    fun: Callable[..., Any] | Bound,
    *args: Any,
    changing: Iterable[str] | None = None,
    wrt: Any = None,
    has_aux: bool = False,
    passes: str | Iterable[str] = PASSES,
    trips: int | Literal["measured"] | None = None,
    branches: Literal["max", "both", "taken"] = "max",
    measure: bool = False,
    rules: Mapping[str, UserRule] | None = None,
    **kwargs: Any,
) -> CostReport:
    """What a function costs: FLOPs, transcendentals and bytes, forward, backward and of a Hessian
    times a vector.

    The function is traced and its equations are counted; nothing is evaluated unless `measure`,
    `trips="measured"` or `branches="taken"` asks for a run. Dead code is left out, equal equations
    count once, loops count each turn. Primitives that nobody registered are named, never taken for
    nothing.

    Args:
        fun: function of pytrees: plain, jitted, or incremental (then its equations are those that
            the engine runs); or a model made by `bind`, or its `value`, `grad`, `value_and_grad`, `hessian`
            or `jacobian`, at the inputs that it holds.
        *args: arguments, arrays of any shapes or `jax.ShapeDtypeStruct`; none for a model.
        changing: names of inputs that change, as `explain()` and `deps()` print them (`"mu"`,
            `"params['s']"`, `"theta[3]"`), or one name: the report then says what runs again from
            what the engine avoids. Cotangents and tangents change always. Inputs of a model also by
            the short names that it knows.
        wrt: what the backward pass differentiates, as in `incrax.grad`; by default the first
            argument, or what is trainable in a model.
        has_aux: whether `fun` returns a pair whose second part has no derivative.
        passes: some of `"forward"`, `"backward"`, `"hvp"`, or one; the first always counts.
        trips: turns of loops whose number depends on values: a number to assume, `"measured"` for a
            run that counts, or None: one turn is counted, and the report says so.
        branches: `"max"`, the most expensive one; `"both"`, all; `"taken"`, those that a run with
            these arguments takes.
        measure: whether to compile and time the passes and their parts, with memory.
        rules: FLOPs of primitives that are not registered: functions of the types of the inputs and
            of the results, and of the parameters of one equation.
        **kwargs: further arguments; of a model, other values or types for inputs, by name.

    Returns:
        A `CostReport`. The backward pass is value and gradient (or value and pullback, where the
        result is not one real number) without the forward pass. A multiply-add is two FLOPs; the
        page on costs has all conventions.

    Raises:
        CostError: an option has a value that it does not take; a run is asked for and an argument
            has no values, or the function has effects; the function branches in Python on a traced
            value.
        SelectionError, UnknownInputError: `wrt` or `changing` names what is not there.
        UnsupportedLeafError: an argument is an array that JAX has no type for.
        TypeError: `fun` is no function.

    Cost: three traces; with `measure` two compilations of
        each program and nine runs. A run that counts takes some tens of microseconds for
        each turn of a loop whose number of turns depends on values.

    Not handled: what XLA makes of the program (fusion, its own simplifications); work on the host;
        static arguments of `jax.jit` that are numbers (use a `lambda`).

    Source: conventions as in Golub and Van Loan; loops, dead code and unregistered primitives are
        the caveats of TensorFlow's profiler.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> a = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> report = incrax.cost(lambda a, b: a @ b, a, a, wrt=(0, 1))
        >>> report.forward.total.flops == 2 * 64**3, report.ratio
        (True, 2.0)
    """
    passes = _names(passes)
    for each in passes:
        _check_word("passes", each, PASSES)
    if trips is not None and (type(trips) is not int or trips < 0):
        _check_word("trips", trips, ("measured",), ", a number of turns from 0 on, or None")
    _check_word("branches", branches, BRANCHES)
    names = None if changing is None else _names(changing)
    why_not = "nothing in the first argument has one"
    model = model_of(fun)
    if model is not None:
        fun, args = function_of_model(fun, model, args, kwargs)
        kwargs = {}
        in_model = lambda name: path_in_model(model, name) if isinstance(name, str) else name
        names = None if names is None else tuple(map(in_model, names))
        selected = model.differentiated_paths if wrt is None else jax.tree.map(in_model, wrt)
        why_not = "no input of the model is trainable"
    else:
        selected = wrt
    args, kwargs = as_plain((args, kwargs))
    call = call_of(fun, args, kwargs, has_aux=has_aux)
    counting = _Counting(call, names, trips, branches, measure, rules or {})
    select = functools.partial(call.differentiated, selected, args, kwargs)
    return counting.report(passes, select, why_not if wrt is None else "")


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_word(option: str, seen: object, words: Sequence[str], others: str = "") -> None:
    if seen in words:
        return
    near = difflib.get_close_matches(str(seen), words, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CostError(
        f"`cost({option}=...)` got {seen!r}; use {', '.join(map(repr, words))}{others}. Nothing "
        f"was evaluated.{hint}"
    )


# --- rows of the report ---------------------------------------------------------------------------


class EquationCost(NamedTuple):
    """Equations that are alike.

    Fields: primitive; `file:line (function)` of the user's code, "" if unknown; types of inputs and
    results; loops, branches and calls around; what one evaluation costs; how many evaluations there
    are, equations and turns multiplied; whether the turns of all loops around are known; whether
    the primitive is registered, so that its work is counted; whether a change reaches it (None: no
    change was named).
    """

    primitive: str
    source: str
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    inside: str
    each: Cost
    times: float
    is_known: bool
    is_counted: bool
    runs_again: bool | None

    @property
    def total(self) -> Cost:
        """The cost of all evaluations."""
        return self.each.times(self.times)


class LoopCost(NamedTuple):
    """A loop.

    Fields: primitive; source line; loops, branches and calls around; turns of one evaluation; where
    that number is from: "static", "measured", "given" or "unknown" (then one turn is counted); what
    one turn costs, the condition included.
    """

    primitive: str
    source: str
    inside: str
    turns: float
    known_from: str
    turn: Cost


class SourceCost(NamedTuple):
    """What one line or function of the user's costs: where, forward, and backward (None: there is
    no backward pass).
    """

    source: str
    forward: Cost
    backward: Cost | None = None


@dataclass(frozen=True)
class PassCost:
    """The cost of one pass.

    Fields: `"forward"`, `"backward"` or `"hvp"`; its equations, those that are alike in one row (of
    a backward pass what value and gradient have together and the forward pass has not, so that a
    row may be negative where a derivative rule replaces the forward pass); its loops (of a backward
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

    @property
    def macs(self) -> float:
        """Multiply-adds of products and convolutions, of real numbers: half their FLOPs; of complex
        ones an eighth.
        """
        products = ("dot_general", "conv_general_dilated", "ragged_dot_general")
        found = (row for row in self.equations if row.primitive in products)
        return sum(
            row.total.flops / (8 if row.results[0].startswith("complex") else 2) for row in found
        )


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


class CountedProgram(NamedTuple):
    """A program as regions, and the rows of its equations and loops."""

    root: Region
    equations: list[EquationCost]
    loops: list[LoopCost]


@dataclass
class _Counting:
    """A call, what was asked of it (see `cost`), and what one should know of the answer."""

    call: Call
    changing: tuple[str, ...] | None
    trips: int | str | None
    branches: str
    measure: bool
    rules: Mapping[str, UserRule]
    notes: list[str] = field(default_factory=list)
    _costs: dict[Region, Cost] = field(default_factory=dict)

    def report(
        self, passes: Sequence[str], select: Callable[[], list[int]], why_not: str
    ) -> CostReport:
        """Count all that was asked for; `select` gives the values that are differentiated.

        `why_not` says why there may be none; where there must be some, it is empty.
        """
        call = self.call
        traced, results = forward(call)
        self._check_run(traced)
        counted: dict[str, CountedProgram | None] = {"forward": self.count(traced)}
        numbers = self._selected(select, why_not) if set(passes) - {"forward"} else []
        if numbers and "backward" in passes:
            lack = "" if results else "no result is a floating-point number."
            make = lambda: gradient(call, numbers, results)
            counted["backward"] = self._derivative("backward pass", lack, make)
        if numbers and "hvp" in passes:
            lack = "" if is_scalar(results) else "the result is not one real number."
            counted["hvp"] = self._hessian_product(numbers, lack)
        programs = {name: each for name, each in counted.items() if each is not None}
        titles = {**TITLES, "backward": "value and gradient"}
        types = [var.aval.str_short() for var in traced.invars]
        named = zip(call.paths, types, strict=True)
        found = tuple(self._passes(programs))
        return CostReport(
            name=call.name,
            arguments=tuple(f"{path}: {text}" for path, text in named),
            passes=found,
            changing=self.changing,
            branches=self.branches,
            measured=tuple(
                self.measured(titles[name], each) for name, each in programs.items() if self.measure
            ),
            notes=(*self._general_notes(list(programs.values())), *self.notes),
        )

    def _check_run(self, traced: Program) -> None:
        """Check that the function can be run, if that is asked for.

        Raises:
            CostError: an argument has no values, or the function has effects.
        """
        asked = {
            "measure=True": self.measure,
            "trips='measured'": self.trips == "measured",
            "branches='taken'": self.branches == "taken",
        }
        option = next((option for option, is_asked in asked.items() if is_asked), None)
        if option is None:
            return
        for path, value in zip(self.call.paths, self.call.values, strict=True):
            if isinstance(value, jax.ShapeDtypeStruct):
                raise CostError(
                    f"`cost({option})` runs the function, and `{path}` is {type_text(value)} "
                    f"without values. Nothing was evaluated. Pass an array, or leave {option} out."
                )
        effects = sorted({str(effect) for eqn in traced.eqns for effect in eqn.effects})
        if effects:
            raise CostError(
                f"`cost({option})` runs the function, and it has effects: {', '.join(effects)}. "
                "This is usually a print or a callback, which would be repeated with each run. "
                f"Nothing was evaluated. Take it out, or leave {option} out."
            )

    def count(self, traced: Program) -> CountedProgram:
        """Count a program; runs it only where how often something runs is to be measured."""
        root = regions_of(traced, AS_RUN if self.is_as_run else AS_WRITTEN)
        is_run = self.trips == "measured" or self.branches == "taken"
        if is_run and any(node.is_open for node in root.nodes):
            run(root, self.call.inputs(traced))
        rows = [
            row
            for node, again in zip(root.nodes, self._reached(root), strict=True)
            for row in self._rows(node, root, _TOP._replace(runs_again=again))
        ]
        equations = [row for row in rows if isinstance(row, EquationCost)]
        loops = [row for row in rows if isinstance(row, LoopCost)]
        return CountedProgram(root, equations, loops)

    def _reached(self, root: Region) -> list[bool | None]:
        """Whether the change reaches each equation; what is no argument changes always."""
        if self.changing is None:
            return [None] * len(root.nodes)
        layout = make_layout([var.aval for var in root.program.invars], MAX_TRACKED)
        mask = ALWAYS | paths_mask(self.call.paths, layout, self.changing)
        for number in range(len(self.call.values), len(root.program.invars)):
            mask |= layout.leaf_mask(number)
        dependence = depend(root.program, layout)
        return [bool(dependence.of_equation(node.eqn) & mask) for node in root.nodes]

    @property
    def is_as_run(self) -> bool:
        """Whether the equations are those that the engine runs."""
        return self.call.is_incremental or self.changing is not None

    # --- an equation and what is inside ---

    def cost_of(self, nodes: Iterable[Node], region: Region) -> Cost:
        """The cost of some equations of a region, evaluated once."""
        rows = (row for node in nodes for row in self._rows(node, region, _TOP))
        return _summed(row for row in rows if isinstance(row, EquationCost))

    def _cost(self, region: Region) -> Cost:
        if region not in self._costs:
            self._costs[region] = self.cost_of(region.nodes, region)
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
        if is_branch and self.branches == "both":
            return 1.0, "static"
        if around.runs and (not is_branch or self.branches == "taken"):
            return region.runs / around.runs, "measured"
        if is_branch:
            dearest = max(node.regions, key=lambda each: self._cost(each).weight)
            return float(region is dearest), "static"
        if isinstance(self.trips, int):
            return float(self.trips + (region.kind == "condition")), "given"
        return 1.0, "unknown"

    # --- passes ---

    def _selected(self, select: Callable[[], list[int]], why_not: str) -> list[int]:
        """The values that are differentiated; where nothing was named and nothing can be, none and
        a note.
        """
        try:
            return select()
        except (TypeError, ValueError):
            if not why_not:
                raise
            self.notes.append(f"No derivatives: {why_not}. Name others by `wrt=`.")
            return []

    def _derivative(
        self, title: str, lack: str, make: Callable[[], Program]
    ) -> CountedProgram | None:
        """A program of a derivative; None, and a note, where something is lacking, or JAX has no
        derivative.
        """
        if not lack:
            try:
                return self.count(make())
            except (TypeError, ValueError, NotImplementedError) as error:
                lack = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        self.notes.append(f"No {title}: {lack}")
        return None

    def _hessian_product(self, numbers: Sequence[int], lack: str) -> CountedProgram | None:
        """Forward over reverse; reverse over reverse where a rule for cotangents has no tangents,
        `custom_lin`.
        """
        make = functools.partial(hessian_product, self.call, numbers)
        product = self._derivative(TITLES["hvp"], lack, make)
        if product is None or all(row.primitive != "custom_lin" for row in product.equations):
            return product
        self.notes.append(
            "The Hessian-vector product is reverse over reverse: a `custom_vjp` rule has no "
            "tangents."
        )
        return self._derivative(TITLES["hvp"], "", functools.partial(make, is_forward=False))

    def _passes(self, counted: Mapping[str, CountedProgram]) -> Iterator[PassCost]:
        """The rows of each program; of the backward pass what value and gradient have, and the
        value alone has not.
        """
        value = counted["forward"]
        for name, each in counted.items():
            if name != "backward":
                yield PassCost(name, _merged(each.equations), tuple(each.loops))
                continue
            loops = Counter(each.loops) - Counter(value.loops)
            found = PassCost(
                name, _merged(each.equations, value.equations), tuple(loops.elements())
            )
            if min(found.total) < 0:
                self.notes.append(
                    "Figures of the backward pass below zero: value and gradient together do less "
                    "of something than the value alone, as JAX moves what is invariant out of "
                    "loops that it differentiates, or a rule replaces the function."
                )
            yield found

    def _general_notes(self, found: Sequence[CountedProgram]) -> Iterator[str]:
        if any(not row.is_counted for each in found for row in each.equations):
            yield "Some primitives are not registered: the totals lack their work. Pass `rules=`."
        if any(loop.known_from == "unknown" for each in found for loop in each.loops):
            yield (
                "Some loops have unknown trips: one turn of each is counted. Pass `trips=`, "
                "'measured' or a number."
            )
        if self.is_as_run:
            yield (
                "Equations are those that the engine runs: hoisted out of loops, nothing "
                "rematerialized."
            )

    # --- seconds and memory ---

    def measured(self, name: str, counted: CountedProgram) -> Measured:
        """Compile and time a program and its parts, cut where the user's function changes.

        XLA fuses the whole across the cuts: the parts' sum may be more, or less.
        """
        root = counted.root
        whole = root.program
        cost_of = functools.partial(self.cost_of, region=root)
        groups = [(name, root.nodes), *_joined(_by_function(root.nodes), cost_of)]
        parts = cut(whole, [[node.eqn for node in nodes] for _, nodes in groups[1:]])
        compiled = [*_compiled([whole, *parts], self.call.inputs(whole))]
        rounds = [[_seconds(call) for call, _ in compiled] for _ in range(NUM_REPEATS)]  # in turns
        medians = map(statistics.median, zip(*rounds, strict=True))
        whole_part, *found = (
            MeasuredPart(title, len(nodes), cost_of(nodes), seconds, memory)
            for (title, nodes), seconds, (_, memory) in zip(groups, medians, compiled, strict=True)
        )
        return Measured(name, tuple(found), whole_part, NUM_REPEATS)


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


# --- what is measured -----------------------------------------------------------------------------


class Memory(NamedTuple):
    """Bytes of arguments, results, and of what is in between, as XLA plans them; None where it does
    not tell.
    """

    argument_bytes: int | None
    output_bytes: int | None
    temp_bytes: int | None


class MeasuredPart(NamedTuple):
    """A part of a program, or the whole: name, number of equations, cost, median seconds of a run,
    memory.
    """

    name: str
    num_equations: int
    cost: Cost
    seconds: float
    memory: Memory


class Measured(NamedTuple):
    """A measured program: its name, its parts in order, the whole as one, and how many runs of each
    were timed.
    """

    name: str
    parts: tuple[MeasuredPart, ...]
    whole: MeasuredPart
    repeats: int

    @property
    def sum_s(self) -> float:
        """Seconds of all parts, one after the other."""
        return sum(part.seconds for part in self.parts)


def _compiled(
    programs: Sequence[Program], inputs: Sequence[Any]
) -> Iterator[tuple[Callable[[], Any], Memory]]:
    """Calls of a program with these inputs, and of each of its parts, which read what those before
    it gave; and their memory.
    """
    whole, *_ = programs
    known = dict(zip(whole.invars, inputs, strict=True))
    for program in programs:
        given = [program.consts, *(known[var] for var in program.invars)]
        compiled = jax.jit(evaluator(program)).lower(*given).compile()
        results = jax.block_until_ready(compiled(*given))
        if program is not whole:
            known.update(zip(program.outvars, results, strict=True))
        yield functools.partial(compiled, *given), _memory(compiled)


def _seconds(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start_s


def _memory(compiled: Any) -> Memory:
    """What XLA says; not every backend does."""
    try:
        found = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError):
        found = None
    names = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return Memory(*(getattr(found, name, None) for name in names))


Group = tuple[str, list[Node]]


def _by_function(nodes: Sequence[Node]) -> list[Group]:
    """Equations that follow each other and are of one function; of one line where there is one
    function only.
    """
    sources = [source_of(_jax.source_line(node.eqn)) for node in nodes]
    is_one = len({(source.function, source.file) for source in sources if source.file}) < 2
    groups: list[Group] = []
    for source, node in zip(sources, nodes, strict=True):
        line = f"{source.file_name}:{source.line} ({source.function})"
        title = line if is_one else f"{source.function} ({source.file_name})"
        if groups and (title == groups[-1][0] or not source.file):
            groups[-1][1].append(node)
        else:
            groups.append((title if source.file else "(unknown)", [node]))
    return groups


def _joined(groups: Sequence[Group], cost_of: Callable[[list[Node]], Cost]) -> list[Group]:
    """The dearest groups, few enough, each with the cheaper ones that follow it."""
    dearest = sorted(range(1, len(groups)), key=lambda n: cost_of(groups[n][1]).weight)
    starts = {0, *dearest[1 - MAX_PARTS :]}
    joined: list[Group] = []
    for number, (title, nodes) in enumerate(groups):
        if number in starts:
            joined.append((title, list(nodes)))
        else:
            joined[-1][1].extend(nodes)
    return joined


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class CostReport(Printable):
    """The cost of a function; made by `incrax.cost`.

    Fields:
        name: the function's name.
        arguments: names and types of its arguments.
        passes: those that were counted, the value first.
        changing: the inputs that change; None: nothing was said about that.
        branches: `"max"`, `"both"` or `"taken"`.
        measured: measured programs; empty without `measure=True`.
        notes: what one should know about these numbers.

    Example:
        >>> import incrax, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((100,), jnp.float32)
        >>> report = incrax.cost(lambda x: jnp.sum(jnp.exp(x)), x)
        >>> report.forward.total.transcendentals, [each.name for each in report.passes]
        (100.0, ['forward', 'backward', 'hvp'])
    """

    name: str
    arguments: tuple[str, ...]
    passes: tuple[PassCost, ...]
    changing: tuple[str, ...] | None
    branches: str
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]

    @property
    def forward(self) -> PassCost:
        """The value."""
        return self.passes[0]

    @property
    def backward(self) -> PassCost | None:
        """The backward pass; None: not asked for, or there is none, see `notes`."""
        return self._pass("backward")

    @property
    def hvp(self) -> PassCost | None:
        """The Hessian times a vector; None likewise."""
        return self._pass("hvp")

    def _pass(self, name: str) -> PassCost | None:
        return next((each for each in self.passes if each.name == name), None)

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
        backward = self.backward
        return backward and _quotient(backward.total.flops, self.forward.total.flops)

    @property
    def operations_ratio(self) -> float | None:
        """The same with ten FLOPs for an exponential."""
        backward = self.backward
        return backward and _quotient(backward.total.operations, self.forward.total.operations)

    def by_source(
        self, group: Literal["line", "function", "file"] = "line"
    ) -> tuple[SourceCost, ...]:
        """Costs of each line or function of the user's, the most expensive first; with a change,
        of what it reaches.

        Args:
            group: `"line"`, `"function"` or `"file"`.

        Raises:
            CostError: another group.
        """
        _check_word("group", group, GROUPS)
        shown = list(filter(None, (self.forward, self.backward)))
        found: dict[str, list[Cost]] = {}
        for number, each in enumerate(shown):
            for row in each.equations:
                if self.changing is None or row.runs_again:
                    parts = source_of(row.source)
                    source = row.source if group == "line" else getattr(parts, group)
                    found.setdefault(source, [ZERO] * len(shown))[number] += row.total
        dearest = sorted(found.items(), key=lambda item: -sum(c.operations for c in item[1]))
        return tuple(SourceCost(source, *costs) for source, costs in dearest)

    # --- for programs -----------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The report for programs, with types that JSON has."""
        same = ("name", "arguments", "changing", "branches", "measured", "notes")
        shown = ["total", "macs", "equations", "loops"]
        if self.changing is not None:
            shown += ["again", "avoided"]
        return {
            **{name: _plain(getattr(self, name)) for name in same},
            "passes": {
                each.name: {name: _plain(getattr(each, name)) for name in shown}
                for each in self.passes
            },
            "backward_over_forward": {"flops": self.ratio, "operations": self.operations_ratio},
            "not_counted": [{"pass": name, **_plain(row)} for name, row in self.not_counted],
            "unknown_loops": [{"pass": name, **_plain(loop)} for name, loop in self.unknown_loops],
            "by_source": _plain(self.by_source()),
        }

    # --- for people -------------------------------------------------------------------------------

    def summary(self) -> str:
        """What it is the cost of, and its FLOPs."""
        flops = number_text(self.forward.total.flops)
        found = f"cost of {self.name}({_named(self.arguments)}): {flops} FLOPs"
        if self.changing is None:
            return found
        return f"{found}; changing: {_named(self.changing) or 'nothing'}"

    def tables(self) -> list[Table]:
        """The report for people: totals; the most expensive equations, and a turn of each loop; what
        was measured; notes.
        """
        header = ("pass", "what", "times", *FIGURES, "inside", "source")
        turns = [*self._turns()]
        notes = [(note,) for note in self.notes]
        return [
            Table("", ("", *TOTALS), list(self._totals())),
            Table("most expensive equations", header, [*self._dearest()], NUM_LISTED),
            *([Table("loops", header, turns, NUM_LISTED)] if turns else []),
            *map(_measured_table, self.measured),
            *([Table("notes", ("what to know of these numbers",), notes)] if notes else []),
        ]

    def _totals(self) -> Iterator[Sequence[Cell]]:
        for each in self.passes:
            yield (TITLES[each.name], *_total(each.total))
        if self.backward is not None:
            pairs = zip(_amounts(self.backward.total), _amounts(self.forward.total), strict=True)
            yield ("backward / forward", *(_quotient(*pair) for pair in pairs), "")
        for each in self.passes if self.changing is not None else ():
            yield (f"{TITLES[each.name]}, run again", *_total(each.again))
            yield (f"{TITLES[each.name]}, avoided", *_total(each.avoided))

    def _dearest(self) -> Iterator[Sequence[Cell]]:
        """Equations of the value and the backward pass; first those that nobody registered, also of
        the third pass.
        """
        order = lambda item: (item[1].is_counted, *(-abs(part) for part in item[1].total.weight))
        for name, row in sorted(self.per_equation, key=order):
            if name == "hvp" and row.is_counted:
                continue
            what = f"{row.primitive} {' '.join(row.inputs)} -> {' '.join(row.results)}"
            times = row.times if row.is_known else f"{number_text(row.times)} (one turn)"
            *work, moved = _figures(row.total)
            shown = work if row.is_counted else ("not counted", "-", "-")
            yield (name, what, times, *shown, moved, row.inside, row.source)

    def _turns(self) -> Iterator[Sequence[Cell]]:
        for each in self.passes:
            for loop in each.loops:
                what = f"a turn of {loop.primitive}"
                turns = f"{number_text(loop.turns)} ({loop.known_from})"
                shown = "unknown turns" if loop.known_from == "unknown" else turns
                yield (each.name, what, shown, *_figures(loop.turn), loop.inside, loop.source)


TOTALS = ("FLOPs", "transcendentals", "integer ops", "bytes read", "bytes written", "FLOPs / byte")
FIGURES = ("FLOPs", "transcendentals", "int ops", "bytes")


def _amounts(cost: Cost) -> tuple[float, ...]:
    return cost.flops, cost.transcendentals, cost.int_ops, cost.bytes_read, cost.bytes_written


def _total(cost: Cost) -> tuple[Cell, ...]:
    return (*_amounts(cost), _quotient(cost.flops, cost.bytes))


def _figures(cost: Cost) -> tuple[Cell, ...]:
    return (*_amounts(cost)[:3], cost.bytes)


def _quotient(part: float, whole: float) -> float | None:
    """One number by another, never -0.0; None by zero."""
    return part / whole + 0.0 if whole else None


def _named(names: Sequence[str]) -> str:
    """The first names, where there are many."""
    rest = [f"... {len(names) - NUM_ARGUMENTS} more"] if len(names) > NUM_ARGUMENTS else []
    return ", ".join([*names[:NUM_ARGUMENTS], *rest])


MEASURED = (
    *("part", "equations", "FLOPs", "ms", "share of sum", "GFLOP/s"),
    *("temporary", "arguments", "results"),
)


def _measured_table(each: Measured) -> Table:
    rows = [_part_cells(part, f"{part.seconds / each.sum_s:.0%}") for part in each.parts]
    rows.append(("sum of the parts", "", "", each.sum_s * 1e3, "", "", "", "", ""))
    rows.append(_part_cells(each.whole._replace(name="the whole, compiled as one"), ""))
    return Table(f"measured: {each.name}, medians of {each.repeats} runs", MEASURED, rows)


def _part_cells(part: MeasuredPart, share: str) -> tuple[Cell, ...]:
    arguments, results, temporary = map(bytes_text, part.memory)
    flops = part.cost.flops
    figures = (part.num_equations, flops, part.seconds * 1e3, share, flops / part.seconds * 1e-9)
    return (part.name, *figures, temporary, arguments, results)


def _plain(x: Any) -> Any:
    """Rows, loops and the like with types that JSON has; of a cost what users ask for."""
    if isinstance(x, Cost):
        names = ("flops", "transcendentals", "int_ops", "bytes_read", "bytes_written")
        figures = dict(zip(names, _amounts(x), strict=True))
        return {**figures, "flops_per_byte": _quotient(x.flops, x.bytes)}
    fields = getattr(x, "_fields", None)
    if fields is None:
        return [_plain(each) for each in x] if isinstance(x, tuple) else x
    further = [name for name in ("total", "sum_s") if hasattr(x, name)]
    return {name: _plain(getattr(x, name)) for name in (*fields, *further)}
