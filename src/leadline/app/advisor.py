"""The plane's counsel, made of the catalog, the live estimators and the history (implements ``Advisor``)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from leadline.app.places import LOCAL
from leadline.app.plane_places import Elsewhere, Machine, Staging, price_per_s, unknown
from leadline.app.plane_waits import NoWaits, Waits
from leadline.app.schedulers import known_partition
from leadline.core.errors import InvalidInput, NothingFits
from leadline.core.estimate import Interval
from leadline.core.jobs import JobSpec, JobState
from leadline.core.plane import Attempt, Job, Place, Plan, Situation
from leadline.core.ports import Catalog
from leadline.core.runs import Run
from leadline.estimators.live import LiveEstimate, live_elapsed, live_memory
from leadline.estimators.live_table import LiveTable
from leadline.execution.clock import epoch_s
from leadline.execution.plane.acting import elapsed_s
from leadline.execution.plane.advisor import Ended, Expectation
from leadline.execution.slurm.script import directives
from leadline.execution.wrapper.outcome import Outcome
from leadline.execution.wrapping import run_of
from leadline.history.sqlite import SqliteHistory


@dataclass(slots=True)
class PlaneAdvisor:
    """Answers the plane's questions, none of them by waiting for anything.

    ``waits`` knows how long jobs wait in queues, ``staging`` how long a checkpoint takes to another system, and
    ``finished`` is told the runs that entered the history.
    ``memory_seen`` keeps what running attempts showed of their memory.
    """

    catalog: Catalog
    history: SqliteHistory
    table: LiveTable
    here: Callable[[], Machine] = Machine
    waits: Waits = field(default_factory=NoWaits)
    finished: Callable[[Sequence[Run]], object] = len
    staging: Staging = unknown
    memory_seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def plans(self, job: Job) -> tuple[Plan, ...]:
        """Return a plan for each copy that may wait at once, at the first places of its policy that would take it.

        Raises:
            NothingFits: no place would take it.
        """
        found, refused = [], []
        for place in job.policy.places:
            spec = replace(job.spec, system=place.system, partition=place.partition)
            try:
                self._check(spec, place)
            except InvalidInput as error:
                refused.append(f"{place}: {error}")
                continue
            found.append(Plan(place, job.spec.resources))
            if len(found) == job.policy.copies:
                break
        if not found:
            raise NothingFits(f"no place would take it: {'; '.join(refused)}")
        return tuple(found)

    def expect(self, job: Job, attempt: Attempt, outcome: Outcome | None, *, now_s: float) -> Expectation:
        """Return what is expected of an attempt, from the estimate made before and from what its wrapper reported."""
        spec = replace(
            job.spec, resources=attempt.resources, system=attempt.place.system, partition=attempt.place.partition
        )
        partition = known_partition(spec, self.catalog)
        elsewhere = self._elsewhere()
        elapsed = self._elapsed(elsewhere.predicted(job, attempt.place, partition), attempt, outcome, now_s)
        memory = self._memory(job, attempt, outcome, elapsed)
        seen = outcome.measured.get("host_memory_bytes") if outcome else None
        known = Situation(
            job, attempt, now_s, elapsed_s(attempt, now_s), elapsed.total, memory, seen.value if seen else None
        )
        waits = attempt.live and attempt.state is JobState.PENDING
        return Expectation(
            total_s=elapsed.total,
            memory_bytes=memory,
            remaining_wait_s=self.waits.remaining(attempt, spec, now_s) if waits else None,
            allowed_s=partition.limits.max_walltime_s if partition else None,
            node_memory_bytes=elsewhere.node_memory(attempt.place, partition),
            gpu_memory_bytes=elsewhere.gpu_memory(attempt.place, partition, attempt.resources),
            cost_per_s=price_per_s(partition, attempt.resources),
            alternatives=elsewhere.alternatives(known) if len(job.policy.places) > 1 else (),
        )

    def ended(self, ends: Sequence[Ended]) -> None:
        """Keep every attempt that ran as a run of the history; a run of the same id is replaced."""
        for one in ends:
            self.memory_seen.pop(one.attempt.key, None)
            self.waits.let_go(one.attempt.key)
        runs = [_run(one) for one in ends]
        self.history.add_all(runs)
        self.finished(runs)

    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(self.catalog, self.here, self.waits.of, self.staging)

    def _elapsed(
        self, before: Interval | None, attempt: Attempt, outcome: Outcome | None, now_s: float
    ) -> LiveEstimate:
        if attempt.started_at is None:
            return LiveEstimate(before)
        at_s = max(0.0, now_s - epoch_s(attempt.started_at))
        looked = outcome.measured.get("elapsed_s") if outcome else None
        return live_elapsed(
            before,
            outcome.progress if outcome else None,
            max(at_s, looked.value) if looked else at_s,
            self.table,
            looked_s=looked.value if looked else None,
        )

    def _memory(self, job: Job, attempt: Attempt, outcome: Outcome | None, elapsed: LiveEstimate) -> Interval | None:
        before = job.predicted.host_memory_bytes if job.predicted else None
        seen = self.memory_seen.setdefault(attempt.key, [])
        if outcome is not None:
            at, held = outcome.measured.get("elapsed_s"), outcome.measured.get("host_memory_bytes")
            if at is not None and held is not None and (not seen or seen[-1][0] < at.value):
                seen.append((at.value, held.value))
        began_s = outcome.progress.startup_s if outcome and outcome.progress else None
        return live_memory(before, seen, began_s, elapsed, self.table).total

    def _check(self, spec: JobSpec, place: Place) -> None:
        """Refuse what the rules of a place would refuse, where they are known."""
        if place.system.casefold() != LOCAL:
            directives(spec, known_partition(spec, self.catalog))


def _run(one: Ended) -> Run:
    """Return the run of an attempt: by what its wrapper measured, else by what its scheduler told."""
    attempt, job = one.attempt, one.job
    spec = replace(
        job.spec, resources=attempt.resources, system=attempt.place.system, partition=attempt.place.partition
    )
    measured = one.outcome if one.outcome is not None and one.outcome.measured else None
    outcome = measured or Outcome(
        attempt.state, attempt.started_at or "", attempt.node or "", spec.command, ended_at=attempt.ended_at,
        exit_code=attempt.exit_code, reason=attempt.reason,
    )  # fmt: skip
    why = outcome.state if attempt.state is JobState.UNKNOWN else attempt.state
    run = run_of(spec, attempt.key, replace(outcome, state=why))
    return replace(run, predicted=job.predicted, parameters=job.parameters, tags={**run.tags, **job.tags})
