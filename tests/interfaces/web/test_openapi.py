"""Property-based requests over the whole OpenAPI document: no answer is a fault, and each is what the document says."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from urllib.parse import urlsplit

import pytest

from leadline.app.jobs.journal import open_journal
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from tests.interfaces.web.conftest import TOKEN

pytest.importorskip("schemathesis", reason="needs schemathesis")

CONFIG = """
[dictionaries.workloads]
values = ["config.json", "missing.json"]
[dictionaries.places]
values = ["T4", "Pitzer", "nowhere"]
[dictionaries.names]
values = ["Pitzer", "T4", "nowhere"]
[dictionaries.jobs]
values = ["train", "nosuch"]
[dictionaries.files]
values = ["config.json", "model.onnx"]

[parameters]
"body.workload" = {dictionary = "workloads", probability = 0.8}
"body.on[*]" = {dictionary = "places", probability = 0.8}
"body.name" = {dictionary = "names", probability = 0.8}
"body.job" = {dictionary = "jobs", probability = 0.8}
"body.jobs[*]" = {dictionary = "jobs", probability = 0.8}
"path.name" = {dictionary = "files", probability = 0.8}

[checks]
positive_data_acceptance.enabled = false  # only a verb can judge whether there is such a file or system
use_after_free.enabled = false  # DELETE cancels a task, whose state stays
allow_header_conformance.enabled = false  # Starlette names the methods of one route of several at a path

[phases.stateful.generation]
max-examples = 8

[[operations]]
include-path = "/api/v1/events"
request-timeout = 0.5  # it does not end by itself

[[operations]]
include-path-regex = "/(tasks/[a-z]+|fit|submit)$"
phases.coverage.enabled = false  # their arguments are, nearly all, those of other tools
"""
NOT_ALLOWED = ("submit", "cancel", "approve")
"""Tools that the server of the tests refuses."""


@pytest.fixture
def job():
    with open_journal() as journal:
        spec = JobSpec("train", ("true",), ResourceSpec())
        journal.add([Job("job0", spec, Policy((Place("local"),)), state=JobState.PENDING)])


def operation_of(method, path, document):
    """Return the operation that answers a request; None for a method that its path does not have."""
    for template in sorted(document["paths"], key=lambda template: "{" in template):
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path):
            return document["paths"][template].get(method.lower(), {}).get("operationId")
    return None


@pytest.mark.slow
def test_no_request_finds_a_fault_and_all_operations_are_reached(address, client, job, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    words = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run",
        f"{address}/api/v1/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", "--max-examples", "2", "--seed", "1",
        "--generation-database", "none", "--no-shrink", "--workers", "2", "--report", "har", "--report-har-path",
        "har.json", "--no-color",
    ]  # fmt: skip
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    document = client.get("/api/v1/openapi.json").json()
    statuses = defaultdict(Counter)
    for entry in json.loads((tmp_path / "har.json").read_text())["log"]["entries"]:
        request = entry["request"]
        operation = operation_of(request["method"], urlsplit(request["url"]).path, document)
        statuses[operation][entry["response"]["status"]] += 1
    operations = {each["operationId"] for path in document["paths"].values() for each in path.values()}
    refused = {f"{start}{name}" for name in NOT_ALLOWED for start in ("", "start-")}
    unreached = [name for name in operations - refused if not any(status < 300 for status in statuses[name])]
    assert unreached == []
    assert all(statuses[name][403] for name in refused)
    assert set(statuses[None]) <= {404, 405}
