"""Jobs as a scheduler sees them: the request, and the states of a job."""

from enum import StrEnum

from msgspec import field

from leadline.core.frozen import Frozen


class JobState(StrEnum):
    """Job states by Slurm's names.

    TIMEOUT and OUT_OF_MEMORY differ from FAILED because the cause decides the next step.
    """

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
        """True if no other state can follow."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN)

    @property
    def censored(self) -> bool:
        """True if the job was cut off, which makes its measurements lower bounds."""
        return self in (JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.CANCELLED, JobState.PREEMPTED,
                        JobState.NODE_FAIL)  # fmt: skip

    @classmethod
    def from_slurm(cls, text: str) -> "JobState":
        """Parse a state that Slurm prints, such as ``CANCELLED by 1000`` or ``NODE_FAIL+``."""
        word, _, _ = text.strip().partition(" ")
        return _SLURM_STATES.get(word.rstrip("+"), cls.UNKNOWN)


_OTHER_CODES = {
    JobState.PENDING: "CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT RESV_DEL_HOLD POWER_UP_NODE "
                      "EXPEDITING",
    JobState.RUNNING: "COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING",
    JobState.NODE_FAIL: "BOOT_FAIL",
    JobState.TIMEOUT: "DEADLINE",
}  # fmt: skip
"""Slurm's other codes of a state (https://slurm.schedmd.com/job_state_codes.html). Flags such as LAUNCH_FAILED or
UPDATE_DB are unknown, and so is REVOKED, because the job lives at another cluster of its federation."""
_SLURM_STATES = {code: state for state in JobState for code in (state.value, *_OTHER_CODES.get(state, "").split())}


class ResourceSpec(Frozen):
    """Resources of a job; ``None`` leaves the choice to the site."""

    nodes: int = 1
    tasks_per_node: int = 1
    cores_per_task: int | None = None
    gpus_per_node: int = 0
    memory_bytes_per_node: int | None = None
    walltime_s: float | None = None
    least_walltime_s: float | None = None  # shortest limit that the scheduler may grant to start the job sooner


class JobSpec(Frozen):
    """A command with its resources and target; Leadline times the Python loops of a ``watched`` job."""

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
