"""A convolution and both its gradients have the same operations, as frameworks count them."""

import importlib.util
from itertools import product

import pytest

from leadline.core.graph import OpKind
from leadline.core.workload import ModelKind, ModelSource, Phase, Workload
from leadline.graphs.hlo.read import traced_job

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the [jax] extra")

CASES = [
    *product((8,), (1, 3, 4), (1, 2), ("SAME", "VALID"), (1, 2), (1, 4), (False,)),
    *product((8,), (1, 3, 4), (1, 2), ("SAME", "VALID"), (1,), (1,), (True,)),
]


def convolution_flops(function, *shapes):
    import jax

    text = jax.jit(function).lower(*shapes).as_text()
    workload = Workload(ModelSource(ModelKind.HLO, "text"), phase=Phase.INFERENCE)
    ops = traced_job(text, workload, device_type="cuda").step.ops
    return sum(op.flops * op.count for op in ops if op.kind is OpKind.CONV)


@pytest.mark.parametrize(("size", "taps", "stride", "padding", "spread", "groups", "is_transposed"), CASES)
def test_gradients_count_as_the_forward_pass(size, taps, stride, padding, spread, groups, is_transposed):
    import jax

    images = jax.ShapeDtypeStruct((2, size, size, 8), "float32")
    filters = jax.ShapeDtypeStruct((taps, taps, 8 // groups, 16), "float32")
    names = ("NHWC", "HWIO", "NHWC")

    def forward(images, filters):
        if is_transposed:
            return jax.lax.conv_transpose(images, filters, (stride, stride), padding, dimension_numbers=names)
        return jax.lax.conv_general_dilated(
            images, filters, (stride, stride), padding, rhs_dilation=(spread, spread), dimension_numbers=names,
            feature_group_count=groups,
        )  # fmt: skip

    result = jax.eval_shape(forward, images, filters)
    positions = images.size // 8 if is_transposed else result.size // 16
    flops = 2 * positions * filters.size  # each position meets each number of the filters
    assert convolution_flops(forward, images, filters) == flops
    for argument in (0, 1):

        def gradient(images, filters, cotangent, argument=argument):
            return jax.vjp(forward, images, filters)[1](cotangent)[argument]

        assert convolution_flops(gradient, images, filters, result) == flops
