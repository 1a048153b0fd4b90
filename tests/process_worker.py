"""One of the processes that `test_processes.py` starts: python process_worker.py NUMBER COUNT PORT
OUTPUT.

It holds its share of the rows, evaluates a fit-like sequence, and writes results and counters to
OUTPUT. The clock of every process but the first is erratic, and its memory full: what processes
measure must decide nothing.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from likelihood_cases import NUM_ROWS, PARAMS, ROWS, likelihood, scan_points

import incrax
from incrax.engine.store import budget as limits

POLICIES = {
    "default": {"tuning": incrax.Tuning(compile_s=math.inf, hot_after=1)},
    "minimal": {"tuning": incrax.Tuning(planner="minimal")},
    "exact": {"policy": "exact"},
}


FUNCTIONS = {
    **{name: (likelihood, options) for name, options in POLICIES.items()},
    "gradient": (jax.value_and_grad(likelihood), POLICIES["default"]),
}
EARLY = {name: incrax.incremental(fun, **options) for name, (fun, options) in FUNCTIONS.items()}
"""Made before JAX's runtime starts, as a decorator at the top of a module is."""


def flat(result):
    """A value, or a value and its gradient, as a list of numbers."""
    return [float(x) for x in jax.tree.leaves(result)]


def run_functions(rows, number):
    """Results of the sequence, and counters after each call; the first process alone asks for a
    report.
    """
    found = {}
    for name, f in EARLY.items():
        results, counters = [], []
        for params in scan_points(2):
            results.append(flat(f(params, rows)))
            counters.append(f.stats.as_dict())
            if number == 0:
                str(f.explain(params, rows))
        saved = [x for state in f._traces.latest.engine.store.states for x in state.saved.values()]
        specs = [str(x.sharding.spec) for x in saved if x.size >= NUM_ROWS]
        found[name] = {"results": results, "counters": counters, "specs": specs, "plans": plans(f)}
    return found


def plans(f):
    """What each program loads, runs and saves, in order."""
    chooser = f._traces.latest.engine.chooser
    own = [entry.program.plan for entry in chooser.entries.values() if entry.program is not None]
    return [
        str(plan) for plan in (*own, *map(chooser.segments.plan, chooser.segments.groups.values()))
    ]


def run_identity(rows):
    """Counters after the same object, an equal one, the first again, and a moved one."""
    f = incrax.incremental(likelihood, tuning=incrax.Tuning(planner="minimal"))
    equal = jax.make_array_from_callback(rows.shape, rows.sharding, lambda where: ROWS[where])
    moved = jax.device_put(rows, NamedSharding(rows.sharding.mesh, PartitionSpec()))
    unchanged, values = [], []
    for x in (rows, rows, equal, rows, moved, rows):
        values.append(float(f(PARAMS, x)))
        unchanged.append(f.stats.unchanged)
    return {"unchanged": unchanged, "values": values, "traces": f.stats.traces}


def run_pure(rows):
    """The values of a chain inside `lax.scan`."""
    state, step = incrax.incremental(likelihood).pure(PARAMS, rows)

    @jax.jit
    def chain(state, x, shares):
        def propose(state, share):
            return step(state, {**PARAMS, "share": share}, x, changed=["params['share']"])

        return jax.lax.scan(propose, state, shares)

    return np.asarray(chain(state, rows, np.linspace(0.2, 0.4, 5))[1]).tolist()


def run_verified(rows):
    """Results that are compared with fresh ones in place; then one that is wrong."""
    f = incrax.incremental(
        lambda a, b, x: a * jnp.exp(jnp.sin(b * x)), tuning=incrax.Tuning(planner="minimal")
    )
    data = incrax.frozen(rows)
    with incrax.verify():
        for a in (1.0, 2.0, 3.0):
            f(a, 1.0, data)
        for state in f._traces.latest.engine.store.states:
            state.saved = {var: x * 1.5 for var, x in state.saved.items()}
        try:
            f(4.0, 1.0, data)
        except incrax.StaleResultError as error:
            return str(error).partition(" differs")[0]
    return "not noticed"


def disturb(number):
    """Let time and memory mean nothing in all processes but the first."""
    if number:
        randomness, clock = random.Random(number), [0.0]

        def tick():
            clock[0] += randomness.choice([1e-7, 1e-4, 0.1, 5.0])
            return clock[0]

        time.perf_counter = tick
        limits._free_bytes = lambda: 1e5


def main():
    number, count, port, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    jax.config.update("jax_enable_x64", True)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=number)
    disturb(number)
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    share = NUM_ROWS // count
    own = ROWS[number * share : (number + 1) * share]
    rows = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("rows")), own)
    found = {
        "functions": run_functions(rows, number),
        "identity": run_identity(rows),
        "pure": run_pure(rows),
        "verified": run_verified(rows),
        "processes": jax.process_count(),
        "addressable": rows.is_fully_addressable,
    }
    with open(output, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
