"""Every page in a real browser, at two widths, light and dark, by itself and behind a proxy's path."""

import json
import os
import re
import shutil
import time
from itertools import count
from pathlib import Path

import httpx
import pytest

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")

from leadline.interfaces.web.settings import WebSettings  # noqa: E402
from tests.interfaces.test_tools import LLAMA  # noqa: E402
from tests.interfaces.web import examples  # noqa: E402
from tests.interfaces.web.conftest import served  # noqa: E402
from tests.support.recorded_season import record_season  # noqa: E402

CHROMIUM = shutil.which("chromium")
JOB = "jobs/aaaa00000001"
PAGES = (
    "", "jobs", JOB, "systems", "systems/Pitzer", "campaigns", "pipelines", "pipelines/traps",
    "pipelines/traps/review/label", "models", "history", "chat", "jobs/none",
)  # fmt: skip
PHONE, WALL = (390, 844), (2560, 1440)
PICTURES = Path(__file__).parents[3] / "docs" / "images"
PREFIX = "/node/n1/8642"
NUMBERS = count(2)
"""Of jobs that a test changes."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")]


@pytest.fixture(scope="module")
def browser():
    with playwright_api.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def full_folder(web_folder):
    """The folder of the workloads, with jobs, runs, a model and a campaign in the data folder."""
    examples.add_jobs()
    runs = examples.add_runs()
    pytest.importorskip("sklearn")
    examples.add_model(runs)
    examples.run_campaign(web_folder)
    record_season(web_folder)
    return web_folder


@pytest.fixture(scope="module", params=["", PREFIX], ids=["plain", "behind a path"])
def site(request, full_folder):
    with served(WebSettings("", full_folder, root_path=request.param, allow_submit=True)) as address:
        yield f"{address}{request.param}/"


@pytest.fixture(params=[PHONE, WALL], ids=["phone", "wall"])
def page(browser, request):
    width, height = request.param
    faults = []
    opened = browser.new_page(viewport={"width": width, "height": height})
    # htmx logs a request that a newer one replaced as an error, and Chromium a page with the status 404.
    expected = (
        "htmx:sendAbort",
        "htmx:afterRequest",
        "Failed to load resource: the server responded with a status of 404",
    )
    opened.on("console", lambda message: message.type == "error" and not message.text.startswith(expected)
              and faults.append(message.text))  # fmt: skip
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.set_default_timeout(20_000)
    yield opened
    opened.close()
    assert faults == []


def serious(page):
    """Return the serious findings of axe in light and in dark, each with the first place where it is."""
    findings = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        violations = axe.Axe().run(page).response["violations"]
        findings += [(scheme, each["id"], each["nodes"][0]["html"][:200], each["nodes"][0]["failureSummary"])
                     for each in violations if each["impact"] in ("serious", "critical")]  # fmt: skip
    page.emulate_media(color_scheme="light")
    return findings


def is_as_wide_as_the_screen(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def ask(page, site, **fields):
    """Fill in the form, and wait for its answer and the memory of the first option, which has a GPU."""
    page.goto(site)
    page.select_option("select[name=precision]", "fp16")
    for name, value in {**fields, "workload": "config.json"}.items():
        page.fill(f"input[name={name}]", value)
    page.get_by_role("button", name="Estimate").press("Enter")
    page.wait_for_selector("#memory canvas")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_accessible_and_no_wider_than_the_screen(site, page, path, tmp_path):
    answer = page.goto(f"{site}{path}")
    assert answer.status == (404 if path == "jobs/none" else 200)
    assert page.locator("h1").count() == 1
    assert page.locator("nav a[aria-current]").count() == 1
    assert page.locator("[data-plot]:not(:has(canvas))").count() == 0, "a plot was not drawn"
    assert serious(page) == []
    for width in (page.viewport_size["width"], 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert is_as_wide_as_the_screen(page), width
    style = page.evaluate("getComputedStyle(document.querySelector('header')).display")
    assert style == "flex", "the style sheet was not found"


def test_an_estimate_is_ranked_explained_and_drawn(site, page):
    ask(page, site, steps="1000", on="Ascend, Pitzer")
    assert "Ascend" in page.inner_text("#answer")
    assert "Without limits" in page.inner_text("#answer .compare")
    page.locator("#answer tbody summary").nth(1).click()
    page.get_by_role("button", name="Memory over one step").click()
    second = page.locator("#answer table:not(.compare) th[scope=row]").nth(1).inner_text().split()[0]
    page.locator("#memory h2", has_text=second).wait_for()
    assert serious(page) == []
    assert is_as_wide_as_the_screen(page)


def test_a_slider_asks_again_and_its_field_follows(site, page):
    ask(page, site, steps="1000", on="Pitzer")
    moves = (("batch", "ArrowRight", "1"), ("precision", "ArrowLeft", "tf32"), ("deadline", "End", "14d"),
             ("budget", "End", "10000"), ("gpus", "ArrowRight", "1"))  # fmt: skip
    for name, key, value in moves:
        with page.expect_response(re.compile(f"/estimate.*{name}={value}")):
            page.locator(f"[data-slides={name}]").press(key)
        assert page.locator(f"[name={name}]").input_value() == value
    page.fill("[name=batch]", "9")
    assert page.locator("[data-slides=batch]").input_value() == "4", "the slider is not at the next smaller step, 8"
    page.locator("#answer caption", has_text="the best first").first.wait_for()


def test_a_point_of_the_front_leads_to_its_option_by_mouse_and_by_key(site, page):
    ask(page, site, steps="1000", on="Ascend, Pitzer")
    plot = page.locator("[data-plot=front]")
    plot.focus()
    page.keyboard.press("ArrowRight")
    name = plot.locator(".shown").inner_text().partition(": ")[0]
    page.keyboard.press("Enter")
    chosen = page.locator("tr.chosen th")
    assert name in chosen.inner_text()
    page.evaluate("document.querySelector('tr.chosen').classList.remove('chosen')")
    # The lines of the cursor cross at the point that the key chose.
    left = plot.locator(".u-cursor-x").evaluate("line => new DOMMatrix(getComputedStyle(line).transform).e")
    top = plot.locator(".u-cursor-y").evaluate("line => new DOMMatrix(getComputedStyle(line).transform).f")
    plot.locator(".u-over").click(position={"x": left, "y": top})
    assert name in chosen.inner_text()


def test_what_cannot_be_used_is_said_on_the_page(site, page):
    page.goto(f"{site}?workload=<b>nope</b>.json")
    page.wait_for_selector("#answer [role=alert]")
    assert "<b>nope</b>.json" in page.inner_text("#answer")
    assert page.locator("#answer b").count() == 0


@pytest.mark.parametrize("how", ["pasted", "uploaded"])
def test_a_configuration_from_elsewhere_becomes_the_workload(site, page, full_folder, how):
    page.goto(site)
    page.fill("input[name=on]", "Pitzer")
    if how == "pasted":
        page.get_by_text("Paste a config.json").click()
        page.fill("#pasted", (full_folder / "config.json").read_text())
        page.get_by_role("button", name="Use it").click()
    else:
        page.set_input_files("#file", full_folder / "config.json")
    page.wait_for_selector("#answer tbody tr")
    assert page.locator("#workload").input_value().endswith("/config.json")


def test_a_task_is_found_again_after_its_tab_was_closed(site, page):
    with httpx.Client(base_url=site, timeout=60) as client:
        task = client.post("api/v1/tasks/recommend", json={"workload": "config.json", "steps": 1000}).json()["id"]
        page.goto(f"{site}jobs")
        row = page.locator("#tasks tr", has_text="config.json").first
        row.wait_for()
        page.goto("about:blank")
        while client.get(f"api/v1/tasks/{task}").json()["state"] in ("queued", "running"):
            time.sleep(0.1)
    page.goto(f"{site}jobs")
    link = page.locator(f"#tasks a[aria-label*='{task}']")
    link.wait_for()
    assert serious(page) == []
    link.click()
    page.get_by_text('"schema":"leadline.recommendation/1"').wait_for()


def test_a_table_of_tasks_follows_them_to_their_end(site, page):
    with httpx.Client(base_url=site, timeout=60) as client:
        task = client.post("api/v1/tasks/recommend", json={"workload": "config.json", "steps": 1000}).json()["id"]
    page.goto(f"{site}jobs")
    page.locator(f"#tasks a[aria-label*='{task}']").wait_for(timeout=120_000)  # without a reload


def test_the_links_of_jobs_lead_to_them_also_after_a_refresh(site, page):
    page.goto(f"{site}jobs")
    link = page.locator("#jobs a").first
    link.wait_for()
    before = link.evaluate("link => link.href")
    with page.expect_response("**/jobs/table*"):
        page.evaluate("htmx.trigger(document.body, 'refresh')")
    page.wait_for_timeout(300)
    assert link.evaluate("link => link.href") == before


def test_a_job_is_approved_and_cancelled_after_a_question(site, page):
    questions = []
    page.on("dialog", lambda dialog: (questions.append(dialog.message), dialog.accept()))
    key, *_ = examples.add_jobs(next(NUMBERS))
    page.goto(f"{site}jobs/{key}")
    page.get_by_role("button", name="Approve").click()
    page.locator(".story", has_text="the user allowed a prediction to restart it").wait_for()
    page.locator(".story summary").first.click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("being cancelled").wait_for()
    assert len(questions) == 2
    assert page.locator(".story details[open]").count() == 1, "the live page closed what was open"


def test_the_chat_answers_with_the_command(site, page):
    page.goto(f"{site}chat")
    page.fill("#text", "how much memory does an MI250X have?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk pre >> nth=1", timeout=60_000)
    assert "leadline devices show MI250X" in page.inner_text("#talk")
    assert serious(page) == []
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save the conversation").click()
    assert "## how much memory does an MI250X have?" in saved.value.path().read_text()


@pytest.mark.usefixtures("full_folder")
def test_the_pictures_of_the_documentation_are_made(browser, tmp_path):
    """Written into the documentation if ``LEADLINE_PICTURES`` is set."""
    folder = PICTURES if os.environ.get("LEADLINE_PICTURES") else tmp_path
    # A workload without notes, which would name the folder of this test.
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "max_position_embeddings": 2048}))
    with served(WebSettings("", tmp_path, allow_submit=True)) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        ask(page, f"{address}/", steps="10000", batch="16", on="Ascend, Pitzer, Delta")
        beginning = {"x": 0, "y": 0, "width": 1280, "height": 1500}
        page.screenshot(path=folder / "estimate.png", full_page=True, clip=beginning)
        page.goto(f"{address}/{JOB}")
        page.screenshot(path=folder / "job.png")
        page.close()
    for name in ("estimate", "job"):
        assert (folder / f"{name}.png").stat().st_size > 10_000
