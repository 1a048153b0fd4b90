"""Mutable arrays that a function closes over: it is called as it is, so that each read and write
happens once.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax


def reads(ref):
    return lambda x: x * jnp.sum(ref[...])


def writes(ref):
    def fun(x):
        ref[...] = ref[...] + x
        return jnp.sum(ref[...])

    return fun


def in_a_scan(ref):
    return lambda x: jax.lax.scan(
        lambda c, t: (c + jnp.sum(ref[...]) * t, None), x, jnp.arange(3.0)
    )[0]


def in_a_jit(ref):
    return jax.jit(reads(ref))


def results(wrap, make, shape):
    ref = jax.new_ref(jnp.ones(shape))
    fun = wrap(make(ref))
    found = []
    for number in range(5):
        found.append(float(fun(jnp.array(2.0 + number // 3))))
        if make is not writes:
            ref[...] = ref[...] * 2
    return found


@pytest.mark.parametrize("policy", ["fast", "exact"])
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
@pytest.mark.parametrize("make", [reads, writes, in_a_scan, in_a_jit])
def test_closing_over_a_mutable_array_is_as_under_jit(make, shape, policy):
    ours = results(lambda fun: incrax.incremental(fun, policy=policy), make, shape)
    assert ours == results(jax.jit, make, shape)


def test_a_method_without_a_result_says_what_is_mutable():
    f = incrax.incremental(reads(jax.new_ref(jnp.ones(3))))
    f(1.0)
    for call in (lambda: f.pure(1.0), lambda: f.explain(1.0)):
        with pytest.raises(
            incrax.NotCalledError, match=r"or the function closes over a mutable array\."
        ):
            call()


def test_fresh_and_warm_up_leave_it_to_the_function():
    ref = jax.new_ref(jnp.ones(3))
    f = incrax.incremental(reads(ref))
    f.warm_up(1.0, changing=["x"])
    ref[...] = ref[...] * 2
    assert float(f.fresh(1.0)) == 6.0


def test_rows_with_a_mutable_array_closed_over_are_refused():
    ref = jax.new_ref(jnp.ones(()))
    f = incrax.incremental(lambda data: jnp.sum(data * ref[...]))
    with pytest.raises(incrax.errors.MixedRowsError, match="has an effect beside its result"):
        f(incrax.Rows(np.ones(100)))
