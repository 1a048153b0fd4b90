"""Rows that are read when they are evaluated: results of plain JAX, in bounded memory, read again
only where needed.
"""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MINIMAL, same

import incrax
from incrax import _progress as progress
from incrax.engine.inputs.chunks import Chunk

CHUNK = 1024
N = 6 * CHUNK + 100
DATA = {
    "x": np.random.default_rng(1).normal(size=(N, 3)),
    "y": np.random.default_rng(2).uniform(0.5, 2.0, N),
}
T = {"w": np.array([0.1, -0.2, 0.3]), "s": 0.5}


def loss(t, d):
    return jnp.mean(jnp.log(d["y"] + jnp.exp(d["x"] @ t["w"] * t["s"])))


@pytest.fixture
def maps(tmp_path):
    """The data in files."""
    found = {}
    for name, values in DATA.items():
        found[name] = np.memmap(tmp_path / name, values.dtype, "w+", shape=values.shape)
        found[name][:] = values
        found[name].flush()
        found[name] = np.memmap(tmp_path / name, values.dtype, "r", shape=values.shape)
    return found


class Counting:
    """A source that counts what it reads and, if asked, weighs the arrays of chunks that are alive
    when it does.
    """

    def __init__(self, data=DATA, *, is_weighing=False):
        self.data = data
        self.is_weighing = is_weighing
        self.num_rows = len(data["y"])
        self.reads = []
        self.alive_bytes = 0

    def read(self, start, stop):
        if self.is_weighing:
            self.alive_bytes = max(self.alive_bytes, alive_bytes())
        self.reads.append((start, stop))
        return {name: x[start:stop] for name, x in self.data.items()}


@pytest.mark.parametrize(
    "transform",
    [lambda f: f, jax.value_and_grad, jax.hessian],
    ids=["value", "gradient", "hessian"],
)
def test_streamed_rows_give_the_results_of_plain_jax(maps, transform):
    fun = transform(loss)
    f = incrax.incremental(fun, tuning=MINIMAL)
    rows = incrax.Rows.from_memmap(maps, chunk_rows=CHUNK)
    for t in (T, {**T, "s": 0.6}):
        same(f(t, rows), jax.jit(fun)(t, DATA), factor=1024)
    assert f.stats.chunks_run == 14


def test_nothing_is_read_again_while_nothing_changed():
    source = Counting()
    f, rows = incrax.incremental(loss), incrax.Rows.from_source(source, chunk_rows=CHUNK)
    saved = f(T, rows)
    count = len(source.reads)
    assert f(T, rows) is saved
    assert len(source.reads) == count == 1 + 7


def test_going_back_to_earlier_parameters_reads_nothing():
    source = Counting()
    f, rows = incrax.incremental(loss), incrax.Rows.from_source(source, chunk_rows=CHUNK)
    f(T, rows)
    f({**T, "s": 0.6}, rows)
    count = len(source.reads)
    f(T, rows)
    assert len(source.reads) == count


def test_rows_appended_to_a_stream_leave_the_file_alone():
    source = Counting()
    f, rows = (
        incrax.incremental(jax.value_and_grad(loss)),
        incrax.Rows.from_source(source, chunk_rows=CHUNK),
    )
    f(T, rows)
    count = len(source.reads)
    more = rows.append({name: x[:10] for name, x in DATA.items()})
    found = f(T, more)
    assert len(source.reads) == count
    whole = {name: np.concatenate([x, x[:10]]) for name, x in DATA.items()}
    same(found, jax.jit(jax.value_and_grad(loss))(T, whole))


def test_a_replaced_part_of_a_stream_is_held_in_memory():
    rows = incrax.Rows.from_source(Counting(), chunk_rows=CHUNK)
    new = {name: x[:5] for name, x in DATA.items()}
    replaced = rows.replace(CHUNK + 3, new)
    assert [chunk.is_streamed for chunk in replaced._chunks] == [True, False, *[True] * 5]
    f = incrax.incremental(loss)
    same(f(T, replaced), jax.jit(loss)(T, replaced.tree()))


def alive_bytes():
    """Bytes of arrays with as many rows as a chunk: those of chunks, and constants of compiled
    programs.
    """
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays() if x.shape[:1] == (CHUNK,))


def test_about_two_chunks_are_alive_at_a_time():
    """One may still be in use when the next is read; then there are two."""
    source = Counting(is_weighing=True)
    f, rows = (
        incrax.incremental(jax.value_and_grad(loss)),
        incrax.Rows.from_source(source, chunk_rows=CHUNK),
    )
    f(T, rows)
    constants = alive_bytes()
    source.alive_bytes = 0
    for s in (0.6, 0.7):
        f({**T, "s": s}, rows)
    chunk_bytes = CHUNK * (3 + 1) * 8
    assert source.alive_bytes - constants <= chunk_bytes
    assert alive_bytes() == constants


def test_streamed_chunks_save_partial_results_only(maps):
    f, rows = incrax.incremental(loss), incrax.Rows.from_memmap(maps, chunk_rows=CHUNK)
    for s in (0.5, 0.6, 0.7, 0.8):
        f({**T, "s": s}, rows)
    assert f.stats.saved_bytes == 0
    assert not f._traces.latest.by_chunk


def test_functions_of_sums_read_the_stream_twice():
    source = Counting()
    fun = lambda s, d: jnp.sum((d["y"] - jnp.mean(d["y"])) ** 2) * s
    f, rows = incrax.incremental(fun), incrax.Rows.from_source(source, chunk_rows=CHUNK)
    same(f(2.0, rows), jax.jit(fun)(2.0, DATA))
    assert len(source.reads) == 1 + 2 * 7


def test_per_row_results_of_streams_are_refused(maps):
    f = incrax.incremental(lambda t, d: d["y"] * t["s"])
    with pytest.raises(incrax.errors.MixedRowsError, match="with an entry for each row"):
        f(T, incrax.Rows.from_memmap(maps, chunk_rows=CHUNK))
    assert f.stats.chunks_run == 0


def test_an_error_while_reading_leaves_what_was_read(maps):
    source = Counting()
    f, rows = incrax.incremental(loss), incrax.Rows.from_source(source, chunk_rows=CHUNK)
    read = source.read

    def failing(start, stop):
        if start == 3 * CHUNK:
            raise OSError("disk")
        return read(start, stop)

    source.read = failing
    with pytest.raises(OSError, match="disk"):
        f(T, rows)
    source.read = read
    same(f(T, rows), jax.jit(loss)(T, DATA))
    assert f.stats.chunks_run == 3 + 1 + 4


def test_files_in_another_byte_order_are_read_right(tmp_path):
    array = np.memmap(tmp_path / "y", ">f8", "w+", shape=(N,))
    array[:] = DATA["y"]
    rows = incrax.Rows.from_memmap(array, chunk_rows=CHUNK)
    same(
        incrax.incremental(lambda s, y: s * jnp.sum(y))(2.0, rows),
        2.0 * jnp.sum(jnp.asarray(DATA["y"])),
    )


# --- progress -------------------------------------------------------------------------------------


class Bar:
    """Stands for rich's progress bar."""

    made: list[Bar] = []

    def __init__(self, **options):
        self.options, self.completed, self.is_stopped = options, 0, False
        Bar.made.append(self)

    def start(self): ...

    def add_task(self, title, total):
        self.title, self.total = title, total
        self.task_ids = [0]
        return 0

    def update(self, _, completed):
        self.completed = completed

    def stop(self):
        self.is_stopped = True


@pytest.mark.parametrize(("patience", "is_terminal"), [(0.0, True), (0.0, False), (1e9, True)])
def test_a_bar_is_shown_for_what_takes_long_on_a_terminal(monkeypatch, maps, patience, is_terminal):
    monkeypatch.setattr("rich.progress.Progress", Bar)
    monkeypatch.setattr(progress, "PATIENCE_S", patience)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    Bar.made.clear()
    incrax.incremental(loss)(T, incrax.Rows.from_memmap(maps, chunk_rows=CHUNK))
    if patience or not is_terminal:
        assert not Bar.made
        return
    (bar,) = Bar.made
    assert bar.completed == bar.total == 7
    assert bar.is_stopped


def test_rows_in_memory_show_no_bar(monkeypatch):
    monkeypatch.setattr("rich.progress.Progress", Bar)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    Bar.made.clear()
    incrax.incremental(loss)(T, incrax.Rows(DATA, chunk_rows=CHUNK))
    assert not Bar.made


def test_chunks_of_a_stream_hold_nothing():
    rows = incrax.Rows.from_source(Counting(), chunk_rows=CHUNK)
    assert all(isinstance(chunk, Chunk) and chunk._arrays is None for chunk in rows._chunks)
