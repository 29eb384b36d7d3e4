"""Steps of vision models on two GPUs, the op basis of their graphs on each, and op models fitted to rows."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.baselines import VisionBaselines
from benchmarks.dnn.setting_models import SettingModels, fit_settings
from benchmarks.dnn.vision_data import VisionSteps, vision_steps
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.step_time.op_table import OpTable
from leadline.estimators.step_time.op_utilization import (
    ObservedSteps,
    OpBasis,
    predict_graphs_and_ops,
)
from leadline.estimators.step_time.op_utilization_kernels import StepSetting
from leadline.uncertainty.conformal import Residuals

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

LEADLINE = "Leadline"
DEVICES = {"rtx3090": "RTX 3090", "rtx4090": "RTX 4090"}
FOLDS = 5


@dataclass(frozen=True, slots=True)
class GraphPredictions:
    """Predictions of g graphs: seconds of a step and their spread, each (g,)."""

    step_s: Array
    spread: Array


class VisionLab:
    """The steps, the op basis of their graphs on each device, and op models fitted to rows."""

    def __init__(self, data: Path) -> None:
        self.steps: VisionSteps = vision_steps(data)
        catalog = TomlCatalog(None)
        self.devices: dict[str, Device] = {name: catalog.device(DEVICES[name]) for name in np.unique(self.steps.device)}
        self.bases = {
            learned if learned == unseen else carried_to(learned, unseen): OpBasis.from_table(
                self.steps.table, device, learned_on=learned_on
            )
            for unseen, device in self.devices.items()
            for learned, learned_on in self.devices.items()
        }
        self.setting: Texts = np.char.add(np.char.add(self.steps.device, " "), self.steps.setting)
        self.baselines = VisionBaselines(self.steps, self.devices)
        columns = (self.steps.columns[name] for name in ("param_count", "gmacs", "macts", "img_size"))
        rounded = np.stack([np.round(np.asarray(column, float), 2) for column in columns], axis=1)
        self.shape: Whole = np.unique(rounded, axis=0, return_inverse=True)[1].ravel()

    def without_twins(self, learn: Whole, ask: Whole) -> Whole:
        """Return the rows of ``learn`` that are no twins of rows of ``ask``.

        timm has one architecture under several names: ``gluon_resnet18_v1b`` is ``resnet18``. Two models are twins if
        they share weights, products, activations and image size at least once.
        """
        return rows_without_twins(learn, ask, self.steps.model, self.shape)

    def observed(self, rows: Whole, device: str) -> ObservedSteps:
        """Return the rows as steps of one device; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        return ObservedSteps(select_graphs(self.bases[device], graphs), place, self.steps.step_s[rows])

    def laws(self, rows: Whole, start: SettingModels | None = None) -> SettingModels:
        """Return the op models of all settings among ``rows``."""
        names = [str(name) for name in np.unique(self.setting[rows])]
        observed = {name: self.observed(rows[self.setting[rows] == name], name.partition(" ")[0]) for name in names}
        return fit_settings(observed, {name: name.split()[2] for name in names}, start=start)

    def priced(self, rows: Whole, device: str, laws: SettingModels, setting: str) -> GraphPredictions:
        """Return the prediction of each row by the op model of ``setting``; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        step_s, spread, _ = predict_graphs_and_ops(select_graphs(self.bases[device], graphs), laws[setting])
        return GraphPredictions(step_s[place], spread[place])

    def answered(self, rows: Whole, laws: SettingModels) -> tuple[Array, Array]:
        """Return prediction and spread of rows, each by the op model of its own setting."""
        predicted, spread = np.empty(len(rows)), np.empty(len(rows))
        for name in np.unique(self.setting[rows]):
            mask = self.setting[rows] == name
            predictions = self.priced(rows[mask], str(name).split()[0], laws, str(name))
            predicted[mask], spread[mask] = predictions.step_s, predictions.spread
        return predicted, spread


def setting_of(lab: VisionLab, name: str) -> StepSetting:
    """Return a setting of the lab in the estimators' form."""
    return read_setting(lab.devices[name.split(maxsplit=1)[0]], name)


def read_setting(device: Device, name: str) -> StepSetting:
    """Return a setting by its name (``rtx3090 infer nchw 210``) in the estimators' form."""
    _, mode, layout, release = name.split()
    return StepSetting(device.name, mode == "train", layout == "nhwc", (int(release[0]), int(release[1:])))


def select_graphs(basis: OpBasis, graphs: Whole) -> OpBasis:
    """Return the basis of those graphs in that order."""
    table, first = basis.table, basis.table.first
    chosen = [np.arange(first[graph], first[graph + 1]) for graph in graphs]
    rows = np.concatenate(chosen) if chosen else np.zeros(0, np.int64)
    columns = {field.name: getattr(table, field.name)[rows] for field in fields(table) if field.name != "first"}
    begins = np.concatenate([[0], np.cumsum([len(graph) for graph in chosen])]).astype(np.int64)
    shared, by_class = np.asfortranarray(basis.shared[rows]), np.asfortranarray(basis.by_class[rows])
    selected = OpTable(**columns, first=begins)
    return OpBasis(selected, basis.roofline_s[rows], basis.beyond_s[rows], shared, by_class)


def carried_to(learned: str, unseen: str) -> str:
    """Return the name of the basis of one GPU for op models fitted on another."""
    return f"{unseen} from {learned}"


def inference(lab: VisionLab, device: str) -> Whole:
    """Return the rows of inference on a GPU."""
    return np.flatnonzero((lab.steps.device == device) & (lab.steps.columns["mode"] == "infer"))


def fold_numbers(names: Texts, count: int, seed: int) -> Whole:
    """Return the fold of each row; rows of one name are in one fold."""
    unique, place = np.unique(names, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(unique)) % count
    folds: Whole = fold[place]
    return folds


def rows_without_twins(learn: Whole, ask: Whole, model: Texts, shape: Whole) -> Whole:
    """Return the rows of ``learn`` whose model shares no shape with a model of ``ask``."""
    shapes = shape[np.isin(model, np.unique(model[ask]))]
    twins = np.unique(model[np.isin(shape, shapes)])
    return learn[~np.isin(model[learn], twins)]


def nearest_setting(laws: SettingModels, lab: VisionLab, rows: Whole, learned: str) -> str:
    """Return the setting of the GPU ``learned`` with the same phase and layout, and the nearest release."""
    phase, layout, release = str(lab.steps.setting[rows[0]]).split()
    alike = [name for name in laws if name.startswith(f"{learned} {phase} {layout} ")]
    return min(alike, key=lambda name: abs(int(name.rpartition(" ")[2]) - int(release)))


def errors_elsewhere(lab: VisionLab, laws: SettingModels, rows: Whole, near: str) -> Array:
    """Return ln(measured ÷ predicted) of the same models in the setting ``near``; NaN where they were not measured."""
    near_rows = np.flatnonzero(lab.setting == near)
    predicted = lab.priced(near_rows, near.split(maxsplit=1)[0], laws, near).step_s
    images = lab.steps.columns["img_size"]
    errors = np.log(lab.steps.step_s[near_rows] / predicted)
    names = [(str(model), int(image)) for model, image in zip(lab.steps.model, images, strict=True)]
    by_name = {names[row]: float(error) for row, error in zip(near_rows, errors, strict=True)}
    return np.array([by_name.get(names[row], np.nan) for row in rows])


def residuals(lab: VisionLab, rows: Whole, predicted: Array, spread: Array) -> Residuals:
    """Return the errors of rows, with settings as groups and models as configurations."""
    return Residuals.of(
        lab.steps.step_s[rows],
        predicted,
        spread=spread,
        scale=lab.setting[rows].tolist(),
        configuration=lab.steps.model[rows].tolist(),
    )
