"""Steps of vision models on two GPUs, the basis of their graphs on each, and the laws that learning rows give."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.baselines import VisionBaselines
from benchmarks.dnn.vision_data import VisionSteps, vision_steps
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.step_time.op_fitting import SettingModels, fit_settings
from leadline.estimators.step_time.op_utilization import GraphPredictions, ObservedSteps, OpBasis, predict_graphs
from leadline.estimators.step_time.op_utilization_kernels import StepSetting
from leadline.uncertainty.conformal import Residuals

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

LEADLINE = "Leadline"
DEVICES = {"rtx3090": "RTX 3090", "rtx4090": "RTX 4090"}
FOLDS = 5


class VisionLab:
    """The steps, the basis of their graphs on each device, and the laws that learning rows give."""

    def __init__(self, data: Path) -> None:
        self.steps: VisionSteps = vision_steps(data)
        catalog = TomlCatalog(None)
        self.devices: dict[str, Device] = {one: catalog.device(DEVICES[one]) for one in np.unique(self.steps.device)}
        self.bases = {
            there if there == here else carried_to(there, here): OpBasis.from_table(
                self.steps.table, device, learned_on=known
            )
            for here, device in self.devices.items()
            for there, known in self.devices.items()
        }
        self.setting: Texts = np.char.add(np.char.add(self.steps.device, " "), self.steps.setting)
        self.baselines = VisionBaselines(self.steps, self.devices)

    def observed(self, rows: Whole, device: str) -> ObservedSteps:
        """Return the rows as steps of one device; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        return ObservedSteps(self.bases[device].select(graphs), place, self.steps.step_s[rows])

    def laws(self, rows: Whole, start: SettingModels | None = None) -> SettingModels:
        """Return the laws of all settings among ``rows``."""
        names = [str(one) for one in np.unique(self.setting[rows])]
        observed = {one: self.observed(rows[self.setting[rows] == one], str(one).partition(" ")[0]) for one in names}
        return fit_settings(observed, {one: one.split()[2] for one in names}, start=start)

    def priced(self, rows: Whole, device: str, laws: SettingModels, setting: str) -> GraphPredictions:
        """Return the price of each row under the law of ``setting``; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        found = predict_graphs(self.bases[device].select(graphs), laws[setting])
        return GraphPredictions(found.step_s[place], found.device_s[place], found.spread[place])

    def answered(self, rows: Whole, laws: SettingModels) -> tuple[Array, Array]:
        """Return price and spread of rows, each under the law of its own setting."""
        said, spread = np.empty(len(rows)), np.empty(len(rows))
        for name in np.unique(self.setting[rows]):
            own = self.setting[rows] == name
            found = self.priced(rows[own], str(name).split()[0], laws, str(name))
            said[own], spread[own] = found.step_s, found.spread
        return said, spread


def setting_of(lab: VisionLab, name: str) -> StepSetting:
    """Return a setting of the lab (``rtx3090 infer nchw 210``) as estimators know it."""
    device, mode, layout, release = name.split()
    return StepSetting(lab.devices[device].name, mode == "train", layout == "nhwc", (int(release[0]), int(release[1:])))


def carried_to(seen: str, unseen: str) -> str:
    """Return the name of the basis of one GPU for laws that were learned on another."""
    return f"{unseen} from {seen}"


def inference(lab: VisionLab, device: str) -> Whole:
    """Return the rows of inference on a GPU."""
    return np.flatnonzero((lab.steps.device == device) & (lab.steps.columns["mode"] == "infer"))


def fold_numbers(names: Texts, count: int, seed: int) -> Whole:
    """Return the fold of each row, such that rows of one name are together."""
    known, place = np.unique(names, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(known)) % count
    found: Whole = fold[place]
    return found


def nearest_setting(laws: SettingModels, lab: VisionLab, rows: Whole, seen: str) -> str:
    """Return the setting of the seen GPU with the same phase and layout, and the nearest release."""
    phase, layout, release = str(lab.steps.setting[rows[0]]).split()
    alike = [one for one in laws if one.startswith(f"{seen} {phase} {layout} ")]
    return min(alike, key=lambda one: abs(int(one.rpartition(" ")[2]) - int(release)))


def errors_elsewhere(lab: VisionLab, laws: SettingModels, rows: Whole, near: str) -> Array:
    """Return ln(measured ÷ priced) of the same models in the setting ``near``; NaN where they were not measured."""
    there = np.flatnonzero(lab.setting == near)
    priced = lab.priced(there, near.split(maxsplit=1)[0], laws, near).step_s
    images = lab.steps.columns["img_size"]
    errors = np.log(lab.steps.step_s[there] / priced)
    names = [(str(model), int(image)) for model, image in zip(lab.steps.model, images, strict=True)]
    known = {names[row]: float(error) for row, error in zip(there, errors, strict=True)}
    return np.array([known.get(names[row], np.nan) for row in rows])


def residuals(lab: VisionLab, rows: Whole, said: Array, spread: Array) -> Residuals:
    """Return the errors of rows, each setting a group of its own and each model a configuration."""
    return Residuals.of(
        lab.steps.step_s[rows],
        said,
        spread=spread,
        scale=lab.setting[rows].tolist(),
        configuration=lab.steps.model[rows].tolist(),
    )
