"""What a job of the closed loop costs an oracle, and who asks by a simple rule: computed from its measured truth."""

import math
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.probe import HERE
from leadline.core.jobs import ResourceSpec
from leadline.core.systems import NodeType
from leadline.core.units import GIB, MIB, MINUTE_S

NODE = NodeType("node", cores=8, memory_bytes=4 * GIB)
"""A node of the loop's cluster."""
GROWTH = 1.5
MOST_TRIES = 20


@dataclass(frozen=True, slots=True)
class JobCost:
    """Node-seconds that were used, and the same weighted by the larger of the shares of a node that were asked for."""

    node_s: float = 0.0
    cost_s: float = 0.0

    @classmethod
    def of(cls, elapsed_s: float, asked: ResourceSpec) -> "JobCost":
        """Return what a run of that length takes with a request."""
        used_s = elapsed_s * asked.nodes
        return cls(used_s, used_s * _share(asked))

    def __add__(self, other: "JobCost") -> "JobCost":
        """Return both together."""
        return JobCost(self.node_s + other.node_s, self.cost_s + other.cost_s)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """What a job took with room to spare; ``seen`` are (seconds, highest memory so far in bytes)."""

    elapsed_s: float
    memory_bytes: float
    seen: tuple[tuple[float, float], ...]
    resumes: bool = False

    def wrong(self, time_share: float, memory_share: float) -> ResourceSpec:
        """Return a request for shares of what it takes; the walltime as Slurm takes it, in whole minutes."""
        return ResourceSpec(
            cores_per_task=1, memory_bytes_per_node=round(memory_share * self.memory_bytes),
            walltime_s=minutes_s(time_share * self.elapsed_s),
        )  # fmt: skip

    def runs_out_s(self, memory_bytes: float) -> float:
        """Return when it needs more than that, between the looks in a straight line; infinite if it never does."""
        at_s, held = 0.0, 0.0
        for later_s, more in self.seen:
            if more > memory_bytes:
                return at_s + (later_s - at_s) * max(memory_bytes - held, 0.0) / (more - held)
            at_s, held = later_s, more
        return math.inf


def oracle_cost(truth: MeasuredJob) -> JobCost:
    """Ask for exactly what it takes, and run once."""
    return JobCost.of(truth.elapsed_s, ResourceSpec(cores_per_task=1, memory_bytes_per_node=round(truth.memory_bytes)))


def whole_node_cost(truth: MeasuredJob) -> JobCost:
    """Ask for a node with all that it has, for as long as the partition allows: it runs once."""
    asked = ResourceSpec(cores_per_task=NODE.cores, memory_bytes_per_node=NODE.memory_bytes)
    return JobCost.of(truth.elapsed_s, asked)


def retry_cost(truth: MeasuredJob, asked: ResourceSpec) -> JobCost:
    """Ask for half as much again of what ran out, until it comes through; what resumes loses no time that it ran."""
    total, left_s = JobCost(), truth.elapsed_s
    for _ in range(MOST_TRIES):
        limit_s, memory_bytes = asked.walltime_s or math.inf, asked.memory_bytes_per_node or 0
        short_s = truth.runs_out_s(memory_bytes)
        lasted_s = min(limit_s, short_s, left_s)
        total += JobCost.of(lasted_s, asked)
        if lasted_s >= left_s:
            return total
        if short_s <= limit_s:
            asked = replace(asked, memory_bytes_per_node=round(GROWTH * memory_bytes))
        else:
            asked = replace(asked, walltime_s=minutes_s(GROWTH * limit_s))
        if truth.resumes:
            left_s -= lasted_s if short_s > limit_s else 0.0
    raise ValueError(f"a request grew {MOST_TRIES} times and is still too small for {truth.memory_bytes / MIB:.0f} MiB")


def minutes_s(time_s: float) -> float:
    """Return a limit as Slurm takes it."""
    return math.ceil(time_s / MINUTE_S) * MINUTE_S


def _share(asked: ResourceSpec) -> float:
    cores, memory = NODE.cores or 1, NODE.memory_bytes or 1
    wanted = (asked.cores_per_task or 1) * asked.tasks_per_node / cores
    return max(wanted, (asked.memory_bytes_per_node or 0) / memory)


PACED = HERE / "plane" / "paced"
SHARE = 0.02
"""Of a core, once a job trains: twenty jobs at once then leave a machine of two cores time for everything else."""


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """A training program: what its work and its memory are named, and how much of each lasts minutes."""

    script: str
    work: str
    units: int
    held: str
    most: int
    resumes: bool = False


PROGRAMS = (
    TrainingProgram("table_mlp.py", "--epochs", 30, "--rows", 150_000),
    TrainingProgram("linear_sgd.py", "--passes", 30, "--rows", 120_000),
    TrainingProgram("replay.py", "--steps", 5400, "--capacity", 4000),
    TrainingProgram("picture_cnn.py", "--epochs", 8, "--copies", 8),
    TrainingProgram("resuming.py", "--rounds", 180, "--rows", 150_000, resumes=True),
)


@dataclass(frozen=True, slots=True)
class LoopJob:
    """One job of the loop: its name and its command but for the folder in which it keeps what it writes."""

    name: str
    command: tuple[str, ...]
    resumes: bool


def loop_jobs(count: int, seed: int, *, work: float = 1.0) -> list[LoopJob]:
    """Return jobs of all programs in turn; work and memory of each are drawn, ``work`` scales the former."""
    chance = random.Random(seed)  # noqa: S311 - a draw of jobs, not of secrets
    found = []
    for number in range(count):
        program = PROGRAMS[number % len(PROGRAMS)]
        units = round(program.units * work * chance.uniform(0.85, 1.1))
        held = round(program.most * chance.uniform(0.6, 1.0))
        words = (program.work, str(units), program.held, str(held), "--share", str(SHARE))
        name = f"{Path(program.script).stem}-{number}"
        found.append(LoopJob(name, (sys.executable, str(PACED / program.script), *words), program.resumes))
    return found
