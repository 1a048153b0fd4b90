"""Representations kept across batches: gradients equal those of plain JAX, and counters say what
was encoded.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import incrax

RNG = np.random.default_rng(0)
NUM_ROWS, WIDTH, SIZE = 64, 6, 4
X = RNG.normal(size=(NUM_ROWS, WIDTH))
PARAMS = {"w": RNG.normal(size=(WIDTH, SIZE)), "b": RNG.normal(size=SIZE), "slope": 0.3}
BATCHES = RNG.integers(0, NUM_ROWS, (5, 7, 2))
FEW = np.array([[3, 60], [3, 11], [-1, 20]])
FORMS = {
    "whole": {},
    "chunks": {"chunk_rows": 16},
    "chunks and a rest": {"chunk_rows": 10},
    "one chunk": {"chunk_rows": 1000},
}


def dense(params, x):
    return jax.nn.leaky_relu(x @ params["w"] + params["b"], params["slope"])


def towers(params, x):
    """A tree of representations, of which one has no cotangents."""
    hidden = jnp.tanh(x @ params["w"])
    return {"left": hidden, "right": (hidden * params["b"])[:, :2], "kind": jnp.argmax(x, axis=1)}


def recurrent(params, x):
    """A loop over the features of each row."""

    def turn(state, feature):
        return jnp.tanh(state + feature[:, None] * params["w"][0] + params["b"]), None

    return lax.scan(turn, jnp.zeros((x.shape[0], SIZE)), x.T)[0]


def noisy(params, x, keys):
    return dense(params, x) * jax.vmap(lambda key: jax.random.bernoulli(key, 0.6, (SIZE,)))(keys)


def contrast(z, temperature=1.0):
    return jnp.sum(jax.nn.softplus(-temperature * jnp.sum(z[..., 0, :] * z[..., 1, :], axis=-1)))


def of_towers(z, temperature=1.0):
    return contrast(z["left"], temperature) + jnp.sum(z["right"] ** 2 * (1 + z["kind"][..., None]))


ENCODERS = {
    "dense": (dense, contrast),
    "towers": (towers, of_towers),
    "recurrent": (recurrent, contrast),
}
CASES = [
    *(("dense", form, BATCHES) for form in FORMS),
    *(("dense", form, FEW) for form in ("whole", "chunks and a rest")),
    ("towers", "chunks and a rest", BATCHES),
    ("towers", "whole", FEW),
    ("recurrent", "chunks and a rest", BATCHES),
]
IDS = [
    f"{name}, {form}, {'few' if batches is FEW else 'most'} rows" for name, form, batches in CASES
]


def total(encoder, loss, batches, params, x, temperature):
    representations = encoder(params, x)
    return jnp.sum(
        jax.vmap(lambda i: loss(jax.tree.map(lambda z: z[i], representations), temperature))(
            batches
        )
    )


def expected(encoder, loss, batches, *args):
    return jax.jit(
        jax.value_and_grad(functools.partial(total, encoder, loss, batches), argnums=(0, 1, 2))
    )(*args)


def close(actual, wanted, rtol=1e-12):
    assert jax.tree.structure(actual) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=rtol * max(1.0, float(np.abs(y).max())))


def added(kept, loss, batches, *args):
    """The sum of the losses, cotangents added batch by batch."""
    gradient = jax.jit(jax.value_and_grad(loss, allow_int=True))
    value = 0.0
    for numbers in batches:
        part, cotangents = gradient(kept.rows(numbers), *args)
        kept.add(numbers, cotangents)
        value += part
    return value


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "form", "batches"), CASES, ids=IDS)
def test_cotangents_of_batches_give_the_gradient_of_their_sum(name, form, batches):
    encoder, loss = ENCODERS[name]
    value, gradient = expected(encoder, loss, batches, PARAMS, X, 0.7)
    kept = incrax.hold(encoder, wrt=("params", "x"), **FORMS[form])(PARAMS, X)
    close(kept.representations, encoder(PARAMS, X))
    close(added(kept, loss, batches, 0.7), value)
    close(kept.pullback(), gradient[:2])


@pytest.mark.parametrize(("name", "form", "batches"), CASES, ids=IDS)
def test_an_epoch_in_one_program_gives_the_gradient_of_the_sum(name, form, batches):
    encoder, loss = ENCODERS[name]
    epoch = incrax.hold(encoder, **FORMS[form]).value_and_grad(
        loss, wrt=("params", "x", "temperature")
    )
    close(epoch(PARAMS, X, batches, 0.7), expected(encoder, loss, batches, PARAMS, X, 0.7))


def test_by_default_the_gradient_is_by_the_parameters():
    value, gradient = expected(dense, contrast, BATCHES, PARAMS, X, 0.7)
    held = incrax.hold(dense)
    kept = held(PARAMS, X)
    added(kept, contrast, BATCHES, 0.7)
    close(kept.pullback(), gradient[0])
    close(held.value_and_grad(contrast)(PARAMS, X, BATCHES, 0.7), (value, gradient[0]))


def test_part_of_the_parameters_and_the_loss_alone():
    _, gradient = expected(dense, contrast, BATCHES, PARAMS, X, 0.7)
    held = incrax.hold(dense, wrt="params['w']")
    kept = held(PARAMS, X)
    added(kept, contrast, BATCHES, 0.7)
    close(kept.pullback(), gradient[0]["w"])
    close(held.value_and_grad(contrast, wrt="temperature")(PARAMS, X, BATCHES, 0.7)[1], gradient[2])
    by_mask = held.value_and_grad(contrast, wrt={"w": False, "b": True, "slope": False})
    close(by_mask(PARAMS, X, BATCHES, 0.7)[1], {"w": None, "b": gradient[0]["b"], "slope": None})


def test_parameters_that_are_cut_have_no_gradient():
    marked = {**PARAMS, "w": incrax.cut(PARAMS["w"])}
    _, gradient = expected(dense, contrast, BATCHES, PARAMS, X, 1.0)
    held = incrax.hold(dense)
    kept = held(marked, X)
    added(kept, contrast, BATCHES)
    for found in (kept.pullback(), held.value_and_grad(contrast)(marked, X, BATCHES)[1]):
        assert found["w"] is None
        close(found["b"], gradient[0]["b"])


def test_static_values_among_the_parameters():
    def encoder(params, x):
        return {"tanh": jnp.tanh, "sin": jnp.sin}[params["kind"]](x @ params["w"])

    held = incrax.hold(encoder, wrt="params['w']")
    epoch = held.value_and_grad(contrast)
    for kind in ("tanh", "sin"):
        params = {"w": PARAMS["w"], "kind": kind}
        plain = lambda w, kind=kind: total(
            encoder, contrast, BATCHES, {"w": w, "kind": kind}, X, 1.0
        )  # noqa: B023
        close(epoch(params, X, BATCHES)[1], jax.grad(plain)(PARAMS["w"]))
        kept = held(params, X)
        added(kept, contrast, BATCHES)
        close(kept.pullback(), jax.grad(plain)(PARAMS["w"]))


def test_complex_representations():
    def encoder(params, x):
        return jnp.exp(1j * (x @ params["w"]))

    def loss(z, temperature):
        return temperature * jnp.sum(jnp.abs(jnp.sum(z, axis=0)) ** 2)

    _, gradient = expected(encoder, loss, BATCHES, PARAMS, X, 0.7)
    held = incrax.hold(encoder, wrt="params['w']", chunk_rows=10)
    close(held.value_and_grad(loss)(PARAMS, X, BATCHES, 0.7)[1], gradient[0]["w"])
    kept = held(PARAMS, X)
    added(kept, loss, BATCHES, 0.7)
    close(kept.pullback(), gradient[0]["w"])


def test_what_else_a_batch_has_reaches_the_loss():
    weights = RNG.uniform(size=(len(BATCHES), BATCHES.shape[1]))
    signs = {"sign": RNG.choice([-1.0, 1.0], len(BATCHES))}

    def loss(z, weights, more, power):
        return more["sign"] * jnp.sum(weights * jnp.sum(z[:, 0] * z[:, 1], axis=-1) ** power)

    def plain(params, power):
        z = dense(params, X)
        return sum(
            loss(z[i], weights[k], {"sign": signs["sign"][k]}, power) for k, i in enumerate(BATCHES)
        )

    epoch = incrax.hold(dense).value_and_grad(loss, wrt=("params", "power"))
    close(
        epoch(PARAMS, X, (BATCHES, weights, signs), 2.0),
        jax.value_and_grad(plain, argnums=(0, 1))(PARAMS, 2.0),
    )


def test_rows_may_be_a_tree_and_batches_of_any_shape():
    def encoder(params, x):
        return jnp.tanh(x["a"] @ params["w"] + x["b"][:, None])

    x = {"a": X, "b": X[:, 0]}
    for batches in (np.arange(NUM_ROWS).reshape(4, 16), np.arange(5)):
        loss = lambda z, scale: scale * jnp.sum(z**3)
        found = incrax.hold(encoder, wrt="x").value_and_grad(loss)(PARAMS, x, batches, 2.0)
        value, gradient = expected(encoder, loss, batches, PARAMS, x, 2.0)
        close(found, (value, gradient[1]))


# --- random numbers -------------------------------------------------------------------------------


def test_random_numbers_are_the_same_in_every_pass():
    """A row has its own key, so that neither chunks nor a choice of rows change its numbers."""
    key = jax.random.key(5)
    encoder = lambda params, x: noisy(params, x, jax.random.split(key, NUM_ROWS))
    held = incrax.hold(noisy, chunk_rows=3)
    value, gradient = expected(encoder, contrast, FEW, PARAMS, X, 0.7)
    kept = held(PARAMS, X, key=key)
    added(kept, contrast, FEW, 0.7)
    close(kept.pullback(), gradient[0])
    found = held.value_and_grad(contrast)(PARAMS, X, FEW, 0.7, key=key)
    close(found, (value, gradient[0]))
    other = held(PARAMS, X, key=jax.random.key(6))
    assert not np.array_equal(other.representations, kept.representations)


# --- what is evaluated ----------------------------------------------------------------------------


def test_rows_are_encoded_once_for_all_batches():
    held = incrax.hold(dense)
    kept = held(PARAMS, X)
    added(kept, contrast, BATCHES)
    assert held.stats.rows_encoded == NUM_ROWS
    kept.pullback()
    assert (held.stats.rows_encoded, held.stats.rows_pulled_back) == (64, 64)


def test_an_epoch_encodes_the_rows_that_it_reads():
    held = incrax.hold(dense)
    held.value_and_grad(contrast)(PARAMS, X, FEW)
    assert (held.stats.rows_encoded, held.stats.rows_pulled_back) == (8, 8)
    held.value_and_grad(contrast)(PARAMS, X, BATCHES)
    assert (held.stats.rows_encoded, held.stats.rows_pulled_back) == (8 + 64, 8 + 64)


def row_products(jaxpr, turns=1):
    """Rows that matrix products with the weights read, loops counted as often as they turn."""
    count = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general" and eqn.invars[1].aval.shape == (WIDTH, SIZE):
            count += turns * eqn.invars[0].aval.shape[0]
        inner = turns * eqn.params.get("length", 1) if eqn.primitive.name == "scan" else turns
        for value in eqn.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                body = getattr(part, "jaxpr", part)
                count += (
                    row_products(body, inner)
                    if isinstance(getattr(body, "eqns", None), list)
                    else 0
                )
    return count


@pytest.mark.parametrize(("form", "num_forward"), [("whole", 1), ("chunks", 2)])
def test_the_program_of_an_epoch_encodes_each_row_once(form, num_forward):
    """Counted in the program itself: rows times turns of the encoder's product; once more where it
    is recomputed.
    """
    epoch = incrax.hold(dense, **FORMS[form]).value_and_grad(contrast)
    jaxpr = jax.make_jaxpr(lambda params: epoch(params, X, BATCHES))(PARAMS).jaxpr
    assert row_products(jaxpr) == num_forward * NUM_ROWS
    naive = jax.make_jaxpr(jax.grad(functools.partial(total, jax.jit(dense), contrast, BATCHES)))(
        PARAMS, X, 1.0
    )
    assert row_products(naive.jaxpr) == NUM_ROWS
    by_batch = lambda params: sum(
        contrast(dense(params, X[i.ravel()]).reshape(*i.shape, SIZE)) for i in BATCHES
    )
    assert row_products(jax.make_jaxpr(jax.grad(by_batch))(PARAMS).jaxpr) == BATCHES.size


def largest(jaxpr):
    """Elements of the largest value that an equation makes, in loops too."""
    sizes = [0]
    for eqn in jaxpr.eqns:
        sizes += [int(np.prod(v.aval.shape)) for v in eqn.outvars]
        for value in eqn.params.values():
            body = getattr(value, "jaxpr", value)
            sizes.append(largest(body) if isinstance(getattr(body, "eqns", None), list) else 0)
    return max(sizes)


def test_memory_is_bounded_by_chunks():
    """An encoder with wide layers inside: nothing as wide exists for all rows, in either pass."""
    wide = {"up": RNG.normal(size=(WIDTH, 500)), "down": RNG.normal(size=(500, SIZE))}

    def encoder(params, x):
        return jnp.tanh(jnp.tanh(x @ params["up"]) @ params["down"])

    def largest_in(**options):
        epoch = incrax.hold(encoder, **options).value_and_grad(contrast)
        return largest(jax.make_jaxpr(lambda params: epoch(params, X, BATCHES))(wide).jaxpr)

    assert largest_in() == NUM_ROWS * 500
    assert largest_in(chunk_rows=8) == 8 * 500
    kept = incrax.hold(encoder, chunk_rows=8)(wide, X)
    assert kept._pullback.residual_bytes <= sum(x.nbytes for x in (*wide.values(), X))
    assert incrax.hold(encoder)(wide, X)._pullback.residual_bytes > NUM_ROWS * 500 * 8


def test_nothing_is_traced_again_at_other_values():
    traces = []

    def encoder(params, x):
        traces.append(x.shape)
        return dense(params, x)

    held = incrax.hold(encoder)
    epoch = held.value_and_grad(contrast)
    for factor in (1.0, 2.0, 3.0):
        params = {**PARAMS, "w": factor * PARAMS["w"]}
        kept = held(params, X)
        added(kept, contrast, BATCHES)
        kept.pullback()
        epoch(params, X, BATCHES, 0.1 * factor)
        if factor == 1.0:
            first = len(traces)
    assert len(traces) == first


# --- the interface --------------------------------------------------------------------------------


def test_numbers_of_rows_as_numpy_takes_them():
    kept = incrax.hold(dense)(PARAMS, X)
    z = np.asarray(kept.representations)
    for numbers in ([1, 2], [-1], np.array([[0, 1], [5, 5]]), jnp.arange(4), []):
        np.testing.assert_array_equal(kept.rows(numbers), z[np.asarray(numbers, int)])


def test_cotangents_are_added_up():
    kept = incrax.hold(dense)(PARAMS, X)
    kept.add([1, 1, 2], np.ones((3, SIZE)))
    kept.add([2], np.ones((1, SIZE)))
    first = kept.pullback()
    expected = jax.grad(lambda params: 2 * jnp.sum(dense(params, X)[1:3]))(PARAMS)
    close(first, expected)
    close(kept.pullback(), first)


def test_rows_that_change_in_place_afterwards_do_not_count():
    x, params = X.copy(), {**PARAMS, "w": PARAMS["w"].copy()}
    kept = incrax.hold(dense)(params, x)
    added(kept, contrast, FEW)
    x[:] = 0
    params["w"][:] = 0
    _, gradient = expected(dense, contrast, FEW, PARAMS, X, 1.0)
    close(kept.pullback(), gradient[0])


def test_under_transformations_an_epoch_is_plain_jax():
    epoch = incrax.hold(dense, chunk_rows=10).value_and_grad(
        contrast, wrt=("params", "temperature")
    )
    wanted = epoch(PARAMS, X, BATCHES, 0.7)
    close(jax.jit(lambda *args: epoch(*args))(PARAMS, X, BATCHES, 0.7), wanted)
    second = jax.jacfwd(lambda t: epoch(PARAMS, X, BATCHES, t)[1][1])(0.7)
    plain = jax.hessian(lambda t: total(dense, contrast, BATCHES, PARAMS, X, t))(0.7)
    close(second, plain)


def test_an_encoder_with_a_primitive_that_has_no_rule_is_tried_out():
    def encoder(kernel, x):
        return jax.vmap(lambda row: jnp.convolve(row, kernel, mode="valid"))(x)

    kernel = np.array([0.2, 0.5, 0.3])
    loss = lambda z, scale: scale * jnp.sum(jnp.cos(z))
    value, gradient = expected(encoder, loss, FEW, kernel, X, 2.0)
    close(incrax.hold(encoder).value_and_grad(loss)(kernel, X, FEW, 2.0), (value, gradient[0]))


def test_what_objects_say_of_themselves():
    held = incrax.hold(dense)
    kept = held(PARAMS, X)
    kept.add([1, 2], np.ones((2, SIZE)))
    assert repr(held) == "hold(dense): 64 rows encoded"
    assert repr(kept) == "kept representations of 64 rows"
    assert held.stats.as_dict()["rows_encoded"] == 64


# --- which encoders are taken ---------------------------------------------------------------------


def averaged(params, x):
    """An exponential moving average along the rows."""
    turn = lambda state, row: (0.9 * state + 0.1 * row,) * 2
    return lax.scan(turn, jnp.zeros(SIZE), dense(params, x))[1]


def masked_by_one_key(params, x):
    return dense(params, x) * jax.random.bernoulli(jax.random.key(7), 0.5, (x.shape[0], SIZE))


def gamma(params, x):
    """Its shapes are numbers of the rows, and its key is one for all of them."""
    z = dense(params, x)
    return z * jax.random.gamma(jax.random.key(7), 1 + z**2)


def by_split_keys(params, x):
    keys = jax.random.split(jax.random.key(7), x.shape[0])
    return dense(params, x) * jax.vmap(lambda key: jax.random.uniform(key, (SIZE,)))(keys)


def by_bit_generator(params, x):
    bits = lax.rng_bit_generator(jnp.zeros(4, "uint32"), (x.shape[0], SIZE))[1]
    return dense(params, x) * (bits % 2)


DRAWN = {
    "noise of a fixed key": masked_by_one_key,
    "of keys split from a fixed one": by_split_keys,
    "gamma": gamma,
    "of a bit generator": by_bit_generator,
}
MIXING = {
    **DRAWN,
    "accumulated": lambda params, x: jnp.cumsum(dense(params, x), axis=0),
    "averaged": averaged,
    "from the first row": lambda params, x: dense(params, x - x[:1]),
    "numbered": lambda params, x: dense(params, x) * jnp.arange(1, x.shape[0] + 1)[:, None],
    "numbered far away": lambda params, x: (
        dense(params, x) * (1 + (jnp.arange(x.shape[0]) > 50))[:, None]
    ),
    "from the largest": lambda params, x: dense(params, x - x.max(0)),
    "convolved": lambda params, x: jax.vmap(lambda c: jnp.convolve(c, jnp.ones(3), "same"), 1, 1)(
        dense(params, x)
    ),
    "of the neighbour": lambda params, x: jnp.concatenate([x[1:], x[:1]]) @ params["w"],
    "by the number of rows": lambda params, x: dense(params, x) / x.shape[0],
    "pairs": lambda params, x: (x @ x.T) @ dense(params, x),
}


@pytest.mark.parametrize("name", MIXING)
def test_an_encoder_that_mixes_rows_is_refused_everywhere(name):
    x = X.copy()
    x[:8] = 0.0
    held = incrax.hold(MIXING[name])
    with pytest.raises(incrax.errors.MixedRowsError):
        held(PARAMS, x)
    with pytest.raises(incrax.errors.MixedRowsError):
        held.value_and_grad(contrast)(PARAMS, x, BATCHES)
    with jax.disable_jit(), pytest.raises(incrax.errors.MixedRowsError):
        held.value_and_grad(contrast)(PARAMS, x, BATCHES)


@pytest.mark.parametrize("name", ["accumulated", "numbered", *DRAWN, "from the largest", "pairs"])
def test_what_shapes_tell_is_refused_under_transformations(name):
    epoch = incrax.hold(MIXING[name]).value_and_grad(contrast)
    for transformed in (jax.jit, jax.grad):
        with pytest.raises(incrax.errors.MixedRowsError):
            transformed(lambda params: epoch(params, X, BATCHES)[0])(PARAMS)


def halved(params, x):
    """Two views of a row, encoded as one array."""
    left, right = jnp.split(dense(params, jnp.concatenate([x, -x])), 2)
    return left * right


def settled(params, x):
    """A loop with a branch that each row takes by itself."""
    halved = lambda _, z: lax.cond(jnp.sum(z**2) > 1, lambda z: 0.5 * z, lambda z: z, z)
    return jax.vmap(lambda z: lax.fori_loop(0, 5, halved, z))(dense(params, x))


TAKEN = {
    "halved": halved,
    "settled": settled,
    "row by row": lambda params, x: lax.map(lambda row: dense(params, row), x),
    "a few at once": lambda params, x: lax.map(lambda row: dense(params, row), x, batch_size=4),
    "merged": lambda params, x: (x.reshape(-1, 2) @ params["w"][:2]).reshape(x.shape[0], -1),
    "normalised": lambda params, x: jax.nn.softmax(dense(params, x), axis=1),
    "ranked": lambda params, x: (
        jnp.sort(dense(params, x), axis=1) * jnp.cumsum(x[:, :SIZE], axis=1)
    ),
    "looked up": lambda params, x: params["w"][jnp.argmax(x, axis=1)] * x[:, :1],
    "picked": lambda params, x: (
        jax.vmap(lambda row: row[jnp.argmin(row)])(x)[:, None] * dense(params, x)
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_encoder_that_keeps_rows_apart_is_taken(name):
    encoder = TAKEN[name]
    kept = incrax.hold(encoder, chunk_rows=10)(PARAMS, X)
    close(kept.representations, encoder(PARAMS, X))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_an_encoder_that_draws_by_a_key_of_each_row_is_taken(transform):
    def encoder(params, x, keys):
        z = dense(params, x)
        drawn = jax.vmap(lambda key, row: jax.random.gamma(jax.random.split(key)[0], 1 + row**2))(
            keys, z
        )
        return z * drawn

    key = jax.random.key(3)
    epoch = incrax.hold(encoder).value_and_grad(contrast)
    value = transform(lambda params: epoch(params, X, BATCHES, key=key)[0])(PARAMS)
    encoded = encoder(PARAMS, X, jax.random.split(key, len(X)))
    close(value, sum(contrast(encoded[np.asarray(rows)]) for rows in BATCHES))


# --- batches of all kinds -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "num_rows"), [(np.int8, 128), (np.int8, 300), (np.uint8, 256), (np.int16, 40_000)]
)
def test_narrow_row_numbers(dtype, num_rows):
    x = RNG.normal(size=(num_rows, 2))
    numbers = np.stack(
        [np.arange(np.iinfo(dtype).max + 1 if num_rows > 127 else 0, dtype=np.int64)[:num_rows]] * 2
    )
    numbers = numbers.astype(dtype)
    numbers[0, 0] = -1 if np.iinfo(dtype).min else 3
    loss = lambda z: jnp.sum(z**3)
    epoch = incrax.hold(lambda w, x: x * w).value_and_grad(loss)
    wanted = jax.value_and_grad(lambda w: sum(loss((x * w)[i]) for i in numbers.astype(int)))(
        np.ones(2)
    )
    close(epoch(np.ones(2), x, numbers), wanted)
    close(jax.jit(lambda numbers: epoch(np.ones(2), x, numbers))(numbers), wanted)


def test_no_batches():
    epoch = incrax.hold(dense).value_and_grad(contrast, wrt=("params", "temperature"))
    zeros = (0.0, (jax.tree.map(np.zeros_like, PARAMS), 0.0))
    for batches in (np.zeros((0, 7, 2), int), np.zeros((0, 7, 2))):
        close(epoch(PARAMS, X, batches, 0.7), jax.tree.map(jnp.asarray, zeros))
        with jax.disable_jit():
            close(epoch(PARAMS, X, batches, 0.7), jax.tree.map(jnp.asarray, zeros))


def test_representations_with_an_empty_place():
    encoder = lambda params, x: {"z": dense(params, x), "extra": None}
    loss = lambda z: contrast(z["z"])
    value, gradient = expected(dense, contrast, FEW, PARAMS, X, 1.0)
    kept = incrax.hold(encoder)(PARAMS, X)
    for numbers in FEW:
        kept.add(numbers, jax.grad(loss)(kept.rows(numbers)))
    close(kept.pullback(), gradient[0])
    close(incrax.hold(encoder).value_and_grad(loss)(PARAMS, X, FEW), (value, gradient[0]))
