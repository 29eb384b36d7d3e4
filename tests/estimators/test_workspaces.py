"""Workspaces of products: as large as PyTorch makes them, one for each thread that multiplies."""

from dataclasses import replace

import pytest

from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import MIB
from leadline.estimators.device_memory import peak_memory
from leadline.estimators.kernel_scratch import Kernels, scratch_bytes
from leadline.estimators.workspaces import with_workspaces

A100 = Device("A100", "nvidia", DeviceKind.GPU, architecture="Ampere")
H100 = replace(A100, name="H100", architecture="Hopper")
MI300X = Device("MI300X", "amd", DeviceKind.GPU, architecture="CDNA3")
CPU = Device("CPU", "amd", DeviceKind.CPU, architecture="Zen 4")


def multiplying(*stages, kind=OpKind.GEMM, source="torch"):
    return OpGraph(tuple(Op("mm", kind, stage, "float32", 1.0, 1.0, 1.0) for stage in stages), source=source)


def held(graph, device):
    return peak_memory(with_workspaces(graph, device)).by_category.get(StorageCategory.WORKSPACE, 0)


@pytest.mark.parametrize(("device", "expected"), [(A100, 8519680), (H100, 32 * MIB), (MI300X, 128 * MIB), (CPU, 0)])
def test_a_pass_forward_holds_one_workspace_of_its_device(device, expected):
    """8,519,680 bytes are what PyTorch's memory snapshots show beside the first product before Hopper."""
    assert expected == held(multiplying(Stage.FORWARD, Stage.FORWARD), device)


def test_training_holds_one_more_for_the_thread_of_the_backward_pass():
    assert held(multiplying(Stage.FORWARD, Stage.BACKWARD), H100) == 2 * 32 * MIB


@pytest.mark.parametrize("graph", [multiplying(), multiplying(Stage.FORWARD, kind=OpKind.CONV),
                                   multiplying(Stage.FORWARD, source="stablehlo")])  # fmt: skip
def test_without_products_of_pytorch_there_is_none(graph):
    assert graph == with_workspaces(graph, H100)


def test_small_workspaces_share_a_segment():
    assert peak_memory(with_workspaces(multiplying(Stage.FORWARD, Stage.BACKWARD), A100)).reserved_bytes == 20 * MIB


def test_a_gpu_without_tf32_takes_the_transforms_of_its_convolutions_beside():
    sizes = {"n": 2, "c": 64, "k": 64, "h": 64, "w": 64, "r": 3, "s": 3, "groups": 1, "stride": 1, "dilation": 1}
    convolution = Op("conv", OpKind.CONV, Stage.FORWARD, "float32", 1.0, 1.0, 1.0, dims=sizes)
    volta = replace(A100, name="V100", architecture="Volta", peak_flops_per_s={"float32": 15.7e12})
    ampere = replace(volta, peak_flops_per_s={"float32": 19.5e12, "tf32": 156e12})
    graph = OpGraph((convolution,), source="torch")
    assert (
        scratch_bytes(convolution, Kernels(transformed=True))
        == peak_memory(with_workspaces(graph, volta)).allocated_bytes
    )
    assert graph == with_workspaces(graph, ampere)
    assert graph != with_workspaces(graph, volta)
    assert replace(graph, source="onnx") == with_workspaces(replace(graph, source="onnx"), volta)
