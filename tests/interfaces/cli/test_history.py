"""``leadline history``: one run beside its prediction, all of them, and what cannot be shown."""

import csv
import io
import json
from dataclasses import replace

import pytest

from leadline.app import settings
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run
from leadline.history.sqlite import SqliteHistory
from leadline.interfaces.cli.main import main

RUN = Run(
    "abc123", JobSpec("train", ("python", "train.py"), ResourceSpec()), JobState.COMPLETED, "2026-01-02T03:04:05",
    host="node7",
    predicted=Estimate(
        Target("cpu"), "white-box", Basis(Tier.CALIBRATED), elapsed_s=Interval(90.0, 60.0, 120.0),
        host_memory_bytes=Interval(2.0**30, 2.0**29, 2.0**31),
    ),
    measured={
        "elapsed_s": Measurement(100.0, "s", "wall clock"),
        "host_memory_bytes": Measurement(2.0**32, "B", "cgroup peak", 0.1),
    },
)  # fmt: skip
CUT_OFF = replace(
    RUN, id="abd456", state=JobState.TIMEOUT, started_at="2026-01-03T00:00:00", tags={"reason": "the limit"}
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    store = SqliteHistory(settings.history_path())
    store.add(RUN)
    store.add(CUT_OFF)


def run(capsys, *words, code=0):
    assert code == main(["history", *words])
    return capsys.readouterr()


def test_a_run_is_shown_by_the_beginning_of_its_id(capsys):
    lines = run(capsys, "show", "abc").out.splitlines()
    assert lines[0] == "abc123  train: COMPLETED on node7, started 2026-01-02T03:04:05"
    time, memory = lines[2:4]
    assert "1m 30s" in time
    assert "-10.0 %" in time
    assert "outside" not in time
    assert "-75.0 % (outside)" in memory
    assert "cgroup peak, every 100 ms at most" in memory


def test_a_run_that_was_cut_off_has_a_reason_and_no_error(capsys):
    printed = run(capsys, "show", "abd456").out
    assert "reason: the limit" in printed
    assert "≥ 1m 40s" in printed
    assert "%" not in printed
    assert printed.rstrip().endswith("The run was cut off: measurements are lower bounds.")


def test_one_run_is_one_document_with_its_comparison(capsys):
    document = json.loads(run(capsys, "show", "abc123", "--json").out)
    assert (document["schema"], document["id"]) == ("leadline.run/1", "abc123")
    assert [(one["quantity"], one["within"]) for one in document["comparison"]] == [
        ("elapsed_s", True),
        ("host_memory_bytes", False),
    ]


def test_the_list_has_the_newest_first_and_may_be_cut(capsys):
    assert [line.split()[0] for line in run(capsys, "list").out.splitlines()[1:]] == ["abd456", "abc123"]
    assert [load["id"] for load in json.loads(run(capsys, "list", "--limit", "1", "--json").out)["runs"]] == ["abd456"]


def test_the_export_has_a_line_a_run_under_one_header(capsys):
    rows = list(csv.DictReader(io.StringIO(run(capsys, "export").out)))
    assert [row["id"] for row in rows] == ["abd456", "abc123"]
    assert [load["id"] for load in json.loads(run(capsys, "export", "--format", "json").out)["runs"]] == [
        "abd456",
        "abc123",
    ]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("show", "ab"), 2, "unknown run 'ab'"),
        (("show", "zzz"), 2, "unknown run 'zzz'"),
        (("list", "--limit", "0"), 2, "invalid value for '--limit'"),
        (("export", "--format", "xml"), 2, "--format is 'xml', but it must be csv or json"),
        (("shwo",), 2, "Did you mean 'show'"),
    ],
)
def test_an_unknown_run_is_refused_in_one_sentence(capsys, words, code, says):
    printed = run(capsys, *words, code=code)
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err


def test_a_damaged_history_is_named_and_left_as_it_is(capsys):
    settings.history_path().write_bytes(b"not a database" * 100)
    printed = run(capsys, "list", code=1)
    assert "is damaged or not a history" in printed.err
    assert settings.history_path().read_bytes() == b"not a database" * 100
