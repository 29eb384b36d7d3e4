"""The backward pass of fused attention holds what PyTorch's sources allocate: sums, and gradients in float32."""

from dataclasses import replace

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent, TensorSpec
from leadline.core.hardware import Device, DeviceKind
from leadline.estimators.attention_scratch import attention_bytes
from leadline.estimators.device_memory import peak_memory
from leadline.estimators.workspaces import with_workspaces

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
    assert 4 * B * H * 1024 * (1 + rounded) == attention_bytes(backward(d=d), "nvidia")


def test_a_tile_that_is_full_needs_no_more_and_the_next_query_opens_another():
    assert attention_bytes(backward(q=1024), "nvidia") == attention_bytes(backward(), "nvidia")
    assert attention_bytes(backward(q=1025), "nvidia") - attention_bytes(backward(), "nvidia") == 4 * B * H * 128 * 97


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_where_heads_share_keys_their_gradients_are_made_for_each_head_of_the_queries(dtype):
    alone, shared = (attention_bytes(backward(dtype=dtype, heads=heads, kv=700), "nvidia") for heads in (H, 2))
    assert shared - alone == 2 * 2 * B * H * 700 * D


def test_heads_are_counted_where_each_kernel_has_them():
    turned = [TensorSpec((B, Q, heads, D), "bfloat16") for heads in (H, H, 2, 2)]
    op = replace(backward(heads=2), name="aten._flash_attention_backward", inputs=tuple(turned))
    assert attention_bytes(backward(heads=2), "nvidia") == attention_bytes(op, "nvidia")


def test_the_efficient_kernel_holds_the_gradient_of_queries_in_tiles_with_their_locks():
    tiles = 16 * 1 * (64 * 64 + 4)
    assert 4 * B * H * (Q + tiles) == attention_bytes(backward(EFFICIENT, d=64), "nvidia")
    wide = 8 * 1 * (128 * 128 + 4)
    assert 4 * B * H * (Q + wide) == attention_bytes(backward(EFFICIENT), "nvidia")


def test_in_float32_tiles_are_narrower_and_the_product_of_gradient_and_result_is_there_before():
    tiles = 8 * 2 * (128 * 64 + 4)
    assert 4 * B * H * (Q + tiles) == attention_bytes(backward(EFFICIENT, dtype="float32"), "nvidia")
    product = 1024 * 512 + 2 * 1024
    assert 4 * B * H * product == attention_bytes(
        backward(EFFICIENT, dtype="float32", q=1024, d=128, values=512), "nvidia"
    )


@pytest.mark.parametrize(("batch", "parts"), [(1, 16), (2, 12), (40, 1)])
def test_wide_heads_in_half_precision_take_a_tile_for_each_part_of_the_keys(batch, parts):
    tiles, keys = 8 * 4 * (128 * 64 + 4), parts * 64 * (256 + 256)
    found = attention_bytes(backward(EFFICIENT, d=200, q=1024, kv=1024, b=batch), "nvidia")
    assert 4 * batch * H * (1024 + tiles + keys) == found


@pytest.mark.parametrize(
    "other",
    [backward("aten._scaled_dot_product_flash_attention"), backward("aten._scaled_dot_product_efficient_attention"),
     backward("aten._scaled_dot_product_flash_attention_for_cpu_backward"),
     backward("aten._scaled_dot_product_cudnn_attention_backward"), replace(backward(), dims={})],
)  # fmt: skip
def test_other_kernels_and_unknown_sizes_take_none(other):
    assert attention_bytes(other, "nvidia") == 0


def test_amds_kernels_hold_the_sums_alone():
    assert [attention_bytes(backward(one), "amd") for one in (FLASH, EFFICIENT)] == [2 * 4 * B * H * Q, 4 * B * H * Q]


def test_a_step_on_a_gpu_of_nvidia_peaks_higher_by_it_than_its_tensors():
    events = (StorageEvent(0, 1, 1000, StorageCategory.ACTIVATION), StorageEvent(1, 1, -1000))
    graph = OpGraph((backward(heads=2),), events, source="torch")
    vendors = {vendor: Device("one", vendor, DeviceKind.GPU, architecture="Ampere") for vendor in ("nvidia", "amd")}
    for vendor, device in vendors.items():
        taken = attention_bytes(graph.ops[0], vendor)
        assert 1000 + taken == peak_memory(with_workspaces(graph, device)).allocated_bytes
        assert taken == peak_memory(with_workspaces(graph, device)).by_category[StorageCategory.TEMPORARY]
    assert graph == with_workspaces(graph, replace(vendors["amd"], kind=DeviceKind.CPU))
