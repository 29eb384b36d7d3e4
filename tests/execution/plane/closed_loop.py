"""A cluster of one job: it runs for its true time with its true memory, and does what ``decide`` says."""

import math
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from situations import HERE, NOW_S

from leadline.core.estimate import NORMAL_90, Interval
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, Attempt, FailureCause, Job, Policy, Situation
from leadline.core.units import MIB
from leadline.execution.plane.decide import decide


@dataclass
class Truth:
    """What a job really takes: its time, and its memory as it grows to a peak within ``grows`` of that time."""

    time_s: float
    memory_bytes: float
    grows: float

    def memory_at(self, elapsed_s: float) -> float:
        """A part is there at once, the rest comes in a straight line."""
        return self.memory_bytes * min(1.0, 0.3 + 0.7 * elapsed_s / max(self.grows * self.time_s, 1e-9))

    def out_of_memory_s(self, limit: float) -> float:
        """When a limit of memory is hit; never where it is enough."""
        if limit >= self.memory_bytes:
            return math.inf
        return max(0.0, (limit / self.memory_bytes - 0.3) / 0.7) * self.grows * self.time_s


@dataclass
class Loop:
    """Follows one job to its end; ``informed`` gives forecasts that are off by ``noise`` (standard deviation).

    ``steady`` forecasts are off by the same at every look, others each time anew.
    """

    truth: Truth
    asked: ResourceSpec
    policy: Policy
    chance: random.Random
    noise: float = 0.1
    informed: bool = True
    steady: bool = False
    extends: bool = False
    node_fails: float = 0.0
    allowed_s: float | None = None
    node_bytes: int | None = None
    poll_s: float = 60.0
    attempts: list[Attempt] = field(default_factory=list)
    spent_s: float = 0.0
    decisions: list = field(default_factory=list)
    off: dict = field(default_factory=dict)

    def run(self) -> bool:
        """Return whether the job completed; what it took is ``spent_s``."""
        asked: ResourceSpec | None = self.asked
        while asked is not None:
            asked = self._attempt(asked)
        return self.attempts[-1].state is JobState.COMPLETED

    def _attempt(self, asked: ResourceSpec) -> ResourceSpec | None:
        """Run one attempt to its end, or to its withdrawal; return the next request."""
        number = len(self.attempts) + 1
        began = datetime.fromtimestamp(NOW_S + self.spent_s, UTC).isoformat()
        attempt = Attempt(
            f"k-{number}", "k", number, HERE, asked, state=JobState.RUNNING, submitted_at=began, started_at=began
        )
        self.attempts.append(attempt)
        end_s, state, cause = self._end_of(asked)
        elapsed_s, refused = 0.0, 0
        while (at_s := min(elapsed_s + self.poll_s, end_s)) < end_s:
            elapsed_s = at_s
            decision = self._decide(elapsed_s, refused)
            if decision.action is Action.RESUBMIT:
                return self._close(elapsed_s, JobState.CANCELLED, withdrawn=True) or decision.resources
            if decision.action is Action.WITHDRAW:
                self._close(elapsed_s, JobState.CANCELLED, withdrawn=True)
                return None
            if decision.action is Action.EXTEND and not self.extends:
                refused += 1
            elif decision.action in (Action.EXTEND, Action.SHRINK):
                self.attempts[-1] = replace(self.attempts[-1], walltime_s=decision.resources.walltime_s)
                end_s, state, cause = self._end_of(replace(asked, walltime_s=decision.resources.walltime_s), end_s)
        self._close(end_s, state)
        decision = self._decide(end_s, refused, cause=cause, spent_s=0.0)
        assert decision.action in (Action.FINISH, Action.GIVE_UP, Action.RESUBMIT), decision
        assert (decision.action is Action.FINISH) is (state is JobState.COMPLETED)
        return decision.resources if decision.action is Action.RESUBMIT else None

    def _end_of(self, asked: ResourceSpec, fails_s: float = math.inf) -> tuple[float, JobState, FailureCause | None]:
        known = self.attempts[-1].state is JobState.RUNNING and fails_s is not math.inf
        node_s = math.inf
        if not known and self.chance.random() < self.node_fails:
            node_s = self.chance.random() * self.truth.time_s
        short_s = self.truth.out_of_memory_s(asked.memory_bytes_per_node or math.inf)
        ends = [
            (self.truth.time_s, JobState.COMPLETED, None),
            (asked.walltime_s or math.inf, JobState.TIMEOUT, FailureCause.WALLTIME),
            (short_s, JobState.OUT_OF_MEMORY, FailureCause.HOST_MEMORY),
            (node_s, JobState.NODE_FAIL, FailureCause.NODE),
        ]
        return min(ends, key=lambda one: one[0])

    def _close(self, elapsed_s: float, state: JobState, *, withdrawn: bool = False) -> None:
        self.spent_s += elapsed_s
        self.attempts[-1] = replace(
            self.attempts[-1], state=state, withdrawn=withdrawn, ended_at=datetime.fromtimestamp(NOW_S, UTC).isoformat()
        )

    def _decide(
        self, elapsed_s: float, refused: int, *, cause: FailureCause | None = None, spent_s: float | None = None
    ):
        spent_s = self.spent_s + (elapsed_s if spent_s is None else spent_s)
        job = Job("k", JobSpec("train", ("true",), self.asked), self.policy, attempts=tuple(self.attempts))
        situation = Situation(
            job, self.attempts[-1], NOW_S + spent_s, elapsed_s,
            total_s=self._forecast(self.truth.time_s), memory_bytes=self._forecast(self.truth.memory_bytes),
            memory_now_bytes=self.truth.memory_at(elapsed_s), allowed_s=self.allowed_s,
            node_memory_bytes=self.node_bytes, spent_node_s=spent_s, asked_to_extend=refused, cause=cause,
        )  # fmt: skip
        decision = decide(situation)
        assert decision == decide(situation)
        assert decision.reason
        self.decisions.append((situation, decision))
        return decision

    def _forecast(self, truth: float) -> Interval | None:
        """A forecast off by the noise, whose interval says so."""
        if not self.informed:
            return None
        if not self.steady or truth not in self.off:
            self.off[truth] = self.chance.gauss(0, 1)
        point = truth * math.exp(self.noise * self.off[truth])
        away = math.exp(NORMAL_90 * self.noise)
        return Interval(point, point / away, point * away)


def wrong_first_request(chance: random.Random, time_share: float = 0.3, memory_share: float = 0.5):
    """A job of ten minutes to two days, and a first request that is wrong by those shares."""
    time_s = math.exp(chance.uniform(math.log(600), math.log(172800)))
    memory = math.exp(chance.uniform(math.log(512 * MIB), math.log(256 * 1024 * MIB)))
    truth = Truth(time_s, memory, chance.uniform(0.01, 1.0))
    return truth, ResourceSpec(
        memory_bytes_per_node=round(memory_share * memory), walltime_s=max(60.0, time_share * time_s)
    )
