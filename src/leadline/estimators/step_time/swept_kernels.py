"""Fit a calibrated GPU into the kernel model, from kernels that were measured on it."""

import math
from dataclasses import dataclass, replace

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, KernelTiming
from leadline.estimators.ports import Array
from leadline.estimators.step_time.analytical_kernels import fit_analytical_model, subtract_launch_s
from leadline.estimators.step_time.fitted_kernels import (
    LARGEST_CORRECTION,
    FittedKernels,
    SweptGroup,
    analytical_model,
    kernel_groups,
)
from leadline.estimators.step_time.kernel_families import PRODUCTS, RECURRENT
from leadline.estimators.step_time.kernel_fitting import (
    HIDDEN,
    LEAST_KERNELS,
    KernelSample,
    KernelSamples,
    effect_groups,
    make_measurements,
    tabulate_kernels,
)
from leadline.estimators.step_time.kernel_gp import KernelGP, TreePredictions, fit_kernel_gp, gp_coordinates
from leadline.estimators.step_time.learned_kernels import LearnedKernels

# Prior deviations of a swept device's offsets; its host's launch is nearly free.
SWEPT_DEVIATIONS = np.array([1.0, 0.3, 0.3])


@dataclass(frozen=True, slots=True)
class _Own:
    effects: Array
    launches: dict[int, float]
    swept: SweptGroup


def fit_sweep(fitted: FittedKernels, sweep: KernelSamples) -> FittedKernels:
    """Return the model with a device's own sweep: its parameters, launches and residual process.

    Raises:
        InvalidInput: the kernels come from several devices.
    """
    if len(np.unique(sweep.device)) != 1:
        raise InvalidInput(
            f"a sweep is of one device, but these {len(sweep)} kernels come from several: split them by device"
        )
    device = sweep.boards.names[int(sweep.device[0])]
    effects, launches, near = dict(fitted.effects), dict(fitted.launches), dict(fitted.sweeps)
    group = kernel_groups(sweep.placed())
    for number in np.unique(group).tolist():
        samples = sweep.at(np.flatnonzero(group == number))
        if number not in fitted.groups or len(samples) < LEAST_KERNELS:
            continue
        adapted = _adapted(fitted, number, samples)
        effects[device, number] = adapted.effects
        launches |= {(device, name): value for name, value in adapted.launches.items()}
        near[device, number] = adapted.swept
    return replace(fitted, effects=effects, launches=launches, sweeps=near)


def _adapted(fitted: FittedKernels, number: int, samples: KernelSamples) -> _Own:
    """Return a device's fit of one group, with the shared model as prior."""
    expected = replace(analytical_model(number), start=tuple(fitted.groups[number].at.tolist()))
    fit = fit_analytical_model(expected, make_measurements(samples), apart=SWEPT_DEVIATIONS)
    groups, keys = effect_groups(samples)
    per_row = np.stack([fit.effects[groups[:, i], i] for i in range(3)], axis=1)
    launches = {kind: float(fit.effects[i, 0]) for i, (_, kind) in enumerate(keys) if kind >= 0}
    whole = fit.effects[next(i for i, (_, kind) in enumerate(keys) if kind < 0)].copy()
    if launches:
        whole[0] = float(np.median(list(launches.values())))
    return _Own(whole, launches, SweptGroup(fit.at, _near(fitted, number, samples, fit.at, per_row)))


def _near(fitted: FittedKernels, number: int, samples: KernelSamples, at: Array, effects: Array) -> KernelGP | None:
    placed = samples.placed()
    kernel_s, launch_s = analytical_model(number).parts(placed, at, effects)
    launch_s = launch_s * samples.launched
    visible = np.flatnonzero(
        (kernel_s + analytical_model(number).wait * launch_s > HIDDEN * launch_s) & (samples.seconds > launch_s)
    )
    if len(visible) < LEAST_KERNELS:
        return None
    errors = np.log(
        subtract_launch_s(samples.seconds[visible], launch_s[visible], analytical_model(number).wait)
        / kernel_s[visible]
    )
    part, grown = placed.at(visible), None
    trees = fitted.groups[number].trees
    if trees is not None:
        predicted, leaves = fitted.tree_corrections(number, part, kernel_s[visible])
        grown = TreePredictions(predicted, leaves, len(trees.value))
    return fit_kernel_gp(
        gp_coordinates(number, part.kernels), np.clip(errors, -LARGEST_CORRECTION, LARGEST_CORRECTION), grown
    )


# Columns that kernels without rows are laid out in; their speed does not follow them.
LOOKED_UP = 1024


class SweptKernels(LearnedKernels):
    """A ``KernelModel`` of a calibrated GPU: the shared model corrected by the device's sweep.

    ``fitted`` is the result of ``fit_calibration`` for the device.
    """

    name = "swept kernels"
    tier = Tier.CALIBRATED
    host_spread = 0.0


def fit_calibration(fitted: FittedKernels, device: Device) -> FittedKernels:
    """Return the model with the calibration of ``device``.

    Raises:
        InvalidInput: the device is not calibrated, or lacks specifications.
    """
    return fit_sweep(fitted, calibration_samples(device, fitted.names))


def calibration_samples(device: Device, names: tuple[str, ...]) -> KernelSamples:
    """Return the kernels of a calibration as samples; ``names`` have a launch of their own.

    Kernels in a dtype without a peak on the device are emulated and left out.

    Raises:
        InvalidInput: the device is not calibrated.
    """
    if device.calibration is None or not device.calibration.timings:
        raise InvalidInput(f"{device.name} is not calibrated: run leadline calibrate on it")
    usable = [timing for timing in device.calibration.timings if timing.dtype in (*device.peak_flops_per_s, "float32")]
    return tabulate_kernels(
        [KernelSample(timing_to_op(timing, names), device, timing.elapsed_s) for timing in usable], names
    )


def timing_to_op(timing: KernelTiming, names: tuple[str, ...] = ()) -> Op:
    """Return a timed kernel as the op of a traced graph."""
    kind, dims = _kind(timing.kind), dict(timing.dims)
    name = next(
        (candidate for candidate in (f"aten.{timing.kind}", f"aten.{timing.kind}.Tensor") if candidate in names),
        timing.kind,
    )
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
    """Return the op kind of a sweep kernel, as far as the kernel model distinguishes kinds."""
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
