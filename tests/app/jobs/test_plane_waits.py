"""Waits of the plane's jobs: asked beside it, answered at once or not yet, and kept for as long as they hold."""

import threading

import pytest

from leadline.app.jobs.plane_waits import COLLECT_S, REPEAT_S, VALID_S, BackgroundWaits
from leadline.app.jobs.predict_wait import WaitForecast, WaitQuestion
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.plane import Attempt, Place
from leadline.core.queues import PLANNED_WAIT_SHARE, QueueWait
from leadline.execution.clock import ManualClock, iso_utc

BUSY, IDLE = Place("reef", "busy"), Place("reef", "idle")
WAIT = QueueWait(Interval(1000.0, 100.0, 1900.0), 0.0, tuple(100.0 * (one + 0.5) for one in range(20)), 0.0)


class Office:
    """Foretells ``WAIT`` for jobs in ``busy``, nothing learned elsewhere; answers when told to, or fails."""

    def __init__(self):
        self.asked, self.open, self.fails = [], threading.Event(), ""
        self.open.set()

    def __call__(self, asked: WaitQuestion):
        self.open.wait(10)
        self.asked.append(asked)
        if self.fails:
            raise LeadlineError(self.fails)
        learned = tuple(WAIT if job.partition == "busy" else None for job in asked.jobs)
        return WaitForecast(learned, tuple(None if one else 60.0 for one in learned))


def spec(place, hours=1.0):
    return JobSpec("train", ("true",), ResourceSpec(walltime_s=3600.0 * hours), place.system, place.partition)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def office():
    return Office()


@pytest.fixture
def heard():
    return []


@pytest.fixture
def waits(office, clock, heard):
    return BackgroundWaits(office, clock, heard.append)


def told(waits, clock, place=BUSY):
    """Let the answer to what was asked come, and ask again."""
    waits.predicted(spec(place), place)
    clock.sleep(COLLECT_S)
    waits.predicted(spec(place), place)
    waits._background.wait(10)
    return waits.predicted(spec(place), place)


def test_a_wait_is_unknown_until_it_is_predicted_in_the_background(waits, office, clock):
    office.open.clear()
    assert waits.predicted(spec(BUSY), BUSY) is None
    clock.sleep(COLLECT_S)
    assert waits.predicted(spec(BUSY), BUSY) is None, "an answer came though the office is shut"
    office.open.set()
    waits._background.wait(10)
    assert WAIT.wait_s == waits.predicted(spec(BUSY), BUSY)


def test_questions_are_collected_for_half_a_minute_and_repeated_twice_an_hour(waits, office, clock):
    waits.predicted(spec(BUSY), BUSY)
    waits.predicted(spec(IDLE), IDLE)
    told(waits, clock)
    assert [tuple(job.partition for job in each.jobs) for each in office.asked] == [("busy", "idle")]
    waits.predicted(spec(BUSY, 2.0), BUSY)
    clock.sleep(REPEAT_S - 1.0)
    waits.predicted(spec(BUSY, 2.0), BUSY)
    waits._background.wait(10)
    assert len(office.asked) == 1
    clock.sleep(1.0)
    assert WAIT.wait_s == told(waits, clock)
    assert len(office.asked) == 2


def test_a_wait_planned_by_the_scheduler_is_an_upper_estimate(waits, clock):
    assert Interval(PLANNED_WAIT_SHARE * 60.0, 0.0, 60.0) == told(waits, clock, IDLE)


def test_an_old_answer_is_not_used_for_a_new_job(waits, office, clock, heard):
    assert told(waits, clock) is not None
    office.fails = "no accounting"
    clock.sleep(VALID_S + 1.0)
    assert waits.predicted(spec(BUSY), BUSY) is None
    assert told(waits, clock) is None
    clock.sleep(REPEAT_S)
    told(waits, clock)
    assert heard == ["queue waits at reef are not predicted: no accounting"], "it is told once"
    office.fails = ""
    clock.sleep(REPEAT_S)
    assert told(waits, clock) is not None


def test_the_remaining_wait_is_conditional_on_the_time_waited(waits, clock):
    attempt = Attempt("a", "j", 1, BUSY, spec(BUSY).resources, submitted_at=iso_utc(clock.now_s()))
    assert waits.remaining(attempt, spec(BUSY), clock.now_s()) is None
    told(waits, clock)
    first = waits.remaining(attempt, spec(BUSY), clock.now_s())
    clock.sleep(1000.0)
    later = waits.remaining(attempt, spec(BUSY), clock.now_s())
    assert first.point == pytest.approx(1000.0, abs=150.0)
    assert later.point == pytest.approx(500.0, abs=150.0), "half of the waits are over"
    clock.sleep(10_000.0)
    assert waits.remaining(attempt, spec(BUSY), clock.now_s()) is None, "it waits longer than was foretold"


def test_no_question_about_this_machine_or_without_a_partition(waits, office, clock):
    for place in (Place("local"), Place("reef")):
        assert told(waits, clock, place) is None
    assert office.asked == []
