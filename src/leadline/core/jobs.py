"""A job as a scheduler sees it: what is asked for, and the states it passes through."""

from dataclasses import dataclass, field
from enum import StrEnum


class JobState(StrEnum):
    """Slurm's names; TIMEOUT and OUT_OF_MEMORY stay apart, because the cause decides the next step."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"

    @property
    def final(self) -> bool:
        """Whether no other state can follow."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)

    @property
    def censored(self) -> bool:
        """Whether the job was cut off, so that what was measured is a lower bound."""
        return self in (JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.CANCELLED, JobState.PREEMPTED,
                        JobState.NODE_FAIL)  # fmt: skip

    @classmethod
    def from_slurm(cls, said: str) -> "JobState":
        """Read the state that Slurm writes, in any of its words: ``CANCELLED by 1000``, ``NODE_FAIL+``."""
        word, _, _ = said.strip().partition(" ")
        return _OF_SLURM.get(word.rstrip("+"), cls.UNKNOWN)


_OF_SLURM = {
    "PENDING": JobState.PENDING, "CONFIGURING": JobState.PENDING, "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING, "REQUEUE_FED": JobState.PENDING, "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING, "POWER_UP_NODE": JobState.PENDING, "EXPEDITING": JobState.PENDING,
    "RUNNING": JobState.RUNNING, "COMPLETING": JobState.RUNNING, "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING, "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING, "RESIZING": JobState.RUNNING, "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED, "BOOT_FAIL": JobState.NODE_FAIL, "NODE_FAIL": JobState.NODE_FAIL,
    "CANCELLED": JobState.CANCELLED, "REVOKED": JobState.CANCELLED, "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT, "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY, "PREEMPTED": JobState.PREEMPTED,
}  # fmt: skip
"""https://slurm.schedmd.com/job_state_codes.html; a flag that says neither (LAUNCH_FAILED, UPDATE_DB) is not known."""


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """What a job asks for; ``None`` leaves the choice to the site.

    ``least_walltime_s`` is the shortest limit that the scheduler may give it in place of ``walltime_s``, where it then
    starts sooner.
    """

    nodes: int = 1
    tasks_per_node: int = 1
    cores_per_task: int | None = None
    gpus_per_node: int = 0
    memory_bytes_per_node: int | None = None
    walltime_s: float | None = None
    least_walltime_s: float | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A command with its resources and its place; of a ``watched`` one the loops of its Python scripts are timed."""

    name: str
    command: tuple[str, ...]
    resources: ResourceSpec
    system: str | None = None
    partition: str | None = None
    account: str | None = None
    workdir: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    watched: bool = False
