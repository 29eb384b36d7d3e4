"""Fit the kernel model to measured kernels: an analytical model for each group, then trees on its residuals."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.hardware import Device
from leadline.estimators.ports import Array, IntArray, State, nest
from leadline.estimators.step_time.analytical_kernels import LAUNCH, analytical_model, fit_analytical_model
from leadline.estimators.step_time.device_features import DeviceFeatures, group_features
from leadline.estimators.step_time.fitted_kernels import (
    FURTHER,
    FittedKernels,
    GroupModel,
    LearnedKernels,
    alone_s,
    kernel_groups,
    kernel_keys,
)
from leadline.estimators.step_time.kernel_table import KERNEL_GROUPS, KernelTable, distinct_rows
from leadline.estimators.step_time.swept_kernels import (
    LEAST_KERNELS,
    KernelSample,
    KernelSamples,
    effect_groups,
    make_measurements,
    tabulate_kernels,
    visible_residuals,
)
from leadline.estimators.tabular.trees import Trees, fit_boosted_trees

LAW_ROWS = 500
"""Kernels per device and group in the analytical fit; more hardly change a dozen parameters."""
TREE_ROWS = 2500
TREES = 120
DEPTH = 6


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
    at, effects = fit_analytical_model(analytical_model(number), make_measurements(few))
    many = timings.at(_some(timings.device, most[1], seed + 1))
    groups, keys = effect_groups(many)
    before = {key: effects[i] for i, key in enumerate(effect_groups(few)[1])}
    table = np.array([before.get(key, np.zeros(3)) for key in keys])
    law = GroupModel(at, _trees(number, many, at, table[groups, np.arange(3)], seed))
    names = timings.boards.names
    apart = {names[device]: value.copy() for (device, kind), value in before.items() if kind < 0}
    launches = {(names[device], kind): float(value[0]) for (device, kind), value in before.items() if kind >= 0}
    for name, value in apart.items():
        of_device = [launch for (device, _), launch in launches.items() if device == name]
        if of_device:
            value[0] = float(np.median(of_device))
    return law, apart, launches


def _trees(number: int, timings: KernelSamples, at: Array, effects: Array, seed: int) -> Trees | None:
    """Return trees on ln(measured ÷ analytical) of the kernels that exceed their launch."""
    visible, kernel_s, errors = visible_residuals(number, timings, at, effects)
    if len(visible) < 10 * LEAST_KERNELS:
        return None
    rows = np.bincount(timings.device[visible], minlength=len(timings.boards.names))
    weight = 1.0 / rows[timings.device[visible]]
    grown = fit_boosted_trees(
        group_features(number, timings.placed().at(visible), kernel_s),
        errors,
        weight / weight.mean(),
        0.0,
        n_estimators=TREES,
        learning_rate=0.1,
        max_depth=DEPTH,
        min_samples_leaf=20,
        max_features=0.4,
        random_state=seed,
    )
    return Trees.load(compact_trees(grown))  # as they are kept, in single precision


def _some(device: IntArray, most: int, seed: int) -> IntArray:
    """Return positions of at most so many rows of each device."""
    shuffled = np.random.default_rng(seed).permutation(len(device))
    kept = [shuffled[device[shuffled] == number][:most] for number in np.unique(device)]
    return np.sort(np.concatenate(kept))


def typical_effects(fitted: FittedKernels, group: int) -> Array:
    """Return the typical offsets of the known devices, shape (3,).

    It is the median. The launch is instead the one with the least relative error to all known hosts.
    """
    effects = np.array([value for (_, number), value in fitted.effects.items() if number == group]).reshape(-1, 3)
    if not len(effects):
        return np.zeros(3)
    typical: Array = np.median(effects, axis=0)
    launches = np.exp(effects[:, LAUNCH])
    errors = np.abs(launches[:, None] / launches - 1).sum(axis=1)
    typical[LAUNCH] = effects[int(np.argmin(errors)), LAUNCH]
    return typical


def interpolate_kernels(near: KernelTable, far: KernelTable, share: float) -> KernelTable:
    """Return the kernels of a configuration between two of one graph: sizes are affine in the batch."""
    columns: list[npt.NDArray[np.generic]] = []
    for field in fields(KernelTable):
        first, second = getattr(near, field.name), getattr(far, field.name)
        columns.append(first if first.dtype == np.int64 else np.maximum(first + share * (second - first), 0.0))
    return KernelTable(*columns)  # type: ignore[arg-type]


def predict_steps_s(fitted: FittedKernels, configurations: Sequence[KernelTable], devices: Sequence[Device]) -> Array:
    """Return the step seconds (c,) of each configuration on its GPU, in one batch.

    Raises:
        InvalidInput: a device is no GPU, or lacks specifications.
    """
    models = {device.name: LearnedKernels(fitted, device) for device in devices}
    place = {name: i for i, name in enumerate(models)}
    boards = DeviceFeatures.of(list({device.name: device for device in devices}.values()))
    sizes = [len(configuration) for configuration in configurations]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    where = np.array([place[device.name] for device in devices], np.int64)[owner]
    columns = ([getattr(table, field.name) for table in configurations] for field in fields(KernelTable))
    kernels = KernelTable(*map(np.concatenate, columns))
    alike, back = distinct_rows(np.column_stack([kernel_keys(kernels), where]))
    kernel_s = alone_s(fitted, kernels.at(alike), boards, where[alike])[back]
    factor = np.array([models[device.name].factor for device in devices])
    busy_s = factor * np.bincount(owner, kernel_s * kernels.count, minlength=len(sizes))
    launch_s = np.array([models[device.name].call_s for device in devices])
    calls = np.bincount(owner, kernels.count * (1 + FURTHER * (kernels.launched - 1)), minlength=len(sizes))
    step_times_s: Array = np.maximum(busy_s, calls * launch_s)
    return step_times_s


def compact_trees(grown: Trees) -> State:
    """Return the trees' state in the narrowest types."""
    kept = grown.dump()
    for name in ("threshold", "value"):
        kept[name] = kept[name].astype(np.float32)
    for name in ("roots", "column", "left", "right"):
        kept[name] = kept[name].astype(np.int32)
    return kept


def dump_kernels(fitted: FittedKernels) -> State:
    """Return a fitted model as arrays, its trees in the narrowest types."""
    state = fitted.dump()
    for number, model in fitted.groups.items():
        state |= nest(f"{KERNEL_GROUPS[number]}.trees", compact_trees(model.trees)) if model.trees else {}
    return state
