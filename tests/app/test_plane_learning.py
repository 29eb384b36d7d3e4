"""What the plane learns of the jobs that it saw end: beside it, when there is something, and never at its expense."""

import threading

import pytest

from leadline.app.learn import Lesson
from leadline.app.plane_learning import AGAIN_S, FEWEST, Learning
from leadline.app.teach import Taught
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Kind
from leadline.core.runs import Run
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.simulated.clock import HandClock
from leadline.testing.desk import Counsel, plainly, retry_node_fails

KEPT = Lesson("train", "elapsed_s", "roofline", 3, False, False, "as right as ever")  # noqa: FBT003
BETTER = Lesson("train", "elapsed_s", "roofline", 12, True, True, "it is better", 4, 0.5, 0.1)  # noqa: FBT003


class School:
    """Says what it was asked, and answers what a test put there."""

    def __init__(self):
        self.asked, self.answer, self.open = [], Taught(), threading.Event()
        self.open.set()

    def __call__(self, names):
        self.open.wait(10)
        self.asked.append(names)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def runs(count=FEWEST, name="train", state=JobState.COMPLETED):
    return [Run(str(one), JobSpec(name, ("true",), ResourceSpec()), state, "2026-01-05T10:00:00Z")
            for one in range(count)]  # fmt: skip


@pytest.fixture
def school():
    return School()


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def heard():
    return []


@pytest.fixture
def learning(school, clock, heard):
    return Learning(school, heard.append, clock)


def news(learning):
    first = learning.news()
    learning.settle(10)
    return [one.said["why"] for one in (*first, *learning.news())]


def test_nothing_is_learned_of_fewer_runs_than_a_few_nor_of_what_failed(learning, school):
    learning.take_in(runs(FEWEST - 1))
    learning.take_in(runs(FEWEST, state=JobState.FAILED))
    assert [] == news(learning)
    assert [] == school.asked


def test_applications_with_new_runs_are_learned_from_and_what_was_found_out_is_told(learning, school, heard):
    school.answer = Taught((KEPT, BETTER))
    learning.take_in([*runs(), *runs(name="infer"), *runs(1, name="once")])
    assert [BETTER.sentence] == news(learning)
    assert [BETTER.sentence] == heard
    assert [("train", "infer")] == school.asked


def test_between_two_lessons_ten_minutes_pass(learning, school, clock):
    learning.take_in(runs())
    news(learning)
    learning.take_in(runs())
    clock.sleep(AGAIN_S - 1.0)
    news(learning)
    assert 1 == len(school.asked)
    clock.sleep(1.0)
    news(learning)
    assert 2 == len(school.asked)


def test_a_failure_is_told_once_and_learning_goes_on(learning, school, clock):
    school.answer = ZeroDivisionError("division by zero")
    for _ in range(2):
        learning.take_in(runs())
        told = news(learning)
        clock.sleep(AGAIN_S)
        assert told == (["nothing could be learned: division by zero"] if len(school.asked) == 1 else [])
    school.answer = Taught((BETTER,))
    learning.take_in(runs())
    assert [BETTER.sentence] == news(learning)


def test_the_plane_writes_lessons_into_its_journal_and_never_waits_for_them(tmp_path, learning, school, clock):
    school.answer = Taught((BETTER,), ("nothing could be learned of infer: no numpy",))
    school.open.clear()
    with PlaneJournal(tmp_path / "journal.sqlite", clock) as journal:
        plane = Plane(journal, {}.__getitem__, Counsel(), diagnose=plainly, decide=retry_node_fails, clock=clock,
                      news=learning.news)  # fmt: skip
        learning.take_in(runs())
        plane.step()
        plane.step()
        assert () == journal.events(kinds=[Kind.LEARNED])
        school.open.set()
        learning.settle(10)
        plane.step()
        plane.step()
        told = journal.events(kinds=[Kind.LEARNED])
    assert [BETTER.sentence, "nothing could be learned of infer: no numpy"] == [one.said["why"] for one in told]
    assert (0.5, 0.1, True) == tuple(told[0].said[name] for name in ("error_before", "error_after", "replaced"))
