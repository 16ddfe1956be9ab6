"""The report in a real browser: no errors, sorting and searching, dark mode, a phone, the keyboard, accessibility.

Needs chromium and the package playwright (``pip install playwright``; it uses the chromium of the system); axe-core is
taken from ``COTERIE_AXE``, the path of its axe.min.js, or from node_modules.
"""

import os
import shutil
from pathlib import Path

import pytest

from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings
from coterie.reporting.report.page import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]
AXE = Path(os.environ.get("COTERIE_AXE", "node_modules/axe-core/axe.min.js"))
SETTINGS = Settings(
    "wecfl",
    clients=12,
    clusters=2,
    partition="rotation(0,180)",
    model="mlp(8)",
    steps=2,
    rounds=4,
    threads=1,
    references=True,
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    run_settings(SETTINGS, folder / "run")
    return write_report(folder / "run", folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as found:
        started = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=[(1200, "light"), (400, "dark")], ids=["wide and light", "a phone in the dark"])
def page(request, browser, address):
    """The page, without any error on the console, and without any request but that of the file."""
    width, scheme = request.param
    shown = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    wrong, asked = [], []
    shown.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(address)
    yield shown
    assert wrong == []
    assert [url for url in asked if not url.startswith("data:")] == [address]
    shown.close()


def test_nothing_scrolls_sideways_and_figures_have_data(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    drawings = page.locator("figure.chart svg[role=img]")
    assert drawings.count() == 14
    for i in range(drawings.count()):
        assert drawings.nth(i).locator("[data-tip], image").count() > 0
        assert drawings.nth(i).bounding_box()["width"] > 150


def test_dark_mode_follows_the_system_and_the_button(page):
    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert paper() == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")
    page.get_by_role("button", name="Dark or light").click()
    assert paper() == ("rgb(255, 255, 255)" if dark else "rgb(20, 22, 26)")


def column(page, place):
    return [text for text in page.locator(f"#clients tbody td:nth-child({place})").all_inner_texts() if text]


def test_the_table_of_clients_sorts_by_numbers_both_ways_and_searches(page):
    page.locator("#clients th button", has_text="accuracy").first.click()
    up = [float(text) for text in column(page, 6)]
    assert up == sorted(up)
    page.locator("#clients th button", has_text="accuracy").first.click()
    assert [float(text) for text in column(page, 6)] == up[::-1] == sorted(up, reverse=True)
    page.get_by_role("searchbox").fill("client-007")
    assert page.locator("#clients tbody tr:visible").count() == 1
    assert page.locator("#clients .count").inner_text() == "1 of 12"


def test_everything_is_reached_by_the_keyboard(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("#clients th button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#clients th").first.get_attribute("aria-sort") == "ascending"
    page.locator("#figure-accuracy svg[role=img]").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text().startswith("wecfl, round 1: 0.")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_a_line_can_be_hidden_and_numbers_stand_beside_the_pointer(page):
    figure = page.locator("#figure-accuracy")
    figure.get_by_role("button", name="one model").click()
    assert figure.locator("[data-of='1']:visible").count() == 0
    figure.locator("path.dot[data-of='0']").last.hover()
    assert "wecfl, round 4" in page.locator("#tip").inner_text()
    page.locator("#figure-similarity image").hover()
    assert " and client-" in page.locator("#tip").inner_text()


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm install axe-core, or COTERIE_AXE=path/axe.min.js")
def test_axe_finds_no_serious_fault(page):
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run()")["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == []
    assert found == []
