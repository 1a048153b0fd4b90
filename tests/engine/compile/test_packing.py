"""Small leaves from the host as one vector: the same values, shapes and weak types inside the
program.
"""

from __future__ import annotations

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same
from hypothesis import given
from hypothesis import strategies as st

import incrax
from incrax.engine.compile import packing as module
from incrax.engine.compile.packing import TRANSFER_S, Packing, packable, small_on_host

compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **rest: compiled.append(event) if "backend_compile" in event else None
)

HOST = [
    1.0,
    2.5,
    -0.0,
    np.float64(3.0),
    np.ones(2),
    np.arange(6.0).reshape(2, 3),
    np.float32(7.0),
    1j,
    2 + 3j,
    -1j,
]


def total(*leaves):
    return sum(jnp.sum(jnp.real(leaf)) * (k + 1) for k, leaf in enumerate(leaves)), leaves


@pytest.fixture(autouse=True, scope="module")
def three_are_packed():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_PACKED", 3)
        yield


def packing_of(leaves):
    avals = [var.aval for var in jax.make_jaxpr(lambda *x: x)(*leaves).jaxpr.invars]
    return Packing(range(len(leaves)), avals, packable(small_on_host(leaves), [0.0]))


@given(st.permutations(HOST))
def test_what_was_joined_is_split_into_the_same(leaves):
    packing = packing_of(leaves)
    assert packing.packs
    parts = jax.jit(packing.split)(packing.join(leaves))
    for part, leaf in zip(parts, leaves, strict=True):
        known = jnp.asarray(leaf)
        assert (part.shape, part.dtype, part.weak_type) == (
            known.shape,
            known.dtype,
            known.weak_type,
        )
        np.testing.assert_array_equal(part, known)
        np.testing.assert_array_equal(np.signbit(np.real(part)), np.signbit(np.real(known)))


def shifted(x, *leaves):
    value, returned = total(*leaves)
    return value + jnp.sum(jnp.exp(x)), returned


def test_packed_calls_equal_jit_and_keep_weak_types():
    ours, plain = incrax.incremental(shifted, tuning=MINIMAL), jax.jit(shifted)
    x = jnp.ones(100)
    for scale in (1.0, 2.0, 3.0, 3.0, 0.5):
        leaves = [leaf * scale for leaf in HOST]
        value, returned = ours(x, *leaves)
        expected, known = plain(x, *leaves)
        same(value, expected)
        assert [x.weak_type for x in returned] == [x.weak_type for x in known]
        same(list(returned), list(known))
    entries = ours._traces.latest.engine.chooser.entries.values()
    plans = [entry.program.executable for entry in entries if entry.program is not None]
    assert any(plan.family.packing.packs for plan in plans)


def test_the_whole_program_is_that_of_jit():
    """Nothing is packed, so that calls that nobody looks at find it compiled."""
    ours = incrax.incremental(total)
    ours(*HOST)
    whole = ours._traces.latest.engine.chooser.whole.executable
    assert not whole.family.packing.packs
    compiled.clear()
    ours._traces.latest.bypass.jitted(*HOST)
    assert compiled == []


def test_leaves_from_the_device_are_taken_as_they_are():
    packing = packing_of(HOST)
    assert packing.join([*HOST[:-1], jnp.asarray(HOST[-1])]) is None
    ours, plain = incrax.incremental(total), jax.jit(total)
    ours(*HOST)
    for position in range(len(HOST)):
        leaves = [
            jnp.asarray(x) if k == position and not isinstance(x, (float, complex)) else x * 2
            for k, x in enumerate(HOST)
        ]
        same(ours(*leaves)[0], plain(*leaves)[0])


def test_integers_and_expensive_programs_are_left_alone():
    assert small_on_host([1, 2, 3, True, "x"]) == frozenset()
    assert packable(small_on_host(HOST), [TRANSFER_S] * 2 * len(HOST)) == frozenset()
    assert len(packable(small_on_host(HOST), [0.0])) == len(HOST)


def test_few_leaves_are_not_packed():
    assert not packing_of([1.0] * 2).packs
    assert packing_of([1.0] * 3).packs


def test_an_integer_that_does_not_fit_raises_as_under_jit():
    ours = incrax.incremental(lambda a, b, c, n: a + b + c + n)
    ours(1.0, 2.0, 3.0, 4)
    with pytest.raises(OverflowError):
        jax.jit(lambda n: n + 1)(2**70)
    with pytest.raises(OverflowError):
        ours(1.0, 2.0, 3.0, 2**70)
    same(ours(1.0, 2.0, 3.0, 5), jnp.asarray(11.0))


def test_without_x64_values_are_rounded_as_under_jit():
    leaves = [0.1, 0.2, np.float64(0.3), np.full(3, 0.1)]
    with jax.enable_x64(False):
        ours, plain = incrax.incremental(total), jax.jit(total)
        for scale in (1.0, 3.0, 7.0):
            mine, known = ours(*[x * scale for x in leaves]), plain(*[x * scale for x in leaves])
            assert mine[0].dtype == known[0].dtype == np.float32
            for x, y in zip(mine[1], known[1], strict=True):
                np.testing.assert_array_equal(x, y)
