"""Every bijection of FlowJAX that has sense by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bijectors.cases import KEY, Case

X = np.random.default_rng(1).normal(size=3) * 0.5
MATRIX = np.random.default_rng(2).normal(size=(2, 3)) * 0.5
CONTEXT = np.array([0.3, -0.2])


def flowjax_cases() -> dict[str, Case]:
    return {**_elementwise(), **_of_vectors(), **_of_bijections(), **_with_context(), **_flows()}


def _affine() -> Any:
    import flowjax.bijections as fb

    return fb.Affine(jnp.array([0.5, -1.0, 2.0]), jnp.array([2.0, 0.5, 1.5]))


def _chain() -> Any:
    import flowjax.bijections as fb

    return fb.Chain([_affine(), fb.Permute(jnp.array([2, 0, 1])), fb.Tanh((3,)), _affine()])


def _spline(knots: int = 3) -> Any:
    import flowjax.bijections as fb

    return fb.RationalQuadraticSpline(knots=knots, interval=3)


def _bent(key: Any) -> Any:
    """A spline that is not the identity, as one is when it is made."""
    leaves, treedef = jax.tree.flatten(_spline())
    keys = jax.random.split(key, len(leaves))
    pairs = zip(leaves, keys, strict=True)
    moved = [x + jax.random.normal(k, x.shape) if isinstance(x, jax.Array) else x for x, k in pairs]
    return jax.tree.unflatten(treedef, moved)


def bisected(bijection: Any, y: Any, condition: Any = None) -> Any:
    from flowjax.root_finding import bisection_search

    return bisection_search(
        lambda x: bijection.transform(x) - y, lower=-10.0, upper=10.0, atol=1e-10
    )[0]


def _elementwise() -> dict[str, Case]:
    import flowjax.bijections as fb

    return {
        "affine": Case(_affine, X, is_eager=True),
        "exp": Case(lambda: fb.Exp((3,)), X),
        "identity": Case(lambda: fb.Identity((3,)), X),
        "leaky tanh": Case(lambda: fb.LeakyTanh(0.4, (3,)), X),
        "loc": Case(lambda: fb.Loc(jnp.arange(3.0)), X),
        "power": Case(lambda: fb.Power(1.5, (3,)), np.abs(X)),
        "scale": Case(lambda: fb.Scale(jnp.array([1.0, 2.0, 0.5])), X),
        "sigmoid": Case(lambda: fb.Sigmoid((3,)), X),
        "softplus": Case(lambda: fb.SoftPlus((3,)), X),
        "tanh": Case(lambda: fb.Tanh((3,)), X, is_eager=True),
    }


def _of_vectors() -> dict[str, Case]:
    import flowjax.bijections as fb

    lower = np.array([[1.0, 0, 0], [0.5, 2, 0], [-1, 0.3, 0.5]])
    return {
        "discrete cosine": Case(lambda: fb.DiscreteCosine((3,)), X),
        "flip": Case(lambda: fb.Flip((3,)), X),
        "householder": Case(lambda: fb.Householder(jnp.array([1.0, -0.5, 2.0])), X),
        "permute": Case(lambda: fb.Permute(jnp.array([2, 0, 1])), X),
        "planar": Case(lambda: fb.Planar(KEY, dim=3, negative_slope=0.1), X),
        "planar of tanh": Case(lambda: fb.Planar(KEY, dim=3), X, has_inverse=False),
        "triangular affine": Case(
            lambda: fb.TriangularAffine(jnp.arange(3.0), jnp.array(lower)), X
        ),
        "block autoregressive": Case(
            lambda: fb.BlockAutoregressiveNetwork(KEY, dim=3, depth=1, block_dim=2),
            X,
            has_inverse=False,
        ),
    }


def _of_bijections() -> dict[str, Case]:
    import equinox as eqx
    import flowjax.bijections as fb

    def layers() -> Any:
        return eqx.filter_vmap(lambda s: fb.Affine(jnp.zeros(3), s))(
            jnp.array([[1.0, 2.0, 3.0], [0.5, 1.0, 2.0]])
        )

    return {
        "chain": Case(_chain, X, is_eager=True),
        "concatenate": Case(lambda: fb.Concatenate([fb.Exp((2,)), fb.Tanh((1,))]), X),
        "indexed": Case(lambda: fb.Indexed(fb.Exp((2,)), jnp.array([0, 2]), (3,)), X),
        "inverted chain": Case(lambda: fb.Invert(_chain()), np.array([1.1, -0.9, 2.5])),
        "numerical inverse": Case(
            lambda: fb.NumericalInverse(fb.SoftPlus(), bisected),
            X[0],
            num_event=0,
            has_derivative=False,
        ),
        "reshape": Case(lambda: fb.Reshape(fb.Tanh((6,)), (2, 3)), MATRIX, num_event=2),
        "sandwich": Case(lambda: fb.Sandwich(fb.Tanh((3,)), _affine()), X),
        "scan": Case(lambda: fb.Scan(layers()), X),
        "spline": Case(lambda: _bent(KEY), X[0], num_event=0),
        "stack": Case(lambda: fb.Stack([fb.Tanh((3,)), _affine()]), MATRIX, num_event=2),
        "vmap": Case(
            lambda: fb.Vmap(
                eqx.filter_vmap(_bent)(jax.random.split(KEY, 3)), in_axes=eqx.if_array(0)
            ),
            X,
        ),
    }


def _with_context() -> dict[str, Case]:
    import equinox as eqx
    import flowjax.bijections as fb

    linear = lambda size: eqx.nn.Linear(2, size, key=KEY)
    return {
        "additive condition": Case(lambda: fb.AdditiveCondition(linear(3), (3,), (2,)), X, CONTEXT),
        "embedded condition": Case(
            lambda: fb.EmbedCondition(fb.AdditiveCondition(linear(3), (3,), (2,)), linear(2), (2,)),
            X,
            CONTEXT,
        ),
    }


def _flows() -> dict[str, Case]:
    import flowjax.bijections as fb
    import flowjax.distributions as fd
    import flowjax.flows as ff

    base = fd.Normal(jnp.zeros(3))
    sizes = {"nn_width": 4, "nn_depth": 1}
    flow = lambda make, **options: (
        make(KEY, base_dist=base, flow_layers=2, **sizes, **options).bijection
    )
    return {
        "masked autoregressive": Case(
            lambda: fb.MaskedAutoregressive(KEY, transformer=fb.Affine(), dim=3, **sizes), X
        ),
        "masked autoregressive flow": Case(lambda: flow(ff.masked_autoregressive_flow), X),
        "spline coupling": Case(
            lambda: fb.Coupling(KEY, transformer=_spline(), untransformed_dim=1, dim=3, **sizes), X
        ),
        "conditional coupling flow": Case(lambda: flow(ff.coupling_flow, cond_dim=2), X, CONTEXT),
    }
