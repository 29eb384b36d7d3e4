"""Values that the pages show, without a browser."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from leadline.execution.clock import iso_utc
from leadline.interfaces import web
from leadline.interfaces.page_text import clock, limits, money
from leadline.interfaces.web.plot_series import learning_curve
from tests.interfaces.web import examples

PAGES = ("", "jobs", "systems", "systems/Pitzer", "campaigns", "pipelines", "models", "history", "chat")
FIRST_PAINT_BYTES, STATIC_BYTES = 100_000, 400_000


@pytest.fixture(scope="module")
def jobs(own_folders):
    return examples.add_jobs()


def series(html, plot):
    """Return the series of a plot of a page."""
    (text,) = re.findall(rf"data-plot=\"{plot}\" data-series='([^']*)'", html)
    return json.loads(unescape(text))


def test_the_memory_of_the_first_option_is_drawn_over_one_step(client):
    question = {"workload": "config.json", "steps": 1000, "batch": 8, "on": "Ascend"}
    html = client.get("/estimate", params=question).text
    (part,) = re.findall(r'id="memory"[^>]*hx-get="\./(memory\?[^"]*)"', html)
    drawn = series(client.get(f"/{unescape(part)}").text, "memory")
    assert len(drawn["share"]) > 10
    assert set(drawn["held"]) >= {"parameter", "activation"}
    assert max(drawn["reserved"]) == drawn["peak"] > 0


def test_the_memory_of_a_cpu_has_no_timeline(client):
    html = client.get("/memory", params={"workload": "config.json", "batch": 8, "place": "Pitzer:cpu"}).text
    assert "Host memory: needs" in html
    assert "data-plot" not in html


def test_the_first_option_stands_beside_a_request_without_limits(client):
    html = client.get(
        "/estimate", params={"workload": "config.json", "steps": 10000, "precision": "fp16", "on": "Pitzer:gpu"}
    ).text
    compared = html.partition('<table class="compare">')[2].partition("</table>")[0]
    recommended, whole = (float(amount) for amount in re.findall(r"\$([\d.]+)(?:</b>|</td>)", compared))
    assert 0 < recommended < whole


def test_every_prediction_of_a_running_job_is_in_the_plot_of_its_end(client, jobs):
    ends = series(client.get(f"/jobs/{jobs[0]}").text, "ends")
    widths = [high - low for low, high in zip(ends["low"], ends["high"], strict=True)]
    assert len(widths) == examples.DECISIONS + 1
    assert widths == sorted(widths, reverse=True)


def test_the_end_of_a_job_is_expected_as_its_plot_ends(client, jobs):
    html = client.get(f"/jobs/{jobs[0]}").text
    low, high = (clock(iso_utc(series(html, "ends")[bound][-1])) for bound in ("low", "high"))
    assert f"between {low} and {high} with" in html


def test_what_a_running_job_does_not_tell_is_said_with_the_next_step(client):
    waits = client.get(f"/jobs/{examples.add_jobs(90)[1]}").text
    assert "known once it runs" in waits
    assert "leadline.progress.report" not in waits


def test_jobs_that_have_ended_are_not_called_none(client, own_folders, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert "Tick the box above to see those that have ended" in client.get("/jobs").text
    assert "Tick the box" not in client.get("/jobs/table", params={"all": 1}).text


def test_an_unknown_address_gets_a_page_in_a_browser_and_a_problem_document_elsewhere(client):
    page = client.get("/nowhere/at/all", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert "Unknown address &#39;/nowhere/at/all&#39;." in page.text
    assert "<nav" in page.text
    for headers in ({}, {"Accept": "text/html, */*", "HX-Request": "true"}):
        answer = client.get("/nowhere", headers=headers)
        assert answer.json()["detail"] == "unknown address '/nowhere'"
        assert answer.headers["Content-Type"] == "application/problem+json"


def test_the_memory_of_a_job_is_shown_against_the_limit_of_its_newest_attempt(client, jobs):
    html = client.get(f"/jobs/{jobs[0]}").text
    assert "6.75 GiB of 16.0 GiB" in html
    assert "20.0 GiB of 32.0 GiB" in html


def test_a_job_shows_all_its_events_on_demand(client, jobs):
    short, whole = (client.get(f"/jobs/{jobs[0]}{more}").text for more in ("", "?all=1"))
    assert short.count("it will probably end within its limit") < examples.DECISIONS
    assert whole.count("it will probably end within its limit") >= examples.DECISIONS


def test_a_job_that_lacks_consent_names_the_command(client, jobs):
    assert f"leadline approve {jobs[0]}" in client.get(f"/jobs/{jobs[0]}").text
    assert "leadline approve" not in client.get(f"/jobs/{jobs[1]}").text


@pytest.mark.parametrize(
    ("field", "written", "says"),
    [("batch", "-3", "Batch is &#39;-3&#39;: write a whole number above 0."),
     ("gpus", "1.5", "Gpus is &#39;1.5&#39;: write a whole number above 0."),
     ("epochs", "0", "Epochs is &#39;0&#39;: write a number above 0."),
     ("budget", "-1", "Budget is &#39;-1&#39;: write a number above 0.")],
)  # fmt: skip
def test_a_field_that_cannot_be_used_is_named_with_its_fix(client, field, written, says):
    assert says in client.get("/estimate", params={"workload": "config.json", field: written}).text


def test_a_step_that_fits_nowhere_shows_why_at_once(client):
    question = {"workload": "config.json", "steps": 10, "batch": 100_000, "precision": "fp16", "on": "Pitzer:gpu"}
    html = client.get("/estimate", params=question).text
    assert "<details open><summary>1 partition left out, and why</summary>" in html
    assert re.search(r'<p class="notice">A step that fits into .* would make Pitzer:gpu fit\.</p>', html)


def test_the_front_names_its_currency(client):
    question = {"workload": "config.json", "steps": 1000, "batch": 8, "precision": "fp16", "on": "Pitzer"}
    assert 'data-plot="front" data-currency="USD"' in client.get("/estimate", params=question).text


def test_what_is_unknown_gets_a_page_that_says_so(client):
    answer = client.get("/jobs/<b>none<b>")
    assert answer.status_code == 404
    assert "&lt;b&gt;none&lt;b&gt;" in answer.text
    assert "<nav" in answer.text


def test_the_history_compares_the_request_with_the_use(client):
    examples.add_runs()
    html = client.get("/history").text
    assert "4h 00m" in html
    assert "16.0 GiB" in html
    assert 'aria-label="time used of that asked"' in html
    assert "In the median, completed runs used 27 % of the time and 30 % of the memory that they asked for." in html


def test_a_model_shows_its_coverage_as_a_percentage_and_its_newest_predictions(client):
    pytest.importorskip("sklearn")
    card = examples.add_model(examples.add_runs())
    (errors, *_) = card.targets[0].errors.values()
    html = client.get("/models").text
    assert f'class="number">{errors.coverage:.0f} %</td>' in html
    shown = [json.loads(unescape(text)) for text in re.findall(r"data-plot=\"measured\" data-series='([^']*)'", html)]
    assert [points["quantity"] for points in shown] == ["elapsed_s", "host_memory_bytes"]
    assert shown[0]["within"] == 1.0
    assert shown[1]["within"] < 1.0
    assert "o drift of time over 12 runs" in html
    assert "Host memory drifted: since run" in html


def test_a_learning_curve_has_completed_runs_only():
    ended = (("COMPLETED", 1.0), ("FAILED", 0.01), ("COMPLETED", 2.0), ("PENDING", None))
    runs = [{"state": state, "forecast_s": 2.0, "elapsed_s": elapsed_s} for state, elapsed_s in ended]
    assert learning_curve(runs) == {"run": [1.0, 2.0], "error": [100.0, 0.0], "recent": [100.0, 50.0]}
    assert learning_curve(runs[:2]) is None


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (123456.7, "USD", "$123,457"), (0.00012, "USD", "$0.00012"), (0.0, "USD", "$0"), (None, "USD", "unknown"),
        (12.5, "SU", "12.5 SU"),
    ],
)  # fmt: skip
def test_an_amount_has_no_exponent(amount, currency, text):
    assert money(amount, currency) == text


def test_limits_of_a_job_are_read_from_its_partition():
    unset = dict.fromkeys(
        ("max_walltime_s", "min_nodes", "max_nodes", "min_cores", "max_cores", "max_gpus", "min_memory_bytes",
         "max_submitted_jobs")
    )  # fmt: skip
    assert limits(unset) == "unknown"
    given = {**unset, "max_walltime_s": 3600.0, "max_nodes": 4, "min_cores": 2, "max_gpus": 8}
    assert limits(given) == "at most 1h 00m, 1 to 4 nodes, 2 or more cores, 1 to 8 GPUs"


@pytest.mark.parametrize("path", PAGES)
def test_the_first_paint_of_a_page_is_light(client, path):
    sent, page = 0, client.base_url.join(f"/{path}")
    linked = set(re.findall(r'(?:href|src)="(\.[./]*static/[^"]+)"', client.get(page).text))
    for address in (page, *map(page.join, linked)):
        with client.stream("GET", address) as answer:
            answer.read()
            assert answer.status_code == 200
            sent += answer.num_bytes_downloaded
    assert 10_000 < sent <= FIRST_PAINT_BYTES


def test_all_static_files_are_light():
    files = list((Path(web.__file__).parent / "static").iterdir())
    assert sum(file.stat().st_size for file in files) <= STATIC_BYTES
