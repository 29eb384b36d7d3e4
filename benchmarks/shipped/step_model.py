"""Fit the model of transformers' training steps with its intervals, and write its files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.normalized_errors import normalize_errors
from benchmarks.shipped.cards import StepModelCard, write_card
from benchmarks.shipped.transformer_fitting import fit_transformer_steps
from leadline.estimators.step_time.transformer import TransformerStep
from leadline.training.transformer_steps import (
    ALL,
    BEYOND,
    STEP_MODEL_CARD_FILE,
    STEP_MODEL_FILE,
    StepModel,
    step_groups,
    tested_spread,
)

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.str_]

FOLDS = 5
SEED = 0
ENOUGH = 19
"""Scores that a generation of GPUs needs for intervals of its own."""


def fit_step_model(
    steps: Sequence[TransformerStep],
    elapsed_s: Array,
    configuration: Sequence[str],
    extrapolations: Sequence[tuple[Mask, Mask]] = (),
) -> StepModel:
    """Fit the model of n measured steps, and score its errors by cross-validation.

    Args:
        steps: measured steps.
        elapsed_s: their times, of shape (n,).
        configuration: of each step; steps of one configuration are held out together.
        extrapolations: further splits to score, as masks of shape (n,) of the steps to fit on and to predict.

    Raises:
        InvalidInput: too few steps, a time not above zero, or a device without a specification.
    """
    names, place = np.unique(np.asarray(configuration, np.str_), return_inverse=True)
    folds = np.random.default_rng(SEED).integers(0, FOLDS, len(names))[place]
    crossed = [(folds != fold, folds == fold) for fold in range(FOLDS) if 0 < (folds == fold).sum() < len(folds)]
    parts = [_held_out_errors(steps, elapsed_s, *split) for split in (*crossed, *extrapolations)]
    errors, spreads = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    groups = np.concatenate([part[2] for part in parts])
    far = np.char.endswith(groups, BEYOND)
    scores = {ALL: normalize_errors(errors, spreads)}
    for name, rows in [(ALL + BEYOND, far), *((str(group), groups == group) for group in np.unique(groups))]:
        if rows.sum() >= ENOUGH:
            scores[name] = normalize_errors(errors[rows], spreads[rows])
    return StepModel(fit_transformer_steps(steps, elapsed_s.tolist()), scores)


def _held_out_errors(
    steps: Sequence[TransformerStep], elapsed_s: Array, fitted: Mask, held_out: Mask
) -> tuple[Array, Array, Texts]:
    """Return ln(measured ÷ predicted) of the held-out steps, the model's spread, and their groups."""
    model = fit_transformer_steps([steps[i] for i in np.flatnonzero(fitted).tolist()], elapsed_s[fitted].tolist())
    scored = [steps[i] for i in np.flatnonzero(held_out).tolist()]
    predicted = model.predict(scored)
    errors = np.log(elapsed_s[held_out] / predicted.point)
    spread = tested_spread(predicted.spread, model.untested_spread(scored))
    return errors, spread, step_groups(scored, predicted.extrapolation)


def write_step_model(folder: Path, model: StepModel, card: StepModelCard) -> None:
    """Write the model's state and its card into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / STEP_MODEL_FILE, **model.dump())  # type: ignore[arg-type]
    write_card(folder / STEP_MODEL_CARD_FILE, card)
