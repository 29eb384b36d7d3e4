"""What the plane learns of the jobs that it saw end: beside it, when there is something, and never at its expense."""

import json
import os
import sys
import threading
from dataclasses import replace

import pytest

from leadline.app.jobs.journal import open_journal
from leadline.app.jobs.plane_retraining import (
    MIN_NEW_RUNS,
    REPEAT_S,
    BackgroundRetraining,
    event_details,
    retrain_in_process,
)
from leadline.app.models.retrain import RetrainingReport, RetrainingResult, correct_estimate
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind
from leadline.core.runs import Measurement, Run
from leadline.execution.clock import ManualClock
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.history.sqlite import SqliteHistory
from leadline.interfaces.cli.main import main
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures

KEPT = RetrainingResult("train", "elapsed_s", "roofline", 3, False, False, "as right as ever")  # noqa: FBT003
BETTER = RetrainingResult("train", "elapsed_s", "roofline", 12, True, True, "it is better", 4, 0.5, 0.1)  # noqa: FBT003


class School:
    """Says what it was asked, and answers what a test put there."""

    def __init__(self):
        self.asked, self.answer, self.open = [], RetrainingReport(), threading.Event()
        self.open.set()

    def __call__(self, names):
        self.open.wait(10)
        self.asked.append(names)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def runs(count=MIN_NEW_RUNS, name="train", state=JobState.COMPLETED):
    return [
        Run(str(one), JobSpec(name, ("true",), ResourceSpec()), state, "2026-01-05T10:00:00Z") for one in range(count)
    ]


@pytest.fixture
def school():
    return School()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def heard():
    return []


@pytest.fixture
def learning(school, clock, heard):
    return BackgroundRetraining(school, heard.append, clock)


def news(learning):
    first = learning.news()
    learning._background.wait(10)
    return [one.details["why"] for one in (*first, *learning.news())]


def test_few_runs_and_failed_runs_trigger_no_retraining(learning, school):
    learning.count_runs(runs(MIN_NEW_RUNS - 1))
    learning.count_runs(runs(MIN_NEW_RUNS, state=JobState.FAILED))
    assert news(learning) == []
    assert school.asked == []


def test_applications_with_new_runs_are_retrained_and_the_results_reported(learning, school, heard):
    school.answer = RetrainingReport((KEPT, BETTER))
    learning.count_runs([*runs(), *runs(name="infer"), *runs(1, name="once")])
    assert [BETTER.sentence] == news(learning)
    assert [BETTER.sentence] == heard
    assert school.asked == [("train", "infer")]


def test_between_two_lessons_ten_minutes_pass(learning, school, clock):
    learning.count_runs(runs())
    news(learning)
    learning.count_runs(runs())
    clock.sleep(REPEAT_S - 1.0)
    news(learning)
    assert len(school.asked) == 1
    clock.sleep(1.0)
    news(learning)
    assert len(school.asked) == 2


def test_a_failure_is_reported_once_and_retraining_goes_on(learning, school, clock):
    school.answer = ZeroDivisionError("division by zero")
    for _ in range(2):
        learning.count_runs(runs())
        told = news(learning)
        clock.sleep(REPEAT_S)
        assert told == (["retraining failed: division by zero"] if len(school.asked) == 1 else [])
    school.answer = RetrainingReport((BETTER,))
    learning.count_runs(runs())
    assert [BETTER.sentence] == news(learning)


def test_the_plane_writes_lessons_into_its_journal_and_never_waits_for_them(tmp_path, learning, school, clock):
    school.answer = RetrainingReport((BETTER,), ("could not retrain infer: no numpy",))
    school.open.clear()
    with PlaneJournal(tmp_path / "journal.sqlite", clock) as journal:
        plane = Plane(
            journal,
            {}.__getitem__,
            FakeAdvisor(),
            diagnose=diagnose_by_state,
            decide=retry_node_failures,
            clock=clock,
            news=learning.news,
        )
        learning.count_runs(runs())
        plane.step()
        plane.step()
        assert journal.events(kinds=[EventKind.LEARNED]) == ()
        school.open.set()
        learning._background.wait(10)
        plane.step()
        plane.step()
        told = journal.events(kinds=[EventKind.LEARNED])
    assert [BETTER.sentence, "could not retrain infer: no numpy"] == [one.details["why"] for one in told]
    assert tuple(told[0].details[name] for name in ("error_before", "error_after", "replaced")) == (0.5, 0.1, True)


def test_retraining_in_a_process_corrects_an_application(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    told = Estimate(Target("node"), "roofline", Basis(Tier.SPECS), Interval(100.0, 50.0, 200.0))
    SqliteHistory(tmp_path / "history.sqlite").add_all(
        replace(
            one,
            predicted=told,
            started_at=f"2026-01-{at + 1:02}T10:00:00Z",
            measured={"elapsed_s": Measurement(250.0 + at % 5, "s", "test")},
        )
        for at, one in enumerate(runs(30))
    )
    taught = retrain_in_process(("train", "infer"))
    assert taught.failures == ()
    assert [(result.application, result.quantity, result.replaced) for result in taught.results] == [
        ("train", "elapsed_s", True)
    ]
    assert pytest.approx(correct_estimate(told, "train")[0].elapsed_s.point, rel=0.05) == 250.0


def test_the_planes_status_shows_the_last_retrainings(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path))
    with open_journal() as journal:
        journal.write(events=[NewEvent(EventKind.LEARNED, details=event_details(BETTER))])
        journal.write(
            events=[NewEvent(EventKind.LEARNED, details={"why": "retraining failed: no numpy", "failed": True})]
        )
    assert main(["plane", "status"]) == 0
    out = capsys.readouterr().out
    assert f"retrained: {BETTER.sentence}" in out
    assert "  retraining failed: no numpy" in out
    assert main(["plane", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["learned"][0]["said"]["error_after"] == 0.1
