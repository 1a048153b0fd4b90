"""Example equations of every primitive with an index rule: a function whose last equation is that
primitive.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

RNG = np.random.default_rng(4)
T = np.array([0.7, 1.3, -0.4, 2.1, 0.9, -1.6])
P = np.abs(T) / 3 + 0.1
M = np.array([[0.2, 0.5, 0.9], [1.2, -1.5, 1.9]])
B = RNG.normal(size=(2, 3, 2))
S = np.stack([np.array([[3.0, 0.4], [0.4, 2.0]]), np.array([[2.0, -0.3], [-0.3, 4.0]])])
I = np.array([3, 5, 2])
F = np.array([True, False, True])
Z = np.array([0.5 + 1j, 1.5 - 2j])
GATHER = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(1,), start_index_map=(1,)
)
BATCHED = lax.GatherDimensionNumbers(
    (), (1,), (1,), operand_batching_dims=(0,), start_indices_batching_dims=(0,)
)
ADD = lax.ScatterDimensionNumbers((), (0,), (0,))
COLUMNS = lax.ScatterDimensionNumbers((1,), (1,), (1,))
PLACES = np.array([[2], [0], [2]])
FILL, CLIP = lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.CLIP


def windows(x, places, mode):
    """Columns of a matrix, of both rows each."""
    return lax.gather(x, places, GATHER, (2, 1), mode=mode, fill_value=0.0)


OTHERS = np.random.default_rng(7).normal(size=(2, 3))


WORDS = np.arange(1, 9, dtype=np.uint32).reshape(4, 2)
"""The words of keys."""


def key_of(words, impl="threefry2x32"):
    """A typed key of its words; of several, typed keys."""
    return jax.random.wrap_key_data(words, impl=impl)


def numbers(x):
    """An array of numbers; of keys, their words."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def per_key(draw):
    """What each of many keys makes of its row, if it has any."""
    return lambda words, *rows: jax.vmap(draw)(key_of(words), *rows)


def pair_product(one, other):
    """Of complex numbers as pairs: each part of the result is made of both."""
    (a, b), (c, d) = one, other
    return a * c - b * d, a * d + b * c


EXACT = {
    "add": (lax.add, T, T[::-1].copy()),
    "mul of a scalar": (lambda x, a: lax.mul(x, a), T, 2.0),
    "select_n": (lambda a, b: lax.select_n(np.array([0, 1, 1, 0, 1, 0], bool), a, b), T, P),
    "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (2, 3, 2), (0, 1)), M),
    "transpose": (lambda x: lax.transpose(x, (2, 0, 1)), B),
    "reshape": (lambda x: lax.reshape(x, (4, 3)), B),
    "reshape in Fortran order": (lambda x: lax.reshape(x, (6,), (1, 0)), M),
    "squeeze": (lambda x: lax.squeeze(x, (1,)), M[:, None]),
    "slice": (lambda x: lax.slice(x, (0, 1), (2, 3), (1, 2)), M),
    "rev": (lambda x: lax.rev(x, (1,)), M),
    "tile": (lambda x: jnp.tile(x, (2, 1)), M),
    "pad": (lambda x, a: lax.pad(x, a, ((1, -1, 1), (0, 2, 0))), M, 3.0),
    "concatenate": (lambda x, y: lax.concatenate([x, y, x], 1), M, M[:, :1]),
    "split": (lambda x: lax.split(x, [2, 1], 1), M),
    "dynamic_slice": (lambda x: lax.dynamic_slice(x, (1, 9), (1, 2)), M),
    "dynamic_update_slice": (lambda x, u: lax.dynamic_update_slice(x, u, (-3, 1)), M, M[:1, :2]),
    "gather": (lambda x: windows(x, PLACES, CLIP), M),
    "gather that fills": (lambda x: windows(x, PLACES + 1, FILL), M),
    "gather that clips": (lambda x: windows(x, PLACES + 1, CLIP), M),
    "gather of a batch": (
        lambda x: lax.gather(x, np.array([[[0], [2]], [[1], [1]]]), BATCHED, (1, 1), mode=CLIP),
        M,
    ),
    "scatter": (lambda x, u: lax.scatter(x, PLACES[:2], u, ADD), T, T[:2]),
    "scatter that drops": (
        lambda x, u: lax.scatter(x, PLACES[:2] + 5, u, ADD, mode=FILL),
        T,
        T[:2],
    ),
    "scatter-add": (lambda x, u: lax.scatter_add(x, PLACES, u, ADD), T, T[:3]),
    "scatter-mul": (lambda x, u: lax.scatter_mul(x, PLACES, u, ADD), T, T[:3]),
    "scatter-add of columns": (
        lambda x, u: lax.scatter_add(x, PLACES[:2], u, COLUMNS),
        M,
        M[:, :2].T.copy(),
    ),
    "reduce_sum": (lambda x: lax.reduce_sum(x, (1,)), B),
    "reduce_prod": (lambda x: lax.reduce_prod(x, (0, 2)), B),
    "reduce": (
        lambda x, y, a, b: lax.reduce((x, y), (a, b), pair_product, (1,)),
        M,
        OTHERS,
        1.5,
        0.5,
    ),
    "cumsum": (lambda x: lax.cumsum(x, 1), M),
    "cumsum from the end": (lambda x: lax.cumsum(x, 0, reverse=True), B),
    "cumprod": (lambda x: lax.cumprod(x, 1), M),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 0), M),
    "dot_general": (
        lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))),
        M,
        M[:, ::-1].copy(),
    ),
    "dot_general of a batch": (
        lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
        B,
        S,
    ),
    "fft": (lambda x: lax.fft(x, "fft", (3,)), M.astype(complex)),
    "complex": (lax.complex, T, P),
    "real": (lax.real, Z),
    "optimization_barrier": (lambda x, y: lax.optimization_barrier((x, y)), T, M),
    "eigh": (lambda x: lax.linalg.eigh(x, symmetrize_input=True)[1], S),
    "random_bits": (per_key(lambda key: jax.random.bits(key, (2,))), WORDS),
    "random_split": (per_key(lambda key: jax.random.split(key, 3)), WORDS),
    "random_fold_in": (per_key(jax.random.fold_in), WORDS, np.arange(4, dtype=np.uint32)),
    "random_seed": (jax.vmap(jax.random.key), np.arange(4)),
    "random_clone": (lambda words: jax.random.clone(key_of(words)), WORDS),
    "device_put": (lambda x, y: jax.device_put((x, y)), M, OTHERS),
    "name": (lambda x: checkpoint_name(x, "x"), M),
    "qr": (lambda x: lax.linalg.qr(x, full_matrices=False)[1][..., :1, 1:], S),
}
"""Each output element changes with each input element that the rule names, and with no other."""

SOUND = {
    "select_n by data": (lambda w, a, b: lax.select_n(w > 0.5, a, b), T, T[::-1].copy(), P),
    "dynamic_slice at an input": (lambda x, i: lax.dynamic_slice(x, (0, i), (2, 2)), M, 1),
    "dynamic_update_slice at an input": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (0, i)),
        M,
        M[:, :2],
        1,
    ),
    "gather at inputs": (lambda x, i: windows(x, i, CLIP), M, PLACES),
    "gather of a batch at inputs": (
        lambda x, i: lax.gather(x, i, BATCHED, (1, 1), mode=CLIP),
        M,
        np.array([[[0], [2]], [[1], [1]]]),
    ),
    "scatter at inputs": (lambda x, i, u: lax.scatter(x, i, u, ADD), T, PLACES[:2], T[:2]),
    "scatter-add at inputs": (lambda x, i, u: lax.scatter_add(x, i, u, ADD), T, PLACES, T[:3]),
    "scatter-add of columns at inputs": (
        lambda x, i, u: lax.scatter_add(x, i, u, COLUMNS),
        M.T.copy(),
        PLACES[:2] % 2,
        RNG.normal(size=(2, 3)),
    ),
    "scatter by a function": (
        lambda x: lax.scatter_apply(x, PLACES[:2], jnp.sin, ADD, update_shape=(2, *T.shape[1:])),
        T,
    ),
    "scatter-sub": (lambda x, u: x.at[PLACES[:, 0]].subtract(u), T, T[:3]),
    "scatter-min": (lambda x, u: lax.scatter_min(x, PLACES, u, ADD), T, T[:3]),
    "scatter-max": (lambda x, u: lax.scatter_max(x, PLACES, u, ADD), T, T[:3]),
    "reduce_max": (lambda x: lax.reduce_max(x, (1,)), B),
    "reduce_min": (lambda x: lax.reduce_min(x, (1,)), B),
    "reduce_and": (lambda x: lax.reduce_and(x, (1,)), M > 0),
    "reduce_or": (lambda x: lax.reduce_or(x, (1,)), M > 0),
    "reduce_xor": (lambda x: lax.reduce_xor(x, (1,)), M > 0),
    "argmax": (lambda x: lax.argmax(x, 1, np.int32), M),
    "argmin": (lambda x: lax.argmin(x, 0, np.int32), M),
    "sort": (lambda x: lax.sort(x, dimension=1), M),
    "sort by keys": (lambda k, x: lax.sort((k, x), dimension=0, num_keys=1), M, M[::-1].copy()),
    "top_k": (lambda x: lax.top_k(x, 2), M),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 2), M),
    "cummax": (lambda x: lax.cummax(x, 1), M),
    "cummin": (lambda x: lax.cummin(x, 1, reverse=True), M),
    "reduce_window_sum": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 2), (1, 1, 1), "SAME"),
        B,
    ),
    "reduce_window_max": (
        lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 2), "VALID"),
        M,
    ),
    "reduce_window_min": (
        lambda x: lax.reduce_window(x, np.inf, lax.min, (2, 1), (1, 1), ((1, 0), (0, 0))),
        M,
    ),
    "select_and_scatter_add": (
        jax.grad(lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2), (1, 1), "VALID").sum()),
        M,
    ),
    "conv_general_dilated": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME"),
        RNG.normal(size=(2, 2, 4)),
        RNG.normal(size=(3, 2, 2)),
    ),
    "conv of groups": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID", feature_group_count=2),
        RNG.normal(size=(2, 2, 3)),
        RNG.normal(size=(4, 1, 2)),
    ),
    "conv of batch groups": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID", batch_group_count=2),
        RNG.normal(size=(2, 2, 3)),
        RNG.normal(size=(4, 2, 2)),
    ),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        S,
        B[:, :2],
    ),
    "triangular_solve from the right": (
        lambda a, b: lax.linalg.triangular_solve(a, b, lower=True),
        S,
        B,
    ),
    "tridiagonal_solve": (
        lambda low, d, high, b: lax.linalg.tridiagonal_solve(low, d, high, b),
        M * [0.0, 1.0, 1.0],
        M + 4.0,
        M * [1.0, 1.0, 0.0],
        RNG.normal(size=(2, 3, 2)),
    ),
    "eig": (lambda a: lax.linalg.eig(a), S),
    "schur": (lambda a: lax.linalg.schur(a), S),
    "cholesky": (lambda a: lax.linalg.cholesky(a, symmetrize_input=False), S),
    "lu": (lambda a: lax.linalg.lu(a), S),
    "svd": (lambda a: lax.linalg.svd(a, full_matrices=False), B),
    "householder_product": (
        lambda a, t: lax.linalg.householder_product(a, t),
        B,
        RNG.normal(size=(2, 2)),
    ),
    "lu_pivots_to_permutation": (
        lambda p: lax.linalg.lu_pivots_to_permutation(p, 3),
        np.array([[0, 1, 2], [2, 1, 2]], np.int32),
    ),
    "random_unwrap": (per_key(jax.random.key_data), WORDS),
    "random_gamma": (
        per_key(lambda key, shape: jax.random.gamma(key, shape)),
        WORDS,
        P[:4, None] * [1.0, 2.0],
    ),
    "keys of which the first draws for all": (
        lambda words: jax.vmap(jax.random.bits)(key_of(words, "rbg")),
        WORDS.reshape(2, 4),
    ),
    "rng_bit_generator": (lambda key: lax.rng_bit_generator(key, (2, 3)), WORDS[:2].ravel()),
    "bitcast_convert_type": (lambda x: lax.bitcast_convert_type(x, np.int64), T),
    "bitcast from words": (
        lambda x: lax.bitcast_convert_type(x, np.float64),
        np.arange(1, 7, dtype=np.int32).reshape(3, 2),
    ),
    "bitcast to another width": (lambda x: lax.bitcast_convert_type(x, np.int32), T),
    "clamp": (lambda low, x, high: lax.clamp(low, x, high), -0.5, T, 1.0),
    "integers": (lambda x, y: lax.rem(x, y), I, I[::-1].copy()),
    "not": (lax.bitwise_not, F),
    "solve": (lambda a, b: jnp.linalg.solve(a, b), S, B[:, :2]),
    "iota": (lambda x: lax.iota(np.float64, 6) + x, T),
    "jit": (jax.jit(lambda x: x[::-1]), T),
}
"""No output element changes with an input element that the rule leaves out."""
