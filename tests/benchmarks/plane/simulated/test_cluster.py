"""What EASY promises, and that nothing runs on what is not there."""

from dataclasses import replace

import pytest
from drawn_jobs import CORES, Given, job, workloads
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plane.simulated.cluster import (
    EasyQueue,
    NodeRequest,
    SimulatedCluster,
    SimulatedNode,
    SimulatedPartition,
)
from benchmarks.plane.simulated.replay import replay
from leadline.core.errors import InvalidInput, NothingFits, UnknownName


def pool(cores=CORES, nodes=1):
    return SimulatedCluster(tuple(SimulatedNode(f"n{number}", cores) for number in range(nodes)))


def run_by_hand(jobs, cluster, *, least=False):
    """Play jobs through a queue, and return what each was promised, first to last, and when it started."""
    queue, promised, started, ends = EasyQueue(cluster), {}, {}, {}
    needs_s = {one.id: one.elapsed_s for one in jobs}
    coming = sorted(jobs, key=lambda one: one.submitted_s)
    while coming or ends:
        now_s = min([*ends.values(), *(one.submitted_s for one in coming[:1])])
        for key in [key for key, end_s in ends.items() if end_s == now_s]:
            queue.remove(key)
            del ends[key]
        while coming and coming[0].submitted_s == now_s:
            one = coming.pop(0)
            queue.submit(one.id, NodeRequest(one.nodes, one.cores // one.nodes), one.walltime_s,
                         least_s=one.elapsed_s if least else None)  # fmt: skip
        for one in queue.start(now_s):
            started[one.key], ends[one.key] = now_s, now_s + needs_s[one.key]
        for promise in queue.reservations.values():
            if promise.key in queue.waiting:
                promised.setdefault(promise.key, []).append(promise.at_s)
    assert not queue.waiting
    return promised, started


def most_in_use(jobs, attempts):
    changes = sorted(
        change for one in attempts
        for change in ((one.started_s, 1, jobs[one.job].cores), (one.ended_s, 0, -jobs[one.job].cores))
    )  # fmt: skip
    used = most = 0
    for _, _, cores in changes:
        used += cores
        most = max(most, used)
    return most


@given(workloads(kills=True), st.booleans())
def test_no_more_cores_are_used_than_there_are(jobs, backfills):
    attempts = replay(jobs, pool(), Given(), backfills=backfills)

    assert most_in_use(jobs, attempts) <= CORES


@given(workloads(kills=True))
def test_every_job_ends_once_and_none_starts_before_it_came(jobs):
    attempts = replay(jobs, pool(), Given())

    assert list(range(len(jobs))) == sorted(one.job for one in attempts if not one.killed)
    assert all(one.submitted_s <= one.started_s < one.ended_s for one in attempts)
    assert all(one.ended_s - one.started_s == one.limit_s for one in attempts if one.killed)


@given(workloads())
def test_equal_jobs_start_in_the_order_in_which_they_came(jobs):
    started = {one.job: one.started_s for one in replay(jobs, pool(), Given())}

    for first in range(len(jobs)):
        for second in range(first + 1, len(jobs)):
            if (jobs[first].cores, jobs[first].walltime_s) == (jobs[second].cores, jobs[second].walltime_s):
                assert started[first] <= started[second]


@settings(max_examples=150)
@given(st.one_of(workloads().map(lambda jobs: (jobs, 1)), workloads(nodes=3).map(lambda jobs: (jobs, 3))))
def test_backfilling_never_delays_the_first_job_past_its_reservation(case):
    jobs, nodes = case
    promised, started = run_by_hand(jobs, pool(nodes=nodes))

    for key, at_s in promised.items():
        assert started[key] <= min(at_s)
        assert at_s == sorted(at_s, reverse=True), "a promise was put off"


@given(workloads(nodes=3))
def test_jobs_with_reduced_time_do_not_delay_the_first_job(jobs):
    promised, started = run_by_hand(jobs, pool(nodes=3), least=True)

    assert all(started[key] <= min(at_s) for key, at_s in promised.items())


def test_a_job_may_be_given_the_time_that_is_left_before_a_promise():
    queue = EasyQueue(pool())
    queue.submit("first", NodeRequest(1, 6), 100)
    queue.submit("wide", NodeRequest(1, 8), 10)
    queue.submit("wants too much", NodeRequest(1, 2), 500, least_s=120)
    queue.submit("modest", NodeRequest(1, 2), 500, least_s=60)

    assert [(one.key, one.until_s) for one in queue.start(0)] == [("first", 100), ("modest", 100)]


@given(workloads(exact=True))
def test_with_exact_requests_the_first_that_had_to_wait_starts_as_it_does_without_backfill(jobs):
    promised, started = run_by_hand(jobs, pool())
    plain = {one.job: one.started_s for one in replay(jobs, pool(), Given(), backfills=False)}

    for key in list(promised)[:1]:
        assert plain[int(key)] == started[key]


@given(workloads(kills=True, nodes=3))
def test_the_same_jobs_have_the_same_fate(jobs):
    assert replay(jobs, pool(nodes=3), Given()) == replay(jobs, pool(nodes=3), Given())


@given(workloads(exact=True), workloads(exact=True))
def test_partitions_of_their_own_nodes_do_not_hear_of_each_other(left, right):
    nodes = (SimulatedNode("l", CORES), SimulatedNode("r", CORES))
    both = SimulatedCluster(nodes, (SimulatedPartition("left", ("l",)), SimulatedPartition("right", ("r",))))
    named = [(one, "left") for one in left] + [(one, "right") for one in right]
    named.sort(key=lambda each: each[0].submitted_s)
    jobs = [replace(one, partition=partition) for one, partition in named]
    together = replay(jobs, both, Given())

    for side, own in (("left", left), ("right", right)):
        alone = sorted((one.started_s, one.ended_s) for one in replay(own, pool(), Given()))
        assert alone == sorted(
            (one.started_s, one.ended_s) for one in together if jobs[one.job].partition == side
        )  # fmt: skip


def test_a_short_job_slips_in_before_a_wide_one_and_a_long_one_does_not():
    jobs = [job(0, 0, 6, 100, 100), job(1, 1, 8, 10, 10), job(2, 2, 2, 50, 50), job(3, 3, 2, 200, 200)]
    started = {one.job: one.started_s for one in replay(jobs, pool(), Given())}

    assert started == {0: 0, 1: 100, 2: 2, 3: 110}


def test_a_long_job_may_run_on_what_the_reservation_leaves():
    jobs = [job(0, 0, 6, 100, 100), job(1, 1, 7, 10, 10), job(2, 2, 1, 500, 500)]
    started = {one.job: one.started_s for one in replay(jobs, pool(), Given())}

    assert started == {0: 0, 1: 100, 2: 2}


def test_gpus_and_memory_are_counted_on_each_node():
    cluster = SimulatedCluster((SimulatedNode("one", 8, 1, 100), SimulatedNode("two", 8, 1, 100)))
    queue = EasyQueue(cluster)
    queue.submit("gpu", NodeRequest(1, 1, gpus=1, memory_bytes=10), 10)
    queue.submit("wide", NodeRequest(2, 1, gpus=1), 10)
    for key in "ab":
        queue.submit(key, NodeRequest(1, 1, memory_bytes=60), 5)
    queue.submit("too much memory", NodeRequest(1, 1, memory_bytes=50), 5)

    assert [(one.key, one.nodes) for one in queue.start(0)] == [("gpu", (0,)), ("a", (0,)), ("b", (1,))]
    queue.remove("gpu")
    assert [(one.key, one.nodes) for one in queue.start(1)] == [("wide", (0, 1))]


def test_the_forecast_is_when_the_job_starts_if_all_take_their_time():
    jobs = [job(0, 0, 6, 100, 100), job(1, 0, 8, 10, 10), job(2, 0, 8, 10, 10)]
    queue = EasyQueue(pool())
    for one in jobs[:2]:
        queue.submit(one.id, NodeRequest(1, one.cores), one.walltime_s)
    queue.start(0)

    assert queue.forecast_s(NodeRequest(1, 8), 10, 0) == 110
    assert queue.forecast_s(NodeRequest(1, 2), 100, 0) == 0
    assert {"1"} == set(queue.waiting)


def test_a_job_that_outruns_its_expected_time_keeps_its_cores():
    queue = EasyQueue(pool())
    queue.submit("first", NodeRequest(1, 8), 10)
    queue.start(0)
    queue.submit("second", NodeRequest(1, 8), 10)

    assert queue.start(10) == []
    queue.change("first", 30)
    assert queue.start(20) == []
    assert queue.reservations[""].at_s == 30


def test_an_impossible_job_is_refused():
    queue = EasyQueue(pool(nodes=2))
    queue.submit("first", NodeRequest(2, 8), 1)

    with pytest.raises(NothingFits, match="request less"):
        queue.submit("wide", NodeRequest(3, 1), 1)
    with pytest.raises(InvalidInput, match="use a new key"):
        queue.submit("first", NodeRequest(1, 1), 1)
    with pytest.raises(InvalidInput, match="more than 0"):
        queue.submit("none", NodeRequest(1, 1), 0)
    with pytest.raises(UnknownName, match="fast"):
        queue.submit("strange", NodeRequest(1, 1, partition="fast"), 1)
