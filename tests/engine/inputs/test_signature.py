"""What two calls must share to share a trace, and the names of leaves."""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax.engine.inputs.signature import argument_names, make_signature


def fun(x, params, *rest, scale=1.0, **others):
    return x


def key(*args, **kwargs):
    return make_signature(fun, args, kwargs).key


X = np.zeros(3)
SAME = {
    "other values": [(X, 1.0), (X + 1, 2.0)],
    "NumPy and JAX arrays": [(X, 1.0), (jnp.asarray(X), 1.0)],
    "other objects": [(X, {"a": 1.0, "b": "s"}), (X.copy(), {"b": "s", "a": 3.0})],
    "equal static values": [(X, ("a", (None, len))), (X, ("a", (None, len)))],
    "equal strings of other identity": [(X, "ab"), (X, "".join(["a", "b"]))],
    "values whose hashes collide": [(X, -1), (X, -2)],
}
OTHER = {
    "shape": [(X, 1.0), (np.zeros(4), 1.0), (np.zeros((3, 1)), 1.0), (np.float64(0), 1.0)],
    "dtype": [(X, 1.0), (X.astype(np.float32), 1.0), (X.astype(int), 1.0), (X.astype(bool), 1.0)],
    "Python type": [(X, 1), (X, 1.0), (X, True), (X, 1j)],
    "weak type": [(X, 1.0), (X, np.float64(1))],
    "tree": [(X, 1.0), (X, (1.0,)), (X, [1.0]), (X, {"a": 1.0}), (X, {"b": 1.0}), (X, None), (X,)],
    "static value": [(X, "a"), (X, "b"), (X, len), (X, sum), (X, np.float32), (X, np.float64)],
    "static or dynamic": [(X, "1"), (X, 1), (X, b"1")],
    "key": [(jax.random.key(0), 1), (jax.random.PRNGKey(0), 1), (jax.random.key(0, impl="rbg"), 1)],
    "number of arguments": [(X, 1.0), (X, 1.0, 1.0)],
}


@pytest.mark.parametrize("name", SAME)
def test_calls_that_share_a_trace(name):
    keys = {key(*args) for args in SAME[name]}
    assert len(keys) == 1


@pytest.mark.parametrize("name", OTHER)
def test_calls_that_do_not_share_a_trace(name):
    keys = {key(*args) for args in OTHER[name]}
    assert len(keys) == len(OTHER[name])


TREES = [
    ((X, 1.0), {}),
    ((X, {"b": X, "a": 1.0}), {}),
    ((X, {"a": 2.0, "b": X}), {}),
    ((X, {"a": 2.0, "c": X}), {}),
    ((X, {"a": 2.0, "b": X, "c": X}), {}),
    ((X, {}), {}),
    ((X, None), {}),
    ((X, {"a": None}), {}),
    ((X, {"a": {"b": X}}), {}),
    ((X, OrderedDict(b=X, a=2.0)), {}),
    ((X, (X, 1.0)), {}),
    ((X, {"a": 1.0}), {"scale": 2.0, "k": X}),
    ((X, {"a": 1.0}), {"k": X, "scale": 2.0}),
    ((X, {"a": 1.0}), {"k": {"l": X}}),
    ((X, {"b": X, "a": "s"}), {}),
]


@pytest.mark.parametrize("known", TREES)
def test_leaves_of_a_call_are_those_of_jax(known):
    signature = make_signature(fun, *known)
    for given in TREES:
        leaves, treedef = jax.tree.flatten(given)
        found = signature.leaves_of(*given)
        if treedef == signature.treedef:
            assert found is not None
            assert list(map(id, found)) == list(map(id, leaves))
        else:
            assert found is None or not jax.tree_util.all_leaves(found)


class Tagged(NamedTuple):
    tag: object


class Flag:
    """Equal to a number, as `1 == 1.0 == True` are."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(self.value)

    def __eq__(self, other):
        return self.value == getattr(other, "value", other)


class OtherFlag(Flag):
    pass


def test_equal_static_values_of_other_types_do_not_share_a_trace():
    assert key(X, Flag(1)) == key(X, Flag(1))
    assert key(X, Flag(1)) != key(X, OtherFlag(1))
    assert not make_signature(fun, (X, Flag(1)), {}).same_statics([X, OtherFlag(1)])


def test_positional_and_keyword_arguments_do_not_share_a_trace():
    assert key(X, 1.0) != key(X, params=1.0)
    assert key(X, 1.0, scale=2.0) == key(X, 3.0, scale=4.0)
    assert key(X, 1.0, scale=2.0) != key(X, 1.0, other=2.0)


@pytest.mark.parametrize(
    "setting",
    [
        functools.partial(jax.enable_x64, False),
        functools.partial(jax.default_matmul_precision, "float32"),
        functools.partial(jax.debug_nans, True),
        functools.partial(jax.disable_jit, True),
        functools.partial(jax.numpy_rank_promotion, "raise"),
    ],
    ids=["x64", "precision", "debug_nans", "disable_jit", "rank promotion"],
)
def test_calls_under_another_configuration_do_not_share_a_trace(setting):
    x = np.zeros(3, np.float32)
    before = make_signature(fun, (x,), {})
    with setting():
        inside = make_signature(fun, (x,), {})
    assert inside.config != before.config
    assert inside.key != before.key
    assert make_signature(fun, (x,), {}).key == before.key


def test_double_precision_arrays_count_as_what_jax_makes_of_them():
    with jax.enable_x64(False):
        assert key(X) == key(X.astype(np.float32))


# --- leaves ---------------------------------------------------------------------------------------

ARGS = (X, {"a": 1.0, "s": "text", "n": None}, (np.ones(2), len))
KWARGS = {"scale": 3, "mode": "fast"}


def test_leaves_are_split_and_put_back():
    signature = make_signature(fun, ARGS, KWARGS)
    leaves, _ = jax.tree.flatten((ARGS, KWARGS))
    dynamic = signature.dynamic_leaves(leaves)
    assert signature.statics == ("text", len, "fast")
    assert [type(x) for x in dynamic] == [np.ndarray, float, np.ndarray, int]
    args, kwargs = signature.rebuild(dynamic)
    assert jax.tree.structure((args, kwargs)) == jax.tree.structure((ARGS, KWARGS))
    assert args[1] == ARGS[1]
    assert args[2][1] is len
    assert kwargs == KWARGS


def test_other_values_are_put_in_the_same_places():
    signature = make_signature(fun, ARGS, KWARGS)
    args, kwargs = signature.rebuild(["x", "a", "ones", "scale"])
    assert args == ("x", {"a": "a", "s": "text", "n": None}, ("ones", len))
    assert kwargs == {"scale": "scale", "mode": "fast"}


def test_without_static_leaves_all_are_dynamic():
    signature = make_signature(fun, (X, [1.0, 2]), {})
    leaves = [X, 1.0, 2]
    assert signature.dynamic_leaves(leaves) is leaves
    assert signature.statics == ()


def test_static_values_are_compared_by_type_and_value():
    signature = make_signature(fun, (X, "a", len), {})
    assert signature.same_statics([X + 1, "a", len])
    assert not signature.same_statics([X, "b", len])
    assert not signature.same_statics([X, "a", sum])
    assert not signature.same_statics([X, 1.0, len])
    assert not signature.same_statics(["x", "a", len])


def test_types_of_changed_leaves_are_compared():
    x = jnp.zeros(3)
    signature = make_signature(fun, (x, 1.0, np.float32(2)), {})
    anchors = (x, 1.0, object())
    good = [jnp.ones(3), 2.5, np.float32(3)]
    assert signature.same_types(good, range(3), anchors)
    assert signature.same_types(good, range(3), ())
    assert signature.same_types(
        [np.ones(3), jax.jit(lambda x: x)(1.0), np.array(3, np.float32)], range(3), anchors
    )
    for index, wrong in [
        (0, jnp.ones(4)),
        (0, jnp.ones(3, jnp.float32)),
        (0, "x"),
        (1, 1),
        (1, np.float64(1)),
        (2, 2.0),
    ]:
        leaves = list(good)
        leaves[index] = wrong
        assert not signature.same_types(leaves, range(3), anchors)
        assert signature.same_types(leaves, [k for k in range(3) if k != index], anchors)


def test_a_tracer_has_no_known_type():
    signature = make_signature(fun, (jnp.zeros(3), 1.0), {})

    @jax.jit
    def inside(x):
        assert not signature.same_types([x, 1.0], range(2), ())
        return x

    inside(jnp.zeros(3))


# --- names ----------------------------------------------------------------------------------------


def paths(function, *args, **kwargs):
    return list(make_signature(function, args, kwargs).paths)


def test_leaves_are_named_as_users_write_them():
    assert paths(fun, X, {"mu": 1.0, "s": [1, 2]}) == [
        "x",
        "params['mu']",
        "params['s'][0]",
        "params['s'][1]",
    ]
    assert paths(fun, X, 1.0, 2.0, (3.0,)) == ["x", "params", "rest[0]", "rest[1][0]"]
    assert paths(fun, X, scale=2.0, extra={"a": 1}) == ["x", "extra['a']", "scale"]
    assert paths(fun, X, Tagged(1.0)) == ["x", "params.tag"]


def test_functions_that_hide_their_arguments_are_named_by_position():
    assert paths(lambda *args: 0, 1.0, 2.0) == ["args[0]", "args[1]"]
    assert paths(functools.partial(fun, X), 1.0) == ["params"]
    assert paths(jax.jit(fun), X, 1.0) == ["x", "params"]
    assert argument_names(dict.fromkeys, 2) == argument_names(dict.fromkeys, 3)[:2]
    assert argument_names(type("Hidden", (), {"__signature__": "wrong", "__call__": None}), 2) == [
        "args[0]",
        "args[1]",
    ]


def test_only_positional_parameters_name_positional_arguments():
    def function(a, /, b, *rest, c, **others):
        return a

    assert argument_names(function, 4) == ["a", "b", "rest[0]", "rest[1]"]
    assert argument_names(function, 1) == ["a"]


# --- errors ---------------------------------------------------------------------------------------


def test_a_static_value_without_hash_is_refused_by_name():
    with pytest.raises(incrax.errors.UnsupportedLeafError, match=r"`params\['a'\]` of type set"):
        make_signature(fun, (X, {"a": {1, 2}}), {})


def test_an_array_without_a_type_is_refused_by_name():
    with pytest.raises(
        incrax.errors.UnsupportedLeafError, match=r"`scale` as an array of dtype object"
    ):
        make_signature(fun, (X,), {"scale": np.array([object()])})
