"""Costs that can be counted by hand: forward, backward, per equation; nothing is evaluated."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

lax = jax.lax


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def flops(fun, *args, **options):
    report = incrax.cost(fun, *args, **options)
    return (
        report.forward.total.flops,
        None if report.backward is None else report.backward.total.flops,
    )


# --- the table ------------------------------------------------------------------------------------

N, D, R, T, H = 32, 40, 3, 24, 4
WIDTHS = (20, 40, 30, 10)
NET = [(array(a, b), array(b)) for a, b in zip(WIDTHS, WIDTHS[1:], strict=False)]


def network(layers, x):
    for w, b in layers:
        x = jnp.exp(x @ w + b)
    return jnp.sum(x**2)


PRODUCTS = [2 * N * a * b for a, b in zip(WIDTHS, WIDTHS[1:], strict=False)]
UNITS = N * sum(WIDTHS[1:])

# Products and biases of each layer; a square and a sum of the last one's N x 10 values.
NET_FORWARD = sum(PRODUCTS) + UNITS + 2 * N * WIDTHS[-1] - 1
# dW of each layer, dx of each but the first; db sums N rows; exp' is a product; 2 x g are two.
NET_BACKWARD = (
    2 * sum(PRODUCTS) - PRODUCTS[0] + sum(WIDTHS[1:]) * (N - 1) + UNITS + 2 * N * WIDTHS[-1]
)


def loop(x, w):
    return lax.scan(lambda c, _: (c @ w, None), x, None, length=100)[0]


def nested(x):
    inner = lambda c, _: (c * x + 1.0, None)
    return lax.scan(
        lambda c, _: (lax.scan(inner, c, None, length=5)[0] - x, None), x, None, length=7
    )[0]


@jax.custom_vjp
def squares(x):
    return jnp.sum(x * x)


squares.defvjp(lambda x: (jnp.sum(x * x), x), lambda x, g: (g * (x + x + x),))


def attention(params, x):
    """H heads of D / H features, T places."""
    q, k, v = ((x @ params[name]).reshape(T, H, D // H) for name in "qkv")
    scores = jnp.einsum("thd,shd->hts", q, k) * 0.3
    mixed = jnp.einsum("hts,shd->thd", jax.nn.softmax(scores, axis=-1), v)
    return mixed.reshape(T, D) @ params["o"]


# Four projections; scores and mixtures; a scale; of the softmax: the maximum and -inf, a
# difference, a sum, a quotient.
ATTENTION = (
    4 * 2 * T * D * D + 2 * 2 * T * T * D + H * T * T + H * T * ((T - 1) + 1 + T + (T - 1) + T)
)


def factor_and_solve(a, b):
    return jax.scipy.linalg.cho_solve((lax.linalg.cholesky(a, symmetrize_input=False), True), b)


HAND = {
    # 2 m k n, and two products of the same size for the cotangents of both operands
    "matrix product": (
        lambda a, b: a @ b,
        (array(N, D), array(D, R)),
        (0, 1),
        2 * N * D * R,
        4 * N * D * R,
    ),
    "three layers": (network, (NET, array(N, WIDTHS[0])), None, NET_FORWARD, NET_BACKWARD),
    # 100 products; two for each turn backwards, and the sum of the weights' cotangents
    "scan of 100": (loop, (array(D, D), array(D, D)), (0, 1), 200 * D**3, 100 * (4 * D**3 + D**2)),
    # 7 * 5 multiply-adds and 7 differences
    "nested scans": (nested, (array(N),), None, 7 * (5 * 2 * N + N), None),
    # n products and n - 1 sums; the rule's two sums and a product
    "custom rule": (squares, (array(N),), None, 2 * N - 1, 3 * N),
    "attention": (
        attention,
        (dict.fromkeys("qkvo", array(D, D)), array(T, D)),
        None,
        ATTENTION,
        None,
    ),
    # n^3 / 3, and n^2 for each of two triangles and each right side
    "Cholesky and solve": (
        factor_and_solve,
        (array(D, D), array(D, R)),
        None,
        D**3 / 3 + 2 * D**2 * R,
        None,
    ),
    # 2/3 n^3, a triangle with ones on its diagonal, and one without
    "LU and solve": (
        jnp.linalg.solve,
        (array(D, D), array(D, R)),
        None,
        2 / 3 * D**3 + (D * (D - 1) + D**2) * R,
        None,
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_flops_are_those_counted_by_hand(name):
    fun, args, wrt, forward, backward = HAND[name]
    counted = flops(fun, *args, wrt=wrt)
    assert counted[0] == pytest.approx(forward, rel=1e-12)
    if backward is not None:
        assert counted[1] == pytest.approx(backward, rel=1e-12)


def test_the_backward_pass_of_a_network_has_its_ratio_to_the_forward_pass():
    report = incrax.cost(network, NET, array(N, WIDTHS[0]))
    assert report.ratio == pytest.approx(NET_BACKWARD / NET_FORWARD)


def test_a_backward_pass_costs_as_much_wherever_it_is_jitted():
    plain, jitted = (incrax.cost(f, NET, array(N, WIDTHS[0])) for f in (network, jax.jit(network)))
    for one, other in zip(plain.passes, jitted.passes, strict=True):
        assert one.total == other.total


def test_a_gradient_function_costs_what_forward_and_backward_cost_together():
    """The value itself, which a gradient does not return, is dead code in it: two operations for
    each last unit.
    """
    report = incrax.cost(network, NET, array(N, WIDTHS[0]))
    gradient = incrax.cost(
        jax.value_and_grad(network), NET, array(N, WIDTHS[0]), passes=["forward"]
    )
    together = report.forward.total + report.backward.total
    assert gradient.forward.total == pytest.approx(together)
    alone = incrax.cost(jax.grad(network), NET, array(N, WIDTHS[0]), passes=["forward"])
    assert together.flops - alone.forward.total.flops == 2 * N * WIDTHS[-1] - 1


def test_of_a_matrix_product_the_rows_are_those_of_its_equations():
    report = incrax.cost(network, NET, array(N, WIDTHS[0]))
    forward = [row for row in report.forward.equations if row.primitive == "dot_general"]
    assert [row.total.flops for row in forward] == PRODUCTS
    assert all(row.source.startswith(__file__) and "(network)" in row.source for row in forward)
    assert sum(row.total.flops for row in report.forward.equations) == report.forward.total.flops


# --- derivative rules, rematerialization ----------------------------------------------------------


def test_the_rule_of_a_custom_derivative_counts_and_not_that_of_its_function():
    """One line may cost anything: the rule says x + x + x, the derivative of x x is g x + g x."""
    ruled, plain = incrax.cost(squares, array(N)), incrax.cost(lambda x: jnp.sum(x * x), array(N))
    assert ruled.forward.total.flops == plain.forward.total.flops
    assert evaluations(ruled.backward) == {"add": 2, "mul": 1}
    assert evaluations(plain.backward)["add_any"] == 1


def evaluations(part):
    """Equations by primitive; those that a rule brings in place of the function's cancel these."""
    found = collections.Counter()
    for row in part.equations:
        found[row.primitive] += row.times
    return {
        name: number
        for name, number in found.items()
        if number and not name.startswith("broadcast")
    }


def test_a_rule_that_computes_more_in_its_forward_pass_costs_that_in_the_backward_pass():
    @jax.custom_vjp
    def f(x):
        return jnp.sum(x)

    f.defvjp(lambda x: (jnp.sum(x), jnp.exp(x)), lambda e, g: (g * e,))
    report = incrax.cost(f, array(N))
    assert report.forward.total.transcendentals == 0
    assert report.backward.total.transcendentals == N


def test_what_is_rematerialized_counts_again_in_the_backward_pass():
    body = lambda x: jnp.sum(jnp.sin(jnp.exp(x)))
    plain, again = incrax.cost(body, array(N)), incrax.cost(jax.checkpoint(body), array(N))
    assert plain.forward.total == again.forward.total
    assert plain.backward.total.transcendentals == 2 * N  # cos
    assert again.backward.total.transcendentals == (2 + 1) * N  # cos, and exp once more


def test_rematerialized_turns_of_a_loop_count_again():
    turn = lambda c, _: (jnp.sin(c), None)
    scan = lambda turn: lambda x: jnp.sum(lax.scan(turn, x, None, length=10)[0])
    plain = incrax.cost(scan(turn), array(N)).backward.total
    again = incrax.cost(scan(jax.checkpoint(lambda c, _: (jnp.sin(jnp.sin(c)), None))), array(N))
    assert plain.transcendentals == 10 * 2 * N
    assert again.backward.total.transcendentals == 10 * (
        2 * 2 * N + 2 * N
    )  # two cosines, and the inner sine again


# --- what is differentiated -----------------------------------------------------------------------


def test_only_what_is_asked_for_is_differentiated():
    f = lambda a, b: a @ b
    args = array(N, D), array(D, R)
    assert flops(f, *args)[1] == flops(f, *args, wrt="b")[1] == 2 * N * D * R
    assert flops(f, *args, wrt=("a", "b"))[1] == 4 * N * D * R


def test_what_is_cut_has_no_backward_pass():
    f = lambda p: p["a"] @ p["b"]
    a, b = np.ones((N, D)), np.ones((D, R))
    assert flops(f, {"a": a, "b": b})[1] == 4 * N * D * R
    assert flops(f, {"a": incrax.cut(a), "b": b})[1] == 2 * N * D * R


def test_a_result_beside_the_loss_has_no_derivative():
    def f(x):
        y = jnp.exp(x)
        return jnp.sum(y), {"mean": jnp.sin(y)}

    with_both = incrax.cost(f, array(N))
    loss_only = incrax.cost(f, array(N), has_aux=True)
    assert loss_only.backward.total.transcendentals == 0  # exp is its own derivative
    assert with_both.backward.total.transcendentals == 2 * N  # cos


def test_functions_without_derivatives_say_so():
    report = incrax.cost(lambda n: n * 2, array(5, dtype=jnp.int32))
    assert (report.backward, report.ratio) == (None, None)
    assert report.forward.total.int_ops == 5
    assert any(note.startswith("No backward pass: SelectionError") for note in report.notes)
    loop = incrax.cost(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2, x), 1.0)
    assert any(note.startswith("No backward pass: ValueError") for note in loop.notes)


# --- dead code, equal code ------------------------------------------------------------------------


def test_dead_code_does_not_count():
    def f(x):
        jnp.linalg.cholesky(x @ x.T)
        return jnp.sum(x)

    assert flops(f, array(D, D))[0] == D * D - 1


def test_dead_code_inside_loops_and_branches_does_not_count():
    def f(x):
        turn = lambda c, _: ((c[0] * 2.0, jnp.exp(c[1])), jnp.sin(c[0]))
        (kept, _), _ = lax.scan(turn, (x, x), None, length=10)
        return lax.cond(x[0] > 0, lambda: (kept + 1.0, jnp.sin(x)), lambda: (kept, x))[0]

    total = incrax.cost(f, array(N)).forward.total
    assert (total.flops, total.transcendentals) == (10 * N + N, 0)


def test_equal_equations_count_once():
    assert (
        flops(lambda a: jnp.sum(a @ a) + jnp.max(a @ a), array(D, D))[0]
        == 2 * D**3 + 2 * (D * D - 1) + 1
    )


def test_small_constants_are_folded():
    assert flops(lambda x: x * (jnp.arange(3.0) * 2 + 1).astype(int).sum(), array(N))[0] <= N + 10
    assert incrax.cost(lambda x: x + (jnp.arange(3) * 2 + 1), array(3)).forward.total.int_ops == 0


def test_a_jaxpr_that_is_called_twice_counts_twice():
    inner = jax.jit(lambda x: x @ x)
    assert flops(lambda a, b: inner(a) + inner(b), array(D, D), array(D, D))[0] == 4 * D**3 + D * D


# --- where work hides -----------------------------------------------------------------------------


def test_a_function_of_what_is_indexed_counts_for_each_element():
    """JAX hides it in the parameters of one equation."""
    total = incrax.cost(
        lambda x, i: x.at[i].apply(lambda y: jnp.exp(y) + 1.0), array(N), np.arange(5)
    ).forward.total
    assert (total.flops, total.transcendentals) == (5, 5)
    strange = lambda y: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(y.shape, y.dtype), y)
    report = incrax.cost(lambda x, i: x.at[i].apply(strange), array(N), np.arange(5))
    assert [row.primitive for _, row in report.not_counted] == ["scatter"]
    assert incrax.cost(lambda x, i: x.at[i].set(1.0), array(N), np.arange(5)).not_counted == ()


def test_references_that_are_written_to_cost_what_is_computed():
    def f(x):
        total = jax.new_ref(jnp.zeros_like(x))
        total[...] += 2.0 * x
        return jax.freeze(total)

    report = incrax.cost(f, array(N), passes="forward")
    assert report.not_counted == ()
    assert report.forward.total.flops == 2 * N


def test_searches_of_optimistix_are_counted_but_for_their_linear_solver():
    """Its primitives hold programs whose constants are elsewhere."""
    import optimistix

    def f(y):
        return optimistix.root_find(
            lambda y, _: jnp.exp(y) - 2.0, optimistix.Newton(1e-9, 1e-9), y
        ).value

    report = incrax.cost(f, jnp.asarray(1.0), trips="measured", passes="forward")
    inside = {row.primitive for _, row in report.not_counted if "branch" not in row.inside}
    assert inside == {"linear_solve"}
    (loop,) = report.forward.loops
    assert (
        report.forward.total.transcendentals
        == loop.turns
        == loop.turn.transcendentals * loop.turns
        > 1
    )


@pytest.mark.parametrize(("manual", "times"), [({"a"}, 2), ({"a", "b"}, 8)])
def test_work_that_is_split_by_hand_counts_on_each_device(manual, times):
    """Of axes that the body is not written for, one evaluation is that of all devices."""
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 4), ("a", "b"), axis_types=auto)
    rows = jax.sharding.PartitionSpec("a")
    f = jax.jit(jax.shard_map(jnp.exp, mesh=mesh, in_specs=rows, out_specs=rows, axis_names=manual))
    assert (
        incrax.cost(f, array(N, D), passes="forward").forward.total.transcendentals
        == times * N * D / 2
    )


# --- products without sums ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (jnp.outer, 5 * 7),
        (lambda a, b: jnp.einsum("i,j->ij", a, b), 5 * 7),
        (lambda a, b: jnp.tensordot(a, b, 0), 5 * 7),
        (lambda a, b: a[:, None] @ b[None, :], 5 * 7),
        (lambda a, b: jax.lax.dot_general(a, b, (((), ()), ((), ()))), 5 * 7),
        (
            lambda a, b: jnp.einsum(
                "ik,kj->ij", a[:, None] * jnp.ones((1, 2)), jnp.ones((2, 1)) * b
            ),
            2 * 35 * 2 + 24,
        ),
    ],
)
def test_an_outer_product_has_one_flop_per_element(fun, expected):
    assert incrax.cost(fun, array(5), array(7), passes="forward").forward.total.flops == expected


# --- arguments ------------------------------------------------------------------------------------


def test_types_and_values_give_the_same_report():
    values = (
        jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), NET),
        np.zeros((N, WIDTHS[0]), np.float32),
    )
    assert (
        incrax.cost(network, *values).per_equation
        == incrax.cost(network, NET, array(N, WIDTHS[0])).per_equation
    )


def test_a_type_of_any_size_needs_no_memory():
    huge = array(2**20, 2**20)
    assert flops(lambda a, b: a @ b, huge, huge, wrt=(0, 1)) == (2.0**61, 2.0**62)


def test_static_arguments_stay_what_they_are():
    f = lambda x, mode: jnp.exp(x) if mode == "exp" else jnp.sin(x)
    assert incrax.cost(f, array(N), "exp").forward.total.transcendentals == N
    assert incrax.cost(f, array(N), mode="sin").forward.total.transcendentals == 2 * N


def test_rows_are_arrays_here():
    total = incrax.cost(lambda x: jnp.sum(jnp.exp(x)), incrax.Rows(np.ones(100))).forward.total
    assert total.transcendentals == 100


def test_keys_are_arguments():
    total = incrax.cost(
        lambda key: jax.random.bits(key, (32,), "uint32"), jax.random.key(0)
    ).forward.total
    assert total.int_ops >= 32 * 60
