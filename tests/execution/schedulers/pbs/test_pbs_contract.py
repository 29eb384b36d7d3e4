"""PBS's adapter keeps the contract of every scheduler, over Slurm's imitation of Torque's commands.

That imitation (Debian's slurm-wlm-torque 22.05) says that a job ended and not how, kills where PBS asks to end, names
the elements of an array by numbers of their own, and its qalter knows no limits: what needs these is left out here, and
is tried on recorded answers in ``test_pbs_scheduler.py``.
"""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from leadline.execution.schedulers.pbs.scheduler import PbsScheduler
from leadline.execution.schedulers.pbs.script import PbsFlavour
from leadline.execution.transport.port import LocalTransport
from leadline.testing.scheduler_contract import SchedulerContract


def made(folder):
    return PbsScheduler("torque", folder, LocalTransport(), flavour=PbsFlavour.TORQUE, python=sys.executable)


@pytest.mark.usefixtures("slurm")
class TestContract(SchedulerContract):
    too_many_cores = 1000

    test_running_and_waiting_jobs_can_be_cancelled = None
    test_one_element_can_be_cancelled_while_its_sibling_runs = None
    test_array_elements_are_separate_jobs = None
    test_a_cancelled_held_job_never_begins = None
    test_a_limit_may_be_lowered = None

    @pytest.fixture
    def scheduler(self, tmp_path, monkeypatch):
        if shutil.which("qsub") is None:
            pytest.skip("there is no qsub here")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        monkeypatch.chdir(tmp_path)
        return made(PurePosixPath(tmp_path))

    def again(self, scheduler):
        return made(scheduler.folder)

    def job(self, *given, **more):
        submission = super().job(*given, **more)
        resources = replace(submission.spec.resources, memory_bytes_per_node=100 << 20)
        return replace(submission, spec=replace(submission.spec, partition="short", resources=resources))
