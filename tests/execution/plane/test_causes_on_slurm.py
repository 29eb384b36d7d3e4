"""Every cause of an end, on a real Slurm: its own words go through the adapter, the plane and the diagnosis."""

import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind, FailureCause, Job, Place, Policy
from leadline.core.units import MIB
from leadline.execution.clock import Clock, iso_utc
from leadline.execution.plane.decide import decide
from leadline.execution.plane.diagnose import diagnose
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import PlaneJournal
from leadline.execution.plane.poll_interval import PollIntervals
from leadline.execution.schedulers.port import Submission
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from tests.support.plane_parts import FakeAdvisor
from tests.support.slurm_cluster import slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]
NODE = 16
"""Cores of a node; a job with all of them has it alone."""
OPERATOR, OPERATOR_ID = "games", 5
"""A user that every Debian has. Slurm 25.11 gives no rights to ``nobody``."""
QUICK = PollIntervals(first=0.5, last=1.0, reports=2.0, decide=5.0, grace=20.0, settle=60.0)
PARTITIONS = tuple(f"PartitionName={name} Nodes=ALL MaxTime=60 State={state} PriorityTier=10 PreemptMode=OFF"
                   for name, state in (("closed", "DOWN"), ("gone", "UP"), ("shut", "DOWN")))  # fmt: skip
MOST_S = 300.0
C, S = FailureCause, JobState
EATS = "x = bytearray(b'x') * (400 << 20); import time; time.sleep(5)"
TRACE = "import sys; print('Traceback (most recent call last):'); print({!r}); sys.exit(1)"


class Causes:
    """A plane on a cluster with jobs that meet each fate once."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.scheduler = SlurmScheduler(
            "cluster", PurePosixPath(folder / "jobs"), LocalTransport(), python=sys.executable
        )
        self.found = {}
        self.journal = PlaneJournal(folder / "journal.sqlite", Clock())
        self.plane = Plane(
            self.journal, lambda _: self.scheduler, FakeAdvisor(), diagnose=self.diagnose, decide=decide,
            intervals=QUICK,
        )  # fmt: skip

    def diagnose(self, attempt, status, outcome, log, *, cancelled):
        diagnosis = diagnose(attempt, status, outcome, log, cancelled=cancelled)
        self.found.setdefault(attempt.job, []).append(diagnosis)
        return diagnosis

    def add(self, name, *command, partition="short", cores=1, limit_s=600.0, attempts=1, deadline_at=None, **more):
        request = ResourceSpec(cores_per_task=cores, memory_bytes_per_node=100 * MIB, walltime_s=limit_s)
        policy = Policy(
            (Place("cluster", partition),),
            attempts=attempts,
            deadline_at=deadline_at,
            measured=more.pop("measured", True),
        )
        self.journal.add([Job(name, JobSpec(name, tuple(map(str, command)), request), policy)])

    def job(self, name):
        return self.journal.get(name)

    def id(self, name):
        return self.job(name).attempts[-1].scheduler_id

    def until(self, condition, most_s=MOST_S):
        deadline = time.monotonic() + most_s
        while not condition():
            assert time.monotonic() < deadline, {name: self.job(name).current_state for name in self.found}
            time.sleep(self.plane.step() or 0.05)

    def runs(self, *names):
        self.until(lambda: all(self.job(name).current_state is S.RUNNING for name in names))

    def waits(self, name, reason):
        self.until(lambda: self.job(name).attempts and self.job(name).attempts[-1].reason == reason)

    def closed(self, *names):
        self.until(lambda: all(self.job(name).closed for name in names))

    def root(self, *words):
        answer = self.cluster.run(words)
        assert answer.returncode == 0, answer.stderr

    def as_operator(self, *words):
        self.root("setpriv", f"--reuid={OPERATOR_ID}", f"--regid={OPERATOR_ID}", "--clear-groups", *words)


@pytest.fixture(scope="module")
def causes():
    # Another user's commands must reach the cluster, and pytest's own folders are private.
    with tempfile.TemporaryDirectory(prefix="causes-") as folder:
        Path(folder).chmod(0o755)
        yield from _lived(Path(folder))


def _lived(folder):
    (folder / "slurm").mkdir()
    # On a busy machine, a node that lives may be silent for long.
    plan = ClusterPlan(name="causes", nodes=3, cores=NODE, preemptible="CANCEL", silent_s=45, settings=PARTITIONS)
    with pytest.MonkeyPatch.context() as patch, slurm_cluster(folder / "slurm", plan) as cluster:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
        made = Causes(cluster, folder)
        made.root("sacctmgr", "-i", "-Q", "add", "user", OPERATOR, "Account=research", "AdminLevel=Operator")
        live(made)
        yield made
        made.journal.close()


def live(causes):
    """Run all jobs and their fates, each as soon as its job is ready for it."""
    sleep = ("sleep", "600")
    once = causes.folder / "once"
    # These two have a node each, so that only they meet its fate.
    causes.add("node", *sleep, cores=NODE)
    causes.add("preempted", *sleep, cores=NODE, partition="spare")
    causes.runs("node", "preempted")
    causes.add("limit", *sleep, limit_s=60.0)
    causes.add("lowered limit", *sleep)
    for name in ("user", "user of Leadline", "administrator"):
        causes.add(name, *sleep)
    for name in ("requeued", "requeued and held"):
        # The second run ends, the first one is cut.
        path = f"{once}-{name.replace(' ', '-')}"
        causes.add(name, "sh", "-c", f"echo >> {path}; [ $(wc -l < {path}) -gt 1 ] || exec sleep 600", attempts=2)
    causes.add("host memory", sys.executable, "-c", EATS)
    causes.add("host memory of a step", "srun", sys.executable, "-c", EATS, measured=False)
    causes.add("GPU memory", sys.executable, "-c", TRACE.format("torch.OutOfMemoryError: CUDA out of memory."))
    causes.add("storage", "dd", "if=/dev/zero", "of=/dev/full", "count=1")
    causes.add("transient", sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 1))")
    causes.add("program", sys.executable, "-c", "import no_such_module")
    causes.add("unknown", "sh", "-c", "exit 3")
    causes.add("removed partition", *sleep, partition="gone")
    causes.add("withdrawn", "true", partition="shut", deadline_at=iso_utc(time.time() + 20.0))
    causes.add("held", "true", partition="closed")
    causes.runs(
        "lowered limit",
        "user",
        "user of Leadline",
        "administrator",
        "requeued",
        "requeued and held",
        "removed partition",
    )
    causes.cluster.crash(causes.job("node").attempts[-1].node)
    causes.add("preempting", "true", cores=NODE)
    causes.as_operator("scontrol", "update", f"JobId={causes.id('lowered limit')}", "TimeLimit=1")
    causes.root("scancel", causes.id("user"))
    causes.journal.cancel(["user of Leadline"])
    causes.as_operator("scancel", causes.id("administrator"))
    for name, verb in (("requeued", "requeue"), ("requeued and held", "requeuehold")):
        causes.as_operator("scontrol", "update", f"JobId={causes.id(name)}", "Requeue=1")
        causes.as_operator("scontrol", verb, causes.id(name))
    causes.waits("held", "PartitionDown")
    causes.as_operator("scontrol", "hold", causes.id("held"))
    causes.waits("held", "JobHeldAdmin")
    causes.waits("requeued and held", "job requeued in held state")
    causes.as_operator("scontrol", "release", causes.id("requeued and held"))
    # A controller of 24.11 that starts anew writes these ends to the accounting again, without who cancelled the job.
    causes.closed("user", "user of Leadline", "administrator")
    conf = causes.cluster.folder / "slurm.conf"
    conf.write_text(
        conf.read_text()
        .replace(PARTITIONS[1], "")
        .replace("closed Nodes=ALL MaxTime=60 State=DOWN", "closed Nodes=ALL MaxTime=60 State=UP")
    )
    causes.root("scontrol", "reconfigure")
    causes.closed("withdrawn", "removed partition")
    causes.as_operator("scontrol", "release", causes.id("held"))
    causes.closed(*causes.found, "preempted", "node", "limit", "lowered limit", "requeued", "requeued and held", "held")


@pytest.mark.parametrize(
    ("name", "state", "cause", "evidence"),
    [
        ("limit", S.TIMEOUT, C.WALLTIME, "its limit was 1m 00s"),
        ("lowered limit", S.TIMEOUT, C.WALLTIME, "its limit was 1m 00s, lowered from 10m 00s after the submission"),
        ("host memory", S.OUT_OF_MEMORY, C.HOST_MEMORY, ""),
        ("host memory of a step", S.OUT_OF_MEMORY, C.HOST_MEMORY, ""),
        ("GPU memory", S.OUT_OF_MEMORY, C.GPU_MEMORY, "CUDA out of memory"),
        ("node", S.NODE_FAIL, C.NODE, "NODE_FAIL"),
        ("preempted", S.PREEMPTED, C.PREEMPTION, "PREEMPTED"),
        ("transient", S.FAILED, C.TRANSIENT, "Connection refused"),
        ("storage", S.FAILED, C.STORAGE, "No space left on device"),
        ("program", S.FAILED, C.PROGRAM, "no_such_module"),
        ("user", S.CANCELLED, C.USER, "its user cancelled it (by 0)"),
        ("user of Leadline", S.CANCELLED, C.USER, "its user cancelled it"),
        ("administrator", S.CANCELLED, C.ADMINISTRATOR, f"an administrator cancelled it (by {OPERATOR_ID})"),
        ("removed partition", S.CANCELLED, C.ADMINISTRATOR, "the site removed partition gone"),
        ("requeued", S.CANCELLED, C.REQUEUE, "its site requeued it"),
        ("requeued and held", S.CANCELLED, C.REQUEUE, "its site requeued it"),
        ("withdrawn", S.CANCELLED, C.PLANE, "the plane withdrew it"),
        ("unknown", S.FAILED, C.UNKNOWN, "exit code 3"),
    ],
)
def test_each_end_has_its_cause(causes, name, state, cause, evidence):
    if cause is C.HOST_MEMORY and not causes.cluster.layout.cgroups:
        pytest.skip("there are no control groups that this user may write")
    first = causes.found[name][0]
    assert (first.state, first.cause) == (state, cause), first.evidence
    assert evidence in "; ".join(first.evidence)


def test_no_cause_was_left_out():
    """``DEPENDENCY`` has its own test, because the plane waits for dependencies itself, and CHECKPOINT has segments."""
    tested = next(mark for mark in test_each_end_has_its_cause.pytestmark if mark.name == "parametrize").args[1]
    assert {cause for _, _, cause, _ in tested} == set(FailureCause) - {C.DEPENDENCY, C.CHECKPOINT}


@pytest.mark.parametrize("name", ["requeued", "requeued and held"])
def test_a_requeued_job_runs_again_exactly_once(causes, name):
    job = causes.job(name)
    assert (job.state, len(job.attempts)) == (S.COMPLETED, 2)
    starts = (causes.folder / f"once-{name.replace(' ', '-')}").read_text()
    assert starts == "\n\n"


def test_a_job_that_an_administrator_holds_waits_and_runs_after_its_release(causes):
    job = causes.job("held")
    assert (job.state, len(job.attempts)) == (S.COMPLETED, 1)


def test_a_lowered_limit_is_told(causes):
    events = [event.details for event in causes.journal.events(job="lowered limit", kinds=[EventKind.STATE])]
    assert {"state": "RUNNING", "walltime_s": 60.0, "walltime_before_s": 600.0} in events


def test_slurms_word_about_an_unmet_dependency_is_understood(causes):
    def submitted(key, *command, **more):
        spec = JobSpec("after", command, ResourceSpec(walltime_s=60.0), partition="short")
        return causes.scheduler.submit(Submission(f"{key}-{time.time_ns()}", spec, measured=False, **more))

    follows = submitted("follows", "true", after=(submitted("fails", "false"),))
    deadline = time.monotonic() + 60
    status = None
    while status is None or not status.state.final:
        assert time.monotonic() < deadline
        time.sleep(0.5)
        with suppress(KeyError):
            status = causes.scheduler.account([follows])[follows]
    attempt = causes.job("user").attempts[-1]
    found = diagnose(attempt, status, None)
    assert (found.state, found.cause) == (S.CANCELLED, C.DEPENDENCY), found.evidence
