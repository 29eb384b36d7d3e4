"""Jobs with designed ends, the ledger that they write, and the tally of what went wrong.

Each start and end of a job leaves a file in the ledger, independent of Slurm and of the plane's journal.
"""

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Job, Place, Policy
from leadline.core.units import MIB

PLACE = Place("cluster", "short")
ASKED_BYTES = 100 * MIB
NEEDED_BYTES = 140 * MIB
"""Memory of a job that requests too little; the plane raises its request by at least half."""
FAILED_CODE = 3
ARRAY = 8
"""Elements of an array."""
CANCELLED, LONG = "cancelled by staff", "long"
"""Kinds of jobs that run long enough for the site's staff to change them."""
LASTS = 0.5, 4.0
LASTS_S = {CANCELLED: (25.0, 40.0), LONG: (85.0, 100.0)}
ATTEMPTS = 15
"""More than the faults that can hit one job, so that a bad end is a mistake, not this bound."""

SCRIPT = """\
ledger=$1 job=$2 lasts_s=$3 code=$4 bytes=$5 failing=$6
if [ -n "$LEADLINE_INDEX" ]; then
  job=$job-$LEADLINE_INDEX
  case " $failing " in *" $LEADLINE_INDEX "*) code=3 ;; esac
fi
name=$job.$LEADLINE_KEY.$SLURM_JOB_ID.$$
tell() {
  printf '%s %s %s\\n' "$(date +%s.%N)" "$SLURMD_NODENAME" "$2" > "$ledger/.$name.$1" &&
  mv "$ledger/.$name.$1" "$ledger/$name.$1"
}
trap 'tell end 143; exit 143' TERM
tell start 0
sleep "$lasts_s" & wait
if [ "$bytes" -gt 0 ]; then
  got=$(head -c "$bytes" /dev/zero | tail -c "$bytes" | wc -c)
  if [ "$got" -ne "$bytes" ]; then code=137; fi
fi
tell end "$code"
exit "$code"
"""
"""Report the start, sleep, allocate bytes, report the exit code, exit.

All elements of an array run the same command; ``failing`` are the indices that fail.
"""


@dataclass(frozen=True, slots=True)
class DesignedJob:
    """A job and its designed end: ``state`` and exit code, which a cancelled job does not have."""

    job: Job
    state: JobState
    code: int | None
    kind: str

    @property
    def lasts_s(self) -> float:
        """Return how long the job sleeps."""
        return float(self.job.spec.command[6])


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """One start of a job in the ledger; ``ended_s`` and ``code`` are None if it reported no end."""

    job: str
    attempt: str
    node: str
    began_s: float
    ended_s: float | None = None
    code: int | None = None


def design_jobs(count: int, ledger: Path, rng: random.Random, *, memory_held: bool) -> Iterator[list[DesignedJob]]:
    """Yield waves of jobs, ``count`` in all: single jobs, arrays, and some that depend on others.

    Without ``memory_held``, which means that the cluster enforces memory requests, no job exceeds its request.
    """
    count_so_far = 0
    while count_so_far < count:
        wave = (
            _array(count_so_far, ledger, rng)
            if rng.random() < 0.3
            else _singles(count_so_far, ledger, rng, memory_held)
        )
        wave = wave[: count - count_so_far]
        count_so_far += len(wave)
        yield wave


def read_ledger(ledger: Path) -> list[LedgerRun]:
    """Return all starts in a ledger, in their order."""
    runs = []
    for path in ledger.glob("[!.]*.start"):
        job, attempt, _, _, _ = path.name.split(".")
        began, node, _ = path.read_text(encoding="ascii").split()
        run = LedgerRun(job, attempt, node, float(began))
        end = path.with_suffix(".end")
        if end.exists():
            ended, _, code = end.read_text(encoding="ascii").split()
            run = LedgerRun(job, attempt, node, float(began), float(ended), int(code))
        runs.append(run)
    return sorted(runs, key=lambda run: run.began_s)


def _array(first_number: int, ledger: Path, rng: random.Random) -> list[DesignedJob]:
    group, measured = f"array-{first_number:04}", rng.random() < 0.5
    failing = [at for at in range(ARRAY) if rng.random() < 0.1]
    command = _command(ledger, group, rng, failing=failing)
    return [
        _designed(
            f"{group}-{at}", command, "fails" if at in failing else "well", measured=measured, group=group, index=at
        )
        for at in range(ARRAY)
    ]


def _singles(first_number: int, ledger: Path, rng: random.Random, memory_held: bool) -> list[DesignedJob]:
    """Return a few single jobs; the last may depend on the first."""
    kinds = rng.choices(["well", "fails", "hungry"], [6, 1, 2 if memory_held else 0], k=4)
    # The last one may be for the staff of the site. No job depends on it.
    kinds[-1] = rng.choices([kinds[-1], CANCELLED, LONG], [5, 3, 2])[0]
    wave = [_single(f"job-{first_number + at:04}", ledger, rng, kind) for at, kind in enumerate(kinds)]
    if rng.random() < 0.6:
        kind = "follows" if kinds[0] != "fails" else "cannot follow"
        wave.append(_single(f"job-{first_number + len(wave):04}", ledger, rng, kind, after=(wave[0].job.key,)))
    return wave


def _single(key: str, ledger: Path, rng: random.Random, kind: str, *, after: Sequence[str] = ()) -> DesignedJob:
    command = _command(
        ledger, key, rng, code=FAILED_CODE if kind == "fails" else 0,
        need_bytes=NEEDED_BYTES if kind == "hungry" else 0, span_s=LASTS_S.get(kind, LASTS),
    )  # fmt: skip
    return _designed(key, command, kind, measured=rng.random() < 0.5, after=after)


def _command(
    ledger: Path, job: str, rng: random.Random, *, code: int = 0, need_bytes: int = 0, failing: Sequence[int] = (),
    span_s: tuple[float, float] = LASTS,
) -> tuple[str, ...]:  # fmt: skip
    lasts_s, which = f"{rng.uniform(*span_s):.2f}", " ".join(map(str, failing))
    return "sh", "-c", SCRIPT, "sh", str(ledger), job, lasts_s, str(code), str(need_bytes), which


def _designed(
    key: str, command: tuple[str, ...], kind: str, *, measured: bool, group: str | None = None,
    index: int | None = None, after: Sequence[str] = (),
) -> DesignedJob:  # fmt: skip
    resources = ResourceSpec(cores_per_task=1, walltime_s=1800.0, memory_bytes_per_node=ASKED_BYTES)
    policy = Policy((PLACE,), measured=measured, attempts=ATTEMPTS)
    job = Job(key, JobSpec("fault", command, resources), policy, group=group, index=index, after=tuple(after))
    if kind == "cannot follow":
        return DesignedJob(job, JobState.CANCELLED, None, kind)
    if kind == "fails":
        return DesignedJob(job, JobState.FAILED, FAILED_CODE, kind)
    return DesignedJob(job, JobState.COMPLETED, 0, kind)


SLOW_S = 20.0
"""On a busy machine, a job that was not killed reports its end at most this long after its sleep."""
UNSEEN_S = 1.0
"""An end this shortly before the node died may be unseen, even by the measuring wrapper."""


@dataclass(frozen=True, slots=True)
class Death:
    """A node that lost all its processes."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class FaultTally:
    """One sentence for each job that was lost, ran twice, or has the wrong final state, and for each wrong cause."""

    lost: tuple[str, ...]
    twice: tuple[str, ...]
    wrong: tuple[str, ...]
    causes: tuple[str, ...] = ()


def tally_faults(
    designs: Collection[DesignedJob],
    states: Mapping[str, JobState],
    runs: Iterable[LedgerRun],
    deaths: Collection[Death],
) -> FaultTally:
    """Return what went wrong; ``states`` are the journal's, PENDING for a job that is not closed."""
    by_job: dict[str, list[LedgerRun]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    return FaultTally(
        tuple(text for job in designs if (text := _lost(job, states.get(job.job.key), by_job[job.job.key]))),
        tuple(text for job in designs if (text := _twice(job, by_job[job.job.key], deaths))),
        tuple(text for job in designs if (text := _wrong(job, states.get(job.job.key)))),
    )


def _lost(design: DesignedJob, state: JobState | None, runs: list[LedgerRun]) -> str:
    """Return how a job was lost: never closed, given up, or never run to its end; empty if it was not."""
    key = design.job.key
    if state is None or not (state.final or state is JobState.UNKNOWN):
        return f"{key} ({design.kind}) was never closed"
    if state is JobState.UNKNOWN:
        return f"{key} ({design.kind}) was given up"
    if design.code is not None and not any(run.code == design.code for run in runs):
        return f"{key} ({design.kind}) is {state.value} and never ran to its end"
    return ""


def _twice(design: DesignedJob, runs: list[LedgerRun], deaths: Collection[Death]) -> str:
    """Return how a job ran twice: concurrently, after its own end, or although it must not run; empty if not."""
    key, ordered = design.job.key, sorted(runs, key=lambda run: run.began_s)
    if design.kind == "cannot follow":
        return f"{key} ({design.kind}) must not run and did" if ordered else ""
    for at, run in enumerate(ordered):
        for later in ordered[at + 1 :]:
            if later.began_s < _over_s(run, design.lasts_s, deaths):
                return f"{key} ({design.kind}) ran twice at once: {run.attempt} and {later.attempt}"
            if run.code is not None and run.code == design.code and not _excused(design, run, later, deaths):
                return f"{key} ({design.kind}) was started again by {later.attempt} after {run.attempt} had ended"
    return ""


def _wrong(design: DesignedJob, state: JobState | None) -> str:
    if state is None or not state.final or state is design.state:
        return ""
    return f"{design.job.key} ({design.kind}) is {state.value}, and had to end {design.state.value}"


def _over_s(run: LedgerRun, lasts_s: float, deaths: Iterable[Death]) -> float:
    """Return when a run was over: its end, its node's death, or the latest time at which it would report an end."""
    if run.ended_s is not None:
        return run.ended_s
    at_node = (death.at_s for death in deaths if death.node == run.node and death.at_s >= run.began_s)
    return min([*at_node, run.began_s + lasts_s + SLOW_S])


def _excused(design: DesignedJob, run: LedgerRun, later: LedgerRun, deaths: Iterable[Death]) -> bool:
    """Return whether the end of a run was unknowable: its node died before Slurm heard of it.

    A measured job writes its end to disk within a moment, so only this moment excuses it.
    """
    ended_s = run.ended_s if run.ended_s is not None else math.inf
    latest_s = ended_s + UNSEEN_S if design.job.policy.measured else later.began_s
    return any(death.node == run.node and ended_s <= death.at_s <= latest_s for death in deaths)
