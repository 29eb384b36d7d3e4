"""Slurm's adapter keeps the contract of every scheduler, on a real cluster."""

import sys
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from leadline.core.units import MIB
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.port import LocalTransport
from leadline.testing.scheduler_contract import SchedulerContract


def made(folder):
    return SlurmScheduler("test", folder, LocalTransport(), python=sys.executable)


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
class TestContract(SchedulerContract):
    too_many_cores = 1000

    @pytest.fixture
    def scheduler(self, tmp_path):
        return made(PurePosixPath(tmp_path / "jobs"))

    def again(self, scheduler):
        return made(scheduler.folder)

    def job(self, *given, **more):
        submission = super().job(*given, **more)
        resources = replace(submission.spec.resources, memory_bytes_per_node=200 * MIB)
        return replace(submission, spec=replace(submission.spec, partition="short", resources=resources))
