"""The jobs of the closed loop, and their cost under an oracle and under simple rules, from their measured needs."""

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
    """Used node-seconds, the same weighted by the larger of the requested shares of a node, and attempts."""

    node_s: float = 0.0
    cost_s: float = 0.0
    attempts: int = 0

    @classmethod
    def of(cls, elapsed_s: float, request: ResourceSpec) -> "JobCost":
        """Return the cost of a run of that length with a request."""
        used_s = elapsed_s * request.nodes
        return cls(used_s, used_s * _share(request), 1)

    def __add__(self, other: "JobCost") -> "JobCost":
        """Return the sum of both costs."""
        return JobCost(self.node_s + other.node_s, self.cost_s + other.cost_s, self.attempts + other.attempts)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """The needs of a job, measured with ample resources; ``growth`` is (seconds, highest memory so far in bytes)."""

    elapsed_s: float
    memory_bytes: float
    growth: tuple[tuple[float, float], ...]
    resumes: bool = False

    def wrong(self, time_share: float, memory_share: float) -> ResourceSpec:
        """Return a request for shares of its needs, with the walltime in Slurm's whole minutes."""
        return ResourceSpec(
            cores_per_task=1, memory_bytes_per_node=round(memory_share * self.memory_bytes),
            walltime_s=minutes_s(time_share * self.elapsed_s),
        )  # fmt: skip

    def runs_out_s(self, memory_bytes: float) -> float:
        """Return when it needs more memory than that, by linear interpolation; infinite if it never does."""
        at_s, used = 0.0, 0.0
        for later_s, more in self.growth:
            if more > memory_bytes:
                return at_s + (later_s - at_s) * max(memory_bytes - used, 0.0) / (more - used)
            at_s, used = later_s, more
        return math.inf


def oracle_cost(truth: MeasuredJob) -> JobCost:
    """Return the cost of one run with a request for exactly its needs."""
    return JobCost.of(truth.elapsed_s, ResourceSpec(cores_per_task=1, memory_bytes_per_node=round(truth.memory_bytes)))


def whole_node_cost(truth: MeasuredJob) -> JobCost:
    """Return the cost of one run on a whole node, with the partition's maximal walltime."""
    request = ResourceSpec(cores_per_task=NODE.cores, memory_bytes_per_node=NODE.memory_bytes)
    return JobCost.of(truth.elapsed_s, request)


def retry_cost(truth: MeasuredJob, request: ResourceSpec) -> JobCost:
    """Return the cost if the exhausted resource is raised by half until the job completes.

    A job that resumes keeps the work of an attempt that reached its time limit.
    """
    total, left_s = JobCost(), truth.elapsed_s
    for _ in range(MOST_TRIES):
        limit_s, memory_bytes = request.walltime_s or math.inf, request.memory_bytes_per_node or 0
        short_s = truth.runs_out_s(memory_bytes)
        lasted_s = min(limit_s, short_s, left_s)
        total += JobCost.of(lasted_s, request)
        if lasted_s >= left_s:
            return total
        if short_s <= limit_s:
            request = replace(request, memory_bytes_per_node=round(GROWTH * memory_bytes))
        else:
            request = replace(request, walltime_s=minutes_s(GROWTH * limit_s))
        if truth.resumes:
            left_s -= lasted_s if short_s > limit_s else 0.0
    raise ValueError(f"a request grew {MOST_TRIES} times and is still too small for {truth.memory_bytes / MIB:.0f} MiB")


def minutes_s(time_s: float) -> float:
    """Round a limit up to Slurm's whole minutes."""
    return math.ceil(time_s / MINUTE_S) * MINUTE_S


def _share(request: ResourceSpec) -> float:
    cores, memory = NODE.cores or 1, NODE.memory_bytes or 1
    core_share = (request.cores_per_task or 1) * request.tasks_per_node / cores
    return max(core_share, (request.memory_bytes_per_node or 0) / memory)


PACED = HERE / "plane" / "paced"
SHARE = 0.02
"""Share of a core that a job computes on: twenty jobs at once leave a machine of two cores time for the plane."""


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """A training program, its options for work and memory, and their values for a run of minutes."""

    script: str
    work: str
    units: int
    memory: str
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
    """One job of the loop; its folder is not part of the command."""

    name: str
    command: tuple[str, ...]
    resumes: bool


def loop_jobs(count: int, seed: int, *, work: float = 1.0) -> list[LoopJob]:
    """Return jobs of all programs in turn, with random work and memory; ``work`` scales the work."""
    chance = random.Random(seed)  # noqa: S311 - a draw of jobs, not of secrets
    jobs = []
    for number in range(count):
        program = PROGRAMS[number % len(PROGRAMS)]
        units = round(program.units * work * chance.uniform(0.85, 1.1))
        size = round(program.most * chance.uniform(0.6, 1.0))
        words = (program.work, str(units), program.memory, str(size), "--share", str(SHARE))
        name = f"{Path(program.script).stem}-{number}"
        jobs.append(LoopJob(name, (sys.executable, str(PACED / program.script), *words), program.resumes))
    return jobs
