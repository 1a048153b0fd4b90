"""Element masks of each rule against an oracle that changes one input element at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.program.masks import Traced, check_sound, is_exact
from helpers import MINIMAL, same

import incrax
from incrax.primitives.table import TABLE

lax = jax.lax
T = np.array([0.7, 1.3, -0.4, 2.1, 0.9, -1.6])
M = np.array([[0.2, 0.5, 0.9], [1.2, -1.5, 1.9]])
V = np.array([0.3, 0.8])
N = np.array([3, 5, 2])
B = np.array([True, False, True])
Z = np.array([0.5 + 1j, 1.5 - 2j, -0.3 + 0.7j])

EXACT = {
    "slice": (lambda t: (t[1:4], t[::2], t[5:2:-1], t[-2:]), (T,)),
    "slice with strides": (lambda m: lax.slice(m, (0, 1), (2, 3), (1, 2)), (M,)),
    "index": (lambda t: (t[0], t[4], t[-1]), (T,)),
    "index of a matrix": (lambda m: (m[1], m[:, 2], m[0, 1], m[None], m[..., 0]), (M,)),
    "unpacking": (lambda t: [x * k for k, x in enumerate(t, 1)], (T,)),
    "static gather": (
        lambda t: (t[jnp.array([3, 1, 1])], jnp.take(t, 2), t[jnp.array([[0, 5]])]),
        (T,),
    ),
    "mask of positions": (lambda t: t[np.array([True, False, True, False, False, True])], (T,)),
    "gather out of bounds": (
        lambda t: (
            t.at[jnp.array([1, 9, -1])].get(mode="fill", fill_value=3.0),
            t.at[jnp.array([1, 9])].get(mode="clip"),
            jnp.take(t, jnp.array([0, 7])),
        ),
        (T,),
    ),
    "gather of a matrix": (
        lambda m: (
            m[jnp.array([1, 0]), jnp.array([2, 2])],
            m[:, jnp.array([2, 0])],
            m[jnp.array([1, 1])],
        ),
        (M,),
    ),
    "take_along_axis": (lambda m: jnp.take_along_axis(m, jnp.array([[0, 0], [2, 1]]), 1), (M,)),
    "reshape": (lambda t: (t.reshape(2, 3), t.reshape(3, 2).ravel(), t.reshape(1, 6, 1)), (T,)),
    "reshape of a scalar": (lambda a: (jnp.reshape(a, (1, 1)), jnp.reshape(a, (1,))[0]), (2.0,)),
    "transpose": (lambda m: (m.T, jnp.swapaxes(m[None], 0, 2), jnp.moveaxis(m, 0, 1)), (M,)),
    "stack of vectors": (
        lambda t: (jnp.stack([t, t[::-1]]), jnp.stack([t, t * 2], 1), jnp.vstack([t, t])),
        (T,),
    ),
    "concatenate": (
        lambda t, v: (jnp.concatenate([v, t[:2], v]), jnp.append(v, t[3]), jnp.hstack([v, 1.0])),
        (T, V),
    ),
    "concatenate along an axis": (
        lambda m: (jnp.concatenate([m, m[:, :1]], 1), jnp.concatenate([m, m])),
        (M,),
    ),
    "split": (lambda t: (jnp.split(t, 3), jnp.split(t, [1, 4])), (T,)),
    "unstack": (lambda m: (jnp.unstack(m), jnp.unstack(m, axis=1)), (M,)),
    "pad": (lambda t, a: (jnp.pad(t, (1, 2)), jnp.pad(t, 1, constant_values=a)), (T, 2.0)),
    "pad of other kinds": (
        lambda t, a: (lax.pad(t, a, ((-1, 2, 1),)), lax.pad(t, a, ((2, -3, 2),))),
        (T, 2.0),
    ),
    "pad of a matrix": (lambda m: lax.pad(m, 0.0, ((0, 1, 1), (-1, 0, 2))), (M,)),
    "pad by copies": (
        lambda t: [jnp.pad(t, 2, mode=mode) for mode in ("edge", "wrap", "reflect")],
        (T,),
    ),
    "broadcast": (
        lambda v, a: (jnp.broadcast_to(v, (3, 2)), v[:, None] + jnp.zeros((2, 3)), a + v),
        (V, 2.0),
    ),
    "repeat": (lambda v: jnp.repeat(v, 2), (V,)),
    "reverse": (lambda m: (m[::-1], m[:, ::-1], jnp.flip(m), jnp.rot90(m)), (M,)),
    "roll": (lambda t, m: (jnp.roll(t, 2), jnp.roll(m, 1, 1), jnp.diff(t)), (T, M)),
    "where of positions": (
        lambda t, a: (
            jnp.where(jnp.arange(6) > 2, t, a),
            jnp.where(jnp.array([1, 0, 1, 0, 0, 1], bool), t, t[::-1]),
        ),
        (T, 2.0),
    ),
    "select among three": (
        lambda t: lax.select_n(jnp.array([0, 1, 2, 0, 1, 2]), t, t[::-1], t * 2),
        (T,),
    ),
    "triangles": (lambda m: (jnp.triu(m), jnp.tril(m)), (M,)),
    "binary": (
        lambda t, a: (
            t + t[::-1],
            t * a,
            t - 1,
            t / t[0],
            jnp.arctan2(t, a),
            t**2,
            jnp.maximum(t, a - a + t),
        ),
        (T, 2.0),
    ),
    "unary": (
        lambda t: (
            jnp.sin(t),
            -t,
            jnp.exp(t),
            jnp.sqrt(jnp.abs(t)),
            jnp.tanh(t),
            lax.integer_pow(t, 3),
            lax.erf(t),
        ),
        (T,),
    ),
    "casts": (
        lambda t: (t.astype(jnp.float32), t.astype(jnp.bfloat16), lax.reduce_precision(t, 5, 10)),
        (T,),
    ),
    "clamp": (lambda t, a: (lax.clamp(-a, t, a), lax.clamp(t - 9, t, t + 9)), (T, 5.0)),
    "integers": (lambda n: (n + 1, n * n[::-1], n << 1, ~n, lax.population_count(n)), (N,)),
    "booleans": (lambda b: (~b, b ^ jnp.roll(b, 1), jnp.where(b, 2.0, 3.0)), (B,)),
    "complex": (
        lambda z: (z.real, z.imag, jnp.conj(z), jnp.exp(z), lax.complex(z.real, z.imag)),
        (Z,),
    ),
    "jnp.array of mixed things": (
        lambda t, a: (jnp.array([t[1], 2.0, a]), jnp.asarray([t[3]])),
        (T, 2.0),
    ),
    "jnp.array of rows": (lambda t, a: jnp.array([[t[0], t[1]], [a, 1.0]]), (T, 2.0)),
    "squeeze and expand_dims": (
        lambda t: (
            jnp.squeeze(t[2:3]),
            jnp.expand_dims(t, 1),
            jnp.expand_dims(t[3], (0, 1)),
            t[None, :, None].squeeze(0),
        ),
        (T,),
    ),
    "dynamic_slice at a constant": (
        lambda t, m: (
            lax.dynamic_slice(t, (2,), (3,)),
            lax.dynamic_slice(t, (5,), (3,)),
            lax.dynamic_slice(m, (1, -1), (1, 2)),
            lax.dynamic_index_in_dim(t, -2),
        ),
        (T, M),
    ),
    "dynamic_update_slice at a constant": (
        lambda t, v: [lax.dynamic_update_slice(t, v, (k,)) for k in (1, 5, -7)],
        (T, V),
    ),
    "cumulative": (
        lambda t, m: (
            jnp.cumsum(t),
            jnp.cumprod(m, 1),
            lax.cumsum(t, reverse=True),
            lax.cumlogsumexp(m, 0),
        ),
        (T, M),
    ),
    "reductions": (
        lambda m: (m.sum(), m.sum(0), m.prod(1), m.mean(1), m.sum((0, 1)), jnp.sum(m, ())),
        (M,),
    ),
    "products": (
        lambda m, v: (v @ m, m @ m.T, jnp.dot(v, v), jnp.einsum("ij,kj->ik", m, m)),
        (M, V),
    ),
    "batched products": (
        lambda m: jnp.einsum("bij,bjk->bik", m.reshape(2, 3, 1), m.reshape(2, 1, 3)),
        (M,),
    ),
    "vmap": (lambda t: jax.vmap(lambda x: x * 2 + 1)(t), (T,)),
    "opened calls": (
        lambda t: (
            jax.jit(lambda t: t[1:])(t),
            jax.checkpoint(jnp.sin)(t),
            jax.nn.softplus(t),
            jax.nn.silu(t),
        ),
        (T,),
    ),
    "elements of different arrays": (lambda t, m, v: t[:3] * m[1] + v[0], (T, M, V)),
    "one element": (lambda t, a: (t[0] * a, t + a), (T[:1], 2.0)),
    "empty": (lambda t: (t[:0], jnp.sum(t[:0]), t[:0] * 2), (T,)),
}

SOUND = {
    "gather at an input": (
        lambda t, i: (t[i], jnp.take(t, i + 1), lax.dynamic_slice(t, (i,), (2,))),
        (T, 2),
    ),
    "update at an input": (lambda t, v, i: lax.dynamic_update_slice(t, v, (i,)), (T, V, 2)),
    "scatter": (
        lambda t, a: (
            t.at[1].set(a),
            t.at[2].add(a),
            t.at[jnp.array([0, 3])].mul(a),
            t.at[1:3].set(a),
            t.at[jnp.array([9, 1])].set(a, mode="drop"),
            t.at[jnp.array([1, 1])].max(a),
        ),
        (T, 2.0),
    ),
    "scatter at an input": (lambda t, a, i: (t.at[i].set(a), t.at[i].add(a)), (T, 2.0, 1)),
    "where of data": (
        lambda t, a: (jnp.where(t > a, t, t[::-1] * 2), jnp.clip(t, -a, a)),
        (T, 0.5),
    ),
    "order of data": (
        lambda m: (m.max(1), m.min(0), jnp.any(m > 1, 0), lax.cummax(m, 1), lax.cummin(m)),
        (M,),
    ),
    "sort": (lambda t: (jnp.sort(t), jnp.argsort(t), lax.top_k(t, 2), jnp.median(t)), (T,)),
    "argmax": (lambda m: (m.argmax(0), m.argmin()), (M,)),
    "tile": (lambda v: jnp.tile(v, 3), (V,)),
    "diagonal": (lambda m: (jnp.diag(m[:, :2]), jnp.trace(m[:, :2])), (M,)),
    "division of integers": (lambda n: (n // n[::-1], n % 3, n > 2), (N,)),
    "rounding": (lambda t: (jnp.round(t * 3), jnp.sign(t), jnp.isnan(t), jnp.nan_to_num(t)), (T,)),
    "convolution": (lambda t: jnp.convolve(t, jnp.array([1.0, 2.0])), (T,)),
    "windows": (lambda t: lax.reduce_window(t, -jnp.inf, lax.max, (2,), (1,), "VALID"), (T,)),
    "general reduction": (lambda m: lax.reduce(m, 0.0, lambda a, b: a + jnp.sin(b), (1,)), (M,)),
    "bits": (lambda t: lax.bitcast_convert_type(t, jnp.int32), (T,)),
    "linear algebra": (lambda m: (jnp.linalg.solve(m[:, :2], m[:, 2]), jnp.linalg.qr(m)), (M,)),
    "cholesky": (lambda m: jnp.linalg.cholesky(m @ m.T + 9 * jnp.eye(2)), (M,)),
    "transforms": (lambda t: jnp.abs(jnp.fft.fft(t)), (T,)),
    "segments": (lambda t: jax.ops.segment_sum(t, jnp.array([0, 0, 1, 1, 2, 2]), 3), (T,)),
    "barrier": (lambda t: lax.optimization_barrier((t, t[::-1])), (T,)),
    "associative scan": (lambda t: lax.associative_scan(jnp.multiply, t), (T,)),
    "keys": (
        lambda key, a: (jax.random.normal(key, (3,)) * a, jax.random.split(key)),
        (jax.random.key(0), 2.0),
    ),
    "keys of elements": (
        lambda n: jax.random.bits(jax.random.wrap_key_data(n)),
        (np.array([1, 2], np.uint32),),
    ),
    "gradient of a gather": (jax.grad(lambda t: jnp.sum(t[jnp.array([3, 1, 1])] ** 2)), (T,)),
    "hessian": (jax.hessian(lambda t: jnp.sum(t[:3] ** 3) * t[4]), (T,)),
    "interpolation": (lambda t: jnp.interp(0.5, jnp.arange(6.0), t), (T,)),
}


@pytest.mark.parametrize("name", EXACT)
def test_masks_name_just_the_elements_that_a_value_depends_on(name):
    fun, args = EXACT[name]
    traced = Traced(fun, *args, watch_all=False)
    reached = traced.reached()
    check_sound(traced, reached)
    assert is_exact(traced, reached)


@pytest.mark.parametrize("name", SOUND)
def test_no_element_changes_with_an_input_that_its_mask_leaves_out(name):
    fun, args = SOUND[name]
    traced = Traced(fun, *args)
    check_sound(traced, traced.reached())


RAW = (
    "unary",
    "opened calls",
    "jnp.array of rows",
    "pad",
    "roll",
    "where of positions",
    "static gather",
)


@pytest.mark.parametrize("name", RAW)
def test_masks_are_sound_before_calls_are_opened(name):
    traced = Traced(EXACT[name][0], *EXACT[name][1], simplify=False)
    check_sound(traced, traced.reached())


@pytest.mark.parametrize(
    "fun", [lambda t, a: jnp.stack([t[1], a, t[0]]), lambda t, a: jnp.stack([a, t[0]])[1]]
)
def test_scalars_that_are_stacked_stay_apart(fun):
    traced = Traced(fun, T, 2.0)
    assert is_exact(traced, traced.reached())


FORTRAN = {
    "ravel": lambda m: m.ravel(order="F"),
    "reshape": lambda m: m.reshape(3, 2, order="F"),
    "lax.reshape": lambda m: lax.reshape(m, (6,), (1, 0)),
}


@pytest.mark.parametrize("name", FORTRAN)
def test_masks_follow_a_reshape_in_fortran_order(name):
    traced = Traced(FORTRAN[name], M)
    check_sound(traced, traced.reached())


def test_results_after_a_reshape_in_fortran_order_follow_their_input():
    fun = lambda m: (m.ravel(order="F")[1] * 3, jnp.sin(m[0, 1]))
    ours = incrax.incremental(fun, tuning=MINIMAL)
    ours(M)
    changed = M.copy()
    changed[1, 0] += 1
    same(ours(changed), jax.jit(fun)(changed))


# --- the pieces -----------------------------------------------------------------------------------


ELEMENTWISE = {
    "of floats": (
        lambda t, u: (
            *(f(t) for f in map(lax.__dict__.get, UNARY)),
            *(f(jnp.abs(t), u) for f in map(lax.__dict__.get, BINARY)),
            lax.clamp(u - 9, t, u + 9),
        ),
        (T, np.abs(T[::-1]) + 0.3),
    ),
    "of integers": (
        lambda n, k: (
            *(f(n) for f in (lax.bitwise_not, lax.population_count, lax.clz, lax.sign)),
            *(
                f(n, k)
                for f in (lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.div, lax.rem)
            ),
            *(
                f(n, k)
                for f in (lax.shift_left, lax.shift_right_arithmetic, lax.shift_right_logical)
            ),
        ),
        (N, np.array([1, 2, 1])),
    ),
}
UNARY = """
abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2
expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh
""".split()
BINARY = "add atan2 div eq ge gt igamma le lt max min mul ne nextafter pow rem sub".split()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_primitives_with_an_elementwise_rule_are_elementwise(name):
    fun, args = ELEMENTWISE[name]
    traced = Traced(fun, *args)
    check_sound(traced, traced.reached())


def test_every_elementwise_primitive_was_compared_with_the_oracle():
    tables = (EXACT | SOUND | ELEMENTWISE).values()
    seen = {eqn.primitive.name for fun, args in tables for eqn in Traced(fun, *args).program.eqns}
    older_names = {"expand_dims", "copy_p", "eq_to", "optimization_barrier_single", "igamma_grad_a"}
    rare = {
        "stack",
        "stop_gradient",
        "copy",
        "add_any",
        "reduce_and",
        "reduce_xor",
        "igammac",
        "polygamma",
        "zeta",
    }
    to_last_bits = {
        "regularized_incomplete_beta"
    }  # iterates until the slowest element has converged
    newer = {"le_to", "log2", "lt_to", "mulhi", "one_minus_square"}
    ruled = {name for name, entry in TABLE.items() if entry.is_elementwise}
    assert ruled - seen <= older_names | newer | rare | to_last_bits


def test_masks_have_any_number_of_bits():
    large = np.linspace(0, 1, 200)
    traced = Traced(lambda t: (t[199] * t[0], t[100:102]), large, max_tracked=256)
    first, second = traced.output_masks()
    assert first == [1 << 200 | 1 << 1]
    assert second == [1 << 101, 1 << 102]
