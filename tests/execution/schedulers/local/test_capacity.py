"""Who starts when on one machine: pure, so checked against a simulation of every second."""

import math

from hypothesis import given
from hypothesis import strategies as st

from leadline.execution.schedulers.local.capacity import Capacity, CapacityUse, backfill_starts_s

TWO = Capacity(cores=2, gpus=0, memory_bytes=math.inf, jobs=math.inf)


def stay(cores, lasts_s=math.inf):
    return CapacityUse(Capacity(cores), lasts_s)


def test_jobs_start_in_their_order_when_what_runs_has_ended():
    assert backfill_starts_s(Capacity(0, 0, 0, math.inf), [stay(2, 10)], [stay(1, 5), stay(1, 9), stay(1, 1)]) == [
        10.0,
        10.0,
        15.0,
    ]


def test_a_small_job_starts_first_if_it_ends_in_time():
    free = Capacity(1, 0, 0, math.inf)
    assert backfill_starts_s(free, [stay(1, 10)], [stay(2, 5), stay(1, 10)]) == [10.0, 0.0]
    assert backfill_starts_s(free, [stay(1, 10)], [stay(2, 5), stay(1, 11)]) == [10.0, 15.0]
    assert backfill_starts_s(free, [stay(1, 10)], [stay(2, 5), stay(1)]) == [10.0, 15.0]


def test_a_long_job_starts_early_if_both_fit():
    assert backfill_starts_s(Capacity(1, 0, 0, math.inf), [stay(2, 10)], [stay(2, 5), stay(1)]) == [10.0, 0.0]


def test_no_job_overtakes_one_with_an_unknown_start():
    assert [math.inf, math.inf] == backfill_starts_s(Capacity(1, 0, 0, math.inf), [stay(1)], [stay(2, 5), stay(1, 1)])


def test_gpus_memory_and_the_number_of_jobs_count_too():
    free = Capacity(8, 1, 10, 2)
    gpu, much, small = (CapacityUse(Capacity(1, *asked), 5.0) for asked in ((1, 0), (0, 10), (0, 0)))
    assert backfill_starts_s(free, [], [gpu, gpu]) == [0.0, 5.0]
    assert backfill_starts_s(free, [], [much, much]) == [0.0, 5.0]
    assert backfill_starts_s(free, [], [small, small, small]) == [0.0, 0.0, 5.0]


STAYS = st.lists(st.builds(stay, st.integers(1, 4), st.integers(1, 12).map(float)), max_size=12)


@given(STAYS, STAYS)
def test_capacity_is_never_exceeded_and_no_job_is_delayed_by_a_later_one(running, waiting):
    running = [one for at, one in enumerate(running) if sum(other.capacity.cores for other in running[: at + 1]) <= 4]
    free = Capacity(4 - sum(one.capacity.cores for one in running), 0, math.inf, math.inf)
    starts = backfill_starts_s(free, running, waiting)
    placed = [(0.0, one) for one in running] + list(zip(starts, waiting, strict=True))
    for second in range(int(max([0.0, *(start + one.limit_s for start, one in placed)])) + 1):
        assert sum(one.capacity.cores for start, one in placed if start <= second < start + one.limit_s) <= 4
    for at in range(len(waiting)):
        assert starts[: at + 1] == backfill_starts_s(free, running, waiting[: at + 1])
