import sqlite3
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.app.jobs.event_log import describe_event
from leadline.core.errors import LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, Decision, DependencyKind, EventKind, Job, Place, Policy
from leadline.execution.clock import iso_utc
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.execution.schedulers.port import RequestRefused, SchedulerBusy
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome
from tests.support.fake_scheduler import FakeScheduler, ManualClock
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures

HERE, THERE = Place("here", "short"), Place("there", "long")


def job(key, **more):
    spec = JobSpec("train", ("python", "train.py"), ResourceSpec(walltime_s=600.0))
    policy = more.pop("policy", Policy((HERE,)))
    return Job(key, spec, policy, **more)


class World:
    """A plane over two desks; ``restart`` is a kill and a new process."""

    def __init__(self, path, *, copies=1, decide=retry_node_failures, abreast=1):
        self.path = path
        self.clock = ManualClock()
        self.here, self.there = (FakeScheduler(name, self.clock, abreast=abreast) for name in ("here", "there"))
        self.counsel = FakeAdvisor(copies)
        self.decide = decide
        self.journal = None
        self.restart()

    def restart(self):
        if self.journal is not None:
            self.journal.close()
        self.journal = PlaneJournal(self.path, self.clock)
        self.plane = Plane(
            self.journal, {"here": self.here, "there": self.there}.__getitem__, self.counsel,
            diagnose=diagnose_by_state, decide=self.decide, clock=self.clock,
        )  # fmt: skip

    def step(self, times=1, every_s=60.0):
        for _ in range(times):
            self.plane.step()
            self.clock.sleep(every_s)

    def job(self, key="a"):
        return self.journal.get(key)

    def said(self, kind, key="a"):
        return [event.details for event in self.journal.events(job=key, kinds=[kind])]


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "journal.sqlite")
    yield made
    made.journal.close()


def test_a_job_is_submitted_followed_and_settled(world):
    world.journal.add([job("a")])
    world.step()
    world.here.run(world.here.only())
    world.step()
    assert world.job().current_state is JobState.RUNNING
    world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
    world.step()
    ended = world.job()
    assert (ended.state, ended.recorded, len(ended.attempts)) == (JobState.COMPLETED, True, 1)
    assert world.counsel.recorded[ended.attempts[0].key][0] is JobState.COMPLETED
    assert world.plane.idle


def test_the_key_is_on_the_disk_before_the_scheduler_hears_of_it(world):
    world.journal.add([job("a")])
    seen = []
    submit = world.here.submit

    def look(submission):
        with sqlite3.connect(world.path) as other:
            seen.extend(key for (key,) in other.execute("SELECT key FROM attempt"))
        return submit(submission)

    world.here.submit = look
    world.step()
    assert seen == world.here.submitted


@pytest.mark.parametrize("lost", ["before", "after"])
def test_an_answer_that_was_lost_leads_to_exactly_one_job(world, lost):
    world.journal.add([job("a")])
    world.here.lose_answers = lost
    world.step(every_s=1.0)
    world.here.lose_answers = ""
    world.restart()
    world.step(6)
    assert len(world.here.jobs) == 1
    assert len(world.job().attempts) == 1
    assert world.job().attempts[0].scheduler_id == world.here.only()


def test_a_submission_that_may_still_arrive_is_not_repeated_at_once(world):
    world.journal.add([job("a")])
    world.here.lose_answers = "before"
    world.step(every_s=1.0)
    world.here.lose_answers = ""
    world.step(5, every_s=5.0)
    assert world.here.submitted == []


def test_a_submission_that_did_not_arrive_is_repeated_at_once_where_that_cannot_double_it(world):
    world.journal.add([job("a")])
    world.here.lose_answers, world.here.submits_once = "before", True
    world.step(every_s=1.0)
    world.here.lose_answers = ""
    world.restart()
    world.step(2, every_s=1.0)
    assert len(world.here.submitted) == 1


def test_an_unreported_job_has_not_ended(world):
    world.journal.add([job("a")])
    world.step()
    world.here.run(world.here.only())
    world.here.no_accounting = True
    world.here.end(world.here.only(), JobState.FAILED)
    world.step(10)
    assert world.job().state is JobState.PENDING
    assert len(world.here.submitted) == 1
    world.here.no_accounting = False
    world.step(3)
    assert world.job().state is JobState.FAILED


def test_a_job_missing_for_an_hour_is_given_up_and_not_run_again(world):
    world.journal.add([job("a")])
    world.step()
    world.here.no_accounting = True
    world.here.end(world.here.only(), JobState.COMPLETED)
    world.step(80)
    ended = world.job()
    assert (ended.state, ended.attempts[0].state) == (JobState.UNKNOWN, JobState.UNKNOWN)
    assert world.plane.idle
    assert len(world.here.submitted) == 1


def test_a_forgotten_job_runs_again_and_its_reused_id_is_not_confused(world):
    world.journal.add([job("a")])
    world.step()
    world.here.forget(forgotten := world.here.only())
    world.journal.add([job("b")])
    world.step(every_s=5.0)
    assert forgotten == world.here.only()
    world.here.run(forgotten)
    world.step(every_s=5.0)
    assert (world.job("a").current_state, world.job("b").current_state) == (JobState.PENDING, JobState.RUNNING)
    world.here.end(forgotten, JobState.FAILED)
    world.step(every_s=5.0)
    assert (world.job("a").state, world.job("b").state) == (JobState.PENDING, JobState.FAILED)
    world.step(3)
    world.here.run(world.here.only())
    world.here.end(world.here.only(), JobState.COMPLETED)
    world.step()
    assert JobState.COMPLETED is world.job("a").state
    assert [one.state for one in world.job("a").attempts] == [JobState.NODE_FAIL, JobState.COMPLETED]


def test_a_job_that_was_forgotten_as_it_began_counts_as_killed_once_nothing_reports_it_for_long(world):
    world.journal.add([job("a")])
    world.step()
    key = world.here.jobs[world.here.only()].key
    world.here.run(world.here.only())
    world.step(every_s=5.0)
    world.here.logs[key] = ""  # its command began
    world.here.outcomes[key] = JobOutcome(JobState.RUNNING, iso_utc(world.clock.now_s()), "n1", ("x",))
    world.here.forget(world.here.only())
    world.step(80, every_s=5.0)
    assert len(world.here.submitted) == 1, "its wrapper still reports"
    del world.here.outcomes[key]
    world.step(2)
    assert [one.state for one in world.job("a").attempts] == [JobState.NODE_FAIL, JobState.PENDING]


def test_a_scheduler_that_shows_nothing_although_a_job_runs_is_blind_and_nothing_runs_twice(world):
    world.journal.add([job("a"), job("b")])
    world.step()
    first, second = list(world.here.jobs)
    world.here.run(first)
    world.step(every_s=5.0)
    hidden = {number: world.here.jobs.pop(number) for number in (first, second)}
    world.here.outcomes[hidden[first].key] = JobOutcome(JobState.RUNNING, iso_utc(world.clock.now_s()), "n1", ("x",))
    world.here.forgotten = lambda keys, *_: list(keys)
    world.step(20)
    faults = [event.details for event in world.journal.events(kinds=[EventKind.FAULT])]
    assert faults == [
        {"system": "here", "why": f"it shows none of 2 jobs, although job {first} still reports: check PrivateData"}
    ]
    assert len(world.here.submitted) == 2
    world.here.jobs.update(hidden)
    world.step(2)
    assert (world.job("a").current_state, world.job("b").current_state) == (JobState.RUNNING, JobState.PENDING)


def test_an_end_that_the_accounting_lost_is_asked_of_the_controller(world):
    world.journal.add([job("a")])
    world.step()
    number = world.here.only()
    world.here.run(number)
    world.step(every_s=5.0)
    left = world.here.ended_jobs[number] = world.here.jobs.pop(number)  # RUNNING for ever
    asked = []
    world.here.remembered = lambda ids: asked.append(ids) or {number: replace(left.status, state=JobState.FAILED)}
    world.step(5, every_s=5.0)
    assert (asked, world.job("a").state) == ([], JobState.PENDING), "the accounting may be late"
    world.step(5, every_s=5.0)
    assert (asked, world.job("a").state) == ([[number]], JobState.FAILED)


def test_a_limit_that_someone_else_changes_is_told(world):
    world.journal.add([job("a")])
    world.step()
    number = world.here.only()
    world.here.change_walltime(number, 601.0)
    world.step(2)
    limits = [details for details in world.said(EventKind.STATE) if "walltime_s" in details]
    assert limits == []
    world.here.change_walltime(number, 120.0)
    world.step(2)
    (lowered,) = [details for details in world.said(EventKind.STATE) if "walltime_s" in details]
    assert lowered == {"state": "PENDING", "walltime_s": 120.0, "walltime_before_s": 601.0}
    (event,) = [event for event in world.journal.events(job="a") if event.details.get("walltime_s") == 120.0]
    assert describe_event(event)[0] == "limit changed by the scheduler from 10m 01s to 2m 00s"


def test_a_clock_that_jumps_makes_no_submission_one_that_never_arrived(world):
    world.journal.add([job("a")])
    world.here.lose_answers = "before"
    world.step(every_s=1.0)
    world.here.lose_answers = ""
    world.clock.jump_s += 6 * 3600.0
    world.step(4, every_s=5.0)
    assert world.here.submitted == []
    world.step(3)
    assert len(world.here.submitted) == 1


def test_a_clock_that_is_set_back_puts_nothing_off_for_hours(world):
    world.journal.add([job("a")])
    world.clock.jump_s += 6 * 3600.0
    world.step()
    world.here.run(world.here.only())
    world.here.end(world.here.only(), JobState.NODE_FAIL)
    world.step(2, every_s=1.0)
    world.clock.jump_s -= 6 * 3600.0
    world.step(2, every_s=40.0)
    assert len(world.here.submitted) == 2


def test_not_even_a_new_process_waits_for_hours_after_a_clock_was_set_back(world):
    world.journal.add([job("a")])
    world.clock.jump_s += 6 * 3600.0
    world.step()
    world.here.run(world.here.only())
    world.here.end(world.here.only(), JobState.NODE_FAIL)
    world.step(every_s=1.0)
    world.clock.jump_s -= 6 * 3600.0
    world.restart()
    world.step(35)
    assert len(world.here.submitted) == 2


def test_a_silent_scheduler_is_polled_less_and_less_and_reported_once(world):
    world.journal.add([job("a")])
    world.step()
    world.here.down = True
    world.step(60, every_s=10.0)
    faults = world.journal.events(kinds=[EventKind.FAULT])
    assert len(faults) == 1
    assert world.plane.watchers["here"].rhythm.failures <= 9
    world.here.down = False
    world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
    world.step(10)
    assert world.job().state is JobState.COMPLETED


def test_one_dead_system_does_not_stop_the_other(world):
    world.journal.add([job("a"), job("b", policy=Policy((THERE,)))])
    world.here.down = True
    world.step(3)
    assert world.job("b").attempts[0].scheduler_id == world.there.only()
    world.here.down = False
    world.step(10)
    assert len(world.here.jobs) == 1


def test_a_failed_node_leads_to_another_attempt_after_its_delay(world):
    world.journal.add([job("a")])
    world.step()
    world.here.end(world.here.only(), JobState.NODE_FAIL)
    world.step(2, every_s=10.0)
    assert len(world.here.submitted) == 1
    world.step(4, every_s=10.0)
    assert len(world.here.submitted) == 2
    assert [one.number for one in world.job().attempts] == [1, 2]


def test_attempts_are_bounded(world):
    world.journal.add([job("a", policy=Policy((HERE,), attempts=3))])
    for _ in range(12):
        world.step()
        for own in list(world.here.jobs):
            world.here.end(own, JobState.NODE_FAIL)
    assert len(world.here.submitted) == 3
    assert world.job().state is JobState.NODE_FAIL


def test_a_kill_between_two_steps_changes_nothing(world):
    world.journal.add([job("a"), job("b")])
    world.step()
    world.restart()
    for own in list(world.here.jobs):
        world.here.run(own)
    world.step()
    world.restart()
    for own in list(world.here.jobs):
        world.here.end(own, JobState.COMPLETED, reports=True)
    world.restart()
    world.step(2)
    assert {world.job(key).state for key in "ab"} == {JobState.COMPLETED}
    assert len(world.here.submitted) == 2


def test_a_cancelled_job_ends_wherever_it_is(world):
    world.journal.add([job("waits"), job("new", after=("waits",))])
    world.step()
    world.journal.cancel(["waits", "new"])
    world.step(3)
    assert [world.job(key).state for key in ("waits", "new")] == [JobState.CANCELLED, JobState.CANCELLED]
    assert len(world.here.cancelled) == 1


def test_a_job_cancelled_while_its_answer_was_lost_is_found_and_ended(world):
    world.journal.add([job("a")])
    world.here.lose_answers = "after"
    world.step(every_s=1.0)
    world.journal.cancel(["a"])
    world.here.lose_answers = ""
    world.step(5)
    assert world.here.jobs == {}
    assert world.job().state is JobState.CANCELLED


def test_a_cancelled_unstarted_job_that_its_scheduler_forgot_is_settled(world):
    world.journal.add([job("a")])
    world.step()
    del world.here.jobs[world.here.only()]
    world.journal.cancel(["a"])
    world.step(4)
    assert world.job().state is JobState.CANCELLED


def test_cancelling_is_tried_again_until_the_scheduler_answers(world):
    world.journal.add([job("a")])
    world.step()
    world.journal.cancel(["a"])
    world.here.down = True
    world.step(3)
    world.here.down = False
    world.step(12)
    assert world.job().state is JobState.CANCELLED


def test_a_job_waits_for_those_before_it(world):
    world.journal.add([job("a"), job("b", after=("a",)), job("c", after=("a",), after_kind=DependencyKind.NOT_OK)])
    world.step(2)
    assert len(world.here.submitted) == 1
    world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
    world.step(2)
    assert len(world.here.submitted) == 2
    assert world.job("c").state is JobState.CANCELLED
    assert "a, which it waits for, ended COMPLETED" in world.job("c").reason


def test_an_array_is_one_submission_and_its_elements_are_settled_one_by_one(world):
    world.journal.add([job(f"e{index}", group="g", index=index) for index in range(5)])
    world.step()
    assert len(world.here.submitted) == 1
    assert sorted(world.here.jobs) == [f"100_{index}" for index in range(5)]
    world.here.end("100_3", JobState.COMPLETED, reports=True)
    world.here.end("100_1", JobState.NODE_FAIL)
    world.step(4)
    assert world.job("e3").state is JobState.COMPLETED
    assert world.here.jobs["101_1"].submission.indices == (1,)


def test_of_several_copies_the_first_to_start_is_kept(tmp_path):
    world = World(tmp_path / "journal.sqlite", copies=2)
    world.journal.add([job("a", policy=Policy((HERE, THERE), copies=2))])
    world.step()
    assert len(world.here.jobs) == len(world.there.jobs) == 1
    world.there.run(world.there.only())
    world.step(4)
    assert world.here.jobs == {}
    world.there.end(world.there.only(), JobState.COMPLETED, reports=True)
    world.step(2)
    assert world.job().state is JobState.COMPLETED
    assert [one.withdrawn for one in world.job().attempts] == [True, False]


def copied(tmp_path):
    world = World(tmp_path / "journal.sqlite", copies=2)
    world.journal.add([job("a", policy=Policy((HERE, THERE), copies=2))])
    world.step()
    return world


def begun(world):
    return world.here.started_commands + world.there.started_commands


def test_copies_are_held_and_one_that_is_alone_is_not(tmp_path):
    world = copied(tmp_path)
    world.journal.add([job("b")])
    world.step()
    held = {held.key: held.submission.held for desk in (world.here, world.there) for held in desk.jobs.values()}
    assert [held[one.key] for key in "ab" for one in world.job(key).attempts] == [True, True, False]


def test_of_two_copies_that_start_at_once_one_begins(tmp_path):
    world = copied(tmp_path)
    world.here.run(world.here.only())
    world.there.run(world.there.only())
    assert begun(world) == []
    world.step(3)
    assert begun(world) == [world.job().attempts[0].key]
    assert world.there.jobs == {}
    assert [one.begins for one in world.job().attempts] == [True, False]
    assert [one["action"] for one in world.said(EventKind.DECISION)][:2] == ["begin", "withdraw"]


def test_a_plane_killed_before_the_release_releases_the_same_copy_later(tmp_path):
    world = copied(tmp_path)
    world.there.run(world.there.only())

    def dies(keys):
        raise KeyboardInterrupt

    world.there.let_begin = dies
    with pytest.raises(KeyboardInterrupt):
        world.plane.step()
    assert [one.begins for one in world.job().attempts] == [False, True]
    del world.there.let_begin
    world.here.run(world.here.only())
    world.restart()
    world.step(3)
    assert begun(world) == [world.job().attempts[1].key]


def test_an_uncertain_release_is_repeated_at_the_same_system_only(tmp_path):
    world = copied(tmp_path)
    world.there.run(world.there.only())
    world.there.down, asked = False, []
    let = world.there.let_begin

    def lost(keys):
        asked.append(keys)
        raise SchedulerUnreachable("no answer")

    world.there.let_begin = lost
    world.step(2)
    assert asked
    assert begun(world) == []
    world.there.let_begin = let
    world.step(5)
    assert begun(world) == [world.job().attempts[1].key]
    assert world.here.released == set()


def test_a_copy_with_an_uncertain_submission_is_withdrawn_too(tmp_path):
    world = World(tmp_path / "journal.sqlite", copies=2)
    world.journal.add([job("a", policy=Policy((HERE, THERE), copies=2))])
    world.there.lose_answers = "after"
    world.step(every_s=1.0)
    world.here.run(world.here.only())
    world.there.run(world.there.only())
    world.there.lose_answers = ""
    world.step(6)
    assert begun(world) == [world.job().attempts[0].key]
    assert world.there.jobs == {}


def test_a_job_that_is_done_while_its_copy_was_never_sent_is_not_run_again(tmp_path):
    world = World(tmp_path / "journal.sqlite", copies=2)
    world.journal.add([job("a", policy=Policy((HERE, THERE), copies=2))])
    world.there.lose_answers = "before"
    world.step(every_s=1.0)
    world.here.run(world.here.only())
    world.step()
    world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
    world.there.lose_answers = ""
    world.step(10)
    assert world.job().state is JobState.COMPLETED
    assert len(begun(world)) == 1
    assert len(world.job().attempts) == 2


def test_a_copy_that_can_only_fail_takes_the_others_back(tmp_path):
    world = World(tmp_path / "journal.sqlite", copies=2)
    world.journal.add([job("a", policy=Policy((HERE, THERE), copies=2))])
    world.step()
    world.here.end(world.here.only(), JobState.FAILED)
    world.step(3)
    assert world.there.jobs == {}
    assert world.job().state is JobState.FAILED


def test_why_a_job_was_ended_is_its_schedulers_to_say(world):
    world.journal.add([job("a")])
    world.step()
    own = world.here.only()
    world.here.run(own)
    world.step()
    world.here.end(own, JobState.CANCELLED, reports=True)
    left = world.here.ended_jobs.pop(own)
    world.step(every_s=10.0)
    assert world.job().attempts[0].live
    left.status = replace(left.status, state=JobState.NODE_FAIL)
    world.here.ended_jobs[own] = left
    world.step(2, every_s=5.0)
    assert world.job().attempts[0].state is JobState.NODE_FAIL


def test_without_accounting_the_wrappers_report_counts_after_a_while(world):
    world.journal.add([job("a")])
    world.step()
    world.here.no_accounting = True
    world.here.end(world.here.only(), JobState.FAILED, reports=True)
    world.step(3)
    assert world.job().state is JobState.FAILED


def test_segments_of_a_resumed_job_do_not_count_as_tries(tmp_path):
    def chain(situation):
        if situation.attempt.state is JobState.TIMEOUT and situation.checkpointed:
            return Decision(Action.RESUBMIT, "it goes on from its checkpoint")
        return retry_node_failures(situation)

    world = World(tmp_path / "journal.sqlite", decide=chain)
    world.journal.add([job("a", policy=Policy((HERE,), resumes=True, checkpoint_signal="USR1"))])
    for _ in range(3):
        world.step()
        own = world.here.only()
        world.here.run(own)
        world.step()
        world.here.end(own, JobState.TIMEOUT, reports=True)
        key = world.here.ended_jobs[own].key
        world.here.outcomes[key] = replace(world.here.outcomes[key], warned=True)
        world.step()
    world.step()
    assert [one.segment for one in world.job().attempts] == [True, True, True, False]


def test_a_refusal_closes_the_job_with_the_schedulers_message(world):
    world.journal.add([job("a")])
    world.here.refusal = RequestRefused("Invalid account")
    world.step(2)
    assert world.job().state is JobState.FAILED
    assert "here:short refused it: Invalid account" in world.job().reason


def test_a_scheduler_that_takes_nothing_more_is_tried_again_later(world):
    world.journal.add([job("a")])
    world.here.refusal = SchedulerBusy("QOSMaxSubmitJobPerUserLimit")
    world.step(3)
    assert world.job().state is JobState.PENDING
    world.here.refusal = None
    world.step(3)
    assert len(world.here.jobs) == 1


def test_a_move_takes_the_job_to_the_other_place(tmp_path):
    def move(situation):
        if situation.attempt.place == HERE and not situation.attempt.state.final:
            return Decision(Action.MOVE, "it ends sooner there", place=THERE)
        return retry_node_failures(situation)

    world = World(tmp_path / "journal.sqlite", decide=move)
    world.journal.add([job("a")])
    world.step(20)
    assert world.here.jobs == {}
    assert len(world.there.jobs) == 1
    assert [one.place for one in world.job().attempts] == [HERE, THERE]


@pytest.mark.parametrize("may_restart", [False, True])
def test_a_job_that_begins_while_its_move_is_decided_is_ended_only_with_consent(tmp_path, may_restart):
    def move(situation):
        if situation.attempt.place == HERE and situation.attempt.state is JobState.PENDING:
            world.here.run(world.here.only())
            return Decision(Action.MOVE, "it ends sooner there", place=THERE)
        return Decision(Action.KEEP, "it is fine")

    world = World(tmp_path / "journal.sqlite", decide=move)
    world.journal.add([job("a", policy=Policy((HERE, THERE), may_restart=may_restart))])
    world.step(20)
    assert bool(world.here.cancelled) is may_restart
    assert len(world.job().attempts) == (2 if may_restart else 1)


@pytest.mark.parametrize("may_restart", [False, True])
def test_a_job_that_begins_during_an_outage_after_its_move_was_decided_is_ended_only_with_consent(
    tmp_path, may_restart
):
    def move(situation):
        if situation.attempt.place == HERE and situation.attempt.state is JobState.PENDING:
            world.here.down = True
            return Decision(Action.MOVE, "it ends sooner there", place=THERE)
        return Decision(Action.KEEP, "it is fine")

    world = World(tmp_path / "journal.sqlite", decide=move)
    world.journal.add([job("a", policy=Policy((HERE, THERE), may_restart=may_restart))])
    world.step(20)
    assert world.job().attempts[0].withdrawn
    world.here.run(world.here.only())
    world.restart()
    world.step(3)
    world.here.down = False
    world.step(20)
    assert bool(world.here.cancelled) is may_restart
    assert len(world.job().attempts) == (2 if may_restart else 1)
    if not may_restart:
        assert world.job().plan is None
        assert not world.job().attempts[0].withdrawn
        assert "began before it could be withdrawn: --may-restart was not given" in str(world.said(EventKind.DECISION))


def test_a_job_that_completes_before_its_move_is_not_run_again(tmp_path):
    def move(situation):
        if situation.attempt.place == HERE and not situation.attempt.state.final:
            world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
            return Decision(Action.MOVE, "it ends sooner there", place=THERE)
        return retry_node_failures(situation)

    world = World(tmp_path / "journal.sqlite", decide=move)
    world.journal.add([job("a", policy=Policy((HERE, THERE), may_restart=True))])
    world.step(10)
    assert world.job().state is JobState.COMPLETED
    assert len(world.job().attempts) == 1
    assert world.there.submitted == []


def test_consent_that_comes_after_the_submission_counts_at_once(tmp_path):
    def move(situation):
        if situation.attempt.place == HERE and situation.job.policy.may_restart:
            return Decision(Action.MOVE, "it ends sooner there", place=THERE)
        return Decision(Action.KEEP, "it is fine")

    world = World(tmp_path / "journal.sqlite", decide=move)
    world.journal.add([job("a", policy=Policy((HERE, THERE)))])
    world.step(5)
    world.here.run(world.here.only())
    world.step(20)
    assert not world.here.cancelled
    world.journal.approve(["a"])
    world.step(20)
    assert world.here.cancelled
    assert [attempt.place for attempt in world.job().attempts] == [HERE, THERE]
    assert world.job().policy.may_restart


def test_a_limit_that_may_not_be_changed_is_counted_as_refused(tmp_path):
    def extend(situation):
        if situation.attempt.state is JobState.RUNNING:
            asked = replace(situation.attempt.resources, walltime_s=1200.0)
            return Decision(Action.EXTEND, "it needs longer", resources=asked)
        return retry_node_failures(situation)

    world = World(tmp_path / "journal.sqlite", decide=extend)
    world.here.fixed_limits = True
    world.journal.add([job("a")])
    world.step()
    world.here.run(world.here.only())
    world.step(10)
    assert world.job().attempts[0].refused_extensions >= 1
    assert "Access/permission denied" in str(world.said(EventKind.FAULT))
    world.here.fixed_limits = False
    world.step(10)
    assert world.job().attempts[0].walltime_s == 1200.0


def test_a_journal_that_cannot_be_written_stops_nothing_for_good(world):
    world.journal.add([job("a")])

    @contextmanager
    def full():
        raise LeadlineError("the journal cannot be used (database or disk is full)")
        yield

    writing, world.journal.transaction = world.journal.transaction, full
    with pytest.raises(LeadlineError, match="disk is full"):
        world.plane.step()
    assert world.here.submitted == []
    world.journal.transaction = writing
    world.step(2)
    assert len(world.here.jobs) == 1


def test_a_clock_that_jumps_neither_loses_nor_repeats_a_job(world):
    world.journal.add([job("a")])
    world.here.lose_answers = "after"
    world.step(every_s=1.0)
    world.here.lose_answers = ""
    for jump_s in (-86_400.0, 86_400.0):
        world.clock.jump_s = jump_s
        world.step(3)
    assert len(world.here.submitted) == 1
    world.here.end(world.here.only(), JobState.COMPLETED, reports=True)
    world.step(2)
    assert world.job().state is JobState.COMPLETED


def test_every_poll_is_a_row_of_the_journal(world):
    world.journal.add([job("a")])
    world.step(5)
    polls = [event for event in world.journal.events(kinds=[EventKind.POLL]) if "live" in event.details]
    assert len(polls) == world.here.query_count


STEPS = st.lists(
    st.sampled_from(["step", "restart", "run", "well", "node", "down", "up", "lose before", "lose after", "lose "]),
    max_size=40,
)


def happen(world, what):
    """Let one thing happen to the desk here, or to the plane."""
    desk = world.here
    first = next(iter(desk.jobs), None)
    if what == "step":
        world.step()
    elif what == "restart":
        world.restart()
    elif what in ("down", "up"):
        desk.down = what == "down"
    elif what.startswith("lose"):
        desk.lose_answers = what.partition(" ")[2]
    elif first is not None and what == "run":
        desk.run(first)
    elif first is not None:
        desk.end(first, JobState.COMPLETED if what == "well" else JobState.NODE_FAIL, reports=what == "well")


COPIES = st.lists(
    st.tuples(
        st.sampled_from(["here", "there", "both"]),
        st.sampled_from(
            ["step", "step", "restart", "dies", "run", "run", "well", "node", "late", "down", "up", "lose before",
             "lose after", "lose ", "words", "cancel"]
        ),
    ),
    max_size=40,
)  # fmt: skip


def happen_there(world, desk, what):
    """Let one thing happen to one of several desks."""
    for held in [own for own, one in desk.jobs.items() if one.status.state is JobState.RUNNING][:1]:
        mine = desk.jobs[held]
        lets = not mine.submission.held or mine.key in desk.released
        if what == "late" and not lets:
            desk.end(held, JobState.FAILED)
            desk.outcomes[mine.key] = JobOutcome(
                JobState.CANCELLED, iso_utc(world.clock.now_s()), "n1", ("true",),
                ended_at=iso_utc(world.clock.now_s()), exit_code=EXIT_NEVER_BEGAN, reason="the release did not come",
            )  # fmt: skip
        elif what == "node" or (what == "well" and lets):
            desk.end(held, JobState.COMPLETED if what == "well" else JobState.NODE_FAIL, reports=what == "well")
    waiting = [own for own, one in desk.jobs.items() if one.status.state is JobState.PENDING]
    if what == "run" and waiting:
        desk.run(waiting[0])
    elif what in ("down", "up"):
        desk.down = what == "down"
    elif what.startswith("lose"):
        desk.lose_answers = what.partition(" ")[2]
    elif what == "words":
        desk.lose_release_answers = not desk.lose_release_answers


def dies_at_the_next_word(world):
    """Kill the plane where it is about to tell a scheduler which copy begins."""

    def dies(keys):
        raise KeyboardInterrupt

    for desk in (world.here, world.there):
        desk.let_begin = dies
    try:
        world.plane.step()
    except KeyboardInterrupt:
        world.restart()
    for desk in (world.here, world.there):
        del desk.let_begin


@settings(max_examples=150)
@given(COPIES, st.sampled_from([1, 4]))
def test_whatever_happens_at_most_one_copys_command_begins_at_a_time(tmp_path_factory, steps, abreast):
    world = World(tmp_path_factory.mktemp("plane") / "journal.sqlite", copies=2, abreast=abreast)
    world.journal.add([job("a", policy=Policy((HERE, THERE), copies=2, attempts=50))])
    desks = {"here": [world.here], "there": [world.there], "both": [world.here, world.there]}
    for where, what in [
        *steps,
        *([("both", "up"), ("both", "lose ")] + 12 * [("both", "run"), ("both", "step"), ("both", "well")]),
    ]:
        if what == "step":
            world.step()
        elif what == "restart":
            world.restart()
        elif what == "dies":
            dies_at_the_next_word(world)
        elif what == "cancel" and where == "here":
            world.journal.cancel(["a"])
        else:
            for desk in desks[where]:
                happen_there(world, desk, what)
        at_work = [
            held.key
            for desk in (world.here, world.there)
            for held in desk.jobs.values()
            if held.key in desk.started_commands and held.status.state is JobState.RUNNING
        ]
        assert len(at_work) <= 1
        assert len(begun(world)) == len(set(begun(world)))
    ended = world.job()
    world.step(40)
    ended = world.job()
    assert ended.closed
    done = [one for one in ended.attempts if one.state is JobState.COMPLETED]
    assert len(done) <= 1
    assert (ended.state is JobState.COMPLETED) is bool(done)
    assert {one.key for one in done} <= set(begun(world))
    world.journal.close()


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1, 4]))
def test_whatever_happens_each_happens_each_job_runs_to_one_end_and_never_twice_at_once(
    tmp_path_factory, steps, abreast
):
    world = World(tmp_path_factory.mktemp("plane") / "journal.sqlite", abreast=abreast)
    world.journal.add([job(key, policy=Policy((HERE,), attempts=50)) for key in "abc"])
    for one in steps:
        happen(world, one)
        held = [held.key for held in world.here.jobs.values()]
        assert len(held) == len(set(held))
    world.here.down, world.here.lose_answers = False, ""
    for _ in range(30):
        world.step()
        for own in list(world.here.jobs):
            world.here.end(own, JobState.COMPLETED, reports=True)
    for key in "abc":
        ended = world.job(key)
        assert ended.state is JobState.COMPLETED
        assert [one.state for one in ended.attempts].count(JobState.COMPLETED) == 1
    assert len(world.here.submitted) == len(set(world.here.submitted))
    world.journal.close()


def test_an_attempt_after_the_first_is_given_no_shorter_limit_than_it_asks_for(world):
    spec = JobSpec("train", ("true",), ResourceSpec(walltime_s=600.0, least_walltime_s=120.0))
    world.journal.add([replace(job("a"), spec=spec)])
    world.step()
    assert world.here.jobs[world.here.only()].submission.spec.resources.least_walltime_s == 120.0
    world.here.end(world.here.only(), JobState.NODE_FAIL)
    world.step(4)
    assert world.here.jobs[world.here.only()].submission.spec.resources.least_walltime_s is None


def test_a_decision_about_a_waiting_job_rests_on_its_schedulers_plan_where_no_more_is_known(world):
    seen = []

    def notes(situation):
        seen.append((situation.attempt.state, situation.remaining_wait_s))
        return retry_node_failures(situation)

    world.plane.actor.decide = notes
    world.journal.add([job("a")])
    world.step()
    held = world.here.jobs[world.here.only()]
    held.status = replace(held.status, expected_start_s=world.clock.now_s() + 7200.0)
    world.step(12)
    waits = [wait for state, wait in seen if state is JobState.PENDING]
    assert waits[-1] is not None
    assert 0.0 == waits[-1].low < waits[-1].point < waits[-1].high < 7200.0
    world.here.run(world.here.only())
    world.step(12)
    assert seen[-1] == (JobState.RUNNING, None)


def test_a_plan_that_wavers_at_every_look_is_not_written_down(world):
    world.journal.add([job("a")])
    world.step(2)
    before = world.journal.last_event()
    for at in range(5):
        held = world.here.jobs[world.here.only()]
        held.status = replace(held.status, expected_start_s=world.clock.now_s() + 100.0 * at)
        world.step()
    new = world.journal.events(since=before)
    assert not [one for one in new if one.kind is EventKind.STATE]
    assert all(one.details["changed"] == 0 for one in new if one.kind is EventKind.POLL)


def test_unwritten_news_is_written_at_the_next_step(world, monkeypatch):
    news = [[NewEvent(EventKind.LEARNED, details={"why": "it is better"})]]
    world.plane._news = lambda: news.pop() if news else []
    with monkeypatch.context() as broken:
        broken.setattr(world.journal, "write", full_disk)
        with pytest.raises(LeadlineError):
            world.plane.step()
    assert world.journal.events(kinds=[EventKind.LEARNED]) == ()
    world.step(2)
    assert [one.details for one in world.journal.events(kinds=[EventKind.LEARNED])] == [{"why": "it is better"}]


def full_disk(**_):
    raise LeadlineError("no space is left")
