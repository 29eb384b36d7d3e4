"""Reading the files of the measuring kit, and errors for other files."""

import json

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.training.measurements import MeasurementOutcome, measured_records, read_measurements

HEADER = {
    "kind": "header", "schema": "leadline.measure/1", "kit": "1", "measured_at": "2026-01-01T00:00:00Z",
    "device": {"type": "cuda", "name": "NVIDIA A100", "memory_bytes": 40 * 2**30, "compute_units": 108},
    "software": {"torch": "2.9.0", "runtime": "12.8"}, "rates": {"float32": 1e13},
    "op_columns": ["op", "shapes", "count", "device_s", "host_s", "kernel", "kernels"],
}  # fmt: skip
MEMORY = {"censored": False, "before_bytes": 0, "model_bytes": 4, "peak_allocated_bytes": 2**30,
          "peak_reserved_bytes": 2**31, "outside_allocator_bytes": 5, "peak_host_bytes": None}  # fmt: skip
OK = {
    "kind": "point", "key": "resnet18-224/training/fp32/sgd/b8", "outcome": "ok", "measured_at": "2026-01-01T00:01:00Z",
    "point": {"model": "resnet18", "size": 224, "phase": "training", "precision": "fp32", "batch": 8,
              "optimizer": "sgd"},
    "step_s": 0.02, "step_quantiles_s": [0.019, 0.02, 0.021], "samples": 25, "steady": True, "memory": MEMORY,
    "energy": {"step_j": 6.0, "mean_w": 300.0, "method": "counter", "window_s": 0.5},
    "ops": [["aten::mm", [[4, 8], [8, 2]], 2, 1e-4, 2e-5, "gemm", 4]], "ops_share": 0.9,
}  # fmt: skip
OOM = {
    "kind": "point", "key": "resnet18-224/training/fp32/sgd/b512", "outcome": "oom", "reason": "CUDA out of memory",
    "measured_at": "2026-01-01T00:02:00Z", "point": {**OK["point"], "batch": 512},
    "memory": {**MEMORY, "censored": True, "peak_allocated_bytes": 39 * 2**30},
}  # fmt: skip


def written(folder, *rows, header=HEADER, end="\n"):
    path = folder / "a100.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (header, *rows)) + end)
    return path


def test_a_file_is_read_with_its_device_and_points(tmp_path):
    measurements = read_measurements(written(tmp_path, OK, OOM))
    assert (measurements.device.name, measurements.device.memory_bytes) == ("NVIDIA A100", 40 * 2**30)
    fine, failed = measurements.points
    assert (fine.outcome, fine.step_s, fine.point.batch, fine.memory.peak_reserved_bytes) == (
        MeasurementOutcome.OK,
        0.02,
        8,
        2**31,
    )
    assert (failed.outcome, failed.step_s) == (MeasurementOutcome.OOM, None)


def test_a_line_cut_off_by_a_kill_is_skipped(tmp_path):
    measurements = read_measurements(written(tmp_path, OK, end='\n{"kind": "poi'))
    assert len(measurements.points) == 1


def test_the_power_limit_of_the_card_is_a_feature_of_its_rows(tmp_path):
    limits = {"max_sm_mhz": 1410, "max_memory_mhz": None, "power_limit_w": 300.0}
    header = {**HEADER, "device": {**HEADER["device"], "limits": limits}}
    measurements = read_measurements(written(tmp_path, OK, header=header))
    assert measurements.device.power_limit_w == 300
    assert measured_records(measurements)[0].features["node_gpu_power_limit_w"] == 300
    unknown = read_measurements(written(tmp_path, OK))
    assert unknown.device.power_limit_w is None
    assert "node_gpu_power_limit_w" not in measured_records(unknown)[0].features


def test_out_of_memory_is_a_lower_bound_and_not_a_time(tmp_path):
    fine, failed = measured_records(read_measurements(written(tmp_path, OK, OOM)))
    assert (fine.state, failed.state) == (JobState.COMPLETED, JobState.OUT_OF_MEMORY)
    assert fine.metrics == {
        "step_s": 0.02,
        "gpu_memory_bytes": 2**30,
        "gpu_reserved_bytes": 2**31,
        "step_energy_j": 6.0,
    }
    assert failed.metrics == {"gpu_memory_bytes": 39 * 2**30, "gpu_reserved_bytes": 2**31}
    assert tuple(failed.features[name] for name in ("model", "batch", "node_device")) == (
        "resnet18",
        512,
        "NVIDIA A100",
    )
    assert "node_device" not in failed.parameters


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            [OK, OK],
            "line 3 of {path} has the point resnet18-224/training/fp32/sgd/b8 again: delete one of the two lines",
        ),
        ([OK, HEADER], "line 3 of {path} is a second header: read the files one by one, not joined"),
        ([{**OK, "step_s": None}], "line 2 of {path} is a point that ended well without a step time"),
        ([{**OK, "outcome": "odd"}], "line 2 of {path} cannot be read: Invalid enum value 'odd'"),
        ([{**OK, "memory": {"peak_allocated_bytes": 10**400}}], "line 2 of {path}: the number 1000"),
        ([{"kind": "point"}], "line 2 of {path} cannot be read: Object missing required field `key`"),
    ],
)
def test_a_wrong_line_is_an_error_naming_it(rows, says, tmp_path):
    path = written(tmp_path, *rows)
    with pytest.raises(InvalidInput) as caught:
        read_measurements(path)
    assert says.format(path=path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no measurements: make some with leadline measure"),
        ('{"schema": "leadline.history/1"}\n', "has the schema leadline.history/1, not leadline.measure/1"),
        ("a,b\n1,2\n", "line 1 of {path} cannot be read"),
        ('{"schema": "leadline.measure/1"}\n', "Object missing required field `device`"),
    ],
)
def test_another_kind_of_file_is_refused(text, says, tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_measurements(path)
    assert says.format(path=path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read: No such file or directory; check the path"):
        read_measurements(tmp_path / "none.jsonl")


@pytest.mark.slow
def test_a_file_that_the_kit_writes_now_is_read_whole(tmp_path):
    pytest.importorskip("torch")
    from leadline.kit.run import MeasureOptions, run_measurements

    path = tmp_path / "here.jsonl"

    def stop_after_six(summary, _):
        if summary.in_file == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_measurements(MeasureOptions(str(path), minutes=10, device="cpu", quick=True), stop_after_six)
    measurements = read_measurements(path)
    assert len(measurements.points) == len(measured_records(measurements)) == 6
    header, *points = (json.loads(line) for line in path.read_text().splitlines())
    assert header["device"]["type"] == "cpu"
    fine = [point for point in points if point["outcome"] == "ok"]
    assert fine
    profiled = [point for point in fine if not point.get("ops_reason")]
    assert len(profiled) >= 0.8 * len(fine)
    assert all(point["ops"] and point["ops_share"] > 0.3 and point["parameters"] > 0 for point in profiled)
    count = header["op_columns"].index("count")
    assert all(op[count] > 0 for point in fine for op in point["ops"])
