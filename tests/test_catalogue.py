"""The catalogue of awkward inputs and events: each row has tests that hold the behaviour a user
should get.

Rows without a test elsewhere have theirs below. Three rows ask for more than there is, by choice:

- a mark for functions that must run at every call: `io_callback` is one; its value is read at every
  call, and all that follows from it runs;
- an error instead of running effects at every call: effects run, as under `jax.jit`;
- an error above a number of signatures: the oldest is forgotten, with a line in the log.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, MINIMAL, aligned, check, primitives_run, ran_by, same

import incrax

TESTS = Path(__file__).parent

CATALOGUE = {
    "a NaN where the same NaN was: unchanged, nothing runs; it never spoils a later call": """
        properties/test_twins.py::test_the_same_bits_in_another_object_count_as_unchanged
        properties/test_twins.py::test_nan_in_a_parameter_does_not_poison_later_calls
        test_bad_input.py::test_nan_and_infinity_leave_later_gradients_right
        test_bad_input.py::test_nan_element_that_stays_is_not_among_the_changed
    """,
    "0.0 and -0.0: a change": """
        properties/test_twins.py::test_twins_count_as_changed
        test_bad_input.py::test_zero_of_another_sign_is_a_changed_element
        test_bad_input.py::test_signs_of_complex_zeros_count
    """,
    "a NumPy array changed in place, also through a read-only view: noticed, saved values keep "
    "their copy": """
        test_bad_input.py::test_views_follow_an_array_changed_in_place
        test_bad_input.py::test_array_given_another_shape_or_type_in_place
        test_bad_input.py::test_array_overwritten_before_the_result_is_read
        properties/test_twins.py::test_the_snapshot_is_private
        engine/inputs/test_leaves.py::test_a_read_only_view_of_a_writable_array_is_copied_too
    """,
    "frozen data: copied once, then compared by identity": """
        properties/test_twins.py::test_frozen_data_are_compared_by_pointer
        test_bad_input.py::test_a_frozen_array_does_not_see_later_changes
        engine/inputs/test_leaves.py::test_frozen_data_are_the_same_by_identity_only
    """,
    "a JAX array that shares memory with NumPy: trusted, documented, found by `verify`; our copies "
    "are real": """
        test_hatches.py::test_memory_changed_behind_jax_is_found
        test_catalogue.py::test_memory_shared_by_dlpack_and_changed_is_found
        test_catalogue.py::test_the_pages_warn_of_shared_memory
        engine/inputs/test_leaves.py::test_an_array_whose_memory_jax_could_share_is_copied
    """,
    "an input that was donated or deleted: an error that names it; the next call works": """
        test_messages.py::test_donated_input_names_the_argument
        test_messages.py::test_deleted_input
        test_bad_input.py::test_refusing_a_deleted_input_leaves_the_next_call_right
        test_bad_input.py::test_deleting_a_former_input_does_not_disturb_the_next_call
        test_bad_input.py::test_loop_that_donates_its_input_to_the_next_step
    """,
    "a result of ours that was donated or deleted: computed again; what a user holds is never "
    "overwritten": """
        test_bad_input.py::test_result_donated_by_the_caller_is_computed_again
        test_bad_input.py::test_result_deleted_by_the_caller_is_computed_again
        test_bad_input.py::test_result_that_is_an_input_may_be_deleted
        properties/test_recycling.py::test_what_a_user_holds_never_changes
        engine/store/test_store.py::test_a_buffer_that_a_user_holds_is_not_recycled
    """,
    "one array under two arguments: two inputs, one buffer": """
        properties/test_twins.py::test_the_same_array_under_two_arguments_is_two_inputs
        test_bad_input.py::test_one_array_under_two_arguments
        engine/store/test_store.py::test_bytes_are_those_of_distinct_buffers
    """,
    "None, text, functions, enums, dtypes: static; without a hash an error that names them": """
        test_bad_input.py::test_static_leaves_select_traces_of_their_own
        test_messages.py::test_static_leaf_without_a_hash
        test_bad_input.py::test_fresh_function_at_every_call_is_warned_about
    """,
    "1, 1.0 and True, -1 and -2 with one hash: told apart": """
        test_bad_input.py::test_one_as_integer_float_and_boolean_inside_a_container
        engine/inputs/test_signature.py::test_equal_static_values_of_other_types_do_not_share_a_trace
        test_catalogue.py::test_numbers_of_one_hash_are_told_apart
    """,
    "another shape, dtype or weak type: another trace, the old one kept; bounded, and not "
    "silently": """
        test_bad_input.py::test_shapes_and_types_in_turn_keep_their_saved_values
        test_bad_input.py::test_weak_and_strong_scalars_in_turn
        test_bad_input.py::test_more_signatures_than_are_kept
        test_catalogue.py::test_a_new_signature_is_what_the_report_gives_as_the_reason
    """,
    "x64, matrix precision, debugging of NaNs, random bits, no jit, changed between calls: part of "
    "the key": """
        test_bad_input.py::test_x64_is_part_of_the_key
        test_bad_input.py::test_matmul_precision_is_part_of_the_key
        test_bad_input.py::test_debug_nans_is_part_of_the_key
        test_bad_input.py::test_kind_of_random_bits_is_part_of_the_key
        test_bad_input.py::test_implementation_of_new_keys_is_part_of_the_key
        test_bad_input.py::test_results_are_right_without_jit
        test_bad_input.py::test_stricter_rules_refuse_what_was_saved_without_them
        test_stress.py::test_configuration_changed_between_calls
    """,
    "typed and raw keys: told apart, compared by their data": """
        test_bad_input.py::test_keys_of_every_kind_in_turn
        properties/test_twins.py::test_typed_keys_are_compared_by_their_data
    """,
    "tracers: the plain function, nothing stored, a note in the log": """
        test_bad_input.py::test_inside_other_transformations_nothing_is_stored
        test_bad_input.py::test_a_tracer_that_escaped_is_refused_and_not_stored
        test_incremental.py::test_concrete_arguments_inside_a_trace_store_no_tracer
        engine/store/test_store.py::test_a_tracer_in_a_store_breaks_an_invariant
        test_messages.py::test_text_of_the_note_on_calls_that_save_nothing
    """,
    "an exception in mid-update: passes unchanged, the former state is whole, the call counts as "
    "aborted": """
        test_messages.py::test_error_of_the_function_passes_unchanged
        test_bad_input.py::test_a_callback_that_fails_in_mid_update_spoils_nothing
        test_bad_input.py::test_a_failed_update_leaves_saved_results_of_former_inputs
        test_bad_input.py::test_a_trace_that_fails_leaves_the_next_call_right
        test_external_code.py::test_a_code_that_fails_leaves_everything_as_it_was
    """,
    "an interrupt: likewise": """
        test_stress.py::test_interrupts_lose_nothing
    """,
    "an error that comes after the call: values are provisional, and it takes with it what came of "
    "it": """
        test_catalogue.py::test_an_input_that_fails_late_spoils_no_other_call
        test_catalogue.py::test_an_input_that_nothing_reads_may_fail
        test_catalogue.py::test_after_a_late_failure_inputs_are_compared_with_what_is_left
        test_catalogue.py::test_a_frozen_input_that_fails_late_spoils_no_other_call
        engine/store/test_store.py::test_values_whose_computation_failed_are_dropped_and_others_stay
        engine/store/test_store.py::test_a_result_that_tells_of_a_failure_drops_what_is_broken
        engine/inputs/test_leaves.py::test_a_value_that_failed_equals_nothing
    """,
    "no memory left: within the budget always; values go before results": """
        engine/store/test_store.py::test_results_do_not_depend_on_the_budget_and_the_budget_holds
        engine/store/test_store.py::test_a_budget_of_zero_keeps_versions_and_outputs_only
    """,
    "threads: results right, calls end; a function for each is independent": """
        test_stress.py::test_threads_get_right_results_and_end
        test_incremental.py::test_threads_get_right_results
        test_catalogue.py::test_each_thread_may_have_a_function_of_its_own
        test_external_code.py::test_a_code_that_calls_its_own_function_is_an_error_instead_of_a_deadlock
    """,
    "a forked process: starts empty": """
        test_hatches.py::test_a_forked_process_starts_without_values
    """,
    "pickles and copies hold no values": """
        test_hatches.py::test_pickles_hold_the_function_and_its_options_but_no_values
        test_hatches.py::test_decorated_functions_are_pickled_by_name
        test_hatches.py::test_a_copy_has_no_values_and_is_independent
    """,
    "effects: at every call, in order, with all that follows; pure callbacks are trusted": """
        test_bad_input.py::test_prints_appear_at_every_call
        test_bad_input.py::test_io_callbacks_run_at_every_call_and_their_results_count
        test_bad_input.py::test_effects_in_loops_and_branches_keep_their_order_and_number
        test_bad_input.py::test_saved_work_beside_an_effect_is_not_run_again
        test_bad_input.py::test_a_pure_callback_runs_only_where_its_input_changed
        test_catalogue.py::test_a_read_of_the_outside_world_at_every_call
        test_external_code.py::test_the_code_runs_inside_other_things_as_often_as_it_has_new_operands
    """,
    "a function that is not deterministic: `verify` says so": """
        test_hatches.py::test_a_function_that_is_not_deterministic_is_reported_as_such
        test_external_code.py::test_verification_finds_a_code_that_became_another
    """,
    "closed-over values: those of the trace; the report lists arrays with their size": """
        test_bad_input.py::test_captured_values_are_those_of_the_trace_as_under_jit
        inspection/test_explain.py::test_arrays_that_were_closed_over_are_listed_with_their_size
    """,
    "JAX's caches cleared: values stay": """
        test_bad_input.py::test_clearing_the_caches_of_jax_keeps_values_and_results
    """,
    "another device or sharding: another trace; arrays on several devices are compared by "
    "identity, none gathered": """
        engine/inputs/test_leaves.py::test_placement_is_part_of_the_descriptor
        test_catalogue.py::test_a_committed_array_has_a_trace_of_its_own
        test_catalogue.py::test_devices_and_shardings_in_turn
    """,
    "results are ordinary arrays": """
        test_bad_input.py::test_results_are_ordinary_arrays
        test_bad_input.py::test_containers_of_results_belong_to_the_caller
        test_incremental.py::test_deep_copies_of_results_are_plain_arrays
    """,
    "empty arrays, scalars, any order in memory, swapped bytes: taken; objects and masked arrays: "
    "refused by name": """
        test_bad_input.py::test_empty_arrays
        test_bad_input.py::test_scalars_as_arrays_without_axes
        test_bad_input.py::test_memory_layout_is_no_change
        test_bad_input.py::test_byte_swapped_arrays_are_taken
        test_bad_input.py::test_masked_arrays_are_refused
        test_messages.py::test_array_of_a_dtype_without_jax_type
        test_messages.py::test_text_for_a_masked_array
    """,
}


def names_in(path):
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", CATALOGUE)
def test_every_row_has_tests_and_they_exist(row):
    names = [line.split("::") for line in CATALOGUE[row].split()]
    assert names
    assert [
        name for path, name in names if not name.startswith("test_") or name not in names_in(path)
    ] == []


# --- memory that JAX shares with NumPy ------------------------------------------------------------


def shared_by_dlpack():
    """An aligned NumPy array and a JAX array over the same memory."""
    owner = aligned(4096)
    return owner, jax.dlpack.from_dlpack(owner)


def test_memory_shared_by_dlpack_and_changed_is_found():
    owner, x = shared_by_dlpack()
    f = incrax.incremental(lambda a, x: a * jnp.sum(jnp.exp(x)), tuning=MINIMAL)
    f(1.0, x)
    owner[:] = 1.0
    if float(x[0]) == 0.0:
        pytest.skip("this JAX copies")
    assert float(f(2.0, x)) == 2 * 4096
    with pytest.raises(incrax.StaleResultError, match="dlpack"), incrax.verify():
        f(3.0, x)
    same(f(4.0, x), jnp.float64(4 * 4096 * np.e))


def test_the_pages_warn_of_shared_memory():
    page = (TESTS.parent / "docs" / "design" / "change.md").read_text(encoding="utf-8")
    assert "jax.device_put" in page
    assert "dlpack" in page


# --- keys of the table ----------------------------------------------------------------------------


class OneHash(str):
    """Text with the hash of all others."""

    __slots__ = ()

    def __hash__(self):
        return 7


def test_numbers_of_one_hash_are_told_apart():
    assert hash(-1) == hash(-2)
    f = incrax.incremental(lambda x, kind: x * (2.0 if kind == "double" else 3.0), tuning=MINIMAL)
    assert [float(f(n, "double")) for n in (-1, -2, -1)] == [-2.0, -4.0, -2.0]
    assert [float(f(1.0, OneHash(kind))) for kind in ("double", "triple", "double")] == [
        2.0,
        3.0,
        2.0,
    ]


def test_a_new_signature_is_what_the_report_gives_as_the_reason():
    f = incrax.incremental(jnp.sum, tuning=MINIMAL)
    f(np.ones(3))
    f(np.zeros(3))
    assert "first call with this signature" not in str(f.explain())
    f(np.zeros(4))
    assert f.explain().as_dict()["why"] == "first call with this signature"
    f(np.ones(3))
    assert f.explain().as_dict()["why"] != "first call with this signature"


# --- errors that come late ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_failure_is_left_to_the_end():
    """JAX waits at its exit for the last program with a callback; let that be one that works."""
    yield
    jax.jit(lambda x: jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((), np.float64), x))(1.0)


class Late:
    """An array whose computation waits for a word, and then fails."""

    def __init__(self, size):
        self.word = threading.Event()
        pending = SLOW(jnp.ones((700, 700)))
        fail = lambda x: jax.pure_callback(self._fail, jax.ShapeDtypeStruct((size,), np.float64), x)
        try:
            self.array = jax.jit(fail)(pending)
        except jax.errors.JaxRuntimeError as error:
            if "late failure" not in str(error):
                raise
            pytest.skip("this JAX runs the callback before it returns")

    def _fail(self, x):
        self.word.wait(5)
        raise ArithmeticError("late failure")


@jax.jit
def SLOW(x):
    return jax.lax.fori_loop(0, 12, lambda _, x: jnp.sin(x @ x), x)


def fails_late(late, result):
    late.word.set()
    with pytest.raises(Exception, match="late failure"):
        jax.block_until_ready(result)


def weighted(a, x):
    return jnp.sum(a) * jnp.sum(jnp.exp(x)), jnp.sum(jnp.sin(x))


GOOD, X = jnp.ones(5000), jnp.linspace(0.0, 1.0, 5000)
late_ways = pytest.mark.parametrize(
    "options", [{"tuning": EAGER}, {"policy": "exact"}], ids=["eager", "exact"]
)


def prepared(options):
    """Programs that are not waited for any more, and no values."""
    f = incrax.incremental(weighted, **options)
    for _ in range(3):
        for a, x in ((GOOD, X), (GOOD + 1, X), (GOOD, X + 1), (GOOD + 1, X + 2)):
            f(a, x)
        f.clear()
    return f


@late_ways
@pytest.mark.parametrize("place", [0, 1])
def test_an_input_that_fails_late_spoils_no_other_call(place, options):
    f, late = prepared(options), Late(5000)
    args = [GOOD, X]
    args[place] = late.array
    fails_late(late, f(*args))
    for a, x in ((GOOD, X), (GOOD + 1, X), (GOOD, X + 1)):
        same(f(a, x), jax.jit(weighted)(a, x))
    assert f.stats.aborted == 0
    check(f)


@late_ways
def test_after_a_late_failure_inputs_are_compared_with_what_is_left(options):
    """Where an argument is the very object of the version that goes, it is not that of the one that
    stays.
    """
    f, late = prepared(options), Late(5000)
    first, second, bad = incrax.frozen(GOOD), incrax.frozen(GOOD + 1), incrax.frozen(late.array)
    other = X + 1
    f(first, X)
    fails_late(late, f(bad, other))
    same(f(second, other), jax.jit(weighted)(second, other))


@late_ways
def test_an_input_that_nothing_reads_may_fail(options):
    f, late = incrax.incremental(lambda a, x: jnp.sum(jnp.sin(a)), **options), Late(5000)
    f(GOOD, X)
    f.clear()
    late.word.set()
    for x in (late.array, X, late.array, X + 1):
        same(f(GOOD, x), jnp.sum(jnp.sin(GOOD)))


@late_ways
def test_a_frozen_input_that_fails_late_spoils_no_other_call(options):
    f, late = prepared(options), Late(5000)
    frozen = incrax.frozen(late.array)
    f(GOOD, X)
    fails_late(late, f(GOOD, frozen))
    same(f(GOOD, X), jax.jit(weighted)(GOOD, X))
    with pytest.raises(Exception, match="late failure"):
        jax.block_until_ready(f(GOOD, frozen))
    same(f(GOOD + 1, X), jax.jit(weighted)(GOOD + 1, X))


# --- threads, effects, devices --------------------------------------------------------------------


def test_each_thread_may_have_a_function_of_its_own():
    expected = {a: jax.jit(weighted)(GOOD * a, X) for a in range(8)}
    functions = [incrax.incremental(weighted, tuning=MINIMAL) for _ in range(4)]
    errors = []

    def work(function):
        try:
            for a in range(8):
                same(function(GOOD * a, X), expected[a])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not errors
    assert [each.stats.calls for each in functions] == [8] * 4
    assert all("exp" not in primitives_run(each) for each in functions)


def test_a_read_of_the_outside_world_at_every_call():
    """What Salsa calls an untracked read: `io_callback`, and all that follows from it."""
    world = [1.0]
    read = lambda: jax.experimental.io_callback(
        lambda: np.float64(world[0]), jax.ShapeDtypeStruct((), np.float64)
    )
    f = incrax.incremental(
        lambda x: (read() * jnp.sum(jnp.sin(x)), jnp.sum(jnp.exp(x))), tuning=MINIMAL
    )
    first = f(X)
    world[0] = 2.0
    second = f(X)
    assert float(second[0]) == 2 * float(first[0])
    assert "exp" not in primitives_run(f)


def test_a_committed_array_has_a_trace_of_its_own():
    f = incrax.incremental(jnp.sum, tuning=MINIMAL)
    f(X)
    assert ran_by(f, jax.device_put(X, jax.devices()[0])) > 0
    assert f.stats.traces == 2


DEVICES = """
import jax, jax.numpy as jnp, numpy as np, incrax
jax.config.update("jax_enable_x64", True)
first, second = jax.devices()
f = incrax.incremental(lambda a, x: a * jnp.sum(jnp.exp(x)) + x, tuning=incrax.Tuning(planner="minimal"))

def ran(a, x):
    before = f.stats.ran + f.stats.filled
    result = f(a, x)
    np.testing.assert_allclose(result, a * np.sum(np.exp(np.asarray(x))) + np.asarray(x), rtol=1e-14)
    assert result.sharding == x.sharding, (result.sharding, x.sharding)
    return f.stats.ran + f.stats.filled - before

x = np.linspace(0.0, 1.0, 8)
for device in (first, second, first, second):
    ran(2.0, jax.device_put(x, device))
assert f.stats.traces == 2, f.stats
assert ran(2.0, jax.device_put(x, first)) == 0
mesh = jax.make_mesh((2,), ("rows",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
spread = jax.device_put(x, sharding)
ran(2.0, spread)
assert f.stats.traces == 3
assert ran(2.0, spread) == 0
some = ran(3.0, spread)
assert 0 < some < ran(3.0, jax.device_put(x, sharding)), "equal bits in another object: a change, unread"
print("right")
"""


def test_devices_and_shardings_in_turn():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    run = subprocess.run(
        [sys.executable, "-c", DEVICES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout == "right\n", run.stderr
