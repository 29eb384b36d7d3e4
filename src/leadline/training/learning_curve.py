"""How the error on full-scale runs falls as the campaign costs more."""

from dataclasses import dataclass

from leadline.core.errors import InvalidInput
from leadline.core.runs import Scale
from leadline.training.fitting import Trained
from leadline.training.out_of_fold import fit, predict_held_out
from leadline.training.splits import first_share, folds
from leadline.uncertainty.metrics import mape

STEPS = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""Shares of the runs of each scale that are learned from."""
FOLDS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """Learned from runs that took ``cost_s`` seconds to make: the error in percent on those held out, and how many."""

    cost_s: float
    runs: int
    mape: float


def learning_curve(one: Trained, seed: int = 0) -> tuple[Step, ...]:
    """Return the steps of growing cost that the chosen estimator can be fitted on.

    Each learns from a share of the configurations of each scale, and is scored on the full-scale runs (all, where there
    are none) of folds held out.
    """
    data = one.data.dataset
    partings = folds(data.samples, FOLDS, seed)
    found: list[Step] = []
    for share in STEPS:
        costs, runs, errors = [], [], []
        for parting in partings:
            part = first_share(parting.fitted, share, seed)
            held = [each for each in parting.held_out if each.scale is Scale.FULL_SCALE] or list(parting.held_out)
            try:
                fitted = fit(
                    one.selection.winner,
                    one.selection.recipe,
                    part,
                    scale_features=data.scale_features,
                    seed=seed,
                )
            except InvalidInput:  # too few runs for this estimator: the curve begins later
                continue
            said = predict_held_out(fitted, held)
            errors.append(mape(said.measured.tolist(), (said.point * one.factor).tolist()))
            costs.append(sum(each.cost_s for each in part))
            runs.append(len(part))
        if len(errors) == len(partings) and (not found or sum(runs) > found[-1].runs * len(runs)):
            found.append(Step(sum(costs) / len(costs), round(sum(runs) / len(runs)), sum(errors) / len(errors)))
    return tuple(found)
