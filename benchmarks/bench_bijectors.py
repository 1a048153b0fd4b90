"""Question: what does the log-density of a sample cost, when the bijection remembers where the
sample came from?

Flows of FlowJAX in 32 dimensions with 5 layers, 256 events. "plain" is `y = forward(x);
log_prob(y)` of FlowJAX inside `jax.jit`; "by hand" is `sample_and_log_prob`, which a user calls who
knows of it and has both in one place. Targets: an inverse autoregressive flow >= 15 times plain,
for the value and with the gradient, a spline coupling flow >= 1.8 times, both <= 1.1 times by hand;
the forward pass alone <= 1.05 times plain. Outside of programs: a lookup of an inverse <= 6 us, a
record <= 2 us beyond the compiled pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flowjax.bijections as fb
import flowjax.distributions as fd
import flowjax.flows as ff
import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import OURS, Line, Options, Speed, within

from incrax import bijectors

PLAIN, BY_HAND = "FlowJAX", "by hand"
KEY = jax.random.key(0)


class Sizes(NamedTuple):
    dim: int
    layers: int
    batch: int
    width: int


def flows(sizes: Sizes) -> dict[str, tuple[Any, float | None]]:
    """The bijections, and how much faster than plain each should be."""
    base = fd.Normal(jnp.zeros(sizes.dim))
    given = {"base_dist": base, "flow_layers": sizes.layers, "nn_width": sizes.width}
    spline = fb.RationalQuadraticSpline(knots=8, interval=4)
    autoregressive = ff.masked_autoregressive_flow(KEY, invert=False, **given).bijection
    return {
        "inverse autoregressive": (autoregressive, 15.0),
        "spline coupling": (
            ff.coupling_flow(KEY, transformer=spline, invert=False, **given).bijection,
            1.8,
        ),
        "affine coupling": (ff.coupling_flow(KEY, invert=False, **given).bijection, None),
    }


def split(bijection: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """The arrays of a bijection, and how to put arrays in their places."""
    leaves, treedef = jax.tree.flatten(bijection)
    is_array = [isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]

    def merged(arrays: Any) -> Any:
        rest = iter(arrays)
        filled = [next(rest) if flag else x for x, flag in zip(leaves, is_array, strict=True)]
        return jax.tree.unflatten(treedef, filled)

    return [x for x, flag in zip(leaves, is_array, strict=True) if flag], merged


def forms(bijection: Any) -> tuple[list[Any], dict[str, Any]]:
    """Sum of log q(y) of samples y, three ways, as functions of parameters and base samples."""
    from paramax import unwrap

    arrays, merged = split(bijection)
    normal = lambda x: -0.5 * jnp.sum(x**2, axis=-1)

    def plain(arrays: Any, xs: Any) -> Any:
        b = unwrap(merged(arrays))
        ys = jax.vmap(b.transform)(xs)
        us, ladj = jax.vmap(b.inverse_and_log_det)(ys)
        return jnp.sum(normal(us) + ladj) + jnp.sum(ys)

    def ours(arrays: Any, xs: Any) -> Any:
        b = bijectors.remember(unwrap(merged(arrays)))
        ys = b.forward(xs)
        us, ladj = b.inverse_and_log_det(ys)
        return jnp.sum(normal(us) + ladj) + jnp.sum(ys)

    def by_hand(arrays: Any, xs: Any) -> Any:
        b = unwrap(merged(arrays))
        ys, ladj = jax.vmap(b.transform_and_log_det)(xs)
        return jnp.sum(normal(xs) - ladj) + jnp.sum(ys)

    return arrays, {PLAIN: plain, OURS: ours, BY_HAND: by_hand}


def lines(options: Options) -> Iterator[Line]:
    """Values, values with gradients, forward passes alone, then calls outside of programs."""
    sizes = Sizes(4, 2, 8, 8) if options.quick else Sizes(32, 5, 256, 50)
    xs = jnp.asarray(np.random.default_rng(1).normal(size=(sizes.batch, sizes.dim)))
    for name, (bijection, factor) in flows(sizes).items():
        arrays, three = forms(bijection)
        for what, transform in {
            "value": lambda f: f,
            "value and gradient": jax.value_and_grad,
        }.items():
            case = f"{name}, {what}"
            if options.only in case:
                compiled = {form: jax.jit(transform(f)) for form, f in three.items()}
                yield timed(
                    case,
                    compiled,
                    (arrays, xs),
                    options,
                    [factor and Speed(PLAIN, factor), within(1.1, BY_HAND)],
                )
        case = f"{name}, forward alone"
        if options.only in case:
            yield forward_alone(case, bijection, xs, options)
    for case, run in {"lookup of an inverse": lookup, "record": record}.items():
        if options.only in case:
            yield run(case, next(iter(flows(sizes).values()))[0], xs, options)


def timed(case: str, compiled: dict[str, Any], args: Any, options: Options, targets: Any) -> Line:
    """Three forms by turns."""
    timings = harness.compare(compiled, lambda _: args, options.rounds, warm=3, rtol=None)
    return harness.timing_line(
        case, timings, [] if options.quick else [target for target in targets if target]
    )


def forward_alone(case: str, bijection: Any, xs: Any, options: Options) -> Line:
    """A pass whose inverse nobody asks for."""
    arrays, merged = split(bijection)
    compiled = {
        PLAIN: jax.jit(lambda arrays, xs: jax.vmap(merged(arrays).transform)(xs)),
        OURS: jax.jit(lambda arrays, xs: bijectors.remember(merged(arrays)).forward(xs)),
    }
    return timed(case, compiled, (arrays, xs), options, [within(1.05, PLAIN)])


def lookup(case: str, bijection: Any, xs: Any, options: Options) -> Line:
    """An inverse from memory."""
    b = bijectors.remember(bijection)
    ys = b.forward(xs)
    return microseconds(case, lambda: b.inverse(ys), options, 6.0)


def record(case: str, bijection: Any, xs: Any, options: Options) -> Line:
    """A pass of next to no work, with and without memory."""
    b = bijectors.remember(fb.Affine(jnp.zeros(2), jnp.ones(2)))
    x = jnp.ones(2)

    def plain() -> Any:
        return b.forward(x)

    with bijectors.set_record_flow_graph(False):
        plain()
    beyond = []
    for _ in range(3 if options.quick else 15):
        ours = seconds(plain, options)
        with bijectors.set_record_flow_graph(False):
            beyond.append(ours - seconds(plain, options))
    return limited(case, 1e6 * float(np.median(beyond)), options, 2.0)


def seconds(run: Callable[[], Any], options: Options, num: int = 2000) -> float:
    """Median seconds of a call."""
    num = 100 if options.quick else num
    found = []
    for _ in range(num):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return float(np.median(found))


def microseconds(case: str, run: Callable[[], Any], options: Options, most: float) -> Line:
    run()
    return limited(case, 1e6 * seconds(run, options), options, most)


def limited(case: str, found_us: float, options: Options, most: float) -> Line:
    checks = [] if options.quick else [harness.limit("us", found_us, most)]
    return Line(case, {"us": f"{found_us:.2f}"}, {"us": found_us}, checks)


if __name__ == "__main__":
    options = harness.start(__doc__, rounds=30, quick_rounds=2)
    harness.report("bijections that remember", lines(options), options)
