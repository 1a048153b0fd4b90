"""The exact text of every error of representations that are kept."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import check_text

import incrax

X = np.linspace(-1.0, 1.0, 12).reshape(6, 2)
PARAMS = {"w": np.array([1.0, 2.0]), "b": 0.5}


def encoder(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


@pytest.fixture
def kept():
    return incrax.hold(encoder)(PARAMS, X)


# --- rows -----------------------------------------------------------------------------------------


def test_leaves_without_rows():
    text = (
        "`held(params, rows)` got `rows['t']` of type {}; every leaf must be an array with rows "
        "along its first axis. "
        "This is usually a number or a text that all rows share. Nothing was evaluated or stored. "
        "Put it into the "
        "parameters."
    )
    held = incrax.hold(encoder)
    check_text(
        incrax.errors.UnsupportedLeafError, text.format("float"), held, PARAMS, {"x": X, "t": 1.0}
    )
    check_text(
        incrax.errors.UnsupportedLeafError,
        text.format("ndarray"),
        held,
        PARAMS,
        {"x": X, "t": np.array(1.0)},
    )
    epoch = held.value_and_grad(jnp.sum)
    check_text(
        incrax.errors.UnsupportedLeafError,
        text.format("str"),
        epoch,
        PARAMS,
        {"x": X, "t": "a"},
        [[0]],
    )


@pytest.mark.parametrize("rows", [X[:0], (), {}])
def test_no_rows(rows):
    text = (
        "`held(params, rows)` got no rows. This is usually an empty selection, or the arguments in "
        "another order. "
        "Nothing was evaluated or stored. Pass a pytree of arrays with at least one row each."
    )
    check_text(incrax.errors.RowsError, text, incrax.hold(encoder), PARAMS, rows)


def test_leaves_of_other_lengths():
    text = (
        "`held(params, rows)` got arrays with different numbers of rows: `rows['x']` has 6, "
        "`rows['y']` has 5. This is "
        "usually a transposed array, or a selection of some columns only. Nothing was made. Rows are "
        "the first axis of every array."
    )
    check_text(incrax.errors.RowsError, text, incrax.hold(encoder), PARAMS, {"x": X, "y": X[:5]})


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        ([6], "numbers from 6 to 6"),
        ([-7], "numbers from -7 to -7"),
        ([0.5], "float64[1]"),
        (["a"], "<U1[1]"),
        (np.ones(6, bool), "bool[6]"),
        (3, "int64[]"),
        (1 << 70, "object[]"),
        ([[0], [1, 2]], "[[0], [1, 2]]"),
    ],
)
def test_rows_that_are_not_there(kept, rows, seen):
    text = (
        f"`kept.{{}}` got {seen} as numbers of rows; there are rows 0 to 5. This is usually a "
        "batch of another data set, a mask, or a list of arrays of different shapes. Nothing was "
        "evaluated or accumulated. Pass an array of integers from 0, of a mask "
        "`np.flatnonzero(mask)`."
    )
    check_text(incrax.errors.RowsError, text.format("rows"), kept.rows, rows)
    check_text(incrax.errors.RowsError, text.format("add"), kept.add, rows, np.ones(1))


@pytest.mark.parametrize(
    ("batches", "seen"),
    [
        ([[0, 1], [2, 6]], "numbers from 0 to 6"),
        (np.array([[0, 1], [2, 200]], np.uint8), "numbers from 0 to 200"),
        ([[0, -7]], "numbers from -7 to 0"),
        (np.ones(2), "float64[2]"),
        (np.ones((1, 6), bool), "bool[1, 6]"),
        ([[0], [1, 2]], "[[0], [1, 2]]"),
        ([["a"]], "<U1[1, 1]"),
    ],
)
def test_batches_of_rows_that_are_not_there(batches, seen):
    epoch = incrax.hold(encoder).value_and_grad(jnp.sum)
    text = (
        f"`value_and_grad` got {seen} as numbers of rows; there are rows 0 to 5. This is usually a "
        "batch of another data set, a mask, or a list of arrays of different shapes. Nothing was "
        "evaluated or accumulated. Pass an array of integers from 0, of a mask "
        "`np.flatnonzero(mask)`."
    )
    check_text(incrax.errors.RowsError, text, epoch, PARAMS, X, batches)
    check_text(
        incrax.errors.RowsError, text, jax.jit(lambda params: epoch(params, X, batches)), PARAMS
    )
    with jax.disable_jit():
        check_text(incrax.errors.RowsError, text, epoch, PARAMS, X, batches)


def test_batches_inside_a_function_that_is_traced(kept):
    text = (
        "`kept.{}` got {} without values: it is called inside a function that JAX traces, and what "
        "is kept is no part "
        "of that function. This is usually a training step under `jax.jit`. Nothing was evaluated "
        "or accumulated. Call "
        "`kept.rows` and `kept.add` outside, or use `held.value_and_grad(loss)`, which takes all "
        "batches and can be "
        "compiled."
    )
    check_text(
        incrax.errors.RowsError,
        text.format("rows", "row numbers"),
        jax.jit(kept.rows),
        jnp.array([0]),
    )
    check_text(
        incrax.errors.RowsError,
        text.format("add", "row numbers"),
        jax.jit(kept.add),
        jnp.array([0]),
        jnp.ones(1),
    )
    check_text(
        incrax.errors.RowsError,
        text.format("add", "cotangents"),
        jax.jit(lambda x: kept.add([0], x)),
        jnp.ones(1),
    )


def test_data_of_batches_that_are_no_arrays():
    text = (
        "The batches hold 1 batches of row numbers, and `batches[1:][0]` is str. This is usually "
        "data of all batches "
        "in one. Nothing was evaluated or stored. Every array beside the row numbers has one entry "
        "a batch along its "
        "first axis."
    )
    epoch = incrax.hold(encoder).value_and_grad(lambda z, name: jnp.sum(z))
    check_text(incrax.errors.RowsError, text, epoch, PARAMS, X, (np.array([[0, 1]]), "a"))


def test_data_of_another_number_of_batches():
    text = (
        "The batches hold 2 batches of row numbers, and `batches[1:][0]['y']` is float64[6]. This "
        "is usually data of "
        "all batches in one. Nothing was evaluated or stored. Every array beside the row numbers "
        "has one entry a batch "
        "along its first axis."
    )
    epoch = incrax.hold(encoder).value_and_grad(lambda z, more: jnp.sum(z))
    check_text(
        incrax.errors.RowsError,
        text,
        epoch,
        PARAMS,
        X,
        (np.array([[0, 1], [2, 3]]), {"y": np.ones(6)}),
    )


def test_batches_are_not_differentiated():
    epoch = incrax.hold(encoder).value_and_grad(
        lambda z, weights: jnp.sum(weights * z), wrt=("params", "batches")
    )
    text = (
        "it selects `batches.others[0]` among the batches, which belong to one batch each and are "
        "not trained"
    )
    with pytest.raises(incrax.errors.SelectionError, match=re.escape(text)):
        epoch(PARAMS, X, (np.array([[0, 1], [2, 3]]), np.ones((2, 2))))


# --- encoders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrong", "seen"), [(lambda p, x: jnp.sum(x), "float64[]"), (lambda p, x: (), "nothing"),
                                             (lambda p, x: x[:3], "float64[3,2]")])  # fmt: skip
def test_encoders_that_return_no_rows(wrong, seen):
    text = (
        f"The encoder returned {seen} for 6 rows; every array that it returns must have a row for "
        "each of them along "
        "its first axis. This is usually a mean over rows, or a missing `jax.vmap`. Nothing was "
        "evaluated or stored. "
        "Return one representation a row; what is common to all rows belongs into the loss."
    )
    check_text(incrax.errors.RowsError, text, incrax.hold(wrong), PARAMS, X)
    check_text(
        incrax.errors.RowsError,
        text,
        incrax.hold(wrong).value_and_grad(jnp.sum),
        PARAMS,
        X,
        [[0, 1, 2, 3, 4, 5]],
    )


def normalised(params, x):
    z = encoder(params, x)
    return (z - jnp.mean(z)) / jnp.std(z)


def sorted_rows(params, x):
    return jnp.sort(-encoder(params, x))


MIXING = (
    r"`hold\(encoder\)` evaluates the encoder on chunks and on some rows only, and the representation of a row depends "
    r"on other rows: {}. This is usually a normalisation over the batch, or a closed-over array with one entry a row. "
    r"Nothing was evaluated or stored. Compute what rows have in common before, and pass it with the parameters; pass "
    r"what is of one row among the rows; or normalise within a row."
)
REASONS = [
    (normalised, r"`reduce_sum` at \S+ \(normalised\) reduces over the rows"),
    (sorted_rows, r"`sort` at \S+ \(sorted_rows\) sorts the rows"),
    (lambda p, x: x - x[:1], r"result 0 for 6 rows differs by [0-9.]+ in another order"),
    (lambda p, x: x / x.shape[0], r"result 0 for row \d differs by [0-9.]+ beside 5 others"),
    (lambda p, x: x + X, r"it cannot be traced for another number of rows: TypeError"),
    (
        lambda p, x: x * jax.random.bernoulli(jax.random.key(7), 0.5, x.shape),
        r"`random_bits` at \S+ \(<lambda>\) draws the random numbers of all rows from one key \(take `keys`, one a "
        r"row, as third argument\)",
    ),
]


@pytest.mark.parametrize(("wrong", "reason"), REASONS)
def test_encoders_that_mix_rows(wrong, reason):
    held = incrax.hold(wrong)
    text = f"^{MIXING.format(reason)}$"
    with pytest.raises(incrax.errors.MixedRowsError, match=text):
        held(PARAMS, X)
    with pytest.raises(incrax.errors.MixedRowsError, match=text):
        held.value_and_grad(jnp.sum)(PARAMS, X, [[0, 1]])
    assert held.stats.rows_encoded == 0


def test_an_encoder_that_fails_for_any_number_of_rows():
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions"):
        incrax.hold(lambda p, x: x @ jnp.ones((3, 2)))(PARAMS, X)


# --- cotangents and options -----------------------------------------------------------------------


def test_cotangents_that_do_not_fit(kept):
    text = (
        "`kept.add` got a cotangent that is {}, and it belongs to {}. Nothing was evaluated or "
        "stored. Pass a pytree "
        "like what it belongs to, with arrays of the same shapes and dtypes; None for leaves that "
        "are not selected."
    )
    wanted = "what `rows` returned, float64[2]"
    check_text(
        incrax.errors.TangentError, text.format("float64[3]", wanted), kept.add, [1, 2], np.ones(3)
    )
    check_text(
        incrax.errors.TangentError,
        text.format("complex128[2]", wanted),
        kept.add,
        [1, 2],
        np.ones(2) * 1j,
    )
    check_text(incrax.errors.TangentError, text.format("str", wanted), kept.add, [1, 2], "a")
    check_text(
        incrax.errors.TangentError, text.format("tuple", wanted), kept.add, [1, 2], (np.ones(2),)
    )
    pair = incrax.hold(lambda params, x: (encoder(params, x), x))(PARAMS, X)
    with pytest.raises(incrax.errors.TangentError, match="of another structure .* it belongs to"):
        pair.add([1, 2], [np.ones(2)])


def test_options():
    check_text(
        TypeError, "`hold(encoder)` got 3 of type int; it must be a function.", incrax.hold, 3
    )
    text = "`hold(chunk_rows)` got 0; it must be an integer of 1 or more."
    check_text(ValueError, text, incrax.hold, encoder, chunk_rows=0)
    for wrong, kind in ((True, "bool"), (2.0, "float")):
        text = (
            f"`hold(chunk_rows)` got {wrong!r} of type {kind}; it must be an integer of 1 or more."
        )
        check_text(TypeError, text, incrax.hold, encoder, chunk_rows=wrong)
    text = "`value_and_grad(loss)` got None of type NoneType; it must be a function."
    check_text(TypeError, text, incrax.hold(encoder).value_and_grad, None)
