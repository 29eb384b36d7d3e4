"""``leadline explain``: a job's story, in sentences with units."""

import json

import pytest

from leadline.app.jobs.event_log import format_details
from leadline.core.jobs import JobState
from leadline.core.plane import EventKind
from leadline.interfaces.cli.main import main

KEPT = {
    "action": "keep", "why": "it lasts beyond its limit with 31 %, but it may still end in time", "elapsed_s": 2400.0,
    "total_s": 7100.0, "total_low_s": 6900.0, "total_high_s": 7400.0, "late": 0.31,
}  # fmt: skip
AGAIN = {"action": "resubmit", "why": "it was ended at its limit: it is submitted again", "walltime_s": 10800.0,
         "spent_node_s": 7200.0, "needed_bytes": 2.0**33, "place": "Pitzer:gpu"}  # fmt: skip


@pytest.fixture
def story(written):
    job = written.job("b1c2d3e4f5a6")
    attempt = written.attempt(job, state=JobState.RUNNING)
    written.tells(EventKind.FAULT, {"system": "Pitzer", "why": "squeue: no answer in 60 s"})
    written.tells(EventKind.FAULT, {"system": "Elsewhere", "why": "is none of its places"})
    written.tells(EventKind.POLL, {"system": "Pitzer", "live": 3})
    written.tells(EventKind.POLL, {"system": "Pitzer", "answers": "again"})
    for steps in range(100, 600, 100):
        written.tells(EventKind.PROGRESS, {"steps": steps, "total": 1000, "host_memory_bytes": 2.0**33}, attempt)
        written.tells(EventKind.DECISION, KEPT, attempt)
    written.tells(EventKind.FAULT, {"asked": "extend", "why": "Access/permission denied"}, attempt)
    ended = written.ends(attempt, JobState.TIMEOUT, "it was ended at its limit after 2h 00m")
    written.tells(EventKind.DECISION, AGAIN, ended)
    written.attempt(job, 2, state=JobState.RUNNING)
    return written


def told(capsys, *words):
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_the_event_log_has_events_and_reasons_with_units(story, capsys):
    text = told(capsys, "b1c2")
    for sentence in (
        "b1c2d3e4f5a6  train  RUNNING",
        "2 attempts of at most 4",
        "requests   1 node, 8 cores per task, 1 GPU per node, 16.0 GiB per node, at most 2h 00m",
        "where      Pitzer:gpu, else Owens:serial",
        "Pitzer does not answer: squeue: no answer in 60 s",
        "Pitzer answers again",
        "attempt 1: progress: 500 of 1000 steps, memory 8.00 GiB (5 times since",
        "kept: it lasts beyond its limit with 31 %, but it may still end in time (5 times since",
        "expected total: 1h 58m from 1h 55m to 2h 03m; probability of hitting the limit: 31 %",
        "the scheduler refused to extend the limit: Access/permission denied",
        "attempt 1: ended TIMEOUT: it was ended at its limit after 2h 00m",
        "resubmitted: it was ended at its limit: it is submitted again",
        "limit: 3h 00m; used by all attempts: 2 node-hours; memory needed: 8.00 GiB",
        "1  Pitzer:gpu as 4001 on p0123: TIMEOUT",
        "of 2h 00m, memory 8.00 GiB of 16.0 GiB (50%)",
    ):
        assert sentence in text, sentence


def test_polls_and_events_of_other_jobs_are_left_out(story, capsys):
    text = told(capsys, "b1c2", "--all")
    assert "live" not in text
    assert "Elsewhere" not in text
    assert text.count("kept") == 5


def test_the_document_has_every_sentence_with_its_figures(story, capsys):
    document = json.loads(told(capsys, "b1c2", "--json"))
    assert document["schema"] == "leadline.story/1"
    assert [one["state"] for one in document["job"]["attempts"]] == ["TIMEOUT", "RUNNING"]
    (kept,) = [one for one in document["told"] if one["said"].get("action") == "keep"]
    assert (kept["times"], kept["said"]["late"]) == (5, 0.31)
    assert document["used"][0]["measured"]["host_memory_bytes"] == 2.0**33


def test_lines_fit_eighty_columns(story, capsys, monkeypatch):
    monkeypatch.setattr("leadline.interfaces.cli.output.PIPE_WIDTH", 80)
    # A path stays whole, so that it can be copied.
    lines = [line for line in told(capsys, "b1c2").splitlines() if not line.startswith("     output /")]
    assert max(map(len, lines)) <= 80


def test_an_array_needs_the_choice_of_an_element(written, capsys):
    for at in range(3):
        job = written.job(f"e{at:011}", group="3f2a91b4c0de", index=at)
        written.closes(job, JobState.FAILED if at == 2 else JobState.COMPLETED, "exit code 1" if at == 2 else "")
    assert main(["explain", "3f2a91"]) == 2
    assert "for example of the 1 that did not complete, such as 3f2a91b4c0de_2\n" in capsys.readouterr().err
    assert "FAILED" in told(capsys, "3f2a91_2")


def test_a_name_that_fits_none_or_several_is_one_sentence(written, capsys):
    written.job("aa0000000001")
    written.job("aa0000000002")
    for name in ("aa", "nothing"):
        assert main(["explain", name]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1


def test_a_detail_without_a_label_still_has_its_unit():
    said = {
        "backlog_s": 90.0,
        "scratch_bytes": 2.0**20,
        "held_node_s": 3600.0,
        "cause": "node",
        "tries": 2,
        "seen": True,
    }
    assert (format_details(said)) == (
        "backlog: 1m 30s",
        "scratch: 1.00 MiB",
        "held: 1 node-hours",
        "cause: node",
        "tries: 2",
        "seen: yes",
    )
