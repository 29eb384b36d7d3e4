"""The kernels of a GPU that was swept: what the learned model of kernels makes of its calibration."""

import math

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, KernelTiming
from leadline.estimators.kernel_sizes import PRODUCTS, RECURRENT
from leadline.estimators.learned.fit_kernels import Timing, Timings, tabulate
from leadline.estimators.learned.fitted_kernels import FittedKernels
from leadline.estimators.learned.kernel_sweep import with_sweep
from leadline.estimators.learned.kernels import LearnedKernels

LOOKED_UP = 1024
"""Columns that kernels without rows are laid out in; their speed does not follow them."""


class SweptKernels(LearnedKernels):
    """A ``KernelModel`` of a calibrated GPU: learned from other devices, corrected by the kernels of its own sweep.

    ``fitted`` is what ``swept`` returned for the device.
    """

    name = "swept kernels"
    tier = Tier.CALIBRATED
    host_spread = 0.0


def swept(fitted: FittedKernels, device: Device) -> FittedKernels:
    """Return the model with what the calibration of ``device`` says of it.

    Raises:
        InvalidInput: the device is not calibrated, or lacks figures that the laws need.
    """
    return with_sweep(fitted, timings_of(device, fitted.names))


def timings_of(device: Device, names: tuple[str, ...]) -> Timings:
    """Return the kernels of a calibration as the learned model takes them; ``names`` have a launch of their own.

    Kernels in a dtype of which the device has no peak are emulated, and left out.

    Raises:
        InvalidInput: the device is not calibrated.
    """
    if device.calibration is None or not device.calibration.timings:
        raise InvalidInput(f"{device.name} is not calibrated: run leadline calibrate on it")
    known = [one for one in device.calibration.timings if one.dtype in (*device.peak_flops_per_s, "float32")]
    return tabulate([Timing(op_of(one, names), device, one.elapsed_s) for one in known], names)


def op_of(timing: KernelTiming, names: tuple[str, ...] = ()) -> Op:
    """Return a timed kernel as the op that a traced graph would hold."""
    kind, dims = _kind(timing.kind), dict(timing.dims)
    name = next((one for one in (f"aten.{timing.kind}", f"aten.{timing.kind}.Tensor") if one in names), timing.kind)
    stage = Stage.BACKWARD if "backward" in timing.kind else Stage.FORWARD
    if kind in (OpKind.GEMM, OpKind.CONV, OpKind.ATTENTION):
        dims.pop("elements", None)
        return Op(name, kind, stage, timing.dtype, timing.flops, timing.bytes_moved, 0.0, dims=dims)
    if kind is OpKind.RNN:
        sizes = {"batch": dims["b"], "seq": dims["q"], "input": dims["c"], "hidden": dims["k"]}
        return Op(name, kind, stage, timing.dtype, timing.flops, timing.bytes_moved, 0.0, dims=sizes)
    columns = dims.get("columns", LOOKED_UP)
    rows = dims.get("rows", math.ceil(dims["elements"] / columns))
    written = float(BYTES_PER_ELEMENT[timing.dtype]) * dims["elements"]
    return Op(
        name, kind, stage, timing.dtype, timing.flops, max(timing.bytes_moved - written, 0.0),
        min(written, timing.bytes_moved), (TensorSpec((rows, columns), timing.dtype),),
    )  # fmt: skip


def _kind(name: str) -> OpKind:
    """Return what kind of op the sweep's kernel is, as far as the laws tell kinds apart."""
    stem = name.removesuffix("_backward")
    if name in PRODUCTS:
        return OpKind.GEMM
    if stem in RECURRENT:
        return OpKind.RNN
    named = {"convolution": OpKind.CONV, "attention": OpKind.ATTENTION}
    if stem in named:
        return named[stem]
    if "softmax" in name:
        return OpKind.SOFTMAX
    return OpKind.NORM if "_norm" in name else OpKind.ELEMENTWISE
