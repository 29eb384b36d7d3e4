"""Hand jobs to schedulers exactly once: the key is on the disk before anything is sent, and looked up if in doubt."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from leadline.core.errors import InvalidInput, LeadlineError, SchedulerUnreachable
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, AttemptPlan, DependencyKind, EventKind, Job
from leadline.execution.clock import Clock, epoch_s, iso_utc
from leadline.execution.plane.advisor import Advisor
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent
from leadline.execution.plane.poll_interval import PollIntervals, PollSchedule
from leadline.execution.schedulers.port import (
    RequestRefused,
    Scheduler,
    SchedulerBusy,
    Submission,
    SubmissionUncertain,
    element_key,
)

AT_ONCE = 100
"""Submissions of one round; between rounds the plane looks after what runs."""
MAX_ARRAY_SIZE = 1000
"""Elements of one array; Slurm's own limit (MaxArraySize) is 1001 where nobody changed it."""
NOTED_AT_ONCE = 25
"""Ids of submissions that are noted in one go."""
BUSY_S = 60.0
"""How long to wait before a scheduler that took nothing more is tried again."""


@dataclass(slots=True)
class Submitter:
    """Notes attempts, submits them, and finds those again whose answer was lost."""

    book: JobCache
    schedulers: Mapping[str, Scheduler]
    rhythms: Mapping[str, PollSchedule]
    admit: Callable[[str], object]
    """Makes sure that a system is among them, or raises ``LeadlineError``."""
    advisor: Advisor
    clock: Clock
    patience: PollIntervals
    has_checkpoint: Callable[[Job], bool] = lambda _: True
    """Whether what a job goes on from is where it goes to; it is brought there else, and asked for again."""
    missed: dict[str, float] = field(default_factory=dict)
    """Batch → since when (monotonic) it is looked up in vain; a clock that jumps makes no time pass."""
    due: dict[tuple[str, str], float] = field(default_factory=dict)
    """Job and moment that it is put off to → when that is by a clock that does not jump."""
    unsent: set[str] = field(default_factory=set)
    """Batches that are known not to have been sent."""
    dropped: list[Attempt] = field(default_factory=list)
    """What was taken back before it was sent, and is over with that."""

    def start(self) -> int:
        """Submit what is ready, as far as one round goes; return how many jobs were handed over."""
        ready = self._ready()
        attempts = [attempt for job in ready for attempt in self._attempts(job)]
        if not attempts:
            return self._again()
        batches = _batches(attempts, self.book.jobs)
        self.book.write(
            jobs=[replace(self.book.jobs[key], plan=None) for key in {one.job for one in attempts}],
            attempts=[one for batch in batches for one in batch],
            notes=[NewEvent(EventKind.NOTED, one.job, one.key, _asked(one)) for batch in batches for one in batch],
        )
        return self._submit_all(batches) + self._again()

    def look_up(self, system: str) -> None:
        """Find the submissions at a system whose answer was lost; what surely never arrived is submitted again.

        Raises:
            SchedulerUnreachable: it did not answer; nothing was concluded.
        """
        lost = _by_batch(one for _, one in self.book.live(system) if one.scheduler_id is None)
        lost = {batch: attempts for batch, attempts in lost.items() if batch not in self.unsent}
        if not lost:
            return
        found = self.schedulers[system].find(sorted(lost))
        for batch, attempts in lost.items():
            if batch in found:
                self._know([(attempts, found[batch])], found_again=True)
                continue
            now_s = self.clock.monotonic_s()
            if now_s - self.missed.setdefault(batch, now_s) > self.patience.grace:
                del self.missed[batch]
                self.unsent.add(batch)

    def _again(self) -> int:
        """Submit what never arrived, under the key that it has."""
        waiting = [
            one
            for system in self.schedulers
            if self.rhythms[system].failures == 0
            for _, one in self.book.live(system)
            if one.scheduler_id is None and one.batch in self.unsent
        ]
        dropped = [one for one in waiting if one.withdrawn or self.book.jobs[one.job].cancelled]
        self.dropped += dropped
        return self._submit_all(_by_batch(one for one in waiting if one not in dropped).values())

    def _ready(self) -> list[Job]:
        """Return jobs that may be submitted now; those that wait for what ended otherwise are closed."""
        ready: list[Job] = []
        for job in [self.book.jobs[key] for key in self.book.idle]:
            if job.cancelled:
                continue
            if job.plan and job.plan.not_before and not self._is_due(job.key, job.plan.not_before):
                continue
            if not self._may_follow(job) or not self.has_checkpoint(job):
                continue
            ready.append(job)
            if len(ready) >= AT_ONCE and not job.group:
                break
        return ready

    def _is_due(self, key: str, not_before: str) -> bool:
        """Whether the moment that a job is put off to has come, by a clock that does not jump."""
        if (key, not_before) not in self.due:
            wait_s = min(epoch_s(not_before) - self.clock.now_s(), self.patience.delay)
            self.due[key, not_before] = self.clock.monotonic_s() + wait_s
        if self.clock.monotonic_s() < self.due[key, not_before]:
            return False
        del self.due[key, not_before]
        return True

    def _may_follow(self, job: Job) -> bool:
        """Whether all that a job waits for has ended as it should; if it never can, the job is closed."""
        for key in job.after:
            state = self.book.end_of(key)
            if state is None:
                return False
            well = state is JobState.COMPLETED
            if (job.after_kind is DependencyKind.OK and not well) or (job.after_kind is DependencyKind.NOT_OK and well):
                self.book.close(job, JobState.CANCELLED, f"job {key}, which it waits for, ended {state.value}")
                return False
        return True

    def _attempts(self, job: Job) -> list[Attempt]:
        """Return the attempts to be made of a job now: one, or one for each copy that may wait at once."""
        try:
            plans = (job.plan,) if job.plan else self.advisor.plans(job)
            for plan in plans:
                self.admit(plan.place.system)
        except LeadlineError as error:
            self.book.close(job, JobState.FAILED, str(error))
            return []
        plans = plans if job.policy.measured else plans[:1]  # nothing could hold copies back
        number, held = len(job.attempts), len(plans) > 1
        noted_at = iso_utc(self.clock.now_s())
        return [replace(_attempt(job, plan, number + at, noted_at), held=held) for at, plan in enumerate(plans, 1)]

    def _submit_all(self, batches: Iterable[list[Attempt]]) -> int:
        """Submit batches, and note their ids some at a time: what a kill leaves unnoted is found by its key."""
        by_system: dict[str, list[list[Attempt]]] = {}
        for batch in batches:
            by_system.setdefault(batch[0].place.system, []).append(batch)
        return sum(self._submit_at(system, own) for system, own in by_system.items())

    def _submit_at(self, system: str, batches: list[list[Attempt]]) -> int:
        """Submit batches to one system, a few at first: where an answer fails to come, the rest is sent later."""
        scheduler, count, at = self.schedulers[system], 0, 0
        with ThreadPoolExecutor(scheduler.abreast) as pool:
            while at < len(batches) and not self.rhythms[system].failures:
                part = batches[at : at + (NOTED_AT_ONCE if at else scheduler.abreast)]
                at += len(part)
                hand = partial(_sent, scheduler)
                sent = (pool.map if scheduler.abreast > 1 else map)(hand, map(self._submission, part))
                known = [(batch, self._taken(batch, answer)) for batch, answer in zip(part, sent, strict=True)]
                taken = [(batch, found) for batch, found in known if found is not None]
                self._know(taken)
                count += sum(len(batch) for batch, _ in taken)
        self.unsent |= {batch[0].batch for batch in batches[at:]}
        return count

    def _taken(self, attempts: list[Attempt], answer: str | LeadlineError) -> str | None:
        """Return the id of a batch; ``None`` if it was not taken, or if that is not known."""
        first = attempts[0]
        rhythm = self.rhythms[first.place.system]
        self.unsent.discard(first.batch)
        match answer:
            case str():
                rhythm.hurry()
                return answer
            case SchedulerBusy():
                self._put_off(attempts, str(answer))
            case RequestRefused() | InvalidInput():
                self._refused(attempts, str(answer))
            case SchedulerUnreachable():
                if not isinstance(answer, SubmissionUncertain):
                    self.unsent.add(first.batch)
                if rhythm.failed(str(answer)):
                    self._fault(first, str(answer))
            case _:
                raise answer
        return None

    def _submission(self, attempts: list[Attempt]) -> Submission:
        first = attempts[0]
        job = self.book.jobs[first.job]
        spec = replace(job.spec, resources=first.resources, system=first.place.system, partition=first.place.partition)
        return Submission(
            first.batch,
            spec,
            tuple(_index(self.book.jobs[one.job]) for one in attempts) if job.group else (),
            checkpoint_signal=job.policy.checkpoint_signal,
            checkpoint_s=job.policy.checkpoint_s,
            measured=job.policy.measured,
            held=first.held,
        )

    def _know(self, batches: Iterable[tuple[list[Attempt], str]], *, found_again: bool = False) -> None:
        """Note the scheduler's ids of batches."""
        at, known = iso_utc(self.clock.now_s()), []
        for attempts, found in batches:
            self.missed.pop(attempts[0].batch, None)
            for one in attempts:
                job = self.book.jobs[one.job]
                own = f"{found}_{_index(job)}" if job.group else found
                known.append(replace(one, scheduler_id=own, submitted_at=at))
        if known:
            said = {"found_again": found_again}
            notes = [NewEvent(EventKind.SUBMITTED, one.job, one.key, {"id": one.scheduler_id, **said}) for one in known]
            self.book.write(attempts=known, notes=notes)

    def _put_off(self, attempts: list[Attempt], why: str) -> None:
        """Let jobs wait here, as the scheduler takes no more of them for now."""
        later = iso_utc(self.clock.now_s() + BUSY_S)
        self._withdraw(attempts, why, lambda one: AttemptPlan(one.place, one.resources, later, why))

    def _refused(self, attempts: list[Attempt], why: str) -> None:
        """Close jobs that the scheduler refused and that wait nowhere else."""
        self._withdraw(attempts, why, lambda _: None)
        for one in attempts:
            job = self.book.jobs[one.job]
            if not job.live_attempts and not job.closed:
                self.book.close(job, JobState.FAILED, f"{one.place} refused it: {why}")

    def _withdraw(self, attempts: list[Attempt], why: str, plan: Callable[[Attempt], AttemptPlan | None]) -> None:
        now = iso_utc(self.clock.now_s())
        self.book.write(
            jobs=[replace(self.book.jobs[one.job], plan=plan(one)) for one in attempts],
            attempts=[
                replace(one, state=JobState.CANCELLED, withdrawn=True, ended_at=now, reason=why) for one in attempts
            ],
            notes=[
                NewEvent(EventKind.FAULT, one.job, one.key, {"place": str(one.place), "why": why}) for one in attempts
            ],
        )

    def _fault(self, one: Attempt, why: str) -> None:
        self.book.write(notes=[NewEvent(EventKind.FAULT, one.job, one.key, {"place": str(one.place), "why": why})])


def _sent(scheduler: Scheduler, submission: Submission) -> str | LeadlineError:
    """Return a scheduler's answer, an error of its own too."""
    try:
        return scheduler.submit(submission)
    except LeadlineError as error:
        return error


def _attempt(job: Job, plan: AttemptPlan, number: int, noted_at: str) -> Attempt:
    resources = plan.resources if number == 1 else replace(plan.resources, least_walltime_s=None)
    return Attempt(
        uuid.uuid4().hex[:12], job.key, number, plan.place, resources, noted_at=noted_at,
        walltime_s=resources.walltime_s, reason=plan.reason,
    )  # fmt: skip


def _batches(attempts: Iterable[Attempt], jobs: Mapping[str, Job]) -> list[list[Attempt]]:
    """Put the elements of an array that ask for the same at the same place into one batch; others are alone."""
    found: dict[object, list[Attempt]] = {}
    for one in attempts:
        group = jobs[one.job].group
        found.setdefault((group, one.place, one.resources, one.held) if group else one.key, []).append(one)
    batches = [all_[at : at + MAX_ARRAY_SIZE] for all_ in found.values() for at in range(0, len(all_), MAX_ARRAY_SIZE)]
    return [_keyed(batch, jobs) for batch in batches]


def _keyed(batch: list[Attempt], jobs: Mapping[str, Job]) -> list[Attempt]:
    """Give the attempts of one submission its key, and those of an array's elements theirs."""
    key = batch[0].key
    own = [element_key(key, _index(jobs[one.job])) if jobs[one.job].group else key for one in batch]
    return [replace(one, key=mine, batch=key) for one, mine in zip(batch, own, strict=True)]


def _by_batch(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    for one in attempts:
        found.setdefault(one.batch, []).append(one)
    return found


def _index(job: Job) -> int:
    return job.index or 0


def _asked(one: Attempt) -> EventDetails:
    asked = one.resources
    return {
        "place": str(one.place),
        "nodes": asked.nodes,
        "gpus_per_node": asked.gpus_per_node,
        "walltime_s": asked.walltime_s,
        "memory_bytes_per_node": asked.memory_bytes_per_node,
        "why": one.reason,
    }
