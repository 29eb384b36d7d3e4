"""Property-based requests over the whole OpenAPI document: no answer is a fault, and each is what the document says."""

import json
import subprocess
import sys
from collections import Counter, defaultdict

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
values = ["T4", "Pitzer", "H100 SXM 80GB", "nowhere"]
[dictionaries.names]
values = ["Pitzer", "T4", "nowhere"]
[dictionaries.jobs]
values = ["train", "nosuch"]

[parameters]
"body.workload" = {dictionary = "workloads", probability = 0.8}
"body.on[*]" = {dictionary = "places", probability = 0.8}
"body.name" = {dictionary = "names", probability = 0.8}
"body.job" = {dictionary = "jobs", probability = 0.8}
"body.jobs[*]" = {dictionary = "jobs", probability = 0.8}

[checks.positive_data_acceptance]
enabled = false  # only a verb can judge whether there is such a file or system

[[operations]]
include-path = "/api/v1/events"
request-timeout = 0.5  # it does not end by itself
"""
ONLY_REFUSED = {"submit", "start-submit", "cancel", "start-cancel", "approve", "start-approve"}
"""Operations that the server of the tests does not allow."""


@pytest.fixture
def job():
    with open_journal() as journal:
        spec = JobSpec("train", ("true",), ResourceSpec())
        journal.add([Job("job0", spec, Policy((Place("local"),)), state=JobState.PENDING)])


def test_no_request_finds_a_fault(address, job, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    words = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run",
        f"{address}/api/v1/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", "--max-examples", "5", "--seed", "1",
        "--generation-database", "none", "--no-shrink", "--max-time", "45", "--report", "har",
        "--report-har-path", "har.json", "--no-color",
    ]  # fmt: skip
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    print(ended.stdout[-3000:])
    statuses = defaultdict(Counter)
    for entry in json.loads((tmp_path / "har.json").read_text())["log"]["entries"]:
        path = entry["request"]["url"].partition("/api/v1")[2].partition("?")[0]
        statuses[entry["request"]["method"], path][entry["response"]["status"]] += 1
    for key, counts in sorted(statuses.items(), key=str):
        print(key, dict(counts))
