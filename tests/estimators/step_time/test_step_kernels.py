"""Estimators of whole steps: the table that the black box reads, and how a step is shared out."""

from dataclasses import replace

import numpy as np
import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec
from leadline.core.runs import Sample, Scale
from leadline.estimators.step_time.op_table import OpTable
from leadline.estimators.step_time.op_utilization_kernels import StepSetting
from leadline.estimators.step_time.step_kernels import LAUNCH_S, BlackBoxKernels, step_features
from leadline.estimators.tabular.registry import ESTIMATORS

SETTING = StepSetting("RTX 4090", training=False, channels_last=False, release=(2, 4))


def known(name):
    return TomlCatalog(None).device(name)


def product(side, count=1):
    spec = TensorSpec((side, side), "float16")
    return Op(
        "aten.mm", OpKind.GEMM, Stage.FORWARD, "float16", 2.0 * side**3, 4.0 * side**2, 2.0 * side**2, (spec, spec),
        (spec,), dims={"b": 1, "m": side, "n": side, "k": side}, count=count,
    )  # fmt: skip


def addition(side):
    spec = TensorSpec((side, side), "float16")
    return Op("aten.add", OpKind.ELEMENTWISE, Stage.FORWARD, "float16", float(side**2), 4.0 * side**2, 2.0 * side**2,
              (spec, spec), (spec,))  # fmt: skip


def test_a_table_row_describes_the_step_and_its_device():
    device = known("RTX 4090")
    rows, ideal_s = step_features(OpTable.from_graphs([[product(1024), addition(1024)]]), [(0, device, SETTING)])
    flops, moved = 2.0 * 1024**3 + 1024**2, 12.0 * 1024**2
    expected_s = flops / device.peak_flops_per_s["float16"] + moved / device.memory_bytes_per_s + 2 * LAUNCH_S
    assert ideal_s == pytest.approx([expected_s])
    assert {name: rows[0][name] for name in ("phase", "layout", "release", "launches")} == {
        "phase": "inference",
        "layout": "nchw",
        "release": "2.4",
        "launches": 2.0,
    }
    assert (rows[0]["share_gemm"], rows[0]["share_add"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert not any(name.startswith("share_conv") for name in rows[0])


def test_a_device_without_a_bandwidth_is_refused_by_name():
    bare = replace(known("RTX 4090"), name="A new card", memory_bytes_per_s=None)
    with pytest.raises(InvalidInput, match="A new card's float16 peak or its bandwidth"):
        step_features(OpTable.from_graphs([[product(64)]]), [(0, bare, SETTING)])


@pytest.fixture
def taught():
    """A black box that learned that steps take three times the ideal, whatever they are."""
    device, samples = known("RTX 4090"), []
    for side in range(128, 128 * 40, 64):
        rows, _ = step_features(OpTable.from_graphs([[product(side), addition(side)]]), [(0, device, SETTING)])
        samples.append(Sample(rows[0], 3.0, Scale.FULL_SCALE))
    return ESTIMATORS["boosting"].fit(samples)


@pytest.mark.parametrize("name", ["RTX 4090", "T4"])
def test_a_step_takes_the_learned_multiple_of_its_ideal_time(taught, name):
    device, graph = known(name), OpGraph((product(1000), addition(1000)))
    _, ideal_s = step_features(OpTable.from_graphs([graph.ops]), [(0, device, SETTING)])
    model = BlackBoxKernels(taught, device, SETTING)
    assert model.step_s(graph) == pytest.approx(3 * ideal_s[0])


def test_the_ops_of_a_step_share_it_and_each_call_counts(taught):
    ops = (product(1000, count=3), addition(1000))
    model = BlackBoxKernels(taught, known("RTX 4090"), SETTING)
    seconds = np.array(model.ops_s(ops))
    assert (seconds > 0).all()
    assert 3 * seconds[0] + seconds[1] == pytest.approx(model.step_s(OpGraph(ops)))


def test_a_processor_is_refused():
    processor = next(case for case in TomlCatalog(None).devices() if case.kind.value == "cpu")
    with pytest.raises(InvalidInput, match="the black box learned on GPUs"):
        BlackBoxKernels(ESTIMATORS["boosting"].fit([Sample({"x": float(i)}, 1.0, Scale.FULL_SCALE) for i in range(9)]),
                        processor, SETTING)  # fmt: skip
