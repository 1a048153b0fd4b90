"""The page about functions that are out of the ordinary: long names, many groups, failed calls,
several signatures.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import EAGER, FAST, MINIMAL
from page_reader import Page
from slice_cases import serve_by_rows

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


def test_before_any_call_nothing_is_said_to_be_saved_or_to_have_run(driver, tmp_path):
    f = incrax.incremental(product, tuning=MINIMAL)
    page = Page(driver, incrax.report(f, 1.0, 2.0), tmp_path)
    page.choose()
    assert "served by whole" in page.find("#sentence").text
    assert figures(page)["saved"].startswith("0 bytes")
    assert page.errors() == []


def test_with_rows_the_page_says_that_it_is_about_one_chunk(driver, tmp_path):
    f = incrax.incremental(lambda a, x: jnp.sum(jnp.exp(a * x)), tuning=MINIMAL)
    rows = incrax.Rows(np.linspace(0, 1, 96), chunk_rows=32)
    for a in (1.0, 1.0, 2.0):
        f(a, rows)
    page = Page(driver, incrax.report(f), tmp_path)
    assert "one chunk of the rows" in page.find("#about").text
    assert "whole chunk" in figures(page)


def test_derived_equations_are_told_from_those_of_the_program(driver, tmp_path):
    data = reported_product().as_dict()
    outlooks = [{**found, "num_ran": 9, "num_derived": 4} for found in data["outlooks"]]
    page = Page(driver, Report({**data, "outlooks": outlooks}), tmp_path)
    page.choose("a")
    assert page.find("#sentence").text.endswith("which runs 9, 4 of them derived.")
    assert page.run(
        "return document.querySelector('#numbers tbody tr').lastChild.textContent"
    ).startswith("9, ")


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


# --- the verdict ----------------------------------------------------------------------------------


def with_verdict(ours, jit, sentence="no: call it under `jax.jit`"):
    verdict = {"sentence": sentence, "ours": ours, "jit": jit}
    return Report({**reported_product().as_dict(), "verdict": verdict})


def bars(page):
    """Of each row of the picture: its bars' kinds, their seconds, and where they begin and end."""
    rows = page.run(
        "const left = node => node.getBoundingClientRect().left;"
        "return [...document.querySelectorAll('#seconds dt')].map(row =>"
        " [row.textContent, [...row.nextSibling.querySelectorAll('i')].map(bar =>"
        " [bar.className, Number(bar.dataset.seconds), left(bar) - left(bar.parentElement),"
        "  bar.getBoundingClientRect().right - left(bar.parentElement)])])"
    )
    return dict(rows)


def of_pairs(shapes, x):
    total = 0.0
    for a, b in itertools.combinations(shapes, 2):
        total = total + jnp.sum(jnp.exp(-shapes[a] * x) * jnp.sin(shapes[b] * x))
    return total


@pytest.fixture(scope="module")
def many_groups():
    """Inputs with long names, and as many groups of equations as there are pairs of them."""
    f = incrax.incremental(of_pairs, tuning=MINIMAL)
    shapes = {f"a_rather_long_name_of_the_parameter_number_{k}": 1.0 + k for k in range(12)}
    for k, name in enumerate([*shapes] * 2):
        shapes = {**shapes, name: 20.0 + k}
        f(shapes, np.linspace(0.0, 1.0, 100))
    return incrax.report(f)


CUT = """
for (const each of document.querySelectorAll('details')) each.open = true;
const width = document.documentElement.clientWidth;
const isHidden = node => node.closest('.visually-hidden, .skip, .map-frame, script, style');
const isCut = node => node.getBoundingClientRect().right > width + 1
  || getComputedStyle(node).overflowX !== 'visible' && node.scrollWidth > node.clientWidth + 1;
const found = [...document.querySelectorAll('body *')].filter(node => !isHidden(node) && isCut(node));
return found.map(node => node.outerHTML.slice(0, 80));
"""
"""Elements that are wider than what shows them; tiles of the map say what they have no room for in
the details below it.
"""


@pytest.mark.parametrize("name", ["many_groups", "many_inputs"])
def test_nothing_is_cut_at_1280_pixels(driver, request, tmp_path, name):
    size = {"width": 1280, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = Page(driver, request.getfixturevalue(name), tmp_path)
        assert page.run(CUT) == []
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def with_inputs(num):
    """Each input reaches equations of its own, and those that add up what came before it."""

    def fun(p, x):
        total = 0.0
        for k in range(num):
            total = total + jnp.sum(jnp.sin(x * p[f"p{k}"] + k))
        return total

    f = incrax.incremental(fun, tuning=MINIMAL)
    return incrax.report(f, {f"p{k}": 1.0 + k for k in range(num)}, np.linspace(0.1, 1.0, 20))


def test_a_page_with_1500_inputs_draws_what_is_looked_at(driver, tmp_path):
    """So that it opens in less than a second: nodes are counted, and changes whose reach was looked
    for among all equations, which were as many as the inputs.
    """
    page = Page(driver, with_inputs(1500), tmp_path)
    assert page.run("return [document.querySelectorAll('*').length, reachedCache.size]") == [
        pytest.approx(6000, abs=2000),
        1,
    ]
    assert page.run("return document.querySelectorAll('#leaves > li').length") == 150
    assert page.find("#unlisted").text == "... and 1,351 more; find them by their names"
    page.find("#filter").send_keys("P1499")
    page.choose("p['p1499']")
    assert page.numbers()["equations"][0] == "6"
    page.click("#choose-all")
    assert page.find("#unlisted").text == ""
    assert page.errors() == []


def test_inputs_have_the_work_that_deps_says(driver, tmp_path):
    report = with_inputs(40)
    page = Page(driver, report, tmp_path)
    shown = dict(page.run("return data.leaves.map((leaf, k) => [leaf.path, works.byLeaf[k].num])"))
    reached = [int(mask, 16) for mask in report.as_dict()["equations"]["sets"]]
    numbers = report.as_dict()["equations"]["set"]
    for leaf in report.as_dict()["leaves"]:
        bits = ((1 << leaf["width"]) - 1) << leaf["offset"]
        assert shown[leaf["path"]] == sum(bool(reached[number] & bits) for number in numbers)


def test_the_page_opens_with_the_verdict_of_explain(driver, tmp_path):
    f = incrax.incremental(lambda a, b: jnp.sum(jnp.exp(a)) * b)
    for k in range(30):
        f(np.ones(100_000), float(k))
    worth = f.explain().as_dict()["worth"]
    page = Page(driver, incrax.report(f), tmp_path)
    first = page.run("return document.querySelector('body > section').id")
    assert first == "verdict"
    assert page.find("#worth").text == f"Is it worth it: {worth}".replace("`", "")
    assert sum(seconds for _, seconds, *_ in bars(page)["incrax"]) == pytest.approx(
        f._traces.latest.engine.chooser.verdict.ours_s
    )
    assert page.errors() == []


def test_what_advice_quotes_is_code(driver, tmp_path):
    page = Page(driver, with_verdict({}, {}), tmp_path)
    assert page.find("#worth").text == "Is it worth it: no: call it under jax.jit"
    assert page.find("#worth code").text == "jax.jit"
    assert bars(page) == {}


@pytest.mark.parametrize(("calls_s", "name"), [(1.0, "gained"), (6.0, "lost")])
def test_the_picture_shows_the_seconds_gained_and_lost(driver, tmp_path, calls_s, name):
    ours = {"compiling": 1.0, "learning": 0.5, "calls": calls_s}
    page = Page(driver, with_verdict(ours, {"compiling": 1.0, "calls": 4.0}), tmp_path)
    shown = bars(page)
    assert list(shown) == ["jax.jit", "incrax", name]
    assert {kind: seconds for kind, seconds, *_ in shown["incrax"]} == ours
    ((_, seconds, start, end),) = shown[name]
    assert seconds == abs(5.0 - sum(ours.values()))
    ends = sorted(shown[row][-1][-1] for row in ("jax.jit", "incrax"))
    assert [start, end] == pytest.approx(ends, abs=1.0)
    text = page.find("#seconds").text
    calls = "calls gained 3 s" if name == "gained" else "calls lost 2 s"
    assert f"{calls}, learning took 500 ms" in text


def test_where_nobody_takes_times_the_page_says_so(driver, tmp_path):
    page = Page(driver, reported_product(), tmp_path)
    assert page.find("#worth").text.startswith("Is it worth it: nobody takes times here")
    assert bars(page) == {}


# --- rows -----------------------------------------------------------------------------------------

OBSERVED = np.linspace(-1.0, 1.0, 24 * 7).reshape(24, 7)


def groups(theta, mu, sigma):
    residual = (OBSERVED - theta[:, None]) / sigma
    return jnp.sum(jnp.log1p(residual**2)) + jnp.sum((theta - mu) ** 2)


@pytest.fixture
def by_rows(monkeypatch):
    """A function that a program for one row serves; programs for rows are made whatever they
    promise.
    """
    serve_by_rows(monkeypatch)
    f = incrax.incremental(groups, tuning=EAGER)
    for row in range(6):
        theta = np.zeros(24)
        theta[row] = 0.1
        f(theta, 0.5, 1.5)
    assert f.explain().as_dict()["served_by"] == "slices"
    return f


def test_the_map_shows_what_runs_on_the_changed_rows_alone(driver, by_rows, tmp_path):
    expected = by_rows.explain().as_dict()
    sliced = by_rows._traces.latest.engine.last.plan.sliced
    page = Page(driver, incrax.report(by_rows), tmp_path)
    page.run(
        "const s = document.getElementById('area'); s.value = 'count'; s.dispatchEvent(new "
        "Event('change'));"
    )
    states = page.states()
    assert states["rows"] == sum(not each.why_all for each in sliced.made) > 3
    assert states["rows"] + states["run"] + states["extra"] == expected["num_ran"]
    assert page.numbers()["equations"][1] == str(expected["num_ran"])
    assert float(page.numbers()["FLOPs"][1]) == expected["flops_ran"]
    assert expected["rows"] in page.find("#sentence").text
    page.run("showSlice(-1)")
    assert "rows" not in page.states()
    assert "along the first axis" not in page.find("#sentence").text
    page.run(
        "const s = document.getElementById('rows'); s.value = '0'; s.dispatchEvent(new "
        "Event('change'));"
    )
    assert page.states() == states
    page.choose("mu")
    assert "rows" not in page.states()
    assert not is_shown(page, "#rows-row")
    assert page.errors() == []


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
