"""The exact text of the errors of bound models; nothing is changed where one is raised."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax

NOTHING, UNTOUCHED = "Nothing was bound.", "The model is as it was."
SAME = 'only inputs with the role "data" may change theirs.'


def loss(params, x):
    return jnp.sum((x - params["mu"]) ** 2) / params["sigma"]


def model(**options):
    params = {"mu": 1.0, "sigma": 2.0, "w": np.ones(2)}
    return incrax.bind(loss, params=params, x=np.ones(3), **{"roles": {"x": "data"}, **options})


def text_of(kind, call):
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, incrax.IncraxError)
    return str(caught.value)


BINDING = {
    "no function": (
        lambda: incrax.bind(3.0),
        f"`bind(f)` got 3.0 of type float, which cannot be called. {NOTHING} Pass a function of "
        "the inputs.",
    ),
    "by position": (
        lambda: incrax.bind(loss, {"mu": 1.0}, np.ones(3)),
        f"`bind(loss)` got 2 values by position, and inputs go by their names, by which they are set "
        f"later. {NOTHING} Pass `bind(loss, params=..., x=...)`.",
    ),
    "missing": (
        lambda: incrax.bind(loss, params=1.0),
        "`bind(loss)` got no value for `x`, and a bound model has a value for each input. "
        f"{NOTHING} Pass "
        "`bind(loss, x=...)`.",
    ),
    "other": (
        lambda: incrax.bind(loss, parms=1.0, x=2.0),
        "`bind(loss)` got `parms`, and the function takes `params`, `x`. This is usually a typing "
        "error. "
        f"{NOTHING} Did you mean `params`?",
    ),
    "option": (
        lambda: incrax.bind(lambda bounds: bounds, bounds={}),
        "`bind(<lambda>)` cannot bind the parameter `bounds`, because `bind` itself has an option "
        "of this name. "
        f"{NOTHING} Give it another name: `bind(lambda my_bounds, ...: <lambda>(bounds=my_bounds, "
        "...), "
        "my_bounds=...)`.",
    ),
    "roles": (
        lambda: model(roles=["x"]),
        f"`bind(roles=...)` got ['x']. {NOTHING} Pass a mapping of names to roles: "
        '`roles={"x": "data"}`.',
    ),
    "role": (
        lambda: model(roles={"x": "constant"}),
        f"`bind(roles=...)` gives `x` the role 'constant'. {UNTOUCHED} Use one of \"trainable\", "
        '"fixed", "state", '
        '"data".',
    ),
    "integers": (
        lambda: incrax.bind(lambda n: n, n=np.array(3), roles={"n": "trainable"}),
        "`n` of type int64[] cannot be trainable, because it has no derivative. This is usually a "
        "number without a "
        "decimal "
        f'point. {UNTOUCHED} Write 1.0 instead of 1, or give it the role "fixed" or "data".',
    ),
    "no mapping": (
        lambda: model(bounds=[(0, 1)]),
        f"`bind(bounds=...)` got [(0, 1)] for `mu`: it is no mapping of paths to pairs. {NOTHING} "
        "Pass a pair: "
        "`bounds={'mu': (0, None)}`.",
    ),
    "no pair": (
        lambda: model(bounds={"sigma": 0.0}),
        "`bind(bounds=...)` got 0.0 for `params['sigma']`: it is no pair (lower, upper). "
        f"{NOTHING} Pass a pair: `bounds={{\"params['sigma']\": (0, None)}}`.",
    ),
    "empty": (
        lambda: model(bounds={"sigma": (2.0, 1.0)}),
        "`bind(bounds=...)` got (2.0, 1.0) for `params['sigma']`: the lower bound is not below the "
        "upper one. "
        f"{NOTHING} Pass a pair: `bounds={{\"params['sigma']\": (0, None)}}`.",
    ),
    "shape": (
        lambda: model(bounds={"w": (np.zeros(3), None)}),
        "`bind(bounds=...)` got (array([0., 0., 0.]), None) for `params['w']`: it does not fit the "
        "shape [2]. "
        f"{NOTHING} Pass a pair: `bounds={{\"params['w']\": (0, None)}}`.",
    ),
    "bounds of data": (
        lambda: model(bounds={"x": (0, None)}),
        '`bind(bounds=...)` names `x`, whose role is "data"; only what is trainable or fixed has '
        "them. "
        f'{NOTHING} Leave it out, or give it the role "trainable".',
    ),
    "outside": (
        lambda: model(bounds={"w": (2.0, None)}),
        "`params['w'][0]` was to be set to 1, outside of its bounds (2, inf). "
        f"{UNTOUCHED} Set a value inside, or bind the model with wider bounds.",
    ),
}

SETTING = {
    "unknown": (
        lambda m: m.set(sigmo=1.0),
        "`sigmo` names no input of this model, which has `params`, `x`, `params['mu']`, "
        "`params['sigma']`, "
        f"`params['w']`. {UNTOUCHED} Did you mean `sigma`?",
    ),
    "unlike anything": (
        lambda m: m["zzz"],
        "`zzz` names no input of this model, which has `params`, `x`, `params['mu']`, "
        "`params['sigma']`, "
        f"`params['w']`. {UNTOUCHED} Use an input's name, a path as `print(model)` shows it, or "
        "its end.",
    ),
    "traced": (
        lambda m: jax.jit(lambda mu: m.set(mu=mu))(1.0),
        "`params['mu']` was to be set to a traced value, which has no number. This is usually a "
        "call of `set` inside "
        f"`jax.jit` or `jax.grad`. {UNTOUCHED} Set it outside; inside compiled code, pass the "
        "value to the function "
        "itself.",
    ),
    "structure": (
        lambda m: m.set(params={"mu": 1.0}),
        "`params` has the structure PyTreeDef({'mu': *, 'sigma': *, 'w': *}) and was to be set to "
        "one of "
        f"PyTreeDef({{'mu': *}}). {UNTOUCHED} Pass the same structure, or bind a new model; {SAME}",
    ),
    "shape": (
        lambda m: m.set(w=np.ones(3)),
        f"`params['w']` is of type float64[2] and was to be set to float64[3]. {UNTOUCHED} Pass a "
        "value of the same "
        "shape "
        f"and kind; {SAME}",
    ),
    "kind": (
        lambda m: m.set(mu=1.0 + 2.0j),
        f"`params['mu']` is of type float64[] and was to be set to complex128[]. {UNTOUCHED} Pass "
        "a value of the same "
        f"shape and kind; {SAME}",
    ),
    "text": (
        lambda m: m.set(mu="1.0"),
        f"`params['mu']` is of type float64[] and was to be set to str. {UNTOUCHED} Pass a value "
        "of the same shape and "
        f"kind; {SAME}",
    ),
    "no state": (
        lambda m: m.update(),
        f'`update` needs inputs with the role "state", and this model has none. {UNTOUCHED} Give '
        "an input that role: "
        '`bind(..., roles={"moments": "state"})`.',
    ),
    "when": (
        lambda m: m.training(None, updates="later"),
        f'`training(updates=...)` got \'later\'. {UNTOUCHED} Use one of "before", "after", '
        '"never".',
    ),
    "not called": (
        lambda m: m.explain("grad"),
        "`explain('grad')` needs a call to report on, and this function has not been called yet. "
        "Call it once, or give "
        "`explain('grad')` example arguments.",
    ),
}


@pytest.mark.parametrize(("call", "expected"), BINDING.values(), ids=BINDING)
def test_binding(call, expected):
    assert text_of(incrax.IncraxError, call) == expected


@pytest.mark.parametrize(("call", "expected"), SETTING.values(), ids=SETTING)
def test_setting(call, expected):
    m = model()
    assert text_of(incrax.IncraxError, lambda: call(m)) == expected
    assert m["params"] == {"mu": 1.0, "sigma": 2.0, "w": m["w"]}


def test_short_names_that_fit_twice():
    m = incrax.bind(lambda a, b: a["mu"] * b["mu"], a={"mu": 1.0}, b={"mu": 2.0})
    assert text_of(incrax.errors.UnknownInputError, lambda: m.set(mu=3.0)) == (
        f"`mu` may be `a['mu']`, `b['mu']`. {UNTOUCHED} Write the whole path of the one you mean."
    )


def test_nothing_is_trainable():
    m = incrax.bind(lambda n: n, n=np.array(3))
    for call, name in ((m.grad, "grad"), (m.flat, "flat")):
        assert text_of(incrax.errors.BindError, call) == (
            f"`{name}` needs something trainable, and no input of this model is. {UNTOUCHED} Give "
            "a floating input the "
            "role "
            '"trainable": `model.set_role("mu", "trainable")`.'
        )


STATE = {
    "no pair": (lambda s, a: a, "a DynamicJaxprTracer"),
    "a triple": (lambda s, a: (a, {}, 1), "a tuple of 3"),
}


@pytest.mark.parametrize(("fun", "seen"), STATE.values(), ids=STATE)
def test_a_function_with_state_that_returns_none(fun, seen):
    m = incrax.bind(fun, s=1.0, a=2.0, roles={"s": "state"})
    assert text_of(incrax.errors.BindError, m.value) == (
        'A function of inputs with the role "state" returns a pair: its value, and a mapping of '
        "state inputs to their "
        "new "
        f'values. This one returned {seen}. {UNTOUCHED} Return `value, {{"moments": new_moments}}`.'
    )


def test_updates_that_do_not_fit():
    m = incrax.bind(lambda s, a: (a, {"a": a}), s=1.0, a=2.0, roles={"s": "state"})
    assert text_of(incrax.errors.BindError, m.update) == (
        'The function returned an update of `a`, and nothing there has the role "state". '
        f"{UNTOUCHED} Give it that "
        "role: "
        "`bind(..., roles={'a': \"state\"})`."
    )
    m = incrax.bind(lambda s, a: (a, {"s": jnp.ones(2)}), s=1.0, a=2.0, roles={"s": "state"})
    fit = f"{UNTOUCHED} Return an update of the same structure and shapes."
    assert text_of(incrax.errors.BindError, m.update) == (
        f"The function returned an update of `s` of float64[2]; the state is of float64[]. {fit}"
    )
    m = incrax.bind(lambda s, a: (a, {"s": [a, a]}), s=1.0, a=2.0, roles={"s": "state"})
    assert text_of(incrax.errors.BindError, m.update) == (
        "The function returned an update of `s` of the structure PyTreeDef([*, *]); the state is "
        "of PyTreeDef(*). "
        f"{fit}"
    )


def test_an_option_that_bind_has_not():
    assert text_of(
        incrax.errors.BindError, lambda: incrax.bind(loss, params=1.0, x=2.0, trainable=["params"])
    ) == (
        "`bind(loss)` got `trainable`, and the function takes `params`, `x`. This is usually a "
        f"typing error. {NOTHING} Options of `bind` itself are `roles`, `bounds`."
    )


def test_an_input_is_no_attribute():
    m = model()
    with pytest.raises(AttributeError, match=r"no attribute 'params'; write `model\['params'\]`$"):
        m.params  # noqa: B018
    with pytest.raises(AttributeError, match=r"'mu'; write `model.set\(mu=...\)`$"):
        m.mu = 2.0
    assert m["mu"] == 1.0
    assert copy.copy(m)["mu"] == 1.0
