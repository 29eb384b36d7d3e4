"""The op law prices known devices by their own law, others by the mean of them, and refuses what it has not seen."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.dnn.setting_models import find_learned_classes, prior_op_utilization
from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, OpTable, index_ops
from leadline.estimators.step_time.op_utilization import OpBasis
from leadline.estimators.step_time.op_utilization_kernels import (
    OpUtilizationKernels,
    OpUtilizationModels,
    SettingModel,
    StepSetting,
    is_channels_last,
)
from tests.estimators.step_time.conftest import predict_graphs

KNOWN = Device(
    "Known", "nobody", DeviceKind.GPU, memory_bytes_per_s=1e12,
    peak_flops_per_s={"float32": 2e13, "float16": 1e14}, l2_bytes=6_000_000,
)  # fmt: skip
OTHER = replace(KNOWN, name="Other")
NEW = replace(KNOWN, name="New", memory_bytes_per_s=2e12)
DEVICES = {"Known": KNOWN, "Other": OTHER}
SEEN = np.array([name in ("conv_dense", "add", "conv_dense_backward") for name in KERNEL_CLASSES])


def conv(channels=64, stage=Stage.FORWARD, **dims):
    spec = TensorSpec((8, channels, 32, 32), "float16")
    sizes = {"n": 8, "c": channels, "k": channels, "h": 32, "w": 32, "r": 3, "s": 3, "groups": 1, "stride": 1, **dims}
    moved = 2.0 * 8 * channels * 32 * 32
    return Op("aten.convolution", OpKind.CONV, stage, "float16", 18.0 * channels * moved / 2, moved, moved,
              (spec,), (spec,), sizes)  # fmt: skip


def add(channels=64):
    spec = TensorSpec((8, channels, 32, 32), "float16")
    moved = 2.0 * 8 * channels * 32 * 32
    return Op(
        "aten.add", OpKind.ELEMENTWISE, Stage.FORWARD, "float16", moved / 2, 2 * moved, moved, (spec, spec), (spec,)
    )


def lookup():
    spec = TensorSpec((4096, 4096), "float16")
    return Op("aten.embedding", OpKind.EMBEDDING, Stage.FORWARD, "float16", 0.0, 1e8, 1e8, (spec,), (spec,))


VIEW = Op("aten.view", OpKind.COPY, Stage.FORWARD, "float16", 0.0, 0.0, 0.0)
GRAPH = OpGraph((conv(), add(), VIEW, replace(conv(), count=3), conv(128)))


def law(offset, variance=0.01):
    believed = prior_op_utilization()
    return replace(believed, offset=offset, variance=np.full(len(believed.f), variance))


@pytest.fixture
def laws():
    settings = {
        StepSetting.read("Known|inference|nchw|1.13"): law(5.0),
        StepSetting.read("Known|inference|nchw|2.4"): law(0.2),
        StepSetting.read("Known|inference|nhwc|2.4"): law(-0.5),
        StepSetting.read("Other|inference|nchw|2.9"): law(0.6),
    }
    return OpUtilizationModels({case: SettingModel(model, 0.5, SEEN, case.device) for case, model in settings.items()})


def under(weights, device, graph=GRAPH, learned_on=None):
    return float(
        predict_graphs(
            OpBasis.from_table(OpTable.from_graphs([graph.ops]), device, learned_on=learned_on), weights
        ).step_s[0]
    )


def test_a_known_device_uses_its_newest_release(laws):
    model = OpUtilizationKernels(laws, KNOWN, GRAPH, devices=DEVICES.get)
    assert Tier.LEARNED is model.tier
    assert model.step_s(GRAPH) == pytest.approx(under(law(0.2), KNOWN))


def test_another_device_has_the_mean_of_the_known_ones_by_its_own_figures(laws):
    each = [under(law(offset), NEW, learned_on=device) for offset, device in ((0.2, KNOWN), (0.6, OTHER))]
    assert pytest.approx(np.sqrt(each[0] * each[1])) == OpUtilizationKernels(
        laws, NEW, GRAPH, devices=DEVICES.get
    ).step_s(GRAPH)


def test_channels_last_has_its_own_model_and_falls_back_to_the_other(laws):
    last = OpGraph(tuple(replace(op, dims={**op.dims, "channels_last": 1}) for op in GRAPH.ops))
    assert is_channels_last(last)
    assert not is_channels_last(GRAPH)
    for device in (KNOWN, OTHER):
        carried = under(law(-0.5), device, last, learned_on=None if device is KNOWN else KNOWN)
        assert OpUtilizationKernels(laws, device, last, devices=DEVICES.get).step_s(last) == pytest.approx(carried)


def test_each_op_is_priced_in_its_place_and_views_take_nothing(laws):
    model = OpUtilizationKernels(laws, KNOWN, GRAPH, devices=DEVICES.get)
    seconds = model.ops_s(GRAPH.ops)
    assert seconds[2] == 0.0
    assert seconds[0] == seconds[3]
    assert seconds[4] > seconds[0] > seconds[1] > 0
    kernels_s = sum(second * op.count for second, op in zip(seconds, GRAPH.ops, strict=True))
    launches_s = sum(model.launch_s(op) * op.count for op in GRAPH.ops)
    assert max(kernels_s, launches_s) <= model.step_s(GRAPH) * (1 + 1e-9)
    assert model.step_s(GRAPH) < kernels_s + launches_s


def test_each_op_maps_to_its_table_row():
    table, where = index_ops(GRAPH.ops)
    assert where.tolist() == [0, 1, -1, 0, 2]
    assert table.count.tolist() == [4.0, 1.0, 1.0]


def test_a_phase_that_was_not_learned_is_refused(laws):
    backward = OpGraph((*GRAPH.ops, conv(stage=Stage.BACKWARD)))
    assert backward.is_training
    with pytest.raises(InvalidInput, match="no training steps were measured"):
        OpUtilizationKernels(laws, KNOWN, backward, devices=DEVICES.get)
    assert laws.has_device(KNOWN, training=False)
    assert not laws.has_device(KNOWN, training=True)
    assert not laws.has_device(NEW, training=False)
    assert [str(case) for case in sorted(laws.models)][:2] == ["Known|inference|nchw|1.13", "Known|inference|nchw|2.4"]


def test_time_in_kernels_never_learned_widens_the_interval_and_then_refuses(laws):
    plain = OpUtilizationKernels(laws, KNOWN, GRAPH, spread=0.1, devices=DEVICES.get)
    with_some = OpGraph((*(replace(op, count=50) for op in GRAPH.ops), lookup()))
    assert 0.1 < plain.spread_of(with_some) < 0.3
    with pytest.raises(InvalidInput, match=r"% of its time is in kernels of which no step was learned \(embedding\)"):
        OpUtilizationKernels(laws, KNOWN, OpGraph((*GRAPH.ops, lookup(), lookup())), devices=DEVICES.get)


def test_a_graph_farther_from_the_learned_ones_is_less_sure(laws):
    unsure = OpUtilizationModels({case: replace(model, law=law(0.2, 4.0)) for case, model in laws.models.items()})
    assert OpUtilizationKernels(laws, KNOWN, GRAPH, spread=0.1, devices=DEVICES.get).spread_of(GRAPH) == 0.1
    assert OpUtilizationKernels(unsure, KNOWN, GRAPH, spread=0.1, devices=DEVICES.get).spread_of(GRAPH) > 0.2


def test_a_device_that_is_no_gpu_is_refused(laws):
    with pytest.raises(InvalidInput, match="Known is a cpu, but steps were learned on GPUs"):
        OpUtilizationKernels(laws, replace(KNOWN, kind=DeviceKind.CPU), GRAPH, devices=DEVICES.get)


def test_a_state_restores_the_same_models(laws, tmp_path):
    np.savez(tmp_path / "laws.npz", **laws.dump())
    with np.load(tmp_path / "laws.npz", allow_pickle=False) as state:
        again = OpUtilizationModels.load(dict(state))
    assert list(laws.models) == list(again.models)
    for device in (KNOWN, OTHER, NEW):
        case, other = (OpUtilizationKernels(each, device, GRAPH, devices=DEVICES.get) for each in (laws, again))
        assert other.step_s(GRAPH) == pytest.approx(case.step_s(GRAPH), rel=1e-6)
        assert other.spread_of(GRAPH) == pytest.approx(case.spread_of(GRAPH), rel=1e-6)


def test_a_class_is_seen_where_enough_graphs_spend_time_in_it():
    many = OpBasis.from_table(OpTable.from_graphs([(conv(16 * (n + 1)), add()) for n in range(5)]), KNOWN)
    found = find_learned_classes(many, prior_op_utilization())
    assert {KERNEL_CLASSES[case] for case in np.flatnonzero(found)} == {"conv_dense", "add"}
    few = OpBasis.from_table(OpTable.from_graphs([(conv(16 * (n + 1)), add()) for n in range(4)]), KNOWN)
    assert not find_learned_classes(few, prior_op_utilization()).any()
