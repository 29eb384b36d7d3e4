"""Op utilization as a ``KernelModel``: on a measured GPU, or carried to another by its figures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind
from leadline.core.hardware import Device
from leadline.estimators.ports import IntArray, State, nest, strings, text_array, unnest
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.device_features import require_gpu
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, OpTable, index_ops
from leadline.estimators.step_time.op_utilization import Array, OpBasis, OpUtilization, predict_graphs_and_ops
from leadline.estimators.step_time.roofline import HOST_SPREAD

# A graph is refused that spends more than this share of its time in kernels of classes that no learned step had.
UNSEEN = 0.3
# Log spread of unlearned kernels, which little more than a roofline predicts.
STRANGE = 0.5
# Log spread of steps on a GPU without measured steps.
SPREAD = 0.12

Marks = npt.NDArray[np.bool_]

# Makes the table of a graph's ops, and says for each op where it stands there; remembers the last ones.
OpTableFactory = Callable[[Sequence[Op]], tuple[OpTable, IntArray]]


@dataclass(frozen=True, slots=True, order=True)
class StepSetting:
    """Settings that select kernels: device name, phase, layout, and PyTorch's release (2.4)."""

    device: str
    training: bool
    channels_last: bool
    release: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> "StepSetting":
        """Return the setting that ``str`` wrote."""
        device, phase, layout, release = text.split("|")
        return cls(device, phase == "training", layout == "nhwc", tuple(int(part) for part in release.split(".")))

    def __str__(self) -> str:
        phase, layout = "training" if self.training else "inference", "nhwc" if self.channels_last else "nchw"
        return f"{self.device}|{phase}|{layout}|{'.'.join(str(part) for part in self.release)}"


@dataclass(frozen=True, slots=True)
class OpUtilizationModels:
    """Models by setting, with typical spreads and the kernel classes that they learned.

    ``typical_spreads`` is the log spread of nine in ten training graphs. ``learned_classes`` has shape (classes,).
    ``learned_on`` names the device of the model's figures if it is not the setting's: a model adapted to few steps
    keeps the original's.
    """

    models: Mapping[StepSetting, OpUtilization]
    typical_spreads: Mapping[StepSetting, float]
    learned_classes: Mapping[StepSetting, Marks]
    learned_on: Mapping[StepSetting, str] = field(default_factory=dict)

    def dump(self) -> State:
        """Return all of it as named arrays."""
        settings = list(self.models)
        names = text_array([str(setting) for setting in settings])
        state = {"laws.settings": names, "settings": names,
                 "usual": np.array([self.typical_spreads[setting] for setting in settings]),
                 "seen": np.array([self.learned_classes[setting] for setting in settings]),
                 "learned_on": text_array([self.origin(setting) for setting in settings])}  # fmt: skip
        for number, setting in enumerate(settings):
            state |= nest(f"laws.{number}", self.models[setting].dump())
        return state

    @classmethod
    def load(cls, state: State) -> "OpUtilizationModels":
        """Return the models that ``dump`` wrote."""
        names = strings(state["laws.settings"])
        laws = {
            StepSetting.read(name): OpUtilization.load(unnest(f"laws.{number}", state))
            for number, name in enumerate(names)
        }
        settings = [StepSetting.read(name) for name in strings(state["settings"])]
        usual, seen = state["usual"].astype(float).tolist(), state["seen"].astype(bool)
        columns = (dict(zip(settings, column, strict=True)) for column in (usual, seen, strings(state["learned_on"])))
        return cls(laws, *columns)

    def origin(self, setting: StepSetting) -> str:
        """Return the device whose figures the model of a setting uses."""
        return self.learned_on.get(setting, setting.device)

    def select(self, settings: Sequence[StepSetting]) -> "OpUtilizationModels":
        """Return the models of those settings."""
        return OpUtilizationModels(
            {setting: self.models[setting] for setting in settings},
            {setting: self.typical_spreads[setting] for setting in settings},
            {setting: self.learned_classes[setting] for setting in settings},
            {setting: self.origin(setting) for setting in settings},
        )

    def merge(self, newer: "OpUtilizationModels") -> "OpUtilizationModels":
        """Return both; on conflict, ``newer`` wins."""
        origins = {setting: each.origin(setting) for each in (self, newer) for setting in each.models}
        return OpUtilizationModels(
            {**self.models, **newer.models}, {**self.typical_spreads, **newer.typical_spreads},
            {**self.learned_classes, **newer.learned_classes}, origins,
        )  # fmt: skip

    def has_device(self, device: Device, *, training: bool) -> bool:
        """Return whether steps of that phase were measured on the device."""
        return any(setting.device == device.name and setting.training is training for setting in self.models)

    def settings_for(self, device: Device, graph: OpGraph) -> list[StepSetting]:
        """Return the settings for a graph's phase and layout on ``device``.

        That is the newest release measured there. On an unmeasured device it is the newest of each measured one.

        Raises:
            InvalidInput: no such steps were learned.
        """
        training, last = graph.is_training, is_channels_last(graph)
        alike = [setting for setting in self.models if setting.training is training]
        alike = [setting for setting in alike if setting.channels_last is last] or alike
        measured = [setting for setting in alike if setting.device == device.name]
        newest = list({setting.device: setting for setting in sorted(measured or alike)}.values())
        if not newest:
            phase = "training" if training else "inference"
            raise InvalidInput(f"no {phase} steps were measured: fit the model on steps that contain some")
        return newest


@dataclass(frozen=True, slots=True)
class _GraphPrediction:
    """A graph's table, the row of each op (n,), seconds of rows and step, and the spread."""

    table: OpTable
    where: IntArray
    op_s: Array
    step_s: float
    spread: float


class OpUtilizationKernels:
    """A ``KernelModel`` by op utilization in the phase and layout of ``graph``.

    On an unmeasured device it is the geometric mean of the measured devices' models. ``devices`` returns a device of
    the training data by name.

    Raises:
        InvalidInput: the device is no GPU or lacks a figure, or the graph is mostly unlearned kernels.
    """

    name = "op law"
    tier = Tier.LEARNED
    host_spread = HOST_SPREAD

    def __init__(
        self, laws: OpUtilizationModels, device: Device, graph: OpGraph, *, devices: Callable[[str], Device],
        spread: float = SPREAD, reasons: tuple[str, ...] = (), tables: OpTableFactory = index_ops,
    ) -> None:  # fmt: skip
        require_gpu(device, "steps were")
        self.reasons = reasons
        self._device, self._spread, self._tables = device, spread, tables
        settings = laws.settings_for(device, graph)
        origins = [laws.origin(setting) for setting in settings]
        self._laws = [laws.models[setting] for setting in settings]
        self._origins = [None if setting == device.name else devices(setting) for setting in origins]
        self._typical_spread = float(np.mean([laws.typical_spreads[setting] for setting in settings]))
        self._learned = np.any([laws.learned_classes[setting] for setting in settings], axis=0)
        self._predictions = RecentCache(self._predict)
        share, classes = self._unseen(graph)
        if share > UNSEEN:
            raise InvalidInput(
                f"{share:.0%} of its time is in kernels of which no step was learned ({', '.join(classes)}): price it "
                "by kernels or by specifications"
            )

    def spread_of(self, graph: OpGraph) -> float:
        """Return the spread on left-out steps, widened for graphs far from the training graphs."""
        far = max(1.0, self._predictions(graph.ops).spread / self._typical_spread)
        return math.hypot(self._spread * far, STRANGE * self._unseen(graph)[0])

    def ops_s(self, ops: Sequence[Op]) -> list[float]:
        """Return the seconds of one call of each op; a view takes none."""
        prediction = self._predictions(ops)
        seconds_of_ops: list[float] = np.append(prediction.op_s, 0.0)[prediction.where].tolist()
        return seconds_of_ops

    def launch_s(self, op: Op) -> float:
        """Return the host seconds of one call; views are free."""
        launch_s = math.exp(float(np.mean([math.log(law.launch_s) for law in self._laws])))
        return launch_s * max(op.kernels, 1) if op.bytes_read + op.bytes_written else 0.0

    def step_s(self, graph: OpGraph) -> float:
        """Return the seconds of the whole graph: the host runs ahead, so the slower of the two decides."""
        return self._predictions(graph.ops).step_s

    def _unseen(self, graph: OpGraph) -> tuple[float, list[str]]:
        """Return the share of time in unlearned kernel classes, and their names."""
        prediction = self._predictions(graph.ops)
        seconds = prediction.op_s * prediction.table.count
        strange = ~self._learned[prediction.table.classes]
        names = [KERNEL_CLASSES[number] for number in np.unique(prediction.table.classes[strange])]
        return float(seconds[strange].sum() / seconds.sum()) if len(seconds) else 0.0, names

    def _predict(self, ops: Sequence[Op]) -> _GraphPrediction:
        """Return the geometric mean of the models' predictions for a graph and its ops."""
        table, where = self._tables(ops)
        bases = [OpBasis.from_table(table, self._device, learned_on=estimate) for estimate in self._origins]
        each = [predict_graphs_and_ops(basis, law) for basis, law in zip(bases, self._laws, strict=True)]
        return _GraphPrediction(
            table,
            where,
            np.exp(np.mean([np.log(estimate) for _, estimate in each], axis=0)),
            math.exp(float(np.mean([math.log(estimate.step_s[0]) for estimate, _ in each]))),
            float(np.mean([estimate.spread[0] for estimate, _ in each])),
        )


def is_channels_last(graph: OpGraph) -> bool:
    """Return whether most convolution arithmetic is on channels-last images."""
    arithmetic = {True: 0.0, False: 0.0}
    for op in graph.ops:
        if op.kind is OpKind.CONV:
            arithmetic[bool(op.dims.get("channels_last"))] += op.flops * op.count
    return arithmetic[True] > arithmetic[False]
