"""The ensemble: the median of what several estimators of different form say, so that none of them alone goes astray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.samples import Sample, Value
from leadline.estimators.tabular.ports import FittedEstimator, Kept, Predicted, State
from leadline.estimators.tabular.states import nest, texts, within

LEAST = 2


def median_of(said: Sequence[Predicted]) -> Predicted:
    """Return the median of the logarithms; what the members differ by is added to what they doubt themselves."""
    logs = np.log([one.point for one in said])
    middle = np.median(logs, axis=0)
    own = np.median([one.spread**2 for one in said], axis=0)
    apart = np.mean((logs - middle) ** 2, axis=0)
    return Predicted(np.exp(middle), np.sqrt(own + apart), np.max([one.beyond for one in said], axis=0))


@dataclass(frozen=True, slots=True)
class FittedEnsemble:
    """Fitted members, each of which has a voice."""

    name: str
    members: tuple[FittedEstimator, ...]

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predict each row by the median of the members."""
        return median_of([one.predict(rows) for one in self.members])

    def dump(self) -> State:
        """Return all members as arrays."""
        found: State = {"estimator": np.array([self.name]), "members": texts([one.name for one in self.members])}
        for number, one in enumerate(self.members):
            found |= nest(f"member{number}", one.dump())
        return found


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Fits every member that the samples allow."""

    name: str
    members: tuple[Kept, ...]

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedEnsemble:
        """Fit the members; one that cannot be fitted has no voice.

        Raises:
            InvalidInput: fewer than two can be fitted; why not the first.
        """
        fitted, why = [], ""
        for one in self.members:
            try:
                fitted.append(one.fit(samples, scale_features=scale_features, seed=seed))
            except InvalidInput as error:
                why = why or str(error).replace(one.name, self.name, 1)
        if len(fitted) < LEAST:
            raise InvalidInput(why or f"{self.name} needs two estimators, and has {len(fitted)}")
        return FittedEnsemble(self.name, tuple(fitted))

    def load(self, state: State) -> FittedEnsemble:
        """Return the fitted ensemble that ``dump`` gave."""
        known = {one.name: one for one in self.members}
        names = [str(one) for one in state["members"]]
        return FittedEnsemble(
            self.name, tuple(known[name].load(within(f"member{i}", state)) for i, name in enumerate(names))
        )
