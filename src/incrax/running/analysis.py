"""Stages 1 to 4 in order: a function and a call's leaves become `Facts` and the traced program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from incrax import _jax
from incrax._tuning import Tuning
from incrax.facts.cost import Calibration, calibrate
from incrax.facts.dependence import depend, make_layout
from incrax.facts.loops import hoist_invariants
from incrax.facts.program import Program, trace
from incrax.facts.simplify import drop_dead, fold_constants, inline, merge_equal, run_passes
from incrax.planning.facts import Facts
from incrax.running.signature import Signature

PASSES = (inline, hoist_invariants, fold_constants, merge_equal, drop_dead)


@dataclass(frozen=True)
class Analysis:
    """A traced function: the program as traced, what is known of it, and its output tree."""

    traced: Program
    facts: Facts
    out_tree: Any


def analyse(fun: Callable[..., Any], signature: Signature, dynamic: Sequence[Any], tuning: Tuning) -> Analysis:
    """Trace and analyse a function for one signature."""
    trees: list[Any] = []

    def flat_fun(*leaves: Any) -> list[Any]:
        args, kwargs = signature.rebuild(leaves)
        outputs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
        trees.append(out_tree)
        return outputs

    traced = trace(flat_fun, *dynamic)
    program = run_passes(traced, PASSES)
    layout = make_layout([var.aval for var in program.invars], tuning.max_tracked)
    is_minimal = tuning.planner == "minimal"
    calibration = calibrate() if tuning.calibrate and not is_minimal else Calibration()
    facts = Facts(program, depend(program, layout), calibration, is_minimal)
    return Analysis(traced, facts, trees[0])


def has_mutable_inputs(analysis: Analysis) -> bool:
    """Whether an input is a mutable reference, which no saved value can describe."""
    return any(_jax.is_ref(var.aval) for var in analysis.traced.invars)
