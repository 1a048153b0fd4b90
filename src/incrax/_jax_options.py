"""Functions and options of JAX that are spelled otherwise here.

In: a name that incrax lacks, the keywords of a call of ours. Out: what to write. It must not know
what an option does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from incrax._names import parameters_of

P = ParamSpec("P")
R = TypeVar("R")

_BY_ITSELF = (
    "Leave it out: text, None, functions and other values that JAX cannot trace are static by "
    "themselves. A number or a flag that Python code reads: "
    "`incremental(guarded(f, static={value}))`, or `functools.partial` where it stays"
)
_DONATION = (
    "Leave it out: saved values may be read again, so that nothing is donated. `jax.jit` and "
    "`incrax.structured` donate the arguments of a training step"
)
_MAPPED = "Map first: `incremental(jax.vmap(f, {name}={value}))`; a row that changes runs alone"
_PLACED = "Leave it out: results are where the arguments are, and sharded as they are"
ADVICE = {
    "argnums": "Write `wrt={value}`; names of inputs do as well, as `wrt=\"params['mu']\"`",
    "static_argnums": _BY_ITSELF,
    "static_argnames": _BY_ITSELF,
    "donate_argnums": _DONATION,
    "donate_argnames": _DONATION,
    "in_axes": _MAPPED,
    "out_axes": _MAPPED,
    "axis_size": _MAPPED,
    "axis_name": _MAPPED,
    "spmd_axis_name": _MAPPED,
    "sum_match": _MAPPED,
    "has_aux": "Differentiate what alone is returned: `lambda *args: f(*args)[0]`",
    "holomorphic": "Differentiate by JAX: `incremental(jax.grad(f, holomorphic={value}))`",
    "allow_int": "Leave it out: integers have no derivative, and None stands in their place",
    "in_nzs": "Write `wrt=`: what it names has tangents, and nothing else",
    "saveable_args": "Leave it out: residuals that are arguments are not copied",
    "reduce_axes": "Leave it out, as JAX did",
    "in_shardings": _PLACED,
    "out_shardings": _PLACED,
    "device": _PLACED,
    "backend": _PLACED,
    "keep_unused": "Leave it out: arguments that nothing reads cost nothing",
    "inline": "Leave it out: calls inside a program are opened",
    "unroll": "Leave it out: one program serves loops of every length",
    "primals": "Write `incrax.{function}(f)(*args, tangent=tangent)`, for many tangents in turn",
    "tangents": "Write `incrax.{function}(f)(*args, tangent=tangent)`, for many tangents in turn",
    "compiler_options": "Set them for JAX, in the environment variable `XLA_FLAGS`",
}
"""What to write, by JAX's name of an option."""

_ONE_FOR_EACH = "Write `structured(functools.partial(step, ...))`, one for each static value"
_DIFFERENTIATE = "Write `incrax.value_and_grad(f, {name}={value})`, or `incrax.grad`"
ADVICE_OF_ONE = {
    ("incremental", "argnums"): "Write `incrax.grad(f, wrt={value})`",
    ("incremental", "has_aux"): _DIFFERENTIATE,
    ("guarded", "argnums"): "Write `guarded(jax.grad(f, argnums={value}))`",
    ("guarded", "has_aux"): "Write `guarded(jax.grad(f, has_aux={value}))`",
    ("guarded", "static_argnums"): "Write `static={value}`",
    ("guarded", "static_argnames"): "Write `static={value}`",
    ("structured", "static_argnums"): _ONE_FOR_EACH,
    ("structured", "static_argnames"): _ONE_FOR_EACH,
    ("structured", "donate_argnames"): "Write `donate_argnums=`, by position",
}
WENT = {
    ("guarded", "floats"): "Pass the float as `static=`, or compute with `jax.numpy`",
    ("guarded", "dynamic"): "Pass an `incrax.Padded(rows, length)`, or use `incrax.bucketed`",
}
"""What to write in place of an option that 0.1 had."""
SPELLED = {
    ("contour", "size"): "num_points",
    ("gibbs", "num_chains"): "chains",
    ("gibbs", "num_samples"): "num_sweeps",
    ("gibbs", "rng_key"): "key",
    ("profile", "size"): "num_points",
}
"""Our names of options of iminuit and NumPyro."""
SECOND = {
    "grad": "argnums",
    "value_and_grad": "argnums",
    "jacobian": "argnums",
    "hessian": "argnums",
    "jvp": "primals",
    "hvp": "primals",
}
"""What JAX takes by position after the function."""

FUNCTIONS = {
    "linearize": "`push = incrax.jvp(f)` and `push(*args, tangent=t)`, or `jax.linearize`",
    "nonzero": "`jnp.nonzero(x, size=...)`, with `x.size` as the largest",
    "unique": "`jnp.unique(x, size=...)`",
    "jit": "`incrax.incremental(f)`",
    "vmap": "`incrax.incremental(jax.vmap(f))`",
    "pmap": "`incrax.incremental(f)` with sharded arguments",
    "jacfwd": "`incrax.jacobian(f)`",
    "jacrev": "`incrax.jacobian(f)`",
    "custom_jvp": "`jax.custom_jvp`, inside the function",
    "custom_vjp": "`jax.custom_vjp`, inside the function",
    "checkpoint": "`jax.checkpoint`, inside the function",
    "remat": "`jax.checkpoint`, inside the function",
    "cond": "`jax.lax.cond`, or `incrax.guarded(f)` for Python `if`",
    "switch": "`jax.lax.switch`, or `incrax.guarded(f)` for Python `if`",
    "fori_loop": "`incrax.scan(lambda carry, i: (body(i, carry), None), init, jnp.arange(n))`",
    "fit.Minuit": "`incrax.fit.minimize(f, start, x)`, whose `method` is `'migrad'`",
    "fit.migrad": "`incrax.fit.minimize(f, start, x)`, whose `method` is `'migrad'`",
    "fit.mncontour": "`incrax.fit.contour(result, 'mu', 'sigma')`",
    "fit.hesse": "`result.errors`, `result.covariance` of `incrax.fit.minimize(f, start, x)`",
    "fit.minos": "`result.minos('mu')` of `result = incrax.fit.minimize(f, start, x)`",
    "fit.scan": "`incrax.fit.profile(result, 'mu')`, which minimises over all others",
    "fit.curve_fit": "`incrax.fit.levenberg_marquardt(residuals, start, x, y)`",
    "fit.least_squares": "`incrax.fit.levenberg_marquardt(residuals, start, x, y)`",
    "samplers.HMC": "`samplers.Hamiltonian()` for a block of `samplers.gibbs`",
    "samplers.Metropolis": "`samplers.Walk()` for a block of `samplers.gibbs`",
    "samplers.Slice": "`samplers.Walk()` for a block of `samplers.gibbs`, which finds its width",
    "samplers.NUTS": "`numpyro.infer.NUTS(potential_fn=samplers.numpyro_potential(f, start))`",
    "samplers.hmc": "`numpyro.infer.HMC(potential_fn=samplers.numpyro_potential(f, start))`",
    "samplers.nuts": "`numpyro.infer.NUTS(potential_fn=samplers.numpyro_potential(f, start))`",
    "minimize": "`incrax.fit.minimize`",
    "metropolis": "`incrax.samplers.gibbs`",
    "gibbs": "`incrax.samplers.gibbs`",
    "totals": "`f.stats`, of each function",
}
"""What to write, by a name that others have, or 0.1 had, and `incrax` has not."""

METHODS = {
    "lower": "`jax.jit(f).lower(...)`: under `jax.jit` it is the plain function",
    "trace": "`jax.jit(f).trace(...)`: under `jax.jit` it is the plain function",
    "eval_shape": "`jax.eval_shape(f, ...)`",
    "clear_cache": "`f.clear()`, which drops saved values",
    "fork": "`incremental(f, versions=5)` to go back further, or a function for each thread",
}
"""What to write, by the name of a method that `jax.jit`'s functions have, or 0.1's had."""

_PASS_ON = ("vjp",)
"""They take the keywords of the function that they are given."""


def spelled_here(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which answers an option of JAX that it lacks with what to write instead.

    What it has under JAX's name (`has_aux` of `grad`) means the same.
    """
    name = getattr(function, "__name__", "")

    @functools.wraps(function)
    def entry(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 1 and name in SECOND:
            raise _foreign(name, SECOND[name], args[1])
        for option, value in kwargs.items():
            if (name, option) in SPELLED:
                ours = SPELLED[name, option]
                raise TypeError(f"`{name}` has no `{option}`. Write `{ours}={value!r}`.")
            if (name, option) in WENT:
                went = f"`incrax.{name}` has no `{option}` since version 0.2"
                raise TypeError(f"{went}. {WENT[name, option]}.")
        if not ADVICE.keys().isdisjoint(kwargs):
            own = set(parameters_of(function) or ())
            if name in _PASS_ON and args:
                own |= _taken(args[0])
            for option, value in kwargs.items():
                if option in ADVICE and option not in own:
                    raise _foreign(name, option, value)
        return function(*args, **kwargs)

    return entry


def _taken(fun: Any) -> set[str]:
    """Options of JAX whose names a user's function may take itself."""
    parameters = parameters_of(fun)
    if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return set(ADVICE)
    return set(parameters)


def hint(name: str, names: Mapping[str, str]) -> str:
    """What to write instead of a name, as the end of a message; empty where nothing is known."""
    return f"; write {names[name]}" if name in names else ""


def missing(of: Any, name: str, names: Mapping[str, str]) -> AttributeError:
    """The error of `__getattr__`, with what to write instead."""
    text = f"'{type(of).__name__}' object has no attribute '{name}'{hint(name, names)}"
    return AttributeError(text, name=name, obj=of)


def _foreign(name: str, option: str, value: Any) -> TypeError:
    """An option of JAX in a call of ours."""
    advice = ADVICE_OF_ONE.get((name, option), ADVICE[option])
    text = advice.format(name=option, value=repr(value), function=name)
    return TypeError(f"`incrax.{name}` has no `{option}`, which is an option of JAX. {text}.")
