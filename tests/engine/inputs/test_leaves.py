"""Whether a leaf is the value seen before: by bits, never by `==`; snapshots are private; what each
type counts as.
"""

from __future__ import annotations

import enum
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import aligned

import incrax
from incrax import _jax
from incrax.engine.inputs import leaves
from incrax.engine.inputs.leaves import (
    NO_ANCHOR,
    NUM_SUMS,
    SMALL_BYTES,
    LeafValue,
    changed_elements,
    changed_rows,
    check_dynamic,
    descriptor,
    fingerprint,
    frozen,
    has_type,
    is_dynamic,
    is_frozen,
    same_bits,
    same_value,
)

NAN = np.float64(np.nan)
OTHER_NAN = np.uint64(0x7FF8000000000123).view(np.float64)
LARGE = SMALL_BYTES // 8 + 10


def same(x, y):
    return same_value(LeafValue(x), LeafValue(y))


def array_of(value, size=3, dtype=np.float64):
    return np.full(size, value, dtype)


# --- bits -----------------------------------------------------------------------------------------

TWINS = {
    "zeros": (0.0, -0.0),
    "neighbours": (1.0, np.nextafter(1.0, 2.0)),
    "NaN payloads": (NAN, OTHER_NAN),
    "NaN signs": (NAN, -NAN),
    "a NaN and a number": (1.0, NAN),
    "infinities": (np.inf, -np.inf),
    "subnormals": (5e-324, 0.0),
}
WRAPS = {
    "NumPy scalar": np.float64,
    "small array": array_of,
    "large array": lambda x: array_of(x, LARGE),
    "one element of a large array": lambda x: np.concatenate(
        [np.zeros(LARGE), [x], np.ones(LARGE)]
    ),
    "matrix in Fortran order": lambda x: np.asfortranarray(np.full((3, 4), x)),
    "JAX array": lambda x: jnp.asarray(array_of(x)),
    "large JAX array": lambda x: jnp.asarray(array_of(x, LARGE)),
    "complex": lambda x: (
        array_of(0.0, dtype=np.complex128) + x * 1j
        if x == x
        else array_of(complex(1.0, x), dtype=complex)
    ),
}


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "int64", "uint32", "int8", "bool",
              "complex128", "complex64"],
)  # fmt: skip
def test_a_fingerprint_tells_every_bit_and_every_place(dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 2, 60), dtype)
    as_bytes = np.asarray(x).view(np.uint8)
    twins = {bytes(np.asarray(fingerprint(x)))}
    bits = [1] if dtype == "bool" else [1, 128]
    for place in range(as_bytes.size):
        for bit in bits:
            other = as_bytes.copy()
            other[place] ^= bit
            twins.add(bytes(np.asarray(fingerprint(jnp.asarray(other.view(x.dtype))))))
    assert len(twins) == 1 + len(bits) * as_bytes.size
    assert bytes(np.asarray(fingerprint(jnp.sort(x.real)))) not in twins
    assert bytes(np.asarray(jax.jit(fingerprint)(jnp.array(x)))) in twins


def test_a_fingerprint_of_keys_and_of_nothing():
    keys = jax.random.split(jax.random.key(0), 3)
    assert np.array_equal(fingerprint(keys), fingerprint(jnp.array(keys)))
    assert not np.array_equal(fingerprint(keys), fingerprint(keys[::-1]))
    assert fingerprint(jnp.zeros((0, 3))).tolist() == [0] * NUM_SUMS


@pytest.mark.parametrize("wrap", [w for w in WRAPS if w != "complex"])
@pytest.mark.parametrize("twin", TWINS)
def test_values_that_look_equal_and_have_other_bits_differ(wrap, twin):
    first, second = (WRAPS[wrap](x) for x in TWINS[twin])
    assert not same(first, second)
    assert not same(second, first)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, NAN, OTHER_NAN, np.inf, 5e-324])
def test_the_same_bits_in_another_object_are_the_same_value(wrap, value):
    assert same(WRAPS[wrap](value), WRAPS[wrap](value))


@pytest.mark.parametrize(("x", "y"), [(1.0, 2.0), (0.0, -0.0), (1.0, float("nan")), (5e-324, 0.0)])
def test_python_floats_that_differ(x, y):
    assert not same(x, y)
    assert not same(y, x)


@pytest.mark.parametrize("x", [0.0, -0.0, 1.5, float("nan"), float("inf"), 5e-324])
def test_python_floats_that_are_the_same(x):
    assert same(x, np.float64(x).item())


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (1, 1, True),
        (-1, -2, False),
        (2**62, 2**62, True),
        (2**70, 2**70, True),
        (2**70, 2**70 + 1, False),
        (-(2**63), 2**63, False),
        (True, True, True),
        (True, False, False),
        (1j, 1j, True),
        (complex(0.0, 0.0), complex(0.0, -0.0), False),
        (complex(-0.0, 0.0), complex(0.0, 0.0), False),
    ],
)
def test_other_python_scalars(x, y, expected):
    assert same(x, type(x)(y)) is expected


DTYPES = [
    np.bool_,
    np.int8,
    np.uint8,
    np.int32,
    np.uint64,
    np.float16,
    jnp.bfloat16,
    np.float32,
    np.float64,
    np.complex64,
    np.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 3000])
@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_one_element_of_any_type_makes_a_difference(dtype, size, make):
    x = np.zeros(size, dtype)
    y = x.copy()
    y[-1] = 1
    assert same(make(x), make(x.copy()))
    assert not same(make(x), make(y))


@pytest.mark.parametrize("size", [300, 4096, 10_001])
def test_no_element_of_a_large_array_is_overlooked(size):
    """Some words are compared first; none may be left out."""
    x = np.zeros(size)
    for index in {
        0,
        1,
        size // 2,
        size // 3,
        size - 2,
        size - 1,
        *range(0, size, max(size // 50, 1)),
    }:
        y = x.copy()
        y[index] = -0.0
        assert not same_bits(x, y)
    assert same_bits(x, x.copy())


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_empty_arrays_of_one_shape_are_the_same(shape):
    assert same(np.zeros(shape), np.ones(shape))
    assert same(jnp.zeros(shape), jnp.ones(shape))


def test_arrays_of_other_shape_or_type_differ():
    assert not same_bits(np.zeros(4), np.zeros((2, 2)))
    assert not same_bits(np.zeros(4, np.int64), np.zeros(4, np.float64))
    assert not same_bits(np.zeros(4, np.int32), np.zeros(4, np.uint32))
    assert not same_bits(np.zeros(0), np.zeros((0, 1)))


def test_the_layout_in_memory_is_no_difference():
    x = np.arange(12_000.0).reshape(60, 200)
    assert same(x, np.asfortranarray(x))
    assert same(x[::2, ::3], x[::2, ::3].copy())
    assert same(x[:2, :3], np.asfortranarray(x[:2, :3]))
    assert same(x, x.astype(">f8"))


def test_typed_keys_are_compared_by_their_data():
    assert same(jax.random.key(1), jax.random.key(1))
    assert not same(jax.random.key(1), jax.random.key(2))
    assert same(jax.random.split(jax.random.key(1)), jax.random.split(jax.random.key(1)))


def test_the_comparison_on_a_device_is_one_of_bits():
    def equal(x, y):
        return bool(leaves._equal_on_device(jnp.asarray(x), jnp.asarray(y)))

    for dtype in DTYPES:
        x = np.arange(5).astype(dtype)
        y = x.copy()
        y[3] = 0
        assert equal(x, x.copy())
        assert not equal(x, y)
    for first, second in TWINS.values():
        assert not equal(array_of(first), array_of(second))
        assert equal(array_of(second), array_of(second))
    assert not equal(array_of(complex(0.0, -0.0), dtype=complex), array_of(0j, dtype=complex))
    assert leaves._equal_on_device(jax.random.key(1), jax.random.key(1))
    assert not leaves._equal_on_device(jax.random.key(1), jax.random.key(2))


def test_a_deleted_array_equals_nothing_on_a_device():
    old = LeafValue(jnp.ones(LARGE))
    assert leaves._same_on_device(old, jnp.ones(LARGE))
    old.array.delete()
    assert not leaves._same_on_device(old, jnp.ones(LARGE))


# --- elements -------------------------------------------------------------------------------------


def mask(x, y, width):
    return changed_elements(LeafValue(y), LeafValue(x), width)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d is not np.bool_])
def test_the_mask_names_the_elements_that_differ(dtype):
    x = np.arange(20).astype(dtype)
    for chosen in ([], [0], [19], [3, 8, 17], range(20)):
        y = x.copy()
        y[list(chosen)] += y.dtype.type(1)
        expected = sum(1 << k for k in chosen)
        assert mask(x, y, 20) == expected
        assert mask(jnp.asarray(x), jnp.asarray(y), 20) == expected


def test_elements_are_compared_by_bits():
    x = np.array([0.0, 1.0, NAN, NAN, np.inf])
    y = np.array([-0.0, np.nextafter(1.0, 2.0), NAN, OTHER_NAN, np.inf])
    assert mask(x, y, 5) == 0b01011


def test_elements_of_a_matrix_are_numbered_by_rows():
    x = np.zeros((3, 4))
    y = np.asfortranarray(x.copy())
    y[1, 2] = 1
    y[2, 3] = 1
    assert mask(x, y, 12) == 1 << 6 | 1 << 11


def test_a_leaf_tracked_as_a_whole_has_one_bit():
    assert mask(np.zeros(5), np.ones(5), 1) == 1


def test_the_same_value_has_no_changed_element():
    value = LeafValue(np.arange(4.0))
    assert changed_elements(value, value, 4) == 0


def test_all_elements_of_a_value_that_cannot_be_compared_count_as_changed():
    data = frozen(np.zeros(3))
    assert changed_elements(LeafValue(data), LeafValue(np.zeros(3)), 3) == 0b111
    assert changed_elements(LeafValue(np.zeros(3, np.float32)), LeafValue(np.zeros(3)), 3) == 0b111


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_numpy_array_is_copied_at_once(size, order):
    x = np.asarray(np.zeros((size, 2)), order=order)
    value = LeafValue(x)
    x[0, 0] = 7.0
    assert value.bits[0, 0] == 0.0
    assert np.asarray(value.feed)[0, 0] == 0.0
    assert not same_value(value, LeafValue(x))
    assert not np.shares_memory(np.asarray(value.feed), x)


def test_a_read_only_view_of_a_writable_array_is_copied_too():
    x = np.zeros(5)
    view = x[:]
    view.flags.writeable = False
    value = LeafValue(view)
    x[2] = 1.0
    assert value.bits[2] == 0.0


def test_an_array_whose_memory_jax_could_share_is_copied():
    x = aligned(LARGE)
    value = LeafValue(x)
    x[:] = 5.0
    assert float(jnp.sum(jnp.asarray(value.feed))) == 0.0


def test_the_identity_of_a_numpy_array_proves_nothing():
    x = np.zeros(3)
    assert LeafValue(x).anchor is NO_ANCHOR
    assert same(x, x)
    assert LeafValue(1.0).anchor == 1.0
    jax_array = jnp.zeros(3)
    assert LeafValue(jax_array).anchor is jax_array


def test_small_host_values_stay_on_the_host():
    assert isinstance(LeafValue(np.zeros(3)).feed, np.ndarray)
    assert isinstance(LeafValue(np.zeros(LARGE)).feed, jax.Array)


def test_byte_swapped_arrays_are_fed_in_native_order():
    value = LeafValue(np.arange(3.0).astype(">f8"))
    assert value.bits.dtype.isnative
    np.testing.assert_array_equal(jnp.asarray(value.feed), np.arange(3.0))


def test_a_deleted_input_is_noticed():
    x = jnp.zeros(3)
    value = LeafValue(x)
    assert not value.is_deleted()
    x.delete()
    assert value.is_deleted()
    assert not LeafValue(np.zeros(3)).is_deleted()
    assert not LeafValue(1.0).is_deleted()


# --- frozen ---------------------------------------------------------------------------------------


def test_frozen_data_are_private_copies_of_a_whole_tree():
    x = np.arange(3.0)
    tree = frozen({"x": x, "y": [1.5, jnp.ones(2)]})
    x[0] = 9.0
    assert float(tree["x"][0]) == 0.0
    assert all(is_frozen(leaf) for leaf in jax.tree.leaves(tree))
    assert incrax.frozen is frozen


def test_leaves_that_are_no_values_stay_as_they_are():
    tree = frozen({"x": np.ones(2), "name": "linear", "function": len})
    assert is_frozen(tree["x"])
    assert tree["name"] == "linear"
    assert tree["function"] is len


def test_only_what_frozen_returned_is_frozen():
    x = jnp.ones(3)
    data = frozen(x)
    assert not is_frozen(x)
    assert not is_frozen(data + 0)
    assert not is_frozen(np.ones(3))
    assert not is_frozen(1.0)


def test_frozen_data_are_the_same_by_identity_only():
    first, second = frozen(np.ones(3)), frozen(np.ones(3))
    assert same(first, first)
    assert not same(first, second)
    assert not same(np.ones(3), first)
    assert LeafValue(first).bits is None


def test_dropped_frozen_data_are_forgotten():
    gc.collect()
    before = len(leaves._frozen)
    many = [frozen(np.ones(3)) for _ in range(20)]
    assert len(leaves._frozen) == before + 20
    del many
    gc.collect()
    assert len(leaves._frozen) == before
    assert not any(is_frozen(jnp.ones(3)) for _ in range(20))


# --- kinds ----------------------------------------------------------------------------------------


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "x",
    [1, 1.0, True, 1j, np.zeros(2), np.float32(1), np.bool_(True), jnp.zeros(2), jax.random.key(0)],
)
def test_values_for_jax_are_dynamic(x):
    assert is_dynamic(x)


@pytest.mark.parametrize("x", ["a", None, len, Colour.RED, np.float64, (1,), object()])
def test_other_objects_are_static(x):
    assert not is_dynamic(x)


@pytest.mark.parametrize(
    "x",
    [
        np.array(["a"]),
        np.array([object()]),
        np.array([b"x"]),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.timedelta64(1, "s"),
        np.zeros(2, [("a", float)]),
        np.zeros(1, [("a", float)])[0],
    ],
)
def test_arrays_that_jax_has_no_type_for_are_refused(x):
    with pytest.raises(incrax.errors.UnsupportedLeafError, match="`params`"):
        check_dynamic(x, "params")


def test_arrays_that_jax_has_a_type_for_are_accepted():
    for x in (
        np.zeros(2),
        jnp.zeros(2),
        1.0,
        np.float16(1),
        np.zeros(0, bool),
        np.zeros(2, jnp.bfloat16),
    ):
        check_dynamic(x, "x")


def test_descriptors_tell_types_apart():
    distinct = [
        1,
        1.0,
        True,
        1j,
        np.float64(1),
        np.float32(1),
        np.int64(1),
        np.bool_(True),
        np.zeros(1),
        np.zeros(2),
        np.zeros((1, 2)),
        jnp.zeros(2, jnp.bfloat16),
        jax.random.key(0),
        jax.random.PRNGKey(0),
        jax.random.key(0, impl="rbg"),
    ]
    found = [descriptor(x) for x in distinct]
    assert len(set(found)) == len(found)


def test_descriptors_do_not_tell_apart_what_compiles_alike():
    x = np.arange(3.0)
    assert (
        descriptor(x)
        == descriptor(jnp.asarray(x))
        == descriptor(np.asfortranarray(x))
        == descriptor(x + 1)
    )
    assert descriptor(np.float64(1)) == descriptor(np.array(1.0)) == descriptor(jnp.float64(1))
    assert descriptor(1.0) == descriptor(2.5) == descriptor(float("nan"))


def test_weakly_typed_arrays_have_a_descriptor_of_their_own():
    weak = jax.jit(lambda x: x)(1.0)
    assert weak.weak_type
    assert descriptor(weak) == descriptor(1.0) != descriptor(jnp.float64(1))


def test_a_value_that_failed_equals_nothing():
    def fail(x):
        raise ArithmeticError("late failure")

    pending = jax.jit(lambda x: jax.lax.fori_loop(0, 12, lambda _, x: jnp.sin(x @ x), x))(
        jnp.ones((700, 700))
    )
    call = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((2000,), np.float64), x))
    try:
        failed = call(pending)
    except Exception:
        pytest.skip("this JAX runs the callback before it returns")
    for old, new in ((failed, jnp.ones(2000)), (jnp.ones(2000), failed)):
        assert not same_value(LeafValue(old), LeafValue(new))
        assert not leaves._same_on_device(LeafValue(old), new)
        assert changed_elements(LeafValue(new), LeafValue(old), 1) == 1
    assert LeafValue(failed).bits is None
    assert same_value(value := LeafValue(failed), value)
    jax.jit(lambda x: jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((), np.float64), x))(1.0)


def test_placement_is_part_of_the_descriptor():
    x = jnp.zeros(3)
    placed = jax.device_put(x, jax.devices()[0])
    assert descriptor(x) != descriptor(placed)
    assert not has_type(x, descriptor(placed), placed)
    assert not has_type(placed, descriptor(x), placed)
    assert has_type(placed, descriptor(placed), placed)


def test_two_arrays_of_one_type_are_recognised_quickly():
    x = jnp.zeros(3)
    for anchor in (None, x, jnp.ones(3), 1.0, np.zeros(3)):
        assert has_type(x, descriptor(x), anchor)
        assert not has_type(jnp.zeros(4), descriptor(x), anchor)
        assert not has_type(np.zeros(3, np.float32), descriptor(np.zeros(3)), anchor)
        assert not has_type(1.0, descriptor(x), anchor)


TYPES = [np.float64, np.float32, np.int64, np.uint8, bool, np.complex128, np.float16]


@pytest.mark.parametrize("is_wide", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7,), (0, 3), (3, 4)])
def test_an_array_on_the_device_is_that_of_device_put(shape, dtype, is_wide):
    x = np.asfortranarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    with jax.enable_x64(is_wide):
        mine, known = _jax.to_device(x), jax.device_put(x)
    assert (mine.aval, mine.sharding) == (known.aval, known.sharding)
    assert mine.committed == known.committed
    np.testing.assert_array_equal(mine, known)


def test_an_array_on_the_device_is_where_the_user_wants_it():
    device = jax.local_devices()[0]
    with jax.default_device(device):
        x = _jax.to_device(np.ones(3))
    assert x.devices() == {device}
    assert isinstance(jax.jit(lambda: jnp.sum(_jax.to_device(np.ones(3))))(), jax.Array)


def rows_apart(a, b):
    """The oracle: bits, row by row."""
    words = f"u{a.dtype.itemsize}"
    return np.flatnonzero((a.view(words) != b.view(words)).reshape(len(a), -1).any(axis=1))


@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 2, 2)])
@pytest.mark.parametrize("related", [0, leaves.MIN_RELATED_BYTES])
def test_rows_that_changed_are_those_with_other_bits(shape, related, monkeypatch):
    monkeypatch.setattr(leaves, "MIN_RELATED_BYTES", related)
    rng = np.random.default_rng(1)
    arrays = [rng.choice([0.0, -0.0, np.nan], shape)]
    for num_rows in (1, 0, 3, 1, 40, 2, 50, 1, 1):
        x = arrays[rng.integers(len(arrays))].copy()
        rows = rng.choice(50, num_rows, replace=False)
        x[rows] = rng.choice([0.0, -0.0, np.nan, 1.0], x[rows].shape)
        arrays.append(x)
    values = list(map(LeafValue, arrays))
    for _ in range(200):
        i, j = rng.integers(len(values), size=2)
        found = changed_rows(values[i], values[j])
        assert found.tolist() == rows_apart(arrays[i], arrays[j]).tolist()


def test_of_two_values_compared_with_a_third_few_rows_are_read(monkeypatch):
    monkeypatch.setattr(leaves, "MIN_RELATED_BYTES", 0)
    base = np.arange(60.0).reshape(20, 3)
    first, second = base.copy(), base.copy()
    first[4], second[9] = 1.5, 2.5
    a, b, c = map(LeafValue, (base, first, second))
    assert changed_rows(b, a).tolist() == [4]
    assert changed_rows(c, a).tolist() == [9]
    monkeypatch.setattr(LeafValue, "words", None)  # all rows
    assert changed_rows(c, b).tolist() == [4, 9]
    second[4] = 1.5
    with pytest.raises(AttributeError):
        changed_rows(LeafValue(second), b)
