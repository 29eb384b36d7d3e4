"""Op utilization as a ``KernelModel``: on a measured GPU, or carried to another by its figures."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Tier
from leadline.core.frozen import Frozen
from leadline.core.graph import Op, OpGraph, OpKind
from leadline.core.hardware import Device
from leadline.estimators.ports import Array, IntArray, Mask, State, floats, nest, strings, text_array, unnest
from leadline.estimators.recent_cache import RecentCache
from leadline.estimators.step_time.device_features import require_gpu
from leadline.estimators.step_time.op_table import KERNEL_CLASSES, OpTable, index_ops
from leadline.estimators.step_time.op_utilization import OpBasis, OpUtilization, predict_graphs_and_ops
from leadline.estimators.step_time.roofline import host_spread

# A graph is refused that spends more than this share of its time in kernels of classes that no learned step had.
UNSEEN = 0.3
# Log spread of unlearned kernels, which little more than a roofline predicts.
STRANGE = 0.5
# Log spread of steps on a GPU without measured steps.
SPREAD = 0.12


class StepSetting(Frozen, order=True):
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


class SettingModel(Frozen):
    """The model of a setting, with the log spread of nine in ten training graphs and a mask of learned kernel classes.

    ``learned_on`` names the device of the model's figures: a model adapted to few steps keeps the original's.
    """

    law: OpUtilization
    typical_spread: float
    learned_classes: Mask
    learned_on: str


class OpUtilizationModels(Frozen):
    """Models by setting."""

    models: Mapping[StepSetting, SettingModel]

    def dump(self) -> State:
        """Return all of it as named arrays."""
        names = text_array([str(setting) for setting in self.models])
        models = self.models.values()
        state = {"laws.settings": names, "settings": names,
                 "usual": np.array([model.typical_spread for model in models]),
                 "seen": np.array([model.learned_classes for model in models]),
                 "learned_on": text_array([model.learned_on for model in models])}  # fmt: skip
        for number, model in enumerate(models):
            state |= nest(f"laws.{number}", model.law.dump())
        return state

    @classmethod
    def load(cls, state: State) -> "OpUtilizationModels":
        """Return the models that ``dump`` wrote."""
        names, stored = strings(state["settings"]), strings(state["laws.settings"])
        laws = [OpUtilization.load(unnest(f"laws.{stored.index(name)}", state)) for name in names]
        columns = (laws, floats(state["usual"]).tolist(), state["seen"].astype(bool), strings(state["learned_on"]))
        models = (SettingModel(*row) for row in zip(*columns, strict=True))
        return cls(dict(zip(map(StepSetting.read, names), models, strict=True)))

    def merge(self, newer: "OpUtilizationModels") -> "OpUtilizationModels":
        """Return both; on conflict, ``newer`` wins."""
        return OpUtilizationModels({**self.models, **newer.models})

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


class _GraphPrediction(Frozen):
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

    def __init__(
        self, laws: OpUtilizationModels, device: Device, graph: OpGraph, *, devices: Callable[[str], Device],
        spread: float = SPREAD, reasons: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        require_gpu(device, "steps were")
        self.reasons = reasons
        self._device, self._spread, self.host_spread = device, spread, host_spread(device)
        models = [laws.models[setting] for setting in laws.settings_for(device, graph)]
        self._laws = [replace(model.law, launch_s=device.launch_s or model.law.launch_s) for model in models]
        self._origins = [None if model.learned_on == device.name else devices(model.learned_on) for model in models]
        self._typical_spread = float(np.mean([model.typical_spread for model in models]))
        self._learned = np.any([model.learned_classes for model in models], axis=0)
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
        table, where = index_ops(ops)
        bases = [OpBasis.from_table(table, self._device, learned_on=estimate) for estimate in self._origins]
        each = [predict_graphs_and_ops(basis, law) for basis, law in zip(bases, self._laws, strict=True)]
        op_s = np.exp(np.mean([np.log(op_s) for _, _, op_s in each], axis=0))
        step_s = math.exp(float(np.mean([math.log(step_s[0]) for step_s, _, _ in each])))
        return _GraphPrediction(table, where, op_s, step_s, float(np.mean([spread[0] for _, spread, _ in each])))


def is_channels_last(graph: OpGraph) -> bool:
    """Return whether most convolution arithmetic is on channels-last images."""
    arithmetic = {True: 0.0, False: 0.0}
    for op in graph.ops:
        if op.kind is OpKind.CONV:
            arithmetic[bool(op.dims.get("channels_last"))] += op.flops * op.count
    return arithmetic[True] > arithmetic[False]
