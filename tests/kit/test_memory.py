"""Memory of a point on this machine, for real, and the errors that mean there is not enough."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from leadline.kit.memory import HostMemory, is_out_of_memory

MIB = 2**20


def test_a_peak_excludes_earlier_points():
    memory = HostMemory()
    memory.begin()
    held = torch.ones(200 * MIB // 4)
    memory.record_model()
    large = memory.figures()
    del held
    memory.begin()
    small = memory.figures()
    if large["peak_host_bytes"] is None:
        pytest.skip("this system does not let a process reset its peak")
    assert large["model_bytes"] == pytest.approx(200 * MIB, rel=0.05)
    assert large["peak_host_bytes"] - large["before_bytes"] == pytest.approx(200 * MIB, rel=0.05)
    assert small["peak_host_bytes"] - small["before_bytes"] < 20 * MIB
    assert large["peak_allocated_bytes"] is None


LIMITED = """
import json, sys, torch
from leadline.kit.design import MeasurementPoint
from leadline.kit.measure import PointMeasurer
from leadline.kit.memory import limit_host_memory
from leadline.kit.timing import TimingLimits
bench = PointMeasurer("cpu", None, TimingLimits(0.0, 0.0, 1), ops=False)
limit_host_memory(700 * 2**20)
points = [MeasurementPoint("unet-32", 256, "training", "fp32", batch, "sgd") for batch in (64, 1)]
print(json.dumps([bench.measure(point) for point in points]))
"""


@pytest.mark.slow
def test_a_point_that_does_not_fit_gives_lower_bounds_and_the_next_is_measured():
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    large, small = json.loads(done.stdout)
    assert large["outcome"] == "oom", large["reason"]
    assert large["memory"]["censored"]
    assert "step_s" not in large
    assert small["outcome"] == "ok", small["reason"]
    assert not small["memory"]["censored"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_out_of_memory_messages_of_all_libraries_are_recognized(error):
    assert is_out_of_memory(error)


def test_torch_raises_a_recognized_out_of_memory_message():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert is_out_of_memory(caught.value)
    with pytest.raises(RuntimeError) as other:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(other.value)
