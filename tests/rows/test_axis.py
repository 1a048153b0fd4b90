"""The row axis: what maps over rows and reduces equals plain JAX on chunks of any kind; what mixes
rows is refused.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax

N = 21
RNG = np.random.default_rng(3)
DATA = {
    "a": RNG.normal(size=(N, 3)),
    "y": RNG.uniform(0.5, 2.0, N),
    "g": RNG.integers(0, 4, N),
    "m": RNG.normal(size=(N, 2, 2)),
}
T = {"w": np.array([0.3, -0.2, 0.5]), "table": np.array([1.0, 2.0, 0.5, 1.5]), "s": 0.7}


def linear(t, d):
    return d["a"] @ t["w"]


def softmax_of_rows(t, d):
    logits = d["a"] * t["w"]
    return -jnp.sum(jax.nn.log_softmax(logits, axis=1)[:, 0])


def cross_entropy(t, d):
    logits = d["a"] @ jnp.outer(t["w"], t["table"])
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), d["g"][:, None], axis=1)
    return -jnp.mean(chosen)


def network(t, d):
    hidden = jax.nn.relu(d["a"] @ jnp.outer(t["w"], t["w"]) + t["s"])
    return jnp.mean((hidden @ t["w"] - d["y"]) ** 2)


def standardised(t, d):
    z = (d["y"] - jnp.mean(d["y"])) / jnp.std(d["y"])
    return jnp.sum(jnp.exp(t["s"] * z))


def in_a_loop(t, d):
    return jnp.sum(jax.lax.fori_loop(0, 5, lambda i, y: jnp.sin(y) + t["s"] * i, d["y"]))


def scanned(t, d):
    last, each = jax.lax.scan(lambda c, w: (c * w + d["y"], c.sum() * 0 + w), 1.0 + d["y"], t["w"])
    return jnp.sum(last) + jnp.sum(each)


def scanned_rows(t, d):
    last, _ = jax.lax.scan(lambda c, w: (c * w + d["y"], None), 1.0 + d["y"], t["w"])
    return jnp.sum(last)


def branched(t, d):
    return jnp.sum(jax.lax.cond(t["s"] > 0, jnp.sin, jnp.cos, d["y"]))


MAPPED = {
    "sum": lambda t, d: t["s"] * jnp.sum(d["y"]),
    "mean": lambda t, d: jnp.mean(jnp.exp(t["s"] * d["y"])),
    "maximum": lambda t, d: jnp.max(t["s"] * d["y"]),
    "minimum": lambda t, d: jnp.min(d["y"] - linear(t, d)),
    "product": lambda t, d: jnp.prod(1 + 0.1 * t["s"] * d["y"]),
    "all": lambda t, d: jnp.all(d["y"] > 0.4 * t["s"]),
    "any": lambda t, d: jnp.any(d["y"] > 1.9 * t["s"]),
    "bits": lambda t, d: jax.lax.reduce_xor(d["g"], (0,)) + jnp.bitwise_or.reduce(d["g"]),
    "integers": lambda t, d: jnp.sum(d["g"]) + jnp.max(d["g"]) + jnp.min(d["g"]),
    "count": lambda t, d: jnp.sum(d["y"] > t["s"]),
    "columns": lambda t, d: t["s"] * jnp.sum(d["a"] ** 2, axis=0),
    "matrix": lambda t, d: t["s"] * d["a"].T @ d["a"],
    "weighted matrix": lambda t, d: jnp.einsum(
        "ni,n,nj->ij", d["a"], jnp.exp(t["s"] * d["y"]), d["a"]
    ),
    "batch of matrices": lambda t, d: jnp.sum(d["m"] @ d["m"] * t["s"]),
    "determinants": lambda t, d: jnp.sum(jnp.linalg.det(d["m"]) * t["s"]),
    "cholesky": lambda t, d: jnp.sum(
        jnp.linalg.cholesky(jnp.einsum("nij,nkj->nik", d["m"], d["m"]) + jnp.eye(2)) * t["s"]
    ),
    "triangular solve": lambda t, d: jnp.sum(
        jax.scipy.linalg.solve_triangular(jnp.eye(3) + t["s"] * jnp.tri(3), d["a"].T, lower=True)
        ** 2
    ),
    "gather by row": lambda t, d: jnp.sum(jnp.log(t["table"])[d["g"]] * d["y"]),
    "gather of columns": lambda t, d: jnp.sum(d["a"][:, jnp.array([2, 0])] * t["s"]),
    "solve for each row": lambda t, d: jnp.sum(
        jnp.linalg.solve(d["m"] + 3 * jnp.eye(2) * t["s"], d["a"][:, :2, None])
    ),
    "solve one system": lambda t, d: jnp.sum(
        jnp.linalg.solve(jnp.eye(3) * t["s"] + jnp.ones((3, 3)), d["a"].T) ** 2
    ),
    "inverses": lambda t, d: jnp.sum(jnp.linalg.inv(d["m"] + 3 * jnp.eye(2) * t["s"])),
    "tiled": lambda t, d: jnp.sum(jnp.tile(d["y"][:, None], (1, 4)) @ t["table"]),
    "tiled numbers": lambda t, d: jnp.sum(jnp.tile(t["s"], len(d["y"])) * d["y"]),
    "segment product": lambda t, d: jax.ops.segment_prod(t["s"] * d["y"], d["g"], 4),
    "scatter by product": lambda t, d: t["table"].at[d["g"]].multiply(d["y"]),
    "one column": lambda t, d: jnp.sum(d["a"][:, 1] * t["s"]),
    "segment sum": lambda t, d: jax.ops.segment_sum(t["s"] * d["y"], d["g"], 4),
    "segment maximum": lambda t, d: jax.ops.segment_max(t["s"] * d["y"], d["g"], 4),
    "scatter onto something": lambda t, d: t["table"].at[d["g"]].add(d["y"]),
    "logsumexp per row": lambda t, d: jnp.sum(special.logsumexp(d["a"] * t["w"], axis=1)),
    "logsumexp over rows": lambda t, d: special.logsumexp(linear(t, d)),
    "log of a sum": lambda t, d: jnp.log(jnp.sum(jnp.exp(linear(t, d)))),
    "chained reductions": lambda t, d: jnp.sum((d["y"] - jnp.max(t["s"] * d["y"])) ** 2),
    "three rounds": lambda t, d: jnp.sum(
        jnp.exp(d["y"] - jnp.mean((d["y"] - jnp.max(d["y"])) * t["s"]))
    ),
    "softmax of rows": softmax_of_rows,
    "cross entropy": cross_entropy,
    "network": network,
    "standardised": standardised,
    "variance": lambda t, d: jnp.var(linear(t, d), ddof=1),
    "loop": in_a_loop,
    "scan": scanned_rows,
    "branch": branched,
    "where": lambda t, d: jnp.sum(jnp.where(d["y"] > 1, t["s"] * d["y"], 0.0)),
    "vmapped": lambda t, d: jnp.sum(jax.vmap(lambda a, y: jnp.dot(a, t["w"]) * y)(d["a"], d["y"])),
    "reshaped": lambda t, d: jnp.sum(d["m"].reshape(-1, 4) @ t["table"]),
    "transposed": lambda t, d: jnp.sum(d["a"].T * t["w"][:, None]),
    "stacked": lambda t, d: jnp.sum(jnp.stack([d["y"], t["s"] * d["y"]], axis=1) ** 2),
    "joined columns": lambda t, d: jnp.sum(
        jnp.concatenate([d["a"], d["y"][:, None]], axis=1) @ t["table"]
    ),
    "sorted within rows": lambda t, d: jnp.sum(jnp.sort(d["a"], axis=1) @ t["w"]),
    "cumulated within rows": lambda t, d: jnp.sum(jnp.cumsum(d["a"], axis=1) @ t["w"]),
    "mapped only": lambda t, d: (linear(t, d), jnp.sum(d["y"])),
    "rows along another axis": lambda t, d: (d["a"] * t["w"]).T,
    "no rows at all": lambda t, d: jnp.sum(t["w"]) * 2,
    "number of rows": lambda t, d: d["y"].shape[0] * t["s"],
    "a number and an input": lambda t, d: (d["y"].shape[0], 3.0, t["s"], jnp.sum(d["y"])),
    "the rows themselves": lambda t, d: (d["y"], t["s"]),
    "kept": lambda t, d: jnp.sum(incrax.keep(jnp.exp(t["s"] * d["y"]), "e")),
    "broadcast": lambda t, d: jnp.sum(jnp.broadcast_to(t["s"], d["y"].shape)),
    "a weak sum": lambda t, d: jnp.sum(jnp.full(d["y"].shape, 2.0) * t["s"]),
    "single precision": lambda t, d: jnp.mean(d["y"].astype(jnp.float32) * jnp.float32(t["s"])),
    "half precision": lambda t, d: jax.grad(lambda s: jnp.mean(d["y"].astype(jnp.float16) * s))(
        t["s"]
    ),
    "complex": lambda t, d: jnp.abs(jnp.sum(jnp.exp(1j * d["y"] * t["s"]))),
}


@pytest.mark.parametrize("name", MAPPED)
def test_functions_that_map_and_reduce_equal_plain_jax(name):
    fun = MAPPED[name]
    f = incrax.incremental(fun, tuning=MINIMAL)
    same(f(T, incrax.Rows(DATA, chunk_rows=8)), jax.jit(fun)(T, DATA), factor=256)
    assert f.stats.transparent == 0


DIFFERENTIABLE = (
    "sum|mean|maximum|columns|determinants|gather by row|segment sum|logsumexp per row|logsumexp "
    "over rows|"
    "log of a sum|cross entropy|network|standardised|variance|where|solve for each row|"
    "solve one system|tiled|chained reductions|triangular solve|branch"
)


@pytest.mark.parametrize("name", DIFFERENTIABLE.split("|"))
def test_their_derivatives_equal_plain_jax(name):
    def total(t, d):
        return jnp.sum(MAPPED[name](t, d))

    fun = jax.value_and_grad(total)
    f, plain = incrax.incremental(fun, tuning=MINIMAL), jax.jit(fun)
    rows = incrax.Rows(DATA, chunk_rows=8)
    for t in (T, {**T, "s": 0.8}, {**T, "w": 2 * T["w"]}):
        same(f(t, rows), plain(t, DATA), factor=1024)


def test_gradients_of_rows_in_a_loop_are_taken_row_by_row():
    def loss(t, d):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c * w + d["y"]), None), d["y"], t["w"])[0]

    def gradient(t, d):
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(jax.grad(loss), (None, 0))(t, d))

    same(
        incrax.incremental(gradient)(T, incrax.Rows(DATA, chunk_rows=8)), jax.jit(gradient)(T, DATA)
    )
    with pytest.raises(
        incrax.errors.MixedRowsError, match="reduces over rows inside a loop .* row by row"
    ):
        incrax.incremental(jax.grad(lambda t, d: jnp.sum(loss(t, d))))(
            T, incrax.Rows(DATA, chunk_rows=8)
        )


# --- what is refused ------------------------------------------------------------------------------

PERMUTATION = np.random.default_rng(1).permutation(N)

MIXED = {
    "cumulative sum": (
        lambda t, d: jnp.sum(jnp.cumsum(d["y"]) * t["s"]),
        "`cumsum` at .* accumulates along the rows",
    ),
    "sort": (lambda t, d: jnp.sort(d["y"])[0], "`sort` at .* sorts the rows"),
    "argmax": (lambda t, d: jnp.argmax(d["y"]), "`argmax` at .* looks for a row by its place"),
    "tiled rows": (
        lambda t, d: jnp.sum(jnp.tile(d["y"], 2)),
        "`tile` at .* repeats the rows|splits it|entries",
    ),
    "tiled along rows": (
        lambda t, d: jnp.sum(jnp.tile(t["w"], len(d["y"]))),
        "repeats the rows|splits it|entries",
    ),
    "reverse": (lambda t, d: jnp.sum(d["y"][::-1] * d["y"]), "`rev` at .* reverses the rows"),
    "first rows": (
        lambda t, d: jnp.sum(d["y"][:5]),
        "`slice` at .* reads some of the rows by their place",
    ),
    "differences": (lambda t, d: jnp.sum(jnp.diff(d["y"])), "`slice` at .* reads some of the rows"),
    "one row": (lambda t, d: d["y"][3], "reads some of the rows by their place"),
    "join": (
        lambda t, d: jnp.sum(jnp.concatenate([d["y"], d["y"]])),
        "`concatenate` at .* joins arrays along the rows",
    ),
    "roll": (lambda t, d: jnp.sum(jnp.roll(d["y"], 1) * d["y"]), "reads some of the rows"),
    "row numbers": (
        lambda t, d: jnp.sum(jnp.arange(len(d["y"])) * d["y"]),
        "`iota` at .* numbers the rows",
    ),
    "pairs": (
        lambda t, d: jnp.sum(jnp.outer(d["y"], d["y"])),
        "pairs every row|another number of entries|another order",
    ),
    "gram matrix": (
        lambda t, d: jnp.sum(d["a"] @ d["a"].T),
        "`dot_general` at .* pairs every row with every row",
    ),
    "flattened": (
        lambda t, d: jnp.sum(d["a"].ravel() ** 2),
        "`reshape` at .* merges the row axis with another one",
    ),
    "loop over rows": (
        lambda t, d: jax.lax.scan(lambda c, y: (c * t["s"] + y, None), 0.0, d["y"])[0],
        "`scan` at .* loops over the rows",
    ),
    "reduction in a loop": (
        lambda t, d: jax.lax.fori_loop(0, 3, lambda i, c: c + jnp.sum(d["y"] * c), 1.0),
        "reduces over rows inside a loop or a branch",
    ),
    "the sum inside a scan": (scanned, "reduces over rows inside a loop or a branch"),
    "effect": (
        lambda t, d: (jax.debug.print("{x}", x=t["s"]), jnp.sum(d["y"]))[1],
        "has an effect",
    ),
    "random numbers": (
        lambda t, d: jnp.sum(d["y"] * jax.random.uniform(jax.random.key(1), d["y"].shape)),
        "`random_bits` at .* draws the random numbers of all rows from one key",
    ),
    "callback": (
        lambda t, d: jnp.sum(
            jax.pure_callback(np.sin, jax.ShapeDtypeStruct(d["y"].shape, float), d["y"])
        ),
        "`pure_callback` at .* has no rule that says what it does to rows",
    ),
    "padding": (lambda t, d: jnp.sum(jnp.pad(d["y"], (1, 0))), "`pad` at .* adds rows"),
    "written row": (lambda t, d: jnp.sum(d["y"].at[0].set(t["s"])), "by their place"),
    "solve": (lambda t, d: jnp.sum(jnp.linalg.qr(d["a"])[1]), "takes the rows for a matrix"),
    "constant of rows": (
        lambda t, d: jnp.sum(d["y"] * np.linspace(0, 1, len(d["y"]))),
        "has one entry a row",
    ),
    "branch on the number": (
        lambda t, d: jnp.sum(d["y"]) if len(d["y"]) > 10 else jnp.sum(jnp.exp(d["y"])),
        "f is another function for another number of rows",
    ),
    "closed-over rows": (
        lambda t, d: jnp.sum(d["y"] * DATA["y"]),
        "f cannot be traced for .* rows",
    ),
    "gradient of a product": (
        lambda t, d: jax.grad(lambda s: jnp.prod(1 + s * d["y"]))(t["s"]),
        "f is another function for another number of rows",
    ),
    "number of rows inside a loop": (
        lambda t, d: jnp.sum(jax.lax.fori_loop(0, 3, lambda i, y: y / len(d["y"]), d["y"])),
        "inside a loop or a branch",
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_functions_that_mix_rows_are_refused(name):
    fun, message = MIXED[name]
    f = incrax.incremental(fun)
    with pytest.raises(incrax.errors.MixedRowsError, match=message):
        f(T, incrax.Rows(DATA, chunk_rows=8))
    assert f.stats.ran == f.stats.chunks_run == 0


def test_a_refusal_names_the_line_of_the_user():
    f = incrax.incremental(MIXED["cumulative sum"][0])
    with pytest.raises(incrax.errors.MixedRowsError, match=r"test_axis\.py:\d+"):
        f(T, incrax.Rows(DATA, chunk_rows=8))


def test_a_refused_function_still_takes_plain_arrays():
    fun = MIXED["cumulative sum"][0]
    f, rows = incrax.incremental(fun), incrax.Rows(DATA, chunk_rows=8)
    with pytest.raises(incrax.errors.MixedRowsError):
        f(T, rows)
    same(f(T, rows.tree()), jax.jit(fun)(T, DATA))
