"""The pages of pipelines: the list, the season of one, and the tool behind both."""

import json

import jsonschema
import pytest

from leadline.interfaces.json_schemas import json_schema
from tests.interfaces.web.test_injection import HOSTILE, assert_harmless
from tests.support.recorded_season import PIPELINE, record_season


@pytest.fixture(scope="module")
def traps(web_folder):
    (web_folder / "new.toml").write_text(PIPELINE.replace('"traps"', '"new"').replace('"season"', '"next-season"'))
    (web_folder / "broken.toml").write_text(
        PIPELINE.replace('"traps"', '"broken"').replace('tier = "edge"', "tier = 1")
    )
    return record_season(web_folder)


def season_of(client, name="traps"):
    answer = client.post("/api/v1/pipelines", json={"name": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_list_has_the_pipelines_of_the_folder_and_their_faults(client, traps):
    document = client.post("/api/v1/pipelines", json={}).json()
    jsonschema.Draft202012Validator(json_schema(document["schema"])).validate(document)
    entries = {entry["name"]: entry for entry in document["pipelines"]}
    assert entries.keys() == {"broken", "new", "traps"}
    assert "tier" in entries["broken"]["error"]
    assert (entries["new"]["status"], entries["new"]["error"]) == (None, "")
    html = client.get("/pipelines").text
    assert 'href="./pipelines/traps"' in html
    assert "10 runs completed" in html
    assert "Never run" in html


def test_a_season_has_predicted_and_measured_runs_metrics_costs_and_decisions(client, traps):
    document = season_of(client)
    jsonschema.Draft202012Validator(json_schema(document["schema"])).validate(document)
    runs = [run for run in document["runs"] if run["stage"] == "label"]
    assert [run["number"] for run in runs] == list(range(10, 0, -1))
    assert runs[-1]["predicted_s"] is None
    assert runs[0]["predicted_s"]["point"] == pytest.approx(2.0)
    assert runs[0]["recommended_bytes"] == pytest.approx(1.3e8)
    assert runs[0]["evidence"] == ["edge: 2.0 s"]
    hpc = document["outcome"]["tiers"]["hpc"]
    assert (hpc["busy_s"], hpc["cost_usd"], hpc["energy_j"]) == (40.0, pytest.approx(0.08), None)
    assert document["outcome"]["tiers"]["edge"]["energy_j"] == pytest.approx(10 * 22.0)


def test_the_page_draws_each_metric_and_links_each_run_to_its_job(client, traps):
    html = client.get("/pipelines/traps").text
    drawn = {metric["name"]: metric for metric in season_of(client)["metrics"]}
    assert drawn["accuracy"]["values"] == pytest.approx([0.84, 0.89])
    assert html.count('data-plot="metric"') == len(drawn) == 3
    assert html.count('data-plot="measured"') == 2  # time and memory of label; the others have one prediction
    job = season_of(client)["runs"][0]["job"]
    assert f'href="../jobs/{job}"' in html
    assert "the only tier of the stage" in html
    assert "$0.08" in html


def test_the_page_shows_the_images_in_the_folder_of_figures(client, web_folder, traps):
    figures = web_folder / "season/figures"
    figures.mkdir()
    (figures / "accuracy of all.png").write_bytes(b"\x89PNG")
    (figures / "script.svg").write_text("<svg/>")
    assert season_of(client)["figures"] == ["accuracy of all.png"]
    assert 'src="../pipelines/traps/figures/accuracy%20of%20all.png"' in client.get("/pipelines/traps").text
    image = client.get("/pipelines/traps/figures/accuracy%20of%20all.png")
    assert (image.content, image.headers["content-type"]) == (b"\x89PNG", "image/png")
    for name in ("script.svg", "..%2F..%2Ftraps.toml", "none.png"):
        assert client.get(f"/pipelines/traps/figures/{name}").status_code == 404


@pytest.mark.parametrize(("name", "status"), [("none", 404), ("new", 422), ("broken", 422)])
def test_a_pipeline_without_a_season_is_refused_with_the_reason(client, traps, name, status):
    answer = client.post("/api/v1/pipelines", json={"name": name})
    assert answer.status_code == status, answer.text
    assert client.get(f"/pipelines/{name}").status_code == status


def test_nothing_that_a_pipeline_holds_is_shown_as_html(client, web_folder, traps):
    file = web_folder / "hostile.toml"
    for text in HOSTILE:
        quoted = json.dumps(text)
        file.write_text(PIPELINE.replace('"traps"', quoted).replace('"true"', quoted))
        assert_harmless(client.get("/pipelines").text)
    file.unlink()
