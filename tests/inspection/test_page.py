"""The page in a browser: it opens alone, follows what is chosen, and says the numbers of
`explain`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import FAST, MINIMAL
from page_reader import Page

import incrax

Keys = pytest.importorskip(
    "selenium.webdriver.common.keys", reason="selenium is not installed"
).Keys

X = np.linspace(0.1, 2.0, 300)
PARAMS = {"a": 1.0, "b": 2.0, "c": 3.0, "t": np.array([1.0, 2.0, 3.0])}
MAX_TILES = 420
KINDS = {
    "minimal": {"tuning": MINIMAL},
    "cost": {"tuning": FAST},
    "exact": {"policy": "exact", "tuning": incrax.Tuning(timed=False)},
}


def wave(params, x):
    return jnp.sin(params["b"] * x)


def model(params, x):
    return (
        jnp.sum(jnp.exp(params["a"] * x))
        + jnp.sum(wave(params, x)) * params["c"]
        + params["t"][1] ** 2
    )


def changed(*names, by=7.5):
    params = dict(PARAMS)
    for name in names:
        if name.startswith("t["):
            params["t"] = params["t"] + by * np.eye(3)[int(name[2])]
        else:
            params[name] = params[name] + by
    return params


def made(kind="minimal"):
    f = incrax.incremental(model, **KINDS[kind])
    f(PARAMS, X)
    for names in (("c",), ("c",), ("a",), ("t[1]",), ()):
        f(changed(*names), X)
    f(PARAMS, X)
    return f


def many_equations(params, x):
    total = 0.0
    for k in range(900):
        total = total + jnp.sum(jnp.sin(x * params["w"][k % 40] + k)) * params["c"]
    return total


@pytest.fixture(scope="module")
def functions():
    return {kind: made(kind) for kind in KINDS}


@pytest.fixture
def page(driver, functions, tmp_path):
    return Page(driver, incrax.report(functions["minimal"]), tmp_path)


@pytest.fixture(scope="module")
def large():
    f = incrax.incremental(many_equations, tuning=MINIMAL)
    return incrax.report(f, {"w": np.linspace(0.1, 1.0, 40), "c": 2.0}, np.linspace(0.1, 1.0, 20))


# --- opening --------------------------------------------------------------------------------------


def test_it_opens_without_errors_and_without_requests(page):
    assert page.run("return document.documentElement.dataset.ready") == "yes"
    assert page.errors() == []
    assert (
        page.run("return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    )
    log = [entry["message"] for entry in page.driver.get_log("performance")]
    requests = [message for message in log if '"Network.requestWillBeSent"' in message]
    assert [
        message for message in requests if "file:///" not in message and "data:," not in message
    ] == []


def test_its_policy_lets_nothing_else_run(page):
    """What the page was not made with neither runs nor loads."""
    page.run(
        "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; "
        "document.body.append(s);"
    )
    page.run("const i = new Image(); i.src = 'http://localhost:9/x.png'; document.body.append(i);")
    assert page.run("return window.broken") is None
    assert any("Content Security Policy" in message for message in page.errors())


def test_names_that_look_like_markup_are_text(driver, tmp_path):
    def fun(a):
        return jnp.exp(a)

    fun.__name__ = "</script><b>&\u2028<!--"
    f = incrax.incremental(fun, tuning=MINIMAL)
    f(1.0)
    page = Page(driver, incrax.report(f), tmp_path)
    assert page.run("return document.getElementById('name').textContent") == fun.__name__
    assert page.errors() == []


def test_it_opens_in_the_frame_of_a_notebook(driver, functions, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><body>{incrax.report(functions['minimal'])._repr_html_()}"
    )
    driver.get_log("browser")
    driver.get((tmp_path / "notebook.html").as_uri())
    driver.switch_to.frame(0)
    assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"
    driver.execute_script("document.querySelector('nav a[href=\"#inputs\"]').click()")
    assert driver.execute_script("return document.activeElement.id") == "inputs"
    assert [entry["message"] for entry in driver.get_log("browser")] == []
    driver.switch_to.default_content()


@pytest.mark.parametrize("kind", ["not called", "no inputs", "no equations", "rows"])
def test_pages_about_little_open_too(driver, tmp_path, kind):
    f = incrax.incremental(model, tuning=MINIMAL)
    if kind == "not called":
        report = incrax.report(f, PARAMS, X)
    elif kind == "rows":
        f = incrax.incremental(lambda a, x: jnp.sum(jnp.exp(a * x)), tuning=MINIMAL)
        f(1.0, incrax.Rows(X, chunk_rows=64))
        report = incrax.report(f)
    else:
        f = incrax.incremental(
            (lambda: jnp.ones(3)) if kind == "no inputs" else (lambda a: a), tuning=MINIMAL
        )
        f(*([] if kind == "no inputs" else [1.0]))
        report = incrax.report(f)
    page = Page(driver, report, tmp_path)
    assert page.run("return document.documentElement.dataset.ready") == "yes"
    assert page.errors() == []


# --- numbers --------------------------------------------------------------------------------------

CHANGES = [
    ("a",),
    ("b",),
    ("c",),
    ("t",),
    ("t[1]",),
    ("t[0]",),
    ("a", "b"),
    ("b", "c", "t[1]"),
    ("a", "b", "c", "t"),
]


def path_of(name):
    return f"params['t']{name[1:]}" if name.startswith("t") else f"params['{name}']"


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_explain_for_every_choice(driver, functions, tmp_path, kind):
    f = functions[kind]
    page = Page(driver, incrax.report(f), tmp_path)
    for names in CHANGES:
        page.choose(*map(path_of, names))
        expected, shown = f.explain(changed(*names, by=3.25), X).as_dict(), page.numbers()
        if kind == "exact" and len(names) in (2, 3):
            continue  # of combinations that no call had, the page says what they reach
        assert shown["equations"][1] == str(expected["num_ran"]), names
        assert float(shown["FLOPs"][1]) == expected["flops_ran"], names
        assert float(shown["FLOPs avoided"][1]) == expected["flops_avoided"], names
        assert f"served by {expected['served_by']}, which" in page.find("#sentence").text


def test_what_a_change_reaches_is_what_deps_says(page, functions):
    table = functions["minimal"].deps()
    for row in table.rows:
        page.choose(row.path)
        shown = page.numbers()
        assert shown["equations"][0] == str(row.equations)
        assert float(shown["FLOPs"][0]) == row.flops
        assert float(shown["transcendentals"][0]) == row.transcendentals


def test_choosing_another_input_colours_the_map_anew(page, functions):
    page.run(
        "const s = document.getElementById('area'); s.value = 'count'; s.dispatchEvent(new "
        "Event('change'));"
    )
    num = functions["minimal"].deps().num_equations
    page.choose("x")
    assert page.states().get("run") == functions["minimal"].deps().rows[-1].equations
    page.choose("params['c']")
    reached = next(
        row.equations for row in functions["minimal"].deps().rows if row.path == "params['c']"
    )
    states = page.states()
    assert states["run"] == reached < num
    assert states["load"] == int(page.numbers()["saved values loaded"][0]) > 0
    assert sum(states.values()) == num
    page.choose()
    assert page.states() == {"clean": num}


def test_the_colours_of_the_engine_are_what_explain_runs(driver, functions, tmp_path):
    f = functions["cost"]
    page = Page(driver, incrax.report(f), tmp_path)
    page.run(
        "const s = document.getElementById('area'); s.value = 'count'; s.dispatchEvent(new "
        "Event('change'));"
    )
    page.click("input[name=view][value=engine]")
    page.choose("params['a']", "params['b']")
    states = page.states()
    assert states["run"] + states["extra"] == f.explain(changed("a", "b"), X).as_dict()["num_ran"]


# --- other sections -------------------------------------------------------------------------------


# --- keyboard -------------------------------------------------------------------------------------


def test_the_map_is_moved_through_by_keys(page):
    page.run("document.querySelector('#treemap .tile[tabindex=\"0\"]').focus()")
    assert (
        page.run("return document.querySelectorAll('#treemap .tile[tabindex=\"0\"]').length") == 1
    )
    first = page.focused()
    page.press(Keys.ARROW_DOWN)
    second = page.focused()
    assert second != first
    page.press(Keys.HOME)
    assert page.focused() == first
    assert "Opens." in first
    page.press(Keys.ENTER)
    assert page.run("return document.querySelectorAll('#crumbs button').length") == 1
    page.press(Keys.ESCAPE)
    assert page.run("return document.querySelectorAll('#crumbs button').length") == 0
    assert page.focused() == first


def test_inputs_are_chosen_by_keys(page):
    page.choose()
    page.run("document.querySelector('#leaves input').focus()")
    page.press(Keys.SPACE)
    assert "params['a']" in page.find("#sentence").text


# --- many equations -------------------------------------------------------------------------------


def test_five_thousand_equations_are_drawn_as_few_tiles(driver, large, tmp_path):
    num = large.as_dict()["function"]["num_equations"]
    assert num > 4500
    page = Page(driver, large, tmp_path)
    assert page.errors() == []
    drawn = int(page.run("return document.getElementById('treemap').dataset.drawn"))
    assert 20 < drawn <= MAX_TILES
    page.choose("params['w'][3]")
    equations = large.as_dict()["equations"]
    bit = (
        1
        << next(
            leaf["offset"] for leaf in large.as_dict()["leaves"] if leaf["path"] == "params['w']"
        )
        + 3
    )
    reached = sum(bool(int(equations["sets"][number], 16) & bit) for number in equations["set"])
    assert int(page.numbers()["equations"][0]) == reached < num / 4
    texts = page.run(
        "return [...document.querySelectorAll('#treemap .tile')].map(tile => tile.textContent)"
    )
    assert any("1 run" in text or " run, " in text for text in texts)


def test_every_group_of_many_equations_opens(driver, large, tmp_path):
    page = Page(driver, large, tmp_path)
    for _ in range(12):
        label = page.run(
            "const tile = [...document.querySelectorAll('#treemap .tile')].find(t => "
            "t.classList.contains('fold'))"
            " || [...document.querySelectorAll('#treemap .tile')].find(t => "
            "t.textContent.endsWith('Opens.'));"
            "if (!tile) return null; const text = tile.textContent; tile.click(); return text;"
        )
        if label is None:
            break
        assert int(page.run("return document.getElementById('treemap').dataset.drawn")) <= MAX_TILES
    assert label is None
    assert page.states()


# --- looks ----------------------------------------------------------------------------------------


def colours(page):
    """The colours of the page."""
    names = (
        "page",
        "panel",
        "ink",
        "soft",
        "line",
        "accent",
        "run",
        "run-ink",
        "extra",
        "extra-line",
        "extra-ink",
    )
    names += ("load", "load-ink", "clean", "clean-ink", "edge", "saved", "focus", "group", "bar")
    values = (
        "return arguments[0].map(name => "
        "getComputedStyle(document.documentElement).getPropertyValue('--' + name))"
    )
    return page.run("return getComputedStyle(document.body).backgroundColor"), page.run(
        values, list(names)
    )


def test_light_and_dark_follow_the_system_or_the_switch(page):
    def prefer(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    prefer("light")
    light = colours(page)
    prefer("dark")
    dark = colours(page)
    assert light[0] != dark[0]
    assert all(light[1])
    page.click("input[name=theme][value=light]")
    assert colours(page) == light
    prefer("light")
    page.click("input[name=theme][value=dark]")
    assert colours(page) == dark


@pytest.mark.parametrize("width", [380, 820, 1600])
def test_it_fits_the_width_of_the_window(page, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page.run("return document.documentElement.scrollWidth") <= width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize(("theme", "view"), [("light", "reach"), ("dark", "engine")])
def test_it_is_accessible(page, theme, view):
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core-python is not installed")
    page.click(f"input[name=theme][value={theme}]")
    page.click(f"input[name=view][value={view}]")
    page.run("for (const details of document.querySelectorAll('details')) details.open = true;")
    page.choose("params['a']")
    result = axe.Axe().run(page.driver)
    found = [(v["id"], [node["html"] for node in v["nodes"]][:3]) for v in result["violations"]]
    assert found == []
    assert len(result["passes"]) > 15
