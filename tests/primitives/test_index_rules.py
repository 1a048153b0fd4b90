"""Index rules against brute force: change one element, see what changes; run the whole, run some
rows, and compare.

A rule may claim too much, never too little. Where the table of cases says so, it claims just what
changes.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine.program.masks import Traced, check_sound, is_exact

from incrax import _jax
from incrax._program import evaluator, trace
from incrax.engine.program import dependence
from incrax.primitives import elements
from incrax.primitives.entry import Kind
from incrax.primitives.row_axis import Reduction, row_verdict
from incrax.primitives.table import TABLE, UNKNOWN, entry_of
from primitives.cases import EXACT, SOUND, numbers

ALL = EXACT | SOUND


def traced(name):
    fun, *args = ALL[name]
    return Traced(fun, *args)


@pytest.mark.parametrize("name", EXACT)
def test_an_index_rule_names_just_the_elements_that_count(name):
    found = traced(name)
    reached = found.reached()
    check_sound(found, reached)
    assert is_exact(found, reached)


@pytest.mark.parametrize("name", SOUND)
def test_an_index_rule_leaves_out_no_element_that_counts(name):
    found = traced(name)
    check_sound(found, found.reached())


@pytest.mark.parametrize("name", ALL)
def test_a_primitive_without_an_entry_claims_nothing(name, monkeypatch):
    claimed = traced(name).output_masks()
    for module in (elements, dependence):
        monkeypatch.setattr(module, "entry_of", lambda eqn: UNKNOWN)
    unclaimed = traced(name).output_masks()
    for some, whole in zip(claimed, unclaimed, strict=True):
        assert all(mask & ~all_of_it == 0 for mask, all_of_it in zip(some, whole, strict=True))


def test_every_index_rule_has_a_case():
    cases = [traced(name).program.eqns for name in ALL]
    seen = {eqn.primitive.name for eqns in cases for eqn in eqns}
    ruled = {
        name
        for name, entry in TABLE.items()
        if entry.index is not None and not entry.is_elementwise
    }
    other_names = {
        "expand_dims",
        "scatter_add",
        "scatter_sub",
        "scatter_mul",
        "scatter_min",
        "scatter_max",
    }
    newer = {"stack", "unstack"}
    nothing_is_read = {"iota"}
    marks = {_jax.KEEP, "pvary", "reshard", "mesh_cast", "sharding_constraint"}
    assert ruled - seen <= other_names | newer | marks | nothing_is_read


# --- whole and rows -------------------------------------------------------------------------------


def single(eqn):
    """The function of an equation's operands."""
    invars = tuple(_jax.new_var(atom.aval) for atom in eqn.invars)
    program = trace(lambda: 0.0)
    return replace(
        program, invars=invars, eqns=(eqn.replace(invars=list(invars)),), outvars=tuple(eqn.outvars)
    )


def choices(eqn):
    """Row axes of operands and outputs, all of one length."""
    ins = [[None, *range(len(atom.aval.shape))] for atom in eqn.invars]
    outs = [[None, *range(len(var.aval.shape))] for var in eqn.outvars]
    if len(ins) + len(outs) > 5:
        return
    for axes in np.ndindex(*(len(one) for one in (*ins, *outs))):
        chosen = [one[k] for one, k in zip((*ins, *outs), axes, strict=True)]
        mine, theirs = chosen[: len(ins)], chosen[len(ins) :]
        atoms = [*eqn.invars, *eqn.outvars]
        lengths = {
            atom.aval.shape[d] for atom, d in zip(atoms, chosen, strict=True) if d is not None
        }
        if len(lengths) == 1 and lengths.pop() > 1 and any(d is not None for d in mine):
            yield mine, theirs


def values_of(eqn, rng):
    return [rows_like(atom.aval, rng) for atom in eqn.invars]


def rows_like(aval, rng):
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(rng.integers(9)), aval.shape)
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.asarray(rng.normal(size=aval.shape), aval.dtype)
    return jnp.asarray(rng.integers(0, 2, aval.shape)).astype(aval.dtype)


@pytest.mark.parametrize("name", ALL)
def test_rows_that_are_said_to_be_apart_do_not_see_each_other(name):
    """Whole, with other values in all rows but one: that row of the output is the same."""
    for eqn in traced(name).program.eqns:
        check_rows(eqn)


def check_rows(eqn):
    run = jax.jit(evaluator(single(eqn)))
    rng = np.random.default_rng(0)
    base, other = values_of(eqn, rng), values_of(eqn, rng)
    for ins, outs in choices(eqn):
        if row_verdict(eqn, ins, outs) is not None:
            continue
        row = 1
        mixed = [
            x
            if d is None
            else y.at[(slice(None),) * d + (row,)].set(x[(slice(None),) * d + (row,)])
            for x, y, d in zip(base, other, ins, strict=True)
        ]
        for old, new, d in zip(run((), *base), run((), *mixed), outs, strict=True):
            if d is not None:
                np.testing.assert_array_equal(
                    *(np.take(numbers(x), row, axis=d) for x in (old, new)),
                    err_msg=f"`{eqn.primitive.name}`, row axes of operands {ins}, results {outs}",
                )


COMBINE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize(
    "name", ["reduce_sum", "reduce_prod", "reduce_max", "dot_general", "scatter-add at inputs"]
)
def test_reductions_over_rows_combine_from_parts(name):
    """Rows that are masked by the neutral element add nothing: two halves give the whole."""
    eqn = traced(name).program.eqns[-1]
    run = evaluator(single(eqn))
    values = values_of(eqn, np.random.default_rng(1))
    neutral = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}
    seen = 0
    for ins, outs in choices(eqn):
        verdict = row_verdict(eqn, ins, outs)
        if not isinstance(verdict, Reduction) or any(d is not None for d in outs):
            continue
        seen += 1
        parts = []
        for chosen in (slice(0, 1), slice(1, None)):
            masked = list(values)
            for n in verdict.masked:
                place = (slice(None),) * ins[n] + (chosen,)
                masked[n] = (
                    jnp.full_like(values[n], neutral[verdict.kind]).at[place].set(values[n][place])
                )
            if name.startswith("scatter") and chosen.start:  # what rows are added to counts once
                masked[0] = jnp.full_like(values[0], neutral[verdict.kind])
            parts.append(np.asarray(run((), *masked)[0]))
        whole = np.asarray(run((), *values)[0])
        np.testing.assert_allclose(COMBINE[verdict.kind](*parts), whole, rtol=1e-12)
    assert seen


@pytest.mark.parametrize(
    ("name", "ins", "outs", "text"),
    [
        ("sort", [0], [0], ""),
        ("sort", [1], [1], "sorts the rows"),
        ("cumsum", [1], [1], "accumulates along the rows"),
        ("rev", [1], [1], "reverses the rows"),
        ("slice", [1], [1], "reads some of the rows"),
        ("pad", [0, None], [0], "adds rows"),
        ("pad", [1, None], [1], "adds rows"),
        ("concatenate", [1, None, 1], [1], "joins arrays"),
        ("argmax", [1], [None], "looks for a row"),
        ("dot_general", [0, 0], [-1], "pairs every row"),
        ("dot_general", [0, None], [0], ""),
        ("dot_general", [1, None], [None], "multiplies rows with something else"),
        ("triangular_solve", [None, 2], [2], ""),
        ("triangular_solve", [None, 1], [1], "solves for all rows"),
        ("cholesky", [1], [1], "takes the rows for a matrix"),
        ("fft", [1], [1], "transforms along the rows"),
        ("conv_general_dilated", [0, None], [0], ""),
        ("conv_general_dilated", [2, None], [2], "neighbouring rows"),
        ("scatter at inputs", [None, 0, 0], [None], "writes rows over each other"),
        ("transpose", [0], [2], "another order or place"),
        ("tile", [0], [0], "repeats the rows"),
        ("random_bits", [0], [0], ""),
        ("random_bits", [None], [1], "draws the random numbers of all rows from one key"),
        ("random_gamma", [None, 1], [1], "draws the random numbers of all rows from one key"),
        ("keys of which the first draws for all", [0], [0], "draws the random numbers of all rows"),
    ],
)
def test_what_mixes_rows_is_said_by_the_kind_of_the_axis(name, ins, outs, text):
    eqns = traced(name).program.eqns
    eqn = next((eqn for eqn in eqns if name.startswith(eqn.primitive.name)), eqns[-1])
    verdict = row_verdict(eqn, ins, outs)
    assert (verdict is None) if not text else (isinstance(verdict, Kind) and text in verdict.mixes)


def test_an_axis_that_is_made_up_of_numbers_numbers_the_rows():
    (eqn,) = trace(lambda: jax.lax.iota(np.float64, 6)).eqns
    assert "numbers the rows" in row_verdict(eqn, [], [0]).mixes


def test_a_primitive_without_a_rule_says_so():
    (eqn,) = trace(
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), float), x), np.ones(3)
    ).eqns
    assert entry_of(eqn) is UNKNOWN
    assert "has no rule" in row_verdict(eqn, [0], [0]).mixes
