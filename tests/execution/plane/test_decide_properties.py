"""What holds of every decision, and of every sequence of them."""

import math
import random
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
from closed_loop import Loop, wrong_first_request
from hypothesis import given, settings
from hypothesis import strategies as st
from situations import AWAY, HERE, THERE, attempt, other, situation

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Action, FailureCause, Job, Policy
from leadline.core.units import GIB, MIB
from leadline.execution.plane.decide import decide
from leadline.uncertainty.distributions import quantile

ENDS = ["COMPLETED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "FAILED", "CANCELLED"]
CAUSES = {
    "FAILED": [None, FailureCause.PROGRAM, FailureCause.TRANSIENT, FailureCause.STORAGE, FailureCause.UNKNOWN],
    "OUT_OF_MEMORY": [None, FailureCause.HOST_MEMORY, FailureCause.GPU_MEMORY],
    "CANCELLED": [None, FailureCause.USER, FailureCause.ADMINISTRATOR, FailureCause.PLANE, FailureCause.DEPENDENCY],
}
SECONDS = st.floats(60, 1e6)


def maybe(values):
    return st.none() | values


@st.composite
def intervals(draw, points=SECONDS):
    point = draw(points)
    return Interval(point, point / draw(st.floats(1, 5)), point * draw(st.floats(1, 5)))


BYTES = st.floats(GIB, 512 * GIB)


@st.composite
def policies(draw):
    return Policy(
        (HERE, THERE, AWAY), attempts=draw(st.integers(1, 9)), node_s=draw(maybe(st.floats(1e5, 1e8))),
        cost=draw(maybe(st.floats(10, 1e5))), resumes=draw(st.booleans()), risk=draw(st.floats(0.01, 0.3)),
        resizes=draw(st.sampled_from([True, True, True, False])), may_restart=draw(st.booleans()),
        deadline_at=draw(st.sampled_from([*[None] * 6, "2026-01-05T11:00:00Z", "2026-01-04T11:00:00"])),
    )  # fmt: skip


@st.composite
def alternatives(draw):
    place = draw(st.sampled_from([THERE, AWAY]))
    wait_s, run_s, limit_s = draw(maybe(SECONDS)), draw(maybe(SECONDS)), draw(st.floats(3600, 1e7))
    memory, gpu_memory = draw(st.integers(GIB, 512 * GIB)), draw(maybe(st.integers(GIB, 80 * GIB)))
    cost = draw(maybe(st.floats(0.1, 100)))
    return other(place, wait_s, run_s, limit_s, memory, cost=cost, gpu_memory_bytes=gpu_memory)


@st.composite
def situations(draw, states=("PENDING", "RUNNING", "UNKNOWN", *ENDS)):
    state = draw(st.sampled_from(list(states)))
    ran = state != "PENDING"
    limit_s = draw(maybe(SECONDS))
    asked = ResourceSpec(
        nodes=draw(st.integers(1, 4)),
        memory_bytes_per_node=draw(maybe(st.integers(GIB, 512 * GIB))),
        walltime_s=limit_s,
    )
    return situation(
        state, policy=draw(policies()), before=draw(st.lists(st.sampled_from(ENDS[1:]), max_size=2)),
        attempt={"resources": asked}, withdrawn=draw(st.booleans()),
        elapsed_s=draw(st.floats(0, limit_s or 1e6)) if ran else 0.0, total_s=draw(maybe(intervals())),
        memory_bytes=draw(maybe(intervals(BYTES))), memory_now_bytes=draw(maybe(BYTES)) if ran else None,
        remaining_wait_s=draw(maybe(intervals())), allowed_s=draw(maybe(SECONDS)),
        node_memory_bytes=draw(maybe(st.integers(GIB, 512 * GIB))), spent_node_s=draw(st.floats(0, 1e6)),
        spent_cost=draw(maybe(st.floats(0, 1000))), cost_per_s=draw(maybe(st.floats(0.0001, 1))),
        asked_to_extend=draw(st.integers(0, 3)), checkpointed=draw(st.booleans()),
        alternatives=tuple(draw(st.lists(alternatives(), max_size=2))),
        cause=draw(st.sampled_from(CAUSES.get(state, [None]))),
        gpu_memory_bytes=draw(maybe(st.integers(GIB, 80 * GIB))),
    )  # fmt: skip


@given(situations())
def test_every_decision_has_a_reason_and_is_made_again_alike(given_situation):
    found = decide(given_situation)
    assert found == decide(given_situation)
    assert found.reason.strip()
    assert "\n" not in found.reason
    assert all(isinstance(value, str) or not math.isnan(value) for value in found.evidence.values())
    assert found.delay_s >= 0


@given(situations())
def test_live_jobs_are_not_given_up_and_ended_jobs_not_changed(given_situation):
    action = decide(given_situation).action
    if given_situation.attempt.live:
        assert action not in (Action.GIVE_UP, Action.FINISH)
    else:
        assert action in (Action.GIVE_UP, Action.FINISH, Action.RESUBMIT, Action.MOVE, Action.KEEP)
    if action is Action.FINISH:
        assert JobState.COMPLETED in {one.state for one in given_situation.job.attempts}


@given(situations(states=["RUNNING"]))
@settings(max_examples=200)
def test_without_consent_no_prediction_ends_a_running_attempt(given_situation):
    job, attempt = given_situation.job, given_situation.attempt
    # Budgets, cancellations and other copies are the user's own word, not predictions.
    alone = replace(job, attempts=(attempt,), policy=replace(job.policy, may_restart=False, node_s=None, cost=None))
    found = decide(replace(given_situation, job=alone))
    assert found.action in (Action.KEEP, Action.EXTEND, Action.CHECKPOINT)


@given(situations(), st.sampled_from(["COMPLETED", "FAILED", "CANCELLED", "UNKNOWN"]))
def test_nothing_is_decided_of_a_job_that_is_settled(given_situation, state):
    settled = replace(given_situation, job=replace(given_situation.job, state=JobState[state]))
    assert Action.KEEP is decide(settled).action


@given(situations(states=["PENDING", "RUNNING"]))
@settings(max_examples=200)
def test_a_limit_is_never_shortened_below_what_was_used_or_may_be_needed(given_situation):
    found = decide(given_situation)
    if found.action is Action.SHRINK:
        kept_s = found.resources.walltime_s
        assert kept_s < given_situation.attempt.resources.walltime_s
        assert kept_s > given_situation.elapsed_s
        assert kept_s >= quantile(given_situation.total_s, 1 - given_situation.job.policy.risk)
    if found.action is Action.EXTEND:
        assert found.resources.walltime_s > given_situation.attempt.resources.walltime_s
        assert found.resources.walltime_s <= (given_situation.allowed_s or math.inf)


@given(situations(states=["TIMEOUT"]))
def test_after_a_timeout_the_same_limit_is_never_requested_again(given_situation):
    found, policy = decide(given_situation), given_situation.job.policy
    if found.action is Action.RESUBMIT and not policy.resumes:
        assert found.resources.walltime_s > (given_situation.attempt.resources.walltime_s or 0)
        assert found.resources.walltime_s > given_situation.elapsed_s


@given(situations(states=["OUT_OF_MEMORY"]))
def test_after_out_of_memory_more_is_requested(given_situation):
    found = decide(given_situation)
    if found.action in (Action.RESUBMIT, Action.MOVE) and given_situation.cause is not FailureCause.GPU_MEMORY:
        asked = given_situation.attempt.resources.memory_bytes_per_node or 0
        assert found.resources.memory_bytes_per_node > asked


@given(situations(), policies())
def test_the_next_attempt_is_within_the_bounds(given_situation, policy):
    found, left = decide(given_situation), given_situation.job.policy
    if found.action not in (Action.RESUBMIT, Action.MOVE):
        return
    begun = [one for one in given_situation.job.attempts if one.started_at or not one.withdrawn]
    assert len(begun) < left.attempts
    if left.node_s is not None:
        taken = found.resources.nodes * (found.resources.walltime_s or math.inf)
        assert given_situation.spent_node_s + taken <= left.node_s * (1 + 1e-9)


@given(
    st.lists(st.sampled_from(ENDS[1:]), min_size=12, max_size=12), st.integers(1, 8), st.floats(4000, 1e6), st.data()
)
def test_every_sequence_of_ends_is_over_in_bounds(ends, attempts, node_s, data):
    policy = Policy((HERE,), attempts=attempts, node_s=node_s)
    asked, made, spent = ResourceSpec(memory_bytes_per_node=GIB, walltime_s=3600.0), (), 0.0
    for number, end in enumerate(ends):
        this = replace(attempt(number + 1, end), resources=asked)
        made = (*made, this)
        spent += asked.walltime_s if end == "TIMEOUT" else asked.walltime_s * data.draw(st.floats(0, 1))
        cause = data.draw(st.sampled_from(CAUSES.get(end, [None])))
        job = Job("k", replace(situation("FAILED").job.spec, resources=asked), policy, attempts=made)
        found = decide(replace(situation("FAILED"), job=job, attempt=this, spent_node_s=spent, cause=cause))
        if found.action is Action.GIVE_UP:
            break
        assert Action.RESUBMIT is found.action
        asked = found.resources
    assert Action.GIVE_UP is found.action
    assert len(made) <= attempts
    assert spent <= node_s * (1 + 1e-9)


CONSENTING = Policy((HERE,), may_restart=True)


def trials(count, seed, **more):
    """Return the share that completed, and what each of those took over its true time."""
    chance, taken = random.Random(seed), []  # noqa: S311 - a simulation
    for _ in range(count):
        truth, asked = wrong_first_request(chance)
        loop = Loop(truth, asked, CONSENTING, chance, poll_s=max(60.0, truth.time_s / 30), **more)
        if loop.run():
            taken.append(loop.spent_s / truth.time_s)
    return len(taken) / count, taken


@pytest.mark.parametrize("more", [{}, {"steady": True}, {"noise": 0.3}, {"node_fails": 0.1}, {"extends": True}])
def test_wrong_first_requests_complete_at_little_more_than_an_oracle_takes(more):
    share, taken = trials(150, 7, **more)
    assert share >= 0.95
    assert median(taken) <= 1.3


def test_without_forecasts_wrong_first_requests_complete_too():
    share, taken = trials(150, 8, informed=False)
    assert share >= 0.95
    assert median(taken) <= 1.6


def test_no_decision_of_the_loop_asks_for_less_memory_after_it_ran_out():
    chance = random.Random(3)  # noqa: S311 - a simulation
    for _ in range(30):
        truth, asked = wrong_first_request(chance)
        loop = Loop(truth, asked, CONSENTING, chance, node_bytes=round(4 * truth.memory_bytes), noise=0.3)
        loop.poll_s = max(60.0, truth.time_s / 10)
        loop.run()
        known = [one.resources.memory_bytes_per_node for one in loop.attempts]
        assert all(later >= earlier for earlier, later in pairwise(known))
        assert known[-1] <= 4 * truth.memory_bytes + MIB
