"""`environment()`: what is there."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

import incrax
from incrax._table import seconds_text


def test_versions_devices_and_settings_are_those_of_the_process(monkeypatch):
    monkeypatch.setenv("INCRAX_SOMETHING", "yes")
    found = incrax.environment()
    assert found.versions["jax"] == jax.__version__
    assert found.versions["numpy"] == np.__version__
    assert found.versions["incrax"] == incrax.__version__
    assert len(found.devices) == len(jax.devices())
    assert found.settings["enable_x64"] == "True"
    assert found.variables["INCRAX_SOMETHING"] == "yes"
    assert found.budget_bytes > 0


def test_it_prints_and_is_json():
    found = incrax.environment()
    text = str(found)
    for shown in ("versions", "settings", "device 0", "remembered programs", "cache folder"):
        assert shown in text
    assert json.loads(json.dumps(found.as_dict()))["versions"] == found.versions


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.0, "2 s"),
        (2e-3, "2 ms"),
        (2e-6, "2 us"),
        (2e-9, "2 ns"),
        (2.5e-11, "25 ps"),
        (0.0, "0 s"),
        (1550.0, "1,550 s"),
    ],
)
def test_seconds_have_a_unit(seconds, text):
    assert seconds_text(seconds) == text
