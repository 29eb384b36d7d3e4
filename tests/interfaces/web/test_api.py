"""The REST API over real HTTP: every tool, tasks, and errors as problem documents."""

import json
import os
import time
from pathlib import Path
from urllib.parse import urljoin

import jsonschema
import pytest

from leadline.app.jobs.journal import journal_path
from leadline.catalog.read import LOOK_S
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from leadline.execution.plane.journal import PlaneJournal
from leadline.interfaces.json_schemas import json_schema
from leadline.interfaces.web.openapi import EXAMPLES
from leadline.interfaces.web.problems import MEDIA_TYPE, PROBLEM_SCHEMA
from leadline.interfaces.web.tasks import TASK_SCHEMA, TASKS_SCHEMA
from tests.interfaces.test_tools import READING


def refused(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == MEDIA_TYPE
    problem = answer.json()
    jsonschema.validate(problem, PROBLEM_SCHEMA)
    return problem["detail"]


@pytest.mark.parametrize(("name", "arguments"), [(name, each) for name, several in READING.items() for each in several])
def test_a_tool_answers_with_its_document(client, name, arguments):
    answer = client.post(f"/api/v1/{name}", json=arguments)
    assert answer.status_code == 200, answer.text
    jsonschema.Draft202012Validator(json_schema(answer.json()["schema"])).validate(answer.json())


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("estimate", {"workload": "config.json", "batch": -1}, 422, "batch"),
        ("estimate", {"workload": "config.json", "on": ["no-such-gpu"]}, 404, "no-such-gpu"),
        ("estimate", {"workload": "../../etc/passwd"}, 422, "outside"),
        ("systems", {"name": "nowhere"}, 404, "nowhere"),
        ("systems", [], 422, "object"),
        ("submit", {"command": ["true"]}, 403, "--allow-submit"),
        ("cancel", {"jobs": ["x"]}, 403, "--allow-submit"),
        ("tasks/cancel", {"jobs": ["x"]}, 403, "--allow-submit"),
        ("nothing", {}, 404, "unknown address"),
    ],
)
def test_what_cannot_be_done_is_a_problem_document(client, path, body, status, words):
    assert words in refused(client.post(f"/api/v1/{path}", json=body), status)


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[" * 100_000, b"\xff\xfe", b'{"name": 1e999999}', b"NaN", b'{"name": "\\ud800"}', b'{"limit": NaN}',
        b'{"limit": ' + b"9" * 5000 + b"}", b"",
    ],
)  # fmt: skip
def test_a_body_that_is_not_json_of_arguments_is_refused(client, body):
    answer = client.post("/api/v1/systems", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    refused(answer, answer.status_code)


def start(client, tool, arguments):
    """Start a task; return its address."""
    path = f"/api/v1/tasks/{tool}"
    started = client.post(path, json=arguments)
    assert started.status_code == 202, started.text
    jsonschema.validate(started.json(), TASK_SCHEMA)
    assert "/" not in started.headers["Location"], "an absolute path is wrong behind a proxy that cuts its own"
    return urljoin(path, started.headers["Location"])


def events(client, task):
    """Return the events of a task until its end."""
    with client.stream("GET", f"{task}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        return [json.loads(line.removeprefix("data:")) for line in stream.iter_lines() if line.startswith("data:")]


def test_a_task_is_followed_to_its_answer(client):
    task = start(client, "estimate", {"workload": "config.json", "on": ["T4"]})
    last = events(client, task)[-1]
    assert last["state"] == "done"
    assert last["answer"]["schema"] == "leadline.estimate/1"
    assert client.get(task).json() == last
    assert client.delete(task).json() == last
    jsonschema.validate(last, TASK_SCHEMA)


def test_a_task_that_fails_gives_its_reason(client):
    task = start(client, "systems", {"name": "nowhere"})
    assert events(client, task)[-1]["state"] == "failed"
    assert "nowhere" in client.get(task).json()["error"]


def test_a_task_is_cancelled(client):
    task = start(client, "recommend", {"workload": "config.json", "steps": 1000})
    assert client.delete(task).json()["state"] == "cancelling"
    assert events(client, task)[-1]["state"] == "cancelled"


def test_the_tasks_of_the_server_are_listed_the_newest_first_each_with_its_address(client):
    first = start(client, "estimate", {"workload": "config.json", "on": ["T4"]})
    events(client, first)
    second = start(client, "systems", {"name": "nowhere"})
    events(client, second)
    answer = client.get("/api/v1/tasks")
    assert answer.status_code == 200
    jsonschema.validate(answer.json(), TASKS_SCHEMA)
    newest, older = answer.json()["tasks"][:2]
    assert (newest["tool"], newest["subject"], newest["state"]) == ("systems", "nowhere", "failed")
    assert "nowhere" in newest["error"]
    assert (older["tool"], older["subject"], older["state"]) == ("estimate", "config.json", "done")
    assert newest["created_at"] > older["created_at"]
    assert "answer" not in older
    assert urljoin("/api/v1/tasks", older["link"]) == first
    assert client.get(first).json()["answer"]["schema"] == "leadline.estimate/1"
    described = client.get("/api/v1/openapi.json").json()["paths"]["/api/v1/tasks"]["get"]["responses"]["200"]
    assert described["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/tasks-1"}


def test_a_task_that_is_not_there_is_a_problem_document(client):
    refused(client.get("/api/v1/tasks/no-such-task"), 404)
    assert "earlier run" in refused(client.get("/api/v1/tasks/01234567-1"), 410)
    refused(client.delete("/api/v1/tasks/01234567-1"), 410)
    refused(client.get("/api/v1/tasks/01234567-1/events"), 410)
    refused(client.post("/api/v1/tasks/systems", json={"nome": "x"}), 422)


def test_the_openapi_document_has_every_tool_and_every_reference(client):
    document = client.get("/api/v1/openapi.json").json()
    assert {f"/api/v1/{name}" for name in READING} <= set(document["paths"])
    names = set(document["components"]["schemas"])
    references = {
        line.split("/")[-1] for line in json.dumps(document).split('"') if line.startswith("#/components/sch")
    }
    assert references <= names


def test_every_operation_of_the_openapi_document_describes_its_answer(client):
    document = client.get("/api/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            (answer,) = (each for status, each in operation["responses"].items() if status.startswith("2"))
            (content,) = answer["content"].values()
            assert content["schema"], f"{method} {path}"
            assert operation["operationId"].replace("-", "").isalpha(), operation["operationId"]


def test_the_openapi_document_describes_the_headers_that_answers_have(client):
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    started = client.post("/api/v1/tasks/systems", json={})
    unsigned = client.post("/api/v1/systems", json={}, headers={"Authorization": ""})
    elsewhere = client.get("/api/v1/systems")
    for path, answer, header in (("tasks/systems", started, "Location"), ("systems", unsigned, "WWW-Authenticate"),
                                 ("systems", elsewhere, "Allow")):  # fmt: skip
        assert header in answer.headers
        assert header in paths[f"/api/v1/{path}"]["post"]["responses"][str(answer.status_code)]["headers"]
    for operations in paths.values():
        for operation in operations.values():
            assert "500" in operation["responses"]
            assert "Retry-After" in operation["responses"]["429"]["headers"]


@pytest.mark.parametrize("tool", [tool for tool in EXAMPLES if tool in READING])
def test_the_examples_of_the_openapi_document_are_answered(client, tool):
    answer = client.post(f"/api/v1/{tool}", json=EXAMPLES[tool])
    assert answer.status_code == 200, answer.text


def test_a_file_that_is_handed_over_can_be_estimated_and_is_its_owners_alone(client, web_folder):
    content = (web_folder / "config.json").read_bytes()
    answer = client.put("/api/v1/uploads/config.json", content=content)
    assert answer.status_code == 201
    workload = answer.json()["workload"]
    assert Path(workload).stat().st_mode & 0o077 == 0
    estimate = client.post("/api/v1/estimate", json={"workload": workload, "on": ["T4"]})
    assert estimate.json()["schema"] == "leadline.estimate/1"


@pytest.mark.parametrize(
    "name",
    [
        "train.py", "..json", "%2e%2e%2fconfig.json", "a/config.json", "-.json", "x" * 200 + ".json", "é.json",
        "\N{CJK UNIFIED IDEOGRAPH-6F22}" * 90 + ".json", "a%00.json", "a%0a.json",
    ],
)  # fmt: skip
def test_a_file_with_another_name_is_refused(client, name):
    assert client.put(f"/api/v1/uploads/{name}", content=b"{}").status_code in (404, 405, 422)


def test_files_of_yesterday_are_removed(client):
    old, new = (Path(client.put("/api/v1/uploads/model.json", content=b"{}").json()["workload"]) for _ in range(2))
    os.utime(old.parent, (0, 0))
    (old.parents[1] / "empty").mkdir()  # a server that was killed before it wrote
    os.utime(old.parents[1] / "empty", (0, 0))
    client.put("/api/v1/uploads/model.json", content=b"{}")
    assert new.exists()
    assert not old.parent.exists()
    assert not (old.parents[1] / "empty").exists()


def test_readers_are_told_of_a_change_and_a_late_one_of_what_it_missed(client):
    with client.stream("GET", "/api/v1/events") as waiting:
        lines = waiting.iter_lines()
        with PlaneJournal(journal_path()) as journal:
            job = Job("j1", JobSpec("train", ("true",), ResourceSpec()), Policy((Place("cluster", "short"),)))
            journal.add([job])
        told = next(line for line in lines if line.startswith("event:"))
    assert told == "event: jobs"
    with client.stream("GET", "/api/v1/events", headers={"Last-Event-ID": "0"}) as late:
        assert next(line for line in late.iter_lines() if line.startswith("event:")) == "event: jobs"


def test_a_system_that_is_added_while_the_server_runs_is_known(client):
    from leadline.app.settings import catalog_dir
    from tests.catalog.test_live import SITE

    assert client.post("/api/v1/systems", json={"name": "Bench"}).status_code == 404
    (catalog_dir() / "sites").mkdir(parents=True)
    (catalog_dir() / "sites" / "lab.toml").write_text(SITE.format(hours=48))
    time.sleep(LOOK_S)
    answer = client.post("/api/v1/systems", json={"name": "Bench"})
    (catalog_dir() / "sites" / "lab.toml").unlink()
    assert answer.status_code == 200
