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
Texts = npt.NDArray[np.str_]

FOLDS = 5
SEED = 0
ENOUGH = 19
"""Scores from which a generation of GPUs has intervals of its own, within what was learned or beyond it."""
ALL, BEYOND = "", ", beyond"
"""The scores of all generations together, for those that have few or none; and what marks those of extrapolations."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """The law of all learned steps, and the scores of those that it was asked without having seen them.

    ``scores`` are by generation of GPUs (``generation_of``), those of all under ``ALL``. Steps whose sizes lay beyond
    what was learned have scores apart, under the name with ``BEYOND``: the law doubts itself otherwise there.
    """

    law: StepLaw
    scores: Mapping[str, Scores]

    def predict(self, steps: Sequence[TransformerStep], level: float) -> tuple[Array, Array, Array]:
        """Return the seconds of n steps, and the ends of their central intervals of ``level`` (0 to 1), each (n,).

        Raises:
            InvalidInput: a device lacks a figure, or a size is not above zero.
        """
        told, believed = self.law.predict(steps), self.law.believed(steps)
        doubt, group = _tested(told.spread, believed), _groups(steps, told.beyond)
        low, high = np.empty(len(steps)), np.empty(len(steps))
        for name in np.unique(group):
            own, scores = group == name, self._of(str(name))
            low[own], high[own] = scores.interval(told.point[own], doubt[own], level, believed[own])
        return told.point, low, high

    def _of(self, group: str) -> Scores:
        """Return the scores of a group, else of all that lie beyond as it does, else of all."""
        wider = ALL + BEYOND if group.endswith(BEYOND) else ALL
        return next(self.scores[one] for one in (group, wider, ALL) if one in self.scores)

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
    parts = [_tried(steps, elapsed_s, *one) for one in tried]
    errors, doubts = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    group = np.concatenate([part[2] for part in parts])
    far = np.char.endswith(group, BEYOND)
    scores = {ALL: Scores.of(errors, doubts)}
    for name, own in [(ALL + BEYOND, far), *((str(one), group == one) for one in np.unique(group))]:
        if own.sum() >= ENOUGH:
            scores[name] = Scores.of(errors[own], doubts[own])
    return StepModel(fit(steps, elapsed_s.tolist()), scores)


def _tried(steps: Sequence[TransformerStep], elapsed_s: Array, known: Mask, asked: Mask) -> tuple[Array, Array, Texts]:
    """Return the errors ln(measured ÷ predicted) of steps that are asked, how unsure the law was, and their groups."""
    law = fit([steps[i] for i in np.flatnonzero(known).tolist()], elapsed_s[known].tolist())
    out = [steps[i] for i in np.flatnonzero(asked).tolist()]
    told = law.predict(out)
    errors = np.log(elapsed_s[asked] / told.point)
    return errors, _tested(told.spread, law.believed(out)), _groups(out, told.beyond)


def _groups(steps: Sequence[TransformerStep], beyond: Array) -> Texts:
    names = [generation_of(one.device) + BEYOND * bool(far) for one, far in zip(steps, beyond > 0, strict=True)]
    return np.array(names, np.str_)


def _tested(spread: Array, believed: Array) -> Array:
    """Return the part of the spread that errors on other steps tell of."""
    return np.sqrt(np.maximum(spread**2 - believed**2, 0.0))
