"""The pure form: saved values as a pytree that compiled loops carry, brought up to date inside the
graph.

In: an analysed function and example leaves. Out: a state, and a step `(state, *args) -> (state,
out)`. It must not know the store: validity is that the state's inputs have the bits of the
arguments, or what the caller says of them.

Promise: `step(state, *args)[1]` is `f(*args)`, and so are its derivatives with respect to the
arguments, to any order; the state that is returned belongs to `args` and has no derivative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from incrax import _jax
from incrax._jax import Equation, Var, as_strong
from incrax._messages import (
    other_frozen,
    other_statics,
    other_structure,
    other_type,
    other_weak_type,
    unknown_input,
)
from incrax._names import names_in
from incrax._program import (
    Args,
    Env,
    Function,
    Kwargs,
    Program,
    Results,
    Values,
    all_read,
    type_of,
)
from incrax._tuning import is_disabled
from incrax.engine.call.analysis import Analysis
from incrax.engine.call.origin import StateOrigin, origin_of
from incrax.engine.call.pure_flags import Flags, all_set, compared, declared, leaves_set
from incrax.engine.compile.captured import unfolded
from incrax.engine.compile.executables import device_constants
from incrax.engine.compile.host_calls import HostCalls
from incrax.engine.inputs.leaves import descriptor, fingerprint, has_tracer, is_frozen
from incrax.engine.inputs.signature import Signature, same_type, type_text
from incrax.engine.plan.facts import Facts
from incrax.engine.plan.plan import Plan, plan_dirty
from incrax.engine.plan.segmentation import Segmentation
from incrax.engine.policy.materialize import LARGE_SIZE, lasting_needs

Retrace = Callable[[Values], Program]

Saved = tuple[tuple[Any, ...], ...]
"""The saved values of each segment."""


class PureState(NamedTuple):
    """What a step carries."""

    inputs: tuple[Any, ...]  # those that are not frozen
    saved: Saved  # current for them
    outputs: tuple[Any, ...]  # likewise
    origin: StateOrigin  # whose they are


class PureFunction:
    """One function, segment by segment, as a function of arrays."""

    def __init__(self, facts: Facts, segmentation: Segmentation, calls: HostCalls) -> None:
        self.facts = facts
        self.calls = calls if facts.calls_host and not is_disabled() else None
        self.constants = device_constants(facts.program)
        self.top = segmentation.top_plan()  # from saved values to outputs
        groups = segmentation.missing_groups(self.top.loads, lambda _: True)
        self.segments = tuple(map(segmentation.plan, segmentation.in_order(groups)))
        self.outputs = self._differentiable_outputs()

    def update(self, leaves: Values, saved: Saved | None, flags: Flags) -> Saved:
        """The saved values at new leaves: those of the segments that a flag reaches are computed,
        the others kept.
        """
        values: Env = {}
        updated = []
        for number, segment in enumerate(self.segments):
            run = functools.partial(self._run, segment, leaves, values)
            flag = saved is None or flags.reach(self.facts.mask(segment.saves[0]))
            new = _either(flag, run, () if saved is None else saved[number])
            updated.append(new)
            values.update(zip(segment.saves, new, strict=True))
        return tuple(updated)

    def _run(self, plan: Plan, leaves: Values, values: Mapping[Var, Any]) -> tuple[Any, ...]:
        """The saves, or the outputs, of a plan."""
        return self.evaluated(plan, self._known(leaves, values))

    def _known(self, leaves: Values, values: Mapping[Var, Any]) -> Env:
        """Constants, inputs and saved values, by variable."""
        return {**self.constants, **dict(zip(self.facts.invars, leaves, strict=True)), **values}

    def evaluated(self, plan: Plan, known: Mapping[Var, Any]) -> tuple[Any, ...]:
        """The same from values by variable, of which it needs to read some."""
        env = {var: _jax.typed_as(known[var], var.aval) for var in self._read(plan)}
        eqns = plan.eqns
        if self.calls is not None:
            eqns = self.calls.wrap(eqns, is_awaited=False)
        _jax.evaluate(eqns, env)
        return tuple(as_strong(_jax.read(atom, env)) for atom in self._targets(plan))

    def _targets(self, plan: Plan) -> Results:
        return [*(self.facts.outvars[i] for i in plan.outputs), *plan.saves]

    def _read(self, plan: Plan) -> list[Var]:
        """The constants, inputs and saved values that a plan reads."""
        program = self.facts.program
        used = all_read(plan.eqns)
        used.update(atom for atom in self._targets(plan) if isinstance(atom, Var))
        given = (*program.constvars, *program.invars, *plan.loads)
        return [var for var in dict.fromkeys(given) if var in used]

    def remainder(self, leaves: Values, saved: Saved, moving: Sequence[int]) -> tuple[Plan, Env]:
        """A plan for the part of the function that some inputs reach, and what it reads of these
        values, but for these inputs.
        """
        facts = self.facts
        layout = facts.layout
        by_variable = self._by_variable(saved)
        known = self._known(leaves, by_variable)
        dirty = sum(map(layout.leaf_mask, moving))
        plan = plan_dirty(facts, dirty, wanted=by_variable, only_wanted=True, may_derive=False)
        inputs = [facts.invars[i] for i in moving]
        return plan, {var: known[var] for var in self._read(plan) if var not in inputs}

    def _differentiable_outputs(self) -> Callable[..., tuple[Any, ...]]:
        """Outputs from leaves and saved values; kept ones where a flag says that nothing changed.

        The derivative with respect to some leaves computes anew what depends on them: a saved value
        is a constant only for the others.
        """

        @jax.custom_jvp
        def outputs(leaves: Values, saved: Any, kept: Any, flag: Any) -> tuple[Any, ...]:
            run = lambda: self._run(self.top, leaves, self._by_variable(saved))
            return _either(kept is None or flag, run, kept)

        def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
            leaves, saved, _, _ = primals
            active = [i for i, t in enumerate(tangents[0]) if not isinstance(t, SymbolicZero)]
            flags = leaves_set(self.facts.layout, active)

            def along(*moved: Any) -> tuple[Any, ...]:
                at = list(leaves)
                for index, leaf in zip(active, moved, strict=True):
                    at[index] = leaf
                return self._run(self.top, at, self._by_variable(self.update(at, saved, flags)))

            return jax.jvp(along, [leaves[i] for i in active], [tangents[0][i] for i in active])

        outputs.defjvp(rule, symbolic_zeros=True)
        return outputs

    def _by_variable(self, saved: Saved) -> Env:
        values: Env = {}
        for segment, own in zip(self.segments, saved, strict=True):
            values.update(zip(segment.saves, own, strict=True))
        return values


class Step:
    """`step(state, *args, changed=None, **kwargs) -> (state, out)`: an incremental call that can be
    compiled.

    A call takes

    - `state`: what `pure` or the last step returned. Carry the newest one, also after a rejected
      proposal: values are current by content, and selecting between two states would copy all they
      hold.
    - `*args`, `**kwargs`: arguments of the types for which the form was made. In place of a frozen
      object there may be an argument of the function that is being compiled. Where its
      `fingerprint` is that of the frozen data, the step is as with these; else the result is
      computed without saved values, and the state stays.
    - `changed`: None: inputs are compared with the state's, bit by bit, inside the program. Paths:
      these inputs (or elements) count as changed and the others as unchanged, without comparison. A
      mapping from paths to booleans, or to boolean arrays of an input's shape: likewise; they may
      be traced.

    Raises:
        StepTypeError: arguments have another structure, shape or dtype, or other static values;
            or the state is that of another function.
        UnknownInputError: a path names no input.
    """

    def __init__(
        self,
        analysis: Analysis,
        signature: Signature,
        leaves: Values,
        budget_bytes: int,
        calls: HostCalls,
        retrace: Retrace,
    ) -> None:
        """`leaves` are examples; `retrace` gives the program for leaves of other types."""
        facts = analysis.facts
        segmentation = Segmentation(facts)
        segmentation.want(lasting_needs(facts, budget_bytes))
        self.num_equations = len(analysis.traced.eqns)
        self._function = PureFunction(facts, segmentation, calls)
        self._layout = facts.layout
        self._signature = signature
        self._paths = signature.dynamic_paths
        self._out_tree = analysis.out_tree
        self._traced = analysis.traced  # as it is for the examples
        self._retrace = retrace
        # Which results are of weak type, by which leaves are.
        self._weak_outputs = {
            _are_weak(map(type_of, leaves)): _are_weak(map(type_of, facts.outvars))
        }
        self._is_disabled = is_disabled()
        self._frozen = {  # by number
            i: x for i, x in enumerate(leaves) if not isinstance(x, _jax.Tracer) and is_frozen(x)
        }
        self._origin = origin_of(facts.program, list(self._frozen.values()), list(self._frozen))

    def start(self, leaves: Values) -> PureState:
        """The state at some leaves; compiled where nothing is being traced."""
        at = self._checked(leaves)
        is_traced = not _jax.is_top_level() or has_tracer(at)
        return (self._start if is_traced else jax.jit(self._start))(at)

    def _start(self, leaves: Values) -> PureState:
        state = PureState(self._carried(leaves), *self._from_scratch(leaves), self._origin)
        return lax.stop_gradient(state)

    def __call__(
        self, state: PureState, *args: Any, changed: Any = None, **kwargs: Any
    ) -> tuple[PureState, Any]:
        """The state and the result at these arguments; see the class."""
        given = self._dynamic(args, kwargs)
        # Frozen data that are an argument of the program that is compiled.
        hidden = [i for i in self._frozen if isinstance(given[i], _jax.Tracer)]
        leaves = self._checked(given, hidden)
        are_weak = self._weak_results(map(type_of, given))
        self._check_state("step", state)
        state, moved = _jax.varying_alike((state, self._carried(leaves)))
        leaves = tuple(self._all_inputs(moved, leaves))
        stepped = lambda: self._stepped(state, leaves, changed)
        if hidden:
            # The state goes with the frozen data: of others the result is computed from
            # scratch, and the state stays.
            same = lax.stop_gradient(state)
            is_same = self._are_frozen_data(hidden, leaves)
            state, outputs = lax.cond(
                is_same, stepped, lambda: (same, self._from_scratch(leaves)[1])
            )
        else:
            state, outputs = stepped()
        return state, self._result(outputs, are_weak)

    def _result(self, outputs: Values, are_weak: Sequence[bool]) -> Any:
        out = list(map(_jax.with_weak_type, outputs, are_weak))
        return jax.tree.unflatten(self._out_tree, out)

    def _stepped(
        self, state: PureState, leaves: Values, changed: Any
    ) -> tuple[PureState, tuple[Any, ...]]:
        """The state and the outputs at some leaves, the frozen ones among them."""
        function = self._function
        layout = self._layout
        state, primals = lax.stop_gradient((state, leaves))
        old = self._all_inputs(state.inputs, primals)
        if self._is_disabled:
            flags = all_set(layout)
        elif changed is None:
            flags = compared(layout, old, primals)
        else:
            flags = declared(layout, self._paths, changed)
        saved = function.update(primals, state.saved, flags)
        flag = True if function.facts.has_effects else flags.reach(layout.full)
        kept = (None, None) if flag is True else (state.outputs, jnp.asarray(flag))
        outputs = function.outputs(leaves, saved, *kept)
        inputs = self._carried([_newer(flags.of_leaf(i), old[i], x) for i, x in enumerate(primals)])
        return state._replace(
            inputs=inputs, saved=saved, outputs=lax.stop_gradient(outputs)
        ), outputs

    def _from_scratch(self, leaves: Values) -> tuple[Any, tuple[Any, ...]]:
        """The saved values and the outputs at any leaves."""
        saved = self._function.update(lax.stop_gradient(leaves), None, all_set(self._layout))
        return saved, self._function.outputs(leaves, saved, None, None)

    def _are_frozen_data(self, hidden: Sequence[int], leaves: Values) -> Any:
        """Whether these leaves, which became arguments of the program, are the frozen data.

        Not by bits, for which the frozen data would have to be constants of the program.
        """
        with jax.ensure_compile_time_eval():
            known = [_fingerprint(self._frozen[i]) for i in hidden]
        seen = [_fingerprint(lax.stop_gradient(leaves[i])) for i in hidden]
        return jnp.all(jnp.stack(seen) == jnp.stack(known))

    def remainder(self, state: PureState, *args: Any, moving: Sequence[str]) -> Function:
        """What is left of the function where all inputs but some stay as they are here.

        Args:
            state: what `pure` returned for these arguments.
            *args: the arguments.
            moving: paths of the inputs that move.

        Returns:
            A function of these inputs, in this order. It is a pytree (`jax.tree_util.Partial`) of
            the arrays that it reads: passed to a compiled function as an argument, they are
            arguments of the program; closed over, they are constants, over which XLA folds nothing.

        Raises:
            UnknownInputError: a path names no input.
            StepTypeError: as a step; by the function as well, where an input is of another type.
        """
        given = self._dynamic(args, {})
        self._check_state("remainder", state)
        function = self._function
        moving = names_in("remainder(moving=...)", moving)
        unknown = [path for path in moving if path not in self._paths]
        if unknown:
            raise unknown_input(unknown[0], self._paths)
        chosen = list(map(self._paths.index, moving))
        plan, held = function.remainder(self._checked(given), state.saved, chosen)
        names = list(held)
        facts = function.facts
        inputs = [facts.invars[i] for i in chosen]
        types = dict(enumerate(map(type_of, given)))

        def evaluate(read: tuple[Values, Results], *moved: Any) -> Any:
            arrays, kept = read
            new = dict(zip(chosen, moved, strict=True))
            for i, x in new.items():
                self._check_type(i, x)
            now = types | {i: type_of(x) for i, x in new.items()}
            are_weak = self._weak_results(now.values())
            values = dict(zip(names, map(unfolded, arrays), strict=True))
            values.update(zip(inputs, map(as_strong, moved), strict=True))
            results = list(function.evaluated(plan, values))
            return self._result(plan.outputs_with(kept, results), are_weak)

        return jax.tree_util.Partial(evaluate, (tuple(held.values()), list(state.outputs)))

    def _weak_results(self, types: Iterable[Any]) -> tuple[bool, ...]:
        """Which results are of weak type at leaves of these types, which may be weak where the
        examples' were not, and the other way round.

        Raises:
            StepTypeError: another type than a weak one makes the function compute with other
                dtypes.
        """
        types = tuple(types)
        weak = _are_weak(types)
        known = self._weak_outputs.get(weak)
        if known is None:
            traced = self._retrace(types)
            if list(_computed_types(traced.eqns)) != list(_computed_types(self._traced.eqns)):
                examples = next(iter(self._weak_outputs))
                other = [
                    path for path, a, b in zip(self._paths, weak, examples, strict=True) if a != b
                ]
                raise other_weak_type(other)
            known = self._weak_outputs[weak] = _are_weak(map(type_of, traced.outvars))
        return known

    def _dynamic(self, args: Args, kwargs: Kwargs) -> Values:
        """The leaves that are values, if all others are as they were."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        if treedef != self._signature.treedef:
            raise other_structure(treedef, self._signature.treedef)
        if not self._signature.same_statics(leaves):
            raise other_statics(tuple(self._signature.named_statics))
        return self._signature.dynamic_leaves(leaves)

    def _checked(self, leaves: Values, hidden: Sequence[int] = ()) -> tuple[jax.Array, ...]:
        """Leaves as arrays, if they have the known types and, but for hidden ones, are the frozen
        objects.
        """
        for index, x in enumerate(leaves):
            is_other = index in self._frozen and x is not self._frozen[index]
            if is_other and index not in hidden:
                raise other_frozen(self._paths[index])
            self._check_type(index, x)
        return tuple([x if i in self._frozen else as_strong(x) for i, x in enumerate(leaves)])

    def _check_type(self, index: int, x: Any) -> None:
        known = self._signature.dynamic_types[index]
        if not same_type(x, known):
            raise other_type(self._paths[index], type_text(descriptor(x)), type_text(known))

    def _check_state(self, method: str, state: Any) -> None:
        facts = self._function.facts
        saved = [var for segment in self._function.segments for var in segment.saves]
        types = map(type_of, (*self._carried(facts.invars), *saved, *facts.outvars))
        self._origin.check(method, state, PureState, types)

    def _carried(self, leaves: Values) -> tuple[Any, ...]:
        return tuple([x for i, x in enumerate(leaves) if i not in self._frozen])

    def _all_inputs(self, carried: Values, leaves: Values) -> Results:
        """The carried inputs with the frozen leaves in their places."""
        rest = iter(carried)
        return [x if i in self._frozen else next(rest) for i, x in enumerate(leaves)]


def _either(flag: Any, run: Callable[[], Any], old: Any) -> Any:
    """What is computed where a flag is set, else what there was; a flag that is known chooses while
    JAX traces.
    """
    if isinstance(flag, bool):
        return run() if flag else old
    return lax.cond(flag, run, lambda: old)


def _newer(flag: Any, old: Any, new: Any) -> Any:
    """The input to carry on; the old buffer where nothing changed, so that large data are not
    copied at each step.
    """
    is_small = flag is not False and new.size < LARGE_SIZE
    return _either(is_small or flag, lambda: new, old)


_fingerprint = jax.jit(fingerprint)


def _are_weak(types: Iterable[Any]) -> tuple[bool, ...]:
    """Which of some types are weak, as that of a Python number is."""
    return tuple([bool(getattr(known, "weak_type", False)) for known in types])


def _computed_types(eqns: Sequence[Equation]) -> Iterator[tuple[Any, ...]]:
    """What is computed in which dtypes, in order; conversions that only take a weak type away are
    left out.
    """
    for eqn in eqns:
        avals = [
            (str(x.aval.shape), str(x.aval.dtype))
            for x in (*eqn.invars, *eqn.outvars)
            if hasattr(x.aval, "dtype")
        ]
        if eqn.primitive.name == "convert_element_type" and avals[0] == avals[-1]:
            continue
        yield eqn.primitive.name, tuple(avals)
        for body in _jax.sub_bodies(eqn):
            yield from _computed_types(body.eqns)
