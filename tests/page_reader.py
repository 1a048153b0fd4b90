"""What a reader does with a page in a browser, and what is there then."""

from __future__ import annotations

from pathlib import Path


class Page:
    """A page in a browser: what a reader does, and what is there then."""

    def __init__(self, driver, report, folder):
        self.driver = driver
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(report.save(Path(folder) / "page.html").as_uri())

    def run(self, script, *args):
        return self.driver.execute_script(script, *args)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def click(self, selector):
        self.run("document.querySelector(arguments[0]).click()", selector)

    def choose(self, *paths):
        """Only these inputs change."""
        self.click("#choose-none")
        for path in paths:
            self.run(
                "const label = [...document.querySelectorAll('#leaves input')].find(box =>"
                " (box.ariaLabel || box.parentElement.querySelector('.path').textContent) === "
                "arguments[0]);"
                "label.click();",
                path,
            )

    def numbers(self):
        """The rows of the table, by name: (it reaches, the engine would run)."""
        return self.run(
            "return Object.fromEntries([...document.querySelectorAll('#numbers tbody tr')].map(row "
            "=>"
            " [row.dataset.name, [...row.querySelectorAll('td')].map(cell => cell.dataset.value)]))"
        )

    def states(self):
        """How many tiles of equations are in each state."""
        return self.run(
            "const found = {}; for (const tile of document.querySelectorAll('#treemap .tile'))"
            " if (tile.dataset.state) found[tile.dataset.state] = (found[tile.dataset.state] || 0) "
            "+ 1; return found;"
        )

    def press(self, *keys):
        """Keys for what has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self):
        return self.run("return document.activeElement.textContent")

    def errors(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]
