"""Marked leaves: constants to derivatives, arrays to everything else."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

import incrax
from incrax.derivatives.cuts import Cut, Uncut

X = jnp.linspace(0.5, 2.0, 3)
P = {"a": jnp.array(2.0), "w": jnp.arange(1.0, 4.0), "n": 3, "name": "p"}


def loss(p, x):
    return p["a"] * jnp.sum(p["w"] * x) ** 2


def marked():
    return {**P, "w": incrax.cut(P["w"])}


GRADIENT = jax.grad(lambda a: loss({**P, "a": a}, X))(P["a"])


def test_what_is_cut_has_no_derivative():
    found = incrax.grad(loss)(marked(), X)
    same(found, {"a": GRADIENT, "w": None, "n": None, "name": None})


def test_what_is_cut_is_not_computed():
    f, g = incrax.grad(loss), incrax.grad(loss)
    f(P, X)
    g(marked(), X)
    num = lambda f: len(f._traces.latest.engine.facts.program.eqns)
    assert num(g) < num(f)


DERIVATIVES = {
    "value_and_grad": (incrax.value_and_grad, {}, {"a": None}),
    "jacobian": (incrax.jacobian, {}, {"a": None}),
    "hessian": (incrax.hessian, {}, {"a": {"a": None}}),
    "hvp": (
        incrax.hvp,
        {"tangent": {"a": jnp.array(1.0), "w": None, "n": None, "name": None}},
        {"a": None},
    ),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_every_derivative_leaves_it_out(name):
    derivative, extra, _ = DERIVATIVES[name]
    found = derivative(loss)(marked(), X, **extra)
    expected = derivative(loss, wrt="p['a']")(
        P, X, **({"tangent": jnp.array(1.0)} if extra else {})
    )
    leaves = lambda tree: [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    np.testing.assert_allclose(leaves(found), leaves(expected))


def test_a_jvp_has_no_tangent_there():
    tangent = {"a": jnp.array(1.0), "w": None, "n": None, "name": None}
    value, along = incrax.jvp(loss)(marked(), X, tangent=tangent)
    np.testing.assert_allclose((value, along), (loss(P, X), GRADIENT))


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, incrax.incremental], ids=["plain", "jit", "incremental"]
)
def test_jax_gives_zeros_there(wrap):
    numbers = {"a": P["a"], "w": incrax.cut(P["w"])}
    found = wrap(jax.grad(loss))(numbers, X)
    same(found["a"], GRADIENT)
    same(found["w"].value, jnp.zeros(3))
    stepped = jax.tree.map(lambda p, g: p - 0.1 * g, numbers, found)
    assert isinstance(stepped["w"], Cut), "marks outlive a step of an optimiser"


def test_a_mark_outlives_an_outer_jit():
    found = jax.jit(lambda p: jax.grad(loss)(p, X))({"a": P["a"], "w": incrax.cut(P["w"])})
    same(found["w"].value, jnp.zeros(3))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, incrax.incremental, jax.checkpoint])
def test_a_marked_tree_is_an_ordinary_argument(wrap):
    numbers = {"a": P["a"], "w": P["w"]}
    same(wrap(loss)({**numbers, "w": incrax.cut(P["w"])}, X), wrap(loss)(numbers, X))
    same(
        jax.vmap(wrap(loss), ({"a": None, "w": 0}, None))(
            {**numbers, "w": incrax.cut(jnp.eye(3))}, X
        ),
        P["a"] * X**2,
    )


def test_values_and_not_wrappers_reach_the_function():
    seen = []
    incrax.grad(lambda p, x: seen.append(type(p["w"])) or loss(p, x))(marked(), X)
    assert not any(issubclass(kind, Cut | Uncut) for kind in seen)
    found = incrax.grad(
        lambda p, x: jax.lax.mul(p["a"], jax.lax.reduce_sum(jax.lax.mul(p["w"], x), (0,)))
    )(marked(), X)
    same(found["a"], jnp.sum(P["w"] * X))


def test_values_stop_where_they_are_cut_inside_a_function():
    f = lambda w: jnp.sum(w * incrax.cut(w))
    same(jax.grad(f)(X), X)
    same(jax.jit(jax.grad(f))(X), X)
    same(incrax.grad(f)(X), X)
    same(jax.jvp(f, (X,), (jnp.ones(3),)), (jnp.sum(X**2), jnp.sum(X)))


@jax.tree_util.register_dataclass
@dataclass
class Poly:
    c1: object
    c2: object

    def __call__(self, x):
        return self.c1 * x + self.c2 * x**2


def test_one_field_stays_active_inside_what_is_cut():
    """The form of the thread: `q = cut(@set p.c2 = uncut(c)); sum(q.(cut(x)))`."""
    p = Poly(jnp.array(1.0), jnp.array(2.0))
    f = lambda c: jnp.sum(incrax.cut(replace(p, c2=incrax.uncut(c)))(incrax.cut(X)))
    for derivative in (jax.grad(f), incrax.grad(f), jax.jit(jax.grad(f))):
        assert float(derivative(jnp.array(2.0))) == jnp.sum(X**2)
    g = incrax.grad(lambda q: jnp.sum(q(X)))(incrax.cut(replace(p, c2=incrax.uncut(p.c2))))
    assert (g.c1, float(g.c2)) == (None, jnp.sum(X**2))


def test_uncut_takes_marks_off():
    assert incrax.uncut(incrax.cut(X)) is X
    same(incrax.uncut(incrax.cut(P))["w"], P["w"])
    same(
        incrax.grad(loss)(incrax.uncut(incrax.cut({"a": P["a"], "w": P["w"]})), X),
        jax.grad(loss)({"a": P["a"], "w": P["w"]}, X),
    )


def test_an_active_mark_alone_changes_nothing():
    numbers = {"a": P["a"], "w": incrax.uncut(P["w"])}
    found = incrax.grad(loss)(numbers, X)
    same(found, jax.grad(loss)({"a": P["a"], "w": P["w"]}, X))


def test_naming_what_is_cut_is_an_error():
    with pytest.raises(incrax.errors.SelectionError) as caught:
        incrax.grad(loss, wrt="p['w']")(marked(), X)
    assert str(caught.value) == (
        "`grad(wrt=...)` selects `p['w']`, which is marked as constant by `cut`. Nothing was "
        "evaluated or stored. Take "
        "it out of `wrt`, or take the mark off with `uncut`."
    )


def test_nested_derivatives_honour_marks():
    outer = incrax.grad(lambda p, x: incrax.grad(loss)(p, x)["a"] ** 2)
    assert outer(marked(), X)["w"] is None


def test_paths_do_not_show_marks():
    f = incrax.incremental(loss)
    f({"a": P["a"], "w": incrax.cut(P["w"])}, X)
    f({"a": P["a"], "w": incrax.cut(P["w"] + jnp.array([0.0, 1.0, 0.0]))}, X)
    assert list(f.explain().as_dict()["changed"]) == ["p['w'][1]"]


OPERATIONS = {
    "add": lambda w: w + 1.0,
    "radd": lambda w: 1.0 + w,
    "sub": lambda w: w - np.ones(3),
    "rsub": lambda w: np.ones(3) - w,
    "mul": lambda w: w * w,
    "div": lambda w: w / 2.0,
    "rdiv": lambda w: 2.0 / w,
    "pow": lambda w: w**2,
    "rpow": lambda w: 2.0**w,
    "floordiv": lambda w: w // 2.0,
    "mod": lambda w: w % 2.0,
    "matmul": lambda w: w @ w,
    "rmatmul": lambda w: jnp.eye(3) @ w,
    "neg": lambda w: -w,
    "abs": lambda w: abs(w),
    "compare": lambda w: (w > 1.0) & (w <= 2.0) | (w == 3.0),
    "index": lambda w: w[1:],
    "element": lambda w: w[0],
    "at": lambda w: w.at[0].set(5.0),
    "method": lambda w: w.sum(),
    "transposed": lambda w: w.T,
    "iterate": lambda w: sum(w),
    "unpack": lambda w: jnp.stack([*w]),
    "length": lambda w: jnp.ones(len(w)),
    "shape": lambda w: jnp.ones(w.shape, w.dtype),
    "function": lambda w: jnp.sin(w),
    "concatenate": lambda w: jnp.concatenate([w, jnp.ones(1)]),
    "numpy": lambda w: jnp.asarray(np.asarray(w)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mark", [incrax.cut, incrax.uncut])
def test_a_marked_array_behaves_as_its_array(name, mark):
    operation, w = OPERATIONS[name], jnp.array([1.5, 2.5, 3.0])
    same(operation(mark(w)), operation(w))


def test_a_marked_number_converts():
    assert (float(incrax.cut(2.0)), int(incrax.cut(3)), bool(incrax.cut(jnp.array(1.0)))) == (
        2.0,
        3,
        True,
    )
    assert range(5)[incrax.cut(2)] == 2
    assert complex(incrax.cut(1j)) == 1j
    assert (round(incrax.cut(2.26), 1), f"{incrax.cut(2.26):.1f}") == (2.3, "2.3")


def test_marks_are_shown_copied_and_pickled():
    mark = incrax.cut(2.0)
    assert repr(mark) == "cut(2.0)"
    assert repr(incrax.uncut(2.0)) == "uncut(2.0)"
    for other in (copy.copy(mark), copy.deepcopy(mark), pickle.loads(pickle.dumps(mark))):
        assert isinstance(other, Cut)
        assert other.value == 2.0


def test_static_values_bear_no_marks():
    tree = incrax.cut({"f": jnp.sin, "name": "x", "none": None, "w": 1.0})
    assert (tree["f"], tree["name"], tree["none"]) == (jnp.sin, "x", None)
    assert isinstance(tree["w"], Cut)
    assert jax.tree.leaves(incrax.cut(incrax.cut(1.0))) == [1.0], "marks are not nested"
