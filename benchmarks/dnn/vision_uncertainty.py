"""How unsure a step's price is on a GPU that was not seen, as steps of the GPU that was seen tell."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.dnn.splits import LEVEL
from benchmarks.dnn.vision_lab import VisionLab, carried_to, errors_elsewhere, fold_numbers, nearest_setting
from leadline.estimators.step_time.op_fitting import SettingModels, expected_errors
from leadline.estimators.step_time.op_utilization import OpUtilization
from leadline.uncertainty.normalized_scores import NormalizedScores

Array = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

INNER = 3
DEVICE_SPREAD = 0.06
"""Standard deviation of ln(true ÷ priced) that a device never seen adds: what is left of whole transformer graphs, each
device left out, once kernels are priced by their own device's sweep."""
SPREAD_QUANTILE = 2.015
"""Those were six devices: the 95 % quantile of Student's t of five degrees of freedom."""
LEAST_SURE = 0.25
"""A spread of nearly nothing is not believed: a graph counts as unsure as this share of a typical one at least."""
LAST_OF_ONE = 13
"""PyTorch 1.13 was followed by 2.0."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The n ``rows`` of one setting of a GPU, as ``law`` has them, of the setting ``near`` that stands in for it.

    ``basis`` names their basis, ``said`` (n,) are their prices, ``elsewhere`` (n,) the errors of the same models in
    ``near`` (NaN where they were not measured), ``relative`` (n,) how unsure the law is of each, in typical ones.
    """

    basis: str
    near: str
    law: OpUtilization
    rows: Whole
    said: Array
    elsewhere: Array
    relative: Array


@dataclass(frozen=True, slots=True)
class DeviceUncertainty:
    """What makes a price on another GPU unsure, as shares of it, at ``LEVEL``.

    ``uneven`` tells how irregular the kernels of each seen setting are: the errors of models left out of it, against
    those of all. ``drift`` is what one release adds to the error of a typical graph where kernels are as even as usual.
    """

    uneven: Mapping[str, float]
    drift: float

    def half(self, setting: str, one: StandIn) -> Array:
        """Return ln(high ÷ price) (n,) of the rows of ``setting``.

        A device changes all kernels alike. Releases rewrite some of them, most of all where the law is unsure, and
        each rewrites others, so that variance grows with their number; the one that was seen itself adds nothing.
        """
        drifted = self.drift * np.sqrt(releases_between(one.near, setting)) * one.relative
        found: Array = self.uneven[one.near] * np.hypot(SPREAD_QUANTILE * DEVICE_SPREAD, drifted)
        return found


def stand_in(lab: VisionLab, laws: SettingModels, rows: Whole, seen: str, unseen: str) -> StandIn:
    """Return rows of one setting of ``unseen`` as the nearest setting of ``seen`` among the laws has them."""
    near = nearest_setting(laws, lab, rows, seen)
    basis = seen if seen == unseen else carried_to(seen, unseen)
    found = lab.priced(rows, basis, laws, near)
    typical = float(np.median(lab.priced(np.flatnonzero(lab.setting == near), basis, laws, near).spread))
    elsewhere = errors_elsewhere(lab, laws, rows, near)
    relative = np.hypot(found.spread / typical, LEAST_SURE)
    return StandIn(basis, near, laws[near], rows, found.step_s, elsewhere, relative)


def unevenness(lab: VisionLab, learn: Whole, laws: SettingModels) -> dict[str, float]:
    """Return the errors of models left out of each setting of one GPU, against the root mean square over all rows."""
    inner = fold_numbers(lab.steps.model, INNER, 1)[learn]
    errors = np.empty(len(learn))
    for part in range(INNER):
        out = inner == part
        said, _ = lab.answered(learn[out], lab.laws(learn[~out], start=laws))
        errors[out] = np.log(lab.steps.step_s[learn[out]] / said)
    names, place = np.unique(lab.setting[learn], return_inverse=True)
    usual = np.array(
        [NormalizedScores.of(own := errors[place == one], np.ones(len(own))).factor(LEVEL) for one in range(len(names))]
    )
    together = np.sqrt(np.mean(usual[place] ** 2))
    return {str(name): float(one / together) for name, one in zip(names, usual, strict=True)}


def other_releases(lab: VisionLab, learn: Whole, laws: SettingModels, seen: str) -> dict[str, StandIn]:
    """Return the rows of each setting of one GPU as the nearest other release has them, where its layout has one."""
    found = {}
    for setting in np.unique(lab.setting[learn]).tolist():
        rows = learn[lab.setting[learn] == setting]
        phase, layout, _ = str(lab.steps.setting[rows[0]]).split()
        others = {name: law for name, law in laws.items() if name != setting}
        if any(name.startswith(f"{seen} {phase} {layout} ") for name in others):
            found[setting] = stand_in(lab, others, rows, seen, seen)
    return found


def device_uncertainty(
    lab: VisionLab, tried: Mapping[str, StandIn], uneven: Mapping[str, float], *, knowing: bool
) -> DeviceUncertainty:
    """Return the doubts under which errors between releases are as large as they were in ``tried``.

    ``knowing`` tells whether the models' own errors there are carried.
    """
    errors, doubts, units = [], [], []
    for setting, one in tried.items():
        known = np.isfinite(one.elsewhere)
        shift = expected_errors(one.elsewhere) if knowing else 0.0
        errors.append((np.log(lab.steps.step_s[one.rows] / one.said) - shift)[known])
        doubts.append(uneven[one.near] * np.sqrt(releases_between(one.near, setting)) * one.relative[known])
        units += [setting] * int(known.sum())
    return DeviceUncertainty(
        uneven, NormalizedScores.of(np.concatenate(errors), np.concatenate(doubts), units).factor(LEVEL)
    )


def releases_between(one: str, other: str) -> int:
    """Return how many releases of PyTorch lie between two settings, whose names end in theirs."""
    return abs(_minor(one.rsplit(maxsplit=1)[-1]) - _minor(other.rsplit(maxsplit=1)[-1]))


def _minor(release: str) -> int:
    """Return the number of a release (113: PyTorch 1.13) among those with new features, in their order."""
    return int(release[1:]) if release.startswith("1") else LAST_OF_ONE + 1 + int(release[1])
