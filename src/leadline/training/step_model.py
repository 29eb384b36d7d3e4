"""The time of transformers' training steps with intervals: the law, and how far off it was of steps it had not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadline.estimators.tabular.ports import State
from leadline.estimators.tabular.states import floats, lines, nest, texts, within
from leadline.estimators.transformer_step import StepLaw, fit
from leadline.estimators.transformer_step import load as load_law
from leadline.estimators.transformer_terms import TransformerStep, generation_of
from leadline.uncertainty.absolute import Scores

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FOLDS = 5
SEED = 0
ENOUGH = 19
"""Scores from which a generation of GPUs has intervals of its own."""
ALL = ""
"""The scores of all generations together, for those that have few or none."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """The law of all learned steps, and the scores of those that it was asked without having seen them.

    ``scores`` are by generation of GPUs (``generation_of``), those of all under ``ALL``.
    """

    law: StepLaw
    scores: Mapping[str, Scores]

    def predict(self, steps: Sequence[TransformerStep], level: float) -> tuple[Array, Array, Array]:
        """Return the seconds of n steps, and the ends of their central intervals of ``level`` (0 to 1), each (n,).

        Raises:
            InvalidInput: a device lacks a figure, or a size is not above zero.
        """
        told, believed = self.law.predict(steps), self.law.believed(steps)
        doubt, generation = _tested(told.spread, believed), _generations(steps)
        low, high = np.empty(len(steps)), np.empty(len(steps))
        for name in np.unique(generation):
            own, scores = generation == name, self.scores.get(str(name), self.scores[ALL])
            low[own], high[own] = scores.interval(told.point[own], doubt[own], level, believed[own])
        return told.point, low, high

    def dump(self) -> State:
        """Return the whole as arrays."""
        state: State = {"generations": texts(list(self.scores)), **nest("law", self.law.dump())}
        for number, scores in enumerate(self.scores.values()):
            state |= nest(f"scores{number}", scores.dump())
        return state


def load(state: State) -> StepModel:
    """Return the model that was dumped."""
    scores = {}
    for number, name in enumerate(lines(state["generations"])):
        scores[name] = Scores.load({key: floats(one) for key, one in within(f"scores{number}", state).items()})
    return StepModel(load_law(within("law", state)), scores)


def fit_steps(
    steps: Sequence[TransformerStep],
    elapsed_s: Array,
    configuration: Sequence[str],
    tries: Sequence[tuple[Mask, Mask]] = (),
) -> StepModel:
    """Return the model of n measured steps.

    Scores are those of cross-fitting, steps of one ``configuration`` together, and of ``tries``: extrapolations within
    the learned steps, each as masks (n,) of what is learned from and what is asked.

    Raises:
        InvalidInput: there are too few steps, a time is not above zero, or a device lacks a figure.
    """
    names, which = np.unique(np.asarray(configuration, np.str_), return_inverse=True)
    folds = np.random.default_rng(SEED).integers(0, FOLDS, len(names))[which]
    crossed = [(folds != fold, folds == fold) for fold in range(FOLDS) if 0 < (folds == fold).sum() < len(folds)]
    tried = [*crossed, *tries]
    errors, doubts = (
        np.concatenate(one) for one in zip(*(_tried(steps, elapsed_s, *one) for one in tried), strict=True)
    )
    generation = np.concatenate([_generations(steps)[asked] for _, asked in tried])
    scores = {ALL: Scores.of(errors, doubts)}
    for name in np.unique(generation):
        own = generation == name
        if own.sum() >= ENOUGH:
            scores[str(name)] = Scores.of(errors[own], doubts[own])
    return StepModel(fit(steps, elapsed_s.tolist()), scores)


def _tried(steps: Sequence[TransformerStep], elapsed_s: Array, known: Mask, asked: Mask) -> tuple[Array, Array]:
    """Return the errors ln(measured ÷ predicted) of the steps that are asked, and how unsure the law was of them."""
    law = fit([steps[i] for i in np.flatnonzero(known).tolist()], elapsed_s[known].tolist())
    out = [steps[i] for i in np.flatnonzero(asked).tolist()]
    told = law.predict(out)
    return np.log(elapsed_s[asked] / told.point), _tested(told.spread, law.believed(out))


def _generations(steps: Sequence[TransformerStep]) -> npt.NDArray[np.str_]:
    return np.array([generation_of(one.device) for one in steps], np.str_)


def _tested(spread: Array, believed: Array) -> Array:
    """Return the part of the spread that errors on other steps tell of."""
    return np.sqrt(np.maximum(spread**2 - believed**2, 0.0))
