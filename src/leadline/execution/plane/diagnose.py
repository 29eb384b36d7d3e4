"""What ended an attempt, from what is left of it: the scheduler's row and steps, the wrapper's outcome, the log."""

import re
import signal
from dataclasses import dataclass, replace
from datetime import datetime

from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, FailureCause
from leadline.core.units import format_bytes, format_duration
from leadline.execution.clock import epoch_s
from leadline.execution.plane.failure_patterns import FailureSign, decisive_sign, final_signs, read_signs
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import JobOutcome

NEAR = 0.85
"""Share of the memory asked for at which a SIGKILL is one for memory: samples miss what was taken last."""
SKEW_S = 60.0
"""How far the clocks of a node and of its scheduler may differ."""
EARLY = 0.9
"""A wrapper that speaks of the limit before this share of it has passed is not believed."""

_STATE_OF = {
    FailureCause.HOST_MEMORY: JobState.OUT_OF_MEMORY,
    FailureCause.GPU_MEMORY: JobState.OUT_OF_MEMORY,
    FailureCause.WALLTIME: JobState.TIMEOUT,
    FailureCause.PREEMPTION: JobState.PREEMPTED,
    FailureCause.NODE: JobState.NODE_FAIL,
    FailureCause.DEPENDENCY: JobState.CANCELLED,
}
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)
_NO_OUTPUT = 53
"""Slurm's exit 0:53: the batch script's output file could not be opened."""
_BY = re.compile(r"CANCELLED by (\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How an attempt ended, by what (``None``: it has not, or it is done), and the sentences that this rests on."""

    state: JobState
    cause: FailureCause | None = None
    evidence: tuple[str, ...] = ()


def diagnose(
    attempt: Attempt,
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    log: str = "",
    *,
    cancelled: bool = False,
    user_id: int | None = None,
) -> Diagnosis:
    """Return what ended ``attempt``.

    ``status`` is the scheduler's last word, ``outcome`` the wrapper's and ``log`` the end of what the job wrote; each
    may be missing. ``cancelled`` says that its user took the job back; ``user_id`` is the user's number at the site.
    Nothing is concluded from silence: without a final word the state is what was said last. A scheduler that lags
    behind gives way to a wrapper that has seen the end.
    """
    if outcome is not None and outcome.never_released:
        cause = FailureCause.PLANE if attempt.withdrawn else FailureCause.TRANSIENT
        return Diagnosis(JobState.CANCELLED, cause, (outcome.reason,))
    status, forgotten = _before_it_was_forgotten(attempt, status, outcome)
    outcome, remarks = (outcome, forgotten) if forgotten else _believable(attempt, status, outcome)
    found = _found(attempt, status, outcome, log, cancelled=cancelled, user_id=user_id)
    return Diagnosis(found.state, found.cause, (*found.evidence, *remarks))


def _found(
    attempt: Attempt,
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    log: str,
    *,
    cancelled: bool,
    user_id: int | None,
) -> Diagnosis:
    ended = outcome is not None and outcome.state.final
    if status is None or status.state is JobState.UNKNOWN:
        if outcome is None or not ended:
            return Diagnosis(JobState.UNKNOWN, None, ("neither the scheduler nor the wrapper tells of an end",))
        status = SchedulerStatus(outcome.state, outcome.reason, exit_code=outcome.exit_code, signal=outcome.signal)
    elif not status.state.final:
        if outcome is None or not ended:
            return Diagnosis(status.state, None, (f"the scheduler still says {status.state.value}",))
        status = replace(status, state=outcome.state, exit_code=outcome.exit_code, signal=outcome.signal)
    left = _Left(attempt, status, outcome, _signs(attempt, status, outcome), read_signs(log, gpus=_gpus(attempt)))
    if left.is_done:
        return left.done()
    if status.state is JobState.FAILED:
        return left.failed()
    if status.state is JobState.CANCELLED:
        return left.cancelled(by_user=cancelled, user_id=user_id)
    return left.named()


@dataclass(frozen=True, slots=True)
class _Left:
    """What an ended attempt left: ``told`` are the signs in what scheduler and wrapper say, ``logged`` in the log."""

    attempt: Attempt
    status: SchedulerStatus
    outcome: JobOutcome | None
    told: list[FailureSign]
    logged: list[FailureSign]

    @property
    def is_done(self) -> bool:
        """Whether the command came to its own end with exit code 0.

        The wrapper saw that, whatever became of the rest of the job; but a job that FAILED or was OUT_OF_MEMORY may
        have failed in a part that the wrapper does not see.
        """
        if self.status.state is JobState.COMPLETED:
            return self.status.exit_code in (0, None)
        outcome = self.outcome
        done = outcome is not None and outcome.state is JobState.COMPLETED and outcome.exit_code in (0, None)
        return done and self.status.state not in (JobState.FAILED, JobState.OUT_OF_MEMORY)

    def done(self) -> Diagnosis:
        """Return COMPLETED, but where exit code 0 hides that memory ran out."""
        hidden = decisive_sign(sign for sign in (*self.told, *final_signs(self.logged)) if sign.cause in _MEMORY)
        if hidden is not None:
            return self._of(hidden.cause, f"the exit code is 0, but the last words are: {hidden.line}")
        if self.status.state is JobState.COMPLETED:
            return Diagnosis(JobState.COMPLETED, None, ("the command ended with exit code 0",))
        said = f"the command had ended with exit code 0; the scheduler's {self.status.state.value} came after it"
        return Diagnosis(JobState.COMPLETED, None, (said,))

    def named(self) -> Diagnosis:
        """Return the cause of a state that names it: TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED."""
        state, said = self.status.state, f"the scheduler says {self.status.state.value}{_because(self.status.reason)}"
        ran_out = decisive_sign(sign for sign in final_signs(self.logged) if sign.cause in _MEMORY)
        if state is JobState.OUT_OF_MEMORY:
            on_gpu = ran_out is not None and ran_out.cause is FailureCause.GPU_MEMORY
            if on_gpu and ran_out is not None and not any(sign.cause is FailureCause.HOST_MEMORY for sign in self.told):
                return self._of(FailureCause.GPU_MEMORY, said, f"the log ends with: {ran_out.line}")
            return self._of(FailureCause.HOST_MEMORY, said, *self._figures(FailureCause.HOST_MEMORY))
        if state is JobState.TIMEOUT:
            if ran_out is not None:
                return self._of(ran_out.cause, f"{said}, but it hung after: {ran_out.line}")
            return self._of(FailureCause.WALLTIME, said, *self._figures(FailureCause.WALLTIME))
        return self._of(FailureCause.NODE if state is JobState.NODE_FAIL else FailureCause.PREEMPTION, said)

    def failed(self) -> Diagnosis:
        """Return what lies behind FAILED: scheduler and wrapper first, then the log, then code and signal alone."""
        told = decisive_sign(self.told)
        if told is not None and told.cause in _STATE_OF:
            return self._of(told.cause, f"the job's row says FAILED, but: {told.line}", *self._figures(told.cause))
        logged = decisive_sign(self.logged)
        if logged is not None and logged.cause in _MEMORY:
            return self._of(logged.cause, f"the log says: {logged.line}", *self._figures(logged.cause))
        if self._signal() == signal.SIGKILL and self._near():
            return self._of(
                FailureCause.HOST_MEMORY,
                "it was ended by SIGKILL near its limit of memory",
                *self._figures(FailureCause.HOST_MEMORY),
            )
        sign = told or logged
        if sign is not None:
            return self._of(sign.cause, f"the {'job' if sign is told else 'log'} says: {sign.line}")
        return self._by_code()

    def cancelled(self, *, by_user: bool, user_id: int | None) -> Diagnosis:
        """Return who cancelled it, or what a cancellation stands for."""
        sign = decisive_sign(sign for sign in (*self.told, *final_signs(self.logged)) if sign.cause in _SCHEDULERS)
        if self.attempt.withdrawn:
            return self._of(FailureCause.PLANE, "the plane took it back")
        if by_user:
            return self._of(FailureCause.USER, "its user took it back")
        if sign is not None:
            return self._of(sign.cause, f"the scheduler says CANCELLED, but: {sign.line}")
        match = _BY.search(self.status.reason)
        if match is None:
            return self._of(FailureCause.USER, f"it was cancelled outside the plane{_because(self.status.reason)}")
        by = int(match[1])
        staff = by == 0 or (user_id is not None and by != user_id)
        who = "an administrator" if staff else "its user"
        return self._of(FailureCause.ADMINISTRATOR if staff else FailureCause.USER, f"{who} cancelled it (user {by})")

    def _by_code(self) -> Diagnosis:
        """Return what an exit code and a signal tell by themselves."""
        code, number = self._exit_code(), self._signal()
        if code in (126, 127):
            what = "not found" if code == 127 else "not executable"
            return self._of(FailureCause.PROGRAM, f"exit code {code}: the command, or one that it calls, is {what}")
        if number == _NO_OUTPUT:
            return self._of(
                FailureCause.PROGRAM, "its output file could not be opened: a folder is missing or not writable"
            )
        if number in _OWN_SIGNALS:
            return self._of(FailureCause.PROGRAM, f"the program ended itself by {signal.Signals(number).name}")
        if number == signal.SIGBUS:
            return self._of(FailureCause.TRANSIENT, "SIGBUS: memory behind a file or a device was not there")
        if number:
            return self._of(FailureCause.UNKNOWN, f"it was ended by signal {number}, and nothing tells by whom")
        return self._of(FailureCause.UNKNOWN, f"it ended with exit code {code}, and nothing tells why")

    def _of(self, cause: FailureCause, *evidence: str) -> Diagnosis:
        state = _STATE_OF.get(cause, self.status.state)
        return Diagnosis(JobState.FAILED if state is JobState.COMPLETED else state, cause, evidence)

    def _exit_code(self) -> int | None:
        return self.status.exit_code or (self.outcome.exit_code if self.outcome else None)

    def _signal(self) -> int | None:
        """Return the number of the signal that ended it, also where a shell made an exit code of it."""
        code = self.status.exit_code or 0
        told = self.status.signal or (self.outcome.signal if self.outcome else None)
        return told or (code - 128 if 128 < code <= 128 + 64 else None)

    def _near(self) -> bool:
        limit, seen = self.attempt.resources.memory_bytes_per_node, memory_seen(self.attempt, self.status, self.outcome)
        return limit is not None and seen is not None and seen >= NEAR * limit

    def _figures(self, cause: FailureCause) -> tuple[str, ...]:
        """Return the sentence that holds what was used against what was asked for."""
        if cause is FailureCause.WALLTIME:
            limit_s = self.attempt.walltime_s or self.attempt.resources.walltime_s
            return (f"its limit was {format_duration(limit_s)}",) if limit_s else ()
        seen, limit = memory_seen(self.attempt, self.status, self.outcome), self.attempt.resources.memory_bytes_per_node
        if cause is not FailureCause.HOST_MEMORY or not seen:
            return ()
        return (f"{format_bytes(seen)} were seen{f' of {format_bytes(limit)} asked for' if limit else ''}",)


def memory_seen(attempt: Attempt, status: SchedulerStatus | None, outcome: JobOutcome | None) -> float | None:
    """Return the most memory that was seen on one node, in bytes; a lower bound, for it was sampled.

    The accounting names the largest task only; the tasks of a node are taken to be alike.
    """
    tasks = attempt.resources.tasks_per_node
    accounted = status.memory_bytes * tasks if status is not None and status.memory_bytes else None
    sampled = outcome.measured.get("host_memory_bytes") if outcome is not None else None
    seen = [value for value in (accounted, sampled.value if sampled is not None else None) if value]
    return max(seen, default=None)


_CUT = {JobState.OUT_OF_MEMORY: FailureCause.HOST_MEMORY, JobState.TIMEOUT: FailureCause.WALLTIME}
_MEMORY = (FailureCause.GPU_MEMORY, FailureCause.HOST_MEMORY)
_SCHEDULERS = (
    FailureCause.WALLTIME,
    FailureCause.PREEMPTION,
    FailureCause.NODE,
    FailureCause.DEPENDENCY,
    FailureCause.HOST_MEMORY,
)


def _signs(attempt: Attempt, status: SchedulerStatus, outcome: JobOutcome | None) -> list[FailureSign]:
    """Return the signs in what the scheduler and the wrapper say."""
    said = [status.reason, *status.evidence, *([outcome.reason] if outcome is not None else [])]
    if status.signal == 125:
        said.append("0:125, Slurm's mark of a step that ran out of memory")
    found = read_signs("\n".join(said), gpus=_gpus(attempt))
    cause = _CUT.get(outcome.state) if outcome is not None else None
    if outcome is not None and cause is not None:
        found.append(FailureSign(cause, f"the wrapper says {outcome.state.value}{_because(outcome.reason)}"))
    return found


def _before_it_was_forgotten(
    attempt: Attempt, status: SchedulerStatus | None, outcome: JobOutcome | None
) -> tuple[SchedulerStatus | None, tuple[str, ...]]:
    """Return the end that a command had come to by itself, where its scheduler has forgotten of it, and why that is so.

    A controller that was killed forgets its last seconds. What it had started in them it starts again, and the command
    is not run again; what it had ended in them it looks for in vain, and takes its node for lost.
    """
    if status is None or outcome is None or not _own_end(outcome):
        return status, ()
    began_s, ended_s = (epoch_s(one) if one else None for one in (outcome.started_at, outcome.ended_at))
    started_s = status.started_s
    if started_s is not None and (
        (ended_s is not None and ended_s < started_s) or (began_s is not None and began_s < started_s - SKEW_S)
    ):
        why = "its scheduler had forgotten that it ran, and started it once more in vain"
    elif status.state is JobState.NODE_FAIL and attempt.resources.nodes == 1:
        why = "the command had ended by itself before its scheduler took the node for lost"
    else:
        return status, ()
    return SchedulerStatus(outcome.state, exit_code=outcome.exit_code, node=status.node), (why,)


def _own_end(outcome: JobOutcome) -> bool:
    """Whether a command ended with an exit code of its own, and by nothing else."""
    by_itself = outcome.signal is None and (outcome.exit_code or 0) < 128  # more is how shells tell of a signal
    return by_itself and outcome.state in (JobState.COMPLETED, JobState.FAILED)


def _believable(
    attempt: Attempt, status: SchedulerStatus | None, outcome: JobOutcome | None
) -> tuple[JobOutcome | None, tuple[str, ...]]:
    """Return the outcome if it can be of this attempt and true; else ``None``, with the reason."""
    if outcome is None or status is None:
        return outcome, ()
    began_s = datetime.fromisoformat(outcome.started_at).timestamp() if outcome.started_at else None
    if began_s is not None and status.started_s is not None and began_s < status.started_s - SKEW_S:
        return None, ("the wrapper's outcome is of an earlier start and is passed over",)
    limit_s = attempt.walltime_s or attempt.resources.walltime_s
    ran_s = status.elapsed_s if outcome.state is JobState.TIMEOUT else None
    if ran_s is not None and limit_s and ran_s < EARLY * limit_s:
        return None, (f"the wrapper speaks of the limit after {format_duration(ran_s)} and is not believed",)
    return outcome, ()


def _gpus(attempt: Attempt) -> bool:
    return attempt.resources.gpus_per_node > 0


def _because(reason: str) -> str:
    return f" ({reason})" if reason and reason != "None" else ""
