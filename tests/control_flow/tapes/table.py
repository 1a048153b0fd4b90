"""Functions with Python control flow, each with arguments for several of its paths; eager Python is
the answer key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    fun: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    num_paths: int
    is_differentiable: bool = True


def scalars(*values: float) -> list[tuple[Any, ...]]:
    return [(np.float64(v),) for v in values]


def if_else(x):
    return x**3 if x > 1 else x**2


def chain(x):
    if x < 0:
        return -x
    if x == 0:
        return x + 7.0
    if x > 3:
        return x * 10.0
    return jnp.sin(x)


def and_or_not(x):
    if (x > 0 and x < 1) or not x < 3:
        return 2.0 * x
    return -x


def chained_comparison(x):
    return x * 2.0 if 0 < x < 1 else x * 3.0


def while_loop(x):
    count = 0
    while x < 10.0:
        x = x * 2.0
        count += 1
    return x + count


def for_range(n, x):
    for i in range(n):
        x = x * (i + 1.0)
    return x


def for_values(xs):
    total = jnp.zeros(())
    for x in xs:
        if x > 0:
            total = total + x**2
    return total


def assertion(x):
    assert x < 100.0, f"{x} is too large"
    return x + 1.0


def to_int(x):
    return x * int(x)


def truth(x):
    return x + 1.0 if bool(x) else x + 2.0


def item(n, x):
    return x * [2.0, 3.0, 5.0][n.item()]


def index_of_list(n, x):
    return [x, x**2, x**3][n]


def slice_by_value(n, xs):
    return jnp.sum(xs[:n]) + jnp.sum(xs[n:] ** 2)


def index_stays_traced(n, xs):
    return xs[n] * 2.0


def length(xs):
    return jnp.sum(xs) / len(xs) if len(xs) > 2 else xs[0]


def f_string(n, x):
    return x * {"2": 5.0, "3": 7.0}[f"{n}"]


def shape_by_value(n, x):
    return x * jnp.sum(jnp.arange(n)) + jnp.ones(int(n)).sum()


def mask(xs):
    return jnp.sum(xs[xs > 0] ** 2)


def try_except(x):
    try:
        if x < 0:
            raise ValueError(f"negative: {x}")
        return jnp.sqrt(x)
    except ValueError:
        return -x


def minimum_by_python(x, y):
    return min(x, y) * max(x, y) ** 2


def sorted_by_python(xs):
    first, *_, last = sorted(xs)
    return first * last**2


def inner_jit(x):
    y = jax.jit(lambda v: v * 3.0)(x)
    return jax.jit(jnp.cos)(y) if y > 1 else y


def inner_grad(x):
    g = jax.grad(lambda v: v**3 if v > 1 else v**2)(x)
    return g * 2.0 if g > 3 else g


def inner_scan(x):
    y, _ = jax.lax.scan(lambda c, v: (c * v, None), x, jnp.arange(1.0, 4.0))
    return y if y > 6 else y**2


def branch_on_captured_in_scan(x):
    is_positive = x > 0

    def body(c, v):
        return (c + v if is_positive else c - v), None

    return jax.lax.scan(body, x, jnp.arange(3.0))[0]


def inner_while(x):
    y = jax.lax.while_loop(lambda v: v < 10.0, lambda v: v * 2.0, x)
    return y + 1.0 if y > 15.0 else y - 1.0


def custom_rule(x):
    return safe_square(x) if x > 0 else jax.nn.relu(-x) * 2.0


@jax.custom_jvp
def safe_square(x):
    return x**2


safe_square.defjvp(lambda primals, tangents: (primals[0] ** 2, 100.0 * tangents[0]))


@jax.custom_vjp
def scaled(x):
    return x * 3.0


scaled.defvjp(lambda x: (x * 3.0, x), lambda x, ct: (ct * 7.0,))


def custom_reverse_rule(x):
    return scaled(x) if x > 0 else -x


def pytrees(p):
    if p["n"] > 1:
        return {"y": p["xs"][0] * p["xs"][1], "n": p["n"]}
    return {"y": p["xs"][0], "n": p["n"]}


def outputs_of_other_trees(x):
    return (x, x + 1.0) if x > 0 else {"a": x}


def newton(a):
    x = a
    while abs(x * x - a) > 1e-9 * a:
        x = 0.5 * (x + a / x)
    return x


def integers(n):
    return n // 2 if n % 2 == 0 else 3 * n + 1


def random_from_key(key, x):
    u = jax.random.uniform(key)
    return x * u if u > 0.5 else x - u


def of_numpy(n, x):
    return x * float(np.asarray(n).sum())


def match(n, x):
    match int(n):
        case 0:
            return x
        case 1 | 2:
            return x**2
        case _:
            return x**3


def constants_only(x):
    table = jnp.arange(4.0)
    return x * (2.0 if table[3] > 2 else 3.0) * math.pi


CASES: dict[str, Case] = {
    "if": Case(if_else, scalars(0.5, 1.5, 0.7, 2.0, 1.0), 2),
    "elif": Case(chain, scalars(-1.0, 0.0, -0.0, 5.0, 1.0, 2.0), 4),
    "and or not": Case(and_or_not, scalars(0.5, 2.0, 4.0, -1.0), 4),
    "0 < x < 1": Case(chained_comparison, scalars(0.5, 2.0, -1.0), 3),
    "while": Case(while_loop, scalars(1.0, 3.0, 20.0, 2.0), 4),
    "for range": Case(for_range, [(2, 1.5), (3, 1.5), (0, 1.5), (2, 2.5)], 3),
    "for values": Case(
        for_values, [(np.array(v),) for v in ([1.0, -1.0], [2.0, 3.0], [-1.0, 1.0], [4.0, 5.0])], 3
    ),
    "assert": Case(assertion, scalars(1.0, 2.0), 1),
    "int": Case(to_int, scalars(2.5, 2.9, 3.1, -2.5), 3),
    "bool": Case(truth, scalars(0.0, 1.0, -0.0, 2.0), 2),
    "item": Case(item, [(np.int64(0), 1.5), (np.int64(2), 1.5), (np.int64(0), 2.5)], 2),
    "index of a list": Case(index_of_list, [(0, 2.0), (2, 2.0), (0, 3.0)], 2),
    "slice": Case(slice_by_value, [(1, np.arange(4.0)), (3, np.arange(4.0)), (1, np.ones(4))], 2),
    "index": Case(
        index_stays_traced, [(0, np.arange(4.0)), (3, np.arange(4.0)), (-1, np.ones(4))], 1
    ),
    "len": Case(length, [(np.arange(4.0),), (np.arange(2.0),), (np.ones(4),)], 2),
    "f-string": Case(f_string, [(2, 1.5), (3, 1.5), (2, 2.5)], 2),
    "shape": Case(shape_by_value, [(2, 1.5), (4, 1.5), (2, 2.5)], 2),
    "mask": Case(
        mask,
        [
            (np.array([1.0, -1.0, 2.0]),),
            (np.array([1.0, 1.0, -2.0]),),
            (np.array([3.0, -1.0, 2.0]),),
        ],
        2,
    ),
    "try": Case(try_except, scalars(4.0, 9.0), 1),
    "min max": Case(minimum_by_python, [(1.0, 2.0), (2.0, 1.0), (3.0, 4.0)], 2),
    "sorted": Case(
        sorted_by_python,
        [(np.array(v),) for v in ([1.0, 3.0, 2.0], [3.0, 2.0, 1.0], [4.0, 9.0, 5.0])],
        2,
    ),
    "jit inside": Case(inner_jit, scalars(0.1, 1.0, 0.2), 2),
    "grad inside": Case(inner_grad, scalars(0.5, 1.1, 3.0, 0.6), 2),
    "scan inside": Case(inner_scan, scalars(0.5, 2.0), 2),
    "branch in a scan's body on a captured value": Case(
        branch_on_captured_in_scan, scalars(0.5, -2.0, 1.0), 2
    ),
    "while_loop inside": Case(inner_while, scalars(1.0, 1.2, 3.0), 2, is_differentiable=False),
    "custom_jvp": Case(custom_rule, scalars(2.0, -2.0, 3.0), 2),
    "custom_vjp": Case(custom_reverse_rule, scalars(2.0, -2.0, 3.0), 2),
    "pytrees": Case(
        pytrees,
        [({"n": 2, "xs": (1.5, 2.5)},), ({"n": 0, "xs": (1.5, 2.5)},)],
        2,
        is_differentiable=False,
    ),
    "other trees": Case(
        outputs_of_other_trees, scalars(1.0, -1.0, 2.0), 2, is_differentiable=False
    ),
    "newton": Case(newton, scalars(2.0, 2.5, 100.0), 2),
    "integers": Case(integers, [(3,), (4,), (5,)], 2, is_differentiable=False),
    "of numpy": Case(
        of_numpy, [(np.arange(3), 1.5), (np.ones(3, int), 1.5), (np.arange(3), 2.5)], 2
    ),
    "match": Case(match, [(0, 2.0), (1, 2.0), (2, 2.0), (5, 2.0), (0, 3.0)], 4),
    "constants": Case(constants_only, scalars(1.0, 2.0), 1),
}
