"""Steps of vision models on two GPUs, the basis of their graphs on each, and the laws that learning rows give."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.vision_baselines import Baselines
from benchmarks.dnn.vision_data import VisionSteps, vision_steps
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.estimators.learned.law_kernels import StepSetting
from leadline.estimators.learned.op_law import Basis, Observed, Priced, price
from leadline.estimators.learned.steps import Laws, fit_settings
from leadline.uncertainty.conformal import Residuals

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Texts = npt.NDArray[np.str_]

OURS = "Leadline"
DEVICES = {"rtx3090": "RTX 3090", "rtx4090": "RTX 4090"}
FOLDS = 5


class Lab:
    """The steps, the basis of their graphs on each device, and the laws that learning rows give."""

    def __init__(self, data: Path) -> None:
        self.steps: VisionSteps = vision_steps(data)
        catalog = TomlCatalog(None)
        self.devices: dict[str, Device] = {one: catalog.device(DEVICES[one]) for one in np.unique(self.steps.device)}
        self.bases = {
            there if there == here else carried_to(there, here): Basis.of(self.steps.table, device, learned_on=known)
            for here, device in self.devices.items()
            for there, known in self.devices.items()
        }
        self.setting: Texts = np.char.add(np.char.add(self.steps.device, " "), self.steps.setting)
        self.baselines = Baselines(self.steps, self.devices)

    def observed(self, rows: Whole, device: str) -> Observed:
        """Return the rows as steps of one device; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        return Observed(self.bases[device].taken(graphs), place, self.steps.step_s[rows])

    def laws(self, rows: Whole, start: Laws | None = None) -> Laws:
        """Return the laws of all settings among ``rows``."""
        names = [str(one) for one in np.unique(self.setting[rows])]
        observed = {one: self.observed(rows[self.setting[rows] == one], str(one).partition(" ")[0]) for one in names}
        return fit_settings(observed, {one: one.split()[2] for one in names}, start=start)

    def priced(self, rows: Whole, device: str, laws: Laws, setting: str) -> Priced:
        """Return the price of each row under the law of ``setting``; ``device`` names a basis."""
        graphs, place = np.unique(self.steps.graph[rows], return_inverse=True)
        found = price(self.bases[device].taken(graphs), laws[setting])
        return Priced(found.step_s[place], found.device_s[place], found.spread[place])

    def answered(self, rows: Whole, laws: Laws) -> tuple[Array, Array]:
        """Return price and spread of rows, each under the law of its own setting."""
        said, spread = np.empty(len(rows)), np.empty(len(rows))
        for name in np.unique(self.setting[rows]):
            own = self.setting[rows] == name
            found = self.priced(rows[own], str(name).split()[0], laws, str(name))
            said[own], spread[own] = found.step_s, found.spread
        return said, spread


def setting_of(lab: Lab, name: str) -> StepSetting:
    """Return a setting of the lab (``rtx3090 infer nchw 210``) as estimators know it."""
    device, mode, layout, release = name.split()
    return StepSetting(lab.devices[device].name, mode == "train", layout == "nhwc", (int(release[0]), int(release[1:])))


def carried_to(seen: str, unseen: str) -> str:
    """Return the name of the basis of one GPU for laws that were learned on another."""
    return f"{unseen} from {seen}"


def inference(lab: Lab, device: str) -> Whole:
    """Return the rows of inference on a GPU."""
    return np.flatnonzero((lab.steps.device == device) & (lab.steps.columns["mode"] == "infer"))


def parts_of(names: Texts, count: int, seed: int) -> Whole:
    """Return the fold of each row, such that rows of one name are together."""
    known, place = np.unique(names, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(known)) % count
    found: Whole = fold[place]
    return found


def nearest_setting(laws: Laws, lab: Lab, rows: Whole, seen: str) -> str:
    """Return the setting of the seen GPU with the same phase and layout, and the nearest release."""
    phase, layout, release = str(lab.steps.setting[rows[0]]).split()
    alike = [one for one in laws if one.startswith(f"{seen} {phase} {layout} ")]
    return min(alike, key=lambda one: abs(int(one.rpartition(" ")[2]) - int(release)))


def errors_elsewhere(lab: Lab, laws: Laws, rows: Whole, near: str) -> Array:
    """Return ln(measured ÷ priced) of the same models in the setting ``near``; NaN where they were not measured."""
    there = np.flatnonzero(lab.setting == near)
    priced = lab.priced(there, near.split(maxsplit=1)[0], laws, near).step_s
    images = lab.steps.columns["img_size"]
    errors = np.log(lab.steps.step_s[there] / priced)
    names = [(str(model), int(image)) for model, image in zip(lab.steps.model, images, strict=True)]
    known = {names[row]: float(error) for row, error in zip(there, errors, strict=True)}
    return np.array([known.get(names[row], np.nan) for row in rows])


def residuals(lab: Lab, rows: Whole, said: Array, spread: Array) -> Residuals:
    """Return the errors of rows, each setting a group of its own and each model a configuration."""
    return Residuals.of(
        lab.steps.step_s[rows],
        said,
        spread=spread,
        scale=lab.setting[rows].tolist(),
        configuration=lab.steps.model[rows].tolist(),
    )
