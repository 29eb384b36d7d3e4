"""The journal of a campaign: its runs, their consumption, and the causes of failures."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from signal import Signals
from statistics import median
from typing import ClassVar

from msgspec import field

from leadline.campaigns.budgets import compute_cost
from leadline.core.campaigns import Budget, BudgetUnit, Campaign, PlannedRun
from leadline.core.documents import from_json, to_json
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import Attempt, EventKind, Job
from leadline.core.runs import Run
from leadline.execution.launch import measured_run
from leadline.execution.plane.journal import TABLES, NewEvent, PlaneJournal
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, last_log_line, log_name
from leadline.execution.wrapper.outcome import JobOutcome

LOCAL_SYSTEM = "local"  # this machine as a system of the plane
# States of a run that was ended from outside; a resumed campaign repeats it.
RETRIED_STATES = (JobState.CANCELLED, JobState.PREEMPTED, JobState.NODE_FAIL, JobState.UNKNOWN)
MIN_PACED_RUNS = 3  # fewest completed runs from which the error of the forecasts is estimated

_MORE = Path(__file__).with_name("journal.sql")


class CampaignRun(Frozen, dict=True):
    """A planned run and the jobs that executed it."""

    planned: PlannedRun
    spec: JobSpec  # its job at the campaign's place
    jobs: tuple[Job, ...] = ()  # one job of the journal for each time it was started, oldest first
    outcomes: Mapping[str, JobOutcome] = field(default_factory=dict)  # by attempt
    discarded: int = 0  # number of first jobs whose result does not count, because the run is repeated
    stored: bool = False  # its result is in the history

    @property
    def key(self) -> str:
        """The id of the run in the history."""
        return self.planned.id

    @property
    def job(self) -> Job | None:
        """The job of the last start; None before it."""
        return self.jobs[-1] if len(self.jobs) > self.discarded else None

    @property
    def open(self) -> bool:
        """True if the plane still works on it; the outcome is stored before its job is ``recorded``."""
        return self.job is not None and not self.job.recorded

    @cached_property
    def outcome(self) -> JobOutcome | None:
        """The result; None unless the run has ended by itself."""
        job = self.job
        if job is None or self.open or (job.cancelled and job.state is JobState.CANCELLED):
            return None
        return self.outcomes.get(last_attempt(job))

    @cached_property
    def state(self) -> JobState:
        """PENDING, RUNNING from the submission on, or the state of the outcome."""
        if self.outcome is not None:
            return self.outcome.state
        return JobState.RUNNING if self.open else JobState.PENDING

    @property
    def attempt(self) -> int:
        """Number of submissions."""
        return sum(len(job.attempts) for job in self.jobs)

    @cached_property
    def elapsed_s(self) -> float:
        """Measured seconds of all attempts."""
        measured = (self.outcomes.get(attempt.key) for job in self.jobs for attempt in job.attempts)
        return sum(each.measured["elapsed_s"].value for each in measured if each and "elapsed_s" in each.measured)

    @property
    def run(self) -> Run:
        """The ended run in the form of the history."""
        if self.outcome is None:
            raise ValueError(f"run {self.key} has not ended")
        run = measured_run(self.spec, self.key, self.outcome)
        tags = {**run.tags, "campaign": self.planned.campaign, "repeat": str(self.planned.repeat)}
        return replace(run, scale=self.planned.scale, parameters=self.planned.configuration.parameters, tags=tags)


def last_attempt(job: Job) -> str:
    """Return the key under which a job's outcome is stored: that of its last attempt, else its own."""
    return job.attempts[-1].key if job.attempts else job.key


class CampaignJournal(PlaneJournal):
    """The plane journal of one campaign, with its planned runs and the outcomes of their attempts."""

    tables: ClassVar[tuple[Path, ...]] = (*TABLES, _MORE)
    application_id: ClassVar[int] = 0x4C43_4D50

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Written with the next change of a job: every write waits for the disk, which short runs would feel.
        self._waiting: list[tuple[str, list[tuple[str, ...]]]] = []

    def write(
        self, *, jobs: Iterable[Job] = (), attempts: Iterable[Attempt] = (), events: Iterable[NewEvent] = ()
    ) -> None:
        """Write changes of jobs, and all that waits for a write."""
        with self.transaction() as connection:
            self._write(connection, jobs, attempts, events)
            for statement, rows in self._waiting:
                connection.executemany(statement, rows)
        self._waiting.clear()

    def plan(self, runs: Iterable[tuple[PlannedRun, JobSpec]]) -> None:
        """Append runs; a known one gets the new job."""
        with self.transaction() as connection:
            (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM planned").fetchone()
            connection.executemany(
                "INSERT INTO planned (key, position, spec, document) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET spec = excluded.spec, document = excluded.document",
                [
                    (planned.id, position, to_json(spec, indent=0), to_json(planned, indent=0))
                    for position, (planned, spec) in enumerate(runs, last + 1)
                ],
            )

    def repeat(self, run: CampaignRun) -> None:
        """Let an ended run wait again."""
        with self.transaction() as connection:
            connection.execute("UPDATE planned SET discarded = ? WHERE key = ?", (len(run.jobs), run.key))

    def add_outcomes(self, outcomes: Mapping[tuple[str, str], JobOutcome]) -> None:
        """Store outcomes by (job, attempt), with the next write."""
        statement = "INSERT OR REPLACE INTO outcome (job, attempt, document) VALUES (?, ?, ?)"
        self._waiting.append((statement, [(*keys, to_json(outcome, indent=0)) for keys, outcome in outcomes.items()]))

    def mark_stored(self, attempt: str) -> None:
        """Note with the next write that the history has the outcome of an attempt."""
        self._waiting.append(("UPDATE outcome SET stored = 1 WHERE attempt = ?", [(attempt,)]))

    def request_stop(self) -> None:
        """Ask the process that runs the campaign to stop it, by an event of no job."""
        self.write(events=[NewEvent(EventKind.CANCEL)])

    def stop_requested(self, *, since: int) -> bool:
        """True if a stop was requested after an event."""
        return bool(self.events(job="", kinds=[EventKind.CANCEL], since=since, limit=1))

    def runs(self) -> tuple[CampaignRun, ...]:
        """Return all runs in the order of the plan."""
        jobs: dict[str, list[Job]] = {}
        for job in reversed(self.newest_jobs()):
            jobs.setdefault(run_key(job.key), []).append(job)
        outcomes: dict[str, dict[str, JobOutcome]] = {}
        stored: set[str] = set()
        for key, attempt, document, is_stored in self.read("SELECT job, attempt, document, stored FROM outcome"):
            outcome = from_json(document, JobOutcome, label=f"an outcome of {self.path}")
            outcomes.setdefault(run_key(key), {})[attempt] = outcome
            stored.update([attempt] if is_stored else [])
        rows = self.read("SELECT key, spec, document, discarded FROM planned ORDER BY position")
        label = f"a run of {self.path}"
        return tuple(
            CampaignRun(
                from_json(document, PlannedRun, label=label), from_json(spec, JobSpec, label=label),
                tuple(jobs.get(key, ())), outcomes.get(key, {}), discarded,
                stored=bool(jobs.get(key)) and last_attempt(jobs[key][-1]) in stored,
            )
            for key, spec, document, discarded in rows
        )  # fmt: skip


def run_key(job_key: str) -> str:
    """Return the run of a job, whose key is the run's with the number of the start."""
    return job_key.rpartition("-")[0]


class CampaignTotals(Frozen):
    """State of a campaign; ``spent`` and ``budget`` in the budget's unit."""

    planned: int
    completed: int
    failed: int
    running: int
    spent: float
    budget: float | None
    money: float | None  # US dollars if prices are known
    left_s: float  # forecast time of the remaining runs in sequence, at the pace of the ended ones
    unknown: int  # remaining runs without a forecast

    @property
    def ended(self) -> int:
        """Number of ended runs, failed ones included."""
        return self.completed + self.failed


def budget_spent(campaign: Campaign, runs: Sequence[CampaignRun]) -> float:
    """Return the consumption of the runs, in the unit of the budget."""
    return sum(compute_cost(campaign, run.spec.resources, run.elapsed_s) for run in runs)


def expected_run_s(run: CampaignRun, mean_s: dict[str, float]) -> float | None:
    """Return the expected duration of a run: its forecast, else ``mean_s`` of its scale."""
    forecast = run.planned.forecast_s
    return mean_s.get(run.planned.scale) if forecast is None else forecast.point


def mean_completed_s(runs: Sequence[CampaignRun]) -> dict[str, float]:
    """Return the mean seconds of completed runs by scale."""
    by_scale: dict[str, list[float]] = {}
    for run in runs:
        if run.state is JobState.COMPLETED and run.outcome:
            by_scale.setdefault(run.planned.scale, []).append(run.outcome.measured["elapsed_s"].value)
    return {scale: sum(times) / len(times) for scale, times in by_scale.items()}


def campaign_totals(campaign: Campaign, runs: Sequence[CampaignRun]) -> CampaignTotals:
    """Summarize a campaign's runs."""
    mean_s = mean_completed_s(runs)
    states = Counter(run.state for run in runs)
    expected = [expected_run_s(run, mean_s) for run in runs if not run.state.final]
    return CampaignTotals(
        planned=len(runs),
        completed=states[JobState.COMPLETED],
        failed=sum(count for state, count in states.items() if state.final and state is not JobState.COMPLETED),
        running=states[JobState.RUNNING],
        spent=budget_spent(campaign, runs),
        budget=campaign.budget.amount if campaign.budget else None,
        money=_money(campaign, runs),
        left_s=_pace(runs) * sum(seconds for seconds in expected if seconds is not None),
        unknown=sum(seconds is None for seconds in expected),
    )


def _pace(runs: Sequence[CampaignRun]) -> float:
    """Return the median ratio of measured to forecast time; 1 with fewer than three completed runs."""
    shares = [
        run.outcome.measured["elapsed_s"].value / forecast.point
        for run in runs
        if run.state is JobState.COMPLETED and run.outcome
        if (forecast := run.planned.forecast_s) is not None and forecast.point > 0
    ]
    return median(shares) if len(shares) >= MIN_PACED_RUNS else 1.0


def _money(campaign: Campaign, runs: Sequence[CampaignRun]) -> float | None:
    if campaign.core_hour is None and campaign.gpu_hour is None:
        return None
    return budget_spent(replace(campaign, budget=Budget(1.0, BudgetUnit.USD)), runs)


class FailureSummary(Frozen):
    """Runs that failed in the same way, with the last line that one of them wrote."""

    count: int
    how: str
    last_line: str
    log: str

    def __str__(self) -> str:
        text = f'{self.how}, having written "{self.last_line}"' if self.last_line else f"{self.how}, in silence"
        return f"{text} ({self.log})"


def failure_summaries(runs: Sequence[CampaignRun], folder: Path) -> list[FailureSummary]:
    """Group failed runs by cause, most frequent first; last lines match if they differ only in numbers."""
    causes: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for run in runs:
        if run.outcome is None or not run.state.final or run.state is JobState.COMPLETED:
            continue
        log = _log_of(run, folder)
        line = last_log_line(log)
        causes.setdefault((_describe_end(run.outcome), re.sub(r"\d+", "#", line)), []).append((line, str(log)))
    summaries = [FailureSummary(len(ends), how, *ends[0]) for (how, _), ends in causes.items()]
    return sorted(summaries, key=lambda summary: -summary.count)


def _log_of(run: CampaignRun, folder: Path) -> Path:
    """Return the output of a run's last attempt. On this machine its name ends with the number of the start."""
    key = last_attempt(run.jobs[-1])
    logs = folder / RUNS_FOLDER
    numbered = (logs / f"{key}-{start}.log" for start in (3, 2, 1))
    return next((log for log in numbered if log.exists()), logs / log_name(key))


def _describe_end(outcome: JobOutcome) -> str:
    if outcome.state.censored and outcome.reason:
        return f"{outcome.state.value} ({outcome.reason})"
    if outcome.signal:
        return f"{outcome.state.value} by {Signals(outcome.signal).name}"
    if outcome.exit_code:
        return f"{outcome.state.value} with exit code {outcome.exit_code}"
    return f"{outcome.state.value} ({outcome.reason})" if outcome.reason else outcome.state.value
