"""The exact text of every error of samplers."""

from __future__ import annotations

import re
import sys

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers import check_text

import incrax
from incrax import samplers

START = {"a": 1.0, "b": np.array([0.5, -0.5])}
WALK = samplers.Walk(0.1)


def f(p):
    return -0.5 * p["a"] ** 2 - 0.5 * jnp.sum(p["b"] ** 2)


def gibbs(updates, start=None, function=f):
    return samplers.gibbs(
        function, START if start is None else start, updates=updates, key=1, num_sweeps=2
    )


def test_classes():
    for error in (samplers.BlockError, samplers.ProposalError, samplers.StartError):
        assert issubclass(error, incrax.IncraxError)
        assert issubclass(error, ValueError)


def test_a_function_that_cannot_be_called_so():
    def model(x):
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x)

    with pytest.raises(TypeError) as caught:
        samplers.gibbs(model, START, np.ones(3), key=1, num_sweeps=2)
    text = (
        "`gibbs` calls `model` with all arguments that follow it, of which the first is sampled "
        "unless `wrt` says otherwise. A model of NumPyro takes its data alone: `found = "
        "samplers.from_numpyro(model, *data)` has a log-density and parameters. Nothing was sampled."
    )
    assert text in caught.value.__notes__


def test_a_kernel_that_wants_more():
    with pytest.raises(TypeError) as caught:
        gibbs({"a": WALK, "b": samplers.Kernel(blackjax.nuts)})
    text = (
        "`Kernel(make)` calls `make(log_density, step_size)`. Give a kernel of BlackJAX what else it "
        "needs: `lambda log_density, step_size: blackjax.nuts(log_density, step_size, jnp.ones(n))`, "
        "with n the elements of the block or row. Nothing was sampled."
    )
    assert text in caught.value.__notes__


def test_parts_of_a_chain_by_names_that_are_none():
    chain = gibbs({("a", "b"): WALK})
    text = "`b[2]` names no input of this function; its inputs are: `p['a']`, `p['b'][0]`, `p['b'][1]`. "
    with pytest.raises(incrax.errors.UnknownInputError, match=re.escape(text)):
        chain["b[2]"]
    with pytest.raises(incrax.errors.UnknownInputError, match=re.escape("`0` names no input")):
        chain[0]
    f = lambda p: -(p["u"]["a"] ** 2) - p["v"]["a"] ** 2
    chain = gibbs(None, {"u": {"a": 1.0}, "v": {"a": 1.0}}, f)
    text = "`a` may be `p['u']['a']`, `p['v']['a']`. Nothing was evaluated or stored."
    with pytest.raises(incrax.errors.AmbiguousInputError, match=re.escape(text)):
        chain["a"]


def test_parameters_in_two_blocks():
    text = (
        "`p['b'][0]` belong to more than one block. Nothing was sampled. Name each parameter, or "
        "each element of a "
        "small array, in one block."
    )
    check_text(samplers.BlockError, text, gibbs, {("p['a']", "p['b']"): WALK, "p['b'][0]": WALK})


def test_parameters_in_no_block():
    text = (
        "`p['b'][0]`, `p['b'][1]` belong to no block, so that they would never move. Nothing was "
        "sampled. Name them in "
        "a block, or leave them out of `wrt`: what is not selected stays fixed."
    )
    check_text(samplers.BlockError, text, gibbs, {"p['a']": WALK})


def test_a_block_of_nothing():
    with pytest.raises(
        incrax.errors.UnknownInputError,
        match=r"^`p\['c'\]` names no input of this function; its inputs are: ",
    ):
        gibbs({"p['c']": WALK})


def test_what_is_no_update():
    text = (
        "`gibbs(updates=...)` got float for `p`. Nothing was sampled. Pass a `Walk`, a "
        "`Hamiltonian`, a `Kernel` or a `Categorical` for each block."
    )
    check_text(TypeError, text, gibbs, {"p": 0.1})


@pytest.mark.parametrize(
    ("update", "width"), [("Walk", 0.0), ("Walk", -1.0), ("Walk", np.nan), ("Hamiltonian", [1, 1])]
)
def test_widths_that_do_not_fit(update, width):
    made = samplers.Walk(width) if update == "Walk" else samplers.Hamiltonian(0.1, width=width)
    text = (
        f"`{update}` got {width!r} for the block of `p['a']`, `p['b'][0]`, `p['b'][1]`. Nothing "
        "was sampled. Pass one "
        "positive number, or one for each of its 3 elements."
    )
    check_text(samplers.ProposalError, text, gibbs, {"p": made})


@pytest.mark.parametrize(("value", "shown"), [(-1.0, "-inf"), (0.0, "-inf")])
def test_starts_of_probability_zero(value, shown):
    text = (
        f"The log-density at the start is {shown}. This is usually a start outside of the support, "
        "or data that hold "
        "NaN. Nothing was sampled. Start where it is finite, for example at a best fit."
    )
    check_text(
        samplers.StartError, text, gibbs, {"p": WALK}, start=value, function=lambda p: jnp.log(p)
    )


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [(lambda p: p["b"], "float64[2]"), (lambda p: (1.0, p["a"]), "float64[], float64[]"), (lambda p: (), "nothing"),
     (lambda p: p["a"] * 1j, "complex128[]")],
)  # fmt: skip
def test_log_densities_that_are_no_number(wrong, seen):
    text = (
        f"A log-density must return one real number; this one returns {seen}. Nothing was sampled. "
        "Sum over the events."
    )
    for make in (samplers.logdensity, samplers.numpyro_potential):
        check_text(TypeError, text, make, wrong, START)
    check_text(TypeError, text, gibbs, {"p": WALK}, function=wrong)


def test_what_is_no_function():
    check_text(
        TypeError,
        "`logdensity(log_density)` got 3 of type int; it must be a function.",
        samplers.logdensity,
        3,
        1.0,
    )
    with pytest.raises(incrax.errors.SelectionError):
        samplers.logdensity(lambda n: 1.0 * n, jax.numpy.arange(3))


# --- discrete blocks, several chains ----------------------------------------------------------------

LABELS = {"mu": 0.0, "z": np.zeros(3, int)}


def labelled(p):
    return -jnp.sum((p["z"] - p["mu"]) ** 2)


def discrete(updates, **kwargs):
    start = kwargs.pop("start", LABELS)
    return samplers.gibbs(labelled, start, updates=updates, key=1, num_sweeps=2, **kwargs)


@pytest.mark.parametrize("values", [1, [2.0], 0.5])
def test_values_that_leave_no_choice(values):
    text = (
        f"`Categorical` got {values!r}; a row must have two values or more to draw from. Nothing "
        "was sampled. Pass how many labels there are, or all values, such as [-1, 1]."
    )
    check_text(samplers.ProposalError, text, samplers.Categorical, values)


@pytest.mark.parametrize("values", [[0.5, 1.5], [[0, 1], [1, 0]]])
def test_values_that_are_no_rows(values):
    given = np.asarray(values)
    text = (
        f"The `Categorical` of `p['z']` has values of dtype {given.dtype} and shape {given.shape}, "
        "where a row has dtype int64 and shape (). Nothing was sampled. Pass values of the type "
        "and shape of one row."
    )
    updates = {"p['z']": samplers.Categorical(values), "p['mu']": WALK}
    check_text(samplers.ProposalError, text, discrete, updates)


@pytest.mark.parametrize(
    ("name", "shown"), [("p", "`p['mu']`, `p['z']`"), ("p['z'][1]", "`p['z']`")]
)
def test_discrete_blocks_of_several_inputs_or_a_part(name, shown):
    text = (
        f"`{name}` stands for elements of {shown}; a `Categorical` draws the rows of one whole "
        "input, each by itself. Nothing was sampled. Make each input a block of its own."
    )
    rest = {} if name == "p" else {"p['mu']": WALK}
    parts = {"p['z'][0]": WALK, "p['z'][2]": WALK} if name == "p['z'][1]" else {}
    with pytest.raises((samplers.BlockError, incrax.errors.SelectionError)) as caught:
        discrete({name: samplers.Categorical(2), **rest, **parts})
    if name == "p":
        assert str(caught.value) == text


def test_integers_move_by_categorical_alone():
    with pytest.raises(
        incrax.errors.SelectionError, match=r"integers have no derivative.*samplers\.Categorical"
    ):
        discrete({"p['z']": WALK, "p['mu']": WALK})
    with pytest.raises(
        incrax.errors.SelectionError, match=r"integers have no derivative.*samplers\.Categorical"
    ):
        discrete(None)


def test_booleans_alone_move_by_categorical():
    with pytest.raises(
        incrax.errors.SelectionError, match=r"nothing to differentiate.*samplers\.Categorical"
    ):
        gibbs(None, {"on": np.zeros(3, bool)}, lambda p: jnp.sum(p["on"] * 0.5))


def test_starts_of_other_shapes():
    text = (
        "`gibbs(starts=...)` got `p['z']` of shape (3,); expected (2, 3), the chains along the "
        "first axis. Nothing was sampled. Pass a start for each chain, in the shape of what is "
        "sampled."
    )
    updates = {"p['z']": samplers.Categorical(2), "p['mu']": WALK}
    starts = {"mu": np.zeros(2), "z": np.zeros(3, int)}
    check_text(samplers.PositionError, text, discrete, updates, chains=2, starts=starts)
    with pytest.raises(samplers.PositionError):
        discrete(updates, chains=2, starts={"mu": np.zeros(2)})


def test_checkpoints_on_the_host(tmp_path):
    text = (
        "Chains on the host have no checkpoints, and this one cannot be compiled: blocks other "
        "than walks of each row of an input move one call after another. Nothing was sampled. "
        "Leave `checkpoint` out."
    )
    file = tmp_path / "chain.npz"
    check_text(ValueError, text, discrete, {"p['mu']": WALK}, wrt="p['mu']", checkpoint=file)


def test_devices():
    text = (
        "Chains on the host have no devices of their own, and this one cannot be compiled: blocks "
        "other than walks of each row of an input move one call after another. Nothing was "
        "sampled. Leave `devices` out."
    )
    on_host = {"updates": {"p['mu']": WALK}, "wrt": "p['mu']"}
    check_text(ValueError, text, discrete, devices=jax.devices(), **on_host)
    text = "`devices` got () of type tuple; it must be one device of JAX, or several."
    check_text(TypeError, text, discrete, devices=[], **on_host)


def test_arviz_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    chain = discrete({"p['mu']": WALK}, wrt="p['mu']")
    with pytest.raises(incrax.errors.MissingExtraError, match=r"incrax\[samplers\]"):
        chain.to_arviz()


@pytest.mark.parametrize(
    "call",
    [
        lambda model: samplers.gibbs(model, np.ones(3), key=0, num_sweeps=2),
        lambda model: samplers.logdensity(model, np.ones(3)),
        lambda model: incrax.incremental(model)(np.ones(3)),
    ],
)
def test_a_model_of_numpyro_in_place_of_a_function(call):
    def model(x):
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.sample("x", dist.Normal(mu), obs=x)

    with pytest.raises(AssertionError) as caught:
        call(model)
    assert caught.value.__notes__[-1] == (
        "`model` is a model of NumPyro, or calls one, and has values only inside an inference. "
        "`found = samplers.from_numpyro(model, *data)` has a log-density and parameters; "
        "`samplers.gibbs(found.log_density, *found.args, updates=found.updates, ...)` samples them."
    )
