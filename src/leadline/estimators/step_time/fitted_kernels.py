"""The fitted kernel model as plain arrays, its batched prediction with numpy, and its ``KernelModel``."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import field

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph
from leadline.core.hardware import Device
from leadline.estimators.gp import exponential
from leadline.estimators.ports import Array, IntArray, Mask, State, Stored, floats, nest, strings, text_array, unnest
from leadline.estimators.recent_cache import RecentResults
from leadline.estimators.step_time.analytical_kernels import LAUNCH, analytical_model, lower_bound_s
from leadline.estimators.step_time.device_features import (
    DeviceFeatures,
    PlacedKernels,
    group_features,
    place_kernels,
    require_gpu,
)
from leadline.estimators.step_time.kernel_table import (
    COMPUTING,
    CONVOLUTION,
    KERNEL_GROUPS,
    MATRIX,
    KernelTable,
    distinct_rows,
    gp_coordinates,
    tabulate_ops,
)
from leadline.estimators.step_time.roofline import LAUNCH_S, RAMP_S, host_spread
from leadline.estimators.tabular.trees import Trees

# Substitutes of each group without a model, most similar first.
ALIKE: tuple[tuple[int, ...], ...] = ((1, 6), (0, 6), (0, 1, 6), (4, 5), (3, 5), (3, 4), (0, 1, 2))
# Largest log correction by trees.
LARGEST_CORRECTION = 1.0


class GroupModel(Stored):
    """One group's parameters and trees, and the offsets for a device without measurements.

    There the trees count by ``trusted`` (0 to 1), and the device gets the offsets ``typical`` (3,). Their middle over
    known devices need not be zero, because a prior ties the parameters.
    """

    at: Array
    trees: Trees | None = None
    trusted: float = 1.0
    typical: Array = field(default_factory=lambda: np.zeros(3))


class KernelGP(Stored):
    """A zero-mean surface: points (s, f), scales (f,) of their sizes, and weights (s,).

    It is a Gaussian process of a device's residuals on its own measured kernels. Two kernels are similar if their sizes
    are close, each on a scale of its own, and if they end in the same leaves of the trees of other devices (Davies and
    Ghahramani 2014). The second part is one value per leaf, so prediction is a tree walk.

    ``values`` has one entry per tree node, to be added over a kernel's leaves; empty without trees. ``trusted`` is the
    weight of the trees' predictions. ``error`` is the root mean square leave-one-out error.
    """

    figures = ("trusted", "error")

    points: Array
    scales: Array
    weights: Array
    trusted: float = 0.0
    error: float = float("nan")
    values: Array = field(default_factory=lambda: np.zeros(0))

    def at(self, points: Array, predicted: Array | None = None, leaves: IntArray | None = None) -> Array:
        """Return the expected value at points (n, f), with tree predictions (n,) and leaves (n, trees)."""
        expected: Array = exponential(points * self.scales, self.points * self.scales) @ self.weights
        if predicted is not None:
            expected += self.trusted * predicted
        if leaves is not None and len(self.values):
            expected += self.values[leaves].sum(axis=1)
        return expected

    def dump(self) -> State:
        """Return the surface as arrays, with the many ``values`` in half the bytes."""
        return {**super().dump(), "values": self.values.astype(np.float32)}


class SweptGroup(Stored):
    """A sweep's fit of one kernel group: own parameters, and a Gaussian process of the residuals.

    The process is ``None`` if too few kernels exceed their launch.
    """

    at: Array
    surface: KernelGP | None


class FittedKernels(Frozen):
    """Models by group, and offsets of known devices: ``effects[(device, group)]`` (3,).

    A group is one of ``KERNEL_GROUPS``. ``names`` are operators whose launch was measured by itself.
    ``launches[(device, name)]`` is the logarithm of a factor. ``sweeps[(device, group)]`` is a device's own sweep.
    ``steps[vendor]`` is the log ratio of whole steps to their kernels on left-out devices of the vendor.
    """

    groups: dict[int, GroupModel]
    names: tuple[str, ...] = ()
    effects: dict[tuple[str, int], Array] = field(default_factory=dict)
    launches: dict[tuple[str, int], float] = field(default_factory=dict)
    sweeps: dict[tuple[str, int], SweptGroup] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)

    def dump(self) -> State:
        """Return all of it as named arrays."""
        state: State = {"names": text_array(self.names), "laws": np.array(sorted(self.groups), np.int64)}
        for group, law in self.groups.items():
            state |= nest(KERNEL_GROUPS[group], law.dump())
        for prefix, column, table in (("effects", "group", self.effects), ("launches", "name", self.launches),
                                      ("near", "group", self.sweeps)):  # fmt: skip
            state[f"{prefix}.device"] = text_array([device for device, _ in table])
            state[f"{prefix}.{column}"] = np.array([number for _, number in table], np.int64)
        state["effects.value"] = np.array(list(self.effects.values())).reshape(-1, 3)
        state["launches.value"] = np.array(list(self.launches.values()))
        state["steps.vendor"] = text_array(list(self.steps))
        state["steps.value"] = np.array(list(self.steps.values()))
        for i, swept in enumerate(self.sweeps.values()):
            state |= nest(f"near.{i}", swept.dump())
        return state

    @classmethod
    def load(cls, state: State) -> "FittedKernels":
        """Return the model that ``dump`` gave."""
        numbers = state["laws"].astype(int).tolist()
        laws = {group: GroupModel.load(unnest(KERNEL_GROUPS[group], state)) for group in numbers}
        keys, named, owners = (
            zip(strings(state[f"{part}.device"]), state[f"{part}.{name}"].astype(int).tolist(), strict=True)
            for part, name in (("effects", "group"), ("launches", "name"), ("near", "group"))
        )
        effects = dict(zip(keys, floats(state["effects.value"]), strict=True))
        launches = dict(zip(named, floats(state["launches.value"]).tolist(), strict=True))
        near = {key: SweptGroup.load(unnest(f"near.{i}", state)) for i, key in enumerate(owners)}
        steps = dict(zip(strings(state["steps.vendor"]), floats(state["steps.value"]).tolist(), strict=True))
        return cls(laws, strings(state["names"]), effects, launches, near, steps)

    def for_device(self, device: str) -> "FittedKernels":
        """Return all data of one device, without the models."""
        own = {
            name: {key: value for key, value in getattr(self, name).items() if key[0] == device}
            for name in ("effects", "launches", "sweeps")
        }
        return FittedKernels({}, self.names, **own)

    def merge(self, newer: "FittedKernels") -> "FittedKernels":
        """Return both; on conflict, ``newer`` wins."""
        tables = ("groups", "effects", "launches", "sweeps", "steps")
        merged: dict[str, Any] = {name: {**getattr(self, name), **getattr(newer, name)} for name in tables}
        return replace(self, **merged)

    def predict(
        self, kernels: KernelTable, boards: DeviceFeatures, where: IntArray, *, queued: bool = False
    ) -> tuple[Array, Array]:
        """Return kernel and launch seconds, each (n,), on devices ``where`` (positions in ``boards``).

        A kernel timed by itself also waits for the device to start. One that is ``queued`` behind others does not.

        Raises:
            InvalidInput: a device has no peak for a dtype that a kernel computes in.
        """
        placed = place_kernels(kernels, boards, where)
        group = kernel_groups(placed)
        effects = self.device_effects(kernels, boards.names, where, group)
        kernel_s, launch_s = np.empty(len(placed)), np.empty(len(placed))
        for number in np.unique(group).tolist():
            for swept, rows in self._split_by_sweep(number, boards.names, where, np.flatnonzero(group == number)):
                strange = np.array([(name, number) not in self.effects for name in boards.names])[where[rows]]
                law = self.groups[self._known_group(number)]
                part, row_effects = placed.at(rows), effects[rows] + strange[:, None] * law.typical
                row_effects[:, LAUNCH] += strange * self._launch_offsets(number)[kernels.name[rows]]
                kernel_s[rows], launch_s[rows] = self._predict_group(
                    number, part, (row_effects, strange), swept, queued=queued
                )
        return kernel_s, launch_s

    def _predict_group(
        self, number: int, part: PlacedKernels, effects: tuple[Array, Mask], swept: SweptGroup | None, *, queued: bool
    ) -> tuple[Array, Array]:
        """Return kernel and launch seconds of one group, given offsets (n, 3) and new devices (n,)."""
        learned, (apart, strange) = self._known_group(number), effects
        law = self.groups[learned]
        at = law.at if swept is None else swept.at
        alone, launch = analytical_model(learned).parts(part, at, apart)
        waited = _waited_s(learned, at) if queued else 0.0
        trees_say, leaves = self.tree_corrections(number, part, alone)
        if swept is None or swept.surface is None:
            more = trees_say * np.where(strange, law.trusted, 1.0)
        else:
            more = swept.surface.at(gp_coordinates(number, part.kernels), trees_say, leaves)
        return np.maximum((alone - waited) * np.exp(more), lower_bound_s(part)), launch

    def _split_by_sweep(
        self, group: int, names: Sequence[str], where: IntArray, rows: IntArray
    ) -> list[tuple[SweptGroup | None, IntArray]]:
        """Return the rows of each swept device with its sweep, and all other rows with ``None``."""
        swept = {i: self.sweeps[name, group] for i, name in enumerate(names) if (name, group) in self.sweeps}
        parts: list[tuple[SweptGroup | None, IntArray]]
        parts = [(sweep, rows[where[rows] == i]) for i, sweep in swept.items()]
        parts.append((None, rows[~np.isin(where[rows], list(swept))]))
        return [(sweep, own_rows) for sweep, own_rows in parts if len(own_rows)]

    def _known_group(self, group: int) -> int:
        """Return a group, or the most similar one with a model."""
        for number in (group, *ALIKE[group]):
            if number in self.groups:
                return number
        raise InvalidInput(
            f"no kernels like {KERNEL_GROUPS[group]} were measured: fit the model on samples that contain some"
        )

    def tree_corrections(self, group: int, placed: PlacedKernels, kernel_s: Array) -> tuple[Array, IntArray]:
        """Return the trees' correction of log time (n,), and their leaves (n, trees)."""
        learned = self._known_group(group)
        trees_ = self.groups[learned].trees
        if trees_ is None:
            return np.zeros(len(placed)), np.zeros((len(placed), 0), np.int64)
        leaves = trees_.leaves(group_features(learned, placed, kernel_s))
        return np.clip(trees_.base + trees_.value[leaves].sum(axis=1), -LARGEST_CORRECTION, LARGEST_CORRECTION), leaves

    def factor(self, device: str, vendor: str) -> float:
        """Return the vendor's factor on kernel times for an unmeasured device; else 1."""
        is_measured = any(name == device for name, _ in self.effects)
        return 1.0 if is_measured else float(np.exp(self.steps.get(vendor, 0.0)))

    def _launch_offsets(self, group: int) -> Array:
        """Return each named operator's launch offset from its device's, shape (names + 1,).

        It is the median over the known devices: an operator does the same work on every host. The last entry is zero.
        """
        apart: list[list[float]] = [[] for _ in self.names]
        for (device, name), value in self.launches.items():
            if (device, group) in self.effects:
                apart[name].append(value - float(self.effects[device, group][LAUNCH]))
        return np.array([*(float(np.median(launches)) if launches else 0.0 for launches in apart), 0.0])

    def device_effects(self, kernels: KernelTable, devices: Sequence[str], where: IntArray, group: IntArray) -> Array:
        """Return the known device offsets for each kernel, shape (n, 3); zeros for unknown devices."""
        numbers, none = range(len(KERNEL_GROUPS)), np.zeros(3)
        table = np.array([[self.effects.get((device, number), none) for number in numbers] for device in devices])
        # The last column, which the position -1 of other operators finds, is of none.
        names = (*range(len(self.names)), -1)
        launch = np.array([[self.launches.get((device, name), np.nan) for name in names] for device in devices])
        effects: Array = table[where, group]
        named = launch[where, kernels.name]
        effects[:, 0] = np.where(np.isnan(named), effects[:, 0], named)
        return effects


def _waited_s(group: int, at: Array) -> float:
    """Return how long a kernel timed by itself waits for the device, without its ramp.

    Convolutions have no wait separable from their arithmetic, and matrix units were profiled without.
    """
    if group in (CONVOLUTION, MATRIX):
        return 0.0
    ramp_s = 1e-6 * float(np.exp(at[analytical_model(group).names.index("ramp")]))
    return max(ramp_s - RAMP_S, 0.0)


def kernel_groups(placed: PlacedKernels) -> IntArray:
    """Return the position in ``KERNEL_GROUPS`` of each kernel."""
    return np.asarray(np.where(np.isin(placed.kernels.law, COMPUTING) & placed.matrix, MATRIX, placed.kernels.law))


# Standard deviation of ln(true ÷ predicted) of a whole step: of the 45 runs of transformers published with NeuSight,
# each on a device whose kernels and runs were left out.
SPREAD = 0.12

# Share of a launch that each further kernel of one call takes.
FURTHER = 0.4


# The last lists of ops as columns, so that one graph is laid out once for all devices.
_TABLES = RecentResults[KernelTable]()


class LearnedKernels:
    """A ``KernelModel`` fitted to kernels of other devices, and of this one where measured.

    Raises:
        InvalidInput: the device is no GPU, or lacks its memory bandwidth or an op's dtype peak.
    """

    name = "learned kernels"
    tier = Tier.LEARNED

    def __init__(
        self, fitted: FittedKernels, device: Device, *, spread: float = SPREAD, reasons: tuple[str, ...] = ()
    ) -> None:
        require_gpu(device, "kernels were")
        self.reasons = reasons
        self._spread, self._fitted, self._boards = spread, fitted, DeviceFeatures.of([device])
        self.factor = fitted.factor(device.name, device.vendor)
        figures = device.calibration.figures if device.calibration else {}
        self.call_s = figures.get("launch_s", LAUNCH_S[device.kind])
        self.host_spread = 0.0 if device.is_calibrated else host_spread(device)

    def spread_of(self, graph: OpGraph) -> float:  # noqa: ARG002 - part of the protocol
        """Return the spread on left-out devices."""
        return self._spread

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op; identical ops are predicted once."""
        op_times_s: list[float] = self._priced(self._table(ops)).tolist()
        return op_times_s

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call; a view costs as much as a kernel."""
        return self.call_s * (1 + FURTHER * (op.kernels - 1))

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph: the host runs ahead, so the slower of the two decides."""
        kernels = self._table(graph.ops)
        launches = float(kernels.count @ (1 + FURTHER * (kernels.launched - 1)))
        return max(float(self._priced(kernels) @ kernels.count), self.call_s * launches)

    def _table(self, ops: Sequence[Op]) -> KernelTable:
        names = self._fitted.names
        return _TABLES.get(ops, names, lambda: tabulate_ops(ops, {name: i for i, name in enumerate(names)}))

    def _priced(self, kernels: KernelTable) -> Array:
        alike, place = distinct_rows(kernel_keys(kernels))
        seconds: Array = self.factor * alone_s(
            self._fitted, kernels.at(alike), self._boards, np.zeros(len(alike), np.int64)
        )
        return seconds[place]


def alone_s(fitted: FittedKernels, kernels: KernelTable, boards: DeviceFeatures, where: IntArray) -> Array:
    """Return the seconds (n,) of kernels on the devices ``where`` of ``boards``."""
    kernel_s = np.zeros(len(kernels))
    runs = np.flatnonzero((kernels.moved > 0) | (kernels.flops > 0))  # a view runs no kernel
    kernel_s[runs] = fitted.predict(kernels.at(runs), boards, where[runs], queued=True)[0]
    return kernel_s


def kernel_keys(kernels: KernelTable) -> Array:
    """Return the columns (n, 13) that decide a kernel's time."""
    return np.column_stack((
        kernels.law, kernels.dtype, kernels.name, kernels.b, kernels.m, kernels.n, kernels.k, kernels.work,
        kernels.fast_m, kernels.rows, kernels.columns, kernels.width, kernels.moved,
    )).astype(np.float64)  # fmt: skip
