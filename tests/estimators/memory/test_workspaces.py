"""The backward pass of fused attention holds what PyTorch's sources allocate: sums, and gradients in float32."""

from dataclasses import replace

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import MIB
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.memory.workspaces import (
    Workspaces,
    add_scratch,
    add_workspaces,
    attention_scratch_bytes,
    scratch_bytes,
)

B, H, Q, D = 2, 8, 1000, 80
FLASH = "aten._scaled_dot_product_flash_attention_backward"
EFFICIENT = "aten._scaled_dot_product_efficient_attention_backward"


def backward(name=FLASH, *, dtype="bfloat16", heads=H, q=Q, kv=Q, d=D, values=None, b=B):
    shapes = ((b, H, q, values or d), (b, H, q, d), (b, heads, kv, d), (b, heads, kv, values or d))
    inputs = tuple(TensorSpec(shape, dtype) for shape in shapes)
    dims = {"b": b, "h": H, "q": q, "kv": kv, "d": d}
    return Op(name, OpKind.ATTENTION, Stage.BACKWARD, dtype, 1.0, 1.0, 1.0, inputs, dims=dims)


@pytest.mark.parametrize(("d", "rounded"), [(64, 64), (80, 96), (128, 128), (160, 192), (256, 256)])
def test_flash_attention_adds_up_the_gradient_of_whole_tiles_in_float32(d, rounded):
    assert 4 * B * H * 1024 * (1 + rounded) == attention_scratch_bytes(backward(d=d), "nvidia")


def test_a_tile_that_is_full_needs_no_more_and_the_next_query_opens_another():
    assert attention_scratch_bytes(backward(q=1024), "nvidia") == attention_scratch_bytes(backward(), "nvidia")
    assert (
        attention_scratch_bytes(backward(q=1025), "nvidia") - attention_scratch_bytes(backward(), "nvidia")
        == 4 * B * H * 128 * 97
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_where_heads_share_keys_their_gradients_are_made_for_each_head_of_the_queries(dtype):
    alone, shared = (attention_scratch_bytes(backward(dtype=dtype, heads=heads, kv=700), "nvidia") for heads in (H, 2))
    assert shared - alone == 2 * 2 * B * H * 700 * D


def test_heads_are_counted_where_each_kernel_has_them():
    turned = [TensorSpec((B, Q, heads, D), "bfloat16") for heads in (H, H, 2, 2)]
    op = replace(backward(heads=2), name="aten._flash_attention_backward", inputs=tuple(turned))
    assert attention_scratch_bytes(backward(heads=2), "nvidia") == attention_scratch_bytes(op, "nvidia")


def test_the_efficient_kernel_holds_the_gradient_of_queries_in_tiles_with_their_locks():
    tiles = 16 * 1 * (64 * 64 + 4)
    assert 4 * B * H * (Q + tiles) == attention_scratch_bytes(backward(EFFICIENT, d=64), "nvidia")
    wide = 8 * 1 * (128 * 128 + 4)
    assert 4 * B * H * (Q + wide) == attention_scratch_bytes(backward(EFFICIENT), "nvidia")


def test_in_float32_tiles_are_narrower_and_the_product_of_gradient_and_result_is_there_before():
    tiles = 8 * 2 * (128 * 64 + 4)
    assert 4 * B * H * (Q + tiles) == attention_scratch_bytes(backward(EFFICIENT, dtype="float32"), "nvidia")
    product = 1024 * 512 + 2 * 1024
    assert 4 * B * H * product == attention_scratch_bytes(
        backward(EFFICIENT, dtype="float32", q=1024, d=128, values=512), "nvidia"
    )


@pytest.mark.parametrize(("batch", "parts"), [(1, 16), (2, 12), (40, 1)])
def test_wide_heads_in_half_precision_take_a_tile_for_each_part_of_the_keys(batch, parts):
    tiles, keys = 8 * 4 * (128 * 64 + 4), parts * 64 * (256 + 256)
    found = attention_scratch_bytes(backward(EFFICIENT, d=200, q=1024, kv=1024, b=batch), "nvidia")
    assert 4 * batch * H * (1024 + tiles + keys) == found


@pytest.mark.parametrize(
    "other",
    [backward("aten._scaled_dot_product_flash_attention"), backward("aten._scaled_dot_product_efficient_attention"),
     backward("aten._scaled_dot_product_flash_attention_for_cpu_backward"),
     backward("aten._scaled_dot_product_cudnn_attention_backward"), replace(backward(), dims={})],
)  # fmt: skip
def test_other_kernels_and_unknown_sizes_take_none(other):
    assert attention_scratch_bytes(other, "nvidia") == 0


def test_amds_kernels_hold_the_sums_alone():
    assert [attention_scratch_bytes(backward(case), "amd") for case in (FLASH, EFFICIENT)] == [
        2 * 4 * B * H * Q,
        4 * B * H * Q,
    ]


def test_a_step_on_a_gpu_of_nvidia_peaks_higher_by_it_than_its_tensors():
    events = (StorageEvent(0, 1, 1000, StorageCategory.ACTIVATION), StorageEvent(1, 1, -1000))
    graph = OpGraph((backward(heads=2),), events, source="torch")
    vendors = {vendor: Device("one", vendor, DeviceKind.GPU, architecture="Ampere") for vendor in ("nvidia", "amd")}
    for vendor, device in vendors.items():
        taken = attention_scratch_bytes(graph.ops[0], vendor)
        assert 1000 + taken == peak_memory(add_workspaces(graph, device)).allocated_bytes
        assert taken == peak_memory(add_workspaces(graph, device)).by_category[StorageCategory.TEMPORARY]
    assert graph == add_workspaces(graph, replace(vendors["amd"], kind=DeviceKind.CPU))


V100, A100_PEAKS = Workspaces(transformed=True), Workspaces(transformed=False)
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


def test_scratch_coexists_only_with_its_own_ops_tensors():
    small, kinds = 1000, StorageCategory
    events = (
        StorageEvent(0, 1, small, kinds.PARAMETER), StorageEvent(0, 2, 300, kinds.ACTIVATION),
        StorageEvent(1, 2, -300, kinds.ACTIVATION), StorageEvent(1, 3, 100, kinds.ACTIVATION),
    )  # fmt: skip
    gemm = Op("aten.mm", OpKind.GEMM, Stage.FORWARD, "float32", 1.0, 1.0, 1.0)
    early, late = (OpGraph(ops, events) for ops in ((CONVOLUTION, gemm), (gemm, CONVOLUTION)))
    assert small + 300 == peak_memory(early).allocated_bytes
    assert small + 300 + TRANSFORMED == peak_memory(add_scratch(early, V100)).allocated_bytes
    assert small + 100 + TRANSFORMED == peak_memory(add_scratch(late, V100)).allocated_bytes
    assert peak_memory(add_scratch(late, V100)).by_category[kinds.TEMPORARY] == TRANSFORMED


def test_a_graph_without_such_convolutions_stays_as_it_is():
    events = (StorageEvent(0, 7, 10, StorageCategory.INPUT), StorageEvent(1, 7, -10, StorageCategory.INPUT))
    graph = OpGraph((replace(CONVOLUTION, dims={}),), events)
    assert graph is add_scratch(graph, V100)


def test_where_convolutions_are_not_transformed_they_take_none():
    assert scratch_bytes(CONVOLUTION, A100_PEAKS) == 0


@pytest.mark.parametrize("dtype", [("float32", 4), ("bfloat16", 2)])
def test_softmax_takes_the_product_of_gradient_and_result_on_any_gpu(dtype):
    name, width = dtype
    outputs = (TensorSpec((2, 8, 64, 64), name),)
    backward = Op("aten._softmax_backward_data", OpKind.SOFTMAX, Stage.BACKWARD, name, 1.0, 1.0, 1.0, outputs=outputs)
    assert width * 2 * 8 * 64 * 64 == scratch_bytes(backward, A100_PEAKS)
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
    assert told is Workspaces.of(Device("one", vendor, kind, peak_flops_per_s=peaks)).transformed


A100 = Device("A100", "nvidia", DeviceKind.GPU, architecture="Ampere")
H100 = replace(A100, name="H100", architecture="Hopper")
MI300X = Device("MI300X", "amd", DeviceKind.GPU, architecture="CDNA3")
CPU = Device("CPU", "amd", DeviceKind.CPU, architecture="Zen 4")


def multiplying(*stages, kind=OpKind.GEMM, source="torch"):
    return OpGraph(tuple(Op("mm", kind, stage, "float32", 1.0, 1.0, 1.0) for stage in stages), source=source)


def held(graph, device):
    return peak_memory(add_workspaces(graph, device)).by_category.get(StorageCategory.WORKSPACE, 0)


@pytest.mark.parametrize(("device", "expected"), [(A100, 8519680), (H100, 32 * MIB), (MI300X, 128 * MIB), (CPU, 0)])
def test_a_pass_forward_holds_one_workspace_of_its_device(device, expected):
    """8,519,680 bytes are what PyTorch's memory snapshots show beside the first product before Hopper."""
    assert expected == held(multiplying(Stage.FORWARD, Stage.FORWARD), device)


def test_training_holds_one_more_for_the_thread_of_the_backward_pass():
    assert held(multiplying(Stage.FORWARD, Stage.BACKWARD), H100) == 2 * 32 * MIB


@pytest.mark.parametrize("graph", [multiplying(), multiplying(Stage.FORWARD, kind=OpKind.CONV),
                                   multiplying(Stage.FORWARD, source="stablehlo")])  # fmt: skip
def test_without_products_of_pytorch_there_is_none(graph):
    assert graph == add_workspaces(graph, H100)


def test_small_workspaces_share_a_segment():
    assert peak_memory(add_workspaces(multiplying(Stage.FORWARD, Stage.BACKWARD), A100)).reserved_bytes == 20 * MIB


def test_a_gpu_without_tf32_needs_scratch_for_convolution_transforms():
    sizes = {"n": 2, "c": 64, "k": 64, "h": 64, "w": 64, "r": 3, "s": 3, "groups": 1, "stride": 1, "dilation": 1}
    convolution = Op("conv", OpKind.CONV, Stage.FORWARD, "float32", 1.0, 1.0, 1.0, dims=sizes)
    volta = replace(A100, name="V100", architecture="Volta", peak_flops_per_s={"float32": 15.7e12})
    ampere = replace(volta, peak_flops_per_s={"float32": 19.5e12, "tf32": 156e12})
    graph = OpGraph((convolution,), source="torch")
    assert (
        scratch_bytes(convolution, Workspaces(transformed=True))
        == peak_memory(add_workspaces(graph, volta)).allocated_bytes
    )
    assert graph == add_workspaces(graph, ampere)
    assert graph != add_workspaces(graph, volta)
    assert replace(graph, source="onnx") == add_workspaces(replace(graph, source="onnx"), volta)
