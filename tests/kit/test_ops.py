"""What a step consists of: told by torch's own events, of a CPU for real and of a GPU as the profiler builds them."""

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from leadline.kit import OP_COLUMNS
from leadline.kit.measure import MAX_OPS, count_flops, profile_ops, summarize_ops


def rows(summary):
    return [dict(zip(OP_COLUMNS, row, strict=True)) for row in summary["ops"]]


def test_a_product_on_the_cpu_is_found_with_its_shapes_and_calls():
    left, right = torch.randn(64, 32), torch.randn(32, 16)
    summary = profile_ops(lambda: [left @ right for _ in range(3)], "cpu", lambda: None)
    (product,) = [row for row in rows(summary) if row["op"] == "aten::mm"]
    assert (product["shapes"], product["count"]) == ([[64, 32], [32, 16]], 3)
    assert product["host_s"] > 0
    assert product["device_s"] is None
    assert summary["ops_share"] == pytest.approx(1, abs=0.01)
    assert summary["device_busy_s"] is None


def event(number, name, start_us, end_us, *, device=DeviceType.CPU, shapes=(), annotation=False):
    return FunctionEvent(
        id=number, name=name, thread=1, start_us=start_us, end_us=end_us, device_type=device,
        input_shapes=[list(shape) for shape in shapes], is_user_annotation=annotation,
    )  # fmt: skip


def gpu_events():
    """Return two products of one shape with two kernels each, one sum, and what an optimizer's mark looks like."""
    first, second = (
        event(1, "aten::mm", 0, 10, shapes=[(4, 8), (8, 2)]),
        event(2, "aten::mm", 20, 30, shapes=[(4, 8), (8, 2)]),
    )
    added = event(3, "aten::add", 40, 45, shapes=[(4, 2), (), (4, 2)])
    for product in (first, second):
        product.append_kernel("gemm_tn", 0, 100.0)
        product.append_kernel("splitk_reduce", 0, 20.0)
    added.append_kernel("vectorized_add", 0, 5.0)
    kernels = [event(10 + at, "kernel", 100 * at, 100 * at + took, device=DeviceType.CUDA)
               for at, took in enumerate((100, 20, 100, 20, 5, 30))]  # fmt: skip
    marks = [event(20, "my span", 0, 10_000, device=DeviceType.CUDA, annotation=True),
             event(21, "Optimizer.step#SGD.step", 0, 10_000, device=DeviceType.CUDA)]  # fmt: skip
    return [first, second, added, event(4, "aten::view", 50, 51, shapes=[(4, 2)]), *kernels, *marks]


def test_gpu_kernels_count_for_the_op_that_launched_them():
    summary = summarize_ops(gpu_events(), on_device=True)
    product, added = rows(summary)
    assert (
        product["op"], product["shapes"], product["count"], product["kernels"], product["kernel"],
    ) == ("aten::mm", [[4, 8], [8, 2]], 2, 4, "gemm_tn")  # fmt: skip
    assert product["device_s"] == pytest.approx(240e-6)
    assert product["host_s"] == pytest.approx(20e-6)
    assert (added["op"], pytest.approx(added["device_s"])) == ("aten::add", 5e-6)
    assert summary["kernels"] == 5


def test_orphan_kernels_and_span_markers_are_not_attributed():
    summary = summarize_ops(gpu_events(), on_device=True)
    assert summary["device_busy_s"] == pytest.approx(275e-6)
    assert summary["ops_share"] == pytest.approx(245 / 275)


def test_only_the_longest_ops_are_listed_with_their_share():
    events = [event(at, f"aten::op{at}", 0, at + 1) for at in range(MAX_OPS + 20)]
    summary = summarize_ops(events, on_device=False)
    assert len(summary["ops"]) == MAX_OPS
    whole = sum(range(1, MAX_OPS + 21))
    assert (whole - sum(range(1, 21))) / whole == pytest.approx(summary["ops_share"])


def test_a_multiply_add_counts_as_two_operations():
    left, right = torch.randn(64, 32), torch.randn(32, 16)
    assert count_flops(lambda: left @ right) == 2 * 64 * 32 * 16
