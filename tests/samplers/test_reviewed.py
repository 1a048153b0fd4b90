"""What a review of samplers found: each was wrong once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import incrax
from incrax import samplers
from incrax.samplers import compiled_sweeps

START = {"a": 1.0, "z": 100.0}


def normal(p):
    return -0.5 * ((p["a"] - 1) ** 2 + (p["z"] - 100) ** 2)


def test_a_block_has_its_elements_in_the_order_in_which_it_names_them():
    walk = samplers.Walk([1e-6, 1.0])
    chain = samplers.gibbs(
        normal, START, updates={("p['z']", "p['a']"): walk}, key=1, num_sweeps=200
    )
    spread = dict(zip(chain.names, chain.samples.std(axis=0), strict=True))
    assert spread["p['z']"] < 1e-3 < 0.1 < spread["p['a']"]


def test_positions_have_the_structure_of_what_is_sampled():
    density = samplers.logdensity(normal, START, wrt={"a": True, "z": False})
    np.testing.assert_allclose(density({"a": 2.0, "z": None}), -0.5)
    with pytest.raises(samplers.PositionError) as caught:
        density({"a": 2.0, "z": 5.0})
    assert str(caught.value) == (
        "A log-density of positions of the structure PyTreeDef({'a': *, 'z': None}) got "
        "PyTreeDef({'a': *, 'z': *}). "
        "This is "
        "usually a value for what is not sampled, which stays as it was when the log-density was "
        "made. Nothing was "
        "evaluated. Pass what `wrt` selects, None elsewhere."
    )
    with pytest.raises(samplers.PositionError):
        samplers.logdensity(normal, START)({"x": 0.0, "y": 0.0})


def test_marked_parts_are_not_sampled():
    marked = {"a": 1.0, "b": incrax.cut(jnp.ones(3))}
    fun = lambda p: -(p["a"] ** 2) * jnp.sum(jax.lax.exp(p["b"]))
    density = samplers.logdensity(fun, marked)
    np.testing.assert_allclose(density({"a": 2.0, "b": None}), -12 * np.e)
    chain = samplers.gibbs(fun, marked, updates={"p['a']": samplers.Walk(0.1)}, key=1, num_sweeps=5)
    assert chain.names == ("p['a']",)


BAD = {
    "no step size": (samplers.Hamiltonian(np.nan), "`Hamiltonian` got"),
}


@pytest.mark.parametrize(("update", "text"), BAD.values(), ids=BAD)
def test_moves_that_never_move_are_refused(update, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        samplers.gibbs(normal, START, updates={"p": update}, key=1, num_sweeps=3)
    assert text in str(caught.value)


def test_densities_are_numbers():
    walk = {"p": samplers.Walk(1.0)}
    with pytest.raises(TypeError, match="must return one real number"):
        samplers.gibbs(lambda p: (normal(p),), START, updates=walk, key=1, num_sweeps=3)
    with pytest.raises(incrax.errors.UnknownInputError):
        samplers.gibbs(normal, START, updates={0: samplers.Walk(1.0)}, key=1, num_sweeps=3)


def test_complex_parameters_are_refused():
    density = lambda p: -(jnp.abs(p) ** 2)
    with pytest.raises(incrax.errors.SelectionError, match="its imaginary part would stay"):
        samplers.gibbs(density, 1j, key=0, num_sweeps=5)


def test_an_input_without_elements_stays_as_it_is():
    density = lambda p: -(p["a"] ** 2) - jnp.sum(p["b"])
    chain = samplers.gibbs(density, {"a": 0.0, "b": np.zeros(0)}, key=0, num_sweeps=5)
    assert chain.tree()["b"].shape == (5, 0)


@pytest.mark.parametrize("walk", [{"p": samplers.Walk(0.1)}, None], ids=["host", "compiled"])
def test_numbers_reach_the_density_as_arrays(walk):
    density = lambda p, x: -jnp.sum(jnp.append(p["b"], p["a"][None]) ** 2) / x.astype(float)
    start = {"a": 1.0, "b": np.zeros(2)}
    assert samplers.gibbs(density, start, 3, updates=walk, key=0, num_sweeps=2).samples.shape == (
        2,
        3,
    )


def test_a_file_that_is_no_checkpoint_is_refused_and_kept(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    np.savez(tmp_path / "mine.npz", x=np.ones(3))
    np.save(tmp_path / "mine.npy", np.ones(3))
    for file in (text, tmp_path / "mine.npz", tmp_path / "mine.npy", tmp_path):
        for num_warmup in (None, 3):
            with pytest.raises(samplers.StartError, match="is no checkpoint of this chain"):
                samplers.gibbs(
                    normal, START, key=0, num_sweeps=5, num_warmup=num_warmup, checkpoint=file
                )
    assert text.read_text() == "mine"


def test_a_checkpoint_that_cannot_be_written_is_an_error_before_the_first_sweep(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(compiled_sweeps, "_sweeps", None)
    with pytest.raises(FileNotFoundError):
        samplers.gibbs(normal, START, key=0, num_sweeps=5, checkpoint=tmp_path / "no" / "file.npz")


@pytest.mark.parametrize("key", [-1, None, 1.5, "a"])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(TypeError, match=r"it must be a key of `jax\.random`"):
        samplers.gibbs(normal, START, key=key, num_sweeps=5)


def test_updates_are_a_mapping():
    with pytest.raises(TypeError, match="must be a mapping of blocks"):
        samplers.gibbs(normal, START, updates=[samplers.Walk()], key=0, num_sweeps=5)
