"""The collector is paused while graphs are built, and afterwards as it was before."""

from __future__ import annotations

import gc
import threading

import pytest

from incrax._collection import paused


@paused()
def is_collecting(inner=None):
    return gc.isenabled() or (inner is not None and inner())


def test_it_is_paused_inside_and_runs_afterwards():
    assert not is_collecting()
    assert gc.isenabled()


def test_it_stays_paused_after_an_inner_function_ended():
    assert not is_collecting(is_collecting)
    assert not is_collecting(lambda: is_collecting() or gc.isenabled())
    assert gc.isenabled()


def test_it_runs_after_an_exception():
    with pytest.raises(ZeroDivisionError):
        is_collecting(lambda: 1 / 0)
    assert gc.isenabled()


def test_it_stays_off_where_the_user_switched_it_off():
    gc.disable()
    try:
        assert not is_collecting()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_runs_after_several_threads_whichever_ends_first():
    inside, go = threading.Event(), threading.Event()

    def wait():
        inside.set()
        go.wait(10)

    thread = threading.Thread(target=lambda: is_collecting(wait))
    thread.start()
    inside.wait(10)
    is_collecting()
    go.set()
    thread.join()
    assert gc.isenabled()
