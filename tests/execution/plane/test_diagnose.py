"""What ended an attempt: every combination of a scheduler, a wrapper and a log that say different things."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.jobs import JobState, ResourceSpec
from leadline.core.plane import Attempt, FailureCause, Place
from leadline.core.runs import Measurement
from leadline.core.units import GIB
from leadline.execution.plane.diagnose import diagnose, last_limit_s
from leadline.execution.plane.failure_patterns import FINAL_LINES, read_signs
from leadline.execution.plane.watcher import FORGOTTEN
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, JobOutcome

STARTED = "2026-01-05T10:00:00+00:00"
STARTED_S = 1767607200.0

TRACE = "Traceback (most recent call last):\n  File 'train.py', line 3, in <module>\n"
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
OOM_KILL = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed"
ELASTIC = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"


def attempt(gpus=1, memory=8 * GIB, walltime=3600.0, **more):
    asked = ResourceSpec(gpus_per_node=gpus, memory_bytes_per_node=memory, walltime_s=walltime)
    return Attempt("k-1", "k", 1, Place("here"), asked, **more)


def said(state, **more):
    return SchedulerStatus(JobState[state], started_s=STARTED_S, **more)


def wrote(state, code=None, memory=None, started=STARTED, **more):
    measured = {"host_memory_bytes": Measurement(memory, "bytes", "sampled")} if memory else {}
    return JobOutcome(JobState[state], started, "n1", ("true",), exit_code=code, measured=measured, **more)


S = JobState
C = FailureCause
REQUEUED = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T11:20:53 DUE TO JOB REQUEUE ***"
TABLE = {
    # what the scheduler says, what the wrapper wrote, the log → state and cause
    "a clean end": (said("COMPLETED", exit_code=0), wrote("COMPLETED", 0), "", S.COMPLETED, None),
    "a clean end without a wrapper": (said("COMPLETED", exit_code=0), None, "done\n", S.COMPLETED, None),
    "still running": (said("RUNNING"), wrote("RUNNING"), CUDA, S.RUNNING, None),
    "an accounting that lags": (said("RUNNING"), wrote("COMPLETED", 0), "", S.COMPLETED, None),
    "an accounting that lags behind a failure": (said("PENDING"), wrote("FAILED", 127), "", S.FAILED, C.PROGRAM),
    "silence": (None, None, "", S.UNKNOWN, None),
    "silence and an interim outcome": (None, wrote("RUNNING"), CUDA, S.UNKNOWN, None),
    "no accounting, a final outcome": (None, wrote("COMPLETED", 0), "", S.COMPLETED, None),
    "no accounting, a failed outcome": (None, wrote("FAILED", 1), TRACE + "KeyError: 3", S.FAILED, C.PROGRAM),
    "a word unknown to us, a final outcome": (said("UNKNOWN"), wrote("FAILED", 127), "", S.FAILED, C.PROGRAM),
    # memory of the host
    "the row says so": (said("OUT_OF_MEMORY", exit_code=0, signal=125), wrote("RUNNING"), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "a step of srun ran out": (said("FAILED", exit_code=1, evidence=("step 7.0 OUT_OF_MEMORY 0:125",)), wrote("FAILED", 1), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "derived exit code 0:125": (said("FAILED", exit_code=1, evidence=("DerivedExitCode 0:125",)), None, "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "signal 125": (said("FAILED", signal=125), None, "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "the wrapper's limit": (said("FAILED", exit_code=143), wrote("OUT_OF_MEMORY", signal=15, reason="used 9 GiB"), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "killed near the limit": (said("FAILED", signal=9, memory_bytes=int(7.5 * GIB)), wrote("RUNNING"), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "killed near the limit, by the shell's code": (said("FAILED", exit_code=137), wrote("FAILED", signal=9, memory=7.5 * GIB), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "without cgroups": (said("FAILED", signal=9), None, "slurmstepd: error: Step 7.0 exceeded memory limit (9 > 8), being killed", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "job memory limit": (said("FAILED", exit_code=1), None, "slurmstepd: error: Exceeded job memory limit", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "the kernel's killer in the log": (said("FAILED", exit_code=1), wrote("FAILED", 1), OOM_KILL, S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "Python's MemoryError": (said("FAILED", exit_code=1), wrote("FAILED", 1), TRACE + "MemoryError", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "numpy's": (said("FAILED", exit_code=1), None, TRACE + "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 GiB", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "C++": (said("FAILED", signal=6), None, "terminate called after throwing an instance of 'std::bad_alloc'", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "torch on the host": (said("FAILED", exit_code=1), None, TRACE + "RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory: you tried", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "a killed loader": (said("FAILED", exit_code=1), None, TRACE + "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. ", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "PBS": (said("FAILED", exit_code=271), None, "=>> PBS: job killed: mem 9437184kb exceeded limit 8388608kb", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "fork fails": (said("FAILED", exit_code=1), None, "OSError: [Errno 12] Cannot allocate memory", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    # memory of a GPU
    "torch on a GPU": (said("FAILED", exit_code=1), wrote("FAILED", 1), TRACE + CUDA, S.OUT_OF_MEMORY, C.GPU_MEMORY),
    "one rank's GPU, the others' network": (said("FAILED", exit_code=1), None, TRACE + CUDA + "\n" + TRACE + "RuntimeError: Connection closed by peer\n" + TRACE + ELASTIC, S.OUT_OF_MEMORY, C.GPU_MEMORY),
    "cuBLAS": (said("FAILED", exit_code=1), None, TRACE + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", S.OUT_OF_MEMORY, C.GPU_MEMORY),
    "XLA": (said("FAILED", exit_code=1), None, "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.", S.OUT_OF_MEMORY, C.GPU_MEMORY),
    "a GPU's, hung up to the limit": (said("TIMEOUT"), wrote("TIMEOUT", signal=15), "rank 3: " + CUDA, S.OUT_OF_MEMORY, C.GPU_MEMORY),
    # exit code 0 that hides it
    "exit code 0, the wrapper saw it": (said("COMPLETED", exit_code=0), wrote("OUT_OF_MEMORY", 0, reason="killed a process"), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "exit code 0, a step ran out": (said("COMPLETED", exit_code=0, evidence=("step 7.0 OUT_OF_MEMORY",)), wrote("COMPLETED", 0), "", S.OUT_OF_MEMORY, C.HOST_MEMORY),
    "exit code 0, last words of a GPU": (said("COMPLETED", exit_code=0), wrote("COMPLETED", 0), TRACE + CUDA + "\nfinished\n", S.OUT_OF_MEMORY, C.GPU_MEMORY),
    "got over it with a smaller batch": (said("COMPLETED", exit_code=0), wrote("COMPLETED", 0), CUDA + "\n" + "step 1\n" * (FINAL_LINES + 1), S.COMPLETED, None),
    # time
    "the limit": (said("TIMEOUT", elapsed_s=3610), wrote("RUNNING"), "", S.TIMEOUT, C.WALLTIME),
    "the limit, CANCELLED in the row": (said("CANCELLED"), wrote("RUNNING"), "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***", S.TIMEOUT, C.WALLTIME),
    "the limit, by the wrapper's clock": (said("CANCELLED", elapsed_s=3600), wrote("TIMEOUT", signal=15, reason="ended by SIGTERM"), "", S.TIMEOUT, C.WALLTIME),
    "the wrapper's own limit": (said("FAILED", exit_code=143, elapsed_s=3605), wrote("TIMEOUT", signal=15), "", S.TIMEOUT, C.WALLTIME),
    "a wrapper that speaks of the limit too early": (said("FAILED", exit_code=1, elapsed_s=60), wrote("TIMEOUT", signal=15), "", S.FAILED, C.UNKNOWN),
    "done just before the limit": (said("TIMEOUT"), wrote("COMPLETED", 0), "", S.COMPLETED, None),
    "done, and started once more": (said("TIMEOUT"), wrote("COMPLETED", 0, started="2026-01-05T08:00:00+00:00"), "", S.COMPLETED, None),
    "failed, and started once more": (said("CANCELLED", reason="by 0"), wrote("FAILED", 3, started="2026-01-05T08:00:00+00:00"), "", S.FAILED, C.UNKNOWN),
    "failed, and its node was lost later": (said("NODE_FAIL"), wrote("FAILED", 3), "", S.FAILED, C.UNKNOWN),
    "done, and its node was lost later": (said("NODE_FAIL"), wrote("COMPLETED", 0), "", S.COMPLETED, None),
    "failed for its node, which was lost": (said("NODE_FAIL"), wrote("FAILED", 1), "OSError: [Errno 5] Input/output error", S.FAILED, C.TRANSIENT),
    "ended by a signal in an earlier start": (said("TIMEOUT"), wrote("FAILED", signal=15, started="2026-01-05T08:00:00+00:00"), "", S.TIMEOUT, C.WALLTIME),
    # the site
    "the node": (said("NODE_FAIL"), wrote("RUNNING"), "", S.NODE_FAIL, C.NODE),
    "the node, after the end": (said("NODE_FAIL"), wrote("COMPLETED", 0), "", S.COMPLETED, None),
    "the node, FAILED in the row": (said("FAILED", reason="NodeDown"), None, "", S.NODE_FAIL, C.NODE),
    "the launch": (said("FAILED", reason="JobLaunchFailure"), None, "", S.NODE_FAIL, C.NODE),
    "a GPU with broken memory": (said("FAILED", exit_code=1), None, TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered", S.NODE_FAIL, C.NODE),
    "preempted": (said("PREEMPTED"), wrote("CANCELLED", signal=15), "", S.PREEMPTED, C.PREEMPTION),
    "preempted, CANCELLED in the row": (said("CANCELLED"), None, "*** JOB 7 CANCELLED AT 2026 DUE TO PREEMPTION ***", S.PREEMPTED, C.PREEMPTION),
    "a dependency": (said("CANCELLED", reason="DependencyNeverSatisfied"), None, "", S.CANCELLED, C.DEPENDENCY),
    # who cancelled
    "Slurm, whose node refused to launch it": (said("CANCELLED", elapsed_s=0.0), None, None, S.CANCELLED, C.TRANSIENT),
    "a busy node that refused to launch it": (said("CANCELLED", reason="by 0", by_owner=False, elapsed_s=20.0), None, None, S.CANCELLED, C.TRANSIENT),
    "a node that refused to launch a job of root": (said("CANCELLED", reason="by 0", by_owner=True, elapsed_s=0.0), None, None, S.CANCELLED, C.TRANSIENT),
    "a node that refused to launch it, FAILED in the row": (said("FAILED", exit_code=1, elapsed_s=2.0), None, None, S.FAILED, C.TRANSIENT),
    "exit code 1 of a silent command": (said("FAILED", exit_code=1, elapsed_s=2.0), None, "", S.FAILED, C.UNKNOWN),
    "exit code 1 without a log after a long run": (said("FAILED", exit_code=1, elapsed_s=600.0), None, None, S.FAILED, C.UNKNOWN),
    "root, after a silent command began": (said("CANCELLED", reason="by 0", by_owner=False, elapsed_s=1.0), None, "", S.CANCELLED, C.ADMINISTRATOR),
    "root, long after the node was given": (said("CANCELLED", reason="by 0", by_owner=False, elapsed_s=600.0), None, None, S.CANCELLED, C.ADMINISTRATOR),
    "an administrator in its first second": (said("CANCELLED", reason="by 0", by_owner=False, elapsed_s=1.0), wrote("RUNNING"), "", S.CANCELLED, C.ADMINISTRATOR),
    "the user in its first second": (said("CANCELLED", reason="by 1000", by_owner=True, elapsed_s=0.0), None, None, S.CANCELLED, C.USER),
    "someone before its start": (said("CANCELLED"), None, "", S.CANCELLED, C.UNKNOWN),
    "root": (said("CANCELLED", reason="by 0", by_owner=False), wrote("CANCELLED", signal=15), "", S.CANCELLED, C.ADMINISTRATOR),
    "the user at the site": (said("CANCELLED", reason="by 1000", by_owner=True), None, "", S.CANCELLED, C.USER),
    "nobody is named": (said("CANCELLED"), None, "", S.CANCELLED, C.UNKNOWN),
    # put back into the queue; the second start ran nothing
    "requeued": (said("FAILED", exit_code=143), wrote("CANCELLED", signal=15, started="2026-01-05T08:00:00+00:00"), REQUEUED, S.CANCELLED, C.REQUEUE),
    "requeued, by its earlier row": (said("FAILED", exit_code=125, evidence=("its run on n1 was REQUEUED",)), wrote("RUNNING"), "", S.CANCELLED, C.REQUEUE),
    "requeued, and its second start is in no record": (said("PENDING"), wrote("CANCELLED", 143), REQUEUED, S.CANCELLED, C.REQUEUE),
    "requeued, while the accounting is down": (None, wrote("CANCELLED", 143), REQUEUED, S.CANCELLED, C.REQUEUE),
    "requeued, with exit code 0 on the signal": (said("COMPLETED", exit_code=0), wrote("CANCELLED", 0), REQUEUED, S.CANCELLED, C.REQUEUE),
    "requeued after its end": (said("COMPLETED", exit_code=0, evidence=("its run on n1 was REQUEUED",)), wrote("COMPLETED", 0, memory=GIB), "", S.COMPLETED, None),
    "requeued and not measured": (said("COMPLETED", exit_code=0), wrote("COMPLETED", 0, signal=15), REQUEUED, S.CANCELLED, C.REQUEUE),
    "requeued a moment before its end, and not measured": (said("COMPLETED", exit_code=0), wrote("COMPLETED", 0), REQUEUED, S.COMPLETED, None),
    "cancelled, with exit code 0 on the signal, and not measured": (said("CANCELLED", reason="by 0", by_owner=False), wrote("COMPLETED", 0, signal=15), "", S.CANCELLED, C.ADMINISTRATOR),
    "the limit, with exit code 0 on the signal, and not measured": (said("TIMEOUT", elapsed_s=3610), wrote("COMPLETED", 0, signal=15), "", S.TIMEOUT, C.WALLTIME),
    "requeued and held, then cancelled": (said("CANCELLED", reason="by 1000", by_owner=True), wrote("CANCELLED", signal=15), REQUEUED, S.CANCELLED, C.USER),
    "preempted with a requeue": (said("PREEMPTED"), wrote("CANCELLED", signal=15), REQUEUED, S.PREEMPTED, C.PREEMPTION),
    "forgotten before its start": (FORGOTTEN, None, "", S.CANCELLED, C.TRANSIENT),
    "a removed partition": (said("NODE_FAIL", evidence=("the site removed partition p",)), None, "", S.CANCELLED, C.ADMINISTRATOR),
    # the program
    "an exception": (said("FAILED", exit_code=1), wrote("FAILED", 1), TRACE + "ValueError: no such split", S.FAILED, C.PROGRAM),
    "a module": (said("FAILED", exit_code=1), None, TRACE + "ModuleNotFoundError: No module named 'torch'", S.FAILED, C.PROGRAM),
    "no such command": (said("FAILED", exit_code=127), None, "", S.FAILED, C.PROGRAM),
    "not executable": (said("FAILED", exit_code=126), None, "", S.FAILED, C.PROGRAM),
    "a crash": (said("FAILED", signal=11), None, "", S.FAILED, C.PROGRAM),
    "a crash, by the shell's code": (said("FAILED", exit_code=139), None, "", S.FAILED, C.PROGRAM),
    "no folder for its output": (said("FAILED", exit_code=0, signal=53), None, "", S.FAILED, C.PROGRAM),
    "one rank's exception, the others' network": (said("FAILED", exit_code=1), None, TRACE + "KeyError: 'x'\n" + TRACE + "RuntimeError: Connection reset by peer", S.FAILED, C.PROGRAM),
    "shared memory of the loaders": (said("FAILED", exit_code=1), None, "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", S.FAILED, C.PROGRAM),
    "the quota": (said("FAILED", exit_code=1), None, TRACE + "OSError: [Errno 122] Disk quota exceeded", S.FAILED, C.STORAGE),
    "a full disk": (said("FAILED", exit_code=1), None, TRACE + "OSError: [Errno 28] No space left on device: '/x'", S.FAILED, C.STORAGE),
    # what may be gone the next time
    "a stale handle": (said("FAILED", exit_code=1), None, TRACE + "OSError: [Errno 116] Stale file handle", S.FAILED, C.TRANSIENT),
    "the network, and what came of it": (said("FAILED", exit_code=1), None, TRACE + "ConnectionResetError: [Errno 104] Connection reset by peer\n\nDuring handling of the above exception, another exception occurred:\n" + TRACE + "app.LoadError: no data", S.FAILED, C.TRANSIENT),
    "NCCL": (said("FAILED", exit_code=1), None, TRACE + "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclSystemError: System call", S.FAILED, C.TRANSIENT),
    "a port in use": (said("FAILED", exit_code=1), None, TRACE + "torch.distributed.DistNetworkError: port: 29500, EADDRINUSE, Address already in use\n" + TRACE + ELASTIC, S.FAILED, C.TRANSIENT),
    "a bus error": (said("FAILED", signal=7), None, "", S.FAILED, C.TRANSIENT),
    # nothing tells
    "exit code 1 and nothing else": (said("FAILED", exit_code=1), wrote("FAILED", 1), "epoch 3\n", S.FAILED, C.UNKNOWN),
    "killed, far from its limit": (said("FAILED", signal=9, memory_bytes=GIB), wrote("RUNNING"), "", S.FAILED, C.UNKNOWN),
    "killed, memory unknown": (said("FAILED", signal=9), None, "", S.FAILED, C.UNKNOWN),
    "another task failed": (said("FAILED", exit_code=2), wrote("COMPLETED", 0), "", S.FAILED, C.UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_the_cause_is_found(name):
    status, outcome, log, state, cause = TABLE[name]
    found = diagnose(attempt(), status, outcome, log)
    assert (state, cause) == (found.state, found.cause), found.evidence
    assert found.evidence
    assert all(sentence.strip() for sentence in found.evidence)


def test_withdrawals_by_plane_and_user_are_distinguished():
    row = said("CANCELLED", reason="by 1000", by_owner=True)
    assert FailureCause.PLANE is diagnose(attempt(withdrawn=True), row, None).cause
    assert FailureCause.USER is diagnose(attempt(), row, None, cancelled=True).cause


def test_an_end_of_its_own_before_the_withdrawal_arrived_counts():
    assert JobState.COMPLETED is diagnose(attempt(withdrawn=True), said("COMPLETED", exit_code=0), None).state


def test_without_gpus_an_allocator_that_names_no_device_means_the_host():
    line = "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."
    assert FailureCause.HOST_MEMORY is diagnose(attempt(gpus=0), said("FAILED", exit_code=1), None, line).cause


def test_the_figures_stand_in_the_evidence():
    found = diagnose(attempt(), said("FAILED", signal=9), wrote("RUNNING", memory=7.5 * GIB))
    assert "7.50 GiB were used of the requested 8.00 GiB" in found.evidence


def test_the_limit_that_counted_is_named_although_it_was_lowered_after_the_submission():
    killed = said("TIMEOUT", elapsed_s=65, walltime_s=60.0)
    found = diagnose(attempt(), killed, wrote("TIMEOUT", signal=15))
    assert (found.cause, found.evidence[-1]) == (
        C.WALLTIME,
        "its limit was 1m 00s, lowered from 1h 00m after the submission",
    )


@given(st.text(max_size=400), st.sampled_from(JobState), st.integers(0, 255), st.integers(0, 64))
def test_no_log_whatever_it_holds_breaks_it_and_nothing_is_ended_by_it(log, state, code, number):
    found = diagnose(attempt(), SchedulerStatus(state, exit_code=code, signal=number), None, log)
    assert found.evidence
    assert found.state.final is state.final
    assert (found.cause is None) is (found.state in (S.PENDING, S.RUNNING, S.UNKNOWN, S.COMPLETED))


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=30), max_size=30))
def test_signs_are_found_wherever_they_stand(lines):
    found = read_signs("\n".join([*lines, CUDA]))
    assert (found[-1].cause, found[-1].before_end) == (FailureCause.GPU_MEMORY, 0)


@pytest.mark.parametrize(("withdrawn", "cause"), [(False, C.TRANSIENT), (True, C.PLANE)])
def test_a_copy_that_was_never_released_has_not_failed(withdrawn, cause):
    never = wrote("CANCELLED", EXIT_NEVER_BEGAN, reason="the plane's word did not come")
    found = diagnose(attempt(held=True, withdrawn=withdrawn), said("FAILED", exit_code=EXIT_NEVER_BEGAN), never)
    assert (S.CANCELLED, cause) == (found.state, found.cause)


@pytest.mark.parametrize(
    ("elapsed_s", "limit_s"), [(60.0, 60.0), (3500.0, 3500.0), (3570.0, 3600.0), (3640.0, 3600.0), (None, 3600.0)]
)
def test_a_job_that_was_ended_for_its_time_well_before_its_limit_had_a_lower_one(elapsed_s, limit_s):
    """Staff lowered it, and nobody asked Slurm between that and the end."""
    status = said("TIMEOUT", elapsed_s=elapsed_s, walltime_s=3600.0)
    assert last_limit_s(attempt(walltime_s=3600.0), status) == limit_s
    assert last_limit_s(attempt(walltime_s=3600.0), said("FAILED", elapsed_s=elapsed_s)) == 3600.0
