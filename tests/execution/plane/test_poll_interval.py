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


def test_pauses_after_failures_double_up_to_a_limit_with_jitter_until_an_answer():
    asked, pauses = rhythm(), []
    for _ in range(12):
        asked.failed("no route")
        pauses.append(asked.wait_s)
    assert all(0.8 * 2.0**at <= pause <= 1.2 * 2.0**at for at, pause in enumerate(pauses[:8], 1))
    assert all(240.0 <= pause <= 360.0 for pause in pauses[8:])
    assert len(set(pauses[8:])) > 1
    asked.hurry()
    assert asked.wait_s == pauses[-1]
    assert asked.answered(changed=False)
    assert not asked.answered(changed=False)


def test_a_schedule_without_anything_to_ask_keeps_its_failures():
    asked = rhythm()
    asked.failed("no route")
    asked.rest()
    assert (asked.failures, asked.due) == (1, False)


def test_the_users_word_ends_the_pause_and_starts_with_the_shortest_one():
    asked = rhythm()
    for _ in range(9):
        asked.failed("no route")
    asked.retry_now()
    assert asked.due
    asked.failed("no route")
    assert asked.wait_s <= 2.4
    assert asked.failures == 10
