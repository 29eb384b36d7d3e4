"""The uncertainty of a step's prediction on a held-out GPU, from steps of another GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.setting_models import SettingModels, expected_errors
from benchmarks.dnn.splits import LEVEL
from benchmarks.dnn.vision_lab import VisionLab, carried_to, errors_elsewhere, fold_numbers, nearest_setting
from benchmarks.normalized_errors import normalize_errors
from leadline.estimators.step_time.op_utilization import OpUtilization

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

INNER = 3
DEVICE_SPREAD = 0.06
"""Standard deviation of ln(true ÷ predicted) that a held-out device adds: the residual on whole transformer graphs with
each device held out, and kernels from its own sweep."""
SPREAD_QUANTILE = 2.015
"""The 95 % quantile of Student's t with five degrees of freedom, as there were six devices."""
LEAST_SURE = 0.25
"""Least relative spread of a graph, as a share of a typical one."""
LAST_OF_ONE = 13
"""PyTorch 1.13 was followed by 2.0."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The n rows of one setting of a GPU, predicted by the op model of another setting.

    Attributes:
        basis: Name of the rows' op basis.
        near: The setting of the op model ``law``.
        rows: Positions of the rows among all steps.
        predicted: Seconds by ``law``; (n,).
        elsewhere: Errors of the same models in ``near``, NaN where they were not measured; (n,).
        relative: Spread of each prediction as a multiple of the typical one; (n,).
    """

    basis: str
    near: str
    law: OpUtilization
    rows: Whole
    predicted: Array
    elsewhere: Array
    relative: Array


@dataclass(frozen=True, slots=True)
class DeviceUncertainty:
    """The parts of the uncertainty of a prediction on another GPU, at ``LEVEL``.

    Attributes:
        uneven: Irregularity of each setting's kernels: errors of held-out models, divided by those of all settings.
        drift: Error that one release adds for a typical graph with typically regular kernels.
    """

    uneven: Mapping[str, float]
    drift: float

    def half(self, setting: str, part: StandIn) -> Array:
        """Return ln(high ÷ prediction) (n,) of the rows of ``setting``.

        A device changes all kernels alike. Each release rewrites some kernels, mostly those with a large spread, so
        variance grows with the number of releases in between.
        """
        drifted = self.drift * np.sqrt(releases_between(part.near, setting)) * part.relative
        half_width: Array = self.uneven[part.near] * np.hypot(SPREAD_QUANTILE * DEVICE_SPREAD, drifted)
        return half_width


def stand_in(lab: VisionLab, laws: SettingModels, rows: Whole, learned: str, unseen: str) -> StandIn:
    """Predict rows of one setting of ``unseen`` by the op model of the nearest setting of ``learned``."""
    near = nearest_setting(laws, lab, rows, learned)
    basis = learned if learned == unseen else carried_to(learned, unseen)
    predictions = lab.priced(rows, basis, laws, near)
    typical = float(np.median(lab.priced(np.flatnonzero(lab.setting == near), basis, laws, near).spread))
    elsewhere = errors_elsewhere(lab, laws, rows, near)
    relative = np.hypot(predictions.spread / typical, LEAST_SURE)
    return StandIn(basis, near, laws[near], rows, predictions.step_s, elsewhere, relative)


def unevenness(lab: VisionLab, learn: Whole, laws: SettingModels) -> dict[str, float]:
    """Return the errors of held-out models in each setting of one GPU, divided by the root mean square of all."""
    inner = fold_numbers(lab.steps.model, INNER, 1)[learn]
    errors = np.empty(len(learn))
    for part in range(INNER):
        out = inner == part
        predicted, _ = lab.answered(learn[out], lab.laws(learn[~out], start=laws))
        errors[out] = np.log(lab.steps.step_s[learn[out]] / predicted)
    names, place = np.unique(lab.setting[learn], return_inverse=True)
    factors = []
    for number in range(len(names)):
        setting_errors = errors[place == number]
        factors.append(normalize_errors(setting_errors, np.ones(len(setting_errors))).factor(LEVEL))
    usual = np.array(factors)
    together = np.sqrt(np.mean(usual[place] ** 2))
    return {str(name): float(factor / together) for name, factor in zip(names, usual, strict=True)}


def family_errors(lab: VisionLab, folds: Sequence[Mapping[str, StandIn]]) -> dict[str, float]:
    """Return ln(high ÷ prediction) that an unseen family adds in each setting, for a graph of typical spread.

    ``folds`` holds the rows of held-out families on the known GPU, each predicted by its own setting's op model.
    """
    factors = {}
    for setting in folds[0]:
        parts = [fold[setting] for fold in folds]
        errors = [np.log(lab.steps.step_s[part.rows] / part.predicted) for part in parts]
        relative = np.concatenate([part.relative for part in parts])
        factors[setting] = float(normalize_errors(np.concatenate(errors), relative).factor(LEVEL))
    return factors


def other_releases(lab: VisionLab, learn: Whole, laws: SettingModels, learned: str) -> dict[str, StandIn]:
    """Predict the rows of each setting of one GPU by the nearest other release of its layout, if there is one."""
    settings = {}
    for setting in np.unique(lab.setting[learn]).tolist():
        rows = learn[lab.setting[learn] == setting]
        phase, layout, _ = str(lab.steps.setting[rows[0]]).split()
        other_laws = {name: law for name, law in laws.items() if name != setting}
        if any(name.startswith(f"{learned} {phase} {layout} ") for name in other_laws):
            settings[setting] = stand_in(lab, other_laws, rows, learned, learned)
    return settings


def device_uncertainty(
    lab: VisionLab, releases: Mapping[str, StandIn], uneven: Mapping[str, float], *, knowing: bool
) -> DeviceUncertainty:
    """Return the uncertainty that matches the errors between releases in ``releases``.

    ``knowing`` corrects predictions by the models' own errors in the other setting.
    """
    errors, spreads, units = [], [], []
    for setting, part in releases.items():
        measured = np.isfinite(part.elsewhere)
        shift = expected_errors(part.elsewhere) if knowing else 0.0
        errors.append((np.log(lab.steps.step_s[part.rows] / part.predicted) - shift)[measured])
        spreads.append(uneven[part.near] * np.sqrt(releases_between(part.near, setting)) * part.relative[measured])
        units += [setting] * int(measured.sum())
    return DeviceUncertainty(
        uneven, normalize_errors(np.concatenate(errors), np.concatenate(spreads), units).factor(LEVEL)
    )


def releases_between(first: str, second: str) -> int:
    """Return the number of PyTorch releases between two settings, whose names end in their release."""
    return abs(_minor(first.rsplit(maxsplit=1)[-1]) - _minor(second.rsplit(maxsplit=1)[-1]))


def _minor(release: str) -> int:
    """Return the ordinal number of a minor release (113: PyTorch 1.13)."""
    return int(release[1:]) if release.startswith("1") else LAST_OF_ONE + 1 + int(release[1])
