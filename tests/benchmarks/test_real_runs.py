"""A public script is run to its end in a copy, and compared with its estimate."""

import sys

import pytest

from benchmarks.public_scripts.corpus import PublicScript, Repository, public_scripts
from benchmarks.public_scripts.real_runs import RUNS, _rows, estimate_script, run_script
from leadline.core.errors import JobFailed
from leadline.core.hardware import Device, DeviceKind

TRAIN = """
import pathlib, time
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.05)
pathlib.Path("result").touch()
"""


@pytest.fixture
def data(tmp_path):
    repository = tmp_path / "repositories" / "someone+project"
    repository.mkdir(parents=True)
    (repository / "train.py").write_text(TRAIN)
    (repository / "fail.py").write_text("raise SystemExit('no such file')")
    (tmp_path / "venv").symlink_to(sys.prefix)
    return tmp_path


def script(run="python train.py"):
    return PublicScript("example", Repository("someone/project", "0" * 40, "MIT"), "basics", run)


def test_a_script_runs_to_its_end_in_a_copy(data):
    elapsed_s, peak_bytes = run_script(script(), data)
    assert 0.5 < elapsed_s < 120
    assert peak_bytes > 5e7
    assert not (data / "repositories/someone+project/result").exists()


def test_a_script_that_fails_is_named_with_its_last_line(data):
    with pytest.raises(JobFailed, match=r"example did not run to its end .*no such file"):
        run_script(script("python fail.py"), data)


def test_the_estimate_counts_the_steps_and_the_pauses(data):
    cpu = Device("CPU", "AMD", DeviceKind.CPU, memory_bytes_per_s=1e10, peak_flops_per_s={"float32": 1e11})
    estimate = estimate_script(script(), data, cpu)
    assert any("× 10 steps" in reason for reason in estimate.basis.reasons)
    assert estimate.elapsed_s.point > 10 * 0.05


def test_rows_have_the_error_and_the_coverage_of_each_metric():
    point = {"point": 9.0, "low": 8.0, "high": 12.0, "measured": 10.0, "error_percent": -10.0}
    miss = {**point, "measured": 15.0, "error_percent": -40.0}
    rows = _rows([{"time": point, "host memory": miss}, {"time": miss, "host memory": None}])
    assert [row.value for row in rows] == pytest.approx([25, 50, 40, 0])
    assert [row.n for row in rows] == [2, 2, 1, 1]


def test_every_run_is_in_the_list():
    assert set(RUNS) <= {script.name for script in public_scripts()}
    assert len(RUNS) >= 20
