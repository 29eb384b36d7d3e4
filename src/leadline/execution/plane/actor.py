"""Decide about attempts, write the decision down with its evidence, and carry it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from leadline.core.estimate import Interval
from leadline.core.jobs import JobState
from leadline.core.plane import Action, Attempt, AttemptPlan, Decision, EventKind, Job, Situation
from leadline.core.queues import wait_from_plan
from leadline.execution.clock import Clock, epoch_s
from leadline.execution.plane.advisor import Advisor, Decide, Expectation
from leadline.execution.plane.diagnose import Diagnosis
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.port import RequestRefused, Scheduler
from leadline.execution.wrapper.outcome import JobOutcome


@dataclass(slots=True)
class Actor:
    """Makes a situation of what is known, asks for the decision, and acts on it."""

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    advisor: Advisor
    clock: Clock
    patience: PollIntervals
    decide: Decide
    kept: dict[str, tuple[JobState, float]] = field(default_factory=dict)
    """Attempt → its state and the moment (monotonic) when keeping it was last written down."""
    starts: Mapping[str, float] = field(default_factory=dict)
    """Attempt → when its scheduler itself expects to start it (epoch), of those that wait."""
    fixed: set[str] = field(default_factory=set)
    """Attempts whose limit the scheduler would not shorten."""
    let: set[str] = field(default_factory=set)
    """Attempts that were given the word to begin by this process."""

    def judge(self, attempt: Attempt, outcome: JobOutcome | None) -> None:
        """Decide about an attempt that waits or runs, and act.

        Raises:
            SchedulerUnreachable: the decision could not be carried out; it is made anew later.
        """
        job = self.book.jobs.get(attempt.job)
        if job is None or job.cancelled or _now(self.book, job, attempt)[1].withdrawn:
            return
        attempt = self._choose(job, attempt)
        situation = self._situation(job, attempt, outcome)
        decision = self.decide(situation)
        told_alike = decision.action in (Action.KEEP, Action.CHECKPOINT) or self._is_fixed(attempt, decision)
        if told_alike and not self._worth_telling(attempt):
            return
        self.book.write(notes=[NewEvent(EventKind.DECISION, job.key, attempt.key, decision_details(decision))])
        self._act(job, attempt, decision)

    def judge_waiting(self, system: str) -> None:
        """Decide about attempts of which nothing new is known, now and then."""
        for job, attempt in list(self.book.live(system)):
            if attempt.scheduler_id is None:
                continue
            self._choose(job, attempt)
            state, since_s = self.kept.get(attempt.key, (None, 0.0))
            if state is None:
                self.kept[attempt.key] = (attempt.state, self.clock.monotonic_s())
            elif self.clock.monotonic_s() - since_s > self.patience.decide:
                self.kept[attempt.key] = (attempt.state, self.clock.monotonic_s())
                self.judge(attempt, None)

    def decide_end(self, job: Job, ended: Attempt, outcome: JobOutcome | None, found: Diagnosis) -> Decision:
        """Return what becomes of a job whose last attempt ended."""
        self.kept.pop(ended.key, None)
        self.fixed.discard(ended.key)
        self.let.discard(ended.key)
        situation = self._situation(job, ended, outcome)
        return self.decide(replace(situation, evidence=found.evidence, cause=found.cause))

    def _is_fixed(self, attempt: Attempt, decision: Decision) -> bool:
        """Whether shortening this attempt's limit was refused before."""
        return decision.action is Action.SHRINK and attempt.key in self.fixed

    def _worth_telling(self, attempt: Attempt) -> bool:
        """Whether that an attempt is left alone is written down: once for each state, then now and then."""
        state, since_s = self.kept.get(attempt.key, (None, 0.0))
        now_s = self.clock.monotonic_s()
        if state is attempt.state and now_s - since_s < self.patience.decide:
            return False
        self.kept[attempt.key] = (attempt.state, now_s)
        return True

    def _situation(self, job: Job, attempt: Attempt, outcome: JobOutcome | None) -> Situation:
        now_s = self.clock.now_s()
        expected = self.advisor.expect(job, attempt, outcome, now_s=now_s)
        memory = outcome.measured.get("host_memory_bytes") if outcome else None
        return Situation(
            job,
            attempt,
            now_s,
            attempt_elapsed_s(attempt, now_s),
            expected.total_s,
            expected.memory_bytes,
            memory.value if memory else None,
            expected.remaining_wait_s or self._scheduled_wait_s(attempt, now_s),
            expected.allowed_s,
            expected.node_memory_bytes,
            sum(attempt_node_s(one, now_s) for one in job.attempts),
            _spent(job, expected, now_s),
            expected.cost_per_s,
            attempt.refused_extensions,
            checkpointed=has_checkpoint(job, outcome),
            alternatives=expected.alternatives,
            gpu_memory_bytes=expected.gpu_memory_bytes,
        )

    def _scheduled_wait_s(self, attempt: Attempt, now_s: float) -> Interval | None:
        """Return how long an attempt still waits by its scheduler's own plan, where that is all that is known."""
        start_s = self.starts.get(attempt.key) if attempt.state is JobState.PENDING else None
        return None if start_s is None else wait_from_plan(max(0.0, start_s - now_s))

    def _act(self, job: Job, attempt: Attempt, decision: Decision) -> None:
        scheduler = self.schedulers[attempt.place.system]
        asked = decision.resources
        if decision.action in (Action.SHRINK, Action.EXTEND) and asked and asked.walltime_s and attempt.scheduler_id:
            try:
                scheduler.change_walltime(attempt.scheduler_id, asked.walltime_s)
            except RequestRefused as error:
                longer = decision.action is Action.EXTEND
                if not longer:
                    self.fixed.add(attempt.key)
                counted = replace(attempt, refused_extensions=attempt.refused_extensions + longer)
                self._tell(EventKind.FAULT, counted, {"why": str(error), "asked": decision.action.value})
                return
            changed = replace(attempt, walltime_s=asked.walltime_s)
            self._tell(EventKind.STATE, changed, {"state": attempt.state.value, "walltime_s": asked.walltime_s})
        elif decision.action in (Action.MOVE, Action.RESUBMIT):
            plan = AttemptPlan(decision.place or attempt.place, asked or attempt.resources, reason=decision.reason)
            self._withdraw(attempt, replace(job, plan=plan, reason=decision.reason))
        elif decision.action is Action.WITHDRAW or decision.action is Action.GIVE_UP:
            self._withdraw(attempt, replace(job, reason=decision.reason))

    def give_words(self, system: str) -> None:
        """Let those copies at a system begin of which it is written down that they are to.

        Raises:
            SchedulerUnreachable: it is not known whether all have the word; it is given again later.
        """
        chosen = [
            one.key for _, one in self.book.live(system) if one.begins and not one.withdrawn and one.key not in self.let
        ]
        if chosen:
            self.schedulers[system].let_begin(chosen)
            self.let.update(chosen)

    def _choose(self, job: Job, runs: Attempt) -> Attempt:
        """Make the first copy of a job that runs the one to begin, and take the others back; return it as it is then.

        One write says all of that before anything is told to a scheduler: whatever dies, no other copy is ever chosen.
        """
        job, runs = _now(self.book, job, runs)
        if runs.state is not JobState.RUNNING or runs.withdrawn or job.cancelled:
            return runs
        others = [one for one in job.live_attempts if one.key != runs.key and not one.withdrawn]
        chosen = replace(runs, begins=runs.held)
        if chosen == runs and not others:
            return runs
        why = f"a copy of it runs at {runs.place}"
        notes = [
            NewEvent(EventKind.DECISION, job.key, one.key, {"action": Action.WITHDRAW.value, "why": why})
            for one in others
        ]
        if chosen != runs:
            said = {"action": Action.BEGIN.value, "why": "it is the first copy that runs"}
            notes.insert(0, NewEvent(EventKind.DECISION, job.key, runs.key, said))
        self.book.write(attempts=[chosen, *(replace(one, withdrawn=True) for one in others)], notes=notes)
        return chosen

    def _withdraw(self, attempt: Attempt, job: Job) -> None:
        """Take an attempt back: it is written down, so that its end is known for what it is, and then carried out."""
        self.book.write(jobs=[job], attempts=[replace(attempt, withdrawn=True)])

    def _tell(self, kind: EventKind, attempt: Attempt, said: EventDetails) -> None:
        self.book.write(attempts=[attempt], notes=[NewEvent(kind, attempt.job, attempt.key, said)])


def _now(book: JobCache, job: Job, attempt: Attempt) -> tuple[Job, Attempt]:
    """Return a job and its attempt as the book has them by now."""
    job = book.jobs.get(job.key, job)
    return job, next((one for one in job.attempts if one.key == attempt.key), attempt)


def has_checkpoint(job: Job, outcome: JobOutcome | None) -> bool:
    """Whether a job has a checkpoint: its signal was heard, or without one it has shown progress of its own."""
    if not job.policy.resumes or outcome is None:
        return False
    if job.policy.checkpoint_signal is not None:
        return outcome.warned
    return outcome.progress is not None and bool(outcome.progress.epochs or outcome.progress.steps)


def decision_details(decision: Decision) -> EventDetails:
    """Return a decision as an event tells it."""
    said: dict[str, float | int | str | bool | None] = {"action": decision.action.value, "why": decision.reason}
    if decision.place is not None:
        said["place"] = str(decision.place)
    if decision.resources is not None:
        said["walltime_s"] = decision.resources.walltime_s
        said["memory_bytes_per_node"] = decision.resources.memory_bytes_per_node
    return {**decision.evidence, **said}


def attempt_elapsed_s(attempt: Attempt, now_s: float) -> float:
    """Return how long an attempt has run, or ran."""
    if attempt.started_at is None:
        return 0.0
    end_s = epoch_s(attempt.ended_at) if attempt.ended_at else now_s
    return max(0.0, end_s - epoch_s(attempt.started_at))


def attempt_node_s(attempt: Attempt, now_s: float) -> float:
    """Return the node-seconds an attempt has taken."""
    return attempt.resources.nodes * attempt_elapsed_s(attempt, now_s)


def _spent(job: Job, expected: Expectation, now_s: float) -> float | None:
    """Return what all attempts cost at the price of this one's request; ``None`` where no price is known."""
    if expected.cost_per_s is None:
        return None
    return expected.cost_per_s * sum(attempt_elapsed_s(one, now_s) for one in job.attempts)
