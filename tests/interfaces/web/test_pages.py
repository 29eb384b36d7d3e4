"""Every page in a real browser, at two widths, by itself and behind a proxy's path."""

import os
import shutil
from pathlib import Path

import pytest

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

from leadline.interfaces.web.settings import WebSettings  # noqa: E402
from tests.interfaces.web.conftest import served  # noqa: E402

CHROMIUM = shutil.which("chromium")
PAGES = ("", "jobs", "systems", "systems/Pitzer", "campaigns", "models", "history", "chat")
WIDTHS = (390, 1280)
PICTURES = Path(__file__).parents[3] / "docs" / "images"
PREFIX = "/node/n1/8642"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")]


@pytest.fixture(scope="module")
def browser():
    with playwright_api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=["", PREFIX], ids=["plain", "behind a path"])
def site(request, web_folder):
    with served(WebSettings("", web_folder, root_path=request.param, allow_submit=True)) as address:
        yield f"{address}{request.param}/"


@pytest.fixture(params=WIDTHS)
def page(browser, request):
    faults = []
    opened = browser.new_page(viewport={"width": request.param, "height": 900})
    # htmx logs a request that a newer one replaced as an error.
    opened.on("console", lambda message: message.type == "error" and not message.text.startswith("htmx:afterRequest")
              and faults.append(message.text))  # fmt: skip
    opened.on("pageerror", lambda error: faults.append(str(error)))
    yield opened
    opened.close()
    assert faults == []


def serious(page):
    """Return the serious findings of axe, each with the first place where it is."""
    found = axe.Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]


def keep_picture(page, name, folder):
    """Write a picture of the page, into the documentation if ``LEADLINE_PICTURES`` says so."""
    wanted = os.environ.get("LEADLINE_PICTURES") and page.viewport_size["width"] == max(WIDTHS)
    file = (PICTURES if wanted else folder) / f"{name}.png"
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=file)
    assert file.stat().st_size > 10_000


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_accessible_and_no_wider_than_the_screen(site, page, path):
    answer = page.goto(f"{site}{path}")
    assert answer.status == 200
    assert page.locator("h1").count() == 1
    assert page.locator("nav a[aria-current]").count() == 1
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    style = page.evaluate("getComputedStyle(document.querySelector('header')).display")
    assert style == "flex", "the style sheet was not found"


def test_an_estimate_is_ranked_and_explained(site, page, tmp_path):
    page.goto(f"{site}?workload=config.json")
    page.select_option("select[name=precision]", "fp16")
    page.fill("input[name=on]", "Ascend, Pitzer")
    page.get_by_role("button", name="Estimate").press("Enter")
    page.wait_for_selector("#answer tbody tr")
    assert "Ascend" in page.inner_text("#answer")
    page.locator("#answer tbody summary").first.click()
    page.get_by_role("button", name="Memory over one step").first.click()
    page.wait_for_selector("#memory h2")
    assert serious(page) == []
    keep_picture(page, "estimate", tmp_path)


def test_what_cannot_be_used_is_said_on_the_page(site, page):
    page.goto(f"{site}?workload=<b>nope</b>.json")
    page.get_by_role("button", name="Estimate").click()
    page.wait_for_selector("#answer [role=alert]")
    assert "<b>nope</b>.json" in page.inner_text("#answer")
    assert page.locator("#answer b").count() == 0


def test_the_chat_answers_with_the_command(site, page):
    page.goto(f"{site}chat")
    page.fill("#text", "how much memory does an MI250X have?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk pre >> nth=1", timeout=60_000)
    assert "leadline devices show MI250X" in page.inner_text("#talk")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save the conversation").click()
    assert "## how much memory does an MI250X have?" in saved.value.path().read_text()
