"""Fit a calibrated GPU into the kernel model, from kernels that were measured on it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import BYTES_PER_ELEMENT, Op, OpKind, Stage, TensorSpec
from leadline.core.hardware import Device, KernelTiming
from leadline.estimators.gp import exponential, leave_one_out
from leadline.estimators.ports import Array, IntArray
from leadline.estimators.step_time.analytical_kernels import (
    KernelMeasurements,
    analytical_model,
    fit_analytical_model,
    subtract_launch_s,
)
from leadline.estimators.step_time.device_features import DeviceFeatures, PlacedKernels, place_kernels
from leadline.estimators.step_time.fitted_kernels import (
    LARGEST_CORRECTION,
    FittedKernels,
    KernelGP,
    LearnedKernels,
    SweptGroup,
    kernel_groups,
)
from leadline.estimators.step_time.kernel_families import PRODUCTS, RECURRENT
from leadline.estimators.step_time.kernel_table import KernelTable, gp_coordinates, tabulate_ops
from leadline.estimators.step_time.roofline import MATRIX_KINDS

# Fewest kernels to fit a group.
LEAST_KERNELS = 8
# All kernels of a device and a group count for at most so many independent ones: their errors have common causes.
COUNTS_FOR = 100.0
# A kernel whose time is below this share of the launch says nothing of itself.
HIDDEN = 0.9
# Prior deviations of a swept device's offsets; its host's launch is nearly free.
SWEPT_DEVIATIONS = np.array([1.0, 0.3, 0.3])


class KernelSample(Frozen):
    """One measured kernel; without ``launched`` the seconds are the kernel's own (profiler)."""

    op: Op
    device: Device
    seconds: float
    launched: bool = True


class KernelSamples(Frozen):
    """Measured kernels by columns: ``device`` are positions in ``boards.names``."""

    kernels: KernelTable
    boards: DeviceFeatures
    device: IntArray
    seconds: Array
    launched: Array
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.seconds)

    def at(self, chosen: npt.NDArray[np.generic]) -> "KernelSamples":
        """Return the kernels that a mask or positions name."""
        return replace(
            self, kernels=self.kernels.at(chosen), device=self.device[chosen], seconds=self.seconds[chosen],
            launched=self.launched[chosen],
        )  # fmt: skip

    def placed(self) -> PlacedKernels:
        """Return the kernels with the figures of their devices."""
        return place_kernels(self.kernels, self.boards, self.device)


def tabulate_kernels(timings: Sequence[KernelSample], names: Sequence[str] = ()) -> KernelSamples:
    """Return measured kernels by columns; operators of ``names`` have a launch of their own.

    Raises:
        InvalidInput: a time is not finite and positive, or a device lacks specifications.
    """
    for sample in timings:
        if not (np.isfinite(sample.seconds) and sample.seconds > 0):
            raise InvalidInput(
                f"{sample.op.name} on {sample.device.name} took {sample.seconds} s, but times must be finite and "
                "positive: leave it out"
            )
    devices = {sample.device.name: sample.device for sample in timings}
    position = {name: i for i, name in enumerate(devices)}
    return KernelSamples(
        tabulate_ops((sample.op for sample in timings), {name: i for i, name in enumerate(names)}),
        DeviceFeatures.of(list(devices.values())),
        np.array([position[sample.device.name] for sample in timings], np.int64),
        np.array([sample.seconds for sample in timings], float),
        np.array([float(sample.launched) for sample in timings]),
        tuple(names),
    )


def effect_groups(timings: KernelSamples) -> tuple[IntArray, tuple[tuple[int, int], ...]]:
    """Return launch, arithmetic and traffic groups (n, 3), and each group's (device, name or -1)."""
    keys: dict[tuple[int, int], int] = {}
    devices, names = timings.device.tolist(), timings.kernels.name.tolist()
    by_name = [keys.setdefault(key, len(keys)) for key in zip(devices, names, strict=True)]
    by_device = [keys.setdefault((device, -1), len(keys)) for device in devices]
    return np.array([by_name, by_device, by_device], np.int64).T, tuple(keys)


def make_measurements(timings: KernelSamples) -> KernelMeasurements:
    """Return a table as the analytical fit takes it; a device counts for ``COUNTS_FOR`` kernels at most."""
    rows = np.bincount(timings.device, minlength=len(timings.boards.names))
    weight = np.minimum(1.0, COUNTS_FOR / np.maximum(rows, 1))[timings.device]
    return KernelMeasurements(timings.placed(), timings.seconds, timings.launched, effect_groups(timings)[0], weight)


def visible_residuals(number: int, timings: KernelSamples, at: Array, effects: Array) -> tuple[IntArray, Array, Array]:
    """Return the positions (v,) of kernels that exceed their launch, their analytical seconds and log residuals."""
    model = analytical_model(number)
    kernel_s, launch_s = model.parts(timings.placed(), at, effects)
    launch_s = launch_s * timings.launched
    visible = np.flatnonzero((kernel_s + model.wait * launch_s > HIDDEN * launch_s) & (timings.seconds > launch_s))
    measured_s = subtract_launch_s(timings.seconds[visible], launch_s[visible], model.wait)
    errors = np.clip(np.log(measured_s / kernel_s[visible]), -LARGEST_CORRECTION, LARGEST_CORRECTION)
    return visible, kernel_s[visible], errors


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
        effects[device, number], by_name, near[device, number] = _adapted(fitted, number, samples)
        launches |= {(device, name): value for name, value in by_name.items()}
    return replace(fitted, effects=effects, launches=launches, sweeps=near)


def _adapted(fitted: FittedKernels, number: int, samples: KernelSamples) -> tuple[Array, dict[int, float], SweptGroup]:
    """Return a device's effects, launches by name and fit of one group, with the shared model as prior."""
    expected = replace(analytical_model(number), start=tuple(fitted.groups[number].at.tolist()))
    at, effects = fit_analytical_model(expected, make_measurements(samples), apart=SWEPT_DEVIATIONS)
    groups, keys = effect_groups(samples)
    launches = {kind: float(effects[i, 0]) for i, (_, kind) in enumerate(keys) if kind >= 0}
    whole = effects[next(i for i, (_, kind) in enumerate(keys) if kind < 0)].copy()
    if launches:
        whole[0] = float(np.median(list(launches.values())))
    return whole, launches, SweptGroup(at, _fit_residuals(fitted, number, samples, at, effects[groups, np.arange(3)]))


def _fit_residuals(
    fitted: FittedKernels, number: int, samples: KernelSamples, at: Array, effects: Array
) -> KernelGP | None:
    visible, kernel_s, errors = visible_residuals(number, samples, at, effects)
    if len(visible) < LEAST_KERNELS:
        return None
    part, grown = samples.placed().at(visible), None
    trees = fitted.groups[number].trees
    if trees is not None:
        predicted, leaves = fitted.tree_corrections(number, part, kernel_s)
        grown = TreePredictions(predicted, leaves, len(trees.value))
    return fit_kernel_gp(gp_coordinates(number, part.kernels), errors, grown)


# Logarithm to begin with of the scale of every size, and of two variances over that of the surface of sizes: of what
# leaves share, and of a single kernel's own.
START = -1.0
# How far each of those logarithms is moved in the rounds of the search.
STEPS = (1.1, 1.1, 0.6)
FARTHEST = (-6.0, 3.5)
# Logarithmic error from which on a kernel counts less than its square (pseudo-Huber).
ROBUST = 0.15
# The trust in trees that is expected of a device, and its standard deviation.
TRUSTED = 0.5


class TreePredictions(Frozen):
    """Trees on s kernels: values ``predicted`` (s,), leaves (s, trees) and the number of nodes."""

    predicted: Array
    leaves: IntArray
    nodes: int


def fit_kernel_gp(points: Array, values: Array, grown: TreePredictions | None = None) -> KernelGP:
    """Return the surface of least robust leave-one-out error, by coordinate search of its scales.

    The trust in the trees' own correction is one more unknown, about a half.
    """
    # The share of the trees in which two kernels end in the same leaf, and what an unknown trust in them has in common.
    common: Array | float = 0.0
    trust, mean = common, common
    if grown is not None:
        common = np.mean([leaf[:, None] == leaf[None, :] for leaf in grown.leaves.T], axis=0)
        trust, mean = TRUSTED**2 * np.outer(grown.predicted, grown.predicted), TRUSTED * grown.predicted

    def misfit(at: Array) -> tuple[float, Array, Array]:
        scaled = points * np.exp(at[:-2])
        covariance = exponential(scaled, scaled) + np.exp(at[-2]) * common + trust
        covariance[np.diag_indices(len(covariance))] += np.exp(at[-1])
        weights, errors = leave_one_out(covariance, values - mean)
        return float(np.mean(np.sqrt(1 + (errors / ROBUST) ** 2) - 1)), weights, errors

    at = np.full(points.shape[1] + 2, START)
    best, weights, errors = misfit(at)
    for step, i in product(STEPS, range(len(at))):
        for move in (step, -step):
            tried = at.copy()
            tried[i] = np.clip(tried[i] + move, *FARTHEST)
            cost, tried_weights, tried_errors = misfit(tried)
            if cost < best:
                best, weights, errors, at = cost, tried_weights, tried_errors, tried
                break
    surface = KernelGP(points, np.exp(at[:-2]), weights, 0.0, float(np.sqrt(np.mean(errors**2))))
    if grown is None:
        return surface
    trees = grown.leaves.shape[1]
    by_node = np.bincount(grown.leaves.ravel(), np.repeat(np.exp(at[-2]) * weights / trees, trees), grown.nodes)
    trusted = TRUSTED + TRUSTED**2 * float(grown.predicted @ weights)
    # Rounded as it is kept, so that a stored surface predicts the same.
    return replace(surface, trusted=trusted, values=by_node.astype(np.float32).astype(np.float64))


_KINDS = {
    **dict.fromkeys(PRODUCTS, OpKind.GEMM), **dict.fromkeys(RECURRENT, OpKind.RNN), "convolution": OpKind.CONV,
    "attention": OpKind.ATTENTION,
}  # fmt: skip
# Columns that kernels without rows are laid out in; their speed does not follow them.
LOOKED_UP = 1024


class SweptKernels(LearnedKernels):
    """A ``KernelModel`` of a calibrated GPU: the shared model corrected by the device's sweep.

    ``fitted`` is the result of ``fit_calibration`` for the device.
    """

    name = "swept kernels"
    tier = Tier.CALIBRATED


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
    candidates = (f"aten.{timing.kind}", f"aten.{timing.kind}.Tensor")
    name = next((candidate for candidate in candidates if candidate in names), timing.kind)
    stage = Stage.BACKWARD if "backward" in timing.kind else Stage.FORWARD
    if kind in MATRIX_KINDS:
        if kind is OpKind.RNN:
            dims = {"batch": dims["b"], "seq": dims["q"], "input": dims["c"], "hidden": dims["k"]}
        dims.pop("elements", None)
        return Op(name, kind, stage, timing.dtype, timing.flops, timing.bytes_moved, 0.0, dims=dims)
    columns = dims.get("columns", LOOKED_UP)
    rows = dims.get("rows", math.ceil(dims["elements"] / columns))
    written = float(BYTES_PER_ELEMENT[timing.dtype]) * dims["elements"]
    return Op(
        name, kind, stage, timing.dtype, timing.flops, max(timing.bytes_moved - written, 0.0),
        min(written, timing.bytes_moved), (TensorSpec((rows, columns), timing.dtype),),
    )  # fmt: skip


def _kind(name: str) -> OpKind:
    """Return the op kind of a sweep kernel, as far as the kernel model distinguishes kinds."""
    if kind := _KINDS.get(name) or _KINDS.get(name.removesuffix("_backward")):
        return kind
    return OpKind.SOFTMAX if "softmax" in name else OpKind.NORM if "_norm" in name else OpKind.ELEMENTWISE
