"""Submit jobs to schedulers exactly once.

The key of an attempt is on disk before anything is sent. If an answer is lost, the key is looked up at the scheduler.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, AttemptPlan, EventKind, Job
from leadline.execution.clock import Clock, epoch_s, iso_utc
from leadline.execution.plane.advisor import Advisor
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, attempt_event, hash_key
from leadline.execution.plane.poll_interval import PollIntervals, PollSchedule
from leadline.execution.plane.rounds import Turn, map_in_threads
from leadline.execution.schedulers.port import (
    RequestRefused,
    Scheduler,
    SchedulerBusy,
    Submission,
    SubmissionUncertain,
    element_key,
)

AT_ONCE = 100
"""Submissions in one round. Between rounds the plane watches the running jobs."""
MAX_ARRAY_SIZE = 1000
"""Elements of one array. Slurm's default limit (MaxArraySize) is 1001."""
NOTED_AT_ONCE = 25
"""Ids of submissions that one write stores."""
BUSY_S = 60.0
"""Wait before submitting again to a scheduler that was full."""


@dataclass(slots=True)
class Submitter:
    """Stores attempts, submits them, and finds those whose answer was lost."""

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    rhythms: Mapping[str, PollSchedule]
    admit: Callable[[str], object]
    """Adds a system to ``schedulers`` if it is missing; raises ``LeadlineError`` if that fails."""
    advisor: Advisor
    clock: Clock
    intervals: PollIntervals
    has_checkpoint: Callable[[Job], bool] = lambda _: True
    """True if the job's checkpoint is at its next place. If not, the copy is started and the question asked again
    later."""
    missed: dict[str, float] = field(default_factory=dict)
    """Batch -> monotonic time since which its key is not found. Clock jumps do not count."""
    due: dict[tuple[str, str], float] = field(default_factory=dict)
    """(job, start time) -> the same time on the monotonic clock."""
    unsent: set[str] = field(default_factory=set)  # batches that were certainly not sent
    turn: Turn = field(default_factory=Turn)

    def start(self) -> int:
        """Store the attempts of one round of ready jobs, for ``send``, and return their number."""
        ready = self._ready()
        attempts = [attempt for job in ready for attempt in self._attempts(job)]
        if not attempts:
            return 0
        batches = batches_of(attempts, self.book.jobs)
        noted = list(chain.from_iterable(batches))
        self.book.write(
            # In order, because the elements of an array are sent in this order.
            jobs=[replace(self.book.jobs[key], plan=None) for key in dict.fromkeys(each.job for each in attempts)],
            attempts=noted,
            events=[attempt_event(EventKind.NOTED, attempt, _request_details(attempt)) for attempt in noted],
        )
        self.unsent.update(batch[0].batch for batch in batches)
        return len(attempts)

    def look_up(self, system: str) -> None:
        """Find the submissions at a system whose answer was lost.

        A batch that is still missing after the grace period is submitted again, or at once if that can do no harm.

        Raises:
            SchedulerUnreachable: the scheduler did not answer.
        """
        lost = _by_batch(attempt for _, attempt in self.book.live(system) if attempt.scheduler_id is None)
        # Unsent batches have no id either, but there is nothing to find.
        lost = {batch: attempts for batch, attempts in lost.items() if batch not in self.unsent}
        if not lost:
            return
        scheduler = self.schedulers[system]
        ids = scheduler.find(sorted(lost))
        self._note_answer(system)
        for batch, attempts in lost.items():
            if batch in ids:
                self._know([(attempts, ids[batch])], found_again=True)
                continue
            now_s = self.clock.monotonic_s()
            if scheduler.submits_once or now_s - self.missed.setdefault(batch, now_s) > self.intervals.grace:
                self.missed.pop(batch, None)
                self.unsent.add(batch)

    def send(self, system: str) -> list[Attempt]:
        """Submit the unsent batches of a system; return the attempts that were withdrawn before they were sent."""
        unknown = [attempt for _, attempt in self.book.live(system) if attempt.scheduler_id is None]
        waiting = [attempt for attempt in unknown if attempt.batch in self.unsent]
        dropped = [attempt for attempt in waiting if attempt.withdrawn or self.book.jobs[attempt.job].cancelled]
        batches = _by_batch(attempt for attempt in waiting if attempt not in dropped)
        self._submit_at(system, list(batches.values())[:AT_ONCE])
        return dropped

    def _ready(self) -> list[Job]:
        """Return the jobs that can be submitted now; close those whose dependency failed."""
        ready: list[Job] = []
        # A copy, because closing a job changes the index.
        for job in [self.book.jobs[key] for key in self.book.idle]:
            if job.cancelled or not self._is_due(job) or not self._may_follow(job) or not self.has_checkpoint(job):
                continue
            ready.append(job)
            # An array is never split between rounds, because its elements share one submission.
            if len(ready) >= AT_ONCE and not job.group:
                break
        return ready

    def _is_due(self, job: Job) -> bool:
        """True unless the job is delayed and its start time has not come, on the monotonic clock."""
        not_before = job.plan.not_before if job.plan else None
        if not not_before:
            return True
        if (job.key, not_before) not in self.due:
            wait_s = min(epoch_s(not_before) - self.clock.now_s(), self.intervals.delay)
            self.due[job.key, not_before] = self.clock.monotonic_s() + wait_s
        if self.clock.monotonic_s() < self.due[job.key, not_before]:
            return False
        del self.due[job.key, not_before]
        return True

    def _may_follow(self, job: Job) -> bool:
        """True if all dependencies ended as required; close the job if they never can."""
        for key in job.after:
            state = self.book.end_of(key)
            if state is not None and job.after_kind.allows(state):
                continue
            if state is not None or not self.book.knows(key):
                end = f"ended {state.value}" if state is not None else "is not in the journal"
                self.book.close(job, JobState.CANCELLED, f"job {key}, which it waits for, {end}")
            return False
        return True

    def _attempts(self, job: Job) -> list[Attempt]:
        """Return the attempts to make now: one, or one for each parallel copy."""
        try:
            plans = (job.plan,) if job.plan else self.advisor.plans(job)
            for plan in plans:
                self.admit(plan.place.system)
        except LeadlineError as error:
            self.book.close(job, JobState.FAILED, str(error))
            return []
        # Only the wrapper can hold a copy back, so unmeasured jobs get no copies.
        plans = plans if job.policy.measured else plans[:1]
        return new_attempts(job, plans, iso_utc(self.clock.now_s()))

    def _submit_at(self, system: str, batches: list[list[Attempt]]) -> None:
        """Submit batches to one system.

        The first round is small, and of one batch after a failure. If an answer is missing, the rest is sent later. Ids
        are stored some at a time; ids lost by a kill are found again by key.
        """
        scheduler, rhythm, at = self.schedulers[system], self.rhythms[system], 0
        while at < len(batches):
            first = 1 if rhythm.failures else scheduler.abreast
            part = batches[at : at + (NOTED_AT_ONCE if at else first)]
            at += len(part)
            submissions = [submission_of(batch, self.book.jobs) for batch in part]
            # From here on an answer may be lost, so these batches must be looked up.
            self.unsent.difference_update(batch[0].batch for batch in part)
            answers = self._answers(scheduler, submissions)
            ids = [(batch, self._handle_answer(batch, answer)) for batch, answer in zip(part, answers, strict=True)]
            self._know([(batch, scheduler_id) for batch, scheduler_id in ids if scheduler_id is not None])
            if rhythm.failures:
                return

    def _answers(self, scheduler: Scheduler, submissions: list[Submission]) -> list[str | LeadlineError]:
        submit = partial(_try_submit, scheduler)
        if scheduler.abreast == 1:
            return [submit(submission) for submission in submissions]
        # ssh and sbatch take most of the time, so several submissions overlap.
        with self.turn.away():
            return map_in_threads(submit, submissions, scheduler.abreast)

    def _handle_answer(self, attempts: list[Attempt], answer: str | LeadlineError) -> str | None:
        """Return the id of a batch; None if it was refused or the answer is unknown."""
        first = attempts[0]
        system, rhythm = first.place.system, self.rhythms[first.place.system]
        match answer:
            case str():
                self._note_answer(system)
                rhythm.hurry()
                return answer
            case SchedulerBusy():
                self._withdraw(attempts, str(answer), again_at=iso_utc(self.clock.now_s() + BUSY_S))
            case RequestRefused() | InvalidInput():
                self._refused(attempts, str(answer))
            case SchedulerUnreachable():
                # Nothing was sent, so the batch can be sent again without a lookup.
                if not isinstance(answer, SubmissionUncertain):
                    self.unsent.add(first.batch)
                self.book.note_failure(system, rhythm, str(answer))
            case _:
                raise answer
        return None

    def _note_answer(self, system: str) -> None:
        """Store the end of an outage, if there was one."""
        if self.rhythms[system].failures and self.rhythms[system].answered(changed=True):
            self.book.note_answer(system)

    def _know(self, batches: Iterable[tuple[list[Attempt], str]], *, found_again: bool = False) -> None:
        """Store the scheduler's ids of batches."""
        now, attempts_with_id, events = iso_utc(self.clock.now_s()), [], []
        for attempts, scheduler_id in batches:
            self.missed.pop(attempts[0].batch, None)
            for attempt in attempts:
                job = self.book.jobs[attempt.job]
                attempt_id = f"{scheduler_id}_{job.index or 0}" if job.group else scheduler_id
                attempts_with_id.append(replace(attempt, scheduler_id=attempt_id, submitted_at=now))
                details: EventDetails = {"id": attempt_id, "found_again": found_again}
                events.append(attempt_event(EventKind.SUBMITTED, attempt, details))
        if events:
            self.book.write(attempts=attempts_with_id, events=events)

    def _refused(self, attempts: list[Attempt], why: str) -> None:
        """Close refused jobs that have no other live copy."""
        self._withdraw(attempts, why)
        for attempt in attempts:
            job = self.book.jobs[attempt.job]
            if not job.live_attempts and not job.closed:
                self.book.close(job, JobState.FAILED, f"{attempt.place} refused it: {why}")

    def _withdraw(self, attempts: list[Attempt], why: str, *, again_at: str | None = None) -> None:
        """End attempts that were not accepted; with ``again_at``, plan the same ones for that time."""
        now, jobs, ended, events = iso_utc(self.clock.now_s()), [], [], []
        for attempt in attempts:
            plan = AttemptPlan(attempt.place, attempt.resources, again_at, why) if again_at else None
            jobs.append(replace(self.book.jobs[attempt.job], plan=plan))
            ended.append(replace(attempt, state=JobState.CANCELLED, withdrawn=True, ended_at=now, reason=why))
            events.append(attempt_event(EventKind.FAULT, attempt, {"place": str(attempt.place), "why": why}))
        self.book.write(jobs=jobs, attempts=ended, events=events)


def _try_submit(scheduler: Scheduler, submission: Submission) -> str | LeadlineError:
    """Return the scheduler's answer, or its error."""
    try:
        return scheduler.submit(submission)
    except LeadlineError as error:
        return error


def new_attempts(job: Job, plans: Sequence[AttemptPlan], noted_at: str = "") -> list[Attempt]:
    """Return the next attempts of a job, one for each plan; several wait for the plane's release."""
    attempts = []
    for number, plan in enumerate(plans, len(job.attempts) + 1):
        # A shorter start limit is only for the first attempt; a retry needs its whole limit.
        resources = plan.resources if number == 1 else replace(plan.resources, least_walltime_s=None)
        # The key follows from the job's, so that a dry run shows the key under which the job is submitted.
        key = hash_key(job.key, str(number))
        attempt = Attempt(key, job.key, number, plan.place, resources, noted_at=noted_at, reason=plan.reason)
        attempts.append(replace(attempt, walltime_s=resources.walltime_s, held=len(plans) > 1))
    return attempts


def submission_of(attempts: Sequence[Attempt], jobs: Mapping[str, Job]) -> Submission:
    """Return what a scheduler gets for a batch of attempts: one job, or elements of an array."""
    first = attempts[0]
    members = [jobs[attempt.job] for attempt in attempts]
    job = members[0]
    spec = replace(job.spec, resources=first.resources, system=first.place.system, partition=first.place.partition)
    return Submission(
        first.batch,
        spec,
        tuple(member.index or 0 for member in members) if job.group else (),
        tuple(member.spec for member in members) if job.policy.own_commands else (),
        most=job.policy.max_running,
        checkpoint_signal=job.policy.checkpoint_signal,
        checkpoint_s=job.policy.checkpoint_s,
        measured=job.policy.measured,
        held=first.held,
        restarts=_restarts(job, first),
        link=(job.group or job.key) if job.policy.links_output else "",
    )


def batches_of(attempts: Iterable[Attempt], jobs: Mapping[str, Job]) -> list[list[Attempt]]:
    """Group the elements of an array with equal request and place; every other attempt is submitted alone."""
    groups: dict[object, list[Attempt]] = {}
    for attempt in attempts:
        job = jobs[attempt.job]
        alike = (job.group, attempt.place, attempt.resources, attempt.held, _restarts(job, attempt))
        groups.setdefault(alike if job.group else attempt.key, []).append(attempt)
    batches = [
        group[at : at + MAX_ARRAY_SIZE] for group in groups.values() for at in range(0, len(group), MAX_ARRAY_SIZE)
    ]
    return [_keyed(batch, jobs) for batch in batches]


def _keyed(batch: list[Attempt], jobs: Mapping[str, Job]) -> list[Attempt]:
    """Give the attempts of one submission its key; array elements get element keys."""
    key = batch[0].key
    if not jobs[batch[0].job].group:
        return [replace(attempt, batch=key) for attempt in batch]
    return [replace(attempt, key=element_key(key, jobs[attempt.job].index or 0), batch=key) for attempt in batch]


def _by_batch(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    batches: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        batches.setdefault(attempt.batch, []).append(attempt)
    return batches


def _restarts(job: Job, attempt: Attempt) -> int:
    """Return how many earlier attempts of a job began."""
    return sum(earlier.began for earlier in job.attempts if earlier.number < attempt.number)


def _request_details(attempt: Attempt) -> EventDetails:
    requested = ("nodes", "gpus_per_node", "walltime_s", "memory_bytes_per_node")
    amounts = {name: getattr(attempt.resources, name) for name in requested}
    return {"place": str(attempt.place), **amounts, "why": attempt.reason}
