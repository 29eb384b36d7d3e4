"""What a controller forgets when it is killed, and the ids that it gives again."""

import signal
import sys
from pathlib import PurePosixPath

import pytest

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.units import MIB
from leadline.execution.schedulers.port import ForgetfulScheduler, Submission
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from tests.support.slurm_cluster import slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan

ASKED = ResourceSpec(cores_per_task=1, memory_bytes_per_node=50 * MIB, walltime_s=240.0)


def submission(key, *command, indices=()):
    return Submission(key, JobSpec("nap", command, ASKED, partition="short"), indices, measured=False)


def _ended_as(scheduler, job, key):
    """Tell whether the accounting, which lags behind, has the end of that key's job and of no other under an id."""
    said = scheduler.account([job]).get(job)
    return said is not None and said.state is JobState.COMPLETED and said.bears(key) and not said.bears("a")


@pytest.mark.slow
@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
def test_a_forgotten_job_is_not_confused_with_one_that_reuses_its_id(tmp_path, monkeypatch):
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm", ClusterPlan(name="forgets", nodes=1, cores=1)) as forgets:
        for name, value in forgets.environment.items():
            monkeypatch.setenv(name, value)
        scheduler = SlurmScheduler("forgets", PurePosixPath(tmp_path / "jobs"), LocalTransport(), python=sys.executable)
        assert isinstance(scheduler, ForgetfulScheduler)
        forgets.stop("slurmctld")
        forgets.start("slurmctld")
        runs = scheduler.submit(submission("runs", "sleep", "60"))
        forgets.wait(lambda: scheduler.query([runs])[runs].state is JobState.RUNNING, "a job to run")
        forgets.save()  # the next time is after some seconds
        lost = {key: scheduler.submit(submission(key, "true", indices=at)) for key, at in (("a", ()), ("b", (3, 4)))}
        keys = {"runs": "runs", "a": "a", "b-3": "b", "b-4": "b"}
        ids = {"runs": runs, "a": lost["a"], "b-3": f"{lost['b']}_3", "b-4": f"{lost['b']}_4"}
        assert list(scheduler.forgotten(keys, ids, ())) == []
        forgets.stop("slurmctld", sign=signal.SIGKILL)
        forgets.start("slurmctld")
        assert {"a", "b-3", "b-4"} == set(scheduler.forgotten(keys, ids, ()))
        assert lost["a"] == scheduler.submit(submission("c", "true")), (
            "the id is not given again: the test shows nothing"
        )
        said = scheduler.query([lost["a"]])[lost["a"]]
        assert (said.bears("c"), said.bears("a")) == (True, False)
        scheduler.cancel([runs])
        forgets.wait(lambda: not scheduler.query([lost["a"]]), "the other job to end")
        forgets.wait(lambda: _ended_as(scheduler, lost["a"], "c"), "the accounting to know it by its name")
        assert {"a"} == set(scheduler.forgotten({"a": "a", "c": "c", "runs": "runs"}, {**ids, "c": lost["a"]}, ()))
