"""Inputs, and chains, over four devices: what `test_sharding.py` runs, in a process of its own.

By hand: XLA_FLAGS=--xla_force_host_platform_device_count=4 python -m pytest tests/sharding_cases.py
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL, check, identical, primitives_run, ran_by, same
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from likelihood_cases import NUM_ROWS, PARAMS, ROWS, likelihood, scan_points

import incrax
import incrax.samplers
from incrax import _jax
from incrax.engine.inputs.placement import plain_sharding
from incrax.samplers import compiled_sweeps

pytestmark = pytest.mark.optimized

POLICIES = {
    "minimal": {"tuning": MINIMAL},
    "fast": {"tuning": EAGER},
    "untimed": {"tuning": incrax.Tuning(timed=False, hot_after=1)},
    "default": {},
    "exact": {"policy": "exact"},
    "exact and minimal": {"policy": "exact", "tuning": MINIMAL},
}


FUNCTION = jax.value_and_grad(likelihood)


@pytest.fixture(params=["auto", "explicit"])
def mesh(request):
    assert jax.device_count() == 4
    axis_type = AxisType.Auto if request.param == "auto" else AxisType.Explicit
    return Mesh(np.array(jax.devices()), ("rows",), axis_types=(axis_type,))


@pytest.fixture
def rows(mesh):
    return jax.device_put(ROWS, NamedSharding(mesh, PartitionSpec("rows")))


@contextlib.contextmanager
def nothing_gathered():
    """Whatever reads the elements of an array that no device holds whole fails."""
    read = _jax.ArrayImpl._value

    def guarded(array):
        assert array.is_fully_replicated, f"{array.aval} was gathered"
        return read.fget(array)

    _jax.ArrayImpl._value = property(guarded)
    try:
        yield
    finally:
        _jax.ArrayImpl._value = read


def call(f, *args):
    """The result, waited for (XLA on CPU runs but some tens of programs with collectives at a
    time).
    """
    with nothing_gathered():
        return jax.block_until_ready(f(*args))


def saved_arrays(f):
    return [x for state in f._traces.latest.engine.store.states for x in state.saved.values()]


def is_over_rows(x, mesh):
    spec = plain_sharding(x.sharding).spec
    return x.sharding.mesh == mesh and "rows" in spec


# --- the tests can fail ---------------------------------------------------------------------------


def test_a_gathering_is_noticed(rows):
    replicated = jax.device_put(np.arange(3.0), NamedSharding(rows.sharding.mesh, PartitionSpec()))
    with nothing_gathered():
        assert float(replicated[1]) == 1.0
        for read in (np.asarray, np.array, jax.device_get, lambda x: x.tolist()):
            with pytest.raises(AssertionError, match="gathered"):
                read(rows + 1)


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["minimal", "fast", "untimed", "default", "exact"])
def test_results_are_those_of_one_device_and_nothing_is_gathered(policy, rows):
    ours, plain = incrax.incremental(FUNCTION, **POLICIES[policy]), jax.jit(FUNCTION)
    alone = jnp.asarray(ROWS)
    for params in scan_points(2):
        value = call(ours, params, rows)
        same(jax.tree.map(np.asarray, value), jax.tree.map(np.asarray, plain(params, alone)))
        check(ours)
    assert ours.stats.unchanged


@pytest.mark.parametrize("policy", ["minimal", "fast", "exact"])
def test_elements_have_the_bits_of_one_device(policy, rows):
    """Where no sum is split over devices and nothing is fused into a multiply-add, the bits are the
    same.
    """

    def elements(a, b, x):
        return jnp.floor(x * 64) * a, jnp.sum(jnp.floor(x * 64).astype(int)) * b

    f = incrax.incremental(elements, **POLICIES[policy])
    for a, b in [(1.5, 2), (2.5, 2), (2.5, 3), (1.5, 3)]:
        identical(call(f, a, b, rows), elements(jnp.float64(a), b, jnp.asarray(ROWS)))


def test_equal_inputs_have_equal_bits_with_the_exact_policy_whatever_came_before(rows):
    f, anew = (incrax.incremental(FUNCTION, policy="exact") for _ in range(2))
    for params in scan_points(2):
        anew.clear()
        identical(call(f, params, rows), call(anew, params, rows))
    assert f.stats.filled < anew.stats.filled


@pytest.mark.parametrize("policy", ["minimal", "exact"])
def test_outputs_are_sharded_as_those_of_jit(policy, rows):
    def outputs(a, b, c, x):
        return 2 * c, jnp.full(NUM_ROWS, b) * a, x * b, jnp.sum(x) * a

    f, plain = incrax.incremental(outputs, **POLICIES[policy]), jax.jit(outputs)
    for args in [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (2.0, 3.0, 1.0), (2.0, 3.0, 4.0)]:
        for x, y in zip(call(f, *args, rows), plain(*args, rows), strict=True):
            assert x.sharding.device_set == y.sharding.device_set
            assert x.committed == y.committed
            assert x.size == NUM_ROWS or x.sharding.is_equivalent_to(y.sharding, x.ndim)
    assert x.sharding.is_fully_replicated


# --- what runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["minimal", "exact", "exact and minimal"])
def test_counters_are_those_of_one_device(policy, mesh, rows):
    """Of the value: JAX derives a gradient with an equation or two more where types name a mesh. What
    the fast policy has saved depends on prices, which are those of so many devices.
    """
    over_rows, alone = (incrax.incremental(likelihood, **POLICIES[policy]) for _ in range(2))
    local = jnp.asarray(ROWS)
    for params in scan_points(3):
        call(over_rows, params, rows)
        alone(params, local)
        # Programs on several devices have no others of their family.
        assert over_rows.stats.compiles >= alone.stats.compiles
        assert replace(over_rows.stats, compiles=0) == replace(alone.stats, compiles=0)
    assert (
        0
        < alone.stats.ran
        < alone.stats.calls * len(alone._traces.latest.engine.facts.program.eqns)
    )


def test_only_what_changed_runs(rows):
    f = incrax.incremental(FUNCTION, tuning=MINIMAL)
    call(f, PARAMS, rows)
    call(f, {**PARAMS, "share": 0.31}, rows)
    assert "exp" not in primitives_run(f)
    assert "log" in primitives_run(f)
    call(f, {**PARAMS, "share": 0.31, "mu": 0.3}, rows)
    assert primitives_run(f).count("exp") == 1
    assert ran_by(f, {**PARAMS, "share": 0.31, "mu": 0.3}, rows) == 0
    assert f.stats.unchanged == 1


def test_a_scalar_constant_that_is_moved_to_the_mesh_stays_a_constant(rows):
    """JAX derives a gradient with one; as a value of its own it would need a program."""
    assert "reshard" in str(jax.make_jaxpr(FUNCTION)(PARAMS, rows))
    f = incrax.incremental(FUNCTION, tuning=MINIMAL)
    call(f, PARAMS, rows)
    assert "reshard" not in primitives_run(f)


# --- saved values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["minimal", "fast", "exact"])
def test_saved_values_stay_over_the_devices(policy, mesh, rows):
    """All that read what is sharded; where types say how values are, those of which they say it."""
    f = incrax.incremental(FUNCTION, **POLICIES[policy])
    for params in scan_points(2):
        call(f, params, rows)
    engine = f._traces.latest.engine
    of_rows = engine.layout.leaf_mask(len(engine.layout.offsets) - 1)
    pairs = [pair for state in engine.store.states for pair in state.saved.items()]
    pairs = [(var, x) for var, x in pairs if engine.facts.mask(var) & of_rows]
    is_auto = AxisType.Auto in mesh.axis_types
    large = [
        x
        for var, x in pairs
        if x.size >= NUM_ROWS and (is_auto or _jax.explicit_sharding(var.aval) is not None)
    ]
    assert large
    assert all(is_over_rows(x, mesh) for x in large)
    assert all(x.sharding.device_set == set(jax.devices()) for _, x in pairs)


@pytest.mark.parametrize("policy", ["minimal", "exact"])
def test_a_saved_value_that_depends_on_no_sharded_input_is_on_all_devices(policy, mesh, rows):
    def noisy(key, a, x):
        return jnp.sum(a * jax.random.normal(key, x.shape) * x)

    f, plain = incrax.incremental(noisy, **POLICIES[policy]), jax.jit(noisy)
    for seed, a in [(1, 1.0), (1, 2.0), (2, 2.0), (2, 3.0)]:
        key = jax.random.key(seed)
        same(call(f, key, a, rows), plain(key, a, rows))
    large = [x for x in saved_arrays(f) if x.size >= NUM_ROWS]
    assert large
    assert all(x.sharding.device_set == set(jax.devices()) for x in saved_arrays(f))


def test_an_array_that_is_closed_over_stays_sharded(rows):
    if AxisType.Explicit in rows.sharding.mesh.axis_types:
        pytest.skip("JAX itself refuses to close over an array with a sharding in its type")
    few = jax.device_put(np.arange(8.0), rows.sharding)
    f = incrax.incremental(lambda a, b: (jnp.sum(a * rows), jnp.sum(few) * b), tuning=MINIMAL)
    for a, b in [(1.0, 1.0), (2.0, 1.0), (2.0, 2.0)]:
        left, right = call(f, a, b)
        np.testing.assert_allclose([left, right], [a * ROWS.sum(), 28.0 * b], rtol=1e-12)
        assert left.sharding.device_set == right.sharding.device_set == set(jax.devices())
    whole = f._traces.latest.engine.whole.executable
    assert any(x is rows for x in whole.constants)  # it is an argument, and not embedded


@pytest.mark.parametrize("policy", POLICIES)
def test_what_one_device_holds_and_is_closed_over_binds_no_result(policy):
    """As under `jax.jit`: a result that was bound in mid-job would fit no array elsewhere."""
    first, other, last = jax.devices()[:3]
    key = jax.device_put(jax.random.split(jax.random.key(1), 30), other)
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    everywhere = jax.device_put(ROWS, NamedSharding(mesh, PartitionSpec()))
    for data in (jax.device_put(ROWS, first), jax.device_put(ROWS, other), everywhere):

        def fun(a, b, data=data):
            noise = jax.vmap(jax.random.normal)(key)
            return jnp.sum(jnp.exp(data * a)) * b, jnp.sum(jnp.exp(data)), jnp.sum(noise) * b

        f, plain = incrax.incremental(fun, **POLICIES[policy]), jax.jit(fun)
        for a, b in [
            (1.0, 1.0),
            (1.0, 2.0),
            (1.0, 3.0),
            (2.0, 3.0),
            (jax.device_put(2.0, last), 1.0),
        ]:
            for ours, theirs in zip(f(a, b), plain(a, b), strict=True):
                same(ours, theirs)
                assert (ours.sharding, ours.committed) == (theirs.sharding, theirs.committed)


def test_the_budget_is_that_of_each_device(rows):
    f = incrax.incremental(likelihood, policy="exact")
    call(f, PARAMS, rows)
    call(f, PARAMS, jnp.asarray(ROWS))
    over_rows, alone = (traced.engine.planner.budget_bytes for traced in f._traces.table.values())
    assert over_rows == 4 * alone


# --- what is a change -----------------------------------------------------------------------------


def test_sharded_inputs_are_compared_by_identity(rows):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    value = call(f, PARAMS, rows)
    assert call(f, PARAMS, rows) is value
    equal = jax.device_put(ROWS, rows.sharding)
    assert ran_by_call(f, PARAMS, equal) > 0
    assert f.explain().as_dict()["changed"] == {"x": "it is another array than at the baseline"}
    assert call(f, PARAMS, rows) is value
    assert f.stats.unchanged == 2


def ran_by_call(f, *args):
    before = f.stats.ran
    call(f, *args)
    return f.stats.ran - before


def test_another_array_of_rows_is_evaluated(rows):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    for factor in (1.0, 2.0, 0.5):
        other = jax.device_put(factor * ROWS, rows.sharding)
        same(call(f, PARAMS, other), jax.jit(likelihood)(PARAMS, other))


def test_a_replicated_array_is_compared_by_the_bits_of_one_copy(mesh, rows):
    def on_all(values):
        return jax.device_put(np.array(values), NamedSharding(mesh, PartitionSpec()))

    f = incrax.incremental(
        lambda t, x: t[0] * jnp.sum(jnp.exp(-t[1] * x**2)) + t[2], tuning=MINIMAL
    )
    value = call(f, on_all([1.0, 0.5, 2.0]), rows)
    assert call(f, on_all([1.0, 0.5, 2.0]), rows) is value
    call(f, on_all([1.0, 0.5, 3.0]), rows)
    assert list(f.explain().as_dict()["changed"]) == ["t[2]"]
    assert "exp" not in primitives_run(f)
    assert f.stats.traces == 1


def test_moving_an_input_to_another_sharding_is_a_change(mesh, rows):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    value = call(f, PARAMS, rows)
    moved = jax.device_put(rows, NamedSharding(mesh, PartitionSpec()))
    same(call(f, PARAMS, moved), value)
    assert f.stats.unchanged == 0
    assert f.stats.traces == 2
    assert all(x.sharding.is_fully_replicated for x in saved_arrays(f))
    assert call(f, PARAMS, rows) is value
    assert f.stats.unchanged == 1


def test_moving_an_input_to_another_device_is_a_change():
    def outputs(a, b, x):
        return 2 * a, jnp.sum(jnp.exp(b) * x)

    f = incrax.incremental(outputs, tuning=MINIMAL)
    for number in (1, 2, 1):
        device = jax.devices()[number]
        x = jax.device_put(ROWS, device)
        for a, b in [(1.0, 1.0), (2.0, 1.0), (2.0, 1.5)]:
            results = f(a, b, x)
            assert all(
                y.sharding == SingleDeviceSharding(device) for y in (*results, *saved_arrays(f))
            )
            same(results, jax.jit(outputs)(a, b, x))
    assert f.stats.traces == 2


def test_a_sharding_that_says_no_more_is_the_same(mesh):
    table = np.arange(24.0).reshape(8, 3)
    f = incrax.incremental(lambda a, x: a * jnp.sum(x), tuning=MINIMAL)
    for spec in (PartitionSpec("rows"), PartitionSpec("rows", None)):
        call(f, 2.0, jax.device_put(table, NamedSharding(mesh, spec)))
    assert f.stats.traces == 1


def test_a_deleted_input_is_named(rows):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    other = rows * 2
    call(f, PARAMS, other)
    other.delete()
    with pytest.raises(incrax.errors.DeletedInputError, match="`x`"):
        f(PARAMS, other)


def test_frozen_data_keep_their_sharding(rows):
    data = incrax.frozen(rows)
    assert data.sharding == rows.sharding
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    assert call(f, PARAMS, data) is call(f, PARAMS, data)


# --- around a call --------------------------------------------------------------------------------


def test_reports_gather_nothing(rows):
    f = incrax.incremental(FUNCTION, tuning=MINIMAL)
    call(f, PARAMS, rows)
    moved = {**PARAMS, "share": 0.31}
    with nothing_gathered():
        assert list(f.explain(moved, rows).as_dict()["changed"]) == ["params['share']"]
        ran = ran_by_call(f, moved, rows)
        f.clear()
        assert ran < ran_by_call(f, moved, rows)
        assert "x" in str(f.deps())
        call(f, PARAMS, rows)
        f.warm_up(PARAMS, rows, changing=["params['mu']"])
        same(call(f.fresh, moved, rows), call(f, moved, rows))
        assert f.stats.saved_bytes


def shifted(a, b, x):
    return a + jnp.exp(jnp.sin(b * x))


def test_verification_compares_in_place(rows):
    f = incrax.incremental(shifted, tuning=MINIMAL)
    with incrax.verify():
        for a, b in [(1.0, 1.0), (2.0, 1.0), (2.0, 2.0)]:
            call(f, a, b, rows)
        for state in f._traces.latest.engine.store.states:
            state.saved = {var: x * 1.5 for var, x in state.saved.items()}
        with pytest.raises(incrax.StaleResultError):
            call(f, 3.0, 2.0, rows)


@pytest.mark.parametrize("a", [3.0, np.inf])
def test_verification_in_place_tells_nan_from_numbers_and_infinity(a, rows):
    f = incrax.incremental(shifted, tuning=MINIMAL)
    with incrax.verify():
        call(f, np.nan, 1.0, rows)
        call(f, -np.inf, 1.0, rows)
        for state in f._traces.latest.engine.store.states:
            state.saved = {var: x * np.nan for var, x in state.saved.items()}
        with pytest.raises(incrax.StaleResultError, match="by inf"):
            call(f, a, 1.0, rows)


def test_a_mesh_in_use_is_part_of_the_configuration(mesh, rows):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    value = call(f, PARAMS, rows)
    with jax.set_mesh(mesh):
        same(call(f, PARAMS, rows), value)
        call(f, {**PARAMS, "share": 0.2}, rows)
        assert "exp" not in primitives_run(f)
    assert call(f, PARAMS, rows) is value


# --- the pure form --------------------------------------------------------------------------------


def test_the_pure_form_carries_sharded_values(mesh, rows):
    f = incrax.incremental(likelihood, tuning=MINIMAL)
    with nothing_gathered():
        state, step = f.pure(PARAMS, rows)

        @jax.jit
        def chain(state, x, shares):
            def propose(state, share):
                return step(state, {**PARAMS, "share": share}, x, changed=["params['share']"])

            return jax.lax.scan(propose, state, shares)

        shares = np.linspace(0.2, 0.4, 5)
        last, values = jax.block_until_ready(chain(state, rows, shares))
    for share, value in zip(shares, values, strict=True):
        same(value, jax.jit(likelihood)({**PARAMS, "share": share}, jnp.asarray(ROWS)))
    for carried in (state, last):
        large = [x for x in jax.tree.leaves(carried.saved) if x.size >= NUM_ROWS]
        assert large
        assert all(is_over_rows(x, mesh) for x in large)


def test_the_pure_form_compares_sharded_inputs_in_the_program(rows):
    f = incrax.incremental(FUNCTION, tuning=MINIMAL)
    state, step = f.pure(PARAMS, rows)
    step = jax.jit(step)
    for factor, share in [(1.0, 0.3), (1.0, 0.2), (2.0, 0.2), (2.0, 0.2)]:
        params, x = {**PARAMS, "share": share}, rows * factor
        with nothing_gathered():
            state, out = jax.block_until_ready(step(state, params, x))
        same(out, jax.jit(FUNCTION)(params, x))


# --- host values beside sharded ones --------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [float, np.float64, jnp.float64, lambda x: np.full(600, x)], ids=str
)
def test_values_of_the_host_may_stand_beside(make, rows):
    def total(a, b, x):
        return jnp.sum(a) * jnp.sum(jnp.exp(jnp.sum(b) * x / 600))

    f, plain = incrax.incremental(total, tuning=FAST), jax.jit(total)
    for number in range(40):
        a, b = make(1.0 + number), make(0.5 + number // 10)
        same(call(f, a, b, rows), plain(a, b, rows))


def test_two_dimensions_over_two_axes():
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
    sharding = NamedSharding(mesh, PartitionSpec("rows", "columns"))
    x = jax.device_put(ROWS.reshape(128, 128), sharding)

    def product(key, a, x):
        return a * jnp.sum(jnp.tanh(x @ x) * jax.random.normal(key, x.shape))

    f, plain = incrax.incremental(product, tuning=MINIMAL), jax.jit(product)
    for seed, a in [(1, 1.0), (1, 2.0), (2, 2.0)]:
        same(call(f, jax.random.key(seed), a, x), plain(jax.random.key(seed), a, x))
    large = [y for y in saved_arrays(f) if y.shape == x.shape and y.dtype == x.dtype]
    assert large
    assert all(y.sharding == sharding for y in large)


@pytest.mark.parametrize("is_bound", [False, True], ids=["unbound", "bound"])
def test_results_with_an_entry_for_each_row_are_where_plain_jax_puts_them(is_bound):
    device = jax.devices()[2] if is_bound else None
    fun = lambda a, x: (jnp.sin(x * a), jnp.sum(x * a))
    f, a = incrax.incremental(fun, tuning=MINIMAL), jax.device_put(np.float64(0.7), device)
    rows = incrax.Rows(ROWS[:3000], chunk_rows=1024)
    for part in (ROWS[:0], ROWS[:7]):
        rows = rows.append(part)
        found, expected = f(a, rows), jax.jit(fun)(a, rows.tree())
        same(found, expected, factor=1024)
        assert [x.devices() for x in found] == [x.devices() for x in expected]
        assert [x.committed for x in found] == [x.committed for x in expected]


def test_jacobians_and_hessians_by_sharded_inputs_are_those_of_jax(mesh):
    x = jax.device_put(np.linspace(0.1, 1.0, 40), NamedSharding(mesh, PartitionSpec("rows")))
    elements, total = lambda x: jnp.sin(x) * x, lambda x: jnp.sum(jnp.sin(x) * x)
    alone = jnp.asarray(np.asarray(x))
    same(incrax.jacobian(elements)(x), jax.jacrev(elements)(alone))
    same(incrax.hessian(total)(x), jax.hessian(total)(alone))


# --- chains ---------------------------------------------------------------------------------------

NUM_GROUPS = 20
GROUPS = np.random.default_rng(4).normal(size=(NUM_GROUPS, 30))


def effects(p, y):
    residual = y - p["theta"][:, None] - jnp.array([0.0, 2.0])[p["label"]][:, None]
    prior = jnp.sum((p["theta"] - p["mu"]) ** 2) + p["mu"] ** 2
    return -jnp.sum(jnp.log1p(residual**2)) - 0.5 * prior


START = {"mu": 0.0, "theta": np.zeros(NUM_GROUPS), "label": np.zeros(NUM_GROUPS, int)}


def chains(num_sweeps=12, devices=None, **options):
    updates = {
        "p['mu']": incrax.samplers.Hamiltonian(0.1, 3),
        "p['theta'][*]": incrax.samplers.Walk(),
        "p['label']": incrax.samplers.Categorical(2),
    }
    return incrax.samplers.gibbs(
        effects, START, GROUPS, updates=updates, key=0, num_sweeps=num_sweeps, num_warmup=6,
        chains=6, devices=devices, **options,
    )  # fmt: skip


def test_chains_of_four_devices_are_those_of_one_to_the_bit(monkeypatch):
    expected = chains()
    used = []
    sweeps = compiled_sweeps._sweeps

    def noted(sites, place, *args, **kwargs):
        used.append({x.device for x in jax.tree.leaves((sites, place))})
        return sweeps(sites, place, *args, **kwargs)

    monkeypatch.setattr(compiled_sweeps, "_sweeps", noted)
    found = chains(devices=jax.devices())
    np.testing.assert_array_equal(found.samples, expected.samples)
    np.testing.assert_array_equal(found.log_densities, expected.log_densities)
    assert found.acceptance == expected.acceptance
    assert used[:6] == [{jax.devices()[k % 4]} for k in range(6)]


def test_chains_are_taken_up_on_other_devices(tmp_path):
    file = tmp_path / "chain.npz"
    chains(5, jax.devices(), checkpoint=file)
    chains(8, jax.devices()[2:], checkpoint=file)
    found = chains(checkpoint=file)
    np.testing.assert_array_equal(found.samples, chains().samples)


def walk(sites, state, keys):
    """A chain of one's own, site by site."""

    def step(carry, turn):
        state, value = carry
        i, key = turn
        move, accept = jax.random.split(key)
        row = sites.inputs(state)["p['theta']"][i] + 0.3 * jax.random.normal(move)
        delta, proposed = sites.look(state, {"p['theta']": (i, row)})
        taken = jnp.log(jax.random.uniform(accept)) < proposed - value
        return (sites.settle(state, delta, taken), jnp.where(taken, proposed, value)), None

    turns = jnp.arange(len(keys)) % NUM_GROUPS, keys
    return jax.lax.scan(step, (state, sites.look(state, {})[1]), turns)[0]


def scanned(theta, y):
    def step(carry, row):
        return 0.5 * carry + jnp.sin(row[0]) * jnp.sum(jnp.cos(row[1:])), carry

    last, before = jax.lax.scan(step, 0.1, jnp.concatenate([theta[:, None], y], 1))
    return last + jnp.sum(before**2)


def branched(theta, y):
    share = jax.lax.switch(jnp.int32(theta[0] > 0), [lambda: 1.0, lambda: 2.0])
    return share * jnp.sum(jax.lax.cond(theta[1] > 0, jnp.sin, jnp.cos, theta)[:, None] * y)


def looped(theta, y):
    y = jnp.asarray(y)
    found = jax.lax.fori_loop(0, 5, lambda k, x: jnp.sin(x) + y[k, 0], theta)
    return jnp.sum(found) + jnp.max(theta) + jnp.cumsum(jnp.sort(theta))[2]


def of_matrices(theta, y):
    outer = jax.vmap(lambda t, row: jnp.eye(5) * (2 + t**2) + jnp.outer(row, row))(theta, y)
    return jnp.sum(jnp.linalg.cholesky(outer))


def with_rules(theta, y):
    """A function with a derivative of its own, one that is compiled, and a recomputed one."""
    held = jax.checkpoint(lambda x: jnp.sin(x) * jnp.exp(x))(theta)
    return jnp.sum(jax.nn.relu(theta)[:, None] * y) + jnp.sum(jax.nn.softmax(held))


@pytest.mark.parametrize("fun", [scanned, branched, looped, of_matrices, with_rules])
def test_a_shard_map_that_checks_what_varies(mesh, fun):
    """Each device moves another row: by number, found, by many candidates, with its slope, and by
    the pure form.
    """
    rng = np.random.default_rng(2)
    theta, rows, y = rng.normal(size=6), rng.normal(size=4), rng.normal(size=(6, 5))
    numbers = jnp.arange(4)
    frozen = incrax.frozen(y)
    state, sites = incrax.incremental(fun).sites(theta, y, moves=["theta[*]"])
    at_first, step = incrax.incremental(fun).pure(theta, frozen)

    def on_device(sites, state, at_first, number, row):
        i, x = number[0], row[0]
        moved = sites.inputs(state)["theta"].at[i].set(x)
        delta, by_number = sites.look(state, {"theta": (i, x)})
        settled = sites.settle(state, delta, by_number < jnp.inf)
        found = sites.look(state, {"theta": moved}, max_rows=2)[1]
        slope = jax.grad(lambda x: sites.look(state, {"theta": (i, x)})[1])(x)
        each = jax.vmap(lambda x: sites.look(state, {"theta": (i, x)})[1])(jnp.stack([x, x]))
        values = (
            by_number,
            sites.look(settled, {})[1],
            found,
            *each,
            step(at_first, moved, frozen)[1],
        )
        return jnp.stack([*values, slope])[None]

    own = PartitionSpec("rows")
    everywhere = PartitionSpec()
    over_rows = jax.shard_map(
        on_device, mesh=mesh, in_specs=(everywhere, everywhere, everywhere, own, own), out_specs=own
    )
    sharded = jax.device_put((numbers, rows), NamedSharding(mesh, own))
    found = jax.jit(over_rows)(sites, state, at_first, *sharded)
    for number, row, values in zip(numbers, rows, found, strict=True):
        value, slope = jax.value_and_grad(
            lambda x, i=number: fun(jnp.asarray(theta).at[i].set(x), y)
        )(row)
        np.testing.assert_allclose(values, [*[value] * 6, slope], rtol=1e-12)


@pytest.mark.parametrize("how", ["sharded state", "shard_map"])
def test_chains_of_ones_own_over_a_mesh_are_those_of_one_device(mesh, how):
    """Up to rounding: on one device a look is one kernel, elsewhere XLA may join operations otherwise."""
    state, sites = incrax.incremental(effects).sites(START, GROUPS, moves=["p['theta'][*]"])
    states = jax.tree.map(lambda x: jnp.stack([x] * 8), state)
    keys = jax.random.split(jax.random.key(1), (8, 100))
    over_chains = jax.vmap(walk, (None, 0, 0))
    by_chain = PartitionSpec("rows")
    if how == "shard_map":
        over_chains = jax.shard_map(
            over_chains, mesh=mesh, in_specs=(PartitionSpec(), by_chain, by_chain),
            out_specs=by_chain,
        )  # fmt: skip
    sharded = jax.device_put((states, keys), NamedSharding(mesh, by_chain))
    there = jax.device_put(sites, NamedSharding(mesh, PartitionSpec()))
    found = jax.jit(over_chains)(there, *sharded)
    assert len(found[1].sharding.device_set) == 4
    assert found[1].addressable_shards[0].data.shape == (2,)
    expected = [jax.jit(walk)(sites, state, own) for own in keys]
    expected = jax.tree.map(lambda *x: np.stack(x), *expected)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12), found, expected)
