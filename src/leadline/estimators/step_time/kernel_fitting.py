"""Fit the kernel model: an analytical model for each group, then trees on its residuals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.graph import Op
from leadline.core.hardware import Device
from leadline.estimators.ports import Array, IntArray
from leadline.estimators.step_time.analytical_kernels import KernelMeasurements, fit_analytical_model, subtract_launch_s
from leadline.estimators.step_time.device_features import DeviceFeatures, PlacedKernels, place_kernels
from leadline.estimators.step_time.fitted_kernels import (
    LARGEST_CORRECTION,
    FittedKernels,
    GroupModel,
    analytical_model,
    group_features,
    kernel_groups,
    round_trees,
)
from leadline.estimators.step_time.kernel_table import KernelTable, tabulate_ops
from leadline.estimators.tabular.trees import Trees, fit_boosted_trees

# Fewest kernels to fit a group.
LEAST_KERNELS = 8
# Kernels per device and group in the analytical fit; more hardly change a dozen parameters.
LAW_ROWS = 500
TREE_ROWS = 2500
# All kernels of a device and a group count for at most so many independent ones: their errors have common causes.
COUNTS_FOR = 100.0
TREES = 120
DEPTH = 6
# A kernel whose time is below this share of the launch says nothing of itself.
HIDDEN = 0.9


@dataclass(frozen=True, slots=True)
class KernelSample:
    """One measured kernel; without ``launched`` the seconds are the kernel's own (profiler)."""

    op: Op
    device: Device
    seconds: float
    launched: bool = True


@dataclass(frozen=True, slots=True)
class KernelSamples:
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
        return KernelSamples(
            self.kernels.at(chosen),
            self.boards,
            self.device[chosen],
            self.seconds[chosen],
            self.launched[chosen],
            self.names,
        )

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


def fit_kernels(timings: Sequence[KernelSample], names: Sequence[str] = (), *, seed: int = 0) -> FittedKernels:
    """Return the model fitted to measured kernels of any devices.

    Raises:
        InvalidInput: fewer than ``LEAST_KERNELS`` kernels were measured, or one is unusable.
    """
    return fit_kernel_samples(tabulate_kernels(timings, names), seed=seed)


def fit_kernel_samples(
    timings: KernelSamples, *, seed: int = 0, law_rows: int = LAW_ROWS, tree_rows: int = TREE_ROWS
) -> FittedKernels:
    """Return the model fitted to a table of measured kernels; the same as ``fit_kernels``.

    The analytical model uses ``law_rows`` kernels of each device and group, its trees ``tree_rows``.
    """
    if len(timings) < LEAST_KERNELS:
        raise InvalidInput(f"{len(timings)} measured kernels are too few to learn from: give at least {LEAST_KERNELS}")
    group = kernel_groups(timings.placed())
    laws: dict[int, GroupModel] = {}
    effects: dict[tuple[str, int], Array] = {}
    launches: dict[tuple[str, int], float] = {}
    for number in np.unique(group).tolist():
        samples = timings.at(np.flatnonzero(group == number))
        if len(samples) < LEAST_KERNELS:
            continue
        law, group_effects, by_name = _learned(number, samples, seed, (law_rows, tree_rows))
        laws[number] = law
        effects |= {(device, number): value for device, value in group_effects.items()}
        launches |= by_name
    return FittedKernels(laws, timings.names, effects, launches)


def _learned(
    number: int, timings: KernelSamples, seed: int, most: tuple[int, int]
) -> tuple[GroupModel, dict[str, Array], dict[tuple[str, int], float]]:
    """Return the model of a group, and the offsets and launches of each device."""
    few = timings.at(_some(timings.device, most[0], seed))
    measured = make_measurements(few)
    fitted = fit_analytical_model(analytical_model(number), measured)
    many = timings.at(_some(timings.device, most[1], seed + 1))
    groups, keys = effect_groups(many)
    before = {key: fitted.effects[i] for i, key in enumerate(effect_groups(few)[1])}
    table = np.array([before.get(key, np.zeros(3)) for key in keys])
    row_effects = np.stack([table[groups[:, i], i] for i in range(3)], axis=1)
    law = GroupModel(fitted.at, _trees(number, many, fitted.at, row_effects, seed))
    names = timings.boards.names
    apart = {names[device]: value.copy() for (device, kind), value in before.items() if kind < 0}
    launches = {(names[device], kind): float(value[0]) for (device, kind), value in before.items() if kind >= 0}
    for name, value in apart.items():
        of_device = [launch for (device, _), launch in launches.items() if device == name]
        if of_device:
            value[0] = float(np.median(of_device))
    return law, apart, launches


def effect_groups(timings: KernelSamples) -> tuple[IntArray, tuple[tuple[int, int], ...]]:
    """Return launch, arithmetic and traffic groups (n, 3), and each group's (device, name or -1)."""
    keys: dict[tuple[int, int], int] = {}
    by_name = [keys.setdefault(key, len(keys)) for key in _pairs(timings.device, timings.kernels.name)]
    by_device = [keys.setdefault(key, len(keys)) for key in _pairs(timings.device, np.full(len(timings), -1))]
    return np.array([by_name, by_device, by_device], np.int64).T, tuple(keys)


def make_measurements(timings: KernelSamples, corrected: Array | None = None) -> KernelMeasurements:
    """Return a table as the analytical fit takes it; a device counts for ``COUNTS_FOR`` kernels at most."""
    rows = np.bincount(timings.device, minlength=len(timings.boards.names))
    weight = np.minimum(1.0, COUNTS_FOR / np.maximum(rows, 1))[timings.device]
    zeros = np.zeros(len(timings))
    groups = effect_groups(timings)[0]
    return KernelMeasurements(
        timings.placed(), timings.seconds, timings.launched, groups, zeros if corrected is None else corrected, weight
    )


def _trees(number: int, timings: KernelSamples, at: Array, effects: Array, seed: int) -> Trees | None:
    """Return trees on ln(measured ÷ analytical) of the kernels that exceed their launch."""
    placed = timings.placed()
    kernel_s, launch_s = analytical_model(number).parts(placed, at, effects)
    launch_s = launch_s * timings.launched
    visible = np.flatnonzero(
        (kernel_s + analytical_model(number).wait * launch_s > HIDDEN * launch_s) & (timings.seconds > launch_s)
    )
    if len(visible) < 10 * LEAST_KERNELS:
        return None
    errors = np.log(
        subtract_launch_s(timings.seconds[visible], launch_s[visible], analytical_model(number).wait)
        / kernel_s[visible]
    )
    rows = np.bincount(timings.device[visible], minlength=len(timings.boards.names))
    weight = 1.0 / rows[timings.device[visible]]
    grown = fit_boosted_trees(
        group_features(number, placed.at(visible), kernel_s[visible]),
        np.clip(errors, -LARGEST_CORRECTION, LARGEST_CORRECTION),
        weight / weight.mean(),
        0.0,
        n_estimators=TREES,
        learning_rate=0.1,
        max_depth=DEPTH,
        min_samples_leaf=20,
        max_features=0.4,
        random_state=seed,
    )
    return round_trees(grown)


def _some(device: IntArray, most: int, seed: int) -> IntArray:
    """Return positions of at most so many rows of each device."""
    shuffled = np.random.default_rng(seed).permutation(len(device))
    kept = [shuffled[device[shuffled] == number][:most] for number in np.unique(device)]
    return np.sort(np.concatenate(kept))


def _pairs(left: IntArray, right: IntArray) -> list[tuple[int, int]]:
    return list(zip(left.tolist(), right.tolist(), strict=True))
