"""Seed 001, six questions on caching and derivatives in TensorFlow (no addresses are given with the
seed).

What today's engine answers: a sub-computation F(W) is reused while W stays and its gradient stays
right; constants are folded and equal parts merged; rejected steps of a least-squares fit cost
nothing; reverse mode forms no Jacobians; FLOPs of the backward pass; state beside trainable
variables; representations kept across batches.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, check_calls, primitives_run, ran_by, same

import incrax
from incrax import fit as fits

pytestmark = pytest.mark.optimized

RNG = np.random.default_rng(0)
W = RNG.normal(size=(6, 8))
VECTORS = [RNG.normal(size=8) for _ in range(4)]


def matrix(w):
    """Every entry of F is a computation on the trainable W."""
    return jnp.tanh(w) * jnp.exp(-0.1 * w**2)


# --- F(W), used with many vectors -----------------------------------------------------------------


def test_the_matrix_is_kept_while_its_variables_stay():
    f = check_calls(lambda w, v: matrix(w) @ v, [(W, v) for v in VECTORS], tuning=MINIMAL)
    assert primitives_run(f) == ["dot_general"]
    f(W + 0.1, VECTORS[-1])
    assert {"tanh", "exp", "dot_general"} <= set(primitives_run(f))


def test_the_matrix_used_several_times_in_one_objective_is_evaluated_once():
    f = incrax.incremental(
        lambda w, a, b: jnp.sum(matrix(w) @ a) + jnp.sum(matrix(w) @ b), tuning=MINIMAL
    )
    f(W, VECTORS[0], VECTORS[1])
    assert primitives_run(f).count("tanh") == 1
    f(W, VECTORS[0], VECTORS[2])
    assert "tanh" not in primitives_run(f)
    assert primitives_run(f).count("dot_general") == 1


def test_a_kept_matrix_is_no_constant_for_the_gradient():
    """The thread's fear: with F precomputed, the gradient with respect to W would be lost."""
    loss = lambda w, v: jnp.sum((matrix(w) @ v) ** 2)
    f = check_calls(
        jax.value_and_grad(loss), [(w, v) for w in (W, W + 0.3) for v in VECTORS], tuning=MINIMAL
    )
    assert not {"tanh", "exp"} & set(primitives_run(f))
    assert float(jnp.abs(f(W, VECTORS[0])[1]).max()) > 0


def test_one_entry_of_the_matrix_depends_on_its_own_variables():
    def f(w, v):
        entries = [jnp.exp(w[i] * i) for i in range(3)]
        return entries[0] * v + jnp.sin(entries[1]) * v + jnp.cos(entries[2]) * v

    ours = incrax.incremental(f, tuning=MINIMAL)
    ours(np.array([0.1, 0.2, 0.3]), 2.0)
    ours(np.array([0.1, 0.25, 0.3]), 2.0)
    assert primitives_run(ours).count("exp") == primitives_run(ours).count("sin") == 1
    assert "cos" not in primitives_run(ours)


def test_what_reads_no_input_runs_once():
    table = np.linspace(0.0, 1.0, 10_000)
    f = incrax.incremental(
        lambda w, v: jnp.sum(jnp.cos(jnp.asarray(table))) * (matrix(w) @ v), tuning=MINIMAL
    )
    f(W, VECTORS[0])
    for k in range(3):
        f(W + k, VECTORS[k])
        assert "cos" not in primitives_run(f)


def test_small_constants_are_folded_before_anything_runs():
    f = incrax.incremental(lambda v: v * (jnp.arange(3) * 2 + 1), tuning=MINIMAL)
    f(np.ones(3))
    assert "iota" not in primitives_run(f)


# --- Levenberg-Marquardt --------------------------------------------------------------------------

TIMES = np.linspace(0.0, 4.0, 60)
TRUTH = np.array([2.0, 0.7, 0.5, 3.0])
COUNTS = np.asarray(TRUTH[0] * np.exp(-TRUTH[1] * TIMES) + TRUTH[2] * np.sin(TRUTH[3] * TIMES))


def residuals(theta, counts):
    return theta[0] * jnp.exp(-theta[1] * TIMES) + theta[2] * jnp.sin(theta[3] * TIMES) - counts


def fit(residual, jacobian, theta, counts):
    """Plain Levenberg-Marquardt; returns the parameters and how many steps were rejected."""
    damping, rejected = 1e-2, 0
    r, j = np.asarray(residual(theta, counts)), np.asarray(jacobian(theta, counts))
    for _ in range(60):
        normal = j.T @ j
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -j.T @ r)
        new = np.asarray(residual(theta + step, counts))
        if new @ new < r @ r:
            theta, r, damping = theta + step, new, damping / 10
            j = np.asarray(jacobian(theta, counts))
        else:
            rejected, damping = rejected + 1, damping * 10
        if r @ r < 1e-24:
            break
    return theta, rejected


def test_a_fit_by_levenberg_marquardt_takes_residuals_and_variables_as_they_are():
    ours = incrax.incremental(residuals), incrax.incremental(jax.jacfwd(residuals))
    start = np.array([1.0, 1.0, 1.0, 2.8])
    theta, _ = fit(*ours, start, COUNTS)
    np.testing.assert_allclose(theta, TRUTH, rtol=1e-8)
    np.testing.assert_allclose(
        theta, fit(jax.jit(residuals), jax.jit(jax.jacfwd(residuals)), start, COUNTS)[0]
    )


def test_jacobian_columns_that_a_change_leaves_alone_do_not_run():
    jacobian = incrax.incremental(jax.jacfwd(residuals), tuning=MINIMAL)
    jacobian(TRUTH, COUNTS)
    jacobian(np.array([2.5, 0.7, 0.5, 3.0]), COUNTS)
    assert not {"exp", "sin", "cos"} & set(primitives_run(jacobian))
    jacobian(np.array([2.5, 0.7, 0.5, 3.1]), COUNTS)
    assert "exp" not in primitives_run(jacobian)


def test_new_targets_leave_the_jacobian_alone():
    jacobian = incrax.incremental(jax.jacfwd(residuals), tuning=MINIMAL)
    jacobian(TRUTH, COUNTS)
    assert ran_by(jacobian, TRUTH, COUNTS + 1) == 0


def test_a_rejected_step_goes_back_to_kept_values():
    residual = incrax.incremental(residuals, tuning=MINIMAL)
    residual(TRUTH, COUNTS)
    residual(TRUTH + 0.1, COUNTS)
    assert ran_by(residual, TRUTH, COUNTS) == 0


# --- reverse mode and its price -------------------------------------------------------------------

LAYERS = {f"w{k}": RNG.normal(size=(40, 40)) / 7 for k in range(3)}
BATCH = RNG.normal(size=(32, 40))


def network(layers, x):
    for w in layers.values():
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def flops_of(fun, *args):
    f = incrax.incremental(fun, tuning=MINIMAL)
    f(*args)
    return f.explain().as_dict()["flops_ran"]


def test_reverse_mode_forms_no_jacobian():
    """A Jacobian of one layer would hold (32 * 40)**2 numbers; nothing computed is larger than a
    layer's values.
    """
    f = incrax.incremental(jax.grad(network), tuning=MINIMAL)
    f(LAYERS, BATCH)
    (traced,) = f._traces.table.values()
    sizes = [
        np.prod(var.aval.shape) for eqn in traced.engine.facts.program.eqns for var in eqn.outvars
    ]
    assert max(sizes) == 40 * 40


def test_the_backward_pass_costs_a_small_multiple_of_the_forward_pass():
    forward, both = (
        flops_of(network, LAYERS, BATCH),
        flops_of(jax.value_and_grad(network), LAYERS, BATCH),
    )
    assert 1.5 < (both - forward) / forward < 2.5


def test_flops_of_a_gradient_count_products_by_hand():
    a = b = jnp.ones((64, 64))
    product = 2 * 64**3
    assert flops_of(lambda a, b: a @ b, a, b) == product
    gradient = flops_of(jax.grad(lambda a, b: jnp.sum(a @ b), argnums=(0, 1)), a, b)
    assert gradient == pytest.approx(
        2 * product, rel=0.01
    )  # the forward product is dead and not counted


def test_flops_inside_a_loop_are_counted_for_every_iteration():
    """One of the caveats that the thread lists."""

    def loop(x, w):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=100)[0]

    w = jnp.eye(64)
    assert flops_of(loop, w, w) == 100 * 2 * 64**3


def test_flops_of_what_never_runs_are_not_counted():
    def f(x):
        del_me = jnp.linalg.cholesky(x @ x.T)  # noqa: F841
        return jnp.sum(x)

    assert flops_of(f, jnp.ones((64, 64))) == 64 * 64 - 1  # the sum, and it alone


# --- the caveats that the answer on FLOPs lists, one by one ---------------------------------------


def test_the_backward_pass_is_both_passes_without_the_forward_pass():
    """ "Add grads = tf.gradients(C, [A, B]), then subtract": done by one call, for products
    exactly.
    """
    a, b = jax.ShapeDtypeStruct((32, 64), np.float32), jax.ShapeDtypeStruct((64, 16), np.float32)
    report = incrax.cost(lambda a, b: a @ b, a, b, wrt=("a", "b"))
    product = 2 * 32 * 64 * 16
    assert (report.forward.total.flops, report.backward.total.flops, report.ratio) == (
        product,
        2 * product,
        2.0,
    )


def test_flops_of_a_while_loop_are_not_counted_only_once():
    """ "The flops from ops in a while loop will be added only once": a run counts its turns, or the
    report says so.
    """
    power = lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 1e3, lambda c: c @ (2 * x), x)
    measured = incrax.cost(power, np.eye(8), trips="measured").forward
    assert measured.loops[0].turns == 10
    assert measured.total.flops == 10 * (2 * 8**3 + 8**2)
    unmeasured = incrax.cost(power, np.eye(8))
    assert len(unmeasured.unknown_loops) == 1
    assert any("unknown trips" in note for note in unmeasured.notes)


def test_operations_that_never_run_are_not_added():
    """ "Ops that are never normally run will be added": neither what no result needs, nor a side
    that is not taken.
    """

    def f(x):
        del_me = jnp.linalg.cholesky(x @ x.T)  # noqa: F841
        return jax.lax.cond(x[0, 0] > 5, lambda: x @ x, lambda: x)

    x = np.eye(64)
    assert incrax.cost(f, x, branches="taken").forward.total.flops == 0
    assert incrax.cost(f, 9 * x, branches="taken").forward.total.flops == 2 * 64**3


def test_shapes_are_known_of_every_operation():
    """ "Heavily depends on shape inference.

    It might not be available for all ops": a trace has all shapes.
    """
    layers, batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (LAYERS, BATCH))
    report = incrax.cost(network, layers, batch)
    rows = [row for _, row in report.per_equation]
    assert {"dot_general", "tanh", "reduce_sum"} <= {row.primitive for row in rows}
    assert all("[" in each for row in rows for each in (*row.inputs, *row.results))
    assert (
        report.forward.total.flops == 3 * 2 * 32 * 40 * 40 + 2 * 32 * 40 - 1
    )  # products, squares and their sum
    assert report.forward.total == incrax.cost(network, LAYERS, BATCH).forward.total


def test_an_operation_that_nobody_registered_is_named_and_may_be_registered():
    """ "There can be ops without such functions": never counted as nothing in silence."""
    theory = lambda x: jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct(x.shape, x.dtype), x) * 2
    report = incrax.cost(theory, np.ones(50))
    ((_, row),) = report.not_counted
    assert row.primitive == "pure_callback"
    assert row.source.startswith(__file__)
    assert any("not registered" in note for note in report.notes)
    registered = incrax.cost(
        theory, np.ones(50), rules={"pure_callback": lambda inputs, results, params: 49}
    )
    assert registered.forward.total.flops == 49 + 50
    assert not registered.not_counted


def test_counted_and_measured_stand_side_by_side():
    """ "Better to use this in conjunction with an actual run record": the page of a function that
    was called has the FLOPs and seconds of each equation.
    """
    f = incrax.incremental(network)
    for scale in (1.0, 2.0, 3.0):
        f(LAYERS, scale * BATCH)
    shown = incrax.report(f).as_dict()["equations"]
    assert sum(shown["flops"]) >= 3 * 2 * 32 * 40 * 40
    assert shown["how"] == "measured as a whole"
    assert min(shown["seconds"]) >= 0 < sum(shown["seconds"])


def test_of_a_change_only_flops_that_run_again_are_counted():
    """What the thread's profiler cannot say: the price of the next call, when one layer's weights
    change.
    """
    report = incrax.cost(network, LAYERS, BATCH, changing="layers['w2']")
    product = 2 * 32 * 40 * 40
    assert report.forward.avoided.flops == 2 * product
    assert report.forward.again.flops == product + 2 * 32 * 40 - 1


# --- trainable variables and state ----------------------------------------------------------------


def normalised_loss(trainable, state, x):
    """Batch normalisation: the moving mean is state, updated beside the gradient and never part of
    it.
    """
    mean = jnp.mean(x, axis=0)
    y = (x - mean) * trainable["scale"] + trainable["shift"]
    return jnp.sum(jnp.tanh(y) ** 2), {"mean": 0.9 * state["mean"] + 0.1 * mean}


def test_state_takes_no_part_in_the_gradient_and_does_not_make_it_stale():
    trainable = {"scale": np.ones(40), "shift": np.zeros(40)}
    f = incrax.incremental(jax.value_and_grad(normalised_loss, has_aux=True), tuning=MINIMAL)
    plain = jax.jit(jax.value_and_grad(normalised_loss, has_aux=True))
    state = {"mean": np.zeros(40)}
    for _ in range(3):
        result, expected = f(trainable, state, BATCH), plain(trainable, state, BATCH)
        same(result, expected)
        (_, state), gradient = result
        assert set(gradient) == {"scale", "shift"}
    assert {"mul", "add"} <= set(primitives_run(f)) <= {"mul", "add", "convert_element_type"}


def test_variables_that_are_not_trained_get_no_cotangent():
    everything = primitives_of(jax.grad(network))
    last_only = primitives_of(
        lambda layers, x: jax.grad(lambda w: network({**layers, "w2": w}, x))(layers["w2"])
    )
    assert everything.count("dot_general") == 3 + 3 + 2
    assert last_only.count("dot_general") == 3 + 1


def primitives_of(fun):
    f = incrax.incremental(fun, tuning=MINIMAL)
    f(LAYERS, BATCH)
    return primitives_run(f)


# --- representations kept across batches ----------------------------------------------------------

ITEMS = RNG.normal(size=(50, 40))
PAIRS = [RNG.integers(0, 50, size=(16, 2)) for _ in range(4)]


def pair_loss(encoder, items, pairs):
    """All items through the encoder, then a loss on combinations of their representations."""
    representations = jnp.tanh(items @ encoder["first"]) @ encoder["second"]
    left, right = representations[pairs[:, 0]], representations[pairs[:, 1]]
    return jnp.sum(jax.nn.sigmoid(jnp.sum(left * right, axis=1)))


ENCODER = {"first": RNG.normal(size=(40, 20)) / 6, "second": RNG.normal(size=(20, 5)) / 4}


def test_representations_are_kept_while_batches_of_combinations_change():
    f = check_calls(pair_loss, [(ENCODER, ITEMS, pairs) for pairs in PAIRS], tuning=MINIMAL)
    assert not {"tanh", "dot_general"} & set(primitives_run(f))


def test_gradients_pass_through_kept_representations():
    """The part that the thread calls impossible: the encoder's forward pass is kept, its backward
    pass runs.
    """
    gradient = jax.value_and_grad(pair_loss)
    f = check_calls(gradient, [(ENCODER, ITEMS, pairs) for pairs in PAIRS], tuning=MINIMAL)
    assert "tanh" not in primitives_run(f)
    assert (
        primitives_run(f).count("dot_general") == 3
    )  # two weights and the cotangent between the layers
    moved = jax.tree.map(lambda w: w * 1.1, ENCODER)
    same(f(moved, ITEMS, PAIRS[0]), jax.jit(gradient)(moved, ITEMS, PAIRS[0]))


# --- collections of variables ---------------------------------------------------------------------


def test_trainable_variables_and_update_operations_are_roles():
    """The answers in code: the first collection is differentiated, the second updated beside it."""
    optax = pytest.importorskip("optax", reason="optax is not installed")
    trainable = {"scale": np.ones(40), "shift": np.zeros(40)}
    m = incrax.bind(
        normalised_loss,
        trainable=trainable,
        state={"mean": np.zeros(40)},
        x=BATCH,
        roles={"state": "state", "x": "data"},
    )
    assert set(m.grad()) == {"trainable"}
    step = m.training(optax.sgd(0.1), updates="before")
    step()
    np.testing.assert_allclose(m["mean"], 0.1 * BATCH.mean(axis=0))
    expected = jax.grad(lambda t: normalised_loss(t, {"mean": 0.1 * BATCH.mean(axis=0)}, BATCH)[0])(
        trainable
    )
    np.testing.assert_allclose(m["scale"], 1.0 - 0.1 * expected["scale"], rtol=1e-12)


def test_a_variable_is_taken_out_of_training_later():
    """ "You might want to fine-tune only part of the network, e.g., the last layer":
    `trainable=False`, afterwards.
    """
    m = incrax.bind(
        incrax.incremental(network, tuning=MINIMAL), layers=LAYERS, x=BATCH, roles={"x": "data"}
    )
    m.grad()
    everything = [step["primitive"] for step in m.explain("grad").as_dict()["ran"]]
    m.set_role("layers", "fixed")
    m.set_role("w2", "trainable")
    gradient = m.grad()["layers"]
    assert gradient["w0"] is None
    same(
        gradient["w2"],
        jax.jit(lambda w: jax.grad(lambda w: network({**LAYERS, "w2": w}, BATCH))(w))(LAYERS["w2"]),
    )
    last = [step["primitive"] for step in m.explain("grad").as_dict()["ran"]]
    assert (everything.count("dot_general"), last.count("dot_general")) == (3 + 3 + 2, 3 + 1)


# --- the optimiser that the thread says one must write --------------------------------------------


def net_residuals(layers, x, y):
    """A small network's error on a batch: residuals of its own variables, with no assignment in
    between.
    """
    return (jnp.tanh(x @ layers["w0"] + layers["b0"]) @ layers["w1"])[:, 0] - y


def net():
    rng = np.random.default_rng(5)
    return {
        "w0": rng.normal(size=(2, 6)),
        "b0": rng.normal(size=6),
        "w1": rng.normal(size=(6, 1)) / 3,
    }


def test_one_step_per_batch_on_the_models_own_variables():
    """`for input_batch, target_batch in dataset:` one iteration each, and the variables are
    updated.
    """
    x = np.random.default_rng(6).normal(size=(120, 2))
    y = np.sin(x[:, 0]) * x[:, 1]
    m = incrax.bind(net_residuals, layers=net(), x=x, y=y, roles={"x": "data", "y": "data"})
    steps = fits.LeastSquaresSteps(net_residuals)
    layers = m["layers"]
    state, before = steps.init(layers), float(jnp.sum(m.value() ** 2))
    for _ in range(10):
        for rows in np.split(np.arange(120), 3):
            layers, state = steps.step(layers, state, x[rows], y[rows])
            m.set(layers=layers)
    assert float(jnp.sum(m.value() ** 2)) < 0.05 * before
    assert state.num_steps == 30


def test_all_data_at_once_is_one_call():
    """`max_iter=10000` with a model: the dependence on the variables is not lost, since nothing is
    assigned.
    """
    x = np.random.default_rng(6).normal(size=(120, 2))
    m = incrax.bind(
        net_residuals, layers=net(), x=x, y=np.sin(x[:, 0]), roles={"x": "data", "y": "data"}
    )
    before = float(0.5 * jnp.sum(m.value() ** 2))
    found = fits.levenberg_marquardt(m, max_steps=200)
    np.testing.assert_allclose(0.5 * jnp.sum(m.value() ** 2), found.cost, rtol=1e-9)
    assert found.cost < 1e-2 * before


def test_all_batches_share_one_pass_through_the_encoder_and_one_back():
    """ "Computing those gradients will require recomputing every Op in the encoder": once, for all
    batches together.
    """
    encode = lambda encoder, items: jnp.tanh(items @ encoder["first"]) @ encoder["second"]
    loss = lambda z: jnp.sum(jax.nn.sigmoid(jnp.sum(z[:, 0] * z[:, 1], axis=1)))
    held = incrax.hold(encode)
    kept = held(ENCODER, ITEMS)
    for combinations in PAIRS:
        kept.add(combinations, jax.grad(loss)(kept.rows(combinations)))
    gradient = kept.pullback()
    expected = jax.grad(lambda encoder: sum(pair_loss(encoder, ITEMS, pairs) for pairs in PAIRS))(
        ENCODER
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), gradient, expected
    )
    assert held.stats.rows_encoded == len(ITEMS)
