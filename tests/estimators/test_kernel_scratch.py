"""Kernels take their workspaces while they run, and only where there are any."""

from dataclasses import replace

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.device_memory import peak_memory
from leadline.estimators.kernel_scratch import Kernels, kernels_of, scratch_bytes, with_scratch

V100, A100 = Kernels(transformed=True), Kernels(transformed=False)
SIZES = {"n": 2, "c": 2560, "k": 512, "h": 64, "w": 128, "r": 3, "s": 3, "groups": 1, "stride": 1, "dilation": 1}
CONVOLUTION = Op("aten.convolution", OpKind.CONV, Stage.FORWARD, "float32", 1.0, 1.0, 1.0, dims=SIZES)
TRANSFORMED = 4 * 36 * ((2560 + 512) * 2 * 16 * 32 + 2560 * 512)


def with_sizes(**changed):
    return replace(CONVOLUTION, dims={**SIZES, **changed})


def test_the_transforms_of_the_last_convolution_of_deeplab_take_six_hundred_mebibytes():
    assert scratch_bytes(CONVOLUTION, V100) == TRANSFORMED
    assert TRANSFORMED >> 20 == 612


@pytest.mark.parametrize(
    "other",
    [
        with_sizes(r=1, s=1), with_sizes(stride=2), with_sizes(dilation=2), with_sizes(groups=32),
        with_sizes(transposed=1), replace(CONVOLUTION, dtype="float16"), replace(CONVOLUTION, dims={}),
        replace(CONVOLUTION, kind=OpKind.GEMM),
    ],
)  # fmt: skip
def test_other_convolutions_take_none(other):
    assert scratch_bytes(other, V100) == 0


def test_odd_sizes_are_filled_up_to_whole_tiles():
    assert scratch_bytes(with_sizes(h=61, w=125), V100) == scratch_bytes(CONVOLUTION, V100)
    assert scratch_bytes(with_sizes(h=65), V100) > scratch_bytes(CONVOLUTION, V100)


def test_a_workspace_lies_beside_the_tensors_of_its_own_op_alone():
    small, kinds = 1000, StorageCategory
    events = (
        StorageEvent(0, 1, small, kinds.PARAMETER), StorageEvent(0, 2, 300, kinds.ACTIVATION),
        StorageEvent(1, 2, -300, kinds.ACTIVATION), StorageEvent(1, 3, 100, kinds.ACTIVATION),
    )  # fmt: skip
    gemm = Op("aten.mm", OpKind.GEMM, Stage.FORWARD, "float32", 1.0, 1.0, 1.0)
    early, late = (OpGraph(ops, events) for ops in ((CONVOLUTION, gemm), (gemm, CONVOLUTION)))
    assert small + 300 == peak_memory(early).allocated_bytes
    assert small + 300 + TRANSFORMED == peak_memory(with_scratch(early, V100)).allocated_bytes
    assert small + 100 + TRANSFORMED == peak_memory(with_scratch(late, V100)).allocated_bytes
    assert peak_memory(with_scratch(late, V100)).by_category[kinds.TEMPORARY] == TRANSFORMED


def test_a_graph_without_such_convolutions_stays_as_it_is():
    events = (StorageEvent(0, 7, 10, StorageCategory.INPUT), StorageEvent(1, 7, -10, StorageCategory.INPUT))
    graph = OpGraph((replace(CONVOLUTION, dims={}),), events)
    assert graph is with_scratch(graph, V100)


def test_where_convolutions_are_not_transformed_they_take_none():
    assert scratch_bytes(CONVOLUTION, A100) == 0


@pytest.mark.parametrize("dtype", [("float32", 4), ("bfloat16", 2)])
def test_softmax_takes_the_product_of_gradient_and_result_on_any_gpu(dtype):
    name, width = dtype
    outputs = (TensorSpec((2, 8, 64, 64), name),)
    backward = Op("aten._softmax_backward_data", OpKind.SOFTMAX, Stage.BACKWARD, name, 1.0, 1.0, 1.0, outputs=outputs)
    assert width * 2 * 8 * 64 * 64 == scratch_bytes(backward, A100)
    assert scratch_bytes(replace(backward, name="aten._log_softmax_backward_data"), V100) == 0


@pytest.mark.parametrize(
    ("vendor", "kind", "peaks", "told"),
    [
        ("nvidia", DeviceKind.GPU, {"float32": 15.7e12}, True),
        ("nvidia", DeviceKind.GPU, {"float32": 19.5e12, "tf32": 156e12}, False),
        ("nvidia", DeviceKind.GPU, {"float16": 1e12}, False),
        ("amd", DeviceKind.GPU, {"float32": 23.1e12}, False),
        ("intel", DeviceKind.CPU, {"float32": 1e12}, False),
    ],
)
def test_only_gpus_of_nvidia_without_tf32_transform(vendor, kind, peaks, told):
    assert told is kernels_of(Device("one", vendor, kind, peak_flops_per_s=peaks)).transformed
