"""A job that saves its state and ends is continued until its work is done: the contract, and real chains of it."""

import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from situations import HERE, POLICY, attempt, situation

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Action, FailureCause, Job, Place, Policy
from leadline.core.progress import REPORTED, Progress
from leadline.core.units import MIB
from leadline.execution.clock import Clock
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import Diagnosis, diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.plane.segments import diagnose_segment, done_share, has_checkpoint, is_segment
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import SchedulerStatus
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from leadline.execution.wrapper.outcome import DONE, SAVED, JobOutcome
from tests.support.plane_parts import FakeAdvisor

RESUMES, ONCE = Policy((HERE,), resumes=True, checkpoint_signal="USR1"), Policy((HERE,))
WELL = Diagnosis(JobState.COMPLETED, None, ("the command ended with exit code 0",))
UNCLEAR = Diagnosis(JobState.FAILED, FailureCause.UNKNOWN, ("it ended with exit code 1 for an unknown reason",))
BY_SIGNAL = Diagnosis(JobState.FAILED, FailureCause.UNKNOWN, ("it was ended by signal 15",))
TRACEBACK = Diagnosis(JobState.FAILED, FailureCause.PROGRAM, ("the log says: SIGTERMException",))
FULL = Diagnosis(JobState.OUT_OF_MEMORY, FailureCause.HOST_MEMORY, ("it ran out of memory",))
QUOTA = Diagnosis(JobState.FAILED, FailureCause.STORAGE, ("the log says: Disk quota exceeded",))
LIMIT = Diagnosis(JobState.TIMEOUT, FailureCause.WALLTIME, ("its limit was 1h",))


def wrote(code, *, warned=True, steps=None, total=None, marker="", source=REPORTED, **more):
    state = more.pop("state", JobState.FAILED if code else JobState.COMPLETED)
    progress = None if steps is None else Progress(source, steps=steps, total=total)
    return JobOutcome(
        state, "2026-01-05T10:00:00Z", "n1", ("train",), exit_code=code, progress=progress, warned=warned,
        marker=marker, **more,
    )  # fmt: skip


def job(policy):
    return Job("k", JobSpec("train", ("true",), ResourceSpec(walltime_s=60.0)), policy)


CONTRACT = {
    "saves and exits 0": (RESUMES, wrote(0), WELL, True),
    "saves and exits 0 at step 213 of 900": (RESUMES, wrote(0, steps=213, total=900), WELL, True),
    "exits 0 at step 900 of 900": (RESUMES, wrote(0, steps=900, total=900), WELL, False),
    "exits 0 and says done": (RESUMES, wrote(0, marker=DONE), WELL, False),
    "exits 0 without a warning": (RESUMES, wrote(0, warned=False), WELL, False),
    "stops early without a warning": (RESUMES, wrote(0, warned=False, steps=213, total=900), WELL, False),
    "exits 0 without a warning, and says saved": (RESUMES, wrote(0, warned=False, marker=SAVED), WELL, True),
    "exits 1 without a warning, and says saved": (RESUMES, wrote(1, warned=False, marker=SAVED), UNCLEAR, True),
    "saves and exits 1": (RESUMES, wrote(1), UNCLEAR, True),
    "saves and exits 3": (RESUMES, wrote(3), UNCLEAR, True),
    "saves and exits 255, as submitit": (RESUMES, wrote(255), UNCLEAR, True),
    "saves and shows a traceback, as Lightning": (RESUMES, wrote(1), TRACEBACK, True),
    "saves and is ended by a requeue": (RESUMES, wrote(None, state=JobState.CANCELLED, signal=15), BY_SIGNAL, True),
    "saves on TERM under a limit that changed": (RESUMES, wrote(0, state=JobState.CANCELLED), WELL, True),
    "saves on TERM under an extended limit": (RESUMES, wrote(1, state=JobState.TIMEOUT), UNCLEAR, True),
    "exits 1 without a warning": (RESUMES, wrote(1, warned=False), UNCLEAR, False),
    "exits 75 without a warning": (RESUMES, wrote(75, warned=False), UNCLEAR, True),
    "exits 85 without a warning": (RESUMES, wrote(85, warned=False), UNCLEAR, True),
    "exits 99 without a warning": (RESUMES, wrote(99, warned=False), UNCLEAR, True),
    "runs out of memory after its warning": (RESUMES, wrote(1), FULL, False),
    "fills the disk while it saves": (RESUMES, wrote(1), QUOTA, False),
    "is killed at its limit": (RESUMES, wrote(None, signal=9, state=JobState.TIMEOUT), LIMIT, False),
    "does not resume, handles the signal, exits 0": (ONCE, wrote(0), WELL, False),
    "does not resume, exits 0 at step 213 of 900": (ONCE, wrote(0, steps=213, total=900), WELL, True),
    "does not resume, exits 1 at step 213 of 900": (ONCE, wrote(1, steps=213, total=900), UNCLEAR, False),
    "does not resume, exits 75": (ONCE, wrote(75), UNCLEAR, False),
    "without the wrapper": (RESUMES, None, WELL, False),
}


@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract_tells_saved_from_done(name):
    policy, outcome, before, saved = CONTRACT[name]
    after = diagnose_segment(job(policy), SchedulerStatus(JobState.FAILED), outcome, before)
    assert (after.cause is FailureCause.CHECKPOINT) is saved
    assert after.state is (JobState.TIMEOUT if saved else before.state)
    assert saved or after == before or name == "does not resume, handles the signal, exits 0"


def test_the_evidence_names_the_step():
    after = diagnose_segment(job(RESUMES), None, wrote(0, steps=213, total=900), WELL)
    assert after.evidence == (
        "it handled the warning before its limit and ended with exit code 0 at 213 of 900 steps: its work is not done",
    )


def test_what_exit_code_0_does_not_prove_is_said():
    doubtful = diagnose_segment(job(ONCE), None, wrote(0), WELL)
    assert doubtful.state is JobState.COMPLETED
    assert "its work may not be done (--resumes would continue it)" in doubtful.evidence[-1]
    for clear in (wrote(0, warned=False), wrote(0, marker=DONE), wrote(0, steps=900, total=900)):
        assert diagnose_segment(job(ONCE), None, clear, WELL) == WELL


def test_a_job_that_its_user_cancels_at_the_scheduler_is_not_continued():
    cancelled = SchedulerStatus(JobState.CANCELLED, "CANCELLED by 1000")
    assert diagnose_segment(job(RESUMES), cancelled, wrote(0), WELL) == WELL


def test_a_checkpoint_is_one_that_the_job_shows():
    assert has_checkpoint(job(RESUMES), wrote(1, warned=False, marker=SAVED))
    assert has_checkpoint(job(RESUMES), wrote(99, warned=False))
    assert has_checkpoint(job(replace(RESUMES, checkpoint_signal=None)), wrote(1, warned=False, steps=7))
    assert not has_checkpoint(job(RESUMES), wrote(1, warned=False, steps=7))
    assert not has_checkpoint(job(ONCE), wrote(0, marker=SAVED))


def test_a_failed_segment_counts_as_a_try_unless_it_shows_that_it_saved():
    saved = Diagnosis(JobState.TIMEOUT, FailureCause.CHECKPOINT)
    assert not is_segment(job(RESUMES), wrote(1), saved)
    assert is_segment(job(RESUMES), wrote(0), saved)
    assert is_segment(job(RESUMES), wrote(75), saved)
    assert is_segment(job(RESUMES), wrote(1, marker=SAVED), saved)
    assert is_segment(job(RESUMES), wrote(1, steps=213, total=900), saved)
    assert is_segment(job(RESUMES), wrote(None, signal=9), LIMIT)


def test_only_the_jobs_own_count_towards_a_total_is_one_over_all_attempts():
    assert done_share(wrote(0, steps=225, total=900)) == 0.25
    assert done_share(wrote(0, steps=213)) is None
    assert done_share(wrote(0, steps=213, total=900, source="the script's loops")) is None


CHAINED = replace(POLICY, resumes=True)


def ended(share, before, cause=FailureCause.CHECKPOINT, policy=CHAINED, **more):
    earlier = tuple(
        attempt(number, "TIMEOUT", done_share=count, segment=True) for number, count in enumerate(before, 1)
    )
    last = {"number": len(before) + 1, "done_share": share, "key": "last"}
    made = situation("TIMEOUT", policy=policy, others=earlier, attempt=last, cause=cause, checkpointed=True, **more)
    return decide(made)


def test_a_segment_is_followed_by_the_next_one_with_the_same_limit_if_nothing_may_be_changed():
    fixed = replace(POLICY, resumes=True, resizes=False)
    found = ended(0.25, [], policy=fixed, elapsed_s=1800.0, limit_s=3600)
    assert found.action is Action.RESUBMIT
    assert found.resources.walltime_s == 3600
    assert "it saved its state before its work was done; it continues from its checkpoint" in found.reason


@pytest.mark.parametrize("cause", [FailureCause.CHECKPOINT, FailureCause.WALLTIME])
def test_a_chain_without_progress_ends_and_says_why(cause):
    assert ended(0.5, [0.25], cause).action is Action.RESUBMIT
    assert ended(None, [0.25], cause).action is Action.RESUBMIT
    stuck = ended(0.25, [0.25], cause, elapsed_s=3600.0)
    assert stuck.action is Action.GIVE_UP
    assert "reached 25.0% of its work, and an earlier attempt 25.0%" in stuck.reason


def test_an_attempt_that_its_node_cut_short_may_have_done_less_than_the_one_before():
    assert ended(0.3, [0.5], FailureCause.NODE, elapsed_s=60.0).action is Action.RESUBMIT


def test_without_resumes_the_job_ends_and_the_reason_names_the_option():
    found = ended(None, [], policy=POLICY)
    assert found.action is Action.GIVE_UP
    assert "--resumes" in found.reason


QUICK = PollIntervals(first=0.2, last=0.5, reports=0.5, decide=0.5, grace=2.0)
STEPS, AT_ONCE = 900, 225
TRAINS = f"""\
import os, signal, subprocess, sys, time
from pathlib import Path
from leadline.progress import report

way, kept = sys.argv[1], Path("kept")
step = int(kept.read_text()) if kept.exists() else 0
with open("restarts", "a") as file:
    print(os.environ.get("SLURM_RESTART_COUNT", "first"), file=file)
last = min(step + {AT_ONCE}, {STEPS}) if way != "stuck" else {AT_ONCE}
while step < last:
    step += 1
    report(step=step, total_steps={STEPS})
if step == {STEPS}:
    kept.write_text(str(step))
    sys.exit(0)

def save(*_):
    if way != "stuck":
        kept.write_text(str(step))
    if way == "requeue":
        if "SLURM_JOB_ID" not in os.environ:
            os._exit(75)
        # As PyTorch Lightning: if Slurm refuses to requeue, the work goes on until the limit.
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
    elif way != "limit":
        os._exit({{"exit 1": 1, "exit 3": 3}}.get(way, 0))

if way == "marker":
    kept.write_text(str(step))
    Path(os.environ["LEADLINE_MARKER"]).write_text("saved\\n")
    sys.exit(1)
# The handler comes late, as after the import of a large library.
signal.signal(getattr(signal, "SIG" + sys.argv[2]), save)
while True:
    time.sleep(0.1)
"""
WAYS = ("exit 0", "exit 1", "exit 3", "requeue", "limit", "marker")


def chains(folder, scheduler, jobs, most_s):
    """Run jobs to their ends under a plane, and return them."""
    with closing(scheduler), PlaneJournal(folder / "plane.sqlite", Clock()) as journal:
        journal.add(jobs)
        plane = Plane(
            journal, {scheduler.name: scheduler}.__getitem__, FakeAdvisor(), diagnose=diagnose, decide=decide,
            intervals=QUICK,
        )  # fmt: skip
        deadline_s = time.monotonic() + most_s
        plane.run(lambda: plane.idle or time.monotonic() > deadline_s)
        return [journal.get(made.key) for made in jobs]


def training(folder, way, place, walltime_s, policy, signal_name="USR1", setup=()):
    own = folder / way.replace(" ", "-")
    own.mkdir()
    asked = ResourceSpec(cores_per_task=1, memory_bytes_per_node=200 * MIB, walltime_s=walltime_s)
    spec = JobSpec(way, (sys.executable, "-c", TRAINS, way, signal_name), asked, workdir=str(own), setup=setup)
    return Job(own.name, spec, replace(policy, places=(place,)))


def check_chain(folder, ended_job):
    assert ended_job.state is JobState.COMPLETED, (ended_job.key, ended_job.reason, ended_job.attempts)
    assert [made.done_share for made in ended_job.attempts] == [0.25, 0.5, 0.75, 1.0]
    assert [made.segment for made in ended_job.attempts] == [True, True, True, False]
    assert (folder / ended_job.key / "kept").read_text() == str(STEPS)
    assert (folder / ended_job.key / "restarts").read_text().split() == ["first", "1", "2", "3"]


@pytest.fixture
def leadline_on_nodes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.mark.slow
@pytest.mark.usefixtures("leadline_on_nodes")
def test_chains_of_four_segments_end_at_the_last_step_on_this_machine(tmp_path):
    policy = Policy((Place("local"),), resumes=True, resizes=False, checkpoint_signal="USR1", checkpoint_s=4.0)
    local = LocalScheduler(tmp_path / "queue", Slots((0, 1, 0, 1)))
    made = [training(tmp_path, way, Place("local"), 10.0, policy) for way in WAYS]
    made.append(training(tmp_path, "TERM", Place("local"), 10.0, replace(policy, checkpoint_signal="TERM"), "TERM"))
    made.append(training(tmp_path, "stuck", Place("local"), 10.0, policy))
    *finished, stuck = chains(tmp_path, local, made, 400.0)
    for ended_job in finished:
        check_chain(tmp_path, ended_job)
    assert stuck.state is JobState.TIMEOUT
    assert len(stuck.attempts) == 2
    assert "does not continue from its checkpoint" in stuck.reason


@pytest.mark.slow
@pytest.mark.timeout(2000)  # they wait for limits of a minute, one after the other
@pytest.mark.usefixtures("slurm")
def test_chains_of_four_segments_end_at_the_last_step_on_slurm(tmp_path):
    place = Place("cluster", "short")
    policy = Policy((place,), resumes=True, resizes=False, checkpoint_signal="USR1", checkpoint_s=35.0)
    cluster = SlurmScheduler("cluster", PurePosixPath(tmp_path / "jobs"), LocalTransport(), python=sys.executable)
    made = [training(tmp_path, way, place, 60.0, policy) for way in WAYS]
    lowers = ("scontrol update JobId=$SLURM_JOB_ID TimeLimit=1",)
    policy_of_term = replace(policy, checkpoint_signal="TERM")
    made.append(training(tmp_path, "TERM", place, 60.0, policy_of_term, "TERM"))
    made.append(training(tmp_path, "TERM lowered", place, 600.0, policy_of_term, "TERM", setup=lowers))
    # Slurm's warning comes while the set-up runs: it must neither end the job nor be lost.
    made.append(training(tmp_path, "slow set-up", place, 60.0, policy, setup=("sleep 30",)))
    cluster.close = lambda: None
    for ended_job in chains(tmp_path, cluster, made, 600.0):
        check_chain(tmp_path, ended_job)
