"""Break the engine on purpose, one way at a time, and see whether the tests notice.

Each mutant replaces one piece of source. The tests run against a copy of the package, the checkout
is never modified. A mutant that they let live is a hole in the suite, or computes the same; the
exit code is 1.

Some are a list, each a mistake that could be made; `tests/test_mutants.py` holds that every piece
still occurs in the source. Others are drawn at random from all places where an operator, a number,
an entry of a table ... can be another one. They show what the list forgot. Those run against the
tests of their package alone, and with `--wide` against those of the list too.

Usage: python scripts/mutants.py [--only TEXT] [--jobs 2]
       python scripts/mutants.py --random 40 --seed 1 [--package saving] [--kind comparison]
       [--wide] [--dry]
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "incrax"
LIMIT_S = 900
TESTS = " ".join(
    """
    tests/bijectors/test_memory.py tests/bijectors/test_tracing.py
    tests/bijectors/test_jit.py tests/bijectors/test_chains.py
    tests/control_flow/tapes/test_guarded.py tests/control_flow/tapes/test_captured.py
    tests/control_flow/tapes/test_rows.py
    tests/control_flow/loops/test_scan.py tests/control_flow/loops/test_bucketed.py
    tests/bijectors/test_snapshots.py tests/bijectors/test_switches.py
    tests/fit/test_levenberg.py tests/fit/test_batches.py tests/fit/test_minimize.py
    tests/fit/test_scans.py tests/models/held tests/samplers tests/inspection/cost tests/test_marks.py
    tests/test_memory.py tests/test_algebra.py tests/test_catalogue.py tests/test_bad_input.py tests/rows
    tests/properties tests/test_incremental.py tests/engine/program tests/engine/plan tests/engine/inputs
    tests/engine/compile tests/engine/policy tests/engine/store tests/engine/call
    """.split()
)


class Mutant(NamedTuple):
    """A name, a file of the package, a piece of it, what replaces the piece, and the tests that
    should notice.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str = TESTS


# Each optimisation switched off, and the test that it is on: results stay right without it, so that
# no other notices.
OPTIMISATIONS = [
    Mutant(
        "a clean operand is taken whole where its rows are wanted",
        "primitives/on_rows.py",
        "operands[number] = d",
        "pass",
        "tests/primitives/test_on_rows.py",
    ),
    Mutant(
        "rows of a value that has none are taken for alike",
        "primitives/on_rows.py",
        "    return aligned if has_rows or is_spread else None",
        "    return aligned",
        "tests/primitives/test_on_rows.py",
    ),
    Mutant(
        "the last block writes rows of the one before",
        "engine/plan/blocks.py",
        "new = lax.select(own, new, lax.dynamic_slice_in_dim(old, start, size, axis))",
        "pass",
        "tests/engine/plan/test_blocks.py::test_a_block_that_is_not_listed_does_not_run",
    ),
    Mutant(
        "a block begins beyond the last one that has all its rows",
        "engine/plan/blocks.py",
        "start = lax.min(first, np.int32(self.values.length - size))",
        "start = first",
        "tests/engine/plan/test_blocks.py::test_a_block_that_is_not_listed_does_not_run",
    ),
    Mutant(
        "what is little work runs in blocks",
        "engine/plan/blocks.py",
        "if by_rows and fill.seconds >= MIN_VALUE_S:",
        "if by_rows:",
        "tests/engine/plan/test_blocks.py",
    ),
    Mutant(
        "rows that others reach are taken for rows",
        "engine/rewrites/row_reductions.py",
        "else reached & ~self._reaching_others(eqn, found)",
        "else reached",
        "tests/engine/plan/test_blocks.py::test_the_bits_are_those_of_a_call_from_nothing",
    ),
    Mutant(
        "a reduction leaves an axis that is not that of the rows",
        "engine/rewrites/row_reductions.py",
        "last = (kept.index(axis),)",
        "last = (0,)",
        "tests/engine/plan/test_blocks.py::test_reductions_in_two_give_what_the_one_gives",
    ),
    Mutant(
        "totals are not made of values in blocks",
        "engine/plan/segmentation.py",
        "may_equal = is_derived or (values is None and var in self.row_values)",
        "may_equal = is_derived",
        "tests/engine/plan/test_blocks.py::test_what_has_no_rows_is_made_of_values_in_blocks",
    ),
    Mutant(
        "blocks are kept that an input reaches as a whole",
        "engine/store/saved_values.py",
        "if dirty & mask & ~blocked.by_rows or any(",
        "if any(",
        "tests/engine/plan/test_blocks.py::"
        "test_rows_of_what_reaches_all_rows_are_not_taken_for_these_rows",
    ),
    Mutant(
        "only the block of the first row runs",
        "engine/store/saved_values.py",
        "np.unique(rows // blocked.size)",
        "np.unique(rows[:1] // blocked.size)",
        "tests/engine/plan/test_blocks.py::test_the_bits_are_those_of_a_call_from_nothing",
    ),
    Mutant(
        "blocks of any version are kept",
        "engine/store/saved_values.py",
        "numbers.size < best.numbers.size:",
        "numbers.size < blocked.num:",
        "tests/engine/plan/test_blocks.py::"
        "test_of_versions_with_the_same_changed_inputs_the_nearest_counts",
    ),
    Mutant(
        "all blocks run at every call",
        "engine/plan/blocks.py",
        "return lax.fori_loop(np.int32(0), count, turn, list(olds))",
        "return lax.fori_loop(np.int32(0), np.int32(len(numbers)), turn, list(olds))",
        "tests/engine/plan/test_blocks.py::test_a_block_that_is_not_listed_does_not_run",
    ),
    Mutant(
        "outputs that are constants break changes of rows",
        "engine/plan/slices.py",
        "given = {atom for atom in (*facts.outvars, *facts.invars) if isinstance(atom, Var)}",
        "given = {*facts.outvars, *facts.invars}",
        "tests/engine/plan/test_slices.py::test_rows_alone_give_what_the_function_gives",
    ),
    Mutant(
        "old rows are computed from new ones",
        "engine/plan/environment.py",
        "return is_given or (not is_old and (self.rows(var) is None or var in self.saves))",
        "return is_given or self.rows(var) is None or var in self.saves",
        "tests/engine/plan/test_slices.py::test_old_rows_are_not_computed_from_new_ones",
    ),
    Mutant(
        "what was arranged by ids outlives the data",
        "engine/plan/facts.py",
        "self[var] = self.of_all(derived.on_host[var].sources)",
        "self[var] = self.of_all(derived.on_host[var].sources[-1:])",
        "tests/engine/call/test_slices.py::test_what_was_arranged_by_ids_follows_the_data",
    ),
    Mutant(
        "data that change are arranged by ids",
        "engine/plan/looked_up_rows.py",
        "is_steady = not env.facts.mask(var) & env.moving",
        "is_steady = True",
        "tests/engine/plan/test_slices.py::test_what_a_look_up_reads_lies_side_by_side",
    ),
    Mutant(
        "of a third value, only one's rows are looked at",
        "engine/inputs/leaves.py",
        "return together((ours, theirs))",
        "return ours",
        "tests/engine/inputs/test_leaves.py",
    ),
    Mutant(
        "of two versions the latest is taken for the nearest",
        "engine/inputs/leaves.py",
        "return rows.size > 0 and set(numbers.tolist()).isdisjoint(rows.tolist())",
        "return True",
        "tests/engine/call/test_slices.py::test_the_short_way_starts_where_fewest_rows_differ",
    ),
    Mutant(
        "what is overwritten is returned in another order",
        "engine/compile/executables.py",
        "return [*outputs, *results[:num_first], *written,",
        "return [*results[:num_before], *written,",
        "tests/engine/call/test_in_place.py::test_rows_are_written_where_the_values_are",
    ),
    Mutant(
        "rows that fill up a change count in a difference",
        "engine/plan/environment.py",
        "        return masked(self.at(rows), rows.axis, rows.of.counts)",
        "        return self.at(rows)",
        "tests/engine/plan/test_slices.py::test_spare_slots_count_once",
    ),
    Mutant(
        "a difference is always good enough",
        "engine/plan/environment.py",
        "            self.guards += [lost <= MAX_LOST * left, lax.is_finite(lost)]",
        "            self.guards += [lax.is_finite(lost)]",
        "tests/engine/plan/test_slices.py::test_a_difference_that_loses_too_much_must_not_be_used",
    ),
    Mutant(
        "a table of too few slots is used",
        "engine/plan/looked_up_rows.py",
        "        env.guards.append(env.table(fits))",
        "        env.table(fits)",
        "tests/engine/plan/test_slices.py::test_a_table_of_too_few_slots_must_not_be_used",
    ),
    Mutant(
        "slots that repeat a row are promised to be distinct",
        "engine/plan/looked_up_rows.py",
        '{"unique_indices": False, "indices_are_sorted": False}',
        "{}",
        "tests/engine/plan/test_slices.py",
    ),
    Mutant(
        "sums by ids lose digits on a GPU",
        "engine/plan/looked_up_rows.py",
        "over_slots, precision=Precision.HIGHEST)",
        "over_slots)",
        "tests/engine/plan/test_slices.py",
    ),
    Mutant(
        "some rows of indices are promised to be in order",
        "primitives/on_rows.py",
        ', "indices_are_sorted": False, "unique_indices": False}',
        "}",
        "tests/primitives/test_on_rows.py",
    ),
    Mutant(
        "rows that are computed anew are compared with what another program made of them",
        "rows/passes.py",
        "lax.select(has[var], found, env[var]) if var in has else found",
        "env.get(var, found)",
        "tests/rows/test_extremes.py",
    ),
    Mutant(
        "what two slabs share counts twice",
        "engine/plan/met_rows.py",
        "        one = masked(one, along.axis, in_no_row(along.of))",
        "        pass",
        "tests/engine/plan/test_slices.py::test_rows_and_columns_give_what_the_function_gives",
    ),
    Mutant(
        "rows of a slab get the difference of the other one alone",
        "engine/plan/met_rows.py",
        "        if place is None:\n            return after",
        "        if True:\n            return after",
        "tests/engine/plan/test_slices.py::test_rows_and_columns_give_what_the_function_gives",
    ),
    Mutant(
        "what a product of kept rows lost is not asked",
        "engine/plan/weighted_rows.py",
        "        env.guards.append(jnp.all((size >= lost) & lax.is_finite(size + lost)))",
        "        pass",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "a product that became too large passes",
        "engine/plan/weighted_rows.py",
        "(size >= lost) & lax.is_finite(size + lost)",
        "size >= lost",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "what was lost is forgotten by the next factor",
        "engine/plan/weighted_rows.py",
        "    return _product_of_losses(lost, times) + is_small",
        "    return 0.0 * times + is_small",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "what is lost is multiplied where it is divided",
        "engine/plan/weighted_rows.py",
        "    times = 2.0 / size if is_quotient else 2.0 * size",
        "    times = 2.0 * size",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "of a real part the product of imaginary parts is added",
        "engine/plan/weighted_rows.py",
        "        real += [re._replace(weight=u), _minus(im._replace(weight=v))]",
        "        real += [re._replace(weight=u), im._replace(weight=v)]",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "the sign of what was put off is lost",
        "engine/plan/weighted_rows.py",
        "        dots.append(-dot if term.is_negative else dot)",
        "        dots.append(dot)",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "a quotient takes the places of its operands",
        "engine/plan/weighted_rows.py",
        "[y, x] if number else [x, y]",
        "[x, y] if number else [y, x]",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "of what is zero digits count as lost",
        "engine/plan/weighted_rows.py",
        " & (x != 0) & (factor != 0)",
        "",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "sums over the rows too end at a value per row",
        "engine/plan/weighted_rows.py",
        "axis=others) for part in parts)",
        "axis=()) for part in parts)",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "what is clean is made and looked at in each call",
        "engine/plan/weighted_rows.py",
        "term.lost is None or env.is_dirty(term.rows) for term",
        "True for term",
        "tests/engine/plan/test_weighted_rows.py",
    ),
    Mutant(
        "rows along another axis pass for those of this one",
        "engine/plan/environment.py",
        "            if side.of is of and side.axis == axis:",
        "            if side.of is of:",
        "tests/engine/plan/test_slices.py::test_rows_and_columns_give_what_the_function_gives",
    ),
    Mutant(
        "what repeats an id has no sum",
        "engine/plan/looked_up_rows.py",
        "    value = masked(value, 0, members.is_row)",
        "    value = masked(value, 0, members.counts)",
        "tests/engine/plan/test_slices.py::test_rows_alone_give_what_the_function_gives",
    ),
    Mutant(
        "rows that are cut off go somewhere",
        "engine/plan/row_sets.py",
        "        lax.select(is_there, found, lax.full_like(found, length)),",
        "        found,",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "a row of two sets that meet counts twice",
        "engine/plan/row_sets.py",
        "        counts &= _is_first(same & lax.expand_dims(counts, (0,)))",
        "        pass",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "a row of two blocks counts twice",
        "engine/plan/row_sets.py",
        "        counts = ~lax.reduce_or(known, (1,))",
        "        pass",
        "tests/engine/plan/test_row_sets.py::test_blocks_count_each_row_once_and_stay_on_the_axis",
    ),
    Mutant(
        "a block is read as far as a row is",
        "engine/plan/row_sets.py",
        "    width = (places - 1 + window.reach) // window.stride + 1",
        "    width = (places - 1) // window.stride + 1",
        "tests/engine/plan/test_row_sets.py::test_windows_say_which_rows_read_which",
    ),
    Mutant(
        "no holes are behind the last row of a block",
        "engine/plan/moved_rows.py",
        "(low, high + holes, holes)",
        "(low, high, holes)",
        "tests/engine/plan/test_row_sets.py::test_windows_say_which_rows_read_which",
    ),
    Mutant(
        "what a block reads begins at the padding",
        "engine/plan/moved_rows.py",
        "lax.dynamic_slice_in_dim(part, offset + low, width, window.source)",
        "lax.dynamic_slice_in_dim(part, offset, width, window.source)",
        "tests/engine/plan/test_row_sets.py::test_windows_say_which_rows_read_which",
    ),
    Mutant(
        "an interval ends where its first row is read",
        "engine/plan/row_sets.py",
        "    return max(low, 0), min(last // window.stride + 1, length)",
        "    return max(low, 0), min(low + 1, length)",
        "tests/engine/plan/test_row_sets.py::test_windows_say_which_rows_read_which",
    ),
    Mutant(
        "axes that are merged and divided again are others",
        "engine/plan/row_sets.py",
        '            self._made.setdefault(("reading", found, back, of.length), of)',
        "            pass",
        "tests/engine/plan/test_row_sets.py::test_rows_that_are_merged_and_divided_again_are_those_rows",
    ),
    Mutant(
        "a running sum begins anew at the first row that changed",
        "engine/plan/met_rows.py",
        "    place = high if is_reverse else low - 1",
        "    place = high if is_reverse else low",
        "tests/engine/plan/test_slices.py::test_a_part_of_the_axis_gives_what_the_function_gives",
    ),
    Mutant(
        "rows behind an interval are left out of a reduction",
        "engine/plan/met_rows.py",
        "lax.slice_in_dim(x, high, None, axis=axis)",
        "lax.slice_in_dim(x, high, high, axis=axis)",
        "tests/engine/plan/test_slices.py::test_a_part_of_the_axis_gives_what_the_function_gives",
    ),
    Mutant(
        "what lies beside an interval is lost",
        "engine/plan/environment.py",
        "        self.saves[var] = self.baseline(var)\n        return self.saves[var]",
        "        return self.baseline(var)",
        "tests/engine/plan/test_slices.py::test_of_a_part_nothing_else_is_made_or_kept",
    ),
    Mutant(
        "rows in no window get the gradient of others",
        "engine/plan/moved_rows.py",
        "lax.dynamic_slice_in_dim(found, first + beside, of.width, axis)",
        "lax.dynamic_slice_in_dim(found, first, of.width, axis)",
        "tests/engine/plan/test_slices.py::test_windows_of_rows_side_by_side_and_at_the_ends",
    ),
    Mutant(
        "rows of two blocks count twice in the gradient by a kernel",
        "engine/plan/moved_rows.py",
        "own = masked(env.rows_of(kernel, axis, of), axis, of.counts)",
        "own = env.rows_of(kernel, axis, of)",
        "tests/engine/plan/test_slices.py::test_windows_of_rows_side_by_side_and_at_the_ends",
    ),
    Mutant(
        "the padding of a largest is a number",
        "primitives/reductions.py",
        "        return -math.inf",
        "        return 0.0",
        "tests/engine/plan/test_slices.py::test_windows_of_rows_side_by_side_and_at_the_ends",
    ),
    Mutant(
        "trees of halves are followed to their root",
        "engine/plan/environment.py",
        "        if of.halvings > MAX_HALVINGS and of.ends is None:",
        "        if False:",
        "tests/engine/plan/test_slices.py::test_levels_of_a_grid_are_by_rows_for_some_levels",
    ),
    Mutant(
        "a tree that is read at its end keeps no level",
        "engine/plan/row_sets.py",
        "    is_kept = by_slots and found.halvings >= MAX_HALVINGS",
        "    is_kept = False",
        "tests/engine/plan/test_slices.py::test_a_tree_that_is_read_at_its_end_runs_one_row_of_each_level",
    ),
    Mutant(
        "every other row is any row",
        "engine/plan/row_sets.py",
        "        if self.modulus == other.modulus and self.residue != other.residue:",
        "        if self.modulus == other.modulus:",
        "tests/engine/plan/test_row_sets.py::test_halves_that_meet_are_one_set_of_as_many_slots",
    ),
    Mutant(
        "clean rows stand behind the other pieces",
        "engine/rewrites/clean_rows.py",
        "            clean.insert(numbers.start, self.clean[dirty[0]])",
        "            clean.append(self.clean[dirty[0]])",
        "tests/engine/plan/test_clean_rows.py",
    ),
    Mutant(
        "rows that meet are those of one operand",
        "engine/rewrites/clean_rows.py",
        "if not known or is_whole or len({rows.ends for rows in known}) > 1:",
        "if not known or is_whole:",
        "tests/engine/plan/test_clean_rows.py",
    ),
    Mutant(
        "all pieces are made where one is read",
        "engine/rewrites/read_rows.py",
        "_read(_without_splits(program))",
        "_read(program)",
        "tests/engine/plan/test_clean_rows.py",
    ),
    Mutant(
        "rows that two readers take are those of the first",
        "engine/rewrites/read_rows.py",
        "                read[atom] = _hull(read[atom], source) if atom in read else source",
        "                read.setdefault(atom, source)",
        "tests/engine/plan/test_read_rows.py",
    ),
    Mutant(
        "rows are moved along one axis alone",
        "primitives/on_rows.py",
        "        part = moved_beside(eqn, axis, rows_of(*source), fill)",
        "        part = rows_of(*source)",
        "tests/engine/plan/test_read_rows.py",
    ),
    Mutant(
        "rows of a slab meet the first rows of what they are multiplied with",
        "engine/plan/met_rows.py",
        "            values[beside] = taken(values[beside], axis, rows.of)",
        "            values[beside] = lax.slice_in_dim(values[beside], 0, rows.of.size, axis=axis)",
        "tests/engine/plan/test_slices.py::test_rows_and_columns_give_what_the_function_gives",
    ),
    Mutant(
        "what others hold is overwritten",
        "engine/store/store.py",
        "copy=True) if id(x) in held else x for x in taken]",
        "copy=True) if False else x for x in taken]",
        "tests/engine/call/test_in_place.py",
    ),
    Mutant(
        "a version keeps what was overwritten",
        "engine/store/store.py",
        "        state.saved = {var: x for var, x in state.saved.items() if var not in variables}",
        "        pass",
        "tests/engine/call/test_in_place.py",
    ),
    Mutant(
        "programs start from versions that gave their values away",
        "engine/store/store.py",
        "        state.is_written_over = True",
        "        pass",
        "tests/engine/call/test_in_place.py",
    ),
    Mutant(
        "a driver forgets the place that a refused proposal came from",
        "engine/inputs/row_updates.py",
        "            self._latest = (base, (x, at(base[1])[numbers].set(x[numbers])))",
        "            self._latest = ((x, at(base[1])[numbers].set(x[numbers])),)",
        "tests/engine/inputs/test_row_updates.py",
    ),
    Mutant(
        "a program for the last rows serves all",
        "engine/policy/slices.py",
        "if reached <= size and self._gain",
        "if self._gain",
        "tests/engine/call/test_slices.py::test_calls_with_rows_here_and_there_are_right",
    ),
    Mutant(
        "a part of the axis runs for any running sum",
        "engine/policy/slices.py",
        "self._gain(leaves, within) > LEAST_GAIN",
        "self._gain(leaves, within) > -1.0",
        "tests/engine/call/test_slices.py::test_a_running_sum_beside_much_more_changes_nothing",
    ),
    Mutant(
        "rows that an interval meets in a joined array are forgotten",
        "engine/plan/row_sets.py",
        "if ends is None or not are_intervals or",
        "if ends is None or",
        "tests/engine/plan/test_slices.py::test_a_part_of_the_axis_gives_what_the_function_gives",
    ),
    Mutant(
        "rows that nothing reaches are counted as work",
        "engine/plan/row_share.py",
        "            if is_reached or not within:",
        "            if True:",
        "tests/engine/plan/test_slices.py::test_the_rough_share_of_a_part_is_that_of_its_rows",
    ),
    Mutant(
        "slots that stand for no row are written",
        "engine/plan/row_sets.py",
        "row = lax.select(start[rows.axis] < of.length, row, _block(old, start, row.shape))",
        "pass",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "a row of two listed sets that meet has two slots",
        "engine/plan/row_sets.py",
        "    numbers[:, 1:][is_repeated] = length",
        "    pass",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "a list knows nothing of the step of a move",
        "engine/plan/row_sets.py",
        "        is_there &= place % abs(step) == 0\n",
        "",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "all branches of a tree run where two meet",
        "engine/plan/slicer.py",
        "            self.united.update(eqn.outvars)",
        "            pass",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "what stands on differences is never summed anew",
        "engine/plan/slicer.py",
        "                self.drifting.update(eqn.outvars)",
        "                pass",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "rows of the baseline lie over the dirty ones",
        "engine/plan/row_sets.py",
        "return lax.select(is_dirty, taken(rows.new, axis, slots), value)",
        "return value",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "sets without a row in common are taken slot by slot",
        "engine/plan/row_sets.py",
        "    if is_by_slots(sets):\n        of = images[0].of",
        "    if images:\n        of = images[0].of",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "what a set is an image of is not told by its bounds",
        "engine/plan/row_sets.py",
        "    return all(a.is_apart(b) for a, b in itertools.combinations(images, 2))",
        "    return True",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "the rows of a baseline that are read are not kept",
        "engine/plan/environment.py",
        "            self.written(var, rows)\n        return self.baseline(var)",
        "            pass\n        return self.baseline(var)",
        "tests/engine/plan/test_slices.py tests/engine/call/test_sites.py",
    ),
    Mutant(
        "old rows of what is read as a whole are new ones",
        "engine/plan/environment.py",
        "return self.all_old_rows(atom) if was_other else self.result(atom)",
        "return self.result(atom)",
        "tests/engine/plan/test_slices.py tests/engine/call/test_sites.py",
    ),
    Mutant(
        "a row of no parent has members",
        "engine/plan/looked_up_rows.py",
        "    if of.has_spare:  # a slot of no row has no members",
        "    if False:",
        "tests/engine/plan/test_slices.py tests/engine/call/test_sites.py",
    ),
    Mutant(
        "rows that a loop carries are not followed",
        "primitives/on_rows.py",
        "            inside.mark(carried, map(inside.of, carries))",
        "            pass",
        "tests/primitives/test_on_rows.py",
    ),
    Mutant(
        "a loop that carries something is one of rows by themselves",
        "primitives/on_rows.py",
        "return not carry and {*consts} <= {None}",
        "return {*consts} <= {None}",
        "tests/engine/plan/test_slices.py",
    ),
    Mutant(
        "a loop is left where zeros have the other sign",
        "_jax.py",
        'return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{x.dtype.itemsize * 8}"))',
        "return x",
        "tests/engine/plan/test_resumed.py",
    ),
    Mutant(
        "a loop is left though its carry is another",
        "engine/plan/resumed.py",
        "is_left = _agree(state.carry, _at(self.old.carries, after))",
        "is_left = jnp.asarray(True)",
        "tests/engine/plan/test_resumed.py",
    ),
    Mutant(
        "a loop is never left",
        "engine/plan/resumed.py",
        "is_left = _agree(state.carry, _at(self.old.carries, after))",
        "is_left = jnp.asarray(False)",
        "tests/engine/plan/test_resumed.py",
    ),
    Mutant(
        "blocks that read something else are skipped",
        "engine/plan/resumed.py",
        "there = jnp.where(is_left, next_block(after), after)",
        "there = jnp.where(is_left, loop.num_whole, after)",
        "tests/engine/plan/test_resumed.py",
    ),
    Mutant(
        "a loop goes on from the carry that it has, though it skips blocks",
        "engine/plan/resumed.py",
        "lax.select(lax.broadcast(is_left, x.shape), then, x)",
        "x",
        "tests/engine/plan/test_resumed.py::test_steps_that_read_the_same_do_not_run",
    ),
    Mutant(
        "an initial carry is always the same",
        "engine/plan/resumed.py",
        "is_other.astype(np.int32))",
        "np.int32(0))",
        "tests/engine/plan/test_resumed.py::test_another_start_is_noticed",
    ),
    Mutant(
        "a carry that is returned as well is taken for a sum",
        "engine/plan/resumed.py",
        "return sum(isinstance(atom, Var) and atom in reached for atom in body.outvars) == 1",
        "return True",
        "tests/engine/plan/test_resumed.py::test_carries_that_are_only_added_to_are_found",
    ),
    Mutant(
        "what subtracts a carry adds to it",
        "engine/plan/resumed.py",
        'name == "sub" and own == eqn.invars[:1]',
        'name == "sub"',
        "tests/engine/plan/test_resumed.py::test_carries_that_are_only_added_to_are_found",
    ),
    Mutant(
        "the first step of a scan back reads the first row",
        "engine/plan/resumed.py",
        "return Spans(length - spans.stops, length - spans.starts)",
        "return spans",
        "tests/engine/plan/test_resumed.py::test_a_loop_is_left_where_its_carry_is_the_same_again",
    ),
    Mutant(
        "the last, shorter block changes nothing",
        "engine/plan/resumed.py",
        "end = jnp.where(is_other | is_read, np.int32(loop.length), np.int32(begin))",
        "end = np.int32(begin)",
        "tests/engine/plan/test_resumed.py::test_a_loop_is_left_where_its_carry_is_the_same_again",
    ),
    Mutant(
        "a run of blocks has one block",
        "engine/plan/resumed.py",
        "_put(ran.stops, after, state.last))",
        "_put(ran.stops, jnp.minimum(after, ran.starts[0] + 1), state.last))",
        "tests/engine/plan/test_resumed.py::test_a_loop_is_left_where_its_carry_is_the_same_again",
    ),
    Mutant(
        "records of a resumed loop are not saved",
        "engine/plan/slicer.py",
        "        self.saves.update(zip(records, [*made.carries, *made.sums], strict=True))\n",
        "",
        "tests/engine/plan/test_resumed.py::"
        "test_the_scan_back_of_a_gradient_reads_what_the_scan_there_changed",
    ),
    Mutant(
        "rows of what a loop reads in each step are those of its steps",
        "engine/plan/slicer.py",
        "if any(map(self.is_dirty, consts)) or len(known) < len(found):",
        "if len(known) < len(found):",
        "tests/engine/plan/test_resumed.py::test_loops_from_row_to_row_are_resumed",
    ),
    Mutant(
        "rows along any axis are those of its steps",
        "engine/plan/slicer.py",
        "if each is not None and each.axis == 0]",
        "if each is not None]",
        "tests/engine/plan/test_resumed.py::test_loops_from_row_to_row_are_resumed",
    ),
    Mutant(
        "a loop runs twice to be recorded",
        "engine/plan/plan.py",
        "return replace(plan, eqns=derived.put_instead(plan.eqns))",
        "return plan",
        "tests/engine/plan/test_resumed.py::test_records_are_made_by_the_loop_itself",
    ),
    Mutant(
        "a loop that never forgets is priced as if its last step changed",
        "engine/policy/slices.py",
        "dirty_share * sliced.endless_s",
        "0.0 * sliced.endless_s",
        "tests/engine/call/test_slices.py::"
        "test_a_loop_that_never_forgets_is_resumed_only_where_changes_are_late",
    ),
    Mutant(
        "two look-ups of one row are always apart",
        "engine/plan/environment.py",
        "        return not np.any(ids[0] == ids[1])",
        "        return True",
        "tests/engine/plan/test_row_sets.py",
    ),
    Mutant(
        "values per row are not saved again",
        "engine/plan/environment.py",
        "            self.saves[var] = self.whole[var] = with_rows(self.baseline(var), rows)",
        "            self.whole[var] = with_rows(self.baseline(var), rows)",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "what an element decides stays saved on the short way of rows",
        "engine/call/streak.py",
        "dirty = self._comparison.dirty(values, base)",
        "dirty = 0",
        "tests/engine/call/test_slices.py::"
        "test_what_one_element_decides_is_not_current_after_a_short_way_changed_it",
    ),
    Mutant(
        "rows hand on outputs that were deleted",
        "engine/store/saved_values.py",
        "return are_at_hand([*loads, *map(base.outputs.__getitem__, self._held)])",
        "return are_at_hand(loads)",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "only one side of a family counts",
        "engine/inputs/row_updates.py",
        "        if ours.depth < theirs.depth:",
        "        if False:",
        "tests/engine/inputs/test_row_updates.py",
    ),
    Mutant(
        "the first version is the baseline of a change of rows",
        "engine/call/row_calls.py",
        "return min(found, key=rank, default=None)",
        "return max(found, key=rank, default=None)",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "a version that differs in no row is the baseline of a change of rows",
        "engine/call/row_calls.py",
        "            if numbers.size:\n                found.append(ChangedRows",
        "            if True:\n                found.append(ChangedRows",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "differences go on for ever",
        "engine/policy/slices.py",
        "        if is_complete and self.num_differences <= MAX_DIFFERENCES:",
        "        if is_complete:",
        "tests/engine/call/test_slices.py::test_differences_are_summed_anew_after_so_many",
    ),
    Mutant(
        "the whole function always primes",
        "engine/policy/slices.py",
        "        self.is_priming_used = False\n        return pays",
        "        return pays",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "partial sums are off",
        "engine/rewrites/partial_sums.py",
        "        clean = [var for var in chain.terms if is_clean(var)]",
        "        clean = []",
        "tests/engine/plan/test_derived.py::test_clean_terms_are_added_up_first",
    ),
    Mutant(
        "a sum of two clean terms is kept beside the program's own",
        "engine/rewrites/partial_sums.py",
        "chain.size >= MIN_LARGE and _num_loaded(eqns, chain, is_clean) > 1",
        "chain.size >= MIN_LARGE",
        "tests/engine/plan/test_derived.py",
    ),
    Mutant(
        "stacked rows are off",
        "engine/rewrites/partial_sums.py",
        "    if not groups:\n        return tuple(eqns), tuple(loads)",
        "    if groups or not groups:\n        return tuple(eqns), tuple(loads)",
        "tests/engine/plan/test_derived.py::test_sums_over_loaded_rows_become_one_product",
    ),
    Mutant(
        "sibling reductions are off",
        "engine/rewrites/factors.py",
        "    if not merged:",
        "    if merged or not merged:",
        "tests/engine/plan/test_factors.py::test_reductions_that_share_a_dirty_array_become_products",
    ),
    Mutant(
        "algebra is off",
        "engine/rewrites/algebra.py",
        "    if not groups:",
        "    if groups or not groups:",
        "tests/test_algebra.py::test_results_are_those_of_the_rows_and_no_row_is_touched",
    ),
    Mutant(
        "polynomial forms are off",
        "engine/rewrites/algebra.py",
        "if _is_handy(group)]",
        "if False]",
        "tests/engine/plan/test_form_rules.py::test_a_primitive_of_polynomials_is_one",
    ),
    Mutant(
        "recycling is off",
        "engine/compile/recycling.py",
        '    return jax.default_backend() == "cpu" and jax.device_count() == 1',
        "    return False",
        "tests/properties/test_recycling.py::test_dropped_values_are_written_over_by_the_next",
    ),
    Mutant(
        "the short way is off",
        "engine/call/repeats.py",
        "    if entry is None or program is None or plan is None or program.plan is not plan:",
        "    if True:",
        "tests/engine/call/test_repeat.py::test_the_same_change_goes_the_short_way_and_now_and_then_the_long_one",
    ),
    Mutant(
        "plans are off",
        "engine/policy/planner.py",
        "        if entry.is_barred or self.clock.behind.num_waiting:",
        "        if True:",
        "tests/test_incremental.py::test_only_equations_that_the_change_reaches_run",
    ),
    Mutant(
        "segments are off",
        "engine/policy/autotune.py",
        "        if serve:",
        "        if False:",
        "tests/engine/policy/test_untimed.py",
    ),
    Mutant(
        "small totals start at the sum so far",
        "engine/rewrites/partial_sums.py",
        "    return (chain.size < MIN_SIZE or num_turning > 0) and len(chain.terms) <= MAX_TERMS",
        "    return False",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "a matrix that others read is split",
        "engine/rewrites/complex_products.py",
        "        if product is None or product.matrix in read:",
        "        if product is None:",
        "tests/engine/plan/test_complex_products.py",
    ),
    Mutant(
        "products of infinite vectors are used",
        "engine/rewrites/complex_products.py",
        "    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in arrays]))",
        "    return jnp.array(True)",
        "tests/engine/plan/test_complex_products.py",
    ),
    Mutant(
        "a matrix is split though it moves",
        "engine/policy/expectations.py",
        "RARE = 0.1",
        "RARE = 3.0",
        "tests/engine/plan/test_complex_products.py",
    ),
    Mutant(
        "small data is written into programs",
        "engine/compile/executables.py",
        "EMBED_BYTES = 64",
        "EMBED_BYTES = 4096",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "shared programs count each",
        "engine/policy/planner.py",
        "users[id(entry.program.executable.family)].append(entry)",
        "users[id(entry)].append(entry)",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "kin is planned for on trust no longer than others",
        "engine/policy/planner.py",
        "        is_kin = self.accounts.of(entry).num_programs > 0",
        "        is_kin = False",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "kin pays for the first program once more",
        "engine/policy/compile_budget.py",
        "        if account.num_programs and of_one_kind",
        "        if False and of_one_kind",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "a change of two calls stands for those before",
        "engine/policy/ledger.py",
        "            self._waiting += self.weight\n            self.weight = 0",
        "            self.weight = 0",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "no kin is expected",
        "engine/policy/accounts.py",
        "        account.num_expected = max(account.num_expected, entry.num_kin_expected)\n",
        "",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "all that was gained is risked",
        "engine/policy/compile_budget.py",
        "seconds <= WON_SHARE * self.ledger.net_s",
        "seconds <= self.ledger.net_s",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "nobody is blamed for stale values",
        "engine/call/engine.py",
        "            state.culprit = entry.dirty",
        "            pass",
        "tests/engine/policy/test_joint_fill.py",
    ),
    Mutant(
        "who is blamed pays nothing",
        "engine/policy/chooser.py",
        "            culprit.blame_s += lost_s",
        "            pass",
        "tests/engine/policy/test_joint_fill.py",
    ),
    Mutant(
        "planning need not be earned",
        "engine/policy/compile_budget.py",
        "        return has_credit or self.is_worth(",
        "        return True or self.is_worth(",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "rows are traced on trust",
        "engine/policy/compile_budget.py",
        "at_once_s = plan_s + price_s if entry.is_for_rows else plan_s",
        "at_once_s = plan_s",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "equal bits are another value",
        "engine/inputs/leaves.py",
        "        if old is not tried and not old.is_deleted() and same_value(old, new):",
        "        if False:",
        "tests/test_incremental.py::test_a_call_with_nothing_changed_runs_no_equation_and_compiles_nothing",
    ),
    Mutant(
        "no call bypasses",
        "engine/policy/ledger.py",
        "        if gained_s > 0 or self.credit_s >= 0 or not self.weight:",
        "        if True:",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "hoisting out of loops is off",
        "engine/rewrites/loop_invariants.py",
        "    if _jax.checks_values():\n        return program",
        "    return program",
        "tests/engine/program/test_loops.py::test_a_hoisted_value_is_saved_while_its_input_is_unchanged",
    ),
    Mutant(
        "merging of equal equations is off",
        "engine/program/simplify.py",
        "found = self._by_key.get(key)",
        "found = None",
        "tests/engine/program/test_simplify.py::test_equal_equations_are_evaluated_once",
    ),
    Mutant(
        "parameters of all equations are read to compare them",
        "engine/program/simplify.py",
        "if rough_key not in self._alone:",
        "if equation_key(eqn) and rough_key not in self._alone:",
        "tests/engine/program/test_simplify.py",
    ),
    Mutant(
        "kin are traced anew",
        "engine/rewrites/derived.py",
        "if key not in self._traces:",
        "if True:",
        "tests/engine/plan/test_factors.py",
    ),
    Mutant(
        "a trace serves variables of other types",
        "engine/rewrites/derived.py",
        "return numbers.setdefault(value, len(numbers)), value.aval",
        "return numbers.setdefault(value, len(numbers))",
        "tests/engine/plan/test_derived.py",
    ),
    Mutant(
        "folding is off",
        "engine/program/simplify.py",
        "for var, value in known_values(program).items() if _is_foldable(var, value)}",
        "for var, value in known_values(program).items() if False}",
        "tests/engine/program/test_simplify.py::test_values_that_read_no_input_become_constants",
    ),
    Mutant(
        "dropping of dead equations is off",
        "engine/program/simplify.py",
        "kept, read = _needed(program.eqns, program.outvars, has_effects=True)",
        "kept, read = program.eqns, all_read(program.eqns, program.outvars)",
        "tests/engine/program/test_simplify.py::test_the_text_shows_dead_equations_dropped",
    ),
]
MUTANTS = [
    *OPTIMISATIONS,
    Mutant(
        "what may change in place has the last result",
        "engine/call/bypass.py",
        "if result is NOT_HELD or not IMMUTABLE.issuperset(map(type, args)):",
        "if result is NOT_HELD:",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "deleted results are given once more",
        "engine/call/bypass.py",
        "if any(map(is_array_deleted, arrays)) or context_key() != self.config:",
        "if context_key() != self.config:",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "a call without a keyword has the last result with it",
        "engine/call/bypass.py",
        "not all(map(is_, args, last)) or kwargs:",
        "not all(map(is_, args, last)):",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "a look is timed with calls that still run",
        "_incremental.py",
        "bypass.wait()",
        "pass",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "a timed program is timed with programs that still run",
        "engine/compile/timing.py",
        "clock.wait_for_unproven()  #",
        "pass  #",
        "tests/engine/compile/test_timing.py",
    ),
    Mutant(
        "a keyword of the user's function is taken for an option of JAX",
        "_jax_options.py",
        "own |= _taken(args[0])",
        "pass",
        "tests/test_jax_options.py",
    ),
    Mutant(
        "a short name of a sampler's block is not completed",
        "samplers/sweeping.py",
        "moves = {_full(density.names, name): update for name, update in given.items()}",
        "moves = dict(given)",
        "tests/samplers/test_chains.py",
    ),
    Mutant(
        "large results are held",
        "engine/call/bypass.py",
        "result_bytes <= MAX_HELD_BYTES and _is_of_tuples(shape)",
        "_is_of_tuples(shape)",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "results are held in containers that their owner may change",
        "engine/call/bypass.py",
        "result_bytes <= MAX_HELD_BYTES and _is_of_tuples(shape)",
        "result_bytes <= MAX_HELD_BYTES",
        "tests/test_bad_input.py::test_containers_of_results_belong_to_the_caller",
    ),
    Mutant(
        "a result of another configuration is given once more",
        "engine/call/bypass.py",
        " or context_key() != self.config:",
        ":",
        "tests/test_bad_input.py",
    ),
    Mutant(
        "static leaves of a call that bypasses are not compared",
        "engine/call/bypass.py",
        "if leaves is None or not signature.same_statics(leaves):",
        "if leaves is None:",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "a call that bypasses is not verified",
        "_incremental.py",
        "is_at_top and not verifying() and (",
        "is_at_top and (",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "switches are not heard by calls that bypass",
        "_incremental.py",
        " and (not switches or are_switches_on()):",
        ":",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "the last call that bypasses is timed where it is to be verified",
        "_incremental.py",
        "return self._looked_at(args, kwargs, bypass)",
        "return self._looked_at(args, kwargs, self._bypass)",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "a call that bypassed and raised counts twice",
        "_incremental.py",
        "bypass.ledger.take_back()",
        "pass",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "calls that bypassed are told by looks, which find colder caches",
        "engine/policy/ledger.py",
        "return max(self.turn_s - BYPASS_S, 0.0) or whole_s",
        "return whole_s",
        "tests/inspection/test_logging.py",
    ),
    Mutant(
        "a look is not earlier where a decision is due",
        "engine/policy/chooser.py",
        "if each.due_at < now + ledger.granted]",
        "if False]",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "calls bypass changes of rows that nobody decided on",
        "engine/policy/slices.py",
        "return entry is None or (entry.program is None and entry.count < self.hot_after)",
        "return False",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "calls bypass what is new",
        "engine/policy/chooser.py",
        "is_open = not is_measured or is_new or is_awaited",
        "is_open = not is_measured or is_awaited",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what gains bypasses for what looks have cost",
        "engine/policy/ledger.py",
        "if gained_s > 0 or self.credit_s >= 0",
        "if self.credit_s >= 0",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "wide arrays reach the device as they are",
        "_jax.py",
        "    if aval is None or not is_plain:",
        "    if not is_plain:",
        "tests/engine/inputs/test_leaves.py",
    ),
    Mutant(
        "a streak of rows takes another kind of change",
        "engine/policy/slices.py",
        "return numbers.size <= sliced.kind.capacity",
        "return True",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak of rows adds differences without end",
        "engine/policy/slices.py",
        "if plan.guard is not None and self.num_differences >= MAX_DIFFERENCES:",
        "if False:",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "a streak of rows does not count differences",
        "engine/call/streak.py",
        "        slices.take_priming(repeat.entry, is_complete=True)\n        # Elem",
        "        # Elem",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "decisions take timed runs, which find colder caches, for calls in a row",
        "engine/policy/autotune.py",
        "return min(self.timed_s, self.ledger.turn_s or math.inf, known_s or math.inf)",
        "return min(self.timed_s, known_s or math.inf)",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "a first call has the function analysed",
        "engine/call/traced.py",
        "            evaluate = self._evaluate_first if self._first is None else self._evaluate_in_turn",
        "            evaluate = self._evaluate_in_turn",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "a second call that is not analysed is served as the first",
        "engine/call/traced.py",
        "            evaluate = self._evaluate_first if self._first is None else self._evaluate_in_turn",
        "            evaluate = self._evaluate_first",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "a function of which nothing came is analysed at once",
        "engine/call/traced.py",
        "if idle.num_calls > 1 else None",
        "if False else None",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "looks are put off where plans served",
        "engine/policy/expectations.py",
        'if data["pays"] is not False:',
        "if False:",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "looks are put off where plans would have served",
        "engine/policy/expectations.py",
        "return num_calls > entry.num_paying or (is_open and entry.promise_s < math.inf)",
        "return is_open and entry.promise_s < math.inf",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "looks are put off where nothing changed in many calls",
        "engine/policy/expectations.py",
        '"pays": pays or ledger.unchanged * whole_s > ledger.learning_s,',
        '"pays": pays,',
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "what had nothing to win in an earlier process is planned for once more",
        "engine/policy/chooser.py",
        "if self.expectations.is_lost(known):",
        "if False:",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "a program with the digest of another has what that learned",
        "engine/policy/expectations.py",
        'if data is None or data["program"] != self._program:',
        "if data is None:",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "planning for rows is no learning",
        "engine/policy/slices.py",
        "        self.num_planned += 1",
        "        pass",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "a function is analysed in the configuration of whoever asks",
        "engine/call/traced.py",
        "with set_as(self._settings), _jax.outside_traces():",
        "with _jax.outside_traces():",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "a report that has analysed a function leaves it bypassed",
        "engine/call/traced.py",
        "self._ledger.end()",
        "pass",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "an analysis is put off by two calls only",
        "engine/call/traced.py",
        "ledger.grant_more(num_more)",
        "pass",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "marks of values are not heard in a first call",
        "engine/call/analysis.py",
        "_SPECIAL = STATEFUL | {_jax.KEEP}",
        "_SPECIAL = STATEFUL",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "changes in turns go the long way",
        "engine/call/repeats.py",
        "if len(self.by_kind) >= MAX_REPEATS:",
        "if True:",
        "tests/engine/call/test_repeat.py",
    ),
    Mutant(
        "a streak goes on after others wrote in the store",
        "engine/call/streak.py",
        " or self._store.states is not self._states",
        "",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak never ends",
        "engine/call/streak.py",
        "if self._num >= self._limit or",
        "if",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak takes another tree for its own",
        "engine/inputs/signature.py",
        "elif type(x) is dict and len(x) == len(keys):",
        "elif type(x) is dict:",
        "tests/engine/inputs/test_signature.py",
    ),
    Mutant(
        "a streak takes other leaves for what they were",
        "engine/call/streak.py",
        "return leaves if others == self._moving or self._are_equal(leaves, others) else None",
        "return leaves",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak takes deleted arrays",
        "engine/call/streak.py",
        "if any(map(is_array_deleted, self._arrays)):",
        "if False:",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak runs where nothing changed",
        "engine/call/streak.py",
        "and x != first and x != last",
        "",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak takes a NaN for a new value",
        "engine/call/streak.py",
        "return LeafValue(x) if is_new and x == x else None",
        "return LeafValue(x) if is_new else None",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "a streak takes other elements for its own",
        "engine/call/streak.py",
        "is_new = compare(i, value, base) == compare(i, value, latest) == elements",
        "is_new = True",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "calls of a streak are not counted",
        "engine/call/streak.py",
        "self._engine.count_repeats(self._repeat, num, overhead_s)",
        "pass",
        "tests/engine/call/test_streak.py",
    ),
    Mutant(
        "another configuration has the program of the first",
        "_program.py",
        "if not is_known or context_key() != config or _jax.is_jit_disabled():",
        "if not is_known or _jax.is_jit_disabled():",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "other types have the program of the first",
        "_program.py",
        "if not is_known or context_key() != config or _jax.is_jit_disabled():",
        "if context_key() != config or _jax.is_jit_disabled():",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "a look after a bypass counts once",
        "engine/policy/ledger.py",
        "            self.weight = 1 + share",
        "            self.weight = 1",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "one kernel takes what it cannot",
        "engine/compile/one_kernel.py",
        "is_known = name in MOVES or entry_of(eqn).is_elementwise",
        "is_known = True",
        "tests/engine/compile/test_one_kernel.py",
    ),
    Mutant(
        "one kernel takes many numbers",
        "engine/compile/one_kernel.py",
        "all(_jax.aval_size(atom.aval) <= MAX_ELEMENTS for atom in made)",
        "True",
        "tests/engine/compile/test_one_kernel.py",
    ),
    Mutant(
        "calls of a signature that is not the latest any more are counted when it is looked at",
        "engine/call/signature_table.py",
        "            before.count_calls()\n",
        "            pass\n",
        "tests/engine/call/test_forgotten.py",
    ),
    Mutant(
        "a call in turn counts twice",
        "engine/call/traced.py",
        "            self.stats.calls -= 1",
        "            pass",
        "tests/engine/call/test_forgotten.py",
    ),
    Mutant(
        "sums of sites are never summed anew for their number of differences",
        "engine/call/sites.py",
        "is_few = lax.lt(most, np.int32(self._limit(given)))",
        "is_few = jnp.asarray(True)",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "the narrowest tables of look-ups are read, also for ids of more rows",
        "engine/call/site_program.py",
        "number = functools.reduce(lax.add, (",
        "number = functools.reduce(lax.min, (",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "under `shard_map`, branches return values that vary along other axes",
        "_jax.py",
        "    return jax.tree.map(lambda x: _as_varying(x, axes), tree)",
        "    return tree",
        "tests/test_sharding.py",
    ),
    Mutant(
        "rows of a refused change are written",
        "engine/call/sites.py",
        "rows = jnp.where(accept, change.new, change.taken(old))",
        "rows = change.new",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "sums of a refused change are written",
        "engine/call/sites.py",
        "values[slot] = change if accept is True else jnp.where(accept, change, old)",
        "values[slot] = change",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "a compiled chain goes where the density is no number",
        "samplers/sweep_steps.py",
        "accept = drawn.bounds < proposed - value + gained",
        "accept = ~(drawn.bounds >= proposed - value + gained)",
        "tests/samplers/test_compiled_sweeps.py",
    ),
    Mutant(
        "rows side by side are accepted by a ratio that is too near to one",
        "samplers/sweep_steps.py",
        "accept = own & (drawn.bounds < proposed - parts + gained)",
        "accept = own & (drawn.bounds < 0.7 * (proposed - parts) + gained)",
        "tests/samplers/test_calibration.py",
    ),
    Mutant(
        "a compiled chain notes the log-density of what it refused",
        "samplers/sweep_steps.py",
        "return (state, jnp.where(accept, proposed, value)), accept, share",
        "return (state, proposed), accept, share",
        "tests/samplers/test_compiled_sweeps.py",
    ),
    Mutant(
        "each chunk of a compiled chain begins at the first sweep",
        "samplers/compiled_sweeps.py",
        "np.array([sweeps.start, sweeps.stop], np.int32)",
        "np.array([0, sweeps.stop], np.int32)",
        "tests/samplers/test_compiled_sweeps.py",
    ),
    Mutant(
        "a label is drawn by the value before it",
        "samplers/sweep_draws.py",
        "return jnp.sum(sums <= at, dtype=np.int32), jnp.isfinite(highest)",
        "return jnp.sum(sums < at, dtype=np.int32) - 1, jnp.isfinite(highest)",
        "tests/samplers/test_categorical.py",
    ),
    Mutant(
        "the warm-up narrows what it should widen",
        "samplers/compiled_sweeps.py",
        "scale = scale + gain * (share - block.target)",
        "scale = scale - gain * (share - block.target)",
        "tests/samplers/test_unasked.py",
    ),
    Mutant(
        "a chain that is taken up has the random numbers of its first sweeps again",
        "samplers/checkpoints.py",
        "rng.bit_generator.state = state",
        "rng.bit_generator.state = dict(rng.bit_generator.state)",
        "tests/samplers/test_several_chains.py",
    ),
    Mutant(
        "rows that meet after their sum move together",
        "engine/call/row_parts.py",
        "        if not (name in LINEAR_IN_ALL or is_scaled or is_divided):",
        "        if False:",
        "tests/engine/call/test_parts.py",
    ),
    Mutant(
        "rows of two look-ups are taken for the same",
        "engine/call/row_parts.py",
        "        if is_first and key in self._ids:\n            return self._ids[key]",
        "        if is_first and self._ids:\n            return next(iter(self._ids.values()))",
        "tests/engine/call/test_parts.py",
    ),
    Mutant(
        "rows of one colour meet",
        "engine/call/row_parts.py",
        "        while colour in taken:",
        "        while colour < 1 and colour in taken:",
        "tests/engine/call/test_colours.py",
    ),
    Mutant(
        "what a look-up fills with is in each term",
        "engine/call/row_parts.py",
        'eqn = eqn.replace(params={**eqn.params, "fill_value": 0})',
        "pass",
        "tests/engine/call/test_colours.py",
    ),
    Mutant(
        "a quotient of integers is linear",
        "engine/call/row_parts.py",
        "(is_cut or any(map(_is_real, eqn.invars)))",
        "any(map(_is_real, eqn.invars))",
        "tests/engine/call/test_colours.py",
    ),
    Mutant(
        "a row that a term has twice counts twice",
        "engine/call/row_parts.py",
        "np.sort(np.where(is_same, spare, found), axis=1)",
        "np.sort(found, axis=1)",
        "tests/engine/call/test_colours.py",
    ),
    Mutant(
        "candidates of a site make all rows run",
        "engine/call/sites.py",
        "is_sound = _everywhere(_all([is_few, *found.guards]))",
        "is_sound = _all([is_few, *found.guards])",
        "tests/engine/call/test_sites.py",
    ),
    Mutant(
        "a step of a kernel that moved is not written",
        "samplers/sweep_steps.py",
        "has_moved = jnp.any(found.position != position)",
        "has_moved = jnp.all(found.position == position)",
        "tests/samplers/test_kernels.py",
    ),
    Mutant(
        "kernels of all colours move at once",
        "samplers/sweep_steps.py",
        "accept = own & accept",
        "accept = accept",
        "tests/samplers/test_kernels.py",
    ),
    Mutant(
        "a kernel of some elements starts at the first ones",
        "samplers/sweep_steps.py",
        "else flat[elements]",
        "else flat[: len(elements)]",
        "tests/samplers/test_kernels.py",
    ),
    Mutant(
        "all chains run on the first device",
        "samplers/chain.py",
        "zip(trees, cycle(self.devices), strict=False)",
        "zip(trees, cycle(self.devices[:1]), strict=False)",
        "tests/test_sharding.py",
    ),
    Mutant(
        "rows of inputs of other lengths move together",
        "samplers/sweep_blocks.py",
        "    if others:",
        "    if False:",
        "tests/samplers/test_compiled_sweeps.py",
    ),
    Mutant(
        "a constant of rows shares the memory of an array that its owner may change",
        "_program.py",
        "    _jax.own_arrays(jaxpr)\n    return from_jaxpr(jaxpr)",
        "    return from_jaxpr(jaxpr)",
        "tests/rows/test_rows.py",
    ),
    Mutant(
        "a trace holds arrays that their owner may change",
        "_program.py",
        "    _jax.own_arrays(jaxpr)\n    program = from_jaxpr(jaxpr)",
        "    program = from_jaxpr(jaxpr)",
        "tests/engine/compile/test_whole.py",
    ),
    Mutant(
        "the whole program is traced again after JAX forgot it",
        "_program.py",
        "        return known[0](*args, **kwargs) if known else fun(*args, **kwargs)",
        "        return fun(*args, **kwargs)",
        "tests/engine/compile/test_whole.py",
    ),
    Mutant(
        "each value that a first plan loads is computed by a program of its own",
        "engine/policy/segments.py",
        "        if num_new < MIN_JOINT or self._joint:",
        "        if True:",
        "tests/engine/policy/test_joint_fill.py",
    ),
    Mutant(
        "types of arguments do not count in the form of a plan",
        "engine/plan/families.py",
        "            self.lines.append(self.kind_of(var))",
        "            self.lines.append(None)",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "what equations do does not count in the form of a plan",
        "engine/plan/families.py",
        "self.lines.append((operation_key(step), names, types))",
        "self.lines.append((names, types))",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "places of elements are part of the program, though their numbers are not of its key",
        "engine/compile/executables.py",
        "        start = [places[next(at)] for _ in piece.start]",
        "        start = list(piece.start)",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "terms of a sum keep their places",
        "engine/compile/executables.py",
        "may_reorder=plan.may_reorder",
        "may_reorder=False",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "another member of a family is timed again",
        "engine/compile/timing.py",
        "is_measured=known.is_measured,",
        "is_measured=False,",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "each plan is taken to need a program of its own",
        "engine/policy/accounts.py",
        "        num_later = max(self.num_new - 1, 0)",
        "        num_later = self.num_programs",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "each kind bears the risk that the second plan of a family needs a program",
        "engine/policy/accounts.py",
        "SELDOM / max(self.num_kinds, self.num_programs)",
        "SELDOM / self.num_programs",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what a family has spent stands against programs for what is stale",
        "engine/policy/compile_budget.py",
        "if account.num_programs and gained_s > account.filled_s + compiling_s:",
        "if account.num_programs and gained_s > account.spent_s + compiling_s:",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "kinds of change that are alike earn each for itself",
        "engine/policy/accounts.py",
        "own = max(entry.count, self.of(entry).num_calls)",
        "own = entry.count",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "changes are alike only at one place of a sum",
        "engine/plan/facts.py",
        " for chain in self.chains for n in chain.eqns if n != chain.last)",
        " for n in ())",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "what is loaded of a large function is compiled at once",
        "engine/compile/timing.py",
        "        return family.one_by_one is not None and passed_s < usual_s(family.num_eqns)",
        "        return False",
        "tests/engine/plan/test_growth.py",
    ),
    Mutant(
        "no call is looked at for what a program is likely to save",
        "engine/policy/chooser.py",
        "if is_open or self._has_untried or self._hoped_s() > min(ledger.look_s, most_s):",
        "if is_open or self._has_untried:",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "one slow look puts off what a hint waits for",
        "engine/policy/chooser.py",
        "is_open = not is_measured or is_new or is_awaited",
        "is_open = not is_measured or is_new",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "each kind earns what is learned first for itself",
        "engine/policy/accounts.py",
        "clean_calls = self.known_calls if entry.known_price_s else self.clean_calls",
        "clean_calls = 0.0",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "kinds in turns get programs of their own",
        "engine/policy/planner.py",
        "self.divides = may_divide and self.are_in_turns",
        "self.divides = False",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "one kind alone is divided",
        "engine/policy/planner.py",
        "self.divides = may_divide and self.are_in_turns",
        "self.divides = may_divide",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "large functions are divided",
        "engine/policy/planner.py",
        "self.divides = may_divide and self.are_in_turns",
        "self.divides = self.are_in_turns",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "sums that others leave stale are loaded",
        "engine/policy/planner.py",
        "                turning=self.turning,\n            )\n            if copied",
        "            )\n            if copied",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "kinds in turns leave stale what others load",
        "engine/policy/planner.py",
        "saves=wanted if entry.blame_s or self.turns else (),",
        "saves=wanted if entry.blame_s else (),",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "only what came in turns is planned for",
        "engine/policy/planner.py",
        "            found.update(dict.fromkeys(each_mask(*inputs, name)))",
        "            pass",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "kinds that leave each other fresh are planned for together",
        "engine/policy/planner.py",
        "        return 2 * sum(num for kind, num in calls.items() if kind & read) > sum(calls.values())",
        "        return True",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "the whole function saves what nobody reads",
        "engine/policy/chooser.py",
        "        pays = num_served > self._num_served",
        "        pays = True",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "the whole function never saves what plans load",
        "engine/policy/chooser.py",
        "        pays = num_served > self._num_served",
        "        pays = False",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "groups never get programs where the whole function stands in",
        "engine/policy/segments.py",
        "        return priming if is_saved and self.primed_s < self.compiling_s(new) else None",
        "        return priming if is_saved else None",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "the whole function saves what is derived, too",
        "engine/policy/segments.py",
        "            return plan_whole(self.facts, changing)",
        "            return plan_whole(self.facts, dict.fromkeys([*missing, *changing]))",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "all kin are planned for, however large the function",
        "engine/policy/planner.py",
        "        return tuple(found)[: max(MAX_KIN_EQNS // max(len(self.facts.eqns), 1), 1)]",
        "        return tuple(found)",
        "tests/engine/policy/test_large_in_turns.py",
    ),
    Mutant(
        "kin of what has a program is no reason to look",
        "engine/policy/chooser.py",
        "        is_next = account.num_programs > 0 and not entry.is_decided",
        "        is_next = False",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "each kind in turns has the whole function timed again",
        "engine/policy/autotune.py",
        '        if "whole" in contenders and since >= min(entry.uses, RETRY_USES[-1]) // 2:',
        '        if "whole" in contenders:',
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "blame is no reason to compile",
        "engine/policy/compile_budget.py",
        "self.accounts.hit_rate_with(entry) + self.accounts.blame_of(entry)",
        "self.accounts.hit_rate_with(entry)",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "the first of all pays for plans of its family alone",
        "engine/policy/accounts.py",
        "        return sum(min(account.num_kinds, account.num_calls // 2) for account in accounts)",
        "        return self.of(entry).num_kinds",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what earlier processes gained is no reason to look",
        "engine/policy/chooser.py",
        "        return max(self.accounts.hit_rate * hoped_s, foretold_s)",
        "        return self.accounts.hit_rate * hoped_s",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "the first use of a program puts others off",
        "engine/policy/chooser.py",
        "        is_paid = self.credit.expected_calls > 0 or entry.program is not None",
        "        is_paid = self.credit.expected_calls > 0",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "other programs are priced as the first",
        "engine/policy/learning_costs.py",
        "others * self.equations_s(accounts.mean_reached)",
        "others * self.equations_s(entry.num_reached)",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "rows of closed-over data are cut at each call",
        "engine/compile/executables.py",
        "None if returned.intersection(eqn.outvars) else _folded(eqn, known)",
        "None",
        "tests/engine/compile/test_constants_of_plans.py",
    ),
    Mutant(
        "windows that overlap are all constants",
        "engine/compile/executables.py",
        "            if num_bytes > MAX_FOLDED * self.facts.constant_bytes:",
        "            if False:",
        "tests/engine/compile/test_constants_of_plans.py",
    ),
    Mutant(
        "who lets it compile is put off",
        "engine/policy/planner.py",
        "is_put_off = not (self.divides or self.may_plan_each or credit.compile_s)",
        "is_put_off = not (self.divides or self.may_plan_each)",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "what grows is a constant, too",
        "engine/compile/executables.py",
        "if _jax.aval_bytes(written.aval) > max([_jax.aval_bytes(x.aval) for x in given], default=0):",
        "if False:",
        "tests/engine/compile/test_constants_of_plans.py",
    ),
    Mutant(
        "one slow look more than doubles what looks take",
        "engine/policy/ledger.py",
        "overhead_s if is_first else min(overhead_s, MAX_RISE * self.look_s)",
        "overhead_s",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "calls that are only guessed need repay as little",
        "engine/policy/compile_budget.py",
        "enough_s = offer.known_s if is_known else offer.foreseen_s",
        "enough_s = offer.known_s",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what would pay is noted as for a guess",
        "engine/policy/compile_budget.py",
        "entry.num_paying = offer.known_s / gain_s",
        "entry.num_paying = offer.foreseen_s / gain_s",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "rows must repay what they load twice",
        "engine/policy/compile_budget.py",
        "return KNOWN_FACTOR if entry.is_for_rows else FORESEEN_FACTOR",
        "return FORESEEN_FACTOR",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what is prepared counts as calls",
        "engine/policy/chooser.py",
        "self.ledger.weight if is_call else 0",
        "self.ledger.weight",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "calls of rows earn plans",
        "engine/policy/accounts.py",
        "        if entry.family is None:  # what serves rows leaves nothing of it to plans\n            return\n",
        "",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "families are never forgotten",
        "engine/policy/chooser.py",
        "self.accounts.forget_kind(self.entries.pop(oldest))",
        "self.entries.pop(oldest)",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "a decision that is due makes a bypass longer",
        "engine/policy/chooser.py",
        "min(max(math.ceil(due_in), MIN_BYPASSED), ledger.granted + 1)",
        "max(math.ceil(due_in), MIN_BYPASSED)",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "one of those that share a program makes room",
        "engine/policy/planner.py",
        "        for victim in victims:",
        "        for victim in victims[:1]:",
        "tests/test_incremental.py",
    ),
    Mutant(
        "an interrupt keeps its turn",
        "engine/call/traced.py",
        "                ledger.take_back()\n"
        "                if not isinstance(error, Exception):\n"
        "                    raise\n",
        "                if not isinstance(error, Exception):\n"
        "                    raise\n"
        "                ledger.take_back()\n",
        "tests/engine/call/test_first_call.py",
    ),
    Mutant(
        "an interrupt in a turn is no aborted call",
        "_incremental.py",
        "if not isinstance(error, Exception) or isinstance(error, bypass.final_errors):\n"
        "                        self._stats.aborted += 1",
        "if not isinstance(error, Exception) or isinstance(error, bypass.final_errors):",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "what waits for the end of a process has no bound",
        "engine/policy/expectations.py",
        "        if len(_pending) >= MAX_WRITTEN:",
        "        if False:",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "like functions that were not timed tell something",
        "engine/policy/expectations.py",
        "            if other.whole.seconds is None:\n                continue\n",
        "",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "hints miss functions with effects",
        "engine/policy/expectations.py",
        "[mask | facts.always for mask in masks]",
        "masks",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "rows are counted while their program is compiled",
        "engine/call/row_calls.py",
        "            return None  # the dirty set's record has the call counted\n"
        "        chooser.accounts.num_calls += chooser.ledger.weight\n",
        "            chooser.accounts.num_calls += chooser.ledger.weight\n"
        "            return None\n"
        "        chooser.accounts.num_calls += chooser.ledger.weight\n",
        "tests/engine/compile/test_background.py",
    ),
    Mutant(
        "what was answered once is held for good",
        "engine/call/bypass.py",
        "            self.last = NO_CALL\n            return NOT_HELD\n        self.last",
        "            return NOT_HELD\n        self.last",
        "tests/engine/call/test_bypass.py",
    ),
    Mutant(
        "numbers tell programs apart",
        "engine/plan/families.py",
        "        if isinstance(atom, Literal) and not _is_fixed(atom):",
        "        if False:",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "numbers tell families apart",
        "engine/plan/families.py",
        "literal_key(x) if _is_fixed(x) else x.aval",
        "literal_key(x) if isinstance(x, Literal) else x.aval",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "numbers without a type of their own are named",
        "engine/plan/families.py",
        "return atom.aval.weak_type or not",
        "return not",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "the first kin's numbers serve all",
        "engine/compile/executables.py",
        "{n for n, number in enumerate(numbers) if number != self.first[n]}",
        "set()",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "each of kin has numbers of its own to pass",
        "engine/compile/executables.py",
        "tuple(sorted(different.union(self.differing)))",
        "tuple(sorted(different))",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "rare kinds put off what a new program has to show",
        "engine/policy/chooser.py",
        "is_open or self._has_untried or",
        "is_open or",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what is never tried is looked out for without end",
        "engine/policy/chooser.py",
        "if e.program and e.num_asked < FIRST_LOOKS",
        "if e.program",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "calls that bypassed last are expected of none",
        "engine/policy/expectations.py",
        "        unseen = ledger.unseen",
        "        unseen = 1.0",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "few looks tell of all calls",
        "engine/policy/ledger.py",
        "if self.calls >= NUM_TELLING else 1.0",
        "",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "slow first runs are taken for usual ones",
        "engine/policy/compile_budget.py",
        "if earlier_s else cold_s",
        "if earlier_s else 0.0",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "calls that bypassed are worth no file",
        "engine/policy/expectations.py",
        "num_calls = max(sum(known.calls for known in found.values()), ledger.verdict.num_calls)",
        "num_calls = sum(known.calls for known in found.values())",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "what segments served is new to the next process",
        "engine/policy/expectations.py",
        '    return entry.program is not None or entry.candidate == "segments"',
        "    return entry.program is not None",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "what segments took is the price of a program",
        "engine/policy/expectations.py",
        "took_s = max(took_s * has_program, entry.known_price_s)",
        "took_s = max(took_s, entry.known_price_s)",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "each kind expects its own calls before the first plan",
        "engine/policy/accounts.py",
        "        if not own or not self._is_first(entry):\n            return own",
        "        if True:\n            return own",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "calls of what had no program are expected to pay for one",
        "engine/policy/expectations.py",
        "for kind, x in self._known.items() if x.was_compiled]\n        share",
        "for kind, x in self._known.items()]\n        share",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "looks agree with themselves",
        "engine/policy/accounts.py",
        "effective_number(calls, self.squares)",
        "effective_number(calls)",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "all calls pay for what a known program took",
        "engine/policy/accounts.py",
        "self.known_calls if entry.known_price_s else self.clean_calls",
        "self.clean_calls",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "what several calls changed is a kind",
        "engine/policy/planner.py",
        "not any(other != k and not other & ~k for other in turning)",
        "True",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "segments serve what is alike",
        "engine/policy/planner.py",
        "        if 2 * len(asked.families) <= len(kinds):",
        "        if False:",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "a look is no part of what a call takes",
        "engine/policy/planner.py",
        "left_s = num_calls * (whole_s - self.race.ledger.look_s)",
        "left_s = num_calls * whole_s",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "a plan for one of many that do not pay",
        "engine/policy/planner.py",
        "if self.are_in_turns and is_put_off:",
        "if False:",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "segments serve no large function",
        "engine/policy/planner.py",
        "may_divide = is_small or self.expectations.is_divided",
        "may_divide = is_small",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "plans for many take what is estimated",
        "engine/policy/planner.py",
        "alone_s = CROWDED * asked.alone_s()",
        "alone_s = asked.alone_s()",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "segments are called for nothing",
        "engine/policy/many_in_turns.py",
        "return self._calls_s(SEGMENT_S) + sum(",
        "return self._calls_s(0.0) + sum(",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "each segment has a program",
        "engine/policy/many_in_turns.py",
        "self._alike = dict(zip(digests.values(), sizes.values(), strict=True))",
        "self._alike = dict(zip(digests, sizes.values(), strict=True))",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "what never changes is saved at each call",
        "engine/policy/many_in_turns.py",
        "self._saves_s = saves_s * self._moves.any(axis=1)",
        "self._saves_s = saves_s",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "what plans save costs nothing",
        "engine/policy/many_in_turns.py",
        "call_s = run_s + loaded_s + self._saves_s @ self._moves",
        "call_s = run_s + loaded_s",
        "tests/engine/policy/test_many_in_turns.py",
    ),
    Mutant(
        "the next process does not know that segments served",
        "engine/policy/expectations.py",
        "        self.is_divided = is_divided\n",
        "",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "one look stands for all calls that bypassed",
        "engine/policy/ledger.py",
        "self._share = math.ceil(self._waiting / CENSUS)",
        "self._share = self._waiting",
        "tests/engine/policy/test_ledger.py",
    ),
    Mutant(
        "the first of many families pays for itself alone",
        "engine/policy/learning_costs.py",
        "others = accounts.families_in_turns - 1.0",
        "others = 0.0",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "a rare family is begun with",
        "engine/policy/accounts.py",
        "return not (entry.family is None or self.has_learned or self._is_rare(entry))",
        "return not (entry.family is None or self.has_learned)",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what left stale what others load is counted less for that",
        "engine/policy/accounts.py",
        "num_missed = self.num_missed - self.of(entry).num_blamed",
        "num_missed = self.num_missed",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what is promised always comes true",
        "engine/policy/compile_budget.py",
        "            gain_s *= self.accounts.hit_rate_with(entry) + self.accounts.blame_of(entry)",
        "            pass",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "programs for stale values cost nothing",
        "engine/policy/compile_budget.py",
        "        if not compiling_s or self._has_left(compiling_s):\n            return True",
        "        return True",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "kinds of earlier processes do not come in turns",
        "engine/policy/planner.py",
        "return max(effective_number(shares), effective_number(known)) >= MIN_IN_TURNS",
        "return effective_number(shares) >= MIN_IN_TURNS",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "the last of the segments sums row by row",
        "engine/plan/plan.py",
        "if not may_factor or facts.effects:",
        "if True:",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "segments are promised to take what a plan does",
        "engine/policy/planner.py",
        "plan = replace(plan, seconds=self._divided_s(entry, plan))",
        "pass",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "rows of a product stay in one matrix whatever they depend on",
        "engine/rewrites/products.py",
        "groups.setdefault(functools.reduce(operator.or_, masks, 0), {})[key] = row",
        "groups.setdefault(0, {})[key] = row",
        "tests/engine/plan/test_factors.py",
    ),
    Mutant(
        "there are as many matrices as kinds of rows",
        "engine/rewrites/products.py",
        "if len(groups) > MAX_MATRICES:",
        "if False:",
        "tests/engine/plan/test_factors.py",
    ),
    Mutant(
        "outputs of a family have the order of the function",
        "engine/plan/families.py",
        "places = sorted(range(len(outputs)), key=lambda place: walk.colour_of(outputs[place]))",
        "places = list(range(len(outputs)))",
        "tests/engine/plan/test_families.py",
    ),
    Mutant(
        "kinds of change of rows keep their share of the latest calls",
        "engine/policy/candidates.py",
        "faded / max(RECENT * -math.expm1(-num_in_all / RECENT), 1.0)",
        "1.0",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "each kind of change of rows has a program of its own",
        "engine/policy/slices.py",
        "        return kind if entry is not None and entry.is_barred else joint",
        "        return kind",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "a program for rows serves those of other inputs",
        "engine/plan/plan.py",
        "        return is_of and set(self.leaves) >= set(other.leaves)",
        "        return is_of",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "one slow run bars a program for rows",
        "engine/policy/slices.py",
        "if seconds is None or is_tried:",
        "if seconds is None:",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "a short job compiles what has been earned",
        "engine/policy/compile_budget.py",
        "calls * sure_s > price_s and short_s <= 0.0",
        "calls * sure_s > price_s",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what is known of a promise is doubted as the rest",
        "engine/policy/compile_budget.py",
        "KNOWN_DOUBT * fixed_s +",
        "doubt * fixed_s +",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "a version saves for rows at the first change that starts from it",
        "engine/store/saved_values.py",
        "if not base.has_lacked or is_any_deleted(feeds):",
        "if is_any_deleted(feeds):",
        "tests/engine/call/test_slices.py",
    ),
    Mutant(
        "a decision is due after calls that came before the kind of change",
        "engine/policy/compile_budget.py",
        "max(self.accounts.num_calls - entry.num_before, calls) / calls",
        "self.accounts.num_calls / calls",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "rows must pay once, though they may take as long",
        "engine/policy/compile_budget.py",
        "ROW_UNSURE * gain_s if",
        "gain_s if",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "one run of a program is what the next process knows of it",
        "engine/policy/expectations.py",
        "    if program is not None and not program.is_measured:\n",
        "    if False:\n",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "no gain is beyond doubt",
        "engine/policy/compile_budget.py",
        "        beyond_doubt_s = lasting * (offer.served_s - at_most_s)",
        "        beyond_doubt_s = 0.0",
        "tests/engine/policy/test_credit.py",
    ),
    Mutant(
        "what a load saves is counted of values that others read as well",
        "engine/plan/frontier.py",
        "listing.num_readers[x] == 1 and x in",
        "x in",
        "tests/engine/plan/test_frontier.py",
    ),
    Mutant(
        "what earlier processes learned is not read",
        "engine/policy/expectations.py",
        'if data is None or data["program"] != self._program:',
        "if True:",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "hints are not heard",
        "engine/policy/compile_budget.py",
        "        return max(calls, foreseen - calls)",
        "        return calls",
        "tests/engine/policy/test_expectations.py",
    ),
    Mutant(
        "a verdict leaves out what learning took",
        "engine/policy/ledger.py",
        "        self.learning_s += seconds\n",
        "",
        "tests/inspection/test_logging.py",
    ),
    Mutant(
        "what a saved value is worth is divided by its bytes, also by none",
        "engine/store/eviction.py",
        "seconds / max(num_bytes, 1)",
        "seconds / min(num_bytes, 1)",
    ),
    Mutant(
        "large saved values are worth as much as small ones of the same seconds",
        "engine/store/eviction.py",
        "seconds / max(num_bytes, 1)",
        "seconds",
    ),
    Mutant(
        "keys of all rows are split from one",
        "primitives/random.py",
        '"random_split rng_bit_generator", _DRAWN',
        '"random_split rng_bit_generator", _MOVED',
    ),
    Mutant(
        "numbers of rows beside a key are taken for keys of rows",
        "primitives/random.py",
        "return of_all(eqn, [read, *map(mapped, others), made])",
        "return of_all(eqn, [read, *map(mapped, others)])",
        "tests/models/held/test_hold.py::test_what_shapes_tell_is_refused_under_transformations",
    ),
    Mutant(
        "the table of branches shows where one is instead of what it was",
        "control_flow/tapes/explanation.py",
        'str(g).rpartition(" is ")[2]',
        'str(g).rpartition(" is ")[0]',
    ),
    Mutant(
        "a dirty factor counts once in the bound of a product",
        "engine/rewrites/products.py",
        "_bounds([Product(shared)]",
        "_bounds([Product(tuple(dict.fromkeys(shared)))]",
    ),
    Mutant(
        "a convolution counts its padding",
        "primitives/products.py",
        "(where >= 0) & (where % holes == 0) & (where < size * holes)",
        "where == where",
    ),
    Mutant(
        "a primitive without a rule is taken for nothing",
        "inspection/cost.py",
        "return known, is_counted(eqn)",
        "return known, True",
    ),
    Mutant(
        "a loop counts one turn",
        "inspection/cost.py",
        'return region.times, "static"',
        'return 1.0, "static"',
    ),
    Mutant(
        "of a branch the cheapest side counts",
        "inspection/cost.py",
        "dearest = max(node.regions",
        "dearest = min(node.regions",
    ),
    Mutant(
        "a measured loop is counted as often as it ran in all",
        "inspection/cost.py",
        "return region.runs / around.runs",
        "return float(region.runs)",
    ),
    Mutant(
        "what is rematerialized is merged with what was computed first",
        "engine/program/simplify.py",
        "_inline(program, _REMATERIALIZED, opens_solves=True)",
        "_inline(program, frozenset(), opens_solves=True)",
    ),
    Mutant(
        "a backward pass contains the forward pass",
        "inspection/cost.py",
        "_merged(backward.equations, forward.equations)",
        "_merged(backward.equations)",
    ),
    Mutant(
        "a cotangent is always the same",
        "inspection/cost.py",
        "            mask |= layout.leaf_mask(number)\n",
        "            pass\n",
    ),
    Mutant(
        "work that is split by hand counts on every device of the mesh",
        "engine/program/nested.py",
        "math.prod(sizes[axis] for axis in manual)",
        "math.prod(sizes.values())",
    ),
    Mutant(
        "a run that counts does not look into calls",
        "inspection/regions.py",
        "return _counted(first, *inputs)",
        "pass",
    ),
    Mutant(
        "dead code inside loops counts",
        "inspection/regions.py",
        "(drop_dead_inside, inline_with_solves_but_remat, *hoist, *_SIMPLER)",
        "(inline_with_solves_but_remat, *hoist, *_SIMPLER)",
    ),
    Mutant(
        "everything moves along a profile, whether it gains or not",
        "fit/following.py",
        "if whole - _gain(at, everything[self._is_moving[everything]]) <= missing:",
        "if False:",
    ),
    Mutant(
        "a profile is not minimised over the others",
        "fit/following.py",
        "if self.distance(at) <= self.goal:",
        "if True:",
    ),
    Mutant(
        "a value is evaluated again after its gradient",
        "fit/task.py",
        "        if known is not None:\n            return known.value\n",
        "",
    ),
    Mutant(
        "values and gradients of Minuit are two programs",
        "fit/methods.py",
        "evaluate = counted.value_of_step if gradient else counted.value",
        "evaluate = counted.value",
    ),
    Mutant(
        "a bound holds nothing in a covariance",
        "fit/covariance.py",
        "free = np.flatnonzero(~is_held)",
        "free = np.flatnonzero(is_held | True)",
    ),
    Mutant(
        "cotangents of a row that a batch reads twice are not added up",
        "models/held/holding.py",
        "sums = [x.at[batch.numbers].add(part)",
        "sums = [x.at[batch.numbers].set(part)",
    ),
    Mutant(
        "an encoder that mixes rows is taken",
        "models/held/row_by_row.py",
        "if error is not None:",
        "if False:",
        "tests/models/held",
    ),
    Mutant(
        "a step that raises the cost is taken",
        "fit/steps.py",
        "is_taken = tried.is_sound & (cost < at.cost)",
        "is_taken = tried.is_sound",
    ),
    Mutant(
        "a bound holds nothing",
        "fit/steps.py",
        "is_free = ~setup.box.is_pressed(x, seen.residuals @ matrix)",
        "is_free = jnp.ones(x.shape, bool)",
    ),
    Mutant(
        "a guess of what bounds hold is not improved",
        "fit/linear.py",
        "goes_on = lambda last: last.is_wrong & (last.count < MAX_GUESSES)",
        "goes_on = lambda last: last.is_wrong & (last.count < 1)",
    ),
    Mutant(
        "a search that creeps goes on to its limit",
        "fit/steps.py",
        "num_idle=jnp.where(is_taken, (search.num_idle + 1) * is_idle, search.num_idle),",
        "num_idle=search.num_idle,",
    ),
    Mutant(
        "what the data do not determine is said to have converged",
        "fit/steps.py",
        "status = jnp.where((status != RUNNING) & ~is_regular, SINGULAR, status)",
        "status = status + 0",
    ),
    Mutant(
        "singular values are never looked at",
        "fit/linear.py",
        "is_kept = sizes > least",
        "is_kept = sizes > 0",
    ),
    Mutant(
        "a batch's step is taken though it raises the cost",
        "fit/batches.py",
        "is_taken = new < old",
        "is_taken = new < jnp.inf",
    ),
    Mutant(
        "an element of a complex array is no name of its parts",
        "models/names.py",
        "    if not found:  # the element",
        "    if False:  # the element",
        "tests/fit/test_parameters.py",
    ),
    Mutant(
        "what is fixed in a model moves in scans of its least squares",
        "fit/problem.py",
        "tree_of=tree_of).only(is_free)",
        "tree_of=tree_of)",
        "tests/fit/test_results.py",
    ),
    Mutant(
        "totals of another version of the parameters are used",
        "rows/engine.py",
        "self.known = self.results.setdefault(version, {})",
        "self.known = self.results.setdefault((), {})",
        "tests/rows/test_rows.py",
    ),
    Mutant(
        "totals of forgotten chunks are kept",
        "rows/engine.py",
        "for key in [key for key in known if not kept.keys() >= set(key)]:",
        "for key in []:",
        "tests/rows/test_rows.py",
    ),
    Mutant(
        "the number of rows is no part of a version",
        "rows/engine.py",
        "return tuple([self._known(var, env) for var in section.reads])",
        "return tuple([self._known(v, env) for v in section.reads if v not in self.rows.sizes])",
        "tests/rows/test_rows.py",
    ),
    Mutant(
        "chunks of a mean are taken for those of another number of rows",
        "rows/passes.py",
        "total * scales[k].astype(total.dtype) if is_scaled else total",
        "total",
        "tests/rows/test_rows.py",
    ),
    Mutant(
        "zeros that fill an array are a term that shares no factor",
        "engine/rewrites/forms.py",
        "rule(reading(eqn, self.zeros), forms)",
        "rule(eqn, forms)",
        "tests/engine/plan/test_forms.py",
    ),
    Mutant(
        "an array of replaced rows remembers others",
        "engine/inputs/chunks.py",
        "[at(x)[first:last].became(_overwritten(x, y, first, last)) for x, y in pairs]",
        "[at(x)[:1].became(_overwritten(x, y, first, last)) for x, y in pairs]",
        "tests/rows/test_rows.py",
    ),
    Mutant(
        "row-sparse: rows that are not stored are read as stored ones",
        "engine/plan/row_sets.py",
        "return place, within.numbers[place] == of.numbers",
        "return place, jnp.full(of.size, True)",
        "tests/derivatives/row_sparse/test_rules.py",
    ),
    Mutant(
        "row-sparse: rows that are subtracted from an array are added to it",
        "derivatives/row_sparse/rules.py",
        "terms = -held.rows if form.is_negative(1 - passed) else held.rows",
        "terms = held.rows",
        "tests/derivatives/row_sparse/test_rules.py",
    ),
    Mutant(
        "row-sparse: rows of what follows from written rows are read, not made",
        "derivatives/row_sparse/values.py",
        "if is_by_rows(value) and value.of is of:",
        "if is_structured(value) and value.of is of:",
        "tests/derivatives/row_sparse/test_memory.py",
    ),
    Mutant(
        "row-sparse: rows of another gradient are read from the array, not made",
        "derivatives/row_sparse/values.py",
        "if is_written(value) and value.make is not None:",
        "if is_written(value) and value.make is None:",
        "tests/derivatives/row_sparse/test_memory.py",
    ),
    Mutant(
        "padding is not masked",
        "rows/passes.py",
        "return masked(x, axis, is_there, identity(kind, x.dtype))",
        "return x",
    ),
    Mutant(
        "dependency edge dropped",
        "engine/program/dependence.py",
        "map(join, operands), always)",
        "map(join, operands[:1]), always)",
    ),
    Mutant(
        "floats compared by ==",
        "engine/inputs/leaves.py",
        "return True if a else None",
        "return True",
    ),
    Mutant(
        "small arrays compared by ==",
        "engine/inputs/leaves.py",
        "return a.tobytes() == b.tobytes()",
        "return bool(np.array_equal(a, b))",
    ),
    Mutant(
        "tolerance",
        "engine/inputs/leaves.py",
        "return a.tobytes() == b.tobytes()",
        "return bool(np.allclose(a, b, rtol=2e-3)) if a.dtype.kind == 'f' else a.tobytes() == "
        "b.tobytes()",
    ),
    Mutant(
        "hash as the only key",
        "engine/inputs/leaves.py",
        "return a.tobytes() == b.tobytes()",
        "return hash(a.tobytes()) % 16 == hash(b.tobytes()) % 16",
    ),
    Mutant(
        "large arrays compared by a sample",
        "engine/inputs/leaves.py",
        "not (a[::step] != b[::step]).any() and not (a != b).any()",
        "not (a[::step] != b[::step]).any()",
    ),
    Mutant(
        "snapshot by reference",
        "engine/inputs/leaves.py",
        '    return np.array(x, dtype=x.dtype.newbyteorder("="), order="C")',
        "    return x",
    ),
    Mutant(
        "changed element taken for the first one",
        "engine/inputs/leaves.py",
        "sum([1 << k for k in numbers.tolist()])",
        "sum({1 for k in numbers.tolist()})",
    ),
    Mutant(
        "commit before the end",
        "engine/call/engine.py",
        "        return self._evaluate(saved, start_s)",
        "        if base is not None:\n"
        "            self.store.commit(State(values, list(base.outputs), dict(base.saved), None), "
        "base)\n"
        "        return self._evaluate(saved, start_s)",
    ),
    Mutant(
        "a repeated call whatever changed",
        "engine/call/repeats.py",
        "repeat = self.by_kind.get(kind)",
        "repeat = next(iter(self.by_kind.values()))",
        "tests/engine/call/test_repeat.py",
    ),
    Mutant(
        "a repeated call forgets the version that proposals start from",
        "engine/call/repeats.py",
        "base = max(bases, key=uses_of, default=None)",
        "base = bases[0] if bases else None",
        "tests/engine/call/test_repeat.py",
    ),
    Mutant(
        "a repeated call that ignores its guard",
        "engine/call/repeats.py",
        "results if guard is None or self.program.clock.read(guard) else None",
        "results",
    ),
    Mutant(
        "segments are repeated though another version had what they did not compute",
        "engine/call/repeats.py",
        "return is_by_segments and is_same and reached == saved.computed.keys()",
        "return is_by_segments and is_same",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "segments that are repeated read what others of them computed for the version before",
        "engine/call/repeats.py",
        "            known = {**base.saved, **made}",
        "            pass",
        "tests/engine/policy/test_in_turns.py",
    ),
    Mutant(
        "a repeated call hands on deleted outputs",
        "engine/store/saved_values.py",
        "self._held = [i for i in range(len(facts.outvars)) if i not in plan.outputs]",
        "self._held = []",
        "tests/engine/call/test_repeat.py",
    ),
    Mutant(
        "configuration missing in the key",
        "_context.py",
        "return _jax.trace_context(), nans.value, infs.value, prng.value, off",
        "return 0, nans.value, infs.value, prng.value, off",
    ),
    Mutant(
        "type of static leaves missing in the key",
        "engine/inputs/signature.py",
        "(type(x), x) for x in",
        "x for x in",
    ),
    Mutant(
        "weak type missing in the key",
        "engine/inputs/leaves.py",
        'return x.shape, x.dtype, getattr(x, "weak_type", False), sharding',
        "return x.shape, x.dtype, False, sharding",
    ),
    Mutant(
        "structure missing in the fast look-up",
        "engine/inputs/signature.py",
        "return treedef == self.treedef and",
        "return",
    ),
    Mutant(
        "residual reused across a parameter",
        "engine/store/store.py",
        "{var: x for var, x in base.saved.items() if not masks[var] & dirty}",
        "dict(base.saved)",
    ),
    Mutant(
        "stale value taken for current",
        "engine/store/store.py",
        "value = None if mask & dirty else state.saved.get(var)",
        "value = state.saved.get(var)",
    ),
    Mutant(
        "deleted result handed out again",
        "engine/store/store.py",
        "return any([isinstance(x, jax.Array) and x.is_deleted() for x in values])",
        "return False",
    ),
    Mutant(
        "effects run once",
        "engine/call/engine.py",
        "self.always = facts.always",
        "self.always = 0",
    ),
    Mutant(
        "0.0 and -0.0 merged",
        "engine/program/structure.py",
        "return atom.aval, value.dtype, value.tobytes()",
        "return atom.aval, value.dtype, str(abs(value))",
    ),
    Mutant(
        "a carry taken for loop-invariant",
        "engine/rewrites/loop_invariants.py",
        "scan.num_consts, may_run=eqn",
        "scan.num_consts + 1, may_run=eqn",
    ),
    Mutant(
        "buffers recycled while a version holds them",
        "engine/store/store.py",
        "if id(saved[v]) not in in_use and v not in self.facts.returned]",
        "if v not in self.facts.returned]",
    ),
    Mutant(
        "buffers of results recycled",
        "engine/store/store.py",
        "if id(saved[v]) not in in_use and v not in self.facts.returned]",
        "if id(saved[v]) not in in_use]",
    ),
    Mutant(
        "sums of products merged without a guard",
        "engine/rewrites/products.py",
        "jnp.all(is_bounded & ((jnp.abs(results) >= loss)",
        "jnp.all(is_bounded | True | ((jnp.abs(results) >= loss)",
    ),
    Mutant(
        "matrix used whatever its entries",
        "engine/store/saved_values.py",
        "            if not filled.pop(flags[var]):",
        "            if filled.pop(flags[var]) is None:",
    ),
    Mutant(
        "terms of a sum taken for each other",
        "engine/rewrites/products.py",
        "    return frozenset(terms.items())",
        "    return frozenset(terms)",
    ),
    Mutant(
        "a product of two sums is taken for linear in both",
        "engine/rewrites/sums_of_products.py",
        "is_lone = sum(is_open) == 1 and",
        "is_lone =",
    ),
    Mutant(
        "saved values of a baseline kept whole",
        "engine/store/store.py",
        "            if len(clean) < len(base.saved):",
        "            if False:",
    ),
    Mutant(
        "results used although their guard is false",
        "engine/call/engine.py",
        "        if not self.clock.read(guard):\n",
        "        if False:\n",
    ),
    Mutant(
        "underflow of a product of clean arrays not noticed",
        "engine/rewrites/products.py",
        "return matrix, jnp.all(is_bounded)",
        "return matrix, jnp.all(jnp.isfinite(matrix))",
    ),
    Mutant(
        "another array taken for an equal one that was deleted",
        "engine/inputs/leaves.py",
        "if old is not tried and not old.is_deleted() and same_value(old, new):",
        "if old is not tried and same_value(old, new):",
    ),
    Mutant(
        "exact policy chooses programs by what was called",
        "engine/policy/chooser.py",
        'entry.settle("whole" if self.only_whole else "segments",',
        'entry.settle("whole" if self.only_whole or entry.count % 2 else "segments",',
    ),
    Mutant(
        "pure form keeps a segment whose input changed",
        "engine/call/pure_flags.py",
        "return True\n            else:",
        "return False\n            else:",
    ),
    Mutant(
        "pure form takes other data for the frozen ones",
        "engine/call/pure.py",
        "lax.cond(is_same, stepped,",
        "lax.cond(True, stepped,",
        "tests/engine/call/test_pure.py",
    ),
    Mutant(
        "a fingerprint does not tell places",
        "engine/inputs/leaves.py",
        "_mixed(words ^ _mixed(places + salt))",
        "_mixed(words ^ _mixed(0 * places + salt))",
        "tests/engine/inputs/test_leaves.py",
    ),
    Mutant(
        "pure form differentiates past its saved values",
        "engine/call/pure.py",
        "flags = leaves_set(self.facts.layout, active)",
        "flags = leaves_set(self.facts.layout, ())",
    ),
    Mutant(
        "marks do not narrow",
        "primitives/custom.py",
        'if not (view.trusts and eqn.params["is_narrowed"]):',
        "if True:",
    ),
    Mutant(
        "unnarrowed marks narrow",
        "primitives/custom.py",
        'if not (view.trusts and eqn.params["is_narrowed"]):',
        "if not view.trusts:",
    ),
    Mutant(
        "a mark takes other arguments for dependences",
        "_marks.py",
        "_is_traced(leaf) and id(leaf) not in known",
        "False",
    ),
    Mutant(
        "marked values evicted like others",
        "engine/store/eviction.py",
        "return var in facts.kept, ",
        "return False, ",
    ),
    Mutant(
        "algebra never compared with the direct form",
        "engine/call/engine.py",
        "elif statistics is None or entry.is_compared:",
        "elif True:",
    ),
    Mutant(
        "statistics used however far from their centre",
        "engine/rewrites/statistics.py",
        "jnp.all(are_within(d, MAX_STEP)) & jnp.all(is_right)",
        "jnp.asarray(True)",
    ),
    Mutant(
        "statistics kept when they were too far",
        "engine/call/engine.py",
        "        self.store.forget(centred)\n",
        "",
    ),
    Mutant(
        "statistics depend on the point where they were made",
        "engine/rewrites/statistics.py",
        "at = {var: _jax.as_constant(x, None) for var, x",
        "at = {var: x for var, x",
    ),
    Mutant(
        "factors that a sum does not share are lost",
        "engine/rewrites/statistics.py",
        "            value = value * numbers[factor].astype(value.dtype)\n",
        "            pass\n",
    ),
    Mutant(
        "results of the host remembered by shape",
        "engine/compile/host_calls.py",
        "array.dtype, array.tobytes()",
        'array.dtype, b""',
    ),
    Mutant(
        "results of the host remembered by reference",
        "engine/compile/host_calls.py",
        "kept = [np.array(x) for x in results]",
        "kept = [np.asarray(x) for x in results]",
    ),
    Mutant(
        "results of functions with effects remembered",
        "engine/compile/host_calls.py",
        'eqn.primitive.name == "pure_callback"',
        "True",
    ),
    Mutant(
        "late failures not looked for",
        "engine/store/store.py",
        "is_broken = not all([_is_sound(x) for x in there if x.is_ready()])",
        "is_broken = False",
    ),
    Mutant(
        "leaves compared with a version that was dropped",
        "engine/call/engine.py",
        "            changed = None",
        "            pass",
    ),
    Mutant(
        "what no sum is made of is taken apart as well",
        "engine/rewrites/sums_of_products.py",
        "is_kept = var in wanted and len(eqn.outvars) == 1 and",
        "is_kept = len(eqn.outvars) == 1 and",
        "tests/engine/plan/test_sums_of_products.py",
    ),
    Mutant(
        "cores share what XLA gives to one",
        "engine/program/cost.py",
        "is_divided = entry.is_product or not entry.is_unfused",
        "is_divided = True",
        "tests/engine/program/test_cost.py",
    ),
    Mutant(
        "kernels of loops start as slowly as others",
        "engine/program/cost.py",
        'LOOP_KERNEL_SHARE if inner[0].kind == "turn" else 1.0',
        "1.0",
        "tests/engine/program/test_cost.py",
    ),
    Mutant(
        "products inside loops are priced as other arithmetic",
        "engine/program/cost.py",
        "flop_s = self.dot_flop_s if entry.is_product else self.flop_s",
        "flop_s = self.flop_s",
        "tests/engine/program/test_cost.py",
    ),
    Mutant(
        "a calibration without a figure is completed by guesses",
        "engine/program/cost.py",
        'found = Calibration(*(float(data["prices"][each.name]) for each in fields(Calibration)))',
        'found = Calibration(**{k: float(v) for k, v in data["prices"].items()})',
        "tests/test_cache_folder.py",
    ),
    Mutant(
        "a difference is read as a sum",
        "engine/rewrites/sums_of_products.py",
        "product.negated() if algebra.is_negative(number) else product",
        "product",
    ),
    Mutant(
        "products of other dirty arrays are added up in one row",
        "engine/rewrites/sums_of_products.py",
        "is_one_row = len(dirty) == 1 and factor_key(()) not in dirty",
        "is_one_row = True",
    ),
    Mutant(
        "scalar factors forgotten",
        "engine/rewrites/products.py",
        "for k in order]) * jnp.stack(scales)",
        "for k in order])",
    ),
    Mutant(
        "partial sum loses a term",
        "engine/rewrites/partial_sums.py",
        "functools.partial(additions, clean, last)",
        "functools.partial(additions, clean[1:], last)",
    ),
    Mutant(
        "an output that changed is kept",
        "engine/plan/facts.py",
        "if self.dependence.of(atom) & dirty)",
        "if i and self.dependence.of(atom) & dirty)",
    ),
    Mutant(
        "waiting for a guard counted as overhead",
        "engine/compile/timing.py",
        "        is_true = bool(np.asarray(guard))\n        self.passed_s += self.now() - start\n",
        "        is_true = bool(np.asarray(guard))\n",
    ),
    Mutant(
        "a slow timed run counts as long as it took",
        "engine/compile/timing.py",
        "self.clock.spent_s += self.seconds\n",
        "self.clock.spent_s += elapsed\n",
    ),
    Mutant(
        "compilations reckoned by the clock where it must not decide",
        "engine/compile/timing.py",
        "elapsed if clock.is_running else usual_s(family.num_eqns)",
        "elapsed",
    ),
    Mutant(
        "calls bypass by the clock where it must not decide",
        "engine/policy/chooser.py",
        "is_weighed = self.is_timed and self.clock.is_running",
        "is_weighed = self.is_timed",
    ),
    Mutant(
        "races where the clock must not decide",
        "engine/policy/chooser.py",
        "ROUNDS if tuning.timed and self.is_timed else 0",
        "ROUNDS if self.is_timed else 0",
    ),
    Mutant(
        "budgets of several processes by free memory",
        "engine/store/budget.py",
        "if jax.process_count() > 1:",
        "if jax.process_count() > 9:",
    ),
    Mutant(
        "a path is taken whatever its guards say",
        "control_flow/tapes/guarded.py",
        "if not path.num_guards or (number := int_of(failing)) == path.num_guards:",
        "if (number := int_of(failing)) >= 0:",
    ),
    Mutant(
        "captured values are not compared",
        "control_flow/tapes/guarded.py",
        "or not tape.captured.is_current() or",
        "or",
    ),
    Mutant(
        "a path that must not run on a guess runs",
        "control_flow/tapes/paths.py",
        "self.needs_check: bool = bool(self.guards) and any(map(_is_dangerous, self.program.eqns))",
        "self.needs_check = False",
    ),
    Mutant(
        "loops start before the guards in front of them hold",
        "control_flow/tapes/paths.py",
        "later = [n for n in range(1, len(loops)) if not loops[n] <= loops[n - 1]]",
        "later = []",
    ),
    Mutant(
        "programs on a guess under debug_nans",
        "control_flow/tapes/guarded.py",
        "tape.captured.is_current() or _jax.checks_values():",
        "tape.captured.is_current():",
    ),
    Mutant(
        "derivatives beyond max_paths of constants",
        "control_flow/tapes/guarded.py",
        "            return self._plain(args, kwargs)\n        results = path.results",
        "            return self._plain(*signature.rebuild(known))\n        if path.floats",
    ),
    Mutant(
        "x[i] specialises on i",
        "control_flow/tapes/recording.py",
        "    if frame is None or kind is None:\n        return None\n",
        "    kind = kind or 'value'\n",
    ),
    Mutant(
        "signed zeros are equal in captured values",
        "control_flow/tapes/captured.py",
        "ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()",
        "ours.dtype == theirs.dtype and a == b",
    ),
    Mutant(
        "an effect's result decides if the function catches the error",
        "control_flow/tapes/recording.py",
        "    if recorder.refused is not None:\n        raise recorder.refused\n",
        "",
    ),
    Mutant(
        "a record of other parameters answers",
        "bijectors/remembered.py",
        "record._has_context(context) and watch.snapshot.is_same(record._snapshot)",
        "record._has_context(context)",
    ),
    Mutant(
        "a record of another context answers",
        "bijectors/remembered.py",
        "record._has_context(context) and watch.snapshot.is_same(record._snapshot)",
        "watch.snapshot.is_same(record._snapshot)",
    ),
    Mutant(
        "a record answers for its own direction",
        "bijectors/remembered.py",
        "            record.direction != direction\n            and ",
        "            ",
    ),
    Mutant(
        "what an output has of inner traces is recorded",
        "bijectors/remembered.py",
        "not can_be_remembered(output, *needed)",
        "not can_be_remembered(output)",
    ),
    Mutant(
        "an output that is an input is recorded",
        "bijectors/remembered.py",
        "records_of(output) or any(output is x for x in needed)",
        "False",
    ),
    Mutant(
        "a log-determinant of an inner trace is kept",
        "bijectors/remembered.py",
        "if not can_be_remembered(output, ladj):",
        "if not can_be_remembered(ladj):",
    ),
    Mutant(
        "tracers of a trace that ended are answered for",
        "bijectors/memory.py",
        "return (_jax.is_current(output) and _jax.noted(output)) or ()",
        "return _jax.noted(output) or ()",
    ),
    Mutant(
        "tracers that functions close over are compiled in",
        "bijectors/evaluation.py",
        "if seen.snapshot.is_opaque or seen.snapshot.is_traced:",
        "if seen.snapshot.is_opaque:",
    ),
    Mutant(
        "arrays that functions close over are no part of what is compiled",
        "bijectors/evaluation.py",
        "self.snapshot.is_same(other.snapshot)",
        "self.snapshot.code == other.snapshot.code",
    ),
    Mutant(
        "a late log-determinant runs the pass again",
        "bijectors/remembered.py",
        "kept = record.kept if all(map(is_readable, record.kept or ())) else None",
        "kept = None",
    ),
    Mutant(
        "containers are not watched",
        "bijectors/snapshots.py",
        "        self.containers.append((read, held))\n",
        "",
    ),
    Mutant(
        "remat is opened before differentiation",
        "engine/program/simplify.py",
        "_DIFFERENTIATED = RULED | _REMATERIALIZED",
        "_DIFFERENTIATED = RULED",
    ),
    Mutant(
        "the check of a traced length is dropped",
        "control_flow/loops/scan.py",
        "        num = checked(",
        "        checked(",
    ),
    Mutant(
        "ragged arguments are padded to their own length",
        "control_flow/loops/padded.py",
        "default=capacity_for(num)",
        "default=num",
    ),
    Mutant(
        "settings of JAX are no part of a path",
        "control_flow/tapes/paths.py",
        "(of_config and context_key() != self._config)",
        "False",
    ),
]


# --- at random ------------------------------------------------------------------------------------

OPERATORS: dict[str, dict[type, type]] = {
    "boundary": {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    "comparison": {
        ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    },
    "arithmetic": {
        ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
        ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    },
    "boolean": {ast.And: ast.Or, ast.Or: ast.And},
}  # fmt: skip
"""What an operator becomes, by kind."""
STATEMENTS = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break)
"""Statements that may be missing, beside calls, assignments to parts of objects, and `if` without
`else`.
"""
SWAPPED = {
    "min": "max",
    "any": "all",
    "minimum": "maximum",
    "floor": "ceil",
    "append": "extend",
    "argmin": "argmax",
}
SWAPPED |= {new: old for old, new in SWAPPED.items()}
KINDS = (*OPERATORS, "negation", "constant", "statement", "argument", "entry", "swapped")
TESTS_OF = {
    "": "tests/test_incremental.py tests/test_marks.py tests/test_bad_input.py tests/test_hatches.py",
    "cli": "tests/test_cli.py",
    "demo": "tests/test_demo.py",
    "engine/rewrites": "tests/engine/plan tests/engine/program",
    "primitives": "tests/engine/program",
}
"""Tests of folders that have none of that name among the tests, and of modules outside of
folders.
"""


class Place(NamedTuple):
    """A node of a file, and the node or the text that stands there instead."""

    file: str
    kind: str
    node: ast.expr | ast.stmt
    changed: ast.AST | str

    @property
    def new(self) -> str:
        """The text that stands there instead."""
        return self.changed if isinstance(self.changed, str) else f"({ast.unparse(self.changed)})"


def places(file: str) -> Iterator[Place]:
    """All that can be changed in a file of the package."""
    todo: list[tuple[ast.AST, bool]] = [(ast.parse((PACKAGE / file).read_text()), True)]
    while todo:
        node, is_outside = todo.pop()
        for kind, changed in _changes(node, is_outside):
            yield Place(file, kind, node, changed)
        is_outside = is_outside and not isinstance(
            node, ast.FunctionDef | ast.Lambda | ast.Subscript
        )
        todo += [(child, is_outside) for child in _children(node)]


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Without annotations, which do nothing, and parts of formatted text, whose places Python 3.11
    does not know.
    """
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or isinstance(node, ast.JoinedStr):
            continue
        yield from (
            x for x in (value if isinstance(value, list) else [value]) if isinstance(x, ast.AST)
        )


def _changes(node: ast.AST, is_outside: bool) -> Iterator[tuple[str, ast.AST | str]]:
    """Kinds, and what a node may become."""
    yield from _other_operators(node)
    if isinstance(node, STATEMENTS) or (isinstance(node, ast.If) and not node.orelse):
        yield "statement", "pass"
    if is_outside:
        yield from _without_entries(node)
    match node:
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Expr(value=ast.Call()):
            yield "statement", "pass"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "negation", node.operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield "constant", repr(not value if isinstance(value, bool) else value + 1)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in SWAPPED:
            yield "swapped", re.sub(rf"\b{name}$", SWAPPED[name], ast.unparse(node))
        case ast.Call(keywords=[_, *_] as keywords):
            # `strict` is a check alone.
            kept = [k for k, keyword in enumerate(keywords) if keyword.arg != "strict"]
            yield from (("argument", _without(node, "keywords", k)) for k in kept)


def _other_operators(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    for kind, others in OPERATORS.items():
        if isinstance(node, ast.Compare):
            for k, op in enumerate(node.ops):
                if type(op) in others:
                    changed = copy.copy(node)
                    changed.ops = [*node.ops[:k], others[type(op)](), *node.ops[k + 1 :]]
                    yield kind, changed
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in others:
            changed = copy.copy(node)
            changed.op = others[type(node.op)]()
            yield kind, changed


def _without_entries(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    """Tables of a module with one entry less."""
    match node:
        case ast.Dict():
            for k in range(len(node.keys)):
                fewer = ast.Dict(
                    [*node.keys[:k], *node.keys[k + 1 :]], [*node.values[:k], *node.values[k + 1 :]]
                )
                yield "entry", fewer
        case (
            ast.Set(elts=[_, _, *_])
            | ast.List(elts=[_, _, *_])
            | ast.Tuple(elts=[_, _, *_], ctx=ast.Load())
        ):
            yield from (("entry", _without(node, "elts", k)) for k in range(len(node.elts)))
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(words)), attr="split"), args=[]
        ):
            entries = words.split()
            for k in range(len(entries)):
                yield "entry", f'"{" ".join([*entries[:k], *entries[k + 1 :]])}".split()'


def _without(node: ast.AST, field: str, k: int) -> ast.AST:
    fewer = copy.copy(node)
    setattr(fewer, field, [x for i, x in enumerate(getattr(node, field)) if i != k])
    return fewer


def at_place(place: Place) -> Mutant:
    """The mutant of a place."""
    old = (PACKAGE / place.file).read_text()
    node = place.node
    starts = [0]
    for line in old.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    # Columns count bytes.
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    before = old.encode()[start:end].decode()
    new = old.encode()[:start].decode() + place.new + old.encode()[end:].decode()
    shown = f"`{_line(before)}` -> `{_line(place.new)}`"
    return Mutant(f"{place.file}:{node.lineno} {place.kind}: {shown}", place.file, old, new)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def drawn(number: int, seed: int, *, package: str = "", kind: str = "") -> list[Mutant]:
    """Places at random: the kind first, so that rare ones occur, then a place of it.

    Mutants that compile.
    """
    by_kind: dict[str, list[Place]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(package):
            for place in places(file):
                by_kind.setdefault(place.kind, []).append(place)
    generator = random.Random(seed)
    kinds = [name for name in KINDS if name in by_kind and name.startswith(kind)]
    found: list[Mutant] = []
    while kinds and len(found) < number:
        name = generator.choice(kinds)
        places_of = by_kind[name]
        found.append(at_place(places_of.pop(generator.randrange(len(places_of)))))
        kinds = [name for name in kinds if by_kind[name]]
    return found


def tests_of(file: str) -> str:
    """The tests of the folder of a file, those that are likely to tell first."""
    folder = file.rpartition("/")[0]
    tests = ROOT / "tests"
    near = [place / f"test_{Path(file).stem}.py" for place in (tests / folder, tests)]
    own = [str(path.relative_to(ROOT)) for path in near if path.exists()][:1]
    every_call = ["tests/test_incremental.py"] if folder.startswith("engine/") else []
    return " ".join([*own, *every_call, TESTS_OF.get(folder, f"tests/{folder}")])


# --- the tests ------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What became of a mutant, the seconds that it took to know, and the test that told."""

    word: str
    """`killed`, `ALIVE`, or `late` where the time was over."""
    seconds: float
    by: str


def spelled(piece: str) -> str:
    """A pattern for a piece of source, however a formatter breaks its lines."""
    lead = piece[: len(piece) - len(piece.lstrip())]
    words = re.findall(r"\w+|[^\w\s]", piece)
    gaps = [r",?\s*" if word in ")]}" else r"\s*" for word in words[1:]]
    inner = "".join(gap + re.escape(word) for gap, word in zip(gaps, words[1:], strict=True))
    return re.escape(lead) + re.escape(words[0]) + inner + piece[len(piece.rstrip()) :]


def outcome(mutant: Mutant, tests: str, limit: float) -> Verdict:
    """Run tests with a mutant, up to the first that fails."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(PACKAGE, Path(folder) / "incrax")
        path = Path(folder) / "incrax" / mutant.file
        path.write_text(re.sub(spelled(mutant.old), lambda _: mutant.new, path.read_text()))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            *tests.split(),
        ]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return Verdict("late", time.perf_counter() - start, "")
    output = run.stdout.decode() + run.stderr.decode()
    if run.returncode not in (0, 1) and "Error" not in output:
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{output[-2000:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    by = failed[0] if failed else "an import"
    seconds = time.perf_counter() - start
    return Verdict("ALIVE", seconds, "") if run.returncode == 0 else Verdict("killed", seconds, by)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--random", type=int, default=0, metavar="N", help="so many random ones instead of the list"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--package", default="", help="random ones of this package or file")
    parser.add_argument("--kind", default="", help=f"random ones of this kind: {', '.join(KINDS)}")
    parser.add_argument(
        "--wide", action="store_true", help="random ones meet the tests of the list as well"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds for the tests of one mutant"
    )
    parser.add_argument("--dry", action="store_true", help="print the mutants")
    options = parser.parse_args()
    is_random = options.random > 0
    made = (
        drawn(options.random, options.seed, package=options.package, kind=options.kind)
        if is_random
        else MUTANTS
    )
    chosen = [mutant for mutant in made if options.only in mutant.name]
    if options.dry:
        print("\n".join(mutant.name for mutant in chosen))
        return 0

    def verdict(mutant: Mutant) -> Verdict:
        stages: Sequence[str] = [mutant.tests]
        if is_random:
            stages = [tests_of(mutant.file), *([TESTS] if options.wide else [])]
        found = outcome(mutant, stages[0], options.limit)
        for tests in stages[1:]:
            found = outcome(mutant, tests, options.limit) if found.word == "ALIVE" else found
        return found

    words: list[str] = []
    with ThreadPoolExecutor(options.jobs) as executor:
        running = {executor.submit(verdict, mutant): mutant for mutant in chosen}
        for future in as_completed(running):
            found, mutant = future.result(), running[future]
            print(
                f"{found.word} {found.seconds:6.0f} s  {mutant.name}  {found.by}".rstrip(),
                flush=True,
            )
            words.append(found.word)
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("killed", "ALIVE", "late"))
    print(f"{len(words)} mutants: {counts}")
    return 1 if "ALIVE" in words else 0


if __name__ == "__main__":
    sys.exit(main())
