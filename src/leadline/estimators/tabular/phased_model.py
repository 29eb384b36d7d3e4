"""Models by units of work and by phases of a job, as in HARP's custom mode.

**Units.** Work is the number of units times the time of one, both fitted. The time of a unit, such as a training step,
is about the same in short and long runs, so little is extrapolated. On a feature that decides their number it depends
little (a solver's steps become cheaper as its field becomes smooth) or not at all. It is the median, which warm-up
units of a short run do not blur. A loop's further time is a constant and a share of that of its units.

**Phases.** Start-up, work and the rest each get a model where they were reported or watched. HARP takes the start-up as
constant; here it may grow, as the reading of a data set does. Where it takes most of a scaled-down run, the work is
fitted to the time in the job's own loops. Of a run's three seconds, half a second may be all that grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.runs import Sample, Value
from leadline.estimators.ports import (
    Array,
    FittedEstimator,
    FittedModel,
    Predictions,
    State,
    TabularEstimator,
    nest,
    text_array,
    unnest,
)
from leadline.estimators.tabular import corrections, encoding
from leadline.estimators.tabular.corrections import FullScaleCorrection
from leadline.estimators.tabular.encoding import FeatureEncoding
from leadline.estimators.tabular.tables import robust_deviation, tabulate_samples

LEAST_UNIT_RUNS = 6  # so many runs at least must have shown their units
DECIDES = 0.5  # the exponent above which a feature decides how many units there are

USUAL = "usual_s"  # the only feature of the loop model: number of units times the time of one


class FittedUnitModel(FittedModel):
    """Models of the unit count, unit time and loop by their product, corrected at full scale."""

    count: FittedEstimator
    unit: FittedEstimator
    loop: FittedEstimator
    encoding: FeatureEncoding
    bend: FullScaleCorrection

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predictions:
        """Predict each row; the models' errors count as independent."""
        count, unit = self.count.predict(rows), self.unit.predict(rows)
        loop = self.loop.predict(_usual_features(count.point * unit.point))
        point = np.exp(self.bend.at(np.log(loop.point), self.encoding.encode(rows)[0]))
        spread = np.sqrt(count.spread**2 + unit.spread**2 + loop.spread**2)
        return Predictions(point, spread, np.maximum(count.extrapolation, unit.extrapolation))


class UnitModel(Frozen):
    """Fits ``law`` to the unit count, ``unit`` to the unit time, and ``law`` to the samples' work.

    With ``fixed`` the unit time does not depend on features that decide the number of units.
    """

    name: str
    law: TabularEstimator
    unit: TabularEstimator
    fixed: bool = False

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedUnitModel:
        """Fit all models to the completed runs with watched units; ``InvalidInput`` if there are too few of them."""
        watched = [run for run in samples if min(run.units or 0, run.unit_s or 0) > 0 and not run.censored]
        if len(watched) < LEAST_UNIT_RUNS:
            raise InvalidInput(
                f"{self.name} needs at least {LEAST_UNIT_RUNS} finished runs whose units of work were watched, "
                f"but there are {len(watched)}: measure them with the hook"
            )
        counts, units = (np.array([getattr(sample, name) for sample in watched], float) for name in ("units", "unit_s"))
        count = self.law.fit(_with_values(watched, counts), scale_features=scale_features, seed=seed)
        deciding = _deciding(watched, scale_features)
        of_one = _with_values(watched, units)
        if self.fixed:
            of_one = [
                replace(run, features={name: run.features[name] for name in run.features if name not in deciding})
                for run in of_one
            ]
        unit = self.unit.fit(of_one, scale_features=deciding, seed=seed)
        usual = [
            replace(sample, features=row) for sample, row in zip(watched, _usual_features(counts * units), strict=True)
        ]
        loop = self.law.fit(usual, scale_features=(USUAL,), seed=seed)
        table = tabulate_samples(watched, least=LEAST_UNIT_RUNS, estimator=self.name)
        encoder = encoding.learn_encoding(table.rows, scale_features)
        x = encoder.encode(table.rows)[0]
        none = corrections.no_full_scale_correction(x.shape[1])
        straight = FittedUnitModel(self.name, count, unit, loop, encoder, none)
        logs = np.log(straight.predict(table.rows).point)
        bend = corrections.fit_full_scale_correction(x, logs, table, table.logs, encoder.scales.astype(bool))
        return replace(straight, bend=bend)

    def load(self, state: State) -> FittedUnitModel:
        """Return the fitted laws that ``dump`` gave."""
        return FittedUnitModel.load(state, count=self.law.load, unit=self.unit.load, loop=self.law.load)


def regress_units(samples: Sequence[Sample], scale_features: Sequence[str]) -> tuple[FeatureEncoding, Array, Array]:
    """Return the encoding, column weights for ln(number of units), and residuals (n,).

    The weights (columns,) are of standardised columns.
    """
    rows = [sample.features for sample in samples]
    encoder = encoding.learn_encoding(rows, scale_features)
    x = encoder.encode(rows)[0]
    design, logs = np.column_stack([np.ones(len(x)), x]), np.log([sample.units or 1.0 for sample in samples])
    weights = np.linalg.lstsq(design, logs, rcond=None)[0]
    return encoder, weights[1:], logs - design @ weights


def _deciding(samples: Sequence[Sample], scale_features: Sequence[str]) -> list[str]:
    encoder, weights, _ = regress_units(samples, scale_features)
    deciding = [
        column
        for column, exponent in zip(encoder.columns, weights / encoder.stretch, strict=True)
        if exponent > DECIDES
    ]
    return [name for column in deciding for name in column.split(" + ") if name in scale_features]


def _with_values(samples: Sequence[Sample], values: Array) -> list[Sample]:
    return [replace(sample, value=float(value)) for sample, value in zip(samples, values, strict=True)]


def _usual_features(seconds: Array) -> list[dict[str, Value]]:
    return [{USUAL: float(duration)} for duration in seconds]


LEAST_PHASED_RUNS = 6  # so many runs at least must show their phases
UNLIKE = 0.5  # log deviation of unit counts from a power product above which the runs watched different loops
LEAST_SHARE = 0.002  # the share of a run that a phase takes at least, so that it has a logarithm
# Reported phases that take more than this share of the run together were not measured of the same run.
MOST = 1.02
STARTUP, WORK, REST, WHOLE = "startup", "work", "rest", "whole"


class FittedPhasedModel(Frozen):
    """Fitted models by phase; the whole run is their sum, or the only phase."""

    name: str
    phases: Mapping[str, FittedEstimator]

    def predict(self, rows: Sequence[Mapping[str, Value]]) -> Predictions:
        """Predict each row as the sum of its phases, whose errors count as independent."""
        each = [prediction.predict(rows) for prediction in self.phases.values()]
        if len(each) == 1:
            return each[0]
        point = np.sum([prediction.point for prediction in each], axis=0)
        spread = np.sqrt(np.sum([(prediction.point * prediction.spread) ** 2 for prediction in each], axis=0)) / point
        return Predictions(point, spread, np.max([prediction.extrapolation for prediction in each], axis=0))

    def dump(self) -> State:
        """Return all phases as arrays."""
        state: State = {"estimator": np.array([self.name]), "phases": text_array(list(self.phases))}
        for phase, estimator in self.phases.items():
            state |= nest(phase, estimator.dump())
        return state


class PhasedModel(Frozen):
    """Fits ``recipe`` to the work and ``phase_recipe`` to other phases; ``recipe`` alone without phases.

    Phases are known if start-ups were reported for the same loops in all runs. Where another loop was watched, the
    start-up means something else.
    """

    recipe: TabularEstimator
    phase_recipe: TabularEstimator

    @property
    def name(self) -> str:
        """Return the name of the work's estimator."""
        return self.recipe.name

    def fit(self, samples: Sequence[Sample], *, scale_features: Sequence[str] = (), seed: int = 0) -> FittedPhasedModel:
        """Fit all phases; predictions replace the unreported phases of a run."""
        reported = [sample for sample in samples if 0 < _startup(sample) < sample.value]
        if len(reported) < LEAST_PHASED_RUNS or _unit_count_deviation(reported, scale_features) > UNLIKE:
            unlike = [replace(sample, units=None, unit_s=None) for sample in samples]
            whole = self.recipe.fit(unlike, scale_features=scale_features, seed=seed)
            return FittedPhasedModel(self.name, {WHOLE: whole})

        def fit(
            recipe: TabularEstimator, runs: Sequence[Sample], values: Sequence[float], *, last: bool
        ) -> FittedEstimator:
            of_phase = [
                replace(sample, value=value, startup_s=None, work_s=None, censored=sample.censored and last)
                for sample, value in zip(runs, values, strict=True)
            ]
            return _fit_phase(_Phase(recipe, tuple(of_phase), tuple(scale_features), seed))

        startup = fit(self.phase_recipe, reported, [_startup(sample) for sample in reported], last=False)
        remaining = _subtract_phase(
            samples, [sample.value for sample in samples], [sample.startup_s for sample in samples], startup
        )
        watched = [
            sample for sample in reported if sample.work_s and _startup(sample) + sample.work_s < MOST * sample.value
        ]
        if len(watched) < max(LEAST_PHASED_RUNS, 0.8 * len(reported)):
            work = fit(self.recipe, samples, remaining, last=True)
            return FittedPhasedModel(self.name, {STARTUP: startup, WORK: work})
        cut_off = [at for at, sample in enumerate(samples) if sample.censored]
        watched = [sample for sample in watched if not sample.censored]
        work = fit(
            self.recipe,
            [*watched, *(samples[at] for at in cut_off)],
            [*(sample.work_s or 0.0 for sample in watched), *(remaining[at] for at in cut_off)],
            last=True,
        )
        remaining = _subtract_phase(samples, remaining, [sample.work_s for sample in samples], work)
        rest = fit(self.phase_recipe, samples, remaining, last=True)
        return FittedPhasedModel(self.name, {STARTUP: startup, WORK: work, REST: rest})

    def load(self, state: State) -> FittedPhasedModel:
        """Return the fitted phases that ``dump`` gave."""
        phases = {}
        for phase in (str(name) for name in state["phases"]):
            phases[phase] = (self.recipe if phase in (WORK, WHOLE) else self.phase_recipe).load(unnest(phase, state))
        return FittedPhasedModel(self.name, phases)


class _Phase(Frozen):
    """One fit's recipe and data, equal if all training inputs are."""

    recipe: TabularEstimator
    samples: tuple[Sample, ...]
    scale_features: tuple[str, ...]
    seed: int

    def __hash__(self) -> int:
        return hash((self.recipe.name, *((sample.run_id, sample.value) for sample in self.samples)))


@lru_cache(maxsize=8)
def _fit_phase(phase: _Phase) -> FittedEstimator:
    """Fit a phase once: start-up and rest are the same for every estimator of the work."""
    return phase.recipe.fit(phase.samples, scale_features=phase.scale_features, seed=phase.seed)


def _unit_count_deviation(samples: Sequence[Sample], scale_features: Sequence[str]) -> float:
    """Return the log deviation of unit counts from a power product of the features."""
    samples = [sample for sample in samples if not sample.censored]
    counted = [sample for sample in samples if sample.units]
    if not counted or len(counted) < len(samples):
        return 0.0
    return robust_deviation(regress_units(counted, scale_features)[2])


def _startup(sample: Sample) -> float:
    return sample.startup_s or 0.0


def _subtract_phase(
    samples: Sequence[Sample], values: Sequence[float], reported: Sequence[float | None], fitted: FittedEstimator
) -> list[float]:
    """Return ``values`` without a phase, as reported or else as predicted."""
    predicted: Array = fitted.predict([sample.features for sample in samples]).point
    phase_s = [float(guess) if known is None else known for known, guess in zip(reported, predicted, strict=True)]
    return [
        max(value - phase, LEAST_SHARE * sample.value)
        for sample, value, phase in zip(samples, values, phase_s, strict=True)
    ]
