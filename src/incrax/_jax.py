"""The seam to JAX: the only module that imports JAX's inner interfaces.

In: nothing of incrax. Out: the jaxpr vocabulary, an equation evaluator, readers for call-like and
loop equations, and the ambient trace and configuration. It must not know about plans or saved
values.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.dtypes
import jax.numpy as jnp
import numpy as np
from jax._src import array as _array
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info
from jax._src import tree_util as _tree_util
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import batching as _inner_batching
from jax._src.interpreters import partial_eval as _inner_pe
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax
from jax._src.state.types import AbstractRef as _AbstractRef
from jax.experimental.xla_metadata import set_xla_metadata
from jax.interpreters import ad as _ad
from jax.interpreters import batching as _batching
from jax.interpreters import mlir as _mlir
from jax.interpreters import partial_eval as _pe
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

T = TypeVar("T")
Atom: TypeAlias = Any  # Var | Literal

Values: TypeAlias = Sequence[Any]
"""What some variables hold, in their order: arrays, or what stands for them."""
Results: TypeAlias = list[Any]
"""What a program returns."""

if TYPE_CHECKING:
    # What incrax reads of these classes; JAX declares their fields too generally for a checker.
    class Var:
        aval: Any

    class DropVar(Var): ...

    class Literal:
        aval: Any
        val: Any

        def __init__(self, val: Any, aval: Any) -> None: ...

    class Equation:
        primitive: Any
        invars: list[Atom]
        outvars: list[Var]
        params: dict[str, Any]
        effects: frozenset[Any]
        source_info: Any
        ctx: Any

        def replace(self, **fields: Any) -> Equation: ...

else:
    Var = _core.Var
    DropVar = _core.DropVar
    Literal = _core.Literal
    Equation = _core.JaxprEqn

_ClosedJaxpr: Any = getattr(_core, "ClosedJaxpr", _core.Jaxpr)
"""Two classes before JAX 0.12. All are public as `jax.extend.core`, whose import takes 30 ms, most
of them for Pallas.
"""

Tracer: TypeAlias = _core.Tracer
ArrayImpl = _array.ArrayImpl
"""The class of concrete arrays; tracers are instances of `jax.Array` but not of this."""

outside_traces = _core.eval_context
"""A context in which no function is being traced. What is traced in it stages out all that it
computes; under `jax.ensure_compile_time_eval` it would compute with what is constant at once.
"""


class Body(NamedTuple):
    """A jaxpr opened: `constvars` are bound to `consts`, `invars` to the arguments."""

    invars: tuple[Var, ...]
    constvars: tuple[Var, ...]
    consts: tuple[Any, ...]
    eqns: tuple[Equation, ...]
    outvars: tuple[Atom, ...]


def open_jaxpr(jaxpr: Any) -> Body:
    """The parts of an open or closed jaxpr (one class since JAX 0.12, two before)."""
    consts = tuple(getattr(jaxpr, "consts", ()))
    inner = jaxpr.jaxpr if isinstance(jaxpr, _ClosedJaxpr) else jaxpr
    return Body(
        tuple(inner.invars), tuple(inner.constvars), consts, tuple(inner.eqns), tuple(inner.outvars)
    )


def is_jaxpr(x: Any) -> bool:
    """Whether a parameter of an equation is a jaxpr, open or closed."""
    return isinstance(x, (_core.Jaxpr, _ClosedJaxpr))


def trace_body(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Body:
    """Trace `fun` on example arguments or avals."""
    return open_jaxpr(jax.make_jaxpr(fun)(*args, **kwargs))


def own_arrays(jaxpr: Any) -> None:
    """Put copies in the place of the arrays of NumPy that a new trace holds: whoever closed over
    them may write to them, and JAX reads them whenever it lowers. Those without axes are literals.

    In place, so that the `jax.jit` that made the trace has the copies; but what is inside is shared
    with other programs, and is replaced.
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, _ClosedJaxpr) else jaxpr
    owned = _owned_body(open_jaxpr(jaxpr))
    jaxpr.consts[:] = owned.consts
    inner.eqns[:] = owned.eqns
    inner.outvars[:] = owned.outvars


def _owned_body(body: Body) -> Body:
    """A body with copies; the very one where it holds no array."""
    parts = [
        [*map(_owned, body.consts)],
        [*map(_owned_equation, body.eqns)],
        [*map(_owned, body.outvars)],
    ]
    before = (*body.consts, *body.eqns, *body.outvars)
    if all(map(operator.is_, itertools.chain(*parts), before)):
        return body
    consts, eqns, outvars = map(tuple, parts)
    return body._replace(consts=consts, eqns=eqns, outvars=outvars)


def _owned_equation(eqn: Equation) -> Equation:
    eqn = with_bodies(eqn, _owned_body)
    for x in eqn.invars:  # by `any`, this takes twice as long, of all that a first call adds
        if type(x) is Literal and isinstance(x.val, np.ndarray):
            return eqn.replace(invars=[*map(_owned, eqn.invars)])
    return eqn


def _owned(x: Any) -> Any:
    """A constant, or an atom."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if type(x) is Literal and isinstance(x.val, np.ndarray):
        return Literal(x.val.copy(), x.aval)
    return x


def closed_jaxpr(body: Body) -> Any:
    """Rebuild a closed jaxpr that evaluates `body`."""
    effects = frozenset().union(*(eqn.effects for eqn in body.eqns))
    debug_info = _new_debug_info()
    parts = [list(part) for part in (body.constvars, body.invars, body.outvars, body.eqns)]
    make_jaxpr: Any = _core.Jaxpr
    jaxpr = make_jaxpr(*parts, effects, debug_info)
    return _ClosedJaxpr(jaxpr, list(body.consts))


def pruned(body: Body) -> tuple[Body, list[bool]]:
    """What the outputs and effects need, in inner jaxprs of loops too; and which inputs that
    reads.
    """
    jaxpr = closed_jaxpr(body)
    inner: Any = getattr(jaxpr, "jaxpr", jaxpr)
    kept, is_used = _pe.dce_jaxpr(inner, [True] * len(body.outvars))
    return open_jaxpr(kept)._replace(consts=body.consts), list(is_used)


def reached(body: Body, variables: Iterable[Var]) -> set[Any]:
    """The variables and all of a body that depend on them."""
    found: set[Any] = set(variables)
    for eqn in body.eqns:
        if any(not isinstance(atom, Literal) and atom in found for atom in eqn.invars):
            found.update(eqn.outvars)
    return found


def evaluate(eqns: Iterable[Equation], env: dict[Var, Any]) -> None:
    """Bind each equation in order, reading from and writing to `env`; keeps each equation's context
    and source.
    """
    for eqn in eqns:
        values = [atom.val if isinstance(atom, Literal) else env[atom] for atom in eqn.invars]
        env.update(zip(eqn.outvars, apply(eqn, values), strict=True))


def at_source_of(eqn: Equation) -> Any:
    """A context in which what is traced comes of the line of the user's code that an equation does."""
    name_stack = _source_info.current_name_stack()
    return _source_info.user_context(eqn.source_info.traceback, name_stack=name_stack)


def apply(eqn: Equation, values: Values) -> Values:
    """What an equation makes of some values, under its own context and source."""
    name_stack = _source_info.current_name_stack() + eqn.source_info.name_stack
    mesh = jax.sharding.get_abstract_mesh()
    with _source_info.user_context(eqn.source_info.traceback, name_stack=name_stack):
        if mesh.manual_axes:
            return _bind_in_shard_map(eqn, values, mesh)
        with eqn.ctx.manager:
            return _bind(eqn, values)


def _bind(eqn: Equation, values: Values) -> Values:
    params = eqn.primitive.get_bind_params(eqn.params)
    results = eqn.primitive.bind(*values, **params)
    return results if eqn.primitive.multiple_results else [results]


def _bind_in_shard_map(eqn: Equation, values: Values, mesh: Any) -> Values:
    """The same of an equation that was traced outside a `shard_map`, whose mesh is none.

    Where it checks what varies, primitives want values that differ between devices along the same
    axes. The functions of `jax.lax` see to it; bound primitives, and inner jaxprs, do not.
    """
    axes = frozenset().union(*map(_varying_axes, values))
    if axes:
        values = varying_alike(values)
        eqn = with_bodies(eqn, lambda body: _varying_body(body, axes, mesh))
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        return _bind(eqn, values)


def varying_alike(tree: Any) -> Any:
    """The same values, of which each is known to differ along all axes along which one is: then
    branches that read some of them return results of the same types.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    axes = frozenset().union(*map(_varying_axes, jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: _as_varying(x, axes), tree)


def _varying_axes(x: Any) -> frozenset[Any]:
    """The axes of the mesh along which a value is known to differ; none where nobody checks."""
    return getattr(getattr(jax.typeof(x), "mat", None), "varying", frozenset())


def _as_varying(x: Any, axes: frozenset[Any]) -> Any:
    missing = tuple(axes - _varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _varying_body(body: Body, axes: frozenset[Any], mesh: Any) -> Body:
    """A body of which all inputs and outputs vary along some axes."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    varying = _core.ManualAxisType(varying=axes)
    avals = [var.aval.update(sharding=everywhere, manual_axis_type=varying) for var in body.invars]

    def run(*values: Any) -> Results:
        env = dict(zip(body.constvars, body.consts, strict=True))
        env.update(zip(body.invars, values, strict=True))
        evaluate(body.eqns, env)
        return [_as_varying(read(atom, env), axes) for atom in body.outvars]

    return trace_body(run, *avals)


def as_product(eqn: Equation) -> Equation:
    """The square of an equation's input as a product."""
    aval = eqn.invars[0].aval
    (product,) = trace_body(
        lambda x: jax.lax.mul(x, x), jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    ).eqns
    return eqn.replace(
        primitive=product.primitive, invars=[*eqn.invars, *eqn.invars], params=product.params
    )


def read(atom: Atom, env: Mapping[Var, Any]) -> Any:
    """The value of an atom."""
    return atom.val if isinstance(atom, Literal) else env[atom]


def new_var(aval: Any) -> Var:
    """A fresh variable of the given type."""
    var: Any = _core.Var(aval)
    return var


def literal(value: Any, aval: Any) -> Literal | None:
    """A scalar constant written into an equation; None where a Python scalar cannot carry its weak
    type.
    """
    if not getattr(aval, "weak_type", False):
        return Literal(np.asarray(value, aval.dtype), aval)
    scalar = np.asarray(value, aval.dtype).item()
    return (
        Literal(scalar, aval) if jax.dtypes.canonicalize_dtype(type(scalar)) == aval.dtype else None
    )


# --- call-like equations --------------------------------------------------------------------------

_CALL_PARAMS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}


LOOP = "incrax_loop"
"""Name of the primitive of `control_flow.loops.primitive`."""


def called_jaxpr(eqn: Equation) -> Any | None:
    """The jaxpr that a call-like equation evaluates on exactly its inputs, or None if it must stay
    closed.
    """
    param = _CALL_PARAMS.get(eqn.primitive.name)
    if param is None or any("Ref" in type(effect).__name__ for effect in eqn.effects):
        return None
    if eqn.primitive.name == "jit" and not _is_plain_jit(eqn.params):
        return None
    return eqn.params.get(param)


def opaque_call(eqn: Equation) -> tuple[Any, list[Atom]] | None:
    """The jaxpr, and its inputs, that a linear solve or an operation made of others evaluates; None
    for the rest.
    """
    if eqn.primitive.name == "call_hi_primitive" and not eqn.effects:
        expand: Any = eqn.primitive
        types = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in eqn.invars]
        return closed_jaxpr(
            trace_body(lambda *xs: expand.to_lojax(*xs, **eqn.params), *types)
        ), list(eqn.invars)
    if eqn.primitive.name != "custom_linear_solve":
        return None
    lengths = eqn.params["const_lengths"]
    jaxprs = eqn.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    return jaxprs.solve, [*eqn.invars[first : first + lengths.solve], *eqn.invars[sum(lengths) :]]


def _is_plain_jit(params: dict[str, Any]) -> bool:
    placed = [*params.get("in_shardings", ()), *params.get("out_shardings", ())]
    layouts = [*params.get("in_layouts", ()), *params.get("out_layouts", ())]
    return (
        all(type(each).__name__ == "UnspecifiedValue" for each in placed)
        and all(each is None for each in layouts)
        and not params.get("compiler_options_kvs")
    )


# --- loops and branches ---------------------------------------------------------------------------


def scan_counts(eqn: Equation) -> tuple[int, int]:
    """(number of constants, number of carries) of a scan equation."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(list(consts.vals)), len(list(carry.vals))


class LoopParts(NamedTuple):
    """The parts of a loop: how many of what it takes, or its body takes, are constants, and how many
    are carried; the rest are rows. Its options, if it is a scan.
    """

    num_consts: int
    num_carry: int
    options: tuple[tuple[str, Any], ...] = ()

    def split(self, taken: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
        """Constants, carries and rows."""
        values = list(taken)
        first = self.num_consts + self.num_carry
        return values[: self.num_consts], values[self.num_consts : first], values[first:]

    def split_results(self, results: Sequence[T]) -> tuple[list[T], list[T]]:
        """Carries, and what each turn makes beside them."""
        return list(results[: self.num_carry]), list(results[self.num_carry :])

    def run(self, turn: Callable[..., Any], carry: Values, rows: Values) -> Results:
        """The results of all turns of a function `(carry, rows) -> (carry, results)`."""
        last, stacked = jax.lax.scan(turn, list(carry), list(rows), **dict(self.options))
        return [*last, *stacked]


def scan_of(eqn: Equation) -> LoopParts:
    """The parts of a scan equation."""
    options = ((name, eqn.params[name]) for name in ("length", "reverse", "unroll"))
    return LoopParts(*scan_counts(eqn), tuple(options))


def sub_bodies(eqn: Equation) -> list[Body]:
    """The jaxprs inside an equation's parameters, opened."""
    return [open_jaxpr(jaxpr) for jaxpr in _core.jaxprs_in_params(eqn.params)]


def with_inner(eqns: Iterable[Equation]) -> Iterator[Equation]:
    """Equations, each followed by those inside it."""
    for eqn in eqns:
        yield eqn
        if not _is_plain(eqn.params):
            for body in sub_bodies(eqn):
                yield from with_inner(body.eqns)


def _is_plain(params: Mapping[str, Any]) -> bool:
    """Whether parameters are numbers and words only, as most are: those hold no jaxpr."""
    return not params or _HOLD_NO_BODY.issuperset(map(type, params.values()))


# --- primitives with rules of their own -----------------------------------------------------------


class Rules(NamedTuple):
    """What a primitive does, on plain values: zero tangents and cotangents, and axes that are not
    there, are None.
    """

    run: Callable[..., Results]  # (*values, **params) -> results, in terms of other primitives
    types: Callable[..., tuple[Results, Any]]  # (*avals, **params) -> avals of the results, effects
    push: Callable[
        ..., tuple[Results, Results]
    ]  # (values, tangents, **params) -> results, their tangents
    batch: Callable[
        ..., tuple[Results, Results]
    ]  # (mapped axis, values, axes, **params) -> results, their axes
    pull: Callable[..., Results] | None = None
    """(cotangents, values, **params) -> cotangents; a linear value is its `Linear`. None: no value
    is linear.
    """


class Linear(NamedTuple):
    """Stands for a value that a primitive is linear in."""

    aval: Any


def new_primitive(name: str, rules: Rules) -> Any:
    """A primitive with several results and these rules."""
    primitive = _core.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(partial(_dispatch.apply_primitive, primitive))
    primitive.def_effectful_abstract_eval(rules.types)
    _mlir.register_lowering(primitive, _mlir.lower_fun(rules.run, multiple_results=True))
    _ad.primitive_jvps[primitive] = partial(_push, rules.push)
    if rules.pull is not None:
        _ad.primitive_transposes[primitive] = partial(_pull, rules.pull)
    _batching.fancy_primitive_batchers[primitive] = rules.batch
    return primitive


def _push(rule: Any, primals: Values, tangents: Values, **params: Any) -> tuple[Results, Results]:
    outs, moved = rule(primals, [None if type(t) is _ad.Zero else t for t in tangents], **params)
    return outs, [
        _ad.Zero(jax.typeof(x).to_tangent_aval()) if t is None else t
        for x, t in zip(outs, moved, strict=True)
    ]


def _pull(rule: Any, cotangents: Values, *args: Any, **params: Any) -> Results:
    values = [Linear(x.aval) if _ad.is_undefined_primal(x) else x for x in args]
    return rule([None if type(ct) is _ad.Zero else ct for ct in cotangents], values, **params)


def batched_along_rows(
    axis: Any, jaxpr: Any, is_mapped: Sequence[bool], always: Sequence[bool]
) -> tuple[Any, list[bool]]:
    """A closed jaxpr over a mapped axis, the first of what is mapped; and which results are: those
    that depend on it, and some always.
    """
    return _inner_batching.batch_jaxpr(jaxpr, axis, is_mapped, list(always))


# --- marked values --------------------------------------------------------------------------------

KEEP = "incrax_keep"
"""Name of the primitive (*values, *dependencies) -> values, the identity that says something of
values.

Parameters: the number of values; the name that the user gave them; whether they are worth saving;
whether they depend on the dependencies only.
"""


def _kept(*xs: Any, num_values: int, **_: Any) -> Results:
    return list(xs[:num_values])


def keep(values: Values, dependencies: Values | None, name: str | None) -> Results:
    """The values, marked as worth saving; dependent on the dependencies only, unless these are
    None.
    """
    is_narrowed = dependencies is not None
    params = {"num_values": len(values), "name": name, "is_kept": True, "is_narrowed": is_narrowed}
    return _keep_p.bind(*values, *(dependencies or ()), **params)


def as_constant(value: Any, name: str | None) -> Any:
    """The value, marked as dependent on nothing."""
    return _keep_p.bind(value, num_values=1, name=name, is_kept=False, is_narrowed=True)[0]


def _keep_along(xs: Values, along: Values, **params: Any) -> Any:
    """Marked values, with tangents or axes of theirs, which need no mark."""
    return _keep_p.bind(*xs, **params), _kept(*along, **params)


_keep_p = new_primitive(
    KEEP,
    Rules(
        run=_kept,
        types=lambda *avals, **params: (_kept(*avals, **params), frozenset()),
        push=_keep_along,
        batch=lambda _, xs, axes, **params: _keep_along(xs, axes, **params),
    ),
)
_keep_p.def_impl(_kept)  # compiles nothing


# --- calls that XLA compiles into one kernel ------------------------------------------------------


ONE_KERNEL = "incrax_one_kernel"


def evaluated(jaxpr: Any, values: Values) -> Results:
    """The results of a closed jaxpr."""
    return _core.jaxpr_as_fun(jaxpr)(*values)


def one_kernel(jaxpr: Any, values: Values) -> Results:
    """The same, on a CPU by one kernel."""
    return _one_kernel_p.bind(*values, jaxpr=jaxpr)


def _run_marked(*values: Any, jaxpr: Any) -> Results:
    def run(*values: Any) -> Results:
        # One number of each argument: XLA ends the process where it finds that nothing reads one.
        return [*evaluated(jaxpr, values), *(x.reshape(-1)[:1] for x in values)]

    # XLA inlines calls before it looks for marks, if it may.
    called = jax.jit(run)(*values)[: len(jaxpr.out_avals)]
    marks = {"inlineable": "false", "xla_cpu_small_call": "true"}
    return [cast(Any, set_xla_metadata)(x, **marks) for x in called]


def _lower_on_cpu(ctx: Any, *values: Any, jaxpr: Any) -> Any:
    context = ctx.module_context.axis_context
    is_alone = isinstance(context, _sharding_impls.ShardingContext) and context.num_devices == 1
    run = _run_marked if is_alone else _run_inlined
    return _mlir.lower_fun(run, multiple_results=True)(ctx, *values, jaxpr=jaxpr)


def _run_inlined(*values: Any, jaxpr: Any) -> Results:
    return evaluated(jaxpr, values)


def _push_inlined(values: Values, tangents: Values, *, jaxpr: Any) -> tuple[Results, Results]:
    moving = [k for k, tangent in enumerate(tangents) if tangent is not None]

    def run(*own: Any) -> Results:
        given = dict(zip(moving, own, strict=True))
        return evaluated(jaxpr, [given.get(k, x) for k, x in enumerate(values)])

    outs, moved = jax.jvp(run, [values[k] for k in moving], [tangents[k] for k in moving])
    return outs, [None if t.dtype == jax.dtypes.float0 else t for t in moved]


def _batch_inlined(
    axis: Any, values: Values, axes: Values, *, jaxpr: Any
) -> tuple[Results, Results]:
    # Not `jax.vmap`, which would spread what is not mapped along the axis, and not over its devices.
    batched, out_axes = _inner_batching.batch_jaxpr2(jaxpr, axis, tuple(axes))
    return evaluated(batched, values), list(out_axes)


_one_kernel_p = new_primitive(
    ONE_KERNEL,
    Rules(
        run=_run_inlined,
        types=lambda *_, jaxpr: (list(jaxpr.out_avals), frozenset()),
        push=_push_inlined,
        batch=_batch_inlined,
    ),
)
_mlir.register_lowering(_one_kernel_p, _lower_on_cpu, platform="cpu")


def stacked_aval(aval: Any, num: int) -> Any:
    """The type of `num` values of a type."""
    return _core.ShapedArray((num, *aval.shape), aval.dtype, weak_type=aval.weak_type)


def row_aval(aval: Any) -> Any:
    """The type of a row of an array."""
    return _core.ShapedArray(aval.shape[1:], aval.dtype, weak_type=aval.weak_type)


# --- functions on the host ------------------------------------------------------------------------


def with_bodies(eqn: Equation, change: Callable[[Body], Body]) -> Equation:
    """The equation with each jaxpr in its parameters changed; the very one if `change` gives the
    very bodies.
    """
    if _is_plain(eqn.params):
        return eqn
    changed: dict[str, Any] = {}
    for name, value in eqn.params.items():
        new = _with_bodies(value, change)
        if new is not value:
            changed[name] = new
    return eqn.replace(params={**eqn.params, **changed}) if changed else eqn


_HOLD_NO_BODY = frozenset({bool, int, float, str, type(None)})
"""Types of nearly all parameters, or of what is in them."""


def _with_bodies(value: Any, change: Callable[[Body], Body]) -> Any:
    """A parameter likewise; the very object where no jaxpr in it changes."""
    parts = value if type(value) is tuple else (value,)
    if _HOLD_NO_BODY.issuperset(map(type, parts)):
        return value
    if isinstance(value, (tuple, list)):
        inner = [_with_bodies(x, change) for x in value]
        if all(map(operator.is_, inner, value)):
            return value
        # jaxprs of a linear solve are in a named tuple
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    if not is_jaxpr(value):
        return value
    body = open_jaxpr(value)
    changed = change(body)
    if changed is body:
        return value
    is_closed = isinstance(value, _ClosedJaxpr)
    jaxpr: Any = value.jaxpr if is_closed else value
    parts = {
        name: list(getattr(changed, name)) for name in ("constvars", "invars", "eqns", "outvars")
    }
    replaced = jaxpr.replace(**parts)
    return value.replace(jaxpr=replaced, consts=list(changed.consts)) if is_closed else replaced


def with_host_functions(eqn: Equation, wrap: Callable[[Equation], Callable[..., Any]]) -> Equation:
    """The equation with each function that it calls on the host, in inner jaxprs too, replaced as
    `wrap` says.
    """

    def change(body: Body) -> Body:
        eqns = tuple(with_host_functions(inner, wrap) for inner in body.eqns)
        is_same = all(new is old for new, old in zip(eqns, body.eqns, strict=True))
        return body if is_same else body._replace(eqns=eqns)

    eqn = with_bodies(eqn, change)
    if calls_host(eqn) and callable(eqn.params.get("callback")):
        return eqn.replace(params={**eqn.params, "callback": wrap(eqn)})
    return eqn


def calls_host(eqn: Equation) -> bool:
    """Whether an equation, itself, calls a function on the host."""
    return "callback" in eqn.primitive.name


# --- types ----------------------------------------------------------------------------------------


def is_ref(aval: Any) -> bool:
    """Whether an aval is a mutable reference."""
    return isinstance(aval, _AbstractRef)


def short_type(aval: Any) -> str:
    """A type as reports and messages show it: `f64[3]`."""
    return aval.str_short(short_dtypes=True)


def aval_bytes(aval: Any) -> int:
    """Size of a value of this type, bytes; 0 for tokens and references."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not hasattr(aval, "shape"):
        return 0
    return aval_size(aval) * int(getattr(dtype, "itemsize", 8))


def aval_size(aval: Any) -> int:
    """Number of elements of a value of this type."""
    size = math.prod(getattr(aval, "shape", ()))
    return size if isinstance(size, int) else 1


def only_platform() -> str | None:
    """The platform of all devices of this process; None where there are several."""
    found = {
        device.platform
        for backend in _xla_bridge.backends().values()
        for device in backend.devices()
    }
    return found.pop() if len(found) == 1 else None


def bool_aval() -> Any:
    """The type of a boolean scalar."""
    return array_aval((), bool)


def array_aval(shape: Sequence[int], dtype: Any) -> Any:
    """The type of an array."""
    return _core.ShapedArray(tuple(shape), np.dtype(dtype))


def with_weak_type(x: Any, is_weak: bool) -> Any:
    """The value, of weak type, as one that a Python scalar became has, or not."""
    is_other = is_weak != getattr(jax.typeof(x), "weak_type", False)
    return _lax._convert_element_type(x, x.dtype, weak_type=is_weak) if is_other else x


def as_strong(x: Any) -> jax.Array:
    """The value as an array without weak type: loops carry no other."""
    array = jnp.array(x) if isinstance(x, np.ndarray) else jnp.asarray(x)
    return array if is_key_dtype(array.dtype) else jax.lax.convert_element_type(array, array.dtype)


def typed_as(x: Any, aval: Any) -> Any:
    """The value, of weak type where a type is weak."""
    return with_weak_type(x, getattr(aval, "weak_type", False))


def as_value(atom: Atom, env: dict[Var, Any]) -> Any:
    """A variable's value; of a literal, an array of its type."""
    if not isinstance(atom, Literal):
        return env[atom]
    return typed_as(jnp.asarray(atom.val, atom.aval.dtype), atom.aval)


def as_weak_array(x: ArrayImpl) -> Any:
    """The same buffers as an array with a weak type; compiles nothing."""
    aval = _core.ShapedArray(x.shape, x.dtype, weak_type=True)
    make: Any = ArrayImpl
    return make(aval, x.sharding, x._arrays, committed=x._committed, _skip_checks=True)


def is_key_dtype(dtype: Any) -> bool:
    """Whether a dtype is that of a typed random key."""
    return not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def bits_on_host(x: Any) -> np.ndarray:
    """An array, or a number, as an array of NumPy; a random key as its data."""
    is_key = isinstance(x, jax.Array) and is_key_dtype(x.dtype)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def different_bits(a: jax.Array, b: jax.Array) -> jax.Array:
    """Elementwise, in a graph, whether the bits of two arrays of one type differ: 0.0 is not -0.0, and
    a NaN may be itself; a key has several elements.
    """
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        return different_bits(a.real, b.real) | different_bits(a.imag, b.imag)
    return integers_of(a) != integers_of(b)


def integers_of(x: jax.Array) -> jax.Array:
    """The bits of each element, in a graph, as an integer of its size; of a key, as several."""
    if is_key_dtype(x.dtype):
        return jax.random.key_data(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{x.dtype.itemsize * 8}"))


# --- ambient state --------------------------------------------------------------------------------

is_top_level = _core.trace_state_clean


traces = _core.trace_ctx
evaluating = _core.eval_trace
"""`traces.trace is evaluating` where no transformation is under way: the greater part of
`is_top_level`, without a function.
"""


flatten = _tree_util.default_registry.flatten
"""As `jax.tree.flatten`, without a function of Python in front."""

trace_context = _config.trace_context
TRACED_FLAGS = (_config.debug_nans, _config.debug_infs, _config.default_prng_impl)
"""With the trace's context, all of JAX outside the arguments that changes how a function is traced
and compiled.
"""


def checks_values() -> bool:
    """Whether JAX raises on a NaN or an infinity in any output of a program."""
    return _config.debug_nans.value or _config.debug_infs.value


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device could not allocate what a program needs."""
    return isinstance(error, (RuntimeError, ValueError)) and "RESOURCE_EXHAUSTED" in str(error)


is_jit_disabled: Callable[[], bool] = functools.partial(getattr, _config.disable_jit, "value")
"""Whether the user asked for plain evaluation, operation by operation."""


@functools.lru_cache(256)
def _array_aval(shape: tuple[int, ...], dtype: np.dtype, is_wide: bool) -> Any:
    """The type on the device of an array of NumPy that has the same one there, else None."""
    del is_wide  # 64 bits are allowed: the type on the device depends on it
    return (
        _core.ShapedArray(shape, dtype) if jax.dtypes.canonicalize_dtype(dtype) == dtype else None
    )


@functools.lru_cache(8)
def _on_device(device: Any) -> Any:
    return jax.sharding.SingleDeviceSharding(device)


def to_device(x: np.ndarray) -> jax.Array:
    """`jax.device_put` of an array that nobody writes in, which takes 30 us in Python for 3 in C."""
    aval = _array_aval(x.shape, x.dtype, _config.enable_x64.value)
    is_plain = traces.trace is evaluating and jax.sharding.get_abstract_mesh().empty
    if aval is None or not is_plain:
        return jax.device_put(x)
    device = _pxla.get_default_device()
    return _pxla.batched_device_put(aval, _on_device(device), [x], [device], committed=False)


class _Noted(_source_info.SourceInfo):
    __slots__ = ["note"]


def note(tracer: Tracer, what: Any) -> bool:
    """Keep an object as long as a tracer lives, in the tracer: a table would keep a trace alive
    that failed.

    It goes where JAX notes the line for a message. False if there is no such place.
    """
    old = getattr(tracer, "_line_info", None) or _source_info.current()
    try:
        noted = _Noted(old.traceback, old.name_stack)
        noted.note = what
        tracer._line_info = noted
    except (AttributeError, TypeError):
        return False
    return True


def noted(tracer: Tracer) -> Any:
    """What `note` keeps; None if nothing."""
    line = getattr(tracer, "_line_info", None)
    return line.note if isinstance(line, _Noted) else None


def is_current(tracer: Tracer) -> bool:
    """Whether a tracer is of the present trace or of one around it."""
    return _is_around(tracer, _core.trace_ctx.trace)


def is_innermost(tracer: Tracer) -> bool:
    """Whether a tracer is of the present trace itself."""
    return tracer._trace is _core.trace_ctx.trace


def is_known_with(x: Any, other: Any) -> bool:
    """Whether a value can be used wherever another can: of the same trace, of one around it, or of
    none.
    """
    if not isinstance(x, Tracer):
        return True
    return isinstance(other, Tracer) and _is_around(x, other._trace)


def _is_around(tracer: Tracer, trace: Any) -> bool:
    while trace is not None and trace is not tracer._trace:
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


_OURS = f"{Path(__file__).parent}{os.sep}"
_DEMO = f"{_OURS}demo{os.sep}"


def user_frame(traceback: Any) -> Any | None:
    """The innermost frame that is not JAX's or incrax's, whose demonstration is a user of it; None if
    there is none, as in threads of ours.
    """
    for frame in _source_info.user_frames(traceback):
        if frame.file_name.startswith(_DEMO) or not frame.file_name.startswith(_OURS):
            return frame
    return None


def source_line(eqn: Equation) -> str:
    """`file:line (function)` of the user code that made the equation; empty if none did."""
    frame = user_frame(eqn.source_info.traceback)
    return "" if frame is None else _source_info._summarize_frame(frame)


def is_mutable_array(x: Any) -> bool:
    """Whether a leaf is a mutable array reference (`jax.Ref`)."""
    return isinstance(x, _core.Ref)


# --- recording ------------------------------------------------------------------------------------

JaxprTrace: Any = getattr(_inner_pe, "DynamicJaxprTrace", object)
JaxprTracer: Any = getattr(_inner_pe, "DynamicJaxprTracer", object)
"""The trace that stages equations, and its values; `control_flow.tapes.recording` makes these tell
what they are.
"""


def staged(trace: Any, fun: Callable[..., Values], avals: Values) -> Body:
    """The program of a function of flat arrays, staged by a trace of ours."""
    source = _source_info.current()
    inputs = [trace.new_arg(aval, source) for aval in avals]
    with _core.set_current_trace(trace):
        outputs = fun(*inputs)
    traced = [trace.to_jaxpr_tracer(x, source) for x in outputs]
    jaxpr, consts = trace.to_jaxpr(traced, _new_debug_info(), source)[:2]
    return open_jaxpr(_ClosedJaxpr(jaxpr, list(consts)))


def new_trace(kind: Any) -> Any:
    """A trace of a subclass of `JaxprTrace`."""
    return kind(_new_debug_info(), parent_trace=_core.trace_ctx.trace)


def _new_debug_info() -> Any:
    return _core.DebugInfo("incrax", "incrax", None, None)


concrete_value = _core.to_concrete_value
"""The value of an array, or of the primal of a tracer that has one; None where a tracer has
none.
"""

# --- devices --------------------------------------------------------------------------------------


def unbound(x: Any, device: Any = None) -> Any:
    """An array that one device holds whole, on a device, or the default one, and bound to none: as
    programs of JAX have what they close over. The buffer is shared where it is there.
    """
    if is_key_dtype(x.dtype):
        data = unbound(jax.random.key_data(x), device)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    data = x.addressable_data(0)
    device = _pxla.get_default_device() if device is None else device
    aval = data.aval.update(weak_type=x.aval.weak_type)
    sharding = SingleDeviceSharding(device, memory_kind=x.sharding.memory_kind)
    return _pxla.batched_device_put(aval, sharding, [data], [device], committed=False)


def first_buffer(results: Iterable[Any]) -> list[ArrayImpl]:
    """The first array with a buffer among results, by which one sees whether a program has ended;
    none if all lack it.

    A key does not tell, the array of its words does; `float0` results are arrays of NumPy, and come
    from no device.
    """
    for x in results:
        buffer = getattr(x, "_base_array", x)
        if type(buffer) is ArrayImpl:
            return [buffer]
    return []


is_committed = operator.attrgetter("_committed")
_sharding = operator.attrgetter("_sharding")
"""Whether somebody bound an array to a device, and where it is, without a function of Python in front."""


def is_held_whole(x: Any) -> bool:
    """Whether a device of this process holds all of an array, and no other process any: reading it
    gathers nothing.
    """
    sharding = _sharding(x) if type(x) is ArrayImpl else x.sharding
    if type(sharding) is SingleDeviceSharding:
        # What nobody bound to a device is on one of this process.
        return not is_committed(x) or sharding.is_fully_addressable
    return x.is_fully_addressable and x.is_fully_replicated


def explicit_sharding(aval: Any) -> NamedSharding | None:
    """How a type says that its values are sharded; None where it leaves that to the compiler."""
    sharding = getattr(aval, "sharding", None)
    is_named = isinstance(sharding, NamedSharding)
    return sharding if is_named and sharding.mesh.explicit_axes else None
