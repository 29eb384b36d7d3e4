"""Ops as arrays: classes, counts and sizes."""

import numpy as np
import pytest

from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, LARGEST_INDEX, OpTable, kernel_class


def op(name="aten.add.Tensor", kind=OpKind.ELEMENTWISE, stage=Stage.FORWARD, shape=(8, 16), **more):
    given = {"flops": 0.0, "bytes_read": 64.0, "bytes_written": 32.0, "inputs": (TensorSpec(shape, "float32"),),
             "outputs": (TensorSpec(shape, "float32"),)}  # fmt: skip
    return Op(name, kind, stage, "float32", **{**given, **more})


def convolution(c, k, groups, **more):
    dims = {"n": 2, "c": c, "k": k, "h": 8, "w": 8, "r": 3, "s": 3, "groups": groups, "stride": 1, "dilation": 1}
    return op("aten.convolution", OpKind.CONV, shape=(2, c, 8, 8), flops=1e6, dims={**dims, **more})


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("conv_depthwise", convolution(32, 32, 32)),
        ("conv_grouped", convolution(32, 64, 4)),
        ("conv_dense", convolution(32, 32, 1)),
        ("conv_pointwise", convolution(32, 32, 1, r=1, s=1)),
        ("gemm", op("aten.addmm", OpKind.GEMM, dims={"m": 4, "n": 4, "k": 4})),
        ("batched_gemm", op("aten.bmm", OpKind.GEMM, dims={"b": 3, "m": 4, "n": 4, "k": 4})),
        ("batch_norm_backward", op("aten.native_batch_norm_backward", OpKind.NORM, Stage.BACKWARD)),
        ("cast", op("aten._to_copy", OpKind.COPY)),
        ("reflection_pad_backward", op("aten.reflection_pad2d_backward", OpKind.COPY, Stage.BACKWARD)),
        ("add", op("aten.add_.Tensor")),
        ("transcendental", op("aten.gelu")),
        ("upsample", op("aten.upsample_nearest2d", OpKind.POOL)),
        ("optimizer", op("aten._foreach_add_", OpKind.OPTIMIZER, Stage.OPTIMIZER)),
    ],
)
def test_a_kernel_class_follows_from_kind_name_and_stage(expected, given):
    assert expected == kernel_class(given)
    assert expected in KERNEL_CLASSES


def test_views_are_left_out_and_equal_ops_counted():
    view = op("aten.view", OpKind.OTHER, bytes_read=0.0, bytes_written=0.0)
    table = OpTable.from_graphs([[op(), view, op(count=3)], [view], [op(shape=(4, 4))]])
    assert table.count.tolist() == [4.0, 1.0]
    assert table.first.tolist() == [0, 1, 1, 2]
    assert table.launches.tolist() == [4.0, 0.0, 1.0]
    assert table.owner.tolist() == [0, 2]


def test_properties_that_select_another_kernel_are_marked():
    odd_width, even_width = (OpTable.from_graphs([[convolution(c, c, 4)]]).sizes[0] for c in (4 * 72, 4 * 64))
    assert (odd_width[15], even_width[15]) == (1.0, 0.0)
    odd_channels, even_channels = (OpTable.from_graphs([[convolution(c, c, c)]]).sizes[0] for c in (36, 32))
    assert (odd_channels[6], even_channels[6]) == (1.0, 0.0)
    long = OpTable.from_graphs([[op(shape=(LARGEST_INDEX // 4, 4))]]).sizes[0]
    assert long[14] == 1.0


def test_counted_graphs_are_the_same_table():
    ops = [op(shape=(2, 2)), op(shape=(4, 4))]
    counted = OpTable.from_counts(ops, [{0: 2.0, 1: 1.0}, {1: 5.0}])
    written = OpTable.from_graphs([[ops[0], ops[0], ops[1]], [op(shape=(4, 4), count=5)]])
    assert np.array_equal(counted.sizes, written.sizes)
    assert counted.count.tolist() == written.count.tolist()
    assert counted.first.tolist() == written.first.tolist()
