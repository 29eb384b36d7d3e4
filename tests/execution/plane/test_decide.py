"""What is done in which situation: a table that a user could read."""

from dataclasses import replace

import pytest
from situations import AWAY, HERE, NOW_S, POLICY, THERE, about, attempt, other, situation

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.plane import Action, AttemptPlan, FailureCause, Place
from leadline.core.units import GIB, HOUR_S
from leadline.execution.plane.decide import decide

RESUMES = replace(POLICY, resumes=True)
FIXED = replace(POLICY, resizes=False)
UNASKED = replace(POLICY, may_restart=False)
TWO = replace(POLICY, copies=2)
H = HOUR_S


def running(elapsed_s, total_s=None, **more):
    return situation("RUNNING", elapsed_s=elapsed_s, total_s=total_s, **more)


CARRIED = replace(POLICY, attempts=10, resumes=True, checkpoint_folder="kept")
BEGAN = attempt(0, "TIMEOUT", started_at="2026-01-05T08:00:00Z", ended_at="2026-01-05T09:00:00Z")


def waiting(total_s=None, **more):
    return situation("PENDING", total_s=total_s, **more)


def failed(cause, **more):
    return situation("FAILED", cause=cause, **more)


def by(seconds):
    """A policy whose deadline is so many seconds from now."""
    from datetime import UTC, datetime

    return replace(POLICY, deadline_at=datetime.fromtimestamp(NOW_S + seconds, UTC).isoformat())


def ran_beside(state, **more):
    return attempt(9, state, place=AWAY, **more)


TABLE = {
    # running
    "runs as foretold": (running(600, about(3000)), Action.KEEP),
    "runs, nothing is known": (running(600), Action.KEEP),
    "runs, without a limit": (running(600, about(3000), attempt={"resources": replace(attempt(1, "RUNNING").resources, walltime_s=None)}), Action.KEEP),
    "will pass its limit": (running(600, about(5000)), Action.EXTEND),
    "may pass its limit": (running(600, about(3500)), Action.EXTEND),
    "may pass, refused once": (running(600, about(3500), asked_to_extend=1), Action.EXTEND),
    "may pass, refused twice": (running(600, about(3500), asked_to_extend=2), Action.KEEP),
    "will pass, refused twice, early": (running(600, about(9000), asked_to_extend=2), Action.RESUBMIT),
    "will pass, refused twice, all but done": (running(3590, about(9000), asked_to_extend=2, attempt={"submitted_at": "2026-01-05T08:00:00+00:00", "started_at": "2026-01-05T09:00:00+00:00"}), Action.RESUBMIT),
    "will pass with a probability of 97 %, refused twice, early": (running(300, Interval(4800.0, 3750.0, 6144.0), asked_to_extend=2), Action.RESUBMIT),
    "may pass by a little, refused twice, late": (running(3400, about(3650, 0.05), asked_to_extend=2), Action.KEEP),
    "will pass, refused, resumes, early": (running(600, about(9000), asked_to_extend=2, policy=RESUMES), Action.KEEP),
    "will pass, refused, resumes, near the limit": (running(3400, about(9000), asked_to_extend=2, policy=RESUMES), Action.CHECKPOINT),
    "will pass, resumes, has its checkpoint": (running(3500, about(9000), asked_to_extend=2, policy=RESUMES, checkpointed=True), Action.KEEP),
    "will pass what the partition allows, resumes": (running(3400, about(9000), allowed_s=H, policy=RESUMES), Action.CHECKPOINT),
    "will pass what the partition allows": (running(600, about(9000), allowed_s=H), Action.KEEP),
    "will pass, but nothing may be changed": (running(600, about(9000), policy=FIXED), Action.KEEP),
    "will pass, refused, no attempt is left": (running(600, about(9000), asked_to_extend=2, before=["NODE_FAIL"] * 3), Action.KEEP),
    "will pass, refused, no money is left": (running(600, about(9000), asked_to_extend=2, policy=replace(POLICY, node_s=4000), spent_node_s=600), Action.KEEP),
    "will pass, the money is too little for more": (running(600, about(9000), policy=replace(POLICY, node_s=3700), spent_node_s=600), Action.KEEP),
    "all is spent": (running(600, about(3000), policy=replace(POLICY, node_s=600), spent_node_s=600), Action.WITHDRAW),
    "all money is spent": (running(600, about(3000), policy=replace(POLICY, cost=2.0), spent_cost=2.1, cost_per_s=0.01), Action.WITHDRAW),
    "needs far less": (running(600, about(1200), limit_s=4 * H), Action.SHRINK),
    "needs a little less": (running(600, about(3000), limit_s=H), Action.KEEP),
    "needs less of a short limit": (running(60, about(600), limit_s=1200), Action.KEEP),
    "needs far less, but nothing may be changed": (running(600, about(1200), limit_s=4 * H, policy=FIXED), Action.KEEP),
    "may need less, who knows": (running(600, Interval(1200, 700, 14000), limit_s=4 * H), Action.KEEP),
    "will run out of memory": (running(60, about(3000), memory_bytes=about(16 * GIB), memory_now_bytes=5 * GIB), Action.RESUBMIT),
    "will run out of memory, at its end": (running(2990, about(3000, 0.02), memory_bytes=about(9 * GIB), memory_now_bytes=7 * GIB), Action.KEEP),
    "will run out of memory, without consent": (running(60, about(3000), policy=UNASKED, memory_bytes=about(16 * GIB), memory_now_bytes=5 * GIB), Action.KEEP),
    "will run out of memory that elsewhere has, without consent": (running(60, about(3000), policy=UNASKED, memory_bytes=about(90 * GIB), node_memory_bytes=64 * GIB, alternatives=(other(memory=128 * GIB),)), Action.KEEP),
    "will pass, without consent": (running(600, about(9000), policy=UNASKED), Action.EXTEND),
    "will pass, refused twice, early, without consent": (running(600, about(9000), asked_to_extend=2, policy=UNASKED), Action.KEEP),
    "needs far less, without consent": (running(600, about(1200), limit_s=4 * H, policy=UNASKED), Action.KEEP),
    "all is spent, without consent": (running(600, about(3000), policy=replace(UNASKED, node_s=600), spent_node_s=600), Action.WITHDRAW),
    "may run out of memory": (running(60, about(3000), memory_bytes=about(8 * GIB)), Action.KEEP),
    "will run out of memory that no node has": (running(60, about(3000), memory_bytes=about(90 * GIB), node_memory_bytes=64 * GIB), Action.KEEP),
    # put back into the queue
    "was requeued by its site": (situation("CANCELLED", cause=FailureCause.REQUEUE, elapsed_s=60), Action.RESUBMIT),
    "was ended by its site": (situation("CANCELLED", cause=FailureCause.ADMINISTRATOR, elapsed_s=60), Action.GIVE_UP),
    # waiting
    "waits as it should": (waiting(about(3000)), Action.KEEP),
    "waits, nothing is known": (waiting(), Action.KEEP),
    "waits with too low a limit": (waiting(about(9000)), Action.EXTEND),
    "waits with too low a limit, refused": (waiting(about(9000), asked_to_extend=2), Action.RESUBMIT),
    "waits with a limit that may be too low, refused": (waiting(about(3500), asked_to_extend=2), Action.KEEP),
    "waits where it cannot end": (waiting(about(9000), allowed_s=H, alternatives=(other(limit_s=4 * H, run_s=9000),)), Action.MOVE),
    "waits where it cannot end, nowhere to go": (waiting(about(9000), allowed_s=H), Action.KEEP),
    "waits where it cannot end, resumes": (waiting(about(9000), allowed_s=H, policy=RESUMES), Action.KEEP),
    "waits with too little memory": (waiting(about(3000), memory_bytes=about(16 * GIB)), Action.RESUBMIT),
    "waits with memory that no node has": (waiting(memory_bytes=about(90 * GIB), node_memory_bytes=64 * GIB, alternatives=(other(memory=128 * GIB),)), Action.MOVE),
    "waits with far too high a limit": (waiting(about(600), limit_s=24 * H), Action.SHRINK),
    "waits long, elsewhere is sooner": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), alternatives=(other(),)), Action.MOVE),
    "elsewhere is a little sooner": (waiting(about(3000), remaining_wait_s=about(600, 0.3), alternatives=(other(run_s=3000),)), Action.KEEP),
    "elsewhere may be sooner, who knows": (waiting(about(3000), remaining_wait_s=Interval(9000, 60, 30000), alternatives=(other(wait_s=5000),)), Action.KEEP),
    "elsewhere is sooner, but the data is here": (waiting(about(3000), remaining_wait_s=about(5000, 0.3), alternatives=(other(staging_s=about(6000)),)), Action.KEEP),
    "elsewhere is sooner, and its checkpoint is soon there": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), policy=CARRIED, others=(BEGAN,), alternatives=(other(AWAY, staging_s=about(60)),)), Action.MOVE),
    "elsewhere is sooner, but who knows when its checkpoint is there": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), policy=CARRIED, others=(BEGAN,), alternatives=(other(AWAY),)), Action.KEEP),
    "elsewhere is sooner, and its checkpoint is there": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), policy=CARRIED, others=(BEGAN,), alternatives=(other(THERE),)), Action.MOVE),
    "elsewhere is sooner, and far dearer": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), cost_per_s=0.001, alternatives=(other(cost=99.0),)), Action.KEEP),
    "elsewhere is sooner, at a fair price": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), cost_per_s=0.001, alternatives=(other(cost=4.0),)), Action.MOVE),
    "elsewhere is sooner, and beyond the money": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), policy=replace(POLICY, cost=3.0), cost_per_s=0.001, alternatives=(other(cost=20.0),)), Action.KEEP),
    "elsewhere is sooner, but it may not go there": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), policy=replace(POLICY, places=(HERE,)), alternatives=(other(),)), Action.KEEP),
    "elsewhere is sooner, a copy waits there": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), policy=TWO, others=(attempt(2, "PENDING", place=THERE),), alternatives=(other(),)), Action.KEEP),
    "elsewhere is sooner, its wait is not known": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), alternatives=(other(wait_s=None),)), Action.KEEP),
    "elsewhere is sooner, no attempt to spare": (waiting(about(3000), remaining_wait_s=about(20000, 0.3), before=["NODE_FAIL"] * 2, alternatives=(other(),)), Action.KEEP),
    "the deadline is met elsewhere only": (waiting(about(3000), remaining_wait_s=about(1000, 0.3), policy=by(3500), alternatives=(other(run_s=3000),)), Action.MOVE),
    "the deadline is past": (waiting(about(3000), policy=by(-1)), Action.WITHDRAW),
    "waits with far too high a limit, without consent": (waiting(about(600), limit_s=24 * H, policy=UNASKED), Action.KEEP),
    # copies and cancellations
    "another copy started": (waiting(about(3000), policy=TWO, others=(ran_beside("RUNNING"),)), Action.WITHDRAW),
    "another copy waits too": (waiting(about(3000), policy=TWO, others=(ran_beside("PENDING"),)), Action.KEEP),
    "another copy is done": (running(60, about(3000), policy=TWO, others=(ran_beside("COMPLETED"),)), Action.WITHDRAW),
    "both copies run, this one was first": (running(60, about(3000), policy=TWO, attempt={"started_at": "2026-01-05T09:00:00+00:00"}, others=(ran_beside("RUNNING", started_at="2026-01-05T09:30:00+00:00"),)), Action.KEEP),
    "both copies run, the other was first": (running(60, about(3000), policy=TWO, attempt={"started_at": "2026-01-05T09:00:00+00:00"}, others=(ran_beside("RUNNING", started_at="2026-01-05T08:30:00+00:00"),)), Action.WITHDRAW),
    "taken back by its user, at the scheduler": (waiting(job={"cancelled": True}), Action.WITHDRAW),
    "taken back by its user, ended": (situation("CANCELLED", job={"cancelled": True}), Action.GIVE_UP),
    "silence": (situation("UNKNOWN", elapsed_s=60), Action.KEEP),
    "settled": (situation("FAILED", job={"state": JobState.FAILED}, cause=FailureCause.NODE), Action.KEEP),
    # ended
    "done": (situation("COMPLETED", elapsed_s=600), Action.FINISH),
    "its limit": (situation("TIMEOUT", elapsed_s=H), Action.RESUBMIT),
    "its limit, with a forecast": (situation("TIMEOUT", elapsed_s=H, total_s=about(6000)), Action.RESUBMIT),
    "its limit, fixed": (situation("TIMEOUT", elapsed_s=H, policy=FIXED), Action.GIVE_UP),
    "its limit, fixed, resumes": (situation("TIMEOUT", elapsed_s=H, policy=replace(FIXED, resumes=True), checkpointed=True), Action.RESUBMIT),
    "its limit, the partition's": (situation("TIMEOUT", elapsed_s=H, allowed_s=H), Action.GIVE_UP),
    "its limit, the partition's, elsewhere more": (situation("TIMEOUT", elapsed_s=H, allowed_s=H, total_s=about(6000), alternatives=(other(run_s=6000),)), Action.MOVE),
    "its limit, the partition's, elsewhere not enough": (situation("TIMEOUT", elapsed_s=H, allowed_s=H, total_s=about(60000), alternatives=(other(run_s=60000),)), Action.GIVE_UP),
    "its limit, the partition's, resumes": (situation("TIMEOUT", elapsed_s=H, allowed_s=H, policy=RESUMES, checkpointed=True), Action.RESUBMIT),
    "its limit, the partition's, resumes by itself": (situation("TIMEOUT", elapsed_s=H, allowed_s=H, policy=RESUMES), Action.RESUBMIT),
    "its limit, all attempts made": (situation("TIMEOUT", elapsed_s=H, before=["TIMEOUT"] * 3), Action.GIVE_UP),
    "its limit, no money left": (situation("TIMEOUT", elapsed_s=H, policy=replace(POLICY, cost=1.0), spent_cost=0.99, cost_per_s=0.01), Action.GIVE_UP),
    "its limit, what is left is too little": (situation("TIMEOUT", elapsed_s=H, total_s=about(9000), policy=replace(POLICY, node_s=2 * H), spent_node_s=H), Action.GIVE_UP),
    "its limit, what is left may do": (situation("TIMEOUT", elapsed_s=H, policy=replace(POLICY, node_s=3 * H), spent_node_s=H), Action.RESUBMIT),
    "its limit, no more in time": (situation("TIMEOUT", elapsed_s=H, total_s=about(9000), policy=by(3000)), Action.GIVE_UP),
    "memory": (situation("OUT_OF_MEMORY", elapsed_s=60), Action.RESUBMIT),
    "memory, with a forecast": (situation("OUT_OF_MEMORY", memory_bytes=about(12 * GIB)), Action.RESUBMIT),
    "memory, fixed": (situation("OUT_OF_MEMORY", policy=FIXED), Action.GIVE_UP),
    "memory, the node's": (situation("OUT_OF_MEMORY", node_memory_bytes=8 * GIB), Action.GIVE_UP),
    "memory, nearly the node's": (situation("OUT_OF_MEMORY", node_memory_bytes=12 * GIB), Action.RESUBMIT),
    "memory, the node's, elsewhere more": (situation("OUT_OF_MEMORY", node_memory_bytes=8 * GIB, alternatives=(other(memory=64 * GIB),)), Action.MOVE),
    "memory, of which nothing is known": (situation("OUT_OF_MEMORY", attempt={"resources": replace(attempt(1, "FAILED").resources, memory_bytes_per_node=None)}), Action.GIVE_UP),
    "memory of a GPU": (situation("OUT_OF_MEMORY", cause=FailureCause.GPU_MEMORY, gpu_memory_bytes=16 * GIB), Action.GIVE_UP),
    "memory of a GPU, elsewhere more": (situation("OUT_OF_MEMORY", cause=FailureCause.GPU_MEMORY, gpu_memory_bytes=16 * GIB, alternatives=(other(gpu_memory_bytes=80 * GIB),)), Action.MOVE),
    "memory of a GPU, elsewhere the same": (situation("OUT_OF_MEMORY", cause=FailureCause.GPU_MEMORY, gpu_memory_bytes=16 * GIB, alternatives=(other(gpu_memory_bytes=16 * GIB),)), Action.GIVE_UP),
    "the node": (situation("NODE_FAIL", elapsed_s=60, node="n7"), Action.RESUBMIT),
    "the node, resumes": (situation("NODE_FAIL", elapsed_s=600, total_s=about(3000), policy=RESUMES, checkpointed=True), Action.RESUBMIT),
    "the node, for the last time": (situation("NODE_FAIL", before=["NODE_FAIL"] * 3), Action.GIVE_UP),
    "preempted": (situation("PREEMPTED", elapsed_s=60), Action.RESUBMIT),
    "a stale file handle": (failed(FailureCause.TRANSIENT), Action.RESUBMIT),
    "a stale file handle, again and again": (failed(FailureCause.TRANSIENT, before=["FAILED", "FAILED"]), Action.GIVE_UP),
    "its program": (failed(FailureCause.PROGRAM), Action.GIVE_UP),
    "the quota": (failed(FailureCause.STORAGE), Action.GIVE_UP),
    "nothing tells": (failed(None), Action.GIVE_UP),
    "an administrator": (situation("CANCELLED", cause=FailureCause.ADMINISTRATOR), Action.GIVE_UP),
    "scancel": (situation("CANCELLED"), Action.GIVE_UP),
    "a dependency": (situation("CANCELLED", cause=FailureCause.DEPENDENCY), Action.GIVE_UP),
    "the plane, and something follows": (situation("CANCELLED", withdrawn=True, job={"plan": AttemptPlan(AWAY, attempt(1, "FAILED").resources)}), Action.KEEP),
    "the plane, another copy runs": (situation("CANCELLED", withdrawn=True, policy=TWO, others=(ran_beside("RUNNING"),)), Action.KEEP),
    "the plane, another copy failed": (situation("CANCELLED", withdrawn=True, policy=TWO, others=(ran_beside("FAILED"),)), Action.GIVE_UP),
    "the plane, another copy failed long before": (situation("CANCELLED", withdrawn=True, attempt={"submitted_at": "2026-01-05T09:00:00+00:00"}, others=(ran_beside("FAILED", ended_at="2026-01-05T08:00:00+00:00"),)), Action.RESUBMIT),
    "the plane, another copy is done": (situation("CANCELLED", withdrawn=True, policy=TWO, others=(ran_beside("COMPLETED"),)), Action.FINISH),
    "nothing names it any more": (situation("UNKNOWN", attempt={"ended_at": "2026-01-05T09:00:00+00:00"}), Action.GIVE_UP),
    "the plane, and nothing follows": (situation("CANCELLED", withdrawn=True), Action.RESUBMIT),
    "the node, another copy waits": (situation("NODE_FAIL", policy=TWO, others=(attempt(0, "PENDING", place=AWAY),)), Action.KEEP),
    "its program, another copy waits": (failed(FailureCause.PROGRAM, policy=TWO, others=(attempt(0, "PENDING", place=AWAY),)), Action.GIVE_UP),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_action_is_the_expected_one(name):
    given, action = TABLE[name]
    found = decide(given)
    assert action is found.action, found
    assert found.reason
    assert len(found.reason) < 300


@pytest.mark.parametrize(
    "name",
    ["will run out of memory, without consent", "will pass, refused twice, early, without consent"],
)
def test_without_consent_the_plane_warns_and_names_the_option(name):
    found = decide(TABLE[name][0])
    assert "with a probability of more than 99 %, but --may-restart was not given, so it runs on" in found.reason


def test_the_table_is_long_and_holds_every_action():
    assert len(TABLE) >= 60
    by_the_engine = {Action.BEGIN}  # which of several copies begins is no question of figures
    assert set(Action) - by_the_engine == {action for _, action in TABLE.values()}


def asked(name):
    return decide(TABLE[name][0]).resources


def test_after_a_timeout_the_next_limit_follows_the_forecast_or_the_time_survived():
    assert 6600 <= asked("its limit, with a forecast").walltime_s <= 7200
    assert asked("its limit").walltime_s == 4 * H


def test_after_a_limit_that_slurm_granted_below_the_request_the_whole_request_follows():
    granted = {"walltime_s": 1800.0}
    found = decide(situation("TIMEOUT", elapsed_s=1800.0, limit_s=8 * H, total_s=about(2000), attempt=granted))
    assert found.resources.walltime_s == 8 * H


def test_after_out_of_memory_the_next_request_follows_the_forecast_or_the_last_request():
    assert 13 * GIB <= asked("memory, with a forecast").memory_bytes_per_node <= 14 * GIB
    assert asked("memory").memory_bytes_per_node == 16 * GIB
    assert asked("memory, nearly the node's").memory_bytes_per_node == 12 * GIB


def test_a_resumed_job_requests_the_remaining_time():
    assert 2400 < asked("the node, resumes").walltime_s < 3600


def test_the_remaining_budget_limits_the_walltime():
    assert asked("its limit, what is left may do").walltime_s == 2 * H


def test_a_failed_node_is_named_and_the_next_attempt_is_delayed_longer_each_time():
    found = decide(TABLE["the node"][0])
    assert found.evidence["avoid_node"] == "n7"
    delays = [decide(situation("PREEMPTED", before=["PREEMPTED"] * times)).delay_s for times in range(3)]
    assert delays == [60.0, 120.0, 240.0]


def test_after_its_memory_a_limit_that_is_too_low_is_raised_too():
    found = decide(situation("OUT_OF_MEMORY", elapsed_s=60, total_s=about(9000)))
    assert found.resources.walltime_s >= 9900


def test_of_two_better_places_the_sooner_one_is_taken():
    places = (other(run_s=4000), other(AWAY, run_s=2000))
    found = decide(waiting(about(3000), remaining_wait_s=about(20000, 0.3), alternatives=places))
    assert found.place == AWAY


def test_the_evidence_shows_how_it_ended_and_what_was_spent():
    found = decide(situation("TIMEOUT", elapsed_s=H, spent_node_s=3600.0, evidence=("DUE TO TIME LIMIT",)))
    assert (found.evidence["ended"], found.evidence["spent_node_s"]) == ("DUE TO TIME LIMIT", 3600.0)
    assert Place("here", "short") == found.place


def test_the_time_that_earlier_attempts_survived_counts():
    earlier = attempt(1, "TIMEOUT", walltime_s=9000.0)
    found = decide(situation("TIMEOUT", elapsed_s=H, others=(earlier,)))
    assert found.resources.walltime_s == 4 * 9000
    elsewhere = decide(situation("TIMEOUT", elapsed_s=H, others=(replace(earlier, place=AWAY),)))
    assert elsewhere.resources.walltime_s == 4 * H


def test_a_vague_forecast_bounds_the_requested_memory():
    vague = Interval(10.0 * GIB, 9.0 * GIB, 900.0 * GIB)
    decided = decide(situation("OUT_OF_MEMORY", cause=FailureCause.HOST_MEMORY, memory_bytes=vague, elapsed_s=60.0))
    assert Action.RESUBMIT is decided.action
    assert decided.resources.memory_bytes_per_node == 20 * GIB


@pytest.mark.parametrize(("state", "cause"), [("TIMEOUT", FailureCause.WALLTIME), ("NODE_FAIL", FailureCause.NODE)])
@pytest.mark.parametrize("policy", [{}, {"policy": RESUMES}])
def test_a_limit_that_the_site_lowered_is_not_that_of_the_next_attempt(state, cause, policy):
    killed = situation(state, elapsed_s=60.0, cause=cause, attempt={"walltime_s": 60.0}, **policy)
    assert decide(killed).resources.walltime_s == H
