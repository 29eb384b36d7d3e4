"""Jobs whose ends are designed, and the ledger in which each of their starts and ends leaves a file of its own."""

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
"""What a job takes that asks for too little; the room that the plane makes for it is at least half as much again."""
FAILED_CODE = 3
ARRAY = 8
"""Elements of an array."""
ATTEMPTS = 15
"""More than the faults of one job, so that what ends badly does so by a mistake and not by this bound."""

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
"""Says that it starts, lasts, holds so many bytes at once, says with which code it ends, and ends so.

All elements of an array run the same command; ``failing`` are those that fail.
"""


@dataclass(frozen=True, slots=True)
class DesignedJob:
    """A job as it is to end: in ``state``, by exit code ``code``; one that may not start has none."""

    job: Job
    state: JobState
    code: int | None
    kind: str


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """One start of a job, as the ledger has it; ``ended_s`` and ``code`` are ``None`` if it left no word of its end."""

    job: str
    attempt: str
    node: str
    began_s: float
    ended_s: float | None = None
    code: int | None = None


def design_jobs(count: int, ledger: Path, rng: random.Random, *, memory_held: bool) -> Iterator[list[DesignedJob]]:
    """Yield waves of jobs, ``count`` in all: single ones, arrays, and some that wait for others.

    Where nothing holds jobs to the memory that they asked for, none takes more (``memory_held``).
    """
    made = 0
    while made < count:
        wave = _array(made, ledger, rng) if rng.random() < 0.3 else _singles(made, ledger, rng, memory_held)
        wave = wave[: count - made]
        made += len(wave)
        yield wave


def read_ledger(ledger: Path) -> list[LedgerRun]:
    """Return all starts that a ledger has, in their order."""
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


def _array(made: int, ledger: Path, rng: random.Random) -> list[DesignedJob]:
    group, measured = f"array-{made:04}", rng.random() < 0.5
    failing = [at for at in range(ARRAY) if rng.random() < 0.1]
    command = _command(ledger, group, rng, failing=failing)
    return [
        _designed(
            f"{group}-{at}", command, "fails" if at in failing else "well", measured=measured, group=group, index=at
        )
        for at in range(ARRAY)
    ]


def _singles(made: int, ledger: Path, rng: random.Random, memory_held: bool) -> list[DesignedJob]:
    """Return a few jobs on their own; the last may wait for the first."""
    kinds = rng.choices(["well", "fails", "hungry"], [6, 1, 2 if memory_held else 0], k=4)
    wave = [_single(f"job-{made + at:04}", ledger, rng, kind) for at, kind in enumerate(kinds)]
    if rng.random() < 0.6:
        kind = "follows" if kinds[0] != "fails" else "cannot follow"
        wave.append(_single(f"job-{made + len(wave):04}", ledger, rng, kind, after=(wave[0].job.key,)))
    return wave


def _single(key: str, ledger: Path, rng: random.Random, kind: str, *, after: Sequence[str] = ()) -> DesignedJob:
    command = _command(
        ledger, key, rng, code=FAILED_CODE if kind == "fails" else 0,
        need_bytes=NEEDED_BYTES if kind == "hungry" else 0,
    )  # fmt: skip
    return _designed(key, command, kind, measured=rng.random() < 0.5, after=after)


def _command(
    ledger: Path, job: str, rng: random.Random, *, code: int = 0, need_bytes: int = 0, failing: Sequence[int] = ()
) -> tuple[str, ...]:
    lasts_s, which = f"{rng.uniform(0.5, 4.0):.2f}", " ".join(map(str, failing))
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


UNSEEN_S = 1.0
"""So soon before its node died a job's end may have been seen by nobody, its measuring wrapper included."""


@dataclass(frozen=True, slots=True)
class Death:
    """A node that lost all its processes."""

    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class FaultTally:
    """One sentence for each job that was lost, ran twice, or has the wrong state at last."""

    lost: tuple[str, ...]
    twice: tuple[str, ...]
    wrong: tuple[str, ...]


def tally_faults(
    designs: Collection[DesignedJob],
    states: Mapping[str, JobState],
    runs: Iterable[LedgerRun],
    deaths: Collection[Death],
) -> FaultTally:
    """Return what went wrong; ``states`` are those of the journal, PENDING for what is not closed."""
    by_job: dict[str, list[LedgerRun]] = defaultdict(list)
    for run in runs:
        by_job[run.job].append(run)
    return FaultTally(
        tuple(said for one in designs if (said := _lost(one, states.get(one.job.key), by_job[one.job.key]))),
        tuple(said for one in designs if (said := _twice(one, by_job[one.job.key], deaths))),
        tuple(said for one in designs if (said := _wrong(one, states.get(one.job.key)))),
    )


def _lost(design: DesignedJob, state: JobState | None, runs: list[LedgerRun]) -> str:
    """Return in which way a job was lost: it is not closed, nothing is known of it, or it did not run to its end."""
    key = design.job.key
    if state is None or not (state.final or state is JobState.UNKNOWN):
        return f"{key} ({design.kind}) was never closed"
    if state is JobState.UNKNOWN:
        return f"{key} ({design.kind}) was given up"
    if design.code is not None and not any(run.code == design.code for run in runs):
        return f"{key} ({design.kind}) is {state.value} and never ran to its end"
    return ""


def _twice(design: DesignedJob, runs: list[LedgerRun], deaths: Collection[Death]) -> str:
    """Return how a job ran twice: beside itself, or after it had come to its own end, or though it must not run."""
    key, ordered = design.job.key, sorted(runs, key=lambda run: run.began_s)
    if design.code is None:
        return f"{key} ({design.kind}) must not run and did" if ordered else ""
    for at, run in enumerate(ordered):
        for later in ordered[at + 1 :]:
            if later.began_s < _over_s(run, deaths):
                return f"{key} ({design.kind}) ran twice at once: {run.attempt} and {later.attempt}"
            if run.code == design.code and not _excused(design, run, later, deaths):
                return f"{key} ({design.kind}) was started again by {later.attempt} after {run.attempt} had ended"
    return ""


def _wrong(design: DesignedJob, state: JobState | None) -> str:
    if state is None or not state.final or state is design.state:
        return ""
    return f"{design.job.key} ({design.kind}) is {state.value}, and had to end {design.state.value}"


def _over_s(run: LedgerRun, deaths: Iterable[Death]) -> float:
    """Return when nothing of a run was left; never, if no end and no death of its node tells it."""
    if run.ended_s is not None:
        return run.ended_s
    return min((one.at_s for one in deaths if one.node == run.node and one.at_s >= run.began_s), default=math.inf)


def _excused(design: DesignedJob, run: LedgerRun, later: LedgerRun, deaths: Iterable[Death]) -> bool:
    """Whether nobody could know that a run had ended: its node died before Slurm heard of it.

    A measured job's end lies on the disk a moment after it, so that only this moment excuses it.
    """
    ended_s = run.ended_s if run.ended_s is not None else math.inf
    latest_s = ended_s + UNSEEN_S if design.job.policy.measured else later.began_s
    return any(one.node == run.node and ended_s <= one.at_s <= latest_s for one in deaths)
