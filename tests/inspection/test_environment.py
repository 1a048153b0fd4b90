"""`environment()`: what is there, and what is known not to work together."""

from __future__ import annotations

import dataclasses
import json

import jax
import pytest

import incrax
from incrax._table import seconds_text
from incrax.inspection import environment as module


def findings(**versions):
    known = {"jax": "0.10.2", "jaxlib": "0.10.2", **versions}
    return [(f.severity, f.seen) for f in module._findings(known)]


def test_versions_devices_and_settings_are_those_of_the_process(monkeypatch):
    monkeypatch.setenv("INCRAX_SOMETHING", "yes")
    found = incrax.environment(measure=False)
    assert found.versions["jax"] == jax.__version__
    assert found.versions["incrax"] == incrax.__version__
    assert len(found.devices) == len(jax.devices())
    assert found.settings["enable_x64"] == "True"
    assert found.variables["INCRAX_SOMETHING"] == "yes"
    assert found.budget_bytes > 0
    assert found.figures == {}


def test_figures_are_positive_and_named():
    figures = incrax.environment().figures
    assert {
        "a call of jax.jit",
        "a call of incremental, nothing changed",
        "reading, per byte",
    } <= set(figures)
    assert all(seconds > 0 for seconds in figures.values())


def test_it_prints_and_is_json():
    found = incrax.environment()
    text = str(found)
    for title in ("versions", "machine", "settings", "measured", "findings"):
        assert title in text
    assert json.loads(json.dumps(found.as_dict()))["is_sound"] is found.is_sound


def test_what_is_tested_has_no_finding():
    assert findings() == []
    assert findings(jax="0.12.0.1", jaxlib="0.12.0") == []


@pytest.mark.parametrize(
    ("versions", "severity", "seen"),
    [
        ({"jax": "0.9.2", "jaxlib": "0.9.2"}, "error", "JAX 0.9.2 is older than 0.10"),
        (
            {"jax": "0.13.0", "jaxlib": "0.13.0"},
            "warning",
            "JAX 0.13.0 is newer than what was tested, 0.10 to 0.12",
        ),
        ({"jax": "0.10.2", "jaxlib": "0.10.1"}, "warning", "jax 0.10.2 with jaxlib 0.10.1"),
    ],
)
def test_versions_that_do_not_fit(versions, severity, seen):
    assert (severity, seen) in findings(**versions)


@pytest.mark.parametrize(
    ("name", "value", "severity", "seen"),
    [
        ("INCRAX_DISABLE", "1", "warning", "INCRAX_DISABLE=1"),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=true", "error", "fast-math"),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math --other=1", "error", "fast-math"),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=1", "error", "fast-math"),
    ],
)
def test_variables_that_matter(monkeypatch, name, value, severity, seen):
    monkeypatch.setenv(name, value)
    assert [f for f, text in findings() if seen in text] == [severity]


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        ("jax_debug_nans", True, "debug_nans is on"),
        ("jax_debug_infs", True, "debug_infs is on"),
        ("jax_disable_jit", True, "jit is disabled"),
        ("jax_enable_x64", False, "arrays are float32"),
    ],
)
def test_settings_that_matter(name, value, seen):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        assert any(seen in text for _, text in findings())
    finally:
        jax.config.update(name, before)


def test_many_devices_on_an_old_jax(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    assert (
        "warning",
        "4 CPU devices on JAX 0.10.2, where many programs with collectives may hang",
    ) in findings()
    assert findings(jax="0.12.0", jaxlib="0.12.0") == []


def test_a_fast_math_flag_that_is_off(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert findings() == []


def test_no_device_is_a_finding_and_no_crash(monkeypatch):
    def refuse():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", refuse)
    found = incrax.environment()
    assert not found.is_sound
    assert found.devices == ()
    assert found.figures == {}
    assert found.findings[0].seen == "JAX finds no device: AssertionError"


def test_an_error_is_not_sound():
    bad = module.Finding("error", "seen", "do")
    found = incrax.environment(measure=False)
    assert found.is_sound
    assert not dataclasses.replace(found, findings=(bad,)).is_sound


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2 s"), (2e-3, "2 ms"), (2e-6, "2 us"), (2e-9, "2 ns"), (2.5e-11, "25 ps")],
)
def test_seconds_have_a_unit(seconds, text):
    assert seconds_text(seconds) == text
