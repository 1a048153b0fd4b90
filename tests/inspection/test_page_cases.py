"""The page about functions that are out of the ordinary: long names, many groups, failed calls,
several signatures.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FAST, MINIMAL
from page_reader import Page

import incrax
from incrax.inspection.page import Report

Keys = pytest.importorskip(
    "selenium.webdriver.common.keys", reason="selenium is not installed"
).Keys

NUM_GROUPS = 400
LONG = "x" * 150


def product(a, b):
    return jnp.exp(a) * jnp.sin(b)


def each(p):
    return [jnp.exp(value) * 3.0 for value in p.values()]


def reported_product():
    f = incrax.incremental(product, tuning=MINIMAL)
    for a in (1.0, 2.0):
        f(a, 1.0)
    return incrax.report(f)


def halves(a):
    """Raises beyond 2."""

    def host(x):
        if x > 2.0:
            raise ValueError("too large")
        return np.asarray(x) / 2.0

    return jnp.exp(jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float64), a))


@pytest.fixture(scope="module")
def many_inputs():
    """Two equations for each of many inputs, all of which changed in the last call."""
    f = incrax.incremental(each, tuning=MINIMAL)
    for value in (1.0, 2.0):
        f({f"p{k:03d}": value for k in range(NUM_GROUPS)})
    return incrax.report(f)


def figures(page):
    """The figures at the top, by name: (value with its note)."""
    return page.run(
        "return Object.fromEntries([...document.querySelectorAll('#figures div')].map(each =>"
        " [each.querySelector('dt').textContent, each.querySelector('dd').textContent]))"
    )


def is_shown(page, selector):
    return page.run("return document.querySelector(arguments[0]).offsetParent !== null", selector)


# --- what ran -------------------------------------------------------------------------------------


def test_figures_of_calls_are_of_the_signature_that_is_shown(driver, tmp_path):
    f = incrax.incremental(lambda p: sum(map(jnp.exp, p)), tuning=MINIMAL)
    f([1.0] * 50)
    f([1.0])
    f([1.0])
    page = Page(driver, incrax.report(f), tmp_path)
    shown = figures(page)
    assert shown["calls"] == "31 with nothing changed, of all signatures"
    assert shown["equations run per call"].startswith("50%")
    assert page.find("#calls-note").text.startswith("2 calls with this signature.")


def test_calls_that_raised_are_counted_and_have_no_row(driver, tmp_path):
    f = incrax.incremental(halves, tuning=MINIMAL)
    for value in (1.0, 3.0, 1.5, 5.0):
        if value > 2.0:
            with pytest.raises(Exception, match="too large"):
                f(value)
        else:
            f(value)
    page = Page(driver, incrax.report(f), tmp_path)
    assert figures(page)["calls"] == "40 with nothing changed, 2 raised"
    assert page.find("#calls-note").text.startswith("2 calls.")
    assert "Calls that raised an error have no row; 2 did." in page.find("#calls-note").text


def test_before_any_call_nothing_is_said_to_be_saved_or_to_have_run(driver, tmp_path):
    f = incrax.incremental(product, tuning=MINIMAL)
    page = Page(driver, incrax.report(f, 1.0, 2.0), tmp_path)
    page.choose()
    assert "served by whole" in page.find("#sentence").text
    assert page.find("#calls-note").text == "No call has returned yet."
    assert not any(
        is_shown(page, selector)
        for selector in ("#timeline", "#call", "#calls-table", "#memory-chart")
    )
    assert (
        "it has not run by itself yet. Trying candidates has cost nothing so far."
        in page.find("#plans-note").text
    )
    assert figures(page)["equations run per call"] == "unknownno call is remembered"
    assert page.errors() == []


def test_with_rows_the_page_says_that_it_is_about_one_chunk(driver, tmp_path):
    f = incrax.incremental(lambda a, x: jnp.sum(jnp.exp(a * x)), tuning=MINIMAL)
    rows = incrax.Rows(np.linspace(0, 1, 96), chunk_rows=32)
    for a in (1.0, 1.0, 2.0):
        f(a, rows)
    page = Page(driver, incrax.report(f), tmp_path)
    assert "one chunk of the rows" in page.find("#about").text
    assert figures(page)["chunks run per call"] == "2of the rows"
    assert "whole chunk" in figures(page)


def test_derived_equations_are_told_from_those_of_the_program(driver, tmp_path):
    data = reported_product().as_dict()
    outlooks = [{**found, "num_ran": 9, "num_derived": 4} for found in data["outlooks"]]
    plans = [{**plan, "num_ran": 9, "num_derived": 4} for plan in data["plans"]]
    page = Page(driver, Report({**data, "outlooks": outlooks, "plans": plans}), tmp_path)
    page.choose("a")
    assert page.find("#sentence").text.endswith("which runs 9, 4 of them derived.")
    assert page.run(
        "return document.querySelector('#numbers tbody tr').lastChild.textContent"
    ).startswith("9, ")
    assert "9 (4 derived)" in page.find("#plans-table").text


def test_the_page_says_when_a_call_starts_from_values_of_an_earlier_one(driver, tmp_path):
    data = reported_product().as_dict()
    last, second = (hex(1 << leaf["offset"]) for leaf in data["leaves"])
    both = hex(int(last, 16) | int(second, 16))
    outlooks = [
        {**found, "differs": both} if found["mask"] == last else found for found in data["outlooks"]
    ]
    page = Page(driver, Report({**data, "outlooks": outlooks}), tmp_path)
    page.choose("a")
    why = "return document.querySelector('#numbers tr[data-name=why]').lastChild.textContent"
    assert page.run(why).endswith(
        "it starts from values of an earlier call, against which all inputs changed"
    )
    page.choose("b")
    assert "earlier call" not in page.run(why)


def test_what_advice_quotes_is_code(driver, tmp_path):
    page = Page(
        driver,
        Report({**reported_product().as_dict(), "worth": "no: call it under `jax.jit`"}),
        tmp_path,
    )
    assert page.find("#plans-note").text.endswith("Is saving worth it? No: call it under jax.jit.")
    assert page.find("#plans-note code").text == "jax.jit"


# --- the map --------------------------------------------------------------------------------------


def test_groups_that_are_too_many_share_a_tile_and_none_is_left_out(driver, many_inputs, tmp_path):
    page = Page(driver, many_inputs, tmp_path)
    page.run(
        "const s = document.getElementById('area'); s.value = 'count'; s.dispatchEvent(new "
        "Event('change'));"
    )
    root = "return map.root.children.map(node => [node.data.label, node.data.numbers.length])"
    shown = dict(page.run(root))
    assert len(shown) <= 150
    assert (
        sum(shown.values()) == many_inputs.as_dict()["function"]["num_equations"] == 2 * NUM_GROUPS
    )
    assert shown["251 smaller groups"] == 502
    covered = (
        "return d3.sum(map.tiles.filter(t => t.box.parent && !t.box.parent.parent), t => "
        "area(t.box))"
    )
    frame = page.run(
        "const t = document.getElementById('treemap'); return t.clientWidth * t.clientHeight"
    )
    assert page.run(covered) > 0.8 * frame


def test_equations_without_an_area_are_counted(driver, tmp_path):
    page = Page(driver, reported_product(), tmp_path)
    assert "not drawn" not in page.find("#areas").text
    page.run(
        "const s = document.getElementById('area'); s.value = 'flops'; s.dispatchEvent(new "
        "Event('change'));"
    )
    assert page.find("#areas").text == "FLOPs. 2 equations without any are not drawn."


def test_a_group_opened_by_the_space_key_keeps_the_focus(driver, many_inputs, tmp_path):
    page = Page(driver, many_inputs, tmp_path)
    page.run(
        "[...document.querySelectorAll('#treemap .tile')].find(t => "
        "t.textContent.endsWith('Opens.')).focus()"
    )
    page.press(Keys.SPACE)
    assert page.run("return document.querySelectorAll('#crumbs button').length") == 1
    assert page.run("return document.activeElement.classList.contains('tile')")


def test_a_window_that_changes_its_width_keeps_the_focus(driver, many_inputs, tmp_path):
    page = Page(driver, many_inputs, tmp_path)
    page.run("document.querySelector('#treemap .tile[tabindex=\"0\"]').focus()")
    page.press(Keys.ARROW_DOWN)
    before = page.focused()
    size = {"width": 900, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wait = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => "
            "done(true)));"
        )
        assert driver.execute_async_script(wait)
        assert page.run("return map.tiles[map.current].element === document.activeElement")
        assert page.focused() == before
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_narrow_groups_are_named_by_their_inputs_alone(driver, many_inputs, tmp_path):
    page = Page(driver, many_inputs, tmp_path)
    shown = page.run(
        "return map.tiles.filter(t => t.data.kind === 'depends on').map(t =>"
        " [t.box.x1 - t.box.x0 < 200, t.element.querySelector('b span').className, "
        "t.element.textContent])"
    )
    assert any(is_narrow for is_narrow, _, _ in shown)
    for is_narrow, name, text in shown:
        assert name == ("visually-hidden" if is_narrow else "")
        assert text.startswith("depends on p['p")


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_that_changed_many_inputs_leads_to_the_map(driver, many_inputs, tmp_path):
    page = Page(driver, many_inputs, tmp_path)
    page.choose()
    page.run("document.querySelector('#timeline svg').focus()")
    page.press(Keys.ENTER)
    assert "Changing all inputs reaches" in page.find("#sentence").text
    assert "The map shows this change." in page.find("#call").text
    page.click("#call button")
    assert page.run("return document.activeElement.id") == "map"
    assert page.run("return document.querySelector('input[name=view]:checked').value") == "engine"


@pytest.mark.parametrize(
    ("low", "high"), [(1.4, 30.0), (2.1e-3, 3.8e-3), (3e-5, 0.2), (9e-4, 1.8e-3), (1.2e-7, 900.0)]
)
def test_ticks_of_the_time_axis_keep_apart(driver, many_inputs, tmp_path, low, high):
    page = Page(driver, many_inputs, tmp_path)
    ticks = page.run("return logTicks(arguments[0], arguments[1])", low, high)
    steps = np.diff(np.log(ticks)) / np.log(high / low)
    assert len(ticks) >= 2
    assert low <= min(ticks) <= max(ticks) <= high
    assert steps.min() > 12 / 146  # the height of a label over that of the axis


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [380, 1280])
def test_long_names_fit_the_width_of_the_window(driver, tmp_path, width):
    f = incrax.incremental(lambda p: sum(jnp.exp(value) for value in p.values()), tuning=FAST)
    f({LONG: 1.0, "b": 2.0})
    f({LONG: 3.0, "b": 2.0})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = Page(driver, incrax.report(f), tmp_path)
        assert page.run("return document.documentElement.scrollWidth") <= width
        assert LONG in page.find("#leaves").text
        assert LONG not in page.find("#sentence").text
        assert "xxx…xxx" in page.find("#sentence").text
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
