"""Decide about live attempts, store each decision with its evidence, and carry it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, EventKind, Job, Situation
from leadline.core.queues import wait_from_plan
from leadline.execution.clock import Clock, epoch_s
from leadline.execution.plane.advisor import Advisor, Decide
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent, attempt_event
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.plane.segments import has_checkpoint
from leadline.execution.schedulers.port import RequestRefused, Scheduler
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass(slots=True)
class Actor:
    """Builds the situation of an attempt, gets the decision, and acts on it."""

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    advisor: Advisor
    clock: Clock
    intervals: PollIntervals
    decide: Decide
    kept: dict[str, tuple[JobState, float]] = field(default_factory=dict)
    """Attempt -> its state and the monotonic time when KEEP was last stored."""
    starts: Mapping[str, float] = field(default_factory=dict)
    """Waiting attempt -> start time that its scheduler expects, in seconds since the epoch."""
    fixed: set[str] = field(default_factory=set)  # attempts whose limit the scheduler refused to shorten
    released: set[str] = field(default_factory=set)  # attempts that this process has released

    def judge(self, attempt: Attempt, outcome: JobOutcome | None) -> None:
        """Decide about a live attempt, and act.

        Raises:
            SchedulerUnreachable: the decision was not carried out; it is made again later.
        """
        job = self.book.jobs.get(attempt.job)
        # Withdrawn attempts end soon; a decision about them would never take effect.
        if job is None or job.cancelled or self.book.current(attempt).withdrawn:
            return
        attempt = self._choose(job, attempt)
        situation = self._situation(job, attempt, outcome)
        decision = self.decide(situation)
        is_refused = decision.action is Action.SHRINK and attempt.key in self.fixed
        is_repetitive = is_refused or decision.action in (Action.KEEP, Action.CHECKPOINT)
        if is_repetitive and not self._should_store(attempt):
            return
        self.book.write(events=[NewEvent(EventKind.DECISION, job.key, attempt.key, decision_details(decision))])
        self._act(job, attempt, decision)

    def judge_waiting(self, system: str) -> None:
        """Decide from time to time about attempts without news."""
        for job, attempt in list(self.book.live(system)):
            if attempt.scheduler_id is None:
                continue
            self._choose(job, attempt)
            now_s = self.clock.monotonic_s()
            _, since_s = self.kept.setdefault(attempt.key, (attempt.state, now_s))
            if now_s - since_s > self.intervals.decide:
                self.kept[attempt.key] = (attempt.state, now_s)
                self.judge(attempt, None)

    def decide_end(self, job: Job, ended: Attempt, outcome: JobOutcome | None, diagnosis: Diagnosis) -> Decision:
        """Return what follows the end of a job's last attempt."""
        self.kept.pop(ended.key, None)
        self.fixed.discard(ended.key)
        self.released.discard(ended.key)
        situation = self._situation(job, ended, outcome)
        return self.decide(replace(situation, evidence=diagnosis.evidence, cause=diagnosis.cause))

    def _should_store(self, attempt: Attempt) -> bool:
        """True if a KEEP decision is stored: once for each state, then from time to time."""
        state, since_s = self.kept.get(attempt.key, (None, 0.0))
        now_s = self.clock.monotonic_s()
        if state is attempt.state and now_s - since_s < self.intervals.decide:
            return False
        self.kept[attempt.key] = (attempt.state, now_s)
        return True

    def _situation(self, job: Job, attempt: Attempt, outcome: JobOutcome | None) -> Situation:
        now_s = self.clock.now_s()
        situation = self.advisor.expect(job, attempt, outcome, now_s=now_s)
        memory = outcome.measured.get("host_memory_bytes") if outcome else None
        rate = situation.cost_per_s
        start_s = self.starts.get(attempt.key) if attempt.state is JobState.PENDING else None
        planned = None if start_s is None else wait_from_plan(max(0.0, start_s - now_s))
        return replace(
            situation,
            elapsed_s=attempt_elapsed_s(attempt, now_s),
            memory_now_bytes=memory.value if memory else None,
            remaining_wait_s=situation.remaining_wait_s or planned,
            spent_node_s=sum(attempt_node_s(past, now_s) for past in job.attempts),
            spent_cost=rate and rate * sum(attempt_elapsed_s(past, now_s) for past in job.attempts),
            asked_to_extend=attempt.refused_extensions,
            checkpointed=has_checkpoint(job, outcome),
        )

    def _act(self, job: Job, attempt: Attempt, decision: Decision) -> None:
        request = decision.resources
        if decision.action in (Action.SHRINK, Action.EXTEND):
            if request and request.walltime_s and attempt.scheduler_id:
                self._change_walltime(attempt, attempt.scheduler_id, request.walltime_s, decision.action)
        elif decision.action in (Action.MOVE, Action.RESUBMIT, Action.WITHDRAW, Action.GIVE_UP):
            job = replace(job, reason=decision.reason)
            if decision.action in (Action.MOVE, Action.RESUBMIT):
                place = decision.place or attempt.place
                job = replace(job, plan=AttemptPlan(place, request or attempt.resources, reason=decision.reason))
            # The mark explains the attempt's end; the engine cancels it.
            self.book.write(jobs=[job], attempts=[replace(attempt, withdrawn=True)])

    def _change_walltime(self, attempt: Attempt, scheduler_id: str, walltime_s: float, action: Action) -> None:
        details: EventDetails = {"state": attempt.state.value, "walltime_s": walltime_s}
        kind, changed = EventKind.STATE, replace(attempt, walltime_s=walltime_s)
        try:
            self.schedulers[attempt.place.system].change_walltime(scheduler_id, walltime_s)
        except RequestRefused as error:
            kind, changed, details = EventKind.FAULT, attempt, {"why": str(error), "asked": action.value}
            if action is Action.EXTEND:
                changed = replace(attempt, refused_extensions=attempt.refused_extensions + 1)
            else:
                self.fixed.add(attempt.key)
        self.book.write(attempts=[changed], events=[attempt_event(kind, changed, details)])

    def release_chosen(self, system: str) -> None:
        """Release the chosen copies of jobs at a system.

        Raises:
            SchedulerUnreachable: some releases may be missing; they are repeated later.
        """
        begins = [attempt.key for _, attempt in self.book.live(system) if attempt.begins and not attempt.withdrawn]
        if chosen := [key for key in begins if key not in self.released]:
            self.schedulers[system].let_begin(chosen)
            self.released.update(chosen)

    def _choose(self, job: Job, attempt: Attempt) -> Attempt:
        """Choose the first running copy of a job and withdraw the others; return the attempt as it is then.

        One write stores all of this before any scheduler is called. After a kill, no other copy can be chosen.
        """
        job, attempt = self.book.jobs.get(job.key, job), self.book.current(attempt)
        if attempt.state is not JobState.RUNNING or attempt.withdrawn or job.cancelled:
            return attempt
        copies = [copy for copy in job.live_attempts if copy.key != attempt.key and not copy.withdrawn]
        # Only a held attempt needs a release; others have already begun.
        chosen = replace(attempt, begins=attempt.held)
        if chosen == attempt and not copies:
            return attempt
        why = f"another copy runs at {attempt.place}"
        events = [
            NewEvent(EventKind.DECISION, job.key, copy.key, {"action": Action.WITHDRAW.value, "why": why})
            for copy in copies
        ]
        if chosen != attempt:
            details = {"action": Action.BEGIN.value, "why": "it is the first copy that runs"}
            events.insert(0, NewEvent(EventKind.DECISION, job.key, attempt.key, details))
        self.book.write(attempts=[chosen, *(replace(copy, withdrawn=True) for copy in copies)], events=events)
        return chosen


def decision_details(decision: Decision) -> EventDetails:
    """Return a decision as the details of an event."""
    details: dict[str, float | int | str | bool | None] = {"action": decision.action.value, "why": decision.reason}
    if decision.place is not None:
        details["place"] = str(decision.place)
    if decision.resources is not None:
        details["walltime_s"] = decision.resources.walltime_s
        details["memory_bytes_per_node"] = decision.resources.memory_bytes_per_node
    return {**decision.evidence, **details}


def attempt_elapsed_s(attempt: Attempt, now_s: float) -> float:
    """Return how long an attempt has run."""
    if attempt.started_at is None:
        return 0.0
    end_s = epoch_s(attempt.ended_at) if attempt.ended_at else now_s
    return max(0.0, end_s - epoch_s(attempt.started_at))


def attempt_node_s(attempt: Attempt, now_s: float) -> float:
    """Return the node-seconds of an attempt."""
    return attempt.resources.nodes * attempt_elapsed_s(attempt, now_s)
