"""Find out why an attempt ended, from the scheduler's record, the wrapper's outcome and the log."""

import signal
from dataclasses import replace

from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.plane import Attempt, FailureCause
from leadline.core.units import MINUTE_S, format_bytes, format_duration
from leadline.execution.clock import epoch_s
from leadline.execution.plane.failure_patterns import FailureSign, decisive_sign, final_signs, read_signs
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import STARTED_BEFORE, JobOutcome

NEAR = 0.85
"""Share of the requested memory from which a SIGKILL counts as out of memory. Samples miss the last allocations."""
SKEW_S = 60.0
"""Largest expected difference between the clocks of a node and its scheduler."""
EARLY = 0.9
"""A wrapper that reports the limit before this share of it has passed is ignored."""

_STATE_OF = {
    FailureCause.HOST_MEMORY: JobState.OUT_OF_MEMORY,
    FailureCause.GPU_MEMORY: JobState.OUT_OF_MEMORY,
    FailureCause.WALLTIME: JobState.TIMEOUT,
    FailureCause.PREEMPTION: JobState.PREEMPTED,
    FailureCause.NODE: JobState.NODE_FAIL,
    FailureCause.DEPENDENCY: JobState.CANCELLED,
}
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)
_BY_ROOT = "by 0"
"""Who cancelled a job, in Slurm's accounting."""
LAUNCH_S = 60.0
"""A busy node launches a job, or refuses to, within this time."""
_NO_OUTPUT = 53
"""Slurm's exit 0:53: the output file of the batch script could not be opened."""


class Diagnosis(Frozen):
    """Final state of an attempt, the cause (None if it runs or completed), and the evidence as sentences."""

    state: JobState
    cause: FailureCause | None = None
    evidence: tuple[str, ...] = ()


def diagnose(
    attempt: Attempt,
    status: SchedulerStatus | None,
    outcome: JobOutcome | None,
    log: str | None = "",
    *,
    cancelled: bool = False,
) -> Diagnosis:
    """Return why ``attempt`` ended.

    Without a final word from anyone, the state is the last one reported. If the scheduler lags behind, the wrapper's
    outcome counts. ``log`` is the end of the job's output, and None without an output file; ``cancelled`` is true if
    the user cancelled the job.
    """
    # Its command never ran, so no scheduler state and no log can add anything.
    if outcome is not None and outcome.never_released:
        cause = FailureCause.PLANE if attempt.withdrawn else FailureCause.TRANSIENT
        return Diagnosis(JobState.CANCELLED, cause, (outcome.reason,))
    status, forgotten = _end_before_restart(attempt, status or SchedulerStatus(JobState.UNKNOWN), outcome)
    outcome, remarks = (outcome, forgotten) if forgotten else _believable(attempt, status, outcome)
    diagnosis = _diagnose_believed(attempt, status, outcome, log, cancelled=cancelled)
    return replace(diagnosis, evidence=(*diagnosis.evidence, *remarks))


def _diagnose_believed(
    attempt: Attempt, status: SchedulerStatus, outcome: JobOutcome | None, log: str | None, *, cancelled: bool
) -> Diagnosis:
    is_accounted = status.state.final
    if not is_accounted:
        is_unknown = status.state is JobState.UNKNOWN
        if outcome is None or not outcome.state.final:
            silent = "neither the scheduler nor the wrapper reported an end"
            why = silent if is_unknown else f"the scheduler still says {status.state.value}"
            return Diagnosis(status.state, None, (why,))
        reported = SchedulerStatus(outcome.state, outcome.reason) if is_unknown else status
        status = replace(reported, state=outcome.state, exit_code=outcome.exit_code, signal=outcome.signal)
    gpus = attempt.resources.gpus_per_node > 0
    logged = read_signs(log or "", gpus=gpus)
    # A second start of the attempt, which ended without effect, writes into the same log.
    if outcome is not None and outcome.state.final:
        logged = [sign for sign in logged if STARTED_BEFORE not in sign.line]
    began = log is not None or outcome is not None
    signs = _signs(status, outcome, gpus=gpus)
    remains = _Remains(attempt, status, outcome, signs, logged, began=began, is_accounted=is_accounted)
    if settled := remains.requeue() or (remains.done() if remains.is_done else None):
        return settled
    if status.state is JobState.FAILED:
        return remains.failed()
    return remains.cancelled(by_user=cancelled) if status.state is JobState.CANCELLED else remains.named()


class _Remains(Frozen):
    """All that an ended attempt left behind."""

    attempt: Attempt
    status: SchedulerStatus
    outcome: JobOutcome | None
    reported: list[FailureSign]  # in the texts of scheduler and wrapper
    logged: list[FailureSign]
    began: bool  # True if an output file or an outcome shows that its script ran
    is_accounted: bool  # False if only the wrapper reported its end

    @property
    def is_done(self) -> bool:
        """True if the command ended with exit code 0, and not on a signal.

        A job that is FAILED or OUT_OF_MEMORY may have failed in a part that the wrapper does not see.
        """
        if self.status.state is JobState.COMPLETED:
            return self.status.exit_code in (0, None)
        outcome = self.outcome
        done = outcome is not None and outcome.state is JobState.COMPLETED and _ended_by_itself(outcome)
        return done and self.status.state not in (JobState.FAILED, JobState.OUT_OF_MEMORY)

    def requeue(self) -> Diagnosis | None:
        """Return the cause of a run that its site ended and put back into the queue; None for another end.

        The scheduler at most reports how the second start ended, which ran nothing. A job that was cancelled while it
        waited for that start stays cancelled.
        """
        sign = next((sign for sign in (*self.reported, *self.logged) if sign.cause is FailureCause.REQUEUE), None)
        has_own_end = self.outcome is not None and _ended_by_itself(self.outcome)
        restarted = not self.is_accounted or self.status.state in (JobState.FAILED, JobState.COMPLETED)
        if sign is None or has_own_end or self.attempt.withdrawn or not restarted:
            return None
        return Diagnosis(JobState.CANCELLED, FailureCause.REQUEUE, (f"its site requeued it: {sign.line}",))

    def done(self) -> Diagnosis:
        """Return COMPLETED, unless exit code 0 hides that memory ran out."""
        # Shell scripts often end with 0 although a command in them failed.
        hidden = decisive_sign(sign for sign in (*self.reported, *final_signs(self.logged)) if sign.cause in _MEMORY)
        if hidden is not None:
            return self._of(hidden.cause, f"the exit code is 0, but the log ends with: {hidden.line}")
        if self.status.state is JobState.COMPLETED:
            return Diagnosis(JobState.COMPLETED, None, ("the command ended with exit code 0",))
        sentence = f"the command ended with exit code 0 before the scheduler reported {self.status.state.value}"
        return Diagnosis(JobState.COMPLETED, None, (sentence,))

    def named(self) -> Diagnosis:
        """Return the cause of a state that names it: TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, PREEMPTED."""
        state = self.status.state
        sentence = f"the scheduler says {state.value}{_because(self.status.reason)}"
        ran_out = decisive_sign(sign for sign in final_signs(self.logged) if sign.cause in _MEMORY)
        if state is JobState.OUT_OF_MEMORY:
            on_host = any(sign.cause is FailureCause.HOST_MEMORY for sign in self.reported)
            if ran_out is not None and ran_out.cause is FailureCause.GPU_MEMORY and not on_host:
                return self._of(FailureCause.GPU_MEMORY, sentence, f"the log ends with: {ran_out.line}")
            return self._of_limit(FailureCause.HOST_MEMORY, sentence)
        # A process group often hangs until the limit after one rank ran out of memory.
        if state is JobState.TIMEOUT:
            if ran_out is not None:
                return self._of(ran_out.cause, f"{sentence}, but it hung after: {ran_out.line}")
            return self._of_limit(FailureCause.WALLTIME, sentence)
        other = next((sign for sign in self.reported if sign.cause in _NO_NODE), None)
        if state is JobState.NODE_FAIL and other is not None:
            return Diagnosis(JobState.CANCELLED, other.cause, (other.line,))
        return self._of(FailureCause.NODE if state is JobState.NODE_FAIL else FailureCause.PREEMPTION, sentence)

    def failed(self) -> Diagnosis:
        """Return the cause behind FAILED: from scheduler and wrapper, then the log, then exit code and signal."""
        reported = decisive_sign(self.reported)
        if reported is not None and reported.cause in _STATE_OF:
            return self._of_limit(reported.cause, f"the job's row says FAILED, but: {reported.line}")
        logged = decisive_sign(self.logged)
        if logged is not None and logged.cause in _MEMORY:
            return self._of_limit(logged.cause, f"the log says: {logged.line}")
        # The kernel's killer leaves no message in the job's own output.
        limit_bytes, peak_bytes = self.attempt.resources.memory_bytes_per_node, self._peak_memory_bytes()
        near = limit_bytes is not None and peak_bytes is not None and peak_bytes >= NEAR * limit_bytes
        if self._signal() == signal.SIGKILL and near:
            return self._of_limit(FailureCause.HOST_MEMORY, "it was killed by SIGKILL near its memory limit")
        sign = reported or logged
        if sign is not None:
            return self._of(sign.cause, f"the {'job' if sign is reported else 'log'} says: {sign.line}")
        if self.status.exit_code == 1 and self._unlaunched():
            return self._of(FailureCause.TRANSIENT, "its node did not launch it, and the scheduler ended it")
        return self._by_code()

    def cancelled(self, *, by_user: bool) -> Diagnosis:
        """Return who cancelled the attempt, or the cause that a cancellation hides."""
        sign = decisive_sign(sign for sign in (*self.reported, *final_signs(self.logged)) if sign.cause in _SCHEDULERS)
        if self.attempt.withdrawn:
            return self._of(FailureCause.PLANE, "the plane withdrew it")
        if by_user:
            return self._of(FailureCause.USER, "its user cancelled it")
        if sign is not None:
            return self._of(sign.cause, f"the scheduler says CANCELLED, but: {sign.line}")
        # For jobs of root, this looks like the user's own order.
        by_root, at_once = self.status.reason == _BY_ROOT, (self.status.elapsed_s or 0.0) <= 1.0
        if (by_root or (at_once and not self.status.by_owner)) and self._unlaunched():
            return self._of(FailureCause.TRANSIENT, "its node did not launch it, and the scheduler cancelled it")
        cause, cancelled = _CANCELLED_BY[self.status.by_owner]
        return self._of(cause, f"{cancelled}{_because(self.status.reason)}")

    def _unlaunched(self) -> bool:
        """True if it ended soon after it got a node, and nothing shows that its script ran there.

        Slurm cancels, as root, a job that a node cannot launch, or ends it with exit code 1.
        """
        elapsed_s = self.status.elapsed_s
        soon = self.status.started_s is not None and elapsed_s is not None and elapsed_s <= LAUNCH_S
        return soon and not self.began

    def _by_code(self) -> Diagnosis:
        """Return the cause that exit code and signal show."""
        code, number = self.status.exit_code or (self.outcome.exit_code if self.outcome else None), self._signal()
        if code in (126, 127):
            problem = "not found" if code == 127 else "not executable"
            return self._of(FailureCause.PROGRAM, f"exit code {code}: a command is {problem}")
        if number == _NO_OUTPUT:
            problem = "its output file could not be opened: check that the folder exists and is writable"
            return self._of(FailureCause.PROGRAM, problem)
        if number in _OWN_SIGNALS:
            return self._of(FailureCause.PROGRAM, f"the program ended with {signal.Signals(number).name}")
        if number == signal.SIGBUS:
            return self._of(FailureCause.TRANSIENT, "SIGBUS: memory mapped to a file or device was missing")
        if number:
            return self._of(FailureCause.UNKNOWN, f"it was ended by signal {number} from an unknown sender")
        return self._of(FailureCause.UNKNOWN, f"it ended with exit code {code} for an unknown reason")

    def _of(self, cause: FailureCause, *evidence: str) -> Diagnosis:
        state = _STATE_OF.get(cause, self.status.state)
        return Diagnosis(JobState.FAILED if state is JobState.COMPLETED else state, cause, evidence)

    def _signal(self) -> int | None:
        """Return the number of the ending signal, also if a shell turned it into an exit code."""
        code = self.status.exit_code or 0
        number = self.status.signal or (self.outcome.signal if self.outcome else None)
        return number or (code - 128 if 128 < code <= 128 + 64 else None)

    def _of_limit(self, cause: FailureCause, sentence: str) -> Diagnosis:
        """Return the diagnosis, with a sentence that compares the used time or memory with the request."""
        request, evidence = self.attempt.resources, [sentence]
        if cause is FailureCause.WALLTIME and (limit_s := last_limit_s(self.attempt, self.status)):
            evidence.append(f"its limit was {format_duration(limit_s)}")
            if request.walltime_s and limit_s < request.walltime_s:
                evidence[-1] += f", lowered from {format_duration(request.walltime_s)} after the submission"
        if cause is FailureCause.HOST_MEMORY and (peak_bytes := self._peak_memory_bytes()):
            limit = request.memory_bytes_per_node
            requested = f" of the requested {format_bytes(limit)}" if limit else ""
            evidence.append(f"{format_bytes(peak_bytes)} were used{requested}")
        return self._of(cause, *evidence)

    def _peak_memory_bytes(self) -> float | None:
        """Return the highest memory measured on one node, in bytes.

        It is a lower bound, because memory is sampled. The accounting reports only the largest task, so all tasks of a
        node are assumed to be equal.
        """
        accounted = (self.status.memory_bytes or 0) * self.attempt.resources.tasks_per_node
        sampled = self.outcome.measured.get("host_memory_bytes") if self.outcome is not None else None
        return max(accounted, sampled.value if sampled is not None else 0.0) or None


_CUT = {JobState.OUT_OF_MEMORY: FailureCause.HOST_MEMORY, JobState.TIMEOUT: FailureCause.WALLTIME}
_MEMORY = (FailureCause.GPU_MEMORY, FailureCause.HOST_MEMORY)
_CANCELLED_BY = {
    True: (FailureCause.USER, "its user cancelled it"),
    False: (FailureCause.ADMINISTRATOR, "an administrator cancelled it"),
    None: (FailureCause.UNKNOWN, "someone cancelled it outside the plane"),
}
_NO_NODE = (FailureCause.ADMINISTRATOR, FailureCause.TRANSIENT)
"""Reported causes of a NODE_FAIL that is not the node's."""
_SCHEDULERS = _STATE_OF.keys() - {FailureCause.GPU_MEMORY}


def _signs(status: SchedulerStatus, outcome: JobOutcome | None, *, gpus: bool) -> list[FailureSign]:
    """Return the failure signs in the texts of scheduler and wrapper."""
    texts = [status.reason, *status.evidence, *([outcome.reason] if outcome is not None else [])]
    if status.signal == 125:
        texts.append("0:125, Slurm's mark of a step that ran out of memory")
    signs = read_signs("\n".join(texts), gpus=gpus)
    if outcome is not None and outcome.state in _CUT:
        sentence = f"the wrapper says {outcome.state.value}{_because(outcome.reason)}"
        signs.append(FailureSign(_CUT[outcome.state], sentence))
    return signs


def _end_before_restart(
    attempt: Attempt, status: SchedulerStatus, outcome: JobOutcome | None
) -> tuple[SchedulerStatus, tuple[str, ...]]:
    """Return the true end of a command that its scheduler has forgotten, and a remark about it.

    A killed controller forgets its last seconds. Jobs that it started in them are started again, but the wrapper
    refuses to run the command twice. Jobs that ended in them are missing later, and their node is said to have failed.
    """
    if outcome is None or not _ended_by_itself(outcome):
        return status, ()
    began_s, ended_s = (epoch_s(moment) if moment else None for moment in (outcome.started_at, outcome.ended_at))
    started_s = status.started_s
    if started_s is not None and (
        (ended_s is not None and ended_s < started_s) or (began_s is not None and began_s < started_s - SKEW_S)
    ):
        remark = "its scheduler forgot that it ran and started it again without effect"
    elif status.state is JobState.NODE_FAIL and attempt.resources.nodes == 1:
        remark = "the command ended by itself before its scheduler reported the node as failed"
    else:
        return status, ()
    return SchedulerStatus(outcome.state, exit_code=outcome.exit_code, node=status.node), (remark,)


def _ended_by_itself(outcome: JobOutcome) -> bool:
    """True if the command ended with its own exit code."""
    # Shells report a signal as 128 plus its number.
    by_itself = outcome.signal is None and (outcome.exit_code or 0) < 128
    return by_itself and outcome.state in (JobState.COMPLETED, JobState.FAILED)


def _believable(
    attempt: Attempt, status: SchedulerStatus, outcome: JobOutcome | None
) -> tuple[JobOutcome | None, tuple[str, ...]]:
    """Return the outcome if it can belong to this attempt; otherwise None and the reason."""
    if outcome is None:
        return None, ()
    began_s = epoch_s(outcome.started_at) if outcome.started_at else None
    if began_s is not None and status.started_s is not None and began_s < status.started_s - SKEW_S:
        return None, ("the wrapper's outcome belongs to an earlier start and is ignored",)
    limit_s = last_limit_s(attempt, status)
    ran_s = status.elapsed_s if outcome.state is JobState.TIMEOUT else None
    if ran_s is not None and limit_s and ran_s < EARLY * limit_s:
        return None, (f"the wrapper reported the limit after only {format_duration(ran_s)} and is ignored",)
    return outcome, ()


def last_limit_s(attempt: Attempt, status: SchedulerStatus) -> float | None:
    """Return the limit that counted: the last one reported, or the run time of a job that was ended well before it."""
    limit_s, ran_s = status.walltime_s or attempt.walltime_s or attempt.resources.walltime_s, status.elapsed_s
    was_lowered = status.state is JobState.TIMEOUT and limit_s and ran_s and ran_s < limit_s - MINUTE_S
    return ran_s if was_lowered else limit_s


def _because(reason: str) -> str:
    return f" ({reason})" if reason and reason != "None" else ""
