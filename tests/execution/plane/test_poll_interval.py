"""How often a scheduler is asked."""

import pytest

from leadline.execution.clock import ManualClock
from leadline.execution.plane.poll_interval import PollIntervals, PollSchedule


def rhythm():
    return PollSchedule(ManualClock(), PollIntervals())


def test_a_change_is_followed_by_an_early_poll():
    asked = rhythm()
    asked.answered(changed=True)
    assert asked.wait_s == 1.0


def test_where_nothing_changes_the_pauses_grow_up_to_the_last():
    asked, pauses = rhythm(), []
    for _ in range(20):
        asked.answered(changed=False, took_s=0.1)
        pauses.append(asked.wait_s)
        asked.clock.sleep(asked.wait_s)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 30.0)


def test_a_fast_scheduler_is_polled_more_often_than_a_slow_one():
    quick, slow = rhythm(), rhythm()
    for _ in range(20):
        quick.answered(changed=False, took_s=0.01)
        slow.answered(changed=False, took_s=10.0)
    assert (quick.wait_s, slow.wait_s) == (5.0, 50.0)


def test_one_slow_answer_counts_half_and_many_count_whole():
    asked = rhythm()
    for _ in range(10):
        asked.answered(changed=True, took_s=0.2)
    asked.answered(changed=True, took_s=1.0)
    assert pytest.approx(asked.wait_s) == 3.0
    asked.answered(changed=True)
    assert pytest.approx(asked.wait_s) == 3.0
    for _ in range(10):
        asked.answered(changed=True, took_s=1.0)
    assert pytest.approx(asked.wait_s, rel=0.01) == 5.0


def test_who_must_work_for_an_answer_rests_longer():
    asked = rhythm()
    asked.answered(changed=True, took_s=0.2, cpu_s=0.2)
    assert asked.wait_s == 5.0


def test_silence_is_news_once_and_its_end_too():
    asked = rhythm()
    assert asked.failed("no route")
    assert not asked.failed("no route")
    assert asked.wait_s == 4.0
    asked.hurry()
    assert asked.wait_s == 4.0
    assert asked.answered(changed=False)
    assert not asked.answered(changed=False)
