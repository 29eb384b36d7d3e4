"""This machine's scheduler keeps the contract of every scheduler."""

import os
import sys

import psutil
import pytest

from leadline.core.units import MIB
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.queue import MARK_VARIABLE
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.testing.scheduler_contract import SchedulerContract


class TestContract(SchedulerContract):
    @pytest.fixture
    def scheduler(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        scheduler = LocalScheduler(tmp_path / "queue", Slots((0, 1), (), 4096 * MIB))
        self.others = []
        yield scheduler
        for one in (scheduler, *self.others):
            one.close()
        for process in psutil.process_iter():
            try:
                if str(tmp_path) in process.environ().get(MARK_VARIABLE, ""):
                    process.kill()
            except psutil.Error:
                continue

    def again(self, scheduler):
        self.others.append(LocalScheduler(scheduler.folder, Slots((0, 1), (), 4096 * MIB)))
        return self.others[-1]
