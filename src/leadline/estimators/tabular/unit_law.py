"""Work as the number of units times the time of one, as in HARP's custom mode, both of them learned.

The time of a unit, a training step say, is about the same in a short run as in a long one, so there is little to
extrapolate: on a feature that decides how many there are, it depends little (a solver's steps become cheaper as its
field becomes smooth) or not at all. What is known of it is the median: the first units of a short run, which warm
caches up, do not blur it.
What a loop takes beside its usual units is a law of their time alone: a constant, and a share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.samples import Sample, Value
from leadline.estimators.tabular import bend, encoding
from leadline.estimators.tabular.bend import Bend
from leadline.estimators.tabular.encoding import Encoding
from leadline.estimators.tabular.ports import Array, FittedEstimator, Kept, Predicted, State
from leadline.estimators.tabular.states import nest, within
from leadline.estimators.tabular.tables import tabulate

LEAST = 6
"""So many runs at least must have shown their units."""
DECIDES = 0.5
"""The exponent above which a feature decides how many units there are."""
COUNT, UNIT, LOOP = "count", "unit", "loop"
USUAL = "usual_s"
"""The one feature of the loop's law: the number of units times the time of one."""


@dataclass(frozen=True, slots=True)
class FittedUnits:
    """The laws of the number of units, of the time of one, and of the loop by their product; bent at full scale."""

    name: str
    count: FittedEstimator
    unit: FittedEstimator
    loop: FittedEstimator
    encoding: Encoding
    bend: Bend

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predicted:
        """Predict each row; the errors of the laws are taken for independent."""
        count, unit = self.count.predict(rows), self.unit.predict(rows)
        loop = self.loop.predict(_usual(count.point * unit.point))
        point = np.exp(self.bend.at(np.log(loop.point), self.encoding.encode(rows)[0]))
        spread = np.sqrt(count.spread**2 + unit.spread**2 + loop.spread**2)
        return Predicted(point, spread, np.maximum(count.beyond, unit.beyond))

    def dump(self) -> State:
        """Return all laws as arrays."""
        return {
            "estimator": np.array([self.name]),
            **nest(COUNT, self.count.dump()),
            **nest(UNIT, self.unit.dump()),
            **nest(LOOP, self.loop.dump()),
            **nest("encoding", self.encoding.dump()),
            **nest("bend", self.bend.dump()),
        }


@dataclass(frozen=True, slots=True)
class UnitLaw:
    """Fits ``law`` to the number of units, ``unit`` to the time of one, and ``law`` to the work, the samples' value.

    Where the unit is ``fixed``, its time does not depend on what decides the number of units.
    """

    name: str
    law: Kept
    unit: Kept
    fixed: bool = False

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedUnits:
        """Fit all laws to the completed runs in which units were watched.

        Raises:
            InvalidInput: there are too few of them.
        """
        known = [one for one in samples if min(one.units or 0, one.unit_s or 0) > 0 and not one.censored]
        if len(known) < LEAST:
            raise InvalidInput(
                f"{self.name} needs at least {LEAST} finished runs whose units of work were watched, "
                f"but there are {len(known)}: measure them with the hook"
            )
        counts, units = (np.array([getattr(one, name) for one in known], float) for name in ("units", "unit_s"))
        count = self.law.fit(_with(known, counts), scale_features=scale_features, seed=seed)
        deciding = _deciding(known, scale_features)
        of_one = _with(known, units)
        unit = self.unit.fit(_without(of_one, deciding) if self.fixed else of_one, scale_features=deciding, seed=seed)
        usual = [replace(one, features=row) for one, row in zip(known, _usual(counts * units), strict=True)]
        loop = self.law.fit(usual, scale_features=(USUAL,), seed=seed)
        table = tabulate(known, least=LEAST, estimator=self.name)
        found = encoding.learn(table.rows, scale_features)
        x = found.encode(table.rows)[0]
        straight = FittedUnits(self.name, count, unit, loop, found, bend.none(x.shape[1]))
        logs = np.log(straight.predict(table.rows).point)
        return replace(straight, bend=bend.learn(x, logs, table, table.logs, found.scales.astype(bool)))

    def load(self, state: State) -> FittedUnits:
        """Return the fitted laws that ``dump`` gave."""
        count, loop = (self.law.load(within(name, state)) for name in (COUNT, LOOP))
        unit = self.unit.load(within(UNIT, state))
        known = encoding.load(within("encoding", state))
        return FittedUnits(self.name, count, unit, loop, known, bend.load(within("bend", state)))


def regress_units(samples: Sequence[Sample], scale_features: Sequence[str]) -> tuple[Encoding, Array, Array]:
    """Return the encoding of samples, the weights of its columns for ln(number of units), and what these leave of it.

    The weights (columns,) are of standardised columns, and what is left has shape (n,).
    """
    rows = [one.features for one in samples]
    found = encoding.learn(rows, scale_features)
    x = found.encode(rows)[0]
    design, logs = np.column_stack([np.ones(len(x)), x]), np.log([one.units or 1.0 for one in samples])
    weights = np.linalg.lstsq(design, logs, rcond=None)[0]
    return found, weights[1:], logs - design @ weights


def _deciding(samples: Sequence[Sample], scale_features: Sequence[str]) -> list[str]:
    """Return the features that decide the number of units."""
    found, weights, _ = regress_units(samples, scale_features)
    deciding = [column for column, one in zip(found.columns, weights / found.stretch, strict=True) if one > DECIDES]
    return [name for column in deciding for name in column.split(" + ") if name in scale_features]


def _with(samples: Sequence[Sample], values: Array) -> list[Sample]:
    return [replace(one, value=float(value)) for one, value in zip(samples, values, strict=True)]


def _without(samples: Sequence[Sample], names: Sequence[str]) -> list[Sample]:
    return [
        replace(one, features={name: value for name, value in one.features.items() if name not in names})
        for one in samples
    ]


def _usual(seconds: Array) -> list[dict[str, Value]]:
    return [{USUAL: float(one)} for one in seconds]
