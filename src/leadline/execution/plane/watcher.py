"""Watch the plane's jobs at one scheduler: poll its queue and read the reports of the wrappers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from leadline.core.errors import SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.plane import NO_CONSENT, Action, Attempt, EventKind, Job
from leadline.core.units import MINUTE_S
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.job_cache import JobCache
from leadline.execution.plane.journal import EventDetails, NewEvent, attempt_event
from leadline.execution.plane.poll_interval import PollIntervals, PollSchedule
from leadline.execution.plane.recovery import FOUND_AGAIN, living_jobs
from leadline.execution.schedulers.port import ForgetfulScheduler, Scheduler, SchedulerStatus
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome

FORGOTTEN = SchedulerStatus(JobState.NODE_FAIL, "its scheduler forgot it")
"""Status of a job that a killed controller had accepted and does not know after its restart."""
WITHDRAWN = SchedulerStatus(JobState.CANCELLED, "withdrawn before it started")
ALIVE_S = 90.0
"""A wrapper that reported so recently still runs. It reports every 30 s."""
MARGIN_S = 5.0
"""Reports are read from so long before the last reading, because clocks and file systems lag."""


class ObservedEnd(Frozen):
    """An ended attempt, with the status, outcome and end of the log that were found; None without an output file."""

    attempt: Attempt
    status: SchedulerStatus | None
    outcome: JobOutcome | None
    log: str | None = ""


@dataclass(slots=True)
class Watcher:
    """Polls one scheduler when it is due, and stores changes."""

    system: str
    scheduler: Scheduler
    book: JobCache
    clock: Clock
    intervals: PollIntervals
    rhythm: PollSchedule
    reports: dict[str, JobOutcome] = field(default_factory=dict)  # live attempt -> its last report
    read_s: float = 0.0
    read_due_s: float = 0.0
    missing_s: dict[str, float] = field(default_factory=dict)
    """Attempt -> monotonic time since which nothing reports it."""
    starts: dict[str, float] = field(default_factory=dict)
    """Attempt -> expected start (epoch). It is not stored, because it varies with every poll."""
    blind: bool = False  # True if the scheduler shows no job although one still reports

    def poll(self) -> list[ObservedEnd]:
        """Ask for the states of all live attempts and return those that ended.

        Raises:
            SchedulerUnreachable: there was no answer, and nothing was concluded.
        """
        open_attempts = self.book.live(self.system)
        live = [(attempt.scheduler_id, job, attempt) for job, attempt in open_attempts if attempt.scheduler_id]
        if not live:
            self.rhythm.rest()
            return []
        began_s, worked_s = self.clock.monotonic_s(), self.clock.cpu_s()
        statuses = self.scheduler.query([scheduler_id for scheduler_id, *_ in live])
        took_s = self.clock.monotonic_s() - began_s
        # A job of this machine that ended meanwhile was a child of this process, and its CPU time is not the poll's.
        cpu_s = min(self.clock.cpu_s() - worked_s, took_s)
        changed, gone, kept = [], [], {}
        for scheduler_id, job, attempt in live:
            status = _matching_status(attempt, statuses.get(scheduler_id))
            if status is None or status.state.final:
                gone.append((attempt, status))
                continue
            self.missing_s.pop(attempt.key, None)
            self._note_start(attempt, status)
            updated = _updated(attempt, status)
            begins = attempt.state is JobState.PENDING and updated.state is JobState.RUNNING
            if begins and attempt.withdrawn and not may_end(job, attempt):
                updated = replace(updated, withdrawn=False)
                kept[attempt.key] = replace(job, plan=None, reason="")
            if updated != attempt:
                changed.append((attempt, updated))
        poll: EventDetails = {"system": self.system, "live": len(live), "gone": len(gone), "changed": len(changed),
                "took_s": round(took_s, 3)}  # fmt: skip
        # Ends have events of their own, and every write waits for the disk.
        if changed or not gone:
            changes = [event for before, updated in changed for event in _changes(before, updated)]
            events = [NewEvent(EventKind.POLL, details=poll), *changes]
            attempts = [updated for _, updated in changed]
            self.book.write(jobs=kept.values(), attempts=attempts, events=events, kept=kept)
        is_recent = any(self._missing_s(attempt) <= self.intervals.settle for attempt, _ in gone)
        ends = self._ends(gone) if gone else []
        # The end of an outage is an event of its own, for the display.
        if self.rhythm.answered(changed=bool(changed or ends) or is_recent, took_s=took_s, cpu_s=cpu_s):
            self.book.note_answer(self.system)
        return ends

    def read_reports(self) -> list[tuple[Attempt, JobOutcome]]:
        """Return the running attempts with new reports."""
        if self.clock.monotonic_s() < self.read_due_s:
            return []
        running = {report.key: report for _, report in self.book.live(self.system) if report.state is JobState.RUNNING}
        self.read_due_s = self.clock.monotonic_s() + self.intervals.reports
        if not running:
            return []
        # The report times are those of other machines' clocks.
        since_s, self.read_s = self.read_s - MARGIN_S, self.clock.now_s()
        reports = self.scheduler.reports(list(running), since_s=max(since_s, 0.0))
        news = [(running[key], report) for key, report in reports.items() if self.reports.get(key) != report]
        self.reports.update(reports)
        events = [attempt_event(EventKind.PROGRESS, attempt, progress_details(report)) for attempt, report in news]
        if events:
            self.book.write(events=events)
        return news

    def _ends(self, gone: list[tuple[Attempt, SchedulerStatus | None]]) -> list[ObservedEnd]:
        """Return the attempts that surely ended, of those that left the queue.

        A completed attempt is settled by its own report, others by the accounting.
        """
        # Reports are read before the accounting, which is slow and often not needed.
        reports = self.scheduler.reports([attempt.key for attempt, _ in gone])
        unclear = [attempt for attempt, status in gone if not _is_clear(reports.get(attempt.key), status)]
        accounted = self._accounted(unclear) if unclear else {}
        forgotten = self._forgotten([attempt for attempt, _ in gone if not _has_final_report(reports.get(attempt.key))])
        ends = []
        for attempt, queue_status in gone:
            outcome = reports.get(attempt.key)
            status = _matching_status(attempt, accounted.get(attempt.scheduler_id or "")) or queue_status
            if _is_second_start(outcome, status) and _has_final_report(outcome):
                status = None
            missing_s = self._missing_s(attempt)
            settles = missing_s > self.intervals.settle
            if _has_ended(outcome, status) or (_has_final_report(outcome) and settles):
                ends.append(ObservedEnd(attempt, status, outcome))
            elif settles and self._withdrawn_unstarted(attempt):
                ends.append(ObservedEnd(attempt, WITHDRAWN, outcome))
            elif attempt.key in forgotten:
                ends.append(ObservedEnd(attempt, FORGOTTEN, outcome))
            # Nothing reported it for an hour: give it up, or the job would wait for ever.
            elif missing_s > self.intervals.lost:
                ends.append(ObservedEnd(attempt, status, outcome, "no scheduler or wrapper reports it"))
        ends = self._follow_second_submissions(ends)
        for end in ends:
            for known in (self.missing_s, self.reports, self.starts):
                known.pop(end.attempt.key, None)
        return self._with_logs(ends)

    def _follow_second_submissions(self, ends: list[ObservedEnd]) -> list[ObservedEnd]:
        """Follow attempts that are in the queue under another id, and return the ends of the others.

        A submission whose answer was lost may be repeated although it arrived. Its command then runs once, under the id
        that starts first, and the other one ends without effect.
        """
        doubtful = {end.attempt.key: end for end in ends if not _ran_itself(end)}
        if not doubtful:
            return ends
        alive = set(self.scheduler.reports(list(doubtful), since_s=max(self.clock.now_s() - ALIVE_S, 0.0)))
        second = {key for key, end in doubtful.items() if _is_second_start(end.outcome, end.status)}
        followed: dict[str, Attempt] = {}
        try:
            for job in living_jobs(self.scheduler):
                end = doubtful.get(job.key)
                # A waiting job cannot start a command that has begun.
                if end is not None and (job.state is JobState.RUNNING or job.key not in second):
                    followed[job.key] = replace(end.attempt, scheduler_id=job.scheduler_id)
        except SchedulerUnreachable:
            alive |= second  # they are asked for again, and the others surely ended
        for attempt in followed.values():
            event = attempt_event(EventKind.SUBMITTED, attempt, {"id": attempt.scheduler_id, FOUND_AGAIN: True})
            self.book.write(attempts=[attempt], events=[event])
        return [end for end in ends if end.attempt.key not in alive | followed.keys()]

    def _accounted(self, unclear: list[Attempt]) -> Mapping[str, SchedulerStatus]:
        """Return what the accounting knows, and what the controller does of ends that the accounting lacks for long."""
        ids = {attempt.scheduler_id: attempt for attempt in unclear if attempt.scheduler_id}
        accounted = self.scheduler.account(list(ids))
        late_ids = [
            scheduler_id
            for scheduler_id, attempt in ids.items()
            if not _has_ended(None, accounted.get(scheduler_id)) and self._missing_s(attempt) > self.intervals.settle
        ]
        if late_ids and isinstance(self.scheduler, ForgetfulScheduler):
            return {**accounted, **self.scheduler.remembered(late_ids)}
        return accounted

    def _with_logs(self, ends: list[ObservedEnd]) -> list[ObservedEnd]:
        """Add the ends of the logs of attempts that did not complete."""
        # Logs are slow to fetch and only explain failures.
        keys = [end.attempt.key for end in ends if not _is_clear(end.outcome, end.status)]
        tails = self.scheduler.log_tails(keys) if keys else {}
        return [replace(end, log=tails.get(end.attempt.key, end.log or None)) for end in ends]

    def _withdrawn_unstarted(self, attempt: Attempt) -> bool:
        """True if it was cancelled before its start. Slurm reports nothing about such an array element."""
        cancelled = attempt.withdrawn or self.book.jobs[attempt.job].cancelled
        return cancelled and attempt.started_at is None

    def _forgotten(self, gone: list[Attempt]) -> Collection[str]:
        """Return the missing attempts that their scheduler forgot before they started, or as they did."""
        late = [attempt.key for attempt in gone if self._missing_s(attempt) > self.intervals.killed]
        missing = {attempt.key: attempt for attempt in gone if self._missing_s(attempt) > self.intervals.grace}
        asked = [key for key, attempt in missing.items() if attempt.started_at is None or key in late]
        if not asked or not isinstance(self.scheduler, ForgetfulScheduler) or self._sees_nothing(gone):
            return ()
        alive = self.scheduler.reports(late, since_s=max(self.clock.now_s() - ALIVE_S, 0.0)) if late else ()
        ids = {key: missing[key].scheduler_id or "" for key in asked if key not in alive}
        return self.scheduler.forgotten({key: missing[key].batch for key in ids}, ids, late)

    def _sees_nothing(self, gone: list[Attempt]) -> bool:
        """True if the queue shows no job at all although the wrapper of one still reports.

        Then the missing jobs are hidden rather than forgotten, for example from this user.
        """
        missing = {attempt.key for attempt in gone}
        live = [attempt for _, attempt in self.book.live(self.system) if attempt.scheduler_id]
        started = {attempt.key: attempt.scheduler_id for attempt in gone if attempt.began}
        reports: Mapping[str, JobOutcome] = {}
        if started and all(attempt.key in missing for attempt in live):
            reports = self.scheduler.reports(list(started), since_s=max(self.clock.now_s() - ALIVE_S, 0.0))
        running = [started[key] for key, report in reports.items() if report.state is JobState.RUNNING]
        was_blind, self.blind = self.blind, bool(running)
        if self.blind and not was_blind:
            why = f"it shows none of {len(live)} jobs, although job {running[0]} still reports: check PrivateData"
            self.book.write(events=[NewEvent(EventKind.FAULT, details={"system": self.system, "why": why})])
        return self.blind

    def _note_start(self, attempt: Attempt, status: SchedulerStatus) -> None:
        """Store the start time that the scheduler expects."""
        if status.state is JobState.PENDING and status.expected_start_s is not None:
            self.starts[attempt.key] = status.expected_start_s
        else:
            self.starts.pop(attempt.key, None)

    def _missing_s(self, attempt: Attempt) -> float:
        """Return for how long no queue has reported an attempt."""
        now_s = self.clock.monotonic_s()
        return now_s - self.missing_s.setdefault(attempt.key, now_s)


def may_end(job: Job, attempt: Attempt) -> bool:
    """True if a withdrawn attempt may be ended after it began: with consent, or if another copy runs instead."""
    return job.cancelled or job.policy.may_restart or attempt.held or len(job.live_attempts) > 1


def progress_details(outcome: JobOutcome) -> EventDetails:
    """Return the progress of a report as event details: epochs, steps, memory."""
    progress = outcome.progress
    details: dict[str, float | int | str | bool | None] = {
        name: measurement.value for name, measurement in outcome.measured.items() if name in _STORED
    }
    if progress is not None:
        unit = progress.unit
        details |= {"epochs": progress.epochs, "steps": progress.steps, "total": progress.total,
                 "unit_s": unit.median_s if unit else None}  # fmt: skip
    return {name: value for name, value in details.items() if value is not None}


_STORED = ("elapsed_s", "host_memory_bytes", "gpu_memory_bytes", "cpu_s", "gpu_utilisation", "cpu_utilisation")


def _is_clear(outcome: JobOutcome | None, status: SchedulerStatus | None) -> bool:
    """True if the report alone settles an attempt: it completed, was measured, and nothing contradicts it."""
    return _has_completed(outcome) and (status is None or status.state is JobState.COMPLETED)


def _has_completed(outcome: JobOutcome | None) -> bool:
    return outcome is not None and outcome.state is JobState.COMPLETED and bool(outcome.measured)


def _matching_status(attempt: Attempt, status: SchedulerStatus | None) -> SchedulerStatus | None:
    """Return the status if it belongs to this attempt; ids can be reused after a controller crash."""
    return status if status is not None and status.bears(attempt.batch or attempt.key) else None


def _is_second_start(outcome: JobOutcome | None, status: SchedulerStatus | None) -> bool:
    """True if a job ended without effect, because a job of the same key had started the command."""
    own_code = outcome is not None and outcome.exit_code == EXIT_NEVER_BEGAN
    return status is not None and status.exit_code == EXIT_NEVER_BEGAN and not own_code


def _ran_itself(end: ObservedEnd) -> bool:
    """True if the command has ended, or surely ran under the attempt's own id."""
    status = end.status or SchedulerStatus(JobState.UNKNOWN)
    began = end.attempt.started_at is not None or bool(status.elapsed_s)
    is_over = status.state.final and status.exit_code != EXIT_NEVER_BEGAN
    return _has_final_report(end.outcome) or (began and is_over)


def _has_ended(outcome: JobOutcome | None, status: SchedulerStatus | None) -> bool:
    """True if it is known how an attempt ended; without a measured completion, the scheduler knows more."""
    return (status is not None and status.state.final) or _has_completed(outcome)


def _has_final_report(outcome: JobOutcome | None) -> bool:
    """True if the wrapper reported the end. The scheduler may know the reason better."""
    return outcome is not None and outcome.state.final


def _updated(attempt: Attempt, status: SchedulerStatus) -> Attempt:
    """Return the attempt with the scheduler's status."""
    started_at = attempt.started_at if status.started_s is None else iso_utc(status.started_s)
    node, walltime_s = status.node or attempt.node, status.walltime_s or attempt.walltime_s
    return replace(
        attempt, state=status.state, reason=status.reason, node=node, started_at=started_at, walltime_s=walltime_s
    )


def _changes(before: Attempt, attempt: Attempt) -> Iterator[NewEvent]:
    """Yield events about another state, and about a limit that someone changed."""
    state, limit_s, before_s = attempt.state.value, attempt.walltime_s, before.walltime_s
    if before.state is not attempt.state:
        details: EventDetails = {"state": state, "reason": attempt.reason, "node": attempt.node}
        yield attempt_event(EventKind.STATE, attempt, details)
    if before.withdrawn and not attempt.withdrawn:
        why = f"it began before it could be withdrawn: {NO_CONSENT}"
        yield NewEvent(EventKind.DECISION, attempt.job, attempt.key, {"action": Action.KEEP.value, "why": why})
    # Schedulers round the requested limit up to whole minutes.
    if before_s is not None and limit_s is not None and not before_s <= limit_s < before_s + MINUTE_S:
        details = {"state": state, "walltime_s": limit_s, "walltime_before_s": before_s}
        yield attempt_event(EventKind.STATE, attempt, details)
