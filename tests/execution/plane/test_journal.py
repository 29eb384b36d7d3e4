"""What the plane's journal answers: whom a name means, the newest events of many jobs, and who fell silent."""

from dataclasses import replace

import pytest

from leadline.core.errors import UnknownName
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Attempt, EventKind, Job, Place, Policy
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from tests.support.fake_scheduler import ManualClock

HERE = Place("here")


@pytest.fixture
def journal(tmp_path):
    with PlaneJournal(tmp_path / "journal.sqlite", ManualClock()) as made:
        yield made


def job(key, name="train", **more):
    return Job(key, JobSpec(name, ("true",), ResourceSpec()), Policy((HERE,)), **more)


def keys(found):
    return [one.key for one in found]


def test_a_name_is_resolved_as_key_then_job_name_then_array_then_prefix_or_id(journal):
    array = [job(f"e{at}", "sweep", group="cafe01", index=at) for at in range(3)]
    journal.add([job("aa01"), job("aa02", "ab"), job("ab"), *array])
    journal.write(attempts=[Attempt("x", "aa02", 1, HERE, ResourceSpec(), scheduler_id="4711")])
    for name, expected in {
        "ab": ["ab"], "train": ["aa01", "ab"], "sweep": ["e0", "e1", "e2"], "caf": ["e0", "e1", "e2"],
        "cafe01_2": ["e2"], "aa01": ["aa01"], "aa0": None, "4711": ["aa02"], "nothing": None, "": None,
    }.items():  # fmt: skip
        if expected is None:
            with pytest.raises(UnknownName):
                journal.find_jobs(name)
        else:
            assert expected == keys(journal.find_jobs(name)), name


def test_the_newest_event_of_each_job_is_found_for_more_of_them_than_one_query_takes(journal):
    jobs = [job(f"j{at:04}") for at in range(1200)]
    journal.add(jobs)
    for steps in (1, 2):
        journal.write(events=[NewEvent(EventKind.PROGRESS, one.key, "", {"steps": steps}) for one in jobs[1:]])
    journal.write(events=[NewEvent(EventKind.STATE, jobs[1].key, "", {"state": "RUNNING"})])
    found = journal.latest_events(EventKind.PROGRESS, keys(jobs))
    assert set(keys(jobs[1:])) == set(found)
    assert {2} == {one.details["steps"] for one in found.values()}


def test_outages_are_listed_with_their_ends_and_without_polls(journal):
    journal.add([job("a")])
    journal.write(
        events=[
            NewEvent(EventKind.POLL, details={"system": "here", "live": 1}),
            NewEvent(EventKind.FAULT, details={"system": "here", "why": "no answer"}),
            NewEvent(EventKind.FAULT, "a", "", {"why": "refused"}),
            NewEvent(EventKind.POLL, details={"system": "here", "answers": "again"}),
        ]
    )
    assert [one.kind for one in journal.outage_events()] == [EventKind.FAULT, EventKind.POLL]


def test_a_system_that_hides_jobs_is_not_unreachable(journal):
    hidden = {"system": "osc", "why": "it shows none of 3 jobs"}
    silent = {"system": "sdsc", "why": "connection refused", "next_at": "2026-01-01T00:00:00Z"}
    journal.write(events=[NewEvent(EventKind.FAULT, details=details) for details in (hidden, silent)])
    assert set(journal.open_outages()) == {"sdsc"}


def test_consent_that_comes_while_a_job_is_at_work_stays(journal):
    journal.add([job("a")])
    cache = JobCache(journal)
    cache.load()
    at_work = cache.jobs["a"]
    journal.approve(["a"])
    cache.take_in()
    cache.write(jobs=[replace(at_work, reason="it runs")])
    assert cache.jobs["a"].policy.may_restart
    assert journal.get("a").policy.may_restart
