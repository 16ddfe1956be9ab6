"""A live page in a real browser: rounds come in without a reload, through kills of the run and of the server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from coterie.watching.serving import open_socket

browser_control = pytest.importorskip("playwright.sync_api", reason="pip install playwright drives the browser")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path(os.environ.get("COTERIE_AXE", "node_modules/axe-core/axe.min.js"))
COTERIE = [sys.executable, "-m", "coterie"]
RUN = ["run", "wecfl", "--clients", "12", "--clusters", "3", "--partition", "rotation(0,90,180)", "--quiet"]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")]


@contextmanager
def started(*words: str):
    """Run a command of coterie during the block; it is killed at its end."""
    program = subprocess.Popen([*COTERIE, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield program
    finally:
        program.kill()
        program.wait()
        program.stderr.close()


@contextmanager
def watched(folder: Path, port: int):
    """Serve the page of a folder during the block."""
    with started("watch", str(folder), "--port", str(port)) as program:
        for _ in range(600):
            try:
                httpx.get(f"http://127.0.0.1:{port}/", timeout=60)
                break
            except httpx.ConnectError:
                assert program.poll() is None, program.stderr.read()
                time.sleep(0.1)
        yield program


@pytest.fixture
def port():
    with open_socket(0) as listener:
        number = listener.getsockname()[1]
    return number


@pytest.fixture
def page():
    """Return a page of a browser; what it complains about is refused at the end."""
    with browser_control.sync_playwright() as control:
        browser = control.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        found = browser.new_page(viewport={"width": 1100, "height": 900})
        found.complaints = []
        # A server that is away is no fault of the page: the browser itself writes that a connection failed.
        found.on(
            "console",
            lambda said: (
                found.complaints.append(said.text) if said.type == "error" and "net::ERR_" not in said.text else None
            ),
        )
        found.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.set_default_timeout(90_000)
        yield found
        browser.close()
    assert found.complaints == []


def wait_for(page, expression: str) -> None:
    """Wait until an expression holds; the page's policy does not let it be evaluated within the page."""
    until = time.monotonic() + 90
    while not page.evaluate(expression):
        assert time.monotonic() < until, f"{expression} does not hold; {page.inner_text('#now')}"
        page.wait_for_timeout(100)


def state(words: str) -> str:
    return f"document.querySelector('#now .state')?.textContent.includes({words!r})"


ROUNDS = "Number((document.querySelector('#now .state').textContent.match(/(\\d+) of/) || [0, 0])[1])"


def test_a_run_is_followed_from_before_its_start_through_kills_to_its_report(tmp_path, port, page):
    out = tmp_path / "run"
    with watched(out, port):
        page.goto(f"http://127.0.0.1:{port}/")
        page.evaluate("window.same = 'not reloaded'")
        wait_for(page, state("which does not exist yet"))
        with started(*RUN, "--rounds", "2000", "--out", str(out)):
            wait_for(page, f"{ROUNDS} >= 1")
            seen = page.evaluate(ROUNDS)
            wait_for(page, f"{ROUNDS} > {seen + 1}")
            wait_for(page, "document.querySelector('#now').textContent.includes('about')")
        # Killed. The server of the page is killed too, and comes again: the page finds it.
        seen = page.evaluate(ROUNDS)
    wait_for(page, "document.querySelector('#live').className === 'off'")
    with watched(out, port):
        wait_for(page, "document.querySelector('#live').className === 'on'")
        done = len((out / "rounds.jsonl").read_text().splitlines())
        with started("run", str(out / "config.toml"), "--resume", "--out", str(out), "--quiet"):
            wait_for(page, f"{ROUNDS} > {max(seen, done) + 1}")
    assert page.evaluate("window.same") == "not reloaded"


def test_the_end_of_a_run_shows_its_report(tmp_path, port, page):
    out = tmp_path / "run"
    with watched(out, port):
        page.goto(f"http://127.0.0.1:{port}/")
        page.evaluate("window.same = 'not reloaded'")
        subprocess.run([*COTERIE, *RUN, "--rounds", "6", "--references", "--out", str(out)], check=True)
        wait_for(page, state("Finished"))
        wait_for(page, "document.querySelectorAll('#clients tbody tr').length === 12")
        assert page.evaluate("document.querySelectorAll('svg').length") > 5
        assert page.evaluate("[...document.querySelectorAll('nav a')].map((each) => each.textContent)[0]") == "Now"
        assert page.evaluate(
            "[...document.querySelectorAll('nav a')].every((each) => document.querySelector(each.hash))"
        )
        assert page.evaluate("window.same") == "not reloaded"
        # A phone, in the dark, by keyboard.
        page.set_viewport_size({"width": 400, "height": 800})
        page.emulate_media(color_scheme="dark")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.closest('section, nav, header')?.id || 'top'"))
        assert {"top", "clusters"} <= reached
        if AXE.is_file():
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                # The policy of the page lets no script in but its own: a browser's tools are let in.
                faults = page.evaluate(AXE.read_text() + "\n;axe.run().then((found) => found.violations)")
                serious = [each for each in faults if each["impact"] in ("serious", "critical")]
                assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []


def test_what_a_reader_has_done_stays_when_a_section_is_replaced(tmp_path, port, page):
    out = tmp_path / "run"
    subprocess.run([*COTERIE, *RUN, "--rounds", "3", "--out", str(out)], check=True)
    (out / "summary.json").unlink()
    with watched(out, port):
        page.goto(f"http://127.0.0.1:{port}/")
        wait_for(page, "document.querySelector('#live').className === 'on'")
        page.click("#clusters button[aria-pressed] >> nth=1")
        page.evaluate("document.querySelector('#clusters figure').dataset.old = 'yes'")
        last = json.loads((out / "rounds.jsonl").read_text().splitlines()[-1])
        with (out / "rounds.jsonl").open("a") as file:
            file.write(json.dumps({**last, "round": 3}) + "\n")
        wait_for(page, "document.querySelector('#clusters figure').dataset.old !== 'yes'")
        pressed = "[...document.querySelectorAll('#clusters button')].map((each) => each.getAttribute('aria-pressed'))"
        assert page.evaluate(pressed)[:2] == ["true", "false"]
        assert page.evaluate("document.activeElement === document.querySelectorAll('#clusters button')[1]")
