"""A job as a site's accounting, or a published trace, tells of it."""

from dataclasses import dataclass

from leadline.core.jobs import JobState


@dataclass(frozen=True, slots=True)
class AccountedJob:
    """One job of anybody's; what is not told is ``None``, and a user's name may be a pseudonym.

    Times are seconds since the epoch. ``eligible_s`` is when the job could have started (a dependency met, a begin
    time reached); ``walltime_s`` is what was asked for, and ``cores``, ``gpus`` and ``memory_bytes`` are of all nodes.
    """

    id: str
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    eligible_s: float | None = None
    state: JobState = JobState.UNKNOWN
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    name: str = ""
    nodes: int = 1
    cores: int = 1
    gpus: int = 0
    memory_bytes: int | None = None
    walltime_s: float | None = None

    @property
    def wait_s(self) -> float | None:
        """How long it waited since it could have started."""
        return None if self.started_s is None else max(0.0, self.started_s - (self.eligible_s or self.submitted_s))

    @property
    def elapsed_s(self) -> float | None:
        """How long it ran."""
        if self.started_s is None or self.ended_s is None:
            return None
        return max(0.0, self.ended_s - self.started_s)
