"""``leadline jobs``: the table of the plane's jobs, and its document."""

import json
import re
import time
from datetime import datetime

import pytest
from click import unstyle

from leadline.app.jobs.job_status import JobStatus, JobUsage, job_statuses
from leadline.app.jobs.journal import plane_lock
from leadline.core.jobs import JobState
from leadline.core.plane import EventKind
from leadline.execution.clock import iso_utc, now_utc
from leadline.files.lock import file_lock
from leadline.interfaces.cli.jobs import format_clock_time, format_spent, jobs_table, plain_text, shorten_keys
from leadline.interfaces.cli.main import main
from leadline.interfaces.tables import cell_width

EVIL = 'a\n"job"\t\x1b[31m\r\x00$(true) \u202e'


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_job_that_runs_shows_how_far_it_is_and_until_when(written, capsys):
    job = written.job("b1c2d3e4f5a6")
    attempt = written.attempt(job, state=JobState.RUNNING)
    written.tells(EventKind.PROGRESS, {"steps": 430, "total": 1000}, attempt)
    written.tells(
        EventKind.DECISION,
        {"action": "keep", "total_s": 9000.0, "total_low_s": 8000.0, "total_high_s": 9500.0},
        attempt,
    )
    assert main(["jobs"]) == 0
    head, row = lines(capsys)
    assert head.split() == ["job", "name", "where", "state", "done", "time", "took"]
    assert row.startswith("b1c2d3  train  Pitzer:gpu  RUNNING  43 %  1h 5")
    assert "/ 2h 00m" in row
    assert "430 of 1000 steps · ends " in row
    assert main(["jobs", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["jobs"]
    began = datetime.fromisoformat(attempt.started_at)
    assert (
        pytest.approx((datetime.fromisoformat(found["expected_end"]["earliest"]) - began).total_seconds(), abs=1e-2)
        == 8000.0
    )
    assert found["shown"]["done"] / found["shown"]["total"] == 0.43
    assert found["spent"]["currency"] == "USD"


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_shows_a_bar_that_fits_and_a_pipe_shows_none(written, capsys, width):
    attempt = written.attempt(written.job("b1c2d3e4f5a6", name="a-training-with-a-long-name"), state=JobState.RUNNING)
    written.tells(EventKind.PROGRESS, {"steps": 430, "total": 1000}, attempt)
    written.tells(
        EventKind.DECISION,
        {"action": "keep", "total_s": 9000.0, "total_low_s": 8000.0, "total_high_s": 9500.0},
        attempt,
    )
    statuses = job_statuses()
    shown = [unstyle(line) for line in jobs_table(statuses, width, bars=True)]
    assert "[#########...........] · 430 of 1000 steps" in "\n".join(shown)
    assert max(map(cell_width, shown)) <= width
    assert not any("[#" in line for line in jobs_table(statuses, width))
    main(["jobs"])
    assert "[#" not in capsys.readouterr().out


def test_a_job_that_will_outlast_its_limit_is_named_while_it_runs(written, capsys):
    attempt = written.attempt(written.job("b1c2d3e4f5a6"), state=JobState.RUNNING)
    written.tells(EventKind.DECISION, {"action": "keep", "late": 0.97}, attempt)
    main(["jobs"])
    assert lines(capsys)[1].endswith("likely to exceed its limit of 2h 00m")
    written.tells(EventKind.DECISION, {"action": "keep", "late": 0.01}, attempt)
    main(["jobs"])
    assert "likely" not in lines(capsys)[1]


def test_progress_and_forecast_of_an_earlier_attempt_are_not_those_of_this_one(written, capsys):
    job = written.job("b1c2d3e4f5a6")
    first = written.attempt(job, state=JobState.RUNNING)
    written.tells(EventKind.PROGRESS, {"steps": 999, "total": 1000}, first)
    written.ends(first, JobState.TIMEOUT)
    written.attempt(job, 2, state=JobState.RUNNING)
    main(["jobs"])
    row = lines(capsys)[1]
    assert "999" not in row
    assert "attempt 2 of at most 4" in row


def test_the_reason_of_a_wait_is_in_the_schedulers_words(written, capsys):
    written.attempt(written.job("aa0000000001"), reason="QOSMaxJobsPerUserLimit, Reserved for maintenance")
    written.job("aa0000000002", after=("aa0000000001",))
    written.job("aa0000000003")
    main(["jobs"])
    _, third, second, first = lines(capsys)
    assert first.endswith("QOSMaxJobsPerUserLimit, Reserved for maintenance")
    assert second.endswith("after aa0000000001")
    assert third.endswith("not submitted yet")
    assert "aa0000000001  train" in first  # so many letters tell them apart


def test_an_array_is_one_row_or_one_row_per_element(written, capsys):
    jobs = [written.job(f"e{at:011}", group="3f2a91b4c0de", index=at) for at in range(3)]
    done = written.ends(written.attempt(jobs[0], state=JobState.RUNNING), JobState.COMPLETED)
    written.closes(jobs[0], done.state)
    written.attempt(jobs[1], state=JobState.RUNNING)
    main(["jobs"])
    (row,) = lines(capsys)[1:]
    assert row.startswith("3f2a91  train[3]")
    assert "33 %" in row
    assert row.endswith("1 PENDING, 1 RUNNING, 1 COMPLETED")
    main(["jobs", "--each"])
    assert {"3f2a91_0", "3f2a91_1", "3f2a91_2"} == {row.split()[0] for row in lines(capsys)[1:]}
    main(["jobs", "3f2a91_1", "--json"])
    assert [load["index"] for load in json.loads(capsys.readouterr().out)["jobs"]] == [1]


def test_finished_jobs_are_listed_on_request_with_their_end(written, capsys):
    job = written.job("aa0000000001", name="solver")
    written.closes(
        job, written.ends(written.attempt(job, state=JobState.RUNNING), JobState.FAILED).state, "exit code 3"
    )
    assert main(["jobs"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "leadline jobs --all shows finished ones" in printed.err
    for words in (["--all"], ["solver"], ["aa00"], ["4001"], ["--limit", "1"]):
        assert main(["jobs", *words]) == 0
        assert lines(capsys)[1].endswith("exit code 3"), words


def test_an_unreachable_system_is_reported_until_it_answers(written, capsys):
    written.attempt(written.job("aa0000000001"))
    next_at = iso_utc(time.time() + 40.4)
    details = {"system": "Pitzer", "why": "squeue: no answer", "times": 3, "last_at": now_utc(), "next_at": next_at}
    written.tells(EventKind.FAULT, details)
    with file_lock(plane_lock()):
        main(["jobs"])
    note = capsys.readouterr().err
    assert re.fullmatch(
        r"note: Pitzer: unreachable since (\d\d \w+ )?\d\d:\d\d: squeue: no answer, next try in (3\d|40)(\.\d+)? s\n",
        note,
    ), note
    written.tells(EventKind.POLL, {"system": "Pitzer", "answers": "again"})
    main(["jobs"])
    assert capsys.readouterr().err == ""


def test_without_jobs_the_command_shows_how_to_submit_one(capsys):
    assert main(["jobs", "--all"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "leadline submit" in printed.err
    assert main(["jobs", "nothing"]) == 2
    assert "unknown job 'nothing': no job has been submitted yet" in capsys.readouterr().err


def test_no_name_breaks_the_table(written, capsys):
    written.attempt(written.job("aa0000000001", name=EVIL), reason=EVIL)
    main(["jobs"])
    assert len(lines(capsys)) == 2
    assert plain_text(EVIL) == 'a "job" [31m $(true)'
    assert len(plain_text("x" * 100)) == 40


@pytest.mark.parametrize("width", [80, 60])
def test_rows_fit_a_narrow_terminal(width):
    one = JobStatus(
        "b1c2d3e4f5a6",
        "a-name-that-goes-on-and-on-and-on",
        "Some-System:some-partition",
        JobState.OUT_OF_MEMORY,
        "why " * 40,
        "2026-11-22T10:00:00+00:00",
        attempts=3,
        attempts_most=4,
        closed=True,
        elapsed_s=86400.0,
        walltime_s=90000.0,
        spent=JobUsage(3600.0, 12.0, "USD"),
    )
    table = jobs_table([one], width)
    assert all(cell_width(line) <= max(width, 77) for line in table)
    assert all(cell_width(line) <= width for line in table[2:])


def test_keys_are_shortened_to_unique_prefixes():
    assert shorten_keys(["aaaaaa1", "aaaaaa2"]) == {"aaaaaa1": "aaaaaa1", "aaaaaa2": "aaaaaa2"}
    assert shorten_keys(["bbbbbb1", "bbbbbb1"]) == {"bbbbbb1": "bbbbbb"}


def test_times_and_costs_are_formatted_for_people():
    now = datetime.fromisoformat("2026-11-22T12:00:00").astimezone()
    assert format_clock_time("2026-11-22T14:05:00", now) == "14:05"
    assert format_clock_time("2026-11-24T14:05:00", now) == "24 Nov 14:05"
    written = [format_spent(JobUsage(3600.0, *more)) for more in ((), (0.004, "USD"), (1.5, "USD"), (2.0, "SU"))]
    assert written == ["1 node-h", "<$0.01", "$1.50", "2 SU"]
    assert format_spent(JobUsage()) == ""
